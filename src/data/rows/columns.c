/*
 * Which column is the label, which the text: by the names that were asked for, by usual names, by
 * their places.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/rows/rows.h"

/* Usual names, the surest first; letters are lower case, blanks and dashes are _. */
static const char *const usual_texts[] = {
    "text",        "sentence", "review",    "content",      "body",     "message", "comment",
    "document",    "article",  "tweet",     "post",         "email",    "sms",     "review_text",
    "description", "abstract", "utterance", "comment_text", "sequence", "seq",     "source",
    "input",       "question", "headline",  "title",        NULL};
static const char *const usual_labels[] = {
    "label",   "labels",   "class",       "category", "target",  "sentiment", "stars",    "rating",
    "topic",   "intent",   "class_index", "score",    "emotion", "genre",     "polarity", "spam",
    "is_spam", "language", "lang",        "y",        "tag",     NULL};
static const char *const usual_pairs[][2] = {
    {"text1", "text2"},         {"text_1", "text_2"},         {"text_a", "text_b"},
    {"sentence1", "sentence2"}, {"sentence_1", "sentence_2"}, {"premise", "hypothesis"},
    {"question1", "question2"}, {"question", "answer"},       {"query", "document"},
    {"query", "passage"},       {"question", "sentence"},
};

hti_cell hti_trim(hti_cell c) {
    while (c.bytes && isspace((unsigned char)c.at[0])) c.at++, c.bytes--;
    while (c.bytes && isspace((unsigned char)c.at[c.bytes - 1])) c.bytes--;
    return c;
}

int hti_whole(int64_t *out, const char *label, size_t bytes) {
    enum { MOST = 15 }; /* digits that a double holds exactly */
    size_t at = bytes && (label[0] == '-' || label[0] == '+'), from = at;
    int64_t x = 0;
    for (; at < bytes && isdigit((unsigned char)label[at]); at++)
        if (at - from < MOST) x = 10 * x + (label[at] - '0');
    size_t digits = at - from;
    if (digits == 0 || digits > MOST || (digits > 1 && label[from] == '0')) return 0;
    if (at < bytes && label[at] == '.' && ++at < bytes)
        while (at < bytes && label[at] == '0') at++;
    *out = label[0] == '-' ? -x : x;
    return at == bytes && label[bytes - 1] != '.';
}

/* ---- names ---- */

static int is_usual(hti_cell cell, const char *name) {
    cell = hti_trim(cell);
    if (strlen(name) != cell.bytes) return 0;
    for (size_t i = 0; i < cell.bytes; i++) {
        char c = (char)tolower((unsigned char)cell.at[i]);
        if ((c == ' ' || c == '-' ? '_' : c) != name[i]) return 0;
    }
    return 1;
}

static int find_usual(const hti_cell *cells, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (is_usual(cells[i], name)) return i;
    return -1;
}

static int find_first(const hti_cell *cells, int count, const char *const *names) {
    int at = -1;
    for (; *names && at < 0; names++) at = find_usual(cells, count, *names);
    return at;
}

/* Two texts stand side by side in one list of names. */
static void find_texts(int at[HTI_COLUMNS], const hti_cell *cells, int count, int texts) {
    if (texts == 1) at[HTI_TEXT] = find_first(cells, count, usual_texts);
    for (size_t i = 0; texts == 2 && i < sizeof usual_pairs / sizeof *usual_pairs; i++) {
        int a = find_usual(cells, count, usual_pairs[i][0]);
        int b = find_usual(cells, count, usual_pairs[i][1]);
        if (a < 0 || b < 0) continue;
        at[HTI_TEXT] = a, at[HTI_TEXT2] = b;
        return;
    }
}

/* "label, text, id", as much as there is room for. */
static void list(char *out, size_t bytes, const hti_cell *cells, int count) {
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < count && used + 48 < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%.*s", i ? ", " : "",
                                 cells[i].bytes < 32 ? (int)cells[i].bytes : 32, cells[i].at);
    if (used + 48 >= bytes) snprintf(out + used, bytes - used, ", ...");
}

/* ---- what was asked for ---- */

/* The names or numbers that desc gives; at NULL: none. */
static void asked(hti_cell out[HTI_ID], const ht_rows_desc *desc) {
    memset(out, 0, HTI_ID * sizeof *out);
    if (desc->label_column && !desc->unlabelled)
        out[HTI_LABEL] = (hti_cell){desc->label_column, strlen(desc->label_column)};
    if (!desc->text_column) return;
    const char *comma = desc->texts == 2 ? strchr(desc->text_column, ',') : NULL;
    size_t bytes = comma ? (size_t)(comma - desc->text_column) : strlen(desc->text_column);
    out[HTI_TEXT] = hti_trim((hti_cell){desc->text_column, bytes});
    if (comma) out[HTI_TEXT2] = hti_trim((hti_cell){comma + 1, strlen(comma + 1)});
}

