/*
 * Backward of narrow rows, one kernel: with h = <dz, z> - dlse of each row and the restriction of
 * (lse, h, dz) to the coarse rows,
 *
 *     P = n exp(s - m)     ds = P (r <G, v> - h)     dv += r P G     dq += ds k     dk += ds q
 *
 * as in generic_backward.cu. Every thread gathers dq of a query over its keys and dk, dv of a key
 * over its queries: coarse rows first, whose sums stay in shared memory, then rows.
 */
#include "cuda/hier.h"
#include "cuda/narrow.h"

enum { BACKWARD_THREADS = 512, HALF = BACKWARD_THREADS / 2 };

struct backward_shared {
    float *k, *v, *q, *g;    /* [places] queries are scaled: scores come in log2 units */
    float *n;                /* [places] valid keys, later their log2 */
    float2 *mh;              /* [places] m in log2 units (inf: takes no part), h */
    float *dk, *dv, *dq;     /* [coarse places] */
    float *count;            /* [coarse places] valid queries; query first: the first one, or -1 */
    uint64_t *row_keeps;     /* [rows] dropout's bits, where forward kept them */
    uint32_t *cluster_keeps; /* [coarse places] */
    int *at;
    int bytes;
};

HTI_FN backward_shared backward_layout(float *base, int dim, int length, int levels) {
    int all = narrow_places(NULL, length, levels), used = 0;
    int coarse = all - chunks_up(length);
    backward_shared s;
    s.k = base + used, used += all * dim;
    s.v = base + used, used += all * dim;
    s.q = base + used, used += all * dim;
    s.g = base + used, used += all * dim;
    s.dk = base + used, used += coarse * dim;
    s.dv = base + used, used += coarse * dim;
    s.dq = base + used, used += coarse * dim;
    s.n = base + used, used += all;
    s.mh = (float2 *)(base + used), used += 2 * all;
    s.count = base + used, used += coarse;
    s.row_keeps = (uint64_t *)(base + used), used += 2 * chunks_up(length);
    s.cluster_keeps = (uint32_t *)(base + used), used += coarse;
    s.at = (int *)(base + used), used += NARROW_LEVELS + 1;
    s.bytes = used * (int)sizeof(float);
    return s;
}

/* ---- all levels into shared memory ---- */

/* Rows of a cluster as keys: sums over the valid ones, and how many there are. */
template <int D> struct key_node {
    row_of<D> k, v;
    float n;
};

/* As queries: sum and number of the valid ones (query first: the first one and where it is); m the
 * smallest lse, h and g sums weighted by exp(m - lse). */
template <int D> struct query_node {
    row_of<D> q, g;
    float count, m, h;
};

template <int D>
DEVICE void load_keys(const backward_shared &m, const hti_cuda_args &a, const sequence &s, int c) {
    enum { ROWS = owned<D>::ROWS };
    key_node<D> x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        bool valid = takes_part(a.key_mask, s.p, c + r);
        x[r].k = valid ? fetch<D>(tensor_row<const bf16>(a.k, a, s.p, s.head, c + r)) : zeros<D>();
        x[r].v = valid ? fetch<D>(tensor_row<const bf16>(a.v, a, s.p, s.head, c + r)) : zeros<D>();
        x[r].n = valid ? 1.0f : 0.0f;
    }
    auto join = [](const key_node<D> &x, const key_node<D> &y) {
        return key_node<D>{sum_of(x.k, y.k), sum_of(x.v, y.v), x.n + y.n};
    };
    auto keep = [&](int level, int c, const key_node<D> &x) {
        int place = s.at[level] + c;
        if (place >= s.at[level + 1]) return;
        float share = share_of(x.n);
        set<D>(m.k, place, times(x.k, share)), set<D>(m.v, place, times(x.v, share));
        m.n[place] = log2f(x.n);
    };
#pragma unroll
    for (int r = 0; r < ROWS; r++) keep(0, c + r, x[r]);
    fold_rows<D>(x, c, s.levels, join, keep);
}

