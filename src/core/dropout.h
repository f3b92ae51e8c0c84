/*
 * Dropout of a model's activations: sixteen bits decide about an element, so that one draw serves
 * eight of them. (The attention's weights have 32 bits each, see philox.h.)
 */
#ifndef HTI_DROPOUT_H
#define HTI_DROPOUT_H

#include "core/philox.h"

/* An element whose bits are below this is dropped. */
HTI_FN uint32_t hti_drop_threshold(double p) {
    double x = p * 65536.0 + 0.5;
    return x < 65535.0 ? (uint32_t)x : 65535u;
}

/* Bits of column c (mod 8) of a draw. */
HTI_FN uint32_t hti_drop_bits(const hti_philox *draw, uint32_t c) {
    return draw->w[c % 8 / 2] >> (c % 2 * 16) & 0xffffu;
}

#endif
