/*
 * Generic forward kernel: every kind, mode and shape.
 *
 * mean and first: one launch over all coarse levels leaves (max, sum, numerator) of every coarse
 * query in `part`; the launch over level 0 then merges what the clusters above a row left. fine:
 * each row walks over all levels itself. full and local are level 0 alone. One running maximum
 * per row, as in FlashAttention.
 */
#include "cuda/generic/tile.h"

/* Softmax over what a row has seen so far: numerator / sum of exp(s - max). `sum` is this lane's
 * share. */
template <int NC> struct softmax { float max[PER], sum[PER], z[PER][NC]; };

struct forward_shared {
    float *q, *k, *v, *n;
    float4 *weights; /* [WARPS][other], a component per own row */
    int bytes;
};

HTI_FN forward_shared forward_layout(float *base, int head_dim, int value_dim, int other) {
    forward_shared s;
    int ds = tile_stride(head_dim), vs = tile_stride(value_dim), used = 0;
    s.weights = (float4 *)(base + used), used += 4 * WARPS * other;
    s.q = base + used, used += OWN * ds;
    s.k = base + used, used += other * ds;
    s.v = base + used, used += other * vs;
    s.n = base + used, used += other;
    s.bytes = used * (int)sizeof(float);
    return s;
}

/* One tile of keys is in shared memory: scores, weights, numerators of this warp's rows. c: own
 * index of the warp's first row; shift: from own index to query cluster. */
template <int NC>
DEVICE void attend_tile(softmax<NC> &state, const hti_cuda_args &a, const place &p,
                        const forward_shared &s, const reach (&r)[PER], int head, int level,
                        int shift, int c, int j0) {
    int j = j0 + lane_id(), other = a.other;
    float dot[PER], weight[PER];
    float n = lane_id() < other ? s.n[lane_id()] : 0;
    dots(dot, s.q + warp_id() * PER * tile_stride(a.head_dim), s.k, a.head_dim, other);
    unsigned keeps = a.threshold ? keeps_of_queries(a, p, head, level, c, j0) : 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        bool sees = n > 0 && holds(r[i], j);
        float x = sees ? score_of(a, dot[i], head, j - ((c + i) >> shift)) : -INFINITY;
        float top = fmaxf(state.max[i], warp_max(x));
        float from = top == -INFINITY ? 0 : top;
        float fade = expf(state.max[i] - from);
        float w = sees ? n * expf(x - from) : 0;
        state.max[i] = top;
        state.sum[i] = state.sum[i] * fade + w;
        for (int y = 0; y < NC; y++) state.z[i][y] *= fade;
        if (a.threshold) w = keeps >> i & 1 ? w * a.keep : 0;
        weight[i] = w;
    }
    float4 *weights = s.weights + warp_id() * other;
    __syncwarp();
    if (lane_id() < other)
        weights[lane_id()] = make_float4(weight[0], weight[1], weight[2], weight[3]);
    __syncwarp();
    accumulate(state.z, weights, s.v, a.value_dim, other);
}

/* All keys that the tile's queries see at one level; the queries are in s.q. */
template <typename T, int NC>
DEVICE void attend_level(softmax<NC> &state, const hti_cuda_args &a, const place &p,
                         const forward_shared &s, int head, int level, int shift) {
    int own = lane_id() % OWN,
        rows = shift || level == 0 ? p.length : (int)hti_clusters(p.length, level);
    reach mine = {0, 0, 0, 0}, r[PER];
    if (p.first + own < rows) mine = keys_of(a, p.length, level, (p.first + own) >> shift);
    int lo, hi, kv_head = head / a.group;
    reach_of_tile(&lo, &hi, mine);
    for (int i = 0; i < PER; i++) r[i] = reach_of_row(mine, i);
    for (int j0 = lo; j0 < hi; j0 += a.other) {
        if (!__any_sync(ALL_LANES, touches(mine, j0, j0 + a.other))) continue;
        __syncthreads();
        load_keys<T>(s.k, a.other, a, p, kv_head, level, j0);
        load_values<T>(s.v, a.other, a, p, kv_head, level, j0);
        load_counts(s.n, a.other, a, p, level, j0);
        __syncthreads();
        attend_tile(state, a, p, s, r, head, level, shift, p.first + warp_id() * PER, j0);
    }
}

