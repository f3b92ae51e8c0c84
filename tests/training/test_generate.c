/*
 * Generating: decoding gives what the full pass gives, at every position and beyond the training
 * length; slots, saved states, sampling.
 */
#include "training.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model_op.h"

static ht_context *ref;

static int open_ref(void **state) {
    (void)state;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu:ref";
    return training_folder_open() != 0 || ht_context_create(&ref, &desc) != HT_OK;
}

static int close_ref(void **state) {
    (void)state;
    ht_context_destroy(ref);
    return training_folder_close();
}

/* ---- models ---- */

#define TINY                                                                     \
    "\"task\":\"language\",\"layers\":2,\"width\":32,\"heads\":2,\"hidden\":48," \
    "\"vocab\":41,\"embed_std\":0.7,\"block\":8,\"batch\":1,\"length\":4096,"
enum { VOCAB = 41 };
#define PLAIN TINY "\"sinusoidal\":0,"

static const char *const models[] = {
    "{" TINY "\"query\":\"first\"}",
    "{" TINY "\"query\":\"fine\",\"block\":16,\"kv_heads\":1}",
    "{" PLAIN "\"query\":\"first\",\"rotary\":\"all\",\"tied\":1}",
    "{" PLAIN "\"query\":\"fine\",\"rotary\":\"level0\",\"projection_bias\":1}",
    "{" PLAIN "\"query\":\"first\",\"rotary\":\"level0\",\"relative_bias\":1}",
    "{" PLAIN "\"query\":\"fine\",\"relative_bias\":1}",
    "{" PLAIN "\"query\":\"first\",\"learned\":1}",
    "{" TINY "\"query\":\"fine\",\"learned\":1,\"rotary\":\"all\"}",
    "{" PLAIN "\"query\":\"fine\"}",
    "{" PLAIN "\"rotary\":\"level0\",\"open\":1000,\"open_leaf\":2}",
    "{" TINY "\"open\":4,\"kv_heads\":1}",
    "{" PLAIN "\"attention\":\"local\",\"rotary\":\"all\"}",
    "{" PLAIN "\"attention\":\"local\",\"learned\":1}",
    "{" PLAIN "\"attention\":\"full\",\"rotary\":\"all\",\"layers\":1}",
    "{" PLAIN "\"attention\":\"full\",\"relative_bias\":1,\"layers\":1}",
    "{" PLAIN "\"query\":\"fine\",\"neighbours\":4}",
    "{" TINY "\"query\":\"first\",\"rotary\":\"all\",\"neighbours\":7,\"tied\":1}",
};
enum { MODELS = sizeof models / sizeof *models };

/* Weights of zero hide mistakes: everything gets some noise, the same in every precision. */
static ht_model *make_model(ht_context *ctx, const char *json, ht_dtype dtype) {
    ht_config *config = training_config(json);
    ht_model *model;
    uint32_t state = 7;
    training_set(config, "dtype", dtype);
    OK(ctx, ht_model_create(&model, ctx, config));
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(model, i, &info));
        double *x = malloc(sizeof *x * (size_t)info.count);
        OK(ctx, ht_model_read(model, i, x));
        for (int64_t k = 0; k < info.count; k++)
            x[k] = (float)(float)x[k] + 0.2f * (float)(training_random(&state) - 0.5);
        for (int64_t k = 0; k < info.count; k++) x[k] = (float)x[k];
        OK(ctx, ht_model_write(model, i, x));
        free(x);
    }
    return model;
}

static ht_generator *make_generator(ht_context *ctx, ht_model *model, int64_t slots, int64_t rows) {
    ht_generator_desc desc = HT_GENERATOR_DESC_INIT;
    ht_generator *g;
    desc.slots = slots;
    desc.rows = rows;
    OK(ctx, ht_generator_create(&g, model, &desc));
    return g;
}

static void random_tokens(int32_t *out, int64_t count, int64_t vocab, uint32_t seed) {
    uint32_t state = seed;
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)(training_random(&state) * (double)vocab);
}

static ht_batch batch_of(const int32_t *tokens, const int32_t *starts, int64_t sequences) {
    ht_batch b = HT_BATCH_INIT;
    b.sequences = sequences;
    b.tokens = tokens;
    b.cu_seqlens = starts;
    return b;
}

/* Logits of the full pass on the reference kernels, as double [count, vocab]. */
static double *full_pass(ht_model *model, const int32_t *tokens, int64_t count) {
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    int32_t starts[] = {0, (int32_t)count};
    ht_batch b = batch_of(tokens, starts, 1);
    ht_trainer *trainer;
    double *out = malloc(sizeof *out * (size_t)(count * VOCAB));
    desc.inference = 1;
    OK(ref, ht_trainer_create(&trainer, model, &desc));
    OK(ref, ht_trainer_logits(trainer, &b, out));
    ht_trainer_destroy(trainer);
    return out;
}

