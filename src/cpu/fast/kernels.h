/*
 * The fast attention, written in the words of simd.h. A file per instruction set includes this
 * once, with FAST(name) naming its copy of the entries.
 */
#include <float.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "core/philox.h"
#include "cpu/fast/fast.h"

#define TILE HTI_TILE
#define TILE_VECTORS (TILE / VW)

#include "cpu/kernel/math.h"
#include "cpu/kernel/drop.h"
#include "cpu/kernel/tile.h"
#include "cpu/kernel/pack.h"
#include "cpu/kernel/relative.h"
#include "cpu/kernel/work.h"
#include "cpu/kernel/forward.h"
#include "cpu/kernel/grad.h"
#include "cpu/kernel/backward.h"
#include "cpu/kernel/fine.h"
#include "cpu/kernel/near.h"
#include "cpu/kernel/full.h"
#include "cpu/kernel/open.h"
#include "cpu/kernel/opened.h"
#include "cpu/kernel/open_grad.h"
#include "cpu/kernel/cache.h"

/* float64 belongs to the reference kernels, and they send 16 bits back as float. What forward saves
 * is in its own units, so forward and backward always go the same way. */
static int is_fast(const ht_attention_desc *desc) { return desc->dtype == HT_F32; }

void FAST(hti_attention_need)(const ht_context *ctx, const ht_attention_desc *desc,
                              ht_attention_need *need) {
    forward f;
    backward b;
    opening g;
    open_grad o;
    char *own;
    size_t bytes;
    hti_ref_attention_need(ctx, desc, need);
    if (!is_fast(desc)) return;
    if (desc->kind == HT_FULL) {
        need->scratch_forward =
            full_forward_take(&f.w, NULL, desc, NULL, ctx->threads, &own, &bytes);
        need->scratch_backward = full_backward_take(&b, NULL, desc, NULL, ctx->threads);
        return;
    }
    if (desc->open > 0) {
        need->scratch_forward = opened_take(&g, NULL, desc, NULL, ctx->threads, &own, &bytes);
        need->scratch_backward = open_grad_take(&o, NULL, desc, NULL, ctx->threads);
        return;
    }
    need->scratch_forward = forward_take(&f, NULL, desc, NULL, ctx->threads);
    need->scratch_backward = backward_take(&b, NULL, desc, NULL, ctx->threads);
}

ht_status FAST(hti_attention_forward)(ht_context *ctx, const hti_attention_call *call) {
    if (!is_fast(call->desc)) return hti_ref_attention_forward(ctx, call);
    if (call->desc->kind == HT_FULL) {
        full_forward(ctx, call);
    } else if (call->desc->open > 0) {
        opened_forward(ctx, call);
    } else {
        hierarchical_forward(ctx, call);
    }
    return HT_OK;
}

ht_status FAST(hti_attention_backward)(ht_context *ctx, const hti_attention_call *call) {
    if (!is_fast(call->desc)) return hti_ref_attention_backward(ctx, call);
    if (call->desc->kind == HT_FULL) {
        full_backward(ctx, call);
    } else if (call->desc->open > 0) {
        opened_backward(ctx, call);
    } else {
        hierarchical_backward(ctx, call);
    }
    return HT_OK;
}

size_t FAST(hti_cache_scratch)(const ht_context *ctx, const hti_cache_call *call) {
    hti_arena c = {NULL, 0};
    decode_room room;
    if (call->a.desc->dtype != HT_F32) return hti_ref_cache_scratch(ctx, call);
    return decode_take(&room, &c, call, ctx->threads);
}

ht_status FAST(hti_cache_extend)(ht_context *ctx, const hti_cache_call *call) {
    if (call->a.desc->dtype != HT_F32) return hti_ref_cache_extend(ctx, call);
    cache_extend(ctx, call);
    return HT_OK;
}
