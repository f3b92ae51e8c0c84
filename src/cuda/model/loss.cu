/*
 * Softmax cross-entropy, some rows of logits at a time. Logits have the model's dtype and become
 * their own gradients in place; losses are added up over all rows in a fixed order.
 */
#include "cuda/model/loss.h"

enum { BLOCK = 512, WARPS = 8, SUM_THREADS = 1024 };
enum { LOGITS_BYTES = 256 << 20 }; /* of a chunk; every chunk reads and writes all of dW once */

/* ---- one row ---- */

DEVICE float exp_of(float x, const float *) { return expf(x); }
DEVICE float exp_of(float x, const bf16 *) { return __expf(x); }

template <typename T, int N>
DEVICE void load_logits(float *z, const loss_args &a, const T *row, int c) {
    float bias[N];
    load<N>(z, row + c);
    if (!a.bias) return;
    load<N>(bias, (const T *)a.bias + c);
    for (int i = 0; i < N; i++) z[i] += bias[i];
}

template <typename T, int N>
DEVICE row_state scan_row(const loss_args &a, const T *row, int thread, int threads) {
    row_state s = {-INFINITY, 0, 0x7fffffff};
    for (int c = thread * N; c < a.classes; c += threads * N) {
        float z[N], before = s.top;
        load_logits<T, N>(z, a, row, c);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (z[i] > s.top || s.best == 0x7fffffff) s.top = fmaxf(z[i], s.top), s.best = c + i;
        if (s.top > before) s.sum *= exp_of(before - s.top, row);
#pragma unroll
        for (int i = 0; i < N; i++) /* -inf beside -inf weighs nothing; NaN stays NaN */
            s.sum += z[i] == -INFINITY && s.top == -INFINITY ? 0 : exp_of(z[i] - s.top, row);
    }
    return s;
}

DEVICE row_state join(const row_state &a, const row_state &b) {
    row_state r;
    int take_b = b.top > a.top || (b.top == a.top && b.best < a.best);
    r.top = fmaxf(a.top, b.top);
    r.best = take_b ? b.best : a.best;
    float x = a.top == r.top ? 1 : expf(a.top - r.top),
          y = b.top == r.top ? 1 : expf(b.top - r.top);
    r.sum = a.sum * x + b.sum * y;
    return r;
}

DEVICE row_state join_warp(row_state s) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        row_state o;
        o.top = __shfl_xor_sync(0xffffffffu, s.top, step);
        o.sum = __shfl_xor_sync(0xffffffffu, s.sum, step);
        o.best = __shfl_xor_sync(0xffffffffu, s.best, step);
        /* the same order of operands in both lanes, so that both get the same bits */
        s = threadIdx.x & step ? join(o, s) : join(s, o);
    }
    return s;
}

template <typename T, int N>
DEVICE void gradient_row(const loss_args &a, T *row, const row_state &s, int target, int thread,
                         int threads) {
    double scale = a.step->in.loss_scale;
    float factor = (float)(scale / (double)s.sum), at_target = (float)scale;
    for (int c = thread * N; c < a.classes; c += threads * N) {
        float z[N];
        load_logits<T, N>(z, a, row, c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            z[i] = factor * exp_of(z[i] - s.top, row);
            if (c + i == target) z[i] -= at_target;
        }
        store<N>(row + c, z);
    }
}

template <typename T, int N>
DEVICE void clear_row(const loss_args &a, T *row, int thread, int threads) {
    float zero[N] = {0};
    for (int c = thread * N; c < a.classes; c += threads * N) store<N>(row + c, zero);
}

/* ---- few classes: a warp per row; many: a thread block ---- */

template <typename T, int N>
static __global__ void __launch_bounds__(WARPS * 32) loss_warps(const loss_args a) {
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= a.rows) return;
    T *z = (T *)a.logits + row * a.classes;
    int target = a.targets[a.first + row];
    row_state s = {0, 1, 0};
    float at[1] = {0};
    if (target >= 0) {
        s = join_warp(scan_row<T, N>(a, z, lane, 32));
        load_logits<T, 1>(at, a, z, target);
    }
    if (lane == 0) finish_row(a, row, s, at[0], target);
    __syncwarp();
    if (!a.back) return;
    if (target >= 0)
        gradient_row<T, N>(a, z, s, target, lane, 32);
    else
        clear_row<T, N>(a, z, lane, 32);
}

