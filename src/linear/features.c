/*
 * Grams of a text. Letters A to Z are made small, blanks are one space. A word is a run of letters,
 * digits and bytes above 127; ! and ? are words, too. Numbers are hashes: two grams that share one
 * are taken for the same.
 */
#include <math.h>
#include <string.h>

#include "common/hash.h"
#include "linear/linear.h"

enum { RUN = 5 }; /* bytes */

/* A letter, digit or byte above 127; ! and ? stand alone. */
static int in_word(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c >= 128;
}

static unsigned char plain(unsigned char c) {
    if (c >= 'A' && c <= 'Z') return (unsigned char)(c + 'a' - 'A');
    return c <= ' ' ? ' ' : c;
}

static size_t make_plain(unsigned char *out, const char *text, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = plain((unsigned char)text[i]);
        if (c != ' ' || (n > 0 && out[n - 1] != ' ')) out[n++] = c;
    }
    return n;
}

/* table [mask + 1], -1 where it is empty: where in the list a gram is. */
static void add(hti_grams *g, int64_t mask, uint64_t hash, int half) {
    int32_t *table = (int32_t *)(void *)g->table.data;
    hti_gram *list = hti_grams_list(g);
    uint64_t h = hti_sum_end(hash);
    int32_t id = (int32_t)(h >> (64 - HTI_GRAM_BITS)) | half << HTI_GRAM_BITS;
    int64_t slot = (int64_t)(h & (uint64_t)mask);
    for (; table[slot] >= 0; slot = (slot + 1) & mask)
        if (list[table[slot]].id == id) {
            list[table[slot]].value++;
            return;
        }
    table[slot] = (int32_t)g->count;
    list[g->count++] = (hti_gram){.id = id, .value = 1};
}

static void add_words(hti_grams *g, int64_t mask, const unsigned char *text, size_t n) {
    uint64_t before = 0, start = hti_sum_begin(0);
    for (size_t i = 0; i < n;) {
        size_t from = i;
        while (i < n && in_word(text[i])) i++;
        if (i == from && text[i++] != '!' && text[from] != '?') continue;
        uint64_t word = hti_sum_add(start, text + from, i - from);
        add(g, mask, word, 0);
        if (before) add(g, mask, hti_sum_add(before, text + from, i - from), 0);
        before = hti_sum_add(word, " ", 1);
    }
}

static void add_runs(hti_grams *g, int64_t mask, const unsigned char *text, size_t n) {
    uint64_t start = hti_sum_begin(1);
    for (size_t i = 0; i + RUN <= n; i++) add(g, mask, hti_sum_add(start, text + i, RUN), 1);
}

/* From counts to what they count: 1 + log, each half of length 1. */
static void scale(hti_gram *list, int64_t count) {
    double square[2] = {0};
    for (int64_t i = 0; i < count; i++) {
        list[i].value = (float)(1 + log(list[i].value));
        square[list[i].id >> HTI_GRAM_BITS] += (double)list[i].value * list[i].value;
    }
    for (int64_t i = 0; i < count; i++)
        list[i].value /= (float)sqrt(square[list[i].id >> HTI_GRAM_BITS]);
}

/* A byte ends at most one word, one pair and one run. */
enum { GRAMS_OF_A_BYTE = 3 };

/* Slots of the table, more than there are grams. */
static int64_t slots_for(size_t bytes) {
    int64_t room = 64;
    while (room < (GRAMS_OF_A_BYTE + 1) * (int64_t)bytes) room *= 2;
    return room;
}

ht_status hti_grams_need(hti_grams *g, size_t bytes) {
    CHECK(g->ctx, bytes < INT32_MAX / 8, HT_UNSUPPORTED,
          "a text of %zu bytes is too long for a linear model", bytes);
    g->text.ctx = g->list.ctx = g->table.ctx = g->ctx;
    TRY(hti_buffer_need(&g->text, bytes + 1));
    TRY(hti_buffer_need(&g->list, sizeof(hti_gram) * (GRAMS_OF_A_BYTE * bytes + 1)));
    return hti_buffer_need(&g->table, sizeof(int32_t) * (size_t)slots_for(bytes));
}

/* What has a number alone. */
static int64_t keep_known(hti_gram *list, int64_t count, const int32_t *number) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (number[list[i].id] >= 0) list[kept++] = list[i];
    return kept;
}

void hti_grams_of(hti_grams *g, const int32_t *known, const char *text, size_t bytes) {
    int64_t slots = slots_for(bytes);
    const unsigned char *plain_text = (const unsigned char *)g->text.data;
    size_t n = make_plain((unsigned char *)g->text.data, text, bytes);
    memset(g->table.data, 0xFF, sizeof(int32_t) * (size_t)slots);
    g->count = 0;
    add_words(g, slots - 1, plain_text, n);
    add_runs(g, slots - 1, plain_text, n);
    if (known) g->count = keep_known(hti_grams_list(g), g->count, known);
    scale(hti_grams_list(g), g->count);
}

void hti_grams_free(hti_grams *g) {
    hti_buffer_free(&g->text);
    hti_buffer_free(&g->list);
    hti_buffer_free(&g->table);
}
