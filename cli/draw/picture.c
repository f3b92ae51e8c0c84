/*
 * The list of a picture, and the list as SVG.
 */
#include "draw/picture.h"

#include "base/save.h"

#include <stdlib.h>
#include <string.h>

/* Near is cool, far is warm; after eight levels again. */
uint32_t picture_level(int level) {
    static const uint32_t colours[] = {0x2f6fb7, 0x3fa66b, 0xf0b429, 0xe4703a,
                                       0xc43d5a, 0x7d4aa8, 0x4a4e69, 0x9aa5b1};
    return colours[level % 8];
}

picture *picture_create(int width, int height, const char *title) {
    picture *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->width = width;
    p->height = height;
    p->title = strdup(title);
    p->failed = !p->title;
    return p;
}

void picture_destroy(picture *p) {
    if (!p) return;
    for (size_t i = 0; i < p->count; i++) {
        free(p->items[i].text);
        free(p->items[i].pixels);
    }
    free(p->items);
    free(p->title);
    free(p);
}

/* A new item at the end of the list; NULL: out of memory, which save will say. */
static picture_item *add(picture *p, picture_kind kind, uint32_t colour) {
    if (p->count == p->room) {
        size_t room = p->room ? 2 * p->room : 256;
        picture_item *more = realloc(p->items, room * sizeof *more);
        if (!more) {
            p->failed = true;
            return NULL;
        }
        p->items = more;
        p->room = room;
    }
    picture_item *item = &p->items[p->count++];
    *item = (picture_item){.kind = kind, .colour = colour};
    return item;
}

void picture_rect(picture *p, double x, double y, double w, double h, uint32_t colour) {
    picture_item *i = add(p, PICTURE_RECT, colour);
    if (i) i->at[0] = x, i->at[1] = y, i->at[2] = w, i->at[3] = h;
}

void picture_line(picture *p, double x0, double y0, double x1, double y1, double thick,
                  uint32_t colour) {
    picture_item *i = add(p, PICTURE_LINE, colour);
    if (i) i->at[0] = x0, i->at[1] = y0, i->at[2] = x1, i->at[3] = y1, i->at[4] = thick;
}

void picture_text(picture *p, double x, double y, double size, int anchor, uint32_t colour,
                  const char *text) {
    picture_item *i = add(p, PICTURE_TEXT, colour);
    if (!i) return;
    i->at[0] = x, i->at[1] = y, i->at[2] = size, i->at[3] = anchor;
    i->text = strdup(text);
    if (!i->text) p->failed = true, p->count--;
}

void picture_image(picture *p, double x, double y, double w, double h, int columns, int rows,
                   const uint8_t *pixels) {
    picture_item *i = add(p, PICTURE_IMAGE, 0);
    size_t bytes = (size_t)columns * (size_t)rows * 3;
    if (!i) return;
    i->at[0] = x, i->at[1] = y, i->at[2] = w, i->at[3] = h;
    i->columns = columns;
    i->rows = rows;
    i->pixels = malloc(bytes);
    if (i->pixels)
        memcpy(i->pixels, pixels, bytes);
    else
        p->failed = true, p->count--;
}

/* ---- SVG --------------------------------------------------------------------------------- */

void picture_escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc((unsigned char)*text < 32 ? ' ' : *text, out);
        }
    }
}

static void base64(FILE *out, const uint8_t *data, size_t bytes) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i += 3) {
        size_t n = bytes - i < 3 ? bytes - i : 3;
        uint32_t word = (uint32_t)data[i] << 16;
        if (n > 1) word |= (uint32_t)data[i + 1] << 8;
        if (n > 2) word |= data[i + 2];
        fputc(letters[word >> 18], out);
        fputc(letters[word >> 12 & 63], out);
        fputc(n > 1 ? letters[word >> 6 & 63] : '=', out);
        fputc(n > 2 ? letters[word & 63] : '=', out);
    }
}

static void put32(uint8_t *at, size_t x) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(x >> (8 * i));
}

/* The oldest format that every browser draws: a header, then rows from the bottom up, blue first.
 */
static bool bmp(uint8_t **out, size_t *bytes, const uint8_t *pixels, int columns, int rows) {
    size_t row = ((size_t)columns * 3 + 3) / 4 * 4, size = 54 + row * (size_t)rows;
    uint8_t *b = calloc(1, size);
    if (!b) return false;
    memcpy(b, "BM", 2);
    put32(b + 2, size);
    put32(b + 10, 54);
    put32(b + 14, 40);
    put32(b + 18, (size_t)columns);
    put32(b + 22, (size_t)rows);
    b[26] = 1;
    b[28] = 24;
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < columns; x++)
            for (int k = 0; k < 3; k++)
                b[54 + row * (size_t)(rows - 1 - y) + (size_t)x * 3 + (size_t)k] =
                    pixels[((size_t)y * (size_t)columns + (size_t)x) * 3 + (size_t)(2 - k)];
    *out = b;
    *bytes = size;
    return true;
}

