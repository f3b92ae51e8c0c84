/*
 * How well a classifier answers: share of right answers, loss, of each class precision, recall and
 * F1, and which class it took for which.
 */
#ifndef CLI_RUN_SCORE_H
#define CLI_RUN_SCORE_H

#include "base/json.h"
#include "commands.h"

#include <htransformer_models.h>

enum { SCORE_MATRIX = 256 }; /* more classes have no matrix */

typedef struct score {
    int64_t classes;
    char **names;                /* [classes] */
    int64_t per_item;            /* sequences: 2 of pairs */
    double items, correct, loss; /* sums */
    double *is, *said, *right;   /* [classes]: items of the class, answers, both */
    double *matrix;              /* [class, answer], or NULL */
} score;

bool score_begin(score *s, const ht_labels *labels, const ht_config *config, cli_error *error);
/* Logits [items, classes] of a batch with targets. */
void score_add(score *s, const ht_batch *batch, const float *logits);
void score_free(score *s);

/* NaN where there is nothing to divide by. */
double score_precision(const score *s, int64_t k);
double score_recall(const score *s, int64_t k);
double score_f1(const score *s, int64_t k);
/* Mean of F1 over classes that occur, in the data or in an answer. */
double score_macro_f1(const score *s);
double score_majority(const score *s); /* share of the largest class */

/* Tables of the classes and of the matrix, as far as they fit; members of an open JSON object. */
void score_print(const score *s);
void score_json(const score *s, json_writer *json);

/* A label; one that is a whole number as a number. */
void score_json_label(json_writer *json, const char *key, const char *label);

#endif
