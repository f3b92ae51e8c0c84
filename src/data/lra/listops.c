/*
 * ListOps: nested lists of digits with operators MIN, MAX, MED (median) and SM (sum modulo 10),
 * made at random as the Long Range Arena makes them. Ids: digits 1 ... 10, [MIN 11, [MAX 12, [MED
 * 13, [SM 14, ] 15.
 *
 * All parts come from one stream of distinct expressions: first the valid part, then the test part,
 * then train.
 */
#include <string.h>

#include "data/lra/dice.h"
#include "data/lra/set.h"

enum { DIGIT = 1, OPERATOR = 11, END = 15, ARGUMENTS = 128 };
static const char *const operators[] = {"[MIN", "[MAX", "[MED", "[SM"};

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
    hti_dice dice;
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
        depth < m->c->listops_depth && hti_roll(&m->dice) <= 0x40000000u && m->count < m->room;
    if (!is_operator) {
        int digit = hti_roll_below(&m->dice, 10);
        put(m, DIGIT + digit);
        return digit;
    }
    int n = 2 + hti_roll_below(&m->dice, (int)m->c->listops_arguments - 1), values[ARGUMENTS];
    int64_t at = m->count;
    put(m, OPERATOR);
    for (int i = 0; i < n; i++) values[i] = make(m, depth + 1);
    int operator= hti_roll_below(&m->dice, 4);
    if (at < m->room) m->ids[at] = (uint16_t)(OPERATOR + operator);
    put(m, END);
    return apply(operator, values, n);
}

/* ---- distinct ones: a set of 64-bit hashes; two different expressions share one about never ----
 */

/* Where the hash is, or would be. */
static uint64_t *slot_of(uint64_t *slots, uint64_t size, uint64_t hash) {
    uint64_t at = hash & (size - 1);
    while (slots[at] && slots[at] != hash) at = (at + 1) & (size - 1);
    return &slots[at];
}

static ht_status make_room(hti_seen *s) {
    if (2 * (s->filled + 1) <= s->size) return HT_OK;
    uint64_t size = s->size ? 2 * s->size : 1024;
    uint64_t *slots = hti_host_alloc(s->ctx, size * sizeof *slots);
    CHECK(s->ctx, slots, HT_NOMEM, "out of memory: %llu expressions",
          (unsigned long long)s->filled);
    memset(slots, 0, size * sizeof *slots);
    for (uint64_t i = 0; i < s->size; i++)
        if (s->slots[i]) *slot_of(slots, size, s->slots[i]) = s->slots[i];
    hti_host_free(s->ctx, s->slots);
    s->slots = slots;
    s->size = size;
    return HT_OK;
}

ht_status hti_seen_add(hti_seen *s, const uint16_t *ids, int64_t count, int *is_new) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (int64_t i = 0; i < count; i++) hash = (hash ^ ids[i]) * 0x100000001B3u;
    hash ^= hash >> 29;
    if (hash == 0) hash = 1;
    TRY(make_room(s));
    uint64_t *slot = slot_of(s->slots, s->size, hash);
    *is_new = *slot == 0;
    s->filled += *slot == 0;
    *slot = hash;
    return HT_OK;
}

void hti_seen_free(hti_seen *s) {
    hti_host_free(s->ctx, s->slots);
    *s = (hti_seen){.ctx = s->ctx};
}

/* ---- the stream: attempts 0, 1, 2 ..., each with dice of its own; a chunk of them at a time by
 * all threads, then taken in order ---- */

typedef struct attempt {
    int64_t count; /* 0: too short or too long */
    int value;
} attempt;

typedef struct stream {
    ht_context *ctx;
    const ht_config *c;
    hti_seen seen;
    uint16_t *ids; /* [chunk, listops_max] */
    attempt *attempts;
    int64_t chunk, next;
} stream;

static void make_chunk(stream *s) {
    const ht_config *c = s->c;
#pragma omp parallel for schedule(dynamic, 16) num_threads(s->ctx->threads)
    for (int64_t i = 0; i < s->chunk; i++) {
        maker m = {.c = c, .ids = s->ids + i * c->listops_max, .room = c->listops_max};
        m.dice = hti_dice_of((uint64_t)c->data_seed, (uint64_t)(s->next + i), 0x11570u);
        int value = make(&m, 1), fits = m.count > c->listops_min && m.count < c->listops_max;
        s->attempts[i] = (attempt){fits ? m.count : 0, value};
    }
    s->next += s->chunk;
}

