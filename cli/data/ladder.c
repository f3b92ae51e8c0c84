/*
 * htransformer data ladder: how far one gets in ListOps by looking at the top of the expression
 * alone. What lies deeper is left out, what remains is computed, and the answer is the label that
 * most often goes with the root's operator and that result.
 */
#include "commands.h"
#include "base/settings.h"
#include "base/json.h"

#include <htransformer_models.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 9, OPERATOR = 11, END = 15, UNKNOWN = 10 };

typedef struct ladder_values {
    const char *data;
    int64_t items, seed, threads;
    int json;
} ladder_values;

static const cli_option options[] = {
    {"data", CLI_READ, offsetof(ladder_values, data), "PATH",
     .help = "a file of expressions; else they are made"},
    {"items", CLI_INT, offsetof(ladder_values, items), "N", "20000", .min = 1, .max = 10000000,
     .help = "expressions that are made"},
    {"seed", CLI_INT, offsetof(ladder_values, seed), "N", "0", .min = 0, .max = INT64_C(1) << 53,
     .help = "of what is made"},
    {"threads", CLI_INT, offsetof(ladder_values, threads), "N", "0", .min = 0, .max = 4096,
     .help = "CPU threads; 0: all"},
    {"json", CLI_FLAG, offsetof(ladder_values, json), .help = "one JSON object instead of text"},
    {0},
};

/* how often a label went with [levels seen][root's operator][result] */
typedef struct counts {
    int64_t at[LEVELS][4][UNKNOWN + 1][10], items;
} counts;

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* n digits under an operator; none: unknown */
static int apply(int operator, int * digits, int n) {
    int sum = 0;
    if (n == 0) return UNKNOWN;
    qsort(digits, (size_t)n, sizeof *digits, compare);
    for (int i = 0; i < n; i++) sum += digits[i];
    switch (operator) {
    case 0: return digits[0];
    case 1: return digits[n - 1];
    case 2: return n % 2 ? digits[n / 2] : (digits[n / 2 - 1] + digits[n / 2]) / 2;
    default: return sum % 10;
    }
}

/* The expression at *at as one sees it who sees so many levels of operators. */
static int look(const int32_t *ids, int *at, int levels) {
    int id = ids[(*at)++], known[128], n = 0;
    if (id < OPERATOR) return levels > 0 ? id - 1 : UNKNOWN;
    while (ids[*at] != END) {
        int is_digit = ids[*at] < OPERATOR;
        int value = look(ids, at, is_digit ? levels : levels - 1);
        if (value != UNKNOWN && n < 128) known[n++] = value;
    }
    ++*at;
    return levels > 0 ? apply(id - OPERATOR, known, n) : UNKNOWN;
}

static void count(counts *c, const ht_batch *b) {
    for (int64_t i = 0; i < b->sequences; i++) {
        const int32_t *ids = b->tokens + b->cu_seqlens[i];
        if (ids[0] < OPERATOR) continue; /* a digit alone */
        for (int levels = 0; levels < LEVELS; levels++) {
            int at = 0, value = look(ids, &at, levels);
            c->at[levels][ids[0] - OPERATOR][value][b->targets[i]]++;
        }
        c->items++;
    }
}

static double share(const counts *c, int levels) {
    int64_t right = 0;
    for (int o = 0; o < 4; o++)
        for (int v = 0; v <= UNKNOWN; v++) {
            int64_t most = 0;
            for (int label = 0; label < 10; label++)
                if (c->at[levels][o][v][label] > most) most = c->at[levels][o][v][label];
            right += most;
        }
    return c->items ? (double)right / (double)c->items : 0;
}

static void print(const counts *c, bool as_json) {
    static const char *const seen[] = {"the root's operator alone",
                                       "and the root's own digits",
                                       "two levels",
                                       "three levels",
                                       "four levels",
                                       "five levels",
                                       "six levels",
                                       "seven levels",
                                       "eight levels"};
    json_writer json = {.out = stdout};
    if (as_json) {
        json_open(&json, NULL, '{');
        json_int(&json, "items", c->items);
        json_open(&json, "accuracy", '[');
        for (int i = 0; i < LEVELS; i++) json_real(&json, NULL, share(c, i));
        json_close(&json, ']');
        json_close(&json, '}');
        putchar('\n');
        return;
    }
    printf("accuracy of who sees only the top of %lld expressions\n", (long long)c->items);
    for (int i = 0; i < LEVELS; i++) {
        double p = share(c, i);
        printf("  %-26s %5.1f +- %.1f %%\n", seen[i], 100 * p,
               100 * sqrt(p * (1 - p) / (double)c->items));
    }
}

static bool measure(ht_context *ctx, const ladder_values *v, cli_error *error) {
    ht_config *config = NULL;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_batch batch = HT_BATCH_INIT;
    ht_data *data = NULL;
    counts *c = calloc(1, sizeof *c);
    bool good = c || cli_fail(error, "out of memory");
    ht_status status = ht_config_create(&config, ctx, "lra/listops");
    if (status == HT_OK) status = ht_config_set_int(config, "valid_items", v->items);
    if (status == HT_OK) status = ht_config_set_int(config, "data_seed", v->seed);
    desc.config = config;
    desc.path = v->data;
    desc.part = HT_PART_VALID;
    if (good && status == HT_OK) status = ht_data_open(&data, ctx, &desc);
    if (good && status != HT_OK) good = cli_fail(error, "%s", ht_context_error(ctx));
    while (good && ht_data_next(data, &batch) == HT_OK) count(c, &batch);
    if (good) print(c, v->json);
    ht_data_close(data);
    ht_config_destroy(config);
    free(c);
    return good;
}

static int run(const void *values) {
    const ladder_values *v = values;
    cli_error error = {""};
    int code = CLI_FAILED;
    ht_context *ctx = cli_open_device("cpu", v->threads, &code, &error);
    if (ctx) code = measure(ctx, v, &error) ? CLI_OK : CLI_FAILED;
    if (code != CLI_OK) cli_say("data ladder", "%s", error.text);
    ht_context_destroy(ctx);
    return code;
}

const cli_command cli_data_ladder = {
    .name = "data ladder",
    .summary = "ListOps: what the top of an expression gives away",
    .about = "What lies below the levels seen is left out and the rest computed; the answer is the "
             "most frequent label for the root's operator and that result. An accuracy of a model "
             "says from this how deep it reads.\n",
    .options = options,
    .values_bytes = sizeof(ladder_values),
    .run = run,
};
