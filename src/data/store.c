/*
 * The tokens of a text: in memory up to a limit, beyond it in a file that has no name and that the
 * system pages in and out.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/file.h"
#include "data/data.h"

/* What is in memory goes to the file, which is made when it is first needed. */
static ht_status flush(hti_tokens *t) {
    hti_buffer *m = &t->memory;
    if (!t->file) TRY(hti_file_scratch(m->ctx, &t->file));
    TRY(hti_file_add(m->ctx, t->file, "the tokens of the text (TMPDIR says where)", m->data,
                     m->used));
    m->used = 0;
    return HT_OK;
}

ht_status hti_tokens_add(hti_tokens *t, const uint16_t *ids, int64_t count) {
    enum { BATCH = 1 << 22 }; /* bytes written at a time */
    size_t bytes = sizeof *ids * (size_t)count, limit = t->file ? BATCH : t->limit;
    if (t->memory.used > 0 && t->memory.used + bytes > limit) TRY(flush(t));
    t->count += count;
    return hti_buffer_add(&t->memory, ids, bytes);
}

ht_status hti_tokens_finish(hti_tokens *t) {
    t->at = (const uint16_t *)(const void *)t->memory.data;
    if (!t->file) return HT_OK;
    TRY(flush(t));
    t->map_bytes = sizeof *t->at * (size_t)t->count;
    t->map = mmap(NULL, t->map_bytes, PROT_READ, MAP_SHARED, fileno(t->file), 0);
    if (t->map == MAP_FAILED) t->map = NULL;
    CHECK(t->memory.ctx, t->map, HT_NOMEM, "the tokens of the text could not be mapped: %s",
          strerror(errno));
    t->at = t->map;
    hti_buffer_free(&t->memory);
    return HT_OK;
}

void hti_tokens_free(hti_tokens *t) {
    if (t->map) munmap(t->map, t->map_bytes);
    if (t->file) fclose(t->file);
    hti_buffer_free(&t->memory);
    t->map = NULL;
    t->file = NULL;
    t->at = NULL;
    t->count = 0;
}
