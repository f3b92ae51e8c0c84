/*
 * Opening, part 2: forward. One key head after the other: all threads build its pyramid, then take
 * steps of its rows in turn. A tile takes in what it meets level by level, then every row what it
 * has gathered, then the rows of level 0.
 */

typedef struct opened_own {
    tile *t;
    chooser o;
    float *turned; /* [TILE] x dp */
} opened_own;

static void opened_own_take(opened_own *o, hti_arena *c, const opening *g) {
    o->t = hti_take(c, 1, sizeof(tile));
    chooser_take(&o->o, c, g);
    o->turned = hti_take(c, TILE * g->w.z.dp, sizeof(float));
}

/* call NULL: measures for the plan's maxima */
static size_t opened_take(opening *g, void *base, const ht_attention_desc *desc,
                          const hti_attention_call *call, int threads, char **own,
                          size_t *own_bytes) {
    hti_arena c = {base, 0}, mine = {NULL, 0};
    opened_own o;
    opening_take(g, &c, desc, call);
    opened_own_take(&o, &mine, g);
    *own_bytes = (mine.used + 4095) / 4096 * 4096;
    *own = hti_take(&c, threads, *own_bytes);
    return c.used;
}

/* ---- what is met ---- */

/* Logits of a pass, whose first key is number `done` of the level, and their maxima. */
static void met_pass(tile *t, vf top[TILE_VECTORS], const chooser *o, int64_t done, int64_t n) {
    memcpy(t->s, o->mean + (o->before + done) * TILE, sizeof(float) * (size_t)(n * TILE));
    for (int x = 0; x < TILE_VECTORS; x++) {
        top[x] = vf_set1(-FLT_MAX);
        for (int64_t j = 0; j < n; j++) top[x] = vf_max(top[x], vf_load(t->s + j * TILE + x * VW));
    }
}

/* The tile's state takes in a level. */
static rows_in met_level(tile *t, const chooser *o, const opening *g, const hti_seq *s, int l,
                         int64_t c0, rows_in in) {
    const hti_shape *z = &g->w.z;
    keys at = pyramid_keys(&g->w, s, 0, l);
    rows_of v = {at.v, z->dvp, -1};
    rows_out to = {t->acc, z->dvp, z->dvp, NULL, 0};
    hti_segs pass;
    for (int64_t done = 0; done < o->segs.keys;) {
        vf top[TILE_VECTORS];
        int64_t before = done;
        done = next_pass(&pass, &o->segs, done, -1);
        met_pass(t, top, o, before, pass.keys);
        if (t->drop.threshold) {
            draw_factors(t->factor, &t->drop, &pass, c0);
            weigh(t, top, pass.keys, 1);
        } else {
            weigh(t, top, pass.keys, 0);
        }
        values(t, t->s, &pass, &v, z->dvw, &in, &to);
        in = (rows_in){t->acc, z->dvp, 0};
    }
    return in;
}

/* ---- what is gathered ---- */

/* NV vectors of the rows `at`, weighed and added to a row times `keep`: two sums in turn. */
INLINE void gather_block(const int NV, float *row, float keep, const float *w, const uint32_t *at,
                         int64_t n, const float *base, int64_t stride) {
    vf a[2][2 * VALUE_VECTORS], f = vf_set1(keep);
    UNROLL for (int v = 0; v < NV; v++) {
        a[0][v] = vf_mul(f, vf_load(row + v * VW));
        a[1][v] = vf_zero();
    }
    int64_t j = 0;
    for (; j + 2 <= n; j += 2) {
        const float *x = base + (int64_t)at[j] * stride, *y = base + (int64_t)at[j + 1] * stride;
        vf p = vf_set1(w[j]), q = vf_set1(w[j + 1]);
        UNROLL for (int v = 0; v < NV; v++) a[0][v] = vf_fma(p, vf_load(x + v * VW), a[0][v]);
        UNROLL for (int v = 0; v < NV; v++) a[1][v] = vf_fma(q, vf_load(y + v * VW), a[1][v]);
    }
    if (j < n) {
        const float *x = base + (int64_t)at[j] * stride;
        vf p = vf_set1(w[j]);
        UNROLL for (int v = 0; v < NV; v++) a[0][v] = vf_fma(p, vf_load(x + v * VW), a[0][v]);
    }
    UNROLL for (int v = 0; v < NV; v++) vf_store(row + v * VW, vf_add(a[0][v], a[1][v]));
}

/* row = keep row + sum_j w_j base[at_j], `width` columns in whole vectors */
static void gather_rows(float *row, float keep, const float *w, const uint32_t *at, int64_t n,
                        const float *base, int64_t stride, int64_t width) {
    int64_t col = 0;
    for (; col + 4 * VW <= width; col += 4 * VW)
        gather_block(4, row + col, keep, w, at, n, base + col, stride);
    for (; col < width; col += VW) gather_block(1, row + col, keep, w, at, n, base + col, stride);
}

/* Logits of one row to weights under its maximum; returns their sum. Behind them the array has room
 * for a vector. */
static float weigh_row(float *s, int64_t n, float max, const float *factor) {
    vf sum = vf_zero(), top = vf_set1(max);
    for (int64_t x = n; x % VW; x++) s[x] = -INFINITY;
    for (int64_t j = 0; j < n; j += VW) {
        vf p = exp2_v(vf_sub(vf_load(s + j), top));
        sum = vf_add(sum, p);
        vf_store(s + j, p);
    }
    for (int64_t j = 0; factor && j < n; j++) s[j] *= factor[j];
    return vf_sum(sum);
}

