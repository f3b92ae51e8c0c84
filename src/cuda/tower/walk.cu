/*
 * The walking forward for compute capability 9.0: bf16, block 16, head_dim 64, equal lengths, no
 * masks.
 *
 * 1. walk   reads q, k, v once. One thread block per multiprocessor walks along a head, 64 rows at
 * a time: four warps bring k and v into a ring in shared memory, several chunks ahead, and add up
 * levels 1, 2 (for a second ring) and 3 (for the tower); three teams of four warps attend levels 0
 * to 2 of every third chunk and write a result of their own, normalised, and its lse.
 * 2. the stages above, on the tower: see forward.cu.
 * 3. join   stage 1, whose result goes into the rows of level 0: see join.cu.
 */
#include "cuda/tower/walk.h"

namespace HTI_KERNELS {

#if __CUDA_ARCH__ >= 900

/* ---- loading ---- */

/* A loader owns 16 bytes of four neighbouring rows, of k and of v: its places in both rings' slots,
 * and the sums of the four. */
struct loader {
    uint32_t at0[4], at1[2], at2;
    int ch, quad;
    uint4 sum[2];
};

static __device__ __forceinline__ void find_loader(loader &l) {
    l.ch = threadIdx.x % 8, l.quad = threadIdx.x / 8;
#pragma unroll
    for (int m = 0; m < 4; m++) l.at0[m] = 2 * rows<WALK_D>::at(4 * l.quad + m, l.ch);
#pragma unroll
    for (int m = 0; m < 2; m++) l.at1[m] = 2 * rows<WALK_D>::at(2 * l.quad + m, l.ch);
    l.at2 = COARSE_2 + 2 * rows<WALK_D>::at(l.quad, l.ch);
    asm volatile("" : "+r"(l.at0[0]), "+r"(l.at0[1]), "+r"(l.at0[2]), "+r"(l.at0[3]));
    asm volatile("" : "+r"(l.at1[0]), "+r"(l.at1[1]), "+r"(l.at2)); /* once, not per use */
}

/* What is loaded, in order: the chunks of a stretch and one neighbour on either side, of causal
 * calls on the left alone. Where stretches are joined, a right neighbour is the next left one. */
template <int CAUSAL> static __device__ __forceinline__ int first_load(const walk &w) {
    return CAUSAL ? -1 : w.joined - 1;
}

template <int CAUSAL> static __device__ __forceinline__ int last_load(const walk &w) {
    return CAUSAL ? w.count - 1 : w.count;
}

struct front {
    walk w;
    int at;                /* -1 ... count */
    const char *k, *v;     /* this loader's share of the sequence's first rows */
    uint32_t row_k, row_v; /* bytes from row to row */
};

template <int CAUSAL>
static __device__ __forceinline__ int next_load(front &f, const loader &l, const walk_args &g) {
    if (++f.at <= last_load<CAUSAL>(f.w)) return 1;
    if (!next_stretch(f.w, g)) return 0;
    f.at = first_load<CAUSAL>(f.w);
    int kv = g.a.group == 1 ? f.w.head : f.w.head / g.a.group;
    f.k = walk_row(g.a.fk, f.w.sequence, kv, 4 * l.quad) + 16 * l.ch;
    f.v = walk_row(g.a.fv, f.w.sequence, kv, 4 * l.quad) + 16 * l.ch;
    return 1;
}

static __device__ __forceinline__ void load_slot(uint32_t slot, const loader &l, const front &f,
                                                 const walk_args &g) {
    int chunk = f.w.first + f.at, left = g.a.length - WALK_ROWS * chunk;
    if (chunk < 0) left = 0;
    const char *k = f.k + (uint64_t)(uint32_t)chunk * (WALK_ROWS * f.row_k);
    const char *v = f.v + (uint64_t)(uint32_t)chunk * (WALK_ROWS * f.row_v);
    if (left >= WALK_ROWS) {
#pragma unroll
        for (int m = 0; m < 4; m++, k += f.row_k, v += f.row_v) {
            copy_async(slot + l.at0[m], k);
            copy_async(slot + l.at0[m] + FINE_V, v);
        }
        return;
    }
    left -= 4 * l.quad;
#pragma unroll
    for (int m = 0; m < 4; m++, k += f.row_k, v += f.row_v) {
        copy_async_if(slot + l.at0[m], m < left ? k : g.a.fk.data, m < left);
        copy_async_if(slot + l.at0[m] + FINE_V, m < left ? v : g.a.fv.data, m < left);
    }
}

static __device__ __forceinline__ uint4 shuffle4(uint4 x, int step) {
    return make_uint4(__shfl_xor_sync(~0u, x.x, step), __shfl_xor_sync(~0u, x.y, step),
                      __shfl_xor_sync(~0u, x.z, step), __shfl_xor_sync(~0u, x.w, step));
}

/* 16 bytes of level 3: the stages above read them next, so the L2 cache gives them up last. */
static __device__ __forceinline__ void store_tower(element *at, uint4 x) {
    uint64_t last;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    store_hinted(at, x, last);
}

/* The same chunks once they have arrived. */
struct back {
    walk w;
    int at;
    element *tower; /* this loader's share of the sequence's first rows: even quads k, odd ones v */
};

template <int CAUSAL>
static __device__ __forceinline__ int next_arrived(back &b, const loader &l, const walk_args &g) {
    if (++b.at <= last_load<CAUSAL>(b.w)) return 1;
    if (!next_stretch(b.w, g)) return 0;
    b.at = first_load<CAUSAL>(b.w);
    int kv = g.a.group == 1 ? b.w.head : b.w.head / g.a.group;
    b.tower = nullptr;
    if (g.a.stages == 1 || kv * g.a.group != b.w.head) return 1;
    b.tower = (l.quad & 1 ? g.a.tv[1] : g.a.tk[1]) +
              (walk_tower(g, b.w.sequence, kv) + l.quad / 2) * WALK_D + 8 * l.ch;
    return 1;
}

/* Levels 1 and 2 of what has arrived. */
static __device__ __forceinline__ void raise_chunk(uint32_t fine, uint32_t coarse, loader &l) {
    uint4 x[8];
#pragma unroll
    for (int m = 0; m < 8; m++) x[m] = shared_load4(fine + l.at0[m & 3] + (m >> 2) * FINE_V);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 lo = join8(x[4 * i], x[4 * i + 1]), hi = join8(x[4 * i + 2], x[4 * i + 3]);
        l.sum[i] = join8(lo, hi);
        shared_store4(coarse + l.at1[0] + i * COARSE_V, lo);
        shared_store4(coarse + l.at1[1] + i * COARSE_V, hi);
        shared_store4(coarse + l.at2 + i * COARSE_V, l.sum[i]);
    }
}

