/*
 * JSON out and in.
 */
#include "base/json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>

static void quoted(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void member(json_writer *json, const char *key) {
    if (json->comma) fputs(", ", json->out);
    json->comma = true;
    if (!key) return;
    quoted(json->out, key);
    fputs(": ", json->out);
}

void json_open(json_writer *json, const char *key, char bracket) {
    member(json, key);
    fputc(bracket, json->out);
    json->comma = false;
}

void json_close(json_writer *json, char bracket) {
    fputc(bracket, json->out);
    json->comma = true;
}

void json_text(json_writer *json, const char *key, const char *text) {
    member(json, key);
    if (text)
        quoted(json->out, text);
    else
        fputs("null", json->out);
}

void json_int(json_writer *json, const char *key, int64_t number) {
    member(json, key);
    fprintf(json->out, "%" PRId64, number);
}

static void real(json_writer *json, const char *key, double number, int digits) {
    member(json, key);
    if (isfinite(number))
        fprintf(json->out, "%.*g", digits, number);
    else
        fputs("null", json->out);
}

void json_real(json_writer *json, const char *key, double number) { real(json, key, number, 6); }
void json_exact(json_writer *json, const char *key, double number) { real(json, key, number, 17); }

void json_bool(json_writer *json, const char *key, bool value) {
    member(json, key);
    fputs(value ? "true" : "false", json->out);
}

cJSON *json_parse(const char *text, bool *starved, cli_error *error) {
    errno = 0; /* cJSON does not say why it gave up, but malloc does */
    cJSON *root = cJSON_Parse(text);
    *starved = !root && errno == ENOMEM;
    if (*starved) cli_fail(error, "out of memory");
    return root;
}
