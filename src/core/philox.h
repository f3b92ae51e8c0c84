/*
 * Philox-4x32-10: a counter-based generator (Salmon et al. 2011), so that every device draws the
 * same dropout mask in forward and backward without storing it.
 */
#ifndef HTI_PHILOX_H
#define HTI_PHILOX_H

#include "core/hier.h"

typedef struct hti_philox {
    uint32_t w[4];
} hti_philox;

/* Both halves of a product, in one instruction where the compiler would take two. */
HTI_FN uint64_t hti_wide_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    uint64_t p;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(p) : "r"(a), "r"(b));
    return p;
#else
    return (uint64_t)a * b;
#endif
}

HTI_FN hti_philox hti_philox_draw(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2,
                                  uint32_t c3) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = hti_wide_product(c0, 0xD2511F53u), p1 = hti_wide_product(c2, 0xCD9E8D57u);
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    hti_philox r = {{c0, c1, c2, c3}};
    return r;
}

/* Rows a sequence may have under dropout: level (5 bits) and query cluster share one counter word.
 */
#define HTI_DROPOUT_CLUSTER_BITS 27

/* The dropout words of key clusters 4*key4 ... 4*key4 + 3 against one query (coarse row, or row in
 * `fine`): a weight is dropped if its word < threshold. head = sequence * q_heads + q_head. */
HTI_FN hti_philox hti_dropout_words(uint64_t seed, uint32_t offset, uint32_t head, int level,
                                    int64_t query, uint32_t key4) {
    uint32_t where = (uint32_t)level << HTI_DROPOUT_CLUSTER_BITS | (uint32_t)query;
    return hti_philox_draw(seed, offset, head, where, key4);
}

HTI_FN uint32_t hti_dropout_threshold(double p) { return (uint32_t)(p * 4294967296.0); }

#endif
