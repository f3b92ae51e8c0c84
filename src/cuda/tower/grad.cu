/*
 * A stage of the tuned backward for 64 columns, no masks and whole clusters, on compute capability
 * 9.0: thread blocks that walk along the sequence, 64 rows at a time.
 *
 * Of twelve warps four bring the rows (ring.h), four own them as queries (dq) and four as keys
 * (dk, dv), 16 rows each. These lie in one half of their coarse blocks, so of each coarse level
 * they see the same 24 partners, 8 and 16 or 16 and 8; their own coarse rows are spread over them,
 * so that all levels add to the same sums. What a tile of 16 sees but a row of it does not has
 * weight 0; beyond the ends of a sequence own rows stand in, so that nothing of another sequence is
 * ever multiplied by that 0.
 *
 * With P = exp(s - m) and r a level's factor of the score:
 *     dV += P G,   ds = r P (<G, V> - n h),   dQ += ds K,   dK += ds Q
 */
#include "cuda/tower/grad.h"
#include "cuda/tower/ring.h"

#include <pthread.h>

namespace HTI_KERNELS {

enum { DQ, DKV };
enum { THREADS = 3 * 128 };

/* The kernel asks for more registers in some warps than in others. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- what a tile sees ---- */

/* Groups of 8 partners that a tile of 16 rows sees: FINE of the stage's level (its own block only
 * in stage 0), COARSE of each level above. Of causal calls queries look left and keys right. */
template <int ROLE, int CAUSAL, int BASE> struct sight {
    static constexpr int KEYS = ROLE == DKV, BLOCKS = (CAUSAL ? 1 : 2) + BASE;
    static constexpr int NEAR = 2 * BLOCKS, FAR = CAUSAL ? 2 : 3, ALL = NEAR + 2 * FAR;
    uint32_t at[ALL]; /* in the ring, in bytes */
    float off[ALL];   /* added to m: inf where there is nothing to see */

    /* Which neighbour the i-th block of the stage's level is. */
    static constexpr __device__ __forceinline__ int side(int i) {
        if (BASE) return i - (CAUSAL && KEYS ? 0 : 1);
        return CAUSAL ? (KEYS ? 1 : -1) : 2 * i - 1;
    }
};

/* A level above: blocks to the left and to the right, whether they are there, and the own rows. */
template <int ROLE, int CAUSAL, int BASE, int LEVEL>
static __device__ __forceinline__ void look_far(sight<ROLE, CAUSAL, BASE> &s, uint32_t to_left,
                                                uint32_t to_right, uint32_t own, int has_left,
                                                int has_right, int half) {
    using S = sight<ROLE, CAUSAL, BASE>;
    constexpr int B = S::NEAR + (LEVEL - 1) * S::FAR;
    float no_left = has_left ? 0 : HTI_POS_INF, no_right = has_right ? 0 : HTI_POS_INF;
    uint32_t left = has_left ? to_left : own, right = has_right ? to_right : own;
    if (!CAUSAL) {
        s.at[B] = left, s.off[B] = no_left;
        s.at[B + 1] = half ? left + 8 * ROW : right, s.off[B + 1] = half ? no_left : no_right;
        s.at[B + S::FAR - 1] = right + 8 * ROW, s.off[B + S::FAR - 1] = no_right;
    } else if (ROLE == DQ) {
        s.at[B] = left, s.off[B] = no_left;
        s.at[B + 1] = left + 8 * ROW, s.off[B + 1] = half ? no_left : HTI_POS_INF;
    } else {
        s.at[B] = right, s.off[B] = half ? HTI_POS_INF : no_right;
        s.at[B + 1] = right + 8 * ROW, s.off[B + 1] = no_right;
    }
}

/* i: step of the walk; kept: i % COARSE; left, right: whether the sequence goes on there */
template <int ROLE, int CAUSAL, int BASE>
static __device__ __forceinline__ void look_around(sight<ROLE, CAUSAL, BASE> &s, int tile, int i,
                                                   int kept, int left, int right) {
    using S = sight<ROLE, CAUSAL, BASE>;
    constexpr uint32_t GROUP = 8 * ROW, SLOT = 6 * GROUP, FIRST = FINE_GROUPS * GROUP;
    uint32_t own = ((8 * i + 2 * tile) % FINE_GROUPS) * GROUP;
#pragma unroll
    for (int b = 0; b < S::NEAR; b += 2) {
        int side = S::side(b / 2);
        int there = side == 0 || (side < 0 ? tile > 0 || left : tile < TILES - 1 || right);
        uint32_t at = ((8 * i + 2 * (tile + side) + FINE_GROUPS) % FINE_GROUPS) * GROUP;
        s.at[b] = there ? at : own, s.at[b + 1] = s.at[b] + GROUP;
        s.off[b] = s.off[b + 1] = there ? 0 : HTI_POS_INF;
    }
    uint32_t cur = FIRST + kept * SLOT, prev = kept > 0 ? cur - SLOT : FIRST + 2 * SLOT,
             next = kept < COARSE - 1 ? cur + SLOT : FIRST;
    int second = tile >> 1; /* of the step's two blocks one level up */
    look_far<ROLE, CAUSAL, BASE, 1>(s, second ? cur : prev + 2 * GROUP,
                                    second ? next : cur + 2 * GROUP, cur + 2 * second * GROUP,
                                    second || left, !second || right, tile & 1);
    look_far<ROLE, CAUSAL, BASE, 2>(s, prev + 4 * GROUP, next + 4 * GROUP, cur + 4 * GROUP, left,
                                    right, tile >> 1);
}

/* ---- a tile's own rows ---- */

/* Factors of a level: of the score (log2 units), of ds, of h; and what m is less. */
struct level_factors {
    float f, r, n, less;
};

/* HALVING: see backward.cu; dq of mode first is divided by 2^(3 stage), not by its level's 2^l. */
template <int ROLE>
static __device__ __forceinline__ level_factors factors_of(const hti_hier_args &a, int level) {
    float r = a.factor[level] * HTI_LN2;
    if (!HALVING) return {a.factor[level], r, a.whole[level] * r, 0};
    if (ROLE == DQ && a.query == HT_QUERY_FIRST) r *= (float)(1 << level);
    return {a.factor[level], r, r, (float)(3 * a.stage + level)};
}

/* The row of a tile that is row m (0 ... 15) of the products: m and m + 8 are siblings, so that
 * coarse rows, spread over theirs, are the same in both halves of a lane's registers. Eight of them
 * in a row end on eight different numbers: no two meet in a bank. */
static __device__ __forceinline__ int row_of(int m) {
    return 2 * (m & 7) + ((m >> 2 ^ m >> 3) & 1);
}

/* A warp's 16 rows of a level; coarse ones are spread. */
template <int LEVEL> struct tile_rows {
    static constexpr int HALVES = LEVEL > 0 ? 1 : 2;
    uint32_t x1[D / 16][4], x2[D / 16][4]; /* q and G, or k and v */
    float m[HALVES], h[HALVES];            /* of rows m, m + 8 as queries; h times its factor */
};

static __device__ __forceinline__ void load_rows(uint32_t b[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at));
}

