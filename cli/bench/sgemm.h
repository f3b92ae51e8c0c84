/*
 * The yardstick of the CPU benchmark: the fastest single-precision matrix product of the BLAS
 * that the program was built with, at the same number of threads.
 */
#ifndef CLI_BENCH_SGEMM_H
#define CLI_BENCH_SGEMM_H

#include <stdbool.h>

#define SGEMM_SIZES 3   /* 512, 1024, 2048 */
#define SGEMM_ROUNDS 16 /* most rounds that are kept */

typedef struct sgemm_bench {
    float *a, *b, *c; /* [2048, 2048] */
    int rounds;
    double gflops[SGEMM_SIZES][SGEMM_ROUNDS];
} sgemm_bench;

/* Name and version of the BLAS; NULL: built without one. */
const char *sgemm_blas(void);

/* False: no BLAS, or no memory for the matrices. */
bool sgemm_create(sgemm_bench *out, int threads);
void sgemm_destroy(sgemm_bench *bench);

/* Measures every size once; called between the repeats of what it is compared with. */
void sgemm_round(sgemm_bench *bench);

/* Median over the rounds of the best size, in 1e9 operations per second; NaN before the first
 * round. */
double sgemm_best(const sgemm_bench *bench);

#endif
