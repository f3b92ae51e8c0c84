/*
 * Opened clusters on tensor cores, forward (tiles.h). From the top level down:
 *
 *     entries    the clusters that the rows meet, and the children of what any row opened above
 *     scores     of the entries' parts, dense; mean, and mean with deviation, to the rows' slots
 *     choice     per row, a lane per slot: opened is what fewer than K slots are greater than
 *     sums       entries that are not opened take part at once, mean logits from the slots
 *     leaves     rows of what was opened for good, dense over the union, a bit per row
 *
 * One softmax for all, whose maximum moves only when it falls behind by a factor of 256.
 */
#include "cuda/open/fragment.h"

enum { WARPS_OPEN = 4 };

/* A warp's place in shared memory. */
struct tile_shared {
    uint32_t *key;   /* [8][slots] scores as integers in the same order */
    float *mean;     /* [8][slots] products with the cluster's mean */
    uint32_t *words; /* [8][entries / 32] which entries a row has */
    int *before;     /* [8][entries / 32] how many there were before */
    int *cluster;    /* [entries] */
    int *list;       /* [2][entries / 2] opened clusters of the level above, and of this one */
    uint16_t *entry; /* [8][slots] */
    uint8_t *has, *opened; /* [entries] a bit per row */
    uint8_t *who;          /* [2][entries / 2] rows that opened a cluster of the list */
    int bytes;
};

HTI_FN tile_shared tile_layout(char *base, int words, int entries) {
    tile_shared s;
    int used = 0, slots = 8 * 32 * words, chunks = 8 * (entries / 32);
    s.key = (uint32_t *)(base + used), used += 4 * slots;
    s.mean = (float *)(base + used), used += 4 * slots;
    s.words = (uint32_t *)(base + used), used += 4 * chunks;
    s.before = (int *)(base + used), used += 4 * chunks;
    s.cluster = (int *)(base + used), used += 4 * entries;
    s.list = (int *)(base + used), used += 4 * entries;
    s.entry = (uint16_t *)(base + used), used += 2 * slots;
    s.has = (uint8_t *)(base + used), used += entries;
    s.opened = (uint8_t *)(base + used), used += entries;
    s.who = (uint8_t *)(base + used), used += entries;
    s.bytes = (used + 15) / 16 * 16;
    return s;
}

/* A warp's rows and their softmax: rows 2 t and 2 t + 1, sums this lane's share. */
template <int D> struct tile {
    place p;
    int head, kv_head, active; /* active: a bit per row that takes part */
    uint4 q[D / 32];
    float max[2], sum[2], z[D / 16][4];
};

/* ---- softmax ---- */

template <int D> DEVICE void raise(tile<D> &w, float x0, float x1) {
    float x[2] = {x0, x1};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        for (int step = 4; step < 32; step *= 2)
            x[i] = fmaxf(x[i], __shfl_xor_sync(ALL_LANES, x[i], step));
        float top = fmaxf(w.max[i], x[i]), fade = exp2_fast(w.max[i] - top);
        w.max[i] = top;
        w.sum[i] *= fade;
#pragma unroll
        for (int m = 0; m < D / 16; m++) w.z[m][i] *= fade, w.z[m][2 + i] *= fade;
    }
}

DEVICE float bias_of(const hti_cuda_args &a, int head, int distance) {
    int most = 2 * a.block - 1, entry = max(-most, min(most, distance)) + most;
    return a.bias[(int64_t)entry * a.q_heads + head] * HTI_LOG2E;
}

/* x: logits in base 2 of partners g and g + 8 with rows 2 t, 2 t + 1, as in multiply; has: bit i
 * for x[i]. Their weights times values are added. */
template <int D>
DEVICE void take_in(tile<D> &w, const float (&x)[4], unsigned has, const four_rows &v) {
    float y[4], p[4];
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = has >> i & 1 ? x[i] : HTI_NEG_INF;
    float top0 = fmaxf(y[0], y[2]), top1 = fmaxf(y[1], y[3]);
    if (__any_sync(ALL_LANES, top0 > w.max[0] + 8 || top1 > w.max[1] + 8)) raise(w, top0, top1);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        p[i] = has >> i & 1 ? exp2_fast(x[i] - w.max[i % 2]) : 0;
        w.sum[i % 2] += p[i];
    }
    uint32_t low = matrix_across(two_halves(p[0], p[1]));
    uint32_t high = matrix_across(two_halves(p[2], p[3]));
    add_products<D>(w.z, v, low, high);
}

