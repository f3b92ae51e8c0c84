/*
 * Forward of mode fine by products of warpgroups: causal, 64 columns, no masks, compute capability
 * 9.0.
 *
 * A thread block owns 128 rows, 64 for each of its two warpgroups. From level 3 on all 64 rows of a
 * warpgroup see the same 8 or 16 keys of each level, so these come from the towers once, levels
 * side by side, eight groups of eight keys at a time. Then 64 keys of levels 0 to 2: the 16 rows
 * before the warpgroup's, 32 clusters of level 1, 16 of level 2, added up on chip; and last its own
 * 64 rows. Of those every warp sees a part. Coarse keys and values are means, and log2 of their
 * rows goes into the score.
 */
#include "cuda/tower/fine.h"
#include "cuda/wide.h"

namespace HTI_KERNELS {

enum { OWN = 128, LEFT = 16, MIXED = 48, ALL = 256, GROUPS = 8, MOST_GROUPS = 64 };

/* Eight keys of a level. */
struct far_keys {
    const element *k, *v; /* NULL: none */
};

/* Places in shared memory. */
enum : uint32_t {
    AT_Q = 0,
    AT_K = AT_Q + OWN * 128, /* from row first - LEFT on */
    AT_V = AT_K + (OWN + LEFT) * 128,
    AT_MIXED_K = AT_V + (OWN + LEFT) * 128, /* [2][MIXED]: 32 of level 1, 16 of level 2 */
    AT_MIXED_V = AT_MIXED_K + 2 * MIXED * 128,
    AT_FAR = AT_MIXED_V + 2 * MIXED * 128, /* [2]: keys, values of a step */
    AT_LIST = AT_FAR + 2 * 2 * WIDE_TILE,
    AT_WEIGHTS = AT_LIST + MOST_GROUPS * sizeof(far_keys), /* [2][MOST_GROUPS], then the steps */
    FINE_SHARED = AT_WEIGHTS + 2 * MOST_GROUPS * 4 + 16
};

/* ---- means of the levels from 3 on ---- */

/* Rows of a part, and the level that it makes one cluster of; a thread block takes one part or
 * four, up to level 11. Clusters that the end of a sequence cuts are not looked at by causal calls.
 */
enum { PART = 512, PART_TOP = 9, PART3 = PART / 8 };

static __device__ __forceinline__ element *tower_of(const fine_args &f, const place &p, int level,
                                                    int head, int is_v) {
    int64_t at = (head * f.blocks[level] + block_at(p, level)) * 16;
    return (is_v ? f.v : f.k)[level] + at * WIDE_D;
}

/* Eight columns: the sum stays on chip, the mean goes to the tower. */
static __device__ __forceinline__ void keep_sum(float *sums, element *to, const float x[8],
                                                float share, bool there) {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = share * x[i];
    if (there) *(uint4 *)to = pack8(y);
    ((float4 *)sums)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4 *)sums)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

/* Level 3 of a part: a thread has eight columns of two clusters. left: rows there are */
static __device__ __forceinline__ void sum_rows(float *sums, element *to, const element *from,
                                                int64_t stride, int left) {
    int ch = (int)threadIdx.x % 8, r = (int)threadIdx.x / 8;
    uint4 x[2][8];
    bool whole = left >= PART;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int row = 8 * (r + PART3 / 2 * (i / 8)) + i % 8;
        x[i / 8][i % 8] = make_uint4(0, 0, 0, 0);
        if (whole || row < left)
            x[i / 8][i % 8] = __ldg((const uint4 *)(from + row * stride + 8 * ch));
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
        for (int m = 0; m < 8; m++) add_chunk(sum, x[i][m]);
        int c = r + PART3 / 2 * i, at = c * WIDE_D + 8 * ch;
        keep_sum(sums + at, to + at, sum, 0.125f, 8 * c < left);
    }
}

/* `count` clusters of a level from twice as many sums below. */
static __device__ __forceinline__ void sum_pairs(float *sums, element *to, const float *below,
                                                 int count, int have, int level) {
    for (int i = (int)threadIdx.x; i < count * 8; i += ALL) {
        int c = i / 8, at = c * WIDE_D + 8 * (i % 8);
        const float4 *a = (const float4 *)(below + at + c * WIDE_D), *b = a + WIDE_D / 4;
        float x[8];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            x[4 * j] = a[j].x + b[j].x, x[4 * j + 1] = a[j].y + b[j].y;
            x[4 * j + 2] = a[j].z + b[j].z, x[4 * j + 3] = a[j].w + b[j].w;
        }
        keep_sum(sums + at, to + at, x, 1.0f / (float)(1 << level), c < have);
    }
}

