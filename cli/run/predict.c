/*
 * htransformer predict: labels for texts, one per line; of a language model, how many bits each
 * line takes.
 */
#include "base/json.h"
#include "base/save.h"
#include "run/linear.h"
#include "run/rows.h"
#include "run/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct predict_values {
    const char *run, *text, *data, *device;
    int64_t threads;
    int json, last;
    run_rows rows;
} predict_values;

static const cli_option options[] = {
    {"text", CLI_TEXT, offsetof(predict_values, text), "TEXT",
     .help = "one text; a pair: text<TAB>text"},
    {"data", CLI_READ, offsetof(predict_values, data), "FILE",
     .help = "texts without labels, one per line; - or nothing: stdin. CSV and JSONL by their "
             "name, or with --rows or --text_column, as in train"},
    RUN_ROWS_OPTIONS(predict_values, rows),
    {"last", CLI_FLAG, offsetof(predict_values, last),
     .help = "the newest checkpoint, not the best"},
    {"json", CLI_FLAG, offsetof(predict_values, json), .help = "one JSON object per line"},
    {"device", CLI_TEXT, offsetof(predict_values, device), "NAME",
     .help = "as in htransformer info; default auto"},
    {"threads", CLI_INT, offsetof(predict_values, threads), "N", "0", .min = 0, .max = 4096,
     .help = "CPU threads; 0: all"},
    {0},
};

typedef struct predictor {
    run_model m;
    int32_t *tokens, *targets;
    float *out;        /* logits, or losses */
    ht_linear *linear; /* or NULL */
    float *scores;     /* what it gives */
    int64_t length;
    bool language, pairs;
    int json;
    long long line;
} predictor;

/* The text in one line: what would end it is a space. */
static void print_text(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) putchar(text[i] == '\n' || text[i] == '\r' ? ' ' : text[i]);
    putchar('\n');
}

static void print_line(const predictor *p, const char *text, size_t bytes) {
    const ht_labels *labels = ht_model_labels(p->m.model);
    json_writer json = {.out = stdout};
    int64_t best = 0, classes = ht_labels_count(labels);
    double sum = 0, top = p->out[0];
    for (int64_t i = 1; i < classes; i++)
        if (p->out[i] > p->out[best]) best = i, top = p->out[i];
    for (int64_t i = 0; i < classes; i++) sum += exp(p->out[i] - top);
    if (!p->json) {
        printf("%s\t%.4f\t", ht_labels_name(labels, best), 1 / sum);
        print_text(text, bytes);
        return;
    }
    json_open(&json, NULL, '{');
    json_int(&json, "line", p->line);
    score_json_label(&json, "label", ht_labels_name(labels, best));
    json_real(&json, "probability", 1 / sum);
    json_open(&json, "probabilities", '{');
    for (int64_t i = 0; i < classes; i++)
        json_real(&json, ht_labels_name(labels, i), exp(p->out[i] - top) / sum);
    json_close(&json, '}');
    json_close(&json, '}');
    putchar('\n');
}

static void print_bits(const predictor *p, const char *text, size_t bytes, int64_t count,
                       int64_t encoded) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += p->out[i] / log(2);
    if (p->json) {
        json_writer json = {.out = stdout};
        json_open(&json, NULL, '{');
        json_int(&json, "line", p->line);
        json_real(&json, "bits_per_byte", sum / (double)encoded);
        json_int(&json, "bytes", encoded);
        json_close(&json, '}');
        putchar('\n');
    } else {
        printf("%.4f\t", sum / (double)encoded);
        print_text(text, bytes);
    }
}

