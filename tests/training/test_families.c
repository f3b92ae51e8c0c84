/*
 * Which CUDA kernels take a call, on any machine: the list is host code. For each family a call
 * that it takes; then one thing about the call is changed, and another takes it, with the reason.
 */
#include "training.h"

#include <pthread.h>
#include <string.h>

#include "cuda/families.h"

static size_t narrow_shared(int head_dim, int length, int levels) {
    return (size_t)head_dim * (size_t)length * 20 + (size_t)levels * 64;
}
static const hti_limits whole = {227 << 10, narrow_shared};
static const hti_limits small = {99 << 10, narrow_shared};

/* One sequence of 1,024 rows; rows lie side by side. */
typedef struct subject {
    ht_attention_desc d;
    hti_attention_call c;
} subject;

static void set_tensor(ht_tensor *t, int64_t heads, int64_t dim, int64_t length) {
    *t = (ht_tensor){(void *)4096, length * heads * dim, heads * dim, dim};
}

static void complete(subject *s) {
    ht_attention_desc *d = &s->d;
    hti_attention_call *c = &s->c;
    if (!c->length) c->length = 1024;
    if (!c->sequences) c->sequences = 1;
    c->desc = d, c->rows = c->sequences * c->length;
    d->max_length = c->length, d->max_rows = c->rows, d->max_sequences = c->sequences;
    if (!d->q_heads) d->q_heads = 8;
    if (!d->kv_heads) d->kv_heads = d->q_heads;
    if (!d->value_dim) d->value_dim = d->head_dim;
    if (d->scale == 0) d->scale = 0.125;
    ht_tensor *own[] = {&c->q, &c->out, &c->dout, &c->dq}, *keys[] = {&c->k, &c->v, &c->dk, &c->dv};
    for (int i = 0; i < 4; i++) {
        set_tensor(own[i], d->q_heads, i % 3 ? d->value_dim : d->head_dim, c->length);
        set_tensor(keys[i], d->kv_heads, i % 2 ? d->value_dim : d->head_dim, c->length);
    }
}

#define D(...) \
    { .dtype = HT_BF16, __VA_ARGS__ }
#define H(...) \
    { .dtype = HT_F16, __VA_ARGS__ }
#define HIER(q) .kind = HT_HIERARCHICAL, .query = HT_QUERY_##q

