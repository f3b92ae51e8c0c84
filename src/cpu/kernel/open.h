/*
 * Opening, part 1: which clusters the 16 rows of a tile look into.
 *
 * From the top level down. What a level's rows meet is the same for nearly all rows of a tile:
 * their sub-clusters are scored as a tile is, rows in lanes. Children of what was opened above are
 * each row's own: four rows of the pyramid at a time are multiplied with its query. Scores of both
 * kinds then lie in slots, in the order of clusters, and every lane picks its `open` highest.
 *
 *     met     [slots][TILE] logits of the clusters met that take part, -inf where opened
 *     gather  per row: children that were not opened, then the rows of leaves that were
 *
 * The choice of a row depends on q, k and masks of that row's keys alone, and is made again, with
 * the same bits, in backward. Dots are without the scale, so that sums of small integers are exact.
 */

/* One call. The pyramid holds all levels of one key head at a time. */
typedef struct opening {
    work w;
    float *turned; /* [rows] x dp: keys of level 0 as near rows see them; NULL: no rotary */
    int64_t open, leaf, peek;
    int drop;
    float sign, factor; /* of the scale; its size in units of log 2 */
    int64_t slots;      /* most candidates of a level, their lanes' children apart */
    int64_t room;       /* most entries of a row's gather */
} opening;

/* A thread's own. Slots of a level: children left of what is met, what is met, children right. */
typedef struct chooser {
    hti_segs segs;        /* met at the level at hand */
    float *rows;          /* [TILE] x dp: q times sign; rows without a query are 0 */
    uint32_t live;        /* lanes that have one */
    float *score;         /* [slots][TILE]; NaN and what is no candidate: -inf */
    float *mean;          /* [slots][TILE] logits, then what takes part */
    uint32_t *lane;       /* [slots] lanes it is a candidate of ... */
    uint32_t *opened;     /* ... and that open it */
    int64_t *pair, *next; /* [TILE][open] first children of what was opened above, and here */
    int pairs[TILE], left[TILE];       /* of each lane; left of what is met */
    int64_t before, after;             /* slots before and behind those met */
    int64_t count;                     /* slots */
    float *sums;                       /* [TILE][TILE] */
    uint32_t *at;                      /* [TILE][room] rows of the pyramid */
    float *logit, *factor;             /* [TILE][room]; factor: dropout's, or NULL */
    int64_t gathered[TILE], far[TILE]; /* entries; of them clusters, which come first */
} chooser;

enum { SUBS = HTI_TILE_KEYS };

/* call NULL: measures for the plan's maxima */
static void opening_take(opening *g, hti_arena *c, const ht_attention_desc *desc,
                         const hti_attention_call *call) {
    int64_t rows = call ? call->rows : desc->max_rows;
    int64_t length = call ? call->length : desc->max_length;
    *g = (opening){.w = {.call = call}};
    work *w = &g->w;
    hti_tables_take(&w->t, c, desc, call, VW, 0);
    w->z = w->t.shape;
    relatives_take(&w->rel, c, desc, &w->z);
    turns_take(&w->turn, c, desc, length);
    w->k = hti_take(c, w->t.rows * w->z.dp, sizeof(float));
    w->v = hti_take(c, w->t.rows * w->z.dvp, sizeof(float));
    if (desc->rotary_theta > 0) g->turned = hti_take(c, rows * w->z.dp, sizeof(float));
    g->open = most(least(desc->open, length), 1);
    g->leaf = 1;
    while (g->leaf < desc->open_leaf && g->leaf < length) g->leaf *= 2;
    g->peek = desc->open_peek < 0 ? 0 : desc->open_peek;
    g->drop = hti_dropout_threshold(desc->dropout) > 0;
    g->sign = desc->scale > 0 ? 1 : desc->scale < 0 ? -1 : 0;
    g->factor = (float)(fabs(desc->scale) * LOG2_E);
    int64_t levels = hti_levels(length, w->z.block);
    g->slots = 4 * g->open + 4 * w->z.block + TILE;
    g->room = least(2 * g->open * (most(g->leaf, 2) + levels), length);
    g->room = (g->room + TILE - 1) / TILE * TILE + TILE; /* whole vectors are written */
}

static void chooser_take(chooser *o, hti_arena *c, const opening *g) {
    o->rows = hti_take(c, TILE * g->w.z.dp, sizeof(float));
    o->score = hti_take(c, g->slots * TILE, sizeof(float));
    o->mean = hti_take(c, g->slots * TILE, sizeof(float));
    o->sums = hti_take(c, TILE * TILE, sizeof(float));
    o->lane = hti_take(c, g->slots, sizeof(uint32_t));
    o->opened = hti_take(c, g->slots, sizeof(uint32_t));
    o->pair = hti_take(c, TILE * g->open, sizeof(int64_t));
    o->next = hti_take(c, TILE * g->open, sizeof(int64_t));
    o->at = hti_take(c, TILE * g->room, sizeof(uint32_t));
    o->logit = hti_take(c, TILE * g->room, sizeof(float));
    o->factor = hti_take(c, g->drop ? TILE * g->room : 0, sizeof(float));
    if (!g->drop) o->factor = NULL;
}

