/*
 * The decode cache: rows appended in any portions give what the full pass gives; states saved,
 * loaded, forked and reset go on to the bit; damaged states are refused; failures move nothing.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

/* ---- any portions give the full pass ----------------------------------------------------- */

enum { AT_ONCE, TOKENS, ODD_CHUNKS, PREFILL_THEN_TOKENS, AT_RANDOM, SCHEDULES };

static int64_t left(const decoder *d, int64_t b) {
    return d->p->cu[b + 1] - d->p->cu[b] - d->done[b];
}

/* how many rows sequence b is fed in this step */
static int64_t next_count(const decoder *d, int schedule, int64_t b, uint64_t *random) {
    int64_t most = left(d, b), n = 1;
    if (most == 0) return schedule == AT_RANDOM && test_random_below(random, 8) == 0 ? EMPTY : 0;
    if (schedule == AT_ONCE) n = most;
    if (schedule == ODD_CHUNKS) n = 7;
    if (schedule == PREFILL_THEN_TOKENS && d->done[b] == 0) n = most * 2 / 3 + 1;
    if (schedule == AT_RANDOM) n = test_random_below(random, 3) ? test_random_below(random, 20) : 0;
    return n < most ? n : most;
}

static int all_fed(const decoder *d) {
    for (int64_t b = 0; b < d->p->c.batch; b++)
        if (left(d, b) > 0) return 0;
    return 1;
}

static void feed_all(decoder *d, int schedule) {
    uint64_t random = 3;
    int64_t *counts = pool_alloc((size_t)d->p->c.batch * sizeof *counts);
    while (!all_fed(d)) {
        for (int64_t b = 0; b < d->p->c.batch; b++) counts[b] = next_count(d, schedule, b, &random);
        decoder_feed(d, counts);
    }
}

static void portions(void **state) {
    problem p;
    reference r;
    problem_make(&p, *state);
    reference_make(&r, &p, 0);
    for (int schedule = 0; schedule < SCHEDULES; schedule++) {
        decoder d = decoder_open(env.ctx, &p);
        feed_all(&d, schedule);
        reference_check(&r, &p, &d.got, PARTS_FORWARD);
    }
}

/* many levels, one row at a time */
static void long_run(void **state) {
    problem p;
    reference r;
    problem_make(&p, *state);
    reference_make(&r, &p, 0);
    decoder d = decoder_open(env.ctx, &p);
    feed_all(&d, TOKENS);
    reference_check(&r, &p, &d.got, PARTS_FORWARD);
}

/* ---- to the bit -------------------------------------------------------------------------- */

/* one sequence of the problem, fed to `count` slots of a cache alike */
static outcome decode_whole(ht_context *ctx, const problem *p) {
    decoder d = decoder_open(ctx, p);
    feed_all(&d, ODD_CHUNKS);
    return d.got;
}

static void same_decoding(void **state) {
    problem p;
    problem_make(&p, *state);
    outcome first = decode_whole(env.ctx, &p), again = decode_whole(env.ctx, &p);
    check_same_bits(&p, &first, &again, PARTS_FORWARD, "decoded twice");
    for (int threads = 1; threads <= 5; threads += 2) {
        outcome other = decode_whole(harness_context(threads), &p);
        check_same_bits(&p, &first, &other, PARTS_FORWARD, "threads");
    }
    for (int layout = 1; layout < LAYOUT_COUNT; layout++) {
        p.c.layout = layout;
        outcome other = decode_whole(env.ctx, &p);
        check_same_bits(&p, &first, &other, PARTS_FORWARD, "strides");
    }
}

static void *save_slot(const decoder *d, int64_t slot, size_t *bytes) {
    harness_ok(d->ctx, ht_cache_save_bytes(d->cache, slot, bytes), &d->p->c);
    void *buffer = pool_alloc(*bytes);
    harness_ok(d->ctx, ht_cache_save(d->cache, slot, buffer, *bytes), &d->p->c);
    return buffer;
}

