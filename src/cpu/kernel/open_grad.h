/*
 * Opening, part 3: backward. One key head after the other, and of it one query head; its rows go
 * by in windows of whole runs (chunks of a sequence):
 *
 *     rows    the choice again, tile by tile; dq. What a run's rows met adds to gradients of keys
 *             in a part of the run's own (fine.h); what they gathered is written down: entries of
 *             up to 8 neighbouring rows of the pyramid with their weights
 *     sort    entries by the group of 8 they lie in, those of a group in the order of rows; every
 *             thread takes its share of the groups and adds q and dz to their gradients
 *     reduce  behind all windows and heads, from the top level down: += the parts of all runs, and
 *             the parents' shares; level 0 goes to dk and dv
 *
 * Every row of the pyramid has one owner at a time, and its sums one order.
 */

/* Rows at ... at + count - 1 of the pyramid and row `row` of the window: weights p [count] and
 * ds [count] from `weights` on. */
typedef struct open_entry {
    uint32_t at, weights, row, count;
} open_entry;

/* One call. */
typedef struct open_grad {
    opening g;
    backward b;        /* pyramid and its gradients (of one key head), parts, delta, sums of bias */
    int64_t window;    /* rows, at most */
    float *q, *dz;     /* [window] x dp, dvp */
    float *weights;    /* [window][room][2] */
    open_entry *entry; /* [window][room]: a run's lie where its first row's begin */
    int64_t *run_row, *run_entries; /* [window]: first row and entries of each run */
    uint32_t *start;                /* [groups + 1] */
    uint32_t *sorted;               /* [window][room] numbers of entries */
} open_grad;

/* A thread's own memory. */
typedef struct open_own {
    grad_tile *x;
    chooser o;
    float *turned, *dq;    /* [TILE] x dp */
    float *gv;             /* [room] */
    float *near;           /* [ACROSS_ITEM] x dp: gradients of turned keys */
    float *bias;           /* [2 * reach]: dbias of one tile */
    int64_t entries, used; /* of the run at hand: entries, weights */
} open_own;

static void open_own_take(open_own *o, hti_arena *c, const opening *g) {
    const hti_shape *z = &g->w.z;
    o->x = hti_take(c, 1, sizeof(grad_tile));
    chooser_take(&o->o, c, g);
    o->turned = hti_take(c, TILE * z->dp, sizeof(float));
    o->dq = hti_take(c, TILE * z->dp, sizeof(float));
    o->gv = hti_take(c, g->room, sizeof(float));
    o->near = hti_take(c, ACROSS_ITEM * z->dp, sizeof(float));
    o->bias = hti_take(c, 2 * g->w.rel.reach, sizeof(float));
}

/* Rows of a window: some runs for every thread, but no more memory than some pyramids have. */
static int64_t window_of(const opening *g, int64_t rows) {
    const hti_shape *z = &g->w.z;
    int64_t chunk = g->w.t.chunk, window = most(8 * chunk, rows / 8);
    int64_t each = g->room * (int64_t)(sizeof(open_entry) + 3 * sizeof(float));
    while (window > chunk && window * each > 16 * rows * (z->dp + z->dvp)) window /= 2;
    return least(most(window, chunk), rows);
}

