/*
 * Reference kernels, part 1: the pyramid of one (sequence, key head), and one query row against
 * keys. Included by f32.c and f64.c with `real` = float or double and FN(name) naming the
 * copy.
 *
 * Level l of a pyramid holds clusters 0 ... rows[l]-1 from row first[l] on; level 0 is the sequence
 * itself, masked rows replaced by zeros, so that what is masked is never looked at. Coarse keys and
 * values are means over the cluster's n valid rows; a key's weight is n * exp(score).
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/hier.h"
#include "core/philox.h"
#include "cpu/cpu.h"

typedef struct FN(unit) {
    const hti_attention_call *call;
    const ht_attention_desc *desc;
    int64_t sequence, length, block, head; /* head: the query head at work */
    int d, dv, levels;
    int64_t rows[HTI_MAX_LEVELS], first[HTI_MAX_LEVELS];
    /* all [total rows of the pyramid] x width */
    real *k, *v, *n; /* d, dv, 1: means of keys and values, valid keys */
    real *q, *nq;    /* d, 1: the cluster's query, valid queries */
    real *kt, *qt;   /* d: level 0 as the scores see it: turned (rotary), or k and q themselves */
    real *max, *sum; /* 1: of the softmax of a coarse row; backward: max is min lse, sum is h */
    real *acc;       /* dv: its numerator; backward: G */
    real *dq, *dk, *dval; /* backward: d, d, dv */
    real *dfar;           /* [length, d] backward of opened rows' keys, rotary only; else NULL */
    real *score;          /* [widest key range] */
    const hti_cache_level *held; /* decoding: where the levels lie instead, from row first[level]
                                    on; kt: the last 2*block keys turned, or NULL */
    real *turn;                  /* [length, d/2, 2] cosine and sine, rotary only */
} FN(unit);

/* ---- layout: measures with base NULL, carves otherwise ---- */

static real *FN(take)(char *base, size_t *used, int64_t count) {
    size_t at = *used;
    *used = at + ((size_t)count * sizeof(real) + 63) / 64 * 64;
    return base ? (real *)(base + at) : NULL;
}

static int64_t FN(total_rows)(const ht_attention_desc *d, int64_t length) {
    if (d->kind != HT_HIERARCHICAL) return length;
    int64_t total = 0;
    for (int l = 0; l < hti_levels(length, d->block); l++) total += hti_clusters(length, l);
    return total;
}

static size_t FN(layout)(FN(unit) *u, void *base, const ht_attention_desc *desc, int64_t length,
                         int backward) {
    size_t used = 0;
    int64_t total = FN(total_rows)(desc, length), d = desc->head_dim, dv = desc->value_dim;
    int64_t widest = desc->kind == HT_FULL || desc->open > 0 ? length : 3 * desc->block;
    u->k = FN(take)(base, &used, total * d);
    u->v = FN(take)(base, &used, total * dv);
    u->n = FN(take)(base, &used, total);
    u->q = FN(take)(base, &used, total * d);
    u->nq = FN(take)(base, &used, total);
    u->max = FN(take)(base, &used, total);
    u->sum = FN(take)(base, &used, total);
    u->acc = FN(take)(base, &used, total * dv);
    u->score = FN(take)(base, &used, widest < length ? widest : length);
    u->kt = u->k;
    u->qt = u->q;
    if (desc->rotary_theta > 0) {
        u->kt = FN(take)(base, &used, length * d);
        u->qt = FN(take)(base, &used, length * d);
        u->turn = FN(take)(base, &used, length * d);
    }
    if (backward) {
        u->dq = FN(take)(base, &used, total * d);
        u->dk = FN(take)(base, &used, total * d);
        u->dval = FN(take)(base, &used, total * dv);
        if (desc->open > 0 && desc->rotary_theta > 0) u->dfar = FN(take)(base, &used, length * d);
    }
    return used;
}

/* ---- rotary positions ---- */

/* cosine and sine of row t's angles t * theta^(-2i/d), in double: t may be large */
static void FN(angles)(real *turn, int64_t t, double theta, int d) {
    for (int i = 0; i < d / 2; i++) {
        double a = (double)t * pow(theta, -2.0 * i / d);
        turn[2 * i] = (real)cos(a);
        turn[2 * i + 1] = (real)sin(a);
    }
}

/* y = x turned; sign -1 turns back. An odd last column stays. */
static void FN(rotate)(real *y, const real *x, const real *turn, int d, real sign) {
    int h = d / 2;
    for (int i = 0; i < h; i++) {
        real c = turn[2 * i], s = sign * turn[2 * i + 1], a = x[i], b = x[i + h];
        y[i] = a * c - b * s;
        y[i + h] = a * s + b * c;
    }
    if (d % 2) y[d - 1] = x[d - 1];
}

/* ---- coarsening ---- */

static int FN(takes_part)(const uint8_t *mask, int64_t row) { return !mask || mask[row]; }

/* Level 0 of x [rows, width] and its weights: rows of a strided tensor, zero where masked. */
static void FN(load)(real *x, real *n, const FN(unit) *u, const ht_tensor *t, int64_t head,
                     int width, const uint8_t *mask) {
    const real *src = (const real *)t->data + hti_call_base(u->call, t, u->sequence);
    int64_t start = hti_call_start(u->call, u->sequence);
    for (int64_t i = 0; i < u->length; i++) {
        int valid = FN(takes_part)(mask, start + i);
        const real *row = src + i * t->row_stride + head * t->head_stride;
        for (int c = 0; c < width; c++) x[i * width + c] = valid ? row[c] : 0;
        if (n) n[i] = (real)valid;
    }
}

