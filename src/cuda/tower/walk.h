/*
 * Pieces of the walking forward kernel: who works on which rows, the rings of chunks, and the tile
 * of 16 rows that a warp attends.
 */
#ifndef HTI_CUDA_TOWER_WALK_H
#define HTI_CUDA_TOWER_WALK_H

#include "cuda/barrier.h"
#include "cuda/tower/stage.h"

namespace HTI_KERNELS {

enum { WALK_D = HTI_WALK_DIM, WALK_ROWS = 64, AHEAD = 2, TEAMS = 3 };
enum { WALK_LOADERS = 128, TEAM = 128, WALK_THREADS = WALK_LOADERS + TEAM * TEAMS };

/* Two rings in shared memory: 64 rows of k, then of v; their sums of two and of four, of k, then of
 * v. A chunk is in the second one only once it has arrived. Bytes. */
enum { FINE_SLOTS = 8, COARSE_SLOTS = 6, ROW_BYTES = 2 * WALK_D, EIGHT = 8 * ROW_BYTES };
enum { FINE_V = 64 * ROW_BYTES, FINE_BYTES = 2 * FINE_V };
enum { COARSE_2 = 32 * ROW_BYTES, COARSE_V = 48 * ROW_BYTES, COARSE_BYTES = 2 * COARSE_V };
enum { TILE_BYTES = 16 * ROW_BYTES }; /* a tile's result on its way out */
/* Barriers go by the number of a load: its rows and sums are there; nobody needs them any more. A
 * team's next load is at most 9 after its last (three stretches of one chunk), so that none of a
 * barrier's phases is left out. */
enum { BARRIERS = 16 };
enum { AT_COARSE = FINE_SLOTS * FINE_BYTES, AT_OUT = AT_COARSE + COARSE_SLOTS * COARSE_BYTES };
enum { AT_FULL = AT_OUT + 4 * TEAMS * TILE_BYTES, AT_DONE = AT_FULL + 8 * BARRIERS };
enum { WALK_SHARED = AT_DONE + 8 * BARRIERS };

struct walk_args {
    hti_hier_args a;
    int chunks; /* of 64 rows, of a sequence */
    /* all chunks of a head are cut into ranges of `size`, the first `longer` of one more; an item
     * is a range of a head */
    int ranges, size, longer, items;
    float unit;    /* of the lse to write, in log2 units */
    ht_tensor lse; /* the caller's, if there is but one stage; else data is NULL */
};

/* The row of a tile that is row m (0 ... 15) of the products: m and m + 8 are siblings, so that
 * coarse queries are the same in both halves of a lane's registers. Eight of them in a row end on
 * eight different numbers: no two meet in a bank. */
static __device__ __forceinline__ int row_of(int m) {
    return 2 * (m & 7) + ((m >> 2 ^ m >> 3) & 1);
}

/* Load n's barrier; first: that of load 0. */
static __device__ __forceinline__ uint32_t barrier_of(uint32_t first, uint32_t n) {
    return first + 8 * (n % BARRIERS);
}

static __device__ __forceinline__ void wait_load(uint32_t first, uint32_t n) {
    barrier_wait(barrier_of(first, n), n / BARRIERS & 1);
}

/* ---- who works on what ---- */

/* A stretch is a run of chunks of one head of one sequence. Where an item has two, one ends its
 * sequence and the next begins one: they share the empty chunk between them. */
struct walk {
    int item, at, end; /* chunks left of the item, counted over all sequences */
    int head, sequence, first, count;
    int joined; /* to the stretch before */
};

static __device__ __forceinline__ int next_stretch(walk &w, const walk_args &g) {
    w.joined = w.at < w.end;
    w.sequence++, w.first = 0;
    if (!w.joined) {
        w.item += gridDim.x;
        if (w.item >= g.items) return 0;
        int range = w.item / g.a.q_heads, more = range < g.longer;
        w.head = w.item - range * g.a.q_heads;
        w.at = range * g.size + (more ? range : g.longer), w.end = w.at + g.size + more;
        w.sequence = w.at / g.chunks;
        w.first = w.at - w.sequence * g.chunks;
    }
    int left = g.chunks - w.first, wanted = w.end - w.at;
    w.count = left < wanted ? left : wanted;
    w.at += w.count;
    return 1;
}

static __device__ __forceinline__ void start_walk(walk &w, int count) {
    w.item = (int)blockIdx.x - (int)gridDim.x;
    w.at = w.end = 0, w.count = count;
}

static __device__ __forceinline__ char *walk_row(const hti_flat &t, int sequence, int head,
                                                 int row) {
    return t.data + (uint64_t)(sequence * t.batch + head * t.head + row * t.row) * 8;
}

/* Row of a stage-1 tower at which a sequence starts. */
static __device__ __forceinline__ int64_t walk_tower(const walk_args &g, int sequence, int head) {
    return head * g.a.tower[1] + (int64_t)sequence * ((g.a.length + 7) / 8);
}

static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"((int)AHEAD) : "memory");
}

