/*
 * Decoding with opening: a row descends from the top level to level 1, scores its candidates from
 * the clusters below them, and what takes part joins the keys that wait for flush. All rings hold
 * all clusters, so that neighbours lie side by side; every candidate of a row is complete.
 */

/* Logits inside a candidate that are held at once. */
enum { DECODE_INSIDE = 512 };

/* The candidates of a level, in the order of their clusters. */
typedef struct opener {
    int64_t *candidate, *child; /* [most] */
    float *score, *mean;        /* [most] */
    uint64_t *rank, *sorted;    /* [most] rises with the score, falls with the number */
} opener;

static void opener_take(opener *out, hti_arena *c, const hti_cache_call *call) {
    const ht_attention_desc *d = call->a.desc;
    int64_t most = d->open > 0 ? hti_open_candidates(d, call->ring) : 0;
    out->candidate = hti_take(c, most, sizeof *out->candidate);
    out->child = hti_take(c, most, sizeof *out->child);
    out->score = hti_take(c, most, sizeof *out->score);
    out->mean = hti_take(c, most, sizeof *out->mean);
    out->rank = hti_take(c, most, sizeof *out->rank);
    out->sorted = hti_take(c, most, sizeof *out->sorted);
}

/* ---- scores ---- */

/* Mean of n logits by their counts, and how far they lie apart. */
static float spread_of(float *mean, const float *s, const float *count, int64_t n) {
    float all = 0, sum = 0, square = 0;
    for (int64_t b = 0; b < n; b++)
        if (count[b] > 0) all += count[b], sum += count[b] * s[b];
    *mean = sum /= all;
    for (int64_t b = 0; b < n; b++)
        if (count[b] > 0) square += count[b] * (s[b] - sum) * (s[b] - sum);
    return sum + sqrtf(square / all);
}

/* The same where the logits are too many to be held: they are made twice. */
static float wide_spread(decoder *o, float *mean, const float *q, int below, int64_t from,
                         int64_t n) {
    float s[DECODE_INSIDE], all = 0, sum = 0, square = 0, scale = (float)o->desc->scale;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t at = 0; at < n; at += DECODE_INSIDE) {
            const float *count = level_n(o, below, from + at);
            int64_t some = least(n - at, DECODE_INSIDE);
            product_run(s, q, level_k(o, below, from + at), scale, some, o->d);
            for (int64_t b = 0; b < some; b++) {
                if (!(count[b] > 0)) continue;
                if (pass == 0) all += count[b], sum += count[b] * s[b];
                if (pass == 1) square += count[b] * (s[b] - sum) * (s[b] - sum);
            }
        }
        if (pass == 0) sum /= all;
    }
    *mean = sum;
    return sum + sqrtf(square / all);
}

/* Scores of n candidates of a level: mean and deviation of the logits `down` levels below. */
static void score_candidates(decoder *o, opener *p, const float *q, int level, int64_t n) {
    int peek = o->desc->open_peek < 0 ? 0 : (int)o->desc->open_peek;
    int down = peek < level ? peek : level, below = level - down;
    int64_t inside = (int64_t)1 << down, most = DECODE_INSIDE >> (down < 30 ? down : 30);
    float s[DECODE_INSIDE];
    for (int64_t x = 0, several; x < n; x += several) {
        int64_t from = p->candidate[x] << down;
        several = 1;
        if (most == 0) {
            p->score[x] = wide_spread(o, &p->mean[x], q, below, from, inside);
            continue;
        }
        while (several < most && x + several < n &&
               p->candidate[x + several] == p->candidate[x] + several)
            several++;
        product_run(s, q, level_k(o, below, from), (float)o->desc->scale, several * inside, o->d);
        for (int64_t i = 0; i < several; i++)
            p->score[x + i] = spread_of(&p->mean[x + i], s + i * inside,
                                        level_n(o, below, from + i * inside), inside);
    }
}

/* ---- choosing ---- */

