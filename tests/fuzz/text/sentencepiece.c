/* SentencePiece models: what is taken gives back every text as it was. */
#include "fuzz.h"

#include <string.h>

static void look(const ht_tokenizer *t) {
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ht_tokenizer *tokenizer = NULL;
    if (fuzz_taken(ht_tokenizer_open(&tokenizer, fuzz_context(), fuzz_file(0, data, size))))
        look(tokenizer);
    ht_tokenizer_close(tokenizer);
    return 0;
}
