/*
 * One JSON object per line, written as it comes. A number that JSON cannot hold (NaN,
 * infinity) becomes null. And JSON from files, by cJSON.
 */
#ifndef CLI_BASE_JSON_H
#define CLI_BASE_JSON_H

#include "base/say.h"

#include <stdint.h>
#include <stdio.h>

typedef struct json_writer {
    FILE *out;
    bool comma; /* before the next member */
} json_writer;

/* key NULL: an element of a list, or the outermost object. */
void json_open(json_writer *json, const char *key, char bracket);     /* '{' or '[' */
void json_close(json_writer *json, char bracket);                     /* '}' or ']' */
void json_text(json_writer *json, const char *key, const char *text); /* NULL: null */
void json_int(json_writer *json, const char *key, int64_t number);
void json_real(json_writer *json, const char *key, double number);  /* six digits */
void json_exact(json_writer *json, const char *key, double number); /* all that it has */
void json_bool(json_writer *json, const char *key, bool value);

/* NULL: it is no JSON, or there was no memory: then *starved, and a sentence. For cJSON_Delete. */
struct cJSON *json_parse(const char *text, bool *starved, cli_error *error);

#endif
