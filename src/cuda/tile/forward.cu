/*
 * Forward of the tile kernels. Query fine and kind local: a tile of 64 rows walks over all levels
 * it sees. mean and first: one launch over the coarse levels leaves every coarse query's output
 * and lse, and the launch over level 0 merges what the clusters above a row left.
 */
#include "cuda/tile/wide.h"

namespace HTI_KERNELS {

extern __shared__ float4 hti_shared[];

template <int D> struct forward_memory {
    char *steps;           /* two steps */
    query_shared *queries; /* and the list of groups behind it */
    group *list;
    int bytes;
};

template <int D> HTI_FN forward_memory<D> forward_layout(char *base, int most_groups) {
    forward_memory<D> m;
    int used = 2 * (int)step_shape<D>::BYTES;
    m.steps = base;
    m.queries = (query_shared *)(base + used), used += (int)sizeof(query_shared);
    m.list = (group *)(base + used), used += (int)sizeof(group) * most_groups;
    m.bytes = used;
    return m;
}

/* Scores of one group, log2 units; -inf: not seen. x: 2 x 8 keys */
template <int D, bool PLAIN>
DEVICE void score_group(float (*x)[4], const hti_tile_args &t, const walker &w, const frag<D> &q,
                        uint32_t at, const float *weights, uint32_t word, unsigned bits,
                        const lanes<D> &l) {
    int g = lane_id() >> 2, c = lane_id() & 3, level = word_level(word), k = word_first(word);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t key[D / 8];
        load_key<D>(key, at + 8 * b * 2 * D, l.key);
        x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
        dot8<D>(x[b], q, key);
        float2 n = *(const float2 *)(weights + 8 * b + 2 * c);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float add = e & 1 ? n.y : n.x;
            if (!PLAIN && w.bias) {
                int row = w.own + 8 * (e >> 1) + g;
                add += w.bias[k + 8 * b + 2 * c + (e & 1) - (w.grouped ? row : row >> level)];
            }
            x[b][e] = fmaf(x[b][e], t.scale2, add);
        }
    }
    if (bits != 15) hide<false>(x, bits, HTI_NEG_INF);
    if (t.a.causal && level == 0 && k + GROUP > w.own) hide_later<false>(x, w.own - k, HTI_NEG_INF);
}

/* A step's scores become weights in place, the state is rescaled to the new maximum. */
template <int D> DEVICE void soften_step(float x[2 * STEP][4], state<D> &s, unsigned seen) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = HTI_NEG_INF, sum = 0;
#pragma unroll
        for (int n = 0; n < 2 * STEP; n++)
            if (seen >> (4 * (n / 2)) & 15) top = fmaxf(top, fmaxf(x[n][2 * h], x[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
        float m = fmaxf(s.m[h], top), base = m == HTI_NEG_INF ? 0 : m;
        float fade = exp2_fast(s.m[h] - base);
        s.m[h] = m;
#pragma unroll
        for (int n = 0; n < 2 * STEP; n++) {
            if (!(seen >> (4 * (n / 2)) & 15)) continue;
            x[n][2 * h] = exp2_fast(x[n][2 * h] - base);
            x[n][2 * h + 1] = exp2_fast(x[n][2 * h + 1] - base);
            sum += x[n][2 * h] + x[n][2 * h + 1];
        }
        s.l[h] = s.l[h] * fade + sum;
#pragma unroll
        for (int i = 0; i < D / 8; i++) s.o[i][2 * h] *= fade, s.o[i][2 * h + 1] *= fade;
    }
}

/* One step in shared memory at `at`. */
template <int D, bool PLAIN>
DEVICE void attend_step(state<D> &s, const hti_tile_args &t, const walker &w, const frag<D> &q,
                        uint32_t at, const float *weights, const group *groups, unsigned seen,
                        const lanes<D> &l) {
    float x[2 * STEP][4];
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        unsigned bits = seen >> (4 * i) & 15;
        if (bits)
            score_group<D, PLAIN>(x + 2 * i, t, w, q, at + i * GROUP * 2 * D, weights + i * GROUP,
                                  groups[i].word, bits, l);
    }
    soften_step<D>(x, s, seen);
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        if (!(seen >> (4 * i) & 15)) continue;
        if (!PLAIN && t.a.threshold) {
            unsigned keeps = keeps_of_rows(t, w.drop, word_level(groups[i].word), w.own,
                                           word_first(groups[i].word));
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[2 * i + e / 4][e % 4] = keeps >> e & 1 ? x[2 * i + e / 4][e % 4] * t.a.keep : 0;
        }
        add_values<D>(s.o, x[2 * i], x[2 * i + 1], at + step_shape<D>::SIDE + i * GROUP * 2 * D, l);
    }
}

