/*
 * What both halves of the tile kernels' backward share: gradients that come down from the levels
 * above, and how gradients are stored.
 */
#ifndef HTI_CUDA_TILE_GRAD_H
#define HTI_CUDA_TILE_GRAD_H

#include "cuda/tile/tile.h"

namespace HTI_KERNELS {

/* x += what the clusters of levels 1 and 2 above the warp's rows got; at level 2 that is what came
 * down from all above it. share(level, at, row): of a row in its cluster, `at` where the level's
 * clusters begin; level 2 is in shares of 1 already. */
template <int D, typename Share>
DEVICE void add_levels(float x[D / 8][4], const float *grads, const hti_tile_args &t,
                       const place &p, int head, int own, Share share) {
    int g = lane_id() >> 2, c = 2 * (lane_id() & 3), last = min(levels_at(t, p) - 1, 2);
#pragma unroll
    for (int level = 1; level <= 2; level++) {
        if (level > last) break;
        int64_t at = cluster_at(t, p, level);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = min(own + 8 * h + g, p.length - 1);
            float w = share(level, at, row);
            const float *from = grads + (head * t.a.clusters + at + (row >> level)) * D + c;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                float2 y = *(const float2 *)(from + 8 * i);
                if (w != 0) x[i][2 * h] += w * y.x, x[i][2 * h + 1] += w * y.y;
            }
        }
    }
}

/* One over the valid rows of a cluster of level 1; counts: NULL without masks. */
DEVICE float mean_share(const float *counts, const place &p, int level, int64_t at, int row) {
    if (level == 2) return 1;
    float n = counts ? counts[at + (row >> 1)] : (float)min(2, p.length - (row & ~1));
    return n > 0 ? 1 / n : 0;
}

/* Rows 0 ... count - 1 of a warp's 16 as floats, at `to` [16][D]. */
template <int D>
DEVICE void store_sums(float *to, const float x[D / 8][4], int count, float factor = 1) {
    int g = lane_id() >> 2, c = lane_id() & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (8 * h + g >= count) continue;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *(float2 *)(to + (8 * h + g) * D + 8 * i + 2 * c) =
                make_float2(x[i][2 * h] * factor, x[i][2 * h + 1] * factor);
    }
}

/* What gradients by coarse queries are multiplied by: see `weighted` in prepare.cu. */
DEVICE float coarse_unit(const hti_tile_args &t, int level) {
    return is_fine(t) ? 1 : (float)(1 << level);
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
        store_row<D>(tensor_row<element>(to, t.a, p, head, r), y, c, r < p.length);
    }
}

/* dk and dv, of the coarse levels or of level 0. */
ht_status hti_tile_run_keys(const ht_context *ctx, hti_tile_args t, int coarse);

} // namespace HTI_KERNELS

#endif
