/*
 * Grey pictures: as PNG files, and as letters for a terminal.
 */
#ifndef CLI_DRAW_GREY_H
#define CLI_DRAW_GREY_H

#include "base/say.h"

#include <stdint.h>

/* pixels [height, width], each drawn as a square of scale x scale. */
bool grey_write(const char *path, const uint8_t *pixels, int height, int width, int scale,
                cli_error *error);

/* Two rows of pixels per line, darker to brighter letters; at most 128 columns. */
void grey_print(FILE *out, const uint8_t *pixels, int height, int width);

#endif
