/*
 * The end of the walking forward (compute capability 9.0): stage 1 attends levels 3 to 5, takes in
 * the stages above and goes into the rows of level 0 that the walking kernel has left in device
 * memory.
 *
 * One thread block per multiprocessor goes from item to item, 128 rows of level 3 of a head each.
 * Eight warps attend 16 rows each and leave them in shared memory; eight others, one for each of
 * them, bring the 128 rows of level 0 that these stand for, weigh both and write them back. So
 * device memory is busy while the next rows are attended.
 */
#include "cuda/barrier.h"
#include "cuda/tower/attend.h"

namespace HTI_KERNELS {

enum { JOIN_D = HTI_WALK_DIM, JOIN_THREADS = 2 * THREADS };
/* A finished tile: 16 rows, padded against bank conflicts, then their lse. */
enum { STASH_ROW = 2 * JOIN_D + 16, STASH = 16 * STASH_ROW + 64 };
/* Rows of level 0 on their way, of one warp: batches of 16, then their lse. */
enum { BATCHES = 3, BATCH_ROWS = 16, BATCH_LSE = BATCH_ROWS * 2 * JOIN_D };
enum { BATCH = BATCH_LSE + BATCH_ROWS * 4, RING = BATCHES * BATCH, PER_TILE = 128 / BATCH_ROWS };
/* Rows of level 3 on their way, of one item: k and v, 16 bytes of each thread after the other. */
enum { PASS = THREADS * 16, STAGED = (CHUNK + 2 * HALO) * 4 * JOIN_D };
enum { AT_STAGED = sizeof(shared_rows<JOIN_D>), AT_STASH = AT_STAGED + STAGED };
enum { AT_RING = AT_STASH + WARPS * STASH, AT_BARRIERS = AT_RING + WARPS * RING };
enum { JOIN_SHARED = AT_BARRIERS + 2 * WARPS * 8 };
static_assert(JOIN_SHARED <= 220 * 1024, "TOWER_MEMORY in families.c asks for no more");

struct join_args {
    hti_hier_args a;
    int chunks; /* of 128 rows of level 3, of a sequence */
    int items;
};

/* ---- the tower above level 3 ---- */

/* Levels 6 and 9 from level 3: a thread block takes 64 rows of level 3 of a plane (a head of q, k
 * or v). grid: (planes, chunks, sequences) */
static __global__ void __launch_bounds__(64) hier_lift(hti_hier_args a) {
    __shared__ float sums[8][JOIN_D];
    int kv = blockIdx.x / (a.group + 2), part = blockIdx.x % (a.group + 2);
    int is_q = part < a.group, head = is_q ? kv * a.group + part : kv;
    int pick = is_q && a.query == HT_QUERY_FIRST, ch = threadIdx.x % 8, r = threadIdx.x / 8;
    element *const *tower = is_q ? a.tq : part == a.group ? a.tk : a.tv;
    int n[4];
    int64_t at[4];
    for (int s = 1; s < 4; s++) {
        n[s] = (int)hti_clusters(a.length, 3 * s);
        at[s] = s < a.stages ? head * a.tower[s] + (int64_t)blockIdx.z * n[s] : 0;
    }
    int r6 = 8 * blockIdx.y + r;
    chain_wait();
    chain_next();
    const uint4 *from = (const uint4 *)(tower[1] + (at[1] + 8 * r6) * JOIN_D + 8 * ch);
    uint4 x[8];
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = 8 * r6 + j < n[1] && !(pick && j) ? from[j * (JOIN_D / 8)] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 8; j++) add_chunk(sum, x[j]);
    for (int c = 0; !pick && c < 8; c++) sum[c] *= unit_of(3);
    if (r6 < n[2]) *(uint4 *)(tower[2] + (at[2] + r6) * JOIN_D + 8 * ch) = pack8(sum);
    if (a.stages < 4) return;
    for (int c = 0; c < 8; c++) sums[r][8 * ch + c] = sum[c];
    __syncthreads();
    float all = sums[0][threadIdx.x];
    for (int j = 1; j < 8 && !pick; j++) all += sums[j][threadIdx.x];
    tower[3][(at[3] + blockIdx.y) * JOIN_D + threadIdx.x] =
        to_element(pick ? all : all * unit_of(3));
}

