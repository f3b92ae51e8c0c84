/*
 * A stage of the tuned backward for 64 columns, no masks and whole clusters, on compute capability
 * 9.0: thread blocks that walk along the sequence, 64 rows at a time.
 *
 * Of twelve warps four bring the rows (hier_ring.h), four own them as queries (dq) and four as keys
 * (dk, dv), 16 rows each. These lie in one half of their coarse blocks, so of each coarse level
 * they see the same 24 partners, 8 and 16 or 16 and 8; their own coarse rows are spread over them,
 * so that all levels add to the same sums. What a tile of 16 sees but a row of it does not has
 * weight 0; beyond the ends of a sequence own rows stand in, so that nothing of another sequence is
 * ever multiplied by that 0.
 *
 * With P = exp(s - m) and r the ratio of a level's factor to the stage's:
 *     dV += P G,   ds = r P (<G, V> - n h),   dQ += ds K,   dK += ds Q
 */
#include "cuda/hier_grad.h"
#include "cuda/hier_ring.h"

enum { DQ, DKV };
enum { THREADS = 3 * 128 };

/* The kernel gives more registers to some warps than to others, which not every build can. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- what a tile sees ---- */

/* Groups of 8 partners: FINE of the stage's level (the own block only in stage 0), COARSE of each
 * level above. Of causal calls queries look left and keys right. */
template <int ROLE, int CAUSAL, int BASE> struct sight {
    static constexpr int KEYS = ROLE != DQ, BLOCKS = (CAUSAL ? 1 : 2) + BASE, FINE = 2 * BLOCKS;
    static constexpr int COARSE = CAUSAL ? 2 : 3, ALL = FINE + 2 * COARSE;
    int at[ALL];   /* group in the ring */
    uint32_t gone; /* two bits per group: not seen by rows 0-7, 8-15 */

    /* Which neighbour the i-th block of the stage's level is. */
    static constexpr __device__ __forceinline__ int side(int i) {
        if (BASE) return i - (CAUSAL && KEYS ? 0 : 1);
        return CAUSAL ? (KEYS ? 1 : -1) : 2 * i - 1;
    }
};

/* i: step of the walk; left, right: whether the sequence goes on there */
template <int ROLE, int CAUSAL, int BASE>
static __device__ __forceinline__ void find_sight(sight<ROLE, CAUSAL, BASE> &s, int tile, int i,
                                                  int left, int right) {
    using S = sight<ROLE, CAUSAL, BASE>;
    s.gone = 0;
#pragma unroll
    for (int b = 0; b < S::FINE; b++) {
        int side = S::side(b / 2), block = tile + side;
        int there = side == 0 || (side < 0 ? tile > 0 || left : tile < TILES - 1 || right);
        int slot = block < 0 ? i - 1 : block >= TILES ? i + 1 : i;
        s.at[b] = there ? 8 * (slot & (AHEAD - 1)) + 2 * (block & (TILES - 1)) + (b & 1)
                        : 8 * (i & (AHEAD - 1)) + 2 * tile;
        if (!there) s.gone |= 3u << (2 * b);
        if (!BASE && side < 0 && b % 2 == 1) s.gone |= 1u << (2 * b);
        if (!BASE && side > 0 && b % 2 == 0) s.gone |= 2u << (2 * b);
    }
    int cur = i % KEPT, prev = cur ? cur - 1 : KEPT - 1, next = cur < KEPT - 1 ? cur + 1 : 0;
#pragma unroll
    for (int level = 1; level <= 2; level++) {
        int blocks = level == 1 ? 2 : 1, block = level == 1 ? tile >> 1 : 0,
            half = tile >> (level - 1) & 1, first = FINE_GROUPS + (level == 1 ? 0 : 4);
        int own = first + 6 * cur + 2 * block;
        int has_left = block > 0 || left, has_right = block < blocks - 1 || right;
        int to_left = block > 0 ? own - 2 : first + 6 * prev + 2 * (blocks - 1);
        int to_right = block < blocks - 1 ? own + 2 : first + 6 * next;
        int at[3], seen[3];
        if (!CAUSAL) {
            at[0] = to_left, seen[0] = has_left;
            at[1] = half ? to_left + 1 : to_right, seen[1] = half ? has_left : has_right;
            at[2] = to_right + 1, seen[2] = has_right;
        } else if (ROLE == DQ) {
            at[0] = to_left, seen[0] = has_left;
            at[1] = to_left + 1, seen[1] = has_left && half;
        } else {
            at[0] = to_right, seen[0] = has_right && !half;
            at[1] = to_right + 1, seen[1] = has_right;
        }
#pragma unroll
        for (int j = 0; j < S::COARSE; j++) {
            int b = S::FINE + (level - 1) * S::COARSE + j;
            s.at[b] = seen[j] ? at[j] : own;
            if (!seen[j]) s.gone |= 3u << (2 * b);
        }
    }
}

