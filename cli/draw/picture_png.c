/*
 * The list of a picture as pixels, and pixels as a PNG file through libpng.
 */
#include "draw/picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef CLI_PNG
#include <png.h>

bool picture_has_png(void) { return true; }

bool picture_png(uint8_t **out, size_t *bytes, const uint8_t *pixels, int columns, int rows) {
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)columns,
                       .height = (png_uint_32)rows,
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    *out = malloc(size);
    if (*out && png_image_write_to_memory(&image, *out, &size, 0, pixels, 0, NULL)) {
        *bytes = size;
        return true;
    }
    free(*out);
    *out = NULL;
    return false;
}
#else
bool picture_has_png(void) { return false; }

bool picture_png(uint8_t **out, size_t *bytes, const uint8_t *pixels, int columns, int rows) {
    (void)out, (void)bytes, (void)pixels, (void)columns, (void)rows;
    return false;
}
#endif

/* ---- pixels ------------------------------------------------------------------------------ */

typedef struct canvas {
    uint8_t *at; /* [height, width, 3] */
    int width, height;
} canvas;

static int inside(double x, int most) {
    double r = floor(x + 0.5);
    return r < 0 ? 0 : r > most ? most : (int)r;
}

/* The colour over what is there, in this share. */
static void blend(canvas *c, int x, int y, uint32_t colour, double share) {
    uint8_t *p = c->at + ((size_t)y * (size_t)c->width + (size_t)x) * 3;
    for (int k = 0; k < 3; k++) {
        double new = (double)(colour >> (16 - 8 * k) & 255);
        p[k] = (uint8_t)(p[k] + (new - p[k]) * share + 0.5);
    }
}

static void draw_rect(canvas *c, const picture_item *i) {
    int x0 = inside(i->at[0], c->width), x1 = inside(i->at[0] + i->at[2], c->width);
    int y0 = inside(i->at[1], c->height), y1 = inside(i->at[1] + i->at[3], c->height);
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) blend(c, x, y, i->colour, 1);
}

/* Every pixel by its distance from the line: softer at the edge, so that slopes look smooth. */
static void draw_line(canvas *c, const double a[4], double thick, uint32_t colour) {
    double dx = a[2] - a[0], dy = a[3] - a[1], square = dx * dx + dy * dy, pad = thick / 2 + 1;
    int x0 = inside(fmin(a[0], a[2]) - pad - 0.5, c->width);
    int x1 = inside(fmax(a[0], a[2]) + pad + 0.5, c->width);
    int y0 = inside(fmin(a[1], a[3]) - pad - 0.5, c->height);
    int y1 = inside(fmax(a[1], a[3]) + pad + 0.5, c->height);
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) {
            double px = x + 0.5 - a[0], py = y + 0.5 - a[1];
            double t = square > 0 ? (px * dx + py * dy) / square : 0;
            t = t < 0 ? 0 : t > 1 ? 1 : t;
            double share = thick / 2 + 0.5 - hypot(px - t * dx, py - t * dy);
            if (share > 0) blend(c, x, y, colour, fmin(share, fmin(thick, 1)));
        }
}

/* Letters are strokes on a grid; a unit of the grid is a ninth of the size. */
static void draw_text(canvas *c, const picture_item *i) {
    double unit = i->at[2] / 9, advance = 5.6 * unit;
    double x = i->at[0] - advance * (double)strlen(i->text) * i->at[3] / 2, y = i->at[1];
    for (const char *letter = i->text; *letter; letter++, x += advance) {
        double last[4] = {0};
        bool down = false;
        for (const char *s = picture_strokes(*letter); *s; s++) {
            if (*s == ' ') {
                down = false;
                continue;
            }
            last[2] = x + unit * (s[0] - '0');
            last[3] = y + unit * (s[1] - '6');
            if (!down) last[0] = last[2], last[1] = last[3];
            draw_line(c, last, fmax(1, 0.9 * unit), i->colour);
            last[0] = last[2], last[1] = last[3];
            down = true;
            s++;
        }
    }
}

static void draw_image(canvas *c, const picture_item *i) {
    int x0 = inside(i->at[0], c->width), x1 = inside(i->at[0] + i->at[2], c->width);
    int y0 = inside(i->at[1], c->height), y1 = inside(i->at[1] + i->at[3], c->height);
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) {
            int column = (int)((x + 0.5 - i->at[0]) / i->at[2] * i->columns);
            int row = (int)((y + 0.5 - i->at[1]) / i->at[3] * i->rows);
            if (column < 0 || column >= i->columns || row < 0 || row >= i->rows) continue;
            memcpy(c->at + ((size_t)y * (size_t)c->width + (size_t)x) * 3,
                   i->pixels + ((size_t)row * (size_t)i->columns + (size_t)column) * 3, 3);
        }
}

uint8_t *picture_pixels(const picture *p) {
    size_t bytes = (size_t)p->width * (size_t)p->height * 3;
    canvas c = {malloc(bytes), p->width, p->height};
    if (!c.at) return NULL;
    memset(c.at, 255, bytes);
    for (size_t n = 0; n < p->count; n++) {
        const picture_item *i = &p->items[n];
        switch (i->kind) {
        case PICTURE_RECT: draw_rect(&c, i); break;
        case PICTURE_LINE: draw_line(&c, i->at, i->at[4], i->colour); break;
        case PICTURE_TEXT: draw_text(&c, i); break;
        case PICTURE_IMAGE: draw_image(&c, i); break;
        }
    }
    return c.at;
}