#if __CUDA_ARCH__ >= 900

/* ---- who works on what ---- */

struct item {
    int head, sequence, first; /* row of level 3 */
};

/* The newest rows first, as they may still be in the L2 cache: the end of each range that the
 * walking kernel has gone along. */
static __device__ __forceinline__ item find_item(const join_args &g, int n) {
    int all = g.chunks * g.a.sequences, head = n % g.a.q_heads, at = n / g.a.q_heads;
    int fold = all / g.a.ranges, turn = at / g.a.ranges;
    at = turn < fold ? (at - turn * g.a.ranges) * fold + fold - 1 - turn : at;
    int sequence = at / g.chunks;
    return {head, sequence, CHUNK * (at - sequence * g.chunks)};
}

/* ---- attending ---- */

static __device__ __forceinline__ void attenders_meet() {
    asm volatile("bar.sync 1, %0;" ::"n"((int)THREADS) : "memory");
}

static __device__ __forceinline__ void stash_tile(char *stash, const state<JOIN_D> &s, int lane) {
    int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int live = s.l[h] != 0;
        float inv = live ? __fdividef(1, s.l[h]) : 0;
#pragma unroll
        for (int i = 0; i < JOIN_D / 8; i++)
            *(uint32_t *)(stash + (g + 8 * h) * STASH_ROW + 16 * i + 4 * t) =
                pack2(s.o[i][2 * h] * inv, s.o[i][2 * h + 1] * inv);
        if (t == 0)
            ((float *)(stash + 16 * STASH_ROW))[g + 8 * h] =
                live ? s.m[h] + __log2f(s.l[h]) : HTI_NEG_INF;
    }
}

/* An item's rows of k and v on their way: each thread has 16 bytes of groups of four rows. */
template <int CAUSAL>
static __device__ __forceinline__ void fetch_rows(uint32_t to, const place &p, const source &k,
                                                  const source &v) {
    constexpr int CH = JOIN_D / 8, STEP = THREADS / CH;
    constexpr int GROUPS = (CHUNK + (CAUSAL ? 1 : 2) * HALO) / 4;
    int group = threadIdx.x / CH, ch = threadIdx.x % CH;
    to += 16 * threadIdx.x;
#pragma unroll
    for (int pass = 0; pass < 2; pass++, group += STEP) {
        if (group >= GROUPS) break;
        int r = 4 * group - HALO;
        const char *from_k = k.data + (int64_t)r * k.step + 16 * ch;
        const char *from_v = v.data + (int64_t)r * v.step + 16 * ch;
#pragma unroll
        for (int m = 0; m < 4; m++, to += 2 * PASS, from_k += k.step, from_v += v.step) {
            int there = p.first + r + m >= 0 && p.first + r + m < p.rows;
            copy_async_if(to, there ? from_k : k.data, there);
            copy_async_if(to + PASS, there ? from_v : v.data, there);
        }
    }
}

/* The same once they have arrived: each thread takes what it has asked for. */
template <int CAUSAL>
static __device__ __forceinline__ void raise_rows(shared_rows<JOIN_D> &sh, uint32_t from) {
    constexpr int CH = JOIN_D / 8, STEP = THREADS / CH;
    constexpr int GROUPS = (CHUNK + (CAUSAL ? 1 : 2) * HALO) / 4;
    int group = threadIdx.x / CH;
    quad_places to = find_quad<JOIN_D>(shared_address(sh.k), group, threadIdx.x % CH);
    from += 16 * threadIdx.x;
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
        if (group + pass * STEP >= GROUPS) break;
        quad q[2];
#pragma unroll
        for (int m = 0; m < 4; m++, from += 2 * PASS)
            q[0].x[m] = shared_load4(from), q[1].x[m] = shared_load4(from + PASS);
        store_quads<JOIN_D>(q, to, group + pass * STEP, pass * STEP);
    }
}

struct item_rows {
    source k, v, q;
};

