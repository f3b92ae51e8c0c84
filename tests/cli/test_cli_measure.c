/*
 * What eval makes of losses, on cases small enough for the hand.
 */
#include "eval/distance.h"
#include "eval/measure.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static ht_context *cpu;
static ht_tokenizer *bytes;

static int open_all(void **state) {
    (void)state;
    return ht_context_create(&cpu, NULL) != HT_OK || ht_tokenizer_open(&bytes, cpu, NULL) != HT_OK;
}

static int close_all(void **state) {
    (void)state;
    ht_tokenizer_close(bytes);
    ht_context_destroy(cpu);
    return 0;
}

/* Sequences '|' and text, each to be predicted up to the next one; '|' is token 0. */
static void add(measure *m, const char *text, const float *losses) {
    int32_t tokens[64], targets[64], starts[16] = {0};
    ht_batch b = HT_BATCH_INIT;
    int n = (int)strlen(text) - 1;
    for (int i = 0; i < n; i++) {
        tokens[i] = text[i] == '|' ? 0 : text[i] + 1;
        targets[i] = text[i + 1] == '|' ? 0 : text[i + 1] + 1;
        if (i > 0 && text[i] == '|') starts[++b.sequences] = i;
    }
    starts[++b.sequences] = n;
    b.tokens = tokens;
    b.cu_seqlens = starts;
    b.targets = targets;
    measure_add(m, &b, losses);
}

static void near(double got, double want) { assert_true(fabs(got - want) < 1e-6); }

/* "ab c" and its end: 4 bytes, 2 words, 5 tokens, losses 1 ... 5. */
static void by_hand(void **state) {
    static const float losses[] = {1, 2, 3, 4, 5};
    measure m = {.tokenizer = bytes, .documents = "articles"};
    (void)state;
    add(&m, "|ab c|", losses);
    near(measure_loss(&m, &m.tokens), 3);
    near(measure_loss(&m, &m.bytes), 15.0 / 4);
    near(measure_loss(&m, &m.words), 15.0 / 2);
    assert_true(isnan(measure_error(&m, &m.tokens))); /* one sequence has no spread */
    /* positions 0; 1; 2, 3; 4 */
    near(m.place_loss[0], 1), near(m.place_loss[1], 2);
    near(m.place_loss[2], 7), near(m.place_loss[3], 5);
    near(m.place_count[2], 2);
    /* of lines the end is a word; of WikiText the end of a line is */
    measure lines = {.tokenizer = bytes, .documents = "lines"};
    add(&lines, "|ab c|", losses);
    near(measure_loss(&lines, &lines.words), 15.0 / 3);
    measure wiki = {.tokenizer = bytes, .documents = "wikitext"};
    add(&wiki, "| a \n|", losses);
    near(measure_loss(&wiki, &wiki.words), 15.0 / 2);
}

/* Two sequences of 2 and 4 tokens, losses 1 and 3 per token: R = 14 / 6, deviations
 * 2 - 14/3 and 12 - 28/3, so the error is sqrt(2 * 2 * (8/3)^2) / 6. */
static void errors(void **state) {
    static const float losses[] = {1, 1, 3, 3, 3, 3};
    measure m = {.tokenizer = bytes, .documents = "articles"};
    (void)state;
    add(&m, "|a|bcd|", losses);
    near(m.sequences, 2);
    near(measure_loss(&m, &m.tokens), 14.0 / 6);
    near(measure_error(&m, &m.tokens), 2 * (8.0 / 3) / 6);
}

/* A word that a window cuts is counted once, where it begins. */
static void cut_words(void **state) {
    static const float losses[] = {1, 1, 1, 1, 1};
    measure m = {.tokenizer = bytes, .documents = "file"};
    (void)state;
    add(&m, "|wo", losses);
    add(&m, "ord x", losses);
    near(m.words.amount, 2);
    near(m.bytes.amount, 6);
}

/* A perplexity per word is told of words alone. */
static void no_words(void **state) {
    static const float losses[63] = {1};
    measure words = {.tokenizer = bytes, .documents = "file"}, bases = words, none = words,
            fasta = {.tokenizer = bytes, .documents = "fasta"};
    (void)state;
    add(&words, "|a plain text", losses);
    assert_true(measure_has_words(&words));
    add(&bases, "|acgtacgtacgtacgtacgtacgtac acgtacgtacgtacgtacgtacgt", losses);
    assert_false(measure_has_words(&bases));
    add(&none, "|   ", losses);
    assert_false(measure_has_words(&none));
    add(&fasta, "|ac gt", losses);
    assert_false(measure_has_words(&fasta));
}

/* Two items: 3 of 4 right, 0 of 2; answers 1, 3, 3 and nobody knows how many tokens back. */
static void by_distance(void **state) {
    static const int32_t tokens[7] = {0}, starts[] = {0, 5, 7};
    static const int32_t targets[] = {4, -1, 5, 6, 7, 8, 9}, back[] = {1, 0, 3, 3, 0, 2, 2};
    static const float losses[] = {1, 9, 2, 3, 4, 5, 6};
    static const unsigned char right[] = {1, 0, 1, 0, 1, 0, 0};
    ht_batch b = HT_BATCH_INIT;
    distance d = {0};
    (void)state;
    b.sequences = 2, b.tokens = tokens, b.cu_seqlens = starts, b.targets = targets, b.back = back;
    distance_add(&d, &b, losses, right);
    near(distance_accuracy(&d.all), 0.5);
    near(d.all.loss, 21);
    /* deviations 3 - 2 and 0 - 1: sqrt(2 * (1 + 1)) / 6 */
    near(distance_error(&d.all), 2.0 / 6);
    near(distance_accuracy(&d.by[0]), 1), near(distance_accuracy(&d.by[1]), 1);
    near(distance_accuracy(&d.by[2]), 0.25), near(d.by[2].loss, 16);
    near(d.by[2].items, 2);
    /* 1 - 2/4 and 0 - 2/4 */
    near(distance_error(&d.by[2]), sqrt(2 * 0.5) / 4);
    assert_true(isnan(distance_error(&d.by[1]))); /* one item has no spread */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),  cmocka_unit_test(errors),      cmocka_unit_test(cut_words),
        cmocka_unit_test(no_words), cmocka_unit_test(by_distance),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
