/*
 * The reference table: plain loops, the readable meaning of the attention, in float and in double.
 */
#include "cpu/cpu.h"

static const hti_ref_kernels *kernels(const ht_attention_desc *desc) {
    return desc->dtype == HT_F64 ? &hti_ref_f64 : &hti_ref_f32;
}

void hti_ref_attention_need(const ht_context *ctx, const ht_attention_desc *desc,
                            ht_attention_need *need) {
    if (hti_is_half(desc)) {
        hti_half_need(ctx, desc, need);
        return;
    }
    kernels(desc)->need(ctx, desc, need);
}

ht_status hti_ref_attention_forward(ht_context *ctx, const hti_attention_call *call) {
    if (hti_is_half(call->desc)) return hti_half_forward(ctx, call);
    kernels(call->desc)->forward(ctx, call);
    return HT_OK;
}

ht_status hti_ref_attention_backward(ht_context *ctx, const hti_attention_call *call) {
    if (hti_is_half(call->desc)) return hti_half_backward(ctx, call);
    kernels(call->desc)->backward(ctx, call);
    return HT_OK;
}

ht_status hti_ref_attention_pairs(ht_context *ctx, const hti_attention_call *call, int64_t sequence,
                                  int64_t head, int8_t *out) {
    if (hti_is_half(call->desc)) return hti_half_pairs(ctx, call, sequence, head, out);
    const hti_ref_kernels *k = kernels(call->desc);
    void *scratch;
    TRY(hti_scratch(ctx, &scratch, k->pairs(call, sequence, head, out, NULL)));
    k->pairs(call, sequence, head, out, scratch);
    return HT_OK;
}

size_t hti_ref_cache_scratch(const ht_context *ctx, const hti_cache_call *call) {
    if (hti_is_half(call->a.desc)) return hti_half_cache_scratch(ctx, call);
    return (size_t)ctx->threads * kernels(call->a.desc)->cache_thread_bytes(call);
}

ht_status hti_ref_cache_extend(ht_context *ctx, const hti_cache_call *call) {
    if (hti_is_half(call->a.desc)) return hti_half_cache_extend(ctx, call);
    kernels(call->a.desc)->cache_extend(ctx, call);
    return HT_OK;
}

const hti_ops hti_cpu_ref_ops = {
    .name = "cpu:ref",
    HTI_CPU_COMMON,
    .attention_need = hti_ref_attention_need,
    .attention_forward = hti_ref_attention_forward,
    .attention_backward = hti_ref_attention_backward,
    .cache_scratch = hti_ref_cache_scratch,
    .cache_extend = hti_ref_cache_extend,
};
