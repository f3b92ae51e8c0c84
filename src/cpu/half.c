/*
 * Calls whose tensors have 16 bits: they are widened into scratch, computed in float, and what
 * comes out is rounded. Strides end here: the wide tensors lie side by side.
 */
#include "core/bf16.h"
#include "core/f16.h"
#include "cpu/cpu.h"

enum { ALIGN = 64 };

/* A tensor of the call and where its float copy lies. */
typedef struct pair {
    const ht_tensor *half;
    ht_tensor *wide;
    int64_t heads, dim;
} pair;

static size_t wide_bytes(int64_t rows, int64_t heads, int64_t dim) {
    return ((size_t)(rows * heads * dim) * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
}

/* Of q, k, v and out; of their gradients as much. */
static size_t all_bytes(const ht_attention_desc *d, int64_t rows) {
    return wide_bytes(rows, d->q_heads, d->head_dim) + wide_bytes(rows, d->kv_heads, d->head_dim) +
           wide_bytes(rows, d->kv_heads, d->value_dim) + wide_bytes(rows, d->q_heads, d->value_dim);
}

static int64_t row_at(const hti_attention_call *c, const ht_tensor *t, int64_t row) {
    if (c->cu_seqlens) return row * t->row_stride;
    return row / c->length * t->batch_stride + row % c->length * t->row_stride;
}

static void widen(const hti_attention_call *c, const pair *p, int threads) {
    const uint16_t *from = p->half->data;
    float *to = p->wide->data;
    int is_f16 = c->desc->dtype == HT_F16;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < c->rows; r++) {
        for (int64_t h = 0; h < p->heads; h++) {
            const uint16_t *x = from + row_at(c, p->half, r) + h * p->half->head_stride;
            float *y = to + (r * p->heads + h) * p->dim;
            for (int64_t i = 0; i < p->dim; i++)
                y[i] = is_f16 ? hti_from_f16(x[i]) : hti_from_bf16(x[i]);
        }
    }
}

static void narrow(const hti_attention_call *c, const pair *p, int threads) {
    const float *from = p->wide->data;
    uint16_t *to = p->half->data;
    int is_f16 = c->desc->dtype == HT_F16;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < c->rows; r++) {
        for (int64_t h = 0; h < p->heads; h++) {
            const float *x = from + (r * p->heads + h) * p->dim;
            uint16_t *y = to + row_at(c, p->half, r) + h * p->half->head_stride;
            for (int64_t i = 0; i < p->dim; i++)
                y[i] = is_f16 ? hti_to_f16(x[i]) : hti_to_bf16(x[i]);
        }
    }
}

/* The call as the float kernels get it; pairs: q, k, v, out and, backward, their gradients. What is
 * left of scratch is theirs. */
typedef struct wide_call {
    ht_attention_desc desc;
    hti_attention_call call;
    pair pairs[8]; /* q, k, v, out, dq, dk, dv, dout */
} wide_call;

static void lay(wide_call *w, const hti_attention_call *c, int count) {
    const ht_attention_desc *d = c->desc;
    hti_attention_call *n = &w->call;
    w->desc = *d, w->desc.dtype = HT_F32;
    *n = *c, n->desc = &w->desc;
    char *at = c->scratch;
    const pair all[8] = {{&c->q, &n->q, d->q_heads, d->head_dim},
                         {&c->k, &n->k, d->kv_heads, d->head_dim},
                         {&c->v, &n->v, d->kv_heads, d->value_dim},
                         {&c->out, &n->out, d->q_heads, d->value_dim},
                         {&c->dq, &n->dq, d->q_heads, d->head_dim},
                         {&c->dk, &n->dk, d->kv_heads, d->head_dim},
                         {&c->dv, &n->dv, d->kv_heads, d->value_dim},
                         {&c->dout, &n->dout, d->q_heads, d->value_dim}};
    for (int i = 0; i < count; i++) {
        int64_t row = all[i].heads * all[i].dim;
        w->pairs[i] = all[i];
        *all[i].wide = (ht_tensor){at, c->cu_seqlens ? 0 : c->length * row, row, all[i].dim};
        at += wide_bytes(c->rows, all[i].heads, all[i].dim);
    }
    n->scratch = at;
}

static int team(const ht_context *ctx, const hti_attention_call *c) {
    return hti_cpu_team(ctx, c->rows * c->desc->q_heads * c->desc->head_dim);
}

void hti_half_need(const ht_context *ctx, const ht_attention_desc *desc, ht_attention_need *need) {
    ht_attention_desc wide = *desc;
    wide.dtype = HT_F32;
    ctx->ops->attention_need(ctx, &wide, need);
    need->scratch_forward += all_bytes(desc, desc->max_rows);
    need->scratch_backward += 2 * all_bytes(desc, desc->max_rows);
}

ht_status hti_half_forward(ht_context *ctx, const hti_attention_call *call) {
    wide_call w;
    int threads = team(ctx, call);
    lay(&w, call, 4);
    for (int i = 0; i < 3; i++) widen(call, &w.pairs[i], threads);
    TRY(ctx->ops->attention_forward(ctx, &w.call));
    narrow(call, &w.pairs[3], threads);
    return HT_OK;
}

ht_status hti_half_backward(ht_context *ctx, const hti_attention_call *call) {
    wide_call w;
    int threads = team(ctx, call);
    lay(&w, call, 8);
    for (int i = 0; i < 4; i++) widen(call, &w.pairs[i], threads);
    widen(call, &w.pairs[7], threads);
    TRY(ctx->ops->attention_backward(ctx, &w.call));
    for (int i = 4; i < 7; i++) narrow(call, &w.pairs[i], threads);
    return HT_OK;
}

/* The kernels take the context's scratch: this has its own. */
ht_status hti_half_pairs(ht_context *ctx, const hti_attention_call *call, int64_t sequence,
                         int64_t head, int8_t *out) {
    wide_call w;
    hti_attention_call own = *call;
    void *block;
    TRY(ctx->ops->alloc(ctx, &block, all_bytes(call->desc, call->rows)));
    own.scratch = block;
    lay(&w, &own, 4);
    for (int i = 0; i < 3; i++) widen(&own, &w.pairs[i], team(ctx, call));
    ht_status status = ctx->ops->attention_pairs(ctx, &w.call, sequence, head, out);
    ctx->ops->release(ctx, block);
    return status;
}

size_t hti_half_cache_scratch(const ht_context *ctx, const hti_cache_call *call) {
    hti_cache_call wide = *call;
    ht_attention_desc desc = *call->a.desc;
    desc.dtype = HT_F32, wide.a.desc = &desc;
    return all_bytes(&desc, call->a.rows) + ctx->ops->cache_scratch(ctx, &wide);
}

/* The state itself is in float: hti_ops.wide_cache. */
ht_status hti_half_cache_extend(ht_context *ctx, const hti_cache_call *call) {
    wide_call w;
    hti_cache_call wide = *call;
    int threads = team(ctx, &call->a);
    lay(&w, &call->a, 4);
    wide.a = w.call;
    for (int i = 0; i < 3; i++) widen(&call->a, &w.pairs[i], threads);
    TRY(ctx->ops->cache_extend(ctx, &wide));
    narrow(&call->a, &w.pairs[3], threads);
    return HT_OK;
}
