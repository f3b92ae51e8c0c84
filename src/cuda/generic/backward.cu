/*
 * Generic backward kernels: every kind, mode and shape; no atomics, the same bits every time.
 *
 *     P = n exp(s - m)     ds = P (r <G, v> - h)     dV~ += r P G     dq~ += ds K~     dK~ += ds q~
 *
 * with r the dropout factor and (m, h, G) of the query: lse, <dz, z> - dlse and dz of a row, or
 * their restriction to a coarse row. One kernel gathers dq over the keys of a query tile, one
 * gathers dk and dv over the queries of a key tile (all heads of its group). Coarse levels come
 * first and leave their sums in pyramids; level 0 then adds what the clusters above a row got,
 * over their number of valid rows.
 *
 * Query fine: a coarse key tile is seen by many rows. Its queries are cut into pieces of
 * piece_rows rows; each piece leaves a partial sum, and a second kernel adds these in order. The
 * bias gradient: each block adds up its own table over all tiles it visits, and a last kernel
 * adds the tables in order.
 */
#include "cuda/generic/tile.h"

struct backward_shared {
    float *own0, *own1;     /* [OWN]: q and G, or k and v */
    float *other0, *other1; /* [other]: k and v, or q and G */
    float *m, *h;           /* of the queries' side: [other] or [OWN] */
    float *n;               /* of the keys' side */
    float *sums;            /* dq: bias sums by distance, [OWN + other] */
    float4 *p, *ds;         /* [WARPS][other], a component per own row */
    int bytes;
};

HTI_FN backward_shared backward_layout(float *base, int head_dim, int value_dim, int other) {
    backward_shared s;
    int ds = tile_stride(head_dim), vs = tile_stride(value_dim), used = 0;
    s.p = (float4 *)(base + used), used += 4 * WARPS * other;
    s.ds = (float4 *)(base + used), used += 4 * WARPS * other;
    s.own0 = base + used, used += OWN * ds;
    s.own1 = base + used, used += OWN * vs;
    s.other0 = base + used, used += other * ds;
    s.other1 = base + used, used += other * vs;
    s.m = base + used, used += 32;
    s.h = base + used, used += 32;
    s.n = base + used, used += 32;
    s.sums = base + used, used += OWN + other;
    s.bytes = used * (int)sizeof(float);
    return s;
}

/* ---- what a query brings: G, m, h ---- */

DEVICE bool is_grouped(const hti_cuda_args &a, int level) {
    return level > 0 && a.query != HT_QUERY_FINE;
}

/* Rows of queries at a level: clusters, or rows of the sequence. */
DEVICE int query_rows(const hti_cuda_args &a, const place &p, int level) {
    return is_grouped(a, level) ? (int)hti_clusters(p.length, level) : p.length;
}

/* m and h of queries c0 ..., by the first threads of the block; m = inf where a query takes no
 * part. */
DEVICE void load_weights(float *m, float *h, int rows, const hti_cuda_args &a, const place &p,
                         int head, int level, int c0) {
    int r = (int)threadIdx.x;
    if (r >= rows) return;
    m[r] = INFINITY, h[r] = 0;
    if (c0 + r >= query_rows(a, p, level)) return;
    if (is_grouped(a, level)) {
        int64_t at = head * a.clusters + hti_cluster_at(a, p.start, level) + c0 + r;
        m[r] = a.gm[at], h[r] = a.gh[at];
    } else {
        int64_t at = head * a.rows + p.start + c0 + r;
        float lse = a.saved[at];
        if (lse != -INFINITY) m[r] = lse, h[r] = a.h[at];
    }
}

template <typename T>
DEVICE void load_grads(float *dst, int rows, const hti_cuda_args &a, const place &p, int head,
                       int level, int c0) {
    int count = query_rows(a, p, level);
    if (is_grouped(a, level)) {
        int64_t at = head * a.clusters + hti_cluster_at(a, p.start, level) + c0;
        load_rows<float>(dst, rows, a.value_dim, [&](int r) {
            return c0 + r < count ? (const float *)a.gt + (at + r) * a.value_dim : (const float *)0;
        });
        return;
    }
    const float *lse = a.saved + head * a.rows + p.start;
    load_rows<T>(dst, rows, a.value_dim, [&](int r) {
        bool live = c0 + r < count && lse[c0 + r] != -INFINITY;
        return live ? tensor_row<const T>(a.dout, a, p, head, c0 + r) : (const T *)0;
    });
}