/* A row's numbers; it takes no part if it is masked or saw no key. */
template <int D>
DEVICE query_node<D> load_query(const hti_cuda_args &a, const sequence &s, int row) {
    bool valid = takes_part(a.query_mask, s.p, row);
    float lse = valid ? a.saved[s.head * a.rows + s.p.start + row] : -INFINITY;
    query_node<D> x = {zeros<D>(), zeros<D>(), 0, INFINITY, 0};
    x.count = a.query == HT_QUERY_FIRST ? (valid ? (float)row : -1) : valid ? 1 : 0;
    if (!valid) return x;
    x.q = times(fetch<D>(tensor_row<const bf16>(a.q, a, s.p, s.head, row)), a.scale * HTI_LOG2E);
    row_of<D> g = fetch<D>(tensor_row<const bf16>(a.dout, a, s.p, s.head, row));
    row_of<D> z = fetch<D>(tensor_row<const bf16>(a.out, a, s.p, s.head, row));
    if (lse == -INFINITY) return x;
    x.g = g, x.m = lse * HTI_LOG2E, x.h = dot(g, z, 0);
    if (a.dlse.data) x.h -= *tensor_row<const float>(a.dlse, a, s.p, s.head, row);
    return x;
}

template <int D>
DEVICE void load_queries(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                         int c) {
    enum { ROWS = owned<D>::ROWS };
    bool mean = a.query == HT_QUERY_MEAN;
    query_node<D> x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) x[r] = load_query<D>(a, s, c + r);
    auto join = [&](const query_node<D> &x, const query_node<D> &y) {
        query_node<D> z;
        z.m = fminf(x.m, y.m);
        float wx = x.m == INFINITY ? 0 : power2(z.m - x.m);
        float wy = y.m == INFINITY ? 0 : power2(z.m - y.m);
        z.h = wx * x.h + wy * y.h;
        z.g = times(x.g, wx);
        add(z.g, wy, y.g);
        z.q = mean ? sum_of(x.q, y.q) : x.count >= 0 ? x.q : y.q;
        z.count = mean ? x.count + y.count : x.count >= 0 ? x.count : y.count;
        return z;
    };
    auto keep = [&](int level, int c, const query_node<D> &x) {
        int place = s.at[level] + c;
        if (place >= s.at[level + 1]) return;
        float share = level && mean ? share_of(x.count) : 1;
        /* what takes no part may hold NaN */
        set<D>(m.q, place, x.m == INFINITY ? zeros<D>() : times(x.q, share));
        set<D>(m.g, place, x.g);
        m.mh[place] = make_float2(x.m, x.h);
        if (level) m.count[place - s.at[1]] = x.count;
    };
#pragma unroll
    for (int r = 0; r < ROWS; r++) keep(0, c + r, x[r]);
    fold_rows<D>(x, c, s.levels, join, keep);
}

/* One half of the threads brings keys and values, the other what queries have. */
template <int D>
DEVICE void load_sequence(const backward_shared &m, const hti_cuda_args &a, const sequence &s) {
    enum { ROWS = owned<D>::ROWS };
    int end = rows_to_fold(s, 32 * ROWS), t = (int)threadIdx.x % HALF;
    for (int c = t * ROWS; c < end; c += HALF * ROWS) {
        if (threadIdx.x < HALF)
            load_keys<D>(m, a, s, c);
        else
            load_queries<D>(m, a, s, c);
    }
    if (a.row_keeps) {
        for (int i = (int)threadIdx.x; i < s.p.length; i += BACKWARD_THREADS)
            m.row_keeps[i] = row_keeps_of(a, s)[i];
        for (int i = (int)threadIdx.x; i < s.at[s.levels] - s.at[1]; i += BACKWARD_THREADS)
            m.cluster_keeps[i] = cluster_keeps_of(a, s)[i];
    }
    __syncthreads();
}

