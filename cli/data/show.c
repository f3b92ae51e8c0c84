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
     .help = "the file or folder, as in train; listops, pathfinder and pathx make their own"},
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
    snprintf(preset, sizeof preset, "lra/%s", v->task);
    bool good = ht_config_create(c, ctx, preset) == HT_OK &&
                ht_config_set_int(*c, "batch", 1) == HT_OK &&
                ht_config_set_int(*c, "data_seed", v->seed) == HT_OK &&
                ht_config_set_int(*c, "distractors", v->distractors) == HT_OK;
    if (good && v->data) return true;
    if (good && !setting_makes_items(*c))
        return cli_fail(error, "--data is missing: %s is not made", v->task);
    bool images = good && setting_has_images(*c), train = v->part == HT_PART_TRAIN;
    if (good && (images || train)) good = ht_config_set_int(*c, "train_items", number + 1) == HT_OK;
    if (good && images) good = ht_config_set_int(*c, "valid_items", number + 1) == HT_OK;
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

static const char *const tasks[] = {"listops",    "text",  "retrieval", "image",
                                    "pathfinder", "pathx", NULL};

const cli_command cli_data_show = {
    .name = "data show",
    .summary = "one item of a task, printed or drawn",
    .about = "TASK is listops, text, retrieval, image, pathfinder or pathx; N counts from 0.\n",
    .options = options,
    .word = "TASK",
    .word_offset = offsetof(show_values, task),
    .second = "N",
    .word_choices = tasks,
    .values_bytes = sizeof(show_values),
    .run = run,
};
