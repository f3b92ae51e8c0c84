/*
 * merge: neighbouring tokens that become one row. Against a model of the same width whose tokens
 * are all groups of tokens, against a loss by hand, from file to model, and what is refused. On
 * every device; gradients by differences are in test_model.c, steps in test_steps.c.
 */
#include "training.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ht_context *ctx;
static const char *device, *dtype;
static double eps;

static int open_device(void **state) {
    (void)state;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = device;
    return training_folder_open() || ht_context_create(&ctx, &desc) != HT_OK;
}

static int close_device(void **state) {
    (void)state;
    ht_context_destroy(ctx);
    return training_folder_close();
}

/* ---- models and their tensors ---- */

typedef struct setup {
    ht_config *config;
    ht_model *model;
    ht_trainer *trainer;
} setup;

static setup make(const char *json) {
    setup s = {.config = training_config(json)};
    char text[64];
    snprintf(text, sizeof text, "{\"dtype\":\"%s\"}", dtype);
    OK(NULL, ht_config_read_json(s.config, text));
    OK(ctx, ht_model_create(&s.model, ctx, s.config));
    OK(ctx, ht_trainer_create(&s.trainer, s.model, NULL));
    return s;
}

static void drop(setup *s) {
    ht_trainer_destroy(s->trainer);
    ht_model_destroy(s->model);
}

/* Index of a tensor, its count; -1: there is none. */
static int64_t find(const ht_model *m, const char *name, int64_t *count) {
    for (int64_t i = 0; i < ht_model_tensors(m); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(m, i, &info));
        *count = info.count;
        if (strcmp(info.name, name) == 0) return i;
    }
    return -1;
}

/* Tensor `name` or its gradient, from malloc. */
static double *tensor(const setup *s, const char *name, int gradient) {
    int64_t count = 0, i = find(s->model, name, &count);
    assert_true(i >= 0);
    double *x = malloc(sizeof *x * (size_t)count);
    OK(ctx, gradient ? ht_trainer_read_gradient(s->trainer, i, x) : ht_model_read(s->model, i, x));
    return x;
}

/* Numbers that every dtype has exactly. */
static double plain(uint32_t *state) { return floor(training_random(state) * 64 - 32) / 32; }

static void shake(ht_model *m) {
    uint32_t state = 77;
    for (int64_t i = 0; i < ht_model_tensors(m); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(m, i, &info));
        double *x = malloc(sizeof *x * (size_t)info.count);
        for (int64_t k = 0; k < info.count; k++) x[k] = plain(&state);
        OK(ctx, ht_model_write(m, i, x));
        free(x);
    }
}

/* ---- a model of groups ---- */

enum { VOCAB = 5, WIDTH = 12 };

#define SMALL                                                                        \
    "\"layers\":2,\"width\":12,\"heads\":2,\"hidden\":10,\"classes\":3,\"batch\":3," \
    "\"block\":4,\"head_hidden\":8,"

static const char *const kinds[] = {
    "\"merge\":2,\"length\":60,\"pool\":\"mean\"",
    "\"merge\":2,\"length\":60,\"pool\":\"max\",\"mask_zero\":0,\"learned\":1",
    "\"merge\":2,\"length\":60,\"pool\":\"max\",\"pad\":1,\"learned\":1,\"rotary\":\"all\"",
    "\"merge\":3,\"length\":61,\"pool\":\"first\",\"rotary\":\"level0\",\"relative_bias\":1",
    "\"merge\":3,\"length\":61,\"pool\":\"last\",\"causal\":1,\"mask_zero\":0,\"pad\":1",
    "\"merge\":2,\"length\":60,\"pool\":\"mean\",\"task\":\"pairs\",\"learned\":1",
    "\"merge\":3,\"length\":60,\"pool\":\"mean_all\",\"attention\":\"full\"",
};

static int64_t power(int64_t base, int64_t exponent) {
    int64_t x = 1;
    for (int64_t i = 0; i < exponent; i++) x *= base;
    return x;
}

