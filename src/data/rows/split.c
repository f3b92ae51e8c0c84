/*
 * From bytes to records. TSV and JSONL have one to a line. CSV is that of RFC 4180: a cell in
 * quotes may hold delimiters, line ends and, doubled, quotes; elsewhere a quote is a letter like
 * others. What a record holds is bounded, however long it is in the file.
 */
#include <stdio.h>
#include <string.h>

#include "data/rows/rows.h"

enum state {
    BEGIN,  /* before a cell's first byte */
    PLAIN,  /* inside a cell without quotes, or a line */
    QUOTED, /* inside quotes */
    CLOSED, /* behind a quote that may have ended the cell */
    RETURN, /* behind its \r */
    LOST    /* the record is bad; the next line begins a new one */
};

void hti_split_begin(hti_splitter *s, ht_context *ctx, hti_shape shape, size_t most,
                     hti_each_record *each, void *user) {
    hti_split_free(s);
    *s = (hti_splitter){.ctx = ctx,
                        .shape = shape,
                        .most = most,
                        .each = each,
                        .user = user,
                        .bytes = {.ctx = ctx},
                        .ends = {.ctx = ctx},
                        .first = 1};
}

void hti_split_free(hti_splitter *s) {
    hti_buffer_free(&s->bytes);
    hti_buffer_free(&s->ends);
}

/* ---- records ---- */

static ht_status end_record(hti_splitter *s, const char *fault) {
    const int64_t *ends = (const int64_t *)(const void *)s->ends.data;
    hti_record record = {.line = s->first,
                         .whole = {s->bytes.data ? s->bytes.data : "", s->bytes.used},
                         .ends = s->shape.kind == HT_ROWS_CSV ? ends : NULL,
                         .cells = (int)(s->ends.used / sizeof *ends),
                         .fault = fault};
    int empty = !fault && s->bytes.used == 0 && record.cells <= 1 && !s->quoted;
    s->bytes.used = s->ends.used = 0;
    s->state = BEGIN;
    s->quoted = 0;
    s->first = s->lines + 1;
    s->empty += empty;
    return empty ? HT_OK : s->each(s->user, &record);
}

static ht_status lose(hti_splitter *s, const char *fault) {
    if (s->state != LOST) snprintf(s->fault, sizeof s->fault, "%s", fault);
    s->state = LOST;
    s->bytes.used = s->ends.used = 0;
    return HT_OK;
}

static ht_status keep(hti_splitter *s, const char *bytes, size_t count) {
    char fault[128];
    if (count <= s->most && s->bytes.used <= s->most - count)
        return hti_buffer_add(&s->bytes, bytes, count);
    snprintf(fault, sizeof fault, "the row is longer than %zu bytes%s", s->most,
             s->state == QUOTED ? "; is a quote missing, or not doubled?" : "");
    return lose(s, fault);
}

/* ---- lines ---- */

static ht_status end_line(hti_splitter *s) {
    s->lines++;
    if (s->state == LOST) return end_record(s, s->fault);
    if (s->bytes.used && s->bytes.data[s->bytes.used - 1] == '\r') s->bytes.used--;
    return end_record(s, NULL);
}

static ht_status split_lines(hti_splitter *s, const char *bytes, size_t count) {
    while (count > 0) {
        const char *stop = memchr(bytes, '\n', count);
        size_t n = stop ? (size_t)(stop - bytes) : count;
        if (s->state != LOST) {
            s->state = PLAIN;
            TRY(keep(s, bytes, n));
        }
        if (!stop) return HT_OK;
        TRY(end_line(s));
        bytes += n + 1, count -= n + 1;
    }
    return HT_OK;
}

/* ---- CSV ---- */

static ht_status end_cell(hti_splitter *s) {
    enum { MOST = 65536 };
    int64_t end = (int64_t)s->bytes.used;
    if (s->ends.used / sizeof end >= MOST) return lose(s, "the row has more than 65536 columns");
    s->state = BEGIN;
    return hti_buffer_add(&s->ends, &end, sizeof end);
}

/* Behind a cell: what its delimiter or the line's end does. */
static ht_status leave_cell(hti_splitter *s, char c) {
    TRY(end_cell(s));
    if (c != '\n') return HT_OK;
    s->lines++;
    return end_record(s, s->state == LOST ? s->fault : NULL);
}

static size_t plain_run(const hti_splitter *s, const char *bytes, size_t count) {
    size_t n = 0;
    while (n < count && bytes[n] != s->shape.delimiter && bytes[n] != '\n') n++;
    return n;
}

