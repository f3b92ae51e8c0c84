/*
 * The tests' own ground: the oracle against numbers worked out by hand, its gradients against
 * finite differences, the generator against the published vectors, number formats, case texts.
 * Needs no device.
 */
#include <math.h>
#include <string.h>

#include "finite.h"
#include "harness.h"

static void close_to(double a, double b) { assert_true(fabs(a - b) <= 1e-13 * fmax(1, fabs(b))); }

/* ---- by hand ----------------------------------------------------------------------------- */

/* one head, head_dim 1, six rows, block 2: two levels. Rows 0 to 3 have k = 0, so their exact
 * scores are 0; cluster 2 of level 1 is rows 4 and 5 with mean key ln 2. */
static const int32_t six[2] = {0, 6};
static const double q6[6] = {1, 3, 0, 0, 0, 0};
static const double v6[6] = {1, 2, 3, 4, 5, 6};
static double k6[6];

static oracle_problem six_rows(ht_query query) {
    k6[5] = 2 * log(2);
    return (oracle_problem){.query = query,
                            .sequences = 1,
                            .cu_seqlens = six,
                            .q_heads = 1,
                            .kv_heads = 1,
                            .head_dim = 1,
                            .value_dim = 1,
                            .block = 2,
                            .scale = 1,
                            .q = q6,
                            .k = k6,
                            .v = v6};
}

static void run_six(double *z, double *lse, const oracle_problem *p) {
    oracle_result r = {.out = z, .lse = lse};
    oracle_run(&r, p, ORACLE_F64, ORACLE_AS_IS);
}

static void modes_by_hand(void **state) {
    (void)state;
    double z[6], lse[6];
    oracle_problem p = six_rows(HT_QUERY_MEAN);
    /* mean of q0, q1 is 2: exp(2 ln 2) = 4, two rows: (10 + 4*11) / (4 + 4*2) */
    run_six(z, lse, &p);
    close_to(z[0], 54.0 / 12), close_to(z[1], 54.0 / 12), close_to(lse[0], log(12));
    close_to(z[4], 3.5), close_to(lse[4], log(6)); /* a zero query sees all six alike */
    p = six_rows(HT_QUERY_FIRST);
    run_six(z, lse, &p);
    close_to(z[0], 32.0 / 8), close_to(z[1], 32.0 / 8), close_to(lse[1], log(8));
    p = six_rows(HT_QUERY_FINE);
    run_six(z, lse, &p);
    close_to(z[0], 32.0 / 8), close_to(z[1], 98.0 / 20), close_to(lse[1], log(20));
    p.causal = 1;
    run_six(z, lse, &p);
    close_to(z[0], 1), close_to(z[1], 1.5), close_to(lse[0], 0), close_to(z[5], 3.5);
}

static void masks_by_hand(void **state) {
    (void)state;
    double z[6], lse[6];
    const uint8_t keys[6] = {1, 1, 1, 1, 1, 0}, queries[6] = {0, 1, 1, 1, 1, 1};
    oracle_problem p = six_rows(HT_QUERY_MEAN);
    p.key_mask = keys; /* cluster 2 is row 4 alone, key 0 */
    run_six(z, lse, &p);
    close_to(z[0], 3), close_to(lse[0], log(5));
    p.key_mask = NULL, p.query_mask = queries; /* cluster 0's query is q1 = 3: exp(3 ln 2) = 8 */
    run_six(z, lse, &p);
    assert_true(z[0] == 0 && lse[0] == -INFINITY);
    close_to(z[1], 98.0 / 20);
    p.query = HT_QUERY_FIRST;
    run_six(z, lse, &p);
    close_to(z[1], 98.0 / 20);
    const uint8_t none[6] = {0};
    p.key_mask = none;
    run_six(z, lse, &p);
    assert_true(z[3] == 0 && lse[3] == -INFINITY);
}

static void bias_by_hand(void **state) {
    (void)state;
    double z[6], lse[6], bias[7] = {0}, zero[6] = {0};
    oracle_problem p = six_rows(HT_QUERY_MEAN);
    p.q = zero, p.bias = bias;
    bias[5] = log(3); /* distance 2: row 0 to row 2 at level 0, to cluster 2 at level 1 */
    run_six(z, lse, &p);
    close_to(z[0], (1 + 2 + 9 + 4 + 33) / 12.0);
    bias[5] = 0, bias[6] = log(2);
    p.kind = HT_FULL; /* distances 3, 4, 5 share the last entry */
    run_six(z, lse, &p);
    close_to(z[0], 36.0 / 9);
    p.kind = HT_LOCAL, bias[6] = 0;
    run_six(z, lse, &p);
    close_to(z[0], 2.5), close_to(z[2], 3.5), close_to(z[4], 4.5);
}

