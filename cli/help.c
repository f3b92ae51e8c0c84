/*
 * The help page of a command, made from its option table.
 */
#include "options.h"

#include <string.h>

#define WIDTH 80  /* columns of a page */
#define COLUMN 28 /* where the explanations start */

void cli_wrap(FILE *out, const char *text, int column, int indent, int width) {
    bool first = true;
    while (*text) {
        int n = (int)strcspn(text, " \n");
        if (!first && column + 1 + n > width) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, text);
        column += n;
        first = false;
        text += n;
        text += *text == ' ';
        if (*text == '\n') break;
    }
    fputc('\n', out);
}

/* "--query mean|first|fine", "--block N" */
static int option_words(char *out, size_t bytes, const cli_option *o) {
    int n = snprintf(out, bytes, "--%s", o->name);
    if (o->type == CLI_CHOICE) {
        for (int i = 0; o->choices[i]; i++)
            n += snprintf(out + n, bytes - (size_t)n, "%c%s", i ? '|' : ' ', o->choices[i]);
    } else if (o->type != CLI_FLAG) {
        n += snprintf(out + n, bytes - (size_t)n, " %s", o->value);
    }
    return n;
}

static void help_option(FILE *out, const cli_option *o) {
    char words[128], text[512];
    int n = 2 + option_words(words, sizeof words, o);
    fprintf(out, "  %s%s%s", cli_bold(out), words, cli_plain(out));
    if (n + 2 > COLUMN)
        fprintf(out, "\n%*s", COLUMN, "");
    else
        fprintf(out, "%*s", COLUMN - n, "");
    if (o->fallback)
        snprintf(text, sizeof text, "%s (default %s)", o->help, o->fallback);
    else
        snprintf(text, sizeof text, "%s", o->help);
    cli_wrap(out, text, COLUMN, COLUMN, WIDTH);
}

static void help_usage(FILE *out, const cli_command *command) {
    char line[512];
    int n = snprintf(line, sizeof line, "usage: htransformer %s", command->name);
    bool more = false;
    if (command->word)
        n += snprintf(line + n, sizeof line - (size_t)n, command->word_optional ? " [%s]" : " %s",
                      command->word);
    for (const cli_option *o = command->options; o->name; o++) {
        char words[128];
        if (!o->required) {
            more = true;
            continue;
        }
        option_words(words, sizeof words, o);
        n += snprintf(line + n, sizeof line - (size_t)n, " %s", words);
    }
    if (more) snprintf(line + n, sizeof line - (size_t)n, " [options]");
    cli_wrap(out, line, 0, 7, WIDTH);
}

void cli_help(FILE *out, const cli_command *command) {
    fprintf(out, "%shtransformer %s%s - %s\n\n", cli_bold(out), command->name, cli_plain(out),
            command->summary);
    help_usage(out, command);
    fputc('\n', out);
    for (const cli_option *o = command->options; o->name; o++) help_option(out, o);
    static const cli_option help = {.name = "help", .type = CLI_FLAG, .help = "this page"};
    help_option(out, &help);
    for (const char *text = command->about; text && *text;) {
        fputc('\n', out);
        cli_wrap(out, text, 0, 0, WIDTH);
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
}
