/*
 * The model's ops on every device of this machine: matrix products of odd shapes, losses in chunks,
 * dropout masks, and whole gradients, each against the same in double.
 *
 * Allowed error: twice that of the plain loops in the same precision, plus 4 eps of the largest
 * value.
 */
#include "training.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_op.h"

static ht_context *ref; /* "cpu:ref": plain loops */

static ht_context *open_device(const char *name) {
    ht_context *ctx = NULL;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = name;
    if (ht_context_create(&ctx, &desc) != HT_OK) return NULL;
    OK(ctx, hti_models_open(ctx, HT_F32));
    return ctx;
}

static int open_ref(void **state) {
    (void)state;
    ref = open_device("cpu:ref");
    return ref == NULL;
}

static int close_ref(void **state) {
    (void)state;
    ht_context_destroy(ref);
    return 0;
}

static double *noise(int64_t n, uint32_t seed) {
    double *x = malloc(sizeof *x * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(2 * training_random(&seed) - 1); /* exact in float */
    return x;
}

/* want in double, plain in float by plain loops, got by the device; all three are freed. */
static void compare(const char *what, double *want, double *plain, double *got, int64_t n) {
    double off = 0, top = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        off = fmax(off, fabs(plain[i] - want[i]));
        top = fmax(top, fabs(want[i]));
        worst = isnan(got[i]) ? INFINITY : fmax(worst, fabs(got[i] - want[i]));
    }
    if (!(worst <= 2 * off + 4 * FLT_EPSILON * top)) {
        print_error("%s is off by %g, allowed %g\n", what, worst, 2 * off + 4 * FLT_EPSILON * top);
        fail();
    }
    free(want), free(plain), free(got);
}

/* ---- matrix products ---- */

typedef struct shape {
    int64_t m, n, k;
    int ta, tb, accumulate;
} shape;

static double *multiply(ht_context *ctx, const shape *s, ht_dtype dtype) {
    double *a = noise(s->m * s->k, 1), *b = noise(s->k * s->n, 2), *c = noise(s->m * s->n, 3);
    hti_gemm g = {.dtype = dtype,
                  .transpose_a = s->ta,
                  .transpose_b = s->tb,
                  .accumulate = s->accumulate,
                  .m = s->m,
                  .n = s->n,
                  .k = s->k,
                  .lda = s->ta ? s->m : s->k,
                  .ldb = s->tb ? s->k : s->n,
                  .ldc = s->n,
                  .a = training_put(ctx, a, s->m * s->k, dtype),
                  .b = training_put(ctx, b, s->k * s->n, dtype),
                  .c = training_put(ctx, c, s->m * s->n, dtype)};
    OK(ctx, hti_models(ctx)->gemm(ctx, &g));
    ht_memory_free(ctx, (void *)g.a);
    ht_memory_free(ctx, (void *)g.b);
    free(a), free(b), free(c);
    return training_get(ctx, g.c, s->m * s->n, dtype);
}

static void products(void **state) {
    static const int64_t sizes[][3] = {{1, 1, 1},   {1, 10, 64},    {8, 10, 512},
                                       {33, 17, 5}, {257, 130, 48}, {64, 300, 129}};
    ht_context *ctx = open_device(*state);
    if (!ctx) skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int bits = 0; bits < 8; bits++) {
            shape s = {sizes[i][0], sizes[i][1], sizes[i][2], bits & 1, bits >> 1 & 1, bits >> 2};
            compare("a product", multiply(ref, &s, HT_F64), multiply(ref, &s, HT_F32),
                    multiply(ctx, &s, HT_F32), s.m * s.n);
        }
    }
    ht_context_destroy(ctx);
}

/* ---- the loss, whose logits come in chunks ---- */

typedef struct loss_sizes {
    int64_t rows, width, classes;
} loss_sizes;

/* dx, dw, dbias, row losses, and the sum of losses, correct and counted targets, one after the
 * other. */
