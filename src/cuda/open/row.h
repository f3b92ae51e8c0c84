/*
 * One row of one head, one warp: its candidates of a level, which of them it opens, and products of
 * its query with rows and clusters. A lane is a candidate or a partner; in sums over partners a
 * lane has the columns lane, lane + 32, ...
 */
#ifndef HTI_CUDA_OPEN_ROW_H
#define HTI_CUDA_OPEN_ROW_H

#include "cuda/generic/tile.h"
#include "cuda/open/open.h"

/* A warp's place in shared memory. */
struct own_shared {
    float *q, *turned,
        *g;             /* the query, plain and turned, and dout; or a key, turned, and a value */
    float *weight, *ds; /* [32] of the partners */
    int *who;           /* [32] */
};

HTI_FN int own_floats(int head_dim, int value_dim) {
    return 2 * tile_stride(head_dim) + tile_stride(value_dim) + 3 * 32;
}

DEVICE own_shared own_layout(float *base, const hti_cuda_args &a) {
    own_shared s;
    base += warp_id() * own_floats(a.head_dim, a.value_dim);
    s.q = base;
    s.turned = s.q + tile_stride(a.head_dim);
    s.g = s.turned + tile_stride(a.head_dim);
    s.weight = s.g + tile_stride(a.value_dim);
    s.ds = s.weight + 32;
    s.who = (int *)(s.ds + 32);
    return s;
}

/* Row of a call: its sequence and place there (first). */
DEVICE place place_of_row(const hti_cuda_args &a, int64_t row) {
    place p;
    int low = 0, high = a.sequences;
    if (!a.cu) {
        low = (int)(row / a.length);
    } else {
        while (high - low > 1) {
            int middle = low + (high - low) / 2;
            if (a.cu[middle] <= row) {
                low = middle;
            } else {
                high = middle;
            }
        }
    }
    p.sequence = low;
    p.start = start_of(a, low);
    p.length = (int)(start_of(a, low + 1) - p.start);
    p.first = (int)(row - p.start);
    return p;
}

/* ---- rows in shared memory ---- */

template <typename S> DEVICE void load_one(float *dst, const S *src, int dim) {
    for (int x = lane_id(); x < tile_stride(dim); x += 32) dst[x] = x < dim ? to_float(src[x]) : 0;
}

/* Column x of a row turned by the angles of position t. */
template <typename S>
DEVICE float turned_at(const hti_cuda_args &a, const S *src, int64_t t, int x) {
    int half = a.head_dim / 2, k = x < half ? x : x - half;
    float y = to_float(src[x]);
    if (x >= 2 * half) return y;
    const float *angle = a.turn + (t * half + k) * 2;
    float other = to_float(src[x < half ? x + half : k]);
    return y * angle[0] + (x < half ? -other : other) * angle[1];
}

template <typename S>
DEVICE void load_one_turned(float *dst, const hti_cuda_args &a, const S *src, int64_t t) {
    for (int x = lane_id(); x < tile_stride(a.head_dim); x += 32)
        dst[x] = x < a.head_dim ? turned_at(a, src, t, x) : 0;
}

/* ---- products ---- */

/* In the order of dot4, so that a row with a single key has no gradient of q. */
template <typename S> DEVICE float dot_row(const float *own, const S *other, int dim) {
    float4 sum = make_float4(0, 0, 0, 0);
    int x = 0;
    for (; x + 4 <= dim; x += 4) {
        sum.x = fmaf(own[x], to_float(other[x]), sum.x);
        sum.y = fmaf(own[x + 1], to_float(other[x + 1]), sum.y);
        sum.z = fmaf(own[x + 2], to_float(other[x + 2]), sum.z);
        sum.w = fmaf(own[x + 3], to_float(other[x + 3]), sum.w);
    }
    if (x < dim) sum.x = fmaf(own[x], to_float(other[x]), sum.x);
    if (x + 1 < dim) sum.y = fmaf(own[x + 1], to_float(other[x + 1]), sum.y);
    if (x + 2 < dim) sum.z = fmaf(own[x + 2], to_float(other[x + 2]), sum.z);
    return total(sum);
}

