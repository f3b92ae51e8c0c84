/*
 * htransformer data show: one item of a task, printed, or drawn as a PNG.
 */
#include "commands.h"
#include "base/settings.h"
#include "draw/grey.h"

#include <htransformer_models.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct show_values {
    const char *task, *number, *data, *papers, *out;
    int64_t seed, distractors, scale;
    int part;
} show_values;

static const char *const parts[] = {"train", "valid", "test", NULL};

static const cli_option options[] = {
    {"data", CLI_READ, offsetof(show_values, data), "PATH",
     .help = "the file or folder, as in train; listops, pathfinder, pathx, copy and recall make "
             "their own"},
    {"papers", CLI_READ, offsetof(show_values, papers), "PATH",
     .help = "retrieval: the papers of pairs that are ids"},
    {"part", CLI_CHOICE, offsetof(show_values, part), NULL, "train", parts,
     .help = "which of what is made"},
    {"seed", CLI_INT, offsetof(show_values, seed), "N", "0", .min = 0, .max = INT64_C(1) << 53,
     .help = "of what is made"},
    {"distractors", CLI_INT, offsetof(show_values, distractors), "N", "0", .min = 0, .max = 100,
     .help = "short lines in an image; 0: as in data make"},
    {"out", CLI_WRITE, offsetof(show_values, out), "FILE", .help = "draw an image as a PNG there"},
    {"scale", CLI_INT, offsetof(show_values, scale), "N", "4", .min = 1, .max = 64,
     .help = "pixels of the PNG per pixel"},
    {0},
};

static void print_text(const int32_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) putchar(tokens[i] > 0 ? tokens[i] - 1 : 0);
    putchar('\n');
}

