/*
 * The fast kernels' plan of a call, the same for every instruction set: which rows are worked on
 * together, which levels are built on the way, and where everything lies in scratch. Integers and
 * counts only; the arithmetic is in kernel_*.h.
 *
 * A thread walks through a sequence in steps. Levels 0 ... local-1 of the step's keys (with one
 * neighbouring block on each side) lie in rings in the thread's own memory: they are built from the
 * rows just before they are used and never leave the cache. Levels from `local` on form the shared
 * pyramid. A short sequence is local altogether. What is computed depends on shapes alone, never on
 * where one thread's walk ends and another's begins.
 */
#ifndef HTI_CPU_FAST_H
#define HTI_CPU_FAST_H

#include "core/arena.h"
#include "op.h"

#define HTI_TILE 16       /* query rows worked on together */
#define HTI_TILE_KEYS 256 /* most keys of one pass over a tile's scores */
#define HTI_MAX_DIM 256
#define HTI_GROUP 8   /* opened: rows of the pyramid that gradients are sorted by */
#define HTI_SHORT 512 /* rows up to which a sequence is local altogether */

/* Fixed by the descriptor. */
typedef struct hti_shape {
    int64_t block, d, dv;
    int64_t dw, dvw; /* in whole vectors: what arithmetic runs over */
    int64_t dp, dvp; /* as powers of two: the distance of packed rows */
    int64_t q_heads, kv_heads, group;
    int local;                       /* levels built on the way through a long sequence */
    int causal, fine, first, single; /* single: level 0 only (kind local) */
    int open; /* clusters are opened: rows of any level are read, all lie in the pyramid */
} hti_shape;

/* width: lanes of a vector; reach: rows that a neighbouring block of the coarsest local level may
 * have */
void hti_shape_make(hti_shape *s, const ht_attention_desc *desc, int64_t width, int64_t reach);

/* One sequence. Counts exist for every level, pyramid rows for levels >= local. */
typedef struct hti_seq {
    int64_t index, start, length;
    int levels, local;
    int64_t step; /* rows of a step: whole tiles at every local level */
    int64_t clusters[HTI_MAX_LEVELS];
    int64_t count_at[HTI_MAX_LEVELS];  /* first count of a level in the call's arrays */
    int64_t row_at[HTI_MAX_LEVELS];    /* first row of a level in a head's pyramid */
    int64_t ring_mask[HTI_MAX_LEVELS]; /* local levels: cluster c lies at row c & ring_mask ... */
    int64_t ring_at[HTI_MAX_LEVELS];   /* ... after this row of the thread's rings */
    int64_t own_at[HTI_MAX_LEVELS]; /* local levels >= 1: first row where only a step's clusters are
                                       held */
} hti_seq;

/* The tables of a call: prefix sums over sequences, and valid rows per cluster. */
typedef struct hti_tables {
    const hti_attention_call *call;
    hti_shape shape;
    int64_t *count_from; /* [sequences + 1] counts before a sequence */
    int64_t *row_from;   /* [sequences + 1] pyramid rows before it */
    int64_t rows;  /* rows of a head's pyramid, with a tile to spare; 0: no sequence is long */
    int64_t chunk; /* rows after which a walk goes on with the next head: heads share cache lines'
                      pages */
    float *key_n, *key_log; /* valid keys of a cluster, and log2 of it (-inf: none) */
    float *query_n;         /* valid queries; key_n itself where nothing is masked */
} hti_tables;

/* With call NULL: the sizes at the plan's maxima. */
void hti_tables_take(hti_tables *t, hti_arena *c, const ht_attention_desc *desc,
                     const hti_attention_call *call, int64_t width, int64_t reach);
void hti_tables_index(hti_tables *t); /* the prefix sums; one thread */
void hti_tables_count(const hti_tables *t, int thread,
                      int threads); /* in a parallel region; ends in a barrier */

void hti_seq_make(hti_seq *s, const hti_tables *t, int64_t index);
int64_t hti_ring_rows(const hti_shape *shape,
                      int64_t length); /* most rows of a thread's rings together */
/* most rows of a step, and of its clusters of levels 1 ... local-1 together */
int64_t hti_step_rows(const hti_shape *shape, int64_t length);
int64_t hti_own_rows(const hti_shape *shape, int64_t length);

/* A thread's share of all steps: sequence by sequence, chunk by chunk, head by head, step by step.
 */
typedef struct hti_walk {
    const hti_tables *t;
    int64_t heads, end; /* end: position behind the share, see walk_position */
    int64_t chunk, head,
        row; /* the step at hand: rows row ... row + seq.step - 1 of the sequence */
    hti_seq seq;
    int fresh; /* the step before this one was not its neighbour */
    int whole; /* a share is whole runs: a run is one head's steps of one chunk */
} hti_walk;
int hti_walk_begin(hti_walk *w, const hti_tables *t, int64_t heads, int thread,
                   int threads); /* 0: no step */
int hti_walk_next(hti_walk *w);
int hti_runs_begin(hti_walk *w, const hti_tables *t, int64_t heads, int thread,
                   int threads); /* whole runs */
int hti_runs_next(hti_walk *w);
hti_range hti_run_rows(const hti_walk *w);

/* Clusters of a level that rows [row, row + step) of the sequence make. */
hti_range hti_step_own(const hti_seq *s, int64_t row, int level);
/* Key clusters of level local-1 that must be in the rings for this step; levels below follow. */
hti_range hti_step_keys(const hti_shape *shape, const hti_seq *s, int64_t row);

/* Keys that a tile of query clusters sees: runs of clusters, each with the lanes that see it; of
 * clusters behind `diagonal` lane i sees those up to diagonal + i only. */
typedef struct hti_seg {
    int64_t from; /* cluster */
    int32_t count;
    uint32_t lanes;
} hti_seg;
#define HTI_NO_DIAGONAL (INT64_MAX / 2)
typedef struct hti_segs {
    int count;
    int64_t keys;
    int64_t diagonal; /* cluster of lane 0 at the causal level 0, else HTI_NO_DIAGONAL */
    hti_seg seg[4 * HTI_TILE + 8];
} hti_segs;

/* Query clusters [c0, c0 + rows) of a level, rows <= HTI_TILE; `shift`: a lane is a row of level 0
 * whose cluster is c >> shift (mode fine), else 0. */
void hti_segs_make(hti_segs *out, const hti_shape *shape, int64_t clusters, int level, int shift,
                   int64_t c0, int rows);

#endif
