/*
 * eval --needle: the texts, and two models made by hand, one that provably finds the number and one
 * that provably cannot.
 *
 * The models have one layer and a learned vector per position, a unit vector. The rows that are to
 * say the answer ask for the positions of the needle at one depth, whose digits then go to the
 * output. Full attention sees them, and so do rows that open clusters; the same queries and keys
 * without opening see them only as part of a mean.
 */
#include "eval/needle.h"

#include "program.h"

#include <math.h>

enum { LENGTH = 128, DEPTH = 25, WIDTH = LENGTH + 20, IN = LENGTH, OUT = LENGTH + 10 };

/* ---- texts ------------------------------------------------------------------------------- */

static int count_of(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

static void texts(void **state) {
    char text[513] = "", other[513] = "", first[NEEDLE_DIGITS + 1] = "";
    const needle_hay none = {0};
    needle_hay hay = {(unsigned char *)"abcdefg", 7, 0};
    int same = 0;
    (void)state;
    for (int depth = 0; depth <= 100; depth += 25) {
        for (int item = 0; item < 20; item++) {
            int64_t at = needle_write((unsigned char *)text, 512, depth, item, &none);
            int64_t begin = at - (int64_t)strlen(" The secret number is ");
            assert_int_equal(strlen(text), 512);
            assert_int_equal(count_of(text, " The secret number is "), 2);
            assert_memory_equal(text + at, text + 512 - NEEDLE_DIGITS, NEEDLE_DIGITS);
            assert_memory_equal(text + at + NEEDLE_DIGITS, ". ", 2);
            for (int i = 0; i < NEEDLE_DIGITS; i++)
                assert_true(text[at + i] >= '0' && text[at + i] <= '9');
            int64_t last = 512 - 2 * (int64_t)strlen(" The secret number is 01234") - 2;
            assert_int_equal(begin, last * depth / 100);
            same += memcmp(first, text + at, NEEDLE_DIGITS) == 0;
            memcpy(first, text + at, NEEDLE_DIGITS);
            needle_write((unsigned char *)other, 512, depth, item, &none);
            assert_string_equal(text, other);
        }
    }
    assert_true(same < 3); /* numbers differ */
    needle_write((unsigned char *)text, 512, 50, 0, &hay);
    assert_non_null(strstr(text, "abcdefgabcdefg"));
}

/* ---- models ------------------------------------------------------------------------------ */

static ht_context *cpu;

static void ok(ht_status status) {
    if (status != HT_OK) fail_msg("%s", ht_context_error(cpu));
}

/* All weights 0 but for those of `name`, written by `fill`, and the norms. */
static void set(ht_model *model, const char *name, void (*fill)(double *, int64_t columns)) {
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        ok(ht_model_tensor(model, i, &info));
        if (strcmp(info.name, name) != 0) continue;
        double *x = calloc((size_t)info.count, sizeof *x);
        assert_non_null(x);
        if (fill) fill(x, info.shape[1]);
        ok(ht_model_write(model, i, x));
        free(x);
        return;
    }
    fail_msg("no tensor %s", name);
}

static void tokens(double *x, int64_t columns) {
    for (int d = 0; d < 10; d++) x[('0' + 1 + d) * columns + IN + d] = 1;
}

static void positions(double *x, int64_t columns) {
    for (int p = 0; p < LENGTH; p++) x[p * columns + p] = 1;
}

/* Row t + 1 holds byte t: the row whose target is the answer's digit i looks for the row that
 * holds the needle's. */
static void projections(double *x, int64_t columns) {
    unsigned char text[LENGTH];
    const needle_hay none = {0};
    int64_t at = needle_write(text, LENGTH, DEPTH, 0, &none);
    double *q = x, *k = x + WIDTH * columns, *v = x + 2 * WIDTH * columns;
    for (int i = 0; i < NEEDLE_DIGITS; i++)
        q[(at + i + 1) * columns + LENGTH - NEEDLE_DIGITS + i] = 9;
    for (int p = 0; p < LENGTH; p++) k[p * columns + p] = 1;
    for (int d = 0; d < 10; d++) v[d * columns + IN + d] = 1;
}

static void heads(double *x, int64_t columns) {
    for (int d = 0; d < 10; d++) x[(OUT + d) * columns + d] = 1;
}

static void output(double *x, int64_t columns) {
    for (int d = 0; d < 10; d++) x[('0' + 1 + d) * columns + OUT + d] = 5;
}

static void make(const char *name, const char *attention) {
    ht_config *config;
    ht_model *model;
    char json[512];
    snprintf(json, sizeof json,
             "{\"task\":\"language\",\"format\":\"text\",\"layers\":1,\"heads\":1,\"width\":%d,"
             "\"hidden\":8,\"sinusoidal\":0,\"learned\":1,\"length\":%d,\"batch\":3,\"block\":2,"
             "\"attention\":\"%s\",\"query\":\"fine\"}",
             WIDTH, LENGTH, attention);
    ok(ht_config_create(&config, cpu, NULL));
    ok(ht_config_read_json(config, json));
    ok(ht_model_create(&model, cpu, config));
    set(model, "embed.tokens.weight", tokens);
    set(model, "embed.positions.weight", positions);
    set(model, "layers.0.attention.qkv.weight", projections);
    set(model, "layers.0.attention.output.weight", heads);
    set(model, "layers.0.mlp.down.weight", NULL);
    set(model, "layers.0.mlp.down.bias", NULL);
    set(model, "output.weight", output);
    ok(ht_model_save(model, program_path(name)));
    ht_model_destroy(model);
    ht_config_destroy(config);
}

/* The share that was found at a depth. */
static double found(const char *arguments, int depth) {
    char key[32];
    const program_result *r = program_run("eval %s --needle 128 --items 10 --json", arguments);
    if (r->code != 0) fail_msg("%s", r->err);
    snprintf(key, sizeof key, "\"depth\": %d,", depth);
    const char *at = strstr(r->out, key);
    assert_non_null(at);
    at = strstr(at, "\"found\": ");
    assert_non_null(at);
    return strtod(at + 9, NULL);
}

static void can_and_cannot(void **state) {
    (void)state;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu";
    assert_int_equal(ht_context_create(&cpu, &desc), HT_OK);
    make("full.safetensors", "full");
    make("far.safetensors", "hierarchical");
    assert_true(found("full.safetensors", DEPTH) == 1);
    assert_true(found("full.safetensors", 75) < 0.2); /* it looks elsewhere */
    assert_true(found("far.safetensors", DEPTH) < 0.2);
    assert_true(found("far.safetensors --open 2", DEPTH) == 1);
    assert_true(found("far.safetensors --open 1000", DEPTH) == 1);
    const program_result *r = program_run(
        "eval far.safetensors --open 2 --needle 96,128 --depth 25,100 --items 4 --device cpu:ref");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "   25 %"));
    assert_non_null(strstr(r->out, "100.0 ("));
    ht_context_destroy(cpu);
}

static void wrong_usage(void **state) {
    (void)state;
    program_expect(2, "--needle must be 96 to", "eval far.safetensors --needle 50");
    program_expect(1, "128", "eval far.safetensors --needle 256"); /* no vectors that far */
    assert_int_equal(program_run("train --run list --train_items 40 --valid_items 8 --steps 2 "
                                 "--listops_min 4 --listops_max 24 --quiet --threads 1")
                         ->code,
                     0);
    program_expect(1, "--needle is for language models", "eval list --needle 128");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(can_and_cannot),
        cmocka_unit_test(wrong_usage),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
