/*
 * Status names, and the one sentence that goes with a failure.
 */
#include <stdarg.h>
#include <stdio.h>

#include "core/context.h"

/* where the sentence goes while there is no context yet */
static _Thread_local char orphan_error[512];

const char *ht_status_name(ht_status status) {
    switch (status) {
#define NAME(name, number, text) \
    case HT_##name: return #name;
        HT_STATUS_MAP(NAME)
#undef NAME
    }
    return "UNKNOWN";
}

const char *ht_status_text(ht_status status) {
    switch (status) {
#define TEXT(name, number, text) \
    case HT_##name: return text;
        HT_STATUS_MAP(TEXT)
#undef TEXT
    }
    return "unknown status";
}

ht_status hti_fail(const ht_context *ctx, ht_status status, const char *format, ...) {
    /* plans and caches hold their context as const: the sentence is its only mutable part */
    char *text = ctx ? ((ht_context *)ctx)->error : orphan_error;
    size_t room = ctx ? sizeof ctx->error : sizeof orphan_error;
    va_list args;
    va_start(args, format);
    vsnprintf(text, room, format, args);
    va_end(args);
    /* what a file says may be in it: one line, and nothing that a terminal obeys */
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F) *text = '?';
    return status;
}

const char *ht_context_error(const ht_context *ctx) { return ctx ? ctx->error : orphan_error; }
