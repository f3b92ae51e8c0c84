/*
 * The program's files go through the library's one writer; a signal takes the temporaries along.
 */
#include "base/save.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_signal(int number) {
    ht_writer_abandon_all();
    signal(number, SIG_DFL);
    raise(number);
}

void save_watch_signals(void) {
    atexit(ht_writer_abandon_all); /* a library may end the program, too: OpenMP without memory */
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (int i = 0; i < 4; i++) {
        struct sigaction action = {.sa_handler = on_signal}, old;
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN);
}

static bool said(ht_status status, cli_error *error) {
    return status == HT_OK || cli_fail(error, "%s", ht_context_error(NULL));
}

bool save_open(save_file *out, const char *path, cli_error *error) {
    *out = (save_file){0};
    if (!said(ht_writer_create(&out->writer, NULL, path), error)) return false;
    out->file = ht_writer_stream(out->writer);
    return true;
}

bool save_write(save_file *save, const void *data, size_t bytes, cli_error *error) {
    return said(ht_writer_put(save->writer, data, bytes), error);
}

bool save_finish(save_file *save, cli_error *error) {
    return said(ht_writer_finish(save->writer), error);
}

bool save_commit(save_file *save, cli_error *error) {
    return said(ht_writer_commit(save->writer), error);
}

void save_discard(save_file *save) {
    ht_writer_destroy(save->writer);
    *save = (save_file){0};
}

FILE *save_open_input(const char *path, uint64_t *bytes, cli_error *error) {
    FILE *file;
    return said(ht_file_open(NULL, &file, bytes, path), error) ? file : NULL;
}

FILE *save_open_stream(const char *path, cli_error *error) {
    FILE *file;
    return said(ht_file_open_stream(NULL, &file, path), error) ? file : NULL;
}

bool save_there(bool *there, const char *path, cli_error *error) {
    *there = access(path, F_OK) == 0;
    return *there || errno == ENOENT || errno == ENOTDIR ||
           cli_fail(error, "%s could not be opened: %s", path, strerror(errno));
}

bool save_line(FILE *file, const char *name, char **line, size_t *room, size_t *bytes, bool *good,
               cli_error *error) {
    ht_status status = ht_file_line(NULL, file, name, line, room, bytes);
    if (status != HT_OK && status != HT_END) *good = said(status, error);
    return status == HT_OK;
}