static void rotary_by_hand(void **state) {
    (void)state;
    static const int32_t two[2] = {0, 2};
    const double x[4] = {1, 0, 1, 0}, v[2] = {1, 0};
    double z[2], lse[2];
    oracle_problem p = six_rows(HT_QUERY_FINE);
    p.cu_seqlens = two, p.head_dim = 2, p.q = x, p.k = x, p.v = v, p.rotary = 100;
    run_six(z, lse, &p); /* rows one apart are turned by one radian */
    close_to(lse[0], log(exp(1) + exp(cos(1))));
    close_to(z[1], exp(cos(1)) / (exp(1) + exp(cos(1))));
}

/* Keys of eight or sixteen rows, block 2, causal, all queries 1; the last row's output. */
static double opened_by_hand_of(const double *k, int64_t rows, int64_t leaf, int64_t peek,
                                double *lse) {
    const double q[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const int32_t cu[2] = {0, (int32_t)rows};
    double v[16], z[16], all[16];
    for (int i = 0; i < 16; i++) v[i] = i + 1;
    oracle_problem p = six_rows(HT_QUERY_FINE);
    p.cu_seqlens = cu, p.q = q, p.k = k, p.v = v, p.causal = 1;
    p.open = 1, p.leaf = leaf, p.peek = peek;
    run_six(z, all, &p);
    *lse = all[rows - 1];
    return z[rows - 1];
}

/* One cluster a level. Eight rows: the last one meets rows 4 to 7, and the pairs 0-1 (logits ln 4
 * and 0, mean ln 2) and 2-3 (mean ln 3). Sixteen: rows 12 to 15 and pairs 8-9 and 10-11 at level 1,
 * the fours 0-3 and 4-7 at level 2. */
static void opening_by_hand(void **state) {
    (void)state;
    double lse, eight[8] = {log(4), 0, log(3), log(3)}, sixteen[16] = {0};
    /* by the mean the second pair is opened: 2 * 2 * 1.5 + 3 * 3 + 3 * 4 + 26 over 4 + 6 + 4 */
    close_to(opened_by_hand_of(eight, 8, 8, 0, &lse), 53.0 / 14);
    /* by its larger logit the first: 4 * 1 + 2 + 6 * 3.5 + 26 over 4 + 1 + 6 + 4 */
    close_to(opened_by_hand_of(eight, 8, 8, 1, &lse), 53.0 / 15), close_to(lse, log(15));
    eight[2] = log(4), eight[3] = 0; /* alike: the first one; 4 + 2 + 4 * 3.5 + 26 over 13 */
    close_to(opened_by_hand_of(eight, 8, 8, 1, &lse), 46.0 / 13);
    /* A leaf of four: rows 4 to 7 with logits ln 16, 0, 0, 0, and of the pairs the first. The other
     * four has logit 0 and a mean of 2.5: 16*5 + 6 + 7 + 8 + 4*2.5 + 9 + 10 + 2*11.5 + 58 */
    sixteen[4] = log(16);
    close_to(opened_by_hand_of(sixteen, 16, 4, 2, &lse), 211.0 / 31), close_to(lse, log(31));
    /* a smaller one: the pair 4-5 beside 6-7, 8-9 and 10-11, and it alone is opened */
    close_to(opened_by_hand_of(sixteen, 16, 2, 2, &lse), 211.0 / 31);
    sixteen[7] = log(256); /* now 6-7 is; 4-5 has the mean ln 4: 4*2*5.5 + 7 + 256*8 + 110 */
    close_to(opened_by_hand_of(sixteen, 16, 2, 2, &lse), 2209.0 / 277);
    close_to(lse, log(277));
}

/* a gradient by hand: two rows, exact; z0 = (v0 + 2 v1) / 3 */
static void gradient_by_hand(void **state) {
    (void)state;
    static const int32_t two[2] = {0, 2};
    const double q[2] = {1, 2}, k[2] = {0, log(2)}, v[2] = {3, 6}, dout[2] = {1, 0};
    const double dlse[2] = {0, 5};
    double z[2], lse[2], dq[2], dk[2], dv[2], dbias[7];
    oracle_problem p = {.query = HT_QUERY_FINE,
                        .sequences = 1,
                        .cu_seqlens = two,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .head_dim = 1,
                        .value_dim = 1,
                        .block = 2,
                        .scale = 1,
                        .q = q,
                        .k = k,
                        .v = v,
                        .dout = dout,
                        .dlse = dlse};
    oracle_result r = {z, lse, dq, dk, dv, dbias};
    oracle_run(&r, &p, ORACLE_F64, ORACLE_AS_IS);
    close_to(z[0], 5), close_to(z[1], 5.4), close_to(lse[0], log(3)), close_to(lse[1], log(5));
    close_to(dv[0], 1.0 / 3), close_to(dv[1], 2.0 / 3);
    close_to(dq[0], 2.0 / 3 * log(2));     /* ds = (-2/3, 2/3) */
    close_to(dq[1], 5 * 4.0 / 5 * log(2)); /* from dlse: ds = 5 * (1/5, 4/5) */
    close_to(dk[0], -2.0 / 3 + 2), close_to(dk[1], 2.0 / 3 + 8);
    close_to(dbias[3], -2.0 / 3 + 4), close_to(dbias[4], 2.0 / 3), close_to(dbias[2], 1);
}

/* ---- the generator and dropout ----------------------------------------------------------- */

/* Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result */
static void philox_vectors(void **state) {
    (void)state;
    static const uint32_t known[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        uint32_t words[4];
        oracle_philox(words, known[i], known[i] + 4);
        assert_memory_equal(words, known[i] + 6, sizeof words);
    }
}

/* the share of dropped weights is p, and each part of the counter matters */
static void dropout_share(void **state) {
    (void)state;
    const int n = 40000;
    oracle_problem p = {.q_heads = 4, .dropout = 0.3, .seed = 42, .offset = 7}, other = p;
    int dropped = 0, changed = 0;
    other.offset = 8;
    for (int i = 0; i < n; i++) {
        int kept = oracle_kept(&p, 2, i % 4, 1, i / 4, i % 13);
        dropped += !kept;
        changed += kept != oracle_kept(&other, 2, i % 4, 1, i / 4, i % 13);
    }
    double deviation = sqrt(n * 0.3 * 0.7);
    assert_true(fabs(dropped - 0.3 * n) < 5 * deviation);
    assert_true(fabs(changed - 2 * 0.3 * 0.7 * n) < 5 * deviation);
}

/* two rows, zero queries: weights are 1/2, times 2 or 0 */
static void dropout_by_hand(void **state) {
    (void)state;
    static const int32_t two[2] = {0, 2};
    const double zero[2] = {0}, v[2] = {3, 6};
    double z[2], lse[2];
    oracle_problem p = {.query = HT_QUERY_FIRST,
                        .sequences = 1,
                        .cu_seqlens = two,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .head_dim = 1,
                        .value_dim = 1,
                        .block = 2,
                        .dropout = 0.5,
                        .seed = 0x123456789ABCDEFu,
                        .offset = 3,
                        .q = zero,
                        .k = zero,
                        .v = v};
    oracle_result r = {.out = z, .lse = lse};
    oracle_run(&r, &p, ORACLE_F64, ORACLE_AS_IS);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t words[4], counter[4] = {3, 0, i, 0}, key[2] = {0x89ABCDEF, 0x1234567};
        oracle_philox(words, counter, key);
        close_to(z[i], (words[0] >> 31) * 3.0 + (words[1] >> 31) * 6.0);
        close_to(lse[i], log(2)); /* the denominator stays */
    }
}

