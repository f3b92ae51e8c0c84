/*
 * What the model's kernels on CUDA share: their state in a context, dropout, reductions, and the
 * products.
 *
 * Activations and weights are bf16 or float (T below), statistics and parameter gradients float.
 * Sums over rows go in two stages with a fixed order and no atomics, so that a run repeats itself
 * bit for bit. Nothing here allocates or waits in a step: what a step needs is taken when the
 * model's state is made (model.cu) or handed in as scratch.
 */
#ifndef HTI_CUDA_MODEL_H
#define HTI_CUDA_MODEL_H

#include "cuda/vector.h"

extern "C" {
#include "core/dropout.h"
#include "model_op.h"
}

/* ---- state ------------------------------------------------------------------------------------
 */

enum { HTI_SUMS_BYTES = 16 << 20 }; /* partial sums of one op at a time */

typedef struct hti_cuda_model {
    struct hti_blas *blas; /* blas.cu */
    float *sums;           /* [HTI_SUMS_BYTES] */
} hti_cuda_model;

static inline hti_cuda_model *hti_model_of(const ht_context *ctx) {
    return (hti_cuda_model *)ctx->guest.state;
}

/* ---- products (blas.cu) ------------------------------------------------------------------
 */

/* What is done to a product on its way out. bias: dtype [n]; aux: dtype [m, n]. */
typedef enum hti_finish {
    HTI_FINISH_NONE,
    HTI_FINISH_BIAS,
    HTI_FINISH_GELU,    /* gelu(product + bias) */
    HTI_FINISH_GELU_AUX /* aux = product + bias, gelu(aux) */
} hti_finish;

ht_status hti_blas_open(struct hti_blas **out, ht_context *ctx);
void hti_blas_close(struct hti_blas *blas, ht_context *ctx);
/* HT_UNSUPPORTED where cuBLASLt has no algorithm for this product with this finish. add: NULL, or
 * [m, n] as C lies, added to the product. */
ht_status hti_cuda_product(ht_context *ctx, const hti_gemm *call, hti_finish finish,
                           const void *bias, void *aux, const void *add);
ht_status hti_cuda_gemm(ht_context *ctx, const hti_gemm *call);

/* `count` products of one shape in one go, c = scale a b + add_scale add; from one to the next the
 * matrices lie so many elements apart (add as c). */
typedef struct hti_series {
    int64_t count, step_a, step_b, step_c;
    float scale, add_scale;
} hti_series;
ht_status hti_cuda_products(ht_context *ctx, const hti_gemm *call, const void *add,
                            const hti_series *series);

/* ---- linear layers with few columns (slim.cu) ---------------------------------------------
 */

/* bf16, many rows of 16 to 64 columns: the whole of forward, and dx with dW of backward (dy is dpre
 * by then), in one kernel each. */
int hti_slim_takes(const hti_linear_call *call);
ht_status hti_slim_forward(ht_context *ctx, const hti_linear_call *call);
ht_status hti_slim_backward(ht_context *ctx, const hti_linear_call *call);

/* ---- sums over rows (sums.cu) ------------------------------------------------------------
 */

/* out[c] += sum over p of partial[p * width + c], c < width. With `second` (and `third`), rows of
 * partial have two (three) parts of `width`, and the others are added there. */
ht_status hti_cuda_add_parts(const ht_context *ctx, float *out, float *second, float *third,
                             const float *partial, int64_t parts, int64_t width);
/* sums[c] += column sums of x [rows, width] */
ht_status hti_cuda_column_sums(const ht_context *ctx, float *sums, const void *x, int64_t rows,
                               int64_t width, ht_dtype dtype);

/* ---- sorting (sort.cu) -------------------------------------------------------------------
 */

/* Row numbers 0 ... count - 1 sorted by key (below `limit`), rows of one key in their order.
 * A negative input key stands for limit - 1. */
typedef struct hti_sorted {
    uint32_t *key, *row; /* [count] */
} hti_sorted;
size_t hti_cuda_sort_scratch(int64_t count);
ht_status hti_cuda_sort(const ht_context *ctx, hti_sorted *out, const int32_t *keys, int64_t count,
                        int64_t limit, void *scratch);

/* ---- entries -----------------------------------------------------------------------------------
 */

ht_status hti_cuda_embed_forward(ht_context *ctx, const hti_embed_call *call);
ht_status hti_cuda_embed_backward(ht_context *ctx, const hti_embed_call *call);
size_t hti_cuda_embed_scratch(const ht_context *ctx, const hti_embed_call *call);
ht_status hti_cuda_amounts_forward(ht_context *ctx, const hti_amounts_call *call);
ht_status hti_cuda_amounts_backward(ht_context *ctx, const hti_amounts_call *call);
ht_status hti_cuda_norm_forward(ht_context *ctx, const hti_norm_call *call);
ht_status hti_cuda_norm_backward(ht_context *ctx, const hti_norm_call *call);
size_t hti_cuda_norm_scratch(const ht_context *ctx, const hti_norm_call *call);
ht_status hti_cuda_linear_forward(ht_context *ctx, const hti_linear_call *call);
ht_status hti_cuda_linear_backward(ht_context *ctx, const hti_linear_call *call);
ht_status hti_cuda_rotary(ht_context *ctx, const hti_rotary_call *call);
ht_status hti_cuda_near_forward(ht_context *ctx, const hti_near_call *call);
ht_status hti_cuda_near_backward(ht_context *ctx, const hti_near_call *call);
ht_status hti_cuda_near_keep(ht_context *ctx, const hti_near_call *call);
ht_status hti_cuda_pool_forward(ht_context *ctx, const hti_pool_call *call);
ht_status hti_cuda_pool_backward(ht_context *ctx, const hti_pool_call *call);
ht_status hti_cuda_match_forward(ht_context *ctx, const hti_match_call *call);
ht_status hti_cuda_match_backward(ht_context *ctx, const hti_match_call *call);
size_t hti_cuda_loss_scratch(const ht_context *ctx, const hti_loss_call *call);
ht_status hti_cuda_loss(ht_context *ctx, const hti_loss_call *call);
ht_status hti_cuda_square(ht_context *ctx, ht_dtype dtype, hti_step *step, const void *g,
                          int64_t count);
