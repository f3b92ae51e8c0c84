/*
 * Wide tiles, the side of the queries: forward and dq. A thread block owns 128 queries, 64 for each
 * of its two warpgroups, and walks over the keys of all levels, 64 at a time, while the next ones
 * are on their way; forward brings two steps at a time, so that warpgroups wait for each other less
 * often. Sums stay in flight: the last product of a step ends beside the first of the next.
 */
#include "cuda/tile_grad.h"
#include "cuda/tile_wide.h"

extern __shared__ float4 hti_shared[];

/* Shared memory: own rows (queries, with GRAD dout, turned queries), steps, the list. dq has more
 * in registers, so that three smaller thread blocks fit where forward has two. */
template <bool GRAD> struct wide_shape {
    static constexpr int TEAMS = GRAD ? 1 : 2, THREADS = 128 * TEAMS, QUERIES = WIDE_ROWS * TEAMS;
    static constexpr int BLOCKS = GRAD ? 3 : 2, STAGES = GRAD ? 3 : 4, AHEAD = STAGES - 2;
    static constexpr uint32_t OWN = TEAMS * WIDE_TILE, TURNED = (GRAD ? 2 : 1) * OWN,
                              STEPS = TURNED + OWN, LIST = STEPS + STAGES * 2 * WIDE_TILE;
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
        const bf16 *from = s.x + (there ? row : 0) * s.xs + 8 * ch;
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
        store_row<WIDE_D>(tensor_row<bf16>(a.out, a, p, head, r), x, c, inside);
        if (!inside || c != 0) continue;
        float lse = (s.m[h] + log2f(sum)) * HTI_LN2;
        if (a.saved) a.saved[head * a.rows + p.start + r] = lse;
        if (a.lse.data) *tensor_row<float>(a.lse, a, p, head, r) = lse;
    }
}

/* One step of this warpgroup: queries at q (with GRAD dout at q + OWN in dout), keys at k. */
template <bool GRAD>
DEVICE void wide_step(wide_state &s, const hti_tile_args &t, const sighted &sight, uint32_t q,
                      uint32_t dout, uint32_t k, int level, int first, int row, int length) {
    float x[8][4], gv[8][4];
    uint32_t w[4][4];
    products_begin();
    multiply(x, q, k);
    if (GRAD) multiply(gv, dout, k + WIDE_TILE);
    products_commit();
    products_wait(); /* those of the step before, too */
    pin(x), pin(s.o);
    if (GRAD) pin(gv);
    if (sight.partial()) cut_scores(x, t, sight, level, first, row);
    if (sight.ragged()) trim_last(x, t, level, first, length);
    if (GRAD)
        grad_wide(x, gv, s.m, s.l, t.scale2, (float)level);
    else
        soften_wide(x, s, t.scale2, (float)level);
    pack_weights(w, x);
    pin(s.o);
    products_begin();
    gather(s.o, w, GRAD ? k : k + WIDE_TILE);
    products_commit();
}
#endif

