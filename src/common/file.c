/*
 * Whole files, or none.
 */
#include "common/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MARK ".httmp-"
enum { DIGITS = 12, NAME_MOST = 200, SLOTS = 32 };

/* ---- names ---- */

char *hti_path_join(ht_context *ctx, const char *folder, const char *name) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = hti_host_alloc(ctx, n);
    if (path) snprintf(path, n, "%s/%s", folder, name);
    return path;
}

int hti_path_inside(const char *name) {
    if (name[0] == '/' || name[0] == '\0') return 0;
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0')) return 0;
    }
    return 1;
}

int64_t hti_step_of(const char *name) {
    int64_t step = 0;
    int digits = 0;
    if (strncmp(name, "step-", 5) != 0) return -1;
    for (name += 5; *name >= '0' && *name <= '9'; name++, digits++) {
        if (step > (INT64_MAX - 9) / 10) return -1;
        step = 10 * step + (*name - '0');
    }
    return digits && strcmp(name, ".safetensors") == 0 ? step : -1;
}

/* ---- temporaries ---- */

static _Atomic(char *) pending[SLOTS];

void hti_writer_abandon_all(void) {
    for (int i = 0; i < SLOTS; i++) {
        char *path = atomic_load(&pending[i]);
        if (path) unlink(path);
    }
}

static void remember(hti_writer *w) {
    for (int i = 0; i < SLOTS && !w->slot; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&pending[i], &none, w->temporary)) w->slot = i + 1;
    }
}

static void forget(hti_writer *w) {
    if (w->slot) atomic_store(&pending[w->slot - 1], NULL);
    w->slot = 0;
    hti_host_free(w->ctx, w->temporary);
    w->temporary = NULL;
}

/* Of memory there may be more later; what else is wrong with a file stays so. */
static ht_status status_of(int error) { return error == ENOMEM ? HT_NOMEM : HT_IO; }

static ht_status cannot(const hti_writer *w, const char *why) {
    return hti_fail(w->ctx, HT_IO, "cannot write %s: %s", w->path, why);
}

/* The same, and errno says why. */
static ht_status failed(const hti_writer *w, int error) {
    return hti_fail(w->ctx, status_of(error), "cannot write %s: %s", w->path, strerror(error));
}

/* Is this the name of a temporary of ours? */
static int is_temporary(const char *name) {
    size_t n = strlen(name), tail = sizeof MARK - 1 + DIGITS;
    if (name[0] != '.' || n <= tail || strncmp(name + n - tail, MARK, sizeof MARK - 1) != 0)
        return 0;
    return strspn(name + n - DIGITS, "0123456789abcdef") == DIGITS;
}

/* One that nobody holds goes. A lock is taken first: a writer that has just made it sees that it
 * lost it, and makes another. */
static void remove_left_over(int folder, const char *name) {
    struct stat about;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(folder, name, 0);
    close(fd);
}

/* The folder that `path` is in, open; -1: it cannot be. */
static int open_folder(const char *path) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    if (n >= sizeof folder) return -1;
    memcpy(folder, slash ? path : ".", n);
    folder[n] = '\0';
    return open(n ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void clean_folder(const char *path) {
    int fd = open_folder(path);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder && fd >= 0) close(fd);
    for (struct dirent *e; folder && (e = readdir(folder));)
        if (is_temporary(e->d_name)) remove_left_over(dirfd(folder), e->d_name);
    if (folder) closedir(folder);
}

static uint64_t random_digits(void) {
    static atomic_uint turn;
    uint64_t x = 0;
    if (getentropy(&x, sizeof x) != 0) { /* the name need not be secret: O_EXCL guards it */
        struct timespec now = {0};
        clock_gettime(CLOCK_MONOTONIC, &now);
        x = ((uint64_t)getpid() << 24 ^ (uint64_t)now.tv_nsec ^ atomic_fetch_add(&turn, 1) << 20) *
            0x9E3779B97F4A7C15u;
    }
    return x & 0xFFFFFFFFFFFFu;
}

