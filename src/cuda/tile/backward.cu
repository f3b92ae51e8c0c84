/*
 * Backward of the tile kernels: dq by the thread blocks that own queries, the same walk as in
 * forward. dk and dv are in backward_keys.cu.
 *
 *     P = exp2(s - m)     ds = P (r <G, v> - h)     dq += ds K     dbias += ds
 *
 * with r the dropout factor and (m, h, G) of the query: lse, <dout, out> - dlse and dout of a row,
 * or their restriction to a coarse query. The bias gradient: a thread block stays with its head
 * and adds up tables of its warps, and a last kernel adds the blocks' tables in order.
 */
#include "cuda/tile/grad.h"
#include "cuda/tile/wide.h"

namespace HTI_KERNELS {

extern __shared__ float4 hti_shared[];

enum { LINE = GROUP + 1 }; /* floats from row to row of ds in shared memory */

template <int D> struct query_memory {
    char *steps; /* two steps */
    query_shared *queries;
    group *list;
    float *ds;     /* with dbias: [WARPS][GROUP][LINE] */
    float *tables; /* with dbias: [WARPS][4 * block] sums of ds by distance */
    int bytes;
};

template <int D>
HTI_FN query_memory<D> query_layout(char *base, int most_groups, int block, bool dbias) {
    query_memory<D> m;
    int used = 2 * (int)step_shape<D>::BYTES;
    m.steps = base;
    m.queries = (query_shared *)(base + used), used += (int)sizeof(query_shared);
    m.list = (group *)(base + used), used += (int)sizeof(group) * most_groups;
    m.ds = dbias ? (float *)(base + used) : NULL, used += dbias ? 4 * WARPS * GROUP * LINE : 0;
    m.tables = (float *)(base + used), used += dbias ? 4 * WARPS * 4 * block : 0;
    m.bytes = used;
    return m;
}

/* A warp's 16 queries: operands, gradient, numbers. */
template <int D> struct query_rows {
    frag<D> q, g;
    float dq[D / 8][4]; /* still to be multiplied by scale */
    float m[2], h[2];
};

/* Adds a group's ds to the warp's table, by distance, where the rows are of one cluster: sums of
 * columns. */
DEVICE void add_bias_columns(float *table, const float x[2][4], float unit) {
    int lane = lane_id();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int b = i >> 1, odd = i & 1;
        float sum = x[b][odd] + x[b][2 + odd];
        for (int o = 4; o < 32; o *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
        if (lane < 4) table[8 * b + 2 * lane + odd] += unit * sum;
    }
}

/* The same for rows of several clusters: a lane sums one distance over the rows. */
DEVICE void add_bias(float *table, float *ds, const float x[2][4], const hti_tile_args &t,
                     const walker &w, int level, int k) {
    int lane = lane_id(), g = lane >> 2, c = lane & 3, shift = w.grouped ? 0 : level;
    int first = w.own >> shift, last = (w.own + GROUP - 1) >> shift;
    int lowest = k - last, count = GROUP + last - first;
    float unit = w.grouped ? coarse_unit(t, level) : 1;
    table += lowest + 2 * t.a.block - 1;
    if (first == last) {
        add_bias_columns(table, x, unit);
        return;
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 8; e++)
        ds[(g + 8 * (e >> 1 & 1)) * LINE + 8 * (e >> 2) + 2 * c + (e & 1)] = x[e >> 2][e & 3];
    __syncwarp();
    if (lane >= count) return;
    float sum = 0;
    for (int r = 0; r < GROUP; r++) {
        int j = ((w.own + r) >> shift) + lowest + lane - k;
        if (j >= 0 && j < GROUP) sum += ds[r * LINE + j];
    }
    table[lane] += unit * sum;
}

/* One group of keys in shared memory at `at`. */
template <int D, bool PLAIN>
DEVICE void grad_group(query_rows<D> &o, float *table, float *ds, const hti_tile_args &t,
                       const walker &w, uint32_t at, const float *weights, uint32_t word,
                       unsigned bits, const lanes<D> &l) {
    int g = lane_id() >> 2, c = lane_id() & 3, level = word_level(word), k = word_first(word);
    unsigned keeps = !PLAIN && t.a.threshold ? keeps_of_rows(t, w.drop, level, w.own, k) : 0;
    float x[2][4], gv[2][4];
#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t key[D / 8];
        load_key<D>(key, at + 8 * b * 2 * D, l.key);
        x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
        dot8<D>(x[b], o.q, key);
        load_key<D>(key, at + step_shape<D>::SIDE + 8 * b * 2 * D, l.key);
        gv[b][0] = gv[b][1] = gv[b][2] = gv[b][3] = 0;
        dot8<D>(gv[b], o.g, key);
        float2 n = *(const float2 *)(weights + 8 * b + 2 * c);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int h = e >> 1;
            float add = e & 1 ? n.y : n.x, into = gv[b][e];
            if (!PLAIN && w.bias) {
                int row = w.own + 8 * h + g;
                add += w.bias[k + 8 * b + 2 * c + (e & 1) - (w.grouped ? row : row >> level)];
            }
            if (!PLAIN && t.a.threshold) into = keeps >> (4 * b + e) & 1 ? into * t.a.keep : 0;
            x[b][e] = exp2_fast(fmaf(x[b][e], t.scale2, add) - o.m[h]) * (into - o.h[h]);
        }
    }
    if (bits != 15) hide<false>(x, bits, 0);
    if (t.a.causal && level == 0 && k + GROUP > w.own) hide_later<false>(x, w.own - k, 0);
    if (!PLAIN && table) add_bias(table, ds, x, t, w, level, k);
    add_values<D>(o.dq, x[0], x[1], at, l);
}

