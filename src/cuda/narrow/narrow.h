/*
 * The narrow kernels: rows of 4 or 8 columns, whole sequences in shared memory, on tensor cores.
 *
 * A thread block takes one head of one sequence. It loads the rows and adds up all levels in shared
 * memory, in 16 bits; then a warp owns a strip of 64 rows, the 32 clusters of level 1 and the 16 of
 * level 2 above them, in tiles of 16, and walks over groups of 16 partners. What a tile of a level
 * has found is handed down to the two tiles below it in registers; only levels from 3 on, a quarter
 * of the rows, leave their results in shared memory, before. Nothing but the rows themselves is
 * read or written in device memory.
 *
 * Level l begins at place at[l] of the arrays and has room for a multiple of 16 clusters. Scores
 * are in log2 units; log2(n) of a cluster of n rows is added to them, -inf where a row takes no
 * part.
 *
 * A group of 16 rows of 8 columns is two matrices for ldmatrix: its even rows, then its odd ones.
 * Of 4 columns it is one: a matrix row holds an even row and the odd one after it, and a product
 * with one of them has zeros in the place of the other. Either way lane 4g + t has the scores of
 * rows g and g + 8 of its tile with partners 4t ... 4t + 3 of the group, as dropout draws them.
 */
#ifndef HTI_CUDA_NARROW_H
#define HTI_CUDA_NARROW_H

#include "cuda/generic/tile.h"
#include "cuda/hier_tile.h"
#include "cuda/typed.h"

namespace HTI_KERNELS {

enum { GROUP = HTI_NARROW_GROUP, STRIP = 64, HELD = 3, NARROW_LEVELS = HTI_NARROW_LEVELS };
/* HELD: levels of a strip */

/* What kernels are compiled for: everything is seen and stays; weights are dropped; causal (perhaps
 * with dropout). */
enum { PLAIN, DROPS, CAUSAL };

HTI_FN int groups_up(int64_t rows) { return (int)((rows + GROUP - 1) / GROUP * GROUP); }

/* Places of all levels of a sequence, the first one of each; at has one more entry than levels. */
template <typename T> HTI_FN void narrow_places(T *at, int length, int levels) {
    at[0] = 0;
    for (int l = 0; l < levels; l++) at[l + 1] = at[l] + groups_up(hti_clusters(length, l));
}

/* Of the longest sequence: all places, those of coarse levels, those of the levels from HELD on. */
struct narrow_sizes {
    int all, coarse, upper;
};

/* The host leaves the places in level_work. */
HTI_FN narrow_sizes sizes_of(const hti_cuda_args &a) {
    int all = (int)a.level_work[a.levels], held = a.levels < HELD ? a.levels : HELD;
    return {all, all - (int)a.level_work[1], all - (int)a.level_work[held]};
}

/* ---- rows of D columns as floats; in memory 16 bits ---- */

template <int D> struct row_of { float x[D]; };

template <int D> DEVICE row_of<D> zeros() {
    row_of<D> r;
#pragma unroll
    for (int i = 0; i < D; i++) r.x[i] = 0;
    return r;
}

/* As it lies in memory. */
template <int D> struct alignas(2 * D) raw_row { uint32_t x[D / 2]; };

template <int D> DEVICE raw_row<D> raw_zeros() {
    raw_row<D> r;
#pragma unroll
    for (int i = 0; i < D / 2; i++) r.x[i] = 0;
    return r;
}

template <int D> DEVICE row_of<D> unpacked(const raw_row<D> &x) {
    row_of<D> r;
#pragma unroll
    for (int i = 0; i < D / 2; i++) {
        float2 two = unpack2(x.x[i]);
        r.x[2 * i] = two.x, r.x[2 * i + 1] = two.y;
    }
    return r;
}

/* Bytes from the first place's row to another's. */
template <int D> DEVICE int row_at(int place) {
    if (D == 4) return 8 * place;
    return place / GROUP * (GROUP * 16) + place % 2 * 128 + place % GROUP / 2 * 16;
}

/* Place first + i; first is a multiple of a power of two above i. */
template <int D> DEVICE raw_row<D> &row_in(char *rows, int first, int i) {
    return *(raw_row<D> *)(rows + row_at<D>(first) + row_at<D>(i));
}

template <int D> DEVICE raw_row<D> rounded(const row_of<D> &r) {
    raw_row<D> x;
#pragma unroll
    for (int i = 0; i < D / 2; i++) x.x[i] = pack2(r.x[2 * i], r.x[2 * i + 1]);
    return x;
}

template <int D> DEVICE float dot(const row_of<D> &a, const row_of<D> &b) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D; i++) sum = fmaf(a.x[i], b.x[i], sum);
    return sum;
}

