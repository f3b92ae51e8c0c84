/*
 * A trainer in a file: weights, moments, how far it is.
 */
#include "model/checkpoint.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "data/data.h"
#include "train/moments.h"

enum { PARTS = 3 };

static void parts_of(hti_part out[PARTS], const ht_trainer *t, hti_moments *x) {
    out[0] = (hti_part){.prefix = "", .arena = t->model->p};
    out[1] = (hti_part){.prefix = "optimizer.m.", .arena = t->m};
    out[2] = (hti_part){.prefix = "optimizer.v.", .arena = t->v};
    hti_moments_parts(x, t, &out[1]);
}

static ht_status save(const ht_trainer *t, const ht_data *data, const char *path, hti_moments *x) {
    char note[320], best[96] = "null";
    if (t->has_best)
        snprintf(best, sizeof best, "%.17g,\"best_loss\":%.17g,\"stale\":%lld", t->best,
                 t->best_loss, (long long)t->stale);
    snprintf(note, sizeof note,
             "{\"step\":%lld,\"applied\":%lld,\"micro\":%lld,\"position\":%lld,\"best\":%s,"
             "\"optimizer\":\"%s\"}",
             (long long)t->step, (long long)t->applied, (long long)t->micro,
             (long long)(data ? ht_data_position(data) : 0), best,
             hti_config_choice("optimizer", (int)t->config.optimizer));
    hti_part parts[PARTS];
    parts_of(parts, t, x);
    return hti_checkpoint_save(t->model, &t->config, parts, PARTS, note, path);
}

/* Rank 0 writes; the others give it what it has not. */
static ht_status save_together(const ht_trainer *t, const ht_data *data, const char *path) {
    hti_moments x;
    TRY(hti_moments_open(&x, t));
    int first = t->share.rank == 0;
    ht_status status = first ? save(t, data, path, &x) : hti_moments_serve(&x);
    ht_status ended = first ? hti_moments_end(&x) : HT_OK;
    hti_moments_close(&x);
    return hti_world_agree(t->share.world, status != HT_OK ? status : ended);
}

ht_status ht_trainer_save(const ht_trainer *t, const ht_data *data, const char *path) {
    NEED(t);
    hti_moments all;
    CHECK(t->ctx, path, HT_INVALID, "ht_trainer_save: path is NULL");
    CHECK(t->ctx, t->grads, HT_INVALID,
          "this trainer was made for inference; save its model instead");
    return t->share.shards ? save_together(t, data, path) : save(t, data, path, &all);
}

typedef struct note {
    int64_t step, applied, micro, position;
    double best, best_loss, stale;
    int has_best;
    char optimizer[16]; /* files of before there was a choice do not say: AdamW */
} note;

static double number_of(const cJSON *json, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    return cJSON_IsNumber(item) && fabs(item->valuedouble) < 1e9 ? item->valuedouble : 0;
}

static ht_status read_note(note *out, const hti_reader *r) {
    const char *text = hti_reader_meta(r, "trainer");
    CHECK(r->ctx, text, HT_FORMAT, "%s holds a model but no training to go on with", r->path);
    char what[256];
    cJSON *json;
    snprintf(what, sizeof what, "%s is damaged: its note on the training", r->path);
    TRY(hti_json_parse(r->ctx, &json, text, strlen(text), what));
    int64_t *fields[] = {&out->step, &out->applied, &out->micro, &out->position};
    static const char *const names[] = {"step", "applied", "micro", "position"};
    int good = 1;
    for (int i = 0; i < 4; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, names[i]);
        double x = cJSON_IsNumber(item) ? item->valuedouble : -1;
        good = good && x >= 0 && x < 0x1p53;
        *fields[i] = good ? (int64_t)x : 0;
    }
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(json, "best");
    out->has_best = cJSON_IsNumber(best);
    out->best = out->has_best ? best->valuedouble : 0;
    out->best_loss = number_of(json, "best_loss"); /* older files have neither */
    out->stale = number_of(json, "stale");
    const cJSON *optimizer = cJSON_GetObjectItemCaseSensitive(json, "optimizer");
    snprintf(out->optimizer, sizeof out->optimizer, "%s",
             cJSON_IsString(optimizer) ? optimizer->valuestring : "adamw");
    cJSON_Delete(json);
    CHECK(r->ctx, good, HT_FORMAT, "%s is damaged: its note on the training makes no sense",
          r->path);
    return HT_OK;
}

/* A run goes on with the labels that it began with; set: the model takes them. */
static ht_status take_labels(const ht_trainer *t, const hti_reader *r, int set) {
    const ht_model *m = t->model;
    hti_names labels = {.ctx = r->ctx};
    ht_status status = hti_checkpoint_labels(&labels, r, &m->config);
    if (status == HT_OK && labels.count && m->named && !hti_names_equal(&labels, &m->labels))
        status = hti_fail(r->ctx, HT_INVALID, "%s has other labels than the data it goes on with",
                          r->path);
    if (status == HT_OK && labels.count && set) status = ht_model_set_labels(t->model, &labels);
    hti_names_free(&labels);
    return status;
}

/* The file must hold the same model; how it is trained may have changed where a key says so. */
static ht_status examine(note *out, const ht_trainer *t, const hti_part *parts,
                         const hti_reader *r) {
    ht_config stored, config = t->config;
    TRY(hti_checkpoint_config(&stored, r));
    TRY(hti_config_go_on(r->ctx, &config, &stored, HTI_BEGUN_RUN, r->path));
    TRY(take_labels(t, r, 0));
    TRY(read_note(out, r));
    /* second moments that one of them leaves at zero would make steps of the other without end */
    const char *here = hti_config_choice("optimizer", (int)t->config.optimizer);
    CHECK(r->ctx, strcmp(here, out->optimizer) == 0, HT_INVALID,
          "%s was trained by %s and cannot go on with %s; start with its weights instead", r->path,
          out->optimizer, here);
    return hti_checkpoint_check(r, &t->model->params, parts, PARTS);
}

static ht_status restore(ht_trainer *t, ht_data *data, const hti_reader *r) {
    hti_part parts[PARTS];
    hti_moments moments;
    note n;
    parts_of(parts, t, &moments);
    TRY(examine(&n, t, parts, r));
    TRY(hti_checkpoint_verify(r, t->model->dtype));
    TRY(take_labels(t, r, 1));
    TRY(hti_checkpoint_fill(r, t->model, parts, PARTS));
    TRY(hti_model_round(t->model));
    t->step = n.step;
    t->applied = n.applied;
    t->micro = n.micro;
    t->best = n.best;
    t->has_best = n.has_best;
    t->best_loss = n.best_loss;
    t->stale = (int64_t)n.stale;
    return data ? ht_data_seek(data, n.position) : HT_OK;
}

ht_status ht_trainer_restore(ht_trainer *t, ht_data *data, const char *path) {
    NEED(t);
    CHECK(t->ctx, path, HT_INVALID, "ht_trainer_restore: path is NULL");
    CHECK(t->ctx, t->grads, HT_INVALID,
          "this trainer was made for inference; load its model instead");
    hti_reader r;
    TRY(hti_reader_open(&r, t->ctx, path));
    ht_status status = restore(t, data, &r);
    hti_reader_close(&r);
    return status;
}

ht_status hti_trainer_readable(const ht_trainer *t, const char *path) {
    hti_reader r;
    note n;
    hti_part parts[PARTS];
    hti_moments moments;
    parts_of(parts, t, &moments);
    TRY(hti_reader_open(&r, t->ctx, path));
    ht_status status = examine(&n, t, parts, &r);
    hti_reader_close(&r);
    return status;
}
