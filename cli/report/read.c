/*
 * A run folder as numbers: config.json and log.jsonl.
 */
#include "report/report.h"

#include "base/json.h"
#include "base/save.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const step_keys[COLUMNS] = {"step",          "loss", "accuracy",    "rate",
                                               "gradient_norm", "ms",   "tokens_per_s"};
static const char *const valid_keys[COLUMNS] = {"step", "valid_loss", "valid_accuracy"};

/* No number of a log is larger; one that is would not fit the integers that pages count with. */
#define MOST 1e15

static bool grow(report_lines *lines) {
    if (lines->count < lines->room) return true;
    int room = lines->room ? 2 * lines->room : 1024;
    for (int c = 0; c < COLUMNS; c++) {
        double *more = realloc(lines->at[c], (size_t)room * sizeof *more);
        if (!more) return false;
        lines->at[c] = more;
    }
    lines->room = room;
    return true;
}

/* A run that was killed and resumed logs some steps again: the later line counts. */
static void drop_from(report_lines *lines, double step) {
    while (lines->count > 0 && lines->at[COLUMN_STEP][lines->count - 1] >= step) lines->count--;
}

static bool add(report_lines *lines, const cJSON *root, const char *const *keys) {
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(root, "step");
    if (cJSON_IsNumber(step)) drop_from(lines, step->valuedouble);
    if (!grow(lines)) return false;
    for (int c = 0; c < COLUMNS; c++) {
        const cJSON *item = keys[c] ? cJSON_GetObjectItemCaseSensitive(root, keys[c]) : NULL;
        double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;
        lines->at[c][lines->count] = fabs(x) <= MOST ? x : NAN;
    }
    lines->count++;
    return true;
}

static bool read_log(report_run *r, const char *path, cli_error *error) {
    uint64_t bytes;
    FILE *f = save_open_input(path, &bytes, error);
    if (!f) return false;
    char *line = NULL;
    size_t room = 0;
    bool good = true, starved;
    for (size_t n; good && save_line(f, path, &line, &room, &n, &good, error);) {
        if (n <= 1) continue;
        cJSON *root = json_parse(line, &starved, error);
        const cJSON *step = cJSON_GetObjectItemCaseSensitive(root, "step");
        bool usable = cJSON_IsNumber(step) && fabs(step->valuedouble) <= MOST;
        bool valid = cJSON_HasObjectItem(root, "valid_loss");
        if (starved)
            good = false;
        else if (!usable)
            r->damaged++; /* a run that was killed may leave half a line */
        else if (!add(valid ? &r->valid : &r->steps, root, valid ? valid_keys : step_keys))
            good = cli_fail(error, "out of memory");
        cJSON_Delete(root);
    }
    if (good && r->steps.count == 0) good = cli_fail(error, "%s holds no step yet", path);
    free(line);
    fclose(f);
    return good;
}

/* The last part of the folder's name. */
static void name_of(report_run *r, const char *path) {
    size_t n = strlen(path), from;
    while (n > 1 && path[n - 1] == '/') n--;
    for (from = n; from > 0 && path[from - 1] != '/';) from--;
    snprintf(r->name, sizeof r->name, "%.*s", (int)(n - from), path + from);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool find_throughput(report_run *r, cli_error *error) {
    double *sorted = malloc((size_t)r->steps.count * sizeof *sorted);
    int n = 0;
    if (!sorted) return cli_fail(error, "out of memory");
    for (int i = 0; i < r->steps.count; i++)
        if (isfinite(r->steps.at[COLUMN_TOKENS][i])) sorted[n++] = r->steps.at[COLUMN_TOKENS][i];
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    r->throughput = n ? sorted[n / 2] : NAN;
    free(sorted);
    return true;
}

bool report_read(report_run *r, const char *path, cli_error *error) {
    char file[4096];
    *r = (report_run){.path = path};
    name_of(r, path);
    if (!run_path(file, path, "config.json", error)) return false;
    char *text = run_read_part(file, error);
    if (!text) return false;
    bool starved;
    r->config = json_parse(text, &starved, error);
    free(text);
    if (starved) return false;
    if (!cJSON_IsObject(r->config)) return cli_fail(error, "%s is damaged", file);
    const cJSON *task = cJSON_GetObjectItemCaseSensitive(r->config, "task");
    r->language = cJSON_IsString(task) && strcmp(task->valuestring, "language") == 0;
    return run_path(file, path, "log.jsonl", error) && read_log(r, file, error) &&
           find_throughput(r, error);
}

void report_release(report_run *r) {
    cJSON_Delete(r->config);
    score_free(&r->eval.classes);
    for (int i = 0; i < 2; i++) score_free(&r->eval.alone[i]);
    for (int c = 0; c < COLUMNS; c++) {
        free(r->steps.at[c]);
        free(r->valid.at[c]);
    }
    *r = (report_run){0};
}

int report_best(const report_run *r) {
    int best = -1;
    report_column column = r->language ? COLUMN_LOSS : COLUMN_ACCURACY;
    for (int i = 0; i < r->valid.count; i++) {
        double x = r->valid.at[column][i], y = best < 0 ? NAN : r->valid.at[column][best];
        if (isfinite(x) && (best < 0 || (r->language ? x < y : x > y))) best = i;
    }
    return best;
}

double report_seconds(const report_run *r) {
    double sum = 0;
    for (int i = 0; i < r->steps.count; i++)
        if (isfinite(r->steps.at[COLUMN_MS][i])) sum += r->steps.at[COLUMN_MS][i] / 1e3;
    return sum;
}

const char *report_setting(char *out, size_t bytes, const report_run *r, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->config, key);
    if (cJSON_IsString(item))
        snprintf(out, bytes, "%s", item->valuestring);
    else if (cJSON_IsNumber(item))
        snprintf(out, bytes, "%.10g", item->valuedouble);
    else
        snprintf(out, bytes, "-");
    return out;
}
