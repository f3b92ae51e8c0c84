/*
 * Linear layers with few columns and many rows, where products are nothing but memory traffic: one
 * kernel reads the rows once, multiplies on tensor cores with weights that stay in registers, and
 * does all the rest (bias, GELU, dropout, residual; backward: the slope of the layer before, its
 * bias gradient, the weights' gradient) before it writes.
 *
 * A warp takes 16 rows at a time. Lane 4g + t has columns t*C/4 ... (t+1)*C/4 - 1 of rows g and
 * g + 8, as pairs: the order of columns in a product is free, so these are fragments of mma as they
 * come from memory, and what it gives lies the same way. Pair j of lane t stands for columns 2t and
 * 2t + 1 of the j-th 8 columns.
 */
#include "cuda/model/active.h"

enum { THREADS = 256, WARPS = THREADS / 32, ROWS = 16, LEAST_ROWS = 4096 };

struct slim_args {
    int64_t rows;
    const bf16 *x, *w, *bias, *add;
    bf16 *pre, *y;
    int activation; /* forward: of this layer; backward: of the one before */
    hti_drop drop;  /* likewise */
    const bf16 *dy, *before_pre;
    bf16 *dx;
    float *partial;      /* [blocks][OUT][IN] of dw */
    float *partial_bias; /* [blocks][IN] of before_dbias, or NULL */
};

/* ---- fragments ---- */

DEVICE void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Rows become columns of an 8 x 8 tile, a pair per lane. */
DEVICE uint32_t turned(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* A lane's C/4 columns of a row, from `at` on. */
template <int C> DEVICE void load_pairs(uint32_t (&p)[C / 8], const bf16 *at) {
    if constexpr (C % 32 == 0) {
#pragma unroll
        for (int i = 0; i < C / 32; i++) ((uint4 *)p)[i] = ((const uint4 *)at)[i];
    } else {
#pragma unroll
        for (int i = 0; i < C / 16; i++) ((uint2 *)p)[i] = ((const uint2 *)at)[i];
    }
}

template <int C> DEVICE void store_pairs(bf16 *at, const uint32_t (&p)[C / 8]) {
    if constexpr (C % 32 == 0) {
#pragma unroll
        for (int i = 0; i < C / 32; i++) ((uint4 *)at)[i] = ((const uint4 *)p)[i];
    } else {
#pragma unroll
        for (int i = 0; i < C / 16; i++) ((uint2 *)at)[i] = ((const uint2 *)p)[i];
    }
}

/* Column of number q (0 ... 7) of the j-th 8 columns. */
template <int C> DEVICE int column_at(int q, int j) { return q / 2 * (C / 4) + 2 * j + q % 2; }

/* Both rows of a lane; rows beyond the end are zero. */
template <int C>
DEVICE void load_tile(uint32_t (&p)[2][C / 8], const bf16 *from, int64_t row, int64_t rows, int t) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int i = 0; i < C / 8; i++) p[h][i] = 0;
        if (row + 8 * h < rows) load_pairs<C>(p[h], from + (row + 8 * h) * C + t * (C / 4));
    }
}

/* Dropout of a lane's C/4 columns of a row. */
template <int C> DEVICE void drop_columns(float *x, const hti_drop &d, int64_t row, int t) {
    const int N = C % 32 == 0 ? 8 : 4;
#pragma unroll
    for (int i = 0; i < C / 4; i += N)
        drop<N>(x + i, d, (uint32_t)row, (uint32_t)(t * (C / 4) + i));
}

/* ---- forward ---- */

