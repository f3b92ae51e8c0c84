/*
 * Sentences to the user: errors once, on stderr; colour only where a person looks.
 */
#include "base/say.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool cli_fail(cli_error *error, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(error->text, sizeof error->text, format, list);
    va_end(list);
    /* what a file says may be in it: one line, and nothing that a terminal obeys */
    for (char *p = error->text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F) *p = '?';
    return false;
}

bool cli_starved(const cli_error *error) {
    return strstr(error->text, "out of memory") || strstr(error->text, strerror(ENOMEM));
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

int cli_columns(FILE *stream) {
    struct winsize size;
    if (isatty(fileno(stream)) != 1) return 0;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col < 20 ? 20 : size.ws_col;
}

static int loudness;

void cli_set_loudness(int new) { loudness = new; }
bool cli_quiet(void) { return loudness < 0; }
bool cli_verbose(void) { return loudness > 0; }

static void say(const char *command, const char *format, va_list list) {
    fflush(stdout); /* so that a table and its error come in order when both go to one file */
    fprintf(stderr, "%shtransformer%s%s:%s ", cli_bold(stderr), command ? " " : "",
            command ? command : "", cli_plain(stderr));
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
}

void cli_say(const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    say(command, format, list);
    va_end(list);
}

void cli_note(const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (!cli_quiet()) say(command, format, list);
    va_end(list);
}

void cli_detail(const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (cli_verbose()) say(command, format, list);
    va_end(list);
}

static int cut; /* columns of the table at work; 0: all */

/* The last column of the head that ends inside the terminal; two spaces are between columns. */
static int columns_that_fit(const char *head) {
    int width = cli_columns(stdout), n = (int)strlen(head), best = 0;
    if (width == 0 || n <= width) return 0;
    for (int i = 1; i <= width; i++)
        if (head[i - 1] != ' ' && head[i] == ' ' && head[i + 1] == ' ') best = i;
    return best ? best : width;
}

void cli_head(const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    cut = columns_that_fit(text);
    printf("%s%.*s%s\n", cli_bold(stdout), cut ? cut : (int)sizeof text, text, cli_plain(stdout));
}

void cli_row(const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    printf("%.*s\n", cut ? cut : (int)sizeof text, text);
}

void cli_line(const char *format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    int width = cli_columns(stdout), column = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        int n = (int)strlen(word);
        bool breaks = column && width && column + 1 + n > width;
        column = printf("%s%s", breaks ? "\n  " : column ? " " : "", word) + (breaks ? -1 : column);
    }
    putchar('\n');
}
