/*
 * dk and dv of the tile kernels, by the thread blocks that own keys; coarse levels first, level 0
 * then adds what the clusters above a row got.
 *
 *     P = exp2(s - m)     ds = P (r <G, v> - h)     dV~ += r P G     dK~ += ds q~
 *
 * The four warps share out key groups and queries: with 4 groups of keys every warp takes all
 * queries, with 1 group each takes a quarter of them, and their sums are added in order.
 *
 * Query fine: a coarse key is seen by many rows. From level `high` on it is these that are owned: a
 * chunk of rows is one block of that level and sees one block of keys per level, or two. A warp
 * takes 16 of these keys, of any level, so that four levels share what is read; it leaves a partial
 * sum, and a second kernel adds those of all chunks in order. No atomics, the same bits every time.
 */
#include "cuda/tile/keys.h"
#include "cuda/tile/wide.h"

namespace HTI_KERNELS {

extern __shared__ float4 hti_shared[];

enum { CHUNK = 2048 }; /* rows of queries that a chunk of work has at least */

/* Queries travel 128 at a time, where two steps leave room for three thread blocks. */
template <int D> struct key_step : step_shape<D, D <= 64 ? 128 : 64> {
    static constexpr int ROWS = D <= 64 ? 128 : 64, GROUPS = ROWS / GROUP;
};

/* One group of 16 queries (rows `first` ...) in shared memory at `at`; numbers: their (m, h). */
template <int D, bool PLAIN>
DEVICE void grad_group(key_rows<D> &o, const hti_tile_args &t, const float *bias,
                       const dropout &drop, uint32_t at, const float *numbers, int first,
                       unsigned bits, const lanes<D> &l) {
    int g = lane_id() >> 2, c = lane_id() & 3;
    unsigned keeps = !PLAIN && t.a.threshold ? keeps_of_columns(t, drop, o.level, first, o.own) : 0;
    float x[2][4], gv[2][4];
#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t y[D / 8];
        load_key<D>(y, at + 8 * b * 2 * D, l.key);
        x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
        dot8<D>(x[b], o.k, y);
        load_key<D>(y, at + key_step<D>::SIDE + 8 * b * 2 * D, l.key);
        gv[b][0] = gv[b][1] = gv[b][2] = gv[b][3] = 0;
        dot8<D>(gv[b], o.v, y);
        float4 n = *(const float4 *)(numbers + 2 * (8 * b + 2 * c));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int h = e >> 1;
            float add = o.weight[h], m = e & 1 ? n.z : n.x, less = e & 1 ? n.w : n.y, r = 1;
            if (!PLAIN && bias) {
                int row = first + 8 * b + 2 * c + (e & 1);
                add += bias[o.own + 8 * h + g - (row >> o.shift)];
            }
            if (!PLAIN && t.a.threshold) r = keeps >> (4 * b + e) & 1 ? t.a.keep : 0;
            float p = exp2_fast(fmaf(x[b][e], t.scale2, add) - m);
            gv[b][e] = p * (r * gv[b][e] - less);
            x[b][e] = p * r;
        }
    }
    if (bits != 15) hide<true>(x, bits, 0), hide<true>(gv, bits, 0);
    if (t.a.causal && o.level == 0 && first < o.own + GROUP) {
        hide_later<true>(x, o.own - first, 0);
        hide_later<true>(gv, o.own - first, 0);
    }
    add_values<D>(o.dk, gv[0], gv[1], at, l);
    add_values<D>(o.dv, x[0], x[1], at + key_step<D>::SIDE, l);
}