/* ---- gradients that come down from the levels above, and back through the rotation ---- */

/* g[i] += sum over levels of grads[cluster] / n; the warp's four rows share their clusters from
 * level 2 on. */
template <int NC>
DEVICE void add_levels(float (&g)[PER][NC], const float *grads, const float *counts, int head,
                       int dim, const hti_cuda_args &a, const place &p) {
    int row = p.first + warp_id() * PER, levels = levels_of(a, p.length);
    if (row >= p.length) return;
    for (int level = levels - 1; level >= 1; level--) {
        int64_t at = hti_cluster_at(a, p.start, level);
#pragma unroll
        for (int i = 0; i < PER; i += 2) {
            int64_t c = at + ((row + i) >> level);
            if (row + i >= p.length || !(counts[c] > 0)) continue;
            const float *src = grads + (head * a.clusters + c) * dim;
            float share = 1 / counts[c];
            for (int x = 0; x < NC; x++) {
                float add = share * src[min(lane_id() + 32 * x, dim - 1)];
                g[i][x] += add, g[i + 1][x] += add;
            }
        }
    }
}

/* Query first: a coarse row's gradient goes to the first valid row of its cluster alone. */
template <int NC>
DEVICE void add_first(float (&g)[PER][NC], int head, const hti_cuda_args &a, const place &p) {
    int levels = levels_of(a, p.length);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int row = p.first + warp_id() * PER + i;
        for (int level = 1; level < levels && row < p.length; level++) {
            int64_t at = hti_cluster_at(a, p.start, level);
            if (first_row(a, p, level, at, row >> level) != row)
                break; /* nor is it on any level above */
            const float *src = a.dqt + (head * a.clusters + at + (row >> level)) * a.head_dim;
            for (int x = 0; x < NC; x++) g[i][x] += src[min(lane_id() + 32 * x, a.head_dim - 1)];
        }
    }
}

/* Turns the warp's rows back; `tile` [OWN] is room in shared memory. */
template <int NC>
DEVICE void turn_back(float (&g)[PER][NC], float *tile, const hti_cuda_args &a, const place &p) {
    int stride = tile_stride(a.head_dim), half = a.head_dim / 2;
    __syncwarp();
    for (int i = 0; i < PER; i++) {
        float *to = tile + (warp_id() * PER + i) * stride;
        for (int x = 0; x < NC; x++)
            if (lane_id() + 32 * x < a.head_dim) to[lane_id() + 32 * x] = g[i][x];
    }
    __syncwarp();
    for (int i = 0; i < PER; i++) {
        int row = p.first + warp_id() * PER + i;
        const float *from = tile + (warp_id() * PER + i) * stride;
        const float *turn = a.turn + (int64_t)min(row, p.length - 1) * 2 * half;
        for (int x = 0; x < NC; x++) {
            int column = lane_id() + 32 * x, k = column < half ? column : column - half;
            if (column >= 2 * half) continue;
            float other = from[column < half ? column + half : k];
            g[i][x] = g[i][x] * turn[2 * k] + (column < half ? other : -other) * turn[2 * k + 1];
        }
    }
    __syncwarp();
}

/* Rows of a tensor = factor * g, zero where the mask takes a row out. */
template <typename T, int NC>
DEVICE void store_rows(const ht_tensor &t, const float (&g)[PER][NC], float factor, int dim,
                       int head, const uint8_t *mask, const hti_cuda_args &a, const place &p) {
    for (int i = 0; i < PER; i++) {
        int row = p.first + warp_id() * PER + i;
        if (row >= p.length) continue;
        bool valid = takes_part(mask, p, row);
        T *to = tensor_row<T>(t, a, p, head, row);
        for (int x = 0; x < NC; x++) {
            int column = lane_id() + 32 * x;
            if (column < dim) put(to + column, valid ? factor * g[i][x] : 0);
        }
    }
}