/* call NULL: measures for the plan's maxima */
static size_t open_grad_take(open_grad *o, void *base, const ht_attention_desc *desc,
                             const hti_attention_call *call, int threads) {
    hti_arena c = {base, 0}, mine = {NULL, 0};
    open_own own;
    backward *b = &o->b;
    *o = (open_grad){0};
    opening_take(&o->g, &c, desc, call);
    b->w = o->g.w;
    const hti_shape *z = &b->w.z;
    int64_t all = call ? call->rows : desc->max_rows, rows = b->w.t.rows;
    int64_t sequences = call ? call->sequences : desc->max_sequences;
    b->dk = hti_take(&c, rows * z->dp, sizeof(float));
    b->dv = hti_take(&c, rows * z->dvp, sizeof(float));
    b->part_rows = most_part_rows(&b->w.t, all, sequences, call ? call->length : desc->max_length);
    b->part_from = hti_take(&c, sequences + 1, sizeof(int64_t));
    b->part_dk = hti_take(&c, b->part_rows * z->dp, sizeof(float));
    b->part_dv = hti_take(&c, b->part_rows * z->dvp, sizeof(float));
    b->delta = hti_take(&c, z->q_heads * all, sizeof(float));
    if (desc->has_bias)
        b->bias = hti_take(&c, SLOTS * z->q_heads * 2 * b->w.rel.reach, sizeof(double));
    o->window = window_of(&o->g, all);
    int64_t entries = o->window * o->g.room;
    o->q = hti_take(&c, o->window * z->dp, sizeof(float));
    o->dz = hti_take(&c, o->window * z->dvp, sizeof(float));
    o->weights = hti_take(&c, 2 * entries, sizeof(float));
    o->entry = hti_take(&c, entries, sizeof(open_entry));
    o->run_row = hti_take(&c, o->window, sizeof(int64_t));
    o->run_entries = hti_take(&c, o->window, sizeof(int64_t));
    o->start = hti_take(&c, rows / HTI_GROUP + 2, sizeof(uint32_t));
    o->sorted = hti_take(&c, entries, sizeof(uint32_t));
    open_own_take(&own, &mine, &o->g);
    b->thread_bytes = (mine.used + 4095) / 4096 * 4096;
    b->threads = hti_take(&c, threads, b->thread_bytes);
    return c.used;
}

/* ---- rows: what is met ---- */

/* q (as choose_begin left it) and dz of the tile's rows go to the window from `row` on. */
static void open_grad_lanes(open_own *o, const open_grad *f, const hti_seq *s, int64_t head,
                            int64_t c0, int64_t row) {
    const hti_shape *z = &f->g.w.z;
    const hti_attention_call *c = f->g.w.call;
    grad_tile *x = o->x;
    view dz = view_of(c, &c->dout, s->index, head);
    const float *delta = f->b.delta + head * c->rows + s->start + c0, *g[TILE];
    x->t.live = 0;
    for (int i = 0; i < TILE; i++) {
        int in = i < x->t.rows;
        float *to = f->dz + (row + i) * z->dvp;
        x->m[i] = in ? row_m(&f->b, s, head, c0 + i) : INFINITY;
        x->h[i] = in ? delta[i] : 0;
        x->t.keep[i] = 1;
        g[i] = NULL;
        if (in) copy_row(f->q + (row + i) * z->dp, o->o.rows + i * z->dp, z->dp, z->dp);
        if (in) zero_row(to, z->dvp);
        if (x->m[i] == INFINITY) continue;
        x->t.live |= 1u << i;
        copy_row(to, dz.data + (c0 + i) * dz.stride, z->dv, z->dvp);
        g[i] = to;
    }
    transpose_rows(x->g, g, z->dv, 1.0f);
}

/* dq (in t.acc) and the run's part take in what is met at a level. */
static void met_grad(open_own *o, const open_grad *f, const hti_seq *s, const run *r, int l,
                     int64_t c0, int64_t row, const relative *rel) {
    const hti_shape *z = &f->g.w.z;
    grad_tile *x = o->x;
    keys at = pyramid_keys(&f->g.w, s, 0, l);
    grad_keys to = part_keys(&f->b, s, 0, r->rows.lo / f->g.w.t.chunk, l);
    rows_of k = {at.k, z->dp, -1};
    rows_in in = {x->t.acc, z->dp, 0};
    rows_out out = {x->t.acc, z->dp, z->dp, NULL, 0};
    hti_segs pass;
    for (int64_t done = 0; done < o->o.segs.keys;) {
        vf top[TILE_VECTORS];
        int64_t before = done;
        done = next_pass(&pass, &o->o.segs, done, -1);
        met_pass(&x->t, top, &o->o, before, pass.keys);
        pass_products(x, &pass, &at, z);
        if (x->t.drop.threshold) draw_factors(x->t.factor, &x->t.drop, &pass, c0);
        grad_of_scores(x, &pass, x->t.drop.threshold != 0);
        grad_of_keys(x, &pass, z, f->q + row * z->dp, f->dz + row * z->dvp, &to);
        if (f->b.bias) grad_of_bias(o->bias + f->g.w.rel.reach, x, &pass, c0, rel);
        values(&x->t, x->ds, &pass, &k, z->dw, &in, &out);
    }
}

