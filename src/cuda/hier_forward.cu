/*
 * Tuned forward of the hierarchical attention: bf16, block 16, head_dim = value_dim = 16, 32, 64 or
 * 128.
 *
 * 1. coarsen   reads q, k, v once and writes the tower: level 3 (an eighth of the rows), 6, 9, ...
 * 2. stage s   for s = top ... 0: a thread block takes 256 rows of level 3s of one head. Levels 3s
 * and 3s+2 of k and v are in shared memory; level 3s+1 is made of two products with the rows below.
 * A warp takes 32 rows and goes down: 8 rows of level 3s+2, 16 of level 3s+1, 2 x 16 of level 3s.
 * The softmax state of a coarse row moves to its children by lane exchanges; scores never leave
 * registers. At the end the result of stage s+1 (4 rows) is merged in: until then the stages run
 * side by side.
 */
#include "cuda/hier_stage.h"

/* ---- coarsening ---- */

enum { COARSE_ROWS = 512, COARSE3 = COARSE_ROWS / 8 };

/* One plane (a head of q, k or v), 512 rows: levels 3, 6 and 9. Mode first takes the first valid
 * row instead of the sum. */
template <int D> __global__ void __launch_bounds__(256, 4) hier_coarsen(hti_hier_args a) {
    extern __shared__ float sums[]; /* [COARSE3][D], then [COARSE3] counts */
    float *counts = sums + COARSE3 * D;
    place p;
    if (!find_place(p, a, blockIdx.x, blockIdx.z, 0, COARSE_ROWS) || p.levels <= 3) return;
    int kv = blockIdx.y / (a.group + 2), part = blockIdx.y % (a.group + 2);
    int is_q = part < a.group, head = is_q ? kv * a.group + part : kv;
    int pick = is_q && a.query == HT_QUERY_FIRST;
    const ht_tensor &t = is_q ? a.q : part == a.group ? a.k : a.v;
    const uint8_t *mask = is_q ? a.query_mask : a.key_mask;
    int writes_counts =
        mask && head == 0 && part <= a.group; /* one head of q and of k speaks for all */
    if (mask) mask += p.start;
    const bf16 *src = (const bf16 *)t.data + tensor_base(a, t, p, head);
    bf16 *const *tower = is_q ? a.tq : part == a.group ? a.tk : a.tv;
    constexpr int CH = D / 8;

    int64_t base3 = hti_tower_at(a, 3, p.sequence, p.start);
    bf16 *to3 = tower[1] + (head * a.tower[1] + base3) * D;
    for (int i = threadIdx.x; i < COARSE3 * CH; i += 256) {
        int r3 = i / CH, ch = i % CH, n = 8;
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int row = p.first + 8 * r3;
        const bf16 *at = src + (int64_t)row * t.row_stride + 8 * ch;
        if (!mask && row + 8 <= p.length) {
            uint4 x[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (j == 0 || !pick) x[j] = *(const uint4 *)(at + j * t.row_stride);
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (j == 0 || !pick) add_chunk(sum, x[j]);
        } else {
            n = 0;
            for (int j = 0; j < 8; j++) {
                int there = row + j < p.length && (!mask || mask[row + j]);
                if (there && !(pick && n)) add_row(sum, at + j * t.row_stride);
                n += there;
            }
        }
        float4 *keep = (float4 *)(sums + r3 * D + 8 * ch);
        keep[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        keep[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
        if (ch == 0) counts[r3] = (float)n;
        if (row >= p.length) continue;
        *(uint4 *)(to3 + (int64_t)(row / 8) * D + 8 * ch) = pack8(sum);
        if (writes_counts && ch == 0) (is_q ? a.nq[1] : a.nk[1])[base3 + row / 8] = (float)n;
    }
    /* levels 6 (8 rows) and 9 (1 row): each from the one below, which moves to the front */
    int simple = !mask && !pick && p.first + COARSE_ROWS <= p.length;
    for (int s = 2, out = COARSE3 / 8; s < a.stages && out >= 1; s++, out /= 8) {
        __syncthreads();
        if (p.levels <= 3 * s) return;
        int64_t base = hti_tower_at(a, 3 * s, p.sequence, p.start);
        bf16 *to = tower[s] + (head * a.tower[s] + base) * D;
        constexpr int MOST = (8 * D + 255) / 256;
        float sum[MOST], n[MOST];
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            int i = threadIdx.x + 256 * m, r = i / D, c = i % D, row = (p.first >> (3 * s)) + r;
            sum[m] = n[m] = 0;
            if (i >= out * D) continue;
            for (int j = 8 * r; j < 8 * r + 8; j++) {
                if (simple || (counts[j] > 0 && !(pick && n[m] > 0))) sum[m] += sums[j * D + c];
                if (!simple) n[m] += counts[j];
            }
            if (row >= (p.length + (1 << (3 * s)) - 1) >> (3 * s)) continue;
            to[(int64_t)row * D + c] = __float2bfloat16(sum[m]);
            if (writes_counts && c == 0) (is_q ? a.nq[s] : a.nk[s])[base + row] = n[m];
        }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            int i = threadIdx.x + 256 * m;
            if (i >= out * D) continue;
            sums[i] = sum[m];
            if (i % D == 0) counts[i / D] = n[m];
        }
    }
}

/* Stage s >= 4 from stage s - 1: only sequences beyond 65,536 rows have one. grid: (rows, planes)
 */
template <int D> __global__ void hier_coarsen_up(hti_hier_args a) {
    int s = a.stage, kv = blockIdx.y / (a.group + 2), part = blockIdx.y % (a.group + 2);
    int is_q = part < a.group, head = is_q ? kv * a.group + part : kv;
    int pick = is_q && a.query == HT_QUERY_FIRST, c = threadIdx.x;
    bf16 *const *tower = is_q ? a.tq : part == a.group ? a.tk : a.tv;
    float *const *counted = is_q ? a.nq : a.nk;
    int masked = (is_q ? a.query_mask : a.key_mask) != nullptr;
    place p;
    if (!find_place(p, a, blockIdx.x, blockIdx.z, 3 * s, 1)) return;
    int64_t from = hti_tower_at(a, 3 * s - 3, p.sequence, p.start) + 8 * (int64_t)p.first;
    int64_t end =
        hti_tower_at(a, 3 * s - 3, p.sequence, p.start) + hti_clusters(p.length, 3 * s - 3);
    int64_t to = hti_tower_at(a, 3 * s, p.sequence, p.start) + p.first;
    float sum = 0, n = 0;
    for (int64_t j = from; j < from + 8 && j < end; j++) {
        float m = masked ? counted[s - 1][j] : 1;
        if (!(pick && n > 0) && m > 0)
            sum += __bfloat162float(tower[s - 1][(head * a.tower[s - 1] + j) * D + c]);
        n += m;
    }
    tower[s][(head * a.tower[s] + to) * D + c] = __float2bfloat16(sum);
    if (masked && c == 0 && head == 0 && part <= a.group) counted[s][to] = n;
}

/* ---- a stage ---- */

/* The coarse row of two: their sum, or the first valid one. */
template <int MODE>
static __device__ __forceinline__ uint32_t join(uint32_t mine, uint32_t got, int take_mine) {
    if constexpr (MODE == MEAN)
        return add2(mine, got);
    else
        return take_mine ? mine : got;
}

template <int D>
static __device__ __forceinline__ void
load_queries(frag<D> q0[2], queries<D> &q, const hti_hier_args &a, const place &p, const view &x,
             int plain, int warp, int g, int t) {
    int r = p.first + 32 * warp + g;
    const bf16 *from = x.data + (int64_t)r * x.stride;
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            q.n0[j][h] = plain ? 1 : count_of(a, p, x, r + 16 * j + 8 * h);
            load_row<D>(q0[j], h, from + (16 * j + 8 * h) * x.stride, t, q.n0[j][h] > 0, 0);
        }
    }
}

