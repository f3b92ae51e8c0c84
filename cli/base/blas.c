/*
 * OpenBLAS goes by the CPU's model number, and for one that came after it falls back to kernels of
 * 2004, several times slower: version 0.3.21 (Debian 12) does so on an Emerald Rapids. It looks at
 * OPENBLAS_CORETYPE when it is loaded, before main, so the program has to start over.
 */
#include "base/blas.h"

#if defined(CLI_CBLAS) && defined(__x86_64__)
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char *openblas_get_corename(void) __attribute__((weak)); /* other libraries have none */

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* OpenBLAS's name for a CPU with the same instructions; NULL: nothing better than what it has. */
static const char *better_core(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : NULL;
}

void blas_settle(char **argv) {
    char self[4096];
    const char *variable = "OPENBLAS_CORETYPE", *core;
    if (!openblas_get_corename || getenv(variable) || !argv[0]) return;
    if (strcmp(openblas_get_corename(), "Prescott") != 0 || !(core = better_core())) return;
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    if (bytes <= 0) return;
    self[bytes] = '\0';
    /* the file may be another program that runs this one: a loader, an emulator */
    if (strcmp(last_name(self), last_name(argv[0])) != 0) return;
    if (setenv(variable, core, 1) == 0) execv(self, argv);
    unsetenv(variable);
}
#else
void blas_settle(char **argv) { (void)argv; }
#endif
