/*
 * Characters of UTF-8.
 */
#ifndef HTI_UTF8_H
#define HTI_UTF8_H

#include <stddef.h>

/* Bytes of the character at the start of a text; 0: it is no valid UTF-8. */
static inline size_t hti_utf8(const char *text, size_t left) {
    const unsigned char *b = (const unsigned char *)text;
    size_t n = b[0] < 0x80                    ? 1
               : b[0] >= 0xC2 && b[0] < 0xE0  ? 2
               : b[0] >= 0xE0 && b[0] < 0xF0  ? 3
               : b[0] >= 0xF0 && b[0] <= 0xF4 ? 4
                                              : 0;
    if (n == 0 || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((b[i] & 0xC0) != 0x80) return 0;
    if (b[0] == 0xE0 && b[1] < 0xA0) return 0;  /* longer than it need be */
    if (b[0] == 0xED && b[1] >= 0xA0) return 0; /* half of a surrogate pair */
    if (b[0] == 0xF0 && b[1] < 0x90) return 0;
    if (b[0] == 0xF4 && b[1] >= 0x90) return 0; /* beyond the last character */
    return n;
}

static inline int hti_is_utf8(const char *text, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n)
        if ((n = hti_utf8(text + at, bytes - at)) == 0) return 0;
    return 1;
}

#endif
