/*
 * Forward, kinds hierarchical and local. The phases, in the order in which they read memory least:
 *
 *     near    step by step: levels 0 ... local-1 from the thread's own rings; z and lse of these
 * levels alone. On the way, means of keys, values and queries at level `local` go to the shared
 * pyramid up      the pyramid's other levels across  coarse rows against coarse keys, from the top
 * level down to `local`; a parent's softmax state (maximum, sum, numerator) is where its children
 * start merge   level `local`'s result joins z and lse of its rows
 *
 * In mode fine every row attends at all levels itself: the pyramid of keys and values comes first,
 * then `near` with all levels. Short sequences end with `near`.
 */

/* Rows of a neighbouring block of the coarsest local level: four levels at block 16. */
enum { FORWARD_REACH = 128 };

/* A thread's own memory. */
typedef struct forward_own {
    tile *t;
    hti_segs segs;
    rings keys;
    float *q;               /* [own rows] x dp: the step's coarse queries */
    float *max, *sum, *acc; /* [own rows] x 1, 1, dvp: their softmax states */
    float *turned;          /* [TILE] x dp, rotary only */
    float *weights;         /* [2][q_heads][TILE], merge only */
} forward_own;

/* A call's shared memory. States: [q_heads][tables.rows] x 1, 1, dvp, levels >= local. */
typedef struct forward {
    work w;
    float *max, *sum, *acc;
    float *near;   /* [q_heads][rows] lse of the local levels, in units of log 2 */
    char *threads; /* each thread's own memory follows the other's */
    size_t thread_bytes;
    int stream; /* z is written past the cache */
} forward;

static void own_take(forward_own *o, hti_arena *c, const hti_shape *z, int64_t length, int rotary) {
    int64_t rows = hti_own_rows(z, length);
    o->t = hti_take(c, 1, sizeof(tile));
    rings_take(&o->keys, c, z, length);
    o->q = hti_take(c, rows * z->dp, sizeof(float));
    o->max = hti_take(c, rows, sizeof(float));
    o->sum = hti_take(c, rows, sizeof(float));
    o->acc = hti_take(c, rows * z->dvp, sizeof(float));
    o->turned = hti_take(c, rotary ? TILE * z->dp : 0, sizeof(float));
    o->weights = hti_take(c, 2 * z->q_heads * TILE, sizeof(float));
}

/* call NULL: measures for the plan's maxima */
static size_t forward_take(forward *f, void *base, const ht_attention_desc *desc,
                           const hti_attention_call *call, int threads) {
    hti_arena c = {base, 0}, mine = {NULL, 0};
    forward_own o;
    *f = (forward){0};
    work_take(&f->w, &c, desc, call, FORWARD_REACH);
    const hti_shape *z = &f->w.z;
    int64_t rows = z->fine ? 0 : z->q_heads * f->w.t.rows;
    f->max = hti_take(&c, rows, sizeof(float));
    f->sum = hti_take(&c, rows, sizeof(float));
    f->acc = hti_take(&c, rows * z->dvp, sizeof(float));
    f->near = hti_take(&c, rows > 0 ? z->q_heads * (call ? call->rows : desc->max_rows) : 0,
                       sizeof(float));
    own_take(&o, &mine, z, call ? call->length : desc->max_length, desc->rotary_theta > 0);
    f->thread_bytes = (mine.used + 4095) / 4096 * 4096;
    f->threads = hti_take(&c, threads, f->thread_bytes);
    return c.used;
}

/* ---- a tile's state ---- */

static void state_clear(tile *t) {
    for (int i = 0; i < TILE; i++) t->max[i] = -FLT_MAX, t->sum[i] = 0;
}

/* From the parents' states: max and sum of the first parent. */
static void state_load(tile *t, const float *max, const float *sum) {
    for (int i = 0; i < TILE; i++) {
        t->max[i] = max[i >> 1];
        t->sum[i] = sum[i >> 1];
    }
}

