/*
 * The attention's tables for AVX2 and AVX-512.
 */
#include "cpu/cpu.h"

#ifdef HTI_X86

#define TABLE(isa)                                                                        \
    {                                                                                     \
        .name = "cpu:" #isa, HTI_CPU_COMMON, .attention_need = hti_attention_need_##isa,  \
        .attention_forward = hti_attention_forward_##isa,                                 \
        .attention_backward = hti_attention_backward_##isa,                               \
        .cache_scratch = hti_cache_scratch_##isa, .cache_extend = hti_cache_extend_##isa, \
    }

const hti_ops hti_cpu_avx512_ops = TABLE(avx512);
const hti_ops hti_cpu_avx2_ops = TABLE(avx2);

#endif
