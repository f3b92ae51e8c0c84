/*
 * The walking forward for compute capability 9.0: bf16, block 16, head_dim 64, equal lengths, no
 * masks.
 *
 * 1. walk   reads q, k, v once. One thread block per multiprocessor walks along a head, 64 rows at
 * a time: four warps bring k and v into a ring in shared memory, several chunks ahead, and add up
 * levels 1, 2 (for the ring) and 3 (for the tower); three teams of four warps attend levels 0 to 2
 * of every third chunk and write a result of their own, normalised, and its lse.
 * 2. the stages above, on the tower: see hier_forward.cu.
 * 3. merge  goes over the rows once more: the result of level 3 and up joins that of 0 to 2.
 */
#include "cuda/hier_walk.h"

#if __CUDA_ARCH__ >= 900

/* ---- loading ---- */

/* A loader owns 16 bytes of four neighbouring rows, of k and of v: its places in a slot. */
struct loader {
    uint32_t at0[4], at1[2], at2;
    int ch, quad;
};

static __device__ __forceinline__ void find_loader(loader &l) {
    l.ch = threadIdx.x % 8, l.quad = threadIdx.x / 8;
#pragma unroll
    for (int m = 0; m < 4; m++) l.at0[m] = 2 * rows<WALK_D>::at(4 * l.quad + m, l.ch);
#pragma unroll
    for (int m = 0; m < 2; m++) l.at1[m] = SLOT_1 + 2 * rows<WALK_D>::at(2 * l.quad + m, l.ch);
    l.at2 = SLOT_2 + 2 * rows<WALK_D>::at(l.quad, l.ch);
    asm volatile("" : "+r"(l.at0[0]), "+r"(l.at0[1]), "+r"(l.at0[2]), "+r"(l.at0[3]));
    asm volatile("" : "+r"(l.at1[0]), "+r"(l.at1[1]), "+r"(l.at2)); /* once, not per use */
}

/* What is loaded, in order: the chunks of a stretch and one neighbour on either side (the left one
 * is there already if it is joined to the stretch before). */
struct front {
    walk w;
    int at;                /* -1 ... count */
    const char *k, *v;     /* this loader's share of the sequence's first rows */
    uint32_t row_k, row_v; /* bytes from row to row */
};

static __device__ __forceinline__ int next_load(front &f, const loader &l, const walk_args &g) {
    if (++f.at <= f.w.count) return 1;
    if (!next_stretch(f.w, g)) return 0;
    f.at = f.w.joined - 1;
    int kv = g.a.group == 1 ? f.w.head : f.w.head / g.a.group;
    f.k = walk_row(g.a.fk, f.w.sequence, kv, 4 * l.quad) + 16 * l.ch;
    f.v = walk_row(g.a.fv, f.w.sequence, kv, 4 * l.quad) + 16 * l.ch;
    return 1;
}

template <int CAUSAL>
static __device__ __forceinline__ void load_slot(uint32_t slot, const loader &l, const front &f,
                                                 const walk_args &g) {
    int chunk = f.w.first + f.at, left = g.a.length - WALK_ROWS * chunk;
    if (chunk < 0 || (CAUSAL && f.at == f.w.count)) left = 0;
    const char *k = f.k + (uint64_t)(uint32_t)chunk * (WALK_ROWS * f.row_k);
    const char *v = f.v + (uint64_t)(uint32_t)chunk * (WALK_ROWS * f.row_v);
    if (left >= WALK_ROWS) {
#pragma unroll
        for (int m = 0; m < 4; m++, k += f.row_k, v += f.row_v) {
            copy_async(slot + l.at0[m], k);
            copy_async(slot + l.at0[m] + SLOT_V, v);
        }
        return;
    }
    left -= 4 * l.quad;
#pragma unroll
    for (int m = 0; m < 4; m++, k += f.row_k, v += f.row_v) {
        copy_async_if(slot + l.at0[m], m < left ? k : g.a.fk.data, m < left);
        copy_async_if(slot + l.at0[m] + SLOT_V, m < left ? v : g.a.fv.data, m < left);
    }
}

static __device__ __forceinline__ uint4 shuffle4(uint4 x, int step) {
    return make_uint4(__shfl_xor_sync(~0u, x.x, step), __shfl_xor_sync(~0u, x.y, step),
                      __shfl_xor_sync(~0u, x.z, step), __shfl_xor_sync(~0u, x.w, step));
}

