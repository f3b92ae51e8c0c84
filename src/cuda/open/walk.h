/*
 * The walk of one row: rows met at level 0, then from the top level down what it opens and what
 * takes part. Forward and dq go the same way and differ in what a partner adds.
 */
#ifndef HTI_CUDA_OPEN_WALK_H
#define HTI_CUDA_OPEN_WALK_H

#include "cuda/open/row.h"

/* Forward: softmax over what was seen so far, `sum` this lane's share. */
template <int NC> struct found { float max, sum, z[NC]; };

/* dq: the row's lse and h, and its sums; table: the bias sums of this warp, or NULL. */
template <int NC> struct gathered { float m, h, dq[NC], *table; };

struct row_of {
    place p;
    own_shared own;
    int head, kv_head, row;
};

/* Weights are in shared memory: numerators or gradients of all partners. */
template <typename T, int NC>
DEVICE void add_values(float (&sums)[NC], const hti_open_args &o, const row_of &r, const side &s) {
    const hti_cuda_args &a = o.a;
    if (s.level > 0) {
        add_rows<float>(sums, r.own.weight, r.own.who, a.value_dim,
                        [&](int c) { return cluster_value(a, s, c); });
        return;
    }
    add_rows<T>(sums, r.own.weight, r.own.who, a.value_dim,
                [&](int c) { return (const T *)tensor_row<const T>(a.v, a, r.p, s.kv_head, c); });
}

template <typename T, int NC>
DEVICE void add_keys(float (&sums)[NC], const hti_open_args &o, const row_of &r, const side &s) {
    const hti_cuda_args &a = o.a;
    if (s.level > 0) {
        add_rows<float>(sums, r.own.ds, r.own.who, a.head_dim,
                        [&](int c) { return cluster_key(a, s, c); });
        return;
    }
    for (int j = 0; j < 32; j++) {
        float w = r.own.ds[j];
        if (w == 0) continue;
        const T *key = tensor_row<const T>(a.k, a, r.p, s.kv_head, r.own.who[j]);
        for (int x = 0; x < NC; x++) {
            int column = min(lane_id() + 32 * x, a.head_dim - 1);
            bool turned = s.near && a.turn;
            sums[x] +=
                w * (turned ? turned_at(a, key, r.own.who[j], column) : to_float(key[column]));
        }
    }
}

/* A partner c for each lane that has one (on). */
template <typename T, int NC>
DEVICE void take(found<NC> &f, const hti_open_args &o, const row_of &r, const side &s, bool on,
                 int c) {
    const hti_cuda_args &a = o.a;
    float x = -INFINITY, n = 0;
    if (on) {
        n = key_count(a, r.p, s.level, s.at, c);
        x = score_of(a, dot_key<T>(a, r.p, r.own, s, c), r.head, c - (r.row >> s.level));
    }
    float top = fmaxf(f.max, warp_max(x)), from = top == -INFINITY ? 0 : top;
    float fade = expf(f.max - from), w = on ? n * expf(x - from) : 0;
    f.max = top;
    f.sum = f.sum * fade + w;
    for (int y = 0; y < NC; y++) f.z[y] *= fade;
    __syncwarp();
    r.own.weight[lane_id()] = on ? w * keep_of(a, r.p, r.head, s.level, r.row, c) : 0;
    r.own.who[lane_id()] = c;
    __syncwarp();
    add_values<T>(f.z, o, r, s);
}

/* Bias sums of the lanes' partners; lanes that share an entry add up first, always alike. */
DEVICE void add_bias(float *table, const hti_cuda_args &a, bool on, int distance, float ds) {
    int most = 2 * a.block - 1, entry = max(-most, min(most, distance)) + most;
    unsigned left = __ballot_sync(ALL_LANES, on);
    while (left) {
        int leader = __ffs((int)left) - 1, its = __shfl_sync(ALL_LANES, entry, leader);
        unsigned same = __ballot_sync(ALL_LANES, on && entry == its);
        float sum = warp_sum(on && entry == its ? ds : 0);
        if (lane_id() == 0) table[its] += sum;
        left &= ~same;
    }
}

