/*
 * The needle test: a number is said once in a long text, and asked for at its end.
 */
#ifndef CLI_EVAL_NEEDLE_H
#define CLI_EVAL_NEEDLE_H

#include "base/json.h"
#include "options.h"
#include "run/run.h"

enum { NEEDLE_DIGITS = 5, NEEDLE_SHORTEST = 96 };

/* What lies around the needle; count 0: sentences of our own. */
typedef struct needle_hay {
    unsigned char *bytes; /* from malloc */
    int64_t count, room;
} needle_hay;

/* One text of `length` bytes: hay, the needle `depth` hundredths of the way down, hay, and the
 * question with its answer at the end. The digits of the answer are bytes length - NEEDLE_DIGITS
 * ..., those of the needle begin at the byte that is returned. */
int64_t needle_write(unsigned char *out, int64_t length, int64_t depth, int64_t item,
                     const needle_hay *hay);

/* Sums over the texts of one length and depth. */
typedef struct needle_cell {
    int64_t length, depth;
    double items, found;        /* texts, and those whose number is wholly right */
    double tokens, right, loss; /* of all tokens that answer */
} needle_cell;

typedef struct needle_table {
    cli_ints lengths, depths;
    needle_cell cell[32][32]; /* [length, depth] */
} needle_table;

/* One length: m has been opened for as many tokens; hay may be empty. */
bool needle_measure(needle_cell *cells, const cli_ints *depths, run_model *m, int64_t length,
                    int64_t items, const needle_hay *hay, cli_error *error);
/* Bytes of the data, at most `most`, into the hay. */
bool needle_gather(needle_hay *hay, ht_data *data, const run_model *m, int64_t most,
                   cli_error *error);
bool needle_fits(const run_model *m, cli_error *error);

void needle_print(const needle_table *t, const char *model);
void needle_json(const needle_table *t, const char *model);

#endif
