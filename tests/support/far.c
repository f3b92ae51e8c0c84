/*
 * What a problem that is too long for the oracle should give: the reference kernels in float64,
 * which other tests hold against the oracle. The plain algorithm of the tolerance rule is here the
 * reference kernels in float.
 */
#include <math.h>
#include <string.h>

#include "harness.h"

/* the reference device, given back with the pool */
static void close_context(void *a, void *b) {
    (void)b;
    ht_context_destroy(a);
}

static ht_context *reference_context(void) {
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    ht_context *ctx;
    desc.device = "cpu:ref";
    harness_ok(NULL, ht_context_create(&ctx, &desc), NULL);
    pool_defer(close_context, ctx, NULL);
    return ctx;
}

/* the same numbers in another precision on the reference kernels */
static outcome reference_run(ht_context *ctx, const problem *p, ht_dtype dtype) {
    problem same = *p;
    same.c.dtype = dtype;
    return run_problem(ctx, &same);
}

static double largest_off(const double *a, const double *b, int64_t n) {
    double top = 0;
    for (int64_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(fabs(a[i] - b[i]) <= top)) top = fabs(a[i] - b[i]);
    return top;
}

/* What the rule allows each part, with the float run as the plain algorithm. Weights come back as
 * exp(s - lse): rounding lse is a relative error of eps |lse| in each of them, and there is but one
 * plain run here to show it. */
reference far_reference(const problem *p) {
    ht_context *ctx = reference_context();
    ht_dtype type = (ht_dtype)p->c.dtype;
    reference r = {.want = reference_run(ctx, p, HT_F64)};
    outcome plain = reference_run(ctx, p, HT_F32);
    double score = 1;
    for (int64_t i = 0; i < problem_lse_size(p); i++)
        if (isfinite(r.want.lse[i])) score = fmax(score, fabs(r.want.lse[i]));
    for (int part = 0; part < PART_COUNT; part++) {
        double *want = outcome_part(&r.want, part), *x = outcome_part(&plain, part), top = 0;
        int64_t n = problem_part_size(p, part);
        for (int64_t i = 0; i < n; i++) {
            if (part != PART_LSE && part != PART_DBIAS) x[i] = dtype_round(type, x[i]);
            if (isfinite(want[i])) top = fmax(top, fabs(want[i]));
        }
        if (part != PART_LSE) top *= score;
        r.allowed[part] = 2 * largest_off(want, x, n) + 4 * dtype_epsilon(type) * top;
    }
    return r;
}
