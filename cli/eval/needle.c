/*
 * The needle test.
 */
#include "eval/needle.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char before[] = " The secret number is ";
static const char after[] = ". ";
enum { BEFORE = sizeof before - 1, AFTER = sizeof after - 1 };

/* splitmix64 */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* ---- texts ------------------------------------------------------------------------------- */

static void write_own(unsigned char *out, int64_t count, uint64_t *random) {
    static const char *const sentences[] = {
        "The grass is green. ",         "The sky is blue. ",
        "The sun is yellow. ",          "Here we go. ",
        "There and back again. ",       "The house stands on a hill. ",
        "A bird sings in the tree. ",   "The river runs to the sea. ",
        "It rained in the night. ",     "The road leads through the wood. ",
        "Somebody opened the window. ", "The bread was still warm. "};
    enum { SENTENCES = sizeof sentences / sizeof *sentences };
    for (int64_t at = 0; at < count;) {
        const char *s = sentences[next_random(random) % SENTENCES];
        size_t n = strlen(s);
        if ((int64_t)n > count - at) n = (size_t)(count - at);
        memcpy(out + at, s, n);
        at += (int64_t)n;
    }
}

/* A stretch of the hay; what is longer than it begins anew. */
static void write_hay(unsigned char *out, int64_t count, uint64_t *random, const needle_hay *hay) {
    if (hay->count == 0) {
        write_own(out, count, random);
        return;
    }
    int64_t from = (int64_t)(next_random(random) % (uint64_t)hay->count);
    for (int64_t i = 0; i < count; i++) out[i] = hay->bytes[(from + i) % hay->count];
}

int64_t needle_write(unsigned char *out, int64_t length, int64_t depth, int64_t item,
                     const needle_hay *hay) {
    int64_t needle = BEFORE + NEEDLE_DIGITS + AFTER, end = length - BEFORE - NEEDLE_DIGITS;
    int64_t at = (end - needle) * depth / 100;
    uint64_t random = (uint64_t)item * 1000003 + (uint64_t)(length * 101 + depth);
    char number[NEEDLE_DIGITS];
    for (int i = 0; i < NEEDLE_DIGITS; i++) number[i] = (char)('0' + next_random(&random) % 10);
    write_hay(out, length, &random, hay);
    memcpy(out + at, before, BEFORE);
    memcpy(out + at + BEFORE, number, NEEDLE_DIGITS);
    memcpy(out + at + BEFORE + NEEDLE_DIGITS, after, AFTER);
    memcpy(out + end, before, BEFORE);
    memcpy(out + end + BEFORE, number, NEEDLE_DIGITS);
    return at + BEFORE;
}

bool needle_fits(const run_model *m, cli_error *error) {
    return setting_is(m->config, "task", "language") ||
           cli_fail(error, "--needle is for language models, the task of %s is %s", m->path,
                    setting_word(m->config, "task"));
}

static bool add_hay(needle_hay *hay, const char *bytes, int64_t count, cli_error *error) {
    if (hay->count + count > hay->room) {
        int64_t room = 2 * (hay->count + count) + 4096;
        unsigned char *more = realloc(hay->bytes, (size_t)room);
        if (!more) return cli_fail(error, "out of memory");
        hay->bytes = more, hay->room = room;
    }
    if (count > 0) memcpy(hay->bytes + hay->count, bytes, (size_t)count);
    hay->count += count;
    return true;
}

bool needle_gather(needle_hay *hay, ht_data *data, const run_model *m, int64_t most,
                   cli_error *error) {
    ht_batch batch = HT_BATCH_INIT;
    ht_status status = HT_OK;
    while (hay->count < most && (status = ht_data_next(data, &batch)) == HT_OK)
        for (int64_t i = 0; i < batch.cu_seqlens[batch.sequences]; i++) {
            size_t n;
            const char *piece = ht_tokenizer_piece(m->tokenizer, batch.tokens[i], &n);
            if (!add_hay(hay, piece, (int64_t)n, error)) return false;
        }
    if (status != HT_OK && status != HT_END) return cli_fail(error, "%s", ht_context_error(m->ctx));
    return hay->count > 0 || cli_fail(error, "the data has no text to hide a number in");
}

/* ---- scores ------------------------------------------------------------------------------ */

/* The room for a batch of texts. */
typedef struct room {
    unsigned char *text, *right; /* [length]; [batch, length] */
    int32_t *tokens, *targets;   /* [batch, length] */
    int32_t *starts;             /* [batch + 1] */
    float *losses;               /* [batch, length] */
} room;

static bool room_make(room *r, int64_t batch, int64_t length, cli_error *error) {
    size_t n = (size_t)(batch * length);
    r->text = malloc((size_t)length);
    r->right = malloc(n);
    r->tokens = malloc(n * sizeof *r->tokens);
    r->targets = malloc(n * sizeof *r->targets);
    r->starts = malloc((size_t)(batch + 1) * sizeof *r->starts);
    r->losses = malloc(n * sizeof *r->losses);
    return (r->text && r->right && r->tokens && r->targets && r->starts && r->losses) ||
           cli_fail(error, "out of memory");
}

