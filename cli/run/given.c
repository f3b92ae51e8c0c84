/*
 * Settings as options.
 */
#include "run/given.h"

#include <string.h>

/* A word says in its help what it is without a preset; of a number that follows in brackets. */
static const char *help_of(const ht_key_info *key) {
    static char room[GIVEN_MOST][200];
    static int used;
    if (key->kind == HT_KEY_CHOICE) return key->help;
    char *out = room[used++ % GIVEN_MOST];
    snprintf(out, sizeof room[0], "%s (%s)", key->help, key->fallback);
    return out;
}

static int keys(void) { return ht_config_keys() < GIVEN_MOST ? ht_config_keys() : GIVEN_MOST; }

void given_options(cli_option *table, size_t offset) {
    static const char *const values[] = {"N", "X", "WORD"};
    ht_key_info key = HT_KEY_INFO_INIT;
    while (table->name) table++;
    for (int i = 0; i < keys() && ht_config_key(i, &key) == HT_OK; i++)
        *table++ =
            (cli_option){.name = key.name,
                         .type = CLI_TEXT,
                         .offset = offset + offsetof(given, text) + (size_t)i * sizeof(char *),
                         .value = values[key.kind],
                         .choices = key.choices,
                         .help = help_of(&key)};
    *table = (cli_option){0};
}

const char *given_for(const given *g, const char *name) {
    ht_key_info key = HT_KEY_INFO_INIT;
    for (int i = 0; i < keys() && ht_config_key(i, &key) == HT_OK; i++)
        if (strcmp(key.name, name) == 0) return g->text[i];
    return NULL;
}

const char *given_hint(char out[64], const char *text, const char *const *names) {
    const char *best = names ? cli_nearest(text, names) : NULL;
    out[0] = '\0';
    if (best) snprintf(out, 64, "; did you mean %s?", best);
    return out;
}

bool given_set(ht_context *ctx, ht_config *config, const given *g, cli_error *error) {
    ht_key_info key = HT_KEY_INFO_INIT;
    char near[64];
    for (int i = 0; i < keys() && ht_config_key(i, &key) == HT_OK; i++)
        if (g->text[i] && ht_config_set_text(config, key.name, g->text[i]) != HT_OK)
            return cli_fail(error, "--%s: %.400s%s", key.name, ht_context_error(ctx),
                            given_hint(near, g->text[i], key.choices));
    return true;
}
