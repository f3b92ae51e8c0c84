/*
 * Bytes from where the user keeps them: a file, a folder, stdin; plain, gzip or zstd.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef HTI_ZSTD
#include <zstd.h>
#endif
#ifdef HTI_ZLIB
#include <zlib.h>
#endif

#include "data/data.h"

/* ---- buffers ---- */

ht_status hti_buffer_need(hti_buffer *b, size_t more) {
    if (more <= b->room - b->used) return HT_OK;
    size_t room = b->room ? b->room : 4096;
    while (room - b->used < more) {
        CHECK(b->ctx, room <= SIZE_MAX / 4, HT_NOMEM, "out of memory: the data is too large");
        room *= 2;
    }
    char *data = hti_host_alloc(b->ctx, room);
    CHECK(b->ctx, data, HT_NOMEM, "out of memory: %zu bytes of data", room);
    if (b->used) memcpy(data, b->data, b->used);
    hti_host_free(b->ctx, b->data);
    b->data = data;
    b->room = room;
    return HT_OK;
}

ht_status hti_buffer_add(hti_buffer *b, const void *bytes, size_t count) {
    TRY(hti_buffer_need(b, count));
    if (count) memcpy(b->data + b->used, bytes, count);
    b->used += count;
    return HT_OK;
}

void hti_buffer_free(hti_buffer *b) {
    if (b->ctx) hti_host_free(b->ctx, b->data);
    b->data = NULL;
    b->used = b->room = 0;
}

/* ---- compression, known by its first bytes ---- */

#ifdef HTI_ZSTD
static ht_status unpack_zstd(hti_buffer *out, const char *name, const hti_buffer *in) {
    ZSTD_DStream *stream = ZSTD_createDStream();
    CHECK(out->ctx, stream, HT_NOMEM, "out of memory: unpacking %s", name);
    ZSTD_inBuffer from = {in->data, in->used, 0};
    size_t left = 1;
    ht_status status = HT_OK;
    while (status == HT_OK && (from.pos < from.size || left != 0)) {
        status = hti_buffer_need(out, 1 << 17);
        if (status != HT_OK) break;
        size_t before = out->used, at = from.pos;
        ZSTD_outBuffer to = {out->data, out->room, out->used};
        left = ZSTD_decompressStream(stream, &to, &from);
        out->used = to.pos;
        if (ZSTD_isError(left))
            status = hti_fail(out->ctx, HT_FORMAT, "%s is damaged zstd: %s", name,
                              ZSTD_getErrorName(left));
        else if (left != 0 && out->used == before && from.pos == at)
            status = hti_fail(out->ctx, HT_FORMAT, "%s is zstd that ends too soon", name);
    }
    ZSTD_freeDStream(stream);
    return status;
}
#endif

#ifdef HTI_ZLIB
static ht_status unpack_gzip(hti_buffer *out, const char *name, const hti_buffer *in) {
    z_stream z = {0};
    CHECK(out->ctx, inflateInit2(&z, 15 + 16) == Z_OK, HT_NOMEM, "out of memory: unpacking %s",
          name);
    size_t at = 0;
    int code = Z_OK;
    ht_status status = HT_OK;
    while (status == HT_OK && !(code == Z_STREAM_END && at == in->used)) {
        if (code == Z_STREAM_END) inflateReset(&z); /* members may follow one another */
        status = hti_buffer_need(out, 1 << 17);
        if (status != HT_OK) break;
        uInt give = in->used - at < 1 << 30 ? (uInt)(in->used - at) : 1u << 30;
        uInt room = out->room - out->used < 1 << 30 ? (uInt)(out->room - out->used) : 1u << 30;
        z.next_in = (Bytef *)in->data + at, z.avail_in = give;
        z.next_out = (Bytef *)out->data + out->used, z.avail_out = room;
        code = inflate(&z, Z_NO_FLUSH);
        at += give - z.avail_in;
        out->used += room - z.avail_out;
        if (code == Z_BUF_ERROR || (code == Z_OK && at == in->used && z.avail_out))
            status = hti_fail(out->ctx, HT_FORMAT, "%s is gzip that ends too soon", name);
        else if (code != Z_OK && code != Z_STREAM_END)
            status = hti_fail(out->ctx, HT_FORMAT, "%s is damaged gzip", name);
    }
    inflateEnd(&z);
    return status;
}
#endif