static double *loss(ht_context *ctx, const loss_sizes *s, ht_dtype dtype, int64_t *total) {
    int64_t r = s->rows, w = s->width, c = s->classes, sizes[4] = {r * w, c * w, c, r}, at = 0;
    double *x = noise(r * w, 4), *weights = noise(c * w, 5), *bias = noise(c, 6),
           *zero = calloc((size_t)(c * w + r * w), 8);
    int32_t *targets = malloc(sizeof *targets * (size_t)r);
    for (int64_t i = 0; i < r; i++) targets[i] = i % 7 == 3 ? -1 : (int32_t)(i * 31 % c);
    hti_step step = {.in = {.loss_scale = 1.0 / (double)r}}, *device;
    hti_loss_call a = {.dtype = dtype,
                       .rows = r,
                       .width = w,
                       .classes = c,
                       .x = training_put(ctx, x, r * w, dtype),
                       .w = training_put(ctx, weights, c * w, dtype),
                       .bias = training_put(ctx, bias, c, dtype)};
    void *out[4], *target, *scratch;
    for (int i = 0; i < 4; i++) out[i] = training_put(ctx, zero, sizes[i], dtype);
    OK(ctx, ht_memory_alloc(ctx, (void **)&device, sizeof step));
    OK(ctx, ht_memory_copy_in(ctx, device, &step, sizeof step));
    OK(ctx, ht_memory_alloc(ctx, &target, sizeof *targets * (size_t)r));
    OK(ctx, ht_memory_copy_in(ctx, target, targets, sizeof *targets * (size_t)r));
    OK(ctx, ht_memory_alloc(ctx, &scratch, hti_models(ctx)->loss_scratch(ctx, &a)));
    a.targets = target, a.step = device, a.scratch = scratch;
    a.dx = out[0], a.dw = out[1], a.dbias = out[2], a.row_loss = out[3];
    OK(ctx, hti_models(ctx)->loss(ctx, &a));
    OK(ctx, ht_memory_copy_out(ctx, &step, device, sizeof step));
    *total = sizes[0] + sizes[1] + sizes[2] + sizes[3] + 3;
    double *all = malloc(sizeof *all * (size_t)*total);
    for (int i = 0; i < 4; i++) {
        double *part = training_get(ctx, out[i], sizes[i], dtype);
        memcpy(all + at, part, sizeof *part * (size_t)sizes[i]);
        at += sizes[i];
        free(part);
    }
    all[at] = step.out.loss / (double)r, all[at + 1] = step.out.correct,
    all[at + 2] = step.out.targets;
    void *blocks[] = {(void *)a.x, (void *)a.w, (void *)a.bias, target, scratch, device};
    for (int i = 0; i < 6; i++) ht_memory_free(ctx, blocks[i]);
    free(x), free(weights), free(bias), free(zero), free(targets);
    return all;
}

static void losses(void **state) {
    /* 40000 classes: only 52 rows of logits fit the scratch at a time */
    static const loss_sizes sizes[] = {{1, 4, 2}, {70, 24, 10}, {130, 8, 40000}};
    ht_context *ctx = open_device(*state);
    if (!ctx) skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n;
        double *want = loss(ref, &sizes[i], HT_F64, &n), *plain = loss(ref, &sizes[i], HT_F32, &n);
        double *got = loss(ctx, &sizes[i], HT_F32, &n);
        assert_true(got[n - 1] == want[n - 1] && got[n - 2] == want[n - 2]); /* counts are counts */
        compare("a loss", want, plain, got, n - 2);
    }
    ht_context_destroy(ctx);
}

/* ---- dropout: the share that is dropped, the same mask every time and on every device ---- */

static double *dropped(ht_context *ctx, int64_t rows, int64_t width, double p, uint32_t offset) {
    double *x = calloc((size_t)(rows * width), sizeof *x),
           *table = calloc((size_t)width, sizeof *table);
    for (int64_t i = 0; i < width; i++) table[i] = 1;
    int32_t *zero = calloc((size_t)rows, sizeof *zero);
    void *tokens;
    OK(ctx, ht_memory_alloc(ctx, &tokens, sizeof *zero * (size_t)rows));
    OK(ctx, ht_memory_copy_in(ctx, tokens, zero, sizeof *zero * (size_t)rows));
    hti_embed_call e = {.dtype = HT_F32,
                        .rows = rows,
                        .width = width,
                        .vocab = 1,
                        .tokens = tokens,
                        .positions = tokens,
                        .table = training_put(ctx, table, width, HT_F32),
                        .out = training_put(ctx, x, rows * width, HT_F32),
                        .drop = {.p = p, .seed = 77, .site = 3, .offset = offset}};
    OK(ctx, hti_models(ctx)->embed_forward(ctx, &e));
    ht_memory_free(ctx, tokens);
    ht_memory_free(ctx, (void *)e.table);
    free(x), free(table), free(zero);
    return training_get(ctx, e.out, rows * width, HT_F32);
}

