/*
 * What the tile kernels need before they start: coarse levels of k, v and q as bf16 means, turned
 * copies of q and k, biases in log2 units; for backward (m, h) of every row, and the weighted dout
 * of coarse queries.
 *
 * Coarsening reads one level and writes the next four: a thread has 8 columns of 16 clusters and
 * folds them two by two, as a binary counter carries. Inside a sequence all 16 are on their way
 * before the first is used.
 */
#include "cuda/tile/tile.h"

namespace HTI_KERNELS {

enum { FOLD = 16, STEPS = 4, COLUMNS = 128 }; /* 2^STEPS = FOLD */

/* A tile of FOLD clusters, and a thread's 8 columns of [heads][dim]. */
struct column {
    int head, x;
    place p;
};

/* Threads of a tile; where they are few, several tiles share a thread block. */
HTI_FN int chunks_of(const hti_cuda_args &a, int heads) { return heads * a.head_dim / 8; }
HTI_FN int tiles_together(int chunks) { return chunks < COLUMNS ? COLUMNS / chunks : 1; }

DEVICE bool find_column(column *c, const hti_cuda_args &a, int heads) {
    int chunks = chunks_of(a, heads), groups = (chunks + COLUMNS - 1) / COLUMNS;
    int together = tiles_together(chunks), mine = groups > 1 ? 0 : (int)threadIdx.x / chunks;
    int64_t t = (int64_t)(blockIdx.x / groups) * together + mine;
    int i = (int)(blockIdx.x % groups) * COLUMNS + (int)threadIdx.x - mine * chunks;
    if (i >= chunks || mine >= together || t >= tiles_of(a, a.stage, FOLD)) return false;
    c->head = 8 * i / a.head_dim;
    c->x = 8 * i % a.head_dim;
    return find_place(&c->p, a, a.stage, FOLD, t) && a.stage + 1 < levels_of(a, c->p.length);
}

static dim3 fold_grid(const hti_cuda_args &a, int heads, int operands) {
    int chunks = chunks_of(a, heads), together = tiles_together(chunks);
    int64_t tiles = (tiles_of(a, a.stage, FOLD) + together - 1) / together;
    return dim3((unsigned)(tiles * ((chunks + COLUMNS - 1) / COLUMNS)), (unsigned)operands);
}

/* Folding row r: it is the right half at steps 0, 1, ... until it waits as a left half. */
DEVICE bool carries(int r, int step) { return (r & ((2 << step) - 1)) == (2 << step) - 1; }
DEVICE bool stops(int r, int step) { return (r & ((2 << step) - 1)) == (1 << step) - 1; }

/* Where the clusters that a tile completes lie: cluster p.first of the stage's level, seen from the
 * level of each step. */
struct targets {
    int64_t at[STEPS];
    int count[STEPS]; /* clusters from there to the end of the sequence; 0: no such level */
};

DEVICE void find_targets(targets *to, const hti_cuda_args &a, const place &p) {
    int levels = levels_of(a, p.length);
    int64_t blocks = p.start / a.block; /* hti_cluster_at with one division */
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int level = a.stage + step + 1, first = p.first >> (step + 1);
        bool exists = level < levels;
        to->at[step] = exists ? a.base[level] + (p.start >> level) + (blocks >> level) + first : 0;
        to->count[step] = exists ? (int)hti_clusters(p.length, level) - first : 0;
    }
}

/* ---- means ---- */

struct operand {
    ht_tensor rows;
    const uint8_t *mask;
    element *means;
    float *counts; /* written by the launch of the operand that has them */
    int heads;
    bool counter;
};

DEVICE operand operand_of(const hti_tile_args &t, int index) {
    const hti_cuda_args &a = t.a;
    if (index == 0) return {a.k, a.key_mask, t.kb, a.kn, a.kv_heads, true};
    if (index == 1) return {a.v, a.key_mask, t.vb, a.kn, a.kv_heads, false};
    return {a.q, a.query_mask, t.qb, a.qn, a.q_heads, true};
}

/* sum += n * 8 columns */
DEVICE void read_sum(float sum[8], float *n, const hti_cuda_args &a, const operand &o,
                     const column &me, int64_t from, int64_t c) {
    for (int i = 0; i < 8; i++) sum[i] = 0;
    *n = 0;
    if (a.stage == 0) {
        if (!takes_part(o.mask, me.p, (int)c)) return;
        *n = 1;
        add_row(sum, tensor_row<const element>(o.rows, a, me.p, me.head, c) + me.x);
    } else if (c < hti_clusters(me.p.length, a.stage)) {
        *n = o.counts[from + c];
        add_row(sum, o.means + (me.head * a.clusters + from + c) * a.head_dim + me.x);
        for (int i = 0; i < 8; i++) sum[i] *= *n;
    }
}