/* the rest of the sequence from a copy of the state, against the one that went on undisturbed */
static void rest_is_same(const decoder *whole, decoder copy, const char *what) {
    copy.got = outcome_make(copy.p);
    int64_t from = copy.done[0] * copy.p->c.q_heads;
    memcpy(copy.got.lse, whole->got.lse, (size_t)from * sizeof(double));
    memcpy(copy.got.out, whole->got.out, (size_t)(from * copy.p->c.value_dim) * sizeof(double));
    feed_all(&copy, TOKENS);
    check_same_bits(copy.p, &whole->got, &copy.got, PARTS_FORWARD, what);
}

/* a decoder of one sequence that stands where `d` stands, in another cache or slot */
static decoder standing_at(const decoder *d, ht_context *ctx, ht_cache *cache, int64_t slot) {
    decoder copy = *d;
    copy.ctx = ctx, copy.cache = cache;
    copy.slot = pool_alloc(sizeof *copy.slot), copy.done = pool_alloc(sizeof *copy.done);
    copy.slot[0] = slot, copy.done[0] = d->done[0];
    return copy;
}

/* at several positions: saved, loaded into another slot, another cache, another context, and
 * forked; each goes on to the bit, and none of it disturbs the first */
static void states_go_on(void **state) {
    problem p;
    problem_make(&p, *state);
    decoder d = decoder_open(env.ctx, &p), whole = decoder_open(env.ctx, &p);
    feed_all(&whole, TOKENS);
    int64_t length = left(&d, 0), steps[] = {0, 1, 2, length / 3, length / 2, length - 1};
    for (size_t i = 0; i < COUNT(steps); i++) {
        while (d.done[0] < steps[i]) decoder_feed_one(&d, 0, 1);
        size_t bytes;
        void *saved = save_slot(&d, d.slot[0], &bytes);
        decoder fork = standing_at(&d, env.ctx, d.cache, 0);
        harness_ok(env.ctx, ht_cache_fork(d.cache, 0, d.slot[0]), &p.c);
        assert_int_equal(ht_cache_position(d.cache, 0), d.done[0]);
        rest_is_same(&whole, fork, "forked");
        decoder here = standing_at(&d, env.ctx, d.cache, d.slots - 1);
        harness_ok(env.ctx, ht_cache_load(d.cache, d.slots - 1, saved, bytes), &p.c);
        rest_is_same(&whole, here, "loaded into another slot");
        ht_context *ctx = harness_context(1);
        ht_cache *cache = decoder_cache(ctx, &p, 1);
        decoder there = standing_at(&d, ctx, cache, 0);
        harness_ok(ctx, ht_cache_load(cache, 0, saved, bytes), &p.c);
        rest_is_same(&whole, there, "loaded into another cache");
        size_t now;
        void *after = save_slot(&d, d.slot[0], &now);
        assert_int_equal(now, bytes);
        assert_memory_equal(after, saved, bytes);
    }
}

static void reset_is_new(void **state) {
    problem p;
    problem_make(&p, *state);
    decoder d = decoder_open(env.ctx, &p);
    feed_all(&d, PREFILL_THEN_TOKENS);
    outcome first = d.got;
    for (int64_t b = 0; b < p.c.batch; b++) {
        harness_ok(env.ctx, ht_cache_reset(d.cache, d.slot[b]), &p.c);
        assert_int_equal(ht_cache_position(d.cache, d.slot[b]), 0);
        d.done[b] = 0;
    }
    d.got = outcome_make(&p);
    feed_all(&d, PREFILL_THEN_TOKENS);
    check_same_bits(&p, &first, &d.got, PARTS_FORWARD, "after reset");
}

/* ---- sizes ------------------------------------------------------------------------------- */