static const struct {
    ht_attention_desc d;
    int64_t length, sequences;
    hti_family forward, backward;
    const char *faster, *why, *faster_back, *why_back; /* NULL: it is the fastest for such calls */
} rows[] = {
    {D(HIER(MEAN), .block = 16, .head_dim = 64), 0, 0, HTI_TUNED, HTI_TUNED, NULL, NULL, NULL,
     NULL},
    {D(HIER(FIRST), .block = 16, .head_dim = 64, .causal = 1), 0, 0, HTI_TUNED, HTI_TUNED, NULL,
     NULL, NULL, NULL},
    {D(.kind = HT_LOCAL, .query = HT_QUERY_FINE, .block = 16, .head_dim = 32), 0, 0, HTI_TUNED,
     HTI_TUNED, NULL, NULL, NULL, NULL},
    {D(HIER(MEAN), .block = 16, .head_dim = 128), 0, 0, HTI_TUNED, HTI_TILES, NULL, NULL, "tuned",
     "head_dim is 128, in backward at most 64"},
    {D(HIER(MEAN), .block = 16, .head_dim = 64, .kv_heads = 2), 0, 0, HTI_TUNED, HTI_TILES, NULL,
     NULL, "tuned", "it has fewer key heads than query heads, which backward does not take"},
    {D(HIER(FINE), .block = 16, .head_dim = 64, .causal = 1), 0, 0, HTI_FINE, HTI_TILES, NULL, NULL,
     NULL, NULL},
    {D(HIER(FINE), .block = 16, .head_dim = 64, .has_bias = 1), 0, 0, HTI_TILES, HTI_TILES, "tuned",
     "it has a bias", NULL, NULL},
    {D(HIER(MEAN), .block = 16, .head_dim = 64, .dropout = 0.1), 0, 0, HTI_TILES, HTI_TILES,
     "tuned", "it has dropout", "tuned", "it has dropout"},
    {D(HIER(MEAN), .block = 32, .head_dim = 64), 0, 0, HTI_TILES, HTI_TILES, "tuned",
     "block is 32, more than 16", "tuned", "block is 32, more than 16"},
    {D(HIER(MEAN), .block = 24, .head_dim = 64), 0, 0, HTI_GENERIC, HTI_GENERIC, "tuned",
     "block is 24, no multiple of 16", "tuned", "block is 24, no multiple of 16"},
    {D(HIER(FINE), .block = 256, .head_dim = 64), 0, 0, HTI_GENERIC, HTI_GENERIC, "tuned",
     "block is 256, more than 16", "tiles", "block is 256, more than 128"},
    {D(HIER(MEAN), .block = 16, .head_dim = 48), 0, 0, HTI_PADDED, HTI_PADDED, "tuned",
     "head_dim is 48, none of 4, 8, 16, 32, 64, 128", "tuned",
     "head_dim is 48, none of 4, 8, 16, 32, 64, 128"},
    {D(HIER(FINE), .block = 64, .head_dim = 80, .rotary_theta = 10000, .causal = 1), 0, 0,
     HTI_PADDED, HTI_PADDED, "tuned", "head_dim is 80, none of 16, 32, 64, 128", "tiles",
     "head_dim is 80, none of 16, 32, 64, 128"},
    {D(HIER(FINE), .block = 32, .head_dim = 64, .value_dim = 96), 0, 0, HTI_PADDED, HTI_PADDED,
     "tuned", "block is 32, more than 16", "tiles", "it has value_dim other than head_dim"},
    {D(.kind = HT_FULL, .head_dim = 112, .block = 16), 0, 0, HTI_PADDED, HTI_PADDED, "full",
     "head_dim is 112, none of 16, 32, 64, 128", "full",
     "head_dim is 112, none of 16, 32, 64, 128"},
    {D(HIER(MEAN), .block = 16, .head_dim = 160), 0, 0, HTI_GENERIC, HTI_GENERIC, "tuned",
     "head_dim is 160, none of 4, 8, 16, 32, 64, 128", "tuned",
     "head_dim is 160, none of 4, 8, 16, 32, 64, 128"},
    {D(HIER(MEAN), .block = 16, .head_dim = 33, .rotary_theta = 10000), 0, 0, HTI_GENERIC,
     HTI_GENERIC, "tuned", "head_dim is 33, none of 4, 8, 16, 32, 64, 128", "tuned",
     "head_dim is 33, none of 4, 8, 16, 32, 64, 128"},
    {{.dtype = HT_F32, HIER(MEAN), .block = 16, .head_dim = 64},
     0,
     0,
     HTI_GENERIC,
     HTI_GENERIC,
     "tuned",
     "dtype is f32, not bf16 or f16",
     "tuned",
     "dtype is f32, not bf16 or f16"},
    {D(HIER(MEAN), .block = 16, .head_dim = 8), 0, 0, HTI_NARROW, HTI_NARROW, NULL, NULL, NULL,
     NULL},
    {D(HIER(FIRST), .block = 64, .head_dim = 4, .dropout = 0.1), 2048, 0, HTI_NARROW, HTI_NARROW,
     NULL, NULL, NULL, NULL},
    {D(HIER(MEAN), .block = 16, .head_dim = 8, .has_bias = 1), 0, 0, HTI_PADDED, HTI_PADDED,
     "narrow", "it has a bias", "narrow", "it has a bias"},
    {D(HIER(MEAN), .block = 16, .head_dim = 8), 8192, 0, HTI_TUNED, HTI_TUNED, "narrow",
     "a sequence of 8192 rows does not fit into shared memory", "narrow",
     "a sequence of 8192 rows does not fit into shared memory"},
    {D(HIER(MEAN), .block = 16, .head_dim = 8), 16384, 0, HTI_TUNED, HTI_TUNED, "narrow",
     "a sequence has 16384 rows, more than 8192", "narrow",
     "a sequence has 16384 rows, more than 8192"},
    {D(.kind = HT_FULL, .head_dim = 4, .block = 16), 0, 0, HTI_NARROW, HTI_NARROW, NULL, NULL, NULL,
     NULL},
    {D(.kind = HT_FULL, .head_dim = 64, .block = 16), 0, 0, HTI_FULL, HTI_FULL, NULL, NULL, NULL,
     NULL},
    {D(.kind = HT_FULL, .head_dim = 64, .block = 16, .kv_heads = 1), 0, 0, HTI_FULL, HTI_GENERIC,
     NULL, NULL, "full", "it has fewer key heads than query heads, which backward does not take"},
    {D(.kind = HT_FULL, .head_dim = 64, .block = 256, .has_bias = 1), 0, 0, HTI_GENERIC,
     HTI_GENERIC, "full", "block is 256, with a bias at most 128", "full",
     "block is 256, with a bias at most 128"},
    {D(.kind = HT_FULL, .head_dim = 64, .block = 16, .rotary_theta = 10000), 0, 0, HTI_GENERIC,
     HTI_GENERIC, "full", "it has rotary positions", "full", "it has rotary positions"},
    {D(HIER(MEAN), .block = 16, .head_dim = 64, .scale = -1), 0, 0, HTI_TILES, HTI_TILES, "tuned",
     "scale is -1, not positive", "tuned", "scale is -1, not positive"},
    {D(HIER(MEAN), .block = 16, .head_dim = 64, .q_heads = 1), 16, 70000, HTI_TILES, HTI_TILES,
     "tuned", "there are 70000 sequences, of up to 16 rows: too many", "tuned",
     "there are 70000 sequences, of up to 16 rows: too many"},
    {H(HIER(MEAN), .block = 16, .head_dim = 64), 0, 0, HTI_TUNED, HTI_TUNED, NULL, NULL, NULL,
     NULL},
    {H(HIER(FINE), .block = 16, .head_dim = 64), 0, 0, HTI_FINE, HTI_TILES, NULL, NULL, NULL, NULL},
    {H(HIER(FINE), .block = 32, .head_dim = 128, .has_bias = 1), 0, 0, HTI_TILES, HTI_TILES,
     "tuned", "block is 32, more than 16", NULL, NULL},
    {H(HIER(FIRST), .block = 32, .head_dim = 4), 0, 0, HTI_NARROW, HTI_NARROW, NULL, NULL, NULL,
     NULL},
    {H(.kind = HT_FULL, .head_dim = 64, .block = 16), 0, 0, HTI_FULL, HTI_FULL, NULL, NULL, NULL,
     NULL},
    {H(HIER(FINE), .block = 16, .head_dim = 64, .open = 8), 0, 0, HTI_OPENED, HTI_OPENED,
     "opening tiles", "dtype is f16, not bf16", "opening tiles", "dtype is f16, not bf16"},
};

