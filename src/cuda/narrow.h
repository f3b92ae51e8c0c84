/*
 * The narrow kernels: rows of 4 or 8 columns, whole sequences in shared memory, in float.
 *
 * A thread block takes one head of one sequence. It loads the rows, adds up all levels in shared
 * memory, and then a thread owns four neighbouring rows or coarse rows (two of 8 columns) and walks
 * over their partners, eight at a time: halves of blocks are multiples of eight, so every range of
 * partners begins at one, and the thread's rows have the same partners. With so few columns a
 * product is a handful of multiplications, tensor cores would multiply zeros, and nothing but the
 * rows themselves is read or written in device memory.
 *
 * Level l begins at place at[l] of the arrays and has room for a multiple of eight clusters.
 * Scores are in log2 units; log2(n) of a cluster of n rows is added to them, -inf where a row
 * takes no part.
 */
#ifndef HTI_CUDA_NARROW_H
#define HTI_CUDA_NARROW_H

#include "cuda/generic_tile.h"

typedef __nv_bfloat16 bf16;

enum { CHUNK = 8, NARROW_LEVELS = 12 };

/* What kernels are compiled for: everything is seen and stays; weights are dropped; causal (perhaps
 * with dropout). */
enum { PLAIN, DROPS, CAUSAL };

/* Rows that a thread owns. */
template <int D> struct owned {
    enum { ROWS = 16 / D };
};

HTI_FN int chunks_up(int64_t rows) { return (int)((rows + CHUNK - 1) / CHUNK * CHUNK); }

/* Places of all levels of a sequence; at (NULL: not wanted) has one more entry than levels. */
HTI_FN int narrow_places(int *at, int length, int levels) {
    int used = 0;
    for (int l = 0; l < levels; l++) {
        if (at) at[l] = used;
        used += chunks_up(hti_clusters(length, l));
    }
    if (at) at[levels] = used;
    return used;
}

/* ---- rows of D columns: in shared memory float, in device memory bf16 ---- */

template <int D> struct row_of { float x[D]; };

template <int D> DEVICE row_of<D> get(const float *from, int row) {
    row_of<D> r;
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
        float4 v = ((const float4 *)(from + row * D))[i];
        r.x[4 * i] = v.x, r.x[4 * i + 1] = v.y, r.x[4 * i + 2] = v.z, r.x[4 * i + 3] = v.w;
    }
    return r;
}

template <int D> DEVICE void set(float *to, int row, const row_of<D> &r) {
#pragma unroll
    for (int i = 0; i < D / 4; i++)
        ((float4 *)(to + row * D))[i] =
            make_float4(r.x[4 * i], r.x[4 * i + 1], r.x[4 * i + 2], r.x[4 * i + 3]);
}

template <int D> DEVICE row_of<D> zeros() {
    row_of<D> r;
#pragma unroll
    for (int i = 0; i < D; i++) r.x[i] = 0;
    return r;
}

template <int D> DEVICE row_of<D> fetch(const bf16 *from) {
    row_of<D> r;
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
        uint2 v = ((const uint2 *)from)[i];
        r.x[4 * i] = __uint_as_float(v.x << 16);
        r.x[4 * i + 1] = __uint_as_float(v.x & 0xffff0000u);
        r.x[4 * i + 2] = __uint_as_float(v.y << 16);
        r.x[4 * i + 3] = __uint_as_float(v.y & 0xffff0000u);
    }
    return r;
}

template <int D> DEVICE void keep_row(bf16 *to, const row_of<D> &r) {
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
        __nv_bfloat162 low = __floats2bfloat162_rn(r.x[4 * i], r.x[4 * i + 1]);
        __nv_bfloat162 high = __floats2bfloat162_rn(r.x[4 * i + 2], r.x[4 * i + 3]);
        ((uint2 *)to)[i] = make_uint2(*(uint32_t *)&low, *(uint32_t *)&high);
    }
}

template <int D> DEVICE float dot(const row_of<D> &a, const row_of<D> &b, float sum) {
#pragma unroll
    for (int i = 0; i < D; i++) sum = fmaf(a.x[i], b.x[i], sum);
    return sum;
}

template <int D> DEVICE void add(row_of<D> &to, float factor, const row_of<D> &r) {
#pragma unroll
    for (int i = 0; i < D; i++) to.x[i] = fmaf(factor, r.x[i], to.x[i]);
}

template <int D> DEVICE void scale_row(row_of<D> &r, float factor) {
#pragma unroll
    for (int i = 0; i < D; i++) r.x[i] *= factor;
}

template <int D> DEVICE row_of<D> sum_of(const row_of<D> &a, const row_of<D> &b) {
    row_of<D> r;
#pragma unroll
    for (int i = 0; i < D; i++) r.x[i] = a.x[i] + b.x[i];
    return r;
}

template <int D> DEVICE row_of<D> times(const row_of<D> &a, float factor) {
    row_of<D> r = a;
    scale_row(r, factor);
    return r;
}

