/*
 * The attention entries of the table: from a call to kernel arguments, scratch, and which kernels
 * run.
 */
#include "cuda/cuda.h"
#include "cuda/open/open.h"
#include "cuda/open/tiles_back.h"
#include "cuda/typed.h"

#include <string.h>

enum { MOST_ROWS = 1 << 30 }; /* row numbers are 32-bit in the kernels */

ht_status hti_cuda_attention_check(ht_context *ctx, const ht_attention_desc *desc) {
    CHECK(ctx, desc->dtype != HT_F64, HT_UNSUPPORTED,
          "device \"%s\" takes dtype f32, bf16 or f16, got f64", ctx->device);
    CHECK(ctx, desc->max_rows <= MOST_ROWS, HT_UNSUPPORTED,
          "device \"%s\" takes at most %d rows in a call, got max_rows %lld", ctx->device,
          MOST_ROWS, (long long)desc->max_rows);
    CHECK(ctx, desc->max_sequences <= MOST_ROWS, HT_UNSUPPORTED,
          "device \"%s\" takes at most %d sequences in a call, got max_sequences %lld", ctx->device,
          MOST_ROWS, (long long)desc->max_sequences);
    return HT_OK;
}

/* ---- arguments ---- */

static void set_shape(hti_cuda_args *a, const ht_attention_desc *d, int64_t sequences,
                      int64_t length, int64_t rows) {
    memset(a, 0, sizeof *a);
    a->sequences = (int)sequences;
    a->length = (int)length;
    a->rows = rows;
    a->kind = d->kind;
    a->query = d->query;
    a->causal = d->causal != 0;
    a->block = (int)d->block;
    a->q_heads = (int)d->q_heads;
    a->kv_heads = (int)d->kv_heads;
    a->group = (int)(d->q_heads / d->kv_heads);
    a->head_dim = (int)d->head_dim;
    a->value_dim = (int)d->value_dim;
    a->scale = (float)d->scale;
    a->keep = (float)(1 / (1 - d->dropout));
    a->threshold = hti_dropout_threshold(d->dropout);
    a->theta = d->head_dim > 1 ? d->rotary_theta : 0;
    a->levels = d->kind == HT_HIERARCHICAL ? hti_levels(length, d->block) : 1;
    for (int l = 1; l < a->levels;
         l++) { /* the rows of hti_cluster_at, up to the end of the call */
        a->base[l] = a->clusters;
        a->clusters += (rows >> l) + rows / (d->block << l);
    }
}

static void set_tensors(hti_cuda_args *a, const hti_attention_call *call) {
    a->q = call->q, a->k = call->k, a->v = call->v, a->out = call->out, a->lse = call->lse;
    a->dout = call->dout, a->dlse = call->dlse;
    a->dq = call->dq, a->dk = call->dk, a->dv = call->dv;
    a->bias = (const float *)call->bias;
    a->dbias = (float *)call->dbias;
    a->key_mask = call->key_mask;
    a->query_mask = call->query_mask;
    a->seed = call->seed;
    a->offset = call->offset;
    a->offset_device = call->offset_device;
    a->saved = (float *)call->saved;
    if (!call->cu_seqlens) a->cu = NULL;
    if (!call->query_mask) a->first = NULL;
}

/* ---- scratch: measured with base NULL, carved otherwise ---- */

static hti_carver carver_at(void *base) {
    hti_carver c = {(char *)(((uintptr_t)base + 255) / 256 * 256), 0};
    return c;
}

static size_t carved(const hti_carver *c) { return c->used + 256; } /* base may need rounding up */

/* What forward and backward both need: sequence starts, angles, keys, values and queries of the
 * coarse levels. */
static void carve_levels(hti_carver *c, hti_cuda_args *a) {
    int64_t kv = a->kv_heads * a->clusters, q = a->q_heads * a->clusters;
    a->cu = c->take<int32_t>(a->sequences + 1);
    if (a->theta > 0) a->turn = c->take<float>((int64_t)a->length * (a->head_dim / 2) * 2);
    if (a->clusters == 0) return;
    a->kt = c->take<float>(kv * a->head_dim);
    a->vt = c->take<float>(kv * a->value_dim);
    a->kn = c->take<float>(a->clusters);
    if (a->query == HT_QUERY_FIRST) a->first = c->take<int>(a->clusters);
    if (a->query != HT_QUERY_MEAN) return;
    a->qt = c->take<float>(q * a->head_dim);
    a->qn = c->take<float>(a->clusters);
}