/* Rows to[r] [dim] of a pyramid or of a piece = factor * g, for r < rows of the tile. */
template <int NC> DEVICE void store_sums(float *to, const float (&g)[PER][NC], int rows, int dim) {
    for (int i = 0; i < PER; i++) {
        int r = warp_id() * PER + i;
        for (int x = 0; x < NC; x++) {
            int column = lane_id() + 32 * x;
            if (r < rows && column < dim) to[(int64_t)r * dim + column] = g[i][x];
        }
    }
}

/* ---- dq: a tile of queries over its keys ---- */

/* ds of one tile of keys, into s.ds and into dq. c: own index of the warp's first row. */
template <int NC>
DEVICE void gather_dq(float (&dq)[PER][NC], const hti_cuda_args &a, const place &p,
                      const backward_shared &s, const reach (&r)[PER], int head, int level,
                      int shift, int c, int j0) {
    int j = j0 + lane_id(), other = a.other, own = warp_id() * PER;
    float dot[PER], dp[PER], ds[PER];
    float n = lane_id() < other ? s.n[lane_id()] : 0;
    dots(dot, s.own0 + own * tile_stride(a.head_dim), s.other0, a.head_dim, other);
    dots(dp, s.own1 + own * tile_stride(a.value_dim), s.other1, a.value_dim, other);
    unsigned keeps = a.threshold ? keeps_of_queries(a, p, head, level, c, j0) : 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        float m = s.m[own + i];
        bool sees = n > 0 && m != INFINITY && holds(r[i], j);
        float x = sees ? score_of(a, dot[i], head, j - ((c + i) >> shift)) : 0;
        float weight = sees ? n * expf(x - m) : 0;
        if (a.threshold) dp[i] = keeps >> i & 1 ? dp[i] * a.keep : 0;
        ds[i] = sees ? weight * (dp[i] - s.h[own + i]) : 0;
    }
    float4 *to = s.ds + warp_id() * other;
    __syncwarp();
    if (lane_id() < other) to[lane_id()] = make_float4(ds[0], ds[1], ds[2], ds[3]);
    __syncwarp();
    accumulate(dq, to, s.other0, a.head_dim, other);
}

/* Adds the tile's ds to this block's table, by distance: one thread sums one distance over the
 * own rows. */
DEVICE void add_bias(const hti_cuda_args &a, const backward_shared &s, float *table, int c0,
                     int shift, int j0) {
    int first = c0 >> shift, last = (c0 + OWN - 1) >> shift, most = 2 * a.block - 1;
    int lowest = j0 - last, count = a.other + last - first, t = (int)threadIdx.x;
    __syncthreads();
    if (t < count) {
        float sum = 0;
        for (int r = 0; r < OWN; r++) {
            int j = ((c0 + r) >> shift) + lowest + t - j0;
            if (j < 0 || j >= a.other) continue;
            const float *ds = (const float *)(s.ds + r / PER * a.other + j);
            sum += ds[r % PER];
        }
        s.sums[t] = sum;
    }
    __syncthreads();
    /* kind full clamps distances: the first thread of an entry adds what belongs to it */
    int entry = max(-most, min(most, lowest + t));
    bool leads = t < count && (t == 0 || max(-most, min(most, lowest + t - 1)) != entry);
    for (int i = t; leads && i < count && max(-most, min(most, lowest + i)) == entry; i++)
        table[entry + most] += s.sums[i];
}

template <typename T, int NC>
DEVICE void dq_level(float (&dq)[PER][NC], const hti_cuda_args &a, const place &p,
                     const backward_shared &s, float *table, int head, int level, int shift) {
    int own = lane_id() % OWN, kv_head = head / a.group, lo, hi;
    reach mine = {0, 0, 0, 0}, r[PER];
    if (p.first + own < query_rows(a, p, level))
        mine = keys_of(a, p.length, level, (p.first + own) >> shift);
    reach_of_tile(&lo, &hi, mine);
    for (int i = 0; i < PER; i++) r[i] = reach_of_row(mine, i);
    for (int j0 = lo; j0 < hi; j0 += a.other) {
        if (!__any_sync(ALL_LANES, touches(mine, j0, j0 + a.other))) continue;
        __syncthreads();
        load_keys<T>(s.other0, a.other, a, p, kv_head, level, j0);
        load_values<T>(s.other1, a.other, a, p, kv_head, level, j0);
        load_counts(s.n, a.other, a, p, level, j0);
        __syncthreads();
        gather_dq(dq, a, p, s, r, head, level, shift, p.first + warp_id() * PER, j0);
        if (table) add_bias(a, s, table, p.first, shift, j0);
    }
}