template <int D> DEVICE row_of<D> sum_of(const row_of<D> &a, const row_of<D> &b) {
    row_of<D> r;
#pragma unroll
    for (int i = 0; i < D; i++) r.x[i] = a.x[i] + b.x[i];
    return r;
}

template <int D> DEVICE row_of<D> times(const row_of<D> &a, float factor) {
    row_of<D> r;
#pragma unroll
    for (int i = 0; i < D; i++) r.x[i] = a.x[i] * factor;
    return r;
}

/* ---- the sequence of a thread block ---- */

struct sequence {
    place p;
    int head, levels;
    int per, magic;          /* groups of a block; division by it */
    uint32_t stream, offset; /* of the dropout's generator */
    const int *at;           /* [levels + 1], shared */
};

/* False: an empty sequence. `at` [NARROW_LEVELS + 1] is filled in for all threads. */
DEVICE bool find_sequence(sequence *s, const hti_cuda_args &a, int *at) {
    s->head = (int)(blockIdx.x % (unsigned)a.q_heads);
    s->p.sequence = (int)(blockIdx.x / (unsigned)a.q_heads);
    s->p.start = start_of(a, s->p.sequence);
    s->p.length = a.cu ? (int)(a.cu[s->p.sequence + 1] - s->p.start) : a.length;
    s->p.first = 0;
    if (s->p.length == 0) return false;
    s->levels = a.cu ? levels_of(a, s->p.length) : a.levels;
    s->per = a.block / GROUP, s->magic = 65536 / s->per + 1;
    s->stream = (uint32_t)s->p.sequence * (uint32_t)a.q_heads + (uint32_t)s->head;
    s->offset = a.threshold ? offset_of(a) : 0;
    s->at = at;
    int i = (int)threadIdx.x;
    if (!a.cu && i <= a.levels) at[i] = (int)a.level_work[i];
    if (a.cu && i == 0) narrow_places(at, s->p.length, s->levels);
    __syncthreads();
    return true;
}

/* The block of a group; a sequence has at most 512 groups. */
DEVICE int block_of(const sequence &s, int group) { return group * s.magic >> 16; }

/* A head's rows. */
template <typename T> struct head_rows {
    T *data;
    int stride;
    __device__ __forceinline__ head_rows(const ht_tensor &t, const hti_cuda_args &a,
                                         const sequence &s)
        : data(tensor_row<T>(t, a, s.p, s.head, 0)), stride((int)t.row_stride) {}
    __device__ __forceinline__ T *at(int row) const { return data + (int64_t)row * stride; }
};

DEVICE int clusters_of(const sequence &s, int level) {
    return (s.p.length + (1 << level) - 1) >> level;
}

/* Tile i of those of the levels from HELD on: its level and first cluster. */
DEVICE int upper_tile(const sequence &s, int i, int *c) {
    int level = HELD, at = s.at[HELD] + i * GROUP;
    while (at >= s.at[level + 1]) level++;
    *c = at - s.at[level];
    return level;
}

DEVICE int upper_tiles(const sequence &s) {
    return s.levels > HELD ? (s.at[s.levels] - s.at[HELD]) / GROUP : 0;
}

/* ---- levels >= 1 ----
 *
 * A thread has eight rows of one tensor and makes the clusters of the next three levels of them,
 * in registers: level 0 from device memory, then levels 3 and 6 from shared memory. */

enum { FOLD = 8, FOLD_LEVELS = 3 };

/* x and w are what the tensor's join makes of them: sum and number of rows, the first row and its
 * place, or dz, m and h. */
template <int D> struct node {
    row_of<D> x;
    float w, h;
};

/* Rows 8 e ... 8 e + 7 of a level, get(0 ... 7): keep(first, i, node) of the clusters above them,
 * at place first + i. */
