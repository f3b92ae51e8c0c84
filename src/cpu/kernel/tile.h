/*
 * One tile: 16 query rows against a list of keys. The 16 rows lie in the lanes, so that the maximum
 * and the sum of a row need no horizontal step; keys, values and outputs keep their natural layout.
 *
 *     s[j][i]  = <q_i, k_j> + log2 n_j + bias      scores: k_j[c] broadcast against row c of q
 * transposed p[j][i]  = 2^(s - max_i)                     in place o[i][:]  = keep_i o[i][:] +
 * sum_j p v_j      values: p broadcast against v_j
 *
 * All scores are in units of log 2: q is scaled by scale / ln 2 when it is transposed.
 */
/* Rows that the thread will want next, fetched a few at a time while it computes. */
enum {
    FEEDS = 3,
    CACHE_LINE = 64,
    FEED_CALLS = 8
}; /* FEED_CALLS: of feed_some, about, per tile of rows */
typedef struct feed {
    struct feed_rows {
        const char *at;
        int64_t stride, bytes, rows; /* rows: left */
    } of[FEEDS];
    int64_t left, share; /* rows left of the longest; rows of each per call */
} feed;

typedef struct tile {
    float q[HTI_MAX_DIM * TILE];   /* transposed: [d][TILE] */
    float s[HTI_TILE_KEYS * TILE]; /* [keys][TILE] */
    float acc[TILE * HTI_MAX_DIM]; /* [TILE][dvp] between passes */
    float init[HTI_TILE_KEYS];     /* mode fine with bias: what a key's scores start from */
    float max[TILE], sum[TILE], keep[TILE], finish[TILE];
    float zeros[HTI_MAX_DIM];
    float factor[HTI_TILE_KEYS * TILE]; /* dropout's, [keys][TILE] */
    dropping drop;
    feed next;
    int rows;      /* of the tile in use, the others are computed and thrown away */
    uint32_t live; /* rows that weigh anything at all; forward: all bits */
} tile;

/* Keys and values of a level: cluster c at row c & mask; log[c]: log2 of its valid rows. */
typedef struct keys {
    const float *k, *v, *log;
    int64_t mask;
} keys;

/* ---- feeding the cache ---- */

/* A few rows more of each. */
static void feed_some(feed *f) {
    if (f->left <= 0) return;
    for (int i = 0; i < FEEDS; i++) {
        struct feed_rows *r = &f->of[i];
        for (int64_t n = f->share; n > 0 && r->rows > 0; n--, r->rows--, r->at += r->stride)
            for (int64_t x = 0; x < r->bytes; x += CACHE_LINE) __builtin_prefetch(r->at + x, 0, 2);
    }
    f->left -= f->share;
}

/* ---- scores ---- */

/* Products are summed in chains of this length, then the chains: less rounding than one chain, at
 * no cost. */
enum { SCORE_CHAIN = 32 };

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* What keys add to their scores, and who sees them. */
typedef struct scoring {
    const float *log; /* log2 of a key's valid rows */
    const float *rel; /* bias of the first key and lane 0, `step` less per key; or NULL */
    int64_t step;
    int cut; /* not all lanes see all keys: only `lanes`, less those ... */
    uint32_t lanes;
    int64_t late; /* ... before lane late + number of the key */
} scoring;

/* Lanes that see key r. */
INLINE uint32_t seeing(uint32_t lanes, int64_t late) {
    return late > 0 ? lanes & (uint32_t)((uint64_t)0xffffffff << least(late, 32)) : lanes;
}

