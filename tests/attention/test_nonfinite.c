/*
 * NaN and infinities inside q, k or v: they may spread to the rows that see them and to the rows
 * of the same tile at level 0, and nowhere else, to the bit. Nothing hangs or crashes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

enum { IN_Q, IN_K, IN_V };

/* may row i of sequence b, head h, feel a change in row j (of the same sequence) of tensor `in`? */
static int may_feel(const problem *p, const oracle_problem *same, int in, int64_t i, int64_t j,
                    int64_t levels) {
    int level = oracle_level(same, i, j);
    if (i / p->c.block == j / p->c.block || llabs(i - j) < TILE_ROWS) return 1;
    if (in != IN_Q) return level >= 0 && !(p->c.causal && j > i);
    if (p->c.query == HT_QUERY_FINE || p->c.kind != HT_HIERARCHICAL) return i == j;
    for (int l = 1; l < levels; l++) /* a coarse query serves the rows of its cluster */
        if (i >> l == j >> l && (p->c.query == HT_QUERY_MEAN || j == j >> l << l)) return 1;
    return 0;
}

/* the tensor, its row and its head that are spoiled */
typedef struct spot {
    int in;
    int64_t sequence, row, head; /* row: in the sequence; head: of that tensor */
    double value;
} spot;

static void spoil(problem *p, const spot *s) {
    const test_case *c = &p->c;
    int64_t heads = s->in == IN_Q ? c->q_heads : c->kv_heads;
    int64_t dim = s->in == IN_V ? c->value_dim : c->head_dim;
    double *x = s->in == IN_Q ? p->q : s->in == IN_K ? p->k : p->v;
    x[((p->cu[s->sequence] + s->row) * heads + s->head) * dim + s->row % dim] = s->value;
}

/* outputs outside of what the spot may touch keep their bits; returns how many those were */
static int64_t compare(const problem *p, const outcome *a, const outcome *b, const spot *s) {
    oracle_problem same = problem_oracle(p);
    int64_t group = p->c.q_heads / p->c.kv_heads, kept = 0, dv = p->c.value_dim;
    for (int64_t sequence = 0; sequence < p->c.batch; sequence++) {
        int64_t levels = oracle_levels(&same, p->cu[sequence + 1] - p->cu[sequence]);
        for (int64_t row = p->cu[sequence]; row < p->cu[sequence + 1]; row++) {
            for (int64_t h = 0; h < p->c.q_heads; h++) {
                int head = s->in == IN_Q ? h == s->head : h / group == s->head;
                if (sequence == s->sequence && head &&
                    may_feel(p, &same, s->in, row - p->cu[sequence], s->row, levels))
                    continue;
                int64_t at = row * p->c.q_heads + h;
                if (memcmp(a->out + at * dv, b->out + at * dv, (size_t)dv * sizeof(double)) != 0 ||
                    memcmp(a->lse + at, b->lse + at, sizeof(double)) != 0)
                    harness_fail(&p->c,
                                 "%g in %c, sequence %d row %d head %d changes sequence %d "
                                 "row %d head %d",
                                 s->value, "qkv"[s->in], (int)s -> sequence, (int)s -> row,
                                 (int)s -> head, (int)sequence, (int)(row - p->cu[sequence]),
                                 (int)h);
                kept++;
            }
        }
    }
    return kept;
}

/* gradients of other sequences keep their bits too */
static void compare_gradients(const problem *p, const outcome *a, const outcome *b, const spot *s) {
    static const int parts[] = {PART_DQ, PART_DK, PART_DV};
    for (size_t t = 0; t < COUNT(parts); t++) {
        int64_t width = problem_part_size(p, parts[t]) / p->rows;
        for (int64_t sequence = 0; sequence < p->c.batch; sequence++) {
            if (sequence == s->sequence) continue;
            int64_t at = p->cu[sequence] * width, n = p->cu[sequence + 1] * width - at;
            if (memcmp(outcome_part(a, parts[t]) + at, outcome_part(b, parts[t]) + at,
                       (size_t)n * sizeof(double)) != 0)
                harness_fail(&p->c, "%g in sequence %d changes %s of sequence %d", s->value,
                             (int)s->sequence, part_names[parts[t]], (int)sequence);
        }
    }
}

/* NaN in row j's own key or value is not lost: row j always sees itself */
static void is_seen(const problem *p, const outcome *got, const spot *s) {
    const test_case *c = &p->c;
    int64_t h = s->head * (c->q_heads / c->kv_heads);
    int64_t at = ((p->cu[s->sequence] + s->row) * c->q_heads + h) * c->value_dim;
    if (s->in == IN_V) at += s->row % c->value_dim;
    if (s->in != IN_Q && isnan(s->value) && !isnan(got->out[at]))
        harness_fail(c, "NaN in %c row %d was lost", "qkv"[s->in], (int)s -> row);
}

