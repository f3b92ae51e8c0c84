/*
 * A call of the attention: check the arguments against the plan, fill in strides, go through the
 * wall.
 */
#include <limits.h>

#include "attention/plan.h"
#include "core/sized.h"

typedef struct shape {
    int64_t batch, length, heads, dim; /* packed: batch 1, length = rows of all */
    size_t element;                    /* bytes */
} shape;

/* Of lse and bias, and what saved and scratch may begin with. */
static size_t wide_bytes(const ht_attention_desc *d) {
    return d->dtype == HT_F64 ? sizeof(double) : sizeof(float);
}

/* The shapes of a call's tensors and of their gradients. */
typedef struct shapes {
    shape q, k, v, out, lse;
} shapes;

static shapes shapes_of(const hti_attention_call *c) {
    const ht_attention_desc *d = c->desc;
    int packed = c->cu_seqlens != NULL;
    shape q = {packed ? 1 : c->sequences, packed ? c->rows : c->length, d->q_heads, d->head_dim,
               hti_bytes(d->dtype)};
    shapes s = {q, q, q, q, q};
    s.k.heads = s.v.heads = d->kv_heads;
    s.v.dim = s.out.dim = d->value_dim;
    s.lse.dim = 1;
    s.lse.element = wide_bytes(d);
    return s;
}

/* ---- tensors ---- */

static ht_status check_stride(ht_context *ctx, const char *name, const char *which,
                              int64_t stride) {
    CHECK(ctx, stride >= 0 && stride <= INT64_MAX / 64, HT_INVALID,
          "%s: %s stride must not be negative or huge, got %lld", name, which, (long long)stride);
    return HT_OK;
}

/* No two elements of an output may share an address. */
static ht_status check_disjoint(ht_context *ctx, const char *name, const ht_tensor *t,
                                const shape *s) {
    int64_t stride[3] = {t->batch_stride, t->row_stride, t->head_stride};
    int64_t extent[3] = {s->batch, s->length, s->heads}, span = s->dim;
    if (s->length == 0) return HT_OK; /* a pack of empty sequences */
    for (int done = 0; done < 3; done++) {
        int next = -1;
        for (int i = 0; i < 3; i++)
            if (extent[i] > 0 && (next < 0 || stride[i] < stride[next])) next = i;
        CHECK(ctx, extent[next] == 1 || stride[next] >= span, HT_INVALID,
              "%s: strides (batch %lld, row %lld, head %lld) make elements overlap", name,
              (long long)t->batch_stride, (long long)t->row_stride, (long long)t->head_stride);
        if (extent[next] > 1) span += (extent[next] - 1) * stride[next];
        extent[next] = -1;
    }
    return HT_OK;
}

static ht_status check_extent(ht_context *ctx, const char *name, const ht_tensor *t,
                              const shape *s) {
    int64_t a, b, c;
    int fits = hti_mul(&a, s->batch, t->batch_stride) && hti_mul(&b, s->length, t->row_stride) &&
               hti_mul(&c, s->heads, t->head_stride) && a < INT64_MAX / 64 && b < INT64_MAX / 64 &&
               c < INT64_MAX / 64;
    CHECK(ctx, fits, HT_INVALID, "%s: strides times sizes overflow (row stride %lld)", name,
          (long long)t->row_stride);
    return HT_OK;
}

/* A number must lie where numbers of its type may. */
static ht_status check_place(ht_context *ctx, const char *name, const void *at, size_t bytes) {
    CHECK(ctx, (uintptr_t)at % bytes == 0, HT_INVALID,
          "%s begins at address %p, which is no multiple of %zu bytes", name, at, bytes);
    return HT_OK;
}

/* An absent optional tensor (data NULL) stays absent. */
static ht_status resolve(ht_tensor *out, ht_context *ctx, const char *name, const ht_tensor *in,
                         const shape *s, int packed, int is_output) {
    *out = *in;
    if (!out->data) return HT_OK;
    TRY(check_place(ctx, name, in->data, s->element));
    TRY(check_stride(ctx, name, "batch", in->batch_stride));
    TRY(check_stride(ctx, name, "row", in->row_stride));
    TRY(check_stride(ctx, name, "head", in->head_stride));
    if (out->head_stride == 0) out->head_stride = s->dim;
    if (out->row_stride == 0) out->row_stride = s->heads * s->dim;
    TRY(check_extent(ctx, name, out, s));
    if (out->batch_stride == 0) out->batch_stride = s->length * out->row_stride;
    if (packed) out->batch_stride = 0;
    TRY(check_extent(ctx, name, out, s));
    return is_output ? check_disjoint(ctx, name, out, s) : HT_OK;
}

static ht_status need_data(ht_context *ctx, const char *name, const ht_tensor *t) {
    CHECK(ctx, t->data, HT_INVALID, "%s.data is NULL", name);
    return HT_OK;
}

/* ---- rows ---- */

