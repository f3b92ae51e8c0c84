/*
 * Where a thread block of the tuned kernels is, and how it reads the rows of its stage.
 */
#ifndef HTI_HIER_PLACE_H
#define HTI_HIER_PLACE_H

#include "cuda/hier.h"
#include "cuda/hier_tile.h"

namespace HTI_KERNELS {

struct place {
    int sequence;
    int64_t start; /* first row over all sequences, of level 0 */
    int length;    /* rows of level 0 */
    int levels;    /* of the whole hierarchy */
    int rows;      /* of the stage's level */
    int first;     /* row of the chunk, of the stage's level */
};

/* hti_levels(length, 16) without a loop; length >= 1 */
static __device__ __forceinline__ int levels_of(int length) {
    int m = 32 - __clz((length - 1) >> 4);
    return m > 1 ? m : 1;
}

/* Where this thread block works, or 0 if there is nothing to do: x counts chunks, z sequences of
 * equal length. Packed (x alone): sequence s has slots from (its first tower row) / chunk + s on.
 */
static __device__ __forceinline__ int find_place(place &p, const hti_hier_args &a, int x, int z,
                                                 int level, int chunk) {
    if (!a.cu) {
        p.sequence = z;
        p.length = a.length;
        p.start = (int64_t)z * a.length;
        p.first = x * chunk;
    } else {
        int lo = 0, hi = a.sequences - 1;
        while (lo < hi) {
            int mid = (lo + hi + 1) / 2;
            int64_t at = hti_tower_at(a, level, mid, a.cu[mid]) / chunk + mid;
            if (at <= x)
                lo = mid;
            else
                hi = mid - 1;
        }
        p.sequence = lo;
        p.start = a.cu[lo];
        p.length = (int)(a.cu[lo + 1] - p.start);
        if (p.length == 0) return 0;
        p.first = (int)(x - (hti_tower_at(a, level, lo, p.start) / chunk + lo)) * chunk;
    }
    p.rows = (p.length + (1 << level) - 1) >> level;
    p.levels = a.local ? 1 : levels_of(p.length);
    return p.first < p.rows && p.levels > level;
}

/* The grid of a launch over chunks of a level and `planes` heads. */
static inline dim3 grid_of(const hti_hier_args &a, int level, int chunk, int planes) {
    if (!a.cu)
        return dim3((unsigned)((hti_clusters(a.length, level) + chunk - 1) / chunk), planes,
                    a.sequences);
    return dim3((unsigned)(hti_tower_at(a, level, 0, a.rows) / chunk + a.sequences + 1), planes, 1);
}

/* The same with heads first: neighbours in time then read neighbouring bytes, since the heads of a
 * row lie side by side. */
static inline dim3 grid_heads(const hti_hier_args &a, int level, int chunk, int planes) {
    dim3 g = grid_of(a, level, chunk, planes);
    return dim3(g.y, g.x, g.z);
}

/* Element offset of row 0 of a sequence in a caller's tensor. */
static __device__ __forceinline__ int64_t tensor_base(const hti_hier_args &a, const ht_tensor &t,
                                                      const place &p, int head) {
    return (a.cu ? p.start * t.row_stride : p.sequence * t.batch_stride) + head * t.head_stride;
}

/* Rows of a level as a stage reads them: the caller's tensor, or the tower. */
struct view {
    const element *data;
    int64_t stride;
    const uint8_t *mask; /* level 0 */
    const float *n;      /* tower, with masks */
};

template <int BASE>
static __device__ __forceinline__ view view_of(const hti_hier_args &a, const place &p,
                                               const ht_tensor &t, element *const *tower,
                                               float *const *n, const uint8_t *mask, int head,
                                               int dim) {
    view v;
    if (BASE) {
        v.data = (const element *)t.data + tensor_base(a, t, p, head);
        v.stride = t.row_stride;
        v.mask = mask ? mask + p.start : nullptr;
        v.n = nullptr;
        return v;
    }
    int64_t at = hti_tower_at(a, 3 * a.stage, p.sequence, p.start);
    v.data = tower[a.stage] + (head * a.tower[a.stage] + at) * dim;
    v.stride = dim;
    v.mask = nullptr;
    v.n = mask ? n[a.stage] + at : nullptr;
    return v;
}

/* Valid rows of cluster r of the stage's level. */
static __device__ __forceinline__ float count_of(const hti_hier_args &a, const place &p,
                                                 const view &v, int r) {
    if (r < 0 || r >= p.rows) return 0;
    if (v.mask) return v.mask[r] ? 1 : 0;
    if (v.n) return v.n[r];
    int level = 3 * a.stage, left = p.length - (r << level), whole = 1 << level;
    return (float)(left < whole ? left : whole);
}

/* ---- stages in a chain ---- */

/* A stage needs the one above only at its end, or not at all (apart: the last one takes them all
 * in), so its thread blocks may start while that one still runs (programmatic dependent launch,
 * from compute capability 9.0 on): chain_next lets the next stage start, chain_wait waits until the
 * one before is complete. */
static __device__ __forceinline__ void chain_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ void chain_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename Args>
static inline ht_status launch_chained(const ht_context *ctx, void (*kernel)(Args),
                                       const char *name, dim3 grid, int threads, size_t shared,
                                       const Args &args) {
    if (hti_cuda_of(ctx)->built_for < 90)
        return hti_cuda_launch(ctx, kernel, name, grid, threads, shared, args);
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = hti_cuda_of(ctx)->stream;
    config.attrs = &early, config.numAttrs = 1;
    const void *entry = (const void *)kernel;
    TRY(hti_cuda_allow_shared(ctx, entry, name, shared));
    void *list[] = {(void *)&args};
    CUDA_TRY(ctx, cudaLaunchKernelExC(&config, entry, list), name);
    return HT_OK;
}

} // namespace HTI_KERNELS

#endif