/* ---- decoding is the full pass ---- */

typedef struct truth {
    double *exact; /* [count, vocab] in double */
    double bound;  /* what a float computation may be off */
    int64_t count, vocab;
} truth;

/* The rule: twice the error of the plain pass in float, and four steps of the largest value. */
static truth make_truth(const char *json, const int32_t *tokens, int64_t count) {
    ht_model *model64 = make_model(ref, json, HT_F64), *model32 = make_model(ref, json, HT_F32);
    truth t = {.count = count, .vocab = VOCAB};
    double *plain = full_pass(model32, tokens, count), error = 0, largest = 0;
    t.exact = full_pass(model64, tokens, count);
    for (int64_t i = 0; i < count * t.vocab; i++) {
        error = fmax(error, fabs(plain[i] - t.exact[i]));
        largest = fmax(largest, fabs(t.exact[i]));
    }
    assert_true(largest > 0.5); /* the model says something */
    t.bound = 2 * error + 4 * FLT_EPSILON * largest;
    free(plain);
    ht_model_destroy(model64);
    ht_model_destroy(model32);
    return t;
}

static void close_enough(const truth *t, const float *logits, int64_t first, int64_t count,
                         const char *what) {
    for (int64_t i = 0; i < count * t->vocab; i++) {
        double want = t->exact[first * t->vocab + i];
        if (fabs(logits[i] - want) <= t->bound) continue;
        print_error("%s: position %lld, token %lld: %.9g, should be %.9g +- %.3g\n", what,
                    (long long)(first + i / t->vocab), (long long)(i % t->vocab), (double)logits[i],
                    want, t->bound);
        fail();
    }
}

/* Single tokens, and chunks of all sizes, of which some are longer than the generator's rows. */
static void check_decode(ht_context *ctx, const char *json, const truth *t, const int32_t *tokens) {
    ht_model *model = make_model(ctx, json, HT_F32);
    ht_generator *g = make_generator(ctx, model, 2, 100);
    float *logits = malloc(sizeof *logits * (size_t)(t->count * t->vocab));
    char what[512];
    int64_t slot = 1;
    snprintf(what, sizeof what, "%s, %s", ht_context_device(ctx), json);
    for (int64_t at = 0; at < t->count; at++) {
        int32_t starts[] = {0, 1};
        ht_batch b = batch_of(tokens + at, starts, 1);
        OK(ctx, ht_generator_feed(g, &slot, &b, logits, 0));
        close_enough(t, logits, at, 1, what);
    }
    slot = 0;
    for (int64_t at = 0, n = 1; at < t->count; at += n) {
        n = n * 3 % 509 < t->count - at ? n * 3 % 509 : t->count - at;
        int32_t starts[] = {0, (int32_t)n};
        ht_batch b = batch_of(tokens + at, starts, 1);
        OK(ctx, ht_generator_feed(g, &slot, &b, logits, 1));
        close_enough(t, logits, at, n, what);
    }
    free(logits);
    ht_generator_destroy(g);
    ht_model_destroy(model);
}

/* Calls `each` with every device that can run models; of the CPU's `all`, or the one it takes. */
static void on_devices(void (*each)(ht_context *), int all) {
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        ht_context_desc desc = HT_CONTEXT_DESC_INIT;
        ht_context *ctx;
        assert_int_equal(ht_device_get(i, &info), HT_OK);
        if (!info.available || (!all && strncmp(info.name, "cpu", 3) == 0 && !info.chosen))
            continue;
        desc.device = info.name;
        assert_int_equal(ht_context_create(&ctx, &desc), HT_OK);
        if (hti_models_open(ctx, HT_F32) == HT_OK) each(ctx);
        ht_context_destroy(ctx);
    }
}

static const char *at_work;
static truth known;
static int32_t text[4096];

static void decode_on(ht_context *ctx) { check_decode(ctx, at_work, &known, text); }

static void decode_is_full_pass(void **state) {
    (void)state;
    random_tokens(text, 4096, 41, 3);
    for (int i = 0; i < MODELS; i += (int)training_thin()) {
        at_work = models[i];
        known = make_truth(models[i], text, 4096);
        on_devices(decode_on, i < 4);
        free(known.exact);
    }
}