/* Eight rows, four chunks, into two factors with the same rows in both halves. zero: a factor is
 * four registers in a row, and the compiler must not copy them again for each product. */
static __device__ __forceinline__ void spread(uint32_t a[4], uint32_t b[4], uint32_t zero) {
    b[0] = a[2] ^ zero, b[1] = a[2] ^ zero, b[2] = a[3] ^ zero, b[3] = a[3] ^ zero;
    a[2] = a[1] ^ zero, a[3] = a[1] ^ zero, a[1] = a[0] ^ zero;
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+r"(a[i]), "+r"(b[i]));
}

/* row: the tile's first of that level, counted over the ring */
template <int ROLE, int LEVEL>
static __device__ __forceinline__ void load_tile(tile_rows<LEVEL> &t, const ring &r, int row,
                                                 const level_factors &f, uint32_t zero, int lane) {
    int mine = row + (LEVEL > 0 ? (lane & 7) >> (LEVEL - 1) : row_of(lane & 15)), g = lane >> 2;
    uint32_t at = shared_address(r.x[ROLE == DQ ? Q : K][0]) +
                  chunk_at(mine, LEVEL > 0 ? lane >> 3 : lane >> 4); /* others: bits of it */
    constexpr uint32_t ACROSS = (ROLE == DQ ? G - Q : V - K) * (uint32_t)sizeof r.x[0];
#pragma unroll
    for (int i = 0; i<D / 16; i += LEVEL> 0 ? 2 : 1) {
        load_rows(t.x1[i], at ^ (32 * i));
        load_rows(t.x2[i], (at ^ (32 * i)) + ACROSS);
        if (LEVEL > 0) spread(t.x1[i], t.x1[i + 1], zero), spread(t.x2[i], t.x2[i + 1], zero);
    }
    if constexpr (ROLE == DQ) {
#pragma unroll
        for (int h = 0; h < t.HALVES; h++) {
            float2 n = (&r.n[0][0])[row + (row_of(g + 8 * h) >> LEVEL)];
            t.m[h] = n.x, t.h[h] = n.y * f.n;
        }
    }
}

