/*
 * Tuned forward of the query mode fine: bf16, block 16, head_dim = value_dim = 16, 32, 64 or 128.
 *
 * 1. coarsen   reads k and v once and writes levels 3, 4, 5, ... as sums over valid rows
 * (f16: divided by 2^level).
 * 2. forward   a thread block takes 256 rows of one head. Level 0 of k and v is in shared memory,
 * level 1 is made of two products with the rows below, level 2 is built in shared memory. Levels
 * from 3 on come straight from device memory, which the caches make cheap: few blocks serve many
 * rows.
 *
 * Every row keeps its own query, so a tile of 16 rows goes through all levels with one fragment.
 * At levels >= 1 a tile lies in one half of its block: all its rows see the same keys, 8 or 16 of
 * the left block and 16 or 8 of the right one.
 *
 * Levels >= 3 are stored in blocks of 16 clusters, the last one filled up with zeros. A block of
 * keys is [16][D]. A block of values is [D][16], the clusters of a column in the order in which a
 * lane of a product wants them (value_slot), so that no transposition is needed.
 */
#include "cuda/tower/fine.h"
#include "cuda/tower/fine_stage.h"

namespace HTI_KERNELS {

/* Where cluster c (0 ... 15) stands in a column of values: clusters 2t, 2t+1, 2t+8, 2t+9 together.
 */
static __device__ __forceinline__ int value_slot(int c) {
    return 4 * (c >> 1 & 3) + 2 * (c >> 3) + (c & 1);
}

/* Clusters at a level, the last block filled up. */
static __device__ __forceinline__ int padded_clusters(int length, int level) {
    return ((int)hti_clusters(length, level) + 15) & ~15;
}

/* ---- coarsening ---- */

enum { COARSE_ROWS = 512, COARSE3 = COARSE_ROWS / 8, TOP = 9, COARSE_THREADS = 256 };

/* Row of the sums at which a level starts: 64 rows of level 3, 32 of level 4, ... 1 of level 9. */
static __device__ __forceinline__ int sums_at(int level) {
    return 2 * COARSE3 - (2 * COARSE3 >> (level - LOWEST));
}

/* Level 3 of 512 rows of one plane, in shared memory. */
template <int D>
static __device__ __forceinline__ void sum_rows(float *sums, float *counts, const place &p,
                                                const element *src, int64_t stride,
                                                const uint8_t *mask) {
    constexpr int CH = D / 8;
    for (int i = threadIdx.x; i < COARSE3 * CH; i += COARSE_THREADS) {
        int r = i / CH, ch = i % CH, n = 8, row = p.first + 8 * r;
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const element *at = src + row * stride + 8 * ch;
        if (!mask && row + 8 <= p.length) {
            uint4 x[8];
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = *(const uint4 *)(at + j * stride);
#pragma unroll
            for (int j = 0; j < 8; j++) add_chunk(sum, x[j]);
        } else {
            n = 0;
            for (int j = 0; j < 8; j++) {
                if (row + j >= p.length || (mask && !mask[row + j])) continue;
                add_row(sum, at + j * stride);
                n++;
            }
        }
        float4 *keep = (float4 *)(sums + r * D + 8 * ch);
        keep[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        keep[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
        if (ch == 0) counts[r] = (float)n;
    }
}

/* `count` clusters from `first` on; those that the sums do not have (from `have` on) are zeros. */
template <int D>
static __device__ __forceinline__ void store_keys(element *to, const float *sums, int first,
                                                  int count, int have, float unit) {
    constexpr int CH = D / 8;
    for (int i = threadIdx.x; i < count * CH; i += COARSE_THREADS) {
        int r = i / CH, ch = i % CH;
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = r < have ? sums[r * D + 8 * ch + j] * unit : 0;
        *(uint4 *)(to + (int64_t)(first + r) * D + 8 * ch) = pack8(x);
    }
}

template <int D>
static __device__ __forceinline__ void store_values(element *to, const float *sums, int first,
                                                    int count, int have, float unit) {
    if (have < 16) { /* less than a block: one number at a time */
        for (int i = threadIdx.x; i < count * D; i += COARSE_THREADS) {
            int r = i / D, c = i % D, cluster = first + r;
            to[(int64_t)(cluster >> 4) * 16 * D + 16 * c + value_slot(cluster & 15)] =
                to_element(r < have ? sums[i] * unit : 0.f);
        }
        return;
    }
    /* whole blocks: a thread has one column */
    for (int i = threadIdx.x; i < count / 16 * D; i += COARSE_THREADS) {
        int block = i / D, c = i % D;
        const float *from = sums + block * 16 * D + c;
        uint32_t x[8]; /* slots 2j and 2j + 1 */
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int cluster = 2 * (j >> 1) + 8 * (j & 1);
            x[j] = pack2(from[cluster * D] * unit, from[(cluster + 1) * D] * unit);
        }
        uint4 *at = (uint4 *)(to + ((int64_t)(first / 16 + block) * D + c) * 16);
        at[0] = make_uint4(x[0], x[1], x[2], x[3]);
        at[1] = make_uint4(x[4], x[5], x[6], x[7]);
    }
}

/* One plane (a head of k or v), 512 rows: levels 3 to 9. grid: (rows, planes, sequences) */
template <int D>
__global__ void __launch_bounds__(COARSE_THREADS)
    fine_coarsen(const __grid_constant__ fine_args f) {
    extern __shared__ __align__(16) float sums[]; /* [128][D], all levels, then [128] counts */
    float *counts = sums + 2 * COARSE3 * D;
    const hti_hier_args &a = f.h;
    place p;
    if (!find_place(p, a, blockIdx.y, blockIdx.z, 0, COARSE_ROWS) || p.levels <= LOWEST) return;
    int head = blockIdx.x >> 1, is_v = blockIdx.x & 1, last = p.first + COARSE_ROWS >= p.length;
    const ht_tensor &t = is_v ? a.v : a.k;
    const uint8_t *mask = a.key_mask ? a.key_mask + p.start : nullptr;
    sum_rows<D>(sums, counts, p, (const element *)t.data + tensor_base(a, t, p, head), t.row_stride,
                mask);
    for (int level = LOWEST; level <= TOP && level < p.levels; level++) {
        int have = COARSE3 >> (level - LOWEST), first = p.first >> level;
        float *mine = sums + sums_at(level) * D, *mine_n = counts + sums_at(level);
        if (level > LOWEST) {
            const float *below = sums + sums_at(level - 1) * D, *n = counts + sums_at(level - 1);
            for (int i = threadIdx.x; i < have * D; i += COARSE_THREADS) {
                int r = i / D, c = i % D;
                mine[i] = below[2 * r * D + c] + below[(2 * r + 1) * D + c];
                if (c == 0) mine_n[r] = n[2 * r] + n[2 * r + 1];
            }
        }
        __syncthreads();
        int count = last ? padded_clusters(p.length, level) - first : have;
        int64_t block = head * f.blocks[level] + block_at(p, level);
        if (is_v)
            store_values<D>(f.v[level] + block * 16 * D, mine, first, count, have, unit_of(level));
        else
            store_keys<D>(f.k[level] + block * 16 * D, mine, first, count, have, unit_of(level));
        if (!mask || is_v || head != 0) continue;
        for (int r = threadIdx.x; r < count; r += COARSE_THREADS)
            f.n[level][block_at(p, level) * 16 + first + r] = r < have ? mine_n[r] : 0;
    }
}

/* The level below from which level >= 10 is made: not always the next one, so that numbers are not
 * rounded at every level. */
static __device__ __forceinline__ int source_of(int level) {
    return TOP + 3 * ((level - TOP - 1) / 3);
}

/* A level >= 10, one block of 16 clusters of a plane. grid: (blocks, planes, sequences) */
template <int D>
__global__ void __launch_bounds__(COARSE_THREADS)
    fine_coarsen_up(const __grid_constant__ fine_args f) {
    const hti_hier_args &a = f.h;
    int level = f.level, from = source_of(level), up = level - from;
    int head = blockIdx.x >> 1, is_v = blockIdx.x & 1;
    place p;
    if (!find_place(p, a, blockIdx.y, blockIdx.z, level, 16)) return;
    int end = (int)hti_clusters(p.length, from);
    int64_t source = block_at(p, from), target = block_at(p, level) + (p.first >> 4);
    const element *src = (is_v ? f.v : f.k)[from] + (head * f.blocks[from] + source) * 16 * D;
    element *to = (is_v ? f.v : f.k)[level] + (head * f.blocks[level] + target) * 16 * D;
    for (int i = threadIdx.x; i < 16 * D; i += COARSE_THREADS) {
        int r = i / D, c = i % D;
        float sum = 0;
        for (int m = 0; m < 1 << up; m++) {
            int64_t j = ((int64_t)(p.first + r) << up) + m;
            if (j >= end) break;
            sum += from_element(
                src[is_v ? (j >> 4) * 16 * D + 16 * c + value_slot(j & 15) : j * D + c]);
        }
        to[is_v ? 16 * c + value_slot(r) : i] = to_element(sum * unit_of(up));
    }
    if (!a.key_mask || is_v || head != 0 || threadIdx.x >= 16) return;
    float n = 0;
    for (int m = 0; m < 1 << up; m++) {
        int64_t j = ((int64_t)(p.first + threadIdx.x) << up) + m;
        if (j < end) n += f.n[from][source * 16 + j];
    }
    f.n[level][target * 16 + threadIdx.x] = n;
}

/* ---- attention ---- */

/* A tile of 16 rows and what it sees. */
template <int D> struct tile {
    frag<D> q;
    int first;      /* its first row */
    int warp, j;    /* the thread block's warp, the warp's tile */
    int head, g, t; /* key head; lane */
};

/* Valid rows of cluster c of a level. */
static __device__ __forceinline__ float cluster_count(const fine_args &f, const place &p, int level,
                                                      int64_t c) {
    if (f.h.key_mask) return f.n[level][block_at(p, level) * 16 + c];
    int64_t left = p.length - (c << level), whole = (int64_t)1 << level;
    return left < 0 ? 0 : (float)(left < whole ? left : whole);
}

/* One block of a level >= 3: both groups of 8 clusters, or the only one that is seen. */
template <int D>
static __device__ __forceinline__ void attend_block(state<D> &s, const tile<D> &x,
                                                    const fine_args &f, const place &p, int level,
                                                    int b, int seen0, int seen1, int whole) {
    int64_t at = (x.head * f.blocks[level] + block_at(p, level) + b) * 16 * D;
    const element *keys = f.k[level] + at + x.g * D;
    const uint2 *values = (const uint2 *)(f.v[level] + at + 16 * x.g) + x.t;
    uint32_t key0[D / 8], key1[D / 8];
    load_row<D>(key0, keys, x.t, seen0);
    load_row<D>(key1, keys + 8 * D, x.t, seen1);
    uint2 value[D / 8]; /* on their way while the scores are made */
#pragma unroll
    for (int i = 0; i < D / 8; i++) value[i] = values[32 * i];
    float w[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}, n[2][2];
    if (seen0) dot8<D>(w[0], x.q, key0);
    if (seen1) dot8<D>(w[1], x.q, key1);
    float rows = (float)((int64_t)1 << level), factor = f.h.scale, unit = unit_of(level);
    if (whole) {
        factor /= rows * unit;
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++)
                n[i][e] = unit * cluster_count(f, p, level, 16 * (int64_t)b + 8 * i + 2 * x.t + e);
            weigh(w[i], n[i]);
        }
    }
    hide(w[0], !seen0, !seen0);
    hide(w[1], !seen1, !seen1);
    float factors[2] = {factor, factor};
    soften<2, D>(w, s, factors, HALVING ? (float)level : 0);
    if (whole)
        count<2, 1>(s, w, n, rows * unit);
    else
        count<2, 0>(s, w, n, rows);
    uint32_t a[4] = {pack2(w[0][0], w[0][1]), pack2(w[0][2], w[0][3]), pack2(w[1][0], w[1][1]),
                     pack2(w[1][2], w[1][3])};
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        if (seen0 && seen1)
            mma16(s.o[i], a, value[i].x, value[i].y);
        else if (seen0)
            mma8(s.o[i], a[0], a[1], value[i].x);
        else
            mma8(s.o[i], a[2], a[3], value[i].y);
    }
}

