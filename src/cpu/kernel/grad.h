/*
 * Backward of one tile: 16 query rows (i) against a list of keys (j), scores computed again.
 *
 *     p[j][i]  = 2^(s - m_i)                  m: lse of the row, or the least lse of a coarse row's
 * rows ds[j][i] = p (<g_i, v_j> - h_i)         g, h: dz and <dz, z> - dlse, or a coarse row's sums
 * of them dq_i = sum_j ds k_j      dk_j += sum_i ds q_i      dv_j += sum_i p g_i
 *
 * all without the factor `scale`, which comes last. A row that takes no part has m = inf, so p = 0.
 */
typedef struct grad_tile {
    tile t;                         /* q, s: scores, then p */
    float g[HTI_MAX_DIM * TILE];    /* transposed, like q */
    float ds[HTI_TILE_KEYS * TILE]; /* [keys][TILE] */
    float m[TILE], h[TILE];
    float nothing[HTI_TILE_KEYS]; /* zeros */
} grad_tile;

/* Gradients of the keys [lo, hi) of a level: rows from lo on. */
typedef struct grad_keys {
    float *dk, *dv;
    int64_t lo, hi;
} grad_keys;

/* Keeps the keys [lo, hi). */
static void segs_clip(hti_segs *s, int64_t lo, int64_t hi) {
    int kept = 0;
    s->keys = 0;
    for (int i = 0; i < s->count; i++) {
        int64_t from = most(s->seg[i].from, lo), to = least(s->seg[i].from + s->seg[i].count, hi);
        if (from >= to) continue;
        s->seg[kept++] = (hti_seg){from, (int32_t)(to - from), s->seg[i].lanes};
        s->keys += to - from;
    }
    s->count = kept;
}

/* ---- sums over the tile's rows ---- */

/* NR rows of dst += w[r][i] x_i over lanes i, NV vectors from column col on. all: lanes that see
 * every row; some: others, and lane i sees rows up to i - late only. */
INLINE void outer_block(const int NR, const int NV, float *dst, int64_t stride, const float *w,
                        const float *x, uint32_t all, uint32_t some, int64_t late, int64_t col) {
    vf a[2 * VALUE_ROWS][VALUE_VECTORS];
    UNROLL for (int r = 0; r < NR; r++) {
        UNROLL for (int v = 0; v < NV; v++) a[r][v] = vf_load(dst + r * stride + col + v * VW);
    }
    for (; all; all &= all - 1) {
        int i = __builtin_ctz(all);
        vf y[VALUE_VECTORS];
        UNROLL for (int v = 0; v < NV; v++) y[v] = vf_load(x + i * stride + col + v * VW);
        UNROLL for (int r = 0; r < NR; r++) {
            vf b = vf_set1(w[r * TILE + i]);
            UNROLL for (int v = 0; v < NV; v++) a[r][v] = vf_fma(b, y[v], a[r][v]);
        }
    }
    for (; some; some &= some - 1) {
        int i = __builtin_ctz(some);
        vf y[VALUE_VECTORS];
        UNROLL for (int v = 0; v < NV; v++) y[v] = vf_load(x + i * stride + col + v * VW);
        UNROLL for (int r = 0; r < NR; r++) {
            vf b = vf_set1(w[r * TILE + i]);
            UNROLL for (int v = 0; v < NV; v++) a[r][v] =
                vf_fma_if(late + r <= i, b, y[v], a[r][v]);
        }
    }
    UNROLL for (int r = 0; r < NR; r++) {
        UNROLL for (int v = 0; v < NV; v++) vf_store(dst + r * stride + col + v * VW, a[r][v]);
    }
}

/* n rows of dst (stride apart, like x) += sum_i w[row][i] x_i over lanes i that see the row: of row
 * j those of `lanes` from lane late + j on. */
