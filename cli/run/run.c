/*
 * Run folders.
 */
#include "run/run.h"

#include "base/save.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool run_path(char *out, const char *folder, const char *name, cli_error *error) {
    if (snprintf(out, 4096, "%s/%s", folder, name) < 4096) return true;
    return cli_fail(error, "the name of %.200s... is too long", folder);
}

static char *read_small(FILE *f, const char *path, cli_error *error) {
    enum { FIRST = 4096, MOST = 1 << 20 };
    char *text = f ? malloc(FIRST + 1) : NULL, *longer = text;
    size_t n = 0, room = FIRST;
    while (longer && (n += fread(text + n, 1, room - n, f)) == room && room < MOST) {
        longer = realloc(text, 2 * room + 1);
        if (longer) text = longer, room *= 2;
    }
    bool good = longer && !ferror(f) && n < room;
    if (f && !longer)
        cli_fail(error, "out of memory: reading %s", path);
    else if (f && !good)
        cli_fail(error, "%s could not be read, or is too large for such a file", path);
    if (good) text[n] = '\0';
    if (!good) free(text);
    if (f) fclose(f);
    return good ? text : NULL;
}

char *run_read_text(const char *path, cli_error *error) {
    return read_small(save_open_stream(path, error), path, error);
}

char *run_read_part(const char *path, cli_error *error) {
    uint64_t bytes;
    return read_small(save_open_input(path, &bytes, error), path, error);
}

bool run_write_text(const char *path, const char *text, cli_error *error) {
    save_file save = {0};
    bool good = save_open(&save, path, error) && save_write(&save, text, strlen(text), error) &&
                save_finish(&save, error) && save_commit(&save, error);
    save_discard(&save);
    return good;
}

