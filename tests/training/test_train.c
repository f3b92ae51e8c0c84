/*
 * Training: it learns, it repeats itself, it goes on where it stopped, it does not step into what
 * is not finite. On the CPU, and on every CUDA device in float and in bf16.
 */
#include "training.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *device, *dtype; /* of the group that runs */
static ht_context *ctx;

static int open_device(void **state) {
    (void)state;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = device;
    return ht_context_create(&ctx, &desc) != HT_OK || training_folder_open() != 0;
}

static int close_device(void **state) {
    (void)state;
    ht_context_destroy(ctx);
    return training_folder_close();
}

/* The group's precision, then what the test asks for. */
static ht_config *config_of(const char *json) {
    char text[64];
    ht_config *config = training_config("{}");
    snprintf(text, sizeof text, "{\"dtype\":\"%s\"}", dtype);
    OK(NULL, ht_config_read_json(config, text));
    OK(NULL, ht_config_read_json(config, json));
    return config;
}

#define TINY                                                                                      \
    "\"layers\":1,\"width\":32,\"heads\":2,\"hidden\":48,\"vocab\":17,\"classes\":10,\"length\":" \
    "40,\"block\":4,"                                                                             \
    "\"batch\":8,\"head_hidden\":16,\"rate\":0.003,\"warmup\":5,\"schedule\":\"constant\","       \
    "\"clip\":1,"                                                                                 \
    "\"format\":\"listops\",\"listops_min\":4,\"listops_max\":40,\"listops_depth\":3,\"listops_"  \
    "arguments\":4,"                                                                              \
    "\"train_items\":200,\"valid_items\":50,\"eval_every\":10,\"steps\":24,\"keep\":2,"

typedef struct bench {
    ht_config *config;
    ht_model *model;
    ht_trainer *trainer;
    ht_data *train, *valid;
} bench;

static bench make(const char *json) {
    bench b = {.config = config_of(json)};
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = b.config;
    OK(ctx, ht_model_create(&b.model, ctx, b.config));
    OK(ctx, ht_trainer_create(&b.trainer, b.model, NULL));
    if (training_is(b.config, "format", "listops")) {
        OK(ctx, ht_data_open(&b.train, ctx, &desc));
        desc.part = HT_PART_VALID;
        OK(ctx, ht_data_open(&b.valid, ctx, &desc));
    }
    return b;
}

static void drop(bench *b) {
    ht_data_close(b->train);
    ht_data_close(b->valid);
    ht_trainer_destroy(b->trainer);
    ht_model_destroy(b->model);
}

/* All weights as one array; the caller frees. */
static double *weights(const ht_model *model) {
    double *out = malloc(sizeof *out * (size_t)ht_model_parameters(model));
    int64_t at = 0;
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(model, i, &info));
        OK(ctx, ht_model_read(model, i, out + at));
        at += info.count;
    }
    return out;
}

static void same_weights(const bench *a, const bench *b) {
    double *x = weights(a->model), *y = weights(b->model);
    assert_memory_equal(x, y, sizeof *x * (size_t)ht_model_parameters(a->model));
    free(x);
    free(y);
}

/* ---- learning ---- */

static void overfits(void **state) {
    ht_config *config = config_of(*state);
    ht_model *model;
    ht_trainer *trainer;
    static random_batch batch;
    ht_report r = HT_REPORT_INIT;
    OK(ctx, ht_model_create(&model, ctx, config));
    OK(ctx, ht_trainer_create(&trainer, model, NULL));
    training_batch(&batch, config, 3);
    OK(ctx, ht_trainer_evaluate(trainer, &batch.batch, &r));
    double before = r.loss;
    for (int i = 0; i < 300; i++) OK(ctx, ht_trainer_step(trainer, &batch.batch, 1, &r));
    OK(ctx, ht_trainer_evaluate(trainer, &batch.batch, &r));
    if (!(before > 0.5 && r.loss < 0.01 && r.accuracy == 1)) {
        print_error("loss went from %g to %g, accuracy %g\n", before, r.loss, r.accuracy);
        fail();
    }
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
}

