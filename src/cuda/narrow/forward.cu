/*
 * Forward of narrow rows: a tile begins with what the tile above it has found, maximum, sum and
 * numerators, and rows end with everything.
 */
#include "cuda/hier.h"
#include "cuda/narrow/narrow.h"

namespace HTI_KERNELS {

enum { FORWARD_THREADS = 256, FORWARD_WARPS = FORWARD_THREADS / 32 };

struct forward_shared {
    char *k, *v;   /* [places] rows */
    char *q;       /* [coarse places] rows */
    float *n;      /* [places] log2 of the valid keys */
    float *count;  /* [coarse places] of queries, see fold_queries */
    float *z;      /* [upper places][dim] numerators ... */
    float2 *found; /* [upper places] ... relative to the maximum, and the sum */
    int *at;
    int bytes;
};

HTI_FN forward_shared forward_layout(char *base, int dim, narrow_sizes size) {
    int used = 0;
    forward_shared s;
    s.k = base + used, used += size.all * dim * 2;
    s.v = base + used, used += size.all * dim * 2;
    s.q = base + used, used += size.coarse * dim * 2;
    s.n = (float *)(base + used), used += size.all * 4;
    s.count = (float *)(base + used), used += size.coarse * 4;
    s.z = (float *)(base + used), used += size.upper * dim * 4;
    s.found = (float2 *)(base + used), used += size.upper * 8;
    s.at = (int *)(base + used), used += (NARROW_LEVELS + 1) * 4;
    s.bytes = used;
    return s;
}

/* Level 0 of keys and values; the other levels of all three. */
template <int D>
DEVICE void load_sequence(const forward_shared &m, const hti_cuda_args &a, const sequence &s) {
    int count = s.levels > 1 ? 3 : 2;
    fold_level<FORWARD_THREADS>(s, 0, count, [&](int tensor, int e) {
        if (tensor == 2)
            fold_queries<D, true>(m.q, m.count, a, s, s.at[1], 0, e);
        else
            fold_keys<D, true>(tensor ? m.v : m.k, m.n, !tensor, tensor ? a.v : a.k, a, s, 0, e);
    });
    for (int level = FOLD_LEVELS; level + 1 < s.levels; level += FOLD_LEVELS)
        fold_level<FORWARD_THREADS>(s, level, count, [&](int tensor, int e) {
            if (tensor == 2)
                fold_queries<D, false>(m.q, m.count, a, s, s.at[1], level, e);
            else
                fold_keys<D, false>(tensor ? m.v : m.k, m.n, !tensor, a.k, a, s, level, e);
        });
}

/* ---- softmax over what a tile's rows have seen so far ---- */

/* Weights are relative to 2^from (-inf: nothing was seen). */
struct tile_state {
    float z[4], sum[4]; /* of columns; the same in all columns */
    float from[2];
};

DEVICE tile_state nothing_seen() { return {{0, 0, 0, 0}, {0, 0, 0, 0}, {-INFINITY, -INFINITY}}; }

/* Scores come relative to 2^from; those above the limit move it. */
struct reference {
    float from[2], limit[2];
};

enum { BEHIND = 8 };

DEVICE reference reference_of(const tile_state &t) {
    reference r;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.from[h] = t.from[h] == -INFINITY ? 0 : t.from[h];
        r.limit[h] = t.from[h] == -INFINITY ? -INFINITY : BEHIND;
    }
    return r;
}

/* Where a row's largest score is above the limit it becomes the reference. */
DEVICE void keep_up(tile_state &t, reference &r, scores &s) {
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        top[h] = fmaxf(fmaxf(s.x[h][0], s.x[h][1]), fmaxf(s.x[h][2], s.x[h][3]));
    if (!__any_sync(ALL_LANES, top[0] > r.limit[0] || top[1] > r.limit[1])) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float x = fmaxf(top[h], __shfl_xor_sync(ALL_LANES, top[h], 1));
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
        bool behind = x > r.limit[h];
        float more = behind ? x : 0, fade = behind ? exp2_fast(-x) : 1;
        if (r.limit[h] == -INFINITY) fade = 0;
        if (behind) r.limit[h] = BEHIND;
        r.from[h] += more;
#pragma unroll
        for (int e = 0; e < 4; e++) s.x[h][e] -= more;
        t.z[2 * h] *= fade, t.z[2 * h + 1] *= fade;
        t.sum[2 * h] *= fade, t.sum[2 * h + 1] *= fade;
    }
}

DEVICE tile_state hand_state_down(const tile_state &t, int second) {
    tile_state x;
    float from[4] = {t.from[0], t.sum[0], t.from[1], t.sum[2]}, to[4];
    hand_down(x.z, t.z, second);
    hand_down(to, from, second);
    x.from[0] = to[0], x.from[1] = to[2];
    x.sum[0] = x.sum[1] = to[1], x.sum[2] = x.sum[3] = to[3];
    return x;
}

/* Draws for queries c ... and keys j ... of a level and keeps the bits in `to` (or NULL); weights
 * that are dropped become zero. */