/* One plane (a head of k or v), 512 or 2,048 rows: levels 3 to f.top. */
static __global__ void __launch_bounds__(ALL, 4) fine_means(const __grid_constant__ fine_args f) {
    __shared__ __align__(16) float sums[2 * PART3 * WIDE_D], tops[8 * WIDE_D];
    const hti_hier_args &a = f.h;
    int parts = 1 << (f.top - PART_TOP), head = blockIdx.x >> 1, is_v = blockIdx.x & 1;
    place p;
    chain_next();
    if (!find_place(p, a, blockIdx.y, blockIdx.z, 0, PART * parts) || p.levels <= LOWEST) return;
    const ht_tensor &t = is_v ? a.v : a.k;
    const element *rows = (const element *)t.data + tensor_base(a, t, p, head);
    auto to = [&](int level, int first) {
        return tower_of(f, p, level, head, is_v) + (int64_t)(first >> level) * WIDE_D;
    };
    for (int part = 0; part < parts; part++) {
        int first = p.first + part * PART, left = p.length - first;
        if (left <= 0) break;
        sum_rows(sums, to(LOWEST, first), rows + first * t.row_stride, t.row_stride, left);
        float *mine = sums;
        for (int level = LOWEST + 1; level <= PART_TOP && level < p.levels; level++) {
            int count = PART >> level;
            const float *below = mine;
            mine = level == PART_TOP ? tops + part * WIDE_D : mine + 2 * count * WIDE_D;
            __syncthreads();
            sum_pairs(mine, to(level, first), below, count, (int)hti_clusters(left, level), level);
        }
    }
    for (int level = PART_TOP + 1; level <= f.top && level < p.levels; level++) {
        int count = 1 << (f.top - level), above = level == PART_TOP + 1 ? 4 : 6;
        __syncthreads();
        sum_pairs(tops + above * WIDE_D, to(level, p.first), tops + (above == 4 ? 0 : 4) * WIDE_D,
                  count, (int)hti_clusters(p.length - p.first, level), level);
    }
}

/* The level from which a higher one is made: not always the next one, so that numbers are not
 * rounded at every level. */
static __device__ __forceinline__ int source_of(int level, int top) {
    return top + 3 * ((level - top - 1) / 3);
}

/* A level above f.top, one block of 16 clusters of a plane. grid: (planes, blocks, sequences) */
static __global__ void __launch_bounds__(ALL) fine_means_up(const __grid_constant__ fine_args f) {
    int level = f.level, from = source_of(level, f.top), up = level - from;
    int head = blockIdx.x >> 1, is_v = blockIdx.x & 1;
    place p;
    chain_next();
    if (!find_place(p, f.h, blockIdx.y, blockIdx.z, level, 16)) return;
    const element *src = tower_of(f, p, from, head, is_v);
    element *to = tower_of(f, p, level, head, is_v) + (int64_t)p.first * WIDE_D;
    int end = (int)hti_clusters(p.length, from);
    for (int i = (int)threadIdx.x; i < 16 * WIDE_D; i += ALL) {
        int r = i / WIDE_D, c = i % WIDE_D;
        float sum = 0;
        for (int m = 0; m < 1 << up; m++) {
            int64_t j = ((int64_t)(p.first + r) << up) + m;
            if (j < end) sum += from_element(src[j * WIDE_D + c]);
        }
        to[i] = to_element(sum / (float)(1 << up));
    }
}

#if HTI_WIDE

/* ---- what is brought ---- */

/* By the first warp, a lane per level: the groups of keys that the tile sees from level 3 on,
 * filled up to whole steps. Returns the number of steps. */
