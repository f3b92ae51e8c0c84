/*
 * Atomic files: temporary, fsync, rename.
 */
#include "base/save.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOTS 8
static char *volatile pending[SLOTS]; /* temporaries that a signal must remove */

static void on_signal(int number) {
    for (int i = 0; i < SLOTS; i++)
        if (pending[i]) unlink(pending[i]);
    signal(number, SIG_DFL);
    raise(number);
}

/* Signals that end the program take the temporaries along; a file size limit becomes an error
 * of write. */
static void watch_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    static bool watched;
    if (watched) return;
    watched = true;
    for (int i = 0; i < 4; i++) {
        struct sigaction action = {.sa_handler = on_signal}, old;
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN);
}

static bool write_failed(const save_file *save, cli_error *error) {
    return cli_fail(error, "cannot write %s: %s", save->path, strerror(errno));
}

/* The file behind links, so that a link stays one; a device or directory must not be
 * replaced. */
static bool final_name(char **out, const char *path, cli_error *error) {
    struct stat info;
    bool exists = stat(path, &info) == 0;
    if (exists && !S_ISREG(info.st_mode))
        return cli_fail(error, "cannot write %s: it is not a regular file", path);
    *out = exists ? realpath(path, NULL) : strdup(path);
    return *out || cli_fail(error, "cannot write %s: %s", path, strerror(errno));
}

/* mkstemp makes files that only the owner reads; give them the mode that a plain open would
 * have given, or that of the file which they replace. */
static void usual_mode(int fd, const char *path) {
    struct stat old;
    mode_t mask = umask(0);
    umask(mask);
    mode_t mode = stat(path, &old) == 0 ? old.st_mode & 0777 : 0666 & ~mask;
    if (fchmod(fd, mode) != 0) errno = 0; /* the file is private then, which is safe */
}

bool save_open(save_file *out, const char *path, cli_error *error) {
    *out = (save_file){.slot = -1};
    watch_signals();
    if (!final_name(&out->path, path, error)) return false;
    size_t bytes = strlen(out->path) + 8;
    out->temporary = malloc(bytes);
    for (int i = 0; i < SLOTS && out->slot < 0; i++)
        if (!pending[i]) out->slot = i;
    if (!out->temporary || out->slot < 0)
        return cli_fail(error, "cannot write %s: out of memory", path);
    snprintf(out->temporary, bytes, "%s.XXXXXX", out->path);
    int fd = mkstemp(out->temporary);
    if (fd < 0) {
        free(out->temporary);
        out->temporary = NULL;
        return write_failed(out, error);
    }
    pending[out->slot] = out->temporary;
    usual_mode(fd, out->path);
    out->file = fdopen(fd, "wb");
    if (out->file) return true;
    close(fd);
    return write_failed(out, error);
}

bool save_write(save_file *save, const void *data, size_t bytes, cli_error *error) {
    return fwrite(data, 1, bytes, save->file) == bytes || write_failed(save, error);
}

bool save_finish(save_file *save, cli_error *error) {
    /* of what was printed into the file something may have failed long ago: the last flush does
     * not know of it, and the cause is forgotten */
    if (ferror(save->file))
        return cli_fail(error, "cannot write %s: only a part of it could be written", save->path);
    bool ok = fflush(save->file) == 0 && fsync(fileno(save->file)) == 0;
    if (!ok) write_failed(save, error);
    if (fclose(save->file) != 0 && ok) ok = write_failed(save, error);
    save->file = NULL;
    return ok;
}

bool save_commit(save_file *save, cli_error *error) {
    if (rename(save->temporary, save->path) != 0) return write_failed(save, error);
    pending[save->slot] = NULL;
    free(save->temporary);
    save->temporary = NULL;
    return true;
}

void save_discard(save_file *save) {
    if (save->file) fclose(save->file);
    if (save->temporary) {
        unlink(save->temporary);
        pending[save->slot] = NULL;
    }
    free(save->temporary);
    free(save->path);
    *save = (save_file){.slot = -1};
}