/* ---- weights ---- */

/* Of the tile's rows against a group of 8 partners: p and ds as factors of the second product, rows
 * m and m + 8. y: the group's rows, n: its numbers, as this lane loads them. HIDDEN: rows that do
 * not see it, 1 the lower eight, 2 the upper; DIAGONAL: 1 or 2 for the lower or upper half of the
 * own block of a causal call. */
template <int ROLE, int LEVEL, int HIDDEN, int DIAGONAL>
static __device__ __forceinline__ void
weigh8(uint32_t p2[2], uint32_t ds2[2], const tile_rows<LEVEL> &t, uint32_t y, const float4 *n,
       float off, const level_factors &f, int lane) {
    constexpr uint32_t ACROSS = (ROLE == DQ ? V - K : G - Q) * (uint32_t)sizeof(ring::x[0]);
    float s[4] = {0, 0, 0, 0}, gv[4] = {0, 0, 0, 0};
    int g = lane >> 2, u = lane & 3;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        uint32_t b[4];
        load_rows(b, y ^ (64 * j));
        mma16(s, t.x1[2 * j], b[0], b[1]);
        mma16(s, t.x1[2 * j + 1], b[2], b[3]);
        load_rows(b, (y ^ (64 * j)) + ACROSS);
        mma16(gv, t.x2[2 * j], b[0], b[1]);
        mma16(gv, t.x2[2 * j + 1], b[2], b[3]);
    }
    float4 of = make_float4(0, 0, 0, 0);
    if (ROLE == DKV) of = *n;
    off -= f.less;
    float m[2] = {off + of.x, off + of.z}, h[2] = {f.n * of.y, f.n * of.w};
#pragma unroll
    for (int hi = 0; hi < t.HALVES; hi++) {
        if (ROLE == DQ) m[0] = m[1] = off + t.m[hi], h[0] = h[1] = t.h[hi];
        float p[2], ds[2];
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            int e = 2 * hi + odd, across = 8 * (DIAGONAL - 1) + 2 * u + odd,
                row = row_of(g + 8 * hi);
            p[odd] = exp2_fast(fmaf(s[e], f.f, -m[odd]));
            if (DIAGONAL && (ROLE == DQ ? across > row : across < row)) p[odd] = 0;
            ds[odd] = p[odd] * fmaf(gv[e], f.r, -h[odd]);
        }
        p2[hi] = pack2(p[0], p[1]);
        ds2[hi] = pack2(ds[0], ds[1]);
    }
    if (LEVEL > 0) p2[1] = p2[0], ds2[1] = ds2[0];
    if (HIDDEN >> (g >> 2) & 1) p2[0] = p2[1] = ds2[0] = ds2[1] = 0; /* siblings: one half */
}

