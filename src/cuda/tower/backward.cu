/*
 * Tuned backward of the hierarchical attention: bf16, block 16, head_dim = value_dim = 4, 8, 16,
 * 32 or 64.
 *
 * 1. restrict  reads dout and out once: h of each row, and the tower of G (dout weighted by exp(m -
 * lse)), m, h. The towers of q, k and v come from forward, in saved.
 * 2. stage s   for s = top ... 0: a thread block takes 128 rows of level 3s of one head; q, k, v, G
 * of levels 3s, 3s+1 and 3s+2 with their neighbours are in shared memory. Four warps own rows as
 * queries (dq), eight own the same rows as keys (dk; dv): no atomics, fixed order. Each goes down
 * as forward does: it starts from the gradients of stage s+1, adds level 3s+2, gives the sum to its
 * children, and so on.
 *
 * Coarse rows are sums, so a parent's gradient is added to its children as it is. With P = exp(s -
 * m): ds = P (<G, V> - n h),   dV += P G,   dQ += f ds K,   dK += f ds Q,   f = scale / (n_query
 * n_key)
 *
 * HALVING (f16): q, k, v, G, h and counts of level l are divided by u = 2^l. With u P for P all of
 * this stays as it is, but for dQ in mode first, where Q is a row: it is dQ / u.
 */
#include "cuda/tower/grad.h"
#include "cuda/hier_place.h"

namespace HTI_KERNELS {

enum { CHUNK = 128, STRIPS = CHUNK / 32, THREADS = 3 * STRIPS * 32, NEAR = 32, FAR = 64 };
enum { ROWS0 = CHUNK + 2 * NEAR, ROWS1 = ROWS0 / 2, ROWS2 = (CHUNK + 2 * FAR) / 4 };

/* What a warp sums up. */
enum { DQ = 0, DK = 1, DV = 2 };

/* ---- restriction of dout ---- */

enum { SPAN = 512, SPAN3 = SPAN / 8 };

/* A row's weight in a cluster of smallest lse m; a row that takes no part has lse inf. */
static __device__ __forceinline__ float weight(float m, float from) {
    return from == HTI_POS_INF ? 0 : exp2_fast(m - from);
}

/* 512 rows of one head: h of level 0; G, m, h of levels 3, 6 and 9. */
template <int D> __global__ void __launch_bounds__(256, 4) hier_restrict(hti_hier_args a) {
    /* [SPAN3][D] G of level 3, then [SPAN3] m and [SPAN3] h */
    extern __shared__ __align__(16) float column_sums[];
    float *ms = column_sums + SPAN3 * D, *hs = ms + SPAN3;
    place p;
    int head = blockIdx.x;
    if (!find_place(p, a, blockIdx.y, blockIdx.z, 0, SPAN)) return;
    const element *dz = (const element *)a.dout.data + tensor_base(a, a.dout, p, head);
    const element *z = (const element *)a.out.data + tensor_base(a, a.out, p, head);
    const float *dlse = (const float *)a.dlse.data;
    if (dlse) dlse += tensor_base(a, a.dlse, p, head);
    const float *lse = a.saved + head * a.rows + p.start;
    float *h0 = a.th[0] + head * a.rows + p.start;
    constexpr int CH = D / 8;
    int climbs = p.levels > 3;

    for (int i = threadIdx.x; i < SPAN3 * CH; i += 256) {
        int r3 = i / CH, ch = i % CH;
        int64_t row = p.first + 8 * r3;
        float g[8] = {0, 0, 0, 0, 0, 0, 0, 0}, m = HTI_POS_INF, h = 0, from[8];
        float mine[8 / CH]; /* h of the rows that this lane writes */
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float x = row + j < p.length ? lse[row + j] : HTI_NEG_INF;
            from[j] = x > HTI_NEG_INF ? x * HTI_LOG2E : HTI_POS_INF;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) m = fminf(m, from[j]);
#pragma unroll
        for (int two = 0; two < 8; two += 2) {
            uint4 d[2], o[2];
#pragma unroll
            for (int j = 0; j < 2; j++) { /* whether it takes part is known later */
                d[j] = o[j] = make_uint4(0, 0, 0, 0);
                if (row + two + j >= p.length) continue;
                d[j] = fetch_chunk<D>(dz + (row + two + j) * a.dout.row_stride, ch, a.dim);
                o[j] = fetch_chunk<D>(z + (row + two + j) * a.out.row_stride, ch, a.dim);
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (from[two + j] == HTI_POS_INF) d[j] = o[j] = make_uint4(0, 0, 0, 0);
                float x[8] = {0, 0, 0, 0, 0, 0, 0, 0}, y[8] = {0, 0, 0, 0, 0, 0, 0, 0},
                      w = weight(m, from[two + j]), dot = 0;
                add_chunk(x, d[j]);
                add_chunk(y, o[j]);
#pragma unroll
                for (int c = 0; c < 8; c++) dot += x[c] * y[c], g[c] += w * x[c];
#pragma unroll
                for (int step = 1; step < CH; step *= 2) dot += __shfl_xor_sync(~0u, dot, step);
                if (dlse && from[two + j] < HTI_POS_INF)
                    dot -= dlse[(row + two + j) * a.dlse.row_stride];
                h += w * dot;
                if ((two + j) % CH == ch) mine[(two + j) / CH] = dot;
            }
        }
#pragma unroll
        for (int k = 0; k < 8 / CH; k++)
            if (row + k * CH + ch < p.length) h0[row + k * CH + ch] = mine[k];
#pragma unroll
        for (int c = 0; c < 8; c++) g[c] *= unit_of(3);
        h *= unit_of(3);
        float4 *to_sums = (float4 *)(column_sums + r3 * D + 8 * ch);
        to_sums[0] = make_float4(g[0], g[1], g[2], g[3]);
        to_sums[1] = make_float4(g[4], g[5], g[6], g[7]);
        if (ch == 0) ms[r3] = m, hs[r3] = h;
        if (climbs && row < p.length) {
            int64_t to = head * a.tower[1] + hti_tower_at(a, 3, p.sequence, p.start) + row / 8;
            *(uint4 *)(a.tg[1] + to * D + 8 * ch) = pack8(g);
            if (ch == 0) a.tm[1][to] = m, a.th[1][to] = h;
        }
    }
    /* levels 6 (8 rows) and 9 (1 row): each from the one below, which moves to the front */
    for (int s = 2, out = SPAN3 / 8; s < a.stages && out >= 1; s++, out /= 8) {
        __syncthreads();
        if (p.levels <= 3 * s) return;
        int64_t base = head * a.tower[s] + hti_tower_at(a, 3 * s, p.sequence, p.start);
        constexpr int MOST = (8 * D + 255) / 256;
        float g[MOST], h[MOST], m[MOST];
#pragma unroll
        for (int e = 0; e < MOST; e++) {
            int i = threadIdx.x + 256 * e, r = i / D, c = i % D, row = (p.first >> (3 * s)) + r;
            m[e] = HTI_POS_INF, g[e] = h[e] = 0;
            if (i >= out * D) continue;
            for (int j = 8 * r; j < 8 * r + 8; j++) m[e] = fminf(m[e], ms[j]);
            for (int j = 8 * r; j < 8 * r + 8; j++) {
                float w = weight(m[e], ms[j]);
                g[e] += w * column_sums[j * D + c], h[e] += w * hs[j];
            }
            g[e] *= unit_of(3), h[e] *= unit_of(3);
            if (row >= (p.length + (1 << (3 * s)) - 1) >> (3 * s)) continue;
            a.tg[s][(base + row) * D + c] = to_element(g[e]);
            if (c == 0) a.tm[s][base + row] = m[e], a.th[s][base + row] = h[e];
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < MOST; e++) {
            int i = threadIdx.x + 256 * e;
            if (i >= out * D) continue;
            column_sums[i] = g[e];
            if (i % D == 0) ms[i / D] = m[e], hs[i / D] = h[e];
        }
    }
}