static void room_free(room *r) {
    free(r->text);
    free(r->right);
    free(r->tokens);
    free(r->targets);
    free(r->starts);
    free(r->losses);
}

/* Text i of the batch: token 0 and all tokens but the last. Those that hold digits of the answer
 * are what counts. */
static bool put_text(room *r, int64_t i, int64_t length, run_model *m, cli_error *error) {
    int32_t *tokens = r->tokens + r->starts[i], *targets = r->targets + r->starts[i];
    int64_t count = 0, end = 0;
    if (ht_tokenizer_encode(m->tokenizer, (const char *)r->text, (size_t)length, targets, length,
                            &count) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(m->ctx));
    for (int64_t t = 0; t < count; t++) {
        size_t n;
        ht_tokenizer_piece(m->tokenizer, targets[t], &n);
        if (t + 1 < count) tokens[t + 1] = targets[t];
        end += (int64_t)n;
        if (end <= length - NEEDLE_DIGITS) targets[t] = -1;
    }
    tokens[0] = 0;
    r->starts[i + 1] = r->starts[i] + (int32_t)count;
    return true;
}

static void add_text(needle_cell *c, const room *r, int64_t i) {
    int tokens = 0, right = 0;
    for (int32_t t = r->starts[i]; t < r->starts[i + 1]; t++) {
        if (r->targets[t] < 0) continue;
        tokens++, right += r->right[t], c->loss += r->losses[t];
    }
    c->items++;
    c->found += right == tokens;
    c->tokens += tokens;
    c->right += right;
}

static bool measure_cell(needle_cell *c, room *r, run_model *m, int64_t batch, int64_t items,
                         const needle_hay *hay, cli_error *error) {
    for (int64_t done = 0; done < items; done += batch) {
        int64_t count = items - done < batch ? items - done : batch;
        r->starts[0] = 0;
        for (int64_t i = 0; i < count; i++) {
            needle_write(r->text, c->length, c->depth, done + i, hay);
            if (!put_text(r, i, c->length, m, error)) return false;
        }
        ht_batch b = HT_BATCH_INIT;
        b.sequences = count, b.tokens = r->tokens, b.targets = r->targets;
        b.cu_seqlens = r->starts;
        if (ht_trainer_guess(m->trainer, &b, r->losses, r->right) != HT_OK)
            return cli_fail(error, "%s", ht_context_error(m->ctx));
        for (int64_t i = 0; i < count; i++) add_text(c, r, i);
    }
    return true;
}

bool needle_measure(needle_cell *cells, const cli_ints *depths, run_model *m, int64_t length,
                    int64_t items, const needle_hay *hay, cli_error *error) {
    int64_t batch = setting_int(m->config, "batch");
    room r = {0};
    bool good = room_make(&r, batch, length, error);
    for (int d = 0; good && d < depths->count; d++) {
        cells[d] = (needle_cell){.length = length, .depth = depths->at[d]};
        good = measure_cell(&cells[d], &r, m, batch, items, hay, error);
    }
    room_free(&r);
    return good;
}

/* ---- output ------------------------------------------------------------------------------ */

static double bits_of(const needle_cell *c) {
    return c->loss / (c->items * NEEDLE_DIGITS) / log(2);
}

void needle_print(const needle_table *t, const char *model) {
    char line[32 * 24];
    cli_line("a number of %d digits in texts of so many bytes, %.0f texts each: found in %%, and "
             "bits per digit, of which guessing needs %.2f (%s)",
             NEEDLE_DIGITS, t->cell[0][0].items, log2(10), model);
    int n = snprintf(line, sizeof line, "%7s", "depth");
    for (int i = 0; i < t->lengths.count; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, " %18" PRId64, t->lengths.at[i]);
    cli_head("%s", line);
    for (int d = 0; d < t->depths.count; d++) {
        n = snprintf(line, sizeof line, "%5" PRId64 " %%", t->depths.at[d]);
        for (int i = 0; i < t->lengths.count; i++) {
            const needle_cell *c = &t->cell[i][d];
            n += snprintf(line + n, sizeof line - (size_t)n, " %8.1f (%7.4f)",
                          100 * c->found / c->items, bits_of(c));
        }
        cli_row("%s", line);
    }
}

void needle_json(const needle_table *t, const char *model) {
    json_writer json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_text(&json, "model", model);
    json_int(&json, "digits", NEEDLE_DIGITS);
    json_open(&json, "needle", '[');
    for (int i = 0; i < t->lengths.count; i++)
        for (int d = 0; d < t->depths.count; d++) {
            const needle_cell *c = &t->cell[i][d];
            double share = c->found / c->items;
            json_open(&json, NULL, '{');
            json_int(&json, "length", c->length);
            json_int(&json, "depth", c->depth);
            json_int(&json, "items", (int64_t)c->items);
            json_real(&json, "found", share);
            json_real(&json, "found_error", sqrt(share * (1 - share) / c->items));
            json_real(&json, "tokens_right", c->right / c->tokens);
            json_real(&json, "bits_per_digit", bits_of(c));
            json_close(&json, '}');
        }
    json_close(&json, ']');
    json_close(&json, '}');
    putchar('\n');
}
