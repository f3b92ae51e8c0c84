/*
 * Pooling of sequences, features of pairs, and rotary positions.
 */
#include "cuda/model/model.h"

enum { THREADS = 256 };

struct pool_args {
    int kind, width;
    int64_t sequences, rows;
    const int32_t *start, *count;
    const uint8_t *mask;
    const void *x, *dout;
    void *out, *dx;
    float *partial; /* [sequences][parts][width] */
    int parts;
};

DEVICE int takes(const pool_args &a, int64_t row) {
    return a.kind == HTI_POOL_ALL || !a.mask || a.mask[row];
}

/* 1 / number of rows that the mean of a sequence goes over; called by a whole thread block */
DEVICE float weight_of(const pool_args &a, int64_t sequence) {
    int n = 0, count = a.count[sequence];
    if (a.kind == HTI_POOL_ALL || !a.mask) return count > 0 ? 1 / (float)count : 0;
    const uint8_t *mask = a.mask + a.start[sequence];
    for (int i = threadIdx.x; i < count; i += THREADS) n += mask[i] != 0;
    n = sum_block(n);
    return n > 0 ? 1 / (float)n : 0;
}

/* ---- first or last rows ---- */

DEVICE int64_t one_row(const pool_args &a, int64_t b) {
    return a.start[b] + (a.kind == HTI_POOL_LAST && a.count[b] > 0 ? a.count[b] - 1 : 0);
}

template <typename T> static __global__ void pool_one(const pool_args a) {
    int64_t b = blockIdx.x, from = one_row(a, b) * a.width, to = b * a.width;
    int there = a.count[b] > 0;
    for (int c = threadIdx.x; c < a.width; c += THREADS)
        ((T *)a.out)[to + c] = there ? ((const T *)a.x)[from + c] : T(0.0f);
}

template <typename T> static __global__ void pool_one_back(const pool_args a) {
    int64_t b = blockIdx.x, to = one_row(a, b) * a.width, from = b * a.width;
    if (a.count[b] <= 0) return;
    for (int c = threadIdx.x; c < a.width; c += THREADS)
        ((T *)a.dx)[to + c] = ((const T *)a.dout)[from + c];
}

/* ---- means ---- */

enum { ACROSS = 32, DOWN = THREADS / ACROSS };

/* Sums of rows part, part + parts, ... (in steps of DOWN) of a sequence: x strips of columns, y
 * parts, z sequences. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) pool_parts(const pool_args a) {
    __shared__ float sums[DOWN][ACROSS * N];
    int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    int c = (int)(blockIdx.x * ACROSS + x) * N, count = a.count[blockIdx.z];
    int64_t start = a.start[blockIdx.z];
    float sum[N] = {0}, v[N];
    if (c < a.width)
#pragma unroll 4
        for (int i = (int)blockIdx.y * DOWN + y; i < count; i += a.parts * DOWN) {
            if (!takes(a, start + i)) continue;
            load<N>(v, (const T *)a.x + (start + i) * a.width + c);
            for (int k = 0; k < N; k++) sum[k] += v[k];
        }
    for (int k = 0; k < N; k++) sums[y][x * N + k] = sum[k];
    __syncthreads();
    for (int i = threadIdx.x; i < ACROSS * N; i += THREADS) {
        int at = (int)blockIdx.x * ACROSS * N + i;
        if (at >= a.width) continue;
        float all = 0;
        for (int k = 0; k < DOWN; k++) all += sums[k][i];
        a.partial[((int64_t)blockIdx.z * a.parts + blockIdx.y) * a.width + at] = all;
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) pool_mean(const pool_args a) {
    float weight = weight_of(a, blockIdx.x);
    for (int c = threadIdx.x; c < a.width; c += THREADS) {
        float sum = 0;
        for (int p = 0; p < a.parts; p++)
            sum += a.partial[((int64_t)blockIdx.x * a.parts + p) * a.width + c];
        sum *= weight;
        store<1>((T *)a.out + (int64_t)blockIdx.x * a.width + c, &sum);
    }
}

/* dx of the rows of one sequence (y), those between chunks of gridDim.x */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) pool_mean_back(const pool_args a) {
    float weight = weight_of(a, blockIdx.y), v[N];
    int vectors = a.width / N, count = a.count[blockIdx.y];
    int64_t start = a.start[blockIdx.y], all = (int64_t)count * vectors;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t row = start + i / vectors;
        int c = (int)(i % vectors) * N;
        if (!takes(a, row)) continue; /* stays zero */
        load<N>(v, (const T *)a.dout + (int64_t)blockIdx.y * a.width + c);
        for (int k = 0; k < N; k++) v[k] *= weight;
        store<N>((T *)a.dx + row * a.width + c, v);
    }
}