DEVICE float power2(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

/* ---- the sequence of a thread block ---- */

struct sequence {
    place p;
    int head, levels;
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
    s->levels = levels_of(a, s->p.length);
    s->stream = (uint32_t)s->p.sequence * (uint32_t)a.q_heads + (uint32_t)s->head;
    s->offset = a.threshold ? offset_of(a) : 0;
    s->at = at;
    if (threadIdx.x == 0) narrow_places(at, s->p.length, s->levels);
    __syncthreads();
    return true;
}

/* The level of a place; the caller gives one from at[1] on. */
DEVICE int level_of(const sequence &s, int place) {
    int level = 1;
    while (place >= s.at[level + 1]) level++;
    return level;
}

/* ---- levels >= 1, added up in registers ----
 *
 * A thread brings its rows as nodes; join makes one node of two neighbours. Within a thread, then
 * across lanes: keep(level, cluster, node) is called for every cluster, by one lane. All lanes of a
 * warp come here. */

enum { FOLD_LANES = 5 };
template <int D> HTI_FN int most_levels() { return (owned<D>::ROWS == 4 ? 3 : 2) + FOLD_LANES; }

template <typename Node> DEVICE Node from_lane(const Node &x, int mask) {
    Node y;
    const float *a = (const float *)&x;
    float *b = (float *)&y;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(Node) / sizeof(float)); i++)
        b[i] = __shfl_xor_sync(ALL_LANES, a[i], mask);
    return y;
}

template <int D, typename Node, typename Join, typename Keep>
DEVICE void fold_rows(Node *x, int c, int levels, Join join, Keep keep) {
    enum { ROWS = owned<D>::ROWS };
    int level = 1;
#pragma unroll
    for (int size = ROWS / 2; size > 0; size /= 2, level++)
#pragma unroll
        for (int i = 0; i < size; i++) {
            x[i] = join(x[2 * i], x[2 * i + 1]);
            if (level < levels) keep(level, (c >> level) + i, x[i]);
        }
    for (int o = 1; o < 32 && level < levels; o *= 2, level++) {
        Node y = from_lane(x[0], o);
        x[0] = lane_id() & o ? join(y, x[0]) : join(x[0], y);
        if ((lane_id() & (2 * o - 1)) == 0) keep(level, c >> level, x[0]);
    }
}

/* Rows that a block must look at so that all places of all levels are filled. */
DEVICE int rows_to_fold(const sequence &s, int rows_of_warp) {
    int unit = max(CHUNK << (s.levels - 1), rows_of_warp);
    return (s.p.length + unit - 1) / unit * unit;
}

/* 1/n, or 0 */
DEVICE float share_of(float n) { return n > 0 ? __frcp_rn(n) : 0; }

/* Keys 8 j ... 8 j + 7 that row c of a causal call sees at level 0, as bits. */
DEVICE unsigned sees_of(int c, int j) {
    return 255u >> min(max(j * CHUNK + CHUNK - 1 - c, 0), (int)CHUNK);
}

/* Bits of the words that stay: keys 4 j ... 4 j + 3 of a query. */
DEVICE unsigned keeps_of(const hti_cuda_args &a, const sequence &s, int level, int query, int j) {
    hti_philox w = hti_dropout_words(a.seed, s.offset, s.stream, level, query, (uint32_t)j);
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) bits |= (w.w[k] >= a.threshold ? 1u : 0u) << k;
    return bits;
}

/* ---- dropout's bits, kept from forward to backward (blocks of 16) ----
 *
 * Byte i of a row's word in row_keeps [q_heads][rows], of a coarse row's in cluster_keeps, has the
 * bits of its i-th chunk of keys: six at level 0, three above it. */

enum { KEEPS_BLOCK = 16, KEEPS_APART = 128 }; /* room for levels that end in part of a chunk */

HTI_FN int64_t cluster_keeps_at(int64_t rows, int64_t sequences, int head, int64_t start,
                                int64_t sequence) {
    return head * (rows + sequences * KEEPS_APART) + start + sequence * KEEPS_APART;
}

DEVICE uint64_t *row_keeps_of(const hti_cuda_args &a, const sequence &s) {
    return a.row_keeps + s.head * a.rows + s.p.start;
}
DEVICE uint32_t *cluster_keeps_of(const hti_cuda_args &a, const sequence &s) {
    return a.cluster_keeps + cluster_keeps_at(a.rows, a.sequences, s.head, s.p.start, s.p.sequence);
}

/* Where in the words of queries 8 c ... 8 c + 7 the bits of key j and its neighbours begin. */
DEVICE int keeps_shift(int level, int c, int j) {
    int block = c / 2, chunk = j / CHUNK, low = c % 2 == 0;
    int slot = chunk - 2 * max(block - 1, 0);
    if (level > 0 && chunk / 2 > block)
        slot = chunk - 2 * (block + 1) - (low ? 0 : 1) + (block == 0 ? 0 : low ? 1 : 2);
    return CHUNK * slot + j % CHUNK;
}

/* The chunks of a reach, one after the other. */
struct chunks {
    int first0, count0, first1, count;
    __device__ __forceinline__ int at(int i) const {
        return i < count0 ? first0 + i : first1 + i - count0;
    }
};

DEVICE chunks chunks_of(const reach &r) {
    chunks c;
    c.first0 = r.lo0 / CHUNK, c.first1 = r.lo1 / CHUNK;
    c.count0 = r.lo0 < r.hi0 ? (r.hi0 + CHUNK - 1) / CHUNK - c.first0 : 0;
    c.count = c.count0 + (r.lo1 < r.hi1 ? (r.hi1 + CHUNK - 1) / CHUNK - c.first1 : 0);
    return c;
}

/* narrow_backward.cu: shared memory of a call whose longest sequence has this length. */
size_t hti_narrow_backward_shared(int head_dim, int length, int levels);

#endif