template <typename T, int N>
static __global__ void __launch_bounds__(BLOCK) loss_blocks(const loss_args a) {
    __shared__ row_state part[BLOCK / 32];
    int64_t row = blockIdx.x;
    T *z = (T *)a.logits + row * a.classes;
    int target = a.targets[a.first + row];
    row_state s = {0, 1, 0};
    float at[1] = {0};
    if (target >= 0) {
        s = join_warp(scan_row<T, N>(a, z, threadIdx.x, BLOCK));
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
        load_logits<T, 1>(at, a, z, target);
        __syncthreads();
        s = part[0];
        for (int i = 1; i < BLOCK / 32; i++) s = join(s, part[i]);
    }
    if (threadIdx.x == 0) finish_row(a, row, s, at[0], target);
    if (!a.back) return;
    if (target >= 0)
        gradient_row<T, N>(a, z, s, target, threadIdx.x, BLOCK);
    else
        clear_row<T, N>(a, z, threadIdx.x, BLOCK);
}

/* ---- language models: a bf16 row without bias stays in registers, NV vectors in each thread;
 * where rows can stream, loss_ring.cu is faster ---- */

/* The largest over the thread block. NaN is larger than all. */
DEVICE float max_block(float x) {
    __shared__ float part[32];
    for (int step = 16; step > 0; step /= 2)
        x = max_or_nan(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0];
    for (int i = 1; i < (int)blockDim.x / 32; i++) x = max_or_nan(x, part[i]);
    return x;
}

template <int NV> static __global__ void __launch_bounds__(1024) loss_held(const loss_args a) {
    const bf16 *tag = nullptr;
    int64_t row = blockIdx.x;
    bf16 *z = (bf16 *)a.logits + row * a.classes;
    int target = a.targets[a.first + row], threads = (int)blockDim.x, vectors = a.classes / 8;
    if (target < 0) {
        if (threadIdx.x == 0) finish_row(a, row, {0, 1, 0}, 0, target);
        if (a.back) clear_row<bf16, 8>(a, z, threadIdx.x, threads);
        return;
    }
    uint4 held[NV];
    float x[8], top = -INFINITY, sum = 0, at = __bfloat162float(z[target]);
#pragma unroll
    for (int v = 0; v < NV; v++) { /* beyond the end: -inf, which weighs nothing */
        int i = v * threads + (int)threadIdx.x;
        held[v] = make_uint4(0xff80ff80u, 0xff80ff80u, 0xff80ff80u, 0xff80ff80u);
        if (i < vectors) held[v] = ((const uint4 *)z)[i];
    }
#pragma unroll
    for (int v = 0; v < NV; v++) {
        unpack(x, held[v], tag);
#pragma unroll
        for (int i = 0; i < 8; i++) top = max_or_nan(top, x[i]);
    }
    top = max_block(top);
    int before = 0; /* logits as large as the target's that come first */
#pragma unroll
    for (int v = 0; v < NV; v++) {
        unpack(x, held[v], tag);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += __expf(x[i] - top);
        if (at == top)
            for (int i = 0; i < 8; i++)
                before += x[i] == top && (v * threads + (int)threadIdx.x) * 8 + i < target;
    }
    sum = sum_block(sum);
    before = sum_block(before);
    row_state s = {top, sum, at == top && before == 0 ? target : -1};
    if (threadIdx.x == 0) finish_row(a, row, s, at, target);
    if (!a.back) return;
    double scale = a.step->in.loss_scale;
    float factor = (float)(scale / (double)sum);
#pragma unroll
    for (int v = 0; v < NV; v++) {
        int i = v * threads + (int)threadIdx.x;
        if (i >= vectors) continue;
        unpack(x, held[v], tag);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            x[k] = factor * __expf(x[k] - top);
            if (i * 8 + k == target) x[k] -= (float)scale;
        }
        store<8>(z + i * 8, x);
    }
}

/* As many threads as hold the row in at most eight vectors each. */
static ht_status run_held(ht_context *ctx, const loss_args &a) {
    int threads = a.classes <= 32768 ? 512 : 1024, vectors = a.classes / 8;
    auto kernel = vectors <= threads       ? loss_held<1>
                  : vectors <= 2 * threads ? loss_held<2>
                  : vectors <= 4 * threads ? loss_held<4>
                                           : loss_held<8>;
    return hti_cuda_launch(ctx, kernel, "loss", dim3((unsigned)a.rows), threads, 0, a);
}