/* ---- maxima ---- */

enum { LANES = 8, DEPTH = THREADS / LANES };

struct peak {
    float value;
    int row; /* of the sequence; -1: none yet */
};

/* Is a the one to take? What is not a number wins, then the larger, then the earlier. */
DEVICE bool beats(peak a, peak b) {
    if (a.row < 0 || b.row < 0) return b.row < 0;
    bool bad_a = a.value != a.value, bad_b = b.value != b.value;
    if (bad_a != bad_b) return bad_a;
    return bad_a || a.value == b.value ? a.row < b.row : a.value > b.value;
}

/* The largest of each column of a sequence: x strips of columns, y sequences. Forward writes it,
 * backward gives its row the gradient; dx is zero before. */
template <typename T, int N, int BACK>
static __global__ void __launch_bounds__(THREADS) pool_peak(const pool_args a) {
    __shared__ peak peaks[DEPTH][LANES * N];
    int x = threadIdx.x % LANES, y = threadIdx.x / LANES, count = a.count[blockIdx.y];
    int c = (int)(blockIdx.x * LANES + x) * N;
    int64_t start = a.start[blockIdx.y];
    peak best[N];
    float v[N];
    for (int k = 0; k < N; k++) best[k] = {0, -1};
    if (c < a.width)
        for (int i = y; i < count; i += DEPTH) {
            if (!takes(a, start + i)) continue;
            load<N>(v, (const T *)a.x + (start + i) * a.width + c);
            for (int k = 0; k < N; k++)
                if (beats({v[k], i}, best[k])) best[k] = {v[k], i};
        }
    for (int k = 0; k < N; k++) peaks[y][x * N + k] = best[k];
    __syncthreads();
    int at = (int)blockIdx.x * LANES * N + threadIdx.x;
    if (threadIdx.x >= LANES * N || at >= a.width) return;
    peak all = peaks[0][threadIdx.x];
    for (int k = 1; k < DEPTH; k++)
        if (beats(peaks[k][threadIdx.x], all)) all = peaks[k][threadIdx.x];
    int64_t pooled = (int64_t)blockIdx.y * a.width + at;
    if (!BACK)
        store<1>((T *)a.out + pooled, &all.value);
    else if (all.row >= 0)
        ((T *)a.dx)[(start + all.row) * a.width + at] = ((const T *)a.dout)[pooled];
}

template <typename T, int N> static ht_status run_peak(ht_context *ctx, const pool_args &a) {
    dim3 grid((unsigned)hti_ceil(a.width, LANES * N), (unsigned)a.sequences);
    return a.dx ? hti_cuda_launch(ctx, pool_peak<T, N, 1>, "pooling", grid, THREADS, 0, a)
                : hti_cuda_launch(ctx, pool_peak<T, N, 0>, "pooling", grid, THREADS, 0, a);
}

/* ---- entries ---- */

static pool_args args_of(const hti_pool_call *c) {
    pool_args a = {};
    a.kind = c->kind, a.width = (int)c->width, a.sequences = c->sequences, a.rows = c->rows;
    a.start = c->start, a.count = c->count, a.mask = c->mask;
    a.x = c->x, a.out = c->out, a.dout = c->dout, a.dx = c->dx;
    return a;
}

