/*
 * Retrieval: pairs of papers of the ACL Anthology Network, label 1 if one cites the other. Papers
 * by their ids, and the set as papers (id<TAB>text) and pairs (label<TAB>id<TAB>id).
 */
#include <string.h>

#include "data/lra/set.h"

void hti_papers_begin(hti_papers *p, ht_context *ctx) {
    *p = (hti_papers){.ids = {.ctx = ctx}, .sums = {.ctx = ctx}};
}

int32_t hti_papers_find(const hti_papers *p, const char *id, size_t bytes) {
    return hti_names_find(&p->ids, id, bytes);
}

ht_status hti_papers_add(hti_papers *p, const char *id, size_t bytes, uint64_t sum) {
    int32_t number;
    CHECK(p->ids.ctx, bytes > 0, HT_FORMAT, "the id of a paper is empty");
    TRY(hti_names_add(&p->ids, id, bytes, &number));
    return hti_buffer_add(&p->sums, &sum, sizeof sum);
}

uint64_t hti_papers_sum(const hti_papers *p, int32_t paper) {
    return ((const uint64_t *)(const void *)p->sums.data)[paper];
}

void hti_papers_free(hti_papers *p) {
    hti_names_free(&p->ids);
    hti_buffer_free(&p->sums);
}

/* ---- the set ---- */

enum { TEXT = 10000 }; /* bytes kept of a paper, as the benchmark keeps them */

typedef struct column {
    const char *at;
    size_t bytes;
} column;

typedef struct importing {
    hti_set *set;
    hti_papers papers;
    hti_pack text, pairs;
    int part, columns;
} importing;

/* Exactly `count` columns, none empty. */
static ht_status split(importing *im, column *out, int count, const char *name, int64_t number,
                       const char *line, size_t bytes) {
    int found = 0;
    for (const char *end = line + bytes; found < count;) {
        const char *tab = memchr(line, '\t', (size_t)(end - line));
        out[found++] = (column){line, (size_t)((tab ? tab : end) - line)};
        if (out[found - 1].bytes == 0) found = count + 1;
        if (!tab) break;
        if (found == count) found++;
        line = tab + 1;
    }
    CHECK(im->set->ctx, found == count, HT_FORMAT, "%s:%lld: a line must have %d columns", name,
          (long long)number, count);
    return HT_OK;
}

static ht_status put_paper(importing *im, const column *id, column text) {
    if (text.bytes > TEXT) text.bytes = TEXT;
    uint64_t sum = hti_sum_add(hti_sum_begin(0), text.at, text.bytes);
    TRY(hti_papers_add(&im->papers, id->at, id->bytes, sum));
    TRY(hti_pack_put(&im->text, id->at, id->bytes));
    TRY(hti_pack_put(&im->text, "\t", 1));
    TRY(hti_pack_put(&im->text, text.at, text.bytes));
    return hti_pack_put(&im->text, "\n", 1);
}

static ht_status read_paper(void *user, const char *name, int64_t number, const char *line,
                            size_t bytes) {
    importing *im = user;
    column c[2];
    TRY(split(im, c, 2, name, number, line, bytes));
    CHECK(im->set->ctx, hti_papers_find(&im->papers, c[0].at, c[0].bytes) < 0, HT_FORMAT,
          "%s:%lld: the id '%.*s' is there twice", name, (long long)number,
          c[0].bytes < 40 ? (int)c[0].bytes : 40, c[0].at);
    return put_paper(im, &c[0], c[1]);
}

/* The paper of a pair: known, or new in a line that brings its text. */
static ht_status see_paper(importing *im, uint64_t *sum, const char *name, int64_t number,
                           const column *id, const column *text) {
    int32_t paper = hti_papers_find(&im->papers, id->at, id->bytes);
    int shown = id->bytes < 40 ? (int)id->bytes : 40;
    CHECK(im->set->ctx, paper >= 0 || text, HT_FORMAT, "%s:%lld: there is no paper '%.*s'", name,
          (long long)number, shown, id->at);
    if (paper < 0) {
        paper = (int32_t)im->papers.ids.count;
        TRY(put_paper(im, id, *text));
    } else if (text) {
        size_t bytes = text->bytes < TEXT ? text->bytes : TEXT;
        CHECK(im->set->ctx,
              hti_papers_sum(&im->papers, paper) == hti_sum_add(hti_sum_begin(0), text->at, bytes),
              HT_FORMAT, "%s:%lld: the id '%.*s' is there twice, with different texts", name,
              (long long)number, shown, id->at);
    }
    uint64_t own = hti_papers_sum(&im->papers, paper);
    *sum = hti_sum_add(hti_sum_add(*sum, id->at, id->bytes), &own, sizeof own);
    return HT_OK;
}

