/*
 * The tolerance rule: what is wanted, how far off is allowed, and the comparison.
 */
#include "harness.h"

#include <math.h>
#include <string.h>

const char *const part_names[PART_COUNT] = {"out", "lse", "dq", "dk", "dv", "dbias"};

double *outcome_part(const outcome *o, int part) {
    double *const parts[PART_COUNT] = {o->out, o->lse, o->dq, o->dk, o->dv, o->dbias};
    return parts[part];
}

int64_t problem_part_size(const problem *p, int part) {
    switch (part) {
    case PART_OUT: return problem_out_size(p);
    case PART_LSE: return problem_lse_size(p);
    case PART_DQ: return problem_q_size(p);
    case PART_DK: return problem_k_size(p);
    case PART_DV: return problem_v_size(p);
    default: return problem_bias_size(p);
    }
}

/* the largest of |x|, leaving out the -inf of rows that see nothing */
static double largest(const double *x, int64_t n) {
    double top = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > top) top = fabs(x[i]);
    return top;
}

static double largest_difference(const double *a, const double *b, int64_t n) {
    double top = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(a[i]) && fabs(a[i] - b[i]) > top) top = fabs(a[i] - b[i]);
    return top;
}

/* The plain algorithm in the case's precision. 16 bits: inputs of 16 bits, float arithmetic,
 * every such tensor rounded when it is stored; backward reads the rounded out. */
static outcome plain(const problem *p, int backward, oracle_form form) {
    outcome o = outcome_make(p);
    oracle_problem same = problem_oracle(p);
    ht_dtype type = (ht_dtype)p->c.dtype;
    oracle_precision precision = type == HT_F64 ? ORACLE_F64 : ORACLE_F32;
    if (!backward) same.dout = NULL;
    if (dtype_is_half(type) && backward) {
        same.dout = NULL;
        oracle_run(&o, &same, precision, form);
        double *stored = pool_alloc((size_t)problem_out_size(p) * sizeof *stored);
        for (int64_t i = 0; i < problem_out_size(p); i++) stored[i] = dtype_round(type, o.out[i]);
        same.stored_out = stored, same.dout = p->dout;
    }
    oracle_run(&o, &same, precision, form);
    static const int stored_parts[] = {PART_OUT, PART_DQ, PART_DK, PART_DV};
    for (size_t s = 0; s < COUNT(stored_parts) && dtype_is_half(type); s++) {
        double *x = outcome_part(&o, stored_parts[s]);
        for (int64_t i = 0; i < problem_part_size(p, stored_parts[s]); i++)
            x[i] = dtype_round(type, x[i]);
    }
    return o;
}

void reference_make(reference *r, const problem *p, int backward) {
    oracle_problem same = problem_oracle(p);
    int parts = backward ? PART_COUNT : PART_DQ;
    double eps = dtype_epsilon((ht_dtype)p->c.dtype);
    if (!backward) same.dout = NULL;
    r->want = outcome_make(p);
    outcome sizes = outcome_make(p);
    oracle_run(&r->want, &same, p->c.dtype == HT_F64 ? ORACLE_F80 : ORACLE_F64, ORACLE_AS_IS);
    if (backward) oracle_sizes(&sizes, &same);
    memset(r->allowed, 0, sizeof r->allowed);
    for (int form = 0; form < ORACLE_FORMS; form++) {
        if (!backward && form == ORACLE_MIXED) continue;
        outcome o = plain(p, backward, (oracle_form)form);
        for (int part = 0; part < parts; part++) {
            int64_t n = problem_part_size(p, part);
            double *want = outcome_part(&r->want, part);
            double size = largest(part >= PART_DQ ? outcome_part(&sizes, part) : want, n);
            double off = largest_difference(want, outcome_part(&o, part), n);
            r->allowed[part] = fmax(r->allowed[part], 2 * off + 4 * eps * size);
        }
    }
}

/* is element i of this part of a row that the masks (or the lack of keys) make exactly zero? */
static int must_be_zero(const reference *r, const problem *p, int part, int64_t i) {
    const test_case *c = &p->c;
    switch (part) {
    case PART_OUT: return r->want.lse[i / c->value_dim] == -INFINITY;
    case PART_DQ: return p->query_mask && !p->query_mask[i / (c->q_heads * c->head_dim)];
    case PART_DK: return p->key_mask && !p->key_mask[i / (c->kv_heads * c->head_dim)];
    case PART_DV: return p->key_mask && !p->key_mask[i / (c->kv_heads * c->value_dim)];
    default: return 0;
    }
}

void reference_check(const reference *r, const problem *p, const outcome *got, unsigned parts) {
    if (!p->c.lse) parts &= ~(1u << PART_LSE);
    if (!p->bias) parts &= ~(1u << PART_DBIAS);
    for (int part = 0; part < PART_COUNT; part++) {
        if (!(parts >> part & 1)) continue;
        const double *want = outcome_part(&r->want, part), *x = outcome_part(got, part);
        double allowed = r->allowed[part], worst = 0;
        int64_t at = -1, n = problem_part_size(p, part);
        for (int64_t i = 0; i < n; i++) {
            double off = x[i] == want[i] ? 0 : fabs(x[i] - want[i]);
            if (must_be_zero(r, p, part, i) && x[i] != 0) off = INFINITY;
            if (isnan(off)) off = INFINITY;
            if (off > worst) worst = off, at = i;
        }
        if (worst > allowed)
            harness_fail(&p->c,
                         "%s: element %lld of %lld is %.9g, should be %.9g: off by %.3g, "
                         "allowed %.3g",
                         part_names[part], (long long)at, (long long)n, x[at], want[at], worst,
                         allowed);
    }
}

void check_same_bits(const problem *p, const outcome *a, const outcome *b, unsigned parts,
                     const char *what) {
    if (!p->c.lse) parts &= ~(1u << PART_LSE);
    if (!p->bias) parts &= ~(1u << PART_DBIAS);
    for (int part = 0; part < PART_COUNT; part++) {
        if (!(parts >> part & 1)) continue;
        const double *x = outcome_part(a, part), *y = outcome_part(b, part);
        for (int64_t i = 0; i < problem_part_size(p, part); i++)
            if (memcmp(&x[i], &y[i], sizeof *x) != 0)
                harness_fail(&p->c, "%s: %s[%lld] is %.17g and %.17g", what, part_names[part],
                             (long long)i, x[i], y[i]);
    }
}
