/*
 * Labelled texts, one per line: label<TAB>text, of pairs label<TAB>text<TAB>text. Bytes, or
 * expressions if the data is ListOps. A first line "Source<TAB>Target" (the Long Range Arena's
 * ListOps files) means text<TAB>label. Pairs of papers are label<TAB>id<TAB>id beside a file of
 * id<TAB>text, or the Long Range Arena's five columns, label, two ids, two texts: every paper is
 * kept once.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/philox.h"
#include "data/lra/set.h"

typedef struct tsv {
    ht_data *data;
    const ht_data_desc *desc;
    int64_t seen; /* items of all files, of all parts */
    int text_first, five;
    hti_papers papers; /* number i is sequence i of the data */
} tsv;

int hti_held_out(int64_t index, double share) {
    hti_philox w = hti_philox_draw(0x7A11D, (uint32_t)index, (uint32_t)(index >> 32), 0, 0);
    return (double)w.w[0] < share * 4294967296.0;
}

/* Where a line stands, for messages. */
typedef struct place {
    const char *name;
    long long line;
} place;

static ht_status read_label(const ht_data *d, const place *at, const char *text, size_t bytes,
                            int32_t *out) {
    char word[32], *end;
    CHECK(d->ctx, bytes > 0 && bytes < sizeof word, HT_FORMAT,
          "%s:%lld: the label must be a whole number, got '%.*s'", at->name, at->line,
          bytes < 40 ? (int)bytes : 40, text);
    memcpy(word, text, bytes);
    word[bytes] = '\0';
    double x = strtod(word, &end);
    CHECK(d->ctx, end != word && *end == '\0' && x == floor(x), HT_FORMAT,
          "%s:%lld: the label must be a whole number, got '%s'", at->name, at->line, word);
    CHECK(d->ctx, x >= 0 && x < (double)d->config.classes, HT_FORMAT,
          "%s:%lld: label %s is out of range: classes is %lld, so labels are 0 to %lld", at->name,
          at->line, word, (long long)d->config.classes, (long long)d->config.classes - 1);
    *out = (int32_t)x;
    return HT_OK;
}

static ht_status add_expression(ht_data *d, const char *text, size_t bytes) {
    int64_t room = (int64_t)bytes + 1, count = 0;
    uint16_t *ids = hti_host_alloc(d->ctx, sizeof *ids * (size_t)room);
    CHECK(d->ctx, ids, HT_NOMEM, "out of memory: an expression of %zu bytes", bytes);
    ht_status status = hti_listops_encode(d->ctx, text, bytes, ids, room, &count);
    if (status == HT_OK) status = hti_data_add_ids(d, ids, count);
    hti_host_free(d->ctx, ids);
    return status;
}

static ht_status add_text(ht_data *d, const place *at, const char *text, size_t bytes) {
    CHECK(d->ctx, bytes > 0, HT_FORMAT, "%s:%lld: the text is empty", at->name, at->line);
    if (d->config.format != HT_FORMAT_LISTOPS) return hti_data_add_bytes(d, text, bytes);
    ht_status status = add_expression(d, text, bytes);
    if (status != HT_FORMAT) return status;
    char why[256];
    strncpy(why, ht_context_error(d->ctx), sizeof why - 1);
    why[sizeof why - 1] = '\0';
    return hti_fail(d->ctx, HT_FORMAT, "%s:%lld: %s", at->name, at->line, why);
}

/* Which papers of this reading an item has; a new one (five columns) is added. */
static ht_status add_paper(tsv *t, const place *at, const char *id, size_t bytes, const char *text,
                           size_t text_bytes) {
    ht_data *d = t->data;
    CHECK(d->ctx, bytes > 0, HT_FORMAT, "%s:%lld: the id of a paper is empty", at->name, at->line);
    int32_t paper = hti_papers_find(&t->papers, id, bytes);
    if (paper < 0) {
        CHECK(d->ctx, text, HT_FORMAT, "%s:%lld: there is no paper '%.*s' in %s", at->name,
              at->line, bytes < 40 ? (int)bytes : 40, id, t->desc->papers);
        paper = (int32_t)t->papers.count;
        TRY(hti_papers_add(&t->papers, id, bytes, 0));
        TRY(add_text(d, at, text, text_bytes));
    }
    return hti_buffer_add(&d->papers, &paper, sizeof paper);
}

/* Up to `most` columns; the last one has the rest of the line. Returns how many there are. */
typedef struct column {
    const char *at;
    size_t bytes;
} column;

static int split(column *out, int most, const char *line, size_t bytes) {
    int count = 0;
    while (count < most) {
        const char *tab = count + 1 < most ? memchr(line, '\t', bytes) : NULL;
        size_t n = tab ? (size_t)(tab - line) : bytes;
        out[count++] = (column){line, n};
        if (!tab) break;
        line += n + 1, bytes -= n + 1;
    }
    return count;
}

