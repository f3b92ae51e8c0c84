/*
 * htransformer data make and data import: sets as files.
 */
#include "bench/bench.h"
#include "commands.h"
#include "base/json.h"

#include <errno.h>
#include <htransformer_models.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct set_values {
    const char *task, *source, *out;
    int64_t train, valid, test, seed, distractors, length, threads;
    int plain, unchecked, dry, json;
} set_values;

#define OUT                                                        \
    {                                                              \
        "out", CLI_TEXT, offsetof(set_values, out), "FOLDER", ".", \
            .help = "where the files go; made if it is not there"  \
    }
#define PLAIN \
    { "plain", CLI_FLAG, offsetof(set_values, plain), .help = "do not compress" }
#define THREADS                                                                                    \
    {                                                                                              \
        "threads", CLI_INT, offsetof(set_values, threads), "N", "0", .min = 0, .max = 4096,        \
                                                                     .help = "CPU threads; 0: all" \
    }
#define JSON \
    { "json", CLI_FLAG, offsetof(set_values, json), .help = "one JSON object instead of text" }

static const cli_option make_options[] = {
    OUT,
    {"train", CLI_INT, offsetof(set_values, train), "N", "0", .min = 0, .max = 1000000000,
     .help = "items to train on; without --train, --valid and --test as many as in the benchmark: "
             "96,000, 2,000 and 2,000 expressions, 160,000, 20,000 and 20,000 images; of copy and "
             "recall 20,000, 1,000 and 1,000"},
    {"valid", CLI_INT, offsetof(set_values, valid), "N", "0", .min = 0, .max = 1000000000,
     .help = "items for validation"},
    {"test", CLI_INT, offsetof(set_values, test), "N", "0", .min = 0, .max = 1000000000,
     .help = "items for the test"},
    {"seed", CLI_INT, offsetof(set_values, seed), "N", "0", .min = 0, .max = INT64_C(1) << 53,
     .help = "the same seed gives the same bytes, with any number of threads"},
    {"distractors", CLI_INT, offsetof(set_values, distractors), "N", "0", .min = 0, .max = 100,
     .help = "short lines in an image; 0: 5 (pathx: 8), as the benchmark's description reads; its "
             "program may have drawn 10 (pathx: 17)"},
    {"length", CLI_INT, offsetof(set_values, length), "N", "0", .min = 0, .max = INT32_MAX / 2,
     .help = "copy, recall: tokens of an item; 0: 512"},
    {"dry", CLI_FLAG, offsetof(set_values, dry), .help = "write nothing: how fast is it?"},
    PLAIN,
    THREADS,
    JSON,
    {0},
};

static const cli_option import_options[] = {
    OUT,
    {"unchecked", CLI_FLAG, offsetof(set_values, unchecked),
     .help = "take any number of items and any sum"},
    {"seed", CLI_INT, offsetof(set_values, seed), "N", "0", .min = 0, .max = INT64_C(1) << 53,
     .help = "pathfinder, pathx: deals the images to train, valid and test"},
    PLAIN,
    THREADS,
    JSON,
    {0},
};

static volatile sig_atomic_t stopped;

static void on_signal(int number) { stopped = number; }

/* ---- progress ---- */

typedef struct show {
    bool terminal;
    double begin, last;
    int64_t done;
} show;

static int tell(void *user, int64_t done, int64_t all) {
    enum { BAR = 32 };
    show *s = user;
    double now = bench_seconds();
    s->done = done;
    if (stopped) return 1;
    if (!s->terminal || now - s->last < 0.1) return 0;
    s->last = now;
    int full = all > 0 && done < all ? (int)(BAR * done / all) : BAR;
    double rate = (double)done / (now - s->begin);
    fprintf(stderr, "\r\033[K[");
    for (int i = 0; i < BAR; i++) fputc(i < full ? '=' : ' ', stderr);
    fprintf(stderr, "] %lld of %lld, %.0f/s", (long long)done, (long long)all, rate);
    fflush(stderr);
    return 0;
}

/* ---- what was written ---- */

static const char *const parts[] = {"train", "valid", "test"};

static void print_json(const ht_set_info *info, const set_values *v, double seconds) {
    json_writer json = {.out = stdout};
    char sum[20];
    json_open(&json, NULL, '{');
    json_text(&json, "task", v->task);
    for (int i = 0; i < 3; i++) {
        json_open(&json, parts[i], '{');
        json_int(&json, "items", info->items[i]);
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)info->sum[i]);
        json_text(&json, "sum", sum);
        json_close(&json, '}');
    }
    if (v->source) json_bool(&json, "published", info->known);
    json_real(&json, "seconds", seconds);
    if (info->attempts > 0) json_real(&json, "attempts", info->attempts);
    if (info->brightness > 0) {
        json_real(&json, "positive", info->positive);
        json_real(&json, "distractors", info->distractors);
        json_real(&json, "nonzero", info->nonzero);
        json_real(&json, "brightness", info->brightness);
    }
    json_close(&json, '}');
    putchar('\n');
}

