/* What a text is made of for a linear model: words, pairs, runs of bytes. Any text has scores. */
#include "fuzz.h"

#include <math.h>
#include <stdlib.h>

static ht_linear *fit(void) {
    static const char rows[] = "a\tgood words\nb\tbad words\nc\tno words!\n";
    ht_linear *linear;
    ht_data *data;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_config *config =
        fuzz_config("{\"format\": \"tsv\", \"length\": 16, \"batch\": 2, \"classes\": 0}");
    desc.config = config;
    desc.path = fuzz_file(0, rows, sizeof rows - 1);
    desc.keep_texts = 1;
    MUST(ht_data_open(&data, fuzz_context(), &desc) == HT_OK);
    MUST(ht_linear_fit(&linear, fuzz_context(), data) == HT_OK);
    ht_data_close(data);
    ht_config_destroy(config);
    return linear;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ht_linear *linear;
    float scores[3];
    char *text = fuzz_text(&(fuzz_part){data, size});
    if (!linear) linear = fit();
    if (fuzz_taken(ht_linear_scores(linear, text, size, scores)))
        MUST(isfinite(scores[0]) && isfinite(scores[1]) && isfinite(scores[2]));
    free(text);
    return 0;
}