static void state_store(const tile *t, float *max, float *sum) {
    for (int i = 0; i < t->rows; i++) {
        max[i] = t->max[i];
        sum[i] = t->sum[i];
    }
}

/* Query rows of a coarse tile, lying one after the other. */
static void coarse_queries(tile *t, const float *q, int64_t dp, int64_t d, float scale) {
    const float *row[TILE];
    for (int i = 0; i < TILE; i++) row[i] = i < t->rows ? q + i * dp : NULL;
    transpose_rows(t->q, row, d, scale);
}

/* A coarse tile of query clusters c0 ... : rows of parents `in` (or none), own rows out. */
static void coarse_tile(forward_own *o, const forward *f, const hti_seq *s, int level, int64_t head,
                        int64_t c0, const float *q, const keys *at, rows_in in, float *max,
                        float *sum, float *acc) {
    const hti_shape *p = &f->w.z;
    tile *t = o->t;
    rows_out out = {acc, p->dvp, p->dvp, NULL, 0};
    relative b = enter_level(t, &f->w, s, head, level, 0);
    coarse_queries(t, q, p->dp, p->d, f->w.rel.scale);
    hti_segs_make(&o->segs, p, s->clusters[level], level, 0, c0, t->rows);
    if (t->rows < TILE) out.base = t->acc;
    attend(t, &o->segs, at, p, &b, c0, in, out, 0);
    for (int i = 0; i < t->rows && t->rows < TILE; i++)
        copy_row(acc + i * p->dvp, t->acc + i * p->dvp, p->dvp, p->dvp);
    state_store(t, max, sum);
}

/* ---- across ---- */

static void across_tile(forward_own *o, const forward *f, const hti_seq *s, int l, int64_t head,
                        int64_t c0) {
    const hti_shape *p = &f->w.z;
    int64_t row = pyramid_row(&f->w.t, head, s, l, c0);
    keys at = pyramid_keys(&f->w, s, head / p->group, l);
    rows_in in = {NULL, 0, 0};
    o->t->rows = (int)least(TILE, s->clusters[l] - c0);
    state_clear(o->t);
    if (l + 1 < s->levels) {
        int64_t parent = pyramid_row(&f->w.t, head, s, l + 1, c0 >> 1);
        in = (rows_in){f->acc + parent * p->dvp, p->dvp, 1};
        state_load(o->t, f->max + parent, f->sum + parent);
    }
    coarse_tile(o, f, s, l, head, c0, f->w.q + row * p->dp, &at, in, f->max + row, f->sum + row,
                f->acc + row * p->dvp);
}

/* From the top level down. With heads enough a thread takes whole heads and waits for nobody. */
static void across(forward_own *o, const forward *f, int thread, int threads) {
    const hti_shape *p = &f->w.z;
    hti_seq s;
    o->t->next.left = 0;
    int64_t sequences = f->w.call->sequences, columns = sequences * p->q_heads;
    if (columns >= COLUMNS_EACH * threads) {
        for (int64_t c = columns * thread / threads; c < columns * (thread + 1) / threads; c++) {
            if (!is_shared(&f->w.t, c / p->q_heads)) continue;
            hti_seq_make(&s, &f->w.t, c / p->q_heads);
            int64_t h = c % p->q_heads;
            for (int l = s.levels - 1; l >= s.local; l--)
                for (int64_t c0 = 0; c0 < s.clusters[l]; c0 += TILE)
                    across_tile(o, f, &s, l, h, c0);
        }
#pragma omp barrier
        return;
    }
    for (int l = hti_levels(f->w.call->length, p->block) - 1; l >= p->local; l--) {
        for (int64_t b = 0; b < sequences; b++) {
            if (!is_shared(&f->w.t, b)) continue;
            hti_seq_make(&s, &f->w.t, b);
            if (l >= s.levels) continue;
            int64_t tiles = (s.clusters[l] + TILE - 1) / TILE, items = tiles * p->q_heads;
            for (int64_t i = items * thread / threads; i < items * (thread + 1) / threads; i++)
                across_tile(o, f, &s, l, i / tiles, i % tiles * TILE);
        }
#pragma omp barrier
    }
}

