/*
 * What the generic kernels are made of: tiles of query rows and key rows in shared memory.
 *
 * A block of four warps owns a tile of OWN rows (queries in forward and for dq, keys for dk and
 * dv) and walks over tiles of `other` partner rows. Each warp has PER own rows; in the score
 * phase a lane is one partner row, in the accumulation phase a lane has the columns lane, lane +
 * 32, ... of its warp's rows. All arithmetic is float. Rows that take no part (masked, beyond the
 * end) are never read: they are zeros in shared memory.
 */
#ifndef HTI_CUDA_GENERIC_TILE_H
#define HTI_CUDA_GENERIC_TILE_H

#include <math.h>

#include "cuda/lane.h"

enum { OWN = 16, WARPS = 4, PER = OWN / WARPS, THREADS = 32 * WARPS };

/* Floats from one row of a tile to the next: a multiple of 4, and of 4 an odd one, so that float4
 * reads of 32 rows meet no bank twice. */
HTI_FN int tile_stride(int dim) { return ((dim + 3) / 4 | 1) * 4; }

/* ---- where a tile lies ---- */

/* A sequence, and the first row (cluster) of a tile in it. */
struct place {
    int sequence, length, first;
    int64_t start; /* the sequence's first row, counted over all sequences */
};

/* Tiles before sequence b, which starts at `start`: an upper bound that needs no table. At level
 * >= 1 only sequences longer than block * 2^level count, and each adds at least one to the second
 * term. */
HTI_FN int64_t tiles_before(int64_t start, int64_t b, int block, int level, int size) {
    int64_t full = start / ((int64_t)size << level);
    return full + (level == 0 ? b : start / ((int64_t)block << level));
}

/* Tiles are counted in the simplest way where nobody asks; the bias gradient is summed tile by
 * tile and asks for the same order whether equal lengths come as a batch or packed. */
HTI_FN bool is_even(const hti_cuda_args &a) { return !a.cu && !a.dbias; }

/* Tiles of `size` clusters at a level, over all sequences of the call. */
HTI_FN int64_t tiles_of(const hti_cuda_args &a, int level, int size) {
    if (!is_even(a)) return tiles_before(a.rows, a.sequences, a.block, level, size);
    return (hti_clusters(a.length, level) + size - 1) / size * a.sequences;
}

HTI_FN int levels_of(const hti_cuda_args &a, int length) {
    return a.kind == HT_HIERARCHICAL ? hti_levels(length, a.block) : 1;
}

DEVICE int64_t start_of(const hti_cuda_args &a, int b) {
    return a.cu ? a.cu[b] : (int64_t)b * a.length;
}

/* Tile t of a level; false where the bound of tiles_of was too generous. */
DEVICE bool find_place(place *p, const hti_cuda_args &a, int level, int size, int64_t t) {
    if (is_even(a)) {
        int64_t per = (hti_clusters(a.length, level) + size - 1) / size;
        p->sequence = (int)(t / per);
        p->first = (int)(t % per) * size;
        p->length = a.length;
        p->start = (int64_t)p->sequence * a.length;
        return true;
    }
    int low = 0, high = a.sequences;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (tiles_before(start_of(a, middle), middle, a.block, level, size) <= t) {
            low = middle;
        } else {
            high = middle;
        }
    }
    p->sequence = low;
    p->start = start_of(a, low);
    p->length = (int)(start_of(a, low + 1) - p->start);
    int64_t first = (t - tiles_before(p->start, low, a.block, level, size)) * size;
    if (p->length == 0 || first >= hti_clusters(p->length, level)) return false;
    p->first = (int)first;
    return level < levels_of(a, p->length);
}

/* Which level a piece of coarse work belongs to; t becomes its number there. */
DEVICE int find_level(const hti_cuda_args &a, int64_t *t) {
    int level = 1;
    while (*t >= a.level_work[level]) *t -= a.level_work[level++];
    return level;
}

/* ---- who sees whom: at most two ranges of partners ---- */

struct reach {
    int lo0, hi0, lo1, hi1;
};

DEVICE bool holds(const reach &r, int j) {
    return (j >= r.lo0 && j < r.hi0) || (j >= r.lo1 && j < r.hi1);
}

DEVICE bool touches(const reach &r, int lo, int hi) {
    return (r.lo0 < r.hi0 && lo < r.hi0 && r.lo0 < hi) ||
           (r.lo1 < r.hi1 && lo < r.hi1 && r.lo1 < hi);
}

