/*
 * Lengths that a dense oracle cannot reach, and calls with very many sequences: against the
 * reference kernels in float64, which the other tests hold against the oracle. The plain algorithm
 * of the tolerance rule is here the reference kernels in float.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "decoder.h"

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
    reference r = far_reference(&p);
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
    static const ht_dtype types[] = {HT_F32, HT_BF16, HT_F16};
    for (size_t t = 0; t < COUNT(types); t++) {
        case_list passes = {0};
        if (!harness_supports(types[t]) || (dtype_is_half(types[t]) && !env.cuda)) continue;
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