static void rows_held(void **state) {
    const test_case *c = *state;
    problem p;
    problem_make(&p, c);
    decoder d = decoder_open(env.ctx, &p);
    assert_int_equal(ht_cache_position(d.cache, -1), -1);
    assert_int_equal(ht_cache_position(d.cache, d.slots), -1);
    assert_int_equal(ht_cache_rows(d.cache, d.slots), -1);
    oracle_problem same = problem_oracle(&p);
    for (int64_t t = 1; t <= c->length; t++) {
        decoder_feed_one(&d, 0, 1);
        int64_t want = 2 * c->block * oracle_levels(&same, t);
        if (c->kind == HT_FULL) want = t;
        for (int l = 0; l < oracle_levels(&same, t) && c->open > 0; l++)
            want = (l ? want : 0) + (t >> l);
        if (ht_cache_rows(d.cache, d.slot[0]) != want)
            harness_fail(c, "%d rows are held at position %d, not %d",
                         (int)ht_cache_rows(d.cache, d.slot[0]), (int)t, (int)want);
        assert_int_equal(ht_cache_position(d.cache, 0), 0);
        size_t bytes;
        harness_ok(env.ctx, ht_cache_save_bytes(d.cache, d.slot[0], &bytes), c);
        size_t numbers = (size_t)(want * c->kv_heads * (c->head_dim + c->value_dim));
        size_t parts = (size_t)(c->q_heads * (c->value_dim + 3)) * 64;
        assert_true(bytes >= numbers * dtype_bytes((ht_dtype)c->dtype));
        assert_true(bytes <= numbers * 8 + (size_t)(want * c->kv_heads) * 8 + parts * 8 + 4096);
    }
}

/* ---- damage ------------------------------------------------------------------------------ */

/* refused, and the slot stays what it was */
static void refused(decoder *d, ht_status want, const void *buffer, size_t bytes,
                    const char *what) {
    size_t size, after;
    void *before = save_slot(d, 0, &size);
    ht_status got = ht_cache_load(d->cache, 0, buffer, bytes);
    if (got != want)
        harness_fail(&d->p->c, "%s: %s, not %s", what, ht_status_name(got), ht_status_name(want));
    if (got != HT_OK && !*ht_context_error(d->ctx)) harness_fail(&d->p->c, "%s: no sentence", what);
    void *now = save_slot(d, 0, &after);
    assert_int_equal(size, after);
    assert_memory_equal(before, now, size);
}

/* The state as versions before there was a checksum wrote it: 8 bytes less, another magic. */
static size_t without_sum(char *buffer, size_t bytes) {
    uint64_t less = bytes - 8;
    buffer[7] = '1';
    memcpy(buffer + 8, &less, sizeof less);
    return bytes - 8;
}

static void damaged(void **state) {
    problem p;
    problem_make(&p, *state);
    decoder d = decoder_open(env.ctx, &p);
    decoder_feed_one(&d, 0, p.c.length);
    harness_ok(env.ctx, ht_cache_fork(d.cache, 0, d.slot[0]), &p.c); /* slot 0 holds something */
    size_t bytes;
    char *good = save_slot(&d, d.slot[0], &bytes), *bad = pool_alloc(bytes + 64);
    for (size_t n = 0; n < bytes; n += n < 200 ? 1 : 1 + bytes / 50)
        refused(&d, HT_FORMAT, good, n, "truncated");
    memcpy(bad, good, bytes);
    refused(&d, HT_FORMAT, bad, bytes + 64, "with more behind it");
    refused(&d, HT_FORMAT, NULL, bytes, "NULL");
    for (size_t i = 0; i < 8; i++) {
        bad[i] ^= 0x20;
        refused(&d, HT_FORMAT, bad, bytes, "wrong magic");
        bad[i] ^= 0x20;
    }
    for (size_t at = 8; at < bytes; at += at < 400 ? 1 : 1 + bytes / 50) {
        bad[at] ^= (char)(1 << at % 8);
        refused(&d, HT_FORMAT, bad, bytes, "a bit flipped");
        bad[at] ^= (char)(1 << at % 8);
    }
    size_t old = without_sum(bad, bytes);
    harness_ok(env.ctx, ht_cache_load(d.cache, 1, bad, old), &p.c);
    memset(bad, 0, bytes);
    refused(&d, HT_FORMAT, bad, bytes, "zeros");
    memset(bad, 0xFF, bytes);
    refused(&d, HT_FORMAT, bad, bytes, "ones");
    char short_buffer[16];
    assert_int_equal(ht_cache_save(d.cache, 0, short_buffer, sizeof short_buffer), HT_INVALID);
    assert_int_equal(ht_cache_save(d.cache, 0, NULL, bytes), HT_INVALID);
}

