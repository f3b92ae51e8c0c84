/* Sequences as FASTA. */
#include "text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    text_read(data, size, "fasta");
    return 0;
}
