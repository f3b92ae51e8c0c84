/*
 * tokenizer.json: what is read of it, what is refused by name. tokens.py compares tokens with those
 * of Hugging Face's library.
 */
#include "training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ht_context *cpu;
static char path[160];

static int open_all(void **state) {
    (void)state;
    if (ht_context_create(&cpu, NULL) != HT_OK || training_folder_open() != 0) return 1;
    snprintf(path, sizeof path, "%s/tokenizer.json", training_folder);
    return 0;
}

/* A letter per byte, as GPT-2 writes it. */
static size_t letter(char *out, int byte) {
    static int next[256];
    if (!next[0])
        for (int b = 0, n = 256; b < 256; b++)
            next[b] = (b >= 33 && b <= 126) || (b >= 161 && b != 173) ? b : n++;
    int c = next[byte];
    if (c == '"' || c == '\\') return (size_t)sprintf(out, "\\%c", c);
    if (c < 128) return (size_t)sprintf(out, "%c", c);
    return (size_t)sprintf(out, "%c%c", 0xC0 | c >> 6, 0x80 | (c & 63));
}

#define SPACE "\xC4\xA0" /* the letter of a space: U+0120 */

/* 256 letters, then words 256, 257, ...; the rest of the file as given. */
static void write_bytes(const char *words, const char *merges, const char *rest) {
    static char text[1 << 14];
    char *at = text + sprintf(text, "{%s,\"model\":{\"type\":\"BPE\",\"vocab\":{", rest);
    for (int b = 0; b < 256; b++) {
        *at++ = '"';
        at += letter(at, b);
        at += sprintf(at, "\":%d,", b);
    }
    at += sprintf(at, "%s},\"merges\":[%s]}}", words, merges);
    training_write(path, text, (size_t)(at - text));
}

#define WORDS \
    "\"th\":256,\"the\":257,\"" SPACE "the\":258,\"he\":259,\"" SPACE "t\":260,\"<end>\":261"
#define MERGES "\"t h\",[\"th\",\"e\"],\"" SPACE " the\",\"h e\",\"" SPACE " t\""
#define BYTE_LEVEL "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define ADDED "\"added_tokens\":[{\"id\":261,\"content\":\"<end>\",\"special\":true}]"

/* Tokens of a text, as numbers of the file; the text comes back from them. */
static void expect(const char *text, size_t bytes, const char *want) {
    ht_tokenizer *t;
    char got[4096] = "", back[1024];
    int32_t ids[1024];
    int64_t n;
    size_t used = 0;
    OK(cpu, ht_tokenizer_open(&t, cpu, path));
    OK(cpu, ht_tokenizer_encode(t, text, bytes, ids, 1024, &n));
    for (int64_t i = 0; i < n; i++) {
        size_t count;
        const char *piece = ht_tokenizer_piece(t, ids[i], &count);
        memcpy(back + used, piece, count);
        used += count;
        sprintf(got + strlen(got), "%s%d", i ? " " : "", ids[i] - 1);
    }
    assert_string_equal(got, want);
    assert_int_equal(used, bytes);
    assert_memory_equal(back, text, bytes);
    ht_tokenizer_close(t);
}

static int close_all(void **state) {
    (void)state;
    ht_context_destroy(cpu);
    return training_folder_close();
}

/* 0 if this build reads none. */
static int reads(void) {
    ht_tokenizer *t = NULL;
    write_bytes(WORDS, MERGES, BYTE_LEVEL "," ADDED);
    ht_status status = ht_tokenizer_open(&t, cpu, path);
    if (status != HT_OK)
        REFUSED(cpu, ht_tokenizer_open(&t, cpu, path), HT_UNSUPPORTED, "this build has no PCRE2");
    ht_tokenizer_close(t);
    return status == HT_OK;
}

static void byte_level(void **state) {
    (void)state;
    if (!reads()) return;
    ht_tokenizer *t;
    size_t bytes;
    OK(cpu, ht_tokenizer_open(&t, cpu, path));
    assert_int_equal(ht_tokenizer_vocab(t), 263);
    assert_non_null(ht_tokenizer_piece(t, 262, &bytes));
    assert_int_equal(bytes, 0); /* special: it stands for no text */
    ht_tokenizer_close(t);
    expect("the the", 7, "257 258");
    expect("xthe he", 7, "120 257 32 259");
    expect(" t\xC3\xA9\n\nthe", 9, "260 195 169 10 10 257");
    expect("the\xFFthe\0the", 11, "257 255 257 0 257"); /* no UTF-8, and NUL */
    expect("<end>", 5, "60 101 110 100 62");            /* never found in a text */
    expect("", 0, "");
    /* words of one split see nothing of each other */
    write_bytes(WORDS, MERGES,
                "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                "\"pattern\":{\"String\":\"h\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
                "\"use_regex\":false}]}");
    expect("the t", 5, "116 104 101 260");
}

