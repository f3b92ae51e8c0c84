/*
 * Bytes of a file, of all files of a folder, or of stdin, a piece at a time, uncompressed
 * (gzip and zstd are known by their first bytes).
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

#include "common/file.h"
#include "data/data.h"

enum { PIECE = 1 << 16 };

/* A file being read. */
typedef struct stream {
    ht_context *ctx;
    const char *name;
    FILE *file;
    char *in, *out; /* [PIECE] each */
    size_t have;    /* bytes in `in` */
    hti_each_piece *each;
    void *user;
} stream;

/* Fills `in`; have 0: the file ends. */
static ht_status refill(stream *s) {
    s->have = fread(s->in, 1, PIECE, s->file);
    CHECK(s->ctx, !ferror(s->file), HT_IO, "%s could not be read: %s", s->name, strerror(errno));
    return HT_OK;
}

static ht_status give(stream *s, const char *bytes, size_t count) {
    return count ? s->each(s->user, s->name, bytes, count, HTI_MORE) : HT_OK;
}

static ht_status plain(stream *s) {
    while (s->have > 0) {
        TRY(give(s, s->in, s->have));
        TRY(refill(s));
    }
    return HT_OK;
}

#ifdef HTI_ZSTD
static ht_status unpack_zstd(stream *s, ZSTD_DStream *z) {
    size_t left = 1;
    while (s->have > 0) {
        ZSTD_inBuffer from = {s->in, s->have, 0};
        while (from.pos < from.size) {
            ZSTD_outBuffer to = {s->out, PIECE, 0};
            left = ZSTD_decompressStream(z, &to, &from);
            CHECK(s->ctx, !ZSTD_isError(left), HT_FORMAT, "%s is damaged zstd: %s", s->name,
                  ZSTD_getErrorName(left));
            TRY(give(s, s->out, to.pos));
        }
        TRY(refill(s));
    }
    for (int more = 1; left != 0 && more;) { /* what is still inside */
        ZSTD_inBuffer nothing = {s->in, 0, 0};
        ZSTD_outBuffer to = {s->out, PIECE, 0};
        left = ZSTD_decompressStream(z, &to, &nothing);
        CHECK(s->ctx, !ZSTD_isError(left), HT_FORMAT, "%s is damaged zstd: %s", s->name,
              ZSTD_getErrorName(left));
        TRY(give(s, s->out, to.pos));
        more = to.pos > 0;
    }
    CHECK(s->ctx, left == 0, HT_FORMAT, "%s is zstd that ends too soon", s->name);
    return HT_OK;
}

static ht_status zstd(stream *s) {
    ZSTD_DStream *z = ZSTD_createDStream();
    CHECK(s->ctx, z, HT_NOMEM, "out of memory: unpacking %s", s->name);
    ht_status status = unpack_zstd(s, z);
    ZSTD_freeDStream(z);
    return status;
}
#else
static ht_status zstd(stream *s) {
    return hti_fail(s->ctx, HT_UNSUPPORTED, "%s is zstd, and this build has no libzstd", s->name);
}
#endif

#ifdef HTI_ZLIB
static ht_status unpack_gzip(stream *s, z_stream *z) {
    int code = Z_OK;
    while (s->have > 0) {
        z->next_in = (Bytef *)s->in, z->avail_in = (uInt)s->have;
        do {
            if (code == Z_STREAM_END) inflateReset(z); /* members may follow one another */
            z->next_out = (Bytef *)s->out, z->avail_out = PIECE;
            code = inflate(z, Z_NO_FLUSH);
            if (code == Z_BUF_ERROR) code = Z_OK; /* it wants more */
            CHECK(s->ctx, code == Z_OK || code == Z_STREAM_END, HT_FORMAT, "%s is damaged gzip",
                  s->name);
            TRY(give(s, s->out, PIECE - z->avail_out));
        } while (z->avail_in > 0 || (z->avail_out == 0 && code == Z_OK));
        TRY(refill(s));
    }
    CHECK(s->ctx, code == Z_STREAM_END, HT_FORMAT, "%s is gzip that ends too soon", s->name);
    return HT_OK;
}

static ht_status gzip(stream *s) {
    z_stream z = {0};
    CHECK(s->ctx, inflateInit2(&z, 15 + 16) == Z_OK, HT_NOMEM, "out of memory: unpacking %s",
          s->name);
    ht_status status = unpack_gzip(s, &z);
    inflateEnd(&z);
    return status;
}
#else
static ht_status gzip(stream *s) {
    return hti_fail(s->ctx, HT_UNSUPPORTED, "%s is gzip, and this build has no zlib", s->name);
}
#endif