static __device__ __forceinline__ void find_rows(place &p, item_rows &r, int &head,
                                                 const join_args &g, int n) {
    const hti_hier_args &a = g.a;
    item it = find_item(g, n);
    head = it.head;
    p.sequence = it.sequence, p.first = it.first, p.start = (int64_t)it.sequence * a.length;
    int kv = a.group == 1 ? head : head / a.group;
    r.k = source_of<0>(a, p, a.fk, nullptr, a.nk, kv);
    r.v = source_of<0>(a, p, a.fv, nullptr, a.nk, kv);
    r.q = source_of<0>(a, p, a.fq, nullptr, a.nq, head);
}

/* full, empty: this warp's barriers */
template <int PLAIN, int MODE>
static __device__ __forceinline__ void attend_all(char *shared, char *stash, uint32_t full,
                                                  uint32_t empty, const join_args &g) {
    constexpr int CAUSAL = groups<MODE, 0>::CAUSAL;
    const hti_hier_args &a = g.a;
    shared_rows<JOIN_D> &sh = *(shared_rows<JOIN_D> *)shared;
    uint32_t staged = shared_address(shared + AT_STAGED), turn = 0;
    int warp = warp_index(), lane = threadIdx.x % 32, t = lane & 3, row = 16 * warp + (lane >> 2);
    int head, next_head;
    place p, next;
    p.length = a.length, p.levels = levels_of(a.length), p.rows = (a.length + 7) >> 3;
    next = p;
    item_rows r;
    find_rows(next, r, next_head, g, blockIdx.x);
    fetch_rows<CAUSAL>(staged, next, r.k, r.v);
#pragma unroll 1
    for (int n = blockIdx.x; n < g.items;) {
        p = next, head = next_head;
        int inner = p.first >= HALO && p.first + CHUNK + HALO <= p.length >> 3;
        int plain = PLAIN || inner;
        frag<JOIN_D> q;
        float count[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            count[h] = plain ? 1 : count_of(a, p, r.q, p.first + row + 8 * h) * unit_of(3);
            load_row<JOIN_D>(q, h, (const element *)(r.q.data + (row + 8 * h) * r.q.step), t,
                             count[h] > 0 && p.first + 16 * warp < p.rows, a.zero);
        }
        copy_async_wait();
        attenders_meet(); /* nobody reads the rows of the item before */
        raise_rows<CAUSAL>(sh, staged);
        if (!plain) load_counts(sh, a, p, r.k);
        n += gridDim.x;
        if (n < g.items) {
            find_rows(next, r, next_head, g, n);
            fetch_rows<CAUSAL>(staged, next, r.k, r.v);
        }
        attenders_meet();
        if (p.first + 16 * warp >= p.rows) continue;
        state<JOIN_D> s;
        if (inner)
            attend_tile<JOIN_D, 1, MODE, 1, 0>(s, sh, a, p, q, count, head, warp, lane);
        else
            attend_tile<JOIN_D, PLAIN, MODE, 0, 0>(s, sh, a, p, q, count, head, warp, lane);
        if (turn > 0) barrier_wait(empty, (turn - 1) & 1);
        stash_tile(stash, s, lane);
        barrier_arrive(full);
        turn++;
    }
}

/* ---- merging ---- */

/* The 128 rows of level 0 of a warp's tile, one after the other for all items. Of a batch of 16
 * rows a lane has 16 bytes of every fourth one, and the first 16 lanes a row's lse each. */
struct stretch {
    int n, batch; /* item, batch in it */
    char *z;      /* this lane's share of the first row */
    int64_t at;   /* row `lane` over all heads and sequences */
    int left;     /* rows from the first on */
};

static __device__ __forceinline__ void start_stretch(stretch &s) {
    s.n = (int)blockIdx.x - (int)gridDim.x, s.batch = PER_TILE, s.left = 0;
}

/* The next batch that has rows, or 0. */
static __device__ __forceinline__ int next_batch(stretch &s, const join_args &g, int warp,
                                                 int lane) {
    const hti_hier_args &a = g.a;
    s.batch++;
    if (s.batch < PER_TILE && s.left > BATCH_ROWS * s.batch) return 1;
    for (s.n += gridDim.x; s.n < g.items; s.n += gridDim.x) {
        item it = find_item(g, s.n);
        int first = 8 * (it.first + 16 * warp);
        if (first >= a.length) continue;
        s.batch = 0, s.left = a.length - first;
        s.at = it.head * a.rows + (int64_t)it.sequence * a.length + first + lane % BATCH_ROWS;
        uint32_t at =
            it.sequence * a.fout.batch + it.head * a.fout.head + (first + (lane >> 3)) * a.fout.row;
        s.z = a.fout.data + (uint64_t)at * 8 + 16 * (lane & 7);
        return 1;
    }
    return 0;
}

