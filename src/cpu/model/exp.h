/*
 * exp for float without branches, so that loops over it vectorise: 2^n times a polynomial on
 * [-ln2/2, ln2/2], about 1 ulp; below -87 it is 1e-38, not 0; NaN stays NaN.
 */
#ifndef HTI_CPU_MODEL_EXP_H
#define HTI_CPU_MODEL_EXP_H

#include <math.h>
#include <stdint.h>

static inline float exp_real(float x) {
    union {
        float f;
        int32_t i;
    } n, two;
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    n.f = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the low bits are round(x / ln 2) */
    float k = n.f - 12582912.0f;
    float r = x - k * 0.693359375f + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    two.i = (int32_t)(((uint32_t)n.i + 127u) << 23); /* low bits of n.i are k's */
    return (p * r * r + r + 1.0f) * two.f;
}
#define sqrt_real sqrtf

#endif