/* Groups `at` ... of the queries into shared memory. */
template <int D>
DEVICE void fetch_queries(char *to, const hti_tile_args &t, const key_walk &w, const side &s,
                          int at) {
    constexpr int CH = D / 8, PASS = THREADS / CH, ROWS = key_step<D>::ROWS;
    int ch = (int)threadIdx.x % CH, r0 = (int)threadIdx.x / CH, left = w.r.hi0 - w.r.lo0;
    int first = w.r.at(at) * GROUP, end = at + key_step<D>::GROUPS;
    uint32_t where = shared_address(to) + 2 * rows<D>::at(r0, ch); /* turns repeat every 8 rows */
    bool whole = end <= w.to && (at >= left || end <= left) && first + ROWS <= s.count && !s.mask &&
                 !s.index && !s.watch;
    if (whole) {
        const element *x = s.x + (first + r0) * s.xs + 8 * ch,
                      *y = s.y + (first + r0) * s.ys + 8 * ch;
#pragma unroll
        for (int i = 0; i < ROWS / PASS; i++, where += PASS * 2 * D) {
            copy_async(where, x), copy_async(where + key_step<D>::SIDE, y);
            x += PASS * s.xs, y += PASS * s.ys;
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < ROWS / PASS; i++, where += PASS * 2 * D) {
            int r = r0 + i * PASS, group = at + r / GROUP;
            int c = group < w.to ? w.r.at(group) * GROUP + r % GROUP : s.count;
            int64_t from;
            bool there = is_there(s, c, &from);
            const void *x = s.x + from * s.xs + 8 * ch, *y = s.y + c * s.ys + 8 * ch;
            copy_async_if(where, there ? x : t.a.q.data, there);
            copy_async_if(where + key_step<D>::SIDE, there ? y : t.a.q.data, there);
        }
    }
    int r = (int)threadIdx.x, group = at + r / GROUP;
    if (r >= ROWS) return;
    int c = group < w.to ? w.r.at(group) * GROUP + r % GROUP : s.count;
    copy8_async_if(shared_address(to) + 2 * key_step<D>::SIDE + 8 * r,
                   s.numbers + (c < s.count ? c : 0), c < s.count);
}

/* This warp's share of the groups from `at` on of head q_head, in shared memory. */
template <int D, bool PLAIN>
DEVICE void grad_step(key_rows<D> &o, const hti_tile_args &t, const key_walk &w, const place &p,
                      const char *here, int q_head, int at, const lanes<D> &l) {
    if (o.slot < 0) return;
    const float *bias = bias_of(t, q_head);
    for (int i = o.split; i < key_step<D>::GROUPS && at + i < w.to; i += o.splits) {
        int first = w.r.at(at + i) * GROUP;
        unsigned bits = sight(t, o.level, first >> o.shift, (first + 8) >> o.shift, o.own);
        if (t.a.causal && o.level == 0 && first + GROUP <= o.own) bits = 0;
        if (bits)
            grad_group<D, PLAIN>(
                o, t, bias, dropout_of(t, p, q_head), shared_address(here) + i * GROUP * 2 * D,
                (const float *)(here + 2 * key_step<D>::SIDE) + 2 * i * GROUP, first, bits, l);
    }
}

/* Every head of the group, one after the other; rows travel a step ahead. */
template <int D, bool PLAIN>
DEVICE void walk_keys(key_rows<D> &o, const hti_tile_args &t, const key_walk &w, const place &p) {
    char *steps = (char *)hti_shared;
    side *s = (side *)(steps + 2 * key_step<D>::BYTES); /* of the head whose rows are brought */
    int head = w.kv_head * t.a.group, end = head + t.a.group, next = head, next_at = 0;
    int stage = 0;
    lanes<D> l;
    find_lanes(l, lane_id());
    auto fetch = [&](int to) {
        if (next_at == 0) { /* another head */
            if (threadIdx.x == 0) *s = query_side(t, p, next, o.level, t.a.turn && o.level == 0);
            __syncthreads();
        }
        fetch_queries<D>(steps + to * key_step<D>::BYTES, t, w, *s, next_at);
        next_at += key_step<D>::GROUPS;
        if (next_at >= w.to) next_at = 0, next++;
    };
    if (w.to <= 0) return;
    fetch(0);
    for (; head < end; head++) {
        for (int at = 0; at < w.to; at += key_step<D>::GROUPS, stage ^= 1) {
            copy_async_wait();
            __syncthreads(); /* this step has arrived, and nobody reads the other one any more */
            if (next < end) fetch(stage ^ 1);
            grad_step<D, PLAIN>(o, t, w, p, steps + stage * key_step<D>::BYTES, head, at, l);
        }
    }
}