/* Tokens of a text at `at`, at most `length`; returns how many, or -1. */
static int64_t encode(predictor *p, int64_t at, const char *text, size_t bytes, cli_error *error) {
    int64_t count = 0;
    ht_status status =
        p->m.tokenizer
            ? ht_tokenizer_encode(p->m.tokenizer, text, bytes, p->tokens + at, p->length, &count)
            : ht_data_encode(p->m.ctx, p->m.config, text, bytes, p->tokens + at, p->length, &count);
    if (status != HT_OK) {
        cli_fail(error, "line %lld: %s", p->line, ht_context_error(p->m.ctx));
        return -1;
    }
    if (count == 0) {
        cli_fail(error, "line %lld: the text is empty", p->line);
        return -1;
    }
    return count < p->length ? count : p->length;
}

/* A language model starts from token 0 and is asked for each byte. */
static bool language_line(predictor *p, const char *text, size_t bytes, cli_error *error) {
    int64_t n = encode(p, 1, text, bytes < (size_t)p->length ? bytes : (size_t)p->length, error);
    int32_t starts[2] = {0, (int32_t)n};
    ht_batch batch = {.size = sizeof batch,
                      .sequences = 1,
                      .tokens = p->tokens,
                      .cu_seqlens = starts,
                      .targets = p->targets};
    if (n < 0) return false;
    p->tokens[0] = 0;
    memcpy(p->targets, p->tokens + 1, sizeof *p->targets * (size_t)n);
    if (ht_trainer_predict(p->m.trainer, &batch, p->out) != HT_OK)
        return cli_fail(error, "line %lld: %s", p->line, ht_context_error(p->m.ctx));
    int64_t encoded = 0; /* bytes of the tokens that were asked for */
    for (int64_t i = 1; i <= n; i++) {
        size_t size;
        ht_tokenizer_piece(p->m.tokenizer, p->tokens[i], &size);
        encoded += (int64_t)size;
    }
    print_bits(p, text, bytes, n, encoded);
    return true;
}

/* other: the second text of a pair, or NULL. */
static bool classify(predictor *p, const char *text, size_t bytes, const char *other,
                     size_t other_bytes, cli_error *error) {
    bool pairs = other != NULL;
    int64_t n = encode(p, 0, text, bytes, error), second = 0;
    if (n >= 0 && pairs) second = encode(p, n, other, other_bytes, error);
    if (n < 0 || second < 0) return false;
    int32_t starts[3] = {0, (int32_t)n, (int32_t)(n + second)};
    ht_batch batch = {.size = sizeof batch,
                      .sequences = pairs ? 2 : 1,
                      .tokens = p->tokens,
                      .cu_seqlens = starts};
    bool good =
        linear_alone(p->linear) || ht_trainer_predict(p->m.trainer, &batch, p->out) == HT_OK;
    if (good && p->linear)
        good = ht_linear_scores(p->linear, text, bytes, p->scores) == HT_OK &&
               ht_linear_mix(p->linear, p->scores, p->out, p->out) == HT_OK;
    if (!good) return cli_fail(error, "line %lld: %s", p->line, ht_context_error(p->m.ctx));
    print_line(p, text, bytes);
    return true;
}

static bool classify_line(predictor *p, const char *text, size_t bytes, cli_error *error) {
    const char *tab = p->pairs ? memchr(text, '\t', bytes) : NULL;
    if (!p->pairs) return classify(p, text, bytes, NULL, 0, error);
    if (!tab) return cli_fail(error, "line %lld: a pair must be text<TAB>text", p->line);
    size_t first = (size_t)(tab - text);
    return classify(p, text, first, tab + 1, bytes - first - 1, error);
}

static bool one_line(predictor *p, const char *text, size_t bytes, cli_error *error) {
    p->line++;
    if (p->language) return language_line(p, text, bytes, error);
    return classify_line(p, text, bytes, error);
}

static bool all_lines(predictor *p, const char *path, cli_error *error) {
    bool standard = !path || strcmp(path, "-") == 0, good = true;
    FILE *f = standard ? stdin : save_open_stream(path, error);
    if (!f) return false;
    char *line = NULL;
    size_t room = 0;
    for (size_t n;
         good && save_line(f, standard ? "stdin" : path, &line, &room, &n, &good, error);) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        good = one_line(p, line, n, error);
    }
    free(line);
    if (!standard) fclose(f);
    return good;
}