extern __shared__ float4 hti_shared[];

template <typename T, int NC>
static __global__ void __launch_bounds__(THREADS)
    dq_kernel(const __grid_constant__ hti_cuda_args a) {
    backward_shared s = backward_layout((float *)hti_shared, a.head_dim, a.value_dim, a.other);
    bool fine = a.query == HT_QUERY_FINE;
    for (int64_t w = blockIdx.x; w < a.work; w += gridDim.x) {
        int head =
            (int)(w % a.q_heads); /* the grid is a multiple of q_heads: a block keeps its head */
        int64_t t = w / a.q_heads;
        int level = a.coarse ? find_level(a, &t) : 0;
        place p;
        if (!find_place(&p, a, level, OWN, t)) continue;
        float *table = NULL, dq[PER][NC];
        if (a.dbias) table = a.bias_part + (int64_t)blockIdx.x * (4 * a.block - 1);
        for (int i = 0; i < PER; i++)
            for (int x = 0; x < NC; x++) dq[i][x] = 0;
        __syncthreads();
        load_queries<T>(s.own0, OWN, a, p, head, level, p.first);
        load_grads<T>(s.own1, OWN, a, p, head, level, p.first);
        load_weights(s.m, s.h, OWN, a, p, head, level, p.first);
        dq_level<T>(dq, a, p, s, table, head, level, 0);
        if (a.coarse) {
            int64_t at = hti_cluster_at(a, p.start, level) + p.first;
            int rows = (int)hti_clusters(p.length, level) - p.first;
            store_sums(a.dqt + (head * a.clusters + at) * a.head_dim, dq, rows, a.head_dim);
            continue;
        }
        int levels = levels_of(a, p.length);
        if (a.turn) turn_back(dq, s.own0, a, p);
        if (fine && a.turn && levels > 1) {
            __syncthreads();
            load_queries<T>(s.own0, OWN, a, p, head, 1, p.first);
        }
        for (int l = 1; fine && l < levels; l++) dq_level<T>(dq, a, p, s, table, head, l, l);
        if (a.query == HT_QUERY_MEAN) add_levels(dq, a.dqt, a.qn, head, a.head_dim, a, p);
        if (a.query == HT_QUERY_FIRST) add_first(dq, head, a, p);
        store_rows<T>(a.dq, dq, a.scale, a.head_dim, head, a.query_mask, a, p);
    }
}

/* ---- dk and dv: a tile of keys over its queries ---- */

/* One tile of queries of one head. j: the warp's first key; c0: the tile's first query. */
template <int NC>
DEVICE void gather_dkdv(float (&dk)[PER][NC], float (&dv)[PER][NC], const hti_cuda_args &a,
                        const place &p, const backward_shared &s, const reach (&r)[PER], int head,
                        int level, int shift, int j, int c0) {
    int c = c0 + lane_id(), other = a.other, own = warp_id() * PER;
    float dot[PER], dp[PER], weight[PER], ds[PER];
    float m = lane_id() < other ? s.m[lane_id()] : INFINITY,
          h = lane_id() < other ? s.h[lane_id()] : 0;
    dots(dot, s.own0 + own * tile_stride(a.head_dim), s.other0, a.head_dim, other);
    dots(dp, s.own1 + own * tile_stride(a.value_dim), s.other1, a.value_dim, other);
    unsigned keeps = a.threshold ? keeps_of_keys(a, p, head, level, c, j) : 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        float n = s.n[own + i];
        bool sees = n > 0 && m != INFINITY && holds(r[i], c);
        float x = sees ? score_of(a, dot[i], head, j + i - (c >> shift)) : 0;
        weight[i] = sees ? n * expf(x - m) : 0;
        float keep = a.threshold ? (keeps >> i & 1 ? a.keep : 0) : 1;
        ds[i] = sees ? weight[i] * (keep * dp[i] - h) : 0;
        weight[i] *= keep;
    }
    float4 *to_p = s.p + warp_id() * other, *to_ds = s.ds + warp_id() * other;
    __syncwarp();
    if (lane_id() < other) {
        to_p[lane_id()] = make_float4(weight[0], weight[1], weight[2], weight[3]);
        to_ds[lane_id()] = make_float4(ds[0], ds[1], ds[2], ds[3]);
    }
    __syncwarp();
    accumulate(dk, to_ds, s.other0, a.head_dim, other);
    accumulate(dv, to_p, s.other1, a.value_dim, other);
}

