/*
 * Configurations as JSON.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"

ht_status hti_json_parse(ht_context *ctx, cJSON **out, const char *text, size_t bytes,
                         const char *what) {
    const char *end = text;
    errno = 0; /* cJSON does not say why it gave up, but malloc does */
    *out = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    if (*out) {
        while (end < text + bytes && *end && (unsigned char)*end <= ' ') end++;
        if (end == text + bytes || !*end) return HT_OK;
        cJSON_Delete(*out);
        *out = NULL;
        errno = 0;
    }
    CHECK(ctx, errno != ENOMEM, HT_NOMEM, "out of memory: reading %s", what);
    size_t left = end && end < text + bytes ? (size_t)(text + bytes - end) : 0;
    return hti_fail(ctx, HT_FORMAT, "%s is not JSON: it stops making sense at \"%.*s\"", what,
                    left < 20 ? (int)left : 20, left ? end : "");
}

/* A value of the wrong kind goes into the sentence as it was written. */
static ht_status read_value(ht_config *config, const hti_key *k, const cJSON *item) {
    int boolean = cJSON_IsBool(item) && k->least == 0 && k->most == 1 && k->kind == HT_KEY_INT;
    int choice = k->kind == HT_KEY_CHOICE;
    if (choice && cJSON_IsString(item)) return hti_config_put_words(config, k, item->valuestring);
    if (boolean) return hti_config_put(config, k, cJSON_IsTrue(item));
    if (!choice && cJSON_IsNumber(item)) return hti_config_put(config, k, item->valuedouble);
    char *got = cJSON_PrintUnformatted(item);
    ht_status status = hti_config_refuse(config, k, got ? got : "?");
    cJSON_free(got);
    return status;
}

static ht_status read_object(ht_config *config, const cJSON *root) {
    CHECK(config->ctx, cJSON_IsObject(root), HT_FORMAT,
          "a configuration must be a JSON object, {\"key\": value}");
    const cJSON *item;
    cJSON_ArrayForEach(item, root) {
        const hti_key *k = hti_key_find(item->string);
        CHECK(config->ctx, k, HT_INVALID, "there is no key '%.64s' in a configuration",
              item->string);
        TRY(read_value(config, k, item));
    }
    return HT_OK;
}

ht_status ht_config_read_json(ht_config *config, const char *json) {
    CHECK(NULL, config, HT_INVALID, "the configuration is NULL");
    CHECK(config->ctx, json, HT_INVALID, "ht_config_read_json: json is NULL");
    cJSON *root;
    TRY(hti_json_parse(config->ctx, &root, json, strlen(json), "the configuration"));
    ht_config copy = *config;
    ht_status status = read_object(&copy, root);
    cJSON_Delete(root);
    if (status == HT_OK) *config = copy;
    return status;
}

ht_status ht_config_write_json(const ht_config *config, char *out, size_t bytes, size_t *length) {
    size_t used = 0;
    CHECK(NULL, config, HT_INVALID, "the configuration is NULL");
    for (const hti_key *k = hti_keys; k->name; k++) {
        char item[HTI_WORDS + 96], words[HTI_WORDS];
        const char *quote = k->kind == HT_KEY_CHOICE ? "\"" : "";
        int n = snprintf(item, sizeof item, "%s\"%s\": %s%s%s", used ? ",\n  " : "{\n  ", k->name,
                         quote, hti_config_words(words, config, k), quote);
        if (out && used + (size_t)n < bytes) memcpy(out + used, item, (size_t)n + 1);
        used += (size_t)n;
    }
    if (out && used + 3 < bytes) memcpy(out + used, "\n}\n", 4);
    used += 3;
    if (length) *length = used;
    CHECK(config->ctx, !out || used < bytes, HT_INVALID, "a configuration needs %zu bytes, got %zu",
          used + 1, bytes);
    return HT_OK;
}
