/*
 * The wall: one table of kernels per device, forward and backward side by side, with their
 * contracts.
 *
 * Above it (attention, layer, model, train) nobody touches device memory; below it (cpu, cuda)
 * nobody checks arguments: what arrives here is valid, defaults filled in. Precision is a dtype in
 * the arguments of every op, so that one build runs the model in float, in bf16 and, on the
 * reference kernels, in double for gradient checks. Activation gradients are set, parameter
 * gradients are added to.
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
 * (kind full: one level, and the ring holds every row). Level l >= 1 exists once a slot has more
 * than block*2^l rows: before row block*2^l is appended its block 0 is built from the ring of level
 * l - 1. Level 0 keys are stored turned if the plan has rotary. Elements have the plan's dtype at
 * level 0; above it bf16 becomes float. */
typedef struct hti_cache_level {
    void *k;    /* [slots, kv_heads, ring, head_dim] mean of the cluster's valid keys */
    void *v;    /* [slots, kv_heads, ring, value_dim] mean of its valid values */
    float *n;   /* [slots, kv_heads, ring] valid rows of the cluster */
    void *part; /* query first, level >= 1: [slots, q_heads, value_dim + 2] max, sum, numerator */
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
    int64_t ring;             /* rows of a ring */
    int64_t slot_count;
    hti_cache_level level[HTI_MAX_LEVELS];
} hti_cache_call;

/* ---- the model's ops ----------------------------------------------------------------------------
 *
 * dtype is that of activations and of the weights as the kernels see them. "wide" is float for F32
 * and BF16, double for F64: statistics, losses, gradients of parameters, the optimiser's copy of
 * the weights. All matrices are row-major and contiguous. Activation gradients are set, parameter
 * gradients are added to; a gradient that is NULL is not wanted. Sums have a fixed order for a
 * given number of threads. Nothing here waits for the device and nothing reads device memory on the
 * host, so that a whole step can be captured as a CUDA graph: numbers that change from step to step
 * lie in device memory (hti_step).
 */

/* Dropout: element (row, column) of a site is dropped if hti_drop_bits(philox(key seed, counter
 * (offset, site, row, column / 8)), column) < hti_drop_threshold(p), see core/dropout.h, else
 * multiplied by 1/(1-p). */
typedef struct hti_random {
    double p; /* 0: none */
    uint64_t seed;
    uint32_t site;
    uint32_t offset;
    const uint32_t *offset_device; /* offset again, for kernels of a captured graph; or NULL */
} hti_random;

/* What changes from step to step, in device memory; the host writes `in`, the device adds to `out`.
 */
typedef struct hti_step {
    struct {
        uint32_t offset; /* micro-batches so far: offset of every hti_random */
        uint32_t pad;
        double loss_scale; /* gradients are those of loss_scale * sum of losses */
        double rate, correction1, correction2; /* learning rate, 1 - beta^t */
    } in;
    struct {
        double loss;    /* sum over targets */
        double correct; /* targets that had the largest logit */
        double targets; /* targets counted */
        double square;  /* of the gradient's norm */
        double applied; /* 1: the update was made; 0: loss or gradient were not finite */
    } out;
} hti_step;

/* C = op(A) op(B), or added to C; row-major. A is [m, k] (transposed: [k, m]), B is [k, n]
 * (transposed: [n, k]). A and B have dtype; C has dtype, or, if wide_c, the wide type. The slot of
 * the matrix product. */
typedef struct hti_gemm {
    ht_dtype dtype;
    int wide_c, transpose_a, transpose_b, accumulate;
    int64_t m, n, k, lda, ldb, ldc;
    const void *a, *b;
    void *c;
} hti_gemm;

/* out[r] = dropout(table[token[r]] + learned[position[r]] + fixed[position[r]]); token -1 stands
 * for cls. */