/* ---- dq of a thread's queries over their keys ---- */

template <int D> struct rows_of { row_of<D> r[owned<D>::ROWS]; };

template <int D> DEVICE rows_of<D> get_rows(const float *from, int row) {
    rows_of<D> t;
#pragma unroll
    for (int i = 0; i < owned<D>::ROWS; i++) t.r[i] = get<D>(from, row + i);
    return t;
}

/* MODE: bits of `sees` say which keys a row sees (causal), bits of `keeps` which are not dropped.
 */
template <int D, int MODE>
DEVICE void dq_chunk(rows_of<D> &dq, const backward_shared &m, const rows_of<D> &q,
                     const rows_of<D> &g, const float2 *mh, int j, const unsigned *sees,
                     const unsigned *keeps, float keep) {
    row_of<CHUNK> n = get<CHUNK>(m.n + j, 0);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        row_of<D> k = get<D>(m.k, j + i), v = get<D>(m.v, j + i);
#pragma unroll
        for (int r = 0; r < owned<D>::ROWS; r++) {
            float p = power2(dot(q.r[r], k, n.x[i] - mh[r].x)), dp = dot(g.r[r], v, 0);
            if (MODE != PLAIN) dp = keeps[r] >> i & 1 ? dp * keep : 0;
            if (MODE != CAUSAL || sees[r] >> i & 1) add(dq.r[r], p * (dp - mh[r].y), k);
        }
    }
}

/* Dropout's bits of a query; rows beyond the end have none that matter. */
DEVICE uint64_t word_of(const backward_shared &m, const sequence &s, int level, int c) {
    return level ? m.cluster_keeps[s.at[level] - s.at[1] + c] : m.row_keeps[c];
}

/* Queries c ... of a level. */
template <int D, int MODE>
DEVICE rows_of<D> dq_of(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                        int level, int c) {
    enum { ROWS = owned<D>::ROWS };
    int own = s.at[level] + c, last = min(c + ROWS, (int)hti_clusters(s.p.length, level)) - 1;
    rows_of<D> q = get_rows<D>(m.q, own), g = get_rows<D>(m.g, own), dq;
    float2 mh[ROWS];
    for (int r = 0; r < ROWS; r++) mh[r] = m.mh[own + r], dq.r[r] = zeros<D>();
    chunks list = chunks_of(keys_of(a, s.p.length, level, last));
    for (int i = 0; i < list.count; i++) {
        int j = list.at(i);
        unsigned sees[ROWS], keeps[ROWS];
        for (int r = 0; r < ROWS && MODE != PLAIN; r++) {
            sees[r] = keeps[r] = MODE == CAUSAL && level == 0 ? sees_of(c + r, j) : 255;
            if (!a.threshold) continue;
            if (a.row_keeps)
                keeps[r] = (unsigned)(word_of(m, s, level, c + r) >> (CHUNK * i)) & 255;
            else
                keeps[r] &= keeps_of(a, s, level, c + r, 2 * j) |
                            keeps_of(a, s, level, c + r, 2 * j + 1) << 4;
        }
        dq_chunk<D, MODE>(dq, m, q, g, mh, s.at[level] + j * CHUNK, sees, keeps, a.keep);
    }
    return dq;
}

/* ---- dk and dv of a thread's keys over their queries ---- */

template <int D> struct key_sums { rows_of<D> dk, dv; };

template <int D, int MODE>
DEVICE void dkdv_query(key_sums<D> &t, const backward_shared &m, const rows_of<D> &k,
                       const rows_of<D> &v, const float *n, int c, unsigned sees, unsigned keeps,
                       float keep) {
    row_of<D> q = get<D>(m.q, c), g = get<D>(m.g, c);
    float2 mh = m.mh[c];
#pragma unroll
    for (int r = 0; r < owned<D>::ROWS; r++) {
        float p = power2(dot(q, k.r[r], n[r] - mh.x)), dp = dot(g, v.r[r], 0), kept = p;
        if (MODE != PLAIN) {
            float factor = keeps >> r & 1 ? keep : 0;
            dp *= factor, kept *= factor;
        }
        if (MODE == CAUSAL && !(sees >> r & 1)) continue;
        add(t.dv.r[r], kept, g);
        add(t.dk.r[r], p * (dp - mh.y), q);
    }
}

