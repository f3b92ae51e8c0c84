/*
 * Backward of narrow rows, one kernel: with h = <dz, z> - dlse of each row and the restriction of
 * (lse, h, dz) to the coarse rows,
 *
 *     P = n exp(s - m)     ds = P (r <G, v> - h)     dv += r P G     dq += ds k     dk += ds q
 *
 * as in generic/backward.cu. A warp gathers dq of a strip's queries over their keys, or dk and dv
 * of its keys over their queries, from the top of the strip down: what a cluster's rows get of it
 * is handed down, too.
 */
#include "cuda/hier.h"
#include "cuda/narrow/narrow.h"

namespace HTI_KERNELS {

/* Two thread blocks of 4 columns share a multiprocessor. */
template <int D> struct backward_shape {
    enum { SIZE = D == 4 ? 256 : 512, TEAM = SIZE / 32, BLOCKS = D == 4 ? 2 : 1 };
};

struct backward_shared {
    char *k, *v, *q, *g; /* [places] rows */
    float *n;            /* [places] log2 of the valid keys */
    float *m, *h;        /* [places] m in log2 units (inf: takes no part) */
    float *count;        /* [coarse places] valid queries; query first: the first one, or -1 */
    float *dk, *dv, *dq; /* [upper places][dim] */
    int *at;
    int bytes;
};

HTI_FN backward_shared backward_layout(char *base, int dim, narrow_sizes size) {
    int used = 0;
    backward_shared s;
    s.k = base + used, used += size.all * dim * 2;
    s.v = base + used, used += size.all * dim * 2;
    s.q = base + used, used += size.all * dim * 2;
    s.g = base + used, used += size.all * dim * 2;
    s.n = (float *)(base + used), used += size.all * 4;
    s.m = (float *)(base + used), used += size.all * 4;
    s.h = (float *)(base + used), used += size.all * 4;
    s.count = (float *)(base + used), used += size.coarse * 4;
    s.dk = (float *)(base + used), used += size.upper * dim * 4;
    s.dv = (float *)(base + used), used += size.upper * dim * 4;
    s.dq = (float *)(base + used), used += size.upper * dim * 4;
    s.at = (int *)(base + used), used += (NARROW_LEVELS + 1) * 4;
    s.bytes = used;
    return s;
}

/* ---- all levels into shared memory ---- */

/* dz of rows 8 e ..., m and h; they take no part if they are masked or saw no key. */
template <int D>
DEVICE void load_gradients(raw_row<D> *g, float *m, float *h, const hti_cuda_args &a,
                           const sequence &s, int e) {
    const float *saved = a.saved + s.head * a.rows + s.p.start;
    raw_row<D> z[FOLD];
    bool valid[FOLD];
    load_eight<D>(g, valid, a.dout, a.query_mask, a, s, e);
    load_eight<D>(z, valid, a.out, a.query_mask, a, s, e);
#pragma unroll
    for (int i = 0; i < FOLD; i++) m[i] = valid[i] ? saved[FOLD * e + i] : -INFINITY;
#pragma unroll
    for (int i = 0; i < FOLD; i++) {
        h[i] = dot(unpacked<D>(g[i]), unpacked<D>(z[i]));
        if (a.dlse.data && valid[i])
            h[i] -= *tensor_row<const float>(a.dlse, a, s.p, s.head, FOLD * e + i);
        if (m[i] == -INFINITY) g[i] = raw_zeros<D>(), h[i] = 0;
        m[i] = m[i] == -INFINITY ? INFINITY : m[i] * HTI_LOG2E;
    }
}

/* Of a cluster of level l: m the smallest, h and dz sums weighted by exp(m - lse), divided by 2^l,
 * which sums of many rows would need to fit into f16; shares of gradients put it right again. */
template <int D, bool ROWS>
DEVICE void fold_gradients(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                           int level, int e) {
    int at = s.at[level] + FOLD * e, inside = at < s.at[level + 1];
    raw_row<D> g[FOLD];
    float w[FOLD], h[FOLD];
    if (ROWS) load_gradients<D>(g, w, h, a, s, e);
#pragma unroll
    for (int i = 0; i < FOLD; i++) {
        if (ROWS) {
            if (inside) row_in<D>(m.g, at, i) = g[i], m.m[at + i] = w[i], m.h[at + i] = h[i];
        } else {
            g[i] = inside ? row_in<D>(m.g, at, i) : raw_zeros<D>();
            w[i] = inside ? m.m[at + i] : INFINITY, h[i] = inside ? m.h[at + i] : 0;
        }
    }
    auto get = [&](int i) -> node<D> { return {unpacked<D>(g[i]), w[i], h[i]}; };
    auto join = [](const node<D> &x, const node<D> &y) -> node<D> {
        float w = fminf(x.w, y.w);
        float wx = x.w == INFINITY ? 0 : exp2_fast(w - x.w);
        float wy = y.w == INFINITY ? 0 : exp2_fast(w - y.w);
        wx *= 0.5f, wy *= 0.5f;
        return {sum_of(times(x.x, wx), times(y.x, wy)), w, wx * x.h + wy * y.h};
    };
    auto keep = [&](int first, int i, const node<D> &x) {
        row_in<D>(m.g, first, i) = rounded(x.x);
        m.m[first + i] = x.w, m.h[first + i] = x.h;
    };
    fold<D>(s, level, e, get, join, keep);
}

template <int D, bool ROWS>
DEVICE void fold_tensor(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                        int tensor, int level, int e) {
    if (tensor == 3)
        fold_gradients<D, ROWS>(m, a, s, level, e);
    else if (tensor == 2)
        fold_queries<D, ROWS>(m.q, m.count, a, s, 0, level, e);
    else
        fold_keys<D, ROWS>(tensor ? m.v : m.k, m.n, !tensor, tensor ? a.v : a.k, a, s, level, e);
}

template <int D>
DEVICE void load_sequence(const backward_shared &m, const hti_cuda_args &a, const sequence &s) {
    enum { SIZE = backward_shape<D>::SIZE };
    fold_level<SIZE>(s, 0, 4, [&](int i, int e) { fold_tensor<D, true>(m, a, s, i, 0, e); });
    for (int level = FOLD_LEVELS; level + 1 < s.levels; level += FOLD_LEVELS)
        fold_level<SIZE>(s, level, 4,
                         [&](int i, int e) { fold_tensor<D, false>(m, a, s, i, level, e); });
    if (!a.query_mask && !a.key_mask) return;
    for (int i = (int)threadIdx.x; i < s.at[s.levels]; i += SIZE) /* no part: perhaps NaN */
        if (m.m[i] == INFINITY) row_in<D>(m.q, i, 0) = raw_zeros<D>();
    __syncthreads();
}

/* ---- dq of 16 queries over their keys ---- */

DEVICE float at4(const float4 &x, int e) {
    return e == 0 ? x.x : e == 1 ? x.y : e == 2 ? x.z : x.w;
}

/* Bits that say which weights stay, 4 h + e each. Rows are keys: key g = 4 t' + e' of query 4 t + e
 * is a bit of the byte of lane 4 (4 (t % 2) + e) + t'. */
DEVICE uint32_t keeps_of_keys(const uint4 &w) {
    int g = quad(), t = in_quad(), shift = 8 * (g / 4) + 4 * (t / 2) + g % 4;
    uint32_t of[4] = {w.x >> shift, w.y >> shift, w.z >> shift, w.w >> shift}, bits = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) bits |= (of[e] & 1) << e | (of[e] >> 16 & 1) << (4 + e);
    return bits;
}

