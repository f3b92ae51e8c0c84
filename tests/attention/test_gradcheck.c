/*
 * The library's gradients against finite differences of the library's own forward, in float64:
 * no oracle gradient takes part, so an error they shared would show. Every entry where the
 * problem is small, random directions where it is big.
 */
#include <math.h>
#include <string.h>

#include "finite.h"
#include "harness.h"

/* forward only, over and over, as the inputs move */
typedef struct loss_of {
    session s;
    problem *p;
    outcome o;
} loss_of;

static void upload(loss_of *l) {
    session *s = &l->s;
    view_write(&s->q, l->p, l->p->q), view_write(&s->k, l->p, l->p->k);
    view_write(&s->v, l->p, l->p->v);
    slab_upload(s->q.in), slab_upload(s->k.in), slab_upload(s->v.in);
    for (int64_t i = 0; i < problem_bias_size(l->p) && s->bias; i++)
        dtype_store(HT_F64, s->bias->image + (size_t)i * sizeof(double), l->p->bias[i]);
    if (s->bias) slab_upload(s->bias);
}

static double loss(void *user) {
    loss_of *l = user;
    double sum = 0;
    upload(l);
    session_forward(&l->s);
    session_read(&l->s, &l->o);
    for (int64_t i = 0; i < problem_lse_size(l->p); i++) {
        if (l->o.lse[i] == -INFINITY) continue;
        if (l->p->dlse) sum += l->p->dlse[i] * l->o.lse[i];
        for (int64_t c = i * l->p->c.value_dim; c < (i + 1) * l->p->c.value_dim; c++)
            sum += l->p->dout[c] * l->o.out[c];
    }
    return sum;
}

/* how far off the loss may be: every output by what the tolerance rule allows it */
static double loss_noise(const problem *p) {
    reference r;
    double noise = 0;
    reference_make(&r, p, 0);
    for (int64_t i = 0; i < problem_out_size(p); i++)
        if (!isnan(p->dout[i])) noise += fabs(p->dout[i]) * r.allowed[PART_OUT];
    for (int64_t i = 0; i < problem_lse_size(p) && p->dlse; i++)
        if (!isnan(p->dlse[i])) noise += fabs(p->dlse[i]) * r.allowed[PART_LSE];
    return noise;
}

static loss_of begin(problem *p, outcome *grads) {
    loss_of l = {.p = p, .o = outcome_make(p)};
    if (session_open(&l.s, env.ctx, p) == HT_UNSUPPORTED) skip();
    session_forward(&l.s);
    session_backward(&l.s);
    *grads = outcome_make(p);
    session_read(&l.s, grads);
    return l;
}

static void compare(const problem *p, int part, int64_t at, double got, slope s) {
    if (!(fabs(got - s.value) <= s.error))
        harness_fail(&p->c, "%s[%d]: backward says %.15g, finite differences %.15g +- %.2g",
                     part_names[part], (int)at, got, s.value, s.error);
}

static void every_entry(void **state) {
    problem p;
    outcome grads;
    problem_make(&p, *state);
    loss_of l = begin(&p, &grads);
    double noise = loss_noise(&p), *inputs[] = {p.q, p.k, p.v, p.bias};
    for (int part = PART_DQ; part < PART_COUNT; part++) {
        double *x = inputs[part - PART_DQ], *g = outcome_part(&grads, part);
        for (int64_t i = 0; x && i < problem_part_size(&p, part); i++) {
            if (isnan(x[i])) {
                if (g[i] != 0)
                    harness_fail(&p.c, "masked %s[%d] is %g", part_names[part], (int)i, g[i]);
                continue;
            }
            int64_t n = problem_part_size(&p, part);
            compare(&p, part, i, g[i], finite_slope(x, n, NULL, i, loss, &l, noise));
        }
    }
}

