/*
 * A generator's inside: a decoder model with one cache per layer, and the memory of one call.
 */
#ifndef HTI_DECODE_H
#define HTI_DECODE_H

#include "model/net.h"

enum { HTI_RECENT = 256 }; /* tokens that a repeat penalty looks back on */

typedef struct hti_candidate_token {
    double p;
    int32_t token;
} hti_candidate_token;

struct ht_generator {
    ht_model *model;
    ht_context *ctx;
    int64_t slots, max_rows, logit_rows; /* rows and logits computed at a time */
    ht_attention *plan;
    ht_cache **caches; /* [layers] */
    hti_layers layers;
    hti_layer_weights *weights; /* [layers] */
    hti_rows rows;

    void *block; /* device memory */
    hti_kept kept;
    hti_work work;
    void *embedded, *stream;              /* [rows, width] the first layer's input, the others' */
    void *last, *stats, *normed, *picked; /* [rows, width], [rows, 2], [rows, width] twice */
    void *logits;                         /* wide [logit_rows, vocab] */
    int32_t *numbers; /* [lists, rows]: tokens, positions, picked rows, ones, 0, 1, 2, ...; with
                         neighbours, too: each row's piece, each piece's first row, rows, slot */
    int lists;
    char *past;               /* what hti_layers calls so, [layers]; NULL without neighbours */
    void *fixed, *fixed_wide; /* sinusoids of the call's rows, or of all where positions are
                                 learned; wide: where dtype is narrower */
    void *turn;               /* rotary on all levels: wide [rows, head_dim / 2, 2] of the call */
    int64_t fixed_rows;       /* 0: no sinusoids */

    void *host; /* one block of host memory */
    int32_t *numbers_host;
    double *table_host;    /* [rows, the wider of width and head_dim] */
    double *rates;         /* [width / 2 + head_dim / 2 + 2] angle per position of each pair */
    int32_t *piece_starts; /* [slots + 1] rows of each piece of the call */
    int64_t *piece_slots, *piece_sequence, *done; /* [slots] */
    void *logits_raw;                             /* the same, from the device */
    float *last_logits;                           /* [slots, vocab] */
    int32_t *recent;                              /* [slots, HTI_RECENT] token t at t mod 256 */
    hti_candidate_token *candidates;              /* [vocab] */
};

/* decode_state.c: nothing came before; with neighbours alone. */
ht_status hti_past_forget(ht_generator *g, int64_t slot);
ht_status hti_generator_slot(const ht_generator *g, int64_t slot);

/* sample.c: one token from logits [vocab]; `recent`: tokens that the penalty is for; draw: a number
 * in [0, 1). Returns -1 if no logit is finite. */
int32_t hti_sample(const ht_sampling *s, hti_candidate_token *room, const float *logits,
                   int64_t vocab, const int32_t *recent, int64_t recents, double draw);
ht_status hti_sampling_take(ht_context *ctx, ht_sampling *out, const ht_sampling *given);
double hti_log_probability(const float *logits, int64_t vocab, int32_t token);

#endif
