/*
 * Labelled texts: rows become tokens and labels. Bytes, or expressions if the data is ListOps,
 * whose labels are numbers. Pairs of papers are label, id, id beside a file of id<TAB>text, or the
 * Long Range Arena's five columns, label, two ids, two texts: every paper is kept once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/philox.h"
#include "core/sized.h"
#include "data/lra/set.h"
#include "data/rows/rows.h"

typedef struct filler {
    ht_data *data;
    ht_data *valid; /* takes what is held out; NULL: only one part is wanted */
    const ht_data_desc *desc;
    const hti_names *fixed; /* labels must be of these; NULL: new ones may come */
    hti_names seen;         /* new ones as they came */
    int64_t items;          /* of all parts */
    hti_papers papers;      /* number i is sequence i of the data */
} filler;

int hti_held_out(int64_t index, double share) {
    hti_philox w = hti_philox_draw(0x7A11D, (uint32_t)index, (uint32_t)(index >> 32), 0, 0);
    return (double)w.w[0] < share * 4294967296.0;
}

static int shown(hti_cell c) { return c.bytes < 40 ? (int)c.bytes : 40; }

/* ---- texts ---- */

static ht_status add_expression(ht_data *d, const char *text, size_t bytes) {
    int64_t room = (int64_t)bytes + 1, count = 0;
    uint16_t *ids = hti_host_alloc(d->ctx, sizeof *ids * (size_t)room);
    CHECK(d->ctx, ids, HT_NOMEM, "out of memory: an expression of %zu bytes", bytes);
    ht_status status = hti_listops_encode(d->ctx, text, bytes, ids, room, &count);
    if (status == HT_OK) status = hti_data_add_ids(d, ids, count);
    hti_host_free(d->ctx, ids);
    return status;
}

static ht_status add_text(ht_data *d, hti_cell text) {
    CHECK(d->ctx, text.bytes > 0, HT_FORMAT, "the text is empty");
    return d->config.format == HTI_FORMAT_LISTOPS ? add_expression(d, text.at, text.bytes)
                                                  : hti_data_add_bytes(d, text.at, text.bytes);
}

/* Which papers of this reading an item has; a new one (five columns) is added. */
static ht_status add_paper(filler *f, hti_cell id, hti_cell text) {
    ht_data *d = f->data;
    int32_t paper = hti_papers_find(&f->papers, id.at, id.bytes);
    if (paper < 0) {
        CHECK(d->ctx, text.at, HT_FORMAT, "there is no paper '%.*s' in %s", shown(id), id.at,
              f->desc->papers);
        paper = (int32_t)f->papers.ids.count;
        TRY(hti_papers_add(&f->papers, id.at, id.bytes, 0));
        TRY(add_text(d, text));
    }
    return hti_buffer_add(&d->papers, &paper, sizeof paper);
}

static ht_status keep_text(ht_data *d, hti_cell text) {
    TRY(hti_buffer_add(&d->texts, text.at, text.bytes));
    int64_t end = (int64_t)d->texts.used;
    return hti_buffer_add(&d->text_ends, &end, sizeof end);
}

static ht_status add_texts(filler *f, ht_data *d, const hti_cell cell[HTI_COLUMNS]) {
    int five = cell[HTI_ID].at != NULL;
    if (!cell[HTI_TEXT2].at) {
        TRY(add_text(d, cell[HTI_TEXT]));
        return f->desc->keep_texts ? keep_text(d, cell[HTI_TEXT]) : HT_OK;
    }
    for (int i = 0; i < 2; i++)
        if (five)
            TRY(add_paper(f, cell[HTI_ID + i], cell[HTI_TEXT + i]));
        else if (f->desc->papers)
            TRY(add_paper(f, cell[HTI_TEXT + i], (hti_cell){0}));
        else
            TRY(add_text(d, cell[HTI_TEXT + i]));
    return HT_OK;
}

/* ---- labels ---- */

