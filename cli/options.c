/*
 * Parsing by table. Every complaint names the option and the value, and where it can, the
 * nearest value that would have been right.
 */
#include "options.h"

#include "words.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const cli_option cli_common[] = {
    {"quiet", CLI_FLAG, .help = "errors and results only"},
    {"verbose", CLI_FLAG, .help = "also device, time and memory, on stderr"},
    {"help", CLI_FLAG, .help = "this page"},
    {0},
};

/* Edit distance of two words, each shorter than 64 letters; a longer one is far from
 * everything. */
static int distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    int row[64];
    if (n >= 64 || m >= 64) return 64;
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *cli_nearest(const char *word, const char *const *list) {
    const char *best = NULL;
    int least = 64;
    for (; *list; list++) {
        int d = distance(word, *list);
        size_t n = strlen(word);
        if (n >= 2 && strncmp(word, *list, n) == 0) d = 1; /* a beginning is a good guess */
        if (d < least) least = d, best = *list;
    }
    int near = (int)strlen(word) / 3;
    return least <= (near > 2 ? near : 2) && least < (int)strlen(word) ? best : NULL;
}

/* ", did you mean --block?" or nothing. */
static void suggestion(char *out, size_t bytes, const char *dashes, const char *best) {
    out[0] = '\0';
    if (best) snprintf(out, bytes, "; did you mean %s%s?", dashes, best);
}

/* The multiple of the option's step inside its range that is nearest to x. */
static int64_t nearest_int(const cli_option *o, int64_t x) {
    if (o->min != o->max && x < o->min) x = o->min;
    if (o->min != o->max && x > o->max) x = o->max;
    if (o->step > 1 && x % o->step) {
        x += o->step - x % o->step;
        if (o->min != o->max && x > o->max) x -= o->step;
    }
    return x;
}

static bool parse_int(int64_t *out, const cli_option *o, const char *text, cli_error *error) {
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (end == text || *end || errno == ERANGE)
        return cli_fail(error, "--%s takes a whole number, got '%s'", o->name, text);
    int64_t near = nearest_int(o, x);
    if (near != x && o->step > 1 && x % o->step)
        return cli_fail(error,
                        "--%s must be a multiple of %" PRId64 ", got %s; the nearest is %" PRId64,
                        o->name, o->step, text, near);
    if (near != x)
        return cli_fail(error,
                        "--%s must be %" PRId64 " to %" PRId64 ", got %s; the nearest is %" PRId64,
                        o->name, o->min, o->max, text, near);
    *out = x;
    return true;
}

static bool parse_ints(cli_ints *out, const cli_option *o, const char *text, cli_error *error) {
    const int most = sizeof out->at / sizeof out->at[0];
    while (*text) {
        char word[32];
        size_t n = strcspn(text, ",");
        if (n == 0 || n >= sizeof word)
            return cli_fail(error, "--%s takes whole numbers, got '%s'", o->name, text);
        memcpy(word, text, n);
        word[n] = '\0';
        if (out->count == most)
            return cli_fail(error, "--%s takes at most %d numbers, got '%s' too", o->name, most,
                            word);
        if (!parse_int(&out->at[out->count], o, word, error)) return false;
        out->count++;
        text += n + (text[n] == ',');
    }
    return true;
}

static bool parse_real(double *out, const cli_option *o, const char *text, cli_error *error) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return cli_fail(error, "--%s takes a number, got '%s'", o->name, text);
    if (o->min != o->max && (x < (double)o->min || x > (double)o->max))
        return cli_fail(error, "--%s must be %" PRId64 " to %" PRId64 ", got %s", o->name, o->min,
                        o->max, text);
    *out = x;
    return true;
}

/* "mean, first or fine" */
static void list_choices(char *out, size_t bytes, const char *const *choices) {
    size_t used = 0;
    for (int i = 0; choices[i] && used < bytes; i++) {
        const char *gap = i == 0 ? "" : choices[i + 1] ? ", " : " or ";
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", gap, choices[i]);
    }
}