bool run_copy(const char *to, const char *from, cli_error *error) {
    char chunk[1 << 14];
    uint64_t bytes;
    FILE *f = save_open_input(from, &bytes, error);
    save_file save = {0};
    if (!f) return false;
    bool good = save_open(&save, to, error);
    for (size_t n; good && (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        good = save_write(&save, chunk, n, error);
    if (good && ferror(f)) good = cli_fail(error, "%s could not be read", from);
    good = good && save_finish(&save, error) && save_commit(&save, error);
    save_discard(&save);
    fclose(f);
    return good;
}

/* The newest step-N.safetensors that a look at the folder shows; *out empty: none. */
static bool look(char *out, const char *folder, cli_error *error) {
    DIR *d = opendir(folder);
    int64_t best = -1;
    out[0] = '\0';
    errno = 0;
    for (struct dirent *e; d && (e = readdir(d)); errno = 0) {
        int64_t step = ht_file_step(e->d_name);
        if (step > best && snprintf(out, 4096, "%s/%s", folder, e->d_name) < 4096) best = step;
    }
    bool good = d && errno == 0;
    if (!good) cli_fail(error, "%s could not be listed: %s", folder, strerror(errno));
    if (d) closedir(d);
    return good;
}

/* A trainer that writes a new one and removes the old one meanwhile may hide both: then the folder
 * has changed, and a second look shows more. */
static bool newest(char *out, const char *folder, cli_error *error) {
    enum { TURNS = 50 };
    struct stat before = {0}, after = {0};
    for (int turn = 0; turn < TURNS; turn++) {
        bool known = stat(folder, &before) == 0;
        if (!look(out, folder, error)) return false;
        known = known && stat(folder, &after) == 0;
        bool same = before.st_mtim.tv_sec == after.st_mtim.tv_sec &&
                    before.st_mtim.tv_nsec == after.st_mtim.tv_nsec;
        if (out[0] || (turn > 2 && (!known || same))) break; /* times are coarse */
    }
    return true;
}

bool run_find(char *out, const char *run, int last, cli_error *error) {
    struct stat about;
    bool there;
    if (stat(run, &about) != 0)
        return cli_fail(error, "%s could not be opened: %s", run, strerror(errno));
    if (!S_ISDIR(about.st_mode)) {
        snprintf(out, 4096, "%s", run);
        return true;
    }
    if (!run_path(out, run, "best.safetensors", error)) return false;
    if (!save_there(&there, out, error)) return false;
    if (!last && there) return true;
    if (!newest(out, run, error)) return false;
    if (out[0]) return true;
    /* the name that other programs give to a model's only file */
    if (!run_path(out, run, "model.safetensors", error)) return false;
    if (!save_there(&there, out, error)) return false;
    return there || cli_fail(error, "%s holds no checkpoint of a run", run);
}

/* ---- the models in the box ---- */

#define BOX "shakespeare.safetensors"

/* Beside the build folder, or where the program was installed. */
bool run_box(char *out, const char *name) {
    static const char *const places[] = {"../models", "../share/htransformer", "../../models"};
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash) *slash = '\0';
    for (int i = 0; i < 3 && slash; i++)
        if (snprintf(out, 4096, "%s/%s/%s", self, places[i], name) < 4096 && access(out, R_OK) == 0)
            return true;
    return false;
}

static bool find_box(char *out, cli_error *error) {
    return run_box(out, BOX) ||
           cli_fail(error, "RUN is missing, and the model that comes with the program (" BOX
                           ") is not where it should be");
}

/* ---- opening ---- */

/* The tokens.model beside a checkpoint, or bytes. */
static bool open_tokenizer(run_model *m, cli_error *error) {
    char path[4096];
    const char *slash = strrchr(m->path, '/');
    int folder = slash ? (int)(slash - m->path) : 1;
    int n = snprintf(path, sizeof path, "%.*s/tokens.model", folder, slash ? m->path : ".");
    bool there;
    if (n >= (int)sizeof path) return cli_fail(error, "the name of %.200s... is too long", m->path);
    if (!save_there(&there, path, error)) return false;
    if (ht_tokenizer_open(&m->tokenizer, m->ctx, there ? path : NULL) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(m->ctx));
    int64_t vocab = setting_int(m->config, "vocab");
    if (ht_tokenizer_vocab(m->tokenizer) <= vocab) return true;
    return cli_fail(error, "%s has %lld tokens, but the model only %lld", there ? path : "bytes",
                    (long long)ht_tokenizer_vocab(m->tokenizer), (long long)vocab);
}

/* Beside a trainer the checkpoint that was the newest may be gone when it is opened; then another
 * one is. */
static bool load_model(run_model *m, const char *run, int last, cli_error *error) {
    enum { TURNS = 50 };
    for (int turn = 0; ht_model_load(&m->model, m->ctx, m->path) != HT_OK; turn++) {
        cli_fail(error, "%s", ht_context_error(m->ctx));
        bool gone = run && access(m->path, F_OK) != 0 && errno == ENOENT;
        if (!gone || turn == TURNS || !run_find(m->path, run, last, error)) return false;
    }
    return ht_config_copy(&m->config, ht_model_config(m->model)) == HT_OK ||
           cli_fail(error, "%s", ht_context_error(m->ctx));
}

bool run_load(run_model *out, const char *run, int last, const char *device, int64_t threads,
              int *code, cli_error *error) {
    *out = (run_model){0};
    *code = CLI_FAILED;
    if (run ? !run_find(out->path, run, last, error) : !find_box(out->path, error)) return false;
    out->ctx = cli_open_device(device, threads, code, error);
    if (!out->ctx) return false;
    *code = CLI_FAILED;
    bool good = load_model(out, run, last, error);
    if (good && setting_is(out->config, "task", "language")) good = open_tokenizer(out, error);
    if (!good) run_close(out);
    return good;
}

/* As many tokens per batch as before, at another length. */
static bool set_length(const run_model *m, int64_t length, cli_error *error) {
    if (!length) return true;
    int64_t batch = setting_int(m->config, "batch") * setting_int(m->config, "length") / length;
    return (ht_config_set_int(m->config, "length", length) == HT_OK &&
            ht_config_set_int(m->config, "batch", batch > 0 ? batch : 1) == HT_OK) ||
           cli_fail(error, "%s", ht_context_error(m->ctx));
}

bool run_set_open(run_model *m, int64_t open, cli_error *error) {
    return open < 0 || ht_config_set_int(m->config, "open", open) == HT_OK ||
           cli_fail(error, "%s", ht_context_error(m->ctx));
}

bool run_open(run_model *out, const char *run, int last, int64_t length, int64_t open,
              const char *device, int64_t threads, int *code, cli_error *error) {
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    desc.inference = 1;
    if (!run_load(out, run, last, device, threads, code, error)) return false;
    desc.config = out->config;
    bool good = set_length(out, length, error) && run_set_open(out, open, error) &&
                (ht_trainer_create(&out->trainer, out->model, &desc) == HT_OK ||
                 cli_fail(error, "%s", ht_context_error(out->ctx)));
    if (!good) run_close(out);
    return good;
}

void run_close(run_model *m) {
    ht_tokenizer_close(m->tokenizer);
    ht_trainer_destroy(m->trainer);
    ht_model_destroy(m->model);
    ht_config_destroy(m->config);
    ht_context_destroy(m->ctx);
    *m = (run_model){0};
}
