/*
 * htransformer report: one page about one run or several, from what they left in their folders.
 */
#include "report/report.h"

#include "base/json.h"
#include "base/save.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off: tables */
#define AT(field) offsetof(report_values, field)
static const cli_option options[] = {
    {"out", CLI_WRITE, AT(out), "FILE", "report.html", .letter = 'o', .help = "the page"},
    {"evaluate", CLI_FLAG, AT(evaluate),
     .help = "also run the models on their validation data: confusion matrix, or loss by position"},
    {"data", CLI_READ, AT(data), "PATH", .help = "evaluate on this instead"},
    RUN_ROWS_OPTIONS(report_values, rows),
    {"items", CLI_INT, AT(items), "N", "1000", .min = 1, .max = 1 << 30,
     .help = "texts, or windows of text, to evaluate on at most"},
    {"text", CLI_TEXT, AT(text), "TEXT",
     .help = "also attention pictures of every layer on this text; @FILE: a file's contents"},
    {"last", CLI_FLAG, AT(last), .help = "the newest checkpoints, not the best"},
    {"json", CLI_FLAG, AT(json), .help = "print the comparison as one JSON object"},
    {"device", CLI_TEXT, AT(device), "NAME", .help = "as in htransformer info; default auto"},
    {"threads", CLI_INT, AT(threads), "N", "0", .min = 0, .max = 4096,
     .help = "CPU threads; 0: all"},
    {0},
};
#undef AT
/* clang-format on */

static void json_run(json_writer *json, const report_run *r) {
    int best = report_best(r), last = r->steps.count - 1;
    json_open(json, NULL, '{');
    json_text(json, "run", r->path);
    json_int(json, "steps", (int64_t)r->steps.at[COLUMN_STEP][last]);
    json_real(json, "loss", r->steps.at[COLUMN_LOSS][last]);
    if (best >= 0) {
        json_int(json, "best_step", (int64_t)r->valid.at[COLUMN_STEP][best]);
        json_real(json, "valid_loss", r->valid.at[COLUMN_LOSS][best]);
        json_real(json, "valid_accuracy", r->valid.at[COLUMN_ACCURACY][best]);
    }
    json_real(json, "tokens_per_s", r->throughput);
    json_real(json, "seconds", report_seconds(r));
    if (r->eval.done) {
        json_real(json, "data_loss", r->eval.loss);
        if (!r->eval.language) json_real(json, "data_accuracy", r->eval.accuracy);
    }
    json_close(json, '}');
}

static void print(const report_run *runs, int count, const report_values *v) {
    json_writer json = {.out = stdout};
    if (!v->json) {
        if (!cli_quiet()) printf("written: %s (%d run%s)\n", v->out, count, count > 1 ? "s" : "");
        return;
    }
    json_open(&json, NULL, '{');
    json_text(&json, "out", v->out);
    json_open(&json, "runs", '[');
    for (int i = 0; i < count; i++) json_run(&json, &runs[i]);
    json_close(&json, ']');
    json_close(&json, '}');
    putchar('\n');
}

static bool make(report_run *runs, int *count, const report_values *v, cli_error *error) {
    save_file save = {0};
    if (v->runs.count > REPORT_RUNS)
        return cli_fail(error, "at most %d runs fit on a page, got %d", REPORT_RUNS, v->runs.count);
    for (; *count < v->runs.count; ++*count)
        if (!report_read(&runs[*count], v->runs.at[*count], error)) {
            ++*count; /* what was read of it must go, too */
            return false;
        }
    bool good = save_open(&save, v->out, error); /* before the work */
    for (int i = 0; i < *count && good && (v->evaluate || v->data); i++)
        good = report_evaluate(&runs[i], v, error);
    good = good && report_page(save.file, runs, *count, v, error) && save_finish(&save, error) &&
           save_commit(&save, error);
    save_discard(&save);
    return good;
}

static int run(const void *values) {
    const report_values *v = values;
    report_run *runs = calloc(REPORT_RUNS, sizeof *runs);
    cli_error error = {""};
    int count = 0;
    bool good = runs || cli_fail(&error, "out of memory");
    good = good && make(runs, &count, v, &error);
    if (good)
        print(runs, count, v);
    else
        cli_say("report", "%s", error.text);
    for (int i = 0; i < count; i++) report_release(&runs[i]);
    free(runs);
    return good ? CLI_OK : CLI_FAILED;
}

const cli_command cli_report = {
    .name = "report",
    .summary = "one HTML page about runs: curves, comparison, settings",
    .about = "RUN is a run folder of train. The page needs no network and follows the reader's "
             "light or dark theme.\n"
             "Example: htransformer report demo other -o report.html --evaluate\n",
    .options = options,
    .word = "RUN",
    .word_offset = offsetof(report_values, runs),
    .many_words = 1,
    .values_bytes = sizeof(report_values),
    .run = run,
};
