/* Compressed streams, as any reader of data meets them: gzip. */
#include "packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return packed_read(data, size, "\x1F\x8B", 2);
}