/* ---- rows: what is gathered ---- */

/* Writes down what row `row` of the window gathered: neighbours in one group are one entry. */
static void write_entries(open_own *o, const open_grad *f, const uint32_t *at, const float *p,
                          const float *ds, int64_t n, int64_t row, int64_t base) {
    open_entry *to = f->entry + base * f->g.room;
    int64_t w = 2 * base * f->g.room;
    for (int64_t j = 0; j < n;) {
        int64_t e = j + 1;
        while (e < n && at[e] == at[e - 1] + 1 && at[e] % HTI_GROUP != 0) e++;
        float *weights = f->weights + w + o->used;
        to[o->entries++] =
            (open_entry){at[j], (uint32_t)(w + o->used), (uint32_t)row, (uint32_t)(e - j)};
        for (int64_t i = j; i < e; i++) {
            weights[i - j] = p[i];
            weights[e - j + i - j] = ds[i];
        }
        o->used += 2 * (e - j);
        j = e;
    }
}

/* dbias of what row c0 + i gathered. */
static void gathered_bias(open_own *o, const open_grad *f, const hti_seq *s, int i, int64_t c0,
                          const float *ds) {
    const uint32_t *at = o->o.at + i * f->g.room;
    int64_t end = 2 * f->g.w.z.block - 1;
    float *bias = o->bias + f->g.w.rel.reach;
    int l = s->levels - 1;
    for (int64_t j = 0; j < o->o.gathered[i]; j++) {
        while ((int64_t)at[j] >= s->row_at[l] + s->clusters[l] || (int64_t)at[j] < s->row_at[l])
            l--;
        int64_t x = ((c0 + i) >> l) - ((int64_t)at[j] - s->row_at[l]);
        bias[x > end ? end : x < -end ? -end : x] += ds[j];
    }
}

/* p = 2^(s - m) times dropout's factor, in place of s; ds = p (r gv - h), in place of gv. */
static void gathered_weights(float *p, float *ds, int64_t n, float m, float h,
                             const float *factor) {
    vf vm = vf_set1(m), vh = vf_set1(h);
    for (int64_t j = 0; j < n; j += VW) {
        vf y = exp2_v(vf_sub(vf_load(p + j), vm)), gv = vf_load(ds + j);
        vf r = factor ? vf_load(factor + j) : vf_set1(1.0f);
        vf_store(p + j, factor ? vf_mul(y, r) : y);
        vf_store(ds + j, vf_mul(y, vf_sub(factor ? vf_mul(gv, r) : gv, vh)));
    }
}

/* base: row of the window where the run begins, row: where the tile does */
static void gathered_grad(open_own *o, const open_grad *f, const hti_seq *s, int64_t c0,
                          int64_t row, int64_t base) {
    const opening *g = &f->g;
    const hti_shape *z = &g->w.z;
    grad_tile *x = o->x;
    for (int i = 0; i < x->t.rows; i++) {
        int64_t n = o->o.gathered[i], from = i * g->room;
        if (n == 0 || !(x->t.live >> i & 1)) continue;
        const uint32_t *at = o->o.at + from;
        float *p = o->o.logit + from;
        dots_at(o->gv, f->dz + (row + i) * z->dvp, g->w.v, z->dvp, z->dvw, at, n);
        gathered_weights(p, o->gv, n, x->m[i], x->h[i], o->o.factor ? o->o.factor + from : NULL);
        gather_rows(x->t.acc + i * z->dp, 1.0f, o->gv, at, n, g->w.k, z->dp, z->dw);
        if (f->b.bias) gathered_bias(o, f, s, i, c0, o->gv);
        write_entries(o, f, at, p, o->gv, n, row + i, base);
    }
}