/* Stage s >= 4 from stage s - 1. grid: (rows, heads), a thread per column */
template <int D> __global__ void hier_restrict_up(hti_hier_args a) {
    int s = a.stage, head = blockIdx.x, c = threadIdx.x;
    place p;
    if (!find_place(p, a, blockIdx.y, blockIdx.z, 3 * s, 1)) return;
    int64_t below = head * a.tower[s - 1] + hti_tower_at(a, 3 * s - 3, p.sequence, p.start);
    int64_t from = below + 8 * (int64_t)p.first, end = below + hti_clusters(p.length, 3 * s - 3);
    int64_t to = head * a.tower[s] + hti_tower_at(a, 3 * s, p.sequence, p.start) + p.first;
    if (end > from + 8) end = from + 8;
    float m = HTI_POS_INF, g = 0, h = 0;
    for (int64_t j = from; j < end; j++) m = fminf(m, a.tm[s - 1][j]);
    for (int64_t j = from; j < end; j++) {
        float w = weight(m, a.tm[s - 1][j]);
        g += w * from_element(a.tg[s - 1][j * D + c]), h += w * a.th[s - 1][j];
    }
    a.tg[s][to * D + c] = to_element(g * unit_of(3));
    if (c == 0) a.tm[s][to] = m, a.th[s][to] = h * unit_of(3);
}

/* ---- a stage's rows on chip ---- */

/* Numbers of N rows: as queries m, h, count and factor (1/count in mode mean, 1 in first), as keys
 * count and its reciprocal. Where all counts are the same (plain) only m and h are filled in. */
template <int N> struct row_numbers { float m[N], h[N], nq[N], fq[N], nk[N], fk[N]; };

template <int D, int N> struct level_rows { element q[N * D], k[N * D], v[N * D], g[N * D]; };

enum { FAR_ROWS = CHUNK + 2 * FAR, EDGE = FAR - NEAR };

template <int D> struct shared_rows {
    level_rows<D, ROWS0> l0;  /* from row first - NEAR on */
    level_rows<D, ROWS1> l1;  /* from (first - NEAR) / 2 on */
    level_rows<D, ROWS2> l2;  /* from (first - FAR) / 4 on */
    row_numbers<FAR_ROWS> n0; /* from row first - FAR on: row r of l0 is EDGE + r here */
    row_numbers<ROWS1> n1;
    row_numbers<ROWS2> n2;
};

