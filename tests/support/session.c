/*
 * Problems on the device: slabs with sentinels, strided views, one forward and backward.
 *
 * Gaps and guards hold GUARD bytes and must keep them; outputs hold 0xFF (NaN) before they are
 * written. Inputs have no guards: reading past them is for the sanitizer to find, and gaps between
 * their elements hold NaN, so that using one shows.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#define GUARD 0xA5
#define POISON 0xFF
#define GUARD_BYTES 192

/* ---- slabs ------------------------------------------------------------------------------- */

static void free_device(void *ctx, void *block) { ht_memory_free(ctx, block); }

slab *slab_make(ht_context *ctx, size_t bytes, int fill) {
    slab *s = pool_alloc(sizeof *s);
    void *device;
    *s = (slab){.ctx = ctx, .bytes = bytes};
    harness_ok(ctx, ht_memory_alloc(ctx, &device, bytes ? bytes : 1), NULL);
    pool_defer(free_device, ctx, device);
    s->device = device;
    s->image = pool_alloc(bytes);
    s->writable = pool_alloc(bytes);
    memset(s->image, fill, bytes);
    return s;
}

void slab_upload(slab *s) {
    if (!s->bytes) return;
    harness_ok(s->ctx, ht_memory_copy_in(s->ctx, s->device, s->image, s->bytes), NULL);
}

void slab_check(slab *s, const test_case *c, const char *what) {
    if (!s->bytes) return;
    uint8_t *now = malloc(s->bytes);
    if (!now) abort();
    ht_status status = ht_memory_copy_out(s->ctx, now, s->device, s->bytes);
    size_t bad = 0;
    while (bad < s->bytes && (s->writable[bad] || now[bad] == s->image[bad])) bad++;
    if (status == HT_OK) memcpy(s->image, now, s->bytes);
    free(now);
    harness_ok(s->ctx, status, c);
    if (bad < s->bytes)
        harness_fail(c, "%s: byte %zu of %zu was changed and should not be", what, bad, s->bytes);
}

/* a slab of guards around `bytes` that may be written */
static slab *guarded(ht_context *ctx, size_t bytes) {
    slab *s = slab_make(ctx, bytes + 2 * GUARD_BYTES, GUARD);
    memset(s->image + GUARD_BYTES, POISON, bytes);
    return s;
}

static void allow_inside(slab *s, int writable) {
    memset(s->writable + GUARD_BYTES, writable, s->bytes - 2 * GUARD_BYTES);
}

/* ---- views ------------------------------------------------------------------------------- */

static size_t element(const view *t, const problem *p, int64_t b, int64_t row, int64_t h,
                      int64_t c) {
    int64_t i = p->c.packed ? row * t->row : b * t->batch + (row - p->cu[b]) * t->row;
    return t->at + (size_t)(i + h * t->head + c) * dtype_bytes(t->type);
}

/* every element: canonical index n, byte offset at */
#define EACH_ELEMENT(t, p)                                          \
    for (int64_t b = 0, n = 0; b < (p)->c.batch; b++)               \
        for (int64_t row = (p)->cu[b]; row < (p)->cu[b + 1]; row++) \
            for (int64_t h = 0; h < (t)->heads; h++)                \
                for (int64_t c = 0; c < (t)->dim; c++, n++)

void view_write(const view *t, const problem *p, const double *canonical) {
    EACH_ELEMENT(t, p) {
        dtype_store(t->type, t->in->image + element(t, p, b, row, h, c), canonical[n]);
    }
}

void view_read(const view *t, const problem *p, double *canonical) {
    EACH_ELEMENT(t, p) {
        canonical[n] = dtype_load(t->type, t->in->image + element(t, p, b, row, h, c));
    }
}

void view_allow(const view *t, const problem *p, int writable, int fill) {
    EACH_ELEMENT(t, p) {
        size_t at = element(t, p, b, row, h, c), bytes = dtype_bytes(t->type);
        memset(t->in->writable + at, writable, bytes);
        if (fill >= 0) memset(t->in->image + at, fill, bytes);
        (void)n;
    }
}

ht_tensor view_tensor(const view *t) {
    ht_tensor tensor = {.data = t->in->device + t->at};
    if (t->spelled)
        tensor.batch_stride = t->batch, tensor.row_stride = t->row, tensor.head_stride = t->head;
    return tensor;
}

