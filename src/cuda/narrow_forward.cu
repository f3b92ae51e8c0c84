/*
 * Forward of narrow rows: coarse rows leave (max, sum, numerator) in shared memory, rows merge what
 * the clusters above them left.
 */
#include "cuda/hier.h"
#include "cuda/narrow.h"

enum { FORWARD_THREADS = 256 };

struct forward_shared {
    float *k, *v, *n; /* [places] keys, values; valid rows, later their log2 */
    float *q;         /* [coarse places] queries, later numerators ... */
    float *max, *sum; /* ... of sum, relative to max */
    int *at;
    int bytes;
};

HTI_FN forward_shared forward_layout(float *base, int dim, int length, int levels) {
    int all = narrow_places(NULL, length, levels), used = 0;
    int coarse = all - chunks_up(length);
    forward_shared s;
    s.k = base + used, used += all * dim;
    s.v = base + used, used += all * dim;
    s.q = base + used, used += coarse * dim;
    s.n = base + used, used += all;
    s.max = base + used, used += coarse;
    s.sum = base + used, used += coarse;
    s.at = (int *)(base + used), used += NARROW_LEVELS + 1;
    s.bytes = used * (int)sizeof(float);
    return s;
}

/* Rows of a cluster: sums over the valid ones, and how many there are. Query first: the first valid
 * row instead of a sum. */
template <int D> struct node {
    row_of<D> k, v, q;
    float keys, queries;
};

template <int D>
DEVICE node<D> load_node(const hti_cuda_args &a, const sequence &s, int row, bool coarse) {
    bool key = takes_part(a.key_mask, s.p, row);
    bool query = coarse && takes_part(a.query_mask, s.p, row);
    node<D> x;
    x.k = key ? fetch<D>(tensor_row<const bf16>(a.k, a, s.p, s.head, row)) : zeros<D>();
    x.v = key ? fetch<D>(tensor_row<const bf16>(a.v, a, s.p, s.head, row)) : zeros<D>();
    x.q = query ? fetch<D>(tensor_row<const bf16>(a.q, a, s.p, s.head, row)) : zeros<D>();
    x.keys = key ? 1.0f : 0.0f, x.queries = query ? 1.0f : 0.0f;
    return x;
}

/* Level 0 of keys and values; the other levels of all three. */
template <int D>
DEVICE void load_sequence(const forward_shared &m, const hti_cuda_args &a, const sequence &s) {
    enum { ROWS = owned<D>::ROWS };
    bool mean = a.query == HT_QUERY_MEAN;
    auto join = [&](const node<D> &x, const node<D> &y) {
        node<D> z = {sum_of(x.k, y.k), sum_of(x.v, y.v), x.queries > 0 ? x.q : y.q, x.keys + y.keys,
                     x.queries + y.queries};
        if (mean) z.q = sum_of(x.q, y.q);
        return z;
    };
    auto keep = [&](int level, int c, const node<D> &x) {
        int place = s.at[level] + c, coarse = place - s.at[1];
        if (place >= s.at[level + 1]) return;
        float share = share_of(x.keys);
        set<D>(m.k, place, times(x.k, share)), set<D>(m.v, place, times(x.v, share));
        set<D>(m.q, coarse, times(x.q, mean ? share_of(x.queries) : 1));
        m.n[place] = log2f(x.keys);
    };
    int end = rows_to_fold(s, 32 * ROWS);
    for (int c = (int)threadIdx.x * ROWS; c < end; c += FORWARD_THREADS * ROWS) {
        node<D> x[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) x[r] = load_node<D>(a, s, c + r, s.levels > 1);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (c + r >= s.at[1]) continue;
            set<D>(m.k, c + r, x[r].k), set<D>(m.v, c + r, x[r].v);
            m.n[c + r] = x[r].keys > 0 ? 0 : -INFINITY;
        }
        fold_rows<D>(x, c, s.levels, join, keep);
    }
    __syncthreads();
}

/* Softmax over what a thread's rows have seen so far. */
template <int D> struct state {
    enum { ROWS = owned<D>::ROWS };
    float max[ROWS], sum[ROWS];
    row_of<D> z[ROWS];
    uint64_t keeps[ROWS]; /* bits of all chunks */
};

template <int D> DEVICE state<D> nothing_seen() {
    state<D> t;
#pragma unroll
    for (int r = 0; r < t.ROWS; r++) {
        t.max[r] = -INFINITY, t.sum[r] = 0, t.keeps[r] = 0;
        t.z[r] = zeros<D>();
    }
    return t;
}

/* Scores of one row and a chunk become weights, its state is rescaled to the new maximum. */
template <int D> DEVICE void soften(state<D> &t, int r, float (&x)[CHUNK]) {
    float top = t.max[r], sum = 0;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) top = fmaxf(top, x[i]);
    float from = top == -INFINITY ? 0 : top, fade = power2(t.max[r] - from);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        x[i] = power2(x[i] - from);
        sum += x[i];
    }
    t.max[r] = top;
    t.sum[r] = t.sum[r] * fade + sum;
    scale_row(t.z[r], fade);
}

