/*
 * One pre-norm Transformer block: x1 = x + drop(attention(norm(x))), x2 = x1 + drop(mlp(norm(x1))),
 * and what it keeps for backward.
 *
 * The sum that ends a block is made by the norm that begins the next one (model_op.h: norm adds
 * its y first), so a block hands on x1 and, apart from it, the branch y = mlp(...) that still has
 * to be added.
 */
#ifndef HTI_LAYER_H
#define HTI_LAYER_H

#include "config/config.h"
#include "core/arena.h"
#include "model_op.h"

/* A layer's parameters: X(field, name, rows, columns, init, matrix, when); rows 0 makes a vector.
 * `c` is the resolved configuration (model/params.h makes memory and first values from it). */
#define HTI_HEAD_DIM (c->inner / c->heads)
#define HTI_KV (c->kv_heads * HTI_HEAD_DIM)

#define HTI_LAYER_PARAMS(X)                                                                        \
    X(norm1_scale, "norm1.weight", 0, c->width, ONE, 0, 1)                                         \
    X(norm1_shift, "norm1.bias", 0, c->width, ZERO, 0, 1)                                          \
    X(near, "attention.neighbours.weight", c->neighbours, c->width, OWN_ROW, 0, c->neighbours > 0) \
    X(qkv, "attention.qkv.weight", c->inner + 2 * HTI_KV, c->width, XAVIER_QKV, 1, 1)              \
    X(qkv_bias, "attention.qkv.bias", 0, c->inner + 2 * HTI_KV, ZERO, 0, c->projection_bias)       \
    X(relative, "attention.relative.weight", 4 * c->block - 1, c->heads, SLOPE, 0,                 \
      c->relative_bias)                                                                            \
    X(merge, "attention.output.weight", c->width, c->inner, XAVIER, 1, 1)                          \
    X(merge_bias, "attention.output.bias", 0, c->width, ZERO, 0, c->projection_bias)               \
    X(norm2_scale, "norm2.weight", 0, c->width, ONE, 0, 1)                                         \
    X(norm2_shift, "norm2.bias", 0, c->width, ZERO, 0, 1)                                          \
    X(up, "mlp.up.weight", c->hidden, c->width, XAVIER, 1, 1)                                      \
    X(up_bias, "mlp.up.bias", 0, c->hidden, TINY, 0, 1)                                            \
    X(down, "mlp.down.weight", c->width, c->hidden, XAVIER, 1, 1)                                  \
    X(down_bias, "mlp.down.bias", 0, c->width, TINY, 0, 1)

/* Pointers to a layer's weights (dtype; relative: wide), and to their gradients (wide). NULL: not
 * there. */
#define HTI_POINTER(field, name, rows, columns, init, matrix, when) void *field;
typedef struct hti_layer_weights {
    HTI_LAYER_PARAMS(HTI_POINTER)
} hti_layer_weights;

/* The rows of a batch. */
typedef struct hti_rows {
    int64_t rows, sequences, length;
    const int32_t *cu_seqlens;    /* host; NULL: every sequence has `length` rows */
    const int32_t *positions;     /* device [rows] */
    const uint8_t *mask;          /* device [rows], or NULL */
    const int32_t *start, *count; /* device [sequences]: first row and rows of each */
    const int32_t *sequence;      /* device [rows]: of each its sequence; only with neighbours */
    uint64_t seed;                /* dropout */
    uint32_t offset;
    const uint32_t *offset_device;
    int train;                   /* dropout on */
    const int64_t *slots;        /* decoding: host [sequences], where in the caches each one goes */
    const int32_t *slots_device; /* the same again; only with neighbours */
} hti_rows;

/* What all layers of a model share. */
typedef struct hti_layers {
    ht_context *ctx;
    const ht_config *c;
    ht_dtype dtype;
    const ht_attention *plan, *plan_eval; /* with and without dropout */
    const void *turn;        /* rotary on all levels: wide [rows, head_dim / 2, 2], else NULL */
    ht_cache *const *caches; /* decoding: one per layer, its rows come before ours; or NULL */
    char *past;    /* decoding: per layer the inputs of the last rows, hti_past_bytes (model_op.h:
                      past) */
    int64_t slots; /* decoding: of the caches and of past */
} hti_layers;

/* What one layer's forward leaves for its backward. */
typedef struct hti_kept {
    void *x;               /* [rows, width] the layer's input; not part of the layout below */
    void *stats1, *stats2; /* [rows, 2] wide */
    void *h1, *h2;         /* [rows, width] after the norms */
    void *near;            /* [rows, width] h1 and its neighbours; h1 where there are none */
    void *qkv;             /* [rows, inner + 2 kv] */
    void *heads;           /* [rows, inner] what attention gives */
    void *saved;           /* the attention's own */
    void *x1;              /* [rows, width] */
    void *pre, *act;       /* [rows, hidden] */
    /* only in a last layer of which nothing but each sequence's first row is used: */
    void *first_x, *first_heads; /* [sequences, width], [sequences, inner] */
} hti_kept;
void hti_kept_layout(hti_kept *kept, hti_arena *arena, const hti_layers *s, int64_t rows,
                     int backward);

/* Memory that layers use one after the other. */
typedef struct hti_work {
    void *branch;    /* [rows, width] what is to be added to the stream */
    void *attention; /* the attention's scratch */
    void *ds, *dy;   /* [rows, width] of stream and branch; dy is ds without dropout */
    void *dh;        /* [rows, width] */
    void *dwide;  /* [rows, hidden or inner + 2 kv, the larger; with neighbours at least width] */
    void *dheads; /* [rows, inner] */
    void *norm;   /* the norm's scratch */
    void *first_ds, *first_dy, *first_dheads; /* of the first rows, see hti_kept */
} hti_work;
void hti_work_layout(hti_work *work, hti_arena *arena, const hti_layers *s, int64_t rows,
                     int backward);

/* Bytes of one layer's past: [slots, neighbours - 1, width]. */
size_t hti_past_bytes(const hti_layers *s);

/* Where kept->first_x is there, everything after the attention is computed for the first row of
 * each sequence alone: x1 and the branch then have one row per sequence, and so have ds and dy
 * (first_ds and first_dy) that backward starts from. */

/* Whether a product can put its result on the stream by itself: there is no dropout between. */
int hti_layers_add(const hti_layers *s, const hti_rows *r);

/* x: the stream before this layer, branch (in work) to be added to it if `pending`. Leaves x1 in
 * kept and a new branch in work, or, with `next` (hti_layers_add), their sum there. */
ht_status hti_layer_forward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                            const hti_rows *r, const hti_kept *kept, const hti_work *work,
                            const void *x, int pending, void *next);

/* In: work->ds, dy of what forward left. Out: of what it was given (dy only if a branch was
 * pending: `before` are then the gradients of the layer it came from, whose last bias gets its
 * own). Adds to grads. */
ht_status hti_layer_backward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                             const hti_layer_weights *grads, const hti_rows *r,
                             const hti_kept *kept, const hti_work *work,
                             const hti_layer_weights *before);

/* Dropout of one place of the model. */
enum { HTI_SITE_HEADS = 1, HTI_SITE_ACT = 2, HTI_SITE_BRANCH = 3 };
hti_random hti_site(const hti_rows *r, double p, int64_t layer,
                    int place); /* layer -1: the embedding */

#endif
