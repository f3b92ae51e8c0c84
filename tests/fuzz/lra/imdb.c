/* The Large Movie Review Dataset: folders of reviews. */
#include "import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int made;
    fuzz_part rest = {data, size};
    if (!made++) {
        fuzz_folder("train"), fuzz_folder("train/neg"), fuzz_folder("train/pos");
        fuzz_folder("test"), fuzz_folder("test/neg"), fuzz_folder("test/pos");
        fuzz_link("train/neg/0.txt", 0), fuzz_link("train/pos/0.txt", 1);
        fuzz_link("test/neg/0.txt", 2), fuzz_link("test/pos/0.txt", 3);
    }
    import_parts(&rest, 4);
    import_set("imdb");
    return 0;
}
