/*
 * Opened clusters on tensor cores: bf16, a warp for eight rows of one head.
 *
 * All eight rows meet the same clusters at every level from 1 on, and open nearly the same ones, so
 * that the warp works on the union of their candidates: entries, each with a bit per row that has
 * it. Products are K~ times Q^T, clusters down and rows across, so a fragment holds eight clusters
 * by their two halves, whose logits then lie in one lane. Each row picks its own best from a list
 * of its own (slots, in the order of clusters); what was picked is saved as a bit per slot, so that
 * backward chooses nothing again.
 */
#ifndef HTI_CUDA_OPEN_TILES_H
#define HTI_CUDA_OPEN_TILES_H

#include "cuda/cuda.h"

enum { HTI_OPEN_TILE = 8, HTI_OPEN_FOLD = 5, HTI_OPEN_STAGES = 7 };

typedef struct hti_open_tiles {
    hti_cuda_args a;
    int open, leaf_level; /* as in hti_open_args */
    int peek;             /* 1 or 2 levels below a cluster its parts are looked at */
    int words;            /* of 32 slots, that a row may have at a level */
    int entries;          /* that a tile may have at a level, a multiple of 32 */
    float scale2;         /* of a product, to a logit in base 2 */
    /* the pyramid in bf16, levels >= 1; with a key mask also level 0, masked rows 0 */
    __nv_bfloat16 *pk, *pv; /* [kv_heads][clusters][dim] means */
    __nv_bfloat16 *k0, *v0; /* [kv_heads][rows][dim], or NULL */
    float *carry[2];        /* k, v: [kv_heads][carries][dim] means of levels 5, 10, ... */
    int64_t carry_at[HTI_OPEN_STAGES], carries;
    int stage;        /* of a launch that makes the pyramid: the level that is read */
    uint32_t *chosen; /* [levels - 1][q_heads][rows][words], or NULL */
    int64_t work;     /* tiles of all heads */
} hti_open_tiles;

/* Words of 32 slots of a row. */
static inline int hti_open_words(const ht_attention_desc *d) {
    int64_t slots = hti_open_slots(d);
    return slots <= 32 ? 1 : slots <= 64 ? 2 : 4;
}

size_t hti_open_tiles_saved(const ht_attention_desc *d);
void hti_open_tiles_carve(hti_carver *c, hti_open_tiles *o, const ht_attention_desc *d,
                          int has_key_mask);
/* Where forward leaves its choice behind the lse, or NULL. */
uint32_t *hti_open_tiles_chosen(const hti_cuda_args &a);
ht_status hti_open_tiles_prepare(const ht_context *ctx, const hti_open_tiles &o);
ht_status hti_open_tiles_forward(const ht_context *ctx, const hti_open_tiles &o);

#endif
