/*
 * Rows as data: labels become numbers, texts tokens. The first byte: which task, how much is held
 * out; pairs may be of papers, which are the second part.
 */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ht_config *configs[2];
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest), pairs = how & 1;
    if (!configs[0]) {
        configs[0] = fuzz_config("{\"format\": \"tsv\", \"length\": 16, \"batch\": 2}");
        configs[1] = fuzz_config("{\"format\": \"tsv\", \"length\": 16, \"batch\": 2, "
                                 "\"task\": \"pairs\"}");
    }
    fuzz_part rows = fuzz_next(&rest), papers = fuzz_next(&rest);
    ht_data *opened = NULL;
    ht_rows_desc as = HT_ROWS_DESC_INIT;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    as.skip_bad = (how & 8) != 0;
    desc.config = configs[pairs], desc.rows = &as;
    desc.path = fuzz_file(0, rows.at, rows.bytes);
    if (pairs && how & 16) desc.papers = fuzz_file(1, papers.at, papers.bytes);
    desc.holdout = how & 2 ? 0.5 : 0;
    desc.part = how & 4 ? HT_PART_VALID : HT_PART_TRAIN;
    if (fuzz_taken(ht_data_open(&opened, fuzz_context(), &desc))) fuzz_batches(opened, 257);
    ht_data_close(opened);
    return 0;
}
