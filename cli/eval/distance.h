/*
 * How often a language model guesses the tokens that count, by how far back the same answer stands.
 */
#ifndef CLI_EVAL_DISTANCE_H
#define CLI_EVAL_DISTANCE_H

#include "base/json.h"
#include "commands.h"

#include <htransformer_models.h>

/* Sums over items, each of which has `tokens` that count and `right` of them guessed. */
typedef struct distance_sums {
    double items, tokens, right, loss;
    double squares[3]; /* tokens^2, tokens * right, right^2 */
} distance_sums;

enum { DISTANCES = 33 }; /* nobody says, 1, 2-3, 4-7, ... */

typedef struct distance {
    distance_sums all, by[DISTANCES];
} distance;

/* Takes in a batch with what ht_trainer_guess gave. */
void distance_add(distance *d, const ht_batch *batch, const float *losses,
                  const unsigned char *right);

double distance_accuracy(const distance_sums *s);
/* Its standard error by the spread over items; NaN of one item. */
double distance_error(const distance_sums *s);

void distance_print(const distance *d, const char *model);
void distance_json(const distance *d, json_writer *json);

#endif