static void outer(float *dst, const float *w, const float *x, int64_t stride, int64_t width,
                  int64_t n, uint32_t lanes, int64_t late) {
    int64_t j = 0, wide = width / (VALUE_VECTORS * VW) * (VALUE_VECTORS * VW);
    for (; j + VALUE_ROWS <= n; j += VALUE_ROWS) {
        uint32_t all = seeing(lanes, late + j + VALUE_ROWS - 1);
        uint32_t some = seeing(lanes, late + j) & ~all;
        float *to = dst + j * stride;
        for (int64_t col = 0; col < wide; col += VALUE_VECTORS * VW)
            outer_block(VALUE_ROWS, VALUE_VECTORS, to, stride, w + j * TILE, x, all, some, late + j,
                        col);
        for (int64_t col = wide; col < width; col += VW)
            outer_block(VALUE_ROWS, 1, to, stride, w + j * TILE, x, all, some, late + j, col);
    }
    for (; j < n; j++) {
        uint32_t all = seeing(lanes, late + j);
        for (int64_t col = 0; col < width; col += VW)
            outer_block(1, 1, dst + j * stride, stride, w + j * TILE, x, all, 0, 0, col);
    }
}

/* dk and dv of the pass's keys, those that are asked for. q, g: the tile's rows, dp and dvp apart.
 */
static void grad_of_keys(const grad_tile *x, const hti_segs *pass, const hti_shape *z,
                         const float *q, const float *g, const grad_keys *to) {
    int64_t at = 0;
    for (int i = 0; i < pass->count; i++) {
        const hti_seg *s = &pass->seg[i];
        int64_t from = most(s->from, to->lo), end = least(s->from + s->count, to->hi);
        int64_t late = from - pass->diagonal;
        uint32_t lanes = s->lanes & x->t.live;
        if (from < end) {
            const float *ds = x->ds + (at + from - s->from) * TILE;
            const float *p = x->t.s + (at + from - s->from) * TILE;
            outer(to->dk + (from - to->lo) * z->dp, ds, q, z->dp, z->dw, end - from, lanes, late);
            outer(to->dv + (from - to->lo) * z->dvp, p, g, z->dvp, z->dvw, end - from, lanes, late);
        }
        at += s->count;
    }
}

/* ---- weights and their gradients ---- */

/* x->t.s: scores to p; x->ds: <g, v> to ds. What is not seen gets zeros. */
INLINE void grad_of_scores(grad_tile *x, const hti_segs *pass, const int drop) {
    float *p = x->t.s, *ds = x->ds, *factor = x->t.factor;
    for (int i = 0; i < pass->count; i++) {
        const hti_seg *g = &pass->seg[i];
        uint32_t lanes = g->lanes & x->t.live;
        int64_t n = g->count, late = g->from - pass->diagonal;
        for (int v = 0; v < TILE; v += VW) {
            vf m = vf_load(x->m + v), h = vf_load(x->h + v);
            for (int64_t j = 0; j < n; j++) {
                vf y = exp2_v(vf_sub(vf_load(p + j * TILE + v), m));
                vf gv = vf_load(ds + j * TILE + v), f = vf_load(factor + j * TILE + v);
                vf_store(p + j * TILE + v, drop ? vf_mul(y, f) : y);
                vf_store(ds + j * TILE + v, vf_mul(y, vf_sub(drop ? vf_mul(gv, f) : gv, h)));
            }
        }
        factor += n * TILE;
        if (lanes == (1u << TILE) - 1 && late + n <= 1) {
            p += n * TILE, ds += n * TILE;
            continue;
        }
        for (int64_t j = 0; j < n; j++, p += TILE, ds += TILE) {
            uint32_t see = seeing(lanes, late + j);
            for (int v = 0; v < TILE; v += VW) {
                vf_store(p + v, vf_pick(see >> v, vf_load(p + v), vf_zero()));
                vf_store(ds + v, vf_pick(see >> v, vf_load(ds + v), vf_zero()));
            }
        }
    }
}

/* <g_i, v_j> of the pass: scores of other rows. */
static void pass_products(grad_tile *x, const hti_segs *pass, const keys *at, const hti_shape *z) {
    vf top[TILE_VECTORS];
    float *s = x->ds;
    scoring o = {.log = x->nothing};
    for (int v = 0; v < TILE_VECTORS; v++) top[v] = vf_zero();
    for (int i = 0; i < pass->count; s += (int64_t)pass->seg[i].count * TILE, i++)
        scores(s, top, x->g, at->v + (pass->seg[i].from & at->mask) * z->dvp, z->dvp, z->dv, &o,
               pass->seg[i].count);
}

