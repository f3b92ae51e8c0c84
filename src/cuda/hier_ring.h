/*
 * Rows of a sequence in shared memory, as a thread block that walks along it sees them: q, k, v and
 * G (dout, weighted) of a stage's level for four steps of 64 rows, and of the two levels above for
 * three. Four warps bring them and add up the levels; the others work on them.
 *
 * At step i of a walk the workers see steps i - 1, i and i + 1. Meanwhile step i + 2 is on its way,
 * and the levels above of step i + 1 are added up: the workers begin with the stage's own level.
 */
#ifndef HTI_HIER_RING_H
#define HTI_HIER_RING_H

#include "cuda/hier_place.h"

enum { D = 64, ROW = 2 * D, STEP = 64, TILES = STEP / 16 };
enum { AHEAD = 4, KEPT = 3 };                                      /* steps: own, coarse rows */
enum { FINE_GROUPS = 8 * AHEAD, GROUPS = FINE_GROUPS + 6 * KEPT }; /* of 8 rows */
enum { Q, K, V, G, TENSORS };

#define POS_INF __int_as_float(0x7f800000)
#define LOG2E 1.4426950408889634f
#define LN2 0.69314718055994531f

/* A step has 8 groups of 8 rows of its own level, then 4 and 2 of the levels above. */
struct ring {
    bf16 x[TENSORS][GROUPS][8 * D]; /* chunks of 16 bytes are turned by the row */
    float2 n[GROUPS][8]; /* of each row as a query: m (log2 units; inf: takes no part), h */
    uint32_t up[AHEAD][3][8][D / 2]; /* gradients of the stage above, of the step's 8 parents */
};

static __device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
    return (uint32_t)(row * ROW + ((chunk ^ (row & 7)) << 4));
}

/* ---- barriers of a step ---- */

/* All: the rows of the next step are there, and the last step is done with. */
static __device__ __forceinline__ void step_begins() { __syncthreads(); }

/* The levels above of the next step are there: the one side arrives, the other waits. */
static __device__ __forceinline__ void raised_arrive() {
    __threadfence_block();
    asm volatile("bar.arrive 1, 384;" ::: "memory");
}

static __device__ __forceinline__ void raised_wait() {
    asm volatile("bar.sync 1, 384;" ::: "memory");
}

/* ---- along the rows ---- */

/* A place that moves along the rows of a tensor, step by step, and from sequence to sequence. */
struct cursor {
    const char *at;
    int64_t row, jump; /* bytes: from row to row; beyond the end of a sequence */
};

static __device__ __forceinline__ cursor make_cursor(const void *data, int64_t row, int64_t batch,
                                                     int rows, int sequence, int first) {
    cursor c;
    c.row = 2 * row, c.jump = 2 * (batch - rows * row);
    c.at = (const char *)data + 2 * (sequence * batch + first * row);
    return c;
}

static __device__ __forceinline__ void advance(cursor &c, int ends) {
    c.at += STEP * c.row + (ends ? c.jump : 0);
}

/* Rows of a head. */
struct row_source {
    const bf16 *x[TENSORS];
    int64_t batch[TENSORS], row[TENSORS];
    const float *m, *h;
};

template <int BASE>
static __device__ __forceinline__ void find_source(row_source &s, const hti_hier_args &a,
                                                   int head) {
    int64_t rows = hti_clusters(a.length, 3 * a.stage);
    if (BASE) {
        const ht_tensor *t[TENSORS] = {&a.q, &a.k, &a.v, &a.dout};
#pragma unroll
        for (int i = 0; i < TENSORS; i++) {
            s.x[i] = (const bf16 *)t[i]->data + head * t[i]->head_stride;
            s.batch[i] = t[i]->batch_stride, s.row[i] = t[i]->row_stride;
        }
        s.m = a.saved + head * a.rows, s.h = a.th[0] + head * a.rows;
    } else {
        int64_t at = head * a.tower[a.stage];
        const bf16 *t[TENSORS] = {a.tq[a.stage], a.tk[a.stage], a.tv[a.stage], a.tg[a.stage]};
#pragma unroll
        for (int i = 0; i < TENSORS; i++)
            s.x[i] = t[i] + at * D, s.batch[i] = rows * D, s.row[i] = D;
        s.m = a.tm[a.stage] + at, s.h = a.th[a.stage] + at;
    }
}

/* ---- the two levels above ---- */

/* A row's weight in a cluster of smallest m; a row that takes no part has m = inf. */
static __device__ __forceinline__ float weight(float m, float from) {
    return from == POS_INF ? 0 : exp2_fast(m - from);
}

