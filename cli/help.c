/*
 * The help page of a command, made from its option table.
 */
#include "options.h"

#include <string.h>

#define WIDTH 80  /* columns of a page where there is no terminal, and at most on one */
#define COLUMN 28 /* where the explanations start; on a narrow terminal further to the left */

static int page_width(FILE *out) {
    int columns = cli_columns(out);
    return columns == 0 || columns > WIDTH ? WIDTH : columns;
}

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

const char *cli_command_words(char *out, size_t bytes, const cli_command *command) {
    const char *format = command->word_optional ? " [%s]%s%s" : " %s%s%s";
    out[0] = '\0';
    if (command->many_words)
        snprintf(out, bytes, " %s...", command->word);
    else if (command->word)
        snprintf(out, bytes, format, command->word, command->second ? " " : "",
                 command->second ? command->second : "");
    return out;
}

int cli_option_words(char *out, size_t bytes, const cli_option *o) {
    int n = 0;
    if (o->letter) n = snprintf(out, bytes, "-%c, ", o->letter);
    n += snprintf(out + n, bytes - (size_t)n, "--%s", o->name);
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
    int width = page_width(out), column = width < 70 ? 8 : COLUMN;
    int n = 2 + cli_option_words(words, sizeof words, o);
    fprintf(out, "  %s%s%s", cli_bold(out), words, cli_plain(out));
    if (n + 2 > column)
        fprintf(out, "\n%*s", column, "");
    else
        fprintf(out, "%*s", column - n, "");
    if (o->fallback)
        snprintf(text, sizeof text, "%s (default %s)", o->help, o->fallback);
    else
        snprintf(text, sizeof text, "%s", o->help);
    cli_wrap(out, text, column, column, width);
}

static void help_usage(FILE *out, const cli_command *command) {
    char line[512], own[96];
    int n = snprintf(line, sizeof line, "usage: htransformer %s%s", command->name,
                     cli_command_words(own, sizeof own, command));
    bool more = false;
    for (const cli_option *o = command->options; o->name; o++) {
        char words[128];
        if (!o->required) {
            more = true;
            continue;
        }
        cli_option_words(words, sizeof words, o);
        n += snprintf(line + n, sizeof line - (size_t)n, " %s", words);
    }
    if (more) snprintf(line + n, sizeof line - (size_t)n, " [options]");
    cli_wrap(out, line, 0, 7, page_width(out));
}

void cli_help(FILE *out, const cli_command *command) {
    char title[512];
    int n = fprintf(out, "%shtransformer %s%s", cli_bold(out), command->name, cli_plain(out));
    n -= (int)(strlen(cli_bold(out)) + strlen(cli_plain(out)));
    snprintf(title, sizeof title, " - %s", command->summary);
    cli_wrap(out, title, n, 4, page_width(out));
    fputc('\n', out);
    help_usage(out, command);
    fputc('\n', out);
    for (const cli_option *o = command->options; o->name; o++) help_option(out, o);
    for (const cli_option *o = cli_common; o->name; o++) {
        bool own = false; /* a command may say better what it does */
        for (const cli_option *p = command->options; p->name; p++)
            own |= strcmp(p->name, o->name) == 0;
        if (!own) help_option(out, o);
    }
    for (const char *text = command->about; text && *text;) {
        fputc('\n', out);
        cli_wrap(out, text, 0, 0, page_width(out));
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
}
