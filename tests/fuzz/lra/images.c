/* Files of images, with and without a header. The first byte: squares, shrinking, holding out. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ht_config *config;
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest);
    if (!config)
        config = fuzz_config("{\"format\": \"images\", \"length\": 16, \"batch\": 2, "
                             "\"classes\": 3}");
    MUST(ht_config_set_int(config, "patch", how & 1 ? 2 : 1) == HT_OK);
    MUST(ht_config_set_int(config, "shrink", how & 2 ? 2 : 1) == HT_OK);
    MUST(ht_config_set_int(config, "length", how & 16 ? 1024 : 16) == HT_OK);
    ht_data *opened = NULL;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = config, desc.path = fuzz_file(0, rest.at, rest.bytes);
    desc.holdout = how & 4 ? 0.5 : 0;
    desc.part = how & 8 ? HT_PART_VALID : HT_PART_TRAIN;
    if (fuzz_taken(ht_data_open(&opened, fuzz_context(), &desc))) fuzz_batches(opened, 256);
    ht_data_close(opened);
    return 0;
}
