/*
 * Opened clusters on tensor cores, dq: a warp per tile of eight rows.
 *
 *     P = n exp(s - lse)     ds = P (<G, v> - h)     dq += scale ds K~
 */
#include "cuda/open/tiles_back.h"

enum { DQ_WARPS = 4 };

struct dq_shared {
    int *cluster;
    hti_opener *list; /* [2][entries / 2] */
    uint8_t *has, *opened;
    int bytes;
};

HTI_FN dq_shared dq_layout(char *base, int entries) {
    dq_shared s;
    int used = 0;
    s.list = (hti_opener *)(base + used), used += 8 * entries;
    s.cluster = (int *)(base + used), used += 4 * entries;
    s.has = (uint8_t *)(base + used), used += entries;
    s.opened = (uint8_t *)(base + used), used += entries;
    s.bytes = (used + 15) / 16 * 16;
    return s;
}

template <int D> struct dq_tile {
    place p;
    int head, kv_head, active;
    uint4 q[D / 32], g[D / 32];
    float lse[2], h[2], z[D / 16][4]; /* of rows 2 t, 2 t + 1; lse in base 2 */
};

/* A partner: a row or cluster of a view, who takes it in, log2 of its rows. */
struct back_partner {
    int c;
    unsigned rows;
    float weight;
};

template <int D, typename Which>
DEVICE void take_back(dq_tile<D> &w, const hti_open_tiles &o, const level_view &l, int count,
                      Which which) {
    int g = lane_id() / 4, t = lane_id() % 4;
    for (int x0 = 0; x0 < count; x0 += 16) {
        back_partner low = which(x0 + g), high = which(x0 + 8 + g);
        unsigned has = (low.rows >> 2 * t & 3) | (high.rows >> 2 * t & 3) << 2;
        if (!__any_sync(ALL_LANES, has != 0)) continue;
        float s[4], dp[4], ds[4];
        multiply<D>(s, key_at(l, low.c), key_at(l, high.c), w.q);
        multiply<D>(dp, value_at(l, low.c), value_at(l, high.c), w.g);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = fmaf(s[i], o.scale2, i < 2 ? low.weight : high.weight);
            float p = exp2_fast(x - w.lse[i % 2]);
            ds[i] = has >> i & 1 ? p * (dp[i] - w.h[i % 2]) : 0;
        }
        four_rows k = {{key_at(l, which(x0 + 2 * t).c), key_at(l, which(x0 + 2 * t + 1).c),
                        key_at(l, which(x0 + 2 * t + 8).c), key_at(l, which(x0 + 2 * t + 9).c)}};
        add_products<D>(w.z, k, matrix_across(two_halves(ds[0], ds[1])),
                        matrix_across(two_halves(ds[2], ds[3])));
    }
}

template <int D> DEVICE void near_back(dq_tile<D> &w, const hti_open_tiles &o) {
    const hti_cuda_args &a = o.a;
    level_view l = view_of(o, w.p, w.kv_head, 0);
    int from = w.p.first, last = min(from + 7, w.p.length - 1);
    int lo = keys_of(a, w.p.length, 0, from).lo0, end = keys_of(a, w.p.length, 0, last).hi0;
    take_back(w, o, l, end - lo, [&](int x) {
        int c = min(lo + x, end - 1);
        bool there = lo + x < end && takes_part(a.key_mask, w.p, c);
        unsigned rows = !there ? 0 : a.causal && c > from ? 0xffu << (c - from) : 0xffu;
        return back_partner{c, rows & (unsigned)w.active, 0};
    });
}

template <int D>
DEVICE void leaves_back(dq_tile<D> &w, const hti_open_tiles &o, const hti_opener *list, int opened,
                        int level) {
    const hti_cuda_args &a = o.a;
    level_view l = view_of(o, w.p, w.kv_head, 0);
    int count = opened << level;
    take_back(w, o, l, count, [&](int x) {
        int y = min(x, count - 1);
        hti_opener it = list[y >> level];
        int c = (it.cluster << level) + (y & ((1 << level) - 1));
        bool there = x < count && takes_part(a.key_mask, w.p, c);
        return back_partner{min(c, l.count - 1), there ? (unsigned)it.rows : 0u, 0};
    });
}

