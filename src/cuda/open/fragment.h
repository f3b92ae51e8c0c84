/*
 * Products of a warp that owns eight rows: 16 keys or clusters, down, times the eight queries,
 * across; and sums of values, columns down, rows across. Fragments come straight from device
 * memory: the order of columns in a product is free, so a lane takes neighbouring bytes of a row.
 *
 * Lane 4 g + t: keys g and g + 8, rows 2 t and 2 t + 1 of a product; of a sum the columns of
 * chunk g.
 */
#ifndef HTI_CUDA_OPEN_FRAGMENT_H
#define HTI_CUDA_OPEN_FRAGMENT_H

#include "cuda/generic/tile.h"
#include "cuda/open/tiles.h"
#include "cuda/ptx.h"
#include "cuda/vector.h"

DEVICE uint4 load16(const bf16 *at) { return *(const uint4 *)at; }

/* c[x] = <key g + 8 (x / 2), query 2 t + x % 2>; low, high: rows of keys g and g + 8 */
template <int D>
DEVICE void multiply(float (&c)[4], const bf16 *low, const bf16 *high, const uint4 (&q)[D / 32]) {
    uint4 x[D / 32], y[D / 32];
    int at = lane_id() % 4 * 8;
#pragma unroll
    for (int j = 0; j < D / 32; j++)
        x[j] = load16(low + 32 * j + at), y[j] = load16(high + 32 * j + at);
    c[0] = c[1] = c[2] = c[3] = 0;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        uint32_t first[4] = {x[j].x, y[j].x, x[j].y, y[j].y};
        uint32_t second[4] = {x[j].z, y[j].z, x[j].w, y[j].w};
        mma16(c, first, q[j].x, q[j].y);
        mma16(c, second, q[j].z, q[j].w);
    }
}

/* Rows of this lane in a product over keys: 2 t, 2 t + 1, 2 t + 8, 2 t + 9. */
struct four_rows {
    const bf16 *at[4];
};

DEVICE void multiply_words(float (&z)[4], const uint32_t (&w)[4], uint32_t low, uint32_t high) {
    uint32_t a[4] = {__byte_perm(w[0], w[1], 0x5410), __byte_perm(w[0], w[1], 0x7632),
                     __byte_perm(w[2], w[3], 0x5410), __byte_perm(w[2], w[3], 0x7632)};
    mma16(z, a, low, high);
}

/* z[m] += values times weights: columns chunk + 2 m and 2 m + 1 of rows 2 t, 2 t + 1. Chunks have
 * 8 columns (D 32: 4); D 128 has a second one 64 columns on. low, high: weights of row g with keys
 * 2 t, 2 t + 1 and 2 t + 8, 2 t + 9. */
template <int D>
DEVICE void add_products(float (&z)[D / 16][4], const four_rows &v, uint32_t low, uint32_t high) {
    int g = lane_id() / 4;
    if constexpr (D == 32) {
        uint2 x[4];
        for (int i = 0; i < 4; i++) x[i] = *(const uint2 *)(v.at[i] + 4 * g);
        uint32_t first[4] = {x[0].x, x[1].x, x[2].x, x[3].x};
        uint32_t second[4] = {x[0].y, x[1].y, x[2].y, x[3].y};
        multiply_words(z[0], first, low, high);
        multiply_words(z[1], second, low, high);
    } else {
#pragma unroll
        for (int half = 0; half < D / 64; half++) {
            uint4 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = load16(v.at[i] + 64 * half + 8 * g);
            uint32_t w0[4] = {x[0].x, x[1].x, x[2].x, x[3].x};
            uint32_t w1[4] = {x[0].y, x[1].y, x[2].y, x[3].y};
            uint32_t w2[4] = {x[0].z, x[1].z, x[2].z, x[3].z};
            uint32_t w3[4] = {x[0].w, x[1].w, x[2].w, x[3].w};
            multiply_words(z[4 * half], w0, low, high);
            multiply_words(z[4 * half + 1], w1, low, high);
            multiply_words(z[4 * half + 2], w2, low, high);
            multiply_words(z[4 * half + 3], w3, low, high);
        }
    }
}

/* Sums (two rows, all columns of this lane) times a factor, to rows in memory. */
template <int D>
DEVICE void store_columns(bf16 *to, const float (&z)[D / 16][4], int second, float factor) {
    int g = lane_id() / 4;
    uint32_t w[D / 16];
#pragma unroll
    for (int m = 0; m < D / 16; m++)
        w[m] = two_halves(factor * (second ? z[m][1] : z[m][0]),
                          factor * (second ? z[m][3] : z[m][2]));
    if constexpr (D == 32) {
        *(uint2 *)(to + 4 * g) = make_uint2(w[0], w[1]);
    } else {
#pragma unroll
        for (int half = 0; half < D / 64; half++)
            *(uint4 *)(to + 64 * half + 8 * g) =
                make_uint4(w[4 * half], w[4 * half + 1], w[4 * half + 2], w[4 * half + 3]);
    }
}

/* ---- where rows of a level lie ---- */

struct level_view {
    const bf16 *k, *v;
    int64_t k_step, v_step;
    int count, level;
    int64_t at; /* of its counts, level >= 1 */
};

DEVICE level_view view_of(const hti_open_tiles &o, const place &p, int kv_head, int level) {
    const hti_cuda_args &a = o.a;
    level_view l;
    l.count = (int)hti_clusters(p.length, level), l.level = level, l.at = 0;
    l.k_step = l.v_step = a.head_dim;
    if (level > 0) {
        l.at = hti_cluster_at(a, p.start, level);
        int64_t row = (kv_head * a.clusters + l.at) * a.head_dim;
        l.k = o.pk + row, l.v = o.pv + row;
    } else if (o.k0) {
        int64_t row = (kv_head * a.rows + p.start) * a.head_dim;
        l.k = o.k0 + row, l.v = o.v0 + row;
    } else {
        l.k = tensor_row<const bf16>(a.k, a, p, kv_head, 0), l.k_step = a.k.row_stride;
        l.v = tensor_row<const bf16>(a.v, a, p, kv_head, 0), l.v_step = a.v.row_stride;
    }
    return l;
}

DEVICE const bf16 *key_at(const level_view &l, int c) { return l.k + c * l.k_step; }
DEVICE const bf16 *value_at(const level_view &l, int c) { return l.v + c * l.v_step; }

/* Valid rows of a cluster of a view; 0 beyond the end. */
DEVICE float rows_of(const hti_cuda_args &a, const place &p, const level_view &l, int c) {
    if (c >= l.count) return 0;
    if (l.level == 0) return takes_part(a.key_mask, p, c) ? 1 : 0;
    if (a.key_mask) return a.kn[l.at + c];
    return (float)min(1 << l.level, p.length - (c << l.level));
}

#endif
