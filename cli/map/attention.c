/*
 * The weights of an attention at the resolution of tokens: row i of the matrix is how much of each
 * value goes into output i. They come from the attention itself, run with columns of the identity
 * as values, so they are what it really does; beside them those of full attention, and where rows
 * open clusters, those of the same with nothing opened.
 */
#include "base/json.h"
#include "map/map.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 64  /* columns of the identity at a time */
#define MOST 8192 /* rows; the matrix has their square */
#define SIDE 480
#define EDGE 40
#define GAP 40

/* Values: row j is 1 in column j - from, for the columns of this chunk. */
static bool identity(void **out, const map_input *in, int64_t from, int64_t columns,
                     cli_error *error) {
    int64_t count = in->length * columns;
    size_t bytes = (size_t)count * (in->dtype == HT_F64 ? sizeof(double) : sizeof(float));
    void *host = calloc(1, bytes);
    if (!host) return cli_fail(error, "out of memory");
    for (int64_t c = 0; c < columns; c++) {
        int64_t at = (from + c) * columns + c;
        if (in->dtype == HT_F64)
            ((double *)host)[at] = 1;
        else
            ((float *)host)[at] = 1;
    }
    bool good = (*out || ht_memory_alloc(in->ctx, out, bytes) == HT_OK) &&
                ht_memory_copy_in(in->ctx, *out, host, bytes) == HT_OK;
    if (!good) cli_fail(error, "%s", ht_context_error(in->ctx));
    free(host);
    return good;
}

/* weights [length, length] */
static bool weights(double *out, const map_input *in, map_call call, cli_error *error) {
    int64_t n = in->length;
    double *part = malloc((size_t)(n * CHUNK) * sizeof *part);
    void *device = NULL;
    bool good = part || cli_fail(error, "out of memory");
    for (int64_t from = 0; good && from < n; from += CHUNK) {
        int64_t columns = n - from < CHUNK ? n - from : CHUNK;
        good = identity(&device, in, from, columns, error);
        call.v = device;
        call.value_dim = columns;
        good = good && map_attend(part, in, &call, error);
        for (int64_t i = 0; good && i < n; i++)
            memcpy(out + i * n + from, part + i * columns, (size_t)columns * sizeof *out);
    }
    if (device) ht_memory_free(in->ctx, device);
    free(part);
    return good;
}

/* ---- how far apart ----------------------------------------------------------------------- */

typedef struct distance {
    double relative;  /* Frobenius norm of the difference over that of the exact weights */
    double variation; /* mean over rows of half the sum of the differences: 0 same, 1 disjoint */
} distance;

static distance compare(const double *a, const double *exact, int64_t n) {
    double difference = 0, size = 0, sum = 0;
    for (int64_t i = 0; i < n * n; i++) {
        double d = a[i] - exact[i];
        difference += d * d;
        size += exact[i] * exact[i];
        sum += fabs(d);
    }
    distance out = {sqrt(difference / size), sum / 2 / (double)n};
    return out;
}

/* ---- the picture ------------------------------------------------------------------------- */

/* Matrices of weights [length, length]. */
typedef struct matrices {
    double *effective, *exact;
    double *closed; /* with nothing opened; NULL: nothing is anyway */
} matrices;

/* Logarithms of the smallest and the largest weight that all pictures show. */
typedef struct tones {
    double low, high;
} tones;

static tones find_tones(const matrices *m, int64_t n) {
    const double *all[] = {m->effective, m->exact, m->closed};
    double low = HUGE_VAL, high = 0, even = 1 / (double)n;
    for (int k = 0; k < 3; k++) {
        for (int64_t i = 0; all[k] && i < n * n; i++) {
            if (all[k][i] > 0) low = fmin(low, all[k][i]);
            high = fmax(high, all[k][i]);
        }
    }
    low = fmax(low, 1e-3 * even); /* what is smaller is white */
    if (!(high > low)) high = 2 * low;
    tones out = {log(low), log(high)};
    return out;
}