/* The same chunks once they have arrived. */
struct back {
    walk w;
    int at;
    bf16 *tower; /* this loader's share of the sequence's first rows: even quads k, odd ones v */
};

static __device__ __forceinline__ int next_arrived(back &b, const loader &l, const walk_args &g) {
    if (++b.at <= b.w.count) return 1;
    if (!next_stretch(b.w, g)) return 0;
    b.at = b.w.joined - 1;
    int kv = g.a.group == 1 ? b.w.head : b.w.head / g.a.group;
    b.tower = nullptr;
    if (g.a.stages == 1 || kv * g.a.group != b.w.head) return 1;
    b.tower = (l.quad & 1 ? g.a.tv[1] : g.a.tk[1]) +
              (walk_tower(g, b.w.sequence, kv) + l.quad / 2) * WALK_D + 8 * l.ch;
    return 1;
}

/* Levels 1 and 2 of what has arrived into the slot; level 3 into the tower. */
static __device__ __forceinline__ void raise_slot(uint32_t slot, const loader &l, const back &b,
                                                  const walk_args &g) {
    uint4 sum[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 x[4];
#pragma unroll
        for (int m = 0; m < 4; m++) x[m] = shared_load4(slot + l.at0[m] + i * SLOT_V);
        uint4 lo = add8(x[0], x[1]), hi = add8(x[2], x[3]);
        sum[i] = add8(lo, hi);
        shared_store4(slot + l.at1[0] + i * SLOT_V, lo);
        shared_store4(slot + l.at1[1] + i * SLOT_V, hi);
        shared_store4(slot + l.at2 + i * SLOT_V, sum[i]);
    }
    if (!b.tower || b.at < 0 || b.at >= b.w.count) return;
    int odd = l.quad & 1;
    uint4 mine = odd ? sum[1] : sum[0], other = shuffle4(odd ? sum[0] : sum[1], 8);
    int chunk = b.w.first + b.at;
    if (WALK_ROWS * chunk + 4 * (l.quad & ~1) >= g.a.length) return;
    *(uint4 *)(b.tower + (uint64_t)(uint32_t)chunk * (WALK_ROWS / 8 * WALK_D)) = add8(mine, other);
}