/* out += weights of two groups times their rows */
static __device__ __forceinline__ void add_product(float out[D / 8][4], const uint32_t w0[2],
                                                   const uint32_t w1[2], uint32_t at,
                                                   uint32_t across) {
    uint32_t w[4] = {w0[0], w0[1], w1[0], w1[1]};
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t b[4];
        matrix4_turned(b, (at ^ (32 * c)) + across);
        mma16(out[2 * c], w, b[0], b[1]);
        mma16(out[2 * c + 1], w, b[2], b[3]);
    }
}

/* ---- a tile from all levels ---- */

/* What a lane adds to the address of a group: rows for dot products, columns for second products.
 */
struct lane_places {
    uint32_t row, column;
};

/* One level's groups: weights, and the second products of each two. p2, ds2: of all groups so far
 */
template <int ROLE, int CAUSAL, int BASE, int LEVEL>
static __device__ __forceinline__ void
grad_level(float x[D / 8][4], float v[D / 8][4], uint32_t p2[][2], uint32_t ds2[][2],
           const sight<ROLE, CAUSAL, BASE> &s, const ring &r, int row, const lane_places &to,
           const hti_hier_args &a, int lane) {
    using S = sight<ROLE, CAUSAL, BASE>;
    constexpr int FROM = LEVEL == 0 ? 0 : S::NEAR + (LEVEL - 1) * S::FAR,
                  END = LEVEL == 0 ? S::NEAR : FROM + S::FAR;
    constexpr uint32_t ACROSS = (G - Q) * (uint32_t)sizeof r.x[0];
    uint32_t y = shared_address(r.x[ROLE == DQ ? K : Q][0]);
    const char *numbers = (const char *)&r.n[0][2 * (lane & 3)];
    int first = LEVEL > 0 && ROLE == DQ && a.query == HT_QUERY_FIRST;
    level_factors f = factors_of<ROLE>(a, LEVEL);
    tile_rows<LEVEL> t;
    load_tile<ROLE, LEVEL>(t, r, row, f, a.zero, lane);
#pragma unroll
    for (int b = FROM; b < END; b++) {
        const float4 *n = (const float4 *)(numbers + s.at[b] / (8 * ROW) * sizeof r.n[0]);
        uint32_t here = y + s.at[b] + to.row;
        constexpr int NONE = 0;
        int side = LEVEL == 0 ? S::side(b / 2) : NONE, half = b % 2;
        if (LEVEL == 0 && BASE && CAUSAL && side == 0 && half == 0)
            weigh8<ROLE, LEVEL, 0, 1>(p2[b], ds2[b], t, here, n, s.off[b], f, lane);
        else if (LEVEL == 0 && BASE && CAUSAL && side == 0)
            weigh8<ROLE, LEVEL, 0, 2>(p2[b], ds2[b], t, here, n, s.off[b], f, lane);
        else if (LEVEL == 0 && !BASE && side < 0 && half == 1)
            weigh8<ROLE, LEVEL, 1, 0>(p2[b], ds2[b], t, here, n, s.off[b], f, lane);
        else if (LEVEL == 0 && !BASE && side > 0 && half == 0)
            weigh8<ROLE, LEVEL, 2, 0>(p2[b], ds2[b], t, here, n, s.off[b], f, lane);
        else
            weigh8<ROLE, LEVEL, 0, 0>(p2[b], ds2[b], t, here, n, s.off[b], f, lane);
            /* mode first: the cluster's first row alone was its query */
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (first && row_of((lane >> 2) + 8 * h) % (1 << LEVEL) > 0) ds2[b][h] = 0;
        if (half == 0) continue;
        uint32_t at = y + (lane & 8 ? s.at[b] : s.at[b - 1]) + to.column;
        add_product(x, ds2[b - 1], ds2[b], at, 0);
        if (ROLE == DKV) add_product(v, p2[b - 1], p2[b], at, ACROSS);
    }
}

/* ---- results ---- */

/* out += the gradients of the rows' parents; takes: 1 and 0 as factors, see work_rows */
static __device__ __forceinline__ void add_parents(float out[D / 8][4], const uint32_t takes[2],
                                                   const element *up, int lane) {
    uint32_t at = shared_address(up) + chunk_at(lane & 7, lane >> 3);
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        uint32_t b[4];
        matrix4_turned(b, at ^ (64 * j));
#pragma unroll
        for (int c = 0; c < 4; c++) mma8(out[4 * j + c], takes[0], takes[1], b[c]);
    }
}

