/*
 * Embedding. Backward adds up rows of one token (or one position) without atomics: row numbers are
 * sorted by token, threads add up chunks of the sorted list, and a run of one token that crosses
 * chunks is put together by a second kernel. This is as fast for ten tokens as for ten
 * thousand.
 */
#include "cuda/model/model.h"

enum { THREADS = 256, CHUNK = 32, AHEAD = 4 };

/* ---- forward ---- */

struct embed_args {
    int64_t rows;
    uint32_t vectors; /* of a row */
    int width;
    const int32_t *tokens, *positions;
    const void *table, *cls, *learned, *fixed;
    void *out;
    hti_drop drop;
};

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) embed_rows(const embed_args a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.rows * a.vectors) return;
    int64_t row = i / a.vectors;
    int c = (int)(i % a.vectors) * N;
    int32_t token = a.tokens[row];
    float x[N], y[N];
    load<N>(x,
            token < 0 ? (const T *)a.cls + c : (const T *)a.table + (int64_t)token * a.width + c);
    int64_t at = (int64_t)a.positions[row] * a.width + c;
    if (a.learned) {
        load<N>(y, (const T *)a.learned + at);
        for (int k = 0; k < N; k++) x[k] += y[k];
    }
    if (a.fixed) {
        load<N>(y, (const T *)a.fixed + at);
        for (int k = 0; k < N; k++) x[k] += y[k];
    }
    if (a.drop.threshold) drop<N>(x, a.drop, (uint32_t)row, c);
    store<N>((T *)a.out + row * a.width + c, x);
}

template <typename T, int N> static ht_status run_rows(ht_context *ctx, embed_args a) {
    a.vectors = (uint32_t)(a.width / N);
    return hti_cuda_launch(ctx, embed_rows<T, N>, "embedding",
                           dim3((unsigned)hti_ceil(a.rows * a.vectors, THREADS)), THREADS, 0, a);
}

ht_status hti_cuda_embed_forward(ht_context *ctx, const hti_embed_call *c) {
    hti_cuda_scope scope(ctx);
    embed_args a = {};
    a.rows = c->rows, a.width = (int)c->width;
    a.tokens = c->tokens, a.positions = c->positions;
    a.table = c->table, a.cls = c->cls, a.learned = c->learned, a.fixed = c->fixed;
    a.out = c->out, a.drop = hti_drop_of(c->drop);
    int wide = hti_wide_rows(c->width, hti_bytes(c->dtype), c->table, c->cls, c->learned, c->out) &&
               (uintptr_t)c->fixed % 16 == 0;
    return HTI_BY_TYPE(run_rows, c->dtype, wide, ctx, a);
}

/* ---- backward ---- */

struct gather_args {
    uint32_t count, limit, chunks;
    int width;
    const uint32_t *key, *row; /* sorted by key */
    const void *dout;
    hti_drop drop;
    float *table, *last; /* gradients of key k: table[k]; of key limit - 1, if last: last */
    float *partial;      /* [chunks][2][width]: of a run that came in, of one that goes on */
    uint32_t across;     /* threads of a chunk, a power of two */
    int by_key;          /* second kernel: a thread block per key, else per chunk */
};

DEVICE float *home(const gather_args &a, uint32_t key) {
    return a.last && key == a.limit - 1 ? a.last : a.table + (int64_t)key * a.width;
}

/* Where the sum of entries begin ... end - 1 of a chunk (one key) belongs: NULL: into the table. */
DEVICE float *part_of(const gather_args &a, uint32_t chunk, uint32_t begin, uint32_t end) {
    uint32_t first = chunk * CHUNK + begin, last = chunk * CHUNK + end - 1, key = a.key[first];
    int came = begin == 0 && chunk > 0 && a.key[first - 1] == key;
    int goes = (end == CHUNK) && last + 1 < a.count && a.key[last + 1] == key;
    if (!came && !goes) return nullptr;
    return a.partial + ((int64_t)chunk * 2 + (came ? 0 : 1)) * a.width;
}