static ht_status find_label(filler *f, hti_cell label, int32_t *number) {
    const ht_data *d = f->data;
    char all[256];
    if (!label.at) { /* looked at by nobody */
        *number = 0;
        return HT_OK;
    }
    if (!f->fixed) return hti_names_add(&f->seen, label.at, label.bytes, number);
    *number = hti_labels_find(f->fixed, label.at, label.bytes);
    hti_labels_list(all, sizeof all, f->fixed);
    CHECK(d->ctx, *number >= 0, HT_FORMAT,
          "the label '%.*s' is none of the %lld that are known: %s", shown(label), label.at,
          (long long)f->fixed->count, all);
    return HT_OK;
}

static ht_status add_row(void *user, const hti_row *row) {
    filler *f = user;
    double share = f->desc->holdout;
    int32_t label;
    TRY(find_label(f, row->cell[HTI_LABEL], &label));
    int held = share > 0 && hti_held_out(f->items++, share);
    if (share > 0 && !f->valid && held != (f->desc->part == HT_PART_VALID)) return HT_OK;
    ht_data *d = f->valid && held ? f->valid : f->data;
    TRY(add_texts(f, d, row->cell));
    return hti_data_add_label(d, label);
}

/* Every row has a label of its own: that column is none of labels. */
static ht_status check_labels(const filler *f, const ht_rows_info *info) {
    const ht_data *d = f->data;
    const char *path = f->desc->path, *first = f->seen.count ? hti_names_at(&f->seen, 0, NULL) : "";
    enum { FEW = 8, MOST = 65536 };
    CHECK(d->ctx, info->rows > 0, HT_FORMAT, "%s has no rows (%s)", path,
          info->about[0] ? info->about : "it is empty");
    if (d->classes_asked) return HT_OK; /* settle_labels compares */
    CHECK(d->ctx, f->seen.count > 1, HT_INVALID,
          "%s: all %lld rows have the label '%s'; to tell classes apart takes two (%s)", path,
          (long long)info->rows, first, info->about);
    CHECK(d->ctx, f->seen.count < FEW || f->seen.count < info->rows, HT_INVALID,
          "%s: each of the %lld rows has a label of its own, the first '%.64s': is another column "
          "the label? (%s)",
          path, (long long)info->rows, first, info->about);
    CHECK(d->ctx, f->seen.count <= MOST, HT_UNSUPPORTED,
          "%s has %lld labels; at most 65536 are supported", path, (long long)f->seen.count);
    return HT_OK;
}

static void renumber(ht_data *d, const int32_t *number) {
    int32_t *labels = (int32_t *)(void *)d->labels.data;
    for (int64_t i = 0; i < d->items; i++) labels[i] = number[labels[i]];
}

/* The labels' numbers are known when all of them are: those in the data so far are arrivals. */
static ht_status settle_labels(filler *f) {
    ht_data *d = f->data;
    char all[256];
    int32_t *number = hti_host_alloc(d->ctx, sizeof *number * (size_t)f->seen.count);
    CHECK(d->ctx, number, HT_NOMEM, "out of memory: %lld labels", (long long)f->seen.count);
    ht_status status = hti_labels_settle(&d->names, number, &f->seen, d->classes_asked);
    if (status == HT_OK) renumber(d, number);
    if (status == HT_OK && f->valid) renumber(f->valid, number);
    hti_host_free(d->ctx, number);
    TRY(status);
    hti_labels_list(all, sizeof all, &d->names);
    CHECK(d->ctx, d->classes_asked == 0 || d->classes_asked == d->names.count, HT_INVALID,
          "classes is %lld, but %s has %lld labels: %s; without classes they are counted",
          (long long)d->classes_asked, f->desc->path, (long long)d->names.count, all);
    d->config.classes = d->names.count;
    return HT_OK;
}

/* ---- papers: id<TAB>text ---- */

