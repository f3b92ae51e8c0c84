/*
 * Residual, dropout and layer norm in one pass over memory.
 *
 * A row lies in the registers of LANES lanes of a warp, NV vectors of N elements in each. Widths
 * that do not fit take the kernels at the end, one thread block per row. Backward adds up the
 * gradients of scale and shift (and, if wanted, of a bias before the sum) over the rows that a
 * thread block sees; the blocks' sums lie in the scratch, [parts][2 or 3][width], and are added in
 * order.
 */
#include "cuda/model/model.h"

enum { THREADS = 128 };

struct norm_args {
    int64_t rows;
    int width;
    float epsilon;
    const void *x, *y; /* backward: x is what forward left as s */
    void *s, *out;
    float *stats;
    const void *scale, *shift;
    hti_drop drop;
    const void *dout, *ds_in;
    void *ds, *dy;
    float *partial;
    int sums; /* backward: 2, or 3 with those of dy */
};

/* ---- forward ---- */

template <typename T, int N, int LANES, int NV>
static __global__ void __launch_bounds__(THREADS) norm_forward(const norm_args a) {
    int lane = threadIdx.x % LANES;
    int64_t row = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    int live = row < a.rows;
    int64_t base = (live ? row : 0) * a.width;
    float s[NV][N], sum = 0, square = 0;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        int c = (v * LANES + lane) * N;
        if (c < a.width) {
            load<N>(s[v], (const T *)a.x + base + c);
        } else {
            for (int i = 0; i < N; i++) s[v][i] = 0;
        }
    }
    if (a.y) {
#pragma unroll
        for (int v = 0; v < NV; v++) {
            int c = (v * LANES + lane) * N;
            if (c >= a.width) continue;
            float y[N];
            load<N>(y, (const T *)a.y + base + c);
            if (a.drop.threshold) drop<N>(y, a.drop, (uint32_t)row, c);
#pragma unroll
            for (int i = 0; i < N; i++) s[v][i] = as_stored(s[v][i] + y[i], (const T *)nullptr);
            if (live) store<N>((T *)a.s + base + c, s[v]);
        }
    }
#pragma unroll
    for (int v = 0; v < NV; v++)
#pragma unroll
        for (int i = 0; i < N; i++) sum += s[v][i];
    float mean = sum_lanes<LANES>(sum) / (float)a.width;
#pragma unroll
    for (int v = 0; v < NV; v++)
        if ((v * LANES + lane) * N < a.width)
#pragma unroll
            for (int i = 0; i < N; i++) square += (s[v][i] - mean) * (s[v][i] - mean);
    float rstd = 1 / sqrtf(sum_lanes<LANES>(square) / (float)a.width + a.epsilon);
    if (!live) return;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        int c = (v * LANES + lane) * N;
        if (c >= a.width) continue;
        float scale[N], shift[N];
        load<N>(scale, (const T *)a.scale + c);
        load<N>(shift, (const T *)a.shift + c);
#pragma unroll
        for (int i = 0; i < N; i++) s[v][i] = (s[v][i] - mean) * rstd * scale[i] + shift[i];
        store<N>((T *)a.out + base + c, s[v]);
    }
    if (lane == 0) ((float2 *)a.stats)[row] = make_float2(mean, rstd);
}

/* ---- backward ---- */

extern __shared__ float4 hti_shared[];

/* The block's sums of dscale and dshift into its place of the scratch, group after group. */
template <int N, int LANES, int NV, int SUMS>
DEVICE void add_groups(const norm_args &a, const float (*dscale)[N], const float (*dshift)[N],
                       const float (*dbias)[N]) {
    float *sums = (float *)hti_shared; /* [SUMS][width] */
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    for (int g = 0; g < THREADS / LANES; g++) {
        if (group == g)
#pragma unroll
            for (int v = 0; v < NV; v++) {
                int c = (v * LANES + lane) * N;
                if (c >= a.width) continue;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    sums[c + i] = dscale[v][i] + (g ? sums[c + i] : 0);
                    sums[a.width + c + i] = dshift[v][i] + (g ? sums[a.width + c + i] : 0);
                    float *at = sums + 2 * a.width + c + i;
                    if (SUMS == 3) *at = dbias[v][i] + (g ? *at : 0);
                }
            }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < SUMS * a.width; c += THREADS)
        a.partial[(int64_t)blockIdx.x * SUMS * a.width + c] = sums[c];
}

/* Thread blocks per multiprocessor: as many as the registers for the sums allow. */
static constexpr int blocks_of(int vectors, int sums) {
    return vectors == 1 ? 8 : vectors == 2 ? 7 - sums : 2;
}