template <int D, int MODE>
static __device__ __forceinline__ void coarsen_queries(queries<D> &q, frag<D> q0[2], int g,
                                                       uint32_t zero) {
    int odd = g & 1, odd2 = g >> 1 & 1;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float mine = odd ? q.n0[1][h] : q.n0[0][h];
        float got = __shfl_xor_sync(~0u, odd ? q.n0[0][h] : q.n0[1][h], 4);
        int take_mine = odd ? got == 0 : mine > 0;
        q.n1[h] = mine + got;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            uint32_t t0 = q0[0].at(h, i), t1 = q0[1].at(h, i);
            uint32_t other = __shfl_xor_sync(~0u, odd ? t0 : t1, 4);
            q.q1.at(h, i) = join<MODE>(odd ? t1 : t0, other, take_mine) ^ zero;
        }
    }
    float mine = odd2 ? q.n1[1] : q.n1[0], got = __shfl_xor_sync(~0u, odd2 ? q.n1[0] : q.n1[1], 8);
    int take_mine = odd2 ? got == 0 : mine > 0;
    q.n2 = mine + got;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        uint32_t other = __shfl_xor_sync(~0u, odd2 ? q.q1.lo(i) : q.q1.hi(i), 8);
        q.q2[i] = join<MODE>(odd2 ? q.q1.hi(i) : q.q1.lo(i), other, take_mine);
    }
}

