/*
 * Text: reviews of films, as the Large Movie Review Dataset has them: train and test, each with a
 * folder neg (label 0) and pos (label 1) of one file per review.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/lra/set.h"

enum { MOST = 1 << 24, PART = 25000 };

static int is_folder(const char *path, const char *name) {
    char whole[4096];
    struct stat about;
    return snprintf(whole, sizeof whole, "%s/%s", path, name) < (int)sizeof whole &&
           stat(whole, &about) == 0 && S_ISDIR(about.st_mode);
}

int hti_imdb_is_folder(const char *path) {
    return is_folder(path, "neg") && is_folder(path, "pos");
}

static int blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static ht_status read_review(ht_context *ctx, const char *path, int label, hti_each_review *each,
                             void *user) {
    char *bytes;
    size_t count = 0;
    TRY(hti_file_read(ctx, &bytes, &count, path, MOST));
    const char *text = bytes;
    while (count > 0 && blank(text[0])) text++, count--;
    while (count > 0 && blank(text[count - 1])) count--;
    ht_status status = count ? each(user, path, label, text, count)
                             : hti_fail(ctx, HT_FORMAT, "%s is empty", path);
    hti_host_free(ctx, bytes);
    return status;
}

static int is_review(const struct dirent *entry) {
    size_t n = strlen(entry->d_name);
    return n > 4 && strcmp(entry->d_name + n - 4, ".txt") == 0;
}

ht_status hti_imdb_read(ht_context *ctx, const char *path, hti_each_review *each, void *user) {
    for (int label = 0; label < 2; label++) {
        char folder[4096], name[4352];
        struct dirent **list;
        int length = snprintf(folder, sizeof folder, "%s/%s", path, label ? "pos" : "neg");
        CHECK(ctx, length < (int)sizeof folder, HT_IO, "the name of %.200s... is too long", path);
        int count = scandir(folder, &list, is_review, alphasort);
        CHECK(ctx, count >= 0, HT_IO, "%s could not be opened: %s", folder, strerror(errno));
        ht_status status = HT_OK;
        for (int i = 0; i < count; i++) {
            snprintf(name, sizeof name, "%s/%s", folder, list[i]->d_name);
            free(list[i]);
            if (status == HT_OK) status = read_review(ctx, name, label, each, user);
        }
        free(list);
        TRY(status);
        CHECK(ctx, count > 0, HT_FORMAT, "%s has no reviews, files that end in .txt", folder);
    }
    return HT_OK;
}

/* ---- as a set of two files ---- */

typedef struct importing {
    hti_set *set;
    hti_pack pack;
    hti_buffer line;
    int part;
    int64_t positive;
} importing;

static ht_status put_review(void *user, const char *name, int label, const char *text,
                            size_t bytes) {
    importing *im = user;
    (void)name;
    im->line.used = 0;
    TRY(hti_buffer_add(&im->line, label ? "1\t" : "0\t", 2));
    TRY(hti_buffer_add(&im->line, text, bytes));
    TRY(hti_buffer_add(&im->line, "\n", 1));
    for (size_t i = 2; i + 1 < im->line.used; i++) /* a review is one line, and one column */
        if (im->line.data[i] == '\t' || im->line.data[i] == '\n') im->line.data[i] = ' ';
    im->positive += label;
    hti_set_count(im->set, im->part,
                  hti_sum_add(hti_sum_begin(label), im->line.data + 2, im->line.used - 3),
                  (int64_t)bytes);
    TRY(hti_pack_put(&im->pack, im->line.data, im->line.used));
    return hti_set_tell(im->set, 1);
}

static ht_status put_line(void *user, const char *name, int64_t number, const char *line,
                          size_t bytes) {
    importing *im = user;
    CHECK(im->set->ctx, bytes > 2 && line[1] == '\t' && (line[0] == '0' || line[0] == '1'),
          HT_FORMAT, "%s:%lld: a review must be 0<TAB>text or 1<TAB>text", name, (long long)number);
    return put_review(user, name, line[0] - '0', line + 2, bytes - 2);
}

static ht_status put_file(void *user, const char *name, const char *bytes, size_t count) {
    return hti_source_lines(user, name, bytes, count, put_line);
}

static ht_status read_part(importing *im) {
    ht_context *ctx = im->set->ctx;
    const char *source = im->set->desc->source, *part = hti_set_parts[im->part];
    char folder[4096], name[64];
    int length = snprintf(folder, sizeof folder, "%s/%s", source, part);
    CHECK(ctx, length < (int)sizeof folder, HT_IO, "the name of %.200s... is too long", source);
    if (hti_imdb_is_folder(folder)) return hti_imdb_read(ctx, folder, put_review, im);
    snprintf(name, sizeof name, "imdb-%s.tsv", part);
    char *file;
    TRY(hti_set_find(&file, ctx, source, name));
    CHECK(ctx, file, HT_IO, "%s has neither %s/neg and %s/pos nor %s", source, part, part, name);
    ht_status status = hti_source_read(ctx, file, put_file, im);
    hti_host_free(ctx, file);
    return status;
}

ht_status hti_imdb_import(hti_set *s) {
    ht_status status = HT_OK;
    s->all = 2 * PART;
    for (int part = 0; part < 3 && status == HT_OK; part += 2) {
        importing im = {.set = s, .part = part, .line = {.ctx = s->ctx}};
        status = hti_pack_open(&im.pack, s, part ? "test.tsv" : "train.tsv");
        if (status == HT_OK) status = read_part(&im);
        if (status == HT_OK) status = hti_set_expect(s, part, PART);
        if (status == HT_OK && !s->desc->unchecked && im.positive != PART / 2)
            status = hti_fail(s->ctx, HT_FORMAT, "%s: %lld reviews of %s are positive, not half",
                              s->desc->source, (long long)im.positive, hti_set_parts[part]);
        if (status == HT_OK) status = hti_pack_close(&im.pack);
        hti_pack_discard(&im.pack);
        hti_buffer_free(&im.line);
    }
    return status;
}