/* ---- gradients --------------------------------------------------------------------------- */

typedef struct loss_of {
    problem *p;
    outcome o;
} loss_of;

static double loss(void *user) {
    loss_of *l = user;
    oracle_problem same = problem_oracle(l->p);
    double sum = 0;
    same.dout = NULL;
    oracle_run(&l->o, &same, ORACLE_F80, ORACLE_AS_IS);
    for (int64_t i = 0; i < problem_lse_size(l->p); i++) {
        if (l->o.lse[i] == -INFINITY) continue;
        if (l->p->dlse) sum += l->p->dlse[i] * l->o.lse[i];
        for (int64_t c = i * l->p->c.value_dim; c < (i + 1) * l->p->c.value_dim; c++)
            sum += l->p->dout[c] * l->o.out[c];
    }
    return sum;
}

static void oracle_gradients(void **state) {
    problem p;
    problem_make(&p, *state);
    loss_of l = {&p, outcome_make(&p)};
    outcome grads = outcome_make(&p);
    oracle_problem same = problem_oracle(&p);
    oracle_run(&grads, &same, ORACLE_F80, ORACLE_AS_IS);
    double *inputs[] = {p.q, p.k, p.v, p.bias};
    for (int part = PART_DQ; part < PART_COUNT; part++) {
        double *x = inputs[part - PART_DQ], *g = outcome_part(&grads, part);
        for (int64_t i = 0; x && i < problem_part_size(&p, part); i++) {
            if (isnan(x[i])) {
                assert_true(g[i] == 0); /* masked */
                continue;
            }
            /* the loss is a sum of numbers stored as double: a few eps each */
            double noise = 8 * 0x1p-52 * (double)problem_out_size(&p);
            slope s = finite_slope(x, problem_part_size(&p, part), NULL, i, loss, &l, noise);
            if (!(fabs(s.value - g[i]) <= s.error))
                harness_fail(&p.c, "%s[%d] is %.15g, finite differences say %.15g +- %.2g",
                             part_names[part], (int)i, g[i], s.value, s.error);
        }
    }
}

