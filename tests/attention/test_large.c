/*
 * Values near 1,000 in 16 bits, over many rows: their sums are far beyond 65,504, where f16 ends.
 * What kernels keep of a cluster must be of the size of one row.
 */
#include "harness.h"

/* dq and dk are differences of <dout, v>: where v is large, rounding of out is all that is left. */
static void large(void **state) {
    problem p;
    problem_make(&p, *state);
    outcome got = run_problem(env.ctx, &p);
    reference r = far_reference(&p);
    reference_check(&r, &p, &got, p.c.raise_v ? PARTS_FORWARD | 1u << PART_DV : PARTS_ALL);
}

static void add(case_list *list, test_case c) {
    c.raise_v = 1000, cases_add(list, c);
    c.raise_v = 0, c.raise_dout = 1000, cases_add(list, c);
}

/* Every family of kernels by its shape: columns, block, mask. */
static void list(void) {
    static const test_case shapes[] = {
        CASE(.length = 4096, .block = 16, .head_dim = 16, .value_dim = 16),
        CASE(.length = 3100, .block = 32, .head_dim = 32, .value_dim = 32),
        CASE(.length = 1200, .block = 16, .head_dim = 8, .value_dim = 8),
        CASE(.length = 2500, .block = 16, .head_dim = 64, .value_dim = 64, .mask = MASK_RUNS),
        CASE(.length = 2200, .block = 18, .head_dim = 6, .value_dim = 6),
    };
    static const ht_dtype types[] = {HT_F16, HT_BF16};
    case_list cases = {0};
    for (size_t t = 0; t < COUNT(types); t++) {
        if (!env.cuda || !harness_supports(types[t])) continue; /* CPUs add in float */
        add(&cases, CASE(.length = 65536, .block = 16, .head_dim = 16, .value_dim = 16,
                         .query = HT_QUERY_FIRST, .dtype = types[t]));
        for (size_t i = 0; i < COUNT(shapes); i++) {
            for (size_t w = 0; w < case_way_count; w++) {
                test_case c = shapes[i];
                c.kind = case_ways[w].kind, c.query = case_ways[w].query;
                c.causal = case_ways[w].causal, c.dtype = types[t];
                c.seed = (int64_t)(i * case_way_count + w);
                if (c.kind == HT_FULL && c.length > 2000) continue; /* quadratic */
                add(&cases, c);
            }
        }
    }
    harness_add_all("large values", large, &cases);
    cases_free(&cases);
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