/* Many parts side by side have the tokens of the whole. */
static void parts(void **state) {
    enum { ROUNDS = 40000 };
    static const char piece[] = "the cat he";
    (void)state;
    if (!reads()) return;
    size_t bytes = ROUNDS * (sizeof piece - 1);
    char *text = malloc(bytes);
    int32_t *ids = malloc(bytes * sizeof *ids);
    for (size_t i = 0; i < bytes; i++) text[i] = piece[i % (sizeof piece - 1)];
    ht_tokenizer *t;
    int64_t n, m;
    OK(cpu, ht_tokenizer_open(&t, cpu, path));
    OK(cpu, ht_tokenizer_encode(t, text, bytes, ids, (int64_t)bytes, &n));
    OK(cpu, ht_tokenizer_encode(t, text, bytes, NULL, 0, &m)); /* in one part */
    assert_int_equal(n, m);
    assert_int_equal(n, 7 * ROUNDS); /* the, space, c, a, t, space, he */
    ht_tokenizer_close(t);
    free(text);
    free(ids);
}

/* U+2581 for a space, bytes for what has no piece. */
static void marks(void **state) {
    static char text[1 << 14];
    (void)state;
    char *at =
        text + sprintf(text, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
                             "\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},{\"type\":\"Replace\","
                             "\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]},"
                             "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{");
    for (int b = 0; b < 256; b++) at += sprintf(at, "\"<0x%02X>\":%d,", b, b);
    at += sprintf(at, "\"\xE2\x96\x81\":256,\"a\":257,\"b\":258,\"\xE2\x96\x81"
                      "a\":259,\"ab\":260},"
                      "\"merges\":[\"\xE2\x96\x81 a\",\"a b\"]}}");
    training_write(path, text, (size_t)(at - text));
    expect("ab a b", 6, "260 259 256 258");
    expect("c\xE2\x96\x81"
           "a",
           5, "99 226 150 129 257"); /* the mark itself comes back, too */
}

static void refuse(const char *rest, ht_status status, const char *words) {
    ht_tokenizer *t;
    write_bytes(WORDS, MERGES, rest);
    REFUSED(cpu, ht_tokenizer_open(&t, cpu, path), status, words);
    assert_null(t);
}

static void faults(void **state) {
    ht_tokenizer *t;
    (void)state;
    refuse("\"a\":1", HT_UNSUPPORTED, "neither byte-level");
    refuse("\"normalizer\":{\"type\":\"Lowercase\"}", HT_UNSUPPORTED,
           "normalizer 'Lowercase' would change the text");
    refuse("\"pre_tokenizer\":{\"type\":\"Whitespace\"}", HT_UNSUPPORTED,
           "pre_tokenizer 'Whitespace'");
    refuse("\"model\":{\"type\":\"Unigram\"}", HT_UNSUPPORTED,
           "has a model of type 'Unigram', but BPE");
    if (!reads()) return;
    refuse("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":"
           "\"Isolated\"}",
           HT_FORMAT, "regular expression '(a' cannot be read");
    refuse("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":"
           "\"Removed\"}",
           HT_UNSUPPORTED, "Split with behavior 'Removed'");
    refuse(BYTE_LEVEL ",\"added_tokens\":[{\"id\":128000,\"content\":\"x\"}]", HT_UNSUPPORTED,
           "has token 128000; at most 65534");
    write_bytes(WORDS, "\"t q\"", BYTE_LEVEL);
    REFUSED(cpu, ht_tokenizer_open(&t, cpu, path), HT_FORMAT, "merge 0, 't q', is of words");
    write_bytes(WORDS, "7", BYTE_LEVEL);
    REFUSED(cpu, ht_tokenizer_open(&t, cpu, path), HT_FORMAT, "merge 0 is no pair");
    training_write(path, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}," BYTE_LEVEL "}",
                   strlen("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}," BYTE_LEVEL "}"));
    REFUSED(cpu, ht_tokenizer_open(&t, cpu, path), HT_INVALID, "has no token for byte 0");
    training_write(path, "{\"model\":", 9);
    REFUSED(cpu, ht_tokenizer_open(&t, cpu, path), HT_FORMAT, "is not JSON");
}

/* An expression that tries for ever is given up, which is no lack of memory. */
static void endless(void **state) {
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
    int32_t ids[sizeof text];
    int64_t n;
    ht_tokenizer *t;
    (void)state;
    if (!reads()) return;
    write_bytes(WORDS, MERGES,
                "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                "\"pattern\":{\"Regex\":\"(a|aa)+$\"},\"behavior\":\"Isolated\"},{\"type\":"
                "\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}");
    OK(cpu, ht_tokenizer_open(&t, cpu, path));
    REFUSED(cpu, ht_tokenizer_encode(t, text, sizeof text - 1, ids, sizeof text, &n),
            HT_UNSUPPORTED,
            "could not be made tokens: the tokenizer's regular expression gives up");
    ht_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level), cmocka_unit_test(parts),   cmocka_unit_test(marks),
        cmocka_unit_test(faults),     cmocka_unit_test(endless),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
