/*
 * Images of one grey byte per pixel: a token is the pixel itself, row after row, or with `patch`
 * square after square and row after row in each. With `shrink` the image is made smaller first; the
 * configuration's length is that of what is left. Files of images have a header; without one they
 * are records of a label and as many pixels as give `length`, or CIFAR-10's binary batches (label,
 * 1,024 red, green and blue), which become grey as TensorFlow makes them.
 */
#include <string.h>

#include "data/lra/pathfinder.h"
#include "data/lra/set.h"

static const char magic[8] = {'h', 't', 'i', 'm', 'a', 'g', 'e', 's'};
enum { CIFAR_PIXELS = 1024, CIFAR_RECORD = 1 + 3 * CIFAR_PIXELS };

void hti_images_header(unsigned char out[HTI_IMAGES_HEADER], int64_t height, int64_t width,
                       int64_t classes, int64_t count) {
    memcpy(out, magic, sizeof magic);
    hti_put_number(out + 8, 1, 4);
    hti_put_number(out + 12, (uint64_t)height, 4);
    hti_put_number(out + 16, (uint64_t)width, 4);
    hti_put_number(out + 20, (uint64_t)classes, 4);
    hti_put_number(out + 24, (uint64_t)count, 8);
}

/* One file's records. */
typedef struct records {
    const char *name;
    const unsigned char *at;
    uint64_t count, bytes, pixels;
    int64_t height, width;
    int colour;
} records;

static ht_status read_header(ht_context *ctx, records *r, const unsigned char *bytes,
                             size_t count) {
    CHECK(ctx, count >= HTI_IMAGES_HEADER, HT_FORMAT, "%s ends inside its header", r->name);
    CHECK(ctx, hti_get_number(bytes + 8, 4) == 1, HT_FORMAT,
          "%s has version %llu of the format, this program knows 1", r->name,
          (unsigned long long)hti_get_number(bytes + 8, 4));
    r->height = (int64_t)hti_get_number(bytes + 12, 4),
    r->width = (int64_t)hti_get_number(bytes + 16, 4);
    r->pixels = (uint64_t)r->height * (uint64_t)r->width;
    r->count = hti_get_number(bytes + 24, 8);
    r->bytes = r->pixels + 1;
    r->at = bytes + HTI_IMAGES_HEADER;
    CHECK(ctx,
          r->pixels > 0 && r->count <= count / r->bytes &&
              count - HTI_IMAGES_HEADER == r->count * r->bytes,
          HT_FORMAT, "%s should have %llu records of %llu bytes after its header, it has %zu bytes",
          r->name, (unsigned long long)r->count, (unsigned long long)r->bytes,
          count - HTI_IMAGES_HEADER);
    return HT_OK;
}

/* Records without a header do not say: the side of a square, or 1 where there is none. */
static int64_t side_of(int64_t pixels) {
    int64_t side = 1;
    while (side * side < pixels) side++;
    return side * side == pixels ? side : 1;
}

/* Pixels of an image that become one token. */
static uint64_t area_of(const ht_data *d) {
    return (uint64_t)(d->config.shrink * d->config.shrink);
}

static ht_status find_records(const ht_data *d, records *r, const char *bytes, size_t count) {
    uint64_t length = (uint64_t)d->config.length;
    if (count >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0) {
        TRY(read_header(d->ctx, r, (const unsigned char *)bytes, count));
        CHECK(d->ctx, r->pixels / area_of(d) <= length, HT_FORMAT,
              "%s has images of %llu pixels, but length is %llu and shrink %lld", r->name,
              (unsigned long long)r->pixels, (unsigned long long)length,
              (long long)d->config.shrink);
        return HT_OK;
    }
    r->at = (const unsigned char *)bytes;
    r->pixels = length * area_of(d);
    r->colour =
        r->pixels == CIFAR_PIXELS && count % CIFAR_RECORD == 0 && count % (r->pixels + 1) != 0;
    r->height = side_of((int64_t)r->pixels), r->width = (int64_t)r->pixels / r->height;
    r->bytes = r->colour ? CIFAR_RECORD : r->pixels + 1;
    r->count = count / r->bytes;
    CHECK(d->ctx, count % r->bytes == 0, HT_FORMAT,
          "%s has %zu bytes, which is no whole number of records of a label and %llu pixels",
          r->name, count, (unsigned long long)r->pixels);
    return HT_OK;
}

