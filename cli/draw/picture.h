/*
 * Small pictures: rectangles, lines, words and blocks of pixels, kept in a list and then written as
 * SVG or, where the program was built with libpng, as PNG. One unit is one pixel.
 */
#ifndef CLI_DRAW_PICTURE_H
#define CLI_DRAW_PICTURE_H

#include "base/say.h"

#include <stdint.h>

typedef struct picture picture;

/* NULL: out of memory. A picture starts white. */
picture *picture_create(int width, int height, const char *title);
void picture_destroy(picture *p);

/* Colours are 0xRRGGBB. */
void picture_rect(picture *p, double x, double y, double w, double h, uint32_t colour);
void picture_line(picture *p, double x0, double y0, double x1, double y1, double thick,
                  uint32_t colour);
/* The baseline is at y; anchor 0: x is where it begins, 1: its middle, 2: its end. */
void picture_text(picture *p, double x, double y, double size, int anchor, uint32_t colour,
                  const char *text);
/* pixels [rows, columns, 3], copied; every pixel becomes a sharp rectangle. */
void picture_image(picture *p, double x, double y, double w, double h, int columns, int rows,
                   const uint8_t *pixels);

/* By the ending of the name: .svg, or .png. Whole or not there. */
bool picture_save(const picture *p, const char *path, cli_error *error);
/* Can a file of this name be written by picture_save? Asked before the work is done. */
bool picture_name(const char *path, cli_error *error);

/* The colour of a level of the hierarchy. */
uint32_t picture_level(int level);

/* ---- inside ---- */

typedef enum picture_kind { PICTURE_RECT, PICTURE_LINE, PICTURE_TEXT, PICTURE_IMAGE } picture_kind;
typedef struct picture_item {
    picture_kind kind;
    double at[5]; /* x, y, w, h; x0, y0, x1, y1, thick; x, y, size, anchor */
    uint32_t colour;
    char *text;      /* of a text */
    uint8_t *pixels; /* of an image, [rows, columns, 3] */
    int columns, rows;
} picture_item;
struct picture {
    int width, height;
    char *title;
    picture_item *items;
    size_t count, room;
    bool failed; /* out of memory on the way */
};

/* Pixels [rows, columns, 3] as a PNG file in memory, from malloc; false where there is no libpng.
 */
bool picture_png(uint8_t **out, size_t *bytes, const uint8_t *pixels, int columns, int rows);
bool picture_has_png(void);
/* The whole picture as pixels [height, width, 3], from malloc; NULL: out of memory. */
uint8_t *picture_pixels(const picture *p);
/* Strokes of a letter: pairs of digits are points on a grid of 5 x 9 (the baseline is line 6),
 * spaces lift the pen. */
const char *picture_strokes(char letter);

/* An image as "data:image/...;base64,...", to `out`. Without libpng it is a BMP. */
bool picture_data_uri(FILE *out, const uint8_t *pixels, int columns, int rows);
/* Text with <, >, & and quotes spelled as XML wants them. */
void picture_escaped(FILE *out, const char *text);

#endif
