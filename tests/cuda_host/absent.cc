/*
 * In the place of the kernels that need what only compute capability 9.0 has (the bulk copies and
 * barriers of src/cuda/tower): they take nothing, as in a build for older devices.
 */
#include "cuda/hier.h"
#include "cuda/tower/fine.h"
#include "cuda/tower/grad.h"

namespace HTI_KERNELS {

static ht_status refuse(const ht_context *ctx) {
    return hti_fail(ctx, HT_DEVICE, "%s has no kernels for compute capability 9.0", ctx->device);
}

int hti_walk_takes(const ht_context *, const hti_hier_args &) { return 0; }
ht_status hti_walk_base(ht_context *ctx, hti_hier_args *) { return refuse(ctx); }
ht_status hti_walk_lift(ht_context *ctx, const hti_hier_args &) { return refuse(ctx); }
ht_status hti_walk_join(ht_context *ctx, const hti_hier_args &) { return refuse(ctx); }

int hti_hier_grad_takes(const ht_context *, const hti_hier_args &) { return 0; }
ht_status hti_hier_grad_run(ht_context *ctx, const hti_hier_args &) { return refuse(ctx); }

int hti_fine_wide_takes(const ht_context *, const fine_args &) { return 0; }
ht_status hti_fine_wide(const ht_context *ctx, const fine_args &) { return refuse(ctx); }

} /* namespace */
