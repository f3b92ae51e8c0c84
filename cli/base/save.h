/*
 * Files that are either whole or not there: written under a temporary name beside the final
 * one, flushed to the disk, then renamed. A failure or a signal on the way removes the
 * temporary.
 */
#ifndef CLI_BASE_SAVE_H
#define CLI_BASE_SAVE_H

#include "base/say.h"

typedef struct save_file {
    FILE *file;
    char *path;      /* the final name, links resolved */
    char *temporary; /* path.XXXXXX */
    int slot;        /* where the signal handler finds the temporary */
} save_file;

/* Creates the temporary, so that an unwritable place is known before any work is done. */
bool save_open(save_file *out, const char *path, cli_error *error);

bool save_write(save_file *save, const void *data, size_t bytes, cli_error *error);

/* All bytes are on the disk, still under the temporary name. */
bool save_finish(save_file *save, cli_error *error);

/* Gives the finished file its name. */
bool save_commit(save_file *save, cli_error *error);

/* Removes what was not committed; also of a save_file that is all zero. */
void save_discard(save_file *save);

#endif