/* The warps that shared out queries add their sums, in order; the first one has them. */
template <int D> DEVICE void join_splits(key_rows<D> &o) {
    constexpr int SIZE = 2 * D / 8 * 4 * 32;
    int groups = o.groups, mine = warp_id() % groups, split = warp_id() / groups;
    float *room = (float *)hti_shared;
    if (groups == WARPS) return;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < D / 2; i++) {
        float *to = room + ((split - 1) * groups + mine) * SIZE + lane_id() + 64 * i;
        if (split > 0) to[0] = o.dk[i / 4][i % 4], to[32] = o.dv[i / 4][i % 4];
    }
    __syncthreads();
    if (split > 0) return;
    for (int k = 0; k < WARPS / groups - 1; k++) {
        const float *from = room + (k * groups + mine) * SIZE + lane_id();
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o.dk[i / 4][i % 4] += from[64 * i], o.dv[i / 4][i % 4] += from[64 * i + 32];
    }
}

template <int D, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, D <= 64 ? 3 : 1)
    tile_dkdv(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    int kv_head = (int)(blockIdx.x % a.kv_heads), level = 0;
    int work = (int)(blockIdx.x / a.kv_heads);
    if (a.coarse && !find_work(&level, &work, t)) return;
    bool by_chunk = a.coarse && level == t.high;
    key_rows<D> o;
    key_walk w;
    place p;
    if (by_chunk ? !open_chunk(o, &w, &p, t, work) : !open_tile(o, &w, &p, t, level, work)) return;
    side keys = key_side(t, p, kv_head, o.level);
    w.kv_head = kv_head;
    load_own<D>(o.k, keys, true, o.own, t.zero);
    load_own<D>(o.v, keys, false, o.own, t.zero);
#pragma unroll
    for (int h = 0; h < 2; h++) o.weight[h] = weight_of(keys, o.own + 8 * h + (lane_id() >> 2));
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        o.dk[i][0] = o.dk[i][1] = o.dk[i][2] = o.dk[i][3] = 0;
        o.dv[i][0] = o.dv[i][1] = o.dv[i][2] = o.dv[i][3] = 0;
    }
    walk_keys<D, PLAIN>(o, t, w, p);
    join_splits<D>(o);
    if (!by_chunk) {
        if (warp_id() < o.groups) store_keys<D>(o, t, p, kv_head);
    } else if (o.slot >= 0) {
        float *to = slot_at(t, work / ((t.slots + WARPS - 1) / WARPS), kv_head, o.slot);
        store_sums<D>(to, o.dk, GROUP);
        store_sums<D>(to + GROUP * D, o.dv, GROUP);
    }
}

/* From level `high` on: dK~ and dV~ of 16 keys = the sum over the chunks that see them. x: level,
 * group, key head; y: four columns per thread. */
static __global__ void __launch_bounds__(THREADS)
    tile_join(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    int kv_head = (int)(blockIdx.x % a.kv_heads), d = a.head_dim;
    int64_t tile = blockIdx.x / a.kv_heads;
    int level = find_level(a, &tile), i = 4 * (int)(blockIdx.y * THREADS + threadIdx.x);
    place p;
    if (i >= 2 * GROUP * d || !find_tile(&p, t, level, GROUP, (unsigned)tile)) return;
    int b = block_of(t, p.first), many = 1 << (level - t.high);
    int chunks = block_of(t, (int)hti_clusters(p.length, t.high) - 1) + 1;
    int64_t before = is_even(a) ? (int64_t)p.sequence * chunks
                                : tiles_before(p.start, p.sequence, a.block, t.high, a.block);
    int slot = (level - t.high) * level_slots(a) + (p.first - b * a.block) / GROUP;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int side = a.causal ? 1 : 0; side < 2; side++) { /* queries of the left block, the right */
        int first = (side ? b + 1 : b - 1) * many, end = min(first + many, chunks);
        int at = side ? slot : slot + a.block / GROUP;
#pragma unroll 8
        for (int c = max(first, 0); c < end; c++) {
            float4 x = *(const float4 *)(slot_at(t, before + c, kv_head, at) + i);
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
    }
    int of_values = i >= GROUP * d, row = (of_values ? i - GROUP * d : i) / d;
    if (p.first + row >= hti_clusters(p.length, level)) return;
    int64_t to = (kv_head * a.clusters + cluster_at(t, p, level) + p.first) * d;
    *(float4 *)((of_values ? a.dvt - GROUP * d : a.dkt) + to + i) = sum;
}

