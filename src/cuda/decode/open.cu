/*
 * The decode state of plans that open: all rows and all clusters are kept.
 *
 * Two launches. The first appends: a block has one (sequence, key head), writes all rows of the
 * call, then level by level the clusters that they complete. The second attends: a block has one
 * row and query head. It descends from the top level: its warps score the candidates of a level
 * from the clusters below them, their ranks say which are opened, and all that takes part waits in
 * two lists, so that keys and values are loaded in long batches.
 */
#include "cuda/decode/decode.h"

/* Candidates that fit into shared memory, entries of each list, candidates that are ranked by
 * comparing all with all. */
static const int FEW = 512, LIST = 512, RANKED = THREADS;
/* Bytes of candidates of all blocks together where they do not fit, and the most such blocks. */
static const int64_t ROOM = 256 << 20, ROOM_BLOCKS = 1024;

struct open_shared {
    float max[WARPS], sum[WARPS];
    float z[WARPS][WIDEST];
    int64_t cluster[LIST], leaf[LIST]; /* number * 64 + level */
    int64_t candidate[2][FEW];
    uint64_t rank[FEW];
    uint8_t opened[FEW];
};

/* The candidates of a level, in the order of their clusters; the children of those that were opened
 * go to the other side. rank rises with the score and falls with the number; 0: no valid row. */
struct chooser {
    int64_t *candidate[2]; /* [most] */
    uint64_t *rank;        /* [most] */
    uint8_t *opened;       /* [most] */
};

static const int64_t ROOM_EACH = 3 * 8 + 1; /* bytes of a candidate */

DEVICE int64_t level_row(const decode_args &a, const unit &u, int level, int64_t cluster) {
    return u.state * (a.ring >> level) + cluster;
}

/* ---- appending ---- */

/* Key of row i of the call, and where the slot keeps it; i counts from the call's first row. */
template <typename T>
DEVICE void append_column(const decode_args &a, const unit &u, int64_t i, int x, bool valid) {
    int64_t t = u.s.position + i, at = level_row(a, u, 0, t);
    if (x >= a.head_dim) {
        x -= a.head_dim;
        float v = valid ? to_float(tensor_row<const T>(a.v, a, u, u.kv_head, i)[x]) : 0;
        put((T *)a.level[0].v + at * a.value_dim + x, v);
        return;
    }
    const T *k = tensor_row<const T>(a.k, a, u, u.kv_head, i);
    float own = valid ? to_float(k[x]) : 0;
    put((T *)a.level[0].k + at * a.head_dim + x, own);
    if (x == 0) a.level[0].n[at] = valid;
    if (a.log2_theta == 0 || i < u.s.length - 2 * a.block) return;
    int half = a.head_dim / 2, pair = x < half ? x : x - half;
    int64_t near = u.state * 2 * a.block + t % (2 * a.block);
    if (x < 2 * half && valid) {
        float c, s, other = to_float(k[x < half ? x + half : pair]);
        angle_at(&c, &s, turns_per_row(a, pair), t);
        own = own * c + (x < half ? -other : other) * s;
    }
    put((T *)a.level[0].near + near * a.head_dim + x, own);
}

/* Column x of the mean of two children; S is what the level below has. */
template <typename S>
DEVICE void mean_column(const decode_args &a, const unit &u, int level, int64_t c, int x) {
    int64_t to = level_row(a, u, level, c), from = level_row(a, u, level - 1, 2 * c);
    float n_left = a.level[level - 1].n[from], n_right = a.level[level - 1].n[from + 1];
    float n = n_left + n_right, inverse = n > 0 ? 1 / n : 0;
    int key = x < a.head_dim, dim = key ? a.head_dim : a.value_dim;
    const S *below = (const S *)(key ? a.level[level - 1].k : a.level[level - 1].v) + from * dim;
    float *out = (float *)(key ? a.level[level].k : a.level[level].v) + to * dim;
    if (x == 0) a.level[level].n[to] = n;
    if (!key) x -= a.head_dim;
    out[x] = (n_left * to_float(below[x]) + n_right * to_float(below[dim + x])) * inverse;
}

