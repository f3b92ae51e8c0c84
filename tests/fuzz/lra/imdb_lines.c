/* The same reviews as lines of label and text, one file per part. */
#include "import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int made;
    fuzz_part rest = {data, size};
    if (!made++) fuzz_link("imdb-train.tsv", 0), fuzz_link("imdb-test.tsv", 1);
    import_parts(&rest, 2);
    import_set("imdb");
    return 0;
}
