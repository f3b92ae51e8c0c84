/*
 * Generating: tokens go through the layers with one decode cache each, so that prompts, chunks and
 * single tokens are the same call and give what the full pass gives.
 *
 * Tables of positions are made for the rows of a call alone: nothing here grows with the text.
 */
#include "model/decode.h"

#include <math.h>
#include <string.h>

#include "core/sized.h"

/* ---- memory: each layout measures with base NULL, then carves ---- */

static void device_layout(ht_generator *g, hti_arena *a) {
    const ht_config *c = &g->model->config;
    ht_dtype dtype = g->model->dtype;
    size_t e = hti_bytes(dtype), wide = hti_wide_bytes(dtype);
    int64_t rows = g->max_rows;
    hti_kept_layout(&g->kept, a, &g->layers, rows, 0);
    g->work.branch = hti_take(a, rows * c->width, e);
    g->embedded = hti_take(a, rows * c->width, e);
    g->stream = hti_take(a, rows * c->width, e);
    g->last = hti_take(a, rows * c->width, e);
    g->stats = hti_take(a, rows * 2, wide);
    g->normed = hti_take(a, rows * c->width, e);
    g->picked = hti_take(a, rows * c->width, e);
    g->logits = hti_take(a, g->logit_rows * c->vocab, wide);
    g->numbers = hti_take(a, g->lists * rows, sizeof *g->numbers);
    g->past = NULL;
    if (c->neighbours > 0) g->past = hti_take(a, c->layers, hti_past_bytes(&g->layers));
    g->fixed = g->fixed_wide = g->turn = NULL;
    if (g->fixed_rows) g->fixed = hti_take(a, g->fixed_rows * c->width, e);
    if (g->fixed_rows && e != wide) g->fixed_wide = hti_take(a, g->fixed_rows * c->width, wide);
    if (c->rotary == HTI_ROTARY_ALL) g->turn = hti_take(a, rows * HTI_HEAD_DIM, wide);
}

static void host_layout(ht_generator *g, hti_arena *a) {
    const ht_config *c = &g->model->config;
    int64_t widest = c->width > HTI_HEAD_DIM ? c->width : HTI_HEAD_DIM;
    g->numbers_host = hti_take(a, g->lists * g->max_rows, sizeof *g->numbers_host);
    g->table_host = hti_take(a, g->max_rows * widest, sizeof *g->table_host);
    g->rates = hti_take(a, c->width + HTI_HEAD_DIM, sizeof *g->rates);
    g->piece_starts = hti_take(a, g->slots + 1, sizeof *g->piece_starts);
    g->piece_slots = hti_take(a, g->slots, sizeof *g->piece_slots);
    g->piece_sequence = hti_take(a, g->slots, sizeof *g->piece_sequence);
    g->done = hti_take(a, g->slots, sizeof *g->done);
    g->logits_raw = hti_take(a, g->logit_rows * c->vocab, hti_wide_bytes(g->model->dtype));
    g->last_logits = hti_take(a, g->slots * c->vocab, sizeof *g->last_logits);
    g->recent = hti_take(a, g->slots * HTI_RECENT, sizeof *g->recent);
    g->candidates = hti_take(a, c->vocab, sizeof *g->candidates);
}

static ht_status carve(ht_generator *g) {
    hti_arena a = {NULL, 0}, h = {NULL, 0};
    device_layout(g, &a);
    TRY(g->ctx->ops->alloc(g->ctx, &g->block, a.used));
    a = (hti_arena){g->block, 0};
    device_layout(g, &a);
    host_layout(g, &h);
    g->host = hti_host_alloc(g->ctx, h.used);
    CHECK(g->ctx, g->host, HT_NOMEM, "out of memory: %zu bytes for a generator", h.used);
    memset(g->host, 0, h.used);
    h = (hti_arena){g->host, 0};
    host_layout(g, &h);
    return HT_OK;
}

/* ---- positions ---- */

/* Rows [at, at + count) of the sinusoids, at most max_rows: those of positions first, first + 1,
 * ... */
