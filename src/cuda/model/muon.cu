/*
 * Muon: the moments of all matrices of one shape, packed side by side; products of all of them at
 * once that make them nearly orthogonal; and their step.
 */
#include "cuda/model/model.h"

enum { THREADS = 256, PARTS = 32 };

struct muon_args {
    int64_t at[HTI_MUON_MOST];
    int64_t size; /* numbers of a matrix */
    float *p, *m;
    bf16 *w;
    const float *g;
    void *x;         /* [count, size] */
    double *partial; /* [count, PARTS] squares of x */
    const hti_step *step;
    double momentum, decay, clip, scale;
};

DEVICE int applies(const hti_step *s) { return isfinite(s->out.square) && isfinite(s->out.loss); }

/* Part blockIdx.x of matrix blockIdx.y: its moment, x before it has length 1, and its square. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) muon_begin(const muon_args a) {
    if (!applies(a.step)) return;
    double norm = sqrt(a.step->out.square), sum = 0;
    float shrink = (float)(a.clip > 0 && norm > a.clip ? a.clip / norm : 1);
    float b = (float)a.momentum;
    int64_t from = a.at[blockIdx.y];
    T *x = (T *)a.x + blockIdx.y * a.size;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.size;
         i += PARTS * THREADS) {
        float g = (1 - b) * shrink * a.g[from + i], m = b * a.m[from + i] + g;
        a.m[from + i] = m;
        float u = b * m + g;
        store<1>(x + i, &u);
        sum += (double)u * u;
    }
    sum = sum_block(sum);
    if (threadIdx.x == 0) a.partial[blockIdx.y * PARTS + blockIdx.x] = sum;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) muon_scale(const muon_args a) {
    double square = 0;
    for (int i = 0; i < PARTS; i++) square += a.partial[blockIdx.y * PARTS + i];
    float scale = square > 0 ? (float)(1 / sqrt(square)) : 0.0f, u;
    T *x = (T *)a.x + blockIdx.y * a.size;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.size;
         i += PARTS * THREADS) {
        load<1>(&u, x + i);
        u *= scale;
        store<1>(x + i, &u);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) muon_end(const muon_args a) {
    if (!applies(a.step)) return;
    float by = (float)(a.step->in.rate * a.scale), keep = (float)(a.step->in.rate * a.decay), u;
    int64_t from = a.at[blockIdx.y];
    T *x = (T *)a.x + blockIdx.y * a.size;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.size;
         i += PARTS * THREADS) {
        load<1>(&u, x + i);
        float p = a.p[from + i];
        p -= by * u + keep * p;
        a.p[from + i] = p;
        if (a.w) a.w[from + i] = __float2bfloat16_rn(p);
    }
}

/* ---- scratch: x and its next value, two squares of the smaller side, partial sums ---- */

struct muon_room {
    char *x[2], *s, *s2;
    double *partial;
    size_t bytes;
};

static muon_room room_of(const hti_muon_call *c) {
    int64_t side = c->rows < c->columns ? c->rows : c->columns;
    size_t element = hti_bytes(c->dtype), n = (size_t)c->count, line = 255;
    size_t full = ((size_t)(c->rows * c->columns) * n * element + line) & ~line;
    size_t square = ((size_t)(side * side) * n * element + line) & ~line;
    muon_room r;
    char *at = (char *)c->scratch;
    r.x[0] = at, r.x[1] = at + full, r.s = at + 2 * full, r.s2 = r.s + square;
    r.partial = (double *)(r.s2 + square);
    r.bytes = 2 * full + 2 * square + n * PARTS * sizeof(double);
    return r;
}

size_t hti_cuda_muon_scratch(const ht_context *ctx, const hti_muon_call *call) {
    (void)ctx;
    hti_muon_call sizes = *call;
    sizes.scratch = NULL;
    return room_of(&sizes).bytes;
}

/* ---- turns ---- */

static hti_gemm product_of(const hti_muon_call *c, void *out, const void *a, const void *b,
                           int64_t m, int64_t n, int64_t k, int transpose_a, int transpose_b) {
    hti_gemm g = {};
    g.dtype = c->dtype, g.m = m, g.n = n, g.k = k;
    g.transpose_a = transpose_a, g.transpose_b = transpose_b;
    g.a = a, g.lda = transpose_a ? m : k, g.b = b, g.ldb = transpose_b ? k : n;
    g.c = out, g.ldc = n;
    return g;
}

/* next = a x + (b s + c s^2) x, s the product of x and its transpose on the smaller side. */
static ht_status turn(ht_context *ctx, const hti_muon_call *c, const muon_room &r, char *x,
                      char *next) {
    int tall = c->rows > c->columns;
    int64_t side = tall ? c->columns : c->rows, other = tall ? c->rows : c->columns;
    int64_t square = side * side, full = c->rows * c->columns;
    hti_series make = {c->count, full, full, square, 1, 0};
    hti_series mix = {c->count, square, square, square, (float)HTI_MUON_C, (float)HTI_MUON_B};
    hti_series use = {c->count, tall ? full : square, tall ? square : full, full,
                      1,        (float)HTI_MUON_A};
    hti_gemm s = product_of(c, r.s, x, x, side, side, other, tall, !tall);
    hti_gemm s2 = product_of(c, r.s2, r.s, r.s, side, side, side, 0, 0);
    hti_gemm o =
        product_of(c, next, tall ? x : r.s2, tall ? r.s2 : x, c->rows, c->columns, side, 0, 0);
    TRY(hti_cuda_products(ctx, &s, NULL, &make));
    TRY(hti_cuda_products(ctx, &s2, r.s, &mix));
    return hti_cuda_products(ctx, &o, x, &use);
}

template <typename T> static ht_status muon(ht_context *ctx, const hti_muon_call *c) {
    muon_room r = room_of(c);
    muon_args a = {};
    memcpy(a.at, c->at, sizeof a.at);
    a.size = c->rows * c->columns;
    a.p = (float *)c->p, a.m = (float *)c->m, a.w = (bf16 *)c->w, a.g = (const float *)c->g;
    a.x = r.x[0], a.partial = r.partial, a.step = c->step;
    a.momentum = c->momentum, a.decay = c->decay, a.clip = c->clip, a.scale = c->scale;
    dim3 grid(PARTS, (unsigned)c->count);
    TRY(hti_cuda_launch(ctx, muon_begin<T>, "Muon", grid, THREADS, 0, a));
    TRY(hti_cuda_launch(ctx, muon_scale<T>, "Muon", grid, THREADS, 0, a));
    for (int i = 0; i < HTI_MUON_TURNS; i++) TRY(turn(ctx, c, r, r.x[i % 2], r.x[(i + 1) % 2]));
    a.x = r.x[HTI_MUON_TURNS % 2];
    return hti_cuda_launch(ctx, muon_end<T>, "Muon", grid, THREADS, 0, a);
}

ht_status hti_cuda_muon(ht_context *ctx, const hti_muon_call *call) {
    hti_cuda_scope scope(ctx);
    return call->dtype == HT_BF16 ? muon<bf16>(ctx, call) : muon<float>(ctx, call);
}
