/*
 * Backward of kind full from saved lse: scores are computed again, once by the thread block that
 * owns their queries (dq) and once by the one that owns their keys (dk, dv). That is 7 products
 * where 5 would do, but every sum has one owner and a fixed order: no atomics.
 *
 * With P = exp(s - lse), h = <dout, out> - dlse:
 *     ds = P (<dout, v> - h)    dq = scale ds K    dk = scale ds^T Q    dv = P^T dout
 * and the gradient of a bias is the sum of ds over its distance: see bias.h.
 */
#include "cuda/full/bias.h"
#include "cuda/full/tile.h"

namespace HTI_KERNELS {

/* Whose gradients a thread block sums up. */
enum { QUERY = 0, KEY = 1 };

enum { WARPS = 4, THREADS = 32 * WARPS };

template <int D, int ROLE> struct shape {
    static constexpr int PARTS = D <= (ROLE == QUERY ? 64 : 32) ? 2 : 1; /* of 16 rows per warp */
    static constexpr int OWN = 16 * PARTS, ROWS = OWN * WARPS;
    static constexpr uint32_t SIDE = TILE * 2 * D; /* bytes of the partners' k or q, v or dout */
    static constexpr uint32_t STAGE = 2 * SIDE + TILE * 8; /* ... and of their (m, h) */
};

/* ---- numbers of the rows ---- */

enum { SPAN = 128, SPAN_THREADS = 256 };

/* m = lse in log2 units (inf: takes no part) and h, [q_heads][rows]. */
static __device__ __forceinline__ float2 *numbers_of(const hti_hier_args &a, const place &p,
                                                     int head) {
    return (float2 *)a.th[0] + head * a.rows + p.start;
}

template <int D> __global__ void __launch_bounds__(SPAN_THREADS) full_rowdot(hti_hier_args a) {
    constexpr int CH = D / 8;
    static_assert(SPAN * CH % SPAN_THREADS == 0, "lanes stay together");
    place p;
    int head = blockIdx.y;
    if (!find_place(p, a, blockIdx.x, blockIdx.z, 0, SPAN)) return;
    const element *dz = (const element *)a.dout.data + tensor_base(a, a.dout, p, head);
    const element *z = (const element *)a.out.data + tensor_base(a, a.out, p, head);
    const float *dlse = (const float *)a.dlse.data, *lse = a.saved + head * a.rows + p.start;
    if (dlse) dlse += tensor_base(a, a.dlse, p, head);
    for (int i = threadIdx.x; i < SPAN * CH; i += SPAN_THREADS) {
        int row = p.first + i / CH, ch = i % CH, inside = row < p.length;
        float from = inside ? lse[row] : HTI_NEG_INF, dot = 0;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0}, y[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int live = from > HTI_NEG_INF;
        if (live) {
            add_row(x, dz + (int64_t)row * a.dout.row_stride + 8 * ch);
            add_row(y, z + (int64_t)row * a.out.row_stride + 8 * ch);
        }
#pragma unroll
        for (int c = 0; c < 8; c++) dot += x[c] * y[c];
#pragma unroll
        for (int step = 1; step < CH; step *= 2) dot += __shfl_xor_sync(~0u, dot, step);
        if (ch != 0 || !inside) continue;
        if (dlse && live) dot -= dlse[(int64_t)row * a.dlse.row_stride];
        numbers_of(a, p, head)[row] = make_float2(live ? from * HTI_LOG2E : HTI_POS_INF, dot);
    }
}

/* ---- a thread block's rows and their partners ---- */

/* x: the block's own rows, y: the partners. 1 is q or k, 2 is dout or v. */
struct sides {
    view x1, x2, y1, y2;
    const float2 *numbers;
};

template <int ROLE>
static __device__ __forceinline__ sides sides_of(const hti_hier_args &a, const place &p, int head) {
    view q = rows_of(a, p, a.q, nullptr, head), g = rows_of(a, p, a.dout, nullptr, head);
    view k = rows_of(a, p, a.k, a.key_mask, head), v = rows_of(a, p, a.v, a.key_mask, head);
    /* without masks every query sees a key */
    if (a.key_mask || a.query_mask) q.n = g.n = a.saved + head * a.rows + p.start;
    sides s = {ROLE == QUERY ? q : k, ROLE == QUERY ? g : v, ROLE == QUERY ? k : q,
               ROLE == QUERY ? v : g, numbers_of(a, p, head)};
    return s;
}

/* 64 partners from row `first` on; beyond the end all is zero, which adds nothing. */
template <int D, int ROLE>
static __device__ __forceinline__ void fetch_partners(uint32_t to, const sides &s, int first,
                                                      int length) {
    fetch_tile<D, THREADS>(to, s.y1, s.y2, first, length);
    if (ROLE == QUERY || threadIdx.x >= TILE) return;
    int row = first + (int)threadIdx.x, there = row < length;
    uint32_t at = to + 2 * shape<D, ROLE>::SIDE + 8 * threadIdx.x;
    copy8_async_if(at, s.numbers + (there ? row : 0), there);
}

/* A warp's 16 rows: operands, gradients, and their numbers as queries. */
template <int D, int ROLE> struct owned {
    frag<D> x1, x2;
    float m[2], h[2];            /* of rows g and g + 8; ROLE KEY: not used */
    float d[ROLE + 1][D / 8][4]; /* dq; dk and dv. dq and dk are still to be multiplied by scale */
    uint64_t seen[2];            /* partners of this tile that rows g and g + 8 meet, from 2t on */
};

template <int D, int ROLE>
static __device__ __forceinline__ void load_owned(owned<D, ROLE> &o, const hti_hier_args &a,
                                                  const place &p, const sides &s, int first, int g,
                                                  int t) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = first + 8 * h + g, there = is_there(s.x1, r, p.length);
        load_row<D>(o.x1, h, s.x1.data + (int64_t)r * s.x1.stride, t, there, a.zero);
        load_row<D>(o.x2, h, s.x2.data + (int64_t)r * s.x2.stride, t, there, a.zero);
        if (ROLE == KEY) continue;
        float2 n = r < p.length ? s.numbers[r] : make_float2(HTI_POS_INF, 0);
        o.m[h] = n.x, o.h[h] = n.y;
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
#pragma unroll
        for (int w = 0; w <= ROLE; w++)
            o.d[w][i][0] = o.d[w][i][1] = o.d[w][i][2] = o.d[w][i][3] = 0;
    }
}