/* P = n exp(s - m), ds = P (r <G, v> - h), dq += ds k; the scale comes at the end. */
template <typename T, int NC>
DEVICE void take(gathered<NC> &f, const hti_open_args &o, const row_of &r, const side &s, bool on,
                 int c) {
    const hti_cuda_args &a = o.a;
    float ds = 0;
    if (on) {
        float n = key_count(a, r.p, s.level, s.at, c);
        float x = score_of(a, dot_key<T>(a, r.p, r.own, s, c), r.head, c - (r.row >> s.level));
        float keep = keep_of(a, r.p, r.head, s.level, r.row, c);
        float dp = keep != 0 ? keep * dot_value<T>(a, r.p, r.own, s, c) : 0;
        ds = n * expf(x - f.m) * (dp - f.h);
    }
    __syncwarp();
    r.own.ds[lane_id()] = ds;
    r.own.who[lane_id()] = c;
    __syncwarp();
    add_keys<T>(f.dq, o, r, s);
    if (f.table) add_bias(f.table, a, on, c - (r.row >> s.level), ds);
}

/* Rows of cluster c of a level, which has been opened. */
template <typename T, typename State>
DEVICE void take_rows(State &f, const hti_open_args &o, const row_of &r, int level, int c) {
    side s = side_of(o.a, r.p, r.kv_head, 0, 0);
    int64_t end = min(((int64_t)c + 1) << level, (int64_t)r.p.length);
    for (int64_t j0 = (int64_t)c << level; j0 < end; j0 += 32) {
        int64_t j = j0 + lane_id();
        take<T>(f, o, r, s, j < end && takes_part(o.a.key_mask, r.p, (int)min(j, end)), (int)j);
    }
}

template <typename T, typename State>
DEVICE void take_near(State &f, const hti_open_args &o, const row_of &r) {
    side s = side_of(o.a, r.p, r.kv_head, 0, 1);
    reach met = keys_of(o.a, r.p.length, 0, r.row);
    for (int j0 = met.lo0; j0 < met.hi0; j0 += 32) {
        int j = j0 + lane_id();
        take<T>(f, o, r, s, j < met.hi0 && takes_part(o.a.key_mask, r.p, j), j);
    }
}

/* Levels from the top down to 1; lists: room of this warp for two of them. */
template <typename T, typename State>
DEVICE void take_levels(State &f, const hti_open_args &o, const row_of &r, uint32_t *order,
                        int *lists) {
    int opened = 0;
    for (int level = levels_of(o.a, r.p.length) - 1; level > 0; level--) {
        int *now = lists + (level & 1) * o.open, *above = lists + (~level & 1) * o.open, count = 0;
        side s = side_of(o.a, r.p, r.kv_head, level, 0);
        queue u = queue_of(o.a, r.p, level, r.row, above, level < o.leaf_level ? 0 : opened);
        verdict v = settle<T>(o, r.p, r.own, r.head, level, r.row, u, order);
        for (int x0 = 0; x0 < u.count; x0 += 32) {
            int x = x0 + lane_id();
            uint32_t mine = x < u.count ? order[x] : 0;
            int c = mine > 0 ? candidate(u, x) : 0;
            bool yes = is_opened(&v, mine);
            take<T>(f, o, r, s, mine > 0 && !yes, c);
            if (level > o.leaf_level) {
                count = append(now, count, yes, c);
                continue;
            }
            for (unsigned all = __ballot_sync(ALL_LANES, yes); all; all &= all - 1)
                take_rows<T>(f, o, r, level, __shfl_sync(ALL_LANES, c, __ffs((int)all) - 1));
        }
        opened = count;
        __syncwarp();
    }
}

#endif
