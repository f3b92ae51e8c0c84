/*
 * Rows of a sequence in shared memory, as a thread block that walks along it sees them: q, k, v and
 * G (dout, weighted) of a stage's level for four steps of 64 rows, and of the two levels above for
 * three. One warpgroup brings them and adds up the levels; the others work on them.
 *
 * At step i of a walk the workers see steps i - 1, i and i + 1. Meanwhile step i + 2 is on its way,
 * and the levels above of step i + 1 are added up: the workers begin with the stage's own level.
 */
#ifndef HTI_HIER_RING_H
#define HTI_HIER_RING_H

#include "cuda/hier_place.h"

enum { D = 64, ROW = 2 * D, STEP = 64, TILES = STEP / 16 };
enum { FINE = 4, COARSE = 3 };                                      /* steps that are kept */
enum { FINE_GROUPS = 8 * FINE, GROUPS = FINE_GROUPS + 6 * COARSE }; /* of 8 rows */
enum { Q, K, V, G, TENSORS };

/* A step has 8 groups of 8 rows of its own level, then 4 and 2 of the levels above. */
struct ring {
    bf16 x[TENSORS][GROUPS][8 * D]; /* chunks of 16 bytes are turned by the row */
    bf16 up[FINE][3][8 * D];        /* gradients of the rows' 8 parents: q, k, v */
    float2 n[GROUPS][8];            /* as queries: m (log2 units; inf: takes no part), h */
};

static __device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
    return (uint32_t)(row * ROW + ((chunk ^ (row & 7)) << 4));
}

/* First group of a step: of its own rows, and of those of the levels above. */
static __device__ __forceinline__ int fine_at(int i) { return 8 * (i % FINE); }
static __device__ __forceinline__ int coarse_at(int i) { return FINE_GROUPS + 6 * (i % COARSE); }

/* ---- barriers of a step ---- */

/* All: the rows of the next step are there, and the last step is done with. */
static __device__ __forceinline__ void step_begins() { __syncthreads(); }

/* The levels above of the next step are there: the one side arrives, the other waits. */
static __device__ __forceinline__ void levels_arrive() {
    asm volatile("bar.arrive 1, 384;" ::: "memory");
}

static __device__ __forceinline__ void levels_wait() {
    asm volatile("bar.sync 1, 384;" ::: "memory");
}

/* ---- along the rows ---- */

/* A place that moves along a tensor by steps, and from sequence to sequence. */
struct cursor {
    const char *at;
    int64_t row, jump; /* bytes from row to row; beyond the end of a sequence */
};

/* Row `first` of a sequence of `rows` rows; strides in elements. */
static __device__ __forceinline__ cursor make_cursor(const void *data, int64_t row, int64_t batch,
                                                     int rows, int sequence, int first) {
    cursor c = {(const char *)data + 2 * (sequence * batch + first * row), 2 * row,
                2 * (batch - rows * row)};
    return c;
}

static __device__ __forceinline__ void advance(cursor &c, int ends) {
    c.at += STEP * c.row + (ends ? c.jump : 0);
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
    float two[8] = {0, 0, 0, 0, 0, 0, 0, 0}, m = fminf(mx, my), w = weight(top, m);
    add_scaled(two, x, weight(m, mx));
    add_scaled(two, y, weight(m, my));
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
    uint4 lo = sum ? add8(x[0], x[1]) : x[0], hi = sum ? add8(x[2], x[3]) : x[2];
    shared_store4(base + to[0], lo);
    shared_store4(base + to[1], hi);
    shared_store4(base + to[2], sum ? add8(lo, hi) : lo);
}

/* m and h of a cluster of two or (b given) four rows. */
static __device__ __forceinline__ float2 join_numbers(float4 a, float4 b) {
    float m = fminf(fminf(a.x, a.z), fminf(b.x, b.z));
    return make_float2(m, weight(m, a.x) * a.y + weight(m, a.z) * a.w + weight(m, b.x) * b.y +
                              weight(m, b.z) * b.w);
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
    if (chunk < 2) up[2 * quad + chunk] = join_numbers(chunk ? hi : lo, none);
    if (chunk == 2) up[32 + quad] = join_numbers(lo, hi);
}

/* ---- the rows come in ---- */

/* What brings the rows of a head: where it is (step `step` of a sequence, `ahead` of all), and this
 * thread's places. */
struct bringer {
    cursor x[TENSORS];
    const char *up[3];
    const float *m, *h;
    int ahead, total, step, steps;
};