static ht_status fill_fixed(ht_generator *g, int64_t at, int64_t first, int64_t count) {
    int64_t width = g->model->config.width;
    for (int64_t i = 0; i < count * width; i++) {
        int64_t k = i % width;
        double angle = (double)(first + i / width) * g->rates[k];
        g->table_host[i] = k % 2 ? cos(angle) : sin(angle);
    }
    return hti_tensor_write(g->ctx, g->fixed_wide ? g->fixed_wide : g->fixed, g->table_host,
                            g->model->dtype, at * width, count * width);
}

static ht_status round_fixed(ht_generator *g, int64_t rows) {
    if (!g->fixed_wide) return HT_OK;
    return hti_models(g->ctx)->round(g->ctx, g->model->dtype, g->fixed, g->fixed_wide,
                                     rows * g->model->config.width);
}

static ht_status fill_turn(ht_generator *g, int64_t at, int64_t first, int64_t count) {
    const ht_config *c = &g->model->config;
    int64_t d = HTI_HEAD_DIM;
    for (int64_t i = 0; i < count * d; i++) {
        int64_t k = i % d;
        double angle = (double)(first + i / d) * g->rates[c->width + k];
        g->table_host[i] = k % 2 ? sin(angle) : cos(angle);
    }
    return hti_tensor_write(g->ctx, g->turn, g->table_host, g->model->dtype, at * d, count * d);
}

/* The same angles as the tables of a batch (net_memory.c), without a power per number. */
static void fill_rates(ht_generator *g) {
    const ht_config *c = &g->model->config;
    for (int64_t k = 0; k < c->width; k++)
        g->rates[k] = pow(c->sinusoidal_theta, -(double)(k / 2 * 2) / (double)c->width);
    for (int64_t k = 0; k < HTI_HEAD_DIM; k++)
        g->rates[c->width + k] = pow(c->rotary_theta, -(double)(k / 2 * 2) / (double)HTI_HEAD_DIM);
}

/* ---- create and destroy ---- */

static ht_status make_layers(ht_generator *g, const ht_config *how) {
    const ht_config *c = &g->model->config;
    ht_attention_desc d;
    hti_model_attention(&d, g->model, how);
    d.max_rows = g->max_rows;
    TRY(ht_attention_create(&g->plan, g->ctx, &d));
    size_t layers = (size_t)c->layers;
    g->caches = hti_host_alloc(g->ctx, layers * sizeof *g->caches);
    g->weights = hti_host_alloc(g->ctx, layers * sizeof *g->weights);
    if (g->caches) memset(g->caches, 0, layers * sizeof *g->caches);
    CHECK(g->ctx, g->caches && g->weights, HT_NOMEM, "out of memory: %zu layers", layers);
    for (size_t l = 0; l < layers; l++) TRY(ht_cache_create(&g->caches[l], g->plan, g->slots));
    hti_model_point(g->weights, g->model);
    g->layers = (hti_layers){.ctx = g->ctx,
                             .c = c,
                             .dtype = g->model->dtype,
                             .plan = g->plan,
                             .plan_eval = g->plan,
                             .caches = g->caches,
                             .slots = g->slots};
    return HT_OK;
}

static ht_status create(ht_generator *g, const ht_config *how) {
    const ht_config *c = &g->model->config;
    g->logit_rows = g->max_rows < 16 ? g->max_rows : 16;
    g->lists = c->neighbours > 0 ? 9 : 5;
    if (c->sinusoidal) g->fixed_rows = c->learned ? c->length : g->max_rows;
    TRY(make_layers(g, how));
    TRY(carve(g));
    fill_rates(g);
    g->layers.turn = g->turn;
    g->layers.past = g->past;
    for (int64_t slot = 0; slot < g->slots && g->past; slot++) TRY(hti_past_forget(g, slot));
    if (!g->fixed_rows || !c->learned) return HT_OK;
    for (int64_t t = 0; t < g->fixed_rows; t += g->max_rows)
        TRY(fill_fixed(g, t, t, g->fixed_rows - t < g->max_rows ? g->fixed_rows - t : g->max_rows));
    return round_fixed(g, g->fixed_rows);
}

