/*
 * Wide tiles, for compute capability 9.0: blocks of 64 or 128 rows, 64 columns, every row with its
 * own query (query fine, kind local), no dropout or masks. Products are those of wide.h: 64
 * rows of the owner against 64 partners.
 *
 * A warpgroup's 64 rows lie in one half of their block at every level >= 1, so they all see the
 * same partners; only the diagonal of a causal call needs more, and the end of a sequence.
 */
#ifndef HTI_CUDA_TILE_WIDE_H
#define HTI_CUDA_TILE_WIDE_H

#include "cuda/tile/tile.h"
#include "cuda/wide.h"

namespace HTI_KERNELS {

/* 64 keys of a level. */
struct wide_keys {
    const element *x, *y; /* the first row's key and value */
    int xs, ys;           /* from row to row */
    int level, first, left;
    uint32_t sight[2]; /* of each warpgroup, see sighted */
    int pad[3];
};

#if HTI_WIDE

/* ---- what 64 queries see of 64 keys ---- */

/* Keys lo ... hi - 1 of a step are seen; 0: none. */
struct sighted {
    uint32_t word;
    __device__ __forceinline__ int lo() const { return (int)(word & 255); }
    __device__ __forceinline__ int hi() const { return (int)(word >> 8 & 255); }
    __device__ __forceinline__ bool partial() const { return word >> 16 & 1; } /* or the diagonal */
    __device__ __forceinline__ bool ragged() const { return word >> 17; } /* one is not whole */
};

/* Queries first ... first + 63, keys k ... k + 63 of a level; all of them are in one half of their
 * block. end: queries of the sequence */
DEVICE uint32_t keys_in_sight(const hti_tile_args &t, int level, int first, int k, int end) {
    int block = t.a.block, c = first >> level, b = block_of(t, c), upper = c - b * block;
    int lo = (b - 1) * block, hi = (b + 2) * block;
    if (level == 0) {
        if (t.a.causal) hi = first + WIDE_ROWS;
    } else if (k < b * block) {
        hi = b * block - (upper < block / 2 ? block / 2 : 0);
    } else {
        lo = (b + 1) * block + (upper < block / 2 ? 0 : block / 2);
        if (t.a.causal) hi = lo;
    }
    int count = (int)((unsigned)(end + (1 << level) - 1) >> level), whole = end >> level;
    lo = max(lo - k, 0), hi = min(min(hi - k, WIDE_ROWS), count - k);
    if (first >= end || lo >= hi) return 0;
    bool diagonal = t.a.causal && level == 0 && k + WIDE_ROWS > first;
    bool partial = lo > 0 || hi < WIDE_ROWS || diagonal, ragged = hi > whole - k;
    return (uint32_t)lo | (uint32_t)hi << 8 | (uint32_t)partial << 16 | (uint32_t)ragged << 17;
}

/* Scores that are not seen become -inf; `row` is this lane's first query. */
DEVICE void cut_scores(float x[8][4], const hti_tile_args &t, const sighted &s, int level, int k,
                       int row) {
    int c0 = 2 * (lane_id() & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int end = s.hi();
        if (t.a.causal && level == 0) end = min(end, row + 8 * h - k + 1);
        end -= c0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            x[n][2 * h] = 8 * n < end ? x[n][2 * h] : HTI_NEG_INF;
            x[n][2 * h + 1] = 8 * n + 1 < end ? x[n][2 * h + 1] : HTI_NEG_INF;
        }
    }
    if (s.lo() == 0) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
        if (8 * n < s.lo()) x[n][0] = x[n][1] = x[n][2] = x[n][3] = HTI_NEG_INF; /* lo: a half */
}

/* The last cluster of a sequence has fewer rows: less log2 of what it lacks. */
DEVICE void trim_last(float x[8][4], const hti_tile_args &t, int level, int k, int length) {
    int last = (length >> level) - k - 2 * (lane_id() & 3);
    float less = (log2f((float)(length & ((1 << level) - 1))) - (float)level) / t.scale2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * n + (e & 1) == last) x[n][e] += less;
    }
}

/* ---- the steps of a tile of queries ---- */

/* By the first warp: level and first key of every step, in order of levels. Returns how many. */
DEVICE int list_steps(wide_keys *list, const hti_tile_args &t, const place &p, int queries,
                      int levels) {
    int level = lane_id();
    ranges r = {0, 0, 0, 0};
    if (level < levels) {
        int last = min(p.first + queries, p.length) - 1;
        r = keys_seen(t, p.length, level, p.first >> level, last >> level);
    }
    int n0 = (r.hi0 - r.lo0 + 3) / 4, n1 = (r.hi1 - r.lo1 + 3) / 4, end = n0 + n1;
    for (int o = 1; o < 32; o *= 2) {
        int before = __shfl_sync(ALL_LANES, end, max(lane_id() - o, 0));
        if (lane_id() >= o) end += before;
    }
    wide_keys *to = list + end - n0 - n1;
    for (int i = 0; i < n0 + n1; i++)
        to[i].level = level, to[i].first = GROUP * (i < n0 ? r.lo0 + 4 * i : r.lo1 + 4 * (i - n0));
    return __shfl_sync(ALL_LANES, end, 31);
}

/* By all threads: where their rows lie. */
DEVICE void fill_steps(wide_keys *list, int steps, const hti_tile_args &t, const place &p,
                       int kv_head, int teams) {
    for (int i = (int)threadIdx.x; i < steps; i += (int)blockDim.x) {
        wide_keys &to = list[i];
        side s = key_side(t, p, kv_head, to.level);
        to.x = s.x + to.first * s.xs, to.y = s.y + to.first * s.ys;
        to.xs = (int)s.xs, to.ys = (int)s.ys, to.left = s.count - to.first;
        for (int team = 0; team < teams; team++)
            to.sight[team] =
                keys_in_sight(t, to.level, p.first + WIDE_ROWS * team, to.first, p.length);
    }
}

#endif /* HTI_WIDE */

/* Steps of a tile, at most. */
HTI_FN int wide_steps(const hti_cuda_args &a) {
    int per = a.block / WIDE_ROWS;
    return 2 * per + 2 + (a.levels - 1) * (a.causal ? per : 2 * per);
}

/* ---- host ---- */

/* Whether the wide kernels serve a call, of those that the tile kernels take. */
int hti_wide_takes(const ht_context *ctx, const hti_tile_args &t);
ht_status hti_wide_forward(const ht_context *ctx, const hti_tile_args &t);
ht_status hti_wide_dq(const ht_context *ctx, const hti_tile_args &t);
/* Thread blocks of dq per head where there is a bias gradient, of a.bias_parts at most. */
int hti_wide_bias_parts(const ht_context *ctx, const hti_cuda_args &a);
/* dk and dv, t.a.work thread blocks per key head */
ht_status hti_wide_keys(const ht_context *ctx, const hti_tile_args &t);

} // namespace HTI_KERNELS

#endif
