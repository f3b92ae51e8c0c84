/*
 * Numerical ranks of a matrix's blocks, as in the H-matrix of the paper's section 4.1: the matrix
 * is halved both ways; the two blocks off the diagonal are leaves, those on it are halved again.
 *
 * The numerical rank is the least r for which the singular values after the first r sum to less
 * than the tolerance. A block of rank r is stored as two factors, r (rows + columns) entries, or
 * as it is where that is no more.
 */
#include "base/json.h"
#include "map/map.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define SIDE 640
#define EDGE 40
#define LEGEND 230
#define MOST 16384 /* rows or columns; the work grows with the third power */

typedef struct leaf {
    int level; /* of the H-matrix, 0 is the finest */
    bool diagonal;
    int64_t row, column, rows, columns, rank, stored;
} leaf;

typedef struct rank_map {
    double *a, *copy, *sigma; /* [rows, columns], as much room again, [min] */
    int64_t rows, columns;
    double tolerance;
    int levels;
    leaf *leaves;
    int count;
    int64_t rank, stored; /* of the whole matrix; of all leaves together */
} rank_map;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static bool numerical_rank(int64_t *out, rank_map *m, int64_t row, int64_t column, int64_t rows,
                           int64_t columns, cli_error *error) {
    int64_t n = least(rows, columns);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            m->copy[i * columns + j] = m->a[(row + i) * m->columns + column + j];
    if (!svd_values(m->sigma, m->copy, rows, columns, error)) return false;
    double rest = 0;
    int64_t rank = n;
    while (rank > 0 && rest + m->sigma[rank - 1] < m->tolerance) rest += m->sigma[--rank];
    *out = rank;
    return true;
}

static bool add_leaf(rank_map *m, leaf l, cli_error *error) {
    if (!numerical_rank(&l.rank, m, l.row, l.column, l.rows, l.columns, error)) return false;
    l.stored = least(l.rows * l.columns, l.rank * (l.rows + l.columns));
    m->stored += l.stored;
    m->leaves[m->count++] = l;
    return true;
}

/* The block on the diagonal at this depth: halved, or at the last depth a leaf. */
static bool divide(rank_map *m, int depth, int64_t row, int64_t column, int64_t rows,
                   int64_t columns, cli_error *error) {
    int64_t r = (rows + 1) / 2, c = (columns + 1) / 2;
    int level = m->levels - 1 - depth;
    if (depth == m->levels)
        return add_leaf(m, (leaf){0, true, row, column, rows, columns, 0, 0}, error);
    return divide(m, depth + 1, row, column, r, c, error) &&
           add_leaf(m, (leaf){level, false, row, column + c, r, columns - c, 0, 0}, error) &&
           add_leaf(m, (leaf){level, false, row + r, column, rows - r, c, 0, 0}, error) &&
           divide(m, depth + 1, row + r, column + c, rows - r, columns - c, error);
}

/* ---- input ------------------------------------------------------------------------------- */

static bool read_numbers(rank_map *m, npy_reader *r, cli_error *error) {
    for (int64_t i = 0; i < m->rows * m->columns; i++) {
        float x = 0;
        if (r->header.type == NPY_F64 && !npy_read(r, &m->a[i], sizeof m->a[i], error))
            return false;
        if (r->header.type == NPY_F32) {
            if (!npy_read(r, &x, sizeof x, error)) return false;
            m->a[i] = x;
        }
        if (!isfinite(m->a[i]))
            return cli_fail(error, "%s: entry (%" PRId64 ", %" PRId64 ") is not finite", r->name,
                            i / m->columns, i % m->columns);
    }
    return true;
}

