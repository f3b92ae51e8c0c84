/*
 * A Transformer block, forward and backward side by side.
 */
#include "layer/layer.h"

#include "attention/plan.h"

static int64_t qkv_width(const ht_config *c) { return c->inner + 2 * HTI_KV; }

/* ---- memory ---- */

size_t hti_past_bytes(const hti_layers *s) {
    int64_t rows = s->c->neighbours > 0 ? s->c->neighbours - 1 : 0;
    return (size_t)(s->slots * rows * s->c->width) * hti_bytes(s->dtype);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

void hti_kept_layout(hti_kept *k, hti_arena *a, const hti_layers *s, int64_t rows, int backward) {
    const ht_config *c = s->c;
    size_t e = hti_bytes(s->dtype), wide = hti_wide_bytes(s->dtype);
    k->stats1 = hti_take(a, rows * 2, wide);
    k->stats2 = hti_take(a, rows * 2, wide);
    k->h1 = hti_take(a, rows * c->width, e);
    k->near = c->neighbours > 0 ? hti_take(a, rows * c->width, e) : k->h1;
    k->h2 = hti_take(a, rows * c->width, e);
    k->qkv = hti_take(a, rows * qkv_width(c), e);
    k->heads = hti_take(a, rows * c->inner, e);
    k->x1 = hti_take(a, rows * c->width, e);
    k->act = hti_take(a, rows * c->hidden, e);
    k->pre = k->saved = k->first_x = k->first_heads = NULL;
    if (!backward) return;
    k->pre = hti_take(a, rows * c->hidden, e);
    k->saved = hti_take(a, (int64_t)larger(s->plan->need.saved, s->plan_eval->need.saved), 1);
}

void hti_work_layout(hti_work *w, hti_arena *a, const hti_layers *s, int64_t rows, int backward) {
    const ht_config *c = s->c;
    const ht_attention_need *need = &s->plan->need, *eval = &s->plan_eval->need;
    size_t e = hti_bytes(s->dtype), scratch = larger(need->scratch_forward, eval->scratch_forward);
    hti_norm_call norm = {.dtype = s->dtype, .rows = rows, .width = c->width};
    int64_t widest = c->hidden > qkv_width(c) ? c->hidden : qkv_width(c);
    if (c->neighbours > 0 && widest < c->width) widest = c->width;
    int64_t either = c->width > c->inner ? c->width : c->inner;
    if (backward) scratch = larger(scratch, need->scratch_backward);
    if (!backward) w->branch = hti_take(a, rows * c->width, e);
    w->attention = hti_take(a, (int64_t)scratch, 1);
    if (!backward) return;
    w->ds = hti_take(a, rows * c->width, e);
    w->dy = c->dropout > 0 ? hti_take(a, rows * c->width, e) : w->ds;
    /* never needed together: forward's branch, what goes back through a norm, through the heads */
    w->dh = w->dheads = w->branch = hti_take(a, rows * either, e);
    w->dwide = hti_take(a, rows * widest, e);
    w->norm = hti_take(a, (int64_t)hti_models(s->ctx)->norm_scratch(s->ctx, &norm), 1);
}

/* ---- pieces that forward and backward describe alike ---- */

hti_random hti_site(const hti_rows *r, double p, int64_t layer, int place) {
    hti_random d = {r->train ? p : 0, r->seed, (uint32_t)((layer + 1) * 4 + place), r->offset,
                    r->offset_device};
    return d;
}

static hti_linear_call linear(const hti_layers *s, int64_t rows, int64_t in, int64_t out,
                              const void *x, const void *w, const void *bias) {
    hti_linear_call a = {
        .dtype = s->dtype, .rows = rows, .in = in, .out = out, .x = x, .w = w, .bias = bias};
    return a;
}

/* The layer's key of the attention's generator; the sites above use the seed itself. */
static uint64_t layer_seed(uint64_t seed, int64_t index) {
    return seed ^ ((uint64_t)(index + 1) * 0x9E3779B97F4A7C15u);
}

static ht_attention_args attention_args(const hti_layers *s, int64_t index,
                                        const hti_layer_weights *w, const hti_rows *r,
                                        const hti_kept *k, const hti_work *work) {
    const ht_config *c = s->c;
    int64_t row = qkv_width(c), d = HTI_HEAD_DIM;
    char *qkv = k->qkv;
    size_t e = hti_bytes(s->dtype);
    ht_attention_args a = HT_ATTENTION_ARGS_INIT;
    a.batch = r->sequences;
    a.length = r->length;
    a.cu_seqlens = r->cu_seqlens;
    a.q = (ht_tensor){.data = qkv, .row_stride = row, .head_stride = d};
    a.k = (ht_tensor){.data = qkv + (size_t)c->inner * e, .row_stride = row, .head_stride = d};
    a.v = (ht_tensor){
        .data = qkv + (size_t)(c->inner + HTI_KV) * e, .row_stride = row, .head_stride = d};
    a.out = (ht_tensor){.data = k->heads};
    a.bias = w->relative;
    a.key_mask = a.query_mask = r->mask;
    a.seed = layer_seed(r->seed, index);
    a.offset = r->offset;
    a.saved = k->saved;
    a.scratch = work->attention;
    return a;
}

static ht_status rotate(const hti_layers *s, const hti_rows *r, void *qkv, double sign) {
    const ht_config *c = s->c;
    if (!s->turn) return HT_OK;
    hti_rotary_call a = {.dtype = s->dtype,
                         .rows = r->rows,
                         .heads = c->heads + c->kv_heads,
                         .head_dim = HTI_HEAD_DIM,
                         .row_stride = qkv_width(c),
                         .positions = r->positions,
                         .turn = s->turn,
                         .sign = sign,
                         .x = qkv};
    return hti_models(s->ctx)->rotary(s->ctx, &a);
}

static const ht_attention *plan_of(const hti_layers *s, const hti_rows *r) {
    return r->train ? s->plan : s->plan_eval;
}

/* Whether the attention itself can do with first rows. */
static hti_attention_how how_of(const hti_layers *s, const hti_rows *r, const hti_kept *k) {
    const hti_ops *ops = s->ctx->ops;
    int first = k->first_x && ops->attention_first && !s->caches &&
                ops->attention_first(s->ctx, &plan_of(s, r)->desc);
    return (hti_attention_how){r->offset_device, first};
}

/* The rows that go into the attention: of each column a sum over neighbours. */
static hti_near_call near_call(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                               const hti_rows *r, const hti_kept *k) {
    const ht_config *c = s->c;
    hti_near_call a = {.dtype = s->dtype,
                       .rows = r->rows,
                       .width = c->width,
                       .size = c->neighbours,
                       .back = hti_config_near_back(c),
                       .lead = hti_config_has_cls(c),
                       .sequences = r->sequences,
                       .sequence = r->sequence,
                       .start = r->start,
                       .count = r->count,
                       .mask = r->mask,
                       .x = k->h1,
                       .w = w->near,
                       .y = k->near,
                       .slots = r->slots_device,
                       .past = s->past ? s->past + (size_t)index * hti_past_bytes(s) : NULL};
    return a;
}

/* What comes after the attention: all rows, or the first row of each sequence. */
typedef struct tail {
    hti_rows rows;
    hti_kept kept;
    hti_work work;
} tail;

static tail tail_of(const hti_rows *r, const hti_kept *k, const hti_work *work) {
    tail t = {*r, *k, *work};
    if (!k->first_x) return t;
    t.rows.rows = r->sequences;
    t.kept.x = k->first_x;
    t.kept.heads = k->first_heads;
    t.work.ds = work->first_ds;
    t.work.dy = work->first_dy;
    t.work.dheads = work->first_dheads;
    return t;
}

/* all [rows, width] to first [sequences, width], or back: then the other rows become zero */
static ht_status first_rows(const hti_layers *s, const hti_rows *r, void *first, void *all,
                            int64_t width, int back) {
    hti_pool_call a = {.dtype = s->dtype,
                       .kind = HTI_POOL_FIRST,
                       .sequences = r->sequences,
                       .rows = r->rows,
                       .width = width,
                       .start = r->start,
                       .count = r->count,
                       .x = all,
                       .out = first,
                       .dout = first,
                       .dx = all};
    return back ? hti_models(s->ctx)->pool_backward(s->ctx, &a)
                : hti_models(s->ctx)->pool_forward(s->ctx, &a);
}

/* ---- forward ---- */

static ht_status attention_forward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                                   const hti_rows *r, const hti_kept *k, const hti_work *work) {
    const ht_config *c = s->c;
    hti_linear_call qkv = linear(s, r->rows, c->width, qkv_width(c), k->near, w->qkv, w->qkv_bias);
    hti_near_call near = near_call(s, index, w, r, k);
    qkv.y = k->qkv;
    if (c->neighbours > 0) TRY(hti_models(s->ctx)->near_forward(s->ctx, &near));
    TRY(hti_models(s->ctx)->linear_forward(s->ctx, &qkv));
    TRY(rotate(s, r, k->qkv, 1));
    ht_attention_args args = attention_args(s, index, w, r, k, work);
    if (s->caches) {
        TRY(ht_cache_extend(s->caches[index], r->slots, &args));
        return near.past ? hti_models(s->ctx)->near_keep(s->ctx, &near) : HT_OK;
    }
    hti_attention_how how = how_of(s, r, k);
    if (how.first) args.out.data = k->first_heads;
    TRY(hti_attention_forward(plan_of(s, r), &args, how));
    if (!k->first_x) return HT_OK;
    if (!how.first) TRY(first_rows(s, r, k->first_heads, k->heads, c->inner, 0));
    return first_rows(s, r, k->first_x, k->x, c->width, 0);
}

