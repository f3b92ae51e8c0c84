/*
 * One update: micro-batches forward and back, the gradient's norm, the optimiser. And the same
 * without the update, for evaluation, prediction and checks.
 *
 * Nothing is allocated here after create, and the host reads device memory once per step, after it.
 */
#include "train/trainer.h"

#include <math.h>
#include <string.h>

#include "core/bf16.h"
#include "core/sized.h"

/* ---- create and destroy ---- */

static int uses_muon(const ht_trainer *t) { return t->config.optimizer == HTI_OPTIMIZER_MUON; }

static size_t arena_bytes(const ht_trainer *t, int64_t numbers) {
    return (size_t)numbers * hti_wide_bytes(t->model->dtype);
}

/* Of each of the two moments. */
static size_t moment_bytes(const ht_trainer *t) {
    return arena_bytes(t, hti_share_moments(&t->share, &t->model->params));
}

static ht_status allocate(ht_trainer *t) {
    const hti_params *p = &t->model->params;
    const size_t bytes[] = {arena_bytes(t, p->total), moment_bytes(t), moment_bytes(t)};
    void **blocks[] = {&t->grads, &t->m, &t->v};
    for (int i = 0; i < 3; i++) {
        TRY(t->ctx->ops->alloc(t->ctx, blocks[i], bytes[i] ? bytes[i] : 1));
        TRY(t->ctx->ops->fill(t->ctx, *blocks[i], 0, bytes[i]));
    }
    size_t muon = uses_muon(t) ? hti_muon_scratch(t) : 0;
    return muon ? t->ctx->ops->alloc(t->ctx, &t->muon, muon) : HT_OK;
}

static ht_status prepare(ht_trainer *t, ht_world *world) {
    TRY(hti_share_open(&t->share, world, t->ctx, &t->config, &t->model->params, t->model->dtype));
    return allocate(t);
}

ht_status ht_trainer_create(ht_trainer **out, ht_model *model, const ht_trainer_desc *desc) {
    CHECK(model ? model->ctx : NULL, out, HT_INVALID, "ht_trainer_create: out is NULL");
    *out = NULL;
    CHECK(NULL, model, HT_INVALID, "ht_trainer_create: model is NULL");
    ht_context *ctx = model->ctx;
    ht_trainer_desc own = HT_TRAINER_DESC_INIT;
    if (desc) TRY(HTI_TAKE(ctx, ht_trainer_desc, &own, desc));
    ht_config config = own.config ? *own.config : model->config;
    TRY(hti_config_go_on(ctx, &config, &model->config, HTI_BEGUN_MODEL, "the model"));
    CHECK(ctx, !model->config.learned || config.length <= model->config.length, HT_INVALID,
          "length %lld is more than the %lld positions that the model has learned",
          (long long)config.length, (long long)model->config.length);
    ht_trainer *t = hti_host_alloc(ctx, sizeof *t);
    CHECK(ctx, t, HT_NOMEM, "out of memory: %zu bytes for a trainer", sizeof *t);
    memset(t, 0, sizeof *t);
    t->model = model;
    t->ctx = ctx;
    t->config = config;
    ht_status status = own.inference ? HT_OK : prepare(t, own.world);
    config.batch = hti_share_most(&t->share, config.batch);
    if (status == HT_OK) status = hti_net_create(&t->net, model, &config, t->grads);
    if (status != HT_OK) {
        ht_trainer_destroy(t);
        return status;
    }
    *out = t;
    return HT_OK;
}

void ht_trainer_destroy(ht_trainer *t) {
    if (!t) return;
    void *blocks[] = {t->grads, t->m, t->v, t->muon};
    for (int i = 0; i < HTI_PARTS; i++)
        if (t->graph[i]) hti_models(t->ctx)->graph_release(t->ctx, t->graph[i]);
    hti_net_destroy(&t->net);
    hti_share_close(&t->share, t->ctx);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (blocks[i]) t->ctx->ops->release(t->ctx, blocks[i]);
    hti_host_free(t->ctx, t);
}

const ht_config *ht_trainer_config(const ht_trainer *t) { return t ? &t->config : NULL; }
int64_t ht_trainer_steps(const ht_trainer *t) { return t ? t->step : 0; }

const char *ht_trainer_kernels(const ht_trainer *t, int backward) {
    return ht_attention_kernels(t ? t->net.plan : NULL, backward);
}

