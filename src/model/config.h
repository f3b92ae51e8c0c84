/*
 * What the library itself needs from configurations.
 */
#ifndef HTI_CONFIG_H
#define HTI_CONFIG_H

#include "core/context.h"
#include "htransformer_models.h"

/* Checks everything and fills in what zero stands for (kv_heads, inner, hidden, query, embed_std).
 */
ht_status hti_config_resolve(ht_context *ctx, ht_config *config);

/* The configuration of a JSON text over the defaults; unknown keys are refused. */
ht_status hti_config_parse(ht_context *ctx, ht_config *out, const char *json);

/* JSON by cJSON. FORMAT: it is none, or more follows; NOMEM: told apart from it. `what` begins the
 * sentence; cJSON_Delete ends what came out (NULL after a failure). */
struct cJSON;
ht_status hti_json_parse(ht_context *ctx, struct cJSON **out, const char *text, size_t bytes,
                         const char *what);

/* mask_zero: rows of token 0 are not even there. */
enum { HTI_LEAVE_OUT = 2 };

/* Is there a prediction for every token, not one for a text? */
static inline int hti_config_by_token(const ht_config *c) {
    return c->task == HT_TASK_LANGUAGE || c->task == HT_TASK_DENOISE;
}
/* Are targets the rows' own tokens, which the model must not see? Otherwise they are the next. */
static inline int hti_config_hides(const ht_config *c) {
    return c->task == HT_TASK_DENOISE && c->hide > 0;
}
/* A model that denoises has the rows of the classifier that will be made of it. */
static inline int hti_config_has_cls(const ht_config *c) {
    return (c->task == HT_TASK_CLASSIFY || c->task == HT_TASK_DENOISE) && c->pool == HT_POOL_CLS;
}
/* `merge` tokens lie side by side in a row: what each has of the width, the rows of so many tokens
 * (the last may be filled up), those of the longest sequence. */
static inline int64_t hti_config_columns(const ht_config *c) { return c->width / c->merge; }
static inline int64_t hti_config_rows_of(const ht_config *c, int64_t tokens) {
    return (tokens + c->merge - 1) / c->merge + hti_config_has_cls(c);
}
static inline int64_t hti_config_rows(const ht_config *c) {
    return hti_config_rows_of(c, c->length);
}
/* Sequences of a batch. */
static inline int64_t hti_config_sequences(const ht_config *c) {
    return c->batch * (c->task == HT_TASK_PAIRS ? 2 : 1);
}

static inline int hti_config_matches(const ht_config *c) {
    return c->task == HT_TASK_PAIRS && c->pair_features == 4;
}

/* Are windows of a text split into sequences where a document ends? */
static inline int hti_config_splits(const ht_config *c) {
    return c->task == HT_TASK_LANGUAGE && !c->across;
}

#endif
