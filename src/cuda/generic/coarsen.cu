/*
 * Coarsening: levels >= 1 of the keys, values and queries (means over valid rows) and, for
 * backward, of the output's gradient (sums weighted by exp(min lse - lse)); the rotary angles;
 * one number per row for backward.
 *
 * A launch reads one level and writes the next five: a thread has one column of 32 clusters,
 * which it folds two by two, as a binary counter carries.
 */
#include "cuda/generic/tile.h"

enum { FOLD = 32, STEPS = 5, COLUMNS = 128 }; /* 2^STEPS = FOLD */

/* A launch's work item: tile of FOLD clusters and a thread's column of [heads][dim]. */
struct column {
    int head, x;
    place p;
};

DEVICE bool find_column(column *c, const hti_cuda_args &a, int heads, int dim) {
    int64_t groups = ((int64_t)heads * dim + COLUMNS - 1) / COLUMNS;
    int64_t t = blockIdx.x / groups, i = blockIdx.x % groups * COLUMNS + threadIdx.x;
    if (i >= (int64_t)heads * dim || t >= tiles_of(a, a.stage, FOLD)) return false;
    c->head = (int)(i / dim);
    c->x = (int)(i % dim);
    return find_place(&c->p, a, a.stage, FOLD, t) && a.stage + 1 < levels_of(a, c->p.length);
}

static int64_t fold_grid(const hti_cuda_args &a, int64_t columns) {
    return tiles_of(a, a.stage, FOLD) * ((columns + COLUMNS - 1) / COLUMNS);
}

/* Folding row r: it is the right half at steps 0, 1, ... until it waits as a left half. */
DEVICE bool carries(int r, int step) { return (r & ((2 << step) - 1)) == (2 << step) - 1; }
DEVICE bool stops(int r, int step) { return (r & ((2 << step) - 1)) == (1 << step) - 1; }

/* Where the cluster that row c of the stage's level completes at this step lies; -1: there is
 * none. */
DEVICE int64_t parent_at(const hti_cuda_args &a, const place &p, int64_t c, int step, int levels) {
    int level = a.stage + step + 1;
    int64_t parent = c >> (step + 1);
    if (level >= levels || parent >= hti_clusters(p.length, level)) return -1;
    return hti_cluster_at(a, p.start, level) + parent;
}

/* ---- means ---- */

/* What is coarsened: level 0 in `rows`, with its mask, the others in `means` and `counts`. */
struct operand {
    ht_tensor rows;
    const uint8_t *mask;
    float *means, *counts;
    int heads, dim;
    bool counter; /* this operand's launch writes the counts */
};

DEVICE operand operand_of(const hti_cuda_args &a, int index) {
    if (index == 0) return {a.k, a.key_mask, a.kt, a.kn, a.kv_heads, a.head_dim, true};
    if (index == 1) return {a.v, a.key_mask, a.vt, a.kn, a.kv_heads, a.value_dim, false};
    return {a.q, a.query_mask, a.qt, a.qn, a.q_heads, a.head_dim, true};
}

template <typename T>
static __global__ void __launch_bounds__(COLUMNS)
    mean_kernel(const __grid_constant__ hti_cuda_args a) {
    operand o = operand_of(a, (int)blockIdx.y);
    column me;
    if (!find_column(&me, a, o.heads, o.dim)) return;
    int levels = levels_of(a, me.p.length), stage = a.stage;
    int64_t clusters = hti_clusters(me.p.length, stage);
    int64_t from = stage ? hti_cluster_at(a, me.p.start, stage) : 0;
    int64_t head_at = me.head * a.clusters;
    float sums[STEPS], counts[STEPS]; /* left halves that wait for their right ones */
    for (int r = 0; r < FOLD; r++) {
        int64_t c = me.p.first + r;
        float n = 0, sum = 0;
        if (stage == 0 && takes_part(o.mask, me.p, (int)c)) {
            n = 1;
            sum = to_float(tensor_row<const T>(o.rows, a, me.p, me.head, c)[me.x]);
        } else if (stage > 0 && c < clusters) {
            n = o.counts[from + c];
            sum = n * o.means[(head_at + from + c) * o.dim + me.x];
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (carries(r, step)) {
                sum += sums[step], n += counts[step];
                int64_t to = parent_at(a, me.p, c, step, levels);
                if (to < 0) continue;
                o.means[(head_at + to) * o.dim + me.x] = n > 0 ? sum / n : 0;
                if (o.counter && me.head == 0 && me.x == 0) o.counts[to] = n;
            } else if (stops(r, step)) {
                sums[step] = sum, counts[step] = n;
            }
        }
    }
}