/* ---- squares ---- */

static ht_status check_squares(const ht_data *d, const char *name, int64_t height, int64_t width) {
    int64_t patch = d->config.patch, shrink = d->config.shrink;
    CHECK(d->ctx, height % shrink == 0 && width % shrink == 0, HT_FORMAT,
          "%s: images of %lld x %lld pixels have no squares of shrink %lld", name,
          (long long)height, (long long)width, (long long)shrink);
    height /= shrink, width /= shrink;
    CHECK(d->ctx, height % patch == 0 && width % patch == 0, HT_FORMAT,
          "%s: images of %lld x %lld pixels have no squares of patch %lld", name, (long long)height,
          (long long)width, (long long)patch);
    return HT_OK;
}

/* The brightest of a square's pixels: thin lines stay where a mean would lose them. */
static uint8_t brightest(const uint8_t *from, int64_t width, int64_t side) {
    uint8_t most = 0;
    for (int64_t y = 0; y < side; y++)
        for (int64_t x = 0; x < side; x++)
            most = from[y * width + x] > most ? from[y * width + x] : most;
    return most;
}

/* An image as a model reads it. to[height / shrink * width / shrink]: the pixels of one square of
 * `patch` after the other, of which each is a square of `shrink` pixels of the image. */
static void cut_squares(const ht_config *c, uint8_t *to, const uint8_t *from, int64_t height,
                        int64_t width) {
    int64_t shrink = c->shrink, patch = c->patch == 1 ? width / shrink : c->patch;
    int64_t tall = c->patch == 1 ? 1 : patch; /* patch 1: lines */
    for (int64_t y = 0; y < height; y += tall * shrink)
        for (int64_t x = 0; x < width; x += patch * shrink)
            for (int64_t i = 0; i < tall; i++, to += patch) {
                const uint8_t *line = from + (y + i * shrink) * width + x;
                if (shrink == 1) memcpy(to, line, (size_t)patch);
                for (int64_t k = 0; k < patch && shrink > 1; k++)
                    to[k] = brightest(line + k * shrink, width, shrink);
            }
}

/* In float32, as tf.image.rgb_to_grayscale does it with bytes. */
static uint8_t grey(uint8_t red, uint8_t green, uint8_t blue) {
    const float unit = 1.0f / 255.0f;
    float sum = 0.2989f * ((float)red * unit) + 0.5870f * ((float)green * unit);
    sum += 0.1140f * ((float)blue * unit);
    return (uint8_t)(sum * 255.5f);
}

static ht_status add_image(ht_data *d, const records *r, uint64_t number) {
    const unsigned char *from = r->at + number * r->bytes;
    CHECK(d->ctx, from[0] < d->config.classes, HT_FORMAT,
          "%s: record %llu has label %d: classes is %lld", r->name, (unsigned long long)number + 1,
          from[0], (long long)d->config.classes);
    uint64_t tokens = r->pixels / area_of(d);
    TRY(hti_buffer_need(&d->tokens, tokens));
    uint8_t *to = (uint8_t *)d->tokens.data + d->tokens.used;
    const uint8_t *pixels = from + 1;
    uint8_t greys[CIFAR_PIXELS];
    for (int i = 0; r->colour && i < CIFAR_PIXELS; i++)
        greys[i] = grey(pixels[i], pixels[CIFAR_PIXELS + i], pixels[2 * CIFAR_PIXELS + i]);
    cut_squares(&d->config, to, r->colour ? greys : pixels, r->height, r->width);
    d->tokens.used += tokens;
    int64_t end = (int64_t)d->tokens.used;
    TRY(hti_buffer_add(&d->starts, &end, sizeof end));
    return hti_data_add_label(d, from[0]);
}