/* An evaluation knows no dropout: with and without it in the settings it gives the same bits,
 * though other kernels with other needs are at work. */
static void evaluates_without_dropout(void **state) {
    (void)state;
    static const char *const kinds[] = {"hierarchical", "local", "full"};
    for (int kind = 0; kind < 3; kind++) {
        double loss[2][2];
        for (int dropout = 0; dropout < 2; dropout++)
            for (int inference = 0; inference < 2; inference++) {
                char json[512];
                snprintf(json, sizeof json,
                         "{\"layers\":1,\"width\":16,\"heads\":2,\"hidden\":16,\"length\":1000,"
                         "\"pool\":\"mean\",\"batch\":4,\"attention\":\"%s\","
                         "\"attention_dropout\":%g}",
                         kinds[kind], 0.5 * dropout);
                ht_config *config = training_config(json);
                ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
                ht_model *model;
                ht_trainer *trainer;
                ht_report report = HT_REPORT_INIT;
                random_batch *batch = malloc(sizeof *batch);
                assert_non_null(batch);
                training_batch(batch, config, 3);
                desc.inference = inference;
                OK(ctx, ht_model_create(&model, ctx, config));
                OK(ctx, ht_trainer_create(&trainer, model, &desc));
                OK(ctx, ht_trainer_evaluate(trainer, &batch->batch, &report));
                loss[dropout][inference] = report.loss;
                ht_trainer_destroy(trainer);
                ht_model_destroy(model);
                free(batch);
            }
        assert_true(loss[0][0] == loss[1][0] && loss[0][1] == loss[1][1]);
        assert_true(loss[0][0] == loss[0][1]);
    }
}

/* A micro-batch twice is the batch once; two batches together are the mean of both. */
static void accumulates(void **state) {
    (void)state;
    bench once = make("{" TINY "\"warmup\":0}"), twice = make("{" TINY "\"warmup\":0}");
    static random_batch batch;
    ht_batch both[2];
    ht_report a = HT_REPORT_INIT, b = HT_REPORT_INIT;
    training_batch(&batch, once.config, 5);
    both[0] = both[1] = batch.batch;
    OK(ctx, ht_trainer_step(once.trainer, &batch.batch, 1, &a));
    OK(ctx, ht_trainer_step(twice.trainer, both, 2, &b));
    assert_true(fabs(a.gradient_norm - b.gradient_norm) < 1e-5 * a.gradient_norm);
    assert_true(fabs(a.loss - b.loss) < 1e-6);
    assert_int_equal(b.targets, 2 * a.targets);
    drop(&once);
    drop(&twice);
}

/* ---- schedules: what the step says it used ---- */