/* Keys j ... of a level. */
template <int D, int MODE>
DEVICE key_sums<D> dkdv_of(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                           int level, int j) {
    enum { ROWS = owned<D>::ROWS };
    int own = s.at[level] + j;
    key_sums<D> t;
    rows_of<D> k = get_rows<D>(m.k, own), v = get_rows<D>(m.v, own);
    float n[ROWS];
    for (int r = 0; r < ROWS; r++) {
        n[r] = m.n[own + r];
        t.dk.r[r] = t.dv.r[r] = zeros<D>();
    }
    chunks list = chunks_of(queries_of(a, s.p.length, level, j));
    for (int i = 0; i < list.count; i++) {
        int first = list.at(i) * CHUNK, shift = keeps_shift(level, list.at(i), j);
#pragma unroll(MODE == PLAIN ? 8 : 2)
        for (int c = first; c < first + CHUNK; c++) {
            unsigned sees = 15, keeps = 15;
            if (MODE == CAUSAL && level == 0) sees = c < j ? 0 : 15u >> max(j + 3 - c, 0);
            if (MODE != PLAIN && a.row_keeps)
                keeps = (unsigned)(word_of(m, s, level, c) >> shift);
            else if (MODE != PLAIN && a.threshold)
                keeps = keeps_of(a, s, level, c, j / 4) >> j % 4;
            dkdv_query<D, MODE>(t, m, k, v, n, s.at[level] + c, sees, keeps, a.keep);
        }
    }
    return t;
}

/* ---- what comes down from the levels above ---- */

template <int D>
DEVICE void add_keys(row_of<D> &dk, row_of<D> &dv, const backward_shared &m, const sequence &s,
                     int row) {
    for (int l = 1; l < s.levels; l++) {
        int place = s.at[l] + (row >> l);
        if (m.n[place] == -INFINITY) continue;
        float share = power2(-m.n[place]);
        add(dk, share, get<D>(m.dk, place - s.at[1]));
        add(dv, share, get<D>(m.dv, place - s.at[1]));
    }
}

/* mean: every row of a cluster gets its share; first: the first one gets all of it. */
template <int D>
DEVICE void add_queries(row_of<D> &dq, const backward_shared &m, const hti_cuda_args &a,
                        const sequence &s, int row) {
    for (int l = 1; l < s.levels; l++) {
        int place = s.at[l] - s.at[1] + (row >> l);
        float count = m.count[place], share = 1 / count;
        if (a.query == HT_QUERY_FIRST) share = count == (float)row ? 1 : 0;
        if (a.query == HT_QUERY_MEAN ? count > 0 : share > 0) add(dq, share, get<D>(m.dq, place));
    }
}

/* ---- the kernel: one half of the threads owns queries, the other keys ---- */

template <int D, int MODE>
DEVICE void coarse_rows(const backward_shared &m, const hti_cuda_args &a, const sequence &s) {
    enum { ROWS = owned<D>::ROWS };
    int base = s.at[1], end = s.at[s.levels], keys = threadIdx.x >= HALF;
    for (int i = base + (int)threadIdx.x % HALF * ROWS; i < end; i += HALF * ROWS) {
        int level = level_of(s, i), c = i - s.at[level], to = i - base;
        if (c >= hti_clusters(s.p.length, level)) continue;
        if (keys) {
            key_sums<D> t = dkdv_of<D, MODE>(m, a, s, level, c);
            for (int r = 0; r < ROWS; r++)
                set<D>(m.dk, to + r, t.dk.r[r]), set<D>(m.dv, to + r, t.dv.r[r]);
        } else {
            rows_of<D> t = dq_of<D, MODE>(m, a, s, level, c);
            for (int r = 0; r < ROWS; r++) set<D>(m.dq, to + r, t.r[r]);
        }
    }
}

