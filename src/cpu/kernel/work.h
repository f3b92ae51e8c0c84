/*
 * What forward and backward share: a call's memory, the pyramid of keys, values and queries, and
 * the rings in which a thread holds the keys around its step.
 */

/* Multiplications below which threads cost more than they save. */
#define WORK_ALONE 2e5

/* Heads (of all sequences) per thread from which threads need not share one. */
enum { COLUMNS_EACH = 4 };

/* Pyramids: [heads][tables.rows] x dp or dvp, levels >= local. */
typedef struct work {
    const hti_attention_call *call;
    hti_tables t;
    hti_shape z;
    relatives rel;
    turns turn;
    float *k, *v, *q;
} work;

/* A thread's keys: rings of the local levels. */
typedef struct rings {
    float *k, *v;   /* x dp, dvp */
    int64_t packed; /* clusters of level local-1 that are in the rings, counted from 0 */
} rings;

/* call NULL: measures for the plan's maxima */
static void work_take(work *w, hti_arena *c, const ht_attention_desc *desc,
                      const hti_attention_call *call, int64_t reach) {
    *w = (work){.call = call};
    hti_tables_take(&w->t, c, desc, call, VW, reach);
    w->z = w->t.shape;
    relatives_take(&w->rel, c, desc, &w->z);
    turns_take(&w->turn, c, desc, call ? call->length : desc->max_length);
    w->k = hti_take(c, w->z.kv_heads * w->t.rows * w->z.dp, sizeof(float));
    w->v = hti_take(c, w->z.kv_heads * w->t.rows * w->z.dvp, sizeof(float));
    w->q = hti_take(c, w->z.fine ? 0 : w->z.q_heads * w->t.rows * w->z.dp, sizeof(float));
}

static void rings_take(rings *r, hti_arena *c, const hti_shape *z, int64_t length) {
    int64_t rows = hti_ring_rows(z, length);
    r->k = hti_take(c, rows * z->dp, sizeof(float));
    r->v = hti_take(c, rows * z->dvp, sizeof(float));
}

/* A tile turns to a level of a query head: what its scores get, and what dropout draws. shift: a
 * lane's cluster is its row >> shift. */
static relative enter_level(tile *t, const work *w, const hti_seq *s, int64_t head, int level,
                            int shift) {
    const hti_attention_call *c = w->call;
    double p = c->desc->dropout;
    t->drop.threshold = hti_dropout_threshold(p);
    if (t->drop.threshold) {
        uint32_t index = (uint32_t)(s->index * w->z.q_heads + head);
        t->drop = (dropping){c->seed, c->offset,           index, hti_dropout_threshold(p),
                             level,   (float)(1 / (1 - p))};
    }
    return relative_of(&w->rel, head, shift);
}

/* Threads worth waking: a small call is done before they meet. */
static int threads_of(const ht_context *ctx, const work *w) {
    const hti_shape *z = &w->z;
    double seen = (double)(w->call->desc->kind == HT_FULL ? w->call->length : 4 * z->block);
    double products = (double)(w->call->rows * z->q_heads) * seen;
    return products * (double)(z->d + z->dv) < WORK_ALONE ? 1 : ctx->threads;
}

/* Tables that every thread waits for; ends in a barrier. */
static void work_begin(const work *w, int thread, int threads) {
    relatives_fill(&w->rel, w->call, &w->z, thread, threads);
    turns_begin(&w->turn, thread, threads);
    hti_tables_count(&w->t, thread, threads);
    if (!w->turn.table) return;
    turns_fill(&w->turn, thread, threads);
#pragma omp barrier
}

/* Row of a head's pyramid. */
INLINE int64_t pyramid_row(const hti_tables *t, int64_t head, const hti_seq *s, int level,
                           int64_t cluster) {
    return head * t->rows + s->row_at[level] + cluster;
}

/* ---- up ---- */

/* Clusters r of level `local` from the rows, for one tensor. */
static void up_from_rows(float *dst, view src, const hti_seq *s, const float *counts, hti_range r,
                         int64_t w, int64_t wp, int first) {
    const float *valid = counts + s->count_at[0], *n = counts + s->count_at[s->local];
    for (int64_t c = r.lo; c < r.hi; c++, dst += wp) {
        int64_t row0 = c << s->local, row1 = least((c + 1) << s->local, s->length);
        if (first) {
            first_row(dst, src, valid, row0, row1, w, wp);
        } else {
            mean_rows(dst, src, valid, row0, row1, n[c], w, wp);
        }
    }
}