static float highest_logit(const float *s, int64_t n) {
    float top = -FLT_MAX;
    for (int64_t j = 0; j < n; j++) top = s[j] > top ? s[j] : top;
    return top;
}

/* The tile's state takes in what its rows have gathered. */
static rows_in take_gathered(tile *t, const chooser *o, const opening *g, rows_in in) {
    const hti_shape *z = &g->w.z;
    float top[TILE];
    int64_t all = 0;
    for (int i = 0; i < TILE; i++) {
        top[i] = highest_logit(o->logit + i * g->room, o->gathered[i]);
        all += o->gathered[i];
    }
    if (all == 0) return in;
    for (int x = 0; x < TILE; x += VW) {
        vf old = vf_load(t->max + x), max = vf_max(old, vf_load(top + x));
        vf_store(t->keep + x, exp2_v(vf_sub(old, max)));
        vf_store(t->max + x, max);
    }
    for (int i = 0; i < TILE; i++) {
        float *s = o->logit + i * g->room, *row = t->acc + i * z->dvp;
        int64_t n = o->gathered[i];
        if (!in.base) zero_row(row, z->dvp);
        t->sum[i] = t->sum[i] * t->keep[i] +
                    weigh_row(s, n, t->max[i], o->factor ? o->factor + i * g->room : NULL);
        gather_rows(row, t->keep[i], s, o->at + i * g->room, n, g->w.v, z->dvp, z->dvw);
    }
    return (rows_in){t->acc, z->dvp, 0};
}

/* ---- a tile ---- */

/* The query rows of level 0, scaled, and turned where there is rotary. */
static void near_queries(tile *t, const float *rows, float *turned, const opening *g, int64_t c0) {
    const hti_shape *z = &g->w.z;
    const float *row[TILE];
    for (int i = 0; i < TILE; i++) {
        row[i] = rows + i * z->dp;
        if (!g->turned || i >= t->rows) continue;
        turn_row(turned + i * z->dp, row[i], &g->w.turn, c0 + i, 1);
        row[i] = turned + i * z->dp;
    }
    transpose_rows(t->q, row, z->d, g->factor);
}

static void opened_tile(opened_own *x, const opening *g, const hti_seq *s, int64_t head, int64_t c0,
                        int stream) {
    const hti_shape *z = &g->w.z;
    tile *t = x->t;
    t->rows = (int)least(TILE, s->length - c0);
    view out = view_of(g->w.call, &g->w.call->out, s->index, head);
    rows_out user = {out.data + c0 * out.stride, out.stride, z->dv, NULL, stream};
    rows_out here = {t->acc, z->dvp, z->dvp, NULL, 0};
    rows_in in = {NULL, 0, 0};
    keys at = near_keys(g, s);
    float lse[TILE];
    state_clear(t);
    choose_begin(&x->o, t, g, s, head, c0);
    for (int l = s->levels - 1; l > 0; l--) {
        choose_level(&x->o, t, g, s, head, l, c0);
        in = met_level(t, &x->o, g, s, l, c0, in);
    }
    leaf_logits(&x->o, g, s, head, c0);
    in = take_gathered(t, &x->o, g, in);
    near_queries(t, x->o.rows, x->turned, g, c0);
    relative b = enter_level(t, &g->w, s, head, 0, 0);
    hti_segs_make(&x->o.segs, z, s->length, 0, 0, c0, t->rows);
    attend(t, &x->o.segs, &at, z, &b, c0, in, t->rows < TILE ? here : user, 1);
    for (int i = 0; i < t->rows && t->rows < TILE; i++)
        for (int64_t c = 0; c < z->dv; c++) user.base[i * user.stride + c] = t->acc[i * z->dvp + c];
    lse_of_tile(lse, t);
    put_lse(&g->w, s, head, c0, t->rows, lse);
}

/* The thread's steps of one key head: every so many of all. */
static void opened_rows(opened_own *x, const opening *g, int64_t kv, int stream, int thread,
                        int threads) {
    const hti_shape *z = &g->w.z;
    hti_walk w;
    int number = 0;
    for (int go = hti_walk_begin(&w, &g->w.t, 1, 0, 1); go; go = hti_walk_next(&w)) {
        number = number + 1 == threads ? 0 : number + 1;
        if (number != thread) continue;
        for (int64_t h = kv * z->group; h < (kv + 1) * z->group; h++)
            for (int64_t c0 = w.row; c0 < least(w.row + w.seq.step, w.seq.length); c0 += TILE)
                opened_tile(x, g, &w.seq, h, c0, stream);
    }
#pragma omp barrier
}

static void opened_forward(ht_context *ctx, const hti_attention_call *call) {
    opening g;
    char *own;
    size_t own_bytes;
    opened_take(&g, call->scratch, call->desc, call, ctx->threads, &own, &own_bytes);
    int stream = can_stream(&call->out, call->rows, g.w.z.q_heads, g.w.z.dv);
    hti_tables_index(&g.w.t);
#pragma omp parallel num_threads(threads_of(ctx, &g.w))
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        hti_arena c = {own + own_bytes * (size_t)thread, 0};
        opened_own o;
        opened_own_take(&o, &c, &g);
        memset(o.t, 0, sizeof *o.t);
        o.t->live = ~0u;
        work_begin(&g.w, thread, threads);
        for (int64_t kv = 0; kv < g.w.z.kv_heads; kv++) {
            open_up(&g, kv, thread, threads);
            opened_rows(&o, &g, kv, stream, thread, threads);
        }
        vf_stream_end();
    }
}
