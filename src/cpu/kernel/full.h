/*
 * Kind full: every row against every key, forward and backward.
 *
 * An item is a few tiles of query rows of one key head. It goes through the keys 256 at a time:
 * packed once, they serve all tiles of the item from the cache, and a tile's softmax state waits in
 * the thread's memory for the next keys. Backward goes through the keys twice, once for dq (items
 * of query rows) and once for dk and dv (items of 256 keys): no two items write to the same row,
 * and sums have one order.
 */

enum { FULL_TILES = 16, FULL_KEYS = HTI_TILE_KEYS };

/* A thread's own memory. Tiles: [tiles]. */
typedef struct full_own {
    grad_tile *x;
    float *k, *v;         /* [FULL_KEYS] x dp, dvp: the keys at hand */
    float *q, *g;         /* tiles x [d, dv][TILE], transposed; g: backward, dz */
    float *max, *sum;     /* tiles x [TILE]; backward: m, h */
    float *acc;           /* tiles x [TILE] x dvp; backward: x dp, of dq */
    float *dk, *dv;       /* backward: [FULL_KEYS] x dp, dvp */
    float *row_q, *row_g; /* [TILE] x dp, dvp */
    float *bias;          /* backward: [2 * reach], dbias of one tile */
} full_own;

static void full_own_take(full_own *o, hti_arena *c, const work *w, int grad) {
    const hti_shape *z = &w->z;
    int64_t tiles = most(FULL_TILES, z->group), rows = grad ? FULL_KEYS : 0;
    int64_t wide = grad ? most(z->dp, z->dvp) : z->dvp;
    o->x = hti_take(c, 1, sizeof(grad_tile));
    o->k = hti_take(c, FULL_KEYS * z->dp, sizeof(float));
    o->v = hti_take(c, FULL_KEYS * z->dvp, sizeof(float));
    o->q = hti_take(c, tiles * TILE * z->dp, sizeof(float));
    o->g = hti_take(c, grad ? tiles * TILE * z->dvp : 0, sizeof(float));
    o->max = hti_take(c, tiles * TILE, sizeof(float));
    o->sum = hti_take(c, tiles * TILE, sizeof(float));
    o->acc = hti_take(c, tiles * TILE * wide, sizeof(float));
    o->dk = hti_take(c, rows * z->dp, sizeof(float));
    o->dv = hti_take(c, rows * z->dvp, sizeof(float));
    o->row_q = hti_take(c, TILE * z->dp, sizeof(float));
    o->row_g = hti_take(c, grad ? TILE * z->dvp : 0, sizeof(float));
    o->bias = hti_take(c, grad ? 2 * w->rel.reach : 0, sizeof(float));
}

/* ---- items ---- */

/* Tiles of one query head in an item. */
static int64_t full_tiles(const hti_shape *z) { return most(FULL_TILES / z->group, 1); }

/* All items of a call, in order; a thread takes every so many of them. */
typedef struct full_walk {
    const work *w;
    hti_seq s;
    int64_t rows, kv, row; /* of an item; the item at hand */
    int slot, threads, thread;
} full_walk;

/* To the first item from here on that is the thread's; 0: none left. */
static int full_settle(full_walk *f) {
    for (;;) {
        if (f->row >= f->s.length) {
            f->row = 0;
            if (++f->kv >= f->w->z.kv_heads || f->s.length == 0) {
                if (f->s.index + 1 >= f->w->call->sequences) return 0;
                hti_seq_make(&f->s, &f->w->t, f->s.index + 1);
                f->kv = 0;
                if (f->s.length == 0) continue;
            }
        }
        if (f->slot % f->threads == f->thread) return 1;
        f->slot = (f->slot + 1) % SLOTS;
        f->row += f->rows;
    }
}

static int full_begin(full_walk *f, const work *w, int64_t rows, int thread, int threads) {
    *f = (full_walk){.w = w, .rows = rows, .threads = threads, .thread = thread};
    if (w->call->sequences == 0) return 0;
    hti_seq_make(&f->s, &w->t, 0);
    return full_settle(f);
}

static int full_next(full_walk *f) {
    f->slot = (f->slot + 1) % SLOTS;
    f->row += f->rows;
    return full_settle(f);
}

/* ---- keys ---- */

