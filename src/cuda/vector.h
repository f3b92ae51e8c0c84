/*
 * Vectors of 16 bytes and their numbers, of both types as float; sums over some lanes of a warp.
 */
#ifndef HTI_CUDA_VECTOR_H
#define HTI_CUDA_VECTOR_H

#include "cuda/cuda.h"

typedef __nv_bfloat16 bf16;

DEVICE float low_half(uint32_t x) { return __uint_as_float(x << 16); }
DEVICE float high_half(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
DEVICE uint32_t two_halves(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* 16 bytes as they lie in memory, and their numbers: a kernel that needs them again later keeps the
 * bytes, which take half the registers. */
DEVICE void unpack(float *out, const uint4 &x, const bf16 *) {
    out[0] = low_half(x.x), out[1] = high_half(x.x);
    out[2] = low_half(x.y), out[3] = high_half(x.y);
    out[4] = low_half(x.z), out[5] = high_half(x.z);
    out[6] = low_half(x.w), out[7] = high_half(x.w);
}
DEVICE void unpack(float *out, const uint4 &x, const float *) {
    out[0] = __uint_as_float(x.x), out[1] = __uint_as_float(x.y);
    out[2] = __uint_as_float(x.z), out[3] = __uint_as_float(x.w);
}

template <int N> DEVICE void load(float *out, const bf16 *at) {
    if constexpr (N == 8) {
        unpack(out, *(const uint4 *)at, at);
    } else {
        for (int i = 0; i < N; i++) out[i] = __bfloat162float(at[i]);
    }
}

template <int N> DEVICE void load(float *out, const float *at) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) ((float4 *)out)[i] = ((const float4 *)at)[i];
    } else {
        for (int i = 0; i < N; i++) out[i] = at[i];
    }
}

template <int N> DEVICE void store(bf16 *at, const float *x) {
    if constexpr (N == 8) {
        uint4 v;
        v.x = two_halves(x[0], x[1]), v.y = two_halves(x[2], x[3]);
        v.z = two_halves(x[4], x[5]), v.w = two_halves(x[6], x[7]);
        *(uint4 *)at = v;
    } else {
        for (int i = 0; i < N; i++) at[i] = __float2bfloat16_rn(x[i]);
    }
}

template <int N> DEVICE void store(float *at, const float *x) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) ((float4 *)at)[i] = ((const float4 *)x)[i];
    } else {
        for (int i = 0; i < N; i++) at[i] = x[i];
    }
}

/* What x becomes in memory. */
DEVICE float as_stored(float x, const bf16 *) { return __bfloat162float(__float2bfloat16_rn(x)); }
DEVICE float as_stored(float x, const float *) { return x; }

/* Sum over groups of LANES lanes; every lane gets it. */
template <int LANES> DEVICE float sum_lanes(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

#endif