DEVICE unit unit_of(const decode_args &a, int index, int kv_head) {
    unit u;
    u.s = a.sequence[index];
    u.sequence = a.first + index;
    u.kv_head = kv_head;
    u.state = (int64_t)u.s.slot * a.kv_heads + kv_head;
    u.ring = a.ring;
    return u;
}

/* grid: (sequence of the chunk, key head) */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    append_kernel(const __grid_constant__ decode_args a) {
    unit u = unit_of(a, (int)(blockIdx.x / (unsigned)a.kv_heads),
                     (int)(blockIdx.x % (unsigned)a.kv_heads));
    int64_t begin = u.s.position, end = begin + u.s.length, width = a.head_dim + a.value_dim;
    int old = begin > 0 ? hti_levels(begin, a.block) : 1, levels = hti_levels(end, a.block);
    if (u.s.length == 0) return;
    for (int64_t e = threadIdx.x; e < u.s.length * width; e += THREADS) {
        int64_t i = e / width;
        bool valid = !a.key_mask || a.key_mask[u.s.start + i];
        append_column<T>(a, u, i, (int)(e - i * width), valid);
    }
    for (int l = 1; l < levels; l++) { /* a level that is new begins with cluster 0 */
        int64_t from = l < old ? begin >> l : 0, count = (end >> l) - from;
        __syncthreads();
        for (int64_t e = threadIdx.x; e < count * width; e += THREADS) {
            int64_t c = e / width;
            if (l == 1) mean_column<T>(a, u, l, from + c, (int)(e - c * width));
            if (l > 1) mean_column<float>(a, u, l, from + c, (int)(e - c * width));
        }
    }
}

/* ---- what takes part ---- */

/* A row's query: a lane's columns, their partners of the turn and how fast they turn. */
template <int NC> struct asked {
    float q[NC], other[NC];
    double turns[NC];
    int64_t t;
    int head;
};

template <typename T, int NC>
DEVICE asked<NC> ask(const decode_args &a, const unit &u, int64_t i, int head) {
    const T *row = tensor_row<const T>(a.q, a, u, head, i);
    int half = a.head_dim / 2;
    asked<NC> r;
    r.t = u.s.position + i;
    r.head = head;
    for (int c = 0; c < NC; c++) {
        int x = lane_id() + 32 * c;
        r.q[c] = x < a.head_dim ? to_float(row[x]) : 0;
        r.other[c] = 0, r.turns[c] = 0;
        if (a.log2_theta == 0 || x >= 2 * half) continue;
        r.other[c] = x < half ? -to_float(row[x + half]) : to_float(row[x - half]);
        r.turns[c] = turns_per_row(a, x < half ? x : x - half);
    }
    return r;
}

/* Logits of clusters at[b] of the levels level[b], without bias; all loads first. turned: rows of
 * level 0 whose key meets the query turned by the distance. */
template <typename S, int NC, int BATCH>
DEVICE void logits(float (&s)[BATCH], const asked<NC> &q, const decode_args &a, const unit &u,
                   const int64_t (&at)[BATCH], const int (&level)[BATCH], bool turned) {
    float key[BATCH][NC];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        const S *k = (const S *)a.level[level[b]].k + level_row(a, u, level[b], at[b]) * a.head_dim;
        for (int c = 0; c < NC; c++) {
            int x = lane_id() + 32 * c;
            key[b][c] = x < a.head_dim ? to_float(k[x]) : 0;
        }
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        float dot = 0;
        for (int c = 0; c < NC; c++) {
            float cosine = 1, sine = 0;
            if (turned) angle_at(&cosine, &sine, q.turns[c], q.t - at[b]);
            dot += (q.q[c] * cosine + q.other[c] * sine) * key[b][c];
        }
        s[b] = a.scale * warp_sum(dot);
    }
}

