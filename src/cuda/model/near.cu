/*
 * Sums over neighbouring rows with weights per column, their gradients, and what decoding keeps.
 */
#include "cuda/model/model.h"

extern "C" {
#include "core/near.h"
}

enum { THREADS = 256, TAPS = 4 /* weights of a column that a thread sums at a time */ };

struct near_args {
    hti_near_call c;
    const void *from; /* x, or dy */
    void *to;         /* y, or dx */
    int back;         /* rows are looked at the other way */
    hti_columns at;   /* of the weights' gradient; partial [chunks, size * width] */
};

DEVICE hti_range rows_near(const hti_near_call &c, int64_t r) {
    int64_t s = c.sequence[r];
    if (c.mask && !c.mask[r]) return {r, r};
    return hti_near_rows(r, c.start[s], c.count[s], c.lead);
}

/* The row of `from` that tap k of row r looks at, or NULL. */
template <typename T>
DEVICE const T *row_near(const near_args &a, hti_range seen, int64_t r, int64_t k) {
    const hti_near_call &c = a.c;
    int64_t at = a.back ? r - (k - c.back) : r + k - c.back;
    if (seen.lo >= seen.hi || at >= seen.hi) return NULL;
    if (at < seen.lo) {
        if (!c.past) return NULL;
        int64_t most = c.size - 1, slot = c.slots[c.sequence[r]];
        return (const T *)c.past + (slot * most + most - (seen.lo - at)) * c.width;
    }
    return c.mask && !c.mask[at] ? NULL : (const T *)a.from + at * c.width;
}

/* One row's N columns a thread. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) sum_near(const near_args a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, vectors = a.c.width / N;
    if (i >= a.c.rows * vectors) return;
    int64_t r = i / vectors, c = i % vectors * N;
    hti_range seen = rows_near(a.c, r);
    float sum[N] = {0}, x[N], w[N];
    for (int64_t k = 0; k < a.c.size; k++) {
        const T *row = row_near<T>(a, seen, r, k);
        if (!row) continue;
        load<N>(x, row + c);
        load<N>(w, (const T *)a.c.w + k * a.c.width + c);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += w[j] * x[j];
    }
    store<N>((T *)a.to + r * a.c.width + c, sum);
}

template <typename T, int N> static ht_status run_sum(ht_context *ctx, const near_args &a) {
    int64_t blocks = hti_ceil(a.c.rows * (a.c.width / N), THREADS);
    return hti_cuda_launch(ctx, sum_near<T, N>, "adding neighbours", dim3((unsigned)blocks),
                           THREADS, 0, a);
}

/* The block's sums of one tap into its place of `partial`. */
template <int N> DEVICE void keep_tap(const near_args &a, int64_t k, const float *sum) {
    __shared__ float sums[HTI_COLUMN_THREADS * N];
    int columns = a.at.across * N, down = HTI_COLUMN_THREADS / a.at.across;
    __syncthreads(); /* the tap before may still be read */
#pragma unroll
    for (int i = 0; i < N; i++) sums[threadIdx.x * N + i] = sum[i];
    __syncthreads();
    for (int i = threadIdx.x; i < columns; i += HTI_COLUMN_THREADS) {
        int64_t at = (int64_t)blockIdx.x * columns + i;
        if (at >= a.c.width) continue;
        float all = 0;
        for (int j = 0; j < down; j++) all += sums[j * columns + i];
        a.at.partial[(blockIdx.y * a.c.size + k) * a.c.width + at] = all;
    }
}

