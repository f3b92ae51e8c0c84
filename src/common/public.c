/*
 * The library's files as it offers them to programs.
 */
#include "common/file.h"
#include "htransformer_models.h"

struct ht_writer {
    ht_context *ctx;
    hti_writer w; /* all zero once it is committed */
};

ht_status ht_writer_create(ht_writer **out, ht_context *ctx, const char *path) {
    CHECK(ctx, out && path, HT_INVALID, "ht_writer_create: NULL pointer");
    *out = NULL;
    ht_writer *writer = hti_host_alloc(ctx, sizeof *writer);
    CHECK(ctx, writer, HT_NOMEM, "out of memory: %zu bytes for a writer", sizeof *writer);
    writer->ctx = ctx;
    ht_status status = hti_writer_open(&writer->w, ctx, path);
    if (status == HT_OK)
        *out = writer;
    else
        hti_host_free(ctx, writer);
    return status;
}

void ht_writer_destroy(ht_writer *writer) {
    if (!writer) return;
    ht_context *ctx = writer->ctx;
    hti_writer_discard(&writer->w);
    hti_host_free(ctx, writer);
}

FILE *ht_writer_stream(ht_writer *writer) { return writer ? writer->w.file : NULL; }

ht_status ht_writer_put(ht_writer *writer, const void *data, size_t bytes) {
    NEED(writer);
    CHECK(writer->ctx, data || bytes == 0, HT_INVALID, "ht_writer_put: data is NULL");
    CHECK(writer->ctx, writer->w.file, HT_INVALID, "ht_writer_put: the file is finished");
    return hti_writer_put(&writer->w, data, bytes);
}

ht_status ht_writer_finish(ht_writer *writer) {
    NEED(writer);
    CHECK(writer->ctx, writer->w.file, HT_INVALID, "ht_writer_finish: the file is finished");
    return hti_writer_finish(&writer->w);
}

ht_status ht_writer_commit(ht_writer *writer) {
    NEED(writer);
    CHECK(writer->ctx, writer->w.temporary, HT_INVALID, "ht_writer_commit: the file has its name");
    return hti_writer_commit(&writer->w);
}

void ht_writer_abandon_all(void) { hti_writer_abandon_all(); }

ht_status ht_file_open(ht_context *ctx, FILE **out, uint64_t *bytes, const char *path) {
    CHECK(ctx, out && bytes && path, HT_INVALID, "ht_file_open: NULL pointer");
    return hti_file_open(ctx, out, bytes, path);
}

ht_status ht_file_open_stream(ht_context *ctx, FILE **out, const char *path) {
    CHECK(ctx, out && path, HT_INVALID, "ht_file_open_stream: NULL pointer");
    return hti_file_open_stream(ctx, out, path);
}

ht_status ht_file_line(ht_context *ctx, FILE *file, const char *name, char **line, size_t *room,
                       size_t *bytes) {
    CHECK(ctx, file && name && line && room && bytes, HT_INVALID, "ht_file_line: NULL pointer");
    return hti_file_line(ctx, file, name, line, room, bytes);
}

int64_t ht_file_step(const char *name) { return name ? hti_step_of(name) : -1; }