/* Where a stage finds its rows. */
struct sources {
    view q, k, v, g;
    const float *m, *h; /* stage 0: lse in natural units */
};

template <int BASE>
static __device__ __forceinline__ sources sources_of(const hti_hier_args &a, const place &p,
                                                     int head, int dim) {
    sources s;
    s.q = view_of<BASE>(a, p, a.q, a.tq, a.nq, a.query_mask, head, dim);
    s.k = view_of<BASE>(a, p, a.k, a.tk, a.nk, a.key_mask, head, dim);
    s.v = view_of<BASE>(a, p, a.v, a.tv, a.nk, a.key_mask, head, dim);
    s.g = view_of<BASE>(a, p, a.dout, a.tg, a.nq, nullptr, head, dim);
    if (BASE) {
        s.m = a.saved + head * a.rows + p.start;
        s.h = a.th[0] + head * a.rows + p.start;
    } else {
        int64_t at = head * a.tower[a.stage] + hti_tower_at(a, 3 * a.stage, p.sequence, p.start);
        s.m = a.tm[a.stage] + at;
        s.h = a.th[a.stage] + at;
    }
    return s;
}

static __device__ __forceinline__ float query_factor(const hti_hier_args &a, float n) {
    return a.query == HT_QUERY_MEAN && n > 0 ? 1 / n : 1;
}

/* m in log2 units; inf: takes no part as a query */
template <int D>
static __device__ __forceinline__ void load_numbers(shared_rows<D> &sh, const hti_hier_args &a,
                                                    const place &p, const sources &s, int plain) {
    for (int row = threadIdx.x; row < FAR_ROWS; row += THREADS) {
        int r = p.first - FAR + row, inside = r >= 0 && r < p.rows;
        float m = inside ? s.m[r] : HTI_POS_INF;
        if (inside && a.stage == 0) m = m > HTI_NEG_INF ? m * HTI_LOG2E : HTI_POS_INF;
        sh.n0.m[row] = m;
        sh.n0.h[row] = inside ? s.h[r] : 0;
        if (plain) continue;
        float unit = unit_of(3 * a.stage);
        float nk = count_of(a, p, s.k, r) * unit, nq = count_of(a, p, s.q, r) * unit;
        sh.n0.nq[row] = nq, sh.n0.fq[row] = query_factor(a, nq);
        sh.n0.nk[row] = nk, sh.n0.fk[row] = nk > 0 ? 1 / nk : 0;
    }
}

/* One chunk of a row of q, k, v and G; a row that takes no part is zero. */
template <int D>
static __device__ __forceinline__ void load_level0(level_rows<D, ROWS0> &l, const place &p,
                                                   const sources &s, const float *m, int dim) {
    constexpr int CH = D / 8, STEP = THREADS / CH;
    constexpr uint32_t ACROSS = sizeof l.q;
    int ch = threadIdx.x % CH, row = threadIdx.x / CH, r = p.first - NEAR + row;
    uint32_t to = shared_address(l.q + rows<D>::at(row, ch));
    const element *q = s.q.data + (int64_t)r * s.q.stride, *k = s.k.data + (int64_t)r * s.k.stride;
    const element *v = s.v.data + (int64_t)r * s.v.stride, *g = s.g.data + (int64_t)r * s.g.stride;
    for (; row < ROWS0; row += STEP, r += STEP, to += STEP * 2 * D) {
        int inside = r >= 0 && r < p.rows;
        int key = inside && (!s.k.mask || s.k.mask[r]),
            query = inside && (!s.q.mask || s.q.mask[r]);
        int live = m[EDGE + row] < HTI_POS_INF;
        copy_chunk<D>(to, q, s.q.data, query, ch, dim);
        copy_chunk<D>(to + ACROSS, k, s.k.data, key, ch, dim);
        copy_chunk<D>(to + 2 * ACROSS, v, s.v.data, key, ch, dim);
        copy_chunk<D>(to + 3 * ACROSS, g, s.g.data, live, ch, dim);
        q += STEP * s.q.stride, k += STEP * s.k.stride, v += STEP * s.v.stride,
            g += STEP * s.g.stride;
    }
}

/* The numbers of coarse row `row` from `count` rows of the level below, from `from` on. */
template <int N, int M>
static __device__ __forceinline__ void join_numbers(row_numbers<N> &up, const row_numbers<M> &down,
                                                    const hti_hier_args &a, int row, int from,
                                                    int count, int plain) {
    float top = HTI_POS_INF, h = 0, q = 0, k = 0;
    for (int i = from; i < from + count; i++) top = fminf(top, down.m[i]);
    for (int i = from; i < from + count; i++) h += weight(top, down.m[i]) * down.h[i];
    float unit = HALVING ? 1 / (float)count : 1;
    up.m[row] = top, up.h[row] = h * unit;
    if (plain) return;
    for (int i = from; i < from + count; i++) q += down.nq[i] * unit, k += down.nk[i] * unit;
    up.nq[row] = q, up.fq[row] = query_factor(a, q);
    up.nk[row] = k, up.fk[row] = k > 0 ? 1 / k : 0;
}

