/*
 * Wide tiles, the side of the queries: forward and dq. A thread block owns 128 queries, 64 for each
 * of its two warpgroups, and walks over the keys of all levels, 64 at a time, while the next ones
 * are on their way; forward brings two steps at a time, so that warpgroups wait for each other less
 * often. Sums stay in flight: the last product of a step ends beside the first of the next.
 */
#include "cuda/tile/grad.h"
#include "cuda/tile/wide_bias.h"

namespace HTI_KERNELS {

extern __shared__ float4 hti_shared[];

/* Shared memory: own rows (queries, with GRAD dout, turned queries), keys and values of some steps,
 * the list, then biases and sums of their gradients. dq has more in registers, so that three
 * smaller thread blocks fit where forward has two; a step's values are done with before its keys.
 */
template <bool GRAD> struct wide_shape {
    static constexpr int TEAMS = GRAD ? 1 : 2, THREADS = 128 * TEAMS, QUERIES = WIDE_ROWS * TEAMS;
    static constexpr int BLOCKS = GRAD ? 3 : 2, STAGES = GRAD ? 3 : 4, VALUE_STAGES = GRAD ? 2 : 4;
    static constexpr int AHEAD = STAGES - 2;
    static constexpr uint32_t OWN = TEAMS * WIDE_TILE, TURNED = (GRAD ? 2 : 1) * OWN,
                              KEYS = TURNED + OWN, VALUES = KEYS + STAGES * WIDE_TILE,
                              LIST = VALUES + VALUE_STAGES * WIDE_TILE;

    HTI_FN uint32_t keys_at(uint32_t base, int step) {
        return base + KEYS + (uint32_t)(step % STAGES) * (GRAD ? 1 : 2) * WIDE_TILE;
    }
    HTI_FN uint32_t values_at(uint32_t base, int step) {
        if (!GRAD) return keys_at(base, step) + WIDE_TILE;
        return base + VALUES + (uint32_t)(step % VALUE_STAGES) * WIDE_TILE;
    }
    HTI_FN uint32_t bias_at(const hti_cuda_args &a) {
        return (LIST + (uint32_t)sizeof(wide_keys) * (uint32_t)(1 + wide_steps(a)) + 15) & ~15u;
    }
    HTI_FN uint32_t sums_at(const hti_cuda_args &a) {
        return bias_at(a) + 8 * (uint32_t)bias_stride(a);
    }
    HTI_FN uint32_t bytes(const hti_cuda_args &a) { /* 1024: to begin at a multiple of it */
        if (!a.bias) return 1024 + bias_at(a);
        return 1024 + sums_at(a) + (GRAD && a.dbias ? 16 * (uint32_t)sums_size(a) : 0);
    }
};

#if HTI_WIDE

/* A lane's two rows of 64 queries. */
struct wide_state {
    float o[8][4]; /* numerator, or dq */
    float m[2], l[2];
};

/* Scores become weights: x * scale + level is in log2 units. The state is rescaled only where its
 * maximum falls behind by a factor of 256, which floats hold easily. */
DEVICE void soften_wide(float x[8][4], wide_state &s, float scale, float level) {
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = HTI_NEG_INF;
#pragma unroll
        for (int n = 0; n < 8; n++) most = fmaxf(most, fmaxf(x[n][2 * h], x[n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        top[h] = fmaf(most, scale, level);
    }
    keep_up(s, top);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float less = level - (s.m[h] == HTI_NEG_INF ? 0 : s.m[h]), sum[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 8; n++) {
            x[n][2 * h] = exp2_fast(fmaf(x[n][2 * h], scale, less));
            x[n][2 * h + 1] = exp2_fast(fmaf(x[n][2 * h + 1], scale, less));
            sum[0] += x[n][2 * h], sum[1] += x[n][2 * h + 1];
        }
        s.l[h] += sum[0] + sum[1];
    }
}

/* x: scores, gv: <dout, v>; x becomes their gradient. */
DEVICE void grad_wide(float x[8][4], const float gv[8][4], const float m[2], const float h[2],
                      float scale, float level) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] = exp2_fast(fmaf(x[n][e], scale, level - m[e >> 1])) * (gv[n][e] - h[e >> 1]);
    }
}

/* Queries of the tile as they are, and turned: a thread has some chunks of the first half of rows
 * and their partners, on their way while the steps are listed. */
template <int ROWS, int ALL> struct turning {
    static constexpr int COUNT = ROWS * 4 / ALL;
    uint4 x[COUNT], y[COUNT];
    float4 turn[COUNT][4]; /* cosine and sine of two columns */
};

