/*
 * Rows of a sequence in shared memory, as a thread block that walks along it sees them: q, k, v and
 * G (dout, weighted) of a stage's level for four steps of 64 rows, and of the two levels above for
 * three. One warpgroup brings them and adds up the levels; the others work on them.
 *
 * At step i of a walk the workers see steps i - 1, i and i + 1. Meanwhile step i + 2 is on its way,
 * and the levels above of step i + 1 are added up: the workers begin with the stage's own level.
 *
 * Rows come and gradients go by tensor copies (cp.async.bulk.tensor), which turn the chunks of a
 * row as the workers want them: what limits the workers is how much they move through shared
 * memory, and such copies take another way.
 */
#ifndef HTI_CUDA_TOWER_RING_H
#define HTI_CUDA_TOWER_RING_H

#include <cuda.h>

#include "cuda/barrier.h"
#include "cuda/hier_place.h"

namespace HTI_KERNELS {

enum { D = 64, ROW = 2 * D, STEP = 64, TILES = STEP / 16 };
enum { FINE = 4, COARSE = 3, PARENTS = 2 };                         /* steps that are kept */
enum { FINE_GROUPS = 8 * FINE, GROUPS = FINE_GROUPS + 6 * COARSE }; /* of 8 rows */
enum { Q, K, V, G, TENSORS };

/* A step has 8 groups of 8 rows of its own level, then 4 and 2 of the levels above. */
struct ring {
    element x[TENSORS][GROUPS][8 * D]; /* chunks of 16 bytes are turned by the row */
    element out[TILES][2][16 * D];     /* dk and dv on their way out */
    element up[PARENTS][3][8 * D];     /* gradients of the rows' 8 parents: q, k, v */
    float2 n[GROUPS][8];               /* as queries: m (log2 units; inf: takes no part), h */
    /* barriers: a step's rows and numbers are there; levels above of the next step are, and the
     * gradients of the step's parents; the workers have done a step */
    uint64_t full[FINE], levels, done;
};

/* in: q, k, v, G, boxes of a step's rows; out: dq, dk, dv, of a tile's. All are columns, rows of a
 * sequence, heads, sequences. */
struct grad_args {
    hti_hier_args a;
    CUtensorMap in[TENSORS], out[3];
};

static __device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
    return (uint32_t)(row * ROW + ((chunk ^ (row & 7)) << 4));
}

/* First group of a step: of its own rows, and of those of the levels above. */
static __device__ __forceinline__ int fine_at(int i) { return 8 * (i % FINE); }
static __device__ __forceinline__ int coarse_at(int i) { return FINE_GROUPS + 6 * (i % COARSE); }

/* ---- barriers ---- */

/* There is none for all: who is done with a step begins the next one, while others are at work on
 * their last levels. */
enum { LOADERS = 128, WORKERS = 64 * TILES }; /* threads */

static __device__ __forceinline__ void make_barriers(ring &r) {
    for (int i = 0; i < FINE; i++) barrier_make(shared_address(&r.full[i]), LOADERS + 1);
    barrier_make(shared_address(&r.levels), LOADERS);
    barrier_make(shared_address(&r.done), WORKERS);
    barriers_made();
}

/* What this thread has done so far. */
static __device__ __forceinline__ void arrive(const uint64_t *b) {
    barrier_arrive(shared_address(b));
}

static __device__ __forceinline__ void wait_for(const uint64_t *b, int phase) {
    barrier_wait(shared_address(b), phase & 1);
}

/* Until the rows of step i are there; the levels above of step i + 1; step i is done (i >= 1). */
static __device__ __forceinline__ void rows_wait(const ring &r, int i) {
    wait_for(&r.full[i % FINE], i / FINE);
}

static __device__ __forceinline__ void levels_wait(const ring &r, int i) {
    wait_for(&r.levels, i - 1);
}

static __device__ __forceinline__ void done_wait(const ring &r, int i) { wait_for(&r.done, i - 1); }

/* The gradients of the first step's parents are there. */
static __device__ __forceinline__ void parents_arrive() {
    asm volatile("bar.arrive 3, 384;" ::: "memory");
}

static __device__ __forceinline__ void parents_wait() {
    asm volatile("bar.sync 3, 384;" ::: "memory");
}

/* ---- tensor copies ---- */

/* Rows of step i of the walk; one thread. */
static __device__ __forceinline__ void bring_step(ring &r, const grad_args &g, int i, int row,
                                                  int head, int sequence) {
    uint32_t full = shared_address(&r.full[i % FINE]), to = shared_address(r.x[0][fine_at(i)]);
    barrier_expect(full, TENSORS * STEP * ROW);
#pragma unroll
    for (int t = 0; t < TENSORS; t++)
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::"
            "bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to + t * (uint32_t)sizeof r.x[0]),
            "l"(&g.in[t]), "r"(0), "r"(row), "r"(head), "r"(sequence), "r"(full)
            : "memory");
}