static void carve_forward(hti_carver *c, hti_cuda_args *a) {
    carve_levels(c, a);
    if (a->clusters > 0 && a->query != HT_QUERY_FINE) {
        a->part = c->take<float>(a->q_heads * a->clusters * 2);
        a->partz = c->take<float>(a->q_heads * a->clusters * a->value_dim);
    }
}

static void carve_backward(hti_carver *c, hti_cuda_args *a, int has_bias, int opened) {
    int64_t kv = a->kv_heads * a->clusters, q = a->q_heads * a->clusters;
    carve_levels(c, a);
    /* kind full on tensor cores: pairs, lse beside h */
    a->h = c->take<float>(a->q_heads * a->rows * (a->kind == HT_FULL ? 2 : 1));
    if (has_bias) {
        int64_t parts = a->rows / a->block;
        a->bias_parts = (int)(parts < 1 ? 1 : parts < 256 ? parts : 256);
        /* kind full on tensor cores: one for each thread block, of 64 queries or more */
        int64_t most = a->bias_parts, full = a->rows / 64 + a->sequences + 1;
        if (a->kind == HT_FULL && a->block <= HTI_FULL_BLOCK && full > most) most = full;
        a->bias_part = c->take<float>(most * a->q_heads * (4 * a->block - 1));
    }
    if (a->clusters == 0) return;
    a->dkt = c->take<float>(kv * a->head_dim);
    a->dvt = c->take<float>(kv * a->value_dim);
    if (opened) return; /* rows that see a coarse key are listed, not cut into pieces */
    int64_t pieces = hti_generic_pieces(a);
    if (pieces > 0) a->pieces = c->take<float>(pieces * (a->head_dim + a->value_dim));
    if (a->query == HT_QUERY_FINE) return;
    a->gm = c->take<float>(q);
    a->gh = c->take<float>(q);
    a->gt = c->take<float>(q * a->value_dim);
    a->dqt = a->query == HT_QUERY_MEAN ? a->qt : c->take<float>(q * a->head_dim);
}

static size_t layout_forward(hti_cuda_args *a, void *base) {
    hti_carver c = carver_at(base);
    carve_forward(&c, a);
    return carved(&c);
}

static size_t layout_backward(hti_cuda_args *a, void *base, int has_bias) {
    hti_carver c = carver_at(base);
    carve_backward(&c, a, has_bias, 0);
    return carved(&c);
}

/* What opening adds to them. */
static size_t layout_opened(hti_open_args *o, void *base, const ht_attention_desc *d,
                            int backward) {
    hti_carver c = carver_at(base);
    if (backward) {
        carve_backward(&c, &o->a, d->has_bias, 1);
    } else {
        carve_forward(&c, &o->a);
    }
    hti_open_carve(&c, o, d, backward);
    return carved(&c);
}

static size_t layout_open_tiles(hti_open_tiles *o, void *base, const ht_attention_desc *d,
                                int has_key_mask) {
    hti_carver c = carver_at(base);
    o->a.cu = c.take<int32_t>(o->a.sequences + 1);
    o->a.kn = c.take<float>(o->a.clusters);
    hti_open_tiles_carve(&c, o, d, has_key_mask);
    return carved(&c);
}

static size_t layout_open_back(hti_open_back *b, void *base, const ht_attention_desc *d,
                               int has_key_mask) {
    hti_carver c = carver_at(base);
    hti_cuda_args *a = &b->o.a;
    a->cu = c.take<int32_t>(a->sequences + 1);
    a->kn = c.take<float>(a->clusters);
    a->h = c.take<float>(a->q_heads * a->rows);
    a->dkt = c.take<float>(a->kv_heads * a->clusters * a->head_dim);
    a->dvt = c.take<float>(a->kv_heads * a->clusters * a->head_dim);
    hti_open_back_carve(&c, b, d, has_key_mask);
    return carved(&c);
}

static void at_least(size_t *need, size_t bytes) {
    if (*need < bytes) *need = bytes;
}

/* All that the narrow kernels need, and those of first rows: sequence starts. */
static size_t layout_starts(hti_cuda_args *a, void *base) {
    hti_carver c = carver_at(base);
    a->cu = c.take<int32_t>(a->sequences + 1);
    return carved(&c);
}