/* ---- rows: those of level 0, and those of opened clusters ---- */

/* Key of this lane's partner number x, and the bits of rows that have it. */
struct partner {
    int c;
    unsigned rows;
};

template <int D, typename Which>
DEVICE void take_keys(tile<D> &w, const hti_open_tiles &o, const level_view &l, int count,
                      Which which) {
    int g = lane_id() / 4, t = lane_id() % 4;
    for (int x0 = 0; x0 < count; x0 += 16) {
        partner low = which(x0 + g), high = which(x0 + 8 + g);
        float c[4];
        multiply<D>(c, key_at(l, low.c), key_at(l, high.c), w.q);
        unsigned has = (low.rows >> 2 * t & 3) | (high.rows >> 2 * t & 3) << 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c[i] *= o.scale2;
            if (o.a.bias)
                c[i] +=
                    bias_of(o.a, w.head, (i < 2 ? low.c : high.c) - (w.p.first + 2 * t + i % 2));
        }
        four_rows v = {{value_at(l, which(x0 + 2 * t).c), value_at(l, which(x0 + 2 * t + 1).c),
                        value_at(l, which(x0 + 2 * t + 8).c),
                        value_at(l, which(x0 + 2 * t + 9).c)}};
        take_in(w, c, has, v);
    }
}

template <int D> DEVICE void take_near(tile<D> &w, const hti_open_tiles &o, const level_view &l) {
    const hti_cuda_args &a = o.a;
    reach first = keys_of(a, w.p.length, 0, w.p.first);
    int last = min(w.p.first + 7, w.p.length - 1);
    int end = keys_of(a, w.p.length, 0, last).hi0, lo = first.lo0, from = w.p.first;
    take_keys(w, o, l, end - lo, [&](int x) {
        int c = min(lo + x, end - 1);
        bool there = lo + x < end && takes_part(a.key_mask, w.p, c);
        unsigned rows = !there ? 0 : a.causal && c > from ? 0xffu << (c - from) : 0xffu;
        return partner{c, rows & (unsigned)w.active};
    });
}

template <int D>
DEVICE void take_leaves(tile<D> &w, const hti_open_tiles &o, const level_view &l, const int *list,
                        const uint8_t *who, int opened, int level) {
    const hti_cuda_args &a = o.a;
    int count = opened << level;
    take_keys(w, o, l, count, [&](int x) {
        int y = min(x, count - 1), e = y >> level;
        int c = (list[e] << level) + (y & ((1 << level) - 1));
        bool there = x < count && takes_part(a.key_mask, w.p, c);
        return partner{min(c, l.count - 1), there ? who[e] : 0u};
    });
}

/* ---- a level ---- */

/* Entries in the order of their clusters, who has them, and the rows' slots. Returns how many;
 * slots: of row `lane`. */
template <int D>
DEVICE int find_entries(const tile<D> &w, const hti_open_tiles &o, const tile_shared &s,
                        const level_view &l, int from, int opened, int *slots) {
    const hti_cuda_args &a = o.a;
    reach met = keys_of(a, w.p.length, l.level, w.p.first >> l.level);
    int met0 = max(0, met.hi0 - met.lo0), met1 = max(0, met.hi1 - met.lo1), left = 0;
    const int *list = s.list + from * (o.entries / 2);
    const uint8_t *who = s.who + from * (o.entries / 2);
    for (int x0 = 0; x0 < opened; x0 += 32) {
        int x = x0 + lane_id();
        left += 2 * __popc(__ballot_sync(ALL_LANES, x < opened && 2 * list[x] < met.lo0));
    }
    int count = 2 * opened + met0 + met1;
    *slots = 0;
    for (int e0 = 0; e0 < count; e0 += 32) {
        int e = e0 + lane_id(), y = e - left, c = 0;
        unsigned has = (unsigned)w.active;
        if (y >= 0 && y < met0) {
            c = met.lo0 + y;
        } else if (y >= met0 && y < met0 + met1) {
            c = met.lo1 + y - met0;
        } else if (e < count) {
            int x = y < 0 ? e : e - met0 - met1;
            c = 2 * list[x / 2] + x % 2, has = who[x / 2];
        }
        if (e >= count || !(rows_of(a, w.p, l, c) > 0)) has = 0;
        s.cluster[e] = min(c, l.count - 1);
        s.has[e] = (uint8_t)has, s.opened[e] = 0;
#pragma unroll
        for (int r = 0; r < 8; r++) {
            unsigned word = __ballot_sync(ALL_LANES, has >> r & 1);
            if (lane_id() != r) continue;
            s.words[r * (o.entries / 32) + e0 / 32] = word;
            s.before[r * (o.entries / 32) + e0 / 32] = *slots;
            *slots += __popc(word);
        }
    }
    __syncwarp();
    return count;
}