/* Level 3s+2: 8 rows, all in one half of their block, see 24 keys: 8 of the left block and 16 of
 * the right one, or 16 and 8. */
template <int D, int PLAIN, int MODE, int INNER>
static __device__ __forceinline__ void
attend_level2(state<D> &s, const shared_rows<D> &sh, const hti_hier_args &a, const place &p,
              const queries<D> &q, const lanes<D> &l, int warp, int t) {
    int part = warp & 1, left = 16 * (warp >> 1), right = left + 32;
    int has_left = INNER || p.first + 64 * (warp >> 1) > 0;
    int has_right = MODE != FIRST_CAUSAL && (INNER || p.first + 64 * (warp >> 1) + 64 < p.rows);
    if (!has_left && !has_right) return;
    frag<D> tile;
#pragma unroll
    for (int i = 0; i < D / 8; i++) tile.lo(i) = q.q2[i], tile.hi(i) = 0;
    float x[3][4], n[3][2];
    uint32_t keys = shared_address(sh.k2), values = shared_address(sh.v2);
#pragma unroll
    for (int b = 0; b < 3; b++) {
        int at = b == 0 ? left : b == 2 ? right + 8 : part ? left + 8 : right;
        int seen = b == 0 ? has_left : b == 2 ? has_right : part ? has_left : has_right;
        uint32_t key[D / 8];
        load_key<D>(key, keys + at * 2 * D, l.key);
        x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
        dot8<D>(x[b], tile, key);
        if (!PLAIN) {
            n[b][0] = sh.n2[at + 2 * t], n[b][1] = sh.n2[at + 2 * t + 1];
            weigh(x[b], n[b]);
        }
        hide(x[b], !seen, !seen);
    }
    float f = PLAIN ? a.factor[2] : factor_of<MODE>(a, q.n2), factor[2] = {f, f};
    soften<3, D>(x, s, factor);
    count<3, PLAIN>(s, x, n, a.whole[2]);
    if (part) {
        add_values<D>(s.o, x[0], x[1], values + left * 2 * D, l);
        add_values8<D>(s.o, x[2], values + (right + 8) * 2 * D, l);
    } else {
        add_values8<D>(s.o, x[0], values + left * 2 * D, l);
        add_values<D>(s.o, x[1], x[2], values + right * 2 * D, l);
    }
}

/* Level 3s+1: one block of 16 rows; first half (even g) does not see keys 8-15 of the left block,
 * second half not keys 0-7 of the right one. */
