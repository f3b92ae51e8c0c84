/*
 * Ranks that have NCCL alone, as torchrun starts them, with a library that stands for it.
 */
#ifndef NCCL_WORLD_H
#define NCCL_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dist/world.h"

/* Starts `count` processes and returns the rank in each of them; in the one that started them, when
 * they have ended, -1, or -2 if one of them failed. */
static inline int world_fork(int count) {
    char folder[128], address[64];
    int failed = 0;
    snprintf(address, sizeof address, "test-%d", (int)getpid());
    snprintf(folder, sizeof folder, "rm -rf /tmp/fake-nccl-%s:7001", address);
    setenv("MASTER_ADDR", address, 1);
    setenv("MASTER_PORT", "7000", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    for (int rank = 0; rank < count; rank++)
        if (fork() == 0) return rank;
    for (int i = 0, status; i < count; i++) failed |= wait(&status) < 0 || status != 0;
    return system(folder) != 0 || failed ? -2 : -1;
}

/* NULL: the context has the sentence. */
static inline ht_world *world_by_nccl(ht_context *ctx, const char *library, int rank, int ranks) {
    ht_world *world = hti_host_alloc(ctx, sizeof *world);
    char *words = hti_host_alloc(ctx, (size_t)ranks * HTI_WORD_BYTES);
    *world = (ht_world){.ctx = ctx, .host = 1, .patience = 5, .words = words};
    world->place = (ht_place){.size = sizeof world->place, .rank = rank, .ranks = ranks};
    world->place.launcher = "torchrun";
    return hti_nccl_open(world, library) == HT_OK && world->nccl ? world : NULL;
}

#endif