/* ---- the pyramid of one key head ---- */

/* Clusters r of one level, keys and values. */
static void open_up_level(const opening *g, const hti_seq *s, int64_t kv, int l, hti_range r) {
    const work *w = &g->w;
    const hti_shape *z = &w->z;
    const hti_attention_call *c = w->call;
    up_level(w->k, s, w->t.key_n, view_of(c, &c->k, s->index, kv), l, r, z->d, z->dp, 0);
    up_level(w->v, s, w->t.key_n, view_of(c, &c->v, s->index, kv), l, r, z->dv, z->dvp, 0);
}

/* Levels inside steps, then the few above sequence by sequence. Ends in a barrier. */
static void open_up(const opening *g, int64_t kv, int thread, int threads) {
    const work *w = &g->w;
    hti_walk at;
    for (int go = hti_walk_begin(&at, &w->t, 1, thread, threads); go; go = hti_walk_next(&at)) {
        const hti_seq *s = &at.seq;
        hti_range own = hti_step_own(s, at.row, 0);
        for (int l = 0; l < s->levels && (int64_t)1 << l <= s->step; l++)
            open_up_level(g, s, kv, l, hti_step_own(s, at.row, l));
        for (int64_t i = own.lo; g->turned && i < own.hi; i++) {
            float *to = g->turned + (s->start + i) * w->z.dp;
            copy_row(to, w->k + (s->row_at[0] + i) * w->z.dp, w->z.dp, w->z.dp);
            turn_row(to, to, &w->turn, i, 1);
        }
    }
#pragma omp barrier
    hti_seq s;
    for (int64_t b = thread; b < w->call->sequences; b += threads) {
        if (hti_call_length(w->call, b) == 0) continue;
        hti_seq_make(&s, &w->t, b);
        for (int l = 0; l < s.levels; l++)
            if ((int64_t)1 << l > s.step)
                open_up_level(g, &s, kv, l, (hti_range){0, s.clusters[l]});
    }
#pragma omp barrier
}

/* Level 0 as near rows see it. */
static keys near_keys(const opening *g, const hti_seq *s) {
    keys at = pyramid_keys(&g->w, s, 0, 0);
    if (g->turned) at.k = g->turned + s->start * g->w.z.dp;
    return at;
}

/* ---- products with rows of the pyramid ---- */

/* Four rows with one, `width` columns in whole vectors. */
INLINE void dots4(float out[4], const float *q, const float *a, const float *b, const float *c,
                  const float *d, int64_t width) {
    vf s[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t x = 0; x < width; x += VW) {
        vf y = vf_load(q + x);
        s[0] = vf_fma(y, vf_load(a + x), s[0]);
        s[1] = vf_fma(y, vf_load(b + x), s[1]);
        s[2] = vf_fma(y, vf_load(c + x), s[2]);
        s[3] = vf_fma(y, vf_load(d + x), s[3]);
    }
    vf_sums4(out, s[0], s[1], s[2], s[3]);
}

/* n rows of base, `stride` apart, one after the other. out has room for whole fours. */
static void dots_run(float *out, const float *q, const float *base, int64_t stride, int64_t width,
                     int64_t n) {
    for (int64_t j = 0; j < n; j += 4, base += 4 * stride) {
        int64_t last = n - j - 1;
        dots4(out + j, q, base, base + least(1, last) * stride, base + least(2, last) * stride,
              base + least(3, last) * stride, width);
    }
}

/* The rows `at` of base. */
INLINE void dots_at_width(float *out, const float *q, const float *base, int64_t stride,
                          int64_t width, const uint32_t *at, int64_t n) {
    for (int64_t j = 0; j < n; j += 4) {
        int64_t last = n - j - 1;
        const uint32_t *x = at + j;
        dots4(out + j, q, base + (int64_t)x[0] * stride, base + (int64_t)x[least(1, last)] * stride,
              base + (int64_t)x[least(2, last)] * stride,
              base + (int64_t)x[least(3, last)] * stride, width);
    }
}