typedef struct hti_embed_call {
    ht_dtype dtype;
    int64_t rows, width, vocab, length; /* length: positions there are */
    int64_t each; /* > 0: row r has position r mod each; backward need not look at positions */
    const int32_t *tokens, *positions; /* device [rows] */
    const void *table, *cls,
        *learned;      /* [vocab, width], [width] or NULL, [length, width] or NULL */
    const void *fixed; /* [length, width] or NULL: not a parameter */
    void *out;         /* [rows, width] */
    hti_random drop;
    const void *dout;               /* backward only, and below */
    void *dtable, *dcls, *dlearned; /* wide */
    void *scratch;                  /* backward: hti_ops.embed_scratch bytes */
} hti_embed_call;

/* s = x + dropout(y);  out = (s - mean) * rstd * scale + shift.   y NULL: s is x and not written.
 * backward: ds = ds_in + d(out)/d(s) dout (ds_in may be NULL, ds may be ds_in);  dy = dropout mask
 * * ds. */
typedef struct hti_norm_call {
    ht_dtype dtype;
    int64_t rows, width;
    double epsilon;
    const void *x, *y; /* [rows, width] */
    void *s, *out;
    void *stats;               /* [rows, 2] wide: mean, 1/deviation; written by forward */
    const void *scale, *shift; /* [width] */
    hti_random drop;
    const void *dout, *ds_in; /* backward reads s (or x) and stats */
    void *ds, *dy;            /* dy NULL: not wanted */
    void *dscale, *dshift;    /* wide */
    void *dbias; /* wide, or NULL: += column sums of dy (of ds, where dy is NULL): the gradient of a
                    bias in y */
    void *scratch; /* backward: hti_ops.norm_scratch bytes */
} hti_norm_call;

typedef enum hti_activation { HTI_LINEAR, HTI_GELU /* tanh form */, HTI_RELU } hti_activation;

/* pre = x W^T + bias;  y = dropout(activation(pre)).  HTI_LINEAR: y is pre, no dropout, pre unused.
 * backward: dpre = dy * mask * activation'(pre), written over dy;  dx = dpre W, dW += dpre^T x,
 * dbias += column sums. */
typedef struct hti_linear_call {
    ht_dtype dtype;
    hti_activation activation;
    int64_t rows, in, out;
    const void *x, *w, *bias; /* [rows, in], [out, in], [out] or NULL */
    const void *add;          /* [rows, out] or NULL: y = pre + add; only HTI_LINEAR, forward, and
                                 where hti_ops.linear_adds says so */
    void *pre, *y;            /* [rows, out]; pre may be NULL in inference */
    hti_random drop;
    void *dy, *dx, *dw, *dbias; /* dx set, or NULL; dw, dbias wide */
    /* backward: x is what another layer gave; dx then goes on through its dropout and activation,
     * dx = (dpre W) * mask * before'(before_pre), before_dbias += its column sums, and that layer's
     * own call takes dx as HTI_LINEAR and has no dbias */
    hti_activation before;
    const void *before_pre; /* [rows, in] */
    void *before_dbias;     /* wide [in], or NULL */
    hti_random before_drop;
} hti_linear_call;

/* Turns columns (i, i + d/2) of the first `heads` heads of each row by the row's angle; sign -1
 * turns back. */
typedef struct hti_rotary_call {
    ht_dtype dtype;
    int64_t rows, heads, head_dim, row_stride;
    const int32_t *positions; /* device [rows] */
    const void *turn;         /* wide [length, head_dim / 2, 2] cosine and sine */
    double sign;
    void *x;
} hti_rotary_call;

typedef enum hti_pool {
    HTI_POOL_FIRST,
    HTI_POOL_LAST,
    HTI_POOL_VALID,
    HTI_POOL_ALL,
    HTI_POOL_MAX
} hti_pool;

/* Sequence b is rows start[b] ... start[b] + count[b] - 1: its first or last row, or the mean of
 * its rows (of those that the mask lets through; none: zero), or of each column the largest of them
 * (not a number: that). backward sets all rows of dx, zero outside the sequences; a maximum's
 * gradient goes to the first row that has it, for which x is read again. */