static __device__ __forceinline__ void add_scaled(float sum[8], uint4 x, float w) {
    uint32_t r[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = unpack2(r[i]);
        sum[2 * i] += w * f.x, sum[2 * i + 1] += w * f.y;
    }
}

/* G of a pair, which is also added to that of its quad (smallest m: m4). */
static __device__ __forceinline__ uint4 join_pair(float four[8], uint4 x, uint4 y, float2 nx,
                                                  float2 ny, float m4) {
    float two[8] = {0, 0, 0, 0, 0, 0, 0, 0}, m = fminf(nx.x, ny.x), w = weight(m4, m);
    add_scaled(two, x, weight(m, nx.x));
    add_scaled(two, y, weight(m, ny.x));
#pragma unroll
    for (int c = 0; c < 8; c++) four[c] += w * two[c];
    return pack8(two);
}

/* Chunk of four rows of q, k or v: their sums, or in mode first the first one. */
static __device__ __forceinline__ void raise_sum(uint32_t base, const uint32_t from[4],
                                                 const uint32_t to[3], int sum) {
    uint4 x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = shared_load4(base + from[j]);
    uint4 lo = sum ? add8(x[0], x[1]) : x[0], hi = sum ? add8(x[2], x[3]) : x[2];
    shared_store4(base + to[0], lo);
    shared_store4(base + to[1], hi);
    shared_store4(base + to[2], sum ? add8(lo, hi) : lo);
}

