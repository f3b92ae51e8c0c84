/*
 * Backward, kinds hierarchical and local, modes mean and first (kernel_fine.h has mode fine).
 *
 *     up      means of keys, values and queries, and what a coarse query row stands for: m = least
 * lse of its rows, g = sum 2^(m - lse) dz, h = sum 2^(m - lse) (<dz, z> - dlse); levels >= local,
 * into the pyramid across  gradients of the pyramid's rows, from the top level down; a parent's
 * gradient, divided by the share of its valid rows, is where its children start near    run by run
 * (a chunk of one head): levels local-1 ... 0, ending in dq, dk and dv
 *
 * A run owns its keys as well as its queries. Query tiles of the neighbouring blocks are computed a
 * second time, for the run's keys alone: then no two threads write to the same row, and sums have
 * one order.
 */

/* Rows of a neighbouring block of the coarsest local level: three levels at block 16. */
enum { BACKWARD_REACH = 64 };

/* The work is cut into slots, whatever the number of threads, and a thread takes whole slots: sums
 * over many tiles (the bias) are made per slot, then over slots, in one order. */
enum { SLOTS = 128 };

typedef struct backward {
    work w;
    float *g, *h, *m; /* pyramid [q_heads][tables.rows] x dvp, 1, 1; h, m in units of log 2 where it
                         applies */
    float *dq, *dk, *dv; /* pyramid of gradients x dp, dp, dvp, for q_heads, kv_heads, kv_heads */
    float *delta;        /* [q_heads][rows] <dz, z> - dlse */
    double *bias;        /* [SLOTS][q_heads][rel.reach * 2] partial sums, or NULL */
    char *threads;
    size_t thread_bytes;
    int stream_q, stream_k, stream_v;
} backward;

/* A thread's own memory. */
typedef struct grad_own {
    grad_tile *x;
    hti_segs segs;
    rings keys;
    float *q0, *g0, *m0, *h0; /* [step] x dp, dvp, 1, 1: level 0 of the step at hand; q turned */
    float *q, *g, *m, *h;     /* [own rows]: levels 1 ... local-1 */
    float *dq;                /* [own rows] x dp */
    float *dk, *dv; /* [run rows] x dp, dvp: gradients of the run's keys, all local levels */
    float *bias;    /* [2 * reach]: dbias of one tile */
} grad_own;

/* Rows of all local levels of a run. */
static int64_t run_rows(const hti_tables *t) { return 2 * t->chunk + HTI_MAX_LEVELS; }

static void grad_own_take(grad_own *o, hti_arena *c, const hti_tables *t, int64_t length,
                          int64_t reach) {
    const hti_shape *z = &t->shape;
    int64_t rows = hti_own_rows(z, length), run = run_rows(t), step = hti_step_rows(z, length);
    o->x = hti_take(c, 1, sizeof(grad_tile));
    rings_take(&o->keys, c, z, length);
    o->q0 = hti_take(c, step * z->dp, sizeof(float));
    o->g0 = hti_take(c, step * z->dvp, sizeof(float));
    o->m0 = hti_take(c, step, sizeof(float));
    o->h0 = hti_take(c, step, sizeof(float));
    o->q = hti_take(c, rows * z->dp, sizeof(float));
    o->g = hti_take(c, rows * z->dvp, sizeof(float));
    o->m = hti_take(c, rows, sizeof(float));
    o->h = hti_take(c, rows, sizeof(float));
    o->dq = hti_take(c, rows * z->dp, sizeof(float));
    o->dk = hti_take(c, run * z->dp, sizeof(float));
    o->dv = hti_take(c, run * z->dvp, sizeof(float));
    o->bias = hti_take(c, 2 * reach, sizeof(float));
}

/* Clusters of the pyramid that one thread takes at a time. */
enum { ACROSS_ITEM = 256 };

/* call NULL: measures for the plan's maxima */
static size_t backward_take(backward *b, void *base, const ht_attention_desc *desc,
                            const hti_attention_call *call, int threads) {
    hti_arena c = {base, 0}, mine = {NULL, 0};
    grad_own o;
    *b = (backward){0};
    work_take(&b->w, &c, desc, call, BACKWARD_REACH);
    const hti_shape *z = &b->w.z;
    int64_t all = call ? call->rows : desc->max_rows, rows = b->w.t.rows;
    b->g = hti_take(&c, z->q_heads * rows * z->dvp, sizeof(float));
    b->h = hti_take(&c, z->q_heads * rows, sizeof(float));
    b->m = hti_take(&c, z->q_heads * rows, sizeof(float));
    b->dq = hti_take(&c, z->q_heads * rows * z->dp, sizeof(float));
    b->dk = hti_take(&c, z->kv_heads * rows * z->dp, sizeof(float));
    b->dv = hti_take(&c, z->kv_heads * rows * z->dvp, sizeof(float));
    b->delta = hti_take(&c, z->q_heads * all, sizeof(float));
    if (desc->has_bias)
        b->bias = hti_take(&c, SLOTS * z->q_heads * 2 * b->w.rel.reach, sizeof(double));
    grad_own_take(&o, &mine, &b->w.t, call ? call->length : desc->max_length, b->w.rel.reach);
    b->thread_bytes = (mine.used + 4095) / 4096 * 4096;
    b->threads = hti_take(&c, threads, b->thread_bytes);
    return c.used;
}