/* Query first with a mask: the first valid row of each cluster; one thread per tile of FOLD. */
static __global__ void __launch_bounds__(COLUMNS)
    first_kernel(const __grid_constant__ hti_cuda_args a) {
    int64_t t = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    place p;
    if (t >= tiles_of(a, a.stage, FOLD) || !find_place(&p, a, a.stage, FOLD, t)) return;
    int levels = levels_of(a, p.length);
    if (a.stage + 1 >= levels) return;
    int64_t from = a.stage ? hti_cluster_at(a, p.start, a.stage) : 0;
    int left[STEPS];
    for (int r = 0; r < FOLD; r++) {
        int c = p.first + r, first = -1;
        if (a.stage == 0) {
            if (takes_part(a.query_mask, p, c)) first = c;
        } else if (c < hti_clusters(p.length, a.stage)) {
            first = a.first[from + c];
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (carries(r, step)) {
                if (left[step] >= 0) first = left[step];
                int64_t to = parent_at(a, p, c, step, levels);
                if (to >= 0) a.first[to] = first;
            } else if (stops(r, step)) {
                left[step] = first;
            }
        }
    }
}

ht_status hti_cuda_first(const ht_context *ctx, const hti_cuda_args &args) {
    hti_cuda_args a = args;
    for (a.stage = 0; a.stage + 1 < a.levels; a.stage += STEPS) {
        unsigned tiles = (unsigned)((tiles_of(a, a.stage, FOLD) + COLUMNS - 1) / COLUMNS);
        TRY(hti_cuda_launch(ctx, first_kernel, "finding first rows", dim3(tiles), COLUMNS, 0, a));
    }
    return HT_OK;
}

ht_status hti_cuda_coarsen(const ht_context *ctx, const hti_cuda_args &args, ht_dtype dtype) {
    hti_cuda_args a = args;
    int64_t widest = (int64_t)a.kv_heads * (a.head_dim > a.value_dim ? a.head_dim : a.value_dim);
    int operands = a.query == HT_QUERY_MEAN ? 3 : 2;
    if (operands == 3 && (int64_t)a.q_heads * a.head_dim > widest)
        widest = (int64_t)a.q_heads * a.head_dim;
    for (a.stage = 0; a.stage + 1 < a.levels; a.stage += STEPS) {
        dim3 grid((unsigned)fold_grid(a, widest), (unsigned)operands);
        const char *name = "coarsening keys, values and queries";
        TRY(hti_by_dtype(dtype, [&](auto x) {
            return hti_cuda_launch(ctx, mean_kernel<decltype(x)>, name, grid, COLUMNS, 0, a);
        }));
    }
    return args.first ? hti_cuda_first(ctx, args) : HT_OK;
}

/* ---- rotary angles ---- */

/* turn[t][i] = cosine and sine of t * theta^(-2i/d). The angle is reduced in double: t may be
 * large. */
static __global__ void turn_kernel(const __grid_constant__ hti_cuda_args a) {
    int half = a.head_dim / 2, i = (int)threadIdx.x;
    if (i >= half) return;
    double rate = pow(a.theta, -2.0 * i / a.head_dim), turns = rate * 0.15915494309189533577;
    for (int64_t t = blockIdx.x; t < a.length; t += gridDim.x) {
        double part = (double)t * turns;
        float angle = (float)(2 * (part - rint(part))), c, s;
        sincospif(angle, &s, &c);
        a.turn[(t * half + i) * 2] = c;
        a.turn[(t * half + i) * 2 + 1] = s;
    }
}

ht_status hti_cuda_turn(const ht_context *ctx, const hti_cuda_args &a) {
    int threads = (a.head_dim / 2 + 31) / 32 * 32;
    unsigned blocks = a.length < 4096 ? (unsigned)a.length : 4096;
    return hti_cuda_launch(ctx, turn_kernel, "computing rotary angles", dim3(blocks), threads, 0,
                           a);
}

/* ---- backward: h = <dout, out> - dlse of each row, then its pyramid ---- */

/* A row without weight (masked, or seeing no key) has lse -inf and takes no part. */
DEVICE bool is_live(float lse) { return lse != -INFINITY; }

extern __shared__ float4 hti_shared[];