/* Clusters (S float) or rows (S = T, level 0) join the softmax; -1: none. */
template <typename S, int NC, int BATCH>
DEVICE void attend_parts(softmax<NC> &state, const asked<NC> &q, const decode_args &a,
                         const unit &u, const int64_t (&part)[BATCH], bool turned) {
    float value[BATCH][NC], n[BATCH], x[BATCH], top = state.max;
    int64_t at[BATCH], most = 2 * a.block - 1;
    int level[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        int64_t p = part[b] < 0 ? part[0] : part[b];
        level[b] = (int)(p & 63), at[b] = p >> 6;
        int64_t row = level_row(a, u, level[b], at[b]);
        const S *v = (const S *)a.level[level[b]].v + row * a.value_dim;
        n[b] = part[b] < 0 ? 0 : a.level[level[b]].n[row];
        for (int c = 0; c < NC; c++) {
            int column = lane_id() + 32 * c;
            value[b][c] = column < a.value_dim ? to_float(v[column]) : 0;
        }
    }
    logits<S, NC, BATCH>(x, q, a, u, at, level, turned);
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        if (a.bias) {
            int64_t distance = max(-most, min(most, at[b] - (q.t >> level[b])));
            x[b] += a.bias[(distance + most) * a.q_heads + q.head];
        }
        if (n[b] > 0) top = fmaxf(top, x[b]);
    }
    float from = top == -INFINITY ? 0 : top, fade = expf(state.max - from);
    state.max = top;
    state.sum *= fade;
    for (int c = 0; c < NC; c++) state.z[c] *= fade;
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        if (!(n[b] > 0)) continue;
        float w = n[b] * expf(x[b] - from);
        state.sum += w;
        for (int c = 0; c < NC; c++) state.z[c] += w * value[b][c];
    }
}

/* Rows [from, from + count), the batches of one warp of `stride`. */
template <typename T, int NC, int BATCH>
DEVICE void attend_rows(softmax<NC> &state, const asked<NC> &q, const decode_args &a, const unit &u,
                        int64_t from, int64_t count, int turn, int stride, bool turned) {
    int64_t part[BATCH];
    for (int64_t j = (int64_t)turn * BATCH; j < count; j += (int64_t)stride * BATCH) {
        for (int b = 0; b < BATCH; b++) part[b] = j + b < count ? (from + j + b) << 6 : -1;
        attend_parts<T, NC, BATCH>(state, q, a, u, part, turned);
    }
}

/* The lists are emptied: clusters in batches, leaves one to a warp. All threads. */
template <typename T, int NC, int BATCH>
DEVICE void flush(softmax<NC> &state, const open_shared *s, const asked<NC> &q,
                  const decode_args &a, const unit &u, int clusters, int leaves) {
    int64_t part[BATCH];
    __syncthreads();
    for (int j = warp_id() * BATCH; j < clusters; j += WARPS * BATCH) {
        for (int b = 0; b < BATCH; b++) part[b] = j + b < clusters ? s->cluster[j + b] : -1;
        attend_parts<float, NC, BATCH>(state, q, a, u, part, false);
    }
    for (int j = warp_id(); j < leaves; j += WARPS) {
        int level = (int)(s->leaf[j] & 63);
        attend_rows<T, NC, BATCH>(state, q, a, u, s->leaf[j] >> 6 << level, (int64_t)1 << level, 0,
                                  1, false);
    }
    __syncthreads();
}

/* ---- scores ---- */

/* Orders candidates as the choice does: by score, NaN last, then the smaller number. */
DEVICE uint64_t rank_of(float score, int64_t x) {
    unsigned bits = __float_as_uint(score + 0.0f); /* -0 is 0 */
    bits = score != score ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - (unsigned)x);
}

