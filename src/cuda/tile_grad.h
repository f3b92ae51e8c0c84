/*
 * What both halves of the tile kernels' backward share: gradients that come down from the levels
 * above, and how gradients are stored.
 */
#ifndef HTI_CUDA_TILE_GRAD_H
#define HTI_CUDA_TILE_GRAD_H

#include "cuda/tile.h"

/* Valid rows of cluster c; counts: of its level, NULL: no masks. */
DEVICE float rows_of(const float *counts, const place &p, int level, int c) {
    if (counts) return counts[c];
    return (float)min(1 << level, p.length - (c << level));
}

/* x += sum over levels of grads[cluster] / n. Levels >= 4 are the same for a warp's 16 rows: added
 * up once, a lane per column, in upper [D]. */
template <int D>
DEVICE void add_levels(float x[D / 8][4], const float *grads, const float *counts, float *upper,
                       const hti_tile_args &t, const place &p, int head, int own) {
    constexpr int N = D >= 32 ? D / 32 : 1;
    int lane = lane_id(), levels = levels_of(t.a, p.length);
    float sum[N];
    for (int i = 0; i < N; i++) sum[i] = 0;
    for (int level = levels - 1; level >= 4; level--) {
        int64_t at = hti_cluster_at(t.a, p.start, level);
        float n = rows_of(counts ? counts + at : NULL, p, level, own >> level);
        if (!(n > 0)) continue;
        const float *from = grads + (head * t.a.clusters + at + (own >> level)) * D;
        for (int i = 0; i < N; i++) sum[i] += from[min(lane + 32 * i, D - 1)] / n;
    }
    __syncwarp();
    for (int i = 0; i < N; i++)
        if (lane + 32 * i < D) upper[lane + 32 * i] = sum[i];
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = min(own + 8 * h + (lane >> 2), p.length - 1), c = 2 * (lane & 3);
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            x[i][2 * h] += upper[8 * i + c], x[i][2 * h + 1] += upper[8 * i + c + 1];
        for (int level = min(levels, 4) - 1; level >= 1; level--) {
            int64_t at = hti_cluster_at(t.a, p.start, level);
            float n = rows_of(counts ? counts + at : NULL, p, level, row >> level);
            float share = n > 0 ? 1 / n : 0;
            const float *from = grads + (head * t.a.clusters + at + (row >> level)) * D + c;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                float2 y = *(const float2 *)(from + 8 * i);
                if (n > 0) x[i][2 * h] += share * y.x, x[i][2 * h + 1] += share * y.y;
            }
        }
    }
}

/* Rows 0 ... count - 1 of a warp's 16 as floats, at `to` [16][D]. */
template <int D> DEVICE void store_sums(float *to, const float x[D / 8][4], int count) {
    int g = lane_id() >> 2, c = lane_id() & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (8 * h + g >= count) continue;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *(float2 *)(to + (8 * h + g) * D + 8 * i + 2 * c) =
                make_float2(x[i][2 * h], x[i][2 * h + 1]);
    }
}

/* Rows of a tensor = factor * x, zero where the mask takes a row out. */
template <int D>
DEVICE void store_grad(const ht_tensor &to, const float x[D / 8][4], float factor,
                       const uint8_t *mask, const hti_tile_args &t, const place &p, int head,
                       int own) {
    int g = lane_id() >> 2, c = lane_id() & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = own + 8 * h + g;
        bool live = takes_part(mask, p, r);
        uint32_t y[D / 8];
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            y[i] = live ? pack2(x[i][2 * h] * factor, x[i][2 * h + 1] * factor) : 0;
        store_row<D>(tensor_row<bf16>(to, t.a, p, head, r), y, c, r < p.length);
    }
}

/* dk and dv, all levels. */
ht_status hti_tile_run_keys(const ht_context *ctx, hti_tile_args t);

#endif