template <int D, int PLAIN, int MODE, int INNER>
static __device__ __forceinline__ void
attend_level1(state<D> &s, const shared_rows<D> &sh, const hti_hier_args &a, const place &p,
              const queries<D> &q, const lanes<D> &l, int warp, int g, int t) {
    int has_left = INNER || p.first + 32 * warp > 0;
    int has_right = MODE != FIRST_CAUSAL && (INNER || p.first + 32 * warp + 32 < p.rows);
    if (!has_left && !has_right) return;
    float x[4][4], n[4][2];
    uint32_t keys = shared_address(sh.k) + 32 * warp * 2 * D,
             values = shared_address(sh.v) + 32 * warp * 2 * D;
    constexpr int SEEN = MODE == FIRST_CAUSAL ? 2 : 4; /* groups of keys */
#pragma unroll
    for (int b = 0; b < SEEN; b++) {
        int side = b >> 1, r = 64 * side + 16 * (b & 1);
        int hidden = side ? !has_right || (b == 2 && (g & 1)) : !has_left || (b == 1 && !(g & 1));
        x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
        if (side ? has_right : has_left) dot_pair8<D>(x[b], q.q1, keys + r * 2 * D, l);
        if (!PLAIN) {
            const float *c = sh.n + 32 * warp + r + 2 * t;
            n[b][0] = c[0] + c[1], n[b][1] = c[8] + c[9];
            weigh(x[b], n[b]);
        }
        hide(x[b], hidden, hidden);
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) factor[h] = PLAIN ? a.factor[1] : factor_of<MODE>(a, q.n1[h]);
    soften<SEEN, D>(x, s, factor);
    count<SEEN, PLAIN>(s, x, n, a.whole[1]);
#pragma unroll
    for (int b = 0; b < SEEN; b++)
        if (b < 2 ? has_left : has_right)
            add_pairs8<D>(s.o, x[b], values + (64 * (b >> 1) + 16 * (b & 1)) * 2 * D, l);
}

/* Children take their parent's state. up: slots of level 2 (lo only) -> down: slots of level 1. */
template <int D>
static __device__ __forceinline__ void down_to_level1(state<D> &down, const state<D> &up, int g) {
    int odd = g >> 1 & 1;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float other = __shfl_xor_sync(~0u, up.o[i][e], 8);
            down.o[i][e] = odd ? other : up.o[i][e];
            down.o[i][2 + e] = odd ? up.o[i][e] : other;
        }
    }
    float m = __shfl_xor_sync(~0u, up.m[0], 8), l = __shfl_xor_sync(~0u, up.l[0], 8);
    down.m[0] = odd ? m : up.m[0], down.m[1] = odd ? up.m[0] : m;
    down.l[0] = odd ? l : up.l[0], down.l[1] = odd ? up.l[0] : l;
}

/* up: slots of level 1 -> the rows of tiles 0 and 1. */
template <int D>
static __device__ __forceinline__ void down_to_level0(state<D> down[2], const state<D> &up, int g) {
    int odd = g & 1;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float other = __shfl_xor_sync(~0u, up.o[i][e], 4);
            down[0].o[i][e] = odd ? other : up.o[i][e];
            down[1].o[i][e] = odd ? up.o[i][e] : other;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = __shfl_xor_sync(~0u, up.m[h], 4), l = __shfl_xor_sync(~0u, up.l[h], 4);
        down[0].m[h] = odd ? m : up.m[h], down[1].m[h] = odd ? up.m[h] : m;
        down[0].l[h] = odd ? l : up.l[h], down[1].l[h] = odd ? up.l[h] : l;
    }
}

/* The result of the stage above for a warp's 16 rows of level 3s+1: four of them share a parent, so
 * a lane needs one parent for its row in lo and the next for the one in hi. */
template <int D> struct parents {
    uint32_t z[2][D / 8]; /* columns 8i + 2t, +1 */
    float lse[2];
};

template <int D>
static __device__ __forceinline__ void load_parents(parents<D> &up, const hti_hier_args &a,
                                                    const place &p, int head, int warp, int g,
                                                    int t) {
    int stage = a.stage + 1;
    up.lse[0] = up.lse[1] = HTI_NEG_INF;
    if (p.levels <= 3 * stage) return;
    int row = (p.first + 32 * warp) / 8 + 2 * (g & 1);
    int64_t at = head * a.tower[stage] + hti_tower_at(a, 3 * stage, p.sequence, p.start) + row;
    const uint32_t *z = (const uint32_t *)(a.tz[stage] + at * D) + t;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (8 * (row + h) >= p.rows) continue;
        up.lse[h] = a.tl[stage][at + h];
#pragma unroll
        for (int i = 0; i < D / 8; i++) up.z[h][i] = z[h * (D / 2) + 4 * i];
    }
}

