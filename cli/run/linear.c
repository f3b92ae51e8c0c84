/*
 * The linear model of a run.
 */
#include "run/linear.h"

#include "base/save.h"
#include "base/settings.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NAME "linear.safetensors"

bool linear_fits(const ht_config *config) {
    return setting_is(config, "task", "classify") && setting_is(config, "format", "tsv");
}

static ht_linear_info info_of(const ht_linear *linear) {
    ht_linear_info info = HT_LINEAR_INFO_INIT;
    if (linear && ht_linear_get_info(linear, &info) != HT_OK) info.valid_items = 0;
    return info;
}

bool linear_answers(const ht_linear *linear) {
    ht_linear_info info = info_of(linear);
    return linear && info.valid_items > 0 && info.linear_weight > 0;
}

bool linear_alone(const ht_linear *linear) {
    return linear_answers(linear) && info_of(linear).model_weight == 0;
}

const char *linear_words(char out[64], const ht_linear *linear) {
    ht_linear_info info = info_of(linear);
    if (linear_alone(linear))
        snprintf(out, 64, "the linear model alone");
    else if (info.linear_weight == 0)
        snprintf(out, 64, "the Transformer alone");
    else
        snprintf(out, 64, "both, %.3g linear + %.3g Transformer", info.linear_weight,
                 info.model_weight);
    return out;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* ---- what both say of the validation items ---- */

typedef struct judged {
    float *scores, *logits; /* [items, classes] */
    int32_t *labels;
    int64_t items;
} judged;

static void judged_free(judged *j) {
    free(j->scores);
    free(j->logits);
    free(j->labels);
}

static bool judged_make(judged *j, const ht_data *valid, int64_t classes, cli_error *error) {
    ht_data_info info = HT_DATA_INFO_INIT;
    if (ht_data_get_info(valid, &info) != HT_OK) return cli_fail(error, "no validation data");
    size_t items = (size_t)info.items, numbers = items * (size_t)classes;
    j->scores = malloc(sizeof *j->scores * numbers);
    j->logits = malloc(sizeof *j->logits * numbers);
    j->labels = malloc(sizeof *j->labels * items);
    return (j->scores && j->logits && j->labels) ||
           cli_fail(error, "out of memory: judging %zu texts", items);
}

static bool score_item(ht_linear *linear, ht_context *ctx, const ht_data *data, int64_t item,
                       float *out, cli_error *error) {
    size_t bytes;
    const char *text = ht_data_text(data, item, &bytes);
    return ht_linear_scores(linear, text, bytes, out) == HT_OK ||
           cli_fail(error, "%s", ht_context_error(ctx));
}

/* Who judged last may have left it in the middle. */
static bool rewind_data(ht_data *data) {
    ht_batch batch = HT_BATCH_INIT;
    ht_status status;
    while ((status = ht_data_next(data, &batch)) == HT_OK) continue;
    return status == HT_END;
}

/* trainer NULL: the linear model alone; most: no more items than that, 0: all. */
static bool judge(judged *j, ht_linear *linear, ht_context *ctx, ht_trainer *trainer,
                  ht_data *valid, int64_t most, cli_error *error) {
    int64_t classes = ht_labels_count(ht_linear_labels(linear));
    ht_batch batch = HT_BATCH_INIT;
    ht_status status = rewind_data(valid) ? HT_OK : HT_INVALID;
    if (!judged_make(j, valid, classes, error)) return false;
    while (status == HT_OK && (status = ht_data_next(valid, &batch)) == HT_OK) {
        if (most > 0 && j->items >= most) continue;
        if (trainer && ht_trainer_predict(trainer, &batch, j->logits + j->items * classes) != HT_OK)
            return cli_fail(error, "%s", ht_context_error(ctx));
        for (int64_t i = 0; i < batch.sequences; i++, j->items++) {
            j->labels[j->items] = batch.targets[i];
            if (!score_item(linear, ctx, valid, j->items, j->scores + j->items * classes, error))
                return false;
        }
    }
    return status == HT_END || cli_fail(error, "%s", ht_context_error(ctx));
}

/* The choice, into the run's file. */
static bool choose(ht_linear *linear, ht_context *ctx, const char *run, ht_trainer *trainer,
                   ht_data *valid, int64_t most, cli_error *error) {
    judged j = {0};
    char path[4096];
    bool good = !valid || judge(&j, linear, ctx, trainer, valid, most, error);
    if (good && valid)
        good = ht_linear_choose(linear, j.scores, trainer ? j.logits : NULL, j.labels, j.items) ==
                   HT_OK ||
               cli_fail(error, "%s", ht_context_error(ctx));
    judged_free(&j);
    good = good && run_path(path, run, NAME, error);
    return good &&
           (ht_linear_save(linear, path) == HT_OK || cli_fail(error, "%s", ht_context_error(ctx)));
}

/* ---- while training ---- */

static void tell_begin(const ht_linear *linear, double seconds) {
    ht_linear_info info = info_of(linear);
    printf("%slinear model%s\n  %-10s words, pairs and runs of bytes: %lld features, %.1f s\n",
           cli_bold(stdout), cli_plain(stdout), "texts", (long long)info.features, seconds);
    if (info.valid_items)
        printf("  %-10s loss %.4f | acc %.3f, the baseline\n", "valid", info.linear_loss,
               info.linear_accuracy);
    fflush(stdout);
}

bool linear_begin(ht_linear **out, ht_context *ctx, const char *run, ht_data *train, ht_data *valid,
                  int64_t most, bool quiet, cli_error *error) {
    char path[4096];
    double start = now();
    bool there;
    *out = NULL;
    if (!run_path(path, run, NAME, error)) return false;
    if (!save_there(&there, path, error)) return false;
    if (there)
        return ht_linear_load(out, ctx, path) == HT_OK ||
               cli_fail(error, "%s", ht_context_error(ctx));
    ht_status status = ht_linear_fit(out, ctx, train);
    if (status == HT_UNSUPPORTED) {
        if (!quiet) printf("  %-10s left out: %s\n", "linear", ht_context_error(ctx));
        return true;
    }
    if (status != HT_OK) return cli_fail(error, "%s", ht_context_error(ctx));
    if (!choose(*out, ctx, run, NULL, valid, most, error)) return false;
    if (!quiet) tell_begin(*out, now() - start);
    return true;
}

bool linear_end(ht_linear *linear, ht_context *ctx, const char *run, ht_model *model,
                ht_trainer *trainer, ht_data *valid, bool quiet, cli_error *error) {
    char path[4096], words[64];
    bool there;
    if (!linear || !valid) return true;
    if (!run_path(path, run, "best.safetensors", error)) return false;
    if (!save_there(&there, path, error)) return false;
    if (!there) return true; /* stopped before it was judged once */
    if (ht_model_take(model, path, NULL) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(ctx));
    if (!choose(linear, ctx, run, trainer, valid, setting_int(ht_model_config(model), "eval_items"),
                error))
        return false;
    ht_linear_info info = info_of(linear);
    if (quiet) return true;
    printf("valid: linear model loss %.4f | acc %.3f, Transformer loss %.4f | acc %.3f\n",
           info.linear_loss, info.linear_accuracy, info.model_loss, info.model_accuracy);
    printf("chosen: %s: loss %.4f | acc %.3f\n", linear_words(words, linear), info.chosen_loss,
           info.chosen_accuracy);
    return true;
}

/* ---- answering ---- */

bool linear_find(ht_linear **out, const run_model *m, cli_error *error) {
    char path[4096];
    const char *slash = strrchr(m->path, '/');
    int folder = slash ? (int)(slash - m->path) : 1;
    bool there;
    *out = NULL;
    if (!linear_fits(m->config)) return true;
    if (snprintf(path, sizeof path, "%.*s/" NAME, folder, slash ? m->path : ".") >= 4096)
        return cli_fail(error, "the name of %.200s... is too long", m->path);
    if (!save_there(&there, path, error)) return false;
    if (!there) return true;
    if (ht_linear_load(out, m->ctx, path) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(m->ctx));
    const ht_labels *ours = ht_linear_labels(*out), *theirs = ht_model_labels(m->model);
    bool same = ht_labels_count(ours) == ht_labels_count(theirs);
    for (int64_t k = 0; same && k < ht_labels_count(ours); k++)
        same = strcmp(ht_labels_name(ours, k), ht_labels_name(theirs, k)) == 0;
    if (!same) return cli_fail(error, "%s has other labels than %s", path, m->path);
    if (info_of(*out).valid_items > 0) return true;
    ht_linear_destroy(*out); /* nobody knows what it is worth */
    *out = NULL;
    return true;
}

bool linear_add(ht_linear *linear, ht_context *ctx, const linear_batch *b, int64_t items,
                cli_error *error) {
    int64_t classes = ht_labels_count(ht_linear_labels(linear));
    for (int64_t i = 0; i < items; i++) {
        float *scores = b->scores + i * classes, *logits = b->logits + i * classes;
        if (!score_item(linear, ctx, b->data, b->first + i, scores, error)) return false;
        if (ht_linear_mix(linear, scores, logits, logits) != HT_OK)
            return cli_fail(error, "%s", ht_context_error(ctx));
    }
    return true;
}
