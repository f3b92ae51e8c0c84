/*
 * Saved states of a generator. The first byte says of which model, and whether checksums and sizes
 * are set right, so that what they guard is reached, too. What is taken can be gone on with, a
 * penalty on the recent tokens included.
 */
#include <stdio.h>

#include "core/crc.h"
#include "patch.h"

enum { FULL = 1, SEALED = 2, OPEN = 4, VOCAB = 257, HEADER = 48, RECENT = 256, MOST = 1 << 14 };
enum { NEAR, WHOLE, OPENED, MODELS };
static ht_generator *generators[MODELS];
static uint8_t saved[MODELS][MOST];
static size_t saved_bytes[MODELS];

static void make(int which) {
    ht_model *model;
    ht_generator_desc desc = HT_GENERATOR_DESC_INIT;
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7}, starts[] = {0, 7};
    ht_batch batch = HT_BATCH_INIT;
    ht_config *config = fuzz_config("{\"width\": 4, \"heads\": 1, \"layers\": 2, \"hidden\": 4, "
                                    "\"task\": \"language\", \"format\": \"text\", \"block\": 2, "
                                    "\"length\": 16, \"batch\": 1, \"dropout\": 0}");
    if (which == WHOLE) MUST(ht_config_set_choice(config, "attention", "full") == HT_OK);
    if (which == OPENED) MUST(ht_config_set_int(config, "open", 1) == HT_OK);
    MUST(ht_model_create(&model, fuzz_context(), config) == HT_OK);
    MUST(ht_generator_create(&generators[which], model, &desc) == HT_OK);
    batch.sequences = 1, batch.tokens = tokens, batch.cu_seqlens = starts;
    MUST(ht_generator_feed(generators[which], NULL, &batch, NULL, 0) == HT_OK);
    char path[128];
    snprintf(path, sizeof path, "%s/state%d", fuzz_root(), which);
    MUST(ht_generator_save(generators[which], 0, path) == HT_OK);
    FILE *file = fopen(path, "rb");
    MUST(file && (saved_bytes[which] = fread(saved[which], 1, MOST, file)) < MOST);
    fclose(file);
    ht_config_destroy(config);
}

/* Sizes and seals as they would be if the rest were right. */
static void seal(uint8_t *bytes, size_t size) {
    uint64_t part, whole = size;
    size_t at = HEADER + sizeof(float) * VOCAB + sizeof(int32_t) * RECENT;
    memcpy(bytes + 8, &whole, 8);
    while (at + 8 <= size) {
        memcpy(&part, bytes + at, 8);
        if (part < HTI_SEAL || part > size - at - 8) break;
        hti_seal(bytes + at + 8, (size_t)part);
        at += 8 + (size_t)part;
    }
    hti_seal(bytes, size);
}

static void go_on(ht_generator *g) {
    static const int32_t starts[] = {0, 1};
    ht_sampling how = HT_SAMPLING_INIT;
    ht_batch batch = HT_BATCH_INIT;
    int32_t token;
    how.repeat_penalty = 1.5;
    ht_status status = ht_generator_sample(g, 0, &how, &token, NULL);
    if (status != HT_OK) return;
    MUST(token >= 0 && token < VOCAB);
    batch.sequences = 1, batch.tokens = &token, batch.cu_seqlens = starts;
    fuzz_taken(ht_generator_feed(g, NULL, &batch, NULL, 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest), which = how & OPEN ? OPENED : how & FULL;
    if (!generators[which]) make(which);
    size_t count;
    uint8_t *bytes = patch_make(&count, saved[which], saved_bytes[which], rest);
    if (how & SEALED && count >= HEADER) seal(bytes, count);
    if (fuzz_taken(ht_generator_load(generators[which], 0, fuzz_file(0, bytes, count))))
        go_on(generators[which]);
    free(bytes);
    return 0;
}