DEVICE int list_far(far_keys *list, float *weights, const fine_args &f, const place &p,
                    int kv_head) {
    int level = LOWEST + (int)threadIdx.x, b = level < p.levels ? p.first >> (level + 4) : 0;
    int half = level == LOWEST || (p.first >> (level + 3) & 1), mine = b > 0 ? 1 + half : 0;
    int end = mine;
    for (int o = 1; o < 32; o *= 2) {
        int before = __shfl_sync(~0u, end, max((int)threadIdx.x - o, 0));
        if ((int)threadIdx.x >= o) end += before;
    }
    for (int i = 0; i < mine; i++) {
        int64_t at = (kv_head * f.blocks[level] + block_at(p, level) + b - 1) * 16 + 8 * i;
        int to = end - mine + i;
        list[to] = {f.k[level] + at * WIDE_D, f.v[level] + at * WIDE_D};
        weights[to] = level == LOWEST && i == 1 ? HTI_NEG_INF : (float)level;
        weights[MOST_GROUPS + to] = (float)level;
    }
    int all = __shfl_sync(~0u, end, 31), steps = (all + GROUPS - 1) / GROUPS;
    if ((int)threadIdx.x < steps * GROUPS - all) {
        int to = all + (int)threadIdx.x;
        list[to] = {NULL, NULL};
        weights[to] = weights[MOST_GROUPS + to] = HTI_NEG_INF;
    }
    return steps;
}

DEVICE void bring_far(uint32_t to, const far_keys *list, const void *any) {
    int ch = (int)threadIdx.x % 8, r = (int)threadIdx.x / 8;
    to += (uint32_t)(r * 128 + ((ch ^ (r & 7)) << 4));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const far_keys &g = list[r / 8 + 4 * i];
        int from = (r & 7) * WIDE_D + 8 * ch, there = g.k != NULL;
        copy_async_if(to + i * 4096, there ? g.k + from : any, there);
        copy_async_if(to + i * 4096 + WIDE_TILE, there ? g.v + from : any, there);
    }
}

/* Rows from first - LEFT on; what lies before the sequence or after it is zero. */
DEVICE void bring_near(uint32_t to, const element *from, int stride, int first, int length) {
    int ch = (int)threadIdx.x % 8, r0 = (int)threadIdx.x / 8, row = first - LEFT + r0;
    const element *at = from + ((int64_t)row * stride + 8 * ch);
    bool inside = first > 0 && first + OWN <= length;
    to += (uint32_t)(r0 * 128 + ((ch ^ (r0 & 7)) << 4));
#pragma unroll
    for (int i = 0; i < (OWN + LEFT + 31) / 32; i++) {
        if (r0 + 32 * i >= OWN + LEFT) break;
        bool there = inside || (row + 32 * i >= 0 && row + 32 * i < length);
        copy_async_if(to + i * 32 * 128, there ? at + (int64_t)stride * (32 * i) : from, there);
    }
}

DEVICE uint4 scale8(uint4 x, float factor) {
    element2 f = to_elements(factor, factor);
    uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        element2 y = __hmul2(*(element2 *)&w[i], f);
        w[i] = *(uint32_t *)&y;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* What join8 made of 2^level rows, as their mean. */
DEVICE uint4 mean8(uint4 x, int level) { return HALVING ? x : scale8(x, 1.0f / (1 << level)); }

/* Four rows, of which the first is row 4 * quad of the tile, become two clusters of level 1 and one
 * of level 2, where a warpgroup sees those: level 1 from row -32 to 95, level 2 from -64 to 63. */
DEVICE void raise_quad(uint32_t mixed, const uint4 x[4], int quad, int ch) {
    uint4 lo = join8(x[0], x[1]), hi = join8(x[2], x[3]);
    int one = 2 * quad + 16, two = quad + 16;
    if (one >= 0 && one < 64) {
        int r = one % 32; /* even, and so is the team's first row: the two are neighbours */
        uint32_t to = mixed + (uint32_t)(one / 32 * MIXED + r) * 128;
        shared_store4(to + ((ch ^ (r & 7)) << 4), mean8(lo, 1));
        shared_store4(to + 128 + ((ch ^ ((r + 1) & 7)) << 4), mean8(hi, 1));
    }
    if (two < 32) {
        int r = 32 + two % 16;
        uint32_t to = mixed + (uint32_t)(two / 16 * MIXED + r) * 128;
        shared_store4(to + ((ch ^ (r & 7)) << 4), mean8(join8(lo, hi), 2));
    }
}

/* The clusters before the tile, from device memory: 16 quads, keys and values. A thread has one. */
DEVICE void fetch_before(uint4 x[4], const element *k, int64_t ks, const element *v, int64_t vs,
                         int first) {
    int ch = (int)threadIdx.x % 8, quad = (int)threadIdx.x / 8 % 16 - 16, is_v = threadIdx.x >= 128;
    int64_t stride = is_v ? vs : ks;
    const element *from = (is_v ? v : k) + 8 * ch + (first + 4 * quad) * stride;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        x[m] = make_uint4(0, 0, 0, 0); /* a tile has 64 rows before it, or none */
        if (first > 0) x[m] = __ldg((const uint4 *)(from + m * stride));
    }
}