/* ---- up: what a coarse query row stands for ---- */

/* m of a row, its lse in units of log 2 as forward saved it; a row that takes no part: inf */
static float row_m(const backward *b, const hti_seq *s, int64_t head, int64_t row) {
    const float *lse = (const float *)b->w.call->saved + head * b->w.call->rows + s->start;
    int live = b->w.t.query_n[s->count_at[0] + row] > 0 && lse[row] != -INFINITY;
    return live ? lse[row] : INFINITY;
}

/* delta of the step's rows, from z and dz. */
static void make_delta(grad_tile *t, const backward *b, const hti_seq *s, hti_range r,
                       int64_t head) {
    const hti_attention_call *c = b->w.call;
    view z = view_of(c, &c->out, s->index, head), dz = view_of(c, &c->dout, s->index, head);
    view dlse = c->dlse.data ? view_of(c, &c->dlse, s->index, head) : (view){NULL, 0};
    float *delta = b->delta + head * c->rows + s->start, products[TILE];
    for (int64_t c0 = r.lo; c0 < r.hi; c0 += TILE) {
        const float *x[TILE], *y[TILE];
        int rows = (int)least(TILE, r.hi - c0);
        for (int i = 0; i < TILE; i++) {
            int live = i < rows && row_m(b, s, head, c0 + i) != INFINITY;
            x[i] = live ? z.data + (c0 + i) * z.stride : NULL;
            y[i] = live ? dz.data + (c0 + i) * dz.stride : NULL;
        }
        transpose_rows(t->t.q, x, b->w.z.dv, 1.0f);
        transpose_rows(t->g, y, b->w.z.dv, 1.0f);
        lane_products(products, t->t.q, t->g, b->w.z.dv);
        for (int i = 0; i < rows; i++)
            delta[c0 + i] =
                y[i] ? products[i] - (dlse.data ? dlse.data[(c0 + i) * dlse.stride] : 0) : 0;
    }
}

/* Weights 2^(least m - m) of n <= TILE rows; rows that take no part weigh 0. Returns the least m.
 */
static float restrict_weights(float *w, const float *m, int n) {
    float least_m = m[0], x[TILE];
    for (int i = 1; i < n; i++) least_m = m[i] < least_m || isnan(least_m) ? m[i] : least_m;
    for (int i = 0; i < TILE; i++) x[i] = i < n && m[i] != INFINITY ? least_m - m[i] : -INFINITY;
    for (int i = 0; i < TILE; i += VW) vf_store(w + i, exp2_v(vf_load(x + i)));
    return least_m;
}

/* One cluster of level `local` from its rows. */
static void restrict_rows(const backward *b, const hti_seq *s, int64_t head, int64_t cluster) {
    const hti_shape *z = &b->w.z;
    view dz = view_of(b->w.call, &b->w.call->dout, s->index, head);
    int64_t to = pyramid_row(&b->w.t, head, s, s->local, cluster), row = cluster << s->local;
    int n = (int)least((int64_t)1 << s->local, s->length - row);
    const float *delta = b->delta + head * b->w.call->rows + s->start + row;
    float m[TILE], w[TILE], h = 0, *g = b->g + to * z->dvp;
    for (int i = 0; i < n; i++) m[i] = row_m(b, s, head, row + i);
    b->m[to] = restrict_weights(w, m, n);
    zero_row(g, z->dvp);
    for (int i = 0; i < n; i++) {
        const float *x = dz.data + (row + i) * dz.stride;
        if (w[i] == 0) continue;
        h += w[i] * delta[i];
        vf f = vf_set1(w[i]);
        for (int64_t col = 0; col < z->dv; col += VW) {
            vf y = z->dv - col < VW ? vf_load_n(x + col, (int)(z->dv - col)) : vf_load(x + col);
            vf_store(g + col, vf_fma(f, y, vf_load(g + col)));
        }
    }
    b->h[to] = h;
}