/* What is done to one row of the product on its way out. */
template <int OUT>
DEVICE void finish_row(const slim_args &a, float *x, const float *bias, int64_t row, int t) {
    int64_t at = row * OUT + t * (OUT / 4);
    uint32_t p[OUT / 8];
#pragma unroll
    for (int i = 0; i < OUT / 4; i++) x[i] += bias[i];
    if (a.add) {
        load_pairs<OUT>(p, a.add + at);
#pragma unroll
        for (int i = 0; i < OUT / 8; i++)
            x[2 * i] += low_half(p[i]), x[2 * i + 1] += high_half(p[i]);
    }
    if (a.activation != HTI_LINEAR) {
#pragma unroll
        for (int i = 0; i < OUT / 8; i++) p[i] = two_halves(x[2 * i], x[2 * i + 1]);
        if (a.pre) store_pairs<OUT>(a.pre + at, p);
#pragma unroll
        for (int i = 0; i < OUT / 8; i++) {
            x[2 * i] = activate<bf16>(low_half(p[i]), a.activation);
            x[2 * i + 1] = activate<bf16>(high_half(p[i]), a.activation);
        }
        if (a.drop.threshold) drop_columns<OUT>(x, a.drop, row, t);
    }
#pragma unroll
    for (int i = 0; i < OUT / 8; i++) p[i] = two_halves(x[2 * i], x[2 * i + 1]);
    store_pairs<OUT>(a.y + at, p);
}

template <int IN, int OUT>
static __global__ void __launch_bounds__(THREADS, 2) slim_forward(const slim_args a) {
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    uint2 w[IN / 16][OUT / 8];
    float bias[OUT / 4];
#pragma unroll
    for (int j = 0; j < OUT / 8; j++)
#pragma unroll
        for (int s = 0; s < IN / 16; s++)
            w[s][j] = *(const uint2 *)(a.w + column_at<OUT>(g, j) * IN + t * (IN / 4) + 4 * s);
#pragma unroll
    for (int i = 0; i < OUT / 4; i++)
        bias[i] = a.bias ? __bfloat162float(a.bias[t * (OUT / 4) + i]) : 0;
    int64_t step = (int64_t)gridDim.x * WARPS * ROWS;
    int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * ROWS;
    uint32_t next[2][IN / 8], x[2][IN / 8];
    load_tile<IN>(next, a.x, first + g, a.rows, t);
    for (int64_t r = first; r < a.rows; r += step) {
        float c[OUT / 8][4] = {};
#pragma unroll
        for (int i = 0; i < IN / 4; i++) x[i % 2][i / 2] = next[i % 2][i / 2];
        load_tile<IN>(next, a.x, r + step + g, a.rows, t); /* on its way while this one is used */
#pragma unroll
        for (int s = 0; s < IN / 16; s++)
#pragma unroll
            for (int j = 0; j < OUT / 8; j++)
                multiply(c[j], x[0][2 * s], x[1][2 * s], x[0][2 * s + 1], x[1][2 * s + 1],
                         w[s][j].x, w[s][j].y);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float y[OUT / 4];
#pragma unroll
            for (int i = 0; i < OUT / 4; i++) y[i] = c[i / 2][2 * h + i % 2];
            if (r + g + 8 * h < a.rows) finish_row<OUT>(a, y, bias, r + g + 8 * h, t);
        }
    }
}

/* ---- backward ---- */

/* One row of dx through dropout and activation of the layer before; adds to its column sums. */
template <int IN>
DEVICE void finish_dx(const slim_args &a, float *x, float *sums, const uint32_t (&pre)[IN / 8],
                      int64_t row, int t) {
    int64_t at = row * IN + t * (IN / 4);
    uint32_t p[IN / 8];
    if (a.activation != HTI_LINEAR) {
#pragma unroll
        for (int i = 0; i < IN / 4; i++) x[i] = as_stored(x[i], (const bf16 *)nullptr);
        if (a.drop.threshold) drop_columns<IN>(x, a.drop, row, t);
#pragma unroll
        for (int i = 0; i < IN / 8; i++) {
            x[2 * i] *= slope<bf16>(low_half(pre[i]), a.activation);
            x[2 * i + 1] *= slope<bf16>(high_half(pre[i]), a.activation);
        }
    }
#pragma unroll
    for (int i = 0; i < IN / 8; i++) {
        p[i] = two_halves(x[2 * i], x[2 * i + 1]);
        sums[2 * i] += low_half(p[i]), sums[2 * i + 1] += high_half(p[i]);
    }
    store_pairs<IN>(a.dx + at, p);
}

