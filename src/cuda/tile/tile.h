/*
 * The tile kernels: bf16 on tensor cores for every option that the tuned ones leave out. Blocks of
 * 16, 32, ... 128 rows, head_dim = value_dim = 16, 32, 64 or 128, every query mode, bias, rotary,
 * dropout, grouped heads, masks and packed batches.
 *
 * A thread block owns rows (queries in forward and for dq, keys for dk and dv), 16 per warp, and
 * walks over groups of 16 partner rows, four groups at a time; the next four travel while these
 * are worked on. A group lies in one block of one level, and who sees whom is the same for all
 * pairs of 8 queries and 8 keys (halves of a block are multiples of 8), but for the diagonal of a
 * causal call. So one routine serves every level, and groups of several levels share a step.
 *
 * Coarse keys, values and queries are means in bf16; the number of rows n of a cluster goes into
 * the score as log2(n): P = exp2(s + log2(n) - m). What takes no part is zero, with log2(n) = -inf.
 */
#ifndef HTI_CUDA_TILE_H
#define HTI_CUDA_TILE_H

#include "cuda/generic/tile.h"
#include "cuda/hier_tile.h"
#include "cuda/typed.h"

namespace HTI_KERNELS {

enum { GROUP = 16, STEP = 4, STEP_ROWS = GROUP * STEP, TILE_ROWS = GROUP * WARPS };

typedef struct hti_tile_args {
    hti_cuda_args a;        /* of its pyramids only kn, qn, first, dkt, dvt, dqt, pieces are used */
    element *kb, *vb, *qb;  /* [heads][clusters][dim] means of keys, values, queries */
    element *qr, *kr;       /* [heads][rows][dim] turned by their rotary angles */
    element *gb;            /* [q_heads][clusters][dim] weighted dout */
    element *zb;            /* [q_heads][clusters][dim] output of one coarse level, ... */
    float *zl;              /* [q_heads][clusters] ... and its lse, log2 units */
    float2 *numbers;        /* [q_heads][rows] m = lse in log2 units (inf: no part), and h */
    float2 *coarse_numbers; /* [q_heads][clusters] the same of coarse queries */
    float *bias2;           /* [q_heads][4*block - 1] bias in log2 units, or others */
    float bias_unit;        /* its factor: wide tiles have units of the product */
    float scale2;           /* of the scores, log2 units */
    uint32_t magic, shift;  /* division of a group's number by groups per block */
    uint32_t zero;          /* see settle() */
    int most_groups;        /* room of the list of groups in shared memory */
    /* coarse dk, dv: work in the order of the queries' rows, a chunk of rows at a time */
    int chunk_work;                   /* of all levels in a chunk */
    int chunk_level[HTI_CUDA_LEVELS]; /* of one */
    int high;                         /* query fine: from this level on a chunk lies in one block */
    int slots;                        /* groups of keys that a chunk's rows see on those levels */
} hti_tile_args;

/* ---- who sees whom ---- */

DEVICE int block_of(const hti_tile_args &t, int cluster) {
    uint32_t group = (uint32_t)cluster / GROUP;
    return (int)(t.magic ? __umulhi(group, t.magic) : group >> t.shift);
}

/* Bit 2h + b: queries 8h ... of a group see keys 8b ... of a group. q0, q1: clusters of the first
 * and of the second 8 queries; k: the first key. The diagonal of a causal call is not looked at. */
DEVICE unsigned sight(const hti_tile_args &t, int level, int q0, int q1, int k) {
    int qb = block_of(t, q0), kb = block_of(t, k), far = kb - qb;
    if (level == 0) return far >= -1 && far <= (t.a.causal ? 0 : 1) ? 15 : 0;
    if (far != -1 && (far != 1 || t.a.causal)) return 0;
    int half = t.a.block / 2, q_start = qb * t.a.block, k_start = kb * t.a.block;
    unsigned upper_q = (q0 - q_start >= half ? 3u : 0u) | (q1 - q_start >= half ? 12u : 0u);
    unsigned upper_k = (k - k_start >= half ? 5u : 0u) | (k + 8 - k_start >= half ? 10u : 0u);
    unsigned covered = far < 0 ? ~upper_q & upper_k : upper_q & ~upper_k; /* by the level below */
    return ~covered & 15;
}

DEVICE bool is_fine(const hti_tile_args &t) { return t.a.query == HT_QUERY_FINE; }

/* Partners of clusters first ... last at a level, as two ranges of groups. */
struct ranges {
    int lo0, hi0, lo1, hi1;
    __device__ __forceinline__ int count() const { return hi0 - lo0 + hi1 - lo1; }
    __device__ __forceinline__ int at(int i) const {
        return i < hi0 - lo0 ? lo0 + i : lo1 + i - (hi0 - lo0);
    }
};

/* From clusters [lo, hi) to rows and groups of rows. */
DEVICE void set_ranges(ranges *r, int2 left, int2 right, int shift, int64_t end) {
    int64_t lo0 = (int64_t)left.x << shift, hi0 = min((int64_t)left.y << shift, end);
    int64_t lo1 = (int64_t)right.x << shift, hi1 = min((int64_t)right.y << shift, end);
    r->lo0 = (int)(lo0 / GROUP), r->hi0 = (int)((hi0 + GROUP - 1) / GROUP);
    if (r->hi0 < r->lo0) r->hi0 = r->lo0;
    r->lo1 = max((int)(lo1 / GROUP), lo0 < hi0 ? r->hi0 : 0);
    r->hi1 = max((int)((hi1 + GROUP - 1) / GROUP), r->lo1);
    if (lo1 >= hi1) r->hi1 = r->lo1;
}

/* hti_keys_left and hti_keys_right without divisions: of the first of some clusters, the begin, of
 * the last one the end. */
DEVICE int2 left_keys(const hti_tile_args &t, int clusters, int level, int causal, int first,
                      int last) {
    int block = t.a.block, b = block_of(t, last), start = max(b - 1, 0) * block;
    int lo = max(block_of(t, first) - 1, 0) * block, hi = start;
    if (level == 0) hi = min(causal ? last + 1 : (b + 2) * block, clusters);
    if (level > 0 && b > 0) hi = start + (last - b * block < block / 2 ? block / 2 : block);
    return make_int2(lo, hi);
}

DEVICE int2 right_keys(const hti_tile_args &t, int clusters, int level, int causal, int first,
                       int last) {
    if (level == 0 || causal) return make_int2(0, 0);
    int block = t.a.block, a = block_of(t, first), b = block_of(t, last);
    int lo = (a + 1) * block + (first - a * block < block / 2 ? 0 : block / 2);
    return make_int2(lo, min((b + 2) * block, clusters));
}

DEVICE ranges keys_seen(const hti_tile_args &t, int length, int level, int first, int last) {
    int clusters = (int)hti_clusters(length, level);
    ranges r;
    set_ranges(&r, left_keys(t, clusters, level, t.a.causal, first, last),
               right_keys(t, clusters, level, t.a.causal, first, last), 0, clusters);
    return r;
}

/* Queries that see keys first ... last; in query fine groups of rows. */
DEVICE ranges queries_seeing(const hti_tile_args &t, int length, int level, int first, int last) {
    int clusters = (int)hti_clusters(length, level), shift = is_fine(t) ? level : 0;
    int2 left = left_keys(t, clusters, level, 0, first, last);
    int2 right = right_keys(t, clusters, level, 0, first, last);
    if (t.a.causal && level == 0) left.x = first;
    if (t.a.causal && level > 0) left.y = left.x;
    ranges r;
    set_ranges(&r, left, right, shift, shift ? length : clusters);
    return r;
}

/* ---- where things lie, without long divisions ---- */

/* find_place, quick for batches of equal lengths */
DEVICE bool find_tile(place *p, const hti_tile_args &t, int level, int size, unsigned tile) {
    if (!is_even(t.a)) return find_place(p, t.a, level, size, tile);
    unsigned clusters = ((unsigned)t.a.length + (1u << level) - 1) >> level;
    unsigned per = (clusters + (unsigned)size - 1) / (unsigned)size;
    p->sequence = (int)(tile / per);
    p->first = (int)(tile - (unsigned)p->sequence * per) * size;
    p->length = t.a.length;
    p->start = (int64_t)p->sequence * t.a.length;
    return true;
}

DEVICE int levels_at(const hti_tile_args &t, const place &p) {
    return t.a.cu ? levels_of(t.a, p.length) : t.a.levels;
}

/* hti_cluster_at: rows are fewer than 2^31 */
DEVICE int64_t cluster_at(const hti_tile_args &t, const place &p, int level) {
    return t.a.base[level] + (p.start >> level) + (block_of(t, (int)p.start) >> level);
}

/* ---- rows of one level, as partners or as a thread block's own ---- */

struct side {
    const element *x, *y; /* q and dout, or k and v */
    int64_t xs, ys;       /* from row to row */
    const int *index;     /* query first with masks: the row of x */
    const uint8_t *mask;
    const float *n;        /* valid rows of key clusters, with masks */
    const float2 *numbers; /* of queries, in backward */
    int count, level, length;
    int watch; /* a query may see no key: look at m before reading */
};

DEVICE const element *element_rows(const hti_tile_args &t, const ht_tensor &x, const place &p,
                                   int head) {
    return tensor_row<const element>(x, t.a, p, head, 0);
}

DEVICE side key_side(const hti_tile_args &t, const place &p, int kv_head, int level) {
    const hti_cuda_args &a = t.a;
    side s = {};
    s.level = level, s.length = p.length;
    s.count = (int)hti_clusters(p.length, level);
    if (level > 0) {
        int64_t at = cluster_at(t, p, level), row = kv_head * a.clusters + at;
        s.x = t.kb + row * a.head_dim, s.y = t.vb + row * a.head_dim;
        s.xs = s.ys = a.head_dim;
        s.n = a.key_mask ? a.kn + at : NULL;
        return s;
    }
    s.mask = a.key_mask ? a.key_mask + p.start : NULL;
    s.x = element_rows(t, a.k, p, kv_head), s.xs = a.k.row_stride;
    s.y = element_rows(t, a.v, p, kv_head), s.ys = a.v.row_stride;
    if (a.turn) s.x = t.kr + (kv_head * a.rows + p.start) * a.head_dim, s.xs = a.head_dim;
    return s;
}

/* turned: level 0 with rotary */
DEVICE side query_side(const hti_tile_args &t, const place &p, int head, int level, bool turned) {
    const hti_cuda_args &a = t.a;
    side s = {};
    bool rows = level == 0 || is_fine(t);
    s.level = level, s.length = p.length;
    s.count = rows ? p.length : (int)hti_clusters(p.length, level);
    s.watch = a.key_mask || a.query_mask;
    s.x = element_rows(t, a.q, p, head), s.xs = a.q.row_stride;
    if (turned) s.x = t.qr + (head * a.rows + p.start) * a.head_dim, s.xs = a.head_dim;
    if (rows) {
        s.mask = a.query_mask ? a.query_mask + p.start : NULL;
        s.numbers = t.numbers ? t.numbers + head * a.rows + p.start : NULL;
        if (t.numbers) s.y = element_rows(t, a.dout, p, head), s.ys = a.dout.row_stride;
        return s;
    }
    int64_t at = cluster_at(t, p, level), row = head * a.clusters + at;
    s.numbers = t.coarse_numbers ? t.coarse_numbers + row : NULL;
    s.y = t.gb + row * a.head_dim, s.ys = a.head_dim;
    if (a.query == HT_QUERY_MEAN) {
        s.x = t.qb + row * a.head_dim, s.xs = a.head_dim;
    } else if (a.first) {
        s.index = a.first + at;
    } else {
        s.xs <<= level;
    }
    return s;
}

/* Whether row c takes part; at: its row in x. */
DEVICE bool is_there(const side &s, int c, int64_t *at) {
    *at = c;
    if (c >= s.count || (s.mask && !s.mask[c])) return false;
    if (s.index) *at = s.index[c];
    if (s.watch && s.numbers && !(s.numbers[c].x < HTI_POS_INF)) return false;
    return *at >= 0;
}

/* log2 of the valid rows of a key cluster */
DEVICE float weight_of(const side &s, int c) {
    if (c >= s.count || (s.mask && !s.mask[c])) return HTI_NEG_INF;
    if (s.level == 0) return 0;
    if (s.n) return log2f(s.n[c]);
    int rows = min(1 << s.level, s.length - (c << s.level));
    return rows == 1 << s.level ? (float)s.level : log2f((float)rows);
}

/* 16 rows of x (else y) as first factors of products: row g and row g + 8. */
template <int D>
DEVICE void load_own(frag<D> &to, const side &s, bool x, int first, uint32_t zero) {
    int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int64_t at;
        bool there = is_there(s, first + 8 * h + g, &at);
        if (!x) at = first + 8 * h + g;
        load_row<D>(to, h, (x ? s.x : s.y) + (there ? at : 0) * (x ? s.xs : s.ys), t, there, zero);
    }
}

