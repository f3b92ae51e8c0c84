/*
 * Fitting, and the scores of a text.
 */
#include "linear/linear.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "core/sized.h"

#define COST 300.0               /* of what is not told apart, against the size of the weights */
enum { MOST_NUMBERS = 1 << 28 }; /* weights, and grams of all texts */
#define MOST_VISITS 1e11 /* of a gram by a class: minutes; few texts and classes need less */
enum { MOST_PASSES = 1000, LEAST_PASSES = 20 };

/* ---- making and ending ---- */

ht_status hti_linear_make(ht_linear **out, ht_context *ctx, const hti_names *labels,
                          int64_t features) {
    int64_t numbers;
    ht_linear *l = hti_host_alloc(ctx, sizeof *l);
    CHECK(ctx, l, HT_NOMEM, "out of memory: %zu bytes for a linear model", sizeof *l);
    memset(l, 0, sizeof *l);
    *out = l;
    l->ctx = l->labels.ctx = l->grams.ctx = ctx;
    l->features = features;
    l->outputs = labels->count > 2 ? labels->count : 1;
    l->info = (ht_linear_info){
        .size = sizeof l->info, .features = features, .classes = labels->count, .linear_weight = 1};
    CHECK(ctx, hti_mul(&numbers, features + 1, l->outputs) && numbers <= MOST_NUMBERS,
          HT_UNSUPPORTED,
          "a linear model of %lld classes and %lld features is too large; at most 2^28 weights",
          (long long)labels->count, (long long)features);
    l->ids = hti_host_alloc(ctx, sizeof *l->ids * (size_t)(features + 1));
    l->number = hti_host_alloc(ctx, sizeof *l->number * HTI_GRAMS);
    l->weight = hti_host_alloc(ctx, sizeof *l->weight * (size_t)numbers);
    CHECK(ctx, l->ids && l->number && l->weight, HT_NOMEM,
          "out of memory: a linear model of %lld features", (long long)features);
    memset(l->number, 0xFF, sizeof *l->number * HTI_GRAMS);
    return hti_names_copy(&l->labels, labels);
}

void ht_linear_destroy(ht_linear *l) {
    if (!l) return;
    hti_names_free(&l->labels);
    hti_grams_free(&l->grams);
    hti_host_free(l->ctx, l->ids);
    hti_host_free(l->ctx, l->number);
    hti_host_free(l->ctx, l->weight);
    hti_host_free(l->ctx, l);
}

const ht_labels *ht_linear_labels(const ht_linear *l) { return l ? &l->labels : NULL; }

ht_status ht_linear_get_info(const ht_linear *l, ht_linear_info *out) {
    NEED(l);
    TRY(HTI_WANT(l->ctx, ht_linear_info, out));
    HTI_GIVE(ht_linear_info, out, &l->info);
    return HT_OK;
}

/* ---- the texts as a matrix ---- */

typedef struct fitting {
    ht_context *ctx;
    const ht_data *data;
    hti_buffer list, starts; /* hti_gram; int64_t [texts + 1] */
    hti_matrix x;
} fitting;

/* Grams of so many texts side by side, then one after the other. */
enum { PART = 64 };

static ht_status add_part(fitting *f, hti_grams *grams, int64_t from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        size_t bytes;
        ht_data_text(f->data, from + i, &bytes);
        TRY(hti_grams_need(&grams[i], bytes));
    }
#pragma omp parallel for schedule(dynamic) num_threads(f->ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = ht_data_text(f->data, from + i, &bytes);
        hti_grams_of(&grams[i], NULL, text, bytes);
    }
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = sizeof(hti_gram) * (size_t)grams[i].count;
        TRY(hti_buffer_add(&f->list, grams[i].list.data, bytes));
        int64_t end = (int64_t)(f->list.used / sizeof(hti_gram));
        CHECK(f->ctx, end <= MOST_NUMBERS, HT_UNSUPPORTED,
              "the texts are too many for a linear model: more than 2^28 grams");
        TRY(hti_buffer_add(&f->starts, &end, sizeof end));
    }
    return HT_OK;
}

