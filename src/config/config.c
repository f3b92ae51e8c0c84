/*
 * Configurations as objects: the keys, their values by name, and what a resume makes of them.
 */
#include "config/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"

/* ---- the keys ---- */

#define CHOICES(name, ...) static const char *const name##_choices[] = {__VA_ARGS__, NULL};
HTI_CONFIG_CHOICES(CHOICES)
#undef CHOICES

static const struct {
    const char *key;
    const char *const *names;
} choices[] = {
#define CHOICES(name, ...) {#name, name##_choices},
    HTI_CONFIG_CHOICES(CHOICES)
#undef CHOICES
};

const hti_key hti_keys[] = {
#define KEY(kind, name, fallback, least, most, owner, resume, help) \
    {#name,                                                         \
     HT_KEY_##kind,                                                 \
     HT_OWNER_##owner,                                              \
     HTI_##resume,                                                  \
     offsetof(ht_config, name),                                     \
     #fallback,                                                     \
     fallback,                                                      \
     least,                                                         \
     most,                                                          \
     help},
    HTI_CONFIG_KEYS(KEY)
#undef KEY
        {0}};
enum { KEYS = sizeof hti_keys / sizeof *hti_keys - 1 };

static const char *const *names_of(const char *key) {
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (strcmp(choices[i].key, key) == 0) return choices[i].names;
    return NULL;
}

const char *hti_config_choice(const char *key, int64_t index) {
    const char *const *names = names_of(key);
    for (; names && index > 0 && *names; index--) names++;
    return names && index == 0 ? *names : NULL;
}

const hti_key *hti_key_find(const char *name) {
    for (const hti_key *k = hti_keys; name && k->name; k++)
        if (strcmp(k->name, name) == 0) return k;
    return NULL;
}

double hti_key_open(const hti_key *k) {
    const char *const *names = names_of(k->name);
    double number = 0;
    if (k->resume == HTI_APPLY || k->resume == HTI_KEEP) return NAN;
    while (names && names[(int)number] && strcmp(names[(int)number], "auto") != 0) number++;
    return number;
}

double hti_config_number(const ht_config *c, const hti_key *k) {
    const char *field = (const char *)c + k->offset;
    return k->kind == HT_KEY_REAL ? *(const double *)field : (double)*(const int64_t *)field;
}

void hti_config_place(ht_config *c, const hti_key *k, double x) {
    char *field = (char *)c + k->offset;
    if (k->kind == HT_KEY_REAL)
        *(double *)field = x;
    else
        *(int64_t *)field = (int64_t)x;
}

const char *hti_config_words(char out[HTI_WORDS], const ht_config *c, const hti_key *k) {
    double x = hti_config_number(c, k);
    const char *word = k->kind == HT_KEY_CHOICE ? hti_config_choice(k->name, (int64_t)x) : NULL;
    if (word)
        snprintf(out, HTI_WORDS, "%s", word);
    else
        snprintf(out, HTI_WORDS, "%.15g", x);
    if (!word && strtod(out, NULL) != x) snprintf(out, HTI_WORDS, "%.17g", x);
    return out;
}

int ht_config_keys(void) { return KEYS; }

ht_status ht_config_key(int index, ht_key_info *out) {
    TRY(HTI_WANT(NULL, ht_key_info, out));
    CHECK(NULL, index >= 0 && index < KEYS, HT_INVALID, "key index must be 0 to %d, got %d",
          KEYS - 1, index);
    const hti_key *k = &hti_keys[index];
    ht_key_info info = {.name = k->name,
                        .kind = k->kind,
                        .owner = k->owner,
                        .help = k->help,
                        .fallback = k->fallback_words,
                        .least = k->least,
                        .most = k->most,
                        .keeps = k->resume == HTI_KEEP || k->resume == HTI_DECIDED,
                        .decided = k->resume == HTI_DECIDED || k->resume == HTI_CHOSEN,
                        .choices = names_of(k->name)};
    double fallback = k->resume == HTI_CHOSEN ? hti_key_open(k) : k->fallback;
    if (k->kind == HT_KEY_CHOICE) info.fallback = info.choices[(int)fallback];
    HTI_GIVE(ht_key_info, out, &info);
    return HT_OK;
}

/* ---- objects ---- */

void hti_config_defaults(ht_config *out, ht_context *ctx) {
    *out = (ht_config){.ctx = ctx};
    for (const hti_key *k = hti_keys; k->name; k++) hti_config_place(out, k, k->fallback);
}

static void leave_open(ht_config *c) {
    for (const hti_key *k = hti_keys; k->name; k++)
        if (k->resume == HTI_CHOSEN) hti_config_place(c, k, hti_key_open(k));
}

ht_status hti_config_make(ht_config **out, ht_context *ctx, const ht_config *from) {
    ht_config *config = hti_host_alloc(ctx, sizeof *config);
    CHECK(ctx, config, HT_NOMEM, "out of memory: %zu bytes for a configuration", sizeof *config);
    *config = *from;
    config->ctx = ctx;
    *out = config;
    return HT_OK;
}

ht_status ht_config_create(ht_config **out, ht_context *ctx, const char *preset) {
    CHECK(ctx, out, HT_INVALID, "ht_config_create: out is NULL");
    *out = NULL;
    ht_config config;
    hti_config_defaults(&config, ctx);
    leave_open(&config);
    if (preset) TRY(hti_config_preset(&config, preset));
    return hti_config_make(out, ctx, &config);
}