ht_status ht_generator_create(ht_generator **out, ht_model *model, const ht_generator_desc *desc) {
    CHECK(model ? model->ctx : NULL, out, HT_INVALID, "ht_generator_create: out is NULL");
    *out = NULL;
    CHECK(NULL, model, HT_INVALID, "ht_generator_create: model is NULL");
    ht_context *ctx = model->ctx;
    ht_generator_desc own = HT_GENERATOR_DESC_INIT;
    if (desc) TRY(HTI_TAKE(ctx, ht_generator_desc, &own, desc));
    CHECK(ctx, model->config.task == HTI_TASK_LANGUAGE, HT_INVALID,
          "only a language model writes text; this one has task %s",
          hti_config_choice("task", (int)model->config.task));
    int64_t slots = own.slots ? own.slots : 1;
    int64_t rows = own.rows ? own.rows : 256;
    CHECK(ctx, slots >= 1 && slots <= 1 << 20, HT_INVALID, "slots must be 1 to 1048576, got %lld",
          (long long)slots);
    CHECK(ctx, rows >= 1 && rows <= 1 << 20, HT_INVALID, "rows must be 1 to 1048576, got %lld",
          (long long)rows);
    ht_config how = own.config ? *own.config : model->config;
    TRY(hti_config_resolve(ctx, &how));
    ht_generator *g = hti_host_alloc(ctx, sizeof *g);
    CHECK(ctx, g, HT_NOMEM, "out of memory: %zu bytes for a generator", sizeof *g);
    memset(g, 0, sizeof *g);
    g->model = model;
    g->ctx = ctx;
    g->slots = slots;
    g->max_rows = rows;
    ht_status status = create(g, &how);
    if (status != HT_OK) {
        ht_generator_destroy(g);
        return status;
    }
    *out = g;
    return HT_OK;
}

void ht_generator_destroy(ht_generator *g) {
    if (!g) return;
    for (int64_t l = 0; g->caches && l < g->model->config.layers; l++)
        ht_cache_destroy(g->caches[l]);
    ht_attention_destroy(g->plan);
    if (g->block) g->ctx->ops->release(g->ctx, g->block);
    hti_host_free(g->ctx, g->host);
    hti_host_free(g->ctx, g->caches);
    hti_host_free(g->ctx, g->weights);
    hti_host_free(g->ctx, g);
}

/* ---- one call's rows through the model ---- */

static ht_status embed(ht_generator *g, int64_t rows) {
    const ht_model *m = g->model;
    const hti_model_at *at = &m->params.model;
    hti_embed_call e = {.dtype = m->dtype,
                        .rows = rows,
                        .width = m->config.width,
                        .vocab = m->config.vocab,
                        .tokens = g->numbers,
                        .positions = g->numbers + rows,
                        .table = hti_weight(m, at->embed),
                        .learned = hti_weight(m, at->learned),
                        .fixed = g->fixed,
                        .out = g->embedded};
    return hti_models(g->ctx)->embed_forward(g->ctx, &e);
}

static ht_status final_norm(ht_generator *g, int64_t rows) {
    const ht_model *m = g->model;
    hti_norm_call a = {.dtype = m->dtype,
                       .rows = rows,
                       .width = m->config.width,
                       .epsilon = m->config.norm_epsilon,
                       .x = g->kept.x1,
                       .y = g->work.branch,
                       .s = g->last,
                       .out = g->normed,
                       .stats = g->stats,
                       .scale = hti_weight(m, m->params.model.norm_scale),
                       .shift = hti_weight(m, m->params.model.norm_shift)};
    return hti_models(g->ctx)->norm_forward(g->ctx, &a);
}

static ht_status through_layers(ht_generator *g, int64_t rows) {
    const ht_config *c = &g->model->config;
    TRY(embed(g, rows));
    for (int64_t l = 0; l < c->layers; l++) {
        g->kept.x = l ? g->stream : g->embedded;
        TRY(hti_layer_forward(&g->layers, l, &g->weights[l], &g->rows, &g->kept, &g->work,
                              l ? g->kept.x1 : g->embedded, l > 0, NULL));
    }
    return final_norm(g, rows);
}

/* ---- logits ---- */

