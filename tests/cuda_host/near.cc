/*
 * Neighbours and amounts of src/cuda/model on the emulated device, under the test of the others: a
 * table with nothing else in it. Static shared memory is that of the host thread, on which a thread
 * block's fibers take turns.
 */
#include <cuda_runtime.h>

#undef __shared__
#define __shared__ static thread_local

#include "cuda/model/amounts.cu"
#include "cuda/model/near.cu"
#include "cuda/model/sums.cu"

static hti_cuda_model model;

static void close_model(ht_context *ctx) {
    if (model.sums) ctx->ops->release(ctx, model.sums);
    model.sums = NULL;
}

extern "C" ht_status emulated_open(ht_context *ctx, ht_dtype dtype) {
    static hti_model_ops ops;
    if (strncmp(ctx->device, "cuda", 4) != 0 || dtype == HT_F64)
        return hti_fail(ctx, HT_UNSUPPORTED, "not on %s", ctx->device);
    ops.near_forward = hti_cuda_near_forward, ops.near_backward = hti_cuda_near_backward;
    ops.amounts_forward = hti_cuda_amounts_forward;
    ops.amounts_backward = hti_cuda_amounts_backward;
    ops.near_keep = hti_cuda_near_keep;
    ctx->guest.ops = &ops, ctx->guest.state = &model, ctx->guest.close = close_model;
    return model.sums ? HT_OK : ctx->ops->alloc(ctx, (void **)&model.sums, HTI_SUMS_BYTES);
}
