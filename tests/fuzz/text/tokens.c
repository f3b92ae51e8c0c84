/* Files of tokens, of which some are to be guessed. The first byte: which part is held out. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ht_config *config;
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest);
    if (!config)
        config = fuzz_config("{\"task\": \"language\", \"format\": \"tokens\", \"vocab\": 100, "
                             "\"length\": 16, \"batch\": 2}");
    ht_data *opened = NULL;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = config, desc.path = fuzz_file(0, rest.at, rest.bytes);
    desc.holdout = how & 1 ? 0.5 : 0;
    desc.part = how & 2 ? HT_PART_VALID : HT_PART_TRAIN;
    if (fuzz_taken(ht_data_open(&opened, fuzz_context(), &desc))) fuzz_batches(opened, 100);
    ht_data_close(opened);
    return 0;
}
