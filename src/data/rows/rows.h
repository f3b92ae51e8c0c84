/*
 * Rows of text as people have them: TSV, CSV, JSONL, a folder per class. Bytes come in pieces;
 * split.c makes records of them, columns.c knows which cell is what, rows.c reads files.
 */
#ifndef HTI_ROWS_H
#define HTI_ROWS_H

#include "data/data.h"

typedef struct hti_cell {
    const char *at; /* NULL: none */
    size_t bytes;
} hti_cell;

/* ---- split.c ---- */

/* A record of a file: a line, or of CSV what may hold several. */
typedef struct hti_record {
    int64_t line;        /* of its first byte */
    hti_cell whole;      /* a line without its end; CSV: all cells without quotes and delimiters */
    const int64_t *ends; /* CSV: where each cell ends in whole; else NULL */
    int cells;           /* CSV */
    const char *fault;   /* NULL: none */
} hti_record;
typedef ht_status hti_each_record(void *user, const hti_record *record);

/* How a file's bytes are records. */
typedef struct hti_shape {
    ht_rows_kind kind; /* TSV, CSV or JSONL */
    char delimiter;    /* CSV */
} hti_shape;

typedef struct hti_splitter {
    ht_context *ctx;
    hti_shape shape;
    size_t most; /* bytes of a record */
    hti_each_record *each;
    void *user;
    int64_t lines, empty;   /* so far; records with nothing in them are not given */
    hti_buffer bytes, ends; /* of the record at work */
    int state, quoted;      /* quoted: it had a quoted cell */
    int64_t first;          /* its first line */
    int64_t opened;         /* line of the last quote that opened a cell */
    char fault[128];
} hti_splitter;

/* Then a piece after the other, and once `end` (with count 0). What was there stays the caller's.
 */
void hti_split_begin(hti_splitter *s, ht_context *ctx, hti_shape shape, size_t most,
                     hti_each_record *each, void *user);
ht_status hti_split(hti_splitter *s, const char *bytes, size_t count, int end);
void hti_split_free(hti_splitter *s);

/* Cells of a tab-separated line, at most `most`: the last one has the rest. */
ht_status hti_split_tabs(hti_buffer *cells, hti_cell line, int most);

/* ---- columns.c ---- */

/* What the columns of a file are. Numbers count from 0, -1: there is none. */
enum { HTI_LABEL, HTI_TEXT, HTI_TEXT2, HTI_ID, HTI_ID2, HTI_COLUMNS };
typedef struct hti_columns {
    int count;              /* cells of a record; of tabs the last one has the rest of the line */
    int header;             /* the first record has the names */
    int at[HTI_COLUMNS];    /* ids: pairs as label, two ids, two texts */
    char names[HTI_ID][96]; /* in a header, or keys of JSON; "": none */
} hti_columns;

/* From the cells of a file's first record, of JSONL its keys; INVALID: the caller must say more.
 * *unsure: it is a header only if its label is nowhere else in the file; if not, ask again with
 * HT_HEADER_NO. */
ht_status hti_columns_find(hti_columns *out, int *unsure, ht_context *ctx, const char *file,
                           hti_shape shape, const ht_rows_desc *desc, const hti_cell *cells,
                           int count);
/* "csv with a header: label 'kind', text 'words'" */
void hti_columns_about(char *out, size_t bytes, const hti_columns *c, hti_shape shape);

/* ---- rows.c ---- */

typedef struct hti_row {
    const char *file;
    int64_t line;
    hti_cell cell[HTI_COLUMNS]; /* what there is of them; the label without blanks around it */
} hti_row;
/* FORMAT: this row is bad, and the sentence says why, without the place. */
typedef ht_status hti_each_row(void *user, const hti_row *row);

/* known: labels that are none of a header's, or NULL. */
ht_status hti_rows_read(ht_context *ctx, const ht_rows_desc *desc, const hti_names *known,
                        ht_rows_info *info, hti_each_row *each, void *user);

/* A row's label is trimmed, row and text are checked and handed on. */
ht_status hti_rows_give(ht_context *ctx, const ht_rows_desc *desc, ht_rows_info *info, hti_row *row,
                        hti_each_row *each, void *user);
/* A bad row, whose fault is the context's sentence: counted, or FORMAT with its place. */
ht_status hti_rows_refuse(ht_context *ctx, const ht_rows_desc *desc, ht_rows_info *info,
                          const char *file, int64_t line);

/* Is a label a whole number, as in 3, -1 or 2.0? Then *out is it. */
int hti_whole(int64_t *out, const char *label, size_t bytes);
hti_cell hti_trim(hti_cell cell); /* without blanks around it */

/* ---- folders.c ---- */

/* A folder per class? And all their files as rows. */
ht_status hti_folders_are_classes(int *are, ht_context *ctx, const char *path);
ht_status hti_folders_read(ht_context *ctx, const ht_rows_desc *desc, ht_rows_info *info,
                           hti_each_row *each, void *user);

#endif