static void dots_at(float *out, const float *q, const float *base, int64_t stride, int64_t width,
                    const uint32_t *at, int64_t n) {
    switch (width) {
    case 32: dots_at_width(out, q, base, stride, 32, at, n); break;
    case 64: dots_at_width(out, q, base, stride, 64, at, n); break;
    case 128: dots_at_width(out, q, base, stride, 128, at, n); break;
    default: dots_at_width(out, q, base, stride, width, at, n); break;
    }
}

/* ---- scores ---- */

/* Sub-clusters of a level: of cluster c those from c << shift on, `n` valid rows each. */
typedef struct sublevel {
    const float *k, *n;
    int64_t clusters; /* there are */
    int shift;
} sublevel;

static sublevel sublevel_of(const opening *g, const hti_seq *s, int l) {
    int deep = (int)least(g->peek, l), b = l - deep;
    return (sublevel){g->w.k + s->row_at[b] * g->w.z.dp, g->w.t.key_n + s->count_at[b],
                      s->clusters[b], deep};
}

/* Sums over sub-clusters: weight, n s and, once the mean is known, n (s - mean)^2. */
typedef struct moments {
    float all, sum[TILE], mean[TILE], square[TILE];
} moments;

static void add_moments(moments *m, const float *s, const float *n, int64_t count, int squares) {
    for (int64_t j = 0; j < count; j++, s += TILE) {
        if (n[j] == 0) continue;
        if (!squares) m->all += n[j];
        for (int i = 0; i < TILE; i++) {
            float off = s[i] - m->mean[i];
            if (squares) {
                m->square[i] += n[j] * off * off;
            } else {
                m->sum[i] += n[j] * s[i];
            }
        }
    }
}

static void end_moments(float *score, float *mean, const moments *m) {
    for (int i = 0; i < TILE; i++) {
        float x = m->mean[i] + sqrtf(m->square[i] / m->all);
        score[i] = isnan(x) ? -INFINITY : x;
        mean[i] = m->mean[i];
    }
}

static void mean_moments(moments *m) {
    for (int i = 0; i < TILE; i++) m->mean[i] = m->sum[i] / m->all;
}

/* Score and mean in the lanes `bits`, NaN as the lowest score. */
INLINE void put_scores(float *score, float *mean, uint32_t bits, vf y, vf m) {
    vf_store(score, vf_pick(bits, vf_max(y, vf_set1(-INFINITY)), vf_load(score)));
    vf_store(mean, vf_pick(bits, m, vf_load(mean)));
}

/* Of two sub-clusters that weigh the same, mean and deviation make the larger one. */
INLINE void put_halves(float *score, float *mean, uint32_t lanes, const float *s) {
    UNROLL for (int x = 0; x < TILE; x += VW) {
        vf a = vf_load(s + x), b = vf_load(s + TILE + x), both = vf_add(a, b);
        vf y = vf_fma(vf_zero(), both, vf_max(a, b)); /* NaN and infinities make NaN */
        put_scores(score + x, mean + x, lanes >> x, y, vf_mul(vf_set1(0.5f), both));
    }
}

/* Of four that weigh the same. */
INLINE void put_quarters(float *score, float *mean, uint32_t lanes, const float *s) {
    UNROLL for (int x = 0; x < TILE; x += VW) {
        vf a[4], quarter = vf_set1(0.25f), square = vf_zero();
        UNROLL for (int j = 0; j < 4; j++) a[j] = vf_load(s + j * TILE + x);
        vf m = vf_mul(quarter, vf_add(vf_add(a[0], a[1]), vf_add(a[2], a[3])));
        UNROLL for (int j = 0; j < 4; j++) {
            vf off = vf_sub(a[j], m);
            square = vf_fma(off, off, square);
        }
        put_scores(score + x, mean + x, lanes >> x, vf_add(m, vf_sqrt(vf_mul(quarter, square))), m);
    }
}

static int all_equal(const float *n, int64_t count) {
    for (int64_t j = 1; j < count; j++)
        if (n[j] != n[0]) return 0;
    return 1;
}

/* Score and mean of a cluster in all lanes from its sub-clusters' logits s. */
static void score_met(float *score, float *mean, const float *s, const float *n, int64_t count) {
    enum { EVERY = (1u << TILE) - 1 };
    if (count == 2 && n[0] == n[1]) {
        put_halves(score, mean, EVERY, s);
    } else if (count == 4 && all_equal(n, 4)) {
        put_quarters(score, mean, EVERY, s);
    } else {
        moments m = {0};
        add_moments(&m, s, n, count, 0);
        mean_moments(&m);
        add_moments(&m, s, n, count, 1);
        end_moments(score, mean, &m);
    }
}