typedef struct hti_pool_call {
    ht_dtype dtype;
    hti_pool kind;
    int64_t sequences, rows, width;
    const int32_t *start, *count; /* device [sequences] */
    const uint8_t *mask;          /* device [rows], or NULL */
    const void *x;                /* [rows, width] */
    void *out;                    /* [sequences, width] */
    const void *dout;
    void *dx;
} hti_pool_call;

/* Features of pairs (a, b) that a linear layer cannot make itself: out = a, b, a b, |a - b|.
 * backward sets dx. */
typedef struct hti_match_call {
    ht_dtype dtype;
    int64_t items, width;
    const void *x; /* [items, 2, width] */
    void *out;     /* [items, 4, width] */
    const void *dout;
    void *dx;
} hti_match_call;

/* Softmax cross-entropy of logits x W^T + bias, forward and (if dx) backward in one go, some rows
 * at a time: the logits of all rows are never stored. Targets < 0 do not count. Adds to
 * step->out.loss, correct, targets. Gradients are those of step->in.loss_scale * loss. */
typedef struct hti_loss_call {
    ht_dtype dtype;
    int64_t rows, width, classes;
    const void *x, *w, *bias; /* [rows, width], [classes, width], [classes] or NULL */
    const int32_t *targets;   /* device [rows] */
    hti_step *step;           /* device */
    void *row_loss;        /* wide [rows], or NULL: each row's loss (0 where it does not count) */
    void *dx, *dw, *dbias; /* dx NULL: loss only */
    void *scratch;         /* hti_ops.loss_scratch bytes */
} hti_loss_call;

/* AdamW over `count` numbers. With g' = g * min(1, clip / norm) (clip 0: g):
 *     m = b1 m + (1-b1) g', v = b2 v + (1-b2) g'^2, p -= rate (m/c1 / (sqrt(v/c2) + eps) + decay p)
 * c1, c2, rate from step->in; norm from step->out.square. Does nothing but set out.applied = 0
 * unless square and loss are finite. p, m, v, g wide; w: p rounded to dtype, or NULL where p itself
 * is used. */
typedef struct hti_adamw_call {
    ht_dtype dtype;
    int64_t count;
    void *p, *m, *v, *w;
    const void *g;
    hti_step *step; /* device */
    double beta1, beta2, epsilon, decay, clip;
} hti_adamw_call;

/* Muon over `count` matrices of one shape in the arena, matrix i at element at[i]. With g' as above
 * m = b m + (1-b) g', x = b m + (1-b) g' and p -= rate (scale o + decay p), where o is x / |x|
 * after HTI_MUON_TURNS times o = A o + (B s + C s^2) o, s = o o^T: nearly orthogonal, singular
 * values from |x| / 500 on become 0.68 to 1.21. Does nothing unless square and loss are finite. */
enum { HTI_MUON_MOST = 96, HTI_MUON_TURNS = 5 };
#define HTI_MUON_A 3.4445
#define HTI_MUON_B (-4.7750)
#define HTI_MUON_C 2.0315
typedef struct hti_muon_call {
    ht_dtype dtype;
    int64_t rows, columns, count; /* count <= HTI_MUON_MOST */
    int64_t at[HTI_MUON_MOST];
    void *p, *m, *w; /* arenas, as for AdamW */
    const void *g;
    const hti_step *step; /* device */
    double momentum, scale, decay, clip;
    void *scratch; /* hti_ops.muon_scratch bytes */
} hti_muon_call;