template <int D, int MODE>
DEVICE void dq_tile(float *dq, const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                    int level, int c) {
    int own = s.at[level] + c;
    own_rows q = get_own<D>(m.q, own), g = get_own<D>(m.g, own);
    uint32_t ks = shared_address(m.k), vs = shared_address(m.v);
    float scale = a.scale * HTI_LOG2E, lse[2], h0[2];
    for (int h = 0; h < 2; h++) {
        lse[h] = m.m[own + 8 * h + quad()];
        h0[h] = m.h[own + 8 * h + quad()];
    }
    partners list = partners_of(a, s, level, c, false);
    const uint8_t *bytes = MODE != PLAIN ? keeps_of_level(a, s, level) : NULL;
    uint32_t ahead = 0; /* dropout's bits of the next group */
    auto fetch = [&](int i) {
        if (MODE != PLAIN && a.threshold && i < list.count)
            ahead = __ldg(bytes + keeps_at(s, level, c / GROUP, list.at(i)) + lane_id());
    };
    fetch(0);
    for (int i = 0; i < list.count; i++) {
        int j = list.at(i) * GROUP, place = s.at[level] + j;
        scores p = products(q, rows_from<D>(ks, place)), dp = products(g, rows_from<D>(vs, place));
        float add[2][4];
        key_weights(add, m.n + s.at[level], lse, a, s, level, j);
        to_exponents(p, scale, add);
        hide<MODE>(p, list, i, level, c, false);
        to_powers(p);
        uint32_t keeps = MODE != PLAIN && a.threshold ? ahead : 0;
        fetch(i + 1);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = dp.x[h][e];
                if (MODE != PLAIN && a.threshold) x = keeps >> (4 * h + e) & 1 ? x * a.keep : 0;
                dp.x[h][e] = p.x[h][e] * (x - h0[h]);
            }
        add_group(dq, packed(dp), columns_from<D>(ks, place));
    }
}

