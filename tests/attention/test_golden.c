/*
 * The authors' own outputs (golden/README.md). Allowed: what their float32 interpolation costs,
 * 3e-7 of max(1, |z|), plus the tolerance rule.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "npy.h"

/* GOLDEN_DIR/L16_r2_h1_d4_c_b/z.npy; way: f or c, then n or b */
static npy load(const test_case *c, const char *what) {
    char path[1024];
    npy file;
    snprintf(path, sizeof path, "%s/L%d_r%d_h%d_d%d_%c_%c/%s.npy", GOLDEN_DIR, (int)c->length,
             (int)c->block, (int)c->q_heads, (int)c->head_dim, c->causal ? 'c' : 'f',
             c->bias ? 'b' : 'n', what);
    if (!npy_read(&file, path)) harness_fail(c, "cannot read %s", path);
    return file;
}

static double *take(const test_case *c, const char *what, int64_t count) {
    npy file = load(c, what);
    if (file.count != count) harness_fail(c, "%s has %d numbers", what, (int)file.count);
    return file.data;
}

static void golden(void **state) {
    const test_case *c = *state;
    problem p;
    reference r;
    problem_make(&p, c);
    p.q = take(c, "q", problem_q_size(&p));
    p.k = take(c, "k", problem_k_size(&p));
    p.v = take(c, "v", problem_v_size(&p));
    if (c->bias) p.bias = take(c, "bias", problem_bias_size(&p));
    double *z = take(c, "z", problem_out_size(&p));
    outcome got = run_problem(env.ctx, &p);
    reference_make(&r, &p, 0);
    for (int64_t i = 0; i < problem_out_size(&p); i++) {
        double allowed = 3e-7 * fmax(1, fabs(z[i])) + r.allowed[PART_OUT];
        if (!(fabs(got.out[i] - z[i]) <= allowed))
            harness_fail(c, "out[%d] is %.9g, the authors' code says %.9g: allowed %.3g", (int)i,
                         got.out[i], z[i], allowed);
    }
}

static void list(void) {
    static const test_case sizes[] = {
        CASE(.length = 16, .block = 2, .head_dim = 4, .value_dim = 4),
        CASE(.length = 64, .block = 4, .q_heads = 2, .kv_heads = 2),
        CASE(.length = 256, .block = 16, .head_dim = 32, .value_dim = 32),
    };
    case_list cases = {0};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        for (int way = 0; way < 4; way++) {
            test_case c = sizes[i];
            c.batch = 2, c.causal = way / 2, c.bias = way % 2;
            c.query = c.causal ? HT_QUERY_FIRST : HT_QUERY_MEAN;
            cases_add(&cases, c);
        }
    }
    for (size_t i = 0; i < cases.count; i++) harness_add("golden", golden, &cases.at[i]);
    cases_free(&cases);
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
