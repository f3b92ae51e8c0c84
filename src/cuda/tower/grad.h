/*
 * A stage of backward by thread blocks that walk along the sequence: see grad.cu.
 */
#ifndef HTI_CUDA_TOWER_GRAD_H
#define HTI_CUDA_TOWER_GRAD_H

#include "cuda/hier.h"

namespace HTI_KERNELS {

/* Whether the stage of `args` can be walked: 64 columns, no masks, whole clusters. */
int hti_hier_grad_takes(const ht_context *ctx, const hti_hier_args &args);
ht_status hti_hier_grad_run(ht_context *ctx, const hti_hier_args &args);

} // namespace HTI_KERNELS

#endif
