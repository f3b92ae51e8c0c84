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

#include "decoder.h"

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
static void check_ties(const problem *p, const double *w, const char *how) {
    double eps = 8 * dtype_epsilon((ht_dtype)p->c.dtype), e = exp(1), middle = w[4];
    for (int64_t j = 0; j < p->c.length - 2 * p->c.block; j++) {
        double want = j >= 4 ? middle : j % 2 ? middle / e : middle * e;
        if (!(fabs(w[j] - want) <= eps * want))
            harness_fail(&p->c, "%s: the last row gives row %d the weight %.9g, not %.9g", how,
                         (int)j, w[j], want);
    }
}

static void ties(void **state) {
    problem p;
    problem_make(&p, *state);
    int64_t n = p.c.length, last = (n - 1) * p.c.value_dim;
    for (int64_t i = 0; i < n; i++) {
        p.q[i] = 1, p.k[i] = i % 2 ? -1 : 1;
        for (int64_t j = 0; j < n; j++) p.v[i * n + j] = i == j;
    }
    outcome got = run_problem(env.ctx, &p);
    check_ties(&p, got.out + last, "full pass");
    decoder d = decoder_open(env.ctx, &p);
    while (d.done[0] < n) decoder_feed_one(&d, 0, 1);
    check_ties(&p, d.got.out + last, "decoding");
}

static void nan_decoded(const problem *p, int64_t at) {
    decoder d = decoder_open(env.ctx, p);
    for (int64_t i = 0; i < p->c.length; i++) decoder_feed_one(&d, 0, 1);
    for (int64_t i = 0; i < p->c.length * p->c.value_dim; i++)
        if (isnan(d.got.out[i]) != (i / p->c.value_dim >= at))
            harness_fail(&p->c, "decoding, NaN in key %d: out[%d] is %g", (int)at, (int)i,
                         d.got.out[i]);
}

/* A NaN in one valid key reaches every row that sees it: its clusters rank last, and take part. No
 * other row changes; backward ends, and keeps to its buffers. */
static void nan_is_nan(void **state) {
    static const int share[] = {0, 3, 7}; /* where it lies, in eighths */
    const test_case *c = *state;
    problem p;
    problem_make(&p, c);
    outcome calm = run_problem(env.ctx, &p);
    for (size_t s = 0; s < COUNT(share); s++) {
        problem hurt = p;
        int64_t at = c->length * share[s] / 8, bytes = problem_k_size(&p) * (int64_t)sizeof *p.k;
        hurt.k = memcpy(pool_alloc((size_t)bytes), p.k, (size_t)bytes);
        hurt.k[at * c->head_dim + at % c->head_dim] = NAN;
        outcome got = run_problem(env.ctx, &hurt);
        for (int64_t i = 0; i < c->length * c->value_dim; i++) {
            int64_t row = i / c->value_dim, apart = (at - row) / TILE_ROWS;
            if (!c->causal || row >= at ? !isnan(got.out[i])
                                        : apart > 0 && got.out[i] != calm.out[i])
                harness_fail(c, "NaN in key %d: out[%d] is %g", (int)at, (int)i, got.out[i]);
        }
        if (c->causal) nan_decoded(&hurt, at);
    }
}

static void check_earlier(const test_case *c, const double *got, const double *calm, int64_t rows,
                          int64_t width, int64_t from, const char *what) {
    for (int64_t i = 0; i < rows * width; i++)
        if (memcmp(got + i, calm + i, sizeof *got) != 0)
            harness_fail(c, "rows from %d on changed %s of row %d: %.9g, before %.9g", (int)from,
                         what, (int)(i / width), got[i], calm[i]);
}

/* Later rows change no bit of what an earlier row chose, forward and backward: neither its output
 * nor the gradient by its query. CUDA's tensor cores take eight rows at once, and what one of them
 * opened decides in which order the others add up: there these may differ by rounding. */
