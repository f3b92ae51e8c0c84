/*
 * Files: written whole or not at all, read with their size known first.
 *
 * Everything here also takes no context (NULL): memory is then the C library's, and the sentence of
 * a failure is ht_context_error(NULL).
 */
#ifndef HTI_FILE_H
#define HTI_FILE_H

#include <stdio.h>

#include "core/context.h"

/* ---- writing ---- */

/* A file that appears under its name only when it is complete and on the disk. Until then it has a
 * name of its own beside it, `.NAME.httmp-` and 12 random digits, and holds a lock (flock) on it:
 * one without a lock is the left-over of a killed process. What stands under the name must be a
 * regular file, not a link, and stays as it is on any failure. */
typedef struct hti_writer {
    ht_context *ctx;
    FILE *file; /* to print into, too: hti_writer_finish sees what failed */
    char *path, *temporary;
    int slot;   /* where hti_writer_abandon_all finds the temporary, + 1 */
    int lock;   /* a second descriptor of it + 1: the lock lasts until it has its name */
    int broken; /* finishing it failed: it will not have its name */
} hti_writer;

/* Makes the temporary, so that an unwritable place is known before any work is done; removes what
 * killed processes left in the folder. */
ht_status hti_writer_open(hti_writer *out, ht_context *ctx, const char *path);
ht_status hti_writer_put(hti_writer *w, const void *data, size_t bytes);
/* Bytes so far. */
ht_status hti_writer_tell(const hti_writer *w, uint64_t *out);
/* `bytes` at a place that was written before; what comes next is put at the end. */
ht_status hti_writer_patch(hti_writer *w, uint64_t at, const void *data, size_t bytes);
ht_status hti_writer_finish(hti_writer *w); /* flush, sync, close: still the temporary's name */
ht_status hti_writer_commit(hti_writer *w); /* finish, rename, sync the folder */
void hti_writer_discard(hti_writer *w); /* after a failure; a committed or zero writer is fine */

/* Removes the temporaries of all writers of this process; a signal handler may call it before the
 * process ends. */
void hti_writer_abandon_all(void);

/* A regular file (made if it is not there, links refused) to append lines to; a last line that was
 * cut off is ended. */
ht_status hti_file_append(ht_context *ctx, FILE **out, const char *path);
/* A file without a name in the folder that TMPDIR names, or /tmp: gone with the process. */
ht_status hti_file_scratch(ht_context *ctx, FILE **out);
/* Bytes to the end of such a file, at once: what fails is known now. `name` is for the sentence. */
ht_status hti_file_add(ht_context *ctx, FILE *file, const char *name, const void *data,
                       size_t bytes);

/* ---- reading ---- */

/* A regular file behind any links, open, and its size. Does not wait for a pipe. */
ht_status hti_file_open(ht_context *ctx, FILE **out, uint64_t *bytes, const char *path);
/* The same, or a pipe or a terminal: what is read once, from its start to its end. */
ht_status hti_file_open_stream(ht_context *ctx, FILE **out, const char *path);

/* The whole file as bytes with a 0 after them, from hti_host_alloc; at most `most` bytes. */
ht_status hti_file_read(ht_context *ctx, char **out, size_t *bytes, const char *path, size_t most);

/* One line into *line, which grows (from malloc, the caller frees): HT_OK, HT_END, or what failed:
 * an end is never mistaken for a failure. `name` is for the sentence. */
ht_status hti_file_line(ht_context *ctx, FILE *file, const char *name, char **line, size_t *room,
                        size_t *bytes);

/* ---- names ---- */

/* "folder/name" from hti_host_alloc, or NULL. */
char *hti_path_join(ht_context *ctx, const char *folder, const char *name);

/* Does a name that comes from a file stay inside its folder? Not so: absolute, or with `..`. */
int hti_path_inside(const char *name);

/* The step of "step-000000123.safetensors", or -1: digits alone, and a number that fits. */
int64_t hti_step_of(const char *name);

#endif