/* Level 3 of it into the tower. */
static __device__ __forceinline__ void store_level3(const loader &l, const back &b,
                                                    const walk_args &g) {
    if (!b.tower || b.at < 0 || b.at >= b.w.count) return;
    int odd = l.quad & 1;
    uint4 mine = odd ? l.sum[1] : l.sum[0], other = shuffle4(odd ? l.sum[0] : l.sum[1], 8);
    int chunk = b.w.first + b.at;
    if (WALK_ROWS * chunk + 4 * (l.quad & ~1) >= g.a.length) return;
    store_tower(b.tower + (uint64_t)(uint32_t)chunk * (WALK_ROWS / 8 * WALK_D), join8(mine, other));
}

static __device__ __forceinline__ void next_slot(uint32_t &at, uint32_t bytes, uint32_t begin,
                                                 uint32_t end) {
    at += bytes;
    if (at == end) at = begin;
}

template <int MODE>
static __device__ __forceinline__ void load_all(uint32_t base, const walk_args &g) {
    using G = groups<MODE, 1>;
    loader l;
    find_loader(l);
    front f;
    back b;
    start_walk(f.w, -1), start_walk(b.w, -1);
    f.at = b.at = -1;
    f.row_k = 8 * g.a.fk.row, f.row_v = 8 * g.a.fv.row;
    const uint32_t sums = base + AT_COARSE, out = base + AT_OUT;
    uint32_t to = base, fine = base, coarse = sums;
    int more = 1;
    for (uint32_t n = 0;; n++) {
        if (more) more = next_load<G::CAUSAL>(f, l, g);
        if (more) {
            if (n >= FINE_SLOTS) wait_load(base + AT_DONE, n - FINE_SLOTS);
            load_slot(to, l, f, g);
            next_slot(to, FINE_BYTES, base, sums);
        }
        copies_commit();
        if (n < AHEAD) continue;
        copies_wait();
        if (!next_arrived<G::CAUSAL>(b, l, g)) break;
        uint32_t arrived = n - AHEAD;
        if (arrived >= COARSE_SLOTS) wait_load(base + AT_DONE, arrived - COARSE_SLOTS);
        if (G::COARSE) raise_chunk(fine, coarse, l);
        __syncwarp();
        barrier_arrive(barrier_of(base + AT_FULL, arrived));
        if (G::COARSE) store_level3(l, b, g);
        next_slot(fine, FINE_BYTES, base, sums);
        next_slot(coarse, COARSE_BYTES, sums, out);
    }
}

