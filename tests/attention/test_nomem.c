/*
 * Every allocation of a run through the whole API fails once: NOMEM and a sentence, handles NULL,
 * nothing leaked, no slot moved; the step is then tried again on the same context and the run
 * ends with the same bits.
 */
#include <stdio.h>
#include <string.h>

#include "counting.h"
#include "harness.h"

#define ROWS 24
#define HEADS 2
#define DIM 4
#define BLOCK 2
#define PIECE (ROWS * HEADS * DIM)
#define SPLIT 5 /* rows of the first extend: the second one makes new levels */

/* everything that a run makes, and what it read back */
typedef struct run {
    counting count;
    const test_case *way; /* causal */
    int refused;          /* steps that answered NOMEM */
    ht_context *ctx;
    ht_attention *plan;
    ht_cache *cache;
    float *q, *k, *v, *out, *dout, *dq, *dk, *dv, *bias, *dbias;
    void *saved;
    float results[6 * PIECE];
} run;

typedef ht_status (*step)(run *r);

/* ---- steps ------------------------------------------------------------------------------- */

static ht_status make_context(run *r) {
    ht_context_desc d = HT_CONTEXT_DESC_INIT;
    d.device = env.device, d.threads = 2, d.allocator = counting_allocator(&r->count);
    r->ctx = (ht_context *)r;
    ht_status status = ht_context_create(&r->ctx, &d);
    if (status != HT_OK) assert_null(r->ctx);
    return status;
}

static ht_status make_plan(run *r) {
    ht_attention_desc d = HT_ATTENTION_DESC_INIT;
    d.kind = (ht_kind)r->way->kind, d.query = (ht_query)r->way->query;
    d.causal = 1, d.has_bias = 1;
    d.q_heads = HEADS, d.head_dim = DIM, d.block = BLOCK, d.max_rows = ROWS;
    r->plan = (ht_attention *)r;
    ht_status status = ht_attention_create(&r->plan, r->ctx, &d);
    if (status != HT_OK) assert_null(r->plan);
    return status;
}

/* one buffer on the device, with something in it; NULL before and after a failure */
static ht_status fill(run *r, float **at, size_t floats, uint64_t salt) {
    float host[PIECE];
    void *block = r;
    if (*at) return HT_OK; /* an earlier attempt made it */
    ht_status status = ht_memory_alloc(r->ctx, &block, floats * sizeof(float));
    if (status != HT_OK) assert_null(block);
    if (status != HT_OK) return status;
    *at = block;
    for (size_t i = 0; i < floats; i++) host[i] = (float)test_random_normal(&salt);
    return ht_memory_copy_in(r->ctx, *at, host, floats * sizeof(float));
}

static ht_status make_buffers(run *r) {
    float **all[] = {&r->q, &r->k, &r->v, &r->dout, &r->out, &r->dq, &r->dk, &r->dv};
    for (size_t i = 0; i < COUNT(all); i++) {
        ht_status status = fill(r, all[i], PIECE, i);
        if (status != HT_OK) return status;
    }
    size_t table = (4 * BLOCK - 1) * HEADS;
    ht_status status = fill(r, &r->bias, table, 90);
    return status == HT_OK ? fill(r, &r->dbias, table, 91) : status;
}

static ht_status make_saved(run *r) {
    ht_attention_need need = HT_ATTENTION_NEED_INIT;
    ht_status status = ht_attention_get_need(r->plan, &need);
    return status == HT_OK ? ht_memory_alloc(r->ctx, &r->saved, need.saved) : status;
}

static ht_attention_args arguments(const run *r) {
    ht_attention_args a = HT_ATTENTION_ARGS_INIT;
    a.batch = 1, a.length = ROWS, a.bias = r->bias, a.saved = r->saved;
    a.q.data = r->q, a.k.data = r->k, a.v.data = r->v, a.out.data = r->out;
    return a;
}

static ht_status forward(run *r) {
    ht_attention_args a = arguments(r);
    return ht_attention_forward(r->plan, &a);
}

static ht_status backward(run *r) {
    ht_attention_args a = arguments(r);
    ht_attention_grads g = HT_ATTENTION_GRADS_INIT;
    g.dout.data = r->dout, g.dbias = r->dbias;
    g.dq.data = r->dq, g.dk.data = r->dk, g.dv.data = r->dv;
    return ht_attention_backward(r->plan, &a, &g);
}

static ht_status make_cache(run *r) {
    r->cache = (ht_cache *)r;
    ht_status status = ht_cache_create(&r->cache, r->plan, 3);
    if (status != HT_OK) assert_null(r->cache);
    return status;
}

/* rows from .. to - 1 go to slot 1, two more of another sequence to slot 0 */
static ht_status extend(run *r, int64_t from, int64_t to) {
    const int64_t slots[2] = {1, 0};
    const int32_t cu[3] = {0, (int32_t)(to - from), (int32_t)(to - from) + 2};
    ht_attention_args a = arguments(r);
    int64_t at = from * HEADS * DIM, first = ht_cache_position(r->cache, 1);
    a.batch = 2, a.cu_seqlens = cu, a.saved = NULL;
    a.q.data = r->q + at, a.k.data = r->k + at, a.v.data = r->v + at, a.out.data = r->out + at;
    ht_status status = ht_cache_extend(r->cache, slots, &a);
    assert_int_equal(ht_cache_position(r->cache, 1), status == HT_OK ? first + to - from : first);
    return status;
}

