/*
 * The tile kernels from outside: which calls they take, their scratch, and the order of launches.
 */
#include "cuda/hier.h"
#include "cuda/tile/tile.h"
#include "cuda/tile/wide.h"

#include <string.h>

namespace HTI_KERNELS {

/* ---- scratch ---- */

static void carve_forward(hti_carver *c, hti_tile_args *t) {
    hti_cuda_args &a = t->a;
    if (a.clusters == 0 || a.query == HT_QUERY_FINE) return;
    t->zb = c->take<element>(a.q_heads * a.clusters * a.head_dim);
    t->zl = c->take<float>(a.q_heads * a.clusters);
}

static void carve_backward(hti_carver *c, hti_tile_args *t, int has_bias) {
    hti_cuda_args &a = t->a;
    int64_t kv = a.kv_heads * a.clusters, q = a.q_heads * a.clusters, d = a.head_dim;
    t->numbers = c->take<float2>(a.q_heads * a.rows);
    if (has_bias) {
        int64_t parts = a.rows / a.block;
        a.bias_parts = (int)(parts < 1 ? 1 : parts < 256 ? parts : 256);
        a.bias_part = c->take<float>((int64_t)a.bias_parts * a.q_heads * (4 * a.block - 1));
    }
    if (a.clusters == 0) return;
    a.dkt = c->take<float>(kv * d);
    a.dvt = c->take<float>(kv * d);
    int64_t pieces = hti_tile_pieces(t);
    if (pieces > 0) a.pieces = c->take<float>(pieces * 2 * d);
    if (a.query == HT_QUERY_FINE) return;
    t->gb = c->take<element>(q * d);
    t->coarse_numbers = c->take<float2>(q);
    a.dqt = c->take<float>(q * d);
}

/* Measured with base NULL, carved otherwise. */
static size_t layout(hti_tile_args *t, void *base, int has_bias, int backward) {
    hti_carver c = {(char *)(((uintptr_t)base + 255) / 256 * 256), 0};
    hti_cuda_args &a = t->a;
    int64_t d = a.head_dim;
    a.cu = c.take<int32_t>(a.sequences + 1);
    if (has_bias) t->bias2 = c.take<float>((int64_t)a.q_heads * (4 * a.block - 1));
    if (a.theta > 0) {
        a.turn = c.take<float>((int64_t)a.length * d);
        t->qr = c.take<element>(a.q_heads * a.rows * d);
        t->kr = c.take<element>(a.kv_heads * a.rows * d);
    }
    if (a.clusters > 0) {
        t->kb = c.take<element>(a.kv_heads * a.clusters * d);
        t->vb = c.take<element>(a.kv_heads * a.clusters * d);
        a.kn = c.take<float>(a.clusters);
        if (a.query == HT_QUERY_FIRST) a.first = c.take<int>(a.clusters);
        if (a.query == HT_QUERY_MEAN) {
            t->qb = c.take<element>(a.q_heads * a.clusters * d);
            a.qn = c.take<float>(a.clusters);
        }
    }
    if (backward) {
        carve_backward(&c, t, has_bias);
    } else {
        carve_forward(&c, t);
    }
    return c.used + 256; /* base may need rounding up */
}

size_t hti_tile_scratch(const hti_cuda_args &shape, int has_bias, int backward) {
    hti_tile_args t;
    memset(&t, 0, sizeof t);
    t.a = shape;
    return layout(&t, NULL, has_bias, backward);
}

/* ---- calls ---- */

/* Arguments, sequence starts, angles, coarse levels. */
static ht_status prepare(ht_context *ctx, hti_tile_args *t, const hti_attention_call *call,
                         const hti_cuda_args &shape, int backward) {
    memset(t, 0, sizeof *t);
    t->a = shape;
    hti_cuda_args &a = t->a;
    layout(t, call->scratch, call->desc->has_bias, backward);
    if (!call->cu_seqlens) a.cu = NULL;
    if (!call->query_mask) a.first = NULL;
    if (a.kind != HT_HIERARCHICAL) a.query = HT_QUERY_FINE; /* one level, no coarse queries */
    int per = a.block / GROUP;
    t->scale2 = a.scale * HTI_LOG2E;
    while (1 << t->shift < per) t->shift++;
    if (1 << t->shift != per) t->magic = (uint32_t)(((uint64_t)1 << 32) / (uint64_t)per + 1);
    t->most_groups = 4 * per + 16 + a.levels * (2 * per + 8);
    if (a.cu) TRY(hti_cuda_upload(ctx, (int32_t *)a.cu, call->cu_seqlens, call->sequences + 1));
    if (a.turn) TRY(hti_cuda_turn(ctx, a));
    int wide = hti_wide_takes(ctx, *t);
    t->bias_unit = wide ? 1 / a.scale : HTI_LOG2E; /* wide tiles scale scores with their biases */
    if (!backward && wide) t->qr = NULL;
    return hti_tile_coarsen(ctx, *t);
}

ht_status hti_tile_forward(ht_context *ctx, const hti_attention_call *call,
                           const hti_cuda_args &shape) {
    hti_tile_args t;
    TRY(prepare(ctx, &t, call, shape, 0));
    return hti_tile_run_forward(ctx, t);
}

ht_status hti_tile_backward(ht_context *ctx, const hti_attention_call *call,
                            const hti_cuda_args &shape) {
    hti_tile_args t;
    TRY(prepare(ctx, &t, call, shape, 1));
    TRY(hti_tile_restrict(ctx, t));
    return hti_tile_run_backward(ctx, t);
}

} // namespace HTI_KERNELS
