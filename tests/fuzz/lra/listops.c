/* Expressions of ListOps: one as a model gets it, rows of label and expression, the official set.
 */
#include "import.h"

#include <stdlib.h>

static int official(fuzz_part rest) {
    static int made;
    if (!made++) {
        fuzz_link("basic_train.tsv", 0), fuzz_link("basic_val.tsv", 1);
        fuzz_link("basic_test.tsv", 2);
    }
    import_parts(&rest, 3);
    import_set("listops");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ht_config *config;
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest);
    if (!config)
        config = fuzz_config("{\"format\": \"listops\", \"length\": 16, \"batch\": 2, "
                             "\"classes\": 10}");
    if (how & 4) return official(rest);
    ht_data *opened = NULL;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    char *text = fuzz_text(&rest);
    int32_t tokens[64];
    int64_t count = 0;
    desc.config = config, desc.path = fuzz_file(0, rest.at, rest.bytes);
    desc.holdout = how & 2 ? 0.5 : 0;
    if (how & 1) {
        if (fuzz_taken(
                ht_data_encode(fuzz_context(), config, text, rest.bytes, tokens, 64, &count)))
            MUST(count >= 0 && count <= (int64_t)rest.bytes);
    } else if (fuzz_taken(ht_data_open(&opened, fuzz_context(), &desc))) {
        fuzz_batches(opened, 257);
    }
    ht_data_close(opened);
    free(text);
    return 0;
}
