/*
 * bfloat16: the upper half of a float.
 */
#ifndef HTI_BF16_H
#define HTI_BF16_H

#include <stdint.h>
#include <string.h>

static inline float hti_from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Nearest, ties to even; what is not finite stays so. */
static inline uint16_t hti_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#endif
