/*
 * htransformer: finds the command, parses its options by table, runs it, returns 0 (done), 1
 * (failed) or 2 (wrong usage).
 */
#include "base/start.h"
#include "commands.h"
#include "base/save.h"
#include "words.h"

#include <htransformer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define ABOUT "attention whose cost is linear in the length of the sequence"

const cli_command *const cli_commands[] = {
    &cli_train,        &cli_eval,       &cli_predict,     &cli_generate,  &cli_export,
    &cli_info,         &cli_attend,     &cli_map,         &cli_report,    &cli_bench_attention,
    &cli_bench_decode, &cli_data_make,  &cli_data_import, &cli_data_show, &cli_data_ladder,
    &cli_results,      &cli_completion, &cli_man,         NULL,
};

/* A command's first word is `word`; for "bench" there are two of them. */
static bool starts_with(const cli_command *command, const char *word) {
    size_t n = strlen(word);
    return strncmp(command->name, word, n) == 0 && (command->name[n] == ' ' || !command->name[n]);
}

/* The command that the words begin with; *used is how many of them name it. */
static const cli_command *find(int *used, int argc, char **argv) {
    for (int i = 0; cli_commands[i]; i++) {
        if (argc < 1 || !starts_with(cli_commands[i], argv[0])) continue;
        const char *second = strchr(cli_commands[i]->name, ' ');
        *used = second ? 2 : 1;
        if (!second || (argc > 1 && strcmp(second + 1, argv[1]) == 0)) return cli_commands[i];
    }
    return NULL;
}

static int newcomer(void) {
    printf("htransformer %s: " ABOUT "\n"
           "  htransformer train --run demo   trains a small model on generated expressions\n"
           "  htransformer report demo        a page about it: report.html, for your browser\n"
           "  htransformer bench attention    how fast it is here, against a matrix product\n"
           "  htransformer help               all commands\n",
           ht_version());
    return CLI_OK;
}

/* All commands, or those of a group such as "bench". */
static int help_all(const char *group) {
    const char *bold = cli_bold(stdout), *plain = cli_plain(stdout);
    if (group)
        printf("usage: %shtransformer %s%s COMMAND [options]\n\n", bold, group, plain);
    else
        printf("%shtransformer%s %s - " ABOUT "\n\nusage: htransformer COMMAND [options]\n\n", bold,
               plain, ht_version());
    for (int i = 0; cli_commands[i]; i++)
        if (!group || starts_with(cli_commands[i], group))
            printf("  %s%-16s%s  %s\n", bold, cli_commands[i]->name, plain,
                   cli_commands[i]->summary);
    if (!group)
        printf("\n  %-16s  options of a command; as --help after it\n"
               "  %-16s  the version\n\n"
               "HTRANSFORMER_DEVICE names the device where --device does not; NO_COLOR turns off\n"
               "bold. Exit status: 0 done, 1 failed, 2 wrong usage.\n",
               "help COMMAND", "--version");
    return CLI_OK;
}

/* Which command or group was meant, when the words name none. */
static int unknown(int argc, char **argv) {
    enum { MOST = 64 };
    const char *seconds[MOST] = {0}, *firsts[MOST + 4] = {"help", "--help", "--version", NULL};
    char names[MOST][32];
    int count = 0, first_count = 3;
    for (int i = 0; cli_commands[i] && i < MOST; i++) {
        snprintf(names[i], sizeof names[i], "%s", cli_commands[i]->name);
        names[i][strcspn(names[i], " ")] = '\0';
        firsts[first_count++] = names[i];
        if (starts_with(cli_commands[i], argv[0]) && count < MOST - 1)
            seconds[count++] = strchr(cli_commands[i]->name, ' ') + 1;
    }
    char most[128] = ""; /* all but the last, with commas between them */
    for (int i = 0; i + 1 < count; i++)
        snprintf(most + strlen(most), sizeof most - strlen(most), "%s%s", i ? ", " : "",
                 seconds[i]);
    if (count && argc < 2) {
        cli_say(argv[0], "what? %s or %s", most, seconds[count - 1]);
    } else if (count) {
        const char *best = cli_nearest(argv[1], seconds);
        cli_say(argv[0], "there is no '%s', but %s and %s%s%s%s", argv[1], most, seconds[count - 1],
                best ? "; did you mean " : "", best ? best : "", best ? "?" : "");
    } else if (cli_word_command(argv[0])) {
        cli_say(NULL, "there is no command '%s': %s", argv[0], cli_word_command(argv[0]));
    } else {
        const char *best = cli_nearest(argv[0], firsts);
        cli_say(NULL, "there is no command '%s'%s%s%s", argv[0], best ? "; did you mean " : "",
                best ? best : "", best ? "?" : "");
    }
    fprintf(stderr, "'htransformer help' lists all commands.\n");
    return CLI_USAGE;
}

static int help(int argc, char **argv) {
    if (argc == 0) return help_all(NULL);
    int used = 0;
    const cli_command *command = find(&used, argc, argv);
    if (command) {
        cli_help(stdout, command);
        return CLI_OK;
    }
    for (int i = 0; cli_commands[i]; i++)
        if (argc == 1 && starts_with(cli_commands[i], argv[0])) return help_all(argv[0]);
    return unknown(argc, argv);
}

static bool wants_help(int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

static int run(const cli_command *command, int argc, char **argv) {
    if (wants_help(argc, argv)) {
        cli_help(stdout, command);
        return CLI_OK;
    }
    cli_error error;
    void *values = calloc(1, command->values_bytes);
    int code = CLI_FAILED;
    if (!values) {
        cli_say(command->name, "out of memory");
    } else if (!cli_parse(values, command, argc, argv, &error)) {
        cli_say(command->name, "%s", error.text);
        fprintf(stderr, "'htransformer help %s' lists its options.\n", command->name);
        code = CLI_USAGE;
    } else {
        code = command->run(values);
    }
    free(values);
    return code;
}

static int dispatch(int argc, char **argv) {
    if (argc == 0) return newcomer();
    if (strcmp(argv[0], "help") == 0) return help(argc - 1, argv + 1);
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) return help_all(NULL);
    if (strcmp(argv[0], "--version") == 0) {
        printf("htransformer %s\n", ht_version());
        return CLI_OK;
    }
    int used = 0;
    const cli_command *command = find(&used, argc, argv);
    if (command) return run(command, argc - used, argv + used);
    if (argc == 2 && wants_help(1, argv + 1)) return help(1, argv); /* htransformer bench --help */
    return unknown(argc, argv);
}

/* After --verbose: how long it took and how much memory it had at most. */
static void account(const struct timespec *start) {
    struct timespec now;
    struct rusage use;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)now.tv_nsec -
                     1e-9 * (double)start->tv_nsec;
    if (getrusage(RUSAGE_SELF, &use) == 0)
        cli_detail(NULL, "%.2f s, %.1f MB of memory at most", seconds,
                   (double)use.ru_maxrss * 1024 / 1e6);
}

int main(int argc, char **argv) {
    struct timespec start;
    start_settle(argv);
    cli_train_options();
    save_watch_signals();
    clock_gettime(CLOCK_MONOTONIC, &start);
    int code = dispatch(argc - 1, argv + 1);
    account(&start);
    /* a full disk shows itself only when the last bytes leave */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        cli_say(NULL, "the output could not be written");
        return code ? code : CLI_FAILED;
    }
    return code;
}