/* A model made for 64 tokens, on 1,500 of them, is what a model made for more would be. */
static void beyond_training_length(void **state) {
    static const char *const positions[] = {
        "\"rotary\":\"all\"", "\"rotary\":\"level0\"", "\"relative_bias\":1",
        "\"learned\":0",      "\"sinusoidal\":1",      "\"sinusoidal\":1,\"sinusoidal_theta\":50"};
    (void)state;
    random_tokens(text, 1500, 41, 4);
    for (int i = 0; i < 6; i++) {
        char longer[512], json[512];
        snprintf(longer, sizeof longer, "{" PLAIN "%s}", positions[i]);
        snprintf(json, sizeof json, "{" PLAIN "%s,\"length\":64}", positions[i]);
        truth t = make_truth(longer, text, 1500);
        check_decode(ref, json, &t, text);
        free(t.exact);
    }
    ht_model *model = make_model(ref, "{" PLAIN "\"learned\":1,\"length\":64}", HT_F32);
    ht_generator *g = make_generator(ref, model, 1, 0);
    int32_t starts[] = {0, 65};
    ht_batch b = batch_of(text, starts, 1);
    REFUSED(ref, ht_generator_feed(g, NULL, &b, NULL, 0), HT_INVALID,
            "learned positions for 64 tokens; slot 0 would have 65");
    starts[1] = 64;
    OK(ref, ht_generator_feed(g, NULL, &b, NULL, 0));
    starts[1] = 1;
    REFUSED(ref, ht_generator_feed(g, NULL, &b, NULL, 0), HT_INVALID, "would have 65");
    ht_generator_destroy(g);
    ht_model_destroy(model);
}

/* ---- the whole model is causal; documents of a batch know nothing of each other ---- */

static void causal(void **state) {
    enum { COUNT = 300, CHANGED = 131 };
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        ht_model *model = make_model(ref, models[i], HT_F32);
        size_t kept = sizeof(double) * (size_t)(CHANGED * VOCAB);
        random_tokens(text, COUNT, 41, 5);
        double *before = full_pass(model, text, COUNT);
        random_tokens(text + CHANGED, COUNT - CHANGED, 41, 6);
        double *after = full_pass(model, text, COUNT);
        assert_memory_equal(before, after, kept);
        assert_memory_not_equal(before + CHANGED * VOCAB, after + CHANGED * VOCAB, 8);
        free(before);
        free(after);
        ht_model_destroy(model);
    }
}

static void losses(ht_model *model, const ht_batch *b, float *out) {
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    ht_trainer *trainer;
    desc.inference = 1;
    OK(ref, ht_trainer_create(&trainer, model, &desc));
    OK(ref, ht_trainer_predict(trainer, b, out));
    ht_trainer_destroy(trainer);
}

static void packed_is_separate(void **state) {
    int32_t starts[] = {0, 200, 201, 250, 300};
    (void)state;
    random_tokens(text, 301, 41, 8);
    for (int i = 0; i < MODELS; i++) {
        char json[512];
        float packed[300], alone[300];
        snprintf(json, sizeof json, "%.*s,\"batch\":4,\"length\":256}", (int)strlen(models[i]) - 1,
                 models[i]);
        ht_model *model = make_model(ref, json, HT_F32);
        ht_batch b = batch_of(text, starts, 4);
        b.targets = text + 1;
        losses(model, &b, packed);
        for (int k = 0; k < 4; k++) {
            int32_t own[] = {0, starts[k + 1] - starts[k]};
            ht_batch one = batch_of(text + starts[k], own, 1);
            one.targets = text + starts[k] + 1;
            losses(model, &one, alone + starts[k]);
        }
        assert_memory_equal(packed, alone, sizeof packed);
        ht_model_destroy(model);
    }
}

/* ---- slots ---- */

/* Texts of different lengths side by side give the bits that each gives alone. */
static void slots_are_apart(void **state) {
    int64_t slots[] = {2, 0, 1};
    int32_t starts[] = {0, 37, 38, 250};
    float together[3 * VOCAB], alone[VOCAB];
    (void)state;
    random_tokens(text, 250, VOCAB, 9);
    for (int i = 0; i < MODELS; i++) {
        ht_model *model = make_model(ref, models[i], HT_F32);
        ht_generator *g = make_generator(ref, model, 3, 64), *h = make_generator(ref, model, 1, 64);
        for (int round = 0; round < 2; round++) {
            ht_batch b = batch_of(text, starts, 3);
            OK(ref, ht_generator_feed(g, slots, &b, together, 0));
        }
        for (int k = 0; k < 3; k++) {
            int32_t own[] = {0, starts[k + 1] - starts[k]};
            ht_batch b = batch_of(text + starts[k], own, 1);
            OK(ref, ht_generator_reset(h, 0));
            OK(ref, ht_generator_feed(h, NULL, &b, NULL, 0));
            OK(ref, ht_generator_feed(h, NULL, &b, alone, 0));
            assert_memory_equal(alone, together + k * VOCAB, sizeof alone);
        }
        ht_generator_destroy(g);
        ht_generator_destroy(h);
        ht_model_destroy(model);
    }
}

/* `count` tokens drawn from a slot and fed to it. */
static void go_on(ht_generator *g, int64_t slot, const ht_sampling *s, int32_t *out, int count) {
    int32_t starts[] = {0, 1};
    for (int i = 0; i < count; i++) {
        OK(ref, ht_generator_sample(g, slot, s, &out[i], NULL));
        ht_batch b = batch_of(&out[i], starts, 1);
        OK(ref, ht_generator_feed(g, &slot, &b, NULL, 0));
    }
}