static void spreading(void **state) {
    static const double values[] = {NAN, INFINITY, -INFINITY, 3e38};
    const test_case *c = *state;
    problem p;
    int64_t kept = 0;
    uint64_t random = (uint64_t)c->seed;
    problem_make(&p, c);
    outcome calm = run_problem(env.ctx, &p);
    for (int i = 0; i < 24; i++) {
        problem hurt;
        spot s = {.in = i % 3, .value = values[i / 3 % 4]};
        s.sequence = c->batch - 1 - i % 2 * (c->batch > 1);
        int64_t length = p.cu[s.sequence + 1] - p.cu[s.sequence];
        if (length == 0) continue;
        s.row = test_random_below(&random, length);
        s.head = test_random_below(&random, s.in == IN_Q ? c->q_heads : c->kv_heads);
        problem_make(&hurt, c);
        spoil(&hurt, &s);
        outcome got = run_problem(env.ctx, &hurt);
        kept += compare(&p, &calm, &got, &s);
        compare_gradients(&p, &calm, &got, &s);
        is_seen(&p, &got, &s);
    }
    assert_true(kept > 0); /* the test has looked at something */
}

/* everything NaN, everything infinite: ends, and keeps to its buffers */
static void everything(void **state) {
    static const double values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT(values); i++) {
        problem p;
        problem_make(&p, *state);
        for (int64_t n = 0; n < problem_q_size(&p); n++) p.q[n] = values[i];
        for (int64_t n = 0; n < problem_k_size(&p); n++) p.k[n] = values[(i + 1) % 3];
        for (int64_t n = 0; n < problem_v_size(&p); n++) p.v[n] = values[(i + 2) % 3];
        run_problem(env.ctx, &p);
    }
}

/* NaN in one slot of a cache leaves the others alone, and is gone after a reset */
static void slots_apart(void **state) {
    problem p, hurt;
    problem_make(&p, *state);
    problem_make(&hurt, *state);
    decoder calm = decoder_open(env.ctx, &p), d = decoder_open(env.ctx, &hurt);
    const int64_t all[2] = {p.c.length, p.c.length};
    decoder_feed(&calm, all);
    int64_t q = p.c.q_heads * p.c.length, kv = p.c.kv_heads * p.c.length;
    for (int64_t i = 0; i < q * p.c.head_dim; i++) hurt.q[i] = NAN; /* sequence 0 */
    for (int64_t i = 0; i < kv * p.c.head_dim; i++) hurt.k[i] = NAN;
    for (int64_t i = 0; i < kv * p.c.value_dim; i++) hurt.v[i] = NAN;
    decoder_feed(&d, all);
    int64_t at = q * p.c.value_dim;
    assert_true(isnan(d.got.out[0]));
    assert_memory_equal(d.got.out + at, calm.got.out + at, (size_t)at * sizeof(double));
    harness_ok(env.ctx, ht_cache_reset(d.cache, d.slot[0]), &p.c);
    d.p = &p, d.done[0] = 0;
    decoder_feed_one(&d, 0, p.c.length);
    check_same_bits(&p, &calm.got, &d.got, PARTS_FORWARD, "after NaN and reset");
}

static void list(void) {
    static const test_case with[] = {
        CASE(.length = 270, .q_heads = 4, .kv_heads = 2),
        CASE(.length = 200, .block = 16, .batch = 3, .packed = 2, .bias = 1, .q_heads = 2),
        CASE(.length = 333, .block = 2, .q_heads = 2, .kv_heads = 2, .rotary = 100),
        CASE(.length = 256, .block = 16, .batch = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 64,
             .value_dim = 64, .dtype = HT_BF16),
        CASE(.length = 300, .block = 32, .batch = 2, .q_heads = 2, .head_dim = 32, .value_dim = 32,
             .dtype = HT_BF16),
        CASE(.length = 300, .block = 16, .batch = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 64,
             .value_dim = 64, .dtype = HT_F16),
    };
    case_list cases = {0};
    for (size_t i = 0; i < COUNT(with); i++) {
        for (size_t w = 0; w < case_all_way_count; w++) {
            test_case c = with[i];
            c.kind = case_ways[w].kind, c.query = case_ways[w].query;
            c.causal = case_ways[w].causal, c.seed = (int64_t)(10 * i + w);
            c.open = case_ways[w].open, c.leaf = case_ways[w].leaf;
            if (c.open && dtype_is_half(c.dtype)) c.grid = 1, c.scale = 250;
            if (harness_supports(c.dtype)) cases_add(&cases, c);
        }
    }
    harness_add_all("spreading", spreading, &cases);
    harness_add_all("everything", everything, &cases);
    cases_free(&cases);
    for (size_t w = 0; w < case_all_way_count; w++) {
        test_case c = case_ways[w];
        c.length = 60, c.block = 2, c.batch = 2, c.q_heads = 2;
        if (c.causal) cases_add(&cases, c);
    }
    harness_add_all("slots apart", slots_apart, &cases);
    cases_free(&cases);
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
