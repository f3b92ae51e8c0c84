/*
 * Settings by name.
 */
#include "base/settings.h"

#include "base/say.h"

#include <stdlib.h>
#include <string.h>

static void need(ht_status status, const char *key) {
    if (status == HT_OK) return;
    cli_say("settings", "the library does not know '%s' as it is asked for", key);
    abort();
}

int64_t setting_int(const ht_config *config, const char *key) {
    int64_t x = 0;
    need(ht_config_get_int(config, key, &x), key);
    return x;
}

double setting_real(const ht_config *config, const char *key) {
    double x = 0;
    need(ht_config_get_real(config, key, &x), key);
    return x;
}

const char *setting_word(const ht_config *config, const char *key) {
    const char *word = NULL;
    need(ht_config_get_choice(config, key, &word), key);
    return word;
}

bool setting_is(const ht_config *config, const char *key, const char *word) {
    return strcmp(setting_word(config, key), word) == 0;
}

int setting_index(const ht_config *config, const char *key, const char *const *names) {
    const char *word = setting_word(config, key);
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], word) == 0) return i;
    need(HT_INVALID, word);
    return -1;
}

bool setting_makes_items(const ht_config *config) {
    static const char *const made[] = {"listops", "pathfinder", "copy", "recall"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (setting_is(config, "format", made[i])) return true;
    return false;
}

bool setting_has_images(const ht_config *config) {
    return setting_is(config, "format", "images") || setting_is(config, "format", "pathfinder");
}
