/*
 * Sums over rows in two stages: thread blocks add up runs of rows into partial sums, then one
 * kernel adds the partial sums in a fixed order.
 */
#include "cuda/model.h"

/* ---- second stage ---- */

enum { COLUMNS = 32, PARTS = 32 }; /* of a thread block */

struct parts_args {
    float *out;
    const float *partial;
    int64_t parts, width, stride;
};

static __global__ void __launch_bounds__(COLUMNS *PARTS) add_parts(const parts_args a) {
    __shared__ float sums[PARTS][COLUMNS + 1];
    int x = threadIdx.x % COLUMNS, y = threadIdx.x / COLUMNS;
    int64_t c = (int64_t)blockIdx.x * COLUMNS + x;
    float sum = 0;
    if (c < a.width)
        for (int64_t p = y; p < a.parts; p += PARTS) sum += a.partial[p * a.stride + c];
    sums[y][x] = sum;
    __syncthreads();
    if (y || c >= a.width) return;
    for (int i = 1; i < PARTS; i++) sum += sums[i][x];
    a.out[c] += sum;
}

ht_status hti_cuda_add_parts(const ht_context *ctx, float *out, const float *partial, int64_t parts,
                             int64_t width, int64_t stride) {
    parts_args a = {out, partial, parts, width, stride};
    return hti_cuda_launch(ctx, add_parts, "adding up partial sums",
                           dim3((unsigned)hti_ceil(width, COLUMNS)), COLUMNS * PARTS, 0, a);
}

/* ---- first stage: column sums ---- */

enum { THREADS = 256 };

struct column_args {
    const void *x;
    float *partial; /* [gridDim.y, width] */
    int64_t rows, width;
    int across; /* threads side by side, a power of two; the others take further rows */
};

template <typename T, int N> static __global__ void column_sums(const column_args a) {
    __shared__ float sums[THREADS * N];
    int x = threadIdx.x % a.across, y = threadIdx.x / a.across, down = THREADS / a.across;
    int64_t c = ((int64_t)blockIdx.x * a.across + x) * N;
    float sum[N] = {0};
    if (c < a.width)
#pragma unroll 4
        for (int64_t r = (int64_t)blockIdx.y * down + y; r < a.rows;
             r += (int64_t)gridDim.y * down) {
            float v[N];
            load<N>(v, (const T *)a.x + r * a.width + c);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += v[i];
        }
#pragma unroll
    for (int i = 0; i < N; i++) sums[(y * a.across + x) * N + i] = sum[i];
    __syncthreads();
    int columns = a.across * N;
    for (int i = threadIdx.x; i < columns; i += THREADS) {
        int64_t at = (int64_t)blockIdx.x * columns + i;
        if (at >= a.width) continue;
        float all = 0;
        for (int k = 0; k < down; k++) all += sums[k * columns + i];
        a.partial[blockIdx.y * a.width + at] = all;
    }
}

template <typename T, int N>
static ht_status run_column_sums(const ht_context *ctx, float *out, const void *x, int64_t rows,
                                 int64_t width) {
    column_args a = {x, hti_model_of(ctx)->sums, rows, width, 1};
    int64_t vectors = hti_ceil(width, N);
    while (a.across < 32 && a.across < vectors) a.across *= 2;
    int64_t strips = hti_ceil(vectors, a.across);
    int64_t chunks = hti_ceil(8 * hti_cuda_of(ctx)->processors, strips);
    int64_t room = HTI_SUMS_BYTES / (int64_t)sizeof(float) / width;
    int64_t needed = hti_ceil(rows, 4 * (THREADS / a.across)); /* four rows a thread, or more */
    if (chunks > needed) chunks = needed;
    if (chunks > room) chunks = room;
    if (chunks < 1) chunks = 1;
    TRY(hti_cuda_launch(ctx, column_sums<T, N>, "adding up columns",
                        dim3((unsigned)strips, (unsigned)chunks), THREADS, 0, a));
    return hti_cuda_add_parts(ctx, out, a.partial, chunks, width, width);
}

ht_status hti_cuda_column_sums(const ht_context *ctx, float *sums, const void *x, int64_t rows,
                               int64_t width, ht_dtype dtype) {
    int wide = hti_wide_rows(width, hti_bytes(dtype), x);
    return HTI_BY_TYPE(run_column_sums, dtype, wide, ctx, sums, x, rows, width);
}
