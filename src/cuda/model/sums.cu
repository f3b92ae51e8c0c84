/*
 * Sums over rows in two stages: thread blocks add up runs of rows into partial sums, then one
 * kernel adds the partial sums in a fixed order.
 */
#include "cuda/model/model.h"

/* ---- second stage ---- */

enum { COLUMNS = 32, PARTS = 32 }; /* of a thread block */

struct parts_args {
    float *out, *second, *third;
    const float *partial;
    int64_t parts, width, stride;
};

static __global__ void __launch_bounds__(COLUMNS *PARTS) add_parts(const parts_args a) {
    __shared__ float sums[PARTS][COLUMNS + 1];
    int x = threadIdx.x % COLUMNS, y = threadIdx.x / COLUMNS;
    int64_t c = (int64_t)blockIdx.x * COLUMNS + x, stride = a.stride;
    float sum = 0;
    if (c < stride)
        for (int64_t p = y; p < a.parts; p += PARTS) sum += a.partial[p * stride + c];
    sums[y][x] = sum;
    __syncthreads();
    if (y || c >= stride) return;
    for (int i = 1; i < PARTS; i++) sum += sums[i][x];
    float *to = c < a.width ? a.out : c < 2 * a.width ? a.second : a.third;
    to[c % a.width] += sum;
}

ht_status hti_cuda_add_parts(const ht_context *ctx, float *out, float *second, float *third,
                             const float *partial, int64_t parts, int64_t width) {
    int64_t columns = third ? 3 * width : second ? 2 * width : width;
    parts_args a = {out, second, third, partial, parts, width, columns};
    return hti_cuda_launch(ctx, add_parts, "adding up partial sums",
                           dim3((unsigned)hti_ceil(columns, COLUMNS)), COLUMNS * PARTS, 0, a);
}

/* ---- first stage: column sums ---- */

hti_columns hti_columns_of(const ht_context *ctx, int64_t rows, int64_t width, int n) {
    hti_columns c = {hti_model_of(ctx)->sums, rows, width, 1, 1, 1};
    int64_t vectors = hti_ceil(width, n);
    while (c.across < 32 && c.across < vectors) c.across *= 2;
    c.strips = hti_ceil(vectors, c.across);
    c.chunks = hti_ceil(8 * hti_cuda_of(ctx)->processors, c.strips);
    int64_t room = HTI_SUMS_BYTES / (int64_t)sizeof(float) / width;
    int64_t needed = hti_ceil(rows, 4 * (HTI_COLUMN_THREADS / c.across)); /* four rows a thread */
    if (c.chunks > needed) c.chunks = needed;
    if (c.chunks > room) c.chunks = room;
    if (c.chunks < 1) c.chunks = 1;
    return c;
}

ht_status hti_columns_add(const ht_context *ctx, float *sums, const hti_columns &c) {
    return hti_cuda_add_parts(ctx, sums, NULL, NULL, c.partial, c.chunks, c.width);
}

struct column_args {
    hti_columns at;
    const void *x;
};

template <typename T, int N>
static __global__ void __launch_bounds__(HTI_COLUMN_THREADS) column_sums(const column_args a) {
    int64_t c = column_of<N>(a.at);
    float sum[N] = {0};
    if (c < a.at.width)
#pragma unroll 4
        for (int64_t r = row_of(a.at); r < a.at.rows; r += row_step(a.at)) {
            float v[N];
            load<N>(v, (const T *)a.x + r * a.at.width + c);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += v[i];
        }
    keep_columns<N>(a.at, sum);
}

template <typename T, int N>
static ht_status run_column_sums(const ht_context *ctx, float *out, const void *x, int64_t rows,
                                 int64_t width) {
    column_args a = {hti_columns_of(ctx, rows, width, N), x};
    dim3 grid((unsigned)a.at.strips, (unsigned)a.at.chunks);
    TRY(hti_cuda_launch(ctx, column_sums<T, N>, "adding up columns", grid, HTI_COLUMN_THREADS, 0,
                        a));
    return hti_columns_add(ctx, out, a.at);
}

ht_status hti_cuda_column_sums(const ht_context *ctx, float *sums, const void *x, int64_t rows,
                               int64_t width, ht_dtype dtype) {
    int wide = hti_wide_rows(width, hti_bytes(dtype), x);
    return HTI_BY_TYPE(run_column_sums, dtype, wide, ctx, sums, x, rows, width);
}
