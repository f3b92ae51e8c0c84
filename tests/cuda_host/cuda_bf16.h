/*
 * bfloat16 as src/cuda uses it, for the emulated build. Every operation rounds as the GPU does, to
 * the nearest, ties to even.
 */
#ifndef HOST_CUDA_BF16_H
#define HOST_CUDA_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 x) {
    return __uint_as_float((uint32_t)x.bits << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {(uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __floats2bfloat162_rn(x, x); }
static inline float2 __bfloat1622float2(__nv_bfloat162 p) {
    return {__bfloat162float(p.x), __bfloat162float(p.y)};
}
static inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) {
    float2 x = __bfloat1622float2(a), y = __bfloat1622float2(b);
    return __floats2bfloat162_rn(x.x + y.x, x.y + y.y);
}
static inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) {
    float2 x = __bfloat1622float2(a), y = __bfloat1622float2(b);
    return __floats2bfloat162_rn(x.x * y.x, x.y * y.y);
}

#endif
