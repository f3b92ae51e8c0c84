/*
 * The exponential, seen from outside. A row that meets two keys with scores 0 and x, in units of
 * log 2, whose values are 0 and 1, comes out as 2^x / (1 + 2^x); from x = -40 down that is 2^x
 * itself, to the last bit of it.
 */
#include <math.h>
#include <string.h>

#include "harness.h"

enum { PAIRS = 1 << 16 };

/* x in (-126, 0]: evenly spread, or of any magnitude */
static float draw(uint64_t *random, int way) {
    double even = (double)test_random_below(random, (int64_t)1 << 40) * 0x1p-40;
    if (way == 0) return (float)(-126 * even);
    return -(float)ldexp(1 + even, (int)test_random_below(random, 25) - 19);
}

/* how far y is from the exact value, in units of the last place of a float */
static double ulps(double y, double exact) {
    int exponent;
    frexp(exact, &exponent);
    return fabs(y - exact) / ldexp(1, exponent - 24);
}

static double allowed(float x) {
    int vectors = strncmp(ht_context_device(env.ctx), "cpu:avx", 7) == 0;
    if (vectors) return x <= -40 ? 1.01 : 3.0;
    return 3 + fabs((double)x); /* scores in natural units carry their own rounding */
}

/* one call: out[i] of rows i, two of each sequence; q is 1 everywhere */
static void attend(float *out, const float *k, const float *v, const test_case *c) {
    ht_context *ctx = env.ctx;
    ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
    ht_attention_args args = HT_ATTENTION_ARGS_INIT;
    ht_attention *plan;
    void *at[4];
    size_t bytes = 2 * PAIRS * sizeof(float);
    desc.kind = HT_FULL, desc.q_heads = desc.head_dim = 1;
    desc.max_rows = 2 * PAIRS, desc.max_sequences = PAIRS, desc.max_length = 2;
    desc.scale = log(2);
    harness_ok(ctx, ht_attention_create(&plan, ctx, &desc), c);
    for (int64_t i = 0; i < 2 * PAIRS; i++) out[i] = 1; /* the queries, for a moment */
    const float *from[4] = {out, k, v, out};
    for (int i = 0; i < 4; i++) {
        harness_ok(ctx, ht_memory_alloc(ctx, &at[i], bytes), c);
        harness_ok(ctx, ht_memory_copy_in(ctx, at[i], from[i], bytes), c);
    }
    args.batch = PAIRS, args.length = 2;
    args.q.data = at[0], args.k.data = at[1], args.v.data = at[2], args.out.data = at[3];
    harness_ok(ctx, ht_attention_forward(plan, &args), c);
    harness_ok(ctx, ht_memory_copy_out(ctx, out, at[3], bytes), c);
    for (int i = 0; i < 4; i++) ht_memory_free(ctx, at[i]);
    ht_attention_destroy(plan);
}

static void exponential(void **state) {
    static float k[2 * PAIRS], v[2 * PAIRS], out[2 * PAIRS];
    const test_case *c = *state;
    uint64_t random = (uint64_t)c->seed;
    for (int64_t i = 0; i < 2 * PAIRS; i++) {
        k[i] = i % 2 ? draw(&random, (int)c->seed % 2) : 0;
        v[i] = (float)(i % 2);
    }
    attend(out, k, v, c);
    for (int64_t i = 1; i < 2 * PAIRS; i += 2) {
        double x = k[i], exact = exp2(x) / (1 + exp2(x)), off = ulps(out[i], exact);
        if (!(off <= allowed(k[i])))
            harness_fail(c, "2^%.9g / (1 + 2^%.9g) is %.9g, %.3f ulp off", x, x, out[i], off);
    }
}

static void list(void) {
    case_list cases = {0};
    for (int seed = 1; seed <= 6; seed++) cases_add(&cases, CASE(.seed = seed));
    for (size_t i = 0; i < cases.count; i++) harness_add("exponential", exponential, &cases.at[i]);
    cases_free(&cases);
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
