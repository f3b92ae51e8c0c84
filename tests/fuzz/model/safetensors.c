/* Safetensors: what of a file fits is taken into a model; a refused file changes nothing in it. */
#include "tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ht_model *model;
    int64_t count = 0;
    if (!model) model = tensors_model();
    double before = tensors_sum(model);
    if (fuzz_taken(ht_model_take(model, tensors_file(data, size), &count)))
        MUST(count > 0 && count <= ht_model_tensors(model));
    else
        MUST(tensors_sum(model) == before);
    tensors_sum(model);
    return 0;
}
