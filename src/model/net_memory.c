/*
 * The memory of a model at work: plans, activations, scratch, the batch's arrays, constants.
 */
#include <math.h>
#include <string.h>

#include "attention/plan.h"
#include "model/net.h"

/* ---- layouts: each measures with base NULL, then carves ---- */

static int64_t most_tokens(const hti_net *n) { return n->max_rows * n->c->merge; }

/* With recomputation, or without backward, all layers share what they keep; with recomputation each
 * has its x. */
static void kept_layout(hti_net *n, hti_arena *a) {
    const ht_config *c = n->c;
    int64_t rows = n->max_rows, width = c->width, seqs = n->max_sequences;
    size_t e = hti_bytes(n->model->dtype), wide = hti_wide_bytes(n->model->dtype);
    int shared = c->recompute || !n->backward;
    n->embedded = hti_take(a, rows * width, e);
    n->table = c->amounts ? hti_take(a, c->vocab * HTI_COLUMNS, e) : NULL;
    for (int64_t l = 0; l < c->layers; l++) {
        if (l > 0 && shared)
            n->kept[l] = n->kept[0];
        else
            hti_kept_layout(&n->kept[l], a, &n->layers, rows, n->backward);
        if (l == 0)
            n->kept[l].x = n->embedded;
        else
            n->kept[l].x = n->backward || l == 1 ? hti_take(a, rows * width, e) : n->kept[1].x;
    }
    if (n->first) {
        n->kept[c->layers - 1].first_x = hti_take(a, seqs * width, e);
        n->kept[c->layers - 1].first_heads = hti_take(a, seqs * c->inner, e);
        rows = seqs; /* of the final norm */
    }
    n->last = hti_take(a, rows * width, e);
    n->last_stats = hti_take(a, rows * 2, wide);
    if (!n->backward || n->first) n->normed = hti_take(a, rows * width, e);
    n->row_loss = hti_take(a, most_tokens(n) > seqs ? most_tokens(n) : seqs, wide);
    n->row_hit = hti_take(a, most_tokens(n) > seqs ? most_tokens(n) : seqs, 1);
    if (hti_config_by_token(c)) return;
    n->pooled = n->first ? n->normed : hti_take(a, seqs * width, e);
    n->matched = hti_config_matches(c) ? hti_take(a, n->items * HTI_FEATURES, e) : NULL;
    n->logits = hti_take(a, seqs * c->classes, e);
    for (int i = 0; i < 2; i++) {
        n->head_act[i] = hti_take(a, seqs * c->head_hidden, e);
        n->head_pre[i] = hti_take(a, seqs * c->head_hidden, e);
    }
}

static void work_layout(hti_net *n, hti_arena *a) {
    const ht_config *c = n->c;
    size_t e = hti_bytes(n->model->dtype);
    int by_token = hti_config_by_token(c);
    hti_loss_call loss = {.dtype = n->model->dtype,
                          .rows = by_token ? most_tokens(n) : n->items,
                          .width = HTI_LAST,
                          .classes = HTI_LOGITS};
    hti_work_layout(&n->work, a, &n->layers, n->max_rows, n->backward);
    n->loss_scratch = hti_take(a, (int64_t)hti_models(n->ctx)->loss_scratch(n->ctx, &loss), 1);
    if (!n->backward) return;
    hti_embed_call embed = {
        .dtype = n->model->dtype, .rows = most_tokens(n), .width = HTI_COLUMNS, .vocab = c->vocab};
    n->embed_scratch = hti_take(a, (int64_t)hti_models(n->ctx)->embed_scratch(n->ctx, &embed), 1);
    size_t wide = hti_wide_bytes(n->model->dtype);
    n->dtable = c->amounts ? hti_take(a, c->vocab * HTI_COLUMNS, wide) : NULL;
    n->dnormed = n->work.dh; /* used up by the final norm before any layer needs it */
    if (!n->first) n->normed = n->work.dwide; /* and so is this by the head */
    if (by_token) return;
    n->dpooled = hti_take(a, n->max_sequences * c->width, e);
    n->dmatched = n->matched ? hti_take(a, n->items * HTI_FEATURES, e) : NULL;
    if (n->first) {
        n->work.first_ds = hti_take(a, n->max_sequences * c->width, e);
        n->work.first_dy =
            c->dropout > 0 ? hti_take(a, n->max_sequences * c->width, e) : n->work.first_ds;
        n->work.first_dheads = hti_take(a, n->max_sequences * c->inner, e);
        n->dnormed = n->dpooled;
    }
    for (int i = 0; i < 2; i++) n->dhead[i] = hti_take(a, n->max_sequences * c->head_hidden, e);
}

