/*
 * What a run begins with: the weights of another run, those of the encoder that comes with the
 * program, or random ones.
 */
#ifndef CLI_RUN_BEGIN_H
#define CLI_RUN_BEGIN_H

#include "run/given.h"

#include <htransformer_models.h>

/* What the user said of it; NULL: nothing. */
typedef struct begin_words {
    const char *preset, *config, *data, *init;
    const given *key;
} begin_words;

/* The preset where none was named: for texts with labels that of the encoder in the box, if it is
 * there and no setting asks for weights of another form. */
const char *begin_preset(const begin_words *said);

/* Begins a run of these settings with the encoder? Its path goes into out [4096]. */
bool begin_encoder(char *out, const begin_words *said, const ht_config *config, cli_error *error);

/* Do these items look like texts? Sequences of a few letters (DNA, proteins, digits) do not: the
 * encoder knows nothing of them. */
bool begin_has_words(const ht_data *data);

/* The encoder's settings say how many steps two cores do in ten minutes. A GPU does more: as many
 * as go so many times over the items, and no more evaluations than that. */
enum { BEGIN_EPOCHS = 4, BEGIN_EVALUATIONS = 8 };

#endif