/* A tile's rows; one thread, after the others have shown theirs by tile_written. */
static __device__ __forceinline__ void send_tile(const CUtensorMap *map, uint32_t from, int row,
                                                 int head, int sequence) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                 "[%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
                 "r"(0), "r"(row), "r"(head), "r"(sequence), "r"(from)
                 : "memory");
}

static __device__ __forceinline__ void tile_written() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
}

static __device__ __forceinline__ void tiles_sent() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* What this thread has sent was read, or (done) also written. */
static __device__ __forceinline__ void tiles_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

static __device__ __forceinline__ void tiles_done() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- the levels above ---- */

/* A row's weight in a cluster of smallest m; a row that takes no part has m = inf. */
static __device__ __forceinline__ float weight(float m, float from) {
    return from == HTI_POS_INF ? 0 : exp2_fast(m - from);
}

static __device__ __forceinline__ void add_scaled(float sum[8], uint4 x, float w) {
    uint32_t r[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = unpack2(r[i]);
        sum[2 * i] += w * f.x, sum[2 * i + 1] += w * f.y;
    }
}

/* G of a pair, which is also added to that of its quad (smallest m: top). */
static __device__ __forceinline__ uint4 join_pair(float four[8], uint4 x, uint4 y, float mx,
                                                  float my, float top) {
    float two[8] = {0, 0, 0, 0, 0, 0, 0, 0}, m = fminf(mx, my), w = weight(top, m) * unit_of(1);
    add_scaled(two, x, weight(m, mx) * unit_of(1));
    add_scaled(two, y, weight(m, my) * unit_of(1));
#pragma unroll
    for (int c = 0; c < 8; c++) four[c] += w * two[c];
    return pack8(two);
}

/* Chunk of four rows of q, k or v: their sums, or in mode first the first one. */
static __device__ __forceinline__ void join_quad(uint32_t base, const uint32_t from[4],
                                                 const uint32_t to[3], int sum) {
    uint4 x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = shared_load4(base + from[j]);
    uint4 lo = sum ? join8(x[0], x[1]) : x[0], hi = sum ? join8(x[2], x[3]) : x[2];
    shared_store4(base + to[0], lo);
    shared_store4(base + to[1], hi);
    shared_store4(base + to[2], sum ? join8(lo, hi) : lo);
}

/* m and h of a cluster of 2^level rows: two or (b given) four. */
static __device__ __forceinline__ float2 join_numbers(float4 a, float4 b, int level) {
    float m = fminf(fminf(a.x, a.z), fminf(b.x, b.z));
    float h =
        weight(m, a.x) * a.y + weight(m, a.z) * a.w + weight(m, b.x) * b.y + weight(m, b.z) * b.w;
    return make_float2(m, h * unit_of(level));
}

