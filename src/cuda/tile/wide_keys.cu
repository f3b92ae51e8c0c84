/*
 * Wide tiles, the side of the keys: dk and dv. A thread block is one warpgroup and owns 64 keys of
 * a level; the queries that see them come 64 rows at a time, in every head of the group. See
 * backward_keys.cu for what is summed up, and for chunks.
 */
#include "cuda/tile/keys.h"
#include "cuda/tile/wide_bias.h"

namespace HTI_KERNELS {

extern __shared__ float4 hti_shared[];

enum { STAGES = 3, TEAM = 128 };

/* Queries of one head. */
struct wide_head {
    const element *x, *y; /* q and dout */
    const float2 *numbers;
    int xs, ys;
};

/* 64 queries; bit w: warp w sees them. */
struct wide_rows {
    int first;
    uint32_t seen;
};

/* Shared memory: own keys and values, steps, the list of steps, the heads. In the end what came
 * down from coarse levels takes the place of the first two: 62 rows of dk and of dv, padded. */
enum : uint32_t { STEPS_AT = 2 * WIDE_TILE, MOST_STEPS = 64, LINE = WIDE_D * 4 + 32 };
template <bool BIAS> struct key_shape {
    static constexpr uint32_t BIAS_AT = 2 * WIDE_TILE + 512; /* q, dout, (m, h), biases */
    static constexpr uint32_t STEP_ROOM = 2 * WIDE_TILE + (BIAS ? 2048 : 1024);
    static constexpr uint32_t LIST_AT = STEPS_AT + STAGES * STEP_ROOM;
    static constexpr uint32_t HEADS_AT = LIST_AT + MOST_STEPS * sizeof(wide_rows) + 16;
};

#if HTI_WIDE

DEVICE void fill_heads(wide_head *list, const hti_tile_args &t, const place &p, int kv_head,
                       int level) {
    for (int i = (int)threadIdx.x; i < t.a.group; i += TEAM) {
        side s = query_side(t, p, kv_head * t.a.group + i, level, t.a.turn && level == 0);
        list[i] = {s.x, s.y, s.numbers, (int)s.xs, (int)s.ys};
    }
}

/* By the first warp: the steps that any warp sees. Returns how many. */
DEVICE int list_rows(wide_rows *list, const hti_tile_args &t, const key_rows<WIDE_D> &o,
                     const ranges &r) {
    int n0 = (r.hi0 - r.lo0 + 3) / 4, per = n0 + (r.hi1 - r.lo1 + 3) / 4, count = 0;
    for (int at = 0; at < per; at += 32) {
        int i = at + lane_id(), first = GROUP * (i < n0 ? r.lo0 + 4 * i : r.lo1 + 4 * (i - n0));
        int c = first >> o.shift;
        uint32_t seen = 0;
        for (int w = 0; w < 4 && i < per; w++)
            seen |= (sight(t, o.level, c, c, o.own + GROUP * w) ? 1u : 0u) << w;
        uint32_t all = __ballot_sync(ALL_LANES, seen != 0);
        if (seen) list[count + __popc(all & ((1u << lane_id()) - 1))] = {first, seen};
        count += __popc(all);
    }
    return count;
}

/* 64 queries from `first` on. */
DEVICE void bring_queries(uint32_t to, const wide_head &h, int first, int length) {
    int left = length - first, r = (int)threadIdx.x;
    bring_rows<WIDE_ROWS, TEAM>(to, h.x + (int64_t)first * h.xs, h.xs, left);
    bring_rows<WIDE_ROWS, TEAM>(to + WIDE_TILE, h.y + (int64_t)first * h.ys, h.ys, left);
    if (r < WIDE_ROWS)
        copy8_async_if(to + 2 * WIDE_TILE + 8 * r, h.numbers + (r < left ? first + r : 0),
                       r < left);
}

/* Biases of a step's 64 queries and this thread block's keys; entry i is that of distance 63 - i
 * from the first key to the first query's cluster. Neighbour queries make pairs: at level 0 as in
 * wide_bias.h, above that they are of one cluster, and entries lie there twice. */
enum { WINDOW = 2 * WIDE_ROWS, WINDOW_STRIDE = WINDOW + 16 }; /* floats */

DEVICE void bring_bias(uint32_t to, const hti_tile_args &t, const float *bias, int level,
                       int distance) {
    int i = (int)threadIdx.x, most = 2 * t.a.block - 1;
    const float *from = bias + max(min(distance + WIDE_ROWS - 1 - i, most), -most);
    if (level == 0) {
        copy4_async(to + 4 * i, from);
        if (i > 0) copy4_async(to + 4 * (WINDOW_STRIDE + i - 1), from);
    } else if (i < WINDOW - WIDE_ROWS / 2) {
        copy4_async(to + 8 * i, from), copy4_async(to + 8 * i + 4, from);
    }
}

/* x = biases of this lane's keys, row and row + 8 of 64, and the step's queries. */
DEVICE void load_window(float x[8][4], uint32_t window, int level, int row) {
    int c = 2 * (lane_id() & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int entry = WIDE_ROWS - 1 - row - 8 * h;
        if (level == 0) {
            load_line(x, h, window, 4 * WINDOW_STRIDE, entry + c);
            continue;
        }
        uint32_t at = window + 8 * (uint32_t)(entry + (c >> level));
#pragma unroll
        for (int n = 0; n < 8; n++) {
            uint2 y = shared_load2(at + 8 * (uint32_t)(8 * n >> level));
            x[n][2 * h] = __uint_as_float(y.x), x[n][2 * h + 1] = __uint_as_float(y.y);
        }
    }
}

/* Products s and <v, dout> of this lane's two keys and 64 queries become P and ds; numbers: the
 * queries' (m, h). */
DEVICE void weigh_queries(float x[8][4], float gv[8][4], const float weight[2], uint32_t numbers,
                          float scale) {
    numbers += 16 * (lane_id() & 3);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint4 raw = shared_load4(numbers + 64 * n);
        float m[2] = {__uint_as_float(raw.x), __uint_as_float(raw.z)};
        float less[2] = {__uint_as_float(raw.y), __uint_as_float(raw.w)};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            x[n][e] = exp2_fast(fmaf(x[n][e], scale, weight[e >> 1] - m[e & 1]));
            gv[n][e] = x[n][e] * (gv[n][e] - less[e & 1]);
        }
    }
}