/* ---- gradients of a tile ---- */

static __device__ __forceinline__ void load_rows4(uint32_t b[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at));
}

/* A warp's 16 rows of a level; coarse ones are spread. */
struct tile_rows {
    uint32_t x1[D / 16][4], x2[D / 16][4]; /* q and G, or k and v */
    float m[2], h[2];                      /* of rows g, g + 8 as queries; h times n r */
};

/* Numbers of a level. */
struct level_factors {
    float f, r, n; /* of the score (log2 units), of ds, of h */
};

static __device__ __forceinline__ level_factors factors_of(const hti_hier_args &a, int level) {
    float half = level == 0 ? 1 : level == 1 ? 0.5f : 0.25f;
    float r = a.query == HT_QUERY_MEAN ? half * half : half;
    return {a.factor[level], r, a.whole[level] * r};
}

/* row: the tile's first among the rows of that level in the ring */
template <int ROLE, int LEVEL>
static __device__ __forceinline__ void load_tile(tile_rows &t, const ring &r, int row,
                                                 const level_factors &f, int lane) {
    int mine = row + ((lane & 15) >> LEVEL), g = lane >> 2;
    uint32_t base = shared_address(r.x[ROLE == DQ ? Q : K][0]);
    uint32_t to = base + mine * ROW, turn = mine & 7, hi = lane >> 4;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t at = to + ((2 * i + hi) ^ turn) * 16;
        load_rows4(t.x1[i], at);
        if (ROLE == DQ) load_rows4(t.x2[i], at + (G - Q) * (uint32_t)sizeof r.x[0]);
        if (ROLE == DKV) load_rows4(t.x2[i], at + (uint32_t)sizeof r.x[0]);
    }
    if constexpr (ROLE == DQ) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 n = (&r.n[0][0])[row + ((g + 8 * h) >> LEVEL)];
            t.m[h] = n.x, t.h[h] = n.y * f.n;
        }
    }
}

/* Weights of the tile's rows against a group of 8 partners: p and ds as factors of the second
 * product (rows g, g + 8). own: 1, 2 for the lower and upper half of the tile's own block. */
