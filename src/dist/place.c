/*
 * Where this process stands among those that were started together, by what launchers leave in the
 * environment.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"
#include "dist/world.h"

/* Names of the four numbers, by launcher. mpirun's come first: it may run inside a Slurm job, whose
 * variables are then those of the job. A Slurm step has its own number of tasks; SLURM_NTASKS
 * stands in a batch script, too, where nothing was started yet. torchrun's say the least and come
 * last. */
static const struct {
    const char *launcher, *ranks, *rank, *local_rank, *local_ranks;
} launchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", NULL},
    {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
};

/* *out stays as it is where the variable is not set. */
static ht_status read_number(int *out, const char *name, int least, int most) {
    const char *text = name ? getenv(name) : NULL;
    char *end;
    if (!text) return HT_OK;
    errno = 0;
    long x = strtol(text, &end, 10);
    CHECK(NULL, end != text && *end == '\0' && errno == 0 && x >= least && x <= most, HT_INVALID,
          "the variable %s must be %d to %d, got \"%.40s\"", name, least, most, text);
    *out = (int)x;
    return HT_OK;
}

ht_status ht_place_find(ht_place *out) {
    TRY(HTI_WANT(NULL, ht_place, out));
    ht_place p = {.ranks = 1, .local_ranks = 1};
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        if (!getenv(launchers[i].ranks) || !getenv(launchers[i].rank)) continue;
        p.launcher = launchers[i].launcher;
        TRY(read_number(&p.ranks, launchers[i].ranks, 1, HTI_MOST_RANKS));
        TRY(read_number(&p.rank, launchers[i].rank, 0, p.ranks - 1));
        p.local_rank = p.rank;
        TRY(read_number(&p.local_rank, launchers[i].local_rank, 0, HTI_MOST_RANKS));
        TRY(read_number(&p.local_ranks, launchers[i].local_ranks, 1, HTI_MOST_RANKS));
        break;
    }
    HTI_GIVE(ht_place, out, &p);
    return HT_OK;
}