/* Key clusters that query cluster c sees at a level. */
DEVICE reach keys_of(const hti_cuda_args &a, int length, int level, int c) {
    if (a.kind == HT_FULL) return {0, a.causal ? c + 1 : length, 0, 0};
    int64_t clusters = hti_clusters(length, level);
    hti_range l = hti_keys_left(clusters, a.block, level, a.causal, c);
    hti_range r = hti_keys_right(clusters, a.block, level, a.causal, c);
    return {(int)l.lo, (int)l.hi, (int)r.lo, (int)r.hi};
}

/* Query clusters that see key cluster c: the same relation from the other side; causal keeps the
 * later ones. In query fine the answer is in rows. */
DEVICE reach queries_of(const hti_cuda_args &a, int length, int level, int c) {
    if (a.kind == HT_FULL) return {a.causal ? c : 0, length, 0, 0};
    int64_t clusters = hti_clusters(length, level);
    hti_range l = hti_keys_left(clusters, a.block, level, 0, c);
    hti_range r = hti_keys_right(clusters, a.block, level, 0, c);
    if (a.causal && level == 0) l.lo = c;
    if (a.causal && level > 0) l.hi = l.lo;
    if (level == 0 || a.query != HT_QUERY_FINE) return {(int)l.lo, (int)l.hi, (int)r.lo, (int)r.hi};
    int64_t end = length;
    return {(int)min(l.lo << level, end), (int)min(l.hi << level, end),
            (int)min(r.lo << level, end), (int)min(r.hi << level, end)};
}

/* Partners of the whole tile, as one range; lane r (mod OWN) brings row r's reach. */
DEVICE void reach_of_tile(int *lo, int *hi, const reach &r) {
    int low = INT32_MAX, high = 0;
    if (r.lo0 < r.hi0) low = r.lo0, high = r.hi0;
    if (r.lo1 < r.hi1) low = min(low, r.lo1), high = max(high, r.hi1);
    for (int o = OWN / 2; o > 0; o >>= 1) {
        low = min(low, __shfl_xor_sync(ALL_LANES, low, o));
        high = max(high, __shfl_xor_sync(ALL_LANES, high, o));
    }
    *lo = low & ~3; /* dropout draws for four keys at a time */
    *hi = high;
}

/* The reach of this warp's row i, from the lane that brought it. */
DEVICE reach reach_of_row(const reach &r, int i) {
    int from = warp_id() * PER + i;
    return {__shfl_sync(ALL_LANES, r.lo0, from), __shfl_sync(ALL_LANES, r.hi0, from),
            __shfl_sync(ALL_LANES, r.lo1, from), __shfl_sync(ALL_LANES, r.hi1, from)};
}

/* ---- rows in memory ---- */

template <typename T>
DEVICE T *tensor_row(const ht_tensor &t, const hti_cuda_args &a, const place &p, int head,
                     int64_t row) {
    int64_t base = a.cu ? p.start * t.row_stride : p.sequence * t.batch_stride;
    return (T *)t.data + base + row * t.row_stride + head * t.head_stride;
}

DEVICE bool takes_part(const uint8_t *mask, const place &p, int row) {
    return row < p.length && (!mask || mask[p.start + row]);
}

/* Valid keys of a cluster; at: hti_cluster_at of its level. */
DEVICE float key_count(const hti_cuda_args &a, const place &p, int level, int64_t at, int c) {
    if (level == 0) return takes_part(a.key_mask, p, c) ? 1.0f : 0.0f;
    return c < hti_clusters(p.length, level) ? a.kn[at + c] : 0.0f;
}

/* The row whose query a cluster uses in query first; -1: no valid row. */
DEVICE int first_row(const hti_cuda_args &a, const place &p, int level, int64_t at, int c) {
    if (c >= hti_clusters(p.length, level)) return -1;
    return a.first ? a.first[at + c] : c << level;
}

/* ---- filling tiles: dst [rows][tile_stride(dim)] ---- */

/* row(r) gives the source of row r, or NULL for zeros. */
template <typename S, typename Row> DEVICE void load_rows(float *dst, int rows, int dim, Row row) {
    int stride = tile_stride(dim);
    for (int r = warp_id(); r < rows; r += WARPS) {
        const S *src = row(r);
        for (int x = lane_id(); x < stride; x += 32)
            dst[r * stride + x] = src && x < dim ? to_float(src[x]) : 0.0f;
    }
}

