/*
 * Which parameters exist: one list for the model, one for a layer (layer.h), from which memory,
 * initial values, the optimiser, checkpoints and the public list of tensors follow.
 *
 * X(field, name, rows, columns, init, matrix, when): rows 0 makes a vector; `c` is the resolved
 * configuration. All lie in one arena; parameters that decay come first, so that the optimiser
 * needs few calls.
 */
#ifndef HTI_PARAMS_H
#define HTI_PARAMS_H

#include "layer/layer.h"
#include "config/config.h"

#define HTI_FEATURES ((c->task == HTI_TASK_PAIRS ? c->pair_features : 1) * c->width)
#define HTI_COLUMNS (hti_config_columns(c))
#define HTI_BY_TOKEN (hti_config_by_token(c))
#define HTI_HEADED (!HTI_BY_TOKEN && c->head_hidden > 0)
/* what the last layer reads and how many logits it gives */
#define HTI_LAST                                      \
    (HTI_BY_TOKEN                ? HTI_COLUMNS        \
     : !HTI_HEADED               ? HTI_FEATURES       \
     : c->task == HTI_TASK_PAIRS ? c->head_hidden / 2 \
                                 : c->head_hidden)
#define HTI_LOGITS (HTI_BY_TOKEN ? c->vocab : c->classes)

#define HTI_MODEL_PARAMS(X)                                                                     \
    X(embed, "embed.tokens.weight", c->vocab, HTI_COLUMNS, EMBED, 0, !c->amounts)               \
    X(amounts, "embed.amounts.weight", 2, HTI_COLUMNS, SPREAD, 0, c->amounts)                   \
    X(cls, "embed.cls", 0, HTI_COLUMNS, ZERO, 0, /* stands for hidden tokens, too */            \
      hti_config_has_cls(c) || hti_config_hides(c))                                             \
    X(learned, "embed.positions.weight", hti_config_rows(c), c->width, NORMAL02, 0, c->learned) \
    X(norm_scale, "norm.weight", 0, c->width, ONE, 0, 1)                                        \
    X(norm_shift, "norm.bias", 0, c->width, ZERO, 0, 1)                                         \
    X(head0, "head.0.weight", c->head_hidden, HTI_FEATURES, LECUN, 1, HTI_HEADED)               \
    X(head0_bias, "head.0.bias", 0, c->head_hidden, ZERO, 0, HTI_HEADED)                        \
    X(head1, "head.1.weight", c->head_hidden / 2, c->head_hidden, LECUN, 1,                     \
      HTI_HEADED && c->task == HTI_TASK_PAIRS)                                                  \
    X(head1_bias, "head.1.bias", 0, c->head_hidden / 2, ZERO, 0,                                \
      HTI_HEADED && c->task == HTI_TASK_PAIRS)                                                  \
    X(output, "output.weight", HTI_LOGITS, HTI_LAST, OUTPUT, 1, !c->tied)                       \
    X(output_bias, "output.bias", 0, HTI_LOGITS, ZERO, 0, !HTI_BY_TOKEN)

typedef enum hti_init {
    HTI_INIT_ZERO,
    HTI_INIT_ONE,
    HTI_INIT_EMBED,      /* normal or waves, embed_std */
    HTI_INIT_SPREAD,     /* normal, embed_std */
    HTI_INIT_OWN_ROW,    /* neighbours: 1 for the row itself, else 0 */
    HTI_INIT_SLOPE,      /* falls with the distance, relative_slope */
    HTI_INIT_NORMAL02,   /* normal, 0.02 */
    HTI_INIT_TINY,       /* normal, 1e-6 */
    HTI_INIT_XAVIER,     /* uniform, sqrt(6 / (in + out)) */
    HTI_INIT_XAVIER_QKV, /* the same for each of q, k, v */
    HTI_INIT_LECUN,      /* normal cut at two deviations, variance 1/in */
    HTI_INIT_OUTPUT      /* the same, times output_scale */
} hti_init;

/* Where each parameter begins in the arena, in elements; -1: the model has none. */
#define HTI_OFFSET(field, name, rows, columns, init, matrix, when) int64_t field;
typedef struct hti_model_at {
    HTI_MODEL_PARAMS(HTI_OFFSET)
} hti_model_at;
typedef struct hti_layer_at {
    HTI_LAYER_PARAMS(HTI_OFFSET)
} hti_layer_at;

typedef struct hti_param {
    char name[56];
    int rank;
    int64_t shape[2], count, offset;
    hti_init init;
    int decays;
    int of_layer; /* a matrix of a layer: what Muon is for */
} hti_param;

typedef struct hti_params {
    hti_param *list;
    int64_t tensors, count; /* count: numbers in all tensors */
    int64_t matrices;       /* where the layers' matrices begin; they are the last that decay */
    int64_t decaying;       /* arena elements of those that decay, padding included */
    int64_t total;          /* arena elements */
    hti_model_at model;
    hti_layer_at *layers; /* [c->layers] */
} hti_params;

ht_status hti_params_make(hti_params *out, ht_context *ctx, const ht_config *config);
void hti_params_free(hti_params *params, ht_context *ctx);

/* First values of one parameter, by the configuration's seed. */
void hti_param_init(double *out, const hti_params *params, int64_t index, const ht_config *config);

#endif
