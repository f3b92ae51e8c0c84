/*
 * Inputs of the targets that read saved states, which only their own program makes: changes of one
 * that the target saved itself, so that no seed can grow old. Three bytes are one change: where
 * (two bytes, the lower one first) and what; what is left over cuts the end off.
 */
#ifndef FUZZ_PATCH_H
#define FUZZ_PATCH_H

#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Three bytes are one change: where (two bytes, the lower one first) and what; what is left over
 * cuts the end off. */
static inline uint8_t *patch_make(size_t *size, const uint8_t *own, size_t count, fuzz_part rest) {
    uint8_t *bytes = malloc(count + 1);
    MUST(bytes != NULL && count > 0);
    memcpy(bytes, own, *size = count);
    for (; rest.bytes > 2; rest.at += 3, rest.bytes -= 3)
        bytes[((size_t)rest.at[0] | (size_t)rest.at[1] << 8) % count] = rest.at[2];
    for (; rest.bytes > 0; rest.at++, rest.bytes--)
        *size -= *size < rest.at[0] ? *size : rest.at[0];
    return bytes;
}

/* The same for text: where (two bytes), how many bytes go, how many come (at most 31), those. */
static inline uint8_t *patch_edit(size_t *size, const uint8_t *own, size_t count, fuzz_part rest) {
    uint8_t *bytes = malloc(count + rest.bytes + 1);
    MUST(bytes != NULL && count > 0);
    memcpy(bytes, own, *size = count);
    while (rest.bytes > 3) {
        size_t at = ((size_t)rest.at[0] | (size_t)rest.at[1] << 8) % (*size + 1);
        size_t go = rest.at[2] < *size - at ? rest.at[2] : *size - at, come = rest.at[3] % 32;
        rest.at += 4, rest.bytes -= 4;
        if (come > rest.bytes) come = rest.bytes;
        memmove(bytes + at + come, bytes + at + go, *size - at - go);
        memcpy(bytes + at, rest.at, come);
        rest.at += come, rest.bytes -= come;
        *size += come - go;
    }
    return bytes;
}

#endif
