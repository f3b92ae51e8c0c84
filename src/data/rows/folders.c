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

static ht_status cannot(ht_context *ctx, const char *path) {
    return hti_fail(ctx, errno == ENOMEM ? HT_NOMEM : HT_IO, "%s could not be opened: %s", path,
                    strerror(errno));
}

/* 'd', 'f', or 0: something else, or gone; links to folders are not followed. */
static ht_status type_of(char *type, ht_context *ctx, char out[NAME], const char *path,
                         const char *name) {
    struct stat about;
    *type = 0;
    CHECK(ctx, snprintf(out, NAME, "%s/%s", path, name) < NAME, HT_IO,
          "%.200s could not be opened: its name is too long", out);
    if (lstat(out, &about) != 0) return errno == ENOENT ? HT_OK : cannot(ctx, out);
    if (S_ISDIR(about.st_mode)) *type = 'd';
    if (S_ISLNK(about.st_mode) && stat(out, &about) != 0)
        return errno == ENOENT || errno == ELOOP ? HT_OK : cannot(ctx, out);
    if (S_ISREG(about.st_mode)) *type = 'f';
    return HT_OK;
}

static ht_status has_folder(int *has, ht_context *ctx, const char *path, const char *name) {
    char whole[NAME], type;
    TRY(type_of(&type, ctx, whole, path, name));
    *has = type == 'd';
    return HT_OK;
}

/* Beside neg and pos the Large Movie Review Dataset has unsup: texts that have no label. */
static ht_status is_left_out(int *left_out, ht_context *ctx, const char *path, const char *name) {
    int neg = 0, pos = 0;
    if (strcmp(name, "unsup") == 0) {
        TRY(has_folder(&neg, ctx, path, "neg"));
        TRY(has_folder(&pos, ctx, path, "pos"));
    }
    *left_out = neg && pos;
    return HT_OK;
}

/* How many files of a folder are texts, and how many are tables of rows by their names. */
static ht_status count_files(ht_context *ctx, const char *path, int *texts, int *tables) {
    char name[NAME], type;
    struct dirent **list;
    int count = scandir(path, &list, not_hidden, alphasort);
    if (count < 0) return cannot(ctx, path);
    ht_status status = HT_OK;
    for (int i = 0; i < count && status == HT_OK; i++) {
        status = type_of(&type, ctx, name, path, list[i]->d_name);
        if (status == HT_OK && type == 'f') ++*(ht_rows_kind_of(name) ? tables : texts);
    }
    free_list(list, count);
    return status;
}

ht_status hti_folders_are_classes(int *are, ht_context *ctx, const char *path) {
    char name[NAME], type;
    struct dirent **list;
    int own = 0, tables = 0, classes = 0, count = scandir(path, &list, not_hidden, alphasort);
    *are = 0;
    if (count < 0) return errno == ENOMEM ? cannot(ctx, path) : HT_OK; /* who reads it will say */
    ht_status status = count_files(ctx, path, &own, &tables);
    for (int i = 0; i < count && status == HT_OK; i++) {
        int texts = 0;
        status = type_of(&type, ctx, name, path, list[i]->d_name);
        if (status == HT_OK && type == 'd') status = count_files(ctx, name, &texts, &tables);
        classes += texts > 0;
    }
    free_list(list, count);
    *are = classes > 1 && tables == 0;
    return status;
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

/* One entry of the folder: a class, or nothing to read. */
static ht_status read_entry(reading *r, const char *entry, int *classes, int *unsup) {
    char name[NAME], type;
    int left_out = 0;
    TRY(type_of(&type, r->ctx, name, r->desc->path, entry));
    if (type != 'd') return HT_OK;
    TRY(is_left_out(&left_out, r->ctx, r->desc->path, entry));
    *unsup |= left_out;
    if (left_out) return HT_OK;
    ++*classes;
    return read_class(r, name, entry);
}

static ht_status read_classes(reading *r) {
    const char *path = r->desc->path;
    struct dirent **list;
    int classes = 0, unsup = 0, count = path ? scandir(path, &list, not_hidden, alphasort) : -1;
    CHECK(r->ctx, path, HT_INVALID, "a folder per class needs a path");
    CHECK(r->ctx, count >= 0, HT_IO, "%s could not be opened: %s", path, strerror(errno));
    ht_status status = HT_OK;
    for (int i = 0; i < count && status == HT_OK; i++)
        status = read_entry(r, list[i]->d_name, &classes, &unsup);
    free_list(list, count);
    TRY(status);
    CHECK(r->ctx, classes > 0, HT_FORMAT, "%s has no folders, one per label, with texts in them",
          path);
    snprintf(r->info->about, sizeof r->info->about, "a folder per label, %d of them%s", classes,
             unsup ? ", unsup left out" : "");
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