/* Clusters r from the level below (g, h, m: of the levels' cluster 0; `below` clusters there). */
static void restrict_level(float *g, float *h, float *m, const float *g0, const float *h0,
                           const float *m0, hti_range r, int64_t below, int64_t dvp) {
    for (int64_t c = r.lo; c < r.hi; c++) {
        float w[TILE];
        int n = 2 * c + 1 < below ? 2 : 1;
        m[c] = restrict_weights(w, m0 + 2 * c, n);
        h[c] = w[0] * h0[2 * c] + (n == 2 ? w[1] * h0[2 * c + 1] : 0);
        vf x = vf_set1(w[0]), y = vf_set1(w[1]);
        const float *a = g0 + 2 * c * dvp,
                    *e = n == 2 ? a + dvp : a; /* w[1] is 0 where there is no second */
        EACH_VECTOR(col, dvp, {
            vf_store(g + c * dvp + col, vf_fma(x, vf_load(a + col), vf_mul(y, vf_load(e + col))));
        });
    }
}

static void restrict_pyramid(const backward *b, const hti_seq *s, int64_t head, int l,
                             hti_range r) {
    int64_t dvp = b->w.z.dvp, to = pyramid_row(&b->w.t, head, s, l, 0);
    int64_t from = pyramid_row(&b->w.t, head, s, l - 1, 0);
    restrict_level(b->g + to * dvp, b->h + to, b->m + to, b->g + from * dvp, b->h + from,
                   b->m + from, r, s->clusters[l - 1], dvp);
}

/* Means, and g, h, m, of all levels >= local; delta of all rows. */
static void backward_up(grad_own *o, const backward *b, int thread, int threads) {
    const hti_shape *z = &b->w.z;
    hti_walk w;
    for (int go = hti_walk_begin(&w, &b->w.t, z->kv_heads, thread, threads); go;
         go = hti_walk_next(&w)) {
        const hti_seq *s = &w.seq;
        int shared = s->local < s->levels;
        if (shared) up_all(&b->w, s, w.head, s->local, hti_step_own(s, w.row, s->local));
        if (shared) up_step(&b->w, s, w.row, w.head);
        for (int64_t h = w.head * z->group; h < (w.head + 1) * z->group; h++) {
            make_delta(o->x, b, s, hti_step_own(s, w.row, 0), h);
            if (!shared || z->fine) continue;
            hti_range r = hti_step_own(s, w.row, s->local);
            for (int64_t c = r.lo; c < r.hi; c++) restrict_rows(b, s, h, c);
            for (int l = s->local + 1; l < s->levels && (int64_t)1 << l <= s->step; l++)
                restrict_pyramid(b, s, h, l, hti_step_own(s, w.row, l));
        }
    }
#pragma omp barrier
    if (b->w.t.rows == 0) return;
    hti_seq s;
    for (int64_t i = thread; i < b->w.call->sequences * z->q_heads && !z->fine; i += threads) {
        if (!is_shared(&b->w.t, i / z->q_heads)) continue;
        hti_seq_make(&s, &b->w.t, i / z->q_heads);
        for (int l = s.local + 1; l < s.levels; l++)
            if ((int64_t)1 << l > s.step)
                restrict_pyramid(b, &s, i % z->q_heads, l, (hti_range){0, s.clusters[l]});
    }
    up_top(&b->w, thread, threads);
}

/* ---- shares: the adjoint of coarsening ---- */

/* What part of its parent's gradient a query cluster gets. n, up: counts of its level and of the
 * one above. */
static float query_share(const hti_shape *z, const float *n, const float *up, int64_t c) {
    if (n[c] == 0) return 0;
    if (z->first) return c % 2 == 0 || n[c - 1] == 0 ? 1.0f : 0.0f;
    return n[c] / up[c >> 1];
}

/* Rows of clusters r (dst: of r.lo) += their share of the parents' rows (src: of cluster 0). */
static void spread(float *dst, const float *src, const float *n, const float *up, hti_range r,
                   int64_t wp) {
    for (int64_t c = r.lo; c < r.hi; c++, dst += wp) {
        if (n[c] == 0) continue;
        vf share = vf_set1(n[c] / up[c >> 1]);
        const float *x = src + (c >> 1) * wp;
        EACH_VECTOR(col, wp,
                    { vf_store(dst + col, vf_fma(share, vf_load(x + col), vf_load(dst + col))); });
    }
}

