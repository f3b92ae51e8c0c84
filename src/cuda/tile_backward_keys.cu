/*
 * dk and dv of the tile kernels, by the thread blocks that own keys; coarse levels first, level 0
 * then adds what the clusters above a row got.
 *
 *     P = exp2(s - m)     ds = P (r <G, v> - h)     dV~ += r P G     dK~ += ds q~
 *
 * The four warps share out key groups and queries: with 4 groups of keys every warp takes all
 * queries, with 1 group each takes a quarter of them, and their sums are added in order. Query
 * fine: a coarse key is seen by many rows. These are cut into pieces, each leaves a partial sum,
 * and a second kernel adds them in order. No atomics, the same bits every time.
 */
#include "cuda/tile_grad.h"

extern __shared__ float4 hti_shared[];

enum { PIECE = 128 }; /* groups of queries in a piece, and in a chunk of work */

/* Queries travel 128 at a time, where two steps leave room for three thread blocks. */
template <int D> struct key_step : step_shape<D, D <= 64 ? 128 : 64> {
    static constexpr int ROWS = D <= 64 ? 128 : 64, GROUPS = ROWS / GROUP;
};

/* Groups of keys that a thread block owns. Query fine: a block of keys or less, since the keys of
 * another block are seen by other rows; but low levels have few rows per key. */
HTI_FN int key_groups(const hti_tile_args &t, int level) {
    if (t.a.query != HT_QUERY_FINE || level < 3) return WARPS;
    return t.a.block % 64 == 0 ? 4 : t.a.block % 32 == 0 ? 2 : 1;
}

