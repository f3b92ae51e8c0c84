/*
 * The linear model beside a run's Transformer, linear.safetensors in its folder: fitted before the
 * first step, weighed against the Transformer after the last, part of the answers from then on.
 */
#ifndef CLI_RUN_LINEAR_H
#define CLI_RUN_LINEAR_H

#include "run/run.h"

/* Is it for this configuration: a classifier of texts? */
bool linear_fits(const ht_config *config);

/* Of the run, or fitted now, judged by `valid` (or NULL), by at most `most` of its items (0: all),
 * and saved. *out NULL, with a line that says
 * why, if there are too many texts or classes for it. */
bool linear_begin(ht_linear **out, ht_context *ctx, const char *run, ht_data *train, ht_data *valid,
                  int64_t most, bool quiet, cli_error *error);

/* Which of the two answers, or both, by `valid` and the run's best weights, which the model takes;
 * kept in the run's file and told. */
bool linear_end(ht_linear *linear, ht_context *ctx, const char *run, ht_model *model,
                ht_trainer *trainer, ht_data *valid, bool quiet, cli_error *error);

/* That of a model's folder; *out NULL: there is none, or nothing was chosen. */
bool linear_find(ht_linear **out, const run_model *m, cli_error *error);

/* A batch's part in an evaluation. */
typedef struct linear_batch {
    const ht_data *data; /* opened with keep_texts */
    int64_t first;       /* of the batch in the data */
    float *scores;       /* [items, classes]: what the linear model gives */
    float *logits;       /* [items, classes]: the Transformer's, then those of the answer */
} linear_batch;
bool linear_add(ht_linear *linear, ht_context *ctx, const linear_batch *b, int64_t items,
                cli_error *error);

bool linear_answers(const ht_linear *linear); /* does it count in the answer? */
bool linear_alone(const ht_linear *linear);   /* does the Transformer not? */
/* "0.91 linear + 0.32 Transformer", or one of them. */
const char *linear_words(char out[64], const ht_linear *linear);

#endif