/* ---- what coarse rows leave, and how it comes down ---- */

/* (max, sum, z) of one row += another state; sum is a lane's share in both or whole in both */
template <int NC>
DEVICE void merge(float &max, float &sum, float (&z)[NC], float max2, float sum2,
                  const float (&z2)[NC]) {
    float top = fmaxf(max, max2), from = top == -INFINITY ? 0 : top;
    float x = expf(max - from), y = expf(max2 - from);
    max = top;
    sum = sum * x + sum2 * y;
    for (int c = 0; c < NC; c++) z[c] = z[c] * x + z2[c] * y;
}

template <int NC>
DEVICE void store_part(const softmax<NC> &state, const hti_cuda_args &a, const place &p, int head,
                       int level) {
    int64_t at = head * a.clusters + hti_cluster_at(a, p.start, level);
    int64_t clusters = hti_clusters(p.length, level);
    for (int i = 0; i < PER; i++) {
        int64_t c = p.first + warp_id() * PER + i;
        float sum = warp_sum(state.sum[i]);
        if (c >= clusters) continue;
        if (lane_id() == 0) a.part[2 * (at + c)] = state.max[i], a.part[2 * (at + c) + 1] = sum;
        for (int x = 0; x < NC; x++) {
            int column = lane_id() + 32 * x;
            if (column < a.value_dim) a.partz[(at + c) * a.value_dim + column] = state.z[i][x];
        }
    }
}

/* Merges cluster c of a level into a state. The sum belongs to one lane: lane 0. */
template <int NC>
DEVICE void merge_part(float &max, float &sum, float (&z)[NC], const hti_cuda_args &a, int64_t at,
                       int64_t c) {
    float z2[NC];
    for (int x = 0; x < NC; x++) {
        int column = min(lane_id() + 32 * x, a.value_dim - 1);
        z2[x] = a.partz[(at + c) * a.value_dim + column];
    }
    merge(max, sum, z, a.part[2 * (at + c)], lane_id() == 0 ? a.part[2 * (at + c) + 1] : 0, z2);
}

/* The warp's four rows share their clusters from level 2 on, two by two at level 1. */
template <int NC>
DEVICE void merge_levels(softmax<NC> &state, const hti_cuda_args &a, const place &p, int head) {
    int row = p.first + warp_id() * PER;
    if (row >= p.length) return;
    int levels = levels_of(a, p.length);
    float max = -INFINITY, sum = 0, z[NC];
    for (int x = 0; x < NC; x++) z[x] = 0;
    for (int level = levels - 1; level >= 2; level--)
        merge_part(max, sum, z, a, head * a.clusters + hti_cluster_at(a, p.start, level),
                   row >> level);
    int64_t at = levels > 1 ? head * a.clusters + hti_cluster_at(a, p.start, 1) : 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        merge(state.max[i], state.sum[i], state.z[i], max, sum, z);
        if (levels > 1 && row + i < p.length)
            merge_part(state.max[i], state.sum[i], state.z[i], a, at, (row + i) >> 1);
    }
}

