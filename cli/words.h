/*
 * Words that people know from other programs: names of options that mean the same as one of ours
 * are taken, others are answered; so are commands.
 */
#ifndef CLI_WORDS_H
#define CLI_WORDS_H

#include "options.h"

/* Our name of an option that other programs call so (n letters), if the command has it; else NULL,
 * and in *answer what there is instead, or NULL. */
const char *cli_word_option(const char **answer, const cli_command *command, const char *name,
                            size_t n);

/* What there is instead of a command that we do not have; NULL: nobody knows. */
const char *cli_word_command(const char *name);

/* Row `index` of the names that are taken: *theirs are at most CLI_WORDS, ended by NULL where they
 * are fewer; the result is ours, NULL after the last row. */
enum { CLI_WORDS = 16 };
const char *cli_word_row(const char *const **theirs, int index);
bool cli_word_is_of(int index, const cli_command *command); /* are they taken there? */

#endif
