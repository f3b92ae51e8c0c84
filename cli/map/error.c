/*
 * Accuracy against block: how far the hierarchical output is from full attention, for blocks 2, 4,
 * 8, ... and half the length (where both are the same), in every query mode, with clusters opened,
 * and beside local attention.
 */
#include "draw/chart.h"
#include "base/count.h"
#include "base/json.h"
#include "map/map.h"
#include "base/save.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define MOST_BLOCKS 32
enum { MEAN, FIRST, FINE, LOCAL, OPENED, MODES = OPENED + 16 };

/* A column of the table. */
typedef struct error_mode {
    char name[24];
    int64_t open;                                     /* in the modes from OPENED on */
    double error[MOST_BLOCKS], products[MOST_BLOCKS]; /* per row */
} error_mode;

typedef struct error_table {
    int64_t block[MOST_BLOCKS];
    error_mode mode[MODES];
    int count, modes, causal;
} error_table;

/* |a - b| / |b| over all numbers. */
static double relative(const double *a, const double *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* Mean queries would see the future. */
static bool has_mode(const error_table *t, int m) { return m != MEAN || !t->causal; }

static void name_modes(error_table *t, const map_input *in, const map_values *v) {
    static const char *const names[OPENED] = {"mean", "first", "fine", "local"};
    t->modes = OPENED;
    for (int m = 0; m < OPENED; m++)
        snprintf(t->mode[m].name, sizeof t->mode[m].name, "%s", names[m]);
    for (int k = 0; k < (v->open.count ? v->open.count : 1) && t->modes < MODES; k++) {
        int64_t open = v->open.count ? v->open.at[k] : in->open;
        if (open == 0) continue; /* that is fine */
        error_mode *m = &t->mode[t->modes++];
        m->open = open;
        snprintf(m->name, sizeof m->name, "open %" PRId64, open);
    }
}

static double products_of(const error_table *t, const map_call *call, int64_t length) {
    double all = count_products(call->kind, call->query, t->causal, call->block, length);
    return count_opened(call->open, t->causal, call->block, length, all) / (double)length;
}

static bool measure(error_table *t, const map_input *in, double *z, double *full, int64_t count,
                    cli_error *error) {
    map_call call = {.kind = HT_FULL, .causal = t->causal, .block = in->block, .head = -1};
    if (!map_attend(full, in, &call, error)) return false;
    for (int b = 0; b < t->count; b++)
        for (int m = 0; m < t->modes; m++) {
            error_mode *mode = &t->mode[m];
            if (!has_mode(t, m)) continue;
            call.kind = m == LOCAL ? HT_LOCAL : HT_HIERARCHICAL;
            call.query = m >= FINE ? HT_QUERY_FINE : (ht_query)(HT_QUERY_MEAN + m);
            call.block = t->block[b], call.open = mode->open;
            if (!map_attend(z, in, &call, error)) return false;
            mode->error[b] = relative(z, full, count);
            mode->products[b] = products_of(t, &call, in->length);
        }
    return true;
}

/* ---- output ------------------------------------------------------------------------------ */

static void print_json(const error_table *t, const map_input *in, const map_values *v) {
    json_writer json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_text(&json, "map", "error");
    json_text(&json, "input", in->about);
    json_int(&json, "length", in->length);
    json_bool(&json, "causal", t->causal);
    json_text(&json, "device", ht_context_device(in->ctx));
    json_open(&json, "blocks", '[');
    for (int b = 0; b < t->count; b++) {
        json_open(&json, NULL, '{');
        json_int(&json, "block", t->block[b]);
        for (int m = 0; m < t->modes; m++) {
            const error_mode *mode = &t->mode[m];
            json_open(&json, mode->name, '{');
            json_real(&json, "relative_error", has_mode(t, m) ? mode->error[b] : NAN);
            json_real(&json, "products_per_row", has_mode(t, m) ? mode->products[b] : NAN);
            json_close(&json, '}');
        }
        json_close(&json, '}');
    }
    json_close(&json, ']');
    if (v->out) json_text(&json, "out", v->out);
    json_close(&json, '}');
    putchar('\n');
}

static void print_table(const error_table *t, const map_input *in, const map_values *v) {
    char line[64 + 24 * MODES];
    cli_line("relative error against full attention (and products per row; full: %.4g)",
             t->causal ? (double)(in->length + 1) / 2 : (double)in->length);
    cli_line("%s, length %" PRId64 "%s", in->about, in->length, t->causal ? ", causal" : "");
    int n = snprintf(line, sizeof line, "%8s", "block");
    for (int m = 0; m < t->modes; m++)
        if (has_mode(t, m))
            n += snprintf(line + n, sizeof line - (size_t)n, "  %20s", t->mode[m].name);
    cli_head("%s", line);
    for (int b = 0; b < t->count; b++) {
        n = snprintf(line, sizeof line, "%8" PRId64, t->block[b]);
        for (int m = 0; m < t->modes; m++)
            if (has_mode(t, m))
                n += snprintf(line + n, sizeof line - (size_t)n, "  %10.3g (%7.4g)",
                              t->mode[m].error[b], t->mode[m].products[b]);
        cli_row("%s", line);
    }
    if (v->out && !cli_quiet()) printf("written: %s\n", v->out);
}

static bool draw(const error_table *t, const map_input *in, const char *path, cli_error *error) {
    double blocks[MOST_BLOCKS];
    char title[96];
    snprintf(title, sizeof title, "Relative error, length %" PRId64 "%s", in->length,
             t->causal ? ", causal" : "");
    chart c = {.title = title, .x_label = "block", .log_x = true, .log_y = true, .x_points = true};
    for (int b = 0; b < t->count; b++) blocks[b] = (double)t->block[b];
    for (int m = 0; m < t->modes; m++) {
        if (!has_mode(t, m)) continue;
        c.series[c.count++] = (chart_series){.name = t->mode[m].name,
                                             .x = blocks,
                                             .y = t->mode[m].error,
                                             .count = t->count,
                                             .colour = m % 8,
                                             .dots = true,
                                             .dashed = m == LOCAL};
    }
    save_file save = {0};
    bool good = save_open(&save, path, error);
    if (good) chart_file(save.file, &c);
    good = good && save_finish(&save, error) && save_commit(&save, error);
    save_discard(&save);
    return good;
}

bool map_error(const map_values *v, int *code, cli_error *error) {
    map_input in = {0};
    error_table t = {0};
    double *z = NULL, *full = NULL;
    bool good = map_open(&in, v, code, error);
    if (good) *code = CLI_FAILED;
    if (good && in.length < 4)
        good = cli_fail(error, "--error needs a length of at least 4, got %" PRId64, in.length);
    if (good) {
        int64_t count = in.batch * in.length * in.heads * in.value_dim;
        t.causal = in.causal;
        name_modes(&t, &in, v);
        int64_t last =
            (in.length + 3) / 4 * 2; /* half the length, made even: exact from there on */
        for (int64_t b = 2; b < last && t.count < MOST_BLOCKS - 1; b *= 2) t.block[t.count++] = b;
        t.block[t.count++] = last;
        z = malloc((size_t)count * sizeof *z);
        full = malloc((size_t)count * sizeof *full);
        good = (z && full) || cli_fail(error, "out of memory");
        good = good && measure(&t, &in, z, full, count, error);
    }
    good = good && (!v->out || draw(&t, &in, v->out, error));
    if (good && v->json) print_json(&t, &in, v);
    if (good && !v->json) print_table(&t, &in, v);
    free(z);
    free(full);
    map_close(&in);
    return good;
}