static void schedules(void **state) {
    static const struct {
        const char *json;
        double want[4]; /* at steps 0, 1, 2, 6 */
    } cases[] = {
        {"\"schedule\":\"constant\",\"warmup\":2", {0, 0.5, 1, 1}},
        {"\"schedule\":\"rsqrt\",\"warmup\":4", {0, 0.125, 0.25, 0.408248290463863}},
        {"\"schedule\":\"linear\",\"warmup\":2,\"steps\":10", {0, 0.5, 1, 0.5}},
        {"\"schedule\":\"cosine\",\"warmup\":2,\"steps\":8", {0, 0.5, 1, 0.5}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[1024];
        snprintf(json, sizeof json, "{" TINY "%s,\"rate\":1}", cases[i].json);
        bench b = make(json);
        static random_batch batch;
        training_batch(&batch, b.config, 1);
        for (int step = 0, k = 0; step <= 6; step++) {
            ht_report r = HT_REPORT_INIT;
            OK(ctx, ht_trainer_step(b.trainer, &batch.batch, 1, &r));
            if (step > 2 && step < 6) continue;
            if (fabs(r.rate - cases[i].want[k]) > 1e-12)
                print_error("%s: %g\n", cases[i].json, r.rate);
            assert_true(fabs(r.rate - cases[i].want[k++]) < 1e-12);
        }
        drop(&b);
    }
}

/* ---- AdamW against its formula ---- */

#define ADAMW TINY "\"warmup\":0,\"weight_decay\":0.1,\"decay\":\"all\",\"clip\":0.5"

static void adamw(void **state) {
    (void)state;
    int is_double = strncmp(device, "cpu", 3) == 0;
    const char *json = is_double ? "{" ADAMW ",\"dtype\":\"f64\"}" : "{" ADAMW "}";
    double allowed = is_double ? 1e-9 : 4 * FLT_EPSILON; /* rate and weights are below 1 */
    bench b = make(json);
    static random_batch batch;
    training_batch(&batch, b.config, 2);
    int64_t n = ht_model_parameters(b.model), at = 0;
    double *before = weights(b.model), *grad = malloc(sizeof *grad * (size_t)n), square = 0;
    OK(ctx, ht_trainer_gradient(b.trainer, &batch.batch, NULL));
    for (int64_t i = 0; i < ht_model_tensors(b.model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(b.model, i, &info));
        OK(ctx, ht_trainer_read_gradient(b.trainer, i, grad + at));
        at += info.count;
    }
    for (int64_t i = 0; i < n; i++) square += grad[i] * grad[i];
    assert_true(sqrt(square) > 0.5); /* clipping has something to do */
    OK(ctx, ht_trainer_step(b.trainer, &batch.batch, 1, NULL));
    double *after = weights(b.model);
    for (int64_t i = 0; i < n; i++) {
        double g = grad[i] * 0.5 / sqrt(square),
               rate = training_real(b.config, "rate"); /* first step: m/c1 = g, v/c2 = g^2 */
        double want = before[i] - rate * (g / (fabs(g) + training_real(b.config, "adam_epsilon")) +
                                          0.1 * before[i]);
        double most = allowed * fmax(1, fabs(want));
        if (!(fabs(after[i] - want) < most))
            print_error("%lld: %g, want %g\n", (long long)i, after[i], want);
        assert_true(fabs(after[i] - want) < most);
    }
    free(before), free(grad), free(after);
    drop(&b);
}

/* ---- what is not finite ---- */

static void not_finite(void **state) {
    (void)state;
    bench b = make("{" TINY "\"bad_steps\":3}");
    ht_report r = HT_REPORT_INIT;
    ht_batch batch = HT_BATCH_INIT;
    OK(ctx, ht_data_draw(b.train, &batch));
    OK(ctx, ht_trainer_step(b.trainer, &batch, 1, &r));
    assert_int_equal(r.applied, 1);
    double first[32], bad[32];
    OK(ctx, ht_model_read(b.model, 2, first)); /* norm.weight */
    memcpy(bad, first, sizeof bad);
    bad[5] = NAN;
    OK(ctx, ht_model_write(b.model, 2, bad));
    double *before = weights(b.model);
    OK(ctx, ht_trainer_step(b.trainer, &batch, 1, &r));
    double *after = weights(b.model);
    assert_int_equal(r.applied, 0);
    assert_false(isfinite(r.loss));
    assert_memory_equal(before, after, sizeof *before * (size_t)ht_model_parameters(b.model));
    ht_train_desc desc = HT_TRAIN_DESC_INIT;
    desc.folder = training_folder;
    desc.train = b.train;
    REFUSED(ctx, ht_train(b.trainer, &desc), HT_DIVERGED, "3 times in a row");
    OK(ctx, ht_model_write(b.model, 2, first)); /* healed: training goes on */
    OK(ctx, ht_trainer_step(b.trainer, &batch, 1, &r));
    assert_int_equal(r.applied, 1);
    free(before), free(after);
    drop(&b);
}

/* ---- runs ---- */

typedef struct stop_at {
    int64_t step, seen;
    double last_accuracy;
} stop_at;

static int tell(void *user, const ht_event *event) {
    stop_at *s = user;
    s->seen = event->step;
    if (event->valid) s->last_accuracy = event->valid->accuracy;
    return event->step == s->step;
}

static void train_in(bench *b, const char *name, int64_t stop, int resume) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", training_folder, name);
    mkdir(path, 0777);
    stop_at s = {.step = stop};
    ht_train_desc desc = HT_TRAIN_DESC_INIT;
    desc.folder = path;
    desc.train = b->train;
    desc.valid = b->valid;
    desc.resume = resume;
    desc.tell = tell;
    desc.user = &s;
    OK(ctx, ht_train(b->trainer, &desc));
    assert_int_equal(s.seen, stop ? stop : training_int(b->config, "steps"));
    /* what was drawn ahead does not count */
    assert_int_equal(ht_data_position(b->train), s.seen * training_int(b->config, "accumulate") *
                                                     training_int(b->config, "batch"));
}

