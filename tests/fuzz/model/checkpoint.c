/* A model from a file: its configuration, labels, weights, which are finite. */
#include "tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ht_model *model = NULL;
    if (!fuzz_taken(ht_model_load(&model, fuzz_context(), tensors_file(data, size)))) {
        MUST(model == NULL);
        return 0;
    }
    tensors_sum(model);
    const ht_labels *labels = ht_model_labels(model);
    MUST(ht_config_check(ht_model_config(model)) == HT_OK);
    for (int64_t i = 0; i < ht_labels_count(labels); i++)
        MUST(strlen(ht_labels_name(labels, i)) < size);
    ht_model_destroy(model);
    return 0;
}