/* Logits of sub-clusters b0 ... of all lanes. */
static void sub_scores(float *s, tile *t, const hti_shape *z, const sublevel *of, int64_t b0,
                       int64_t n) {
    static const float none[SUBS];
    vf top[TILE_VECTORS];
    scoring o = {.log = none};
    for (int x = 0; x < TILE_VECTORS; x++) top[x] = vf_zero();
    scores(s, top, t->q, of->k + b0 * z->dp, z->dp, z->d, &o, n);
}

/* A cluster with more sub-clusters than a tile takes at once. */
static void score_wide(float *score, float *mean, tile *t, const hti_shape *z, const sublevel *of,
                       int64_t c) {
    int64_t lo = c << of->shift, hi = least((c + 1) << of->shift, of->clusters);
    moments m = {0};
    for (int squares = 0; squares < 2; squares++) {
        for (int64_t b = lo; b < hi; b += SUBS) {
            int64_t n = least(SUBS, hi - b);
            sub_scores(t->s, t, z, of, b, n);
            add_moments(&m, t->s, of->n + b, n, squares);
        }
        if (!squares) mean_moments(&m);
    }
    end_moments(score, mean, &m);
}

/* Clusters of one segment into the slots from `slot` on. */
static void score_segment(chooser *o, tile *t, const opening *g, const hti_seq *s, int l,
                          const sublevel *of, const hti_seg *seg, int64_t slot) {
    const hti_shape *z = &g->w.z;
    const float *n = g->w.t.key_n + s->count_at[l];
    int64_t span = (int64_t)1 << of->shift, batch = most(SUBS >> of->shift, 1);
    for (int64_t x = 0; x < seg->count; x += batch) {
        int64_t some = least(batch, seg->count - x), c0 = seg->from + x, b0 = c0 << of->shift;
        if (span <= SUBS)
            sub_scores(t->s, t, z, of, b0, least((c0 + some) << of->shift, of->clusters) - b0);
        for (int64_t c = c0; c < c0 + some; c++, slot++) {
            float *score = o->score + slot * TILE, *mean = o->mean + slot * TILE;
            int64_t b = c << of->shift;
            o->lane[slot] = n[c] > 0 ? seg->lanes & o->live : 0;
            if (o->lane[slot] == 0) {
                for (int i = 0; i < TILE; i++) score[i] = mean[i] = -INFINITY;
            } else if (span > SUBS) {
                score_wide(score, mean, t, z, of, c);
            } else {
                score_met(score, mean, t->s + (b - b0) * TILE, of->n + b,
                          least(span, of->clusters - b));
            }
            uint32_t lane = o->lane[slot];
            for (int i = 0; lane != (1u << TILE) - 1 && i < TILE; i++)
                if (!(lane >> i & 1)) score[i] = -INFINITY;
        }
    }
}

/* Score of one cluster for one row; `mean` is set. */
static float score_row(float *mean, const float *q, const hti_shape *z, const sublevel *of,
                       int64_t c) {
    int64_t lo = c << of->shift, hi = least((c + 1) << of->shift, of->clusters);
    float s[SUBS], all = 0, sum = 0, square = 0;
    for (int squares = 0; squares < 2; squares++) {
        for (int64_t b = lo; b < hi; b += SUBS) {
            int64_t n = least(SUBS, hi - b);
            if (!squares || hi - lo > SUBS) dots_run(s, q, of->k + b * z->dp, z->dp, z->dw, n);
            for (int64_t j = 0; j < n; j++) {
                float w = of->n[b + j], off = s[j] - *mean;
                if (w == 0) continue;
                if (squares) {
                    square += w * off * off;
                } else {
                    all += w, sum += w * s[j];
                }
            }
        }
        if (!squares) *mean = sum / all;
    }
    return *mean + sqrtf(square / all);
}

INLINE void put_score(chooser *o, int64_t slot, int i, float score, float mean) {
    o->score[slot * TILE + i] = isnan(score) ? -INFINITY : score;
    o->mean[slot * TILE + i] = mean;
    o->lane[slot] |= 1u << i;
}

/* Children c, c + 1 of what lane i opened above, whatever they weigh. */
static void score_pair(chooser *o, const opening *g, const hti_seq *s, int l, const sublevel *of,
                       int i, int64_t c, int64_t slot) {
    const float *q = o->rows + i * g->w.z.dp, *n = g->w.t.key_n + s->count_at[l];
    for (int e = 0; e < 2 && c + e < s->clusters[l]; e++) {
        float mean = 0, score;
        if (n[c + e] == 0) continue;
        score = score_row(&mean, q, &g->w.z, of, c + e);
        put_score(o, slot + e, i, score, mean);
    }
}

/* Pairs of some lanes: row `at` of the sub-clusters is the first of each. */
typedef struct pair_list {
    int64_t at[TILE];
    int lane[TILE], count;
} pair_list;