/* ---- a tile of 16 rows ---- */

/* A tile's place: its warp (0 ... 3) in the chunk, addresses of the three slots it sees, and the
 * sequence around it. */
struct walk_tile {
    uint32_t fine[3], coarse[3]; /* left, own, right */
    int warp, first, length;     /* first row of the chunk; rows of the sequence */
    int edge, ragged;            /* at an end of the sequence; an end that cuts clusters */
};

template <int MODE>
static __device__ __forceinline__ void find_groups(uint32_t at[], const walk_tile &w) {
    using G = groups<MODE, 1>;
#pragma unroll
    for (int i = 0; i < G::FINE; i += 2) {
        int block = w.warp + i / 2 - 1;
        at[i] = block < 0   ? w.fine[0] + 6 * EIGHT
                : block > 3 ? w.fine[2]
                            : w.fine[1] + block * 2 * EIGHT;
        at[i + 1] = at[i] + EIGHT;
    }
    if (!G::COARSE) return;
    int low = w.warp < 2, half1 = w.warp & 1;
    uint32_t left1 = low ? w.coarse[0] + 2 * EIGHT : w.coarse[1];
    uint32_t right1 = low ? w.coarse[1] + 2 * EIGHT : w.coarse[2];
    uint32_t left2 = w.coarse[0] + COARSE_2, right2 = w.coarse[2] + COARSE_2;
    constexpr int AT1 = G::FINE, AT2 = G::FINE + G::COARSE;
    at[AT1] = left1, at[AT1 + 1] = G::CAUSAL || half1 ? left1 + EIGHT : right1;
    at[AT2] = left2, at[AT2 + 1] = G::CAUSAL || !low ? left2 + EIGHT : right2;
    if (!G::CAUSAL) at[AT1 + 2] = right1 + EIGHT, at[AT2 + 2] = right2 + EIGHT;
}

/* First cluster of group b at its level, counted from the sequence's start. */
template <int MODE> static __device__ __forceinline__ int first_cluster(int b, const walk_tile &w) {
    using G = groups<MODE, 1>;
    int level = G::level(b), row = w.first + 16 * w.warp;
    if (level == 0) return row + 8 * b - 16;
    int i = b - (level == 1 ? G::FINE : G::FINE + G::COARSE);
    int block = row >> (level + 4), half = row >> (level + 3) & 1;
    if (i == 0) return 16 * block - 16;
    if (i == 1) return G::CAUSAL || half ? 16 * block - 8 : 16 * block + 16;
    return 16 * block + 24;
}

/* Valid rows of a cluster. */
static __device__ __forceinline__ int rows_in(int cluster, int level, int length) {
    int left = length - (cluster << level), whole = 1 << level;
    return cluster < 0 || left < 0 ? 0 : left < whole ? left : whole;
}

template <int MODE>
static __device__ __forceinline__ void scores(float x[][4], const uint32_t at[], int from,
                                              int count, const frag<WALK_D> &q,
                                              const lanes<WALK_D> &l) {
#pragma unroll
    for (int b = from; b < from + count; b++) {
        uint32_t key[WALK_D / 8];
        load_key<WALK_D>(key, at[b], l.key);
        x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
        dot8<WALK_D>(x[b], q, key);
    }
}