/* The \r of \r\n belongs to the line's end. */
static void drop_return(hti_splitter *s) {
    size_t cells = s->ends.used / sizeof(int64_t);
    size_t from = cells ? (size_t)((const int64_t *)(const void *)s->ends.data)[cells - 1] : 0;
    if (s->bytes.used > from && s->bytes.data[s->bytes.used - 1] == '\r') s->bytes.used--;
}

static ht_status plain(hti_splitter *s, const char **at, size_t *left) {
    size_t n = plain_run(s, *at, *left);
    TRY(keep(s, *at, n));
    *at += n, *left -= n;
    if (*left == 0 || s->state == LOST) return HT_OK;
    char c = *(*at)++;
    --*left;
    if (c == '\n') drop_return(s);
    return leave_cell(s, c);
}

static ht_status quoted(hti_splitter *s, const char **at, size_t *left) {
    const char *stop = memchr(*at, '"', *left);
    size_t n = stop ? (size_t)(stop - *at) : *left;
    for (const char *c = *at; (c = memchr(c, '\n', (size_t)(*at + n - c))); c++) s->lines++;
    TRY(keep(s, *at, n));
    *at += n, *left -= n;
    if (!stop || s->state == LOST) return HT_OK;
    ++*at, --*left;
    s->state = CLOSED;
    return HT_OK;
}

static ht_status closed(hti_splitter *s, const char **at, size_t *left) {
    char c = *(*at)++, fault[128];
    --*left;
    if (c == '"' && s->state == CLOSED) {
        s->state = QUOTED;
        return keep(s, "\"", 1);
    }
    if (c == '\n' || (c == s->shape.delimiter && s->state == CLOSED)) return leave_cell(s, c);
    if (c == '\r' && s->state == CLOSED) {
        s->state = RETURN;
        return HT_OK;
    }
    --*at, ++*left;
    snprintf(fault, sizeof fault,
             "line %lld: something stands behind the quote that ends a cell; a quote inside must "
             "be doubled",
             (long long)s->lines + 1);
    return lose(s, fault);
}

static ht_status lost(hti_splitter *s, const char **at, size_t *left) {
    const char *stop = memchr(*at, '\n', *left);
    size_t n = stop ? (size_t)(stop - *at) + 1 : *left;
    *at += n, *left -= n;
    if (!stop) return HT_OK;
    s->lines++;
    return end_record(s, s->fault);
}

static ht_status split_csv(hti_splitter *s, const char *at, size_t left) {
    while (left > 0) {
        if (s->state == BEGIN && *at == '"') {
            s->state = QUOTED;
            s->quoted = 1;
            s->opened = s->lines + 1;
            at++, left--;
            continue;
        }
        if (s->state == BEGIN) s->state = PLAIN;
        switch (s->state) {
        case PLAIN: TRY(plain(s, &at, &left)); break;
        case QUOTED: TRY(quoted(s, &at, &left)); break;
        case LOST: TRY(lost(s, &at, &left)); break;
        default: TRY(closed(s, &at, &left));
        }
    }
    return HT_OK;
}

static ht_status end_csv(hti_splitter *s) {
    if (s->state == BEGIN && s->ends.used == 0) return HT_OK;
    s->lines++; /* the last line has no end */
    if (s->state == LOST) return end_record(s, s->fault);
    if (s->state == QUOTED) {
        snprintf(s->fault, sizeof s->fault, "the quote that opens in line %lld is never closed",
                 (long long)s->opened);
        return end_record(s, s->fault);
    }
    if (s->state == PLAIN) drop_return(s);
    TRY(end_cell(s));
    return end_record(s, s->state == LOST ? s->fault : NULL);
}

ht_status hti_split(hti_splitter *s, const char *bytes, size_t count, int end) {
    int csv = s->shape.kind == HT_ROWS_CSV;
    TRY(csv ? split_csv(s, bytes, count) : split_lines(s, bytes, count));
    if (!end) return HT_OK;
    if (csv) return end_csv(s);
    return s->state == BEGIN ? HT_OK : end_line(s);
}

ht_status hti_split_tabs(hti_buffer *cells, hti_cell line, int most) {
    cells->used = 0;
    for (int count = 1;; count++) {
        const char *tab = count < most ? memchr(line.at, '\t', line.bytes) : NULL;
        hti_cell cell = {line.at, tab ? (size_t)(tab - line.at) : line.bytes};
        TRY(hti_buffer_add(cells, &cell, sizeof cell));
        if (!tab) return HT_OK;
        line.at += cell.bytes + 1, line.bytes -= cell.bytes + 1;
    }
}
