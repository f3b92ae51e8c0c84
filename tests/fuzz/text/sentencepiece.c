/* SentencePiece models: what is taken gives back every text as it was. */
#include "tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ht_tokenizer *tokenizer = NULL;
    if (fuzz_taken(ht_tokenizer_open(&tokenizer, fuzz_context(), fuzz_file(0, data, size))))
        tokens_look(tokenizer);
    ht_tokenizer_close(tokenizer);
    return 0;
}