static void saved_and_forked(void **state) {
    enum { COUNT = 200 };
    int32_t starts[] = {0, 300}, a[COUNT], b[COUNT], c[COUNT];
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "%s/state", training_folder);
    random_tokens(text, 300, 41, 10);
    for (int i = 0; i < MODELS; i++) {
        ht_model *model = make_model(ref, models[i], HT_F32);
        ht_generator *g = make_generator(ref, model, 3, 64), *h = make_generator(ref, model, 1, 0);
        ht_batch prompt = batch_of(text, starts, 1);
        ht_sampling s = HT_SAMPLING_INIT;
        ht_state_info here = HT_STATE_INFO_INIT, there = HT_STATE_INFO_INIT;
        s.repeat_penalty = 1.3;
        s.seed = 5;
        OK(ref, ht_generator_feed(g, NULL, &prompt, NULL, 0));
        go_on(g, 0, &s, a, 50);
        OK(ref, ht_generator_save(g, 0, path));
        OK(ref, ht_generator_fork(g, 2, 0));
        go_on(g, 0, &s, a, COUNT);
        go_on(g, 2, &s, b, COUNT);
        OK(ref, ht_generator_load(h, 0, path));
        OK(ref, ht_generator_get_state(h, 0, &there));
        assert_int_equal(there.position, 350);
        go_on(h, 0, &s, c, COUNT);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_equal(a, c, sizeof a);
        OK(ref, ht_generator_get_state(g, 0, &here));
        OK(ref, ht_generator_get_state(h, 0, &there));
        assert_memory_equal(&here, &there, sizeof here);
        float next[VOCAB], after_load[VOCAB];
        starts[1] = 1;
        OK(ref, ht_generator_feed(g, NULL, &prompt, next, 0));
        OK(ref, ht_generator_feed(h, NULL, &prompt, after_load, 0));
        starts[1] = 300;
        assert_memory_equal(next, after_load, sizeof next);
        int32_t token;
        double logprob, sum = 0;
        OK(ref, ht_generator_sample(g, 0, &s, &token, &logprob));
        for (int k = 0; k < VOCAB; k++) sum += exp((double)next[k]);
        assert_true(fabs(logprob - (next[token] - log(sum))) < 1e-9);
        ht_generator_destroy(g);
        ht_generator_destroy(h);
        ht_model_destroy(model);
    }
}

/* 2 block rows per level, levels by the length: what the state keeps, whatever came before. */
static void state_rows(void **state) {
    static const struct {
        int64_t length, rows;
    } want[] = {{1, 16}, {16, 16}, {17, 32}, {32, 32}, {33, 48}, {1000, 112}, {2048, 128}};
    (void)state;
    ht_model *model = make_model(ref, "{" PLAIN "\"query\":\"first\",\"layers\":1}", HT_F32);
    ht_generator *g = make_generator(ref, model, 1, 0);
    int64_t at = 0;
    random_tokens(text, 2048, 41, 11);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int32_t starts[] = {0, (int32_t)(want[i].length - at)};
        ht_batch b = batch_of(text + at, starts, 1);
        ht_state_info info = HT_STATE_INFO_INIT;
        OK(ref, ht_generator_feed(g, NULL, &b, NULL, 0));
        OK(ref, ht_generator_get_state(g, 0, &info));
        assert_int_equal(info.position, want[i].length);
        assert_int_equal(info.rows, want[i].rows);
        at = want[i].length;
    }
    ht_generator_destroy(g);
    ht_model_destroy(model);
}

/* ---- what is refused ---- */

static void truncate_file(const char *path, long by) {
    FILE *f = fopen(path, "rb");
    static char bytes[1 << 20];
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    f = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n - (size_t)by, f), n - (size_t)by);
    fclose(f);
}

/* A saved state in memory, and a file of such bytes that the generator is to load. */
typedef struct saved {
    char path[128], bytes[1 << 16];
    size_t count;
} saved;

static void save_state(saved *out, const ht_generator *g) {
    snprintf(out->path, sizeof out->path, "%s/saved", training_folder);
    OK(ref, ht_generator_save(g, 0, out->path));
    FILE *f = fopen(out->path, "rb");
    out->count = fread(out->bytes, 1, sizeof out->bytes, f);
    fclose(f);
    assert_true(out->count > 1000 && out->count < sizeof out->bytes);
}

