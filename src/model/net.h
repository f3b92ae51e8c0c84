/*
 * A model at work: the memory of one batch, forward to the loss, backward to the gradients.
 */
#ifndef HTI_NET_H
#define HTI_NET_H

#include "model/model.h"

typedef struct hti_net {
    ht_model *model;
    ht_context *ctx;
    const ht_config *
        c; /* the model's, except what a trainer may change: batch, dropout, recompute, pad, seed */
    ht_config config;
    int backward; /* has memory for backward */
    int fixes;    /* batches get one shape, if padding does not cost more than it saves */
    int fixed;    /* this one does */
    int placed;   /* with fixed: positions lie on the device */
    int first;    /* pooling takes first rows: after the last attention only they are computed */
    int64_t max_rows, max_sequences, max_length, items; /* max_length: rows of a sequence */
    ht_attention *plan, *plan_eval;
    hti_layers layers;
    hti_layer_weights *weights, *grads; /* [c->layers] */

    /* one block of device memory each */
    void *kept_block, *work_block, *batch_block;
    size_t bytes; /* of all three */

    hti_kept *kept; /* [c->layers] */
    hti_work work;
    void *embedded; /* [rows, width] */
    void *table,
        *dtable; /* [vocab, columns] of amounts and its gradient, wide; NULL: a parameter */
    void *last, *last_stats, *normed; /* [rows, width], [rows, 2], [rows, width] the final norm */
    void *pooled;                     /* [sequences, width] */
    void *matched, *dmatched;         /* [items, 4, width] and its gradient; NULL: pooled serves */
    void *head_pre[2], *head_act[2];  /* [items, hidden sizes of the head] */
    void *dnormed, *dpooled, *dhead[2]; /* gradients of normed (rows x width) and of the above */
    void *loss_scratch, *embed_scratch, *row_loss, *row_hit, *logits;

    /* the batch: host staging and its device copies */
    int32_t *tokens_host, *targets_host; /* [rows * merge] */
    int32_t *positions_host, *start_host, *count_host, *cu_host;
    int32_t *sequence_host, *sequence; /* [rows]; NULL without neighbours */
    int32_t *places_host; /* [rows * merge]: of tokens what positions are of rows; with merge 1 the
                             same memory */
    uint8_t *mask_host;
    const int32_t *tokens_from; /* tokens_host, or the caller's where they need no changes */
    int32_t *tokens, *positions, *places, *targets, *start, *count;
    uint8_t *mask;
    void *fixed_positions,
        *turn;      /* constants: sinusoids [max_length, width], rotary [max_length, d/2, 2] */
    hti_step *step; /* device */
    hti_rows rows;
    int64_t target_rows; /* rows of the loss */
    int64_t batch_items, batch_tokens, batch_targets;
} hti_net;

/* grads: a wide arena laid out as the model's parameters; NULL: forward only. */
ht_status hti_net_create(hti_net *net, ht_model *model, const ht_config *config, void *grads);
void hti_net_destroy(hti_net *net);

/* Checks a batch and copies it to the device. */
ht_status hti_net_load(hti_net *net, const ht_batch *batch);

/* The loaded batch through the embedding and the first `count` layers. */
ht_status hti_net_layers(hti_net *net, int train, int64_t count);
/* The loaded batch through the model up to what the loss reads; train: with dropout. */
ht_status hti_net_forward(hti_net *net, int train);
/* Then one of: the loss into step->out; the same with gradients of all parameters, added to grads;
 * logits. */
ht_status hti_net_loss(hti_net *net);
ht_status hti_net_backward(hti_net *net, void *grads);
ht_status hti_net_logits(hti_net *net); /* classify, pairs: into net->logits [items, classes] */

/* What every network of this model shares: the attention's plan but for its maxima, and where each
 * layer's weights lie [layers]. how: what rows open. */
void hti_model_attention(ht_attention_desc *out, const ht_model *model, const ht_config *how);
void hti_model_point(hti_layer_weights *out, const ht_model *model);

/* batch.c: parts of load. */
ht_status hti_batch_check(const hti_net *net, const ht_batch *batch); /* all but the tokens */
ht_status hti_batch_check_tokens(const hti_net *net, const ht_batch *batch);
void hti_batch_stage(hti_net *net, const ht_batch *batch);

#endif
