/*
 * Barriers in shared memory (PTX: mbarrier), from compute capability 9.0 on, by their address
 * there. A barrier counts arrivals and bytes; waiting names the parity of the phase that must be
 * over.
 */
#ifndef HTI_CUDA_BARRIER_H
#define HTI_CUDA_BARRIER_H

#include <stdint.h>

static __device__ __forceinline__ void barrier_make(uint32_t at, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}

/* After all barrier_make, before the barrier of threads that lets others use them. */
static __device__ __forceinline__ void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* Arrives, and so many bytes must come before the phase is over. */
static __device__ __forceinline__ void barrier_expect(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

#endif