/* ---- attending ---- */

/* What one team attends: every TEAMS-th chunk. The pointers are this lane's, at the sequence's
 * first rows. */
struct visits {
    walk w;
    int at, before; /* in the stretch; loads before the stretch */
    const char *q;
};

template <int CAUSAL>
static __device__ __forceinline__ int next_visit(visits &v, const walk_args &g, int row, int t) {
    v.at += TEAMS;
    if (v.at < v.w.count) return 1;
    do {
        v.at -= v.w.count, v.before += v.w.count + 2 - CAUSAL;
        if (!next_stretch(v.w, g)) return 0;
        v.before -= first_load<CAUSAL>(v.w) + 1;
    } while (v.at >= v.w.count);
    v.q = walk_row(g.a.fq, v.w.sequence, v.w.head, row) + 16 * t;
    return 1;
}

struct results {
    char *z;        /* 16 bytes of row lane / 8 of the tile */
    float *lse;     /* the lane's first row (t = 0) or its second */
    element *tower; /* level 3 of q, lanes of g = 0 and 4 */
};

static __device__ __forceinline__ void find_results(results &r, const visits &v, const walk_args &g,
                                                    int warp, int lane) {
    const hti_hier_args &a = g.a;
    int t = lane & 3;
    r.z = walk_row(a.fz, v.w.sequence, v.w.head, 16 * warp + (lane >> 3)) + 16 * (lane & 7);
    r.lse = nullptr, r.tower = nullptr;
    if (a.flse && t < 2)
        r.lse = a.flse + v.w.head * a.flse_head + (int64_t)v.w.sequence * a.length + 16 * warp +
                row_of((lane >> 2) + 8 * t);
    if (a.stages > 1 && (lane & 12) == 0)
        r.tower = a.tq[1] +
                  (walk_tower(g, v.w.sequence, v.w.head) + 2 * warp + (lane >> 4)) * WALK_D + 8 * t;
}

/* other: rows from a lane's first row to its second, 1 or -1 */
static __device__ __forceinline__ void fetch_queries(uint4 raw[4], const visits &v,
                                                     const walk_args &g, int row, int other) {
    int chunk = v.w.first + v.at, step = 8 * g.a.fq.row;
    const char *from = v.q + (uint64_t)(uint32_t)chunk * (WALK_ROWS * (uint32_t)step);
    int left = g.a.length - WALK_ROWS * chunk - row;
#pragma unroll
    for (int h = 0; h < 2; h++, from += other * step) {
        raw[2 * h] = raw[2 * h + 1] = make_uint4(0, 0, 0, 0);
        if (left <= (h ? other : 0)) continue;
        raw[2 * h] = __ldg((const uint4 *)from);
        raw[2 * h + 1] = __ldg((const uint4 *)(from + 64));
    }
}

static __device__ __forceinline__ void settle_queries(frag<WALK_D> &q, const uint4 raw[4],
                                                      uint32_t zero) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t x[8] = {raw[2 * h].x,     raw[2 * h].y,     raw[2 * h].z,     raw[2 * h].w,
                         raw[2 * h + 1].x, raw[2 * h + 1].y, raw[2 * h + 1].z, raw[2 * h + 1].w};
        settle<WALK_D>(q, h, x, zero);
    }
}