template <typename T, int NC>
DEVICE void store_rows(const softmax<NC> &state, const hti_cuda_args &a, const place &p, int head) {
    for (int i = 0; i < PER; i++) {
        int row = p.first + warp_id() * PER + i;
        float sum = warp_sum(state.sum[i]);
        if (row >= p.length) continue;
        bool seen = sum != 0 && takes_part(a.query_mask, p, row);
        float inverse = seen ? 1 / sum : 0, lse = seen ? state.max[i] + logf(sum) : -INFINITY;
        T *z = tensor_row<T>(a.out, a, p, head, row);
        for (int x = 0; x < NC; x++) {
            int column = lane_id() + 32 * x;
            if (column < a.value_dim) put(z + column, seen ? state.z[i][x] * inverse : 0);
        }
        if (lane_id() != 0) continue;
        if (a.saved) a.saved[head * a.rows + p.start + row] = lse;
        if (a.lse.data) *tensor_row<float>(a.lse, a, p, head, row) = lse;
    }
}

/* ---- the kernel ---- */

extern __shared__ float4 hti_shared[];

template <typename T, int NC>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(const __grid_constant__ hti_cuda_args a) {
    forward_shared s = forward_layout((float *)hti_shared, a.head_dim, a.value_dim, a.other);
    bool fine = a.query == HT_QUERY_FINE;
    for (int64_t w = blockIdx.x; w < a.work; w += gridDim.x) {
        int head = (int)(w % a.q_heads);
        int64_t t = w / a.q_heads;
        int level = a.coarse ? find_level(a, &t) : 0;
        place p;
        if (!find_place(&p, a, level, OWN, t)) continue;
        softmax<NC> state;
        for (int i = 0; i < PER; i++) {
            state.max[i] = -INFINITY, state.sum[i] = 0;
            for (int x = 0; x < NC; x++) state.z[i][x] = 0;
        }
        __syncthreads();
        load_queries<T>(s.q, OWN, a, p, head, level, p.first);
        attend_level<T>(state, a, p, s, head, level, 0);
        if (a.coarse) {
            store_part(state, a, p, head, level);
            continue;
        }
        if (fine && a.turn &&
            levels_of(a, p.length) > 1) { /* coarse levels see the unturned query */
            __syncthreads();
            load_queries<T>(s.q, OWN, a, p, head, 1, p.first);
        }
        for (int l = 1; fine && l < levels_of(a, p.length); l++)
            attend_level<T>(state, a, p, s, head, l, l);
        if (!fine) merge_levels(state, a, p, head);
        store_rows<T>(state, a, p, head);
    }
}

/* ---- launching ---- */

size_t hti_generic_forward_shared(const hti_cuda_args &a) {
    return (size_t)forward_layout(NULL, a.head_dim, a.value_dim, a.other).bytes;
}

template <typename T> static ht_status launch(const ht_context *ctx, const hti_cuda_args &a) {
    unsigned grid = (unsigned)(a.work < INT32_MAX ? a.work : INT32_MAX);
    size_t shared = hti_generic_forward_shared(a);
    const char *name = "running the generic forward kernel";
    if (a.value_dim <= 64)
        return hti_cuda_launch(ctx, forward_kernel<T, 2>, name, dim3(grid), THREADS, shared, a);
    return hti_cuda_launch(ctx, forward_kernel<T, 8>, name, dim3(grid), THREADS, shared, a);
}

ht_status hti_generic_forward(const ht_context *ctx, const hti_cuda_args &args, ht_dtype dtype) {
    hti_cuda_args a = args;
    auto run = [&](auto x) { return launch<decltype(x)>(ctx, a); };
    a.other = 32;
    if (hti_generic_forward_shared(a) > (size_t)hti_cuda_of(ctx)->shared_bytes) a.other = 16;
    if (a.levels > 1 && a.query != HT_QUERY_FINE) {
        a.coarse = 1;
        a.work = 0;
        for (int l = 1; l < a.levels; l++) a.work += a.level_work[l] = tiles_of(a, l, OWN);
        a.work *= a.q_heads;
        TRY(hti_by_dtype(dtype, run));
    }
    a.coarse = 0;
    a.work = tiles_of(a, 0, OWN) * a.q_heads;
    return hti_by_dtype(dtype, run);
}