/* A tile of whole clusters, no masks: sums of 2, 4, 8 and 16 rows. */
DEVICE void fold_whole(const operand &o, const hti_cuda_args &a, const targets &to,
                       const element *from, int64_t stride, int64_t plane, int x, float *counts) {
    uint4 rows[FOLD];
#pragma unroll
    for (int r = 0; r < FOLD; r++) rows[r] = __ldg((const uint4 *)(from + r * stride));
    float left[STEPS][8];
#pragma unroll
    for (int r = 0; r < FOLD; r++) {
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        add_chunk(sum, rows[r]);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (carries(r, step)) {
                float mean[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sum[i] += left[step][i];
                    mean[i] = sum[i] * (0.5f / (1 << step));
                }
                if (to.count[step] == 0) continue;
                int64_t at = to.at[step] + (r >> (step + 1));
                *(uint4 *)(o.means + (plane + at) * a.head_dim + x) = pack8(mean);
                if (counts) counts[at] = (float)(2 << (a.stage + step));
            } else if (stops(r, step)) {
#pragma unroll
                for (int i = 0; i < 8; i++) left[step][i] = sum[i];
            }
        }
    }
}

/* The same at the end of a sequence and with masks. */
DEVICE void fold_some(const operand &o, const hti_cuda_args &a, const targets &to, const column &me,
                      int64_t from, float *counts) {
    float left[STEPS][8], n_left[STEPS];
    for (int r = 0; r < FOLD; r++) {
        float sum[8], n;
        read_sum(sum, &n, a, o, me, from, me.p.first + r);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (carries(r, step)) {
                for (int i = 0; i < 8; i++) sum[i] += left[step][i];
                n += n_left[step];
                if (r >> (step + 1) >= to.count[step]) continue;
                int64_t at = to.at[step] + (r >> (step + 1));
                float share = n > 0 ? 1 / n : 0, mean[8];
                for (int i = 0; i < 8; i++) mean[i] = n > 0 ? sum[i] * share : 0;
                *(uint4 *)(o.means + (me.head * a.clusters + at) * a.head_dim + me.x) = pack8(mean);
                if (counts) counts[at] = n;
            } else if (stops(r, step)) {
                for (int i = 0; i < 8; i++) left[step][i] = sum[i];
                n_left[step] = n;
            }
        }
    }
}

static __global__ void __launch_bounds__(COLUMNS)
    tile_means(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    operand o = operand_of(t, (int)blockIdx.y);
    column me;
    if (!find_column(&me, a, o.heads)) return;
    int64_t from = a.stage ? hti_cluster_at(a, me.p.start, a.stage) : 0;
    int64_t plane = me.head * a.clusters;
    float *counts = o.counter && me.head == 0 && me.x == 0 ? o.counts : NULL;
    targets to;
    find_targets(&to, a, me.p);
    if (o.mask || (int64_t)(me.p.first + FOLD) << a.stage > me.p.length) {
        fold_some(o, a, to, me, from, counts);
        return;
    }
    const element *rows = a.stage ? o.means + (plane + from + me.p.first) * a.head_dim
                                  : tensor_row<const element>(o.rows, a, me.p, me.head, me.p.first);
    fold_whole(o, a, to, rows + me.x, a.stage ? a.head_dim : o.rows.row_stride, plane, me.x,
               counts);
}

/* ---- turned rows, biases ---- */

/* A thread per 8 columns of the first half of a row and their partners; y: keys, then queries. */
static __global__ void __launch_bounds__(THREADS)
    tile_turn(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    int queries = blockIdx.y, heads = queries ? a.q_heads : a.kv_heads, d = a.head_dim,
        parts = d / 16;
    const ht_tensor &from = queries ? a.q : a.k;
    const uint8_t *mask = queries ? a.query_mask : a.key_mask;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int part = (int)(i % parts), head = (int)(i / parts % heads);
    int64_t row = i / parts / heads;
    if (row >= a.rows || (mask && !mask[row])) return;
    int64_t position = row, at = row * from.row_stride;
    if (a.cu) {
        int low = 0, high = a.sequences;
        while (high - low > 1) {
            int middle = low + (high - low) / 2;
            if (a.cu[middle] <= row)
                low = middle;
            else
                high = middle;
        }
        position = row - a.cu[low];
    } else {
        int64_t b = row / a.length;
        position = row - b * a.length;
        at = b * from.batch_stride + position * from.row_stride;
    }
    const element *src = (const element *)from.data + at + head * from.head_stride + 8 * part;
    const float *turn = a.turn + (position * (d / 2) + 8 * part) * 2;
    float x[8] = {0, 0, 0, 0, 0, 0, 0, 0}, y[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    add_row(x, src), add_row(y, src + d / 2);
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float cosine = turn[2 * c], sine = turn[2 * c + 1], lo = x[c];
        x[c] = lo * cosine - y[c] * sine;
        y[c] = y[c] * cosine + lo * sine;
    }
    element *to = (queries ? t.qr : t.kr) + (head * a.rows + row) * d + 8 * part;
    *(uint4 *)to = pack8(x), *(uint4 *)(to + d / 2) = pack8(y);
}