static ht_status count_packed(hti_attention_call *c, ht_context *ctx, const ht_attention_args *a) {
    const int32_t *cu = a->cu_seqlens;
    CHECK(ctx, cu[0] == 0, HT_INVALID, "cu_seqlens[0] must be 0, got %d", (int)cu[0]);
    c->length = 0;
    for (int64_t b = 0; b < a->batch; b++) {
        CHECK(ctx, cu[b + 1] >= cu[b], HT_INVALID,
              "cu_seqlens must not decrease: [%lld] = %d, [%lld] = %d", (long long)b, (int)cu[b],
              (long long)b + 1, (int)cu[b + 1]);
        if (cu[b + 1] - cu[b] > c->length) c->length = cu[b + 1] - cu[b];
    }
    c->rows = cu[a->batch];
    return HT_OK;
}

/* The number of sequences comes first: as many entries of cu_seqlens are read. */
static ht_status count_rows(hti_attention_call *c, ht_context *ctx, const ht_attention_args *a,
                            int64_t slots) {
    CHECK(ctx, a->batch >= 1, HT_INVALID, "batch must be at least 1, got %lld",
          (long long)a->batch);
    CHECK(ctx, slots || a->batch <= c->desc->max_sequences, HT_INVALID,
          "batch %lld is more than the plan's max_sequences %lld", (long long)a->batch,
          (long long)c->desc->max_sequences);
    CHECK(ctx, !slots || a->batch <= slots, HT_INVALID, "%lld sequences for a cache of %lld slots",
          (long long)a->batch, (long long)slots);
    c->sequences = a->batch;
    c->cu_seqlens = a->cu_seqlens;
    if (a->cu_seqlens) return count_packed(c, ctx, a);
    CHECK(ctx, a->length >= 1, HT_INVALID, "length must be at least 1, got %lld",
          (long long)a->length);
    CHECK(ctx, hti_mul(&c->rows, a->batch, a->length), HT_INVALID,
          "batch %lld times length %lld overflows", (long long)a->batch, (long long)a->length);
    c->length = a->length;
    return HT_OK;
}

static ht_status check_bounds(const hti_attention_call *c, ht_context *ctx) {
    const ht_attention_desc *d = c->desc;
    CHECK(ctx, c->rows <= d->max_rows, HT_INVALID,
          "%lld rows are more than the plan's max_rows %lld", (long long)c->rows,
          (long long)d->max_rows);
    CHECK(ctx, c->length <= d->max_length, HT_INVALID,
          "length %lld is more than the plan's max_length %lld", (long long)c->length,
          (long long)d->max_length);
    return HT_OK;
}

/* ---- calls ---- */

ht_status hti_call_make(hti_attention_call *out, const ht_attention *plan,
                        const ht_attention_args *given, int64_t slots) {
    ht_context *ctx = plan->ctx;
    const ht_attention_desc *d = &plan->desc;
    ht_attention_args own;
    TRY(HTI_TAKE(ctx, ht_attention_args, &own, given));
    const ht_attention_args *args = &own;
    *out = (hti_attention_call){.desc = d};
    TRY(check_place(ctx, "cu_seqlens", args->cu_seqlens, sizeof *args->cu_seqlens));
    TRY(count_rows(out, ctx, args, slots));
    if (!slots) TRY(check_bounds(out, ctx));
    CHECK(ctx, d->has_bias || !args->bias, HT_INVALID,
          "bias is given, but the plan has has_bias 0");
    CHECK(ctx, !d->has_bias || args->bias, HT_INVALID, "the plan has has_bias, but bias is NULL");

    if (out->rows > 0) {
        TRY(need_data(ctx, "q", &args->q));
        TRY(need_data(ctx, "k", &args->k));
        TRY(need_data(ctx, "v", &args->v));
        TRY(need_data(ctx, "out", &args->out));
    }
    shapes s = shapes_of(out);
    int packed = args->cu_seqlens != NULL;
    TRY(resolve(&out->q, ctx, "q", &args->q, &s.q, packed, 0));
    TRY(resolve(&out->k, ctx, "k", &args->k, &s.k, packed, 0));
    TRY(resolve(&out->v, ctx, "v", &args->v, &s.v, packed, 0));
    TRY(resolve(&out->out, ctx, "out", &args->out, &s.out, packed, 1));
    TRY(resolve(&out->lse, ctx, "lse", &args->lse, &s.lse, packed, 1));
    TRY(check_place(ctx, "bias", args->bias, wide_bytes(d)));
    TRY(check_place(ctx, "saved", args->saved, sizeof(double)));
    TRY(check_place(ctx, "scratch", args->scratch, sizeof(double)));
    out->bias = args->bias;
    out->key_mask = args->key_mask;
    out->query_mask = args->query_mask;
    out->seed = args->seed;
    out->offset = args->offset;
    out->saved = args->saved;
    out->scratch = args->scratch;
    return HT_OK;
}