/* Makes and locks it; -1: errno says why. The mode is the old file's, or the usual one. */
static int make_temporary(char *out, size_t room, const char *path, mode_t mode, int exact) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (int turn = 0; turn < 100; turn++) {
        struct stat about;
        snprintf(out, room, "%.*s.%.*s" MARK "%012llx", (int)(name - path), path, NAME_MOST, name,
                 (unsigned long long)random_digits());
        int fd = open(out, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return -1;
        int taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        int known = fstat(fd, &about) == 0, error = errno;
        if (known && !taken && about.st_nlink > 0) {
            if (exact && fchmod(fd, mode) != 0) errno = 0; /* it is more private then */
            return fd;
        }
        if (!known) unlink(out);
        close(fd);
        errno = error;
        if (!known) return -1; /* else someone who cleans up was quicker */
    }
    errno = EEXIST;
    return -1;
}

/* ---- writing ---- */

/* What stands under the name: nothing, or a regular file, whose mode is taken. */
static ht_status check_target(const hti_writer *w, mode_t *mode, int *exact) {
    struct stat old;
    size_t n = strlen(w->path);
    *mode = 0666;
    *exact = 0;
    if (n == 0 || w->path[n - 1] == '/') return cannot(w, "it is not the name of a file");
    if (lstat(w->path, &old) != 0) return errno == ENOENT ? HT_OK : failed(w, errno);
    if (S_ISLNK(old.st_mode)) return cannot(w, "it is a link; name the file itself");
    if (!S_ISREG(old.st_mode)) return cannot(w, "it is not a regular file");
    *mode = old.st_mode & 0777;
    *exact = 1;
    return HT_OK;
}

static ht_status open_writer(hti_writer *w, size_t room) {
    mode_t mode;
    int exact;
    TRY(check_target(w, &mode, &exact));
    clean_folder(w->path);
    int fd = make_temporary(w->temporary, room, w->path, mode, exact);
    if (fd < 0) {
        int error = errno;
        w->temporary[0] = '\0'; /* there is none to remove */
        return failed(w, error);
    }
    remember(w);
    w->lock = fcntl(fd, F_DUPFD_CLOEXEC, 0) + 1;
    w->file = w->lock ? fdopen(fd, "w+b") : NULL;
    if (w->file) return HT_OK;
    int error = errno;
    close(fd);
    return failed(w, error);
}

ht_status hti_writer_open(hti_writer *out, ht_context *ctx, const char *path) {
    size_t n = strlen(path) + 1, room = n + sizeof MARK + DIGITS + 2;
    *out = (hti_writer){.ctx = ctx};
    out->path = hti_host_alloc(ctx, n);
    out->temporary = hti_host_alloc(ctx, room);
    if (out->temporary) out->temporary[0] = '\0';
    ht_status status = HT_NOMEM;
    if (!out->path || !out->temporary) {
        hti_fail(ctx, HT_NOMEM, "out of memory: the name of a file");
    } else {
        memcpy(out->path, path, n);
        status = open_writer(out, room);
    }
    if (status != HT_OK) hti_writer_discard(out);
    return status;
}

/* A limit on the size of files (ulimit -f) is an error of write, not the end of the process: the
 * signal that comes with it is held back from this thread and taken away. */
typedef struct held {
    sigset_t old, limit;
} held;

static void hold_limit(held *h) {
    sigemptyset(&h->limit);
    sigaddset(&h->limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &h->limit, &h->old);
}

static void release_limit(const held *h) {
    int error = errno;
    if (!sigismember(&h->old, SIGXFSZ)) {
        struct timespec none = {0, 0};
        while (sigtimedwait(&h->limit, NULL, &none) == SIGXFSZ) continue;
        pthread_sigmask(SIG_SETMASK, &h->old, NULL);
    }
    errno = error;
}

ht_status hti_writer_put(hti_writer *w, const void *data, size_t bytes) {
    held h;
    hold_limit(&h);
    size_t done = fwrite(data, 1, bytes, w->file);
    release_limit(&h);
    return done == bytes ? HT_OK : failed(w, errno);
}

ht_status hti_writer_tell(const hti_writer *w, uint64_t *out) {
    off_t at = ftello(w->file);
    *out = (uint64_t)at;
    return at >= 0 ? HT_OK : failed(w, errno);
}