/* Clusters r of level l >= local of one tensor; x: the head's pyramid. */
static void up_level(float *x, const hti_seq *s, const float *counts, view src, int l, hti_range r,
                     int64_t w, int64_t wp, int first) {
    if (l == s->local) {
        up_from_rows(x + (s->row_at[l] + r.lo) * wp, src, s, counts, r, w, wp, first);
    } else {
        coarsen(x + s->row_at[l] * wp, -1, x + s->row_at[l - 1] * wp, -1,
                counts + s->count_at[l - 1], r, s->clusters[l - 1], wp, first);
    }
}

/* One level of keys, values and, but for mode fine, queries of key head h. */
static void up_all(const work *w, const hti_seq *s, int64_t h, int l, hti_range r) {
    const hti_shape *p = &w->z;
    const hti_attention_call *c = w->call;
    int64_t rows = w->t.rows;
    up_level(w->k + h * rows * p->dp, s, w->t.key_n, view_of(c, &c->k, s->index, h), l, r, p->d,
             p->dp, 0);
    up_level(w->v + h * rows * p->dvp, s, w->t.key_n, view_of(c, &c->v, s->index, h), l, r, p->dv,
             p->dvp, 0);
    for (int64_t g = h * p->group; g < (h + 1) * p->group && !p->fine; g++)
        up_level(w->q + g * rows * p->dp, s, w->t.query_n, view_of(c, &c->q, s->index, g), l, r,
                 p->d, p->dp, p->first);
}

static int is_shared(const hti_tables *t, int64_t sequence) {
    return t->row_from[sequence] < t->row_from[sequence + 1];
}

/* Levels above `local` whose clusters lie inside the step, of key head h and its queries. */
static void up_step(const work *w, const hti_seq *s, int64_t row, int64_t h) {
    for (int l = s->local + 1; l < s->levels && (int64_t)1 << l <= s->step; l++)
        up_all(w, s, h, l, hti_step_own(s, row, l));
}

/* Level `local` from the rows, and what a step makes of it. */
static void up_rows(const work *w, int thread, int threads) {
    hti_walk at;
    for (int go = hti_walk_begin(&at, &w->t, w->z.kv_heads, thread, threads); go;
         go = hti_walk_next(&at)) {
        if (at.seq.local == at.seq.levels) continue;
        up_all(w, &at.seq, at.head, at.seq.local, hti_step_own(&at.seq, at.row, at.seq.local));
        up_step(w, &at.seq, at.row, at.head);
    }
#pragma omp barrier
}

/* Levels whose clusters are longer than a step. */
static void up_top(const work *w, int thread, int threads) {
    int64_t heads = w->z.kv_heads;
    hti_seq s;
    for (int64_t i = thread; i < w->call->sequences * heads; i += threads) {
        if (!is_shared(&w->t, i / heads)) continue;
        hti_seq_make(&s, &w->t, i / heads);
        for (int l = s.local + 1; l < s.levels; l++)
            if ((int64_t)1 << l > s.step)
                up_all(w, &s, i % heads, l, (hti_range){0, s.clusters[l]});
    }
#pragma omp barrier
}

/* Keys of a level of the pyramid. */
static keys pyramid_keys(const work *w, const hti_seq *s, int64_t kv_head, int level) {
    const hti_shape *p = &w->z;
    int64_t row = pyramid_row(&w->t, kv_head, s, level, 0);
    return (keys){w->k + row * p->dp, w->v + row * p->dvp, w->t.key_log + s->count_at[level], -1};
}

/* ---- rings ---- */

/* Brings the rings up to the keys that the step needs, a few top clusters at a time: what the
 * coarse levels are made of may be overwritten as soon as they are made. */
