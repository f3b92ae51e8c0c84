/*
 * A folder per label, a file per text.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/rows/rows.h"

enum { NAME = 4096 };

static int not_hidden(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void free_list(struct dirent **list, int count) {
    for (int i = 0; i < count; i++) free(list[i]);
    if (count >= 0) free(list);
}

/* 'd', 'f', or 0: something else; links to folders are not followed. */
static char type_of(char out[NAME], const char *path, const char *name) {
    struct stat about;
    if (snprintf(out, NAME, "%s/%s", path, name) >= NAME || lstat(out, &about) != 0) return 0;
    if (S_ISDIR(about.st_mode)) return 'd';
    return stat(out, &about) == 0 && S_ISREG(about.st_mode) ? 'f' : 0;
}

static int has_folder(const char *path, const char *name) {
    char whole[NAME];
    return type_of(whole, path, name) == 'd';
}

/* Beside neg and pos the Large Movie Review Dataset has unsup: texts that have no label. */
static int is_left_out(const char *path, const char *name) {
    return strcmp(name, "unsup") == 0 && has_folder(path, "neg") && has_folder(path, "pos");
}

/* How many files of a folder are texts, and how many are tables of rows by their names. */
static void count_files(const char *path, int *texts, int *tables) {
    char name[NAME];
    struct dirent **list;
    int count = scandir(path, &list, not_hidden, alphasort);
    for (int i = 0; i < count; i++) {
        if (type_of(name, path, list[i]->d_name) != 'f') continue;
        ++*(ht_rows_kind_of(name) ? tables : texts);
    }
    free_list(list, count);
}

int hti_folders_are_classes(const char *path) {
    char name[NAME];
    struct dirent **list;
    int own = 0, tables = 0, classes = 0, count = scandir(path, &list, not_hidden, alphasort);
    if (count < 0) return 0;
    count_files(path, &own, &tables);
    for (int i = 0; i < count; i++) {
        int texts = 0;
        if (type_of(name, path, list[i]->d_name) == 'd') count_files(name, &texts, &tables);
        classes += texts > 0;
    }
    free_list(list, count);
    return classes > 1 && tables == 0;
}

/* ---- texts ---- */

typedef struct reading {
    ht_context *ctx;
    const ht_rows_desc *desc;
    ht_rows_info *info;
    hti_each_row *each;
    void *user;
    hti_cell label;
    hti_buffer text; /* of the file at work */
    int too_long;
} reading;

static ht_status give(reading *r, const char *name) {
    hti_cell text = hti_trim((hti_cell){r->text.data, r->text.used});
    hti_row row = {.file = name, .line = 1};
    CHECK(r->ctx, !r->too_long, HT_FORMAT, "the text is longer than %zu bytes", r->desc->most);
    row.cell[HTI_LABEL] = r->label;
    row.cell[HTI_TEXT] = text;
    return hti_rows_give(r->ctx, r->desc, r->info, &row, r->each, r->user);
}

static ht_status take_piece(void *user, const char *name, const char *bytes, size_t count,
                            int end) {
    reading *r = user;
    r->info->empty += end == HTI_EMPTY;
    if (!end) {
        r->too_long |= count > r->desc->most || r->text.used > r->desc->most - count;
        for (size_t i = 0; i < count; i++) r->info->lines += bytes[i] == '\n';
        return r->too_long ? HT_OK : hti_buffer_add(&r->text, bytes, count);
    }
    if (end == HTI_EMPTY) return HT_OK;
    TRY(hti_buffer_need(&r->text, 1)); /* data is never NULL */
    ht_status status = give(r, name);
    r->text.used = 0;
    r->too_long = 0;
    return status == HT_FORMAT ? hti_rows_refuse(r->ctx, r->desc, r->info, name, 1) : status;
}

static ht_status read_class(reading *r, const char *path, const char *label) {
    r->label = (hti_cell){label, strlen(label)};
    return hti_stream_read(r->ctx, path, take_piece, r);
}

static ht_status read_classes(reading *r) {
    const char *path = r->desc->path;
    char name[NAME];
    struct dirent **list;
    int classes = 0, count = path ? scandir(path, &list, not_hidden, alphasort) : -1;
    CHECK(r->ctx, path, HT_INVALID, "a folder per class needs a path");
    CHECK(r->ctx, count >= 0, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    ht_status status = HT_OK;
    const char *out = "";
    for (int i = 0; i < count && status == HT_OK; i++) {
        if (type_of(name, path, list[i]->d_name) != 'd') continue;
        if (is_left_out(path, list[i]->d_name)) {
            out = ", unsup left out";
            continue;
        }
        status = read_class(r, name, list[i]->d_name);
        classes++;
    }
    free_list(list, count);
    TRY(status);
    CHECK(r->ctx, classes > 0, HT_FORMAT, "%s has no folders, one per label, with texts in them",
          path);
    snprintf(r->info->about, sizeof r->info->about, "a folder per label, %d of them%s", classes,
             out);
    return HT_OK;
}

ht_status hti_folders_read(ht_context *ctx, const ht_rows_desc *desc, ht_rows_info *info,
                           hti_each_row *each, void *user) {
    reading r = {.ctx = ctx, .desc = desc, .info = info, .each = each, .user = user};
    CHECK(ctx, desc->texts != 2, HT_INVALID, "a folder per class holds no pairs of texts");
    r.text.ctx = ctx;
    ht_status status = read_classes(&r);
    hti_buffer_free(&r.text);
    return status;
}