/* ---- rows: a tile, a run ---- */

/* Level 0, and dq to the caller. */
static void near_grad(open_own *o, const open_grad *f, const hti_seq *s, const run *r, int64_t head,
                      int64_t c0, int64_t row) {
    const opening *g = &f->g;
    const hti_shape *z = &g->w.z;
    const hti_attention_call *c = g->w.call;
    tile *t = &o->x->t;
    keys at = near_keys(g, s);
    size_t bytes = sizeof(float) * (size_t)(TILE * z->dp);
    if (g->turned) memcpy(o->dq, t->acc, bytes), memset(t->acc, 0, bytes);
    near_queries(t, f->q + row * z->dp, o->turned, g, c0);
    hti_segs_make(&o->o.segs, z, s->length, 0, 0, c0, t->rows);
    grad_job job = {.at = &at,
                    .rel = enter_level(t, &g->w, s, head, 0, 0),
                    .c0 = c0,
                    .q = g->turned ? o->turned : f->q + row * z->dp,
                    .g = f->dz + row * z->dvp,
                    .to = part_keys(&f->b, s, 0, r->rows.lo / g->w.t.chunk, 0),
                    .want_dq = 1,
                    .in = {t->acc, z->dp, 0},
                    .out = {t->acc, z->dp, z->dp, NULL, 0},
                    .bias = f->b.bias ? o->bias + g->w.rel.reach : NULL};
    grad_attend(o->x, &o->o.segs, z, &job);
    view dq = view_of(c, &c->dq, s->index, head);
    for (int i = 0; i < t->rows; i++) {
        float *x = t->acc + i * z->dp;
        if (g->turned) turn_row(x, x, &g->w.turn, c0 + i, -1);
        put_row(dq.data + (c0 + i) * dq.stride, x, g->turned ? o->dq + i * z->dp : NULL, 1,
                (float)c->desc->scale, z->d, f->b.stream_q);
    }
}

static void open_grad_tile(open_own *o, const open_grad *f, const run *r, int64_t head, int64_t c0,
                           int64_t base) {
    const opening *g = &f->g;
    const hti_seq *s = r->s;
    int64_t row = base + c0 - r->rows.lo, reach = g->w.rel.reach;
    tile *t = &o->x->t;
    t->rows = (int)least(TILE, s->length - c0);
    make_delta(o->x, &f->b, s, (hti_range){c0, c0 + t->rows}, head);
    choose_begin(&o->o, t, g, s, head, c0);
    open_grad_lanes(o, f, s, head, c0, row);
    for (int i = 0; i < TILE; i++) zero_row(t->acc + i * g->w.z.dp, g->w.z.dp);
    if (f->b.bias) memset(o->bias, 0, sizeof(float) * (size_t)(2 * reach));
    for (int l = s->levels - 1; l > 0; l--) {
        relative rel = choose_level(&o->o, t, g, s, head, l, c0);
        met_grad(o, f, s, r, l, c0, row, &rel);
    }
    leaf_logits(&o->o, g, s, head, c0);
    gathered_grad(o, f, s, c0, row, base);
    near_grad(o, f, s, r, head, c0, row);
    double *bias = bias_slot(&f->b, r->slot, head);
    for (int64_t x = -reach; bias && x < reach; x++) bias[x] += o->bias[reach + x];
}

