/*
 * Half precision (IEEE binary16): 5 bits of exponent, 10 of mantissa.
 */
#ifndef HTI_F16_H
#define HTI_F16_H

#include <stdint.h>
#include <string.h>

static inline float hti_from_f16(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7FFF, bits;
    float f;
    if (rest >= 0x7C00) { /* not finite */
        bits = sign | 0x7F800000 | (rest & 0x3FF) << 13;
    } else if (rest >= 0x400) {
        bits = sign | ((rest << 13) + ((127 - 15) << 23));
    } else { /* a multiple of 2^-24 */
        f = (float)rest * 0x1p-24f;
        memcpy(&bits, &f, sizeof bits);
        bits |= sign;
    }
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Nearest, ties to even; what is too large becomes infinite, what is not finite stays so. */
static inline uint16_t hti_to_f16(float f) {
    uint32_t bits, sign, rest;
    memcpy(&bits, &f, sizeof bits);
    sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (rest >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* 65,520 and more */
    if (rest >= 0x38800000) {                                 /* normal: from 2^-14 on */
        rest -= (127 - 15) << 23;
        return (uint16_t)(sign | ((rest + 0xFFF + (rest >> 13 & 1)) >> 13));
    }
    float magnitude, unit = 0.5f; /* units in the last place of 0.5 are 2^-24: it rounds */
    memcpy(&magnitude, &rest, sizeof magnitude);
    magnitude += unit;
    memcpy(&rest, &magnitude, sizeof rest);
    return (uint16_t)(sign | (rest - 0x3F000000));
}

#endif