/* The same, rows turned by their rotary angles; row r has position first + r. */
template <typename S, typename Row>
DEVICE void load_turned(float *dst, int rows, int dim, const float *turn, int first, Row row) {
    int stride = tile_stride(dim), half = dim / 2;
    for (int r = warp_id(); r < rows; r += WARPS) {
        const S *src = row(r);
        const float *angle = turn + (int64_t)(first + r) * 2 * half;
        for (int x = lane_id(); x < stride; x += 32) {
            float y = src && x < dim ? to_float(src[x]) : 0.0f;
            if (src && x < 2 * half) {
                int i = x < half ? x : x - half;
                float other = to_float(src[x < half ? x + half : i]), s = angle[2 * i + 1];
                y = y * angle[2 * i] + (x < half ? -other : other) * s;
            }
            dst[r * stride + x] = y;
        }
    }
}

/* Queries c0 ...: rows at level 0 and in query fine, else clusters. */
template <typename T>
DEVICE void load_queries(float *dst, int rows, const hti_cuda_args &a, const place &p, int head,
                         int level, int c0) {
    auto plain = [&](int r) {
        bool valid = takes_part(a.query_mask, p, c0 + r);
        return valid ? tensor_row<const T>(a.q, a, p, head, c0 + r) : (const T *)0;
    };
    if (level == 0 && a.turn) {
        load_turned<T>(dst, rows, a.head_dim, a.turn, c0, plain);
        return;
    }
    if (level == 0 || a.query == HT_QUERY_FINE) {
        load_rows<T>(dst, rows, a.head_dim, plain);
        return;
    }
    int64_t at = hti_cluster_at(a, p.start, level);
    if (a.query == HT_QUERY_FIRST) {
        load_rows<T>(dst, rows, a.head_dim, [&](int r) {
            int row = first_row(a, p, level, at, c0 + r);
            return row >= 0 ? tensor_row<const T>(a.q, a, p, head, row) : (const T *)0;
        });
        return;
    }
    int64_t clusters = hti_clusters(p.length, level);
    load_rows<float>(dst, rows, a.head_dim, [&](int r) {
        int64_t row = head * a.clusters + at + c0 + r;
        return c0 + r < clusters ? (const float *)a.qt + row * a.head_dim : (const float *)0;
    });
}

/* Key clusters j0 ... of a level, or their values. */
template <typename T>
DEVICE void load_keys(float *dst, int rows, const hti_cuda_args &a, const place &p, int kv_head,
                      int level, int j0) {
    if (level > 0) {
        int64_t at = hti_cluster_at(a, p.start, level);
        load_rows<float>(dst, rows, a.head_dim, [&](int r) {
            const float *src = a.kt + (kv_head * a.clusters + at + j0 + r) * a.head_dim;
            return key_count(a, p, level, at, j0 + r) > 0 ? src : (const float *)0;
        });
        return;
    }
    auto plain = [&](int r) {
        bool valid = takes_part(a.key_mask, p, j0 + r);
        return valid ? tensor_row<const T>(a.k, a, p, kv_head, j0 + r) : (const T *)0;
    };
    if (a.turn) {
        load_turned<T>(dst, rows, a.head_dim, a.turn, j0, plain);
    } else {
        load_rows<T>(dst, rows, a.head_dim, plain);
    }
}

template <typename T>
DEVICE void load_values(float *dst, int rows, const hti_cuda_args &a, const place &p, int kv_head,
                        int level, int j0) {
    if (level > 0) {
        int64_t at = hti_cluster_at(a, p.start, level);
        load_rows<float>(dst, rows, a.value_dim, [&](int r) {
            const float *src = a.vt + (kv_head * a.clusters + at + j0 + r) * a.value_dim;
            return key_count(a, p, level, at, j0 + r) > 0 ? src : (const float *)0;
        });
        return;
    }
    load_rows<T>(dst, rows, a.value_dim, [&](int r) {
        bool valid = takes_part(a.key_mask, p, j0 + r);
        return valid ? tensor_row<const T>(a.v, a, p, kv_head, j0 + r) : (const T *)0;
    });
}

/* counts[j] of key clusters j0 ..., by the first threads of the block */
DEVICE void load_counts(float *counts, int rows, const hti_cuda_args &a, const place &p, int level,
                        int j0) {
    int64_t at = level > 0 ? hti_cluster_at(a, p.start, level) : 0;
    int r = (int)threadIdx.x;
    if (r < rows) counts[r] = key_count(a, p, level, at, j0 + r);
}

/* ---- arithmetic on tiles ---- */

/* <a, b> in four running sums, added up in one order everywhere: a row with a single key then has
 * <dz, z> = <dz, v> to the bit, and no gradient of q. */