/* ---- dk and dv of 16 keys over their queries; dv without the factor of dropout ---- */

template <int D, int MODE>
DEVICE void dkdv_tile(float *dk, float *dv, const backward_shared &m, const hti_cuda_args &a,
                      const sequence &s, int level, int c) {
    int own = s.at[level] + c;
    own_rows k = get_own<D>(m.k, own), v = get_own<D>(m.v, own);
    uint32_t qs = shared_address(m.q), gs = shared_address(m.g);
    float scale = a.scale * HTI_LOG2E, n[2];
    for (int h = 0; h < 2; h++) n[h] = m.n[own + 8 * h + quad()];
    partners list = partners_of(a, s, level, c, true);
    const uint8_t *bytes = MODE != PLAIN ? keeps_of_level(a, s, level) : NULL;
    uint4 ahead = make_uint4(0, 0, 0, 0);
    auto fetch = [&](int i) {
        if (MODE == PLAIN || !a.threshold || i >= list.count) return;
        const uint8_t *from = bytes + keeps_at(s, level, list.at(i), c / GROUP);
        ahead = __ldg((const uint4 *)from + in_quad() % 2);
    };
    fetch(0);
    for (int i = 0; i < list.count; i++) {
        int j = list.at(i) * GROUP, place = s.at[level] + j;
        scores p = products(k, rows_from<D>(qs, place)), dp = products(v, rows_from<D>(gs, place));
        float4 lse = *(const float4 *)(m.m + place + 4 * in_quad());
        float4 h0 = *(const float4 *)(m.h + place + 4 * in_quad());
        float add[2][4];
        uint32_t keeps = MODE != PLAIN && a.threshold ? keeps_of_keys(ahead) : 255;
        fetch(i + 1);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 4; e++) add[h][e] = n[h] - at4(lse, e);
        to_exponents(p, scale, add);
        hide<MODE>(p, list, i, level, c, true);
        to_powers(p);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                bool stays = keeps >> (4 * h + e) & 1;
                float x = dp.x[h][e], w = p.x[h][e];
                if (MODE != PLAIN) x = stays ? x * a.keep : 0;
                if (MODE != PLAIN && !stays) p.x[h][e] = 0;
                dp.x[h][e] = w * (x - at4(h0, e));
            }
        add_group(dv, packed(p), columns_from<D>(gs, place));
        add_group(dk, packed(dp), columns_from<D>(qs, place));
    }
}

/* ---- the levels from HELD on ---- */

template <int D> DEVICE void put_upper(float *to, int place, float *sums) {
    whole<D>(sums);
#pragma unroll
    for (int h = 0; h < 2; h++)
        *(float2 *)(to + (place + 8 * h + quad()) * D + own_column<D>()) =
            make_float2(sums[2 * h], sums[2 * h + 1]);
}

/* The share that a key of a cluster has in its gradient. */
DEVICE float key_share(const backward_shared &m, int place) {
    float n = m.n[place];
    return n == -INFINITY ? 0 : exp2_fast(-n);
}

/* The share of a query, by its cluster's number of them; query first: of the query `first`. */
DEVICE float query_share(const hti_cuda_args &a, float count, float first) {
    if (a.query == HT_QUERY_FIRST) return count == first ? 1 : 0;
    return share_of(count);
}

/* What rows get of all these levels, together in the clusters of level HELD: a thread has two
 * columns. */
