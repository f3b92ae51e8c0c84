/*
 * Embed, layers, head, loss; and back.
 */
#include "model/net.h"

/* ---- embedding ---- */

/* Tokens of a row lie side by side: of its own each token has a row of width / merge. */
static hti_embed_call embed_call(const hti_net *n) {
    int64_t merge = n->c->merge;
    const ht_model *m = n->model;
    const hti_model_at *at = &m->params.model;
    hti_embed_call e = {.dtype = m->dtype,
                        .rows = n->rows.rows * merge,
                        .width = hti_config_columns(n->c),
                        .vocab = n->c->vocab,
                        .length = n->max_length * merge,
                        .each = n->rows.cu_seqlens ? 0 : n->rows.length * merge,
                        .tokens = n->tokens,
                        .positions = n->places,
                        .table = n->table ? n->table : hti_weight(m, at->embed),
                        .cls = hti_weight(m, at->cls),
                        .learned = hti_weight(m, at->learned),
                        .fixed = n->fixed_positions,
                        .out = n->embedded,
                        .drop = hti_site(&n->rows, n->c->dropout, -1, 0)};
    return e;
}

static hti_amounts_call amounts_call(const hti_net *n, const void *grads) {
    const ht_model *m = n->model;
    return (hti_amounts_call){.dtype = m->dtype,
                              .vocab = n->c->vocab,
                              .width = hti_config_columns(n->c),
                              .w = hti_weight(m, m->params.model.amounts),
                              .table = n->table,
                              .dtable = n->dtable,
                              .dw = hti_wide(grads, m->dtype, m->params.model.amounts)};
}

/* ---- the head: pool, then up to two hidden layers ---- */

static hti_pool_call pool_call(const hti_net *n) {
    static const hti_pool kinds[] = {HTI_POOL_FIRST, HTI_POOL_FIRST, HTI_POOL_VALID,
                                     HTI_POOL_ALL,   HTI_POOL_LAST,  HTI_POOL_MAX};
    hti_pool_call p = {.dtype = n->model->dtype,
                       .kind = kinds[n->c->pool],
                       .sequences = n->rows.sequences,
                       .rows = n->rows.rows,
                       .width = n->c->width,
                       .start = n->start,
                       .count = n->count,
                       .mask = n->rows.mask,
                       .x = n->normed,
                       .out = n->pooled,
                       .dout = n->dpooled,
                       .dx = n->dnormed};
    return p;
}

static hti_match_call match_call(const hti_net *n) {
    return (hti_match_call){.dtype = n->model->dtype,
                            .items = n->target_rows,
                            .width = n->c->width,
                            .x = n->pooled,
                            .out = n->matched,
                            .dout = n->dmatched,
                            .dx = n->dpooled};
}
static void *features(const hti_net *n) { return n->matched ? n->matched : n->pooled; }
static void *features_gradient(const hti_net *n) { return n->matched ? n->dmatched : n->dpooled; }

static int head_layers(const ht_config *c) {
    return !HTI_HEADED ? 0 : c->task == HTI_TASK_PAIRS ? 2 : 1;
}

/* Hidden layer i of the head; grads NULL in forward. Pooled rows of a pair lie side by side. */
static hti_linear_call head_call(const hti_net *n, int i, const void *grads) {
    const ht_config *c = n->c;
    const ht_model *m = n->model;
    const hti_model_at *at = &m->params.model;
    int64_t sizes[3] = {HTI_FEATURES, c->head_hidden, c->head_hidden / 2};
    hti_linear_call a = {.dtype = m->dtype,
                         .activation = HTI_RELU,
                         .rows = n->target_rows,
                         .in = sizes[i],
                         .out = sizes[i + 1],
                         .x = i ? n->head_act[0] : features(n),
                         .w = hti_weight(m, i ? at->head1 : at->head0),
                         .bias = hti_weight(m, i ? at->head1_bias : at->head0_bias),
                         .pre = n->head_pre[i],
                         .y = n->head_act[i],
                         .dy = n->dhead[i],
                         .dx = i ? n->dhead[0] : features_gradient(n),
                         .dw = hti_wide(grads, m->dtype, i ? at->head1 : at->head0),
                         .dbias = hti_wide(grads, m->dtype, i ? at->head1_bias : at->head0_bias)};
    return a;
}