/* One chunk of keys at place j. Bits of sees (causal) and keeps say which of them a row sees, and
 * which values are added. */
template <int D, int MODE>
DEVICE void attend_chunk(state<D> &t, const forward_shared &m, const row_of<D> *q, int j,
                         const unsigned *sees, const unsigned *keeps) {
    enum { ROWS = owned<D>::ROWS };
    float x[ROWS][CHUNK];
    row_of<CHUNK> n = get<CHUNK>(m.n + j, 0);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        row_of<D> k = get<D>(m.k, j + i);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            x[r][i] = dot(q[r], k, n.x[i]);
            if (MODE == CAUSAL && !(sees[r] >> i & 1)) x[r][i] = -INFINITY;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) soften<D>(t, r, x[r]);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        row_of<D> v = get<D>(m.v, j + i);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (MODE == PLAIN || keeps[r] >> i & 1) add(t.z[r], x[r][i], v);
    }
}

/* Rows c ... of a level over all their keys. */
template <int D, int MODE>
DEVICE state<D> attend_level(const forward_shared &m, const hti_cuda_args &a, const sequence &s,
                             const row_of<D> *q, int level, int c) {
    enum { ROWS = owned<D>::ROWS };
    state<D> t = nothing_seen<D>();
    int last = min(c + ROWS, (int)hti_clusters(s.p.length, level)) - 1;
    chunks list = chunks_of(keys_of(a, s.p.length, level, last));
    for (int i = 0; i < list.count; i++) {
        int j = list.at(i);
        unsigned sees[ROWS], keeps[ROWS];
        for (int r = 0; r < ROWS && MODE != PLAIN; r++) {
            sees[r] = keeps[r] = MODE == CAUSAL && level == 0 ? sees_of(c + r, j) : 255;
            if (!a.threshold) continue;
            keeps[r] &=
                keeps_of(a, s, level, c + r, 2 * j) | keeps_of(a, s, level, c + r, 2 * j + 1) << 4;
            t.keeps[r] |= (uint64_t)keeps[r] << (CHUNK * i);
        }
        attend_chunk<D, MODE>(t, m, q, s.at[level] + j * CHUNK, sees, keeps);
    }
    return t;
}

template <int D> DEVICE void merge_place(state<D> &t, int r, const forward_shared &m, int place) {
    float other = m.max[place], top = fmaxf(t.max[r], other), from = top == -INFINITY ? 0 : top;
    float x = power2(t.max[r] - from), y = power2(other - from);
    t.max[r] = top;
    t.sum[r] = t.sum[r] * x + m.sum[place] * y;
    scale_row(t.z[r], x);
    add(t.z[r], y, get<D>(m.q, place));
}

template <int D, int MODE>
DEVICE void coarse_rows(const forward_shared &m, const hti_cuda_args &a, const sequence &s) {
    enum { ROWS = owned<D>::ROWS };
    int base = s.at[1], end = s.at[s.levels];
    for (int i = base + (int)threadIdx.x * ROWS; i < end; i += FORWARD_THREADS * ROWS) {
        int level = level_of(s, i), c = i - s.at[level];
        if (c >= hti_clusters(s.p.length, level)) continue;
        row_of<D> q[ROWS];
        for (int r = 0; r < ROWS; r++) {
            q[r] = get<D>(m.q, i - base + r);
            scale_row(q[r], a.scale * HTI_LOG2E);
        }
        state<D> t = attend_level<D, MODE>(m, a, s, q, level, c);
        for (int r = 0; r < ROWS; r++) {
            m.max[i - base + r] = t.max[r], m.sum[i - base + r] = t.sum[r];
            set<D>(m.q, i - base + r, t.z[r]);
            if (MODE != PLAIN && a.row_keeps)
                cluster_keeps_of(a, s)[i - base + r] = (uint32_t)t.keeps[r];
        }
    }
}

/* Merges what the levels above left, and writes the result of a row. */
template <int D>
DEVICE void finish_row(state<D> &t, int i, const forward_shared &m, const hti_cuda_args &a,
                       const sequence &s, int row) {
    bool valid = takes_part(a.query_mask, s.p, row);
    for (int l = 1; l < s.levels; l++) merge_place(t, i, m, s.at[l] - s.at[1] + (row >> l));
    bool seen = valid && t.sum[i] != 0;
    float lse = seen ? HTI_LN2 * (t.max[i] + log2f(t.sum[i])) : -INFINITY;
    scale_row(t.z[i], a.keep / t.sum[i]);
    keep_row<D>(tensor_row<bf16>(a.out, a, s.p, s.head, row), seen ? t.z[i] : zeros<D>());
    if (a.saved) a.saved[s.head * a.rows + s.p.start + row] = lse;
    if (a.lse.data) *tensor_row<float>(a.lse, a, s.p, s.head, row) = lse;
}

