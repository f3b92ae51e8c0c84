/*
 * src/cuda/ptx.h on the host; included by it, with the type of element.h. Sums of products are
 * rounded after every addition, which tensor cores do in an order and with a precision of their
 * own.
 */
#ifndef HOST_PTX_H
#define HOST_PTX_H

#include "cuda_runtime.h"

/* what is too small for a normal number is 0, in and out */
static inline float host_flush(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x; }
static inline float exp2_fast(float x) { return host_flush(exp2f(host_flush(x))); }
static inline float inverse_fast(float x) { return host_flush(1 / host_flush(x)); }

/* ---- products ---- */

static inline float host_half(uint32_t pair, int high) {
    float2 both = HTI_KERNELS::unpack2(pair);
    return high ? both.y : both.x;
}

/* Words of a lane: c[4], a[4], b[2]; steps of 8 columns. Rows of a lie 8 apart in a[0], a[1]. */
template <int STEPS> static inline void host_product(host::slot *all, uint32_t mask) {
    if (mask != ~0u) host::fault("a product needs all lanes, %08x are there", mask);
    for (int lane = 0; lane < 32; lane++)
        for (int x = 0; x < 4; x++) {
            int row = lane / 4, column = 2 * (lane % 4) + x % 2;
            float sum = __uint_as_float(all[lane].word[x]);
            for (int k = 0; k < 8 * STEPS; k++) {
                uint32_t a = all[4 * row + k % 8 / 2].word[4 + 2 * (k / 8) + x / 2];
                uint32_t b = all[4 * column + k % 8 / 2].word[8 + k / 8];
                sum += host_half(a, k % 2) * host_half(b, k % 2);
            }
            all[lane].word[x] = __float_as_uint(sum);
        }
}

template <int STEPS>
static inline void host_mma(float c[4], const uint32_t *a, const uint32_t *b, const char *what,
                            host::line at) {
    host::slot s = {};
    memcpy(s.word, c, 16);
    memcpy(s.word + 4, a, 8 * STEPS);
    memcpy(s.word + 8, b, 4 * STEPS);
    memcpy(c, host::meet(what, ~0u, s, host_product<STEPS>, at)->word, 16);
}

static inline void mma16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, HOST_LINE) {
    uint32_t b[2] = {b0, b1};
    host_mma<2>(c, a, b, "mma16", at);
}

static inline void mma8(float c[4], uint32_t a0, uint32_t a1, uint32_t b0, HOST_LINE) {
    uint32_t a[2] = {a0, a1};
    host_mma<1>(c, a, &b0, "mma8", at);
}

static inline void host_across(host::slot *all, uint32_t mask) {
    uint16_t row[8][8];
    if (mask != ~0u) host::fault("a matrix needs all lanes, %08x are there", mask);
    for (int lane = 0; lane < 32; lane++) memcpy(&row[lane / 4][2 * (lane % 4)], all[lane].word, 4);
    for (int lane = 0; lane < 32; lane++) {
        uint32_t low = row[2 * (lane % 4)][lane / 4], high = row[2 * (lane % 4) + 1][lane / 4];
        all[lane].word[0] = low | high << 16;
    }
}
static inline uint32_t matrix_across(uint32_t x, HOST_LINE) {
    return host::meet("movmatrix", ~0u, host::brought(x), host_across, at)->word[0];
}

/* ---- shared memory ---- */

static inline uint32_t shared_address(const void *p) { return host::shared_address(p); }
static inline uint4 shared_load4(uint32_t at) { return *(uint4 *)host::shared_at(at, 16, 16); }
static inline uint2 shared_load2(uint32_t at) { return *(uint2 *)host::shared_at(at, 8, 8); }
static inline void shared_store4(uint32_t at, uint4 x) {
    *(uint4 *)host::shared_at(at, 16, 16) = x;
}

/* Word 0 of a lane: the address of row lane % 8 of matrix lane / 8. */
template <int COUNT, int TURNED> static inline void host_matrices(host::slot *all, uint32_t mask) {
    if (mask != ~0u) host::fault("matrices need all lanes, %08x are there", mask);
    uint16_t row[8 * COUNT][8];
    for (int r = 0; r < 8 * COUNT; r++) memcpy(row[r], host::shared_at(all[r].word[0], 16, 16), 16);
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < COUNT; m++) {
            int i = lane / 4, j = 2 * (lane % 4);
            uint32_t low = TURNED ? row[8 * m + j][i] : row[8 * m + i][j];
            uint32_t high = TURNED ? row[8 * m + j + 1][i] : row[8 * m + i][j + 1];
            all[lane].word[m] = low | high << 16;
        }
}

template <int COUNT, int TURNED>
static inline void host_matrix(uint32_t *b, uint32_t from, host::line at) {
    host::slot *mine =
        host::meet("ldmatrix", ~0u, host::brought(from), host_matrices<COUNT, TURNED>, at);
    memcpy(b, mine->word, 4 * COUNT);
}

static inline void matrix1(uint32_t *b, uint32_t from, HOST_LINE) {
    host_matrix<1, 0>(b, from, at);
}
static inline void matrix2(uint32_t *b, uint32_t from, HOST_LINE) {
    host_matrix<2, 0>(b, from, at);
}
static inline void matrix1_turned(uint32_t *b, uint32_t from, HOST_LINE) {
    host_matrix<1, 1>(b, from, at);
}
static inline void matrix2_turned(uint32_t *b, uint32_t from, HOST_LINE) {
    host_matrix<2, 1>(b, from, at);
}
static inline void matrix4_turned(uint32_t *b, uint32_t from, HOST_LINE) {
    host_matrix<4, 1>(b, from, at);
}

/* ---- copies that arrive later ---- */

static inline void copy_async(uint32_t to, const void *from) { host::copy_async(to, from, 16, 1); }
static inline void copy_async_if(uint32_t to, const void *from, int there) {
    host::copy_async(to, from, 16, there);
}
static inline void copy8_async_if(uint32_t to, const void *from, int there) {
    host::copy_async(to, from, 8, there);
}
static inline void copies_commit() { host::copies_commit(); }
static inline void copy_async_wait() {
    host::copies_commit();
    host::copies_wait(0);
}
static inline void store_hinted(void *at, uint4 x, uint64_t) { *(uint4 *)at = x; }

#endif