DEVICE void raise_before(uint32_t base, const uint4 x[4]) {
    int ch = (int)threadIdx.x % 8, quad = (int)threadIdx.x / 8 % 16 - 16, is_v = threadIdx.x >= 128;
    raise_quad(base + (is_v ? AT_MIXED_V : AT_MIXED_K), x, quad, ch);
}

/* Those of the tile, once it has arrived: 24 quads, keys and values. */
DEVICE void raise_own(uint32_t base) {
    for (int i = (int)threadIdx.x; i < 2 * 24 * 8; i += ALL) {
        int ch = i % 8, quad = i / 8 % 24, is_v = i / (8 * 24);
        uint4 x[4];
#pragma unroll
        for (int m = 0; m < 4; m++) {
            int r = LEFT + 4 * quad + m;
            x[m] = shared_load4(base + (is_v ? AT_V : AT_K) + r * 128 + ((ch ^ (r & 7)) << 4));
        }
        raise_quad(base + (is_v ? AT_MIXED_V : AT_MIXED_K), x, quad, ch);
    }
}

/* ---- attending ---- */

struct fine_state {
    float o[8][4], m[2], l[2];
};

/* Scores become weights; level(n): log2 of the rows of a key of group n, -inf: not seen; bit n of
 * `seen`: the warp sees something of the group. The state is rescaled only where its maximum falls
 * behind by a factor of 256, which floats hold easily. */
template <typename Level>
DEVICE void soften_groups(float x[8][4], fine_state &s, float scale, unsigned seen, Level level) {
    float top[2] = {HTI_NEG_INF, HTI_NEG_INF};
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (!(seen >> n & 1)) continue;
#pragma unroll
        for (int h = 0; h < 2; h++)
            top[h] = fmaxf(top[h], fmaf(fmaxf(x[n][2 * h], x[n][2 * h + 1]), scale, level(n)));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
    }
    keep_up(s, top);
    float less[2] = {s.m[0] == HTI_NEG_INF ? 0 : s.m[0], s.m[1] == HTI_NEG_INF ? 0 : s.m[1]};
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (seen >> n & 1) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                x[n][e] = exp2_fast(fmaf(x[n][e], scale, level(n) - less[e >> 1]));
                s.l[e >> 1] += x[n][e];
            }
        } else {
            x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
        }
    }
}