/* Row `row` of logits_raw. */
static void to_float(float *out, const ht_generator *g, int64_t row, int64_t count) {
    const float *narrow = (const float *)g->logits_raw + row * g->model->config.vocab;
    const double *wide = (const double *)g->logits_raw + row * g->model->config.vocab;
    for (int64_t i = 0; i < count; i++)
        out[i] = g->model->dtype == HT_F64 ? (float)wide[i] : narrow[i];
}

/* Logits of rows x [n, width], at most logit_rows, into logits_raw; wide, as sums are. */
static ht_status logits_of(ht_generator *g, const void *x, int64_t n) {
    const ht_model *m = g->model;
    const ht_config *c = &m->config;
    hti_gemm product = {.dtype = m->dtype,
                        .wide_c = 1,
                        .m = n,
                        .n = c->vocab,
                        .k = c->width,
                        .a = x,
                        .lda = c->width,
                        .b =
                            hti_weight(m, c->tied ? m->params.model.embed : m->params.model.output),
                        .ldb = c->width,
                        .transpose_b = 1,
                        .c = g->logits,
                        .ldc = c->vocab};
    TRY(hti_models(g->ctx)->gemm(g->ctx, &product));
    return g->ctx->ops->copy_out(g->ctx, g->logits_raw, g->logits,
                                 (size_t)(n * c->vocab) * hti_wide_bytes(m->dtype));
}

/* The picked rows of normed one after the other. */
static ht_status pick(ht_generator *g, int64_t rows, int64_t count, const void **out) {
    const ht_config *c = &g->model->config;
    *out = g->normed;
    if (count == rows) return HT_OK;
    hti_pool_call p = {.dtype = g->model->dtype,
                       .kind = HTI_POOL_FIRST,
                       .sequences = count,
                       .rows = rows,
                       .width = c->width,
                       .start = g->numbers + 2 * rows,
                       .count = g->numbers + 3 * rows,
                       .x = g->normed,
                       .out = g->picked};
    *out = g->picked;
    return hti_models(g->ctx)->pool_forward(g->ctx, &p);
}

/* ---- feeding ---- */

/* A call: pieces of sequences that together have at most max_rows rows. */
typedef struct feed {
    const int64_t *slots;
    const ht_batch *batch;
    float *logits;
    int every;
    int64_t rows, pieces, ends; /* ends: pieces that finish their sequence */
} feed;

/* Takes the next pieces; rows 0: nothing is left. */
static void take_pieces(ht_generator *g, feed *f) {
    f->rows = f->pieces = f->ends = 0;
    g->piece_starts[0] = 0;
    for (int64_t b = 0; b < f->batch->sequences && f->rows < g->max_rows; b++) {
        int64_t length = f->batch->cu_seqlens[b + 1] - f->batch->cu_seqlens[b];
        int64_t n = length - g->done[b];
        if (n > g->max_rows - f->rows) n = g->max_rows - f->rows;
        if (n == 0) continue;
        f->rows += n;
        g->piece_sequence[f->pieces] = b;
        g->piece_slots[f->pieces] = f->slots ? f->slots[b] : b;
        g->piece_starts[++f->pieces] = (int32_t)f->rows;
        f->ends += g->done[b] + n == length;
    }
}

/* Which piece each row is of, and each piece's first row, rows and slot. */
static void stage_pieces(ht_generator *g, const feed *f) {
    int32_t *piece = g->numbers_host + 5 * f->rows, *first = piece + f->rows,
            *count = first + f->rows, *slot = count + f->rows;
    for (int64_t p = 0; p < f->pieces; p++) {
        first[p] = g->piece_starts[p];
        count[p] = g->piece_starts[p + 1] - first[p];
        slot[p] = (int32_t)g->piece_slots[p];
        for (int32_t i = 0; i < count[p]; i++) piece[first[p] + i] = (int32_t)p;
    }
}

/* Tokens, positions and tables of the pieces, to the device. Learned positions are looked up by
 * position; else tables have a row per row of the call. */