/* R keys of DP floats each, the first of them key j. `top`: running maximum of each lane. */
INLINE void score_group(const int R, const int DP, float *s, vf *top, const float *q,
                        const float *k, int64_t d, const scoring *o, int64_t j) {
    vf a[SCORE_G0][TILE_VECTORS];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int x = 0; x < TILE_VECTORS; x++) a[r][x] = vf_set1(o->log[j + r]);
    }
    if (o->rel) {
        const float *rel = o->rel - j * o->step;
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int x = 0; x < TILE_VECTORS; x++) {
                a[r][x] = vf_add(a[r][x], vf_load(rel - r * o->step + x * VW));
            }
        }
    }
    for (int64_t from = 0; from < d; from += SCORE_CHAIN) {
        if (DP > SCORE_CHAIN && from > 0) {
            UNROLL for (int r = 0; r < R; r++) {
                UNROLL for (int x = 0; x < TILE_VECTORS; x++) {
                    vf_store(s + r * TILE + x * VW, a[r][x]);
                    a[r][x] = vf_zero();
                }
            }
        }
        int64_t to = DP > SCORE_CHAIN ? least(d, from + SCORE_CHAIN) : d;
        for (int64_t c = from; c < to; c++) {
            vf y[TILE_VECTORS];
            UNROLL for (int x = 0; x < TILE_VECTORS; x++) y[x] = vf_load(q + c * TILE + x * VW);
            UNROLL for (int r = 0; r < R; r++) {
                vf b = vf_set1(k[r * DP + c]);
                UNROLL for (int x = 0; x < TILE_VECTORS; x++) a[r][x] = vf_fma(b, y[x], a[r][x]);
            }
        }
        if (DP > SCORE_CHAIN && from > 0) {
            UNROLL for (int r = 0; r < R; r++) {
                UNROLL for (int x = 0; x < TILE_VECTORS; x++) {
                    a[r][x] = vf_add(a[r][x], vf_load(s + r * TILE + x * VW));
                }
            }
        }
    }
    if (o->cut) {
        UNROLL for (int r = 0; r < R; r++) {
            uint32_t see = seeing(o->lanes, o->late + j + r);
            UNROLL for (int x = 0; x < TILE_VECTORS; x++) {
                a[r][x] = vf_pick(see >> x * VW, a[r][x], vf_set1(-INFINITY));
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int x = 0; x < TILE_VECTORS; x++) {
            top[x] = vf_max(top[x], a[r][x]);
            vf_store(s + r * TILE + x * VW, a[r][x]);
        }
    }
}

/* n keys from k on. The distance of keys is a constant, so that a group needs one pointer. */
INLINE void score_keys(const int DP, float *s, vf *top, const float *q, const float *k, int64_t d,
                       const scoring *o, int64_t n) {
    vf m[TILE_VECTORS];
    UNROLL for (int x = 0; x < TILE_VECTORS; x++) m[x] = top[x];
    for (int64_t j = 0; j < n;) {
        int64_t g = SCORE_GROUP(n - j);
        const float *kj = k + j * DP;
        if (g == SCORE_G0) {
            score_group(SCORE_G0, DP, s + j * TILE, m, q, kj, d, o, j);
        } else if (g == SCORE_G1) {
            score_group(SCORE_G1, DP, s + j * TILE, m, q, kj, d, o, j);
        } else if (g == SCORE_G2) {
            score_group(SCORE_G2, DP, s + j * TILE, m, q, kj, d, o, j);
        } else {
            score_group(1, DP, s + j * TILE, m, q, kj, d, o, j);
        }
        j += g;
    }
    UNROLL for (int x = 0; x < TILE_VECTORS; x++) top[x] = m[x];
}

static void scores(float *s, vf *top, const float *q, const float *k, int64_t dp, int64_t d,
                   const scoring *o, int64_t n) {
    switch (dp) { /* a power of two, HTI_TILE to HTI_MAX_DIM (fast.c) */
    case 16: score_keys(16, s, top, q, k, d, o, n); break;
    case 32: score_keys(32, s, top, q, k, d, o, n); break;
    case 64: score_keys(64, s, top, q, k, d, o, n); break;
    case 128: score_keys(128, s, top, q, k, d, o, n); break;
    default: score_keys(256, s, top, q, k, d, o, n); break;
    }
}

