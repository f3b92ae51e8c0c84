/*
 * Rows of files: what kind each file is, whether its first record is a header, and every record as
 * a row. Bad ones are counted, or the first one ends it.
 */
#include "data/rows/rows.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/sized.h"
#include "data/utf8.h"

enum { LOOK = 1 << 16 };                            /* bytes of a file by which its kind is known */
static const size_t DEFAULT_MOST = (size_t)1 << 24; /* of a row */

typedef struct reading {
    ht_context *ctx;
    ht_rows_desc desc;
    const hti_names *labels; /* known before; or NULL */
    ht_rows_info *info;
    hti_each_row *each;
    void *user;
    hti_buffer kept;  /* all of stdin, which is read once */
    const char *file; /* at work; NULL: none */
    hti_buffer look;  /* its first bytes, until its kind is known */
    int known;        /* 1: its kind is, 2: its columns, too */
    hti_shape shape;
    hti_columns columns;
    hti_splitter split;
    hti_buffer cells;
    hti_buffer header; /* of the first file that has one, with all its cells */
} reading;

/* ---- bytes: a path, or memory, as often as wanted ---- */

static ht_status from_memory(const char *name, const char *bytes, size_t count,
                             hti_each_piece *each, void *user) {
    for (size_t at = 0, n; at < count; at += n) {
        n = count - at < LOOK ? count - at : LOOK;
        TRY(each(user, name, bytes + at, n, HTI_MORE));
    }
    return each(user, name, "", 0, HTI_ENDS);
}

static ht_status keep_all(void *user, const char *name, const char *bytes, size_t count) {
    hti_buffer *kept = user;
    (void)name;
    return hti_buffer_add(kept, bytes, count);
}

/* All that is to be read; file: that one file alone. */
static ht_status read_bytes(const reading *r, const char *file, hti_each_piece *each, void *user) {
    if (!r->desc.path) return from_memory("memory", r->desc.bytes, r->desc.count, each, user);
    if (r->kept.data) return from_memory("stdin", r->kept.data, r->kept.used, each, user);
    return hti_stream_read(r->ctx, file ? file : r->desc.path, each, user);
}

/* ---- what kind of file ---- */

static int ends_with(const char *name, size_t bytes, const char *end) {
    size_t n = strlen(end);
    return bytes >= n && memcmp(name + bytes - n, end, n) == 0;
}

ht_rows_kind ht_rows_kind_of(const char *name) {
    static const struct {
        const char *end;
        ht_rows_kind kind;
    } ends[] = {{".tsv", HT_ROWS_TSV},     {".tab", HT_ROWS_TSV},      {".csv", HT_ROWS_CSV},
                {".jsonl", HT_ROWS_JSONL}, {".ndjson", HT_ROWS_JSONL}, {".json", HT_ROWS_JSONL}};
    size_t bytes = name ? strlen(name) : 0;
    if (ends_with(name, bytes, ".gz")) bytes -= 3;
    if (ends_with(name, bytes, ".zst")) bytes -= 4;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, bytes, ends[i].end)) return ends[i].kind;
    return HT_ROWS_AUTO;
}

/* How many cells the records of a sample have; 0: not always the same. */
typedef struct sample {
    int records, cells;
} sample;

static ht_status count_cells(void *user, const hti_record *record) {
    sample *s = user;
    if (record->fault) return HT_OK;
    if (s->records++ == 0) s->cells = record->cells;
    if (record->cells != s->cells) s->cells = 0;
    return s->records < 50 ? HT_OK : HT_END;
}

/* Which delimiter gives all records of a sample the same number of cells, more than one; 0: none
 * does. */
static ht_status find_delimiter(char *out, int *records, reading *r) {
    static const char delimiters[] = ",;\t|";
    *out = 0;
    for (const char *c = delimiters; *c && !*out; c++) {
        sample s = {0};
        hti_split_begin(&r->split, r->ctx, (hti_shape){HT_ROWS_CSV, *c}, r->desc.most, count_cells,
                        &s);
        ht_status status = hti_split(&r->split, r->look.data, r->look.used, r->look.used < LOOK);
        if (status != HT_OK && status != HT_END) return status;
        if (s.cells > 1) *out = *c;
        *records = s.records;
    }
    return HT_OK;
}

