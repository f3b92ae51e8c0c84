/*
 * Opened clusters, backward: any shape; no float atomics, the same bits every time.
 *
 *     P = n exp(s - lse)   ds = P (r <G, v> - h)   dV~ += r P G   dq += ds K~   dK~ += ds q
 *
 * The choice is a constant, and is made again from the same numbers. dq: a warp per row walks as
 * forward does. dk and dv: from the top level down all rows choose at that level, what they opened
 * is sorted by cluster (sort.cu), and a warp per cluster goes over the rows that have it as a
 * candidate, those that meet it and those that opened its parent, less those that opened it; what
 * was opened for good does the same with its rows. Level 0 comes last and takes everything in.
 */
#include "cuda/open/walk.h"

extern __shared__ float4 hti_shared[];

/* ---- dq ---- */

template <typename T> DEVICE void load_row(const hti_cuda_args &a, const row_of &r) {
    const T *q = tensor_row<const T>(a.q, a, r.p, r.head, r.row);
    __syncwarp();
    load_one(r.own.q, q, a.head_dim);
    if (a.turn) load_one_turned(r.own.turned, a, q, r.row);
    load_one(r.own.g, tensor_row<const T>(a.dout, a, r.p, r.head, r.row), a.value_dim);
    __syncwarp();
}

/* Turns sums of position t back; `room` holds a row. */
template <int NC>
DEVICE void turn_row_back(float (&sums)[NC], float *room, const hti_cuda_args &a, int64_t t) {
    int half = a.head_dim / 2;
    __syncwarp();
    for (int x = 0; x < NC; x++)
        if (lane_id() + 32 * x < a.head_dim) room[lane_id() + 32 * x] = sums[x];
    __syncwarp();
    for (int x = 0; x < NC; x++) {
        int column = lane_id() + 32 * x, k = column < half ? column : column - half;
        if (column >= 2 * half) continue;
        const float *angle = a.turn + (t * half + k) * 2;
        float other = room[column < half ? column + half : k];
        sums[x] = sums[x] * angle[0] + (column < half ? other : -other) * angle[1];
    }
    __syncwarp();
}

template <typename T, int NC>
DEVICE void store_sums(const ht_tensor &t, const float (&sums)[NC], float factor, int dim, int head,
                       const hti_cuda_args &a, const place &p, int row) {
    T *to = tensor_row<T>(t, a, p, head, row);
    for (int x = 0; x < NC; x++) {
        int column = lane_id() + 32 * x;
        if (column < dim) put(to + column, factor * sums[x]);
    }
}

/* A grid of one warp blocks for a bias gradient: a block keeps its head and its table. */
template <typename T, int NC>
static __global__ void __launch_bounds__(32 * HTI_OPEN_WARPS)
    dq_kernel(const __grid_constant__ hti_open_args o) {
    const hti_cuda_args &a = o.a;
    row_of r;
    r.own = own_layout((float *)hti_shared, a);
    int warps = (int)blockDim.x / 32, warp = (int)blockIdx.x * warps + warp_id();
    uint32_t *order = o.order + (int64_t)warp * o.most;
    int *lists = o.lists + (int64_t)warp * 2 * o.open;
    gathered<NC> f;
    f.table = a.dbias ? a.bias_part + (int64_t)warp * (4 * a.block - 1) : NULL;
    for (int64_t w = warp; w < a.rows * a.q_heads; w += (int64_t)gridDim.x * warps) {
        r.head = (int)(w % a.q_heads), r.kv_head = r.head / a.group;
        r.p = place_of_row(a, w / a.q_heads);
        r.row = r.p.first;
        f.m = a.saved[r.head * a.rows + r.p.start + r.row];
        for (int x = 0; x < NC; x++) f.dq[x] = 0;
        if (f.m != -INFINITY) {
            f.h = a.h[r.head * a.rows + r.p.start + r.row];
            load_row<T>(a, r);
            take_near<T>(f, o, r);
            if (a.turn) turn_row_back(f.dq, r.own.turned, a, r.row);
            take_levels<T>(f, o, r, order, lists);
        }
        store_sums<T>(a.dq, f.dq, a.scale, a.head_dim, r.head, a, r.p, r.row);
    }
}