/* A step of far keys at `at`; weights: of its groups. */
DEVICE void attend_far(fine_state &s, uint32_t q, uint32_t at, const float *weights, float scale) {
    float x[8][4];
    uint32_t w[4][4];
    products_begin();
    multiply(x, q, at);
    products_commit();
    products_wait();
    pin(x), pin(s.o);
    float4 lo = ((const float4 *)weights)[0], hi = ((const float4 *)weights)[1];
    const float level[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    soften_groups(x, s, scale, 255, [&](int n) { return level[n]; });
    pack_weights(w, x);
    pin(s.o);
    products_begin();
    gather(s.o, w, at + WIDE_TILE);
    products_commit();
    products_wait();
    pin(s.o);
}

/* The 16 rows before the warpgroup's, level 1, level 2. warp: of the warpgroup; edge: nothing comes
 * before the warpgroup's rows */
DEVICE void attend_mixed(fine_state &s, uint32_t q, uint32_t base, int team, int warp, bool edge,
                         float scale) {
    float x[8][4], x0[2][4], x1[6][4];
    uint32_t w[4][4], before = base + team * WIDE_TILE, mixed = base + team * MIXED * 128;
    products_begin();
    multiply_part<16>(x0, q, before + AT_K);
    multiply_part<48>(x1, q, mixed + AT_MIXED_K);
    products_commit();
    products_wait();
    asm volatile("" : HTI_4(x0, 0), HTI_4(x0, 1)::"memory");
    asm volatile(""
                 : HTI_4(x1, 0), HTI_4(x1, 1), HTI_4(x1, 2), HTI_4(x1, 3), HTI_4(x1, 4),
                   HTI_4(x1, 5)::"memory");
#pragma unroll
    for (int e = 0; e < 32; e++) x[e / 4][e % 4] = e < 8 ? x0[e / 4][e % 4] : x1[e / 4 - 2][e % 4];
    pin(x), pin(s.o);
    unsigned one = (warp & 1 ? 3u : 1u) << (warp & 2), two = warp & 2 ? 3u : 1u;
    unsigned seen = (warp == 0 ? 3u : 0u) | one << 2 | two << 6;
    if (edge) seen &= warp < 2 ? 0u : 0x3cu; /* its own second block of level 1 sees the first */
    soften_groups(x, s, scale, seen, [&](int n) { return n < 2 ? 0.f : n < 6 ? 1.f : 2.f; });
    pack_weights(w, x);
    pin(s.o);
    products_begin();
    gather16(s.o, w[0], factor_at(before + AT_V));
#pragma unroll
    for (int i = 1; i < 4; i++) gather16(s.o, w[i], factor_at(mixed + AT_MIXED_V + (i - 1) * 2048));
    products_commit();
    products_wait();
    pin(s.o);
}

/* The warpgroup's own rows: of every warp's, its own 16 and those before. */
DEVICE void attend_own(fine_state &s, uint32_t q, uint32_t base, int team, int warp, float scale) {
    int g = (int)threadIdx.x / 4 % 8, t = (int)threadIdx.x % 4;
    float x[8][4];
    uint32_t w[4][4], at = base + LEFT * 128 + team * WIDE_TILE;
    products_begin();
    multiply(x, q, at + AT_K);
    products_commit();
    products_wait();
    pin(x), pin(s.o);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n / 2 != warp) continue;
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * (n & 1) + 2 * t + (e & 1) > g + 8 * (e >> 1)) x[n][e] = HTI_NEG_INF;
    }
    unsigned seen = (warp > 0 ? 15u << 2 * (warp - 1) : 3u);
    soften_groups(x, s, scale, seen, [&](int) { return 0.f; });
    pack_weights(w, x);
    pin(s.o);
    products_begin();
    gather(s.o, w, at + AT_V);
    products_commit();
    products_wait();
    pin(s.o);
}

/* Rows own + g and own + g + 8. */
DEVICE void store_rows(const fine_state &s, const hti_hier_args &a, const place &p, int own,
                       int head) {
    int g = (int)threadIdx.x / 4 % 8, t = (int)threadIdx.x % 4;
    element *out = (element *)a.out.data + tensor_base(a, a.out, p, head);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = s.l[h];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        int r = own + 8 * h + g, there = r < p.length;
        float inv = l != 0 ? __fdividef(1, l) : 0;
        uint32_t x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = pack2(s.o[i][2 * h] * inv, s.o[i][2 * h + 1] * inv);
        store_row<WIDE_D>(out + (int64_t)r * a.out.row_stride, x, t, there);
        if (!there || t != 0) continue;
        float lse = (s.m[h] + __log2f(l)) * HTI_LN2;
        if (a.saved) a.saved[head * a.rows + p.start + r] = lse;
        if (a.lse.data)
            ((float *)a.lse.data)[tensor_base(a, a.lse, p, head) + (int64_t)r * a.lse.row_stride] =
                lse;
    }
}
#endif

