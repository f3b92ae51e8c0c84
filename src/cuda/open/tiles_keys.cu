/*
 * Opened clusters on tensor cores, dk and dv. A warp, or all warps of a block in turns, owns up to
 * eight keys: two sibling clusters, rows of a cluster that was opened for good, or eight rows of
 * level 0. The rows that take part come through a queue in shared memory, sixteen at a time; the
 * products are those of forward with both sides changed.
 *
 *     P = n exp(s - lse)     ds = P (<G, v> - h)     dV~ += P G     dK~ += ds q
 */
#include "cuda/open/tiles_back.h"

enum { KEY_WARPS = 8, QUEUE = 8 * 32 + 16 };
enum { OF_PAIRS, OF_LEAVES, OF_ROWS };

/* keys 2 t, 2 t + 1 of this lane: log2 of their rows, or -inf */
template <int D> struct owner {
    place p;
    level_view l;
    int kv_head, first, keys;
    uint4 k[D / 32], v[D / 32];
    float weight[2], dk[D / 16][4], dv[D / 16][4];
};

template <int D> DEVICE void own(owner<D> &w, const hti_open_tiles &o) {
    int g = lane_id() / 4, t = lane_id() % 4, at = min(w.first + g, w.l.count - 1);
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        w.k[j] = load16(key_at(w.l, at) + 32 * j + 8 * t);
        w.v[j] = load16(value_at(w.l, at) + 32 * j + 8 * t);
    }
    for (int i = 0; i < 2; i++) {
        int key = 2 * t + i;
        float n = key < w.keys ? rows_of(o.a, w.p, w.l, w.first + key) : 0;
        w.weight[i] = n > 0 ? log2f(n) : HTI_NEG_INF;
    }
#pragma unroll
    for (int m = 0; m < D / 16; m++)
        for (int i = 0; i < 4; i++) w.dk[m][i] = w.dv[m][i] = 0;
}

/* A queued row: which keys take it, in two bits. */
DEVICE int queued(int row, unsigned bits) { return row << 2 | (int)bits; }

/* Sixteen rows of a head from a queue of `count`, which all are live. */
template <int D, int MODE>
DEVICE void take_rows16(owner<D> &w, const hti_open_tiles &o, int head, const int *queue, int x0,
                        int count) {
    const hti_cuda_args &a = o.a;
    int g = lane_id() / 4, t = lane_id() % 4, row[2], bits[2];
    float lse[2], h[2], s[4], dp[4], p[4], ds[4];
    const bf16 *q = tensor_row<const bf16>(a.q, a, w.p, head, 0);
    const bf16 *d = tensor_row<const bf16>(a.dout, a, w.p, head, 0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int x = x0 + 8 * i + g, it = queue[min(x, count - 1)];
        row[i] = it >> 2, bits[i] = x < count ? it & 3 : 0;
        int64_t at = head * a.rows + w.p.start + row[i];
        lse[i] = a.saved[at] * HTI_LOG2E, h[i] = a.h[at];
    }
    multiply<D>(s, q + row[0] * a.q.row_stride, q + row[1] * a.q.row_stride, w.k);
    multiply<D>(dp, d + row[0] * a.dout.row_stride, d + row[1] * a.dout.row_stride, w.v);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int key = 2 * t + i % 2;
        bool has = MODE == OF_PAIRS ? t == 0 && (bits[i / 2] >> i % 2 & 1) : bits[i / 2] != 0;
        if (MODE == OF_ROWS) has = has && !(a.causal && w.first + key > row[i / 2]);
        has = has && w.weight[i % 2] != HTI_NEG_INF;
        float x = fmaf(s[i], o.scale2, w.weight[i % 2]);
        p[i] = has ? exp2_fast(x - lse[i / 2]) : 0;
        ds[i] = has ? p[i] * (dp[i] - h[i / 2]) : 0;
    }
    four_rows of_q, of_d;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int it = queue[min(x0 + 2 * t + i % 2 + 8 * (i / 2), count - 1)] >> 2;
        of_q.at[i] = q + it * a.q.row_stride, of_d.at[i] = d + it * a.dout.row_stride;
    }
    add_products<D>(w.dv, of_d, matrix_across(two_halves(p[0], p[1])),
                    matrix_across(two_halves(p[2], p[3])));
    add_products<D>(w.dk, of_q, matrix_across(two_halves(ds[0], ds[1])),
                    matrix_across(two_halves(ds[2], ds[3])));
}

