/*
 * Models: parameter counts, and the gradient of every parameter of every kind of model against
 * differences of the loss, in double on the reference kernels.
 */
#include "training.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ht_context *ref; /* "cpu:ref" */

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

/* ---- how many parameters ---- */

static void counts(void **state) {
    static const struct {
        const char *preset;
        int64_t least, most;
    } want[] = {
        {"lra/listops", 8948746, 8948746}, {"text", 3486722, 3486722},
        {"retrieval", 1087618, 1087618},   {"image", 248458, 248458},
        {"pathfinder", 26530, 26530},      {"lra/pathx", 537954, 537954},
        {"lm/53m", 52500000, 53500000},    {"lm/144m", 142500000, 144500000},
        {"lm/small", 11500000, 12500000},  {"lm/tiny", 800000, 900000},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ht_config *config;
        ht_model *model;
        if (training_thin() > 1 && want[i].least > 20000000) continue; /* its weights take long */
        config = training_preset(want[i].preset);
        OK(ref, ht_model_create(&model, ref, config));
        int64_t n = ht_model_parameters(model), sum = 0;
        for (int64_t k = 0; k < ht_model_tensors(model); k++) {
            ht_tensor_info info = HT_TENSOR_INFO_INIT;
            OK(ref, ht_model_tensor(model, k, &info));
            sum += info.count;
        }
        ht_model_destroy(model);
        if (n < want[i].least || n > want[i].most || n != sum) {
            print_error("%s has %lld parameters (%lld in its tensors)\n", want[i].preset,
                        (long long)n, (long long)sum);
            fail();
        }
    }
}

/* ---- first embeddings ---- */

enum { GREYS = 256, COLUMNS = 64 };

/* <a, b> over the columns of two tokens, per deviation squared and column */
static double alike(const double *table, int a, int b) {
    double sum = 0;
    for (int c = 0; c < COLUMNS; c++) sum += table[a * COLUMNS + c] * table[b * COLUMNS + c];
    return sum / (0.3 * 0.3 * COLUMNS);
}

static void first_embeddings(double *table, const char *waves) {
    ht_config *config;
    ht_model *model;
    char json[200];
    snprintf(json, sizeof json,
             "{\"vocab\":256,\"width\":64,\"heads\":2,\"layers\":1,\"embed_std\":0.3,"
             "\"embed_waves\":%s}",
             waves);
    config = training_preset(NULL);
    OK(NULL, ht_config_read_json(config, json));
    OK(ref, ht_model_create(&model, ref, config));
    ht_tensor_info info = HT_TENSOR_INFO_INIT;
    OK(ref, ht_model_tensor(model, 0, &info));
    assert_string_equal(info.name, "embed.tokens.weight");
    OK(ref, ht_model_read(model, 0, table));
    ht_model_destroy(model);
}

/* With waves neighbouring amounts begin alike and far ones do not; without, none do. The sums of
 * 64 products of unrelated numbers of variance 1 deviate by 1 / 8. */
static void waves(void **state) {
    static double table[GREYS * COLUMNS];
    (void)state;
    first_embeddings(table, "2");
    for (int a = 0; a + 1 < GREYS; a++) {
        assert_true(fabs(alike(table, a, a) - 1) < 0.6);
        assert_true(alike(table, a, a + 1) > 0.98 * alike(table, a, a));
    }
    assert_true(fabs(alike(table, 0, 128)) < 0.6);
    first_embeddings(table, "0");
    for (int a = 0; a + 1 < GREYS; a++) assert_true(fabs(alike(table, a, a + 1)) < 0.6);
}

static void output_of(double *out, const char *json) {
    ht_config *config = training_config(json);
    ht_model *model;
    ht_tensor_info info = HT_TENSOR_INFO_INIT;
    int64_t i = 0;
    OK(ref, ht_model_create(&model, ref, config));
    do OK(ref, ht_model_tensor(model, i++, &info));
    while (strcmp(info.name, "output.weight") != 0);
    assert_int_equal(info.count, 24);
    OK(ref, ht_model_read(model, i - 1, out));
    ht_model_destroy(model);
}

#define LAST_LAYER "\"layers\":1,\"width\":8,\"heads\":2,\"classes\":3"

/* The last layer begins with the same values times output_scale. */
static void output_scale(void **state) {
    double plain[24], scaled[24];
    (void)state;
    output_of(plain, "{" LAST_LAYER "}");
    output_of(scaled, "{" LAST_LAYER ",\"output_scale\":0.25}");
    for (int i = 0; i < 24; i++) assert_true(plain[i] != 0 && scaled[i] == 0.25 * plain[i]);
    output_of(scaled, "{" LAST_LAYER ",\"output_scale\":0}");
    for (int i = 0; i < 24; i++) assert_true(scaled[i] == 0);
    ht_config *config = training_config("{\"task\":\"language\",\"tied\":1,\"output_scale\":0}");
    REFUSED(NULL, ht_config_check(config), HT_INVALID,
            "with tied 1 it must be 1, got output_scale 0, tied 1");
}