static __device__ __forceinline__ void load_batch(uint32_t to, const stretch &s,
                                                  const hti_hier_args &a, int lane) {
    int left = s.left - BATCH_ROWS * s.batch;
    uint32_t step = 8 * a.fout.row;
    const char *z = s.z + (uint64_t)(BATCH_ROWS * s.batch * step);
    const float *lse = a.lse0 + s.at + BATCH_ROWS * s.batch;
    int bytes = lane < left ? 4 : 0;
    if (lane < BATCH_ROWS)
        asm volatile(
            "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + BATCH_LSE + 4 * lane),
            "l"(bytes ? lse : a.lse0), "r"(bytes));
    to += 16 * lane;
#pragma unroll
    for (int j = 0; j < BATCH_ROWS / 4; j++, z += 4 * step) {
        int there = 4 * j + (lane >> 3) < left;
        copy_async_if(to + 512 * j, there ? z : a.fout.data, there);
    }
}

/* A row's weights of the two results, and its lse. */
static __device__ __forceinline__ float share(float w[2], float lse0, float lse1) {
    float m = fmaxf(lse0, lse1), base = m == HTI_NEG_INF ? 0 : m;
    float x = exp2_fast(lse0 - base), y = exp2_fast(lse1 - base), sum = x + y;
    float inv = sum != 0 ? __fdividef(1, sum) : 0;
    w[0] = x * inv, w[1] = y * inv;
    return (m + __log2f(sum)) * HTI_LN2;
}

static __device__ __forceinline__ float shared_float(uint32_t at) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
    return x;
}

static __device__ __forceinline__ void store_lse(const hti_hier_args &a, const join_args &g,
                                                 const stretch &s, float lse, int warp, int lane) {
    if (a.saved) a.saved[s.at + BATCH_ROWS * s.batch] = lse;
    if (!a.lse.data) return;
    item it = find_item(g, s.n);
    int row = 8 * (it.first + 16 * warp) + BATCH_ROWS * s.batch + lane;
    ((float *)a.lse.data)[it.sequence * a.lse.batch_stride + it.head * a.lse.head_stride +
                          row * a.lse.row_stride] = lse;
}

/* 16 bytes that the cache gives up first: what is still to be read stays there. */
static __device__ __forceinline__ void store_once(char *at, uint4 x) {
    uint64_t first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    store_hinted(at, x, first);
}

