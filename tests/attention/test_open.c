/*
 * Opening clusters: against the oracle, at both ends of the dial, ties, and what rounding may do.
 *
 * A device may round a score differently and then choose another cluster. So the problems here are
 * drawn until every choice is clear: either scores are further apart than rounding reaches, or q
 * and k are small integers and ties are exact (problem.c). What is left is looked at by
 * close_calls.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static void against_oracle(void **state) {
    problem p;
    reference r;
    problem_make(&p, *state);
    outcome got = run_problem(env.ctx, &p);
    reference_make(&r, &p, 1);
    reference_check(&r, &p, &got, PARTS_ALL);
}

/* open = 0 is query fine to the bit, whatever leaf and peek are */
static void zero_is_fine(void **state) {
    problem p;
    problem_make(&p, *state);
    outcome fine = run_problem(env.ctx, &p);
    p.c.leaf = 2, p.c.peek = 3;
    outcome none = run_problem(env.ctx, &p);
    check_same_bits(&p, &fine, &none, PARTS_ALL, "nothing opened");
}

/* everything opened is full attention, gradients too */
static void all_is_full(void **state) {
    test_case c = *(test_case *)*state;
    problem p, full;
    reference r;
    problem_make(&p, &c);
    outcome got = run_problem(env.ctx, &p);
    c.kind = HT_FULL, c.open = 0;
    problem_make(&full, &c);
    full.q = p.q, full.k = p.k, full.v = p.v, full.dout = p.dout;
    reference_make(&r, &full, 1);
    reference_check(&r, &p, &got, PARTS_ALL);
}

/* Keys +1, -1, +1, ...: all clusters of a level have the same score, so the last row opens the two
 * leftmost down to rows 0 to 3. V is one-hot: outputs are weights. */
static void ties(void **state) {
    problem p;
    problem_make(&p, *state);
    int64_t n = p.c.length, last = (n - 1) * p.c.value_dim;
    for (int64_t i = 0; i < n; i++) {
        p.q[i] = 1, p.k[i] = i % 2 ? -1 : 1;
        for (int64_t j = 0; j < n; j++) p.v[i * n + j] = i == j;
    }
    outcome got = run_problem(env.ctx, &p);
    const double *w = got.out + last;
    double eps = 8 * dtype_epsilon((ht_dtype)p.c.dtype), e = exp(1), middle = w[4];
    for (int64_t j = 0; j < n - 2 * p.c.block; j++) {
        double want = j >= 4 ? middle : j % 2 ? middle / e : middle * e;
        if (!(fabs(w[j] - want) <= eps * want))
            harness_fail(&p.c, "the last row gives row %d the weight %.9g, not %.9g", (int)j, w[j],
                         want);
    }
}

/* Inputs as they come: rows whose choice is clear agree, the few others stay means of the values.
 */
static void close_calls(void **state) {
    problem p;
    reference r;
    problem_make(&p, *state);
    int64_t n = p.c.length, dv = p.c.value_dim, unclear = 0;
    outcome got = run_problem(env.ctx, &p);
    reference_make(&r, &p, 0);
    oracle_problem same = problem_oracle(&p);
    double *margin = pool_alloc((size_t)n * sizeof *margin), most = 0;
    int8_t *level = pool_alloc((size_t)(n * n));
    for (int64_t i = 0; i < n * n; i++)
        level[i] = (int8_t)(i % n > i / n ? -1 : oracle_level(&same, i / n, i % n));
    oracle_open(level, margin, &same, 0, 0);
    for (int64_t i = 0; i < n * dv; i++) most = fmax(most, fabs(p.v[i]));
    for (int64_t i = 0; i < n; i++) {
        int clear = margin[i] > (p.c.dtype == HT_BF16 ? 5e-2 : 2e-5);
        unclear += !clear;
        for (int64_t c = i * dv; c < (i + 1) * dv; c++) {
            double off = fabs(got.out[c] - r.want.out[c]);
            if (clear ? !(off <= r.allowed[PART_OUT]) : !(fabs(got.out[c]) <= 1.01 * most))
                harness_fail(&p.c, "row %d, margin %g: %.9g, should be %.9g", (int)i, margin[i],
                             got.out[c], r.want.out[c]);
        }
    }
    if (unclear > (p.c.dtype == HT_BF16 ? n * 9 / 10 : n / 20))
        harness_fail(&p.c, "%d of %d rows are not clear", (int)unclear, (int)n);
}