typedef struct reading {
    ht_data *data;
    const ht_data_desc *desc;
    int64_t seen;
} reading;

static ht_status read_file(void *user, const char *name, const char *bytes, size_t count) {
    reading *r = user;
    ht_data *d = r->data;
    records from = {.name = name};
    TRY(find_records(d, &from, bytes, count));
    TRY(check_squares(d, name, from.height, from.width));
    TRY(hti_images_width(d, name, from.width));
    uint64_t tokens = from.pixels / area_of(d);
    if (r->desc->holdout == 0) TRY(hti_buffer_need(&d->tokens, from.count * tokens));
    for (uint64_t i = 0; i < from.count; i++) {
        if (r->desc->holdout > 0 &&
            hti_held_out(r->seen++, r->desc->holdout) != (r->desc->part == HT_PART_VALID))
            continue;
        TRY(add_image(d, &from, i));
    }
    if ((int64_t)tokens > d->longest) d->longest = (int64_t)tokens;
    return HT_OK;
}

static ht_status check(const ht_data *d) {
    CHECK(d->ctx, d->config.task == HTI_TASK_CLASSIFY || d->config.task == HTI_TASK_DENOISE,
          HT_INVALID, "images are for task classify or denoise, got %s",
          hti_config_choice("task", (int)d->config.task));
    CHECK(d->ctx, d->config.vocab >= 256, HT_INVALID, "pixels need a vocab of 256, got %lld",
          (long long)d->config.vocab);
    return HT_OK;
}

ht_status hti_images_read(ht_data *d, const ht_data_desc *desc) {
    reading r = {d, desc, 0};
    CHECK(d->ctx, desc->path, HT_INVALID, "data from images needs a path");
    TRY(check(d));
    d->narrow = 1;
    return hti_source_read(d->ctx, desc->path, read_file, &r);
}

/* ---- Pathfinder, made in memory ---- */

/* So many images and their labels, some at a time: what is made is larger than what is kept. */
static ht_status make_all(ht_data *d, const hti_pathfinder *p, int part, int64_t side,
                          int64_t count) {
    enum { CHUNK = 1024 };
    const ht_config *c = &d->config;
    hti_pathfinder_stats stats = {0};
    uint8_t *room = hti_host_alloc(d->ctx, (size_t)(CHUNK * side * side));
    uint8_t *to = (uint8_t *)d->tokens.data;
    CHECK(d->ctx, room, HT_NOMEM, "out of memory: %d images of %lld pixels", CHUNK,
          (long long)(side * side));
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t n = count - at < CHUNK ? count - at : CHUNK;
        hti_pathfinder_batch(d->ctx, p, room, (int32_t *)(void *)d->labels.data + at,
                             (uint64_t)c->data_seed, part, at, n, &stats);
        for (int64_t i = 0; i < n; i++, to += c->length)
            cut_squares(c, to, room + i * side * side, side, side);
    }
    hti_host_free(d->ctx, room);
    return HT_OK;
}

