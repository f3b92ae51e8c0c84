/*
 * The benchmarks and info on sizes that take no time: lines of JSON that parse, with the members
 * that readers of results rely on.
 */
#include "program.h"

#include <cjson/cJSON.h>
#include <math.h>

/* Line n of the output as an object; the caller deletes it. */
static cJSON *line(const char *text, int n) {
    while (n-- > 0) text = strchr(text, '\n') + 1;
    const char *end = NULL;
    cJSON *object = cJSON_ParseWithOpts(text, &end, 0);
    assert_non_null(object);
    assert_int_equal(*end, '\n');
    return object;
}

static int lines(const char *text) {
    int count = 0;
    for (; *text; text++) count += *text == '\n';
    return count;
}

static void check_text(const cJSON *object, const char *key, const char *wanted) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsString(item));
    assert_string_equal(item->valuestring, wanted);
}

/* A finite number; with allow_null also null, which becomes NaN. */
static double number(const cJSON *object, const char *key, int allow_null) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_non_null(item);
    if (allow_null && cJSON_IsNull(item)) return NAN;
    assert_true(cJSON_IsNumber(item) && isfinite(item->valuedouble));
    return item->valuedouble;
}

#define TINY "--heads 2 --head-dim 8 --block 4 --repeat 1 --threads 1 --json "

static void check_attention(const char *text, int at, const char *what, int length) {
    cJSON *o = line(text, at);
    check_text(o, "what", what);
    check_text(o, "kind", "hierarchical");
    check_text(o, "query", "mean");
    check_text(o, "dtype", "f32");
    assert_true(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(o, "causal")));
    static const char *const keys[] = {"batch", "heads",   "kv_heads", "head_dim",
                                       "block", "threads", "length"};
    const double wanted[] = {3, 2, 2, 8, 4, 1, length};
    for (int i = 0; i < 7; i++) assert_true(number(o, keys[i], 0) == wanted[i]);
    assert_true(cJSON_IsString(cJSON_GetObjectItemCaseSensitive(o, "device")));
    assert_true(cJSON_IsString(cJSON_GetObjectItemCaseSensitive(o, "version")));
    double ms = number(o, "ms", 0), gflops = number(o, "gflops", 0);
    double operations = 4.0 * 8 * 4.5 * 4 * length * 2 * 3 * (strcmp(what, "backward") ? 1 : 2.5);
    assert_true(ms > 0);
    assert_true(fabs(gflops * ms * 1e6 / operations - 1) < 1e-4);
    /* on a CPU they have no other name */
    check_text(o, "kernels", cJSON_GetObjectItemCaseSensitive(o, "device")->valuestring);
    double sgemm = number(o, "sgemm_gflops", 1), ratio = number(o, "ratio_to_sgemm", 1);
    assert_true(isnan(sgemm) == isnan(ratio));
    if (!isnan(sgemm)) assert_true(fabs(ratio * sgemm / gflops - 1) < 1e-4);
    assert_true(isnan(number(o, "floor_ms", 1)) && isnan(number(o, "ratio_to_floor", 1)));
    assert_true(number(o, "bytes_saved", 0) > 0);
    assert_true(number(o, "bytes_scratch", 0) >= 0);
    cJSON_Delete(o);
}

static void test_attention_json(void **state) {
    (void)state;
    const program_result *r = program_run("bench attention --batch 3 --length 64,100 " TINY);
    assert_int_equal(r->code, 0);
    assert_string_equal(r->err, "");
    assert_int_equal(lines(r->out), 4);
    check_attention(r->out, 0, "forward", 64);
    check_attention(r->out, 1, "backward", 64);
    check_attention(r->out, 2, "forward", 100);
    check_attention(r->out, 3, "backward", 100);
}

static void test_every_mode_runs(void **state) {
    (void)state;
    static const char *const modes[] = {
        "--query first", "--query fine --kv-heads 1", "--kind full",          "--kind local",
        "--causal",      "--causal --query fine",     "--causal --kind full", "--dtype f64",
        "--keep",        "--bias --kind full",        "--bias --causal",      "--bias --dtype f64"};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        /* double is the reference kernels' business */
        const char *device = strstr(modes[i], "f64") ? "--device cpu:ref" : "";
        const program_result *r =
            program_run("bench attention --length 40 " TINY "%s %s", modes[i], device);
        assert_int_equal(r->code, 0);
        assert_int_equal(lines(r->out), 2);
        cJSON *o = line(r->out, 1);
        int bias = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "bias"));
        assert_int_equal(bias, strstr(modes[i], "--bias") != NULL);
        cJSON_Delete(o);
    }
}

static void test_attention_table(void **state) {
    (void)state;
    const program_result *r = program_run(
        "bench attention --length 32 --heads 1 --head-dim 4 --repeat 1 --causal --bias");
    assert_int_equal(r->code, 0);
    assert_non_null(
        strstr(r->out, "hierarchical causal, bias, query fine; batch 1, heads 1/1, head_dim 4"));
    assert_non_null(strstr(r->out, "what         length           ms"));
    assert_non_null(strstr(r->out, "\nforward          32 "));
    assert_non_null(strstr(r->out, "\nbackward         32 "));
    assert_null(strstr(r->out, "nan"));
    assert_null(strstr(r->out, "inf"));
}