/* Greater where the product is: 1 is NaN, 0 no candidate. */
DEVICE uint32_t ordered_product(float x) {
    uint32_t u = __float_as_uint(x + 0.0f); /* -0 as 0 */
    if (x != x) return 1;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Mean of a cluster's parts, and mean and deviation as an integer. */
struct rated {
    float mean;
    uint32_t key;
};

DEVICE rated rate_at(float mean, float score) {
    return {mean, mean != mean ? 1u : ordered_product(score)};
}

/* Of two and of four parts of equal counts. The explicit sums are those of the reference. */
DEVICE rated rate_two(float x, float y) { return rate_at(0.5f * (x + y), fmaxf(x, y)); }

DEVICE rated rate_four(float x, float y, float z, float w) {
    float mean = 0.25f * ((x + y) + (z + w)), square = 0;
    x -= mean, y -= mean, z -= mean, w -= mean;
    square = fmaf(x, x, square), square = fmaf(y, y, square);
    square = fmaf(z, z, square), square = fmaf(w, w, square);
    return rate_at(mean, mean + sqrtf(0.25f * square));
}

/* Of any: parts without rows do not count. */
DEVICE rated rate_parts(const float (&x)[4], const float (&n)[4]) {
    float all = 0, mean = 0, square = 0;
    for (int i = 0; i < 4; i++)
        if (n[i] > 0) all += n[i], mean = fmaf(n[i], x[i], mean);
    mean /= all;
    for (int i = 0; i < 4; i++)
        if (n[i] > 0) square = fmaf(n[i] * (x[i] - mean), x[i] - mean, square);
    return rate_at(mean, mean + sqrtf(square / all));
}

/* Products of all entries' parts, into the slots. below: the level of the parts, two for each entry
 * or (FOUR) four; whole: all have as many rows. */
template <int D, int WORDS, bool FOUR>
DEVICE void score_entries(const tile<D> &w, const hti_open_tiles &o, const tile_shared &s,
                          const level_view &below, int count, bool whole) {
    int g = lane_id() / 4, t = lane_id() % 4, chunks = o.entries / 32;
#pragma unroll(FOUR ? 1 : 2)
    for (int e0 = 0; e0 < count; e0 += 8) {
        int e = e0 + g, first = s.cluster[e] * (FOUR ? 4 : 2), chunk = e0 / 32;
        int last = below.count - 1;
        float x[4], y[4], n[4];
        multiply<D>(x, key_at(below, first), key_at(below, min(first + 1, last)), w.q);
        if (FOUR)
            multiply<D>(y, key_at(below, min(first + 2, last)), key_at(below, min(first + 3, last)),
                        w.q);
        for (int i = 0; !whole && i < 4; i++)
            n[i] = FOUR || i < 2 ? rows_of(o.a, w.p, below, first + i) : 0;
        unsigned bit = 1u << (e & 31);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = 2 * t + i;
            unsigned word = s.words[row * chunks + chunk];
            rated it;
            if (whole) {
                it = FOUR ? rate_four(x[i], x[2 + i], y[i], y[2 + i]) : rate_two(x[i], x[2 + i]);
            } else {
                float parts[4] = {x[i], x[2 + i], FOUR ? y[i] : 0, FOUR ? y[2 + i] : 0};
                it = rate_parts(parts, n);
            }
            if (!(word & bit)) continue;
            int at = row * 32 * WORDS + s.before[row * chunks + chunk] + __popc(word & (bit - 1));
            s.key[at] = it.key, s.mean[at] = it.mean, s.entry[at] = (uint16_t)e;
        }
    }
    __syncwarp();
}