/* What coarse queries got: a mean gives it to all its rows, query first to one. */
template <int D>
DEVICE void add_coarse(float x[D / 8][4], const hti_tile_args &t, const place &p, int head,
                       int own) {
    const hti_cuda_args &a = t.a;
    const float *counts = a.query_mask ? a.qn : NULL;
    if (a.query == HT_QUERY_MEAN)
        add_levels<D>(x, a.dqt, t, p, head, own, [&](int level, int64_t at, int row) {
            return mean_share(counts, p, level, at, row);
        });
    if (a.query == HT_QUERY_FIRST)
        add_levels<D>(x, a.dqt, t, p, head, own, [&](int level, int64_t at, int row) {
            return first_row(a, p, level, at, row >> level) == row ? 1.0f : 0.0f;
        });
}

/* A warp's queries are on their way, no gradient yet. */
template <int D>
DEVICE void open_rows(query_rows<D> &o, const hti_tile_args &t, const side &queries, int own) {
#pragma unroll
    for (int i = 0; i < D / 8; i++) o.dq[i][0] = o.dq[i][1] = o.dq[i][2] = o.dq[i][3] = 0;
    load_own<D>(o.q, queries, true, own, t.zero);
    load_own<D>(o.g, queries, false, own, t.zero);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = own + 8 * h + (lane_id() >> 2);
        float2 n = r < queries.count ? queries.numbers[r] : make_float2(HTI_POS_INF, 0);
        o.m[h] = n.x, o.h[h] = n.y;
    }
}

/* The walk of one tile; everything that all its warps do together. */
template <int D, bool PLAIN>
DEVICE void walk_queries(query_rows<D> &o, const hti_tile_args &t, const query_memory<D> &m,
                         const place &p, int head, int level, int own) {
    const hti_cuda_args &a = t.a;
    int steps = m.queries->steps;
    auto fetch = [&](int step) {
        fetch_step<D, PLAIN>(m.steps + (step & 1) * step_shape<D>::BYTES, t, m.queries,
                             m.list + STEP * step);
    };
    if (steps > 0) fetch(0);
    bool turned = a.turn && level == 0;
    walker w = {own, a.coarse != 0, bias_of(t, head), dropout_of(t, p, head)};
    if (!PLAIN) open_rows(o, t, query_side(t, p, head, level, turned), own);
    lanes<D> l;
    find_lanes(l, lane_id());
    float *ds = m.ds ? m.ds + warp_id() * GROUP * LINE : NULL;
    float *table = m.ds ? m.tables + warp_id() * 4 * a.block : NULL;
    for (int step = 0; step < steps; step++) {
        copy_async_wait();
        __syncthreads(); /* this step has arrived, and nobody reads the other one any more */
        if (step + 1 < steps) fetch(step + 1);
        const group *groups = m.list + STEP * step;
        unsigned seen = step_sight(groups);
        const char *here = m.steps + (step & 1) * step_shape<D>::BYTES;
        if (turned && word_level(groups[0].word) > 0) {
            turned = false;
            turn_back<D>(o.dq, t, p, own);
            side queries = query_side(t, p, head, 0, false);
            load_own<D>(o.q, queries, true, own, t.zero);
        }
        for (int i = 0; seen >> (4 * i); i++) {
            unsigned bits = seen >> (4 * i) & 15;
            if (bits)
                grad_group<D, PLAIN>(o, table, ds, t, w, shared_address(here) + i * GROUP * 2 * D,
                                     (const float *)(here + 2 * step_shape<D>::SIDE) + i * GROUP,
                                     groups[i].word, bits, l);
        }
    }
    if (turned) turn_back<D>(o.dq, t, p, own);
}