/* Levels >= 3. A left block is always whole; a right one may end with its sequence. */
template <int D, int CAUSAL>
static __device__ __forceinline__ void attend_far(state<D> &s, const tile<D> &x, const fine_args &f,
                                                  const place &p) {
#pragma unroll 1
    for (int level = p.levels - 1; level >= LOWEST; level--) {
        int b = x.first >> (level + 4), half = x.first >> (level + 3) & 1, whole = !f.h.key_mask;
        if (b > 0) attend_block(s, x, f, p, level, b - 1, 1, half, whole);
        if (CAUSAL || ((int64_t)(b + 1) << (level + 4)) >= p.length) continue;
        whole = whole && ((int64_t)(b + 2) << (level + 4)) <= p.length;
        attend_block(s, x, f, p, level, b + 1, !half, 1, whole);
    }
}

/* Levels 1 (pairs of rows of k) and 2 (rows of k2): three groups of 8 clusters, the first of the
 * left block, one that depends on the tile's half, the last of the right block. */
template <int D, int PLAIN, int CAUSAL, int INNER, int LEVEL>
static __device__ __forceinline__ void attend_near(state<D> &s, const tile<D> &x,
                                                   const shared_rows<D> &sh, const hti_hier_args &a,
                                                   const place &p, const lanes<D> &l) {
    constexpr int SPAN = 16 << LEVEL, GROUP = LEVEL == 1 ? 16 : 8; /* rows of a block, a group */
    constexpr int SEEN = CAUSAL ? 2 : 3;
    int half = LEVEL == 1 ? x.j : x.warp & 1, b = LEVEL == 1 ? x.warp : x.warp >> 1;
    int has_left = INNER || p.first + SPAN * b > 0;
    int has_right = !CAUSAL && (INNER || p.first + SPAN * (b + 1) < p.rows);
    if (!has_left && !has_right) return;
    int left = 2 * GROUP * b, right = left + 4 * GROUP;
    int at[3] = {left, half ? left + GROUP : right, right + GROUP};
    int seen[3] = {has_left, half ? has_left : has_right, has_right};
    uint32_t keys = shared_address(LEVEL == 1 ? sh.k : sh.k2);
    uint32_t values = shared_address(LEVEL == 1 ? sh.v : sh.v2);
    float w[SEEN][4], n[SEEN][2];
#pragma unroll
    for (int i = 0; i < SEEN; i++) {
        w[i][0] = w[i][1] = w[i][2] = w[i][3] = 0;
        if (seen[i]) {
            if constexpr (LEVEL == 1) {
                dot_pair8<D>(w[i], x.q, keys + at[i] * 2 * D, l);
            } else {
                uint32_t key[D / 8];
                load_key<D>(key, keys + at[i] * 2 * D, l.key);
                dot8<D>(w[i], x.q, key);
            }
        }
        if (!PLAIN) {
            const float *c = (LEVEL == 1 ? sh.n : sh.n2) + at[i] + 2 * x.t;
            n[i][0] = LEVEL == 1 ? c[0] + c[1] : c[0];
            n[i][1] = LEVEL == 1 ? c[8] + c[9] : c[1];
            weigh(w[i], n[i]);
        }
        hide(w[i], !seen[i], !seen[i]);
    }
    /* level 1 is the sum of rows, level 2 as it lies in towers */
    float f = PLAIN ? a.scale / (LEVEL == 1 ? 2 : 4 * unit_of(2)) : a.scale, factor[2] = {f, f};
    soften<SEEN, D>(w, s, factor, HALVING && LEVEL == 2 ? 2 : 0);
    count<SEEN, PLAIN>(s, w, n, LEVEL == 1 ? 2 : 4 * unit_of(2));
#pragma unroll
    for (int i = 0; i < SEEN; i++) {
        if (!seen[i]) continue;
        if constexpr (LEVEL == 1)
            add_pairs8<D>(s.o, w[i], values + at[i] * 2 * D, l);
        else
            add_values8<D>(s.o, w[i], values + at[i] * 2 * D, l);
    }
}