/* ---- 16 partners ---- */

/* Weights and score gradients of 8 partners: products s and gv become P and ds. column: bit of the
 * first partner in `seen`; number: the partners' (m, h) in shared memory; ahead: of the first
 * partner before row g. */
template <int D, int ROLE, int BIAS>
static __device__ __forceinline__ void weigh(float s[4], float gv[4], const owned<D, ROLE> &o,
                                             float scale, int hides, int column, float4 number,
                                             const tilt &b, int ahead) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int h = e >> 1, odd = e & 1;
        float m = ROLE == QUERY ? o.m[h] : odd ? number.z : number.x;
        float less = ROLE == QUERY ? o.h[h] : odd ? number.w : number.y;
        int distance = ahead + odd - 8 * h;
        if (BIAS) m -= bias_at(b, ROLE == QUERY ? distance : -distance);
        float w = exp2_fast(fmaf(s[e], scale, -m));
        if (hides && !(o.seen[h] >> (column + odd) & 1)) w = 0;
        s[e] = w;
        gv[e] = w * (gv[e] - less);
    }
}

/* Gradient WHICH += weights of 16 partners times their rows at `at`. */
template <int WHICH, int D, int ROLE, int PARTS>
static __device__ __forceinline__ void gather16(owned<D, ROLE> o[PARTS], const float x[PARTS][2][4],
                                                uint32_t at, const lanes<D> &l) {
    uint32_t w[PARTS][4];
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = x[m][i >> 1] + 2 * (i & 1);
            w[m][i] = pack2(pair[0], pair[1]);
        }
    }
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t b[4];
        matrix4_turned(b, at + l.val[c]);
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            mma16(o[m].d[WHICH][2 * c], w[m], b[0], b[1]);
            mma16(o[m].d[WHICH][2 * c + 1], w[m], b[2], b[3]);
        }
    }
}

/* ahead: of the lane's first partner before the warp's row g. */
template <int D, int ROLE, int PARTS, int BIAS>
static __device__ __forceinline__ void
grad16(owned<D, ROLE> o[PARTS], uint32_t at, int column, uint32_t number, float scale, int hides,
       const lanes<D> &l, const tilt &bias, int ahead, bias_sums &sums) {
    constexpr uint32_t SIDE = shape<D, ROLE>::SIDE;
    float s[PARTS][2][4], gv[PARTS][2][4];
#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t y[D / 8];
        load_key<D>(y, at + 8 * b * 2 * D, l.key);
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            s[m][b][0] = s[m][b][1] = s[m][b][2] = s[m][b][3] = 0;
            dot8<D>(s[m][b], o[m].x1, y);
        }
        load_key<D>(y, at + SIDE + 8 * b * 2 * D, l.key);
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            gv[m][b][0] = gv[m][b][1] = gv[m][b][2] = gv[m][b][3] = 0;
            dot8<D>(gv[m][b], o[m].x2, y);
        }
        float4 n = make_float4(0, 0, 0, 0);
        if (ROLE == KEY) {
            uint4 x = shared_load4(number + 8 * b * 8);
            n = make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                            __uint_as_float(x.w));
        }
