/*
 * htransformer generate: a language model goes on with a text, or with many side by side.
 *
 * Texts are written as they come; what could be the beginning of --stop waits until it is known
 * not to be. What it cost is said on stderr.
 */
#include "base/json.h"
#include "base/save.h"
#include "run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct generate_values {
    const char *run, *prompt, *prompts, *stop, *device, *save_state, *load_state;
    double temperature, top_p, min_p, repeat_penalty;
    int64_t tokens, top_k, seed, slots, report, threads, open;
    int json, last, logprobs, discard, endless;
} generate_values;

#define AT(field) offsetof(generate_values, field)
static const cli_option options[] = {
    {"prompt", CLI_TEXT, AT(prompt), "TEXT", .help = "the text to go on with; none: a new one"},
    {"prompts", CLI_READ, AT(prompts), "FILE", .help = "many, one per line, generated together"},
    {"tokens", CLI_INT, AT(tokens), "N", "300", .min = 0, .max = INT64_C(1) << 40,
     .help = "how many to write"},
    {"temperature", CLI_REAL, AT(temperature), "X", "0.8", .min = 0, .max = 100,
     .help = "below 1: safer, above: wilder; 0: always the likeliest token"},
    {"top_k", CLI_INT, AT(top_k), "N", "0", .min = 0, .max = 1 << 24,
     .help = "only the N likeliest tokens; 0: all"},
    {"top_p", CLI_REAL, AT(top_p), "X", "1", .min = 0, .max = 1,
     .help = "only the fewest tokens that together have this probability"},
    {"min_p", CLI_REAL, AT(min_p), "X", "0", .min = 0, .max = 1,
     .help = "only tokens with at least X times the likeliest one's probability"},
    {"repeat_penalty", CLI_REAL, AT(repeat_penalty), "X", "1", .min = 1, .max = 100,
     .help = "above 1: tokens of the last 256 become less likely"},
    {"seed", CLI_INT, AT(seed), "N", "1", .min = 0, .max = INT64_MAX,
     .help = "same seed, same text"},
    {"stop", CLI_TEXT, AT(stop), "TEXT", .help = "ends before this; \\n is a line's end"},
    {"endless", CLI_FLAG, AT(endless), .help = "go on where the model ends a document"},
    {"logprobs", CLI_FLAG, AT(logprobs),
     .help = "one line per token: logarithm of its probability, id, text"},
    {"save_state", CLI_WRITE, AT(save_state), "FILE", .help = "keep the state after the text"},
    {"load_state", CLI_READ, AT(load_state), "FILE",
     .help = "go on from such a state; --prompt is added to it"},
    {"slots", CLI_INT, AT(slots), "N", "16", .min = 1, .max = 65536,
     .help = "--prompts generated side by side"},
    {"report", CLI_INT, AT(report), "N", "0", .min = 0, .max = INT64_C(1) << 40,
     .help = "speed and memory to stderr every N tokens; 0: at the end"},
    RUN_OPEN_OPTION(generate_values, open),
    {"json", CLI_FLAG, AT(json), .help = "a JSON object per text instead of the text"},
    {"discard", CLI_FLAG, AT(discard), .help = "write no text, only count"},
    {"last", CLI_FLAG, AT(last), .help = "the newest checkpoint, not the best"},
    {"device", CLI_TEXT, AT(device), "NAME", .help = "as in htransformer info; default auto"},
    {"threads", CLI_INT, AT(threads), "N", "0", .min = 0, .max = 4096,
     .help = "CPU threads; 0: all"},
    {0},
};

/* One text at work in a slot. */
typedef struct text {
    int64_t number; /* of the prompt, from 0 */
    int64_t slot;
    int64_t written; /* tokens */
    char *bytes;     /* prompt and what came, for JSON, --prompts and --stop */
    size_t prompt, used, room, shown;
    double logprob; /* sum */
    bool done;
    const char *why; /* it ended: "tokens", "stop", "end" */
} text;

typedef struct generate {
    const generate_values *v;
    run_model m;
    ht_generator *g;
    ht_sampling sampling;
    char *stop;
    bool stream; /* text goes out as it comes */
    int64_t prompt_tokens, tokens;
    double prompt_seconds, seconds, reported;
    int64_t reported_tokens;
    cli_error error;
} generate;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool lib(generate *r, ht_status status) {
    return status == HT_OK || cli_fail(&r->error, "%s", ht_context_error(r->m.ctx));
}

/* ---- memory and speed ---- */

