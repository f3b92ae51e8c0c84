/*
 * Checkpoints of a run: which there are, which go, from which a run goes on.
 */
#include "train/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "core/sized.h"
#include "model/checkpoint.h"

typedef struct steps {
    struct dirent **list; /* oldest first */
    int count;
} steps;

static int is_step(const struct dirent *entry) { return hti_step_of(entry->d_name) >= 0; }

static int by_step(const struct dirent **a, const struct dirent **b) {
    int64_t x = hti_step_of((*a)->d_name), y = hti_step_of((*b)->d_name);
    return (x > y) - (x < y);
}

/* A folder that cannot be listed is not one without checkpoints. */
static ht_status list_steps(steps *out, ht_context *ctx, const char *folder) {
    errno = 0;
    out->count = scandir(folder, &out->list, is_step, by_step);
    if (out->count >= 0) return HT_OK;
    *out = (steps){0};
    return hti_fail(ctx, errno == ENOMEM ? HT_NOMEM : HT_IO, "%s could not be listed: %s", folder,
                    strerror(errno));
}

static void free_steps(steps *s) {
    for (int i = 0; i < s->count; i++) free(s->list[i]);
    free(s->list);
    *s = (steps){0};
}

static ht_status path_of(char **out, ht_context *ctx, const char *folder, const char *name) {
    *out = hti_path_join(ctx, folder, name);
    CHECK(ctx, *out, HT_NOMEM, "out of memory: the name of a checkpoint");
    return HT_OK;
}

/* ---- saving ---- */

/* The `keep` newest up to this step stay. Later ones are of a run that went on from an older one
 * because they were damaged: they are written again when their step comes. */
static void remove_old(const ht_trainer *t, const char *folder) {
    steps s;
    int keep = (int)t->config.keep;
    if (list_steps(&s, t->ctx, folder) != HT_OK) return; /* nothing is lost by it */
    while (s.count > 0 && hti_step_of(s.list[s.count - 1]->d_name) > t->step)
        free(s.list[--s.count]);
    for (int i = 0; i < s.count - keep; i++) {
        char *path = hti_path_join(t->ctx, folder, s.list[i]->d_name);
        if (path) unlink(path);
        hti_host_free(t->ctx, path);
    }
    free_steps(&s);
}

ht_status hti_folder_save(const ht_trainer *t, const ht_data *data, const char *folder) {
    char name[64], *path;
    int first = t->share.rank == 0;
    snprintf(name, sizeof name, "step-%09lld.safetensors", (long long)t->step);
    TRY(path_of(&path, t->ctx, folder, name));
    ht_status status = ht_trainer_save(t, data, path);
    if (status == HT_OK && first) status = hti_trainer_readable(t, path);
    hti_host_free(t->ctx, path);
    if (status == HT_OK && first) remove_old(t, folder);
    return status;
}

/* ---- going on ---- */

static ht_status restore(ht_trainer *t, ht_data *data, const char *folder, const char *name) {
    char *path;
    TRY(path_of(&path, t->ctx, folder, name));
    ht_status status = ht_trainer_restore(t, data, path);
    hti_host_free(t->ctx, path);
    return status;
}

/* Is it there, but not to be read to its end? What may not be opened is no reason to take another.
 */
static int is_unreadable(ht_context *ctx, const char *folder, const char *name) {
    FILE *file;
    uint64_t bytes;
    char *path = hti_path_join(ctx, folder, name);
    int opens = path && hti_file_open(ctx, &file, &bytes, path) == HT_OK;
    if (opens) fclose(file);
    hti_host_free(ctx, path);
    return opens;
}

/* The newest that can be read. One that does not fit these settings is no reason to take an older
 * one, which would not fit them either: then the first sentence stands. */
static ht_status resume(ht_trainer *t, ht_data *data, const char *folder, const steps *s,
                        ht_resume_info *out) {
    ht_status status = HT_OK, first = HT_OK;
    for (int i = s->count - 1; i >= 0; i--) {
        status = restore(t, data, folder, s->list[i]->d_name);
        if (status == HT_OK) {
            out->step = hti_step_of(s->list[i]->d_name);
            return HT_OK;
        }
        if (out->skipped++ == 0) {
            first = status;
            snprintf(out->why, sizeof out->why, "%s", ht_context_error(t->ctx));
        }
        if (status == HT_IO && !is_unreadable(t->ctx, folder, s->list[i]->d_name)) break;
        if (status != HT_FORMAT && status != HT_IO) break;
    }
    if (first == HT_OK) return HT_OK;
    return status == HT_NOMEM ? status : hti_fail(t->ctx, first, "%s", out->why);
}

ht_status ht_trainer_resume(ht_trainer *t, ht_data *data, const char *folder, ht_resume_info *out) {
    NEED(t);
    CHECK(t->ctx, folder, HT_INVALID, "ht_trainer_resume: folder is NULL");
    if (out) TRY(HTI_WANT(t->ctx, ht_resume_info, out));
    steps s;
    ht_resume_info info = {.step = -1};
    TRY(list_steps(&s, t->ctx, folder));
    ht_status status = resume(t, data, folder, &s, &info);
    free_steps(&s);
    if (out) HTI_GIVE(ht_resume_info, out, &info);
    return status;
}

/* ---- settings ---- */

static ht_status stored_config(ht_config *out, ht_context *ctx, const char *path) {
    hti_reader r;
    TRY(hti_reader_open(&r, ctx, path));
    ht_status status = hti_checkpoint_config(out, &r);
    hti_reader_close(&r);
    return status;
}

/* The first that can be read decides; the damaged ones before it are for ht_trainer_resume to tell
 * of. */
ht_status ht_config_resume(ht_config *config, ht_context *ctx, const char *folder) {
    CHECK(NULL, config, HT_INVALID, "ht_config_resume: config is NULL");
    NEED(ctx);
    CHECK(ctx, folder, HT_INVALID, "ht_config_resume: folder is NULL");
    steps s;
    ht_config stored, now = *config;
    ht_status status = HT_FORMAT;
    TRY(list_steps(&s, ctx, folder));
    for (int i = s.count - 1; i >= 0 && (status == HT_FORMAT || status == HT_IO); i--) {
        char *path = NULL;
        status = path_of(&path, ctx, folder, s.list[i]->d_name);
        if (status == HT_OK) status = stored_config(&stored, ctx, path);
        if (status == HT_OK) status = hti_config_go_on(ctx, &now, &stored, HTI_BEGUN_RUN, path);
        hti_host_free(ctx, path);
    }
    int none = s.count == 0 || status == HT_FORMAT || status == HT_IO;
    free_steps(&s);
    if (none) status = hti_config_resolve(ctx, &now);
    now.ctx = config->ctx;
    if (status == HT_OK) *config = now;
    return status;
}