static int first_line_has(const reading *r, char letter) {
    const char *end = memchr(r->look.data, '\n', r->look.used);
    return memchr(r->look.data, letter, end ? (size_t)(end - r->look.data) : r->look.used) != NULL;
}

static ht_status check_letters(const reading *r) {
    const char *b = r->look.data;
    size_t n = r->look.used;
    TRY(hti_stream_foreign(r->ctx, r->file, b, n));
    CHECK(r->ctx, n < 2 || (memcmp(b, "\xFF\xFE", 2) != 0 && memcmp(b, "\xFE\xFF", 2) != 0),
          HT_FORMAT, "%s is UTF-16; make it UTF-8: iconv -f UTF-16 -t UTF-8", r->file);
    const char *back = memchr(b, '\r', n);
    CHECK(r->ctx, !back || back == b + n - 1 || memchr(b, '\n', n), HT_FORMAT,
          "%s: its lines end in \\r alone; make them end in \\n: tr '\\r' '\\n'", r->file);
    return HT_OK;
}

static ht_status find_shape(reading *r) {
    const char *b = r->look.data;
    size_t first = 0;
    char delimiter = 0;
    int records = 0;
    TRY(check_letters(r));
    while (first < r->look.used && strchr(" \t\r\n", b[first])) first++;
    ht_rows_kind kind = r->desc.kind ? r->desc.kind : ht_rows_kind_of(r->file);
    if (!kind && first < r->look.used && (b[first] == '{' || b[first] == '[')) kind = HT_ROWS_JSONL;
    if (!kind && first_line_has(r, '\t')) kind = HT_ROWS_TSV;
    if (kind != HT_ROWS_TSV && kind != HT_ROWS_JSONL) TRY(find_delimiter(&delimiter, &records, r));
    if (!kind) kind = delimiter && (b[0] == '"' || records > 2) ? HT_ROWS_CSV : HT_ROWS_TSV;
    CHECK(r->ctx, kind != HT_ROWS_JSONL || first == r->look.used || b[first] != '[', HT_FORMAT,
          "%s is one JSON array; an object per line is wanted: jq -c '.[]'", r->file);
    r->shape = (hti_shape){kind, delimiter ? delimiter : ','};
    return HT_OK;
}

/* ---- cells of a record ---- */

static ht_status cells_of(reading *r, const hti_record *record, int most) {
    if (r->shape.kind == HT_ROWS_TSV) return hti_split_tabs(&r->cells, record->whole, most);
    r->cells.used = 0;
    for (int i = 0; i < record->cells; i++) {
        int64_t from = i ? record->ends[i - 1] : 0;
        hti_cell cell = {record->whole.at + from, (size_t)(record->ends[i] - from)};
        TRY(hti_buffer_add(&r->cells, &cell, sizeof cell));
    }
    return HT_OK;
}

static const hti_cell *cells_at(const reading *r) {
    return (const hti_cell *)(const void *)r->cells.data;
}
static int cell_count(const reading *r) { return (int)(r->cells.used / sizeof(hti_cell)); }

static ht_status no_tab(const reading *r, int tabs, int64_t line) {
    int pairs = r->desc.texts == 2, plain = tabs == 1 && line == 1;
    return hti_fail(
        r->ctx, HT_FORMAT,
        "there is no %stab; a line must be label<TAB>text%s, or the file CSV or JSONL%s",
        tabs > 1 ? "second " : "", pairs ? "<TAB>text" : "",
        plain ? ". For plain text there are language models: --preset small-text" : "");
}

