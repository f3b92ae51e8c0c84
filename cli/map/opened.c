/*
 * Which clusters the rows of a head open: how each pair of rows meets as a picture, how much takes
 * part at each level as a table, and one row's choice in words.
 */
#include "base/json.h"
#include "map/map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST 8192 /* rows; the matrix has their square */
#define SIDE 640
#define EDGE 40
#define LEGEND 220
#define OPENED_COLOUR 0x111111
enum { LEVELS = 24 };

/* Sums over all rows. */
typedef struct sums {
    double clusters[LEVELS]; /* that take part; of level 0 rows */
    double opened[LEVELS];   /* clusters of a level that were opened */
    double rows;             /* of opened clusters, that take part one by one */
} sums;

typedef struct opened_map {
    const map_input *in;
    int8_t *meet; /* [length, length], see ht_attention_pairs */
    int64_t row;
    int levels, leaf; /* leaf: the level whose clusters are opened to their rows */
    sums all;
} opened_map;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The level that rows i and j meet at where nothing is opened. */
static int level_of(const opened_map *m, int64_t i, int64_t j) {
    int level = 0;
    while (llabs(i / (m->in->block << level) - j / (m->in->block << level)) > 1) level++;
    return level;
}

/* Did row i open the cluster of this level that holds row j? Then they meet below it; down to the
 * leaves, whose rows meet i one by one. */
static bool opens(const opened_map *m, int level, int64_t i, int64_t j) {
    int how = m->meet[i * m->in->length + j], from = level_of(m, i, j);
    if (how < 0 || level > from || level == 0) return false;
    int to = how != HT_OPENED ? how + 1 : from < m->leaf ? from : m->leaf;
    return level >= to;
}

/* The first row of a cluster that row i sees, or -1. */
static int64_t seen_in(const opened_map *m, int level, int64_t i, int64_t c) {
    int64_t n = m->in->length, end = least((c + 1) << level, n);
    for (int64_t j = c << level; j < end; j++)
        if (m->meet[i * n + j] >= 0) return j;
    return -1;
}

static void count_row(sums *s, const opened_map *m, int64_t i) {
    int64_t n = m->in->length;
    for (int64_t j = 0; j < n; j++) s->rows += m->meet[i * n + j] == HT_OPENED;
    for (int level = 0; level < m->levels; level++) {
        for (int64_t c = 0; c << level < n; c++) {
            int64_t j = seen_in(m, level, i, c);
            if (j < 0) continue;
            s->clusters[level] += m->meet[i * n + j] == level;
            s->opened[level] += opens(m, level, i, j);
        }
    }
}

/* ---- the picture ------------------------------------------------------------------------- */

/* Of the pairs of a pixel an opened one is shown, else the first. */
static uint32_t colour_of(const opened_map *m, int64_t row, int64_t column, int64_t step) {
    int64_t n = m->in->length;
    int how = m->meet[row * n + column];
    for (int64_t i = row; i < least(row + step, n); i++)
        for (int64_t j = column; j < least(column + step, n); j++)
            if (m->meet[i * n + j] == HT_OPENED) return OPENED_COLOUR;
    return how < 0 ? 0xffffff : picture_level(how);
}

static void draw_pairs(picture *p, const opened_map *m) {
    int64_t n = m->in->length, step = (n + 1023) / 1024, side = (n + step - 1) / step;
    uint8_t *pixels = malloc((size_t)(side * side) * 3), *at = pixels;
    if (!pixels) {
        p->failed = true;
        return;
    }
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j < side; j++, at += 3) {
            uint32_t colour = colour_of(m, i * step, j * step, step);
            for (int k = 0; k < 3; k++) at[k] = (uint8_t)(colour >> (16 - 8 * k));
        }
    picture_rect(p, EDGE - 1, EDGE - 1, SIDE + 2, SIDE + 2, 0x999999);
    picture_image(p, EDGE, EDGE, SIDE, SIDE, (int)side, (int)side, pixels);
    free(pixels);
}

static void draw_legend(picture *p, const opened_map *m) {
    const map_input *in = m->in;
    double x = EDGE + SIDE + 24, y = EDGE + 14;
    char text[128];
    snprintf(text, sizeof text, "block %" PRId64 ", open %" PRId64, in->block, in->open);
    picture_text(p, x, y, 13, 0, 0x222222, text);
    for (int k = -1; k < m->levels; k++) {
        double line = y + 40 + 24 * k;
        picture_rect(p, x, line, 16, 16, k < 0 ? OPENED_COLOUR : picture_level(k));
        if (k <= 0)
            snprintf(text, sizeof text, k < 0 ? "opened: row by row" : "level 0: row by row");
        else
            snprintf(text, sizeof text, "level %d: %" PRId64 " rows as one", k, (int64_t)1 << k);
        picture_text(p, x + 24, line + 13, 12, 0, 0x222222, text);
    }
    picture_text(p, EDGE + SIDE / 2.0, EDGE - 14, 13, 1, 0x222222, "keys");
    snprintf(text, sizeof text, "queries from top to bottom: %.80s", in->about);
    picture_text(p, EDGE, EDGE + SIDE + 20, 13, 0, 0x222222, text);
}

