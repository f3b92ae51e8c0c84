/*
 * Problems through the decode cache: rows appended in any portions, results gathered where the
 * full pass would have put them.
 */
#ifndef DECODER_H
#define DECODER_H

#include "harness.h"

typedef struct decoder {
    ht_context *ctx;
    const problem *p; /* causal; its sequences are what the slots are fed */
    ht_cache *cache;
    int64_t slots;
    int64_t *slot; /* [batch] the slot of each sequence */
    int64_t *done; /* [batch] rows fed so far */
    outcome got;   /* out and lse, canonical */
} decoder;

/* A cache with a few slots more than sequences, these in no particular order. Skips the test if
 * the device cannot run the plan. */
decoder decoder_open(ht_context *ctx, const problem *p);
ht_cache *decoder_cache(ht_context *ctx, const problem *p, int64_t slots);

/* One call that feeds counts[b] rows (0: sequence b is left out; EMPTY: takes part with none). */
#define EMPTY (-1)
void decoder_feed(decoder *d, const int64_t *counts);
/* n rows of sequence b alone. */
void decoder_feed_one(decoder *d, int64_t b, int64_t n);

/* Rows [from, from + counts[b]) of some sequences as a problem of their own; `which` lists them. */
problem portion(const problem *p, const int64_t *which, const int64_t *from, const int64_t *counts,
                int64_t n);

#endif