static ht_status hand_over(const char *name, const hti_buffer *in, hti_each *each, void *user) {
    const unsigned char *b = (const unsigned char *)in->data;
    ht_context *ctx = in->ctx;
    hti_buffer out = {.ctx = ctx};
    ht_status status = HT_OK;
    int zstd = in->used >= 4 && b[0] == 0x28 && b[1] == 0xB5 && b[2] == 0x2F && b[3] == 0xFD;
    int gzip = in->used >= 2 && b[0] == 0x1F && b[1] == 0x8B;
    if (zstd) {
#ifdef HTI_ZSTD
        status = unpack_zstd(&out, name, in);
#else
        status = hti_fail(ctx, HT_UNSUPPORTED, "%s is zstd, and this build has no libzstd", name);
#endif
    } else if (gzip) {
#ifdef HTI_ZLIB
        status = unpack_gzip(&out, name, in);
#else
        status = hti_fail(ctx, HT_UNSUPPORTED, "%s is gzip, and this build has no zlib", name);
#endif
    }
    const hti_buffer *plain = zstd || gzip ? &out : in;
    if (status == HT_OK) status = each(user, name, plain->data, plain->used);
    hti_buffer_free(&out);
    return status;
}

/* ---- files ---- */

static ht_status read_stream(hti_buffer *out, const char *name, FILE *f) {
    for (;;) {
        TRY(hti_buffer_need(out, 1 << 16));
        size_t n = fread(out->data + out->used, 1, out->room - out->used, f);
        out->used += n;
        CHECK(out->ctx, !ferror(f), HT_IO, "%s could not be read: %s", name, strerror(errno));
        if (n == 0) return HT_OK;
    }
}

static ht_status read_file(ht_context *ctx, const char *name, FILE *f, hti_each *each, void *user) {
    hti_buffer in = {.ctx = ctx};
    ht_status status = read_stream(&in, name, f);
    if (status == HT_OK && in.used == 0) status = hti_fail(ctx, HT_FORMAT, "%s is empty", name);
    if (status == HT_OK) status = hand_over(name, &in, each, user);
    hti_buffer_free(&in);
    return status;
}

static ht_status read_path(ht_context *ctx, const char *path, hti_each *each, void *user) {
    FILE *f = fopen(path, "rb");
    CHECK(ctx, f, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    ht_status status = read_file(ctx, path, f, each, user);
    fclose(f);
    return status;
}

static int not_hidden(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static ht_status read_folder(ht_context *ctx, const char *path, hti_each *each, void *user) {
    struct dirent **list;
    int count = scandir(path, &list, not_hidden, alphasort), files = 0;
    CHECK(ctx, count >= 0, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    ht_status status = HT_OK;
    for (int i = 0; i < count; i++) {
        char name[4096];
        struct stat about;
        int fits = snprintf(name, sizeof name, "%s/%s", path, list[i]->d_name) < (int)sizeof name;
        free(list[i]);
        if (status != HT_OK || !fits || stat(name, &about) != 0 || !S_ISREG(about.st_mode))
            continue;
        status = read_path(ctx, name, each, user);
        files++;
    }
    free(list);
    if (status == HT_OK && files == 0)
        status = hti_fail(ctx, HT_IO, "%s is a folder without files", path);
    return status;
}

ht_status hti_source_read(ht_context *ctx, const char *path, hti_each *each, void *user) {
    struct stat about;
    if (strcmp(path, "-") == 0) return read_file(ctx, "stdin", stdin, each, user);
    CHECK(ctx, stat(path, &about) == 0, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    if (S_ISDIR(about.st_mode)) return read_folder(ctx, path, each, user);
    return read_path(ctx, path, each, user);
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
