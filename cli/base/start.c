/*
 * OpenMP and OpenBLAS read the environment when they are loaded, before main, so for what they
 * should have found there the program has to start over.
 */
#include "base/start.h"

#include "base/blas.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The program's own file; it may be another one that runs this one: a loader, an emulator. */
static int find_self(char *out, size_t bytes, const char *name) {
    ssize_t n = readlink("/proc/self/exe", out, bytes - 1);
    if (n <= 0) return 0;
    out[n] = '\0';
    return strcmp(last_name(out), last_name(name)) == 0;
}

/* Threads that wait for the next piece of a step spin, and take the cores from whoever else works
 * on the machine. Training goes on for long: there they sleep, unless somebody said otherwise. */
static int waits_spinning(char **argv) {
    static const char *const said[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};
    for (int i = 0; i < 3; i++)
        if (getenv(said[i])) return 0;
    return argv[1] && strcmp(argv[1], "train") == 0;
}

void start_settle(char **argv) {
    char self[4096];
    const char *core = blas_better_core();
    int sleeps = argv[0] && waits_spinning(argv);
    if (!argv[0] || (!core && !sleeps) || !find_self(self, sizeof self, argv[0])) return;
    int good = (!core || setenv("OPENBLAS_CORETYPE", core, 1) == 0) &&
               (!sleeps || setenv("OMP_WAIT_POLICY", "passive", 1) == 0);
    if (good) execv(self, argv);
    if (core) unsetenv("OPENBLAS_CORETYPE");
    if (sleeps) unsetenv("OMP_WAIT_POLICY");
}