template <int MODE>
static __device__ __forceinline__ void load_all(uint32_t ring, uint32_t full, uint32_t done,
                                                const walk_args &g) {
    using G = groups<MODE, 1>;
    loader l;
    find_loader(l);
    front f;
    back b;
    start_walk(f.w, -1), start_walk(b.w, -1);
    f.at = b.at = -1;
    f.row_k = 8 * g.a.fk.row, f.row_v = 8 * g.a.fv.row;
    int more = 1, leader = threadIdx.x % 32 == 0;
    for (uint32_t n = 0;; n++) {
        if (more) more = next_load(f, l, g);
        if (more) {
            if (n >= SLOTS) barrier_wait(done + 8 * (n % SLOTS), (n / SLOTS - 1) & 1);
            load_slot<G::CAUSAL>(ring + n % SLOTS * SLOT_BYTES, l, f, g);
        }
        copies_commit();
        if (n < AHEAD) continue;
        copies_wait<AHEAD>();
        if (!next_arrived(b, l, g)) break;
        uint32_t slot = (n - AHEAD) % SLOTS;
        if (G::COARSE) raise_slot(ring + slot * SLOT_BYTES, l, b, g);
        __syncwarp();
        if (leader) barrier_arrive(full + 8 * slot);
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

static __device__ __forceinline__ int next_visit(visits &v, const walk_args &g, int row, int t) {
    v.at += TEAMS;
    if (v.at < v.w.count) return 1;
    do {
        v.at -= v.w.count, v.before += v.w.count + 2;
        if (!next_stretch(v.w, g)) return 0;
        v.before -= v.w.joined;
    } while (v.at >= v.w.count);
    v.q = walk_row(g.a.fq, v.w.sequence, v.w.head, row) + 16 * t;
    return 1;
}

struct results {
    char *z;     /* columns 8 (t & 1) + 4 (t >> 1) of row g of the tile */
    float *lse;  /* row g (t = 0) or g + 8 */
    bf16 *tower; /* level 3 of q, lanes of rows 0 and 1 */
};

static __device__ __forceinline__ void find_results(results &r, const visits &v, const walk_args &g,
                                                    int warp, int lane) {
    const hti_hier_args &a = g.a;
    int t = lane & 3, row = 16 * warp + (lane >> 2);
    r.z = walk_row(a.fz, v.w.sequence, v.w.head, row) + 2 * (8 * (t & 1) + 4 * (t >> 1));
    r.lse = nullptr, r.tower = nullptr;
    if (a.flse && t < 2)
        r.lse = a.flse + v.w.head * a.flse_head + (int64_t)v.w.sequence * a.length + row + 8 * t;
    if (a.stages > 1 && lane < 8)
        r.tower = a.tq[1] +
                  (walk_tower(g, v.w.sequence, v.w.head) + 2 * warp + (lane >> 2)) * WALK_D + 8 * t;
}

static __device__ __forceinline__ void fetch_queries(uint4 raw[4], const visits &v,
                                                     const walk_args &g, int row) {
    int chunk = v.w.first + v.at;
    uint32_t step = 8 * g.a.fq.row;
    const char *from = v.q + (uint64_t)(uint32_t)chunk * (WALK_ROWS * step);
    int left = g.a.length - WALK_ROWS * chunk - row;
#pragma unroll
    for (int h = 0; h < 2; h++, from += 8 * step) {
        raw[2 * h] = raw[2 * h + 1] = make_uint4(0, 0, 0, 0);
        if (left <= 8 * h) continue;
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

/* Level 3 of q into the tower: lanes of row 0 write the first cluster, of row 1 the second. */
template <int MODE>
static __device__ __forceinline__ void store_queries3(bf16 *to, frag<WALK_D> &q2, int there,
                                                      int lane) {
    frag<WALK_D> q3;
    float n[2] = {1, 1};
    raise_queries<WALK_D, 1, MODE>(q3, q2, n, 16, lane);
    if (lane >= 8 || !there) return;
    int h = lane >> 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = h ? q3.at(1, 4 * i + j) : q3.at(0, 4 * i + j);
        *(uint4 *)(to + 32 * i) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

static __device__ __forceinline__ void store_global2(char *at, uint32_t x, uint32_t y) {
    asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(at), "r"(x), "r"(y) : "memory");
}

/* left: rows from the lane's first on */
static __device__ __forceinline__ void store_values(char *z, const float o[WALK_D / 8][4],
                                                    const float l[2], uint32_t step, int left,
                                                    int odd) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float inv = l[h] != 0 ? __fdividef(1, l[h]) : 0;
        uint32_t x[WALK_D / 8], y[WALK_D / 16];
#pragma unroll
        for (int i = 0; i < WALK_D / 8; i++) x[i] = pack2(o[i][2 * h] * inv, o[i][2 * h + 1] * inv);
#pragma unroll
        for (int i = 0; i < WALK_D / 16; i++) /* with the neighbour: 8 bytes each */
            y[i] = __shfl_xor_sync(~0u, odd ? x[2 * i] : x[2 * i + 1], 1);
        if (left > 8 * h) {
            char *to = z + h * (8 * (uint64_t)step);
#pragma unroll
            for (int i = 0; i < WALK_D / 16; i++)
                store_global2(to + 32 * i, odd ? y[i] : x[2 * i], odd ? x[2 * i + 1] : y[i]);
        }
    }
}

static __device__ __forceinline__ void store_lse(float *to, const float m[2], const float l[2],
                                                 const visits &v, const walk_args &g, int row,
                                                 int t) {
    row += 8 * t;
    if (t > 1 || row >= g.a.length) return;
    float top = t ? m[1] : m[0], sum = t ? l[1] : l[0];
    float lse = sum != 0 ? (top + __log2f(sum)) * g.unit : HTI_NEG_INF;
    if (g.a.flse) *to = lse;
    if (g.lse.data)
        ((float *)g.lse.data)[v.w.sequence * g.lse.batch_stride + v.w.head * g.lse.head_stride +
                              row * g.lse.row_stride] = lse;
}

/* The tile's place and what it sees; step: load of the left neighbour's chunk. */
static __device__ __forceinline__ void find_tile(walk_tile &w, uint32_t ring, uint32_t step,
                                                 int chunk, const walk_args &g) {
    w.left = ring + step % SLOTS * SLOT_BYTES;
    w.own = ring + (step + 1) % SLOTS * SLOT_BYTES;
    w.right = ring + (step + 2) % SLOTS * SLOT_BYTES;
    w.first = WALK_ROWS * chunk;
    w.ragged = g.a.length % WALK_ROWS != 0 && w.first + 2 * WALK_ROWS > g.a.length;
    w.edge = chunk == 0 || chunk == g.chunks - 1 || w.ragged;
}

/* Waits until a load has arrived; after: the load SLOTS after the last one waited for. They arrive
 * in order, and a barrier tells a phase from the next one only: none of its phases may be left out.
 */
static __device__ __forceinline__ void wait_load(uint32_t full, uint32_t &after, uint32_t load) {
    for (; after < load; after += SLOTS)
        barrier_wait(full + 8 * (after % SLOTS), after / SLOTS & 1);
    barrier_wait(full + 8 * (load % SLOTS), load / SLOTS & 1);
    after = load + SLOTS;
}

template <int MODE>
static __device__ __forceinline__ void attend_all(uint32_t ring, uint32_t full, uint32_t done,
                                                  const walk_args &g, int team) {
    using G = groups<MODE, 1>;
    const hti_hier_args &a = g.a;
    int lane = threadIdx.x % 32, t = lane & 3;
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
    visits next;
    start_walk(next.w, 0);
    next.at = team - TEAMS, next.before = -2;
    int row = 16 * w.warp + (lane >> 2), more = next_visit(next, g, row, t), seen = -1;
    uint32_t arrived = 0;
    uint4 raw[4];
    results r;
    if (more) fetch_queries(raw, next, g, row);
    while (more) {
        visits v = next;
        if (v.before != seen) find_results(r, v, g, w.warp, lane), seen = v.before;
        frag<WALK_D> q;
        settle_queries(q, raw, a.zero);
        uint32_t step = v.before + v.at, at[G::ALL];
        uint32_t chunk = v.w.first + v.at;
        find_tile(w, ring, step, chunk, g);
        find_groups<MODE>(at, w);
        wait_load(full, arrived, step + 2);
        float x[G::ALL][4], o[WALK_D / 8][4], m[2], sum[2];
        scores<MODE>(x, at, 0, G::FINE, q, l);
        if constexpr (G::COARSE != 0) {
            frag<WALK_D> q1, q2;
            float n[2] = {1, 1};
            raise_queries<WALK_D, 1, MODE>(q1, q, n, 4, lane);
            scores<MODE>(x, at, G::FINE, G::COARSE, q1, l);
            raise_queries<WALK_D, 1, MODE>(q2, q1, n, 8, lane);
            scores<MODE>(x, at, G::FINE + G::COARSE, G::COARSE, q2, l);
            if (a.stages > 1)
                store_queries3<MODE>(r.tower + (uint64_t)chunk * (WALK_ROWS / 8 * WALK_D), q2,
                                     w.first + 16 * w.warp + 8 * (lane >> 2) < a.length, lane);
        }
        more = next_visit(next, g, row, t);
        if (more) fetch_queries(raw, next, g, row);
        hide_unseen<MODE>(x, w, lane);
        weigh_all<MODE>(x, m, sum, a.factor, w, t);
        take_values<MODE>(o, x, at, offset, lane);
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(done + 8 * (step % SLOTS));
            if (v.at == v.w.count - 1) { /* the last two are nobody's left neighbour */
                barrier_arrive(done + 8 * ((step + 1) % SLOTS));
                if (v.w.at >= v.w.end) barrier_arrive(done + 8 * ((step + 2) % SLOTS));
            }
        }
        store_values(r.z + (uint64_t)chunk * (WALK_ROWS * 8 * a.fz.row), o, sum, 8 * a.fz.row,
                     a.length - w.first - row, t & 1);
        store_lse(r.lse + w.first, m, sum, v, g, w.first + row, t);
    }
}
#endif

template <int MODE>
__global__ void __launch_bounds__(WALK_THREADS, 1) hier_walk(const __grid_constant__ walk_args g) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char shared_bytes[];
    uint32_t ring = shared_address(shared_bytes), full = ring + SLOTS * SLOT_BYTES,
             done = full + 8 * SLOTS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++)
            barrier_make(full + 8 * i, WALK_LOADERS / 32), barrier_make(done + 8 * i, 4);
        barriers_made();
    }
    __syncthreads();
    chain_next();
    int team = warp_index() / 4;
    if (team == 0) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