/* ---- bringing a step's rows ---- */

/* A step in shared memory: rows of x, rows of y, then a number (log2(n)) or two (m, h) of each. */
template <int D, int ROWS = STEP_ROWS> struct step_shape {
    static constexpr uint32_t SIDE = ROWS * 2 * D, BYTES = 2 * SIDE + ROWS * 8;
};

/* ---- numbers beside the products ---- */

/* A row of a table of biases, so that entry[key - query cluster] is the bias. */
DEVICE const float *bias_of(const hti_tile_args &t, int head) {
    if (!t.a.bias) return NULL;
    return t.bias2 + (int64_t)head * (4 * t.a.block - 1) + 2 * t.a.block - 1;
}

struct dropout {
    uint32_t stream, offset;
};

DEVICE dropout dropout_of(const hti_tile_args &t, const place &p, int head) {
    return {(uint32_t)p.sequence * (uint32_t)t.a.q_heads + (uint32_t)head, offset_of(t.a)};
}

DEVICE unsigned draw4(const hti_tile_args &t, const dropout &d, int level, int query, int key4) {
    hti_philox x = hti_dropout_words(t.a.seed, d.offset, d.stream, level, query, (uint32_t)key4);
    unsigned bits = 0;
    for (int k = 0; k < 4; k++) bits |= (x.w[k] >= t.a.threshold ? 1u : 0u) << k;
    return bits;
}