/* The tile's lanes: m, h, and shares of the parents' dq (zeros at the top). */
static void grad_lanes(grad_own *o, const backward *b, const hti_seq *s, int level, int64_t c0,
                       const float *m, const float *h) {
    grad_tile *x = o->x;
    const float *n = b->w.t.query_n + s->count_at[level];
    const float *up = level + 1 < s->levels ? b->w.t.query_n + s->count_at[level + 1] : NULL;
    x->t.live = 0;
    for (int i = 0; i < TILE; i++) {
        int in = i < x->t.rows;
        x->m[i] = in ? m[i] : INFINITY;
        x->h[i] = in ? h[i] : 0;
        x->t.keep[i] = in && up ? query_share(&b->w.z, n, up, c0 + i) : 0;
        if (x->m[i] != INFINITY) x->t.live |= 1u << i;
    }
}

static void transpose_tile(grad_tile *x, const hti_shape *z, const float *q, const float *g,
                           float scale) {
    const float *row[TILE];
    for (int i = 0; i < TILE; i++) row[i] = i < x->t.rows ? q + i * z->dp : NULL;
    transpose_rows(x->t.q, row, z->d, scale);
    for (int i = 0; i < TILE; i++) row[i] = i < x->t.rows ? g + i * z->dvp : NULL;
    transpose_rows(x->g, row, z->dv, 1.0f);
}

/* Centre of the bias gradient's partial sums of a slot and head. */
static double *bias_slot(const backward *b, int64_t slot, int64_t head) {
    if (!b->bias) return NULL;
    return b->bias + ((slot * b->w.z.q_heads + head) * 2 + 1) * b->w.rel.reach;
}

/* One tile; its dbias is summed apart before it joins the slot's sums, which are in double: many
 * small numbers. */
static void grad_run_tile(grad_own *o, const backward *b, grad_job *job, double *bias) {
    int64_t reach = b->w.rel.reach;
    job->bias = bias ? o->bias + reach : NULL;
    if (bias) memset(o->bias, 0, sizeof(float) * (size_t)(2 * reach));
    grad_attend(o->x, &o->segs, &b->w.z, job);
    for (int64_t x = -reach; bias && x < reach; x++) bias[x] += o->bias[reach + x];
}

/* A tile of clusters c0 ... of a level >= 1: rows q, g, m, h; dq of the level goes to `dq`, or
 * nowhere (NULL). */
static void grad_coarse_tile(grad_own *o, const backward *b, const hti_seq *s, int level,
                             int64_t head, int64_t c0, int rows, const keys *at, const float *q,
                             const float *g, const float *m, const float *h, rows_in in, float *dq,
                             grad_keys to, double *bias) {
    const hti_shape *z = &b->w.z;
    grad_tile *x = o->x;
    x->t.rows = rows;
    hti_segs_make(&o->segs, z, s->clusters[level], level, 0, c0, rows);
    if (!dq) segs_clip(&o->segs, to.lo, to.hi);
    if (!dq && o->segs.keys == 0) return;
    grad_lanes(o, b, s, level, c0, m, h);
    transpose_tile(x, z, q, g, b->w.rel.scale);
    grad_job job = {at,
                    relative_of(&b->w.rel, head, 0),
                    c0,
                    q,
                    g,
                    to,
                    dq != NULL,
                    in,
                    {rows < TILE ? x->t.acc : dq, z->dp, z->dp, NULL, 0},
                    NULL};
    grad_run_tile(o, b, &job, dq ? bias : NULL);
    for (int i = 0; dq && rows < TILE && i < rows; i++)
        copy_row(dq + i * z->dp, x->t.acc + i * z->dp, z->dp, z->dp);
}

/* ---- across ---- */

/* Query clusters whose keys may lie in `own`: one block more on each side, whole tiles. */
static hti_range with_neighbours(const hti_shape *z, hti_range own, int64_t clusters) {
    int64_t lo = z->causal ? own.lo : most(own.lo / z->block - 1, 0) * z->block;
    return (hti_range){lo / TILE * TILE, least(((own.hi - 1) / z->block + 2) * z->block, clusters)};
}

