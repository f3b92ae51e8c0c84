/*
 * How much arithmetic a model takes, and how much the device could do: their ratio says how busy it
 * is.
 */
#include <time.h>

#include "model/model.h"

enum { SIZE = 512, ROUNDS = 2 };   /* of the products that measure a CPU; at least so many */
enum { SMALL = 0x3c };             /* this byte again and again is a small number, not zero */
static const double SECONDS = 0.1; /* at least so long */

/* Weights that every row is multiplied with (of the output: every token, with what it has of the
 * row). Where pooling takes first rows, the last layer works on those alone after its attention. */
double ht_model_flops(const ht_model *m) {
    if (!m) return 0;
    const ht_config *c = &m->config;
    double qkv = (double)(c->inner + 2 * HTI_KV) * (double)c->width;
    double rest = (double)(c->inner + 2 * c->hidden) * (double)c->width;
    double weights = (double)c->layers * (qkv + rest);
    if (HTI_BY_TOKEN)
        weights += (double)c->vocab * (double)c->width;
    else if (c->pool <= HTI_POOLED_FIRST)
        weights -= rest;
    /* two operations each in forward, four in backward */
    return 6 * weights / (double)c->merge;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* The fastest of a few products, each shorter than the turn that a busy machine gives a thread; the
 * first one warms up. Not of zeros: some products skip those. */
static ht_status measure(double *out, ht_context *ctx, ht_dtype dtype, void *block) {
    int64_t n = SIZE;
    hti_gemm g = {.dtype = dtype, .m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n};
    size_t bytes = (size_t)(n * n) * hti_bytes(dtype);
    g.a = block, g.b = (char *)block + bytes, g.c = (char *)block + 2 * bytes;
    TRY(ctx->ops->fill(ctx, block, SMALL, 3 * bytes));
    double begin = now();
    for (int round = 0; round <= ROUNDS || now() - begin < SECONDS; round++) {
        double start = now();
        TRY(hti_models(ctx)->gemm(ctx, &g));
        double rate = 2.0 * (double)(n * n * n) / (now() - start);
        if (round > 0 && rate > *out) *out = rate;
    }
    return HT_OK;
}

ht_status ht_context_peak(ht_context *ctx, ht_dtype dtype, double *out) {
    NEED(ctx);
    void *block = NULL;
    CHECK(ctx, out, HT_INVALID, "ht_context_peak: out is NULL");
    *out = 0;
    TRY(hti_models_open(ctx, dtype));
    if (hti_models(ctx)->peak) {
        *out = hti_models(ctx)->peak(ctx, dtype);
        return HT_OK;
    }
    TRY(ctx->ops->alloc(ctx, &block, 3 * (size_t)(SIZE * SIZE) * hti_bytes(dtype)));
    ht_status status = measure(out, ctx, dtype, block);
    ctx->ops->release(ctx, block);
    return status;
}