static ht_status add_texts(fitting *f) {
    int64_t zero = 0;
    hti_grams grams[PART] = {{0}};
    for (int i = 0; i < PART; i++) grams[i].ctx = f->ctx;
    ht_status status = hti_buffer_add(&f->starts, &zero, sizeof zero);
    for (int64_t at = 0; at < f->data->items && status == HT_OK; at += PART)
        status = add_part(f, grams, at, f->data->items - at < PART ? f->data->items - at : PART);
    for (int i = 0; i < PART; i++) hti_grams_free(&grams[i]);
    return status;
}

/* Hashed numbers become numbers of features in the order in which they come. */
static ht_status number_grams(fitting *f, int32_t **ids, int64_t *features) {
    int32_t *number = hti_host_alloc(f->ctx, sizeof *number * HTI_GRAMS);
    *ids = hti_host_alloc(f->ctx, sizeof **ids * HTI_GRAMS);
    int good = number && *ids;
    hti_gram *list = (hti_gram *)(void *)f->list.data;
    *features = 0;
    if (good) memset(number, 0xFF, sizeof *number * HTI_GRAMS);
    for (int64_t i = 0; good && i < f->x.starts[f->x.rows]; i++) {
        int32_t *place = &number[list[i].id];
        if (*place < 0) (*ids)[ *place = (int32_t)(*features)++] = list[i].id;
        list[i].id = *place;
    }
    hti_host_free(f->ctx, number);
    CHECK(f->ctx, good, HT_NOMEM, "out of memory: the features of a linear model");
    return HT_OK;
}

/* ---- the weights ---- */

/* How much more often a feature is in texts of the class than in the others, as the logarithm of
 * its share there against its share here, of each half's grams (naive Bayes, one added to all). */
static void put_ratios(hti_linear_weight *w, const hti_matrix *x, const int32_t *ids,
                       int32_t class) {
    double all[2][2] = {{0}}; /* [half][of the class] */
    for (int64_t i = 0; i < x->features; i++) w[i] = (hti_linear_weight){1, 1};
    for (int64_t row = 0; row < x->rows; row++)
        for (int64_t k = x->starts[row]; k < x->starts[row + 1]; k++) {
            hti_linear_weight *at = &w[x->list[k].id];
            x->labels[row] == class ? at->weight++ : at->square++;
        }
    for (int64_t i = 0; i < x->features; i++) {
        int half = ids[i] >> HTI_GRAM_BITS;
        all[half][1] += w[i].weight, all[half][0] += w[i].square;
    }
    for (int64_t i = 0; i < x->features; i++) {
        const double *of = all[ids[i] >> HTI_GRAM_BITS];
        double ratio = log(w[i].weight / of[1]) - log(w[i].square / of[0]);
        w[i].square = (float)(ratio * ratio);
    }
    w[x->features].square = 1;
}

static void solve_output(ht_linear *l, const hti_matrix *x, int64_t output,
                         const hti_linear_work *work) {
    int32_t class = l->outputs == 1 ? 1 : (int32_t)output;
    double most = MOST_VISITS / ((double)x->starts[x->rows] * (double)l->outputs);
    int passes = most > MOST_PASSES ? MOST_PASSES : (int)most;
    put_ratios(work->w, x, l->ids, class);
    hti_linear_solve(work, x, class, passes, COST);
    for (int64_t i = 0; i <= x->features; i++)
        l->weight[i * l->outputs + output] = work->w[i].weight;
}

