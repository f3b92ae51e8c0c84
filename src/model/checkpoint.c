/*
 * Models in files.
 */
#include "model/checkpoint.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "core/bf16.h"
#include "core/crc.h"

#define CONFIG_KEY "htransformer" /* metadata: the configuration as JSON */
#define NOTE_KEY "trainer"
#define LABELS_KEY "labels" /* a JSON array of strings */
enum { STAGE = 4096, NAME = 96 };

static void full_name(char *out, const hti_part *part, const hti_param *t) {
    snprintf(out, NAME, "%s%s", part->prefix, t->name);
}

/* ---- saving ---- */

static ht_status write_bf16(hti_writer *w, const ht_model *m, const hti_part *part,
                            const hti_param *t, uint32_t *sum) {
    double stage[STAGE / 8];
    uint16_t out[STAGE / 8];
    for (int64_t at = 0; at < t->count; at += STAGE / 8) {
        int64_t n = t->count - at < STAGE / 8 ? t->count - at : STAGE / 8;
        TRY(hti_tensor_read(m->ctx, stage, part->arena, m->dtype, t->offset + at, n));
        for (int64_t i = 0; i < n; i++) out[i] = hti_to_bf16((float)stage[i]);
        *sum = hti_crc32(*sum, out, sizeof *out * (size_t)n);
        TRY(hti_writer_put(w, out, sizeof *out * (size_t)n));
    }
    return HT_OK;
}

static ht_status write_wide(hti_writer *w, const ht_model *m, const hti_part *part,
                            const hti_param *t, uint32_t *sum) {
    char stage[STAGE];
    size_t size = hti_wide_bytes(m->dtype), bytes = (size_t)t->count * size;
    const char *from = (const char *)part->arena + (size_t)t->offset * size;
    for (size_t at = 0; at < bytes; at += STAGE) {
        size_t n = bytes - at < STAGE ? bytes - at : STAGE;
        TRY(m->ctx->ops->copy_out(m->ctx, stage, from + at, n));
        *sum = hti_crc32(*sum, stage, n);
        TRY(hti_writer_put(w, stage, n));
    }
    return HT_OK;
}

/* The same, of an arena that is not all here. */
static ht_status write_got(hti_writer *w, const ht_model *m, const hti_part *part,
                           const hti_param *t, uint32_t *sum) {
    size_t size = hti_wide_bytes(m->dtype);
    const void *got;
    for (int64_t at = 0; at < t->count; at += HTI_PART_MOST) {
        int64_t n = t->count - at < HTI_PART_MOST ? t->count - at : HTI_PART_MOST;
        TRY(part->get(part->user, &got, t->offset + at, n));
        *sum = hti_crc32(*sum, got, (size_t)n * size);
        TRY(hti_writer_put(w, got, (size_t)n * size));
    }
    return HT_OK;
}

/* entries: of the arena's tensors, in the header */
static ht_status write_arena(hti_writer *w, const ht_model *m, const hti_part *part, ht_dtype dtype,
                             const hti_entry *entries) {
    for (int64_t i = 0; i < m->params.tensors; i++) {
        const hti_param *t = &m->params.list[i];
        uint32_t sum = 0;
        TRY(part->get          ? write_got(w, m, part, t, &sum)
            : dtype == HT_BF16 ? write_bf16(w, m, part, t, &sum)
                               : write_wide(w, m, part, t, &sum));
        TRY(hti_header_sum(w, &entries[i], sum));
    }
    return HT_OK;
}

char *hti_labels_json(const hti_names *labels) {
    cJSON *list = cJSON_CreateArray();
    int good = list != NULL;
    for (int64_t i = 0; i < labels->count && good; i++)
        good = cJSON_AddItemToArray(list, cJSON_CreateString(hti_names_at(labels, i, NULL)));
    char *text = good ? cJSON_PrintUnformatted(list) : NULL;
    cJSON_Delete(list);
    return text;
}

static ht_status write_header(hti_writer *w, const ht_model *m, const ht_config *settings,
                              const char *note, hti_entry *entries, int64_t count) {
    char config[8192], *labels = NULL;
    const char *meta[9] = {"format", "pt", CONFIG_KEY, config};
    int used = 4;
    TRY(ht_config_write_json(settings, config, sizeof config, NULL));
    if (note) meta[used++] = NOTE_KEY, meta[used++] = note;
    if (m->named) {
        labels = hti_labels_json(&m->labels);
        CHECK(m->ctx, labels, HT_NOMEM, "out of memory: the labels of %s", w->path);
        meta[used++] = LABELS_KEY, meta[used++] = labels;
    }
    ht_status status = hti_header_write(w, entries, count, meta);
    cJSON_free(labels);
    return status;
}