/* The block's sums of dw, warp after warp, into its place of `partial`. */
template <int IN, int OUT>
DEVICE void keep_weights(const slim_args &a, const float (&dw)[OUT / 16][IN / 8][4]) {
    __shared__ float all[OUT * IN];
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4, warp = (int)threadIdx.x / 32;
    for (int w = 0; w < WARPS; w++) {
        if (warp == w)
#pragma unroll
            for (int m = 0; m < OUT / 16; m++)
#pragma unroll
                for (int j = 0; j < IN / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int row = column_at<OUT>(g, 2 * m + e / 2);
                        float *to = all + row * IN + column_at<IN>(2 * t + e % 2, j);
                        *to = w ? *to + dw[m][j][e] : dw[m][j][e];
                    }
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < OUT * IN; i += THREADS)
        a.partial[(int64_t)blockIdx.x * OUT * IN + i] = all[i];
}

template <int IN> DEVICE void keep_sums(const slim_args &a, float *sums) {
    __shared__ float all[WARPS][IN];
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < IN / 4; i++) {
        for (int o = 4; o < 32; o *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], o);
        if (lane < 4) all[threadIdx.x / 32][lane * (IN / 4) + i] = sums[i];
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < IN; c += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += all[w][c];
        a.partial_bias[(int64_t)blockIdx.x * IN + c] = sum;
    }
}

/* Weights as the second matrix of dx = dy w: rows of w are summed over, in pairs. */
template <int IN, int OUT>
DEVICE void load_weights(uint2 (&w)[OUT / 16][IN / 8], const bf16 *from, int g, int t) {
    const uint16_t *at = (const uint16_t *)from;
#pragma unroll
    for (int s = 0; s < OUT / 16; s++)
#pragma unroll
        for (int j = 0; j < IN / 8; j++) {
            const uint16_t *k = at + (t * (OUT / 4) + 4 * s) * IN + column_at<IN>(g, j);
            w[s][j] =
                make_uint2(k[0] | (uint32_t)k[IN] << 16, k[2 * IN] | (uint32_t)k[3 * IN] << 16);
        }
}

template <int IN, int OUT>
static __global__ void __launch_bounds__(THREADS, IN *OUT <= 1536 ? 2 : 1)
    slim_backward(const slim_args a) {
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    uint2 w[OUT / 16][IN / 8];
    float dw[OUT / 16][IN / 8][4] = {}, sums[IN / 4] = {};
    load_weights<IN, OUT>(w, a.w, g, t);
    int64_t step = (int64_t)gridDim.x * WARPS * ROWS;
    int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * ROWS;
    for (int64_t r = first; r < a.rows; r += step) {
        uint32_t x[2][IN / 8], dy[2][OUT / 8], pre[2][IN / 8];
        float c[IN / 8][4] = {};
        load_tile<OUT>(dy, a.dy, r + g, a.rows, t);
        load_tile<IN>(x, a.x, r + g, a.rows, t);
        if (a.activation != HTI_LINEAR) load_tile<IN>(pre, a.before_pre, r + g, a.rows, t);
#pragma unroll
        for (int s = 0; s < OUT / 16; s++)
#pragma unroll
            for (int j = 0; j < IN / 8; j++)
                multiply(c[j], dy[0][2 * s], dy[1][2 * s], dy[0][2 * s + 1], dy[1][2 * s + 1],
                         w[s][j].x, w[s][j].y);
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int i = 0; i < OUT / 8; i++) dy[h][i] = turned(dy[h][i]);
#pragma unroll
            for (int i = 0; i < IN / 8; i++) x[h][i] = turned(x[h][i]);
        }
#pragma unroll
        for (int m = 0; m < OUT / 16; m++)
