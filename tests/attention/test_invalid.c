/*
 * Bad input: the right status, a sentence that names the value, nothing written, nothing leaked,
 * and the next good call works.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counting.h"
#include "harness.h"

static counting count;
static ht_context *ctx; /* on the device, with the counting allocator */

/* ---- statuses and sentences -------------------------------------------------------------- */

static void expect(const char *what, ht_status got, ht_status want, const char *sentence,
                   const char *word, const char *value) {
    if (got != want)
        harness_fail(NULL, "%s: %s (%s), not %s", what, ht_status_name(got), sentence,
                     ht_status_name(want));
    if (!strstr(sentence, word) || !strstr(sentence, value))
        harness_fail(NULL, "%s: \"%s\" does not speak of %s and %s", what, sentence, word, value);
}

static void statuses(void **state) {
    (void)state;
#define CHECK_STATUS(name, number, text)                   \
    assert_int_equal(HT_##name, number);                   \
    assert_string_equal(ht_status_name(HT_##name), #name); \
    assert_string_equal(ht_status_text(HT_##name), text);
    HT_STATUS_MAP(CHECK_STATUS)
#undef CHECK_STATUS
    assert_non_null(ht_status_name((ht_status)99));
    assert_non_null(ht_status_text((ht_status)-1));
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", HT_VERSION_MAJOR, HT_VERSION_MINOR,
             HT_VERSION_PATCH);
    assert_string_equal(ht_version(), version);
}

/* ---- contexts and devices ---------------------------------------------------------------- */

/* change: what is done to the description `d`; the context must not be made */
#define BAD_CONTEXT(change, status, word, value)                           \
    do {                                                                   \
        ht_context_desc d = HT_CONTEXT_DESC_INIT;                          \
        ht_context *made = (ht_context *)&count;                           \
        d.device = env.device, d.allocator = counting_allocator(&count);   \
        long live = count.live;                                            \
        change;                                                            \
        ht_status got = ht_context_create(&made, &d);                      \
        expect(#change, got, status, ht_context_error(NULL), word, value); \
        assert_null(made);                                                 \
        assert_int_equal(count.live, live);                                \
    } while (0)

static void contexts(void **state) {
    (void)state;
    BAD_CONTEXT(d.size = 8, HT_INVALID, "ht_context_desc.size", "");
    BAD_CONTEXT(d.size = 0, HT_INVALID, "ht_context_desc.size", "0");
    BAD_CONTEXT(d.device = "gpu", HT_INVALID, "device", "\"gpu\"");
    BAD_CONTEXT(d.device = "cpu:", HT_INVALID, "device", "\"cpu:\"");
    BAD_CONTEXT(d.device = "cpu:sse9", HT_INVALID, "device", "\"cpu:sse9\"");
    BAD_CONTEXT(d.device = "CPU", HT_INVALID, "device", "\"CPU\"");
    BAD_CONTEXT(d.device = "a name that is far longer than any device has ever had", HT_INVALID,
                "device", "a name that is far longer");
    BAD_CONTEXT(d.threads = -1, HT_INVALID, "threads", "-1");
    BAD_CONTEXT(d.threads = 1000000, HT_INVALID, "threads", "1000000");
    BAD_CONTEXT(d.allocator.release = NULL, HT_INVALID, "allocator", "release");
    BAD_CONTEXT(d.allocator.alloc = NULL, HT_INVALID, "allocator", "alloc");
    if (!env.cuda) BAD_CONTEXT(d.stream = &count, HT_INVALID, "stream", env.device);
    assert_int_equal(ht_context_create(NULL, NULL), HT_INVALID);
    static const char *const cuda[] = {"cuda:", "cuda:x", "cuda:-1", "cuda:99999", "cuda:0x"};
    for (size_t i = 0; i < COUNT(cuda); i++) {
        ht_context_desc d = HT_CONTEXT_DESC_INIT;
        ht_context *made = (ht_context *)&count;
        d.device = cuda[i];
        assert_true(ht_context_create(&made, &d) != HT_OK);
        assert_null(made);
        assert_non_null(strstr(ht_context_error(NULL), cuda[i]));
    }
    ht_context_destroy(NULL);
}

/* NULL: the environment's device, else the best CPU */
static void default_device(void **state) {
    (void)state;
    ht_context *made;
    setenv("HTRANSFORMER_DEVICE", env.device, 1);
    assert_int_equal(ht_context_create(&made, NULL), HT_OK);
    assert_string_equal(ht_context_device(made), env.device);
    ht_context_destroy(made);
    setenv("HTRANSFORMER_DEVICE", "toaster", 1);
    assert_int_equal(ht_context_create(&made, NULL), HT_INVALID);
    assert_non_null(strstr(ht_context_error(NULL), "toaster"));
    unsetenv("HTRANSFORMER_DEVICE");
    assert_int_equal(ht_context_create(&made, NULL), HT_OK);
    assert_memory_equal(ht_context_device(made), "cpu:", 4);
    ht_context_destroy(made);
}

/* auto, by name or from the environment: the first GPU if it can be used, else the best CPU */
static void automatic_device(void **state) {
    (void)state;
    ht_context *made;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    char best[32] = "";
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        assert_int_equal(ht_device_get(i, &info), HT_OK);
        int gpu = strcmp(info.name, "cuda:0") == 0 && info.available;
        if (info.chosen || gpu) snprintf(best, sizeof best, "%s", info.name);
    }
    desc.device = "auto";
    assert_int_equal(ht_context_create(&made, &desc), HT_OK);
    assert_string_equal(ht_context_device(made), best);
    ht_context_destroy(made);
    setenv("HTRANSFORMER_DEVICE", "auto", 1);
    assert_int_equal(ht_context_create(&made, NULL), HT_OK);
    assert_string_equal(ht_context_device(made), best);
    ht_context_destroy(made);
    unsetenv("HTRANSFORMER_DEVICE");
}

static void devices(void **state) {
    (void)state;
    ht_device_info info = HT_DEVICE_INFO_INIT;
    int chosen = 0;
    assert_int_equal(ht_device_get(-1, &info), HT_INVALID);
    assert_int_equal(ht_device_get(ht_device_count(), &info), HT_INVALID);
    assert_int_equal(ht_device_get(0, NULL), HT_INVALID);
    for (int i = 0; i < ht_device_count(); i++) {
        assert_int_equal(ht_device_get(i, &info), HT_OK);
        assert_true(info.name && *info.name && info.about && *info.about);
        chosen += info.chosen != 0;
        if (info.chosen) assert_true(info.available);
    }
    assert_int_equal(chosen, 1);
    assert_string_equal(ht_context_device(ctx), env.device);
    assert_true(ht_context_threads(ctx) >= 1);
    assert_int_equal(ht_context_synchronize(ctx), HT_OK);
}

static void memory(void **state) {
    (void)state;
    void *block = &count;
    char byte = 0;
    long live = count.live;
    assert_int_equal(ht_memory_alloc(ctx, &block, SIZE_MAX), HT_NOMEM);
    assert_null(block);
    assert_non_null(strstr(ht_context_error(ctx), "memory"));
    block = &count;
    assert_int_equal(ht_memory_alloc(ctx, &block, (size_t)1 << 50), HT_NOMEM);
    assert_null(block);
    assert_int_equal(ht_memory_alloc(ctx, NULL, 1), HT_INVALID);
    assert_int_equal(ht_memory_alloc(ctx, &block, 1000), HT_OK);
    assert_int_equal((uintptr_t)block % 64, 0);
    assert_int_equal(ht_memory_copy_in(ctx, NULL, &byte, 1), HT_INVALID);
    assert_int_equal(ht_memory_copy_in(ctx, block, NULL, 1), HT_INVALID);
    assert_int_equal(ht_memory_copy_out(ctx, &byte, NULL, 1), HT_INVALID);
    assert_int_equal(ht_memory_copy_out(ctx, NULL, block, 1), HT_INVALID);
    assert_int_equal(ht_memory_copy_in(ctx, NULL, NULL, 0), HT_OK);
    assert_int_equal(ht_memory_copy(ctx, block, NULL, 1), HT_INVALID);
    assert_int_equal(ht_memory_copy(ctx, NULL, block, 1), HT_INVALID);
    byte = 7;
    assert_int_equal(ht_memory_copy_in(ctx, block, &byte, 1), HT_OK);
    assert_int_equal(ht_memory_copy(ctx, (char *)block + 64, block, 1), HT_OK);
    byte = 0;
    assert_int_equal(ht_memory_copy_out(ctx, &byte, (char *)block + 64, 1), HT_OK);
    assert_int_equal(byte, 7);
    ht_memory_free(ctx, block);
    ht_memory_free(ctx, NULL);
    assert_int_equal(count.live, live);
}

/* ---- plans ------------------------------------------------------------------------------- */

static ht_attention_desc good_desc(void) {
    ht_attention_desc d = HT_ATTENTION_DESC_INIT;
    d.q_heads = 6, d.kv_heads = 2, d.head_dim = 8, d.block = 4, d.max_rows = 64;
    d.query = HT_QUERY_FIRST;
    return d;
}

#define BAD_PLAN(change, status, word, value)                             \
    do {                                                                  \
        ht_attention_desc d = good_desc();                                \
        ht_attention *made = (ht_attention *)&count;                      \
        long live = count.live;                                           \
        change;                                                           \
        ht_status got = ht_attention_create(&made, ctx, &d);              \
        expect(#change, got, status, ht_context_error(ctx), word, value); \
        assert_null(made);                                                \
        assert_int_equal(count.live, live);                               \
    } while (0)

#define GOOD_PLAN(change)                                           \
    do {                                                            \
        ht_attention_desc d = good_desc();                          \
        ht_attention *made;                                         \
        change;                                                     \
        harness_ok(ctx, ht_attention_create(&made, ctx, &d), NULL); \
        ht_attention_destroy(made);                                 \
    } while (0)

static void plan_shapes(void **state) {
    (void)state;
    BAD_PLAN(d.block = 7, HT_INVALID, "block", "7");
    BAD_PLAN(d.block = 1, HT_INVALID, "block", "1");
    BAD_PLAN(d.block = -2, HT_INVALID, "block", "-2");
    BAD_PLAN(d.block = INT64_MAX - 1, HT_INVALID, "block", "9223372036854775806");
    BAD_PLAN(d.q_heads = 0, HT_INVALID, "heads", "0");
    BAD_PLAN(d.q_heads = -3, HT_INVALID, "q_heads", "-3");
    BAD_PLAN(d.kv_heads = -2, HT_INVALID, "kv_heads", "-2");
    BAD_PLAN(d.kv_heads = 4, HT_INVALID, "kv_heads", "4");
    BAD_PLAN(d.kv_heads = 12, HT_INVALID, "kv_heads", "12");
    BAD_PLAN(d.head_dim = 0, HT_INVALID, "head_dim", "0");
    BAD_PLAN(d.head_dim = -1, HT_INVALID, "head_dim", "-1");
    BAD_PLAN(d.head_dim = 257, HT_INVALID, "head_dim", "257");
    BAD_PLAN(d.value_dim = -1, HT_INVALID, "value_dim", "-1");
    BAD_PLAN(d.value_dim = 257, HT_INVALID, "value_dim", "257");
    BAD_PLAN(d.max_rows = 0, HT_INVALID, "max_rows", "0");
    BAD_PLAN(d.max_rows = -5, HT_INVALID, "max_rows", "-5");
    BAD_PLAN(d.max_sequences = -1, HT_INVALID, "max_sequences", "-1");
    BAD_PLAN(d.max_length = -1, HT_INVALID, "max_length", "-1");
    BAD_PLAN(d.size = 8, HT_INVALID, "ht_attention_desc.size", "");
    BAD_PLAN(d.size = 0, HT_INVALID, "ht_attention_desc.size", "0");
    GOOD_PLAN(d.head_dim = 256);
    GOOD_PLAN(d.value_dim = 1);
    GOOD_PLAN(d.block = 2);
}

static void plan_numbers(void **state) {
    (void)state;
    BAD_PLAN(d.scale = NAN, HT_INVALID, "scale", "nan");
    BAD_PLAN(d.scale = INFINITY, HT_INVALID, "scale", "inf");
    BAD_PLAN(d.scale = -INFINITY, HT_INVALID, "scale", "-inf");
    BAD_PLAN(d.rotary_theta = NAN, HT_INVALID, "rotary_theta", "nan");
    BAD_PLAN(d.rotary_theta = -10, HT_INVALID, "rotary_theta", "-10");
    BAD_PLAN(d.rotary_theta = INFINITY, HT_INVALID, "rotary_theta", "inf");
    BAD_PLAN(d.dropout = -0.1, HT_INVALID, "dropout", "-0.1");
    BAD_PLAN(d.dropout = 1, HT_INVALID, "dropout", "1");
    BAD_PLAN(d.dropout = NAN, HT_INVALID, "dropout", "nan");
    BAD_PLAN(d.kind = (ht_kind)3, HT_INVALID, "kind", "3");
    BAD_PLAN(d.kind = (ht_kind)-1, HT_INVALID, "kind", "-1");
    BAD_PLAN(d.query = (ht_query)4, HT_INVALID, "query", "4");
    BAD_PLAN(d.dtype = (ht_dtype)4, HT_INVALID, "dtype", "4");
    BAD_PLAN((d.causal = 1, d.query = HT_QUERY_MEAN), HT_INVALID, "mean", "causal");
    BAD_PLAN((d.causal = 1, d.cross = 1), HT_INVALID, "cross", "causal");
    GOOD_PLAN(d.scale = -1);
    GOOD_PLAN(d.dropout = 0.999999);
    /* kind full has no coarse queries: mean does no harm there */
    GOOD_PLAN((d.kind = HT_FULL, d.causal = 1, d.query = HT_QUERY_MEAN));
}

/* opening belongs to query fine */
static void plan_open(void **state) {
    (void)state;
    BAD_PLAN((d.query = HT_QUERY_FINE, d.open = -1), HT_INVALID, "open", "-1");
    BAD_PLAN((d.query = HT_QUERY_FINE, d.open = (1 << 20) + 1), HT_INVALID, "open", "1048577");
    BAD_PLAN((d.query = HT_QUERY_FIRST, d.open = 8), HT_INVALID, "8", "first");
    BAD_PLAN((d.query = HT_QUERY_MEAN, d.open = 3), HT_INVALID, "3", "mean");
    BAD_PLAN((d.query = HT_QUERY_FINE, d.kind = HT_FULL, d.open = 8), HT_INVALID, "8", "full");
    BAD_PLAN((d.query = HT_QUERY_FINE, d.kind = HT_LOCAL, d.open = 8), HT_INVALID, "8", "local");
    BAD_PLAN((d.query = HT_QUERY_FINE, d.open_leaf = 6), HT_INVALID, "open_leaf", "6");
    BAD_PLAN((d.query = HT_QUERY_FINE, d.open_leaf = -8), HT_INVALID, "open_leaf", "-8");
    BAD_PLAN((d.query = HT_QUERY_FINE, d.open_peek = -2), HT_INVALID, "open_peek", "-2");
    BAD_PLAN((d.query = HT_QUERY_FINE, d.open_peek = 49), HT_INVALID, "open_peek", "49");
}

/* what is left zero is fine with causal and mean without, whatever the kind */
static void auto_query(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        ht_attention_desc d = good_desc(), got = HT_ATTENTION_DESC_INIT;
        ht_attention *plan;
        d.kind = (ht_kind)(i / 2), d.causal = i % 2, d.query = HT_QUERY_AUTO;
        assert_int_equal(ht_attention_query(&d), i % 2 ? HT_QUERY_FINE : HT_QUERY_MEAN);
        assert_int_equal(ht_attention_create(&plan, ctx, &d), HT_OK);
        assert_int_equal(ht_attention_get_desc(plan, &got), HT_OK);
        assert_int_equal(got.query, i % 2 ? HT_QUERY_FINE : HT_QUERY_MEAN);
        ht_attention_destroy(plan);
        d.open = 8;
        assert_int_equal(ht_attention_query(&d), HT_QUERY_FINE);
        d.query = HT_QUERY_FIRST;
        assert_int_equal(ht_attention_query(&d), HT_QUERY_FIRST);
    }
}

/* sizes that overflow are refused; where they are not, what is needed grows with them */
static void plan_overflow(void **state) {
    (void)state;
    BAD_PLAN(d.max_rows = INT64_MAX, HT_INVALID, "max_rows", "9223372036854775807");
    BAD_PLAN(d.max_sequences = INT64_MAX, HT_INVALID, "max_sequences", "9223372036854775807");
    BAD_PLAN((d.max_rows = INT64_MAX / 8, d.q_heads = 65536, d.kv_heads = 1), HT_INVALID,
             "max_rows", "1152921504606846975");
    for (int kind = 0; kind < 3; kind++) {
        size_t last = 0;
        for (int shift = 3; shift < 63; shift++) {
            ht_attention_desc d = good_desc();
            ht_attention *plan;
            d.kind = (ht_kind)kind, d.q_heads = 512, d.kv_heads = 64, d.head_dim = 256;
            d.max_rows = (int64_t)1 << shift, d.max_sequences = 1;
            d.rotary_theta = 10, d.has_bias = 1;
            ht_status status = ht_attention_create(&plan, ctx, &d);
            if (status == HT_INVALID || status == HT_UNSUPPORTED) continue;
            harness_ok(ctx, status, NULL);
            ht_attention_need need = HT_ATTENTION_NEED_INIT;
            harness_ok(ctx, ht_attention_get_need(plan, &need), NULL);
            ht_attention_destroy(plan);
            assert_true(need.scratch_backward >= last && need.saved <= SIZE_MAX / 4);
            assert_true(need.scratch_backward <= SIZE_MAX / 4);
            last = need.scratch_backward;
        }
    }
}

static void plan_answers(void **state) {
    (void)state;
    ht_attention *plan, *made = (ht_attention *)&count;
    ht_attention_desc d = HT_ATTENTION_DESC_INIT, full = HT_ATTENTION_DESC_INIT;
    d.q_heads = 4, d.head_dim = 16, d.max_rows = 1000;
    assert_int_equal(ht_attention_create(NULL, ctx, &d), HT_INVALID);
    assert_int_equal(ht_attention_create(&made, ctx, NULL), HT_INVALID);
    assert_null(made);
    assert_int_equal(ht_attention_create(&made, NULL, &d), HT_INVALID);
    harness_ok(ctx, ht_attention_create(&plan, ctx, &d), NULL);
    assert_int_equal(ht_attention_get_need(plan, NULL), HT_INVALID);
    harness_ok(ctx, ht_attention_get_desc(plan, &full), NULL);
    assert_true(full.kv_heads == 4 && full.value_dim == 16 && full.block == 16);
    assert_true(full.max_sequences == 1000 && full.max_length == 1000 && full.scale == 0.25);
    static const int64_t levels[][2] = {{1, 1},  {16, 1},  {32, 1},  {33, 2},       {64, 2},
                                        {65, 3}, {128, 3}, {129, 4}, {1 << 20, 16}, {1 << 30, 26}};
    for (size_t i = 0; i < COUNT(levels); i++)
        assert_int_equal(ht_attention_levels(plan, levels[i][0]), levels[i][1]);
    assert_int_equal(ht_attention_levels(plan, INT64_MAX), 59); /* 16 * 2^59 = 2^63 */
    assert_int_equal(ht_attention_levels(plan, INT64_MIN), 1);
    ht_attention_destroy(plan);
    ht_attention_destroy(NULL);
}

/* On CUDA the words of docs/cuda.md's table; elsewhere the device. */
static void plan_kernels(void **state) {
    (void)state;
    static const struct {
        ht_kind kind;
        ht_query query;
        ht_dtype dtype;
        int dim, block, bias;
        const char *forward, *backward;
    } cases[] = {
        {HT_HIERARCHICAL, HT_QUERY_MEAN, HT_BF16, 64, 16, 0, "tuned", "tuned"},
        {HT_HIERARCHICAL, HT_QUERY_MEAN, HT_BF16, 128, 16, 0, "tuned", "tiles"},
        {HT_HIERARCHICAL, HT_QUERY_FINE, HT_BF16, 64, 16, 0, "tuned", "tiles"},
        {HT_HIERARCHICAL, HT_QUERY_FINE, HT_BF16, 32, 64, 1, "tiles", "tiles"},
        {HT_HIERARCHICAL, HT_QUERY_MEAN, HT_BF16, 4, 32, 0, "narrow", "narrow"},
        {HT_HIERARCHICAL, HT_QUERY_FINE, HT_BF16, 4, 32, 0, "padded", "padded"},
        {HT_HIERARCHICAL, HT_QUERY_MEAN, HT_BF16, 24, 16, 0, "padded", "padded"},
        {HT_HIERARCHICAL, HT_QUERY_MEAN, HT_BF16, 24, 20, 0, "generic", "generic"},
        {HT_HIERARCHICAL, HT_QUERY_MEAN, HT_F32, 64, 16, 0, "generic", "generic"},
        {HT_HIERARCHICAL, HT_QUERY_MEAN, HT_F16, 64, 16, 0, "tuned", "tuned"},
        {HT_HIERARCHICAL, HT_QUERY_FINE, HT_F16, 64, 16, 0, "tuned", "tiles"},
        {HT_HIERARCHICAL, HT_QUERY_FINE, HT_F16, 64, 32, 0, "tiles", "tiles"},
        {HT_HIERARCHICAL, HT_QUERY_MEAN, HT_F16, 8, 32, 0, "narrow", "narrow"},
        {HT_FULL, HT_QUERY_MEAN, HT_F16, 64, 16, 0, "full", "full"},
        {HT_FULL, HT_QUERY_MEAN, HT_BF16, 64, 16, 0, "full", "full"},
        {HT_FULL, HT_QUERY_MEAN, HT_BF16, 64, 16, 1, "full", "full"},
        {HT_FULL, HT_QUERY_MEAN, HT_BF16, 64, 130, 1, "generic", "generic"},
    };
    int cuda = strncmp(ht_context_device(ctx), "cuda", 4) == 0;
    for (size_t i = 0; i < COUNT(cases); i++) {
        ht_attention *plan;
        ht_attention_desc d = HT_ATTENTION_DESC_INIT;
        d.kind = cases[i].kind, d.query = cases[i].query, d.has_bias = cases[i].bias;
        d.dtype = cuda ? cases[i].dtype : HT_F32;
        d.q_heads = 4, d.head_dim = cases[i].dim, d.block = cases[i].block;
        d.max_rows = 4096, d.max_length = 1024;
        harness_ok(ctx, ht_attention_create(&plan, ctx, &d), NULL);
        const char *forward = cuda ? cases[i].forward : ht_context_device(ctx);
        const char *backward = cuda ? cases[i].backward : ht_context_device(ctx);
        assert_string_equal(ht_attention_kernels(plan, 0), forward);
        assert_string_equal(ht_attention_kernels(plan, 1), backward);
        ht_attention_destroy(plan);
    }
}

/* ---- calls ------------------------------------------------------------------------------- */

static session call; /* a good call, nothing of which may be written */

static void no_writing(void) {
    view *outputs[] = {&call.out, &call.lse, &call.dq, &call.dk, &call.dv};
    for (size_t i = 0; i < COUNT(outputs); i++) view_allow(outputs[i], call.p, 0, -1);
    session_check(&call);
}

static void expect_forward(const char *what, const ht_attention_args *a, ht_status want,
                           const char *word, const char *value) {
    long live = count.live;
    expect(what, ht_attention_forward(call.plan, a), want, ht_context_error(ctx), word, value);
    no_writing();
    assert_int_equal(count.live, live);
}

static void expect_backward(const char *what, const ht_attention_args *a,
                            const ht_attention_grads *g, ht_status want, const char *word,
                            const char *value) {
    long live = count.live;
    expect(what, ht_attention_backward(call.plan, a, g), want, ht_context_error(ctx), word, value);
    no_writing();
    assert_int_equal(count.live, live);
}

/* wrong in forward is wrong in backward */
#define BAD_ARGS(change, word, value)                                       \
    do {                                                                    \
        ht_attention_args a = call.args;                                    \
        change;                                                             \
        expect_forward(#change, &a, HT_INVALID, word, value);               \
        expect_backward(#change, &a, &call.grads, HT_INVALID, word, value); \
    } while (0)

#define BAD_GRADS(change, word, value)                             \
    do {                                                           \
        ht_attention_args a = call.args;                           \
        ht_attention_grads g = call.grads;                         \
        change;                                                    \
        expect_backward(#change, &a, &g, HT_INVALID, word, value); \
    } while (0)

static void open_call(problem *p, test_case c) {
    problem_make(p, &c);
    assert_int_equal(session_open(&call, ctx, p), HT_OK);
}

static void call_rows(void **state) {
    (void)state;
    problem p;
    open_call(&p, CASE(.batch = 3, .length = 20, .dlse = 1, .bias = 1));
    BAD_ARGS(a.size = 8, "ht_attention_args.size", "");
    BAD_ARGS(a.size = 0, "ht_attention_args.size", "0");
    BAD_ARGS(a.batch = 0, "batch", "0");
    BAD_ARGS(a.batch = -4, "batch", "-4");
    BAD_ARGS(a.batch = 4, "batch", "4");
    BAD_ARGS(a.length = 0, "length", "0");
    BAD_ARGS(a.length = -1, "length", "-1");
    BAD_ARGS(a.length = 21, "rows", "63");
    BAD_ARGS((a.batch = 1, a.length = 25), "length", "25");
    BAD_ARGS((a.batch = 2, a.length = INT64_MAX), "length", "9223372036854775807");
    static const int32_t late[] = {1, 2, 3, 4}, back[] = {0, 9, 8, 20}, minus[] = {0, -1, 5, 9};
    static const int32_t over[] = {0, 20, 40, 61}, longer[] = {0, 0, 21, 30};
    BAD_ARGS(a.cu_seqlens = late, "cu_seqlens[0]", "1");
    BAD_ARGS(a.cu_seqlens = back, "cu_seqlens", "8");
    BAD_ARGS(a.cu_seqlens = minus, "cu_seqlens", "-1");
    BAD_ARGS(a.cu_seqlens = over, "rows", "61");
    BAD_ARGS(a.cu_seqlens = longer, "length", "21");
    assert_int_equal(ht_attention_forward(call.plan, NULL), HT_INVALID);
    assert_int_equal(ht_attention_backward(call.plan, NULL, &call.grads), HT_INVALID);
    assert_int_equal(ht_attention_backward(call.plan, &call.args, NULL), HT_INVALID);
    session_forward(&call); /* and a good call works */
    session_backward(&call);
}

static void call_tensors(void **state) {
    (void)state;
    problem p;
    open_call(&p, CASE(.batch = 2, .length = 20, .q_heads = 2, .kv_heads = 2, .dlse = 1,
                       .layout = LAYOUT_SPELLED));
    BAD_ARGS(a.q.data = NULL, "q.data", "NULL");
    BAD_ARGS(a.k.data = NULL, "k.data", "NULL");
    BAD_ARGS(a.v.data = NULL, "v.data", "NULL");
    BAD_ARGS(a.out.data = NULL, "out.data", "NULL");
    BAD_ARGS(a.q.row_stride = -1, "q", "-1");
    BAD_ARGS(a.k.head_stride = -8, "k", "-8");
    BAD_ARGS(a.v.batch_stride = -320, "v", "-320");
    BAD_ARGS(a.out.row_stride = -16, "out", "-16");
    BAD_ARGS(a.lse.row_stride = -2, "lse", "-2");
    BAD_ARGS(a.q.row_stride = INT64_MAX / 4, "q", "");
    BAD_ARGS(a.out.batch_stride = INT64_MAX, "out", "");
    BAD_ARGS(a.out.row_stride = 15, "out", "15");
    BAD_ARGS(a.out.head_stride = 7, "out", "7");
    BAD_ARGS(a.out.batch_stride = 319, "out", "319");
    BAD_ARGS(a.lse.row_stride = 1, "lse", "1");
    BAD_ARGS(a.bias = call.args.q.data, "bias", "has_bias");
    BAD_ARGS(a.batch = INT64_MAX, "batch", "9223372036854775807");
    BAD_GRADS(g.size = 8, "ht_attention_grads.size", "");
    BAD_GRADS(g.dout.data = NULL, "dout.data", "NULL");
    BAD_GRADS(g.dq.data = NULL, "dq.data", "NULL");
    BAD_GRADS(g.dk.data = NULL, "dk.data", "NULL");
    BAD_GRADS(g.dv.data = NULL, "dv.data", "NULL");
    BAD_GRADS(g.dq.row_stride = -1, "dq", "-1");
    BAD_GRADS(g.dk.row_stride = 3, "dk", "3");
    BAD_GRADS(g.dv.head_stride = 1, "dv", "1");
    BAD_GRADS(g.dlse.row_stride = -1, "dlse", "-1");
    BAD_GRADS(g.dout.head_stride = -1, "dout", "-1");
    BAD_GRADS(g.dbias = call.grads.dq.data, "dbias", "has_bias");
    BAD_GRADS(a.saved = NULL, "saved", "NULL");
    session_forward(&call);
    session_backward(&call);
}

#define OFF(field, by) field = (void *)((char *)(uintptr_t)field + (by))

/* Addresses between those that numbers of their type have. */
static void call_places(void **state) {
    (void)state;
    static const int32_t cu[] = {0, 20, 40, 40};
    problem p;
    open_call(&p, CASE(.batch = 2, .length = 20, .bias = 1, .dlse = 1));
    BAD_ARGS(OFF(a.q.data, 2), "q begins at", "multiple of 4");
    BAD_ARGS(OFF(a.k.data, 1), "k begins at", "multiple of 4");
    BAD_ARGS(OFF(a.v.data, 3), "v begins at", "multiple of 4");
    BAD_ARGS(OFF(a.out.data, 2), "out begins at", "multiple of 4");
    BAD_ARGS(OFF(a.lse.data, 2), "lse begins at", "multiple of 4");
    BAD_ARGS(OFF(a.bias, 2), "bias begins at", "multiple of 4");
    BAD_ARGS(OFF(a.saved, 4), "saved begins at", "multiple of 8");
    BAD_ARGS(OFF(a.scratch, 4), "scratch begins at", "multiple of 8");
    BAD_ARGS((a.cu_seqlens = cu, OFF(a.cu_seqlens, 1)), "cu_seqlens begins at", "multiple of 4");
    BAD_GRADS(OFF(g.dout.data, 2), "dout begins at", "multiple of 4");
    BAD_GRADS(OFF(g.dlse.data, 2), "dlse begins at", "multiple of 4");
    BAD_GRADS(OFF(g.dq.data, 2), "dq begins at", "multiple of 4");
    BAD_GRADS(OFF(g.dk.data, 2), "dk begins at", "multiple of 4");
    BAD_GRADS(OFF(g.dv.data, 2), "dv begins at", "multiple of 4");
    BAD_GRADS(OFF(g.dbias, 2), "dbias begins at", "multiple of 4");
    session_forward(&call);
    session_backward(&call);
}

static void call_bias(void **state) {
    (void)state;
    problem p;
    open_call(&p, CASE(.length = 20, .bias = 1));
    BAD_ARGS(a.bias = NULL, "bias", "NULL");
    session_forward(&call);
    session_backward(&call);
}

/* a plan for more rows than there is memory: its own scratch cannot be had */
static void call_too_large(void **state) {
    (void)state;
    problem p;
    open_call(&p, CASE(.length = 20));
    ht_attention_desc d = problem_desc(&p);
    ht_attention *plan, *usual = call.plan;
    d.max_rows = (int64_t)1 << 44, d.max_length = 0, d.max_sequences = 1;
    ht_status status = ht_attention_create(&plan, ctx, &d);
    if (status == HT_UNSUPPORTED || status == HT_INVALID) skip(); /* it may know its limits */
    harness_ok(ctx, status, NULL);
    ht_attention_args a = call.args;
    a.scratch = NULL;
    call.plan = plan;
    expect_forward("2^44 rows", &a, HT_NOMEM, "memory", "");
    call.plan = usual;
    ht_attention_destroy(plan);
    session_forward(&call);
    session_backward(&call);
}

/* ---- caches ------------------------------------------------------------------------------ */

static void caches(void **state) {
    (void)state;
    ht_attention_desc d = good_desc();
    ht_attention *plan, *both, *noisy;
    ht_cache *cache = (ht_cache *)&count;
    d.causal = 1;
    harness_ok(ctx, ht_attention_create(&plan, ctx, &d), NULL);
    d.dropout = 0.5;
    harness_ok(ctx, ht_attention_create(&noisy, ctx, &d), NULL);
    d.dropout = 0, d.causal = 0;
    harness_ok(ctx, ht_attention_create(&both, ctx, &d), NULL);
    long live = count.live;
    const char *error = ht_context_error(ctx);
    expect("causal 0", ht_cache_create(&cache, both, 1), HT_INVALID, error, "causal", "0");
    assert_null(cache);
    expect("dropout", ht_cache_create(&cache, noisy, 1), HT_INVALID, error, "dropout", "0.5");
    expect("slots 0", ht_cache_create(&cache, plan, 0), HT_INVALID, error, "slots", "0");
    expect("slots -1", ht_cache_create(&cache, plan, -1), HT_INVALID, error, "slots", "-1");
    cache = (ht_cache *)&count;
    expect("slots 2^62", ht_cache_create(&cache, plan, (int64_t)1 << 62), HT_INVALID, error,
           "slots", "4611686018427387904");
    assert_null(cache);
    assert_int_equal(ht_cache_create(&cache, plan, (int64_t)1 << 40), HT_NOMEM);
    assert_null(cache);
    assert_int_equal(ht_cache_create(NULL, plan, 1), HT_INVALID);
    assert_int_equal(count.live, live);
    harness_ok(ctx, ht_cache_create(&cache, plan, 2), NULL);
    assert_int_equal(ht_cache_extend(cache, NULL, NULL), HT_INVALID);
    size_t bytes;
    expect("slot 2", ht_cache_save_bytes(cache, 2, &bytes), HT_INVALID, error, "slot", "2");
    assert_int_equal(ht_cache_save_bytes(cache, 0, NULL), HT_INVALID);
    expect("load -1", ht_cache_load(cache, -1, &bytes, 8), HT_INVALID, error, "slot", "-1");
    expect("save 7", ht_cache_save(cache, 7, &bytes, 8), HT_INVALID, error, "slot", "7");
    expect("fork 5", ht_cache_fork(cache, 5, 0), HT_INVALID, error, "slot", "5");
    ht_cache_destroy(cache);
    ht_cache_destroy(NULL);
    ht_attention_destroy(plan), ht_attention_destroy(both), ht_attention_destroy(noisy);
}

/* ---- the list ---------------------------------------------------------------------------- */

static void list(void) {
    ht_context_desc d = HT_CONTEXT_DESC_INIT;
    d.device = env.device, d.allocator = counting_allocator(&count);
    if (ht_context_create(&ctx, &d) != HT_OK) {
        fprintf(stderr, "%s: %s\n", env.device, ht_context_error(NULL));
        return;
    }
    harness_add("statuses", statuses, NULL);
    harness_add("contexts", contexts, NULL);
    harness_add("default device", default_device, NULL);
    harness_add("automatic device", automatic_device, NULL);
    harness_add("devices", devices, NULL);
    harness_add("memory", memory, NULL);
    harness_add("plan shapes", plan_shapes, NULL);
    harness_add("plan numbers", plan_numbers, NULL);
    harness_add("plan open", plan_open, NULL);
    harness_add("auto query", auto_query, NULL);
    harness_add("plan overflow", plan_overflow, NULL);
    harness_add("plan answers", plan_answers, NULL);
    harness_add("plan kernels", plan_kernels, NULL);
    harness_add("call rows", call_rows, NULL);
    harness_add("call tensors", call_tensors, NULL);
    harness_add("call places", call_places, NULL);
    harness_add("call bias", call_bias, NULL);
    harness_add("call too large", call_too_large, NULL);
    harness_add("caches", caches, NULL);
}

int main(int argc, char **argv) {
    int failed = harness_main(argc, argv, list);
    ht_context_destroy(ctx);
    if (count.live != 0) {
        fprintf(stderr, "%ld blocks were not given back\n", count.live);
        failed++;
    }
    return failed;
}