#endif
        load_all<MODE>(ring, full, done, g);
    } else {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.inc.sync.aligned.u32 144;");
#endif
        attend_all<MODE>(ring, full, done, g, team - 1);
    }
#endif
}

/* ---- the tower above level 3 ---- */

/* Levels 6 and 9 from level 3: a thread block takes 64 rows of level 3 of a plane (a head of q, k
 * or v). grid: (planes, chunks, sequences) */
static __global__ void __launch_bounds__(64) hier_lift(hti_hier_args a) {
    __shared__ float sums[8][WALK_D];
    int kv = blockIdx.x / (a.group + 2), part = blockIdx.x % (a.group + 2);
    int is_q = part < a.group, head = is_q ? kv * a.group + part : kv;
    int pick = is_q && a.query == HT_QUERY_FIRST, ch = threadIdx.x % 8, r = threadIdx.x / 8;
    bf16 *const *tower = is_q ? a.tq : part == a.group ? a.tk : a.tv;
    int n[4];
    int64_t at[4];
    for (int s = 1; s < 4; s++) {
        n[s] = (int)hti_clusters(a.length, 3 * s);
        at[s] = s < a.stages ? head * a.tower[s] + (int64_t)blockIdx.z * n[s] : 0;
    }
    int r6 = 8 * blockIdx.y + r;
    chain_wait();
    chain_next();
    const uint4 *from = (const uint4 *)(tower[1] + (at[1] + 8 * r6) * WALK_D + 8 * ch);
    uint4 x[8];
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = 8 * r6 + j < n[1] && !(pick && j) ? from[j * (WALK_D / 8)] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 8; j++) add_chunk(sum, x[j]);
    if (r6 < n[2]) *(uint4 *)(tower[2] + (at[2] + r6) * WALK_D + 8 * ch) = pack8(sum);
    if (a.stages < 4) return;
    for (int c = 0; c < 8; c++) sums[r][8 * ch + c] = sum[c];
    __syncthreads();
    float all = sums[0][threadIdx.x];
    for (int j = 1; j < 8 && !pick; j++) all += sums[j][threadIdx.x];
    tower[3][(at[3] + blockIdx.y) * WALK_D + threadIdx.x] = __float2bfloat16(all);
}