#define WITH_DROPOUT "{" TINY "\"dropout\":0.1,\"attention_dropout\":0.1,\"accumulate\":2}"
#define WITH_MUON "{" TINY "\"dropout\":0.1,\"optimizer\":\"muon\",\"layers\":2}"

static void repeats(void **state) {
    bench a = make(*state), b = make(*state);
    train_in(&a, "repeat-a", 0, 0);
    train_in(&b, "repeat-b", 0, 0);
    same_weights(&a, &b);
    drop(&a);
    drop(&b);
    bench c =
        make("{" TINY "\"dropout\":0.1,\"attention_dropout\":0.1,\"accumulate\":2,\"seed\":2}");
    bench d = make(WITH_DROPOUT);
    double *x = weights(c.model), *y = weights(d.model);
    assert_memory_not_equal(x, y, sizeof *x * (size_t)ht_model_parameters(c.model));
    free(x), free(y);
    drop(&c);
    drop(&d);
}

/* Stopped at step 7 (between checkpoints) and again at 15: the same bits as in one go. */
static void resumes(void **state) {
    /* a folder for each: the first part must find no checkpoint there */
    const char *json = *state, *parts = strcmp(json, WITH_MUON) == 0 ? "parts-muon" : "parts";
    bench whole = make(json);
    train_in(&whole, "whole", 0, 0);
    for (int part = 0; part < 3; part++) {
        static const int64_t stops[] = {7, 15, 0};
        bench b = make(json); /* a new process would start like this */
        train_in(&b, parts, stops[part], 1);
        if (part == 2) same_weights(&whole, &b);
        drop(&b);
    }
    drop(&whole);
}

static int exists(const char *name, const char *file) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s/%s", training_folder, name, file);
    return access(path, R_OK) == 0;
}

static void keeps(void **state) {
    (void)state;
    bench b = make("{" TINY "\"save_every\":5}");
    train_in(&b, "keep", 0, 0);
    assert_true(exists("keep", "step-000000024.safetensors"));
    assert_true(exists("keep", "step-000000020.safetensors"));
    assert_false(exists("keep", "step-000000015.safetensors"));
    assert_true(exists("keep", "best.safetensors"));
    assert_true(exists("keep", "log.jsonl"));
    drop(&b);
}

/* A folder with good checkpoints of the steps 10 and 15, and what else `name` stands for. */
static bench run_of(const char *name) {
    bench b = make("{" TINY "\"save_every\":5}");
    train_in(&b, name, 15, 0);
    drop(&b);
    return make("{" TINY "\"save_every\":5}");
}

static const char *in(const char *name, const char *file) {
    static char path[160];
    snprintf(path, sizeof path, "%s/%s/%s", training_folder, name, file);
    return path;
}

