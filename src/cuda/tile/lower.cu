/*
 * What the tile kernels' coarse levels left comes down to level 2, so that a row has two clusters
 * to look at, those of levels 1 and 2, however many levels there are: outputs of coarse queries are
 * merged, gradients of coarse rows added up. Two launches: into level 5 from all above it, then
 * into level 2 from levels 3, 4 and 5, which wide tiles do not need. A thread has a few columns of
 * one cluster.
 */
#include "cuda/tile/wide.h"

namespace HTI_KERNELS {

enum { LOW = 2, MIDDLE = LOWERED_WIDE };

/* A thread's cluster of the level a.stage; part: its columns, `width` at a time. */
struct spot {
    place p;
    int head, cluster, part, last; /* last: the highest level that is read */
};

DEVICE bool find_spot(spot *s, const hti_tile_args &t, int heads, int width) {
    const hti_cuda_args &a = t.a;
    int parts = a.head_dim / width, per = THREADS / parts;
    unsigned tile = blockIdx.x / (unsigned)heads;
    s->head = (int)(blockIdx.x - tile * (unsigned)heads);
    s->part = (int)threadIdx.x % parts;
    if (tile >= a.work || !find_tile(&s->p, t, a.stage, per, tile)) return false;
    s->cluster = s->p.first + (int)threadIdx.x / parts;
    int top = levels_at(t, s->p) - 1;
    s->last = a.stage == LOW ? min(MIDDLE, top) : top;
    return true;
}

DEVICE int64_t spot_row(const hti_tile_args &t, const spot &s, int level) {
    return cluster_at(t, s.p, level) + (s.cluster >> (level - t.a.stage));
}

static ht_status launch(const ht_context *ctx, void (*kernel)(hti_tile_args), const char *name,
                        hti_tile_args t, int heads, int operands, int width, int lowest) {
    t.a.dbias = NULL; /* summed with dq: here tiles are found the quick way */
    for (t.a.stage = MIDDLE; t.a.stage >= lowest; t.a.stage -= MIDDLE - LOW) {
        if (t.a.stage >= t.a.levels) continue;
        t.a.work = tiles_of(t.a, t.a.stage, THREADS * width / t.a.head_dim);
        dim3 grid((unsigned)(t.a.work * heads), (unsigned)operands);
        TRY(hti_cuda_launch(ctx, kernel, name, grid, THREADS, 0, t));
    }
    return HT_OK;
}

/* ---- outputs ---- */

static __global__ void __launch_bounds__(THREADS)
    tile_lower_outputs(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    spot s;
    if (!find_spot(&s, t, a.q_heads, 8)) return;
    bool inside = s.cluster < hti_clusters(s.p.length, a.stage);
    float m = HTI_NEG_INF, sum = 0, o[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 4
    for (int level = a.stage; inside && level <= s.last; level++) {
        int64_t row = s.head * a.clusters + spot_row(t, s, level);
        float lse = t.zl[row], z[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        add_row(z, t.zb + row * a.head_dim + 8 * s.part);
        float top = fmaxf(m, lse), base = top == HTI_NEG_INF ? 0 : top;
        float fade = exp2_fast(m - base), add = exp2_fast(lse - base);
        m = top, sum = sum * fade + add;
        for (int i = 0; i < 8; i++) o[i] = o[i] * fade + z[i] * add;
    }
    __syncthreads(); /* everybody has read the lse that is now replaced */
    if (!inside) return;
    int64_t row = s.head * a.clusters + spot_row(t, s, a.stage);
    float inverse = m == HTI_NEG_INF ? 0 : 1 / sum;
    for (int i = 0; i < 8; i++) o[i] *= inverse;
    *(uint4 *)(t.zb + row * a.head_dim + 8 * s.part) = pack8(o);
    if (s.part == 0) t.zl[row] = m == HTI_NEG_INF ? m : m + log2f(sum);
}

ht_status hti_tile_lower_outputs(const ht_context *ctx, const hti_tile_args &t) {
    if (t.a.levels <= LOW) return HT_OK;
    return launch(ctx, tile_lower_outputs, "merging coarse outputs", t, t.a.q_heads, 1, 8, LOW);
}

/* ---- gradients ---- */

/* Shares: a mean's gradient goes to all n rows of its cluster, 1/n to each; what a coarse query of
 * mode first got goes to its row, if that is also the lower cluster's. Levels that have been
 * lowered already are in shares. */
static __global__ void __launch_bounds__(THREADS)
    tile_lower_grads(const __grid_constant__ hti_tile_args t) {
    const hti_cuda_args &a = t.a;
    int of_queries = blockIdx.y == 2, heads = of_queries ? a.q_heads : a.kv_heads;
    float *grads = blockIdx.y == 0 ? a.dkt : blockIdx.y == 1 ? a.dvt : a.dqt;
    const float *counts = of_queries ? (a.query_mask ? a.qn : NULL) : a.key_mask ? a.kn : NULL;
    bool first = of_queries && a.query == HT_QUERY_FIRST;
    spot s;
    if (!find_spot(&s, t, heads, 4)) return;
    if (s.cluster >= hti_clusters(s.p.length, a.stage)) return;
    int own = first ? first_row(a, s.p, a.stage, cluster_at(t, s.p, a.stage), s.cluster) : 0;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int level = a.stage; level <= s.last; level++) {
        int64_t row = spot_row(t, s, level);
        int c = s.cluster >> (level - a.stage);
        float4 x = *(const float4 *)(grads + (s.head * a.clusters + row) * a.head_dim + 4 * s.part);
        float share = 1;
        if (first) {
            int64_t at = cluster_at(t, s.p, level);
            share = first_row(a, s.p, level, at, c) == own ? 1 : 0;
        } else if (a.stage == MIDDLE || level != MIDDLE) {
            float n = counts ? counts[row] : (float)min(1 << level, s.p.length - (c << level));
            share = n > 0 ? 1 / n : 0;
        }
        if (share == 0) continue;
        sum.x += share * x.x, sum.y += share * x.y, sum.z += share * x.z, sum.w += share * x.w;
    }
    int64_t row = s.head * a.clusters + spot_row(t, s, a.stage);
    *(float4 *)(grads + row * a.head_dim + 4 * s.part) = sum;
}

ht_status hti_tile_lower_grads(const ht_context *ctx, const hti_tile_args &t, int queries) {
    if (t.a.levels <= LOW) return HT_OK;
    int heads = queries ? t.a.q_heads : t.a.kv_heads, wide = hti_wide_takes(ctx, t);
    return launch(ctx, tile_lower_grads, "adding up gradients of levels", t, heads, queries ? 3 : 2,
                  4, wide ? MIDDLE : LOW);
}

} // namespace HTI_KERNELS
