/*
 * Wide tiles, the side of the keys: dk and dv. A thread block is one warpgroup and owns 64 keys of
 * a level; the queries that see them come 64 rows at a time, in every head of the group. See
 * tile_backward_keys.cu for what is summed up, and for chunks.
 */
#include "cuda/tile_keys.h"
#include "cuda/tile_wide.h"

extern __shared__ float4 hti_shared[];

enum { STAGES = 3, TEAM = 128 };

/* Queries of one head. */
struct wide_head {
    const bf16 *x, *y; /* q and dout */
    const float2 *numbers;
    int xs, ys;
};

/* Shared memory: own keys and values, steps, the heads. */
enum : uint32_t {
    STEP_BYTES = 2 * WIDE_TILE + WIDE_ROWS * 8, /* q, dout, then (m, h) */
    STEP_ROOM = 2 * WIDE_TILE + 1024,
    STEPS_AT = 2 * WIDE_TILE,
    HEADS_AT = STEPS_AT + STAGES * STEP_ROOM
};

#if HTI_WIDE

DEVICE void fill_heads(wide_head *list, const hti_tile_args &t, const place &p, int kv_head,
                       int level) {
    for (int i = (int)threadIdx.x; i < t.a.group; i += TEAM) {
        side s = query_side(t, p, kv_head * t.a.group + i, level, t.a.turn && level == 0);
        list[i] = {s.x, s.y, s.numbers, (int)s.xs, (int)s.ys};
    }
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

/* Scores of this lane's two keys and 64 queries become weights; numbers: the queries' (m, h). */
DEVICE void weigh_queries(float x[8][4], const float weight[2], uint32_t numbers, float scale) {
    numbers += 16 * (lane_id() & 3);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint4 raw = shared_load4(numbers + 64 * n);
        float m[2] = {__uint_as_float(raw.x), __uint_as_float(raw.z)};
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] = exp2_fast(fmaf(x[n][e], scale, weight[e >> 1] - m[e & 1]));
    }
}

/* Queries before their keys do not see them. ahead: this lane's first key less the first query */
DEVICE void hide_before(float x[8][4], int ahead) {
    ahead -= 2 * (lane_id() & 3);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) x[n][e] = ahead + 8 * (e >> 1) > 8 * n + (e & 1) ? 0 : x[n][e];
    }
}

/* <v, dout> becomes the gradient of the scores; w: their weights */
DEVICE void grad_queries(float x[8][4], const uint32_t w[4][4], uint32_t numbers) {
    numbers += 16 * (lane_id() & 3);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint4 raw = shared_load4(numbers + 64 * n);
        float less[2] = {__uint_as_float(raw.y), __uint_as_float(raw.w)};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 p = unpack2(w[n / 2][2 * (n % 2) + h]);
            x[n][2 * h] = p.x * (x[n][2 * h] - less[0]);
            x[n][2 * h + 1] = p.y * (x[n][2 * h + 1] - less[1]);
        }
    }
}

/* The walk over all queries of all heads of the group. */
DEVICE void walk_wide(key_rows<WIDE_D> &o, const hti_tile_args &t, const key_walk &walk,
                      const place &p, uint32_t base, const wide_head *heads) {
    const ranges &r = walk.r;
    int n0 = (r.hi0 - r.lo0 + 3) / 4, per = n0 + (r.hi1 - r.lo1 + 3) / 4, steps = per * t.a.group;
    int head = 0, at = 0; /* of the step to be brought */
    auto first_of = [&](int i) { return GROUP * (i < n0 ? r.lo0 + 4 * i : r.lo1 + 4 * (i - n0)); };
    int own = o.own - GROUP * warp_index();
    auto seen = [&](int first) { /* by any warp: those of a half see the same */
                                 int c = first >> o.shift;
                                 return sight(t, o.level, c, c, own) ||
                                        sight(t, o.level, c, c, own + 3 * GROUP);
    };
    auto bring = [&](int step) {
        if (step < steps && seen(first_of(at)))
            bring_queries(base + STEPS_AT + step % STAGES * STEP_ROOM, heads[head], first_of(at),
                          p.length);
        if (++at == per) at = 0, head++;
        copies_commit();
    };
    bring(0);
    for (int step = 0, now = 0; step < steps; step++) {
        copies_wait<0>();
        __syncthreads(); /* the step has arrived, and that of two before it is done with */
        bring(step + 1);
        uint32_t q = base + STEPS_AT + step % STAGES * STEP_ROOM;
        int first = first_of(now), row = o.own + lane_id() / 4;
        if (++now == per) now = 0;
        if (!seen(first)) {
            products_wait(), pin(o.dk), pin(o.dv);
            continue;
        }
        float x[8][4];
        uint32_t w[4][4], ds[4][4];
        products_begin();
        multiply(x, base, q);
        products_commit();
        products_wait(); /* those of the step before, too */
        pin(x), pin(o.dk), pin(o.dv);
        weigh_queries(x, o.weight, q + 2 * WIDE_TILE, t.scale2);
        unsigned bits = sight(t, o.level, first >> o.shift, (first + 8) >> o.shift, o.own);
        if (t.a.causal && o.level == 0 && first < o.own + GROUP) hide_before(x, row - first);
        if (!bits) set_zero(x);
        pack_weights(w, x);
        products_begin();
        multiply(x, base + WIDE_TILE, q + WIDE_TILE);
        gather(o.dv, w, q + WIDE_TILE);
        products_commit();
        products_wait();
        pin(x), pin(o.dv);
        grad_queries(x, w, q + 2 * WIDE_TILE);
        pack_weights(ds, x);
        products_begin();
        gather(o.dk, ds, q);
        products_commit();
    }
    products_wait();
    pin(o.dk), pin(o.dv);
}
#endif

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
    wide_head *heads = (wide_head *)(shared + HEADS_AT);
    side keys = key_side(t, p, kv_head, o.level);
    int own = o.own - GROUP * warp_index();     /* slots of a level come in fours */
    if (!__syncthreads_or(o.slot >= 0)) return; /* there is no such block, or it has no keys */
    bring_rows<WIDE_ROWS, TEAM>(base, keys.x + own * keys.xs, keys.xs, keys.count - own);
    bring_rows<WIDE_ROWS, TEAM>(base + WIDE_TILE, keys.y + own * keys.ys, keys.ys,
                                keys.count - own);
    fill_heads(heads, t, p, kv_head, o.level);
#pragma unroll
    for (int h = 0; h < 2; h++) o.weight[h] = weight_of(keys, o.own + 8 * h + (lane_id() >> 2));
    set_zero(o.dk), set_zero(o.dv);
    __syncthreads();
    walk_wide(o, t, w, p, base, heads);
    if (!by_chunk) {
        store_keys<WIDE_D>(o, t, p, kv_head);
    } else if (o.slot >= 0) {
        float *to = slot_at(t, work / ((t.slots + WARPS - 1) / WARPS), kv_head, o.slot);
        store_sums<WIDE_D>(to, o.dk, GROUP);
        store_sums<WIDE_D>(to + GROUP * WIDE_D, o.dv, GROUP);
    }
#endif
}

ht_status hti_wide_keys(const ht_context *ctx, const hti_tile_args &t) {
    size_t shared = 1024 + HEADS_AT + sizeof(wide_head) * (size_t)t.a.group;
    return hti_cuda_launch(ctx, wide_dkdv, "running the wide kernel for dk and dv",
                           dim3((unsigned)(t.a.work * t.a.kv_heads)), TEAM, shared, t);
}
