/*
 * A whole run: steps, evaluations, checkpoints, the log; stop on divergence or when told to.
 *
 * Among ranks each does this with its share of every batch. What hangs on time or on a signal is
 * agreed on; rank 0 alone writes.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/file.h"
#include "core/sized.h"
#include "data/data.h"
#include "train/folder.h"

typedef struct run {
    ht_trainer *t;
    const ht_train_desc *desc;
    const ht_config *c;
    FILE *log;
    double start, first; /* when the run began, and its step then */
    int64_t bad;         /* steps in a row that were not applied */
    ht_batch ahead;      /* the next step's first batch, if has_ahead */
    int64_t ahead_from;  /* the data's position before it */
    int has_ahead;
} run;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* ---- ranks ---- */

static hti_part_of part_of(const run *r) {
    const hti_share *s = &r->t->share;
    return s->world ? (hti_part_of){s->rank, s->ranks} : (hti_part_of){0, 1};
}

static int writes(const run *r) { return r->t->share.rank == 0; }

/* Rank 0's status, for all. */
static ht_status agree_on(const run *r, ht_status status) {
    return hti_world_agree(r->t->share.world, status);
}

/* Rank 0's number, for all. */
static ht_status take_first(const run *r, int64_t *x) {
    return hti_world_from_first(r->t->share.world, x, sizeof *x);
}

/* Do all ranks begin at the same step, with the same data? */
static ht_status compare(const run *r) {
    const hti_share *s = &r->t->share;
    const ht_data *train = r->desc->train, *valid = r->desc->valid;
    const int64_t mine[3] = {r->t->step, train->items, valid ? valid->items : 0};
    static const char *const words[3] = {"begins at step", "trains on items:", "validates on:"};
    int64_t first[3];
    if (!s->world) return HT_OK;
    memcpy(first, mine, sizeof first);
    TRY(hti_world_from_first(s->world, first, sizeof first));
    ht_status status = HT_OK;
    for (int i = 0; i < 3 && status == HT_OK; i++)
        if (mine[i] != first[i])
            status = hti_fail(r->t->ctx, HT_INVALID,
                              "rank %d %s %lld, rank 0: %lld; do both see "
                              "the same files?",
                              s->rank, words[i], (long long)mine[i], (long long)first[i]);
    return agree_on(r, status);
}

/* ---- batches ---- */

static ht_status draw(run *r, ht_batch *out) {
    if (!r->has_ahead) return hti_data_draw(r->desc->train, out, part_of(r));
    *out = r->ahead;
    r->has_ahead = 0;
    return HT_OK;
}

/* While the device is at work on this step the host puts the next one's batch together. */
static ht_status draw_ahead(run *r) {
    if (r->t->step + 1 >= r->c->steps || r->desc->train == r->desc->valid) return HT_OK;
    r->ahead_from = ht_data_position(r->desc->train);
    r->ahead = (ht_batch)HT_BATCH_INIT;
    TRY(hti_data_draw(r->desc->train, &r->ahead, part_of(r)));
    r->has_ahead = 1;
    return HT_OK;
}

/* As if it had not been drawn: it will be again, and be the same. */
static ht_status forget_ahead(run *r) {
    if (!r->has_ahead) return HT_OK;
    r->has_ahead = 0;
    return ht_data_seek(r->desc->train, r->ahead_from);
}

/* ---- checkpoints ---- */

static ht_status save(run *r) {
    TRY(forget_ahead(r));
    int here = writes(r) || r->t->share.shards;
    return agree_on(r, here ? hti_folder_save(r->t, r->desc->train, r->desc->folder) : HT_OK);
}

static ht_status write_best(const run *r) {
    char *path = hti_path_join(r->t->ctx, r->desc->folder, "best.safetensors");
    CHECK(r->t->ctx, path, HT_NOMEM, "out of memory: the name of a checkpoint");
    ht_status status = ht_model_save(r->t->model, path);
    hti_host_free(r->t->ctx, path);
    return status;
}

static ht_status save_best(const run *r) { return agree_on(r, writes(r) ? write_best(r) : HT_OK); }

/* ---- the log ---- */

static ht_status log_open(run *r) {
    if (!writes(r)) return HT_OK;
    char *path = hti_path_join(r->t->ctx, r->desc->folder, "log.jsonl");
    CHECK(r->t->ctx, path, HT_NOMEM, "out of memory: the name of the log");
    ht_status status = hti_file_append(r->t->ctx, &r->log, path);
    hti_host_free(r->t->ctx, path);
    return status;
}