/* ---- rows of CSV and the like ---- */

typedef struct row_reader {
    predictor *p;
    cli_error *error;
    bool good;
} row_reader;

static int one_row(void *user, const ht_row *row) {
    row_reader *r = user;
    predictor *p = r->p;
    p->line = row->line;
    if (p->language)
        r->good = language_line(p, row->text[0], row->text_bytes[0], r->error);
    else
        r->good = classify(p, row->text[0], row->text_bytes[0], row->text[1], row->text_bytes[1],
                           r->error);
    return !r->good;
}

static bool all_rows(predictor *p, const predict_values *v, const run_rows *how, cli_error *error) {
    row_reader r = {.p = p, .error = error, .good = true};
    ht_rows_desc desc = run_rows_desc(how);
    ht_rows_info info = HT_ROWS_INFO_INIT;
    desc.path = v->data ? v->data : "-";
    desc.texts = p->pairs ? 2 : 1;
    desc.unlabelled = 1;
    desc.each = one_row;
    desc.user = &r;
    ht_status status = ht_rows_read(p->m.ctx, &desc, &info);
    if (!r.good) return false;
    if (status != HT_OK) return cli_fail(error, "%s", ht_context_error(p->m.ctx));
    if (info.refused)
        cli_note("predict", "%lld rows were refused, the first: %s", (long long)info.refused,
                 info.refusal);
    return true;
}

static bool all_texts(predictor *p, const predict_values *v, cli_error *error) {
    run_rows how = v->rows;
    bool asked = how.kind >= 0 || how.header >= 0 || how.text_column;
    ht_rows_kind kind = v->data ? ht_rows_kind_of(v->data) : HT_ROWS_AUTO;
    if (!asked && kind != HT_ROWS_CSV && kind != HT_ROWS_JSONL) return all_lines(p, v->data, error);
    return run_rows_of(&how, &p->m, error) && all_rows(p, v, &how, error);
}

static bool allocate(predictor *p, cli_error *error) {
    size_t classes = (size_t)setting_int(p->m.config, "classes");
    p->length = setting_int(p->m.config, "length");
    p->language = setting_is(p->m.config, "task", "language");
    p->pairs = setting_is(p->m.config, "task", "pairs");
    size_t tokens = 2 * (size_t)p->length + 2, out = tokens > classes ? tokens : classes;
    p->tokens = malloc(sizeof *p->tokens * tokens);
    p->targets = malloc(sizeof *p->targets * tokens);
    p->out = calloc(out, sizeof *p->out);
    p->scores = malloc(sizeof *p->scores * (classes + 2));
    return (p->tokens && p->targets && p->out && p->scores) || cli_fail(error, "out of memory");
}

static int run(const void *values) {
    const predict_values *v = values;
    predictor p = {.json = v->json};
    cli_error error = {""};
    int code;
    if (!run_open(&p.m, v->run, v->last, 0, -1, v->device, v->threads, &code, &error)) {
        cli_say("predict", "%s", error.text);
        return code;
    }
    bool good =
        allocate(&p, &error) && linear_find(&p.linear, &p.m, &error) &&
        (v->text ? one_line(&p, v->text, strlen(v->text), &error) : all_texts(&p, v, &error));
    if (!good) cli_say("predict", "%s", error.text);
    free(p.tokens);
    free(p.targets);
    free(p.out);
    free(p.scores);
    ht_linear_destroy(p.linear);
    run_close(&p.m);
    return good ? CLI_OK : CLI_FAILED;
}

const cli_command cli_predict = {
    .name = "predict",
    .summary = "labels of texts, or a language model's bits per byte",
    .about = "RUN is a run folder of train, or a checkpoint itself. Prints label, probability and "
             "text, separated by "
             "tabs. Texts longer than the model's length are cut.\n",
    .options = options,
    .word = "RUN",
    .word_offset = offsetof(predict_values, run),
    .values_bytes = sizeof(predict_values),
    .run = run,
};