/* 32 rows per block: all threads load, a lane per row multiplies */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    rowdot_kernel(const __grid_constant__ hti_cuda_args a) {
    int stride = tile_stride(a.value_dim);
    float *dz = (float *)hti_shared, *z = dz + 32 * stride;
    for (int64_t w = blockIdx.x; w < a.work; w += gridDim.x) {
        int head = (int)(w % a.q_heads), lane = lane_id();
        place p;
        if (!find_place(&p, a, 0, 32, w / a.q_heads)) continue;
        int64_t at = head * a.rows + p.start + p.first;
        auto live = [&](int r) { return p.first + r < p.length && is_live(a.saved[at + r]); };
        __syncthreads();
        load_rows<T>(dz, 32, a.value_dim, [&](int r) {
            return live(r) ? tensor_row<const T>(a.dout, a, p, head, p.first + r) : (const T *)0;
        });
        load_rows<T>(z, 32, a.value_dim, [&](int r) {
            return live(r) ? tensor_row<const T>(a.out, a, p, head, p.first + r) : (const T *)0;
        });
        __syncthreads();
        if (warp_id() != 0 || p.first + lane >= p.length) continue;
        float4 sums = make_float4(0, 0, 0, 0);
        for (int x = 0; x < a.value_dim; x += 4)
            dot4(sums, *(float4 *)(dz + lane * stride + x), *(float4 *)(z + lane * stride + x));
        float sum = total(sums);
        if (a.dlse.data && live(lane))
            sum -= *tensor_row<const float>(a.dlse, a, p, head, p.first + lane);
        a.h[at + lane] = sum;
    }
}

/* Rows of a cluster together: m the smallest lse (inf: no rows), g and h sums weighted by exp(m -
 * lse). */
struct weighted {
    float m, h, g;
};

DEVICE weighted join(const weighted &a, const weighted &b) {
    float m = fminf(a.m, b.m);
    float x = a.m == INFINITY ? 0 : expf(m - a.m), y = b.m == INFINITY ? 0 : expf(m - b.m);
    return {m, x * a.h + y * b.h, x * a.g + y * b.g};
}

template <typename T>
DEVICE weighted read_weighted(const hti_cuda_args &a, const column &me, int64_t from, int64_t c) {
    weighted none = {INFINITY, 0, 0};
    if (c >= hti_clusters(me.p.length, a.stage)) return none;
    if (a.stage > 0) {
        int64_t at = me.head * a.clusters + from + c;
        return {a.gm[at], a.gh[at], a.gt[at * a.value_dim + me.x]};
    }
    int64_t at = me.head * a.rows + me.p.start + c;
    float lse = a.saved[at];
    if (!is_live(lse)) return none;
    return {lse, a.h[at], to_float(tensor_row<const T>(a.dout, a, me.p, me.head, c)[me.x])};
}

template <typename T>
static __global__ void __launch_bounds__(COLUMNS)
    restrict_kernel(const __grid_constant__ hti_cuda_args a) {
    column me;
    if (!find_column(&me, a, a.q_heads, a.value_dim)) return;
    int levels = levels_of(a, me.p.length);
    int64_t from = a.stage ? hti_cluster_at(a, me.p.start, a.stage) : 0;
    weighted left[STEPS];
    for (int r = 0; r < FOLD; r++) {
        int64_t c = me.p.first + r;
        weighted it = read_weighted<T>(a, me, from, c);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (carries(r, step)) {
                it = join(left[step], it);
                int64_t to = parent_at(a, me.p, c, step, levels);
                if (to < 0) continue;
                to += me.head * a.clusters;
                a.gt[to * a.value_dim + me.x] = it.g;
                if (me.x == 0) a.gm[to] = it.m, a.gh[to] = it.h;
            } else if (stops(r, step)) {
                left[step] = it;
            }
        }
    }
}

ht_status hti_cuda_restrict(const ht_context *ctx, const hti_cuda_args &args, ht_dtype dtype) {
    hti_cuda_args a = args;
    a.work = tiles_of(a, 0, 32) * a.q_heads;
    unsigned grid = (unsigned)(a.work < INT32_MAX ? a.work : INT32_MAX);
    size_t shared = sizeof(float) * 2 * 32 * (size_t)tile_stride(a.value_dim);
    TRY(hti_by_dtype(dtype, [&](auto x) {
        return hti_cuda_launch(ctx, rowdot_kernel<decltype(x)>, "multiplying output and gradient",
                               dim3(grid), THREADS, shared, a);
    }));
    if (a.query == HT_QUERY_FINE) return HT_OK;
    for (a.stage = 0; a.stage + 1 < a.levels; a.stage += STEPS) {
        dim3 blocks((unsigned)fold_grid(a, (int64_t)a.q_heads * a.value_dim));
        TRY(hti_by_dtype(dtype, [&](auto x) {
            return hti_cuda_launch(ctx, restrict_kernel<decltype(x)>, "restricting the gradient",
                                   blocks, COLUMNS, 0, a);
        }));
    }
    return HT_OK;
}
