/*
 * Opened clusters, forward: a warp per row and head, any shape.
 */
#include "cuda/open/walk.h"

extern __shared__ float4 hti_shared[];

template <typename T, int NC>
DEVICE void store_row(const found<NC> &f, const hti_cuda_args &a, const row_of &r) {
    float sum = warp_sum(f.sum);
    bool seen = sum != 0;
    float inverse = seen ? 1 / sum : 0, lse = seen ? f.max + logf(sum) : -INFINITY;
    T *z = tensor_row<T>(a.out, a, r.p, r.head, r.row);
    for (int x = 0; x < NC; x++) {
        int column = lane_id() + 32 * x;
        if (column < a.value_dim) put(z + column, seen ? f.z[x] * inverse : 0);
    }
    if (lane_id() != 0) return;
    if (a.saved) a.saved[r.head * a.rows + r.p.start + r.row] = lse;
    if (a.lse.data) *tensor_row<float>(a.lse, a, r.p, r.head, r.row) = lse;
}

template <typename T, int NC>
static __global__ void __launch_bounds__(32 * HTI_OPEN_WARPS)
    forward_kernel(const __grid_constant__ hti_open_args o) {
    const hti_cuda_args &a = o.a;
    row_of r;
    r.own = own_layout((float *)hti_shared, a);
    int warp = (int)blockIdx.x * HTI_OPEN_WARPS + warp_id();
    uint32_t *order = o.order + (int64_t)warp * o.most;
    int *lists = o.lists + (int64_t)warp * 2 * o.open;
    for (int64_t w = warp; w < a.rows * a.q_heads; w += o.warps) {
        r.head = (int)(w % a.q_heads), r.kv_head = r.head / a.group;
        r.p = place_of_row(a, w / a.q_heads);
        r.row = r.p.first;
        found<NC> f;
        f.max = -INFINITY, f.sum = 0;
        for (int x = 0; x < NC; x++) f.z[x] = 0;
        if (takes_part(a.query_mask, r.p, r.row)) {
            const T *q = tensor_row<const T>(a.q, a, r.p, r.head, r.row);
            __syncwarp();
            load_one(r.own.q, q, a.head_dim);
            if (a.turn) load_one_turned(r.own.turned, a, q, r.row);
            __syncwarp();
            take_near<T>(f, o, r);
            take_levels<T>(f, o, r, order, lists);
        }
        store_row<T>(f, a, r);
    }
}

template <typename T> static ht_status launch(const ht_context *ctx, const hti_open_args &o) {
    size_t shared =
        sizeof(float) * HTI_OPEN_WARPS * (size_t)own_floats(o.a.head_dim, o.a.value_dim);
    const char *name = "running the kernel that opens clusters";
    dim3 grid((unsigned)(o.warps / HTI_OPEN_WARPS));
    int threads = 32 * HTI_OPEN_WARPS;
    if (o.a.value_dim <= 64)
        return hti_cuda_launch(ctx, forward_kernel<T, 2>, name, grid, threads, shared, o);
    return hti_cuda_launch(ctx, forward_kernel<T, 8>, name, grid, threads, shared, o);
}

ht_status hti_open_forward(const ht_context *ctx, const hti_open_args &o, ht_dtype dtype) {
    return hti_by_dtype(dtype, [&](auto x) { return launch<decltype(x)>(ctx, o); });
}
