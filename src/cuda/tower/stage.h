/*
 * What the tuned forward kernels share: a thread block's rows in shared memory, the exact level,
 * and how results are written.
 */
#ifndef HTI_CUDA_TOWER_STAGE_H
#define HTI_CUDA_TOWER_STAGE_H

#include "cuda/hier_place.h"

namespace HTI_KERNELS {

enum { CHUNK = 128, WARPS = CHUNK / 16, THREADS = 32 * WARPS };
/* Rows in shared memory: the stage's level from row first - 16 on, one level up from first - 32,
 * two levels up from first - 64: what the blocks of a chunk see. */
enum { ROWS0 = CHUNK + 32, ROWS1 = (CHUNK + 64) / 2, ROWS2 = (CHUNK + 128) / 4 };
enum { AT1 = ROWS0, AT2 = AT1 + ROWS1, ROWS_ALL = AT2 + ROWS2, HALO = 64 };

/* ---- rows of a thread block ---- */

/* Rows of the stage's level, from the chunk's first row on. */
struct source {
    const char *data;
    uint32_t step;       /* bytes from row to row */
    const uint8_t *mask; /* level 0, of the sequence's rows */
    const float *n;      /* tower, with masks */
};

/* Row 0 of a sequence among the rows of the stage's level; of packed sequences only. */
static __device__ __forceinline__ uint32_t packed_at(const hti_hier_args &a, const place &p) {
    return (uint32_t)(a.stage ? hti_tower_at(a, 3 * a.stage, p.sequence, p.start) : p.start);
}

static __device__ __forceinline__ char *chunk_of(const hti_hier_args &a, const place &p,
                                                 const hti_flat &t, int head, int row) {
    uint32_t at = a.cu ? packed_at(a, p) * t.row : p.sequence * t.batch;
    return t.data + (uint64_t)(at + head * t.head + row * t.row) * 8;
}

template <int BASE>
static __device__ __forceinline__ source source_of(const hti_hier_args &a, const place &p,
                                                   const hti_flat &t, const uint8_t *mask,
                                                   float *const *n, int head) {
    source s = {chunk_of(a, p, t, head, p.first), 8 * t.row, nullptr, nullptr};
    if (!mask) return s;
    if (BASE)
        s.mask = mask + p.start;
    else
        s.n = n[a.stage] + hti_tower_at(a, 3 * a.stage, p.sequence, p.start);
    return s;
}

/* Valid rows of cluster r of the stage's level. */
static __device__ __forceinline__ float count_of(const hti_hier_args &a, const place &p,
                                                 const source &v, int r) {
    if (r < 0 || r >= p.rows) return 0;
    if (v.mask) return v.mask[r] ? 1 : 0;
    if (v.n) return v.n[r];
    int level = 3 * a.stage, left = p.length - (r << level), whole = 1 << level;
    return (float)(left < whole ? left : whole);
}

template <int D> struct shared_rows {
    element k[ROWS_ALL * D], v[ROWS_ALL * D]; /* sums over the cluster, 0 where masked */
    float n[ROWS_ALL];                        /* their counts */
};

/* Four rows of the stage's level. `at`: bytes from the first; step: bytes from row to row. */
struct quad {
    uint4 x[4];
};

template <int D>
static __device__ __forceinline__ void load_quad(quad &q, const char *from, uint32_t at,
                                                 uint32_t step, int ch, int dim) {
#pragma unroll
    for (int m = 0; m < 4; m++)
        q.x[m] = fetch_chunk<D>((const element *)(from + (at + m * step)), ch, dim);
}

/* The same at the edges of a sequence and with masks; r: row of the sequence. */
template <int D>
static __device__ __forceinline__ void load_quad_if(quad &q, const char *from, uint32_t at,
                                                    uint32_t step, int ch, int dim,
                                                    const uint8_t *mask, int r, int rows) {
#pragma unroll
    for (int m = 0; m < 4; m++) {
        int there = r + m >= 0 && r + m < rows && (!mask || mask[r + m]);
        q.x[m] = make_uint4(0, 0, 0, 0);
        if (there) q.x[m] = fetch_chunk<D>((const element *)(from + (at + m * step)), ch, dim);
    }
}

/* Where a thread's quads and what is made of them go: addresses in shared memory. */
struct quad_places {
    uint32_t at0[4], at1[2], at2;
};

template <int D>
static __device__ __forceinline__ quad_places find_quad(uint32_t base, int group, int chunk) {
    quad_places to;
#pragma unroll
    for (int m = 0; m < 4; m++) to.at0[m] = base + 2 * rows<D>::at(4 * group - 48 + m, chunk);
#pragma unroll
    for (int m = 0; m < 2; m++) to.at1[m] = base + 2 * rows<D>::at(AT1 + 2 * group - 16 + m, chunk);
    to.at2 = base + 2 * rows<D>::at(AT2 + group, chunk);
    asm volatile("" : "+r"(to.at0[0]), "+r"(to.at0[1]), "+r"(to.at0[2]), "+r"(to.at0[3]));
    asm volatile("" : "+r"(to.at1[0]), "+r"(to.at1[1]), "+r"(to.at2)); /* once, not per store */
    return to;
}

/* k and v; group: counted from row first - 64 in steps of 4; moved: groups since find_quad */
template <int D>
static __device__ __forceinline__ void store_quads(const quad q[2], const quad_places &to,
                                                   int group, int moved) {
    constexpr uint32_t FAR = sizeof(shared_rows<D>::k);
    uint4 lo[2], hi[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        lo[i] = join8(q[i].x[0], q[i].x[1]), hi[i] = join8(q[i].x[2], q[i].x[3]);
        shared_store4(to.at2 + (moved * 2 * D + i * FAR), join8(lo[i], hi[i]));
    }
    if (group < 8 || group >= 8 + ROWS1 / 2) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        shared_store4(to.at1[0] + (2 * moved * 2 * D + i * FAR), lo[i]);
        shared_store4(to.at1[1] + (2 * moved * 2 * D + i * FAR), hi[i]);
    }
    if (group < 12 || group >= 12 + ROWS0 / 4) return;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int m = 0; m < 4; m++)
            shared_store4(to.at0[m] + (4 * moved * 2 * D + i * FAR), q[i].x[m]);
}