/* FORMAT: a wrong number of them. */
static ht_status take_cells(reading *r, hti_row *row, const hti_record *record) {
    const hti_columns *c = &r->columns;
    TRY(cells_of(r, record, c->count));
    int count = cell_count(r);
    if (r->shape.kind == HT_ROWS_TSV && !c->header && count < c->count && count < 3)
        return no_tab(r, count, record->line);
    CHECK(r->ctx, count == c->count, HT_FORMAT, "there are %d columns instead of %d", count,
          c->count);
    for (int i = 0; i < HTI_COLUMNS; i++)
        if (c->at[i] >= 0) row->cell[i] = cells_at(r)[c->at[i]];
    return HT_OK;
}

/* ---- JSON ---- */

/* cJSON ends a string at \u0000, and would cut a text without a word. */
static int has_nul(hti_cell line) {
    int backslashes = 0;
    for (size_t i = 0; i < line.bytes; i++) {
        if (line.at[i] == '\0') return 1;
        if (line.at[i] == 'u' && backslashes % 2 && line.bytes - i > 4 &&
            memcmp(line.at + i, "u0000", 5) == 0)
            return 1;
        backslashes = line.at[i] == '\\' ? backslashes + 1 : 0;
    }
    return 0;
}

static ht_status parse(cJSON **out, ht_context *ctx, hti_cell line) {
    CHECK(ctx, !has_nul(line), HT_FORMAT, "there is a character with the number 0");
    TRY(hti_json_parse(ctx, out, line.at, line.bytes, "the row"));
    if (cJSON_IsObject(*out)) return HT_OK;
    cJSON_Delete(*out);
    return hti_fail(ctx, HT_FORMAT, "the row is no JSON object");
}

/* The value of a key: a string, for labels also a number or a truth. */
static ht_status take_value(hti_cell *out, char number[32], ht_context *ctx, const cJSON *object,
                            const char *key, int label) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    CHECK(ctx, item, HT_FORMAT, "there is no '%s'", key);
    if (label && cJSON_IsNumber(item)) {
        double x = item->valuedouble;
        snprintf(number, 32, x == floor(x) && fabs(x) < 1e15 ? "%.0f" : "%.17g", x);
        *out = (hti_cell){number, strlen(number)};
        return HT_OK;
    }
    const char *text = label && cJSON_IsBool(item) ? cJSON_IsTrue(item) ? "true" : "false"
                                                   : cJSON_GetStringValue(item);
    CHECK(ctx, text, HT_FORMAT, "'%s' is no string%s", key, label ? " and no number" : "");
    *out = (hti_cell){text, strlen(text)};
    return HT_OK;
}

static ht_status find_keys(reading *r, const cJSON *object) {
    int unsure;
    const cJSON *item;
    r->cells.used = 0;
    cJSON_ArrayForEach(item, object) {
        hti_cell key = {item->string, strlen(item->string)};
        TRY(hti_buffer_add(&r->cells, &key, sizeof key));
    }
    return hti_columns_find(&r->columns, &unsure, r->ctx, r->file, r->shape, &r->desc, cells_at(r),
                            cell_count(r));
}

static ht_status take_object(reading *r, hti_row *row, char number[32], const cJSON *object) {
    if (r->known < 2) TRY(find_keys(r, object));
    if (r->known < 2) r->known = 2;
    for (int i = 0; i < HTI_ID; i++)
        if (r->columns.at[i] >= 0 && !(i == HTI_LABEL && r->desc.unlabelled))
            TRY(take_value(&row->cell[i], number, r->ctx, object, r->columns.names[i],
                           i == HTI_LABEL));
    return HT_OK;
}

/* ---- is the first record a header? ---- */

typedef struct survey {
    reading *r;
    hti_names labels; /* until one has come again */
    int64_t records, numbers;
    int first_again, other_again;
} survey;

static ht_status survey_label(survey *s, hti_cell label) {
    enum { LONGEST = 255 };
    int64_t number;
    int32_t index = hti_names_find(&s->labels, label.at, label.bytes);
    if (s->records++ > 0) {
        s->numbers += hti_whole(&number, label.at, label.bytes);
        s->first_again = index == 0;
        s->other_again |= index > 0;
    } else if (label.bytes > LONGEST) {
        s->first_again = 1; /* that is no name of a column */
    }
    if (s->first_again) return HT_END;
    if (index >= 0 || s->other_again || label.bytes > LONGEST) return HT_OK;
    return hti_names_add(&s->labels, label.at, label.bytes, &index);
}