ht_status hti_writer_patch(hti_writer *w, uint64_t at, const void *data, size_t bytes) {
    held h;
    hold_limit(&h);
    int good = fseeko(w->file, (off_t)at, SEEK_SET) == 0 &&
               fwrite(data, 1, bytes, w->file) == bytes && fseeko(w->file, 0, SEEK_END) == 0;
    release_limit(&h);
    return good ? HT_OK : failed(w, errno);
}

ht_status hti_writer_finish(hti_writer *w) {
    held h;
    /* of what was printed into the file something may have failed long ago: the last flush does
     * not know of it, and the cause is forgotten */
    if (ferror(w->file)) return cannot(w, "only a part of it could be written");
    hold_limit(&h);
    int bad = fflush(w->file) != 0 || fsync(fileno(w->file)) != 0, error = errno;
    if (fclose(w->file) != 0 && !bad) bad = 1, error = errno;
    release_limit(&h);
    w->file = NULL;
    w->broken = bad;
    return bad ? failed(w, error) : HT_OK;
}

/* So that the new name survives a power cut; a folder that cannot be synced is not worth failing
 * for. */
static void sync_folder(const char *path) {
    int fd = open_folder(path);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

ht_status hti_writer_commit(hti_writer *w) {
    if (w->file) TRY(hti_writer_finish(w));
    if (w->broken) return cannot(w, "only a part of it could be written");
    mode_t mode;
    int exact;
    TRY(check_target(w, &mode, &exact)); /* work may have taken long */
    if (rename(w->temporary, w->path) != 0) return failed(w, errno);
    sync_folder(w->path);
    forget(w);
    hti_writer_discard(w);
    return HT_OK;
}

void hti_writer_discard(hti_writer *w) {
    held h;
    hold_limit(&h); /* what a failed write left in the buffer goes out now */
    if (w->file) fclose(w->file);
    release_limit(&h);
    if (w->temporary && w->temporary[0]) unlink(w->temporary);
    if (w->lock) close(w->lock - 1);
    forget(w);
    hti_host_free(w->ctx, w->path);
    *w = (hti_writer){0};
}

/* ---- files that grow ---- */

/* What was written is with the system: closing the file cannot fail on it. */
static FILE *open_unbuffered(int fd, const char *mode) {
    FILE *file = fdopen(fd, mode);
    if (file) setvbuf(file, NULL, _IONBF, 0);
    return file;
}

ht_status hti_file_add(ht_context *ctx, FILE *file, const char *name, const void *data,
                       size_t bytes) {
    held h;
    hold_limit(&h);
    int good = fwrite(data, 1, bytes, file) == bytes;
    release_limit(&h);
    CHECK(ctx, good, HT_IO, "cannot write %s: %s", name, strerror(errno));
    return HT_OK;
}

ht_status hti_file_scratch(ht_context *ctx, FILE **out) {
    char path[4096];
    const char *folder = getenv("TMPDIR");
    *out = NULL;
    if (!folder || !*folder) folder = "/tmp";
    CHECK(ctx, strlen(folder) < sizeof path - 64, HT_IO, "the name in TMPDIR is too long");
    snprintf(path, sizeof path, "%s/htransformer", folder);
    char name[sizeof path];
    int fd = make_temporary(name, sizeof name, path, 0600, 0);
    CHECK(ctx, fd >= 0, HT_IO, "%s: no temporary file could be made there: %s", folder,
          strerror(errno));
    unlink(name);
    *out = open_unbuffered(fd, "w+b");
    if (*out) return HT_OK;
    ht_status status =
        hti_fail(ctx, status_of(errno), "%s: a temporary file could not be opened: %s", folder,
                 strerror(errno));
    close(fd);
    return status;
}

/* A last line without its end is given one. */
static ht_status end_line(ht_context *ctx, FILE *file, const char *name) {
    char last = '\n';
    int good = fseeko(file, -1, SEEK_END) != 0 || fread(&last, 1, 1, file) == 1;
    CHECK(ctx, good && fseeko(file, 0, SEEK_END) == 0, HT_IO, "cannot write %s: %s", name,
          strerror(errno));
    return last == '\n' ? HT_OK : hti_file_add(ctx, file, name, "\n", 1);
}

ht_status hti_file_append(ht_context *ctx, FILE **out, const char *path) {
    struct stat about;
    *out = NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    CHECK(ctx, fd >= 0, status_of(errno), "cannot write %s: %s", path,
          errno == ELOOP ? "it is a link; name the file itself" : strerror(errno));
    int regular = fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
    *out = regular ? open_unbuffered(fd, "a+b") : NULL;
    if (!*out) {
        ht_status why = hti_fail(ctx, regular ? status_of(errno) : HT_IO, "cannot write %s: %s",
                                 path, regular ? strerror(errno) : "it is not a regular file");
        close(fd);
        return why;
    }
    ht_status status = end_line(ctx, *out, path);
    if (status == HT_OK) return HT_OK;
    fclose(*out);
    *out = NULL;
    return status;
}

/* ---- reading ---- */

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* streams: pipes and terminals will do. A pipe that nobody writes into yet is waited for, as its
 * bytes are; nothing else is. */
static ht_status open_file(ht_context *ctx, FILE **out, uint64_t *bytes, const char *path,
                           int streams) {
    struct stat about = {0};
    *out = NULL;
    *bytes = 0;
    int waits = streams && stat(path, &about) == 0 && S_ISFIFO(about.st_mode);
    int fd = open(path, O_RDONLY | (waits ? 0 : O_NONBLOCK) | O_NOCTTY | O_CLOEXEC);
    CHECK(ctx, fd >= 0, status_of(errno), "%s could not be opened: %s", path, strerror(errno));
    int known = fstat(fd, &about) == 0;
    int good = S_ISREG(about.st_mode) || (streams && (S_ISFIFO(about.st_mode) || isatty(fd) == 1));
    if (known && good && !waits) fcntl(fd, F_SETFL, 0);
    *out = known && good ? fdopen(fd, "rb") : NULL;
    *bytes = (uint64_t)about.st_size;
    if (*out) return HT_OK;
    ht_status status =
        known && !good
            ? hti_fail(ctx, HT_IO, "%s is not a regular file%s, but %s", path,
                       streams ? " or a pipe" : "", kind_of(about.st_mode))
            : hti_fail(ctx, status_of(errno), "%s could not be opened: %s", path, strerror(errno));
    close(fd);
    return status;
}

ht_status hti_file_open(ht_context *ctx, FILE **out, uint64_t *bytes, const char *path) {
    return open_file(ctx, out, bytes, path, 0);
}

ht_status hti_file_open_stream(ht_context *ctx, FILE **out, const char *path) {
    uint64_t bytes;
    return open_file(ctx, out, &bytes, path, 1);
}

static ht_status read_open(ht_context *ctx, char **out, size_t *bytes, const char *path, FILE *f,
                           uint64_t size, size_t most) {
    CHECK(ctx, size <= most, HT_FORMAT,
          "%s has %llu bytes, more than the %zu that such a file may have", path,
          (unsigned long long)size, most);
    char *text = hti_host_alloc(ctx, (size_t)size + 1);
    CHECK(ctx, text, HT_NOMEM, "out of memory: %llu bytes for %s", (unsigned long long)size, path);
    *bytes = fread(text, 1, (size_t)size, f);
    text[*bytes] = '\0';
    if (ferror(f)) {
        int error = errno;
        hti_host_free(ctx, text);
        return hti_fail(ctx, HT_IO, "%s could not be read: %s", path, strerror(error));
    }
    *out = text;
    return HT_OK;
}

ht_status hti_file_read(ht_context *ctx, char **out, size_t *bytes, const char *path, size_t most) {
    FILE *f;
    uint64_t size;
    *out = NULL;
    TRY(hti_file_open(ctx, &f, &size, path));
    ht_status status = read_open(ctx, out, bytes, path, f, size, most);
    fclose(f);
    return status;
}

ht_status hti_file_line(ht_context *ctx, FILE *file, const char *name, char **line, size_t *room,
                        size_t *bytes) {
    errno = 0;
    ssize_t n = getline(line, room, file);
    if (n >= 0) return *bytes = (size_t)n, HT_OK;
    *bytes = 0;
    if (feof(file) && !ferror(file)) return HT_END;
    /* getline knows no memory and says so by errno alone */
    return hti_fail(ctx, status_of(errno), "%s could not be read: %s", name, strerror(errno));
}