template <int D, typename Get, typename Join, typename Keep>
DEVICE void fold(const sequence &s, int level, int e, Get get, Join join, Keep keep) {
    node<D> left[FOLD_LEVELS];
    int first[FOLD_LEVELS]; /* places have room for multiples of 16: for all of these, or none */
    bool there[FOLD_LEVELS];
#pragma unroll
    for (int u = 0; u < FOLD_LEVELS; u++) {
        bool exists = level + u + 1 < s.levels;
        first[u] = (exists ? s.at[level + u + 1] : 0) + (FOLD * e >> (u + 1));
        there[u] = exists && first[u] < s.at[level + u + 2];
    }
#pragma unroll
    for (int i = 0; i < FOLD; i++) {
        node<D> x = get(i);
#pragma unroll
        for (int u = 0; u < FOLD_LEVELS; u++) {
            int low = i & ((2 << u) - 1);
            if (low == (1 << u) - 1) left[u] = x;
            if (low != (2 << u) - 1) continue;
            x = join(left[u], x);
            if (there[u]) keep(first[u], i >> (u + 1), x);
        }
    }
}

/* Eights of rows of a level, so that all places of the three levels above it are filled. */
DEVICE int eights_of(const sequence &s, int level) {
    int most = (s.at[level + 1] - s.at[level]) / FOLD;
    for (int u = 1; u <= FOLD_LEVELS && level + u < s.levels; u++)
        most = max(most, (s.at[level + u + 1] - s.at[level + u]) << u >> FOLD_LEVELS);
    return most;
}

/* work(tensor, level, eight) for all of them, tensors 0 ... count - 1; a warp has one of these. */
template <int SIZE, typename Work>
DEVICE void fold_level(const sequence &s, int level, int count, Work work) {
    int eights = eights_of(s, level), room = (eights + 31) & ~31;
    for (int i = (int)threadIdx.x; i < count * room; i += SIZE) {
        int tensor = 0, e = i;
        while (e >= room) e -= room, tensor++;
        if (e < eights) work(tensor, e);
    }
    __syncthreads();
}

/* 1/n, or 0 */
DEVICE float share_of(float n) { return n > 0 ? inverse_fast(n) : 0; }

template <int D> DEVICE node<D> add_nodes(const node<D> &a, const node<D> &b) {
    return {sum_of(a.x, b.x), a.w + b.w, 0};
}

