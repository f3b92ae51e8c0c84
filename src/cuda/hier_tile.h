/*
 * Pieces of the tuned hierarchical kernels: tensor-core products on tiles of 16 rows, bf16 in, fp32
 * out.
 *
 * Fragments (m16n8k16): lane 4g + t holds rows g and g + 8 of a tile. The order of the columns of a
 * dot product is free as long as both sides agree, so a lane takes 8 neighbouring columns (16
 * bytes) of each group of 32: queries come straight from device memory and keys straight from
 * shared memory, without ldmatrix.
 *
 * Coarse rows are SUMS over their clusters, not means: sums of bf16 rows keep their relative
 * precision, adding is all that coarsening needs, and the counts go into the scores' factor and the
 * denominator. In f16 they are these sums divided by 2^level (HALVING in element.h).
 */
#ifndef HTI_HIER_TILE_H
#define HTI_HIER_TILE_H

#include "cuda/element.h"
#include "cuda/ptx.h"

namespace HTI_KERNELS {

/* ---- narrow rows ---- */

/* Rows of 4 or 8 columns (dim) run as rows of 16, the rest zero: in device memory they are narrow,
 * on chip and in towers they are not. Only D = 16 pays for asking. */

/* Chunk ch (8 columns) of a row. */
template <int D>
static __device__ __forceinline__ uint4 fetch_chunk(const element *row, int ch, int dim) {
    if (D > 16 || dim == 16) return __ldg((const uint4 *)(row + 8 * ch));
    if (ch > 0) return make_uint4(0, 0, 0, 0);
    if (dim == 8) return __ldg((const uint4 *)row);
    uint2 x = __ldg((const uint2 *)row);
    return make_uint4(x.x, x.y, 0, 0);
}

/* The same into shared memory; zeros where `there` is 0. safe: any valid row */
template <int D>
static __device__ __forceinline__ void copy_chunk(uint32_t to, const element *row,
                                                  const element *safe, int there, int ch, int dim) {
    if (D > 16 || dim == 16) {
        copy_async_if(to, there ? row + 8 * ch : safe, there);
    } else {
        there = there && ch == 0;
        row = there ? row : safe;
        copy8_async_if(to, row, there);
        copy8_async_if(to + 8, there && dim == 8 ? row + 4 : safe, there && dim == 8);
    }
}

/* ---- rows in shared memory ---- */

/* Rows of D bf16 without padding; 16-byte chunks are moved about inside a row so that neither the
 * reads by rows (lanes of a quarter warp take 4 chunks of two neighbouring rows) nor the transposed
 * reads by ldmatrix (8 rows, one chunk) meet in a bank. The turn repeats every 8 rows. */
template <int D> struct rows {
    static constexpr int CHUNKS = D / 8;

    static __device__ __forceinline__ int at(int row, int chunk) {
        int turn = D >= 64   ? (row & 1) << 2 | (row >> 1 & 3)
                   : D == 32 ? row >> 1 & 3
                             : row >> 2 & 1;
        return row * D + ((chunk ^ turn) << 3);
    }
};

/* A lane's places inside groups of rows, in bytes, worked out once: what is added to them are
 * multiples of 8 (key, val8) or 16 rows (pair, val), which leave the turn of the chunks as it is.
 */
template <int D> struct lanes {
    static constexpr int KEYS = D >= 32 ? D / 32 : 1;
    uint32_t key[KEYS];     /* row g, this lane's columns (dot8's order) */
    uint32_t pair[2][KEYS]; /* rows 2p and 2p + 1, p = pair_of(g) */
    uint32_t val[D / 16];   /* ldmatrix of 16 rows, two chunks */
    uint32_t val8[D / 16];  /* ldmatrix of 8 rows, two chunks */
};

/* The pair of rows that logical key n (0 ... 7) of a pair group stands for. */
static __device__ __forceinline__ int pair_of(int n) { return (n >> 1) + 4 * (n & 1); }

template <int D> static __device__ __forceinline__ void find_lanes(lanes<D> &l, int lane) {
    int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < lanes<D>::KEYS; i++) {
        int chunk = D == 16 ? t >> 1 : 4 * i + t, extra = D == 16 ? 4 * (t & 1) : 0;
        l.key[i] = 2 * (rows<D>::at(g, chunk) + extra);
        l.pair[0][i] = 2 * (rows<D>::at(2 * pair_of(g), chunk) + extra);
        l.pair[1][i] = 2 * (rows<D>::at(2 * pair_of(g) + 1, chunk) + extra);
    }
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        l.val[c] = 2 * rows<D>::at(lane & 15, 2 * c + (lane >> 4));
        l.val8[c] = 2 * rows<D>::at(lane & 7, 2 * c + (lane >> 3 & 1));
    }
}

