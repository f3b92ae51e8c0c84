/*
 * A trainer among ranks: what each of them owns of the parameters, and how gradients come together.
 */
#ifndef HTI_SHARE_H
#define HTI_SHARE_H

#include "dist/world.h"
#include "model/params.h"

/* The arena of parameters in pieces, [ranks] of them: each rank adds up the gradients of its own.
 */
typedef struct hti_share {
    ht_world *world; /* NULL: this process trains alone, and nothing else here is used */
    int rank, ranks;
    hti_piece *pieces; /* in the order of the arena */
    int64_t count;
    hti_flight flight;
} hti_share;

ht_status hti_share_open(hti_share *s, ht_world *world, ht_context *ctx, const ht_config *config,
                         const hti_params *params, ht_dtype dtype);
void hti_share_close(hti_share *s, ht_context *ctx);

/* The most of so many items that a rank gets. */
int64_t hti_share_most(const hti_share *s, int64_t items);

#endif