/* Rows are queries, columns keys: bit 4b + e says that element e of 8 keys b stays. A lane draws
 * for four keys of rows g and g + 8. */
DEVICE unsigned keeps_of_rows(const hti_tile_args &t, const dropout &d, int level, int query,
                              int key) {
    int g = lane_id() >> 2, q = lane_id() & 3;
    unsigned mine = draw4(t, d, level, query + g, key / 4 + q) |
                    draw4(t, d, level, query + g + 8, key / 4 + q) << 4;
    unsigned bits = 0;
#pragma unroll
    for (int b = 0; b < 2; b++) {
        unsigned four = __shfl_sync(ALL_LANES, mine, 4 * g + 2 * b + q / 2) >> (2 * (q & 1));
        bits |= ((four & 3) | (four >> 4 & 3) << 2) << (4 * b);
    }
    return bits;
}

/* Rows are keys, columns queries: the same bits. A lane draws for eight keys of one query. */
DEVICE unsigned keeps_of_columns(const hti_tile_args &t, const dropout &d, int level, int query,
                                 int key) {
    int lane = lane_id(), g = lane >> 2, q = lane & 3;
    int from = key / 4 + 2 * (lane & 1);
    unsigned mine = draw4(t, d, level, query + lane / 2, from) |
                    draw4(t, d, level, query + lane / 2, from + 1) << 4;
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) { /* 4b + 2h + odd */
        int column = 8 * (i >> 2) + 2 * q + (i & 1), h = i >> 1 & 1;
        bits |= (__shfl_sync(ALL_LANES, mine, 2 * column + h) >> g & 1u) << i;
    }
    return bits;
}

