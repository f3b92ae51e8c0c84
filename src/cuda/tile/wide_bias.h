/*
 * Biases of the wide tiles. Scores begin as biases (in units of the product, so that the scale
 * comes later) and products are added onto them. A lane's elements of a row and 8 keys are
 * neighbours in the table, so they are loaded as pairs: the table lies in shared memory twice, the
 * second time moved by one, so that every pair is aligned in one of the two.
 *
 * The bias gradient: each warp adds up ds by distance, 16 queries and 64 keys at a time. A lane's
 * elements of one row and one of two columns are 8 distances apart: a line of them begins at
 * some distance, and lines that begin at the same distance modulo 8 can be added. Lanes exchange
 * halves until each has three sums of its own, then these are added to the warp's table.
 */
#ifndef HTI_CUDA_TILE_WIDE_BIAS_H
#define HTI_CUDA_TILE_WIDE_BIAS_H

#include "cuda/tile/wide.h"

namespace HTI_KERNELS {

/* Distances that a causal call needs end at 0, but its diagonal has 63 more that nobody sees. */
HTI_FN int bias_entries(const hti_cuda_args &a) {
    return a.causal ? 2 * a.block + WIDE_ROWS : 4 * a.block;
}

/* Floats from one copy to the other: other banks */
HTI_FN int bias_stride(const hti_cuda_args &a) { return bias_entries(a) + 16; }

/* A warp's table of sums: lines reach beyond their distances, with zeros. */
enum { SUMS_BEFORE = 16, SUMS_AFTER = 32 };
HTI_FN int sums_size(const hti_cuda_args &a) { return bias_entries(a) + SUMS_BEFORE + SUMS_AFTER; }

#if HTI_WIDE

/* ---- biases as beginnings of scores ---- */

/* By `threads` threads: both copies of a head's table. */
DEVICE void fill_bias(float *to, const hti_tile_args &t, int head, int threads) {
    int entries = 4 * t.a.block - 1, most = bias_entries(t.a), stride = bias_stride(t.a);
    const float *from = t.bias2 + (int64_t)head * entries;
    for (int i = (int)threadIdx.x; i < most; i += threads) {
        float x = i < entries ? from[i] : 0;
        to[i] = x;
        if (i > 0) to[stride + i - 1] = x;
    }
}

/* Pairs of a line from `entry` on, 8 entries apart. stride: bytes between the copies */
DEVICE void load_line(float x[8][4], int h, uint32_t copies, uint32_t stride, int entry) {
    uint32_t at = copies + (entry & 1 ? stride - 4 : 0) + 4 * (uint32_t)entry;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint2 y = shared_load2(at + 32 * n);
        x[n][2 * h] = __uint_as_float(y.x), x[n][2 * h + 1] = __uint_as_float(y.y);
    }
}

/* x = biases of this lane's queries, `row` the first, and keys k ... k + 63. */
DEVICE void load_bias(float x[8][4], const hti_tile_args &t, uint32_t copies, int level, int k,
                      int row) {
    int entry = k + 2 * (lane_id() & 3) + 2 * t.a.block - 1;
    uint32_t stride = 4 * (uint32_t)bias_stride(t.a);
    load_line(x, 0, copies, stride, entry - (row >> level));
    load_line(x, 1, copies, stride, entry - ((row + 8) >> level));
}

/* ---- sums by distance ---- */

/* Two lanes share out N numbers: each keeps half, and adds the other's. up: which half */
template <int N> DEVICE void share_out(float x[N], int from, bool up) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float give = up ? x[i] : x[i + N / 2], keep = up ? x[i + N / 2] : x[i];
        x[i] = keep + __shfl_sync(ALL_LANES, give, from);
    }
}

/* A line of N that begins at j - shift: moved back by one where that is below 0, so that it begins
 * at (j - shift) mod 8 - 8. */
template <int N> DEVICE void settle_line(float to[N + 1], const float from[N], int j, int shift) {
    bool below = j < shift;
    to[0] = below ? from[0] : 0;
#pragma unroll
    for (int i = 1; i < N; i++) to[i] = below ? from[i] : from[i - 1];
    to[N] = below ? 0 : from[N - 1];
}

/* Lanes by bits 1 and 2 of their row and by their column j; see the lines' beginnings below. */
DEVICE int lane_at(int rows, int j) { return 8 * rows + 4 * (j & 1) + (j >> 1 & 3); }

/* Four lanes have lines of 12 with one beginning: three numbers each go to the table. */
DEVICE void add_lines(float *table, float x[12], int second, int third) {
    bool up2 = lane_id() & 16, up1 = lane_id() & 8;
    share_out<12>(x, second, up2);
    share_out<6>(x, third, up1);
    table += 8 * ((up2 ? 6 : 0) + (up1 ? 3 : 0));
    __syncwarp(); /* other lanes have written there */
#pragma unroll
    for (int i = 0; i < 3; i++) table[8 * i] += x[i];
}