/* Queries [from, to) of all heads of the group, as far as they see the tile. */
template <typename T, int NC>
DEVICE void dkdv_level(float (&dk)[PER][NC], float (&dv)[PER][NC], const hti_cuda_args &a,
                       const place &p, const backward_shared &s, int kv_head, int level,
                       int piece) {
    int own = lane_id() % OWN, lo, hi, shift = a.query == HT_QUERY_FINE ? level : 0;
    reach mine = {0, 0, 0, 0}, r[PER];
    if (p.first + own < hti_clusters(p.length, level))
        mine = queries_of(a, p.length, level, p.first + own);
    reach_of_tile(&lo, &hi, mine);
    for (int i = 0; i < PER; i++) r[i] = reach_of_row(mine, i);
    int64_t from = lo, to = hi;
    if (shift && lo < hi) { /* a piece; the last one takes the rest */
        from = lo + (int64_t)piece * a.piece_rows;
        to = min((int64_t)hi, from + a.piece_rows);
    }
    for (int head = kv_head * a.group; head < (kv_head + 1) * a.group; head++) {
        for (int64_t c0 = from; c0 < to; c0 += a.other) {
            if (!__any_sync(ALL_LANES, touches(mine, (int)c0, (int)min(c0 + a.other, to))))
                continue;
            __syncthreads();
            load_queries<T>(s.other0, a.other, a, p, head, level, (int)c0);
            load_grads<T>(s.other1, a.other, a, p, head, level, (int)c0);
            load_weights(s.m, s.h, a.other, a, p, head, level, (int)c0);
            __syncthreads();
            gather_dkdv(dk, dv, a, p, s, r, head, level, shift, p.first + warp_id() * PER, (int)c0);
        }
    }
}

/* Pieces of a key tile's queries at a level: its reach is below 4 * block + OWN clusters. */
HTI_FN int64_t pieces_of(const hti_cuda_args &a, int level) {
    if (a.query != HT_QUERY_FINE || level == 0) return 1;
    int64_t most = (int64_t)(4 * a.block + OWN) << level, length = a.length;
    return ((most < length ? most : length) + a.piece_rows - 1) / a.piece_rows;
}

/* Row of the partial sums where a level's pieces begin. */
HTI_FN int64_t pieces_before(const hti_cuda_args &a, int level) {
    int64_t rows = 0;
    for (int l = 1; l < level; l++)
        if (pieces_of(a, l) > 1) rows += tiles_of(a, l, OWN) * pieces_of(a, l) * a.kv_heads * OWN;
    return rows;
}

