/*
 * Host memory through the caller's allocator, and arithmetic on sizes.
 */
#include "core/context.h"

#include <stdlib.h>

void *hti_host_alloc(ht_context *ctx, size_t bytes) {
    size_t rounded = (bytes + 63) / 64 * 64;
    if (rounded < bytes) return NULL;
    if (rounded == 0) rounded = 64;
    if (ctx && ctx->allocator.alloc) return ctx->allocator.alloc(ctx->allocator.user, rounded);
    return aligned_alloc(64, rounded);
}

void hti_host_free(ht_context *ctx, void *block) {
    if (!block) return;
    if (ctx && ctx->allocator.release) {
        ctx->allocator.release(ctx->allocator.user, block);
    } else {
        free(block);
    }
}

int hti_mul(int64_t *out, int64_t a, int64_t b) {
    if (a != 0 && b > INT64_MAX / a) return 0;
    *out = a * b;
    return 1;
}
