/*
 * A linear model in a safetensors file: hashed numbers of its features, their weights, what was
 * chosen.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/crc.h"
#include "linear/linear.h"
#include "model/checkpoint.h"

#define KEY "htransformer_linear" /* metadata: ht_linear_info as JSON */
enum { STAGE = 4096, TENSORS = 2 };

/* The numbers of ht_linear_info by name. */
#define NUMBERS(X)             \
    X(int64_t, classes)        \
    X(int64_t, items)          \
    X(int64_t, valid_items)    \
    X(double, linear_weight)   \
    X(double, model_weight)    \
    X(double, linear_loss)     \
    X(double, linear_accuracy) \
    X(double, model_loss)      \
    X(double, model_accuracy) X(double, chosen_loss) X(double, chosen_accuracy)

static void write_info(char *out, size_t bytes, const ht_linear_info *info) {
    size_t used = 0;
#define WRITE(type, name)                                                                         \
    used += (size_t)snprintf(out + used, bytes - used, "%s\"" #name "\":%.17g", used ? "," : "{", \
                             (double)info->name);
    NUMBERS(WRITE)
#undef WRITE
    snprintf(out + used, bytes - used, "}");
}

static ht_status read_info(ht_linear_info *info, const hti_reader *r) {
    const char *text = hti_reader_meta(r, KEY);
    cJSON *json;
    CHECK(r->ctx, text, HT_FORMAT, "%s holds no linear model: its metadata has no '" KEY "'",
          r->path);
    TRY(hti_json_parse(r->ctx, &json, text, strlen(text), r->path));
    int good = 1;
#define READ(type, name)                                                   \
    {                                                                      \
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, #name); \
        double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;         \
        good = good && fabs(x) < 0x1p53;                                   \
        if (good) info->name = (type)x;                                    \
    }
    NUMBERS(READ)
#undef READ
    cJSON_Delete(json);
    CHECK(r->ctx, good && info->valid_items >= 0 && info->classes >= 2, HT_FORMAT,
          "%s is damaged: its note on the linear model makes no sense", r->path);
    return HT_OK;
}

/* ---- saving ---- */

static ht_status write_tensor(hti_writer *w, const hti_entry *e, const float *weight,
                              const int32_t *ids) {
    float stage[STAGE];
    uint32_t sum = 0;
    for (int64_t at = 0; at < e->count; at += STAGE) {
        int64_t n = e->count - at < STAGE ? e->count - at : STAGE;
        for (int64_t i = 0; i < n; i++) stage[i] = weight ? weight[at + i] : (float)ids[at + i];
        sum = hti_crc32(sum, stage, sizeof *stage * (size_t)n);
        TRY(hti_writer_put(w, stage, sizeof *stage * (size_t)n));
    }
    return hti_header_sum(w, e, sum);
}

static ht_status write_all(hti_writer *w, const ht_linear *l, const char *labels) {
    char info[1024];
    int64_t rows = l->features + 1;
    hti_entry entries[TENSORS] = {
        {.name = "linear.features", .dtype = HT_F32, .rank = 1, .count = l->features},
        {.name = "linear.weight", .dtype = HT_F32, .rank = 2, .count = rows * l->outputs}};
    entries[0].shape[0] = l->features;
    entries[1].shape[0] = rows, entries[1].shape[1] = l->outputs;
    write_info(info, sizeof info, &l->info);
    const char *meta[] = {"format", "pt", KEY, info, "labels", labels, NULL};
    TRY(hti_header_write(w, entries, TENSORS, meta));
    TRY(write_tensor(w, &entries[0], NULL, l->ids));
    TRY(write_tensor(w, &entries[1], l->weight, NULL));
    return hti_writer_commit(w);
}

ht_status ht_linear_save(const ht_linear *l, const char *path) {
    NEED(l);
    hti_writer w;
    CHECK(l->ctx, path, HT_INVALID, "ht_linear_save: path is NULL");
    TRY(hti_writer_open(&w, l->ctx, path));
    char *labels = hti_labels_json(&l->labels);
    ht_status status = labels ? write_all(&w, l, labels)
                              : hti_fail(l->ctx, HT_NOMEM, "out of memory: the labels of %s", path);
    cJSON_free(labels);
    hti_writer_discard(&w);
    return status;
}

/* ---- loading ---- */

static ht_status read_ids(ht_linear *l, const hti_reader *r, const hti_entry *e) {
    double stage[STAGE];
    uint32_t sum = 0;
    for (int64_t at = 0; at < e->count; at += STAGE) {
        int64_t n = e->count - at < STAGE ? e->count - at : STAGE;
        TRY(hti_reader_get(r, stage, e, at, n, &sum));
        for (int64_t i = 0; i < n; i++) {
            double x = stage[i];
            CHECK(r->ctx, x >= 0 && x < HTI_GRAMS && x == floor(x), HT_FORMAT,
                  "%s is damaged: %g is no feature", r->path, x);
            l->ids[at + i] = (int32_t)x;
            l->number[l->ids[at + i]] = (int32_t)(at + i);
        }
    }
    return hti_reader_agrees(r, e, sum);
}

static ht_status read_weights(ht_linear *l, const hti_reader *r, const hti_entry *e) {
    double stage[STAGE];
    uint32_t sum = 0;
    for (int64_t at = 0; at < e->count; at += STAGE) {
        int64_t n = e->count - at < STAGE ? e->count - at : STAGE;
        TRY(hti_reader_get(r, stage, e, at, n, &sum));
        for (int64_t i = 0; i < n; i++) {
            l->weight[at + i] = (float)stage[i];
            CHECK(r->ctx, isfinite(l->weight[at + i]), HT_FORMAT,
                  "%s: weight %lld of the linear model is not finite", r->path,
                  (long long)(at + i));
        }
    }
    return hti_reader_agrees(r, e, sum);
}

static ht_status load(ht_linear **out, const hti_reader *r, hti_names *labels) {
    const char *text = hti_reader_meta(r, "labels");
    const hti_entry *ids = hti_reader_find(r, "linear.features");
    const hti_entry *weight = hti_reader_find(r, "linear.weight");
    ht_linear_info info = {0};
    TRY(read_info(&info, r));
    CHECK(r->ctx, text && ids && weight && ids->rank == 1 && weight->rank == 2, HT_FORMAT,
          "%s holds no whole linear model", r->path);
    TRY(hti_labels_read(labels, r, text, info.classes));
    int64_t outputs = labels->count > 2 ? labels->count : 1;
    CHECK(r->ctx,
          ids->count < HTI_GRAMS && weight->shape[0] == ids->count + 1 &&
              weight->shape[1] == outputs,
          HT_FORMAT, "%s is damaged: %lld features and %lld labels do not fit its weights", r->path,
          (long long)ids->count, (long long)labels->count);
    TRY(hti_linear_make(out, r->ctx, labels, ids->count));
    info.features = ids->count, info.size = sizeof info;
    (*out)->info = info;
    TRY(read_ids(*out, r, ids));
    return read_weights(*out, r, weight);
}

ht_status ht_linear_load(ht_linear **out, ht_context *ctx, const char *path) {
    CHECK(ctx, out && path, HT_INVALID, "ht_linear_load: out or path is NULL");
    *out = NULL;
    NEED(ctx);
    hti_reader r;
    hti_names labels = {.ctx = ctx};
    TRY(hti_reader_open(&r, ctx, path));
    ht_status status = load(out, &r, &labels);
    hti_names_free(&labels);
    hti_reader_close(&r);
    if (status == HT_OK) return HT_OK;
    ht_linear_destroy(*out);
    *out = NULL;
    return status;
}
