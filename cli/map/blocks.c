/*
 * The hierarchy of a length and a block: which level a pair of rows meets at, as a picture, and
 * what each level costs, as a table.
 */
#include "base/count.h"
#include "base/json.h"
#include "map/map.h"

#include <inttypes.h>
#include <stdlib.h>

#define SIDE 640        /* pixels of the square */
#define EDGE 40         /* around it */
#define LEGEND 210      /* at its right */
#define MOST_BLOCKS 512 /* above, blocks are smaller than a pixel or two: drawn pixel by pixel */

typedef struct map_shape {
    int64_t length, block;
    int levels, causal;
    ht_query query;
} map_shape;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- the parts of a level: rectangles of rows x rows ---------------------------------------- */

typedef struct part {
    int64_t row, column, rows, columns;
} part;
typedef void part_fn(void *user, const map_shape *s, int level, const part *p);

static void emit(part_fn *fn, void *user, const map_shape *s, int level, int64_t row,
                 int64_t column, int64_t size) {
    part p = {row, column, least(size, s->length - row), least(size, s->length - column)};
    if (p.rows > 0 && p.columns > 0) fn(user, s, level, &p);
}

/* Level 0: own block and neighbours, whole. Above: three quarters of each neighbour, the fourth one
 * belongs to the level below. Causal: the left neighbour alone (and the own block's triangle). */
static void each_part(part_fn *fn, void *user, const map_shape *s, int level) {
    int64_t size = s->block << level, half = size / 2;
    for (int64_t row = 0; row < s->length; row += size) {
        for (int64_t column = row - size; column <= row + size; column += size) {
            if (column < 0 || column >= s->length || (s->causal && column > row)) continue;
            if (level == 0) emit(fn, user, s, level, row, column, size);
            if (level == 0 || column == row) continue;
            bool right = column > row;
            emit(fn, user, s, level, row, column + (right ? half : 0), half);
            emit(fn, user, s, level, row + half, column + (right ? half : 0), half);
            emit(fn, user, s, level, row + (right ? 0 : half), column + (right ? 0 : half), half);
        }
    }
}

/* ---- the picture ------------------------------------------------------------------------- */

typedef struct drawing {
    picture *p;
    double scale;
} drawing;

/* The staircase of a causal block: white where a later row would be seen. */
static void draw_triangle(const drawing *d, const part *p) {
    for (int64_t i = 0; i < p->rows; i++)
        if (i + 1 < p->columns)
            picture_rect(d->p, EDGE + d->scale * (double)(p->column + i + 1),
                         EDGE + d->scale * (double)(p->row + i),
                         d->scale * (double)(p->columns - i - 1), d->scale, 0xffffff);
}

/* Lines between the products of a part: clusters of keys, and clusters or rows of queries. */
static void draw_grid(const drawing *d, const map_shape *s, int level, const part *p) {
    int64_t columns = (int64_t)1 << level, rows = s->query == HT_QUERY_FINE ? 1 : columns;
    double x = EDGE + d->scale * (double)p->column, y = EDGE + d->scale * (double)p->row;
    double w = d->scale * (double)p->columns, h = d->scale * (double)p->rows;
    if (d->scale * (double)columns >= 4)
        for (int64_t i = columns; i < p->columns; i += columns)
            picture_line(d->p, x + d->scale * (double)i, y, x + d->scale * (double)i, y + h, 0.4,
                         0xffffff);
    if (d->scale * (double)rows >= 4)
        for (int64_t i = rows; i < p->rows; i += rows)
            picture_line(d->p, x, y + d->scale * (double)i, x + w, y + d->scale * (double)i, 0.4,
                         0xffffff);
}

static void draw_part(void *user, const map_shape *s, int level, const part *p) {
    const drawing *d = user;
    double gap = d->scale * (double)(s->block << level) > 6 ? 0.5 : 0;
    picture_rect(d->p, EDGE + d->scale * (double)p->column, EDGE + d->scale * (double)p->row,
                 d->scale * (double)p->columns - gap, d->scale * (double)p->rows - gap,
                 picture_level(level));
    draw_grid(d, s, level, p);
    if (level == 0 && s->causal && p->row == p->column) draw_triangle(d, p);
}

/* The level of a pair, from the definition. */
static int level_of(const map_shape *s, int64_t i, int64_t j) {
    int level = 0;
    while (llabs(i / (s->block << level) - j / (s->block << level)) > 1) level++;
    return level;
}

/* Many blocks: the level of every pixel's middle. */
static void draw_pixels(const drawing *d, const map_shape *s) {
    uint8_t *pixels = malloc((size_t)SIDE * SIDE * 3), *at = pixels;
    if (!pixels) {
        d->p->failed = true;
        return;
    }
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++, at += 3) {
            int64_t i = (int64_t)((y + 0.5) / d->scale), j = (int64_t)((x + 0.5) / d->scale);
            uint32_t colour = s->causal && j > i ? 0xffffff : picture_level(level_of(s, i, j));
            for (int k = 0; k < 3; k++) at[k] = (uint8_t)(colour >> (16 - 8 * k));
        }
    picture_image(d->p, EDGE, EDGE, SIDE, SIDE, SIDE, SIDE, pixels);
    free(pixels);
}