/* strides of a tensor that has its memory to itself; returns the elements it spans */
static int64_t lay_out(view *t, const problem *p) {
    int64_t rows = p->c.packed ? p->rows : p->c.length;
    int pad = p->c.layout == LAYOUT_PADDED;
    t->spelled = p->c.layout != LAYOUT_PLAIN;
    t->head = t->dim + pad;
    t->row = t->heads * t->head + 3 * pad;
    t->batch = rows * t->row + 5 * pad;
    if (p->c.layout == LAYOUT_HEADS) t->row = t->dim, t->head = rows * t->dim;
    return (p->c.packed ? 1 : p->c.batch) * t->batch;
}

view view_make(ht_context *ctx, const problem *p, ht_dtype type, int64_t heads, int64_t dim,
               int fill) {
    view t = {.type = type, .heads = heads, .dim = dim};
    size_t bytes = dtype_bytes(type), guard = fill == GUARD ? GUARD_BYTES : 0;
    int64_t span = lay_out(&t, p);
    t.at = guard + (p->c.layout == LAYOUT_PADDED ? bytes : 0); /* one element off the alignment */
    t.in = slab_make(ctx, t.at + (size_t)span * bytes + guard, fill);
    return t;
}

/* q, k, v (or their gradients) side by side in every row */
static void make_fused(view t[3], ht_context *ctx, const problem *p, ht_dtype type, int fill) {
    const test_case *c = &p->c;
    int64_t heads[3] = {c->q_heads, c->kv_heads, c->kv_heads};
    int64_t dims[3] = {c->head_dim, c->head_dim, c->value_dim}, row = 0, first = 0;
    for (int i = 0; i < 3; i++) row += heads[i] * dims[i];
    size_t guard = fill == GUARD ? GUARD_BYTES : 0;
    slab *in = slab_make(ctx, 2 * guard + (size_t)(p->rows * row) * dtype_bytes(type), fill);
    for (int i = 0; i < 3; i++) {
        t[i] = (view){.in = in, .type = type, .heads = heads[i], .dim = dims[i], .spelled = 1};
        t[i].at = guard + (size_t)first * dtype_bytes(type);
        t[i].head = dims[i], t[i].row = row, t[i].batch = c->length * row;
        first += heads[i] * dims[i];
    }
}

static void make_three(view *q, view *k, view *v, session *s, int fill) {
    const test_case *c = &s->p->c;
    ht_dtype type = (ht_dtype)c->dtype;
    if (c->layout == LAYOUT_FUSED) {
        view t[3];
        make_fused(t, s->ctx, s->p, type, fill);
        *q = t[0], *k = t[1], *v = t[2];
        return;
    }
    *q = view_make(s->ctx, s->p, type, c->q_heads, c->head_dim, fill);
    *k = view_make(s->ctx, s->p, type, c->kv_heads, c->head_dim, fill);
    *v = view_make(s->ctx, s->p, type, c->kv_heads, c->value_dim, fill);
}

/* ---- sessions ---------------------------------------------------------------------------- */

ht_attention_desc problem_desc(const problem *p) {
    const test_case *c = &p->c;
    ht_attention_desc d = HT_ATTENTION_DESC_INIT;
    d.kind = (ht_kind)c->kind, d.query = (ht_query)c->query, d.dtype = (ht_dtype)c->dtype;
    d.causal = (int)c->causal, d.has_bias = (int)c->bias, d.cross = (int)c->cross;
    d.q_heads = c->q_heads, d.kv_heads = c->kv_heads;
    d.head_dim = c->head_dim, d.value_dim = c->value_dim, d.block = c->block;
    d.max_rows = p->rows > 0 ? p->rows : 1;
    d.max_sequences = c->batch, d.max_length = p->longest > 0 ? p->longest : 1;
    if (c->slack) d.max_rows = 2 * p->rows + 100, d.max_sequences = 0, d.max_length = 0;
    d.scale = (double)c->scale / 1000, d.rotary_theta = (double)c->rotary;
    d.dropout = (double)c->dropout / 100;
    d.open = c->open, d.open_leaf = c->leaf, d.open_peek = c->peek;
    return d;
}

static void remember(session *s, slab *in, const char *name) {
    if (s->slab_count && s->slabs[s->slab_count - 1] == in) return; /* fused */
    if (s->slab_count == (int)COUNT(s->slabs)) abort();
    s->slabs[s->slab_count] = in;
    s->names[s->slab_count++] = name;
}

static void destroy_plan(void *a, void *b) {
    (void)b;
    ht_attention_destroy(a);
}