/* ---- near ---- */

/* Queries of the step's own clusters, levels 1 ... local-1. */
static void load_coarse_queries(forward_own *o, const forward *f, const hti_seq *s, int64_t row,
                                int64_t head) {
    const hti_shape *z = &f->w.z;
    const hti_attention_call *c = f->w.call;
    for (int l = 1; l < s->local; l++) {
        hti_range r = hti_step_own(s, row, l);
        float *dst = o->q + s->own_at[l] * z->dp;
        const float *n = f->w.t.query_n + s->count_at[l - 1];
        if (l == 1) {
            coarsen_rows(dst, view_of(c, &c->q, s->index, head), n, r, s->clusters[0], z->d, z->dp,
                         z->first);
        } else { /* both from the step's first cluster on */
            coarsen(dst - r.lo * z->dp, -1, o->q + (s->own_at[l - 1] - 2 * r.lo) * z->dp, -1, n, r,
                    s->clusters[l - 1], z->dp, z->first);
        }
    }
}

/* The state a tile of level l starts from: its parents', where they are local. */
static rows_in parent_state(forward_own *o, const forward *f, const hti_seq *s, int64_t row, int l,
                            int64_t c0) {
    int64_t dvp = f->w.z.dvp;
    state_clear(o->t);
    if (f->w.z.fine || l + 1 >= s->local) return (rows_in){NULL, 0, 0};
    int64_t at = s->own_at[l + 1] + (c0 >> 1) - (row >> (l + 1));
    state_load(o->t, o->max + at, o->sum + at);
    return (rows_in){o->acc + at * dvp, dvp, 1};
}

static void near_level(forward_own *o, const forward *f, const hti_seq *s, int64_t row,
                       int64_t head, int l) {
    const hti_shape *z = &f->w.z;
    keys at = ring_keys(&o->keys, &f->w, s, l);
    hti_range r = hti_step_own(s, row, l);
    for (int64_t c0 = r.lo; c0 < r.hi; c0 += TILE) {
        int64_t mine = s->own_at[l] + c0 - r.lo;
        o->t->rows = (int)least(TILE, r.hi - c0);
        rows_in in = parent_state(o, f, s, row, l, c0);
        coarse_tile(o, f, s, l, head, c0, o->q + mine * z->dp, &at, in, o->max + mine,
                    o->sum + mine, o->acc + mine * z->dvp);
    }
}

/* lse of the tile, to the caller or, where more is to come, to scratch. */
static void finish_rows(const forward_own *o, const forward *f, const hti_seq *s, int64_t head,
                        int64_t c0) {
    float here[TILE];
    lse_of_tile(here, o->t);
    if (f->w.z.fine || s->local == s->levels) {
        put_lse(&f->w, s, head, c0, o->t->rows, here);
    } else {
        float *lse = f->near + head * f->w.call->rows + s->start + c0;
        memcpy(lse, here, sizeof(float) * (size_t)o->t->rows);
    }
}

/* Mode fine: rows c0 ... against all levels above 0; the state is left in the tile. */
static rows_in fine_levels(forward_own *o, const forward *f, const hti_seq *s, int64_t head,
                           int64_t c0) {
    const hti_shape *z = &f->w.z;
    rows_in in = {NULL, 0, 0};
    for (int l = 1; l < s->levels; l++) {
        keys at = l < s->local ? ring_keys(&o->keys, &f->w, s, l)
                               : pyramid_keys(&f->w, s, head / z->group, l);
        hti_segs_make(&o->segs, z, s->clusters[l], l, l, c0, o->t->rows);
        if (o->segs.keys == 0) continue;
        relative b = enter_level(o->t, &f->w, s, head, l, l);
        rows_out out = {o->t->acc, z->dvp, z->dvp, NULL, 0};
        attend(o->t, &o->segs, &at, z, &b, c0, in, out, 0);
        in = (rows_in){o->t->acc, z->dvp, 0};
    }
    return in;
}

