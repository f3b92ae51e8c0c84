/*
 * The model as an object: create, read and write its tensors.
 */
#include "model/model.h"

#include "core/sized.h"

enum { STAGE = 4096 }; /* numbers that cross the wall at a time */

ht_status hti_tensor_read(ht_context *ctx, double *out, const void *arena, ht_dtype dtype,
                          int64_t offset, int64_t count) {
    if (dtype == HT_F64)
        return ctx->ops->copy_out(ctx, out, (const double *)arena + offset,
                                  sizeof *out * (size_t)count);
    float stage[STAGE];
    for (int64_t i = 0; i < count; i += STAGE) {
        int64_t n = count - i < STAGE ? count - i : STAGE;
        TRY(ctx->ops->copy_out(ctx, stage, (const float *)arena + offset + i,
                               sizeof *stage * (size_t)n));
        for (int64_t k = 0; k < n; k++) out[i + k] = stage[k];
    }
    return HT_OK;
}

ht_status hti_tensor_write(ht_context *ctx, void *arena, const double *in, ht_dtype dtype,
                           int64_t offset, int64_t count) {
    if (dtype == HT_F64)
        return ctx->ops->copy_in(ctx, (double *)arena + offset, in, sizeof *in * (size_t)count);
    float stage[STAGE];
    for (int64_t i = 0; i < count; i += STAGE) {
        int64_t n = count - i < STAGE ? count - i : STAGE;
        for (int64_t k = 0; k < n; k++) stage[k] = (float)in[i + k];
        TRY(ctx->ops->copy_in(ctx, (float *)arena + offset + i, stage, sizeof *stage * (size_t)n));
    }
    return HT_OK;
}

ht_status hti_model_round(ht_model *m) {
    if (m->w == m->p) return HT_OK;
    return hti_models(m->ctx)->round(m->ctx, m->dtype, m->w, m->p, m->params.total);
}

static ht_status fill_first(ht_model *m) {
    int64_t largest = 0;
    for (int64_t i = 0; i < m->params.tensors; i++)
        if (m->params.list[i].count > largest) largest = m->params.list[i].count;
    double *values = hti_host_alloc(m->ctx, sizeof *values * (size_t)largest);
    CHECK(m->ctx, values, HT_NOMEM, "out of memory: %lld numbers", (long long)largest);
    ht_status status = HT_OK;
    for (int64_t i = 0; i < m->params.tensors && status == HT_OK; i++) {
        const hti_param *t = &m->params.list[i];
        hti_param_init(values, &m->params, i, &m->config);
        status = hti_tensor_write(m->ctx, m->p, values, m->dtype, t->offset, t->count);
    }
    hti_host_free(m->ctx, values);
    return status;
}

static ht_status allocate(ht_model *m, int first) {
    ht_context *ctx = m->ctx;
    size_t wide = (size_t)m->params.total * hti_wide_bytes(m->dtype);
    TRY(ctx->ops->alloc(ctx, &m->p, wide));
    TRY(ctx->ops->fill(ctx, m->p, 0, wide)); /* the gaps between tensors stay zero for ever */
    m->w = m->p;
    if (hti_bytes(m->dtype) != hti_wide_bytes(m->dtype))
        TRY(ctx->ops->alloc(ctx, &m->w, (size_t)m->params.total * hti_bytes(m->dtype)));
    if (first) TRY(fill_first(m));
    return hti_model_round(m);
}

ht_status ht_model_create(ht_model **out, ht_context *ctx, const ht_config *config) {
    return hti_model_make(out, ctx, config, 1);
}

