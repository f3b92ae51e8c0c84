/*
 * The linear model of texts: against the minimum of its loss in float64, the same bits on any
 * number of threads and from a file, and what is chosen from it and another model.
 */
#include "training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ht_context *cpu;

static int open_all(void **state) {
    (void)state;
    return ht_context_create(&cpu, NULL) != HT_OK || training_folder_open() != 0;
}

static int close_all(void **state) {
    (void)state;
    ht_context_destroy(cpu);
    return training_folder_close();
}

static ht_data *open_rows(ht_context *ctx, const char *text, int keep) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data = NULL;
    const char *path = training_path("rows.tsv");
    training_write(path, text, strlen(text));
    desc.config = training_config("{\"batch\":4,\"length\":8}");
    desc.path = path;
    desc.keep_texts = keep;
    OK(ctx, ht_data_open(&data, ctx, &desc));
    return data;
}

static ht_linear *fitted(ht_context *ctx, const char *text) {
    ht_data *data = open_rows(ctx, text, 1);
    ht_linear *linear = NULL;
    OK(ctx, ht_linear_fit(&linear, ctx, data));
    ht_data_close(data);
    return linear;
}

static double score(ht_linear *linear, const char *text) {
    float out[2];
    OK(cpu, ht_linear_scores(linear, text, strlen(text), out));
    assert_true(out[0] == 0);
    return out[1];
}

/* ---- against float64 ---- */

/* Texts of one or two words of a letter: too short for runs of bytes, so that the features are the
 * words and the pairs. */
enum { TEXTS = 8, FEATURES = 7 };
static const char *const texts[TEXTS] = {"a", "b", "a b", "a b", "c", "c b", "a", "c b"};
static const int labels[TEXTS] = {1, 0, 1, 1, 0, 0, 0, 1};
static const char *const features[FEATURES] = {"a", "b", "c", "a b", "c b", "B", ""};

/* Is the feature in the text? Of the last two: never, and the bias. */
static double has(const char *feature, const char *text) {
    if (!*feature) return 1;
    return strcmp(feature, text) == 0 || (strlen(feature) == 1 && strchr(text, *feature));
}

/* Values, length 1, times the ratio of naive Bayes. */
static void make_vectors(double x[TEXTS][FEATURES]) {
    double in[FEATURES][2], all[2] = {0};
    for (int f = 0; f + 1 < FEATURES; f++) {
        in[f][0] = in[f][1] = 1;
        double count = 0;
        for (int i = 0; i < TEXTS; i++) in[f][labels[i]] += has(features[f], texts[i]), count++;
        if (f < FEATURES - 2) all[0] += in[f][0], all[1] += in[f][1];
    }
    for (int i = 0; i < TEXTS; i++) {
        double square = 0;
        for (int f = 0; f + 1 < FEATURES; f++) square += has(features[f], texts[i]);
        for (int f = 0; f + 1 < FEATURES; f++)
            x[i][f] = has(features[f], texts[i]) / sqrt(square) *
                      log(in[f][1] / all[1] / (in[f][0] / all[0]));
        x[i][FEATURES - 1] = 1;
    }
}

/* The minimum of w.w / 2 + 300 * sum log(1 + exp(-y x.w)), by Newton's steps in all of w. */
static void minimise(double w[FEATURES], double x[TEXTS][FEATURES]) {
    for (int turn = 0; turn < 100; turn++) {
        double a[FEATURES][FEATURES + 1] = {{0}};
        for (int f = 0; f < FEATURES; f++) a[f][f] = 1, a[f][FEATURES] = w[f];
        for (int i = 0; i < TEXTS; i++) {
            double s = 0;
            for (int f = 0; f < FEATURES; f++) s += w[f] * x[i][f];
            double p = 1 / (1 + exp(-s));
            for (int f = 0; f < FEATURES; f++) {
                a[f][FEATURES] += 300 * (p - labels[i]) * x[i][f];
                for (int g = 0; g < FEATURES; g++) a[f][g] += 300 * p * (1 - p) * x[i][f] * x[i][g];
            }
        }
        for (int k = 0; k < FEATURES; k++) /* positive definite: no rows change places */
            for (int f = 0; f < FEATURES; f++) {
                double share = f == k ? 0 : a[f][k] / a[k][k];
                for (int g = k; g <= FEATURES; g++) a[f][g] -= share * a[k][g];
            }
        for (int f = 0; f < FEATURES; f++) w[f] -= 0.5 * a[f][FEATURES] / a[f][f];
    }
}

