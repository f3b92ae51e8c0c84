/* Labelled rows: an object per line. */
#include "rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return rows_read(data, size, HT_ROWS_JSONL);
}