/* As versions before there was a checksum wrote it, of the state and of every layer in it. */
static void without_sums(saved *s, int64_t layers) {
    size_t at = 48 + sizeof(float) * VOCAB + 256 * sizeof(int32_t);
    for (int64_t l = 0; l < layers; l++) {
        uint64_t size;
        memcpy(&size, s->bytes + at, sizeof size);
        s->bytes[at + sizeof size + 7] = '1';
        size -= 8;
        memcpy(s->bytes + at, &size, sizeof size);
        memcpy(s->bytes + at + sizeof size + 8, &size, sizeof size);
        at += sizeof size + size;
        s->count -= 8;
        memmove(s->bytes + at, s->bytes + at + 8, s->count - at);
    }
    uint64_t all = s->count -= 8;
    s->bytes[7] = '1';
    memcpy(s->bytes + 8, &all, sizeof all);
}

/* A number in the file that could hurt is refused, with a checksum (which tells any flipped bit)
 * and, from an earlier version, without. */
static void damaged_states(void **state) {
    static saved s;
    int32_t tokens[] = {1, 2, 3}, starts[] = {0, 3}, wild = 0x07000000, token;
    (void)state;
    ht_model *model = make_model(ref, models[0], HT_F32);
    const ht_config *config = ht_model_config(model);
    ht_generator *g = make_generator(ref, model, 2, 0);
    ht_batch b = batch_of(tokens, starts, 1);
    ht_sampling how = HT_SAMPLING_INIT;
    OK(ref, ht_generator_feed(g, NULL, &b, NULL, 0));
    save_state(&s, g);
    for (size_t at = 0; at < s.count; at += at < 1500 ? 1 : 97) {
        s.bytes[at] ^= (char)(1 << at % 8);
        training_write(s.path, s.bytes, s.count);
        if (ht_generator_load(g, 1, s.path) != HT_FORMAT) fail_msg("bit %zu was taken", at);
        s.bytes[at] ^= (char)(1 << at % 8);
    }
    without_sums(&s, training_int(config, "layers"));
    training_write(s.path, s.bytes, s.count);
    OK(ref, ht_generator_load(g, 1, s.path));
    how.repeat_penalty = 1.5;
    OK(ref, ht_generator_sample(g, 1, &how, &token, NULL));
    memcpy(s.bytes + 48 + sizeof(float) * VOCAB, &wild, sizeof wild);
    training_write(s.path, s.bytes, s.count);
    REFUSED(ref, ht_generator_load(g, 1, s.path), HT_FORMAT, "must be 0 to 40, got 117440512");
    /* a file of holes: no memory is asked for what is no state */
    assert_int_equal(truncate(s.path, 0), 0);
    assert_int_equal(truncate(s.path, (off_t)1 << 39), 0);
    REFUSED(ref, ht_generator_load(g, 1, s.path), HT_FORMAT, "is not a saved state");
    ht_generator_destroy(g);
    ht_model_destroy(model);
}

/* The last rows, which neighbours see, are part of a state and under its checksum. */
static void states_with_neighbours(void **state) {
    static const char *const kinds[] = {"{" PLAIN "\"query\":\"fine\"}",
                                        "{" PLAIN "\"query\":\"fine\",\"neighbours\":3}",
                                        "{" PLAIN "\"query\":\"fine\",\"neighbours\":4}"};
    static saved s[3];
    int32_t tokens[] = {1, 2, 3, 4, 5}, starts[] = {0, 5};
    ht_batch b = batch_of(tokens, starts, 1);
    ht_model *model[3];
    ht_generator *g[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        model[i] = make_model(ref, kinds[i], HT_F32);
        g[i] = make_generator(ref, model[i], 2, 0);
        OK(ref, ht_generator_feed(g[i], NULL, &b, NULL, 0));
        save_state(&s[i], g[i]);
    }
    size_t last =
        s[2].count - 8 - 2 * 3 * 32 * sizeof(float); /* two layers, three rows, the seal */
    for (int i = 0; i < 9; i++) {
        training_write(s[i % 3].path, s[i % 3].bytes, s[i % 3].count);
        if (i % 3 == i / 3)
            OK(ref, ht_generator_load(g[i / 3], 1, s[i % 3].path));
        else
            REFUSED(ref, ht_generator_load(g[i / 3], 1, s[i % 3].path), HT_FORMAT, "another model");
    }
    for (size_t at = last; at < s[2].count; at += 61) {
        s[2].bytes[at] ^= 4;
        training_write(s[2].path, s[2].bytes, s[2].count);
        REFUSED(ref, ht_generator_load(g[2], 1, s[2].path), HT_FORMAT, "its checksum is not");
        s[2].bytes[at] ^= 4;
    }
    for (int i = 0; i < 3; i++) {
        ht_generator_destroy(g[i]);
        ht_model_destroy(model[i]);
    }
}