template <int ROWS, int ALL>
DEVICE void begin_turning(turning<ROWS, ALL> &q, const hti_tile_args &t, const place &p,
                          const side &s) {
    int ch = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < q.COUNT; i++) {
        int row = p.first + (int)threadIdx.x / 4 + i * (ALL / 4);
        bool there = row < p.length;
        const element *from = s.x + (there ? row : 0) * s.xs + 8 * ch;
        const float4 *turn =
            (const float4 *)(t.a.turn + (int64_t)(there ? row : 0) * WIDE_D + 16 * ch);
        q.x[i] = *(const uint4 *)from, q.y[i] = *(const uint4 *)(from + WIDE_D / 2);
#pragma unroll
        for (int c = 0; c < 4; c++) q.turn[i][c] = turn[c];
        if (!there) q.x[i] = q.y[i] = make_uint4(0, 0, 0, 0);
    }
}

template <int ROWS, int ALL>
DEVICE void end_turning(uint32_t to, uint32_t turned, const turning<ROWS, ALL> &q) {
    int ch = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < q.COUNT; i++) {
        int r = (int)threadIdx.x / 4 + i * (ALL / 4);
        float lo[8] = {0, 0, 0, 0, 0, 0, 0, 0}, hi[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        add_chunk(lo, q.x[i]), add_chunk(hi, q.y[i]);
#pragma unroll
        for (int c = 0; c < 8; c += 2) {
            float4 w = q.turn[i][c / 2];
            float lo0 = lo[c], lo1 = lo[c + 1];
            lo[c] = lo0 * w.x - hi[c] * w.y, hi[c] = hi[c] * w.x + lo0 * w.y;
            lo[c + 1] = lo1 * w.z - hi[c + 1] * w.w, hi[c + 1] = hi[c + 1] * w.z + lo1 * w.w;
        }
        uint32_t at = (uint32_t)(r * 128 + ((ch ^ (r & 7)) << 4)); /* chunk ch + 4: bit 6 flips */
        shared_store4(to + at, q.x[i]), shared_store4(to + (at ^ 64), q.y[i]);
        shared_store4(turned + at, pack8(lo)), shared_store4(turned + (at ^ 64), pack8(hi));
    }
}

/* What remains of a tile: results of this warp's 16 rows. */
DEVICE void store_wide(wide_state &s, const hti_tile_args &t, const place &p, int head, int own) {
    const hti_cuda_args &a = t.a;
    int g = lane_id() >> 2, c = lane_id() & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = s.l[h];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        int r = own + 8 * h + g, inside = r < p.length;
        float inverse = sum != 0 ? 1 / sum : 0;
        uint32_t x[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = pack2(s.o[i][2 * h] * inverse, s.o[i][2 * h + 1] * inverse);
        store_row<WIDE_D>(tensor_row<element>(a.out, a, p, head, r), x, c, inside);
        if (!inside || c != 0) continue;
        float lse = (s.m[h] + log2f(sum)) * HTI_LN2;
        if (a.saved) a.saved[head * a.rows + p.start + r] = lse;
        if (a.lse.data) *tensor_row<float>(a.lse, a, p, head, r) = lse;
    }
}

/* What a tile needs to know; addresses are in shared memory. */
struct wide_tile {
    place p;
    int head, warp;
    int own, row;               /* this warp's first query, this lane's first */
    uint32_t q, unturned, dout; /* this warpgroup's queries (turned at level 0) and dout */
    uint32_t bias;              /* both copies of the table */
    float *sums;                /* this warp's table of the bias gradient, or NULL */
};

/* One step of this warpgroup, with keys at k, values at v. */
template <bool GRAD, bool BIAS>
DEVICE void wide_step(wide_state &s, const hti_tile_args &t, const wide_tile &o,
                      const sighted &sight, uint32_t k, uint32_t v, int level, int first) {
    float x[8][4], gv[8][4];
    uint32_t w[4][4];
    if (BIAS) load_bias(x, t, o.bias, level, first, o.row);
    products_begin();
    multiply<BIAS>(x, o.q, k);
    if (GRAD) multiply(gv, o.dout, v);
    products_commit();
    products_wait(); /* those of the step before, too */
    pin(x), pin(s.o);
    if (GRAD) pin(gv);
    if (sight.partial()) cut_scores(x, t, sight, level, first, o.row);
    if (sight.ragged()) trim_last(x, t, level, first, o.p.length);
    if (GRAD)
        grad_wide(x, gv, s.m, s.l, t.scale2, (float)level);
    else
        soften_wide(x, s, t.scale2, (float)level);
    pack_weights(w, x);
    pin(s.o);
    products_begin();
    gather(s.o, w, GRAD ? k : v);
    products_commit();
    if (GRAD && BIAS && o.sums) sum_step(o.sums, x, t, level, first, o.own);
}

