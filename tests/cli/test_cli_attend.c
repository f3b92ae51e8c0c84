/*
 * htransformer attend on small files: known values, and properties that hold for any input.
 */
#include "program.h"

#include <float.h>
#include <math.h>

#define SCALED "--q q.npy --k k.npy --v v.npy --out z.npy --scale 1 "

/* Runs attend and returns its output, which must have this many numbers. */
static double *attend_f64(const char *options, const char *shape, size_t wanted) {
    size_t count;
    const program_result *r = program_run("attend %s", options);
    if (r->code != 0) print_error("attend %s: %s", options, r->err);
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, "");
    assert_string_equal(r->err, "");
    double *z = npy_data("z.npy", "<f8", shape, &count);
    assert_int_equal(count, wanted);
    return z;
}

static void near(double got, double wanted) {
    double scale = fabs(wanted) > 1 ? fabs(wanted) : 1;
    if (!(fabs(got - wanted) <= 4 * DBL_EPSILON * scale))
        print_error("got %.17g, wanted %.17g\n", got, wanted);
    assert_true(fabs(got - wanted) <= 4 * DBL_EPSILON * scale);
}

/* ---- known values ------------------------------------------------------------------------ */

/* Scores 0 and ln 3 give weights 1/4 and 3/4, whatever the kind: two rows are one block. */
static void test_two_rows_by_hand(void **state) {
    (void)state;
    const double q[2] = {1, 1}, k[2] = {0, log(3)}, v[2] = {0, 4};
    static const char *const kinds[] = {"hierarchical", "full", "local"};
    npy_f64("q.npy", "(1, 2, 1, 1)", q, 2);
    npy_f64("k.npy", "(1, 2, 1, 1)", k, 2);
    npy_f64("v.npy", "(1, 2, 1, 1)", v, 2);
    for (int i = 0; i < 3; i++) {
        char options[256];
        size_t count;
        snprintf(options, sizeof options, SCALED "--lse lse.npy --kind %s", kinds[i]);
        double *z = attend_f64(options, "(1, 2, 1, 1)", 2);
        double *lse = npy_data("lse.npy", "<f8", "(1, 2, 1)", &count);
        assert_int_equal(count, 2);
        near(z[0], 3), near(z[1], 3);
        near(lse[0], log(4)), near(lse[1], log(4));
        free(z), free(lse);
        snprintf(options, sizeof options, SCALED "--causal --kind %s", kinds[i]);
        z = attend_f64(options, "(1, 2, 1, 1)", 2);
        assert_true(z[0] == 0); /* row 0 sees itself alone */
        near(z[1], 3);
        free(z);
    }
}

/* float16 in and out, lse in float32; a bias must be float32. */
static void test_float16(void **state) {
    (void)state;
#define F16(shape) "{'descr': '<f2', 'fortran_order': False, 'shape': " shape ", }\n"
    const uint16_t zero[2] = {0, 0}, v[2] = {0, 0x4400}; /* 0 and 4 */
    const float bias[7] = {0};
    size_t count;
    npy_raw("q.npy", F16("(1, 2, 1, 1)"), zero, sizeof zero);
    npy_raw("k.npy", F16("(1, 2, 1, 1)"), zero, sizeof zero);
    npy_raw("v.npy", F16("(1, 2, 1, 1)"), v, sizeof v);
    npy_f32("bias.npy", "(7, 1)", bias, 7);
    program_expect(0, "", "attend " SCALED "--lse lse.npy --bias bias.npy --block 2");
    uint16_t *z = npy_data("z.npy", "<f2", "(1, 2, 1, 1)", &count);
    float *lse = npy_data("lse.npy", "<f4", "(1, 2, 1)", &count);
    assert_int_equal(z[0], 0x4000); /* 2 */
    assert_int_equal(z[1], 0x4000);
    assert_true(fabsf(lse[1] - logf(2)) <= 4 * FLT_EPSILON);
    free(z), free(lse);
    npy_raw("bias.npy", F16("(7, 1)"), bias, 14);
    program_expect(1, "bias.npy holds float16; beside float16 a bias is float32",
                   "attend " SCALED "--bias bias.npy --block 2");
#undef F16
}

/* Block 2, 8 rows, causal and first, all scores 0: level 0 covers blocks own and left, the rest are
 * clusters whose v is a sum and whose weight is 2 or 4: everything is a plain mean of the past. */
