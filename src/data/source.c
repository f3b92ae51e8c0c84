/*
 * Whole files in memory, line by line if wanted.
 */
#include <string.h>

#include "data/data.h"

/* A file's pieces, until all of them are there. */
typedef struct whole {
    hti_buffer bytes;
    hti_each *each;
    void *user;
} whole;

static ht_status collect(void *user, const char *name, const char *bytes, size_t count, int end) {
    whole *w = user;
    if (end == HTI_EMPTY) return HT_OK;
    if (!end) return hti_buffer_add(&w->bytes, bytes, count);
    TRY(hti_buffer_need(&w->bytes, 1)); /* packed files may hold nothing; data is never NULL */
    ht_status status = w->each(w->user, name, w->bytes.data, w->bytes.used);
    w->bytes.used = 0;
    return status;
}

ht_status hti_source_read(ht_context *ctx, const char *path, hti_each *each, void *user) {
    whole w = {.bytes = {.ctx = ctx}, .each = each, .user = user};
    ht_status status = hti_stream_read(ctx, path, collect, &w);
    hti_buffer_free(&w.bytes);
    return status;
}

ht_status hti_source_lines(void *user, const char *name, const char *bytes, size_t count,
                           hti_each_line *each) {
    int64_t number = 0;
    for (size_t from = 0; from < count;) {
        const char *end = memchr(bytes + from, '\n', count - from);
        size_t n = end ? (size_t)(end - bytes) - from : count - from, next = from + n + 1;
        if (n > 0 && bytes[from + n - 1] == '\r') n--;
        number++;
        if (n > 0 || next < count) TRY(each(user, name, number, bytes + from, n));
        from = next;
    }
    return HT_OK;
}