/* It ends when no margin is wrong by more than 0.02. */
static void test_minimum(void **state) {
    (void)state;
    char rows[512] = "";
    double x[TEXTS][FEATURES], w[FEATURES] = {0};
    for (int i = 0; i < TEXTS; i++) sprintf(rows + strlen(rows), "%d\t%s\n", labels[i], texts[i]);
    ht_linear *linear = fitted(cpu, rows);
    make_vectors(x);
    minimise(w, x);
    for (int i = 0; i < TEXTS; i++) {
        double want = 0;
        for (int f = 0; f < FEATURES; f++) want += w[f] * x[i][f];
        if (fabs(score(linear, texts[i]) - want) > 0.02)
            fail_msg("'%s' has %g, should have %g", texts[i], score(linear, texts[i]), want);
    }
    /* capital letters, blanks and what is not known change nothing */
    assert_true(score(linear, "A  B") == score(linear, "a b"));
    assert_true(score(linear, "a b ?") == score(linear, "a b"));
    ht_linear_destroy(linear);
}

/* ---- three classes, threads, files ---- */

static char *many_rows(void) {
    static const char *const words[3][3] = {
        {"good", "fine film", "not bad"}, {"bad", "awful film", "not good"}, {"so", "la", "do re"}};
    static char text[8192];
    text[0] = '\0';
    for (int i = 0; i < 90; i++)
        sprintf(text + strlen(text), "%s\tit is %s, %s %d\n",
                i % 3 == 0   ? "yes"
                : i % 3 == 1 ? "no"
                             : "sol",
                words[i % 3][i / 3 % 3], words[i % 3][i / 9 % 3], i);
    return text;
}

static void three(ht_linear *linear, float out[3], const char *text) {
    OK(cpu, ht_linear_scores(linear, text, strlen(text), out));
}

static int64_t largest(const float x[3]) {
    return x[0] >= x[1] && x[0] >= x[2] ? 0 : x[1] >= x[2] ? 1 : 2;
}

static void test_classes(void **state) {
    (void)state;
    static const char *const asked[] = {"it is a fine film", "it is not good", "do re la"};
    static const char *const wanted[] = {"yes", "no", "sol"};
    ht_linear *linear = fitted(cpu, many_rows()), *others, *loaded;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    ht_context *one;
    desc.threads = 1;
    OK(NULL, ht_context_create(&one, &desc));
    others = fitted(one, many_rows());
    OK(cpu, ht_linear_save(linear, training_path("linear.safetensors")));
    OK(cpu, ht_linear_load(&loaded, cpu, training_path("linear.safetensors")));
    const ht_labels *names = ht_linear_labels(loaded);
    assert_int_equal(ht_labels_count(names), 3);
    for (int i = 0; i < 3; i++) {
        float a[3], b[3], c[3];
        three(linear, a, asked[i]), three(others, b, asked[i]), three(loaded, c, asked[i]);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_equal(a, c, sizeof a);
        assert_string_equal(ht_labels_name(names, largest(a)), wanted[i]);
    }
    ht_linear_destroy(linear);
    ht_linear_destroy(others);
    ht_linear_destroy(loaded);
    ht_context_destroy(one);
}

static void test_damaged(void **state) {
    (void)state;
    ht_linear *linear = fitted(cpu, many_rows()), *loaded;
    const char *path = training_path("damaged.safetensors");
    OK(cpu, ht_linear_save(linear, path));
    ht_linear_destroy(linear);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -3, SEEK_END);
    fputc(1, f);
    fclose(f);
    REFUSED(cpu, ht_linear_load(&loaded, cpu, path), HT_FORMAT, "damaged");
    assert_null(loaded);
    training_write(path, "\0\0\0\0\0\0\0\0", 8);
    REFUSED(cpu, ht_linear_load(&loaded, cpu, path), HT_FORMAT, "");
    ht_config *config = training_config("{\"layers\":1,\"width\":8,\"heads\":1,\"hidden\":8}");
    ht_model *model;
    OK(cpu, ht_model_create(&model, cpu, config));
    OK(cpu, ht_model_save(model, path));
    REFUSED(cpu, ht_linear_load(&loaded, cpu, path), HT_FORMAT, "holds no linear model");
    ht_model_destroy(model);
}