/* Logits of the pairs' `rows` sub-clusters, of lane i into row i of sums [TILE][TILE]. */
INLINE void pair_sums(float *sums, const pair_list *p, const float *q, const float *k,
                      int64_t stride, int64_t width, const int rows) {
    for (int j = 0; j < p->count; j++) {
        const float *row = k + p->at[j] * stride, *own = q + p->lane[j] * stride;
        float *to = sums + p->lane[j] * TILE;
        UNROLL for (int r = 0; r < rows; r += 4, row += 4 * stride) {
            dots4(to + r, own, row, row + stride, row + 2 * stride, row + 3 * stride, width);
        }
    }
}

INLINE void pair_sums_at(float *sums, const pair_list *p, const float *q, const float *k,
                         int64_t stride, int64_t width, const int rows) {
    switch (stride == width ? width : 0) {
    case 32: pair_sums(sums, p, q, k, 32, 32, rows); break;
    case 64: pair_sums(sums, p, q, k, 64, 64, rows); break;
    case 128: pair_sums(sums, p, q, k, 128, 128, rows); break;
    default: pair_sums(sums, p, q, k, stride, width, rows); break;
    }
}

/* The first 8 columns of sums [TILE][TILE] as rows. */
INLINE void turn_sums(float *sub, const float *sums) {
    UNROLL for (int x = 0; x < TILE; x += VW) {
        vf r[VW];
        UNROLL for (int i = 0; i < VW; i++) r[i] = vf_load(sums + (x + i) * TILE);
        vf_transpose(r);
        UNROLL for (int j = 0; j < 8; j++) vf_store(sub + j * TILE + x, r[j]);
    }
}

/* Scores of the pairs in the lanes `even`, whose sub-clusters all weigh the same, into two slots.
 */
static void score_even(chooser *o, const hti_shape *z, const sublevel *of, const pair_list *p,
                       uint32_t even, int64_t slot) {
    float sub[8 * TILE], *score = o->score + slot * TILE, *mean = o->mean + slot * TILE;
    if (of->shift == 1) {
        pair_sums_at(o->sums, p, o->rows, of->k, z->dp, z->dw, 4);
    } else {
        pair_sums_at(o->sums, p, o->rows, of->k, z->dp, z->dw, 8);
    }
    turn_sums(sub, o->sums);
    for (int e = 0; e < 2; e++, score += TILE, mean += TILE) {
        o->lane[slot + e] |= even;
        if (of->shift == 1) {
            put_halves(score, mean, even, sub + e * 2 * TILE);
        } else {
            put_quarters(score, mean, even, sub + e * 4 * TILE);
        }
    }
}

/* Number x of the pairs of all lanes that lie left of what is met, or right of it. Where no row of
 * a pair is missing, which is nearly always, its sub-clusters weigh the same. */
static void score_pairs(chooser *o, const opening *g, const hti_seq *s, int l, const sublevel *of,
                        int right, int x) {
    const float *n = g->w.t.key_n + s->count_at[l], whole = (float)((int64_t)1 << l);
    int64_t slot = (right ? o->after : 0) + 2 * x;
    int quick = of->shift == 1 || of->shift == 2;
    uint32_t even = 0;
    pair_list p = {.count = 0};
    for (int i = 0; i < TILE; i++) {
        int at = right ? o->left[i] + x : x;
        if (at >= (right ? o->pairs[i] : o->left[i])) continue;
        int64_t c = o->pair[i * g->open + at];
        if (quick && c + 1 < s->clusters[l] && n[c] == whole && n[c + 1] == whole) {
            even |= 1u << i;
            p.lane[p.count] = i;
            p.at[p.count++] = c << of->shift;
        } else {
            score_pair(o, g, s, l, of, i, c, slot);
        }
    }
    if (even) score_even(o, &g->w.z, of, &p, even, slot);
}

static void clear_slots(chooser *o, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) o->lane[i] = 0;
    for (int64_t i = from * TILE; i < to * TILE; i += VW)
        vf_store(o->score + i, vf_set1(-INFINITY));
}

/* All candidates of a level. */
static void score_level(chooser *o, tile *t, const opening *g, const hti_seq *s, int l) {
    sublevel of = sublevel_of(g, s, l);
    int left = 0, right = 0;
    for (int i = 0; i < TILE; i++) {
        left = o->left[i] > left ? o->left[i] : left;
        right = o->pairs[i] - o->left[i] > right ? o->pairs[i] - o->left[i] : right;
    }
    o->before = 2 * left;
    o->after = o->before + o->segs.keys;
    o->count = o->after + 2 * right;
    clear_slots(o, 0, o->before);
    clear_slots(o, o->after, o->count);
    for (int x = 0; x < left; x++) score_pairs(o, g, s, l, &of, 0, x);
    for (int x = 0; x < right; x++) score_pairs(o, g, s, l, &of, 1, x);
    int64_t slot = o->before;
    for (int i = 0; i < o->segs.count; slot += o->segs.seg[i++].count)
        score_segment(o, t, g, s, l, &of, &o->segs.seg[i], slot);
}