template <int D, int MODE>
DEVICE void finish_queries(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                           int c) {
    rows_of<D> t = dq_of<D, MODE>(m, a, s, 0, c);
#pragma unroll
    for (int r = 0; r < owned<D>::ROWS; r++) {
        int row = c + r;
        if (row >= s.p.length) continue;
        add_queries(t.r[r], m, a, s, row);
        scale_row(t.r[r], a.scale);
        keep_row<D>(tensor_row<bf16>(a.dq, a, s.p, s.head, row),
                    takes_part(a.query_mask, s.p, row) ? t.r[r] : zeros<D>());
    }
}

template <int D, int MODE>
DEVICE void finish_keys(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                        int c) {
    key_sums<D> t = dkdv_of<D, MODE>(m, a, s, 0, c);
#pragma unroll
    for (int r = 0; r < owned<D>::ROWS; r++) {
        int row = c + r;
        if (row >= s.p.length) continue;
        bool valid = takes_part(a.key_mask, s.p, row);
        add_keys(t.dk.r[r], t.dv.r[r], m, s, row);
        scale_row(t.dk.r[r], HTI_LN2); /* queries are scaled by scale * log2(e) */
        keep_row<D>(tensor_row<bf16>(a.dk, a, s.p, s.head, row), valid ? t.dk.r[r] : zeros<D>());
        keep_row<D>(tensor_row<bf16>(a.dv, a, s.p, s.head, row), valid ? t.dv.r[r] : zeros<D>());
    }
}

extern __shared__ float4 hti_shared[];

template <int D, int MODE>
static __global__ void __launch_bounds__(BACKWARD_THREADS, 1)
    narrow_backward(const __grid_constant__ hti_cuda_args a) {
    enum { ROWS = owned<D>::ROWS };
    backward_shared m = backward_layout((float *)hti_shared, D, a.length, a.levels);
    sequence s;
    if (!find_sequence(&s, a, m.at)) return;
    load_sequence<D>(m, a, s);
    coarse_rows<D, MODE>(m, a, s);
    __syncthreads();
    for (int c = (int)threadIdx.x % HALF * ROWS; c < s.p.length; c += HALF * ROWS) {
        if (threadIdx.x < HALF)
            finish_queries<D, MODE>(m, a, s, c);
        else
            finish_keys<D, MODE>(m, a, s, c);
    }
}

/* ---- from outside ---- */

size_t hti_narrow_backward_shared(int head_dim, int length, int levels) {
    return (size_t)backward_layout(NULL, head_dim, length, levels).bytes;
}

int hti_narrow_takes_backward(const hti_cuda_backend *cuda, const hti_attention_call *c) {
    int64_t dim = c->desc->head_dim;
    return hti_narrow_takes(cuda, c) && hti_aligned(c->dout, dim) && hti_aligned(c->dq, dim) &&
           hti_aligned(c->dk, dim) && hti_aligned(c->dv, dim);
}

template <int D> static ht_status launch(const ht_context *ctx, const hti_cuda_args &a) {
    auto kernel = a.causal      ? narrow_backward<D, CAUSAL>
                  : a.threshold ? narrow_backward<D, DROPS>
                                : narrow_backward<D, PLAIN>;
    dim3 grid((unsigned)(a.sequences * a.q_heads));
    return hti_cuda_launch(ctx, kernel, "running the narrow backward kernel", grid,
                           BACKWARD_THREADS, hti_narrow_backward_shared(D, a.length, a.levels), a);
}

ht_status hti_narrow_backward(const ht_context *ctx, const hti_cuda_args &a) {
    return a.head_dim == 4 ? launch<4>(ctx, a) : launch<8>(ctx, a);
}
