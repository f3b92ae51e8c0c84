/*
 * One block, many parts: the same layout code measures (base NULL) and carves.
 */
#ifndef HTI_ARENA_H
#define HTI_ARENA_H

#include <stddef.h>
#include <stdint.h>

typedef struct hti_arena {
    char *base;  /* NULL: only measure */
    size_t used; /* bytes */
} hti_arena;

/* `count` elements of `bytes` each, 64-byte aligned; NULL while measuring. */
static inline void *hti_take(hti_arena *a, int64_t count, size_t bytes) {
    size_t at = a->used;
    a->used = at + ((size_t)count * bytes + 63) / 64 * 64;
    return a->base ? a->base + at : NULL;
}

#endif