/* ---- what the levels above left ---- */

/* (m, l, o) of row h += an output z (columns 8i + 2t, +1) with its lse */
template <int D, typename Z> DEVICE void merge_row(state<D> &s, int h, float lse, Z z) {
    float m = fmaxf(s.m[h], lse), base = m == HTI_NEG_INF ? 0 : m;
    float fade = exp2_fast(s.m[h] - base), add = exp2_fast(lse - base);
    s.m[h] = m;
    s.l[h] = s.l[h] * fade + ((lane_id() & 3) == 0 ? add : 0); /* l is a lane's share */
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        float2 x = z(i);
        s.o[i][2 * h] = s.o[i][2 * h] * fade + x.x * add;
        s.o[i][2 * h + 1] = s.o[i][2 * h + 1] * fade + x.y * add;
    }
}

/* Level 1, and level 2 with all that came down to it. */
template <int D>
DEVICE void merge_levels(state<D> &s, const hti_tile_args &t, const place &p, int head, int own) {
    int g = lane_id() >> 2, c = lane_id() & 3, last = min(levels_at(t, p) - 1, 2);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = min(own + 8 * h + g, p.length - 1);
        for (int level = last; level >= 1; level--) {
            int64_t at = head * t.a.clusters + cluster_at(t, p, level) + (row >> level);
            const element *z = t.zb + at * D + 2 * c;
            merge_row<D>(s, h, t.zl[at],
                         [&](int i) { return unpack2(*(const uint32_t *)(z + 8 * i)); });
        }
    }
}

/* ---- results ---- */

/* Rows own + g, own + g + 8: out and lse, or those of coarse queries. */
template <int D>
DEVICE void store_state(const state<D> &s, const hti_tile_args &t, const place &p, int head,
                        int level, int own) {
    const hti_cuda_args &a = t.a;
    int g = lane_id() >> 2, c = lane_id() & 3;
    int count = (int)hti_clusters(p.length, level);
    int64_t coarse = level ? head * a.clusters + cluster_at(t, p, level) : 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = s.l[h];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        int r = own + 8 * h + g, inside = r < count;
        bool seen = sum != 0 && (level > 0 || takes_part(a.query_mask, p, r));
        float inverse = seen ? 1 / sum : 0;
        uint32_t x[D / 8];
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            x[i] = seen ? pack2(s.o[i][2 * h] * inverse, s.o[i][2 * h + 1] * inverse) : 0;
        element *to = level ? t.zb + (coarse + r) * D : tensor_row<element>(a.out, a, p, head, r);
        store_row<D>(to, x, c, inside);
        if (!inside || c != 0) continue;
        float lse = seen ? s.m[h] + log2f(sum) : HTI_NEG_INF;
        if (level) {
            t.zl[coarse + r] = lse;
            continue;
        }
        if (a.saved) a.saved[head * a.rows + p.start + r] = lse * HTI_LN2;
        if (a.lse.data) *tensor_row<float>(a.lse, a, p, head, r) = lse * HTI_LN2;
    }
}

/* ---- the kernel ---- */