static void test_zero_queries_give_the_mean_of_the_past(void **state) {
    (void)state;
    double q[8] = {0}, k[8], v[8], sum = 0;
    uint64_t seed = 3;
    for (int i = 0; i < 8; i++) k[i] = program_random(&seed), v[i] = i * i;
    npy_f64("q.npy", "(1, 8, 1, 1)", q, 8);
    npy_f64("k.npy", "(1, 8, 1, 1)", k, 8);
    npy_f64("v.npy", "(1, 8, 1, 1)", v, 8);
    static const char *const modes[] = {"first", "fine"};
    for (int m = 0; m < 2; m++) {
        char options[256];
        size_t count;
        snprintf(options, sizeof options, SCALED "--causal --block 2 --query %s --lse l.npy",
                 modes[m]);
        double *z = attend_f64(options, "(1, 8, 1, 1)", 8);
        double *lse = npy_data("l.npy", "<f8", "(1, 8, 1)", &count);
        sum = 0;
        for (int i = 0; i < 8; i++) {
            sum += v[i];
            near(z[i], sum / (i + 1));
            near(lse[i], log(i + 1));
        }
        free(z), free(lse);
    }
}

/* q = k = (1, 0) turned by the row's position: the score of rows 0 and 1 is cos 1. */
static void test_rotary_by_hand(void **state) {
    (void)state;
    const double turned[4] = {1, 0, 1, 0}, v[2] = {0, 1};
    npy_f64("q.npy", "(1, 2, 1, 2)", turned, 4);
    npy_f64("k.npy", "(1, 2, 1, 2)", turned, 4);
    npy_f64("v.npy", "(1, 2, 1, 1)", v, 2);
    double *z = attend_f64(SCALED "--rotary0 10000", "(1, 2, 1, 1)", 2);
    near(z[0], 1 / (1 + exp(1 - cos(1))));
    near(z[1], 1 / (1 + exp(cos(1) - 1)));
    free(z);
}

/* ---- properties -------------------------------------------------------------------------- */

enum { BATCH = 2, LENGTH = 100, HEADS = 2, DIM = 4, COUNT = BATCH * LENGTH * HEADS * DIM };
#define SHAPE "(2, 100, 2, 4)"

static double numbers[3][COUNT]; /* q, k, v, none beyond 2 */

/* two orders of summing LENGTH numbers up to 2 may differ by this */
#define ROUNDING (2.0 * LENGTH * DBL_EPSILON)

/* Random q, k, v as q.npy, k.npy, v.npy of either type. */
static void write_random(int single) {
    static const char *const names[] = {"q.npy", "k.npy", "v.npy"};
    static float rounded[COUNT];
    uint64_t seed = 7;
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < COUNT; i++) {
            rounded[i] = (float)(2 * program_random(&seed));
            numbers[t][i] = rounded[i];
        }
        if (single)
            npy_f32(names[t], SHAPE, rounded, COUNT);
        else
            npy_f64(names[t], SHAPE, numbers[t], COUNT);
    }
}

static const char *const modes[] = {
    "--query mean",
    "--query first",
    "--query fine",
    "--kind full",
    "--kind local",
    "--causal",
    "--causal --query fine",
    "--causal --kind full",
    "--causal --kind local",
    "--causal --query first",
    /* local and full do without a query */
    "--causal --kind local --query mean",
};
#define MODES (sizeof modes / sizeof modes[0])

static void test_values_of_one_give_one(void **state) {
    (void)state;
    float ones[COUNT];
    write_random(1);
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    npy_f32("v.npy", SHAPE, ones, COUNT);
    for (size_t m = 0; m < MODES; m++) {
        size_t count;
        const program_result *r = program_run("attend --q q.npy --k k.npy --v v.npy --out z.npy "
                                              "--block 4 %s",
                                              modes[m]);
        assert_int_equal(r->code, 0);
        float *z = npy_data("z.npy", "<f4", SHAPE, &count);
        assert_int_equal(count, COUNT);
        for (int i = 0; i < COUNT; i++) assert_true(fabsf(z[i] - 1) <= 4 * FLT_EPSILON);
        free(z);
    }
}

/* Largest difference of two outputs. */
static double difference(const double *a, const double *b) {
    double most = 0;
    for (int i = 0; i < COUNT; i++) most = fmax(most, fabs(a[i] - b[i]));
    return most;
}

#define PLAIN "--q q.npy --k k.npy --v v.npy --out z.npy "

