/*
 * Plain text for language models: all files one after the other, each begun by token 0, cut into
 * windows of `length` tokens. A window's targets are its tokens moved by one. Held out are the last
 * windows.
 */
#include <string.h>

#include "data/data.h"

static ht_status add_file(void *user, const char *name, const char *bytes, size_t count) {
    ht_data *d = user;
    uint16_t start = 0;
    (void)name;
    TRY(hti_buffer_add(&d->tokens, &start, sizeof start));
    TRY(hti_buffer_need(&d->tokens, count * sizeof start));
    uint16_t *to = (uint16_t *)(void *)(d->tokens.data + d->tokens.used);
    for (size_t i = 0; i < count; i++) to[i] = (uint16_t)((unsigned char)bytes[i] + 1);
    d->tokens.used += count * sizeof start;
    return HT_OK;
}

ht_status hti_text_read(ht_data *d, const ht_data_desc *desc) {
    CHECK(d->ctx, desc->path, HT_INVALID, "data from a text needs a path");
    CHECK(d->ctx, d->config.task == HT_TASK_LANGUAGE, HT_INVALID,
          "plain text has no labels: it is for language models (task language)");
    CHECK(d->ctx, d->config.vocab >= 257, HT_INVALID, "bytes need a vocab of 257, got %lld",
          (long long)d->config.vocab);
    TRY(hti_source_read(d->ctx, desc->path, add_file, d));
    int64_t tokens = (int64_t)(d->tokens.used / sizeof(uint16_t)), length = d->config.length;
    int64_t windows = (tokens - 1 + length - 1) / length, held = 0;
    if (desc->holdout > 0) {
        held = (int64_t)(desc->holdout * (double)windows + 0.5);
        if (held < 1) held = 1;
        CHECK(d->ctx, held < windows, HT_INVALID,
              "%s is too short to hold out %.3g of it: it has %lld windows of %lld bytes",
              desc->path, desc->holdout, (long long)windows, (long long)length);
    }
    int valid = desc->holdout > 0 && desc->part == HT_PART_VALID;
    d->first_window = valid ? windows - held : 0;
    d->items = valid ? held : windows - held;
    d->longest = windows > 1 ? length : tokens - 1;
    return HT_OK;
}