/* Bytes of this process in memory, or 0. */
static double resident(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long long all = 0, pages = 0;
    if (!f) return 0;
    if (fscanf(f, "%lld %lld", &all, &pages) != 2) pages = 0;
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void report(generate *r, const text *t) {
    ht_state_info info = HT_STATE_INFO_INIT;
    double seconds = r->seconds - r->reported;
    if (ht_generator_get_state(r->g, t->slot, &info) != HT_OK) return;
    fprintf(stderr,
            "%lld tokens: %.0f tokens/s, state %lld rows per layer and key head, %.1f kB, process "
            "%.1f MB\n",
            (long long)r->tokens, (double)(r->tokens - r->reported_tokens) / seconds,
            (long long)info.rows, (double)info.bytes / 1e3, resident() / 1e6);
    r->reported = r->seconds;
    r->reported_tokens = r->tokens;
}

static void final_words(generate *r, int64_t slot) {
    ht_state_info info = HT_STATE_INFO_INIT;
    if (ht_generator_get_state(r->g, slot, &info) != HT_OK) return;
    fprintf(stderr, "%lld tokens, %.0f tokens/s", (long long)r->tokens,
            r->seconds > 0 ? (double)r->tokens / r->seconds : 0.0);
    if (r->prompt_tokens)
        fprintf(stderr, "; prompt %lld tokens, %.0f tokens/s", (long long)r->prompt_tokens,
                r->prompt_seconds > 0 ? (double)r->prompt_tokens / r->prompt_seconds : 0.0);
    fprintf(stderr,
            "\nstate after %lld tokens: %lld rows of keys and values per layer and key head",
            (long long)info.position, (long long)info.rows);
    int64_t block = setting_int(r->m.config, "block");
    if (setting_is(r->m.config, "attention", "hierarchical"))
        fprintf(stderr, " (2 x block %lld x %lld levels)", (long long)block,
                (long long)(info.rows / (2 * block)));
    fprintf(stderr, ", %.1f kB in all\n", (double)info.bytes / 1e3);
}

/* ---- text out ---- */

static bool add_bytes(generate *r, text *t, const char *bytes, size_t count) {
    if (t->used + count + 1 > t->room) {
        size_t room = 2 * (t->used + count + 64);
        char *more = realloc(t->bytes, room);
        if (!more) return cli_fail(&r->error, "out of memory");
        t->bytes = more;
        t->room = room;
    }
    memcpy(t->bytes + t->used, bytes, count);
    t->used += count;
    t->bytes[t->used] = '\0';
    return true;
}

/* How many bytes at the end of the text could begin the stop. */
static size_t held_back(const text *t, const char *stop) {
    size_t n = stop ? strlen(stop) : 0, have = t->used - t->prompt;
    for (size_t k = n > 0 && n - 1 < have ? n - 1 : n > 0 ? have : 0; k > 0; k--)
        if (memcmp(t->bytes + t->used - k, stop, k) == 0) return k;
    return 0;
}

static void show(generate *r, text *t, size_t upto) {
    if (!r->stream || upto <= t->shown) return;
    fwrite(t->bytes + t->shown, 1, upto - t->shown, stdout);
    t->shown = upto;
    fflush(stdout);
}

/* What is shown and may not matter again is forgotten, so that endless text needs no memory. */
static void forget(generate *r, text *t) {
    if (!(r->stream || r->v->discard || r->v->logprobs) || r->v->json) return;
    size_t keep = r->stop ? strlen(r->stop) : 0, from = t->used > keep ? t->used - keep : 0;
    if (r->stream && from > t->shown) from = t->shown;
    if (from < 4096) return;
    memmove(t->bytes, t->bytes + from, t->used - from + 1);
    t->used -= from;
    t->shown = t->shown > from ? t->shown - from : 0;
    t->prompt = t->prompt > from ? t->prompt - from : 0;
}

static void end_text(text *t, const char *why) {
    t->done = true;
    t->why = why;
}

/* The stop is looked for where it could be new: in the last bytes. */
static bool stopped(const generate *r, text *t, size_t piece) {
    size_t n = r->stop ? strlen(r->stop) : 0;
    if (n == 0 || t->used - t->prompt < n) return false;
    size_t from = t->used - t->prompt > n + piece ? t->used - n - piece : t->prompt;
    for (size_t i = from; i + n <= t->used; i++)
        if (memcmp(t->bytes + i, r->stop, n) == 0) {
            t->used = i;
            t->bytes[i] = '\0';
            return true;
        }
    return false;
}

static void print_logprob(const char *piece, size_t bytes, int32_t token, double logprob) {
    printf("%.4f\t%d\t", logprob, (int)token);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)piece[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c < 0x20 || c == 0x7F || c == '\\' || (bytes == 1 && c >= 0x80))
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    putchar('\n');
}

