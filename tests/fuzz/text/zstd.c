/* Compressed streams, as any reader of data meets them: zstd. */
#include "packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return packed_read(data, size, "\x28\xB5\x2F\xFD", 4);
}
