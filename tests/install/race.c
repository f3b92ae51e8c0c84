/*
 * A data race if asked for, else none: can the thread sanitizer tell them apart on this system?
 * Blind to the barrier between the loops, it would blame the second one. scripts/test.sh runs both.
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