template <int ROLE, int CAUSAL, int BASE>
static __device__ __forceinline__ void
weigh8(uint32_t p2[2], uint32_t ds2[2], const tile_rows &t, const ring &r, int group, int gone,
       int own, const level_factors &f, uint32_t lane_row, int g, int u) {
    uint32_t y = shared_address(r.x[ROLE == DQ ? K : Q][0]) + group * (8 * ROW) + lane_row;
    constexpr uint32_t ACROSS = (ROLE == DQ ? V - K : G - Q) * (uint32_t)sizeof r.x[0];
    float s[4] = {0, 0, 0, 0}, gv[4] = {0, 0, 0, 0}, p[4], ds[4];
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        uint32_t b[4];
        load_rows4(b, y ^ (64 * j));
        mma16(s, t.x1[2 * j], b[0], b[1]);
        mma16(s, t.x1[2 * j + 1], b[2], b[3]);
        load_rows4(b, (y + ACROSS) ^ (64 * j));
        mma16(gv, t.x2[2 * j], b[0], b[1]);
        mma16(gv, t.x2[2 * j + 1], b[2], b[3]);
    }
    float4 n = make_float4(0, 0, 0, 0);
    if (ROLE != DQ) n = *(const float4 *)&r.n[group][2 * u];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int hi = e >> 1, odd = e & 1;
        float m = ROLE == DQ ? t.m[hi] : odd ? n.z : n.x;
        float h = ROLE == DQ ? t.h[hi] : f.n * (odd ? n.w : n.y);
        m += gone >> (BASE ? 0 : hi) & 1 ? POS_INF : 0;
        p[e] = exp2_fast(fmaf(s[e], f.f, -m));
        if (CAUSAL && BASE && own) {
            int across = 8 * (own - 1) + 2 * u + odd, row = g + 8 * hi;
            if (ROLE == DQ ? across > row : across < row) p[e] = 0;
        }
        ds[e] = p[e] * fmaf(gv[e], f.r, -h);
    }
    if (ROLE == DKV) p2[0] = pack2(p[0], p[1]), p2[1] = pack2(p[2], p[3]);
    ds2[0] = pack2(ds[0], ds[1]), ds2[1] = pack2(ds[2], ds[3]);
}

/* out += weights of two groups times their rows */
static __device__ __forceinline__ void add_product(float out[D / 8][4], const uint32_t w0[2],
                                                   const uint32_t w1[2], uint32_t at) {
    uint32_t w[4] = {w0[0], w0[1], w1[0], w1[1]};
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t b[4];
        load_values(b, at ^ (32 * c));
        mma16(out[2 * c], w, b[0], b[1]);
        mma16(out[2 * c + 1], w, b[2], b[3]);
    }
}

/* ---- a tile from all levels ---- */

template <int ROLE> struct tile_sums {
    float x[D / 8][4];                   /* dq or dk */
    float v[ROLE == DKV ? D / 8 : 1][4]; /* dv beside dk */
};

template <int ROLE, int CAUSAL, int BASE>
static __device__ __forceinline__ void grad_tile(tile_sums<ROLE> &out, const ring &r, int tile,
                                                 int i, int left, int right, const hti_hier_args &a,
                                                 int lane) {
    using S = sight<ROLE, CAUSAL, BASE>;
    S s;
    find_sight(s, tile, i, left, right);
    int g = lane >> 2, u = lane & 3, first = a.query == HT_QUERY_FIRST;
    uint32_t lane_row = (lane & 7) * ROW + (((lane >> 3) ^ (lane & 7)) << 4);
    uint32_t lane_col = (lane & 7) * ROW + (((lane >> 4) ^ (lane & 7)) << 4);
    uint32_t y1 = shared_address(r.x[ROLE == DQ ? K : Q][0]) + lane_col;
    uint32_t yv = shared_address(r.x[G][0]) + lane_col;
    uint32_t p2[S::ALL][2], ds2[S::ALL][2];
    tile_rows t;
#pragma unroll
    for (int c = 0; c < D / 8; c++) {
        out.x[c][0] = out.x[c][1] = out.x[c][2] = out.x[c][3] = 0;
        if (ROLE == DKV) out.v[c][0] = out.v[c][1] = out.v[c][2] = out.v[c][3] = 0;
    }
#pragma unroll
    for (int level = 0; level < 3; level++) {
        level_factors f = factors_of(a, level);
        if (level == 1) {
#pragma unroll 1 /* a loop, which the compiler does not move the first level across */
            for (uint32_t once = 0; once <= a.zero; once++) raised_wait();
        }
        int cur = FINE_GROUPS + 6 * (i % KEPT);
        if (level == 0) load_tile<ROLE, 0>(t, r, 64 * (i & (AHEAD - 1)) + 16 * tile, f, lane);
        if (level == 1) load_tile<ROLE, 1>(t, r, 8 * cur + 8 * tile, f, lane);
        if (level == 2) load_tile<ROLE, 2>(t, r, 8 * cur + 32 + 4 * tile, f, lane);
        int from = level == 0 ? 0 : S::FINE + (level - 1) * S::COARSE,
            count = level == 0 ? S::FINE : S::COARSE;
#pragma unroll
        for (int b = from; b < from + count; b++) {
            int own = BASE && level == 0 && S::side(b / 2) == 0 ? 1 + b % 2 : 0;
            weigh8<ROLE, CAUSAL, BASE>(p2[b], ds2[b], t, r, s.at[b], s.gone >> (2 * b), own, f,
                                       lane_row, g, u);
            /* mode first: the cluster's first row alone was its query */
            if (ROLE == DQ && level > 0 && first && (g & (level == 1 ? 1 : 3)))
                ds2[b][0] = ds2[b][1] = 0;
            if (b % 2 == 0) continue;
            uint32_t at = (lane & 8 ? s.at[b] : s.at[b - 1]) * (8 * ROW);
            add_product(out.x, ds2[b - 1], ds2[b], y1 + at);
            if constexpr (ROLE == DKV) add_product(out.v, p2[b - 1], p2[b], yv + at);
        }
    }
}