/* inputs: q, k, v, masks, bias, dout, dlse */
static void open_inputs(session *s) {
    const problem *p = s->p;
    ht_dtype type = (ht_dtype)p->c.dtype, wide = dtype_wide(type);
    make_three(&s->q, &s->k, &s->v, s, POISON);
    view_write(&s->q, p, p->q), view_write(&s->k, p, p->k), view_write(&s->v, p, p->v);
    s->dout = view_make(s->ctx, p, type, p->c.q_heads, p->c.value_dim, POISON);
    view_write(&s->dout, p, p->dout);
    remember(s, s->q.in, "q"), remember(s, s->k.in, "k"), remember(s, s->v.in, "v");
    remember(s, s->dout.in, "dout");
    if (p->dlse) {
        s->dlse = view_make(s->ctx, p, wide, p->c.q_heads, 1, POISON);
        view_write(&s->dlse, p, p->dlse);
        remember(s, s->dlse.in, "dlse");
        s->grads.dlse = view_tensor(&s->dlse);
    }
    if (p->bias) {
        size_t n = (size_t)problem_bias_size(p), bytes = dtype_bytes(wide);
        s->bias = slab_make(s->ctx, n * bytes, POISON);
        for (size_t i = 0; i < n; i++) dtype_store(wide, s->bias->image + i * bytes, p->bias[i]);
        remember(s, s->bias, "bias");
        s->args.bias = s->bias->device;
    }
    const uint8_t *masks[2] = {p->key_mask, p->query_mask}, *at[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        if (!masks[i]) continue;
        slab *in = slab_make(s->ctx, (size_t)p->rows, 0);
        memcpy(in->image, masks[i], (size_t)p->rows);
        remember(s, in, "mask");
        at[i] = in->device;
    }
    s->args.key_mask = at[0], s->args.query_mask = at[1];
    s->args.q = view_tensor(&s->q), s->args.k = view_tensor(&s->k), s->args.v = view_tensor(&s->v);
    s->grads.dout = view_tensor(&s->dout);
}

/* outputs and workspace, guarded and poisoned */
static void open_outputs(session *s) {
    const problem *p = s->p;
    ht_dtype type = (ht_dtype)p->c.dtype, wide = dtype_wide(type);
    s->out = view_make(s->ctx, p, type, p->c.q_heads, p->c.value_dim, GUARD);
    view_allow(&s->out, p, 1, POISON);
    remember(s, s->out.in, "out");
    s->args.out = view_tensor(&s->out);
    if (p->c.lse) {
        s->lse = view_make(s->ctx, p, wide, p->c.q_heads, 1, GUARD);
        view_allow(&s->lse, p, 1, POISON);
        remember(s, s->lse.in, "lse");
        s->args.lse = view_tensor(&s->lse);
    }
    make_three(&s->dq, &s->dk, &s->dv, s, GUARD);
    view_allow(&s->dq, p, 0, POISON), view_allow(&s->dk, p, 0, POISON);
    view_allow(&s->dv, p, 0, POISON);
    remember(s, s->dq.in, "dq"), remember(s, s->dk.in, "dk"), remember(s, s->dv.in, "dv");
    s->grads.dq = view_tensor(&s->dq), s->grads.dk = view_tensor(&s->dk);
    s->grads.dv = view_tensor(&s->dv);
    if (p->bias) {
        s->dbias = guarded(s->ctx, (size_t)problem_bias_size(p) * dtype_bytes(wide));
        memset(s->dbias->image + GUARD_BYTES, 0, s->dbias->bytes - 2 * GUARD_BYTES);
        remember(s, s->dbias, "dbias");
        s->grads.dbias = s->dbias->device + GUARD_BYTES;
    }
    s->saved = guarded(s->ctx, s->need.saved);
    s->scratch_forward = guarded(s->ctx, s->need.scratch_forward);
    s->scratch_backward = guarded(s->ctx, s->need.scratch_backward);
    remember(s, s->saved, "saved"), remember(s, s->scratch_forward, "scratch of forward");
    remember(s, s->scratch_backward, "scratch of backward");
    s->args.saved = s->saved->device + GUARD_BYTES;
}

/* buffers and arguments, for a plan whose need is known */
static void open_buffers(session *s) {
    const problem *p = s->p;
    oracle_problem same = problem_oracle(p);
    s->args = (ht_attention_args)HT_ATTENTION_ARGS_INIT;
    s->grads = (ht_attention_grads)HT_ATTENTION_GRADS_INIT;
    s->args.batch = p->c.batch, s->args.length = p->c.packed ? 0 : p->c.length;
    s->args.cu_seqlens = p->c.packed ? p->cu : NULL;
    s->args.seed = same.seed, s->args.offset = same.offset;
    open_inputs(s);
    open_outputs(s);
    for (int i = 0; i < s->slab_count; i++) slab_upload(s->slabs[i]);
}