static __global__ void __launch_bounds__(ALL, 2) fine_wide(const __grid_constant__ fine_args f) {
#if HTI_WIDE
    extern __shared__ __align__(1024) char shared_bytes[];
    const hti_hier_args &a = f.h;
    uint32_t base = align_shared(shared_bytes);
    far_keys *list = (far_keys *)(shared_bytes + (base - shared_address(shared_bytes)) + AT_LIST);
    float *weights = (float *)(list + MOST_GROUPS);
    int *count = (int *)(weights + 2 * MOST_GROUPS);
    int head = gridDim.x - 1 - blockIdx.x, warp = warp_index(), team = warp / 4;
    place p;
    /* backwards: what coarsening read last may still be in the L2 cache */
    if (!find_place(p, a, gridDim.y - 1 - blockIdx.y, gridDim.z - 1 - blockIdx.z, 0, OWN)) return;
    const element *q = (const element *)a.q.data + tensor_base(a, a.q, p, head);
    const element *k = (const element *)a.k.data + tensor_base(a, a.k, p, head / a.group);
    const element *v = (const element *)a.v.data + tensor_base(a, a.v, p, head / a.group);
    bring_rows<OWN, ALL>(base + AT_Q, q + p.first * a.q.row_stride, (int)a.q.row_stride,
                         p.length - p.first);
    bring_near(base + AT_K, k, (int)a.k.row_stride, p.first, p.length);
    bring_near(base + AT_V, v, (int)a.v.row_stride, p.first, p.length);
    copies_commit();
    uint4 before[4];
    fetch_before(before, k, a.k.row_stride, v, a.v.row_stride, p.first);
    if (warp == 0) {
        int steps = list_far(list, weights, f, p, head / a.group);
        if (threadIdx.x == 0) *count = steps;
    }
    chain_wait(); /* the towers are complete */
    __syncthreads();
    int steps = *count;
    for (int i = 0; i < 2; i++) {
        if (i < steps) bring_far(base + AT_FAR + i * 2 * WIDE_TILE, list + i * GROUPS, q);
        copies_commit();
    }
    raise_before(base, before);

    fine_state s;
    set_zero(s.o);
    s.m[0] = s.m[1] = HTI_NEG_INF, s.l[0] = s.l[1] = 0;
    uint32_t mine = base + AT_Q + team * WIDE_TILE;
    copies_wait<2>();
    __syncthreads();
    raise_own(base);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    attend_own(s, mine, base, team, warp % 4, a.scale);
    __syncthreads(); /* clusters of levels 1 and 2 are there */
    attend_mixed(s, mine, base, team, warp % 4, p.first + team == 0, a.scale);
    for (int step = 0; step < steps; step++) {
        copies_wait<1>();
        __syncthreads();
        uint32_t at = base + AT_FAR + (step & 1) * 2 * WIDE_TILE;
        attend_far(s, mine, at, weights + team * MOST_GROUPS + step * GROUPS, a.scale);
        if (step + 2 < steps) {
            __syncthreads(); /* everybody is done with the step */
            bring_far(at, list + (step + 2) * GROUPS, a.q.data);
        }
        copies_commit();
    }
    products_wait();
    pin(s.o);
    int own = p.first + 16 * warp;
    if (own < p.length) store_rows(s, a, p, own, head);
#endif
}

/* ---- host ---- */

int hti_fine_wide_takes(const ht_context *ctx, const fine_args &f) {
    const hti_cuda_backend *cuda = hti_cuda_of(ctx);
    return cuda->warpgroups && cuda->shared_bytes >= (int)FINE_SHARED + 1024 && f.h.causal &&
           f.h.dim == WIDE_D && !f.h.key_mask && !f.h.query_mask && f.h.scale > 0;
}

/* May start while the kernel before is still running; see chain_wait. */
static ht_status launch_early(const ht_context *ctx, void (*kernel)(fine_args), const char *name,
                              dim3 grid, size_t shared, const fine_args &f) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = dim3(ALL), config.dynamicSmemBytes = shared;
    config.stream = hti_cuda_of(ctx)->stream;
    config.attrs = &early, config.numAttrs = 1;
    const void *entry = (const void *)kernel;
    CUDA_TRY(ctx,
             cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
             name);
    void *list[] = {(void *)&f};
    CUDA_TRY(ctx, cudaLaunchKernelExC(&config, entry, list), name);
    return HT_OK;
}

ht_status hti_fine_wide(const ht_context *ctx, const fine_args &args) {
    fine_args f = args;
    int planes = 2 * f.h.kv_heads;
    int64_t many = f.h.rows / (4 * PART) * planes; /* thread blocks, if each takes four parts */
    f.top = many >= 2 * hti_cuda_of(ctx)->processors ? PART_TOP + 2 : PART_TOP;
    dim3 grid = grid_heads(f.h, 0, PART << (f.top - PART_TOP), planes);
    dim3 tiles = grid_heads(f.h, 0, OWN, f.h.q_heads);
    if (f.levels <= LOWEST) /* no towers, nothing to start early after */
        return hti_cuda_launch(ctx, fine_wide, "fine_wide", tiles, ALL, FINE_SHARED + 1024, f);
    TRY(hti_cuda_launch(ctx, fine_means, "fine_means", grid, ALL, 0, f));
    for (f.level = f.top + 1; f.level < f.levels; f.level++)
        TRY(hti_cuda_launch(ctx, fine_means_up, "fine_means_up",
                            grid_heads(f.h, f.level, 16, planes), ALL, 0, f));
    return launch_early(ctx, fine_wide, "fine_wide", tiles, FINE_SHARED + 1024, f);
}

} // namespace HTI_KERNELS