#pragma unroll
        for (int m = 0; m < PARTS; m++)
            weigh<D, ROLE, BIAS>(s[m][b], gv[m][b], o[m], scale, hides, column + 8 * b, n, bias,
                                 ahead + 8 * b - 16 * m);
    }
    if (BIAS && ROLE == QUERY && sums.table) {
#pragma unroll
        for (int m = 0; m < PARTS; m++) add_square(sums, gv[m], bias.flat, ahead - 16 * m);
    }
    gather16<0, D, ROLE, PARTS>(o, gv, at, l);
    if constexpr (ROLE == KEY) gather16<1, D, ROLE, PARTS>(o, s, at + SIDE, l);
}

/* ---- a tile of 64 partners ---- */

/* Which partners each row meets; returns 0 if it is all of them. Queries beyond the end and those
 * without a key are zero and need no bits, keys do: their weights might overflow, and with biases
 * those of queries beyond the end. */
template <int D, int ROLE, int PARTS, int BIAS>
static __device__ __forceinline__ int find_seen(owned<D, ROLE> o[PARTS], const hti_hier_args &a,
                                                const place &p, const sides &s, int own, int tile,
                                                int lane) {
    int g = lane >> 2, t = lane & 3;
    int partial = (ROLE == QUERY || BIAS) && (s.y1.mask || tile + TILE > p.length);
    int corner = a.causal && (ROLE == QUERY ? tile + TILE > own + 1 : tile < own + 16 * PARTS - 1);
    if (!partial && !corner) return 0;
    uint64_t live = partial ? live_rows(s.y1, tile, p.length, lane) : ~(uint64_t)0;
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int ahead = own + 16 * m + 8 * h + g - tile;
            uint64_t seen = live;
            if (a.causal) seen &= ROLE == QUERY ? past_keys(ahead) : ~past_keys(ahead - 1);
            o[m].seen[h] = seen >> (2 * t);
        }
    }
    return 1;
}

template <int D>
static __device__ __forceinline__ void
store_grad(const float x[D / 8][4], const hti_hier_args &a, const place &p, const ht_tensor &to,
           const view &own, float factor, int first, int head, int g, int t) {
    element *out = (element *)to.data + tensor_base(a, to, p, head);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = first + 8 * h + g, live = is_there(own, r, p.length);
        uint32_t y[D / 8];
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            y[i] = live ? pack2(x[i][2 * h] * factor, x[i][2 * h + 1] * factor) : 0;
        store_row<D>(out + (int64_t)r * to.row_stride, y, t, r < p.length);
    }
}

