/*
 * Names in one buffer, found by a hash of open addresses.
 */
#include "common/names.h"

#include <stdio.h>
#include <string.h>

#include "common/hash.h"

static const int64_t *starts_of(const hti_names *n) {
    return (const int64_t *)(const void *)n->starts.data;
}

const char *hti_names_at(const hti_names *n, int64_t index, size_t *bytes) {
    int64_t from = starts_of(n)[index];
    int64_t end = index + 1 < n->count ? starts_of(n)[index + 1] : (int64_t)n->text.used;
    if (bytes) *bytes = (size_t)(end - from) - 1;
    return n->text.data + from;
}

/* Where the name is, or where it would be put. */
static int64_t slot_of(const hti_names *n, const char *name, size_t bytes) {
    uint64_t hash = hti_sum_end(hti_sum_add(hti_sum_begin(0), name, bytes));
    int64_t slot = (int64_t)(hash & (uint64_t)(n->room - 1));
    for (; n->slots[slot] >= 0; slot = (slot + 1) & (n->room - 1)) {
        size_t other;
        const char *at = hti_names_at(n, n->slots[slot], &other);
        if (other == bytes && memcmp(at, name, bytes) == 0) break;
    }
    return slot;
}

int32_t hti_names_find(const hti_names *n, const char *name, size_t bytes) {
    return n->room ? n->slots[slot_of(n, name, bytes)] : -1;
}

static ht_status grow(hti_names *n) {
    int64_t room = n->room ? 2 * n->room : 64;
    int32_t *slots = hti_host_alloc(n->ctx, sizeof *slots * (size_t)room);
    CHECK(n->ctx, slots, HT_NOMEM, "out of memory: %lld names", (long long)n->count);
    memset(slots, 0xFF, sizeof *slots * (size_t)room);
    hti_host_free(n->ctx, n->slots);
    n->slots = slots;
    n->room = room;
    for (int32_t i = 0; i < n->count; i++) {
        size_t bytes;
        const char *name = hti_names_at(n, i, &bytes);
        slots[slot_of(n, name, bytes)] = i;
    }
    return HT_OK;
}

ht_status hti_names_add(hti_names *n, const char *name, size_t bytes, int32_t *number) {
    int64_t from = (int64_t)n->text.used;
    n->text.ctx = n->starts.ctx = n->ctx;
    *number = hti_names_find(n, name, bytes);
    if (*number >= 0) return HT_OK;
    CHECK(n->ctx, n->count < INT32_MAX, HT_INVALID, "more than 2^31 names");
    if (2 * (n->count + 1) > n->room) TRY(grow(n));
    int64_t slot = slot_of(n, name, bytes);
    TRY(hti_buffer_need(&n->text, bytes + 1));
    TRY(hti_buffer_add(&n->starts, &from, sizeof from));
    TRY(hti_buffer_add(&n->text, name, bytes));
    TRY(hti_buffer_add(&n->text, "", 1));
    *number = (int32_t)n->count;
    n->slots[slot] = *number;
    n->count++;
    return HT_OK;
}

ht_status hti_names_copy(hti_names *to, const hti_names *from) {
    hti_names_free(to);
    for (int64_t i = 0; i < from->count; i++) {
        size_t bytes;
        int32_t number;
        const char *name = hti_names_at(from, i, &bytes);
        TRY(hti_names_add(to, name, bytes, &number));
    }
    return HT_OK;
}

ht_status hti_names_count(hti_names *n, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        char word[24];
        int32_t number;
        int bytes = snprintf(word, sizeof word, "%lld", (long long)i);
        TRY(hti_names_add(n, word, (size_t)bytes, &number));
    }
    return HT_OK;
}

int hti_names_equal(const hti_names *a, const hti_names *b) {
    return a->count == b->count && a->text.used == b->text.used &&
           (a->count == 0 || memcmp(a->text.data, b->text.data, a->text.used) == 0);
}

void hti_names_free(hti_names *n) {
    hti_buffer_free(&n->text);
    hti_buffer_free(&n->starts);
    if (n->ctx) hti_host_free(n->ctx, n->slots);
    *n = (hti_names){.ctx = n->ctx};
}