/* A lane's slots of a row: bit i says that slot 32 i + lane is opened. */
template <int WORDS> DEVICE unsigned pick(const uint32_t *key, int slots, int open) {
    uint32_t mine[WORDS];
    int greater[WORDS], total = 0;
    unsigned opened = 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        int x = 32 * i + lane_id();
        mine[i] = x < slots ? key[x] : 0, greater[i] = 0;
        if (slots <= open && x < slots) opened |= 1u << i;
    }
    if (slots <= open) return opened;
    for (int y = 0; y < 32 * WORDS && y < slots; y += 4) {
        uint4 other = *(const uint4 *)(key + y); /* 0 behind the last */
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            greater[i] += (other.x > mine[i]) + (other.y > mine[i]) + (other.z > mine[i]) +
                          (other.w > mine[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        bool yes = mine[i] > 0 && greater[i] < open;
        if (yes) opened |= 1u << i;
        total += __popc(__ballot_sync(ALL_LANES, yes));
    }
    if (total == open) return opened;
#pragma unroll
    for (int i = 0; i < WORDS; i++) { /* of equal ones the first */
        int equal = 0, x = 32 * i + lane_id();
        for (int y = 0; y < slots; y++) equal += y < x && key[y] == mine[i];
        if (greater[i] + equal >= open) opened &= ~(1u << i);
    }
    return opened;
}

/* What each row opens: into its entries' bits, and what is saved. */
template <int D, int WORDS>
DEVICE void choose_slots(const tile<D> &w, const hti_open_tiles &o, const tile_shared &s,
                         int slots_of_mine, int level) {
    const hti_cuda_args &a = o.a;
    for (int r = 0; r < 8; r++) {
        int slots = __shfl_sync(ALL_LANES, slots_of_mine, r);
        uint32_t *key = s.key + r * 32 * WORDS;
        if (lane_id() < 4 && slots + lane_id() < 32 * WORDS) key[slots + lane_id()] = 0;
        __syncwarp();
        unsigned opened = pick<WORDS>(key, slots, o.open);
        int64_t at =
            ((level - 1) * (int64_t)a.q_heads + w.head) * a.rows + w.p.start + w.p.first + r;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            unsigned word = __ballot_sync(ALL_LANES, opened >> i & 1);
            if (opened >> i & 1)
                s.opened[s.entry[r * 32 * WORDS + 32 * i + lane_id()]] |= (uint8_t)(1 << r);
            if (o.chosen && lane_id() == 0 && w.p.first + r < w.p.length)
                o.chosen[at * WORDS + i] = word;
        }
        __syncwarp();
    }
}

/* Entries that are not opened take part as clusters. */
template <int D, int WORDS>
DEVICE void take_entries(tile<D> &w, const hti_open_tiles &o, const tile_shared &s,
                         const level_view &l, int count, bool whole) {
    int g = lane_id() / 4, t = lane_id() % 4, chunks = o.entries / 32;
    for (int e0 = 0; e0 < count; e0 += 16) {
        int chunk = e0 / 32;
        float x[4];
        unsigned has = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int e = e0 + 8 * half + g, c = s.cluster[e];
            unsigned takes = (unsigned)(s.has[e] & ~s.opened[e]) >> 2 * t & 3, bit = 1u << (e & 31);
            float weight = (float)l.level; /* log2 of its rows */
            if (!whole) weight = log2f(rows_of(o.a, w.p, l, c));
            has |= takes << 2 * half;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int row = 2 * t + i, at = row * 32 * WORDS + s.before[row * chunks + chunk] +
                                          __popc(s.words[row * chunks + chunk] & (bit - 1));
                float mean = takes >> i & 1 ? s.mean[at] : 0;
                x[2 * half + i] = fmaf(mean, o.scale2, weight);
                if (o.a.bias)
                    x[2 * half + i] += bias_of(o.a, w.head, c - ((w.p.first + row) >> l.level));
            }
        }
        four_rows v = {{value_at(l, s.cluster[e0 + 2 * t]), value_at(l, s.cluster[e0 + 2 * t + 1]),
                        value_at(l, s.cluster[e0 + 2 * t + 8]),
                        value_at(l, s.cluster[e0 + 2 * t + 9])}};
        take_in(w, x, has, v);
    }
}