/* Into shared memory, where a tensor copy fetches it; at: a lane's place there. */
static __device__ __forceinline__ void write_tile(uint32_t at, const float x[D / 8][4]) {
#pragma unroll
    for (int c = 0; c < D / 8; c += 2)
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at ^ (16 * c)),
            "r"(pack2(x[c][0], x[c][1])), "r"(pack2(x[c][2], x[c][3])),
            "r"(pack2(x[c + 1][0], x[c + 1][1])), "r"(pack2(x[c + 1][2], x[c + 1][3]))
            : "memory");
}

/* dq goes by what nobody looks at in step i: level 3s+1 of the first half of step i - 1. It must
 * have been read before the next step. dk and dv have places of their own. */
template <int ROLE>
static __device__ __forceinline__ void
send_results(ring &r, const grad_args &g, const float x[D / 8][4], const float v[D / 8][4], int i,
             int row, int head, int sequence, int tile, int lane) {
    uint32_t to = shared_address(ROLE == DQ ? r.x[tile][coarse_at(i - 1)] : r.out[tile][0]),
             mine = to + chunk_at(row_of(lane & 15), lane >> 4);
    constexpr uint32_t ACROSS = sizeof r.out[0][0];
    if (ROLE == DKV) {
        if (lane == 0) tiles_read(); /* those of the last step */
        __syncwarp();
    }
    write_tile(mine, x);
    if (ROLE == DKV) write_tile(mine + ACROSS, v);
    tile_written();
    if (lane > 0) return;
    send_tile(&g.out[ROLE == DQ ? 0 : 1], to, row, head, sequence);
    if (ROLE == DKV) send_tile(&g.out[2], to + ACROSS, row, head, sequence);
    tiles_sent();
}

/* ---- the walk ---- */

/* All steps of a walk, by one warp of a role. */
template <int ROLE, int CAUSAL, int BASE>
static __device__ __forceinline__ void work_rows(ring &r, const grad_args &args, int head,
                                                 int begin, int end, int steps, int tile,
                                                 int lane) {
    using S = sight<ROLE, CAUSAL, BASE>;
    const hti_hier_args &a = args.a;
    int sequence = begin / steps, step = begin - sequence * steps, g = lane >> 2;
    int has_up = a.stage < a.stages - 1, kept = 1;
    /* the lower eight rows take the gradient of parent 2 * tile, the upper that of the next */
    uint32_t ones[2], one = ELEMENT_ONE;
    if (HALVING && ROLE == DQ && a.query == HT_QUERY_FIRST) one = 0x4800; /* 8: three levels down */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int alone = ROLE == DQ && a.query == HT_QUERY_FIRST && row_of(g + 8 * h) % 8 > 0;
        ones[h] = (lane & 3) != tile || alone ? 0 : g < 4 ? one : one << 16;
    }
    lane_places to = {chunk_at(lane & 7, lane >> 3), chunk_at(lane & 7, lane >> 4)};
    rows_wait(r, 0);
    rows_wait(r, 1);