static ht_status stage(ht_generator *g, const feed *f) {
    const ht_config *c = &g->model->config;
    int32_t *tokens = g->numbers_host, *positions = tokens + f->rows,
            *picked = tokens + 2 * f->rows;
    int64_t ends = 0;
    for (int64_t p = 0; p < f->pieces; p++) {
        int64_t b = g->piece_sequence[p],
                first = ht_cache_position(g->caches[0], g->piece_slots[p]);
        int64_t at = g->piece_starts[p], n = g->piece_starts[p + 1] - at;
        const int32_t *from = f->batch->tokens + f->batch->cu_seqlens[b] + g->done[b];
        memcpy(tokens + at, from, sizeof *tokens * (size_t)n);
        for (int64_t i = 0; i < n; i++)
            positions[at + i] = (int32_t)(c->learned ? first + i : at + i);
        if (g->turn) TRY(fill_turn(g, at, first, n));
        if (g->fixed_rows && !c->learned) TRY(fill_fixed(g, at, first, n));
        int64_t length = f->batch->cu_seqlens[b + 1] - f->batch->cu_seqlens[b];
        if (g->done[b] + n == length) picked[ends++] = (int32_t)(at + n - 1);
    }
    for (int64_t i = 0; i < f->rows; i++)
        picked[f->rows + i] = 1, picked[2 * f->rows + i] = (int32_t)i;
    if (g->fixed_rows && !c->learned) TRY(round_fixed(g, f->rows));
    if (g->past) stage_pieces(g, f);
    return g->ctx->ops->copy_in(g->ctx, g->numbers, g->numbers_host,
                                sizeof *tokens * (size_t)(g->lists * f->rows));
}

static void remember(ht_generator *g, const feed *f) {
    for (int64_t p = 0; p < f->pieces; p++) {
        int64_t b = g->piece_sequence[p], slot = g->piece_slots[p];
        int64_t n = g->piece_starts[p + 1] - g->piece_starts[p];
        int64_t first = ht_cache_position(g->caches[0], slot) - n;
        const int32_t *from = f->batch->tokens + f->batch->cu_seqlens[b] + g->done[b];
        for (int64_t i = n > HTI_RECENT ? n - HTI_RECENT : 0; i < n; i++)
            g->recent[slot * HTI_RECENT + (first + i) % HTI_RECENT] = from[i];
        g->done[b] += n;
    }
}

/* Logits of every row of the call, to where the caller wants them. */
static ht_status give_every(ht_generator *g, const feed *f) {
    const ht_config *c = &g->model->config;
    size_t e = hti_bytes(g->model->dtype);
    for (int64_t p = 0; p < f->pieces; p++) {
        int64_t b = g->piece_sequence[p], at = g->piece_starts[p], n = g->piece_starts[p + 1] - at;
        float *to = f->logits + (f->batch->cu_seqlens[b] + g->done[b] - n) * c->vocab;
        for (int64_t i = 0; i < n; i += g->logit_rows) {
            int64_t rows = n - i < g->logit_rows ? n - i : g->logit_rows;
            TRY(logits_of(g, (const char *)g->normed + (size_t)((at + i) * c->width) * e, rows));
            to_float(to + i * c->vocab, g, 0, rows * c->vocab);
        }
    }
    return HT_OK;
}

/* The next piece from p on that finishes its sequence. */
static int64_t next_end(const ht_generator *g, const feed *f, int64_t p) {
    for (; p < f->pieces; p++) {
        int64_t b = g->piece_sequence[p];
        if (g->done[b] == f->batch->cu_seqlens[b + 1] - f->batch->cu_seqlens[b]) break;
    }
    return p;
}

/* Logits after each sequence that is complete: its slot keeps them. */
static ht_status give_ends(ht_generator *g, const feed *f) {
    const ht_config *c = &g->model->config;
    size_t e = hti_bytes(g->model->dtype);
    const void *x;
    TRY(pick(g, f->rows, f->ends, &x));
    for (int64_t i = 0, p = 0; i < f->ends; i += g->logit_rows) {
        int64_t rows = f->ends - i < g->logit_rows ? f->ends - i : g->logit_rows;
        TRY(logits_of(g, (const char *)x + (size_t)(i * c->width) * e, rows));
        for (int64_t k = 0; k < rows; k++, p++) {
            p = next_end(g, f, p);
            float *to = g->last_logits + g->piece_slots[p] * c->vocab;
            to_float(to, g, k, c->vocab);
            if (f->logits && !f->every)
                memcpy(f->logits + g->piece_sequence[p] * c->vocab, to,
                       sizeof *to * (size_t)c->vocab);
        }
    }
    return HT_OK;
}