extern __shared__ float4 hti_shared[];

template <int D, int MODE>
static __global__ void __launch_bounds__(FORWARD_THREADS, 2)
    narrow_forward(const __grid_constant__ hti_cuda_args a) {
    enum { ROWS = owned<D>::ROWS };
    forward_shared m = forward_layout((float *)hti_shared, D, a.length, a.levels);
    sequence s;
    if (!find_sequence(&s, a, m.at)) return;
    load_sequence<D>(m, a, s);
    coarse_rows<D, MODE>(m, a, s);
    __syncthreads();
    for (int c = (int)threadIdx.x * ROWS; c < s.p.length; c += FORWARD_THREADS * ROWS) {
        row_of<D> q[ROWS];
        for (int r = 0; r < ROWS; r++) {
            bool valid = takes_part(a.query_mask, s.p, c + r);
            const bf16 *from = tensor_row<const bf16>(a.q, a, s.p, s.head, c + r);
            q[r] = valid ? fetch<D>(from) : zeros<D>();
            scale_row(q[r], a.scale * HTI_LOG2E);
        }
        state<D> t = attend_level<D, MODE>(m, a, s, q, 0, c);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (c + r < s.p.length) {
                finish_row<D>(t, r, m, a, s, c + r);
                if (MODE != PLAIN && a.row_keeps) row_keeps_of(a, s)[c + r] = t.keeps[r];
            }
    }
}

/* ---- from outside ---- */

static size_t forward_bytes(int head_dim, int length, int levels) {
    return (size_t)forward_layout(NULL, head_dim, length, levels).bytes;
}

/* Bits are kept unless there would be far more room for short sequences than for rows. */
static int keeps_bits(const ht_attention_desc *d) {
    int64_t dim = d->head_dim;
    return d->dropout > 0 && d->dtype == HT_BF16 && (dim == 4 || dim == 8) &&
           d->block == KEEPS_BLOCK && d->max_sequences * KEEPS_APART <= d->max_rows;
}

static size_t lse_bytes(const ht_attention_desc *d) {
    return (sizeof(float) * (size_t)(d->q_heads * d->max_rows) + 7) / 8 * 8;
}

size_t hti_narrow_saved(const ht_attention_desc *d) {
    if (!keeps_bits(d)) return 0;
    int64_t most = cluster_keeps_at(d->max_rows, d->max_sequences, (int)d->q_heads, 0, 0);
    return lse_bytes(d) + 8 * (size_t)(d->q_heads * d->max_rows) + 4 * (size_t)most;
}

void hti_narrow_set_saved(hti_cuda_args *a, const ht_attention_desc *d) {
    if (!a->saved || !keeps_bits(d)) return;
    a->row_keeps = (uint64_t *)((char *)a->saved + lse_bytes(d));
    a->cluster_keeps = (uint32_t *)(a->row_keeps + d->q_heads * d->max_rows);
}

/* Level 0 of a sequence and its other levels must fit into shared memory, in backward, too. */
int hti_narrow_takes(const hti_cuda_backend *cuda, const hti_attention_call *c) {
    const ht_attention_desc *d = c->desc;
    int64_t dim = d->head_dim;
    int fits = d->kind == HT_LOCAL || (d->kind == HT_HIERARCHICAL && d->query != HT_QUERY_FINE);
    if (!fits || d->dtype != HT_BF16 || (dim != 4 && dim != 8) || d->value_dim != dim ||
        d->kv_heads != d->q_heads || d->has_bias || d->rotary_theta > 0 ||
        d->block % (2 * CHUNK) != 0 || c->length > 8192 || c->sequences * d->q_heads > INT32_MAX)
        return 0;
    int levels = d->kind == HT_HIERARCHICAL ? hti_levels(c->length, d->block) : 1;
    return levels <= (dim == 4 ? most_levels<4>() : most_levels<8>()) && hti_aligned(c->q, dim) &&
           hti_aligned(c->k, dim) && hti_aligned(c->v, dim) && hti_aligned(c->out, dim) &&
           hti_narrow_backward_shared((int)dim, (int)c->length, levels) <=
               (size_t)cuda->shared_bytes;
}

template <int D> static ht_status launch(const ht_context *ctx, const hti_cuda_args &a) {
    auto kernel = a.causal      ? narrow_forward<D, CAUSAL>
                  : a.threshold ? narrow_forward<D, DROPS>
                                : narrow_forward<D, PLAIN>;
    dim3 grid((unsigned)(a.sequences * a.q_heads));
    return hti_cuda_launch(ctx, kernel, "running the narrow forward kernel", grid, FORWARD_THREADS,
                           forward_bytes(D, a.length, a.levels), a);
}

ht_status hti_narrow_forward(const ht_context *ctx, const hti_cuda_args &a) {
    return a.head_dim == 4 ? launch<4>(ctx, a) : launch<8>(ctx, a);
}
