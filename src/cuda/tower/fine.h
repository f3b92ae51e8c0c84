/*
 * Arguments of the forward of mode fine, shared by its kernels: towers of the levels from 3 on.
 */
#ifndef HTI_CUDA_TOWER_FINE_H
#define HTI_CUDA_TOWER_FINE_H

#include "cuda/hier_place.h"

namespace HTI_KERNELS {

enum { LOWEST = 3 }; /* of the levels in device memory */

struct fine_args {
    hti_hier_args h;
    int levels, level;               /* of the longest sequence; of this launch */
    int top;                         /* fine_wide.cu: levels that the first launch makes */
    int64_t blocks[HTI_CUDA_LEVELS]; /* per head */
    element *k[HTI_CUDA_LEVELS];     /* [kv_heads][blocks][16][D] */
    element *v[HTI_CUDA_LEVELS];     /* [kv_heads][blocks][D][16] */
    float *n[HTI_CUDA_LEVELS];       /* [blocks][16] valid rows; only with a key mask */
};

/* First block of a sequence at a level. One that has the level is longer than a block of it, so
 * twice the blocks before it keep it apart from the next one. */
static __device__ __forceinline__ int64_t block_at(const place &p, int level) {
    return 2 * (p.start >> (level + 4));
}

/* The forward of causal calls without masks by products of warpgroups (fine_wide.cu). Its towers
 * hold means, values like keys: [kv_heads][blocks * 16][D]. */
int hti_fine_wide_takes(const ht_context *ctx, const fine_args &f);
ht_status hti_fine_wide(const ht_context *ctx, const fine_args &f);

} // namespace HTI_KERNELS

#endif
