/*
 * Image: CIFAR-10 in grey, from its binary batches or from grey records of the same order. The last
 * tenth of the training images is the valid part.
 */
#include <string.h>

#include "data/lra/set.h"

enum { SIDE = 32, PIXELS = SIDE * SIDE, RECORD = 1 + PIXELS, CLASSES = 10 };

/* Adds a file's images as grey records. */
static ht_status add_file(hti_set *s, hti_buffer *out, const char *path) {
    ht_config config;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    hti_config_defaults(&config, s->ctx);
    config.format = HTI_FORMAT_IMAGES;
    config.length = PIXELS;
    config.classes = CLASSES;
    config.batch = 1;
    desc.config = &config;
    desc.path = path;
    TRY(ht_data_open(&data, s->ctx, &desc));
    ht_status status = HT_OK;
    for (int64_t i = 0; i < data->items && status == HT_OK; i++) {
        char label = (char)((const int32_t *)(const void *)data->labels.data)[i];
        status = hti_buffer_add(out, &label, 1);
        if (status == HT_OK) status = hti_buffer_add(out, data->tokens.data + i * PIXELS, PIXELS);
    }
    ht_data_close(data);
    return status;
}

static ht_status add_found(hti_set *s, hti_buffer *out, const char *name, int *found) {
    char *path;
    TRY(hti_set_find(&path, s->ctx, s->desc->source, name));
    *found = path != NULL;
    ht_status status = path ? add_file(s, out, path) : HT_OK;
    hti_host_free(s->ctx, path);
    return status;
}

/* Train: five batches or one grey file; test: one of each. */
static ht_status load(hti_set *s, hti_buffer *out, int test) {
    static const char *const batches[] = {"data_batch_1.bin", "data_batch_2.bin",
                                          "data_batch_3.bin", "data_batch_4.bin",
                                          "data_batch_5.bin"};
    const char *grey = test ? "cifar10-gray-test.bin" : "cifar10-gray-train.bin";
    int found;
    TRY(add_found(s, out, grey, &found));
    if (found) return HT_OK;
    for (int i = 0; i < (test ? 1 : 5); i++) {
        const char *name = test ? "test_batch.bin" : batches[i];
        TRY(add_found(s, out, name, &found));
        CHECK(s->ctx, found, HT_IO, "%s has neither %s nor %s", s->desc->source, name, grey);
    }
    return HT_OK;
}

static ht_status write_part(hti_set *s, int part, const char *records, int64_t count) {
    static const int64_t items[] = {45000, 5000, 10000};
    unsigned char header[HTI_IMAGES_HEADER];
    char name[32];
    hti_pack pack;
    snprintf(name, sizeof name, "%s.images", hti_set_parts[part]);
    for (int64_t i = 0; i < count; i++)
        hti_set_count(
            s, part,
            hti_sum_add(hti_sum_begin(records[i * RECORD]), records + i * RECORD + 1, PIXELS),
            PIXELS);
    TRY(hti_set_expect(s, part, items[part]));
    TRY(hti_pack_open(&pack, s, name));
    hti_images_header(header, SIDE, SIDE, CLASSES, count);
    ht_status status = hti_pack_put(&pack, header, sizeof header);
    if (status == HT_OK) status = hti_pack_put(&pack, records, (size_t)count * RECORD);
    if (status == HT_OK) status = hti_pack_close(&pack);
    hti_pack_discard(&pack);
    return status == HT_OK ? hti_set_tell(s, count) : status;
}

static ht_status import(hti_set *s, hti_buffer *train, hti_buffer *test) {
    TRY(load(s, train, 0));
    TRY(load(s, test, 1));
    int64_t all = (int64_t)(train->used / RECORD), tests = (int64_t)(test->used / RECORD);
    int64_t held = all / 10;
    s->all = all + tests;
    TRY(write_part(s, 0, train->data, all - held));
    TRY(write_part(s, 1, train->data + (all - held) * RECORD, held));
    return write_part(s, 2, test->data, tests);
}

ht_status hti_cifar10_import(hti_set *s) {
    hti_buffer train = {.ctx = s->ctx}, test = {.ctx = s->ctx};
    ht_status status = import(s, &train, &test);
    hti_buffer_free(&train);
    hti_buffer_free(&test);
    return status;
}