/* ---- launching ---- */

int64_t hti_tile_pieces(hti_tile_args *t) {
    hti_cuda_args &a = t->a;
    int rows = a.block % WIDE_ROWS == 0 ? 2 * CHUNK : CHUNK; /* wide tiles are quicker */
    for (t->high = 1; a.block << t->high < rows;) t->high++;
    t->slots = (a.levels - t->high) * level_slots(a);
    if (a.query == HT_QUERY_FINE && t->slots > 0) {
        /* room for a packed call: it is cut into more chunks */
        int64_t chunks = tiles_before(a.rows, a.sequences, a.block, t->high, a.block);
        return chunks * a.kv_heads * t->slots * GROUP;
    }
    t->high = HTI_CUDA_LEVELS;
    return 0;
}

/* The order of coarse work; returns how much there is, with gaps. */
static int64_t order_work(hti_tile_args *t) {
    hti_cuda_args &a = t->a;
    int64_t chunks = 0, rows = (int64_t)a.block << (t->high < a.levels ? t->high : 0);
    if (rows < CHUNK) rows = CHUNK;
    t->chunk_work = 0;
    for (int l = 1; l < a.levels && l <= t->high; l++) {
        int64_t own = GROUP * key_groups(*t, l), each = rows / (own << l);
        t->chunk_level[l] = (int)(each < 1 ? 1 : each);
        a.level_work[l] = tiles_of(a, l, (int)own);
        if (l == t->high) {
            t->chunk_level[l] = (t->slots + WARPS - 1) / WARPS;
            a.level_work[l] = tiles_of(a, l, a.block) * t->chunk_level[l];
        }
        t->chunk_work += t->chunk_level[l];
        int64_t end = (a.level_work[l] + t->chunk_level[l] - 1) / t->chunk_level[l];
        if (chunks < end) chunks = end;
    }
    return chunks * t->chunk_work;
}

template <int D> static ht_status launch(const ht_context *ctx, hti_tile_args t, int coarse) {
    hti_cuda_args &a = t.a;
    size_t shared = 2 * key_step<D>::BYTES + sizeof(side);
    a.coarse = coarse;
    a.work = coarse ? order_work(&t) : tiles_of(a, 0, GROUP * key_groups(t, 0));
    if (hti_wide_takes(ctx, t)) return hti_wide_keys(ctx, t);
    void (*kernel)(hti_tile_args) = is_plain(a) ? tile_dkdv<D, true> : tile_dkdv<D, false>;
    return hti_cuda_launch(ctx, kernel, "running the tile kernel for dk and dv",
                           dim3((unsigned)(a.work * a.kv_heads)), THREADS, shared, t);
}

static ht_status launch_keys(const ht_context *ctx, const hti_tile_args &t, int coarse) {
    switch (t.a.head_dim) {
    case 16: return launch<16>(ctx, t, coarse);
    case 32: return launch<32>(ctx, t, coarse);
    case 64: return launch<64>(ctx, t, coarse);
    default: return launch<128>(ctx, t, coarse);
    }
}

ht_status hti_tile_run_keys(const ht_context *ctx, hti_tile_args t, int coarse) {
    hti_cuda_args &a = t.a;
    if (!hti_wide_takes(ctx, t)) a.dbias = NULL; /* summed with dq: tiles are found the quick way */
    TRY(launch_keys(ctx, t, coarse));
    if (!coarse || t.high >= a.levels) return HT_OK;
    a.work = 0;
    for (int l = 1; l < a.levels; l++)
        a.work += a.level_work[l] = l < t.high ? 0 : tiles_of(a, l, GROUP);
    dim3 grid((unsigned)(a.work * a.kv_heads),
              (unsigned)((2 * GROUP * a.head_dim / 4 + THREADS - 1) / THREADS));
    return hti_cuda_launch(ctx, tile_join, "adding what chunks left for dk and dv", grid, THREADS,
                           0, t);
}

} // namespace HTI_KERNELS