static void batch_layout(hti_net *n, hti_arena *a) {
    const ht_config *c = n->c;
    size_t wide = hti_wide_bytes(n->model->dtype);
    n->step = hti_take(a, 1, sizeof *n->step);
    n->tokens = hti_take(a, most_tokens(n), sizeof(int32_t));
    n->positions = hti_take(a, n->max_rows, sizeof(int32_t));
    n->places = c->merge > 1 ? hti_take(a, most_tokens(n), sizeof(int32_t)) : n->positions;
    n->targets = hti_take(a, most_tokens(n) + n->items, sizeof(int32_t));
    n->start = hti_take(a, n->max_sequences, sizeof(int32_t));
    n->count = hti_take(a, n->max_sequences, sizeof(int32_t));
    n->mask = hti_take(a, n->max_rows, 1);
    if (c->neighbours > 0) n->sequence = hti_take(a, n->max_rows, sizeof(int32_t));
    n->fixed_positions = n->turn = NULL;
    if (c->sinusoidal)
        n->fixed_positions = hti_take(a, n->max_length * c->width, hti_bytes(n->model->dtype));
    if (c->rotary == HTI_ROTARY_ALL) n->turn = hti_take(a, n->max_length * HTI_HEAD_DIM, wide);
}

static void host_layout(hti_net *n, hti_arena *a) {
    n->tokens_host = hti_take(a, most_tokens(n), sizeof(int32_t));
    n->positions_host = hti_take(a, n->max_rows, sizeof(int32_t));
    n->places_host =
        n->c->merge > 1 ? hti_take(a, most_tokens(n), sizeof(int32_t)) : n->positions_host;
    n->targets_host = hti_take(a, most_tokens(n) + n->items, sizeof(int32_t));
    n->start_host = hti_take(a, n->max_sequences, sizeof(int32_t));
    n->count_host = hti_take(a, n->max_sequences, sizeof(int32_t));
    n->cu_host = hti_take(a, n->max_sequences + 1, sizeof(int32_t));
    n->mask_host = hti_take(a, n->max_rows, 1);
    if (n->c->neighbours > 0) n->sequence_host = hti_take(a, n->max_rows, sizeof(int32_t));
}

static ht_status carve(void **block, hti_net *n, void (*layout)(hti_net *, hti_arena *)) {
    hti_arena a = {NULL, 0};
    layout(n, &a);
    TRY(n->ctx->ops->alloc(n->ctx, block, a.used));
    n->bytes += a.used;
    a = (hti_arena){*block, 0};
    layout(n, &a);
    return HT_OK;
}

static ht_status carve_host(hti_net *n) {
    hti_arena a = {NULL, 0};
    host_layout(n, &a);
    void *block = hti_host_alloc(n->ctx, a.used);
    CHECK(n->ctx, block, HT_NOMEM, "out of memory: %zu bytes for a batch", a.used);
    memset(block, 0, a.used);
    a = (hti_arena){block, 0};
    host_layout(n, &a);
    return HT_OK;
}

/* ---- constants ---- */

/* Even columns sin(t theta^(-2i/width)), odd ones the cosine of the same. */
static double sinusoid(int64_t t, int64_t column, const ht_config *c) {
    double angle =
        (double)t * pow(c->sinusoidal_theta, -(double)(column / 2 * 2) / (double)c->width);
    return column % 2 ? cos(angle) : sin(angle);
}

/* Cosine or sine (odd k) of row t's angle. In a grid pairs of columns turn by the place in the line
 * and by the line in turns, and two such pairs have one rate. */
static double turn(int64_t t, int64_t k, const ht_config *c) {
    int64_t grid = c->rotary_grid, pair = k / 2;
    double rate =
        pow(c->rotary_theta, -2.0 * (double)(grid ? pair / 2 * 2 : pair) / (double)HTI_HEAD_DIM);
    double angle = (double)(!grid ? t : pair % 2 ? t / grid : t % grid) * rate;
    return k % 2 ? sin(angle) : cos(angle);
}