/* Keys k0 ... of one key head into the thread's memory; they lie at row (key & FULL_KEYS - 1). */
static keys full_keys(const full_own *o, const work *w, const hti_seq *s, int64_t kv, int64_t k0) {
    const hti_attention_call *c = w->call;
    int64_t k1 = least(k0 + FULL_KEYS, s->length), mask = FULL_KEYS - 1;
    const float *n = w->t.key_n + s->count_at[0];
    pack(o->k, mask, view_of(c, &c->k, s->index, kv), n, k0, k1, w->z.d, w->z.dp);
    pack(o->v, mask, view_of(c, &c->v, s->index, kv), n, k0, k1, w->z.dv, w->z.dvp);
    for (int64_t i = k0; w->turn.table && i < k1; i++) {
        float *x = o->k + (i & mask) * w->z.dp;
        turn_row(x, x, &w->turn, i, 1);
    }
    return (keys){o->k, o->v, w->t.key_log + s->count_at[0], mask};
}

static void full_seg(hti_segs *out, int64_t from, int64_t to, uint32_t lanes) {
    if (from >= to) return;
    out->seg[out->count++] = (hti_seg){from, (int32_t)(to - from), lanes};
    out->keys += to - from;
}

/* Keys [k0, k1) as rows c0 ... see them; with a bias, cut where all distances count as one. */
static void full_segs(hti_segs *out, const work *w, int64_t k0, int64_t k1, int64_t c0, int rows) {
    uint32_t lanes = (1u << rows) - 1;
    int64_t most_x = w->rel.size ? w->rel.most : HTI_NO_DIAGONAL / 2;
    int64_t near = c0 - most_x + 1, far = c0 + TILE - 1 + most_x;
    out->count = 0;
    out->keys = 0;
    out->diagonal = w->z.causal ? c0 : HTI_NO_DIAGONAL;
    if (w->z.causal) k1 = least(k1, c0 + rows);
    full_seg(out, k0, least(near, k1), lanes);
    full_seg(out, most(k0, near), least(far, k1), lanes);
    full_seg(out, most(k0, far), k1, lanes);
}

/* ---- forward ---- */

/* The tile at hand goes over the keys [k0, k1); its state lies in slot i of the thread's memory. */
static void full_tile(full_own *o, const work *w, const hti_seq *s, const keys *at, int64_t head,
                      int64_t c0, int64_t k0, int i, int stream) {
    const hti_shape *z = &w->z;
    const hti_attention_call *c = w->call;
    tile *t = &o->x->t;
    hti_segs segs;
    t->rows = (int)least(TILE, s->length - c0);
    int64_t end = z->causal ? c0 + t->rows : s->length, dvp = z->dvp;
    float *acc = o->acc + i * TILE * dvp, *max = o->max + i * TILE, *sum = o->sum + i * TILE;
    if (k0 >= end) return;
    int last = k0 + FULL_KEYS >= end;
    memcpy(t->q, o->q + i * TILE * z->dp, sizeof(float) * (size_t)(TILE * z->d));
    memcpy(t->max, max, sizeof t->max);
    memcpy(t->sum, sum, sizeof t->sum);
    full_segs(&segs, w, k0, least(k0 + FULL_KEYS, s->length), c0, t->rows);
    view to = view_of(c, &c->out, s->index, head);
    rows_in in = {k0 == 0 ? NULL : acc, dvp, 0};
    rows_out user = {to.data + c0 * to.stride, to.stride, z->dv, NULL, stream};
    rows_out here = {acc, dvp, dvp, NULL, 0};
    relative b = enter_level(t, w, s, head, 0, 0);
    attend(t, &segs, at, z, &b, c0, in, last && t->rows == TILE ? user : here, last);
    memcpy(max, t->max, sizeof t->max);
    memcpy(sum, t->sum, sizeof t->sum);
    if (!last) return;
    for (int r = 0; r < t->rows && t->rows < TILE; r++)
        memcpy(user.base + r * user.stride, acc + r * dvp, sizeof(float) * (size_t)z->dv);
    float lse[TILE];
    lse_of_tile(lse, t);
    put_lse(w, s, head, c0, t->rows, lse);
}