/* A finished result enters as a state with sum 1, in the share of lane t = 0. */
template <int D>
static __device__ __forceinline__ void merge_parents(state<D> &s, const parents<D> &up, int t) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (up.lse[h] == HTI_NEG_INF) continue;
        float m = fmaxf(s.m[h], up.lse[h]), keep = exp2_fast(s.m[h] - m),
              add = exp2_fast(up.lse[h] - m);
        s.m[h] = m;
        s.l[h] = s.l[h] * keep + (t == 0 ? add : 0);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            float2 z = unpack2(up.z[h][i]);
            s.o[i][2 * h] = fmaf(s.o[i][2 * h], keep, z.x * add);
            s.o[i][2 * h + 1] = fmaf(s.o[i][2 * h + 1], keep, z.y * add);
        }
    }
}

template <int D, int PLAIN, int MODE, int INNER, int BASE>
static __device__ __forceinline__ void
attend_warp(const shared_rows<D> &sh, const hti_hier_args &a, const place &p, const queries<D> &q,
            const view &rows0, int head, int warp, int lane) {
    int g = lane >> 2, t = lane & 3, first = p.first + 32 * warp;
    state<D> up, mid, down[2];
    lanes<D> l;
    find_lanes(l, lane);
    clear(up);
    attend_level2<D, PLAIN, MODE, INNER>(up, sh, a, p, q, l, warp, t);
    down_to_level1(mid, up, g);
    attend_level1<D, PLAIN, MODE, INNER>(mid, sh, a, p, q, l, warp, g, t);
    chain_wait();
    parents<D> above;
    load_parents(above, a, p, head, warp, g, t);
    frag<D> q0;
    reload_queries(q0, a, rows0, q.n0[0], first + g, t);
    merge_parents(mid, above, t);
    down_to_level0(down, mid, g);
    target to = target_of<D, BASE>(a, p, head);
    attend_level0<D, PLAIN, MODE, INNER, BASE>(down[0], sh, a, p, q, q0, l, 0, warp, g, t);
    reload_queries(q0, a, rows0, q.n0[1], first + 16 + g, t);
    store_tile<D, BASE>(down[0], to, a, p, q.n0[0], first, head, g, t);
    attend_level0<D, PLAIN, MODE, INNER, BASE>(down[1], sh, a, p, q, q0, l, 1, warp, g, t);
    store_tile<D, BASE>(down[1], to, a, p, q.n0[1], first + 16, head, g, t);
}

/* PLAIN 1: the whole call is plain (no masks, all clusters whole); 0: a thread block inside its
 * sequence still is. */
template <int D, int PLAIN, int MODE, int BASE>
__global__ void __launch_bounds__(THREADS, D <= 64 ? 2 : 1) hier_stage(hti_hier_args a) {
    extern __shared__ __align__(128) char shared_bytes[];
    shared_rows<D> &sh = *(shared_rows<D> *)shared_bytes;
    int warp = warp_index(), lane = threadIdx.x % 32;
    place p;
    /* backwards: what coarsening read last may still be in the L2 cache */
    int head = gridDim.y - 1 - blockIdx.y;
    if (!find_place(p, a, gridDim.x - 1 - blockIdx.x, gridDim.z - 1 - blockIdx.z, 3 * a.stage,
                    CHUNK))
        return;
    if (a.stage == a.stages - 1) chain_wait(); /* for the tower */
    chain_next();
    view k = view_of<BASE>(a, p, a.k, a.tk, a.nk, a.key_mask, head / a.group, D);
    view v = view_of<BASE>(a, p, a.v, a.tv, a.nk, a.key_mask, head / a.group, D);
    view x = view_of<BASE>(a, p, a.q, a.tq, a.nq, a.query_mask, head, D);
    int inner = p.first >= FAR && p.first + CHUNK + FAR <= p.length >> (3 * a.stage);
    if (!PLAIN) inner = inner && !a.key_mask && !a.query_mask;
    int plain = PLAIN || inner, has_level2 = p.levels > 3 * a.stage + 2;
    load_chunk(sh, p, k, v);
    queries<D> q;
    frag<D> q0[2];
    load_queries(q0, q, a, p, x, plain, warp, lane >> 2, lane & 3);
    if (!plain) load_counts(sh, a, p, k);
    if (has_level2) build_far(sh, p, k, v);
    copy_async_wait();
    __syncthreads();
    if (has_level2) build_near(sh);
    coarsen_queries<D, MODE>(q, q0, lane >> 2, a.zero);
    __syncthreads();
    if (p.first + 32 * warp >= p.rows) return;
    if (inner)
        attend_warp<D, 1, MODE, 1, BASE>(sh, a, p, q, x, head, warp, lane);
    else
        attend_warp<D, PLAIN, MODE, 0, BASE>(sh, a, p, q, x, head, warp, lane);
}