static __device__ __forceinline__ void add_scaled(float sum[8], uint4 x, float w) {
    uint32_t r[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = unpack2(r[i]);
        sum[2 * i] += w * f.x, sum[2 * i + 1] += w * f.y;
    }
}

/* Level 1: k, v and (mode mean) q are sums of two rows, in first q is the first valid one. */
template <int D>
static __device__ __forceinline__ void build_level1(shared_rows<D> &sh, const hti_hier_args &a,
                                                    int plain) {
    constexpr int CH = D / 8, STEP = THREADS / CH;
    constexpr uint32_t ACROSS = sizeof sh.l0.q, ACROSS1 = sizeof sh.l1.q;
    for (int row = threadIdx.x; row < ROWS1; row += THREADS)
        join_numbers(sh.n1, sh.n0, a, row, EDGE + 2 * row, 2, plain);
    int ch = threadIdx.x % CH;
    for (int row = threadIdx.x / CH; row < ROWS1; row += STEP) {
        uint32_t x = shared_address(sh.l0.q + rows<D>::at(2 * row, ch));
        uint32_t y = shared_address(sh.l0.q + rows<D>::at(2 * row + 1, ch));
        uint32_t to = shared_address(sh.l1.q + rows<D>::at(row, ch));
        uint4 q = shared_load4(x), q1 = shared_load4(y);
        if (a.query == HT_QUERY_MEAN)
            q = join8(q, q1);
        else if (!plain && sh.n0.nq[EDGE + 2 * row] == 0)
            q = q1;
        shared_store4(to, q);
        shared_store4(to + ACROSS1, join8(shared_load4(x + ACROSS), shared_load4(y + ACROSS)));
        shared_store4(to + 2 * ACROSS1,
                      join8(shared_load4(x + 2 * ACROSS), shared_load4(y + 2 * ACROSS)));
        float mx = sh.n0.m[EDGE + 2 * row], my = sh.n0.m[EDGE + 2 * row + 1], m = fminf(mx, my);
        float g[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        add_scaled(g, shared_load4(x + 3 * ACROSS), weight(m, mx) * unit_of(1));
        add_scaled(g, shared_load4(y + 3 * ACROSS), weight(m, my) * unit_of(1));
        shared_store4(to + 3 * ACROSS1, pack8(g));
    }
}

/* One chunk of a row of level 2 from four rows below it: which = 0, 1, 2, 3 for q, k, v, G. Rounded
 * twice, as forward does it. */
template <int D>
static __device__ __forceinline__ void join4(shared_rows<D> &sh, const hti_hier_args &a,
                                             const uint4 y[4], int which, int row, int ch,
                                             int plain) {
    const float *m = sh.n0.m + 4 * row, *n = sh.n0.nq + 4 * row;
    uint4 out;
    if (which == 3) {
        float g[8] = {0, 0, 0, 0, 0, 0, 0, 0}, top = fminf(fminf(m[0], m[1]), fminf(m[2], m[3]));
#pragma unroll
        for (int j = 0; j < 4; j++) add_scaled(g, y[j], weight(top, m[j]) * unit_of(2));
        out = pack8(g);
    } else if (which == 0 && a.query == HT_QUERY_FIRST) {
        out = y[0];
        if (!plain && n[0] == 0) out = n[1] > 0 ? y[1] : n[2] > 0 ? y[2] : y[3];
    } else {
        out = join8(join8(y[0], y[1]), join8(y[2], y[3]));
    }
    shared_store4(shared_address(sh.l2.q + rows<D>::at(row, ch)) + which * (uint32_t)sizeof sh.l2.q,
                  out);
}

/* The far ends of level 2 come from memory; m must be there. */
template <int D>
static __device__ __forceinline__ void build_far(shared_rows<D> &sh, const hti_hier_args &a,
                                                 const place &p, const sources &s, int plain,
                                                 int dim) {
    constexpr int CH = D / 8, ROWS = EDGE / 4;
    for (int i = threadIdx.x; i < 8 * ROWS * CH; i += THREADS) {
        int ch = i % CH, row = i / CH % ROWS, side = i / (CH * ROWS) & 1,
            which = i / (2 * CH * ROWS);
        if (side) row += ROWS2 - ROWS;
        int r = p.first - FAR + 4 * row;
        const element *data = which == 0   ? s.q.data
                              : which == 1 ? s.k.data
                              : which == 2 ? s.v.data
                                           : s.g.data;
        int64_t stride = which == 0   ? s.q.stride
                         : which == 1 ? s.k.stride
                         : which == 2 ? s.v.stride
                                      : s.g.stride;
        const uint8_t *mask = which == 0 ? s.q.mask : s.k.mask;
        const element *from = data + r * stride;
        uint4 y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int inside = r + j >= 0 && r + j < p.rows;
            int live =
                which == 3 ? sh.n0.m[4 * row + j] < HTI_POS_INF : inside && (!mask || mask[r + j]);
            y[j] = make_uint4(0, 0, 0, 0);
            if (live) y[j] = fetch_chunk<D>(from + j * stride, ch, dim);
        }
        join4(sh, a, y, which, row, ch, plain);
    }
}