/* Gradients of TAPS weights (z) of a strip of columns (x), over some of the rows (y). */
template <typename T, int N>
static __global__ void __launch_bounds__(HTI_COLUMN_THREADS) sum_weights(const near_args a) {
    int64_t c = column_of<N>(a.at), first = (int64_t)blockIdx.z * TAPS;
    float sum[TAPS][N] = {{0}}, d[N], x[N];
    if (c < a.c.width)
        for (int64_t r = row_of(a.at); r < a.c.rows; r += row_step(a.at)) {
            hti_range seen = rows_near(a.c, r);
            if (seen.lo >= seen.hi) continue;
            load<N>(d, (const T *)a.c.dy + r * a.c.width + c);
#pragma unroll
            for (int t = 0; t < TAPS; t++) {
                const T *row = first + t < a.c.size ? row_near<T>(a, seen, r, first + t) : NULL;
                if (!row) continue;
                load<N>(x, row + c);
#pragma unroll
                for (int j = 0; j < N; j++) sum[t][j] += d[j] * x[j];
            }
        }
#pragma unroll
    for (int t = 0; t < TAPS; t++)
        if (first + t < a.c.size) keep_tap<N>(a, first + t, sum[t]);
}

template <typename T, int N> static ht_status run_weights(ht_context *ctx, near_args a) {
    int64_t all = a.c.size * a.c.width, room = HTI_SUMS_BYTES / (int64_t)sizeof(float) / all;
    CHECK(ctx, room >= 1, HT_UNSUPPORTED, "%s: %lld neighbours of width %lld are too many",
          ctx->device, (long long)a.c.size, (long long)a.c.width);
    a.at = hti_columns_of(ctx, a.c.rows, a.c.width, N);
    if (a.at.chunks > room) a.at.chunks = room;
    dim3 grid((unsigned)a.at.strips, (unsigned)a.at.chunks, (unsigned)hti_ceil(a.c.size, TAPS));
    TRY(hti_cuda_launch(ctx, sum_weights<T, N>, "gradients of neighbours", grid, HTI_COLUMN_THREADS,
                        0, a));
    return hti_cuda_add_parts(ctx, (float *)a.c.dw, NULL, NULL, a.at.partial, a.at.chunks, all);
}

/* A column of a slot's past a thread: row i becomes what is n rows further on. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) keep_near(const hti_near_call c) {
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, most = c.size - 1;
    if (at >= c.sequences * c.width) return;
    int64_t s = at / c.width, column = at % c.width, n = c.count[s];
    T *past = (T *)c.past + c.slots[s] * most * c.width + column;
    const T *x = (const T *)c.x + c.start[s] * c.width + column;
    if (n <= 0) return;
    for (int64_t i = 0; i < most; i++)
        past[i * c.width] = i + n < most ? past[(i + n) * c.width] : x[(i + n - most) * c.width];
}

/* ---- entries ---- */

ht_status hti_cuda_near_forward(ht_context *ctx, const hti_near_call *c) {
    hti_cuda_scope scope(ctx);
    near_args a = {*c, c->x, c->y, 0, {}};
    int wide = hti_wide_rows(c->width, hti_bytes(c->dtype), c->x, c->y, c->w, c->past);
    return HTI_BY_TYPE(run_sum, c->dtype, wide, ctx, a);
}

ht_status hti_cuda_near_backward(ht_context *ctx, const hti_near_call *c) {
    hti_cuda_scope scope(ctx);
    near_args back = {*c, c->dy, c->dx, 1, {}}, there = {*c, c->x, NULL, 0, {}};
    int wide = hti_wide_rows(c->width, hti_bytes(c->dtype), c->x, c->dx, c->w, c->dy);
    TRY(HTI_BY_TYPE(run_sum, c->dtype, wide, ctx, back));
    return HTI_BY_TYPE(run_weights, c->dtype, wide, ctx, there);
}

ht_status hti_cuda_near_keep(ht_context *ctx, const hti_near_call *c) {
    hti_cuda_scope scope(ctx);
    int64_t blocks = hti_ceil(c->sequences * c->width, THREADS);
    return hti_cuda_launch(ctx, c->dtype == HT_BF16 ? keep_near<bf16> : keep_near<float>,
                           "keeping neighbours", dim3((unsigned)blocks), THREADS, 0, *c);
}