/* ---- the list of groups of keys that a tile of queries sees ---- */

#define NO_GROUP 0xffffffffu

DEVICE uint32_t group_word(int level, int group) { return (uint32_t)level << 27 | (uint32_t)group; }
DEVICE int word_level(uint32_t word) { return (int)(word >> 27); }
DEVICE int word_first(uint32_t word) { return (int)(word & 0x7ffffff) * GROUP; }

/* A group of keys in the list of a tile of queries. */
struct group {
    const element *x, *y; /* the first row's key and value */
    int xs, ys;           /* from row to row */
    uint32_t word;        /* level and place */
    uint32_t seen;        /* what the warps see of it, 4 bits each */
    int left;             /* rows there are */
};

/* What a tile of queries has in shared memory beside its steps and its list. */
struct query_shared {
    side sides[HTI_CUDA_LEVELS];
    int steps, pad[3];
};

/* Levels from..to of the tile at p, by the first warp: a lane per level. With rotary level 0 fills
 * whole steps, so that queries are exchanged between steps. grouped: own rows are clusters. */
DEVICE void make_list(query_shared *s, group *list, const hti_tile_args &t, const place &p,
                      int kv_head, int from, int to, bool grouped) {
    int level = from + lane_id();
    ranges r = {0, 0, 0, 0};
    if (level < to) {
        int shift = grouped ? 0 : level;
        int rows = grouped ? (int)hti_clusters(p.length, level) : p.length;
        int last = min(p.first + TILE_ROWS, rows) - 1;
        r = keys_seen(t, p.length, level, p.first >> shift, last >> shift);
        s->sides[level] = key_side(t, p, kv_head, level);
    }
    int count = r.count(), room = t.a.turn && level == 0 ? (count + STEP - 1) & ~(STEP - 1) : count;
    int end = room;
    for (int o = 1; o < 32; o *= 2) {
        int before = __shfl_sync(ALL_LANES, end, max(lane_id() - o, 0));
        if (lane_id() >= o) end += before;
    }
    int all = __shfl_sync(ALL_LANES, end, 31), padded = (all + STEP - 1) & ~(STEP - 1);
    for (int i = 0; i < room; i++)
        list[end - room + i].word = i < count ? group_word(level, r.at(i)) : NO_GROUP;
    if (lane_id() < padded - all) list[all + lane_id()].word = NO_GROUP;
    if (lane_id() == 0) s->steps = padded / STEP;
}