/* A warp's 16 keys: operands, gradients. */
template <int D> struct key_rows {
    frag<D> k, v;
    float dk[D / 8][4], dv[D / 8][4]; /* dk still to be multiplied by scale */
    float weight[2];                  /* log2(n) of keys g and g + 8 */
    int own, level, shift;            /* shift: from a query's row to its cluster */
    int groups, split, splits;        /* this warp takes group `split` of each `splits` queries' */
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

/* Groups [from, to) of a tile's queries, for every head of its group of heads. */
struct key_walk {
    ranges r;
    int from, to, kv_head;
};

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
        const bf16 *x = s.x + (first + r0) * s.xs + 8 * ch, *y = s.y + (first + r0) * s.ys + 8 * ch;
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
    int head = w.kv_head * t.a.group, end = head + t.a.group, next = head, next_at = w.from;
    int stage = 0;
    lanes<D> l;
    find_lanes(l, lane_id());
    auto fetch = [&](int to) {
        if (next_at == w.from) { /* another head */
            if (threadIdx.x == 0) *s = query_side(t, p, next, o.level, t.a.turn && o.level == 0);
            __syncthreads();
        }
        fetch_queries<D>(steps + to * key_step<D>::BYTES, t, w, *s, next_at);
        next_at += key_step<D>::GROUPS;
        if (next_at >= w.to) next_at = w.from, next++;
    };
    if (w.from >= w.to) return;
    fetch(0);
    for (; head < end; head++) {
        for (int at = w.from; at < w.to; at += key_step<D>::GROUPS, stage ^= 1) {
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

/* Pieces of a key tile's queries at a level. */
HTI_FN int64_t pieces_of(const hti_tile_args &t, int level) {
    if (t.a.query != HT_QUERY_FINE || level == 0) return 1;
    int64_t most = (int64_t)(t.a.causal ? 1 : 2) * t.a.block << level, length = t.a.length;
    int64_t groups = ((most < length ? most : length) + GROUP - 1) / GROUP;
    return (groups + PIECE - 1) / PIECE;
}

template <int D>
DEVICE void store_keys(key_rows<D> &o, const hti_tile_args &t, const place &p, int kv_head,
                       int64_t piece) {
    const hti_cuda_args &a = t.a;
    if (piece >= 0) {
        int64_t rows = GROUP * o.groups;
        float *to = a.pieces + (t.piece_at[o.level] + piece * rows) * 2 * D;
        store_sums<D>(to + (o.own - p.first) * D, o.dk, GROUP);
        store_sums<D>(to + (rows + o.own - p.first) * D, o.dv, GROUP);
        return;
    }
    if (o.level > 0) {
        int64_t at = kv_head * a.clusters + cluster_at(t, p, o.level) + o.own;
        int count = (int)hti_clusters(p.length, o.level) - o.own;
        store_sums<D>(a.dkt + at * D, o.dk, count);
        store_sums<D>(a.dvt + at * D, o.dv, count);
        return;
    }
    if (o.own >= p.length) return;
    const float *counts = a.key_mask ? a.kn : NULL;
    if (a.turn) turn_back<D>(o.dk, t, p, o.own);
    auto share = [&](int level, int64_t at, int row) {
        return mean_share(counts, p, level, at, row);
    };
    add_levels<D>(o.dk, a.dkt, t, p, kv_head, o.own, share);
    add_levels<D>(o.dv, a.dvt, t, p, kv_head, o.own, share);
    store_grad<D>(a.dk, o.dk, a.scale, a.key_mask, t, p, kv_head, o.own);
    store_grad<D>(a.dv, o.dv, 1, a.key_mask, t, p, kv_head, o.own);
}

/* Which level a piece of coarse work belongs to; work becomes its number there. Levels take turns,
 * so that rows are read again while they are in the L2 cache. */
DEVICE bool find_work(int *level, int *work, const hti_tile_args &t) {
    int chunk = *work / t.chunk_work, i = *work - chunk * t.chunk_work, l = 1;
    while (i >= t.chunk_level[l]) i -= t.chunk_level[l++];
    *level = l;
    *work = (chunk - t.chunk_ahead[l]) * t.chunk_level[l] + i;
    return chunk >= t.chunk_ahead[l] && *work < t.a.level_work[l];
}

template <int D, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, D <= 64 ? 3 : 1)
    tile_dkdv(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    int kv_head = (int)(blockIdx.x % a.kv_heads), level = 0;
    int work = (int)(blockIdx.x / a.kv_heads);
    if (a.coarse && !find_work(&level, &work, t)) return;
    unsigned pieces = (unsigned)pieces_of(t, level), tile = (unsigned)work / pieces;
    unsigned piece = (unsigned)work - tile * pieces;
    key_rows<D> o;
    place p;
    o.groups = key_groups(t, level), o.level = level, o.shift = is_fine(t) ? level : 0;
    if (!find_tile(&p, t, level, GROUP * o.groups, tile)) return;
    o.own = p.first + GROUP * (warp_id() & (o.groups - 1));
    o.splits = WARPS / o.groups, o.split = warp_id() / o.groups;
    side keys = key_side(t, p, kv_head, level);
    key_walk w;
    int last = min(p.first + GROUP * o.groups, keys.count) - 1;
    w.r = queries_seeing(t, p.length, level, p.first, last);
    w.kv_head = kv_head;
    w.from = pieces > 1 ? min(w.r.count(), (int)piece * PIECE) : 0;
    w.to = pieces > 1 ? min(w.r.count(), w.from + PIECE) : w.r.count();
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
    int64_t number = (int64_t)work * a.kv_heads + kv_head;
    if (warp_id() < o.groups) store_keys<D>(o, t, p, kv_head, pieces > 1 ? number : -1);
}

/* Query fine: dK~ and dV~ of a tile = the sum of its pieces. x: level, tile, key head; y: four
 * columns per thread. */
static __global__ void __launch_bounds__(THREADS)
    tile_join(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    int kv_head = (int)(blockIdx.x % a.kv_heads), d = a.head_dim;
    int64_t tile = blockIdx.x / a.kv_heads;
    int level = find_level(a, &tile), own = GROUP * key_groups(t, level);
    int64_t pieces = pieces_of(t, level);
    place p;
    int i = 4 * (int)(blockIdx.y * THREADS + threadIdx.x), of_values = i >= own * d;
    if (i >= 2 * own * d || !find_tile(&p, t, level, own, (unsigned)tile)) return;
    int64_t at = kv_head * a.clusters + cluster_at(t, p, level) + p.first;
    int64_t size = (int64_t)own * 2 * d, step = a.kv_heads * size;
    const float *from =
        a.pieces + t.piece_at[level] * 2 * d + (tile * pieces * a.kv_heads + kv_head) * size + i;
    if (of_values) i -= own * d;
    if (i / d >= hti_clusters(p.length, level) - p.first) return;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int64_t k = 0; k < pieces; k++) {
        float4 x = *(const float4 *)(from + k * step);
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    *(float4 *)((of_values ? a.dvt : a.dkt) + at * d + i) = sum;
}

/* ---- launching ---- */

int64_t hti_tile_pieces(hti_tile_args *t) {
    hti_cuda_args &a = t->a;
    int64_t rows = 0;
    for (int l = 1; l < a.levels; l++) {
        /* room for a packed call: it is cut into more tiles */
        int own = GROUP * key_groups(*t, l);
        int64_t tiles = tiles_before(a.rows, a.sequences, a.block, l, own);
        t->piece_at[l] = rows;
        if (pieces_of(*t, l) > 1) rows += tiles * pieces_of(*t, l) * a.kv_heads * own;
    }
    return rows;
}

/* The order of coarse work; returns how much there is, with gaps. */
static int64_t order_work(hti_tile_args *t) {
    hti_cuda_args &a = t->a;
    int64_t chunks = 0, rows = PIECE * GROUP;
    t->chunk_work = 0;
    for (int l = 1; l < a.levels; l++) {
        int64_t own = GROUP * key_groups(*t, l), pieces = pieces_of(*t, l);
        int64_t each = rows * pieces / (own << l), ahead = ((int64_t)a.block << l) / rows;
        a.level_work[l] = tiles_of(a, l, (int)own) * pieces;
        t->chunk_level[l] = (int)(each < 1 ? 1 : each);
        t->chunk_ahead[l] = a.causal && a.query == HT_QUERY_FINE ? (int)ahead : 0;
        t->chunk_work += t->chunk_level[l];
        int64_t end = (a.level_work[l] + t->chunk_level[l] - 1) / t->chunk_level[l];
        if (chunks < end + t->chunk_ahead[l]) chunks = end + t->chunk_ahead[l];
    }
    return chunks * t->chunk_work;
}

template <int D> static ht_status launch(const ht_context *ctx, hti_tile_args t, int coarse) {
    hti_cuda_args &a = t.a;
    size_t shared = 2 * key_step<D>::BYTES + sizeof(side);
    a.coarse = coarse;
    a.work = coarse ? order_work(&t) : tiles_of(a, 0, GROUP * key_groups(t, 0));
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
    TRY(launch_keys(ctx, t, coarse));
    if (!coarse || a.query != HT_QUERY_FINE) return HT_OK;
    a.work = 0;
    for (int l = 1; l < a.levels; l++) {
        int cut = pieces_of(t, l) > 1;
        a.work += a.level_work[l] = cut ? tiles_of(a, l, GROUP * key_groups(t, l)) : 0;
    }
    int own = GROUP * key_groups(t, HTI_CUDA_LEVELS);
    dim3 grid((unsigned)(a.work * a.kv_heads),
              (unsigned)((own * 2 * a.head_dim / 4 + THREADS - 1) / THREADS));
    return hti_cuda_launch(ctx, tile_join, "adding pieces of dk and dv", grid, THREADS, 0, t);
}
