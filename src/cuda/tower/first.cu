/*
 * Attention of which only each sequence's first row is wanted: a classifier's last layer.
 *
 * Row 0 sees rows 0 ... 2*block - 1 and, at level l >= 1, clusters block ... 2*block - 1: every row
 * of the sequence once, in a cluster of one level. So a thread block takes a sequence and some
 * heads of it, goes over the keys once (<q~, k~> is the mean of <q~, k> over the cluster's rows),
 * does the softmax over all clusters, and goes over the values once. Backward: the same products
 * again, then gradients of all rows in one pass; dq~ of level l belongs to rows 0 ... 2^l - 1.
 *
 * A thread has a vector of 16 bytes of a row's columns [heads of the block][dim].
 */
#include "cuda/vector.h"

enum { THREADS = 512, WARPS = THREADS / 32 };

struct first_args {
    int sequences, length, levels; /* of the longest */
    int block, query, heads, dim;
    int own;    /* heads of a thread block */
    int across; /* threads of a row */
    const int32_t *cu;
    ht_tensor q, k, v, out, dout, dq, dk, dv;
    const uint8_t *key_mask, *query_mask;
    float scale, keep;
    uint32_t threshold, offset;
    const uint32_t *offset_device;
    uint64_t seed;
    float *saved; /* [sequences][heads] lse in log2 units */
};

/* ---- shared memory ---- */

struct first_shared {
    float *q;        /* [levels][columns] queries of the levels' first clusters */
    float *part;     /* [levels][WARPS][columns] sums of the warps */
    float *count;    /* [levels][WARPS], then [levels] valid queries */
    float *dots;     /* [length][own] <q~, k> of each row */
    float *dots2;    /* backward: <dz, v> */
    float *weight;   /* [clusters][own] scores, then what a row's value is multiplied with */
    float *weight2;  /* backward: what q~ is multiplied with; weight: dz */
    float *sums;     /* [own][3] backward: lse and h */
    uint32_t *place; /* [length] cluster and, from bit 24 on, level of a row */
    int bytes;
};

/* Places of all clusters, and one for rows that are not seen (kind local). */
HTI_FN int places(int block, int levels) { return 2 * block + (levels - 1) * block + 1; }

HTI_FN first_shared layout_of(float *base, const first_args &a, int backward) {
    int columns = a.own * a.dim, all = places(a.block, a.levels), used = 0;
    int rows = (a.length + 3) / 4 * 4;
    first_shared s;
    s.q = base + used, used += a.levels * columns;
    s.part = base + used, used += a.levels * WARPS * columns;
    s.count = base + used, used += (a.levels * WARPS + 3) / 4 * 4;
    s.dots = base + used, used += rows * a.own;
    s.dots2 = base + used, used += backward ? rows * a.own : 0;
    s.weight = base + used, used += all * a.own;
    s.weight2 = base + used, used += backward ? all * a.own : 0;
    s.sums = base + used, used += 4 * a.own;
    s.place = (uint32_t *)(base + used), used += rows;
    s.bytes = used * (int)sizeof(float);
    return s;
}

/* ---- where a thread is ---- */

struct worker {
    int sequence, length, levels;
    int64_t start;
    int head, own; /* the thread's head; its number in the block */
    int column;    /* of the block's columns: the first of the thread's vector */
    int inside;    /* the same of the head's */
    int row, step; /* first row, rows at a time */
    int lanes;     /* threads of a head's row */
};

template <typename T> DEVICE worker find_worker(const first_args &a) {
    enum { N = 16 / sizeof(T) };
    int groups = a.heads / a.own;
    worker w;
    w.sequence = (int)blockIdx.x / groups;
    w.start = a.cu ? a.cu[w.sequence] : (int64_t)w.sequence * a.length;
    w.length = a.cu ? (int)(a.cu[w.sequence + 1] - w.start) : a.length;
    w.levels = a.levels > 1 ? hti_levels(w.length, a.block) : 1;
    w.column = (int)threadIdx.x % a.across * N;
    w.own = w.column / a.dim, w.inside = w.column % a.dim;
    w.head = (int)blockIdx.x % groups * a.own + w.own;
    w.row = (int)threadIdx.x / a.across, w.step = THREADS / a.across;
    w.lanes = a.dim / N;
    return w;
}