/* Queries one level up, of siblings in one lane: every row gets its cluster's. */
template <int MODE>
static __device__ __forceinline__ void join_queries(frag<WALK_D> &up, const frag<WALK_D> &q,
                                                    int lane) {
#pragma unroll
    for (int i = 0; i < WALK_D / 8; i++) {
        uint32_t lo = q.a[i / 2][2 * (i % 2)], hi = q.a[i / 2][2 * (i % 2) + 1];
        uint32_t x = MODE == MEAN ? join2(lo, hi) : lane & 16 ? hi : lo; /* row_of */
        up.lo(i) = x, up.hi(i) = x;
    }
}

/* The levels above: the other half of a cluster is a step of lanes away. */
template <int MODE>
static __device__ __forceinline__ void join_lanes(frag<WALK_D> &up, const frag<WALK_D> &q, int step,
                                                  int lane) {
#pragma unroll
    for (int i = 0; i < WALK_D / 8; i++) {
        uint32_t mine = q.a[i / 2][2 * (i % 2)];
        uint32_t x = MODE == MEAN ? join2(mine, __shfl_xor_sync(~0u, mine, step))
                                  : __shfl_sync(~0u, mine, lane & ~step);
        up.lo(i) = x, up.hi(i) = x;
    }
}

/* Level 3 of q into the tower: lanes of g = 0 write the first cluster, of g = 4 the second. */
template <int MODE>
static __device__ __forceinline__ void store_queries3(element *to, const frag<WALK_D> &q2,
                                                      int there, int lane) {
    frag<WALK_D> q3;
    join_lanes<MODE>(q3, q2, 8, lane);
    if (lane & 12 || !there) return;
#pragma unroll
    for (int i = 0; i < 2; i++)
        store_tower(to + 32 * i,
                    make_uint4(q3.lo(4 * i), q3.lo(4 * i + 1), q3.lo(4 * i + 2), q3.lo(4 * i + 3)));
}

/* A tile's result goes out by way of shared memory, so that whole rows are written. */
struct way_out {
    uint32_t put, get[2]; /* where a lane puts its share, and finds rows lane / 8 and four on */
};

static __device__ __forceinline__ void find_way_out(way_out &w, uint32_t tile, int lane) {
    w.put = tile + 2 * rows<WALK_D>::at(row_of(lane & 15), lane >> 4);
    w.get[0] = tile + 2 * rows<WALK_D>::at(lane >> 3, lane & 7);
    w.get[1] = tile + 2 * rows<WALK_D>::at((lane >> 3) + 4, lane & 7);
}

/* left: rows from the lane's first on */
static __device__ __forceinline__ void store_values(char *z, const float o[WALK_D / 8][4],
                                                    const float l[2], const way_out &w,
                                                    uint32_t step, int left) {
    float inv[2];
#pragma unroll
    for (int h = 0; h < 2; h++) inv[h] = l[h] != 0 ? __fdividef(1, l[h]) : 0;
#pragma unroll
    for (int c = 0; c < WALK_D / 8; c += 2)
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(w.put ^ (16 * c)),
            "r"(pack2(o[c][0] * inv[0], o[c][1] * inv[0])),
            "r"(pack2(o[c][2] * inv[1], o[c][3] * inv[1])),
            "r"(pack2(o[c + 1][0] * inv[0], o[c + 1][1] * inv[0])),
            "r"(pack2(o[c + 1][2] * inv[1], o[c + 1][3] * inv[1]))
            : "memory");
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 x = shared_load4(w.get[j & 1] + (j >> 1) * EIGHT);
        if (left > 4 * j) *(uint4 *)(z + 4 * j * (uint64_t)step) = x;
    }
    __syncwarp();
}

