/*
 * The models' tables of the CPU: loops compiled for each instruction set, products by CBLAS; the
 * reference has plain loops for both.
 */
#include "cpu/model/ops.h"

#define TABLE(isa, copy, product) \
    { .name = "cpu:" #isa, HTI_CPU_MODEL(copy, product) }

#ifdef HTI_X86
static const hti_model_ops avx512 = TABLE(avx512, hti_model_avx512, hti_cpu_gemm_blas);
static const hti_model_ops avx2 = TABLE(avx2, hti_model_avx2, hti_cpu_gemm_blas);
#endif
static const hti_model_ops ref = TABLE(ref, hti_model_f32, hti_cpu_gemm_plain);

const hti_model_ops *const hti_cpu_models[] = {
#ifdef HTI_X86
    &avx512, &avx2,
#endif
    &ref, NULL};
