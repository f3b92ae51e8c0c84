/*
 * Opened clusters (query fine, desc.open > 0): arguments of their kernels.
 *
 * The generic kernels give a warp to a row and head; it descends from the top level, keeps what it
 * opened in a list and takes in what takes part. Backward walks again for dq; for dk and dv the
 * choice of one level at a time is written down row by row and sorted by cluster.
 */
#ifndef HTI_CUDA_OPEN_H
#define HTI_CUDA_OPEN_H

#include "cuda/cuda.h"

enum { HTI_OPEN_WARPS = 4 }; /* of a thread block of the generic kernels */

/* What all rows opened at one level, row by row and cluster by cluster. */
typedef struct hti_opened {
    int *list;  /* [q_heads][rows][open] clusters in order */
    int *count; /* [q_heads][rows] */
    int *first; /* [q_heads][stride] where a cluster's rows begin in `row` */
    int *row;   /* [q_heads][rows * open] rows of the sequence, in order */
} hti_opened;

typedef struct hti_open_args {
    hti_cuda_args a;
    int open;       /* at most the clusters of level 1 */
    int leaf_level; /* what is opened from here down gives its rows */
    int peek;
    int most;        /* candidates of a row at a level, those that hold no valid row among them */
    int warps;       /* at work in one launch */
    uint32_t *order; /* [warps][most] scores as integers in the same order */
    int *lists;      /* [warps][2][open] */
    hti_opened now, above;  /* backward: this launch's level, and the one above it */
    int *cursor;            /* [q_heads][stride] */
    int64_t stride;         /* room for the clusters of any level, and one more */
    float *dk0, *dv0;       /* [kv_heads][rows][dim] gradients of opened rows */
    const uint32_t *chosen; /* what forward chose: see tiles.h; NULL: choose again */
    int words;
    int level; /* of this launch */
} hti_open_args;

/* Scratch of the largest call, or the carving of this one's (base is aligned). */
void hti_open_carve(hti_carver *c, hti_open_args *o, const ht_attention_desc *desc, int backward);
/* The pyramid, angles and (backward) h are there. */
ht_status hti_open_forward(const ht_context *ctx, const hti_open_args &o, ht_dtype dtype);
ht_status hti_open_backward(const ht_context *ctx, const hti_open_args &o, ht_dtype dtype);
/* Turns lists of this launch's level into rows by cluster. */
ht_status hti_open_invert(const ht_context *ctx, const hti_open_args &o);

#endif