/* Numbers that order candidates as the choice does: by score, NaN last, then the smaller number. */
static uint64_t rank_of(float score, int64_t x) {
    uint32_t bits;
    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, sizeof bits);
    bits = isnan(score) ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)x);
}

static uint64_t middle_of(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* The k-th largest of n different numbers, 1 <= k <= n; their order is lost. */
static uint64_t largest_kth(uint64_t *x, int64_t n, int64_t k) {
    for (;;) {
        uint64_t pivot = middle_of(x[0], x[n / 2], x[n - 1]);
        int64_t lo = 0, hi = n - 1;
        while (lo <= hi) { /* larger ones to the left */
            while (x[lo] > pivot) lo++;
            while (x[hi] < pivot) hi--;
            if (lo > hi) break;
            uint64_t swap = x[lo];
            x[lo++] = x[hi], x[hi--] = swap;
        }
        /* x[0 ... hi] >= pivot, x[lo ... n) <= pivot; between them at most the pivot itself */
        if (k <= hi + 1) {
            n = hi + 1;
        } else if (k <= lo) {
            return pivot;
        } else {
            x += lo, n -= lo, k -= lo;
        }
        if (n == 1) return x[0];
    }
}

/* The rank from which on candidates are opened. */
static uint64_t open_from(opener *p, int64_t n, int64_t open) {
    for (int64_t x = 0; x < n; x++) p->rank[x] = rank_of(p->score[x], x);
    if (n <= open) return 0;
    memcpy(p->sorted, p->rank, sizeof *p->rank * (size_t)n);
    return largest_kth(p->sorted, n, open);
}

/* ---- descending ---- */

/* What row t meets at a level, and the children of what it opened above, all to their left. */
static int64_t find_candidates(decoder *o, opener *p, int level, int64_t t, int64_t children) {
    hti_range r = hti_keys_left(INT64_MAX, o->desc->block, level, 1, t >> level);
    int64_t n = 0;
    for (int64_t x = 0; x < children; x++)
        if (*level_n(o, level, p->child[x]) > 0) p->candidate[n++] = p->child[x];
    for (int64_t c = r.lo; c < r.hi; c++)
        if (*level_n(o, level, c) > 0) p->candidate[n++] = c;
    return n;
}

/* Cluster c, whose logit is known, waits for flush. */
static void take_cluster(decoder *o, float *state, int level, int64_t c, int64_t t, float logit) {
    const float *bias = o->call->a.bias;
    float *v = level_v(o, level, c);
    if (o->keys == DECODE_KEYS || o->runs == DECODE_RUNS) flush(o, state);
    o->s[o->keys] = logit + (bias ? bias[bias_at(o, c - (t >> level))] : 0);
    o->n[o->keys++] = *level_n(o, level, c);
    if (o->runs > 0 && v == o->run[o->runs - 1].v + o->run[o->runs - 1].count * o->dv) {
        o->run[o->runs - 1].count++;
    } else {
        o->run[o->runs].v = v;
        o->run[o->runs++].count = 1;
    }
}

/* Row t, whose plain query is q: all levels above 0, towards `state`. */
static void descend(decoder *o, float *state, const float *q, int64_t t, int levels) {
    opener *p = o->opener;
    int64_t children = 0;
    for (int level = levels - 1; level > 0; level--) {
        int64_t n = find_candidates(o, p, level, t, children);
        int leaf = level == 1 || (int64_t)1 << level <= o->desc->open_leaf;
        score_candidates(o, p, q, level, n);
        uint64_t from = open_from(p, n, o->desc->open);
        children = 0;
        for (int64_t x = 0; x < n; x++) {
            int64_t c = p->candidate[x];
            if (p->rank[x] < from) {
                take_cluster(o, state, level, c, t, p->mean[x]);
            } else if (leaf) {
                see_run(o, state, q, 0, t, (hti_range){c << level, (c + 1) << level});
            } else {
                p->child[children++] = 2 * c;
                p->child[children++] = 2 * c + 1;
            }
        }
    }
}
