/*
 * A data race on purpose, and a sum without one: does the thread sanitizer see through this OpenMP
 * runtime? Without the help of the runtime's tool it would also blame the second loop.
 */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    int racy = argc > 1 && strcmp(argv[1], "racy") == 0, count = 0;
    static int x[64], y[64];
#pragma omp parallel num_threads(4)
    {
        if (racy) count++;
#pragma omp for schedule(static)
        for (int i = 0; i < 64; i++) x[i] = i;
#pragma omp for schedule(static)
        for (int i = 0; i < 64; i++) y[i] = x[63 - i];
    }
    printf("%d %d\n", y[0], count > 0);
    return 0;
}
