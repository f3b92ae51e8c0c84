/*
 * Sets as files: what the tasks share when they are made or taken from their official form.
 */
#ifndef HTI_DATA_LRA_SET_H
#define HTI_DATA_LRA_SET_H

#include "common/hash.h"
#include "data/data.h"
#include "common/file.h"

/* One call of ht_set_write. */
typedef struct hti_set {
    ht_context *ctx;
    const ht_set_desc *desc;
    ht_set_info *info;
    int64_t done, all;
} hti_set;

extern const char *const hti_set_parts[3]; /* "train", "valid", "test" */

/* So many more items are done; fails if the caller wants to stop. */
ht_status hti_set_tell(hti_set *s, int64_t more);

/* An item of a part is known: its number and sum count. */
void hti_set_count(hti_set *s, int part, uint64_t sum, int64_t tokens);

/* Are the number of items and, where it is known, their sum right? */
ht_status hti_set_expect(const hti_set *s, int part, int64_t items);

/* A file of the set, folder/TASK-NAME, compressed if that can be done and is not unwanted; it
 * appears when it is closed. */
typedef struct hti_pack {
    hti_writer file;
    void *zstd;
    hti_buffer out;
} hti_pack;
ht_status hti_pack_open(hti_pack *out, const hti_set *s, const char *name);
ht_status hti_pack_put(hti_pack *p, const void *bytes, size_t count);
ht_status hti_pack_close(hti_pack *p);
void hti_pack_discard(hti_pack *p); /* after a failure; a closed or zero one is fine */

/* folder/name, with .zst or .gz after it or not: *out is the path from hti_host_alloc, or NULL if
 * there is no such file. */
ht_status hti_set_find(char **out, ht_context *ctx, const char *folder, const char *name);

/* The tasks. */
ht_status hti_listops_set(hti_set *s);
ht_status hti_listops_import(hti_set *s);
ht_status hti_imdb_import(hti_set *s);
ht_status hti_cifar10_import(hti_set *s);
ht_status hti_aan_import(hti_set *s);
ht_status hti_pathfinder_set(hti_set *s, int side);
ht_status hti_pathfinder_import(hti_set *s, int side);

ht_status hti_marked_set(hti_set *s, int64_t format); /* copy, recall: marked/ */

/* ---- images.c ---- */

/* The first bytes of a file of images. */
enum { HTI_IMAGES_HEADER = 32 };
void hti_images_header(unsigned char out[HTI_IMAGES_HEADER], int64_t height, int64_t width,
                       int64_t classes, int64_t count);

/* ---- aan.c: papers by their ids ---- */

typedef struct hti_papers {
    hti_names ids;
    hti_buffer sums; /* uint64_t per paper: of its text, to compare */
} hti_papers;
void hti_papers_begin(hti_papers *p, ht_context *ctx);
int32_t hti_papers_find(const hti_papers *p, const char *id, size_t bytes); /* -1: none */
/* The new paper's number is the count before. */
ht_status hti_papers_add(hti_papers *p, const char *id, size_t bytes, uint64_t sum);
uint64_t hti_papers_sum(const hti_papers *p, int32_t paper);
void hti_papers_free(hti_papers *p);

/* ---- imdb.c ---- */

/* A folder with folders neg and pos; calls `each` with every review, stripped. */
typedef ht_status hti_each_review(void *user, const char *name, int label, const char *text,
                                  size_t bytes);
int hti_imdb_is_folder(const char *path);
ht_status hti_imdb_read(ht_context *ctx, const char *path, hti_each_review *each, void *user);

/* ---- numbers in headers of files, their lowest byte first ---- */

static inline void hti_put_number(unsigned char *out, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) out[i] = (unsigned char)(x >> 8 * i);
}
static inline uint64_t hti_get_number(const unsigned char *from, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)from[i] << 8 * i;
    return x;
}

/* ---- listops.c ---- */

/* The value of an expression; FORMAT: it is none. */
ht_status hti_listops_value(ht_context *ctx, const uint16_t *ids, int64_t count, int *value);

/* Distinct expressions number first ... last - 1 of the stream of a configuration; *attempts (or
 * NULL): how many were made for them. */
typedef ht_status hti_each_expression(void *user, const uint16_t *ids, int64_t count, int value);
ht_status hti_listops_stream(ht_context *ctx, const ht_config *c, int64_t first, int64_t last,
                             hti_each_expression *each, void *user, int64_t *attempts);

/* A set of expressions, begun as {.ctx = ctx}: is this one new? */
typedef struct hti_seen {
    ht_context *ctx;
    uint64_t *slots;       /* [size], 0: empty; at most half of them are taken */
    uint64_t size, filled; /* a power of two, or 0 */
} hti_seen;
ht_status hti_seen_add(hti_seen *s, const uint16_t *ids, int64_t count, int *is_new);
void hti_seen_free(hti_seen *s);

#endif
