/*
 * What every tokenizer promises: a text comes back from its tokens as it was.
 */
#ifndef FUZZ_TOKENS_H
#define FUZZ_TOKENS_H

#include "fuzz.h"

#include <string.h>

static inline void tokens_look(const ht_tokenizer *t) {
    static const char text[] = "a cat,  \xC3\xA9 \xFF the";
    enum { BYTES = sizeof text - 1 };
    int32_t tokens[BYTES];
    int64_t count = 0;
    size_t at = 0;
    MUST(ht_tokenizer_encode(t, text, BYTES, tokens, BYTES, &count) == HT_OK && count <= BYTES);
    for (int64_t i = 0; i < count; i++) {
        size_t n;
        const char *piece = ht_tokenizer_piece(t, tokens[i], &n);
        MUST(tokens[i] > 0 && tokens[i] < ht_tokenizer_vocab(t));
        MUST(n <= BYTES - at && memcmp(piece, text + at, n) == 0);
        at += n;
    }
    MUST(at == BYTES);
}

#endif
