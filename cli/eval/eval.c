/*
 * htransformer eval: how good a trained model is on data, with the error that the number of items
 * leaves.
 */
#include "base/json.h"
#include "eval/distance.h"
#include "eval/measure.h"
#include "eval/needle.h"
#include "run/linear.h"
#include "run/rows.h"
#include "run/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct eval_values {
    const char *run, *data, *papers, *device;
    int64_t threads, fresh, items, length, open;
    double holdout;
    int json, last, part, by_position;
    run_rows rows;
    cli_ints needle, depth;
} eval_values;

static const char *const parts[] = {"train", "valid", "test", NULL};

static const cli_option options[] = {
    {"data", CLI_READ, offsetof(eval_values, data), "PATH",
     .help = "a file, folder or - for stdin, as in train; without it listops, pathfinder, "
             "copy and recall make their items"},
    {"papers", CLI_READ, offsetof(eval_values, papers), "PATH", .help = "as in train"},
    {"part", CLI_CHOICE, offsetof(eval_values, part), NULL, "test", parts,
     .help = "which of the items that are made, or with --holdout of the data"},
    {"holdout", CLI_REAL, offsetof(eval_values, holdout), "SHARE", "0", .min = 0, .max = 1,
     .help = "as in train: --part valid is what it held out of --data"},
    {"fresh", CLI_INT, offsetof(eval_values, fresh), "N", "0", .min = 0, .max = 1000000000,
     .help = "make N items from another seed than the run's, never seen in training"},
    {"items", CLI_INT, offsetof(eval_values, items), "N", "0", .min = 0, .max = 1000000000,
     .help = "no more than N items, the first ones; 0: all"},
    {"length", CLI_INT, offsetof(eval_values, length), "N", "0", .min = 0, .max = 134217728,
     .help = "tokens of a text, or of a language model's context; 0: as in training"},
    RUN_OPEN_OPTION(eval_values, open),
    RUN_ROWS_OPTIONS(eval_values, rows),
    {"last", CLI_FLAG, offsetof(eval_values, last), .help = "the newest checkpoint, not the best"},
    {"by_position", CLI_FLAG, offsetof(eval_values, by_position),
     .help = "language models: loss by position in the context, too"},
    {"needle", CLI_INTS, offsetof(eval_values, needle), "N", .min = NEEDLE_SHORTEST,
     .max = 134217728,
     .help = "language models: a number is hidden in texts of N bytes, of --data if "
             "given, and asked for at their end; one length or a list"},
    {"depth", CLI_INTS, offsetof(eval_values, depth), "D", "0,25,50,75,100", .max = 100,
     .help = "needle: how deep in the text, in per cent; a list"},
    {"json", CLI_FLAG, offsetof(eval_values, json), .help = "one JSON object instead of text"},
    {"device", CLI_TEXT, offsetof(eval_values, device), "NAME",
     .help = "as in htransformer info; default auto"},
    {"threads", CLI_INT, offsetof(eval_values, threads), "N", "0", .min = 0, .max = 4096,
     .help = "CPU threads; 0: all"},
    {0},
};

/* Sums over items, each of one kind of model. */
typedef struct totals {
    double loss, correct, targets; /* guessed tokens */
    measure language;
    distance far; /* items that say which of their tokens count */
    score classes;
    float *out;           /* losses or logits of a batch */
    unsigned char *right; /* language models: was a token guessed? */
    ht_linear *linear;    /* or NULL; then also: */
    ht_data *data;
    score alone[2]; /* the linear model, the Transformer */
    float *scores;  /* of a batch */
} totals;

static bool add_report(totals *t, run_model *m, const ht_batch *batch) {
    ht_report r = HT_REPORT_INIT;
    if (ht_trainer_evaluate(m->trainer, batch, &r) != HT_OK) return false;
    t->loss += r.loss * (double)r.targets;
    t->correct += (double)r.correct;
    t->targets += (double)r.targets;
    return true;
}

/* From the Transformer's logits to the answer's. */
static bool add_linear(totals *t, run_model *m, const ht_batch *batch, cli_error *error) {
    linear_batch b = {
        .data = t->data, .first = (int64_t)t->classes.items, .scores = t->scores, .logits = t->out};
    score_add(&t->alone[1], batch, t->out);
    if (!linear_add(t->linear, m->ctx, &b, batch->sequences, error)) return false;
    score_add(&t->alone[0], batch, t->scores);
    return true;
}

static bool add_batch(totals *t, run_model *m, const ht_batch *batch, cli_error *error) {
    if (setting_is(m->config, "task", "denoise"))
        return add_report(t, m, batch) || cli_fail(error, "%s", ht_context_error(m->ctx));
    if (batch->back) {
        if (ht_trainer_guess(m->trainer, batch, t->out, t->right) != HT_OK)
            return cli_fail(error, "%s", ht_context_error(m->ctx));
        distance_add(&t->far, batch, t->out, t->right);
        return true;
    }
    if (ht_trainer_predict(m->trainer, batch, t->out) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(m->ctx));
    if (t->linear && !add_linear(t, m, batch, error)) return false;
    if (setting_is(m->config, "task", "language"))
        measure_add(&t->language, batch, t->out);
    else
        score_add(&t->classes, batch, t->out);
    return true;
}

