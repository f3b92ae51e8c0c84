/*
 * Opened clusters on tensor cores, backward: who takes part where, one level at a time.
 *
 * From the choice that forward saved each tile of eight rows finds its entries again and writes
 * down, for dk and dv, pairs of clusters with the rows that take them in (a byte per cluster), and
 * clusters that were opened for good with the rows that did. These are counted by pair or cluster,
 * placed with integer atomics in any order and put in the order of their tiles by their rank in a
 * bitmap, so that the result does not depend on that order.
 */
#include "cuda/open/tiles_back.h"

enum { LIST_WARPS = 4, SCAN_THREADS = 512, WINDOW = 1 << 15 };

/* ---- entries of a tile, from the saved choice ---- */

struct list_shared {
    int *cluster;          /* [entries] */
    uint8_t *has, *opened; /* [entries] */
    int bytes;
};

HTI_FN list_shared list_layout(char *base, int entries) {
    list_shared s;
    s.cluster = (int *)base;
    s.has = (uint8_t *)(base + 4 * entries), s.opened = s.has + entries;
    s.bytes = (6 * entries + 15) / 16 * 16;
    return s;
}

/* Puts the lanes' clusters with rows behind `count` others of a list. */
DEVICE int append_rows(hti_opener *list, int count, unsigned rows, int c) {
    unsigned all = __ballot_sync(ALL_LANES, rows != 0);
    if (rows) list[count + __popc(all & ((1u << lane_id()) - 1))] = {c, (int)rows};
    return count + __popc(all);
}

/* Pairs with rows of either cluster, behind `count` others; counts them by pair. */
DEVICE int append_pairs(hti_pair *list, int *counter, int count, bool there, int tile, int pair,
                        unsigned rows) {
    there = there && rows != 0;
    unsigned all = __ballot_sync(ALL_LANES, there);
    if (there) {
        list[count + __popc(all & ((1u << lane_id()) - 1))] = {pair, tile, rows};
        atomicAdd(counter + pair, 1);
    }
    return count + __popc(all);
}

static __global__ void __launch_bounds__(32 * LIST_WARPS)
    list_kernel(const __grid_constant__ hti_open_back b) {
    const hti_open_tiles &o = b.o;
    const hti_cuda_args &a = o.a;
    int bytes = list_layout(NULL, o.entries).bytes;
    list_shared s = list_layout((char *)hti_shared + warp_id() * bytes, o.entries);
    int64_t work = (int64_t)blockIdx.x * LIST_WARPS + warp_id();
    if (work >= o.work) return;
    int64_t t = work % b.tiles;
    int head = (int)(work / b.tiles);
    place p;
    int *pairs = b.pairs.of_tile + work, *leaves = b.leaves.of_tile + work, none = 0;
    bool there = find_place(&p, a, 0, HTI_OPEN_TILE, t) && b.level < levels_of(a, p.length);
    if (!there) {
        if (lane_id() == 0) *pairs = 0, *leaves = 0, b.now.count[work] = 0;
        return;
    }
    int active = active_rows(a, p, head);
    level_view l = view_of(o, p, head / a.group, b.level);
    bool above = b.level >= o.leaf_level && b.level + 1 < levels_of(a, p.length);
    int room = o.entries / 2, opened = above ? b.above.count[work] : none;
    int count = find_saved(o, p, head, l, active, b.above.list + work * room, opened, s.cluster,
                           s.has, s.opened);
    int64_t base = head * b.stride + hti_cluster_at(a, p.start, b.level) - a.base[b.level];
    int pair_count = 0, leaf_count = 0, opened_count = 0;
    int tile_number = p.first / HTI_OPEN_TILE;
    for (int e0 = 0; e0 < count; e0 += 32) {
        int e = e0 + lane_id();
        unsigned opens = e < count ? s.opened[e] : 0;
        opened_count = append_rows(b.now.list + work * room, opened_count, opens, s.cluster[e]);
        bool leaf = b.level <= o.leaf_level && opens;
        leaf_count = append_pairs(b.leaves.raw + work * room, b.leaves.counter + base, leaf_count,
                                  leaf, tile_number, s.cluster[e], opens);
        /* entries 2 x and 2 x + 1 are clusters 2 y and 2 y + 1 */
        unsigned takes = e < count ? s.has[e] & ~opens : 0;
        unsigned other = __shfl_down_sync(ALL_LANES, takes, 1);
        unsigned both = takes | other << 8;
        pair_count = append_pairs(b.pairs.raw + work * room, b.pairs.counter + base, pair_count,
                                  e % 2 == 0 && e < count, tile_number, s.cluster[e] / 2, both);
    }
    if (lane_id() == 0) *pairs = pair_count, *leaves = leaf_count, b.now.count[work] = opened_count;
}

/* ---- counting sort ---- */

/* first = running sums of counter, which becomes a copy of it. A block per head. */
static __global__ void __launch_bounds__(SCAN_THREADS)
    scan_pairs_kernel(const __grid_constant__ hti_open_back b) {
    static __shared__ int sums[SCAN_THREADS / 32];
    int *count = b.sorting.counter + blockIdx.x * b.stride;
    int *first = b.sorting.first + blockIdx.x * b.stride;
    int64_t size = b.level_room + 1, share = (size + SCAN_THREADS - 1) / SCAN_THREADS;
    int64_t from = threadIdx.x * share, to = min(from + share, size);
    int sum = 0, before = 0;
    for (int64_t x = from; x < to; x++) sum += count[x];
    int run = sum;
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(ALL_LANES, run, (unsigned)step);
        if (lane_id() >= step) run += other;
    }
    if (lane_id() == 31) sums[warp_id()] = run;
    __syncthreads();
    for (int w = 0; w < warp_id(); w++) before += sums[w];
    before += run - sum;
    for (int64_t x = from; x < to; x++) {
        int here = count[x];
        first[x] = count[x] = before;
        before += here;
    }
}