/* ---- host ---- */

/* A level-0 sequence has hti_levels(length, 16) levels, three to a stage. */
static int stages_of(int64_t length) { return (hti_levels(length, 16) + 2) / 3; }

/* Rows of the towers' stages. */
static void set_towers(hti_hier_args *a, int packed) {
    for (int s = 1; s < a->stages; s++) {
        int level = 3 * s;
        a->tower[s] = packed ? (a->rows >> level) + (a->rows >> (level + 3)) + 2
                             : a->sequences * hti_clusters(a->length, level);
    }
}

/* What backward takes over from forward: lse and the towers of q, k and v. */
size_t hti_hier_carve_saved(hti_hier_args *a, void *base, int dim, int with_lse) {
    hti_carver c = {(char *)base, 0};
    if (with_lse) a->saved = c.take<float>(a->q_heads * a->rows);
    for (int s = 1; s < a->stages; s++) {
        int64_t n = a->tower[s];
        a->tk[s] = c.take<__nv_bfloat16>(a->kv_heads * n * dim);
        a->tv[s] = c.take<__nv_bfloat16>(a->kv_heads * n * dim);
        a->tq[s] = c.take<__nv_bfloat16>(a->q_heads * n * dim);
        a->nk[s] = c.take<float>(n);
        a->nq[s] = c.take<float>(n);
    }
    return c.used;
}

static size_t carve_scratch(hti_hier_args *a, void *base, int dim, int packed) {
    hti_carver c = {(char *)base, 0};
    a->cu = packed ? c.take<int32_t>(a->sequences + 1) : nullptr;
    for (int s = 1; s < a->stages; s++) {
        a->tz[s] = c.take<bf16>(a->q_heads * a->tower[s] * dim);
        a->tl[s] = c.take<float>(a->q_heads * a->tower[s]);
    }
    return c.used;
}

/* Most that a call of the plan can need. Equal lengths round up once per sequence that has a stage,
 * which is longer than 8 of its clusters: no more than the packed layout allows for. */
void hti_hier_most(hti_hier_args *a, const ht_attention_desc *d) {
    *a = {};
    a->q_heads = (int)d->q_heads, a->kv_heads = (int)d->kv_heads;
    a->stages = stages_of(d->max_length);
    a->rows = d->max_rows;
    a->sequences = (int)d->max_sequences;
    set_towers(a, 1);
}

int hti_hier_fits(const ht_attention_desc *d) {
    int dim = (int)d->head_dim, fits = dim == 16 || dim == 32 || dim == 64 || dim == 128;
    return d->kind == HT_HIERARCHICAL && d->dtype == HT_BF16 && d->block == 16 && fits &&
           d->value_dim == dim && !d->has_bias && d->rotary_theta == 0 && d->dropout == 0 &&
           d->scale > 0;
}

int hti_hier_plans(const ht_attention_desc *d) {
    return hti_hier_fits(d) && d->query != HT_QUERY_FINE;
}

size_t hti_hier_saved(const ht_attention_desc *d) {
    hti_hier_args a;
    hti_hier_most(&a, d);
    return hti_hier_carve_saved(&a, nullptr, (int)d->head_dim, 1);
}

size_t hti_hier_forward_scratch(const ht_attention_desc *d) {
    hti_hier_args a;
    hti_hier_most(&a, d);
    return hti_hier_carve_saved(&a, nullptr, (int)d->head_dim, 0) +
           carve_scratch(&a, nullptr, (int)d->head_dim, 1);
}

int hti_hier_takes(const hti_cuda_backend *backend, const hti_attention_call *c) {
    return hti_hier_plans(c->desc) && hti_aligned(c->q) && hti_aligned(c->k) && hti_aligned(c->v) &&
           hti_aligned(c->out) && backend->shared_bytes >= 220 * 1024 && c->sequences <= 65535;
}

