/*
 * Pieces that forward and backward of kind full share: tiles of 64 rows that come into shared
 * memory while the tile before is worked on, which keys a row sees, as bits, and biases.
 */
#ifndef HTI_CUDA_FULL_TILE_H
#define HTI_CUDA_FULL_TILE_H

#include "cuda/full/full.h"
#include "cuda/hier_place.h"

namespace HTI_KERNELS {

enum { TILE = 64 }; /* rows that travel together */

/* The caller's rows of one head. */
static __device__ __forceinline__ view rows_of(const hti_hier_args &a, const place &p,
                                               const ht_tensor &t, const uint8_t *mask, int head) {
    return view_of<1>(a, p, t, nullptr, nullptr, mask, head, 0);
}

/* v.n: lse of the rows, for queries in backward; one without a key takes no part. */
static __device__ __forceinline__ int is_there(const view &v, int row, int length) {
    return row < length && (!v.mask || v.mask[row]) && (!v.n || v.n[row] > HTI_NEG_INF);
}

/* Rows first ... first + 63 of x and y, which share their mask: `to` is x's place in shared memory,
 * y's follows. A row that takes no part is zero. */
template <int D, int THREADS>
static __device__ __forceinline__ void fetch_tile(uint32_t to, const view &x, const view &y,
                                                  int first, int length) {
    constexpr int CH = D / 8, STEP = THREADS / CH;
    static_assert(STEP % 8 == 0 && TILE % STEP == 0, "rows keep their turn");
    int ch = threadIdx.x % CH, row = threadIdx.x / CH, r = first + row;
    const element *from_x = x.data + (int64_t)r * x.stride + 8 * ch,
                  *from_y = y.data + (int64_t)r * y.stride + 8 * ch;
    to += 2 * rows<D>::at(row, ch);
    int inside = !x.mask && !x.n && first + TILE <= length;
#pragma unroll
    for (int i = 0; i < TILE / STEP; i++) {
        int there = inside || is_there(x, r + i * STEP, length);
        copy_async_if(to, there ? from_x : x.data, there);
        copy_async_if(to + TILE * 2 * D, there ? from_y : y.data, there);
        to += STEP * 2 * D, from_x += STEP * x.stride, from_y += STEP * y.stride;
    }
}

/* Bit j: row first + j takes part. The same in all lanes. */
static __device__ __forceinline__ uint64_t live_rows(const view &v, int first, int length,
                                                     int lane) {
    uint32_t lo = __ballot_sync(~0u, is_there(v, first + lane, length));
    uint32_t hi = __ballot_sync(~0u, is_there(v, first + 32 + lane, length));
    return (uint64_t)hi << 32 | lo;
}

/* The keys of a tile that are not in the future of a query `ahead` rows behind the tile's first. */
static __device__ __forceinline__ uint64_t past_keys(int ahead) {
    return ahead < 0 ? 0 : ahead >= 63 ? ~(uint64_t)0 : ((uint64_t)2 << ahead) - 1;
}

/* ---- biases ---- */

/* By the distance key - query, which is held within +-reach. */
struct bias_args {
    const float *table; /* [2 reach + 1][q_heads] */
    float *part;        /* backward: sums of the gradient, [thread blocks][q_heads][2 reach + 1] */
    int reach;
};

/* Of a kernel. */
struct full_args {
    hti_hier_args a;
    bias_args b;
};

static inline bias_args biases_of(const hti_cuda_args &a) {
    bias_args b = {a.bias, a.dbias ? a.bias_part : nullptr, 2 * a.block - 1};
    return b;
}

static inline int entries_of(const bias_args &b) { return b.table ? 2 * b.reach + 1 : 0; }

/* The table of one head into shared memory, times `unit`. */
template <int THREADS>
static __device__ __forceinline__ void load_bias(float *to, const bias_args &b, int head, int heads,
                                                 float unit) {
    for (int i = threadIdx.x; i <= 2 * b.reach; i += THREADS)
        to[i] = b.table[(int64_t)i * heads + head] * unit;
}

/* The biases of a warp's rows and a tile; pairs that are all beyond the reach have the same. */
struct tilt {
    const float *table; /* in shared memory, of distance 0 */
    int reach, flat;    /* flat: 1 beyond the reach, -1 likewise to the other side */
    float value;
};

static __device__ __forceinline__ tilt tilt_of(const float *table, int reach, int least, int most) {
    int flat = least >= reach ? 1 : most <= -reach ? -1 : 0;
    tilt t = {table + reach, reach, flat, table[reach + flat * reach]};
    return t;
}

static __device__ __forceinline__ float bias_at(const tilt &t, int distance) {
    return t.flat ? t.value : t.table[max(-t.reach, min(t.reach, distance))];
}

} // namespace HTI_KERNELS

#endif