static int is_number(hti_cell c) {
    for (size_t i = 0; i < c.bytes; i++)
        if (!isdigit((unsigned char)c.at[i])) return 0;
    return c.bytes > 0 && c.bytes < 9;
}

static int find_name(hti_cell name, const hti_cell *cells, int count) {
    for (int i = 0; i < count; i++) {
        hti_cell c = hti_trim(cells[i]);
        if (c.bytes == name.bytes && memcmp(c.at, name.at, c.bytes) == 0) return i;
    }
    return -1;
}

/* The column that a name or a number asks for. */
static ht_status find_asked(int *out, ht_context *ctx, const char *file, hti_cell name, int numbers,
                            const hti_cell *cells, int count) {
    char all[256];
    int shown = name.bytes < 64 ? (int)name.bytes : 64;
    *out = find_name(name, cells, count);
    if (*out >= 0) return HT_OK;
    list(all, sizeof all, cells, count);
    CHECK(ctx, numbers && is_number(name), HT_INVALID, "%s has no column '%.*s', but: %s", file,
          shown, name.at, all);
    *out = (int)strtol(name.at, NULL, 10) - 1;
    CHECK(ctx, *out >= 0 && *out < count, HT_INVALID, "%s has no column %.*s: it has %d: %s", file,
          shown, name.at, count, all);
    return HT_OK;
}

/* ---- all of it ---- */

typedef struct finder {
    ht_context *ctx;
    const char *file;
    hti_shape shape;
    const ht_rows_desc *desc;
    const hti_cell *cells;
    int count;
    hti_cell asked[HTI_ID];
    int texts;
} finder;

/* Was a name asked for, one that is no number? Then the first record has names. */
static int names_asked(const finder *f) {
    for (int i = 0; i < HTI_ID; i++)
        if (f->asked[i].at && !is_number(f->asked[i])) return 1;
    return 0;
}

static ht_status ask(const finder *f) {
    char all[256];
    list(all, sizeof all, f->cells, f->count);
    const char *pair = f->texts == 2 ? "s" : "";
    return hti_fail(f->ctx, HT_INVALID,
                    "%s: which column is what? Name the text%s (text_column) and the label "
                    "(label_column), by name or number; the first row has %d: %s",
                    f->file, pair, f->count, all);
}

/* Where nothing else is known: the only column that is left, or label, text, text. */
static ht_status by_place(const finder *f, hti_columns *c) {
    int *at = c->at, wanted = f->texts + 1, json = f->shape.kind == HT_ROWS_JSONL;
    if (f->texts == 1 && f->count == 2) { /* one of two is known */
        if (at[HTI_TEXT] >= 0 && at[HTI_LABEL] < 0) at[HTI_LABEL] = 1 - at[HTI_TEXT];
        if (at[HTI_LABEL] >= 0 && at[HTI_TEXT] < 0) at[HTI_TEXT] = 1 - at[HTI_LABEL];
    }
    int none = at[HTI_LABEL] < 0 && at[HTI_TEXT] < 0 && !json;
    int tabs = f->shape.kind == HT_ROWS_TSV && !c->header;
    if (none && f->desc->unlabelled && f->count == 1 && f->texts == 1 && !tabs)
        at[HTI_TEXT] = 0;
    else if (none && (tabs || f->count == wanted)) {
        at[HTI_LABEL] = 0, at[HTI_TEXT] = 1, at[HTI_TEXT2] = f->texts == 2 ? 2 : -1;
        if (tabs && f->texts == 2 && f->count == 5) {
            at[HTI_ID] = 1, at[HTI_ID2] = 2, at[HTI_TEXT] = 3, at[HTI_TEXT2] = 4;
        } else if (tabs)
            c->count = wanted; /* the text may hold tabs */
    }
    int found = at[HTI_TEXT] >= 0 && (at[HTI_LABEL] >= 0 || f->desc->unlabelled) &&
                (f->texts == 1 || at[HTI_TEXT2] >= 0);
    return found ? HT_OK : ask(f);
}

static ht_status check(const finder *f, const hti_columns *c) {
    const int *at = c->at;
    CHECK(f->ctx,
          at[HTI_TEXT] != at[HTI_TEXT2] &&
              (f->desc->unlabelled ||
               (at[HTI_LABEL] != at[HTI_TEXT] && at[HTI_LABEL] != at[HTI_TEXT2])),
          HT_INVALID, "%s: label and text must be different columns", f->file);
    return HT_OK;
}