/* What 16 queries from `own` on see of a group; nothing if they lie beyond the end. */
DEVICE unsigned sees(const hti_tile_args &t, int own, int count, bool grouped, int level, int k) {
    int shift = grouped ? 0 : level;
    if (own >= count || (level == 0 && t.a.causal && k > own)) return 0;
    return sight(t, level, own >> shift, (own + 8) >> shift, k);
}

/* All that is known of a group of keys. count: queries */
DEVICE group group_of(uint32_t word, const side &from, const hti_tile_args &t, int first, int count,
                      bool grouped) {
    group g = {(const element *)t.a.q.data, (const element *)t.a.q.data, 0, 0, word, 0, 0};
    if (word == NO_GROUP) return g;
    int level = word_level(word), k = word_first(word);
    g.x = from.x + k * from.xs, g.y = from.y + k * from.ys;
    g.xs = (int)from.xs, g.ys = (int)from.ys;
    g.left = min(GROUP, from.count - k);
    for (int w = 0; w < WARPS; w++)
        g.seen |= sees(t, first + GROUP * w, count, grouped, level, k) << (4 * w);
    return g;
}

/* The same list by all threads at once where it has one level. */
DEVICE void list_level(query_shared *s, group *list, const hti_tile_args &t, const place &p,
                       int kv_head, int level) {
    side from = key_side(t, p, kv_head, level);
    int rows = (int)hti_clusters(p.length, level), last = min(p.first + TILE_ROWS, rows) - 1;
    ranges r = keys_seen(t, p.length, level, p.first, last);
    int count = r.count(), padded = (count + STEP - 1) & ~(STEP - 1);
    if (threadIdx.x == 0) s->sides[level] = from, s->steps = padded / STEP;
    for (int i = (int)threadIdx.x; i < padded; i += THREADS) {
        uint32_t word = i < count ? group_word(level, r.at(i)) : NO_GROUP;
        list[i] = group_of(word, from, t, p.first, rows, t.a.coarse);
    }
}