/* A bit flipped anywhere: refused, or the same model; and so is an end that is missing. */
static void test_flipped_bits(void **state) {
    (void)state;
    static char bytes[1 << 17], copy[1 << 17];
    static const char text[] = "it is not good, do re so";
    float want[3], got[3];
    int refused = 0, tried = 0;
    ht_linear *linear = fitted(cpu, many_rows()), *loaded;
    const char *path = training_path("flipped.safetensors");
    OK(cpu, ht_linear_save(linear, path));
    three(linear, want, text);
    ht_linear_destroy(linear);
    FILE *f = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof bytes, f), step = (size_t)training_thin();
    fclose(f);
    assert_in_range(n, 2000, sizeof bytes - 1);
    for (size_t at = 0; at < n; at += step * (at < 1200 ? 3 : n / 200), tried++) {
        memcpy(copy, bytes, n);
        copy[at] = (char)(copy[at] ^ (1 << tried % 8));
        training_write(path, copy, n);
        if (ht_linear_load(&loaded, cpu, path) != HT_OK) {
            assert_null(loaded);
            refused++;
            continue;
        }
        three(loaded, got, text);
        assert_memory_equal(want, got, sizeof got);
        ht_linear_destroy(loaded);
    }
    assert_true(refused > tried / 2);
    for (size_t cut = 1; cut < n; cut += step * n / 50) {
        training_write(path, bytes, n - cut);
        REFUSED(cpu, ht_linear_load(&loaded, cpu, path), HT_FORMAT, "flipped.safetensors");
    }
}

static void test_refused(void **state) {
    (void)state;
    ht_linear *linear;
    ht_data *data = open_rows(cpu, "0\ta\n1\tb\n", 0);
    assert_null(ht_data_text(data, 0, NULL));
    REFUSED(cpu, ht_linear_fit(&linear, cpu, data), HT_INVALID, "keep_texts");
    assert_null(linear);
    ht_data_close(data);
    linear = fitted(cpu, "0\ta\n1\tb\n");
    float scores[] = {0, 1};
    int32_t wrong = 2;
    REFUSED(cpu, ht_linear_choose(linear, scores, NULL, &wrong, 1), HT_INVALID, "0 to 1, got 2");
    scores[0] = NAN;
    wrong = 0;
    REFUSED(cpu, ht_linear_choose(linear, scores, NULL, &wrong, 1), HT_INVALID, "not finite");
    ht_linear_destroy(linear);
}

/* Whole texts, however short the items are cut. */
static void test_texts(void **state) {
    (void)state;
    size_t bytes;
    ht_data *data = open_rows(cpu, "0\ta text of more than eight bytes\n1\tb\n", 1);
    const char *text = ht_data_text(data, 0, &bytes);
    assert_int_equal(bytes, 31);
    assert_memory_equal(text, "a text of more than eight bytes", bytes);
    assert_memory_equal(ht_data_text(data, 1, &bytes), "b", 1);
    assert_int_equal(bytes, 1);
    assert_null(ht_data_text(data, 2, &bytes));
    assert_null(ht_data_text(data, -1, &bytes));
    ht_data_close(data);
}

/* ---- memory ---- */

/* Blocks with a mark before and behind them, looked at when they are given back. */
enum { MARK = 4096 };

static void *guarded(void *user, size_t bytes) {
    void *block = NULL;
    (void)user;
    if (posix_memalign(&block, 64, bytes + 2 * MARK) != 0) return NULL;
    memcpy(block, &bytes, sizeof bytes);
    memset((char *)block + MARK + bytes, 0x5A, MARK);
    return (char *)block + MARK;
}

static void unguarded(void *user, void *block) {
    size_t bytes;
    char *at = block;
    if (!at) return;
    memcpy(&bytes, at - MARK, sizeof bytes);
    for (int i = 0; i < MARK; i++) *(int *)user += at[bytes + (size_t)i] != 0x5A;
    free(at - MARK);
}

/* Words of one byte that are all different, two pairs of each, and as many runs: more grams than
 * any other text of that length has. */
