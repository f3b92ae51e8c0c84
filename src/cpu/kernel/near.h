/*
 * Backward, the last two phases. across: from the top level down, gradients of the pyramid's rows.
 * near: run by run the levels below `local` and, in mode fine, every row's way over all levels;
 * ends in dq, dk and dv.
 */

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
    begin_keys(b, s, l, kv, own);
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

/* Items `j` of a level: parts of a key head, one head after the other. */
static void across_items(grad_own *o, const backward *b, const hti_seq *s, int l, hti_range j,
                         int64_t slot) {
    int64_t parts = (s->clusters[l] + ACROSS_ITEM - 1) / ACROSS_ITEM;
    for (int64_t i = j.lo; i < j.hi; i++) {
        int64_t lo = i % parts * ACROSS_ITEM;
        hti_range own = {lo, least(lo + ACROSS_ITEM, s->clusters[l])};
        if (b->w.z.fine) {
            reduce_item(b, s, l, i / parts, own);
        } else {
            across_item(o, b, s, l, i / parts, own, slot);
        }
    }
}

/* Whole heads, which no other thread waits for. */
static void across_columns(grad_own *o, const backward *b, hti_range columns) {
    int64_t heads = b->w.z.kv_heads;
    hti_seq s;
    for (int64_t c = columns.lo; c < columns.hi; c++) {
        if (!is_shared(&b->w.t, c / heads)) continue;
        hti_seq_make(&s, &b->w.t, c / heads);
        for (int l = s.levels - 1; l >= s.local; l--) {
            int64_t parts = (s.clusters[l] + ACROSS_ITEM - 1) / ACROSS_ITEM, h = c % heads;
            across_items(o, b, &s, l, (hti_range){h * parts, (h + 1) * parts}, 0);
        }
    }
#pragma omp barrier
}

static void backward_across(grad_own *o, const backward *b, int thread, int threads) {
    const hti_shape *z = &b->w.z;
    hti_seq s;
    o->x->t.next.left = 0;
    int64_t columns = b->w.call->sequences * z->kv_heads;
    if (!b->bias && columns >= COLUMNS_EACH * threads) { /* sums of dbias go by slots */
        across_columns(o, b,
                       (hti_range){columns * thread / threads, columns * (thread + 1) / threads});
        return;
    }
    for (int l = hti_levels(b->w.call->length, z->block) - 1; l >= z->local; l--) {
        for (int64_t i = 0; i < b->w.call->sequences; i++) {
            if (!is_shared(&b->w.t, i)) continue;
            hti_seq_make(&s, &b->w.t, i);
            if (l >= s.levels) continue;
            int64_t items = (s.clusters[l] + ACROSS_ITEM - 1) / ACROSS_ITEM * z->kv_heads;
            for (int64_t e = SLOTS * thread / threads; e < SLOTS * (thread + 1) / threads; e++)
                across_items(o, b, &s, l, (hti_range){items * e / SLOTS, items * (e + 1) / SLOTS},
                             e);
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
    float *plain = z->fine && b->w.turn.table ? o->q : NULL; /* mode fine has no other rows there */
    for (int64_t i = r.lo; i < r.hi; i++) {
        float *to = o->q0 + (i - r.lo) * z->dp, *g = o->g0 + (i - r.lo) * z->dvp;
        o->m0[i - r.lo] = row_m(b, s, head, i);
        o->h0[i - r.lo] = delta[i];
        if (n[i] > 0) {
            copy_row(to, q.data + i * q.stride, z->d, z->dp);
            if (plain) copy_row(plain + (i - r.lo) * z->dp, to, z->dp, z->dp);
            if (b->w.turn.table) turn_row(to, to, &b->w.turn, i, 1);
        } else {
            zero_row(to, z->dp);
            if (plain) zero_row(plain + (i - r.lo) * z->dp, z->dp);
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
    if (s->levels == 1) return (rows_in){NULL, z->dp, 1};
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
    const float *q = o->q0 + (c0 - row) * z->dp, *g = o->g0 + (c0 - row) * z->dvp;
    rows_in in = z->fine ? fine_grad_tile(o, b, r, row, head, c0, mine)
                         : row_parents(o, b, s, row, head, c0);
    hti_segs_make(&o->segs, z, s->length, 0, 0, c0, rows);
    if (!mine) segs_clip(&o->segs, to.lo, to.hi);
    if (!mine && o->segs.keys == 0) return;
    grad_lanes(o, b, s, 0, c0, o->m0 + c0 - row, o->h0 + c0 - row);
    transpose_tile(x, z, q, g, b->w.rel.scale);
    view dq = view_of(b->w.call, &b->w.call->dq, s->index, head);
    keys at = ring_keys(&o->keys, &b->w, s, 0);
    float keep[TILE];
    memcpy(keep, x->t.keep, sizeof keep);
    for (int i = 0; i < TILE; i++) x->t.finish[i] = (float)b->w.call->desc->scale;
    rows_in none = {NULL, z->dp, 1};
    rows_out user = {dq.data + c0 * dq.stride, dq.stride, z->d, x->t.finish, b->stream_q};
    rows_out here = {x->t.acc, z->dp, z->dp, turned ? NULL : x->t.finish, 0};
    grad_job job = {&at,
                    enter_level(&x->t, &b->w, s, head, 0, 0),
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
    if (z->fine) part_clear(b, r);
    hti_range q = run_queries(b, r);
    for (int64_t row = q.lo; row < q.hi; row += s->step) {
        int mine = row >= r->rows.lo && row < r->rows.hi;
        load_keys(&o->keys, &b->w, s, row, r->kv, row == q.lo);
        for (int64_t h = r->kv * z->group; h < (r->kv + 1) * z->group; h++) {
            load_queries(o, b, s, row, h);
            for (int l = s->local - 1; l > 0 && !z->fine; l--)
                near_grad_level(o, b, r, row, h, l, mine);
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
    parts_index(&b);
#pragma omp parallel num_threads(threads_of(ctx, &b.w))
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        hti_arena c = {b.threads + b.thread_bytes * (size_t)thread, 0};
        grad_own o;
        grad_own_take(&o, &c, &b.w.t, call->length, b.w.rel.reach);
        memset(o.x, 0, sizeof *o.x);
        clear_bias(&b, thread, threads);
        work_begin(&b.w, thread, threads);
        backward_up(&o, &b, thread, threads);
        int fine = b.w.z.fine, far = b.w.t.rows > 0;
        if (far && !fine) backward_across(&o, &b, thread, threads);
        backward_near(&o, &b, thread, threads);
        vf_stream_end();
        if (far && fine) {
#pragma omp barrier
            backward_across(&o, &b, thread, threads);
            fine_far(&b, thread, threads);
        }
        if (b.bias) {
#pragma omp barrier
            add_bias(&b, thread, threads);
        }
    }
}
