/*
 * From the list of parameters to their places in the arena and their first values.
 */
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/philox.h"

/* ---- the list ---- */

typedef struct maker {
    hti_params *out; /* list NULL: only counts */
    const ht_config *config;
    int failed;
} maker;

static void add(maker *m, int64_t *at, const char *prefix, const char *name, int64_t rows,
                int64_t columns, hti_init init, int matrix, int when) {
    hti_params *p = m->out;
    if (at) *at = -1;
    if (!when) return;
    if (p->list) {
        hti_param *t = &p->list[p->tensors];
        snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
        t->rank = rows ? 2 : 1;
        t->shape[0] = rows ? rows : columns;
        t->shape[1] = rows ? columns : 1;
        t->init = init;
        t->decays = m->config->decay == HTI_DECAY_ALL || matrix;
        t->of_layer = matrix && *prefix;
        if (!hti_mul(&t->count, t->shape[0], t->shape[1]) || t->count > INT64_MAX / 4096)
            m->failed = 1;
        if (at) *at = p->tensors; /* becomes the offset once it is known */
    }
    p->tensors++;
}

static void list_all(maker *m) {
    const ht_config *c = m->config;
    hti_params *p = m->out;
    p->tensors = 0;
#define ADD_MODEL(field, name, rows, columns, init, matrix, when) \
    add(m, &p->model.field, "", name, rows, columns, HTI_INIT_##init, matrix, when);
    HTI_MODEL_PARAMS(ADD_MODEL)
    for (int64_t l = 0; l < c->layers; l++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%lld.", (long long)l);
#define ADD_LAYER(field, name, rows, columns, init, matrix, when)                                \
    add(m, p->layers ? &p->layers[l].field : NULL, prefix, name, rows, columns, HTI_INIT_##init, \
        matrix, when);
        HTI_LAYER_PARAMS(ADD_LAYER)
    }
}

/* Offsets: those that decay first, of them the layers' matrices last; each begins on a 64-byte line
 * in any dtype. */
static void place(hti_params *p) {
    p->total = p->count = 0;
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 1) p->matrices = p->total;
        if (pass == 2) p->decaying = p->total;
        for (int64_t i = 0; i < p->tensors; i++) {
            hti_param *t = &p->list[i];
            if (pass != (t->of_layer ? 1 : t->decays ? 0 : 2)) continue;
            t->offset = p->total;
            p->total += (t->count + 31) / 32 * 32;
            p->count += t->count;
        }
    }
    /* a number of the list becomes its offset; the structs are nothing but int64_t */
#define FIX(at) \
    if ((at) >= 0) (at) = p->list[at].offset;
#define FIX_MODEL(field, name, rows, columns, init, matrix, when) FIX(p->model.field)
    HTI_MODEL_PARAMS(FIX_MODEL)
}

static void place_layers(hti_params *p, int64_t layers) {
    for (int64_t l = 0; l < layers; l++) {
#define FIX_LAYER(field, name, rows, columns, init, matrix, when) FIX(p->layers[l].field)
        HTI_LAYER_PARAMS(FIX_LAYER)
    }
}

ht_status hti_params_make(hti_params *out, ht_context *ctx, const ht_config *config) {
    maker m = {out, config, 0};
    *out = (hti_params){0};
    list_all(&m);
    out->layers = hti_host_alloc(ctx, sizeof *out->layers * (size_t)config->layers);
    out->list = hti_host_alloc(ctx, sizeof *out->list * (size_t)out->tensors);
    if (!out->list || !out->layers) {
        hti_params_free(out, ctx);
        return hti_fail(ctx, HT_NOMEM, "out of memory: a list of parameters");
    }
    list_all(&m);
    CHECK(ctx, !m.failed, HT_INVALID, "a parameter would have more than 2^50 numbers");
    place(out);
    place_layers(out, config->layers);
    return HT_OK;
}

void hti_params_free(hti_params *params, ht_context *ctx) {
    hti_host_free(ctx, params->list);
    hti_host_free(ctx, params->layers);
    params->list = NULL;
    params->layers = NULL;
}

/* ---- first values ---- */