/* Candidates whose insides are longer than a batch: a warp has one, and makes its logits twice. */
template <typename S, int NC, int BATCH>
DEVICE void score_wide(const chooser &ch, const int64_t *candidate, const asked<NC> &q,
                       const decode_args &a, const unit &u, int below, int down, int64_t n) {
    float s[BATCH];
    int64_t at[BATCH];
    int level[BATCH];
    for (int64_t x = warp_id(); x < n; x += WARPS) {
        float all = 0, mean = 0, square = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t j = 0; j < (int64_t)1 << down; j += BATCH) {
                for (int b = 0; b < BATCH; b++)
                    at[b] = (candidate[x] << down) + j + b, level[b] = below;
                logits<S, NC, BATCH>(s, q, a, u, at, level, false);
                for (int b = 0; b < BATCH; b++) {
                    float count = a.level[below].n[level_row(a, u, below, at[b])];
                    if (!(count > 0)) continue;
                    if (pass == 0) all += count, mean += count * s[b];
                    if (pass == 1) square += count * (s[b] - mean) * (s[b] - mean);
                }
            }
            if (pass == 0) mean /= all;
        }
        if (lane_id() == 0) ch.rank[x] = all > 0 ? rank_of(mean + sqrtf(square / all), x) : 0;
    }
}

/* A warp makes the logits inside a few candidates at once, then lane g the score of the g-th. */
template <typename S, int NC, int BATCH>
DEVICE void score_level(const chooser &ch, const int64_t *candidate, const asked<NC> &q,
                        const decode_args &a, const unit &u, int below, int down, int64_t n) {
    int each = down < 8 ? BATCH >> down : 0;
    float s[BATCH], count[BATCH];
    int64_t at[BATCH];
    int level[BATCH];
    if (each == 0) {
        score_wide<S, NC, BATCH>(ch, candidate, q, a, u, below, down, n);
        return;
    }
    for (int64_t from = (int64_t)warp_id() * each; from < n; from += WARPS * each) {
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int64_t x = min(from + (b >> down), n - 1);
            at[b] = (candidate[x] << down) + (b & ((1 << down) - 1)), level[b] = below;
            count[b] = a.level[below].n[level_row(a, u, below, at[b])];
        }
        logits<S, NC, BATCH>(s, q, a, u, at, level, false);
        float all = 0, mean = 0, square = 0;
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (b >> down == lane_id() && count[b] > 0) all += count[b], mean += count[b] * s[b];
        mean /= all;
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (b >> down == lane_id() && count[b] > 0)
                square += count[b] * (s[b] - mean) * (s[b] - mean);
        int64_t x = from + lane_id();
        if (lane_id() < each && x < n)
            ch.rank[x] = all > 0 ? rank_of(mean + sqrtf(square / all), x) : 0;
    }
}

/* ---- choosing ---- */

/* The `open` candidates of the highest rank; few are compared with all others, of many the lowest
 * rank that is opened is found bit by bit. */
DEVICE void choose(const chooser &ch, int64_t n, int64_t open) {
    int64_t x = threadIdx.x;
    if (n <= open || n > RANKED) {
        uint64_t from = 0;
        for (int bit = 63; bit >= 0 && n > open; bit--) { /* every warp for itself */
            uint64_t trial = from | (uint64_t)1 << bit;
            int64_t above = 0;
            for (int64_t y = lane_id(); y - lane_id() < n; y += 32)
                above += __popc(__ballot_sync(ALL_LANES, y < n && ch.rank[y] >= trial));
            if (above >= open) from = trial;
        }
        for (; x < n; x += THREADS) ch.opened[x] = ch.rank[x] != 0 && ch.rank[x] >= from;
    } else if (x < n) {
        uint64_t mine = ch.rank[x];
        int ahead = 0;
        for (int64_t y = 0; y < n; y++) ahead += ch.rank[y] > mine;
        ch.opened[x] = mine != 0 && ahead < open;
    }
}

/* ---- descending ---- */

