/*
 * From a device's name to its table of kernels; contexts and device memory.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"
#include "op.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *ht_version(void) {
    return STRING(HT_VERSION_MAJOR) "." STRING(HT_VERSION_MINOR) "." STRING(HT_VERSION_PATCH);
}

/* ---- the list of devices ---- */

static int count_of(const hti_candidate *list) {
    int n = 0;
    while (list[n].name) n++;
    return n;
}

int ht_device_count(void) { return count_of(hti_cpu_candidates) + count_of(hti_cuda_candidates()); }

static const hti_candidate *best_cpu(void) {
    const hti_candidate *c = hti_cpu_candidates;
    while (!c->available()) c++; /* the reference kernels run everywhere */
    return c;
}

ht_status ht_device_get(int index, ht_device_info *out) {
    int cpus = count_of(hti_cpu_candidates);
    TRY(HTI_WANT(NULL, ht_device_info, out));
    CHECK(NULL, index >= 0 && index < ht_device_count(), HT_INVALID,
          "device index must be 0 to %d, got %d", ht_device_count() - 1, index);
    const hti_candidate *c =
        index < cpus ? &hti_cpu_candidates[index] : &hti_cuda_candidates()[index - cpus];
    ht_device_info info = {
        .name = c->name, .about = c->about, .available = c->available(), .chosen = c == best_cpu()};
    HTI_GIVE(ht_device_info, out, &info);
    return HT_OK;
}

/* ---- choosing one ---- */

static ht_status choose_cpu(const hti_candidate **out, const char *name) {
    for (const hti_candidate *c = hti_cpu_candidates; c->name; c++) {
        if (strcmp(c->name, name) != 0) continue;
        CHECK(NULL, c->available(), HT_UNSUPPORTED, "device \"%s\" cannot run here: %s", name,
              c->about);
        *out = c;
        return HT_OK;
    }
    return hti_fail(
        NULL, HT_INVALID,
        "device must be \"auto\", \"cpu\", \"cpu:ref\", \"cpu:avx2\", \"cpu:avx512\" or "
        "\"cuda:N\", got \"%s\"",
        name);
}

static ht_status choose(const hti_candidate **out, const char *name) {
    if (strcmp(name, "auto") == 0) {
        const hti_candidate *gpu = hti_cuda_candidates();
        *out = gpu->ops && gpu->available() ? gpu : best_cpu();
        return HT_OK;
    }
    if (strcmp(name, "cpu") == 0) {
        *out = best_cpu();
        return HT_OK;
    }
    if (strncmp(name, "cuda:", 5) != 0) return choose_cpu(out, name);
    /* open refuses a number that is not in the list */
    const hti_candidate *c = hti_cuda_candidates();
    for (const hti_candidate *i = c; i->name; i++)
        if (strcmp(i->name, name) == 0) c = i;
    CHECK(NULL, c->ops && c->available(), HT_DEVICE, "device \"%s\" cannot be used: %s", name,
          c->about);
    *out = c;
    return HT_OK;
}

static const char *wanted_device(const ht_context_desc *desc) {
    const char *name = desc->device ? desc->device : getenv("HTRANSFORMER_DEVICE");
    return name && *name ? name : "cpu";
}

/* ---- contexts ---- */

static ht_status check_context_desc(const ht_context_desc *desc) {
    CHECK(NULL, desc->threads >= 0 && desc->threads <= 4096, HT_INVALID,
          "threads must be 0 to 4096, got %d", desc->threads);
    CHECK(NULL, !desc->allocator.alloc == !desc->allocator.release, HT_INVALID,
          "allocator must have both alloc and release, or neither");
    return HT_OK;
}