DEVICE weights drop(const weights &w, uint8_t *to, const hti_cuda_args &a, const sequence &s,
                    int level, int c, int j) {
    weights y = w;
    uint32_t bits = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        hti_philox x = hti_dropout_words(a.seed, s.offset, s.stream, level, c + 8 * h + quad(),
                                         (uint32_t)(j / 4 + in_quad()));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (x.w[e] >= a.threshold)
                bits |= 1u << (4 * h + e);
            else
                y.a[2 * (e & 1) + h] &= e < 2 ? 0xffff0000u : 0xffffu;
        }
    }
    if (to) to[keeps_at(s, level, c / GROUP, j / GROUP) + lane_id()] = (uint8_t)bits;
    return y;
}

/* Rows c ... c + 15 of a level over all their keys. */
template <int D, int MODE>
DEVICE void attend(tile_state &t, const forward_shared &m, const hti_cuda_args &a,
                   const sequence &s, const own_rows &q, int level, int c) {
    const uint32_t one = 0x10001 * ELEMENT_ONE, k = shared_address(m.k), v = shared_address(m.v);
    partners list = partners_of(a, s, level, c, false);
    float scale = a.scale * HTI_LOG2E;
    reference r = reference_of(t);
    uint8_t *keeps = MODE != PLAIN && a.threshold ? keeps_of_level(a, s, level) : NULL;
    for (int i = 0; i < list.count; i++) {
        int j = list.at(i) * GROUP, place = s.at[level] + j;
        scores x = products(q, rows_from<D>(k, place));
        float add[2][4];
        key_weights(add, m.n + s.at[level], r.from, a, s, level, j);
        to_exponents(x, scale, add);
        hide<MODE>(x, list, i, level, c, false);
        keep_up(t, r, x);
        to_powers(x);
        weights w = packed(x);
        add_group(t.sum, w, {one, one});
        if (MODE != PLAIN && a.threshold) w = drop(w, keeps, a, s, level, c, j);
        add_group(t.z, w, columns_from<D>(v, place));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) t.from[h] = r.limit[h] == -INFINITY ? -INFINITY : r.from[h];
}

/* ---- the levels from HELD on ---- */

/* All they have found, together in the clusters of level HELD. */
template <int D> DEVICE void merge_upper(const forward_shared &m, const sequence &s) {
    for (int c = (int)threadIdx.x; c < clusters_of(s, HELD); c += FORWARD_THREADS) {
        float2 all = m.found[c];
        float4 z[D / 4], *own = (float4 *)(m.z + c * D);
        for (int i = 0; i < D / 4; i++) z[i] = own[i];
        for (int l = HELD + 1; l < s.levels; l++) {
            int place = s.at[l] - s.at[HELD] + (c >> (l - HELD));
            float2 found = m.found[place];
            float top = fmaxf(all.x, found.x), from = top == -INFINITY ? 0 : top;
            float x = exp2_fast(all.x - from), y = exp2_fast(found.x - from);
            all = make_float2(top, all.y * x + found.y * y);
            for (int i = 0; i < D / 4; i++) {
                float4 more = ((const float4 *)(m.z + place * D))[i];
                z[i] = make_float4(z[i].x * x + more.x * y, z[i].y * x + more.y * y,
                                   z[i].z * x + more.z * y, z[i].w * x + more.w * y);
            }
        }
        m.found[c] = all;
        for (int i = 0; i < D / 4; i++) own[i] = z[i];
    }
    __syncthreads();
}

template <int D, int MODE>
DEVICE void attend_upper(const forward_shared &m, const hti_cuda_args &a, const sequence &s) {
    for (int i = warp_id(); i < upper_tiles(s); i += FORWARD_WARPS) {
        int c, level = upper_tile(s, i, &c), to = i * GROUP;
        tile_state t = nothing_seen();
        attend<D, MODE>(t, m, a, s, get_own<D>(m.q, s.at[level] - s.at[1] + c), level, c);
        whole<D>(t.z);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = to + 8 * h + quad();
            *(float2 *)(m.z + row * D + own_column<D>()) = make_float2(t.z[2 * h], t.z[2 * h + 1]);
            m.found[row] = make_float2(t.from[h], t.sum[2 * h]);
        }
    }
    __syncthreads();
    if (s.levels > HELD + 1) merge_upper<D>(m, s);
}

/* What clusters c ... of level HELD - 1 begin with. */
template <int D> DEVICE tile_state upper_state(const forward_shared &m, const sequence &s, int c) {
    tile_state t = nothing_seen();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int place = min((c + 8 * h + quad()) / 2, clusters_of(s, HELD) - 1);
        float2 found = m.found[place];
        float2 z = *(const float2 *)(m.z + place * D + own_column<D>());
        if (D == 4 && in_quad() >= 2) z = make_float2(0, 0);
        t.from[h] = found.x, t.z[2 * h] = z.x, t.z[2 * h + 1] = z.y;
        t.sum[2 * h] = t.sum[2 * h + 1] = found.y;
    }
    return t;
}

/* ---- rows ---- */

