/*
 * The part of OpenMP's runtime that the libraries call, on one thread: for a process that has no
 * runtime at all. python/htransformer/_openmp.py loads it last, with a word.
 */
#include <stdbool.h>

#define SHOWN __attribute__((visibility("default")))

SHOWN void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);
SHOWN void GOMP_barrier(void);
SHOWN void GOMP_atomic_start(void);
SHOWN void GOMP_atomic_end(void);
SHOWN void GOMP_critical_name_start(void **name);
SHOWN void GOMP_critical_name_end(void **name);
SHOWN bool GOMP_loop_nonmonotonic_dynamic_start(long from, long to, long step, long chunk,
                                                long *first, long *end);
SHOWN bool GOMP_loop_nonmonotonic_dynamic_next(long *first, long *end);
SHOWN void GOMP_loop_end_nowait(void);
SHOWN int omp_get_max_threads(void);
SHOWN int omp_get_num_threads(void);
SHOWN int omp_get_thread_num(void);

void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    (void)threads, (void)flags;
    body(data);
}

void GOMP_barrier(void) {}

/* callers may still be several, each with its one thread */
static int in_atomic, in_critical;

static void lock(int *taken) {
    while (__atomic_exchange_n(taken, 1, __ATOMIC_ACQUIRE)) continue;
}

static void unlock(int *taken) { __atomic_store_n(taken, 0, __ATOMIC_RELEASE); }

void GOMP_atomic_start(void) { lock(&in_atomic); }
void GOMP_atomic_end(void) { unlock(&in_atomic); }

void GOMP_critical_name_start(void **name) {
    (void)name;
    lock(&in_critical);
}

void GOMP_critical_name_end(void **name) {
    (void)name;
    unlock(&in_critical);
}

/* a loop is one chunk */
bool GOMP_loop_nonmonotonic_dynamic_start(long from, long to, long step, long chunk, long *first,
                                          long *end) {
    (void)chunk;
    *first = from;
    *end = to;
    return step > 0 ? from < to : from > to;
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *first, long *end) {
    (void)first, (void)end;
    return false;
}

void GOMP_loop_end_nowait(void) {}

int omp_get_max_threads(void) { return 1; }
int omp_get_num_threads(void) { return 1; }
int omp_get_thread_num(void) { return 0; }