template <int D>
DEVICE void share_upper(const backward_shared &m, const hti_cuda_args &a, const sequence &s) {
    int each = clusters_of(s, HELD) * (D / 2);
    for (int i = (int)threadIdx.x; i < 3 * each; i += backward_shape<D>::SIZE) {
        int tensor = i / each, c = i % each / (D / 2), column = i % (D / 2) * 2;
        float *x = tensor == 0 ? m.dk : tensor == 1 ? m.dv : m.dq;
        float first = m.count[s.at[HELD] - s.at[1] + c];
        float2 sum = make_float2(0, 0);
        for (int l = HELD; l < s.levels; l++) {
            int place = s.at[l] + (c >> (l - HELD));
            float2 y = *(const float2 *)(x + (place - s.at[HELD]) * D + column);
            float share =
                tensor < 2 ? key_share(m, place) : query_share(a, m.count[place - s.at[1]], first);
            share *= (float)(1 << l);
            sum.x += share * y.x, sum.y += share * y.y;
        }
        *(float2 *)(x + c * D + column) = sum;
    }
    __syncthreads();
}

template <int D, int MODE>
DEVICE void upper_levels(const backward_shared &m, const hti_cuda_args &a, const sequence &s) {
    int tiles = upper_tiles(s);
    for (int i = warp_id(); i < 2 * tiles; i += backward_shape<D>::TEAM) {
        float x[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, 0};
        int tile = i < tiles ? i : i - tiles, c, level = upper_tile(s, tile, &c);
        if (i < tiles) {
            dq_tile<D, MODE>(x, m, a, s, level, c);
            put_upper<D>(m.dq, tile * GROUP, x);
        } else {
            dkdv_tile<D, MODE>(x, y, m, a, s, level, c);
            put_upper<D>(m.dk, tile * GROUP, x), put_upper<D>(m.dv, tile * GROUP, y);
        }
    }
    __syncthreads();
    share_upper<D>(m, a, s);
}

/* ---- strips: one warp has 64 rows as queries or as keys ---- */

/* What rows c ... of level HELD - 1 get of the levels above, as fragments have it; 4 columns: with
 * the even partners. */
template <int D> DEVICE void from_upper(float *r, const float *from, const sequence &s, int c) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int place = min((c + 8 * h + quad()) / 2, clusters_of(s, HELD) - 1);
        float2 x = *(const float2 *)(from + place * D + own_column<D>());
        bool mine = D == 8 || in_quad() < 2;
        r[2 * h] = mine ? x.x : 0, r[2 * h + 1] = mine ? x.y : 0;
    }
}

/* What queries of a level get of their clusters: r, handed down, and what this level adds. Query
 * first: r goes on where the cluster's first query is. */
template <int D, int MODE>
DEVICE void dq_level(float *r, const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                     int level, int c) {
    float x[4] = {0, 0, 0, 0};
    dq_tile<D, MODE>(x, m, a, s, level, c);
    bool first = a.query == HT_QUERY_FIRST;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = min(c + 8 * h + quad(), clusters_of(s, level) - 1);
        float own = level ? m.count[s.at[level] - s.at[1] + row] : (float)row, down = 1, share = 1;
        if (first && level + 1 < s.levels)
            down = m.count[s.at[level + 1] - s.at[1] + row / 2] == own ? 1 : 0;
        if (!first && level > 0) share = share_of(own);
        share *= (float)(1 << level);
        r[2 * h] = r[2 * h] * down + x[2 * h] * share;
        r[2 * h + 1] = r[2 * h + 1] * down + x[2 * h + 1] * share;
    }
}

/* Two columns of rows c ... into a tensor, zeros where the mask says so. */
template <int D>
DEVICE void put_rows(const ht_tensor &to, const uint8_t *mask, float factor, float *sums,
                     const hti_cuda_args &a, const sequence &s, int c) {
    head_rows<element> rows(to, a, s);
    whole<D>(sums);
    each_row<D>(sums, [&](int h, float x, float y) {
        int row = c + 8 * h + quad();
        if (row >= s.p.length) return;
        *(uint32_t *)(rows.at(row) + own_column<D>()) =
            takes_part(mask, s.p, row) ? pack2(x * factor, y * factor) : 0;
    });
}

template <int D, int MODE>
DEVICE void query_strip(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                        int row) {
    float top[4] = {0, 0, 0, 0}, middle[4], x[4];
    if (s.levels > HELD) from_upper<D>(top, m.dq, s, row / 4);
    if (s.levels > 2) dq_level<D, MODE>(top, m, a, s, 2, row / 4);
#pragma unroll 1
    for (int i = 0; i < 2 && row + 32 * i < s.p.length; i++) {
        int c = row / 2 + 16 * i;
        hand_down(middle, top, i);
        if (s.levels > 1) dq_level<D, MODE>(middle, m, a, s, 1, c);
#pragma unroll 1
        for (int j = 0; j < 2 && 2 * c + 16 * j < s.p.length; j++) {
            hand_down(x, middle, j);
            dq_level<D, MODE>(x, m, a, s, 0, 2 * c + 16 * j);
            put_rows<D>(a.dq, a.query_mask, a.scale, x, a, s, 2 * c + 16 * j);
        }
    }
}

