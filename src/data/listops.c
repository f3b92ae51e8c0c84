/*
 * ListOps: nested lists of digits with operators MIN, MAX, MED (median) and SM (sum modulo 10),
 * made at random as the Long Range Arena makes them. Ids: digits 1 ... 10, [MIN 11, [MAX 12, [MED
 * 13, [SM 14, ] 15.
 *
 * All parts come from one stream of distinct expressions: first the valid part, then the test part,
 * then train.
 */
#include <string.h>

#include "core/philox.h"
#include "data/data.h"

enum { DIGIT = 1, OPERATOR = 11, END = 15 };
static const char *const operators[] = {"[MIN", "[MAX", "[MED", "[SM"};

/* ---- random numbers: a counter, so that the stream depends on the seed alone ---- */

typedef struct dice {
    uint64_t seed, count;
    hti_philox words;
} dice;

static uint32_t roll(dice *d) {
    int at = (int)(d->count % 4);
    if (at == 0)
        d->words = hti_philox_draw(d->seed, (uint32_t)(d->count / 4),
                                   (uint32_t)(d->count / 4 >> 32), 0x115, 0);
    d->count++;
    return d->words.w[at];
}

static int roll_below(dice *d, int n) { return (int)((uint64_t)roll(d) * (uint64_t)n >> 32); }

/* ---- expressions ---- */

static int apply(int operator, int * values, int n) {
    int sum = 0;
    for (int i = 1; i < n; i++) /* in order: at most a hundred */
        for (int k = i; k > 0 && values[k - 1] > values[k]; k--) {
            int swap = values[k];
            values[k] = values[k - 1], values[k - 1] = swap;
        }
    for (int i = 0; i < n; i++) sum += values[i];
    switch (operator) {
    case 0: return values[0];
    case 1: return values[n - 1];
    case 2: return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    default: return sum % 10;
    }
}

typedef struct maker {
    dice dice;
    const ht_config *c;
    uint16_t *ids; /* [room] */
    int64_t room, count;
} maker;

static void put(maker *m, int id) {
    if (m->count < m->room) m->ids[m->count] = (uint16_t)id;
    m->count++;
}

/* An expression at this depth (root: 1); returns its value. One that has outgrown the room is of no
 * use and is finished quickly. The operator is drawn after its arguments. */
static int make(maker *m, int64_t depth) {
    int is_operator =
        depth < m->c->listops_depth && roll(&m->dice) <= 0x40000000u && m->count < m->room;
    if (!is_operator) {
        int digit = roll_below(&m->dice, 10);
        put(m, DIGIT + digit);
        return digit;
    }
    int n = 2 + roll_below(&m->dice, (int)m->c->listops_arguments - 1), values[128];
    int64_t at = m->count;
    put(m, OPERATOR);
    for (int i = 0; i < n; i++) values[i] = make(m, depth + 1);
    int operator= roll_below(&m->dice, 4);
    if (at < m->room) m->ids[at] = (uint16_t)(OPERATOR + operator);
    put(m, END);
    return apply(operator, values, n);
}

/* ---- distinct ones: a set of 64-bit hashes; two different expressions share one about never ----
 */

typedef struct set {
    uint64_t *slots; /* 0: empty */
    uint64_t mask;
} set;

static int set_add(set *s, const uint16_t *ids, int64_t count) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (int64_t i = 0; i < count; i++) hash = (hash ^ ids[i]) * 0x100000001B3u;
    hash ^= hash >> 29;
    if (hash == 0) hash = 1;
    uint64_t at = hash & s->mask;
    while (s->slots[at] && s->slots[at] != hash) at = (at + 1) & s->mask;
    if (s->slots[at]) return 0;
    s->slots[at] = hash;
    return 1;
}

static ht_status make_all(ht_data *d, const ht_data_desc *desc, maker *m, set *seen) {
    const ht_config *c = &d->config;
    int64_t first = desc->part == HT_PART_VALID  ? 0
                    : desc->part == HT_PART_TEST ? c->valid_items
                                                 : 2 * c->valid_items;
    int64_t last = first + (desc->part == HT_PART_TRAIN ? c->train_items : c->valid_items),
            vain = 0;
    for (int64_t found = 0; found < last;) {
        m->count = 0;
        int value = make(m, 1);
        int fits = m->count > c->listops_min && m->count < c->listops_max;
        if (!fits || !set_add(seen, m->ids, m->count)) {
            CHECK(d->ctx, ++vain < 20000000, HT_INVALID,
                  "only %lld different expressions of %lld to %lld tokens were found, %lld are "
                  "wanted",
                  (long long)found, (long long)c->listops_min + 1, (long long)c->listops_max - 1,
                  (long long)last);
            continue;
        }
        vain = 0;
        if (found++ < first) continue;
        TRY(hti_data_add_ids(d, m->ids, m->count));
        TRY(hti_data_add_label(d, value));
    }
    return HT_OK;
}

ht_status hti_listops_make(ht_data *d, const ht_data_desc *desc) {
    const ht_config *c = &d->config;
    maker m = {.dice = {.seed = (uint64_t)c->data_seed + 0x11570u}, .c = c, .room = c->listops_max};
    uint64_t slots = 1024;
    while (slots < 2 * (uint64_t)(c->train_items + 2 * c->valid_items)) slots *= 2;
    set seen = {hti_host_alloc(d->ctx, slots * sizeof *seen.slots), slots - 1};
    m.ids = hti_host_alloc(d->ctx, sizeof *m.ids * (size_t)m.room);
    ht_status status = hti_fail(d->ctx, HT_NOMEM, "out of memory: making expressions");
    if (seen.slots && m.ids) {
        memset(seen.slots, 0, slots * sizeof *seen.slots);
        status = make_all(d, desc, &m, &seen);
    }
    hti_host_free(d->ctx, seen.slots);
    hti_host_free(d->ctx, m.ids);
    return status;
}

/* ---- expressions as text ---- */

static int id_of(const char *word, size_t bytes) {
    if (bytes == 1 && word[0] >= '0' && word[0] <= '9') return DIGIT + word[0] - '0';
    if (bytes == 1 && (word[0] == ']' || word[0] == 'X')) return END;
    for (int i = 0; i < 4; i++)
        if (bytes == strlen(operators[i]) && memcmp(word, operators[i], bytes) == 0)
            return OPERATOR + i;
    return -1;
}

ht_status hti_listops_encode(ht_context *ctx, const char *text, size_t bytes, uint16_t *ids,
                             int64_t room, int64_t *count) {
    static const char blank[] = " \t\r\n()";
    *count = 0;
    for (size_t at = 0; at < bytes;) {
        size_t from = at;
        if (memchr(blank, text[at], sizeof blank)) {
            at++;
            continue;
        }
        if (text[at] == ']')
            at++; /* "9]" is two words */
        else
            while (at < bytes && text[at] != ']' && !memchr(blank, text[at], sizeof blank)) at++;
        int id = id_of(text + from, at - from);
        CHECK(ctx, id >= 0, HT_FORMAT,
              "'%.*s' is no part of a ListOps expression: digits 0 to 9, [MIN [MAX [MED [SM and ]",
              at - from < 40 ? (int)(at - from) : 40, text + from);
        if (*count < room) ids[*count] = (uint16_t)id;
        ++*count;
    }
    return HT_OK;
}