/* Token `place` of a group. */
static int64_t part_of(int64_t group, int64_t place, int64_t merge) {
    return group / power(VOCAB, merge - 1 - place) % VOCAB;
}

/* The same text in groups; what is missing in the last is 0. */
static void group(random_batch *out, const random_batch *in, int64_t merge) {
    int32_t at = 0;
    *out = *in;
    out->batch.tokens = out->tokens, out->batch.targets = out->targets;
    out->batch.cu_seqlens = out->cu_seqlens;
    for (int64_t i = 0; i < in->batch.sequences; i++) {
        int32_t end = in->cu_seqlens[i + 1];
        for (int32_t t = in->cu_seqlens[i]; t < end; t += (int32_t)merge) {
            int32_t x = 0;
            for (int32_t k = t; k < t + merge; k++) x = x * VOCAB + (k < end ? in->tokens[k] : 0);
            out->tokens[at++] = x;
        }
        out->cu_seqlens[i + 1] = at;
    }
}

/* All tensors but the embedding are alike; that of a group is its tokens' side by side. */
static void copy_weights(const setup *to, const setup *from) {
    int64_t merge = training_int(from->config, "merge"), columns = WIDTH / merge, count;
    for (int64_t i = 0; i < ht_model_tensors(to->model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(to->model, i, &info));
        double *x = tensor(from, info.name, 0), *table = NULL;
        assert_true(find(from->model, info.name, &count) >= 0);
        if (strcmp(info.name, "embed.tokens.weight") == 0) {
            table = malloc(sizeof *table * (size_t)info.count);
            for (int64_t k = 0; k < info.count; k++) {
                int64_t place = k % WIDTH / columns;
                table[k] = x[part_of(k / WIDTH, place, merge) * columns + k % columns];
            }
        } else {
            assert_int_equal(count, info.count);
        }
        OK(ctx, ht_model_write(to->model, i, table ? table : x));
        free(x), free(table);
    }
}

static void make_both(setup *merged, setup *grouped, const char *kind) {
    char json[512];
    snprintf(json, sizeof json, "{" SMALL "\"vocab\":%d,%s}", VOCAB, kind);
    *merged = make(json);
    int64_t merge = training_int(merged->config, "merge");
    snprintf(json, sizeof json, "{" SMALL "%s,\"merge\":1,\"vocab\":%lld,\"length\":%lld}", kind,
             (long long)power(VOCAB, merge),
             (long long)((training_int(merged->config, "length") + merge - 1) / merge));
    *grouped = make(json);
    shake(merged->model);
    copy_weights(grouped, merged);
}

/* The same bits on a CPU; elsewhere products may be split in another way. */
static void same(const char *what, const double *got, const double *want, int64_t n) {
    double top = 0, allowed = strncmp(device, "cpu", 3) == 0 ? 0 : 16 * eps;
    for (int64_t i = 0; i < n; i++) top = fmax(top, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= allowed * top))
            fail_msg("%s: number %lld is %.17g, not %.17g", what, (long long)i, got[i], want[i]);
}

/* A token's gradient is that of its part in every group that has it. */
static void same_embedding(const setup *merged, const setup *grouped, int64_t rows) {
    int64_t merge = training_int(merged->config, "merge"), columns = WIDTH / merge;
    double *got = tensor(merged, "embed.tokens.weight", 1);
    double *groups = tensor(grouped, "embed.tokens.weight", 1), want[VOCAB * WIDTH] = {0}, top = 0;
    for (int64_t k = 0; k < power(VOCAB, merge) * WIDTH; k++) {
        int64_t token = part_of(k / WIDTH, k % WIDTH / columns, merge);
        want[token * columns + k % columns] += groups[k];
        top = fmax(top, fabs(groups[k]));
    }
    assert_true(top > 0);
    for (int64_t k = 0; k < VOCAB * columns; k++) /* sums of so many rows in another order */
        assert_true(fabs(got[k] - want[k]) <= (double)(rows * merge) * eps * top);
    free(got), free(groups);
}

