/*
 * The optimiser: gradient norm, AdamW over all parameters at once, rounding to bf16.
 */
#include "cuda/model/model.h"

enum { THREADS = 256, SUM_THREADS = 1024 };

/* ---- the gradient's norm ---- */

struct square_args {
    const float *g;
    int64_t count;
    double *partial; /* [parts] */
    int parts;
    hti_step *step;
};

static __global__ void __launch_bounds__(THREADS) square_parts(const square_args a) {
    double sum = 0;
    int64_t vectors = a.count / 4, stride = (int64_t)gridDim.x * THREADS;
    int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
#pragma unroll 4
    for (int64_t i = first; i < vectors; i += stride) {
        float4 g = ((const float4 *)a.g)[i];
        sum += (double)g.x * g.x + (double)g.y * g.y + ((double)g.z * g.z + (double)g.w * g.w);
    }
    for (int64_t i = vectors * 4 + first; i < a.count; i += stride) sum += (double)a.g[i] * a.g[i];
    sum = sum_block(sum);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(SUM_THREADS) square_sum(const square_args a) {
    double sum = 0;
    for (int i = threadIdx.x; i < a.parts; i += SUM_THREADS) sum += a.partial[i];
    sum = sum_block(sum);
    if (threadIdx.x == 0) a.step->out.square += sum;
}

ht_status hti_cuda_square(ht_context *ctx, ht_dtype dtype, hti_step *step, const void *g,
                          int64_t count) {
    hti_cuda_scope scope(ctx);
    (void)dtype; /* gradients are float in both */
    int64_t parts = hti_ceil(count, 16 * THREADS), most = 8 * hti_cuda_of(ctx)->processors;
    square_args a = {(const float *)g, count, (double *)hti_model_of(ctx)->sums,
                     (int)(parts < most ? parts : most), step};
    TRY(hti_cuda_launch(ctx, square_parts, "gradient norm", dim3((unsigned)a.parts), THREADS, 0,
                        a));
    return hti_cuda_launch(ctx, square_sum, "gradient norm", dim3(1), SUM_THREADS, 0, a);
}

/* ---- AdamW ---- */

struct adamw_args {
    int64_t count;
    float *p, *m, *v;
    bf16 *w;
    const float *g;
    hti_step *step;
    double clip, decay;
    float b1, b2, epsilon;
};

struct adamw_rates {
    float shrink, r1, r2, keep;
    int applied;
};

DEVICE void adamw_one(float &p, float &m, float &v, float g, const adamw_args &a,
                      const adamw_rates &r) {
    g *= r.shrink;
    m = a.b1 * m + (1 - a.b1) * g;
    v = a.b2 * v + (1 - a.b2) * g * g;
    p -= r.r1 * m / (sqrtf(v) * r.r2 + a.epsilon) + r.keep * p;
}

DEVICE adamw_rates rates_of(const adamw_args &a) {
    adamw_rates r;
    double square = a.step->out.square, norm = sqrt(square), rate = a.step->in.rate;
    r.applied = isfinite(square) && isfinite(a.step->out.loss);
    r.shrink = (float)(a.clip > 0 && norm > a.clip ? a.clip / norm : 1);
    r.r1 = (float)(rate / a.step->in.correction1);
    r.r2 = (float)(1 / sqrt(a.step->in.correction2));
    r.keep = (float)(rate * a.decay);
    return r;
}

static __global__ void __launch_bounds__(THREADS) adamw_step(const adamw_args a) {
    __shared__ adamw_rates r;
    if (threadIdx.x == 0) {
        r = rates_of(a);
        if (blockIdx.x == 0) a.step->out.applied = r.applied;
    }
    __syncthreads();
    if (!r.applied) return;
    int64_t vectors = a.count / 4, stride = (int64_t)gridDim.x * THREADS;
    int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t i = first; i < vectors; i += stride) {
        float4 p = ((float4 *)a.p)[i], m = ((float4 *)a.m)[i], v = ((float4 *)a.v)[i];
        float4 g = ((const float4 *)a.g)[i];
        adamw_one(p.x, m.x, v.x, g.x, a, r);
        adamw_one(p.y, m.y, v.y, g.y, a, r);
        adamw_one(p.z, m.z, v.z, g.z, a, r);
        adamw_one(p.w, m.w, v.w, g.w, a, r);
        ((float4 *)a.p)[i] = p, ((float4 *)a.m)[i] = m, ((float4 *)a.v)[i] = v;
        if (a.w) ((uint2 *)a.w)[i] = make_uint2(two_halves(p.x, p.y), two_halves(p.z, p.w));
    }
    for (int64_t i = vectors * 4 + first; i < a.count; i += stride) {
        adamw_one(a.p[i], a.m[i], a.v[i], a.g[i], a, r);
        if (a.w) a.w[i] = __float2bfloat16_rn(a.p[i]);
    }
}

ht_status hti_cuda_adamw(ht_context *ctx, const hti_adamw_call *c) {
    hti_cuda_scope scope(ctx);
    adamw_args a = {};
    a.count = c->count, a.p = (float *)c->p, a.m = (float *)c->m, a.v = (float *)c->v;
    a.w = (bf16 *)c->w, a.g = (const float *)c->g, a.step = c->step;
    a.clip = c->clip, a.decay = c->decay;
    a.b1 = (float)c->beta1, a.b2 = (float)c->beta2, a.epsilon = (float)c->epsilon;
    int64_t blocks = hti_ceil(c->count, 4 * THREADS), most = 16 * hti_cuda_of(ctx)->processors;
    return hti_cuda_launch(ctx, adamw_step, "AdamW",
                           dim3((unsigned)(blocks < most ? blocks : most)), THREADS, 0, a);
}

/* ---- rounding ---- */

struct round_args {
    bf16 *w;
    const float *p;
    int64_t count;
};

static __global__ void __launch_bounds__(THREADS) round_all(const round_args a) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    for (int64_t k = i; k < i + 4 && k < a.count; k++) a.w[k] = __float2bfloat16_rn(a.p[k]);
}

ht_status hti_cuda_round(ht_context *ctx, ht_dtype dtype, void *w, const void *p, int64_t count) {
    if (dtype != HT_BF16) return ctx->ops->copy(ctx, w, p, (size_t)count * sizeof(float));
    hti_cuda_scope scope(ctx);
    round_args a = {(bf16 *)w, (const float *)p, count};
    return hti_cuda_launch(ctx, round_all, "rounding weights",
                           dim3((unsigned)hti_ceil(count, 4 * THREADS)), THREADS, 0, a);
}
