/*
 * The weights of an attention at the resolution of tokens: row i of the matrix is how much of each
 * value goes into output i. They come from the attention itself, run with columns of the identity
 * as values, so they are what it really does; beside them those of full attention.
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

/* Logarithms of the smallest and the largest weight that both pictures show. */
typedef struct tones {
    double low, high;
} tones;

static tones find_tones(const double *a, const double *b, int64_t n) {
    double low = HUGE_VAL, high = 0, even = 1 / (double)n;
    for (int64_t i = 0; i < n * n; i++) {
        double w[2] = {a[i], b[i]};
        for (int k = 0; k < 2; k++) {
            if (w[k] > 0) low = fmin(low, w[k]);
            high = fmax(high, w[k]);
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

static bool draw(const map_input *in, const map_values *v, const double *effective,
                 const double *exact, distance d, cli_error *error) {
    picture *p = picture_create(2 * SIDE + 2 * EDGE + GAP, SIDE + 2 * EDGE + 30,
                                "Attention weights, hierarchical and exact");
    char text[256];
    if (!p) return cli_fail(error, "out of memory");
    tones range = find_tones(effective, exact, in->length);
    draw_matrix(p, EDGE, effective, in->length, range);
    draw_matrix(p, EDGE + SIDE + GAP, exact, in->length, range);
    snprintf(text, sizeof text, "%s, query %s, block %" PRId64, cli_kinds[in->kind],
             cli_queries[in->query], in->block);
    picture_text(p, EDGE + SIDE / 2.0, EDGE - 14, 13, 1, 0x222222, text);
    picture_text(p, EDGE + SIDE + GAP + SIDE / 2.0, EDGE - 14, 13, 1, 0x222222,
                 "full attention, same queries and keys");
    snprintf(text, sizeof text, "%s, head %" PRId64 ", %" PRId64 " rows%s", in->about, v->head,
             in->length, in->causal ? ", causal" : "");
    picture_text(p, EDGE, EDGE + SIDE + 24, 13, 0, 0x222222, text);
    snprintf(text, sizeof text, "relative difference %.3g; %.1f %% of the weight lies elsewhere",
             d.relative, 100 * d.variation);
    picture_text(p, EDGE, EDGE + SIDE + 46, 13, 0, 0x222222, text);
    bool good = picture_save(p, v->out, error);
    picture_destroy(p);
    return good;
}

/* ---- the command ------------------------------------------------------------------------- */

static void print(const map_input *in, const map_values *v, distance d) {
    json_writer json = {.out = stdout};
    if (!v->json) {
        printf("%s, head %" PRId64 ": %" PRId64 " rows%s, %s, query %s, block %" PRId64 "\n",
               in->about, v->head, in->length, in->causal ? ", causal" : "", cli_kinds[in->kind],
               cli_queries[in->query], in->block);
        printf("relative difference of the weights %.4g; %.2f %% of the weight lies elsewhere\n",
               d.relative, 100 * d.variation);
        const char *files[] = {v->out, v->effective, v->exact};
        for (int i = 0; i < 3; i++)
            if (files[i] && !cli_quiet()) printf("written: %s\n", files[i]);
        return;
    }
    json_open(&json, NULL, '{');
    json_text(&json, "map", "attention");
    json_text(&json, "input", in->about);
    json_int(&json, "head", v->head);
    json_int(&json, "length", in->length);
    json_bool(&json, "causal", in->causal);
    json_text(&json, "kind", cli_kinds[in->kind]);
    json_text(&json, "query", cli_queries[in->query]);
    json_int(&json, "block", in->block);
    json_real(&json, "relative_difference", d.relative);
    json_real(&json, "moved", d.variation);
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
                     .head = head};
    if (effective && !weights(effective, in, call, error)) return false;
    call.kind = HT_FULL;
    return !exact || weights(exact, in, call, error);
}

bool map_attention(const map_values *v, int *code, cli_error *error) {
    map_input in = {0};
    double *effective = NULL, *exact = NULL;
    bool good = map_open(&in, v, code, error);
    if (good) *code = CLI_FAILED;
    if (good && (in.length > MOST || in.batch != 1))
        good = cli_fail(
            error, "--attention draws one sequence of at most %d rows, got %" PRId64 " of %" PRId64,
            MOST, in.batch, in.length);
    if (good) {
        size_t bytes = (size_t)(in.length * in.length) * sizeof *exact;
        effective = malloc(bytes);
        exact = malloc(bytes);
        good = (effective && exact) || cli_fail(error, "out of memory");
    }
    good = good && map_weights(effective, exact, &in, v->head, error);
    distance d = good ? compare(effective, exact, in.length) : (distance){0};
    int64_t n = in.length;
    good = good && (!v->effective || map_save_npy(v->effective, effective, n, n, error)) &&
           (!v->exact || map_save_npy(v->exact, exact, n, n, error)) &&
           (!v->out || draw(&in, v, effective, exact, d, error));
    if (good) print(&in, v, d);
    free(effective);
    free(exact);
    map_close(&in);
    return good;
}