/* JSON has no word for what is not finite. */
static const char *number(char *out, size_t bytes, double x) {
    if (isfinite(x))
        snprintf(out, bytes, "%.9g", x);
    else
        snprintf(out, bytes, "null");
    return out;
}

static ht_status log_line(run *r, const char *prefix, const ht_report *report, double seconds) {
    char line[512], loss[32], norm[32];
    if (!r->log) return HT_OK;
    int n = snprintf(line, sizeof line,
                     "{\"step\":%lld,\"%sloss\":%s,\"%saccuracy\":%.6g,\"%stargets\":%lld",
                     (long long)r->t->step, prefix, number(loss, sizeof loss, report->loss), prefix,
                     report->accuracy, prefix, (long long)report->targets);
    if (!*prefix)
        n += snprintf(
            line + n, sizeof line - (size_t)n,
            ",\"rate\":%.9g,\"gradient_norm\":%s,\"applied\":%d,\"ms\":%.3f,\"tokens_per_s\":%.1f",
            report->rate, number(norm, sizeof norm, report->gradient_norm), report->applied,
            seconds * 1e3, (double)report->tokens / seconds);
    n += snprintf(line + n, sizeof line - (size_t)n, "}\n");
    return hti_file_add(r->t->ctx, r->log, "the log of the run", line, (size_t)n);
}

/* ---- evaluation ---- */

/* Of all ranks' shares. */
static ht_status add_up(const run *r, double *loss, ht_report *out) {
    double sums[4] = {*loss, (double)out->targets, (double)out->correct, (double)out->tokens};
    if (!r->t->share.world) return HT_OK;
    TRY(hti_world_add(r->t->share.world, sums, 4));
    *loss = sums[0];
    out->targets = (int64_t)sums[1];
    out->correct = (int64_t)sums[2];
    out->tokens = (int64_t)sums[3];
    return HT_OK;
}

static ht_status evaluate(run *r, ht_report *out) {
    ht_batch batch = HT_BATCH_INIT;
    double loss = 0;
    int64_t items = 0;
    ht_status status = HT_OK;
    *out = (ht_report)HT_REPORT_INIT;
    r->desc->valid->next = 0;
    while ((r->c->eval_items == 0 || items < r->c->eval_items) &&
           (status = hti_data_next(r->desc->valid, &batch, part_of(r))) == HT_OK) {
        ht_report part = HT_REPORT_INIT;
        items = r->desc->valid->next;
        if (batch.sequences == 0) continue; /* other ranks have what is left */
        TRY(ht_trainer_evaluate(r->t, &batch, &part));
        loss += part.loss * (double)part.targets;
        out->targets += part.targets;
        out->correct += part.correct;
        out->tokens += part.tokens;
    }
    if (status != HT_OK && status != HT_END) return status;
    TRY(add_up(r, &loss, out));
    out->loss = out->targets ? loss / (double)out->targets : 0;
    out->accuracy = out->targets ? (double)out->correct / (double)out->targets : 0;
    return HT_OK;
}

/* Larger is better: accuracy of classifiers, minus the loss of language models. Of two with the
 * same accuracy that with the smaller loss. */
static int is_best(run *r, const ht_report *valid) {
    ht_trainer *t = r->t;
    double score = hti_config_by_token(r->c) ? -valid->loss : valid->accuracy;
    int better =
        !t->has_best || score > t->best || (score == t->best && valid->loss < t->best_loss);
    t->stale++;
    if (!isfinite(score) || !isfinite(valid->loss) || !better) return 0;
    t->best = score;
    t->best_loss = valid->loss;
    t->has_best = 1;
    t->stale = 0;
    return 1;
}

/* ---- steps ---- */

static ht_status one_step(run *r, ht_report *report) {
    TRY(hti_step_begin(r->t));
    for (int64_t i = 0; i < r->c->accumulate; i++) {
        ht_batch batch = HT_BATCH_INIT;
        TRY(draw(r, &batch));
        TRY(hti_step_add(r->t, &batch, r->c->accumulate));
    }
    TRY(hti_step_update(r->t));
    TRY(draw_ahead(r));
    return hti_step_end(r->t, report);
}

/* As many steps as fit into the minutes at the pace so far; this one was the last: none. The
 * schedule follows. */
