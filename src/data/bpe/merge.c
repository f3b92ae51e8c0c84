/*
 * Pairs of neighbours become one, those learnt first before others, of equals the first in the
 * text: a heap of candidates, in which those that have gone stay until they come up.
 */
#include <string.h>

#include "data/bpe/bpe.h"
#include "data/utf8.h"

/* ---- the pairs ---- */

static uint64_t hash_of(int32_t left, int32_t right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

ht_status hti_bpe_make_pairs(hti_bpe *b, int64_t pairs) {
    b->slots = 16;
    while (b->slots < 2 * pairs) b->slots *= 2;
    b->pairs = hti_host_alloc(b->ctx, sizeof *b->pairs * (size_t)b->slots);
    CHECK(b->ctx, b->pairs, HT_NOMEM, "out of memory: %lld pairs of tokens", (long long)pairs);
    memset(b->pairs, 0xFF, sizeof *b->pairs * (size_t)b->slots);
    return HT_OK;
}

static hti_bpe_pair *place_of(const hti_bpe *b, int32_t left, int32_t right) {
    int64_t mask = b->slots - 1, slot = (int64_t)(hash_of(left, right) & (uint64_t)mask);
    hti_bpe_pair *at = &b->pairs[slot];
    while (at->left >= 0 && (at->left != left || at->right != right))
        at = &b->pairs[slot = (slot + 1) & mask];
    return at;
}

void hti_bpe_add_pair(hti_bpe *b, const hti_bpe_pair *pair) {
    hti_bpe_pair *at = place_of(b, pair->left, pair->right);
    if (at->left < 0) *at = *pair;
}

/* ---- a part of a text ---- */

typedef struct symbol {
    int32_t token;         /* -1: it has become part of the one before it */
    int32_t before, after; /* -1: none */
} symbol;

/* Two neighbours that may become one; first: the left one's place. */
typedef struct candidate {
    int32_t rank, first, left, right;
} candidate;

typedef struct heap {
    candidate *list;
    int64_t count;
} heap;

static int is_before(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->first < b->first;
}

static void push(heap *h, candidate c) {
    int64_t at = h->count++;
    for (; at > 0 && is_before(&c, &h->list[(at - 1) / 2]); at = (at - 1) / 2)
        h->list[at] = h->list[(at - 1) / 2];
    h->list[at] = c;
}

static candidate pop(heap *h) {
    candidate top = h->list[0], last = h->list[--h->count];
    int64_t at = 0;
    for (int64_t next; (next = 2 * at + 1) < h->count; at = next) {
        if (next + 1 < h->count && is_before(&h->list[next + 1], &h->list[next])) next++;
        if (!is_before(&h->list[next], &last)) break;
        h->list[at] = h->list[next];
    }
    h->list[at] = last;
    return top;
}

static void propose(heap *h, const hti_bpe *b, const symbol *s, int32_t first) {
    if (first < 0 || s[first].after < 0) return;
    int32_t left = s[first].token, right = s[s[first].after].token;
    const hti_bpe_pair *pair = place_of(b, left, right);
    if (pair->left >= 0) push(h, (candidate){pair->rank, first, left, right});
}

/* Symbols of a part: its bytes, or its characters; a character without a token is its bytes. */
static int64_t spell(const hti_bpe *b, symbol *s, const char *text, size_t bytes) {
    int64_t n = 0;
    for (size_t at = 0, size; at < bytes; at += size) {
        int32_t token = -1;
        size = b->by_byte ? 1 : hti_utf8(text + at, bytes - at);
        int space = text[at] == ' ', mark = size == 3 && memcmp(text + at, "\xE2\x96\x81", 3) == 0;
        int32_t word = b->by_byte || mark ? -1
                       : space            ? hti_names_find(&b->words, "\xE2\x96\x81", 3)
                                          : hti_names_find(&b->words, text + at, size);
        if (word >= 0) token = b->ids[word];
        if (token >= 0) s[n++].token = token;
        for (size_t i = 0; token < 0 && i < size; i++)
            s[n++].token = b->bytes[(unsigned char)text[at + i]];
    }
    for (int64_t i = 0; i < n; i++) {
        s[i].before = (int32_t)i - 1;
        s[i].after = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    return n;
}

static void join(heap *h, const hti_bpe *b, symbol *s, const candidate *c) {
    symbol *left = &s[c->first];
    int32_t gone = left->after;
    if (left->token != c->left || gone < 0 || s[gone].token != c->right) return;
    left->token = place_of(b, c->left, c->right)->merged;
    left->after = s[gone].after;
    if (left->after >= 0) s[left->after].before = c->first;
    s[gone].token = -1;
    propose(h, b, s, left->before);
    propose(h, b, s, c->first);
}

ht_status hti_bpe_merge(hti_bpe_work *w, const char *text, size_t bytes) {
    const hti_bpe *b = w->bpe;
    CHECK(NULL, bytes < INT32_MAX / 4, HT_UNSUPPORTED,
          "a word of %zu bytes is too long to make tokens of", bytes);
    int32_t whole = b->whole_first ? hti_names_find(&b->words, text, bytes) : -1;
    if (whole >= 0) {
        hti_bpe_emit(w, b->ids[whole]);
        return HT_OK;
    }
    w->symbols.used = w->heap.used = 0;
    TRY(hti_buffer_need(&w->symbols, sizeof(symbol) * (bytes + 1)));
    TRY(hti_buffer_need(&w->heap, sizeof(candidate) * (3 * bytes + 1)));
    symbol *s = (symbol *)(void *)w->symbols.data;
    heap h = {(candidate *)(void *)w->heap.data, 0};
    int64_t n = spell(b, s, text, bytes);
    for (int64_t i = 0; i < n; i++) propose(&h, b, s, (int32_t)i);
    while (h.count > 0) {
        candidate c = pop(&h);
        join(&h, b, s, &c);
    }
    for (int64_t i = 0; i >= 0 && i < n; i = s[i].after) hti_bpe_emit(w, s[i].token);
    return HT_OK;
}
