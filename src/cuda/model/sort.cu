/*
 * A stable sort of row numbers by small keys (tokens, positions): counting by digits of up to eight
 * bits. No atomics: each warp ranks its 32 keys by comparing them, so the result has one order.
 */
#include "cuda/model/model.h"

enum { THREADS = 256, WARPS = THREADS / 32, ROUNDS = 8, TILE = THREADS * ROUNDS, DIGITS = 256 };

struct sort_args {
    const int32_t *keys; /* first pass: the caller's, rows in order; else NULL */
    uint32_t limit;      /* a negative key stands for limit - 1 */
    const uint32_t *key_in, *row_in;
    uint32_t *key_out, *row_out;
    uint32_t *counts; /* [DIGITS][tiles] */
    uint32_t count, tiles;
    int shift, digits;
};

DEVICE uint32_t key_at(const sort_args &a, uint32_t i) {
    if (!a.keys) return a.key_in[i];
    return a.keys[i] < 0 ? a.limit - 1 : (uint32_t)a.keys[i];
}

DEVICE uint32_t digit_of(const sort_args &a, uint32_t key) {
    return key >> a.shift & (uint32_t)(a.digits - 1);
}

/* Counts of each digit in each warp's 256 keys. */
DEVICE void count_warps(uint32_t (*table)[DIGITS], const sort_args &a) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < WARPS * DIGITS; i += THREADS) (&table[0][0])[i] = 0;
    __syncthreads();
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t i = blockIdx.x * TILE + (warp * ROUNDS + round) * 32 + lane;
        uint32_t digit = i < a.count ? digit_of(a, key_at(a, i)) : DIGITS;
        unsigned same = __match_any_sync(0xffffffffu, digit);
        if (digit < DIGITS && lane == __ffs(same) - 1) table[warp][digit] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) sort_count(const sort_args a) {
    __shared__ uint32_t table[WARPS][DIGITS];
    count_warps(table, a);
    for (int d = threadIdx.x; d < a.digits; d += THREADS) {
        uint32_t sum = 0;
        for (int w = 0; w < WARPS; w++) sum += table[w][d];
        a.counts[(uint32_t)d * a.tiles + blockIdx.x] = sum;
    }
}

enum { SCAN = 1024 };

/* counts become the sums of all counts before them; one thread block */
static __global__ void __launch_bounds__(SCAN) sort_scan(const sort_args a) {
    __shared__ uint32_t warps[32], base;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t all = (uint32_t)a.digits * a.tiles;
    if (threadIdx.x == 0) base = 0;
    __syncthreads();
    for (uint32_t first = 0; first < all; first += SCAN) {
        uint32_t i = first + threadIdx.x, x = i < all ? a.counts[i] : 0, sum = x;
        for (int step = 1; step < 32; step *= 2) {
            uint32_t before = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += before;
        }
        if (lane == 31) warps[warp] = sum;
        __syncthreads();
        uint32_t before = base;
        for (int w = 0; w < warp; w++) before += warps[w];
        if (i < all) a.counts[i] = before + sum - x;
        __syncthreads();
        if (threadIdx.x == SCAN - 1) base = before + sum;
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(THREADS) sort_scatter(const sort_args a) {
    __shared__ uint32_t table[WARPS][DIGITS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    count_warps(table, a);
    for (int d = threadIdx.x; d < a.digits; d += THREADS) {
        uint32_t at = a.counts[(uint32_t)d * a.tiles + blockIdx.x];
        for (int w = 0; w < WARPS; w++) {
            uint32_t n = table[w][d];
            table[w][d] = at;
            at += n;
        }
    }
    __syncthreads();
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t i = blockIdx.x * TILE + (warp * ROUNDS + round) * 32 + lane;
        uint32_t key = i < a.count ? key_at(a, i) : 0;
        uint32_t digit = i < a.count ? digit_of(a, key) : DIGITS;
        unsigned same = __match_any_sync(0xffffffffu, digit);
        if (digit < DIGITS) {
            uint32_t to = table[warp][digit] + __popc(same & ((1u << lane) - 1));
            a.key_out[to] = key;
            a.row_out[to] = a.keys ? i : a.row_in[i];
        }
        __syncwarp();
        if (digit < DIGITS && lane == __ffs(same) - 1) table[warp][digit] += __popc(same);
        __syncwarp();
    }
}

/* ---- on the host ---- */

static int64_t tiles_of(int64_t count) { return hti_ceil(count, TILE); }

size_t hti_cuda_sort_scratch(int64_t count) {
    hti_carver c = {NULL, 0};
    for (int i = 0; i < 4; i++) c.take<uint32_t>(count);
    c.take<uint32_t>(DIGITS * tiles_of(count));
    return c.used;
}

ht_status hti_cuda_sort(const ht_context *ctx, hti_sorted *out, const int32_t *keys, int64_t count,
                        int64_t limit, void *scratch) {
    hti_carver c = {(char *)scratch, 0};
    uint32_t *block[4];
    sort_args a = {};
    int bits = 1, passes;
    while (((int64_t)1 << bits) < limit) bits++;
    passes = (bits + 7) / 8;
    for (int i = 0; i < 4; i++) block[i] = c.take<uint32_t>(count);
    a.counts = c.take<uint32_t>(DIGITS * tiles_of(count));
    a.limit = (uint32_t)limit, a.count = (uint32_t)count, a.tiles = (uint32_t)tiles_of(count);
    int width = (bits + passes - 1) / passes;
    a.digits = 1 << width;
    for (int pass = 0; pass < passes; pass++) {
        a.keys = pass ? NULL : keys;
        a.shift = pass * width;
        a.key_in = block[2 * (pass % 2)], a.row_in = block[2 * (pass % 2) + 1];
        a.key_out = block[2 - 2 * (pass % 2)], a.row_out = block[3 - 2 * (pass % 2)];
        dim3 grid(a.tiles);
        TRY(hti_cuda_launch(ctx, sort_count, "sorting rows", grid, THREADS, 0, a));
        TRY(hti_cuda_launch(ctx, sort_scan, "sorting rows", dim3(1), SCAN, 0, a));
        TRY(hti_cuda_launch(ctx, sort_scatter, "sorting rows", grid, THREADS, 0, a));
    }
    out->key = a.key_out, out->row = a.row_out;
    return HT_OK;
}