static ht_status feed_pieces(ht_generator *g, const feed *f) {
    TRY(stage(g, f));
    g->rows = (hti_rows){.rows = f->rows,
                         .sequences = f->pieces,
                         .cu_seqlens = g->piece_starts,
                         .positions = g->numbers + 4 * f->rows,
                         .slots = g->piece_slots};
    if (g->past) {
        g->rows.sequence = g->numbers + 5 * f->rows;
        g->rows.start = g->rows.sequence + f->rows;
        g->rows.count = g->rows.start + f->rows;
        g->rows.slots_device = g->rows.count + f->rows;
    }
    if (f->pieces == f->rows) g->rows.cu_seqlens = NULL, g->rows.length = 1;
    TRY(through_layers(g, f->rows));
    remember(g, f);
    if (f->logits && f->every) TRY(give_every(g, f));
    return f->ends ? give_ends(g, f) : HT_OK;
}

static ht_status check_sequence(const ht_generator *g, const ht_batch *b, int64_t i, int64_t slot) {
    const ht_config *c = &g->model->config;
    int64_t n = (int64_t)b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    TRY(hti_generator_slot(g, slot));
    int64_t position = ht_cache_position(g->caches[0], slot);
    CHECK(g->ctx, n >= 1, HT_INVALID, "sequence %lld has no tokens", (long long)i);
    CHECK(g->ctx, ht_cache_position(g->caches[c->layers - 1], slot) == position, HT_INVALID,
          "slot %lld was left in between by a failure; reset it", (long long)slot);
    CHECK(g->ctx, !c->learned || position + n <= c->length, HT_INVALID,
          "the model has learned positions for %lld tokens; slot %lld would have %lld",
          (long long)c->length, (long long)slot, (long long)(position + n));
    for (int32_t k = b->cu_seqlens[i]; k < b->cu_seqlens[i + 1]; k++)
        CHECK(g->ctx, b->tokens[k] >= 0 && b->tokens[k] < c->vocab, HT_INVALID,
              "token %d of the batch must be 0 to %lld, got %d", (int)k, (long long)c->vocab - 1,
              (int)b->tokens[k]);
    return HT_OK;
}

static ht_status check_feed(const ht_generator *g, const int64_t *slots, const ht_batch *b) {
    CHECK(g->ctx, b->sequences >= 1 && b->sequences <= g->slots, HT_INVALID,
          "a batch must have 1 to %lld sequences, got %lld", (long long)g->slots,
          (long long)b->sequences);
    CHECK(g->ctx, b->tokens && b->cu_seqlens && b->cu_seqlens[0] == 0, HT_INVALID,
          "tokens or cu_seqlens of a batch are NULL, or cu_seqlens does not begin with 0");
    for (int64_t i = 0; i < b->sequences; i++) {
        TRY(check_sequence(g, b, i, slots ? slots[i] : i));
        for (int64_t k = 0; slots && k < i; k++)
            CHECK(g->ctx, slots[k] != slots[i], HT_INVALID, "slot %lld is named twice",
                  (long long)slots[i]);
    }
    return HT_OK;
}

ht_status ht_generator_feed(ht_generator *g, const int64_t *slots, const ht_batch *batch,
                            float *logits, int every) {
    NEED(g);
    ht_batch own;
    TRY(HTI_TAKE(g->ctx, ht_batch, &own, batch));
    feed f = {.slots = slots, .batch = &own, .logits = logits, .every = every};
    TRY(check_feed(g, slots, &own));
    memset(g->done, 0, sizeof *g->done * (size_t)g->slots);
    for (take_pieces(g, &f); f.rows > 0; take_pieces(g, &f)) TRY(feed_pieces(g, &f));
    return HT_OK;
}