/* Both levels above of step i; each of 128 threads takes a chunk of four rows of all tensors. */
static __device__ __forceinline__ void raise_step(ring &r, int i, int mean, int me) {
    int quad = me >> 3, chunk = me & 7;
    uint32_t base = shared_address(r.x[0][0]), from[4], to[3];
    uint32_t fine = fine_at(i) * 8 * ROW, coarse = coarse_at(i) * 8 * ROW;
    constexpr uint32_t ACROSS = sizeof r.x[0];
#pragma unroll
    for (int j = 0; j < 4; j++) from[j] = fine + chunk_at(4 * quad + j, chunk);
    to[0] = coarse + chunk_at(2 * quad, chunk), to[1] = coarse + chunk_at(2 * quad + 1, chunk);
    to[2] = coarse + 32 * ROW + chunk_at(quad, chunk);
    const float4 *n = (const float4 *)(&r.n[fine_at(i)][0] + 4 * quad);
    float4 lo = n[0], hi = n[1], none = make_float4(HTI_POS_INF, 0, HTI_POS_INF, 0);
    uint4 x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = shared_load4(base + G * ACROSS + from[j]);
    join_quad(base + Q * ACROSS, from, to, mean);
    join_quad(base + K * ACROSS, from, to, 1);
    join_quad(base + V * ACROSS, from, to, 1);
    float four[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    float top = fminf(fminf(lo.x, lo.z), fminf(hi.x, hi.z));
    uint4 g0 = join_pair(four, x[0], x[1], lo.x, lo.z, top);
    uint4 g1 = join_pair(four, x[2], x[3], hi.x, hi.z, top);
    shared_store4(base + G * ACROSS + to[0], g0);
    shared_store4(base + G * ACROSS + to[1], g1);
    shared_store4(base + G * ACROSS + to[2], pack8(four));
    float2 *up = &r.n[coarse_at(i)][0];
    if (chunk < 2) up[2 * quad + chunk] = join_numbers(chunk ? hi : lo, none, 1);
    if (chunk == 2) up[32 + quad] = join_numbers(lo, hi, 2);
}

/* ---- the rows come in ---- */

/* What brings the rows of a head: where it is (step `step` of a sequence, `ahead` of all), and this
 * thread's places. */
struct bringer {
    const char *up[3];
    const float *m, *h;
    int ahead, total, sequence, step, steps;
};

template <int BASE>
static __device__ __forceinline__ void find_rows(bringer &b, const hti_hier_args &a, int head,
                                                 int me) {
    int s = a.stage, up = s + 1 < a.stages ? s + 1 : s, row = me >> 3, chunk = me & 7;
    b.sequence = b.ahead / b.steps;
    b.step = b.ahead - b.sequence * b.steps;
    const element *g[3] = {a.gq[up], a.gk[up], a.gv[up]};
    int64_t parent = head * a.tower[up] + (int64_t)b.ahead * (STEP / 8) + (row & 7);
#pragma unroll
    for (int i = 0; i < 3; i++) b.up[i] = (const char *)(g[i] + parent * D + 8 * chunk);
    int64_t at = head * (BASE ? a.rows : a.tower[s]) + (int64_t)b.ahead * STEP + me % STEP;
    b.m = (BASE ? a.saved : a.tm[s]) + at, b.h = a.th[s] + at;
}

/* The gradients of a step's parents; threads 0 ... 63. back: steps to go back for them */
static __device__ __forceinline__ void bring_parents(ring &r, const bringer &b, int i, int back,
                                                     int me) {
    uint32_t to = shared_address(r.up[i % PARENTS][0]) + chunk_at(me >> 3 & 7, me & 7);
#pragma unroll
    for (int t = 0; t < 3; t++)
        if (me < STEP) copy_async(to + t * 8 * ROW, b.up[t] - back * (STEP / 8) * ROW);
}

/* One step on; behind the last one it stays. */
static __device__ __forceinline__ void move_on(bringer &b) {
    if (b.ahead + 1 >= b.total) return;
    b.ahead++;
    if (++b.step == b.steps) b.step = 0, b.sequence++;
#pragma unroll
    for (int i = 0; i < 3; i++) b.up[i] += STEP / 8 * ROW;
    b.m += STEP, b.h += STEP;
}

template <int BASE>
static __device__ __forceinline__ void write_numbers(ring &r, float m, float h, int i, int me) {
    if (BASE) m = m > HTI_NEG_INF ? m * HTI_LOG2E : HTI_POS_INF; /* lse, natural units */
    if (me < STEP) (&r.n[fine_at(i)][0])[me] = make_float2(m, h);
    arrive(&r.full[i % FINE]);
}

/* Steps 0, 1 and 2 of the ring: the one before the walk's first, the first, the next. At the ends
 * of all rows another step stands in for one that is not there; nobody looks at it. */
template <int BASE>
static __device__ __forceinline__ void bring_first(ring &r, bringer &b, const grad_args &g,
                                                   int head, int begin, int mean, int me) {
    for (int i = 0; i < 3; i++) {
        if (me == 0) bring_step(r, g, i, b.step * STEP, head, b.sequence);
        write_numbers<BASE>(r, *b.m, *b.h, i, me);
        if (i == 1 || (i == 0 && begin > 0)) move_on(b);
    }
    rows_wait(r, 0);
    rows_wait(r, 1);
    raise_step(r, 0, mean, me);
    raise_step(r, 1, mean, me);
}

/* All steps of a walk; 128 threads. */
template <int BASE>
static __device__ __forceinline__ void bring_rows(ring &r, const grad_args &g, int head, int begin,
                                                  int end, int steps, int me) {
    const hti_hier_args &a = g.a;
    int mean = a.query == HT_QUERY_MEAN, has_up = a.stage < a.stages - 1, last = end - begin;
    bringer b;
    b.ahead = begin > 0 ? begin - 1 : 0, b.total = steps * a.sequences, b.steps = steps;
    find_rows<BASE>(b, a, head, me);
    bring_first<BASE>(r, b, g, head, begin, mean, me);
    for (int i = 1; i <= last; i++) {
        if (i > 1) done_wait(r, i - 1);
        move_on(b);
        if (i < last && me == 0) bring_step(r, g, i + 2, b.step * STEP, head, b.sequence);
        float m = *b.m, h = *b.h; /* on their way while the levels are added up */
        rows_wait(r, i + 1);
        raise_step(r, i + 1, mean, me);
        arrive(&r.levels);
        if (i < last) write_numbers<BASE>(r, m, h, i + 2, me);
        if (has_up && i == 1) {
            chain_wait(); /* for the gradients of the stage above */
            bring_parents(r, b, 1, b.ahead - begin, me);
        }
        if (has_up && i < last) bring_parents(r, b, i + 1, b.ahead - begin - i, me);
        copy_async_wait();
        if (has_up && i == 1) parents_arrive();
    }
}

} // namespace HTI_KERNELS

#endif