template <int D, int ROLE, int BIAS>
__global__ void __launch_bounds__(THREADS, 2) full_grad(full_args f) {
    const hti_hier_args &a = f.a;
    const bias_args &b = f.b;
    extern __shared__ __align__(128) char shared_bytes[]; /* two stages, biases, their sums */
    constexpr int PARTS = shape<D, ROLE>::PARTS, OWN = shape<D, ROLE>::OWN;
    constexpr int ROWS = shape<D, ROLE>::ROWS;
    constexpr uint32_t STAGE = shape<D, ROLE>::STAGE, SIDE = shape<D, ROLE>::SIDE;
    int lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, head = blockIdx.y;
    /* most work first: in causal calls the last queries, the first keys */
    int x = ROLE == QUERY ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    place p;
    if (!find_place(p, a, x, blockIdx.z, 0, ROWS)) return;
    sides s = sides_of<ROLE>(a, p, head);
    int begin = a.causal && ROLE == KEY ? p.first : 0;
    int end = a.causal && ROLE == QUERY ? min(p.length, p.first + ROWS) : p.length;
    uint32_t at = shared_address(shared_bytes);
    fetch_partners<D, ROLE>(at, s, begin, p.length);
    float *bias = (float *)(shared_bytes + 2 * STAGE);
    if (BIAS) load_bias<THREADS>(bias, b, head, a.q_heads, HTI_LOG2E);
    bias_sums sums = {};
    if (BIAS && ROLE == QUERY && b.part) sums = clear_sums<WARPS>(bias + 2 * b.reach + 1, b);

    int own = p.first + OWN * warp_index(), stage = 0;
    owned<D, ROLE> o[PARTS];
    lanes<D> l;
    find_lanes(l, lane);
#pragma unroll
    for (int m = 0; m < PARTS; m++) load_owned<D, ROLE>(o[m], a, p, s, own + 16 * m, g, t);
    for (int tile = begin; tile < end; tile += TILE, stage ^= 1) {
        copy_async_wait();
        __syncthreads(); /* this tile has arrived, and nobody reads the other stage any more */
        uint32_t here = at + stage * STAGE;
        if (tile + TILE < end)
            fetch_partners<D, ROLE>(at + (stage ^ 1) * STAGE, s, tile + TILE, p.length);
        if (own >= p.length) continue;
        if (a.causal && (ROLE == QUERY ? tile >= own + OWN : tile + TILE <= own)) continue;
        int hides = find_seen<D, ROLE, PARTS, BIAS>(o, a, p, s, own, tile, lane);
        int least = tile - own - OWN + 1, most = tile + TILE - 1 - own;
        tilt lean = {};
        if (BIAS)
            lean = ROLE == QUERY ? tilt_of(bias, b.reach, least, most)
                                 : tilt_of(bias, b.reach, -most, -least);
#pragma unroll
        for (int n = 0; n < TILE; n += 16)
            grad16<D, ROLE, PARTS, BIAS>(o, here + n * 2 * D, n, here + 2 * SIDE + 8 * (n + 2 * t),
                                         a.scale, hides, l, lean, tile + n + 2 * t - own - g, sums);
    }
    if (BIAS && ROLE == QUERY && b.part) store_sums<WARPS>(sums, bias + 2 * b.reach + 1, b, head);
    if (own >= p.length) return;
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
        store_grad<D>(o[m].d[0], a, p, ROLE == QUERY ? a.dq : a.dk, s.x1, a.scale / HTI_LOG2E,
                      own + 16 * m, head, g, t);
        if constexpr (ROLE == KEY)
            store_grad<D>(o[m].d[1], a, p, a.dv, s.x2, 1, own + 16 * m, head, g, t);
    }
}

/* ---- host ---- */

template <int D, int ROLE> static dim3 grid_for(const hti_hier_args &a) {
    return grid_of(a, 0, shape<D, ROLE>::ROWS, a.q_heads);
}

template <int D, int ROLE> static ht_status run_grad(ht_context *ctx, const full_args &f) {
    int sums = ROLE == QUERY && f.b.part;
    size_t floats = (size_t)entries_of(f.b) + (sums ? sums_size<WARPS>(f.b) : 0);
    return hti_cuda_launch(ctx, f.b.table ? full_grad<D, ROLE, 1> : full_grad<D, ROLE, 0>,
                           "full_grad", grid_for<D, ROLE>(f.a), THREADS,
                           2 * shape<D, ROLE>::STAGE + sizeof(float) * floats, f);
}

template <int D>
static ht_status run_backward(ht_context *ctx, const full_args &f, hti_cuda_args args) {
    dim3 grid = grid_for<D, QUERY>(f.a);
    args.bias_parts = (int)(grid.x * grid.z); /* layout_backward has room for them */
    TRY(hti_cuda_launch(ctx, full_rowdot<D>, "full_rowdot", grid_of(f.a, 0, SPAN, f.a.q_heads),
                        SPAN_THREADS, 0, f.a));
    TRY(hti_bias_sums_clear(ctx, args));
    TRY((run_grad<D, QUERY>(ctx, f)));
    TRY(hti_bias_sums_add(ctx, args));
    return run_grad<D, KEY>(ctx, f);
}

ht_status hti_full_backward(ht_context *ctx, const hti_attention_call *c,
                            const hti_cuda_args &args) {
    full_args f;
    hti_full_set(&f.a, c, args);
    f.a.dout = c->dout, f.a.dlse = c->dlse, f.a.dq = c->dq, f.a.dk = c->dk, f.a.dv = c->dv;
    f.b = biases_of(args);
    switch (c->desc->head_dim) {
    case 16: return run_backward<16>(ctx, f, args);
    case 32: return run_backward<32>(ctx, f, args);
    case 64: return run_backward<64>(ctx, f, args);
    default: return run_backward<128>(ctx, f, args);
    }
}

} // namespace HTI_KERNELS
