/*
 * What stands around every call of CUDA: the sentence of a failure, the current device, launches.
 *
 * Each library has a copy of this file beside its kernels: a kernel can only be started by the CUDA
 * runtime that it was linked with. Streams, memory and graphs belong to the driver and are shared.
 */
#include "cuda/cuda.h"

/* ---- errors ---- */

ht_status hti_cuda_fail(const ht_context *ctx, cudaError_t error, const char *doing) {
    cudaGetLastError(); /* the error must not show up again in a later, innocent call */
    if (error == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        cudaMemGetInfo(&available, &total);
        cudaGetLastError();
        return hti_fail(ctx, HT_NOMEM,
                        "out of device memory on %s while %s: %zu of %zu bytes are free",
                        ctx->device, doing, available, total);
    }
    return hti_fail(ctx, HT_DEVICE, "%s failed while %s: %s (%s)", ctx->device, doing,
                    cudaGetErrorString(error), cudaGetErrorName(error));
}

/* ---- the current device ---- */

hti_cuda_scope::hti_cuda_scope(const ht_context *ctx) : before(0), changed(0) {
    int wanted = hti_cuda_of(ctx)->device;
    if (cudaGetDevice(&before) == cudaSuccess && before != wanted)
        changed = cudaSetDevice(wanted) == cudaSuccess;
}

hti_cuda_scope::~hti_cuda_scope() {
    if (changed) cudaSetDevice(before);
}

/* ---- launches ---- */

/* Beyond 48 KiB a kernel must be told once per device: that it may take all there is, so that no
 * context ever takes back what another one allowed. A table by address; who shares a place with
 * another kernel is told again. */
ht_status hti_cuda_allow_shared(const ht_context *ctx, const void *kernel, const char *name,
                                size_t shared) {
    if (shared <= 48 * 1024) return HT_OK;
    hti_cuda_backend *cuda = hti_cuda_of(ctx);
    const void **told = &cuda->told[((uintptr_t)kernel >> 4) % HTI_TOLD];
    if (*told == kernel) return HT_OK;
    cudaFuncAttributes about;
    CUDA_TRY(ctx, cudaFuncGetAttributes(&about, kernel), name);
    int most = cuda->shared_bytes - (int)about.sharedSizeBytes;
    CUDA_TRY(ctx, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
             name);
    *told = kernel;
    return HT_OK;
}

ht_status hti_cuda_launch_raw(const ht_context *ctx, const void *kernel, const char *name,
                              dim3 grid, int threads, size_t shared, void *args) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return HT_OK;
    TRY(hti_cuda_allow_shared(ctx, kernel, name, shared));
    void *list[] = {args};
    CUDA_TRY(ctx,
             cudaLaunchKernel(kernel, grid, dim3((unsigned)threads), list, shared,
                              hti_cuda_of(ctx)->stream),
             name);
    CUDA_TRY(ctx, cudaGetLastError(), name);
    return HT_OK;
}