static void later_rows(void **state) {
    const test_case *c = *state;
    problem p;
    reference r;
    problem_make(&p, c);
    reference_make(&r, &p, 0);
    outcome calm = run_problem(env.ctx, &p);
    int64_t q = c->q_heads * c->head_dim, z = c->q_heads * c->value_dim;
    int64_t tile = env.cuda && dtype_is_half(c->dtype) ? 8 : 1;
    for (int64_t from = 1; from < c->length; from += 1 + c->length / 7) {
        problem later;
        uint64_t random = 5;
        problem_make(&later, c);
        for (int64_t i = from * q; i < problem_q_size(&p); i++)
            later.q[i] = test_random_normal(&random);
        for (int64_t i = from * c->kv_heads * c->head_dim; i < problem_k_size(&p); i++)
            later.k[i] = 9 * test_random_normal(&random);
        for (int64_t i = from * c->kv_heads * c->value_dim; i < problem_v_size(&p); i++)
            later.v[i] = test_random_normal(&random);
        outcome got = run_problem(env.ctx, &later);
        int64_t sure = from / tile * tile;
        check_earlier(c, got.out, calm.out, sure, z, from, "output");
        check_earlier(c, got.dq, calm.dq, sure, q, from, "dq");
        for (int64_t i = sure * z; i < from * z; i++)
            if (!(fabs(got.out[i] - calm.out[i]) <= r.allowed[PART_OUT]))
                harness_fail(c, "rows from %d on changed out[%d] from %.9g to %.9g", (int)from,
                             (int)i, calm.out[i], got.out[i]);
    }
}

/* What ht_attention_pairs says is what the oracle opens. */
static void pairs(void **state) {
    problem p;
    session s;
    problem_make(&p, *state);
    if (session_open(&s, env.ctx, &p) == HT_UNSUPPORTED) skip();
    oracle_problem same = problem_oracle(&p);
    int8_t *want = pool_alloc((size_t)(p.longest * p.longest)), *got = pool_alloc(1u << 20);
    for (int64_t b = 0; b < p.c.batch; b++) {
        int64_t n = p.cu[b + 1] - p.cu[b], h = p.c.q_heads - 1;
        ht_status status = ht_attention_pairs(s.plan, &s.args, b, h, got);
        if (status == HT_UNSUPPORTED && env.cuda) skip();
        harness_ok(env.ctx, status, &p.c);
        oracle_pairs(want, NULL, &same, b, h);
        for (int64_t i = 0; i < n * n; i++)
            if (got[i] != (want[i] == ORACLE_ROW ? HT_OPENED : want[i]))
                harness_fail(&p.c, "rows %d and %d meet as %d, not %d", (int)(i / n), (int)(i % n),
                             got[i], want[i]);
    }
    session_check(&s);
}

/* What is kept of the choice is at most 16 bytes per level, row and head; scratch grows as
 * length * (dims + open). */
