/*
 * Cases to numbers: lengths, masks, values; number formats; the test pool.
 */
#include "problem.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ----------------------------------------------------------------------------- */

size_t dtype_bytes(ht_dtype type) { return type == HT_F64 ? 8 : dtype_is_half(type) ? 2 : 4; }

double dtype_epsilon(ht_dtype type) {
    if (type == HT_F64) return DBL_EPSILON;
    return type == HT_BF16 ? 0x1p-7 : type == HT_F16 ? 0x1p-10 : FLT_EPSILON;
}

ht_dtype dtype_wide(ht_dtype type) { return type == HT_F64 ? HT_F64 : HT_F32; }

static uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* round to nearest, ties to even; NaN stays NaN */
static uint16_t to_bf16(float x) {
    uint32_t bits = float_bits(x);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* the same; 11 bits, or multiples of 2^-24 */
static uint16_t to_f16(float x) {
    int sign = signbit(x) ? 0x8000 : 0, exponent;
    if (isnan(x)) return 0x7E00;
    if (fabsf(x) >= 65520) return (uint16_t)(sign | 0x7C00);
    frexpf(x, &exponent); /* |x| < 2^exponent */
    if (exponent < -13) exponent = -13;
    int units = (int)nearbyint(ldexp(fabs((double)x), 11 - exponent));
    if (units < 1024) return (uint16_t)(sign | units);
    return (uint16_t)(sign | (((exponent + 13) << 10) + units)); /* 2048 carries */
}

static double from_f16(uint16_t x) {
    int exponent = x >> 10 & 31, units = x & 1023;
    double size = exponent ? ldexp(1024 + units, exponent - 25) : ldexp(units, -24);
    if (exponent == 31) size = units ? (double)NAN : (double)INFINITY;
    return x >> 15 ? -size : size;
}

void dtype_store(ht_dtype type, void *at, double x) {
    float f = (float)x;
    uint16_t half = type == HT_F16 ? to_f16(f) : to_bf16(f);
    if (type == HT_F64)
        memcpy(at, &x, sizeof x);
    else if (dtype_is_half(type))
        memcpy(at, &half, sizeof half);
    else
        memcpy(at, &f, sizeof f);
}

double dtype_load(ht_dtype type, const void *at) {
    double x;
    float f;
    uint16_t half;
    if (type == HT_F64) return memcpy(&x, at, sizeof x), x;
    if (type == HT_F32) return memcpy(&f, at, sizeof f), f;
    memcpy(&half, at, sizeof half);
    return type == HT_F16 ? from_f16(half) : bits_float((uint32_t)half << 16);
}

double dtype_round(ht_dtype type, double x) {
    double room;
    dtype_store(type, &room, x);
    return dtype_load(type, &room);
}

/* ---- the pool ---------------------------------------------------------------------------- */

typedef struct deferred {
    struct deferred *next;
    void (*release)(void *, void *);
    void *a, *b;
} deferred;
static deferred *pool;

void pool_defer(void (*release)(void *, void *), void *a, void *b) {
    deferred *d = malloc(sizeof *d);
    if (!d) abort();
    *d = (deferred){pool, release, a, b};
    pool = d;
}

static void free_block(void *a, void *b) {
    (void)b;
    free(a);
}

void *pool_alloc(size_t bytes) {
    void *block = calloc(1, bytes ? bytes : 1);
    if (!block) abort();
    pool_defer(free_block, block, NULL);
    return block;
}

void pool_clear(void) {
    while (pool) {
        deferred *d = pool;
        pool = d->next;
        d->release(d->a, d->b);
        free(d);
    }
}

/* ---- a problem --------------------------------------------------------------------------- */

int64_t problem_out_size(const problem *p) { return p->rows * p->c.q_heads * p->c.value_dim; }
int64_t problem_lse_size(const problem *p) { return p->rows * p->c.q_heads; }
int64_t problem_q_size(const problem *p) { return p->rows * p->c.q_heads * p->c.head_dim; }
int64_t problem_k_size(const problem *p) { return p->rows * p->c.kv_heads * p->c.head_dim; }
int64_t problem_v_size(const problem *p) { return p->rows * p->c.kv_heads * p->c.value_dim; }
int64_t problem_bias_size(const problem *p) { return (4 * p->c.block - 1) * p->c.q_heads; }

/* equal lengths, or ragged ones with an empty sequence here and there */
static void draw_lengths(problem *p) {
    const test_case *c = &p->c;
    uint64_t s = (uint64_t)c->packed * 77;
    p->cu = pool_alloc((size_t)(c->batch + 1) * sizeof *p->cu);
    for (int64_t b = 0; b < c->batch; b++) {
        int64_t n = c->length;
        if (c->packed) n = test_random_below(&s, 4) == 0 ? 0 : test_random_below(&s, n + 1);
        if (c->packed && b == c->batch - 1) n = c->length; /* the longest is there */
        p->cu[b + 1] = p->cu[b] + (int32_t)n;
        if (n > p->longest) p->longest = n;
    }
    p->rows = p->cu[c->batch];
}

/* does row i of n take part as a key (which 0) or a query (1)? */
static int takes_part(const test_case *c, uint64_t *s, int which, int64_t i, int64_t n) {
    int random = test_random_below(s, 3) != 0;
    int64_t edge = n / 3, only = (int64_t)((uint64_t)c->seed % (uint64_t)n);
    switch (c->mask) {
    case MASK_PADDING: return i < n - edge;
    case MASK_LEADING: return i >= edge;
    case MASK_KEYS: return which == 1 || random;
    case MASK_QUERIES: return which == 0 || random;
    case MASK_BOTH: return random;
    case MASK_ALL_KEYS: return which == 1;
    case MASK_ALL_QUERIES: return which == 0;
    case MASK_ONE_KEY: return which == 1 || i == only;
    case MASK_RUNS: return (i / (3 * c->block) + which) % 2 == 0;
    default: return 1;
    }
}

static uint8_t *draw_mask(const problem *p, int which) {
    static const uint8_t on[] = {1, 2, 0x80, 0xFF}; /* any byte but zero */
    uint8_t *mask = pool_alloc((size_t)p->rows + 1);
    uint64_t s = (uint64_t)p->c.seed * 31 + (uint64_t)which;
    for (int64_t b = 0; b < p->c.batch; b++)
        for (int64_t i = p->cu[b]; i < p->cu[b + 1]; i++)
            mask[i] =
                takes_part(&p->c, &s, which, i - p->cu[b], p->cu[b + 1] - p->cu[b]) ? on[i % 4] : 0;
    return mask;
}

/* x += by, what is NaN stays so */
static double *raised(double *x, int64_t n, double by, ht_dtype type) {
    for (int64_t i = 0; by != 0 && i < n; i++) x[i] = dtype_round(type, x[i] + by);
    return x;
}

/* normal numbers, or those nearest on a grid of small integers; rows that the mask takes out hold
 * NaN */
static double *draw(const problem *p, uint64_t salt, int64_t n, int64_t width, ht_dtype type,
                    double factor, const uint8_t *mask) {
    double *x = pool_alloc((size_t)n * sizeof *x);
    uint64_t s = (uint64_t)p->c.seed * 1000 + salt + ((uint64_t)p->redrawn << 40);
    int grid = p->c.grid && salt <= 2;
    for (int64_t i = 0; i < n; i++) {
        double value = factor * test_random_normal(&s);
        x[i] = grid ? round(1.5 * value) : dtype_round(type, value);
        if (mask && !mask[i / width]) x[i] = NAN;
    }
    return x;
}

/* Where devices round scores differently they may choose different clusters. So q and k are drawn
 * until no choice is closer than rounding can be; exact ties of a grid stay. */
static int too_close(const problem *p) {
    oracle_problem same = problem_oracle(p);
    int coarse = dtype_is_half(p->c.dtype) && !p->c.grid; /* products of a grid are exact */
    double least = p->c.dtype == HT_F64 ? 1e-11 : coarse ? 1e-3 : 2e-5;
    if (p->c.gap < 0) return 0;
    least = fmax(least, (double)p->c.gap / 1000);
    return p->c.open > 0 && !(oracle_margin(&same) >= least * (double)p->c.spread);
}

static void draw_keys(problem *p) {
    const test_case *c = &p->c;
    ht_dtype type = (ht_dtype)c->dtype;
    int64_t q = c->q_heads * c->head_dim, k = c->kv_heads * c->head_dim;
    do {
        p->q = draw(p, 1, problem_q_size(p), q, type, (double)c->spread, p->query_mask);
        p->k = draw(p, 2, problem_k_size(p), k, type, 1, p->key_mask);
        if (++p->redrawn > 400) {
            char text[512];
            case_print(text, sizeof text, c);
            fprintf(stderr, "400 times drawn, and still a choice is too close: %s\n", text);
            abort();
        }
    } while (too_close(p));
    p->redrawn = 0;
}

void problem_make(problem *p, const test_case *c) {
    *p = (problem){.c = *c};
    draw_lengths(p);
    if (c->mask != MASK_NONE) {
        p->key_mask = draw_mask(p, 0);
        p->query_mask = draw_mask(p, 1);
        /* a mask of ones and no mask mean the same: try both */
        if (c->mask == MASK_KEYS && c->seed % 2) p->query_mask = NULL;
        if (c->mask == MASK_QUERIES && c->seed % 2) p->key_mask = NULL;
    }
    ht_dtype type = (ht_dtype)c->dtype, wide = dtype_wide(type);
    int64_t v = c->kv_heads * c->value_dim, z = c->q_heads * c->value_dim;
    draw_keys(p);
    p->v = draw(p, 3, problem_v_size(p), v, type, 1, p->key_mask);
    p->dout = draw(p, 4, problem_out_size(p), z, type, 1, p->query_mask);
    p->v = raised(p->v, problem_v_size(p), (double)c->raise_v, type);
    p->dout = raised(p->dout, problem_out_size(p), (double)c->raise_dout, type);
    if (c->bias) p->bias = draw(p, 5, problem_bias_size(p), 1, wide, 1, NULL);
    if (c->dlse) p->dlse = draw(p, 6, problem_lse_size(p), c->q_heads, wide, 1, p->query_mask);
}

outcome outcome_make(const problem *p) {
    outcome o;
    o.out = pool_alloc((size_t)problem_out_size(p) * sizeof(double));
    o.lse = pool_alloc((size_t)problem_lse_size(p) * sizeof(double));
    o.dq = pool_alloc((size_t)problem_q_size(p) * sizeof(double));
    o.dk = pool_alloc((size_t)problem_k_size(p) * sizeof(double));
    o.dv = pool_alloc((size_t)problem_v_size(p) * sizeof(double));
    o.dbias = pool_alloc((size_t)problem_bias_size(p) * sizeof(double));
    return o;
}

oracle_problem problem_oracle(const problem *p) {
    const test_case *c = &p->c;
    return (oracle_problem){
        .kind = (ht_kind)c->kind,
        .query = (ht_query)c->query,
        .causal = (int)c->causal,
        .sequences = c->batch,
        .cu_seqlens = p->cu,
        .q_heads = c->q_heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .value_dim = c->value_dim,
        .block = c->block,
        .open = c->open,
        .leaf = c->leaf ? c->leaf : 8,
        .peek = c->peek < 0 ? 0
                : c->peek   ? c->peek
                            : 2,
        .scale = (double)c->scale / 1000,
        .rotary = (double)c->rotary,
        .dropout = (double)c->dropout / 100,
        .seed = (uint64_t)c->seed * 0x9E3779B97F4A7C15u,
        .offset = (uint32_t)c->seed,
        .q = p->q,
        .k = p->k,
        .v = p->v,
        .bias = p->bias,
        .key_mask = p->key_mask,
        .query_mask = p->query_mask,
        .dout = p->dout,
        .dlse = p->dlse,
    };
}