/* A token has come. */
static bool take_token(generate *r, text *t, int32_t token, double logprob) {
    size_t bytes;
    const char *piece = ht_tokenizer_piece(r->m.tokenizer, token, &bytes);
    t->written++;
    t->logprob += logprob;
    r->tokens++;
    if (r->v->logprobs && !r->v->json && !r->v->discard)
        print_logprob(piece, bytes, token, logprob);
    if (!add_bytes(r, t, piece, bytes)) return false;
    if (stopped(r, t, bytes))
        end_text(t, "stop");
    else if (token == 0 && !r->v->endless)
        end_text(t, "end");
    else if (t->written >= r->v->tokens)
        end_text(t, "tokens");
    show(r, t, t->done ? t->used : t->used - held_back(t, r->stop));
    forget(r, t);
    return true;
}

/* Text as JSON takes it: what is no UTF-8 becomes U+FFFD. */
static char *clean(const char *bytes, size_t count) {
    char *out = malloc(3 * count + 1), *to = out;
    for (size_t i = 0; out && i < count;) {
        unsigned char c = (unsigned char)bytes[i];
        size_t n = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : 4;
        bool good = c != 0 && (c < 0x80 || (c >= 0xC2 && c <= 0xF4)) && i + n <= count;
        for (size_t k = 1; k < n && good; k++) good = ((unsigned char)bytes[i + k] & 0xC0) == 0x80;
        if (good && n == 3 && c == 0xE0) good = (unsigned char)bytes[i + 1] >= 0xA0;
        if (good && n == 3 && c == 0xED) good = (unsigned char)bytes[i + 1] < 0xA0;
        if (good && n == 4 && c == 0xF0) good = (unsigned char)bytes[i + 1] >= 0x90;
        if (good && n == 4 && c == 0xF4) good = (unsigned char)bytes[i + 1] < 0x90;
        memcpy(to, good ? bytes + i : "\xEF\xBF\xBD", good ? n : 3);
        to += good ? n : 3;
        i += good ? n : 1;
    }
    if (out) *to = '\0';
    return out;
}