static void sizes(void **state) {
    test_case c = *(test_case *)*state;
    ht_attention_need need[2];
    int64_t levels = 0, rows = c.length * c.q_heads, each = c.head_dim + c.value_dim + c.open;
    while (c.block << levels < c.length) levels++;
    for (int i = 0; i < 2; i++) {
        ht_attention *plan;
        ht_attention_desc d = HT_ATTENTION_DESC_INIT;
        d.query = HT_QUERY_FINE, d.causal = 1, d.dtype = (ht_dtype)c.dtype, d.open = c.open;
        d.q_heads = c.q_heads, d.head_dim = c.head_dim, d.value_dim = c.value_dim;
        d.block = c.block, d.max_rows = d.max_length = c.length << i;
        harness_ok(env.ctx, ht_attention_create(&plan, env.ctx, &d), &c);
        need[i] = (ht_attention_need)HT_ATTENTION_NEED_INIT;
        harness_ok(env.ctx, ht_attention_get_need(plan, &need[i]), &c);
        ht_attention_destroy(plan);
    }
    size_t real = dtype_bytes(dtype_wide((ht_dtype)c.dtype)), fixed = 1 << 22;
    if (need[0].saved > (size_t)rows * (real + 16 * (size_t)levels))
        harness_fail(&c, "saved are %zu bytes", need[0].saved);
    for (int backward = 0; backward < 2; backward++) {
        size_t one = backward ? need[0].scratch_backward : need[0].scratch_forward;
        size_t two = backward ? need[1].scratch_backward : need[1].scratch_forward;
        if (one > 16 * real * (size_t)(rows * each) + fixed || two > 2 * one + one / 5)
            harness_fail(&c, "scratch is %zu bytes, of twice the length %zu", one, two);
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
    oracle_pairs(level, margin, &same, 0, 0);
    for (int64_t i = 0; i < n * dv; i++) most = fmax(most, fabs(p.v[i]));
    for (int64_t i = 0; i < n; i++) {
        int clear = margin[i] > (dtype_is_half(p.c.dtype) ? 5e-2 : 2e-5);
        unclear += !clear;
        for (int64_t c = i * dv; c < (i + 1) * dv; c++) {
            double off = fabs(got.out[c] - r.want.out[c]);
            if (clear ? !(off <= r.allowed[PART_OUT]) : !(fabs(got.out[c]) <= 1.01 * most))
                harness_fail(&p.c, "row %d, margin %g: %.9g, should be %.9g", (int)i, margin[i],
                             got.out[c], r.want.out[c]);
        }
    }
    if (unclear > (dtype_is_half(p.c.dtype) ? n * 9 / 10 : n / 20))
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

/* Who meets whom, and how much memory that takes. */
static void add_met(ht_dtype dtype) {
    static const test_case met[] = {
        CASE(.length = 77, .batch = 2, .mask = MASK_BOTH, .block = 2, .open = 2, .leaf = 2),
        CASE(.length = 100, .batch = 4, .packed = 7, .q_heads = 4, .kv_heads = 2, .open = 3),
        CASE(.length = 60, .causal = 1, .query = HT_QUERY_FIRST, .mask = MASK_KEYS),
        CASE(.length = 50, .kind = HT_FULL, .causal = 1), CASE(.length = 50, .kind = HT_LOCAL)};
    for (size_t i = 0; i < COUNT(met) && !dtype_is_half(dtype); i++) {
        test_case c = met[i];
        if (c.open) c.query = HT_QUERY_FINE;
        c.dtype = dtype, c.seed = 950 + (int64_t)i;
        harness_add("pairs", pairs, &c);
        if (c.open) c.causal = 1, harness_add("pairs", pairs, &c);
    }
    test_case c = CASE(.length = 8192, .block = 16, .q_heads = 4, .open = 8, .dtype = dtype);
    c.head_dim = c.value_dim = 64;
    harness_add("sizes", sizes, &c);
    c.open = 64;
    harness_add("sizes", sizes, &c);
}

/* What holds however close the scores are. */
static void add_any(ht_dtype dtype) {
    static const test_case with[] = {CASE(.length = 530, .block = 16, .open = 8, .head_dim = 64),
                                     CASE(.length = 200, .block = 2, .open = 1, .leaf = 1),
                                     CASE(.length = 333, .open = 3, .leaf = 4, .peek = -1)};
    case_list missing = {0}, later = {0};
    for (size_t i = 0; i < COUNT(with); i++) {
        test_case c = with[i];
        c.query = HT_QUERY_FINE, c.dtype = dtype, c.gap = -1;
        c.value_dim = c.head_dim, c.seed = 900 + (int64_t)i;
        cases_add(&missing, c);
        c.causal = 1;
        cases_add(&missing, c);
        c.q_heads = 2, c.kv_heads = 1;
        cases_add(&later, c);
    }
    harness_add_all("NaN is NaN", nan_is_nan, &missing);
    harness_add_all("later rows", later_rows, &later);
    cases_free(&missing), cases_free(&later);
    add_met(dtype);
}

static void list(void) {
    test_case any = CASE(.open = 8);
    harness_add("families", families, &any);
    static const ht_dtype types[] = {HT_F32, HT_BF16, HT_F16, HT_F64};
    for (size_t t = 0; t < COUNT(types); t++) {
        case_list cases = {0};
        ht_dtype type = types[t];
        if (!harness_supports(type) || (dtype_is_half(type) && !env.cuda)) continue;
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
        add_any(type);
    }
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