static void draw_legend(const drawing *d, const map_shape *s) {
    double x = EDGE + SIDE + 24, y = EDGE + 14;
    char text[64];
    snprintf(text, sizeof text, "length %" PRId64 ", block %" PRId64, s->length, s->block);
    picture_text(d->p, x, y, 13, 0, 0x222222, text);
    snprintf(text, sizeof text, "%squery %s", s->causal ? "causal, " : "", cli_queries[s->query]);
    picture_text(d->p, x, y + 20, 13, 0, 0x222222, text);
    for (int l = 0; l < s->levels; l++) {
        double line = y + 36 + 24 * l;
        if (line + 16 > EDGE + SIDE) break;
        picture_rect(d->p, x, line, 16, 16, picture_level(l));
        if (l == 0)
            snprintf(text, sizeof text, "level 0: exact");
        else
            snprintf(text, sizeof text, "level %d: %" PRId64 " rows each", l, (int64_t)1 << l);
        picture_text(d->p, x + 24, line + 13, 12, 0, 0x222222, text);
    }
    picture_text(d->p, EDGE + SIDE / 2.0, EDGE - 14, 13, 1, 0x222222, "keys");
    picture_text(d->p, EDGE, EDGE + SIDE + 20, 13, 0, 0x222222,
                 "queries from top to bottom, every cell one product");
}

static bool draw(const map_shape *s, const char *path, cli_error *error) {
    drawing d = {picture_create(SIDE + 2 * EDGE + LEGEND, SIDE + 2 * EDGE,
                                "Which level a query and a key meet at"),
                 (double)SIDE / (double)s->length};
    if (!d.p) return cli_fail(error, "out of memory");
    picture_rect(d.p, EDGE - 1, EDGE - 1, SIDE + 2, SIDE + 2, 0xdddddd);
    picture_rect(d.p, EDGE, EDGE, SIDE, SIDE, 0xffffff);
    if (s->length / s->block > MOST_BLOCKS) {
        draw_pixels(&d, s);
    } else {
        for (int l = 0; l < s->levels; l++) each_part(draw_part, &d, s, l);
    }
    draw_legend(&d, s);
    bool good = picture_save(d.p, path, error);
    picture_destroy(d.p);
    return good;
}

/* ---- the table --------------------------------------------------------------------------- */

/* Pairs of rows that a part covers. */
static void add_pairs(void *user, const map_shape *s, int level, const part *p) {
    double rows = (double)p->rows, *sum = user;
    bool triangle = level == 0 && s->causal && p->row == p->column;
    *sum += triangle ? rows * (rows + 1) / 2 : rows * (double)p->columns;
}

static double pairs_of(const map_shape *s, int level) {
    double sum = 0;
    each_part(add_pairs, &sum, s, level);
    return sum;
}

static void print_json(const map_shape *s, const char *out) {
    json_writer json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_text(&json, "map", "blocks");
    json_int(&json, "length", s->length);
    json_int(&json, "block", s->block);
    json_bool(&json, "causal", s->causal);
    json_text(&json, "query", cli_queries[s->query]);
    json_open(&json, "levels", '[');
    for (int l = 0; l < s->levels; l++) {
        json_open(&json, NULL, '{');
        json_int(&json, "level", l);
        json_int(&json, "rows_per_cluster", (int64_t)1 << l);
        json_int(&json, "products",
                 (int64_t)count_level(s->query, s->causal, s->block, s->length, l));
        json_int(&json, "pairs", (int64_t)pairs_of(s, l));
        json_close(&json, '}');
    }
    json_close(&json, ']');
    if (out) json_text(&json, "out", out);
    json_close(&json, '}');
    putchar('\n');
}

/* Short sequences: the level of every pair, as digits. */
static void print_digits(const map_shape *s) {
    for (int64_t i = 0; i < s->length; i++) {
        for (int64_t j = 0; j < s->length; j++)
            putchar(s->causal && j > i ? '.' : '0' + level_of(s, i, j) % 10);
        putchar('\n');
    }
}

static void print_table(const map_shape *s, const char *out) {
    double all = 0, products = 0, rows = (double)s->length;
    double full = s->causal ? rows * (rows + 1) / 2 : rows * rows;
    printf("length %" PRId64 ", block %" PRId64 "%s, query %s\n", s->length, s->block,
           s->causal ? ", causal" : "", cli_queries[s->query]);
    cli_head("%5s  %12s  %14s  %16s  %7s", "level", "rows/cluster", "products", "pairs of rows",
             "share");
    for (int l = 0; l < s->levels; l++) {
        double n = count_level(s->query, s->causal, s->block, s->length, l), pairs = pairs_of(s, l);
        cli_row("%5d  %12" PRId64 "  %14.0f  %16.0f  %6.2f%%", l, (int64_t)1 << l, n, pairs,
                100 * pairs / full);
        all += pairs;
        products += n;
    }
    cli_row("%5s  %12s  %14.0f  %16.0f  %6.2f%%", "all", "", products, all, 100 * all / full);
    cli_line("%.4g products per row; full attention needs %.0f in all, %.3g times as many",
             products / rows, full, full / products);
    if (s->length <= 32 && !out) print_digits(s);
    if (out && !cli_quiet()) printf("written: %s\n", out);
}

bool map_blocks(const map_values *v, int *code, cli_error *error) {
    map_shape s = {.length = v->length,
                   .block = v->block,
                   .causal = v->causal,
                   .query = cli_query(v->query, v->causal, 0),
                   .levels = 1};
    while (s.block << s.levels < s.length) s.levels++;
    *code = CLI_FAILED;
    if (v->out && !draw(&s, v->out, error)) return false;
    if (v->json)
        print_json(&s, v->out);
    else
        print_table(&s, v->out);
    return true;
}
