/*
 * A command that several processes run together, started by mpirun, srun or torchrun: which device
 * each takes, who speaks, how all of them end when one fails.
 */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include <htransformer_models.h>
#include <stdbool.h>

#include "base/say.h"

typedef struct ranks {
    ht_place place;
    ht_world *world;            /* NULL: there is one process */
    ht_context *ctx;            /* of the world */
    bool agreed;                /* a failure that all ranks know of */
    int64_t first, last;        /* steps that were told of */
    uint64_t at_first, at_last; /* bytes sent by then */
    char device[32];
} ranks;

bool ranks_find(ranks *r, cli_error *error);
/* `device` as given, but where a GPU would be chosen that of this rank. */
const char *ranks_device(ranks *r, const char *device);
/* `threads` as given; 0: this rank's part of the machine's, unless the launcher gave it one. */
int64_t ranks_threads(const ranks *r, int64_t threads);
bool ranks_open(ranks *r, ht_context *ctx, cli_error *error);
static inline bool ranks_first(const ranks *r) { return r->place.rank == 0; }

/* Is all well at every rank? Where one has failed all have its sentence. It waits for them, so that
 * one may do something that the others need. */
bool ranks_agree(ranks *r, bool good, cli_error *error);
/* After each step; then how much was sent in one, evaluations and all, and what this rank keeps. */
void ranks_step(ranks *r, int64_t step);
void ranks_print(const ranks *r, const ht_trainer *trainer);
/* Says what went wrong, once, and leaves the others with it; failed NULL: nothing. */
void ranks_close(ranks *r, const char *command, const cli_error *failed);

#endif