/* <a_i, b_i> of two transposed tiles, summed as `scores` sums: where a row's weight is all on one
 * key, <g, v> and h are nearly the same sum, and what is left of their difference must not be
 * rounding. */
static void lane_products(float *out, const float *a, const float *b, int64_t d) {
    for (int x = 0; x < TILE; x += VW) {
        vf sum = vf_zero();
        for (int64_t from = 0; from < d; from += SCORE_CHAIN) {
            vf chain = vf_zero();
            for (int64_t c = from; c < least(d, from + SCORE_CHAIN); c++)
                chain = vf_fma(vf_load(b + c * TILE + x), vf_load(a + c * TILE + x), chain);
            sum = from > 0 ? vf_add(chain, sum) : chain;
        }
        vf_store(out + x, sum);
    }
}

/* Sum of all ds of n keys. */
static float sum_of(const float *ds, int64_t n) {
    vf sum = vf_zero();
    for (int64_t i = 0; i < n * TILE; i += VW) sum = vf_add(sum, vf_load(ds + i));
    return vf_sum(sum);
}

/* bias[c - j] += ds, bias being laid out like the table of relatives: lanes are neighbours. */
static void grad_of_bias(float *bias, const grad_tile *x, const hti_segs *pass, int64_t c0,
                         const relative *b) {
    const float *ds = x->ds;
    for (int i = 0; i < pass->count; i++) {
        const hti_seg *g = &pass->seg[i];
        int64_t far = one_distance(b, g, c0);
        if (far) bias[far] += sum_of(ds, g->count);
        for (int64_t j = g->from; j < g->from + g->count && !far; j++) {
            const float *from = ds + (j - g->from) * TILE;
            float *to = bias + (c0 - j);
            for (int v = 0; v < TILE && b->shift == 0; v += VW)
                vf_store(to + v, vf_add(vf_load(to + v), vf_load(from + v)));
            for (int v = 0; v < x->t.rows && b->shift > 0 && b->shift < 4; v++)
                bias[((c0 + v) >> b->shift) - j] += from[v];
            if (b->shift >= 4) bias[(c0 >> b->shift) - j] += sum_of(from, 1);
        }
        ds += (int64_t)g->count * TILE;
    }
}

/* What a tile's gradient needs and where it goes. */
typedef struct grad_job {
    const keys *at;
    relative rel;
    int64_t c0;         /* cluster or row of lane 0 */
    const float *q, *g; /* the tile's rows, dp and dvp apart */
    grad_keys to;
    int want_dq;  /* else only the keys' gradients */
    rows_in in;   /* dq starts from these rows, times t.keep ... */
    rows_out out; /* ... and goes here */
    float *bias;  /* centre of this head's dbias, or NULL */
} grad_job;

static void grad_attend(grad_tile *x, const hti_segs *all, const hti_shape *z,
                        const grad_job *job) {
    const keys *at = job->at;
    rows_of k = {at->k, z->dp, at->mask};
    rows_in in = job->in;
    hti_segs pass;
    int64_t done = 0;
    do {
        vf top[TILE_VECTORS];
        done = next_pass(&pass, all, done, at->mask);
        pass_scores(&x->t, top, &pass, at, z, &job->rel, job->c0);
        pass_products(x, &pass, at, z);
        if (x->t.drop.threshold) {
            draw_factors(x->t.factor, &x->t.drop, &pass, job->c0);
            grad_of_scores(x, &pass, 1);
        } else {
            grad_of_scores(x, &pass, 0);
        }
        grad_of_keys(x, &pass, z, job->q, job->g, &job->to);
        if (job->bias) grad_of_bias(job->bias, x, &pass, job->c0, &job->rel);
        if (!job->want_dq) continue;
        int last = done >= all->keys;
        rows_out to = last ? job->out : (rows_out){x->t.acc, z->dp, z->dp, NULL, 0};
        values(&x->t, x->ds, &pass, &k, z->dw, &in, &to);
        in = (rows_in){x->t.acc, z->dp, 0};
        for (int i = 0; i < TILE; i++) x->t.keep[i] = 1;
    } while (done < all->keys);
}
