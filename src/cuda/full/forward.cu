/*
 * Forward of kind full: a thread block takes 128 queries of one head and walks over the keys, 64 at
 * a time. Keys and values of the next tile travel while this one is worked on; scores, weights and
 * the softmax state stay in registers. A warp owns 32 queries (head_dim 128: 16), so that what it
 * reads of keys and values from shared memory serves two products.
 */
#include "cuda/full/tile.h"

namespace HTI_KERNELS {

enum { QUERIES = 128 };

template <int D> struct shape {
    static constexpr int PARTS = D <= 64 ? 2 : 1; /* tiles of 16 queries per warp */
    static constexpr int OWN = 16 * PARTS, THREADS = QUERIES / OWN * 32;
    static constexpr uint32_t STAGE = 2 * TILE * 2 * D; /* bytes: keys, then values */
};

/* The scores of 64 keys; `at`: their place in shared memory. */
template <int D, int PARTS>
static __device__ __forceinline__ void score(float x[PARTS][8][4], const frag<D> q[PARTS],
                                             uint32_t at, const lanes<D> &l) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint32_t key[D / 8];
        load_key<D>(key, at + n * 8 * 2 * D, l.key);
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            x[m][n][0] = x[m][n][1] = x[m][n][2] = x[m][n][3] = 0;
            dot8<D>(x[m][n], q[m], key);
        }
    }
}

/* o += P V; the denominator takes the weights before they are rounded. */
template <int D, int PARTS>
static __device__ __forceinline__ void gather(state<D> s[PARTS], const float x[PARTS][8][4],
                                              uint32_t at, const lanes<D> &l) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t w[PARTS][4];
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            const float *p0 = x[m][2 * n], *p1 = x[m][2 * n + 1];
            s[m].l[0] += (p0[0] + p0[1]) + (p1[0] + p1[1]);
            s[m].l[1] += (p0[2] + p0[3]) + (p1[2] + p1[3]);
            w[m][0] = pack2(p0[0], p0[1]), w[m][1] = pack2(p0[2], p0[3]);
            w[m][2] = pack2(p1[0], p1[1]), w[m][3] = pack2(p1[2], p1[3]);
        }
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            uint32_t b[4];
            matrix4_turned(b, at + n * 16 * 2 * D + l.val[c]);
#pragma unroll
            for (int m = 0; m < PARTS; m++) {
                mma16(s[m].o[2 * c], w[m], b[0], b[1]);
                mma16(s[m].o[2 * c + 1], w[m], b[2], b[3]);
            }
        }
    }
}

/* Takes out the scores of keys that rows `row` + g and `row` + g + 8 do not see; live: the tile's
 * keys that take part. */
static __device__ __forceinline__ void hide(float x[8][4], uint64_t live, int row, int tile,
                                            int causal, int g, int t) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint64_t seen = live;
        if (causal) seen &= past_keys(row + g + 8 * h - tile);
        seen >>= 2 * t;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (!(seen >> (8 * n) & 1)) x[n][2 * h] = HTI_NEG_INF;
            if (!(seen >> (8 * n + 1) & 1)) x[n][2 * h + 1] = HTI_NEG_INF;
        }
    }
}

/* Adds the biases of a tile's keys, in units of the products. */
template <int PARTS>
static __device__ __forceinline__ void lean(float x[PARTS][8][4], const float *bias, int reach,
                                            int own, int tile, int g, int t) {
    tilt b = tilt_of(bias, reach, tile - own - 16 * PARTS + 1, tile + TILE - 1 - own);
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int n = i >> 2, h = i >> 1 & 1, odd = i & 1;
            x[m][n][i & 3] += bias_at(b, tile + 8 * n + 2 * t + odd - own - 16 * m - 8 * h - g);
        }
    }
}

/* 16 queries from `first` on. A row that saw nothing, and a masked one: 0 and -inf. */
template <int D>
static __device__ __forceinline__ void store_tile(const state<D> &s, const hti_hier_args &a,
                                                  const place &p, const view &q, int first,
                                                  int head, int g, int t) {
    element *out = (element *)a.out.data + tensor_base(a, a.out, p, head);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = s.l[h];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        int r = first + 8 * h + g, inside = r < p.length;
        int live = is_there(q, r, p.length) && l != 0;
        float inv = live ? 1 / l : 0;
        uint32_t x[D / 8];
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            x[i] = live ? pack2(s.o[i][2 * h] * inv, s.o[i][2 * h + 1] * inv) : 0;
        store_row<D>(out + (int64_t)r * a.out.row_stride, x, t, inside);
        if (!inside || t != 0) continue;
        float lse = live ? (s.m[h] + log2f(l)) * HTI_LN2 : HTI_NEG_INF;
        if (a.saved) a.saved[head * a.rows + p.start + r] = lse;
        if (a.lse.data)
            ((float *)a.lse.data)[tensor_base(a, a.lse, p, head) + (int64_t)r * a.lse.row_stride] =
                lse;
    }
}

