/*
 * The wall of the attention: one table per device, its memory and the attention's kernels, forward
 * and backward side by side, with their contracts. (The models have a table of their own on top of
 * it: model_op.h.)
 *
 * Above it (attention, layer, model, train) nobody touches device memory; below it (cpu, cuda)
 * nobody checks arguments: what arrives here is valid, defaults filled in. Precision is a dtype in
 * the arguments of every op.
 */
#ifndef HTI_OP_H
#define HTI_OP_H

#include "core/context.h"
#include "core/hier.h"

/* One forward or backward call of the attention. Strides are filled in; in a packed call cu_seqlens
 * is not NULL, batch strides are 0 and rows are counted over all sequences. */
typedef struct hti_attention_call {
    const ht_attention_desc *desc;
    int64_t sequences;
    int64_t length;            /* of each sequence; packed: of the longest */
    int64_t rows;              /* of all sequences */
    const int32_t *cu_seqlens; /* host [sequences + 1], or NULL */
    ht_tensor q, k, v, out, lse;
    const void *bias;
    const uint8_t *key_mask, *query_mask;
    uint64_t seed;
    uint32_t offset;
    const uint32_t *offset_device; /* offset again, in device memory, for kernels of a captured
                                      graph; or NULL */
    void *saved, *scratch;
    ht_tensor dout, dlse, dq, dk, dv; /* backward only */
    void *dbias;
    int first; /* 1: of out and dout there is only each sequence's first row, the others' gradients
                  are zero: row b of [sequences, q_heads, value_dim]; see hti_ops.attention_first */
} hti_attention_call;

/* First row (counted over all sequences) and length of sequence b. */
static inline int64_t hti_call_start(const hti_attention_call *c, int64_t b) {
    return c->cu_seqlens ? c->cu_seqlens[b] : b * c->length;
}
static inline int64_t hti_call_length(const hti_attention_call *c, int64_t b) {
    return c->cu_seqlens ? c->cu_seqlens[b + 1] - c->cu_seqlens[b] : c->length;
}
/* Elements from t.data to row 0 of sequence b. */
static inline int64_t hti_call_base(const hti_attention_call *c, const ht_tensor *t, int64_t b) {
    return c->cu_seqlens ? c->cu_seqlens[b] * t->row_stride : b * t->batch_stride;
}

/* One level of the decode state, device memory. Cluster c lies at row c mod ring; ring = 2*block
 * (kind full: one level, and the ring holds every row; opening: the ring of level l holds every
 * cluster, hti_cache_ring). Level l >= 1 exists once a slot has more than block*2^l rows: before
 * row block*2^l is appended its block 0 is built from the ring of level l - 1. Level 0 keys are
 * stored turned if the plan has rotary, but plain if it opens: then `near` has the last ones
 * turned. Elements have the plan's dtype at level 0; above it 16 bits become float, and where
 * hti_ops.wide_cache is set at level 0, too. */
typedef struct hti_cache_level {
    void *k;  /* [slots, kv_heads, ring, head_dim] mean of the cluster's valid keys */
    void *v;  /* [slots, kv_heads, ring, value_dim] mean of its valid values */
    float *n; /* [slots, kv_heads, ring] valid rows of the cluster */
    union {
        void *
            part; /* query first, level >= 1: [slots, q_heads, value_dim + 2] max, sum, numerator */
        void *near; /* opening with rotary, level 0: [slots, kv_heads, 2*block, head_dim] row t at
                       t mod 2*block, turned */
    };
    int64_t *cluster; /* query first, level >= 1: [slots, kv_heads] the cluster part belongs to, -1:
                         none */
} hti_cache_level;

/* Bytes of an element of k, v and part at a level. */
static inline size_t hti_cache_element(const ht_attention_desc *desc, int level) {
    if (desc->dtype == HT_F64) return 8;
    return desc->dtype == HT_F32 || level > 0 ? 4 : 2;
}

/* Appends the rows of sequence b to slot slots[b], which stands at positions[b], and attends with
 * each. In every slot level l holds what positions[b] rows left there; levels covers the length
 * after the call. */
typedef struct hti_cache_call {
    hti_attention_call a;     /* rows to append; saved unused */
    const int64_t *slots;     /* host [a.sequences] */
    const int64_t *positions; /* host [a.sequences] */
    int levels;               /* levels present */
    int64_t ring;             /* rows of level 0's ring */
    int64_t slot_count;
    hti_cache_level level[HTI_MAX_LEVELS];
} hti_cache_call;

