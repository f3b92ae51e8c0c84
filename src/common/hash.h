/*
 * A hash of bytes (FNV-1a, then mixed), and sums of hashes that do not depend on the order.
 */
#ifndef HTI_HASH_H
#define HTI_HASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t hti_sum_add(uint64_t h, const void *bytes, size_t count) {
    const unsigned char *b = bytes;
    for (size_t i = 0; i < count; i++) h = (h ^ b[i]) * 0x100000001B3u;
    return h;
}
static inline uint64_t hti_sum_begin(int64_t label) {
    unsigned char byte = (unsigned char)label;
    return hti_sum_add(0xCBF29CE484222325u, &byte, 1);
}
static inline uint64_t hti_sum_end(uint64_t h) {
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCDu;
    return h ^ h >> 29;
}

#endif