/* Queues and takes a segment's members; warp `part` of `share` takes every share-th 32 of them. */
template <int D, int MODE>
DEVICE void take_members(owner<D> &w, const hti_open_tiles &o, int head, const hti_member *list,
                         int n, int *queue, int part, int share) {
    int waiting = 0;
    for (int x0 = 32 * part; x0 < n; x0 += 32 * share) {
        int x = x0 + lane_id();
        hti_member it = {0, 0};
        if (x < n) it = list[x];
        unsigned rows = (it.rows | it.rows >> 8) & 0xffu;
        int mine = __popc(rows), sum = mine;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(ALL_LANES, sum, (unsigned)step);
            if (lane_id() >= step) sum += other;
        }
        int at = waiting + sum - mine;
        for (; rows; rows &= rows - 1) {
            int r = __ffs((int)rows) - 1;
            unsigned bits =
                MODE == OF_PAIRS ? (it.rows >> r & 1) | (it.rows >> (8 + r) & 1) << 1 : 3;
            queue[at++] = queued(it.tile * HTI_OPEN_TILE + r, bits);
        }
        waiting += __shfl_sync(ALL_LANES, sum, 31);
        __syncwarp();
        int done = 0;
        for (; done + 16 <= waiting; done += 16)
            take_rows16<D, MODE>(w, o, head, queue, done, waiting);
        int left = lane_id() < waiting - done ? queue[done + lane_id()] : 0;
        __syncwarp();
        if (lane_id() < waiting - done) queue[lane_id()] = left;
        waiting -= done;
        __syncwarp();
    }
    if (waiting > 0) take_rows16<D, MODE>(w, o, head, queue, 0, waiting);
    __syncwarp();
}

/* Rows that see the owned keys at level 0, those that are live. */
template <int D>
DEVICE void take_neighbours(owner<D> &w, const hti_open_tiles &o, int head, int *queue) {
    const hti_cuda_args &a = o.a;
    reach from = queries_of(a, w.p.length, 0, w.first);
    for (int x0 = from.lo0; x0 < from.hi0; x0 += 32) {
        int row = x0 + lane_id();
        bool live = row < from.hi0 && a.saved[head * a.rows + w.p.start + row] != -INFINITY;
        unsigned all = __ballot_sync(ALL_LANES, live);
        if (live) queue[__popc(all & ((1u << lane_id()) - 1))] = queued(row, 3);
        __syncwarp();
        for (int done = 0; done < __popc(all); done += 16)
            take_rows16<D, OF_ROWS>(w, o, head, queue, done, __popc(all));
        __syncwarp();
    }
}

/* ---- what becomes of the sums ---- */

/* Sums of all warps of a block, in order, in its first one. */
template <int D> DEVICE void join_warps(owner<D> &w, float *room) {
    enum { SUMS = D / 8 * 4 };
    float *mine = room + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++) {
        mine[32 * KEY_WARPS * (2 * i)] = w.dk[i / 4][i % 4];
        mine[32 * KEY_WARPS * (2 * i + 1)] = w.dv[i / 4][i % 4];
    }
    __syncthreads();
    if (warp_id() != 0) return;
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++) {
        for (int other = 1; other < KEY_WARPS; other++) {
            w.dk[i / 4][i % 4] += mine[32 * KEY_WARPS * (2 * i) + 32 * other];
            w.dv[i / 4][i % 4] += mine[32 * KEY_WARPS * (2 * i + 1) + 32 * other];
        }
    }
}