static ht_status add_paper_line(filler *f, hti_cell line) {
    ht_context *ctx = f->data->ctx;
    const char *tab = memchr(line.at, '\t', line.bytes);
    hti_cell id = {line.at, tab ? (size_t)(tab - line.at) : 0};
    CHECK(ctx, id.bytes, HT_FORMAT, "a line of papers must be id<TAB>text");
    CHECK(ctx, hti_papers_find(&f->papers, id.at, id.bytes) < 0, HT_FORMAT,
          "the id '%.*s' is there twice", shown(id), id.at);
    TRY(hti_papers_add(&f->papers, id.at, id.bytes, 0));
    return add_text(f->data, (hti_cell){tab + 1, line.bytes - id.bytes - 1});
}

static ht_status read_paper(void *user, const char *name, int64_t number, const char *line,
                            size_t bytes) {
    filler *f = user;
    ht_context *ctx = f->data->ctx;
    char why[sizeof ctx->error];
    ht_status status = add_paper_line(f, (hti_cell){line, bytes});
    if (status != HT_FORMAT) return status;
    snprintf(why, sizeof why, "%s", ht_context_error(ctx));
    return hti_fail(ctx, HT_FORMAT, "%s:%lld: %s", name, (long long)number, why);
}

static ht_status read_papers(void *user, const char *name, const char *bytes, size_t count) {
    return hti_source_lines(user, name, bytes, count, read_paper);
}

/* ---- all of it ---- */

/* Labels that are known before: those of a model or of other data; expressions have numbers. */
static ht_status fix_labels(filler *f) {
    ht_data *d = f->data;
    if (d->config.task == HTI_TASK_DENOISE) return HT_OK;
    if (f->desc->labels) {
        TRY(hti_names_copy(&d->names, f->desc->labels));
        d->config.classes = d->names.count;
    } else if (d->config.format == HTI_FORMAT_LISTOPS)
        TRY(hti_names_count(&d->names, d->config.classes));
    f->fixed = d->names.count ? &d->names : NULL;
    return HT_OK;
}

static ht_status read_rows(filler *f) {
    ht_data *d = f->data;
    ht_rows_desc rows = HT_ROWS_DESC_INIT;
    if (f->desc->rows) TRY(HTI_TAKE(d->ctx, ht_rows_desc, &rows, f->desc->rows));
    rows.path = f->desc->path;
    rows.texts = d->config.task == HTI_TASK_PAIRS ? 2 : 1;
    rows.unlabelled = d->config.task == HTI_TASK_DENOISE;
    if (rows.most == 0 && d->config.length > 1 << 21) rows.most = 8 * (size_t)d->config.length;
    TRY(hti_rows_read(d->ctx, &rows, f->fixed, &d->rows, add_row, f));
    if (rows.unlabelled || f->fixed) return HT_OK;
    TRY(check_labels(f, &d->rows));
    return settle_labels(f);
}

/* What is known of all rows. */
static ht_status share_labels(ht_data *valid, const ht_data *d) {
    valid->rows = d->rows;
    valid->config.classes = d->config.classes;
    return d->names.count ? hti_names_copy(&valid->names, &d->names) : HT_OK;
}

ht_status hti_labelled_read(ht_data *d, ht_data *valid, const ht_data_desc *desc) {
    filler f = {.data = d, .valid = valid, .desc = desc, .seen = {.ctx = d->ctx}};
    CHECK(d->ctx, desc->path, HT_INVALID, "labelled texts need a path");
    CHECK(d->ctx, d->config.task != HTI_TASK_LANGUAGE, HT_INVALID,
          "a language model learns from text, not from labelled rows");
    CHECK(d->ctx, !desc->papers || d->config.task == HTI_TASK_PAIRS, HT_INVALID,
          "papers are for pairs, got task %s", hti_config_choice("task", (int)d->config.task));
    hti_papers_begin(&f.papers, d->ctx);
    ht_status status = fix_labels(&f);
    if (status == HT_OK && desc->papers)
        status = hti_source_read(d->ctx, desc->papers, read_papers, &f);
    if (status == HT_OK) status = read_rows(&f);
    if (status == HT_OK && valid) status = share_labels(valid, d);
    hti_papers_free(&f.papers);
    hti_names_free(&f.seen);
    return status;
}