static void need_starts(const ht_attention_desc *desc, ht_attention_need *need) {
    hti_cuda_args a;
    set_shape(&a, desc, desc->max_sequences, desc->max_length, desc->max_rows);
    size_t bytes = layout_starts(&a, NULL);
    at_least(&need->scratch_forward, bytes);
    at_least(&need->scratch_backward, bytes);
}

/* What the kernels for aligned tensors need, those that serve the plan. The tuned ones also need
 * more in saved. */
static void need_tensor_cores(const ht_attention_desc *desc, ht_attention_need *need) {
    hti_cuda_args a;
    set_shape(&a, desc, desc->max_sequences, desc->max_length, desc->max_rows);
    need_starts(desc, need);
    at_least(&need->saved, hti_typed_of(desc).narrow_saved(desc));
    if (hti_family_plans(HTI_TILES, desc)) {
        at_least(&need->scratch_forward, hti_typed_of(desc).tile_scratch(a, desc->has_bias, 0));
        at_least(&need->scratch_backward, hti_typed_of(desc).tile_scratch(a, desc->has_bias, 1));
    }
    if (hti_family_plans(HTI_FINE, desc))
        at_least(&need->scratch_forward, hti_typed_of(desc).fine_scratch(desc));
    if (!hti_family_plans(HTI_TUNED, desc)) return;
    at_least(&need->saved, hti_typed_of(desc).hier_saved(desc));
    at_least(&need->scratch_forward, hti_typed_of(desc).hier_forward_scratch(desc));
    at_least(&need->scratch_backward, hti_typed_of(desc).hier_backward_scratch(desc));
}

static void need_opened(const ht_attention_desc *desc, ht_attention_need *need) {
    hti_open_args o = {};
    set_shape(&o.a, desc, desc->max_sequences, desc->max_length, desc->max_rows);
    at_least(&need->scratch_forward, layout_opened(&o, NULL, desc, 0));
    set_shape(&o.a, desc, desc->max_sequences, desc->max_length, desc->max_rows);
    at_least(&need->scratch_backward, layout_opened(&o, NULL, desc, 1));
    if (!hti_family_plans(HTI_OPEN_TILES, desc)) return;
    hti_open_tiles t = {};
    set_shape(&t.a, desc, desc->max_sequences, desc->max_length, desc->max_rows);
    at_least(&need->scratch_forward, layout_open_tiles(&t, NULL, desc, 1));
    hti_open_back b = {};
    set_shape(&b.o.a, desc, desc->max_sequences, desc->max_length, desc->max_rows);
    at_least(&need->scratch_backward, layout_open_back(&b, NULL, desc, 1));
    at_least(&need->saved, hti_open_tiles_saved(desc));
}

/* Of calls as they lie. */
static void need_direct(const ht_attention_desc *desc, ht_attention_need *need) {
    hti_cuda_args a;
    need->saved = sizeof(float) * (size_t)(desc->q_heads * desc->max_rows);
    if (desc->open > 0) {
        need->scratch_forward = need->scratch_backward = 0;
        need_opened(desc, need);
        return;
    }
    set_shape(&a, desc, desc->max_sequences, desc->max_length, desc->max_rows);
    need->scratch_forward = layout_forward(&a, NULL);
    set_shape(&a, desc, desc->max_sequences, desc->max_length, desc->max_rows);
    need->scratch_backward = layout_backward(&a, NULL, desc->has_bias);
    need_tensor_cores(desc, need); /* a call may still go to the generic ones */
}

void hti_cuda_attention_need(const ht_context *ctx, const ht_attention_desc *desc,
                             ht_attention_need *need) {
    ht_attention_desc padded;
    ht_attention_need inner;
    (void)ctx;
    need_direct(desc, need);
    if (!hti_family_plans(HTI_PADDED, desc) || !hti_pad_desc(&padded, desc)) return;
    need_direct(&padded, &inner);
    at_least(&need->saved, inner.saved);
    at_least(&need->scratch_forward,
             inner.scratch_forward + hti_pad_bytes(&padded, desc->max_rows, 0) + 256);
    at_least(&need->scratch_backward,
             inner.scratch_backward + hti_pad_bytes(&padded, desc->max_rows, 1) + 256);
}

/* Whether the largest call of a plan keeps to the kernels' limits, q, k and v side by side. */
static int within_limits(const ht_attention_desc *d) {
    const int64_t most = (int64_t)1 << 32; /* of strides: see lies_well in families.c */
    int64_t row = (d->q_heads + 2 * d->kv_heads) * d->head_dim;
    return d->max_length < most / row && d->max_rows < HTI_REACH / row - 1 &&
           hti_chunks_fit(d->max_rows, d->max_sequences, 1);
}