/* Every 8-byte word at the front of a saved state replaced by numbers that could hurt. Loading may
 * succeed or not; it must not crash, hang or take absurd memory, and the cache must go on. */
static void hostile(void **state) {
    problem p;
    problem_make(&p, *state);
    decoder d = decoder_open(env.ctx, &p);
    decoder_feed_one(&d, 0, p.c.length);
    size_t bytes, room = 1 << 20;
    char *good = save_slot(&d, d.slot[0], &bytes), *bad = pool_alloc(room);
    bytes = without_sum(good, bytes);
    for (size_t word = 0; word < 16; word++) {
        for (int shift = 0; shift < 64; shift++) {
            for (int minus = 0; minus < 2; minus++) {
                uint64_t value = ((uint64_t)1 << shift) - (uint64_t)minus;
                memset(bad, 0, room);
                memcpy(bad, good, bytes);
                memcpy(bad + 8 * word, &value, sizeof value);
                ht_cache_load(d.cache, 0, bad, bytes);
            }
        }
    }
    assert_int_equal(ht_cache_position(d.cache, d.slot[0]), p.c.length);
    harness_ok(env.ctx, ht_cache_load(d.cache, 0, good, bytes), &p.c);
}

/* A forged position with a size that agrees with it: magic, bytes and position are the first three
 * words. At most as many levels as the library can hold may be accepted. */
static void forged(void **state) {
    problem p;
    problem_make(&p, *state);
    decoder d = decoder_open(env.ctx, &p);
    size_t small, larger, room = 1 << 20;
    decoder_feed_one(&d, 0, 4 * p.c.block);
    char *good = save_slot(&d, d.slot[0], &small), *bad = pool_alloc(room);
    decoder_feed_one(&d, 0, 1);
    save_slot(&d, d.slot[0], &larger);
    small = without_sum(good, small), larger -= 8;
    oracle_problem same = problem_oracle(&p);
    for (int shift = 4; shift < 62; shift++) {
        int64_t position = (int64_t)1 << shift;
        int more = oracle_levels(&same, position) - oracle_levels(&same, 4 * p.c.block);
        uint64_t bytes = small + (larger - small) * (uint64_t)more;
        if (position < 4 * p.c.block || bytes > room) continue;
        memcpy(bad, good, small);
        memcpy(bad + 8, &bytes, sizeof bytes);
        memcpy(bad + 16, &position, sizeof position);
        ht_status status = ht_cache_load(d.cache, 0, bad, bytes);
        if (status != HT_OK && status != HT_FORMAT)
            harness_fail(&p.c, "position 2^%d: %s", shift, ht_context_error(env.ctx));
        if (status == HT_OK) assert_int_equal(ht_cache_position(d.cache, 0), position);
        harness_ok(env.ctx, ht_cache_reset(d.cache, 0), &p.c);
    }
    int64_t at = ht_cache_position(d.cache, d.slot[0]);
    decoder_feed_one(&d, 0, 1);
    assert_int_equal(ht_cache_position(d.cache, d.slot[0]), at + 1);
}

