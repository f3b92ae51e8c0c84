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
    (void)ctx, (void)desc;
    return HT_OK;
}

int hti_cpu_thread(void) { return omp_get_thread_num(); }

static int always(void) { return 1; }

#ifdef HTI_X86
static int has_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

static int has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

const hti_candidate hti_cpu_candidates[] = {
#ifdef HTI_X86
    {"cpu:avx512", "16 lanes; needs AVX-512 F, DQ, BW, VL", &hti_cpu_avx512_ops, has_avx512},
    {"cpu:avx2", "8 lanes; needs AVX2 and FMA", &hti_cpu_avx2_ops, has_avx2},
#endif
    {"cpu:ref", "plain C loops, float32 and float64", &hti_cpu_ref_ops, always},
    {NULL, NULL, NULL, NULL},
};