ht_status ht_config_copy(ht_config **out, const ht_config *config) {
    CHECK(config ? config->ctx : NULL, out, HT_INVALID, "ht_config_copy: out is NULL");
    *out = NULL;
    CHECK(NULL, config, HT_INVALID, "ht_config_copy: config is NULL");
    return hti_config_make(out, config->ctx, config);
}

void ht_config_destroy(ht_config *config) {
    if (config) hti_host_free(config->ctx, config);
}

/* ---- values ---- */

static ht_status find(const hti_key **out, const ht_config *c, const char *name) {
    CHECK(NULL, c, HT_INVALID, "the configuration is NULL");
    CHECK(c->ctx, name, HT_INVALID, "the key of a configuration is NULL");
    *out = hti_key_find(name);
    CHECK(c->ctx, *out, HT_INVALID, "there is no key '%.64s' in a configuration", name);
    return HT_OK;
}

static ht_status find_kind(const hti_key **out, const ht_config *c, const char *name,
                           ht_key_kind kind) {
    static const char *const words[] = {"a whole number", "a number", "one of some words"};
    TRY(find(out, c, name));
    CHECK(c->ctx, (*out)->kind == kind, HT_INVALID, "%s is %s, not %s", name, words[(*out)->kind],
          words[kind]);
    return HT_OK;
}

ht_status hti_config_put(ht_config *c, const hti_key *k, double x) {
    CHECK(c->ctx, k->kind == HT_KEY_REAL || x == floor(x), HT_INVALID,
          "%s must be a whole number, got %g", k->name, x);
    CHECK(c->ctx, x >= k->least && x <= k->most, HT_INVALID, "%s must be %.17g to %.17g, got %.17g",
          k->name, k->least, k->most, x);
    hti_config_place(c, k, x);
    return HT_OK;
}

ht_status hti_config_refuse(const ht_config *c, const hti_key *k, const char *got) {
    char all[96] = "";
    const char *const *names = names_of(k->name);
    CHECK(c->ctx, names, HT_INVALID, "%s must be a number, got %.64s", k->name, got);
    for (int i = 0; names[i]; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    return hti_fail(c->ctx, HT_INVALID, "%s must be one of %s, got %.64s", k->name, all, got);
}

ht_status hti_config_put_words(ht_config *c, const hti_key *k, const char *words) {
    char got[80], *end;
    const char *const *names = names_of(k->name);
    double x = strtod(words, &end);
    if (!names && end != words && !*end && isfinite(x)) return hti_config_put(c, k, x);
    for (int i = 0; names && names[i]; i++)
        if (strcmp(names[i], words) == 0) return hti_config_put(c, k, i);
    snprintf(got, sizeof got, "\"%.60s\"", words);
    return hti_config_refuse(c, k, got);
}

ht_status ht_config_set_int(ht_config *config, const char *key, int64_t value) {
    const hti_key *k;
    TRY(find_kind(&k, config, key, HT_KEY_INT));
    return hti_config_put(config, k, (double)value);
}

ht_status ht_config_set_real(ht_config *config, const char *key, double value) {
    const hti_key *k;
    TRY(find_kind(&k, config, key, HT_KEY_REAL));
    return hti_config_put(config, k, value);
}

ht_status ht_config_set_choice(ht_config *config, const char *key, const char *name) {
    const hti_key *k;
    TRY(find_kind(&k, config, key, HT_KEY_CHOICE));
    CHECK(config->ctx, name, HT_INVALID, "%s must be a word, got NULL", key);
    return hti_config_put_words(config, k, name);
}

ht_status ht_config_set_text(ht_config *config, const char *key, const char *text) {
    const hti_key *k;
    TRY(find(&k, config, key));
    CHECK(config->ctx, text, HT_INVALID, "%s must be a text, got NULL", key);
    return hti_config_put_words(config, k, text);
}

ht_status ht_config_get_int(const ht_config *config, const char *key, int64_t *out) {
    const hti_key *k;
    TRY(find_kind(&k, config, key, HT_KEY_INT));
    CHECK(config->ctx, out, HT_INVALID, "ht_config_get_int: out is NULL");
    *out = (int64_t)hti_config_number(config, k);
    return HT_OK;
}

ht_status ht_config_get_real(const ht_config *config, const char *key, double *out) {
    const hti_key *k;
    TRY(find_kind(&k, config, key, HT_KEY_REAL));
    CHECK(config->ctx, out, HT_INVALID, "ht_config_get_real: out is NULL");
    *out = hti_config_number(config, k);
    return HT_OK;
}

ht_status ht_config_get_choice(const ht_config *config, const char *key, const char **out) {
    const hti_key *k;
    TRY(find_kind(&k, config, key, HT_KEY_CHOICE));
    CHECK(config->ctx, out, HT_INVALID, "ht_config_get_choice: out is NULL");
    *out = hti_config_choice(k->name, (int64_t)hti_config_number(config, k));
    return HT_OK;
}

ht_status ht_config_get_text(const ht_config *config, const char *key, char *out, size_t bytes,
                             size_t *length) {
    const hti_key *k;
    char words[HTI_WORDS];
    TRY(find(&k, config, key));
    size_t n = strlen(hti_config_words(words, config, k));
    if (length) *length = n;
    CHECK(config->ctx, !out || n < bytes, HT_INVALID, "%s needs %zu bytes, got %zu", key, n + 1,
          bytes);
    if (out) memcpy(out, words, n + 1);
    return HT_OK;
}