/* m and h of a lane's queries, or a softmax that has seen nothing. */
template <bool GRAD>
DEVICE void open_state(wide_state &s, const hti_tile_args &t, const wide_tile &o) {
    set_zero(s.o);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.m[h] = HTI_NEG_INF, s.l[h] = 0;
        if (!GRAD) continue;
        float2 n = make_float2(HTI_POS_INF, 0);
        int row = o.row + 8 * h;
        if (row < o.p.length) n = t.numbers[o.head * t.a.rows + o.p.start + row];
        s.m[h] = n.x, s.l[h] = n.y;
    }
}

/* All steps of a tile; the first ones are on their way. bring: keys and values of a step */
template <bool GRAD, bool BIAS, typename Bring>
DEVICE void walk_steps(wide_state &s, const hti_tile_args &t, wide_tile &o, const wide_keys *list,
                       int steps, uint32_t base, Bring bring) {
    using shape = wide_shape<GRAD>;
    for (int step = 0; step < steps; step++) {
        if (GRAD) {
            copies_wait<shape::AHEAD - 1>();
            __syncthreads(); /* the step has arrived, and that of two before it is done with */
            bring(step + shape::AHEAD);
        } else if (step % 2 == 0) {
            copies_wait<0>();
            products_wait(), pin(s.o);
            __syncthreads(); /* two steps have arrived, and the two before them are done with */
            bring(step + 2), bring(step + 3);
        }
        int level = list[step].level, first = list[step].first;
        if (o.q != o.unturned && level > 0) {
            o.q = o.unturned; /* coarse levels take the query unturned */
            products_wait(), pin(s.o);
            if (GRAD) turn_back<WIDE_D>(s.o, t, o.p, o.own);
        }
        sighted sight = {list[step].sight[o.warp / 4]};
        if (!sight.word)
            products_wait(), pin(s.o);
        else
            wide_step<GRAD, BIAS>(s, t, o, sight, shape::keys_at(base, step),
                                  shape::values_at(base, step), level, first);
    }
    products_wait();
    pin(s.o);
}

/* A tile of queries, from the list of its steps to its results. */
template <bool GRAD, bool BIAS>
DEVICE void attend_tile(const hti_tile_args &t, wide_tile &o, uint32_t base, char *shared) {
    using shape = wide_shape<GRAD>;
    const hti_cuda_args &a = t.a;
    const place &p = o.p;
    wide_keys *list = (wide_keys *)(shared + shape::LIST) + 1;
    side rows = query_side(t, p, o.head, 0, false);
    turning<shape::QUERIES, shape::THREADS> turned;
    if (a.turn) begin_turning(turned, t, p, rows);
    if (o.warp == 0) {
        int count = list_steps(list, t, p, shape::QUERIES, levels_at(t, p));
        if (lane_id() == 0) list[-1].left = count;
    }
    __syncthreads();
    int steps = list[-1].left;
    fill_steps(list, steps, t, p, o.head / a.group, shape::TEAMS);
    __syncthreads();
    auto bring = [&](int step) {
        if (step < steps) {
            const wide_keys &from = list[step];
            bring_rows<WIDE_ROWS, shape::THREADS>(shape::keys_at(base, step), from.x, from.xs,
                                                  from.left);
            bring_rows<WIDE_ROWS, shape::THREADS>(shape::values_at(base, step), from.y, from.ys,
                                                  from.left);
        }
        copies_commit();
    };
    auto bring_own = [&](uint32_t to, const element *from, int64_t stride) {
        bring_rows<shape::QUERIES, shape::THREADS>(base + to, from + p.first * stride, (int)stride,
                                                   p.length - p.first);
    };
    if (!a.turn) bring_own(0, rows.x, rows.xs);
    if (GRAD) bring_own(shape::OWN, rows.y, rows.ys);
    for (int i = 0; i < shape::AHEAD; i++) bring(i);
    if (a.turn) end_turning(base, base + shape::TURNED, turned);

    o.own = p.first + GROUP * o.warp, o.row = o.own + lane_id() / 4;
    o.unturned = base + o.warp / 4 * WIDE_TILE, o.dout = o.unturned + shape::OWN;
    o.q = a.turn ? o.unturned + shape::TURNED : o.unturned;
    wide_state s;
    open_state<GRAD>(s, t, o);
    walk_steps<GRAD, BIAS>(s, t, o, list, steps, base, bring);
    if (o.own >= p.length) return;
    if (GRAD) {
        if (o.q != o.unturned) turn_back<WIDE_D>(s.o, t, p, o.own);
        store_grad<WIDE_D>(a.dq, s.o, a.scale, NULL, t, p, o.head, o.own);
    } else {
        store_wide(s, t, p, o.head, o.own);
    }
}
#endif

