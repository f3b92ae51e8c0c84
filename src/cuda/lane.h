/*
 * Lanes and warps: who am I, numbers of all types as float, sums over a warp.
 */
#ifndef HTI_LANE_H
#define HTI_LANE_H

#include <math.h>

#include "cuda/cuda.h"

#define ALL_LANES 0xffffffffu

DEVICE int lane_id() { return (int)threadIdx.x & 31; }
DEVICE int warp_id() { return (int)threadIdx.x >> 5; }

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
DEVICE float to_float(__half x) { return __half2float(x); }
DEVICE void put(float *p, float x) { *p = x; }
DEVICE void put(__nv_bfloat16 *p, float x) { *p = __float2bfloat16(x); }
DEVICE void put(__half *p, float x) { *p = __float2half_rn(x); }

DEVICE float warp_max(float x) {
    for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, o));
    return x;
}

DEVICE float warp_sum(float x) {
    for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(ALL_LANES, x, o);
    return x;
}

#endif
