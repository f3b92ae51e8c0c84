/*
 * htransformer.h - attention whose cost is linear in the length of the sequence.
 *
 * How to use it, in five calls (a whole program is examples/attend.c):
 *
 *     ht_context *ctx;                      // a device: "cpu", "cuda:0", "auto"
 *     ht_context_create(&ctx, NULL);        // NULL: the CPU; tensors lie in its memory
 *
 *     ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
 *     desc.q_heads = 8; desc.head_dim = 64; desc.max_rows = 4096;
 *     ht_attention *plan;
 *     ht_attention_create(&plan, ctx, &desc);
 *
 *     ht_attention_args args = HT_ATTENTION_ARGS_INIT;
 *     args.batch = 1; args.length = 4096;
 *     args.q.data = q; args.k.data = k; args.v.data = v; args.out.data = z;
 *     ht_attention_forward(plan, &args);    // docs/attention.md says what it computes
 *
 * Every fallible function returns an ht_status; ht_context_error(ctx) then holds one sentence
 * with the values at fault. A failed create leaves the handle NULL. The library never prints,
 * exits or aborts. Structs that may grow begin with their size: start from the initialiser
 * macro; a field left zero takes its default. docs/api.md says what that promises to programs
 * that were built for an older or a newer library.
 *
 * Threads: a context and everything made from it belong to one thread at a time. Two contexts
 * share nothing.
 *
 * Memory: on "cuda:N" all tensors, masks, bias, lse, saved and scratch are device memory;
 * descriptors, cu_seqlens and slot lists are always host memory; saved and scratch begin at a
 * multiple of 256 bytes there, as cudaMalloc gives it. Calls on CUDA are asynchronous on the
 * context's stream.
 */
#ifndef HTRANSFORMER_H
#define HTRANSFORMER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(HT_STATIC)
#define HT_API
#elif defined(__GNUC__)
#define HT_API __attribute__((visibility("default")))
#else
#define HT_API
#endif

#define HT_VERSION_MAJOR 0
#define HT_VERSION_MINOR 1
#define HT_VERSION_PATCH 0

/* ---- status ------------------------------------------------------------------------------ */

/* The one list of results: X(name, number, text). */
#define HT_STATUS_MAP(X)                                   \
    X(OK, 0, "success")                                    \
    X(END, 1, "nothing left to read")                      \
    X(INVALID, 2, "an argument is wrong")                  \
    X(NOMEM, 3, "out of memory")                           \
    X(IO, 4, "a file could not be read or written")        \
    X(FORMAT, 5, "a file or buffer is not what it claims") \
    X(UNSUPPORTED, 6, "this build or device cannot do it") \
    X(DEVICE, 7, "the device failed")                      \
    X(DIVERGED, 8, "training diverged")

typedef enum ht_status {
#define HT_STATUS_ENUM(name, number, text) HT_##name = number,
    HT_STATUS_MAP(HT_STATUS_ENUM)
#undef HT_STATUS_ENUM
} ht_status;

HT_API const char *ht_status_name(ht_status status); /* "INVALID" */
HT_API const char *ht_status_text(ht_status status); /* "an argument is wrong" */
HT_API const char *ht_version(void);                 /* "0.1.0" */

/* ---- devices and contexts ---------------------------------------------------------------- */

typedef struct ht_context ht_context;

/* Where the library takes host memory from; all NULL: malloc and free. Blocks must be aligned
 * to 64 bytes. */
typedef struct ht_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void (*release)(void *user, void *block);
    void *user;
} ht_allocator;

typedef struct ht_context_desc {
    size_t size;
    const char *device; /* "cpu", "cpu:ref", "cpu:avx2", "cpu:avx512", "cuda:0"; "auto": cuda:0
                           where it can be used, else "cpu"; NULL: what the environment's
                           HTRANSFORMER_DEVICE names, else "cpu" */
    int threads;        /* CPU threads; 0: OpenMP's default */
    void *stream;       /* the caller's cudaStream_t; NULL: a stream of the context's own */
    ht_allocator allocator;
} ht_context_desc;
#define HT_CONTEXT_DESC_INIT \
    { .size = sizeof(ht_context_desc) }

