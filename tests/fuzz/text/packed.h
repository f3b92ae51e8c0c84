/*
 * Inputs of the targets that unpack. Those that do not begin as the format does are left to the
 * targets of plain files.
 */
#ifndef FUZZ_PACKED_H
#define FUZZ_PACKED_H

#include "fuzz.h"

#include <string.h>

static inline int packed_read(const uint8_t *data, size_t size, const char *magic, size_t count) {
    ht_rows_desc desc = HT_ROWS_DESC_INIT;
    if (size < count || memcmp(data, magic, count) != 0) return 0;
    desc.path = fuzz_file(0, data, size);
    desc.kind = HT_ROWS_TSV;
    desc.most = 4096;
    fuzz_taken(ht_rows_read(fuzz_context(), &desc, NULL));
    return 0;
}

#endif
