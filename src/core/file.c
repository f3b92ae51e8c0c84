/*
 * Whole files, or none.
 */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *hti_path_join(ht_context *ctx, const char *folder, const char *name) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = hti_host_alloc(ctx, n);
    if (path) snprintf(path, n, "%s/%s", folder, name);
    return path;
}

static ht_status could_not(const hti_writer *w, const char *what, int error) {
    return hti_fail(w->ctx, HT_IO, "%s could not be %s: %s", w->path, what, strerror(error));
}

ht_status hti_writer_open(hti_writer *out, ht_context *ctx, const char *path) {
    size_t n = strlen(path) + 5;
    *out = (hti_writer){.ctx = ctx};
    out->path = hti_host_alloc(ctx, n);
    out->temporary = hti_host_alloc(ctx, n);
    if (!out->path || !out->temporary) {
        hti_writer_discard(out);
        return hti_fail(ctx, HT_NOMEM, "out of memory: the name of a file");
    }
    snprintf(out->path, n, "%s", path);
    snprintf(out->temporary, n, "%s.tmp", path);
    out->file = fopen(out->temporary, "wb");
    if (out->file) return HT_OK;
    ht_status status = could_not(out, "written", errno);
    hti_writer_discard(out);
    return status;
}

ht_status hti_writer_put(hti_writer *w, const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, w->file) == bytes) return HT_OK;
    return could_not(w, "written", errno);
}

/* So that the new name survives a power cut; a folder that cannot be synced is not worth failing
 * for. */
static void sync_folder(const char *path) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    if (n >= sizeof folder) return;
    memcpy(folder, slash ? path : ".", n);
    folder[n] = '\0';
    int fd = open(n ? folder : "/", O_RDONLY);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

ht_status hti_writer_commit(hti_writer *w) {
    int failed = fflush(w->file) != 0 || fsync(fileno(w->file)) != 0, error = errno;
    if (fclose(w->file) != 0 && !failed) failed = 1, error = errno;
    w->file = NULL;
    if (failed) return could_not(w, "written", error);
    if (rename(w->temporary, w->path) != 0) return could_not(w, "put in its place", errno);
    sync_folder(w->path);
    hti_host_free(w->ctx, w->temporary);
    w->temporary = NULL;
    hti_writer_discard(w);
    return HT_OK;
}

void hti_writer_discard(hti_writer *w) {
    if (!w->ctx) return;
    if (w->file) fclose(w->file);
    if (w->temporary) unlink(w->temporary);
    hti_host_free(w->ctx, w->temporary);
    hti_host_free(w->ctx, w->path);
    *w = (hti_writer){0};
}

static ht_status read_open(ht_context *ctx, char **out, size_t *bytes, const char *path, FILE *f,
                           size_t most) {
    struct stat about;
    CHECK(ctx, fstat(fileno(f), &about) == 0 && S_ISREG(about.st_mode), HT_IO, "%s is not a file",
          path);
    CHECK(ctx, (uint64_t)about.st_size <= most, HT_FORMAT,
          "%s has %lld bytes, more than the %zu that such a file may have", path,
          (long long)about.st_size, most);
    char *text = hti_host_alloc(ctx, (size_t)about.st_size + 1);
    CHECK(ctx, text, HT_NOMEM, "out of memory: %lld bytes for %s", (long long)about.st_size, path);
    *bytes = fread(text, 1, (size_t)about.st_size, f);
    text[*bytes] = '\0';
    if (ferror(f)) {
        hti_host_free(ctx, text);
        return hti_fail(ctx, HT_IO, "%s could not be read: %s", path, strerror(errno));
    }
    *out = text;
    return HT_OK;
}

ht_status hti_file_read(ht_context *ctx, char **out, size_t *bytes, const char *path, size_t most) {
    *out = NULL;
    FILE *f = fopen(path, "rb");
    CHECK(ctx, f, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    ht_status status = read_open(ctx, out, bytes, path, f, most);
    fclose(f);
    return status;
}
