/*
 * What the kernels of the decode state share: a call's arguments, a row's softmax.
 */
#ifndef HTI_CUDA_DECODE_H
#define HTI_CUDA_DECODE_H

#include "cuda/lane.h"

static const int WARPS = 8, THREADS = 32 * WARPS, CHUNK = 64, WIDEST = 256;

struct decode_sequence {
    int64_t position;
    int32_t start, length; /* first row in the call's tensors, rows to append */
    int32_t slot;
};

struct decode_args {
    hti_cache_level level[HTI_MAX_LEVELS];
    decode_sequence sequence[CHUNK]; /* of this launch */
    int first;                       /* number of sequence[0] in the call */
    int packed;
    ht_tensor q, k, v, out, lse;
    const float *bias;
    const uint8_t *key_mask, *query_mask;
    int64_t ring;
    double log2_theta; /* rotary base; 0: none */
    float scale;
    int kind, query, block;
    int q_heads, kv_heads, group;
    int head_dim, value_dim;
    /* opening (open.cu) */
    int64_t open, items;     /* items: rows times query heads */
    int peek, leaf_level;    /* opened clusters up to this level take part row by row */
    int64_t most, room_each; /* candidates; bytes of them that a block has in room, or 0 */
    char *room;
};
static_assert(sizeof(decode_args) <= 4096, "kernel arguments may take 4 KiB");

/* What a block works on. */
struct unit {
    decode_sequence s;
    int sequence, kv_head;
    int64_t state; /* slot * kv_heads + kv_head */
    int64_t ring;
};

template <typename T>
DEVICE T *tensor_row(const ht_tensor &t, const decode_args &a, const unit &u, int head,
                     int64_t row) {
    int64_t base = a.packed ? u.s.start * t.row_stride : u.sequence * t.batch_stride;
    return (T *)t.data + base + row * t.row_stride + head * t.head_stride;
}

/* ---- rotary ---- */

/* Turns of column pair i from one row to the next: theta^(-2i/d) / (2 pi). */
DEVICE double turns_per_row(const decode_args &a, int i) {
    return exp2(-2.0 * i / a.head_dim * a.log2_theta) * 0.15915494309189533577;
}

DEVICE void angle_at(float *c, float *s, double turns, int64_t row) {
    double part = (double)row * turns;
    sincospif((float)(2 * (part - rint(part))), s, c);
}

/* ---- softmax ---- */

/* A warp's softmax so far; every lane knows max and sum, z has the columns lane, lane + 32, ... */
template <int NC> struct softmax { float max, sum, z[NC]; };

template <int NC> DEVICE void clear(softmax<NC> &state) {
    state.max = -INFINITY, state.sum = 0;
    for (int x = 0; x < NC; x++) state.z[x] = 0;
}

/* open.cu: what a plan that opens does instead. args: of some sequences of the call */
void hti_cuda_open_args(decode_args *args, const hti_cache_call *call);
size_t hti_cuda_open_scratch(const hti_cache_call *call);
ht_status hti_cuda_extend_open(const ht_context *ctx, const decode_args &args, int sequences,
                               ht_dtype dtype);

#endif