ht_status hti_model_make(ht_model **out, ht_context *ctx, const ht_config *config, int first) {
    CHECK(ctx, out, HT_INVALID, "ht_model_create: out is NULL");
    *out = NULL;
    CHECK(NULL, ctx, HT_INVALID, "ht_model_create: ctx is NULL");
    CHECK(ctx, config, HT_INVALID, "ht_model_create: config is NULL");
    ht_config c = *config;
    TRY(hti_config_resolve(ctx, &c));
    TRY(hti_models_open(ctx, (ht_dtype)c.dtype));
    ht_model *m = hti_host_alloc(ctx, sizeof *m);
    CHECK(ctx, m, HT_NOMEM, "out of memory: %zu bytes for a model", sizeof *m);
    *m = (ht_model){.ctx = ctx, .config = c, .dtype = (ht_dtype)c.dtype, .labels = {.ctx = ctx}};
    ht_status status = hti_params_make(&m->params, ctx, &m->config);
    if (status == HT_OK && !hti_config_by_token(&c))
        status = hti_names_count(&m->labels, c.classes);
    if (status == HT_OK) status = allocate(m, first);
    if (status != HT_OK) {
        ht_model_destroy(m);
        return status;
    }
    *out = m;
    return HT_OK;
}

void ht_model_destroy(ht_model *m) {
    if (!m) return;
    if (m->w && m->w != m->p) m->ctx->ops->release(m->ctx, m->w);
    if (m->p) m->ctx->ops->release(m->ctx, m->p);
    hti_params_free(&m->params, m->ctx);
    hti_names_free(&m->labels);
    hti_host_free(m->ctx, m);
}

const ht_labels *ht_model_labels(const ht_model *m) {
    return m && m->labels.count ? &m->labels : NULL;
}

ht_status ht_model_set_labels(ht_model *m, const ht_labels *labels) {
    NEED(m);
    CHECK(m->ctx, labels, HT_INVALID, "ht_model_set_labels: labels is NULL");
    CHECK(m->ctx, labels->count == m->labels.count, HT_INVALID,
          "the model has %lld classes, but there are %lld labels", (long long)m->labels.count,
          (long long)labels->count);
    hti_names copy = {.ctx = m->ctx};
    ht_status status = hti_names_copy(&copy, labels);
    if (status != HT_OK) {
        hti_names_free(&copy);
        return status;
    }
    hti_names_free(&m->labels);
    m->labels = copy;
    m->named = 1;
    return HT_OK;
}

const ht_config *ht_model_config(const ht_model *m) { return m ? &m->config : NULL; }

int64_t ht_model_parameters(const ht_model *m) { return m ? m->params.count : 0; }
int64_t ht_model_tensors(const ht_model *m) { return m ? m->params.tensors : 0; }

static ht_status check_index(const ht_model *m, int64_t index) {
    CHECK(m->ctx, index >= 0 && index < m->params.tensors, HT_INVALID,
          "tensor index must be 0 to %lld, got %lld", (long long)m->params.tensors - 1,
          (long long)index);
    return HT_OK;
}

ht_status ht_model_tensor(const ht_model *m, int64_t index, ht_tensor_info *out) {
    NEED(m);
    TRY(check_index(m, index));
    TRY(HTI_WANT(m->ctx, ht_tensor_info, out));
    const hti_param *t = &m->params.list[index];
    ht_tensor_info info = {
        .name = t->name, .rank = t->rank, .shape = {t->shape[0], t->shape[1]}, .count = t->count};
    HTI_GIVE(ht_tensor_info, out, &info);
    return HT_OK;
}

ht_status ht_model_read(const ht_model *m, int64_t index, double *out) {
    NEED(m);
    TRY(check_index(m, index));
    CHECK(m->ctx, out, HT_INVALID, "ht_model_read: out is NULL");
    const hti_param *t = &m->params.list[index];
    return hti_tensor_read(m->ctx, out, m->p, m->dtype, t->offset, t->count);
}

ht_status ht_model_write(ht_model *m, int64_t index, const double *in) {
    NEED(m);
    TRY(check_index(m, index));
    CHECK(m->ctx, in, HT_INVALID, "ht_model_write: in is NULL");
    const hti_param *t = &m->params.list[index];
    TRY(hti_tensor_write(m->ctx, m->p, in, m->dtype, t->offset, t->count));
    return hti_model_round(m);
}