template <typename T, int N> static ht_status run_mean(ht_context *ctx, pool_args a) {
    const char *name = "pooling";
    int64_t strips = hti_ceil(a.width, ACROSS * N);
    int64_t longest = hti_ceil(a.rows, a.sequences); /* about; a longer one takes more steps */
    int64_t parts = hti_ceil(4 * hti_cuda_of(ctx)->processors, strips * a.sequences);
    int64_t room = HTI_SUMS_BYTES / 4 / (a.sequences * a.width);
    if (parts > hti_ceil(longest, DOWN)) parts = hti_ceil(longest, DOWN);
    if (parts > room) parts = room;
    CHECK(ctx, parts >= 1 || room >= 1, HT_UNSUPPORTED,
          "%s: %lld sequences of width %lld are too many for a pooled mean", ctx->device,
          (long long)a.sequences, (long long)a.width);
    a.parts = parts < 1 ? 1 : (int)parts;
    a.partial = hti_model_of(ctx)->sums;
    dim3 grid((unsigned)strips, (unsigned)a.parts, (unsigned)a.sequences);
    TRY(hti_cuda_launch(ctx, pool_parts<T, N>, name, grid, THREADS, 0, a));
    return hti_cuda_launch(ctx, pool_mean<T>, name, dim3((unsigned)a.sequences), THREADS, 0, a);
}

template <typename T, int N> static ht_status run_mean_back(ht_context *ctx, const pool_args &a) {
    int64_t each = hti_ceil(hti_ceil(a.rows, a.sequences) * (a.width / N), 4 * THREADS);
    dim3 grid((unsigned)(each < 1 ? 1 : each), (unsigned)a.sequences);
    return hti_cuda_launch(ctx, pool_mean_back<T, N>, "pooling", grid, THREADS, 0, a);
}

ht_status hti_cuda_pool_forward(ht_context *ctx, const hti_pool_call *c) {
    hti_cuda_scope scope(ctx);
    pool_args a = args_of(c);
    if (c->kind <= HTI_POOL_LAST)
        return hti_cuda_launch(ctx, c->dtype == HT_BF16 ? pool_one<bf16> : pool_one<float>,
                               "pooling", dim3((unsigned)c->sequences), THREADS, 0, a);
    int wide = hti_wide_rows(c->width, hti_bytes(c->dtype), c->x);
    a.dx = NULL; /* forward */
    if (c->kind == HTI_POOL_MAX) return HTI_BY_TYPE(run_peak, c->dtype, wide, ctx, a);
    return HTI_BY_TYPE(run_mean, c->dtype, wide, ctx, a);
}

ht_status hti_cuda_pool_backward(ht_context *ctx, const hti_pool_call *c) {
    hti_cuda_scope scope(ctx);
    pool_args a = args_of(c);
    TRY(ctx->ops->fill(ctx, c->dx, 0, (size_t)(c->rows * c->width) * hti_bytes(c->dtype)));
    if (c->kind <= HTI_POOL_LAST)
        return hti_cuda_launch(ctx,
                               c->dtype == HT_BF16 ? pool_one_back<bf16> : pool_one_back<float>,
                               "pooling", dim3((unsigned)c->sequences), THREADS, 0, a);
    int wide = hti_wide_rows(c->width, hti_bytes(c->dtype), c->x, c->dx, c->dout);
    if (c->kind == HTI_POOL_MAX) return HTI_BY_TYPE(run_peak, c->dtype, wide, ctx, a);
    return HTI_BY_TYPE(run_mean_back, c->dtype, wide, ctx, a);
}

/* ---- pairs ---- */

template <typename T> static __global__ void match_rows(const hti_match_call m) {
    int64_t w = m.width, i = blockIdx.x;
    const T *a = (const T *)m.x + 2 * i * w, *b = a + w;
    T *out = (T *)m.out + 4 * i * w;
    for (int64_t c = threadIdx.x; c < w; c += THREADS) {
        float p = (float)a[c], q = (float)b[c];
        out[c] = a[c], out[w + c] = b[c];
        out[2 * w + c] = T(p * q), out[3 * w + c] = T(fabsf(p - q));
    }
}

