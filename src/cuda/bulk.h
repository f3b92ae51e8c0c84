/*
 * Bulk copies between global and shared memory and the barriers they report to, from compute
 * capability 9.0 on (PTX: mbarrier, cp.async.bulk).
 *
 * A barrier counts arrivals and bytes; waiting names the parity of the phase that must be over.
 */
#ifndef HTI_CUDA_BULK_H
#define HTI_CUDA_BULK_H

#include "cuda/model.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

DEVICE uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

DEVICE void barrier_make(uint64_t *b, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(count));
}

/* After all barrier_make, before the barrier of threads that lets others use them. */
DEVICE void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}

DEVICE void barrier_expect(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)),
                 "r"(bytes)
                 : "memory");
}

DEVICE void barrier_wait(uint64_t *b, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(shared_at(b)),
                 "r"(parity)
                 : "memory");
}

/* Whole rows in and out; 16-byte steps. */
DEVICE void bulk_in(void *to, const void *from, uint32_t bytes, uint64_t *full) {
    barrier_expect(full, bytes);
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