template <int D, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, D <= 64 ? 4 : 2)
    tile_dq(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    query_memory<D> m =
        query_layout<D>((char *)hti_shared, t.most_groups, a.block, !PLAIN && a.dbias);
    int head = (int)(blockIdx.x % a.q_heads); /* the grid is a multiple of q_heads */
    for (int i = (int)threadIdx.x; m.ds && i < WARPS * 4 * a.block; i += THREADS) m.tables[i] = 0;
    for (int64_t work = blockIdx.x; work < a.work; work += gridDim.x) {
        int64_t tile = work / a.q_heads;
        int level = a.coarse ? find_level(a, &tile) : 0;
        place p;
        if (!find_tile(&p, t, level, TILE_ROWS, (unsigned)tile)) continue;
        int levels = levels_at(t, p), own = p.first + GROUP * warp_id();
        query_rows<D> o;
        /* while the list is made; others have too few registers */
        if (PLAIN) open_rows(o, t, query_side(t, p, head, level, a.turn && level == 0), own);
        open_list<PLAIN>(m.queries, m.list, t, p, head / a.group, level, levels);
        walk_queries<D, PLAIN>(o, t, m, p, head, level, own);
        if (a.coarse) {
            int64_t at = cluster_at(t, p, level) + own;
            store_sums<D>(a.dqt + (head * a.clusters + at) * D, o.dq,
                          (int)hti_clusters(p.length, level) - own, coarse_unit(t, level));
            continue;
        }
        if (own >= p.length) continue;
        add_coarse<D>(o.dq, t, p, head, own);
        store_grad<D>(a.dq, o.dq, a.scale, a.query_mask, t, p, head, own);
    }
    if (!m.ds) return;
    __syncthreads();
    float *out = a.bias_part + (int64_t)blockIdx.x * (4 * a.block - 1);
    for (int i = (int)threadIdx.x; i < 4 * a.block - 1; i += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += m.tables[w * 4 * a.block + i];
        out[i] += sum;
    }
}

/* ---- launching ---- */

template <int D> static ht_status launch(const ht_context *ctx, hti_tile_args t, int coarse) {
    hti_cuda_args &a = t.a;
    size_t shared = (size_t)query_layout<D>(NULL, t.most_groups, a.block, a.dbias != NULL).bytes;
    a.coarse = coarse, a.work = 0;
    for (int l = coarse; l < (coarse ? a.levels : 1); l++)
        a.work += a.level_work[l] = tiles_of(a, l, TILE_ROWS);
    a.work *= a.q_heads;
    dim3 grid((unsigned)(a.dbias ? (int64_t)a.bias_parts * a.q_heads : a.work));
    void (*kernel)(hti_tile_args) = is_plain(a) ? tile_dq<D, true> : tile_dq<D, false>;
    return hti_cuda_launch(ctx, kernel, "running the tile kernel for dq", grid, THREADS, shared, t);
}

static ht_status launch_dq(const ht_context *ctx, const hti_tile_args &t, int coarse) {
    if (hti_wide_takes(ctx, t)) return hti_wide_dq(ctx, t);
    switch (t.a.head_dim) {
    case 16: return launch<16>(ctx, t, coarse);
    case 32: return launch<32>(ctx, t, coarse);
    case 64: return launch<64>(ctx, t, coarse);
    default: return launch<128>(ctx, t, coarse);
    }
}

ht_status hti_tile_run_backward(const ht_context *ctx, hti_tile_args t) {
    hti_cuda_args &a = t.a;
    if (a.dbias && hti_wide_takes(ctx, t)) a.bias_parts = hti_wide_bias_parts(ctx, a);
    TRY(hti_bias_sums_clear(ctx, a));
    if (a.levels > 1) {
        int grouped = a.query != HT_QUERY_FINE;
        TRY(hti_tile_run_keys(ctx, t, 1));
        if (grouped) TRY(launch_dq(ctx, t, 1));
        TRY(hti_tile_lower_grads(ctx, t, grouped));
    }
    TRY(hti_tile_run_keys(ctx, t, 0));
    TRY(launch_dq(ctx, t, 0));
    return hti_bias_sums_add(ctx, a);
}

} // namespace HTI_KERNELS
