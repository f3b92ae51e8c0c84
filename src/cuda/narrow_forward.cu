/*
 * Forward of narrow rows: coarse rows leave (max, sum, numerator) in shared memory, rows merge what
 * the clusters above them left.
 */
#include "cuda/hier.h"
#include "cuda/narrow.h"

enum { FORWARD_THREADS = 512 };

struct forward_shared {
    float *k, *v, *n; /* [places] keys, values; valid rows, later their log2 */
    float *q, *count; /* [coarse places] queries, later numerators; their valid rows ... */
    float *max, *sum; /* ... */
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
    s.count = base + used, used += coarse;
    s.max = base + used, used += coarse;
    s.sum = base + used, used += coarse;
    s.at = (int *)(base + used), used += NARROW_LEVELS + 1;
    s.bytes = used * (int)sizeof(float);
    return s;
}

/* Level 0 of keys and values; the other levels of all three. */
template <int D>
DEVICE void load_sequence(const forward_shared &m, const hti_cuda_args &a, const sequence &s) {
    const place &p = s.p;
    for (int r = (int)threadIdx.x; r < s.at[1]; r += FORWARD_THREADS) {
        bool valid = takes_part(a.key_mask, p, r);
        set<D>(m.k, r, valid ? fetch<D>(tensor_row<const bf16>(a.k, a, p, s.head, r)) : zeros<D>());
        set<D>(m.v, r, valid ? fetch<D>(tensor_row<const bf16>(a.v, a, p, s.head, r)) : zeros<D>());
        m.n[r] = valid ? 1.0f : 0.0f;
    }
    auto query = [&](int level, int child, float *count) {
        int base = s.at[1];
        if (level > 0) {
            *count = m.count[child - base];
            return get<D>(m.q, child - base);
        }
        bool valid = takes_part(a.query_mask, p, child);
        *count = valid ? 1.0f : 0.0f;
        return valid ? fetch<D>(tensor_row<const bf16>(a.q, a, p, s.head, child)) : zeros<D>();
    };
    __syncthreads();
    fold_levels(s, m.n, [&](int level, int to, int child, bool there) {
        float n0 = there ? m.n[child] : 0, n1 = there ? m.n[child + 1] : 0, c0 = 0, c1 = 0;
        row_of<D> k = zeros<D>(), v = k, q = k;
        if (there) {
            k = mean(get<D>(m.k, child), get<D>(m.k, child + 1), n0, n1);
            v = mean(get<D>(m.v, child), get<D>(m.v, child + 1), n0, n1);
            row_of<D> q0 = query(level - 1, child, &c0), q1 = query(level - 1, child + 1, &c1);
            q = a.query == HT_QUERY_MEAN ? mean(q0, q1, c0, c1) : c0 > 0 ? q0 : q1;
        }
        set<D>(m.k, to, k), set<D>(m.v, to, v), set<D>(m.q, to - s.at[1], q);
        m.n[to] = n0 + n1, m.count[to - s.at[1]] = c0 + c1;
    });
}

/* Softmax over what a row has seen so far. */
template <int D> struct state {
    float max, sum;
    row_of<D> z;
};

/* One chunk of keys at place j of the arrays. PICK: only the first `seen` are (causal), and values
 * of those in `keeps` are added. */
template <int D, bool PICK>
DEVICE void attend_chunk(state<D> &t, const forward_shared &m, const row_of<D> &q, int j, int seen,
                         unsigned keeps) {
    float x[CHUNK], top = -INFINITY;
    *(float4 *)x = *(const float4 *)(m.n + j), *(float4 *)(x + 4) = *(const float4 *)(m.n + j + 4);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) x[i] = dot(q, get<D>(m.k, j + i), x[i]);
    if (PICK && seen < CHUNK)
#pragma unroll
        for (int i = 0; i < CHUNK; i++) x[i] = i < seen ? x[i] : -INFINITY;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) top = fmaxf(top, x[i]);
    top = fmaxf(t.max, top);
    float from = top == -INFINITY ? 0 : top, fade = power2(t.max - from), sum = 0;
    t.max = top;
    scale_row(t.z, fade);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        x[i] = power2(x[i] - from);
        sum += x[i];
        if (!PICK || keeps >> i & 1) add(t.z, x[i], get<D>(m.v, j + i));
    }
    t.sum = t.sum * fade + sum;
}

