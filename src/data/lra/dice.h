/*
 * Random numbers for generators of data: a counter per item, so that an item depends on the seed
 * and its number alone, and any number of threads makes the same items.
 */
#ifndef HTI_DATA_LRA_DICE_H
#define HTI_DATA_LRA_DICE_H

#include "core/philox.h"

typedef struct hti_dice {
    uint64_t seed;
    uint32_t item[2], domain; /* which item of which generator */
    uint32_t count;
    hti_philox words;
} hti_dice;

static inline hti_dice hti_dice_of(uint64_t seed, uint64_t item, uint32_t domain) {
    hti_dice d = {.seed = seed, .item = {(uint32_t)item, (uint32_t)(item >> 32)}, .domain = domain};
    return d;
}

static inline uint32_t hti_roll(hti_dice *d) {
    uint32_t at = d->count % 4;
    if (at == 0)
        d->words = hti_philox_draw(d->seed, d->count / 4, d->item[0], d->item[1], d->domain);
    d->count++;
    return d->words.w[at];
}

/* 0 ... n - 1 */
static inline int hti_roll_below(hti_dice *d, int n) {
    return (int)((uint64_t)hti_roll(d) * (uint64_t)n >> 32);
}

/* in [0, 1) */
static inline double hti_roll_unit(hti_dice *d) { return hti_roll(d) / 4294967296.0; }

#endif