ht_status ht_context_create(ht_context **out, const ht_context_desc *given) {
    const hti_candidate *candidate = NULL;
    ht_context_desc own = HT_CONTEXT_DESC_INIT, *desc = &own;
    CHECK(NULL, out, HT_INVALID, "ht_context_create: out is NULL");
    *out = NULL;
    if (given) TRY(HTI_TAKE(NULL, ht_context_desc, &own, given));
    TRY(check_context_desc(desc));
    const char *name = wanted_device(desc);
    CHECK(NULL, strlen(name) < sizeof(((ht_context *)0)->device), HT_INVALID,
          "device name \"%.40s...\" is too long", name);
    TRY(choose(&candidate, name));

    ht_context seed = {.ops = candidate->ops, .allocator = desc->allocator};
    ht_context *ctx = hti_host_alloc(&seed, sizeof *ctx);
    CHECK(NULL, ctx, HT_NOMEM, "out of memory: %zu bytes for a context", sizeof *ctx);
    *ctx = seed;
    int is_cuda = strncmp(name, "cuda:", 5) == 0;
    snprintf(ctx->device, sizeof ctx->device, "%s", is_cuda ? name : candidate->name);
    ctx->threads = desc->threads ? desc->threads : omp_get_max_threads();

    ht_status status = ctx->ops->open(ctx, desc);
    if (status != HT_OK) {
        hti_fail(NULL, status, "%s", ctx->error);
        hti_host_free(&seed, ctx);
        return status;
    }
    *out = ctx;
    return HT_OK;
}

void ht_context_destroy(ht_context *ctx) {
    if (!ctx) return;
    if (ctx->guest.close) ctx->guest.close(ctx);
    if (ctx->scratch) ctx->ops->release(ctx, ctx->scratch);
    ctx->ops->close(ctx);
    ht_context copy = *ctx;
    hti_host_free(&copy, ctx);
}

const char *ht_context_device(const ht_context *ctx) { return ctx ? ctx->device : ""; }
int ht_context_threads(const ht_context *ctx) { return ctx ? ctx->threads : 0; }
ht_status ht_context_synchronize(ht_context *ctx) {
    NEED(ctx);
    return ctx->ops->synchronize(ctx);
}

ht_status hti_scratch(ht_context *ctx, void **out, size_t bytes) {
    if (bytes > ctx->scratch_bytes) {
        if (ctx->scratch) ctx->ops->release(ctx, ctx->scratch);
        ctx->scratch = NULL;
        ctx->scratch_bytes = 0;
        TRY(ctx->ops->alloc(ctx, &ctx->scratch, bytes));
        ctx->scratch_bytes = bytes;
    }
    *out = ctx->scratch;
    return HT_OK;
}

/* ---- device memory ---- */

ht_status ht_memory_alloc(ht_context *ctx, void **out, size_t bytes) {
    NEED(ctx);
    CHECK(ctx, out, HT_INVALID, "ht_memory_alloc: out is NULL");
    *out = NULL;
    return ctx->ops->alloc(ctx, out, bytes);
}

void ht_memory_free(ht_context *ctx, void *block) {
    if (ctx && block) ctx->ops->release(ctx, block);
}

ht_status ht_memory_copy_in(ht_context *ctx, void *device_dst, const void *host_src, size_t bytes) {
    NEED(ctx);
    CHECK(ctx, bytes == 0 || (device_dst && host_src), HT_INVALID,
          "ht_memory_copy_in: NULL pointer");
    if (bytes == 0) return HT_OK;
    TRY(ctx->ops->copy_in(ctx, device_dst, host_src, bytes));
    return ctx->ops->synchronize(ctx);
}

ht_status ht_memory_copy_out(ht_context *ctx, void *host_dst, const void *device_src,
                             size_t bytes) {
    NEED(ctx);
    CHECK(ctx, bytes == 0 || (host_dst && device_src), HT_INVALID,
          "ht_memory_copy_out: NULL pointer");
    return bytes ? ctx->ops->copy_out(ctx, host_dst, device_src, bytes) : HT_OK;
}

ht_status ht_memory_copy(ht_context *ctx, void *device_dst, const void *device_src, size_t bytes) {
    NEED(ctx);
    CHECK(ctx, bytes == 0 || (device_dst && device_src), HT_INVALID,
          "ht_memory_copy: NULL pointer");
    return bytes ? ctx->ops->copy(ctx, device_dst, device_src, bytes) : HT_OK;
}