template <int D, int BIAS>
__global__ void __launch_bounds__(shape<D>::THREADS, D <= 64 ? 2 : 1) full_attend(full_args f) {
    const hti_hier_args &a = f.a;
    const bias_args &b = f.b;
    extern __shared__ __align__(128) char shared_bytes[]; /* two stages, and biases */
    constexpr int PARTS = shape<D>::PARTS, OWN = shape<D>::OWN, THREADS = shape<D>::THREADS;
    constexpr uint32_t STAGE = shape<D>::STAGE;
    int lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, head = blockIdx.y;
    place p;
    /* backwards: in causal calls the last queries have the most to do */
    if (!find_place(p, a, gridDim.x - 1 - blockIdx.x, blockIdx.z, 0, QUERIES)) return;
    view q = rows_of(a, p, a.q, a.query_mask, head);
    view k = rows_of(a, p, a.k, a.key_mask, head / a.group);
    view v = rows_of(a, p, a.v, a.key_mask, head / a.group);
    int end = a.causal ? min(p.length, p.first + QUERIES) : p.length;
    uint32_t at = shared_address(shared_bytes);
    fetch_tile<D, THREADS>(at, k, v, 0, p.length);
    float *bias = (float *)(shared_bytes + 2 * STAGE);
    if (BIAS) load_bias<THREADS>(bias, b, head, a.q_heads, HTI_LOG2E / a.scale);

    int own = p.first + OWN * warp_index();
    frag<D> x[PARTS];
    state<D> s[PARTS];
    lanes<D> l;
    find_lanes(l, lane);
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
        clear(s[m]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = own + 16 * m + 8 * h + g;
            load_row<D>(x[m], h, q.data + (int64_t)r * q.stride, t, is_there(q, r, p.length),
                        a.zero);
        }
    }
    const float factor[2] = {a.scale, a.scale};
    for (int tile = 0; tile < end; tile += TILE) {
        copy_async_wait();
        __syncthreads(); /* this tile has arrived, and nobody reads the other stage any more */
        uint32_t here = at + (tile / TILE & 1) * STAGE;
        if (tile + TILE < end)
            fetch_tile<D, THREADS>(at + (~(tile / TILE) & 1) * STAGE, k, v, tile + TILE, p.length);
        if (own >= p.length || (a.causal && tile >= own + OWN)) continue;
        float w[PARTS][8][4];
        score<D, PARTS>(w, x, here, l);
        if (BIAS) lean<PARTS>(w, bias, b.reach, own, tile, g, t);
        if (k.mask || tile + TILE > p.length || (a.causal && tile + TILE > own + 1)) {
            uint64_t live = live_rows(k, tile, p.length, lane);
#pragma unroll
            for (int m = 0; m < PARTS; m++) hide(w[m], live, own + 16 * m, tile, a.causal, g, t);
        }
#pragma unroll
        for (int m = 0; m < PARTS; m++) soften<8, D>(w[m], s[m], factor);
        gather<D, PARTS>(s, w, here + TILE * 2 * D, l);
    }
    if (own >= p.length) return;
#pragma unroll
    for (int m = 0; m < PARTS; m++) store_tile<D>(s[m], a, p, q, own + 16 * m, head, g, t);
}

/* ---- host ---- */

void hti_full_set(hti_hier_args *out, const hti_attention_call *c, const hti_cuda_args &args) {
    hti_hier_set(out, c);
    out->cu = args.cu;
    out->saved = args.saved;
    out->th[0] = args.h;
}

template <int D> static ht_status run_forward(ht_context *ctx, const full_args &f) {
    size_t shared = 2 * shape<D>::STAGE + sizeof(float) * (size_t)entries_of(f.b);
    return hti_cuda_launch(ctx, f.b.table ? full_attend<D, 1> : full_attend<D, 0>, "full_attend",
                           grid_of(f.a, 0, QUERIES, f.a.q_heads), shape<D>::THREADS, shared, f);
}

ht_status hti_full_forward(ht_context *ctx, const hti_attention_call *c,
                           const hti_cuda_args &args) {
    full_args f;
    hti_full_set(&f.a, c, args);
    f.b = biases_of(args);
    switch (c->desc->head_dim) {
    case 16: return run_forward<16>(ctx, f);
    case 32: return run_forward<32>(ctx, f);
    case 64: return run_forward<64>(ctx, f);
    default: return run_forward<128>(ctx, f);
    }
}

} // namespace HTI_KERNELS