/* From white over blue to nearly black. */
static void colour(uint8_t out[3], double weight, tones range) {
    static const double stops[5][3] = {
        {255, 255, 255}, {198, 219, 239}, {107, 174, 214}, {33, 95, 165}, {8, 29, 70}};
    double t = weight > 0 ? (log(weight) - range.low) / (range.high - range.low) : 0;
    t = (t < 0 ? 0 : t > 1 ? 1 : t) * 4;
    int k = t >= 4 ? 3 : (int)t;
    for (int c = 0; c < 3; c++)
        out[c] = (uint8_t)(stops[k][c] + (stops[k + 1][c] - stops[k][c]) * (t - k) + 0.5);
}

/* At most 1024 pixels each way: of several weights the largest is shown. */
static void draw_matrix(picture *p, double x, const double *w, int64_t n, tones range) {
    int64_t step = (n + 1023) / 1024, side = (n + step - 1) / step;
    uint8_t *pixels = malloc((size_t)(side * side) * 3);
    if (!pixels) {
        p->failed = true;
        return;
    }
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j < side; j++) {
            double most = 0;
            for (int64_t a = i * step; a < (i + 1) * step && a < n; a++)
                for (int64_t b = j * step; b < (j + 1) * step && b < n; b++)
                    most = fmax(most, w[a * n + b]);
            colour(pixels + (i * side + j) * 3, most, range);
        }
    picture_rect(p, x - 1, EDGE - 1, SIDE + 2, SIDE + 2, 0x999999);
    picture_image(p, x, EDGE, SIDE, SIDE, (int)side, (int)side, pixels);
    free(pixels);
}

static void draw_words(picture *p, const map_input *in, const map_values *v, distance d) {
    char text[256];
    snprintf(text, sizeof text, "%s, head %" PRId64 ", %" PRId64 " rows%s", in->about, v->head,
             in->length, in->causal ? ", causal" : "");
    picture_text(p, EDGE, EDGE + SIDE + 24, 13, 0, 0x222222, text);
    snprintf(text, sizeof text, "relative difference %.3g; %.1f %% of the weight lies elsewhere",
             d.relative, 100 * d.variation);
    picture_text(p, EDGE, EDGE + SIDE + 46, 13, 0, 0x222222, text);
}

/* Side by side; full attention last, or, where clusters are opened, first. */
static bool draw(const map_input *in, const map_values *v, const matrices *m, distance d,
                 cli_error *error) {
    char own[96], opened[48];
    int three = m->closed != NULL, count = 2 + three;
    const char *full = "full attention, same queries and keys";
    picture *p = picture_create(count * (SIDE + GAP) + 2 * EDGE - GAP, SIDE + 2 * EDGE + 30,
                                "Attention weights, hierarchical and exact");
    if (!p) return cli_fail(error, "out of memory");
    snprintf(own, sizeof own, "%s, query %s, block %" PRId64, cli_kinds[in->kind],
             cli_queries[in->query], in->block);
    snprintf(opened, sizeof opened, "the same, open %" PRId64, in->open);
    const double *w[] = {three ? m->exact : m->effective, three ? m->closed : m->exact,
                         m->effective};
    const char *name[] = {three ? full : own, three ? own : full, opened};
    tones range = find_tones(m, in->length);
    for (int i = 0; i < count; i++) {
        double x = EDGE + i * (SIDE + GAP);
        draw_matrix(p, x, w[i], in->length, range);
        picture_text(p, x + SIDE / 2.0, EDGE - 14, 13, 1, 0x222222, name[i]);
    }
    draw_words(p, in, v, d);
    bool good = picture_save(p, v->out, error);
    picture_destroy(p);
    return good;
}

/* ---- the command ------------------------------------------------------------------------- */

