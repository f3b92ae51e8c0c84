/* Running text: a document per file, line or article. */
#include "text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const documents[] = {"file", "lines", "articles", "wikitext"};
    text_read(data, size, documents[size ? data[0] >> 6 : 0]);
    return 0;
}
