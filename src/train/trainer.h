/*
 * The trainer's inside: everything that training changes besides the weights.
 */
#ifndef HTI_TRAINER_H
#define HTI_TRAINER_H

#include "model/net.h"
#include "train/share.h"

/* Parts of a step; of a micro-batch there are four: with a mask (+ 1), with dropout (+ 2). */
enum { HTI_MICRO, HTI_UPDATE = 4, HTI_PARTS };

struct ht_trainer {
    ht_model *model;
    ht_context *ctx;
    ht_config config;
    hti_net net;
    hti_share share;
    void *grads;      /* device, wide, laid out as the parameters; NULL in inference */
    void *m, *v;      /* the same, or this rank's part of them (hti_share) */
    void *muon;       /* device: scratch of the matrices' update, or NULL */
    int64_t step;     /* calls of ht_trainer_step so far */
    int64_t applied;  /* updates that were made */
    int64_t micro;    /* micro-batches so far: the offset of every dropout mask */
    int64_t tokens;   /* of the step at work */
    double best;      /* score of the best evaluation so far (run.c); valid if has_best */
    double best_loss; /* its loss */
    int64_t stale;    /* evaluations since then */
    int has_best;
    /* captured parts of a step, where the device can: a micro-batch without and with masked rows,
     * the update. The first time a part runs directly, so that everything it needs is loaded. */
    void *graph[HTI_PARTS];
    int warm[HTI_PARTS];
};

/* One update in pieces, for batches that do not lie in memory together: begin, add `count` times,
 * update, end. A device may still be at work until end, which waits for it; the batches' memory is
 * free before. */
ht_status hti_step_begin(ht_trainer *t);
ht_status hti_step_add(ht_trainer *t, const ht_batch *batch, int64_t count);
ht_status hti_step_update(ht_trainer *t);
ht_status hti_step_end(ht_trainer *t, ht_report *out);

/* The update of the layers' matrices (muon.c): bytes of t->muon, and the work itself. */
size_t hti_muon_scratch(const ht_trainer *t);
ht_status hti_muon_update(const ht_trainer *t);
/* How many there are, and where number i in the order of the arena begins. */
int64_t hti_muon_matrices(const ht_config *config);
int64_t hti_muon_begins(const ht_config *config, const hti_params *params, int64_t i);

/* Would ht_trainer_restore take the file, by its header? */
ht_status hti_trainer_readable(const ht_trainer *t, const char *path);

/* A caller's batch as this library has it, onto the device. */
ht_status hti_trainer_load(ht_trainer *t, ht_batch *out, const ht_batch *batch);

/* share.c, among ranks. The sum of all ranks' gradients, of their losses, and the norm, everywhere;
 * everybody's weights what their owners have. */
ht_status hti_share_gradient(ht_trainer *t);
ht_status hti_share_weights(ht_trainer *t);

/* The learning rate of step s = 0, 1, ... */
double hti_rate(const ht_config *c, int64_t s);

#endif
