/*
 * Pathfinder images: two long dashed lines, shorter ones between them, two dots. Label 1: the dots
 * are on the two ends of one line.
 */
#ifndef HTI_DATA_LRA_PATHFINDER_H
#define HTI_DATA_LRA_PATHFINDER_H

#include "core/context.h"

typedef struct hti_pathfinder hti_pathfinder; /* tables; read by all threads */

typedef struct hti_pathfinder_stats { /* sums over images */
    int64_t images, positive, attempts, distractors, nonzero, brightness;
} hti_pathfinder_stats;

/* side: 32 (Pathfinder) or 128 (Path-X). distractors 0: as the benchmark's description reads (5 or
 * 8); as its program may have run: 10 or 17. */
ht_status hti_pathfinder_create(hti_pathfinder **out, ht_context *ctx, int side, int distractors);
void hti_pathfinder_destroy(ht_context *ctx, hti_pathfinder *p);

/* Image number `index` of a part: pixels [side, side]; returns the label. */
int hti_pathfinder_make(const hti_pathfinder *p, uint8_t *pixels, uint64_t seed, int part,
                        int64_t index, hti_pathfinder_stats *stats);

/* Images first ... first + count - 1 by all threads of the context, one after the other at `out`,
 * each after its label if `labels` is NULL, else the labels there. */
void hti_pathfinder_batch(const ht_context *ctx, const hti_pathfinder *p, uint8_t *out,
                          int32_t *labels, uint64_t seed, int part, int64_t first, int64_t count,
                          hti_pathfinder_stats *stats);

#endif
