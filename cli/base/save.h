/*
 * The program's files, by the library's one writer and one way to open: whole or not there, links
 * not followed, pipes and devices refused where a file is needed.
 */
#ifndef CLI_BASE_SAVE_H
#define CLI_BASE_SAVE_H

#include "base/say.h"

#include <htransformer_models.h>

typedef struct save_file { /* all zero: none */
    ht_writer *writer;
    FILE *file; /* to print into */
} save_file;

/* Signals that end the program remove the temporaries; a limit on the size of files becomes an
 * error of write. */
void save_watch_signals(void);

/* Creates the temporary, so that an unwritable place is known before any work is done. */
bool save_open(save_file *out, const char *path, cli_error *error);

bool save_write(save_file *save, const void *data, size_t bytes, cli_error *error);

/* All bytes are on the disk, still under the temporary name. */
bool save_finish(save_file *save, cli_error *error);

/* Gives the finished file its name. */
bool save_commit(save_file *save, cli_error *error);

/* Removes what was not committed; also of a save_file that is all zero. */
void save_discard(save_file *save);

/* A regular file and its size; a file, a pipe or a terminal to be read once. NULL: a sentence. */
FILE *save_open_input(const char *path, uint64_t *bytes, cli_error *error);
FILE *save_open_stream(const char *path, cli_error *error);

/* Is there anything under this name? What cannot be told is a failure with a sentence, no "no". */
bool save_there(bool *there, const char *path, cli_error *error);

/* The next line of a file into *line, which grows. False: there is none, or, with *good false and a
 * sentence, it could not be read. */
bool save_line(FILE *file, const char *name, char **line, size_t *room, size_t *bytes, bool *good,
               cli_error *error);

#endif