ht_status ht_trainer_explain(const ht_trainer *t, int backward, ht_kernels_info *out) {
    NEED(t);
    return ht_attention_explain(t->net.plan, NULL, NULL, backward, out);
}

size_t ht_trainer_moments(const ht_trainer *t) { return t && t->grads ? 2 * moment_bytes(t) : 0; }

size_t ht_trainer_bytes(const ht_trainer *t) {
    if (!t) return 0;
    return t->net.bytes + (t->grads ? arena_bytes(t, t->model->params.total) : 0) +
           ht_trainer_moments(t) + (t->muon ? hti_muon_scratch(t) : 0) +
           hti_flight_bytes(&t->share.flight);
}

/* ---- numbers that cross the wall ---- */

/* Micro-batches so far; each rank's share counts as one, for masks of its own. */
static uint32_t offset_of(const ht_trainer *t) {
    const hti_share *s = &t->share;
    return (uint32_t)(s->world ? t->micro * s->ranks + s->rank : t->micro);
}

static ht_status send(ht_trainer *t, double loss_scale, double rate) {
    hti_step s = {.in = {.offset = offset_of(t), .loss_scale = loss_scale, .rate = rate}};
    double n = (double)(t->applied + 1);
    s.in.correction1 = 1 - pow(t->config.beta1, n);
    s.in.correction2 = 1 - pow(t->config.beta2, n);
    t->net.rows.offset = s.in.offset;
    t->net.rows.seed = (uint64_t)t->config.seed + 0x5EEDu;
    return t->ctx->ops->copy_in(t->ctx, &t->net.step->in, &s.in, sizeof s.in);
}

static ht_status clear_out(ht_trainer *t) {
    return t->ctx->ops->fill(t->ctx, &t->net.step->out, 0, sizeof t->net.step->out);
}

/* Callers' reports may be NULL. */
static ht_status want(const ht_trainer *t, const ht_report *out) {
    return out ? HTI_WANT(t->ctx, ht_report, out) : HT_OK;
}

static void give(ht_report *out, const ht_report *r) {
    if (out) HTI_GIVE(ht_report, out, r);
}

static ht_status receive(ht_trainer *t, ht_report *r, int64_t tokens) {
    hti_step s;
    TRY(t->ctx->ops->copy_out(t->ctx, &s, t->net.step, sizeof s));
    *r = (ht_report){.size = sizeof *r,
                     .targets = (int64_t)s.out.targets,
                     .correct = (int64_t)s.out.correct,
                     .tokens = tokens,
                     .rate = s.in.rate,
                     .gradient_norm = sqrt(s.out.square),
                     .applied = s.out.applied != 0};
    /* a rank whose pieces are all Muon's has nobody else to say so */
    if (t->share.shards) r->applied = isfinite(s.out.square) && isfinite(s.out.loss);
    r->loss = s.out.targets > 0 ? s.out.loss / s.out.targets : 0;
    r->accuracy = s.out.targets > 0 ? s.out.correct / s.out.targets : 0;
    return HT_OK;
}

/* ---- a step ---- */

static int drops(const ht_trainer *t) { return t->step >= t->config.dropout_after; }

static ht_status run_micro(ht_trainer *t) {
    TRY(hti_net_forward(&t->net, drops(t)));
    return hti_net_backward(&t->net, t->grads);
}

static ht_status adamw(ht_trainer *t, int64_t from, int64_t to, double decay) {
    const ht_config *c = &t->config;
    ht_dtype dtype = t->model->dtype;
    int64_t moment = hti_share_place(&t->share, from);
    hti_adamw_call a = {.dtype = dtype,
                        .count = to - from,
                        .p = hti_wide(t->model->p, dtype, from),
                        .m = hti_wide(t->m, dtype, moment),
                        .v = hti_wide(t->v, dtype, moment),
                        .g = hti_wide(t->grads, dtype, from),
                        .step = t->net.step,
                        .beta1 = c->beta1,
                        .beta2 = c->beta2,
                        .epsilon = c->adam_epsilon,
                        .decay = decay,
                        .clip = c->clip};
    if (t->model->w != t->model->p) a.w = hti_weight(t->model, from);
    return hti_models(t->ctx)->adamw(t->ctx, &a);
}

/* What has moments here of [from, to). */
static ht_status run_adamw(ht_trainer *t, int64_t from, int64_t to, double decay) {
    int64_t at = from, end = to;
    for (int i = 0; hti_share_next(&t->share, i, &at, &end); i++, at = from, end = to)
        if (at < end) TRY(adamw(t, at, end, decay));
    return HT_OK;
}

