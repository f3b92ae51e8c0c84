/*
 * Logistic regression on what a text is made of, whatever its order: words, pairs of words, runs of
 * bytes. Grams are hashed and numbered (features.c), each class is told from the others by weights
 * that solve.c finds, and validation says how much the scores count beside a model's (mix.c).
 */
#ifndef HTI_LINEAR_H
#define HTI_LINEAR_H

#include "common/names.h"
#include "data/data.h"

/* ---- features.c ---- */

/* Words and pairs have the first half of the hashed numbers, runs of bytes the second. */
enum { HTI_GRAM_BITS = 20, HTI_GRAMS = 2 << HTI_GRAM_BITS };

typedef struct hti_gram {
    int32_t id;
    float value;
} hti_gram;

/* Memory for the grams of a text, from one to the next. */
typedef struct hti_grams {
    ht_context *ctx;
    hti_buffer text, list, table; /* the text in small letters; hti_gram; int32_t */
    int64_t count;
} hti_grams;

ht_status hti_grams_need(hti_grams *g, size_t bytes); /* room for a text of that size */
/* Each gram once, in the order of their first places; known: those alone whose number there is at
 * least 0, or NULL. Of words and of runs the values have length 1. */
void hti_grams_of(hti_grams *g, const int32_t *known, const char *text, size_t bytes);
void hti_grams_free(hti_grams *g);
static inline hti_gram *hti_grams_list(const hti_grams *g) {
    return (hti_gram *)(void *)g->list.data;
}

/* ---- solve.c ---- */

/* Rows of values; the ids are numbers of features. */
typedef struct hti_matrix {
    const hti_gram *list;
    const int64_t *starts; /* [rows + 1] */
    const int32_t *labels; /* [rows] */
    int64_t rows, features;
} hti_matrix;

/* A feature's weight in the sum, and the square of its ratio. */
typedef struct hti_linear_weight {
    float weight, square;
} hti_linear_weight;

/* Memory for solving, one thread's. */
typedef struct hti_linear_work {
    hti_linear_weight *w; /* [features + 1], the last is the bias */
    double *odds;         /* [rows]: log(a / (cost - a)); -inf where a is 0 */
    double *square;       /* [rows]: of the row's vector */
    int32_t *order;       /* [rows] */
} hti_linear_work;
ht_status hti_linear_work_make(hti_linear_work *out, ht_context *ctx, const hti_matrix *x);
void hti_linear_work_free(hti_linear_work *work, ht_context *ctx);

/* One class against the rest: the minimum over w of w.w / 2 + cost * sum log(1 + exp(-y s)) with
 * s = bias + sum value ratio w; y is 1 where the label is `class`. Of work->w, `square` is what was
 * put there, the ratio's; weight becomes ratio * w. passes: over
 * all rows, at most. */
void hti_linear_solve(const hti_linear_work *work, const hti_matrix *x, int32_t class, int passes,
                      double cost);

/* ---- the model ---- */

struct ht_linear {
    ht_context *ctx;
    hti_names labels;
    int64_t outputs;  /* 1 of two classes, else one a class */
    int64_t features; /* that the texts had */
    int32_t *ids;     /* [features]: what was hashed */
    int32_t *number;  /* [HTI_GRAMS]: its place in ids, -1: not there */
    float *weight;    /* [features + 1, outputs]; the last row is the bias */
    hti_grams grams;  /* of the text at work */
    ht_linear_info info;
};

ht_status hti_linear_make(ht_linear **out, ht_context *ctx, const hti_names *labels,
                          int64_t features);

#endif