template <typename T, int N> static ht_status run_rows(ht_context *ctx, const loss_args &a) {
    int held = sizeof(T) == 2 && N == 8 && !a.bias && a.classes > 1024 && a.classes <= 65536;
    if (held) return hti_loss_ring_takes(ctx, a) ? hti_loss_ring(ctx, a) : run_held(ctx, a);
    if (a.classes > 4096)
        return hti_cuda_launch(ctx, loss_blocks<T, N>, "loss", dim3((unsigned)a.rows), BLOCK, 0, a);
    return hti_cuda_launch(ctx, loss_warps<T, N>, "loss", dim3((unsigned)hti_ceil(a.rows, WARPS)),
                           WARPS * 32, 0, a);
}

/* ---- all rows ---- */

static __global__ void __launch_bounds__(SUM_THREADS) loss_sum(const loss_args a) {
    double loss = 0, hits = 0, targets = 0;
    for (int64_t i = threadIdx.x; i < a.rows; i += SUM_THREADS) {
        loss += a.loss[i];
        hits += a.hit[i];
        targets += a.targets[i] >= 0;
    }
    loss = sum_block(loss);
    hits = sum_block(hits);
    targets = sum_block(targets);
    if (threadIdx.x) return;
    a.step->out.loss += loss;
    a.step->out.correct += hits;
    a.step->out.targets += targets;
}

/* Rows of a chunk: whole tiles of the product. */
static int64_t chunk_of(const hti_loss_call *c) {
    int64_t rows = LOGITS_BYTES / (c->classes * (int64_t)hti_bytes(c->dtype)) / 128 * 128;
    if (rows < 128) rows = 128;
    return rows < c->rows ? rows : c->rows;
}

static size_t carve(loss_args *a, const hti_loss_call *c) {
    hti_carver carver = {(char *)c->scratch, 0};
    a->logits = carver.take<char>(chunk_of(c) * c->classes * (int64_t)hti_bytes(c->dtype));
    a->loss = carver.take<double>(c->rows);
    a->hit = carver.take<int32_t>(c->rows);
    return carver.used;
}

size_t hti_cuda_loss_scratch(const ht_context *ctx, const hti_loss_call *call) {
    hti_loss_call measure = *call;
    loss_args a;
    (void)ctx;
    measure.scratch = NULL;
    return carve(&a, &measure);
}

static ht_status logits_of(ht_context *ctx, const hti_loss_call *c, const loss_args &a,
                           const void *x) {
    hti_gemm g = {};
    g.dtype = c->dtype, g.m = a.rows, g.n = c->classes, g.k = c->width;
    g.a = x, g.lda = c->width;
    g.b = c->w, g.ldb = c->width, g.transpose_b = 1;
    g.c = a.logits, g.ldc = c->classes;
    return hti_cuda_gemm(ctx, &g);
}

/* Rows a.first ... a.first + a.rows - 1. */
static ht_status run_chunk(ht_context *ctx, const hti_loss_call *c, const loss_args &a) {
    size_t at = (size_t)(a.first * c->width) * hti_bytes(c->dtype);
    const char *x = (const char *)c->x + at;
    int wide = hti_wide_rows(c->classes, hti_bytes(c->dtype), a.logits, c->bias);
    TRY(logits_of(ctx, c, a, x));
    TRY(HTI_BY_TYPE(run_rows, c->dtype, wide, ctx, a));
    if (!c->dx) return HT_OK;
    hti_linear_call back = {};
    back.dtype = c->dtype, back.activation = HTI_LINEAR;
    back.rows = a.rows, back.in = c->width, back.out = c->classes;
    back.x = x, back.w = c->w, back.dy = a.logits;
    back.dx = (char *)c->dx + at, back.dw = c->dw, back.dbias = c->dbias;
    return hti_cuda_linear_backward(ctx, &back);
}

ht_status hti_cuda_loss(ht_context *ctx, const hti_loss_call *c) {
    hti_cuda_scope scope(ctx);
    loss_args a = {};
    int64_t chunk = chunk_of(c);
    carve(&a, c);
    a.classes = (int)c->classes, a.back = c->dx != NULL, a.bias = c->bias;
    a.targets = c->targets, a.step = c->step, a.row_loss = (float *)c->row_loss;
    a.row_hit = c->row_hit;
    for (a.first = 0; a.first < c->rows; a.first += chunk) {
        a.rows = c->rows - a.first < chunk ? c->rows - a.first : chunk;
        TRY(run_chunk(ctx, c, a));
    }
    a.first = 0, a.rows = c->rows;
    return hti_cuda_launch(ctx, loss_sum, "loss", dim3(1), SUM_THREADS, 0, a);
}