template <int D, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, D <= 64 ? 4 : 2)
    tile_attend(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    forward_memory<D> m = forward_layout<D>((char *)hti_shared, t.most_groups);
    int head = (int)(blockIdx.x % a.q_heads);
    int64_t tile = blockIdx.x / a.q_heads;
    int level = a.coarse ? find_level(a, &tile) : 0;
    place p;
    if (!find_tile(&p, t, level, TILE_ROWS, (unsigned)tile)) return;
    int levels = levels_at(t, p), own = p.first + GROUP * warp_id();
    bool turned = a.turn && level == 0;
    side queries = query_side(t, p, head, level, turned);
    frag<D> q;
    load_own<D>(q, queries, true, own, t.zero); /* on their way while the list is made */
    open_list<PLAIN>(m.queries, m.list, t, p, head / a.group, level, levels);
    int steps = m.queries->steps;
    auto fetch = [&](int step) {
        fetch_step<D, PLAIN>(m.steps + (step & 1) * step_shape<D>::BYTES, t, m.queries,
                             m.list + STEP * step);
    };
    if (steps > 0) fetch(0);

    walker w = {own, a.coarse != 0, bias_of(t, head), dropout_of(t, p, head)};
    state<D> s;
    lanes<D> l;
    find_lanes(l, lane_id());
    clear(s);
    for (int step = 0; step < steps; step++) {
        copy_async_wait();
        __syncthreads(); /* this step has arrived, and nobody reads the other one any more */
        if (step + 1 < steps) fetch(step + 1);
        const group *groups = m.list + STEP * step;
        unsigned seen = step_sight(groups);
        const char *here = m.steps + (step & 1) * step_shape<D>::BYTES;
        if (turned && word_level(groups[0].word) > 0) { /* coarse levels take the query unturned */
            turned = false;
            queries = query_side(t, p, head, 0, false);
            load_own<D>(q, queries, true, own, t.zero);
        }
        if (seen)
            attend_step<D, PLAIN>(s, t, w, q, shared_address(here),
                                  (const float *)(here + 2 * step_shape<D>::SIDE), groups, seen, l);
    }
    if (own >= queries.count) return;
    if (!a.coarse && !is_fine(t) && levels > 1) merge_levels<D>(s, t, p, head, own);
    store_state<D>(s, t, p, head, level, own);
}

/* ---- launching ---- */

template <int D> static ht_status launch(const ht_context *ctx, hti_tile_args t) {
    size_t shared = (size_t)forward_layout<D>(NULL, t.most_groups).bytes;
    hti_cuda_args &a = t.a;
    void (*kernel)(hti_tile_args) = is_plain(a) ? tile_attend<D, true> : tile_attend<D, false>;
    if (a.levels > 1 && a.query != HT_QUERY_FINE) {
        a.coarse = 1, a.work = 0;
        for (int l = 1; l < a.levels; l++) a.work += a.level_work[l] = tiles_of(a, l, TILE_ROWS);
        a.work *= a.q_heads;
        TRY(hti_cuda_launch(ctx, kernel, "running the tile kernel for coarse queries",
                            dim3((unsigned)a.work), THREADS, shared, t));
        TRY(hti_tile_lower_outputs(ctx, t));
    }
    a.coarse = 0, a.work = tiles_of(a, 0, TILE_ROWS) * a.q_heads;
    return hti_cuda_launch(ctx, kernel, "running the tile kernel", dim3((unsigned)a.work), THREADS,
                           shared, t);
}

ht_status hti_tile_run_forward(const ht_context *ctx, hti_tile_args t) {
    if (hti_wide_takes(ctx, t)) return hti_wide_forward(ctx, t);
    switch (t.a.head_dim) {
    case 16: return launch<16>(ctx, t);
    case 32: return launch<32>(ctx, t);
    case 64: return launch<64>(ctx, t);
    default: return launch<128>(ctx, t);
    }
}

} // namespace HTI_KERNELS