/* Scores of queries before their keys. ahead: this lane's first key less the first query */
DEVICE void hide_before(float x[8][4], int ahead) {
    ahead -= 2 * (lane_id() & 3);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] = ahead + 8 * (e >> 1) > 8 * n + (e & 1) ? HTI_NEG_INF : x[n][e];
    }
}

/* One step in shared memory at q. ahead: as above; hides: whether that matters */
template <bool BIAS>
DEVICE void grad_step(key_rows<WIDE_D> &o, float scale, uint32_t base, uint32_t q, bool seen,
                      bool hides, int ahead) {
    float x[8][4], gv[8][4];
    uint32_t w[4][4], ds[4][4];
    if (BIAS)
        load_window(x, q + key_shape<true>::BIAS_AT, o.level, GROUP * warp_index() + lane_id() / 4);
    products_begin();
    multiply<BIAS>(x, base, q);
    multiply(gv, base + WIDE_TILE, q + WIDE_TILE);
    products_commit();
    products_wait();
    pin(x), pin(gv);
    if (hides) hide_before(x, ahead);
    weigh_queries(x, gv, o.weight, q + 2 * WIDE_TILE, scale);
    if (!seen) set_zero(x), set_zero(gv);
    pack_weights(w, x), pack_weights(ds, gv);
    products_begin();
    gather(o.dv, w, q + WIDE_TILE);
    gather(o.dk, ds, q);
    products_commit();
    products_wait(); /* registers are too few for more at a time */
    pin(o.dk), pin(o.dv);
}

