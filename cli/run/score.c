/*
 * Sums over items, and what they say.
 */
#include "run/score.h"

#include "base/settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, COLUMNS = 12 }; /* of the tables that are printed */

/* The names last longer than the model that they came with. */
static char **copy_names(const ht_labels *labels) {
    int64_t n = ht_labels_count(labels);
    size_t bytes = 0, pointers = sizeof(char *) * (size_t)n;
    for (int64_t k = 0; k < n; k++) bytes += strlen(ht_labels_name(labels, k)) + 1;
    char **names = malloc(pointers + bytes), *at = (char *)names + pointers;
    for (int64_t k = 0; names && k < n; k++) {
        names[k] = strcpy(at, ht_labels_name(labels, k));
        at += strlen(at) + 1;
    }
    return names;
}

bool score_begin(score *s, const ht_labels *labels, const ht_config *config, cli_error *error) {
    int64_t n = ht_labels_count(labels);
    bool matrix = n <= SCORE_MATRIX;
    *s = (score){.classes = n, .names = copy_names(labels)};
    s->per_item = setting_is(config, "task", "pairs") ? 2 : 1;
    s->is = calloc((size_t)(3 * n), sizeof *s->is);
    s->matrix = matrix ? calloc((size_t)(n * n), sizeof *s->matrix) : NULL;
    if (!s->names || !s->is || (matrix && !s->matrix)) return cli_fail(error, "out of memory");
    s->said = s->is + n;
    s->right = s->said + n;
    return true;
}

void score_free(score *s) {
    free(s->names);
    free(s->is);
    free(s->matrix);
    *s = (score){0};
}

void score_add(score *s, const ht_batch *batch, const float *logits) {
    int64_t items = batch->sequences / s->per_item;
    for (int64_t i = 0; i < items; i++) {
        const float *x = logits + i * s->classes;
        int64_t label = batch->targets[i], best = 0;
        double sum = 0;
        if (label < 0) continue;
        for (int64_t k = 1; k < s->classes; k++)
            if (x[k] > x[best]) best = k;
        for (int64_t k = 0; k < s->classes; k++) sum += exp((double)x[k] - x[best]);
        s->loss += log(sum) - ((double)x[label] - x[best]);
        s->items++;
        s->correct += best == label;
        s->is[label]++;
        s->said[best]++;
        s->right[label] += best == label;
        if (s->matrix) s->matrix[label * s->classes + best]++;
    }
}

/* ---- what they say ---- */

static double share(double part, double whole) { return whole > 0 ? part / whole : NAN; }

double score_precision(const score *s, int64_t k) { return share(s->right[k], s->said[k]); }
double score_recall(const score *s, int64_t k) { return share(s->right[k], s->is[k]); }
double score_f1(const score *s, int64_t k) {
    return share(2 * s->right[k], s->said[k] + s->is[k]); /* of precision and recall */
}

double score_macro_f1(const score *s) {
    double sum = 0, count = 0;
    for (int64_t k = 0; k < s->classes; k++)
        if (!isnan(score_f1(s, k))) sum += score_f1(s, k), count++;
    return share(sum, count);
}

double score_majority(const score *s) {
    double most = 0;
    for (int64_t k = 0; k < s->classes; k++) most = fmax(most, s->is[k]);
    return share(most, s->items);
}

/* ---- text ---- */

static const char *percent(char out[16], double x) {
    snprintf(out, 16, isnan(x) ? "-" : "%.2f", 100 * x);
    return out;
}

/* The widest of the names, in bytes, within bounds. */
static int name_width(const score *s, int64_t count) {
    int width = 5;
    for (int64_t k = 0; k < count; k++) {
        int n = (int)strlen(s->names[k]);
        if (n > width) width = n;
    }
    return width < 24 ? width : 24;
}

static void print_classes(const score *s, int64_t count, int width) {
    char a[16], b[16], c[16];
    printf("%-*s %9s %12s %9s %9s\n", width, "label", "items", "precision %", "recall %", "F1 %");
    for (int64_t k = 0; k < count; k++)
        printf("%-*.*s %9.0f %12s %9s %9s\n", width, width, s->names[k], s->is[k],
               percent(a, score_precision(s, k)), percent(b, score_recall(s, k)),
               percent(c, score_f1(s, k)));
    if (count < s->classes)
        printf("and %lld labels more; --json has all\n", (long long)(s->classes - count));
    printf("%-*s %9.0f %12s %9s %9s\n", width, "mean", s->items, "", "",
           percent(a, score_macro_f1(s)));
}

static void print_matrix(const score *s, int width) {
    printf("%-*s  answers", width, "label");
    putchar('\n');
    printf("%-*s", width, "");
    for (int64_t k = 0; k < s->classes; k++) printf(" %8.8s", s->names[k]);
    putchar('\n');
    for (int64_t i = 0; i < s->classes; i++) {
        printf("%-*.*s", width, width, s->names[i]);
        for (int64_t k = 0; k < s->classes; k++) printf(" %8.0f", s->matrix[i * s->classes + k]);
        putchar('\n');
    }
}

void score_print(const score *s) {
    int64_t count = s->classes < ROWS ? s->classes : ROWS;
    int width = name_width(s, count);
    print_classes(s, count, width);
    if (s->classes <= COLUMNS) print_matrix(s, width);
}

/* ---- JSON ---- */

void score_json_label(json_writer *json, const char *key, const char *label) {
    char *end, back[32];
    long long number = strtoll(label, &end, 10);
    snprintf(back, sizeof back, "%lld", number);
    if (strcmp(back, label) == 0)
        json_int(json, key, number);
    else
        json_text(json, key, label);
}

void score_json(const score *s, json_writer *json) {
    json_real(json, "macro_f1", score_macro_f1(s));
    json_open(json, "labels", '[');
    for (int64_t k = 0; k < s->classes; k++) {
        json_open(json, NULL, '{');
        score_json_label(json, "label", s->names[k]);
        json_int(json, "items", (int64_t)s->is[k]);
        json_int(json, "answers", (int64_t)s->said[k]);
        json_real(json, "precision", score_precision(s, k));
        json_real(json, "recall", score_recall(s, k));
        json_real(json, "f1", score_f1(s, k));
        json_close(json, '}');
    }
    json_close(json, ']');
    if (!s->matrix) return;
    json_open(json, "confusion", '[');
    for (int64_t i = 0; i < s->classes; i++) {
        json_open(json, NULL, '[');
        for (int64_t k = 0; k < s->classes; k++)
            json_int(json, NULL, (int64_t)s->matrix[i * s->classes + k]);
        json_close(json, ']');
    }
    json_close(json, ']');
}