template <typename T, int N, int LANES, int NV, int SUMS>
static __global__ void __launch_bounds__(THREADS, blocks_of(NV, SUMS))
    norm_backward(const norm_args a) {
    const int GROUPS = THREADS / LANES, IN_WARP = 32 / LANES;
    const T *tag = nullptr;
    int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES % IN_WARP;
    float dscale[NV][N] = {}, dshift[NV][N] = {}, dbias[NV][N] = {};
    int64_t first = (int64_t)blockIdx.x * GROUPS + threadIdx.x / 32 * IN_WARP;
    for (int64_t r = first; r < a.rows; r += (int64_t)gridDim.x * GROUPS) {
        int live = r + sub < a.rows;
        int64_t row = live ? r + sub : r, base = row * a.width;
        float2 stats = ((const float2 *)a.stats)[row];
        uint4 s[NV], d[NV], in[NV];
#pragma unroll
        for (int v = 0; v < NV; v++) {
            int c = (v * LANES + lane) * N;
            s[v] = d[v] = in[v] = make_uint4(0, 0, 0, 0);
            if (c >= a.width || !live) continue;
            s[v] = *(const uint4 *)((const T *)a.x + base + c);
            d[v] = *(const uint4 *)((const T *)a.dout + base + c);
            if (a.ds_in) in[v] = *(const uint4 *)((const T *)a.ds_in + base + c);
        }
        float g1 = 0, g2 = 0;
#pragma unroll
        for (int v = 0; v < NV; v++) {
            int c = (v * LANES + lane) * N;
            float x[N], g[N], scale[N] = {};
            unpack(x, s[v], tag);
            unpack(g, d[v], tag);
            if (c < a.width) load<N>(scale, (const T *)a.scale + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float n = (x[i] - stats.x) * stats.y;
                dscale[v][i] += g[i] * n;
                dshift[v][i] += g[i];
                g1 += g[i] * scale[i];
                g2 += g[i] * scale[i] * n;
            }
        }
        g1 = sum_lanes<LANES>(g1) / (float)a.width;
        g2 = sum_lanes<LANES>(g2) / (float)a.width;
#pragma unroll
        for (int v = 0; v < NV; v++) {
            int c = (v * LANES + lane) * N;
            if (c >= a.width || !live) continue;
            float x[N], g[N], scale[N], ds[N];
            unpack(x, s[v], tag);
            unpack(g, d[v], tag);
            unpack(ds, in[v], tag);
            load<N>(scale, (const T *)a.scale + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float n = (x[i] - stats.x) * stats.y;
                ds[i] += stats.y * (g[i] * scale[i] - g1 - n * g2);
            }
            store<N>((T *)a.ds + base + c, ds);
            if (a.dy) {
                if (a.drop.threshold) drop<N>(ds, a.drop, (uint32_t)row, c);
                store<N>((T *)a.dy + base + c, ds);
            }
#pragma unroll
            for (int i = 0; i < N; i++)
                if (SUMS == 3) dbias[v][i] += as_stored(ds[i], tag);
        }
    }
    add_groups<N, LANES, NV, SUMS>(a, dscale, dshift, dbias);
}

/* ---- any width: one thread block per row ---- */

static const int ANY_THREADS = 256, ANY_PARTS = 64;

template <typename T>
static __global__ void __launch_bounds__(ANY_THREADS) norm_forward_any(const norm_args a) {
    int64_t base = (int64_t)blockIdx.x * a.width;
    const T *x = (const T *)a.x + base, *s = a.y ? (const T *)a.s + base : x;
    float sum = 0, square = 0;
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
        float v[1], y[1];
        load<1>(v, x + c);
        if (a.y) {
            load<1>(y, (const T *)a.y + base + c);
            if (a.drop.threshold) drop<1>(y, a.drop, blockIdx.x, c);
            v[0] = as_stored(v[0] + y[0], x);
            store<1>((T *)a.s + base + c, v);
        }
        sum += v[0];
    }
    float mean = sum_block(sum) / (float)a.width, v[1], scale[1], shift[1];
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
        load<1>(v, s + c); /* each thread reads what it wrote itself */
        square += (v[0] - mean) * (v[0] - mean);
    }
    float rstd = 1 / sqrtf(sum_block(square) / (float)a.width + a.epsilon);
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
        load<1>(v, s + c);
        load<1>(scale, (const T *)a.scale + c);
        load<1>(shift, (const T *)a.shift + c);
        v[0] = (v[0] - mean) * rstd * scale[0] + shift[0];
        store<1>((T *)a.out + base + c, v);
    }
    if (threadIdx.x == 0) ((float2 *)a.stats)[blockIdx.x] = make_float2(mean, rstd);
}

