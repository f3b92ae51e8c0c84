/*
 * How the command line speaks: one error type that carries a sentence, and the only places
 * that print to the terminal in colour.
 */
#ifndef CLI_BASE_SAY_H
#define CLI_BASE_SAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#if defined(__GNUC__)
#define CLI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define CLI_PRINTF(f, a)
#endif

/* Exit codes of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* One sentence, without the full stop, naming what is at fault. */
typedef struct cli_error {
    char text[512];
} cli_error;

/* Writes the sentence and returns false, so that a function can fail in one line. */
bool cli_fail(cli_error *error, const char *format, ...) CLI_PRINTF(2, 3);
/* Memory that ran out may be there another time: no result may do without what it was for. */
bool cli_starved(const cli_error *error);

/* Prints "htransformer attend: sentence" to stderr; command NULL: "htransformer: sentence". */
void cli_say(const char *command, const char *format, ...) CLI_PRINTF(2, 3);

/* How much is said: -1 after --quiet, 1 after --verbose, else 0. Errors and results always are. */
void cli_set_loudness(int loudness);
bool cli_quiet(void);
bool cli_verbose(void);

/* Like cli_say, but not after --quiet; only after --verbose. */
void cli_note(const char *command, const char *format, ...) CLI_PRINTF(2, 3);
void cli_detail(const char *command, const char *format, ...) CLI_PRINTF(2, 3);

/* Columns of the terminal behind the stream, at least 20; 0: it is none. */
int cli_columns(FILE *stream);

/* Tables on stdout, each call a line without its end. On a terminal that is too narrow for the head
 * whole columns are left out at the right, of the head and of all rows after it. */
void cli_head(const char *format, ...) CLI_PRINTF(1, 2);
void cli_row(const char *format, ...) CLI_PRINTF(1, 2);

/* A line of words on stdout, broken where the terminal ends. */
void cli_line(const char *format, ...) CLI_PRINTF(1, 2);

/* Escape codes for bold text on this stream, or "" where the stream is no terminal or
 * NO_COLOR is set. */
const char *cli_bold(FILE *stream);
const char *cli_plain(FILE *stream);

#endif
