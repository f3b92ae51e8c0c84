/* A folder per label, a file per text. The first byte says how much is held out. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_part rest = {data, size};
    static ht_config *config;
    int how = fuzz_option(&rest);
    if (!config) {
        config = fuzz_config("{\"format\": \"tsv\", \"length\": 16, \"batch\": 2, \"classes\": 0}");
        fuzz_folder("ham"), fuzz_folder("spam");
        fuzz_link("ham/a", 0), fuzz_link("ham/b", 1), fuzz_link("spam/c", 2);
    }
    for (int i = 0; i < 3; i++) {
        fuzz_part text = fuzz_next(&rest);
        fuzz_file(i, text.at, text.bytes);
    }
    ht_data *data_of = NULL;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = config, desc.path = fuzz_root();
    desc.holdout = how & 1 ? 0.5 : 0;
    desc.part = how & 2 ? HT_PART_VALID : HT_PART_TRAIN;
    if (fuzz_taken(ht_data_open(&data_of, fuzz_context(), &desc))) fuzz_batches(data_of, 257);
    ht_data_close(data_of);
    return 0;
}
