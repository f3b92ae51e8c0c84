/*
 * OpenBLAS goes by the CPU's model number, and for one that came after it falls back to kernels of
 * 2004, several times slower: version 0.3.21 (Debian 12) does so on an Emerald Rapids. It looks at
 * OPENBLAS_CORETYPE when it is loaded.
 */
#include "base/blas.h"

#include <stddef.h>

#if defined(CLI_CBLAS) && defined(__x86_64__)
#include <stdlib.h>
#include <string.h>

extern char *openblas_get_corename(void) __attribute__((weak)); /* other libraries have none */

const char *blas_better_core(void) {
    if (!openblas_get_corename || getenv("OPENBLAS_CORETYPE")) return NULL;
    if (strcmp(openblas_get_corename(), "Prescott") != 0) return NULL;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : NULL;
}
#else
const char *blas_better_core(void) { return NULL; }
#endif