static bool parse_choice(int *out, const cli_option *o, const char *text, cli_error *error) {
    for (int i = 0; o->choices[i]; i++)
        if (strcmp(o->choices[i], text) == 0) {
            *out = i;
            return true;
        }
    char all[160], hint[64];
    list_choices(all, sizeof all, o->choices);
    suggestion(hint, sizeof hint, "", cli_nearest(text, o->choices));
    return cli_fail(error, "--%s must be %s, got '%s'%s", o->name, all, text, hint);
}

static bool parse_value(void *values, const cli_option *o, const char *text, cli_error *error) {
    void *field = (char *)values + o->offset;
    switch (o->type) {
    case CLI_FLAG: *(int *)field = 1; return true;
    case CLI_INT: return parse_int(field, o, text, error);
    case CLI_INTS: return parse_ints(field, o, text, error);
    case CLI_REAL: return parse_real(field, o, text, error);
    case CLI_CHOICE: return parse_choice(field, o, text, error);
    default: *(const char **)field = text; return true;
    }
}

/* Defaults go through the same parser as the user's words; a list takes them only if nothing
 * was given. */
static bool parse_fallbacks(void *values, const cli_option *options, bool lists, cli_error *error) {
    for (const cli_option *o = options; o->name; o++) {
        cli_ints *list = (cli_ints *)((char *)values + o->offset);
        if (o->type == CLI_CHOICE && !lists) *(int *)((char *)values + o->offset) = -1;
        if (o->type == CLI_REAL && !lists) *(double *)((char *)values + o->offset) = o->unset;
        if (!o->fallback || (o->type == CLI_INTS) != lists) continue;
        if (lists && list->count)
            list->given = 1;
        else if (!parse_value(values, o, o->fallback, error))
            return false;
    }
    return true;
}

static const cli_option *find_option(const cli_option *options, const char *name, size_t n) {
    for (; options->name; options++) {
        size_t i = 0; /* '-' and '_' are the same to us */
        while (i < n &&
               (options->name[i] == name[i] || (options->name[i] == '_' && name[i] == '-')))
            i++;
        if (i == n && !options->name[n]) return options;
    }
    return NULL;
}

/* "-o": one dash and one letter. */
static const cli_option *find_letter(const cli_option *options, const char *word) {
    for (; options->name; options++)
        if (options->letter && word[1] == options->letter && !word[2]) return options;
    return NULL;
}

/* --quiet and --verbose are known everywhere; a table may have one of its own besides. */
static bool common_option(const char *name, size_t n, bool value) {
    const cli_option *o = find_option(cli_common, name, n);
    if (!o || value) return false;
    cli_set_loudness(strcmp(o->name, "quiet") == 0 ? -1 : 1);
    return true;
}

static bool unknown_option(const cli_option *options, const char *answer, const char *name,
                           size_t n, cli_error *error) {
    if (answer) return cli_fail(error, "there is no option --%.*s: %s", (int)n, name, answer);
    const char *names[256] = {0};
    int count = 0;
    for (; options->name && count < 248; options++) names[count++] = options->name;
    for (const cli_option *o = cli_common; o->name && count < 255; o++) names[count++] = o->name;
    char word[64], hint[64];
    snprintf(word, sizeof word, "%.*s", (int)(n < 63 ? n : 63), name);
    suggestion(hint, sizeof hint, "--", cli_nearest(word, names));
    return cli_fail(error, "there is no option --%s%s", word, hint);
}

/* An option by the name that other programs have for it. */
static const cli_option *find_other(const char **answer, const cli_command *command,
                                    const char *name, size_t n) {
    const char *ours = cli_word_option(answer, command, name, n);
    if (!ours) return NULL;
    cli_detail(command->name, "--%.*s is --%s here", (int)n, name, ours);
    return find_option(command->options, ours, strlen(ours));
}