HT_API ht_status ht_context_create(ht_context **out, const ht_context_desc *desc);
HT_API void ht_context_destroy(ht_context *ctx);

/* The sentence of the last failure on this context; with NULL, of the last context that could
 * not be created on this thread. Never NULL. */
HT_API const char *ht_context_error(const ht_context *ctx);
HT_API const char *ht_context_device(const ht_context *ctx); /* what was taken: "cpu:avx512" */
HT_API int ht_context_threads(const ht_context *ctx);
HT_API ht_status ht_context_synchronize(ht_context *ctx); /* wait for all calls made so far */

/* What this build knows and what this machine has: device i of ht_device_count(). */
typedef struct ht_device_info {
    size_t size;
    const char *name;  /* "cpu:avx2"; what ht_context_desc.device takes */
    const char *about; /* one line; if not available, why not */
    int available;
    int chosen; /* this is what "cpu" means here */
} ht_device_info;
#define HT_DEVICE_INFO_INIT \
    { .size = sizeof(ht_device_info) }
HT_API int ht_device_count(void);
HT_API ht_status ht_device_get(int index, ht_device_info *out);

/* Memory of the context's device (64-byte aligned), so that a program needs no CUDA headers.
 * copy_in and copy_out wait until the copy is done. */
HT_API ht_status ht_memory_alloc(ht_context *ctx, void **out, size_t bytes);
HT_API void ht_memory_free(ht_context *ctx, void *block);
HT_API ht_status ht_memory_copy_in(ht_context *ctx, void *device_dst, const void *host_src,
                                   size_t bytes);
HT_API ht_status ht_memory_copy_out(ht_context *ctx, void *host_dst, const void *device_src,
                                    size_t bytes);
/* Within the device; on CUDA asynchronous on the context's stream. */
HT_API ht_status ht_memory_copy(ht_context *ctx, void *device_dst, const void *device_src,
                                size_t bytes);

/* ---- attention --------------------------------------------------------------------------- */

typedef enum ht_dtype { HT_F32 = 0, HT_BF16 = 1, HT_F64 = 2, HT_F16 = 3 } ht_dtype;

typedef enum ht_kind {
    HT_HIERARCHICAL = 0, /* linear in the length */
    HT_FULL = 1,         /* exact softmax attention, quadratic */
    HT_LOCAL = 2         /* level 0 of the hierarchy alone: own block and its neighbours */
} ht_kind;

/* Which query a cluster of rows uses at the coarse levels (docs/attention.md). */
typedef enum ht_query {
    HT_QUERY_AUTO = 0,  /* fine with causal or open, else mean; local and full do without */
    HT_QUERY_MEAN = 1,  /* mean of the cluster's queries; not with causal */
    HT_QUERY_FIRST = 2, /* query of the cluster's first row; leak-free */
    HT_QUERY_FINE = 3   /* every row its own; leak-free, costs a factor log(length / block) */
} ht_query;

typedef struct ht_attention_desc {
    size_t size;
    ht_kind kind;
    ht_query query;
    ht_dtype dtype; /* of q, k, v, out and their gradients */
    int causal;     /* row i sees rows <= i */
    int has_bias;   /* calls pass a relative position bias table */
    int cross;      /* k and v come from another sequence of the same length */
    int64_t q_heads;
    int64_t kv_heads;      /* 0: q_heads; must divide q_heads */
    int64_t head_dim;      /* 1 to 256 */
    int64_t value_dim;     /* 0: head_dim; 1 to 256 */
    int64_t block;         /* rows of a block, even; 0: 16 */
    int64_t max_rows;      /* most rows in one call, over all sequences */
    int64_t max_sequences; /* most sequences in one call; 0: max_rows */
    int64_t max_length;    /* longest sequence; 0: max_rows */
    double scale;          /* of the scores; 0: 1/sqrt(head_dim) */
    double rotary_theta;   /* rotary positions at level 0 with this base; 0: none */
    double dropout;        /* probability in [0, 1) that a weight is dropped */
    int64_t open;          /* query fine: clusters that every row opens per level; 0: none */
    int64_t open_leaf;     /* an opened cluster of at most so many rows takes part row by row; a
                              power of two; 0: 8 */
    int64_t open_peek;     /* levels below a cluster that its score looks at; 0: the default, 2; -1:
                              none, the mean alone */
} ht_attention_desc;
#define HT_ATTENTION_DESC_INIT \
    { .size = sizeof(ht_attention_desc) }

