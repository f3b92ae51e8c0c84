/*
 * What has no name in CUDA C++, behind small functions: products of tensor cores, matrices and
 * bytes of shared memory by its 32-bit addresses, copies that arrive later. For every device from
 * compute capability 8.0 on; what newer ones add is in wide.h, barrier.h and tower/.
 */
#ifndef HTI_CUDA_PTX_H
#define HTI_CUDA_PTX_H

#include "cuda/element.h"

#ifdef HTI_CUDA_HOST
#include <host_ptx.h>
#else

/* ---- arithmetic, approximate ---- */

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float inverse_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- products: c += 16 rows times 8 columns, over 16 or 8 of element.h's type ---- */

DEVICE void mma16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." HTI_MMA_TYPES ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma8(float c[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32." HTI_MMA_TYPES ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

/* Rows become columns in a matrix of 8 x 8: lane 4 i + j has columns 2 j, 2 j + 1 of row i. */
DEVICE uint32_t matrix_across(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* ---- shared memory ---- */

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

DEVICE uint4 shared_load4(uint32_t at) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at));
    return x;
}

DEVICE uint2 shared_load2(uint32_t at) {
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at));
    return x;
}

DEVICE void shared_store4(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

/* Matrices of 8 rows of 16 bytes; the rows' addresses come from lanes 0 to 7, 8 to 15, ...; turned:
 * a lane gets parts of columns instead of rows. */
DEVICE void matrix1(uint32_t b[1], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(b[0]) : "r"(at));
}

DEVICE void matrix2(uint32_t b[2], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(at));
}

DEVICE void matrix1_turned(uint32_t b[1], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(b[0])
                 : "r"(at));
}

DEVICE void matrix2_turned(uint32_t b[2], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(at));
}

/* Of 16 rows and two chunks: b[0], b[1] are rows 0-7 and 8-15 of the first, b[2], b[3] of the
 * second. */
DEVICE void matrix4_turned(uint32_t b[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at));
}

/* ---- copies that arrive later ---- */

/* 16 bytes into shared memory; _if: zeros where `there` is 0 (the source is not read) */
DEVICE void copy_async(uint32_t dst, const void *src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src));
}

DEVICE void copy_async_if(uint32_t dst, const void *src, int there) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes));
}

DEVICE void copy8_async_if(uint32_t dst, const void *src, int there) {
    int bytes = there ? 8 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(dst), "l"(src), "r"(bytes));
}

DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

DEVICE void copy_async_wait() {
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
}

/* 16 bytes to device memory; policy: how long the L2 cache keeps them (createpolicy). */
DEVICE void store_hinted(void *at, uint4 x, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(at), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w), "l"(policy)
                 : "memory");
}

#endif /* HTI_CUDA_HOST */
#endif
