/*
 * Reference kernels, part 2: opening. Every row descends from the top level and opens the clusters
 * whose score is highest; what takes part in its softmax is a list of rows and clusters. The choice
 * depends on q, k and the masks alone, so backward makes it again with the same bits.
 */
#include "cpu/ref/unit.h"

/* A row (level 0) or cluster that takes part. near: met at level 0, scored with rotary. */
typedef struct FN(part) {
    int64_t c;
    int level, near;
} FN(part);

/* The candidates of one level, in the order of their clusters, and where they go. */
typedef struct FN(chooser) {
    int64_t *candidate, *child; /* [most] */
    real *score;                /* [most] */
    uint8_t *opened;            /* [most] */
    FN(part) *part;             /* [parts]: disjoint, and none is empty */
    int64_t parts;
} FN(chooser);

static void FN(chooser_layout)(FN(chooser) *ch, char *base, size_t *used,
                               const ht_attention_desc *d, int64_t length, int64_t parts) {
    int64_t most = hti_open_candidates(d, length), words = (int64_t)(8 / sizeof(real));
    ch->candidate = (int64_t *)FN(take)(base, used, most * words);
    ch->child = (int64_t *)FN(take)(base, used, most * words);
    ch->score = FN(take)(base, used, most);
    ch->opened = (uint8_t *)FN(take)(base, used, most);
    ch->part = (FN(part) *)FN(take)(base, used, parts * 2 * words);
}

/* ---- clusters, of a pyramid or of the decode state ---- */

static real FN(count_of)(const FN(unit) *u, int level, int64_t c) {
    int64_t at = u->first[level] + c;
    return u->held ? (real)u->held[level].n[at] : u->n[at];
}

static const real *FN(key_of)(const FN(unit) *u, int level, int64_t c) {
    return (u->held ? (const real *)u->held[level].k : u->k) + (u->first[level] + c) * u->d;
}

static const real *FN(value_of)(const FN(unit) *u, int level, int64_t c) {
    return (u->held ? (const real *)u->held[level].v : u->v) + (u->first[level] + c) * u->dv;
}

/* ---- scores ---- */

/* Mean and deviation of the logits of the clusters `peek` levels below: no bias, no rotary. */
static real FN(open_score)(const FN(unit) *u, const real *q, int level, int64_t c) {
    int64_t down = u->desc->open_peek < 0 ? 0 : u->desc->open_peek;
    int below = level - (int)(down < level ? down : level);
    int64_t lo = c << (level - below), hi = (c + 1) << (level - below);
    real all = 0, mean = 0, square = 0;
    if (hi > u->rows[below]) hi = u->rows[below];
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t b = lo; b < hi; b++) {
            real n = FN(count_of)(u, below, b);
            if (n == 0) continue;
            real s = (real)u->desc->scale * FN(dot)(q, FN(key_of)(u, below, b), u->d);
            if (pass == 0) all += n, mean += n * s;
            if (pass == 1) square += n * (s - mean) * (s - mean);
        }
        if (pass == 0) mean /= all;
    }
    return mean + FN(sqrt)(square / all);
}

/* The `open` highest; of equal ones the smaller cluster; NaN last. */
static void FN(choose)(FN(chooser) *ch, int64_t n, int64_t open) {
    for (int64_t x = 0; x < n; x++) {
        int64_t ahead = 0;
        real s = ch->score[x];
        for (int64_t y = 0; y < n && n > open; y++) {
            real t = ch->score[y];
            int better = isnan(s) ? !isnan(t) : t > s;
            int equal = t == s || (isnan(s) && isnan(t));
            ahead += better || (equal && y < x);
        }
        ch->opened[x] = ahead < open;
    }
}

/* ---- descending ---- */

static int64_t FN(add_range)(const FN(unit) *u, int64_t *candidate, int64_t n, int level,
                             hti_range r) {
    for (int64_t c = r.lo; c < r.hi; c++)
        if (FN(count_of)(u, level, c) > 0) candidate[n++] = c;
    return n;
}

/* Clusters that row i meets at a level, and the children of what it opened above, which lie on both
 * sides of them. */
static int64_t FN(candidates)(const FN(unit) *u, FN(chooser) *ch, int64_t children, int level,
                              int64_t i) {
    hti_range r[2], one;
    int64_t n = 0, x = 0;
    FN(ranges)(r, u, level, i >> level);
    for (; x < children && ch->child[x] < r[0].lo; x++) {
        one = (hti_range){ch->child[x], ch->child[x] + 1};
        n = FN(add_range)(u, ch->candidate, n, level, one);
    }
    n = FN(add_range)(u, ch->candidate, n, level, r[0]);
    n = FN(add_range)(u, ch->candidate, n, level, r[1]);
    for (; x < children; x++) {
        one = (hti_range){ch->child[x], ch->child[x] + 1};
        n = FN(add_range)(u, ch->candidate, n, level, one);
    }
    return n;
}

static void FN(add_part)(FN(chooser) *ch, int level, int64_t c, int near) {
    ch->part[ch->parts++] = (FN(part)){c, level, near};
}

/* Candidate c of a level has been chosen or not: it takes part, or its rows do, or its children
 * wait. Returns the children that wait now. */
static int64_t FN(settle)(const FN(unit) *u, FN(chooser) *ch, int level, int64_t c, int opened,
                          int64_t children) {
    if (!opened) {
        FN(add_part)(ch, level, c, 0);
    } else if (level == 1 || (int64_t)1 << level <= u->desc->open_leaf) {
        int64_t end = (c + 1) << level < u->length ? (c + 1) << level : u->length;
        for (int64_t j = c << level; j < end; j++)
            if (FN(count_of)(u, 0, j) > 0) FN(add_part)(ch, 0, j, 0);
    } else {
        ch->child[children++] = 2 * c;
        if (2 * c + 1 < u->rows[level - 1]) ch->child[children++] = 2 * c + 1;
    }
    return children;
}