/* parent = mean of two children over their valid rows */
static void FN(mean2)(real *parent, const real *a, const real *b, real na, real nb, int width) {
    real inv = na + nb > 0 ? 1 / (na + nb) : 0;
    for (int c = 0; c < width; c++) parent[c] = (na * a[c] + (nb > 0 ? nb * b[c] : 0)) * inv;
}

/* Levels 1 ... of x from level 0; n too. `pick_first`: the first child that has a valid row. */
static void FN(coarsen)(real *x, real *n, const FN(unit) *u, int width, int pick_first) {
    for (int l = 1; l < u->levels; l++) {
        for (int64_t c = 0; c < u->rows[l]; c++) {
            int64_t p = u->first[l] + c, a = u->first[l - 1] + 2 * c;
            /* the last cluster may have one child */
            int64_t b = 2 * c + 1 < u->rows[l - 1] ? a + 1 : a;
            real nb = b == a ? 0 : n[b];
            if (pick_first) {
                memcpy(x + p * width, x + (n[a] > 0 ? a : b) * width, sizeof(real) * (size_t)width);
            } else {
                FN(mean2)(x + p * width, x + a * width, x + b * width, n[a], nb, width);
            }
            n[p] = n[a] + nb;
        }
    }
}

static void FN(begin_unit)(FN(unit) *u, const hti_attention_call *call, int64_t sequence) {
    const ht_attention_desc *d = call->desc;
    u->call = call;
    u->desc = d;
    u->sequence = sequence;
    u->length = hti_call_length(call, sequence);
    u->block = d->block;
    u->d = (int)d->head_dim;
    u->dv = (int)d->value_dim;
    u->levels = d->kind == HT_HIERARCHICAL ? hti_levels(u->length, d->block) : 1;
    int64_t total = 0;
    for (int l = 0; l < u->levels; l++) {
        u->rows[l] = hti_clusters(u->length, l);
        u->first[l] = total;
        total += u->rows[l];
    }
    if (d->rotary_theta > 0) {
        for (int64_t i = 0; i < u->length; i++)
            FN(angles)(u->turn + i * u->d, i, d->rotary_theta, u->d);
    }
}

static void FN(load_keys)(FN(unit) *u, int64_t kv_head) {
    FN(load)(u->k, u->n, u, &u->call->k, kv_head, u->d, u->call->key_mask);
    FN(load)(u->v, NULL, u, &u->call->v, kv_head, u->dv, u->call->key_mask);
    FN(coarsen)(u->k, u->n, u, u->d, 0);
    FN(coarsen)(u->v, u->n, u, u->dv, 0);
    if (u->kt != u->k) {
        for (int64_t i = 0; i < u->length; i++)
            FN(rotate)(u->kt + i * u->d, u->k + i * u->d, u->turn + i * u->d, u->d, 1);
    }
}

static void FN(load_queries)(FN(unit) *u, int64_t head) {
    u->head = head;
    FN(load)(u->q, u->nq, u, &u->call->q, head, u->d, u->call->query_mask);
    if (u->desc->query != HT_QUERY_FINE)
        FN(coarsen)(u->q, u->nq, u, u->d, u->desc->query == HT_QUERY_FIRST);
    if (u->qt != u->q) {
        for (int64_t i = 0; i < u->length; i++)
            FN(rotate)(u->qt + i * u->d, u->q + i * u->d, u->turn + i * u->d, u->d, 1);
    }
}

/* ---- one query row against the keys it sees at one level ---- */

/* The rows of a level as scores see them. */
static const real *FN(keys_at)(const FN(unit) *u, int level) {
    return level == 0 ? u->kt : u->k + u->first[level] * u->d;
}

/* The two ranges of key clusters that query cluster c sees at a level. */
static void FN(ranges)(hti_range r[2], const FN(unit) *u, int level, int64_t c) {
    if (u->desc->kind == HT_FULL) {
        r[0] = (hti_range){0, u->desc->causal ? c + 1 : u->length};
        r[1] = (hti_range){0, 0};
        return;
    }
    r[0] = hti_keys_left(u->rows[level], u->block, level, u->desc->causal, c);
    r[1] = hti_keys_right(u->rows[level], u->block, level, u->desc->causal, c);
}

static real FN(dot)(const real *a, const real *b, int width) {
    real s = 0;
    for (int c = 0; c < width; c++) s += a[c] * b[c];
    return s;
}

/* Entry of the bias table for a key cluster `distance` clusters after the query's. */
static int64_t FN(bias_at)(const FN(unit) *u, int64_t distance) {
    int64_t most = 2 * u->block - 1;
    if (distance > most) distance = most;
    if (distance < -most) distance = -most;
    return (distance + most) * u->desc->q_heads + u->head;
}

static real FN(score_of)(const FN(unit) *u, const real *q, const real *key, int64_t distance) {
    real s = (real)u->desc->scale * FN(dot)(q, key, u->d);
    return u->call->bias ? s + ((const real *)u->call->bias)[FN(bias_at)(u, distance)] : s;
}

/* 1/(1-p) or 0 for the weight of query `id` (coarse row, or row in `fine`) and key cluster j. */
static real FN(dropout_factor)(const FN(unit) *u, int level, int64_t id, int64_t j) {
    double p = u->desc->dropout;
    if (p == 0) return 1;
    uint32_t head = (uint32_t)(u->sequence * u->desc->q_heads + u->head);
    hti_philox w =
        hti_dropout_words(u->call->seed, u->call->offset, head, level, id, (uint32_t)(j / 4));
    return w.w[j % 4] < hti_dropout_threshold(p) ? 0 : (real)(1 / (1 - p));
}
