/*
 * Linear layers: the product with as much as cuBLASLt can do to it on its way out, and kernels for
 * the rest (dropout, ReLU, float).
 */
#include "cuda/model/active.h"

enum { THREADS = 256 };

/* ---- activation functions ---- */

struct active_args {
    int64_t count;    /* vectors in all */
    uint32_t vectors; /* of a row */
    int width, activation;
    const void *in, *bias; /* forward: the product; backward: pre */
    void *pre, *y;         /* backward: y is dy, changed in place */
    hti_drop drop;
};

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) activate_rows(const active_args a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.count) return;
    int64_t row = i / a.vectors;
    int c = (int)(i % a.vectors) * N;
    float x[N], bias[N];
    load<N>(x, (const T *)a.in + i * N);
    if (a.bias) {
        load<N>(bias, (const T *)a.bias + c);
        for (int k = 0; k < N; k++) x[k] += bias[k];
    }
    if (a.pre) store<N>((T *)a.pre + i * N, x);
    for (int k = 0; k < N; k++)
        x[k] = activate<T>(as_stored(x[k], (const T *)nullptr), a.activation);
    if (a.drop.threshold) drop<N>(x, a.drop, (uint32_t)row, c);
    store<N>((T *)a.y + i * N, x);
}

template <typename T, int N>
static ht_status run_active(ht_context *ctx, active_args a, int64_t rows) {
    a.vectors = (uint32_t)(a.width / N);
    a.count = rows * a.vectors;
    return hti_cuda_launch(ctx, activate_rows<T, N>, "activating",
                           dim3((unsigned)hti_ceil(a.count, THREADS)), THREADS, 0, a);
}

/* Backward, and in the same pass the column sums of the result: the gradient of the bias. */
struct back_args {
    hti_columns at;
    const void *pre;
    void *dy; /* changed in place */
    int activation, sums;
    hti_drop drop;
};

template <typename T, int N>
static __global__ void __launch_bounds__(HTI_COLUMN_THREADS) activate_back(const back_args a) {
    int64_t c = column_of<N>(a.at);
    float sum[N] = {0};
    if (c < a.at.width)
#pragma unroll 2
        for (int64_t r = row_of(a.at); r < a.at.rows; r += row_step(a.at)) {
            float d[N], pre[N];
            T *at = (T *)a.dy + r * a.at.width + c;
            load<N>(d, at);
            load<N>(pre, (const T *)a.pre + r * a.at.width + c);
            if (a.drop.threshold) drop<N>(d, a.drop, (uint32_t)r, (uint32_t)c);
#pragma unroll
            for (int k = 0; k < N; k++) {
                d[k] *= slope<T>(pre[k], a.activation);
                sum[k] += as_stored(d[k], (const T *)nullptr);
            }
            store<N>(at, d);
        }
    if (a.sums) keep_columns<N>(a.at, sum);
}

template <typename T, int N>
static ht_status run_back(ht_context *ctx, back_args a, int64_t rows, int64_t width, float *dbias) {
    a.at = hti_columns_of(ctx, rows, width, N);
    a.sums = dbias != NULL;
    dim3 grid((unsigned)a.at.strips, (unsigned)a.at.chunks);
    TRY(hti_cuda_launch(ctx, activate_back<T, N>, "activating", grid, HTI_COLUMN_THREADS, 0, a));
    return dbias ? hti_columns_add(ctx, dbias, a.at) : HT_OK;
}

/* ---- forward ---- */

static hti_gemm forward_product(const hti_linear_call *a, void *c) {
    hti_gemm g = {};
    g.dtype = a->dtype, g.m = a->rows, g.n = a->out, g.k = a->in;
    g.a = a->x, g.lda = a->in;
    g.b = a->w, g.ldb = a->in, g.transpose_b = 1;
    g.c = c, g.ldc = a->out;
    return g;
}

/* Product, bias, activation and dropout step by step; the product may have its bias already. */
static ht_status forward_rest(ht_context *ctx, const hti_linear_call *a, const void *product,
                              const void *bias) {
    active_args k = {};
    k.width = (int)a->out, k.activation = a->activation;
    k.in = product, k.bias = bias, k.y = a->y;
    k.pre = a->activation != HTI_LINEAR && a->pre != product ? a->pre : NULL;
    if (a->activation != HTI_LINEAR) k.drop = hti_drop_of(a->drop);
    int wide = hti_wide_rows(a->out, hti_bytes(a->dtype), product, bias, k.pre, a->y);
    return HTI_BY_TYPE(run_active, a->dtype, wide, ctx, k, a->rows);
}