/* What the tile's rows do not see. */
template <int MODE>
static __device__ __forceinline__ void hide_unseen(float x[][4], const walk_tile &w, int lane) {
    using G = groups<MODE, 1>;
    int g = lane >> 2, t = lane & 3;
    if (w.edge && !w.ragged) { /* groups are there, or not, as a whole */
#pragma unroll
        for (int b = 0; b < G::ALL; b++) {
            int c = first_cluster<MODE>(b, w), out = c < 0 || c << G::level(b) >= w.length;
            hide(x[b], out, out);
        }
    }
    if (w.ragged) {
#pragma unroll
        for (int b = 0; b < G::ALL; b++) {
            int c = first_cluster<MODE>(b, w), level = G::level(b);
            int row = w.first + 16 * w.warp;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int n = rows_in(c + 2 * t + (e & 1), level, w.length);
                int m = rows_in((row + row_of(g + 8 * (e >> 1))) >> level, level, w.length);
                if (MODE != MEAN || m == 0) m = 1 << level;
                float whole = (float)(1 << (2 * level));
                x[b][e] = n ? x[b][e] * __fdividef(whole, (float)(n * m)) : HTI_NEG_INF;
            }
        }
    }
    if (G::CAUSAL) {
#pragma unroll
        for (int b = 2; b < 4; b++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * (b & 1) + 2 * t + (e & 1) > row_of(g + 8 * (e >> 1))) x[b][e] = HTI_NEG_INF;
        }
        if (G::COARSE) {
            if (!(w.warp & 1)) hide(x[G::FINE + 1], 1, 1);
            if (!(w.warp & 2)) hide(x[G::FINE + G::COARSE + 1], 1, 1);
        }
    }
}

/* Denominator's share of clusters that are not whole: what a whole one would have added too much.
 */
template <int MODE>
static __device__ __forceinline__ float too_much(const float x[][4], const walk_tile &w, int h,
                                                 int t) {
    using G = groups<MODE, 1>;
    float much = 0;
#pragma unroll
    for (int b = G::FINE; b < G::ALL; b++) {
        int c = first_cluster<MODE>(b, w), level = G::level(b);
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) {
            int n = rows_in(c + 2 * t + (e & 1), level, w.length);
            if (n) much += x[b][e] * (float)((1 << level) - n) * unit_of(level);
        }
    }
    return much;
}

/* Scores become weights (HALVING: those of 2^level rows); m: maximum in log2 units, l: denominator.
 */
template <int MODE>
static __device__ __forceinline__ void weigh_all(float x[][4], float m[2], float l[2],
                                                 const float factor[3], const walk_tile &w, int t) {
    using G = groups<MODE, 1>;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top[3] = {HTI_NEG_INF, HTI_NEG_INF, HTI_NEG_INF}, sum[3] = {0, 0, 0};
#pragma unroll
        for (int b = 0; b < G::ALL; b++) {
            int level = G::level(b);
            top[level] = fmaxf(top[level], fmaxf(x[b][2 * h], x[b][2 * h + 1]));
        }
        float most = top[0] * factor[0];
        if (G::COARSE) most = fmaxf(most, fmaxf(top[1] * factor[1], top[2] * factor[2]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        m[h] = most;
        float base = most == HTI_NEG_INF ? 0 : most; /* nothing seen: all weights 0, not NaN */
#pragma unroll
        for (int b = 0; b < G::ALL; b++) {
            int level = G::level(b);
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                x[b][e] = exp2_fast(fmaf(x[b][e], factor[level], HALVING ? level - base : -base));
                sum[level] += x[b][e];
            }
        }
        float all = HALVING ? sum[0] + sum[1] + sum[2] : fmaf(4, sum[2], fmaf(2, sum[1], sum[0]));
        if (w.ragged) all -= too_much<MODE>(x, w, h, t);
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        l[h] = all;
    }
}

/* o = P V, 16 keys at a time. offset: this lane's places in 8 rows. */
template <int MODE>
static __device__ __forceinline__ void take_values(float o[WALK_D / 8][4], const float x[][4],
                                                   const uint32_t at[], const uint32_t offset[4],
                                                   int lane) {
    using G = groups<MODE, 1>;
#pragma unroll
    for (int i = 0; i < WALK_D / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
#pragma unroll
    for (int b = 0; b < G::ALL; b += 2) {
        uint32_t from = (lane & 8 ? at[b + 1] : at[b]) + (b < G::FINE ? FINE_V : COARSE_V);
        add_values<WALK_D>(o, x + b, from, offset);
    }
}

} // namespace HTI_KERNELS

#endif
