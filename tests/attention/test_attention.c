/*
 * Forward and backward against the oracle: every option on every way to attend, lengths around
 * the edges of the hierarchy, dimensions, mixtures, a few long ones.
 */
#include "harness.h"

static void against_oracle(void **state) {
    problem p;
    reference r;
    problem_make(&p, *state);
    outcome got = run_problem(env.ctx, &p);
    reference_make(&r, &p, 1);
    reference_check(&r, &p, &got, PARTS_ALL);
}

static void list(void) {
    static const ht_dtype types[] = {HT_F32, HT_BF16, HT_F16, HT_F64};
    case_list cases = {0};
    for (size_t t = 0; t < COUNT(types); t++) {
        if (!harness_supports(types[t])) continue;
        cases_options(&cases, types[t]);
        if (dtype_is_half(types[t]) && !env.cuda) continue; /* float behind a conversion */
        cases_random(&cases, types[t], 1 + t, types[t] == HT_F64 ? 40 : 160);
        if (types[t] == HT_F64) continue; /* the long double oracle is slow */
        cases_lengths(&cases, types[t]);
        cases_dims(&cases, types[t]);
        cases_long(&cases, types[t]);
        if (!dtype_is_half(types[t])) continue;
        cases_tiles(&cases, types[t]);
        cases_plain(&cases, types[t]);
        cases_whole(&cases, types[t]);
        cases_wide(&cases, types[t]);
        cases_narrow(&cases, types[t]);
    }
    harness_add_all("oracle", against_oracle, &cases);
    cases_free(&cases);
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
