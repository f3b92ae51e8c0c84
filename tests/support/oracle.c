/*
 * The oracle: what does not depend on the precision, and the three precisions.
 */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int oracle_levels(const oracle_problem *p, int64_t length) {
    if (p->kind != HT_HIERARCHICAL) return 1;
    int m = 1;
    for (int64_t reach = 2 * p->block; reach < length; reach *= 2) m++;
    return m;
}

int oracle_level(const oracle_problem *p, int64_t i, int64_t j) {
    if (p->kind == HT_FULL) return 0;
    int64_t size = p->block;
    for (int l = 0;; l++, size *= 2) {
        int64_t apart = i / size - j / size;
        if (apart >= -1 && apart <= 1) return l;
        if (p->kind == HT_LOCAL) return -1;
    }
}

/* one 32 x 32 -> 64 bit product, as the two halves the paper calls hi and lo */
static void mulhilo(uint32_t *hi, uint32_t *lo, uint32_t a, uint32_t b) {
    uint64_t product = (uint64_t)a * b;
    *hi = (uint32_t)(product >> 32);
    *lo = (uint32_t)product;
}

void oracle_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t x[4], k[2] = {key[0], key[1]};
    memcpy(x, counter, sizeof x);
    for (int round = 0; round < 10; round++) {
        uint32_t hi0, lo0, hi1, lo1;
        mulhilo(&hi0, &lo0, 0xD2511F53u, x[0]);
        mulhilo(&hi1, &lo1, 0xCD9E8D57u, x[2]);
        uint32_t next[4] = {hi1 ^ x[1] ^ k[0], lo1, hi0 ^ x[3] ^ k[1], lo0};
        memcpy(x, next, sizeof x);
        k[0] += 0x9E3779B9u; /* golden ratio */
        k[1] += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    memcpy(out, x, sizeof x);
}

int oracle_kept(const oracle_problem *p, int64_t sequence, int64_t head, int level, int64_t query,
                int64_t key) {
    uint32_t counter[4] = {p->offset, (uint32_t)(sequence * p->q_heads + head),
                           (uint32_t)level << 27 | (uint32_t)query, (uint32_t)(key / 4)};
    uint32_t keys[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)}, words[4];
    oracle_philox(words, counter, keys);
    return words[key % 4] >= (uint32_t)(p->dropout * 4294967296.0);
}

/* who sees whom, and at which level they meet */
static void meet(int8_t *level, const oracle_problem *p, const uint8_t *qon, const uint8_t *kon,
                 int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < rows; j++) {
            int seen = (!qon || qon[i]) && (!kon || kon[j]) && !(p->causal && j > i);
            level[i * rows + j] = (int8_t)(seen ? oracle_level(p, i, j) : -1);
        }
    }
}

/* ---- opening: one row's choice, over rows: the mean of a cluster's logits is the mean's logit */

typedef struct cluster {
    int64_t c;
    double score;
    int whole, opened; /* whole: no row is missing, so that the score is exact on small integers */
} cluster;

/* s [rows]: the row's logits with every key; level [rows]: -1 for those that it does not see */
static cluster make_cluster(const oracle_problem *p, const double *s, const int8_t *level,
                            int64_t rows, int l, int64_t c) {
    int deep = p->peek < l ? (int)p->peek : l;
    int64_t size = (int64_t)1 << (l - deep), all = 0, from = c << l, to = (c + 1) << l;
    double mean = 0, square = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t lo = from; lo < to; lo += size) {
            int64_t n = 0;
            double sum = 0;
            for (int64_t j = lo; j < lo + size && j < rows; j++)
                if (level[j] >= 0) n++, sum += s[j];
            if (pass == 0) mean += sum, all += n;
            if (pass == 1 && n > 0)
                square += (double)n * (sum / (double)n - mean) * (sum / (double)n - mean);
        }
        if (pass == 0) mean /= (double)all;
    }
    return (cluster){c, mean + sqrt(square / (double)all), all == (int64_t)1 << l, 0};
}

/* the `open` best are opened; returns how far the last of them is ahead */
static double choose(cluster *of, int64_t n, int64_t open) {
    int64_t last = -1;
    double margin = INFINITY;
    for (int64_t taken = 0; taken < open && taken < n; taken++) {
        last = -1;
        for (int64_t x = 0; x < n; x++)
            if (!of[x].opened && (last < 0 || of[x].score > of[last].score)) last = x;
        of[last].opened = 1;
    }
    for (int64_t x = 0; x < n && last >= 0; x++) {
        double ahead = of[last].score - of[x].score;
        if (of[x].opened || (ahead == 0 && of[x].whole && of[last].whole)) continue;
        if (ahead < margin) margin = ahead;
    }
    return margin;
}

static double open_row(int8_t *level, const oracle_problem *p, const double *s, int64_t rows,
                       cluster *of) {
    double margin = INFINITY;
    for (int l = oracle_levels(p, rows) - 1; l > 0; l--) {
        int64_t n = 0;
        for (int64_t c = 0; c << l < rows; c++) {
            int there = 0;
            for (int64_t j = c << l; j < (c + 1) << l && j < rows; j++) there |= level[j] == l;
            if (there) of[n++] = make_cluster(p, s, level, rows, l, c);
        }
        margin = fmin(margin, choose(of, n, p->open));
        for (int64_t x = 0; x < n; x++) {
            int leaf = (int64_t)1 << l <= p->leaf || l == 1;
            for (int64_t j = of[x].c << l; j < (of[x].c + 1) << l && j < rows; j++)
                if (of[x].opened && level[j] == l) level[j] = (int8_t)(leaf ? ORACLE_ROW : l - 1);
        }
    }
    return margin;
}

