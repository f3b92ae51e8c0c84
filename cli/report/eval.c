/*
 * A run's model on data: the confusion matrix of a classifier, or a language model's loss by
 * position.
 */
#include "report/report.h"

#include "run/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where the run had its validation data, --valid, or the held-out part of --data, or generated. */
static void own_data(const run_places *p, ht_data_desc *desc) {
    desc->part = HT_PART_VALID;
    desc->path = p->valid[0] ? p->valid : p->data[0] ? p->data : NULL;
    desc->papers = p->papers[0] ? p->papers : NULL;
    desc->holdout = p->data[0] && !p->valid[0] ? p->holdout : 0;
}

typedef struct counter {
    report_eval *e;
    run_model *m;
    float *out;        /* logits or losses of a batch */
    ht_linear *linear; /* or NULL */
    const ht_data *data;
    float *scores; /* what it gives for a batch */
    double sum[REPORT_POSITIONS], count[REPORT_POSITIONS];
} counter;

static void count_losses(counter *c, const ht_batch *batch) {
    int64_t length = setting_int(c->m->config, "length");
    for (int64_t i = 0; i < batch->sequences; i++)
        for (int32_t k = batch->cu_seqlens[i]; k < batch->cu_seqlens[i + 1]; k++) {
            if (batch->targets[k] < 0) continue;
            int64_t at = (k - batch->cu_seqlens[i]) * c->e->positions / length;
            c->sum[at] += c->out[k] / log(2);
            c->count[at]++;
            c->e->loss += c->out[k];
            c->e->items++;
        }
}

/* The answer of both, and what each says alone. */
static bool count_answers(counter *c, const ht_batch *batch, cli_error *error) {
    report_eval *e = c->e;
    linear_batch b = {
        .data = c->data, .first = (int64_t)e->classes.items, .scores = c->scores, .logits = c->out};
    if (c->linear) {
        score_add(&e->alone[1], batch, c->out);
        if (!linear_add(c->linear, c->m->ctx, &b, batch->sequences, error)) return false;
        score_add(&e->alone[0], batch, c->scores);
    }
    score_add(&e->classes, batch, c->out);
    return true;
}

static bool run_batches(counter *c, ht_data *data, cli_error *error) {
    ht_batch batch = HT_BATCH_INIT;
    ht_status status = HT_OK;
    while ((status = ht_data_next(data, &batch)) == HT_OK) {
        status = ht_trainer_predict(c->m->trainer, &batch, c->out);
        if (status != HT_OK) break;
        if (c->e->language)
            count_losses(c, &batch);
        else if (!count_answers(c, &batch, error))
            return false;
    }
    if (status != HT_OK && status != HT_END)
        return cli_fail(error, "%s", ht_context_error(c->m->ctx));
    if (!c->e->language) {
        c->e->items = (int64_t)c->e->classes.items;
        c->e->loss = c->e->classes.loss;
        c->e->accuracy = c->e->classes.correct;
    }
    return c->e->items > 0 || cli_fail(error, "the data holds nothing to evaluate on");
}

static void finish(counter *c) {
    report_eval *e = c->e;
    int64_t length = setting_int(c->m->config, "length");
    e->loss /= (double)e->items;
    e->accuracy /= (double)e->items;
    for (int p = 0; p < e->positions; p++) {
        e->position[p] = ((double)p + 0.5) * (double)length / e->positions;
        e->bits[p] = c->count[p] ? c->sum[p] / c->count[p] : NAN;
    }
    e->done = true;
}

static bool begin_linear(counter *c, const ht_labels *labels, size_t numbers, cli_error *error) {
    if (!c->linear) return true;
    c->e->linear = true;
    linear_words(c->e->chosen, c->linear);
    c->scores = malloc(numbers * sizeof *c->scores);
    return (c->scores || cli_fail(error, "out of memory")) &&
           score_begin(&c->e->alone[0], labels, c->m->config, error) &&
           score_begin(&c->e->alone[1], labels, c->m->config, error);
}

static bool evaluate(report_run *r, run_model *m, const report_values *v, cli_error *error) {
    const ht_config *config = m->config;
    report_eval *e = &r->eval;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data = NULL;
    run_places own = {.rows = v->rows};
    counter *c = calloc(1, sizeof *c);
    int64_t length = setting_int(config, "length"), classes = setting_int(config, "classes");
    size_t room = (size_t)(setting_int(config, "batch") * (length > classes ? length : classes));
    e->language = setting_is(config, "task", "language");
    e->positions = !e->language ? 0 : length < REPORT_POSITIONS ? (int)length : REPORT_POSITIONS;
    bool good = run_places_read(&own, r->path, error) || v->data;
    ht_rows_desc rows = run_rows_desc(&own.rows);
    own_data(&own, &desc);
    desc.rows = &rows;
    desc.labels = ht_model_labels(m->model);
    desc.items = v->items;
    if (v->data) desc.path = v->data, desc.holdout = 0, desc.part = HT_PART_TEST;
    desc.tokenizer = m->tokenizer;
    desc.config = config;
    good = good && (c || cli_fail(error, "out of memory"));
    if (good) {
        c->e = e;
        c->m = m;
        c->out = malloc(room * sizeof *c->out);
        good = c->out || cli_fail(error, "out of memory");
    }
    good = good && (e->language || score_begin(&e->classes, desc.labels, config, error));
    good = good && linear_find(&c->linear, m, error) && begin_linear(c, desc.labels, room, error);
    desc.keep_texts = good && c->linear;
    if (good && !desc.path && !setting_makes_items(config))
        good = cli_fail(error, "the run does not say where its data is; give --data");
    if (good && ht_data_open(&data, m->ctx, &desc) != HT_OK)
        good = cli_fail(error, "%s", ht_context_error(m->ctx));
    if (good) c->data = data;
    good = good && run_batches(c, data, error);
    if (good) finish(c);
    ht_data_close(data);
    if (c) ht_linear_destroy(c->linear), free(c->scores), free(c->out);
    free(c);
    return good;
}

bool report_evaluate(report_run *r, const report_values *v, cli_error *error) {
    run_model m;
    int code;
    bool good = run_open(&m, r->path, v->last, 0, -1, v->device, v->threads, &code, error);
    if (good) {
        good = evaluate(r, &m, v, error);
        run_close(&m);
    }
    if (good) return true;
    if (cli_starved(error)) return false;
    snprintf(r->eval.problem, sizeof r->eval.problem, "%s", error->text);
    cli_note("report", "%s: %s", r->path, error->text);
    return true;
}
