/*
 * The context's inside: which kernels, how many threads, whose memory, the last error.
 */
#ifndef HTI_CONTEXT_H
#define HTI_CONTEXT_H

#include "core/status.h"

struct hti_ops; /* op.h */

/* What a library on top of this one keeps with a context. Nobody here looks into it. */
typedef struct hti_guest {
    const void *ops; /* its kernels for the context's device */
    void *state;
    void (*close)(ht_context *ctx); /* takes the state away while the device is still open; or NULL
                                     */
} hti_guest;

struct ht_context {
    const struct hti_ops *ops;
    char device[32]; /* the name taken, "cpu:avx512" */
    int threads;
    void *backend; /* the back end's own state (CUDA: device number, stream); NULL on the CPU */
    ht_allocator allocator;
    void *scratch; /* device memory, grown by hti_scratch (op.h) */
    size_t scratch_bytes;
    hti_guest guest;
    char error[512];
};

/* Host memory through the context's allocator (no context: the C library's), 64-byte aligned; NULL
 * if there is none. */
HTI_SHARED void *hti_host_alloc(ht_context *ctx, size_t bytes);
HTI_SHARED void hti_host_free(ht_context *ctx, void *block);

/* *out = a * b, or 0 if that does not fit. All non-negative. */
HTI_SHARED int hti_mul(int64_t *out, int64_t a, int64_t b);

#endif