bool picture_data_uri(FILE *out, const uint8_t *pixels, int columns, int rows) {
    uint8_t *file = NULL;
    size_t bytes = 0;
    bool png = picture_has_png();
    if (png ? !picture_png(&file, &bytes, pixels, columns, rows)
            : !bmp(&file, &bytes, pixels, columns, rows))
        return false;
    fprintf(out, "data:image/%s;base64,", png ? "png" : "bmp");
    base64(out, file, bytes);
    free(file);
    return true;
}

static bool svg_item(FILE *f, const picture_item *i) {
    static const char *const anchors[] = {"start", "middle", "end"};
    const double *a = i->at;
    switch (i->kind) {
    case PICTURE_RECT:
        fprintf(f, "<rect x=\"%.6g\" y=\"%.6g\" width=\"%.6g\" height=\"%.6g\"/>\n", a[0], a[1],
                a[2], a[3]);
        break;
    case PICTURE_LINE: break; /* svg_lines */
    case PICTURE_TEXT:
        fprintf(f, "<text x=\"%.6g\" y=\"%.6g\" font-size=\"%.3g\" text-anchor=\"%s\">", a[0], a[1],
                a[2], anchors[(int)a[3]]);
        picture_escaped(f, i->text);
        fputs("</text>\n", f);
        break;
    case PICTURE_IMAGE:
        fprintf(f,
                "<image x=\"%.6g\" y=\"%.6g\" width=\"%.6g\" height=\"%.6g\" "
                "preserveAspectRatio=\"none\" style=\"image-rendering:pixelated\" href=\"",
                a[0], a[1], a[2], a[3]);
        if (!picture_data_uri(f, i->pixels, i->columns, i->rows)) return false;
        fputs("\"/>\n", f);
        break;
    }
    return true;
}

/* Lines of one colour and thickness that follow each other are one path; returns how many. */
static size_t svg_lines(FILE *f, const picture_item *i, size_t most) {
    size_t n = 0;
    fputs("<path d=\"", f);
    while (n < most && i[n].kind == PICTURE_LINE && i[n].colour == i->colour &&
           i[n].at[4] == i->at[4]) {
        const double *a = i[n++].at;
        fprintf(f, "M%.6g %.6gL%.6g %.6g", a[0], a[1], a[2], a[3]);
    }
    fprintf(f, "\" stroke=\"#%06x\" stroke-width=\"%.3g\" fill=\"none\"/>\n", (unsigned)i->colour,
            i->at[4]);
    return n;
}

/* Items of one colour that follow each other share a group. */
static bool write_svg(const picture *p, FILE *f) {
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" role=\"img\">\n<title>",
            p->width, p->height, p->width, p->height);
    picture_escaped(f, p->title);
    fprintf(f, "</title>\n<g fill=\"#ffffff\">\n<rect width=\"%d\" height=\"%d\"/>\n", p->width,
            p->height);
    uint32_t colour = 0xffffff;
    bool good = true;
    for (size_t i = 0; i < p->count && good;) {
        const picture_item *item = &p->items[i];
        if (item->kind == PICTURE_LINE) {
            i += svg_lines(f, item, p->count - i);
            continue;
        }
        if (item->colour != colour && item->kind != PICTURE_IMAGE) {
            colour = item->colour;
            fprintf(f, "</g>\n<g fill=\"#%06x\">\n", (unsigned)colour);
        }
        good = svg_item(f, item);
        i++;
    }
    fputs("</g>\n</svg>\n", f);
    return good;
}

/* ---- files ------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *ending) {
    size_t n = strlen(path), m = strlen(ending);
    return n > m && strcmp(path + n - m, ending) == 0;
}

bool picture_name(const char *path, cli_error *error) {
    if (ends_in(path, ".svg")) return true;
    if (!ends_in(path, ".png"))
        return cli_fail(error, "--out must end in .svg or .png, got '%s'", path);
    return picture_has_png() ||
           cli_fail(error,
                    "%s cannot be written: this program was built without libpng; name it .svg, "
                    "or build it again where libpng-dev is installed",
                    path);
}

static bool write_png(const picture *p, save_file *save, cli_error *error) {
    uint8_t *pixels = picture_pixels(p), *file = NULL;
    size_t bytes = 0;
    bool good = pixels && picture_png(&file, &bytes, pixels, p->width, p->height);
    if (!good) cli_fail(error, "out of memory");
    good = good && save_write(save, file, bytes, error);
    free(pixels);
    free(file);
    return good;
}

bool picture_save(const picture *p, const char *path, cli_error *error) {
    save_file save = {0};
    if (p->failed) return cli_fail(error, "out of memory");
    bool good = picture_name(path, error) && save_open(&save, path, error);
    if (good && ends_in(path, ".png"))
        good = write_png(p, &save, error);
    else if (good)
        good = write_svg(p, save.file) || cli_fail(error, "out of memory");
    good = good && save_finish(&save, error) && save_commit(&save, error);
    save_discard(&save);
    return good;
}