/* Narrow rows: a thread block takes several chunks, with `across` threads for each. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) gather_chunks(const gather_args a) {
    uint32_t chunk = blockIdx.x * (THREADS / a.across) + threadIdx.x / a.across;
    uint32_t first = chunk * CHUNK;
    int c = (int)(blockIdx.y * a.across + threadIdx.x % a.across) * N, begin = 0;
    if (c >= a.width || chunk >= a.chunks) return;
    int n = (int)(a.count - first < CHUNK ? a.count - first : CHUNK);
    float sum[N] = {0};
    for (int i = 0; i < n; i += AHEAD) {
        float d[AHEAD][N];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k < n)
                load<N>(d[k], (const T *)a.dout + (int64_t)a.row[first + i + k] * a.width + c);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int at = i + k;
            if (at >= n) break;
            if (a.drop.threshold) drop<N>(d[k], a.drop, a.row[first + at], c);
            for (int j = 0; j < N; j++) sum[j] += d[k][j];
            if (at + 1 < n && a.key[first + at + 1] == a.key[first + at]) continue;
            float *to = part_of(a, chunk, begin, at + 1), *table = home(a, a.key[first + at]) + c;
            float old[N];
            if (!to) {
                load<N>(old, table);
                for (int j = 0; j < N; j++) sum[j] += old[j];
            }
            store<N>(to ? to + c : table, sum);
            for (int j = 0; j < N; j++) sum[j] = 0;
            begin = at + 1;
        }
    }
}

enum { ACROSS = 32, DOWN = 32 };

/* The first entry whose key is at least `key`. */
DEVICE uint32_t begin_of(const gather_args &a, uint32_t key) {
    uint32_t low = 0, high = a.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (a.key[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Chunks first ... last of a run that goes over more than one: that of key `number` where there are
 * few keys, else the one that begins in chunk `number`. False: there is none. */
DEVICE bool find_run(uint2 *chunks, uint32_t *key, const gather_args &a, uint32_t number) {
    __shared__ uint32_t bound[2];
    uint32_t next = (number + 1) * CHUNK;
    *key = number;
    if (!a.by_key) {
        if (next >= a.count || a.key[next] != a.key[next - 1]) return false;
        *key = a.key[next - 1];
        if (number > 0 && a.key[number * CHUNK - 1] == *key) return false; /* it began before */
    }
    if (threadIdx.x % 32 == 0 && threadIdx.x < 64)
        bound[threadIdx.x / 32] = begin_of(a, *key + threadIdx.x / 32);
    __syncthreads();
    *chunks = make_uint2(bound[0] / CHUNK, bound[1] > bound[0] ? (bound[1] - 1) / CHUNK : 0);
    return chunks->y > chunks->x;
}

static __global__ void __launch_bounds__(ACROSS *DOWN) gather_runs(const gather_args a) {
    __shared__ float sums[DOWN][ACROSS];
    uint2 run;
    uint32_t key;
    if (!find_run(&run, &key, a, blockIdx.x)) return;
    int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    int c = (int)blockIdx.y * ACROSS + x;
    float sum = 0;
    if (c < a.width)
#pragma unroll 8
        for (uint32_t k = run.x + y; k <= run.y; k += DOWN)
            sum += a.partial[((int64_t)k * 2 + (k == run.x ? 1 : 0)) * a.width + c];
    sums[y][x] = sum;
    __syncthreads();
    if (y || c >= a.width) return;
    for (int i = 1; i < DOWN; i++) sum += sums[i][x];
    home(a, key)[c] += sum;
}

template <typename T, int N> static ht_status run_gather(ht_context *ctx, gather_args a) {
    int64_t vectors = hti_ceil(a.width, N);
    for (a.across = 1; a.across < vectors && a.across < THREADS;) a.across *= 2;
    dim3 grid((unsigned)hti_ceil(a.chunks, THREADS / a.across),
              (unsigned)hti_ceil(vectors, a.across));
    TRY(hti_cuda_launch(ctx, gather_chunks<T, N>, "gathering gradients", grid, THREADS, 0, a));
    a.by_key = a.limit < a.chunks;
    grid = dim3(a.by_key ? a.limit : a.chunks, (unsigned)hti_ceil(a.width, ACROSS));
    return hti_cuda_launch(ctx, gather_runs, "gathering gradients", grid, ACROSS * DOWN, 0, a);
}

/* table[key] += rows of dout with that key */
static ht_status gather(ht_context *ctx, const hti_embed_call *c, const int32_t *keys,
                        int64_t limit, void *table, void *last) {
    hti_carver carver = {(char *)c->scratch, 0};
    void *sort = carver.take<char>((int64_t)hti_cuda_sort_scratch(c->rows));
    gather_args a = {};
    hti_sorted sorted;
    TRY(hti_cuda_sort(ctx, &sorted, keys, c->rows, limit, sort));
    a.key = sorted.key, a.row = sorted.row;
    a.count = (uint32_t)c->rows, a.limit = (uint32_t)limit;
    a.chunks = (uint32_t)hti_ceil(c->rows, CHUNK);
    a.partial = carver.take<float>(a.chunks * 2 * c->width);
    a.width = (int)c->width, a.dout = c->dout, a.drop = hti_drop_of(c->drop);
    a.table = (float *)table, a.last = (float *)last;
    int wide = hti_wide_rows(c->width, hti_bytes(c->dtype), c->dout, table, last);
    return HTI_BY_TYPE(run_gather, c->dtype, wide, ctx, a);
}

size_t hti_cuda_embed_scratch(const ht_context *ctx, const hti_embed_call *c) {
    hti_carver carver = {NULL, 0};
    (void)ctx;
    carver.take<char>((int64_t)hti_cuda_sort_scratch(c->rows));
    carver.take<float>(hti_ceil(c->rows, CHUNK) * 2 * c->width);
    return carver.used;
}

/* ---- backward, positions of sequences of equal length: row r has position r mod each ---- */

struct position_args {
    int64_t sequences, each;
    uint32_t vectors;
    int width, parts;
    const void *dout;
    hti_drop drop;
    float *partial; /* [parts][each][width] */
};

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) position_sums(const position_args a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.each * a.vectors) return;
    int64_t position = i / a.vectors;
    int c = (int)(i % a.vectors) * N;
    float sum[N] = {0};
#pragma unroll 4
    for (int64_t b = blockIdx.y; b < a.sequences; b += a.parts) {
        int64_t row = b * a.each + position;
        float d[N];
        load<N>(d, (const T *)a.dout + row * a.width + c);
        if (a.drop.threshold) drop<N>(d, a.drop, (uint32_t)row, c);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += d[k];
    }
    store<N>(a.partial + ((int64_t)blockIdx.y * a.each + position) * a.width + c, sum);
}

template <typename T, int N>
static ht_status run_positions(ht_context *ctx, position_args a, float *dlearned) {
    a.vectors = (uint32_t)(a.width / N);
    dim3 grid((unsigned)hti_ceil(a.each * a.vectors, THREADS), (unsigned)a.parts);
    TRY(hti_cuda_launch(ctx, position_sums<T, N>, "gathering gradients", grid, THREADS, 0, a));
    return hti_cuda_add_parts(ctx, dlearned, NULL, NULL, a.partial, a.parts, a.each * a.width);
}

static ht_status sum_positions(ht_context *ctx, const hti_embed_call *c, int parts) {
    position_args a = {};
    a.sequences = c->rows / c->each, a.each = c->each, a.width = (int)c->width;
    a.dout = c->dout, a.drop = hti_drop_of(c->drop);
    a.parts = (int)(parts < a.sequences ? parts : a.sequences);
    a.partial = hti_model_of(ctx)->sums;
    int wide = hti_wide_rows(c->width, hti_bytes(c->dtype), c->dout);
    return HTI_BY_TYPE(run_positions, c->dtype, wide, ctx, a, (float *)c->dlearned);
}

ht_status hti_cuda_embed_backward(ht_context *ctx, const hti_embed_call *c) {
    hti_cuda_scope scope(ctx);
    TRY(gather(ctx, c, c->tokens, c->vocab + 1, c->dtable, c->dcls));
    if (!c->dlearned) return HT_OK;
    int64_t room = c->each ? HTI_SUMS_BYTES / (int64_t)sizeof(float) / (c->each * c->width) : 0;
    if (room >= 4) return sum_positions(ctx, c, room < 32 ? (int)room : 32);
    return gather(ctx, c, c->positions, c->length, c->dlearned, NULL);
}
