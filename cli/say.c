/*
 * Sentences to the user: errors once, on stderr; colour only where a person looks.
 */
#include "say.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool cli_fail(cli_error *error, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(error->text, sizeof error->text, format, list);
    va_end(list);
    return false;
}

/* no-color.org: any non-empty NO_COLOR turns colour off. */
static bool coloured(FILE *stream) {
    const char *off = getenv("NO_COLOR"), *term = getenv("TERM");
    if (off && *off) return false;
    if (!term || !*term || strcmp(term, "dumb") == 0) return false;
    return isatty(fileno(stream)) == 1;
}

const char *cli_bold(FILE *stream) { return coloured(stream) ? "\033[1m" : ""; }
const char *cli_plain(FILE *stream) { return coloured(stream) ? "\033[0m" : ""; }

void cli_say(const char *command, const char *format, ...) {
    fflush(stdout); /* so that a table and its error come in order when both go to one file */
    fprintf(stderr, "%shtransformer%s%s:%s ", cli_bold(stderr), command ? " " : "",
            command ? command : "", cli_plain(stderr));
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
}