/* Every thread takes one chunk of 16 bytes of each STEP-th group of 4 rows, of k and of v. */
template <int D, int CAUSAL>
static __device__ __forceinline__ void load_chunk(shared_rows<D> &s, const place &p,
                                                  const source &k, const source &v, int dim) {
    constexpr int CH = D / 8, STEP = THREADS / CH, GROUPS = (CHUNK + (CAUSAL ? 1 : 2) * HALO) / 4;
    constexpr int PASSES = (GROUPS + STEP - 1) / STEP, BATCH = PASSES < 2 ? PASSES : 2;
    int ch = threadIdx.x % CH, group = threadIdx.x / CH, r = p.first - HALO + 4 * group;
    uint32_t step_k = k.step, step_v = v.step;
    const char *from_k = k.data - (uint64_t)(HALO * step_k),
               *from_v = v.data - (uint64_t)(HALO * step_v);
    uint32_t at_k = 4 * group * step_k, at_v = 4 * group * step_v;
    int inside = p.first >= HALO && p.first + CHUNK + (CAUSAL ? 0 : HALO) <= p.rows && !k.mask;
    quad_places to = find_quad<D>(shared_address(s.k), group, ch);
#pragma unroll
    for (int pass = 0; pass < PASSES; pass += BATCH) {
        quad q[BATCH][2];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int at = (pass + i) * STEP;
            if (GROUPS % STEP != 0 && group + at >= GROUPS) continue;
            if (inside) {
                load_quad<D>(q[i][0], from_k, at_k + 4 * at * step_k, step_k, ch, dim);
                load_quad<D>(q[i][1], from_v, at_v + 4 * at * step_v, step_v, ch, dim);
            } else {
                load_quad_if<D>(q[i][0], from_k, at_k + 4 * at * step_k, step_k, ch, dim, k.mask,
                                r + 4 * at, p.rows);
                load_quad_if<D>(q[i][1], from_v, at_v + 4 * at * step_v, step_v, ch, dim, v.mask,
                                r + 4 * at, p.rows);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int at = (pass + i) * STEP;
            if (GROUPS % STEP != 0 && group + at >= GROUPS) continue;
            store_quads<D>(q[i], to, group + at, at);
        }
    }
}

