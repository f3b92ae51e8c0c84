/*
 * The gradient of the biases of kind full: each warp of a thread block adds up the score gradients
 * of its queries by distance, the thread block its warps' sums, and a last kernel those of all
 * thread blocks. Every sum has one owner and a fixed order.
 *
 * A tile that lies wholly beyond the reach adds to one number in a register. Of others squares of
 * 16 x 16 go through shared memory, where each lane sums up one diagonal.
 */
#ifndef HTI_CUDA_FULL_BIAS_H
#define HTI_CUDA_FULL_BIAS_H

#include "cuda/full/tile.h"

namespace HTI_KERNELS {

/* Distances of tiles that reach in go so much beyond: 64 keys and up to 32 queries. */
enum { BEYOND = TILE + 32, SQUARE = 16 * 17 };

struct bias_sums {
    float *table;        /* this warp's, in shared memory, of distance 0; NULL: not wanted */
    float *square;       /* [16][17] this warp's */
    float before, after; /* this lane's, of tiles beyond the reach */
};

static __host__ __device__ __forceinline__ int span_of(const bias_args &b) {
    return 2 * (b.reach + BEYOND) + 1;
}

/* Floats of shared memory. */
template <int WARPS> static inline size_t sums_size(const bias_args &b) {
    return (size_t)(WARPS * (span_of(b) + SQUARE));
}

/* Before the thread block's next barrier. */
template <int WARPS>
static __device__ __forceinline__ bias_sums clear_sums(float *at, const bias_args &b) {
    int span = span_of(b), warp = warp_index();
    for (int i = threadIdx.x; i < WARPS * span; i += 32 * WARPS) at[i] = 0;
    bias_sums s = {at + warp * span + b.reach + BEYOND, at + WARPS * span + warp * SQUARE, 0, 0};
    return s;
}

/* Score gradients of 16 queries and 16 keys as a product leaves them; ahead: of the lane's first
 * key before query g; flat: as in tilt. */
static __device__ __forceinline__ void add_square(bias_sums &s, const float x[2][4], int flat,
                                                  int ahead) {
    if (flat) {
        float sum = ((x[0][0] + x[0][1]) + (x[0][2] + x[0][3])) +
                    ((x[1][0] + x[1][1]) + (x[1][2] + x[1][3]));
        s.after += flat > 0 ? sum : 0;
        s.before += flat > 0 ? 0 : sum;
        return;
    }
    int lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int b = i >> 2, h = i >> 1 & 1, odd = i & 1;
        s.square[(8 * h + g) * 17 + 8 * b + 2 * t + odd] = x[b][i & 3];
    }
    __syncwarp();
    int diagonal = lane - 15; /* key - query within the square; 31 of them */
    float sum = 0;
#pragma unroll
    for (int r = 0; r < 16; r++)
        if (r + diagonal >= 0 && r + diagonal < 16) sum += s.square[18 * r + diagonal];
    if (lane < 31) s.table[ahead - 2 * t + g + diagonal] += sum;
    __syncwarp();
}

/* All warps: the thread block's table to where the last kernel finds it. */
template <int WARPS>
static __device__ __forceinline__ void store_sums(const bias_sums &s, const float *at,
                                                  const bias_args &b, int head) {
    int span = span_of(b), far = b.reach + BEYOND;
    float before = s.before, after = s.after;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        before += __shfl_xor_sync(~0u, before, step);
        after += __shfl_xor_sync(~0u, after, step);
    }
    if (threadIdx.x % 32 == 0) s.table[-far] += before, s.table[far] += after;
    __syncthreads();
    int64_t block = (int64_t)blockIdx.z * gridDim.x + blockIdx.x;
    float *to = b.part + (block * gridDim.y + head) * (2 * b.reach + 1);
    for (int i = threadIdx.x; i <= 2 * b.reach; i += 32 * WARPS) {
        int first = i == 0 ? 0 : BEYOND + i, last = i == 2 * b.reach ? span - 1 : BEYOND + i;
        float sum = 0;
        for (int j = first; j <= last; j++)
            for (int w = 0; w < WARPS; w++) sum += at[w * span + j];
        to[i] = sum;
    }
}

} // namespace HTI_KERNELS

#endif
