/* Labelled rows: RFC 4180 and what people make of it. */
#include "rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return rows_read(data, size, HT_ROWS_CSV);
}
