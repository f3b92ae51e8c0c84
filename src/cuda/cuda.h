/*
 * Inside of the CUDA back end: its state, how errors and launches are checked, and the one struct
 * of arguments that every attention kernel takes.
 *
 * Conventions that the generic and the tuned kernels share:
 *   saved    lse, float [q_heads][rows], rows counted over all sequences of the call; a row that
 *            sees no key, and a masked query, hold -inf
 *   pyramid  levels >= 1 of all sequences of a call in one array, [heads][clusters][dim]; cluster
 *            c of level l of the sequence that starts at row s lies at hti_cluster_at(a, s, l) + c
 *   weights  K~ and V~ are means over valid rows, n is their number: P = n * exp(s - lse)
 */
#ifndef HTI_CUDA_H
#define HTI_CUDA_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" {
#include "core/hier.h"
#include "core/philox.h"
#include "cuda/families.h"
#include "op.h"
}

#define HTI_LOG2E 1.4426950408889634f
#define HTI_LN2 0.69314718055994531f
#define HTI_POS_INF __int_as_float(0x7f800000)
#define HTI_NEG_INF __int_as_float(0xff800000)

#define HTI_CUDA_LEVELS 32 /* rows fit in 31 bits, so a sequence has fewer levels than this */

/* ---- the back end's state (device.cu), errors, launches (launch.cu) -------------------------- */

#define HTI_TOLD 64

/* Functions of kernels. */
#define DEVICE static __device__ __forceinline__

typedef struct hti_cuda_backend {
    int device;
    int own_stream;
    int processors; /* streaming multiprocessors */
    int capability; /* 90 for 9.0 */
    int built_for; /* 90: the kernels that run there were compiled for 9.0, not for what is older */
    int warpgroups; /* and for 9.0a: those on products of warpgroups (wide.h) have something in them
                     */
    int shared_bytes;           /* shared memory that one block may ask for */
    const void *told[HTI_TOLD]; /* kernels that may ask for more than 48 KiB; see launch.cu */
    cudaStream_t stream;
    char name[96];
    char *post;    /* host memory that the device can read, see post_open; or NULL */
    size_t posted; /* bytes in use until the stream is next waited for */
} hti_cuda_backend;

static inline hti_cuda_backend *hti_cuda_of(const ht_context *ctx) {
    return (hti_cuda_backend *)ctx->backend;
}

/* The sentence of a failed call ("while doing ..."); clears the error where CUDA lets us. */
ht_status hti_cuda_fail(const ht_context *ctx, cudaError_t error, const char *doing);

#define CUDA_TRY(ctx, expr, doing)                                               \
    do {                                                                         \
        cudaError_t error_ = (expr);                                             \
        if (error_ != cudaSuccess) return hti_cuda_fail((ctx), error_, (doing)); \
    } while (0)

/* Makes the context's device current and gives the caller's back at the end of the scope. */
struct hti_cuda_scope {
    int before, changed;
    explicit hti_cuda_scope(const ht_context *ctx);
    ~hti_cuda_scope();
};

/* To be called before a launch with that much dynamic shared memory. */
ht_status hti_cuda_allow_shared(const ht_context *ctx, const void *kernel, const char *name,
                                size_t shared);
ht_status hti_cuda_launch_raw(const ht_context *ctx, const void *kernel, const char *name,
                              dim3 grid, int threads, size_t shared, void *args);

/* Every kernel takes one struct by value. An empty grid launches nothing. */
template <typename Args>
static inline ht_status hti_cuda_launch(const ht_context *ctx, void (*kernel)(Args),
                                        const char *name, dim3 grid, int threads, size_t shared,
                                        const Args &args) {
    Args copy = args;
#ifdef HTI_CUDA_HOST /* kernels are host functions, see tests/cuda_host */
    host::know(kernel);
#endif
    return hti_cuda_launch_raw(ctx, (const void *)kernel, name, grid, threads, shared, &copy);
}