static void compare(const setup *merged, const setup *grouped, const random_batch *batch) {
    static random_batch groups;
    float a[64], b[64];
    double x[64], y[64];
    ht_report one = HT_REPORT_INIT, two = HT_REPORT_INIT;
    int n = (int)(training_int(merged->config, "batch") * training_int(merged->config, "classes"));
    group(&groups, batch, training_int(merged->config, "merge"));
    OK(ctx, ht_trainer_predict(merged->trainer, &batch->batch, a));
    OK(ctx, ht_trainer_predict(grouped->trainer, &groups.batch, b));
    for (int i = 0; i < n; i++) x[i] = a[i], y[i] = b[i];
    same("logits", x, y, n);
    OK(ctx, ht_trainer_clear_gradient(merged->trainer));
    OK(ctx, ht_trainer_clear_gradient(grouped->trainer));
    OK(ctx, ht_trainer_gradient(merged->trainer, &batch->batch, &one));
    OK(ctx, ht_trainer_gradient(grouped->trainer, &groups.batch, &two));
    same("loss", &one.loss, &two.loss, 1);
    assert_int_equal(one.tokens, batch->cu_seqlens[batch->batch.sequences]);
    for (int64_t i = 0; i < ht_model_tensors(merged->model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(merged->model, i, &info));
        if (strcmp(info.name, "embed.tokens.weight") == 0) continue;
        double *got = tensor(merged, info.name, 1), *want = tensor(grouped, info.name, 1);
        same(info.name, got, want, info.count);
        free(got), free(want);
    }
    same_embedding(merged, grouped, groups.cu_seqlens[groups.batch.sequences]);
}

/* Lengths of every remainder, then full groups, which need no filling up, then full length. */
static void groups(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        static random_batch batch;
        setup merged, grouped;
        make_both(&merged, &grouped, kinds[k]);
        for (uint32_t turn = 0; turn < 6; turn++) {
            training_batch(&batch, merged.config, turn);
            int64_t merge = training_int(merged.config, "merge"),
                    most = training_int(merged.config, "length") / merge * merge;
            for (int64_t i = 0; i < batch.batch.sequences && turn > 3; i++) {
                int64_t length = turn == 4 ? merge * (5 + i) : most;
                batch.cu_seqlens[i + 1] = batch.cu_seqlens[i] + (int32_t)length;
            }
            uint32_t seed = 3;
            for (int32_t t = 0; t < batch.cu_seqlens[batch.batch.sequences] && turn > 3; t++)
                batch.tokens[t] = (int32_t)(training_random(&seed) * VOCAB);
            compare(&merged, &grouped, &batch);
        }
        drop(&merged), drop(&grouped);
    }
}

/* ---- hidden tokens by hand ---- */

/* The final norm's output for the row of token t: layers that add nothing leave the embeddings,
 * side by side, and the row's position. Hidden tokens are the vector that stands for them. */
static void row_by_hand(double *out, const setup *s, const random_batch *b, int64_t first,
                        int64_t end, int64_t row) {
    int64_t merge = training_int(s->config, "merge"), columns = WIDTH / merge;
    double *table = tensor(s, "embed.tokens.weight", 0), *hidden = tensor(s, "embed.cls", 0);
    double *position = tensor(s, "embed.positions.weight", 0), mean = 0, square = 0;
    for (int64_t c = 0; c < WIDTH; c++) {
        int64_t t = first + row * merge + c / columns;
        const double *from = table + (t < end ? b->tokens[t] : 0) * columns;
        if (t < end && b->targets[t] >= 0) from = hidden;
        out[c] = from[c % columns] + position[row * WIDTH + c];
        mean += out[c] / WIDTH;
    }
    for (int64_t c = 0; c < WIDTH; c++) square += (out[c] - mean) * (out[c] - mean) / WIDTH;
    for (int64_t c = 0; c < WIDTH; c++)
        out[c] = (out[c] - mean) / sqrt(square + training_real(s->config, "norm_epsilon"));
    free(table), free(hidden), free(position);
}