template <int D, int PLAIN, int CAUSAL, int INNER>
static __device__ __forceinline__ void attend_tile(tile<D> &x, const shared_rows<D> &sh,
                                                   const fine_args &f, const place &p,
                                                   const view &rows0, const lanes<D> &l, int head) {
    const hti_hier_args &a = f.h;
    float n[2]; /* valid rows: 0 or 1 */
    int row = x.first + x.g;
    const element *from = rows0.data + (int64_t)row * rows0.stride;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        n[h] = PLAIN ? 1 : count_of(a, p, rows0, row + 8 * h);
        load_row<D>(x.q, h, from + 8 * h * rows0.stride, x.t, n[h] > 0, a.zero);
    }
    state<D> s;
    clear(s);
    attend_far<D, CAUSAL>(s, x, f, p);
    attend_near<D, PLAIN, CAUSAL, INNER, 2>(s, x, sh, a, p, l);
    attend_near<D, PLAIN, CAUSAL, INNER, 1>(s, x, sh, a, p, l);
    attend_level0<D, PLAIN, CAUSAL, INNER>(s, sh, a, p, x.q, l, x.j, x.warp, x.g, x.t);
    store_tile<D>(s, a, p, n, x.first, head, x.g, x.t);
}

template <int D, int CAUSAL>
__global__ void __launch_bounds__(THREADS, D <= 64 ? 2 : 1)
    fine_forward(const __grid_constant__ fine_args f) {
    extern __shared__ __align__(128) char shared_bytes[];
    shared_rows<D> &sh = *(shared_rows<D> *)shared_bytes;
    const hti_hier_args &a = f.h;
    int lane = threadIdx.x % 32, head = gridDim.x - 1 - blockIdx.x;
    tile<D> x;
    x.warp = warp_index(), x.head = head / a.group, x.g = lane >> 2, x.t = lane & 3;
    place p;
    /* backwards: what coarsening read last may still be in the L2 cache */
    if (!find_place(p, a, gridDim.y - 1 - blockIdx.y, gridDim.z - 1 - blockIdx.z, 0, CHUNK)) return;
    view k = view_of<1>(a, p, a.k, a.tk, a.nk, a.key_mask, x.head, D);
    view v = view_of<1>(a, p, a.v, a.tv, a.nk, a.key_mask, x.head, D);
    view rows0 = view_of<1>(a, p, a.q, a.tq, a.nq, a.query_mask, head, D);
    int inner = p.first >= FAR && p.first + CHUNK + FAR <= p.length && !a.key_mask && !a.query_mask;
    load_chunk(sh, p, k, v);
    if (!inner) load_counts(sh, a, p, k);
    if (p.levels > 2) build_far(sh, p, k, v);
    copy_async_wait();
    __syncthreads();
    if (p.levels > 2) build_near(sh);
    __syncthreads();
    lanes<D> l;
    find_lanes(l, lane);
#pragma unroll 1
    for (x.j = 0; x.j < 2; x.j++) {
        x.first = p.first + 32 * x.warp + 16 * x.j;
        if (x.first >= p.rows) return;
        if (inner)
            attend_tile<D, 1, CAUSAL, 1>(x, sh, f, p, rows0, l, head);
        else
            attend_tile<D, 0, CAUSAL, 0>(x, sh, f, p, rows0, l, head);
    }
}