/* All that takes part for row i, whose query is q: rows met at level 0, then from the top down. */
static void FN(descend)(const FN(unit) *u, FN(chooser) *ch, const real *q, int64_t i) {
    hti_range r[2];
    int64_t children = 0;
    ch->parts = 0;
    FN(ranges)(r, u, 0, i);
    for (int64_t j = r[0].lo; j < r[0].hi; j++)
        if (FN(count_of)(u, 0, j) > 0) FN(add_part)(ch, 0, j, 1);
    for (int level = u->levels - 1; level > 0; level--) {
        int64_t n = FN(candidates)(u, ch, children, level, i);
        for (int64_t x = 0; x < n; x++)
            ch->score[x] = FN(open_score)(u, q, level, ch->candidate[x]);
        FN(choose)(ch, n, u->desc->open);
        children = 0;
        for (int64_t x = 0; x < n; x++)
            children = FN(settle)(u, ch, level, ch->candidate[x], ch->opened[x], children);
    }
}

/* ---- one row ---- */

static const real *FN(part_key)(const FN(unit) *u, const FN(part) *p) {
    if (!p->near || !u->kt) return FN(key_of)(u, p->level, p->c);
    return u->kt + (u->held ? p->c % (2 * u->block) : p->c) * u->d;
}

/* q: the row's query; qt: as level 0's own rows meet it */
static real FN(part_score)(const FN(unit) *u, const FN(part) *p, int64_t i, const real *q,
                           const real *qt) {
    return FN(score_of)(u, p->near ? qt : q, FN(part_key)(u, p), p->c - (i >> p->level));
}

/* Row i: maximum, sum and numerator over all that takes part. */
static void FN(attend_opened)(FN(unit) *u, FN(chooser) *ch, int64_t i, const real *q,
                              const real *qt, real *max, real *sum, real *acc) {
    FN(descend)(u, ch, q, i);
    *max = -(real)INFINITY, *sum = 0;
    for (int64_t x = 0; x < ch->parts; x++) {
        u->score[x] = FN(part_score)(u, &ch->part[x], i, q, qt);
        if (x == 0 || u->score[x] > *max) *max = u->score[x];
    }
    for (int64_t x = 0; x < ch->parts; x++) {
        const FN(part) *p = &ch->part[x];
        const real *v = FN(value_of)(u, p->level, p->c);
        real weight = FN(count_of)(u, p->level, p->c) * FN(exp)(u->score[x] - *max);
        real w = weight * FN(dropout_factor)(u, p->level, i, p->c);
        *sum += weight;
        for (int c = 0; c < u->dv; c++) acc[c] += w * v[c];
    }
}

static void FN(forward_opened)(FN(unit) *u, FN(chooser) *ch) {
    for (int64_t i = 0; i < u->length; i++) {
        if (u->nq[i] == 0) continue;
        FN(attend_opened)(u, ch, i, u->q + i * u->d, u->qt + i * u->d, &u->max[i], &u->sum[i],
                          u->acc + i * u->dv);
    }
}

/* As grad_range, for one part of row i. Rows that were opened keep the gradients of their plain
 * keys apart from those of the turned ones. */
static void FN(grad_part)(FN(unit) *u, const FN(part) *p, int64_t i, real *dbias) {
    int64_t at = u->first[p->level] + p->c;
    const real *key = FN(part_key)(u, p), *q = (p->near ? u->qt : u->q) + i * u->d;
    const real *g = u->acc + i * u->dv, *v = u->v + at * u->dv;
    real *dq = u->dq + i * u->d, *dk = u->dk + at * u->d, scale = (real)u->desc->scale;
    if (u->dfar && p->level == 0 && !p->near) dk = u->dfar + p->c * u->d;
    real s = FN(part_score)(u, p, i, u->q + i * u->d, u->qt + i * u->d);
    real weight = u->n[at] * FN(exp)(s - u->max[i]);
    real drop = FN(dropout_factor)(u, p->level, i, p->c);
    real ds = weight * (drop * FN(dot)(g, v, u->dv) - u->sum[i]);
    for (int x = 0; x < u->dv; x++) u->dval[at * u->dv + x] += drop * weight * g[x];
    for (int x = 0; x < u->d; x++) {
        dq[x] += scale * ds * key[x];
        dk[x] += scale * ds * q[x];
    }
    if (dbias) dbias[FN(bias_at)(u, p->c - (i >> p->level)) / u->desc->q_heads] += ds;
}

/* The parts of level 0 come first: dq is of the turned query until it is turned back. */
static void FN(grad_opened)(FN(unit) *u, FN(chooser) *ch, real *dbias) {
    for (int64_t i = 0; i < u->length; i++) {
        int64_t x = 0;
        if (isinf(u->max[i])) continue;
        FN(descend)(u, ch, u->q + i * u->d, i);
        for (; x < ch->parts && ch->part[x].near; x++) FN(grad_part)(u, &ch->part[x], i, dbias);
        if (u->qt != u->q)
            FN(rotate)(u->dq + i * u->d, u->dq + i * u->d, u->turn + i * u->d, u->d, -1);
        for (; x < ch->parts; x++) FN(grad_part)(u, &ch->part[x], i, dbias);
    }
}