/* ---- the highest ---- */

/* The `open` <= N highest of n slots in every lane; the lowest of them goes to `least_one`. */
INLINE void highest(const int N, float *least_one, const float *s, int64_t n, int64_t open) {
    vf top[16];
    UNROLL for (int k = 0; k < N; k++) top[k] = vf_set1(-INFINITY);
    for (int64_t j = 0; j < n; j++) {
        vf x = vf_load(s + j * TILE);
        UNROLL for (int k = 0; k < N; k++) {
            vf old = top[k];
            top[k] = vf_max(old, x);
            x = vf_min(old, x);
        }
    }
    UNROLL for (int k = 0; k < N; k++) if (k == open - 1) vf_store(least_one, top[k]);
}

/* The float that is number u in the order of all floats. */
static float ordered(uint32_t u) {
    uint32_t bits = u >> 31 ? u ^ 0x80000000u : ~u;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The same for many: the largest number that `open` slots reach, bit by bit. */
static void highest_of_many(float *least_one, const float *s, int64_t n, int64_t open) {
    enum { MINUS_INFINITY = 0x007fffff };
    const uint32_t plus = 0xff800000u;
    uint32_t found[TILE] = {0};
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        float try[TILE], lower[TILE];
        for (int i = 0; i < TILE; i++) {
            uint32_t u = found[i] | bit;
            try[i] = u > plus ? INFINITY : u < MINUS_INFINITY ? -INFINITY : ordered(u);
        }
        for (int x = 0; x < TILE; x += VW) {
            vf sum = vf_zero(), t = vf_load(try + x), one = vf_set1(1.0f);
            for (int64_t j = 0; j < n; j++)
                sum = vf_add(sum, vf_pick(vf_less(vf_load(s + j * TILE + x), t), one, vf_zero()));
            vf_store(lower + x, sum);
        }
        for (int i = 0; i < TILE; i++)
            if ((found[i] | bit) <= plus && n - (int64_t)lower[i] >= open) found[i] |= bit;
    }
    for (int i = 0; i < TILE; i++)
        least_one[i] = found[i] <= MINUS_INFINITY ? -INFINITY : ordered(found[i]);
}

/* Of equal ones the smaller cluster: lanes with more than `open` give up the last of those that
 * are no higher than the lowest. */
static void drop_ties(chooser *o, const float *least_one, const float *count, int64_t open) {
    for (int i = 0; i < TILE; i++) {
        int64_t over = (int64_t)count[i] - open;
        for (int64_t j = o->count - 1; over > 0; j--) {
            if (!(o->opened[j] >> i & 1) || o->score[j * TILE + i] != least_one[i]) continue;
            o->opened[j] &= ~(1u << i);
            over--;
        }
    }
}

/* Sets `opened` of all slots. */
static void pick_highest(chooser *o, const opening *g) {
    float low[TILE], count[TILE];
    int64_t n = o->count;
    for (int x = 0; x < TILE; x += VW) {
        vf_store(low + x, vf_set1(-INFINITY));
        if (n <= g->open || g->open > 16) continue;
        if (g->open <= 4) highest(4, low + x, o->score + x, n, g->open);
        if (g->open > 4 && g->open <= 8) highest(8, low + x, o->score + x, n, g->open);
        if (g->open > 8) highest(16, low + x, o->score + x, n, g->open);
    }
    if (n > g->open && g->open > 16) highest_of_many(low, o->score, n, g->open);
    vf sum[TILE_VECTORS], one = vf_set1(1.0f);
    UNROLL for (int x = 0; x < TILE_VECTORS; x++) sum[x] = vf_zero();
    for (int64_t j = 0; j < n; j++) {
        uint32_t low_ones = 0;
        UNROLL for (int x = 0; x < TILE_VECTORS; x++) {
            low_ones |= vf_less(vf_load(o->score + j * TILE + x * VW), vf_load(low + x * VW))
                        << x * VW;
        }
        o->opened[j] = o->lane[j] & ~low_ones;
        UNROLL for (int x = 0; x < TILE_VECTORS; x++) {
            sum[x] = vf_add(sum[x], vf_pick(o->opened[j] >> x * VW, one, vf_zero()));
        }
    }
    UNROLL for (int x = 0; x < TILE_VECTORS; x++) vf_store(count + x * VW, sum[x]);
    for (int i = 0; i < TILE; i++)
        if (count[i] > (float)g->open) {
            drop_ties(o, low, count, g->open);
            break;
        }
}