static ht_status run_update(ht_trainer *t) {
    const hti_params *p = &t->model->params;
    const hti_model_ops *ops = hti_models(t->ctx);
    ht_dtype dtype = t->model->dtype;
    if (!t->share.world) TRY(ops->square(t->ctx, dtype, t->net.step, t->grads, p->total));
    if (t->muon) TRY(hti_muon_update(t));
    TRY(run_adamw(t, 0, uses_muon(t) ? p->matrices : p->decaying, t->config.weight_decay));
    return run_adamw(t, p->decaying, p->total, 0);
}

/* Runs a part of the step: directly, or recorded once and then replayed where the device can. */
static ht_status run(ht_trainer *t, int which, ht_status (*part)(ht_trainer *)) {
    const hti_model_ops *ops = hti_models(t->ctx);
    void **graph = &t->graph[which];
    int same = which == HTI_UPDATE || t->net.fixed;
    if (!ops->capture_begin || !same || !t->warm[which]) {
        t->warm[which] |= same;
        return part(t);
    }
    if (!*graph) {
        TRY(ops->capture_begin(t->ctx));
        ht_status status = part(t), ended = ops->capture_end(t->ctx, graph);
        if (status != HT_OK) return status;
        if (ended != HT_OK) return ended;
    }
    return ops->graph_launch(t->ctx, *graph);
}

static ht_status need_gradients(const ht_trainer *t) {
    CHECK(t->ctx, t->grads, HT_INVALID, "this trainer was made for inference; it has no gradients");
    return HT_OK;
}

ht_status ht_trainer_clear_gradient(ht_trainer *t) {
    NEED(t);
    TRY(need_gradients(t));
    return t->ctx->ops->fill(t->ctx, t->grads, 0,
                             (size_t)t->model->params.total * hti_wide_bytes(t->model->dtype));
}

ht_status hti_step_begin(ht_trainer *t) {
    TRY(ht_trainer_clear_gradient(t));
    t->tokens = 0;
    return clear_out(t);
}

ht_status hti_step_add(ht_trainer *t, const ht_batch *batch, int64_t count) {
    TRY(hti_net_load(&t->net, batch));
    double sums[2] = {(double)t->net.batch_targets, (double)t->net.batch_tokens};
    TRY(hti_world_add(t->share.world, sums, 2));
    CHECK(t->ctx, sums[0] > 0, HT_INVALID, "the batch has no targets to learn from");
    TRY(send(t, 1 / (sums[0] * (double)count), hti_rate(&t->config, t->step)));
    TRY(run(t, HTI_MICRO + (t->net.rows.mask != NULL) + 2 * drops(t), run_micro));
    t->tokens += (int64_t)sums[1];
    t->micro++;
    return HT_OK;
}

ht_status hti_step_update(ht_trainer *t) {
    if (t->share.world) TRY(hti_share_gradient(t));
    TRY(run(t, HTI_UPDATE, run_update));
    return t->share.shards ? hti_share_weights(t) : HT_OK;
}

ht_status hti_step_end(ht_trainer *t, ht_report *out) {
    TRY(receive(t, out, t->tokens));
    t->step++;
    t->applied += out->applied;
    return HT_OK;
}

/* Batch i of an array, whose structs lie as far apart as the caller's are large. */
static ht_status take_batch(const ht_trainer *t, ht_batch *out, const ht_batch *batches,
                            int64_t i) {
    const void *at = (const char *)batches + (size_t)i * batches->size;
    return HTI_TAKE(t->ctx, ht_batch, out, at);
}

ht_status ht_trainer_step(ht_trainer *t, const ht_batch *batches, int64_t count, ht_report *out) {
    NEED(t);
    ht_batch batch;
    ht_report report;
    CHECK(t->ctx, batches && count >= 1, HT_INVALID, "a step needs at least one batch, got %lld",
          (long long)count);
    TRY(want(t, out));
    for (int64_t i = 0; i < count; i++) TRY(take_batch(t, &batch, batches, i));
    TRY(hti_step_begin(t));
    for (int64_t i = 0; i < count; i++) {
        TRY(take_batch(t, &batch, batches, i));
        TRY(hti_step_add(t, &batch, count));
    }
    TRY(hti_step_update(t));
    TRY(hti_step_end(t, &report));
    give(out, &report);
    return HT_OK;
}

