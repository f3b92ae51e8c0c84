/*
 * Inputs of the targets that read safetensors: a file as it is, or, so that mutations reach beyond
 * its first bytes, "J" and the header's text without its length, a form feed, the numbers.
 */
#ifndef FUZZ_TENSORS_H
#define FUZZ_TENSORS_H

#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

/* As `htransformer train` makes it of these keys (seeds.py). */
#define TINY                                                                                     \
    "{\"task\": \"classify\", \"format\": \"listops\", \"attention\": \"hierarchical\", "        \
    "\"query\": \"fine\", \"block\": 2, \"layers\": 1, \"width\": 4, \"heads\": 1, \"hidden\": " \
    "4, "                                                                                        \
    "\"vocab\": 24, \"classes\": 10, \"length\": 16, \"pool\": \"last\", \"sinusoidal\": 0, "    \
    "\"rotary\": \"all\", \"relative_bias\": 1, \"causal\": 1, \"dropout\": 0, \"batch\": 2, "   \
    "\"optimizer\": \"adamw\"}"

static inline const char *tensors_file(const uint8_t *data, size_t size) {
    if (size == 0 || data[0] != 'J') return fuzz_file(0, data, size);
    fuzz_part rest = {data + 1, size - 1}, header = fuzz_next(&rest);
    uint8_t *whole = malloc(8 + header.bytes + rest.bytes);
    MUST(whole != NULL);
    for (int i = 0; i < 8; i++) whole[i] = (uint8_t)((uint64_t)header.bytes >> 8 * i);
    memcpy(whole + 8, header.at, header.bytes);
    if (rest.bytes) memcpy(whole + 8 + header.bytes, rest.at, rest.bytes);
    const char *path = fuzz_file(0, whole, 8 + header.bytes + rest.bytes);
    free(whole);
    return path;
}

static inline ht_model *tensors_model(void) {
    ht_model *model;
    ht_config *config = fuzz_config(TINY);
    MUST(ht_model_create(&model, fuzz_context(), config) == HT_OK);
    ht_config_destroy(config);
    return model;
}

/* Every number of a model's weights is finite; their sum. */
static inline double tensors_sum(const ht_model *model) {
    double sum = 0;
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        MUST(ht_model_tensor(model, i, &info) == HT_OK);
        double *numbers = malloc(sizeof *numbers * (size_t)info.count);
        MUST(numbers && ht_model_read(model, i, numbers) == HT_OK);
        for (int64_t k = 0; k < info.count; k++) {
            MUST(numbers[k] - numbers[k] == 0);
            sum += numbers[k] * (double)(k % 7 + 1);
        }
        free(numbers);
    }
    return sum;
}

#endif
