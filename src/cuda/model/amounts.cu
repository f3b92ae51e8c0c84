/*
 * Tables of vectors that follow from amounts: a number times a vector, plus another.
 */
#include "cuda/model/model.h"

extern "C" {
#include "core/amounts.h"
}

enum { COLUMNS_WIDE = 32, DEEP = 8, BLOCK_THREADS = COLUMNS_WIDE * DEEP };

template <typename T>
static __global__ void __launch_bounds__(BLOCK_THREADS) make_table(const hti_amounts_call a) {
    int64_t i = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (i >= a.vocab * a.width) return;
    int64_t c = i % a.width;
    float slope, shift;
    load<1>(&slope, (const T *)a.w + c);
    load<1>(&shift, (const T *)a.w + a.width + c);
    float x = (float)hti_amount(i / a.width) * slope + shift;
    store<1>((T *)a.table + i, &x);
}

/* COLUMNS_WIDE columns a block, in which DEEP threads share the rows of each. */
static __global__ void __launch_bounds__(BLOCK_THREADS) sum_table(const hti_amounts_call a) {
    __shared__ float sums[2][DEEP][COLUMNS_WIDE];
    int x = threadIdx.x % COLUMNS_WIDE, y = threadIdx.x / COLUMNS_WIDE;
    int64_t c = (int64_t)blockIdx.x * COLUMNS_WIDE + x;
    float slope = 0, shift = 0;
    if (c < a.width)
        for (int64_t t = y; t < a.vocab; t += DEEP) {
            float d = ((const float *)a.dtable)[t * a.width + c];
            slope += (float)hti_amount(t) * d;
            shift += d;
        }
    sums[0][y][x] = slope, sums[1][y][x] = shift;
    __syncthreads();
    if (y > 1 || c >= a.width) return;
    float all = 0;
    for (int k = 0; k < DEEP; k++) all += sums[y][k][x];
    ((float *)a.dw)[y * a.width + c] += all;
}

ht_status hti_cuda_amounts_forward(ht_context *ctx, const hti_amounts_call *a) {
    hti_cuda_scope scope(ctx);
    dim3 grid((unsigned)hti_ceil(a->vocab * a->width, BLOCK_THREADS));
    return hti_cuda_launch(ctx, a->dtype == HT_BF16 ? make_table<bf16> : make_table<float>,
                           "making a table of amounts", grid, BLOCK_THREADS, 0, *a);
}

ht_status hti_cuda_amounts_backward(ht_context *ctx, const hti_amounts_call *a) {
    hti_cuda_scope scope(ctx);
    dim3 grid((unsigned)hti_ceil(a->width, COLUMNS_WIDE));
    return hti_cuda_launch(ctx, sum_table, "gradients of amounts", grid, BLOCK_THREADS, 0, *a);
}
