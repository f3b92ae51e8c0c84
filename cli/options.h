/*
 * Commands and their options as data: one table per command drives parsing, help and whatever
 * else wants to know them (completion, a manual page).
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "base/say.h"

#include <stdint.h>

/* What an option takes, and the type of the field it fills. */
typedef enum cli_type {
    CLI_FLAG,   /* nothing; int, 1 if given */
    CLI_INT,    /* int64_t */
    CLI_INTS,   /* cli_ints; may be repeated or hold commas */
    CLI_REAL,   /* double, finite */
    CLI_CHOICE, /* int, index into choices; -1 if neither given nor defaulted */
    CLI_TEXT,   /* const char *, NULL if not given */
    CLI_READ,   /* likewise: a file that is read (completion offers files) */
    CLI_WRITE   /* likewise: a file that is written */
} cli_type;

typedef struct cli_ints {
    int64_t at[32];
    int count;
    int given; /* 0: these are the defaults */
} cli_ints;

/* Words without dashes, as many as there are. */
typedef struct cli_words {
    const char *at[32];
    int count;
} cli_words;

typedef struct cli_option {
    const char *name; /* without the dashes; NULL ends the table */
    cli_type type;
    size_t offset;              /* of the field in the command's values */
    const char *value;          /* how help calls the value: "N", "FILE" */
    const char *fallback;       /* the default, as the user would type it; NULL: none */
    const char *const *choices; /* CLI_CHOICE: ended by NULL */
    int64_t min, max;           /* CLI_INT(S), CLI_REAL; min == max: any */
    int64_t step;               /* CLI_INT(S): must be a multiple of this; 0: any */
    double unset;               /* CLI_REAL: the value if it is neither given nor has a default */
    int required;
    const char *help;
    char letter; /* short form, -o; 0: none */
} cli_option;

typedef struct cli_command {
    const char *name; /* one or two words: "attend", "bench decode" */
    const char *summary;
    const char *about; /* shown under the options; paragraphs end in '\n' */
    const cli_option *options;
    const char *word; /* one word without dashes, as help calls it: "RUN"; NULL: none */
    int word_optional;
    size_t word_offset; /* of its const char * field; a second word's field follows it */
    const char *second; /* the second word, likewise; NULL: none */
    int many_words;     /* one or more of them; the field is a cli_words */
    const char *const *word_choices; /* the words that there are; NULL: any */
    size_t values_bytes;             /* of the struct that offset points into */
    int (*run)(const void *values);  /* returns the exit code */
} cli_command;

/* Fills values (zeroed by the caller) from the words after the command. */
bool cli_parse(void *values, const cli_command *command, int argc, char **argv, cli_error *error);

/* The options that every command has (--quiet, --verbose, --help), ended by a NULL name. */
extern const cli_option cli_common[];

/* The whole help page of one command. */
void cli_help(FILE *out, const cli_command *command);

/* " RUN", " [RUN]", " RUN...", " FROM TO", or nothing. */
const char *cli_command_words(char *out, size_t bytes, const cli_command *command);

/* "--query mean|first|fine", "-o, --out FILE"; returns its length. */
int cli_option_words(char *out, size_t bytes, const cli_option *o);

/* The word of the list (ended by NULL) that is nearest to `word`, or NULL if none is near. */
const char *cli_nearest(const char *word, const char *const *list);

/* One paragraph to `out`: words broken before `width` columns, every line after the first
 * indented. */
void cli_wrap(FILE *out, const char *text, int column, int indent, int width);

#endif