/* ---- softmax ---- */

/* Scores to weights under the new maximum; sum and keep follow. A row without keys has max
 * -FLT_MAX, sum 0. Dropout is in the weights, not in the sum. */
INLINE void weigh(tile *t, const vf *top, int64_t n, const int drop) {
    for (int x = 0; x < TILE_VECTORS; x++) {
        vf old = vf_load(t->max + x * VW), max = vf_max(old, top[x]), sum = vf_zero();
        vf keep = exp2_v(vf_sub(old, max));
        float *s = t->s + x * VW;
        for (int64_t j = 0; j < n; j++) {
            vf p = exp2_v(vf_sub(vf_load(s + j * TILE), max));
            sum = vf_add(sum, p);
            if (drop) p = vf_mul(p, vf_load(t->factor + j * TILE + x * VW));
            vf_store(s + j * TILE, p);
        }
        vf_store(t->max + x * VW, max);
        vf_store(t->keep + x * VW, keep);
        vf_store(t->sum + x * VW, vf_fma(vf_load(t->sum + x * VW), keep, sum));
    }
}

/* ---- values ---- */

/* Rows of accumulators: row i at base + (i >> shift) * stride; base NULL: zeros. */
typedef struct rows_in {
    const float *base;
    int64_t stride;
    int shift;
} rows_in;

/* Where the result goes: `finish` is multiplied in at the end (NULL: nothing). width: floats of a
 * row written. */
typedef struct rows_out {
    float *base;
    int64_t stride, width;
    const float *finish;
    int stream; /* past the cache: whole aligned vectors that will not be read soon */
} rows_out;

/* Rows that are summed with weights: row of cluster c at base + (c & mask) * stride. */
typedef struct rows_of {
    const float *base;
    int64_t stride, mask;
} rows_of;

/* a[r] += p[r] times a row of NV vectors. */
INLINE void value_key(const int NR, const int NV, vf a[2 * VALUE_ROWS][VALUE_VECTORS],
                      const float *p, const float *row) {
    vf y[VALUE_VECTORS];
    UNROLL for (int v = 0; v < NV; v++) y[v] = vf_load(row + v * VW);
    UNROLL for (int r = 0; r < NR; r++) {
        vf b = vf_set1(p[r]);
        UNROLL for (int v = 0; v < NV; v++) a[r][v] = vf_fma(b, y[v], a[r][v]);
    }
}

/* The same where bit r of `see` is set: what is not seen may be NaN, which a weight of 0 would let
 * through. */
INLINE void value_key_seen(const int NR, const int NV, vf a[2 * VALUE_ROWS][VALUE_VECTORS],
                           const float *p, const float *row, uint32_t see) {
    vf y[VALUE_VECTORS];
    UNROLL for (int v = 0; v < NV; v++) y[v] = vf_load(row + v * VW);
    UNROLL for (int r = 0; r < NR; r++) {
        vf b = vf_set1(p[r]);
        UNROLL for (int v = 0; v < NV; v++) a[r][v] = vf_fma_if(see >> r & 1, b, y[v], a[r][v]);
    }
}

/* Rows r0 ... r0+NR-1, NV vectors from column col on. w: [keys][TILE] weights in the order of the
 * segments. */