/* Counts, where they are not the same for all. */
template <int D>
static __device__ __forceinline__ void load_counts(shared_rows<D> &s, const hti_hier_args &a,
                                                   const place &p, const source &k) {
    for (int row = threadIdx.x; row < ROWS_ALL; row += THREADS) {
        int level = row >= AT2 ? 2 : row >= AT1, local = row - (level == 2 ? AT2 : level ? AT1 : 0);
        int r = p.first - (16 << level) + (local << level);
        float n = 0;
        for (int j = 0; j < 1 << level; j++) n += count_of(a, p, k, r + j);
        s.n[row] = n * unit_of(3 * a.stage + level);
    }
}

/* How a call's queries are made and what they see: compiled in. */
enum { MEAN, FIRST, FIRST_CAUSAL, LOCAL, LOCAL_CAUSAL };

/* ---- scores ---- */

/* Groups of 8 keys that a tile of 16 rows sees: `fine` of the stage's level (its own block only in
 * stage 0), `coarse` of each level above. */
template <int MODE, int BASE> struct groups {
    static constexpr int CAUSAL = MODE == FIRST_CAUSAL || MODE == LOCAL_CAUSAL;
    static constexpr int SIDES = (CAUSAL ? 1 : 2) + BASE, FINE = 2 * SIDES;
    static constexpr int COARSE = MODE >= LOCAL ? 0 : CAUSAL ? 2 : 3, ALL = FINE + 2 * COARSE;
    static constexpr __host__ __device__ int level(int group) {
        return group < FINE ? 0 : group < FINE + COARSE ? 1 : 2;
    }
};

/* Where the groups of a warp's tile begin in the shared rows, and whether they are there. */
template <int N> struct sight { int at[N], seen[N]; };

/* All rows of a tile lie in one half of their coarse blocks: of a level's two neighbours they see
 * 24 keys, 8 and 16 or 16 and 8. */
template <int MODE, int INNER, int BASE>
static __device__ __forceinline__ void find_sight(sight<groups<MODE, BASE>::ALL> &s, const place &p,
                                                  int warp) {
    using G = groups<MODE, BASE>;
#pragma unroll
    for (int i = 0; i < G::FINE; i++) {
        int side = i / 2, block = BASE ? side : 2 * side, row = p.first + 16 * (warp + block - 1);
        s.at[i] = 16 * (warp + block) + 8 * (i & 1);
        s.seen[i] = INNER || (row >= 0 && row < p.rows);
    }
#pragma unroll
    for (int level = 1; level <= 2 && G::COARSE; level++) {
        int first = G::FINE + (level - 1) * G::COARSE, half = warp >> (level - 1) & 1;
        int left = (level == 1 ? AT1 : AT2) + 16 * (warp >> level), right = left + 32;
        int begin = p.first + (warp >> level) * (16 << level), end = begin + (16 << level);
        int has_left = INNER || begin > 0, has_right = INNER || end < p.rows;
        s.at[first] = left, s.seen[first] = has_left;
        s.at[first + 1] = G::CAUSAL || half ? left + 8 : right;
        s.seen[first + 1] = G::CAUSAL ? half && has_left : half ? has_left : has_right;
        if (!G::CAUSAL) s.at[first + 2] = right + 8, s.seen[first + 2] = has_right;
    }
}

/* Queries one level up: every row gets its cluster's; step 4, 8: lanes to the other half of the
 * cluster. n: rows the query stands for. */