template <int D>
static __device__ __forceinline__ void build_near(shared_rows<D> &sh, const hti_hier_args &a,
                                                  int plain) {
    constexpr int CH = D / 8, FIRST_ROW = EDGE / 4, ROWS = ROWS2 - 2 * FIRST_ROW;
    constexpr uint32_t ACROSS = sizeof sh.l0.q;
    for (int row = threadIdx.x; row < ROWS2; row += THREADS)
        join_numbers(sh.n2, sh.n0, a, row, 4 * row, 4, plain);
    for (int i = threadIdx.x; i < 4 * ROWS * CH; i += THREADS) {
        int ch = i % CH, row = i / CH % ROWS, which = i / (CH * ROWS);
        uint4 y[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            y[j] = shared_load4(shared_address(sh.l0.q + rows<D>::at(4 * row + j, ch)) +
                                which * ACROSS);
        join4(sh, a, y, which, row + FIRST_ROW, ch, plain);
    }
}

/* ---- gradients of a tile ---- */

/* What a warp carries down the levels: the gradient of 16 rows. */
template <int D> struct sums { float x[D / 8][4]; };

/* A warp's 16 rows of a level, and their numbers. */
template <int D> struct tile {
    frag<D> x1, x2;   /* q and G, k and v, or k alone */
    float m[2], h[2]; /* of rows g, g + 8 as queries */
    float f[2], n[2]; /* factors; counts as keys */
};

template <int D, int ROLE, int PLAIN, int N, int M>
static __device__ __forceinline__ void
load_tile(tile<D> &t, const level_rows<D, N> &l, const row_numbers<M> &nums, int row, int number,
          int both, const lanes<D> &la, int g, uint32_t zero) {
    uint32_t x1 = shared_address(ROLE == DQ ? l.q : l.k) + row * 2 * D;
    uint32_t x2 = shared_address(ROLE == DQ ? l.g : l.v) + row * 2 * D;
    load_key<D>(t.x1, 0, x1, la.key, zero);
    if (ROLE != DV) load_key<D>(t.x2, 0, x2, la.key, zero);
    if (both) {
        load_key<D>(t.x1, 1, x1 + 8 * 2 * D, la.key, zero);
        if (ROLE != DV) load_key<D>(t.x2, 1, x2 + 8 * 2 * D, la.key, zero);
    } else {
#pragma unroll
        for (int i = 0; i < D / 8; i++) t.x1.hi(i) = t.x2.hi(i) = 0;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = number + g + (both ? 8 * h : 0), absent = h && !both;
        if (ROLE == DQ) {
            t.m[h] = absent ? HTI_POS_INF : nums.m[r];
            t.h[h] = nums.h[r];
            if (!PLAIN) t.f[h] = nums.fq[r];
        } else if (!PLAIN) {
            t.n[h] = absent ? 0 : nums.nk[r];
            t.f[h] = nums.fk[r];
        }
    }
}

/* 16 partners: rows from r on, numbers from j on. LEVEL: above the stage's. hide bits: 1, 2 rows lo
 * and hi of partners 0-7, 4, 8 of 8-15; triangle: own block, causal. */
template <int D, int ROLE, int PLAIN, int LEVEL, int HIDES, int N, int M>
static __device__ __forceinline__ void
grad16(sums<D> &out, const tile<D> &t, const level_rows<D, N> &l, const row_numbers<M> &nums, int r,
       int j, int hide, int triangle, const hti_hier_args &a, const lanes<D> &la, int g, int u) {
    uint32_t y1 = shared_address(ROLE == DQ ? l.k : l.q) + r * 2 * D;
    uint32_t y2 = shared_address(ROLE == DQ ? l.v : l.g) + r * 2 * D;
    float w[2][4];
#pragma unroll
    for (int b = 0; b < 2; b++) {
        float s[4] = {0, 0, 0, 0}, gv[4] = {0, 0, 0, 0};
        uint32_t key[D / 8];
        load_key<D>(key, y1 + 8 * b * 2 * D, la.key);
        dot8<D>(s, t.x1, key);
        if (ROLE != DV) {
            load_key<D>(key, y2 + 8 * b * 2 * D, la.key);
            dot8<D>(gv, t.x2, key);
        }
        int col = j + 8 * b + 2 * u;
        float2 m = make_float2(0, 0), h = m, f = m, n = m;
        if (ROLE != DQ) m = *(const float2 *)(nums.m + col);
        if (ROLE == DK) h = *(const float2 *)(nums.h + col);
        if (!PLAIN) f = *(const float2 *)((ROLE == DQ ? nums.fk : nums.fq) + col);
        if (!PLAIN && ROLE == DQ) n = *(const float2 *)(nums.nk + col);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int lane_part = e >> 1, odd = e & 1;
            float me = ROLE == DQ ? t.m[lane_part] : odd ? m.y : m.x;
            float he = ROLE == DQ ? t.h[lane_part] : odd ? h.y : h.x;
            float whole = HALVING ? 1 : a.whole[LEVEL];
            float ne = PLAIN ? whole : ROLE == DQ ? (odd ? n.y : n.x) : t.n[lane_part];
            float fe = PLAIN ? a.factor[LEVEL] : t.f[lane_part] * (odd ? f.y : f.x) * a.scale;
            float p = exp2_fast(fmaf(s[e], fe, HALVING ? 3 * a.stage + LEVEL - me : -me));
            if (!PLAIN && HALVING) p = fminf(p, 65504); /* few valid rows of very many */
            if (!PLAIN && !(ne > 0)) p = 0;
            if (HIDES && hide >> (2 * b + lane_part) & 1) p = 0;
            if (!HIDES && triangle) {
                int across = 8 * b + 2 * u + odd, row = g + 8 * lane_part;
                if (ROLE == DQ ? across > row : across < row) p = 0;
            }
            w[b][e] = ROLE == DV ? p : p * (gv[e] - ne * he) * (fe * HTI_LN2);
        }
    }
    uint32_t x[4] = {pack2(w[0][0], w[0][1]), pack2(w[0][2], w[0][3]), pack2(w[1][0], w[1][1]),
                     pack2(w[1][2], w[1][3])};
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t b[4];
        matrix4_turned(b, (ROLE == DV ? y2 : y1) + la.val[i]);
        mma16(out.x[2 * i], x, b[0], b[1]);
        mma16(out.x[2 * i + 1], x, b[2], b[3]);
    }
}