INLINE void value_block(const int NR, const int NV, const tile *t, const float *w,
                        const hti_segs *segs, const rows_of *x, const rows_in *in,
                        const rows_out *out, int r0, int64_t col) {
    vf a[2 * VALUE_ROWS][VALUE_VECTORS];
    UNROLL for (int r = 0; r < NR; r++) {
        const float *from =
            in->base ? in->base + ((r0 + r) >> in->shift) * in->stride + col : t->zeros;
        vf keep = vf_set1(t->keep[r0 + r]);
        UNROLL for (int v = 0; v < NV; v++) a[r][v] = vf_mul(keep, vf_load(from + v * VW));
    }
    uint32_t rows = (1u << NR) - 1, used = ((1u << t->rows) - 1) >> r0 & rows;
    w += r0;
    for (int i = 0; i < segs->count; i++) {
        const hti_seg *g = &segs->seg[i];
        uint32_t see = (g->lanes & t->live) >> r0 & rows;
        const float *row = x->base + (g->from & x->mask) * x->stride + col, *p = w;
        w += (int64_t)g->count * TILE;
        if (see == 0) continue;
        int64_t late = g->from - segs->diagonal - r0; /* key j: lanes from late + j on */
        int64_t j = 0, all = see == used ? least(1 - late, g->count) : 0;
        for (; j < all; j++, row += x->stride, p += TILE) value_key(NR, NV, a, p, row);
        for (; j < least(NR - late, g->count); j++, row += x->stride, p += TILE)
            value_key_seen(NR, NV, a, p, row, seeing(see, late + j));
    }
    UNROLL for (int r = 0; r < NR; r++) {
        float *to = out->base + (r0 + r) * out->stride + col;
        vf f = vf_set1(out->finish ? out->finish[r0 + r] : 1.0f);
        UNROLL for (int v = 0; v < NV; v++) {
            int64_t left = out->width - col - v * VW;
            vf y = out->finish ? vf_mul(a[r][v], f) : a[r][v];
            if (out->stream) {
                vf_stream(to + v * VW, y);
            } else if (left >= VW) {
                vf_store(to + v * VW, y);
            } else if (left > 0) {
                vf_store_n(to + v * VW, y, (int)left);
            }
        }
    }
}

/* All rows of the tile, `width` columns, VALUE_VECTORS vectors at a time; the rest with more rows
 * at a time. */
static void values(tile *t, const float *w, const hti_segs *segs, const rows_of *x, int64_t width,
                   const rows_in *in, const rows_out *out) {
    int64_t col = 0;
    for (; col + VALUE_VECTORS * VW <= width; col += VALUE_VECTORS * VW)
        for (int r = 0; r < t->rows; r += VALUE_ROWS)
            feed_some(&t->next),
                value_block(VALUE_ROWS, VALUE_VECTORS, t, w, segs, x, in, out, r, col);
    for (; col + 2 * VW <= width; col += 2 * VW)
        for (int r = 0; r < t->rows; r += VALUE_ROWS)
            value_block(VALUE_ROWS, 2, t, w, segs, x, in, out, r, col);
    for (; col < width; col += VW)
        for (int r = 0; r < t->rows; r += 2 * VALUE_ROWS)
            value_block(2 * VALUE_ROWS, 1, t, w, segs, x, in, out, r, col);
}

/* ---- one tile, one level ---- */

/* What a tile adds to the scores of a level: rel[c - j] for query cluster c and key cluster j, or
 * NULL. shift: a lane's cluster is its row >> shift. most: distances beyond it count as it. */
typedef struct relative {
    const float *rel;
    int shift;
    int64_t most;
} relative;

/* The distance that all lanes have to all keys of a segment, `most` or -most; 0: they differ. */
INLINE int64_t one_distance(const relative *b, const hti_seg *g, int64_t c0) {
    if (b->most == 0) return 0;
    if (c0 - (g->from + g->count - 1) >= b->most) return b->most;
    return c0 + TILE - 1 - g->from <= -b->most ? -b->most : 0;
}