static ht_status run_stream(stream *s, int64_t first, int64_t last, hti_each_expression *each,
                            void *user, int64_t *attempts) {
    int64_t found = 0, vain = 0;
    while (found < last) {
        make_chunk(s);
        for (int64_t i = 0; i < s->chunk && found < last; i++) {
            const uint16_t *ids = s->ids + i * s->c->listops_max;
            const attempt *a = &s->attempts[i];
            int is_new = 0;
            ++*attempts;
            if (a->count) TRY(hti_seen_add(&s->seen, ids, a->count, &is_new));
            if (!is_new) {
                vain++;
                continue;
            }
            vain = 0;
            if (found++ >= first) TRY(each(user, ids, a->count, a->value));
        }
        CHECK(s->ctx, vain < 20000000, HT_INVALID,
              "only %lld different expressions of %lld to %lld tokens were found, %lld are wanted",
              (long long)found, (long long)s->c->listops_min + 1, (long long)s->c->listops_max - 1,
              (long long)last);
    }
    return HT_OK;
}

ht_status hti_listops_stream(ht_context *ctx, const ht_config *c, int64_t first, int64_t last,
                             hti_each_expression *each, void *user, int64_t *attempts) {
    int64_t own = 0;
    stream s = {.ctx = ctx, .c = c, .chunk = (1 << 23) / c->listops_max, .seen = {.ctx = ctx}};
    if (s.chunk > 8192) s.chunk = 8192;
    if (s.chunk < 16) s.chunk = 16;
    s.ids = hti_host_alloc(ctx, sizeof *s.ids * (size_t)(s.chunk * c->listops_max));
    s.attempts = hti_host_alloc(ctx, sizeof *s.attempts * (size_t)s.chunk);
    ht_status status =
        s.ids && s.attempts ? HT_OK : hti_fail(ctx, HT_NOMEM, "out of memory: making expressions");
    if (status == HT_OK) status = run_stream(&s, first, last, each, user, &own);
    if (attempts) *attempts = own;
    hti_seen_free(&s.seen);
    hti_host_free(ctx, s.ids);
    hti_host_free(ctx, s.attempts);
    return status;
}

static ht_status add(void *user, const uint16_t *ids, int64_t count, int value) {
    ht_data *d = user;
    TRY(hti_data_add_ids(d, ids, count));
    return hti_data_add_label(d, value);
}

ht_status hti_listops_make(ht_data *d, const ht_data_desc *desc) {
    const ht_config *c = &d->config;
    int64_t held = c->valid_items, train = desc->part == HT_PART_TRAIN;
    int64_t first = train ? 2 * held : desc->part == HT_PART_TEST ? held : 0;
    return hti_listops_stream(d->ctx, c, first, first + (train ? c->train_items : held), add, d,
                              NULL);
}

/* ---- values ---- */

typedef struct parser {
    const uint16_t *ids;
    int64_t count, at;
    int depth;
} parser;

/* -1: it is no expression */
static int parse(parser *p) {
    if (p->at >= p->count || p->depth > 1000) return -1;
    int id = p->ids[p->at++], values[ARGUMENTS], n = 0;
    if (id < OPERATOR) return id - DIGIT;
    if (id == END) return -1;
    p->depth++;
    while (p->at < p->count && p->ids[p->at] != END) {
        if (n == ARGUMENTS || (values[n++] = parse(p)) < 0) return -1;
    }
    p->depth--;
    if (p->at++ >= p->count || n == 0) return -1;
    return apply(id - OPERATOR, values, n);
}

ht_status hti_listops_value(ht_context *ctx, const uint16_t *ids, int64_t count, int *value) {
    parser p = {.ids = ids, .count = count};
    *value = parse(&p);
    CHECK(ctx, *value >= 0 && p.at == count, HT_FORMAT, "this is no whole ListOps expression");
    return HT_OK;
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