static void test_big_blocks_are_full_attention(void **state) {
    (void)state;
    write_random(0);
    double *full = attend_f64(PLAIN "--kind full", SHAPE, COUNT), single_error = 0, error = 0;
    double *same = attend_f64(PLAIN "--block 50", SHAPE, COUNT);
    double *coarse = attend_f64(PLAIN "--block 4", SHAPE, COUNT);
    double *local = attend_f64(PLAIN "--block 4 --kind local", SHAPE, COUNT);
    double *opened = attend_f64(PLAIN "--block 4 --open 100", SHAPE, COUNT);
    double *some = attend_f64(PLAIN "--block 4 --open 2 --open_leaf 4 --open_peek 2", SHAPE, COUNT);
    double *mean =
        attend_f64(PLAIN "--block 4 --open 2 --open_leaf 1 --open_peek -1", SHAPE, COUNT);
    assert_true(difference(full, opened) <= ROUNDING);
    assert_true(difference(full, some) > 1e-3 && difference(some, mean) > 1e-3);
    free(opened), free(some), free(mean);
    program_expect(1, "open_leaf must be a power of two, got 6",
                   "attend " PLAIN "--open 2 --open-leaf 6");
    program_expect(1, "open is 2 with query mean, not fine",
                   "attend " PLAIN "--open 2 --query mean");
    program_expect(1, "open is 2 with kind full", "attend " PLAIN "--open 2 --kind full");
    assert_true(difference(full, same) <= ROUNDING);
    assert_true(difference(full, coarse) > 1e-3);  /* what the hierarchy leaves out */
    assert_true(difference(coarse, local) > 1e-3); /* what it adds to level 0 */
    write_random(1);
    size_t count;
    assert_int_equal(program_run("attend " PLAIN "--kind full")->code, 0);
    float *plain = npy_data("z.npy", "<f4", SHAPE, &count);
    assert_int_equal(program_run("attend " PLAIN "--block 50")->code, 0);
    float *blocks = npy_data("z.npy", "<f4", SHAPE, &count);
    for (int i = 0; i < COUNT; i++) {
        single_error = fmax(single_error, fabs(plain[i] - full[i]));
        error = fmax(error, fabs(blocks[i] - full[i]));
    }
    assert_true(error <= 2 * single_error + 4 * FLT_EPSILON * 2);
    free(full), free(same), free(coarse), free(local), free(plain), free(blocks);
}

static void test_the_future_changes_nothing(void **state) {
    (void)state;
    static const char *const causal[] = {"--query first", "--query fine", "--kind full",
                                         "--kind local"};
    for (int m = 0; m < 4; m++) {
        char options[128];
        snprintf(options, sizeof options, PLAIN "--causal --block 4 %s", causal[m]);
        write_random(0);
        double *before = attend_f64(options, SHAPE, COUNT);
        for (int b = 0; b < BATCH; b++)
            for (int i = 0; i < HEADS * DIM; i++)
                numbers[1][((b * LENGTH) + 90) * HEADS * DIM + i] += 100;
        npy_f64("k.npy", SHAPE, numbers[1], COUNT);
        double *after = attend_f64(options, SHAPE, COUNT);
        size_t row = HEADS * DIM, changed = 0;
        for (int b = 0; b < BATCH; b++) {
            const double *old = before + (size_t)b * LENGTH * row,
                         *new = after + (size_t)b *LENGTH *row;
            assert_memory_equal(old, new, 90 * row * sizeof *old);
            changed += memcmp(old + 90 * row, new + 90 * row, row * sizeof *old) != 0;
        }
        assert_int_equal(changed, BATCH);
        free(before), free(after);
    }
}