/* This lane's columns of key 2 t + i: eight by eight (D 32: four). */
template <int D> DEVICE int column_of(int m) {
    int g = lane_id() / 4;
    return D == 32 ? 4 * g + 2 * m : m / 4 * 64 + 8 * g + m % 4 * 2;
}

template <int D> DEVICE void put_key(float *to, const float (&z)[D / 16][4], int i, bool add) {
#pragma unroll
    for (int m = 0; m < D / 16; m++) {
        float2 *at = (float2 *)(to + column_of<D>(m));
        float2 x = make_float2(i ? z[m][1] : z[m][0], i ? z[m][3] : z[m][2]);
        if (add) x.x += at->x, x.y += at->y;
        *at = x;
    }
}

template <int D> DEVICE void store_sums(owner<D> &w, const hti_open_back &b, bool rows) {
    const hti_cuda_args &a = b.o.a;
    for (int i = 0; i < 2; i++) {
        int key = 2 * (lane_id() % 4) + i, c = w.first + key;
        if (key >= w.keys || c >= w.l.count) continue;
        int64_t at =
            rows ? w.kv_head * a.rows + w.p.start + c : w.kv_head * a.clusters + w.l.at + c;
        put_key<D>((rows ? b.dk0 : a.dkt) + at * D, w.dk, i, rows);
        put_key<D>((rows ? b.dv0 : a.dvt) + at * D, w.dv, i, rows);
    }
}

/* z += sums of the levels above over their rows, and of row j where it was opened. */
template <int D>
DEVICE void add_above(float (&z)[D / 16][4], int i, const hti_open_back &b, const owner<D> &w,
                      const float *opened, const float *grads, int j) {
    const hti_cuda_args &a = b.o.a;
    int levels = levels_of(a, w.p.length);
    const float *row = opened + (w.kv_head * a.rows + w.p.start + j) * D;
    for (int level = 0; level < levels && levels > 1; level++) {
        float share = 1;
        if (level > 0) {
            int64_t at = hti_cluster_at(a, w.p.start, level) + (j >> level);
            int size = min(1 << level, w.p.length - (j >> level << level));
            share = 1 / (a.key_mask ? a.kn[at] : (float)size);
            row = grads + (w.kv_head * a.clusters + at) * D;
        }
#pragma unroll
        for (int m = 0; m < D / 16; m++) {
            float2 x = *(const float2 *)(row + column_of<D>(m));
            if (i == 0) z[m][0] += share * x.x, z[m][2] += share * x.y;
            if (i == 1) z[m][1] += share * x.x, z[m][3] += share * x.y;
        }
    }
}

template <int D> DEVICE void store_keys(owner<D> &w, const hti_open_back &b) {
    const hti_cuda_args &a = b.o.a;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int j = w.first + 2 * (lane_id() % 4) + i;
        if (j >= w.p.length) continue;
        bool valid = takes_part(a.key_mask, w.p, j);
        if (valid) {
            add_above<D>(w.dk, i, b, w, b.dk0, a.dkt, j);
            add_above<D>(w.dv, i, b, w, b.dv0, a.dvt, j);
        }
        store_columns<D>(tensor_row<bf16>(a.dk, a, w.p, w.kv_head, j), w.dk, i,
                         valid ? a.scale : 0);
        store_columns<D>(tensor_row<bf16>(a.dv, a, w.p, w.kv_head, j), w.dv, i, valid ? 1 : 0);
    }
}

/* ---- kernels ---- */