static bool begin_classes(totals *t, const run_model *m, size_t numbers, cli_error *error) {
    const ht_labels *labels = ht_model_labels(m->model);
    if (!score_begin(&t->classes, labels, m->config, error)) return false;
    if (!t->linear) return true;
    t->scores = malloc(sizeof *t->scores * numbers);
    return (t->scores || cli_fail(error, "out of memory")) &&
           score_begin(&t->alone[0], labels, m->config, error) &&
           score_begin(&t->alone[1], labels, m->config, error);
}

static bool evaluate(totals *t, run_model *m, ht_data *data, cli_error *error) {
    const ht_config *c = m->config;
    ht_batch batch = HT_BATCH_INIT;
    ht_status status;
    bool language = setting_is(c, "task", "language");
    bool classify = !language && !setting_is(c, "task", "denoise");
    int64_t each = setting_int(c, language ? "length" : "classes");
    t->language.tokenizer = m->tokenizer;
    t->language.documents = setting_word(c, "documents");
    size_t room = (size_t)(setting_int(c, "batch") * each);
    if (classify && !begin_classes(t, m, room, error)) return false;
    t->data = data;
    t->out = malloc(sizeof *t->out * room);
    t->right = malloc(room);
    if (!t->out || !t->right) return cli_fail(error, "out of memory");
    while ((status = ht_data_next(data, &batch)) == HT_OK)
        if (!add_batch(t, m, &batch, error)) return false;
    return status == HT_END || cli_fail(error, "%s", ht_context_error(m->ctx));
}

/* The standard error of a share of n. */
static double error_of(double share, double n) { return sqrt(share * (1 - share) / n); }

static void json_scores(json_writer *json, double targets, double loss, double correct) {
    json_int(json, "targets", (int64_t)targets);
    json_real(json, "loss", loss / targets);
    json_real(json, "accuracy", correct / targets);
    json_real(json, "accuracy_error", error_of(correct / targets, targets));
}

static void json_linear(const totals *t, json_writer *json) {
    static const char *const names[] = {"linear", "transformer"};
    ht_linear_info info = HT_LINEAR_INFO_INIT;
    if (ht_linear_get_info(t->linear, &info) != HT_OK) return;
    for (int i = 0; i < 2; i++) {
        const score *s = &t->alone[i];
        json_open(json, names[i], '{');
        json_real(json, "weight", i ? info.model_weight : info.linear_weight);
        json_real(json, "loss", s->loss / s->items);
        json_real(json, "accuracy", s->correct / s->items);
        json_close(json, '}');
    }
}

static void print_json(const totals *t, const run_model *m, int by_position) {
    const score *s = &t->classes;
    json_writer json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_text(&json, "model", m->path);
    if (t->far.all.tokens > 0) {
        distance_json(&t->far, &json);
    } else if (setting_is(m->config, "task", "language")) {
        measure_json(&t->language, &json, by_position);
    } else if (setting_is(m->config, "task", "denoise")) {
        json_scores(&json, t->targets, t->loss, t->correct);
    } else {
        json_scores(&json, s->items, s->loss, s->correct);
        json_real(&json, "majority", score_majority(s));
        if (t->linear) json_linear(t, &json);
        score_json(s, &json);
    }
    json_close(&json, '}');
    putchar('\n');
}

/* Each alone; losses of scores that nobody weighed would mean nothing. */
static void print_linear(const totals *t) {
    const score *linear = &t->alone[0], *model = &t->alone[1];
    char words[64];
    printf("  the linear model alone %.2f %%, the Transformer alone %.2f %%; validation chose %s\n",
           100 * linear->correct / linear->items, 100 * model->correct / model->items,
           linear_words(words, t->linear));
}

static void print_classes(const totals *t, const char *path) {
    const score *s = &t->classes;
    double right = s->correct / s->items;
    printf("accuracy %.2f +- %.2f %% of %.0f items, loss %.4f; the largest class alone %.2f %% "
           "(%s)\n",
           100 * right, 100 * error_of(right, s->items), s->items, s->loss / s->items,
           100 * score_majority(s), path);
    if (t->linear) print_linear(t);
    score_print(s);
}

static void print(const totals *t, const run_model *m, const eval_values *v) {
    double right = t->correct / t->targets;
    if (v->json)
        print_json(t, m, v->by_position);
    else if (t->far.all.tokens > 0)
        distance_print(&t->far, m->path);
    else if (setting_is(m->config, "task", "language"))
        measure_print(&t->language, m->path, v->by_position);
    else if (setting_is(m->config, "task", "denoise"))
        printf("accuracy %.2f +- %.2f %% of %.0f %s tokens, loss %.4f (%s)\n", 100 * right,
               100 * error_of(right, t->targets), t->targets,
               setting_real(m->config, "hide") > 0 ? "hidden" : "next", t->loss / t->targets,
               m->path);
    else
        print_classes(t, m->path);
}

