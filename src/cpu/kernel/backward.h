/*
 * Backward, kinds hierarchical and local, modes mean and first (fine.h has mode fine).
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
    float *part_dk, *part_dv; /* mode fine: [kv_heads][part_rows] x dp, dvp (fine.h) */
    int64_t *part_from;       /* [sequences + 1] rows of parts before a sequence */
    int64_t part_rows;
    double *bias; /* [SLOTS][q_heads][rel.reach * 2] partial sums, or NULL */
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

/* ---- parts: mode fine, see fine.h ---- */

/* Clusters of a level that a run's part has room for. */
static int64_t part_room(const hti_tables *t, int64_t clusters, int level) {
    return least(clusters, (t->chunk >> level) + 4 * t->shape.block);
}

/* Rows of one part. */
static int64_t part_rows(const hti_tables *t, int64_t length, int local, int levels) {
    int64_t rows = 0;
    for (int l = local; l < levels; l++) rows += part_room(t, hti_clusters(length, l), l);
    return rows;
}

/* Most rows of all parts of a head: a sequence of one run has no more than its pyramid. */
static int64_t most_part_rows(const hti_tables *t, int64_t rows, int64_t sequences,
                              int64_t length) {
    const hti_shape *z = &t->shape;
    if (!z->fine || t->rows == 0 || length <= t->chunk) return z->fine ? t->rows : 0;
    int64_t runs = rows / t->chunk + least(sequences, rows / t->chunk);
    return t->rows + runs * part_rows(t, length, z->local, hti_levels(length, z->block));
}

static void parts_take(backward *b, hti_arena *c, const ht_attention_desc *desc,
                       const hti_attention_call *call) {
    const hti_tables *t = &b->w.t;
    int64_t sequences = call ? call->sequences : desc->max_sequences;
    b->part_rows = most_part_rows(t, call ? call->rows : desc->max_rows, sequences,
                                  call ? call->length : desc->max_length);
    b->part_from = hti_take(c, sequences + 1, sizeof(int64_t));
    b->part_dk = hti_take(c, t->shape.kv_heads * b->part_rows * t->shape.dp, sizeof(float));
    b->part_dv = hti_take(c, t->shape.kv_heads * b->part_rows * t->shape.dvp, sizeof(float));
}

/* call NULL: measures for the plan's maxima */
static size_t backward_take(backward *b, void *base, const ht_attention_desc *desc,
                            const hti_attention_call *call, int threads) {
    hti_arena c = {base, 0}, mine = {NULL, 0};
    grad_own o;
    *b = (backward){0};
    work_take(&b->w, &c, desc, call, BACKWARD_REACH);
    const hti_shape *z = &b->w.z;
    int64_t all = call ? call->rows : desc->max_rows, rows = b->w.t.rows;
    int64_t coarse = z->fine ? 0 : z->q_heads * rows;
    b->g = hti_take(&c, coarse * z->dvp, sizeof(float));
    b->h = hti_take(&c, coarse, sizeof(float));
    b->m = hti_take(&c, coarse, sizeof(float));
    b->dq = hti_take(&c, coarse * z->dp, sizeof(float));
    b->dk = hti_take(&c, z->kv_heads * rows * z->dp, sizeof(float));
    b->dv = hti_take(&c, z->kv_heads * rows * z->dvp, sizeof(float));
    if (z->fine) parts_take(b, &c, desc, call);
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
        x->t.keep[i] = b->w.z.fine ? 1 : in && up ? query_share(&b->w.z, n, up, c0 + i) : 0;
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
    grad_job job = {
        at, enter_level(&x->t, &b->w, s, head, level, 0),         c0,  q, g, to, dq != NULL,
        in, {rows < TILE ? x->t.acc : dq, z->dp, z->dp, NULL, 0}, NULL};
    grad_run_tile(o, b, &job, dq ? bias : NULL);
    for (int i = 0; dq && rows < TILE && i < rows; i++)
        copy_row(dq + i * z->dp, x->t.acc + i * z->dp, z->dp, z->dp);
}

/* ---- runs ---- */

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

/* Gradients of the keys `own` of a pyramid level start from their parents' shares. */
static void begin_keys(const backward *b, const hti_seq *s, int l, int64_t kv, hti_range own) {
    const hti_shape *z = &b->w.z;
    const hti_tables *t = &b->w.t;
    int64_t key = pyramid_row(t, kv, s, l, own.lo);
    float *dk = b->dk + key * z->dp, *dv = b->dv + key * z->dvp;
    memset(dk, 0, sizeof(float) * (size_t)((own.hi - own.lo) * z->dp));
    memset(dv, 0, sizeof(float) * (size_t)((own.hi - own.lo) * z->dvp));
    if (l + 1 >= s->levels) return;
    const float *n = t->key_n + s->count_at[l], *parents = t->key_n + s->count_at[l + 1];
    int64_t up = pyramid_row(t, kv, s, l + 1, 0);
    spread(dk, b->dk + up * z->dp, n, parents, own, z->dp);
    spread(dv, b->dv + up * z->dvp, n, parents, own, z->dvp);
}
