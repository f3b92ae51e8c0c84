/*
 * The 16-bit type that a kernel on tensor cores is compiled for. Sources of such kernels are
 * compiled once for bf16 and once (HTI_F16) for f16, each time in a namespace of their own; typed.h
 * has the way in. Whatever both would name alike must lie in HTI_KERNELS.
 *
 * f16 has the finer steps, but ends at 65,504: nothing may be kept in it that grows with the number
 * of rows. Products and their sums are float in both.
 */
#ifndef HTI_CUDA_ELEMENT_H
#define HTI_CUDA_ELEMENT_H

#include "cuda/cuda.h"

#ifdef HTI_F16
#define HTI_KERNELS f16_kernels
#define HTI_TYPED hti_typed_f16
#define HTI_MMA_TYPES "f16.f16" /* of both factors, in PTX */
#else
#define HTI_KERNELS bf16_kernels
#define HTI_TYPED hti_typed_bf16
#define HTI_MMA_TYPES "bf16.bf16"
#endif

namespace HTI_KERNELS {

#ifdef HTI_F16
typedef __half element;
typedef __half2 element2;
static const uint32_t ELEMENT_ONE = 0x3c00; /* 1, as bits */

DEVICE float from_element(element x) { return __half2float(x); }
DEVICE element to_element(float x) { return __float2half_rn(x); }
DEVICE element2 to_elements(float low, float high) { return __floats2half2_rn(low, high); }
DEVICE float2 from_elements(element2 x) { return __half22float2(x); }
#else
typedef __nv_bfloat16 element;
typedef __nv_bfloat162 element2;
static const uint32_t ELEMENT_ONE = 0x3f80;

DEVICE float from_element(element x) { return __bfloat162float(x); }
DEVICE element to_element(float x) { return __float2bfloat16(x); }
DEVICE element2 to_elements(float low, float high) { return __floats2bfloat162_rn(low, high); }
DEVICE float2 from_elements(element2 x) { return __bfloat1622float2(x); }
#endif

/* Two in a word, the first one low. */
DEVICE uint32_t pack2(float low, float high) {
    element2 p = to_elements(low, high);
    return *(uint32_t *)&p;
}

DEVICE float2 unpack2(uint32_t x) { return from_elements(*(element2 *)&x); }

/* Of rows that become one of the level above, the tuned kernels keep the sum in bf16; in f16 half
 * of it, so that a cluster of level l has its sum over 2^l rows divided by 2^l, and counts
 * likewise. */
#ifdef HTI_F16
static const bool HALVING = true;
DEVICE uint32_t join2(uint32_t a, uint32_t b) {
    element2 half = to_elements(0.5f, 0.5f);
    element2 s = __hfma2(*(element2 *)&a, half, __hmul2(*(element2 *)&b, half));
    return *(uint32_t *)&s;
}
#else
static const bool HALVING = false;
DEVICE uint32_t join2(uint32_t a, uint32_t b) {
    element2 s = __hadd2(*(element2 *)&a, *(element2 *)&b);
    return *(uint32_t *)&s;
}
#endif

/* What a sum or count over 2^levels is multiplied by. */
DEVICE float unit_of(int levels) { return HALVING ? 1.0f / (float)((int64_t)1 << levels) : 1; }

} // namespace HTI_KERNELS

#endif