/* With a bias gradient a thread block stays with its head for several tiles. */
template <bool GRAD, bool BIAS>
static __global__ void __launch_bounds__(wide_shape<GRAD>::THREADS, wide_shape<GRAD>::BLOCKS)
    wide_queries(const __grid_constant__ hti_tile_args t) {
#if HTI_WIDE
    using shape = wide_shape<GRAD>;
    const hti_cuda_args &a = t.a;
    uint32_t base = align_shared(hti_shared);
    char *shared = (char *)hti_shared + (base - shared_address(hti_shared));
    wide_tile o;
    o.head = (int)(blockIdx.x % (unsigned)a.q_heads), o.warp = warp_index(), o.sums = NULL;
    o.bias = base + shape::bias_at(a);
    if (BIAS) fill_bias((float *)(shared + shape::bias_at(a)), t, o.head, shape::THREADS);
    if constexpr (!GRAD || !BIAS) {
        if (!find_tile(&o.p, t, 0, shape::QUERIES, blockIdx.x / (unsigned)a.q_heads)) return;
        attend_tile<GRAD, BIAS>(t, o, base, shared);
        return;
    }
    float *sums = (float *)(shared + shape::sums_at(a));
    for (int i = (int)threadIdx.x; a.dbias && i < 4 * sums_size(a); i += shape::THREADS)
        sums[i] = 0;
    if (a.dbias) o.sums = sums + o.warp * sums_size(a) + SUMS_BEFORE;
    for (unsigned work = blockIdx.x; work < a.work; work += gridDim.x) {
        __syncthreads(); /* the last tile is done with */
        if (find_tile(&o.p, t, 0, shape::QUERIES, work / (unsigned)a.q_heads))
            attend_tile<GRAD, BIAS>(t, o, base, shared);
    }
    if (a.dbias) store_bias_sums(sums, t, 4);
#endif
}

/* ---- host ---- */

int hti_wide_takes(const ht_context *ctx, const hti_tile_args &t) {
    const hti_cuda_args &a = t.a;
    return hti_cuda_of(ctx)->warpgroups && a.head_dim == WIDE_D && a.block % WIDE_ROWS == 0 &&
           a.query == HT_QUERY_FINE && !a.threshold && !a.key_mask && !a.query_mask && a.scale > 0;
}

/* As many as run at a time: each works on tiles and leaves one table. A multiprocessor has 228 KiB
 * of shared memory, of which a thread block takes one more than it asks for. */
int hti_wide_bias_parts(const ht_context *ctx, const hti_cuda_args &a) {
    using shape = wide_shape<true>;
    int fit = (int)((228 << 10) / (shape::bytes(a) + 1024)), blocks = min(fit, shape::BLOCKS);
    int parts = max(blocks * hti_cuda_of(ctx)->processors / a.q_heads, 1);
    return min(parts, a.bias_parts);
}

template <bool GRAD>
static ht_status launch(const ht_context *ctx, hti_tile_args t, const char *name) {
    using shape = wide_shape<GRAD>;
    hti_cuda_args &a = t.a;
    a.work = tiles_of(a, 0, shape::QUERIES) * a.q_heads;
    int64_t blocks = GRAD && a.dbias ? (int64_t)a.bias_parts * a.q_heads : a.work;
    void (*kernel)(hti_tile_args) = a.bias ? wide_queries<GRAD, true> : wide_queries<GRAD, false>;
    return hti_cuda_launch(ctx, kernel, name, dim3((unsigned)blocks), shape::THREADS,
                           shape::bytes(a), t);
}

ht_status hti_wide_forward(const ht_context *ctx, const hti_tile_args &t) {
    return launch<false>(ctx, t, "running the wide kernel");
}

ht_status hti_wide_dq(const ht_context *ctx, const hti_tile_args &t) {
    return launch<true>(ctx, t, "running the wide kernel for dq");
}

} // namespace HTI_KERNELS