/* Level 0 (mode fine: and all others) of rows c0 ...; z and lse go out. */
static void row_tile(forward_own *o, const forward *f, const hti_seq *s, int64_t row, int64_t head,
                     int64_t c0) {
    const hti_shape *z = &f->w.z;
    const hti_attention_call *c = f->w.call;
    tile *t = o->t;
    t->rows = (int)least(TILE, s->length - c0);
    view to = view_of(c, &c->out, s->index, head);
    rows_out user = {to.data + c0 * to.stride, to.stride, z->dv, NULL, f->stream};
    rows_out here = {t->acc, z->dvp, z->dvp, NULL, 0};
    rows_in in = parent_state(o, f, s, row, 0, c0);
    row_queries(t->q, &f->w, s, head, c0, t->rows, NULL);
    if (z->fine) in = fine_levels(o, f, s, head, c0);
    if (f->w.turn.table) row_queries(t->q, &f->w, s, head, c0, t->rows, o->turned);
    keys at = ring_keys(&o->keys, &f->w, s, 0);
    relative b = enter_level(t, &f->w, s, head, 0, 0);
    hti_segs_make(&o->segs, z, s->length, 0, 0, c0, t->rows);
    attend(t, &o->segs, &at, z, &b, c0, in, t->rows < TILE ? here : user, 1);
    for (int i = 0; i < t->rows && t->rows < TILE; i++)
        for (int64_t x = 0; x < z->dv; x++) user.base[i * user.stride + x] = t->acc[i * z->dvp + x];
    finish_rows(o, f, s, head, c0);
}

/* What the step after this one will read: the keys it adds to the rings, and its queries. */
static void feed_next(feed *n, const forward_own *o, const forward *f, const hti_walk *w) {
    const hti_shape *z = &f->w.z;
    const hti_attention_call *c = f->w.call;
    const hti_seq *s = &w->seq;
    int64_t group = s->step / TILE * z->group, head = w->head, row = w->row + s->step;
    n->left = 0;
    if (row >= least((w->chunk + 1) * f->w.t.chunk, s->length)) { /* on to the next head */
        if (++head == z->kv_heads) return;
        row = w->chunk * f->w.t.chunk;
    }
    hti_range k = hti_step_keys(z, s, row), q = hti_step_own(s, row, 0);
    if (head == w->head) k.lo = o->keys.packed;
    k = (hti_range){k.lo << (s->local - 1), least(k.hi << (s->local - 1), s->length)};
    n->of[0] = feed_of(view_of(c, &c->k, s->index, head), k.lo, k.hi - k.lo, z->d);
    n->of[1] = feed_of(view_of(c, &c->v, s->index, head), k.lo, k.hi - k.lo, z->dv);
    n->of[2] = feed_of(view_of(c, &c->q, s->index, head * z->group), q.lo, q.hi - q.lo, z->d);
    n->left = most(k.hi - k.lo, q.hi - q.lo);
    n->share = n->left / (group * FEED_CALLS) + 1;
}