template <bool GRAD>
static __global__ void __launch_bounds__(wide_shape<GRAD>::THREADS, wide_shape<GRAD>::BLOCKS)
    wide_queries(const __grid_constant__ hti_tile_args t) {
#if HTI_WIDE
    using shape = wide_shape<GRAD>;
    const hti_cuda_args &a = t.a;
    uint32_t base = align_shared(hti_shared);
    char *shared = (char *)hti_shared + (base - shared_address(hti_shared));
    wide_keys *list = (wide_keys *)(shared + shape::LIST) + 1;
    int head = (int)(blockIdx.x % a.q_heads), warp = warp_index(), team = warp / 4;
    place p;
    if (!find_tile(&p, t, 0, shape::QUERIES, blockIdx.x / (unsigned)a.q_heads)) return;
    side rows = query_side(t, p, head, 0, false);
    turning<shape::QUERIES, shape::THREADS> turned;
    if (a.turn) begin_turning(turned, t, p, rows);
    if (warp == 0) {
        int count = list_steps(list, t, p, shape::QUERIES, levels_at(t, p));
        if (lane_id() == 0) list[-1].left = count;
    }
    __syncthreads();
    int steps = list[-1].left;
    fill_steps(list, steps, t, p, head / a.group, shape::TEAMS);
    __syncthreads();
    auto place_of = [&](int step) {
        return base + shape::STEPS + step % shape::STAGES * 2 * WIDE_TILE;
    };
    auto bring = [&](int step) {
        if (step < steps) bring_keys<shape::THREADS>(place_of(step), list[step]);
        copies_commit();
    };
    auto bring_own = [&](uint32_t to, const bf16 *from, int64_t stride) {
        bring_rows<shape::QUERIES, shape::THREADS>(base + to, from + p.first * stride, (int)stride,
                                                   p.length - p.first);
    };
    if (!a.turn) bring_own(0, rows.x, rows.xs);
    if (GRAD) bring_own(shape::OWN, rows.y, rows.ys);
    for (int i = 0; i < shape::AHEAD; i++) bring(i);
    if (a.turn) end_turning(base, base + shape::TURNED, turned);

    int own = p.first + GROUP * warp, row = own + lane_id() / 4;
    uint32_t unturned = base + team * WIDE_TILE, dout = unturned + shape::OWN;
    uint32_t q = a.turn ? unturned + shape::TURNED : unturned;
    wide_state s;
    set_zero(s.o);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.m[h] = HTI_NEG_INF, s.l[h] = 0;
        if (!GRAD) continue;
        float2 n = make_float2(HTI_POS_INF, 0); /* m and h of a query */
        if (row + 8 * h < p.length) n = t.numbers[head * a.rows + p.start + row + 8 * h];
        s.m[h] = n.x, s.l[h] = n.y;
    }
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
        int level = list[step].level, k = list[step].first;
        if (q != unturned && level > 0) {
            q = unturned; /* coarse levels take the query unturned */
            products_wait(), pin(s.o);
            if (GRAD) turn_back<WIDE_D>(s.o, t, p, own);
        }
        sighted sight = {list[step].sight[team]};
        if (!sight.word)
            products_wait(), pin(s.o);
        else
            wide_step<GRAD>(s, t, sight, q, dout, place_of(step), level, k, row, p.length);
    }
    products_wait();
    pin(s.o);
    if (own >= p.length) return;
    if (GRAD) {
        if (q != unturned) turn_back<WIDE_D>(s.o, t, p, own);
        store_grad<WIDE_D>(a.dq, s.o, a.scale, NULL, t, p, head, own);
    } else {
        store_wide(s, t, p, head, own);
    }
#endif
}

/* ---- host ---- */

int hti_wide_takes(const ht_context *ctx, const hti_tile_args &t) {
    const hti_cuda_args &a = t.a;
    return hti_cuda_of(ctx)->built_for >= 90 && a.head_dim == WIDE_D && a.block % WIDE_ROWS == 0 &&
           a.query == HT_QUERY_FINE && is_plain(a) && a.scale > 0;
}

template <bool GRAD>
static ht_status launch(const ht_context *ctx, const hti_tile_args &t, const char *name) {
    using shape = wide_shape<GRAD>;
    size_t shared = 1024 + shape::LIST + sizeof(wide_keys) * (size_t)(1 + wide_steps(t));
    int64_t work = tiles_of(t.a, 0, shape::QUERIES) * t.a.q_heads;
    return hti_cuda_launch(ctx, wide_queries<GRAD>, name, dim3((unsigned)work), shape::THREADS,
                           shared, t);
}

ht_status hti_wide_forward(const ht_context *ctx, const hti_tile_args &t) {
    return launch<false>(ctx, t, "running the wide kernel");
}

ht_status hti_wide_dq(const ht_context *ctx, const hti_tile_args &t) {
    return launch<true>(ctx, t, "running the wide kernel for dq");
}
