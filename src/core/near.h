/*
 * Which rows of a packed batch are neighbours of a row (model_op.h, hti_near_call); shared by both
 * back ends.
 */
#ifndef HTI_NEAR_H
#define HTI_NEAR_H

#include "core/hier.h"

/* Rows that row r may look at, and that may look at it, of a sequence of `count` rows from `start`
 * on: those of the sequence, but the first `lead` each stand alone. Empty: r is no row of it. */
HTI_FN hti_range hti_near_rows(int64_t r, int64_t start, int64_t count, int64_t lead) {
    hti_range all = {start + lead, start + count}, alone = {r, r + 1}, none = {r, r};
    if (r < start || r >= all.hi) return none;
    return r < all.lo ? alone : all;
}

#endif