/* 0: one of them is too long for a name, or is not there. */
static int keep_names(const finder *f, hti_columns *c) {
    int good = 1;
    for (int i = 0; i < HTI_ID; i++) {
        if (c->at[i] >= f->count) good = 0;
        if (c->at[i] < 0 || c->at[i] >= f->count) continue;
        hti_cell name = f->cells[c->at[i]];
        if (f->shape.kind != HT_ROWS_JSONL) name = hti_trim(name);
        size_t most = sizeof c->names[i] - 1, n = name.bytes < most ? name.bytes : most;
        memcpy(c->names[i], name.at, n);
        c->names[i][n] = '\0';
        good = good && name.bytes <= most;
    }
    return good;
}

/* Columns by what was asked for, usual names (of a header alone), then places. */
static ht_status resolve(const finder *f, hti_columns *c, const int usual[HTI_COLUMNS]) {
    int numbers = f->shape.kind != HT_ROWS_JSONL, text = f->asked[HTI_TEXT].at != NULL;
    for (int i = 0; i < HTI_ID; i++)
        if (f->asked[i].at)
            TRY(find_asked(&c->at[i], f->ctx, f->file, f->asked[i], numbers, f->cells, f->count));
        else if (f->desc->header != HT_HEADER_NO && !(text && i > HTI_LABEL))
            c->at[i] = usual[i];
    return by_place(f, c);
}

static int label_is_number(const finder *f, const hti_columns *c) {
    int64_t number;
    if (c->at[HTI_LABEL] < 0) return 0;
    hti_cell label = hti_trim(f->cells[c->at[HTI_LABEL]]);
    return label.bytes == 0 || hti_whole(&number, label.at, label.bytes);
}

static ht_status find(const finder *f, hti_columns *c, int *unsure) {
    int usual[HTI_COLUMNS], json = f->shape.kind == HT_ROWS_JSONL, yes, both;
    memset(usual, 0xFF, sizeof usual);
    find_texts(usual, f->cells, f->count, f->texts);
    usual[HTI_LABEL] = find_first(f->cells, f->count, usual_labels);
    yes = json || f->desc->header == HT_HEADER_YES || names_asked(f);
    both = usual[HTI_TEXT] >= 0 && (usual[HTI_LABEL] >= 0 || f->desc->unlabelled || f->count == 2);
    CHECK(f->ctx, f->desc->header != HT_HEADER_NO || json || !names_asked(f), HT_INVALID,
          "%s: without a header columns have no names; give their numbers, from 1", f->file);
    c->header = yes || (f->desc->header == HT_HEADER_AUTO && both);
    TRY(resolve(f, c, usual));
    int names = keep_names(f, c), data = label_is_number(f, c) || !names;
    CHECK(f->ctx, !yes || names, HT_UNSUPPORTED, "%s: the name of a column is too long: %.40s...",
          f->file, c->names[HTI_TEXT]);
    if (!yes && data) c->header = 0; /* such a first record has no names */
    *unsure = !c->header && !data && c->at[HTI_LABEL] >= 0 && f->desc->header == HT_HEADER_AUTO;
    return check(f, c);
}

ht_status hti_columns_find(hti_columns *out, int *unsure, ht_context *ctx, const char *file,
                           hti_shape shape, const ht_rows_desc *desc, const hti_cell *cells,
                           int count) {
    finder f = {.ctx = ctx,
                .file = file,
                .shape = shape,
                .desc = desc,
                .cells = cells,
                .count = count,
                .texts = desc->texts == 2 ? 2 : 1};
    *out = (hti_columns){.count = count};
    for (int i = 0; i < HTI_COLUMNS; i++) out->at[i] = -1;
    asked(f.asked, desc);
    return find(&f, out, unsure);
}

void hti_columns_about(char *out, size_t bytes, const hti_columns *c, hti_shape shape) {
    static const char *const kinds[] = {"", "tsv", "csv", "jsonl"};
    static const char *const roles[] = {"label", "text", "text"};
    int named = c->header || shape.kind == HT_ROWS_JSONL;
    size_t used = (size_t)snprintf(out, bytes, "%s%s", kinds[shape.kind],
                                   shape.kind == HT_ROWS_JSONL ? ""
                                   : c->header                 ? " with a header"
                                                               : " without a header");
    const char *gap = ":";
    for (int i = 0; i < HTI_ID && used < bytes; i++) {
        if (c->at[i] < 0) continue;
        if (named)
            used += (size_t)snprintf(out + used, bytes - used, "%s %s '%.60s'", gap, roles[i],
                                     c->names[i]);
        else
            used += (size_t)snprintf(out + used, bytes - used, "%s %s in column %d", gap, roles[i],
                                     c->at[i] + 1);
        gap = ",";
    }
}