static void full_forward_item(full_own *o, const work *w, const full_walk *f, int stream) {
    const hti_shape *z = &w->z;
    const hti_seq *s = &f->s;
    int64_t r1 = least(f->row + f->rows, s->length), end = z->causal ? r1 : s->length;
    int64_t first = f->kv * z->group;
    int i = 0;
    for (int64_t h = first; h < first + z->group; h++)
        for (int64_t c0 = f->row; c0 < r1; c0 += TILE, i++)
            row_queries(o->q + i * TILE * z->dp, w, s, h, c0, (int)least(TILE, s->length - c0),
                        w->turn.table ? o->row_q : NULL);
    for (int j = 0; j < i * TILE; j++) o->max[j] = -FLT_MAX, o->sum[j] = 0;
    for (int64_t k0 = 0; k0 < end; k0 += FULL_KEYS) {
        keys at = full_keys(o, w, s, f->kv, k0);
        i = 0;
        for (int64_t h = first; h < first + z->group; h++)
            for (int64_t c0 = f->row; c0 < r1; c0 += TILE)
                full_tile(o, w, s, &at, h, c0, k0, i++, stream);
    }
}

/* call NULL: measures for the plan's maxima */
static size_t full_forward_take(work *w, void *base, const ht_attention_desc *desc,
                                const hti_attention_call *call, int threads, char **own,
                                size_t *own_bytes) {
    hti_arena c = {base, 0}, mine = {NULL, 0};
    full_own o;
    work_take(w, &c, desc, call, 0);
    full_own_take(&o, &mine, w, 0);
    *own_bytes = (mine.used + 4095) / 4096 * 4096;
    *own = hti_take(&c, threads, *own_bytes);
    return c.used;
}

static void full_forward(ht_context *ctx, const hti_attention_call *call) {
    work w;
    char *own;
    size_t own_bytes;
    full_forward_take(&w, call->scratch, call->desc, call, ctx->threads, &own, &own_bytes);
    int stream = can_stream(&call->out, call->rows, w.z.q_heads, w.z.dv);
    hti_tables_index(&w.t);
#pragma omp parallel num_threads(threads_of(ctx, &w))
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        hti_arena c = {own + own_bytes * (size_t)thread, 0};
        full_own o;
        full_walk f;
        full_own_take(&o, &c, &w, 0);
        memset(o.x, 0, sizeof *o.x);
        o.x->t.live = ~0u;
        work_begin(&w, thread, threads);
        for (int go = full_begin(&f, &w, full_tiles(&w.z) * TILE, thread, threads); go;
             go = full_next(&f))
            full_forward_item(&o, &w, &f, stream);
        vf_stream_end();
    }
}

/* ---- backward ---- */

/* Rows c0 ... of a query head as backward wants them: q (turned) and dz, and their m and h. */
static void full_rows(full_own *o, const backward *b, const hti_seq *s, int64_t head, int64_t c0,
                      int rows) {
    const hti_shape *z = &b->w.z;
    const hti_attention_call *c = b->w.call;
    view q = view_of(c, &c->q, s->index, head), dz = view_of(c, &c->dout, s->index, head);
    const float *n = b->w.t.query_n + s->count_at[0];
    const float *delta = b->delta + head * c->rows + s->start;
    grad_tile *x = o->x;
    x->t.rows = rows;
    x->t.live = 0;
    for (int i = 0; i < TILE; i++) {
        x->m[i] = i < rows ? row_m(b, s, head, c0 + i) : INFINITY;
        x->h[i] = i < rows ? delta[c0 + i] : 0;
        if (x->m[i] != INFINITY) x->t.live |= 1u << i;
        zero_row(o->row_q + i * z->dp, z->dp);
        zero_row(o->row_g + i * z->dvp, z->dvp);
        if (i >= rows || n[c0 + i] == 0) continue;
        copy_row(o->row_q + i * z->dp, q.data + (c0 + i) * q.stride, z->d, z->dp);
        if (b->w.turn.table)
            turn_row(o->row_q + i * z->dp, o->row_q + i * z->dp, &b->w.turn, c0 + i, 1);
        if (x->t.live >> i & 1)
            copy_row(o->row_g + i * z->dvp, dz.data + (c0 + i) * dz.stride, z->dv, z->dvp);
    }
    transpose_tile(x, z, o->row_q, o->row_g, b->w.rel.scale);
}

/* The tile at hand goes over the segments; its dbias joins the slot's sums in double. */
static void full_grad(full_own *o, const backward *b, const hti_segs *segs, grad_job *job,
                      double *bias) {
    int64_t reach = b->w.rel.reach;
    job->bias = bias ? o->bias + reach : NULL;
    if (bias) memset(o->bias, 0, sizeof(float) * (size_t)(2 * reach));
    grad_attend(o->x, segs, &b->w.z, job);
    for (int64_t x = -reach; bias && x < reach; x++) bias[x] += o->bias[reach + x];
}