static __device__ __forceinline__ void store_lse(float *to, const float m[2], const float l[2],
                                                 const visits &v, const walk_args &g, int row,
                                                 int t) {
    if (t > 1 || row >= g.a.length) return;
    float top = t ? m[1] : m[0], sum = t ? l[1] : l[0];
    float lse = sum != 0 ? (top + __log2f(sum)) * g.unit : HTI_NEG_INF;
    if (g.a.flse) *to = lse;
    if (g.lse.data)
        ((float *)g.lse.data)[v.w.sequence * g.lse.batch_stride + v.w.head * g.lse.head_stride +
                              row * g.lse.row_stride] = lse;
}

/* The tile's place and what it sees; step: load of the left neighbour's chunk. */
static __device__ __forceinline__ void find_tile(walk_tile &w, uint32_t base, uint32_t step,
                                                 int chunk, const walk_args &g) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
        w.fine[i] = base + (step + i) % FINE_SLOTS * FINE_BYTES;
        w.coarse[i] = base + AT_COARSE + (step + i) % COARSE_SLOTS * COARSE_BYTES;
    }
    w.first = WALK_ROWS * chunk;
    w.ragged = g.a.length % WALK_ROWS != 0 && w.first + 2 * WALK_ROWS > g.a.length;
    w.edge = chunk == 0 || chunk == g.chunks - 1 || w.ragged;
}

/* The loads that nobody needs after this visit: the left neighbour, and at the end of a stretch
 * what is nobody's left neighbour. */
template <int CAUSAL>
static __device__ __forceinline__ void release(uint32_t done, const visits &v, uint32_t step) {
    barrier_arrive(barrier_of(done, step));
    if (v.at < v.w.count - 1) return;
    barrier_arrive(barrier_of(done, step + 1));
    if (!CAUSAL && v.w.at >= v.w.end) barrier_arrive(barrier_of(done, step + 2));
}

template <int MODE>
static __device__ __forceinline__ void attend_all(uint32_t base, const walk_args &g, int team) {
    using G = groups<MODE, 1>;
    const hti_hier_args &a = g.a;
    int lane = threadIdx.x % 32, t = lane & 3, other = lane & 16 ? -1 : 1; /* row_of */
    walk_tile w;
    w.warp = warp_index() % 4, w.length = a.length;
    lanes<WALK_D> l;
    find_lanes(l, lane);
    uint32_t offset[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        offset[c] = 2 * rows<WALK_D>::at(lane & 7, 2 * c + (lane >> 4));
        asm volatile("" : "+r"(offset[c])); /* once, not per use */
    }
    asm volatile("" : "+r"(l.key[0]), "+r"(l.key[1]));
    way_out out;
    find_way_out(out, base + AT_OUT + (4 * team + w.warp) * TILE_BYTES, lane);
    visits next;
    start_walk(next.w, 0);
    next.at = team - TEAMS, next.before = G::CAUSAL - 2;
    int row = 16 * w.warp + row_of(lane >> 2), seen = -1;
    int more = next_visit<G::CAUSAL>(next, g, row, t);
    uint4 raw[4];
    results r;
    if (more) fetch_queries(raw, next, g, row, other);
    while (more) {
        visits v = next;
        if (v.before != seen) find_results(r, v, g, w.warp, lane), seen = v.before;
        frag<WALK_D> q;
        settle_queries(q, raw, a.zero);
        uint32_t step = v.before + v.at, chunk = v.w.first + v.at, at[G::ALL];
        find_tile(w, base, step, chunk, g);
        find_groups<MODE>(at, w);
        wait_load(base + AT_FULL, step + 2 - G::CAUSAL);
        float x[G::ALL][4], o[WALK_D / 8][4], m[2], sum[2];
        scores<MODE>(x, at, 0, G::FINE, q, l);
        if constexpr (G::COARSE != 0) {
            frag<WALK_D> q1, q2;
            join_queries<MODE>(q1, q, lane);
            scores<MODE>(x, at, G::FINE, G::COARSE, q1, l);
            join_lanes<MODE>(q2, q1, 4, lane);
            scores<MODE>(x, at, G::FINE + G::COARSE, G::COARSE, q2, l);
            if (a.stages > 1)
                store_queries3<MODE>(r.tower + (uint64_t)chunk * (WALK_ROWS / 8 * WALK_D), q2,
                                     w.first + 16 * w.warp + 8 * (lane >> 4) < a.length, lane);
        }
        more = next_visit<G::CAUSAL>(next, g, row, t);
        if (more) fetch_queries(raw, next, g, row, other);
        hide_unseen<MODE>(x, w, lane);
        weigh_all<MODE>(x, m, sum, a.factor, w, t);
        take_values<MODE>(o, x, at, offset, lane);
        __syncwarp();
        release<G::CAUSAL>(base + AT_DONE, v, step);
        store_values(r.z + (uint64_t)chunk * (WALK_ROWS * 8 * a.fz.row), o, sum, out, 8 * a.fz.row,
                     a.length - w.first - 16 * w.warp - (lane >> 3));
        store_lse(r.lse + w.first, m, sum, v, g,
                  w.first + 16 * w.warp + row_of((lane >> 2) + 8 * t), t);
    }
}
#endif

