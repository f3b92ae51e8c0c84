/*
 * Bulk copies between global and shared memory, from compute capability 9.0 on (PTX:
 * cp.async.bulk); those in report to a barrier.
 */
#ifndef HTI_CUDA_MODEL_BULK_H
#define HTI_CUDA_MODEL_BULK_H

#include "cuda/barrier.h"
#include "cuda/model/model.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

DEVICE uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Whole rows in and out; 16-byte steps. */
DEVICE void bulk_in(void *to, const void *from, uint32_t bytes, uint64_t *full) {
    barrier_expect(shared_at(full), bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_at(full))
                 : "memory");
}

DEVICE void bulk_out(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(shared_at(from)), "r"(bytes)
                 : "memory");
}

/* Every bulk_out of this thread has read its buffer. */
DEVICE void bulk_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/* What this thread wrote to shared memory is seen by copies that start later. */
DEVICE void bulk_show() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif
#endif