static ht_status extend_first(run *r) { return extend(r, 0, SPLIT); }
static ht_status extend_more(run *r) { return extend(r, SPLIT, ROWS - 2); }

static ht_status fork_and_reset(run *r) {
    ht_status status = ht_cache_fork(r->cache, 2, 1);
    return status == HT_OK ? ht_cache_reset(r->cache, 0) : status;
}

/* what slot 1 holds goes to the fresh slot 0 */
static ht_status save_and_load(run *r) {
    size_t bytes;
    ht_status status = ht_cache_save_bytes(r->cache, 1, &bytes);
    if (status != HT_OK) return status;
    void *state = pool_alloc(bytes);
    status = ht_cache_save(r->cache, 1, state, bytes);
    return status == HT_OK ? ht_cache_load(r->cache, 0, state, bytes) : status;
}

/* a state with more levels than the new cache has */
static ht_status load_elsewhere(run *r) {
    size_t bytes;
    ht_cache *other = NULL;
    ht_status status = ht_cache_save_bytes(r->cache, 1, &bytes);
    if (status == HT_OK) status = ht_cache_create(&other, r->plan, 1);
    if (status != HT_OK) return status;
    void *state = pool_alloc(bytes);
    status = ht_cache_save(r->cache, 1, state, bytes);
    if (status == HT_OK) status = ht_cache_load(other, 0, state, bytes);
    assert_int_equal(ht_cache_position(other, 0), status == HT_OK ? ROWS - 2 : 0);
    ht_cache_destroy(other);
    return status;
}

static ht_status read_back(run *r) {
    const float *all[] = {r->out, r->dq, r->dk, r->dv};
    for (size_t i = 0; i < COUNT(all); i++) {
        ht_status status =
            ht_memory_copy_out(r->ctx, r->results + i * PIECE, all[i], PIECE * sizeof(float));
        if (status != HT_OK) return status;
    }
    return HT_OK;
}

/* ---- runs -------------------------------------------------------------------------------- */

static const step steps[] = {
    make_context,   make_plan,     make_buffers,   make_saved,   forward,
    backward,       read_back,     make_cache,     extend_first, extend_more,
    fork_and_reset, save_and_load, load_elsewhere,
};

/* each step until it is done: after a NOMEM once more */
static void all_steps(run *r) {
    for (size_t i = 0; i < COUNT(steps); i++) {
        ht_status status = steps[i](r);
        if (status == HT_NOMEM && r->count.failed && !r->refused) {
            r->refused = 1;
            if (!strstr(ht_context_error(r->ctx), "memory"))
                harness_fail(NULL, "no sentence: \"%s\"", ht_context_error(r->ctx));
            if (r->saved) assert_int_equal(forward(r), HT_OK); /* what worked before still does */
            status = steps[i](r);
        }
        if (status != HT_OK)
            harness_fail(NULL, "allocation %ld fails, then step %zu: %s: %s", r->count.fail_at, i,
                         ht_status_name(status), ht_context_error(r->ctx));
    }
}

static void give_back(run *r) {
    void *all[] = {r->q,  r->k,  r->v,    r->out,   r->dout, r->dq,
                   r->dk, r->dv, r->bias, r->dbias, r->saved};
    ht_cache_destroy(r->cache);
    ht_attention_destroy(r->plan);
    for (size_t i = 0; i < COUNT(all); i++) ht_memory_free(r->ctx, all[i]);
    ht_context_destroy(r->ctx);
    if (r->count.live != 0)
        harness_fail(NULL, "allocation %ld fails: %ld blocks are left", r->count.fail_at,
                     r->count.live);
}

static void every_allocation(void **state) {
    static run calm, r;
    calm = (run){.way = *state};
    all_steps(&calm);
    give_back(&calm);
    print_message("%ld allocations\n", calm.count.total);
    assert_true(calm.count.total >= 3); /* context, plan, cache */
    for (long n = 1; n <= calm.count.total; n++) {
        r = (run){.way = *state, .count.fail_at = n};
        all_steps(&r);
        if (!r.refused) harness_fail(NULL, "allocation %ld failed and nobody noticed", n);
        give_back(&r);
        assert_memory_equal(r.results, calm.results, 4 * PIECE * sizeof(float));
    }
}

/* with the caller's scratch a call allocates nothing */
static void steady_state(void **state) {
    (void)state;
    counting count = {0};
    ht_context_desc d = HT_CONTEXT_DESC_INIT;
    ht_context *ctx;
    d.device = env.device, d.allocator = counting_allocator(&count);
    assert_int_equal(ht_context_create(&ctx, &d), HT_OK);
    for (size_t w = 0; w < case_way_count; w++) {
        test_case c = case_ways[w];
        problem p;
        session s;
        c.bias = 1, c.batch = 3, c.packed = 2, c.mask = MASK_BOTH;
        problem_make(&p, &c);
        assert_int_equal(session_open(&s, ctx, &p), HT_OK);
        long total = count.total;
        session_forward(&s);
        session_backward(&s);
        assert_int_equal(count.total, total);
        pool_clear();
    }
    ht_context_destroy(ctx);
    assert_int_equal(count.live, 0);
}

static void list(void) {
    for (size_t w = 0; w < case_way_count; w++)
        if (case_ways[w].causal) harness_add("every allocation", every_allocation, &case_ways[w]);
    harness_add("steady state", steady_state, NULL);
}

int main(int argc, char **argv) { return harness_main(argc, argv, list); }