/* Both levels above of a step; each of 128 threads takes a chunk of four rows of all tensors. */
static __device__ __forceinline__ void raise_all(ring &r, int slot, int kept, int mean, int me) {
    int quad = me >> 3, chunk = me & 7;
    uint32_t base = shared_address(r.x[0][0]), from[4], to[3];
    uint32_t fine = 8 * slot * 8 * ROW, coarse = (FINE_GROUPS + 6 * kept) * 8 * ROW;
#pragma unroll
    for (int j = 0; j < 4; j++) from[j] = fine + chunk_at(4 * quad + j, chunk);
    to[0] = coarse + chunk_at(2 * quad, chunk), to[1] = coarse + chunk_at(2 * quad + 1, chunk);
    to[2] = coarse + 32 * ROW + chunk_at(quad, chunk);
    constexpr uint32_t ACROSS = sizeof r.x[0];
    const float4 *n = (const float4 *)(&r.n[8 * slot][0] + 4 * quad);
    float4 n01 = n[0], n23 = n[1];
    uint4 x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = shared_load4(base + G * ACROSS + from[j]);
    raise_sum(base + Q * ACROSS, from, to, mean);
    raise_sum(base + K * ACROSS, from, to, 1);
    raise_sum(base + V * ACROSS, from, to, 1);
    float four[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    float m = fminf(fminf(n01.x, n01.z), fminf(n23.x, n23.z));
    uint4 lo = join_pair(four, x[0], x[1], make_float2(n01.x, n01.y), make_float2(n01.z, n01.w), m);
    uint4 hi = join_pair(four, x[2], x[3], make_float2(n23.x, n23.y), make_float2(n23.z, n23.w), m);
    shared_store4(base + G * ACROSS + to[0], lo);
    shared_store4(base + G * ACROSS + to[1], hi);
    shared_store4(base + G * ACROSS + to[2], pack8(four));
    if (chunk < 3) { /* m and h of the two pairs and of the quad */
        float2 a = chunk == 1 ? make_float2(n23.x, n23.y) : make_float2(n01.x, n01.y);
        float2 b = chunk == 1 ? make_float2(n23.z, n23.w) : make_float2(n01.z, n01.w);
        float top = chunk == 2 ? m : fminf(a.x, b.x);
        float h = weight(top, a.x) * a.y + weight(top, b.x) * b.y;
        if (chunk == 2) h += weight(m, n23.x) * n23.y + weight(m, n23.z) * n23.w;
        (&r.n[FINE_GROUPS + 6 * kept][0])[chunk < 2 ? 2 * quad + chunk : 32 + quad] =
            make_float2(top, h);
    }
}

/* ---- the rows come in ---- */

/* One chunk of every 16th row of a step of one tensor. */
static __device__ __forceinline__ void fetch_tensor(uint32_t to, const cursor &c) {
    const char *from = c.at;
#pragma unroll
    for (int i = 0; i < 4; i++, from += 16 * c.row) copy_async(to + i * 16 * ROW, from);
}

/* What brings the rows of a head: this thread's places, and which step comes next. */
struct bringer {
    cursor x[TENSORS], up[3];
    const float *m, *h; /* of this thread's row of the step (threads 0 ... 63) */
    int ahead, total, steps, step;
};

/* Starts the copies of a step's rows. */
template <int BASE>
static __device__ __forceinline__ void bring(ring &r, const bringer &b, int slot, int me) {
    int row = me >> 3, chunk = me & 7;
    uint32_t to = shared_address(r.x[0][8 * slot]) + chunk_at(row, chunk);
#pragma unroll
    for (int i = 0; i < TENSORS; i++) fetch_tensor(to + i * (uint32_t)sizeof r.x[0], b.x[i]);
}

/* The gradients of their parents. */
static __device__ __forceinline__ void bring_up(ring &r, const bringer &b, int slot, int me) {
    int row = me >> 3 & 7, chunk = me & 7;
    uint32_t to = shared_address(&r.up[slot][0][0][0]) + row * ROW + chunk * 16;
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (me < 64) copy_async(to + i * 8 * ROW, b.up[i].at);
}

/* One step on; at the end of all rows it stays. */
static __device__ __forceinline__ void bring_on(bringer &b) {
    if (b.ahead + 1 >= b.total) return;
    b.ahead++;
    int ends = ++b.step == b.steps;
    if (ends) b.step = 0;
#pragma unroll
    for (int i = 0; i < TENSORS; i++) advance(b.x[i], ends);
#pragma unroll
    for (int i = 0; i < 3; i++) b.up[i].at += 8 * ROW;
    b.m += STEP, b.h += STEP;
}

template <int BASE> static __device__ __forceinline__ float2 settle_numbers(float2 n) {
    if (BASE) n.x = n.x > HTI_NEG_INF ? n.x * LOG2E : POS_INF;
    return n;
}

/* All steps of a walk; 128 threads. At the ends of all rows another step stands in for one that is
 * not there; nobody looks at it. */
template <int BASE>
static __device__ __forceinline__ void bring_rows(ring &r, const hti_hier_args &a, int head,
                                                  int begin, int end, int steps, int total,
                                                  int me) {
    row_source src;
    find_source<BASE>(src, a, head);
    int mean = a.query == HT_QUERY_MEAN, has_up = a.stage + 1 < a.stages, up = a.stage + has_up;
    bringer b;
    b.ahead = begin > 0 ? begin - 1 : 0, b.total = total, b.steps = steps;
    int sequence = b.ahead / steps, row = me >> 3, chunk = me & 7;
    b.step = b.ahead - sequence * steps;
#pragma unroll
    for (int i = 0; i < TENSORS; i++)
        b.x[i] = make_cursor(src.x[i] + 8 * chunk, src.row[i], src.batch[i], steps * STEP, sequence,
                             b.step * STEP + row);
    bf16 *const from[3] = {a.gq[up], a.gk[up], a.gv[up]};
#pragma unroll
    for (int i = 0; i < 3; i++)
        b.up[i].at =
            has_up ? (const char *)(from[i] +
                                    (head * a.tower[up] + (int64_t)b.ahead * 8 + (row & 7)) * D +
                                    8 * chunk)
                   : nullptr;
    b.m = src.m + b.ahead * STEP + (me & 63), b.h = src.h + b.ahead * STEP + (me & 63);
    float2 number;
    for (int i = 0; i < 3; i++) { /* the step before the first, the first, and the next */
        bring<BASE>(r, b, i, me);
        asm volatile("cp.async.commit_group;" ::: "memory");
        number = make_float2(*b.m, *b.h);
        if (me < STEP) (&r.n[8 * i][0])[me] = settle_numbers<BASE>(number);
        if (i == 0 && begin == 0) continue; /* no step before it: the first stands in */
        if (i < 2) bring_on(b);
    }
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    asm volatile("bar.sync 2, 128;" ::: "memory");
    raise_all(r, 0, 0, mean, me);
    raise_all(r, 1, 1, mean, me);
    if (a.stage < a.stages - 1) chain_wait(); /* for the gradients of the stage above */
    if (has_up) {                             /* of steps 1 and 2 in the ring */
        bringer c = b;
        int back = b.ahead > begin; /* else there is no next one */
        for (int i = 0; i < 3; i++) c.up[i].at -= back * 8 * ROW;
        bring_up(r, c, 1, me);
        bring_up(r, b, 2, me);
    }
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    for (int i = 1; i <= end - begin; i++) {
        step_begins();
        bring_on(b);
        bring<BASE>(r, b, (i + 2) % AHEAD, me);
        if (has_up) bring_up(r, b, (i + 2) % AHEAD, me);
        asm volatile("cp.async.commit_group;" ::: "memory");
        number = make_float2(*b.m, *b.h);
        raise_all(r, (i + 1) % AHEAD, (i + 1) % KEPT, mean, me);
        raised_arrive();
        if (me < STEP) (&r.n[8 * ((i + 2) % AHEAD)][0])[me] = settle_numbers<BASE>(number);
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
}

#endif