static bool print_json(generate *r, const text *t) {
    json_writer json = {.out = stdout};
    ht_state_info info = HT_STATE_INFO_INIT;
    char *prompt = clean(t->bytes, t->prompt),
         *after = clean(t->bytes + t->prompt, t->used - t->prompt);
    if (!prompt || !after) {
        free(prompt);
        free(after);
        return cli_fail(&r->error, "out of memory");
    }
    if (ht_generator_get_state(r->g, t->slot, &info) != HT_OK) info.position = 0;
    json_open(&json, NULL, '{');
    json_text(&json, "model", r->m.path);
    json_text(&json, "prompt", prompt);
    json_text(&json, "text", r->v->discard ? "" : after);
    json_int(&json, "tokens", t->written);
    json_text(&json, "ended_by", t->why);
    json_real(&json, "log_probability", t->logprob);
    json_real(&json, "tokens_per_s", r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
    json_int(&json, "prompt_tokens", r->prompt_tokens);
    json_int(&json, "position", info.position);
    json_int(&json, "state_rows", info.rows);
    json_int(&json, "state_bytes", (int64_t)info.bytes);
    json_real(&json, "resident_bytes", resident());
    json_text(&json, "device", ht_context_device(r->m.ctx));
    json_close(&json, '}');
    putchar('\n');
    free(prompt);
    free(after);
    return true;
}

static bool finish_text(generate *r, text *t) {
    if (r->v->json) {
        return print_json(r, t);
    } else if (r->stream) {
        putchar('\n');
    } else if (!r->v->discard && !r->v->logprobs) {
        printf("[%lld] ", (long long)t->number + 1);
        fwrite(t->bytes, 1, t->used, stdout);
        putchar('\n');
    }
    return true;
}

/* ---- the model's side ---- */

/* Token 0, unless a state was loaded, and the prompt; in chunks, with a word on long ones. */
static bool read_prompt(generate *r, text *t) {
    enum { CHUNK = 4096 };
    bool begin = !r->v->load_state;
    int64_t count = 0;
    int32_t *tokens = malloc(sizeof *tokens * (2 * t->prompt + 8));
    if (!tokens) return cli_fail(&r->error, "out of memory");
    bool good = lib(r, ht_tokenizer_encode(r->m.tokenizer, t->bytes, t->prompt, tokens + 1,
                                           (int64_t)(2 * t->prompt + 7), &count));
    tokens[0] = 0;
    const int32_t *from = tokens + !begin;
    count += begin;
    double start = now();
    bool tell = isatty(STDERR_FILENO) && count > 4 * CHUNK;
    for (int64_t at = 0; at < count && good; at += CHUNK) {
        int32_t starts[] = {0, (int32_t)(count - at < CHUNK ? count - at : CHUNK)};
        ht_batch b = HT_BATCH_INIT;
        b.sequences = 1;
        b.tokens = from + at;
        b.cu_seqlens = starts;
        good = lib(r, ht_generator_feed(r->g, &t->slot, &b, NULL, 0));
        if (tell)
            fprintf(stderr, "\rreading the prompt: %3.0f %%", 100.0 * (double)at / (double)count);
    }
    if (tell) fputs("\r                          \r", stderr);
    r->prompt_seconds += now() - start;
    r->prompt_tokens += count;
    free(tokens);
    return good;
}

/* One token for every text that goes on. */
static bool step(generate *r, text *texts, int64_t count, int32_t *tokens, int64_t *slots,
                 int32_t *starts) {
    ht_batch b = HT_BATCH_INIT;
    double before = now();
    starts[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        text *t = &texts[i];
        double logprob = 0;
        if (t->done) continue;
        r->sampling.seed = (uint64_t)r->v->seed + (uint64_t)t->number * 0x9E3779B97F4A7C15u;
        bool wanted = r->v->logprobs || r->v->json;
        if (!lib(r, ht_generator_sample(r->g, t->slot, &r->sampling, &tokens[b.sequences],
                                        wanted ? &logprob : NULL)) ||
            !take_token(r, t, tokens[b.sequences], logprob))
            return false;
        if (t->done && !r->v->save_state) continue; /* nobody asks for what would come */
        slots[b.sequences++] = t->slot;
        starts[b.sequences] = (int32_t)b.sequences;
    }
    b.tokens = tokens;
    b.cu_seqlens = starts;
    bool good = b.sequences == 0 || lib(r, ht_generator_feed(r->g, slots, &b, NULL, 0));
    r->seconds += now() - before;
    if (r->v->report && r->tokens - r->reported_tokens >= r->v->report) report(r, &texts[0]);
    return good;
}

static bool write_texts(generate *r, text *texts, int64_t count) {
    int32_t *tokens = malloc(sizeof *tokens * (size_t)(2 * count + 1));
    int64_t *slots = malloc(sizeof *slots * (size_t)count);
    bool good = (tokens && slots) || cli_fail(&r->error, "out of memory");
    for (int64_t i = 0; i < count && good; i++) {
        good = lib(r, r->v->load_state ? HT_OK : ht_generator_reset(r->g, texts[i].slot)) &&
               read_prompt(r, &texts[i]);
        if (r->v->tokens == 0) end_text(&texts[i], "tokens");
        if (good) show(r, &texts[i], texts[i].used);
    }
    for (bool all = false; good && !all;) {
        all = true;
        for (int64_t i = 0; i < count; i++) all = all && texts[i].done;
        if (!all) good = step(r, texts, count, tokens, slots, tokens + count);
    }
    for (int64_t i = 0; i < count && good; i++) good = finish_text(r, &texts[i]);
    free(tokens);
    free(slots);
    return good;
}

/* ---- prompts ---- */

static bool one_prompt(generate *r) {
    text t = {.slot = 0};
    const char *prompt = r->v->prompt ? r->v->prompt : "";
    bool good = add_bytes(r, &t, prompt, strlen(prompt));
    t.prompt = t.used;
    good = good && write_texts(r, &t, 1) &&
           (!r->v->save_state || lib(r, ht_generator_save(r->g, 0, r->v->save_state)));
    if (good && !r->v->json && !cli_quiet()) final_words(r, 0);
    free(t.bytes);
    return good;
}

/* Prompts in groups of --slots. */
static bool many_prompts(generate *r, FILE *f) {
    int64_t most = r->v->slots, count = 0, number = 0;
    text *texts = calloc((size_t)most, sizeof *texts);
    char *line = NULL;
    size_t room = 0;
    bool good = texts || cli_fail(&r->error, "out of memory");
    for (bool more = true; good && more;) {
        size_t n = 0;
        more = save_line(f, r->v->prompts, &line, &room, &n, &good, &r->error);
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (more) {
            text *t = &texts[count];
            *t = (text){.number = number++, .slot = count, .bytes = t->bytes, .room = t->room};
            good = add_bytes(r, t, line, n);
            t->prompt = t->used;
            count++;
        }
        if (good && count > 0 && (!more || count == most)) {
            good = write_texts(r, texts, count);
            if (good && !more && !r->v->json && !cli_quiet()) final_words(r, 0);
            if (more) count = 0;
        }
    }
    if (good && number == 0)
        good = cli_fail(&r->error, "%s has no lines to go on with", r->v->prompts);
    for (int64_t i = 0; i < most && texts; i++) free(texts[i].bytes);
    free(texts);
    free(line);
    return good;
}

static bool all_prompts(generate *r) {
    bool standard = strcmp(r->v->prompts, "-") == 0;
    FILE *f = standard ? stdin : save_open_stream(r->v->prompts, &r->error);
    if (!f) return false;
    bool good = many_prompts(r, f);
    if (!standard) fclose(f);
    return good;
}

/* ---- the command ---- */

/* \n, \t, \\ in --stop. */
static bool read_stop(generate *r) {
    const char *from = r->v->stop;
    if (!from) return true;
    char *to = r->stop = malloc(strlen(from) + 1);
    if (!to) return cli_fail(&r->error, "out of memory");
    for (; *from; from++) {
        bool escaped = *from == '\\' && from[1] && strchr("nt\\", from[1]);
        if (escaped) from++;
        *to++ = !escaped ? *from : *from == 'n' ? '\n' : *from == 't' ? '\t' : '\\';
    }
    *to = '\0';
    return true;
}

static bool prepare(generate *r) {
    const generate_values *v = r->v;
    ht_generator_desc desc = HT_GENERATOR_DESC_INIT;
    r->sampling = (ht_sampling)HT_SAMPLING_INIT;
    r->sampling.temperature = v->temperature;
    r->sampling.top_k = v->top_k;
    r->sampling.top_p = v->top_p;
    r->sampling.min_p = v->min_p;
    r->sampling.repeat_penalty = v->repeat_penalty;
    if (v->top_p <= 0) return cli_fail(&r->error, "--top_p must be above 0, got %g", v->top_p);
    if (!setting_is(r->m.config, "task", "language"))
        return cli_fail(&r->error, "%s is no language model: its task is %s", r->m.path,
                        setting_word(r->m.config, "task"));
    desc.slots = v->prompts ? v->slots : 1;
    desc.config = r->m.config;
    r->stream = !v->prompts && !v->json && !v->discard && !v->logprobs;
    return read_stop(r) && run_set_open(&r->m, v->open, &r->error) &&
           lib(r, ht_generator_create(&r->g, r->m.model, &desc)) &&
           (!v->load_state || lib(r, ht_generator_load(r->g, 0, v->load_state)));
}

static int run(const void *values) {
    generate r = {.v = values};
    const generate_values *v = values;
    int code = CLI_USAGE;
    bool good = false;
    if (v->prompts && (v->prompt || v->save_state || v->load_state))
        cli_fail(&r.error, "--prompts goes without --prompt, --save_state and --load_state");
    else if (run_load(&r.m, v->run, v->last, v->device, v->threads, &code, &r.error))
        good = prepare(&r) && (v->prompts ? all_prompts(&r) : one_prompt(&r));
    if (!good) cli_say("generate", "%s", r.error.text);
    if (good) code = CLI_OK;
    ht_generator_destroy(r.g);
    free(r.stop);
    run_close(&r.m);
    return code;
}

const cli_command cli_generate = {
    .name = "generate",
    .summary = "text from a language model",
    .about = "RUN is a run folder of train, or a checkpoint itself; without it the small model "
             "that comes with the program writes. Text longer than the model was trained on is "
             "fine, unless its positions are learned: the state of a hierarchical model grows by "
             "2 x block rows when the text doubles; where rows open clusters it keeps 2 rows per "
             "token.\n"
             "A loaded state goes on with the bits that would have come without saving it (same "
             "seed, device and threads).\n",
    .options = options,
    .word = "RUN",
    .word_optional = 1,
    .word_offset = offsetof(generate_values, run),
    .values_bytes = sizeof(generate_values),
    .run = run,
};
