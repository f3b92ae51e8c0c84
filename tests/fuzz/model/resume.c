/*
 * A training that goes on from a file: weights, moments, how far it is; or as it was before. Inputs
 * are changes of a file that it saved itself, its checksums left out.
 */
#include <stdio.h>

#include "patch.h"
#include "tensors.h"

enum { MOST = 1 << 16 };
static uint8_t saved[MOST]; /* as tensors.h has it */
static size_t saved_bytes;

/* Another key of the metadata is nothing to the reader. */
static void leave_out_sums(uint8_t *bytes, size_t count) {
    for (size_t i = 0; i + 7 < count; i++)
        if (memcmp(bytes + i, "\"crc32\"", 7) == 0) bytes[i + 1] = 'C';
}

static void save(const ht_trainer *trainer) {
    char path[128];
    uint8_t first[8];
    uint64_t length = 0;
    snprintf(path, sizeof path, "%s/saved", fuzz_root());
    MUST(ht_trainer_save(trainer, NULL, path) == HT_OK);
    FILE *file = fopen(path, "rb");
    MUST(file && fread(first, 1, 8, file) == 8);
    for (int i = 7; i >= 0; i--) length = length << 8 | first[i];
    MUST(length < MOST / 2);
    saved[0] = 'J';
    MUST(fread(saved + 1, 1, length, file) == length);
    saved[1 + length] = '\f';
    saved_bytes = 2 + length + fread(saved + 2 + length, 1, MOST / 2, file);
    fclose(file);
    leave_out_sums(saved, saved_bytes);
}

static ht_trainer *trainer_of(ht_model *model) {
    ht_trainer *trainer;
    ht_config *config = fuzz_config(TINY);
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    desc.config = config;
    MUST(ht_trainer_create(&trainer, model, &desc) == HT_OK);
    ht_config_destroy(config);
    return trainer;
}

/* The settings of the same file, as --resume takes them before there is a model. */
static void resume_settings(void) {
    static int made;
    if (!made++) {
        fuzz_folder("run");
        fuzz_link("run/step-000000001.safetensors", 0);
    }
    char folder[128];
    ht_config *config = fuzz_config(TINY);
    snprintf(folder, sizeof folder, "%s/run", fuzz_root());
    if (fuzz_taken(ht_config_resume(config, fuzz_context(), folder)))
        MUST(ht_config_check(config) == HT_OK);
    ht_config_destroy(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ht_model *model;
    static ht_trainer *trainer;
    size_t count;
    if (!model) model = tensors_model(), save(trainer = trainer_of(model));
    uint8_t *bytes = patch_edit(&count, saved, saved_bytes, (fuzz_part){data, size});
    double before = tensors_sum(model);
    int64_t step = ht_trainer_steps(trainer);
    if (fuzz_taken(ht_trainer_restore(trainer, NULL, tensors_file(bytes, count))))
        MUST(ht_trainer_steps(trainer) >= 0);
    else
        MUST(tensors_sum(model) == before && ht_trainer_steps(trainer) == step);
    tensors_sum(model);
    resume_settings();
    free(bytes);
    return 0;
}