/* ---- host ---- */

static hti_carver carver_at(void *base) {
    hti_carver c = {(char *)(((uintptr_t)base + 255) / 256 * 256), 0};
    return c;
}

/* Measures with base NULL. Equal lengths round up once per sequence that has a level, and such a
 * sequence is longer than a block of it: no more than twice the blocks. */
static size_t carve(fine_args *f, void *base, int dim) {
    hti_carver c = carver_at(base);
    f->h.cu = c.take<int32_t>(f->h.sequences + 1);
    for (int l = LOWEST; l < f->levels; l++) {
        f->blocks[l] = 2 * (f->h.rows >> (l + 4)) + 2;
        f->k[l] = c.take<element>(f->h.kv_heads * f->blocks[l] * 16 * dim);
        f->v[l] = c.take<element>(f->h.kv_heads * f->blocks[l] * 16 * dim);
        f->n[l] = c.take<float>(f->blocks[l] * 16);
    }
    return c.used + 256; /* base may need rounding up */
}

size_t hti_fine_scratch(const ht_attention_desc *d) {
    fine_args f = {};
    hti_hier_most(&f.h, d);
    f.levels = hti_levels(d->max_length, 16);
    return carve(&f, nullptr, (int)d->head_dim);
}

template <int D> static ht_status run_forward(ht_context *ctx, fine_args &f) {
    int planes = 2 * f.h.kv_heads;
    if (f.levels > LOWEST) {
        size_t shared = 2 * COARSE3 * (D + 1) * sizeof(float);
        dim3 grid = grid_heads(f.h, 0, COARSE_ROWS, planes);
        TRY(hti_cuda_launch(ctx, fine_coarsen<D>, "fine_coarsen", grid, COARSE_THREADS, shared, f));
    }
    for (f.level = TOP + 1; f.level < f.levels; f.level++) {
        dim3 grid = grid_heads(f.h, f.level, 16, planes);
        TRY(hti_cuda_launch(ctx, fine_coarsen_up<D>, "fine_coarsen_up", grid, COARSE_THREADS, 0,
                            f));
    }
    return hti_cuda_launch(ctx, f.h.causal ? fine_forward<D, 1> : fine_forward<D, 0>,
                           "fine_forward", grid_heads(f.h, 0, CHUNK, f.h.q_heads), THREADS,
                           sizeof(shared_rows<D>), f);
}

ht_status hti_fine_forward(ht_context *ctx, const hti_attention_call *c) {
    int dim = (int)c->desc->head_dim;
    fine_args f = {};
    hti_hier_set(&f.h, c);
    hti_hier_set_stage(&f.h, 0);
    f.levels = hti_levels(c->length, 16);
    f.h.saved = (float *)c->saved;
    carve(&f, c->scratch, dim);
    if (c->cu_seqlens)
        TRY(hti_cuda_upload(ctx, (int32_t *)f.h.cu, c->cu_seqlens, c->sequences + 1));
    else
        f.h.cu = nullptr;
    if (hti_fine_wide_takes(ctx, f)) return hti_fine_wide(ctx, f);
    switch (dim) {
    case 16: return run_forward<16>(ctx, f);
    case 32: return run_forward<32>(ctx, f);
    case 64: return run_forward<64>(ctx, f);
    default: return run_forward<128>(ctx, f);
    }
}

} // namespace HTI_KERNELS
