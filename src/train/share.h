/*
 * A trainer among ranks: what each of them owns of the parameters, and how gradients come together.
 */
#ifndef HTI_SHARE_H
#define HTI_SHARE_H

#include "dist/world.h"
#include "model/params.h"

enum { HTI_OWNS = 3 }; /* most pieces of one rank */

/* The arena of parameters in pieces: each rank adds up the gradients of its own. With Muon they
 * hold whole matrices of the layers. If moments are sharded, each rank has those of its pieces
 * alone, one piece behind the other, and makes their update for all. */
typedef struct hti_share {
    ht_world *world; /* NULL: this process trains alone, and nothing else here is used */
    int rank, ranks;
    hti_piece *pieces; /* [count], of all ranks */
    int64_t count;
    hti_piece own[HTI_OWNS]; /* [owns]: this rank's */
    int owns, shards;
    hti_flight flight;
} hti_share;

ht_status hti_share_open(hti_share *s, ht_world *world, ht_context *ctx, const ht_config *config,
                         const hti_params *params, ht_dtype dtype);
void hti_share_close(hti_share *s, ht_context *ctx);

/* Of the arena's numbers, how many have moments here; where those of number `at` begin, which must
 * be here. */
int64_t hti_share_moments(const hti_share *s, const hti_params *params);
int64_t hti_share_place(const hti_share *s, int64_t at);
/* What of [*from, *to) is in number i of this rank's pieces, maybe nothing; 0: there are no more. A
 * process that has all moments has one piece. */
int hti_share_next(const hti_share *s, int i, int64_t *from, int64_t *to);

/* The most of so many items that a rank gets. */
int64_t hti_share_most(const hti_share *s, int64_t items);

#endif
