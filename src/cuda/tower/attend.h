/*
 * A warp's tile of 16 rows in a stage of the tuned forward: attends three levels and takes in the
 * result of the stage above.
 */
#ifndef HTI_CUDA_TOWER_ATTEND_H
#define HTI_CUDA_TOWER_ATTEND_H

#include "cuda/tower/stage.h"

namespace HTI_KERNELS {

/* The result of a stage above: rows g of a tile have one parent, rows g + 8 the next, or the same.
 */
template <int D> struct parents {
    uint32_t z[2][D / 8]; /* columns 8i + 2t, +1 */
    float lse[2];
};

template <int D>
static __device__ __forceinline__ void load_parents(parents<D> &up, const hti_hier_args &a,
                                                    const place &p, int stage, int head, int warp,
                                                    int t) {
    int row = p.first + 16 * warp, higher = 3 * (stage - a.stage);
    up.lse[0] = up.lse[1] = HTI_NEG_INF;
    if (p.levels <= 3 * stage) return;
    uint32_t at = (uint32_t)(head * a.tower[stage]);
    at += a.cu ? (uint32_t)hti_tower_at(a, 3 * stage, p.sequence, p.start)
               : (uint32_t)(p.sequence * ((p.rows + (1 << higher) - 1) >> higher));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row + 8 * h >= p.rows) continue;
        uint32_t parent = at + ((row + 8 * h) >> higher);
        const uint32_t *z = (const uint32_t *)a.tz[stage] + (uint64_t)parent * (D / 2) + t;
        up.lse[h] = a.tl[stage][parent];
#pragma unroll
        for (int i = 0; i < D / 8; i++) up.z[h][i] = z[4 * i];
    }
}

/* A finished result enters as a state with sum 1. */
template <int D>
static __device__ __forceinline__ void merge_parents(state<D> &s, const parents<D> &up) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (up.lse[h] == HTI_NEG_INF) continue;
        float m = fmaxf(s.m[h], up.lse[h]), keep = exp2_fast(s.m[h] - m),
              add = exp2_fast(up.lse[h] - m);
        s.m[h] = m;
        s.l[h] = fmaf(s.l[h], keep, add);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            float2 z = unpack2(up.z[h][i]);
            s.o[i][2 * h] = fmaf(s.o[i][2 * h], keep, z.x * add);
            s.o[i][2 * h + 1] = fmaf(s.o[i][2 * h + 1], keep, z.y * add);
        }
    }
}

/* A warp's tile of 16 rows: all scores of three levels, one softmax, one product with the values;
 * coarse queries are spread over the rows they stand for. */
template <int D, int PLAIN, int MODE, int INNER, int BASE>
static __device__ __forceinline__ void
attend_tile(state<D> &s, const shared_rows<D> &sh, const hti_hier_args &a, const place &p,
            const frag<D> &q0, const float n0[2], int head, int warp, int lane) {
    using G = groups<MODE, BASE>;
    int g = lane >> 2, t = lane & 3;
    float x[G::ALL][4], n[2] = {n0[0], n0[1]};
    sight<G::ALL> at;
    find_sight<MODE, INNER, BASE>(at, p, warp);
    lanes<D> l;
    find_lanes(l, lane);
    score<D, PLAIN, MODE, G::FINE>(x, at.at, sh, q0, n0, l, t);
    if constexpr (G::COARSE != 0) {
        constexpr int AT = G::FINE, AT2 = G::FINE + G::COARSE;
        frag<D> q1, q2;
        raise_queries<D, PLAIN, MODE>(q1, q0, n, 4, lane);
        score<D, PLAIN, MODE, G::COARSE>(x + AT, at.at + AT, sh, q1, n, l, t);
        raise_queries<D, PLAIN, MODE>(q2, q1, n, 8, lane);
        score<D, PLAIN, MODE, G::COARSE>(x + AT2, at.at + AT2, sh, q2, n, l, t);
    }
    hide_unseen<MODE, INNER, BASE>(x, at, g, t);
    float factor[3];
#pragma unroll
    for (int i = 0; i < 3; i++) factor[i] = PLAIN ? a.factor[i] : a.scale;
    soften<D, PLAIN, MODE, BASE>(x, s, at, sh, factor, a.whole[0], a.stage, t);
    int apart = !BASE && a.apart, alone = apart && a.stage > 1;
    parents<D> up;
    up.lse[0] = up.lse[1] = HTI_NEG_INF;
    if (!alone) {
        chain_wait();
        load_parents(up, a, p, a.stage + 1, head, warp, t);
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++) s.o[i][0] = s.o[i][1] = s.o[i][2] = s.o[i][3] = 0;
    gather<D, G::ALL>(s.o, x, at, sh, lane);
    merge_parents(s, up);
    if (!apart || alone) return;
#pragma unroll 1
    for (int stage = a.stage + 2; stage < a.stages; stage++) {
        load_parents(up, a, p, stage, head, warp, t);
        merge_parents(s, up);
    }
}

} // namespace HTI_KERNELS

#endif