static __global__ void __launch_bounds__(THREADS)
    tile_bias(const __grid_constant__ hti_tile_args t) {
    int entries = 4 * t.a.block - 1, i = (int)(blockIdx.x * THREADS + threadIdx.x);
    int head = i / entries, entry = i % entries;
    if (head < t.a.q_heads)
        t.bias2[i] = t.a.bias[(int64_t)entry * t.a.q_heads + head] * t.bias_unit;
}

ht_status hti_tile_coarsen(const ht_context *ctx, const hti_tile_args &args) {
    hti_tile_args t = args;
    hti_cuda_args &a = t.a;
    a.dbias = NULL; /* summed with dq: here tiles are found the quick way */
    if (a.bias) {
        unsigned blocks = (unsigned)((a.q_heads * (4 * a.block - 1) + THREADS - 1) / THREADS);
        TRY(hti_cuda_launch(ctx, tile_bias, "scaling the biases", dim3(blocks), THREADS, 0, t));
    }
    if (a.turn) {
        int queries = t.qr != NULL; /* forward of wide tiles turns them itself */
        int64_t work = a.rows * (queries ? a.q_heads : a.kv_heads) * (a.head_dim / 16);
        dim3 grid((unsigned)((work + THREADS - 1) / THREADS), 1 + queries);
        TRY(hti_cuda_launch(ctx, tile_turn, "turning queries and keys", grid, THREADS, 0, t));
    }
    if (a.first) TRY(hti_cuda_first(ctx, a));
    int means = a.query == HT_QUERY_MEAN, widest = means ? a.q_heads : a.kv_heads;
    for (a.stage = 0; a.stage + 1 < a.levels; a.stage += STEPS)
        TRY(hti_cuda_launch(ctx, tile_means, "coarsening keys, values and queries",
                            fold_grid(a, widest, means ? 3 : 2), COLUMNS, 0, t));
    return HT_OK;
}

/* ---- backward: m and h = <dout, out> - dlse of each row, then of coarse queries ---- */

enum { SPAN = 128 };

template <int D>
static __global__ void __launch_bounds__(THREADS)
    tile_numbers(const __grid_constant__ hti_tile_args t) {
    constexpr int CH = D / 8;
    const hti_cuda_args &a = t.a;
    int head = (int)(blockIdx.x % a.q_heads);
    place p;
    if (!find_place(&p, a, 0, SPAN, blockIdx.x / a.q_heads)) return;
    const element *dz = element_rows(t, a.dout, p, head), *z = element_rows(t, a.out, p, head);
    const float *lse = a.saved + head * a.rows + p.start;
    for (int i = (int)threadIdx.x; i < SPAN * CH; i += THREADS) {
        int row = p.first + i / CH, ch = i % CH, inside = row < p.length;
        float from = inside ? lse[row] : HTI_NEG_INF, dot = 0;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0}, y[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int live = from != HTI_NEG_INF;
        if (live) {
            add_row(x, dz + (int64_t)row * a.dout.row_stride + 8 * ch);
            add_row(y, z + (int64_t)row * a.out.row_stride + 8 * ch);
        }
#pragma unroll
        for (int c = 0; c < 8; c++) dot += x[c] * y[c];
#pragma unroll
        for (int o = 1; o < CH; o *= 2) dot += __shfl_xor_sync(ALL_LANES, dot, o);
        if (ch != 0 || !inside) continue;
        if (a.dlse.data && live) dot -= *tensor_row<const float>(a.dlse, a, p, head, row);
        t.numbers[head * a.rows + p.start + row] =
            make_float2(live ? from * HTI_LOG2E : HTI_POS_INF, dot);
    }
}

/* Rows of a cluster of level l together: m the smallest lse (inf: no rows), g and h sums weighted
 * by exp2(m - lse), divided by 2^l: sums of many rows would not fit into f16. What becomes of g and
 * h is multiplied by 2^l when it is stored. */
struct weighted {
    float m, h, g[8];
};

