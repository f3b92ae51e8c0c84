/*
 * Tables for AVX2 and AVX-512: attention and the model's ops compiled for them, products by CBLAS.
 */
#include "cpu/model/ops.h"

#ifdef HTI_X86

#define TABLE(isa)                                                                        \
    {                                                                                     \
        .name = "cpu:" #isa, HTI_CPU_COMMON, .attention_need = hti_attention_need_##isa,  \
        .attention_forward = hti_attention_forward_##isa,                                 \
        .attention_backward = hti_attention_backward_##isa,                               \
        .cache_scratch = hti_cache_scratch_##isa, .cache_extend = hti_cache_extend_##isa, \
        HTI_CPU_MODEL(hti_model_##isa, hti_cpu_gemm_blas)                                 \
    }

const hti_ops hti_cpu_avx512_ops = TABLE(avx512);
const hti_ops hti_cpu_avx2_ops = TABLE(avx2);

#endif
