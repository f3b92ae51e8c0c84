/*
 * Options of labelled texts.
 */
#include "run/rows.h"

#include "base/save.h"

#include <stdlib.h>
#include <string.h>

const char *const run_rows_kinds[] = {"auto", "tsv", "csv", "jsonl", "folders", NULL};
const char *const run_rows_headers[] = {"auto", "yes", "no", NULL};

static int choice(const cJSON *run, const char *key, const char *const *names) {
    const char *word = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(run, key));
    for (int i = 0; word && names[i]; i++)
        if (strcmp(names[i], word) == 0) return i;
    return -1;
}

static const char *column(char kept[256], const cJSON *run, const char *key) {
    const char *word = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(run, key));
    if (!word || !*word || strlen(word) >= 256) return NULL;
    return strcpy(kept, word);
}

void run_rows_read(run_rows *rows, const cJSON *run) {
    if (rows->kind < 0) rows->kind = choice(run, "rows", run_rows_kinds);
    if (rows->header < 0) rows->header = choice(run, "header", run_rows_headers);
    if (!rows->text_column) rows->text_column = column(rows->text_kept, run, "text_column");
    if (!rows->label_column) rows->label_column = column(rows->label_kept, run, "label_column");
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(run, "skip_bad"))) rows->skip_bad = 1;
}

void run_rows_write(const run_rows *rows, json_writer *run) {
    json_text(run, "rows", run_rows_kinds[rows->kind > 0 ? rows->kind : 0]);
    json_text(run, "header", run_rows_headers[rows->header > 0 ? rows->header : 0]);
    json_text(run, "text_column", rows->text_column ? rows->text_column : "");
    json_text(run, "label_column", rows->label_column ? rows->label_column : "");
    json_bool(run, "skip_bad", rows->skip_bad);
}

bool run_rows_of(run_rows *rows, const run_model *m, cli_error *error) {
    char path[4096];
    const char *slash = strrchr(m->path, '/');
    int folder = slash ? (int)(slash - m->path) : 1;
    bool there;
    if (snprintf(path, sizeof path, "%.*s/run.json", folder, slash ? m->path : ".") >= 4096)
        return cli_fail(error, "the name of %.200s... is too long", m->path);
    if (!save_there(&there, path, error)) return false;
    if (!there) return true;
    char *text = run_read_text(path, error);
    bool starved = false;
    cJSON *run = text ? json_parse(text, &starved, error) : NULL;
    if (text && !run && !starved) cli_fail(error, "%s is damaged", path);
    bool good = run != NULL;
    run_rows_read(rows, run);
    cJSON_Delete(run);
    free(text);
    return good;
}

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
    fprintf(out, "  %-10s %s; %lld lines", "rows", info.about, (long long)info.lines);
    if (info.empty) fprintf(out, ", %lld empty", (long long)info.empty);
    if (info.odd) fprintf(out, ", %lld not UTF-8", (long long)info.odd);
    if (info.refused)
        fprintf(out, ", %lld refused, the first: %s", (long long)info.refused, info.refusal);
    putc('\n', out);
}