static bool read_matrix(rank_map *m, const char *path, cli_error *error) {
    npy_reader r = {0};
    char shape[160];
    if (!npy_open(&r, path, error)) return false;
    const npy_header *h = &r.header;
    bool good = true;
    if (h->type != NPY_F32 && h->type != NPY_F64)
        good = cli_fail(error, "%s holds %s; a matrix must be float32 or float64", path,
                        npy_type_name(h->type));
    else if (h->dims != 2 || h->shape[0] < 1 || h->shape[1] < 1 || h->shape[0] > MOST ||
             h->shape[1] > MOST)
        good = cli_fail(error, "%s has shape %s; a matrix must be [1 to %d, 1 to %d]", path,
                        npy_shape_text(shape, sizeof shape, h->dims, h->shape), MOST, MOST);
    if (good) {
        m->rows = h->shape[0];
        m->columns = h->shape[1];
        size_t bytes = (size_t)h->elements * sizeof *m->a;
        m->a = malloc(bytes);
        m->copy = malloc(bytes);
        m->sigma = malloc((size_t)least(m->rows, m->columns) * sizeof *m->sigma);
        good = (m->a && m->copy && m->sigma) || cli_fail(error, "out of memory");
    }
    good = good && read_numbers(m, &r, error);
    npy_close(&r);
    return good;
}

/* 0: as deep as blocks keep 4 rows. */
static bool choose_levels(rank_map *m, int64_t asked, cli_error *error) {
    int64_t n = least(m->rows, m->columns);
    int most = 0;
    while (n >> (most + 1) >= 1) most++;
    m->levels = (int)asked;
    if (asked == 0)
        while (n >> (m->levels + 1) >= 4) m->levels++;
    if (m->levels > most)
        return cli_fail(error, "--levels must be at most %d for %" PRId64 " x %" PRId64 ", got %d",
                        most, m->rows, m->columns, m->levels);
    m->leaves = malloc(sizeof *m->leaves * (((size_t)4 << m->levels) + 4));
    return m->leaves || cli_fail(error, "out of memory");
}

/* ---- output ------------------------------------------------------------------------------ */

static double rate(const rank_map *m) {
    return (double)m->rows * (double)m->columns / (double)(m->stored ? m->stored : 1);
}

