/*
 * Labels of any kind and their numbers.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

#include "data/rows/rows.h"

int64_t ht_labels_count(const ht_labels *labels) { return labels ? labels->count : 0; }

const char *ht_labels_name(const ht_labels *labels, int64_t index) {
    return labels && index >= 0 && index < labels->count ? hti_names_at(labels, index, NULL) : NULL;
}

int64_t ht_labels_find(const ht_labels *labels, const char *name) {
    return labels && name ? hti_names_find(labels, name, strlen(name)) : -1;
}

/* A label, and how it sorts. */
typedef struct entry {
    const char *name;
    size_t bytes;
    int64_t whole;
    int32_t arrival;
} entry;

static int by_number(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return (x->whole > y->whole) - (x->whole < y->whole);
}

static int by_text(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int order = memcmp(x->name, y->name, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Whole numbers are written in one way: 1.0 and +1 are 1. */
static ht_status add_entry(hti_names *out, const entry *e, int whole, int32_t *number) {
    char word[24];
    if (!whole) return hti_names_add(out, e->name, e->bytes, number);
    int n = snprintf(word, sizeof word, "%lld", (long long)e->whole);
    return hti_names_add(out, word, (size_t)n, number);
}

/* All labels are whole numbers from 0 to classes - 1: they keep their numbers. */
static int fits(const entry *list, int64_t count, int64_t classes) {
    for (int64_t i = 0; i < count; i++)
        if (list[i].whole < 0 || list[i].whole >= classes) return 0;
    return 1;
}

static ht_status settle(hti_names *out, int32_t *number, entry *list, const hti_names *seen,
                        int64_t classes) {
    int whole = 1;
    for (int32_t i = 0; i < seen->count; i++) {
        list[i].name = hti_names_at(seen, i, &list[i].bytes);
        list[i].arrival = i;
        whole = whole && hti_whole(&list[i].whole, list[i].name, list[i].bytes);
    }
    qsort(list, (size_t)seen->count, sizeof *list, whole ? by_number : by_text);
    if (whole && fits(list, seen->count, classes)) TRY(hti_names_count(out, classes));
    for (int64_t i = 0; i < seen->count; i++)
        TRY(add_entry(out, &list[i], whole, &number[list[i].arrival]));
    return HT_OK;
}

ht_status hti_labels_settle(hti_names *out, int32_t *number, const hti_names *seen,
                            int64_t classes) {
    size_t bytes = sizeof(entry) * (size_t)(seen->count + 1);
    entry *list = hti_host_alloc(out->ctx, bytes);
    CHECK(out->ctx, list, HT_NOMEM, "out of memory: %lld labels", (long long)seen->count);
    ht_status status = settle(out, number, list, seen, classes);
    hti_host_free(out->ctx, list);
    return status;
}

int32_t hti_labels_find(const hti_names *labels, const char *label, size_t bytes) {
    entry e = {.name = label, .bytes = bytes};
    char word[24];
    int32_t number = hti_names_find(labels, label, bytes);
    if (number >= 0 || !hti_whole(&e.whole, label, bytes)) return number;
    int n = snprintf(word, sizeof word, "%lld", (long long)e.whole);
    return hti_names_find(labels, word, (size_t)n);
}

void hti_labels_list(char *out, size_t bytes, const hti_names *labels) {
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < labels->count && used + 48 < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%.32s", i ? ", " : "",
                                 hti_names_at(labels, i, NULL));
    if (used + 48 >= bytes) snprintf(out + used, bytes - used, ", ...");
}
