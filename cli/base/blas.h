/*
 * Which kernels OpenBLAS runs on.
 */
#ifndef CLI_BASE_BLAS_H
#define CLI_BASE_BLAS_H

/* What OpenBLAS should take this CPU for (OPENBLAS_CORETYPE), if it does not know it; else NULL. */
const char *blas_better_core(void);

#endif