/* The step's clusters of level `local`, from the level below. */
static void near_up(const forward_own *o, const forward *f, const hti_seq *s, int64_t row,
                    int64_t h) {
    const hti_shape *z = &f->w.z;
    hti_range r = hti_step_own(s, row, s->local);
    int l = s->local - 1;
    int64_t to = pyramid_row(&f->w.t, h, s, s->local, 0);
    const float *n = f->w.t.key_n + s->count_at[l];
    if (l == 0 && f->w.turn.table) { /* the ring's keys are turned */
        view k = view_of(f->w.call, &f->w.call->k, s->index, h);
        coarsen_rows(f->w.k + (to + r.lo) * z->dp, k, n, r, s->clusters[0], z->d, z->dp, 0);
    } else {
        coarsen(f->w.k + to * z->dp, -1, o->keys.k + s->ring_at[l] * z->dp, s->ring_mask[l], n, r,
                s->clusters[l], z->dp, 0);
    }
    coarsen(f->w.v + to * z->dvp, -1, o->keys.v + s->ring_at[l] * z->dvp, s->ring_mask[l], n, r,
            s->clusters[l], z->dvp, 0);
}

/* ... and the queries', of one query head. */
static void near_up_queries(const forward_own *o, const forward *f, const hti_seq *s, int64_t row,
                            int64_t head) {
    const hti_shape *z = &f->w.z;
    const hti_attention_call *c = f->w.call;
    hti_range r = hti_step_own(s, row, s->local);
    int l = s->local - 1;
    float *to = f->w.q + pyramid_row(&f->w.t, head, s, s->local, 0) * z->dp;
    const float *n = f->w.t.query_n + s->count_at[l];
    if (l == 0) {
        coarsen_rows(to + r.lo * z->dp, view_of(c, &c->q, s->index, head), n, r, s->clusters[0],
                     z->d, z->dp, z->first);
    } else {
        coarsen(to, -1, o->q + (s->own_at[l] - 2 * r.lo) * z->dp, -1, n, r, s->clusters[l], z->dp,
                z->first);
    }
}

static void near(forward_own *o, const forward *f, int thread, int threads) {
    const hti_shape *z = &f->w.z;
    hti_walk w;
    for (int go = hti_walk_begin(&w, &f->w.t, z->kv_heads, thread, threads); go;
         go = hti_walk_next(&w)) {
        const hti_seq *s = &w.seq;
        int64_t h = w.head;
        int shared = s->local < s->levels && !z->fine;
        load_keys(&o->keys, &f->w, s, w.row, h, w.fresh);
        feed_next(&o->t->next, o, f, &w);
        if (shared) near_up(o, f, s, w.row, h);
        for (int64_t g = h * z->group; g < (h + 1) * z->group; g++) {
            if (!z->fine) load_coarse_queries(o, f, s, w.row, g);
            if (shared) near_up_queries(o, f, s, w.row, g);
            for (int l = s->local - 1; l > 0 && !z->fine; l--) near_level(o, f, s, w.row, g, l);
            for (int64_t c0 = w.row; c0 < least(w.row + s->step, s->length); c0 += TILE)
                row_tile(o, f, s, w.row, g, c0);
        }
        if (shared) up_step(&f->w, s, w.row, h);
    }
}

/* ---- merge ---- */

/* Weights of both results for rows c0 ... of one head: a[i] for the near one, b[i] for its
 * cluster's numerator. */
static void merge_weights(float *a, float *b, const forward *f, const hti_seq *s, int64_t head,
                          int64_t c0, int rows) {
    float near[TILE], far[TILE], sum[TILE], lse[TILE];
    float *from = f->near + head * f->w.call->rows + s->start + c0;
    for (int i = 0; i < TILE; i++) {
        int64_t row =
            pyramid_row(&f->w.t, head, s, s->local, (c0 + least(i, rows - 1)) >> s->local);
        near[i] = from[least(i, rows - 1)];
        far[i] = f->max[row];
        sum[i] = f->sum[row];
    }
    for (int x = 0; x < TILE; x += VW) {
        vf m = vf_load(near + x), y = vf_load(far + x), n = vf_load(sum + x);
        vf top = vf_max(m, y), p = exp2_v(vf_sub(m, top)), q = exp2_v(vf_sub(y, top));
        vf all = vf_fma(q, n, p), inv = vf_div(vf_set1(1.0f), all);
        vf zero = vf_zero();
        vf_store(a + x, vf_pick_positive(all, vf_mul(p, inv), zero));
        vf_store(b + x, vf_pick_positive(all, vf_mul(q, inv), zero));
        vf_store(lse + x, vf_pick_positive(all, vf_add(top, log2_v(all)), vf_set1(-INFINITY)));
    }
    memcpy(from, lse, sizeof(float) * (size_t)rows);
}