DEVICE void dot4(float4 &sum, const float4 &a, const float4 &b) {
    sum.x = fmaf(a.x, b.x, sum.x);
    sum.y = fmaf(a.y, b.y, sum.y);
    sum.z = fmaf(a.z, b.z, sum.z);
    sum.w = fmaf(a.w, b.w, sum.w);
}
DEVICE float total(const float4 &sum) { return (sum.x + sum.y) + (sum.z + sum.w); }

/* out[i] = <own row i of this warp, partner row `lane`>; rows of `own` begin at the warp's first
 * one. */
DEVICE void dots(float (&out)[PER], const float *own, const float *other, int dim, int rows) {
    int stride = tile_stride(dim);
    const float *b = other + min(lane_id(), rows - 1) * stride;
    float4 sum[PER];
    for (int i = 0; i < PER; i++) sum[i] = make_float4(0, 0, 0, 0);
    for (int x = 0; x < dim; x += 4) {
        float4 q = *(const float4 *)(b + x);
#pragma unroll
        for (int i = 0; i < PER; i++) dot4(sum[i], *(const float4 *)(own + i * stride + x), q);
    }
    for (int i = 0; i < PER; i++) out[i] = total(sum[i]);
}

/* acc[i][c] += sum over j of weights[j][i] * other[j][column c of this lane]. A zero weight adds
 * nothing, even to a row that holds NaN: such a row is the tile's partner, but not this row's. */
template <int NC>
DEVICE void accumulate(float (&acc)[PER][NC], const float4 *weights, const float *other, int dim,
                       int rows) {
    int stride = tile_stride(dim);
    for (int j = 0; j < rows; j++) {
        float4 w = weights[j];
#pragma unroll
        for (int c = 0; c < NC; c++) {
            float x = other[j * stride + min(lane_id() + 32 * c, dim - 1)];
            if (w.x != 0) acc[0][c] += w.x * x;
            if (w.y != 0) acc[1][c] += w.y * x;
            if (w.z != 0) acc[2][c] += w.z * x;
            if (w.w != 0) acc[3][c] += w.w * x;
        }
    }
}

/* The score of a key `distance` clusters after the query. Forward and backward must round it
 * alike: a weight is exp(score - lse), and scores may be large. */
DEVICE float score_of(const hti_cuda_args &a, float dot, int head, int distance) {
    float bias = 0;
    if (a.bias) {
        int most = 2 * a.block - 1;
        int entry = max(-most, min(most, distance)) + most;
        bias = a.bias[(int64_t)entry * a.q_heads + head];
    }
    return fmaf(a.scale, dot, bias);
}

DEVICE uint32_t offset_of(const hti_cuda_args &a) {
    return a.offset_device ? *a.offset_device : a.offset;
}

/* Dropout where a lane is a key: bit i says that the weight of own query c0 + i and key j0 + lane
 * stays. Each lane draws once, for four keys of one query; j0 is a multiple of four. */
DEVICE unsigned keeps_of_queries(const hti_cuda_args &a, const place &p, int head, int level,
                                 int c0, int j0) {
    int lane = lane_id();
    uint32_t stream = (uint32_t)p.sequence * (uint32_t)a.q_heads + (uint32_t)head;
    hti_philox draw = hti_dropout_words(a.seed, offset_of(a), stream, level, c0 + lane / 8,
                                        (uint32_t)(j0 / 4 + lane % 8));
    unsigned mine = 0, bits = 0;
    for (int k = 0; k < 4; k++) mine |= (draw.w[k] >= a.threshold ? 1u : 0u) << k;
    for (int i = 0; i < PER; i++)
        bits |= (__shfl_sync(ALL_LANES, mine, i * 8 + lane / 4) >> lane % 4 & 1u) << i;
    return bits;
}

/* The same where a lane is a query: bit i for own key j0 + i; j0 is a multiple of four. */
DEVICE unsigned keeps_of_keys(const hti_cuda_args &a, const place &p, int head, int level,
                              int query, int j0) {
    uint32_t stream = (uint32_t)p.sequence * (uint32_t)a.q_heads + (uint32_t)head;
    hti_philox draw =
        hti_dropout_words(a.seed, offset_of(a), stream, level, query, (uint32_t)(j0 / 4));
    unsigned bits = 0;
    for (int k = 0; k < 4; k++) bits |= (draw.w[k] >= a.threshold ? 1u : 0u) << k;
    return bits;
}

#endif