static ht_status write_all(hti_writer *w, const ht_model *m, const ht_config *config,
                           const hti_part *parts, int count, const char *note, ht_dtype dtype,
                           hti_entry *entries, char (*names)[NAME]) {
    int64_t n = 0;
    for (int p = 0; p < count; p++) {
        for (int64_t i = 0; i < m->params.tensors; i++, n++) {
            const hti_param *t = &m->params.list[i];
            full_name(names[n], &parts[p], t);
            entries[n] = (hti_entry){.name = names[n],
                                     .dtype = dtype,
                                     .rank = t->rank,
                                     .shape = {t->shape[0], t->shape[1]},
                                     .count = t->count};
        }
    }
    TRY(write_header(w, m, config, note, entries, n));
    for (int p = 0; p < count; p++)
        TRY(write_arena(w, m, &parts[p], dtype, entries + p * m->params.tensors));
    return hti_writer_commit(w);
}

static ht_status save_as(const ht_model *m, const ht_config *config, const hti_part *parts,
                         int count, const char *note, ht_dtype dtype, const char *path) {
    size_t tensors = (size_t)m->params.tensors * (size_t)count;
    hti_writer w;
    TRY(hti_writer_open(&w, m->ctx, path));
    hti_entry *entries = hti_host_alloc(m->ctx, tensors * sizeof *entries);
    char(*names)[NAME] = hti_host_alloc(m->ctx, tensors * sizeof *names);
    ht_status status = entries && names
                           ? write_all(&w, m, config, parts, count, note, dtype, entries, names)
                           : hti_fail(m->ctx, HT_NOMEM, "out of memory: saving %s", path);
    hti_host_free(m->ctx, entries);
    hti_host_free(m->ctx, names);
    hti_writer_discard(&w);
    return status;
}

ht_status hti_checkpoint_save(const ht_model *m, const ht_config *config, const hti_part *parts,
                              int count, const char *note, const char *path) {
    return save_as(m, config, parts, count, note, m->dtype == HT_F64 ? HT_F64 : HT_F32, path);
}

ht_status ht_model_export(const ht_model *m, const char *path, ht_dtype dtype) {
    NEED(m);
    hti_part part = {.prefix = "", .arena = m->p};
    CHECK(m->ctx, path, HT_INVALID, "ht_model_export: path is NULL");
    CHECK(m->ctx, dtype == HT_BF16 || dtype == (m->dtype == HT_F64 ? HT_F64 : HT_F32),
          HT_UNSUPPORTED, "weights of this model can be written as %s or bf16",
          m->dtype == HT_F64 ? "f64" : "f32");
    return save_as(m, &m->config, &part, 1, NULL, dtype, path);
}

ht_status ht_model_save(const ht_model *m, const char *path) {
    NEED(m);
    CHECK(m->ctx, path, HT_INVALID, "ht_model_save: path is NULL");
    hti_part part = {.prefix = "", .arena = m->p};
    return hti_checkpoint_save(m, &m->config, &part, 1, NULL, path);
}

/* ---- loading ---- */

ht_status hti_checkpoint_config(ht_config *out, const hti_reader *r) {
    const char *json = hti_reader_meta(r, CONFIG_KEY);
    CHECK(r->ctx, json, HT_FORMAT,
          "%s is a safetensors file, but holds no model of ours: its metadata has no '%s'", r->path,
          CONFIG_KEY);
    hti_config_defaults(out, r->ctx);
    ht_status status = ht_config_read_json(out, json);
    if (status == HT_OK) status = hti_config_resolve(r->ctx, out);
    if (status == HT_OK) return HT_OK;
    char why[256];
    snprintf(why, sizeof why, "%s", ht_context_error(r->ctx));
    return hti_fail(r->ctx, status == HT_NOMEM ? status : HT_FORMAT,
                    "%s: the configuration in it is wrong: %s", r->path, why);
}

static ht_status read_labels(hti_names *out, const hti_reader *r, const cJSON *list,
                             int64_t classes) {
    const cJSON *item;
    int32_t number;
    cJSON_ArrayForEach(item, list) {
        const char *name = cJSON_GetStringValue(item);
        int64_t before = out->count;
        if (name && before < classes) TRY(hti_names_add(out, name, strlen(name), &number));
        CHECK(r->ctx, out->count > before, HT_FORMAT,
              "%s is damaged: its labels are not %lld different strings", r->path,
              (long long)classes);
    }
    CHECK(r->ctx, cJSON_IsArray(list) && out->count == classes, HT_FORMAT,
          "%s is damaged: it has %lld labels for %lld classes", r->path, (long long)out->count,
          (long long)classes);
    return HT_OK;
}

