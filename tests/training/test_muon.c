/*
 * Muon: against its formula in double, on matrices of all shapes, on every device and in every
 * precision; and through a trainer, where everything that is no matrix of a layer stays AdamW's.
 */
#include "training.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_op.h"

/* ---- the formula ---- */

static void turn(double *x, int64_t rows, int64_t columns) {
    double *s = calloc((size_t)(rows * rows), sizeof *s), *t = calloc((size_t)rows, sizeof *t);
    double *next = calloc((size_t)(rows * columns), sizeof *next);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < rows; j++)
            for (int64_t k = 0; k < columns; k++)
                s[i * rows + j] += x[i * columns + k] * x[j * columns + k];
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < rows; j++) {
            t[j] = HTI_MUON_B * s[i * rows + j];
            for (int64_t k = 0; k < rows; k++)
                t[j] += HTI_MUON_C * s[i * rows + k] * s[k * rows + j];
        }
        for (int64_t k = 0; k < columns; k++) {
            next[i * columns + k] = HTI_MUON_A * x[i * columns + k];
            for (int64_t j = 0; j < rows; j++) next[i * columns + k] += t[j] * x[j * columns + k];
        }
    }
    memcpy(x, next, sizeof *x * (size_t)(rows * columns));
    free(s), free(t), free(next);
}

/* x becomes o: of any two orders of rows and columns the formula makes the same. */
static void orthogonal(double *x, int64_t rows, int64_t columns) {
    double square = 0;
    for (int64_t i = 0; i < rows * columns; i++) square += x[i] * x[i];
    for (int64_t i = 0; i < rows * columns; i++) x[i] /= square > 0 ? sqrt(square) : 1;
    for (int i = 0; i < 5; i++) turn(x, rows, columns);
}

/* ---- the op ---- */

enum { MATRICES = 3, GAP = 32 };

typedef struct arena {
    int64_t rows, columns, total, at[MATRICES];
    double *p, *m, *g; /* [total]; between the matrices numbers that stay */
} arena;

static arena make_arena(int64_t rows, int64_t columns) {
    arena a = {.rows = rows, .columns = columns};
    uint32_t seed = (uint32_t)(rows * 1000 + columns);
    int64_t room = (rows * columns + 31) / 32 * 32 + GAP;
    a.total = MATRICES * room + GAP;
    for (int i = 0; i < MATRICES; i++) a.at[i] = GAP + room * (MATRICES - 1 - i);
    double **all[] = {&a.p, &a.m, &a.g};
    for (int k = 0; k < 3; k++) {
        *all[k] = calloc((size_t)a.total, sizeof(double));
        for (int64_t i = 0; i < a.total; i++) (*all[k])[i] = (float)(training_random(&seed) - 0.5);
    }
    return a;
}

static void free_arena(arena *a) { free(a->p), free(a->m), free(a->g); }

static const hti_step first_step = {.in = {.rate = 0.125, .correction1 = 1, .correction2 = 1},
                                    .out = {.square = 16, .loss = 1}};

/* What p and m become: clip 2 of a norm of 4 halves the gradient. */
static void expect(arena *a) {
    int64_t n = a->rows * a->columns;
    double *x = calloc((size_t)n, sizeof *x),
           by = 0.2 * sqrt(fmax((double)a->rows, (double)a->columns));
    for (int i = 0; i < MATRICES; i++) {
        double *p = a->p + a->at[i], *m = a->m + a->at[i], *g = a->g + a->at[i];
        for (int64_t k = 0; k < n; k++) {
            m[k] = 0.75 * m[k] + 0.25 * g[k] / 2;
            x[k] = 0.75 * m[k] + 0.25 * g[k] / 2;
        }
        orthogonal(x, a->rows, a->columns);
        for (int64_t k = 0; k < n; k++) p[k] -= 0.125 * (by * x[k] + 0.5 * p[k]);
    }
    free(x);
}

