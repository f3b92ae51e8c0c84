/*
 * htransformer results: the runs of scripts/lra.sh as a table beside the paper's.
 */
#include "base/json.h"
#include "commands.h"
#include "run/run.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

typedef struct results_values {
    const char *file;
    int markdown, best;
} results_values;

static const cli_option options[] = {
    {"markdown", CLI_FLAG, offsetof(results_values, markdown), .help = "as a Markdown table"},
    {"best", CLI_FLAG, offsetof(results_values, best),
     .help = "of each preset and attention the run that validates best"},
    {0},
};

/* Test accuracies: the Long Range Arena's Transformer and local attention, and H-Transformer-1D. */
static const struct {
    const char *task, *transformer, *local, *paper;
} published[] = {
    {"listops", "36.37", "15.82", "49.53"},    {"text", "64.27", "52.98", "78.69"},
    {"retrieval", "57.46", "53.39", "63.99"},  {"image", "42.44", "41.46", "46.05"},
    {"pathfinder", "71.40", "66.63", "68.78"}, {"pathx", "fail", "fail", "fail"},
};
enum { TASKS = sizeof published / sizeof *published };

typedef struct row {
    char task[32], preset[64], kind[32], commit[16];
    double block, seed, steps, seconds, valid, test, error;
    double fresh, pretrain; /* -1: there is none */
} row;

static bool text_of(char *out, size_t bytes, const cJSON *root, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    if (cJSON_IsString(item)) snprintf(out, bytes, "%s", item->valuestring);
    return cJSON_IsString(item);
}
static bool number_of(double *out, const cJSON *root, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    if (cJSON_IsNumber(item)) *out = item->valuedouble;
    return cJSON_IsNumber(item);
}

static bool read_row(row *r, const char *line, const char *file, int number, cli_error *error) {
    bool starved;
    cJSON *root = json_parse(line, &starved, error);
    bool good = text_of(r->task, sizeof r->task, root, "task") &&
                text_of(r->preset, sizeof r->preset, root, "preset") &&
                text_of(r->kind, sizeof r->kind, root, "attention") &&
                text_of(r->commit, sizeof r->commit, root, "commit") &&
                number_of(&r->block, root, "block") && number_of(&r->seed, root, "seed") &&
                number_of(&r->steps, root, "steps") && number_of(&r->seconds, root, "seconds") &&
                number_of(&r->valid, root, "valid_accuracy") &&
                number_of(&r->test, root, "test_accuracy") &&
                number_of(&r->error, root, "test_error");
    r->fresh = r->pretrain = -1;
    number_of(&r->fresh, root, "fresh_accuracy");
    number_of(&r->pretrain, root, "pretrain");
    cJSON_Delete(root);
    return good ||
           (!starved && cli_fail(error, "%s:%d: this is no run of scripts/lra.sh", file, number));
}

/* Rows by task in the paper's order, else as they came. */
static int task_number(const char *task) {
    int i = 0;
    while (i < TASKS && strcmp(published[i].task, task) != 0) i++;
    return i;
}

static void print_head(bool markdown) {
    if (markdown)
        printf(
            "| task | preset | attention | block | seed | steps | minutes | valid | test | fresh "
            "| Transformer in LRA | local in LRA | H-Transformer-1D | commit |\n"
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    else
        printf("task       preset           attention    block seed       steps minutes  valid"
               "          test  fresh | Transformer  local paper's | commit\n");
}

static void print_row(const row *r, bool markdown) {
    int i = task_number(r->task);
    const char *full = i < TASKS ? published[i].transformer : "";
    const char *local = i < TASKS ? published[i].local : "";
    const char *paper = i < TASKS ? published[i].paper : "";
    const char *run = markdown ? "| %s | %s | %s | %.0f | %.0f | %s | %.1f | "
                               : "%-10s %-16s %-12s %5.0f %4.0f %11s %7.1f ";
    const char *beside = markdown ? "%.2f | %.2f +- %.2f | %s | %s | %s | %s | %s |\n"
                                  : "%6.2f %5.2f +- %4.2f %6s | %11s %6s %7s | %s\n";
    char fresh[16] = "", steps[48];
    if (r->fresh >= 0) snprintf(fresh, sizeof fresh, "%.2f", 100 * r->fresh);
    if (r->pretrain >= 0)
        snprintf(steps, sizeof steps, "%.0f+%.0f", r->pretrain, r->steps);
    else
        snprintf(steps, sizeof steps, "%.0f", r->steps);
    printf(run, r->task, r->preset, r->kind, r->block, r->seed, steps, r->seconds / 60);
    printf(beside, 100 * r->valid, 100 * r->test, 100 * r->error, fresh, full, local, paper,
           r->commit);
}

static bool same_setting(const row *a, const row *b) {
    return strcmp(a->preset, b->preset) == 0 && strcmp(a->kind, b->kind) == 0;
}

/* No other run of the same preset and attention validates better; of equals the first. */
static bool is_best(const row *rows, int count, int at) {
    for (int i = 0; i < count; i++) {
        bool better = rows[i].valid > rows[at].valid || (rows[i].valid == rows[at].valid && i < at);
        if (better && same_setting(&rows[i], &rows[at])) return false;
    }
    return true;
}

static bool print(const results_values *v, cli_error *error) {
    char *text = run_read_text(v->file, error), *rest = text;
    int count = 0, room = 0, number = 0;
    row *rows = NULL;
    bool good = text != NULL;
    while (good && rest && *rest) {
        char *line = rest, *end = strchr(rest, '\n');
        rest = end ? end + 1 : NULL;
        if (end) *end = '\0';
        number++;
        if (!*line) continue;
        if (count == room) {
            row *more = realloc(rows, sizeof *rows * (size_t)(room = 2 * room + 16));
            good = more || cli_fail(error, "out of memory");
            rows = more ? more : rows;
        }
        good = good && read_row(&rows[count], line, v->file, number, error);
        count += good;
    }
    if (good) print_head(v->markdown);
    for (int task = 0; task <= TASKS && good; task++)
        for (int i = 0; i < count; i++)
            if (task_number(rows[i].task) == task && (!v->best || is_best(rows, count, i)))
                print_row(&rows[i], v->markdown);
    free(rows);
    free(text);
    return good;
}

static int run(const void *values) {
    cli_error error = {""};
    if (print(values, &error)) return CLI_OK;
    cli_say("results", "%s", error.text);
    return CLI_FAILED;
}

const cli_command cli_results = {
    .name = "results",
    .summary = "runs of scripts/lra.sh beside the paper's numbers",
    .about = "FILE has one JSON object per run: results/lra.jsonl. Steps are those of\n"
             "guessing tokens, if there were any, + those with labels.\n",
    .options = options,
    .word = "FILE",
    .word_offset = offsetof(results_values, file),
    .values_bytes = sizeof(results_values),
    .run = run,
};
