/*
 * htransformer completion: a script that teaches the shell the commands, their options and the
 * values that options take, made from the option tables.
 */
#include "commands.h"

#include <htransformer_models.h>
#include <string.h>

typedef struct completion_values {
    const char *shell;
} completion_values;

static const cli_option options[] = {{0}};
static const char *const shells[] = {"bash", NULL};

/* The words of a list, separated by spaces. */
static void words(const char *const *list) {
    for (; *list; list++) printf(" %s", *list);
}

static void presets(void) {
    const char *word;
    for (int i = 0; (word = ht_config_preset_name(i)); i++) printf("%s%s", i ? " " : "", word);
}

static bool takes_file(const cli_option *o) { return o->type == CLI_READ || o->type == CLI_WRITE; }

/* One case per option with known values: "train --preset") words="..." ;; */
static void value_cases(const cli_command *command) {
    for (const cli_option *o = command->options; o->name; o++) {
        if (o->type == CLI_FLAG) continue;
        printf("    \"%s --%s\"", command->name, o->name);
        if (o->letter) printf(" | \"%s -%c\"", command->name, o->letter);
        printf(") values=\"");
        if (o->choices)
            words(o->choices);
        else if (o->type == CLI_TEXT && strcmp(o->name, "preset") == 0)
            presets();
        printf("\"; kind=%s ;;\n", takes_file(o) ? "file" : "value");
    }
}

static void option_case(const cli_command *command) {
    printf("    \"%s\") options=\"", command->name);
    for (const cli_option *o = command->options; o->name; o++) printf(" --%s", o->name);
    for (const cli_option *o = cli_common; o->name; o++) printf(" --%s", o->name);
    printf("\"");
    if (command->word_choices) {
        printf("; first=\"");
        words(command->word_choices);
        printf("\"");
    } else if (command->word) {
        printf("; kind=word");
    }
    printf(" ;;\n");
}

/* First words of all commands, each once; second words of a group. */
static void name_lists(void) {
    printf("    \"\") first=\"help");
    for (int i = 0; cli_commands[i]; i++) {
        size_t n = strcspn(cli_commands[i]->name, " ");
        bool again = i > 0 && strncmp(cli_commands[i - 1]->name, cli_commands[i]->name, n) == 0 &&
                     cli_commands[i - 1]->name[n] == ' ';
        if (!again) printf(" %.*s", (int)n, cli_commands[i]->name);
    }
    printf("\"; options=\"--help --version\" ;;\n");
    for (int i = 0; cli_commands[i]; i++) {
        const char *name = cli_commands[i]->name, *second = strchr(name, ' ');
        size_t n = strcspn(name, " ");
        if (!second) continue;
        printf("    \"%.*s\") first=\"$first %s\" ;;&\n", (int)n, name, second + 1);
    }
}

static int run(const void *values) {
    (void)values; /* there is one shell */
    printf("# bash completion of htransformer %s, made by 'htransformer completion bash'\n"
           "_htransformer() {\n"
           "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
           "  local command=\"\" first=\"\" options=\"\" values=\"\" kind=\"\" i word\n"
           "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
           "    word=\"${COMP_WORDS[i]}\"\n"
           "    case \"$word\" in\n"
           "    -*) break ;;\n"
           "    help) [ -n \"$command\" ] || continue ;;\n"
           "    esac\n"
           "    case \" ",
           ht_version());
    for (int i = 0; cli_commands[i]; i++) printf("%s|", cli_commands[i]->name);
    printf(" \" in\n"
           "    *[\\ \\|]\"${command:+$command }$word\"[\\ \\|]*) "
           "command=\"${command:+$command }$word\" ;;\n"
           "    *) break ;;\n"
           "    esac\n"
           "  done\n"
           "  case \"$command $prev\" in\n");
    for (int i = 0; cli_commands[i]; i++) value_cases(cli_commands[i]);
    printf("  esac\n"
           "  if [ -z \"$kind\" ]; then\n"
           "    case \"$command\" in\n");
    name_lists();
    for (int i = 0; cli_commands[i]; i++) option_case(cli_commands[i]);
    printf("    esac\n"
           "    case \"$cur\" in\n"
           "    -*) values=\"$options\"; kind=value ;;\n"
           "    *) values=\"$first\"; [ -n \"$kind\" ] || kind=value ;;\n"
           "    esac\n"
           "  fi\n"
           "  COMPREPLY=()\n"
           "  case \"$kind\" in\n"
           "  file | word) compopt -o filenames 2>/dev/null\n"
           "    while IFS= read -r word; do COMPREPLY+=(\"$word\"); done "
           "< <(compgen -f -- \"$cur\") ;;\n"
           "  value)\n"
           "    while IFS= read -r word; do COMPREPLY+=(\"$word\"); done "
           "< <(compgen -W \"$values\" -- \"$cur\") ;;\n"
           "  esac\n"
           "}\n"
           "complete -F _htransformer htransformer\n");
    return CLI_OK;
}

const cli_command cli_completion = {
    .name = "completion",
    .summary = "completion of commands and options in the shell",
    .about = "Try it: . <(htransformer completion bash). 'cmake --install' puts it where bash "
             "looks for it.\n",
    .options = options,
    .word = "SHELL",
    .word_offset = offsetof(completion_values, shell),
    .word_choices = shells,
    .values_bytes = sizeof(completion_values),
    .run = run,
};