/* Rows 8 e ... of a tensor, all on their way at once; zeros where they take no part. */
template <int D>
DEVICE void load_eight(raw_row<D> *r, bool *valid, const ht_tensor &from, const uint8_t *mask,
                       const hti_cuda_args &a, const sequence &s, int e) {
    head_rows<const element> rows(from, a, s);
    const element *first = rows.at(FOLD * e);
    if (!mask && FOLD * (e + 1) <= s.p.length) {
#pragma unroll
        for (int i = 0; i < FOLD; i++) {
            r[i] = *(const raw_row<D> *)(first + i * rows.stride);
            valid[i] = true;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < FOLD; i++) {
        valid[i] = takes_part(mask, s.p, FOLD * e + i);
        r[i] = valid[i] ? *(const raw_row<D> *)(first + i * rows.stride) : raw_zeros<D>();
    }
}

/* Keys, or values: means, and log2 of the number of valid ones (by those that have `keys`). ROWS:
 * level 0, whose rows come from device memory. */
template <int D, bool ROWS>
DEVICE void fold_keys(char *to, float *n, bool keys, const ht_tensor &from, const hti_cuda_args &a,
                      const sequence &s, int level, int e) {
    int at = s.at[level] + FOLD * e, inside = at < s.at[level + 1];
    raw_row<D> r[FOLD];
    bool valid[FOLD];
    float w[FOLD];
    if (ROWS) load_eight<D>(r, valid, from, a.key_mask, a, s, e);
#pragma unroll
    for (int i = 0; i < FOLD; i++) {
        if (ROWS) {
            w[i] = valid[i] ? 1 : 0;
            if (inside) row_in<D>(to, at, i) = r[i];
            if (inside && keys) n[at + i] = valid[i] ? 0 : -INFINITY;
        } else {
            r[i] = inside ? row_in<D>(to, at, i) : raw_zeros<D>();
            w[i] = inside ? exp2_fast(n[at + i]) : 0;
        }
    }
    auto get = [&](int i) -> node<D> {
        row_of<D> x = unpacked<D>(r[i]);
        return {ROWS ? x : times(x, w[i]), w[i], 0};
    };
    auto keep = [&](int first, int i, const node<D> &x) {
        row_in<D>(to, first, i) = rounded(times(x.x, share_of(x.w)));
        if (keys) n[first + i] = __log2f(x.w);
    };
    fold<D>(s, level, e, get, add_nodes<D>, keep);
}

/* Queries: means and the number of valid ones, or the first of them and which row it is (-1: none).
 * to: places from `begin` on. */
template <int D, bool ROWS>
DEVICE void fold_queries(char *to, float *count, const hti_cuda_args &a, const sequence &s,
                         int begin, int level, int e) {
    bool mean = a.query == HT_QUERY_MEAN;
    int at = s.at[level] + FOLD * e, inside = at < s.at[level + 1];
    raw_row<D> r[FOLD];
    bool valid[FOLD];
    float w[FOLD];
    if (ROWS) load_eight<D>(r, valid, a.q, a.query_mask, a, s, e);
#pragma unroll
    for (int i = 0; i < FOLD; i++) {
        if (ROWS) {
            w[i] = mean ? (valid[i] ? 1 : 0) : valid[i] ? (float)(FOLD * e + i) : -1;
            if (inside && begin == 0) row_in<D>(to, at, i) = r[i];
        } else {
            r[i] = inside ? row_in<D>(to, at - begin, i) : raw_zeros<D>();
            w[i] = inside ? count[at - s.at[1] + i] : mean ? 0 : -1;
        }
    }
    auto get = [&](int i) -> node<D> {
        row_of<D> x = unpacked<D>(r[i]);
        return {ROWS || !mean ? x : times(x, w[i]), w[i], 0};
    };
    auto join = [&](const node<D> &x, const node<D> &y) {
        return mean ? add_nodes(x, y) : x.w >= 0 ? x : y;
    };
    auto keep = [&](int first, int i, const node<D> &x) {
        row_in<D>(to, first - begin, i) = rounded(times(x.x, mean ? share_of(x.w) : 1));
        count[first - s.at[1] + i] = x.w;
    };
    fold<D>(s, level, e, get, join, keep);
}

/* ---- who sees whom ---- */

/* Groups of partners of a tile: two ranges, one after the other. Above level 0 the tile's rows 8 h
 * ... 8 h + 7 see of the first range the partners below end[h], of the second those from begin[h]
 * on. */
struct partners {
    int first0, count0, first1, count, end[2], begin[2];
    __device__ __forceinline__ int at(int i) const {
        return i < count0 ? first0 + i : first1 + i - count0;
    }
    /* of eight partners */
    __device__ __forceinline__ bool seen(int i, int h, int partner) const {
        return i < count0 ? partner < end[h] : partner >= begin[h];
    }
};

/* keys: the tile's rows are keys, its partners queries */
DEVICE partners partners_of(const hti_cuda_args &a, const sequence &s, int level, int c,
                            bool keys) {
    int block = a.block, half = block / 2, clusters = clusters_of(s, level);
    int start = block_of(s, c / GROUP) * block, in = c - start;
    int before = max(start - block, 0), after = start + block, end = min(after + block, clusters);
    partners r;
    if (level == 0) {
        int lo = a.causal && keys ? c : before, hi = a.causal && !keys ? c + GROUP : end;
        r.first0 = lo / GROUP;
        r.count = r.count0 = (min(hi, clusters) + GROUP - 1) / GROUP - r.first0;
        r.first1 = r.end[0] = r.end[1] = r.begin[0] = r.begin[1] = 0;
        return r;
    }
    for (int h = 0; h < 2; h++) {
        r.end[h] = before + (in + 8 * h < half ? half : block);
        r.begin[h] = after + (in + 8 * h < half ? 0 : half);
    }
    bool left = start > 0 && !(a.causal && keys), right = !(a.causal && !keys);
    r.first0 = before / GROUP, r.first1 = r.begin[0] / GROUP;
    r.count0 = left ? (r.end[1] + GROUP - 1) / GROUP - r.first0 : 0;
    r.count = r.count0 + (right ? max((end + GROUP - 1) / GROUP - r.first1, 0) : 0);
    return r;
}

/* ---- tiles and groups in registers ---- */

DEVICE int quad() { return lane_id() >> 2; }
DEVICE int in_quad() { return lane_id() & 3; }

/* 16 rows as first factors: rows g and g + 8, to be multiplied with even and with odd partners. */
struct own_rows {
    uint32_t even[2], odd[2];
};

/* word: two columns from 2 t on of row h (of 4 columns: 2 (t % 2)) */
template <int D> DEVICE void set_own(own_rows &r, int h, uint32_t word) {
    r.even[h] = D == 8 || in_quad() < 2 ? word : 0;
    r.odd[h] = D == 8 || in_quad() >= 2 ? word : 0;
}

template <int D> DEVICE int own_column() { return D == 8 ? 2 * in_quad() : 2 * (in_quad() & 1); }

/* From shared memory, places first ... */
template <int D> DEVICE own_rows get_own(const char *rows, int first) {
    own_rows r;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int at = row_at<D>(first + 8 * h + quad()) + 2 * own_column<D>();
        set_own<D>(r, h, *(const uint32_t *)(rows + at));
    }
    return r;
}