/* Bytes the caller provides (or leaves to the library, see ht_attention_args). */
typedef struct ht_attention_need {
    size_t size;
    size_t saved;           /* what forward keeps for backward */
    size_t scratch_forward; /* contents do not matter between calls */
    size_t scratch_backward;
} ht_attention_need;
#define HT_ATTENTION_NEED_INIT \
    { .size = sizeof(ht_attention_need) }

typedef struct ht_attention ht_attention; /* a plan; never changes after create */

HT_API ht_status ht_attention_create(ht_attention **out, ht_context *ctx,
                                     const ht_attention_desc *desc);
HT_API void ht_attention_destroy(ht_attention *plan);
/* The query that a plan of this descriptor takes: its own, or what AUTO stands for there. */
HT_API ht_query ht_attention_query(const ht_attention_desc *desc);
HT_API ht_status ht_attention_get_need(const ht_attention *plan, ht_attention_need *out);
/* What the plan was made from, defaults filled in. */
HT_API ht_status ht_attention_get_desc(const ht_attention *plan, ht_attention_desc *out);
HT_API int ht_attention_levels(const ht_attention *plan, int64_t length); /* M of the hierarchy */
/* Which kernels run forward or backward of calls whose tensors lie in steps of 16 bytes. On CUDA
 * "tuned", "tiles", "narrow", "full", "padded" (one of these on copies) or "generic", which takes
 * everything and is many times slower (docs/cuda.md has the table); elsewhere the name of the
 * device. */
HT_API const char *ht_attention_kernels(const ht_attention *plan, int backward);

typedef struct ht_kernels_info {
    size_t size;
    const char *name;   /* the kernels that run, a word as above */
    const char *faster; /* others are faster for such calls, but cannot take this one; or NULL */
    char why[128]; /* the condition of theirs that it does not meet: "block is 24, ..."; or "" */
} ht_kernels_info;
#define HT_KERNELS_INFO_INIT \
    { .size = sizeof(ht_kernels_info) }

/* Element (sequence b, row i, head h, column c) lies at data[b*batch + i*row + h*head + c], strides
 * counted in elements. Zero strides mean contiguous [batch, length, heads, dim]. In a packed call
 * (cu_seqlens) rows of all sequences follow each other and the batch stride is not used. */
typedef struct ht_tensor {
    void *data;
    int64_t batch_stride;
    int64_t row_stride;
    int64_t head_stride;
} ht_tensor;

typedef struct ht_attention_args {
    size_t size;
    int64_t batch;             /* number of sequences */
    int64_t length;            /* rows of each; with cu_seqlens: not used */
    const int32_t *cu_seqlens; /* host, batch + 1 entries: first 0, non-decreasing; sequence b is
                                  rows cu_seqlens[b] ... cu_seqlens[b + 1] - 1. NULL: equal
                                  lengths */
    ht_tensor q;               /* [batch, length, q_heads, head_dim] */
    ht_tensor k;               /* [batch, length, kv_heads, head_dim] */
    ht_tensor v;               /* [batch, length, kv_heads, value_dim] */
    ht_tensor out;             /* [batch, length, q_heads, value_dim]: written by forward, read by
                                  backward */
    const void *bias;          /* [4*block - 1, q_heads], float (double for F64); entry
                                  (key cluster - query cluster) + 2*block - 1 */
    const uint8_t *key_mask;   /* [batch, length] contiguous (packed: [rows]), non-zero = takes
                                  part; or NULL */
    const uint8_t *query_mask; /* likewise */
    ht_tensor lse;             /* log-sum-exp [batch, length, q_heads] float (double for F64); data
                                  NULL: not wanted. One number per (row, head) */
    uint64_t seed;             /* dropout: key of the generator ... */
    uint32_t offset;           /* ... and its offset, to be changed from call to call */
    void *saved;               /* need.saved bytes, kept from forward to backward; NULL in forward:
                                  inference */
    void *scratch;             /* need.scratch_* bytes; NULL: the context's own, grown when
                                  needed */
} ht_attention_args;
#define HT_ATTENTION_ARGS_INIT \
    { .size = sizeof(ht_attention_args) }