static void test_crowded(void **state) {
    (void)state;
    enum { BYTES = 256 };
    char text[BYTES], *at = text;
    float out[2];
    int touched = 0;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    ht_context *ctx;
    desc.threads = 1;
    desc.allocator = (ht_allocator){guarded, unguarded, &touched};
    OK(NULL, ht_context_create(&ctx, &desc));
    ht_linear *linear = fitted(ctx, "0\ta\n1\tb\n");
    for (int c = 128; at < text + BYTES; c++) *at++ = (char)c, *at++ = '!';
    for (size_t bytes = 1; bytes <= BYTES; bytes++)
        OK(ctx, ht_linear_scores(linear, text, bytes, out));
    ht_linear_destroy(linear);
    ht_context_destroy(ctx);
    assert_int_equal(touched, 0);
}

/* ---- the choice ---- */

enum { ITEMS = 400 };
typedef struct judged {
    float scores[ITEMS][2], logits[ITEMS][2];
    int32_t labels[ITEMS];
} judged;

/* Each says the label times its strength, and noise of its own. */
static void make_judged(judged *j, double linear, double model) {
    uint32_t seed = 7;
    memset(j, 0, sizeof *j);
    for (int i = 0; i < ITEMS; i++) {
        double noise[2];
        for (int k = 0; k < 2; k++) {
            noise[k] = 0;
            for (int n = 0; n < 12; n++) /* nearly normal, of deviation 1 */
                noise[k] += (double)((seed = seed * 1664525 + 1013904223) >> 8) / 0x1p24 - 0.5;
        }
        j->labels[i] = i % 2;
        double sign = i % 2 ? 1 : -1;
        j->scores[i][1] = (float)(sign * linear + noise[0]);
        j->logits[i][1] = (float)(sign * model + noise[1]);
    }
}

static ht_linear_info chosen(const judged *j, int with_model) {
    ht_linear *linear = fitted(cpu, "0\ta\n1\tb\n");
    ht_linear_info info = HT_LINEAR_INFO_INIT;
    float mixed[2];
    OK(cpu,
       ht_linear_choose(linear, j->scores[0], with_model ? j->logits[0] : NULL, j->labels, ITEMS));
    OK(cpu, ht_linear_get_info(linear, &info));
    OK(cpu, ht_linear_mix(linear, j->scores[3], j->logits[3], mixed));
    double want = info.linear_weight * j->scores[3][1];
    if (info.model_weight != 0) want += info.model_weight * j->logits[3][1];
    assert_true(mixed[0] == 0 && mixed[1] == (float)want);
    assert_int_equal(info.valid_items, ITEMS);
    ht_linear_destroy(linear);
    return info;
}

/* Two normal distributions of deviation 1 at -s and s are told apart best by 2 s times the place:
 * both weights are 2 s but for what 400 items leave open, some tenths. */
static void test_choice(void **state) {
    (void)state;
    static judged j;
    make_judged(&j, 1, 0);
    ht_linear_info info = chosen(&j, 1);
    assert_true(info.model_weight == 0 && fabs(info.linear_weight - 2) < 0.6);
    assert_true(info.chosen_loss == info.linear_loss && info.linear_loss < info.model_loss);
    make_judged(&j, 0, 1);
    info = chosen(&j, 1);
    assert_true(info.linear_weight == 0 && fabs(info.model_weight - 2) < 0.6);
    make_judged(&j, 1, 1);
    info = chosen(&j, 1);
    assert_true(fabs(info.linear_weight - 2) < 0.8 && fabs(info.model_weight - 2) < 0.8);
    assert_true(info.chosen_loss < fmin(info.linear_loss, info.model_loss) - 2.0 / ITEMS);
    assert_true(info.chosen_accuracy > info.linear_accuracy);
    info = chosen(&j, 0); /* no model */
    assert_true(info.model_weight == 0 && info.linear_weight > 1 && info.model_loss == 0);
    j.logits[5][0] = NAN; /* one that has come apart */
    info = chosen(&j, 1);
    assert_true(info.model_weight == 0 && info.linear_weight > 1);
    make_judged(&j, 100, 0); /* nothing is wrong: weights stay finite */
    info = chosen(&j, 1);
    assert_true(info.linear_weight > 0 && info.linear_weight < 100 && info.chosen_loss < 1e-3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_minimum), cmocka_unit_test(test_classes),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_flipped_bits),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_texts),
        cmocka_unit_test(test_crowded), cmocka_unit_test(test_choice)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