template <int D, bool PICK>
DEVICE state<D> attend_level(const forward_shared &m, const hti_cuda_args &a, const sequence &s,
                             const row_of<D> &q, int level, int c) {
    state<D> t = {-INFINITY, 0, zeros<D>()};
    chunks list = chunks_of(keys_of(a, s.p.length, level, c));
    int cut = a.causal && level == 0;
    for (int i = 0; i < list.count; i++) {
        int j = list.at(i), seen = cut ? min(c + 1 - j * CHUNK, (int)CHUNK) : (int)CHUNK;
        unsigned keeps = PICK && a.threshold ? keeps_of_chunk(a, s, level, c, j) : 255;
        if (seen < CHUNK) keeps &= (1u << seen) - 1;
        attend_chunk<D, PICK>(t, m, q, s.at[level] + j * CHUNK, seen, keeps);
    }
    return t;
}

template <int D> DEVICE void merge_place(state<D> &t, const forward_shared &m, int place) {
    float other = m.max[place], top = fmaxf(t.max, other), from = top == -INFINITY ? 0 : top;
    float x = power2(t.max - from), y = power2(other - from);
    t.max = top;
    t.sum = t.sum * x + m.sum[place] * y;
    scale_row(t.z, x);
    add(t.z, y, get<D>(m.q, place));
}

extern __shared__ float4 hti_shared[];

template <int D, bool PICK>
static __global__ void __launch_bounds__(FORWARD_THREADS, 2)
    narrow_forward(const __grid_constant__ hti_cuda_args a) {
    forward_shared m = forward_layout((float *)hti_shared, D, a.length, a.levels);
    float scale = a.scale * HTI_LOG2E;
    sequence s;
    if (!find_sequence(&s, a, m.at)) return;
    load_sequence<D>(m, a, s);
    int base = s.at[1];
    for (int i = base + (int)threadIdx.x; i < s.at[s.levels]; i += FORWARD_THREADS) {
        int level = level_of(s, i), c = i - s.at[level];
        row_of<D> q = get<D>(m.q, i - base);
        scale_row(q, scale);
        if (c >= hti_clusters(s.p.length, level)) continue;
        state<D> t = attend_level<D, PICK>(m, a, s, q, level, c);
        m.max[i - base] = t.max, m.sum[i - base] = t.sum;
        set<D>(m.q, i - base, t.z);
    }
    __syncthreads();
    for (int r = (int)threadIdx.x; r < s.p.length; r += FORWARD_THREADS) {
        state<D> t = {-INFINITY, 0, zeros<D>()};
        if (takes_part(a.query_mask, s.p, r)) {
            row_of<D> q = fetch<D>(tensor_row<const bf16>(a.q, a, s.p, s.head, r));
            scale_row(q, scale);
            t = attend_level<D, PICK>(m, a, s, q, 0, r);
            for (int l = 1; l < s.levels; l++) merge_place(t, m, s.at[l] - base + (r >> l));
        }
        bool seen = t.sum != 0;
        float lse = seen ? HTI_LN2 * (t.max + log2f(t.sum)) : -INFINITY;
        scale_row(t.z, a.keep / t.sum);
        keep_row<D>(tensor_row<bf16>(a.out, a, s.p, s.head, r), seen ? t.z : zeros<D>());
        if (a.saved) a.saved[s.head * a.rows + s.p.start + r] = lse;
        if (a.lse.data) *tensor_row<float>(a.lse, a, s.p, s.head, r) = lse;
    }
}

/* ---- from outside ---- */

static size_t forward_bytes(int head_dim, int length, int levels) {
    return (size_t)forward_layout(NULL, head_dim, length, levels).bytes;
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
    return levels < NARROW_LEVELS && hti_aligned(c->q, dim) && hti_aligned(c->k, dim) &&
           hti_aligned(c->v, dim) && hti_aligned(c->out, dim) &&
           hti_narrow_backward_shared((int)dim, (int)c->length, levels) <=
               (size_t)cuda->shared_bytes;
}

template <int D> static ht_status launch(const ht_context *ctx, const hti_cuda_args &a) {
    auto kernel = a.threshold || a.causal ? narrow_forward<D, true> : narrow_forward<D, false>;
    dim3 grid((unsigned)(a.sequences * a.q_heads));
    return hti_cuda_launch(ctx, kernel, "running the narrow forward kernel", grid, FORWARD_THREADS,
                           forward_bytes(D, a.length, a.levels), a);
}

ht_status hti_narrow_forward(const ht_context *ctx, const hti_cuda_args &a) {
    return a.head_dim == 4 ? launch<4>(ctx, a) : launch<8>(ctx, a);
}