/* The thread's columns of row 0. */
template <typename T> DEVICE T *rows_of(const ht_tensor &t, const first_args &a, const worker &w) {
    int64_t base = a.cu ? w.start * t.row_stride : w.sequence * t.batch_stride;
    return (T *)t.data + base + w.head * t.head_stride + w.inside;
}
/* Its columns of a tensor that has first rows alone. */
template <typename T> DEVICE T *first_of(const ht_tensor &t, const worker &w) {
    return (T *)t.data + w.sequence * t.row_stride + w.head * t.head_stride + w.inside;
}

DEVICE bool takes(const uint8_t *mask, const worker &w, int row) {
    return !mask || mask[w.start + row];
}

/* Rows of place j: first and one after the last; level. */
DEVICE int3 rows_at(const first_args &a, const worker &w, int j) {
    if (j == places(a.block, w.levels) - 1) return make_int3(0, 0, 0);
    int level = j < 2 * a.block ? 0 : (j - 2 * a.block) / a.block + 1;
    int cluster = level ? j - level * a.block : j; /* - 2*block - (level - 1)*block + block */
    int64_t from = (int64_t)cluster << level, to = (int64_t)(cluster + 1) << level;
    return make_int3((int)min(from, (int64_t)w.length), (int)min(to, (int64_t)w.length), level);
}

DEVICE void find_places(const first_shared &s, const first_args &a, const worker &w) {
    for (int r = (int)threadIdx.x; r < w.length; r += THREADS) {
        int in = r / a.block, level = in < 2 ? 0 : 31 - __clz(in);
        int j = level ? (r >> level) + level * a.block : r;
        if (level >= w.levels) level = 0, j = places(a.block, w.levels) - 1;
        s.place[r] = (uint32_t)j | (uint32_t)level << 24;
    }
}

/* ---- sums over the rows of a block: within a warp, then over the warps in order ---- */

template <int N> DEVICE void keep_part(float *part, float *sum, const first_args &a) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < N; i++)
        for (int o = a.across; o < 32; o *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], o);
    if (lane < a.across) store<N>(part + warp * a.own * a.dim + lane * N, sum);
}

DEVICE float add_warps(const float *part, int stride) {
    float sum = 0;
    for (int w = 0; w < WARPS; w++) sum += part[w * stride];
    return sum;
}

/* ---- queries of the levels ---- */

/* Rows that cluster 0 of a level has and that of the level below has not. */
DEVICE int2 added_rows(const worker &w, int level) {
    int from = level ? 1 << (level - 1) : 0;
    return make_int2(min(from, w.length), min(1 << level, w.length));
}

template <typename T>
DEVICE void mean_queries(const first_shared &s, const first_args &a, const worker &w) {
    enum { N = 16 / sizeof(T) };
    const T *q = rows_of<const T>(a.q, a, w);
    int columns = a.own * a.dim;
    for (int l = 0; l < w.levels; l++) {
        int2 rows = added_rows(w, l);
        float sum[N] = {0}, count = 0, x[N];
        for (int r = rows.x + w.row; r < rows.y; r += w.step) {
            if (!takes(a.query_mask, w, r)) continue;
            load<N>(x, q + r * a.q.row_stride);
            for (int i = 0; i < N; i++) sum[i] += x[i];
            count += 1;
        }
        keep_part<N>(s.part + l * WARPS * columns, sum, a);
        for (int o = a.across; o < 32; o *= 2) count += __shfl_xor_sync(0xffffffffu, count, o);
        if (threadIdx.x % 32 == 0) s.count[l * WARPS + threadIdx.x / 32] = count;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < w.levels * columns; i += THREADS) {
        float sum = 0, count = 0;
        for (int l = 0; l <= i / columns; l++) {
            sum += add_warps(s.part + l * WARPS * columns + i % columns, columns);
            count += add_warps(s.count + l * WARPS, 1);
        }
        s.q[i] = count > 0 ? sum / count : 0;
    }
}