static bool draw(const opened_map *m, const char *path, cli_error *error) {
    picture *p =
        picture_create(SIDE + 2 * EDGE + LEGEND, SIDE + 2 * EDGE, "Which clusters the rows open");
    if (!p) return cli_fail(error, "out of memory");
    draw_pairs(p, m);
    draw_legend(p, m);
    bool good = picture_save(p, path, error);
    picture_destroy(p);
    return good;
}

/* ---- output ------------------------------------------------------------------------------ */

static void print_choice(const opened_map *m) {
    int64_t n = m->in->length;
    printf("row %" PRId64 " opens\n", m->row);
    for (int level = m->levels - 1; level > 0; level--) {
        int count = 0;
        for (int64_t c = 0; c << level < n; c++) {
            int64_t j = seen_in(m, level, m->row, c);
            if (j < 0 || !opens(m, level, m->row, j)) continue;
            if (count++ == 0) printf("  level %d, rows", level);
            printf(" %" PRId64 "-%" PRId64, c << level, least((c + 1) << level, n) - 1);
        }
        if (count > 0) putchar('\n');
    }
}

static void print_table(const opened_map *m, const map_values *v) {
    const map_input *in = m->in;
    double rows = (double)in->length;
    cli_line("%s, head %" PRId64 ": %" PRId64 " rows%s, block %" PRId64 ", open %" PRId64,
             in->about, v->head, in->length, in->causal ? ", causal" : "", in->block, in->open);
    cli_head("%5s  %12s  %18s  %14s", "level", "rows/cluster", "take part per row",
             "opened per row");
    for (int level = 0; level < m->levels; level++)
        cli_row("%5d  %12" PRId64 "  %18.2f  %14.2f", level, (int64_t)1 << level,
                m->all.clusters[level] / rows, m->all.opened[level] / rows);
    cli_line("%.2f rows of opened clusters take part one by one, per row", m->all.rows / rows);
    print_choice(m);
    if (v->out && !cli_quiet()) printf("written: %s\n", v->out);
}

static void json_choice(const opened_map *m, json_writer *json) {
    json_open(json, "opened", '[');
    for (int level = m->levels - 1; level > 0; level--)
        for (int64_t c = 0; c << level < m->in->length; c++) {
            int64_t j = seen_in(m, level, m->row, c);
            if (j < 0 || !opens(m, level, m->row, j)) continue;
            json_open(json, NULL, '{');
            json_int(json, "level", level);
            json_int(json, "cluster", c);
            json_close(json, '}');
        }
    json_close(json, ']');
}

static void print_json(const opened_map *m, const map_values *v) {
    json_writer json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_text(&json, "map", "opened");
    json_text(&json, "input", m->in->about);
    json_int(&json, "head", v->head);
    json_int(&json, "length", m->in->length);
    json_bool(&json, "causal", m->in->causal);
    json_int(&json, "block", m->in->block);
    json_int(&json, "open", m->in->open);
    json_open(&json, "levels", '[');
    for (int level = 0; level < m->levels; level++) {
        json_open(&json, NULL, '{');
        json_int(&json, "level", level);
        json_int(&json, "take_part", (int64_t)m->all.clusters[level]);
        json_int(&json, "opened", (int64_t)m->all.opened[level]);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_int(&json, "opened_rows", (int64_t)m->all.rows);
    json_int(&json, "row", m->row);
    json_choice(m, &json);
    if (v->out) json_text(&json, "out", v->out);
    json_close(&json, '}');
    putchar('\n');
}

/* ---- the command ------------------------------------------------------------------------- */

static bool prepare(opened_map *m, const map_values *v, cli_error *error) {
    const map_input *in = m->in;
    int64_t leaf = in->leaf ? in->leaf : 8;
    if (in->open == 0)
        return cli_fail(error, "--open is missing: how many clusters does a row open?");
    if (in->length > MOST || in->batch != 1)
        return cli_fail(
            error, "--opened draws one sequence of at most %d rows, got %" PRId64 " of %" PRId64,
            MOST, in->batch, in->length);
    m->row = v->row < 0 ? in->length - 1 : v->row;
    if (m->row >= in->length)
        return cli_fail(error, "--row must be at most %" PRId64 ", got %" PRId64, in->length - 1,
                        m->row);
    for (m->levels = 1; in->block << m->levels < in->length;) m->levels++;
    for (m->leaf = 1; (int64_t)2 << m->leaf <= leaf;) m->leaf++;
    m->meet = malloc((size_t)(in->length * in->length));
    return m->meet || cli_fail(error, "out of memory");
}

bool map_opened(const map_values *v, int *code, cli_error *error) {
    map_input in = {0};
    opened_map m = {.in = &in};
    bool good = map_open(&in, v, code, error);
    if (good) *code = CLI_FAILED;
    good = good && prepare(&m, v, error) && map_pairs(m.meet, &in, v->head, error);
    for (int64_t i = 0; good && i < in.length; i++) count_row(&m.all, &m, i);
    good = good && (!v->out || draw(&m, v->out, error));
    if (good && v->json) print_json(&m, v);
    if (good && !v->json) print_table(&m, v);
    free(m.meet);
    map_close(&in);
    return good;
}