/* All levels above 0. Every warp counts what comes into the lists, the first one writes it. */
template <typename T, int NC, int BATCH>
DEVICE void descend(softmax<NC> &state, open_shared *s, const chooser &ch, const asked<NC> &q,
                    const decode_args &a, const unit &u, int levels) {
    int clusters = 0, leaves = 0, side = 0;
    int64_t children = 0;
    for (int level = levels - 1; level > 0; level--, side ^= 1) {
        int64_t *candidate = ch.candidate[side], *child = ch.candidate[side ^ 1];
        hti_range r = hti_keys_left(INT64_MAX, a.block, level, 1, q.t >> level);
        int64_t met = r.hi > r.lo ? r.hi - r.lo : 0, n = children + met;
        for (int64_t x = threadIdx.x; x < met; x += THREADS) candidate[children + x] = r.lo + x;
        __syncthreads();
        int down = min(a.peek, level), below = level - down;
        if (below == 0) score_level<T, NC, BATCH>(ch, candidate, q, a, u, below, down, n);
        if (below > 0) score_level<float, NC, BATCH>(ch, candidate, q, a, u, below, down, n);
        __syncthreads();
        choose(ch, n, a.open);
        __syncthreads();
        children = 0;
        for (int64_t from = 0; from < n; from += 32) {
            int64_t x = from + lane_id(), c = x < n ? candidate[x] : 0;
            bool live = x < n && ch.rank[x] != 0, opened = live && ch.opened[x];
            unsigned kept = __ballot_sync(ALL_LANES, live && !opened);
            unsigned gone = __ballot_sync(ALL_LANES, opened), before = (1u << lane_id()) - 1;
            if (clusters + 32 > LIST || leaves + 32 > LIST) {
                flush<T, NC, BATCH>(state, s, q, a, u, clusters, leaves);
                clusters = leaves = 0;
            }
            bool writes = warp_id() == 0, leaf = level <= a.leaf_level;
            if (writes && live && !opened)
                s->cluster[clusters + __popc(kept & before)] = c << 6 | level;
            if (writes && opened && leaf) s->leaf[leaves + __popc(gone & before)] = c << 6 | level;
            if (writes && opened && !leaf) {
                int64_t at = children + 2 * __popc(gone & before);
                child[at] = 2 * c, child[at + 1] = 2 * c + 1;
            }
            clusters += __popc(kept);
            if (leaf) leaves += __popc(gone);
            if (!leaf) children += 2 * __popc(gone);
        }
    }
    flush<T, NC, BATCH>(state, s, q, a, u, clusters, leaves);
}

/* The row's output from the states of all warps. */
template <typename T, int NC>
DEVICE void finish(const softmax<NC> &state, open_shared *s, const decode_args &a, const unit &u,
                   int64_t i, int head) {
    float top = -INFINITY, sum = 0, z[NC];
    if (lane_id() == 0) s->max[warp_id()] = state.max, s->sum[warp_id()] = state.sum;
    for (int c = 0; c < NC; c++) s->z[warp_id()][lane_id() + 32 * c] = state.z[c], z[c] = 0;
    __syncthreads();
    if (warp_id() == 0) {
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, s->max[w]);
        float from = top == -INFINITY ? 0 : top;
        for (int w = 0; w < WARPS; w++) {
            float share = expf(s->max[w] - from);
            sum += share * s->sum[w];
            for (int c = 0; c < NC; c++) z[c] += share * s->z[w][lane_id() + 32 * c];
        }
        T *out = tensor_row<T>(a.out, a, u, head, i);
        for (int c = 0; c < NC; c++)
            if (lane_id() + 32 * c < a.value_dim)
                put(out + lane_id() + 32 * c, sum != 0 ? z[c] / sum : 0);
        if (a.lse.data && lane_id() == 0)
            *tensor_row<float>(a.lse, a, u, head, i) = sum != 0 ? top + logf(sum) : -INFINITY;
    }
    __syncthreads();
}

extern __shared__ float4 hti_shared[];

DEVICE chooser chooser_of(open_shared *s, const decode_args &a) {
    if (!a.room) return {{s->candidate[0], s->candidate[1]}, s->rank, s->opened};
    int64_t *own = (int64_t *)(a.room + blockIdx.x * a.room_each);
    uint64_t *rank = (uint64_t *)(own + 2 * a.most);
    return {{own, own + a.most}, rank, (uint8_t *)(rank + a.most)};
}

