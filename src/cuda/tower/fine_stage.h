/*
 * What the forward of mode fine needs of a thread block's rows: 256 rows in shared memory, the
 * exact level, and how results are written.
 */
#ifndef HTI_CUDA_TOWER_FINE_STAGE_H
#define HTI_CUDA_TOWER_FINE_STAGE_H

#include "cuda/hier_place.h"

namespace HTI_KERNELS {

enum { CHUNK = 256, WARPS = CHUNK / 32, THREADS = 32 * WARPS, NEAR = 32, FAR = 64 };
enum { ROWS1 = CHUNK + 2 * NEAR, ROWS2 = (CHUNK + 2 * FAR) / 4 };

/* ---- rows of a thread block ---- */

template <int D> struct shared_rows {
    element k[ROWS1 * D], v[ROWS1 * D];   /* from row first - NEAR on, 0 where masked */
    element k2[ROWS2 * D], v2[ROWS2 * D]; /* level 2, from (first - FAR) / 4 on: sums */
    float n[ROWS1], n2[ROWS2];            /* their counts */
};

/* Every thread takes one chunk of each STEP-th row. */
template <int D>
static __device__ __forceinline__ void load_chunk(shared_rows<D> &s, const place &p, const view &k,
                                                  const view &v) {
    constexpr int CH = D / 8, STEP = THREADS / CH;
    int ch = threadIdx.x % CH, row = threadIdx.x / CH, r = p.first - NEAR + row;
    uint32_t to_k = shared_address(s.k + rows<D>::at(row, ch)), to_v = to_k + (uint32_t)sizeof s.k;
    const element *from_k = k.data + (int64_t)r * k.stride + 8 * ch,
                  *from_v = v.data + (int64_t)r * v.stride + 8 * ch;
    int inside = p.first >= NEAR && p.first + CHUNK + NEAR <= p.rows && !k.mask;
    if (inside && ROWS1 % STEP == 0) {
#pragma unroll
        for (int i = 0; i < ROWS1 / STEP; i++) {
            copy_async(to_k + i * STEP * 2 * D, from_k + (int64_t)(i * STEP) * k.stride);
            copy_async(to_v + i * STEP * 2 * D, from_v + (int64_t)(i * STEP) * v.stride);
        }
        return;
    }
    for (; row < ROWS1; row += STEP, r += STEP, to_k += STEP * 2 * D, to_v += STEP * 2 * D) {
        int there = r >= 0 && r < p.rows && (!k.mask || k.mask[r]);
        copy_async_if(to_k, there ? from_k : k.data, there);
        copy_async_if(to_v, there ? from_v : v.data, there);
        from_k += STEP * k.stride, from_v += STEP * v.stride;
    }
}

/* Counts, where they are not the same for all. */
template <int D>
static __device__ __forceinline__ void load_counts(shared_rows<D> &s, const hti_hier_args &a,
                                                   const place &p, const view &k) {
    for (int row = threadIdx.x; row < ROWS1; row += THREADS)
        s.n[row] = count_of(a, p, k, p.first - NEAR + row);
    for (int row = threadIdx.x; row < ROWS2; row += THREADS) {
        float n = 0;
        for (int j = 0; j < 4; j++) n += count_of(a, p, k, p.first - FAR + 4 * row + j);
        s.n2[row] = n * unit_of(2);
    }
}

/* Rows two levels up are sums of 4 rows, 16 bytes at a time. The far ends come from memory ... */
template <int D>
static __device__ __forceinline__ void build_far(shared_rows<D> &s, const place &p, const view &k,
                                                 const view &v) {
    constexpr int CH = D / 8, EDGE = (FAR - NEAR) / 4;
    for (int i = threadIdx.x; i < 4 * EDGE * CH; i += THREADS) {
        int ch = i % CH, row = i / CH % EDGE, side = i / (CH * EDGE) & 1,
            is_v = i / (2 * CH * EDGE);
        if (side) row += ROWS2 - EDGE;
        int r = p.first - FAR + 4 * row;
        int64_t stride = is_v ? v.stride : k.stride;
        const element *from = (is_v ? v.data : k.data) + r * stride + 8 * ch;
        uint4 sum[4];
#pragma unroll
        for (int m = 0; m < 4; m++) {
            int there = r + m >= 0 && r + m < p.rows && (!k.mask || k.mask[r + m]);
            sum[m] = there ? *(const uint4 *)(from + m * stride) : make_uint4(0, 0, 0, 0);
        }
        *(uint4 *)((is_v ? s.v2 : s.k2) + rows<D>::at(row, ch)) =
            join8(join8(sum[0], sum[1]), join8(sum[2], sum[3]));
    }
}

/* ... the others from the rows below, once they have arrived. */
template <int D> static __device__ __forceinline__ void build_near(shared_rows<D> &s) {
    constexpr int CH = D / 8, EDGE = (FAR - NEAR) / 4, STEP = THREADS / CH;
    static_assert(STEP % 2 == 0, "the turn of four rows repeats every second coarse row");
    int ch = threadIdx.x % CH, first = EDGE + threadIdx.x / CH, local = 4 * (first - EDGE);
    uint32_t from[4], base = shared_address(s.k),
                      to = shared_address(s.k2 + rows<D>::at(first, ch));
#pragma unroll
    for (int m = 0; m < 4; m++) from[m] = base + 2 * rows<D>::at(local + m, ch);
    constexpr uint32_t ACROSS = sizeof s.k, ACROSS2 = sizeof s.k2;
    static_assert(STEP % 8 == 0 || STEP >= ROWS2, "coarse rows keep their turn");
    for (int row = first; row < ROWS2 - EDGE; row += STEP, to += STEP * 2 * D) {
#pragma unroll
        for (int is_v = 0; is_v < 2; is_v++) {
            uint4 x[4];
#pragma unroll
            for (int m = 0; m < 4; m++) x[m] = shared_load4(from[m] + is_v * ACROSS);
            shared_store4(to + is_v * ACROSS2, join8(join8(x[0], x[1]), join8(x[2], x[3])));
        }
#pragma unroll
        for (int m = 0; m < 4; m++) from[m] += 4 * STEP * 2 * D;
    }
}

/* ---- scores ---- */

/* Divides a group's 8 scores by the keys' counts n[2] (of keys 2t, 2t+1); a key without rows is not
 * seen. */
static __device__ __forceinline__ void weigh(float x[4], const float n[2]) {
#pragma unroll
    for (int e = 0; e < 4; e++) x[e] = n[e & 1] > 0 ? x[e] / n[e & 1] : HTI_NEG_INF;
}

static __device__ __forceinline__ void hide(float x[4], int lo, int hi) {
    if (lo) x[0] = x[1] = HTI_NEG_INF;
    if (hi) x[2] = x[3] = HTI_NEG_INF;
}

/* The denominator's share: weights times counts. Plain: every key stands for `whole` rows. */
template <int NT, int PLAIN, int D>
static __device__ __forceinline__ void count(state<D> &s, const float x[NT][4],
                                             const float n[NT][2], float whole) {
    float sum[2] = {0, 0};
#pragma unroll
    for (int b = 0; b < NT; b++) {
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e >> 1] += PLAIN ? x[b][e] : x[b][e] * n[b][e & 1];
    }
    s.l[0] += PLAIN ? sum[0] * whole : sum[0];
    s.l[1] += PLAIN ? sum[1] * whole : sum[1];
}

