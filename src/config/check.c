/*
 * What a model can take: the limits of each key, what is decided where a key leaves it open, and
 * which values go together.
 */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/rules.h"

static int fits_batch(const ht_config *c) {
    int64_t rows;
    return hti_mul(&rows, 2 * c->batch, c->length + c->merge) && rows <= INT32_MAX;
}

#define RULE(name, holds, says, ...) \
    static int name(const ht_config *c) { return holds; }
HTI_CONFIG_RULES(RULE)
#undef RULE

static const struct {
    int (*holds)(const ht_config *c);
    const char *says, *keys[4];
} rules[] = {
#define RULE(name, holds, says, ...) {name, says, {__VA_ARGS__}},
    HTI_CONFIG_RULES(RULE)
#undef RULE
};
enum { RULES = sizeof rules / sizeof *rules };

const char *ht_config_rule(int index) {
    return index >= 0 && index < RULES ? rules[index].says : NULL;
}

static ht_status check_rule(ht_context *ctx, const ht_config *c, int i) {
    char got[256] = "", words[HTI_WORDS];
    if (rules[i].holds(c)) return HT_OK;
    for (int k = 0; k < 4 && rules[i].keys[k]; k++) {
        const hti_key *key = hti_key_find(rules[i].keys[k]);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s %s", k ? ", " : "", key->name,
                 hti_config_words(words, c, key));
    }
    return hti_fail(ctx, HT_INVALID, "%s, got %s", rules[i].says, got);
}

/* What this device trains fast in. */
static ht_dtype fast_dtype(const ht_context *ctx) {
    return strncmp(ht_context_device(ctx), "cuda", 4) == 0 ? HT_BF16 : HT_F32;
}

static void decide(const ht_context *ctx, ht_config *c) {
    int language = c->task == HTI_TASK_LANGUAGE;
    if (c->inner == 0) c->inner = c->width;
    if (c->hidden == 0) c->hidden = 4 * c->width;
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    if (c->classes == 0) c->classes = 2;
    if (language) c->causal = 1;
    ht_attention_desc coarse = HT_ATTENTION_DESC_INIT;
    coarse.query = (ht_query)c->query, coarse.causal = (int)c->causal;
    coarse.open = c->open;
    c->query = ht_attention_query(&coarse);
    if (c->dtype == HTI_DTYPE_AUTO) c->dtype = fast_dtype(ctx);
    if (c->embed_std == 0) c->embed_std = language ? 0.02 : 1;
    if (language) c->mask_zero = 0;
}

static ht_status complete(ht_context *ctx, ht_config *c) {
    for (const hti_key *k = hti_keys; k->name; k++) {
        double x = hti_config_number(c, k);
        CHECK(ctx, x >= k->least && x <= k->most, HT_INVALID,
              "%s must be %.17g to %.17g, got %.17g", k->name, k->least, k->most, x);
    }
    decide(ctx, c);
    c->ctx = ctx;
    return HT_OK;
}

static ht_status obey(ht_context *ctx, const ht_config *c) {
    for (int i = 0; i < RULES; i++) TRY(check_rule(ctx, c, i));
    return HT_OK;
}

ht_status hti_config_resolve(ht_context *ctx, ht_config *c) {
    TRY(complete(ctx, c));
    return obey(ctx, c);
}

/* ---- what was begun before ---- */

static int is_kept(const hti_key *k, hti_begun begun) {
    if (begun == HTI_BEGUN_MODEL) return k->owner == HT_OWNER_MODEL;
    return k->resume == HTI_KEEP || k->resume == HTI_DECIDED;
}

ht_status hti_config_go_on(ht_context *ctx, ht_config *c, const ht_config *stored, hti_begun begun,
                           const char *what) {
    char now[HTI_WORDS], then[HTI_WORDS];
    for (const hti_key *k = hti_keys; k->name; k++)
        if (hti_config_number(c, k) == hti_key_open(k))
            hti_config_place(c, k, hti_config_number(stored, k));
    TRY(complete(ctx, c));
    for (const hti_key *k = hti_keys; k->name; k++)
        CHECK(ctx, !is_kept(k, begun) || hti_config_number(c, k) == hti_config_number(stored, k),
              HT_INVALID, "%s has %s %s and keeps it: it cannot go on with %s", what, k->name,
              hti_config_words(then, stored, k), hti_config_words(now, c, k));
    return obey(ctx, c);
}

ht_status ht_config_check(const ht_config *config) {
    CHECK(NULL, config, HT_INVALID, "the configuration is NULL");
    ht_config copy = *config;
    return hti_config_resolve(config->ctx, &copy);
}