/* the case's plan but for one thing; 0 when there is nothing left to change */
static int change_plan(test_case *c, int what) {
    switch (what) {
    case 0: return c->block = 2;
    case 1: return c->q_heads = 8;
    case 2: return c->kv_heads = 4;
    case 3: return c->head_dim = 4;
    case 4: return c->value_dim = 4;
    case 5: return c->scale = 100;
    case 6: return c->rotary = 50;
    case 7: return c->bias = 1;
    case 8:
        if (c->open == 0) return c->query = HT_QUERY_FIRST + HT_QUERY_FINE - c->query;
        c->open = 0;
        return 1;
    case 9: c->open = 0; return c->kind = HT_FULL;
    case 10: return c->dtype = HT_F64;
    case 11:
        if (c->open > 0 || c->query == HT_QUERY_FIRST) return 0;
        return c->open = 2;
    default: return 0;
    }
}

/* a state is refused by any plan that would read it differently */
static void other_plans(void **state) {
    problem p;
    problem_make(&p, *state);
    decoder d = decoder_open(env.ctx, &p);
    decoder_feed_one(&d, 0, 30);
    size_t bytes;
    void *saved = save_slot(&d, d.slot[0], &bytes);
    test_case c = p.c;
    for (int what = 0; change_plan(&c, what); what++, c = p.c) {
        problem q;
        if (c.dtype == HT_F64 && !harness_supports(HT_F64)) continue;
        problem_make(&q, &c);
        decoder e = decoder_open(env.ctx, &q);
        refused(&e, HT_FORMAT, saved, bytes, "of another plan");
    }
}

/* The state is the same for every open > 0: it goes on with another one, a larger leaf and a longer
 * look, as a full pass with these would. */
static void other_dials(void **state) {
    problem p, q;
    reference r;
    test_case c = *(const test_case *)*state;
    problem_make(&q, &c);
    c.open = 4, c.leaf = 4, c.peek = 2;
    problem_make(&p, &c);
    p.q = q.q, p.k = q.k, p.v = q.v;
    reference_make(&r, &q, 0);
    decoder d = decoder_open(env.ctx, &p);
    int64_t from = p.c.length / 2, heads = p.c.q_heads, bytes_of = (int64_t)sizeof(double);
    decoder_feed_one(&d, 0, from);
    size_t bytes;
    void *saved = save_slot(&d, d.slot[0], &bytes);
    decoder e = standing_at(&d, env.ctx, decoder_cache(env.ctx, &q, 1), 0);
    e.p = &q, e.got = outcome_make(&q);
    harness_ok(env.ctx, ht_cache_load(e.cache, 0, saved, bytes), &q.c);
    memcpy(e.got.lse, r.want.lse, (size_t)(from * heads * bytes_of));
    memcpy(e.got.out, r.want.out, (size_t)(from * heads * p.c.value_dim * bytes_of));
    feed_all(&e, TOKENS);
    reference_check(&r, &q, &e.got, PARTS_FORWARD);
}

/* ---- failures ---------------------------------------------------------------------------- */

typedef struct attempt {
    const char *what;
    int64_t slots[2];
    void (*spoil)(ht_attention_args *args);
} attempt;

static void no_q(ht_attention_args *a) { a->q.data = NULL; }
static void no_out(ht_attention_args *a) { a->out.data = NULL; }
static void no_rows(ht_attention_args *a) { a->length = 0; }
static void many(ht_attention_args *a) { a->batch = 5; }
static void negative(ht_attention_args *a) { a->k.row_stride = -1; }
static void small(ht_attention_args *a) { a->size = 8; }
static void bad_cu(ht_attention_args *a) {
    static const int32_t cu[] = {0, 2, 1};
    a->cu_seqlens = cu;
}

/* nothing moves and nothing is written */
static void try_and_fail(decoder *d, const attempt *a) {
    const int64_t three[] = {3, 3}, which[] = {0, 1}, zero[] = {0, 0};
    int64_t slots[5] = {a->slots[0], a->slots[1], 3, 0, 2};
    problem part = portion(d->p, which, zero, three, 2);
    session s;
    session_open_buffers(&s, env.ctx, &part);
    view_allow(&s.out, &part, 0, -1), view_allow(&s.lse, &part, 0, -1);
    if (a->spoil) a->spoil(&s.args);
    ht_status status = ht_cache_extend(d->cache, slots, &s.args);
    if (status != HT_INVALID) harness_fail(&d->p->c, "%s: %s", a->what, ht_status_name(status));
    session_check(&s);
    for (int64_t b = 0; b < 2; b++)
        assert_int_equal(ht_cache_position(d->cache, d->slot[b]), d->done[b]);
}