/* The walk over all queries of all heads of the group. ahead: this lane's first key, of level 0 */
template <bool BIAS>
DEVICE void walk_wide(key_rows<WIDE_D> &o, const hti_tile_args &t, uint32_t base,
                      const wide_head *heads, const wide_rows *list, int per, int length,
                      int q_head) {
    int steps = per * t.a.group, head = 0, at = 0; /* of the step to be brought */
    bool diagonal = t.a.causal && o.level == 0;
    auto place_of = [&](int step) {
        return base + STEPS_AT + step % STAGES * key_shape<BIAS>::STEP_ROOM;
    };
    auto bring = [&](int step) {
        if (step < steps) {
            int first = list[at].first;
            bring_queries(place_of(step), heads[head], first, length);
            if (BIAS)
                bring_bias(place_of(step) + key_shape<BIAS>::BIAS_AT, t, bias_of(t, q_head + head),
                           o.level, o.own - GROUP * warp_index() - (first >> o.level));
        }
        if (++at == per) at = 0, head++;
        copies_commit();
    };
    bring(0), bring(1);
    for (int step = 0, now = 0; step < steps; step++) {
        copies_wait<1>();
        __syncthreads(); /* the step has arrived, and the one before it is done with */
        bring(step + 2);
        wide_rows rows = list[now];
        if (++now == per) now = 0;
        grad_step<BIAS>(o, t.scale2, base, place_of(step), rows.seen >> warp_id() & 1,
                        diagonal && rows.first < o.own + GROUP, o.own + lane_id() / 4 - rows.first);
    }
}

/* ---- what came down from coarse levels ---- */

/* Level l has 64 >> l rows, behind those below it. */
DEVICE uint32_t line_of(int level, int row) { return (uint32_t)(64 - (128 >> level) + row) * LINE; }

/* Levels 1 to `last` of 64 keys from `own` on, into shared memory: dk, then dv. */
DEVICE void bring_grads(uint32_t base, const hti_tile_args &t, const place &p, int kv_head, int own,
                        int last) {
    for (int level = 1; level <= last; level++) {
        int count = min(64 >> level, (int)hti_clusters(p.length, level) - (own >> level));
        int64_t at = kv_head * t.a.clusters + cluster_at(t, p, level) + (own >> level);
        for (int i = (int)threadIdx.x; i < count * 32; i += TEAM) {
            int row = i / 32, ch = i % 16, of_v = i / 16 & 1;
            const float *from = (of_v ? t.a.dvt : t.a.dkt) + (at + row) * WIDE_D + 4 * ch;
            copy_async(base + of_v * 64 * LINE + line_of(level, row) + 16 * ch, from);
        }
    }
}

/* x += shares of what lies there; row: this lane's first, of 64 */
DEVICE void add_grads(float x[8][4], const char *from, const place &p, int own, int row, int last) {
    int c = lane_id() & 3;
    for (int level = 1; level <= last; level++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row + 8 * h;
            if (own + r >= p.length) continue;
            int first = (own + r) >> level << level; /* what came down is in shares */
            float share =
                level == LOWERED_WIDE ? 1 : 1.0f / (float)min(1 << level, p.length - first);
            const float *at = (const float *)(from + line_of(level, r >> level)) + 2 * c;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float2 y = *(const float2 *)(at + 8 * i);
                x[i][2 * h] += share * y.x, x[i][2 * h + 1] += share * y.y;
            }
        }
    }
}