template <int D, int PLAIN, int MODE>
static __device__ __forceinline__ void raise_queries(frag<D> &up, const frag<D> &q, float n[2],
                                                     int step, int lane) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int second = lane & step, keep = 1;
        if (!PLAIN) {
            float other = __shfl_xor_sync(~0u, n[h], step);
            keep = second ? other == 0 : n[h] > 0;
            n[h] = HALVING ? 0.5f * (n[h] + other) : n[h] + other;
        }
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            uint32_t mine = q.a[i / 2][2 * (i % 2) + h];
            if (MODE == MEAN)
                up.at(h, i) = join2(mine, __shfl_xor_sync(~0u, mine, step));
            else if (PLAIN)
                up.at(h, i) = __shfl_sync(~0u, mine, lane & ~step);
            else {
                uint32_t other = __shfl_xor_sync(~0u, mine, step);
                up.at(h, i) = keep ? mine : other;
            }
        }
    }
}

/* Divides 8 scores by the keys' counts n[2] (of keys 2t, 2t+1); a key without rows is not seen. */
static __device__ __forceinline__ void weigh(float x[4], const float n[2], const float factor[2]) {
#pragma unroll
    for (int e = 0; e < 4; e++)
        x[e] = n[e & 1] > 0 ? x[e] / n[e & 1] * factor[e >> 1] : HTI_NEG_INF;
}

/* N groups of one level: x becomes comparable between levels (to be multiplied by one factor). */
template <int D, int PLAIN, int MODE, int N>
static __device__ __forceinline__ void score(float x[N][4], const int *at, const shared_rows<D> &sh,
                                             const frag<D> &q, const float n[2], const lanes<D> &l,
                                             int t) {
    uint32_t keys = shared_address(sh.k);
#pragma unroll
    for (int b = 0; b < N; b++) {
        uint32_t key[D / 8];
        load_key<D>(key, keys + at[b] * 2 * D, l.key);
        x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
        dot8<D>(x[b], q, key);
        if (!PLAIN) {
            float count[2] = {sh.n[at[b] + 2 * t], sh.n[at[b] + 2 * t + 1]}, factor[2];
            for (int h = 0; h < 2; h++) factor[h] = MODE == MEAN && n[h] > 0 ? 1 / n[h] : 1;
            weigh(x[b], count, factor);
        }
    }
}

static __device__ __forceinline__ void hide(float x[4], int lo, int hi) {
    if (lo) x[0] = x[1] = HTI_NEG_INF;
    if (hi) x[2] = x[3] = HTI_NEG_INF;
}

/* What a row does not see although its tile does. */
template <int MODE, int INNER, int BASE>
static __device__ __forceinline__ void
hide_unseen(float x[][4], const sight<groups<MODE, BASE>::ALL> &s, int g, int t) {
    using G = groups<MODE, BASE>;
#pragma unroll
    for (int b = 0; b < G::ALL; b++) {
        int partial = b == G::FINE + 1 || b == G::FINE + G::COARSE + 1;
        if (!INNER || (G::CAUSAL && partial)) hide(x[b], !s.seen[b], !s.seen[b]);
    }
    if (!BASE) {
        hide(x[1], 1, 0);
        if (!G::CAUSAL) hide(x[2], 0, 1);
    } else if (G::CAUSAL) {
#pragma unroll
        for (int b = 2; b < 4; b++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * (b & 1) + 2 * t + (e & 1) > g + 8 * (e >> 1)) x[b][e] = HTI_NEG_INF;
        }
    }
}

/* Scores become weights in place: log2 units are x * factor[level]. whole: rows of a cluster of the
 * stage's level, where all are whole. HALVING: weights are those of 2^level rows, in units of 2^(3
 * stage), which then belong to the maximum. */