template <typename T, int NC>
static __global__ void __launch_bounds__(THREADS)
    dkdv_kernel(const __grid_constant__ hti_cuda_args a) {
    backward_shared s = backward_layout((float *)hti_shared, a.head_dim, a.value_dim, a.other);
    for (int64_t w = blockIdx.x; w < a.work; w += gridDim.x) {
        int kv_head = (int)(w % a.kv_heads);
        int64_t t = w / a.kv_heads;
        int level = a.coarse ? find_level(a, &t) : 0;
        int64_t pieces = pieces_of(a, level), tile = t / pieces;
        place p;
        if (!find_place(&p, a, level, OWN, tile)) continue;
        float dk[PER][NC], dv[PER][NC];
        for (int i = 0; i < PER; i++)
            for (int x = 0; x < NC; x++) dk[i][x] = 0, dv[i][x] = 0;
        __syncthreads();
        load_keys<T>(s.own0, OWN, a, p, kv_head, level, p.first);
        load_values<T>(s.own1, OWN, a, p, kv_head, level, p.first);
        load_counts(s.n, OWN, a, p, level, p.first);
        dkdv_level<T>(dk, dv, a, p, s, kv_head, level, (int)(t % pieces));
        if (pieces > 1) {
            int64_t row = pieces_before(a, level) + (t * a.kv_heads + kv_head) * OWN;
            float *to = a.pieces + row * (a.head_dim + a.value_dim);
            store_sums(to, dk, OWN, a.head_dim);
            store_sums(to + (int64_t)OWN * a.head_dim, dv, OWN, a.value_dim);
        } else if (a.coarse) {
            int64_t at = kv_head * a.clusters + hti_cluster_at(a, p.start, level) + p.first;
            int rows = (int)hti_clusters(p.length, level) - p.first;
            store_sums(a.dkt + at * a.head_dim, dk, rows, a.head_dim);
            store_sums(a.dvt + at * a.value_dim, dv, rows, a.value_dim);
        } else {
            if (a.turn) turn_back(dk, s.own0, a, p);
            add_levels(dk, a.dkt, a.kn, kv_head, a.head_dim, a, p);
            add_levels(dv, a.dvt, a.kn, kv_head, a.value_dim, a, p);
            store_rows<T>(a.dk, dk, a.scale, a.head_dim, kv_head, a.key_mask, a, p);
            store_rows<T>(a.dv, dv, 1, a.value_dim, kv_head, a.key_mask, a, p);
        }
    }
}

/* ---- second stages: sums in order ---- */

/* Query fine: dK~ and dV~ of a tile = the sum of its pieces. A block per level, tile, key head. */
static __global__ void __launch_bounds__(THREADS)
    join_kernel(const __grid_constant__ hti_cuda_args a) {
    int kv_head = (int)(blockIdx.x % a.kv_heads);
    int64_t t = blockIdx.x / a.kv_heads;
    int level = find_level(a, &t), d = a.head_dim, width = a.head_dim + a.value_dim;
    int64_t pieces = pieces_of(a, level);
    place p;
    if (pieces <= 1 || !find_place(&p, a, level, OWN, t)) return;
    int64_t step = (int64_t)a.kv_heads * OWN * width;
    int64_t at = kv_head * a.clusters + hti_cluster_at(a, p.start, level) + p.first;
    int rows = min(OWN, (int)hti_clusters(p.length, level) - p.first);
    const float *from =
        a.pieces + (pieces_before(a, level) + (t * pieces * a.kv_heads + kv_head) * OWN) * width;
    for (int i = (int)threadIdx.x; i < OWN * width; i += THREADS) {
        float sum = 0;
#pragma unroll 8
        for (int64_t k = 0; k < pieces; k++) sum += from[k * step + i];
        int is_key = i < OWN * d, j = is_key ? i : i - OWN * d;
        if (is_key && j / d < rows) a.dkt[at * d + j] = sum;
        if (!is_key && j / a.value_dim < rows) a.dvt[at * a.value_dim + j] = sum;
    }
}

/* dbias [entry][head] += the blocks' tables, one after the other; block k of a head is k *
 * q_heads + head. */
static __global__ void __launch_bounds__(THREADS)
    bias_kernel(const __grid_constant__ hti_cuda_args a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, table = 4 * a.block - 1;
    if (i >= table * a.q_heads) return;
    int64_t entry = i / a.q_heads, head = i % a.q_heads;
    float sum = 0;
#pragma unroll 8
    for (int64_t k = 0; k < a.bias_parts; k++)
        sum += a.bias_part[(k * a.q_heads + head) * table + entry];
    a.dbias[i] += sum;
}

ht_status hti_bias_sums_clear(const ht_context *ctx, const hti_cuda_args &a) {
    if (!a.dbias) return HT_OK;
    size_t count = (size_t)a.bias_parts * (size_t)a.q_heads * (size_t)(4 * a.block - 1);
    CUDA_TRY(ctx, cudaMemsetAsync(a.bias_part, 0, sizeof(float) * count, hti_cuda_of(ctx)->stream),
             "clearing the bias sums");
    return HT_OK;
}