/* Masked rows hold NaN; masked queries give 0 and a log-sum-exp of -inf. */
static void test_masks(void **state) {
    (void)state;
    uint8_t mask[BATCH * LENGTH];
    size_t row = HEADS * DIM, count;
    write_random(0);
    for (size_t i = 0; i < BATCH * LENGTH; i++) mask[i] = i % 3 == 1 ? 0 : (uint8_t)(1 + i % 200);
    npy_u8("mask.npy", "(2, 100)", mask, BATCH * LENGTH);
    const char *options = PLAIN "--block 4 --key-mask mask.npy --query-mask mask.npy --lse l.npy";
    double *clean = attend_f64(options, SHAPE, COUNT);
    double *lse = npy_data("l.npy", "<f8", "(2, 100, 2)", &count);
    for (size_t i = 0; i < BATCH * LENGTH; i++) {
        for (size_t c = 0; c < row; c++) {
            if (!mask[i])
                assert_true(clean[i * row + c] == 0);
            else
                assert_true(isfinite(clean[i * row + c]));
            if (!mask[i])
                numbers[0][i * row + c] = numbers[1][i * row + c] = numbers[2][i * row + c] = NAN;
        }
        for (size_t h = 0; h < HEADS; h++)
            assert_true(mask[i] ? isfinite(lse[i * HEADS + h]) : lse[i * HEADS + h] == -HUGE_VAL);
    }
    npy_f64("q.npy", SHAPE, numbers[0], COUNT);
    npy_f64("k.npy", SHAPE, numbers[1], COUNT);
    npy_f64("v.npy", SHAPE, numbers[2], COUNT);
    double *dirty = attend_f64(options, SHAPE, COUNT);
    assert_memory_equal(clean, dirty, COUNT * sizeof *clean);
    for (size_t i = 0; i < BATCH * LENGTH; i++) mask[i] = mask[i] != 0;
    npy_raw("mask.npy", "{'descr': '|b1', 'fortran_order': False, 'shape': (2, 100), }\n", mask,
            sizeof mask);
    double *boolean = attend_f64(options, SHAPE, COUNT);
    assert_memory_equal(clean, boolean, COUNT * sizeof *clean);
    free(clean), free(lse), free(dirty), free(boolean);
}

/* A bias of 1e4 at distance 0 leaves every row with its own value. */
static void test_bias_at_distance_zero(void **state) {
    (void)state;
    double bias[15 * HEADS] = {0};
    write_random(0);
    for (int h = 0; h < HEADS; h++) bias[7 * HEADS + h] = 1e4;
    npy_f64("bias.npy", "(15, 2)", bias, 15 * HEADS);
    double *z = attend_f64(PLAIN "--block 4 --bias bias.npy", SHAPE, COUNT);
    for (int i = 0; i < COUNT; i++) near(z[i], numbers[2][i]);
    free(z);
}

/* One key head for two query heads is two equal key heads. */
static void test_grouped_heads(void **state) {
    (void)state;
    static double k1[COUNT / 2], v1[COUNT / 2];
    write_random(0);
    for (int i = 0; i < BATCH * LENGTH; i++)
        for (int c = 0; c < DIM; c++) {
            int from = i * HEADS * DIM + c;
            k1[i * DIM + c] = numbers[1][from + DIM] = numbers[1][from];
            v1[i * DIM + c] = numbers[2][from + DIM] = numbers[2][from];
        }
    npy_f64("k.npy", SHAPE, numbers[1], COUNT);
    npy_f64("v.npy", SHAPE, numbers[2], COUNT);
    double *two = attend_f64(PLAIN "--block 4", SHAPE, COUNT);
    npy_f64("k.npy", "(2, 100, 1, 4)", k1, COUNT / 2);
    npy_f64("v.npy", "(2, 100, 1, 4)", v1, COUNT / 2);
    double *one = attend_f64(PLAIN "--block 4", SHAPE, COUNT);
    assert_true(difference(one, two) <= ROUNDING);
    free(one), free(two);
}

static void test_value_dim_of_its_own(void **state) {
    (void)state;
    write_random(0);
    npy_f64("v.npy", "(2, 100, 2, 3)", numbers[2], BATCH * LENGTH * HEADS * 3);
    free(attend_f64(PLAIN "--block 4", "(2, 100, 2, 3)", BATCH * LENGTH * HEADS * 3));
}

static void test_threads_do_not_change_bits(void **state) {
    (void)state;
    write_random(0);
    double *one = attend_f64(PLAIN "--block 4 --threads 1", SHAPE, COUNT);
    double *three = attend_f64(PLAIN "--block 4 --threads 3", SHAPE, COUNT);
    assert_memory_equal(one, three, COUNT * sizeof *one);
    free(one), free(three);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_rows_by_hand),
        cmocka_unit_test(test_float16),
        cmocka_unit_test(test_zero_queries_give_the_mean_of_the_past),
        cmocka_unit_test(test_rotary_by_hand),
        cmocka_unit_test(test_values_of_one_give_one),
        cmocka_unit_test(test_big_blocks_are_full_attention),
        cmocka_unit_test(test_the_future_changes_nothing),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_bias_at_distance_zero),
        cmocka_unit_test(test_grouped_heads),
        cmocka_unit_test(test_value_dim_of_its_own),
        cmocka_unit_test(test_threads_do_not_change_bits),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