/* Level 0: rows are a distance of 1 apart. Rows g and g + 8 are added in the lane, then odd columns
 * go to a neighbour row. */
DEVICE void sum_rows(float *table, const float x[8][4]) {
    int lane = lane_id(), g = lane >> 2, c = lane & 3;
    float y[2][9], z[2][12];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        y[e][0] = x[0][2 + e], y[e][8] = x[7][e];
#pragma unroll
        for (int n = 1; n < 8; n++) y[e][n] = x[n - 1][e] + x[n][2 + e];
        settle_line<9>(z[e], y[e], 2 * c + e, g);
    }
    int from = g & 1 ? lane - 4 - c + (c + 3) % 4 : lane + 4;
#pragma unroll
    for (int i = 0; i < 10; i++) z[0][i] += __shfl_sync(ALL_LANES, z[1][i], from);
    z[0][10] = z[0][11] = 0;
    int third = (lane ^ 8) - c + (g & 2 ? c + 3 : c + 1) % 4; /* two rows, two columns further */
    add_lines(table + ((2 * c - g) & 7) - 16, z[0], lane ^ 18, third);
}

/* Levels 1 to 3: clusters of 2, 4 or 8 rows. Neighbour rows share out columns, the next ones share
 * out rows g and g + 8. */
template <int L> DEVICE void sum_clusters(float *table, const float x[8][4]) {
    int lane = lane_id(), g = lane >> 2, c = lane & 3, j = 2 * c + (g & 1);
    float y[2][16], z[24];
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int n = 0; n < 8; n++) y[h][n] = x[n][2 * h], y[h][n + 8] = x[n][2 * h + 1];
        share_out<16>(y[h], lane ^ 4, g & 1);
        settle_line<8>(z + 12 * h, y[h], j, (8 * h + g) >> L);
        z[12 * h + 9] = z[12 * h + 10] = z[12 * h + 11] = 0;
    }
    constexpr int ONE = 2 >> L, TWO = 4 >> L, FAR = (8 >> L) + ONE; /* columns, by bits of rows */
    int low = g & 2, high = g & 4, rows = g >> 1;
    share_out<24>(z, lane_at(rows ^ 1, low ? j - ONE : j + ONE), low != 0);
    int begin = (j - ((4 * low + g) >> L)) & 7; /* the row is g + 8 where bit 1 is set */
    add_lines(table + begin - 8, z, lane_at(rows ^ 2, high ? j - TWO : j + TWO),
              lane_at(rows ^ 1, low ? j - FAR : j + FAR));
}

/* From level 4 on all rows are of one cluster. */
DEVICE void sum_columns(float *table, const float x[8][4]) {
    int lane = lane_id(), g = lane >> 2, c = lane & 3;
    float y[16];
#pragma unroll
    for (int n = 0; n < 8; n++) y[n] = x[n][0] + x[n][2], y[n + 8] = x[n][1] + x[n][3];
    share_out<16>(y, lane ^ 4, g & 1);
    share_out<8>(y, lane ^ 16, g & 4);
    share_out<4>(y, lane ^ 8, g & 2);
    table += 2 * c + (g & 1) + 8 * (g & 4) + 8 * (g & 2);
    __syncwarp();
    table[0] += y[0], table[8] += y[1];
}

/* The warp's table, at its first entry, += ds of queries own ... own + 15 and keys k ... k + 63. */
DEVICE void sum_step(float *table, const float x[8][4], const hti_tile_args &t, int level, int k,
                     int own) {
    table += k - (own >> level) + 2 * t.a.block - 1;
    switch (level) {
    case 0: sum_rows(table, x); break;
    case 1: sum_clusters<1>(table, x); break;
    case 2: sum_clusters<2>(table, x); break;
    case 3: sum_clusters<3>(table, x); break;
    default: sum_columns(table, x);
    }
}

/* Tables of a thread block's warps, one after the other; all threads. */
DEVICE void store_bias_sums(const float *sums, const hti_tile_args &t, int warps) {
    int entries = 4 * t.a.block - 1, most = min(bias_entries(t.a), entries);
    float *to = t.a.bias_part + (int64_t)blockIdx.x * entries;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < most; i += (int)blockDim.x) {
        float sum = 0;
        for (int w = 0; w < warps; w++) sum += sums[w * sums_size(t.a) + SUMS_BEFORE + i];
        to[i] = sum;
    }
}

#endif /* HTI_WIDE */

} // namespace HTI_KERNELS

#endif