/* Scores of one segment. c0: the cluster (or row) of lane 0. */
static void segment_scores(tile *t, float *s, vf *top, const hti_seg *g, const keys *at,
                           const hti_shape *z, const relative *b, int64_t c0, int64_t diagonal) {
    int64_t late = g->from - diagonal;
    scoring o = {.log = at->log + g->from, .lanes = g->lanes, .late = late};
    o.cut = g->lanes != (1u << t->rows) - 1 || late + g->count > 1;
    int64_t far = one_distance(b, g, c0);
    if (b->rel && far) {
        for (int32_t j = 0; j < g->count; j++) t->init[j] = o.log[j] + b->rel[far];
        o.log = t->init;
    } else if (b->rel && b->shift < 4) {
        o.step = (int64_t)1 << b->shift;
        o.rel = b->rel + (c0 - g->from * o.step);
    } else if (b->rel) { /* all lanes are in one cluster: one number per key */
        int64_t c = (c0 >> b->shift) - g->from;
        for (int32_t j = 0; j < g->count; j++) t->init[j] = o.log[j] + b->rel[c - j];
        o.log = t->init;
    }
    scores(s, top, t->q, at->k + (g->from & at->mask) * z->dp, z->dp, z->d, &o, g->count);
}

/* Moves segments from behind key `done` of `all` into `pass`: at most HTI_TILE_KEYS keys, cut where
 * a ring wraps and where the diagonal begins. Returns the new `done`. */
static int64_t next_pass(hti_segs *pass, const hti_segs *all, int64_t done, int64_t mask) {
    int64_t seen = 0;
    pass->count = 0;
    pass->keys = 0;
    pass->diagonal = all->diagonal;
    for (int i = 0; i < all->count && pass->keys < HTI_TILE_KEYS; i++) {
        const hti_seg *g = &all->seg[i];
        int64_t from = g->from + most(done - seen, 0), to = g->from + g->count;
        seen += g->count;
        to = least(to, from + HTI_TILE_KEYS - pass->keys);
        while (from < to) {
            int64_t end = mask < 0 ? to : least(to, (from | mask) + 1);
            if (from < all->diagonal && all->diagonal < end) end = all->diagonal;
            pass->seg[pass->count++] = (hti_seg){from, (int32_t)(end - from), g->lanes};
            pass->keys += end - from;
            from = end;
        }
    }
    return done + pass->keys;
}

/* Scores of one pass; returns nothing but t->s and the maxima `top`. */
static void pass_scores(tile *t, vf *top, const hti_segs *pass, const keys *at, const hti_shape *z,
                        const relative *b, int64_t c0) {
    float *s = t->s;
    for (int x = 0; x < TILE_VECTORS; x++) top[x] = vf_set1(-FLT_MAX);
    for (int i = 0; i < pass->count; i++) {
        segment_scores(t, s, top, &pass->seg[i], at, z, b, c0, pass->diagonal);
        feed_some(&t->next);
        s += (int64_t)pass->seg[i].count * TILE;
    }
}

/* The tile's state (max, sum, and rows `in`) takes in all segments of one level; the rows go `out`.
 * With `finish` set, out rows are divided by their sum. */
static void attend(tile *t, const hti_segs *all, const keys *at, const hti_shape *z,
                   const relative *b, int64_t c0, rows_in in, rows_out out, int finish) {
    hti_segs pass;
    int64_t done = 0;
    rows_of v = {at->v, z->dvp, at->mask};
    do {
        vf top[TILE_VECTORS];
        done = next_pass(&pass, all, done, at->mask);
        pass_scores(t, top, &pass, at, z, b, c0);
        if (t->drop.threshold) {
            draw_factors(t->factor, &t->drop, &pass, c0);
            weigh(t, top, pass.keys, 1);
        } else {
            weigh(t, top, pass.keys, 0);
        }
        int last = done >= all->keys;
        rows_out to = last ? out : (rows_out){t->acc, z->dvp, z->dvp, NULL, 0};
        if (last && finish) {
            for (int i = 0; i < TILE; i++) t->finish[i] = t->sum[i] > 0 ? 1 / t->sum[i] : 0;
            to.finish = t->finish;
        }
        values(t, t->s, &pass, &v, z->dvw, &in, &to);
        in = (rows_in){t->acc, z->dvp, 0};
    } while (done < all->keys);
}