/* The clusters that any row opened, and which rows. */
DEVICE int list_opened(const tile_shared &s, int *list, uint8_t *who, int count) {
    int listed = 0;
    for (int e0 = 0; e0 < count; e0 += 32) {
        int e = e0 + lane_id();
        uint8_t rows = e < count ? s.opened[e] : (uint8_t)0;
        unsigned all = __ballot_sync(ALL_LANES, rows != 0);
        int at = listed + __popc(all & ((1u << lane_id()) - 1));
        if (rows) list[at] = s.cluster[e], who[at] = rows;
        listed += __popc(all);
    }
    __syncwarp();
    return listed;
}

/* ---- the tile ---- */

template <int D, int WORDS>
DEVICE void descend(tile<D> &w, const hti_open_tiles &o, const tile_shared &s) {
    int opened = 0;
    level_view l = view_of(o, w.p, w.kv_head, levels_of(o.a, w.p.length) - 1);
    level_view rows = view_of(o, w.p, w.kv_head, 0);
    for (; l.level > 0;) {
        level_view below = view_of(o, w.p, w.kv_head, l.level - 1);
        bool whole = !o.a.key_mask && (int64_t)l.count << l.level == w.p.length;
        int slots, from = l.level & 1;
        int count = find_entries(w, o, s, l, from, l.level < o.leaf_level ? 0 : opened, &slots);
        if (o.peek == 2 && l.level > 1) {
            level_view parts = view_of(o, w.p, w.kv_head, l.level - 2);
            score_entries<D, WORDS, true>(w, o, s, parts, count, whole);
        } else {
            score_entries<D, WORDS, false>(w, o, s, below, count, whole);
        }
        choose_slots<D, WORDS>(w, o, s, slots, l.level);
        take_entries<D, WORDS>(w, o, s, l, count, whole);
        int *list = s.list + (from ^ 1) * (o.entries / 2);
        uint8_t *who = s.who + (from ^ 1) * (o.entries / 2);
        opened = list_opened(s, list, who, count);
        if (l.level <= o.leaf_level && opened > 0)
            take_leaves(w, o, rows, list, who, opened, l.level);
        l = below;
    }
}

template <int D> DEVICE void begin(tile<D> &w, const hti_open_tiles &o) {
    const hti_cuda_args &a = o.a;
    int g = lane_id() / 4, row = min(w.p.first + g, w.p.length - 1);
    unsigned valid = __ballot_sync(ALL_LANES, takes_part(a.query_mask, w.p, w.p.first + g));
    w.active = 0;
    for (int r = 0; r < 8; r++) w.active |= (int)(valid >> 4 * r & 1) << r;
    const bf16 *q = tensor_row<const bf16>(a.q, a, w.p, w.head, row) + lane_id() % 4 * 8;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        w.q[j] = make_uint4(0, 0, 0, 0);
        if (w.active >> g & 1) w.q[j] = load16(q + 32 * j);
    }
    for (int i = 0; i < 2; i++) w.max[i] = -1e30f, w.sum[i] = 0;
#pragma unroll
    for (int m = 0; m < D / 16; m++)
        for (int i = 0; i < 4; i++) w.z[m][i] = 0;
}

template <int D> DEVICE void finish(tile<D> &w, const hti_cuda_args &a) {
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = w.sum[i];
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        int row = w.p.first + 2 * t + i;
        if (row >= w.p.length) continue;
        float inverse = sum != 0 ? 1 / sum : 0;
        float lse = sum != 0 ? (w.max[i] + log2f(sum)) * HTI_LN2 : -INFINITY;
        store_columns<D>(tensor_row<bf16>(a.out, a, w.p, w.head, row), w.z, i, inverse);
        if (g != 0) continue;
        if (a.saved) a.saved[w.head * a.rows + w.p.start + row] = lse;
        if (a.lse.data) *tensor_row<float>(a.lse, a, w.p, w.head, row) = lse;
    }
}

extern __shared__ float4 hti_shared[];

