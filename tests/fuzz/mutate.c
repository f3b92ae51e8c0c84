/*
 * Drives a fuzz target without libFuzzer: every seed as it is, every truncation of it, then
 * deterministic mutations for a fixed number of runs. A check that fails leaves its input in
 * crash.bin; what a sanitizer finds comes again at the same run.
 *
 *     fuzz_npy_mutate RUNS SEED-FILE...
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST 8192 /* bytes of an input */

static struct {
    uint8_t bytes[MOST];
    size_t size;
} seeds[64], input;
static int seed_count;

static uint32_t draw(void) {
    static uint64_t state = 20;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* keeps the input of a crash */
static void on_crash(int number) {
    static const char text[] = "crash: the input is kept in crash.bin\n";
    FILE *file = fopen("crash.bin", "wb"); /* the process is lost anyway */
    if (file) {
        fwrite(input.bytes, 1, input.size, file);
        fclose(file);
    }
    if (write(2, text, sizeof text - 1) < 0) number = SIGABRT;
    signal(number, SIG_DFL);
    raise(number);
}

/* Words that mean something to the reader reach further than random bytes. */
static const char *const words[] = {
    "'descr'",
    "'fortran_order'",
    "'shape'",
    "'<f4'",
    "'<f8'",
    "'>f4'",
    "'|b1'",
    "True",
    "False",
    "(",
    ")",
    "(,)",
    "1, 1, 1, 1, 1, 1, ",
    "{",
    "}",
    ":",
    ",",
    "-1",
    "0",
    "L",
    "9223372036854775807",
    "4611686018427387904",
    "'",
    "\"",
    "\\",
    "[('a', '<f4')]",
    "\x93NUMPY",
};

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

static void mutate_once(void) {
    size_t at = input.size ? draw() % input.size : 0, header = at < 140 ? at : at % 140;
    const char *word = words[draw() % (sizeof words / sizeof words[0])];
    uint8_t byte = (uint8_t)draw();
    switch (draw() % 8) {
    case 0:
        if (input.size) input.bytes[at] ^= (uint8_t)(1 << draw() % 8);
        break;
    case 1:
        if (input.size) input.bytes[header] = byte;
        break;
    case 2: insert(at, &byte, 1); break;
    case 3: erase(at, 1 + draw() % 16); break;
    case 4: insert(header, word, strlen(word)); break;
    case 5: /* a word over what is there */
        erase(header, strlen(word));
        insert(header, word, strlen(word));
        break;
    case 6: input.size = at; break;
    default: /* the length of the header, which most other changes make wrong */
        if (input.size > 10) input.bytes[8] = (uint8_t)(input.bytes[8] + draw() % 33 - 16);
    }
}

static int load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || seed_count == 64) return 0;
    seeds[seed_count].size = fread(seeds[seed_count].bytes, 1, MOST, file);
    seed_count++;
    fclose(file);
    return 1;
}

int main(int argc, char **argv) {
    long runs = argc > 2 ? strtol(argv[1], NULL, 10) : 0;
    for (int i = 2; i < argc; i++)
        if (!load(argv[i])) return fprintf(stderr, "cannot read %s\n", argv[i]), 1;
    if (runs < 1 || seed_count == 0) return fprintf(stderr, "usage: RUNS SEED-FILE...\n"), 1;
    signal(SIGABRT, on_crash);
    for (int i = 0; i < seed_count; i++)
        for (size_t n = 0; n <= seeds[i].size; n++) {
            input = seeds[i];
            input.size = n;
            LLVMFuzzerTestOneInput(input.bytes, input.size);
        }
    for (long run = 0; run < runs; run++) {
        input = seeds[draw() % (uint32_t)seed_count];
        for (uint32_t n = 1 + draw() % 4; n > 0; n--) mutate_once();
        LLVMFuzzerTestOneInput(input.bytes, input.size);
    }
    printf("%ld mutations of %d seeds\n", runs, seed_count);
    return 0;
}