/* The kernels that a plan gets, where there is a choice. */
static void families(void **state) {
    (void)state;
    static const struct {
        ht_dtype dtype;
        int64_t dim, block, open, peek;
        int bias;
        const char *forward, *backward;
    } cases[] = {
        {HT_BF16, 64, 16, 8, 1, 0, "opening tiles", "opening tiles"},
        {HT_BF16, 128, 64, 16, 2, 0, "opening tiles", "opening tiles"},
        {HT_BF16, 32, 16, 8, 1, 1, "opening tiles", "opened"},
        {HT_BF16, 64, 16, 8, 3, 0, "opened", "opened"},
        {HT_BF16, 64, 16, 57, 1, 0, "opened", "opened"},
        {HT_BF16, 24, 16, 8, 1, 0, "opened", "opened"},
        {HT_F32, 64, 16, 8, 1, 0, "opened", "opened"},
        {HT_BF16, 64, 16, 0, 1, 0, "tuned", "tiles"},
    };
    for (size_t i = 0; i < COUNT(cases) && !strncmp(ht_context_device(env.ctx), "cuda", 4); i++) {
        ht_attention *plan;
        ht_attention_desc d = HT_ATTENTION_DESC_INIT;
        d.query = HT_QUERY_FINE, d.causal = 1, d.dtype = cases[i].dtype;
        d.q_heads = 4, d.head_dim = cases[i].dim, d.block = cases[i].block;
        d.open = cases[i].open, d.open_peek = cases[i].peek, d.has_bias = cases[i].bias;
        d.max_rows = 4096, d.max_length = 1024;
        harness_ok(env.ctx, ht_attention_create(&plan, env.ctx, &d), NULL);
        /* the emulated device may lend too little for the tuned ones */
        if (cases[i].open > 0 || !strcmp(ht_attention_kernels(plan, 0), "tuned"))
            assert_string_equal(ht_attention_kernels(plan, 0), cases[i].forward);
        assert_string_equal(ht_attention_kernels(plan, 1), cases[i].backward);
        ht_attention_destroy(plan);
    }
}

static void add_ends(ht_dtype dtype) {
    static const test_case with[] = {
        CASE(.length = 77, .q_heads = 2),
        CASE(.length = 64, .bias = 1, .head_dim = 64, .block = 16),
        CASE(.length = 130, .block = 2, .mask = MASK_BOTH, .dlse = 1, .batch = 2, .packed = 3),
        CASE(.length = 200, .block = 16, .q_heads = 4, .kv_heads = 2, .head_dim = 64,
             .value_dim = 64)};
    case_list fine = {0}, full = {0};
    for (size_t i = 0; i < 2 * COUNT(with); i++) {
        test_case c = with[i / 2];
        c.query = HT_QUERY_FINE, c.dtype = dtype, c.causal = (int64_t)i % 2, c.seed = (int64_t)i;
        cases_add(&fine, c);
        c.open = 1000, c.leaf = i / 2 == 1 ? 1 : 0;
        cases_add(&full, c);
    }
    harness_add_all("zero is fine", zero_is_fine, &fine);
    harness_add_all("all is full", all_is_full, &full);
    cases_free(&fine), cases_free(&full);
}

static void list(void) {
    test_case any = CASE(.open = 8);
    harness_add("families", families, &any);
    static const ht_dtype types[] = {HT_F32, HT_BF16, HT_F64};
    for (size_t t = 0; t < COUNT(types); t++) {
        case_list cases = {0};
        ht_dtype type = types[t];
        if (!harness_supports(type)) continue;
        cases_open(&cases, type);
        harness_add_all("oracle", against_oracle, &cases);
        cases_free(&cases);
        add_ends(type);
        test_case one = CASE(.query = HT_QUERY_FINE, .dtype = type, .causal = 1, .open = 2,
                             .leaf = 1, .gap = -1);
        one.length = one.value_dim = 64, one.block = 2, one.head_dim = 1, one.scale = 1000;
        harness_add("ties", ties, &one);
        one.length = 700, one.block = 16, one.head_dim = one.value_dim = 32, one.scale = 0;
        one.open = 4, one.leaf = 8;
        if (type != HT_F64) harness_add("close calls", close_calls, &one);
    }
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
