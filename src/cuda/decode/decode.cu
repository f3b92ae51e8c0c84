/*
 * The decode state: appends rows to slots and attends with each (op.h, cache_extend).
 *
 * A block of eight warps has one (sequence, key head) and goes row by row. Appending: a thread
 * has one column (or, with rotary, one pair of columns) and carries it up through the levels that
 * the row completes. Attending: the query heads of the group share the warps; the keys of all
 * levels are dealt to a head's warps in batches, whose loads are all under way at once; the
 * warps' softmax states meet in shared memory. In query first a coarse level is computed by one
 * warp, only when the row begins a cluster there, and otherwise read from `part`.
 */
#include "cuda/decode/decode.h"

#include <math.h>
#include <string.h>

/* One level as the row at work sees it: clusters of the ring from `slot` on. */
struct seen {
    int64_t slot, count;
    int distance; /* of the first of them to the query's cluster */
    int fresh;    /* query first: the row begins a cluster */
};

struct decode_shared {
    seen level[HTI_MAX_LEVELS];
    float max[WARPS], sum[WARPS];
    float z[WARPS][WIDEST];
};

template <typename S> DEVICE S *ring_row(void *ring, const unit &u, int64_t cluster, int dim) {
    return (S *)ring + (u.state * u.ring + cluster % u.ring) * dim;
}

DEVICE float *ring_count(const decode_args &a, const unit &u, int level, int64_t cluster) {
    return a.level[level].n + u.state * u.ring + cluster % u.ring;
}

/* ---- appending ---- */

/* The columns of K that a thread carries: one, or with rotary a pair (x, y) of which y may be
 * absent. */
struct columns {
    int x, y; /* -1: none */
    double turns;
};

DEVICE columns columns_of(const decode_args &a) {
    int i = (int)threadIdx.x, half = a.head_dim / 2;
    if (a.log2_theta == 0) return {i < a.head_dim ? i : -1, -1, 0};
    if (i < half) return {i, i + half, turns_per_row(a, i)};
    return {i == half && a.head_dim % 2 ? a.head_dim - 1 : -1, -1, 0};
}

/* A thread's part of a cluster: its columns of the key, unturned, and of the value. */
struct carried {
    float x, y, v;
};

template <typename T>
DEVICE carried read_cluster(const decode_args &a, const unit &u, const columns &mine, int level,
                            int64_t cluster) {
    carried r = {0, 0, 0};
    int i = (int)threadIdx.x;
    if (level > 0) {
        const float *k = ring_row<float>(a.level[level].k, u, cluster, a.head_dim);
        if (mine.x >= 0) r.x = k[mine.x];
        if (mine.y >= 0) r.y = k[mine.y];
        if (i < a.value_dim) r.v = ring_row<float>(a.level[level].v, u, cluster, a.value_dim)[i];
        return r;
    }
    const T *k = ring_row<T>(a.level[0].k, u, cluster, a.head_dim);
    if (mine.x >= 0) r.x = to_float(k[mine.x]);
    if (i < a.value_dim) r.v = to_float(ring_row<T>(a.level[0].v, u, cluster, a.value_dim)[i]);
    if (mine.y >= 0) {
        float c, s, x = r.x, y = to_float(k[mine.y]);
        angle_at(&c, &s, mine.turns, cluster);
        r.x = x * c + y * s;
        r.y = y * c - x * s;
    }
    return r;
}

/* Level >= 1: writes the mean of two children, which becomes `right`; n_right their number. */
DEVICE void write_mean(carried &right, float &n_right, const carried &left, float n_left,
                       const decode_args &a, const unit &u, const columns &mine, int level,
                       int64_t cluster) {
    float n = n_left + n_right, inverse = n > 0 ? 1 / n : 0;
    right.x = (n_left * left.x + n_right * right.x) * inverse;
    right.y = (n_left * left.y + n_right * right.y) * inverse;
    right.v = (n_left * left.v + n_right * right.v) * inverse;
    n_right = n;
    float *k = ring_row<float>(a.level[level].k, u, cluster, a.head_dim);
    if (mine.x >= 0) k[mine.x] = right.x;
    if (mine.y >= 0) k[mine.y] = right.y;
    int i = (int)threadIdx.x;
    if (i < a.value_dim) ring_row<float>(a.level[level].v, u, cluster, a.value_dim)[i] = right.v;
}