/* relative_slope 0.5 in 4 heads: 0.5, 0.125, ... per row of distance, on both sides. */
static void slopes(void **state) {
    enum { BLOCK = 4, HEADS = 4, ROWS = 4 * BLOCK - 1 };
    static const double per_row[HEADS] = {0.5, 0.125, 0.03125, 0.0078125};
    double table[ROWS * HEADS];
    ht_config *config;
    ht_model *model;
    (void)state;
    config = training_preset(NULL);
    OK(NULL, ht_config_read_json(config, "{\"layers\":1,\"width\":8,\"heads\":4,\"block\":4,"
                                         "\"relative_slope\":0.5}"));
    REFUSED(NULL, ht_config_check(config), HT_INVALID,
            "without a bias set relative_slope 0, got relative_slope 0.5, relative_bias 0");
    training_set(config, "relative_bias", 1);
    OK(ref, ht_model_create(&model, ref, config));
    int64_t i = 0;
    ht_tensor_info info = HT_TENSOR_INFO_INIT;
    do OK(ref, ht_model_tensor(model, i++, &info));
    while (!strstr(info.name, "relative"));
    assert_int_equal(info.count, ROWS * HEADS);
    OK(ref, ht_model_read(model, i - 1, table));
    for (int row = 0; row < ROWS; row++)
        for (int h = 0; h < HEADS; h++)
            assert_true(table[row * HEADS + h] == -per_row[h] * abs(row - ROWS / 2));
    ht_model_destroy(model);
}

/* Two tokens in a picture of 4 x 4 rows, the rest masked: only where they lie as seen from each
 * other counts, and with lines a step to the right is not one to the next line's beginning. */