static ht_status survey_record(void *user, const hti_record *record) {
    survey *s = user;
    int at = s->r->columns.at[HTI_LABEL];
    if (record->fault) return HT_OK;
    TRY(cells_of(s->r, record, s->r->columns.count));
    return at < cell_count(s->r) ? survey_label(s, hti_trim(cells_at(s->r)[at])) : HT_OK;
}

typedef struct survey_bytes {
    survey s;
    hti_splitter split;
    int begun;
} survey_bytes;

static ht_status survey_piece(void *user, const char *name, const char *bytes, size_t count,
                              int end) {
    survey_bytes *b = user;
    (void)name;
    if (!b->begun && count >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0) bytes += 3, count -= 3;
    b->begun = 1;
    return end == HTI_EMPTY ? HT_OK : hti_split(&b->split, bytes, count, end == HTI_ENDS);
}

/* Its label stands nowhere else in the file, while others come again or all are numbers. */
static ht_status is_header(int *out, reading *r) {
    survey_bytes b = {.s = {.r = r, .labels = {.ctx = r->ctx}}};
    hti_split_begin(&b.split, r->ctx, r->shape, r->desc.most, survey_record, &b.s);
    ht_status status = read_bytes(r, r->file, survey_piece, &b);
    const survey *s = &b.s;
    *out = !s->first_again && s->records > 1 && (s->other_again || s->numbers == s->records - 1);
    hti_names_free(&b.s.labels);
    hti_split_free(&b.split);
    return status == HT_END ? HT_OK : status;
}

/* Is the first record's label one that is known? */
static int is_known(const reading *r) {
    hti_cell label = hti_trim(cells_at(r)[r->columns.at[HTI_LABEL]]);
    return r->labels && hti_labels_find(r->labels, label.at, label.bytes) >= 0;
}

/* Columns from the first record; 1: it is a header. */
static ht_status find_columns(reading *r, const hti_record *record, int *header) {
    enum { MOST = 4096 };
    int unsure;
    TRY(cells_of(r, record, MOST));
    int again = r->header.used && r->header.used == record->whole.bytes &&
                memcmp(r->header.data, record->whole.at, r->header.used) == 0;
    ht_rows_desc desc = r->desc;
    if (again && desc.header == HT_HEADER_AUTO) desc.header = HT_HEADER_YES;
    TRY(hti_columns_find(&r->columns, &unsure, r->ctx, r->file, r->shape, &desc, cells_at(r),
                         cell_count(r)));
    if (unsure && !is_known(r)) TRY(is_header(&r->columns.header, r));
    *header = r->columns.header;
    r->known = 2;
    if (*header && r->header.used == 0)
        TRY(hti_buffer_add(&r->header, record->whole.at, record->whole.bytes));
    if (!unsure || *header) return HT_OK;
    desc.header = HT_HEADER_NO;
    TRY(cells_of(r, record, MOST));
    return hti_columns_find(&r->columns, &unsure, r->ctx, r->file, r->shape, &desc, cells_at(r),
                            cell_count(r));
}

/* ---- rows ---- */

static ht_status check_label(ht_context *ctx, hti_cell label) {
    enum { LONGEST = 255 };
    CHECK(ctx, label.bytes > 0, HT_FORMAT, "the label is empty");
    CHECK(ctx, label.bytes <= LONGEST, HT_FORMAT,
          "the label has %zu bytes; is another column the label? (label_column)", label.bytes);
    CHECK(ctx, hti_is_utf8(label.at, label.bytes) && !memchr(label.at, 0, label.bytes), HT_FORMAT,
          "the label is no UTF-8");
    return HT_OK;
}