static void print_json(const rank_map *m, const map_values *v) {
    json_writer json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_text(&json, "map", "rank");
    json_text(&json, "matrix", v->rank);
    json_int(&json, "rows", m->rows);
    json_int(&json, "columns", m->columns);
    json_real(&json, "tolerance", m->tolerance);
    json_int(&json, "levels", m->levels);
    json_int(&json, "rank", m->rank);
    json_int(&json, "entries", m->rows * m->columns);
    json_int(&json, "stored", m->stored);
    json_real(&json, "rate", rate(m));
    json_open(&json, "blocks", '[');
    for (int i = 0; i < m->count; i++) {
        const leaf *l = &m->leaves[i];
        json_open(&json, NULL, '{');
        json_int(&json, "level", l->level);
        json_bool(&json, "diagonal", l->diagonal);
        json_int(&json, "row", l->row);
        json_int(&json, "column", l->column);
        json_int(&json, "rows", l->rows);
        json_int(&json, "columns", l->columns);
        json_int(&json, "rank", l->rank);
        json_int(&json, "stored", l->stored);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    if (v->out) json_text(&json, "out", v->out);
    json_close(&json, '}');
    putchar('\n');
}

/* One line of the table: the leaves of a level, on or off the diagonal. */
static void print_leaves(const rank_map *m, int level, bool diagonal) {
    int64_t low = INT64_MAX, high = 0, stored = 0;
    int count = 0;
    const leaf *some = NULL;
    for (int i = 0; i < m->count; i++) {
        const leaf *l = &m->leaves[i];
        if (l->level != level || l->diagonal != diagonal) continue;
        low = least(low, l->rank);
        if (l->rank > high) high = l->rank;
        stored += l->stored;
        some = some ? some : l;
        count++;
    }
    if (!some) return;
    char size[48], ranks[48];
    snprintf(size, sizeof size, "%" PRId64 " x %" PRId64, some->rows, some->columns);
    if (low == high)
        snprintf(ranks, sizeof ranks, "%" PRId64, low);
    else
        snprintf(ranks, sizeof ranks, "%" PRId64 " to %" PRId64, low, high);
    cli_row("%5d  %-12s  %7d  %13s  %12s  %12" PRId64, level,
            diagonal ? "diagonal" : "off diagonal", count, size, ranks, stored);
}

/* The map itself as numbers, a block's rank at its upper left corner. */
static void print_grid(const rank_map *m) {
    int cells = 1 << m->levels;
    if (cells > 16) return;
    for (int i = 0; i < cells; i++) {
        for (int j = 0; j < cells; j++) {
            const leaf *found = NULL;
            for (int n = 0; n < m->count; n++) { /* the leaf whose corner is this cell's */
                const leaf *l = &m->leaves[n];
                if (l->row * cells / m->rows == i && l->column * cells / m->columns == j) found = l;
            }
            if (found)
                printf(" %4" PRId64, found->rank);
            else
                printf("    .");
        }
        putchar('\n');
    }
}

static void print_table(const rank_map *m, const map_values *v) {
    cli_line("%s: %" PRId64 " x %" PRId64 ", tolerance %g, rank of the whole %" PRId64, v->rank,
             m->rows, m->columns, m->tolerance, m->rank);
    cli_head("%5s  %-12s  %7s  %13s  %12s  %12s", "level", "blocks", "count", "size", "rank",
             "stored");
    for (int l = m->levels - 1; l >= 0; l--) print_leaves(m, l, false);
    print_leaves(m, 0, true);
    printf("stored entries %" PRId64 " of %" PRId64 ", compression rate %.4g\n", m->stored,
           m->rows * m->columns, rate(m));
    print_grid(m);
    if (v->out && !cli_quiet()) printf("written: %s\n", v->out);
}

/* Darker where the rank is nearer to full. */
static uint32_t shade(const leaf *l) {
    double share = (double)l->rank / (double)least(l->rows, l->columns);
    uint32_t colour = picture_level(l->diagonal ? 0 : l->level + 1), out = 0;
    for (int k = 16; k >= 0; k -= 8) {
        double c = (double)(colour >> k & 255);
        out |= (uint32_t)(255 + (c - 255) * (0.25 + 0.75 * share) + 0.5) << k;
    }
    return out;
}

static bool draw(const rank_map *m, const char *path, cli_error *error) {
    double sx = (double)SIDE / (double)m->columns, sy = (double)SIDE / (double)m->rows;
    char text[96];
    picture *p = picture_create(SIDE + 2 * EDGE + LEGEND, SIDE + 2 * EDGE, "Numerical rank map");
    if (!p) return cli_fail(error, "out of memory");
    picture_rect(p, EDGE, EDGE, SIDE, SIDE, 0x555555);
    for (int i = 0; i < m->count; i++) {
        const leaf *l = &m->leaves[i];
        double x = EDGE + sx * (double)l->column, y = EDGE + sy * (double)l->row;
        double w = sx * (double)l->columns, h = sy * (double)l->rows, side = fmin(w, h);
        picture_rect(p, x + 0.5, y + 0.5, w - 1, h - 1, shade(l));
        snprintf(text, sizeof text, "%" PRId64, l->rank);
        if (side >= 12)
            picture_text(p, x + w / 2, y + h / 2 + fmin(side / 3, 28) / 3, fmin(side / 2, 28), 1,
                         0x111111, text);
    }
    double x = EDGE + SIDE + 20, y = EDGE + 14;
    snprintf(text, sizeof text, "tolerance %g", m->tolerance);
    picture_text(p, x, y, 13, 0, 0x222222, text);
    snprintf(text, sizeof text, "stored %" PRId64 " of %" PRId64, m->stored, m->rows * m->columns);
    picture_text(p, x, y + 22, 13, 0, 0x222222, text);
    snprintf(text, sizeof text, "compression rate %.4g", rate(m));
    picture_text(p, x, y + 44, 13, 0, 0x222222, text);
    snprintf(text, sizeof text, "rank of the whole: %" PRId64, m->rank);
    picture_text(p, x, y + 66, 13, 0, 0x222222, text);
    bool good = picture_save(p, path, error);
    picture_destroy(p);
    return good;
}

bool map_rank(const map_values *v, int *code, cli_error *error) {
    rank_map m = {.tolerance = v->tolerance};
    *code = CLI_FAILED;
    bool good = read_matrix(&m, v->rank, error) && choose_levels(&m, v->levels, error) &&
                numerical_rank(&m.rank, &m, 0, 0, m.rows, m.columns, error) &&
                divide(&m, 0, 0, 0, m.rows, m.columns, error) &&
                (!v->out || draw(&m, v->out, error));
    if (good && v->json) print_json(&m, v);
    if (good && !v->json) print_table(&m, v);
    free(m.a);
    free(m.copy);
    free(m.sigma);
    free(m.leaves);
    return good;
}