/* ---- results ---- */

/* Where a lane's rows of a gradient go: tensor 0, 1, 2 for dq, dk, dv. */
template <int TENSOR, int BASE>
static __device__ __forceinline__ cursor make_output(const hti_hier_args &a, int head, int steps,
                                                     int sequence, int first) {
    if (BASE) {
        const ht_tensor &t = TENSOR == 0 ? a.dq : TENSOR == 1 ? a.dk : a.dv;
        return make_cursor((const bf16 *)t.data + head * t.head_stride, t.row_stride,
                           t.batch_stride, steps * STEP, sequence, first);
    }
    const bf16 *x = TENSOR == 0 ? a.gq[a.stage] : TENSOR == 1 ? a.gk[a.stage] : a.gv[a.stage];
    return make_cursor(x + head * a.tower[a.stage] * D, D, (int64_t)steps * STEP * D, steps * STEP,
                       sequence, first);
}

/* factor * x, and the gradient of each row's parent, if it takes it: in mode first the first row
 * alone takes that of queries */
template <int TENSOR>
static __device__ __forceinline__ void store_tile(float x[D / 8][4], const ring &r, int slot,
                                                  const cursor &to, float factor, int has_up,
                                                  int first, int tile, int lane) {
    int g = lane >> 2, t = lane & 3;
    int takes = has_up && (TENSOR != 0 || !first || g == 0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t y[D / 8];
        const uint32_t *up = &r.up[slot][TENSOR][2 * tile + h][t];
#pragma unroll
        for (int c = 0; c < D / 8; c++) {
            float2 f = takes ? unpack2(up[4 * c]) : make_float2(0, 0);
            y[c] = pack2(fmaf(x[c][2 * h], factor, f.x), fmaf(x[c][2 * h + 1], factor, f.y));
        }
        store_row<D>((bf16 *)(to.at + 8 * h * to.row), y, t, 1);
    }
}

/* ---- the walk ---- */

/* All steps of a walk, by one warp of a role. */
template <int ROLE, int CAUSAL, int BASE>
static __device__ __forceinline__ void work_rows(const ring &r, const hti_hier_args &a, int head,
                                                 int begin, int end, int steps, int tile,
                                                 int lane) {
    constexpr int TENSOR = ROLE == DQ ? 0 : 1;
    int sequence = begin / steps, step = begin - sequence * steps,
        first_row = 16 * tile + (lane >> 2);
    int has_up = a.stage + 1 < a.stages, first = a.query == HT_QUERY_FIRST;
    cursor to = make_output<TENSOR, BASE>(a, head, steps, sequence, step * STEP + first_row),
           to_v = to;
    if (ROLE == DKV) to_v = make_output<2, BASE>(a, head, steps, sequence, step * STEP + first_row);
    float factor = a.factor[0] * LN2;
#pragma unroll 1
    for (int i = 1; i <= end - begin; i++) {
        int left = step > 0, right = step < steps - 1;
        tile_sums<ROLE> sums;
#pragma unroll
        for (int c = 0; c < D / 8; c++) {
            sums.x[c][0] = sums.x[c][1] = sums.x[c][2] = sums.x[c][3] = 0;
            if constexpr (ROLE == DKV)
                sums.v[c][0] = sums.v[c][1] = sums.v[c][2] = sums.v[c][3] = 0;
        }
        step_begins();
        grad_tile<ROLE, CAUSAL, BASE>(sums, r, tile, i, left, right, a, lane);
        store_tile<TENSOR>(sums.x, r, i % AHEAD, to, factor, has_up, first, tile, lane);
        if constexpr (ROLE == DKV)
            store_tile<2>(sums.v, r, i % AHEAD, to_v, 1, has_up, first, tile, lane);
        int ends = ++step == steps;
        if (ends) step = 0;
        advance(to, ends);
        if (ROLE == DKV) advance(to_v, ends);
    }
}