ht_status hti_rows_give(ht_context *ctx, const ht_rows_desc *desc, ht_rows_info *info, hti_row *row,
                        hti_each_row *each, void *user) {
    hti_cell *label = &row->cell[HTI_LABEL];
    int odd = 0;
    *label = desc->unlabelled ? (hti_cell){0} : hti_trim(*label);
    if (!desc->unlabelled) TRY(check_label(ctx, *label));
    for (int i = HTI_TEXT; i <= HTI_TEXT2; i++) {
        if (i == HTI_TEXT2 && !row->cell[i].at) continue;
        CHECK(ctx, row->cell[i].bytes > 0, HT_FORMAT, "the text is empty");
        odd |= !hti_is_utf8(row->cell[i].at, row->cell[i].bytes);
    }
    TRY(each(user, row));
    info->rows++;
    info->odd += odd;
    return HT_OK;
}

static ht_status give(reading *r, hti_row *row) {
    return hti_rows_give(r->ctx, &r->desc, r->info, row, r->each, r->user);
}

static ht_status take_json(reading *r, hti_row *row, const hti_record *record) {
    cJSON *object;
    char number[32];
    TRY(parse(&object, r->ctx, record->whole));
    ht_status status = take_object(r, row, number, object);
    if (status == HT_OK) status = give(r, row);
    cJSON_Delete(object);
    return status;
}

static ht_status take_record(reading *r, const hti_record *record) {
    hti_row row = {.file = r->file, .line = record->line};
    int header = 0;
    CHECK(r->ctx, !record->fault, HT_FORMAT, "%s", record->fault);
    if (r->shape.kind == HT_ROWS_JSONL) return take_json(r, &row, record);
    if (r->known < 2) TRY(find_columns(r, record, &header));
    if (header) return HT_OK;
    TRY(take_cells(r, &row, record));
    return give(r, &row);
}

ht_status hti_rows_refuse(ht_context *ctx, const ht_rows_desc *desc, ht_rows_info *info,
                          const char *file, int64_t line) {
    char why[sizeof ctx->error];
    snprintf(why, sizeof why, "%s", ht_context_error(ctx));
    if (info->refused++ == 0)
        snprintf(info->refusal, sizeof info->refusal, "%s:%lld: %.300s", file, (long long)line,
                 why);
    if (desc->skip_bad) return HT_OK;
    return hti_fail(ctx, HT_FORMAT, "%s:%lld: %s (skip_bad leaves such rows out)", file,
                    (long long)line, why);
}

static ht_status on_record(void *user, const hti_record *record) {
    reading *r = user;
    ht_status status = take_record(r, record);
    if (status == HT_OK && !r->info->about[0] && r->known == 2)
        hti_columns_about(r->info->about, sizeof r->info->about, &r->columns, r->shape);
    if (status != HT_FORMAT) return status;
    return hti_rows_refuse(r->ctx, &r->desc, r->info, r->file, record->line);
}

/* ---- files ---- */