static void expect(const hti_limits *limits, const hti_attention_call *c, int backward,
                   hti_family family, const char *faster, const char *why) {
    const char *told;
    char text[128];
    hti_family got = hti_family_why(limits, c, backward, &told, text, sizeof text);
    assert_int_equal(hti_family_of(limits, c, backward), got);
    assert_int_equal(hti_family_takes(got, limits, c, backward), !c->first);
    if (got != family || strcmp(told ? told : "", faster ? faster : "") != 0 ||
        strcmp(text, why ? why : "") != 0)
        fail_msg("%s%s: %s, for %s: \"%s\"; should be %s, for %s: \"%s\"", hti_family_name(got),
                 backward ? " backward" : "", told ? told : "-", told ? told : "-", text,
                 hti_family_name(family), faster ? faster : "-", why ? why : "");
}

static void every_family(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        subject s = {.d = rows[i].d,
                     .c = {.length = rows[i].length, .sequences = rows[i].sequences}};
        complete(&s);
        expect(&whole, &s.c, 0, rows[i].forward, rows[i].faster, rows[i].why);
        expect(&whole, &s.c, 1, rows[i].backward, rows[i].faster_back, rows[i].why_back);
        if (rows[i].forward != HTI_FIRST_ROWS)
            assert_int_equal(hti_family_plans(rows[i].forward, &s.d), 1);
        s.c.first = 1; /* asked for by the model, which looked whether the plan can */
        expect(&whole, &s.c, 0, HTI_FIRST_ROWS, NULL, NULL);
    }
}