template <int D>
DEVICE void descend_back(dq_tile<D> &w, const hti_open_tiles &o, const dq_shared &s) {
    int opened = 0, room = o.entries / 2;
    for (int level = levels_of(o.a, w.p.length) - 1; level > 0; level--) {
        level_view l = view_of(o, w.p, w.kv_head, level);
        bool whole = !o.a.key_mask && (int64_t)l.count << level == w.p.length;
        hti_opener *above = s.list + (level & 1) * room, *now = s.list + (~level & 1) * room;
        int count = find_saved(o, w.p, w.head, l, w.active, above,
                               level < o.leaf_level ? 0 : opened, s.cluster, s.has, s.opened);
        take_back(w, o, l, count, [&](int e) {
            int c = s.cluster[e];
            float weight = whole ? (float)level : log2f(rows_of(o.a, w.p, l, c));
            return back_partner{c, (unsigned)(s.has[e] & ~s.opened[e]), weight};
        });
        opened = 0;
        for (int e0 = 0; e0 < count; e0 += 32) {
            int e = e0 + lane_id();
            unsigned rows = e < count ? s.opened[e] : 0;
            unsigned all = __ballot_sync(ALL_LANES, rows != 0);
            if (rows)
                now[opened + __popc(all & ((1u << lane_id()) - 1))] = {s.cluster[e], (int)rows};
            opened += __popc(all);
        }
        __syncwarp();
        if (level <= o.leaf_level && opened > 0) leaves_back(w, o, now, opened, level);
    }
}

template <int D> DEVICE void begin_back(dq_tile<D> &w, const hti_cuda_args &a) {
    int g = lane_id() / 4, t = lane_id() % 4, row = min(w.p.first + g, w.p.length - 1);
    bool live = w.active >> g & 1;
    const bf16 *q = tensor_row<const bf16>(a.q, a, w.p, w.head, row) + 8 * t;
    const bf16 *d = tensor_row<const bf16>(a.dout, a, w.p, w.head, row) + 8 * t;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        w.q[j] = w.g[j] = make_uint4(0, 0, 0, 0);
        if (live) w.q[j] = load16(q + 32 * j), w.g[j] = load16(d + 32 * j);
    }
    for (int i = 0; i < 2; i++) {
        int64_t at = w.head * a.rows + w.p.start + min(w.p.first + 2 * t + i, w.p.length - 1);
        live = w.active >> (2 * t + i) & 1;
        w.lse[i] = live ? a.saved[at] * HTI_LOG2E : 0, w.h[i] = live ? a.h[at] : 0;
    }
#pragma unroll
    for (int m = 0; m < D / 16; m++)
        for (int i = 0; i < 4; i++) w.z[m][i] = 0;
}

template <int D>
static __global__ void __launch_bounds__(32 * DQ_WARPS)
    dq_tiles_kernel(const __grid_constant__ hti_open_tiles o) {
    const hti_cuda_args &a = o.a;
    dq_shared s = dq_layout(NULL, o.entries);
    s = dq_layout((char *)hti_shared + warp_id() * s.bytes, o.entries);
    int64_t tiles = tiles_of(a, 0, HTI_OPEN_TILE);
    int64_t work = (int64_t)blockIdx.x * DQ_WARPS + warp_id();
    dq_tile<D> w;
    w.head = (int)(work / tiles), w.kv_head = w.head / a.group;
    if (work >= o.work || !find_place(&w.p, a, 0, HTI_OPEN_TILE, work % tiles)) return;
    w.active = active_rows(a, w.p, w.head);
    begin_back(w, a);
    if (w.active) {
        near_back(w, o);
        descend_back(w, o, s);
    }
    for (int i = 0; i < 2; i++) {
        int row = w.p.first + 2 * (lane_id() % 4) + i;
        if (row < w.p.length)
            store_columns<D>(tensor_row<bf16>(a.dq, a, w.p, w.head, row), w.z, i, a.scale);
    }
}

template <int D> static ht_status launch_dq(const ht_context *ctx, const hti_open_tiles &o) {
    size_t shared = DQ_WARPS * (size_t)dq_layout(NULL, o.entries).bytes;
    dim3 grid((unsigned)((o.work + DQ_WARPS - 1) / DQ_WARPS));
    return hti_cuda_launch(ctx, dq_tiles_kernel<D>, "running the opening tiles for dq", grid,
                           32 * DQ_WARPS, shared, o);
}

ht_status hti_open_tiles_dq(const ht_context *ctx, const hti_open_tiles &o) {
    if (o.a.head_dim == 32) return launch_dq<32>(ctx, o);
    return o.a.head_dim == 64 ? launch_dq<64>(ctx, o) : launch_dq<128>(ctx, o);
}
