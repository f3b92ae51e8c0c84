/*
 * The wall of the models: one table of their kernels per device, beside the attention's (op.h),
 * whose rules hold here, too. It belongs to the models' library; a context knows nothing of it but
 * that it has a guest.
 *
 * dtype is that of activations and of the weights as the kernels see them. "wide" is float for F32
 * and BF16, double for F64: statistics, losses, gradients of parameters, the optimiser's copy of
 * the weights. All matrices are row-major and contiguous. Activation gradients are set, parameter
 * gradients are added to; a gradient that is NULL is not wanted. Sums have a fixed order for a
 * given number of threads. Nothing here waits for the device and nothing reads device memory on the
 * host, so that a whole step can be captured as a CUDA graph: numbers that change from step to step
 * lie in device memory (hti_step). One build runs a model in float, in bf16 and, on the reference
 * kernels, in double for gradient checks.
 */
#ifndef HTI_MODEL_OP_H
#define HTI_MODEL_OP_H

#include "op.h"

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
    void *scratch;                  /* backward: hti_model_ops.embed_scratch bytes */
} hti_embed_call;

/* A table for tokens that are greys: row t is amount(t) w[0] + w[1], see core/amounts.h. backward
 * takes the table's gradient, as embed_backward leaves it, and adds to dw. */
typedef struct hti_amounts_call {
    ht_dtype dtype;
    int64_t vocab, width;
    const void *w;      /* [2, width] */
    void *table;        /* [vocab, width] */
    const void *dtable; /* wide [vocab, width] */
    void *dw;           /* wide [2, width] */
} hti_amounts_call;

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
    void *scratch; /* backward: hti_model_ops.norm_scratch bytes */
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
                                 where hti_model_ops.linear_adds says so */
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

/* A short convolution in which each column has weights of its own: y[r] = sum over k < size of w[k]
 * x[r + k - back], over rows of the same sequence alone, and of them the first `lead` each stand
 * alone (core/near.h). Rows that the mask does not let through are not looked at and become zero,
 * as do those outside the sequences. backward sets dx and adds to dw.
 *
 * Decoding, with `past`: back is size - 1, there is no mask, no lead, no backward, and what comes
 * before a sequence are the last size - 1 rows of its slot, the oldest first; near_keep moves them
 * on by the rows of x. */
typedef struct hti_near_call {
    ht_dtype dtype;
    int64_t rows, width, size, back, lead, sequences;
    const int32_t *sequence;      /* device [rows]: of each row the number of its sequence */
    const int32_t *start, *count; /* device [sequences] */
    const uint8_t *mask;          /* device [rows], or NULL */
    const void *x, *w;            /* [rows, width], [size, width] */
    void *y;                      /* [rows, width], not x */
    const int32_t *slots;         /* device [sequences]; with past */
    void *past;                   /* [slots, size - 1, width], or NULL */
    const void *dy;
    void *dx; /* [rows, width], not dy */
    void *dw; /* wide [size, width] */
} hti_near_call;

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
    uint8_t *row_hit;      /* [rows], or NULL: 1 where the target has the largest logit */
    void *dx, *dw, *dbias; /* dx NULL: loss only */
    void *scratch;         /* hti_model_ops.loss_scratch bytes */
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
    void *scratch; /* hti_model_ops.muon_scratch bytes */
} hti_muon_call;

typedef struct hti_model_ops {
    const char *name;    /* that of the hti_ops whose device this is */
    const void *kernels; /* the back end's own: which copy of its kernels this table uses */

    /* Comes before all others: can models of this dtype run here? If not, UNSUPPORTED and the
     * sentence. May leave a state in ctx->guest, and close to take it away again. */
    ht_status (*check)(ht_context *ctx, ht_dtype dtype);
    int fixed_shapes; /* 1: batches that are nearly full get one shape, so that a step can be
                         captured */
    ht_status (*gemm)(ht_context *ctx, const hti_gemm *call);
    ht_status (*embed_forward)(ht_context *ctx, const hti_embed_call *call);
    ht_status (*embed_backward)(ht_context *ctx, const hti_embed_call *call);
    size_t (*embed_scratch)(const ht_context *ctx, const hti_embed_call *call);
    ht_status (*amounts_forward)(ht_context *ctx, const hti_amounts_call *call);
    ht_status (*amounts_backward)(ht_context *ctx, const hti_amounts_call *call);
    ht_status (*norm_forward)(ht_context *ctx, const hti_norm_call *call);
    ht_status (*norm_backward)(ht_context *ctx, const hti_norm_call *call);
    size_t (*norm_scratch)(const ht_context *ctx, const hti_norm_call *call);
    int linear_adds; /* 1: linear_forward takes `add` */
    ht_status (*linear_forward)(ht_context *ctx, const hti_linear_call *call);
    ht_status (*linear_backward)(ht_context *ctx, const hti_linear_call *call);
    ht_status (*rotary)(ht_context *ctx, const hti_rotary_call *call);
    ht_status (*near_forward)(ht_context *ctx, const hti_near_call *call);
    ht_status (*near_backward)(ht_context *ctx, const hti_near_call *call);
    ht_status (*near_keep)(ht_context *ctx, const hti_near_call *call);
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
} hti_model_ops;

static inline size_t hti_wide_bytes(ht_dtype dtype) { return dtype == HT_F64 ? 8 : 4; }

/* What each back end offers: a list that NULL ends; one table or, in a build without it, NULL. */
extern const hti_model_ops *const hti_cpu_models[];
const hti_model_ops *hti_cuda_models(void);

/* Can models of this dtype run here? Comes before the first use of hti_models. */
ht_status hti_models_open(ht_context *ctx, ht_dtype dtype); /* model/device.c */

/* The table of a context. */
static inline const hti_model_ops *hti_models(const ht_context *ctx) {
    return (const hti_model_ops *)ctx->guest.ops;
}

#endif