template <int MODE>
__global__ void __launch_bounds__(WALK_THREADS, 1) hier_walk(const __grid_constant__ walk_args g) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char shared_bytes[];
    uint32_t base = shared_address(shared_bytes);
    if (threadIdx.x == 0) {
        for (int i = 0; i < BARRIERS; i++) {
            barrier_make(base + AT_FULL + 8 * i, WALK_LOADERS);
            barrier_make(base + AT_DONE + 8 * i, TEAM);
        }
        barriers_made();
    }
    __syncthreads();
    chain_next();
    int team = warp_index() / 4;
    if (team == 0) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
#endif
        load_all<MODE>(base, g);
    } else {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.inc.sync.aligned.u32 144;");
#endif
        attend_all<MODE>(base, g, team - 1);
    }
#endif
}

/* ---- host ---- */

/* Ranges per head: as few rounds of the grid as possible, each range with its two neighbours. For
 * each number of rounds the most ranges that they hold are looked at. */
static void cut_work(walk_args *g, int processors) {
    int64_t all = (int64_t)g->chunks * g->a.sequences, best = INT64_MAX;
    int heads = g->a.q_heads, fewest = (heads + processors - 1) / processors;
    for (int rounds = fewest; rounds < fewest + 16; rounds++) {
        int64_t n = (int64_t)rounds * processors / heads;
        if (n > all) n = all;
        int64_t time = rounds * ((all + n - 1) / n + 2);
        if (time < best) best = time, g->ranges = (int)n;
    }
    g->size = (int)(all / g->ranges), g->longer = (int)(all % g->ranges);
    g->items = g->ranges * heads;
}

int hti_walk_takes(const ht_context *ctx, const hti_hier_args &a) {
    const hti_cuda_backend *cuda = hti_cuda_of(ctx);
    /* a build for older devices has nothing in the kernel */
    if (cuda->built_for < 90 || cuda->shared_bytes < WALK_SHARED) return 0;
    return !a.cu && !a.key_mask && !a.query_mask && a.dim == WALK_D;
}

ht_status hti_walk_base(ht_context *ctx, hti_hier_args *args) {
    const hti_hier_args &a = *args;
    walk_args g = {};
    int processors = hti_cuda_of(ctx)->processors;
    g.a = a;
    g.chunks = (a.length + WALK_ROWS - 1) / WALK_ROWS;
    g.unit = a.stages == 1 ? HTI_LN2 : 1;
    if (a.stages == 1) g.lse = a.lse;
    cut_work(&g, processors);
    args->ranges = g.ranges;
    void (*kernel)(walk_args) = a.local && a.causal        ? hier_walk<LOCAL_CAUSAL>
                                : a.local                  ? hier_walk<LOCAL>
                                : a.query == HT_QUERY_MEAN ? hier_walk<MEAN>
                                : a.causal                 ? hier_walk<FIRST_CAUSAL>
                                                           : hier_walk<FIRST>;
    dim3 grid((unsigned)(g.items < processors ? g.items : processors));
    return hti_cuda_launch(ctx, kernel, "hier_walk", grid, WALK_THREADS, WALK_SHARED, g);
}

} // namespace HTI_KERNELS