template <int BASE>
static __device__ __forceinline__ void find_rows(bringer &b, const hti_hier_args &a, int head,
                                                 int me) {
    int s = a.stage, up = s + 1 < a.stages ? s + 1 : s, row = me >> 3, chunk = me & 7;
    int sequence = b.ahead / b.steps, rows = b.steps * STEP;
    b.step = b.ahead - sequence * b.steps;
    int64_t tower = head * a.tower[s], first = b.step * STEP + row;
    const ht_tensor *t[TENSORS] = {&a.q, &a.k, &a.v, &a.dout};
    const bf16 *x[TENSORS] = {a.tq[s], a.tk[s], a.tv[s], a.tg[s]};
#pragma unroll
    for (int i = 0; i < TENSORS; i++) {
        if (BASE)
            b.x[i] = make_cursor((const bf16 *)t[i]->data + head * t[i]->head_stride + 8 * chunk,
                                 t[i]->row_stride, t[i]->batch_stride, rows, sequence, (int)first);
        else
            b.x[i] = make_cursor(x[i] + tower * D + 8 * chunk, D, (int64_t)rows * D, rows, sequence,
                                 (int)first);
    }
    const bf16 *g[3] = {a.gq[up], a.gk[up], a.gv[up]};
    int64_t parent = head * a.tower[up] + (int64_t)b.ahead * (STEP / 8) + (row & 7);
#pragma unroll
    for (int i = 0; i < 3; i++) b.up[i] = (const char *)(g[i] + parent * D + 8 * chunk);
    int64_t at = (BASE ? head * a.rows : tower) + (int64_t)b.ahead * STEP + me % STEP;
    b.m = (BASE ? a.saved : a.tm[s]) + at, b.h = a.th[s] + at;
}

/* Starts the copies of a step, each thread a chunk of every 16th row. */
static __device__ __forceinline__ void bring_step(ring &r, const bringer &b, int i, int me) {
    uint32_t to = shared_address(r.x[0][fine_at(i)]) + chunk_at(me >> 3, me & 7);
#pragma unroll
    for (int t = 0; t < TENSORS; t++) {
        const char *from = b.x[t].at;
#pragma unroll
        for (int j = 0; j < 4; j++, from += 16 * b.x[t].row)
            copy_async(to + t * (uint32_t)sizeof r.x[0] + j * 16 * ROW, from);
    }
}

/* The gradients of its rows' parents; threads 0 ... 63. back: steps to go back for them */
static __device__ __forceinline__ void bring_parents(ring &r, const bringer &b, int i, int back,
                                                     int me) {
    uint32_t to = shared_address(r.up[i % FINE][0]) + chunk_at(me >> 3 & 7, me & 7);
#pragma unroll
    for (int t = 0; t < 3; t++)
        if (me < STEP) copy_async(to + t * 8 * ROW, b.up[t] - back * (STEP / 8) * ROW);
}

static __device__ __forceinline__ void copies_begin() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* One step on; behind the last one it stays. */
static __device__ __forceinline__ void move_on(bringer &b) {
    if (b.ahead + 1 >= b.total) return;
    b.ahead++;
    int ends = ++b.step == b.steps;
    if (ends) b.step = 0;
#pragma unroll
    for (int i = 0; i < TENSORS; i++) advance(b.x[i], ends);
#pragma unroll
    for (int i = 0; i < 3; i++) b.up[i] += STEP / 8 * ROW;
    b.m += STEP, b.h += STEP;
}

template <int BASE>
static __device__ __forceinline__ void write_numbers(ring &r, float m, float h, int i, int me) {
    if (BASE) m = m > HTI_NEG_INF ? m * HTI_LOG2E : HTI_POS_INF; /* lse, natural units */
    if (me < STEP) (&r.n[fine_at(i)][0])[me] = make_float2(m, h);
}

/* Steps 0, 1 and 2 of the ring: the one before the walk's first, the first, the next. At the ends
 * of all rows another step stands in for one that is not there; nobody looks at it. */
template <int BASE>
static __device__ __forceinline__ void bring_first(ring &r, bringer &b, const hti_hier_args &a,
                                                   int begin, int mean, int me) {
    for (int i = 0; i < 3; i++) {
        bring_step(r, b, i, me);
        copies_begin();
        write_numbers<BASE>(r, *b.m, *b.h, i, me);
        if (i == 1 || (i == 0 && begin > 0)) move_on(b);
    }
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    asm volatile("bar.sync 2, 128;" ::: "memory");
    raise_step(r, 0, mean, me);
    raise_step(r, 1, mean, me);
    if (a.stage < a.stages - 1) {
        chain_wait(); /* for the gradients of the stage above */
        bring_parents(r, b, 1, b.ahead > begin, me);
        bring_parents(r, b, 2, 0, me);
    }
    copy_async_wait();
}

/* All steps of a walk; 128 threads. */
template <int BASE>
static __device__ __forceinline__ void bring_rows(ring &r, const hti_hier_args &a, int head,
                                                  int begin, int end, int steps, int me) {
    int mean = a.query == HT_QUERY_MEAN, has_up = a.stage < a.stages - 1;
    bringer b;
    b.ahead = begin > 0 ? begin - 1 : 0, b.total = steps * a.sequences, b.steps = steps;
    find_rows<BASE>(b, a, head, me);
    bring_first<BASE>(r, b, a, begin, mean, me);
    for (int i = 1; i <= end - begin; i++) {
        step_begins();
        move_on(b);
        float m = *b.m, h = *b.h;
        raise_step(r, i + 1, mean, me); /* first: the others wait for it */
        levels_arrive();
        bring_step(r, b, i + 2, me);
        if (has_up) bring_parents(r, b, i + 2, 0, me);
        write_numbers<BASE>(r, m, h, i + 2, me);
        copy_async_wait();
    }
}

#endif