/* Clusters `own` of a pyramid level, of one key head and its query heads. slot: of bias sums. */
static void across_item(grad_own *o, const backward *b, const hti_seq *s, int l, int64_t kv,
                        hti_range own, int64_t slot) {
    const hti_shape *z = &b->w.z;
    const hti_tables *t = &b->w.t;
    keys at = pyramid_keys(&b->w, s, kv, l);
    hti_range all = with_neighbours(z, own, s->clusters[l]);
    int64_t key = pyramid_row(t, kv, s, l, own.lo),
            up = l + 1 < s->levels ? pyramid_row(t, kv, s, l + 1, 0) : -1;
    grad_keys to = {b->dk + key * z->dp, b->dv + key * z->dvp, own.lo, own.hi};
    memset(to.dk, 0, sizeof(float) * (size_t)((own.hi - own.lo) * z->dp));
    memset(to.dv, 0, sizeof(float) * (size_t)((own.hi - own.lo) * z->dvp));
    if (up >= 0) {
        const float *n = t->key_n + s->count_at[l], *parents = t->key_n + s->count_at[l + 1];
        spread(to.dk, b->dk + up * z->dp, n, parents, own, z->dp);
        spread(to.dv, b->dv + up * z->dvp, n, parents, own, z->dvp);
    }
    for (int64_t head = kv * z->group; head < (kv + 1) * z->group; head++) {
        for (int64_t c0 = all.lo; c0 < all.hi; c0 += TILE) {
            int mine = c0 >= own.lo && c0 < own.hi;
            int64_t row = pyramid_row(t, head, s, l, c0),
                    parent = pyramid_row(t, head, s, l + 1, c0 >> 1);
            rows_in in = {up >= 0 ? b->dq + parent * z->dp : NULL, z->dp, 1};
            grad_coarse_tile(o, b, s, l, head, c0, (int)least(TILE, s->clusters[l] - c0), &at,
                             b->w.q + row * z->dp, b->g + row * z->dvp, b->m + row, b->h + row, in,
                             mine ? b->dq + row * z->dp : NULL, to, bias_slot(b, slot, head));
        }
    }
}

static void across_slot(grad_own *o, const backward *b, const hti_seq *s, int l, int64_t slot) {
    int64_t parts = (s->clusters[l] + ACROSS_ITEM - 1) / ACROSS_ITEM;
    int64_t items = parts * b->w.z.kv_heads;
    for (int64_t j = items * slot / SLOTS; j < items * (slot + 1) / SLOTS; j++) {
        int64_t lo = j % parts * ACROSS_ITEM;
        hti_range own = {lo, least(lo + ACROSS_ITEM, s->clusters[l])};
        across_item(o, b, s, l, j / parts, own, slot);
    }
}

static void backward_across(grad_own *o, const backward *b, int thread, int threads) {
    const hti_shape *z = &b->w.z;
    hti_seq s;
    o->x->t.next.left = 0;
    for (int l = hti_levels(b->w.call->length, z->block) - 1; l >= z->local; l--) {
        for (int64_t i = 0; i < b->w.call->sequences; i++) {
            if (!is_shared(&b->w.t, i)) continue;
            hti_seq_make(&s, &b->w.t, i);
            if (l >= s.levels) continue;
            for (int64_t slot = SLOTS * thread / threads; slot < SLOTS * (thread + 1) / threads;
                 slot++)
                across_slot(o, b, &s, l, slot);
        }
#pragma omp barrier
    }
}

/* ---- near ---- */

/* The step's query rows of one head, all local levels: q, g, m, h. */
static void load_queries(grad_own *o, const backward *b, const hti_seq *s, int64_t row,
                         int64_t head) {
    const hti_shape *z = &b->w.z;
    const hti_attention_call *c = b->w.call;
    view q = view_of(c, &c->q, s->index, head), dz = view_of(c, &c->dout, s->index, head);
    hti_range r = hti_step_own(s, row, 0);
    const float *n = b->w.t.query_n + s->count_at[0], *delta = b->delta + head * c->rows + s->start;
    for (int64_t i = r.lo; i < r.hi; i++) {
        float *to = o->q0 + (i - r.lo) * z->dp, *g = o->g0 + (i - r.lo) * z->dvp;
        o->m0[i - r.lo] = row_m(b, s, head, i);
        o->h0[i - r.lo] = delta[i];
        if (n[i] > 0) {
            copy_row(to, q.data + i * q.stride, z->d, z->dp);
            if (b->w.turn.table) turn_row(to, to, &b->w.turn, i, 1);
        } else {
            zero_row(to, z->dp);
        }
        if (o->m0[i - r.lo] != INFINITY) {
            copy_row(g, dz.data + i * dz.stride, z->dv, z->dvp);
        } else {
            zero_row(g, z->dvp);
        }
    }
    for (int l = 1; l < s->local && !z->fine; l++) {
        hti_range own = hti_step_own(s, row, l);
        int64_t at = s->own_at[l] - own.lo,
                below = l == 1 ? -r.lo : s->own_at[l - 1] - (row >> (l - 1));
        const float *counts = b->w.t.query_n + s->count_at[l - 1];
        if (l == 1) {
            coarsen_rows(o->q + (at + own.lo) * z->dp, q, counts, own, s->clusters[0], z->d, z->dp,
                         z->first);
        } else {
            coarsen(o->q + at * z->dp, -1, o->q + below * z->dp, -1, counts, own,
                    s->clusters[l - 1], z->dp, z->first);
        }
        restrict_level(o->g + at * z->dvp, o->h + at, o->m + at,
                       (l == 1 ? o->g0 : o->g) + below * z->dvp, (l == 1 ? o->h0 : o->h) + below,
                       (l == 1 ? o->m0 : o->m) + below, own, s->clusters[l - 1], z->dvp);
    }
}

