/*
 * Plans: the descriptor is checked once, here, and never changes.
 */
#include "attention/plan.h"

#include <math.h>
#include <stdbool.h>

#include "core/philox.h"
#include "core/sized.h"

static ht_status check_enums(ht_context *ctx, const ht_attention_desc *d) {
    CHECK(ctx, (int)d->kind >= HT_HIERARCHICAL && (int)d->kind <= HT_LOCAL, HT_INVALID,
          "kind must be 0 (hierarchical), 1 (full) or 2 (local), got %d", (int)d->kind);
    CHECK(ctx, (int)d->query >= HT_QUERY_AUTO && (int)d->query <= HT_QUERY_FINE, HT_INVALID,
          "query must be 0 (auto), 1 (mean), 2 (first) or 3 (fine), got %d", (int)d->query);
    CHECK(ctx, (int)d->dtype >= HT_F32 && (int)d->dtype <= HT_F16, HT_INVALID,
          "dtype must be 0 (f32), 1 (bf16), 2 (f64) or 3 (f16), got %d", (int)d->dtype);
    return HT_OK;
}

static ht_status check_shape(ht_context *ctx, const ht_attention_desc *d) {
    CHECK(ctx, d->q_heads >= 1 && d->q_heads <= 65536, HT_INVALID,
          "q_heads must be 1 to 65536, got %lld", (long long)d->q_heads);
    CHECK(ctx, d->kv_heads >= 1 && d->q_heads % d->kv_heads == 0, HT_INVALID,
          "kv_heads must divide q_heads (%lld), got %lld", (long long)d->q_heads,
          (long long)d->kv_heads);
    CHECK(ctx, d->head_dim >= 1 && d->head_dim <= 256, HT_INVALID,
          "head_dim must be 1 to 256, got %lld", (long long)d->head_dim);
    CHECK(ctx, d->value_dim >= 1 && d->value_dim <= 256, HT_INVALID,
          "value_dim must be 1 to 256, got %lld", (long long)d->value_dim);
    CHECK(ctx, d->block >= 2 && d->block <= 1 << 20, HT_INVALID,
          "block must be 2 to 1048576, got %lld", (long long)d->block);
    CHECK(ctx, d->block % 2 == 0, HT_INVALID, "block must be even, got %lld", (long long)d->block);
    return HT_OK;
}

static ht_status check_maxima(ht_context *ctx, const ht_attention_desc *d) {
    int64_t bytes;
    CHECK(ctx, d->max_rows >= 1, HT_INVALID, "max_rows must be at least 1, got %lld",
          (long long)d->max_rows);
    CHECK(ctx, d->max_sequences >= 1, HT_INVALID, "max_sequences must be at least 1, got %lld",
          (long long)d->max_sequences);
    CHECK(ctx, d->max_length >= 1 && d->max_length <= d->max_rows, HT_INVALID,
          "max_length must be 1 to max_rows (%lld), got %lld", (long long)d->max_rows,
          (long long)d->max_length);
    /* 1 KiB for every element of a row leaves room for all buffers that any kernel lays out */
    bool fits = hti_mul(&bytes, d->max_rows, d->q_heads) &&
                hti_mul(&bytes, bytes, d->head_dim + d->value_dim) &&
                hti_mul(&bytes, bytes, 1024) &&
                hti_mul(&bytes, d->max_sequences, d->q_heads * d->block * 1024);
    CHECK(ctx, fits, HT_INVALID,
          "sizes overflow: max_rows %lld, max_sequences %lld, q_heads %lld, head_dim %lld",
          (long long)d->max_rows, (long long)d->max_sequences, (long long)d->q_heads,
          (long long)d->head_dim);
    return HT_OK;
}

static ht_status check_numbers(ht_context *ctx, const ht_attention_desc *d) {
    CHECK(ctx, isfinite(d->scale), HT_INVALID, "scale must be finite, got %g", d->scale);
    CHECK(ctx, isfinite(d->rotary_theta) && d->rotary_theta >= 0, HT_INVALID,
          "rotary_theta must be positive, or 0 for none, got %g", d->rotary_theta);
    CHECK(ctx, d->dropout >= 0 && d->dropout < 1, HT_INVALID, "dropout must be in [0, 1), got %g",
          d->dropout);
    CHECK(ctx, d->dropout == 0 || d->max_length <= (int64_t)1 << HTI_DROPOUT_CLUSTER_BITS,
          HT_UNSUPPORTED, "dropout needs max_length at most %lld, got %lld",
          1LL << HTI_DROPOUT_CLUSTER_BITS, (long long)d->max_length);
    CHECK(ctx, !(d->causal && d->cross), HT_INVALID,
          "causal cross-attention has no meaning: causal is %d and cross is %d", d->causal,
          d->cross);
    CHECK(ctx, !(d->causal && d->kind == HT_HIERARCHICAL && d->query == HT_QUERY_MEAN), HT_INVALID,
          "query mean lets later rows steer earlier outputs: with causal use first or fine, got "
          "mean");
    return HT_OK;
}

enum { MOST_OPEN = 1 << 20 };