static double loss_by_hand(const setup *s, const random_batch *b) {
    int64_t merge = training_int(s->config, "merge"), columns = WIDTH / merge, count = 0;
    double *w = tensor(s, "output.weight", 0), sum = 0;
    for (int64_t i = 0; i < b->batch.sequences; i++)
        for (int64_t first = b->cu_seqlens[i], t = first; t < b->cu_seqlens[i + 1]; t++) {
            double x[WIDTH], all = 0, own = 0;
            if (b->targets[t] < 0) continue;
            row_by_hand(x, s, b, first, b->cu_seqlens[i + 1], (t - first) / merge);
            for (int v = 0; v < VOCAB; v++) {
                double logit = 0;
                for (int64_t c = 0; c < columns; c++)
                    logit += w[v * columns + c] * x[(t - first) % merge * columns + c];
                all += exp(logit);
                if (v == b->targets[t]) own = logit;
            }
            sum += log(all) - own;
            count++;
        }
    free(w);
    return sum / (double)count;
}

/* Zeros where a layer adds to the rows; norm 1 and 0. */
static void silence(ht_model *m) {
    for (int64_t i = 0; i < ht_model_tensors(m); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(m, i, &info));
        int norm = strcmp(info.name, "norm.weight") == 0;
        if (!norm && strcmp(info.name, "norm.bias") != 0 && strncmp(info.name, "layers.", 7) != 0)
            continue;
        double *x = calloc((size_t)info.count, sizeof *x);
        for (int64_t k = 0; k < info.count; k++) x[k] = norm;
        OK(ctx, ht_model_write(m, i, x));
        free(x);
    }
}

static void denoise(void **state) {
    (void)state;
    for (int merge = 1; merge <= 4; merge++)
        for (int pad = 0; pad < 2; pad++) {
            static random_batch batch;
            char json[512];
            snprintf(json, sizeof json,
                     "{" SMALL "\"vocab\":%d,\"merge\":%d,\"pad\":%d,\"length\":21,\"learned\":1,"
                     "\"sinusoidal\":0,\"pool\":\"mean\",\"task\":\"denoise\"}",
                     VOCAB, merge, pad);
            setup s = make(json);
            ht_report r = HT_REPORT_INIT;
            shake(s.model);
            silence(s.model);
            training_batch(&batch, s.config, 5);
            OK(ctx, ht_trainer_evaluate(s.trainer, &batch.batch, &r));
            double want = loss_by_hand(&s, &batch);
            /* norms of a dozen numbers, logits of a dozen products of at most 1 and 4 */
            if (!(fabs(r.loss - want) <= 16 * WIDTH * eps))
                fail_msg("merge %d, pad %d: loss %.12g, not %.12g", merge, pad, r.loss, want);
            drop(&s);
        }
}

/* ---- files ---- */

#define MERGED "{" SMALL "\"vocab\":5,\"length\":21,\"pool\":\"mean\",\"merge\":"

/* A classifier starts with what a model learned that guessed hidden tokens, of the same merge. */
static void starts_from(void **state) {
    (void)state;
    const char *path = training_path("denoise.safetensors");
    setup from = make(MERGED "4,\"task\":\"denoise\"}"), to = make(MERGED "4}");
    setup other = make(MERGED "2}"), none = make(MERGED "1}");
    int64_t taken = 0;
    ht_model *loaded;
    const ht_config *config;
    shake(from.model);
    OK(ctx, ht_model_save(from.model, path));
    OK(ctx, ht_model_take(to.model, path, &taken));
    assert_int_equal(taken, ht_model_tensors(to.model) - 4); /* the head: two layers */
    double *x = tensor(&from, "embed.tokens.weight", 0), *y = tensor(&to, "embed.tokens.weight", 0);
    assert_memory_equal(x, y, sizeof *x * VOCAB * WIDTH / 4);
    free(x), free(y);
    REFUSED(ctx, ht_model_take(other.model, path, &taken), HT_FORMAT,
            "the model in it has merge 4, not 2: its 'embed.tokens.weight' has 3 columns, not 6");
    REFUSED(ctx, ht_model_take(none.model, path, &taken), HT_FORMAT, "has merge 4, not 1");
    OK(ctx, ht_model_load(&loaded, ctx, path));
    config = ht_model_config(loaded);
    assert_int_equal(training_int(config, "merge"), 4);
    ht_model_destroy(loaded);
    drop(&from), drop(&to), drop(&other), drop(&none);
}