/* 2*block rows per level, levels made when needed; full keeps every row, local two blocks. */
static void test_decode_json(void **state) {
    (void)state;
    static const struct {
        const char *kind;
        int rows;
    } cases[] = {{"hierarchical", 2 * 4 * 5}, {"full", 100}, {"local", 2 * 4}};
    for (int i = 0; i < 3; i++) {
        const program_result *r =
            program_run("bench decode --batch 3 --length 100 " TINY "--kind %s", cases[i].kind);
        assert_int_equal(r->code, 0);
        assert_int_equal(lines(r->out), 1);
        cJSON *o = line(r->out, 0);
        check_text(o, "what", "decode");
        check_text(o, "kind", cases[i].kind);
        assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "causal")));
        assert_true(number(o, "length", 0) == 100);
        assert_true(number(o, "us_per_token", 0) > 0);
        assert_true(fabs(number(o, "us_per_step", 0) / number(o, "us_per_token", 0) - 3) < 1e-4);
        assert_true(number(o, "us_slowest_step", 0) > 0);
        assert_true(number(o, "state_rows", 0) == cases[i].rows);
        assert_true(number(o, "state_bytes", 0) > 0);
        assert_true(number(o, "kv_bytes", 0) == 2 * 100 * 2 * 8 * 4);
        static const char *const empty[] = {"gflops", "sgemm_gflops", "ratio_to_sgemm",
                                            "bytes_saved", "bytes_scratch"};
        for (int k = 0; k < 5; k++) assert_true(isnan(number(o, empty[k], 1)));
        cJSON_Delete(o);
    }
}

static void test_decode_prefills_in_chunks(void **state) {
    (void)state;
    const program_result *r = program_run("bench decode --length 9000 --query fine " TINY);
    assert_int_equal(r->code, 0);
    cJSON *o = line(r->out, 0);
    assert_true(number(o, "state_rows", 0) == 2 * 4 * 12);
    check_text(o, "query", "fine");
    cJSON_Delete(o);
}

static void test_decode_table(void **state) {
    (void)state;
    const program_result *r =
        program_run("bench decode --length 20 --heads 1 --head-dim 4 --repeat 1");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "context     us/token"));
    assert_non_null(strstr(r->out, "\n       20 "));
}

static void test_info_json(void **state) {
    (void)state;
    const program_result *r = program_run("info --json");
    assert_int_equal(r->code, 0);
    assert_int_equal(lines(r->out), 1);
    cJSON *o = line(r->out, 0), *device;
    assert_true(number(o, "threads", 0) >= 1);
    cJSON *devices = cJSON_GetObjectItemCaseSensitive(o, "devices");
    assert_true(cJSON_IsArray(devices));
    const cJSON *taken = cJSON_GetObjectItemCaseSensitive(o, "device");
    int chosen = 0, reference = 0;
    cJSON_ArrayForEach(device, devices) {
        const char *name = cJSON_GetObjectItemCaseSensitive(device, "name")->valuestring;
        assert_true(cJSON_IsString(cJSON_GetObjectItemCaseSensitive(device, "about")));
        if (strcmp(name, "cpu:ref") == 0)
            reference += cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(device, "available"));
        if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(device, "chosen"))) continue;
        chosen++;
        assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(device, "available")));
        assert_string_equal(name, taken->valuestring);
    }
    assert_int_equal(chosen, 1);
    assert_int_equal(reference, 1);
    cJSON_Delete(o);
}

/* OpenBLAS that does not know the CPU takes it for one without AVX; what a user says stays. */
static void test_blas_knows_the_cpu(void **state) {
    (void)state;
    if (!strstr(program_run("info")->out, "DYNAMIC_ARCH")) skip();
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        assert_null(strstr(program_run("info")->out, "Prescott"));
    setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    assert_non_null(strstr(program_run("info")->out, "Prescott"));
    unsetenv("OPENBLAS_CORETYPE");
#endif
}

static void test_types(void **state) {
    static const char *const dtypes[] = {"bf16", "f16", "f64"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        const program_result *r =
            program_run("bench attention --length 40 " TINY "--dtype %s", dtypes[i]);
        assert_int_equal(r->code, 0);
        assert_non_null(strstr(r->out, dtypes[i]));
    }
}

int main(void) {
    setenv("HTRANSFORMER_DEVICE", "cpu", 1); /* info's device must be the chosen one */
    unsetenv("OPENBLAS_CORETYPE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_json),
        cmocka_unit_test(test_every_mode_runs),
        cmocka_unit_test(test_attention_table),
        cmocka_unit_test(test_decode_json),
        cmocka_unit_test(test_decode_prefills_in_chunks),
        cmocka_unit_test(test_decode_table),
        cmocka_unit_test(test_info_json),
        cmocka_unit_test(test_blas_knows_the_cpu),
        cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
