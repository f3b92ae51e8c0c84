/*
 * Tokens of which some are to be guessed: copying and associative recall, made from a seed, and
 * files of such items. A token's `back` says whether it counts and how far before it the same
 * answer stands.
 */
#ifndef HTI_DATA_MARKED_H
#define HTI_DATA_MARKED_H

#include "data/data.h"

enum {
    HTI_MARKED_HEADER = 32,
    HTI_UNPLACED = -1, /* a back: the token counts, and nobody says where the answer stands */
    HTI_COPY_LETTERS = 64,
    HTI_RECALL_KEYS = 1024,
    HTI_RECALL_VALUES = 64
};

/* The first bytes of a file: items of `tokens` each, ids below `vocab`. */
void hti_marked_header(unsigned char out[HTI_MARKED_HEADER], int64_t vocab, int64_t tokens,
                       int64_t items);

/* make.c: a generator of items of length + 1 tokens, the first one 0. */
typedef struct hti_maker {
    int64_t format; /* HTI_FORMAT_COPY or HTI_FORMAT_RECALL */
    int64_t length, vocab;
    uint64_t seed;
    int part; /* ht_part: each has items of its own */
} hti_maker;
ht_status hti_maker_begin(hti_maker *out, ht_context *ctx, int64_t format, int64_t length,
                          int64_t seed, int part);
/* Items first ... first + count - 1, one after the other: the same for any number of threads. */
void hti_maker_make(const ht_context *ctx, const hti_maker *m, uint16_t *ids, int32_t *back,
                    int64_t first, int64_t count);

/* All items of a file, or made in memory. */
ht_status hti_marked_read(ht_data *d, const ht_data_desc *desc);
/* An item as number `slot` of the batch: each token and the next one as its target. */
void hti_marked_put(ht_data *d, int64_t item, int64_t slot);

#endif
