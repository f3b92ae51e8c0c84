/*
 * Where a run has its data and how labelled texts are read: the options that train, eval, predict
 * and report share, kept in a run's run.json.
 */
#ifndef CLI_RUN_ROWS_H
#define CLI_RUN_ROWS_H

#include "run/run.h"

typedef struct run_rows {
    const char *text_column, *label_column; /* NULL: not given */
    int kind, header;                       /* -1: not given */
    int skip_bad;
    char text_kept[256], label_kept[256]; /* what the columns are where a run said so */
} run_rows;

extern const char *const run_rows_kinds[], *const run_rows_headers[];

/* The options of a command whose values have a run_rows named `field`. */
#define RUN_ROWS_OPTIONS(values, field)                                                         \
    {"rows",                                                                                    \
     CLI_CHOICE,                                                                                \
     offsetof(values, field.kind),                                                              \
     "KIND",                                                                                    \
     .choices = run_rows_kinds,                                                                 \
     .help = "labelled texts are tsv, csv, jsonl or folders (one per label); default auto: by " \
             "the name or the first bytes"},                                                    \
        {"header",                                                                              \
         CLI_CHOICE,                                                                            \
         offsetof(values, field.header),                                                        \
         "WHICH",                                                                               \
         .choices = run_rows_headers,                                                           \
         .help = "is the first line a header? yes, no; default auto: by its names, or because " \
                 "its label is nowhere else"},                                                  \
        {"text_column", CLI_TEXT, offsetof(values, field.text_column), "NAME",                  \
         .help = "name or number of the column with the text; of pairs two: NAME,NAME"},        \
        {"label_column", CLI_TEXT, offsetof(values, field.label_column), "NAME",                \
         .help = "name or number of the column with the label"},                                \
    {                                                                                           \
        "skip_bad", CLI_FLAG, offsetof(values, field.skip_bad),                                 \
            .help = "count bad rows and go on without them"                                     \
    }

/* run.json. */
typedef struct run_places {
    char data[4096], valid[4096], papers[4096]; /* "": none */
    double holdout;
    run_rows rows;
} run_places;

/* What a run folder says; of the rows what is not given already. */
bool run_places_read(run_places *out, const char *folder, cli_error *error);
bool run_places_write(const run_places *places, const char *folder, cli_error *error);
/* The rows alone, from the run.json beside a checkpoint, if there is one. */
bool run_rows_of(run_rows *rows, const run_model *m, cli_error *error);

ht_rows_desc run_rows_desc(const run_rows *rows);

/* One or two lines about what was read, if it was labelled texts. */
void run_rows_print(FILE *out, const ht_data *data);

#endif
