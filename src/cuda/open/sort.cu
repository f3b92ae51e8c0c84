/*
 * Opened clusters, backward: from what each row opened to the rows that opened a cluster. Counted,
 * placed with integer atomics in any order, then each cluster's rows are sorted, so that the result
 * does not depend on that order.
 */
#include "cuda/lane.h"
#include "cuda/open/open.h"

enum { SORT_THREADS = 128, SCAN_THREADS = 512, SCAN_WARPS = SCAN_THREADS / 32 };

DEVICE int64_t start_of_row(const hti_cuda_args &a, int64_t row) {
    if (!a.cu) return row / a.length * a.length;
    int low = 0, high = a.sequences;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (a.cu[middle] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return a.cu[low];
}

/* A thread per row and head: counts its clusters, or places itself in their lists. */
template <bool PLACE>
static __global__ void __launch_bounds__(SORT_THREADS)
    entries_kernel(const __grid_constant__ hti_open_args o) {
    const hti_cuda_args &a = o.a;
    int64_t i = (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x, head = i / a.rows;
    if (head >= a.q_heads) return;
    int count = o.now.count[i];
    if (count == 0) return;
    int64_t row = i % a.rows, start = start_of_row(a, row);
    int64_t at = head * o.stride + hti_cluster_at(a, start, o.level) - a.base[o.level];
    for (int x = 0; x < count; x++) {
        int place = atomicAdd(&o.cursor[at + o.now.list[i * o.open + x]], 1);
        if (PLACE) o.now.row[head * a.rows * o.open + place] = (int)(row - start);
    }
}

/* first = running sums of cursor, which becomes a copy of it. A block per head. */
static __global__ void __launch_bounds__(SCAN_THREADS)
    scan_kernel(const __grid_constant__ hti_open_args o) {
    static __shared__ int sums[SCAN_WARPS];
    int *count = o.cursor + blockIdx.x * o.stride, *first = o.now.first + blockIdx.x * o.stride;
    int64_t share = (o.stride + SCAN_THREADS - 1) / SCAN_THREADS, from = threadIdx.x * share;
    int64_t to = min(from + share, o.stride);
    int sum = 0, before = 0;
    for (int64_t x = from; x < to; x++) sum += count[x];
    int run = sum;
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(ALL_LANES, run, (unsigned)step);
        if (lane_id() >= step) run += other;
    }
    if (lane_id() == 31) sums[warp_id()] = run;
    __syncthreads();
    for (int w = 0; w < warp_id(); w++) before += sums[w];
    before += run - sum;
    for (int64_t x = from; x < to; x++) {
        int here = count[x];
        first[x] = count[x] = before;
        before += here;
    }
}

DEVICE void put_in_order(int *row, int low, int high) {
    int x = row[low], y = row[high];
    if (x > y) row[low] = y, row[high] = x;
}

/* A warp per cluster: bitonic, all comparisons upward, so that what lies beyond the end is as if it
 * were greatest. */
static __global__ void __launch_bounds__(SORT_THREADS)
    sort_kernel(const __grid_constant__ hti_open_args o) {
    int64_t warps = (int64_t)gridDim.x * (SORT_THREADS / 32), all = o.a.q_heads * (o.stride - 1);
    for (int64_t w = (int64_t)blockIdx.x * (SORT_THREADS / 32) + warp_id(); w < all; w += warps) {
        int64_t head = w / (o.stride - 1), c = w % (o.stride - 1);
        const int *first = o.now.first + head * o.stride + c;
        int *row = o.now.row + head * o.a.rows * o.open + first[0], n = first[1] - first[0];
        for (int64_t size = 2; size < 2 * (int64_t)n; size *= 2) {
            for (int64_t step = size / 2; step > 0; step /= 2) {
                for (int64_t i = lane_id(); i < n; i += 32) {
                    int64_t with = step == size / 2 ? i ^ (size - 1) : i ^ step;
                    if (with > i && with < n) put_in_order(row, (int)i, (int)with);
                }
                __syncwarp();
            }
        }
    }
}

ht_status hti_open_invert(const ht_context *ctx, const hti_open_args &o) {
    const char *name = "sorting opened clusters";
    int64_t entries = o.a.rows * o.a.q_heads, lists = o.a.q_heads * (o.stride - 1);
    dim3 grid((unsigned)((entries + SORT_THREADS - 1) / SORT_THREADS));
    int64_t blocks = (lists + SORT_THREADS / 32 - 1) / (SORT_THREADS / 32);
    dim3 sorts((unsigned)(blocks < 1 << 16 ? blocks : 1 << 16));
    CUDA_TRY(ctx,
             cudaMemsetAsync(o.cursor, 0, sizeof(int) * (size_t)(o.a.q_heads * o.stride),
                             hti_cuda_of(ctx)->stream),
             name);
    TRY(hti_cuda_launch(ctx, entries_kernel<false>, name, grid, SORT_THREADS, 0, o));
    TRY(hti_cuda_launch(ctx, scan_kernel, name, dim3((unsigned)o.a.q_heads), SCAN_THREADS, 0, o));
    TRY(hti_cuda_launch(ctx, entries_kernel<true>, name, grid, SORT_THREADS, 0, o));
    return hti_cuda_launch(ctx, sort_kernel, name, sorts, SORT_THREADS, 0, o);
}