/* A tile of 16 rows x D as the first factor of a product: four registers per 16 columns, in the
 * order in which the instruction wants them, so that no copies are needed. lo: row g, hi: row g
 * + 8. */
template <int D> struct frag {
    uint32_t a[D / 16][4];
    __device__ __forceinline__ uint32_t &lo(int i) { return a[i / 2][2 * (i % 2)]; }
    __device__ __forceinline__ uint32_t &hi(int i) { return a[i / 2][2 * (i % 2) + 1]; }
    __device__ __forceinline__ uint32_t &at(int h, int i) { return a[i / 2][2 * (i % 2) + h]; }
};

/* One row's share of this lane from memory: columns 8t ... 8t+7 of each 32 (D = 16: 4t ... 4t+3).
 */
template <int D>
static __device__ __forceinline__ void load_row(uint32_t out[D / 8], const element *row, int t,
                                                int there) {
    if constexpr (D == 16) {
        uint2 x = there ? __ldg((const uint2 *)(row + 4 * t)) : make_uint2(0, 0);
        out[0] = x.x, out[1] = x.y;
    } else {
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            uint4 x = there ? __ldg((const uint4 *)(row + 32 * i + 8 * t)) : make_uint4(0, 0, 0, 0);
            out[4 * i] = x.x, out[4 * i + 1] = x.y, out[4 * i + 2] = x.z, out[4 * i + 3] = x.w;
        }
    }
}

/* Into a fragment's places for good: x ^ zero, with a zero that the compiler cannot see. Without it
 * the compiler keeps what one wide load gave side by side and copies four registers together before
 * every product. */
template <int D>
static __device__ __forceinline__ void settle(frag<D> &out, int h, const uint32_t x[D / 8],
                                              uint32_t zero) {
#pragma unroll
    for (int i = 0; i < D / 8; i++) out.at(h, i) = x[i] ^ zero;
}

template <int D>
static __device__ __forceinline__ void load_row(frag<D> &out, int h, const element *row, int t,
                                                int there, uint32_t zero) {
    uint32_t x[D / 8];
    load_row<D>(x, row, t, there);
    settle<D>(out, h, x, zero);
}

/* The same share of a key row in shared memory: at = address of a group of rows, offset =
 * lanes.key. */
template <int D>
static __device__ __forceinline__ void load_key(uint32_t out[D / 8], uint32_t at,
                                                const uint32_t *offset) {
    if constexpr (D == 16) {
        uint2 x = shared_load2(at + offset[0]);
        out[0] = x.x, out[1] = x.y;
    } else {
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            uint4 x = shared_load4(at + offset[i]);
            out[4 * i] = x.x, out[4 * i + 1] = x.y, out[4 * i + 2] = x.z, out[4 * i + 3] = x.w;
        }
    }
}

template <int D>
static __device__ __forceinline__ void load_key(frag<D> &out, int h, uint32_t at,
                                                const uint32_t *offset, uint32_t zero) {
    uint32_t x[D / 8];
    load_key<D>(x, at, offset);
    settle<D>(out, h, x, zero);
}

/* c += tile (rows lo, hi) times the key row whose share each lane holds (lane g: key g) */
template <int D>
static __device__ __forceinline__ void dot8(float c[4], const frag<D> &q,
                                            const uint32_t key[D / 8]) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) mma16(c, q.a[i], key[2 * i], key[2 * i + 1]);
}

/* ---- a tile's softmax state ---- */

template <int D> struct state {
    float o[D / 8][4]; /* numerator: columns 8i + 2t, +1 of rows g and g + 8 */
    float m[2], l[2];  /* maximum (log2 units), and this lane's share of the denominator */
};

template <int D> static __device__ __forceinline__ void clear(state<D> &s) {
#pragma unroll
    for (int i = 0; i < D / 8; i++) s.o[i][0] = s.o[i][1] = s.o[i][2] = s.o[i][3] = 0;
    s.m[0] = s.m[1] = HTI_NEG_INF;
    s.l[0] = s.l[1] = 0;
}

/* Scores x (already multiplied out, -inf = not seen; x * factor + add is in log2 units) become
 * weights in place; the state is rescaled to the new maximum. */
template <int NT, int D>
static __device__ __forceinline__ void soften(float x[NT][4], state<D> &s, const float factor[2],
                                              float add = 0) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = HTI_NEG_INF;
#pragma unroll
        for (int n = 0; n < NT; n++) top = fmaxf(top, fmaxf(x[n][2 * h], x[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        float m = fmaxf(s.m[h], fmaf(top, factor[h], add));
        float base = m == HTI_NEG_INF ? 0 : m; /* nothing seen yet: all weights 0, not NaN */
        float keep = exp2_fast(s.m[h] - base);
        s.m[h] = m;
        s.l[h] *= keep;
#pragma unroll
        for (int i = 0; i < D / 8; i++) s.o[i][2 * h] *= keep, s.o[i][2 * h + 1] *= keep;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            x[n][2 * h] = exp2_fast(fmaf(x[n][2 * h], factor[h], add - base));
            x[n][2 * h + 1] = exp2_fast(fmaf(x[n][2 * h + 1], factor[h], add - base));
        }
    }
}

