/*
 * Drives a fuzz target without libFuzzer: every seed as it is, truncations of it, then
 * deterministic mutations for a fixed number of runs. A check that fails leaves its input in
 * crash-TARGET; what a sanitizer finds comes again at the same run. At least one seed must be
 * taken, or they are of no use any more.
 *
 *     mutate_NAME RUNS DICTIONARY SEED-FOLDER [N]  a dictionary as libFuzzer has it, or -; the
 *                                                  N-th sequence of mutations (0)
 *     mutate_NAME FILE                             this input alone
 */
#include "fuzz.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 1 << 16, SEEDS = 64, WORDS = 256, CUTS = 400 };

static struct {
    uint8_t *bytes; /* [MOST] */
    size_t size;
} seeds[SEEDS], input;
static int seed_count, word_count;
static struct {
    uint8_t bytes[64];
    size_t size;
} words[WORDS];
static const char *crash = "crash-input";

static uint64_t state = 20;
static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static size_t below(size_t n) { return n ? draw() % (uint32_t)n : 0; }

/* keeps the input of a crash */
static void on_crash(int number) {
    static const char text[] = "crash: the input is kept in a file crash-...\n";
    FILE *file = fopen(crash, "wb"); /* the process is lost anyway */
    if (file) {
        fwrite(input.bytes, 1, input.size, file);
        fclose(file);
    }
    if (write(2, text, sizeof text - 1) < 0) number = SIGABRT;
    signal(number, SIG_DFL);
    raise(number);
}

/* The target sees exactly these bytes: beyond them a sanitizer is on guard. */
static void run(void) {
    uint8_t *exact = malloc(input.size ? input.size : 1);
    MUST(exact != NULL);
    memcpy(exact, input.bytes, input.size);
    LLVMFuzzerTestOneInput(exact, input.size);
    free(exact);
}

/* ---- changes ---- */

static void insert(size_t at, const void *bytes, size_t count) {
    if (input.size + count > MOST) return;
    memmove(input.bytes + at + count, input.bytes + at, input.size - at);
    memcpy(input.bytes + at, bytes, count);
    input.size += count;
}

static void erase(size_t at, size_t count) {
    if (count > input.size - at) count = input.size - at;
    memmove(input.bytes + at, input.bytes + at + count, input.size - at - count);
    input.size -= count;
}

/* Bytes of another seed, so that parts of formats meet. */
static void splice(size_t at) {
    int other = (int)below((size_t)seed_count);
    size_t from = below(seeds[other].size), most = seeds[other].size - from;
    insert(at, seeds[other].bytes + from, below(most < 64 ? most + 1 : 64));
}

/* A number of 1 to 8 bytes that is likely to be at some limit. */
static void put_number(size_t at) {
    static const uint64_t numbers[] = {0,          1,          0x7F,       0x80,
                                       0xFF,       0x7FFF,     0xFFFF,     0x7FFFFFFF,
                                       0x80000000, 0xFFFFFFFF, INT64_MAX,  UINT64_MAX,
                                       1ull << 40, 1ull << 53, 1ull << 62, 0x7FF0000000000000};
    uint64_t x = numbers[below(sizeof numbers / sizeof *numbers)];
    size_t count = (size_t)1 << below(4);
    for (size_t i = 0; i < count && at + i < input.size; i++)
        input.bytes[at + i] = (uint8_t)(x >> 8 * i);
}

static void mutate_once(void) {
    size_t at = below(input.size), near = at < 140 ? at : at % 140; /* formats begin with sizes */
    uint8_t byte = (uint8_t)draw();
    int word = (int)below((size_t)word_count);
    if (draw() % 2) at = near;
    switch (draw() % 10) {
    case 0:
        if (input.size) input.bytes[at] ^= (uint8_t)(1 << draw() % 8);
        break;
    case 1:
        if (input.size) input.bytes[at] = byte;
        break;
    case 2: insert(at, &byte, 1); break;
    case 3: erase(at, 1 + draw() % 16); break;
    case 4: /* a word over what is there, or between */
        if (draw() % 2) erase(at, words[word].size);
        insert(at, words[word].bytes, words[word].size);
        break;
    case 5: put_number(at); break;
    case 6: input.size = at; break;
    case 7: splice(at); break;
    case 8: /* the same once more */
        insert(at, input.bytes + at, input.size - at < 32 ? input.size - at : 32);
        break;
    default: /* one more or less, as lengths are wrong */
        if (input.size) input.bytes[near] = (uint8_t)(input.bytes[near] + draw() % 33 - 16);
    }
}