static void random_directions(void **state) {
    problem p;
    outcome grads;
    uint64_t random = 5;
    problem_make(&p, *state);
    loss_of l = begin(&p, &grads);
    double noise = loss_noise(&p), *inputs[] = {p.q, p.k, p.v, p.bias};
    for (int part = PART_DQ; part < PART_COUNT; part++) {
        double *x = inputs[part - PART_DQ], *g = outcome_part(&grads, part);
        int64_t n = problem_part_size(&p, part);
        double *direction = pool_alloc((size_t)n * sizeof *direction);
        for (int repeat = 0; x && repeat < 3; repeat++) {
            double along = 0, length = 0;
            for (int64_t i = 0; i < n; i++) {
                direction[i] = isnan(x[i]) ? 0 : test_random_normal(&random);
                length += direction[i] * direction[i];
            }
            for (int64_t i = 0; i < n; i++) {
                direction[i] /= sqrt(length);
                along += g[i] * direction[i];
            }
            compare(&p, part, repeat, along, finite_slope(x, n, direction, 0, loss, &l, noise));
        }
    }
}

/* everything that changes a derivative, on top of each way to attend */
static const test_case extras[] = {
    CASE(.length = 13),
    CASE(.length = 13, .bias = 1, .dlse = 1),
    CASE(.length = 12, .rotary = 10, .scale = 700),
    CASE(.length = 14, .q_heads = 4, .kv_heads = 2, .bias = 1),
    CASE(.length = 15, .mask = MASK_BOTH, .dlse = 1),
    CASE(.length = 16, .mask = MASK_LEADING, .bias = 1),
    CASE(.length = 11, .batch = 3, .packed = 2, .rotary = 100),
    CASE(.length = 17, .dropout = 30, .dlse = 1),
    CASE(.length = 12, .dropout = 60, .bias = 1, .mask = MASK_KEYS, .q_heads = 2),
    CASE(.length = 13, .cross = 1, .bias = 1),
    CASE(.length = 15, .layout = LAYOUT_FUSED, .q_heads = 2),
    CASE(.length = 15, .layout = LAYOUT_PADDED, .spread = 3),
};

/* Opening: the choice is a constant, so q and k are such that no step changes it. */
static void add_open(case_list *small) {
    static const test_case with[] = {
        CASE(.length = 13, .open = 1, .leaf = 1),
        CASE(.length = 16, .open = 2, .dlse = 1),
        CASE(.length = 14, .open = 1, .bias = 1, .rotary = 10),
        CASE(.length = 12, .open = 9),
        CASE(.length = 15, .open = 1, .leaf = 2, .mask = MASK_BOTH, .dropout = 30),
        CASE(.length = 17, .open = 1, .peek = 2, .value_dim = 4)};
    for (size_t i = 0; i < 2 * COUNT(with); i++) {
        test_case c = with[i / 2];
        c.causal = (int64_t)i % 2, c.query = HT_QUERY_FINE, c.dtype = HT_F64, c.block = 2;
        c.head_dim = 2, c.gap = 20, c.seed = 300 + (int64_t)i;
        cases_add(small, c);
    }
}

static void list(void) {
    case_list small = {0}, big = {0};
    if (!harness_supports(HT_F64)) return;
    for (size_t e = 0; e < COUNT(extras); e++) {
        for (size_t w = 0; w < case_way_count; w++) {
            test_case c = extras[e];
            c.kind = case_ways[w].kind, c.query = case_ways[w].query;
            c.causal = case_ways[w].causal;
            if (c.causal && c.cross) continue;
            c.dtype = HT_F64, c.block = 2, c.head_dim = 2, c.value_dim = 3;
            c.seed = (int64_t)(e * case_way_count + w);
            cases_add(&small, c);
            c.length *= 7, c.block = 4, c.head_dim = 6, c.value_dim = 5;
            cases_add(&big, c);
        }
    }
    add_open(&small);
    harness_add_all("every entry", every_entry, &small);
    harness_add_all("directions", random_directions, &big);
    cases_free(&small), cases_free(&big);
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