/* ---- without an update ---- */

ht_status hti_trainer_load(ht_trainer *t, ht_batch *out, const ht_batch *batch) {
    TRY(HTI_TAKE(t->ctx, ht_batch, out, batch));
    TRY(clear_out(t));
    return hti_net_load(&t->net, out);
}

ht_status ht_trainer_gradient(ht_trainer *t, const ht_batch *batch, ht_report *out) {
    NEED(t);
    ht_batch own;
    ht_report report;
    TRY(need_gradients(t));
    TRY(want(t, out));
    TRY(hti_trainer_load(t, &own, batch));
    CHECK(t->ctx, t->net.batch_targets > 0, HT_INVALID, "the batch has no targets to learn from");
    TRY(send(t, 1 / (double)t->net.batch_targets, 0));
    TRY(run_micro(t));
    TRY(hti_models(t->ctx)->square(t->ctx, t->model->dtype, t->net.step, t->grads,
                                   t->model->params.total));
    TRY(receive(t, &report, t->net.batch_tokens));
    give(out, &report);
    return HT_OK;
}

ht_status ht_trainer_read_gradient(const ht_trainer *t, int64_t index, double *out) {
    NEED(t);
    TRY(need_gradients(t));
    CHECK(t->ctx, index >= 0 && index < t->model->params.tensors, HT_INVALID,
          "tensor index must be 0 to %lld, got %lld", (long long)t->model->params.tensors - 1,
          (long long)index);
    CHECK(t->ctx, out, HT_INVALID, "ht_trainer_read_gradient: out is NULL");
    const hti_param *p = &t->model->params.list[index];
    return hti_tensor_read(t->ctx, out, t->grads, t->model->dtype, p->offset, p->count);
}

ht_status ht_trainer_evaluate(ht_trainer *t, const ht_batch *batch, ht_report *out) {
    NEED(t);
    ht_batch own;
    ht_report report;
    TRY(want(t, out));
    TRY(hti_trainer_load(t, &own, batch));
    TRY(send(t, 1, 0));
    TRY(hti_net_forward(&t->net, 0));
    TRY(hti_net_loss(&t->net));
    TRY(receive(t, &report, t->net.batch_tokens));
    give(out, &report);
    return HT_OK;
}

/* The device's logits (dtype of the model) as float, so many at a time. */
static ht_status read_logits(ht_trainer *t, float *out, int64_t count) {
    enum { PART = 1024 };
    union {
        double wide[PART];
        uint16_t half[PART];
    } part;
    ht_dtype dtype = t->model->dtype;
    const char *from = t->net.logits;
    size_t each = hti_bytes(dtype);
    if (dtype == HT_F32) return t->ctx->ops->copy_out(t->ctx, out, from, each * (size_t)count);
    for (int64_t k = 0; k < count; k += PART) {
        int64_t n = count - k < PART ? count - k : PART;
        TRY(t->ctx->ops->copy_out(t->ctx, &part, from + (size_t)k * each, each * (size_t)n));
        for (int64_t j = 0; j < n; j++)
            out[k + j] = dtype == HT_F64 ? (float)part.wide[j] : hti_from_bf16(part.half[j]);
    }
    return HT_OK;
}

/* Rows first ... first + rows - 1 of the losses, and of the hits if they are wanted. */
static ht_status read_rows(ht_trainer *t, float *losses, uint8_t *hits, int64_t first,
                           int64_t rows) {
    enum { PART = 1024 };
    double part[PART];
    for (int64_t k = 0; k < rows; k += PART) {
        int64_t count = rows - k < PART ? rows - k : PART;
        TRY(hti_tensor_read(t->ctx, part, t->net.row_loss, t->model->dtype, first + k, count));
        for (int64_t j = 0; j < count; j++) losses[k + j] = (float)part[j];
    }
    if (!hits) return HT_OK;
    return t->ctx->ops->copy_out(t->ctx, hits, (uint8_t *)t->net.row_hit + first, (size_t)rows);
}