/* Items that no run has seen. */
static bool set_fresh(ht_config *config, int64_t items) {
    return ht_config_set_int(config, "valid_items", items) == HT_OK &&
           ht_config_set_int(config, "data_seed", setting_int(config, "data_seed") + 1) == HT_OK;
}

static bool open_data(ht_data **out, run_model *m, const eval_values *v, const ht_linear *linear,
                      cli_error *error) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    run_rows how = v->rows;
    if (!run_rows_of(&how, m, error)) return false;
    ht_rows_desc rows = run_rows_desc(&how);
    bool made = setting_makes_items(m->config);
    desc.config = m->config;
    desc.path = v->data;
    desc.papers = v->papers;
    desc.holdout = v->holdout;
    desc.part = (ht_part)v->part;
    desc.tokenizer = m->tokenizer;
    desc.rows = &rows;
    desc.labels = ht_model_labels(m->model);
    desc.items = v->items;
    desc.keep_texts = linear != NULL;
    if (v->fresh && (v->data || !made))
        return cli_fail(error, "--fresh is for items that are made, without --data");
    if (!v->data && !made)
        return cli_fail(error, "--data is missing: what should it be evaluated on?");
    if (v->fresh) desc.part = HT_PART_TEST;
    if ((v->fresh && !set_fresh(m->config, v->fresh)) || ht_data_open(out, m->ctx, &desc) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(m->ctx));
    if (!cli_quiet()) run_rows_print(stderr, *out);
    return true;
}

/* ---- the needle test ---- */

/* One length: a model of its own, as what it holds depends on it. */
static bool needle_length(needle_table *t, int i, needle_hay *hay, const eval_values *v, int *code,
                          cli_error *error) {
    enum { HAY = 1 << 26, ITEMS = 20 };
    run_model m;
    eval_values all = *v; /* --items are texts that are made */
    ht_data *data = NULL;
    int64_t length = t->lengths.at[i];
    all.items = 0;
    if (!run_open(&m, v->run, v->last, length, v->open, v->device, v->threads, code, error))
        return false;
    bool good = needle_fits(&m, error);
    if (good && v->data && hay->count == 0)
        good = open_data(&data, &m, &all, NULL, error) && needle_gather(hay, data, &m, HAY, error);
    good = good && needle_measure(t->cell[i], &t->depths, &m, length, v->items ? v->items : ITEMS,
                                  hay, error);
    if (good && i + 1 == t->lengths.count && v->json) needle_json(t, m.path);
    if (good && i + 1 == t->lengths.count && !v->json) needle_print(t, m.path);
    ht_data_close(data);
    run_close(&m);
    return good;
}

static int run_needle(const eval_values *v) {
    needle_table *t = calloc(1, sizeof *t);
    needle_hay hay = {0};
    cli_error error = {""};
    int code = CLI_FAILED;
    bool good = t || cli_fail(&error, "out of memory");
    if (good) t->lengths = v->needle, t->depths = v->depth;
    for (int i = 0; good && i < t->lengths.count; i++)
        good = needle_length(t, i, &hay, v, &code, &error);
    if (!good) cli_say("eval", "%s", error.text);
    free(hay.bytes);
    free(t);
    return good ? CLI_OK : code;
}

static int run(const void *values) {
    const eval_values *v = values;
    if (v->needle.count) return run_needle(v);
    run_model m;
    totals t = {0};
    ht_data *data = NULL;
    cli_error error = {""};
    int code;
    if (!run_open(&m, v->run, v->last, v->length, v->open, v->device, v->threads, &code, &error)) {
        cli_say("eval", "%s", error.text);
        return code;
    }
    bool good = linear_find(&t.linear, &m, &error) && open_data(&data, &m, v, t.linear, &error) &&
                evaluate(&t, &m, data, &error);
    if (good)
        print(&t, &m, v);
    else
        cli_say("eval", "%s", error.text);
    score_free(&t.classes);
    for (int i = 0; i < 2; i++) score_free(&t.alone[i]);
    free(t.out);
    free(t.right);
    free(t.scores);
    ht_linear_destroy(t.linear);
    ht_data_close(data);
    run_close(&m);
    return good ? CLI_OK : CLI_FAILED;
}

const cli_command cli_eval = {
    .name = "eval",
    .summary = "how good a trained model is, with standard error",
    .about =
        "RUN is a run folder of train, or a checkpoint itself. Language models: bits per byte, "
        "loss and perplexity per token and per word; errors come from the spread over "
        "sequences. Of items that say which of their tokens count (copy, recall): accuracy by how "
        "far back the answer stands.\n"
        "--needle says how often a language model finds a number that was said once, by the length "
        "of the text and how deep the number lies; --items texts each, default 20.\n",
    .options = options,
    .word = "RUN",
    .word_offset = offsetof(eval_values, run),
    .values_bytes = sizeof(eval_values),
    .run = run,
};
