/*
 * What train shows: a table at the start, then on a terminal one line with a bar, the time left, a
 * small picture of the loss and the memory, as wide as the terminal is now; elsewhere plain lines.
 */
#ifndef CLI_RUN_PROGRESS_H
#define CLI_RUN_PROGRESS_H

#include "commands.h"

#include <htransformer_models.h>

#define PROGRESS_SPARK 16 /* stretches of the run in the line of its loss */

typedef struct progress {
    bool language;
    const char *unit;             /* of a language model: "byte" or "token" */
    bool terminal, quiet, open;   /* open: an unfinished line is on the terminal */
    bool blocks;                  /* the terminal draws block letters (UTF-8) */
    double flops, peak;           /* operations per token; per second, 0: not known */
    double last;                  /* elapsed seconds when the last line was shown */
    int columns;                  /* of the unfinished line */
    double loss[PROGRESS_SPARK];  /* sums over the steps of each stretch of the run ... */
    double steps[PROGRESS_SPARK]; /* ... and how many they were */
} progress;

void progress_begin(progress *p, ht_context *ctx, const ht_model *model, const ht_config *config,
                    bool quiet);
void progress_header(const ht_model *model, const ht_trainer *trainer, const ht_data *train,
                     const ht_data *valid);
void progress_step(progress *p, const ht_event *event);
void progress_end(progress *p);

#endif