/* As many classes side by side as there are threads; each is the same on any number of them. */
static ht_status solve(ht_linear *l, const hti_matrix *x) {
    int threads = l->ctx->threads < l->outputs ? l->ctx->threads : (int)l->outputs;
    hti_linear_work *work = hti_host_alloc(l->ctx, sizeof *work * (size_t)threads);
    CHECK(l->ctx, work, HT_NOMEM, "out of memory: a linear model");
    memset(work, 0, sizeof *work * (size_t)threads);
    ht_status status = HT_OK;
    for (int i = 0; i < threads && status == HT_OK; i++)
        status = hti_linear_work_make(&work[i], l->ctx, x);
    if (status == HT_OK) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (int64_t i = 0; i < l->outputs; i++) solve_output(l, x, i, &work[omp_get_thread_num()]);
    }
    for (int i = 0; i < threads; i++) hti_linear_work_free(&work[i], l->ctx);
    hti_host_free(l->ctx, work);
    return status;
}

static ht_status fit(ht_linear **out, fitting *f) {
    const ht_data *d = f->data;
    int32_t *ids = NULL;
    int64_t features;
    TRY(add_texts(f));
    f->x = (hti_matrix){.list = (const hti_gram *)(const void *)f->list.data,
                        .starts = (const int64_t *)(const void *)f->starts.data,
                        .labels = (const int32_t *)(const void *)d->labels.data,
                        .rows = d->items};
    ht_status status = number_grams(f, &ids, &features);
    f->x.features = features;
    if (status == HT_OK) status = hti_linear_make(out, f->ctx, &d->names, features);
    for (int64_t i = 0; status == HT_OK && i < features; i++) {
        (*out)->ids[i] = ids[i];
        (*out)->number[ids[i]] = (int32_t)i;
    }
    hti_host_free(f->ctx, ids);
    TRY(status);
    (*out)->info.items = d->items;
    double visits = (double)f->x.starts[d->items] * (double)(*out)->outputs;
    CHECK(f->ctx, LEAST_PASSES * visits <= MOST_VISITS, HT_UNSUPPORTED,
          "%lld classes and %lld texts would take a linear model too long",
          (long long)d->names.count, (long long)d->items);
    return solve(*out, &f->x);
}

ht_status ht_linear_fit(ht_linear **out, ht_context *ctx, const ht_data *train) {
    CHECK(ctx, out, HT_INVALID, "ht_linear_fit: out is NULL");
    *out = NULL;
    NEED(ctx);
    CHECK(ctx, train, HT_INVALID, "ht_linear_fit: train is NULL");
    CHECK(ctx, train->text_ends.used > 0, HT_INVALID,
          "a linear model needs whole texts: open labelled texts with keep_texts");
    fitting f = {.ctx = ctx, .data = train, .list = {.ctx = ctx}, .starts = {.ctx = ctx}};
    ht_status status = fit(out, &f);
    hti_buffer_free(&f.list);
    hti_buffer_free(&f.starts);
    if (status == HT_OK) return HT_OK;
    ht_linear_destroy(*out);
    *out = NULL;
    return status;
}

/* ---- the scores of a text ---- */

ht_status ht_linear_scores(ht_linear *l, const char *text, size_t bytes, float *out) {
    NEED(l);
    CHECK(l->ctx, text && out, HT_INVALID, "ht_linear_scores: text or out is NULL");
    TRY(hti_grams_need(&l->grams, bytes));
    hti_grams_of(&l->grams, l->number, text, bytes);
    const hti_gram *list = hti_grams_list(&l->grams);
    float *to = l->outputs == 1 ? out + 1 : out;
    const float *bias = l->weight + l->features * l->outputs;
    for (int64_t k = 0; k < l->outputs; k++) to[k] = bias[k];
    for (int64_t i = 0; i < l->grams.count; i++) {
        const float *w = l->weight + l->number[list[i].id] * l->outputs;
        for (int64_t k = 0; k < l->outputs; k++) to[k] += list[i].value * w[k];
    }
    if (l->outputs == 1) out[0] = 0;
    return HT_OK;
}