/* The list of the tile at p, by all threads; they may fetch when it returns. QUICK: by all threads
 * at once if it has one level, which takes more registers. */
template <bool QUICK>
DEVICE void open_list(query_shared *s, group *list, const hti_tile_args &t, const place &p,
                      int kv_head, int level, int levels) {
    __syncthreads(); /* nobody reads the last one any more */
    if (QUICK && !is_fine(t)) {
        list_level(s, list, t, p, kv_head, level);
    } else {
        if (warp_id() == 0)
            make_list(s, list, t, p, kv_head, level, is_fine(t) ? levels : level + 1, t.a.coarse);
        __syncthreads();
        int count = (int)hti_clusters(p.length, level);
        for (int i = (int)threadIdx.x; i < STEP * s->steps; i += THREADS) {
            uint32_t word = list[i].word;
            const side &from = s->sides[word == NO_GROUP ? level : word_level(word)];
            list[i] = group_of(word, from, t, p.first, count, t.a.coarse);
        }
    }
    __syncthreads();
}

/* What this warp sees of a step: 4 bits for each group. */
DEVICE unsigned step_sight(const group *groups) {
    unsigned seen = 0;
#pragma unroll
    for (int i = 0; i < STEP; i++) seen |= (groups[i].seen >> (4 * warp_id()) & 15u) << (4 * i);
    return seen;
}

/* log2 of the valid rows of row r of a group */
DEVICE float group_weight(const group &g, int r, const query_shared *s, bool masked) {
    if (r >= g.left) return HTI_NEG_INF;
    int level = word_level(g.word), c = word_first(g.word) + r;
    if (masked) return weight_of(s->sides[level], c);
    int rows = s->sides[level].length - (c << level);
    return rows >= 1 << level ? (float)level : log2f((float)rows);
}

/* Kernels are compiled twice: PLAIN ones know that there is no bias, dropout or mask. */
HTI_FN bool is_plain(const hti_cuda_args &a) {
    return !a.bias && !a.threshold && !a.key_mask && !a.query_mask;
}

/* A step's four groups into shared memory. */
template <int D, bool PLAIN>
DEVICE void fetch_step(char *to, const hti_tile_args &t, const query_shared *s,
                       const group *groups) {
    constexpr int CH = D / 8, PASS = THREADS / CH;
    int ch = (int)threadIdx.x % CH, r0 = (int)threadIdx.x / CH;
    bool masked = !PLAIN && t.a.key_mask;
    uint32_t at = shared_address(to) + 2 * rows<D>::at(r0, ch);
#pragma unroll
    for (int i = 0; i < STEP_ROWS / PASS; i++) {
        int r = (r0 + i * PASS) % GROUP;
        const group &g = groups[(r0 + i * PASS) / GROUP];
        bool there = r < g.left;
        if (masked && there && word_level(g.word) == 0)
            there = s->sides[0].mask[word_first(g.word) + r];
        if (!there) r = 0;
        uint32_t where = at + i * PASS * 2 * D; /* the turn of chunks repeats every 8 rows */
        copy_async_if(where, g.x + r * g.xs + 8 * ch, there);
        copy_async_if(where + step_shape<D>::SIDE, g.y + r * g.ys + 8 * ch, there);
    }
    int r = (int)threadIdx.x;
    float *weights = (float *)(to + 2 * step_shape<D>::SIDE);
    if (r < STEP_ROWS) weights[r] = group_weight(groups[r / GROUP], r % GROUP, s, masked);
}

