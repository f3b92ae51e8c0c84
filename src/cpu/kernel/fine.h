/*
 * Backward of mode fine. Every row has its own query at every level, so that a key cluster of a
 * high level is seen by very many rows: their gradients are summed in two stages, each in one
 * order.
 *
 *     near    a run's rows add to the gradients of the pyramid's keys in a part of the run's own
 *     reduce  the pyramid's gradients: the sum of all runs' parts, and the parents' shares
 *     far     level `local` of the pyramid joins dk and dv of its rows
 *
 * A part has, for each level, room for the key clusters that any run of the sequence can see
 * (backward.h).
 */

/* Fills part_from; one thread. */
static void parts_index(const backward *b) {
    const hti_tables *t = &b->w.t;
    int64_t rows = 0;
    hti_seq s;
    if (!b->part_from) return;
    for (int64_t i = 0; i <= b->w.call->sequences; i++) {
        b->part_from[i] = rows;
        if (i == b->w.call->sequences || !is_shared(t, i)) continue;
        hti_seq_make(&s, t, i);
        int64_t runs = (s.length + t->chunk - 1) / t->chunk;
        rows += runs * part_rows(t, s.length, s.local, s.levels);
    }
}

/* Key clusters of a level >= local that rows of a run see. */
static hti_range part_range(const hti_shape *z, const hti_seq *s, hti_range rows, int level) {
    int64_t b = z->block, right = z->causal ? 1 : 2;
    return (hti_range){most((rows.lo >> level) / b - 1, 0) * b,
                       least((((rows.hi - 1) >> level) / b + right) * b, s->clusters[level])};
}

static hti_range run_rows_of(const hti_tables *t, const hti_seq *s, int64_t number) {
    return (hti_range){number * t->chunk, least((number + 1) * t->chunk, s->length)};
}

/* Gradients of the pyramid's keys in the part of one run of a sequence . */
static grad_keys part_keys(const backward *b, const hti_seq *s, int64_t kv, int64_t number,
                           int level) {
    const hti_tables *t = &b->w.t;
    const hti_shape *z = &t->shape;
    hti_range r = part_range(z, s, run_rows_of(t, s, number), level);
    int64_t at = b->part_from[s->index] + number * part_rows(t, s->length, s->local, s->levels) +
                 part_rows(t, s->length, s->local, level) + kv * b->part_rows;
    return (grad_keys){b->part_dk + at * z->dp, b->part_dv + at * z->dvp, r.lo, r.hi};
}

static void part_clear(const backward *b, const run *r) {
    const hti_shape *z = &b->w.z;
    for (int l = r->s->local; l < r->s->levels; l++) {
        grad_keys to = part_keys(b, r->s, r->kv, r->rows.lo / b->w.t.chunk, l);
        memset(to.dk, 0, sizeof(float) * (size_t)((to.hi - to.lo) * z->dp));
        memset(to.dv, 0, sizeof(float) * (size_t)((to.hi - to.lo) * z->dvp));
    }
}

/* ---- near ---- */

/* Rows c0 ... against all levels above 0: their dq goes to o->dq, rows dp apart. Rows of other runs
 * (not mine) are here for the run's own keys alone. */
static rows_in fine_grad_tile(grad_own *o, const backward *b, const run *r, int64_t row,
                              int64_t head, int64_t c0, int mine) {
    const hti_shape *z = &b->w.z;
    const hti_seq *s = r->s;
    grad_tile *x = o->x;
    rows_in in = {NULL, z->dp, 0};
    const float *q = (b->w.turn.table ? o->q : o->q0) + (c0 - row) * z->dp; /* not turned */
    const float *g = o->g0 + (c0 - row) * z->dvp;
    grad_lanes(o, b, s, 0, c0, o->m0 + c0 - row, o->h0 + c0 - row);
    transpose_tile(x, z, q, g, b->w.rel.scale);
    int64_t index = r->rows.lo / b->w.t.chunk;
    for (int l = 1; l < (mine ? s->levels : s->local); l++) {
        int ring = l < s->local;
        keys at = ring ? ring_keys(&o->keys, &b->w, s, l) : pyramid_keys(&b->w, s, r->kv, l);
        grad_keys to = ring ? run_keys(o, b, r, l) : part_keys(b, s, r->kv, index, l);
        hti_segs_make(&o->segs, z, s->clusters[l], l, l, c0, x->t.rows);
        if (!mine) segs_clip(&o->segs, to.lo, to.hi);
        if (o->segs.keys == 0) continue;
        for (int i = 0; i < TILE; i++) x->t.keep[i] = 1;
        grad_job job = {&at, enter_level(&x->t, &b->w, s, head, l, l), c0,  q, g, to, mine,
                        in,  {o->dq, z->dp, z->dp, NULL, 0},           NULL};
        grad_run_tile(o, b, &job, mine ? bias_slot(b, r->slot, head) : NULL);
        in.base = o->dq;
    }
    return in;
}