typedef struct ht_attention_grads {
    size_t size;
    ht_tensor dout; /* like out */
    ht_tensor dlse; /* like lse; data NULL: zero */
    ht_tensor dq;   /* set */
    ht_tensor dk;   /* set */
    ht_tensor dv;   /* set */
    void *dbias;    /* [4*block - 1, q_heads], added to; NULL: not wanted */
} ht_attention_grads;
#define HT_ATTENTION_GRADS_INIT \
    { .size = sizeof(ht_attention_grads) }

HT_API ht_status ht_attention_forward(const ht_attention *plan, const ht_attention_args *args);

/* Takes the arguments of the forward call, with the same saved and the out it wrote. */
HT_API ht_status ht_attention_backward(const ht_attention *plan, const ht_attention_args *args,
                                       const ht_attention_grads *grads);

/* Which kernels run this very call, and why not faster ones; nothing is computed. args NULL: a call
 * of the plan's largest size whose tensors lie in steps of 16 bytes; grads NULL: likewise. */
HT_API ht_status ht_attention_explain(const ht_attention *plan, const ht_attention_args *args,
                                      const ht_attention_grads *grads, int backward,
                                      ht_kernels_info *out);

/* How each pair of rows of one sequence and query head meets: out [length, length], host memory,
 * -1: row i does not see row j; 0: row by row; l: as part of its cluster of level l; HT_OPENED: row
 * by row, since the cluster was opened. args as in forward; nothing of them is written. On CPUs
 * alone. The choice is that of the device "cpu:ref": where two scores are equal up to rounding,
 * another device may open the other cluster. */
#define HT_OPENED 127
HT_API ht_status ht_attention_pairs(const ht_attention *plan, const ht_attention_args *args,
                                    int64_t sequence, int64_t head, int8_t *out);

/* ---- decoding ---------------------------------------------------------------------------- */

/* The state of `slots` sequences, each at its own position, for one causal plan without dropout.
 * Hierarchical: 2*block rows of K and V per level and key head, levels made when first needed, no
 * maximum length. Local: 2*block rows. Full: all rows. Opening (open > 0): all rows and all
 * clusters, 2*L rows. */
typedef struct ht_cache ht_cache;

HT_API ht_status ht_cache_create(ht_cache **out, const ht_attention *plan, int64_t slots);
HT_API void ht_cache_destroy(ht_cache *cache);

/* Appends rows and attends with them: sequence b of args goes to slot slots[b] (host memory; NULL:
 * slot b), which must all differ. Row t sees itself and everything before it in its slot, so
 * prefill, chunks and single tokens are the same call; together they give what the full pass gives.
 * args as in forward (saved is not used; rows and length are not bound by the plan's maxima). On
 * failure no slot has moved. */
HT_API ht_status ht_cache_extend(ht_cache *cache, const int64_t *slots,
                                 const ht_attention_args *args);

/* Rows so far and rows of K held per key head; -1: no such slot. */
HT_API int64_t ht_cache_position(const ht_cache *cache, int64_t slot);
HT_API int64_t ht_cache_rows(const ht_cache *cache, int64_t slot);
HT_API ht_status ht_cache_reset(ht_cache *cache, int64_t slot); /* back to position 0 */
HT_API ht_status ht_cache_fork(ht_cache *cache, int64_t to, int64_t from);

/* A slot's state as bytes, to be kept anywhere and loaded into any slot of a cache of an equal
 * plan. Of plans that open, open, open_leaf and open_peek may differ. */
HT_API ht_status ht_cache_save_bytes(const ht_cache *cache, int64_t slot, size_t *bytes);
HT_API ht_status ht_cache_save(const ht_cache *cache, int64_t slot, void *buffer, size_t bytes);
HT_API ht_status ht_cache_load(ht_cache *cache, int64_t slot, const void *buffer, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