/* z = a z + b numerator, all heads of a row in turn: they lie side by side */
static void merge_row(const forward *f, const hti_seq *s, const float *a, const float *b,
                      int64_t row) {
    const hti_shape *p = &f->w.z;
    const hti_attention_call *c = f->w.call;
    for (int64_t h = 0; h < p->q_heads; h++, a += TILE, b += TILE) {
        view z = view_of(c, &c->out, s->index, h);
        float *to = z.data + row * z.stride;
        const float *acc = f->acc + pyramid_row(&f->w.t, h, s, s->local, row >> s->local) * p->dvp;
        vf x = vf_set1(*a), y = vf_set1(*b);
        for (int64_t col = 0; col < p->dv; col += VW) {
            int64_t left = p->dv - col;
            vf old = left < VW ? vf_load_n(to + col, (int)left) : vf_load(to + col);
            vf new = vf_fma(y, vf_load(acc + col), vf_mul(x, old));
            if (f->stream) {
                vf_stream(to + col, new);
            } else if (left < VW) {
                vf_store_n(to + col, new, (int)left);
            } else {
                vf_store(to + col, new);
            }
        }
    }
}

/* weights: [2][q_heads][TILE], the thread's own */
static void merge(float *weights, const forward *f, int thread, int threads) {
    int64_t heads = f->w.z.q_heads;
    const float *a = weights, *b = weights + heads * TILE;
    hti_walk w;
    for (int go = hti_walk_begin(&w, &f->w.t, 1, thread, threads); go; go = hti_walk_next(&w)) {
        const hti_seq *s = &w.seq;
        if (s->local == s->levels) continue;
        for (int64_t c0 = w.row; c0 < least(w.row + s->step, s->length); c0 += TILE) {
            int rows = (int)least(TILE, s->length - c0);
            for (int64_t h = 0; h < heads; h++)
                merge_weights(weights + h * TILE, weights + (heads + h) * TILE, f, s, h, c0, rows);
            for (int i = 0; i < rows; i++) merge_row(f, s, a + i, b + i, c0 + i);
            for (int64_t h = 0; h < heads; h++)
                put_lse(&f->w, s, h, c0, rows, f->near + h * f->w.call->rows + s->start + c0);
        }
    }
}

static void hierarchical_forward(ht_context *ctx, const hti_attention_call *call) {
    forward f;
    forward_take(&f, call->scratch, call->desc, call, ctx->threads);
    f.stream = can_stream(&call->out, call->rows, f.w.z.q_heads, f.w.z.dv);
    hti_tables_index(&f.w.t);
#pragma omp parallel num_threads(threads_of(ctx, &f.w))
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        hti_arena c = {f.threads + f.thread_bytes * (size_t)thread, 0};
        forward_own o;
        own_take(&o, &c, &f.w.z, call->length, call->desc->rotary_theta > 0);
        memset(o.t, 0, sizeof *o.t);
        o.t->live = ~0u;
        work_begin(&f.w, thread, threads);
        int shared = f.w.t.rows > 0, fine = f.w.z.fine;
        if (shared && fine) {
            up_rows(&f.w, thread, threads);
            up_top(&f.w, thread, threads);
        }
        near(&o, &f, thread, threads);
        if (shared && !fine) {
#pragma omp barrier
            up_top(&f.w, thread, threads);
            across(&o, &f, thread, threads);
            merge(o.weights, &f, thread, threads);
        }
        vf_stream_end();
    }
}