template <typename T>
static __global__ void __launch_bounds__(ANY_THREADS) norm_backward_any(const norm_args a) {
    int64_t base = (int64_t)blockIdx.x * a.width;
    float2 stats = ((const float2 *)a.stats)[blockIdx.x];
    float g1 = 0, g2 = 0, s[1], d[1], scale[1], in[1];
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
        load<1>(s, (const T *)a.x + base + c);
        load<1>(d, (const T *)a.dout + base + c);
        load<1>(scale, (const T *)a.scale + c);
        g1 += d[0] * scale[0];
        g2 += d[0] * scale[0] * (s[0] - stats.x) * stats.y;
    }
    g1 = sum_block(g1) / (float)a.width;
    g2 = sum_block(g2) / (float)a.width;
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
        load<1>(s, (const T *)a.x + base + c);
        load<1>(d, (const T *)a.dout + base + c);
        load<1>(scale, (const T *)a.scale + c);
        in[0] = 0;
        if (a.ds_in) load<1>(in, (const T *)a.ds_in + base + c);
        float n = (s[0] - stats.x) * stats.y;
        in[0] += stats.y * (d[0] * scale[0] - g1 - n * g2);
        store<1>((T *)a.ds + base + c, in);
        if (!a.dy) continue;
        if (a.drop.threshold) drop<1>(in, a.drop, blockIdx.x, c);
        store<1>((T *)a.dy + base + c, in);
    }
}

/* Part blockIdx.y of the rows for one column per thread; after norm_backward_any. */
template <typename T>
static __global__ void __launch_bounds__(ANY_THREADS) norm_columns_any(const norm_args a) {
    int c = (int)(blockIdx.x * ANY_THREADS + threadIdx.x);
    if (c >= a.width) return;
    float dscale = 0, dshift = 0, dbias = 0, s[1], d[1], y[1] = {0};
    for (int64_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
        float2 stats = ((const float2 *)a.stats)[r];
        load<1>(s, (const T *)a.x + r * a.width + c);
        load<1>(d, (const T *)a.dout + r * a.width + c);
        if (a.sums == 3) load<1>(y, (const T *)(a.dy ? a.dy : a.ds) + r * a.width + c);
        dscale += d[0] * (s[0] - stats.x) * stats.y;
        dshift += d[0];
        dbias += y[0];
    }
    float *to = a.partial + (int64_t)blockIdx.y * a.sums * a.width + c;
    to[0] = dscale, to[a.width] = dshift;
    if (a.sums == 3) to[2 * a.width] = dbias;
}

/* ---- which kernel ---- */

/* Vectors of a row, rounded up to a power of two from 4 on; 0: rows cannot be read as vectors. */
static int shape_of(int64_t width, ht_dtype dtype, uintptr_t addresses) {
    int64_t n = 16 / (int64_t)hti_bytes(dtype);
    int shape = 4;
    if (width % n || addresses % 16 || width / n > 256) return 0;
    while (shape < width / n) shape *= 2;
    return shape;
}

template <typename T, int N, int LANES, int NV>
static ht_status run_forward(ht_context *ctx, const norm_args &a) {
    unsigned grid = (unsigned)hti_ceil(a.rows, THREADS / LANES);
    return hti_cuda_launch(ctx, norm_forward<T, N, LANES, NV>, "norm_forward", dim3(grid), THREADS,
                           0, a);
}

template <typename T> static ht_status any_forward(ht_context *ctx, const norm_args &a) {
    return hti_cuda_launch(ctx, norm_forward_any<T>, "norm_forward", dim3((unsigned)a.rows),
                           ANY_THREADS, 0, a);
}

template <typename T, int N>
static ht_status forward(ht_context *ctx, const norm_args &a, int shape) {
    switch (shape) {
    case 4: return run_forward<T, N, 4, 1>(ctx, a);
    case 8: return run_forward<T, N, 8, 1>(ctx, a);
    case 16: return run_forward<T, N, 16, 1>(ctx, a);
    case 32: return run_forward<T, N, 32, 1>(ctx, a);
    case 64: return run_forward<T, N, 32, 2>(ctx, a);
    case 128: return run_forward<T, N, 32, 4>(ctx, a);
    case 256: return run_forward<T, N, 32, 8>(ctx, a);
    default: return any_forward<T>(ctx, a);
    }
}

/* Thread blocks of a backward call, each with its sums in the scratch. */
static int64_t most_parts(const ht_context *ctx, int vectors, int sums) {
    return (int64_t)blocks_of(vectors, sums) * hti_cuda_of(ctx)->processors;
}