static ht_status read_pair(void *user, const char *name, int64_t number, const char *line,
                           size_t bytes) {
    importing *im = user;
    column c[5];
    TRY(split(im, c, im->columns, name, number, line, bytes));
    int label = c[0].at[0] == '1', texts = im->columns == 5;
    int good = (c[0].at[0] == '0' || label) &&
               (c[0].bytes == 1 || (c[0].bytes == 3 && memcmp(c[0].at + 1, ".0", 2) == 0));
    CHECK(im->set->ctx, good, HT_FORMAT, "%s:%lld: the label must be 0 or 1, got '%.*s'", name,
          (long long)number, c[0].bytes < 40 ? (int)c[0].bytes : 40, c[0].at);
    uint64_t sum = hti_sum_begin(label);
    for (int i = 1; i <= 2; i++) {
        TRY(see_paper(im, &sum, name, number, &c[i], texts ? &c[i + 2] : NULL));
        TRY(hti_pack_put(&im->pairs, i == 1 ? (label ? "1\t" : "0\t") : "\t", i == 1 ? 2 : 1));
        TRY(hti_pack_put(&im->pairs, c[i].at, c[i].bytes));
    }
    TRY(hti_pack_put(&im->pairs, "\n", 1));
    hti_set_count(im->set, im->part, sum, 0);
    return hti_set_tell(im->set, 1);
}

static ht_status read_papers(void *user, const char *name, const char *bytes, size_t count) {
    return hti_source_lines(user, name, bytes, count, read_paper);
}
static ht_status read_pairs(void *user, const char *name, const char *bytes, size_t count) {
    return hti_source_lines(user, name, bytes, count, read_pair);
}

/* The first of these files that is there; NULL ends the list. */
static ht_status find_first(char **out, const hti_set *s, const char *const *names) {
    for (*out = NULL; *names && !*out; names++)
        TRY(hti_set_find(out, s->ctx, s->desc->source, *names));
    return HT_OK;
}

static ht_status import_part(importing *im, int official) {
    static const char *const names[][3] = {
        {"pairs-matched-train.tsv", "aan-train.tsv", NULL},
        {"pairs-matched-valid.tsv", "aan-valid.tsv", NULL},
        {"pairs-matched-test.tsv", "aan-test.tsv", NULL},
        {"new_aan_pairs.train.tsv", NULL},
        {"new_aan_pairs.eval.tsv", NULL},
        {"new_aan_pairs.test.tsv", NULL},
    };
    static const int64_t items[] = {123246, 15482, 14782, 147086, 18090, 17437};
    hti_set *s = im->set;
    char name[32], *path;
    TRY(find_first(&path, s, names[im->part + 3 * official]));
    CHECK(s->ctx, path, HT_IO, "%s has no %s", s->desc->source, names[im->part + 3 * official][0]);
    snprintf(name, sizeof name, "%s.tsv", hti_set_parts[im->part]);
    ht_status status = hti_pack_open(&im->pairs, s, name);
    if (status == HT_OK) status = hti_source_read(s->ctx, path, read_pairs, im);
    if (status == HT_OK) status = hti_set_expect(s, im->part, items[im->part + 3 * official]);
    if (status == HT_OK) status = hti_pack_close(&im->pairs);
    hti_pack_discard(&im->pairs);
    hti_host_free(s->ctx, path);
    return status;
}

ht_status hti_aan_import(hti_set *s) {
    static const char *const names[] = {"aan-papers-4k.tsv", "aan-papers.tsv", NULL};
    importing im = {.set = s};
    char *papers;
    hti_papers_begin(&im.papers, s->ctx);
    TRY(find_first(&papers, s, names));
    im.columns = papers ? 3 : 5;
    s->all = papers ? 153510 : 182613;
    ht_status status = hti_pack_open(&im.text, s, "papers.tsv");
    if (status == HT_OK && papers) status = hti_source_read(s->ctx, papers, read_papers, &im);
    for (im.part = 0; im.part < 3 && status == HT_OK; im.part++) status = import_part(&im, !papers);
    if (status == HT_OK) status = hti_pack_close(&im.text);
    hti_pack_discard(&im.text);
    hti_papers_free(&im.papers);
    hti_host_free(s->ctx, papers);
    return status;
}
