/*
 * Counting allocations. Blocks are filled with garbage, so that nobody counts on zeros.
 */
#include "counting.h"

#include <stdlib.h>
#include <string.h>

static void *counting_alloc(void *user, size_t bytes) {
    counting *c = user;
    if (++c->total == c->fail_at) {
        c->failed = 1;
        return NULL;
    }
    if (bytes > (size_t)1 << 40) return NULL; /* nobody has that */
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!block) return NULL;
    memset(block, 0xCD, bytes);
    c->live++;
    return block;
}

static void counting_release(void *user, void *block) {
    counting *c = user;
    if (block) c->live--;
    free(block);
}

ht_allocator counting_allocator(counting *c) {
    return (ht_allocator){counting_alloc, counting_release, c};
}