/* ---- the choice of one level, written down ---- */

template <typename T>
static __global__ void __launch_bounds__(32 * HTI_OPEN_WARPS)
    choose_kernel(const __grid_constant__ hti_open_args o) {
    const hti_cuda_args &a = o.a;
    row_of r;
    r.own = own_layout((float *)hti_shared, a);
    int warp = (int)blockIdx.x * HTI_OPEN_WARPS + warp_id();
    uint32_t *order = o.order + (int64_t)warp * o.most;
    for (int64_t w = warp; w < a.rows * a.q_heads; w += o.warps) {
        r.head = (int)(w % a.q_heads), r.kv_head = r.head / a.group;
        r.p = place_of_row(a, w / a.q_heads);
        r.row = r.p.first;
        int64_t at = r.head * a.rows + r.p.start + r.row;
        int count = 0;
        int levels = levels_of(a, r.p.length);
        if (a.saved[at] != -INFINITY && o.level < levels) {
            load_row<T>(a, r);
            bool above = o.level >= o.leaf_level && o.level + 1 < levels;
            int opened = above ? o.above.count[at] : 0;
            queue u = queue_of(a, r.p, o.level, r.row, o.above.list + at * o.open, opened);
            verdict v = settle<T>(o, r.p, r.own, r.head, o.level, r.row, u, order);
            for (int x0 = 0; x0 < u.count; x0 += 32) {
                int x = x0 + lane_id();
                uint32_t mine = x < u.count ? order[x] : 0;
                bool yes = is_opened(&v, mine);
                count = append(o.now.list + at * o.open, count, yes, yes ? candidate(u, x) : 0);
            }
        }
        if (lane_id() == 0) o.now.count[at] = count;
    }
}

/* ---- dk and dv ---- */

/* A key or cluster c of a level and the sums of its gradients; own.q, own.turned, own.g are its
 * key, the key turned, its value. */
template <int NC> struct received {
    place p;
    own_shared own;
    int kv_head, level, near, c;
    float n, dk[NC], dv[NC];
};

/* Row `row` (if on) of a head as the partner of this lane. */
template <typename T, int NC>
DEVICE void take_row(received<NC> &f, const hti_cuda_args &a, int head, bool on, int row) {
    float weight = 0, ds = 0;
    int64_t at = head * a.rows + f.p.start + row;
    if (on) on = a.saved[at] != -INFINITY;
    if (on) {
        const T *q = tensor_row<const T>(a.q, a, f.p, head, row);
        const T *g = tensor_row<const T>(a.dout, a, f.p, head, row);
        bool turned = f.near && a.turn;
        float dot = turned ? dot_turned(a, f.own.turned, q, row) : dot_row(f.own.q, q, a.head_dim);
        float x = score_of(a, dot, head, f.c - (row >> f.level));
        float keep = keep_of(a, f.p, head, f.level, row, f.c);
        float dp = keep != 0 ? keep * dot_row(f.own.g, g, a.value_dim) : 0;
        weight = f.n * expf(x - a.saved[at]);
        ds = weight * (dp - a.h[at]);
        weight *= keep;
    }
    __syncwarp();
    f.own.weight[lane_id()] = weight;
    f.own.ds[lane_id()] = ds;
    f.own.who[lane_id()] = row;
    __syncwarp();
    add_rows<T>(f.dv, f.own.weight, f.own.who, a.value_dim,
                [&](int i) { return (const T *)tensor_row<const T>(a.dout, a, f.p, head, i); });
    for (int j = 0; j < 32; j++) {
        float w = f.own.ds[j];
        if (w == 0) continue;
        int i = f.own.who[j];
        const T *q = tensor_row<const T>(a.q, a, f.p, head, i);
        for (int x = 0; x < NC; x++) {
            int column = min(lane_id() + 32 * x, a.head_dim - 1);
            f.dk[x] += w * (f.near && a.turn ? turned_at(a, q, i, column) : to_float(q[column]));
        }
    }
}

/* Rows of a sequence that opened a cluster, in order. */
struct openers {
    const int *row;
    int count;
};