/* Pairs of this level, or rows of its clusters that were opened for good. */
template <int D, int MODE>
static __global__ void __launch_bounds__(32 * KEY_WARPS)
    keys_kernel(const __grid_constant__ hti_open_back b) {
    const hti_cuda_args &a = b.o.a;
    int *queue = (int *)hti_shared + warp_id() * QUEUE;
    int64_t unit = ((int64_t)blockIdx.x * KEY_WARPS + warp_id()) / b.share;
    int part = warp_id() % b.share, cluster;
    owner<D> w;
    if (unit >= b.units) return; /* with it its whole block, where warps share */
    w.kv_head = (int)(unit % a.kv_heads);
    int64_t t = unit / a.kv_heads, eights = MODE == OF_LEAVES ? max(1, (1 << b.level) / 8) : 1;
    if (!find_place(&w.p, a, b.level, MODE == OF_PAIRS ? 2 : 1, t / eights)) return;
    if (b.level >= levels_of(a, w.p.length)) return;
    cluster = MODE == OF_PAIRS ? w.p.first / 2 : w.p.first;
    w.l = view_of(b.o, w.p, w.kv_head, MODE == OF_PAIRS ? b.level : 0);
    w.first = w.p.first, w.keys = 2;
    if (MODE == OF_LEAVES) {
        w.first = (cluster << b.level) + (int)(t % eights) * 8;
        w.keys = min(8, 1 << b.level);
        if (w.first >= w.p.length) return;
    }
    own(w, b.o);
    int64_t at = hti_cluster_at(a, w.p.start, b.level) - a.base[b.level] + cluster;
    for (int head = w.kv_head * a.group; head < (w.kv_head + 1) * a.group; head++) {
        const int *first = b.sorting.first + head * b.stride + at;
        const hti_member *list = b.sorting.sorted + head * b.tiles * (b.o.entries / 2) + first[0];
        take_members<D, MODE>(w, b.o, head, list, first[1] - first[0], queue, part, b.share);
    }
    if (b.share > 1) {
        join_warps(w, (float *)((int *)hti_shared + KEY_WARPS * QUEUE));
        if (warp_id() != 0) return;
    }
    store_sums(w, b, MODE == OF_LEAVES);
}

/* Eight rows at level 0; then all their sums are there. */
template <int D>
static __global__ void __launch_bounds__(32 * KEY_WARPS)
    level0_kernel(const __grid_constant__ hti_open_back b) {
    const hti_cuda_args &a = b.o.a;
    int *queue = (int *)hti_shared + warp_id() * QUEUE;
    int64_t unit = (int64_t)blockIdx.x * KEY_WARPS + warp_id();
    owner<D> w;
    w.kv_head = (int)(unit / b.tiles);
    if (unit >= b.units || !find_place(&w.p, a, 0, HTI_OPEN_TILE, unit % b.tiles)) return;
    w.l = view_of(b.o, w.p, w.kv_head, 0);
    w.first = w.p.first, w.keys = 8;
    own(w, b.o);
    for (int head = w.kv_head * a.group; head < (w.kv_head + 1) * a.group; head++)
        take_neighbours(w, b.o, head, queue);
    store_keys(w, b);
}

/* ---- launching ---- */

static unsigned blocks_of(int64_t warps) { return (unsigned)((warps + KEY_WARPS - 1) / KEY_WARPS); }

template <int D, int MODE>
static ht_status launch_keys(const ht_context *ctx, hti_open_back b, const hti_sorting &which) {
    const char *name = "running the opening tiles for dk and dv";
    int64_t per = MODE == OF_LEAVES && b.level > 3 ? (int64_t)1 << (b.level - 3) : 1;
    TRY(hti_open_sort(ctx, b, which));
    b.sorting = which;
    b.units = tiles_of(b.o.a, b.level, MODE == OF_PAIRS ? 2 : 1) * per * b.o.a.kv_heads;
    b.share = b.units < 16 * hti_cuda_of(ctx)->processors ? KEY_WARPS : 1;
    size_t shared = sizeof(int) * KEY_WARPS * QUEUE;
    if (b.share > 1) shared += sizeof(float) * 32 * KEY_WARPS * (D / 8 * 4);
    return hti_cuda_launch(ctx, keys_kernel<D, MODE>, name, dim3(blocks_of(b.units * b.share)),
                           32 * KEY_WARPS, shared, b);
}

