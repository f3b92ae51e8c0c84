/*
 * An open part of a task in memory: token ids, where each sequence begins, labels. No floats.
 */
#ifndef HTI_DATA_H
#define HTI_DATA_H

#include <stdio.h>

#include "common/buffer.h"
#include "common/names.h"
#include "config/config.h"

/* The tokens of a text (store.c), in memory or in a file. */
typedef struct hti_tokens {
    hti_buffer memory; /* uint16_t */
    size_t limit;      /* bytes in memory before the file is made */
    FILE *file;
    void *map;
    size_t map_bytes;
    int64_t count;
    const uint16_t *at; /* [count] once finished */
} hti_tokens;
ht_status hti_tokens_add(hti_tokens *t, const uint16_t *ids, int64_t count);
ht_status hti_tokens_finish(hti_tokens *t);
void hti_tokens_free(hti_tokens *t);

struct ht_data {
    ht_context *ctx;
    ht_config config;
    hti_buffer tokens; /* uint16_t: of all sequences; images: bytes; texts: not used */
    hti_buffer
        starts;      /* int64_t [sequences + 1]; texts: not used, windows follow from the length */
    hti_buffer back; /* int32_t, marked tokens alone: does it count, and how far back
                        the same answer stands (marked/) */
    hti_buffer labels;     /* int32_t [items]; texts: not used */
    hti_buffer papers;     /* int32_t [2 items]: pairs of papers: which sequences; else not used */
    hti_buffer texts;      /* of rows with one text, if they were to be kept: all whole texts */
    hti_buffer text_ends;  /* int64_t [items]; else not used */
    hti_names names;       /* of the classes; none where tokens are guessed */
    int64_t classes_asked; /* of the configuration; 0: they are counted */
    ht_rows_info rows;     /* labelled texts: what was read */
    int narrow;            /* 1: tokens are uint8_t: pixels */
    int64_t image_width;   /* images: of all of them, as they are read */
    int32_t *image;        /* [length] room for one that is to vary; else NULL */
    int64_t items;
    int64_t longest, cut;
    hti_tokens text;         /* texts: all documents one after the other */
    int64_t documents;       /* texts: of this part */
    int64_t first_window;    /* texts: which windows are this part */
    int64_t batch_sequences; /* texts: sequences in the batch so far */
    int64_t next;            /* item that ht_data_next gives next */
    int64_t position;        /* items drawn so far */
    int64_t epoch;           /* whose order is in `order`; -1: none yet */
    int64_t *order;          /* [items] */
    int32_t *batch_tokens, *batch_starts, *batch_targets, *batch_back;
};

/* ht_data_next and ht_data_draw by one of several ranks: of each batch's n items it gets those from
 * n rank / ranks to n (rank + 1) / ranks, and goes on by all n. Of a last batch that may be none.
 */
typedef struct hti_part_of {
    int64_t rank, ranks;
} hti_part_of;
ht_status hti_data_next(ht_data *d, ht_batch *out, hti_part_of share);
ht_status hti_data_draw(ht_data *d, ht_batch *out, hti_part_of share);

/* source.c: calls `each` with the bytes of a file, of all files of a folder, or of stdin,
 * uncompressed. */
typedef ht_status hti_each(void *user, const char *name, const char *bytes, size_t count);
ht_status hti_source_read(ht_context *ctx, const char *path, hti_each *each, void *user);

/* Calls `each` with every line of a file's bytes, without its end; lines count from 1. The last one
 * may be empty: then it is left out. */
typedef ht_status hti_each_line(void *user, const char *name, int64_t number, const char *line,
                                size_t bytes);
ht_status hti_source_lines(void *user, const char *name, const char *bytes, size_t count,
                           hti_each_line *each);
/* stream.c: the same, a piece of a file at a time. */
enum {
    HTI_MORE,
    HTI_ENDS,
    HTI_EMPTY
}; /* the file ends, or it is an empty one of a folder, which
      is left out: count is 0 */
typedef ht_status hti_each_piece(void *user, const char *name, const char *bytes, size_t count,
                                 int end);
ht_status hti_stream_read(ht_context *ctx, const char *path, hti_each_piece *each, void *user);

/* FORMAT if these first bytes are of a format that others read: Parquet, a ZIP, ... */
ht_status hti_stream_foreign(ht_context *ctx, const char *name, const char *bytes, size_t count);

/* Adds one sequence of ids, cut to the configuration's length. */
ht_status hti_data_add_bytes(ht_data *d, const char *text, size_t bytes);
ht_status hti_data_add_ids(ht_data *d, const uint16_t *ids, int64_t count);
ht_status hti_data_add_label(ht_data *d, int32_t label);

/* One file per kind of data; each fills tokens, starts, labels. */
/* valid: what is held out goes there; NULL: desc.part alone is wanted. */
ht_status hti_labelled_read(ht_data *d, ht_data *valid, const ht_data_desc *desc);
ht_status hti_text_read(ht_data *d, const ht_data_desc *desc);
void hti_text_put(ht_data *d, int64_t item); /* a window into the batch */
ht_status hti_listops_make(ht_data *d, const ht_data_desc *desc);
ht_status hti_images_read(ht_data *d, const ht_data_desc *desc);
ht_status hti_images_make(ht_data *d, const ht_data_desc *desc); /* Pathfinder */

/* vary.c: images to train on may be mirrored and moved. All are then to have one width, of which
 * this is that of another file; and the change itself, at a drawing of the run. */
int hti_images_varies(const ht_config *c);
ht_status hti_images_width(ht_data *d, const char *name, int64_t width);
void hti_images_vary(ht_data *d, int32_t *pixels, int64_t count, uint64_t draw);

/* An expression as ids; *count may be more than room. */
ht_status hti_listops_encode(ht_context *ctx, const char *text, size_t bytes, uint16_t *ids,
                             int64_t room, int64_t *count);

/* labels.c. Labels as they came become labels in their order: whole numbers by their size, else as
 * text; number[arrival]. Numbers that are all below `classes` are themselves. */
ht_status hti_labels_settle(hti_names *out, int32_t *number, const hti_names *seen,
                            int64_t classes);
/* Number of a label, which may be a whole number in another way of writing; -1: not known. */
int32_t hti_labels_find(const hti_names *labels, const char *label, size_t bytes);
void hti_labels_list(char *out, size_t bytes, const hti_names *labels); /* "ham, spam" */

/* Is item `index` in the valid part when a share of all items is held out? */
int hti_held_out(int64_t index, double share);

#endif