template <typename T> static __global__ void match_back(const hti_match_call m) {
    int64_t w = m.width, i = blockIdx.x;
    const T *a = (const T *)m.x + 2 * i * w, *b = a + w, *d = (const T *)m.dout + 4 * i * w;
    T *da = (T *)m.dx + 2 * i * w, *db = da + w;
    for (int64_t c = threadIdx.x; c < w; c += THREADS) {
        float p = (float)a[c], q = (float)b[c], both = (float)d[2 * w + c];
        float far = (float)d[3 * w + c], turn = p > q ? far : p < q ? -far : 0;
        da[c] = T((float)d[c] + both * q + turn);
        db[c] = T((float)d[w + c] + both * p - turn);
    }
}

ht_status hti_cuda_match_forward(ht_context *ctx, const hti_match_call *c) {
    hti_cuda_scope scope(ctx);
    if (c->items == 0) return HT_OK;
    return hti_cuda_launch(ctx, c->dtype == HT_BF16 ? match_rows<bf16> : match_rows<float>,
                           "comparing pairs", dim3((unsigned)c->items), THREADS, 0, *c);
}

ht_status hti_cuda_match_backward(ht_context *ctx, const hti_match_call *c) {
    hti_cuda_scope scope(ctx);
    if (c->items == 0) return HT_OK;
    return hti_cuda_launch(ctx, c->dtype == HT_BF16 ? match_back<bf16> : match_back<float>,
                           "comparing pairs", dim3((unsigned)c->items), THREADS, 0, *c);
}

/* ---- rotary positions ---- */

struct rotary_args {
    int64_t count;            /* pairs of vectors in all */
    int heads, half, vectors; /* vectors of half a head */
    int64_t row_stride;
    float sign;
    const int32_t *positions;
    const float *turn;
    void *x;
};

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) rotate_rows(const rotary_args a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.count) return;
    int k = (int)(i % a.vectors) * N;
    int64_t rest = i / a.vectors, row = rest / a.heads;
    int head = (int)(rest % a.heads);
    T *at = (T *)a.x + row * a.row_stride + (int64_t)head * 2 * a.half + k;
    const float *turn = a.turn + ((int64_t)a.positions[row] * a.half + k) * 2;
    float p[N], q[N], x[N], y[N];
    load<N>(p, at);
    load<N>(q, at + a.half);
    for (int j = 0; j < N; j++) {
        float2 t = ((const float2 *)turn)[j];
        float c = t.x, s = a.sign * t.y;
        x[j] = p[j] * c - q[j] * s;
        y[j] = p[j] * s + q[j] * c;
    }
    store<N>(at, x);
    store<N>(at + a.half, y);
}

template <typename T, int N>
static ht_status run_rotary(ht_context *ctx, rotary_args a, int64_t rows) {
    a.vectors = a.half / N;
    a.count = rows * a.heads * a.vectors;
    return hti_cuda_launch(ctx, rotate_rows<T, N>, "turning rows",
                           dim3((unsigned)hti_ceil(a.count, THREADS)), THREADS, 0, a);
}

ht_status hti_cuda_rotary(ht_context *ctx, const hti_rotary_call *c) {
    hti_cuda_scope scope(ctx);
    rotary_args a = {};
    a.heads = (int)c->heads, a.half = (int)(c->head_dim / 2), a.row_stride = c->row_stride;
    a.sign = (float)c->sign, a.positions = c->positions, a.turn = (const float *)c->turn;
    a.x = c->x;
    int wide = hti_wide_rows(a.half, hti_bytes(c->dtype), c->x) &&
               hti_wide_rows(c->row_stride, hti_bytes(c->dtype));
    return HTI_BY_TYPE(run_rotary, c->dtype, wide, ctx, a, c->rows);
}
