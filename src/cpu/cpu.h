/*
 * What the CPU kernels share: the tables, and the memory entries that all of them use.
 */
#ifndef HTI_CPU_H
#define HTI_CPU_H

#include "op.h"

#if defined(__x86_64__)
#define HTI_X86
extern const hti_ops hti_cpu_avx512_ops, hti_cpu_avx2_ops;
#endif
extern const hti_ops hti_cpu_ref_ops;

ht_status hti_cpu_open(ht_context *ctx, const ht_context_desc *desc);
void hti_cpu_close(ht_context *ctx);
ht_status hti_cpu_synchronize(ht_context *ctx);
ht_status hti_cpu_alloc(ht_context *ctx, void **out, size_t bytes);
void hti_cpu_release(ht_context *ctx, void *block);
ht_status hti_cpu_copy(ht_context *ctx, void *dst, const void *src, size_t bytes);
ht_status hti_cpu_fill(ht_context *ctx, void *dst, int byte, size_t bytes);

/* Every dtype. */
ht_status hti_cpu_attention_check(ht_context *ctx, const ht_attention_desc *desc);

/* bf16 and f16 (half.c): the table's own entries get the call again, in float. The reference
 * entries come here by themselves. */
static inline int hti_is_half(const ht_attention_desc *d) {
    return d->dtype == HT_BF16 || d->dtype == HT_F16;
}
void hti_half_need(const ht_context *ctx, const ht_attention_desc *desc, ht_attention_need *need);
ht_status hti_half_forward(ht_context *ctx, const hti_attention_call *call);
ht_status hti_half_backward(ht_context *ctx, const hti_attention_call *call);
ht_status hti_half_pairs(ht_context *ctx, const hti_attention_call *call, int64_t sequence,
                         int64_t head, int8_t *out);
size_t hti_half_cache_scratch(const ht_context *ctx, const hti_cache_call *call);
ht_status hti_half_cache_extend(ht_context *ctx, const hti_cache_call *call);

/* A table's first entries, the same for every instruction set. */
#define HTI_CPU_COMMON                                                                      \
    .open = hti_cpu_open, .close = hti_cpu_close, .synchronize = hti_cpu_synchronize,       \
    .alloc = hti_cpu_alloc, .release = hti_cpu_release, .copy_in = hti_cpu_copy,            \
    .copy_out = hti_cpu_copy, .copy = hti_cpu_copy, .fill = hti_cpu_fill,                   \
    .attention_check = hti_cpu_attention_check, .attention_pairs = hti_ref_attention_pairs, \
    .wide_cache = 1

/* The number of the calling thread inside a parallel region. */
int hti_cpu_thread(void);

/* Threads for a loop over `work` numbers: a short one is done before a second thread has woken up.
 */
static inline int hti_cpu_team(const ht_context *ctx, int64_t work) {
    return work < 1 << 16 ? 1 : ctx->threads;
}

/* The reference kernels of one precision (ref/f32.c, ref/f64.c). */
typedef struct hti_ref_kernels {
    void (*need)(const ht_context *ctx, const ht_attention_desc *desc, ht_attention_need *need);
    void (*forward)(ht_context *ctx, const hti_attention_call *call);
    void (*backward)(ht_context *ctx, const hti_attention_call *call);
    size_t (*cache_thread_bytes)(const hti_cache_call *call);
    void (*cache_extend)(ht_context *ctx, const hti_cache_call *call);
    size_t (*pairs)(const hti_attention_call *call, int64_t sequence, int64_t head, int8_t *out,
                    void *scratch);
} hti_ref_kernels;
extern const hti_ref_kernels hti_ref_f32, hti_ref_f64;

/* Reference entries that the fast tables delegate to (any dtype the CPU takes). */
void hti_ref_attention_need(const ht_context *ctx, const ht_attention_desc *desc,
                            ht_attention_need *need);
ht_status hti_ref_attention_forward(ht_context *ctx, const hti_attention_call *call);
ht_status hti_ref_attention_backward(ht_context *ctx, const hti_attention_call *call);
ht_status hti_ref_attention_pairs(ht_context *ctx, const hti_attention_call *call, int64_t sequence,
                                  int64_t head, int8_t *out);
size_t hti_ref_cache_scratch(const ht_context *ctx, const hti_cache_call *call);
ht_status hti_ref_cache_extend(ht_context *ctx, const hti_cache_call *call);

/* The fast attention of one instruction set (avx2.c, avx512.c). */
#define HTI_FAST_ENTRIES(isa)                                                                \
    void hti_attention_need_##isa(const ht_context *ctx, const ht_attention_desc *desc,      \
                                  ht_attention_need *need);                                  \
    ht_status hti_attention_forward_##isa(ht_context *ctx, const hti_attention_call *call);  \
    ht_status hti_attention_backward_##isa(ht_context *ctx, const hti_attention_call *call); \
    size_t hti_cache_scratch_##isa(const ht_context *ctx, const hti_cache_call *call);       \
    ht_status hti_cache_extend_##isa(ht_context *ctx, const hti_cache_call *call)
HTI_FAST_ENTRIES(avx2);
HTI_FAST_ENTRIES(avx512);

#endif