/* Rows of a level's ring, given those of level 0's. */
static inline int64_t hti_cache_ring(const ht_attention_desc *desc, int64_t ring, int level) {
    return desc->open > 0 ? ring >> level : ring;
}

/* Most clusters that a row of a sequence so long can choose from at a level: those that it meets
 * there, and two children for each that it opened above. */
static inline int64_t hti_open_candidates(const ht_attention_desc *desc, int64_t length) {
    int64_t most = 2 * desc->block + 2 * desc->open;
    return most < length ? most : length;
}

typedef struct hti_ops {
    const char *name; /* "cpu:avx2", "cuda": a table of models for the same kernels has the same */

    /* a back end's state for a context; close takes what open left in ctx->backend */
    ht_status (*open)(ht_context *ctx, const ht_context_desc *desc);
    void (*close)(ht_context *ctx);
    ht_status (*synchronize)(ht_context *ctx);
    void *(*stream)(const ht_context *ctx); /* Optional: where its calls go, a cudaStream_t */

    /* device memory, 64-byte aligned */
    ht_status (*alloc)(ht_context *ctx, void **out, size_t bytes);
    void (*release)(ht_context *ctx, void *block);
    /* copy_in: src may be changed again when it returns; dst has it before any later call here */
    ht_status (*copy_in)(ht_context *ctx, void *dst, const void *src, size_t bytes);
    ht_status (*copy_out)(ht_context *ctx, void *dst, const void *src, size_t bytes);
    ht_status (*copy)(ht_context *ctx, void *dst, const void *src,
                      size_t bytes); /* device to device */
    ht_status (*fill)(ht_context *ctx, void *dst, int byte, size_t bytes);
    /* Optional: from here on a small copy_in is taken over by the device: it waits for nothing. */
    ht_status (*post_open)(ht_context *ctx);

    /* attention_check: can this device run the plan? If not, UNSUPPORTED and the sentence.
     * attention_need: the plan's workspace, all maxima met. */
    ht_status (*attention_check)(ht_context *ctx, const ht_attention_desc *desc);
    void (*attention_need)(const ht_context *ctx, const ht_attention_desc *desc,
                           ht_attention_need *need);
    /* Optional: the same where all tensors of all calls, gradients too, are known to lie in steps
     * of 16 bytes; kernels that take such tensors alone then need no others beside them. */
    void (*attention_need_aligned)(const ht_context *ctx, const ht_attention_desc *desc,
                                   ht_attention_need *need);
    /* Optional: which of the device's kernels the call runs on; tensors at address 0 are aligned.
     */
    void (*attention_kernels)(const ht_context *ctx, const hti_attention_call *call, int backward,
                              ht_kernels_info *out);
    /* Optional: can calls of this plan have `first`? q, k, v and their gradients lie in steps of 16
     * bytes then. */
    int (*attention_first)(const ht_context *ctx, const ht_attention_desc *desc);
    ht_status (*attention_forward)(ht_context *ctx, const hti_attention_call *call);
    ht_status (*attention_backward)(ht_context *ctx, const hti_attention_call *call);

    /* Optional: how each pair of rows of a sequence and query head meets, out [length, length] on
     * the host, as ht_attention_pairs says. */
    ht_status (*attention_pairs)(ht_context *ctx, const hti_attention_call *call, int64_t sequence,
                                 int64_t head, int8_t *out);

    /* cache_scratch: scratch bytes of such a call. */
    size_t (*cache_scratch)(const ht_context *ctx, const hti_cache_call *call);
    int wide_cache; /* plans in 16 bits have a state in float */
    ht_status (*cache_extend)(ht_context *ctx, const hti_cache_call *call);

} hti_ops;

/* Bytes of an element. */
static inline size_t hti_bytes(ht_dtype dtype) {
    return dtype == HT_F64 ? 8 : dtype == HT_F32 ? 4 : 2;
}

/* At least `bytes` of device scratch, the context's own; what lay there before is gone. */
ht_status hti_scratch(ht_context *ctx, void **out, size_t bytes);

/* What each back end offers, best first, ended by a NULL name. */
typedef struct hti_candidate {
    const char *name;  /* "cpu:avx2" */
    const char *about; /* one line; what is missing where it is not available */
    const hti_ops *ops;
    int (*available)(void);
} hti_candidate;
extern const hti_candidate hti_cpu_candidates[];
/* "cuda:0", ..., as many as the machine has; the list is made, and CUDA started, when first asked
 * for. */
const hti_candidate *hti_cuda_candidates(void);

#endif