/* One word that starts with dashes, and the value after it; *i stands on the last word taken.
 * */
static bool parse_word(void *values, const cli_command *command, int *i, int argc, char **argv,
                       cli_error *error) {
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    const cli_option *o = find_letter(command->options, argv[*i]);
    if (o) {
        equals = NULL;
    } else {
        bool known = common_option(name, n, equals);
        const char *answer = NULL;
        o = find_option(command->options, name, n);
        if (!o) o = find_other(&answer, command, name, n);
        if (!o && equals && find_option(cli_common, name, n))
            return cli_fail(error, "--%.*s takes no value, got '%s'", (int)n, name, equals + 1);
        if (!o && known) return true;
        if (!o) return unknown_option(command->options, answer, name, n, error);
    }
    const char *text = equals ? equals + 1 : NULL;
    if (o->type == CLI_FLAG) {
        if (text) return cli_fail(error, "--%s takes no value, got '%s'", o->name, text);
    } else if (!text) {
        if (*i + 1 >= argc)
            return cli_fail(error, "--%s needs a value: --%s %s", o->name, o->name, o->value);
        text = argv[++*i];
    }
    if (text && !*text) return cli_fail(error, "--%s needs a value, got ''", o->name);
    return parse_value(values, o, text, error);
}

/* A word without dashes, where the command has room for it; words so far in *given. */
static bool take_word(void *values, const cli_command *command, const char *text, int *given) {
    cli_words *many = (cli_words *)(void *)((char *)values + command->word_offset);
    const char **words = (const char **)(void *)many;
    int most = command->many_words ? (int)(sizeof many->at / sizeof many->at[0])
                                   : (command->word != NULL) + (command->second != NULL);
    if (*given >= most || (text[0] == '-' && text[1])) return false;
    words[(*given)++] = text;
    if (command->many_words) many->count = *given;
    return true;
}

/* Are the words there, and is the first one that there is? */
static bool check_words(const void *values, const cli_command *command, int given,
                        cli_error *error) {
    int wanted = (command->word && !command->word_optional) + (command->second != NULL);
    if (given < wanted)
        return cli_fail(error, "%s is missing", given ? command->second : command->word);
    if (!command->word_choices || !given) return true;
    const char *word = *(const char *const *)((const char *)values + command->word_offset);
    for (const char *const *c = command->word_choices; *c; c++)
        if (strcmp(*c, word) == 0) return true;
    char all[160], hint[64];
    list_choices(all, sizeof all, command->word_choices);
    suggestion(hint, sizeof hint, "", cli_nearest(word, command->word_choices));
    return cli_fail(error, "%s must be %s, got '%s'%s", command->word, all, word, hint);
}

bool cli_parse(void *values, const cli_command *command, int argc, char **argv, cli_error *error) {
    int given = 0;
    if (!parse_fallbacks(values, command->options, false, error)) return false;
    for (int i = 0; i < argc; i++) {
        if (take_word(values, command, argv[i], &given)) continue;
        bool dashes = strncmp(argv[i], "--", 2) == 0 && argv[i][2];
        bool letter = argv[i][0] == '-' && argv[i][1] && argv[i][1] != '-' && !argv[i][2];
        if (letter && !find_letter(command->options, argv[i]))
            return cli_fail(error, "there is no option %s", argv[i]);
        if (!dashes && !letter)
            return cli_fail(error, "unexpected word '%s': every value follows an option", argv[i]);
        if (!parse_word(values, command, &i, argc, argv, error)) return false;
    }
    if (!parse_fallbacks(values, command->options, true, error)) return false;
    if (!check_words(values, command, given, error)) return false;
    for (const cli_option *o = command->options; o->name; o++)
        if (o->required && !*(const char **)((char *)values + o->offset))
            return cli_fail(error, "--%s %s is missing", o->name, o->value);
    return true;
}