/* ---- down the levels ---- */

/* Where a stage's gradients lie. */
template <int ROLE>
static __device__ __forceinline__ element *tower_grad(const hti_hier_args &a, int stage) {
    return ROLE == DQ ? a.gq[stage] : ROLE == DK ? a.gk[stage] : a.gv[stage];
}

/* Whether a cluster's gradient goes to its rows as it is; else it is divided by 2^level. */
template <int ROLE> static __device__ __forceinline__ bool in_shares(const hti_hier_args &a) {
    return !HALVING || ROLE != DQ || a.query == HT_QUERY_MEAN;
}

/* The gradients of the stage above enter at level 3s+1, where four rows share a parent: rows g take
 * that of row g / 4, rows g + 8 the one two further on. Until then the stages run side by side. */
template <int D, int ROLE>
static __device__ __forceinline__ void add_parents(sums<D> &out, const hti_hier_args &a,
                                                   const place &p, int head, int strip, int lo,
                                                   int hi, int g, int t) {
    float unit = in_shares<ROLE>(a) ? 1 : 4; /* two levels down */
    int up = a.stage + 1, row = (p.first + 32 * strip) / 8 + g / 4;
    chain_wait();
    if (p.levels <= 3 * up) return;
    int64_t at = head * a.tower[up] + hti_tower_at(a, 3 * up, p.sequence, p.start) + row;
    const uint32_t *from = (const uint32_t *)(tower_grad<ROLE>(a, up) + at * D) + t;
    lo = lo && 8 * row < p.rows, hi = hi && 8 * (row + 2) < p.rows;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        float2 x = lo ? unpack2(from[4 * i]) : make_float2(0, 0),
               y = hi ? unpack2(from[D + 4 * i]) : make_float2(0, 0);
        x.x *= unit, x.y *= unit, y.x *= unit, y.y *= unit;
        out.x[i][0] += x.x, out.x[i][1] += x.y, out.x[i][2] += y.x, out.x[i][3] += y.y;
    }
}

/* Rows g and g + 8 take what rows g/2 and 4 + g/2 of `part` of the parents hold. */
template <int D>
static __device__ __forceinline__ void down(sums<D> &to, const sums<D> &from, int part, int lo,
                                            int hi, int lane, float unit) {
    int g = lane >> 2, t = lane & 3, a = 4 * (g / 2) + t, b = 4 * (4 + g / 2) + t;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float parent = part ? from.x[i][2 + e] : from.x[i][e];
            float x = __shfl_sync(~0u, parent, a), y = __shfl_sync(~0u, parent, b);
            to.x[i][e] = lo ? x * unit : 0;
            to.x[i][2 + e] = hi ? y * unit : 0;
        }
    }
}

/* Whether a query row takes its parent's gradient: in mode first only the cluster's first valid row
 * does. */
template <int PLAIN, int N>
static __device__ __forceinline__ int takes_parent(const hti_hier_args &a, const row_numbers<N> &n,
                                                   int row) {
    if (a.query == HT_QUERY_MEAN) return 1;
    if (PLAIN) return row % 2 == 0;
    return n.nq[row] > 0 && (row % 2 == 0 || n.nq[row - 1] == 0);
}

template <int D, int ROLE, int PLAIN, int BASE>
static __device__ __forceinline__ void store_sums(const sums<D> &s, const hti_hier_args &a,
                                                  const place &p, const row_numbers<FAR_ROWS> &n,
                                                  int number, int first, int head, int g, int t) {
    int64_t stride = D;
    element *x;
    if (BASE) {
        const ht_tensor &to = ROLE == DQ ? a.dq : ROLE == DK ? a.dk : a.dv;
        stride = to.row_stride;
        x = (element *)to.data + tensor_base(a, to, p, head);
    } else {
        x = tower_grad<ROLE>(a, a.stage) +
            (head * a.tower[a.stage] + hti_tower_at(a, 3 * a.stage, p.sequence, p.start)) * D;
    }
    x += (int64_t)(first + g) * stride;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int live = PLAIN || (ROLE == DQ ? n.nq : n.nk)[number + 8 * h + g] > 0;
        uint32_t y[D / 8];
#pragma unroll
        for (int i = 0; i < D / 8; i++) y[i] = live ? pack2(s.x[i][2 * h], s.x[i][2 * h + 1]) : 0;
        store_row<D>(x + 8 * h * stride, y, t, first + 8 * h + g < p.rows, BASE ? a.dim : D);
    }
}

