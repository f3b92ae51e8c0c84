/*
 * What train shows: a table at the start, then a bar on a terminal or plain lines elsewhere.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include "commands.h"

typedef struct progress {
    const ht_config *config;
    bool terminal, quiet, open; /* open: an unfinished line is on the terminal */
    double last;                /* elapsed seconds when the last plain line was shown; -1: none */
} progress;

void progress_begin(progress *p, const ht_config *config, bool quiet);
void progress_header(const ht_model *model, const ht_trainer *trainer, const ht_data *train,
                     const ht_data *valid);
void progress_step(progress *p, const ht_event *event);
void progress_end(progress *p);

#endif