/* dk and dv of a level, handed down (r, w) and its own. */
template <int D, int MODE>
DEVICE void dkdv_level(float *r, float *w, const backward_shared &m, const hti_cuda_args &a,
                       const sequence &s, int level, int c) {
    float x[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, 0};
    dkdv_tile<D, MODE>(x, y, m, a, s, level, c);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float share = level ? key_share(m, s.at[level] + c + 8 * h + quad()) : 1;
        share *= (float)(1 << level);
        r[2 * h] += x[2 * h] * share, r[2 * h + 1] += x[2 * h + 1] * share;
        w[2 * h] += y[2 * h] * share, w[2 * h + 1] += y[2 * h + 1] * share;
    }
}

template <int D, int MODE>
DEVICE void key_strip(const backward_shared &m, const hti_cuda_args &a, const sequence &s,
                      int row) {
    float top[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}, middle[2][4], x[2][4];
    if (s.levels > HELD)
        from_upper<D>(top[0], m.dk, s, row / 4), from_upper<D>(top[1], m.dv, s, row / 4);
    if (s.levels > 2) dkdv_level<D, MODE>(top[0], top[1], m, a, s, 2, row / 4);
#pragma unroll 1
    for (int i = 0; i < 2 && row + 32 * i < s.p.length; i++) {
        int c = row / 2 + 16 * i;
        hand_down(middle[0], top[0], i), hand_down(middle[1], top[1], i);
        if (s.levels > 1) dkdv_level<D, MODE>(middle[0], middle[1], m, a, s, 1, c);
#pragma unroll 1
        for (int j = 0; j < 2 && 2 * c + 16 * j < s.p.length; j++) {
            hand_down(x[0], middle[0], j), hand_down(x[1], middle[1], j);
            dkdv_level<D, MODE>(x[0], x[1], m, a, s, 0, 2 * c + 16 * j);
            put_rows<D>(a.dk, a.key_mask, a.scale, x[0], a, s, 2 * c + 16 * j);
            put_rows<D>(a.dv, a.key_mask, a.keep, x[1], a, s, 2 * c + 16 * j);
        }
    }
}

extern __shared__ float4 hti_shared[];

template <int D, int MODE>
static __global__ void __launch_bounds__(backward_shape<D>::SIZE, backward_shape<D>::BLOCKS)
    narrow_backward(const __grid_constant__ hti_cuda_args a) {
    backward_shared m = backward_layout((char *)hti_shared, D, sizes_of(a));
    sequence s;
    if (!find_sequence(&s, a, m.at)) return;
    load_sequence<D>(m, a, s);
    if (s.levels > HELD) upper_levels<D, MODE>(m, a, s);
    int strips = (s.p.length + STRIP - 1) / STRIP;
    for (int i = warp_id(); i < 2 * strips; i += backward_shape<D>::TEAM) {
        if (i < strips)
            key_strip<D, MODE>(m, a, s, i * STRIP);
        else
            query_strip<D, MODE>(m, a, s, (i - strips) * STRIP);
    }
}

/* ---- from outside ---- */

size_t hti_narrow_backward_shared(int head_dim, int length, int levels) {
    hti_cuda_args a;
    a.length = length, a.levels = levels;
    set_places(&a);
    return (size_t)backward_layout(NULL, head_dim, sizes_of(a)).bytes;
}

template <int D> static ht_status launch(const ht_context *ctx, hti_cuda_args a) {
    set_places(&a);
    auto kernel = a.causal      ? narrow_backward<D, CAUSAL>
                  : a.threshold ? narrow_backward<D, DROPS>
                                : narrow_backward<D, PLAIN>;
    dim3 grid((unsigned)(a.sequences * a.q_heads));
    return hti_cuda_launch(ctx, kernel, "running the narrow backward kernel", grid,
                           backward_shape<D>::SIZE,
                           (size_t)backward_layout(NULL, D, sizes_of(a)).bytes, a);
}

ht_status hti_narrow_backward(const ht_context *ctx, const hti_cuda_args &a) {
    return a.head_dim == 4 ? launch<4>(ctx, a) : launch<8>(ctx, a);
}

} // namespace HTI_KERNELS