/* Of query first and fine the same on all levels: row 0 is the first of every cluster 0. */
template <typename T>
DEVICE void load_queries(const first_shared &s, const first_args &a, const worker &w) {
    enum { N = 16 / sizeof(T) };
    if (a.query == HT_QUERY_MEAN) {
        mean_queries<T>(s, a, w);
    } else {
        float x[N] = {0};
        if (takes(a.query_mask, w, 0)) load<N>(x, rows_of<const T>(a.q, a, w));
        for (int l = w.row; l < w.levels; l += w.step)
            store<N>(s.q + l * a.own * a.dim + w.column, x);
    }
    __syncthreads();
}

/* ---- scores ---- */

/* <x, row> of all valid rows, x by level (stride 0: one for all) */
template <typename T>
DEVICE void multiply_rows(float *dots, const first_shared &s, const first_args &a, const worker &w,
                          const ht_tensor &t, const float *x, int stride) {
    enum { N = 16 / sizeof(T) };
    const T *rows = rows_of<const T>(t, a, w);
    int most = (w.length + w.step - 1) / w.step * w.step;
#pragma unroll 4
    for (int r = w.row; r < most; r += w.step) { /* whole warps: lanes add up */
        float y[N], sum = 0;
        if (r < w.length && takes(a.key_mask, w, r)) {
            float with[N];
            load<N>(with, x + (s.place[r] >> 24) * stride + w.column);
            load<N>(y, rows + r * t.row_stride);
#pragma unroll
            for (int i = 0; i < N; i++) sum = fmaf(y[i], with[i], sum);
        }
        for (int o = w.lanes / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (r < w.length && w.inside == 0) dots[r * a.own + w.own] = sum;
    }
}

/* Mean of `dots` over the valid rows of a place, and how many there are. */
DEVICE float mean_at(float *count, const float *dots, const first_args &a, const worker &w,
                     int3 rows, int own) {
    float sum = 0, n = 0;
    for (int r = rows.x; r < rows.y; r++) {
        if (!takes(a.key_mask, w, r)) continue;
        sum += dots[r * a.own + own];
        n += 1;
    }
    *count = n;
    return n > 0 ? sum / n : 0;
}

/* 1/(1-p), or 0 if the weight of a place is dropped. */
DEVICE float kept(const first_args &a, const worker &w, int j, int level, int head) {
    if (!a.threshold) return 1;
    uint32_t offset = a.offset_device ? *a.offset_device : a.offset;
    uint32_t stream = (uint32_t)w.sequence * (uint32_t)a.heads + (uint32_t)head;
    int cluster = level ? j - level * a.block : j;
    hti_philox d = hti_dropout_words(a.seed, offset, stream, level, 0, (uint32_t)(cluster / 4));
    return d.w[cluster % 4] >= a.threshold ? a.keep : 0;
}

/* ---- forward ---- */

/* One warp per head: scores of its places become factors of the rows' values. */
DEVICE void soften(const first_shared &s, const first_args &a, const worker &w, int own) {
    int all = places(a.block, w.levels), lane = (int)threadIdx.x % 32;
    int head = (int)blockIdx.x % (a.heads / a.own) * a.own + own;
    float top = HTI_NEG_INF, sum = 0;
    for (int j = lane; j < all; j += 32) top = fmaxf(top, s.weight[j * a.own + own]);
    for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    float base = top == HTI_NEG_INF ? 0 : top;
    for (int j = lane; j < all; j += 32) sum += exp2f(s.weight[j * a.own + own] - base);
    sum = sum_lanes<32>(sum);
    bool seen = sum != 0 && takes(a.query_mask, w, 0);
    float lse = seen ? base + log2f(sum) : HTI_NEG_INF;
    for (int j = lane; j < all; j += 32) {
        int3 rows = rows_at(a, w, j);
        float p = seen ? exp2f(s.weight[j * a.own + own] - lse) : 0, n = (float)(rows.y - rows.x);
        if (a.key_mask) {
            n = 0;
            for (int r = rows.x; r < rows.y; r++) n += takes(a.key_mask, w, r) ? 1 : 0;
        }
        s.weight[j * a.own + own] = n > 0 ? p * kept(a, w, j, rows.z, head) / n : 0;
    }
    if (lane == 0 && a.saved) a.saved[(int64_t)w.sequence * a.heads + head] = lse;
}

extern __shared__ float4 hti_shared[];

template <typename T>
static __global__ void __launch_bounds__(THREADS, 2) first_forward(const first_args a) {
    enum { N = 16 / sizeof(T) };
    worker w = find_worker<T>(a);
    first_shared s = layout_of((float *)hti_shared, a, 0);
    int columns = a.own * a.dim;
    if (w.length == 0) {
        float none[N] = {0};
        if (w.row == 0) store<N>(first_of<T>(a.out, w), none);
        return;
    }
    find_places(s, a, w);
    load_queries<T>(s, a, w);
    multiply_rows<T>(s.dots, s, a, w, a.k, s.q, columns);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < places(a.block, w.levels) * a.own; i += THREADS) {
        float n, x = mean_at(&n, s.dots, a, w, rows_at(a, w, i / a.own), i % a.own);
        s.weight[i] = n > 0 ? a.scale * HTI_LOG2E * x + log2f(n) : HTI_NEG_INF;
    }
    __syncthreads();
    for (int own = (int)threadIdx.x / 32; own < a.own; own += WARPS) soften(s, a, w, own);
    __syncthreads();
    const T *v = rows_of<const T>(a.v, a, w);
    float sum[N] = {0}, x[N];
#pragma unroll 4
    for (int r = w.row; r < w.length; r += w.step) {
        float weight = s.weight[(s.place[r] & 0xffffff) * (uint32_t)a.own + (uint32_t)w.own];
        if (weight == 0 || !takes(a.key_mask, w, r)) continue;
        load<N>(x, v + r * a.v.row_stride);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = fmaf(weight, x[i], sum[i]);
    }
    keep_part<N>(s.part, sum, a);
    __syncthreads();
    if (w.row != 0) return;
    for (int i = 0; i < N; i++) x[i] = add_warps(s.part + w.column + i, columns);
    store<N>(first_of<T>(a.out, w), x);
}

