/*
 * A case turned into numbers: host arrays in the oracle's canonical form, every value exactly
 * representable in the case's dtype. Plus the test pool: memory, plans and contexts that a test
 * makes are given back after it, whether it passed or not.
 */
#ifndef PROBLEM_H
#define PROBLEM_H

#include "cases.h"
#include "oracle.h"

typedef struct problem {
    test_case c;
    int64_t rows, longest;
    int32_t *cu; /* [batch + 1], of equal lengths too */
    double *q, *k, *v, *bias, *dout, *dlse;
    uint8_t *key_mask, *query_mask; /* NULL: none */
    int redrawn;                    /* times that q and k were drawn again */
} problem;

/* All results of a call, canonical, as double (every float, bf16 and f16 is a double). */
typedef oracle_result outcome;

/* Fills p from the case: all memory is the pool's. */
void problem_make(problem *p, const test_case *c);

/* Element counts of the canonical arrays. */
int64_t problem_out_size(const problem *p);
int64_t problem_lse_size(const problem *p);
int64_t problem_q_size(const problem *p);
int64_t problem_k_size(const problem *p);
int64_t problem_v_size(const problem *p);
int64_t problem_bias_size(const problem *p);

/* Empty arrays for results. */
outcome outcome_make(const problem *p);

/* The oracle's view of a problem. */
oracle_problem problem_oracle(const problem *p);

/* ---- numbers ----------------------------------------------------------------------------- */

size_t dtype_bytes(ht_dtype type);
double dtype_epsilon(ht_dtype type);         /* distance from 1 to the next number */
ht_dtype dtype_wide(ht_dtype type);          /* of lse and bias: float, or double for F64 */
double dtype_round(ht_dtype type, double x); /* to the nearest representable number */
void dtype_store(ht_dtype type, void *at, double x);
double dtype_load(ht_dtype type, const void *at);

/* ---- the pool ---------------------------------------------------------------------------- */

void *pool_alloc(size_t bytes); /* zeroed */
/* Calls release(a, b) when the test is over; last in, first out. */
void pool_defer(void (*release)(void *a, void *b), void *a, void *b);
void pool_clear(void);

#endif
