/*
 * Configurations inside the library: a struct with a field for each key.
 */
#ifndef HTI_CONFIG_H
#define HTI_CONFIG_H

#include "config/keys.h"
#include "core/context.h"
#include "htransformer_models.h"

/* A value may be copied: nothing in it is owned. (A key of a kind TEXT would be an array of a fixed
 * size.) */
struct ht_config {
    ht_context *ctx; /* where sentences go and memory comes from; NULL: this thread, malloc */
#define HTI_FIELD_INT(name) int64_t name;
#define HTI_FIELD_REAL(name) double name;
#define HTI_FIELD_CHOICE(name) int64_t name;
#define HTI_FIELD(kind, name, fallback, least, most, owner, resume, help) HTI_FIELD_##kind(name)
    HTI_CONFIG_KEYS(HTI_FIELD)
};

/* The numbers of the choices that the code asks for, in the order of keys.h (attention, query and
 * dtype have those of htransformer.h). */
enum { HTI_TASK_CLASSIFY, HTI_TASK_PAIRS, HTI_TASK_LANGUAGE, HTI_TASK_DENOISE };
enum {
    HTI_FORMAT_LISTOPS,
    HTI_FORMAT_TSV,
    HTI_FORMAT_TEXT,
    HTI_FORMAT_IMAGES,
    HTI_FORMAT_PATHFINDER,
    HTI_FORMAT_TOKENS,
    HTI_FORMAT_COPY,
    HTI_FORMAT_RECALL
};
enum {
    HTI_DOCUMENTS_FILE,
    HTI_DOCUMENTS_LINES,
    HTI_DOCUMENTS_ARTICLES,
    HTI_DOCUMENTS_WIKITEXT,
    HTI_DOCUMENTS_FASTA
};
enum {
    HTI_POOLED_CLS,
    HTI_POOLED_FIRST,
    HTI_POOLED_MEAN,
    HTI_POOLED_MEAN_ALL,
    HTI_POOLED_LAST,
    HTI_POOLED_MAX
};
enum { HTI_DTYPE_AUTO = 3 };
enum { HTI_ROTARY_NONE, HTI_ROTARY_LEVEL0, HTI_ROTARY_ALL };
enum { HTI_SCHEDULE_CONSTANT, HTI_SCHEDULE_RSQRT, HTI_SCHEDULE_COSINE, HTI_SCHEDULE_LINEAR };
enum { HTI_DECAY_MATRICES, HTI_DECAY_ALL };
enum { HTI_OPTIMIZER_ADAMW, HTI_OPTIMIZER_MUON };

/* ---- keys ---- */

typedef enum hti_resume { HTI_APPLY, HTI_CHOSEN, HTI_KEEP, HTI_DECIDED } hti_resume;

typedef struct hti_key {
    const char *name;
    ht_key_kind kind;
    ht_key_owner owner;
    hti_resume resume;
    size_t offset;
    const char *fallback_words;
    double fallback, least, most;
    const char *help;
} hti_key;

extern const hti_key hti_keys[]; /* ended by a NULL name */
const hti_key *hti_key_find(const char *name);
/* The value that leaves the key to hti_config_resolve; NAN: none does. */
double hti_key_open(const hti_key *key);

/* Name number `index` of a CHOICE; NULL: it has none. */
const char *hti_config_choice(const char *key, int64_t index);

double hti_config_number(const ht_config *config, const hti_key *key);
/* A value in words, as it can be read again. */
enum { HTI_WORDS = 32 };
const char *hti_config_words(char out[HTI_WORDS], const ht_config *config, const hti_key *key);

void hti_config_place(ht_config *config, const hti_key *key, double x);
/* Checked against the key alone; else refused, with what was got as it was written. */
ht_status hti_config_put(ht_config *config, const hti_key *key, double x);
ht_status hti_config_put_words(ht_config *config, const hti_key *key, const char *words);
ht_status hti_config_refuse(const ht_config *config, const hti_key *key, const char *got);

/* ---- whole configurations ---- */

void hti_config_defaults(ht_config *out, ht_context *ctx);
ht_status hti_config_preset(ht_config *config, const char *name);
/* A copy as an object of its own. */
ht_status hti_config_make(ht_config **out, ht_context *ctx, const ht_config *from);

/* Decides what was left open, checks everything; from then on it is ctx's. */
ht_status hti_config_resolve(ht_context *ctx, ht_config *config);

/* Settings for what was begun with `stored`, in which nothing is open: what `config` leaves open
 * becomes what it was, and the rest is decided and checked; another value of what is kept is
 * refused, and `what` begins the sentence. Kept are the keys that a run keeps; in a trainer all
 * that are the model's. */
typedef enum hti_begun { HTI_BEGUN_RUN, HTI_BEGUN_MODEL } hti_begun;
ht_status hti_config_go_on(ht_context *ctx, ht_config *config, const ht_config *stored,
                           hti_begun begun, const char *what);

/* JSON by cJSON. FORMAT: it is none, or more follows; NOMEM: told apart from it. `what` begins the
 * sentence; cJSON_Delete ends what came out (NULL after a failure). */
struct cJSON;
ht_status hti_json_parse(ht_context *ctx, struct cJSON **out, const char *text, size_t bytes,
                         const char *what);

/* mask_zero: rows of token 0 are not even there. */
enum { HTI_LEAVE_OUT = 2 };

/* ---- what follows from it ---- */

/* Is there a prediction for every token, not one for a text? */
static inline int hti_config_by_token(const ht_config *c) {
    return c->task == HTI_TASK_LANGUAGE || c->task == HTI_TASK_DENOISE;
}
/* Are targets the rows' own tokens, which the model must not see? Otherwise they are the next. */
static inline int hti_config_hides(const ht_config *c) {
    return c->task == HTI_TASK_DENOISE && c->hide > 0;
}
/* A model that denoises has the rows of the classifier that will be made of it. */
static inline int hti_config_has_cls(const ht_config *c) {
    return (c->task == HTI_TASK_CLASSIFY || c->task == HTI_TASK_DENOISE) &&
           c->pool == HTI_POOLED_CLS;
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
/* Of the neighbours those before the row. */
static inline int64_t hti_config_near_back(const ht_config *c) {
    return c->causal ? c->neighbours - 1 : c->neighbours / 2;
}
/* Sequences of a batch. */
static inline int64_t hti_config_sequences(const ht_config *c) {
    return c->batch * (c->task == HTI_TASK_PAIRS ? 2 : 1);
}

static inline int hti_config_of_images(const ht_config *c) {
    return c->format == HTI_FORMAT_IMAGES || c->format == HTI_FORMAT_PATHFINDER;
}

static inline int hti_config_matches(const ht_config *c) {
    return c->task == HTI_TASK_PAIRS && c->pair_features == 4;
}

/* Do items say which of their tokens are to be guessed? */
static inline int hti_config_marks(const ht_config *c) { return c->format >= HTI_FORMAT_TOKENS; }

/* Are windows of a text split into sequences where a document ends? */
static inline int hti_config_splits(const ht_config *c) {
    return c->task == HTI_TASK_LANGUAGE && !c->across && !hti_config_marks(c);
}

#endif