/* ---- backward ---- */

/* Factors of q~ (dk) and of dz (dv) of all places. */
DEVICE void find_factors(const first_shared &s, const first_args &a, const worker &w) {
    for (int i = (int)threadIdx.x; i < places(a.block, w.levels) * a.own; i += THREADS) {
        int own = i % a.own, j = i / a.own;
        int head = (int)blockIdx.x % (a.heads / a.own) * a.own + own;
        int3 rows = rows_at(a, w, j);
        float n, x = mean_at(&n, s.dots, a, w, rows, own), lse = s.sums[2 * own];
        float dp = mean_at(&n, s.dots2, a, w, rows, own), p = 0, keep = 0;
        if (n > 0 && lse != HTI_NEG_INF) {
            p = exp2f(a.scale * HTI_LOG2E * x - lse); /* over n: a row's share */
            keep = kept(a, w, j, rows.z, head);
        }
        s.weight[i] = p * keep;
        s.weight2[i] = p != 0 ? a.scale * p * (keep * dp - s.sums[2 * own + 1]) : 0;
    }
}

/* dz as float into part[0 ... columns), lse and h = <dz, z> of each head into sums. */
template <typename T>
DEVICE void load_first(const first_shared &s, const first_args &a, const worker &w) {
    enum { N = 16 / sizeof(T) };
    float g[N], z[N], h = 0;
    load<N>(g, first_of<const T>(a.dout, w));
    load<N>(z, first_of<const T>(a.out, w));
    for (int i = 0; i < N; i++) h = fmaf(g[i], z[i], h);
    for (int o = w.lanes / 2; o > 0; o /= 2) h += __shfl_xor_sync(0xffffffffu, h, o);
    if (w.row == 0) {
        store<N>(s.part + w.column, g);
        s.sums[2 * w.own] = a.saved[(int64_t)w.sequence * a.heads + w.head];
        s.sums[2 * w.own + 1] = h;
    }
}