/* Of a batch's tokens: rows of the sequences, without padding. */
static ht_status read_losses(ht_trainer *t, float *losses, uint8_t *hits) {
    hti_net *n = &t->net;
    int64_t first = 0, rows = 0, done = 0; /* sequences that touch are read together */
    for (int64_t i = 0; i <= n->rows.sequences; i++) {
        int end = i == n->rows.sequences;
        if (!end && n->start_host[i] == first + rows) {
            rows += n->count_host[i];
            continue;
        }
        if (rows > 0) TRY(read_rows(t, losses + done, hits ? hits + done : NULL, first, rows));
        done += rows;
        if (!end) first = n->start_host[i], rows = n->count_host[i];
    }
    return HT_OK;
}

ht_status ht_trainer_guess(ht_trainer *t, const ht_batch *batch, float *losses,
                           unsigned char *right) {
    NEED(t);
    ht_batch own;
    CHECK(t->ctx, losses, HT_INVALID, "ht_trainer_guess: losses is NULL");
    CHECK(t->ctx, t->config.task == HTI_TASK_LANGUAGE, HT_INVALID,
          "ht_trainer_guess is for language models; ht_trainer_predict serves classifiers");
    TRY(hti_trainer_load(t, &own, batch));
    CHECK(t->ctx, own.targets, HT_INVALID, "a language model's losses need targets");
    TRY(send(t, 1, 0));
    TRY(hti_net_forward(&t->net, 0));
    TRY(hti_net_loss(&t->net));
    return read_losses(t, losses, right);
}

ht_status ht_trainer_predict(ht_trainer *t, const ht_batch *batch, float *out) {
    NEED(t);
    ht_batch own;
    CHECK(t->ctx, out, HT_INVALID, "ht_trainer_predict: out is NULL");
    if (t->config.task == HTI_TASK_LANGUAGE) return ht_trainer_guess(t, batch, out, NULL);
    CHECK(t->ctx, t->config.task != HTI_TASK_DENOISE, HT_UNSUPPORTED,
          "a model that denoises has no predictions to give; train a classifier from it");
    TRY(hti_trainer_load(t, &own, batch));
    TRY(send(t, 1, 0));
    TRY(hti_net_forward(&t->net, 0));
    TRY(hti_net_logits(&t->net));
    return read_logits(t, out, t->net.batch_items * t->model->config.classes);
}

/* ---- logits of a language model ---- */

/* Rows [from, from + n) of normed through the output, as double. */
static ht_status logits_rows(ht_trainer *t, double *out, void *room, int64_t from, int64_t n) {
    const ht_model *m = t->model;
    const ht_config *c = &m->config;
    hti_gemm product = {
        .dtype = m->dtype,
        .wide_c = 1,
        .m = n,
        .n = c->vocab,
        .k = c->width,
        .a = (const char *)t->net.normed + (size_t)(from * c->width) * hti_bytes(m->dtype),
        .lda = c->width,
        .b = hti_weight(m, c->tied ? m->params.model.embed : m->params.model.output),
        .ldb = c->width,
        .transpose_b = 1,
        .c = room,
        .ldc = c->vocab};
    TRY(hti_models(t->ctx)->gemm(t->ctx, &product));
    return hti_tensor_read(t->ctx, out, room, m->dtype, 0, n * c->vocab);
}

ht_status ht_trainer_logits(ht_trainer *t, const ht_batch *batch, double *out) {
    NEED(t);
    enum { ROWS = 16 };
    const hti_net *n = &t->net;
    int64_t vocab = t->model->config.vocab;
    void *room;
    ht_batch own;
    CHECK(t->ctx, out, HT_INVALID, "ht_trainer_logits: out is NULL");
    CHECK(
        t->ctx, t->config.task == HTI_TASK_LANGUAGE, HT_INVALID,
        "ht_trainer_logits is for language models; ht_trainer_predict gives those of classifiers");
    TRY(hti_trainer_load(t, &own, batch));
    TRY(send(t, 1, 0));
    TRY(hti_net_forward(&t->net, 0));
    TRY(t->ctx->ops->alloc(t->ctx, &room,
                           (size_t)(ROWS * vocab) * hti_wide_bytes(t->model->dtype)));
    ht_status status = HT_OK;
    for (int64_t i = 0; i < own.sequences && status == HT_OK; i++) {
        for (int64_t k = 0; k < n->count_host[i] && status == HT_OK; k += ROWS) {
            int64_t rows = n->count_host[i] - k < ROWS ? n->count_host[i] - k : ROWS;
            status = logits_rows(t, out, room, n->start_host[i] + k, rows);
            out += rows * vocab;
        }
    }
    t->ctx->ops->release(t->ctx, room);
    return status;
}
