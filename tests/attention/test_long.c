/*
 * Lengths that a dense oracle cannot reach, and calls with very many sequences: against the
 * reference kernels in float64, which the other tests hold against the oracle. The plain algorithm
 * of the tolerance rule is here the reference kernels in float.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "decoder.h"

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
static reference long_reference(const problem *p) {
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

/* prefill in two parts, then a few tokens */
static void decodes(const problem *p, const reference *r) {
    decoder d = decoder_open(env.ctx, p);
    decoder_feed_one(&d, 0, p->c.length / 3);
    decoder_feed_one(&d, 0, p->c.length - p->c.length / 3 - 40);
    for (int i = 0; i < 40; i++) decoder_feed_one(&d, 0, 1);
    reference_check(r, p, &d.got, PARTS_FORWARD);
}

static void long_passes(void **state) {
    problem p;
    problem_make(&p, *state);
    outcome got = run_problem(env.ctx, &p);
    reference r = long_reference(&p);
    reference_check(&r, &p, &got, PARTS_ALL);
    if (p.c.causal && p.c.batch == 1 && p.c.length >= 3000) decodes(&p, &r);
    if (env.cuda) return;
    outcome one = run_problem(harness_context(1), &p), five = run_problem(harness_context(5), &p);
    check_same_bits(&p, &got, &one, PARTS_ALL, "1 thread");
    check_same_bits(&p, &got, &five, PARTS_ALL, "5 threads");
}

static void list(void) {
    static const test_case sizes[] = {
        CASE(.length = 6000, .block = 16, .head_dim = 16, .value_dim = 16, .bias = 1),
        CASE(.length = 20001, .block = 2, .head_dim = 4, .value_dim = 4, .mask = MASK_BOTH),
        CASE(.length = 3000, .block = 64, .head_dim = 16, .value_dim = 16, .rotary = 10000,
             .q_heads = 2),
        CASE(.length = 2100, .block = 16, .head_dim = 128, .value_dim = 128, .q_heads = 2,
             .kv_heads = 1, .bias = 1),
        CASE(.length = 300, .batch = 60, .packed = 3, .block = 16, .bias = 1, .dlse = 1),
        CASE(.length = 1, .batch = 70000, .head_dim = 1, .value_dim = 1, .bias = 1),
        CASE(.length = 3, .batch = 130, .q_heads = 512, .kv_heads = 256, .head_dim = 2,
             .value_dim = 2, .block = 2),
    };
    static const ht_dtype types[] = {HT_F32, HT_BF16};
    for (size_t t = 0; t < COUNT(types); t++) {
        case_list passes = {0};
        if (!harness_supports(types[t])) continue;
        for (size_t i = 0; i < COUNT(sizes); i++) {
            for (size_t w = 0; w < case_way_count; w++) {
                test_case c = sizes[i];
                c.kind = case_ways[w].kind, c.query = case_ways[w].query;
                c.causal = case_ways[w].causal, c.dtype = types[t];
                c.seed = (int64_t)(i * case_way_count + w);
                if (c.kind == HT_FULL && c.length > 1000) continue; /* quadratic */
                if (i > 4 && w % 3 != i % 3) continue;
                cases_add(&passes, c);
            }
        }
        harness_add_all("long passes", long_passes, &passes);
        cases_free(&passes);
    }
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
