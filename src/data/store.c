/*
 * The tokens of a text: in memory up to a limit, beyond it in a file that has no name and that the
 * system pages in and out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/data.h"

static ht_status spill(hti_tokens *t) {
    ht_context *ctx = t->memory.ctx;
    char path[4096];
    const char *folder = getenv("TMPDIR");
    CHECK(ctx,
          snprintf(path, sizeof path, "%s/htransformer-XXXXXX", folder ? folder : "/tmp") <
              (int)sizeof path,
          HT_IO, "the name in TMPDIR is too long");
    int file = mkstemp(path);
    CHECK(ctx, file >= 0, HT_IO, "%s could not be made: %s", path, strerror(errno));
    unlink(path);
    t->file = fdopen(file, "w+b");
    if (!t->file) close(file);
    CHECK(ctx, t->file, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    return HT_OK;
}

/* What is in memory goes to the file. */
static ht_status flush(hti_tokens *t) {
    hti_buffer *m = &t->memory;
    CHECK(m->ctx, fwrite(m->data, 1, m->used, t->file) == m->used, HT_IO,
          "the tokens of the text could not be written (TMPDIR says where): %s", strerror(errno));
    m->used = 0;
    return HT_OK;
}

ht_status hti_tokens_add(hti_tokens *t, const uint16_t *ids, int64_t count) {
    enum { BATCH = 1 << 22 }; /* bytes written at a time */
    size_t bytes = sizeof *ids * (size_t)count, limit = t->file ? BATCH : t->limit;
    if (t->memory.used > 0 && t->memory.used + bytes > limit) {
        if (!t->file) TRY(spill(t));
        TRY(flush(t));
    }
    t->count += count;
    return hti_buffer_add(&t->memory, ids, bytes);
}

ht_status hti_tokens_finish(hti_tokens *t) {
    t->at = (const uint16_t *)(const void *)t->memory.data;
    if (!t->file) return HT_OK;
    TRY(flush(t));
    CHECK(t->memory.ctx, fflush(t->file) == 0, HT_IO,
          "the tokens of the text could not be written (TMPDIR says where): %s", strerror(errno));
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