/* 32 rows of the chunk. Queries see their left block always and the right one unless causal; for
 * keys it is the other way round. */
template <int D, int ROLE, int PLAIN, int BASE>
static __device__ __forceinline__ void grad_strip(const shared_rows<D> &sh, const hti_hier_args &a,
                                                  const place &p, int head, int strip, int lane) {
    int g = lane >> 2, t = lane & 3, first = p.first + 32 * strip, levels = p.levels - 3 * a.stage;
    int left_ok = ROLE == DQ || !a.causal, right_ok = ROLE != DQ || !a.causal;
    sums<D> up, mid, low;
    tile<D> x;
    lanes<D> la;
    find_lanes(la, lane);

    /* level 3s+2: 8 rows in one part of their block */
    int row2 = 16 + 8 * strip, block2 = 16 * (strip >> 1), second = strip & 1;
#pragma unroll
    for (int i = 0; i < D / 8; i++) up.x[i][0] = up.x[i][1] = up.x[i][2] = up.x[i][3] = 0;
    if (levels > 2) {
        load_tile<D, ROLE, PLAIN>(x, sh.l2, sh.n2, row2, row2, 0, la, g, a.zero);
        if (left_ok && first >= 64)
            grad16<D, ROLE, PLAIN, 2, 1>(up, x, sh.l2, sh.n2, block2, block2, second ? 0 : 12, 0, a,
                                         la, g, t);
        if (right_ok && (first / 64 + 1) * 64 < p.rows)
            grad16<D, ROLE, PLAIN, 2, 1>(up, x, sh.l2, sh.n2, block2 + 32, block2 + 32,
                                         second ? 3 : 0, 0, a, la, g, t);
    }
    /* level 3s+1: one block */
    int row1 = 16 + 16 * strip, lo = 1, hi = 1;
    float unit = in_shares<ROLE>(a) ? 1 : 2;
    if (ROLE == DQ)
        lo = takes_parent<PLAIN>(a, sh.n1, row1 + g),
        hi = takes_parent<PLAIN>(a, sh.n1, row1 + 8 + g);
    down(mid, up, 0, lo, hi, lane, unit);
    if (levels > 1) {
        load_tile<D, ROLE, PLAIN>(x, sh.l1, sh.n1, row1, row1, 1, la, g, a.zero);
        if (left_ok && first >= 32)
            grad16<D, ROLE, PLAIN, 1, 1>(mid, x, sh.l1, sh.n1, row1 - 16, row1 - 16, 4, 0, a, la, g,
                                         t);
        if (right_ok && first + 32 < p.rows)
            grad16<D, ROLE, PLAIN, 1, 1>(mid, x, sh.l1, sh.n1, row1 + 16, row1 + 16, 2, 0, a, la, g,
                                         t);
    }
    if (ROLE == DQ) { /* through level 3s+2 */
        lo = lo && takes_parent<PLAIN>(a, sh.n2, row2 + g / 2);
        hi = hi && takes_parent<PLAIN>(a, sh.n2, row2 + 4 + g / 2);
    }
    add_parents<D, ROLE>(mid, a, p, head, strip, lo, hi, g, t);
    /* level 3s: two blocks; a coarse stage has no own block and hides quarters */
#pragma unroll 1
    for (int j = 0; j < 2; j++) {
        int row0 = NEAR + 32 * strip + 16 * j, at = first + 16 * j, n = EDGE + row0;
        if (ROLE == DQ)
            lo = takes_parent<PLAIN>(a, sh.n0, n + g),
            hi = takes_parent<PLAIN>(a, sh.n0, n + 8 + g);
        down(low, mid, j, lo, hi, lane, unit);
        load_tile<D, ROLE, PLAIN>(x, sh.l0, sh.n0, row0, n, 1, la, g, a.zero);
        if (left_ok && at > 0)
            grad16<D, ROLE, PLAIN, 0, !BASE>(low, x, sh.l0, sh.n0, row0 - 16, n - 16, 4, 0, a, la,
                                             g, t);
        if (BASE)
            grad16<D, ROLE, PLAIN, 0, 0>(low, x, sh.l0, sh.n0, row0, n, 0, a.causal, a, la, g, t);
        if (right_ok && at + 16 < p.rows)
            grad16<D, ROLE, PLAIN, 0, !BASE>(low, x, sh.l0, sh.n0, row0 + 16, n + 16, 2, 0, a, la,
                                             g, t);
        store_sums<D, ROLE, PLAIN, BASE>(low, a, p, sh.n0, n, at, head, g, t);
    }
}

