/* A linear model from a file: features, weights, labels. What is taken gives scores. */
#include "tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "good words, more! of them";
    enum { MOST = 16 };
    float scores[MOST], logits[MOST] = {0};
    ht_linear *linear = NULL;
    ht_linear_info info = HT_LINEAR_INFO_INIT;
    if (!fuzz_taken(ht_linear_load(&linear, fuzz_context(), tensors_file(data, size)))) {
        MUST(linear == NULL);
        return 0;
    }
    MUST(ht_linear_get_info(linear, &info) == HT_OK && info.classes >= 2);
    MUST(ht_labels_count(ht_linear_labels(linear)) == info.classes);
    if (info.classes <= MOST) {
        MUST(ht_linear_scores(linear, text, sizeof text - 1, scores) == HT_OK);
        MUST(ht_linear_mix(linear, scores, logits, logits) == HT_OK);
    }
    ht_linear_destroy(linear);
    return 0;
}