static void print_text(const map_input *in, const map_values *v, distance d, distance closed) {
    printf("%s, head %" PRId64 ": %" PRId64 " rows%s, %s, query %s, block %" PRId64, in->about,
           v->head, in->length, in->causal ? ", causal" : "", cli_kinds[in->kind],
           cli_queries[in->query], in->block);
    if (in->open) printf(", open %" PRId64, in->open);
    printf("\nrelative difference of the weights %.4g; %.2f %% of the weight lies elsewhere\n",
           d.relative, 100 * d.variation);
    if (in->open)
        printf("with nothing opened %.4g; %.2f %%\n", closed.relative, 100 * closed.variation);
    const char *files[] = {v->out, v->effective, v->exact};
    for (int i = 0; i < 3; i++)
        if (files[i] && !cli_quiet()) printf("written: %s\n", files[i]);
}

static void print_json(const map_input *in, const map_values *v, distance d, distance closed) {
    json_writer json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_text(&json, "map", "attention");
    json_text(&json, "input", in->about);
    json_int(&json, "head", v->head);
    json_int(&json, "length", in->length);
    json_bool(&json, "causal", in->causal);
    json_text(&json, "kind", cli_kinds[in->kind]);
    json_text(&json, "query", cli_queries[in->query]);
    json_int(&json, "block", in->block);
    json_int(&json, "open", in->open);
    json_real(&json, "relative_difference", d.relative);
    json_real(&json, "moved", d.variation);
    if (in->open) {
        json_real(&json, "closed_relative_difference", closed.relative);
        json_real(&json, "closed_moved", closed.variation);
    }
    if (v->out) json_text(&json, "out", v->out);
    json_close(&json, '}');
    putchar('\n');
}

bool map_weights(double *effective, double *exact, const map_input *in, int64_t head,
                 cli_error *error) {
    map_call call = {.kind = in->kind,
                     .query = in->query,
                     .causal = in->causal,
                     .block = in->block,
                     .head = head,
                     .open = in->open};
    if (effective && !weights(effective, in, call, error)) return false;
    call.kind = HT_FULL, call.open = 0;
    return !exact || weights(exact, in, call, error);
}

static bool make(matrices *m, const map_input *in, int64_t head, cli_error *error) {
    size_t bytes = (size_t)(in->length * in->length) * sizeof(double);
    map_input closed = *in;
    closed.open = 0;
    m->effective = malloc(bytes);
    m->exact = malloc(bytes);
    m->closed = in->open ? malloc(bytes) : NULL;
    if (!m->effective || !m->exact || (in->open && !m->closed))
        return cli_fail(error, "out of memory");
    return map_weights(m->effective, m->exact, in, head, error) &&
           (!in->open || map_weights(m->closed, NULL, &closed, head, error));
}

bool map_attention(const map_values *v, int *code, cli_error *error) {
    map_input in = {0};
    matrices m = {0};
    bool good = map_open(&in, v, code, error);
    if (good) *code = CLI_FAILED;
    if (good && (in.length > MOST || in.batch != 1))
        good = cli_fail(
            error, "--attention draws one sequence of at most %d rows, got %" PRId64 " of %" PRId64,
            MOST, in.batch, in.length);
    good = good && make(&m, &in, v->head, error);
    int64_t n = in.length;
    distance d = {0}, closed = {0};
    if (good) d = compare(m.effective, m.exact, n);
    if (good && m.closed) closed = compare(m.closed, m.exact, n);
    good = good && (!v->effective || map_save_npy(v->effective, m.effective, n, n, error)) &&
           (!v->exact || map_save_npy(v->exact, m.exact, n, n, error)) &&
           (!v->out || draw(&in, v, &m, d, error));
    if (good && v->json) print_json(&in, v, d, closed);
    if (good && !v->json) print_text(&in, v, d, closed);
    free(m.effective);
    free(m.closed);
    free(m.exact);
    map_close(&in);
    return good;
}
