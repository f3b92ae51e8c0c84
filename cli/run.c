/*
 * Run folders.
 */
#include "run.h"

#include "save.h"

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

char *run_read_text(const char *path, cli_error *error) {
    enum { MOST = 1 << 20 };
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(MOST + 1) : NULL;
    size_t n = text ? fread(text, 1, MOST + 1, f) : 0;
    if (!f) {
        cli_fail(error, "%s could not be opened: %s", path, strerror(errno));
    } else if (!text || ferror(f) || n > MOST) {
        cli_fail(error, "%s could not be read, or is too large for such a file", path);
        free(text);
        text = NULL;
    } else {
        text[n] = '\0';
    }
    if (f) fclose(f);
    return text;
}

bool run_write_text(const char *path, const char *text, cli_error *error) {
    save_file save = {0};
    bool good = save_open(&save, path, error) && save_write(&save, text, strlen(text), error) &&
                save_finish(&save, error) && save_commit(&save, error);
    save_discard(&save);
    return good;
}

/* The newest step-N.safetensors of a folder; false: there is none. */
static bool newest(char *out, const char *folder) {
    DIR *d = opendir(folder);
    long long best = -1;
    for (struct dirent *e; d && (e = readdir(d));) {
        char *end;
        if (strncmp(e->d_name, "step-", 5) != 0) continue;
        long long step = strtoll(e->d_name + 5, &end, 10);
        if (strcmp(end, ".safetensors") != 0 || step <= best) continue;
        if (snprintf(out, 4096, "%s/%s", folder, e->d_name) < 4096) best = step;
    }
    if (d) closedir(d);
    return best >= 0;
}

static bool find_file(char *out, const char *run, int last, cli_error *error) {
    struct stat about;
    if (stat(run, &about) != 0)
        return cli_fail(error, "%s could not be opened: %s", run, strerror(errno));
    if (!S_ISDIR(about.st_mode)) {
        snprintf(out, 4096, "%s", run);
        return true;
    }
    if (!run_path(out, run, "best.safetensors", error)) return false;
    if (!last && access(out, R_OK) == 0) return true;
    if (newest(out, run)) return true;
    return cli_fail(error, "%s holds no checkpoint of a run", run);
}

bool run_open(run_model *out, const char *run, int last, const char *device, int64_t threads,
              int *code, cli_error *error) {
    *out = (run_model){.config = HT_CONFIG_INIT};
    *code = CLI_FAILED;
    if (!find_file(out->path, run, last, error)) return false;
    out->ctx = cli_open_device(device, threads, code, error);
    if (!out->ctx) return false;
    *code = CLI_FAILED;
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    desc.inference = 1;
    if (ht_model_load(&out->model, out->ctx, out->path) != HT_OK ||
        ht_model_get_config(out->model, &out->config) != HT_OK ||
        ht_trainer_create(&out->trainer, out->model, &desc) != HT_OK) {
        cli_fail(error, "%s", ht_context_error(out->ctx));
        run_close(out);
        return false;
    }
    return true;
}

void run_close(run_model *m) {
    ht_trainer_destroy(m->trainer);
    ht_model_destroy(m->model);
    ht_context_destroy(m->ctx);
    *m = (run_model){0};
}