struct pair {
    uint32_t even, odd;
};

/* A group as second factor of scores; place: its first. */
template <int D> DEVICE pair rows_from(uint32_t rows, int place) {
    uint32_t from = rows + 2 * D * place;
    uint32_t x[2];
    if (D == 8) {
        matrix2(x, from + (lane_id() & 15) * 16);
    } else {
        matrix1(x, from + (lane_id() & 7) * 16);
        x[1] = x[0];
    }
    return {x[0], x[1]};
}

/* As second factor of sums over the group. */
template <int D> DEVICE pair columns_from(uint32_t rows, int place) {
    uint32_t from = rows + 2 * D * place;
    uint32_t x[2];
    if (D == 8) {
        matrix2_turned(x, from + (lane_id() & 15) * 16);
        return {x[0], x[1]};
    }
    matrix1_turned(x, from + (lane_id() & 7) * 16);
    return {quad() < 4 ? x[0] : 0, quad() < 4 ? 0 : x[0]};
}

/* log2 of the valid rows of keys 4 t ... 4 t + 3 of a group, less what is subtracted from the
 * scores of rows g and g + 8; j: its first key, n: of the level. */
DEVICE void key_weights(float (&add)[2][4], const float *n, const float *less,
                        const hti_cuda_args &a, const sequence &s, int level, int j) {
    if (!a.key_mask && (j + GROUP) << level <= s.p.length) { /* whole clusters */
        add[0][0] = add[0][1] = add[0][2] = add[0][3] = (float)level - less[0];
        add[1][0] = add[1][1] = add[1][2] = add[1][3] = (float)level - less[1];
        return;
    }
    float4 x = *(const float4 *)(n + j + 4 * in_quad());
#pragma unroll
    for (int h = 0; h < 2; h++) {
        add[h][0] = x.x - less[h], add[h][1] = x.y - less[h];
        add[h][2] = x.z - less[h], add[h][3] = x.w - less[h];
    }
}

/* x[h][e]: of row g + 8 h and partner 4 t + e */
struct scores {
    float x[2][4];
};

DEVICE scores products(const own_rows &own, const pair &group) {
    float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
    mma8(even, own.even[0], own.even[1], group.even);
    mma8(odd, own.odd[0], own.odd[1], group.odd);
    return {{{even[0], odd[0], even[1], odd[1]}, {even[2], odd[2], even[3], odd[3]}}};
}

struct weights {
    uint32_t a[4];
};

DEVICE weights packed(const scores &s) {
    return {{pack2(s.x[0][0], s.x[0][2]), pack2(s.x[1][0], s.x[1][2]), pack2(s.x[0][1], s.x[0][3]),
             pack2(s.x[1][1], s.x[1][3])}};
}

/* sums [4]: columns 2 t, 2 t + 1 of row g, then of row g + 8. Of 4 columns the sums over even
 * partners are columns 0 ... 3, over odd ones 4 ... 7: whole() adds them. */
DEVICE void add_group(float *sums, const weights &w, const pair &columns) {
    mma16(sums, w.a, columns.even, columns.odd);
}

template <int D> DEVICE void whole(float *sums) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (D == 4) sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], 2);
}

