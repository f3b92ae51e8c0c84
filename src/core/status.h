/*
 * How errors travel: a function fails with hti_fail (status and one sentence into the context), its
 * callers pass the status on with TRY. CHECK is "unless this holds, fail".
 */
#ifndef HTI_STATUS_H
#define HTI_STATUS_H

#include "htransformer.h"

#if defined(__GNUC__)
#define HTI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define HTI_PRINTF(f, a)
#endif

/* Private functions that the models' library, another shared object of the same version, may use.
 */
#if defined(__GNUC__)
#define HTI_SHARED __attribute__((visibility("default")))
#else
#define HTI_SHARED
#endif

/* Writes the sentence into ctx (NULL: this thread's) and returns status. */
HTI_SHARED ht_status hti_fail(const ht_context *ctx, ht_status status, const char *format, ...)
    HTI_PRINTF(3, 4);

/* A handle without which nothing can be done. */
#define NEED(handle) \
    CHECK(NULL, (handle), HT_INVALID, "%s was called with NULL for its object", __func__)

#define TRY(expr)                       \
    do {                                \
        ht_status try_ = (expr);        \
        if (try_ != HT_OK) return try_; \
    } while (0)

#define CHECK(ctx, cond, status, ...)                               \
    do {                                                            \
        if (!(cond)) return hti_fail((ctx), (status), __VA_ARGS__); \
    } while (0)

#endif
