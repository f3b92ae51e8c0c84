/*
 * Moments that are divided among ranks, in a file that has them all.
 */
#ifndef HTI_MOMENTS_H
#define HTI_MOMENTS_H

#include "model/checkpoint.h"
#include "train/trainer.h"

typedef struct hti_moments {
    const ht_trainer *t;
    void *device; /* what came from another rank, HTI_PART_MOST numbers */
    char *host;   /* as many: what was asked for */
    hti_flight flight;
} hti_moments;

/* parts: of m and v. Where this rank has all of them nothing is done. */
void hti_moments_parts(hti_moments *x, const ht_trainer *t, hti_part parts[2]);

/* All ranks open and close; in between rank 0 writes its parts and ends it, while others serve. */
ht_status hti_moments_open(hti_moments *x, const ht_trainer *t);
ht_status hti_moments_serve(hti_moments *x);
ht_status hti_moments_end(hti_moments *x);
void hti_moments_close(hti_moments *x);

#endif
