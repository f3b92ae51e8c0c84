/*
 * Backward of opened clusters on tensor cores. Forward has saved what each row opened, so that all
 * tiles find their entries again without a score. dq: a warp per tile walks down as forward does
 * (tiles_dq.cu). dk and dv: a level at a time the tiles write down who takes part where
 * (tiles_lists.cu), and a warp that owns a pair of clusters, or eight rows, gathers the queries
 * that do, sixteen at a time (tiles_keys.cu).
 */
#ifndef HTI_CUDA_OPEN_TILES_BACK_H
#define HTI_CUDA_OPEN_TILES_BACK_H

#include "cuda/open/fragment.h"

/* A cluster that some rows of a tile opened; of a list, in order. */
typedef struct hti_opener {
    int cluster, rows;
} hti_opener;

/* Of a tile: rows (low byte: first cluster of the pair) that take part in a pair or cluster. */
typedef struct hti_pair {
    int pair, tile;
    unsigned rows;
} hti_pair;

/* The same, where the pair is known. */
typedef struct hti_member {
    int tile;
    unsigned rows;
} hti_member;

typedef struct hti_sorting {
    int *of_tile;                /* [q_heads][tiles] how many a tile has */
    hti_pair *raw;               /* [q_heads][tiles][entries / 2] */
    int *counter;                /* [q_heads][stride] */
    int *first;                  /* [q_heads][stride] where a pair's members begin */
    hti_member *placed, *sorted; /* [q_heads][tiles * entries / 2] */
} hti_sorting;

typedef struct hti_open_lists {
    hti_opener *list; /* [q_heads][tiles][entries / 2] */
    int *count;       /* [q_heads][tiles] */
} hti_open_lists;

typedef struct hti_open_back {
    hti_open_tiles o; /* work: tiles of all heads */
    int level, window, share;
    int64_t tiles, stride, level_room, units;
    hti_open_lists now, above;          /* this launch's level, and the one above it */
    hti_sorting pairs, leaves, sorting; /* sorting: the one at work */
    float *dk0, *dv0;                   /* [kv_heads][rows][dim] gradients of opened rows */
} hti_open_back;

void hti_open_back_carve(hti_carver *c, hti_open_back *b, const ht_attention_desc *d,
                         int has_key_mask);
ht_status hti_open_list(const ht_context *ctx, const hti_open_back &b);
ht_status hti_open_sort(const ht_context *ctx, const hti_open_back &b, const hti_sorting &which);
ht_status hti_open_tiles_dq(const ht_context *ctx, const hti_open_tiles &o);
ht_status hti_open_tiles_keys(const ht_context *ctx, const hti_open_back &b);
ht_status hti_open_tiles_backward(const ht_context *ctx, const hti_open_back &b);

/* ---- what dq and the lists share ---- */

extern __shared__ float4 hti_shared[];

/* Rows of a tile that take part, a bit for each. */
DEVICE int active_rows(const hti_cuda_args &a, const place &p, int head) {
    int row = p.first + lane_id() % 8;
    bool live = row < p.length && a.saved[head * a.rows + p.start + row] != -INFINITY;
    return (int)(__ballot_sync(ALL_LANES, live) & 0xffu);
}

/* Entries of a tile at a level, who has them and who opened them, from the saved choice. Returns
 * how many; arrays have room for a multiple of 32. */
DEVICE int find_saved(const hti_open_tiles &o, const place &p, int head, const level_view &l,
                      int active, const hti_opener *list, int opened, int *clusters, uint8_t *has,
                      uint8_t *opens) {
    const hti_cuda_args &a = o.a;
    reach met = keys_of(a, p.length, l.level, p.first >> l.level);
    int met0 = max(0, met.hi0 - met.lo0), met1 = max(0, met.hi1 - met.lo1), left = 0;
    for (int x0 = 0; x0 < opened; x0 += 32) {
        int x = x0 + lane_id();
        left += 2 * __popc(__ballot_sync(ALL_LANES, x < opened && 2 * list[x].cluster < met.lo0));
    }
    int count = 2 * opened + met0 + met1, before[8];
    int64_t line = ((l.level - 1) * (int64_t)a.q_heads + head) * a.rows + p.start + p.first;
    for (int r = 0; r < 8; r++) before[r] = 0;
    for (int e0 = 0; e0 < count; e0 += 32) {
        int e = e0 + lane_id(), y = e - left, c = 0;
        unsigned rows = (unsigned)active, open = 0;
        if (y >= 0 && y < met0) {
            c = met.lo0 + y;
        } else if (y >= met0 && y < met0 + met1) {
            c = met.lo1 + y - met0;
        } else if (e < count) {
            hti_opener parent = list[(y < 0 ? e : e - met0 - met1) / 2];
            c = 2 * parent.cluster + (y < 0 ? e : e - met0 - met1) % 2;
            rows = (unsigned)parent.rows;
        }
        if (e >= count || !(rows_of(a, p, l, c) > 0)) rows = 0;
#pragma unroll
        for (int r = 0; r < 8; r++) {
            unsigned word = __ballot_sync(ALL_LANES, rows >> r & 1);
            int slot = before[r] + __popc(word & ((1u << lane_id()) - 1));
            if (rows >> r & 1)
                open |= (o.chosen[(line + r) * o.words + slot / 32] >> slot % 32 & 1) << r;
            before[r] += __popc(word);
        }
        clusters[e] = min(c, l.count - 1);
        has[e] = (uint8_t)rows, opens[e] = (uint8_t)open;
    }
    __syncwarp();
    return count;
}

#endif