static ht_status add_grads(hti_attention_call *c, const ht_attention *plan,
                           const ht_attention_grads *given) {
    ht_context *ctx = plan->ctx;
    ht_attention_grads own;
    TRY(HTI_TAKE(ctx, ht_attention_grads, &own, given));
    const ht_attention_grads *g = &own;
    CHECK(ctx, plan->desc.has_bias || !g->dbias, HT_INVALID,
          "dbias is given, but the plan has has_bias 0");
    if (c->rows > 0) {
        TRY(need_data(ctx, "dout", &g->dout));
        TRY(need_data(ctx, "dq", &g->dq));
        TRY(need_data(ctx, "dk", &g->dk));
        TRY(need_data(ctx, "dv", &g->dv));
    }
    shapes s = shapes_of(c);
    int packed = c->cu_seqlens != NULL;
    TRY(resolve(&c->dout, ctx, "dout", &g->dout, &s.out, packed, 0));
    TRY(resolve(&c->dlse, ctx, "dlse", &g->dlse, &s.lse, packed, 0));
    TRY(resolve(&c->dq, ctx, "dq", &g->dq, &s.q, packed, 1));
    TRY(resolve(&c->dk, ctx, "dk", &g->dk, &s.k, packed, 1));
    TRY(resolve(&c->dv, ctx, "dv", &g->dv, &s.v, packed, 1));
    TRY(check_place(ctx, "dbias", g->dbias, wide_bytes(&plan->desc)));
    c->dbias = g->dbias;
    return HT_OK;
}

ht_status hti_attention_forward(const ht_attention *plan, const ht_attention_args *args,
                                hti_attention_how how) {
    hti_attention_call call;
    TRY(hti_call_make(&call, plan, args, 0));
    if (call.rows == 0) return HT_OK;
    call.offset_device = how.offset_device;
    call.first = how.first;
    if (!call.scratch) TRY(hti_scratch(plan->ctx, &call.scratch, plan->need.scratch_forward));
    return plan->ctx->ops->attention_forward(plan->ctx, &call);
}

ht_status hti_attention_backward(const ht_attention *plan, const ht_attention_args *args,
                                 const ht_attention_grads *grads, hti_attention_how how) {
    hti_attention_call call;
    TRY(hti_call_make(&call, plan, args, 0));
    CHECK(plan->ctx, call.saved, HT_INVALID,
          "saved is NULL: backward needs what forward left there");
    TRY(add_grads(&call, plan, grads));
    if (call.rows == 0) return HT_OK;
    call.offset_device = how.offset_device;
    call.first = how.first;
    if (!call.scratch) TRY(hti_scratch(plan->ctx, &call.scratch, plan->need.scratch_backward));
    return plan->ctx->ops->attention_backward(plan->ctx, &call);
}

ht_status ht_attention_forward(const ht_attention *plan, const ht_attention_args *args) {
    NEED(plan);
    return hti_attention_forward(plan, args, (hti_attention_how){NULL, 0});
}

ht_status ht_attention_backward(const ht_attention *plan, const ht_attention_args *args,
                                const ht_attention_grads *grads) {
    NEED(plan);
    return hti_attention_backward(plan, args, grads, (hti_attention_how){NULL, 0});
}

/* ---- what would run ---- */

/* As many of the longest sequences as the plan has room for, tensors at address 0. */
static hti_attention_call largest(const ht_attention *plan) {
    const ht_attention_desc *d = &plan->desc;
    int64_t sequences = d->max_rows / d->max_length;
    return (hti_attention_call){.desc = d,
                                .length = d->max_length,
                                .sequences = sequences,
                                .rows = sequences * d->max_length};
}

ht_status ht_attention_explain(const ht_attention *plan, const ht_attention_args *args,
                               const ht_attention_grads *grads, int backward,
                               ht_kernels_info *out) {
    NEED(plan);
    ht_context *ctx = plan->ctx;
    hti_attention_call call = largest(plan);
    ht_kernels_info info = {.name = ht_context_device(ctx)};
    TRY(HTI_WANT(ctx, ht_kernels_info, out));
    CHECK(ctx, args || !grads, HT_INVALID, "ht_attention_explain: gradients without arguments");
    if (args) TRY(hti_call_make(&call, plan, args, 0));
    if (grads) TRY(add_grads(&call, plan, grads));
    if (ctx->ops->attention_kernels) ctx->ops->attention_kernels(ctx, &call, backward, &info);
    HTI_GIVE(ht_kernels_info, out, &info);
    return HT_OK;
}

/* ---- who meets whom ---- */

ht_status ht_attention_pairs(const ht_attention *plan, const ht_attention_args *args,
                             int64_t sequence, int64_t head, int8_t *out) {
    NEED(plan);
    ht_context *ctx = plan->ctx;
    hti_attention_call call;
    CHECK(ctx, ctx->ops->attention_pairs, HT_UNSUPPORTED,
          "%s does not say which rows meet; the CPU does", ht_context_device(ctx));
    TRY(hti_call_make(&call, plan, args, 0));
    CHECK(ctx, sequence >= 0 && sequence < call.sequences, HT_INVALID,
          "sequence must be 0 to %lld, got %lld", (long long)call.sequences - 1,
          (long long)sequence);
    CHECK(ctx, head >= 0 && head < plan->desc.q_heads, HT_INVALID,
          "head must be 0 to %lld, got %lld", (long long)plan->desc.q_heads - 1, (long long)head);
    CHECK(ctx, out, HT_INVALID, "out is NULL");
    return ctx->ops->attention_pairs(ctx, &call, sequence, head, out);
}