DEVICE void join(weighted &a, const weighted &left) {
    float m = fminf(left.m, a.m);
    float x = left.m == HTI_POS_INF ? 0 : exp2f(m - left.m),
          y = a.m == HTI_POS_INF ? 0 : exp2f(m - a.m);
    x *= 0.5f, y *= 0.5f;
    a.m = m, a.h = x * left.h + y * a.h;
    for (int i = 0; i < 8; i++) a.g[i] = x * left.g[i] + y * a.g[i];
}

DEVICE void read_weighted(weighted &w, const hti_tile_args &t, const column &me, int64_t from,
                          int64_t c) {
    const hti_cuda_args &a = t.a;
    w.m = HTI_POS_INF, w.h = 0;
    for (int i = 0; i < 8; i++) w.g[i] = 0;
    if (c >= hti_clusters(me.p.length, a.stage)) return;
    int64_t at = a.stage ? me.head * a.clusters + from + c : me.head * a.rows + me.p.start + c;
    float2 number = a.stage ? t.coarse_numbers[at] : t.numbers[at];
    if (number.x == HTI_POS_INF) return;
    w.m = number.x, w.h = number.y;
    add_row(w.g, a.stage ? t.gb + at * a.head_dim + me.x
                         : tensor_row<const element>(a.dout, a, me.p, me.head, c) + me.x);
}

/* Folds the rows that get(r) gives. */
template <typename Get>
DEVICE void fold_weighted(const hti_tile_args &t, const targets &to, const column &me, Get get) {
    weighted left[STEPS];
#pragma unroll
    for (int r = 0; r < FOLD; r++) {
        weighted w = get(r);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (carries(r, step)) {
                join(w, left[step]);
                if (r >> (step + 1) >= to.count[step]) continue;
                int64_t at = me.head * t.a.clusters + to.at[step] + (r >> (step + 1));
                *(uint4 *)(t.gb + at * t.a.head_dim + me.x) = pack8(w.g);
                if (me.x == 0) t.coarse_numbers[at] = make_float2(w.m, w.h);
            } else if (stops(r, step)) {
                left[step] = w;
            }
        }
    }
}

static __global__ void __launch_bounds__(COLUMNS)
    tile_restrict(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    column me;
    if (!find_column(&me, a, a.q_heads)) return;
    int64_t from = a.stage ? hti_cluster_at(a, me.p.start, a.stage) : 0;
    targets to;
    find_targets(&to, a, me.p);
    if (a.key_mask || a.query_mask || (int64_t)(me.p.first + FOLD) << a.stage > me.p.length) {
        fold_weighted(t, to, me, [&](int r) {
            weighted w;
            read_weighted(w, t, me, from, me.p.first + r);
            return w;
        });
        return;
    }
    /* every row sees a key: all that is read is on its way before the first is used */
    int64_t at = a.stage ? me.head * a.clusters + from : me.head * a.rows + me.p.start;
    const float2 *numbers = (a.stage ? t.coarse_numbers : t.numbers) + at + me.p.first;
    const element *rows = a.stage ? t.gb + (at + me.p.first) * a.head_dim
                                  : tensor_row<const element>(a.dout, a, me.p, me.head, me.p.first);
    int64_t stride = a.stage ? a.head_dim : a.dout.row_stride;
    uint4 x[FOLD];
    float2 n[FOLD];
#pragma unroll
    for (int r = 0; r < FOLD; r++) x[r] = *(const uint4 *)(rows + r * stride + me.x);
#pragma unroll
    for (int r = 0; r < FOLD; r++) n[r] = numbers[r];
    fold_weighted(t, to, me, [&](int r) {
        weighted w = {n[r].x, n[r].y, {0, 0, 0, 0, 0, 0, 0, 0}};
        add_chunk(w.g, x[r]);
        return w;
    });
}

ht_status hti_tile_restrict(const ht_context *ctx, const hti_tile_args &args) {
    hti_tile_args t = args;
    hti_cuda_args &a = t.a;
    a.dbias = NULL; /* summed with dq: here tiles are found the quick way */
    void (*numbers)(hti_tile_args) = a.head_dim == 16   ? tile_numbers<16>
                                     : a.head_dim == 32 ? tile_numbers<32>
                                     : a.head_dim == 64 ? tile_numbers<64>
                                                        : tile_numbers<128>;
    dim3 grid((unsigned)(tiles_of(a, 0, SPAN) * a.q_heads));
    TRY(hti_cuda_launch(ctx, numbers, "multiplying output and gradient", grid, THREADS, 0, t));
    if (a.query == HT_QUERY_FINE) return HT_OK;
    for (a.stage = 0; a.stage + 1 < a.levels; a.stage += STEPS)
        TRY(hti_cuda_launch(ctx, tile_restrict, "restricting the gradient",
                            fold_grid(a, a.q_heads, 1), COLUMNS, 0, t));
    return HT_OK;
}

} // namespace HTI_KERNELS