static ht_status fill_constants(hti_net *n) {
    const ht_config *c = n->c;
    int64_t width = c->width > HTI_HEAD_DIM ? c->width : HTI_HEAD_DIM;
    ht_dtype dtype = n->model->dtype;
    double *row = hti_host_alloc(n->ctx, sizeof *row * (size_t)width);
    CHECK(n->ctx, row, HT_NOMEM, "out of memory: a row of positions");
    void *wide =
        NULL; /* where the kernels' type is narrower, the table is rounded like the weights */
    ht_status status = HT_OK;
    int64_t count = n->max_length * c->width;
    int narrow = n->fixed_positions && hti_bytes(dtype) != hti_wide_bytes(dtype);
    if (narrow) status = n->ctx->ops->alloc(n->ctx, &wide, (size_t)count * hti_wide_bytes(dtype));
    for (int64_t t = 0; t < n->max_length && status == HT_OK; t++) {
        if (n->fixed_positions) {
            for (int64_t k = 0; k < c->width; k++) row[k] = sinusoid(t, k, c);
            status = hti_tensor_write(n->ctx, narrow ? wide : n->fixed_positions, row, dtype,
                                      t * c->width, c->width);
        }
        if (n->turn && status == HT_OK) {
            for (int64_t k = 0; k < HTI_HEAD_DIM; k++) row[k] = turn(t, k, c);
            status = hti_tensor_write(n->ctx, n->turn, row, dtype, t * HTI_HEAD_DIM, HTI_HEAD_DIM);
        }
    }
    if (narrow && status == HT_OK)
        status = hti_models(n->ctx)->round(n->ctx, dtype, n->fixed_positions, wide, count);
    if (narrow && status == HT_OK) status = n->ctx->ops->synchronize(n->ctx);
    if (wide) n->ctx->ops->release(n->ctx, wide);
    hti_host_free(n->ctx, row);
    return status;
}

/* ---- plans and pointers ---- */

void hti_model_attention(ht_attention_desc *out, const ht_model *m, const ht_config *how) {
    const ht_config *c = &m->config;
    *out = (ht_attention_desc)HT_ATTENTION_DESC_INIT;
    out->kind = (ht_kind)c->attention;
    out->query = (ht_query)c->query;
    out->dtype = m->dtype;
    out->causal = (int)c->causal;
    out->has_bias = (int)c->relative_bias;
    out->q_heads = c->heads;
    out->kv_heads = c->kv_heads;
    out->head_dim = HTI_HEAD_DIM;
    out->block = c->block;
    out->open = how->open, out->open_leaf = how->open_leaf, out->open_peek = how->open_peek;
    out->rotary_theta = c->rotary == HTI_ROTARY_LEVEL0 ? c->rotary_theta : 0;
}

static ht_status make_plans(hti_net *n) {
    ht_attention_desc d;
    hti_model_attention(&d, n->model, n->c);
    d.max_rows = n->max_rows;
    d.max_sequences = n->max_sequences;
    d.max_length = n->max_length;
    /* everything lies on 64-byte lines; heads that do not are a matter of their size alone */
    int aligned = d.head_dim % 8 == 0;
    TRY(hti_attention_create(&n->plan_eval, n->ctx, &d, aligned));
    d.dropout = n->c->attention_dropout;
    return hti_attention_create(&n->plan, n->ctx, &d, aligned);
}

void hti_model_point(hti_layer_weights *out, const ht_model *m) {
    for (int64_t l = 0; l < m->config.layers; l++) {
        const hti_layer_at *at = &m->params.layers[l];
#define POINT(field, name, rows, columns, init, matrix, when) \
    out[l].field = hti_weight(m, at->field);
        HTI_LAYER_PARAMS(POINT)
        out[l].relative = hti_wide(m->p, m->dtype, at->relative); /* attention takes it wide */
    }
}

static void point(hti_net *n, void *grads) {
    const ht_model *m = n->model;
    hti_model_point(n->weights, m);
    for (int64_t l = 0; l < n->c->layers; l++) {
        const hti_layer_at *at = &m->params.layers[l];
#define POINT_GRADS(field, name, rows, columns, init, matrix, when) \
    n->grads[l].field = hti_wide(grads, m->dtype, at->field);
        HTI_LAYER_PARAMS(POINT_GRADS)
    }
}

static ht_status create(hti_net *n, void *grads) {
    const ht_config *c = n->c;
    size_t layers = (size_t)c->layers;
    n->weights = hti_host_alloc(n->ctx, layers * sizeof *n->weights);
    n->grads = hti_host_alloc(n->ctx, layers * sizeof *n->grads);
    n->kept = hti_host_alloc(n->ctx, layers * sizeof *n->kept);
    CHECK(n->ctx, n->weights && n->grads && n->kept, HT_NOMEM, "out of memory: %lld layers",
          (long long)c->layers);
    point(n, grads);
    TRY(make_plans(n));
    n->layers = (hti_layers){.ctx = n->ctx,
                             .c = c,
                             .dtype = n->model->dtype,
                             .plan = n->plan,
                             .plan_eval = n->plan_eval};
    TRY(carve(&n->batch_block, n, batch_layout));
    n->layers.turn = n->turn;
    TRY(carve(&n->kept_block, n, kept_layout));
    TRY(carve(&n->work_block, n, work_layout));
    TRY(carve_host(n));
    n->rows.offset_device = &n->step->in.offset;
    n->rows.start = n->start;
    n->rows.count = n->count;
    n->rows.sequence = n->sequence;
    return fill_constants(n);
}