/* A run: rows, and where the gradients of its keys lie in the thread's memory. */
typedef struct run {
    const hti_seq *s;
    int64_t kv, slot;
    hti_range rows;
    int64_t at[HTI_MAX_LEVELS]; /* first row of a level in o->dk, o->dv */
} run;

static hti_range run_own(const run *r, int level) {
    return (hti_range){r->rows.lo >> level, hti_clusters(r->rows.hi, level)};
}

static grad_keys run_keys(const grad_own *o, const backward *b, const run *r, int level) {
    hti_range own = run_own(r, level);
    return (grad_keys){o->dk + r->at[level] * b->w.z.dp, o->dv + r->at[level] * b->w.z.dvp, own.lo,
                       own.hi};
}

/* Coarse tiles of the step at a local level >= 1. */
static void near_grad_level(grad_own *o, const backward *b, const run *r, int64_t row, int64_t head,
                            int l, int mine) {
    const hti_shape *z = &b->w.z;
    const hti_seq *s = r->s;
    keys at = ring_keys(&o->keys, &b->w, s, l);
    hti_range own = hti_step_own(s, row, l);
    for (int64_t c0 = own.lo; c0 < own.hi; c0 += TILE) {
        int64_t i = s->own_at[l] + c0 - own.lo;
        rows_in in = {NULL, z->dp, 1};
        if (l + 1 < s->local) {
            in.base = o->dq + (s->own_at[l + 1] + (c0 >> 1) - (row >> (l + 1))) * z->dp;
        } else if (l + 1 < s->levels) {
            in.base = b->dq + pyramid_row(&b->w.t, head, s, l + 1, c0 >> 1) * z->dp;
        }
        grad_coarse_tile(o, b, s, l, head, c0, (int)least(TILE, own.hi - c0), &at, o->q + i * z->dp,
                         o->g + i * z->dvp, o->m + i, o->h + i, in, mine ? o->dq + i * z->dp : NULL,
                         run_keys(o, b, r, l), bias_slot(b, r->slot, head));
    }
}

/* Where the dq of a row tile starts: its parents'. */
static rows_in row_parents(const grad_own *o, const backward *b, const hti_seq *s, int64_t row,
                           int64_t head, int64_t c0) {
    const hti_shape *z = &b->w.z;
    if (s->levels == 1 || z->fine) return (rows_in){NULL, z->dp, 1};
    if (s->local > 1)
        return (rows_in){o->dq + (s->own_at[1] + (c0 >> 1) - (row >> 1)) * z->dp, z->dp, 1};
    return (rows_in){b->dq + pyramid_row(&b->w.t, head, s, 1, c0 >> 1) * z->dp, z->dp, 1};
}

/* Rotary: dq of the turned rows, in t.acc, turned back and put with the parents'. */
static void turn_back(tile *t, const backward *b, rows_in in, const float *keep, rows_out out,
                      int64_t c0) {
    const hti_shape *z = &b->w.z;
    for (int i = 0; i < t->rows; i++) {
        float *x = t->acc + i * z->dp, *to = out.base + i * out.stride;
        const float *up = in.base ? in.base + (i >> in.shift) * in.stride : t->zeros;
        turn_row(x, x, &b->w.turn, c0 + i, -1);
        for (int64_t c = 0; c < z->d; c++) to[c] = out.finish[i] * (x[c] + keep[i] * up[c]);
    }
}