typedef struct hti_ops {
    const char *name;
    const void *kernels; /* the back end's own: which copy of its kernels this table uses */

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

    /* attention_check: can this device run the plan? If not, UNSUPPORTED and the sentence.
     * attention_need: the plan's workspace, all maxima met. */
    ht_status (*attention_check)(ht_context *ctx, const ht_attention_desc *desc);
    void (*attention_need)(const ht_context *ctx, const ht_attention_desc *desc,
                           ht_attention_need *need);
    /* Optional: the same where all tensors of all calls, gradients too, are known to lie in steps
     * of 16 bytes; kernels that take such tensors alone then need no others beside them. */
    void (*attention_need_aligned)(const ht_context *ctx, const ht_attention_desc *desc,
                                   ht_attention_need *need);
    /* Optional: which of the device's kernels such calls run on, a word. */
    const char *(*attention_kernels)(const ht_context *ctx, const ht_attention_desc *desc,
                                     int backward);
    /* Optional: can calls of this plan have `first`? q, k, v and their gradients lie in steps of 16
     * bytes then. */
    int (*attention_first)(const ht_context *ctx, const ht_attention_desc *desc);
    ht_status (*attention_forward)(ht_context *ctx, const hti_attention_call *call);
    ht_status (*attention_backward)(ht_context *ctx, const hti_attention_call *call);

    /* cache_scratch: scratch bytes of such a call. */
    size_t (*cache_scratch)(const ht_context *ctx, const hti_cache_call *call);
    ht_status (*cache_extend)(ht_context *ctx, const hti_cache_call *call);

    /* the model's ops. model_check comes before all others: can models of this dtype run here? If
     * not, UNSUPPORTED and the sentence; a table without it has no models. */
    ht_status (*model_check)(ht_context *ctx, ht_dtype dtype);
    int fixed_shapes; /* 1: batches that are nearly full get one shape, so that a step can be
                         captured */
    ht_status (*gemm)(ht_context *ctx, const hti_gemm *call);
    ht_status (*embed_forward)(ht_context *ctx, const hti_embed_call *call);
    ht_status (*embed_backward)(ht_context *ctx, const hti_embed_call *call);
    size_t (*embed_scratch)(const ht_context *ctx, const hti_embed_call *call);
    ht_status (*norm_forward)(ht_context *ctx, const hti_norm_call *call);
    ht_status (*norm_backward)(ht_context *ctx, const hti_norm_call *call);
    size_t (*norm_scratch)(const ht_context *ctx, const hti_norm_call *call);
    int linear_adds; /* 1: linear_forward takes `add` */
    ht_status (*linear_forward)(ht_context *ctx, const hti_linear_call *call);
    ht_status (*linear_backward)(ht_context *ctx, const hti_linear_call *call);
    ht_status (*rotary)(ht_context *ctx, const hti_rotary_call *call);
    ht_status (*pool_forward)(ht_context *ctx, const hti_pool_call *call);
    ht_status (*pool_backward)(ht_context *ctx, const hti_pool_call *call);
    ht_status (*match_forward)(ht_context *ctx, const hti_match_call *call);
    ht_status (*match_backward)(ht_context *ctx, const hti_match_call *call);
    size_t (*loss_scratch)(const ht_context *ctx, const hti_loss_call *call);
    ht_status (*loss)(ht_context *ctx, const hti_loss_call *call);
    ht_status (*square)(ht_context *ctx, ht_dtype dtype, hti_step *step, const void *g,
                        int64_t count);
    ht_status (*adamw)(ht_context *ctx, const hti_adamw_call *call);
    size_t (*muon_scratch)(const ht_context *ctx, const hti_muon_call *call);
    ht_status (*muon)(ht_context *ctx, const hti_muon_call *call);
    ht_status (*round)(ht_context *ctx, ht_dtype dtype, void *w, const void *p,
                       int64_t count); /* w = p in dtype */

    /* Optional: operations per second of products by the data sheet; 0: not known. NULL: to be
     * measured. */
    double (*peak)(const ht_context *ctx, ht_dtype dtype);

    /* Optional (NULL on the CPU): everything between begin and end is recorded, not run; launch
     * runs it. */
    ht_status (*capture_begin)(ht_context *ctx);
    ht_status (*capture_end)(ht_context *ctx, void **graph);
    ht_status (*graph_launch)(ht_context *ctx, void *graph);
    void (*graph_release)(ht_context *ctx, void *graph);
} hti_ops;

/* Bytes of an element, and of its wide type. */
static inline size_t hti_bytes(ht_dtype dtype) {
    return dtype == HT_F64 ? 8 : dtype == HT_F32 ? 4 : 2;
}
static inline size_t hti_wide_bytes(ht_dtype dtype) { return dtype == HT_F64 ? 8 : 4; }

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