/* After whole(): f(h, x, y) for row g + 8 h and the two columns that a lane writes. */
template <int D, typename F> DEVICE void each_row(const float *sums, F f) {
    if (D == 4) {
        int h = in_quad() / 2;
        f(h, h ? sums[2] : sums[0], h ? sums[3] : sums[1]);
    } else {
        f(0, sums[0], sums[1]), f(1, sums[2], sums[3]);
    }
}

/* Sums of a tile's rows from those of the tile above it, of whose halves it is one. */
DEVICE void hand_down(float *to, const float *from, int second) {
    int lane = 4 * (quad() >> 1) + in_quad();
    float x = second ? from[2] : from[0], y = second ? from[3] : from[1];
    to[0] = __shfl_sync(ALL_LANES, x, lane), to[1] = __shfl_sync(ALL_LANES, y, lane);
    to[2] = __shfl_sync(ALL_LANES, x, lane + 16), to[3] = __shfl_sync(ALL_LANES, y, lane + 16);
}

/* Exponents from dot products: scaled, with add[h][e], the rest. */
DEVICE void to_exponents(scores &s, float scale, const float (&add)[2][4]) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) s.x[h][e] = fmaf(s.x[h][e], scale, add[h][e]);
}

DEVICE void to_powers(scores &s) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) s.x[h][e] = exp2_fast(s.x[h][e]);
}

/* -inf where a row does not see a partner; i: the number of the group, c: the tile's first row. */
template <int MODE>
DEVICE void hide(scores &s, const partners &r, int i, int level, int c, bool keys) {
    int first = r.at(i) * GROUP + 4 * in_quad();
    if (level > 0) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (!r.seen(i, h, first & ~7))
#pragma unroll
                for (int e = 0; e < 4; e++) s.x[h][e] = -INFINITY;
    } else if (MODE == CAUSAL && r.at(i) * GROUP == c) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int later = first + e - (c + 8 * h + quad());
                if (keys ? later < 0 : later > 0) s.x[h][e] = -INFINITY;
            }
    }
}

/* ---- dropout's bits, kept from forward to backward ----
 *
 * 32 bytes for each tile of queries and each group of keys in its reach: bit 4 h + e of byte 4 g +
 * t is that of query g + 8 h and key 4 t + e. A tile has room for three blocks of keys at level 0,
 * for two above it. */

enum {
    KEEPS_BYTES = 32,
    KEEPS_APART = HTI_NARROW_APART
}; /* tiles more than rows / 16 that levels may end in */

HTI_FN int64_t row_keeps_at(int block, int64_t start, int64_t sequence) {
    return (start / GROUP + sequence) * (3 * block / GROUP) * KEEPS_BYTES;
}
HTI_FN int64_t cluster_keeps_at(int block, int64_t start, int64_t sequence) {
    return (start / GROUP + sequence * KEEPS_APART) * (2 * block / GROUP) * KEEPS_BYTES;
}

/* The bytes of a level of this sequence. */
DEVICE uint8_t *keeps_of_level(const hti_cuda_args &a, const sequence &s, int level) {
    if (!a.row_keeps) return NULL;
    if (level == 0)
        return a.row_keeps + s.head * row_keeps_at(a.block, a.rows, a.sequences) +
               row_keeps_at(a.block, s.p.start, s.p.sequence);
    return a.cluster_keeps + s.head * cluster_keeps_at(a.block, a.rows, a.sequences) +
           cluster_keeps_at(a.block, s.p.start, s.p.sequence) +
           (s.at[level] - s.at[1]) / GROUP * 2 * s.per * KEEPS_BYTES;
}

/* Of queries 16 c ... and keys 16 j ... of a level. */
DEVICE int keeps_at(const sequence &s, int level, int c, int j) {
    int slot = j - (block_of(s, c) - 1) * s.per;
    if (level == 0) return (c * 3 * s.per + slot) * KEEPS_BYTES;
    return (c * 2 * s.per + slot - (j > c ? s.per : 0)) * KEEPS_BYTES;
}

/* Of a call: places of the longest sequence. */
static inline void set_places(hti_cuda_args *a) {
    narrow_places(a->level_work, a->length, a->levels);
}

/* backward.cu: shared memory of a call whose longest sequence has this length. */

} // namespace HTI_KERNELS

#endif