/* and what follows is as if it had not been tried */
static void failures(void **state) {
    static const attempt attempts[] = {
        {"the same slot twice", {1, 1}, NULL},
        {"slot -1", {-1, 1}, NULL},
        {"slot 99", {1, 99}, NULL},
        {"q NULL", {1, 2}, no_q},
        {"out NULL", {1, 2}, no_out},
        {"length 0", {1, 2}, no_rows},
        {"too many", {1, 2}, many},
        {"negative stride", {1, 2}, negative},
        {"size", {1, 2}, small},
        {"cu_seqlens", {1, 2}, bad_cu},
    };
    problem p;
    problem_make(&p, *state);
    decoder calm = decoder_open(env.ctx, &p), d = decoder_open(env.ctx, &p);
    int64_t counts[2];
    feed_all(&calm, ODD_CHUNKS);
    while (!all_fed(&d)) {
        for (size_t i = 0; i < COUNT(attempts); i++) try_and_fail(&d, &attempts[i]);
        for (int64_t b = 0; b < 2; b++) counts[b] = left(&d, b) < 7 ? left(&d, b) : 7;
        decoder_feed(&d, counts);
    }
    check_same_bits(&p, &calm.got, &d.got, PARTS_FORWARD, "after failures");
    assert_int_equal(ht_cache_reset(d.cache, -1), HT_INVALID);
    assert_int_equal(ht_cache_reset(d.cache, 4), HT_INVALID);
    assert_int_equal(ht_cache_fork(d.cache, 0, 4), HT_INVALID);
    assert_int_equal(ht_cache_fork(d.cache, -1, 0), HT_INVALID);
}

/* ---- the list ---------------------------------------------------------------------------- */

static const test_case portion_cases[] = {
    CASE(.batch = 1, .length = 70),
    CASE(.batch = 3, .packed = 5, .length = 90, .bias = 1, .q_heads = 2, .kv_heads = 2),
    CASE(.batch = 3, .packed = 6, .length = 80, .q_heads = 4, .kv_heads = 2, .rotary = 100),
    CASE(.batch = 2, .length = 60, .mask = MASK_BOTH, .bias = 1),
    CASE(.batch = 3, .packed = 7, .length = 100, .block = 2, .mask = MASK_LEADING),
    CASE(.batch = 2, .length = 70, .mask = MASK_RUNS, .block = 2, .rotary = 10),
    CASE(.batch = 2, .length = 40, .mask = MASK_ALL_KEYS),
    CASE(.batch = 2, .length = 40, .mask = MASK_ONE_KEY, .lse = 0),
    CASE(.batch = 2, .length = 130, .block = 16, .head_dim = 17, .value_dim = 9, .scale = 500),
    CASE(.batch = 4, .packed = 8, .length = 50, .layout = LAYOUT_FUSED, .q_heads = 2),
    CASE(.batch = 2, .length = 50, .layout = LAYOUT_HEADS, .q_heads = 2, .kv_heads = 1),
    CASE(.batch = 2, .length = 45, .layout = LAYOUT_PADDED, .spread = 20),
    CASE(.batch = 2, .length = 100, .block = 30, .head_dim = 64, .value_dim = 64),
    CASE(.batch = 1, .length = 1),
};
static const test_case long_cases[] = {
    CASE(.length = 333, .block = 2, .bias = 1),
    CASE(.length = 700, .block = 2, .head_dim = 4, .value_dim = 3, .rotary = 10000),
    CASE(.length = 600, .block = 16, .head_dim = 4, .value_dim = 3, .mask = MASK_BOTH),
};
static const test_case bit_cases[] = {
    CASE(.batch = 1, .length = 75, .block = 2, .bias = 1, .q_heads = 2, .kv_heads = 1),
    CASE(.batch = 1, .length = 90, .rotary = 100, .mask = MASK_BOTH),
};
static const test_case two_slots[] = {
    CASE(.batch = 2, .length = 80, .block = 2, .q_heads = 4, .kv_heads = 2, .bias = 1),
    CASE(.batch = 2, .length = 60, .packed = 9, .mask = MASK_QUERIES),
};
static const test_case one_state[] = {
    CASE(.length = 50, .q_heads = 4, .kv_heads = 2),
};

