/*
 * Which matrices Muon updates, and how they go together: the layers' own, queries, keys and values
 * apart; those of one shape in one call. Everything else in the arena is AdamW's.
 */
#include "train/trainer.h"

#include <math.h>

typedef struct matrix {
    int64_t at, rows, columns;
} matrix;

enum { PER_LAYER = 6 };

static void matrices_of(matrix *out, const ht_config *c, const hti_layer_at *at) {
    int64_t kv = HTI_KV;
    const matrix all[PER_LAYER] = {{at->qkv, c->inner, c->width},
                                   {at->qkv + c->inner * c->width, kv, c->width},
                                   {at->qkv + (c->inner + kv) * c->width, kv, c->width},
                                   {at->merge, c->width, c->inner},
                                   {at->up, c->hidden, c->width},
                                   {at->down, c->width, c->hidden}};
    for (int i = 0; i < PER_LAYER; i++) out[i] = all[i];
}

static int same(const matrix *a, const matrix *b) {
    return a->rows == b->rows && a->columns == b->columns;
}

/* 0.2: the mean square of an element's step is then what AdamW's usually is, so that rates can be
 * kept. */
static double scale_of(const matrix *shape) {
    return 0.2 * sqrt((double)(shape->rows > shape->columns ? shape->rows : shape->columns));
}

int64_t hti_muon_matrices(const ht_config *c) { return c->layers * PER_LAYER; }

int64_t hti_muon_begins(const ht_config *c, const hti_params *params, int64_t i) {
    matrix here[PER_LAYER];
    matrices_of(here, c, &params->layers[i / PER_LAYER]);
    return here[i % PER_LAYER].at;
}

/* The matrices that have their moments here lie side by side: from *from to *to. */
static void range_of(const ht_trainer *t, int64_t *from, int64_t *to) {
    const hti_params *p = &t->model->params;
    int64_t at = *from = p->matrices, end = *to = p->decaying;
    if (!t->share.shards) return;
    *to = *from;
    for (int i = 0; hti_share_next(&t->share, i, &at, &end); i++) {
        if (at < end) *from = at, *to = end;
        at = p->matrices, end = p->decaying;
    }
}

/* Matrices are numbered from number `first` of the arena on. */
static hti_muon_call call_of(const ht_trainer *t, const matrix *shape, int64_t first) {
    const ht_config *c = &t->config;
    const ht_model *m = t->model;
    return (hti_muon_call){.dtype = m->dtype,
                           .rows = shape->rows,
                           .columns = shape->columns,
                           .p = hti_wide(m->p, m->dtype, first),
                           .m = hti_wide(t->m, m->dtype, hti_share_place(&t->share, first)),
                           .w = m->w != m->p ? hti_weight(m, first) : NULL,
                           .g = hti_wide(t->grads, m->dtype, first),
                           .step = t->net.step,
                           .momentum = c->momentum,
                           .scale = scale_of(shape),
                           .decay = c->weight_decay,
                           .clip = c->clip,
                           .scratch = t->muon};
}

/* Goes over all calls. bytes NULL: makes them; else finds the most scratch that one needs. */
static ht_status over_calls(const ht_trainer *t, size_t *bytes) {
    const ht_config *c = &t->model->config;
    const hti_model_ops *ops = hti_models(t->ctx);
    matrix kinds[PER_LAYER], here[PER_LAYER];
    int64_t from, to;
    range_of(t, &from, &to);
    matrices_of(kinds, c, &t->model->params.layers[0]);
    for (int k = 0; k < PER_LAYER; k++) {
        int known = 0;
        for (int i = 0; i < k; i++) known |= same(&kinds[i], &kinds[k]);
        hti_muon_call call = call_of(t, &kinds[k], from);
        for (int64_t l = 0; l < c->layers && !known; l++) {
            matrices_of(here, c, &t->model->params.layers[l]);
            for (int i = k; i < PER_LAYER; i++)
                if (same(&here[i], &kinds[k]) && here[i].at >= from && here[i].at < to)
                    call.at[call.count++] = here[i].at - from;
            if (call.count + PER_LAYER <= HTI_MUON_MOST && l + 1 < c->layers) continue;
            if (call.count == 0) continue;
            size_t need = bytes ? ops->muon_scratch(t->ctx, &call) : 0;
            if (!bytes) TRY(ops->muon(t->ctx, &call));
            if (bytes && need > *bytes) *bytes = need;
            call.count = 0;
        }
    }
    return HT_OK;
}

size_t hti_muon_scratch(const ht_trainer *t) {
    size_t bytes = 0;
    over_calls(t, &bytes);
    return bytes;
}

ht_status hti_muon_update(const ht_trainer *t) { return over_calls(t, NULL); }