static void print(const ht_set_info *info, const set_values *v, double seconds) {
    int64_t all = info->items[0] + info->items[1] + info->items[2];
    if (v->json) {
        print_json(info, v, seconds);
        return;
    }
    printf("%s: %lld items in %.2f s, %.0f/s\n", v->task, (long long)all, seconds,
           (double)all / seconds);
    for (int i = 0; i < 3; i++)
        if (info->items[i])
            printf("  %-6s %lld items, sum %016llx\n", parts[i], (long long)info->items[i],
                   (unsigned long long)info->sum[i]);
    if (info->known) printf("  the sums are those of the published set\n");
    if (info->attempts > 0 && info->brightness == 0)
        printf("  per expression: %.1f attempts\n", info->attempts);
    if (info->brightness > 0)
        printf("  per image: label 1 %.1f %%, %.1f attempts, %.2f short lines, %.1f %% of the "
               "pixels not black, mean pixel %.1f\n",
               100 * info->positive, info->attempts, info->distractors, 100 * info->nonzero,
               info->brightness);
}

/* ---- the commands ---- */

static const char *const made[] = {"listops", "pathfinder", "pathx", "copy", "recall", NULL};
static const char *const imported[] = {"imdb",       "cifar10", "aan", "listops",
                                       "pathfinder", "pathx",   NULL};

static bool make_folder(const char *folder, cli_error *error) {
    if (mkdir(folder, 0777) == 0 || errno == EEXIST) return true;
    return cli_fail(error, "%s could not be made: %s", folder, strerror(errno));
}

static bool write_set(ht_context *ctx, const set_values *v, cli_error *error) {
    ht_set_desc desc = HT_SET_DESC_INIT;
    ht_set_info info = HT_SET_INFO_INIT;
    show s = {.terminal = isatty(STDERR_FILENO), .begin = bench_seconds()};
    if (!v->dry && !make_folder(v->out, error)) return false;
    desc.task = v->task;
    desc.source = v->source;
    desc.folder = v->dry ? NULL : v->out;
    desc.items[0] = v->train;
    desc.items[1] = v->valid;
    desc.items[2] = v->test;
    desc.seed = v->seed;
    desc.distractors = v->distractors;
    desc.length = v->length;
    desc.plain = v->plain;
    desc.unchecked = v->unchecked;
    desc.tell = tell;
    desc.user = &s;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    ht_status status = ht_set_write(ctx, &desc, &info);
    if (s.terminal && s.done) fprintf(stderr, "\r\033[K");
    if (status != HT_OK) return cli_fail(error, "%s", ht_context_error(ctx));
    print(&info, v, bench_seconds() - s.begin);
    return true;
}

static int run(const char *name, const set_values *v) {
    cli_error error = {""};
    int code = CLI_FAILED;
    ht_context *ctx = cli_open_device("cpu", v->threads, &code, &error);
    if (ctx) code = write_set(ctx, v, &error) ? CLI_OK : CLI_FAILED;
    if (code != CLI_OK) cli_say(name, "%s", error.text);
    ht_context_destroy(ctx);
    return code;
}

static int run_make(const void *values) { return run("data make", values); }
static int run_import(const void *values) { return run("data import", values); }

const cli_command cli_data_make = {
    .name = "data make",
    .summary = "make a set of a task from a seed",
    .about =
        "TASK is listops, pathfinder or pathx of the Long Range Arena, or copy or recall, which "
        "take finding single far rows again. Written are TASK-train, TASK-valid and "
        "TASK-test, which train and eval take with --data and --valid: expressions as .tsv, "
        "images as .images, tokens of which some are to be guessed as .tokens; "
        "docs/formats.md describes them.\n",
    .options = make_options,
    .word = "TASK",
    .word_offset = offsetof(set_values, task),
    .word_choices = made,
    .values_bytes = sizeof(set_values),
    .run = run_make,
};

const cli_command cli_data_import = {
    .name = "data import",
    .summary = "take a set from its official files, checked",
    .about =
        "TASK and what PATH is: imdb, the folder aclImdb; cifar10, the folder of the binary "
        "batches (images become grey); aan, the folder with new_aan_pairs.train.tsv and so on, or "
        "with papers and pairs; listops, the folder with basic_train.tsv and so on; pathfinder and "
        "pathx, a folder with imgs and metadata, or the one above curv_contour_length_14. Numbers "
        "of items, values of expressions and, where they are known, sums are checked.\n",
    .options = import_options,
    .word = "TASK",
    .word_offset = offsetof(set_values, task),
    .second = "PATH",
    .word_choices = imported,
    .values_bytes = sizeof(set_values),
    .run = run_import,
};
