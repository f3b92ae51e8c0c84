/*
 * The hierarchy: who meets whom. Integers only; shared by both back ends.
 *
 * Cluster c of level l is rows c*2^l ... (c+1)*2^l - 1; block b is clusters b*block ... (b+1)*block
 * - 1. Rows i and j meet at the finest level at which their blocks are the same or neighbours. At
 * level 0 a block sees itself and both neighbours; at level l >= 1 both neighbours, less the
 * quarter that level l - 1 covered. All clusters that a query cluster sees at one level form at
 * most two ranges.
 */
#ifndef HTI_HIER_H
#define HTI_HIER_H

#include <stdint.h>

#ifdef __CUDACC__
#define HTI_FN static __host__ __device__ __forceinline__
#else
#define HTI_FN static inline
#endif

#define HTI_MAX_LEVELS 48 /* block * 2^48 rows: beyond any memory */

/* Clusters [lo, hi); empty if lo >= hi. */
typedef struct hti_range {
    int64_t lo, hi;
} hti_range;

/* Number of levels M: the smallest m >= 1 with block * 2^m >= length, which may be any number. */
HTI_FN int hti_levels(int64_t length, int64_t block) {
    int m = 1;
    while ((length - 1) >> m >= block) m++;
    return m;
}

/* Clusters at a level of a sequence, the last one perhaps partly filled. */
HTI_FN int64_t hti_clusters(int64_t length, int level) {
    return (length + ((int64_t)1 << level) - 1) >> level;
}

/* Key clusters left of and in query cluster c's block (level 0), or in its left neighbour (level >=
 * 1). Causal level 0 ends at the row itself. */
HTI_FN hti_range hti_keys_left(int64_t clusters, int64_t block, int level, int causal, int64_t c) {
    int64_t b = c / block, start = (b > 0 ? b - 1 : 0) * block;
    hti_range r = {start, 0};
    if (level == 0) {
        r.hi = causal ? c + 1 : (b + 2) * block;
        if (r.hi > clusters) r.hi = clusters;
    } else if (b > 0) {
        r.hi = start + (c % block < block / 2 ? block / 2 : block);
    } else {
        r.hi = start;
    }
    return r;
}

/* Key clusters of the right neighbour; at level 0 they are part of the left range already. */
HTI_FN hti_range hti_keys_right(int64_t clusters, int64_t block, int level, int causal, int64_t c) {
    int64_t b = c / block, start = (b + 1) * block;
    hti_range r = {0, 0};
    if (level == 0 || causal) return r;
    r.lo = start + (c % block < block / 2 ? 0 : block / 2);
    r.hi = start + block < clusters ? start + block : clusters;
    return r;
}

#endif
