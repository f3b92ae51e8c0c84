/*
 * ht_trainer_read_qkv: what a layer's attention gets, against the model's own weights by hand.
 */
#include "training.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ht_context *ref;

static int open_ref(void **state) {
    (void)state;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu:ref";
    return ht_context_create(&ref, &desc) != HT_OK;
}

static int close_ref(void **state) {
    (void)state;
    ht_context_destroy(ref);
    return 0;
}

#define SMALL                                                                                 \
    "\"layers\":2,\"width\":6,\"heads\":2,\"kv_heads\":1,\"hidden\":8,\"vocab\":9,"           \
    "\"classes\":3,\"length\":10,\"block\":2,\"batch\":2,\"head_hidden\":0,\"sinusoidal\":0," \
    "\"embed_std\":0.7,\"mask_zero\":0,"

/* Tensor `name` of the model, from malloc. */
static double *weights(const ht_model *model, const char *name) {
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ref, ht_model_tensor(model, i, &info));
        if (strcmp(info.name, name) != 0) continue;
        double *out = malloc((size_t)info.count * sizeof *out);
        OK(ref, ht_model_read(model, i, out));
        return out;
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

/* norm(x) of a row of 6 with scale 1 and shift 0, as the model starts. */
static void norm(double out[6], const double *x) {
    double mean = 0, square = 0;
    for (int i = 0; i < 6; i++) mean += x[i] / 6;
    for (int i = 0; i < 6; i++) square += (x[i] - mean) * (x[i] - mean) / 6;
    for (int i = 0; i < 6; i++) out[i] = (x[i] - mean) / sqrt(square + 1e-6);
}

/* Layer 0 sees the embeddings alone: q, k and v are one product away. */
static void first_layer_by_hand(const char *json, int cls, int merge) {
    ht_config *config = training_config(json);
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    ht_model *model;
    ht_trainer *trainer;
    desc.inference = 1;
    OK(ref, ht_model_create(&model, ref, config));
    OK(ref, ht_trainer_create(&trainer, model, &desc));
    const int32_t tokens[] = {3, 1, 4, 1, 5, 8, 2}, starts[] = {0, 3, 7};
    ht_batch batch = {.size = sizeof batch, .sequences = 2, .tokens = tokens, .cu_seqlens = starts};
    float q[9 * 6], k[9 * 3], v[9 * 3];
    OK(ref, ht_trainer_read_qkv(trainer, &batch, 0, q, k, v));
    double *table = weights(model, "embed.tokens.weight");
    double *first = cls ? weights(model, "embed.cls") : NULL;
    double *w = weights(model, "layers.0.attention.qkv.weight"); /* [6 + 3 + 3, 6] */
    int row = 0, columns = 6 / merge;
    for (int s = 0; s < 2; s++)
        for (int t = starts[s] - cls; t < starts[s + 1]; t += merge, row++) {
            double h[6], x[6];
            for (int i = 0; i < 6; i++) { /* token 0 fills up the last row */
                int at = t + i / columns, token = at < starts[s + 1] && at >= 0 ? tokens[at] : 0;
                x[i] = table[columns * token + i % columns];
            }
            norm(h, t < starts[s] ? first : x);
            for (int o = 0; o < 12; o++) {
                double want = 0;
                for (int i = 0; i < 6; i++) want += w[o * 6 + i] * h[i];
                float got = o < 6   ? q[row * 6 + o]
                            : o < 9 ? k[row * 3 + o - 6]
                                    : v[row * 3 + o - 9];
                assert_true(fabs(got - want) < 1e-5);
            }
        }
    assert_int_equal(row, (3 + merge - 1) / merge + (4 + merge - 1) / merge + 2 * cls);
    free(table);
    free(first);
    free(w);
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
}

static void by_hand(void **state) {
    (void)state;
    first_layer_by_hand("{" SMALL "\"pool\":\"mean\"}", 0, 1);
    first_layer_by_hand("{" SMALL "\"pool\":\"cls\"}", 1, 1);
    first_layer_by_hand("{" SMALL "\"pool\":\"mean\",\"pad\":1}", 0, 1);
    first_layer_by_hand("{" SMALL "\"pool\":\"mean\",\"dtype\":\"f64\"}", 0, 1);
    first_layer_by_hand("{" SMALL "\"pool\":\"mean\",\"merge\":2}", 0, 2);
    first_layer_by_hand("{" SMALL "\"pool\":\"max\",\"merge\":3,\"pad\":1}", 0, 3);
}

static void refusals(void **state) {
    (void)state;
    ht_config *config = training_config("{" SMALL "\"pool\":\"mean\"}");
    ht_model *model;
    ht_trainer *trainer;
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    OK(ref, ht_model_create(&model, ref, config));
    OK(ref, ht_trainer_create(&trainer, model, &desc));
    const int32_t tokens[] = {3, 1}, starts[] = {0, 2};
    ht_batch batch = {.size = sizeof batch, .sequences = 1, .tokens = tokens, .cu_seqlens = starts};
    float x[12];
    REFUSED(ref, ht_trainer_read_qkv(trainer, &batch, 2, x, x, x), HT_INVALID,
            "layer must be 0 to 1, got 2");
    REFUSED(ref, ht_trainer_read_qkv(trainer, &batch, -1, x, x, x), HT_INVALID, "got -1");
    REFUSED(ref, ht_trainer_read_qkv(trainer, &batch, 0, x, NULL, x), HT_INVALID, "is NULL");
    OK(ref, ht_trainer_read_qkv(trainer, &batch, 1, x, x, x));
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