void oracle_open(int8_t *level, double *margin, const oracle_problem *p, int64_t sequence,
                 int64_t h) {
    int64_t start = p->cu_seqlens[sequence], rows = p->cu_seqlens[sequence + 1] - start;
    int64_t d = p->head_dim, kv = h / (p->q_heads / p->kv_heads);
    double scale = p->scale != 0 ? p->scale : 1 / sqrt((double)d);
    double *s = malloc((size_t)(rows + 1) * sizeof *s);
    cluster *of = malloc((size_t)(rows + 1) * sizeof *of);
    if (!s || !of) abort();
    for (int64_t i = 0; i < rows; i++) {
        const double *q = p->q + ((start + i) * p->q_heads + h) * d;
        int8_t *own = level + i * rows;
        for (int64_t j = 0; j < rows; j++) {
            s[j] = 0;
            const double *k = p->k + ((start + j) * p->kv_heads + kv) * d;
            for (int64_t c = 0; c < d && own[j] >= 0; c++) s[j] += scale * q[c] * k[c];
        }
        margin[i] = open_row(own, p, s, rows, of);
    }
    free(s);
    free(of);
}

void oracle_pairs(int8_t *level, double *margin, const oracle_problem *p, int64_t sequence,
                  int64_t h) {
    int64_t start = p->cu_seqlens[sequence], rows = p->cu_seqlens[sequence + 1] - start;
    double *own = malloc((size_t)(rows + 1) * sizeof *own);
    if (!own) abort();
    meet(level, p, p->query_mask ? p->query_mask + start : NULL,
         p->key_mask ? p->key_mask + start : NULL, rows);
    if (p->open > 0) oracle_open(level, margin ? margin : own, p, sequence, h);
    free(own);
}

double oracle_margin(const oracle_problem *p) {
    double least = INFINITY;
    for (int64_t b = 0; b < p->sequences; b++) {
        int64_t start = p->cu_seqlens[b], rows = p->cu_seqlens[b + 1] - start;
        int8_t *level = malloc((size_t)(rows * rows) + 1);
        double *margin = malloc((size_t)(rows + 1) * sizeof *margin);
        if (!level || !margin) abort();
        for (int64_t h = 0; h < p->q_heads; h++) {
            oracle_pairs(level, margin, p, b, h);
            for (int64_t i = 0; i < rows; i++) least = fmin(least, margin[i]);
        }
        free(level);
        free(margin);
    }
    return least;
}

#define WIDE double
#define COS cos
#define SIN sin
#define POW pow

#define REAL float
#define FN(name) name##_f32
#define EXP expf
#define EXP2 exp2f
#define LOG logf
#define SQRT sqrtf
#define ABS fabsf
#include "oracle_body.h"
#undef REAL
#undef FN
#undef EXP
#undef EXP2
#undef LOG
#undef SQRT
#undef ABS

#define REAL double
#define FN(name) name##_f64
#define EXP exp
#define EXP2 exp2
#define LOG log
#define SQRT sqrt
#define ABS fabs
#include "oracle_body.h"
#undef REAL
#undef FN
#undef EXP
#undef EXP2
#undef LOG
#undef SQRT
#undef ABS
#undef WIDE
#undef COS
#undef SIN
#undef POW

#define WIDE long double
#define COS cosl
#define SIN sinl
#define POW powl
#define REAL long double
#define FN(name) name##_f80
#define EXP expl
#define EXP2 exp2l
#define LOG logl
#define SQRT sqrtl
#define ABS fabsl
#include "oracle_body.h"

static void clear(oracle_result *r, const oracle_problem *p) {
    size_t rows = (size_t)p->cu_seqlens[p->sequences];
    size_t q = rows * (size_t)p->q_heads, kv = rows * (size_t)p->kv_heads;
    memset(r->out, 0, q * (size_t)p->value_dim * sizeof(double));
    memset(r->lse, 0, q * sizeof(double));
    if (!p->dout) return;
    memset(r->dq, 0, q * (size_t)p->head_dim * sizeof(double));
    memset(r->dk, 0, kv * (size_t)p->head_dim * sizeof(double));
    memset(r->dv, 0, kv * (size_t)p->value_dim * sizeof(double));
    memset(r->dbias, 0, (size_t)((4 * p->block - 1) * p->q_heads) * sizeof(double));
}

void oracle_run(oracle_result *r, const oracle_problem *p, oracle_precision precision,
                oracle_form form) {
    clear(r, p);
    if (precision == ORACLE_F32) run_f32(r, p, form, 0);
    if (precision == ORACLE_F64) run_f64(r, p, form, 0);
    if (precision == ORACLE_F80) run_f80(r, p, form, 0);
}

void oracle_sizes(oracle_result *r, const oracle_problem *p) {
    clear(r, p);
    run_f64(r, p, ORACLE_AS_IS, 1);
}