/* Runs the op on the arena's numbers and puts p and m there. */
static void run(ht_context *ctx, arena *a, ht_dtype dtype, const hti_step *step) {
    hti_muon_call c = {.dtype = dtype,
                       .rows = a->rows,
                       .columns = a->columns,
                       .count = MATRICES,
                       .momentum = 0.75,
                       .scale = 0.2 * sqrt(fmax((double)a->rows, (double)a->columns)),
                       .decay = 0.5,
                       .clip = 2};
    void *device, *g = training_put(ctx, a->g, a->total, dtype);
    memcpy(c.at, a->at, sizeof a->at);
    OK(ctx, ht_memory_alloc(ctx, &device, sizeof *step));
    OK(ctx, ht_memory_copy_in(ctx, device, step, sizeof *step));
    c.step = device, c.g = g;
    c.p = training_put(ctx, a->p, a->total, dtype), c.m = training_put(ctx, a->m, a->total, dtype);
    if (dtype == HT_BF16) OK(ctx, ht_memory_alloc(ctx, &c.w, 2 * (size_t)a->total));
    OK(ctx, ht_memory_alloc(ctx, &c.scratch, hti_models(ctx)->muon_scratch(ctx, &c)));
    OK(ctx, hti_models(ctx)->muon(ctx, &c));
    free(a->p), free(a->m);
    a->p = training_get(ctx, c.p, a->total, dtype), a->m = training_get(ctx, c.m, a->total, dtype);
    void *rest[] = {device, g, c.w, c.scratch};
    for (int i = 0; i < 4; i++)
        if (rest[i]) ht_memory_free(ctx, rest[i]);
}

/* Fifteen products, each rounded once per element, of values up to 1.2; what they are added to p
 * with is known. m has no products in it. */
static void compare(const arena *want, const arena *got, ht_dtype dtype, const char *what) {
    double eps = dtype == HT_F64 ? DBL_EPSILON : dtype == HT_F32 ? FLT_EPSILON : 1.0 / 256;
    double wide = dtype == HT_F64 ? DBL_EPSILON : FLT_EPSILON;
    double by = 0.125 * 0.2 * sqrt(fmax((double)want->rows, (double)want->columns));
    double most = by * 15 * 1.2 * eps * (dtype == HT_BF16 ? 1 : 16) + 4 * wide, worst = 0;
    for (int64_t i = 0; i < want->total; i++) {
        assert_true(fabs(got->m[i] - want->m[i]) <= 4 * wide);
        worst = fmax(worst, isnan(got->p[i]) ? INFINITY : fabs(got->p[i] - want->p[i]));
    }
    if (worst > most)
        print_error("%s, %lld x %lld: off by %g, allowed %g\n", what, (long long)want->rows,
                    (long long)want->columns, worst, most);
    assert_true(worst <= most);
}

static void formula(void **state) {
    static const int64_t shapes[][2] = {{1, 1},   {3, 5},    {5, 3},    {16, 16},
                                        {32, 96}, {128, 32}, {64, 256}, {200, 104}};
    ht_context *ctx = NULL;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = *state;
    OK(NULL, ht_context_create(&ctx, &desc));
    static const ht_dtype dtypes[] = {HT_F64, HT_F32, HT_BF16};
    for (int d = 0; d < 3; d++) {
        if (hti_models_open(ctx, dtypes[d]) != HT_OK) continue;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            arena want = make_arena(shapes[i][0], shapes[i][1]);
            arena got = make_arena(shapes[i][0], shapes[i][1]);
            expect(&want);
            run(ctx, &got, dtypes[d], &first_step);
            compare(&want, &got, dtypes[d], *state);
            free_arena(&want), free_arena(&got);
        }
    }
    ht_context_destroy(ctx);
}

/* Of a diagonal matrix each number goes its own way, known in advance: 0.6 and 0.8 are the sides of
 * a triangle, five times through 3.4445 x - 4.775 x^3 + 2.0315 x^5. */
static void by_hand(void **state) {
    ht_context *ctx = NULL;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    (void)state;
    desc.device = "cpu:ref";
    OK(NULL, ht_context_create(&ctx, &desc));
    OK(ctx, hti_models_open(ctx, HT_F64));
    arena a = make_arena(2, 3);
    memset(a.p, 0, sizeof *a.p * (size_t)a.total), memset(a.m, 0, sizeof *a.m * (size_t)a.total);
    memset(a.g, 0, sizeof *a.g * (size_t)a.total);
    for (int i = 0; i < MATRICES; i++) a.g[a.at[i]] = 3, a.g[a.at[i] + 4] = -4;
    run(ctx, &a, HT_F64, &first_step);
    double x[2] = {0.6, 0.8}, by = 0.125 * 0.2 * sqrt(3);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 2; k++)
            x[k] = 3.4445 * x[k] - 4.775 * pow(x[k], 3) + 2.0315 * pow(x[k], 5);
    for (int i = 0; i < MATRICES; i++)
        for (int64_t k = 0; k < 6; k++) {
            double want = k == 0 ? -by * x[0] : k == 4 ? by * x[1] : 0;
            assert_true(fabs(a.p[a.at[i] + k] - want) < 1e-12);
        }
    free_arena(&a);
    ht_context_destroy(ctx);
}