/* A warp per tile: its entries go behind those of the same pair. */
static __global__ void __launch_bounds__(32 * LIST_WARPS)
    place_kernel(const __grid_constant__ hti_open_back b) {
    const hti_open_tiles &o = b.o;
    int64_t work = (int64_t)blockIdx.x * LIST_WARPS + warp_id();
    if (work >= o.work) return;
    int head = (int)(work / b.tiles), room = o.entries / 2, count = b.sorting.of_tile[work];
    if (count == 0) return;
    place p;
    find_place(&p, o.a, 0, HTI_OPEN_TILE, work % b.tiles);
    int64_t base = head * b.stride + hti_cluster_at(o.a, p.start, b.level) - o.a.base[b.level];
    hti_member *to = b.sorting.placed + (int64_t)head * b.tiles * room;
    for (int x = lane_id(); x < count; x += 32) {
        hti_pair it = b.sorting.raw[work * room + x];
        to[atomicAdd(b.sorting.counter + base + it.pair, 1)] = {it.tile, it.rows};
    }
}

/* A warp per pair: members by their tiles, a window of tiles at a time. */
static __global__ void __launch_bounds__(32) rank_kernel(const __grid_constant__ hti_open_back b) {
    uint32_t *bits = (uint32_t *)hti_shared;
    int words = b.window / 32;
    int *before = (int *)(bits + words);
    int64_t all = (int64_t)b.o.a.q_heads * b.level_room;
    for (int64_t w = blockIdx.x; w < all; w += gridDim.x) {
        int64_t head = w / b.level_room, c = w % b.level_room;
        const int *first = b.sorting.first + head * b.stride + c;
        int64_t room = head * b.tiles * (b.o.entries / 2) + first[0];
        int n = first[1] - first[0], done = 0;
        const hti_member *from = b.sorting.placed + room;
        hti_member *to = b.sorting.sorted + room;
        for (int low = 0; done < n; low += b.window) {
            for (int x = lane_id(); x < words; x += 32) bits[x] = 0;
            __syncwarp();
            for (int x = lane_id(); x < n; x += 32) {
                int tile = from[x].tile - low;
                if (tile >= 0 && tile < b.window) atomicOr(&bits[tile / 32], 1u << tile % 32);
            }
            __syncwarp();
            int run = done;
            for (int x0 = 0; x0 < words; x0 += 32) {
                int x = x0 + lane_id(), here = x < words ? __popc(bits[x]) : 0, sum = here;
                for (int step = 1; step < 32; step *= 2) {
                    int other = __shfl_up_sync(ALL_LANES, sum, (unsigned)step);
                    if (lane_id() >= step) sum += other;
                }
                if (x < words) before[x] = run + sum - here;
                run += __shfl_sync(ALL_LANES, sum, 31);
            }
            __syncwarp();
            for (int x = lane_id(); x < n; x += 32) {
                hti_member it = from[x];
                int tile = it.tile - low;
                if (tile < 0 || tile >= b.window) continue;
                to[before[tile / 32] + __popc(bits[tile / 32] & ((1u << tile % 32) - 1))] = it;
            }
            __syncwarp();
            done = run;
        }
    }
}

ht_status hti_open_sort(const ht_context *ctx, const hti_open_back &shape,
                        const hti_sorting &which) {
    hti_open_back b = shape;
    const char *name = "sorting opened clusters";
    dim3 tiles((unsigned)((b.o.work + LIST_WARPS - 1) / LIST_WARPS));
    int64_t segments = b.o.a.q_heads * b.level_room;
    int64_t longest = (b.o.a.length + HTI_OPEN_TILE - 1) / HTI_OPEN_TILE;
    b.sorting = which;
    b.window = (int)(longest < WINDOW ? (longest + 1023) / 1024 * 1024 : (int64_t)WINDOW);
    size_t shared = (size_t)b.window / 4;
    TRY(hti_cuda_launch(ctx, scan_pairs_kernel, name, dim3((unsigned)b.o.a.q_heads), SCAN_THREADS,
                        0, b));
    TRY(hti_cuda_launch(ctx, place_kernel, name, tiles, 32 * LIST_WARPS, 0, b));
    dim3 grid((unsigned)(segments < 1 << 20 ? segments : 1 << 20));
    return hti_cuda_launch(ctx, rank_kernel, name, grid, 32, shared, b);
}

ht_status hti_open_list(const ht_context *ctx, const hti_open_back &b) {
    const char *name = "listing opened clusters";
    dim3 tiles((unsigned)((b.o.work + LIST_WARPS - 1) / LIST_WARPS));
    size_t shared = LIST_WARPS * (size_t)list_layout(NULL, b.o.entries).bytes;
    size_t counters = sizeof(int) * (size_t)(b.o.a.q_heads * b.stride);
    cudaStream_t stream = hti_cuda_of(ctx)->stream;
    CUDA_TRY(ctx, cudaMemsetAsync(b.pairs.counter, 0, counters, stream), name);
    CUDA_TRY(ctx, cudaMemsetAsync(b.leaves.counter, 0, counters, stream), name);
    return hti_cuda_launch(ctx, list_kernel, name, tiles, 32 * LIST_WARPS, shared, b);
}