/* ---- host ---- */

/* Ranges per head: as few rounds of the grid as possible, each range with its two neighbours. */
static void cut_work(walk_args *g, int processors) {
    int64_t all = (int64_t)g->chunks * g->a.sequences, best = INT64_MAX;
    int heads = g->a.q_heads;
    for (int64_t ranges = 1; ranges <= all && ranges <= 4 * processors; ranges++) {
        int64_t rounds = (heads * ranges + processors - 1) / processors;
        int64_t time = rounds * ((all + ranges - 1) / ranges + 2);
        if (time < best) best = time, g->ranges = (int)ranges;
    }
    g->items = g->ranges * heads;
}

int hti_walk_takes(const ht_context *ctx, const hti_hier_args &a) {
    const hti_cuda_backend *cuda = hti_cuda_of(ctx);
    /* a build for older devices has nothing in the kernel */
    if (cuda->built_for < 90 || cuda->shared_bytes < WALK_SHARED) return 0;
    return !a.cu && !a.key_mask && !a.query_mask && a.dim == WALK_D;
}

ht_status hti_walk_base(ht_context *ctx, const hti_hier_args &a) {
    walk_args g = {};
    int processors = hti_cuda_of(ctx)->processors;
    g.a = a;
    g.chunks = (a.length + WALK_ROWS - 1) / WALK_ROWS;
    g.unit = a.stages == 1 ? HTI_LN2 : 1;
    if (a.stages == 1) g.lse = a.lse;
    cut_work(&g, processors);
    void (*kernel)(walk_args) = a.local && a.causal        ? hier_walk<LOCAL_CAUSAL>
                                : a.local                  ? hier_walk<LOCAL>
                                : a.query == HT_QUERY_MEAN ? hier_walk<MEAN>
                                : a.causal                 ? hier_walk<FIRST_CAUSAL>
                                                           : hier_walk<FIRST>;
    dim3 grid((unsigned)(g.items < processors ? g.items : processors));
    return hti_cuda_launch(ctx, kernel, "hier_walk", grid, WALK_THREADS, WALK_SHARED, g);
}

ht_status hti_walk_lift(ht_context *ctx, const hti_hier_args &a) {
    dim3 grid((unsigned)(a.q_heads + 2 * a.kv_heads),
              (unsigned)((hti_clusters(a.length, 6) + 7) / 8), (unsigned)a.sequences);
    return launch_chained(ctx, hier_lift, "hier_lift", grid, 64, 0, a);
}