/* Host integers into device memory by kernel arguments, so that a captured graph owns them. */
ht_status hti_cuda_upload(const ht_context *ctx, int32_t *dst, const int32_t *src, int64_t count);

/* ---- arguments of the attention kernels ----------------------------------------------------- */

typedef struct hti_cuda_args {
    /* the call */
    int sequences, length; /* length: of each; packed: of the longest */
    int levels;            /* of the longest sequence; 1 for the kinds full and local */
    int64_t rows;
    const int32_t *cu; /* device [sequences + 1], or NULL: equal lengths */
    int kind, query, causal, block;
    int q_heads, kv_heads, group; /* group = q_heads / kv_heads */
    int head_dim, value_dim;
    float scale;
    float keep;         /* dropout: 1 / (1 - p) */
    uint32_t threshold; /* dropout: words below it drop; 0: no dropout */
    uint32_t offset;
    const uint32_t *offset_device; /* the offset of a captured graph, or NULL */
    uint64_t seed;
    double theta; /* rotary base, 0: none */
    ht_tensor q, k, v, out, lse, dout, dlse, dq, dk, dv;
    const float *bias; /* [4*block - 1][q_heads] */
    float *dbias;
    const uint8_t *key_mask, *query_mask; /* [rows] */
    float *saved;                         /* lse [q_heads][rows]; NULL: inference */

    /* levels >= 1, for all sequences: pyramids of `clusters` rows per head */
    int64_t clusters;
    int64_t base[HTI_CUDA_LEVELS]; /* first row of a level */
    float *kt, *vt;                /* [kv_heads][clusters][head_dim | value_dim] means */
    float *kn, *qn;                /* [clusters] valid keys, valid queries (query mean) */
    float *qt;                     /* query mean: [q_heads][clusters][head_dim] */
    int *first;   /* query first with a query mask: [clusters] row in its sequence, -1: none */
    float *part;  /* forward: [q_heads][clusters][2] max and sum ... */
    float *partz; /* ... and numerator [q_heads][clusters][value_dim] */
    float *turn;  /* rotary: [length][head_dim / 2][2] cosine, sine */
    /* narrow kernels with dropout, or NULL: which weights stay, see narrow.h */
    uint8_t *row_keeps, *cluster_keeps;

    /* backward */
    float *h;         /* [q_heads][rows] <dout, out> - dlse */
    float *gm, *gh;   /* [q_heads][clusters] smallest lse of the cluster's rows, weighted h */
    float *gt;        /* [q_heads][clusters][value_dim] weighted dout */
    float *dqt;       /* [q_heads][clusters][head_dim]; shares its place with qt */
    float *dkt, *dvt; /* [kv_heads][clusters][head_dim | value_dim] */
    float *pieces;    /* query fine: partial dK~ and dV~, see generic/backward.cu */
    float *bias_part; /* [bias_parts][q_heads][4*block - 1] */
    int bias_parts;

    /* of one launch */
    int coarse;     /* the levels >= 1; else level 0 (fine: each row, all levels) */
    int other;      /* rows of the partner tile: 32, or 16 where 32 do not fit */
    int stage;      /* coarsening: the level that is read */
    int piece_rows; /* query fine: rows of a piece */
    int64_t work;   /* all of it; of each level, where there are several: */
    int64_t level_work[HTI_CUDA_LEVELS];
} hti_cuda_args;

/* run(a number of the type that a plan has). */
template <typename Run> static inline ht_status hti_by_dtype(ht_dtype dtype, Run run) {
    if (dtype == HT_BF16) return run(__nv_bfloat16());
    if (dtype == HT_F16) return run(__half());
    return run(float());
}

/* Scratch is carved by the same code that measures it: base NULL measures. */
struct hti_carver {
    char *base;
    size_t used;
    template <typename T> T *take(int64_t count) {
        char *at = base ? base + used : (char *)0;
        used += ((size_t)count * sizeof(T) + 255) / 256 * 256;
        return (T *)at;
    }
};