/* Neither zeros nor what is not finite make numbers that are none. */
static void nothing_to_do(void **state) {
    ht_context *ctx = NULL;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = *state;
    OK(NULL, ht_context_create(&ctx, &desc));
    OK(ctx, hti_models_open(ctx, HT_F32));
    arena want = make_arena(24, 40), got = make_arena(24, 40);
    hti_step bad = first_step;
    bad.out.square = INFINITY;
    got.g[got.at[1]] = want.g[want.at[1]] = NAN;
    run(ctx, &got, HT_F32, &bad);
    assert_memory_equal(got.p, want.p, sizeof *got.p * (size_t)got.total);
    assert_memory_equal(got.m, want.m, sizeof *got.m * (size_t)got.total);
    memset(got.m, 0, sizeof *got.m * (size_t)got.total);
    memset(got.g, 0, sizeof *got.g * (size_t)got.total);
    run(ctx, &got, HT_F32, &first_step);
    for (int64_t k = 0; k < 24 * 40; k++) {
        double p = want.p[got.at[0] + k];
        assert_true(fabs(got.p[got.at[0] + k] - (p - 0.125 * 0.5 * p)) <= FLT_EPSILON);
    }
    free_arena(&want), free_arena(&got);
    ht_context_destroy(ctx);
}

/* ---- a trainer ---- */

#define MODEL                                                                              \
    "{\"layers\":2,\"width\":16,\"heads\":4,\"kv_heads\":2,\"hidden\":40,\"vocab\":11,"    \
    "\"classes\":4,\"length\":24,\"block\":4,\"batch\":6,\"head_hidden\":8,\"rate\":0.01," \
    "\"schedule\":\"constant\",\"warmup\":0,\"weight_decay\":0.1,\"optimizer\":\"muon\","  \
    "\"dtype\":\"f64\"}"

/* First step, no clipping: x is 0.05 (1 + 0.95) g, of which only the direction counts. */
static void expect_matrix(double *p, double *g, int64_t rows, int64_t columns) {
    double by = 0.2 * sqrt(fmax((double)rows, (double)columns));
    orthogonal(g, rows, columns);
    for (int64_t k = 0; k < rows * columns; k++) p[k] -= 0.01 * (by * g[k] + 0.1 * p[k]);
}

/* p becomes what the step must make of it. */
static void expect_tensor(double *p, double *g, const ht_tensor_info *info) {
    int layer = strncmp(info->name, "layers.", 7) == 0;
    if (layer && strstr(info->name, "qkv.weight")) {
        expect_matrix(p, g, 16, 16), expect_matrix(p + 256, g + 256, 8, 16);
        expect_matrix(p + 384, g + 384, 8, 16);
    } else if (layer && info->rank == 2) {
        expect_matrix(p, g, info->shape[0], info->shape[1]);
    } else {
        int matrix = strstr(info->name, "head.") || strstr(info->name, "output.weight");
        for (int64_t k = 0; k < info->count; k++) {
            double decay = matrix && info->rank == 2 ? 0.1 : 0;
            p[k] -= 0.01 * (g[k] / (fabs(g[k]) + 1e-9) + decay * p[k]);
        }
    }
}