DEVICE openers openers_of(const hti_open_args &o, const hti_opened &list, int level, int head,
                          const place &p, int c) {
    int64_t at = hti_cluster_at(o.a, p.start, level) - o.a.base[level] + c;
    const int *first = list.first + head * o.stride + at;
    return {list.row + (int64_t)head * o.a.rows * o.open + first[0], first[1] - first[0]};
}

DEVICE bool holds(const openers &list, int row) {
    int low = 0, high = list.count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (list.row[middle] < row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < list.count && list.row[low] == row;
}

/* Rows [lo, hi), or those of a list, but for those that opened the cluster itself. */
template <typename T, int NC>
DEVICE void take_range(received<NC> &f, const hti_cuda_args &a, int head, int lo, int hi,
                       const openers &less) {
    for (int64_t i0 = lo; i0 < hi; i0 += 32) {
        int i = (int)min(i0 + lane_id(), (int64_t)hi);
        take_row<T>(f, a, head, i < hi && !holds(less, i), i);
    }
}

template <typename T, int NC>
DEVICE void take_list(received<NC> &f, const hti_cuda_args &a, int head, const openers &list,
                      const openers &less) {
    for (int i0 = 0; i0 < list.count; i0 += 32) {
        int x = i0 + lane_id(), i = x < list.count ? list.row[x] : 0;
        take_row<T>(f, a, head, x < list.count && !holds(less, i), i);
    }
}

template <typename S, int NC>
DEVICE void begin(received<NC> &f, const hti_cuda_args &a, const S *key, const S *value) {
    __syncwarp();
    load_one(f.own.q, key, a.head_dim);
    if (f.near && a.turn) load_one_turned(f.own.turned, a, key, f.c);
    load_one(f.own.g, value, a.value_dim);
    __syncwarp();
    for (int x = 0; x < NC; x++) f.dk[x] = f.dv[x] = 0;
}

template <int NC> DEVICE void put_sums(float *to, const float (&sums)[NC], int dim, bool add) {
    for (int x = 0; x < NC; x++) {
        int column = lane_id() + 32 * x;
        if (column < dim) to[column] = (add ? to[column] : 0) + sums[x];
    }
}

/* A cluster of this launch's level: all rows that take it as a cluster. */
template <typename T, int NC> DEVICE void gather_cluster(received<NC> &f, const hti_open_args &o) {
    const hti_cuda_args &a = o.a;
    side s = side_of(a, f.p, f.kv_head, f.level, 0);
    f.n = key_count(a, f.p, f.level, s.at, f.c);
    begin(f, a, cluster_key(a, s, f.c), cluster_value(a, s, f.c));
    reach met = queries_of(a, f.p.length, f.level, f.c);
    bool above = f.level >= o.leaf_level && f.level + 1 < levels_of(a, f.p.length);
    for (int head = f.kv_head * a.group; f.n > 0 && head < (f.kv_head + 1) * a.group; head++) {
        openers less = openers_of(o, o.now, f.level, head, f.p, f.c);
        take_range<T>(f, a, head, met.lo0, met.hi0, less);
        take_range<T>(f, a, head, met.lo1, met.hi1, less);
        if (above)
            take_list<T>(f, a, head, openers_of(o, o.above, f.level + 1, head, f.p, f.c / 2), less);
    }
    int64_t at = f.kv_head * a.clusters + s.at + f.c;
    put_sums(a.dkt + at * a.head_dim, f.dk, a.head_dim, false);
    put_sums(a.dvt + at * a.value_dim, f.dv, a.value_dim, false);
}

/* The same cluster's rows, for all that opened it for good. */
template <typename T, int NC>
DEVICE void gather_rows(received<NC> &f, const hti_open_args &o, int cluster, int level) {
    const hti_cuda_args &a = o.a;
    int64_t end = min(((int64_t)cluster + 1) << level, (int64_t)f.p.length);
    for (int64_t j = (int64_t)cluster << level; j < end; j++) {
        if (!takes_part(a.key_mask, f.p, (int)j)) continue;
        f.c = (int)j, f.n = 1;
        begin(f, a, tensor_row<const T>(a.k, a, f.p, f.kv_head, j),
              tensor_row<const T>(a.v, a, f.p, f.kv_head, j));
        for (int head = f.kv_head * a.group; head < (f.kv_head + 1) * a.group; head++)
            take_list<T>(f, a, head, openers_of(o, o.now, level, head, f.p, cluster), {NULL, 0});
        int64_t at = f.kv_head * a.rows + f.p.start + j;
        put_sums(o.dk0 + at * a.head_dim, f.dk, a.head_dim, true);
        put_sums(o.dv0 + at * a.value_dim, f.dv, a.value_dim, true);
    }
}

template <typename T, int NC>
static __global__ void __launch_bounds__(32 * HTI_OPEN_WARPS)
    clusters_kernel(const __grid_constant__ hti_open_args o) {
    const hti_cuda_args &a = o.a;
    received<NC> f;
    f.own = own_layout((float *)hti_shared, a);
    int64_t warp = (int64_t)blockIdx.x * HTI_OPEN_WARPS + warp_id();
    for (int64_t w = warp; w < a.work; w += (int64_t)gridDim.x * HTI_OPEN_WARPS) {
        f.kv_head = (int)(w % a.kv_heads);
        if (!find_place(&f.p, a, o.level, 1, w / a.kv_heads)) continue;
        if (o.level >= levels_of(a, f.p.length)) continue;
        int cluster = f.p.first;
        f.level = o.level, f.near = 0, f.c = cluster;
        gather_cluster<T>(f, o);
        if (o.level > o.leaf_level) continue;
        f.level = 0;
        gather_rows<T>(f, o, cluster, o.level);
    }
}

/* Adds what the levels above left for row j, over their number of rows. */
template <int NC>
DEVICE void add_shares(float (&sums)[NC], const float *grads, int dim, const hti_cuda_args &a,
                       const place &p, int kv_head, int j) {
    for (int level = levels_of(a, p.length) - 1; level >= 1; level--) {
        int64_t at = hti_cluster_at(a, p.start, level) + (j >> level);
        const float *src = grads + (kv_head * a.clusters + at) * dim;
        float share = 1 / a.kn[at];
        for (int x = 0; x < NC; x++) sums[x] += share * src[min(lane_id() + 32 * x, dim - 1)];
    }
}

template <int NC> DEVICE void add_opened(float (&sums)[NC], const float *grads, int dim) {
    for (int x = 0; x < NC; x++) sums[x] += grads[min(lane_id() + 32 * x, dim - 1)];
}

template <typename T, int NC>
static __global__ void __launch_bounds__(32 * HTI_OPEN_WARPS)
    rows_kernel(const __grid_constant__ hti_open_args o) {
    const hti_cuda_args &a = o.a;
    received<NC> f;
    f.own = own_layout((float *)hti_shared, a);
    int64_t warp = (int64_t)blockIdx.x * HTI_OPEN_WARPS + warp_id();
    for (int64_t w = warp; w < a.rows * a.kv_heads; w += (int64_t)gridDim.x * HTI_OPEN_WARPS) {
        f.kv_head = (int)(w % a.kv_heads);
        f.p = place_of_row(a, w / a.kv_heads);
        f.level = 0, f.near = 1, f.c = f.p.first, f.n = 1;
        int j = f.c;
        for (int x = 0; x < NC; x++) f.dk[x] = f.dv[x] = 0;
        if (takes_part(a.key_mask, f.p, j)) {
            begin(f, a, tensor_row<const T>(a.k, a, f.p, f.kv_head, j),
                  tensor_row<const T>(a.v, a, f.p, f.kv_head, j));
            reach met = queries_of(a, f.p.length, 0, j);
            for (int head = f.kv_head * a.group; head < (f.kv_head + 1) * a.group; head++) {
                take_range<T>(f, a, head, met.lo0, met.hi0, {NULL, 0});
                take_range<T>(f, a, head, met.lo1, met.hi1, {NULL, 0});
            }
            if (a.turn) turn_row_back(f.dk, f.own.turned, a, j);
            int64_t at = f.kv_head * a.rows + f.p.start + j;
            if (a.levels > 1) add_opened(f.dk, o.dk0 + at * a.head_dim, a.head_dim);
            if (a.levels > 1) add_opened(f.dv, o.dv0 + at * a.value_dim, a.value_dim);
            add_shares(f.dk, a.dkt, a.head_dim, a, f.p, f.kv_head, j);
            add_shares(f.dv, a.dvt, a.value_dim, a, f.p, f.kv_head, j);
        }
        store_sums<T>(a.dk, f.dk, a.scale, a.head_dim, f.kv_head, a, f.p, j);
        store_sums<T>(a.dv, f.dv, 1, a.value_dim, f.kv_head, a, f.p, j);
    }
}

/* ---- launching ---- */

static dim3 grid_of(int64_t warps) {
    int64_t blocks = (warps + HTI_OPEN_WARPS - 1) / HTI_OPEN_WARPS;
    return dim3((unsigned)(blocks < 1 << 20 ? blocks : 1 << 20));
}

static size_t warp_bytes(const hti_cuda_args &a) {
    return sizeof(float) * (size_t)own_floats(a.head_dim, a.value_dim);
}

template <typename T, int NC>
static ht_status launch_dq(const ht_context *ctx, const hti_open_args &o) {
    const hti_cuda_args &a = o.a;
    const char *name = "running the opened kernel for dq";
    TRY(hti_bias_sums_clear(ctx, a));
    if (a.dbias) {
        dim3 grid((unsigned)(a.bias_parts * a.q_heads));
        TRY(hti_cuda_launch(ctx, dq_kernel<T, NC>, name, grid, 32, warp_bytes(a), o));
        return hti_bias_sums_add(ctx, a);
    }
    return hti_cuda_launch(ctx, dq_kernel<T, NC>, name, grid_of(o.warps), 32 * HTI_OPEN_WARPS,
                           HTI_OPEN_WARPS * warp_bytes(a), o);
}

/* One level of dk and dv. */
template <typename T, int NC>
static ht_status launch_level(const ht_context *ctx, hti_open_args o) {
    size_t shared = HTI_OPEN_WARPS * warp_bytes(o.a);
    int threads = 32 * HTI_OPEN_WARPS;
    TRY(hti_cuda_launch(ctx, choose_kernel<T>, "choosing again", grid_of(o.warps), threads, shared,
                        o));
    TRY(hti_open_invert(ctx, o));
    o.a.work = tiles_of(o.a, o.level, 1) * o.a.kv_heads;
    return hti_cuda_launch(ctx, clusters_kernel<T, NC>, "running the opened kernel for dk and dv",
                           grid_of(o.a.work), threads, shared, o);
}

template <typename T, int NC> static ht_status launch(const ht_context *ctx, hti_open_args o) {
    cudaStream_t stream = hti_cuda_of(ctx)->stream;
    size_t rows = sizeof(float) * (size_t)(o.a.kv_heads * o.a.rows);
    TRY((launch_dq<T, NC>(ctx, o)));
    if (o.a.levels > 1) {
        const char *doing = "clearing the sums of opened rows";
        CUDA_TRY(ctx, cudaMemsetAsync(o.dk0, 0, rows * (size_t)o.a.head_dim, stream), doing);
        CUDA_TRY(ctx, cudaMemsetAsync(o.dv0, 0, rows * (size_t)o.a.value_dim, stream), doing);
    }
    for (o.level = o.a.levels - 1; o.level > 0; o.level--) {
        TRY((launch_level<T, NC>(ctx, o)));
        hti_opened used = o.above;
        o.above = o.now, o.now = used;
    }
    return hti_cuda_launch(
        ctx, rows_kernel<T, NC>, "running the opened kernel for rows of dk and dv",
        grid_of(o.a.rows * o.a.kv_heads), 32 * HTI_OPEN_WARPS, HTI_OPEN_WARPS * warp_bytes(o.a), o);
}

ht_status hti_open_backward(const ht_context *ctx, const hti_open_args &o, ht_dtype dtype) {
    int narrow = o.a.head_dim <= 64 && o.a.value_dim <= 64;
    return hti_by_dtype(dtype, [&](auto x) {
        return narrow ? launch<decltype(x), 2>(ctx, o) : launch<decltype(x), 8>(ctx, o);
    });
}