int hti_layers_add(const hti_layers *s, const hti_rows *r) {
    return hti_models(s->ctx)->linear_adds && !(r->train && s->c->dropout > 0);
}

static ht_status mlp_forward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                             const hti_rows *r, const hti_kept *k, const hti_work *work,
                             void *next) {
    const ht_config *c = s->c;
    hti_linear_call up = linear(s, r->rows, c->width, c->hidden, k->h2, w->up, w->up_bias);
    hti_linear_call down = linear(s, r->rows, c->hidden, c->width, k->act, w->down, w->down_bias);
    up.activation = HTI_GELU;
    up.drop = hti_site(r, c->dropout, index, HTI_SITE_ACT);
    up.pre = k->pre;
    up.y = k->act;
    down.y = next ? next : work->branch;
    down.add = next ? k->x1 : NULL;
    TRY(hti_models(s->ctx)->linear_forward(s->ctx, &up));
    return hti_models(s->ctx)->linear_forward(s->ctx, &down);
}

static ht_status tail_forward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                              const tail *t, void *next) {
    const ht_config *c = s->c;
    const hti_kept *k = &t->kept;
    hti_linear_call merge =
        linear(s, t->rows.rows, c->inner, c->width, k->heads, w->merge, w->merge_bias);
    hti_norm_call norm2 = {.dtype = s->dtype,
                           .rows = t->rows.rows,
                           .width = c->width,
                           .epsilon = c->norm_epsilon,
                           .x = k->x,
                           .y = t->work.branch,
                           .s = k->x1,
                           .out = k->h2,
                           .stats = k->stats2,
                           .scale = w->norm2_scale,
                           .shift = w->norm2_shift,
                           .drop = hti_site(&t->rows, c->dropout, index, HTI_SITE_HEADS)};
    merge.y = t->work.branch;
    if (hti_layers_add(s, &t->rows)) {
        merge.y = k->x1, merge.add = k->x;
        norm2.x = k->x1, norm2.y = NULL;
    }
    TRY(hti_models(s->ctx)->linear_forward(s->ctx, &merge));
    TRY(hti_models(s->ctx)->norm_forward(s->ctx, &norm2));
    return mlp_forward(s, index, w, &t->rows, k, &t->work, next);
}