/* A tensor that lies badly, forward's and backward's, and a device with less memory. */
static void of_the_call(void **state) {
    (void)state;
    subject s = {.d = D(HIER(MEAN), .block = 16, .head_dim = 64)};
    complete(&s);
    s.c.v.data = (void *)4098;
    expect(&whole, &s.c, 0, HTI_PADDED, "tuned", "rows of v do not lie in steps of 16 bytes");
    complete(&s);
    s.c.k.row_stride += 4;
    expect(&whole, &s.c, 0, HTI_PADDED, "tuned", "rows of k do not lie in steps of 16 bytes");
    complete(&s);
    s.c.dq.head_stride += 1;
    expect(&whole, &s.c, 0, HTI_TUNED, NULL, NULL);
    expect(&whole, &s.c, 1, HTI_PADDED, "tuned", "rows of dq do not lie in steps of 16 bytes");
    complete(&s);
    expect(&small, &s.c, 0, HTI_TILES, "tuned",
           "the device lends 101376 bytes of shared memory, not 225280");
    s.c.q.batch_stride = (int64_t)1 << 31, s.c.sequences = 12; /* one after the other */
    expect(&whole, &s.c, 0, HTI_TILES, "tuned", "a tensor reaches over 17179869184 elements");
    complete(&s);
    s.c.q.batch_stride = (int64_t)1 << 31, s.c.sequences = 12, s.c.dq.head_stride += 1;
    expect(&whole, &s.c, 0, HTI_TILES, "tuned", "a tensor reaches over 17179869184 elements");
    expect(&whole, &s.c, 1, HTI_GENERIC, "tuned", "rows of dq do not lie in steps of 16 bytes");
    subject n = {.d = D(HIER(MEAN), .block = 16, .head_dim = 4)};
    complete(&n);
    n.c.q.data = (void *)4104; /* 4 columns: steps of 8 bytes */
    expect(&whole, &n.c, 0, HTI_NARROW, NULL, NULL);
    n.c.q.data = (void *)4100;
    expect(&whole, &n.c, 0, HTI_PADDED, "narrow", "rows of q do not lie in steps of 8 bytes");
}

/* ---- from outside ---- */

static void explain_on_a_cpu(void **state) {
    (void)state;
    ht_context_desc where = HT_CONTEXT_DESC_INIT;
    ht_context *ctx;
    ht_attention *plan;
    ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
    ht_attention_args args = HT_ATTENTION_ARGS_INIT;
    ht_attention_grads grads = HT_ATTENTION_GRADS_INIT;
    ht_kernels_info info = HT_KERNELS_INFO_INIT;
    static float x[64];
    where.device = "cpu:ref";
    OK(NULL, ht_context_create(&ctx, &where));
    desc.q_heads = 1, desc.head_dim = 4, desc.block = 2, desc.max_rows = 16;
    OK(ctx, ht_attention_create(&plan, ctx, &desc));
    OK(ctx, ht_attention_explain(plan, NULL, NULL, 1, &info));
    assert_string_equal(info.name, "cpu:ref");
    assert_string_equal(info.name, ht_attention_kernels(plan, 0));
    assert_null(info.faster);
    assert_string_equal(info.why, "");
    args.batch = 1, args.length = 16;
    REFUSED(ctx, ht_attention_explain(plan, &args, NULL, 0, &info), HT_INVALID, "q.data is NULL");
    args.q.data = args.k.data = args.v.data = args.out.data = x;
    OK(ctx, ht_attention_explain(plan, &args, NULL, 0, &info));
    REFUSED(ctx, ht_attention_explain(plan, &args, &grads, 1, &info), HT_INVALID,
            "dout.data is NULL");
    grads.dout.data = grads.dq.data = grads.dk.data = grads.dv.data = x;
    OK(ctx, ht_attention_explain(plan, &args, &grads, 1, &info));
    REFUSED(ctx, ht_attention_explain(plan, NULL, &grads, 1, &info), HT_INVALID,
            "gradients without arguments");
    ht_attention_destroy(plan);
    ht_context_destroy(ctx);
}

/* Contexts of several threads at once: what is found out about the machine once is no race. */
static void *one_thread(void *user) {
    ht_context *ctx;
    ht_device_info info = HT_DEVICE_INFO_INIT;
    subject s = {.d = D(HIER(MEAN), .block = 16, .head_dim = 64)};
    complete(&s);
    for (int i = 0; i < ht_device_count(); i++)
        if (ht_device_get(i, &info) != HT_OK) return NULL;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.threads = 1;
    if (ht_context_create(&ctx, &desc) != HT_OK) return NULL;
    ht_context_destroy(ctx);
    if (hti_family_of(&whole, &s.c, 0) != HTI_TUNED) return NULL;
    return user;
}

static void many_threads(void **state) {
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    static char places[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, one_thread, &places[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        void *done = NULL;
        assert_int_equal(pthread_join(threads[i], &done), 0);
        assert_ptr_equal(done, &places[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family),
        cmocka_unit_test(of_the_call),
        cmocka_unit_test(explain_on_a_cpu),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