ht_status hti_bias_sums_add(const ht_context *ctx, const hti_cuda_args &a) {
    if (!a.dbias) return HT_OK;
    dim3 grid((unsigned)(((int64_t)a.q_heads * (4 * a.block - 1) + THREADS - 1) / THREADS));
    return hti_cuda_launch(ctx, bias_kernel, "adding the bias sums", grid, THREADS, 0, a);
}

/* ---- launching ---- */

size_t hti_generic_backward_shared(const hti_cuda_args &a) {
    return (size_t)backward_layout(NULL, a.head_dim, a.value_dim, a.other).bytes;
}

int64_t hti_generic_pieces(hti_cuda_args *a) {
    int reach = 16 * (4 * a->block + OWN);
    int64_t rows = 0;
    a->piece_rows = reach > 2048 ? reach : 2048;
    for (int l = 1; l < a->levels && a->query == HT_QUERY_FINE; l++) {
        /* room for a packed call: it is cut into more tiles */
        int64_t tiles = tiles_before(a->rows, a->sequences, a->block, l, OWN);
        if (pieces_of(*a, l) > 1) rows += tiles * pieces_of(*a, l) * a->kv_heads * OWN;
    }
    return rows;
}

static dim3 grid_of(int64_t work) { return dim3((unsigned)(work < INT32_MAX ? work : INT32_MAX)); }

template <typename T, int NC>
static ht_status launch_coarse(const ht_context *ctx, hti_cuda_args a, size_t shared) {
    int64_t tiles = 0, pieces = 0;
    a.coarse = 1;
    for (int l = 1; l < a.levels; l++)
        pieces += a.level_work[l] = tiles_of(a, l, OWN) * pieces_of(a, l);
    a.work = pieces * a.kv_heads;
    const char *name = "running the generic kernel for coarse dk and dv";
    TRY(hti_cuda_launch(ctx, dkdv_kernel<T, NC>, name, grid_of(a.work), THREADS, shared, a));
    for (int l = 1; l < a.levels; l++) tiles += a.level_work[l] = tiles_of(a, l, OWN);
    if (a.query == HT_QUERY_FINE) {
        a.work = tiles * a.kv_heads;
        return hti_cuda_launch(ctx, join_kernel, "adding pieces of dk and dv", grid_of(a.work),
                               THREADS, 0, a);
    }
    a.work = tiles * a.q_heads;
    dim3 grid = a.dbias ? dim3((unsigned)(a.bias_parts * a.q_heads)) : grid_of(a.work);
    name = "running the generic kernel for coarse dq";
    return hti_cuda_launch(ctx, dq_kernel<T, NC>, name, grid, THREADS, shared, a);
}

template <typename T, int NC>
static ht_status launch(const ht_context *ctx, hti_cuda_args a, size_t shared) {
    if (a.levels > 1) TRY((launch_coarse<T, NC>(ctx, a, shared)));
    a.coarse = 0;
    a.work = tiles_of(a, 0, OWN) * a.kv_heads;
    const char *name = "running the generic kernel for dk and dv";
    TRY(hti_cuda_launch(ctx, dkdv_kernel<T, NC>, name, grid_of(a.work), THREADS, shared, a));
    a.work = tiles_of(a, 0, OWN) * a.q_heads;
    dim3 grid = a.dbias ? dim3((unsigned)(a.bias_parts * a.q_heads)) : grid_of(a.work);
    name = "running the generic kernel for dq";
    return hti_cuda_launch(ctx, dq_kernel<T, NC>, name, grid, THREADS, shared, a);
}

ht_status hti_generic_backward(const ht_context *ctx, const hti_cuda_args &args, ht_dtype dtype) {
    hti_cuda_args a = args;
    a.other = 32;
    if (hti_generic_backward_shared(a) > (size_t)hti_cuda_of(ctx)->shared_bytes) a.other = 16;
    size_t shared = hti_generic_backward_shared(a);
    TRY(hti_bias_sums_clear(ctx, a));
    int narrow = a.head_dim <= 64 && a.value_dim <= 64;
    TRY(hti_by_dtype(dtype, [&](auto x) {
        return narrow ? launch<decltype(x), 2>(ctx, a, shared)
                      : launch<decltype(x), 8>(ctx, a, shared);
    }));
    return hti_bias_sums_add(ctx, a);
}