ht_status hti_stream_foreign(ht_context *ctx, const char *name, const char *bytes, size_t count) {
    static const struct {
        const char *first, *is;
    } formats[] = {{"PAR1", "Parquet"},
                   {"ARROW1", "Arrow"},
                   {"PK\3\4", "ZIP or Excel"},
                   {"BZh", "bzip2"},
                   {"\xFD"
                    "7zXZ",
                    "xz"},
                   {"SQLite format 3", "SQLite"},
                   {"\x89HDF", "HDF5"},
                   {"%PDF-", "PDF"}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        size_t n = strlen(formats[i].first);
        CHECK(ctx, count < n || memcmp(bytes, formats[i].first, n) != 0, HT_FORMAT,
              "%s is %s; make CSV, JSONL or plain text of it (docs/training.md has a line for "
              "Parquet)",
              name, formats[i].is);
    }
    return HT_OK;
}

static ht_status read_stream(stream *s) {
    TRY(refill(s));
    CHECK(s->ctx, s->have > 0, HT_FORMAT, "%s is empty", s->name);
    const unsigned char *b = (const unsigned char *)s->in;
    int is_zstd = s->have >= 4 && b[0] == 0x28 && b[1] == 0xB5 && b[2] == 0x2F && b[3] == 0xFD;
    int is_gzip = s->have >= 2 && b[0] == 0x1F && b[1] == 0x8B;
    TRY(is_zstd ? zstd(s) : is_gzip ? gzip(s) : plain(s));
    return s->each(s->user, s->name, "", 0, HTI_ENDS);
}

static ht_status read_file(ht_context *ctx, const char *name, FILE *file, hti_each_piece *each,
                           void *user) {
    stream s = {.ctx = ctx, .name = name, .file = file, .each = each, .user = user};
    s.in = hti_host_alloc(ctx, PIECE);
    s.out = hti_host_alloc(ctx, PIECE);
    ht_status status = s.in && s.out ? read_stream(&s)
                                     : hti_fail(ctx, HT_NOMEM, "out of memory: reading %s", name);
    hti_host_free(ctx, s.in);
    hti_host_free(ctx, s.out);
    return status;
}

static ht_status read_path(ht_context *ctx, const char *path, hti_each_piece *each, void *user) {
    FILE *f;
    TRY(hti_file_open_stream(ctx, &f, path));
    ht_status status = read_file(ctx, path, f, each, user);
    fclose(f);
    return status;
}

static int not_hidden(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* Folders within are read where their names stand, but not links to folders, which may go round in
 * circles; empty files are left out. */
static ht_status read_folder(ht_context *ctx, const char *path, int depth, hti_each_piece *each,
                             void *user, int64_t *files) {
    struct dirent **list;
    CHECK(ctx, depth < 64, HT_IO, "%s lies more than 64 folders deep", path);
    int count = scandir(path, &list, not_hidden, alphasort);
    CHECK(ctx, count >= 0, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    ht_status status = HT_OK;
    for (int i = 0; i < count; i++) {
        char name[4096];
        struct stat about, link;
        int fits = snprintf(name, sizeof name, "%s/%s", path, list[i]->d_name) < (int)sizeof name;
        free(list[i]);
        if (status != HT_OK) continue;
        if (!fits || stat(name, &about) != 0 || lstat(name, &link) != 0) {
            status = hti_fail(ctx, HT_IO, "%.200s could not be opened: %s", name,
                              fits ? strerror(errno) : "its name is too long");
            continue;
        }
        if (S_ISDIR(link.st_mode)) status = read_folder(ctx, name, depth + 1, each, user, files);
        if (!S_ISREG(about.st_mode)) continue;
        status =
            about.st_size ? read_path(ctx, name, each, user) : each(user, name, "", 0, HTI_EMPTY);
        *files += about.st_size > 0;
    }
    free(list);
    return status;
}

ht_status hti_stream_read(ht_context *ctx, const char *path, hti_each_piece *each, void *user) {
    struct stat about;
    int64_t files = 0;
    if (strcmp(path, "-") == 0) return read_file(ctx, "stdin", stdin, each, user);
    CHECK(ctx, stat(path, &about) == 0, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    if (!S_ISDIR(about.st_mode)) return read_path(ctx, path, each, user);
    TRY(read_folder(ctx, path, 0, each, user, &files));
    CHECK(ctx, files > 0, HT_IO, "%s is a folder without files, or all are empty", path);
    return HT_OK;
}
