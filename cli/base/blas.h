/*
 * Which kernels OpenBLAS runs on.
 */
#ifndef CLI_BASE_BLAS_H
#define CLI_BASE_BLAS_H

/* If OpenBLAS does not know this CPU, tells it what to take it for and starts the program over;
 * else, or where that cannot be done, returns. Comes before everything else. */
void blas_settle(char **argv);

#endif