/* ---- what takes part ---- */

/* Bias of a row's pair with a cluster, `distance` clusters before it; rel: the table of shift 0. */
INLINE float rel_at(const opening *g, const float *rel, int64_t distance) {
    int64_t end = 2 * g->w.z.block - 1;
    return rel ? rel[distance > end ? end : distance < -end ? -end : distance] : 0;
}

static float factor_of(const tile *t, int level, int64_t row, int64_t c) {
    const dropping *d = &t->drop;
    hti_philox w = hti_dropout_words(d->seed, d->offset, d->head, level, row, (uint32_t)(c / 4));
    return w.w[c % 4] < d->threshold ? 0 : d->kept;
}

INLINE void gather_one(chooser *o, const opening *g, const tile *t, const hti_seq *s, int i, int l,
                       int64_t c, int64_t row, float logit) {
    int64_t to = i * g->room + o->gathered[i]++;
    o->at[to] = (uint32_t)(s->row_at[l] + c);
    o->logit[to] = logit;
    if (o->factor) o->factor[to] = factor_of(t, l, row, c);
}

/* Children that are not opened, of the slots left of what is met, or of those right of it. */
static void gather_slots(chooser *o, const opening *g, const tile *t, const hti_seq *s, int l,
                         int64_t c0, const float *rel, int right) {
    const float *log = g->w.t.key_log + s->count_at[l];
    int64_t first = right ? o->after : 0, end = right ? o->count : o->before;
    for (int64_t slot = first; slot < end; slot++) {
        const float *mean = o->mean + slot * TILE;
        int64_t x = (slot - first) / 2, e = (slot - first) % 2;
        for (uint32_t lanes = o->lane[slot] & ~o->opened[slot]; lanes; lanes &= lanes - 1) {
            int i = __builtin_ctz(lanes);
            int64_t c = o->pair[i * g->open + (right ? o->left[i] + x : x)] + e;
            float logit = g->factor * mean[i] + log[c];
            logit += rel_at(g, rel, ((c0 + i) >> l) - c);
            gather_one(o, g, t, s, i, l, c, c0 + i, logit);
        }
    }
}

static void gather_children(chooser *o, const opening *g, const tile *t, const hti_seq *s, int l,
                            int64_t c0, const float *rel) {
    gather_slots(o, g, t, s, l, c0, rel, 0);
    gather_slots(o, g, t, s, l, c0, rel, 1);
    for (int i = 0; i < TILE; i++)
        if (o->pairs[i] > 0) o->far[i] = o->gathered[i]; /* no leaf is above a child */
}

/* The rows of a leaf; their logits come later. */
INLINE void gather_leaf(chooser *o, const opening *g, const tile *t, const hti_seq *s, int i, int l,
                        int64_t c, int64_t row) {
    const float *n = g->w.t.key_n + s->count_at[0];
    int64_t lo = c << l, count = least((int64_t)1 << l, s->length - lo);
    uint32_t *to = o->at + i * g->room + o->gathered[i], first = (uint32_t)(s->row_at[0] + lo);
    if (!o->factor && g->w.t.key_n[s->count_at[l] + c] == (float)count) {
        for (int64_t j = 0; j < count; j++) to[j] = first + (uint32_t)j;
        o->gathered[i] += count;
        return;
    }
    for (int64_t j = lo; j < lo + count; j++)
        if (n[j] > 0) gather_one(o, g, t, s, i, 0, j, row, 0);
}

/* Lane i opens cluster c: its rows are gathered, or its children wait. */
INLINE void open_one(chooser *o, const opening *g, const tile *t, const hti_seq *s, int i, int l,
                     int64_t c, int64_t row, int *next, int *next_left) {
    if (l > 1 && (int64_t)1 << l > g->leaf) {
        o->next[i * g->open + next[i]++] = 2 * c;
        next_left[i] += 2 * c < row >> (l - 1);
        return;
    }
    gather_leaf(o, g, t, s, i, l, c, row);
}

/* Goes over the slots in the order of clusters. */
static void open_slots(chooser *o, const opening *g, const tile *t, const hti_seq *s, int l,
                       int64_t c0) {
    int next[TILE] = {0}, next_left[TILE] = {0};
    int seg = 0;
    int64_t in_seg = 0;
    for (int64_t j = 0; j < o->count; j++) {
        int met = j >= o->before && j < o->after;
        int64_t c = met ? o->segs.seg[seg].from + in_seg : 0;
        if (met && ++in_seg == o->segs.seg[seg].count) seg++, in_seg = 0;
        for (uint32_t lanes = o->opened[j]; lanes; lanes &= lanes - 1) {
            int i = __builtin_ctz(lanes);
            if (!met) {
                int64_t x = j < o->before ? j / 2 : o->left[i] + (j - o->after) / 2;
                c = o->pair[i * g->open + x] + (j < o->before ? j : j - o->after) % 2;
            }
            open_one(o, g, t, s, i, l, c, c0 + i, next, next_left);
        }
    }
    int64_t *swap = o->pair;
    o->pair = o->next;
    o->next = swap;
    memcpy(o->pairs, next, sizeof next);
    memcpy(o->left, next_left, sizeof next_left);
}

