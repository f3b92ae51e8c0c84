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