/* A warp's 16 queries on their way through the groups. */
struct walker {
    int own;      /* the first query */
    bool grouped; /* queries are clusters */
    const float *bias;
    dropout drop;
};

/* Puts `with` where rows and columns of a 16 x 16 product do not see each other. Element e of 8
 * columns b: row g + 8 (e >> 1), column 8 b + 2 c + (e & 1). Rows are queries, or else keys (KEYS);
 * bits as from sight. */
template <bool KEYS> DEVICE void hide(float x[2][4], unsigned bits, float with) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int h = i >> 1, b = i & 1;
        bool unseen = !(bits >> (KEYS ? 2 * b + h : 2 * h + b) & 1);
        x[b][2 * h] = unseen ? with : x[b][2 * h];
        x[b][2 * h + 1] = unseen ? with : x[b][2 * h + 1];
    }
}

/* The same where a key comes after its query; ahead: the first row less the first column. */
template <bool KEYS> DEVICE void hide_later(float x[2][4], int ahead, float with) {
    int first = ahead + (lane_id() >> 2) - 2 * (lane_id() & 3);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        int further = first + 8 * (e >> 1 & 1) - 8 * (e >> 2) - (e & 1);
        x[e >> 2][e & 3] = (KEYS ? further > 0 : further < 0) ? with : x[e >> 2][e & 3];
    }
}

/* ---- turning accumulated gradients back ---- */

/* x: columns 8i + 2t, +1 of rows first + g and first + g + 8 */
template <int D>
DEVICE void turn_back(float x[D / 8][4], const hti_tile_args &t, const place &p, int first) {
    int g = lane_id() >> 2, q = lane_id() & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = min(first + 8 * h + g, p.length - 1);
        const float *turn = t.a.turn + (int64_t)row * D;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            float4 w = *(const float4 *)(turn + 2 * (8 * i + 2 * q));
            float *lo = x[i] + 2 * h, *hi = x[i + D / 16] + 2 * h;
            float lo0 = lo[0], lo1 = lo[1];
            lo[0] = lo0 * w.x + hi[0] * w.y, lo[1] = lo1 * w.z + hi[1] * w.w;
            hi[0] = hi[0] * w.x - lo0 * w.y, hi[1] = hi[1] * w.z - lo1 * w.w;
        }
    }
}

/* ---- host: prepare.cu and the passes ---- */

ht_status hti_tile_coarsen(const ht_context *ctx, const hti_tile_args &t);
ht_status hti_tile_restrict(const ht_context *ctx, const hti_tile_args &t);
ht_status hti_tile_run_forward(const ht_context *ctx, hti_tile_args t);
ht_status hti_tile_run_backward(const ht_context *ctx, hti_tile_args t);
int64_t hti_tile_pieces(hti_tile_args *t);
/* What coarse levels left, down to level 2; queries: dq, too. Gradients of wide tiles come down to
 * level 5 alone. */
enum { LOWERED_WIDE = 5 };
ht_status hti_tile_lower_outputs(const ht_context *ctx, const hti_tile_args &t);
ht_status hti_tile_lower_grads(const ht_context *ctx, const hti_tile_args &t, int queries);

} // namespace HTI_KERNELS

#endif
