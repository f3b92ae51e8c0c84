/*
 * The CPU as a device: its memory, and which instruction sets it offers.
 */
#include "cpu/cpu.h"

#include <omp.h>
#include <string.h>

ht_status hti_cpu_open(ht_context *ctx, const ht_context_desc *desc) {
    CHECK(ctx, !desc || !desc->stream, HT_INVALID, "device \"%s\" takes no stream", ctx->device);
    return HT_OK;
}

void hti_cpu_close(ht_context *ctx) { (void)ctx; }

ht_status hti_cpu_synchronize(ht_context *ctx) {
    (void)ctx;
    return HT_OK;
}

ht_status hti_cpu_alloc(ht_context *ctx, void **out, size_t bytes) {
    *out = hti_host_alloc(ctx, bytes);
    CHECK(ctx, *out, HT_NOMEM, "out of memory: %zu bytes wanted", bytes);
    return HT_OK;
}

void hti_cpu_release(ht_context *ctx, void *block) { hti_host_free(ctx, block); }

ht_status hti_cpu_copy(ht_context *ctx, void *dst, const void *src, size_t bytes) {
    (void)ctx;
    memcpy(dst, src, bytes);
    return HT_OK;
}

ht_status hti_cpu_fill(ht_context *ctx, void *dst, int byte, size_t bytes) {
    (void)ctx;
    memset(dst, byte, bytes);
    return HT_OK;
}

ht_status hti_cpu_attention_check(ht_context *ctx, const ht_attention_desc *desc) {
    CHECK(ctx, desc->dtype == HT_F32 || desc->dtype == HT_F64, HT_UNSUPPORTED,
          "device \"%s\" takes dtype f32 or f64, got %s", ctx->device,
          desc->dtype == HT_BF16 ? "bf16" : "f16");
    return HT_OK;
}

int hti_cpu_thread(void) { return omp_get_thread_num(); }

static int always(void) { return 1; }

const hti_candidate hti_cpu_candidates[] = {
    {"cpu:ref", "plain C loops, float32 and float64", &hti_cpu_ref_ops, always},
    {NULL, NULL, NULL, NULL},
};