/* A level's block 0, from the ring of the level below, which holds just its two blocks. */
template <typename T>
DEVICE void build_level(const decode_args &a, const unit &u, const columns &mine, int level) {
    for (int64_t c = 0; c < a.block; c++) {
        carried left = read_cluster<T>(a, u, mine, level - 1, 2 * c);
        carried right = read_cluster<T>(a, u, mine, level - 1, 2 * c + 1);
        float n_left = *ring_count(a, u, level - 1, 2 * c);
        float n_right = *ring_count(a, u, level - 1, 2 * c + 1);
        write_mean(right, n_right, left, n_left, a, u, mine, level, c);
        if (threadIdx.x == 0) *ring_count(a, u, level, c) = n_right;
    }
    if (threadIdx.x == 0 && a.level[level].cluster) a.level[level].cluster[u.state] = -1;
    __syncthreads();
}

/* Row i of the call becomes row t of the slot. The caller synchronises afterwards. */
template <typename T>
DEVICE void append(const decode_args &a, const unit &u, const columns &mine, int64_t i, int64_t t,
                   int levels) {
    int x = (int)threadIdx.x;
    bool valid = !a.key_mask || a.key_mask[u.s.start + i];
    float n = valid ? 1 : 0;
    carried now = {0, 0, 0};
    if (valid) {
        const T *k = tensor_row<const T>(a.k, a, u, u.kv_head, i);
        if (mine.x >= 0) now.x = to_float(k[mine.x]);
        if (mine.y >= 0) now.y = to_float(k[mine.y]);
        if (x < a.value_dim) now.v = to_float(tensor_row<const T>(a.v, a, u, u.kv_head, i)[x]);
    }
    T *k = ring_row<T>(a.level[0].k, u, t, a.head_dim);
    if (mine.y >= 0) {
        float c, s;
        angle_at(&c, &s, mine.turns, t);
        put(k + mine.x, now.x * c - now.y * s);
        put(k + mine.y, now.x * s + now.y * c);
    } else if (mine.x >= 0) {
        put(k + mine.x, now.x);
    }
    if (x < a.value_dim) put(ring_row<T>(a.level[0].v, u, t, a.value_dim) + x, now.v);
    if (x == 0) *ring_count(a, u, 0, t) = n;
    for (int l = 1; l < levels && ((t + 1) & (((int64_t)1 << l) - 1)) == 0; l++) {
        int64_t c = ((t + 1) >> l) - 1;
        carried left = read_cluster<T>(a, u, mine, l - 1, 2 * c);
        write_mean(now, n, left, *ring_count(a, u, l - 1, 2 * c), a, u, mine, l, c);
        if (x == 0) *ring_count(a, u, l, c) = n;
    }
}

/* ---- attending ---- */

/* Thread l finds out what row t sees at level l, and whether it begins a cluster there. */
DEVICE void look(decode_shared *s, const decode_args &a, const unit &u, int64_t t, int levels,
                 bool valid) {
    int l = (int)threadIdx.x;
    if (l >= levels) return;
    int64_t c = t >> l;
    hti_range r = {0, c + 1};
    if (a.kind != HT_FULL) r = hti_keys_left(INT64_MAX, a.block, l, 1, c);
    s->level[l].slot = r.lo % u.ring;
    s->level[l].count = r.hi > r.lo ? r.hi - r.lo : 0;
    /* kind full may be far away: the bias clamps */
    s->level[l].distance = (int)(r.lo - c < -(1 << 30) ? -(1 << 30) : r.lo - c);
    s->level[l].fresh = 0;
    if (l == 0 || !valid || a.query != HT_QUERY_FIRST) return;
    int64_t *cluster = &a.level[l].cluster[u.state];
    s->level[l].fresh = *cluster != c;
    *cluster = c;
}

/* `batch` clusters of a ring, from number j of what the row sees at this level: all loads first,
 * then scores, then values. */