/* What the last layer reads, and where its gradient goes. */
static void *last_input(const hti_net *n) {
    int layers = head_layers(n->c);
    if (hti_config_by_token(n->c)) return n->normed;
    return layers ? n->head_act[layers - 1] : features(n);
}
static void *last_gradient(const hti_net *n) {
    int layers = head_layers(n->c);
    if (hti_config_by_token(n->c)) return n->dnormed;
    return layers ? n->dhead[layers - 1] : features_gradient(n);
}

static int64_t output_at(const ht_model *m) {
    return m->config.tied ? m->params.model.embed : m->params.model.output;
}

/* ---- forward ---- */

static hti_norm_call final_norm(const hti_net *n) {
    const ht_model *m = n->model;
    const hti_model_at *at = &m->params.model;
    hti_norm_call a = {.dtype = m->dtype,
                       .rows = n->first ? n->rows.sequences : n->rows.rows,
                       .width = n->c->width,
                       .epsilon = n->c->norm_epsilon,
                       .x = n->kept[n->c->layers - 1].x1,
                       .y = n->work.branch,
                       .s = n->last,
                       .out = n->normed,
                       .stats = n->last_stats,
                       .scale = hti_weight(m, at->norm_scale),
                       .shift = hti_weight(m, at->norm_shift),
                       .drop =
                           hti_site(&n->rows, n->c->dropout, n->c->layers - 1, HTI_SITE_BRANCH)};
    return a;
}

ht_status hti_net_layers(hti_net *n, int train, int64_t count) {
    n->rows.train = train;
    hti_embed_call embed = embed_call(n);
    hti_amounts_call amounts = amounts_call(n, NULL);
    if (n->table) TRY(hti_models(n->ctx)->amounts_forward(n->ctx, &amounts));
    TRY(hti_models(n->ctx)->embed_forward(n->ctx, &embed));
    int adds = hti_layers_add(&n->layers, &n->rows);
    for (int64_t l = 0; l < count; l++) {
        void *next = l + 1 < n->c->layers ? n->kept[l + 1].x : n->last;
        const void *x = l == 0 ? n->embedded : adds ? n->kept[l].x : n->kept[l - 1].x1;
        TRY(hti_layer_forward(&n->layers, l, &n->weights[l], &n->rows, &n->kept[l], &n->work, x,
                              l > 0 && !adds, adds ? next : NULL));
    }
    return HT_OK;
}

ht_status hti_net_forward(hti_net *n, int train) {
    const hti_model_ops *ops = hti_models(n->ctx);
    TRY(hti_net_layers(n, train, n->c->layers));
    hti_norm_call norm = final_norm(n);
    if (hti_layers_add(&n->layers, &n->rows)) norm.x = n->last, norm.y = NULL;
    TRY(ops->norm_forward(n->ctx, &norm));
    if (hti_config_by_token(n->c)) return HT_OK;
    hti_pool_call pool = pool_call(n);
    if (!n->first) TRY(ops->pool_forward(n->ctx, &pool));
    hti_match_call match = match_call(n);
    if (n->matched) TRY(ops->match_forward(n->ctx, &match));
    for (int i = 0; i < head_layers(n->c); i++) {
        hti_linear_call head = head_call(n, i, NULL);
        TRY(ops->linear_forward(n->ctx, &head));
    }
    return HT_OK;
}

ht_status hti_net_logits(hti_net *n) {
    const ht_config *c = n->c;
    const ht_model *m = n->model;
    hti_linear_call a = {.dtype = m->dtype,
                         .rows = n->target_rows,
                         .in = HTI_LAST,
                         .out = c->classes,
                         .x = last_input(n),
                         .w = hti_weight(m, output_at(m)),
                         .bias = hti_weight(m, m->params.model.output_bias),
                         .y = n->logits};
    return hti_models(n->ctx)->linear_forward(n->ctx, &a);
}