/* Gradients of level 0: those of the clusters above are added. own: the first of 64 keys */
DEVICE void store_rows(key_rows<WIDE_D> &o, const hti_tile_args &t, const place &p, int kv_head,
                       int own, uint32_t base, const char *shared) {
    const hti_cuda_args &a = t.a;
    int last = min(levels_at(t, p) - 1, (int)LOWERED_WIDE), row = o.own - own + lane_id() / 4;
    __syncthreads(); /* nobody reads steps any more */
    bring_grads(base, t, p, kv_head, own, last);
    if (a.turn) turn_back<WIDE_D>(o.dk, t, p, o.own);
    copy_async_wait();
    __syncthreads();
    if (o.own >= p.length) return;
    add_grads(o.dk, shared, p, own, row, last);
    store_grad<WIDE_D>(a.dk, o.dk, a.scale, NULL, t, p, kv_head, o.own);
    add_grads(o.dv, shared + 64 * LINE, p, own, row, last);
    store_grad<WIDE_D>(a.dv, o.dv, 1, NULL, t, p, kv_head, o.own);
}
#endif

template <bool BIAS>
static __global__ void __launch_bounds__(TEAM, 3)
    wide_dkdv(const __grid_constant__ hti_tile_args t) {
#if HTI_WIDE
    const hti_cuda_args &a = t.a;
    int kv_head = (int)(blockIdx.x % a.kv_heads), level = 0;
    int work = (int)(blockIdx.x / a.kv_heads);
    if (a.coarse && !find_work(&level, &work, t)) return;
    bool by_chunk = a.coarse && level == t.high;
    key_rows<WIDE_D> o;
    key_walk w;
    place p;
    if (by_chunk ? !open_chunk(o, &w, &p, t, work) : !open_tile(o, &w, &p, t, level, work)) return;
    uint32_t base = align_shared(hti_shared);
    char *shared = (char *)hti_shared + (base - shared_address(hti_shared));
    wide_head *heads = (wide_head *)(shared + key_shape<BIAS>::HEADS_AT);
    wide_rows *list = (wide_rows *)(shared + key_shape<BIAS>::LIST_AT);
    int *count = (int *)(list + MOST_STEPS);
    if (!__syncthreads_or(o.slot >= 0)) return; /* there is no such block, or it has no keys */
    side keys = key_side(t, p, kv_head, o.level);
    int own = o.own - GROUP * warp_index(); /* slots of a level come in fours */
    bring_rows<WIDE_ROWS, TEAM>(base, keys.x + own * keys.xs, (int)keys.xs, keys.count - own);
    bring_rows<WIDE_ROWS, TEAM>(base + WIDE_TILE, keys.y + own * keys.ys, (int)keys.ys,
                                keys.count - own);
    fill_heads(heads, t, p, kv_head, o.level);
    if (warp_index() == 0) {
        int per = list_rows(list, t, o, w.r);
        if (lane_id() == 0) *count = per;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) o.weight[h] = weight_of(keys, o.own + 8 * h + (lane_id() >> 2));
    set_zero(o.dk), set_zero(o.dv);
    __syncthreads();
    walk_wide<BIAS>(o, t, base, heads, list, *count, p.length, kv_head * a.group);
    if (by_chunk) {
        if (o.slot < 0) return;
        float *to = slot_at(t, work / ((t.slots + WARPS - 1) / WARPS), kv_head, o.slot);
        store_sums<WIDE_D>(to, o.dk, GROUP);
        store_sums<WIDE_D>(to + GROUP * WIDE_D, o.dv, GROUP);
    } else if (o.level > 0) {
        store_keys<WIDE_D>(o, t, p, kv_head);
    } else {
        store_rows(o, t, p, kv_head, own, base, shared);
    }
#endif
}

ht_status hti_wide_keys(const ht_context *ctx, const hti_tile_args &t) {
    uint32_t heads = t.a.bias ? key_shape<true>::HEADS_AT : key_shape<false>::HEADS_AT;
    size_t shared = 1024 + heads + sizeof(wide_head) * (size_t)t.a.group;
    void (*kernel)(hti_tile_args) = t.a.bias ? wide_dkdv<true> : wide_dkdv<false>;
    return hti_cuda_launch(ctx, kernel, "running the wide kernel for dk and dv",
                           dim3((unsigned)(t.a.work * t.a.kv_heads)), TEAM, shared, t);
}

} // namespace HTI_KERNELS
