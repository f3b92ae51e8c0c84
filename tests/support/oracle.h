/*
 * What the attention must compute, dense and slow: every row against every row. Shares no code
 * with src/. The definition is written once (oracle_body.h) and compiled for float, double and
 * long double: the wide one is the reference, the narrow one is "the plain algorithm in the same
 * precision" of the tolerance rule.
 *
 * All arrays are canonical: [rows, heads, dim] contiguous, rows of all sequences one after the
 * other, kept as double whatever the precision of the arithmetic.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "htransformer.h"

typedef struct oracle_problem {
    ht_kind kind;
    ht_query query;
    int causal;
    int64_t sequences;
    const int32_t *cu_seqlens; /* [sequences + 1] */
    int64_t q_heads, kv_heads, head_dim, value_dim, block;
    int64_t open, leaf, peek; /* clusters opened per level (0: none), rows of a leaf, levels that a
                                 score looks down (0: the mean alone) */
    double scale;             /* 0: 1/sqrt(head_dim) */
    double rotary;            /* theta, or 0 */
    double dropout;           /* probability, or 0 */
    uint64_t seed;
    uint32_t offset;
    const double *q, *k, *v;
    const double *bias;                   /* [4*block - 1, q_heads] or NULL */
    const uint8_t *key_mask, *query_mask; /* [rows] or NULL */
    const double *dout, *dlse;            /* NULL: no backward; zero */
    const double *stored_out;             /* the out that backward reads; NULL: its own */
} oracle_problem;

typedef struct oracle_result {
    double *out, *lse, *dq, *dk, *dv, *dbias; /* the last four may be NULL if dout is */
} oracle_result;

typedef enum oracle_precision { ORACLE_F32, ORACLE_F64, ORACLE_F80 } oracle_precision;

/* Ways to write the plain algorithm, all with the same meaning: sums as they come; backwards;
 * the scores that backward computes again summed the other way round; q scaled before the product;
 * q scaled so that exp is a power of two. */
typedef enum oracle_form {
    ORACLE_AS_IS,
    ORACLE_REVERSE,
    ORACLE_MIXED,
    ORACLE_SCALED,
    ORACLE_POWERS,
    ORACLE_FORMS
} oracle_form;

/* Fills every array of `r`. */
void oracle_run(oracle_result *r, const oracle_problem *p, oracle_precision precision,
                oracle_form form);

/* The same sums with every term taken by its absolute value: how large the numbers were from
 * which the gradients came out, cancellation or not. */
void oracle_sizes(oracle_result *r, const oracle_problem *p);

/* The level at which rows i and j meet; -1: never (kind local). */
int oracle_level(const oracle_problem *p, int64_t i, int64_t j);
int oracle_levels(const oracle_problem *p, int64_t length);

/* Opening: `level` [rows, rows] as rows meet becomes what takes part for head h of a sequence:
 * ORACLE_ROW for a row of an opened cluster, else the level of the cluster that it is part of.
 * margin [rows]: the smallest distance between the score of an opened cluster and of one that was
 * not, or INFINITY; an exact tie of whole clusters, which the smaller one wins, is no distance. */
#define ORACLE_ROW 100
void oracle_open(int8_t *level, double *margin, const oracle_problem *p, int64_t sequence,
                 int64_t h);
/* The same from nothing: how the rows of a sequence meet, and what they open. margin: or NULL. */
void oracle_pairs(int8_t *level, double *margin, const oracle_problem *p, int64_t sequence,
                  int64_t h);
/* The smallest margin of a problem. */
double oracle_margin(const oracle_problem *p);

/* Philox-4x32-10. */
void oracle_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* 1 if the weight of (query, key) survives dropout. */
int oracle_kept(const oracle_problem *p, int64_t sequence, int64_t head, int level, int64_t query,
                int64_t key);

#endif
