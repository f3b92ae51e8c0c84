/* What a run folder says of its data, run.json, as --resume, eval, predict and report read it. */
#include "fuzz.h"

#include <run/rows.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int made;
    cli_error error = {""};
    run_places places = {.rows = {.kind = -1, .header = -1}};
    if (!made++) fuzz_link("run.json", 0);
    fuzz_file(0, data, size);
    bool good = run_places_read(&places, fuzz_root(), &error);
    MUST(fuzz_said(error.text) == good);
    if (good) {
        ht_rows_desc rows = run_rows_desc(&places.rows);
        MUST(places.holdout >= 0 && places.holdout < 1);
        MUST(rows.kind <= HT_ROWS_FOLDERS && rows.header <= HT_HEADER_NO);
        MUST(memchr(places.data, 0, sizeof places.data) != NULL);
    }
    return 0;
}
