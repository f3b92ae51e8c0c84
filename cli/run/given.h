/*
 * Settings as options: one option for each key of a configuration, and what the user gave for it.
 */
#ifndef CLI_RUN_GIVEN_H
#define CLI_RUN_GIVEN_H

#include "commands.h"

#include <htransformer_models.h>

enum { GIVEN_MOST = 200 };

typedef struct given {
    const char *text[GIVEN_MOST]; /* by number of the key; NULL: nothing */
} given;

/* Writes an option for each key behind the last of a table (which has room for GIVEN_MOST more);
 * their values go into the `given` at this offset. */
void given_options(cli_option *table, size_t offset);

const char *given_for(const given *g, const char *key);

/* Sets them; a wrong one is refused with the nearest right name. */
bool given_set(ht_context *ctx, ht_config *config, const given *g, cli_error *error);

/* "; did you mean local?", of a list that ends with NULL, or "". */
const char *given_hint(char out[64], const char *text, const char *const *names);

#endif