static hti_loss_call loss_call(const hti_net *n, const void *grads) {
    const ht_config *c = n->c;
    const ht_model *m = n->model;
    hti_loss_call a = {.dtype = m->dtype,
                       .rows = n->target_rows,
                       .width = HTI_LAST,
                       .classes = HTI_LOGITS,
                       .x = last_input(n),
                       .w = hti_weight(m, output_at(m)),
                       .bias = hti_weight(m, m->params.model.output_bias),
                       .targets = n->targets,
                       .step = n->step,
                       .row_loss = n->row_loss,
                       .row_hit = n->row_hit,
                       .scratch = n->loss_scratch};
    if (!grads) return a;
    a.dx = last_gradient(n);
    a.dw = hti_wide(grads, m->dtype, output_at(m));
    a.dbias = hti_wide(grads, m->dtype, m->params.model.output_bias);
    return a;
}

ht_status hti_net_loss(hti_net *n) {
    hti_loss_call loss = loss_call(n, NULL);
    return hti_models(n->ctx)->loss(n->ctx, &loss);
}

/* ---- backward ---- */

static ht_status head_backward(hti_net *n, void *grads) {
    const hti_model_ops *ops = hti_models(n->ctx);
    hti_loss_call loss = loss_call(n, grads);
    TRY(ops->loss(n->ctx, &loss));
    if (hti_config_by_token(n->c)) return HT_OK;
    for (int i = head_layers(n->c) - 1; i >= 0; i--) {
        hti_linear_call head = head_call(n, i, grads);
        TRY(ops->linear_backward(n->ctx, &head));
    }
    hti_match_call match = match_call(n);
    if (n->matched) TRY(ops->match_backward(n->ctx, &match));
    if (n->first) return HT_OK;
    hti_pool_call pool = pool_call(n);
    return ops->pool_backward(n->ctx, &pool);
}

static ht_status final_norm_backward(hti_net *n, void *grads) {
    const ht_model *m = n->model;
    hti_norm_call norm = final_norm(n);
    norm.x = n->last;
    norm.y = NULL;
    norm.dout = n->dnormed;
    norm.ds = n->first ? n->work.first_ds : n->work.ds;
    norm.dy = n->first ? n->work.first_dy : n->work.dy;
    if (norm.dy == norm.ds) norm.dy = NULL;
    norm.dscale = hti_wide(grads, m->dtype, m->params.model.norm_scale);
    norm.dshift = hti_wide(grads, m->dtype, m->params.model.norm_shift);
    norm.dbias = n->grads[n->c->layers - 1].down_bias;
    norm.scratch = n->work.norm;
    return hti_models(n->ctx)->norm_backward(n->ctx, &norm);
}

/* With recomputation only a layer's input was kept: run its forward again before its backward. */
static ht_status layer_backward(hti_net *n, int64_t l) {
    const hti_kept *kept = &n->kept[l];
    if (n->c->recompute)
        TRY(hti_layer_forward(&n->layers, l, &n->weights[l], &n->rows, kept, &n->work, kept->x, 0,
                              NULL));
    return hti_layer_backward(&n->layers, l, &n->weights[l], &n->grads[l], &n->rows, kept, &n->work,
                              l > 0 ? &n->grads[l - 1] : NULL);
}

static ht_status embed_backward(hti_net *n, void *grads) {
    const ht_model *m = n->model;
    const hti_model_at *at = &m->params.model;
    hti_embed_call embed = embed_call(n);
    hti_amounts_call amounts = amounts_call(n, grads);
    size_t table = (size_t)(n->c->vocab * hti_config_columns(n->c)) * hti_wide_bytes(m->dtype);
    embed.dout = n->work.ds;
    embed.scratch = n->embed_scratch;
    embed.dtable = n->dtable ? n->dtable : hti_wide(grads, m->dtype, at->embed);
    embed.dcls = hti_wide(grads, m->dtype, at->cls);
    embed.dlearned = hti_wide(grads, m->dtype, at->learned);
    if (n->dtable) TRY(n->ctx->ops->fill(n->ctx, n->dtable, 0, table));
    TRY(hti_models(n->ctx)->embed_backward(n->ctx, &embed));
    return n->dtable ? hti_models(n->ctx)->amounts_backward(n->ctx, &amounts) : HT_OK;
}

ht_status hti_net_backward(hti_net *n, void *grads) {
    TRY(head_backward(n, grads));
    TRY(final_norm_backward(n, grads));
    for (int64_t l = n->c->layers - 1; l >= 0; l--) TRY(layer_backward(n, l));
    return embed_backward(n, grads);
}
