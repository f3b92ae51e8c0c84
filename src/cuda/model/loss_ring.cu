/*
 * Softmax cross-entropy of a language model's bf16 logits, from compute capability 9.0 on: rows
 * stream through shared memory, and each is read and written once.
 *
 * A thread block per multiprocessor walks over rows. One warp feeds it: bulk copies bring the next
 * rows into a ring of buffers and take gradients back to where the logits lay, while sixteen warps
 * work on the row between them. A thread holds its exponentials in registers, relative to the
 * largest of its own logits, so that one meeting of the warps gives the largest and the sum
 * together.
 */
#include "cuda/model/bulk.h"
#include "cuda/model/loss.h"

static const int WORKERS = 512, WARPS = WORKERS / 32, LEAST_BUFFERS = 3, MOST_BUFFERS = 8;

/* At the front of the shared memory; the buffers follow. */
struct ring_state {
    uint64_t full[MOST_BUFFERS], done[MOST_BUFFERS];
    float2 part[2][WARPS]; /* of each warp: largest, sum; two rows in turn */
    row_state row[MOST_BUFFERS];
    float at[MOST_BUFFERS];    /* the target's logit */
    int earlier[MOST_BUFFERS]; /* a logit as large as the target's comes before it */
    int target[MOST_BUFFERS];
};

static const int STATE_BYTES = (sizeof(ring_state) + 127) / 128 * 128;

struct ring_args {
    loss_args a;
    int buffers;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* The working warps meet. */
DEVICE void workers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); }

/* ---- the feeding warp ---- */

DEVICE void feed(const ring_args &r, ring_state *s, char *buffers, uint32_t bytes) {
    const loss_args &a = r.a;
    char *logits = (char *)a.logits;
    int64_t next = blockIdx.x;
    for (int i = 0; i < r.buffers && next < a.rows; i++, next += gridDim.x)
        bulk_in(buffers + (size_t)i * bytes, logits + next * bytes, bytes, &s->full[i]);
    int at = 0;
    uint32_t parity = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        char *buffer = buffers + (size_t)at * bytes;
        barrier_wait(shared_at(&s->done[at]), parity);
        if (a.back) bulk_out(logits + row * bytes, buffer, bytes);
        row_state found = s->row[at];
        int target = s->target[at];
        float z = s->at[at];
        found.best = z == found.top && !s->earlier[at] ? target : -1;
        s->earlier[at] = 0;
        if (a.back) bulk_read();
        if (next < a.rows) bulk_in(buffer, logits + next * bytes, bytes, &s->full[at]);
        next += gridDim.x;
        finish_row(a, row, found, z, target);
        if (++at == r.buffers) at = 0, parity ^= 1;
    }
    /* the block's memory must stay until the last copies have read it */
    bulk_read();
}

/* ---- the working warps ---- */

DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger of each pair of bf16 numbers; NaN if one of them is. */
DEVICE uint32_t max_pairs(uint32_t x, uint32_t y) {
    uint32_t z;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

template <int NV> DEVICE float largest_of(const uint4 *held) {
    uint32_t top = 0xff80ff80u; /* -inf */
#pragma unroll
    for (int v = 0; v < NV; v++)
        top = max_pairs(max_pairs(top, max_pairs(held[v].x, held[v].y)),
                        max_pairs(held[v].z, held[v].w));
    return max_or_nan(low_half(top), high_half(top));
}

/* A subtrahend that leaves -inf beside -inf without weight. */
DEVICE float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

/* Largest and sum of all threads from those of each, in every thread. */
DEVICE float2 join_workers(float2 *part, float top, float sum) {
    float mine = top;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        top = max_or_nan(top, __shfl_xor_sync(0xffffffffu, top, step));
    sum = sum_lanes<32>(sum * exp2_of((base_of(mine) - base_of(top)) * HTI_LOG2E));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(top, sum);
    workers_meet();
    float2 other = part[threadIdx.x % WARPS];
    top = other.x;
#pragma unroll
    for (int step = WARPS / 2; step > 0; step /= 2)
        top = max_or_nan(top, __shfl_xor_sync(0xffffffffu, top, step));
    sum = sum_lanes<WARPS>(other.y * exp2_of((base_of(other.x) - base_of(top)) * HTI_LOG2E));
    return make_float2(top, sum);
}

/* Whether one of this thread's logits before the target's is as large. */
template <int NV> DEVICE int any_before(const uint4 *row, int vectors, float top, int target) {
    int found = 0;
    for (int v = 0; v < NV; v++) {
        int i = v * WORKERS + (int)threadIdx.x;
        float x[8];
        if (i >= vectors) break;
        unpack(x, row[i], (const bf16 *)nullptr);
        for (int k = 0; k < 8; k++) found |= x[k] == top && i * 8 + k < target;
    }
    return found;
}

template <int NV>
DEVICE void work_row(const loss_args &a, ring_state *s, int at, uint4 *row, int target,
                     float2 *part, float scale) {
    int vectors = a.classes / 8, thread = (int)threadIdx.x;
    uint4 held[NV];
    float e[NV][8], sum = 0;
#pragma unroll
    for (int v = 0; v < NV; v++) { /* beyond the end: -inf, which weighs nothing */
        int i = v * WORKERS + thread;
        held[v] = make_uint4(0xff80ff80u, 0xff80ff80u, 0xff80ff80u, 0xff80ff80u);
        if (i < vectors) held[v] = row[i];
    }
    float mine = largest_of<NV>(held), base = base_of(mine) * HTI_LOG2E;
    float z = target < 0 ? 0 : __bfloat162float(((const bf16 *)row)[target]);
#pragma unroll
    for (int v = 0; v < NV; v++) {
        unpack(e[v], held[v], (const bf16 *)nullptr);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            e[v][k] = exp2_of(fmaf(e[v][k], HTI_LOG2E, -base));
            sum += e[v][k];
        }
    }
    float2 all = join_workers(part, mine, sum); /* from here on all have read their z */
    if (z == all.x && target >= 0 && any_before<NV>(row, vectors, all.x, target))
        s->earlier[at] = 1;
    if (thread == 0) s->row[at] = {all.x, all.y, 0}, s->at[at] = z, s->target[at] = target;
    if (!a.back) return;
    float factor = scale / all.y * exp2_of((base_of(mine) - base_of(all.x)) * HTI_LOG2E);
#pragma unroll
    for (int v = 0; v < NV; v++) {
        int i = v * WORKERS + thread;
        if (i >= vectors) continue;
#pragma unroll
        for (int k = 0; k < 8; k++) e[v][k] = target < 0 ? 0 : e[v][k] * factor;
        store<8>((bf16 *)(row + i), e[v]);
    }
    if (target >= 0 && target / 8 % WORKERS == thread) /* it wrote this place itself */
        ((bf16 *)row)[target] =
            __float2bfloat16_rn(scale / all.y * exp2_of((z - all.x) * HTI_LOG2E) - scale);
}

template <int NV>
static __global__ void __launch_bounds__(WORKERS + 32, 1) loss_ring(const ring_args r) {
    extern __shared__ __align__(128) char hti_ring[];
    ring_state *s = (ring_state *)hti_ring;
    char *buffers = hti_ring + STATE_BYTES;
    const loss_args &a = r.a;
    uint32_t bytes = (uint32_t)a.classes * 2;
    if (threadIdx.x == 0) {
        for (int i = 0; i < r.buffers; i++)
            barrier_make(shared_at(&s->full[i]), 1), barrier_make(shared_at(&s->done[i]), WARPS),
                s->earlier[i] = 0;
        barriers_made();
    }
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        if (threadIdx.x == WORKERS) feed(r, s, buffers, bytes);
        return;
    }
    float scale = (float)a.step->in.loss_scale;
    int at = 0, turn = 0;
    uint32_t parity = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
        int target = a.targets[a.first + row];
        barrier_wait(shared_at(&s->full[at]), parity);
        work_row<NV>(a, s, at, (uint4 *)(buffers + (size_t)at * bytes), target, s->part[turn],
                     scale);
        bulk_show();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_at(&s->done[at]));
        if (++at == r.buffers) at = 0, parity ^= 1;
    }
}

#else
template <int NV> static __global__ void loss_ring(const ring_args r) { (void)r; }
#endif

/* ---- on the host ---- */

static int buffers_of(const ht_context *ctx, const loss_args &a) {
    int n = (hti_cuda_of(ctx)->shared_bytes - STATE_BYTES) / (a.classes * 2);
    return n < MOST_BUFFERS ? n : MOST_BUFFERS;
}

int hti_loss_ring_takes(const ht_context *ctx, const loss_args &a) {
    return !a.bias && a.classes > 4096 && a.classes <= 8 * 8 * WORKERS &&
           buffers_of(ctx, a) >= LEAST_BUFFERS && hti_cuda_of(ctx)->built_for >= 90;
}

ht_status hti_loss_ring(const ht_context *ctx, const loss_args &a) {
    int vectors = a.classes / 8, processors = hti_cuda_of(ctx)->processors;
    auto kernel = vectors <= 2 * WORKERS   ? loss_ring<2>
                  : vectors <= 4 * WORKERS ? loss_ring<4>
                                           : loss_ring<8>;
    ring_args r = {a, buffers_of(ctx, a)};
    size_t shared = (size_t)STATE_BYTES + (size_t)r.buffers * (size_t)a.classes * 2;
    int64_t grid = a.rows < processors ? a.rows : processors;
    return hti_cuda_launch(ctx, kernel, "loss", dim3((unsigned)grid), WORKERS + 32, shared, r);
}