HTI_FN int64_t hti_cluster_at(const hti_cuda_args &a, int64_t start, int level) {
    return a.base[level] + (start >> level) + start / ((int64_t)a.block << level);
}

/* ---- the generic kernels: every mode, every shape -------------------------------------------- */

/* Levels >= 1 of k, v and, in mean and first, q (generic/coarsen.cu). */
ht_status hti_cuda_coarsen(const ht_context *ctx, const hti_cuda_args &args, ht_dtype dtype);
/* The first valid row of each cluster (query first with a query mask). */
ht_status hti_cuda_first(const ht_context *ctx, const hti_cuda_args &args);
/* Cosines and sines of the rotary positions. */
ht_status hti_cuda_turn(const ht_context *ctx, const hti_cuda_args &args);
/* h of each row, then levels >= 1 of (min lse, h, dout). */
ht_status hti_cuda_restrict(const ht_context *ctx, const hti_cuda_args &args, ht_dtype dtype);

size_t hti_generic_forward_shared(const hti_cuda_args &args);
size_t hti_generic_backward_shared(const hti_cuda_args &args);
ht_status hti_generic_forward(const ht_context *ctx, const hti_cuda_args &args, ht_dtype dtype);
ht_status hti_generic_backward(const ht_context *ctx, const hti_cuda_args &args, ht_dtype dtype);
/* The bias gradient of any kernels that leave tables of sums in bias_part: before and after them;
 * nothing where it is not wanted. */
ht_status hti_bias_sums_clear(const ht_context *ctx, const hti_cuda_args &args);
ht_status hti_bias_sums_add(const ht_context *ctx, const hti_cuda_args &args);
/* Rows of a piece and rows of the partial sums that backward needs in query fine. */
int64_t hti_generic_pieces(hti_cuda_args *args);

/* ---- calls on copies with more columns, aligned (pad.cu): HTI_PADDED --------------------------
 */

/* What the copies take, rounding up of the address aside; padded: by hti_pad_desc. */
size_t hti_pad_bytes(const ht_attention_desc *padded, int64_t rows, int backward);
ht_status hti_padded_forward(ht_context *ctx, const hti_attention_call *call);
ht_status hti_padded_backward(ht_context *ctx, const hti_attention_call *call);

/* ---- only first rows are wanted (tower/first.cu): calls with `first` set
 * ----------------------------
 */

/* cu: device [sequences + 1], or NULL: equal lengths. saved: [sequences][heads] lse, log2 units. */
int hti_first_plans(const hti_cuda_backend *backend, const ht_attention_desc *desc);
ht_status hti_first_forward(ht_context *ctx, const hti_attention_call *call, const int32_t *cu);
ht_status hti_first_backward(ht_context *ctx, const hti_attention_call *call, const int32_t *cu);

/* ---- what the kernel table points to --------------------------------------------------------- */

int hti_cuda_attention_first(const ht_context *ctx, const ht_attention_desc *desc);
ht_status hti_cuda_attention_check(ht_context *ctx, const ht_attention_desc *desc);
void hti_cuda_attention_need(const ht_context *ctx, const ht_attention_desc *desc,
                             ht_attention_need *need);
void hti_cuda_attention_kernels(const ht_context *ctx, const hti_attention_call *call, int backward,
                                ht_kernels_info *out);
void hti_cuda_attention_need_aligned(const ht_context *ctx, const ht_attention_desc *desc,
                                     ht_attention_need *need);
ht_status hti_cuda_attention_forward(ht_context *ctx, const hti_attention_call *call);
ht_status hti_cuda_attention_backward(ht_context *ctx, const hti_attention_call *call);
size_t hti_cuda_cache_scratch(const ht_context *ctx, const hti_cache_call *call);
ht_status hti_cuda_cache_extend(ht_context *ctx, const hti_cache_call *call);

#endif
