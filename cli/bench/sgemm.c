/*
 * Times cblas_sgemm. Built without a BLAS, it says so and measures nothing.
 */
#include "bench/sgemm.h"

#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef CLI_CBLAS
#include CLI_CBLAS_HEADER

/* OpenBLAS keeps its own threads (Debian's builds use pthreads); other libraries do not have
 * these. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));

const char *sgemm_blas(void) { return openblas_get_config ? openblas_get_config() : CLI_CBLAS; }

static void set_threads(int threads) {
    if (openblas_set_num_threads) openblas_set_num_threads(threads);
}

static void multiply(const sgemm_bench *s, int n) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, s->a, n, s->b, n, 0.0f,
                s->c, n);
}
#else
const char *sgemm_blas(void) { return NULL; }
static void set_threads(int threads) { (void)threads; }
static void multiply(const sgemm_bench *s, int n) { (void)s, (void)n; }
#endif

static const int sizes[SGEMM_SIZES] = {512, 1024, 2048};

bool sgemm_create(sgemm_bench *out, int threads) {
    *out = (sgemm_bench){0};
    if (!sgemm_blas()) return false;
    size_t n = (size_t)sizes[SGEMM_SIZES - 1], bytes = n * n * sizeof(float);
    out->a = malloc(bytes), out->b = malloc(bytes), out->c = malloc(bytes);
    if (!out->a || !out->b || !out->c) {
        sgemm_destroy(out);
        return false;
    }
    uint64_t seed = 1;
    bench_random(out->a, HT_F32, (int64_t)(n * n), &seed);
    bench_random(out->b, HT_F32, (int64_t)(n * n), &seed);
    set_threads(threads);
    return true;
}

void sgemm_destroy(sgemm_bench *bench) {
    free(bench->a);
    free(bench->b);
    free(bench->c);
    *bench = (sgemm_bench){0};
}

/* At least 20 ms of products of one size, after one that warms up. */
static double measure(const sgemm_bench *s, int n) {
    multiply(s, n);
    int calls = 0;
    double start = bench_seconds(), seconds;
    do {
        multiply(s, n);
        calls++;
        seconds = bench_seconds() - start;
    } while (seconds < 0.02);
    return 2e-9 * n * n * n * calls / seconds;
}

void sgemm_round(sgemm_bench *bench) {
    if (!bench->a || bench->rounds == SGEMM_ROUNDS) return;
    for (int i = 0; i < SGEMM_SIZES; i++)
        bench->gflops[i][bench->rounds] = measure(bench, sizes[i]);
    bench->rounds++;
}

double sgemm_best(const sgemm_bench *bench) {
    double best = NAN;
    for (int i = 0; i < SGEMM_SIZES && bench->rounds; i++) {
        double rate = bench_median(bench->gflops[i], bench->rounds);
        if (!(rate <= best)) best = rate;
    }
    return best;
}
