/*
 * What owners of keys have in common, those of backward_keys.cu and of wide_keys.cu:
 * which keys, which queries see them, where gradients go.
 */
#ifndef HTI_CUDA_TILE_KEYS_H
#define HTI_CUDA_TILE_KEYS_H

#include "cuda/tile/grad.h"

namespace HTI_KERNELS {

/* Groups of keys that a thread block owns. Query fine: a block of keys or less, since the keys of
 * another block are seen by other rows; but low levels have few rows per key. */
HTI_FN int key_groups(const hti_tile_args &t, int level) {
    if (t.a.query != HT_QUERY_FINE || level < 3) return WARPS;
    return t.a.block % 64 == 0 ? 4 : t.a.block % 32 == 0 ? 2 : 1;
}

/* A warp's 16 keys: operands, gradients. */
template <int D> struct key_rows {
    frag<D> k, v;
    float dk[D / 8][4], dv[D / 8][4]; /* dk still to be multiplied by scale */
    float weight[2];                  /* log2(n) of keys g and g + 8 */
    int own, level, shift;            /* shift: from a query's row to its cluster */
    int groups, split, splits;        /* this warp takes group `split` of each `splits` queries' */
    int slot;                         /* of a chunk; -1: none */
};

/* The first `to` groups of some ranges of queries, for every head of its group of heads. */
struct key_walk {
    ranges r;
    int to, kv_head;
};

template <int D>
DEVICE void store_keys(key_rows<D> &o, const hti_tile_args &t, const place &p, int kv_head) {
    const hti_cuda_args &a = t.a;
    if (o.level > 0) {
        int64_t at = kv_head * a.clusters + cluster_at(t, p, o.level) + o.own;
        int count = (int)hti_clusters(p.length, o.level) - o.own;
        float unit = coarse_unit(t, o.level);
        store_sums<D>(a.dkt + at * D, o.dk, count, unit);
        store_sums<D>(a.dvt + at * D, o.dv, count, unit);
        return;
    }
    if (o.own >= p.length) return;
    const float *counts = a.key_mask ? a.kn : NULL;
    if (a.turn) turn_back<D>(o.dk, t, p, o.own);
    auto share = [&](int level, int64_t at, int row) {
        return mean_share(counts, p, level, at, row);
    };
    add_levels<D>(o.dk, a.dkt, t, p, kv_head, o.own, share);
    add_levels<D>(o.dv, a.dvt, t, p, kv_head, o.own, share);
    store_grad<D>(a.dk, o.dk, a.scale, a.key_mask, t, p, kv_head, o.own);
    store_grad<D>(a.dv, o.dv, 1, a.key_mask, t, p, kv_head, o.own);
}

/* Which level a piece of coarse work belongs to; work becomes its number there. Levels take turns,
 * so that rows are read again while they are in the L2 cache. */
DEVICE bool find_work(int *level, int *work, const hti_tile_args &t) {
    int chunk = *work / t.chunk_work, i = *work - chunk * t.chunk_work, l = 1;
    while (i >= t.chunk_level[l]) i -= t.chunk_level[l++];
    *level = l;
    *work = chunk * t.chunk_level[l] + i;
    return *work < t.a.level_work[l];
}

/* A tile of keys and the queries that see it. */
template <int D>
DEVICE bool open_tile(key_rows<D> &o, key_walk *w, place *p, const hti_tile_args &t, int level,
                      int tile) {
    o.groups = key_groups(t, level), o.level = level, o.shift = is_fine(t) ? level : 0;
    if (!find_tile(p, t, level, GROUP * o.groups, (unsigned)tile)) return false;
    o.own = p->first + GROUP * (warp_id() & (o.groups - 1));
    o.splits = WARPS / o.groups, o.split = warp_id() / o.groups, o.slot = 0;
    int last = min(p->first + GROUP * o.groups, (int)hti_clusters(p->length, level)) - 1;
    w->r = queries_seeing(t, p->length, level, p->first, last);
    w->to = w->r.count();
    return true;
}

/* Groups of keys of a level that a chunk sees: slots of a level. */
HTI_FN int level_slots(const hti_cuda_args &a) { return (a.causal ? 1 : 2) * (a.block / GROUP); }

/* A chunk of queries, and the keys of this warp's slot: left blocks of all levels, or left and
 * right ones. */
template <int D>
DEVICE bool open_chunk(key_rows<D> &o, key_walk *w, place *p, const hti_tile_args &t, int work) {
    int each = (t.slots + WARPS - 1) / WARPS, chunk = work / each, per = level_slots(t.a);
    int slot = (work - chunk * each) * WARPS + warp_id(), above = slot / per;
    int in_level = slot - above * per, block = t.a.block, right = in_level * GROUP >= block;
    if (!find_tile(p, t, t.high, block, (unsigned)chunk)) return false;
    int first = p->first << t.high, level = t.high + above;
    bool exists = slot < t.slots && level < levels_at(t, *p);
    if (!exists) level = t.high;
    int b = block_of(t, first >> level) + (right ? 1 : -1);
    o.own = b * block + in_level * GROUP - right * block;
    o.groups = WARPS, o.split = 0, o.splits = 1, o.level = o.shift = level;
    o.slot = exists && b >= 0 && o.own < hti_clusters(p->length, level) ? slot : -1;
    if (!exists || b < 0) o.own = 0;
    int end = min(first + (block << t.high), p->length);
    w->r = {first / GROUP, (end + GROUP - 1) / GROUP, 0, 0};
    w->to = w->r.count();
    return true;
}

/* Where the partial sums of a chunk's slot lie: [2][16][dim]. */
DEVICE float *slot_at(const hti_tile_args &t, int64_t chunk, int kv_head, int slot) {
    int64_t number = (chunk * t.a.kv_heads + kv_head) * t.slots + slot;
    return t.a.pieces + number * GROUP * 2 * t.a.head_dim;
}

} // namespace HTI_KERNELS

#endif
