/*
 * A configuration's values by name. The names are ours, so one that the library does not have is a
 * fault of the program, which then ends.
 */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include <htransformer_models.h>
#include <stdbool.h>

int64_t setting_int(const ht_config *config, const char *key);
double setting_real(const ht_config *config, const char *key);
const char *setting_word(const ht_config *config, const char *key);
bool setting_is(const ht_config *config, const char *key, const char *word);

/* Which of the names (ended by NULL) it is. */
int setting_index(const ht_config *config, const char *key, const char *const *names);

bool setting_makes_items(const ht_config *config); /* ListOps, Pathfinder: without any file */
bool setting_has_images(const ht_config *config);

#endif