static void faults(void **state) {
    ht_model *model = make_model(ref, models[0], HT_F32),
             *other = make_model(ref, models[2], HT_F32);
    ht_generator *g = make_generator(ref, model, 2, 0), *h = make_generator(ref, other, 1, 0),
                 *none;
    ht_generator_desc desc = HT_GENERATOR_DESC_INIT;
    ht_sampling s = HT_SAMPLING_INIT;
    int32_t tokens[] = {1, 41}, starts[] = {0, 1, 2}, token;
    int64_t twice[] = {1, 1}, far[] = {2};
    ht_batch b = batch_of(tokens, starts, 2);
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "%s/faults", training_folder);
    desc.slots = -1;
    REFUSED(ref, ht_generator_create(&none, model, &desc), HT_INVALID, "slots must be 1");
    assert_null(none);
    ht_config *c = training_config("{\"width\":16,\"heads\":2,\"layers\":1}");
    ht_model *classifier;
    OK(ref, ht_model_create(&classifier, ref, c));
    REFUSED(ref, ht_generator_create(&none, classifier, NULL), HT_INVALID, "has task classify");
    ht_model_destroy(classifier);
    REFUSED(ref, ht_generator_feed(g, NULL, &b, NULL, 0), HT_INVALID, "must be 0 to 40, got 41");
    tokens[1] = 2;
    REFUSED(ref, ht_generator_feed(g, twice, &b, NULL, 0), HT_INVALID, "slot 1 is named twice");
    REFUSED(ref, ht_generator_sample(g, 0, &s, &token, NULL), HT_INVALID, "slot 0 is empty");
    REFUSED(ref, ht_generator_save(g, 0, path), HT_INVALID, "slot 0 is empty");
    b.sequences = 1;
    REFUSED(ref, ht_generator_feed(g, far, &b, NULL, 0), HT_INVALID, "slot must be 0 to 1, got 2");
    OK(ref, ht_generator_feed(g, NULL, &b, NULL, 0));
    OK(ref, ht_generator_save(g, 0, path));
    REFUSED(ref, ht_generator_load(h, 0, path), HT_FORMAT, "was saved with another model");
    truncate_file(path, 1);
    REFUSED(ref, ht_generator_load(g, 1, path), HT_FORMAT, "is damaged");
    truncate_file(path, 3000);
    REFUSED(ref, ht_generator_load(g, 1, path), HT_FORMAT, "is");
    REFUSED(ref, ht_generator_load(g, 1, "/nowhere"), HT_IO, "/nowhere");
    static const struct {
        ht_sampling s;
        const char *words;
    } wrong[] = {
        {{sizeof(ht_sampling), -1, 0, 1, 0, 1, 0}, "temperature must be at least 0, got -1"},
        {{sizeof(ht_sampling), NAN, 0, 1, 0, 1, 0}, "temperature"},
        {{sizeof(ht_sampling), 1, -2, 1, 0, 1, 0}, "top_k must be at least 0, got -2"},
        {{sizeof(ht_sampling), 1, 0, 0, 0, 1, 0}, "top_p must be in (0, 1], got 0"},
        {{sizeof(ht_sampling), 1, 0, 1.5, 0, 1, 0}, "top_p must be in (0, 1], got 1.5"},
        {{sizeof(ht_sampling), 1, 0, 1, 2, 1, 0}, "min_p must be in [0, 1], got 2"},
        {{sizeof(ht_sampling), 1, 0, 1, 0, 0.5, 0}, "repeat_penalty must be at least 1, got 0.5"},
        {{3, 1, 0, 1, 0, 1, 0}, "ht_sampling.size must be 48"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(ref, ht_generator_sample(g, 0, &wrong[i].s, &token, NULL), HT_INVALID,
                wrong[i].words);
    ht_generator_destroy(g);
    ht_generator_destroy(h);
    ht_model_destroy(model);
    ht_model_destroy(other);
}

/* ---- models of other precisions ---- */

/* A model that was trained in bf16 writes on a device that has only float; one that was exported in
 * bf16 has weights that are near. */
static void other_precisions(void **state) {
    char path[128], *bytes = malloc(1 << 20);
    ht_model *model = make_model(ref, models[0], HT_F32), *loaded;
    const ht_config *config;
    (void)state;
    snprintf(path, sizeof path, "%s/model", training_folder);
    OK(ref, ht_model_save(model, path));
    FILE *f = fopen(path, "rb");
    size_t n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    static const char from[] = "\\\"dtype\\\": \\\"f32\\\"", to[] = "\\\"dtype\\\":\\\"bf16\\\"";
    size_t at = 0;
    while (at < n && memcmp(bytes + at, from, sizeof from - 1) != 0) at++;
    assert_true(at < n && sizeof from == sizeof to);
    memcpy(bytes + at, to, sizeof to - 1);
    for (at = 0; memcmp(bytes + at, "crc32", 5) != 0;) at++;
    memcpy(bytes + at, "crc00", 5); /* a file that has no checksums */
    f = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    OK(ref, ht_model_load(&loaded, ref, path));
    config = ht_model_config(loaded);
    assert_int_equal(training_int(config, "dtype"), HT_F32);
    ht_model_destroy(loaded);
    OK(ref, ht_model_export(model, path, HT_BF16));
    OK(ref, ht_model_load(&loaded, ref, path));
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ref, ht_model_tensor(model, i, &info));
        double *a = malloc(sizeof *a * 2 * (size_t)info.count), *b = a + info.count;
        OK(ref, ht_model_read(model, i, a));
        OK(ref, ht_model_read(loaded, i, b));
        for (int64_t k = 0; k < info.count; k++)
            assert_true(fabs(a[k] - b[k]) <= fabs(a[k]) / 256); /* half a unit of 8 bits */
        free(a);
    }
    REFUSED(ref, ht_model_export(model, path, HT_F64), HT_UNSUPPORTED, "f32 or bf16");
    ht_model_destroy(loaded);
    ht_model_destroy(model);
    free(bytes);
}

