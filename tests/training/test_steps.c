/*
 * Ten steps of training on every device, loss by loss, beside the same in double on the reference
 * kernels; all start from the same weights. And batches of more shapes than a device keeps.
 *
 * Allowed error in float: twice that of the reference kernels in float, plus 4 eps of the largest
 * loss. In bf16, where the CPU has no model: 4 eps of bf16.
 */
#include "training.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10 };

#define COMMON                                                                                    \
    "\"layers\":2,\"width\":64,\"heads\":4,\"hidden\":96,\"vocab\":40,\"classes\":7,\"length\":"  \
    "150,\"batch\":5,\"rate\":0.002,\"schedule\":\"constant\",\"warmup\":0,\"clip\":1,\"pad\":1," \
    "\"weight_decay\":0.1,\"adam_epsilon\":0.0001,\"dropout\":0.1"

static const char *const kinds[] = {
    "{" COMMON ",\"head_hidden\":32,\"relative_bias\":1}",
    "{" COMMON ",\"task\":\"language\",\"rotary\":\"all\",\"embed_std\":0.5}",
    "{" COMMON ",\"task\":\"pairs\",\"pool\":\"mean\",\"head_hidden\":24,\"learned\":1}",
    "{" COMMON ",\"attention\":\"full\",\"pool\":\"first\"}",
    "{" COMMON ",\"attention_dropout\":0.1,\"attention\":\"local\",\"projection_bias\":1}",
    "{" COMMON ",\"attention_dropout\":0.1,\"query\":\"mean\"}",
    "{" COMMON ",\"attention_dropout\":0.1,\"inner\":16,\"pool\":\"mean\",\"learned\":1}",
    "{" COMMON ",\"merge\":4,\"pool\":\"max\",\"learned\":1,\"rotary\":\"all\"}",
    "{" COMMON ",\"merge\":2,\"task\":\"denoise\",\"pool\":\"mean\"}",
    "{" COMMON ",\"attention_dropout\":0.1,\"dropout_after\":5}",
    "{" COMMON ",\"mask_zero\":2,\"pad\":0,\"pool\":\"max\",\"sinusoidal_theta\":50}",
    "{" COMMON ",\"mask_zero\":2,\"pad\":0,\"merge\":2,\"pool\":\"mean\",\"learned\":1}",
    "{" COMMON ",\"neighbours\":5,\"format\":\"images\",\"amounts\":1,\"recompute\":1}",
    "{" COMMON ",\"neighbours\":4,\"task\":\"language\",\"query\":\"fine\",\"rotary\":\"all\"}",
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static ht_context *open_device(const char *name) {
    ht_context *ctx = NULL;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = name;
    return ht_context_create(&ctx, &desc) == HT_OK ? ctx : NULL;
}

/* The weights that a float model starts from. */
static void share_weights(ht_model *to, ht_context *ctx, const char *json) {
    ht_context *ref = open_device("cpu:ref");
    ht_config *config = training_config(json);
    ht_model *from;
    OK(ref, ht_model_create(&from, ref, config));
    double *x = malloc(sizeof *x * (size_t)ht_model_parameters(from));
    for (int64_t i = 0; i < ht_model_tensors(from); i++) {
        OK(ref, ht_model_read(from, i, x));
        OK(ctx, ht_model_write(to, i, x));
    }
    free(x);
    ht_model_destroy(from);
    ht_context_destroy(ref);
}

static void losses(double *out, const char *device, const char *json, const char *dtype) {
    static random_batch batch;
    ht_context *ctx = open_device(device);
    ht_config *config = training_config(json);
    char text[64];
    ht_model *model;
    ht_trainer *trainer;
    snprintf(text, sizeof text, "{\"dtype\":\"%s\"}", dtype);
    OK(NULL, ht_config_read_json(config, text));
    OK(ctx, ht_model_create(&model, ctx, config));
    share_weights(model, ctx, json);
    OK(ctx, ht_trainer_create(&trainer, model, NULL));
    for (int step = 0; step < STEPS; step++) {
        ht_report r = HT_REPORT_INIT;
        training_batch(&batch, config, (uint32_t)step % 3);
        OK(ctx, ht_trainer_step(trainer, &batch.batch, 1, &r));
        assert_int_equal(r.applied, 1);
        out[step] = r.loss;
    }
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
    ht_context_destroy(ctx);
}

static void compare(const char *what, const double *want, const double *got, double off,
                    double eps) {
    double top = 0;
    for (int i = 0; i < STEPS; i++) top = fmax(top, want[i]);
    for (int i = 0; i < STEPS; i++) {
        if (fabs(got[i] - want[i]) <= 2 * off + 4 * eps * top) continue;
        print_error("%s, step %d: loss %.8g, should be %.8g within %g\n", what, i, got[i], want[i],
                    2 * off + 4 * eps * top);
        fail();
    }
}

/* Losses of the reference kernels, computed once for all devices; returns what float is off by. */
static double reference(const double **want, size_t k) {
    static double wide[KINDS][STEPS], off[KINDS];
    static int done[KINDS];
    double plain[STEPS];
    *want = wide[k];
    if (done[k]) return off[k];
    losses(wide[k], "cpu:ref", kinds[k], "f64");
    losses(plain, "cpu:ref", kinds[k], "f32");
    for (int i = 0; i < STEPS; i++) off[k] = fmax(off[k], fabs(plain[i] - wide[k][i]));
    done[k] = 1;
    return off[k];
}

static void ten_steps(void **state) {
    const char *device = *state;
    for (size_t k = 0; k < KINDS; k += training_thin()) {
        const double *want;
        double got[STEPS], off = reference(&want, k);
        losses(got, device, kinds[k], "f32");
        compare(kinds[k], want, got, off, FLT_EPSILON);
        if (strncmp(device, "cuda", 4) != 0) continue;
        losses(got, device, kinds[k], "bf16");
        compare(kinds[k], want, got, 0, 1.0 / 256);
    }
}

/* The loss of the first `rows` tokens, forward and backward. */
static double loss_of(ht_context *ctx, ht_trainer *trainer, random_batch *batch, int32_t rows) {
    ht_report r = HT_REPORT_INIT;
    batch->cu_seqlens[1] = rows;
    OK(ctx, ht_trainer_clear_gradient(trainer));
    OK(ctx, ht_trainer_gradient(trainer, &batch->batch, &r));
    return r.loss;
}

/* Every number of rows is a shape of its own; those seen long ago give the same loss again. */
static void shapes(void **state) {
    enum { MOST = 100 };
    static random_batch batch;
    ht_context *ctx = open_device(*state);
    ht_config *config =
        training_config("{\"layers\":2,\"width\":64,\"heads\":4,\"hidden\":96,\"vocab\":40,"
                        "\"length\":200,\"batch\":1}");
    ht_model *model;
    ht_trainer *trainer;
    double first[MOST];
    OK(ctx, ht_model_create(&model, ctx, config));
    OK(ctx, ht_trainer_create(&trainer, model, NULL));
    training_batch(&batch, config, 1);
    for (int32_t i = 0; i < MOST; i++) batch.tokens[i] = 1 + i * 7 % 39;
    for (int32_t i = 0; i < MOST; i++) first[i] = loss_of(ctx, trainer, &batch, i + 1);
    for (int32_t i = 0; i < MOST; i++)
        assert_true(loss_of(ctx, trainer, &batch, i + 1) == first[i]);
    assert_true(first[0] != first[1]);
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
    ht_context_destroy(ctx);
}

int main(void) {
    enum { DEVICES = 32 };
    static struct CMUnitTest tests[2 * DEVICES];
    int n = 0;
    for (int i = 0; i < ht_device_count() && n < 2 * DEVICES; i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &info) != HT_OK || !info.available) continue;
        tests[n++] =
            (struct CMUnitTest){info.name, ten_steps, NULL, NULL, (void *)(uintptr_t)info.name};
        tests[n++] =
            (struct CMUnitTest){"shapes", shapes, NULL, NULL, (void *)(uintptr_t)info.name};
    }
    return _cmocka_run_group_tests("ten steps", tests, (size_t)n, NULL, NULL);
}
