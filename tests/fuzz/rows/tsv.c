/* Labelled rows: cells between tabs. */
#include "rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return rows_read(data, size, HT_ROWS_TSV);
}