/* dq of the tile in slot i, over keys [k0, k0 + FULL_KEYS). */
static void full_dq_tile(full_own *o, const backward *b, const hti_seq *s, const keys *at,
                         int64_t head, int64_t c0, int64_t k0, int i, int slot) {
    const hti_shape *z = &b->w.z;
    grad_tile *x = o->x;
    hti_segs segs;
    x->t.rows = (int)least(TILE, s->length - c0);
    int64_t end = z->causal ? c0 + x->t.rows : s->length, dp = z->dp;
    if (k0 >= end) return;
    int turned = b->w.turn.table != NULL, last = k0 + FULL_KEYS >= end;
    float *acc = o->acc + i * TILE * dp;
    memcpy(x->t.q, o->q + i * TILE * dp, sizeof(float) * (size_t)(TILE * z->d));
    memcpy(x->g, o->g + i * TILE * z->dvp, sizeof(float) * (size_t)(TILE * z->dv));
    memcpy(x->m, o->max + i * TILE, sizeof x->m);
    memcpy(x->h, o->sum + i * TILE, sizeof x->h);
    x->t.live = 0;
    for (int r = 0; r < TILE; r++) {
        if (x->m[r] != INFINITY) x->t.live |= 1u << r;
        x->t.keep[r] = 1;
        x->t.finish[r] = (float)b->w.call->desc->scale;
    }
    full_segs(&segs, &b->w, k0, least(k0 + FULL_KEYS, s->length), c0, x->t.rows);
    view dq = view_of(b->w.call, &b->w.call->dq, s->index, head);
    rows_out user = {dq.data + c0 * dq.stride, dq.stride, z->d, x->t.finish, b->stream_q};
    rows_out here = {acc, dp, dp, last && !turned ? x->t.finish : NULL, 0};
    grad_job job = {.at = at,
                    .rel = enter_level(&x->t, &b->w, s, head, 0, 0),
                    .c0 = c0,
                    .want_dq = 1,
                    .in = {k0 == 0 ? NULL : acc, dp, 0},
                    .out = last && !turned && x->t.rows == TILE ? user : here};
    full_grad(o, b, &segs, &job, bias_slot(b, slot, head));
    if (!last || job.out.base == user.base) return;
    for (int r = 0; r < x->t.rows; r++) {
        if (turned) turn_row(acc + r * dp, acc + r * dp, &b->w.turn, c0 + r, -1);
        float f = turned ? x->t.finish[r] : 1;
        for (int64_t e = 0; e < z->d; e++) user.base[r * user.stride + e] = f * acc[r * dp + e];
    }
}

static void full_dq_item(full_own *o, const backward *b, const full_walk *f) {
    const hti_shape *z = &b->w.z;
    const hti_seq *s = &f->s;
    int64_t r1 = least(f->row + f->rows, s->length), end = z->causal ? r1 : s->length;
    int64_t first = f->kv * z->group;
    int i = 0;
    for (int64_t h = first; h < first + z->group; h++) {
        for (int64_t c0 = f->row; c0 < r1; c0 += TILE, i++) {
            full_rows(o, b, s, h, c0, (int)least(TILE, s->length - c0));
            memcpy(o->q + i * TILE * z->dp, o->x->t.q, sizeof(float) * (size_t)(TILE * z->d));
            memcpy(o->g + i * TILE * z->dvp, o->x->g, sizeof(float) * (size_t)(TILE * z->dv));
            memcpy(o->max + i * TILE, o->x->m, sizeof o->x->m);
            memcpy(o->sum + i * TILE, o->x->h, sizeof o->x->h);
        }
    }
    for (int64_t k0 = 0; k0 < end; k0 += FULL_KEYS) {
        keys at = full_keys(o, &b->w, s, f->kv, k0);
        i = 0;
        for (int64_t h = first; h < first + z->group; h++)
            for (int64_t c0 = f->row; c0 < r1; c0 += TILE)
                full_dq_tile(o, b, s, &at, h, c0, k0, i++, f->slot);
    }
}