ht_status hti_layer_forward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                            const hti_rows *r, const hti_kept *k, const hti_work *work,
                            const void *x, int pending, void *next) {
    const ht_config *c = s->c;
    hti_norm_call norm1 = {.dtype = s->dtype,
                           .rows = r->rows,
                           .width = c->width,
                           .epsilon = c->norm_epsilon,
                           .x = x,
                           .y = pending ? work->branch : NULL,
                           .s = k->x,
                           .out = k->h1,
                           .stats = k->stats1,
                           .scale = w->norm1_scale,
                           .shift = w->norm1_shift,
                           .drop = hti_site(r, c->dropout, index - 1, HTI_SITE_BRANCH)};
    tail t = tail_of(r, k, work);
    TRY(hti_models(s->ctx)->norm_forward(s->ctx, &norm1));
    TRY(attention_forward(s, index, w, r, k, work));
    return tail_forward(s, index, w, &t, next);
}

/* ---- backward ---- */

/* The biases that are added to the stream get their gradients from the norms that read it. */
static ht_status mlp_backward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                              const hti_layer_weights *g, const hti_rows *r, const hti_kept *k,
                              const hti_work *work) {
    const ht_config *c = s->c;
    hti_linear_call up = linear(s, r->rows, c->width, c->hidden, k->h2, w->up, w->up_bias);
    hti_linear_call down = linear(s, r->rows, c->hidden, c->width, k->act, w->down, w->down_bias);
    down.dy = work->dy;
    down.dx = work->dwide;
    down.dw = g->down;
    down.before = HTI_GELU;
    down.before_pre = k->pre;
    down.before_dbias = g->up_bias;
    down.before_drop = hti_site(r, c->dropout, index, HTI_SITE_ACT);
    up.dy = work->dwide;
    up.dx = work->dh;
    up.dw = g->up;
    TRY(hti_models(s->ctx)->linear_backward(s->ctx, &down));
    return hti_models(s->ctx)->linear_backward(s->ctx, &up);
}