/* ---- seeds and words ---- */

static int load(const char *path) {
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(MOST);
    if (!file || !bytes || seed_count == SEEDS) return 0;
    seeds[seed_count].bytes = bytes;
    seeds[seed_count].size = fread(bytes, 1, MOST, file);
    seed_count++;
    return fclose(file) == 0;
}

static int not_hidden(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int load_folder(const char *folder) {
    struct dirent **list;
    int count = scandir(folder, &list, not_hidden, alphasort), good = count > 0;
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        good = good && load(path);
        free(list[i]);
    }
    if (count >= 0) free(list);
    return good;
}

/* "..." with \\, \" and \xNN. */
static void add_word(const char *at) {
    while (*at && *at != '"' && word_count < WORDS) {
        char hex[3] = {0};
        size_t *size = &words[word_count].size;
        if (*size == sizeof words->bytes) break;
        if (at[0] == '\\' && at[1] == 'x' && at[2] && at[3]) {
            memcpy(hex, at + 2, 2);
            words[word_count].bytes[(*size)++] = (uint8_t)strtoul(hex, NULL, 16);
            at += 4;
            continue;
        }
        at += at[0] == '\\' && at[1];
        words[word_count].bytes[(*size)++] = (uint8_t)*at++;
    }
    word_count += word_count < WORDS;
}

static int load_words(const char *path) {
    char line[512];
    FILE *file = strcmp(path, "-") == 0 ? NULL : fopen(path, "r");
    if (!file) return strcmp(path, "-") == 0;
    while (fgets(line, sizeof line, file))
        if (line[0] != '#' && strchr(line, '"')) add_word(strchr(line, '"') + 1);
    return fclose(file) == 0;
}

/* ---- all of it ---- */

static void run_seeds(void) {
    for (int i = 0; i < seed_count; i++) {
        size_t step = seeds[i].size / CUTS + 1;
        for (size_t n = 0; n <= seeds[i].size; n += step) {
            memcpy(input.bytes, seeds[i].bytes, n);
            input.size = n;
            run();
        }
        memcpy(input.bytes, seeds[i].bytes, input.size = seeds[i].size);
        long before = fuzz_count_taken();
        run();
        MUST(i > 0 || fuzz_count_taken() > before); /* the first by name is a good one */
    }
}

int main(int argc, char **argv) {
    long runs = argc > 3 ? strtol(argv[1], NULL, 10) : 0;
    const char *slash = strrchr(argv[0], '/');
    char name[128];
    snprintf(name, sizeof name, "crash-%s", slash ? slash + 1 : argv[0]);
    crash = name;
    input.bytes = malloc(MOST);
    signal(SIGABRT, on_crash);
    if (argc == 2 && load(argv[1])) {
        memcpy(input.bytes, seeds[0].bytes, input.size = seeds[0].size);
        run();
        return printf("%s\n", fuzz_count_taken() ? "taken" : ht_context_error(fuzz_context())) < 0;
    }
    if (argc == 5) state ^= strtoull(argv[4], NULL, 10) * 0x9E3779B97F4A7C15u;
    if (argc < 4 || argc > 5 || !load_words(argv[2]) || !load_folder(argv[3]))
        return fprintf(stderr, "usage: RUNS DICTIONARY SEED-FOLDER [N], or FILE\n"), 1;
    run_seeds();
    for (long i = 0; i < runs; i++) {
        int seed = (int)below((size_t)seed_count);
        memcpy(input.bytes, seeds[seed].bytes, input.size = seeds[seed].size);
        for (uint32_t n = 1 + draw() % 4; n > 0; n--) mutate_once();
        run();
    }
    printf("%ld mutations of %d seeds, %ld inputs taken\n", runs, seed_count, fuzz_count_taken());
    return 0;
}