template <int D> static ht_status launch_all(const ht_context *ctx, hti_open_back b) {
    const hti_cuda_args &a = b.o.a;
    cudaStream_t stream = hti_cuda_of(ctx)->stream;
    size_t rows = sizeof(float) * (size_t)(a.kv_heads * a.rows * D);
    const char *doing = "clearing the sums of opened rows";
    if (a.levels > 1) CUDA_TRY(ctx, cudaMemsetAsync(b.dk0, 0, rows, stream), doing);
    if (a.levels > 1) CUDA_TRY(ctx, cudaMemsetAsync(b.dv0, 0, rows, stream), doing);
    for (b.level = a.levels - 1; b.level > 0; b.level--) {
        b.level_room = (a.rows >> b.level) + a.rows / ((int64_t)a.block << b.level);
        TRY(hti_open_list(ctx, b));
        TRY((launch_keys<D, OF_PAIRS>(ctx, b, b.pairs)));
        if (b.level <= b.o.leaf_level) TRY((launch_keys<D, OF_LEAVES>(ctx, b, b.leaves)));
        hti_open_lists used = b.above;
        b.above = b.now, b.now = used;
    }
    b.units = b.tiles * a.kv_heads;
    return hti_cuda_launch(ctx, level0_kernel<D>, "running the opening tiles for rows of dk and dv",
                           dim3(blocks_of(b.units)), 32 * KEY_WARPS,
                           sizeof(int) * KEY_WARPS * QUEUE, b);
}

ht_status hti_open_tiles_keys(const ht_context *ctx, const hti_open_back &b) {
    if (b.o.a.head_dim == 32) return launch_all<32>(ctx, b);
    return b.o.a.head_dim == 64 ? launch_all<64>(ctx, b) : launch_all<128>(ctx, b);
}

ht_status hti_open_tiles_backward(const ht_context *ctx, const hti_open_back &shape) {
    hti_open_back b = shape;
    b.tiles = tiles_of(b.o.a, 0, HTI_OPEN_TILE);
    b.o.work = b.tiles * b.o.a.q_heads;
    TRY(hti_open_tiles_dq(ctx, b.o));
    return hti_open_tiles_keys(ctx, b);
}

static void carve_sorting(hti_carver *c, hti_sorting *s, int64_t tiles, int64_t room,
                          int64_t counters) {
    s->of_tile = c->take<int>(tiles);
    s->raw = c->take<hti_pair>(tiles * room);
    s->counter = c->take<int>(counters);
}

void hti_open_back_carve(hti_carver *c, hti_open_back *b, const ht_attention_desc *d,
                         int has_key_mask) {
    const hti_cuda_args &a = b->o.a;
    hti_open_tiles_carve(c, &b->o, d, has_key_mask);
    /* as tiles_of for packed calls, which have the most */
    int64_t tiles = (a.rows / HTI_OPEN_TILE + a.sequences) * a.q_heads, room = b->o.entries / 2;
    b->stride = (a.rows >> 1) + a.rows / (2 * (int64_t)a.block) + 2;
    if (a.levels < 2) return;
    for (int i = 0; i < 2; i++) {
        hti_open_lists *l = i ? &b->above : &b->now;
        l->list = c->take<hti_opener>(tiles * room);
        l->count = c->take<int>(tiles);
    }
    carve_sorting(c, &b->pairs, tiles, room, a.q_heads * b->stride);
    carve_sorting(c, &b->leaves, tiles, room, a.q_heads * b->stride);
    b->pairs.first = c->take<int>(a.q_heads * b->stride);
    b->pairs.placed = c->take<hti_member>(tiles * room);
    b->pairs.sorted = c->take<hti_member>(tiles * room);
    b->leaves.first = b->pairs.first; /* pairs are done when leaves come */
    b->leaves.placed = b->pairs.placed, b->leaves.sorted = b->pairs.sorted;
    b->dk0 = c->take<float>(a.kv_heads * a.rows * a.head_dim);
    b->dv0 = c->take<float>(a.kv_heads * a.rows * a.head_dim);
}