/* ---- memory that runs out ---- */

typedef struct meter {
    int64_t left; /* allocations that still succeed */
    int64_t live;
} meter;

static void *meter_alloc(void *user, size_t bytes) {
    meter *m = user;
    if (m->left-- <= 0) return NULL;
    m->live++;
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}

static void meter_release(void *user, void *block) {
    if (block) ((meter *)user)->live--;
    free(block);
}

/* A model writes, is saved and loaded; returns the first status that is not HT_OK. */
static ht_status whole_life(ht_context *ctx, const char *path) {
    ht_config *config = training_config(models[4]);
    ht_model *model = NULL;
    ht_generator *g = NULL;
    int32_t starts[] = {0, 40}, token;
    ht_batch b = batch_of(text, starts, 1);
    ht_sampling s = HT_SAMPLING_INIT;
    ht_status status = ht_model_create(&model, ctx, config);
    if (status == HT_OK) status = ht_generator_create(&g, model, NULL);
    if (status == HT_OK) status = ht_generator_feed(g, NULL, &b, NULL, 0);
    if (status == HT_OK) status = ht_generator_sample(g, 0, &s, &token, NULL);
    if (status == HT_OK) status = ht_generator_save(g, 0, path);
    if (status == HT_OK) status = ht_generator_load(g, 0, path);
    ht_generator_destroy(g);
    ht_model_destroy(model);
    return status;
}

static void out_of_memory(void **state) {
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "%s/life", training_folder);
    random_tokens(text, 40, VOCAB, 12);
    ht_status status = HT_NOMEM;
    int64_t n = 0;
    for (; status != HT_OK; n++) {
        meter m = {.left = n};
        ht_context_desc desc = HT_CONTEXT_DESC_INIT;
        ht_context *ctx;
        desc.device = "cpu:ref";
        desc.allocator = (ht_allocator){meter_alloc, meter_release, &m};
        status = ht_context_create(&ctx, &desc);
        if (status == HT_OK) {
            status = whole_life(ctx, path);
            assert_true(status == HT_OK || strstr(ht_context_error(ctx), "memory"));
            ht_context_destroy(ctx);
        }
        assert_true(status == HT_OK || status == HT_NOMEM);
        assert_int_equal(m.live, 0);
        assert_true(n < 500);
    }
    assert_true(n > 20);
}

/* ---- sampling: probabilities 0.4, 0.3, 0.2, 0.1 of tokens 2, 0, 3, 1 ---- */

static const double shares[] = {0.3, 0.1, 0.4, 0.2};

/* How often each token comes, over draws spread evenly. */
static void shares_of(double *out, const ht_sampling *s, const int32_t *recent, int recents) {
    enum { DRAWS = 10000 };
    float logits[5] = {0, 0, 0, 0, -INFINITY};
    for (int i = 0; i < 4; i++) logits[i] = 3 + (float)log(shares[i]), out[i] = 0;
    for (int i = 0; i < DRAWS; i++) {
        int32_t token;
        OK(ref, ht_sample(ref, s, logits, 5, recent, recents, (i + 0.5) / DRAWS, &token));
        assert_in_range(token, 0, 3); /* what cannot occur never does */
        out[token] += 1.0 / DRAWS;
    }
}