#pragma unroll 1
    for (int i = 1; i <= end - begin; i++) {
        float x[D / 8][4], v[D / 8][4];
        uint32_t p2[S::ALL][2], ds2[S::ALL][2];
        S s;
        look_around(s, tile, i, kept, step > 0, step < steps - 1);
        int fine = 64 * (i % FINE) + 16 * tile, coarse = 8 * (FINE_GROUPS + 6 * kept);
#pragma unroll
        for (int c = 0; c < D / 8; c++) {
            x[c][0] = x[c][1] = x[c][2] = x[c][3] = 0;
            v[c][0] = v[c][1] = v[c][2] = v[c][3] = 0;
        }
        rows_wait(r, i + 1);
        grad_level<ROLE, CAUSAL, BASE, 0>(x, v, p2, ds2, s, r, fine, to, a, lane);
#pragma unroll 1 /* a loop, which the compiler does not move level 0 across */
        for (uint32_t once = 0; once <= a.zero; once++) levels_wait(r, i);
        grad_level<ROLE, CAUSAL, BASE, 1>(x, v, p2, ds2, s, r, coarse + 8 * tile, to, a, lane);
        grad_level<ROLE, CAUSAL, BASE, 2>(x, v, p2, ds2, s, r, coarse + 32 + 4 * tile, to, a, lane);
        if (has_up && i == 1) parents_wait();
        if (has_up) add_parents(x, ones, r.up[i % PARENTS][ROLE == DQ ? 0 : 1], lane);
        if (has_up && ROLE == DKV) add_parents(v, ones, r.up[i % PARENTS][2], lane);
        send_results<ROLE>(r, args, x, v, i, STEP * step + 16 * tile, head, sequence, tile, lane);
        if (ROLE == DQ && lane == 0) tiles_read();
        arrive(&r.done);
        if (++step == steps) step = 0, sequence++;
        if (++kept == COARSE) kept = 0;
    }
    if (lane == 0) tiles_done();
}

/* grid: (heads, walks) */
template <int CAUSAL, int BASE>
__global__ void __launch_bounds__(THREADS, 1) hier_grad_walk(const __grid_constant__ grad_args g) {
    extern __shared__ __align__(1024) char shared_bytes[];
    ring &r = *(ring *)shared_bytes;
    const hti_hier_args &a = g.a;
    int warp = warp_index(), lane = threadIdx.x % 32, tile = warp % TILES, head = blockIdx.x;
    int steps = (int)hti_clusters(a.length, 3 * a.stage) / STEP, total = steps * a.sequences;
    int begin = (int)((int64_t)total * blockIdx.y / gridDim.y);
    int end = (int)((int64_t)total * (blockIdx.y + 1) / gridDim.y);
    if (threadIdx.x == 0) make_barriers(r);
    __syncthreads();
    if (a.stage == a.stages - 1) chain_wait(); /* for the restriction of dout */
    chain_next();
    if (warp < TILES) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        bring_rows<BASE>(r, g, head, begin, end, steps, threadIdx.x);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        if (warp < 2 * TILES)
            work_rows<DKV, CAUSAL, BASE>(r, g, head, begin, end, steps, tile, lane);
        else
            work_rows<DQ, CAUSAL, BASE>(r, g, head, begin, end, steps, tile, lane);
    }
}

#else

/* Elsewhere the kernel is empty, and says so by its largest thread block. */
template <int CAUSAL, int BASE>
__global__ void __launch_bounds__(32, 1) hier_grad_walk(const __grid_constant__ grad_args) {}

#endif

/* ---- host ---- */

static void (*kernel_of(const hti_hier_args &a))(grad_args) {
    if (a.stage == 0) return a.causal ? hier_grad_walk<1, 1> : hier_grad_walk<0, 1>;
    return a.causal ? hier_grad_walk<1, 0> : hier_grad_walk<0, 0>;
}

/* The driver's function that describes a tensor to the copies; NULL: it has none. */
typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encoder find_encoder() {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult how;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                         cudaEnableDefault, &how);
#else
    cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &how);
#endif
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess && how == cudaDriverEntryPointSuccess ? (encoder)found : nullptr;
}

/* What the machine and this build have, asked once: it costs as much as a launch. Contexts of
 * several threads may come here together. */
static struct {
    encoder encode;
    int usable; /* and the kernels are there; all devices of capability 9.0 load the same ones */
} found;

static void look() {
    cudaFuncAttributes about;
    found.encode = find_encoder();
    found.usable =
        found.encode &&
        cudaFuncGetAttributes(&about, (const void *)hier_grad_walk<0, 1>) == cudaSuccess &&
        about.maxThreadsPerBlock >= THREADS;
}

static int is_usable() {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return found.usable;
}

