/*
 * Products of whole warpgroups (wgmma, compute capability 9.0): 64 rows of 64 columns against 64
 * others, both in shared memory or the first as weights in registers, sums in registers.
 *
 * Rows in shared memory are 128 bytes, chunks of 16 bytes swizzled as the products want them: chunk
 * c of row r lies at c ^ (r & 7). Groups of eight rows begin at multiples of 1024 bytes.
 */
#ifndef HTI_CUDA_WIDE_H
#define HTI_CUDA_WIDE_H

#include "cuda/hier_tile.h"

namespace HTI_KERNELS {

enum { WIDE_D = 64, WIDE_ROWS = 64, WIDE_TILE = WIDE_ROWS * WIDE_D * 2 }; /* rows, bytes */

/* 1: the kernels have something in them; the host asks hti_cuda_backend.warpgroups */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HTI_WIDE 1
#else
#define HTI_WIDE 0
#endif

#if HTI_WIDE

/* ---- products of a warpgroup ---- */

#define HTI_4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define HTI_32(d)                                                                              \
    HTI_4(d, 0), HTI_4(d, 1), HTI_4(d, 2), HTI_4(d, 3), HTI_4(d, 4), HTI_4(d, 5), HTI_4(d, 6), \
        HTI_4(d, 7)
#define HTI_SUMS                                                                             \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

/* 64 rows in shared memory as a factor, 1024 bytes from eight rows to the next eight. */
DEVICE uint64_t factor_at(uint32_t at) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* d (+)= 16 columns of x times 16 columns of y. */
DEVICE void multiply16(float d[8][4], uint64_t x, uint64_t y, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." HTI_MMA_TYPES " " HTI_SUMS
                 "%32, %33, p, 1, 1, 0, 0;\n}"
                 : HTI_32(d)
                 : "l"(x), "l"(y), "r"(add));
}

/* d += weights of 16 partners, in registers, times their rows. */
DEVICE void gather16(float d[8][4], const uint32_t x[4], uint64_t y) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." HTI_MMA_TYPES " " HTI_SUMS
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                 : HTI_32(d)
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y));
}

DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
/* Nothing of d moves across this. */
DEVICE void pin(float d[8][4]) { asm volatile("" : HTI_32(d)::"memory"); }

/* d = x y^T, 64 rows each, in shared memory; ONTO: d += ... */
template <bool ONTO = false> DEVICE void multiply(float d[8][4], uint32_t x, uint32_t y) {
    uint64_t fx = factor_at(x), fy = factor_at(y);
#pragma unroll
    for (int i = 0; i < WIDE_D / 16; i++) multiply16(d, fx + 2 * i, fy + 2 * i, ONTO ? 1 : i);
}

/* The same with the first N = 16 or 48 rows of y. */
template <int N> DEVICE void multiply_part(float (*d)[4], uint32_t x, uint32_t y) {
    uint64_t fx = factor_at(x), fy = factor_at(y);
#pragma unroll
    for (int i = 0; i < WIDE_D / 16; i++) {
        if constexpr (N == 16)
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                         "wgmma.mma_async.sync.aligned.m64n16k16.f32." HTI_MMA_TYPES " "
                         "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0;\n}"
                         : HTI_4(d, 0), HTI_4(d, 1)
                         : "l"(fx + 2 * i), "l"(fy + 2 * i), "r"(i));
        else
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
                         "wgmma.mma_async.sync.aligned.m64n48k16.f32." HTI_MMA_TYPES " "
                         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                         "%16, %17, %18, %19, %20, %21, %22, %23}, %24, %25, p, 1, 1, 0, 0;\n}"
                         : HTI_4(d, 0), HTI_4(d, 1), HTI_4(d, 2), HTI_4(d, 3), HTI_4(d, 4),
                           HTI_4(d, 5)
                         : "l"(fx + 2 * i), "l"(fy + 2 * i), "r"(i));
    }
}

/* d += w y: weights of 64 partners, whose rows lie at y. */
DEVICE void gather(float d[8][4], const uint32_t w[4][4], uint32_t y) {
    uint64_t fy = factor_at(y);
#pragma unroll
    for (int i = 0; i < WIDE_ROWS / 16; i++) gather16(d, w[i], fy + 128 * i);
}

/* A lane's numbers of a product as first factors of another. */
DEVICE void pack_weights(uint32_t w[4][4], const float x[8][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i][0] = pack2(x[2 * i][0], x[2 * i][1]), w[i][1] = pack2(x[2 * i][2], x[2 * i][3]);
        w[i][2] = pack2(x[2 * i + 1][0], x[2 * i + 1][1]);
        w[i][3] = pack2(x[2 * i + 1][2], x[2 * i + 1][3]);
    }
}

DEVICE void set_zero(float d[8][4]) {
#pragma unroll
    for (int i = 0; i < 8; i++) d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0;
}

/* A softmax state of rows g and g + 8 (m, l, o) is brought to new maxima, but only where old ones
 * have fallen behind by a factor of 256. */
template <typename State> DEVICE void keep_up(State &s, const float top[2]) {
    if (__any_sync(~0u, top[0] > s.m[0] + 8 || top[1] > s.m[1] + 8)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = fmaxf(s.m[h], top[h]), fade = m == HTI_NEG_INF ? 1 : exp2_fast(s.m[h] - m);
            s.m[h] = m, s.l[h] *= fade;
#pragma unroll
            for (int n = 0; n < 8; n++) s.o[n][2 * h] *= fade, s.o[n][2 * h + 1] *= fade;
        }
    }
}

/* ---- rows on their way ---- */

/* All but the last LEFT groups have arrived, and products may read them after the next barrier. */
template <int LEFT> DEVICE void copies_wait() {
    asm volatile("cp.async.wait_group %0;\nfence.proxy.async.shared::cta;" ::"n"(LEFT) : "memory");
}

DEVICE void copy4_async(uint32_t dst, const void *src) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src));
}

DEVICE uint32_t align_shared(const void *p) { return (shared_address(p) + 1023) & ~1023u; }

/* ROWS rows by all threads; zeros from `left` on. stride: elements */
template <int ROWS, int ALL>
DEVICE void bring_rows(uint32_t to, const element *from, int stride, int left) {
    constexpr int STEP = ALL / 8;
    int ch = (int)threadIdx.x % 8, r0 = (int)threadIdx.x / 8;
    to += (uint32_t)(r0 * 128 + ((ch ^ (r0 & 7)) << 4)); /* the swizzle repeats every 8 rows */
    const element *at = from + ((int64_t)r0 * stride + 8 * ch);
    if (left >= ROWS) {
#pragma unroll
        for (int i = 0; i < ROWS / STEP; i++)
            copy_async(to + i * STEP * 128, at + (int64_t)stride * (i * STEP));
        return;
    }
#pragma unroll 1
    for (int i = 0; i < ROWS / STEP; i++) {
        bool there = r0 + i * STEP < left;
        copy_async_if(to + i * STEP * 128, there ? at + (int64_t)stride * (i * STEP) : from, there);
    }
}

#endif /* HTI_WIDE */

} // namespace HTI_KERNELS

#endif