template <int D> DEVICE own_rows load_queries(const hti_cuda_args &a, const sequence &s, int c) {
    head_rows<const element> from(a.q, a, s);
    own_rows q;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = c + 8 * h + quad();
        bool valid = takes_part(a.query_mask, s.p, row);
        set_own<D>(q, h, valid ? *(const uint32_t *)(from.at(row) + own_column<D>()) : 0);
    }
    return q;
}

template <int D>
DEVICE void finish_rows(tile_state &t, const hti_cuda_args &a, const sequence &s, int c) {
    head_rows<element> out(a.out, a, s);
    float *saved = a.saved ? a.saved + s.head * a.rows + s.p.start : NULL;
    whole<D>(t.z);
    each_row<D>(t.z, [&](int h, float x, float y) {
        int row = c + 8 * h + quad();
        if (row >= s.p.length) return;
        float sum = h ? t.sum[2] : t.sum[0], from = h ? t.from[1] : t.from[0];
        bool seen = takes_part(a.query_mask, s.p, row) && sum != 0;
        float share = a.keep * inverse_fast(sum);
        *(uint32_t *)(out.at(row) + own_column<D>()) = seen ? pack2(x * share, y * share) : 0;
        if (in_quad() & (D == 4 ? 1 : 3)) return;
        float lse = seen ? HTI_LN2 * (from + __log2f(sum)) : -INFINITY;
        if (saved) saved[row] = lse;
        if (a.lse.data) *tensor_row<float>(a.lse, a, s.p, s.head, row) = lse;
    });
}

template <int D, int MODE>
DEVICE void attend_strip(const forward_shared &m, const hti_cuda_args &a, const sequence &s,
                         int row) {
    tile_state top = nothing_seen();
    if (s.levels > 2) {
        int c = row / 4;
        if (s.levels > HELD) top = upper_state<D>(m, s, c);
        attend<D, MODE>(top, m, a, s, get_own<D>(m.q, s.at[2] - s.at[1] + c), 2, c);
    }
#pragma unroll 1
    for (int i = 0; i < 2 && row + 32 * i < s.p.length; i++) {
        int c = row / 2 + 16 * i;
        tile_state middle = hand_state_down(top, i);
        if (s.levels > 1) attend<D, MODE>(middle, m, a, s, get_own<D>(m.q, c), 1, c);
#pragma unroll 1
        for (int j = 0; j < 2 && 2 * c + 16 * j < s.p.length; j++) {
            tile_state t = hand_state_down(middle, j);
            own_rows q = load_queries<D>(a, s, 2 * c + 16 * j);
            attend<D, MODE>(t, m, a, s, q, 0, 2 * c + 16 * j);
            finish_rows<D>(t, a, s, 2 * c + 16 * j);
        }
    }
}

extern __shared__ float4 hti_shared[];

template <int D, int MODE>
static __global__ void __launch_bounds__(FORWARD_THREADS, D == 4 ? 3 : 2)
    narrow_forward(const __grid_constant__ hti_cuda_args a) {
    forward_shared m = forward_layout((char *)hti_shared, D, sizes_of(a));
    sequence s;
    if (!find_sequence(&s, a, m.at)) return;
    load_sequence<D>(m, a, s);
    if (s.levels > HELD) attend_upper<D, MODE>(m, a, s);
    for (int row = warp_id() * STRIP; row < s.p.length; row += FORWARD_WARPS * STRIP)
        attend_strip<D, MODE>(m, a, s, row);
}

/* ---- from outside ---- */

static size_t lse_bytes(const ht_attention_desc *d) {
    return (sizeof(float) * (size_t)(d->q_heads * d->max_rows) + 15) / 16 * 16;
}

static int64_t row_bytes(const ht_attention_desc *d) {
    return d->q_heads * row_keeps_at((int)d->block, d->max_rows, d->max_sequences);
}

size_t hti_narrow_saved(const ht_attention_desc *d) {
    if (!hti_narrow_keeps(d)) return 0;
    int64_t most = d->q_heads * cluster_keeps_at((int)d->block, d->max_rows, d->max_sequences);
    return lse_bytes(d) + (size_t)(row_bytes(d) + most);
}

void hti_narrow_set_saved(hti_cuda_args *a, const ht_attention_desc *d) {
    if (!a->saved || !hti_narrow_keeps(d)) return;
    a->row_keeps = (uint8_t *)a->saved + lse_bytes(d);
    a->cluster_keeps = a->row_keeps + row_bytes(d);
}

template <int D> static ht_status launch(const ht_context *ctx, hti_cuda_args a) {
    set_places(&a);
    auto kernel = a.causal      ? narrow_forward<D, CAUSAL>
                  : a.threshold ? narrow_forward<D, DROPS>
                                : narrow_forward<D, PLAIN>;
    dim3 grid((unsigned)(a.sequences * a.q_heads));
    return hti_cuda_launch(ctx, kernel, "running the narrow forward kernel", grid, FORWARD_THREADS,
                           (size_t)forward_layout(NULL, D, sizes_of(a)).bytes, a);
}

ht_status hti_narrow_forward(const ht_context *ctx, const hti_cuda_args &a) {
    return a.head_dim == 4 ? launch<4>(ctx, a) : launch<8>(ctx, a);
}

} // namespace HTI_KERNELS