/* The newest checkpoint is damaged: the one before it is taken, and the run ends with the same
 * bits; meanwhile no good one goes because of the damaged one. */
static void damaged_newest(void **state) {
    (void)state;
    bench whole = run_of("damaged"), b;
    ht_resume_info info = HT_RESUME_INFO_INIT;
    train_in(&whole, "undamaged", 0, 0);
    truncate(in("damaged", "step-000000015.safetensors"), 5000);
    b = make("{" TINY "\"save_every\":4,\"keep\":1}");
    OK(ctx, ht_trainer_resume(b.trainer, b.train, in("damaged", "."), &info));
    assert_int_equal(info.step, 10);
    assert_int_equal(info.skipped, 1);
    assert_non_null(strstr(info.why, "step-000000015.safetensors"));
    assert_int_equal(ht_trainer_steps(b.trainer), 10);
    train_in(&b, "damaged", 12, 0);
    assert_true(exists("damaged", "step-000000012.safetensors"));
    assert_false(exists("damaged", "step-000000010.safetensors"));
    drop(&b);
    b = make("{" TINY "\"save_every\":5}");
    train_in(&b, "damaged", 0, 1);
    same_weights(&whole, &b);
    drop(&b);
    /* all of them are: that is no run to start anew */
    b = make("{" TINY "\"save_every\":5}");
    truncate(in("damaged", "step-000000012.safetensors"), 4000);
    truncate(in("damaged", "step-000000015.safetensors"), 4000);
    truncate(in("damaged", "step-000000020.safetensors"), 4000);
    truncate(in("damaged", "step-000000024.safetensors"), 4000);
    REFUSED(ctx, ht_trainer_resume(b.trainer, b.train, in("damaged", "."), &info), HT_FORMAT,
            "step-000000024.safetensors");
    REFUSED(ctx, ht_trainer_resume(b.trainer, b.train, "/nowhere/at/all", &info), HT_IO,
            "/nowhere/at/all could not be listed: No such file");
    drop(&b), drop(&whole);
}

/* What only looks like a checkpoint is none, and good ones do not go for it. */
static void strange_names(void **state) {
    (void)state;
    bench b = run_of("strange");
    static const char *const names[] = {"step-99999999999999999999999.safetensors",
                                        "step--1.safetensors", "step-000000099.safetensors.tmp"};
    ht_resume_info info = HT_RESUME_INFO_INIT;
    for (int i = 0; i < 3; i++) training_write(in("strange", names[i]), "?", 1);
    OK(ctx, ht_trainer_resume(b.trainer, b.train, in("strange", "."), &info));
    assert_int_equal(info.step, 15);
    assert_int_equal(info.skipped, 0);
    train_in(&b, "strange", 20, 0);
    assert_true(exists("strange", "step-000000020.safetensors"));
    assert_true(exists("strange", "step-000000015.safetensors"));
    for (int i = 0; i < 3; i++) assert_true(exists("strange", names[i]));
    drop(&b);
}

/* ---- two contexts share nothing ---- */

typedef struct side {
    char path[128]; /* of its checkpoint */
    double loss;
    int good;
} side;

/* All that a run does, in a thread of its own; the thread sanitizer looks on. */
static ht_status run_side(side *s, ht_context *own) {
    ht_config *config = NULL;
    ht_data *data = NULL;
    ht_model *model = NULL, *again = NULL;
    ht_trainer *trainer = NULL;
    ht_batch batch = HT_BATCH_INIT;
    ht_report r = HT_REPORT_INIT;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_status status = ht_config_create(&config, own, NULL);
    if (status == HT_OK) status = ht_config_read_json(config, "{" TINY "\"dropout\":0.1}");
    desc.config = config;
    if (status == HT_OK) status = ht_data_open(&data, own, &desc);
    if (status == HT_OK) status = ht_model_create(&model, own, config);
    if (status == HT_OK) status = ht_trainer_create(&trainer, model, NULL);
    for (int step = 0; step < 3 && status == HT_OK; step++) {
        status = ht_data_draw(data, &batch);
        if (status == HT_OK) status = ht_trainer_step(trainer, &batch, 1, &r);
    }
    if (status == HT_OK) status = ht_trainer_save(trainer, data, s->path);
    if (status == HT_OK) status = ht_model_load(&again, own, s->path);
    s->loss = r.loss;
    ht_model_destroy(again);
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
    ht_data_close(data);
    ht_config_destroy(config);
    return status;
}