static ht_status begin_records(reading *r) {
    size_t mark = r->look.used >= 3 && memcmp(r->look.data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    memmove(r->look.data, r->look.data + mark, r->look.used - mark);
    r->look.used -= mark;
    TRY(find_shape(r));
    hti_split_begin(&r->split, r->ctx, r->shape, r->desc.most, on_record, r);
    r->known = 1;
    return hti_split(&r->split, r->look.data, r->look.used, 0);
}

static ht_status take_piece(void *user, const char *name, const char *bytes, size_t count,
                            int end) {
    reading *r = user;
    if (end == HTI_EMPTY) {
        r->info->empty++;
        return HT_OK;
    }
    if (!r->file) {
        r->file = name;
        r->known = 0;
        r->look.used = 0;
        TRY(hti_buffer_need(&r->look, 1)); /* data is never NULL */
    }
    if (!r->known) TRY(hti_buffer_add(&r->look, bytes, count));
    if (r->known) {
        TRY(hti_split(&r->split, bytes, count, 0));
    } else if (r->look.used >= LOOK || end) {
        TRY(begin_records(r));
    }
    if (!end) return HT_OK;
    TRY(hti_split(&r->split, "", 0, 1));
    r->info->lines += r->split.lines;
    r->info->empty += r->split.empty;
    r->file = NULL;
    return HT_OK;
}

static ht_status read_all(reading *r) {
    ht_context *ctx = r->ctx;
    r->kept.ctx = r->look.ctx = r->cells.ctx = r->header.ctx = ctx;
    if (r->desc.path && strcmp(r->desc.path, "-") == 0)
        TRY(hti_source_read(ctx, r->desc.path, keep_all, &r->kept));
    return read_bytes(r, NULL, take_piece, r);
}

static ht_status check(ht_context *ctx, const ht_rows_desc *desc) {
    CHECK(ctx, desc->path || desc->bytes || desc->count == 0, HT_INVALID,
          "rows need a path or bytes");
    CHECK(ctx, (int)desc->kind >= HT_ROWS_AUTO && desc->kind <= HT_ROWS_FOLDERS, HT_INVALID,
          "the kind of rows must be 0 to %d, got %d", HT_ROWS_FOLDERS, (int)desc->kind);
    CHECK(ctx, (int)desc->header >= HT_HEADER_AUTO && desc->header <= HT_HEADER_NO, HT_INVALID,
          "header must be 0 to %d, got %d", HT_HEADER_NO, (int)desc->header);
    CHECK(ctx, desc->texts >= 0 && desc->texts <= 2, HT_INVALID,
          "texts of a row must be 0 to 2, got %d", desc->texts);
    return HT_OK;
}

ht_status hti_rows_read(ht_context *ctx, const ht_rows_desc *desc, const hti_names *known,
                        ht_rows_info *info, hti_each_row *each, void *user) {
    reading r = {
        .ctx = ctx, .desc = *desc, .labels = known, .info = info, .each = each, .user = user};
    *info = (ht_rows_info)HT_ROWS_INFO_INIT;
    TRY(check(ctx, desc));
    if (r.desc.most == 0) r.desc.most = DEFAULT_MOST;
    int may = desc->path && desc->kind == HT_ROWS_AUTO && desc->texts != 2;
    int classes = desc->kind == HT_ROWS_FOLDERS;
    if (may) TRY(hti_folders_are_classes(&classes, ctx, desc->path));
    if (classes) return hti_folders_read(ctx, &r.desc, info, each, user);
    ht_status status = read_all(&r);
    hti_split_free(&r.split);
    hti_buffer_free(&r.kept);
    hti_buffer_free(&r.look);
    hti_buffer_free(&r.cells);
    hti_buffer_free(&r.header);
    return status;
}

/* ---- for programs ---- */

static ht_status give_row(void *user, const hti_row *row) {
    const ht_rows_desc *desc = user;
    const hti_cell *c = row->cell;
    ht_row out = {.size = sizeof out,
                  .file = row->file,
                  .line = row->line,
                  .label = c[HTI_LABEL].at,
                  .text = {c[HTI_TEXT].at, c[HTI_TEXT2].at},
                  .label_bytes = c[HTI_LABEL].bytes,
                  .text_bytes = {c[HTI_TEXT].bytes, c[HTI_TEXT2].bytes}};
    return desc->each && desc->each(desc->user, &out) ? HT_END : HT_OK;
}

ht_status ht_rows_read(ht_context *ctx, const ht_rows_desc *desc, ht_rows_info *info) {
    ht_rows_desc own;
    ht_rows_info told;
    CHECK(NULL, ctx, HT_INVALID, "ht_rows_read: ctx is NULL");
    TRY(HTI_TAKE(ctx, ht_rows_desc, &own, desc));
    if (info) TRY(HTI_WANT(ctx, ht_rows_info, info));
    ht_status status = hti_rows_read(ctx, &own, NULL, &told, give_row, &own);
    if (info) HTI_GIVE(ht_rows_info, info, &told);
    return status;
}
