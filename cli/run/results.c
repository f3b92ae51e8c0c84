/*
 * htransformer results: the runs of scripts/lra.sh as a table beside the paper's.
 */
#include "base/json.h"
#include "commands.h"
#include "run/run.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct results_values {
    const char *file;
    int markdown, best, seeds;
} results_values;

static const cli_option options[] = {
    {"markdown", CLI_FLAG, offsetof(results_values, markdown), .help = "as a Markdown table"},
    {"best", CLI_FLAG, offsetof(results_values, best),
     .help = "of each preset and attention the run that validates best"},
    {"seeds", CLI_FLAG, offsetof(results_values, seeds),
     .help = "runs that differ in the seed alone together: mean, standard error, each seed"},
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
    char args[1024], pretrain_args[1024];
    double block, seed, steps, seconds, valid, test, error;
    double fresh, pretrain, batch; /* -1: there is none */
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
    r->fresh = r->pretrain = r->batch = -1;
    r->args[0] = r->pretrain_args[0] = '\0';
    text_of(r->args, sizeof r->args, root, "args");
    text_of(r->pretrain_args, sizeof r->pretrain_args, root, "pretrain_args");
    number_of(&r->batch, root, "batch");
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

/* Steps of guessing tokens, if there were any, + those with labels. */
static void write_steps(char out[48], const row *r) {
    if (r->pretrain >= 0)
        snprintf(out, 48, "%.0f+%.0f", r->pretrain, r->steps);
    else
        snprintf(out, 48, "%.0f", r->steps);
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
    write_steps(steps, r);
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

/* ---- seeds ---- */

typedef struct runs {
    const row *all;
    int count;
} runs;

static bool same_recipe(const row *a, const row *b) {
    return same_setting(a, b) && strcmp(a->args, b->args) == 0 &&
           strcmp(a->pretrain_args, b->pretrain_args) == 0 && a->steps == b->steps &&
           a->pretrain == b->pretrain && a->batch == b->batch && a->block == b->block;
}

/* The run of the recipe of `like` with the next larger seed; of several the last. -1: none. */
static int next_seed(const runs *r, const row *like, double after) {
    int at = -1;
    for (int i = 0; i < r->count; i++)
        if (same_recipe(&r->all[i], like) && r->all[i].seed > after &&
            (at < 0 || r->all[i].seed <= r->all[at].seed))
            at = i;
    return at;
}

typedef enum measure { OF_VALID, OF_TEST, OF_FRESH } measure;
static double measured(const row *r, measure what) {
    return what == OF_VALID ? r->valid : what == OF_TEST ? r->test : r->fresh;
}

/* Mean over the seeds, and its standard error (of one seed: -1). count 0: some run has none. */
typedef struct spread {
    double mean, error;
    int count;
} spread;

static spread spread_of(const runs *r, const row *like, measure what) {
    spread s = {0, -1, 0};
    double square = 0;
    for (int i = next_seed(r, like, -1); i >= 0; i = next_seed(r, like, r->all[i].seed)) {
        double x = 100 * measured(&r->all[i], what), off = x - s.mean;
        if (x < 0) return (spread){0, -1, 0};
        s.mean += off / ++s.count;
        square += off * (x - s.mean);
    }
    if (s.count > 1) s.error = sqrt(square / (s.count - 1) / s.count);
    return s;
}

/* The first of its recipe; with `best`, no other recipe of its preset and attention validates
 * better in the mean. */
static bool leads(const runs *r, int at, bool best) {
    const row *own = &r->all[at];
    double mean = spread_of(r, own, OF_VALID).mean;
    for (int i = 0; i < r->count; i++) {
        const row *other = &r->all[i];
        if (i < at && same_recipe(other, own)) return false;
        if (!best || !same_setting(other, own) || same_recipe(other, own)) continue;
        double theirs = spread_of(r, other, OF_VALID).mean;
        if (theirs > mean || (theirs == mean && i < at)) return false;
    }
    return true;
}

static void write_spread(char out[32], spread s) {
    if (s.count == 0)
        *out = '\0';
    else if (s.error < 0)
        snprintf(out, 32, "%.2f, one seed", s.mean);
    else
        snprintf(out, 32, "%.2f +- %.2f", s.mean, s.error);
}

static void print_seeds_head(bool markdown) {
    if (markdown)
        printf("| task | preset | attention | block | steps | seeds | valid | test | fresh "
               "| each seed: test (fresh) |\n|---|---|---|---|---|---|---|---|---|---|\n");
    else
        printf("task       preset           attention    block       steps seeds  valid"
               "            test           fresh | each seed: test (fresh)\n");
}

static void print_seeds(const runs *r, const row *like, bool markdown) {
    char steps[48], test[32], fresh[32];
    spread valid = spread_of(r, like, OF_VALID);
    write_steps(steps, like);
    write_spread(test, spread_of(r, like, OF_TEST));
    write_spread(fresh, spread_of(r, like, OF_FRESH));
    printf(markdown ? "| %s | %s | %s | %.0f | %s | %d | %.2f | %s | %s | "
                    : "%-10s %-16s %-12s %5.0f %11s %5d %6.2f %15s %15s | ",
           like->task, like->preset, like->kind, like->block, steps, valid.count, valid.mean, test,
           fresh);
    const char *comma = "";
    for (int i = next_seed(r, like, -1); i >= 0; i = next_seed(r, like, r->all[i].seed)) {
        printf("%s%.0f: %.2f", comma, r->all[i].seed, 100 * r->all[i].test);
        if (r->all[i].fresh >= 0) printf(" (%.2f)", 100 * r->all[i].fresh);
        comma = ", ";
    }
    printf(markdown ? " |\n" : "\n");
}

/* ---- the table ---- */

static void print_all(const results_values *v, const runs *r) {
    if (v->seeds)
        print_seeds_head(v->markdown);
    else
        print_head(v->markdown);
    for (int task = 0; task <= TASKS; task++)
        for (int i = 0; i < r->count; i++) {
            if (task_number(r->all[i].task) != task) continue;
            if (v->seeds && leads(r, i, v->best))
                print_seeds(r, &r->all[i], v->markdown);
            else if (!v->seeds && (!v->best || is_best(r->all, r->count, i)))
                print_row(&r->all[i], v->markdown);
        }
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
    if (good) print_all(v, &(runs){rows, count});
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
             "guessing tokens, if there were any, + those with labels.\n"
             "With --seeds, of a seed that was run twice the later line counts, and\n"
             "--best takes the flags with the best mean of validation.\n",
    .options = options,
    .word = "FILE",
    .word_offset = offsetof(results_values, file),
    .values_bytes = sizeof(results_values),
    .run = run,
};