template <typename S, int NC, int BATCH>
DEVICE void attend_batch(softmax<NC> &state, const float (&q)[NC], const decode_args &a,
                         const unit &u, const seen &it, int level, int head, int64_t j) {
    const S *k = (const S *)a.level[level].k + u.state * u.ring * a.head_dim;
    const S *v = (const S *)a.level[level].v + u.state * u.ring * a.value_dim;
    const float *counts = a.level[level].n + u.state * u.ring;
    float key[BATCH][NC], value[BATCH][NC], n[BATCH], x[BATCH], top = state.max;
    int most = 2 * a.block - 1;
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        int64_t row = it.slot + min(j + b, it.count - 1);
        if (row >= u.ring) row -= u.ring;
        n[b] = j + b < it.count ? counts[row] : 0;
        for (int c = 0; c < NC; c++) {
            int column = lane_id() + 32 * c;
            key[b][c] = column < a.head_dim ? to_float(k[row * a.head_dim + column]) : 0;
            value[b][c] = column < a.value_dim ? to_float(v[row * a.value_dim + column]) : 0;
        }
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        float dot = 0;
        for (int c = 0; c < NC; c++) dot += q[c] * key[b][c];
        x[b] = a.scale * warp_sum(dot);
        if (a.bias) {
            int distance = (int)max((int64_t)-most, min((int64_t)most, it.distance + j + b));
            x[b] += a.bias[(int64_t)(distance + most) * a.q_heads + head];
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

/* The batches of a level that fall to one warp of a head: every `stride`-th, from the `turn`-th
 * on. */
template <typename S, int NC, int BATCH>
DEVICE void attend_level(softmax<NC> &state, const float (&q)[NC], const decode_args &a,
                         const unit &u, const seen &it, int level, int head, int turn, int stride) {
    for (int64_t j = (int64_t)turn * BATCH; j < it.count; j += (int64_t)stride * BATCH)
        attend_batch<S, NC, BATCH>(state, q, a, u, it, level, head, j);
}

DEVICE float *part_of(const decode_args &a, const unit &u, int level, int head) {
    int64_t row = (int64_t)u.s.slot * a.q_heads + head;
    return (float *)a.level[level].part + row * (a.value_dim + 2);
}

template <int NC>
DEVICE void store_part(const softmax<NC> &state, const decode_args &a, const unit &u, int level,
                       int head) {
    float *part = part_of(a, u, level, head);
    if (lane_id() == 0) part[0] = state.sum != 0 ? state.max : 0, part[1] = state.sum;
    for (int c = 0; c < NC; c++)
        if (lane_id() + 32 * c < a.value_dim) part[2 + lane_id() + 32 * c] = state.z[c];
}

/* Query head `head` of row t, the share of warp `turn` of `stride`. */
template <typename T, int NC, int BATCH>
DEVICE void attend(softmax<NC> &state, decode_shared *s, const decode_args &a, const unit &u,
                   int64_t i, int64_t t, int levels, int head, int turn, int stride) {
    const T *row = tensor_row<const T>(a.q, a, u, head, i);
    float q[NC], turned[NC];
    int half = a.head_dim / 2;
    for (int c = 0; c < NC; c++) {
        int x = lane_id() + 32 * c;
        turned[c] = q[c] = x < a.head_dim ? to_float(row[x]) : 0;
        if (a.log2_theta == 0 || x >= 2 * half) continue;
        float cosine, sine, other = to_float(row[x < half ? x + half : x - half]);
        angle_at(&cosine, &sine, turns_per_row(a, x < half ? x : x - half), t);
        turned[c] = q[c] * cosine + (x < half ? -other : other) * sine;
    }
    clear(state);
    attend_level<T, NC, BATCH>(state, turned, a, u, s->level[0], 0, head, turn, stride);
    for (int l = 1; l < levels; l++) {
        if (a.query != HT_QUERY_FIRST) { /* begin where the level below stopped: even shares */
            int from = (turn + l) % stride;
            attend_level<float, NC, BATCH>(state, q, a, u, s->level[l], l, head, from, stride);
        } else if (s->level[l].fresh && l % stride == turn) {
            softmax<NC> coarse;
            clear(coarse);
            attend_level<float, NC, BATCH>(coarse, q, a, u, s->level[l], l, head, 0, 1);
            store_part(coarse, a, u, l, head);
        }
    }
}

/* The row's output from the states of warps first ... first + count - 1 and, in query first, the
 * parts. */
template <typename T, int NC>
DEVICE void finish(const decode_shared *s, const decode_args &a, const unit &u, int64_t i,
                   int levels, int head, int first, int count) {
    const int ROUNDS = (HTI_MAX_LEVELS + 31) / 32;
    float weight[ROUNDS], top = -INFINITY, sum = 0, z[NC];
    bool parts = a.query == HT_QUERY_FIRST;
    for (int w = first; w < first + count; w++) top = fmaxf(top, s->max[w]);
    for (int r = 0; r < ROUNDS; r++) {
        int l = 1 + lane_id() + 32 * r;
        weight[r] = -INFINITY;
        if (!parts || l >= levels) continue;
        const float *part = part_of(a, u, l, head);
        if (part[1] != 0) weight[r] = part[0];
    }
    for (int r = 0; r < ROUNDS; r++) top = fmaxf(top, warp_max(weight[r]));
    float from = top == -INFINITY ? 0 : top;
    for (int r = 0; r < ROUNDS; r++) {
        int l = 1 + lane_id() + 32 * r;
        weight[r] = expf(weight[r] - from);
        sum += warp_sum(parts && l < levels ? weight[r] * part_of(a, u, l, head)[1] : 0);
    }
    for (int c = 0; c < NC; c++) z[c] = 0;
    for (int w = first; w < first + count; w++) {
        float share = expf(s->max[w] - from);
        sum += share * s->sum[w];
        for (int c = 0; c < NC; c++) z[c] += share * s->z[w][min(lane_id() + 32 * c, WIDEST - 1)];
    }
    for (int l = 1; parts && l < levels; l++) {
        float share =
            __shfl_sync(ALL_LANES, l <= 32 ? weight[0] : weight[ROUNDS - 1], (l - 1) & 31);
        const float *part = part_of(a, u, l, head) + 2;
        for (int c = 0; c < NC; c++) z[c] += share * part[min(lane_id() + 32 * c, a.value_dim - 1)];
    }
    T *out = tensor_row<T>(a.out, a, u, head, i);
    for (int c = 0; c < NC; c++)
        if (lane_id() + 32 * c < a.value_dim)
            put(out + lane_id() + 32 * c, sum != 0 ? z[c] / sum : 0);
    if (a.lse.data && lane_id() == 0)
        *tensor_row<float>(a.lse, a, u, head, i) = sum != 0 ? top + logf(sum) : -INFINITY;
}

/* A masked query: zero, and -inf. */
template <typename T> DEVICE void finish_masked(const decode_args &a, const unit &u, int64_t i) {
    for (int h = warp_id(); h < a.group; h += WARPS) {
        int head = u.kv_head * a.group + h;
        T *out = tensor_row<T>(a.out, a, u, head, i);
        for (int x = lane_id(); x < a.value_dim; x += 32) put(out + x, 0);
        if (a.lse.data && lane_id() == 0) *tensor_row<float>(a.lse, a, u, head, i) = -INFINITY;
    }
}

/* All query heads of the group, as many at once as there are warps. */
template <typename T, int NC, int BATCH>
DEVICE void attend_row(decode_shared *s, const decode_args &a, const unit &u, int64_t i, int64_t t,
                       int levels) {
    int heads = min(a.group, WARPS), each = WARPS / heads;
    int mine = warp_id() / each, turn = warp_id() % each;
    for (int h = 0; h < a.group; h += heads) {
        int head = u.kv_head * a.group + h + mine;
        bool works = mine < heads && h + mine < a.group;
        if (works) {
            softmax<NC> state;
            attend<T, NC, BATCH>(state, s, a, u, i, t, levels, head, turn, each);
            if (lane_id() == 0) s->max[warp_id()] = state.max, s->sum[warp_id()] = state.sum;
            for (int c = 0; c < NC; c++) s->z[warp_id()][lane_id() + 32 * c] = state.z[c];
        }
        __syncthreads();
        if (works && turn == 0) finish<T, NC>(s, a, u, i, levels, head, warp_id(), each);
        __syncthreads();
    }
}

extern __shared__ float4 hti_shared[];

/* grid: (sequence of the chunk, key head) */
template <typename T, int NC, int BATCH>
static __global__ void __launch_bounds__(THREADS)
    extend_kernel(const __grid_constant__ decode_args a) {
    decode_shared *s = (decode_shared *)hti_shared;
    unit u;
    int index = (int)(blockIdx.x / (unsigned)a.kv_heads);
    u.s = a.sequence[index];
    u.sequence = a.first + index;
    u.kv_head = (int)(blockIdx.x % (unsigned)a.kv_heads);
    u.state = (int64_t)u.s.slot * a.kv_heads + u.kv_head;
    u.ring = a.ring;
    columns mine = columns_of(a);
    for (int64_t i = 0; i < u.s.length; i++) {
        int64_t t = u.s.position + i;
        int levels = a.kind == HT_HIERARCHICAL ? hti_levels(t + 1, a.block) : 1;
        bool valid = !a.query_mask || a.query_mask[u.s.start + i];
        if (levels > 1 && t == (int64_t)a.block << (levels - 1))
            build_level<T>(a, u, mine, levels - 1);
        append<T>(a, u, mine, i, t, levels);
        look(s, a, u, t, levels, valid);
        __syncthreads();
        if (valid) {
            attend_row<T, NC, BATCH>(s, a, u, i, t, levels);
        } else {
            finish_masked<T>(a, u, i);
            __syncthreads();
        }
    }
}

/* ---- launching ---- */

size_t hti_cuda_cache_scratch(const ht_context *ctx, const hti_cache_call *call) {
    (void)ctx;
    return call->a.desc->open > 0 ? hti_cuda_open_scratch(call) : 0;
}

template <typename T>
static ht_status launch(const ht_context *ctx, const decode_args &a, int sequences) {
    dim3 grid((unsigned)(sequences * a.kv_heads));
    const char *name = "extending a cache";
    size_t shared = sizeof(decode_shared);
    if (a.head_dim <= 64 && a.value_dim <= 64)
        return hti_cuda_launch(ctx, extend_kernel<T, 2, 8>, name, grid, THREADS, shared, a);
    return hti_cuda_launch(ctx, extend_kernel<T, 8, 4>, name, grid, THREADS, shared, a);
}

static void set_args(decode_args *a, const hti_cache_call *call) {
    const ht_attention_desc *d = call->a.desc;
    memset(a, 0, sizeof *a);
    memcpy(a->level, call->level, sizeof(hti_cache_level) * (size_t)call->levels);
    a->packed = call->a.cu_seqlens != NULL;
    a->q = call->a.q, a->k = call->a.k, a->v = call->a.v, a->out = call->a.out,
    a->lse = call->a.lse;
    a->bias = (const float *)call->a.bias;
    a->key_mask = call->a.key_mask, a->query_mask = call->a.query_mask;
    a->ring = call->ring;
    a->log2_theta = d->rotary_theta > 0 && d->head_dim > 1 ? log2(d->rotary_theta) : 0;
    a->scale = (float)d->scale;
    a->kind = d->kind, a->query = d->query, a->block = (int)d->block;
    a->q_heads = (int)d->q_heads, a->kv_heads = (int)d->kv_heads;
    a->group = a->q_heads / a->kv_heads;
    a->head_dim = (int)d->head_dim, a->value_dim = (int)d->value_dim;
    if (d->open > 0) hti_cuda_open_args(a, call);
}

ht_status hti_cuda_cache_extend(ht_context *ctx, const hti_cache_call *call) {
    hti_cuda_scope scope(ctx);
    decode_args a;
    CHECK(ctx, call->a.rows <= 1 << 30 && call->slot_count <= INT32_MAX, HT_UNSUPPORTED,
          "device \"%s\" appends at most %d rows in a call, got %lld", ctx->device, 1 << 30,
          (long long)call->a.rows);
    set_args(&a, call);
    for (int64_t b = 0; b < call->a.sequences; b += CHUNK) {
        int count = (int)(call->a.sequences - b < CHUNK ? call->a.sequences - b : CHUNK);
        a.first = (int)b;
        for (int i = 0; i < count; i++) {
            a.sequence[i].position = call->positions[b + i];
            a.sequence[i].start = (int32_t)hti_call_start(&call->a, b + i);
            a.sequence[i].length = (int32_t)hti_call_length(&call->a, b + i);
            a.sequence[i].slot = (int32_t)call->slots[b + i];
        }
        if (call->a.desc->open > 0) {
            TRY(hti_cuda_extend_open(ctx, a, count, call->a.desc->dtype));
            continue;
        }
        TRY(hti_by_dtype(call->a.desc->dtype,
                         [&](auto x) { return launch<decltype(x)>(ctx, a, count); }));
    }
    return HT_OK;
}