/* grid: blocks that share the (row, query head) */
template <typename T, int NC, int BATCH>
static __global__ void __launch_bounds__(THREADS)
    attend_kernel(const __grid_constant__ decode_args a) {
    open_shared *s = (open_shared *)hti_shared;
    chooser ch = chooser_of(s, a);
    for (int64_t item = blockIdx.x; item < a.items; item += gridDim.x) {
        int64_t i = item / a.q_heads;
        int head = (int)(item - i * a.q_heads), index = 0;
        while (i >= a.sequence[index].length) i -= a.sequence[index++].length;
        unit u = unit_of(a, index, head / a.group);
        softmax<NC> state;
        clear(state);
        if (!a.query_mask || a.query_mask[u.s.start + i]) {
            asked<NC> q = ask<T, NC>(a, u, i, head);
            hti_range r = hti_keys_left(INT64_MAX, a.block, 0, 1, q.t);
            attend_rows<T, NC, BATCH>(state, q, a, u, r.lo, r.hi - r.lo, warp_id(), WARPS,
                                      a.log2_theta != 0);
            descend<T, NC, BATCH>(state, s, ch, q, a, u, hti_levels(q.t + 1, a.block));
        }
        finish<T, NC>(state, s, a, u, i, head);
    }
}

/* ---- launching ---- */

static int64_t room_each(const hti_cache_call *call) {
    int64_t most = hti_open_candidates(call->a.desc, call->ring);
    return most <= FEW ? 0 : (most * ROOM_EACH + 63) / 64 * 64;
}

static int64_t room_blocks(int64_t each) {
    int64_t blocks = ROOM / each;
    return blocks < 1 ? 1 : blocks > ROOM_BLOCKS ? ROOM_BLOCKS : blocks;
}

size_t hti_cuda_open_scratch(const hti_cache_call *call) {
    int64_t each = room_each(call);
    return each ? (size_t)(each * room_blocks(each)) : 0;
}

void hti_cuda_open_args(decode_args *a, const hti_cache_call *call) {
    const ht_attention_desc *d = call->a.desc;
    a->open = d->open;
    a->peek = d->open_peek < 0 ? 0 : (int)d->open_peek;
    a->leaf_level = 1;
    while (a->leaf_level < HTI_MAX_LEVELS && (int64_t)2 << a->leaf_level <= d->open_leaf)
        a->leaf_level++;
    a->most = hti_open_candidates(d, call->ring);
    a->room_each = room_each(call);
    a->room = a->room_each ? (char *)call->a.scratch : NULL;
}

template <typename T>
static ht_status launch(const ht_context *ctx, const decode_args &a, int sequences) {
    int64_t blocks = a.items < 1 << 16 ? a.items : 1 << 16;
    if (a.room && blocks > room_blocks(a.room_each)) blocks = room_blocks(a.room_each);
    const char *name = "extending a cache";
    dim3 units((unsigned)(sequences * a.kv_heads)), grid((unsigned)blocks);
    TRY(hti_cuda_launch(ctx, append_kernel<T>, name, units, THREADS, 0, a));
    if (a.head_dim <= 64 && a.value_dim <= 64)
        return hti_cuda_launch(ctx, attend_kernel<T, 2, 8>, name, grid, THREADS,
                               sizeof(open_shared), a);
    return hti_cuda_launch(ctx, attend_kernel<T, 8, 4>, name, grid, THREADS, sizeof(open_shared),
                           a);
}

ht_status hti_cuda_extend_open(const ht_context *ctx, const decode_args &args, int sequences,
                               ht_dtype dtype) {
    decode_args a = args;
    a.items = 0;
    for (int i = 0; i < sequences; i++) a.items += (int64_t)a.sequence[i].length * a.q_heads;
    return hti_by_dtype(dtype, [&](auto x) { return launch<decltype(x)>(ctx, a, sequences); });
}