static void masks(void **state) {
    enum { ROWS = 301, WIDTH = 517 };
    ht_context *ctx = open_device(*state);
    if (!ctx) skip();
    double *a = dropped(ref, ROWS, WIDTH, 0.3, 5), *b = dropped(ctx, ROWS, WIDTH, 0.3, 5);
    double *c = dropped(ctx, ROWS, WIDTH, 0.3, 6), n = ROWS * WIDTH, zeros = 0, both = 0;
    assert_memory_equal(a, b, sizeof *a * ROWS * WIDTH);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        assert_true(b[i] == 0 || fabs(b[i] - 1 / 0.7) < 1e-6);
        zeros += b[i] == 0;
        both += b[i] == 0 && c[i] == 0;
    }
    assert_true(fabs(zeros / n - 0.3) < 4 * sqrt(0.3 * 0.7 / n));
    assert_true(fabs(both / n - 0.09) <
                4 * sqrt(0.09 * 0.91 / n)); /* another offset, another mask */
    free(a), free(b), free(c);
    ht_context_destroy(ctx);
}

/* ---- everything together ---- */

/* The gradients of all parameters in one array. */
static double *gradients(ht_context *ctx, const char *json, const char *dtype, int64_t *count) {
    char text[1024];
    static random_batch batch;
    snprintf(text, sizeof text, "%.*s,\"dtype\":\"%s\"}", (int)strlen(json) - 1, json, dtype);
    ht_config *config = training_config(text);
    ht_model *model, *first;
    ht_trainer *trainer;
    OK(ref, ht_model_create(&first, ref, config)); /* float weights, the same for all */
    OK(ctx, ht_model_create(&model, ctx, config));
    OK(ctx, ht_trainer_create(&trainer, model, NULL));
    double *all = malloc(sizeof *all * (size_t)ht_model_parameters(model));
    *count = 0;
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(model, i, &info));
        OK(ref, ht_model_read(first, i, all));
        for (int64_t k = 0; k < info.count; k++) all[k] = (float)all[k];
        OK(ctx, ht_model_write(model, i, all));
    }
    training_batch(&batch, config, 11);
    OK(ctx, ht_trainer_gradient(trainer, &batch.batch, NULL));
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(model, i, &info));
        OK(ctx, ht_trainer_read_gradient(trainer, i, all + *count));
        *count += info.count;
    }
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
    ht_model_destroy(first);
    return all;
}

static void models(void **state) {
    static const char *const kinds[] = {
        "{\"layers\":2,\"width\":64,\"heads\":4,\"hidden\":96,\"vocab\":50,\"classes\":10,"
        "\"length\":120,\"batch\":6,"
        "\"head_hidden\":32,\"dropout\":0.1,\"attention_dropout\":0.1,\"relative_bias\":1,\"pad\":"
        "1}",
        "{\"layers\":2,\"width\":48,\"heads\":3,\"vocab\":50,\"length\":150,\"batch\":4,\"task\":"
        "\"language\","
        "\"rotary\":\"all\",\"embed_std\":0.5}",
        "{\"layers\":1,\"width\":40,\"heads\":2,\"vocab\":50,\"length\":90,\"batch\":4,\"task\":"
        "\"pairs\","
        "\"pool\":\"mean\",\"head_hidden\":24,\"attention\":\"full\"}",
        ("{\"layers\":2,\"width\":64,\"heads\":4,\"vocab\":256,\"classes\":10,\"length\":120,"
         "\"batch\":6,\"format\":\"images\",\"amounts\":1,\"neighbours\":7,\"pad\":1}"),
    };
    ht_context *ctx = open_device(*state);
    if (!ctx) skip();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int64_t n;
        double *want = gradients(ref, kinds[i], "f64", &n),
               *plain = gradients(ref, kinds[i], "f32", &n);
        compare("a gradient", want, plain, gradients(ctx, kinds[i], "f32", &n), n);
    }
    ht_context_destroy(ctx);
}

int main(void) {
    enum { MOST = 64 };
    static char names[MOST][64];
    struct CMUnitTest tests[MOST];
    int n = 0;
    for (int i = 0; i < ht_device_count() && n + 4 <= MOST; i++) {
        static const struct {
            const char *name;
            CMUnitTestFunction run;
        } list[] = {
            {"products", products}, {"losses", losses}, {"masks", masks}, {"models", models}};
        ht_device_info info = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &info) != HT_OK || !info.available) continue;
        for (int k = 0; k < 4; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s", list[k].name, info.name);
            tests[n] = (struct CMUnitTest){names[n], list[k].run, NULL, NULL,
                                           (void *)(uintptr_t)info.name};
        }
    }
    return _cmocka_run_group_tests("ops", tests, (size_t)n, open_ref, close_ref);
}