static hti_limits limits_of(const ht_context *ctx) {
    return {(size_t)hti_cuda_of(ctx)->shared_bytes, hti_typed_bf16.narrow_backward_shared};
}

/* A call with the plan's largest sizes and tensors at address 0 stands for all of them. */
void hti_cuda_attention_need_aligned(const ht_context *ctx, const ht_attention_desc *desc,
                                     ht_attention_need *need) {
    hti_attention_call call = {};
    call.desc = desc, call.sequences = desc->max_sequences;
    hti_cuda_attention_need(ctx, desc, need);
    if (!within_limits(desc)) return; /* some calls go to the generic kernels */
    hti_limits limits = limits_of(ctx);
    if (hti_family_takes(HTI_TUNED, &limits, &call, 1)) {
        need->scratch_forward = hti_typed_of(desc).hier_forward_scratch(desc);
        need->scratch_backward = hti_typed_of(desc).hier_backward_scratch(desc);
        need_starts(desc, need);
        return;
    }
    call.rows = desc->max_rows;
    if (!hti_family_takes(HTI_TILES, &limits, &call, 1)) return;
    need->scratch_forward = need->scratch_backward = 0;
    need_tensor_cores(desc, need);
}

/* ---- which kernels ---- */

static hti_family family_of(const ht_context *ctx, const hti_attention_call *call, int backward) {
    hti_limits limits = limits_of(ctx);
    return hti_family_of(&limits, call, backward);
}

void hti_cuda_attention_kernels(const ht_context *ctx, const hti_attention_call *call, int backward,
                                ht_kernels_info *out) {
    hti_limits limits = limits_of(ctx);
    out->name = hti_family_name(
        hti_family_why(&limits, call, backward, &out->faster, out->why, sizeof out->why));
}

/* ---- calls ---- */

int hti_cuda_attention_first(const ht_context *ctx, const ht_attention_desc *desc) {
    return hti_first_plans(hti_cuda_of(ctx), desc);
}

/* Sequence starts, angles and coarse levels. */
static ht_status prepare(const ht_context *ctx, const hti_cuda_args &a,
                         const hti_attention_call *call, ht_dtype dtype) {
    if (a.cu) TRY(hti_cuda_upload(ctx, (int32_t *)a.cu, call->cu_seqlens, call->sequences + 1));
    if (a.turn) TRY(hti_cuda_turn(ctx, a));
    return hti_cuda_coarsen(ctx, a, dtype);
}

static ht_status prepare_starts(const ht_context *ctx, hti_cuda_args *a,
                                const hti_attention_call *call) {
    set_shape(a, call->desc, call->sequences, call->length, call->rows);
    /* full: one block of all rows */
    if (call->desc->kind == HT_FULL) a->block = (int)((call->length + 15) / 16 * 16);
    layout_starts(a, call->scratch);
    set_tensors(a, call);
    hti_typed_of(call->desc).narrow_set_saved(a, call->desc);
    if (!a->cu) return HT_OK;
    return hti_cuda_upload(ctx, (int32_t *)a->cu, call->cu_seqlens, call->sequences + 1);
}

static ht_status opened_forward(ht_context *ctx, const hti_attention_call *call) {
    hti_open_args o = {};
    ht_dtype dtype = call->desc->dtype;
    set_shape(&o.a, call->desc, call->sequences, call->length, call->rows);
    layout_opened(&o, call->scratch, call->desc, 0);
    set_tensors(&o.a, call);
    TRY(prepare(ctx, o.a, call, dtype));
    return hti_open_forward(ctx, o, dtype);
}

static ht_status open_tiles_forward(ht_context *ctx, const hti_attention_call *call) {
    hti_open_tiles o = {};
    set_shape(&o.a, call->desc, call->sequences, call->length, call->rows);
    layout_open_tiles(&o, call->scratch, call->desc, call->key_mask != NULL);
    set_tensors(&o.a, call);
    o.chosen = hti_open_tiles_chosen(o.a);
    if (o.a.cu) TRY(hti_cuda_upload(ctx, (int32_t *)o.a.cu, call->cu_seqlens, call->sequences + 1));
    TRY(hti_open_tiles_prepare(ctx, o));
    return hti_open_tiles_forward(ctx, o);
}