template <int D, int PLAIN, int MODE, int BASE>
static __device__ __forceinline__ void
soften(float x[][4], state<D> &s, const sight<groups<MODE, BASE>::ALL> &at,
       const shared_rows<D> &sh, const float factor[3], float whole, int stage, int t) {
    using G = groups<MODE, BASE>;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top[3] = {HTI_NEG_INF, HTI_NEG_INF, HTI_NEG_INF}, sum[3] = {0, 0, 0};
#pragma unroll
        for (int b = 0; b < G::ALL; b++) {
            int level = G::level(b);
            top[level] = fmaxf(top[level], fmaxf(x[b][2 * h], x[b][2 * h + 1]));
        }
        float m = fmaxf(top[0] * factor[0], fmaxf(top[1] * factor[1], top[2] * factor[2]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        s.m[h] = HALVING ? m + 3 * stage : m;
        float base = m == HTI_NEG_INF ? 0 : m; /* nothing seen: all weights 0, not NaN */
#pragma unroll
        for (int b = 0; b < G::ALL; b++) {
            int level = G::level(b);
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                x[b][e] = exp2_fast(fmaf(x[b][e], factor[level], HALVING ? level - base : -base));
                if (PLAIN)
                    sum[level] += x[b][e];
                else
                    sum[0] = fmaf(x[b][e], sh.n[at.at[b] + 2 * t + (e & 1)], sum[0]);
            }
        }
        float l = !PLAIN    ? sum[0]
                  : HALVING ? sum[0] + sum[1] + sum[2]
                            : whole * fmaf(4, sum[2], fmaf(2, sum[1], sum[0]));
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        s.l[h] = l;
    }
}

/* o += P V of 16 keys, two groups of 8. at: where this lane's group lies, offset: this lane's
 * places in 8 rows. */
template <int D>
static __device__ __forceinline__ void add_values(float o[D / 8][4], const float x[2][4],
                                                  uint32_t at, const uint32_t offset[D / 16]) {
    uint32_t a[4] = {pack2(x[0][0], x[0][1]), pack2(x[0][2], x[0][3]), pack2(x[1][0], x[1][1]),
                     pack2(x[1][2], x[1][3])};
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t v[4];
        matrix4_turned(v, at + offset[c]);
        mma16(o[2 * c], a, v[0], v[1]);
        mma16(o[2 * c + 1], a, v[2], v[3]);
    }
}

/* o = P V, 16 keys at a time, wherever the groups lie. */
template <int D, int N>
static __device__ __forceinline__ void gather(float o[D / 8][4], const float x[][4],
                                              const sight<N> &s, const shared_rows<D> &sh,
                                              int lane) {
    uint32_t offset[D / 16], base = shared_address(sh.v);
#pragma unroll
    for (int c = 0; c < D / 16; c++) offset[c] = 2 * rows<D>::at(lane & 7, 2 * c + (lane >> 4));
#pragma unroll
    for (int b = 0; b < N; b += 2) {
        uint32_t at = base + (lane & 8 ? s.at[b + 1] : s.at[b]) * 2 * D;
        add_values<D>(o, x + b, at, offset);
    }
}

/* ---- results ---- */

template <int D, int BASE>
static __device__ __forceinline__ void store_tile(const state<D> &s, const hti_hier_args &a,
                                                  const place &p, const float n[2], int first,
                                                  int head, int lane) {
    int g = lane >> 2, t = lane & 3;
    char *out = chunk_of(a, p, a.fz, head, first) + g * (8 * a.fz.row);
    int64_t at = a.cu ? packed_at(a, p) : (int64_t)p.sequence * p.rows;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int live = n[h] > 0 && s.l[h] != 0, r = first + 8 * h + g;
        float inv = live ? __fdividef(1, s.l[h]) : 0;
        uint32_t x[D / 8];
#pragma unroll
        for (int i = 0; i < D / 8; i++) x[i] = pack2(s.o[i][2 * h] * inv, s.o[i][2 * h + 1] * inv);
        store_row<D>((element *)(out + 8 * h * (8 * a.fz.row)), x, t, r < p.rows, BASE ? a.dim : D);
        if (r >= p.rows || t != 0) continue;
        float lse = live ? s.m[h] + __log2f(s.l[h]) : HTI_NEG_INF;
        if (BASE) lse *= HTI_LN2;
        if (a.flse) a.flse[head * a.flse_head + at + r] = lse;
        if (BASE && a.lse.data)
            ((float *)a.lse.data)[tensor_base(a, a.lse, p, head) + (int64_t)r * a.lse.row_stride] =
                lse;
    }
}

} // namespace HTI_KERNELS

#endif