ht_status hti_labels_read(hti_names *out, const hti_reader *r, const char *text, int64_t classes) {
    cJSON *list;
    TRY(hti_json_parse(r->ctx, &list, text, strlen(text), r->path));
    ht_status status = read_labels(out, r, list, classes);
    cJSON_Delete(list);
    return status;
}

ht_status hti_checkpoint_labels(hti_names *out, const hti_reader *r, const ht_config *config) {
    const char *text = hti_reader_meta(r, LABELS_KEY);
    if (!text || hti_config_by_token(config)) return HT_OK;
    return hti_labels_read(out, r, text, config->classes);
}

ht_status hti_checkpoint_check(const hti_reader *r, const hti_params *params, const hti_part *parts,
                               int count) {
    for (int p = 0; p < count; p++) {
        for (int64_t i = 0; i < params->tensors; i++) {
            const hti_param *t = &params->list[i];
            char name[NAME];
            full_name(name, &parts[p], t);
            const hti_entry *e = hti_reader_find(r, name);
            CHECK(r->ctx, e, HT_FORMAT, "%s has no tensor '%s'", r->path, name);
            CHECK(r->ctx,
                  e->rank == t->rank && e->shape[0] == t->shape[0] && e->shape[1] == t->shape[1],
                  HT_FORMAT, "%s: tensor '%s' should be [%lld, %lld], not [%lld, %lld]", r->path,
                  name, (long long)t->shape[0], (long long)t->shape[1], (long long)e->shape[0],
                  (long long)e->shape[1]);
        }
    }
    return HT_OK;
}

/* Weights must be finite in the type that they will have; moments may have outgrown it. */
static int usable(const hti_entry *e, ht_dtype dtype, double x) {
    if (strncmp(e->name, "optimizer.", 10) == 0) return !isnan(x);
    return isfinite(dtype == HT_F64 ? x : (float)x);
}

ht_status hti_checkpoint_verify(const hti_reader *r, ht_dtype dtype) {
    double stage[STAGE];
    for (int64_t i = 0; i < r->count; i++) {
        const hti_entry *e = &r->entries[i];
        uint32_t sum = 0;
        int64_t bad = -1;
        double what = 0;
        for (int64_t at = 0; at < e->count; at += STAGE) {
            int64_t n = e->count - at < STAGE ? e->count - at : STAGE;
            TRY(hti_reader_get(r, stage, e, at, n, &sum));
            for (int64_t k = 0; k < n && bad < 0; k++)
                if (!usable(e, dtype, stage[k])) bad = at + k, what = stage[k];
        }
        TRY(hti_reader_agrees(r, e, sum));
        CHECK(r->ctx, bad < 0, HT_FORMAT,
              "%s: tensor '%.64s' is not finite: its number %lld is %g; training diverged, or the "
              "file is damaged",
              r->path, e->name, (long long)bad, what);
    }
    return HT_OK;
}

static ht_status fill_one(const hti_reader *r, const ht_model *m, const hti_part *part,
                          const hti_param *t, const hti_entry *e) {
    double stage[STAGE];
    uint32_t sum = 0; /* was looked at before */
    for (int64_t at = 0; at < t->count; at += STAGE) {
        int64_t n = t->count - at < STAGE ? t->count - at : STAGE;
        TRY(hti_reader_get(r, stage, e, at, n, &sum));
        TRY(part->put ? part->put(part->user, stage, t->offset + at, n)
                      : hti_tensor_write(m->ctx, part->arena, stage, m->dtype, t->offset + at, n));
    }
    return HT_OK;
}

ht_status hti_checkpoint_fill(const hti_reader *r, const ht_model *m, const hti_part *parts,
                              int count) {
    for (int p = 0; p < count; p++) {
        for (int64_t i = 0; i < m->params.tensors; i++) {
            const hti_param *t = &m->params.list[i];
            char name[NAME];
            full_name(name, &parts[p], t);
            TRY(fill_one(r, m, &parts[p], t, hti_reader_find(r, name)));
        }
    }
    return HT_OK;
}