/* Logits of what is met, -inf where it is opened or not seen. */
static void met_logits(chooser *o, const opening *g, const hti_seq *s, int l, int64_t c0,
                       const relative *b) {
    const float *log = g->w.t.key_log + s->count_at[l];
    int64_t slot = o->before;
    vf factor = vf_set1(g->factor), none = vf_set1(-INFINITY);
    for (int i = 0; i < o->segs.count; i++) {
        const hti_seg *seg = &o->segs.seg[i];
        for (int64_t c = seg->from; c < seg->from + seg->count; c++, slot++) {
            float *to = o->mean + slot * TILE, add = log[c];
            const float *rel = NULL;
            if (b->rel && b->shift < 4) {
                rel = b->rel + (c0 - c * ((int64_t)1 << b->shift));
            } else if (b->rel) {
                add += b->rel[(c0 >> b->shift) - c];
            }
            uint32_t lanes = o->lane[slot] & ~o->opened[slot];
            for (int x = 0; x < TILE; x += VW) {
                vf y = vf_fma(factor, vf_load(to + x), vf_set1(add));
                if (rel) y = vf_add(y, vf_load(rel + x));
                vf_store(to + x, vf_pick(lanes >> x, y, none));
            }
        }
    }
}

/* ---- a tile ---- */

/* Queries of rows c0 ... ; the tile's q are theirs, without the scale. */
static void choose_begin(chooser *o, tile *t, const opening *g, const hti_seq *s, int64_t head,
                         int64_t c0) {
    const hti_shape *z = &g->w.z;
    view q = view_of(g->w.call, &g->w.call->q, s->index, head);
    const float *n = g->w.t.query_n + s->count_at[0] + c0, *row[TILE];
    o->live = 0;
    for (int i = 0; i < TILE; i++) {
        float *to = o->rows + i * z->dp;
        row[i] = to;
        o->pairs[i] = o->left[i] = 0;
        o->gathered[i] = o->far[i] = 0;
        if (i >= t->rows || n[i] == 0) {
            zero_row(to, z->dp);
            continue;
        }
        o->live |= 1u << i;
        copy_row(to, q.data + (c0 + i) * q.stride, z->d, z->dp);
        for (int64_t c = 0; g->sign != 1 && c < z->d; c++) to[c] *= g->sign;
    }
    transpose_rows(t->q, row, z->d, 1.0f);
}

/* One level: what is met and takes part is in `mean` from slot `before` on (segs), what is gathered
 * has grown. Levels from the top down. Returns what scores of the level get. */
static relative choose_level(chooser *o, tile *t, const opening *g, const hti_seq *s, int64_t head,
                             int l, int64_t c0) {
    relative b = enter_level(t, &g->w, s, head, l, l);
    const float *rel = g->w.rel.size ? relative_centre(&g->w.rel, head, 0) : NULL;
    hti_segs_make(&o->segs, &g->w.z, s->clusters[l], l, l, c0, t->rows);
    score_level(o, t, g, s, l);
    pick_highest(o, g);
    gather_children(o, g, t, s, l, c0, rel);
    open_slots(o, g, t, s, l, c0);
    met_logits(o, g, s, l, c0, &b);
    return b;
}

/* Logits of the rows of leaves. */
static void leaf_logits(chooser *o, const opening *g, const hti_seq *s, int64_t head, int64_t c0) {
    const hti_shape *z = &g->w.z;
    const float *rel = g->w.rel.size ? relative_centre(&g->w.rel, head, 0) : NULL;
    for (int i = 0; i < TILE; i++) {
        int64_t from = i * g->room + o->far[i], n = o->gathered[i] - o->far[i];
        float *to = o->logit + from;
        if (n == 0) continue;
        dots_at(to, o->rows + i * z->dp, g->w.k, z->dp, z->dw, o->at + from, n);
        for (int64_t j = 0; j < n; j++) to[j] *= g->factor;
        for (int64_t j = 0; rel && j < n; j++)
            to[j] += rel_at(g, rel, c0 + i - ((int64_t)o->at[from + j] - s->row_at[0]));
    }
}