static void sampling(void **state) {
    static const struct {
        ht_sampling s;
        double want[4];
    } cases[] = {
        {{sizeof(ht_sampling), 1, 0, 1, 0, 1, 0}, {0.3, 0.1, 0.4, 0.2}},
        {{sizeof(ht_sampling), 0, 0, 1, 0, 1, 0}, {0, 0, 1, 0}},
        {{sizeof(ht_sampling), 1, 1, 1, 0, 1, 0}, {0, 0, 1, 0}},
        {{sizeof(ht_sampling), 1, 2, 1, 0, 1, 0}, {3.0 / 7, 0, 4.0 / 7, 0}},
        {{sizeof(ht_sampling), 1, 3, 1, 0, 1, 0}, {3.0 / 9, 0, 4.0 / 9, 2.0 / 9}},
        {{sizeof(ht_sampling), 1, 9, 1, 0, 1, 0}, {0.3, 0.1, 0.4, 0.2}},
        {{sizeof(ht_sampling), 1, 0, 0.39, 0, 1, 0}, {0, 0, 1, 0}},
        {{sizeof(ht_sampling), 1, 0, 0.41, 0, 1, 0}, {3.0 / 7, 0, 4.0 / 7, 0}},
        {{sizeof(ht_sampling), 1, 0, 0.85, 0, 1, 0}, {3.0 / 9, 0, 4.0 / 9, 2.0 / 9}},
        {{sizeof(ht_sampling), 1, 0, 1, 0.6, 1, 0}, {3.0 / 7, 0, 4.0 / 7, 0}},
        {{sizeof(ht_sampling), 1, 0, 1, 1, 1, 0}, {0, 0, 1, 0}},
        /* of the two that top_k leaves, 0.4 / 0.7 is more than half */
        {{sizeof(ht_sampling), 1, 2, 0.5, 0, 1, 0}, {0, 0, 1, 0}},
        /* squares: 9, 1, 16, 4 of 30 */
        {{sizeof(ht_sampling), 0.5, 0, 1, 0, 1, 0}, {0.3, 1.0 / 30, 16.0 / 30, 4.0 / 30}},
    };
    double got[4];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shares_of(got, &cases[i].s, NULL, 0);
        for (int k = 0; k < 4; k++)
            if (fabs(got[k] - cases[i].want[k]) > 2e-4) {
                print_error("case %zu: token %d comes %.4f of the time, should be %.4f\n", i, k,
                            got[k], cases[i].want[k]);
                fail();
            }
    }
    /* a penalty halves the positive logit of token 2, once, however often it was said */
    ht_sampling s = HT_SAMPLING_INIT;
    int32_t recent[] = {2, 2, 2};
    s.repeat_penalty = 2;
    shares_of(got, &s, recent, 3);
    double z = 3 + log(0.4), w = exp(z / 2), sum = exp(3) * 0.6 + w;
    assert_true(fabs(got[2] - w / sum) < 2e-4);
    float nothing[] = {NAN, -INFINITY};
    int32_t token;
    REFUSED(ref, ht_sample(ref, &s, nothing, 2, NULL, 0, 0.5, &token), HT_INVALID,
            "no logit is finite");
    REFUSED(ref, ht_sample(ref, &s, nothing, 2, recent, 3, 0.5, &token), HT_INVALID,
            "recent[0] must be 0 to 1, got 2");
    REFUSED(ref, ht_sample(ref, &s, nothing, 2, NULL, 0, 1, &token), HT_INVALID, "draw must be");
}

/* Top-k and top-p of many tokens against sorting them all. */
static int descending(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

static void sampling_many(void **state) {
    enum { MANY = 3000 };
    static float logits[MANY];
    static double sorted[MANY];
    uint32_t random = 5;
    (void)state;
    for (int round = 0; round < 40; round++) {
        double sum = 0, mass = 0;
        for (int i = 0; i < MANY; i++) {
            logits[i] = (float)(12 * training_random(&random) - 6);
            if (round % 2) logits[i] = roundf(logits[i]); /* many are equal */
            sorted[i] = exp((double)logits[i]);
        }
        qsort(sorted, MANY, sizeof *sorted, descending);
        ht_sampling s = HT_SAMPLING_INIT;
        s.top_k = 1 + (int64_t)(training_random(&random) * MANY);
        s.top_p = 0.01 + 0.98 * training_random(&random);
        for (int64_t i = 0; i < s.top_k; i++) sum += sorted[i];
        int64_t k = 0;
        while (mass < s.top_p * sum) mass += sorted[k++];
        double least = sorted[k - 1] * (1 - 1e-6);
        for (int i = 0; i < 50; i++) {
            int32_t token;
            OK(ref, ht_sample(ref, &s, logits, MANY, NULL, 0, (i + 0.5) / 50, &token));
            assert_true(exp((double)logits[token]) >= least);
        }
        /* the last draw is the last of the kept ones */
        int32_t token;
        OK(ref, ht_sample(ref, &s, logits, MANY, NULL, 0, 1 - 1e-12, &token));
        assert_true(fabs(exp((double)logits[token]) / sorted[k - 1] - 1) < 1e-6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_is_full_pass),
        cmocka_unit_test(beyond_training_length),
        cmocka_unit_test(causal),
        cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(slots_are_apart),
        cmocka_unit_test(saved_and_forked),
        cmocka_unit_test(state_rows),
        cmocka_unit_test(damaged_states),
        cmocka_unit_test(states_with_neighbours),
        cmocka_unit_test(faults),
        cmocka_unit_test(sampling),
        cmocka_unit_test(sampling_many),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(other_precisions),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