/* Level 0 of rows c0 ...: dq goes to the caller. */
static void grad_row_tile(grad_own *o, const backward *b, const run *r, int64_t row, int64_t head,
                          int64_t c0, int mine) {
    const hti_shape *z = &b->w.z;
    const hti_seq *s = r->s;
    grad_tile *x = o->x;
    int turned = b->w.turn.table != NULL, rows = x->t.rows = (int)least(TILE, s->length - c0);
    grad_keys to = run_keys(o, b, r, 0);
    hti_segs_make(&o->segs, z, s->length, 0, 0, c0, rows);
    if (!mine) segs_clip(&o->segs, to.lo, to.hi);
    if (!mine && o->segs.keys == 0) return;
    grad_lanes(o, b, s, 0, c0, o->m0 + c0 - row, o->h0 + c0 - row);
    const float *q = o->q0 + (c0 - row) * z->dp, *g = o->g0 + (c0 - row) * z->dvp;
    transpose_tile(x, z, q, g, b->w.rel.scale);
    view dq = view_of(b->w.call, &b->w.call->dq, s->index, head);
    keys at = ring_keys(&o->keys, &b->w, s, 0);
    float keep[TILE];
    memcpy(keep, x->t.keep, sizeof keep);
    for (int i = 0; i < TILE; i++) x->t.finish[i] = (float)b->w.call->desc->scale;
    rows_in in = row_parents(o, b, s, row, head, c0), none = {NULL, z->dp, 1};
    rows_out user = {dq.data + c0 * dq.stride, dq.stride, z->d, x->t.finish, b->stream_q};
    rows_out here = {x->t.acc, z->dp, z->dp, turned ? NULL : x->t.finish, 0};
    grad_job job = {&at,
                    relative_of(&b->w.rel, head, 0),
                    c0,
                    q,
                    g,
                    to,
                    mine,
                    turned ? none : in,
                    turned || rows < TILE ? here : user,
                    NULL};
    grad_run_tile(o, b, &job, mine ? bias_slot(b, r->slot, head) : NULL);
    if (!mine) return;
    if (turned) {
        turn_back(&x->t, b, in, keep, user, c0);
    } else if (rows < TILE) {
        for (int i = 0; i < rows; i++)
            for (int64_t c = 0; c < z->d; c++)
                user.base[i * user.stride + c] = x->t.acc[i * z->dp + c];
    }
}

/* One row of dk or dv to the caller. */
static void put_row(float *to, const float *x, const float *up, float share, float scale, int64_t w,
                    int stream) {
    vf f = vf_set1(scale), p = vf_set1(share);
    for (int64_t c = 0; c < w; c += VW) {
        vf y = vf_load(x + c);
        if (up) y = vf_fma(p, vf_load(up + c), y);
        y = vf_mul(f, y);
        if (stream) {
            vf_stream(to + c, y);
        } else if (w - c >= VW) {
            vf_store(to + c, y);
        } else {
            vf_store_n(to + c, y, (int)(w - c));
        }
    }
}

/* The run's key gradients: parents' shares go down level by level, level 0 goes to the caller. */
static void finish_run(grad_own *o, const backward *b, const run *r) {
    const hti_shape *z = &b->w.z;
    const hti_tables *t = &b->w.t;
    const hti_attention_call *c = b->w.call;
    const hti_seq *s = r->s;
    int far = s->local < s->levels && !z->fine;
    int64_t key = far ? pyramid_row(t, r->kv, s, s->local, 0) : 0;
    const float *dk = b->dk + key * z->dp,
                *dv = b->dv + key * z->dvp; /* of cluster 0 one level up */
    for (int l = s->local - 1; l > 0; l--) {
        hti_range own = run_own(r, l);
        const float *n = t->key_n + s->count_at[l], *up = t->key_n + s->count_at[l + 1];
        float *to = o->dk + r->at[l] * z->dp, *tv = o->dv + r->at[l] * z->dvp;
        if (far || l < s->local - 1) {
            spread(to, dk, n, up, own, z->dp);
            spread(tv, dv, n, up, own, z->dvp);
        }
        dk = to - own.lo * z->dp;
        dv = tv - own.lo * z->dvp;
    }
    view k = view_of(c, &c->dk, s->index, r->kv), v = view_of(c, &c->dv, s->index, r->kv);
    int has_up = far || s->local > 1;
    const float *n = t->key_n + s->count_at[0], *up = has_up ? t->key_n + s->count_at[1] : NULL;
    for (int64_t i = r->rows.lo; i < r->rows.hi; i++) {
        float share = has_up && n[i] > 0 ? 1 / up[i >> 1] : 0,
              scale = n[i] > 0 ? (float)c->desc->scale : 0;
        float *x = o->dk + (r->at[0] + i - r->rows.lo) * z->dp,
              *y = o->dv + (r->at[0] + i - r->rows.lo) * z->dvp;
        if (b->w.turn.table) turn_row(x, x, &b->w.turn, i, -1);
        put_row(k.data + i * k.stride, x, has_up ? dk + (i >> 1) * z->dp : NULL, share, scale, z->d,
                b->stream_k);
        put_row(v.data + i * v.stride, y, has_up ? dv + (i >> 1) * z->dvp : NULL, share,
                n[i] > 0 ? 1.0f : 0.0f, z->dv, b->stream_v);
    }
}

static void run_begin(grad_own *o, const backward *b, run *r) {
    const hti_shape *z = &b->w.z;
    int64_t rows = 0;
    for (int l = 0; l < r->s->local; l++) {
        hti_range own = run_own(r, l);
        r->at[l] = rows;
        rows += own.hi - own.lo;
    }
    memset(o->dk, 0, sizeof(float) * (size_t)(rows * z->dp));
    memset(o->dv, 0, sizeof(float) * (size_t)(rows * z->dvp));
}