template <int D, int PLAIN, int BASE>
__global__ void __launch_bounds__(THREADS, 1) hier_grad_stage(hti_hier_args a) {
    extern __shared__ __align__(128) char shared_bytes[];
    shared_rows<D> &sh = *(shared_rows<D> *)shared_bytes;
    int warp = warp_index(), lane = threadIdx.x % 32, strip = warp % STRIPS, head = blockIdx.x;
    place p;
    if (!find_place(p, a, blockIdx.y, blockIdx.z, 3 * a.stage, CHUNK)) return;
    if (a.stage == a.stages - 1) chain_wait(); /* for the tower */
    chain_next();
    sources s = sources_of<BASE>(a, p, head, D);
    load_numbers(sh, a, p, s, PLAIN);
    __syncthreads();
    load_level0(sh.l0, p, s, sh.n0.m, BASE ? a.dim : D);
    build_far(sh, a, p, s, PLAIN, BASE ? a.dim : D);
    copy_async_wait();
    __syncthreads();
    build_level1(sh, a, PLAIN); /* always: takes_parent reads its counts */
    build_near(sh, a, PLAIN);
    __syncthreads();
    if (p.first + 32 * strip >= p.rows) return;
    if (warp < STRIPS)
        grad_strip<D, DQ, PLAIN, BASE>(sh, a, p, head, strip, lane);
    else if (warp < 2 * STRIPS)
        grad_strip<D, DK, PLAIN, BASE>(sh, a, p, head, strip, lane);
    else
        grad_strip<D, DV, PLAIN, BASE>(sh, a, p, head, strip, lane);
}

/* ---- host ---- */

static size_t carve_scratch(hti_hier_args *a, void *base, int dim, int packed) {
    hti_carver c = {(char *)base, 0};
    a->cu = packed ? c.take<int32_t>(a->sequences + 1) : nullptr;
    a->th[0] = c.take<float>(a->q_heads * a->rows);
    for (int s = 1; s < a->stages; s++) {
        int64_t n = a->q_heads * a->tower[s];
        a->tg[s] = c.take<element>(n * dim);
        a->tm[s] = c.take<float>(n);
        a->th[s] = c.take<float>(n);
        a->gq[s] = c.take<element>(n * dim);
        a->gk[s] = c.take<element>(n * dim);
        a->gv[s] = c.take<element>(n * dim);
    }
    return c.used;
}

size_t hti_hier_backward_scratch(const ht_attention_desc *d) {
    hti_hier_args a;
    hti_hier_most(&a, d);
    return carve_scratch(&a, nullptr, hti_hier_width(d), 1);
}

template <int D, int PLAIN> static ht_status run_stage(ht_context *ctx, const hti_hier_args &a) {
    dim3 grid = grid_heads(a, 3 * a.stage, CHUNK, a.q_heads);
    size_t shared = sizeof(shared_rows<D>);
    if (a.stage == 0)
        return launch_chained(ctx, hier_grad_stage<D, PLAIN, 1>, "hier_grad_stage", grid, THREADS,
                              shared, a);
    return launch_chained(ctx, hier_grad_stage<D, PLAIN, 0>, "hier_grad_stage", grid, THREADS,
                          shared, a);
}

template <int D> static ht_status run_backward(ht_context *ctx, hti_hier_args a) {
    size_t shared = (SPAN3 * D + 2 * SPAN3) * sizeof(float);
    TRY(hti_cuda_launch(ctx, hier_restrict<D>, "hier_restrict", grid_heads(a, 0, SPAN, a.q_heads),
                        256, shared, a));
    for (a.stage = 4; a.stage < a.stages; a.stage++) {
        dim3 grid = grid_heads(a, 3 * a.stage, 1, a.q_heads);
        TRY(hti_cuda_launch(ctx, hier_restrict_up<D>, "hier_restrict_up", grid, D, 0, a));
    }
    for (int s = a.stages - 1; s >= 0; s--) {
        hti_hier_set_stage(&a, s);
        if (D == 64 && hti_hier_grad_takes(ctx, a)) {
            TRY(hti_hier_grad_run(ctx, a));
            continue;
        }
        /* plain: no masks, and every cluster of every sequence is whole up to two levels above the
         * stage */
        int plain =
            !a.key_mask && !a.query_mask && !a.cu && a.length % ((int64_t)FAR << (3 * s)) == 0;
        TRY((plain ? run_stage<D, 1> : run_stage<D, 0>)(ctx, a));
    }
    return HT_OK;
}

ht_status hti_hier_backward(ht_context *ctx, const hti_attention_call *c) {
    int dim = hti_hier_width(c->desc);
    hti_hier_args a;
    hti_hier_set(&a, c);
    hti_hier_carve_saved(&a, c->saved, dim, 1);
    a.dout = c->dout, a.dlse = c->dlse, a.dq = c->dq, a.dk = c->dk, a.dv = c->dv;
    carve_scratch(&a, c->scratch, dim, c->cu_seqlens != nullptr);
    if (a.cu) TRY(hti_cuda_upload(ctx, (int32_t *)a.cu, c->cu_seqlens, c->sequences + 1));
    switch (dim) {
    case 16: return run_backward<16>(ctx, a);
    case 32: return run_backward<32>(ctx, a);
    default: return run_backward<64>(ctx, a);
    }
}

} // namespace HTI_KERNELS
