/*
 * Activation functions and their slopes.
 */
#ifndef HTI_CUDA_MODEL_ACTIVE_H
#define HTI_CUDA_MODEL_ACTIVE_H

#include "cuda/model/model.h"

#define GELU_A 0.7978845608028654f /* sqrt(2/pi) */
#define GELU_B 0.044715f

/* tanh form: x/2 (1 + tanh u) = x sigmoid(2u), u = A (x + B x^3) */
DEVICE float gelu_sigmoid(float x, const float *) {
    return 1 / (1 + expf(-2 * GELU_A * (x + GELU_B * x * x * x)));
}

/* bf16 can do with the fast ones: errors of 2^-22 */
DEVICE float gelu_sigmoid(float x, const bf16 *) {
    float u = x * fmaf(-2 * GELU_A * GELU_B * HTI_LOG2E * x, x, -2 * GELU_A * HTI_LOG2E), s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(u));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1 + s));
    return s;
}

template <typename T> DEVICE float gelu(float x) { return x * gelu_sigmoid(x, (const T *)nullptr); }

template <typename T> DEVICE float gelu_slope(float x) {
    float s = gelu_sigmoid(x, (const T *)nullptr);
    return s + x * s * (1 - s) * 2 * GELU_A * (1 + 3 * GELU_B * x * x);
}

template <typename T> DEVICE float activate(float x, int kind) {
    if (kind == HTI_GELU) return gelu<T>(x);
    return kind == HTI_RELU && x < 0 ? 0 : x;
}

template <typename T> DEVICE float slope(float x, int kind) {
    if (kind == HTI_RELU) return x > 0 ? 1 : 0;
    return gelu_slope<T>(x);
}

#endif