ht_status hti_images_make(ht_data *d, const ht_data_desc *desc) {
    const ht_config *c = &d->config;
    int64_t side = side_of(c->length) * c->shrink, pixels = c->length * (int64_t)area_of(d),
            count = desc->part == HT_PART_TRAIN ? c->train_items : c->valid_items;
    hti_pathfinder *p;
    TRY(check(d));
    CHECK(d->ctx, pixels == 32 * 32 || pixels == 128 * 128, HT_INVALID,
          "Pathfinder images have 1024 or 16384 pixels, got %lld (length %lld, shrink %lld)",
          (long long)pixels, (long long)c->length, (long long)c->shrink);
    TRY(check_squares(d, "Pathfinder", side, side));
    TRY(hti_images_width(d, "Pathfinder", side));
    TRY(hti_pathfinder_create(&p, d->ctx, (int)side, (int)c->distractors));
    ht_status status = hti_buffer_need(&d->tokens, (size_t)(c->length * count));
    if (status == HT_OK) status = hti_buffer_need(&d->labels, sizeof(int32_t) * (size_t)count);
    if (status == HT_OK) status = make_all(d, p, (int)desc->part, side, count);
    hti_pathfinder_destroy(d->ctx, p);
    TRY(status);
    d->narrow = 1;
    d->items = count;
    d->longest = c->length;
    d->tokens.used = (size_t)(c->length * count);
    d->labels.used = sizeof(int32_t) * (size_t)count;
    for (int64_t i = 1; i <= count; i++) {
        int64_t end = i * c->length;
        TRY(hti_buffer_add(&d->starts, &end, sizeof end));
    }
    return HT_OK;
}

/* ---- Pathfinder as files ---- */

static ht_status write_part(hti_set *s, const hti_pathfinder *p, hti_pathfinder_stats *stats,
                            uint8_t *room, int64_t chunk, int side, int part) {
    int64_t count = s->desc->items[part], bytes = 1 + (int64_t)side * side;
    unsigned char header[HTI_IMAGES_HEADER];
    char name[32];
    hti_pack pack;
    if (count == 0) return HT_OK;
    snprintf(name, sizeof name, "%s.images", hti_set_parts[part]);
    hti_images_header(header, side, side, 2, count);
    TRY(hti_pack_open(&pack, s, name));
    ht_status status = hti_pack_put(&pack, header, sizeof header);
    for (int64_t at = 0; at < count && status == HT_OK; at += chunk) {
        int64_t n = count - at < chunk ? count - at : chunk;
        hti_pathfinder_batch(s->ctx, p, room, NULL, (uint64_t)s->desc->seed, part, at, n, stats);
        for (int64_t i = 0; i < n; i++)
            hti_set_count(s, part,
                          hti_sum_add(hti_sum_begin(room[i * bytes]), room + i * bytes + 1,
                                      (size_t)bytes - 1),
                          bytes - 1);
        status = hti_pack_put(&pack, room, (size_t)(n * bytes));
        if (status == HT_OK) status = hti_set_tell(s, n);
    }
    if (status == HT_OK) status = hti_pack_close(&pack);
    hti_pack_discard(&pack);
    return status;
}

static void average(ht_set_info *out, const hti_pathfinder_stats *s, int side) {
    double n = (double)s->images, pixels = n * side * side;
    if (s->images == 0) return;
    out->positive = (double)s->positive / n;
    out->attempts = (double)s->attempts / n;
    out->distractors = (double)s->distractors / n;
    out->nonzero = (double)s->nonzero / pixels;
    out->brightness = (double)s->brightness / pixels;
}

ht_status hti_pathfinder_set(hti_set *s, int side) {
    ht_set_desc desc = *s->desc;
    int64_t chunk = side == 32 ? 8192 : 1024; /* many a core wants many images at a time */
    hti_pathfinder_stats stats = {0};
    hti_pathfinder *p;
    if (!desc.items[0] && !desc.items[1] && !desc.items[2])
        desc.items[0] = 160000, desc.items[1] = desc.items[2] = 20000;
    hti_set own = *s;
    own.desc = &desc;
    own.all = desc.items[0] + desc.items[1] + desc.items[2];
    TRY(hti_pathfinder_create(&p, s->ctx, side, (int)desc.distractors));
    uint8_t *room = hti_host_alloc(s->ctx, (size_t)(chunk * (1 + side * side)));
    ht_status status = room ? HT_OK : hti_fail(s->ctx, HT_NOMEM, "out of memory: images");
    for (int part = 0; part < 3 && status == HT_OK; part++)
        status = write_part(&own, p, &stats, room, chunk, side, part);
    average(s->info, &stats, side);
    hti_host_free(s->ctx, room);
    hti_pathfinder_destroy(s->ctx, p);
    return status;
}