#pragma unroll
            for (int j = 0; j < IN / 8; j++)
                multiply(dw[m][j], dy[0][2 * m], dy[0][2 * m + 1], dy[1][2 * m], dy[1][2 * m + 1],
                         x[0][j], x[1][j]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float d[IN / 4];
#pragma unroll
            for (int i = 0; i < IN / 4; i++) d[i] = c[i / 2][2 * h + i % 2];
            if (r + g + 8 * h < a.rows) finish_dx<IN>(a, d, sums, pre[h], r + g + 8 * h, t);
        }
    }
    keep_weights<IN, OUT>(a, dw);
    if (a.partial_bias) keep_sums<IN>(a, sums);
}

/* ---- from outside ---- */

/* Columns in and out that there are kernels for. */
#define SHAPES(X) X(16, 16) X(16, 32) X(32, 16) X(32, 32) X(32, 48) X(32, 64) X(64, 32)

int hti_slim_takes(const hti_linear_call *a) {
    int known = 0;
#define KNOWN(i, o) known |= a->in == i && a->out == o;
    SHAPES(KNOWN)
    return known && a->dtype == HT_BF16 && a->rows >= LEAST_ROWS &&
           hti_wide_rows(16, 2, a->x, a->w, a->y, a->pre) &&
           hti_wide_rows(16, 2, a->dy, a->dx, a->before_pre, a->add);
}

typedef void (*slim_kernel)(slim_args);

static slim_kernel kernel_of(const hti_linear_call *a, int backward) {
#define FIND(i, o) \
    if (a->in == i && a->out == o) return backward ? slim_backward<i, o> : slim_forward<i, o>;
    SHAPES(FIND)
    return NULL;
}

static int64_t blocks_of(const ht_context *ctx, int64_t rows, int each) {
    int64_t most = (int64_t)each * hti_cuda_of(ctx)->processors;
    int64_t blocks = hti_ceil(rows, WARPS * ROWS);
    return blocks < most ? blocks : most;
}

ht_status hti_slim_forward(ht_context *ctx, const hti_linear_call *a) {
    slim_args s = {};
    s.rows = a->rows, s.activation = a->activation;
    s.x = (const bf16 *)a->x, s.w = (const bf16 *)a->w, s.bias = (const bf16 *)a->bias;
    s.add = (const bf16 *)a->add, s.pre = (bf16 *)a->pre, s.y = (bf16 *)a->y;
    if (a->activation != HTI_LINEAR) s.drop = hti_drop_of(a->drop);
    return hti_cuda_launch(ctx, kernel_of(a, 0), "multiplying narrow rows",
                           dim3((unsigned)blocks_of(ctx, a->rows, 8)), THREADS, 0, s);
}

ht_status hti_slim_backward(ht_context *ctx, const hti_linear_call *a) {
    slim_args s = {};
    int64_t blocks = blocks_of(ctx, a->rows, 2);
    s.rows = a->rows, s.activation = a->before, s.drop = hti_drop_of(a->before_drop);
    s.x = (const bf16 *)a->x, s.w = (const bf16 *)a->w, s.dy = (const bf16 *)a->dy;
    s.dx = (bf16 *)a->dx, s.before_pre = (const bf16 *)a->before_pre;
    s.partial = hti_model_of(ctx)->sums;
    if (a->before != HTI_LINEAR && a->before_dbias)
        s.partial_bias = s.partial + blocks * a->in * a->out;
    TRY(hti_cuda_launch(ctx, kernel_of(a, 1), "multiplying narrow rows", dim3((unsigned)blocks),
                        THREADS, 0, s));
    TRY(hti_cuda_add_parts(ctx, (float *)a->dw, NULL, NULL, s.partial, blocks, a->in * a->out));
    if (!s.partial_bias) return HT_OK;
    return hti_cuda_add_parts(ctx, (float *)a->before_dbias, NULL, NULL, s.partial_bias, blocks,
                              a->in);
}