/* Clear choices are drawn (test_open.c); bf16 on a grid, whose scores are exact, without masks. */
static void add_opening(case_list *cases, test_case c) {
    if (dtype_is_half(c.dtype)) {
        if (c.mask != MASK_NONE) return;
        c.grid = 1, c.scale = 250, c.spread = 1;
    }
    cases_add(cases, c);
}

static void add(const char *name, CMUnitTestFunction run, const test_case *from, size_t n,
                ht_dtype dtype, int hierarchical) {
    case_list cases = {0};
    for (size_t i = 0; i < n; i++) {
        for (size_t w = 0; w < case_all_way_count; w++) {
            test_case c = from[i], way = case_ways[w];
            if (!way.causal) continue;
            if (hierarchical && way.kind != HT_HIERARCHICAL) continue;
            c.kind = way.kind, c.query = way.query, c.causal = 1;
            c.dtype = dtype, c.seed = (int64_t)(i * case_way_count + w + 1);
            c.open = way.open, c.leaf = i % 3 == 1 ? 2 : way.leaf, c.peek = i % 3 == 2 ? 2 : 0;
            if (c.open > 0) {
                add_opening(&cases, c);
                continue;
            }
            c.leaf = c.peek = 0;
            cases_add(&cases, c);
        }
    }
    harness_add_all(name, run, &cases);
    cases_free(&cases);
}

static void list(void) {
    static const ht_dtype types[] = {HT_F32, HT_BF16, HT_F16, HT_F64};
    for (size_t t = 0; t < COUNT(types); t++) {
        if (!harness_supports(types[t])) continue;
        add("portions", portions, portion_cases, COUNT(portion_cases), types[t], 0);
        add("states go on", states_go_on, bit_cases, COUNT(bit_cases), types[t], 0);
        if (types[t] == HT_F64) continue;
        add("long run", long_run, long_cases, COUNT(long_cases), types[t], 0);
        add("same decoding", same_decoding, two_slots, COUNT(two_slots), types[t], 0);
        add("reset is new", reset_is_new, two_slots, COUNT(two_slots), types[t], 0);
        add("rows held", rows_held, one_state, COUNT(one_state), types[t], 0);
        add("failures", failures, two_slots, 1, types[t], 0);
        test_case c = CASE(.query = HT_QUERY_FINE, .causal = 1, .open = 1000, .length = 150,
                           .rotary = 100, .q_heads = 2);
        c.dtype = types[t];
        harness_add("other dials", other_dials, &c);
        c = (test_case)CASE(.query = HT_QUERY_FINE, .causal = 1, .open = 300, .length = 620,
                            .block = 2, .head_dim = 4, .value_dim = 70, .leaf = 1, .gap = -1);
        c.dtype = types[t], c.grid = 1, c.scale = 250;
        harness_add("many", long_run, &c); /* more candidates than a block of CUDA holds */
    }
    add("damaged", damaged, one_state, COUNT(one_state), HT_F32, 0);
    add("hostile", hostile, one_state, COUNT(one_state), HT_F32, 0);
    add("forged", forged, one_state, COUNT(one_state), HT_F32, 1);
    add("other plans", other_plans, one_state, COUNT(one_state), HT_F32, 1);
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