template <int D, int WORDS>
static __global__ void __launch_bounds__(32 * WARPS_OPEN)
    tiles_kernel(const __grid_constant__ hti_open_tiles o) {
    const hti_cuda_args &a = o.a;
    int bytes = tile_layout(NULL, WORDS, o.entries).bytes;
    tile_shared s = tile_layout((char *)hti_shared + warp_id() * bytes, WORDS, o.entries);
    int64_t tiles = tiles_of(a, 0, HTI_OPEN_TILE);
    int64_t work = (int64_t)blockIdx.x * WARPS_OPEN + warp_id();
    tile<D> w;
    w.head = (int)(work / tiles), w.kv_head = w.head / a.group;
    if (work >= o.work || !find_place(&w.p, a, 0, HTI_OPEN_TILE, work % tiles)) return;
    begin(w, o);
    if (w.active) {
        take_near(w, o, view_of(o, w.p, w.kv_head, 0));
        descend<D, WORDS>(w, o, s);
    }
    finish(w, a);
}

/* ---- launching ---- */

template <int D, int WORDS>
static ht_status launch(const ht_context *ctx, const hti_open_tiles &o) {
    size_t shared = WARPS_OPEN * (size_t)tile_layout(NULL, WORDS, o.entries).bytes;
    dim3 grid((unsigned)((o.work + WARPS_OPEN - 1) / WARPS_OPEN));
    return hti_cuda_launch(ctx, tiles_kernel<D, WORDS>, "opening clusters on tensor cores", grid,
                           32 * WARPS_OPEN, shared, o);
}

template <int D> static ht_status launch_words(const ht_context *ctx, const hti_open_tiles &o) {
    if (o.words == 1) return launch<D, 1>(ctx, o);
    return o.words == 2 ? launch<D, 2>(ctx, o) : launch<D, 4>(ctx, o);
}

ht_status hti_open_tiles_forward(const ht_context *ctx, const hti_open_tiles &shape) {
    hti_open_tiles o = shape;
    o.work = tiles_of(o.a, 0, HTI_OPEN_TILE) * o.a.q_heads;
    if (o.a.head_dim == 32) return launch_words<32>(ctx, o);
    return o.a.head_dim == 64 ? launch_words<64>(ctx, o) : launch_words<128>(ctx, o);
}

/* ---- sizes ---- */

size_t hti_open_tiles_saved(const ht_attention_desc *d) {
    int64_t words = hti_open_words(d);
    int64_t levels = hti_levels(d->max_length, d->block) - 1;
    return sizeof(float) * (size_t)(d->q_heads * d->max_rows) * (size_t)(1 + levels * words);
}

uint32_t *hti_open_tiles_chosen(const hti_cuda_args &a) {
    return a.saved ? (uint32_t *)(a.saved + a.q_heads * a.rows) : (uint32_t *)0;
}

void hti_open_tiles_carve(hti_carver *c, hti_open_tiles *o, const ht_attention_desc *d,
                          int has_key_mask) {
    const hti_cuda_args &a = o->a;
    int64_t slots = hti_open_slots(d), met = slots - 2 * d->open;
    o->open = (int)d->open;
    o->leaf_level = 1;
    while (o->leaf_level < 30 && (int64_t)1 << (o->leaf_level + 1) <= d->open_leaf) o->leaf_level++;
    o->words = hti_open_words(d);
    o->entries = (int)((met + 2 * HTI_OPEN_TILE * d->open + 31) / 32 * 32);
    o->peek = (int)d->open_peek;
    o->scale2 = a.scale * HTI_LOG2E;
    o->pk = c->take<__nv_bfloat16>(a.kv_heads * a.clusters * a.head_dim);
    o->pv = c->take<__nv_bfloat16>(a.kv_heads * a.clusters * a.head_dim);
    for (int level = HTI_OPEN_FOLD; level < a.levels; level += HTI_OPEN_FOLD) {
        o->carry_at[level / HTI_OPEN_FOLD] = o->carries;
        o->carries += (a.rows >> level) + a.rows / ((int64_t)a.block << level);
    }
    for (int i = 0; i < 2; i++) o->carry[i] = c->take<float>(a.kv_heads * o->carries * a.head_dim);
    if (!has_key_mask) return;
    o->k0 = c->take<__nv_bfloat16>(a.kv_heads * a.rows * a.head_dim);
    o->v0 = c->take<__nv_bfloat16>(a.kv_heads * a.rows * a.head_dim);
}