template <typename S>
DEVICE float dot_turned(const hti_cuda_args &a, const float *own, const S *other, int64_t t) {
    float sum[4] = {0, 0, 0, 0};
    for (int x = 0; x < a.head_dim; x++) {
        float y = turned_at(a, other, t, x);
        if (x % 4 == 0) sum[0] = fmaf(own[x], y, sum[0]);
        if (x % 4 == 1) sum[1] = fmaf(own[x], y, sum[1]);
        if (x % 4 == 2) sum[2] = fmaf(own[x], y, sum[2]);
        if (x % 4 == 3) sum[3] = fmaf(own[x], y, sum[3]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* What a query meets: rows as level 0 sees them, rows that were opened, or clusters of a level. */
struct side {
    int level, near, kv_head;
    int64_t at; /* of the level's clusters in the pyramid */
};

DEVICE side side_of(const hti_cuda_args &a, const place &p, int kv_head, int level, int near) {
    return {level, near, kv_head, level ? hti_cluster_at(a, p.start, level) : 0};
}

DEVICE const float *cluster_key(const hti_cuda_args &a, const side &s, int c) {
    return a.kt + (s.kv_head * a.clusters + s.at + c) * a.head_dim;
}
DEVICE const float *cluster_value(const hti_cuda_args &a, const side &s, int c) {
    return a.vt + (s.kv_head * a.clusters + s.at + c) * a.value_dim;
}

template <typename T>
DEVICE float dot_key(const hti_cuda_args &a, const place &p, const own_shared &own, const side &s,
                     int c) {
    if (s.level > 0) return dot_row(own.q, cluster_key(a, s, c), a.head_dim);
    const T *key = tensor_row<const T>(a.k, a, p, s.kv_head, c);
    if (s.near && a.turn) return dot_turned(a, own.turned, key, c);
    return dot_row(own.q, key, a.head_dim);
}

template <typename T>
DEVICE float dot_value(const hti_cuda_args &a, const place &p, const own_shared &own, const side &s,
                       int c) {
    if (s.level > 0) return dot_row(own.g, cluster_value(a, s, c), a.value_dim);
    return dot_row(own.g, tensor_row<const T>(a.v, a, p, s.kv_head, c), a.value_dim);
}

/* sums += weight * row over the partners that a warp wrote down; a weight of 0 adds nothing. */
template <typename S, int NC, typename Row>
DEVICE void add_rows(float (&sums)[NC], const float *weight, const int *who, int dim, Row row) {
    for (int j = 0; j < 32; j++) {
        float w = weight[j];
        if (w == 0) continue;
        const S *src = row(who[j]);
        for (int x = 0; x < NC; x++) sums[x] += w * to_float(src[min(lane_id() + 32 * x, dim - 1)]);
    }
}

DEVICE float keep_of(const hti_cuda_args &a, const place &p, int head, int level, int row, int c) {
    if (!a.threshold) return 1;
    uint32_t stream = (uint32_t)p.sequence * (uint32_t)a.q_heads + (uint32_t)head;
    hti_philox draw =
        hti_dropout_words(a.seed, offset_of(a), stream, level, row, (uint32_t)(c / 4));
    int k = c % 4;
    uint32_t low = k == 0 ? draw.w[0] : draw.w[1], high = k == 2 ? draw.w[2] : draw.w[3];
    return (k < 2 ? low : high) < a.threshold ? 0 : a.keep;
}

/* ---- candidates ---- */

/* Candidates of a level in the order of their clusters: children on the left, two ranges that are
 * met, children on the right. */
struct queue {
    reach met;
    int left, met0, met1, count;
    const int *above;
};

DEVICE queue queue_of(const hti_cuda_args &a, const place &p, int level, int row, const int *above,
                      int opened) {
    queue u;
    u.met = keys_of(a, p.length, level, row >> level);
    u.met0 = max(0, u.met.hi0 - u.met.lo0);
    u.met1 = max(0, u.met.hi1 - u.met.lo1);
    int low = 0, high = opened;
    while (low < high) {
        int middle = (low + high) / 2;
        if (2 * above[middle] < u.met.lo0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    u.left = 2 * low;
    u.count = u.met0 + u.met1 + 2 * opened;
    u.above = above;
    return u;
}

DEVICE int candidate(const queue &u, int x) {
    int y = x - u.left;
    if (y >= 0 && y < u.met0) return u.met.lo0 + y;
    if (y >= u.met0 && y < u.met0 + u.met1) return u.met.lo1 + y - u.met0;
    if (y >= 0) x -= u.met0 + u.met1;
    return 2 * u.above[x / 2] + x % 2;
}

/* Logit of cluster b of a level, without bias or rotary. Explicit sums here and below: every kernel
 * must round a score alike. */
template <typename T>
DEVICE float plain_score(const hti_cuda_args &a, const place &p, const own_shared &own,
                         const side &s, int b) {
    return fmaf(a.scale, dot_key<T>(a, p, own, s, b), 0.0f);
}

/* Mean and deviation of the logits `peek` levels below cluster c. */
template <typename T>
DEVICE float open_score(const hti_open_args &o, const place &p, const own_shared &own, int kv_head,
                        int level, int c) {
    int down = min(o.peek, level), below = level - down;
    int64_t last = min(((int64_t)c + 1) << down, hti_clusters(p.length, below));
    side s = side_of(o.a, p, kv_head, below, 0);
    float all = 0, mean = 0, square = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t b = (int64_t)c << down; b < last; b++) {
            float n = key_count(o.a, p, below, s.at, (int)b);
            if (n == 0) continue;
            float x = plain_score<T>(o.a, p, own, s, (int)b);
            float off = x - mean;
            if (pass == 0) all += n, mean = fmaf(n, x, mean);
            if (pass == 1) square = fmaf(n * off, off, square);
        }
        if (pass == 0) mean /= all;
    }
    return mean + sqrtf(square / all);
}

/* Greater where the score is: 0 is no candidate, 1 is NaN. */
DEVICE uint32_t ordered(float x) {
    uint32_t u = __float_as_uint(x + 0.0f); /* -0 as 0 */
    if (x != x) return 1;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* What is opened: all above `least`, and of those equal to it the first `ties`. */
struct verdict {
    uint32_t least;
    int ties;
};

DEVICE int count_from(const uint32_t *order, int count, uint32_t least) {
    int n = 0;
    for (int x0 = 0; x0 < count; x0 += 32) {
        int x = x0 + lane_id();
        n += __popc(__ballot_sync(ALL_LANES, x < count && order[x] >= least));
    }
    return n;
}

/* A lane reads of `order` what it wrote itself. */
template <typename T>
DEVICE verdict choose(const hti_open_args &o, const place &p, const own_shared &own, int kv_head,
                      int level, const queue &u, uint32_t *order) {
    int64_t at = hti_cluster_at(o.a, p.start, level);
    for (int x = lane_id(); x < u.count; x += 32) {
        int c = candidate(u, x);
        bool there = key_count(o.a, p, level, at, c) > 0;
        order[x] = there ? ordered(open_score<T>(o, p, own, kv_head, level, c)) : 0;
    }
    if (u.count <= o.open || count_from(order, u.count, 1) <= o.open) return {1, INT32_MAX};
    verdict v = {0, 0};
    for (int bit = 31; bit >= 0; bit--)
        if (count_from(order, u.count, v.least | 1u << bit) >= o.open) v.least |= 1u << bit;
    v.ties = v.least == UINT32_MAX ? o.open : o.open - count_from(order, u.count, v.least + 1);
    return v;
}

/* The choice that forward wrote down, a bit per candidate: 2 where opened, else 1. */
DEVICE verdict recall(const hti_open_args &o, const place &p, int head, int level, int row,
                      const queue &u, uint32_t *order) {
    int64_t at = hti_cluster_at(o.a, p.start, level);
    int64_t line = ((level - 1) * (int64_t)o.a.q_heads + head) * o.a.rows + p.start + row;
    const uint32_t *chosen = o.chosen + line * o.words;
    int slots = 0;
    for (int x0 = 0; x0 < u.count; x0 += 32) {
        int x = x0 + lane_id();
        bool there = x < u.count && key_count(o.a, p, level, at, candidate(u, x)) > 0;
        unsigned all = __ballot_sync(ALL_LANES, there);
        int slot = slots + __popc(all & ((1u << lane_id()) - 1));
        if (x < u.count) order[x] = there ? 1 + (chosen[slot / 32] >> slot % 32 & 1) : 0;
        slots += __popc(all);
    }
    return {1, 0};
}

template <typename T>
DEVICE verdict settle(const hti_open_args &o, const place &p, const own_shared &own, int head,
                      int level, int row, const queue &u, uint32_t *order) {
    if (o.chosen) return recall(o, p, head, level, row, u, order);
    return choose<T>(o, p, own, head / o.a.group, level, u, order);
}

/* Whether this lane's candidate is opened; ties: how many equal ones still may be. */
DEVICE bool is_opened(verdict *v, uint32_t mine) {
    unsigned equal = __ballot_sync(ALL_LANES, mine == v->least && mine > 0);
    bool opened = mine > v->least;
    if (equal >> lane_id() & 1) opened = __popc(equal & ((1u << lane_id()) - 1)) < v->ties;
    v->ties -= min(v->ties, __popc(equal));
    return opened;
}

/* Writes the clusters of lanes with `opened` behind the first `count` of a list. */
DEVICE int append(int *list, int count, bool opened, int c) {
    unsigned all = __ballot_sync(ALL_LANES, opened);
    if (opened) list[count + __popc(all & ((1u << lane_id()) - 1))] = c;
    return count + __popc(all);
}

#endif