/* A trainer's configuration may differ from the model's in how it trains, not in what the model is.
 */
static void merge(ht_config *out, const ht_config *model, const ht_config *train) {
    *out = *model;
    out->batch = train->batch;
    if (!model->learned) out->length = train->length; /* else the table of positions says it */
    out->dropout = train->dropout;
    out->attention_dropout = train->attention_dropout;
    out->recompute = train->recompute;
    out->pad = train->pad;
    out->open = train->open;
    out->open_leaf = train->open_leaf;
    out->open_peek = train->open_peek;
    out->seed = train->seed;
}

ht_status hti_net_create(hti_net *n, ht_model *model, const ht_config *config, void *grads) {
    *n = (hti_net){.model = model, .ctx = model->ctx, .backward = grads != NULL};
    merge(&n->config, &model->config, config);
    n->c = &n->config;
    n->fixes = n->c->pad || (hti_models(n->ctx)->fixed_shapes && !hti_config_splits(n->c));
    n->first = !hti_config_by_token(n->c) && n->c->pool <= HTI_POOLED_FIRST;
    n->items = n->c->batch;
    n->max_length = hti_config_rows(n->c);
    n->max_sequences = hti_config_sequences(n->c);
    n->max_rows = n->max_sequences * n->max_length;
    if (hti_config_splits(n->c) && !n->fixes) n->max_sequences = n->max_rows;
    ht_status status = create(n, grads);
    if (status != HT_OK) hti_net_destroy(n);
    return status;
}

void hti_net_destroy(hti_net *n) {
    void *blocks[] = {n->kept_block, n->work_block, n->batch_block};
    if (!n->ctx) return;
    for (int i = 0; i < 3; i++)
        if (blocks[i]) n->ctx->ops->release(n->ctx, blocks[i]);
    hti_host_free(n->ctx, n->tokens_host); /* the host block begins there */
    hti_host_free(n->ctx, n->weights);
    hti_host_free(n->ctx, n->grads);
    hti_host_free(n->ctx, n->kept);
    ht_attention_destroy(n->plan);
    ht_attention_destroy(n->plan_eval);
    *n = (hti_net){0};
}

/* Rows', and where merge makes them differ, those of tokens. */
static ht_status load_positions(hti_net *n) {
    const hti_ops *ops = n->ctx->ops;
    size_t bytes = (size_t)n->rows.rows * sizeof *n->positions;
    if (n->placed && n->fixed) return HT_OK; /* they are what they were */
    TRY(ops->copy_in(n->ctx, n->positions, n->positions_host, bytes));
    if (n->c->merge > 1)
        TRY(ops->copy_in(n->ctx, n->places, n->places_host, bytes * (size_t)n->c->merge));
    if (n->sequence) TRY(ops->copy_in(n->ctx, n->sequence, n->sequence_host, bytes));
    n->placed = n->fixed;
    return HT_OK;
}

ht_status hti_net_load(hti_net *n, const ht_batch *batch) {
    const hti_ops *ops = n->ctx->ops;
    TRY(hti_batch_check(n, batch));
    hti_batch_stage(n, batch);
    size_t rows = (size_t)n->rows.rows, seqs = (size_t)n->rows.sequences;
    TRY(ops->copy_in(n->ctx, n->tokens, n->tokens_from,
                     rows * (size_t)n->c->merge * sizeof *n->tokens));
    TRY(load_positions(n));
    if (n->rows.mask) TRY(ops->copy_in(n->ctx, n->mask, n->mask_host, rows));
    TRY(ops->copy_in(n->ctx, n->start, n->start_host, seqs * sizeof *n->start));
    TRY(ops->copy_in(n->ctx, n->count, n->count_host, seqs * sizeof *n->count));
    TRY(ops->copy_in(n->ctx, n->targets, n->targets_host,
                     (size_t)n->target_rows * sizeof *n->targets));
    return hti_batch_check_tokens(n, batch); /* while they travel; nothing has looked at them yet */
}