static ht_status add_pair(tsv *t, const place *at, const char *line, size_t bytes) {
    ht_data *d = t->data;
    int columns = t->five ? 5 : 3;
    column c[6];
    CHECK(d->ctx, split(c, t->five ? 6 : 3, line, bytes) == columns, HT_FORMAT,
          t->five ? "%s:%lld: a line must have five columns, as the first one has"
          : t->desc->papers
              ? "%s:%lld: there is no second tab; a line must be label<TAB>id<TAB>id"
              : "%s:%lld: there is no second tab; a line of pairs must be label<TAB>text<TAB>text",
          at->name, at->line);
    for (int i = 1; i <= 2; i++)
        if (t->five)
            TRY(add_paper(t, at, c[i].at, c[i].bytes, c[i + 2].at, c[i + 2].bytes));
        else if (t->desc->papers)
            TRY(add_paper(t, at, c[i].at, c[i].bytes, NULL, 0));
        else
            TRY(add_text(d, at, c[i].at, c[i].bytes));
    return HT_OK;
}

static int is_other_part(tsv *t) {
    return t->desc->holdout > 0 &&
           hti_held_out(t->seen++, t->desc->holdout) != (t->desc->part == HT_PART_VALID);
}

static ht_status read_line(void *user, const char *name, int64_t number, const char *line,
                           size_t bytes) {
    tsv *t = user;
    ht_data *d = t->data;
    const place at = {name, (long long)number};
    int pairs = d->config.task == HT_TASK_PAIRS;
    if (number == 1) {
        column c[6];
        t->text_first = bytes == 13 && memcmp(line, "Source\tTarget", 13) == 0;
        t->five = pairs && !t->desc->papers && split(c, 6, line, bytes) == 5;
        if (t->text_first) return HT_OK;
    }
    const char *tab = memchr(line, '\t', bytes);
    CHECK(d->ctx, tab, HT_FORMAT, "%s:%lld: there is no tab; a line must be label<TAB>text", name,
          at.line);
    const char *text = tab + 1, *label = line;
    size_t label_bytes = (size_t)(tab - line), text_bytes = bytes - label_bytes - 1;
    if (t->text_first) {
        label = text, label_bytes = text_bytes;
        text = line, text_bytes = (size_t)(tab - line);
    }
    int32_t value = 0;
    if (d->config.task != HT_TASK_DENOISE) /* which looks at no label: papers by id will do */
        TRY(read_label(d, &at, label, label_bytes, &value));
    if (is_other_part(t)) return HT_OK;
    TRY(pairs ? add_pair(t, &at, line, bytes) : add_text(d, &at, text, text_bytes));
    return hti_data_add_label(d, value);
}

static ht_status read_file(void *user, const char *name, const char *bytes, size_t count) {
    return hti_source_lines(user, name, bytes, count, read_line);
}

/* ---- papers: id<TAB>text ---- */

static ht_status read_paper(void *user, const char *name, int64_t number, const char *line,
                            size_t bytes) {
    tsv *t = user;
    const place at = {name, (long long)number};
    column c[2];
    CHECK(t->data->ctx, split(c, 2, line, bytes) == 2 && c[0].bytes, HT_FORMAT,
          "%s:%lld: a line of papers must be id<TAB>text", name, at.line);
    CHECK(t->data->ctx, hti_papers_find(&t->papers, c[0].at, c[0].bytes) < 0, HT_FORMAT,
          "%s:%lld: the id '%.*s' is there twice", name, at.line,
          c[0].bytes < 40 ? (int)c[0].bytes : 40, c[0].at);
    TRY(hti_papers_add(&t->papers, c[0].at, c[0].bytes, 0));
    return add_text(t->data, &at, c[1].at, c[1].bytes);
}

static ht_status read_papers(void *user, const char *name, const char *bytes, size_t count) {
    return hti_source_lines(user, name, bytes, count, read_paper);
}

/* ---- reviews in folders neg and pos ---- */

static ht_status add_review(void *user, const char *name, int label, const char *text,
                            size_t bytes) {
    tsv *t = user;
    const place at = {name, 1};
    if (is_other_part(t)) return HT_OK;
    TRY(add_text(t->data, &at, text, bytes));
    return hti_data_add_label(t->data, label);
}

ht_status hti_tsv_read(ht_data *d, const ht_data_desc *desc) {
    tsv t = {.data = d, .desc = desc, .papers = {.ctx = d->ctx}};
    CHECK(d->ctx, desc->path, HT_INVALID, "data from a tsv needs a path");
    CHECK(d->ctx, d->config.task != HT_TASK_LANGUAGE, HT_INVALID,
          "a language model learns from text, not from a tsv");
    CHECK(d->ctx, !desc->papers || d->config.task == HT_TASK_PAIRS, HT_INVALID,
          "papers are for pairs, got task %s", ht_config_choice("task", (int)d->config.task));
    if (d->config.task != HT_TASK_PAIRS && hti_imdb_is_folder(desc->path))
        return hti_imdb_read(d->ctx, desc->path, add_review, &t);
    ht_status status = HT_OK;
    if (desc->papers) status = hti_source_read(d->ctx, desc->papers, read_papers, &t);
    if (status == HT_OK) status = hti_source_read(d->ctx, desc->path, read_file, &t);
    hti_papers_free(&t.papers);
    return status;
}