static void *one_side(void *user) {
    side *s = user;
    ht_context *own;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu:ref", desc.threads = 2;
    if (ht_context_create(&own, &desc) != HT_OK) return NULL;
    s->good = run_side(s, own) == HT_OK;
    ht_context_destroy(own);
    return NULL;
}

static void side_by_side(void **state) {
    (void)state;
    enum { SIDES = 3 };
    side sides[SIDES] = {0};
    pthread_t threads[SIDES];
    for (int i = 0; i < SIDES; i++) {
        snprintf(sides[i].path, sizeof sides[i].path, "%s/side%d", training_folder, i);
        assert_int_equal(pthread_create(&threads[i], NULL, one_side, &sides[i]), 0);
    }
    for (int i = 0; i < SIDES; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < SIDES; i++) {
        assert_true(sides[i].good);
        assert_true(sides[i].loss > 0 && sides[i].loss == sides[0].loss);
    }
}

int main(void) {
#define OVERFIT                                                                                  \
    "\"layers\":2,\"width\":32,\"heads\":2,\"hidden\":64,\"vocab\":11,\"classes\":4,\"length\":" \
    "24,\"block\":4,"                                                                            \
    "\"batch\":6,\"head_hidden\":16,\"rate\":0.003,\"schedule\":\"constant\",\"warmup\":10"
    static char classify[] = "{" OVERFIT "}",
                pairs[] = "{" OVERFIT ",\"task\":\"pairs\",\"pool\":\"mean\"}";
    static char language[] =
        "{" OVERFIT ",\"task\":\"language\",\"embed_std\":0.5,\"learned\":1,\"rate\":0.01}";
    static char with_dropout[] = WITH_DROPOUT, with_muon[] = WITH_MUON;
    static char muon[] = "{" OVERFIT ",\"optimizer\":\"muon\"}";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(overfits, classify),
        cmocka_unit_test_prestate(overfits, muon),
        cmocka_unit_test_prestate(overfits, pairs),
        cmocka_unit_test_prestate(overfits, language),
        cmocka_unit_test(evaluates_without_dropout),
        cmocka_unit_test(accumulates),
        cmocka_unit_test(schedules),
        cmocka_unit_test(adamw),
        cmocka_unit_test(not_finite),
        cmocka_unit_test_prestate(repeats, with_dropout),
        cmocka_unit_test_prestate(repeats, with_muon),
        cmocka_unit_test_prestate(resumes, with_dropout),
        cmocka_unit_test_prestate(resumes, with_muon),
        cmocka_unit_test(keeps),
        cmocka_unit_test(damaged_newest),
        cmocka_unit_test(strange_names),
        cmocka_unit_test(side_by_side),
    };
    char name[64];
    device = "cpu", dtype = "f32";
    int failed = cmocka_run_group_tests_name("train cpu", tests, open_device, close_device);
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &info) != HT_OK || !info.available) continue;
        if (strncmp(info.name, "cuda", 4) != 0) continue;
        for (int half = 0; half < 2; half++) {
            device = info.name, dtype = half ? "bf16" : "f32";
            snprintf(name, sizeof name, "train %s %s", device, dtype);
            failed += cmocka_run_group_tests_name(name, tests, open_device, close_device);
        }
    }
    return failed;
}
