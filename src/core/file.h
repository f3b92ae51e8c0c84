/*
 * Files: written whole or not at all, read with their size known first.
 */
#ifndef HTI_FILE_H
#define HTI_FILE_H

#include <stdio.h>

#include "core/context.h"

/* A file that appears under its name only when it is complete and on the disk. */
typedef struct hti_writer {
    ht_context *ctx;
    FILE *file;
    char *path, *temporary; /* path and path.tmp */
} hti_writer;

ht_status hti_writer_open(hti_writer *out, ht_context *ctx, const char *path);
ht_status hti_writer_put(hti_writer *w, const void *data, size_t bytes);
ht_status hti_writer_commit(hti_writer *w); /* flush, sync, rename, sync the folder */
void hti_writer_discard(hti_writer *w); /* after a failure; a committed or zero writer is fine */

/* The whole file as bytes with a 0 after them, from hti_host_alloc; at most `most` bytes. */
ht_status hti_file_read(ht_context *ctx, char **out, size_t *bytes, const char *path, size_t most);

/* "folder/name" from hti_host_alloc, or NULL. */
char *hti_path_join(ht_context *ctx, const char *folder, const char *name);

#endif
