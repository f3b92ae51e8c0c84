/*
 * The matrix product by CBLAS. Each thread of the context multiplies its own part of C with a BLAS
 * that is told to use one thread: no second pool of threads beside OpenMP's, and the split depends
 * on the shape alone.
 */
#include "cpu/model/ops.h"

#ifdef HTI_CBLAS
#include HTI_CBLAS

/* OpenBLAS has a switch for its threads; another BLAS may not, and its own setting then holds. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));
extern int openblas_get_num_threads(void) __attribute__((weak));

static void part(const hti_gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    if (i0 >= i1 || j0 >= j1) return;
    const float *a = (const float *)g->a + (g->transpose_a ? i0 : i0 * g->lda);
    const float *b = (const float *)g->b + (g->transpose_b ? j0 * g->ldb : j0);
    float *c = (float *)g->c + i0 * g->ldc + j0;
    cblas_sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, (int)(i1 - i0), (int)(j1 - j0),
                (int)g->k, 1.0f, a, (int)g->lda, b, (int)g->ldb, g->accumulate ? 1.0f : 0.0f, c,
                (int)g->ldc);
}

/* Part t of n in equal pieces of whole cache lines. */
static int64_t cut(int64_t n, int t, int threads) {
    int64_t lines = (n + 15) / 16, at = lines * t / threads * 16;
    return at < n ? at : n;
}

int hti_cpu_blas_alone(void) {
    int before = openblas_get_num_threads ? openblas_get_num_threads() : 1;
    if (before != 1) hti_cpu_blas_threads(1);
    return before;
}

void hti_cpu_blas_threads(int threads) {
    if (openblas_set_num_threads) openblas_set_num_threads(threads);
}

ht_status hti_cpu_gemm_blas(ht_context *ctx, const hti_gemm *g) {
    if (g->dtype == HT_F64) return hti_cpu_gemm_plain(ctx, g);
    /* what is this small OpenBLAS does alone: nothing to switch off (and on again) per token */
    int small = g->m * g->n * g->k <= 1 << 18;
    int before = small ? 1 : hti_cpu_blas_alone();
    int threads = g->m * g->n * g->k < 1 << 20 ? 1 : ctx->threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        if (g->m >= g->n)
            part(g, cut(g->m, t, threads), cut(g->m, t + 1, threads), 0, g->n);
        else
            part(g, 0, g->m, cut(g->n, t, threads), cut(g->n, t + 1, threads));
    }
    if (before != 1) hti_cpu_blas_threads(before);
    return HT_OK;
}

#else

int hti_cpu_blas_alone(void) { return 1; }
void hti_cpu_blas_threads(int threads) { (void)threads; }

ht_status hti_cpu_gemm_blas(ht_context *ctx, const hti_gemm *g) {
    return hti_cpu_gemm_plain(ctx, g);
}

#endif