/* grid: (heads, walks) */
template <int CAUSAL, int BASE>
__global__ void __launch_bounds__(THREADS, 1) hier_grad_walk(hti_hier_args a) {
    extern __shared__ __align__(1024) char shared_bytes[];
    ring &r = *(ring *)shared_bytes;
    int warp = warp_index(), lane = threadIdx.x % 32, tile = warp % TILES, role = warp / TILES;
    int steps = (int)hti_clusters(a.length, 3 * a.stage) / STEP, total = steps * a.sequences;
    int begin = (int)((int64_t)total * blockIdx.y / gridDim.y);
    int end = (int)((int64_t)total * (blockIdx.y + 1) / gridDim.y);
    if (a.stage == a.stages - 1) chain_wait(); /* for the restriction of dout */
    chain_next();
    if (role == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        bring_rows<BASE>(r, a, blockIdx.x, begin, end, steps, total, threadIdx.x);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        if (role == 1)
            work_rows<DKV, CAUSAL, BASE>(r, a, blockIdx.x, begin, end, steps, tile, lane);
        else
            work_rows<DQ, CAUSAL, BASE>(r, a, blockIdx.x, begin, end, steps, tile, lane);
    }
}

#else

/* Elsewhere the kernel is empty, and says so by its largest thread block. */
template <int CAUSAL, int BASE>
__global__ void __launch_bounds__(32, 1) hier_grad_walk(hti_hier_args) {}

#endif

/* ---- host ---- */

static void (*kernel_of(const hti_hier_args &a))(hti_hier_args) {
    if (a.stage == 0) return a.causal ? hier_grad_walk<1, 1> : hier_grad_walk<0, 1>;
    return a.causal ? hier_grad_walk<1, 0> : hier_grad_walk<0, 0>;
}

int hti_hier_grad_takes(const ht_context *ctx, const hti_hier_args &a) {
    cudaFuncAttributes about;
    int64_t whole = (int64_t)STEP << (3 * a.stage);
    if (hti_cuda_of(ctx)->capability != 90 || a.dim != D || a.local || a.cu || a.key_mask ||
        a.query_mask || a.length % whole != 0)
        return 0;
    return cudaFuncGetAttributes(&about, (const void *)kernel_of(a)) == cudaSuccess &&
           about.maxThreadsPerBlock >= THREADS;
}

/* Walks per head: as many as keep the longest of them short, counting the way in. */
static int walks_of(int processors, int heads, int64_t total) {
    int best = 1;
    int64_t least = -1;
    for (int n = 1; n <= total && n <= 4 * processors; n++) {
        int64_t rounds = ((int64_t)n * heads + processors - 1) / processors,
                spent = rounds * ((total + n - 1) / n + 3);
        if (least < 0 || spent < least) least = spent, best = n;
    }
    return best;
}

ht_status hti_hier_grad_run(ht_context *ctx, const hti_hier_args &a) {
    int64_t total = hti_clusters(a.length, 3 * a.stage) / STEP * a.sequences;
    dim3 grid(a.q_heads, walks_of(hti_cuda_of(ctx)->processors, a.q_heads, total));
    return launch_chained(ctx, kernel_of(a), "hier_grad_walk", grid, THREADS, sizeof(ring), a);
}