ht_status hti_cuda_adamw(ht_context *ctx, const hti_adamw_call *call);
size_t hti_cuda_muon_scratch(const ht_context *ctx, const hti_muon_call *call);
ht_status hti_cuda_muon(ht_context *ctx, const hti_muon_call *call);
ht_status hti_cuda_round(ht_context *ctx, ht_dtype dtype, void *w, const void *p, int64_t count);

/* ---- on the host: which kernel -----------------------------------------------------------------
 */

static inline int64_t hti_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Elements of type T in 16 bytes. */
template <typename T> constexpr int hti_vector() { return (int)(16 / sizeof(T)); }

/* Whether rows of `width` elements at these addresses can be read 16 bytes at a time. */
static inline int hti_wide_rows(int64_t width, size_t bytes, const void *a = nullptr,
                                const void *b = nullptr, const void *c = nullptr,
                                const void *d = nullptr) {
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    return all % 16 == 0 && width * (int64_t)bytes % 16 == 0;
}

/* Calls launch<T, N>(ctx, args): T by dtype, N elements at a time if `wide`, else one. */
#define HTI_BY_TYPE(launch, dtype, wide, ...)                                     \
    ((dtype) == HT_BF16                                                           \
         ? ((wide) ? launch<bf16, 8>(__VA_ARGS__) : launch<bf16, 1>(__VA_ARGS__)) \
         : ((wide) ? launch<float, 4>(__VA_ARGS__) : launch<float, 1>(__VA_ARGS__)))

/* ---- on the device: dropout --------------------------------------------------------------------
 */

typedef struct hti_drop {
    uint32_t threshold; /* 0: no dropout */
    uint32_t site, offset;
    float keep;
    uint64_t seed;
    const uint32_t *offset_device;
} hti_drop;

static inline hti_drop hti_drop_of(const hti_random &r) {
    hti_drop d = {};
    if (!(r.p > 0)) return d;
    d.threshold = hti_drop_threshold(r.p);
    d.site = r.site, d.offset = r.offset, d.seed = r.seed;
    d.offset_device = r.offset_device;
    d.keep = (float)(1 / (1 - r.p));
    return d;
}

/* x[0 ... N-1] of columns c ... of a row; c is a multiple of N. */
template <int N> DEVICE void drop(float *x, const hti_drop &d, uint32_t row, uint32_t c) {
    uint32_t offset = d.offset_device ? *d.offset_device : d.offset;
    hti_philox w = hti_philox_draw(d.seed, offset, d.site, row, c / 8);
    if constexpr (N < 8) { /* this part of the draw comes to the front */
        if (c & 4) w.w[0] = w.w[2], w.w[1] = w.w[3];
        if (N < 4 && c & 2) w.w[0] = w.w[1];
        if (N < 2 && c & 1) w.w[0] >>= 16;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = hti_drop_bits(&w, (uint32_t)i) < d.threshold ? 0.0f : d.keep * x[i];
}

/* ---- column sums: threads side by side over the columns, the others further down the rows -------
 */

enum { HTI_COLUMN_THREADS = 256 };

typedef struct hti_columns {
    float *partial; /* [chunks, width] */
    int64_t rows, width;
    int64_t strips, chunks; /* grid */
    int across;             /* threads side by side, a power of two */
} hti_columns;

/* sums.cu: how to go over [rows, width] in vectors of n, and the second stage after it. */
hti_columns hti_columns_of(const ht_context *ctx, int64_t rows, int64_t width, int n);
ht_status hti_columns_add(const ht_context *ctx, float *sums, const hti_columns &c);

/* This thread's first column, first row, and the step to its next row. */
template <int N> DEVICE int64_t column_of(const hti_columns &a) {
    return ((int64_t)blockIdx.x * a.across + threadIdx.x % a.across) * N;
}
DEVICE int64_t row_of(const hti_columns &a) {
    return (int64_t)blockIdx.y * (HTI_COLUMN_THREADS / a.across) + threadIdx.x / a.across;
}
DEVICE int64_t row_step(const hti_columns &a) {
    return (int64_t)gridDim.y * (HTI_COLUMN_THREADS / a.across);
}

/* The block's sums into its place of `partial`. */
template <int N> DEVICE void keep_columns(const hti_columns &a, const float *sum) {
    __shared__ float sums[HTI_COLUMN_THREADS * N];
    int columns = a.across * N, down = HTI_COLUMN_THREADS / a.across;
#pragma unroll
    for (int i = 0; i < N; i++) sums[threadIdx.x * N + i] = sum[i];
    __syncthreads();
    for (int i = threadIdx.x; i < columns; i += HTI_COLUMN_THREADS) {
        int64_t at = (int64_t)blockIdx.x * columns + i;
        if (at >= a.width) continue;
        float all = 0;
        for (int k = 0; k < down; k++) all += sums[k * columns + i];
        a.partial[blockIdx.y * a.width + at] = all;
    }
}

/* ---- on the device: reductions ------------------------------------------------------------------
 */

/* Sum over a thread block of whole warps; every thread gets it. */
template <typename T> DEVICE T sum_block(T x) {
    __shared__ T part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads(); /* an earlier sum may still be read */
    if (lane == 0) part[warp] = x;
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < warps; i++) sum += part[i];
    return sum;
}

#endif