/* Rows of a level: dk and dv; returns the thread's share of dq~ of the level. */
template <typename T, int N>
DEVICE void key_gradients(float *dq, const first_shared &s, const first_args &a, const worker &w,
                          const float *g, int level) {
    const T *k = rows_of<const T>(a.k, a, w);
    T *dk = rows_of<T>(a.dk, a, w), *dv = rows_of<T>(a.dv, a, w);
    int64_t first = level ? (int64_t)a.block << level : 0, end = (int64_t)2 * a.block << level;
    if (level == w.levels - 1) end = w.length; /* kind local: rows that are not seen */
    int from = (int)min(first, (int64_t)w.length), to = (int)min(end, (int64_t)w.length);
    float q[N];
    load<N>(q, s.q + level * a.own * a.dim + w.column);
#pragma unroll 2
    for (int r = from + w.row; r < to; r += w.step) {
        uint32_t i = (s.place[r] & 0xffffff) * (uint32_t)a.own + (uint32_t)w.own;
        float x = s.weight[i], y = s.weight2[i], key[N], out[N];
        bool valid = takes(a.key_mask, w, r);
        if (valid && y != 0) {
            load<N>(key, k + r * a.k.row_stride);
#pragma unroll
            for (int c = 0; c < N; c++) dq[c] = fmaf(y, key[c], dq[c]);
        }
#pragma unroll
        for (int c = 0; c < N; c++) out[c] = valid ? y * q[c] : 0;
        store<N>(dk + r * a.dk.row_stride, out);
#pragma unroll
        for (int c = 0; c < N; c++) out[c] = valid ? x * g[c] : 0;
        store<N>(dv + r * a.dv.row_stride, out);
    }
}

/* dq of all rows: the sum of dq~ over the levels whose cluster 0 has the row, over its rows; in
 * query first and fine everything is row 0's. Call it with all parts kept. */
