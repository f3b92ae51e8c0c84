/*
 * Images to train on that are not always the same: mirrored, left for right, and moved by a few
 * pixels; what comes in from outside is black. Which drawing of the run it is decides, so that a
 * run that goes on, and one with several ranks, sees the same images.
 */
#include "data/data.h"

#include <string.h>

#include "core/philox.h"

/* Where a model reads a pixel: lines, or squares of `patch` one after the other. */
static int64_t place(int64_t patch, int64_t width, int64_t y, int64_t x) {
    if (patch == 1) return y * width + x;
    int64_t square = y / patch * (width / patch) + x / patch;
    return square * patch * patch + y % patch * patch + x % patch;
}

int hti_images_varies(const ht_config *c) { return c->flip || c->shift > 0; }

ht_status hti_images_width(ht_data *d, const char *name, int64_t width) {
    width /= d->config.shrink;
    CHECK(d->ctx, !hti_images_varies(&d->config) || !d->image_width || d->image_width == width,
          HT_FORMAT, "%s: images %lld pixels wide, those before have %lld: set flip 0 and shift 0",
          name, (long long)width, (long long)d->image_width);
    d->image_width = width;
    return HT_OK;
}

void hti_images_vary(ht_data *d, int32_t *pixels, int64_t count, uint64_t draw) {
    const ht_config *c = &d->config;
    int64_t width = d->image_width, height = count / width, moves = 2 * c->shift + 1;
    hti_philox w =
        hti_philox_draw((uint64_t)c->seed ^ 0xF11Bu, (uint32_t)draw, (uint32_t)(draw >> 32), 0, 0);
    int flip = c->flip && w.w[0] & 1;
    int64_t right = (int64_t)(w.w[1] % (uint64_t)moves) - c->shift;
    int64_t down = (int64_t)(w.w[2] % (uint64_t)moves) - c->shift;
    memcpy(d->image, pixels, sizeof *pixels * (size_t)count);
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++) {
            int64_t from_y = y - down, from_x = x - right;
            int there = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
            if (flip) from_x = width - 1 - from_x;
            pixels[place(c->patch, width, y, x)] =
                there ? d->image[place(c->patch, width, from_y, from_x)] : 0;
        }
}
