/*
 * Inputs of the targets that read running text: the first byte has the options.
 */
#ifndef FUZZ_TEXT_H
#define FUZZ_TEXT_H

#include "fuzz.h"

static inline void text_read(const uint8_t *data, size_t size, const char *documents) {
    static ht_config *configs[2];
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest), across = how & 1;
    for (int i = 0; i < 2 && !configs[i]; i++) {
        configs[i] = fuzz_config("{\"task\": \"language\", \"format\": \"text\", \"length\": 16, "
                                 "\"batch\": 2}");
        MUST(ht_config_set_int(configs[i], "across", i) == HT_OK);
    }
    MUST(ht_config_set_choice(configs[across], "documents", documents) == HT_OK);
    ht_data *opened = NULL;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = configs[across];
    desc.path = fuzz_file(0, rest.at, rest.bytes);
    desc.holdout = how & 2 ? 0.25 : 0;
    desc.part = how & 4 ? HT_PART_VALID : HT_PART_TRAIN;
    desc.memory = how & 8 ? 16 : 0;
    if (fuzz_taken(ht_data_open(&opened, fuzz_context(), &desc))) fuzz_batches(opened, 257);
    ht_data_close(opened);
}

#endif