static void through_a_trainer(void **state) {
    enum { MOST = 4096 };
    static double want[40][MOST], grad[MOST], got[MOST];
    static random_batch batch;
    ht_context *ctx = NULL;
    ht_model *model;
    ht_trainer *trainer;
    (void)state;
    OK(NULL, ht_context_create(&ctx, NULL));
    ht_config *config = training_config(MODEL);
    OK(ctx, ht_model_create(&model, ctx, config));
    OK(ctx, ht_trainer_create(&trainer, model, NULL));
    training_batch(&batch, config, 3);
    OK(ctx, ht_trainer_gradient(trainer, &batch.batch, NULL));
    int64_t tensors = ht_model_tensors(model);
    assert_in_range(tensors, 20, 40);
    for (int64_t i = 0; i < tensors; i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(model, i, &info));
        assert_in_range(info.count, 1, MOST);
        OK(ctx, ht_model_read(model, i, want[i]));
        OK(ctx, ht_trainer_read_gradient(trainer, i, grad));
        expect_tensor(want[i], grad, &info);
    }
    OK(ctx, ht_trainer_step(trainer, &batch.batch, 1, NULL));
    for (int64_t i = 0; i < tensors; i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(model, i, &info));
        OK(ctx, ht_model_read(model, i, got));
        for (int64_t k = 0; k < info.count; k++) {
            if (!(fabs(got[k] - want[i][k]) < 1e-9))
                print_error("%s %lld: %g, want %g\n", info.name, (long long)k, got[k], want[i][k]);
            assert_true(fabs(got[k] - want[i][k]) < 1e-9);
        }
    }
    ht_trainer_destroy(trainer), ht_model_destroy(model), ht_context_destroy(ctx);
}

/* More layers than one call takes: none is left out. */
static void many_layers(void **state) {
    enum { SIZE = 64, TENSORS = 600 };
    static double before[TENSORS][SIZE], after[SIZE];
    static random_batch batch;
    ht_context *ctx = NULL;
    ht_model *model;
    ht_trainer *trainer;
    (void)state;
    OK(NULL, ht_context_create(&ctx, NULL));
    ht_config *config = training_config(
        "{\"layers\":40,\"width\":4,\"heads\":1,\"hidden\":4,\"vocab\":5,\"length\":8,"
        "\"block\":4,\"batch\":2,\"warmup\":0,\"optimizer\":\"muon\"}");
    OK(ctx, ht_model_create(&model, ctx, config));
    OK(ctx, ht_trainer_create(&trainer, model, NULL));
    training_batch(&batch, config, 5);
    int64_t tensors = ht_model_tensors(model), matrices = 0;
    assert_in_range(tensors, 1, TENSORS);
    for (int64_t i = 0; i < tensors; i++) OK(ctx, ht_model_read(model, i, before[i]));
    OK(ctx, ht_trainer_step(trainer, &batch.batch, 1, NULL));
    for (int64_t i = 0; i < tensors; i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ctx, ht_model_tensor(model, i, &info));
        assert_in_range(info.count, 1, SIZE);
        if (strncmp(info.name, "layers.", 7) != 0 || info.rank != 2) continue;
        OK(ctx, ht_model_read(model, i, after));
        if (memcmp(before[i], after, sizeof *after * (size_t)info.count) == 0)
            print_error("%s has not changed\n", info.name);
        assert_memory_not_equal(before[i], after, sizeof *after * (size_t)info.count);
        matrices++;
    }
    assert_int_equal(matrices, 40 * 4);
    ht_trainer_destroy(trainer), ht_model_destroy(model), ht_context_destroy(ctx);
}

static void refuses(void **state) {
    ht_context *ctx = NULL;
    (void)state;
    OK(NULL, ht_context_create(&ctx, NULL));
    ht_config *config = training_config("{\"momentum\":1}");
    REFUSED(NULL, ht_config_check(config), HT_INVALID, "momentum must be below 1, got momentum 1");
    config = training_config("{}");
    REFUSED(NULL, ht_config_read_json(config, "{\"optimizer\":\"sgd\"}"), HT_INVALID,
            "optimizer must be one of adamw, muon, got \"sgd\"");
    ht_context_destroy(ctx);
}

int main(void) {
    enum { MOST = 80 };
    static struct CMUnitTest tests[MOST] = {
        cmocka_unit_test(by_hand), cmocka_unit_test(through_a_trainer),
        cmocka_unit_test(many_layers), cmocka_unit_test(refuses)};
    int n = 4;
    for (int i = 0; i < ht_device_count() && n + 2 <= MOST; i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &info) != HT_OK || !info.available) continue;
        void *name = (void *)(uintptr_t)info.name;
        tests[n++] = (struct CMUnitTest){info.name, formula, NULL, NULL, name};
        tests[n++] = (struct CMUnitTest){info.name, nothing_to_do, NULL, NULL, name};
    }
    return _cmocka_run_group_tests("muon", tests, (size_t)n, NULL, NULL);
}