/* every way to write the plain algorithm is the same algorithm */
static void forms_agree(void **state) {
    problem p;
    problem_make(&p, *state);
    outcome want = outcome_make(&p), got = outcome_make(&p);
    oracle_problem same = problem_oracle(&p);
    oracle_run(&want, &same, ORACLE_F64, ORACLE_AS_IS);
    for (int form = 1; form < ORACLE_FORMS; form++) {
        oracle_run(&got, &same, ORACLE_F64, (oracle_form)form);
        for (int part = 0; part < PART_COUNT; part++) {
            const double *a = outcome_part(&want, part), *b = outcome_part(&got, part);
            for (int64_t i = 0; i < problem_part_size(&p, part); i++)
                if (a[i] != b[i] && !(fabs(a[i] - b[i]) <= 1e-12))
                    harness_fail(&p.c, "form %d: %s[%d] is %.15g, not %.15g", form,
                                 part_names[part], (int)i, b[i], a[i]);
        }
    }
}

/* ---- helpers of the tests ---------------------------------------------------------------- */

static void number_formats(void **state) {
    (void)state;
    assert_true(dtype_round(HT_BF16, 1.0) == 1.0);
    assert_true(dtype_round(HT_BF16, 1.0 + 0x1p-8) == 1.0); /* a tie: to even */
    assert_true(dtype_round(HT_BF16, 1.0 + 0x1p-7 + 0x1p-8) == 1.0 + 0x1p-6);
    assert_true(dtype_round(HT_BF16, 1.0 + 0x1p-8 + 0x1p-20) == 1.0 + 0x1p-7);
    assert_true(dtype_round(HT_BF16, -INFINITY) == -INFINITY);
    assert_true(dtype_round(HT_BF16, 3.4e38) == INFINITY);
    assert_true(isnan(dtype_round(HT_BF16, NAN)));
    assert_true(dtype_round(HT_F16, 1.0 + 0x1p-11) == 1.0);
    assert_true(dtype_round(HT_F16, 1.0 + 0x1p-10 + 0x1p-11) == 1.0 + 0x1p-9);
    assert_true(dtype_round(HT_F16, 2.0 - 0x1p-12) == 2.0);
    assert_true(dtype_round(HT_F16, -0x1p-24 * 1.5) == -0x1p-23); /* subnormal, a tie */
    assert_true(dtype_round(HT_F16, 0x1p-14 - 0x1p-26) == 0x1p-14);
    assert_true(dtype_round(HT_F16, 65519) == 65504 && dtype_round(HT_F16, 65520) == INFINITY);
    assert_true(isnan(dtype_round(HT_F16, NAN)));
    assert_true(dtype_round(HT_F32, 0.1) == (double)0.1f && dtype_round(HT_F64, 0.1) == 0.1);
}

static void case_texts(void **state) {
    (void)state;
    char text[512], again[512];
    test_case a = CASE(.query = 2, .length = 123, .scale = -400, .seed = 99), b;
    case_print(text, sizeof text, &a);
    assert_string_equal(text, "kind=0,query=2,length=123,scale=-400,seed=99");
    assert_true(case_parse(&b, text));
    case_print(again, sizeof again, &b);
    assert_string_equal(text, again);
    assert_false(case_parse(&b, "kind=0,no_such=1"));
    assert_false(case_parse(&b, "kind"));
}

int main(void) {
    env = (test_env){.program = "test_oracle", .device = "none"};
    harness_add("modes by hand", modes_by_hand, NULL);
    harness_add("masks by hand", masks_by_hand, NULL);
    harness_add("bias by hand", bias_by_hand, NULL);
    harness_add("rotary by hand", rotary_by_hand, NULL);
    harness_add("opening by hand", opening_by_hand, NULL);
    harness_add("gradient by hand", gradient_by_hand, NULL);
    harness_add("philox vectors", philox_vectors, NULL);
    harness_add("dropout share", dropout_share, NULL);
    harness_add("dropout by hand", dropout_by_hand, NULL);
    harness_add("number formats", number_formats, NULL);
    harness_add("case texts", case_texts, NULL);
    case_list cases = {0};
    for (size_t w = 0; w < case_way_count; w++) {
        test_case c = case_ways[w];
        c.dtype = HT_F64, c.block = 2, c.length = 11, c.head_dim = 2, c.value_dim = 2;
        c.bias = 1, c.dlse = 1;
        cases_add(&cases, c);
        c.q_heads = 2, c.rotary = 10, c.mask = MASK_BOTH, c.dropout = 25, c.batch = 2, c.packed = 3;
        cases_add(&cases, c);
    }
    harness_add_all("gradients", oracle_gradients, &cases);
    harness_add_all("forms", forms_agree, &cases);
    cases_free(&cases);
    return harness_run();
}