/* Run number `number` of a window, from row `base` of it on. */
static void open_run(open_own *o, const open_grad *f, const run *r, int64_t head, int64_t number,
                     int64_t base) {
    o->entries = o->used = 0;
    if (head % f->g.w.z.group == 0) part_clear(&f->b, r);
    for (int64_t c0 = r->rows.lo; c0 < r->rows.hi; c0 += TILE)
        open_grad_tile(o, f, r, head, c0, base);
    f->run_row[number] = base;
    f->run_entries[number] = o->entries;
}

/* ---- sort ---- */

/* Numbers of entries by group: how many of each, groups of this thread's share of all. */
static void count_entries(const open_grad *f, int64_t runs, int thread, int threads) {
    int64_t groups = f->g.w.t.rows / HTI_GROUP + 1;
    uint32_t lo = (uint32_t)(groups * thread / threads);
    uint32_t hi = (uint32_t)(groups * (thread + 1) / threads);
    memset(f->start + lo, 0, sizeof(uint32_t) * (hi - lo));
    for (int64_t n = 0; n < runs; n++) {
        const open_entry *e = f->entry + f->run_row[n] * f->g.room;
        for (const open_entry *end = e + f->run_entries[n]; e < end; e++) {
            uint32_t group = e->at / HTI_GROUP;
            if (group - lo < hi - lo) f->start[group]++;
        }
    }
}

/* Where each group begins; returns the number of all entries. One thread. */
static void start_groups(const open_grad *f) {
    int64_t groups = f->g.w.t.rows / HTI_GROUP + 1;
    uint32_t all = 0;
    for (int64_t i = 0; i < groups; i++) {
        uint32_t here = f->start[i];
        f->start[i] = all;
        all += here;
    }
    f->start[groups] = all;
}

/* The first group that begins at or behind entry `e` of all. */
static uint32_t group_from(const open_grad *f, int64_t e) {
    int64_t lo = 0, hi = f->g.w.t.rows / HTI_GROUP + 1;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if ((int64_t)f->start[mid] < e) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return (uint32_t)lo;
}

/* Entries of the groups [lo, hi) in order; what was where a group begins becomes its end. */
static void place_entries(const open_grad *f, int64_t runs, uint32_t lo, uint32_t hi) {
    for (int64_t n = 0; n < runs; n++) {
        int64_t first = f->run_row[n] * f->g.room, end = first + f->run_entries[n];
        for (int64_t e = first; e < end; e++) {
            uint32_t group = f->entry[e].at / HTI_GROUP;
            if (group - lo < hi - lo) f->sorted[f->start[group]++] = (uint32_t)e;
        }
    }
}

/* NV vectors: n rows of to += w[j] x */
INLINE void add_block(const int NV, float *to, const float *x, const float *w, int64_t n,
                      int64_t stride) {
    vf y[VALUE_VECTORS];
    UNROLL for (int v = 0; v < NV; v++) y[v] = vf_load(x + v * VW);
    for (int64_t j = 0; j < n; j++, to += stride) {
        vf p = vf_set1(w[j]);
        UNROLL for (int v = 0; v < NV; v++) {
            vf_store(to + v * VW, vf_fma(p, y[v], vf_load(to + v * VW)));
        }
    }
}

static void add_weighed(float *to, const float *x, const float *w, int64_t n, int64_t stride,
                        int64_t width) {
    int64_t col = 0;
    for (; col + VALUE_VECTORS * VW <= width; col += VALUE_VECTORS * VW)
        add_block(VALUE_VECTORS, to + col, x + col, w, n, stride);
    for (; col < width; col += VW) add_block(1, to + col, x + col, w, n, stride);
}