template <typename T, int N, int LANES, int NV>
static ht_status run_backward(ht_context *ctx, const norm_args &a, int64_t *parts) {
    auto kernel =
        a.sums == 3 ? norm_backward<T, N, LANES, NV, 3> : norm_backward<T, N, LANES, NV, 2>;
    *parts = hti_ceil(a.rows, THREADS / LANES);
    if (*parts > most_parts(ctx, NV, a.sums)) *parts = most_parts(ctx, NV, a.sums);
    return hti_cuda_launch(ctx, kernel, "norm_backward", dim3((unsigned)*parts), THREADS,
                           sizeof(float) * (size_t)(a.sums * a.width), a);
}

template <typename T>
static ht_status any_backward(ht_context *ctx, const norm_args &a, int64_t *parts) {
    *parts = a.rows < ANY_PARTS ? a.rows : ANY_PARTS;
    dim3 columns((unsigned)hti_ceil(a.width, ANY_THREADS), (unsigned)*parts);
    TRY(hti_cuda_launch(ctx, norm_backward_any<T>, "norm_backward", dim3((unsigned)a.rows),
                        ANY_THREADS, 0, a));
    return hti_cuda_launch(ctx, norm_columns_any<T>, "norm_backward", columns, ANY_THREADS, 0, a);
}

/* Eight vectors of bf16 and their sums do not fit into registers. */
template <typename T, int N>
static ht_status backward(ht_context *ctx, const norm_args &a, int shape, int64_t *parts) {
    switch (shape) {
    case 4: return run_backward<T, N, 4, 1>(ctx, a, parts);
    case 8: return run_backward<T, N, 8, 1>(ctx, a, parts);
    case 16: return run_backward<T, N, 16, 1>(ctx, a, parts);
    case 32: return run_backward<T, N, 32, 1>(ctx, a, parts);
    case 64: return run_backward<T, N, 32, 2>(ctx, a, parts);
    case 128: return run_backward<T, N, 32, 4>(ctx, a, parts);
    case 256:
        if constexpr (N == 4) return run_backward<T, N, 32, 8>(ctx, a, parts);
        return any_backward<T>(ctx, a, parts);
    default: return any_backward<T>(ctx, a, parts);
    }
}

/* ---- entries ---- */

ht_status hti_cuda_norm_forward(ht_context *ctx, const hti_norm_call *c) {
    hti_cuda_scope scope(ctx);
    norm_args a = {};
    a.rows = c->rows, a.width = (int)c->width, a.epsilon = (float)c->epsilon;
    a.x = c->x, a.y = c->y, a.s = c->s, a.out = c->out, a.stats = (float *)c->stats;
    a.scale = c->scale, a.shift = c->shift, a.drop = hti_drop_of(c->drop);
    uintptr_t all = (uintptr_t)c->x | (uintptr_t)c->y | (uintptr_t)c->s | (uintptr_t)c->out |
                    (uintptr_t)c->scale | (uintptr_t)c->shift;
    int shape = shape_of(c->width, c->dtype, all);
    return c->dtype == HT_BF16 ? forward<bf16, 8>(ctx, a, shape) : forward<float, 4>(ctx, a, shape);
}

ht_status hti_cuda_norm_backward(ht_context *ctx, const hti_norm_call *c) {
    hti_cuda_scope scope(ctx);
    norm_args a = {};
    int64_t parts = 0;
    a.rows = c->rows, a.width = (int)c->width;
    a.x = c->y ? c->s : c->x, a.stats = (float *)c->stats, a.scale = c->scale;
    a.drop = hti_drop_of(c->drop);
    a.dout = c->dout, a.ds_in = c->ds_in, a.ds = c->ds, a.dy = c->dy;
    a.partial = (float *)c->scratch, a.sums = c->dbias ? 3 : 2;
    uintptr_t all = (uintptr_t)a.x | (uintptr_t)c->dout | (uintptr_t)c->ds_in | (uintptr_t)c->ds |
                    (uintptr_t)c->dy | (uintptr_t)c->scale;
    int shape = shape_of(c->width, c->dtype, all);
    TRY((c->dtype == HT_BF16 ? backward<bf16, 8>(ctx, a, shape, &parts)
                             : backward<float, 4>(ctx, a, shape, &parts)));
    return hti_cuda_add_parts(ctx, (float *)c->dscale, (float *)c->dshift, (float *)c->dbias,
                              a.partial, parts, c->width);
}

size_t hti_cuda_norm_scratch(const ht_context *ctx, const hti_norm_call *c) {
    int64_t parts = most_parts(ctx, 1, 3) > ANY_PARTS ? most_parts(ctx, 1, 3) : ANY_PARTS;
    return sizeof(float) * 3 * (size_t)(parts * c->width);
}
