/*
 * What a report is made of: the logs and configurations of runs, and on request what their models
 * do on data.
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "run/rows.h"
#include "run/score.h"

#include <cjson/cJSON.h>

#define REPORT_RUNS 16
#define REPORT_CLASSES 64
#define REPORT_POSITIONS 64

/* Columns of the log. */
typedef enum report_column {
    COLUMN_STEP,
    COLUMN_LOSS,
    COLUMN_ACCURACY,
    COLUMN_RATE,
    COLUMN_NORM,
    COLUMN_MS,
    COLUMN_TOKENS, /* per second */
    COLUMNS
} report_column;

/* Lines of one kind, column by column; what a line lacks is NaN. */
typedef struct report_lines {
    double *at[COLUMNS]; /* [room] */
    int count, room;
} report_lines;

/* What a model did on data. */
typedef struct report_eval {
    bool done;
    char problem[512]; /* why not, if it was asked for */
    bool language;
    int64_t items;
    double loss, accuracy;                                     /* natural logarithm; share */
    score classes;                                             /* of a classifier */
    bool linear;                                               /* with a linear model: */
    score alone[2];                                            /* that one, the Transformer */
    char chosen[64];                                           /* who answers */
    double bits[REPORT_POSITIONS], position[REPORT_POSITIONS]; /* language: by position */
    int positions;
} report_eval;

typedef struct report_run {
    const char *path;
    char name[96];
    cJSON *config;
    bool language;
    report_lines steps, valid;
    int damaged;       /* lines that were not JSON */
    double throughput; /* median tokens per second */
    report_eval eval;
} report_run;

typedef struct report_values {
    cli_words runs;
    const char *out, *data, *text, *device;
    int evaluate, json, last;
    int64_t items, threads;
    run_rows rows;
} report_values;

/* read.c */
bool report_read(report_run *out, const char *path, cli_error *error);
void report_release(report_run *r);
/* The best evaluation: its line in valid, or -1. Larger accuracy, smaller loss of language models.
 */
int report_best(const report_run *r);
double report_seconds(const report_run *r); /* of all steps */
/* The value of a key of the configuration as text. */
const char *report_setting(char *out, size_t bytes, const report_run *r, const char *key);

/* eval.c: fills r->eval; what goes wrong is told on the page, not here, but for memory that ran
 * out, as in the two below. */
bool report_evaluate(report_run *r, const report_values *v, cli_error *error);

/* page.c */
bool report_page(FILE *out, const report_run *runs, int count, const report_values *v,
                 cli_error *error);

/* attention.c: pictures of every layer's first heads on v->text. */
bool report_attention(FILE *out, const report_run *r, const report_values *v, cli_error *error);

#endif
