/*
 * htransformer man: the manual page, or the same as Markdown (docs/cli.md), made from the option
 * tables.
 */
#include "commands.h"
#include "words.h"

#include <ctype.h>
#include <string.h>

typedef struct man_values {
    int markdown;
} man_values;

static const cli_option options[] = {
    {"markdown", CLI_FLAG, offsetof(man_values, markdown),
     .help = "Markdown instead of the format of man"},
    {0},
};

#define ABOUT                                                                                    \
    "Attention whose cost is linear in the length of the sequence: trains and uses Transformer " \
    "models with it, runs it on NumPy files, measures it and draws it."

static const char *const environment[][2] = {
    {"HTRANSFORMER_DEVICE", "the device where --device is not given; else it is auto"},
    {"HTRANSFORMER_MPI",
     "several processes: where libhtransformer_mpi.so is, if not beside the program"},
    {"HTRANSFORMER_NCCL", "the same of NCCL's library, libnccl.so.2"},
    {"HTRANSFORMER_PATIENCE",
     "seconds that a process may stay away until the others give up; else 50"},
    {"NO_COLOR", "anything: no bold letters"},
    {"OMP_NUM_THREADS", "CPU threads where --threads is not given"},
    {"OMP_WAIT_POLICY", "passive: waiting threads sleep, as in train; active: they spin"},
};
static const char *const codes[][2] = {
    {"0", "done"}, {"1", "it failed; one sentence on stderr says why"}, {"2", "wrong usage"}};

/* Words for roff: a line must not begin with a dot or quote, and a dash is a minus. */
static void roff(const char *text) {
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\'')) printf("\\&");
        start = *text == '\n';
        if (*text == '\\')
            printf("\\e");
        else if (*text == '-')
            printf("\\-");
        else
            putchar(*text);
    }
}

/* An option's help and its default. */
static const char *help_text(char *out, size_t bytes, const cli_option *o) {
    if (o->fallback)
        snprintf(out, bytes, "%s (default %s)", o->help, o->fallback);
    else
        snprintf(out, bytes, "%s", o->help);
    return out;
}

/* ---- man --------------------------------------------------------------------------------- */

static void roff_option(const cli_option *o) {
    char text[512], words[128];
    cli_option_words(words, sizeof words, o);
    printf(".TP\n.B ");
    roff(words);
    putchar('\n');
    roff(help_text(text, sizeof text, o));
    putchar('\n');
}

static void roff_command(const cli_command *c) {
    char own[96];
    printf(".SS htransformer %s%s\n", c->name, cli_command_words(own, sizeof own, c));
    roff(c->summary);
    printf("\n");
    for (const cli_option *o = c->options; o->name; o++) roff_option(o);
    for (const char *text = c->about; text && *text;) {
        char line[1024];
        int n = (int)strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s\n", n, text);
        printf(".PP\n");
        roff(line);
        text += n + (text[n] == '\n');
    }
}

static void man_page(void) {
    printf(".TH HTRANSFORMER 1 \"\" \"htransformer %s\" \"User Commands\"\n"
           ".SH NAME\nhtransformer \\- attention whose cost is linear in the length\n"
           ".SH SYNOPSIS\n.B htransformer\n.I COMMAND\n[options]\n.SH DESCRIPTION\n",
           ht_version());
    roff(ABOUT);
    printf("\n.SH OPTIONS OF EVERY COMMAND\n");
    for (const cli_option *o = cli_common; o->name; o++) roff_option(o);
    printf(".SH COMMANDS\n");
    for (int i = 0; cli_commands[i]; i++) roff_command(cli_commands[i]);
    printf(".SH ENVIRONMENT\n");
    for (size_t i = 0; i < sizeof environment / sizeof environment[0]; i++) {
        printf(".TP\n.B %s\n", environment[i][0]);
        roff(environment[i][1]);
        putchar('\n');
    }
    printf(".SH EXIT STATUS\n");
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        printf(".TP\n.B %s\n%s\n", codes[i][0], codes[i][1]);
    printf(".SH SEE ALSO\nThe pages in docs/ of the source, and the header htransformer.h.\n");
}

/* ---- Markdown ---------------------------------------------------------------------------- */

/* Inside a table a bar would end the cell. */
static void cell(const char *text) {
    for (; *text; text++) printf(*text == '|' ? "\\|" : *text == '<' ? "&lt;" : "%c", *text);
}

static void markdown_options(const cli_option *list) {
    printf("| option | meaning |\n|---|---|\n");
    for (const cli_option *o = list; o->name; o++) {
        char text[512], words[128];
        cli_option_words(words, sizeof words, o);
        printf("| `");
        cell(words);
        printf("` | ");
        cell(help_text(text, sizeof text, o));
        printf(" |\n");
    }
    putchar('\n');
}

static void markdown_command(const cli_command *c) {
    char own[96];
    printf("## htransformer %s\n%c%s.\n\n    htransformer %s%s [options]\n\n", c->name,
           toupper((unsigned char)c->summary[0]), c->summary + 1, c->name,
           cli_command_words(own, sizeof own, c));
    if (c->options->name) markdown_options(c->options);
    for (const char *text = c->about; text && *text;) {
        int n = (int)strcspn(text, "\n");
        printf("%.*s\n\n", n, text);
        text += n + (text[n] == '\n');
    }
}

/* Names that are taken for one of ours, and where. */
static void markdown_words(void) {
    const char *const *theirs, *ours;
    printf("\n## Names of other programs\nThese are taken, too; others are answered.\n\n"
           "| name | is | in |\n|---|---|---|\n");
    for (int i = 0; (ours = cli_word_row(&theirs, i)); i++) {
        int used = 0;
        for (int c = 0; cli_commands[c]; c++) used += cli_word_is_of(i, cli_commands[c]);
        if (used == 0) continue;
        for (int k = 0; k < CLI_WORDS && theirs[k]; k++)
            printf("%s`--%s`", k ? ", " : "| ", theirs[k]);
        printf(" | `--%s` |", ours);
        for (int c = 0; cli_commands[c]; c++)
            if (cli_word_is_of(i, cli_commands[c]))
                printf(" %s%s", cli_commands[c]->name, --used ? "," : "");
        printf(" |\n");
    }
}

static void markdown(void) {
    printf("# The command line\n\n" ABOUT "\n\n"
           "This page is made by `htransformer man --markdown` from the same tables that parse the "
           "options; a test compares them. Words without dashes stand for themselves, `--name "
           "value` and `--name=value` are the same. An unknown word or a value out of range is "
           "answered with the nearest that would have been right.\n\n"
           "Every command has these:\n\n");
    markdown_options(cli_common);
    for (int i = 0; cli_commands[i]; i++) markdown_command(cli_commands[i]);
    printf("## Environment\n| variable | meaning |\n|---|---|\n");
    for (size_t i = 0; i < sizeof environment / sizeof environment[0]; i++)
        printf("| `%s` | %s |\n", environment[i][0], environment[i][1]);
    markdown_words();
    printf("\n## Exit status\n| code | meaning |\n|---|---|\n");
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        printf("| %s | %s |\n", codes[i][0], codes[i][1]);
}

static int run(const void *values) {
    const man_values *v = values;
    if (v->markdown)
        markdown();
    else
        man_page();
    return CLI_OK;
}

const cli_command cli_man = {
    .name = "man",
    .summary = "the manual page of all commands",
    .about = "Read it: htransformer man | man -l -\n",
    .options = options,
    .values_bytes = sizeof(man_values),
    .run = run,
};