static ht_status plan(run *r, double elapsed) {
    ht_trainer *t = r->t;
    if (r->c->minutes <= 0) return HT_OK;
    double left = 60 * r->c->minutes - elapsed, each = elapsed / ((double)t->step - r->first);
    double more = left > 0 ? fmin(floor(left / each) + 1, 1e9) : 0;
    t->config.steps = t->step + (int64_t)more;
    return take_first(r, &t->config.steps);
}

/* The caller's word, or that of another rank's caller: a signal comes to one before the other. */
static ht_status ask(const run *r, const ht_event *event, int *told) {
    double said = r->desc->tell && r->desc->tell(r->desc->user, event);
    TRY(hti_world_add(r->t->share.world, &said, 1));
    *told = said > 0;
    return HT_OK;
}

static int due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* Evaluation and checkpoint after a step, then the word to the caller; *stop: the run is over. */
static ht_status after_step(run *r, const ht_report *report, double seconds, int *stop) {
    ht_report valid;
    int64_t step = r->t->step, every = r->c->save_every ? r->c->save_every : r->c->eval_every;
    double elapsed = now() - r->start, done = (double)step - r->first;
    TRY(plan(r, elapsed));
    int last = step >= r->c->steps, tired = 0, told;
    ht_event event = {.size = sizeof event,
                      .step = step,
                      .steps = r->c->steps,
                      .report = report,
                      .step_seconds = seconds,
                      .elapsed = elapsed,
                      .left = elapsed / done * (double)(r->c->steps - step)};
    TRY(log_line(r, "", report, seconds));
    if (r->desc->valid && (last || due(r->c->eval_every, step))) {
        TRY(evaluate(r, &valid));
        TRY(log_line(r, "valid_", &valid, 1));
        event.valid = &valid;
        event.best = is_best(r, &valid);
        if (event.best) TRY(save_best(r));
        tired = r->c->patience > 0 && r->t->stale >= r->c->patience;
        event.tired = tired;
    }
    int diverged = r->bad >= r->c->bad_steps;
    event.saved = last || tired || diverged || due(every, step);
    if (event.saved) TRY(save(r));
    TRY(ask(r, &event, &told));
    if (told && !event.saved) TRY(save(r));
    *stop = last || tired || told;
    CHECK(r->t->ctx, !diverged, HT_DIVERGED,
          "the loss or its gradient was not finite %lld times in a row, last at step %lld; the "
          "weights are those from "
          "before",
          (long long)r->bad, (long long)step);
    return HT_OK;
}

/* Do the data's labels have the numbers that the model gives them? A model that has no names yet
 * takes those of the data. */
static ht_status agree(run *r, const ht_data *data) {
    ht_model *m = r->t->model;
    if (!data || hti_config_by_token(&m->config) || !data->rows.rows) return HT_OK;
    if (!m->named) TRY(ht_model_set_labels(m, &data->names));
    CHECK(r->t->ctx, hti_names_equal(&m->labels, &data->names), HT_INVALID,
          "the data has other labels than the model (ht_data_desc.labels)");
    return HT_OK;
}

static ht_status loop(run *r) {
    if (r->desc->resume) TRY(ht_trainer_resume(r->t, r->desc->train, r->desc->folder, NULL));
    TRY(agree(r, r->desc->train));
    TRY(agree(r, r->desc->valid));
    TRY(compare(r));
    TRY(hti_share_weights(r->t));
    r->start = now();
    r->first = (double)r->t->step;
    if (r->c->minutes > 0 && r->t->step >= r->c->steps) r->t->config.steps = r->t->step + 1;
    if (r->t->step >= r->c->steps) return r->t->step == 0 ? save(r) : HT_OK;
    for (int stop = 0; !stop;) {
        ht_report report = HT_REPORT_INIT;
        double before = now();
        TRY(one_step(r, &report));
        r->bad = report.applied ? 0 : r->bad + 1;
        TRY(after_step(r, &report, now() - before, &stop));
    }
    return HT_OK;
}

ht_status ht_train(ht_trainer *t, const ht_train_desc *given) {
    NEED(t);
    ht_train_desc own, *desc = &own;
    TRY(HTI_TAKE(t->ctx, ht_train_desc, &own, given));
    CHECK(t->ctx, desc->folder && desc->train, HT_INVALID,
          "ht_train needs a folder and data to train on");
    CHECK(t->ctx, t->grads, HT_INVALID, "this trainer was made for inference; it cannot train");
    run r = {.t = t, .desc = desc, .c = &t->config};
    TRY(log_open(&r));
    ht_status status = loop(&r), back = forget_ahead(&r);
    if (status == HT_OK) status = back;
    if (r.log) fclose(r.log);
    return status;
}