/* dk and dv of keys f->row ...: all rows that see them, of all query heads of the key head. */
static void full_dk_item(full_own *o, const backward *b, const full_walk *f) {
    const hti_shape *z = &b->w.z;
    const hti_seq *s = &f->s;
    const hti_attention_call *c = b->w.call;
    int64_t k0 = f->row, k1 = least(k0 + FULL_KEYS, s->length);
    hti_segs segs;
    keys at = full_keys(o, &b->w, s, f->kv, k0);
    memset(o->dk, 0, sizeof(float) * (size_t)(FULL_KEYS * z->dp));
    memset(o->dv, 0, sizeof(float) * (size_t)(FULL_KEYS * z->dvp));
    for (int64_t h = f->kv * z->group; h < (f->kv + 1) * z->group; h++) {
        for (int64_t c0 = z->causal ? k0 : 0; c0 < s->length; c0 += TILE) {
            int rows = (int)least(TILE, s->length - c0);
            full_rows(o, b, s, h, c0, rows);
            full_segs(&segs, &b->w, k0, k1, c0, rows);
            grad_job job = {.at = &at,
                            .rel = enter_level(&o->x->t, &b->w, s, h, 0, 0),
                            .c0 = c0,
                            .q = o->row_q,
                            .g = o->row_g,
                            .to = {o->dk, o->dv, k0, k1}};
            full_grad(o, b, &segs, &job, NULL);
        }
    }
    view dk = view_of(c, &c->dk, s->index, f->kv), dv = view_of(c, &c->dv, s->index, f->kv);
    const float *n = b->w.t.key_n + s->count_at[0];
    for (int64_t i = k0; i < k1; i++) {
        float *x = o->dk + (i - k0) * z->dp, scale = n[i] > 0 ? (float)c->desc->scale : 0;
        if (b->w.turn.table) turn_row(x, x, &b->w.turn, i, -1);
        put_row(dk.data + i * dk.stride, x, NULL, 0, scale, z->d, b->stream_k);
        put_row(dv.data + i * dv.stride, o->dv + (i - k0) * z->dvp, NULL, 0, n[i] > 0 ? 1.0f : 0.0f,
                z->dv, b->stream_v);
    }
}

/* call NULL: measures for the plan's maxima */
static size_t full_backward_take(backward *b, void *base, const ht_attention_desc *desc,
                                 const hti_attention_call *call, int threads) {
    hti_arena c = {base, 0}, mine = {NULL, 0};
    full_own o;
    *b = (backward){0};
    work_take(&b->w, &c, desc, call, 0);
    const hti_shape *z = &b->w.z;
    b->delta = hti_take(&c, z->q_heads * (call ? call->rows : desc->max_rows), sizeof(float));
    if (desc->has_bias)
        b->bias = hti_take(&c, SLOTS * z->q_heads * 2 * b->w.rel.reach, sizeof(double));
    full_own_take(&o, &mine, &b->w, 1);
    b->thread_bytes = (mine.used + 4095) / 4096 * 4096;
    b->threads = hti_take(&c, threads, b->thread_bytes);
    return c.used;
}

/* A thread's part of backward. */
static void full_backward_part(full_own *o, const backward *b, int thread, int threads) {
    const hti_shape *z = &b->w.z;
    hti_walk w;
    full_walk f;
    for (int go = hti_walk_begin(&w, &b->w.t, z->q_heads, thread, threads); go;
         go = hti_walk_next(&w))
        make_delta(o->x, b, &w.seq, hti_step_own(&w.seq, w.row, 0), w.head);
#pragma omp barrier
    for (int go = full_begin(&f, &b->w, full_tiles(z) * TILE, thread, threads); go;
         go = full_next(&f))
        full_dq_item(o, b, &f);
    for (int go = full_begin(&f, &b->w, FULL_KEYS, thread, threads); go; go = full_next(&f))
        full_dk_item(o, b, &f);
    vf_stream_end();
}

static void full_backward(ht_context *ctx, const hti_attention_call *call) {
    backward b;
    full_backward_take(&b, call->scratch, call->desc, call, ctx->threads);
    backward_streams(&b, call);
    hti_tables_index(&b.w.t);
#pragma omp parallel num_threads(threads_of(ctx, &b.w))
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        hti_arena c = {b.threads + b.thread_bytes * (size_t)thread, 0};
        full_own o;
        full_own_take(&o, &c, &b.w, 1);
        memset(o.x, 0, sizeof *o.x);
        clear_bias(&b, thread, threads);
        work_begin(&b.w, thread, threads);
        full_backward_part(&o, &b, thread, threads);
        if (b.bias) {
#pragma omp barrier
            add_bias(&b, thread, threads);
        }
    }
}
