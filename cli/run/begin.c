/*
 * What a run begins with.
 */
#include "run/begin.h"

#include "base/settings.h"
#include "run/run.h"

#include <string.h>

#define ENCODER "encoder.safetensors"
#define PRESET "encoder"

/* Settings of the model that leave the weights their form and meaning. */
static bool is_free(const char *key) {
    static const char *const names[] = {"task",        "format",    "classes", "pool",
                                        "head_hidden", "mask_zero", "dtype",   "output_scale",
                                        "decay",       NULL};
    for (int i = 0; names[i]; i++)
        if (strcmp(key, names[i]) == 0) return true;
    return false;
}

static bool same_form(const given *g) {
    ht_key_info key = HT_KEY_INFO_INIT;
    for (int i = 0; i < ht_config_keys() && ht_config_key(i, &key) == HT_OK; i++)
        if (key.owner == HT_OWNER_MODEL && given_for(g, key.name) && !is_free(key.name))
            return false;
    return true;
}

static bool is_or_open(const given *g, const char *key, const char *word) {
    const char *text = given_for(g, key);
    return !text || strcmp(text, word) == 0;
}

const char *begin_preset(const begin_words *said) {
    char path[4096];
    if (!said->data) return "small-listops";
    bool fits = !said->config && !said->init && same_form(said->key) &&
                is_or_open(said->key, "task", "classify") && is_or_open(said->key, "format", "tsv");
    return fits && run_box(path, ENCODER) ? PRESET : "small";
}

bool begin_encoder(char *out, const begin_words *said, const ht_config *config, cli_error *error) {
    out[0] = '\0';
    if (said->init || !said->preset || strcmp(said->preset, PRESET) != 0) return true;
    if (!setting_is(config, "task", "classify") || !same_form(said->key)) return true;
    return run_box(out, ENCODER) ||
           cli_fail(error, "the encoder that comes with the program (" ENCODER
                           ") is not where it should be; --preset small begins without it");
}

bool begin_has_words(const ht_data *data) {
    enum { ENOUGH = 27, LOOK = 1 << 20 };
    bool seen[256] = {false};
    int kinds = 0;
    size_t bytes = 0, looked = 0;
    const char *text;
    for (int64_t i = 0; looked < LOOK && (text = ht_data_text(data, i, &bytes));
         i++, looked += bytes)
        for (size_t k = 0; k < bytes; k++) {
            kinds += !seen[(unsigned char)text[k]];
            seen[(unsigned char)text[k]] = true;
        }
    return kinds >= ENOUGH;
}