template <int D, int PLAIN, int MODE>
static ht_status run_stage(ht_context *ctx, const hti_hier_args &a) {
    dim3 grid = grid_of(a, 3 * a.stage, CHUNK, a.q_heads);
    size_t shared = sizeof(shared_rows<D>);
    if (a.stage == 0)
        return launch_chained(ctx, hier_stage<D, PLAIN, MODE, 1>, "hier_stage", grid, THREADS,
                              shared, a);
    return launch_chained(ctx, hier_stage<D, PLAIN, MODE, 0>, "hier_stage", grid, THREADS, shared,
                          a);
}

template <int D> static ht_status run_forward(ht_context *ctx, hti_hier_args a) {
    int planes = a.q_heads + 2 * a.kv_heads;
    if (a.stages > 1) {
        size_t shared = (COARSE3 * D + COARSE3) * sizeof(float);
        dim3 grid = grid_of(a, 0, COARSE_ROWS, planes);
        TRY(hti_cuda_launch(ctx, hier_coarsen<D>, "hier_coarsen", grid, 256, shared, a));
    }
    for (a.stage = 4; a.stage < a.stages; a.stage++) {
        dim3 grid = grid_of(a, 3 * a.stage, 1, planes);
        TRY(hti_cuda_launch(ctx, hier_coarsen_up<D>, "hier_coarsen_up", grid, D, 0, a));
    }
    for (int s = a.stages - 1; s >= 0; s--) {
        hti_hier_set_stage(&a, s);
        int plain =
            !a.key_mask && !a.query_mask && !a.cu && a.length % ((int64_t)CHUNK << (3 * s)) == 0;
        if (a.query == HT_QUERY_MEAN)
            TRY((plain ? run_stage<D, 1, MEAN> : run_stage<D, 0, MEAN>)(ctx, a));
        else if (a.causal)
            TRY((plain ? run_stage<D, 1, FIRST_CAUSAL> : run_stage<D, 0, FIRST_CAUSAL>)(ctx, a));
        else
            TRY((run_stage<D, 0, FIRST>(ctx, a)));
    }
    return HT_OK;
}

void hti_hier_set_stage(hti_hier_args *a, int stage) {
    a->stage = stage;
    for (int l = 0; l < 3; l++) {
        a->whole[l] = (float)((int64_t)1 << (3 * stage + l));
        a->factor[l] = a->scale / a->whole[l];
        if (a->query == HT_QUERY_MEAN) a->factor[l] /= a->whole[l];
    }
}

/* What forward and backward share. */
void hti_hier_set(hti_hier_args *a, const hti_attention_call *c) {
    const ht_attention_desc *d = c->desc;
    *a = {};
    a->sequences = (int)c->sequences, a->length = (int)c->length;
    a->rows = c->rows;
    a->q_heads = (int)d->q_heads, a->kv_heads = (int)d->kv_heads,
    a->group = a->q_heads / a->kv_heads;
    a->query = d->query, a->causal = d->causal;
    a->stages = stages_of(c->length);
    a->scale = (float)(d->scale * 1.4426950408889634);
    a->q = c->q, a->k = c->k, a->v = c->v, a->out = c->out, a->lse = c->lse;
    a->key_mask = c->key_mask, a->query_mask = c->query_mask;
    set_towers(a, c->cu_seqlens != nullptr);
}

ht_status hti_hier_forward(ht_context *ctx, const hti_attention_call *c) {
    int dim = (int)c->desc->head_dim;
    hti_hier_args a;
    hti_hier_set(&a, c);
    char *rest = (char *)c->scratch;
    if (c->saved)
        hti_hier_carve_saved(&a, c->saved, dim, 1);
    else
        rest += hti_hier_carve_saved(&a, rest, dim, 0);
    carve_scratch(&a, rest, dim, c->cu_seqlens != nullptr);
    if (a.cu) TRY(hti_cuda_upload(ctx, (int32_t *)a.cu, c->cu_seqlens, c->sequences + 1));
    switch (dim) {
    case 16: return run_forward<16>(ctx, a);
    case 32: return run_forward<32>(ctx, a);
    case 64: return run_forward<64>(ctx, a);
    default: return run_forward<128>(ctx, a);
    }
}