/* What the rows of a window gathered joins the gradients of the pyramid. Ends in a barrier. */
static void add_entries(const open_grad *f, int64_t runs, int thread, int threads) {
    const hti_shape *z = &f->g.w.z;
#pragma omp barrier
    count_entries(f, runs, thread, threads);
#pragma omp barrier
    if (thread == 0) start_groups(f);
#pragma omp barrier
    int64_t groups = f->g.w.t.rows / HTI_GROUP + 1, all = f->start[groups];
    uint32_t lo = group_from(f, all * thread / threads);
    uint32_t hi = group_from(f, all * (thread + 1) / threads);
    uint32_t from = f->start[lo], to = f->start[hi];
#pragma omp barrier
    place_entries(f, runs, lo, hi);
    for (uint32_t i = from; i < to; i++) {
        const open_entry *e = f->entry + f->sorted[i];
        const float *p = f->weights + e->weights;
        add_weighed(f->b.dk + (int64_t)e->at * z->dp, f->q + (int64_t)e->row * z->dp, p + e->count,
                    e->count, z->dp, z->dw);
        add_weighed(f->b.dv + (int64_t)e->at * z->dvp, f->dz + (int64_t)e->row * z->dvp, p,
                    e->count, z->dvp, z->dvw);
    }
#pragma omp barrier
}

/* ---- windows ---- */

/* All rows of one query head. Runs go to threads by the slot that their sums of the bias have. */
static void open_head(open_own *o, const open_grad *f, int64_t head, int thread, int threads) {
    hti_walk w;
    int64_t number = 0;
    int go = hti_runs_begin(&w, &f->g.w.t, 1, 0, 1);
    while (go) {
        int64_t runs = 0, rows = 0;
        for (; go; go = hti_runs_next(&w), number++) {
            hti_range own = hti_run_rows(&w);
            if (rows + own.hi - own.lo > f->window) break;
            run r = {.s = &w.seq, .slot = number % SLOTS, .rows = own};
            if (r.slot % threads == thread) open_run(o, f, &r, head, runs, rows);
            runs++;
            rows += own.hi - own.lo;
        }
        add_entries(f, runs, thread, threads);
    }
}

/* ---- reduce ---- */

/* Clusters `own` of a level >= 1: the parts and the parents' shares join what was gathered. */
static void open_reduce(const backward *b, const hti_seq *s, int l, hti_range own) {
    const hti_shape *z = &b->w.z;
    const hti_tables *t = &b->w.t;
    int64_t key = pyramid_row(t, 0, s, l, own.lo);
    float *dk = b->dk + key * z->dp, *dv = b->dv + key * z->dvp;
    add_parts(dk, dv, b, s, l, 0, own);
    if (l + 1 >= s->levels) return;
    const float *n = t->key_n + s->count_at[l], *parents = t->key_n + s->count_at[l + 1];
    int64_t up = pyramid_row(t, 0, s, l + 1, 0);
    spread(dk, b->dk + up * z->dp, n, parents, own, z->dp);
    spread(dv, b->dv + up * z->dvp, n, parents, own, z->dvp);
}