/* Gradients of q, k, v lie in dwide as q, k, v lie in qkv. */
static ht_attention_grads attention_grads(const ht_attention_args *args, const hti_layer_weights *g,
                                          const hti_kept *k, const hti_work *work) {
    ht_attention_grads d = HT_ATTENTION_GRADS_INIT;
    d.dout.data = work->dheads;
    d.dq = args->q;
    d.dk = args->k;
    d.dv = args->v;
    d.dq.data = (char *)work->dwide + ((char *)args->q.data - (char *)k->qkv);
    d.dk.data = (char *)work->dwide + ((char *)args->k.data - (char *)k->qkv);
    d.dv.data = (char *)work->dwide + ((char *)args->v.data - (char *)k->qkv);
    d.dbias = g->relative;
    return d;
}

static ht_status attention_backward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                                    const hti_layer_weights *g, const hti_rows *r,
                                    const hti_kept *k, const hti_work *work) {
    const ht_config *c = s->c;
    hti_linear_call qkv = linear(s, r->rows, c->width, qkv_width(c), k->near, w->qkv, w->qkv_bias);
    hti_near_call near = near_call(s, index, w, r, k);
    qkv.dy = work->dwide;
    qkv.dx = work->dh;
    qkv.dw = g->qkv;
    qkv.dbias = g->qkv_bias;
    hti_attention_how how = how_of(s, r, k);
    if (k->first_x && !how.first)
        TRY(first_rows(s, r, work->first_dheads, work->dheads, c->inner, 1));
    if (k->first_x) TRY(first_rows(s, r, work->first_ds, work->ds, c->width, 1));
    ht_attention_args args = attention_args(s, index, w, r, k, work);
    ht_attention_grads grads = attention_grads(&args, g, k, work);
    if (how.first) args.out.data = k->first_heads, grads.dout.data = work->first_dheads;
    TRY(hti_attention_backward(plan_of(s, r), &args, &grads, how));
    TRY(rotate(s, r, work->dwide, -1));
    TRY(hti_models(s->ctx)->linear_backward(s->ctx, &qkv));
    if (c->neighbours == 0) return HT_OK;
    near.dy = work->dh;
    near.dx = work->dwide; /* norm1's dout */
    near.dw = g->near;
    return hti_models(s->ctx)->near_backward(s->ctx, &near);
}

/* The norm that had s as its input: ds takes in what comes through it, dy is what the branch before
 * it gets. */
static hti_norm_call norm_back(const hti_layers *s, const hti_rows *r, const void *x, void *stats,
                               const hti_work *work, hti_random drop) {
    hti_norm_call a = {.dtype = s->dtype,
                       .rows = r->rows,
                       .width = s->c->width,
                       .epsilon = s->c->norm_epsilon,
                       .x = x,
                       .stats = stats,
                       .dout = work->dh,
                       .ds_in = work->ds,
                       .ds = work->ds,
                       .drop = drop,
                       .scratch = work->norm,
                       .dy = work->dy == work->ds ? NULL : work->dy};
    return a;
}

static ht_status tail_backward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                               const hti_layer_weights *g, const tail *t) {
    const ht_config *c = s->c;
    hti_linear_call merge =
        linear(s, t->rows.rows, c->inner, c->width, t->kept.heads, w->merge, w->merge_bias);
    hti_norm_call norm2 = norm_back(s, &t->rows, t->kept.x1, t->kept.stats2, &t->work,
                                    hti_site(&t->rows, c->dropout, index, HTI_SITE_HEADS));
    norm2.scale = w->norm2_scale;
    norm2.dscale = g->norm2_scale;
    norm2.dshift = g->norm2_shift;
    norm2.dbias = g->merge_bias;
    merge.dy = t->work.dy;
    merge.dx = t->work.dheads;
    merge.dw = g->merge;
    TRY(mlp_backward(s, index, w, g, &t->rows, &t->kept, &t->work));
    TRY(hti_models(s->ctx)->norm_backward(s->ctx, &norm2));
    return hti_models(s->ctx)->linear_backward(s->ctx, &merge);
}

ht_status hti_layer_backward(const hti_layers *s, int64_t index, const hti_layer_weights *w,
                             const hti_layer_weights *g, const hti_rows *r, const hti_kept *k,
                             const hti_work *work, const hti_layer_weights *before) {
    hti_norm_call norm1 = norm_back(s, r, k->x, k->stats1, work,
                                    hti_site(r, s->c->dropout, index - 1, HTI_SITE_BRANCH));
    tail t = tail_of(r, k, work);
    if (s->c->neighbours > 0) norm1.dout = work->dwide;
    norm1.scale = w->norm1_scale;
    norm1.dscale = g->norm1_scale;
    norm1.dshift = g->norm1_shift;
    if (before)
        norm1.dbias = before->down_bias;
    else
        norm1.dy = NULL;
    TRY(tail_backward(s, index, w, g, &t));
    TRY(attention_backward(s, index, w, g, r, k, work));
    return hti_models(s->ctx)->norm_backward(s->ctx, &norm1);
}