/* The same where there is no table but amounts. */
static void starts_from_amounts(void **state) {
    (void)state;
    const char *path = training_path("amounts.safetensors");
    setup from = make(MERGED "4,\"format\":\"images\",\"amounts\":1,\"task\":\"denoise\"}");
    setup to = make(MERGED "4,\"format\":\"images\",\"amounts\":1}");
    setup other = make(MERGED "2,\"format\":\"images\",\"amounts\":1}");
    int64_t taken = 0;
    shake(from.model);
    OK(ctx, ht_model_save(from.model, path));
    OK(ctx, ht_model_take(to.model, path, &taken));
    assert_int_equal(taken, ht_model_tensors(to.model) - 4);
    double *x = tensor(&from, "embed.amounts.weight", 0),
           *y = tensor(&to, "embed.amounts.weight", 0);
    assert_memory_equal(x, y, sizeof *x * 2 * WIDTH / 4);
    free(x), free(y);
    REFUSED(ctx, ht_model_take(other.model, path, &taken), HT_FORMAT,
            "the model in it has merge 4, not 2: its 'embed.amounts.weight' has 3 columns, not 6");
    drop(&from), drop(&to), drop(&other);
}

/* ---- what is refused ---- */

static void refuse(const char *json, const char *words) {
    ht_config *config = training_config(json);
    REFUSED(NULL, ht_config_check(config), HT_INVALID, words);
}

static void refusals(void **state) {
    (void)state;
    ht_config *config;
    config = training_preset(NULL);
    assert_int_equal(training_int(config, "merge"), 1);
    REFUSED(NULL, ht_config_read_json(config, "{\"merge\":0}"), HT_INVALID,
            "merge must be 1 to 64, got 0");
    REFUSED(NULL, ht_config_read_json(config, "{\"merge\":65}"), HT_INVALID,
            "merge must be 1 to 64, got 65");
    refuse("{\"merge\":3,\"width\":16,\"pool\":\"mean\"}",
           "merge must divide width, got merge 3, width 16");
    refuse("{\"merge\":2,\"pool\":\"mean\",\"task\":\"language\"}",
           "a language model with merge would see the tokens it is to guess: merge must be 1, got "
           "merge 2");
    refuse("{\"merge\":2,\"pool\":\"mean\",\"task\":\"denoise\",\"hide\":0,\"causal\":1}",
           "with merge and hide 0 a model would see the tokens it is to guess");
    refuse("{\"merge\":2}", "merge leaves no row for a cls vector: pool must be first");
    refuse("{\"merge\":2,\"task\":\"denoise\"}", "mean_all or max, got merge 2, pool cls");
    refuse("{\"merge\":64,\"pool\":\"mean\",\"batch\":1048576,\"length\":1024}",
           "a batch must have fewer than 2^31 rows, got batch 1048576, length 1024");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups),      cmocka_unit_test(denoise),
        cmocka_unit_test(starts_from), cmocka_unit_test(starts_from_amounts),
        cmocka_unit_test(refusals),
    };
    int failed = 0;
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &info) != HT_OK || !info.available) continue;
        int cuda = strncmp(info.name, "cuda", 4) == 0;
        static const char *const dtypes[2][2] = {{"f64", "f32"}, {"f32", "bf16"}};
        for (int k = 0; k < 2; k++) {
            char name[64];
            device = info.name, dtype = dtypes[cuda][k];
            eps = strcmp(dtype, "f64") == 0   ? DBL_EPSILON
                  : strcmp(dtype, "f32") == 0 ? FLT_EPSILON
                                              : 1.0 / 256;
            snprintf(name, sizeof name, "merge %s %s", device, dtype);
            failed += cmocka_run_group_tests_name(name, tests, open_device, close_device);
        }
    }
    return failed;
}