static void load_keys(rings *o, const work *w, const hti_seq *s, int64_t row, int64_t h,
                      int fresh) {
    const hti_shape *z = &w->z;
    const hti_attention_call *c = w->call;
    view k = view_of(c, &c->k, s->index, h), v = view_of(c, &c->v, s->index, h);
    hti_range want = hti_step_keys(z, s, row);
    int top = s->local - 1;
    if (fresh) o->packed = want.lo;
    while (o->packed < want.hi) {
        int64_t next = least(o->packed + 4, want.hi);
        const float *n = w->t.key_n + s->count_at[0];
        int64_t row0 = o->packed << top, row1 = least(next << top, s->length);
        pack(o->k, s->ring_mask[0], k, n, row0, row1, z->d, z->dp);
        pack(o->v, s->ring_mask[0], v, n, row0, row1, z->dv, z->dvp);
        for (int l = 1; l <= top; l++) {
            hti_range r = {o->packed << (top - l), least(next << (top - l), s->clusters[l])};
            n = w->t.key_n + s->count_at[l - 1];
            coarsen(o->k + s->ring_at[l] * z->dp, s->ring_mask[l], o->k + s->ring_at[l - 1] * z->dp,
                    s->ring_mask[l - 1], n, r, s->clusters[l - 1], z->dp, 0);
            coarsen(o->v + s->ring_at[l] * z->dvp, s->ring_mask[l],
                    o->v + s->ring_at[l - 1] * z->dvp, s->ring_mask[l - 1], n, r,
                    s->clusters[l - 1], z->dvp, 0);
        }
        for (int64_t i = row0; w->turn.table && i < row1;
             i++) { /* last: coarse keys are means of plain ones */
            float *x = o->k + (i & s->ring_mask[0]) * z->dp;
            turn_row(x, x, &w->turn, i, 1);
        }
        o->packed = next;
    }
}

static keys ring_keys(const rings *o, const work *w, const hti_seq *s, int level) {
    const hti_shape *z = &w->z;
    return (keys){o->k + s->ring_at[level] * z->dp, o->v + s->ring_at[level] * z->dvp,
                  w->t.key_log + s->count_at[level], s->ring_mask[level]};
}

static struct feed_rows feed_of(view x, int64_t from, int64_t rows, int64_t w) {
    return (struct feed_rows){(const char *)(x.data + from * x.stride),
                              x.stride * (int64_t)sizeof(float), w * (int64_t)sizeof(float), rows};
}

/* ---- rows of level 0 ---- */

/* Query rows c0 ..., transposed and scaled; turned first where `turned` ([TILE] x dp) is given. */
static void row_queries(float *to, const work *w, const hti_seq *s, int64_t head, int64_t c0,
                        int rows, float *turned) {
    view q = view_of(w->call, &w->call->q, s->index, head);
    const float *n = w->t.query_n + s->count_at[0] + c0, *row[TILE];
    for (int i = 0; i < TILE; i++) {
        row[i] = i < rows && n[i] > 0 ? q.data + (c0 + i) * q.stride : NULL;
        if (!row[i] || !turned) continue;
        turn_row(turned + i * w->z.dp, row[i], &w->turn, c0 + i, 1);
        row[i] = turned + i * w->z.dp;
    }
    transpose_rows(to, row, w->z.d, w->rel.scale);
}

/* Writes lse of rows c0 ..., given in units of log 2; masked rows give -inf and z = 0. */
static void put_lse(const work *w, const hti_seq *s, int64_t head, int64_t c0, int rows,
                    const float *lse) {
    const hti_attention_call *c = w->call;
    const float *n = w->t.query_n + s->count_at[0] + c0;
    float *saved = c->saved ? (float *)c->saved + head * c->rows + s->start + c0 : NULL;
    view to = c->lse.data ? view_of(c, &c->lse, s->index, head) : (view){NULL, 0};
    view z = view_of(c, &c->out, s->index, head);
    for (int i = 0; i < rows; i++) {
        float y = n[i] == 0 ? -INFINITY : lse[i];
        if (saved) saved[i] = y; /* backward subtracts it from scores, which are in these units */
        if (to.data) to.data[(c0 + i) * to.stride] = y * 0x1.62e430p-1f;
        for (int64_t x = 0; n[i] == 0 && x < w->z.dv; x++) z.data[(c0 + i) * z.stride + x] = 0;
    }
}

/* lse of a tile's rows, in units of log 2. */
static void lse_of_tile(float lse[TILE], const tile *t) {
    for (int x = 0; x < TILE; x += VW) {
        vf sum = vf_load(t->sum + x), y = vf_add(vf_load(t->max + x), log2_v(sum));
        vf_store(lse + x, vf_pick_positive(sum, y, vf_set1(-INFINITY)));
    }
}
