/*
 * An ht_allocator that counts, and that can fail one allocation of many.
 */
#ifndef COUNTING_H
#define COUNTING_H

#include "htransformer.h"

typedef struct counting {
    long live;    /* blocks given out and not back */
    long total;   /* allocations asked for */
    long fail_at; /* the allocation that fails, counted from 1; 0: none */
    int failed;   /* it has */
} counting;

ht_allocator counting_allocator(counting *c);

#endif
