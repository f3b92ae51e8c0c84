/* CIFAR-10: grey records or binary batches; the first half is for training, the second the test. */
#include "import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int made;
    if (!made++) fuzz_link("cifar10-gray-train.bin", 0), fuzz_link("cifar10-gray-test.bin", 1);
    fuzz_file(0, data, size / 2);
    fuzz_file(1, data + size / 2, size - size / 2);
    import_set("cifar10");
    return 0;
}