static ht_status check_open(ht_context *ctx, const ht_attention_desc *d) {
    CHECK(ctx, d->open >= 0 && d->open <= MOST_OPEN, HT_INVALID, "open must be 0 to %d, got %lld",
          MOST_OPEN, (long long)d->open);
    CHECK(ctx, d->open_leaf >= 1 && (d->open_leaf & (d->open_leaf - 1)) == 0, HT_INVALID,
          "open_leaf must be a power of two, got %lld", (long long)d->open_leaf);
    CHECK(ctx, d->open_peek == -1 || (d->open_peek >= 1 && d->open_peek <= HTI_MAX_LEVELS),
          HT_INVALID, "open_peek must be -1 (the mean alone) or 1 to %d, got %lld", HTI_MAX_LEVELS,
          (long long)d->open_peek);
    CHECK(ctx, d->open == 0 || d->kind == HT_HIERARCHICAL, HT_INVALID,
          "only kind hierarchical has clusters to open: open is %lld with kind %s",
          (long long)d->open, d->kind == HT_FULL ? "full" : "local");
    CHECK(ctx, d->open == 0 || d->query == HT_QUERY_FINE, HT_INVALID,
          "opening needs a query for every row: open is %lld with query %s, not fine",
          (long long)d->open, d->query == HT_QUERY_MEAN ? "mean" : "first");
    return HT_OK;
}

/* The one place that says what AUTO is. */
static ht_query taken_query(const ht_attention_desc *d) {
    if (d->query != HT_QUERY_AUTO) return d->query;
    return d->causal || d->open > 0 ? HT_QUERY_FINE : HT_QUERY_MEAN;
}

ht_query ht_attention_query(const ht_attention_desc *desc) {
    ht_attention_desc d;
    ht_status status = HTI_TAKE(NULL, ht_attention_desc, &d, desc);
    return status == HT_OK ? taken_query(&d) : HT_QUERY_AUTO;
}

static void fill_defaults(ht_attention_desc *d) {
    if (d->kv_heads == 0) d->kv_heads = d->q_heads;
    if (d->value_dim == 0) d->value_dim = d->head_dim;
    if (d->block == 0) d->block = 16;
    d->query = taken_query(d);
    if (d->max_sequences == 0) d->max_sequences = d->max_rows;
    if (d->max_length == 0) d->max_length = d->max_rows;
    if (d->scale == 0 && d->head_dim > 0) d->scale = 1 / sqrt((double)d->head_dim);
    if (d->open_leaf == 0) d->open_leaf = 8;
    if (d->open_peek == 0) d->open_peek = 2;
}

ht_status hti_attention_create(ht_attention **out, ht_context *ctx, const ht_attention_desc *desc,
                               int aligned) {
    CHECK(ctx, out, HT_INVALID, "ht_attention_create: out is NULL");
    *out = NULL;
    CHECK(NULL, ctx, HT_INVALID, "ht_attention_create: ctx is NULL");
    ht_attention_desc d;
    TRY(HTI_TAKE(ctx, ht_attention_desc, &d, desc));
    fill_defaults(&d);
    TRY(check_enums(ctx, &d));
    TRY(check_shape(ctx, &d));
    TRY(check_maxima(ctx, &d));
    TRY(check_numbers(ctx, &d));
    TRY(check_open(ctx, &d));
    TRY(ctx->ops->attention_check(ctx, &d));

    ht_attention *plan = hti_host_alloc(ctx, sizeof *plan);
    CHECK(ctx, plan, HT_NOMEM, "out of memory: %zu bytes for a plan", sizeof *plan);
    *plan = (ht_attention){.ctx = ctx, .desc = d, .need = HT_ATTENTION_NEED_INIT};
    if (aligned && ctx->ops->attention_need_aligned)
        ctx->ops->attention_need_aligned(ctx, &d, &plan->need);
    else
        ctx->ops->attention_need(ctx, &d, &plan->need);
    *out = plan;
    return HT_OK;
}

ht_status ht_attention_create(ht_attention **out, ht_context *ctx, const ht_attention_desc *desc) {
    return hti_attention_create(out, ctx, desc, 0);
}

void ht_attention_destroy(ht_attention *plan) {
    if (plan) hti_host_free(plan->ctx, plan);
}

ht_status ht_attention_get_need(const ht_attention *plan, ht_attention_need *out) {
    NEED(plan);
    TRY(HTI_WANT(plan->ctx, ht_attention_need, out));
    HTI_GIVE(ht_attention_need, out, &plan->need);
    return HT_OK;
}

ht_status ht_attention_get_desc(const ht_attention *plan, ht_attention_desc *out) {
    NEED(plan);
    TRY(HTI_WANT(plan->ctx, ht_attention_desc, out));
    HTI_GIVE(ht_attention_desc, out, &plan->desc);
    return HT_OK;
}

const char *ht_attention_kernels(const ht_attention *plan, int backward) {
    ht_kernels_info info = HT_KERNELS_INFO_INIT;
    return plan && ht_attention_explain(plan, NULL, NULL, backward, &info) == HT_OK ? info.name
                                                                                    : "";
}

int ht_attention_levels(const ht_attention *plan, int64_t length) {
    if (!plan || plan->desc.kind != HT_HIERARCHICAL || length < 1) return 1;
    return hti_levels(length, plan->desc.block);
}