/* Rows `own` of level 0, to dk and dv of key head kv. */
static void open_finish(open_own *o, const open_grad *f, const hti_seq *s, int64_t kv,
                        hti_range own) {
    const backward *b = &f->b;
    const hti_shape *z = &b->w.z;
    const hti_attention_call *c = b->w.call;
    int64_t key = pyramid_row(&b->w.t, 0, s, 0, own.lo);
    float *dk = b->dk + key * z->dp, *dv = b->dv + key * z->dvp;
    if (f->g.turned) memset(o->near, 0, sizeof(float) * (size_t)((own.hi - own.lo) * z->dp));
    add_parts(f->g.turned ? o->near : dk, dv, b, s, 0, 0, own);
    int up = s->levels > 1;
    const float *n = b->w.t.key_n + s->count_at[0], *m = up ? b->w.t.key_n + s->count_at[1] : NULL;
    const float *pk = up ? b->dk + pyramid_row(&b->w.t, 0, s, 1, 0) * z->dp : NULL;
    const float *pv = up ? b->dv + pyramid_row(&b->w.t, 0, s, 1, 0) * z->dvp : NULL;
    view k = view_of(c, &c->dk, s->index, kv), v = view_of(c, &c->dv, s->index, kv);
    for (int64_t i = own.lo; i < own.hi; i++) {
        float *x = dk + (i - own.lo) * z->dp, *y = dv + (i - own.lo) * z->dvp;
        float *turned = o->near + (i - own.lo) * z->dp;
        float share = up && n[i] > 0 ? 1 / m[i >> 1] : 0;
        if (f->g.turned) turn_row(turned, turned, &b->w.turn, i, -1);
        if (f->g.turned) add_rows(x, turned, z->dp);
        if (n[i] == 0) zero_row(x, z->dp), zero_row(y, z->dvp);
        put_row(k.data + i * k.stride, x, up && n[i] > 0 ? pk + (i >> 1) * z->dp : NULL, share,
                (float)fabs(c->desc->scale), z->d, b->stream_k);
        put_row(v.data + i * v.stride, y, up && n[i] > 0 ? pv + (i >> 1) * z->dvp : NULL, share,
                1.0f, z->dv, b->stream_v);
    }
}

/* From the top level down. Ends in a barrier. */
static void open_reduce_all(open_own *o, const open_grad *f, int64_t kv, int thread, int threads) {
    const hti_attention_call *c = f->g.w.call;
    hti_seq s;
    for (int l = hti_levels(c->length, f->g.w.z.block) - 1; l >= 0; l--) {
        int number = 0;
        for (int64_t i = 0; i < c->sequences; i++) {
            if (hti_call_length(c, i) == 0) continue;
            hti_seq_make(&s, &f->g.w.t, i);
            for (int64_t lo = 0; l < s.levels && lo < s.clusters[l]; lo += ACROSS_ITEM) {
                hti_range own = {lo, least(lo + ACROSS_ITEM, s.clusters[l])};
                number = number + 1 == threads ? 0 : number + 1;
                if (number != thread) continue;
                if (l > 0) {
                    open_reduce(&f->b, &s, l, own);
                } else {
                    open_finish(o, f, &s, kv, own);
                }
            }
        }
#pragma omp barrier
    }
}

static void clear_share(float *x, int64_t floats, int thread, int threads) {
    int64_t lo = floats * thread / threads, hi = floats * (thread + 1) / threads;
    memset(x + lo, 0, sizeof(float) * (size_t)(hi - lo));
}

static void opened_backward(ht_context *ctx, const hti_attention_call *call) {
    open_grad f;
    open_grad_take(&f, call->scratch, call->desc, call, ctx->threads);
    const hti_shape *z = &f.g.w.z;
    backward_streams(&f.b, call);
    hti_tables_index(&f.g.w.t);
    parts_index(&f.b);
#pragma omp parallel num_threads(threads_of(ctx, &f.g.w))
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        hti_arena c = {f.b.threads + f.b.thread_bytes * (size_t)thread, 0};
        open_own o;
        open_own_take(&o, &c, &f.g);
        memset(o.x, 0, sizeof *o.x);
        clear_bias(&f.b, thread, threads);
        work_begin(&f.g.w, thread, threads);
        for (int64_t kv = 0; kv < z->kv_heads; kv++) {
            clear_share(f.b.dk, f.g.w.t.rows * z->dp, thread, threads);
            clear_share(f.b.dv, f.g.w.t.rows * z->dvp, thread, threads);
            open_up(&f.g, kv, thread, threads);
            for (int64_t h = kv * z->group; h < (kv + 1) * z->group; h++)
                open_head(&o, &f, h, thread, threads);
            open_reduce_all(&o, &f, kv, thread, threads);
        }
        vf_stream_end();
        if (f.b.bias) add_bias(&f.b, thread, threads);
    }
}