/* Rows of a stage, `box` at a time; strides in elements. */
static int describe(CUtensorMap *map, const void *data, int64_t rows, int64_t heads,
                    int64_t sequences, int64_t row, int64_t head, int64_t sequence, int box) {
    cuuint64_t size[4] = {D, (cuuint64_t)rows, (cuuint64_t)heads, (cuuint64_t)sequences};
    cuuint64_t stride[3] = {2 * (cuuint64_t)row, 2 * (cuuint64_t)head, 2 * (cuuint64_t)sequence};
    cuuint32_t part[4] = {D, (cuuint32_t)box, 1, 1}, step[4] = {1, 1, 1, 1};
    if (sequences == 1) stride[2] = ROW; /* any */
    return found.encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)data, size, stride, part,
                        step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static int describe_all(grad_args *g) {
    const hti_hier_args &a = g->a;
    int s = a.stage, fine = 1;
    const ht_tensor *t[] = {&a.q, &a.k, &a.v, &a.dout, &a.dq, &a.dk, &a.dv};
    const element *x[] = {a.tq[s], a.tk[s], a.tv[s], a.tg[s], a.gq[s], a.gk[s], a.gv[s]};
    int64_t rows = hti_clusters(a.length, 3 * s), n = a.sequences, heads = a.q_heads;
    for (int i = 0; i < TENSORS + 3; i++) {
        CUtensorMap *map = i < TENSORS ? &g->in[i] : &g->out[i - TENSORS];
        int box = i < TENSORS ? STEP : 16;
        if (s == 0)
            fine &= describe(map, t[i]->data, rows, heads, n, t[i]->row_stride, t[i]->head_stride,
                             t[i]->batch_stride, box);
        else
            fine &= describe(map, x[i], rows, heads, n, D, a.tower[s] * D, rows * D, box);
    }
    return fine;
}

int hti_hier_grad_takes(const ht_context *ctx, const hti_hier_args &a) {
    int64_t whole = (int64_t)STEP << (3 * a.stage);
    if (hti_cuda_of(ctx)->capability != 90 || a.dim != D || a.local || a.cu || a.key_mask ||
        a.query_mask || a.length % whole != 0)
        return 0;
    return is_usable();
}

/* Walks per head: as many as keep the longest of them short, counting the way in. For each number
 * of rounds of the grid the most walks that they hold are looked at. */
static int walks_of(int processors, int heads, int64_t total) {
    int best = 1, fewest = (heads + processors - 1) / processors;
    int64_t least = INT64_MAX;
    for (int rounds = fewest; rounds < fewest + 32; rounds++) {
        int64_t n = (int64_t)rounds * processors / heads, longest;
        if (n > total) n = total;
        longest = (total + n - 1) / n;
        if (rounds * (longest + 3) >= least) continue;
        least = rounds * (longest + 3), best = (int)n;
    }
    return best;
}

/* Thread blocks of a stage. One with a step of work for each of them leaves those multiprocessors
 * alone that the stage above, which still runs, has: none of its blocks is to come late. */
static int blocks_of(const ht_context *ctx, const hti_hier_args &a, int stage) {
    if (stage == a.stages) return 0;
    int64_t rows = hti_clusters(a.length, 3 * stage), total = rows / STEP * a.sequences;
    if (a.length % ((int64_t)STEP << (3 * stage)) != 0) /* not by these kernels */
        return (int)((rows + 127) / 128) * a.sequences * a.q_heads;
    int free = hti_cuda_of(ctx)->processors, above = blocks_of(ctx, a, stage + 1);
    if (total * a.q_heads <= free && 2 * above <= free) free -= above;
    return a.q_heads * walks_of(free, a.q_heads, total);
}

ht_status hti_hier_grad_run(ht_context *ctx, const hti_hier_args &a) {
    dim3 grid(a.q_heads, blocks_of(ctx, a, a.stage) / a.q_heads);
    grad_args g;
    g.a = a;
    CHECK(ctx, describe_all(&g), HT_DEVICE, "%s cannot describe the tensors of backward",
          ctx->device);
    return launch_chained(ctx, kernel_of(a), "hier_grad_walk", grid, THREADS, sizeof(ring), g);
}

} // namespace HTI_KERNELS
