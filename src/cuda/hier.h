/*
 * Arguments of the tuned hierarchical kernels (bf16, block 16): a tower of stages. Stage s works on
 * the rows of level 3s and covers levels 3s, 3s+1 and 3s+2; the two upper ones are built on chip.
 * Level 3s of q, k and v for s >= 1 is written once by the coarsening kernel, as sums over the
 * cluster's valid rows.
 */
#ifndef HTI_CUDA_HIER_H
#define HTI_CUDA_HIER_H

#include "cuda/element.h"

namespace HTI_KERNELS {

#define HTI_STAGES 11 /* 3 * 11 levels of 31 bits of rows */

/* A tensor as a stage of forward sees it, strides in units of 8 bytes: 32 bits do for 32 GiB. */
typedef struct hti_flat {
    char *data;
    uint32_t batch, row, head;
} hti_flat;

typedef struct hti_hier_args {
    int sequences, length;
    const int32_t *cu; /* device [sequences + 1], or NULL: equal lengths */
    int64_t rows;
    int q_heads, kv_heads, group;
    int query, causal, local;  /* local: level 0 alone */
    int dim;                   /* columns of the caller's rows; 4 and 8 run as 16 */
    int stages, stage;         /* of the longest sequence; of this launch */
    uint32_t zero;             /* 0, but the compiler does not know: see opaque() */
    float scale;               /* of the scores, times log2(e) */
    float whole[3], factor[3]; /* levels 3s, 3s+1, 3s+2 where all clusters are whole: rows, factor
                                  of a dot product */
    ht_tensor q, k, v, out, lse;
    const uint8_t *key_mask, *query_mask;
    float *saved;
    hti_flat fq, fk, fv, fz; /* forward: inputs and output of this launch's stage */
    float *flse;             /* [q_heads][flse_head] its lse, or NULL */
    int64_t flse_head;

    /* stage s >= 1: `tower[s]` rows per head */
    int64_t tower[HTI_STAGES];
    element *tq[HTI_STAGES], *tk[HTI_STAGES], *tv[HTI_STAGES]; /* [heads][tower][dim] sums */
    float *nk[HTI_STAGES], *nq[HTI_STAGES]; /* [tower] valid rows; only with masks */
    element *tz[HTI_STAGES]; /* [q_heads][tower][dim] output of the stages from s up */
    float *tl[HTI_STAGES];   /* [q_heads][tower] its lse, log2 units */
    /* the walking forward: out, and [q_heads][rows] the lse (log2 units) of levels 0 to 2 */
    hti_flat fout;
    float *lse0;
    int apart;  /* stages from 2 on do not wait for each other: stage 1 takes them all in */
    int ranges; /* that the rows of a head were cut into, over all sequences */

    /* backward; stage 0 of th is [q_heads][rows] */
    ht_tensor dout, dlse, dq, dk, dv;
    element *tg[HTI_STAGES]; /* [q_heads][tower][dim] dout, weighted by exp(m - lse) */
    float *tm[HTI_STAGES], *th[HTI_STAGES]; /* [q_heads][tower] m = smallest lse (log2), and h */
    element *gq[HTI_STAGES], *gk[HTI_STAGES], *gv[HTI_STAGES]; /* gradients of tq, tk, tv */
} hti_hier_args;

/* Row of a tower's stage at which a sequence starts. Packed: a sequence that has the level is
 * longer than 8 * 2^level, so the second term keeps it apart from the next one. */
HTI_FN int64_t hti_tower_at(const hti_hier_args &a, int level, int64_t sequence, int64_t start) {
    if (a.cu) return (start >> level) + (start >> (level + 3));
    return sequence * hti_clusters(a.length, level);
}

/* Whether the clusters of a stage are whole, and so is every block of its three levels that has a
 * neighbour: of 8 keys side by side a tile then sees all or none. */
static inline int hti_hier_whole(int64_t length, int stage) {
    int64_t rows = length >> (3 * stage);
    return rows << (3 * stage) == length && (rows % 64 == 0 || rows == 32 || rows == 16);
}

/* Columns that rows of head_dim have in the tuned kernels. */
static inline int hti_hier_width(const ht_attention_desc *d) {
    return d->head_dim < 16 ? 16 : (int)d->head_dim;
}

/* What the tuned kernels need. Whether they take a call is the list's (families.c); forward's
 * choice depends on q, k, v and out alone, so that backward finds in saved what it left there. */
size_t hti_hier_saved(const ht_attention_desc *desc);
size_t hti_hier_forward_scratch(const ht_attention_desc *desc);
size_t hti_hier_backward_scratch(const ht_attention_desc *desc);
ht_status hti_hier_forward(ht_context *ctx, const hti_attention_call *call);
ht_status hti_hier_backward(ht_context *ctx, const hti_attention_call *call);

/* Stage 0 by a kernel that walks along the rows (tower/walk.cu): levels 0 to 2 into out and flse,
 * level 3 of q, k, v into the towers; then levels 6 and 9. Stage 1 merges itself into out. */
#define HTI_WALK_DIM 64
int hti_walk_takes(const ht_context *ctx, const hti_hier_args &args);
ht_status hti_walk_base(ht_context *ctx, hti_hier_args *args); /* sets ranges */
ht_status hti_walk_lift(ht_context *ctx, const hti_hier_args &args);
ht_status hti_walk_join(ht_context *ctx, const hti_hier_args &args);

/* Query mode fine, forward only; saved is lse alone, as the generic backward wants it. */
size_t hti_fine_scratch(const ht_attention_desc *desc);
ht_status hti_fine_forward(ht_context *ctx, const hti_attention_call *call);

/* Shared by forward and backward: the call's numbers; the plan's largest; lse and towers in saved.
 */
void hti_hier_set(hti_hier_args *args, const hti_attention_call *call);
void hti_hier_set_stage(hti_hier_args *args, int stage);
void hti_hier_most(hti_hier_args *args, const ht_attention_desc *desc);
size_t hti_hier_carve_saved(hti_hier_args *args, void *base, int dim, int with_lse);

} // namespace HTI_KERNELS

#endif
