/*
 * How well a language model predicts: loss per token, perplexity per token and per word, bits per
 * byte, each with the standard error that the spread over sequences leaves; loss by position in the
 * context.
 */
#ifndef CLI_EVAL_MEASURE_H
#define CLI_EVAL_MEASURE_H

#include "commands.h"
#include "base/json.h"

#include <htransformer_models.h>

/* A sum of losses per something: R = sum(loss) / sum(amount). */
typedef struct measure_ratio {
    double amount, square, cross; /* sums of a, a^2, a * loss over sequences */
} measure_ratio;

enum { MEASURE_PLACES = 32 }; /* position 0, 1, 2-3, 4-7, ... */

typedef struct measure {
    const ht_tokenizer *tokenizer;
    const char *documents; /* as in the configuration: what ends count as a word */
    double loss, square;   /* sums of sequences' losses, and of their squares */
    double sequences;
    measure_ratio tokens, words, bytes;
    double place_loss[MEASURE_PLACES], place_square[MEASURE_PLACES], place_count[MEASURE_PLACES];
} measure;

/* Takes in a batch and the loss of each of its tokens' targets. */
void measure_add(measure *m, const ht_batch *batch, const float *losses);

/* Loss per unit, and its standard error (NaN of one sequence, which has no spread). */
double measure_loss(const measure *m, const measure_ratio *r);
double measure_error(const measure *m, const measure_ratio *r);

/* Is what white space separates as short as words are? Else a perplexity per word means nothing:
 * bases, languages without blanks, numbers. */
bool measure_has_words(const measure *m);

/* Text, or members of an open JSON object; what means nothing is said, or null. */
void measure_print(const measure *m, const char *model, int by_position);
void measure_json(const measure *m, json_writer *json, int by_position);

#endif