static void check_places(int lines, const float *of) {
    enum { CLASSES = 2 };
    static const struct {
        int a, b, differ[2]; /* without lines, with them */
    } cases[] = {{0, 2, {0, 0}}, {3, 4, {0, 0}}, {0, 1, {0, 1}},
                 {0, 3, {1, 1}}, {0, 5, {1, 1}}, {3, 6, {1, 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double most = 0;
        for (int c = 0; c < CLASSES; c++)
            most = fmax(most, fabs((double)of[cases[i].a * CLASSES + c] -
                                   (double)of[cases[i].b * CLASSES + c]));
        if (cases[i].differ[lines])
            assert_true(most > 1e-4);
        else
            assert_true(most < 1e-6);
    }
}

static void grid(void **state) {
    enum { PLACES = 7, ROWS = 16 };
    static const int pairs[PLACES][2] = {{0, 1}, {3, 4}, {6, 7}, {0, 4}, {11, 15}, {0, 2}, {0, 8}};
    int32_t tokens[PLACES * ROWS] = {0}, starts[PLACES + 1] = {0};
    float out[PLACES * 2];
    ht_batch b = HT_BATCH_INIT;
    ht_config *config;
    (void)state;
    for (int i = 0; i < PLACES; i++) {
        tokens[i * ROWS + pairs[i][0]] = 1, tokens[i * ROWS + pairs[i][1]] = 2;
        starts[i + 1] = (i + 1) * ROWS;
    }
    b.sequences = PLACES, b.tokens = tokens, b.cu_seqlens = starts;
    config = training_preset(NULL);
    OK(NULL,
       ht_config_read_json(config, "{\"dtype\":\"f64\",\"layers\":2,\"width\":8,\"heads\":2,"
                                   "\"vocab\":3,\"length\":16,\"batch\":7,\"attention\":\"full\","
                                   "\"pool\":\"mean\",\"sinusoidal\":0,\"rotary_grid\":4}"));
    REFUSED(NULL, ht_config_check(config), HT_INVALID,
            "rotary_grid needs rotary all and no language model, got rotary_grid 4, rotary none, "
            "task classify");
    training_choose(config, "rotary", "all"), training_choose(config, "task", "language");
    REFUSED(NULL, ht_config_check(config), HT_INVALID, "rotary all, task language");
    training_choose(config, "task", "classify");
    for (int grid = 0; grid <= 4; grid += 4) {
        training_set(config, "rotary_grid", grid);
        ht_model *model;
        ht_trainer *trainer;
        OK(ref, ht_model_create(&model, ref, config));
        OK(ref, ht_trainer_create(&trainer, model, NULL));
        OK(ref, ht_trainer_predict(trainer, &b, out));
        check_places(grid > 0, out);
        ht_trainer_destroy(trainer);
        ht_model_destroy(model);
    }
}

/* ---- gradients ---- */

/* Every test model starts from this, then changes something. */
#define SMALL                                                                            \
    "\"dtype\":\"f64\",\"layers\":2,\"width\":12,\"heads\":2,\"hidden\":10,\"vocab\":7," \
    "\"classes\":3,"                                                                     \
    "\"length\":21,\"block\":4,\"batch\":3,\"head_hidden\":8,\"embed_std\":0.7,"
#define PAIRS SMALL "\"task\":\"pairs\",\"pool\":\"first\","
#define LANGUAGE SMALL "\"task\":\"language\","
#define DENOISE SMALL "\"task\":\"denoise\","
#define DROP "\"dropout\":0.2,\"attention_dropout\":0.15,"

static const char *const models[] = {
    "{" SMALL "\"pool\":\"cls\"}",
    "{" SMALL DROP "\"pool\":\"cls\"}",
    "{" SMALL "\"pool\":\"mean\",\"attention\":\"full\"}",
    "{" SMALL "\"pool\":\"mean_all\",\"attention\":\"local\",\"head_hidden\":0}",
    "{" SMALL "\"pool\":\"first\",\"query\":\"first\",\"inner\":8,\"projection_bias\":1}",
    "{" SMALL "\"pool\":\"mean\",\"query\":\"fine\",\"kv_heads\":1}",
    "{" SMALL DROP "\"pool\":\"max\"}",
    "{" SMALL "\"pool\":\"max\",\"pad\":1,\"head_hidden\":0}",
    "{" SMALL "\"sinusoidal\":0}",
    "{" SMALL "\"sinusoidal\":0,\"learned\":1}",
    "{" SMALL "\"sinusoidal\":0,\"rotary\":\"all\"}",
    "{" SMALL "\"sinusoidal\":0,\"rotary\":\"all\",\"rotary_grid\":5}",
    "{" SMALL "\"sinusoidal\":0,\"rotary\":\"level0\"}",
    "{" SMALL "\"sinusoidal\":0,\"relative_bias\":1}",
    "{" SMALL DROP
    "\"learned\":1,\"rotary\":\"all\",\"relative_bias\":1,\"kv_heads\":1,\"projection_bias\":1}",
    "{" SMALL DROP "\"recompute\":1}",
    "{" SMALL DROP "\"pad\":1,\"pool\":\"mean\"}",
    "{" SMALL "\"layers\":1,\"mask_zero\":0}",
    "{" SMALL "\"causal\":1,\"pool\":\"last\",\"query\":\"fine\",\"learned\":1}",
    "{" SMALL "\"block\":2,\"length\":61,\"pool\":\"mean\",\"open\":100,\"open_leaf\":2}",
    "{" PAIRS "\"query\":\"mean\"}",
    "{" PAIRS DROP "\"pool\":\"mean\",\"attention\":\"full\",\"learned\":1}",
    "{" PAIRS "\"pool\":\"mean_all\",\"head_hidden\":0,\"pad\":1}",
    "{" PAIRS "\"pool\":\"mean\",\"pair_features\":4}",
    "{" PAIRS DROP "\"pool\":\"max\",\"pair_features\":4,\"head_hidden\":0}",
    "{" LANGUAGE "\"query\":\"first\"}",
    "{" LANGUAGE DROP "\"query\":\"fine\",\"tied\":1,\"relative_bias\":1}",
    "{" LANGUAGE "\"attention\":\"full\",\"rotary\":\"all\",\"learned\":1,\"recompute\":1}",
    "{" LANGUAGE
    "\"attention\":\"local\",\"rotary\":\"level0\",\"tied\":1,\"sinusoidal\":0,\"pad\":1}",
    "{" LANGUAGE "\"sinusoidal\":0,\"kv_heads\":1,\"projection_bias\":1}",
    "{" DENOISE "\"pool\":\"cls\",\"rotary\":\"all\"}",
    "{" DENOISE "\"pool\":\"last\",\"hide\":0,\"causal\":1,\"query\":\"fine\"}",
    "{" DENOISE DROP "\"pool\":\"mean\",\"query\":\"fine\",\"tied\":1}",
    "{" DENOISE "\"pool\":\"mean\",\"attention\":\"local\",\"learned\":1,\"pad\":1}",
    "{" SMALL "\"merge\":2,\"pool\":\"mean\"}",
    "{" SMALL DROP "\"merge\":4,\"pool\":\"max\",\"pad\":1,\"learned\":1}",
    "{" SMALL "\"merge\":4,\"pool\":\"first\",\"mask_zero\":0,\"rotary\":\"all\"}",
    "{" SMALL "\"merge\":2,\"causal\":1,\"pool\":\"last\",\"query\":\"fine\",\"length\":61}",
    "{" PAIRS DROP "\"merge\":3,\"pool\":\"mean\",\"learned\":1,\"recompute\":1}",
    "{" DENOISE DROP "\"merge\":2,\"pool\":\"mean\",\"tied\":1,\"length\":61}",
    "{" DENOISE "\"merge\":4,\"pool\":\"max\",\"learned\":1,\"relative_bias\":1,\"pad\":1}",
    "{" SMALL "\"format\":\"images\",\"amounts\":1,\"pool\":\"mean\",\"learned\":1}",
    "{" SMALL DROP "\"format\":\"images\",\"amounts\":1,\"pool\":\"cls\",\"recompute\":1}",
    "{" DENOISE "\"format\":\"images\",\"amounts\":1,\"pool\":\"max\",\"merge\":2,\"pad\":1}",
    "{" SMALL "\"neighbours\":3,\"pool\":\"cls\"}",
    "{" SMALL DROP "\"neighbours\":4,\"pool\":\"mean\",\"recompute\":1,\"hidden\":3,\"inner\":2}",
    "{" SMALL "\"neighbours\":9,\"merge\":2,\"causal\":1,\"pool\":\"last\",\"query\":\"fine\"}",
    "{" PAIRS DROP "\"neighbours\":2,\"pool\":\"max\",\"pad\":1}",
    "{" LANGUAGE "\"neighbours\":4,\"query\":\"fine\",\"tied\":1,\"rotary\":\"all\"}",
    "{" DENOISE DROP "\"neighbours\":5,\"pool\":\"cls\",\"mask_zero\":0}",
};
enum { MODELS = sizeof models / sizeof *models };

/* Likewise, but they cannot be padded. */
static const char *const leaving_out[] = {
    "{" SMALL "\"mask_zero\":2,\"pool\":\"max\"}",
    "{" SMALL DROP "\"mask_zero\":2,\"pool\":\"cls\",\"learned\":1,\"rotary\":\"all\"}",
    "{" PAIRS "\"mask_zero\":2,\"merge\":3,\"pool\":\"mean\",\"learned\":1}",
    "{" SMALL "\"mask_zero\":2,\"neighbours\":3,\"pool\":\"cls\"}",
};
enum { LEAVING_OUT = sizeof leaving_out / sizeof *leaving_out };

typedef struct setup {
    ht_config *config;
    ht_model *model;
    ht_trainer *trainer;
    random_batch batch;
} setup;

/* Weights of zero hide mistakes: everything gets some noise. */
static void shake(ht_model *model) {
    uint32_t state = 99;
    for (int64_t i = 0; i < ht_model_tensors(model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ref, ht_model_tensor(model, i, &info));
        double *x = malloc(sizeof *x * (size_t)info.count);
        OK(ref, ht_model_read(model, i, x));
        for (int64_t k = 0; k < info.count; k++) x[k] += 0.3 * (training_random(&state) - 0.5);
        OK(ref, ht_model_write(model, i, x));
        free(x);
    }
}

static setup *make(const char *json) {
    setup *s = calloc(1, sizeof *s);
    s->config = training_config(json);
    OK(ref, ht_model_create(&s->model, ref, s->config));
    OK(ref, ht_trainer_create(&s->trainer, s->model, NULL));
    training_batch(&s->batch, s->config, 7);
    shake(s->model);
    return s;
}

static void drop(setup *s) {
    ht_trainer_destroy(s->trainer);
    ht_model_destroy(s->model);
    free(s);
}

/* The weights that both have get the values of `from`. */
static void same_weights(ht_model *to, const ht_model *from) {
    for (int64_t i = 0, k = 0; i < ht_model_tensors(to); i++) {
        ht_tensor_info there = HT_TENSOR_INFO_INIT, here = HT_TENSOR_INFO_INIT;
        double x[4096];
        OK(ref, ht_model_tensor(to, i, &there));
        OK(ref, ht_model_tensor(from, k, &here));
        if (strcmp(there.name, here.name) != 0) continue;
        OK(ref, ht_model_read(from, k++, x));
        OK(ref, ht_model_write(to, i, x));
    }
}

static void losses_of(float *out, const char *json, const ht_model *from, const random_batch *b) {
    ht_model *model;
    ht_trainer *trainer;
    OK(ref, ht_model_create(&model, ref, training_config(json)));
    OK(ref, ht_trainer_create(&trainer, model, NULL));
    same_weights(model, from);
    OK(ref, ht_trainer_predict(trainer, &b->batch, out));
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
}

/* At first each row sees itself alone: what comes out is what would without, to the bit. */
static void neighbours(void **state) {
    static const char *const kinds[] = {"\"pool\":\"cls\"", "\"pool\":\"last\",\"causal\":1"};
    static const struct {
        const char *json, *says;
    } wrong[] = {{"{\"neighbours\":1}", "neighbours must be at least 2, or 0, got neighbours 1"},
                 {"{\"neighbours\":65}", "neighbours must be 0 to 64, got 65"},
                 {"{\"neighbours\":-2}", "neighbours must be 0 to 64, got -2"}};
    (void)state;
    for (int k = 0; k < 2; k++) {
        char json[512], more[512];
        float plain[64] = {0}, with[64] = {0};
        random_batch b;
        ht_model *model;
        snprintf(json, sizeof json, "{" SMALL "%s}", kinds[k]);
        snprintf(more, sizeof more, "{" SMALL "%s,\"neighbours\":4}", kinds[k]);
        OK(ref, ht_model_create(&model, ref, training_config(json)));
        training_batch(&b, ht_model_config(model), 7);
        losses_of(plain, json, model, &b), losses_of(with, more, model, &b);
        ht_model_destroy(model);
        assert_memory_equal(plain, with, sizeof plain);
        assert_true(plain[0] != 0);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ht_config *config = training_preset(NULL);
        ht_status status = ht_config_read_json(config, wrong[i].json);
        if (status == HT_OK) status = ht_config_check(config);
        REFUSED(NULL, status, HT_INVALID, wrong[i].says);
    }
}

/* Which models have no table of greys. */
static void amounts_refused(void **state) {
    static const struct {
        const char *json, *says;
    } wrong[] = {{"{\"amounts\":1}",
                  "amounts needs images and task classify or denoise, got amounts 1, "
                  "format tsv, task classify"},
                 {"{\"amounts\":1,\"format\":\"images\",\"task\":\"language\"}", "task language"},
                 {"{\"amounts\":1,\"format\":\"images\",\"task\":\"denoise\",\"tied\":1}",
                  "tied and embed_waves must be 0, got amounts 1, tied 1, embed_waves 0"},
                 {"{\"amounts\":1,\"format\":\"pathfinder\",\"embed_waves\":2}", "embed_waves 2"}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(NULL, ht_config_check(training_config(wrong[i].json)), HT_INVALID, wrong[i].says);
    REFUSED(NULL, ht_config_set_int(training_config("{}"), "amounts", 2), HT_INVALID,
            "amounts must be 0 to 1, got 2");
}

/* Their weights are no matrix: neither decay nor Muon is for them. Of 64 neighbours texts of 21
 * tokens never have the last ones, and what has no gradient only decay moves. */
static void neighbours_group(void **state) {
    enum { TAPS = 64, WIDTH = 12 };
    (void)state;
    for (int all = 0; all < 2; all++) {
        double before[TAPS * WIDTH], after[TAPS * WIDTH];
        char json[512];
        snprintf(json, sizeof json,
                 "{" SMALL
                 "\"pool\":\"mean\",\"neighbours\":64,\"optimizer\":\"muon\",\"decay\":\"%s\","
                 "\"schedule\":\"constant\",\"warmup\":0,\"weight_decay\":0.5,\"rate\":0.25}",
                 all ? "all" : "matrices");
        setup *s = make(json);
        int64_t i = 0;
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        do OK(ref, ht_model_tensor(s->model, i++, &info));
        while (!strstr(info.name, "attention.neighbours.weight"));
        assert_int_equal(info.count, TAPS * WIDTH);
        OK(ref, ht_model_read(s->model, i - 1, before));
        OK(ref, ht_trainer_step(s->trainer, &s->batch.batch, 1, NULL));
        OK(ref, ht_model_read(s->model, i - 1, after));
        for (int k = 0; k < WIDTH; k++) { /* the row 32 before, and the row itself */
            assert_true(fabs(after[k] - (all ? 0.875 : 1) * before[k]) < 1e-15);
            assert_true(after[32 * WIDTH + k] != before[32 * WIDTH + k]);
        }
        drop(s);
    }
}

/* Which models rows may open clusters of; `auto` is fine then. */
static void opening(void **state) {
    static const struct {
        const char *json, *says;
    } wrong[] = {
        {"{\"open\":4,\"attention\":\"full\"}", "got open 4, attention full, query fine"},
        {"{\"open\":4,\"attention\":\"local\"}",
         "open needs attention hierarchical and query fine"},
        {"{\"open\":4,\"query\":\"mean\"}", "got open 4, attention hierarchical, query mean"},
        {"{\"open\":4,\"task\":\"language\",\"query\":\"first\"}", "query first"},
        {"{\"open_leaf\":6}", "open_leaf must be a power of two, got open_leaf 6"},
        {"{\"open_peek\":0}", "open_peek must be at least 1, or -1, got open_peek 0"}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(NULL, ht_config_check(training_config(wrong[i].json)), HT_INVALID, wrong[i].says);
    ht_model *model;
    char query[16];
    OK(ref, ht_model_create(&model, ref, training_config("{" SMALL "\"open\":4}")));
    OK(ref, ht_config_get_text(ht_model_config(model), "query", query, sizeof query, NULL));
    assert_string_equal(query, "fine");
    ht_model_destroy(model);
}

/* A model can be evaluated with another number of clusters: none is the paper's attention, all of
 * them the exact one, and they differ. */
static void other_openings(void **state) {
    enum { WAYS = 4 };
    static const int64_t ways[WAYS] = {2, 0, 1000, 2};
    float out[WAYS][64];
    (void)state;
    for (int i = 0; i < WAYS; i++) {
        setup *s = make("{" SMALL "\"block\":2,\"length\":61,\"pool\":\"mean\",\"open\":2}");
        ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
        ht_trainer *trainer;
        training_set(s->config, "open", ways[i]);
        desc.config = s->config, desc.inference = 1;
        OK(ref, ht_trainer_create(&trainer, s->model, &desc));
        OK(ref, ht_trainer_predict(trainer, &s->batch.batch, out[i]));
        assert_int_equal(training_int(ht_model_config(s->model), "open"), 2);
        ht_trainer_destroy(trainer);
        drop(s);
    }
    assert_memory_equal(out[0], out[3], sizeof(float) * 9);
    for (int i = 0; i < 3; i++)
        assert_true(memcmp(out[i], out[(i + 1) % 3], sizeof(float) * 9) != 0);
}

/* The loss with the dropout masks that the gradient had. */
static double loss_of(setup *s) {
    ht_report r = HT_REPORT_INIT;
    OK(ref, ht_trainer_gradient(s->trainer, &s->batch.batch, &r));
    return r.loss;
}

/* Four-point difference of the loss along one direction of one tensor. */
static double difference(setup *s, int64_t index, const double *at, const double *direction,
                         int64_t count) {
    double step = 1e-4, sum = 0, *moved = malloc(sizeof *moved * (size_t)count);
    static const double where[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
    for (int i = 0; i < 4; i++) {
        for (int64_t k = 0; k < count; k++) moved[k] = at[k] + where[i] * step * direction[k];
        OK(ref, ht_model_write(s->model, index, moved));
        sum += weight[i] * loss_of(s);
    }
    OK(ref, ht_model_write(s->model, index, at));
    free(moved);
    return sum / (12 * step);
}

/* In two random directions: the error of the difference is about step^4 and eps / step, both near
 * 1e-12. */
static void check_tensor(setup *s, const char *json, int64_t index, const double *grad) {
    ht_tensor_info info = HT_TENSOR_INFO_INIT;
    OK(ref, ht_model_tensor(s->model, index, &info));
    double *at = malloc(sizeof *at * (size_t)info.count),
           *way = malloc(sizeof *way * (size_t)info.count);
    OK(ref, ht_model_read(s->model, index, at));
    uint32_t state = (uint32_t)index + 5;
    for (int turn = 0; turn < 2; turn++) {
        double want = 0, size = 0;
        for (int64_t k = 0; k < info.count; k++) {
            way[k] = 2 * training_random(&state) - 1;
            want += grad[k] * way[k];
            size += fabs(grad[k] * way[k]);
        }
        double got = difference(s, index, at, way, info.count);
        if (!(fabs(got - want) <= 1e-7 * size + 1e-10)) {
            print_error("%s: d loss / d %s is %.12g, differences say %.12g\n", json, info.name,
                        want, got);
            fail();
        }
    }
    free(at);
    free(way);
}

static void gradients(void **state) {
    const char *json = *state;
    setup *s = make(json);
    int64_t tensors = ht_model_tensors(s->model);
    double **grad = calloc((size_t)tensors, sizeof *grad), largest = 0;
    OK(ref, ht_trainer_gradient(s->trainer, &s->batch.batch, NULL));
    for (int64_t i = 0; i < tensors; i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(ref, ht_model_tensor(s->model, i, &info));
        grad[i] = malloc(sizeof **grad * (size_t)info.count);
        OK(ref, ht_trainer_read_gradient(s->trainer, i, grad[i]));
        for (int64_t k = 0; k < info.count; k++) largest = fmax(largest, fabs(grad[i][k]));
    }
    assert_true(largest > 1e-3); /* a gradient of nothing would pass everything */
    for (int64_t i = 0; i < tensors; i++) check_tensor(s, json, i, grad[i]);
    for (int64_t i = 0; i < tensors; i++) free(grad[i]);
    free(grad);
    drop(s);
}

/* Backward adds: a second run on the first one's result doubles everything. */
static void adds(void **state) {
    const char *json = *state;
    setup *s = make(json);
    int64_t tensors = ht_model_tensors(s->model);
    double **first = calloc((size_t)tensors, sizeof *first), second[4096];
    for (int run = 0; run < 2; run++) {
        OK(ref, ht_trainer_gradient(s->trainer, &s->batch.batch, NULL));
        for (int64_t i = 0; i < tensors; i++) {
            ht_tensor_info info = HT_TENSOR_INFO_INIT;
            OK(ref, ht_model_tensor(s->model, i, &info));
            assert_true(info.count <= 4096);
            if (run == 0) first[i] = malloc(sizeof second);
            OK(ref, ht_trainer_read_gradient(s->trainer, i, run ? second : first[i]));
            for (int64_t k = 0; k < info.count && run; k++)
                if (!(fabs(second[k] - 2 * first[i][k]) <= 1e-12 * (1 + fabs(first[i][k])))) {
                    print_error("%s: %s[%lld] went from %.17g to %.17g\n", json, info.name,
                                (long long)k, first[i][k], second[k]);
                    fail();
                }
        }
    }
    for (int64_t i = 0; i < tensors; i++) free(first[i]);
    free(first);
    drop(s);
}

/* Padded or packed, recomputed or kept: the same loss and the same gradients. */
static void same_either_way(void **state) {
    static const char *const keys[] = {"pad", "recompute"};
    const char *json = *state;
    for (int way = 0; way < 2; way++) {
        double norm[2], loss[2];
        for (int on = 0; on < 2; on++) {
            char text[1024];
            /* a mask drawn by row differs when rows move: no dropout where padding changes */
            snprintf(text, sizeof text, "%.*s,\"%s\":%d%s}", (int)strlen(json) - 1, json, keys[way],
                     on, way ? "" : ",\"dropout\":0,\"attention_dropout\":0");
            setup *s = make(text);
            ht_report r = HT_REPORT_INIT;
            OK(ref, ht_trainer_gradient(s->trainer, &s->batch.batch, &r));
            norm[on] = r.gradient_norm;
            loss[on] = r.loss;
            drop(s);
        }
        assert_true(fabs(norm[0] - norm[1]) <= 1e-11 * norm[0]);
        assert_true(fabs(loss[0] - loss[1]) <= 1e-12);
    }
}

/* What is to be guessed is not seen: with another token in its place nothing changes but by its
 * target. */
static void hidden(void **state) {
    (void)state;
    setup *s = make("{" DENOISE "\"pool\":\"cls\"}");
    double before = loss_of(s);
    int changed = 0;
    for (int64_t i = 0; i < s->batch.cu_seqlens[training_int(s->config, "batch")]; i++) {
        if (s->batch.targets[i] < 0) continue;
        s->batch.tokens[i] =
            1 + s->batch.tokens[i] % (int32_t)(training_int(s->config, "vocab") - 1);
        changed++;
    }
    assert_true(changed > 3);
    assert_true(loss_of(s) == before);
    for (int64_t i = 0; i < s->batch.cu_seqlens[training_int(s->config, "batch")]; i++)
        if (s->batch.targets[i] < 0 && s->batch.tokens[i] > 0) {
            s->batch.tokens[i] =
                1 + s->batch.tokens[i] % (int32_t)(training_int(s->config, "vocab") - 1);
            break;
        }
    assert_true(loss_of(s) != before); /* the others are seen */
    float out[64];
    REFUSED(ref, ht_trainer_predict(s->trainer, &s->batch.batch, out), HT_UNSUPPORTED,
            "a model that denoises has no predictions");
    drop(s);
    s = make("{" DENOISE "\"pool\":\"last\",\"hide\":0,\"causal\":1}"); /* hides nothing */
    before = loss_of(s);
    s->batch.tokens[0] = 1 + s->batch.tokens[0] % (int32_t)(training_int(s->config, "vocab") - 1);
    assert_true(s->batch.targets[0] >= 0 && loss_of(s) != before);
    drop(s);
}

/* ---- sines of another base, rows left out ---- */

/* The sinusoids are what a learned table of the same numbers would be. */
static void sines(void **state) {
    enum { LENGTH = 21, WIDTH = 12 };
    double table[LENGTH * WIDTH], loss[2];
    (void)state;
    for (int i = 0; i < LENGTH * WIDTH; i++) {
        double angle = i / WIDTH / pow(37, (double)(i % WIDTH / 2) / (WIDTH / 2));
        table[i] = i % 2 ? cos(angle) : sin(angle);
    }
    for (int learned = 0; learned < 2; learned++) {
        setup *s = make(learned ? "{" SMALL "\"pool\":\"max\",\"sinusoidal\":0,\"learned\":1}"
                                : "{" SMALL "\"pool\":\"max\",\"sinusoidal_theta\":37}");
        setup *same = make("{" SMALL "\"pool\":\"max\",\"sinusoidal\":0,\"learned\":1}");
        for (int64_t i = 0, k = 0; i < ht_model_tensors(same->model); i++) {
            ht_tensor_info info = HT_TENSOR_INFO_INIT;
            double x[4096];
            OK(ref, ht_model_tensor(same->model, i, &info));
            int positions = strcmp(info.name, "embed.positions.weight") == 0;
            OK(ref, ht_model_read(same->model, i, x));
            if (positions && !learned) continue;
            OK(ref, ht_model_write(s->model, k++, positions ? table : x));
        }
        loss[learned] = loss_of(s);
        drop(s), drop(same);
    }
    assert_true(fabs(loss[0] - loss[1]) <= 1e-13);
}

/* As a text reads without its zeros; one of zeros alone keeps the last. */
static void without_zeros(random_batch *b) {
    int32_t at = 0, first = 0;
    for (int64_t i = 0; i < b->batch.sequences; i++) {
        int32_t end = b->cu_seqlens[i + 1], begin = at;
        for (int32_t k = first; k < end; k++)
            if (b->tokens[k] != 0) b->tokens[at++] = b->tokens[k];
        if (at == begin) b->tokens[at++] = 0;
        b->cu_seqlens[i + 1] = at, first = end;
    }
}

static ht_report report_of(const char *json, const char *more, int shorten) {
    char text[512];
    snprintf(text, sizeof text, "%.*s,%s}", (int)strlen(json) - 1, json, more);
    setup *s = make(text);
    ht_report r = HT_REPORT_INIT;
    static const int32_t ends[] = {0, 21, 26, 46, 59, 60, 77}; /* the second has zeros alone */
    for (int64_t i = 0; i <= s->batch.batch.sequences; i++) s->batch.cu_seqlens[i] = ends[i];
    for (int32_t k = 0; k < 77; k++)
        s->batch.tokens[k] = k % 5 == 2 || k % 7 < 2 || (k >= 21 && k < 26) ? 0 : 1 + k * k % 6;
    if (shorten) without_zeros(&s->batch);
    OK(ref, ht_trainer_gradient(s->trainer, &s->batch.batch, &r));
    drop(s);
    return r;
}

/* Rows left out change nothing that rows without a part in the attention do not, where there are no
 * blocks; with blocks, and without positions, they are as never read. */
static void left_out(void **state) {
    static const char *const exact[] = {
        "{" SMALL "\"attention\":\"full\",\"pool\":\"max\"}",
        "{" SMALL "\"attention\":\"full\",\"pool\":\"mean\",\"learned\":1,\"rotary\":\"all\"}",
        "{" SMALL "\"attention\":\"full\",\"pool\":\"cls\"}",
        "{" SMALL "\"attention\":\"full\",\"pool\":\"mean\",\"merge\":2,\"learned\":1}",
        "{" PAIRS "\"attention\":\"full\",\"pool\":\"mean\",\"merge\":3,\"rotary\":\"all\"}",
    };
    static const char *const blocks[] = {
        "{" SMALL "\"pool\":\"max\",\"sinusoidal\":0}",
        "{" SMALL "\"pool\":\"last\",\"sinusoidal\":0}",
        "{" SMALL "\"pool\":\"mean\",\"sinusoidal\":0,\"relative_bias\":1,\"query\":\"fine\"}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        ht_report a = report_of(exact[i], "\"mask_zero\":1", 0);
        ht_report b = report_of(exact[i], "\"mask_zero\":2", 0);
        assert_true(fabs(a.loss - b.loss) <= 1e-12 && a.loss > 0.1);
        assert_true(fabs(a.gradient_norm - b.gradient_norm) <= 1e-11 * a.gradient_norm);
    }
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        ht_report a = report_of(blocks[i], "\"mask_zero\":1", 1);
        ht_report b = report_of(blocks[i], "\"mask_zero\":2", 0);
        assert_true(a.loss == b.loss && a.gradient_norm == b.gradient_norm);
        assert_true(a.loss != report_of(blocks[i], "\"mask_zero\":1", 0).loss);
    }
}

static void left_out_refused(void **state) {
    ht_config *config = training_config("{" SMALL "\"pool\":\"mean\"}");
    ht_model *model;
    ht_trainer *trainer;
    random_batch b;
    float x[4096];
    (void)state;
    REFUSED(NULL, ht_config_set_int(config, "mask_zero", 3), HT_INVALID,
            "mask_zero must be 0 to 2, got 3");
    training_set(config, "mask_zero", 2), training_set(config, "pad", 1);
    REFUSED(NULL, ht_config_check(config), HT_INVALID,
            "mask_zero 2 leaves rows out: it needs pad 0 and task classify or pairs, got mask_zero "
            "2, pad 1, task classify");
    training_set(config, "pad", 0), training_choose(config, "task", "denoise");
    REFUSED(NULL, ht_config_check(config), HT_INVALID, "got mask_zero 2, pad 0, task denoise");
    training_choose(config, "task", "classify");
    OK(ref, ht_model_create(&model, ref, config));
    OK(ref, ht_trainer_create(&trainer, model, NULL));
    training_batch(&b, config, 7);
    REFUSED(ref, ht_trainer_read_qkv(trainer, &b.batch, 0, x, x, x), HT_UNSUPPORTED, "mask_zero 2");
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
}

/* Logits of the first `rows` tokens as one text. */
static void logits_of(float *out, setup *s, int32_t rows) {
    int32_t cu_seqlens[2] = {0, rows};
    ht_batch b = HT_BATCH_INIT;
    b.sequences = 1, b.tokens = s->batch.tokens, b.cu_seqlens = cu_seqlens;
    OK(ref, ht_trainer_predict(s->trainer, &b, out));
}

/* The mean over n rows times n, less that over n - 1, is the last row alone if no row sees later
 * ones: after a linear head the same holds for logits. Returns by how much it does not. */
static double beyond_past(const char *causal) {
    char text[512];
    setup *s[2];
    for (int last = 0; last < 2; last++) {
        snprintf(text, sizeof text,
                 "{" SMALL "\"head_hidden\":0,\"mask_zero\":0,%s\"pool\":\"%s\"}", causal,
                 last ? "last" : "mean");
        s[last] = make(text);
    }
    double off = 0;
    for (int32_t n = 2; n <= training_int(s[0]->config, "length"); n++) {
        float all[3], less[3], own[3];
        logits_of(all, s[0], n), logits_of(less, s[0], n - 1), logits_of(own, s[1], n);
        for (int c = 0; c < 3; c++)
            off = fmax(off, fabs((double)n * all[c] - (n - 1.0) * less[c] - own[c]));
    }
    drop(s[0]), drop(s[1]);
    return off;
}

static void reads_on(void **state) {
    (void)state;
    /* logits of a few units come as floats, times 21 rows at most */
    double bar = 2 * 21 * 8 * (double)FLT_EPSILON;
    assert_true(beyond_past("\"causal\":1,\"query\":\"first\",") < bar);
    assert_true(beyond_past("\"causal\":1,\"query\":\"fine\",") < bar);
    assert_true(beyond_past("\"causal\":1,\"attention\":\"full\",") < bar);
    assert_true(beyond_past("\"causal\":1,\"query\":\"fine\",\"neighbours\":3,") < bar);
    assert_true(beyond_past("") > 1000 * bar); /* both ways: other rows change, too */
}

int main(void) {
    enum { MOST = 3 * MODELS + LEAVING_OUT + 15 };
    static char names[MOST][32];
    struct CMUnitTest tests[MOST];
    int n = 0;
    tests[n++] = (struct CMUnitTest){"counts", counts, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"waves", waves, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"output scale", output_scale, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"slopes", slopes, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"grid", grid, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"neighbours", neighbours, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"neighbours' group", neighbours_group, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"amounts refused", amounts_refused, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"opening", opening, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"other openings", other_openings, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"hidden", hidden, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"reads on", reads_on, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"sines", sines, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"left out", left_out, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"left out refused", left_out_refused, NULL, NULL, NULL};
    for (int i = 0; i < LEAVING_OUT; i++, n++) {
        snprintf(names[n], sizeof names[n], "gradients, left out %d", i);
        tests[n] =
            (struct CMUnitTest){names[n], gradients, NULL, NULL, (void *)(uintptr_t)leaving_out[i]};
    }
    for (int i = 0; i < MODELS; i++) {
        static const struct {
            const char *name;
            CMUnitTestFunction run;
        } kinds[] = {
            {"gradients", gradients}, {"adds", adds}, {"same_either_way", same_either_way}};
        for (int k = 0; k < 3; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %d", kinds[k].name, i);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL,
                                           (void *)(uintptr_t)models[i]};
        }
    }
    return _cmocka_run_group_tests("model", tests, (size_t)n, open_ref, close_ref);
}
