/* Pathfinder as it was released: a line about an image, and a PNG file. */
#include "import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int made;
    fuzz_part rest = {data, size};
    if (!made++) {
        fuzz_folder("metadata"), fuzz_folder("imgs"), fuzz_folder("imgs/1");
        fuzz_link("metadata/1.npy", 0), fuzz_link("imgs/1/a.png", 1);
    }
    import_parts(&rest, 2);
    import_set("pathfinder");
    return 0;
}
