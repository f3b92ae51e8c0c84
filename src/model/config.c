/*
 * Configurations: the keys and their limits, the names of choices, JSON in and out, what a model
 * can take.
 */
#include "model/config.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum kind { KIND_INT, KIND_REAL, KIND_CHOICE } kind;

typedef struct key {
    const char *name;
    kind type;
    size_t offset;
    double fallback, least, most;
} key;

static const key keys[] = {
#define KEY(type, name, fallback, least, most, help) \
    {#name, KIND_##type, offsetof(ht_config, name), fallback, least, most},
    HT_CONFIG_MAP(KEY)
#undef KEY
};
enum { KEYS = sizeof keys / sizeof *keys };

static const struct {
    const char *key, *names[8];
} choices[] = {
    {"task", {"classify", "pairs", "language", "denoise"}},
    {"format", {"listops", "tsv", "text", "images", "pathfinder"}},
    {"attention", {"hierarchical", "full", "local"}},
    {"query", {"auto", "mean", "first", "fine"}},
    {"documents", {"file", "lines", "articles", "wikitext", "fasta"}},
    {"pool", {"cls", "first", "mean", "mean_all", "last", "max"}},
    {"rotary", {"none", "level0", "all"}},
    {"dtype", {"f32", "bf16", "f64"}},
    {"schedule", {"constant", "rsqrt", "cosine", "linear"}},
    {"decay", {"matrices", "all"}},
    {"optimizer", {"adamw", "muon"}},
};

const char *ht_config_choice(const char *name, int index) {
    for (size_t i = 0; name && i < sizeof choices / sizeof *choices; i++)
        if (strcmp(choices[i].key, name) == 0)
            return index >= 0 && index < 8 ? choices[i].names[index] : NULL;
    return NULL;
}

static const key *find(const char *name) {
    for (int i = 0; i < KEYS; i++)
        if (strcmp(keys[i].name, name) == 0) return &keys[i];
    return NULL;
}

static double get(const ht_config *c, const key *k) {
    const char *field = (const char *)c + k->offset;
    return k->type == KIND_REAL ? *(const double *)field : (double)*(const int64_t *)field;
}

static void set(ht_config *c, const key *k, double x) {
    char *field = (char *)c + k->offset;
    if (k->type == KIND_REAL)
        *(double *)field = x;
    else
        *(int64_t *)field = (int64_t)x;
}

/* ---- presets ---- */

/* Sizes, head, optimiser of the Long Range Arena's public Transformer; all parameters decay there.
 */
#define LRA "\"decay\":\"all\",\"beta2\":0.98,\"adam_epsilon\":1e-9,"
#define RSQRT                                                                                \
    "\"schedule\":\"rsqrt\",\"rate\":0.05,\"weight_decay\":0.1,\"dropout\":0.1,\"attention_" \
    "dropout\":0.1,"
/* black pixels are pixels: mask_zero 1 makes them padding, as the original does */
#define PIXELS "\"vocab\":256,\"mask_zero\":0,\"schedule\":\"cosine\",\"weight_decay\":0,"
#define SNAKES "\"format\":\"pathfinder\",\"train_items\":160000,\"valid_items\":20000,"
/* The largest of each column, not the mean: few of the pixels know whether the dots are connected.
 * No hidden units in the head: ReLUs that see nothing but a constant for long die (docs/lra.md). */
#define TRACER                                                                                    \
    "\"vocab\":256,\"mask_zero\":0,\"pool\":\"max\",\"heads\":4,\"width\":128,\"hidden\":512,"    \
    "\"sinusoidal\":0,\"query\":\"fine\",\"block\":64,\"rotary\":\"all\",\"relative_bias\":1,"    \
    "\"relative_slope\":0.5,\"embed_std\":0.1,\"embed_waves\":2,\"optimizer\":\"muon\",\"weight_" \
    "decay\":0.5,\"clip\":1,"
/* Positions that won on Wikipedia bytes: rotary on the exact level (docs/lm.md). */
#define LM                                                                                         \
    "\"task\":\"language\",\"format\":\"text\",\"sinusoidal\":0,\"rotary\":\"level0\",\"clip\":1," \
    "\"weight_decay\":0.1,"
#define PAPER                                                                                \
    "\"layers\":6,\"heads\":8,\"vocab\":33000,\"length\":1024,\"dropout\":0.1,\"schedule\":" \
    "\"rsqrt\",\"rate\":0.05,\"warmup\":4000,\"steps\":100000,"
#define SMALL "\"layers\":2,\"width\":128,\"heads\":4,\"hidden\":256,"
/* What made the difference on Text (docs/lra.md): some heads begin with the letters nearby, and the
 * largest of each column is what counts. */
#define READER                                                                            \
    "\"format\":\"tsv\",\"pool\":\"max\",\"sinusoidal\":0,\"rotary\":\"all\",\"relative_" \
    "bias\":1,\"relative_slope\":1,"

static const struct {
    const char *name, *about, *json;
} presets[] = {
    {"small", "a classifier of texts (tsv) that trains on a CPU",
     "{" SMALL READER
     "\"length\":2048,\"merge\":2,\"dropout\":0.1,\"steps\":1000,\"optimizer\":\"muon\","
     "\"rate\":0.002,\"weight_decay\":0.1,\"clip\":1}"},
    {"small-listops", "ListOps with short expressions, a minute on a CPU",
     "{" SMALL "\"format\":\"listops\",\"vocab\":17,\"classes\":10,\"length\":96,\"block\":8,"
     "\"causal\":1,\"pool\":\"last\",\"query\":\"fine\",\"sinusoidal\":0,\"rotary\":\"all\","
     "\"relative_bias\":1,\"relative_slope\":1,\"embed_std\":0.3,\"listops_min\":15,"
     "\"listops_max\":97,\"listops_depth\":5,\"listops_arguments\":5,\"train_items\":50000,"
     "\"valid_items\":1000,\"batch\":32,\"steps\":700,\"warmup\":100,\"optimizer\":\"muon\","
     "\"rate\":0.002,\"weight_decay\":0.3,\"clip\":1}"},
    {"small-text", "a language model of bytes that trains on a CPU",
     "{\"task\":\"language\",\"format\":\"text\",\"layers\":4,\"width\":128,\"heads\":4,\"hidden\":"
     "512,"
     "\"sinusoidal\":0,\"rotary\":\"level0\",\"length\":512,\"batch\":8,\"steps\":2000,\"clip\":1,"
     "\"weight_decay\":0.1,\"warmup\":100,\"optimizer\":\"muon\",\"rate\":0.005}"},
    {"lra/listops", "Long Range Arena ListOps, 8.9 million parameters",
     "{" LRA RSQRT
     "\"format\":\"listops\",\"vocab\":17,\"classes\":10,\"layers\":4,\"heads\":8,\"width\":512,"
     "\"hidden\":1024,\"head_hidden\":1024,\"length\":2000,\"batch\":32,\"steps\":5000,\"warmup\":"
     "1000,\"eval_every\":250}"},
    {"lra/text", "Long Range Arena Text (bytes of reviews), 3.5 million parameters",
     "{" LRA RSQRT "\"format\":\"tsv\",\"layers\":4,\"heads\":4,\"width\":256,\"hidden\":1024,"
     "\"head_hidden\":1024,"
     "\"length\":4000,\"batch\":32,\"steps\":20000,\"warmup\":8000,\"eval_every\":500}"},
    {"lra/retrieval", "Long Range Arena Retrieval (pairs of papers), 1.1 million parameters",
     "{" LRA RSQRT "\"task\":\"pairs\",\"format\":\"tsv\",\"pool\":\"first\",\"layers\":4,"
     "\"heads\":4,\"width\":128,"
     "\"hidden\":512,\"head_hidden\":512,\"length\":4000,\"batch\":32,\"steps\":5000,\"warmup\":"
     "8000,\"eval_every\":500,\"eval_items\":4000}"},
    {"lra/image", "Long Range Arena Image (grey CIFAR-10), 0.25 million parameters",
     "{" LRA PIXELS "\"format\":\"images\","
     "\"classes\":10,\"layers\":1,\"heads\":8,\"width\":128,\"inner\":64,\"hidden\":128,"
     "\"head_hidden\":128,\"sinusoidal\":0,\"learned\":1,\"dropout\":0.3,\"attention_dropout\":0.2,"
     "\"length\":1024,\"batch\":256,\"steps\":35000,\"rate\":5e-4,\"warmup\":175,\"eval_every\":"
     "350}"},
    {"lra/pathfinder", "Long Range Arena Pathfinder, 27 thousand parameters",
     "{" LRA PIXELS SNAKES
     "\"pool\":\"mean_all\",\"layers\":4,\"heads\":4,\"width\":32,\"inner\":16,\"hidden\":32,"
     "\"head_hidden\":32,\"dropout\":0.2,\"attention_dropout\":0.1,\"length\":1024,\"batch\":512,"
     "\"steps\":62400,\"rate\":1e-3,\"warmup\":312,\"eval_every\":624}"},
    {"lra/pathx", "Long Range Arena Path-X, 16,384 pixels",
     "{" LRA PIXELS SNAKES
     "\"pool\":\"mean_all\",\"layers\":1,\"heads\":2,\"width\":32,\"inner\":16,\"hidden\":32,"
     "\"head_hidden\":32,\"sinusoidal\":0,\"learned\":1,\"dropout\":0.1,\"attention_dropout\":0.1,"
     "\"length\":16384,\"batch\":64,\"steps\":500000,\"rate\":1e-3,\"warmup\":2500,\"clip\":1,"
     "\"eval_every\":2500}"},
    {"best/listops", "ListOps without the benchmark's limits; next tokens come first (docs/lra.md)",
     "{\"format\":\"listops\",\"vocab\":17,\"classes\":10,\"causal\":1,\"pool\":\"last\","
     "\"layers\":6,\"heads\":4,\"width\":256,\"hidden\":1024,\"sinusoidal\":0,\"query\":\"fine\","
     "\"block\":64,\"rotary\":\"all\",\"relative_bias\":1,\"relative_slope\":1,\"embed_std\":0.3,"
     "\"length\":2000,\"batch\":32,\"steps\":36000,\"optimizer\":\"muon\",\"rate\":1e-3,"
     "\"warmup\":300,\"weight_decay\":0.3,\"clip\":1,\"eval_every\":2000}"},
    {"best/text", "Text without the benchmark's limits; hidden tokens come first (docs/lra.md)",
     "{\"format\":\"tsv\",\"pool\":\"mean\",\"layers\":4,\"heads\":4,\"width\":256,\"hidden\":1024,"
     "\"head_hidden\":256,\"sinusoidal\":0,\"rotary\":\"all\",\"length\":4000,\"dropout\":0.2,"
     "\"batch\":32,\"steps\":4000,\"rate\":3e-4,\"warmup\":300,\"weight_decay\":0.05,\"clip\":1,"
     "\"hide_run\":3,\"eval_every\":500}"},
    {"best/retrieval", "Retrieval without the benchmark's limits; hidden tokens come first",
     "{\"task\":\"pairs\",\"format\":\"tsv\",\"pool\":\"mean\",\"pair_features\":4,\"merge\":4,"
     "\"layers\":4,\"heads\":8,\"width\":512,\"hidden\":2048,\"head_hidden\":256,\"sinusoidal\":0,"
     "\"rotary\":\"all\",\"relative_bias\":1,\"relative_slope\":1,\"length\":4000,\"dropout\":0.1,"
     "\"batch\":32,\"steps\":8000,\"optimizer\":\"muon\",\"rate\":5e-4,\"warmup\":200,"
     "\"weight_decay\":0.05,\"clip\":1,\"hide_run\":3,\"eval_every\":2000,\"eval_items\":2000}"},
    {"best/image", "Image without the benchmark's limits; hidden pixels come first",
     "{\"format\":\"images\",\"vocab\":256,\"mask_zero\":0,\"classes\":10,\"pool\":\"mean\","
     "\"layers\":4,\"heads\":2,\"width\":128,\"hidden\":512,\"head_hidden\":128,\"sinusoidal\":0,"
     "\"query\":\"fine\",\"block\":64,\"rotary\":\"all\",\"relative_bias\":1,\"relative_slope\":0."
     "5,"
     "\"embed_std\":0.1,\"embed_waves\":1,\"length\":1024,\"dropout\":0.2,\"batch\":128,\"steps\":"
     "8000,"
     "\"optimizer\":\"muon\",\"rate\":1e-3,\"warmup\":500,\"weight_decay\":0.1,\"clip\":1,\"eval_"
     "every\":800}"},
    {"best/pathfinder", "Pathfinder without the benchmark's limits; hidden squares come first",
     "{" SNAKES TRACER "\"length\":1024,\"patch\":2,\"merge\":4,\"layers\":8,\"batch\":128,"
     "\"steps\":12000,\"rate\":5e-4,\"warmup\":500,\"eval_every\":1500,\"eval_items\":4000}"},
    {"best/pathx", "Path-X without the benchmark's limits; hidden squares come first",
     "{" SNAKES TRACER "\"length\":4096,\"shrink\":2,\"patch\":4,\"merge\":16,\"layers\":8,"
     "\"rotary_grid\":16,\"rotary_theta\":100,\"batch\":128,\"steps\":12000,\"rate\":2e-4,"
     "\"warmup\":500,\"weight_decay\":0.1,\"momentum\":0.98,\"output_scale\":0,"
     "\"eval_every\":1000,\"eval_items\":4000}"},
    {"lm/53m", "language model, sizes of the H-Transformer-1D paper's smaller one",
     "{" LM PAPER "\"width\":512,\"hidden\":2048}"},
    {"lm/144m", "language model, sizes of the paper's larger one",
     "{" LM PAPER "\"width\":1024,\"hidden\":4096}"},
    {"lm/small", "language model of bytes, 12 million parameters",
     "{" LM "\"query\":\"fine\",\"layers\":6,\"heads\":6,\"width\":384,\"hidden\":1792,"
     "\"length\":4096,\"batch\":8,\"rate\":1e-3,\"warmup\":200,\"steps\":5000}"},
    {"lm/tiny", "language model of bytes for a CPU, 0.8 million parameters",
     "{" LM "\"query\":\"first\",\"layers\":4,\"heads\":4,\"width\":128,\"hidden\":512,\"tied\":1,"
     "\"length\":512,\"batch\":8,\"rate\":2e-3,\"warmup\":100,\"steps\":3000}"},
};
enum { PRESETS = sizeof presets / sizeof *presets };

const char *ht_config_preset_name(int i) { return i >= 0 && i < PRESETS ? presets[i].name : NULL; }
const char *ht_config_preset_about(int i) {
    return i >= 0 && i < PRESETS ? presets[i].about : NULL;
}

ht_status ht_config_preset(ht_context *ctx, ht_config *out, const char *name) {
    CHECK(ctx, out && out->size >= sizeof *out, HT_INVALID,
          "ht_config.size is too small; start from HT_CONFIG_INIT");
    ht_config c = HT_CONFIG_INIT;
    for (int i = 0; i < KEYS; i++) set(&c, &keys[i], keys[i].fallback);
    *out = c;
    if (!name) return HT_OK;
    for (int i = 0; i < PRESETS; i++) {
        const char *own = presets[i].name;
        int benchmark = strncmp(own, "lra/", 4) == 0; /* "text" is short for "lra/text" */
        if (strcmp(own, name) == 0 || (benchmark && strcmp(own + 4, name) == 0))
            return ht_config_read_json(ctx, out, presets[i].json);
    }
    char all[400] = "";
    for (int i = 0; i < PRESETS; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "",
                 presets[i].name);
    return hti_fail(ctx, HT_INVALID, "there is no preset '%s', but %s", name, all);
}

/* ---- JSON ---- */

ht_status hti_json_parse(ht_context *ctx, cJSON **out, const char *text, size_t bytes,
                         const char *what) {
    const char *end = text;
    errno = 0; /* cJSON does not say why it gave up, but malloc does */
    *out = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    if (*out) {
        while (end < text + bytes && *end && (unsigned char)*end <= ' ') end++;
        if (end == text + bytes || !*end) return HT_OK;
        cJSON_Delete(*out);
        *out = NULL;
        errno = 0;
    }
    CHECK(ctx, errno != ENOMEM, HT_NOMEM, "out of memory: reading %s", what);
    size_t left = end && end < text + bytes ? (size_t)(text + bytes - end) : 0;
    return hti_fail(ctx, HT_FORMAT, "%s is not JSON: it stops making sense at \"%.*s\"", what,
                    left < 20 ? (int)left : 20, left ? end : "");
}

static ht_status read_choice(ht_context *ctx, double *out, const key *k, const cJSON *item) {
    char all[96] = "";
    for (int i = 0; i < 8 && ht_config_choice(k->name, i); i++) {
        const char *word = ht_config_choice(k->name, i);
        *out = i;
        if (cJSON_IsString(item) && strcmp(item->valuestring, word) == 0) return HT_OK;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", word);
    }
    char *got = cJSON_PrintUnformatted(item);
    hti_fail(ctx, HT_INVALID, "%s must be one of %s, got %.64s", k->name, all, got ? got : "?");
    cJSON_free(got);
    return HT_INVALID;
}

static ht_status read_number(ht_context *ctx, double *out, const key *k, const cJSON *item) {
    int boolean = cJSON_IsBool(item) && k->least == 0 && k->most == 1 && k->type == KIND_INT;
    if (!cJSON_IsNumber(item) && !boolean) {
        char *got = cJSON_PrintUnformatted(item);
        hti_fail(ctx, HT_INVALID, "%s must be a number, got %.64s", k->name, got ? got : "?");
        cJSON_free(got);
        return HT_INVALID;
    }
    *out = boolean ? cJSON_IsTrue(item) : item->valuedouble;
    CHECK(ctx, k->type == KIND_REAL || *out == floor(*out), HT_INVALID,
          "%s must be a whole number, got %g", k->name, *out);
    CHECK(ctx, *out >= k->least && *out <= k->most, HT_INVALID,
          "%s must be %.17g to %.17g, got %.17g", k->name, k->least, k->most, *out);
    return HT_OK;
}

static ht_status read_object(ht_context *ctx, ht_config *config, const cJSON *root) {
    CHECK(ctx, cJSON_IsObject(root), HT_FORMAT,
          "a configuration must be a JSON object, {\"key\": value}");
    const cJSON *item;
    cJSON_ArrayForEach(item, root) {
        const key *k = find(item->string);
        double x = 0;
        CHECK(ctx, k, HT_INVALID, "there is no key '%.64s' in a configuration", item->string);
        TRY(k->type == KIND_CHOICE ? read_choice(ctx, &x, k, item) : read_number(ctx, &x, k, item));
        set(config, k, x);
    }
    return HT_OK;
}

ht_status ht_config_read_json(ht_context *ctx, ht_config *config, const char *json) {
    CHECK(ctx, config && config->size >= sizeof *config, HT_INVALID,
          "ht_config.size is too small; start from HT_CONFIG_INIT");
    CHECK(ctx, json, HT_INVALID, "ht_config_read_json: json is NULL");
    cJSON *root;
    TRY(hti_json_parse(ctx, &root, json, strlen(json), "the configuration"));
    ht_config copy = *config;
    ht_status status = read_object(ctx, &copy, root);
    cJSON_Delete(root);
    if (status == HT_OK) *config = copy;
    return status;
}

ht_status hti_config_parse(ht_context *ctx, ht_config *out, const char *json) {
    *out = (ht_config)HT_CONFIG_INIT;
    TRY(ht_config_preset(ctx, out, NULL));
    return ht_config_read_json(ctx, out, json);
}

ht_status ht_config_write_json(ht_context *ctx, const ht_config *config, char *out, size_t bytes,
                               size_t *length) {
    size_t used = 0;
    CHECK(ctx, config, HT_INVALID, "ht_config_write_json: config is NULL");
    for (int i = 0; i < KEYS; i++) {
        char item[160];
        double x = get(config, &keys[i]);
        int named = keys[i].type == KIND_CHOICE && x >= 0 && x < 8;
        const char *word = named ? ht_config_choice(keys[i].name, (int)x) : NULL;
        if (word)
            snprintf(item, sizeof item, "%s\"%s\": \"%s\"", i ? ",\n  " : "{\n  ", keys[i].name,
                     word);
        else
            snprintf(item, sizeof item, "%s\"%s\": %.17g", i ? ",\n  " : "{\n  ", keys[i].name, x);
        if (out && used + strlen(item) < bytes) memcpy(out + used, item, strlen(item) + 1);
        used += strlen(item);
    }
    if (out && used + 3 < bytes) memcpy(out + used, "\n}\n", 4);
    used += 3;
    if (length) *length = used;
    CHECK(ctx, !out || used < bytes, HT_INVALID, "a configuration needs %zu bytes, got %zu",
          used + 1, bytes);
    return HT_OK;
}

/* ---- what a model can take ---- */

static ht_status check_limits(ht_context *ctx, const ht_config *c) {
    for (int i = 0; i < KEYS; i++) {
        double x = get(c, &keys[i]);
        CHECK(ctx, x >= keys[i].least && x <= keys[i].most, HT_INVALID,
              "%s must be %.17g to %.17g, got %.17g", keys[i].name, keys[i].least, keys[i].most, x);
    }
    return HT_OK;
}

static ht_status check_shape(ht_context *ctx, const ht_config *c) {
    CHECK(ctx, c->inner % c->heads == 0, HT_INVALID,
          "heads must divide inner: %lld does not divide %lld", (long long)c->heads,
          (long long)c->inner);
    CHECK(ctx, c->heads % c->kv_heads == 0, HT_INVALID,
          "kv_heads must divide heads: %lld does not divide %lld", (long long)c->kv_heads,
          (long long)c->heads);
    CHECK(ctx, c->inner / c->heads <= 256, HT_INVALID,
          "inner / heads must be at most 256, got %lld", (long long)(c->inner / c->heads));
    CHECK(ctx, c->block % 2 == 0, HT_INVALID, "block must be even, got %lld", (long long)c->block);
    CHECK(ctx, c->rotary == HT_ROTARY_NONE || c->inner / c->heads % 2 == 0, HT_INVALID,
          "rotary positions need an even head size, got %lld", (long long)(c->inner / c->heads));
    CHECK(ctx, c->dropout < 1, HT_INVALID, "dropout must be below 1, got %g", c->dropout);
    CHECK(ctx, c->attention_dropout < 1, HT_INVALID, "attention_dropout must be below 1, got %g",
          c->attention_dropout);
    CHECK(ctx, c->beta1 < 1 && c->beta2 < 1, HT_INVALID,
          "beta1 and beta2 must be below 1, got %g and %g", c->beta1, c->beta2);
    CHECK(ctx, c->momentum < 1, HT_INVALID, "momentum must be below 1, got %g", c->momentum);
    return HT_OK;
}

/* A row has all of its tokens in it, so none of them can be guessed from it unless it is hidden. */
static ht_status check_merge(ht_context *ctx, const ht_config *c) {
    if (c->merge == 1) return HT_OK;
    CHECK(ctx, c->width % c->merge == 0, HT_INVALID,
          "merge must divide width: %lld does not divide %lld", (long long)c->merge,
          (long long)c->width);
    CHECK(ctx, c->task != HT_TASK_LANGUAGE, HT_INVALID,
          "a language model with merge %lld would see the tokens it is to guess: merge must be 1",
          (long long)c->merge);
    CHECK(ctx, c->task != HT_TASK_DENOISE || c->hide > 0, HT_INVALID,
          "with merge %lld and hide 0 a model would see the tokens it is to guess: hide some, or "
          "set merge 1",
          (long long)c->merge);
    CHECK(ctx, c->pool != HT_POOL_CLS, HT_INVALID,
          "merge %lld leaves no row for a cls vector: pool must be first, last, mean, mean_all or "
          "max",
          (long long)c->merge);
    return HT_OK;
}

/* A key that images alone have; 1 says nothing. */
static ht_status check_images(ht_context *ctx, const ht_config *c, const char *name,
                              int64_t value) {
    int images = c->format == HT_FORMAT_IMAGES || c->format == HT_FORMAT_PATHFINDER;
    CHECK(ctx, value == 1 || images, HT_INVALID, "%s %lld is for images, got format %s", name,
          (long long)value, ht_config_choice("format", (int)c->format));
    return HT_OK;
}

static ht_status check_sense(ht_context *ctx, const ht_config *c) {
    int language = c->task == HT_TASK_LANGUAGE;
    int64_t rows;
    CHECK(ctx, !c->causal || c->attention != HT_HIERARCHICAL || c->query != HT_QUERY_MEAN,
          HT_INVALID, "a %s with query mean would see the future: use first or fine",
          language ? "language model" : "causal model");
    CHECK(
        ctx, !c->causal || hti_config_by_token(c) || c->pool > HT_POOL_FIRST, HT_INVALID,
        "the first row of a causal model sees itself alone: pool must be last, mean or max, got %s",
        ht_config_choice("pool", (int)c->pool));
    CHECK(ctx, !c->tied || hti_config_by_token(c), HT_INVALID,
          "tied is for models that predict tokens, got task %s",
          ht_config_choice("task", (int)c->task));
    CHECK(ctx, c->task != HT_TASK_DENOISE || c->hide < 1, HT_INVALID,
          "hide must be below 1, got %g", c->hide);
    CHECK(ctx, c->task != HT_TASK_DENOISE || c->hide > 0 || c->causal, HT_INVALID,
          "hide 0 guesses each next token, which only a causal model does not see: set causal 1");
    CHECK(ctx, c->rotary_grid == 0 || (c->rotary == HT_ROTARY_ALL && !language), HT_INVALID,
          "rotary_grid %lld needs rotary all and no language model, got rotary %s, task %s",
          (long long)c->rotary_grid, ht_config_choice("rotary", (int)c->rotary),
          ht_config_choice("task", (int)c->task));
    CHECK(ctx, c->mask_zero != HTI_LEAVE_OUT || !(hti_config_by_token(c) || c->pad), HT_INVALID,
          "mask_zero 2 leaves rows out: it needs pad 0 and task classify or pairs, got pad %lld, "
          "task %s",
          (long long)c->pad, ht_config_choice("task", (int)c->task));
    CHECK(ctx, c->classes > 1, HT_INVALID, "classes must be at least 2 (or 0), got %lld",
          (long long)c->classes);
    CHECK(ctx, c->relative_slope == 0 || c->relative_bias, HT_INVALID,
          "relative_slope %g needs relative_bias 1; without a bias set relative_slope 0",
          c->relative_slope);
    CHECK(ctx, c->task != HT_TASK_PAIRS || c->pool != HT_POOL_CLS, HT_INVALID,
          "pairs have no cls vector: pool must be first, last, mean, mean_all or max");
    CHECK(ctx, c->task != HT_TASK_PAIRS || c->head_hidden % 2 == 0, HT_INVALID,
          "pairs need an even head_hidden, got %lld", (long long)c->head_hidden);
    CHECK(ctx, c->task != HT_TASK_PAIRS || c->pair_features != 3, HT_INVALID,
          "pair_features must be 2 or 4, got 3");
    TRY(check_merge(ctx, c));
    TRY(check_images(ctx, c, "patch", c->patch));
    TRY(check_images(ctx, c, "shrink", c->shrink));
    CHECK(ctx, !c->tied || c->output_scale == 1, HT_INVALID,
          "output_scale %g is for a last layer of its own: with tied 1 it must be 1",
          c->output_scale);
    CHECK(ctx, c->listops_min + 1 < c->listops_max, HT_INVALID,
          "listops_max must be at least listops_min + 2, got %lld and %lld",
          (long long)c->listops_max, (long long)c->listops_min);
    CHECK(ctx, hti_mul(&rows, 2 * c->batch, c->length + c->merge) && rows <= INT32_MAX, HT_INVALID,
          "batch %lld of length %lld is more than 2^31 rows", (long long)c->batch,
          (long long)c->length);
    return HT_OK;
}

ht_status hti_config_resolve(ht_context *ctx, ht_config *c) {
    CHECK(ctx, c->size >= sizeof *c, HT_INVALID,
          "ht_config.size is too small; start from HT_CONFIG_INIT");
    TRY(check_limits(ctx, c));
    int language = c->task == HT_TASK_LANGUAGE;
    if (c->inner == 0) c->inner = c->width;
    if (c->hidden == 0) c->hidden = 4 * c->width;
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    if (c->classes == 0) c->classes = 2;
    if (language) c->causal = 1;
    ht_attention_desc coarse = HT_ATTENTION_DESC_INIT;
    coarse.query = (ht_query)c->query, coarse.causal = (int)c->causal;
    c->query = ht_attention_query(&coarse);
    if (c->embed_std == 0) c->embed_std = language ? 0.02 : 1;
    if (language) c->mask_zero = 0;
    TRY(check_shape(ctx, c));
    return check_sense(ctx, c);
}

ht_status ht_config_check(ht_context *ctx, const ht_config *config) {
    CHECK(ctx, config && config->size >= sizeof *config, HT_INVALID,
          "ht_config.size is too small; start from HT_CONFIG_INIT");
    ht_config copy = *config;
    return hti_config_resolve(ctx, &copy);
}