/* Two numbers in (0, 1) for element i of tensor t; draw counts attempts. */
static void uniform2(double *u, uint64_t seed, int64_t tensor, int64_t i, uint32_t draw) {
    hti_philox w = hti_philox_draw(seed, (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)tensor, draw);
    u[0] = (w.w[0] + (w.w[1] >> 11) * 0x1p-21 * 0.5 + 0.25) * 0x1p-32;
    u[1] = (w.w[2] + (w.w[3] >> 11) * 0x1p-21 * 0.5 + 0.25) * 0x1p-32;
}

static double normal(uint64_t seed, int64_t tensor, int64_t i, uint32_t draw) {
    double u[2];
    uniform2(u, seed, tensor, i, draw);
    return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

static double normal_cut(uint64_t seed, int64_t tensor, int64_t i) {
    for (uint32_t draw = 1;; draw++) {
        double x = normal(seed, tensor, i, draw);
        if (fabs(x) <= 2) return x;
    }
}

/* Amounts, like greys: a column is a wave along the tokens, so that neighbours begin alike. Its
 * number of waves over the vocabulary is normal with deviation embed_waves. */
static double wave(uint64_t seed, int64_t tensor, const hti_param *t, int64_t i, double waves) {
    int64_t token = i / t->shape[1], column = i % t->shape[1];
    double u[2], turns = waves * normal(seed, tensor, column, 1);
    uniform2(u, seed, tensor, column, 2);
    turns = turns * (double)token / (double)t->shape[0] + u[0];
    return sqrt(2) * cos(6.283185307179586 * turns);
}

static double embedding(uint64_t seed, int64_t tensor, const hti_param *t, int64_t i,
                        const ht_config *c) {
    if (c->embed_waves > 0) return c->embed_std * wave(seed, tensor, t, i, c->embed_waves);
    return c->embed_std * normal(seed, tensor, i, 0);
}

/* A bias by distance that falls on both sides, in each head more gently than in the one before:
 * over all heads by 2^8. */
static double slope(const hti_param *t, int64_t i, const ht_config *c) {
    int64_t heads = t->shape[1], distance = i / heads - t->shape[0] / 2;
    return -c->relative_slope * exp2(-8.0 * (double)(i % heads) / (double)heads) *
           fabs((double)distance);
}

/* Limit of Xavier's uniform values for a row of the matrix. */
static double xavier(const hti_param *t, int64_t row, const ht_config *c) {
    int64_t out = t->shape[0];
    if (t->init == HTI_INIT_XAVIER_QKV) out = row < c->inner ? c->inner : HTI_KV;
    return sqrt(6.0 / (double)(t->shape[1] + out));
}

void hti_param_init(double *out, const hti_params *params, int64_t index, const ht_config *config) {
    const hti_param *t = &params->list[index];
    uint64_t seed = (uint64_t)config->seed;
    /* dividing by 0.8796: the deviation of a normal number cut at two */
    double lecun = 1 / sqrt((double)t->shape[1]) / 0.87962566103423978, u[2];
    for (int64_t i = 0; i < t->count; i++) {
        switch (t->init) {
        case HTI_INIT_ZERO: out[i] = 0; break;
        case HTI_INIT_ONE: out[i] = 1; break;
        case HTI_INIT_EMBED: out[i] = embedding(seed, index, t, i, config); break;
        case HTI_INIT_SPREAD: out[i] = config->embed_std * normal(seed, index, i, 0); break;
        case HTI_INIT_OWN_ROW: out[i] = i / t->shape[1] == hti_config_near_back(config); break;
        case HTI_INIT_SLOPE: out[i] = slope(t, i, config); break;
        case HTI_INIT_NORMAL02: out[i] = 0.02 * normal(seed, index, i, 0); break;
        case HTI_INIT_TINY: out[i] = 1e-6 * normal(seed, index, i, 0); break;
        case HTI_INIT_LECUN: out[i] = lecun * normal_cut(seed, index, i); break;
        case HTI_INIT_OUTPUT:
            out[i] = config->output_scale * lecun * normal_cut(seed, index, i);
            break;
        default:
            uniform2(u, seed, index, i, 0);
            out[i] = (2 * u[0] - 1) * xavier(t, i / t->shape[1], config);
        }
    }
}