/* Level 0: tile j of the warp. */
template <int D, int PLAIN, int CAUSAL, int INNER>
static __device__ __forceinline__ void
attend_level0(state<D> &s, const shared_rows<D> &sh, const hti_hier_args &a, const place &p,
              const frag<D> &q, const lanes<D> &l, int j, int warp, int g, int t) {
    int first = p.first + 32 * warp + 16 * j, left = NEAR - 16 + 32 * warp + 16 * j;
    int there[3] = {INNER || first > 0, 1, !CAUSAL && (INNER || first + 16 < p.rows)};
    constexpr int SEEN = CAUSAL ? 4 : 6;
    float x[6][4], n[6][2];
    uint32_t keys = shared_address(sh.k) + left * 2 * D,
             values = shared_address(sh.v) + left * 2 * D;
#pragma unroll
    for (int b = 0; b < SEEN; b++) {
        int side = b >> 1;
        x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
        if (there[side]) {
            uint32_t key[D / 8];
            load_key<D>(key, keys + 8 * b * 2 * D, l.key);
            dot8<D>(x[b], q, key);
        }
        if (!PLAIN) {
            n[b][0] = sh.n[left + 8 * b + 2 * t], n[b][1] = sh.n[left + 8 * b + 2 * t + 1];
            weigh(x[b], n[b]);
        }
        hide(x[b], !there[side], !there[side]);
        if (side == 1 && CAUSAL) {
            int key0 = 8 * (b & 1) + 2 * t;
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (key0 + (e & 1) > g + 8 * (e >> 1)) x[b][e] = HTI_NEG_INF;
        }
    }
    float f = PLAIN ? a.factor[0] : a.scale, factor[2] = {f, f};
    soften<SEEN, D>(x, s, factor);
    count<SEEN, PLAIN>(s, x, n, a.whole[0]);
#pragma unroll
    for (int side = 0; side < SEEN / 2; side++)
        if (there[side])
            add_values<D>(s.o, x[2 * side], x[2 * side + 1], values + 16 * side * 2 * D, l);
}

/* ---- results ---- */

template <int D>
static __device__ __forceinline__ void store_tile(const state<D> &s, const hti_hier_args &a,
                                                  const place &p, const float n[2], int first,
                                                  int head, int g, int t) {
    element *out = (element *)a.out.data + tensor_base(a, a.out, p, head);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = s.l[h];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        int r = first + 8 * h + g, there = r<p.rows, live = n[h]> 0 && l != 0;
        float inv = live ? __fdividef(1, l) : 0;
        uint32_t x[D / 8];
#pragma unroll
        for (int i = 0; i < D / 8; i++) x[i] = pack2(s.o[i][2 * h] * inv, s.o[i][2 * h + 1] * inv);
        store_row<D>(out + (int64_t)r * a.out.row_stride, x, t, there);
        if (!there || t != 0) continue;
        float lse = live ? (s.m[h] + __log2f(l)) * HTI_LN2 : HTI_NEG_INF;
        if (a.saved) a.saved[head * a.rows + p.start + r] = lse;
        if (a.lse.data)
            ((float *)a.lse.data)[tensor_base(a, a.lse, p, head) + (int64_t)r * a.lse.row_stride] =
                lse;
    }
}

} // namespace HTI_KERNELS

#endif