template <typename T, int N>
DEVICE void query_gradients(const first_shared &s, const first_args &a, const worker &w) {
    bool mean = a.query == HT_QUERY_MEAN;
    int columns = a.own * a.dim, top = mean ? min(1 << (w.levels - 1), w.length) : 1;
    T *dq = rows_of<T>(a.dq, a, w);
    float sum[N] = {0}, none[N] = {0};
    for (int r = top + w.row; r < w.length; r += w.step) store<N>(dq + r * a.dq.row_stride, none);
    for (int l = w.levels - 1; l >= 0; l--) {
        int2 rows = mean ? added_rows(w, l) : make_int2(0, l == 0 ? 1 : 0);
        float count = mean ? 0 : 1;
        for (int b = 0; b <= l && mean; b++) count += add_warps(s.count + b * WARPS, 1);
        for (int i = 0; i < N; i++) {
            float part = add_warps(s.part + l * WARPS * columns + w.column + i, columns);
            sum[i] += count > 0 ? part / count : 0;
        }
        for (int r = rows.x + w.row; r < rows.y; r += w.step) {
            float out[N];
            bool valid = takes(a.query_mask, w, r);
            for (int i = 0; i < N; i++) out[i] = valid ? sum[i] : 0;
            store<N>(dq + r * a.dq.row_stride, out);
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, 2) first_backward(const first_args a) {
    enum { N = 16 / sizeof(T) };
    worker w = find_worker<T>(a);
    first_shared s = layout_of((float *)hti_shared, a, 1);
    int columns = a.own * a.dim;
    if (w.length == 0) return;
    find_places(s, a, w);
    load_queries<T>(s, a, w);
    load_first<T>(s, a, w);
    __syncthreads();
    float g[N];
    load<N>(g, s.part + w.column);
    multiply_rows<T>(s.dots, s, a, w, a.k, s.q, columns);
    multiply_rows<T>(s.dots2, s, a, w, a.v, s.part, 0);
    __syncthreads();
    find_factors(s, a, w);
    __syncthreads();
    for (int l = 0; l < w.levels; l++) {
        float dq[N] = {0};
        key_gradients<T, N>(dq, s, a, w, g, l);
        keep_part<N>(s.part + l * WARPS * columns, dq, a);
    }
    __syncthreads();
    query_gradients<T, N>(s, a, w);
}

/* ---- from outside ---- */

static void set_shape(first_args *a, const ht_attention_desc *d, int64_t sequences,
                      int64_t length) {
    int n = 16 / (int)hti_bytes(d->dtype), most = 8 * n; /* 128 bytes of a row */
    a->sequences = (int)sequences, a->length = (int)length;
    a->levels = d->kind == HT_HIERARCHICAL ? hti_levels(length, d->block) : 1;
    a->block = (int)d->block, a->query = d->query;
    a->heads = (int)d->q_heads, a->dim = (int)d->head_dim;
    for (a->own = 1; a->heads % (2 * a->own) == 0 && 2 * a->own * a->dim <= most;) a->own *= 2;
    a->across = a->own * a->dim / n;
    a->scale = (float)d->scale;
    a->keep = (float)(1 / (1 - d->dropout));
    a->threshold = hti_dropout_threshold(d->dropout);
}

int hti_first_plans(const hti_cuda_backend *cuda, const ht_attention_desc *d) {
    int64_t n = 16 / (int64_t)hti_bytes(d->dtype), vectors = d->head_dim / n;
    first_args a = {};
    if (d->dtype == HT_F16 || d->kind == HT_FULL || d->causal || d->has_bias ||
        d->rotary_theta > 0 || d->kv_heads != d->q_heads || d->value_dim != d->head_dim ||
        d->head_dim % n != 0 || vectors > 32 || (vectors & (vectors - 1)) != 0 || d->block > 4096 ||
        d->max_length >= 1 << 24 || d->max_sequences * d->q_heads > INT32_MAX)
        return 0;
    set_shape(&a, d, d->max_sequences, d->max_length);
    return layout_of(NULL, a, 1).bytes <= cuda->shared_bytes;
}

static ht_status run_first(ht_context *ctx, const hti_attention_call *c, const int32_t *cu,
                           int backward) {
    first_args a = {};
    int bf = c->desc->dtype == HT_BF16;
    set_shape(&a, c->desc, c->sequences, c->length);
    a.cu = cu, a.q = c->q, a.k = c->k, a.v = c->v, a.out = c->out;
    a.dout = c->dout, a.dq = c->dq, a.dk = c->dk, a.dv = c->dv;
    a.key_mask = c->key_mask, a.query_mask = c->query_mask;
    a.seed = c->seed, a.offset = c->offset, a.offset_device = c->offset_device;
    a.saved = (float *)c->saved;
    auto kernel = backward ? (bf ? first_backward<bf16> : first_backward<float>)
                           : (bf ? first_forward<bf16> : first_forward<float>);
    return hti_cuda_launch(ctx, kernel, "attention of first rows",
                           dim3((unsigned)(a.sequences * (a.heads / a.own))), THREADS,
                           (size_t)layout_of(NULL, a, backward).bytes, a);
}

ht_status hti_first_forward(ht_context *ctx, const hti_attention_call *call, const int32_t *cu) {
    return run_first(ctx, call, cu, 0);
}

ht_status hti_first_backward(ht_context *ctx, const hti_attention_call *call, const int32_t *cu) {
    return run_first(ctx, call, cu, 1);
}