/* How far one call of cuBLASLt gets; HT_UNSUPPORTED: nowhere. */
static ht_status forward_fused(ht_context *ctx, const hti_linear_call *a) {
    hti_gemm g = forward_product(a, a->y);
    int plain = a->activation == HTI_LINEAR, aux = a->pre && a->out % 8 == 0;
    if (plain) return hti_cuda_product(ctx, &g, HTI_FINISH_BIAS, a->bias, NULL, a->add);
    if (a->activation == HTI_GELU && !(a->drop.p > 0) && (aux || !a->pre))
        return hti_cuda_product(ctx, &g, aux ? HTI_FINISH_GELU_AUX : HTI_FINISH_GELU, a->bias,
                                a->pre, NULL);
    g.c = a->pre ? a->pre : a->y;
    TRY(hti_cuda_product(ctx, &g, HTI_FINISH_BIAS, a->bias, NULL, NULL));
    return forward_rest(ctx, a, g.c, NULL);
}

ht_status hti_cuda_linear_forward(ht_context *ctx, const hti_linear_call *a) {
    hti_cuda_scope scope(ctx);
    if (hti_slim_takes(a)) return hti_slim_forward(ctx, a);
    if (a->bias && a->dtype == HT_BF16) {
        ht_status status = forward_fused(ctx, a);
        if (status != HT_UNSUPPORTED) return status;
    }
    hti_gemm g = forward_product(a, a->y);
    TRY(hti_cuda_product(ctx, &g, HTI_FINISH_NONE, NULL, NULL, a->add));
    if (a->activation == HTI_LINEAR && !a->bias) return HT_OK;
    return forward_rest(ctx, a, a->y, a->bias);
}

/* ---- backward ---- */

/* dy becomes dpre; dbias (or NULL) gets its column sums. */
static ht_status activation_back(ht_context *ctx, const void *pre, void *dy, float *dbias,
                                 int64_t rows, int64_t width, hti_activation activation,
                                 ht_dtype dtype, const hti_random &drop) {
    back_args a = {};
    a.pre = pre, a.dy = dy, a.activation = activation, a.drop = hti_drop_of(drop);
    int wide = hti_wide_rows(width, hti_bytes(dtype), pre, dy);
    return HTI_BY_TYPE(run_back, dtype, wide, ctx, a, rows, width, dbias);
}

/* dx = dpre W, then what the layer before does to it. cuBLASLt could multiply with gelu' on the way
 * out, but only in a slower kernel: that costs more than this pass, which also has the sums. */
static ht_status input_gradient(ht_context *ctx, const hti_linear_call *a) {
    hti_gemm g = {};
    g.dtype = a->dtype, g.m = a->rows, g.n = a->in, g.k = a->out;
    g.a = a->dy, g.lda = a->out;
    g.b = a->w, g.ldb = a->in;
    g.c = a->dx, g.ldc = a->in;
    TRY(hti_cuda_gemm(ctx, &g));
    if (a->before == HTI_LINEAR) return HT_OK;
    return activation_back(ctx, a->before_pre, a->dx, (float *)a->before_dbias, a->rows, a->in,
                           a->before, a->dtype, a->before_drop);
}

static ht_status weight_gradient(ht_context *ctx, const hti_linear_call *a) {
    hti_gemm g = {};
    g.dtype = a->dtype, g.wide_c = 1, g.accumulate = 1;
    g.m = a->out, g.n = a->in, g.k = a->rows;
    g.a = a->dy, g.lda = a->out, g.transpose_a = 1;
    g.b = a->x, g.ldb = a->in;
    g.c = a->dw, g.ldc = a->in;
    return hti_cuda_gemm(ctx, &g);
}

ht_status hti_cuda_linear_backward(ht_context *ctx, const hti_linear_call *a) {
    hti_cuda_scope scope(ctx);
    float *dbias = (float *)a->dbias;
    if (a->activation != HTI_LINEAR)
        TRY(activation_back(ctx, a->pre, a->dy, dbias, a->rows, a->out, a->activation, a->dtype,
                            a->drop));
    else if (dbias)
        TRY(hti_cuda_column_sums(ctx, dbias, a->dy, a->rows, a->out, a->dtype));
    if (a->dx && hti_slim_takes(a)) return hti_slim_backward(ctx, a);
    if (a->dx) TRY(input_gradient(ctx, a));
    return weight_gradient(ctx, a);
}