/* ---- values ---- */

/* o += P V: P's 2 groups of 8 keys against the 16 rows at `at`. */
template <int D>
static __device__ __forceinline__ void add_values(float o[D / 8][4], const float p0[4],
                                                  const float p1[4], uint32_t at,
                                                  const lanes<D> &l) {
    uint32_t a[4] = {pack2(p0[0], p0[1]), pack2(p0[2], p0[3]), pack2(p1[0], p1[1]),
                     pack2(p1[2], p1[3])};
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t b[4];
        matrix4_turned(b, at + l.val[c]);
        mma16(o[2 * c], a, b[0], b[1]);
        mma16(o[2 * c + 1], a, b[2], b[3]);
    }
}

/* One group of 8 keys. */
template <int D>
static __device__ __forceinline__ void add_values8(float o[D / 8][4], const float p[4], uint32_t at,
                                                   const lanes<D> &l) {
    uint32_t a0 = pack2(p[0], p[1]), a1 = pack2(p[2], p[3]);
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t b[2];
        matrix2_turned(b, at + l.val8[c]);
        mma8(o[2 * c], a0, a1, b[0]);
        mma8(o[2 * c + 1], a0, a1, b[1]);
    }
}

/* One level up, from the rows below: a coarse row is the sum of two, so its weight goes to both. p:
 * 8 coarse keys in the order of pair_of (logical key 2t = pair t, 2t+1 = pair 4 + t) against the 16
 * rows at `at`. */
template <int D>
static __device__ __forceinline__ void add_pairs8(float o[D / 8][4], const float p[4], uint32_t at,
                                                  const lanes<D> &l) {
    uint32_t a[4] = {pack2(p[0], p[0]), pack2(p[2], p[2]), pack2(p[1], p[1]), pack2(p[3], p[3])};
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t b[4];
        matrix4_turned(b, at + l.val[c]);
        mma16(o[2 * c], a, b[0], b[1]);
        mma16(o[2 * c + 1], a, b[2], b[3]);
    }
}

/* Scores one level up: the dot product with a sum of two rows, p = pair_of(g), of the 16 rows at
 * `at`. */
template <int D>
static __device__ __forceinline__ void dot_pair8(float c[4], const frag<D> &q, uint32_t at,
                                                 const lanes<D> &l) {
    uint32_t x[D / 8];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        load_key<D>(x, at, l.pair[i]);
        dot8<D>(c, q, x);
    }
}

static __device__ __forceinline__ uint4 join8(uint4 a, uint4 b) {
    return make_uint4(join2(a.x, b.x), join2(a.y, b.y), join2(a.z, b.z), join2(a.w, b.w));
}

/* ---- rows in and out ---- */

/* sum += 8 neighbouring columns of a row */
static __device__ __forceinline__ void add_chunk(float sum[8], uint4 x) {
    uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = unpack2(w[i]);
        sum[2 * i] += f.x, sum[2 * i + 1] += f.y;
    }
}

static __device__ __forceinline__ void add_row(float sum[8], const element *row) {
    add_chunk(sum, *(const uint4 *)row);
}

static __device__ __forceinline__ uint4 pack8(const float x[8]) {
    return make_uint4(pack2(x[0], x[1]), pack2(x[2], x[3]), pack2(x[4], x[5]), pack2(x[6], x[7]));
}

/* One row of a tile, D/8 pairs of columns per lane. Lanes exchange once, so that each writes 8
 * bytes and four of them a whole sector. */
template <int D>
static __device__ __forceinline__ void store_row(element *row, const uint32_t x[D / 8], int t,
                                                 int there, int dim = D) {
    int column = 8 * (t & 1) + 4 * (t >> 1);
    row += column;
    if (D == 16) there = there && column < dim;
    asm volatile("" : "+l"(row)); /* one address for all stores */
    uint2 out[D / 16];
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t other = __shfl_xor_sync(~0u, t & 1 ? x[2 * i] : x[2 * i + 1], 1);
        out[i] = t & 1 ? make_uint2(other, x[2 * i + 1]) : make_uint2(x[2 * i], other);
    }
    if (!there) return;
#pragma unroll
    for (int i = 0; i < D / 16; i++) *(uint2 *)(row + 16 * i) = out[i];
}

/* The warp's number, which the compiler then knows to be the same for all lanes. */
static __device__ __forceinline__ int warp_index() {
    return __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
}

} // namespace HTI_KERNELS

#endif