/* Rows whose queries may see the run's keys at a local level, in whole steps. */
static hti_range run_queries(const backward *b, const run *r) {
    int top = r->s->local - 1;
    hti_range q = with_neighbours(&b->w.z, run_own(r, top), r->s->clusters[top]);
    return (hti_range){(q.lo << top) / r->s->step * r->s->step, least(q.hi << top, r->s->length)};
}

static void near_run(grad_own *o, const backward *b, run *r) {
    const hti_shape *z = &b->w.z;
    const hti_seq *s = r->s;
    run_begin(o, b, r);
    hti_range q = run_queries(b, r);
    for (int64_t row = q.lo; row < q.hi; row += s->step) {
        int mine = row >= r->rows.lo && row < r->rows.hi;
        load_keys(&o->keys, &b->w, s, row, r->kv, row == q.lo);
        for (int64_t h = r->kv * z->group; h < (r->kv + 1) * z->group; h++) {
            load_queries(o, b, s, row, h);
            for (int l = s->local - 1; l > 0; l--) near_grad_level(o, b, r, row, h, l, mine);
            for (int64_t c0 = row; c0 < least(row + s->step, s->length); c0 += TILE)
                grad_row_tile(o, b, r, row, h, c0, mine);
        }
    }
    finish_run(o, b, r);
}

static void backward_near(grad_own *o, const backward *b, int thread, int threads) {
    hti_walk w;
    for (int slot = SLOTS * thread / threads; slot < SLOTS * (thread + 1) / threads; slot++) {
        for (int go = hti_runs_begin(&w, &b->w.t, b->w.z.kv_heads, slot, SLOTS); go;
             go = hti_runs_next(&w)) {
            run r = {.s = &w.seq, .kv = w.head, .slot = slot, .rows = hti_run_rows(&w)};
            near_run(o, b, &r);
        }
    }
}

/* ---- bias ---- */

/* dbias += the sum over slots, in their order. */
static void add_bias(const backward *b, int thread, int threads) {
    const hti_attention_call *c = b->w.call;
    int64_t heads = b->w.z.q_heads, last = 2 * b->w.z.block - 1, reach = b->w.rel.reach;
    float *dbias = c->dbias;
    for (int64_t h = thread; h < heads; h += threads) {
        for (int64_t e = -last; e <= last; e++) { /* key cluster - query cluster */
            double sum = 0;
            for (int64_t s = 0; s < SLOTS; s++) {
                const double *at = bias_slot(b, s, h);
                sum += at[-e];
                if (e != last && e != -last) continue;
                for (int64_t x = last + 1; x < reach; x++) sum += at[e < 0 ? x : -x]; /* clamped */
            }
            dbias[(e + last) * heads + h] += (float)sum;
        }
    }
}

static void clear_bias(const backward *b, int thread, int threads) {
    int64_t table = b->w.z.q_heads * 2 * b->w.rel.reach;
    for (int64_t i = thread; b->bias && i < SLOTS; i += threads)
        memset(b->bias + i * table, 0, (size_t)table * sizeof(double));
}

/* What is not wanted, and what is written past the cache. */
static void backward_streams(backward *b, const hti_attention_call *call) {
    const hti_shape *z = &b->w.z;
    if (!call->dbias) b->bias = NULL;
    b->stream_q = can_stream(&call->dq, call->rows, z->q_heads, z->d);
    b->stream_k = can_stream(&call->dk, call->rows, z->kv_heads, z->d);
    b->stream_v = can_stream(&call->dv, call->rows, z->kv_heads, z->dv);
}

static void hierarchical_backward(ht_context *ctx, const hti_attention_call *call) {
    backward b;
    backward_take(&b, call->scratch, call->desc, call, ctx->threads);
    backward_streams(&b, call);
    hti_tables_index(&b.w.t);
#pragma omp parallel num_threads(ctx->threads)
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        hti_arena c = {b.threads + b.thread_bytes * (size_t)thread, 0};
        grad_own o;
        grad_own_take(&o, &c, &b.w.t, call->length, b.w.rel.reach);
        memset(o.x, 0, sizeof *o.x);
        clear_bias(&b, thread, threads);
        work_begin(&b.w, thread, threads);
        backward_up(&o, &b, thread, threads);
        if (b.w.t.rows > 0) backward_across(&o, &b, thread, threads);
        backward_near(&o, &b, thread, threads);
        vf_stream_end();
        if (b.bias) {
#pragma omp barrier
            add_bias(&b, thread, threads);
        }
    }
}
