/*
 * The safetensors format: 8 bytes length, a JSON header, then the numbers. Readable by the package
 * of that name. Ours have checksums in their metadata, of every tensor and of the other metadata;
 * files without any are read, too.
 */
#ifndef HTI_SAFETENSORS_H
#define HTI_SAFETENSORS_H

#include "common/file.h"

typedef struct hti_entry {
    const char *name;
    ht_dtype dtype;
    int rank;
    int64_t shape[2]; /* a rank above 2 is kept as -1: none of ours has it */
    int64_t count;
    uint64_t begin, end; /* bytes after the header */
    uint64_t sum_at;     /* writing: where in the file its checksum is to be put */
    uint32_t sum;        /* reading: the checksum that it should have, */
    int has_sum;         /* if the file says one */
} hti_entry;

/* A file open for reading; everything it claims has been checked against its size. */
typedef struct hti_reader {
    ht_context *ctx;
    const char *path;
    FILE *file;
    struct cJSON *json;   /* owns the names */
    uint64_t bytes, data; /* of the file; before its numbers */
    hti_entry *entries;   /* by name */
    int64_t count;
} hti_reader;

ht_status hti_reader_open(hti_reader *out, ht_context *ctx, const char *path);
void hti_reader_close(hti_reader *r);
const hti_entry *hti_reader_find(const hti_reader *r, const char *name);
const char *hti_reader_meta(const hti_reader *r, const char *key); /* NULL: not there */
/* `count` numbers of an entry from number `first` on, as double; their bytes are added to *sum. */
ht_status hti_reader_get(const hti_reader *r, double *out, const hti_entry *e, int64_t first,
                         int64_t count, uint32_t *sum);
/* Is this the checksum that the file says of the entry, if it says one? */
ht_status hti_reader_agrees(const hti_reader *r, const hti_entry *e, uint32_t sum);

/* The header of a file that will hold these tensors in this order (name, dtype, rank,
 * shape); pairs of key and value are the metadata, ended by NULL. The numbers follow, and when a
 * tensor's are written its checksum. */
ht_status hti_header_write(hti_writer *w, hti_entry *entries, int64_t count,
                           const char *const *meta);
ht_status hti_header_sum(hti_writer *w, const hti_entry *entry, uint32_t sum);

#endif