/* ---- reduce ---- */

static void add_rows(float *to, const float *from, int64_t floats) {
    for (int64_t i = 0; i < floats; i += VW)
        vf_store(to + i, vf_add(vf_load(to + i), vf_load(from + i)));
}

/* Clusters `own` of a pyramid level (dk, dv: of the first): += the parts of all runs whose rows may
 * see them, in order. */
static void add_parts(float *dk, float *dv, const backward *b, const hti_seq *s, int l, int64_t kv,
                      hti_range own) {
    const hti_shape *z = &b->w.z;
    int64_t unit = z->block << l;
    int64_t row0 = most(own.lo / z->block - 1, 0) * unit;
    int64_t row1 = least(((own.hi - 1) / z->block + 2) * unit, s->length);
    for (int64_t i = row0 / b->w.t.chunk; i * b->w.t.chunk < row1; i++) {
        grad_keys from = part_keys(b, s, kv, i, l);
        int64_t lo = most(own.lo, from.lo), hi = least(own.hi, from.hi);
        if (lo >= hi) continue;
        add_rows(dk + (lo - own.lo) * z->dp, from.dk + (lo - from.lo) * z->dp, (hi - lo) * z->dp);
        add_rows(dv + (lo - own.lo) * z->dvp, from.dv + (lo - from.lo) * z->dvp,
                 (hi - lo) * z->dvp);
    }
}

static void reduce_item(const backward *b, const hti_seq *s, int l, int64_t kv, hti_range own) {
    const hti_shape *z = &b->w.z;
    int64_t key = pyramid_row(&b->w.t, kv, s, l, own.lo);
    begin_keys(b, s, l, kv, own);
    add_parts(b->dk + key * z->dp, b->dv + key * z->dvp, b, s, l, kv, own);
}

/* ---- far ---- */

/* to += factor * x */
static void add_row(float *to, const float *x, float factor, int64_t w) {
    vf f = vf_set1(factor);
    for (int64_t c = 0; c < w; c += VW) {
        if (w - c >= VW) {
            vf_store(to + c, vf_fma(f, vf_load(x + c), vf_load(to + c)));
        } else {
            int n = (int)(w - c);
            vf_store_n(to + c, vf_fma(f, vf_load(x + c), vf_load_n(to + c, n)), n);
        }
    }
}

static void fine_far(const backward *b, int thread, int threads) {
    const hti_shape *z = &b->w.z;
    const hti_attention_call *c = b->w.call;
    hti_walk w;
    for (int go = hti_walk_begin(&w, &b->w.t, z->kv_heads, thread, threads); go;
         go = hti_walk_next(&w)) {
        const hti_seq *s = &w.seq;
        if (s->local == s->levels) continue;
        view dk = view_of(c, &c->dk, s->index, w.head), dv = view_of(c, &c->dv, s->index, w.head);
        const float *n = b->w.t.key_n + s->count_at[0], *up = b->w.t.key_n + s->count_at[s->local];
        hti_range own = hti_step_own(s, w.row, 0);
        for (int64_t i = own.lo; i < own.hi; i++) {
            int64_t key = pyramid_row(&b->w.t, w.head, s, s->local, i >> s->local);
            float share = 1 / up[i >> s->local];
            if (n[i] == 0) continue;
            add_row(dk.data + i * dk.stride, b->dk + key * z->dp, share * (float)c->desc->scale,
                    z->d);
            add_row(dv.data + i * dv.stride, b->dv + key * z->dvp, share, z->dv);
        }
    }
}
