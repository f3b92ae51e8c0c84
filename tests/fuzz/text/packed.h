/*
 * Inputs of the targets that unpack. Those that do not begin as the format does are left to the
 * targets of plain files.
 */
#ifndef FUZZ_PACKED_H
#define FUZZ_PACKED_H

#include "fuzz.h"

#include <string.h>

/* A few bytes may be unpacked for long: enough is enough. */
static inline int packed_row(void *user, const ht_row *row) {
    (void)row;
    return ++*(int *)user > 64;
}

static inline int packed_read(const uint8_t *data, size_t size, const char *magic, size_t count) {
    ht_rows_desc desc = HT_ROWS_DESC_INIT;
    int rows = 0;
    if (size < count || memcmp(data, magic, count) != 0) return 0;
    desc.path = fuzz_file(0, data, size);
    desc.kind = HT_ROWS_TSV;
    desc.most = 4096;
    desc.each = packed_row, desc.user = &rows;
    fuzz_taken(ht_rows_read(fuzz_context(), &desc, NULL));
    return 0;
}

#endif
