/*
 * Where a run has its data, and options of labelled texts.
 */
#include "run/rows.h"

#include "base/json.h"
#include "base/save.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const run_rows_kinds[] = {"auto", "tsv", "csv", "jsonl", "folders", NULL};
const char *const run_rows_headers[] = {"auto", "yes", "no", NULL};

/* ---- run.json ---- */

/* A text of at most room - 1 bytes; not there: empty. */
static bool word(char *out, size_t room, const cJSON *run, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(run, key);
    const char *text = item ? cJSON_GetStringValue(item) : "";
    if (!text || strlen(text) >= room) return false;
    strcpy(out, text);
    return true;
}

/* One of the names; not there: as it was. */
static bool choice(int *out, const cJSON *run, const char *key, const char *const *names) {
    char name[16];
    if (!word(name, sizeof name, run, key)) return false;
    if (!*name || *out >= 0) return true;
    for (*out = 0; names[*out] && strcmp(names[*out], name) != 0;) ++*out;
    return names[*out] != NULL;
}

static bool column(const char **out, char kept[256], const cJSON *run, const char *key) {
    if (!word(kept, 256, run, key)) return false;
    if (!*out && *kept) *out = kept;
    return true;
}

static bool read_rows(run_rows *rows, const cJSON *run) {
    const cJSON *skip = cJSON_GetObjectItemCaseSensitive(run, "skip_bad");
    if (cJSON_IsTrue(skip)) rows->skip_bad = 1;
    return choice(&rows->kind, run, "rows", run_rows_kinds) &&
           choice(&rows->header, run, "header", run_rows_headers) &&
           column(&rows->text_column, rows->text_kept, run, "text_column") &&
           column(&rows->label_column, rows->label_kept, run, "label_column") &&
           (!skip || cJSON_IsBool(skip));
}

static bool read_places(run_places *p, const cJSON *run) {
    const cJSON *share = cJSON_GetObjectItemCaseSensitive(run, "holdout");
    p->holdout = cJSON_IsNumber(share) ? share->valuedouble : -1;
    return p->holdout >= 0 && p->holdout < 1 && cJSON_HasObjectItem(run, "data") &&
           word(p->data, sizeof p->data, run, "data") &&
           word(p->valid, sizeof p->valid, run, "valid") &&
           word(p->papers, sizeof p->papers, run, "papers");
}

/* places NULL: the rows alone. */
static bool read_run(run_places *places, run_rows *rows, const char *path, cli_error *error) {
    bool starved = false;
    char *text = run_read_part(path, error);
    cJSON *run = text ? json_parse(text, &starved, error) : NULL;
    bool good =
        cJSON_IsObject(run) && read_rows(rows, run) && (!places || read_places(places, run));
    if (text && !good && !starved) cli_fail(error, "%s is damaged", path);
    cJSON_Delete(run);
    free(text);
    return good;
}

bool run_places_read(run_places *out, const char *folder, cli_error *error) {
    char path[4096];
    return run_path(path, folder, "run.json", error) && read_run(out, &out->rows, path, error);
}

bool run_rows_of(run_rows *rows, const run_model *m, cli_error *error) {
    char path[4096];
    const char *slash = strrchr(m->path, '/');
    int folder = slash ? (int)(slash - m->path) : 1;
    bool there;
    if (snprintf(path, sizeof path, "%.*s/run.json", folder, slash ? m->path : ".") >= 4096)
        return cli_fail(error, "the name of %.200s... is too long", m->path);
    if (!save_there(&there, path, error)) return false;
    return !there || read_run(NULL, rows, path, error);
}

/* From the root, so that a run goes on from any working directory; what is not there, as it is. */
static bool add_path(json_writer *json, const char *name, const char *path, cli_error *error) {
    char *whole = path[0] ? realpath(path, NULL) : NULL;
    bool none = !path[0] || errno == ENOENT || errno == ENOTDIR;
    bool good =
        whole || none || cli_fail(error, "%s could not be opened: %s", path, strerror(errno));
    if (good) json_text(json, name, whole ? whole : path);
    free(whole);
    return good;
}

static bool print_places(FILE *out, const run_places *p, cli_error *error) {
    json_writer json = {.out = out};
    const run_rows *rows = &p->rows;
    json_open(&json, NULL, '{');
    json_text(&json, "version", ht_version());
    bool good = add_path(&json, "data", p->data, error) &&
                add_path(&json, "valid", p->valid, error) &&
                add_path(&json, "papers", p->papers, error);
    json_exact(&json, "holdout", p->holdout);
    json_text(&json, "rows", run_rows_kinds[rows->kind > 0 ? rows->kind : 0]);
    json_text(&json, "header", run_rows_headers[rows->header > 0 ? rows->header : 0]);
    json_text(&json, "text_column", rows->text_column ? rows->text_column : "");
    json_text(&json, "label_column", rows->label_column ? rows->label_column : "");
    json_bool(&json, "skip_bad", rows->skip_bad);
    json_close(&json, '}');
    fputc('\n', out);
    return good;
}

bool run_places_write(const run_places *p, const char *folder, cli_error *error) {
    char path[4096];
    save_file save = {0};
    bool good = run_path(path, folder, "run.json", error) && save_open(&save, path, error) &&
                print_places(save.file, p, error) && save_finish(&save, error) &&
                save_commit(&save, error);
    save_discard(&save);
    return good;
}

/* ---- rows ---- */

ht_rows_desc run_rows_desc(const run_rows *rows) {
    ht_rows_desc desc = HT_ROWS_DESC_INIT;
    desc.kind = (ht_rows_kind)(rows->kind > 0 ? rows->kind : 0);
    desc.header = (ht_header)(rows->header > 0 ? rows->header : 0);
    desc.text_column = rows->text_column;
    desc.label_column = rows->label_column;
    desc.skip_bad = rows->skip_bad;
    return desc;
}

void run_rows_print(FILE *out, const ht_data *data) {
    ht_rows_info info = HT_ROWS_INFO_INIT;
    if (!data || ht_data_get_rows(data, &info) != HT_OK || info.rows == 0) return;
    int files = strncmp(info.about, "a folder", 8) == 0; /* every file is a row */
    int64_t read = files ? info.rows + info.empty + info.refused : info.lines;
    fprintf(out, "  %-10s %s; %lld %s", "rows", info.about, (long long)read,
            files ? "files" : "lines");
    if (info.empty) fprintf(out, ", %lld empty", (long long)info.empty);
    if (info.odd) fprintf(out, ", %lld not UTF-8", (long long)info.odd);
    if (info.refused)
        fprintf(out, ", %lld refused, the first: %s", (long long)info.refused, info.refusal);
    putc('\n', out);
}
