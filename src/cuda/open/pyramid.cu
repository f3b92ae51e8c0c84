/*
 * The pyramid of keys and values in bf16. A thread has eight columns of 32 rows or clusters, which
 * it folds two by two, as a binary counter carries; a launch reads one level and writes the next
 * five. What the next launch reads is kept in float.
 */
#include "cuda/generic/tile.h"
#include "cuda/open/tiles.h"
#include "cuda/vector.h"

enum { ROWS = 1 << HTI_OPEN_FOLD, FOLDERS = 128 };

/* Row r is the right half at steps 0, 1, ... until it waits as a left half. */
DEVICE bool carries_at(int r, int step) { return (r & ((2 << step) - 1)) == (2 << step) - 1; }
DEVICE bool stops_at(int r, int step) { return (r & ((2 << step) - 1)) == (1 << step) - 1; }

struct folder {
    place p;
    int side, head, x; /* side: 0 k, 1 v; x: first column */
    int levels;
};

DEVICE int64_t carry_row(const hti_open_tiles &o, const folder &f, int level, int64_t c) {
    int64_t at = hti_cluster_at(o.a, f.p.start, level) - o.a.base[level] + c;
    return (f.head * o.carries + o.carry_at[level / HTI_OPEN_FOLD] + at) * o.a.head_dim + f.x;
}

/* Valid rows of cluster c of this launch's level and their sums. */
DEVICE float read_sums(float (&sum)[8], const hti_open_tiles &o, const folder &f, int c) {
    const hti_cuda_args &a = o.a;
    for (int x = 0; x < 8; x++) sum[x] = 0;
    if (o.stage == 0) {
        if (!takes_part(a.key_mask, f.p, c)) return 0;
        const ht_tensor &t = f.side ? a.v : a.k;
        load<8>(sum, tensor_row<const bf16>(t, a, f.p, f.head, c) + f.x);
        return 1;
    }
    int64_t clusters = hti_clusters(f.p.length, o.stage);
    if (c >= clusters) return 0;
    float n = (float)min((int64_t)1 << o.stage, f.p.length - ((int64_t)c << o.stage));
    if (a.key_mask) n = a.kn[hti_cluster_at(a, f.p.start, o.stage) + c];
    load<8>(sum, o.carry[f.side] + carry_row(o, f, o.stage, c));
    for (int x = 0; x < 8; x++) sum[x] *= n;
    return n;
}

DEVICE void write_means(const float (&sum)[8], float n, const hti_open_tiles &o, const folder &f,
                        int level, int64_t c) {
    const hti_cuda_args &a = o.a;
    int64_t at = hti_cluster_at(a, f.p.start, level) + c;
    float mean[8], share = n > 0 ? 1 / n : 0;
    for (int x = 0; x < 8; x++) mean[x] = sum[x] * share;
    store<8>((f.side ? o.pv : o.pk) + (f.head * a.clusters + at) * a.head_dim + f.x, mean);
    if (level % HTI_OPEN_FOLD == 0 && level + 1 < f.levels)
        store<8>(o.carry[f.side] + carry_row(o, f, level, c), mean);
    if (a.key_mask && f.side == 0 && f.head == 0 && f.x == 0) a.kn[at] = n;
}

static __global__ void __launch_bounds__(FOLDERS)
    fold_kernel(const __grid_constant__ hti_open_tiles o) {
    const hti_cuda_args &a = o.a;
    int chunks = a.head_dim / 8, columns = a.kv_heads * chunks;
    int64_t groups = (columns + FOLDERS - 1) / FOLDERS, t = blockIdx.x / groups;
    int i = (int)(blockIdx.x % groups) * FOLDERS + (int)threadIdx.x;
    folder f;
    f.side = (int)blockIdx.y, f.head = i / chunks, f.x = i % chunks * 8;
    if (i >= columns || !find_place(&f.p, a, o.stage, ROWS, t)) return;
    f.levels = levels_of(a, f.p.length);
    if (o.stage > 0 && o.stage + 1 >= f.levels) return;
    bf16 *copy = o.stage > 0 ? (bf16 *)0 : f.side ? o.v0 : o.k0;
    float sums[HTI_OPEN_FOLD][8], counts[HTI_OPEN_FOLD];
#pragma unroll 4
    for (int r = 0; r < ROWS; r++) {
        int c = f.p.first + r;
        float sum[8], n = read_sums(sum, o, f, c);
        if (copy && c < f.p.length)
            store<8>(copy + (f.head * a.rows + f.p.start + c) * a.head_dim + f.x, sum);
#pragma unroll
        for (int step = 0; step < HTI_OPEN_FOLD; step++) {
            if (carries_at(r, step)) {
                n += counts[step];
                for (int x = 0; x < 8; x++) sum[x] += sums[step][x];
                int level = o.stage + step + 1;
                int64_t parent = c >> (step + 1);
                if (level < f.levels && parent < hti_clusters(f.p.length, level))
                    write_means(sum, n, o, f, level, parent);
            } else if (stops_at(r, step)) {
                counts[step] = n;
                for (int x = 0; x < 8; x++) sums[step][x] = sum[x];
            }
        }
    }
}

ht_status hti_open_tiles_prepare(const ht_context *ctx, const hti_open_tiles &shape) {
    hti_open_tiles o = shape;
    int64_t columns = o.a.kv_heads * (o.a.head_dim / 8), groups = (columns + FOLDERS - 1) / FOLDERS;
    for (o.stage = 0; o.stage == 0 || o.stage + 1 < o.a.levels; o.stage += HTI_OPEN_FOLD) {
        dim3 grid((unsigned)(tiles_of(o.a, o.stage, ROWS) * groups), 2);
        TRY(hti_cuda_launch(ctx, fold_kernel, "making the pyramid", grid, FOLDERS, 0, o));
    }
    return HT_OK;
}
