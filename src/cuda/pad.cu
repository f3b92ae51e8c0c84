/*
 * Rows that no fast kernel takes as they lie: other sizes than powers of two, values of another
 * size than keys, views out of step with 16 bytes. They are copied into scratch, side by side and
 * filled up with zeros to 16, 32, 64 or 128 columns; the call runs on the copies; results are
 * copied back. Zeros add nothing to a product, and what they get is dropped.
 *
 * Rotary positions turn column i with column i + dim / 2: each half is filled up by itself.
 */
#include "cuda/cuda.h"

enum { THREADS = 256, TENSORS = 8 };

struct pad_tensor {
    ht_tensor rows, wide; /* the caller's, the copy */
    int heads, dim, half; /* half: of the columns that are turned, or 0 */
};

struct pad_args {
    pad_tensor t[TENSORS];
    int64_t rows, length; /* length 0: packed */
    int width;
};

/* Where column c of the caller's row is in the copy. */
DEVICE int padded_column(const pad_tensor &t, int width, int c) {
    return t.half && c >= t.half ? width / 2 + c - t.half : c;
}

/* The column that column c of the copy comes from; -1: none. */
DEVICE int source_column(const pad_tensor &t, int width, int c) {
    if (!t.half) return c < t.dim ? c : -1;
    int second = c >= width / 2, i = second ? c - width / 2 : c;
    return i < t.half ? i + second * t.half : -1;
}

DEVICE uint16_t *row_of(const ht_tensor &t, const pad_args &a, int64_t row, int head) {
    int64_t at = row * t.row_stride;
    if (a.length) at = row / a.length * t.batch_stride + row % a.length * t.row_stride;
    return (uint16_t *)t.data + at + head * t.head_stride;
}

/* A thread per 8 columns of a copy; y: tensor */
template <bool BACK>
static __global__ void __launch_bounds__(THREADS) pad_copy(const __grid_constant__ pad_args a) {
    const pad_tensor &t = a.t[blockIdx.y];
    int chunks = a.width / 8;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / chunks / t.heads;
    int c = (int)(i % chunks) * 8, head = (int)(i / chunks % t.heads);
    if (row >= a.rows) return;
    uint16_t *rows = row_of(t.rows, a, row, head), *wide = row_of(t.wide, a, row, head);
    if constexpr (BACK) {
        for (int k = c; k < c + 8 && k < t.dim; k++) rows[k] = wide[padded_column(t, a.width, k)];
    } else {
        uint32_t x[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int from = source_column(t, a.width, c + k);
            x[k] = from >= 0 ? rows[from] : 0;
        }
        *(uint4 *)(wide + c) =
            make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
    }
}

/* Copies tensors `from` ... `from + count - 1`. */
static ht_status copy(const ht_context *ctx, const pad_args &all, int from, int count, int back) {
    pad_args a = all;
    int heads = 1;
    for (int i = 0; i < count; i++) {
        a.t[i] = all.t[from + i];
        if (a.t[i].heads > heads) heads = a.t[i].heads;
    }
    int64_t work = a.rows * heads * (a.width / 8);
    dim3 grid((unsigned)((work + THREADS - 1) / THREADS), (unsigned)count);
    if (back)
        return hti_cuda_launch(ctx, pad_copy<true>, "copying results back", grid, THREADS, 0, a);
    return hti_cuda_launch(ctx, pad_copy<false>, "copying rows", grid, THREADS, 0, a);
}

/* q, k, v, dout, out, dq, dk, dv: what comes in, what forward gives, what backward gives. */
enum { DOUT = 3, OUT = 4, GRADS = 5 };

size_t hti_pad_bytes(const ht_attention_desc *padded, int64_t rows, int backward) {
    return (size_t)(rows * (padded->q_heads + padded->kv_heads) * padded->head_dim) *
           (backward ? 8 : 4);
}

/* The call on copies, and what is copied. */
static void lay(pad_args *a, hti_attention_call *to, const ht_attention_desc *padded,
                const hti_attention_call *c, int backward) {
    const ht_attention_desc *d = c->desc;
    hti_pad_call(to, padded, c);
    int q = (int)d->q_heads, kv = (int)d->kv_heads, k = (int)d->head_dim, v = (int)d->value_dim;
    int turned = d->rotary_theta > 0 ? k / 2 : 0;
    const pad_tensor all[TENSORS] = {{c->q, to->q, q, k, turned},    {c->k, to->k, kv, k, turned},
                                     {c->v, to->v, kv, v, 0},        {c->dout, to->dout, q, v, 0},
                                     {c->out, to->out, q, v, 0},     {c->dq, to->dq, q, k, turned},
                                     {c->dk, to->dk, kv, k, turned}, {c->dv, to->dv, kv, v, 0}};
    ht_tensor *wide[TENSORS] = {&to->q,   &to->k,  &to->v,  &to->dout,
                                &to->out, &to->dq, &to->dk, &to->dv};
    char *at = (char *)(((uintptr_t)c->scratch + 255) / 256 * 256);
    a->rows = c->rows, a->length = c->cu_seqlens ? 0 : c->length, a->width = (int)padded->head_dim;
    for (int i = 0; i < TENSORS; i++) {
        a->t[i] = all[i];
        if (!backward && (i == DOUT || i >= GRADS)) continue;
        a->t[i].wide.data = wide[i]->data = at;
        at += c->rows * all[i].heads * padded->head_dim * 2;
    }
    to->scratch = at;
}

static ht_status padded_call(ht_context *ctx, const hti_attention_call *call, int backward) {
    ht_attention_desc padded;
    hti_attention_call inner;
    pad_args a = {};
    hti_pad_desc(&padded, call->desc);
    lay(&a, &inner, &padded, call, backward);
    TRY(copy(ctx, a, 0, backward ? GRADS : DOUT, 0));
    TRY(backward ? hti_cuda_attention_backward(ctx, &inner)
                 : hti_cuda_attention_forward(ctx, &inner));
    return backward ? copy(ctx, a, GRADS, 3, 1) : copy(ctx, a, OUT, 1, 1);
}

ht_status hti_padded_forward(ht_context *ctx, const hti_attention_call *call) {
    return padded_call(ctx, call, 0);
}

ht_status hti_padded_backward(ht_context *ctx, const hti_attention_call *call) {
    return padded_call(ctx, call, 1);
}