static ht_status open_tiles_backward(ht_context *ctx, const hti_attention_call *call) {
    hti_open_back b = {};
    hti_cuda_args *a = &b.o.a;
    set_shape(a, call->desc, call->sequences, call->length, call->rows);
    layout_open_back(&b, call->scratch, call->desc, call->key_mask != NULL);
    set_tensors(a, call);
    b.o.chosen = hti_open_tiles_chosen(*a);
    if (a->cu) TRY(hti_cuda_upload(ctx, (int32_t *)a->cu, call->cu_seqlens, call->sequences + 1));
    TRY(hti_open_tiles_prepare(ctx, b.o));
    TRY(hti_cuda_restrict(ctx, *a, HT_BF16));
    return hti_open_tiles_backward(ctx, b);
}

/* The choice is the one that forward has made. */
static ht_status opened_backward(ht_context *ctx, const hti_attention_call *call) {
    hti_open_args o = {};
    ht_dtype dtype = call->desc->dtype;
    set_shape(&o.a, call->desc, call->sequences, call->length, call->rows);
    layout_opened(&o, call->scratch, call->desc, 1);
    set_tensors(&o.a, call);
    TRY(prepare(ctx, o.a, call, dtype));
    TRY(hti_cuda_restrict(ctx, o.a, dtype));
    if (family_of(ctx, call, 0) == HTI_OPEN_TILES) {
        o.chosen = hti_open_tiles_chosen(o.a);
        o.words = hti_open_words(call->desc);
    }
    return hti_open_backward(ctx, o, dtype);
}

ht_status hti_cuda_attention_forward(ht_context *ctx, const hti_attention_call *call) {
    hti_cuda_scope scope(ctx);
    hti_cuda_args a;
    hti_family by = family_of(ctx, call, 0);
    const hti_typed &kernels = hti_typed_of(call->desc);
    ht_dtype dtype = call->desc->dtype;
    if (by == HTI_FIRST_ROWS || by == HTI_NARROW) {
        TRY(prepare_starts(ctx, &a, call));
        return by == HTI_NARROW ? kernels.narrow_forward(ctx, a)
                                : hti_first_forward(ctx, call, a.cu);
    }
    if (by == HTI_PADDED) return hti_padded_forward(ctx, call);
    if (by == HTI_TUNED) return kernels.hier_forward(ctx, call);
    if (by == HTI_FINE) return kernels.fine_forward(ctx, call);
    if (by == HTI_OPEN_TILES) return open_tiles_forward(ctx, call);
    if (by == HTI_OPENED) return opened_forward(ctx, call);
    set_shape(&a, call->desc, call->sequences, call->length, call->rows);
    if (by == HTI_TILES) {
        set_tensors(&a, call);
        return kernels.tile_forward(ctx, call, a);
    }
    layout_forward(&a, call->scratch);
    set_tensors(&a, call);
    TRY(prepare(ctx, a, call, dtype));
    if (by == HTI_FULL) return kernels.full_forward(ctx, call, a);
    return hti_generic_forward(ctx, a, dtype);
}

ht_status hti_cuda_attention_backward(ht_context *ctx, const hti_attention_call *call) {
    hti_cuda_scope scope(ctx);
    hti_cuda_args a;
    hti_family by = family_of(ctx, call, 1);
    const hti_typed &kernels = hti_typed_of(call->desc);
    ht_dtype dtype = call->desc->dtype;
    if (by == HTI_FIRST_ROWS || by == HTI_NARROW) {
        TRY(prepare_starts(ctx, &a, call));
        return by == HTI_NARROW ? kernels.narrow_backward(ctx, a)
                                : hti_first_backward(ctx, call, a.cu);
    }
    if (by == HTI_PADDED) return hti_padded_backward(ctx, call);
    if (by == HTI_TUNED) return kernels.hier_backward(ctx, call);
    if (by == HTI_OPEN_TILES) return open_tiles_backward(ctx, call);
    if (by == HTI_OPENED) return opened_backward(ctx, call);
    set_shape(&a, call->desc, call->sequences, call->length, call->rows);
    if (by == HTI_TILES) {
        set_tensors(&a, call);
        return kernels.tile_backward(ctx, call, a);
    }
    layout_backward(&a, call->scratch, call->desc->has_bias);
    set_tensors(&a, call);
    TRY(prepare(ctx, a, call, dtype));
    if (by == HTI_FULL) return kernels.full_backward(ctx, call, a);
    TRY(hti_cuda_restrict(ctx, a, dtype));
    return hti_generic_backward(ctx, a, dtype);
}