ht_status session_open(session *s, ht_context *ctx, const problem *p) {
    ht_attention_desc desc = problem_desc(p);
    *s = (session){.ctx = ctx, .p = p};
    ht_status status = ht_attention_create(&s->plan, ctx, &desc);
    if (status == HT_UNSUPPORTED) return status;
    harness_ok(ctx, status, &p->c);
    pool_defer(destroy_plan, s->plan, NULL);
    s->need = (ht_attention_need)HT_ATTENTION_NEED_INIT;
    harness_ok(ctx, ht_attention_get_need(s->plan, &s->need), &p->c);
    open_buffers(s);
    return HT_OK;
}

void session_open_buffers(session *s, ht_context *ctx, const problem *p) {
    *s = (session){.ctx = ctx, .p = p};
    open_buffers(s);
    s->args.saved = NULL;
}

void session_check(session *s) {
    for (int i = 0; i < s->slab_count; i++) slab_check(s->slabs[i], &s->p->c, s->names[i]);
}

void session_allow_all(session *s) {
    view *set[] = {&s->out, &s->lse, &s->dq, &s->dk, &s->dv};
    slab *inside[] = {s->dbias, s->saved, s->scratch_forward, s->scratch_backward};
    for (size_t i = 0; i < COUNT(set); i++)
        if (set[i]->in) view_allow(set[i], s->p, 1, -1);
    for (size_t i = 0; i < COUNT(inside); i++)
        if (inside[i]) allow_inside(inside[i], 1);
}

void session_forward(session *s) {
    const problem *p = s->p;
    view_allow(&s->out, p, 1, -1);
    if (p->c.lse) view_allow(&s->lse, p, 1, -1);
    allow_inside(s->saved, 1), allow_inside(s->scratch_forward, 1);
    if (p->c.scratch) s->args.scratch = s->scratch_forward->device + GUARD_BYTES;
    harness_ok(s->ctx, ht_attention_forward(s->plan, &s->args), &p->c);
    session_check(s);
    view_allow(&s->out, p, 0, -1);
    if (p->c.lse) view_allow(&s->lse, p, 0, -1);
    allow_inside(s->saved, 0), allow_inside(s->scratch_forward, 0);
}

void session_backward(session *s) {
    const problem *p = s->p;
    view *set[3] = {&s->dq, &s->dk, &s->dv};
    for (int i = 0; i < 3; i++) view_allow(set[i], p, 1, -1);
    if (s->dbias) allow_inside(s->dbias, 1);
    allow_inside(s->scratch_backward, 1);
    if (p->c.scratch) s->args.scratch = s->scratch_backward->device + GUARD_BYTES;
    harness_ok(s->ctx, ht_attention_backward(s->plan, &s->args, &s->grads), &p->c);
    session_check(s);
    for (int i = 0; i < 3; i++) view_allow(set[i], p, 0, -1);
    if (s->dbias) allow_inside(s->dbias, 0);
    allow_inside(s->scratch_backward, 0);
}

void session_set_dbias(session *s, const double *start) {
    ht_dtype wide = dtype_wide((ht_dtype)s->p->c.dtype);
    for (int64_t i = 0; i < problem_bias_size(s->p); i++)
        dtype_store(wide, s->dbias->image + GUARD_BYTES + (size_t)i * dtype_bytes(wide), start[i]);
    slab_upload(s->dbias);
}

void session_read(const session *s, outcome *o) {
    const problem *p = s->p;
    ht_dtype wide = dtype_wide((ht_dtype)p->c.dtype);
    view_read(&s->out, p, o->out);
    if (p->c.lse) view_read(&s->lse, p, o->lse);
    view_read(&s->dq, p, o->dq), view_read(&s->dk, p, o->dk), view_read(&s->dv, p, o->dv);
    for (int64_t i = 0; i < problem_bias_size(p) && s->dbias; i++)
        o->dbias[i] =
            dtype_load(wide, s->dbias->image + GUARD_BYTES + (size_t)i * dtype_bytes(wide));
}

outcome run_problem(ht_context *ctx, const problem *p) {
    session s;
    outcome o = outcome_make(p);
    if (session_open(&s, ctx, p) == HT_UNSUPPORTED) {
        print_message("%s\n", ht_context_error(ctx));
        skip();
    }
    session_forward(&s);
    session_backward(&s);
    session_read(&s, &o);
    return o;
}