/* x, lse0: the batch; stash: the tile */
static __device__ __forceinline__ void merge_batch(const uint4 x[BATCH_ROWS / 4], float lse0,
                                                   uint32_t stash, const stretch &s,
                                                   const join_args &g, int warp, int lane) {
    const hti_hier_args &a = g.a;
    int left = s.left - BATCH_ROWS * s.batch, sub = lane >> 3, r0 = BATCH_ROWS / 8 * s.batch;
    float w[2];
    float lse1 = shared_float(stash + 16 * STASH_ROW + 4 * (r0 + lane % BATCH_ROWS / 8));
    float lse = share(w, lse0, lse1);
    if (lane < left && lane < BATCH_ROWS && (a.saved || a.lse.data))
        store_lse(a, g, s, lse, warp, lane);
    uint32_t step = 8 * a.fout.row;
    char *z = s.z + (uint64_t)(BATCH_ROWS * s.batch * step);
    stash += r0 * STASH_ROW + 16 * (lane & 7);
#pragma unroll
    for (int r = 0; r < BATCH_ROWS / 8; r++) {
        float two[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        add_chunk(two, shared_load4(stash + r * STASH_ROW));
#pragma unroll
        for (int j = 2 * r; j < 2 * r + 2; j++, z += 4 * step) {
            float w0 = __shfl_sync(~0u, w[0], 4 * j + sub);
            float w1 = __shfl_sync(~0u, w[1], 4 * j + sub);
            float one[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            add_chunk(one, x[j]);
#pragma unroll
            for (int c = 0; c < 8; c++) one[c] = fmaf(one[c], w0, two[c] * w1);
            if (4 * j + sub < left) store_once(z, pack8(one));
        }
    }
}

static __device__ __forceinline__ void merge_all(uint32_t ring, uint32_t stash, uint32_t full,
                                                 uint32_t empty, const join_args &g) {
    int warp = warp_index() - WARPS, lane = threadIdx.x % 32, more = 1;
    stretch front, back;
    start_stretch(front), start_stretch(back);
    for (int i = 0; i < BATCHES; i++) {
        if (more) more = next_batch(front, g, warp, lane);
        if (more) load_batch(ring + i * BATCH, front, g.a, lane);
        copies_commit();
    }
    uint32_t slot = 0, turn = 0;
    while (next_batch(back, g, warp, lane)) {
        asm volatile("cp.async.wait_group %0;" ::"n"(BATCHES - 1) : "memory");
        uint32_t at = ring + slot * BATCH;
        float lse0 = HTI_NEG_INF;
        if (lane < BATCH_ROWS) lse0 = shared_float(at + BATCH_LSE + 4 * lane);
        uint4 x[BATCH_ROWS / 4];
#pragma unroll
        for (int j = 0; j < BATCH_ROWS / 4; j++) x[j] = shared_load4(at + 512 * j + 16 * lane);
        if (more) more = next_batch(front, g, warp, lane);
        if (more) load_batch(at, front, g.a, lane);
        copies_commit();
        slot = slot == BATCHES - 1 ? 0 : slot + 1;
        if (back.batch == 0) {
            if (turn > 0) barrier_arrive(empty); /* done with the tile before */
            barrier_wait(full, turn++ & 1);
        }
        merge_batch(x, lse0, stash, back, g, warp, lane);
    }
}
#endif

template <int PLAIN, int MODE>
__global__ void __launch_bounds__(JOIN_THREADS, 1) hier_join(const __grid_constant__ join_args g) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared_bytes[];
    uint32_t barriers = shared_address(shared_bytes + AT_BARRIERS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * WARPS; i++) barrier_make(barriers + 8 * i, 32);
        barriers_made();
    }
    __syncthreads();
    if (g.a.stages == 2) chain_wait(); /* for the walk; else a stage above has waited */
    int warp = warp_index();
    uint32_t full = barriers + 8 * (warp % WARPS), empty = full + 8 * WARPS;
    char *stash = shared_bytes + AT_STASH + warp % WARPS * STASH;
    if (warp < WARPS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
#endif
        attend_all<PLAIN, MODE>(shared_bytes, stash, full, empty, g);
    } else {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
#endif
        merge_all(shared_address(shared_bytes + AT_RING) + warp % WARPS * RING,
                  shared_address(stash), full, empty, g);
    }
#endif
}

/* ---- host ---- */

ht_status hti_walk_lift(ht_context *ctx, const hti_hier_args &a) {
    dim3 grid((unsigned)(a.q_heads + 2 * a.kv_heads),
              (unsigned)((hti_clusters(a.length, 6) + 7) / 8), (unsigned)a.sequences);
    return launch_chained(ctx, hier_lift, "hier_lift", grid, 64, 0, a);
}

ht_status hti_walk_join(ht_context *ctx, const hti_hier_args &a) {
    join_args g = {};
    int processors = hti_cuda_of(ctx)->processors, plain = hti_hier_whole(a.length, 1);
    g.a = a;
    g.chunks = (int)((hti_clusters(a.length, 3) + CHUNK - 1) / CHUNK);
    g.items = g.chunks * a.sequences * a.q_heads;
    void (*kernel)(join_args) =
        a.query == HT_QUERY_MEAN ? (plain ? hier_join<1, MEAN> : hier_join<0, MEAN>)
        : a.causal               ? (plain ? hier_join<1, FIRST_CAUSAL> : hier_join<0, FIRST_CAUSAL>)
                                 : hier_join<0, FIRST>;
    dim3 grid((unsigned)(g.items < processors ? g.items : processors));
    return launch_chained(ctx, kernel, "hier_join", grid, JOIN_THREADS, JOIN_SHARED, g);
}

} // namespace HTI_KERNELS
