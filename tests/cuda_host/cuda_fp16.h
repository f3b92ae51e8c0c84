/*
 * Half precision as src/cuda uses it, for the emulated build. Every operation rounds as the GPU
 * does, to the nearest, ties to even.
 */
#ifndef HOST_CUDA_FP16_H
#define HOST_CUDA_FP16_H

#include "cuda_runtime.h"

extern "C" {
#include "core/f16.h"
}

struct __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};

static inline float __half2float(__half x) { return hti_from_f16(x.bits); }
static inline __half __float2half_rn(float x) { return {hti_to_f16(x)}; }
static inline __half2 __floats2half2_rn(float x, float y) {
    return {__float2half_rn(x), __float2half_rn(y)};
}
static inline float2 __half22float2(__half2 p) { return {__half2float(p.x), __half2float(p.y)}; }
static inline __half2 __hadd2(__half2 a, __half2 b) {
    float2 x = __half22float2(a), y = __half22float2(b);
    return __floats2half2_rn(x.x + y.x, x.y + y.y);
}
static inline __half2 __hmul2(__half2 a, __half2 b) {
    float2 x = __half22float2(a), y = __half22float2(b);
    return __floats2half2_rn(x.x * y.x, x.y * y.y);
}
/* a product of halves is exact in float; its sum may round once more than the GPU's */
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    float2 x = __half22float2(a), y = __half22float2(b), z = __half22float2(c);
    return __floats2half2_rn(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
}

#endif