/* Where tensor t of the model is in the file, if it is the same one. */
static const hti_entry *same_in(const hti_reader *r, const hti_param *t) {
    const hti_entry *e = hti_reader_find(r, t->name);
    int same = e && e->rank == t->rank && e->shape[0] == t->shape[0] && e->shape[1] == t->shape[1];
    return same ? e : NULL;
}

/* Layers fit whatever `merge` was, but tokens would mean something else to them: where the width is
 * the same, what a token has of it must be, too. */
static ht_status check_merge(const ht_model *m, const hti_reader *r) {
    const ht_config *c = &m->config;
    const hti_entry *norm = hti_reader_find(r, "norm.weight");
    const char *name = c->amounts ? "embed.amounts.weight" : "embed.tokens.weight";
    const hti_entry *embed = hti_reader_find(r, name);
    if (!norm || !embed || norm->shape[0] != c->width) return HT_OK;
    if (embed->shape[1] < 1 || c->width % embed->shape[1] != 0) return HT_OK; /* no merge of ours */
    CHECK(m->ctx, embed->shape[1] == hti_config_columns(c), HT_FORMAT,
          "%s: the model in it has merge %lld, not %lld: its '%s' has %lld columns, not %lld",
          r->path, (long long)(c->width / embed->shape[1]), (long long)c->merge, name,
          (long long)embed->shape[1], (long long)hti_config_columns(c));
    return HT_OK;
}

static ht_status take(ht_model *m, const hti_reader *r, int64_t *taken) {
    int64_t count = 0;
    const hti_part part = {.prefix = "", .arena = m->p};
    TRY(check_merge(m, r));
    for (int64_t i = 0; i < m->params.tensors; i++) count += same_in(r, &m->params.list[i]) != NULL;
    CHECK(m->ctx, count > 0, HT_FORMAT, "%s has no tensor of the model's names and shapes",
          r->path);
    TRY(hti_checkpoint_verify(r, m->dtype));
    for (int64_t i = 0; i < m->params.tensors; i++) {
        const hti_param *t = &m->params.list[i];
        const hti_entry *e = same_in(r, t);
        if (e) TRY(fill_one(r, m, &part, t, e));
    }
    if (taken) *taken = count;
    return hti_model_round(m);
}

ht_status ht_model_take(ht_model *m, const char *path, int64_t *taken) {
    NEED(m);
    CHECK(m->ctx, path, HT_INVALID, "ht_model_take: path is NULL");
    hti_reader r;
    TRY(hti_reader_open(&r, m->ctx, path));
    ht_status status = take(m, &r, taken);
    hti_reader_close(&r);
    return status;
}

/* The file has wide weights: where a device has no bf16, a model that was trained in it is float.
 */
static void use_wider(ht_config *config, ht_context *ctx) {
    if (config->dtype == HT_BF16 && hti_models_open(ctx, HT_BF16) != HT_OK) config->dtype = HT_F32;
}

static ht_status load_labels(ht_model *m, const hti_reader *r) {
    hti_names labels = {.ctx = m->ctx};
    ht_status status = hti_checkpoint_labels(&labels, r, &m->config);
    if (status == HT_OK && labels.count) status = ht_model_set_labels(m, &labels);
    hti_names_free(&labels);
    return status;
}

/* Sizes first: a model is made only if the file has all of it. */
static ht_status load(ht_model **out, hti_reader *r) {
    ht_config config;
    hti_params params;
    hti_part part = {.prefix = ""};
    TRY(hti_checkpoint_config(&config, r));
    use_wider(&config, r->ctx);
    TRY(hti_params_make(&params, r->ctx, &config));
    ht_status status = hti_checkpoint_check(r, &params, &part, 1);
    hti_params_free(&params, r->ctx);
    TRY(status);
    TRY(hti_checkpoint_verify(r, (ht_dtype)config.dtype));
    TRY(hti_model_make(out, r->ctx, &config, 0));
    part.arena = (*out)->p;
    TRY(load_labels(*out, r));
    TRY(hti_checkpoint_fill(r, *out, &part, 1));
    return hti_model_round(*out);
}

ht_status ht_model_load(ht_model **out, ht_context *ctx, const char *path) {
    CHECK(ctx, out && path, HT_INVALID, "ht_model_load: out or path is NULL");
    *out = NULL;
    NEED(ctx);
    hti_reader r;
    TRY(hti_reader_open(&r, ctx, path));
    ht_status status = load(out, &r);
    hti_reader_close(&r);
    if (status != HT_OK) {
        ht_model_destroy(*out);
        *out = NULL;
    }
    return status;
}