static void print_expression(const int32_t *tokens, int64_t count) {
    static const char *const words[] = {"?", "0", "1", "2",    "3",    "4",    "5",   "6",
                                        "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};
    for (int64_t i = 0; i < count; i++)
        printf("%s%s", i ? " " : "", words[tokens[i] > 0 && tokens[i] < 16 ? tokens[i] : 0]);
    putchar('\n');
}

/* Keys are k0 ..., values v0 ...; what is to be guessed stands in brackets. */
static void print_marked(const ht_batch *b, bool letters) {
    enum { KEY = 1, VALUE = 1025 };
    char open[2] = "", close[2] = "";
    int32_t n = b->cu_seqlens[1], count = 0;
    for (int32_t i = 0; i < n; i++) count += b->targets[i] >= 0;
    printf("%d tokens, %d of them to be guessed\n", n, count);
    for (int32_t i = 0; i < n; i++) {
        int32_t token = i + 1 < n ? b->tokens[i + 1] : b->targets[i];
        bool guessed = b->targets[i] >= 0;
        open[0] = guessed ? '[' : '\0', close[0] = guessed ? ']' : '\0';
        if (token < 0) continue; /* the last one, if it does not count, is not in the batch */
        if (letters)
            putchar(token - 1);
        else
            printf("%s%s%c%d%s", i ? " " : "", open, token < VALUE ? 'k' : 'v',
                   token - (token < VALUE ? KEY : VALUE), close);
    }
    putchar('\n');
}

static bool draw(const int32_t *tokens, int64_t count, const show_values *v, cli_error *error) {
    int side = (int)lround(sqrt((double)count));
    uint8_t *pixels = malloc((size_t)count);
    bool good = pixels || cli_fail(error, "out of memory");
    if (good && (int64_t)side * side != count)
        good = cli_fail(error, "%lld pixels are no square", (long long)count);
    for (int64_t i = 0; i < count && good; i++) pixels[i] = (uint8_t)tokens[i];
    if (good && v->out)
        good = grey_write(v->out, pixels, side, side, (int)v->scale, error);
    else if (good)
        grey_print(stdout, pixels, side, side);
    free(pixels);
    return good;
}

static bool print(const ht_config *c, const ht_batch *b, const show_values *v, cli_error *error) {
    bool image = setting_has_images(c);
    if (b->back && v->out) return cli_fail(error, "--out draws images, and this is none");
    if (b->back) {
        print_marked(b, setting_is(c, "format", "copy"));
        return true;
    }
    printf("label %d, %d tokens\n", b->targets[0], b->cu_seqlens[b->sequences]);
    if (v->out && !image) return cli_fail(error, "--out draws images, and this is none");
    for (int64_t i = 0; i < b->sequences; i++) {
        const int32_t *tokens = b->tokens + b->cu_seqlens[i];
        int64_t count = b->cu_seqlens[i + 1] - b->cu_seqlens[i];
        if (image) return draw(tokens, count, v, error);
        if (setting_is(c, "format", "listops"))
            print_expression(tokens, count);
        else
            print_text(tokens, count);
    }
    return true;
}

/* The settings of the task; what is made has as many items as are needed. */
static bool configure(ht_context *ctx, ht_config **c, int64_t number, const show_values *v,
                      cli_error *error) {
    char preset[64];
    bool own = strcmp(v->task, "copy") == 0 || strcmp(v->task, "recall") == 0;
    snprintf(preset, sizeof preset, "%s%s", own ? "" : "lra/", v->task);
    bool good = ht_config_create(c, ctx, preset) == HT_OK &&
                ht_config_set_int(*c, "batch", 1) == HT_OK &&
                ht_config_set_int(*c, "data_seed", v->seed) == HT_OK &&
                ht_config_set_int(*c, "distractors", v->distractors) == HT_OK;
    if (good && v->data) return true;
    if (good && !setting_makes_items(*c))
        return cli_fail(error, "--data is missing: %s is not made", v->task);
    bool both = good && (own || setting_has_images(*c)), train = v->part == HT_PART_TRAIN;
    if (good && (both || train)) good = ht_config_set_int(*c, "train_items", number + 1) == HT_OK;
    if (good && both) good = ht_config_set_int(*c, "valid_items", number + 1) == HT_OK;
    return good || cli_fail(error, "%s", ht_context_error(ctx));
}

static bool show_item(ht_context *ctx, const ht_config *config, int64_t number,
                      const show_values *v, cli_error *error) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_batch batch = HT_BATCH_INIT;
    ht_data *data;
    desc.config = config;
    desc.path = v->data;
    desc.papers = v->papers;
    desc.part = (ht_part)v->part;
    if (ht_data_open(&data, ctx, &desc) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(ctx));
    ht_status status = HT_OK;
    for (int64_t i = 0; i <= number && status == HT_OK; i++) status = ht_data_next(data, &batch);
    bool good = status == HT_OK ? print(config, &batch, v, error)
                                : cli_fail(error, "there is no item %s: it has fewer", v->number);
    ht_data_close(data);
    return good;
}

static bool show(ht_context *ctx, const show_values *v, cli_error *error) {
    ht_config *config = NULL;
    char *end;
    long long number = strtoll(v->number, &end, 10);
    if (*end || end == v->number || number < 0 || number >= 1000000000)
        return cli_fail(error, "N must be a whole number from 0, got '%s'", v->number);
    bool good =
        configure(ctx, &config, number, v, error) && show_item(ctx, config, number, v, error);
    ht_config_destroy(config);
    return good;
}

static int run(const void *values) {
    cli_error error = {""};
    int code = CLI_FAILED;
    ht_context *ctx = cli_open_device("cpu", 0, &code, &error);
    if (ctx) code = show(ctx, values, &error) ? CLI_OK : CLI_FAILED;
    if (code != CLI_OK) cli_say("data show", "%s", error.text);
    ht_context_destroy(ctx);
    return code;
}

static const char *const tasks[] = {"listops", "text", "retrieval", "image", "pathfinder",
                                    "pathx",   "copy", "recall",    NULL};

const cli_command cli_data_show = {
    .name = "data show",
    .summary = "one item of a task, printed or drawn",
    .about = "TASK is listops, text, retrieval, image, pathfinder, pathx, copy or recall; N counts "
             "from 0.\n",
    .options = options,
    .word = "TASK",
    .word_offset = offsetof(show_values, task),
    .second = "N",
    .word_choices = tasks,
    .values_bytes = sizeof(show_values),
    .run = run,
};
