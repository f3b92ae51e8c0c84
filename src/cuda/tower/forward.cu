/*
 * Tuned forward of the hierarchical attention: bf16, block 16, head_dim = value_dim = 4, 8, 16, 32,
 * 64 or 128.
 *
 * 1. coarsen   reads q, k, v once and writes the tower: level 3 (an eighth of the rows), 6, 9, ...
 * 2. stage s   for s = top ... 0: a thread block takes 128 rows of level 3s of one head. Levels 3s,
 * 3s+1 and 3s+2 of k and v are in shared memory, added up on the way there. A warp takes 16 rows:
 * the scores of all three levels (a coarse query is spread over its rows), one softmax, one product
 * with the values; scores never leave registers. At the end the result of stage s+1 is merged in:
 * until then the stages run side by side.
 */
#include "cuda/tower/attend.h"

namespace HTI_KERNELS {

/* ---- coarsening ---- */

enum { COARSE_ROWS = 512, COARSE3 = COARSE_ROWS / 8 };

/* One plane (a head of q, k or v), 512 rows: levels 3, 6 and 9. Mode first takes the first valid
 * row instead of the sum. */
template <int D> __global__ void __launch_bounds__(256, 4) hier_coarsen(hti_hier_args a) {
    extern __shared__ float sums[]; /* [COARSE3][D], then [COARSE3] counts */
    float *counts = sums + COARSE3 * D;
    place p;
    if (!find_place(p, a, blockIdx.y, blockIdx.z, 0, COARSE_ROWS) || p.levels <= 3) return;
    int kv = blockIdx.x / (a.group + 2), part = blockIdx.x % (a.group + 2);
    int is_q = part < a.group, head = is_q ? kv * a.group + part : kv;
    int pick = is_q && a.query == HT_QUERY_FIRST;
    const ht_tensor &t = is_q ? a.q : part == a.group ? a.k : a.v;
    const uint8_t *mask = is_q ? a.query_mask : a.key_mask;
    int writes_counts =
        mask && head == 0 && part <= a.group; /* one head of q and of k speaks for all */
    if (mask) mask += p.start;
    const element *src = (const element *)t.data + tensor_base(a, t, p, head);
    element *const *tower = is_q ? a.tq : part == a.group ? a.tk : a.tv;
    constexpr int CH = D / 8;

    int64_t base3 = hti_tower_at(a, 3, p.sequence, p.start);
    element *to3 = tower[1] + (head * a.tower[1] + base3) * D;
    for (int i = threadIdx.x; i < COARSE3 * CH; i += 256) {
        int r3 = i / CH, ch = i % CH, n = 8;
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int row = p.first + 8 * r3;
        const element *at = src + (int64_t)row * t.row_stride;
        if (!mask && row + 8 <= p.length) {
            uint4 x[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (j == 0 || !pick) x[j] = fetch_chunk<D>(at + j * t.row_stride, ch, a.dim);
            if (!pick) { /* fours as a stage adds them, then in float */
                x[0] = join8(join8(x[0], x[1]), join8(x[2], x[3]));
                add_chunk(sum, join8(join8(x[4], x[5]), join8(x[6], x[7])));
            }
            add_chunk(sum, x[0]);
            for (int c = 0; HALVING && !pick && c < 8; c++) sum[c] *= 0.5f;
        } else {
            n = 0;
            for (int j = 0; j < 8; j++) {
                int there = row + j < p.length && (!mask || mask[row + j]);
                if (there && !(pick && n))
                    add_chunk(sum, fetch_chunk<D>(at + j * t.row_stride, ch, a.dim));
                n += there;
            }
            for (int c = 0; !pick && c < 8; c++) sum[c] *= unit_of(3);
        }
        float4 *keep = (float4 *)(sums + r3 * D + 8 * ch);
        keep[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        keep[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
        if (ch == 0) counts[r3] = (float)n;
        if (row >= p.length) continue;
        *(uint4 *)(to3 + (int64_t)(row / 8) * D + 8 * ch) = pack8(sum);
        if (writes_counts && ch == 0) (is_q ? a.nq[1] : a.nk[1])[base3 + row / 8] = (float)n;
    }
    /* levels 6 (8 rows) and 9 (1 row): each from the one below, which moves to the front */
    int simple = !mask && !pick && p.first + COARSE_ROWS <= p.length;
    for (int s = 2, out = COARSE3 / 8; s < a.stages && out >= 1; s++, out /= 8) {
        __syncthreads();
        if (p.levels <= 3 * s) return;
        int64_t base = hti_tower_at(a, 3 * s, p.sequence, p.start);
        element *to = tower[s] + (head * a.tower[s] + base) * D;
        constexpr int MOST = (8 * D + 255) / 256;
        float sum[MOST], n[MOST];
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            int i = threadIdx.x + 256 * m, r = i / D, c = i % D, row = (p.first >> (3 * s)) + r;
            sum[m] = n[m] = 0;
            if (i >= out * D) continue;
            for (int j = 8 * r; j < 8 * r + 8; j++) {
                if (simple || (counts[j] > 0 && !(pick && n[m] > 0))) sum[m] += sums[j * D + c];
                if (!simple) n[m] += counts[j];
            }
            if (!pick) sum[m] *= unit_of(3);
            if (row >= (p.length + (1 << (3 * s)) - 1) >> (3 * s)) continue;
            to[(int64_t)row * D + c] = to_element(sum[m]);
            if (writes_counts && c == 0) (is_q ? a.nq[s] : a.nk[s])[base + row] = n[m];
        }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MOST; m++) {
            int i = threadIdx.x + 256 * m;
            if (i >= out * D) continue;
            sums[i] = sum[m];
            if (i % D == 0) counts[i / D] = n[m];
        }
    }
}

/* Stage s >= 4 from stage s - 1: only sequences beyond 65,536 rows have one. grid: (rows, planes)
 */
template <int D> __global__ void hier_coarsen_up(hti_hier_args a) {
    int s = a.stage, kv = blockIdx.x / (a.group + 2), part = blockIdx.x % (a.group + 2);
    int is_q = part < a.group, head = is_q ? kv * a.group + part : kv;
    int pick = is_q && a.query == HT_QUERY_FIRST, c = threadIdx.x;
    element *const *tower = is_q ? a.tq : part == a.group ? a.tk : a.tv;
    float *const *counted = is_q ? a.nq : a.nk;
    int masked = (is_q ? a.query_mask : a.key_mask) != nullptr;
    place p;
    if (!find_place(p, a, blockIdx.y, blockIdx.z, 3 * s, 1)) return;
    int64_t from = hti_tower_at(a, 3 * s - 3, p.sequence, p.start) + 8 * (int64_t)p.first;
    int64_t end =
        hti_tower_at(a, 3 * s - 3, p.sequence, p.start) + hti_clusters(p.length, 3 * s - 3);
    int64_t to = hti_tower_at(a, 3 * s, p.sequence, p.start) + p.first;
    float sum = 0, n = 0;
    for (int64_t j = from; j < from + 8 && j < end; j++) {
        float m = masked ? counted[s - 1][j] : 1;
        if (!(pick && n > 0) && m > 0)
            sum += from_element(tower[s - 1][(head * a.tower[s - 1] + j) * D + c]);
        n += m;
    }
    tower[s][(head * a.tower[s] + to) * D + c] = to_element(pick ? sum : sum * unit_of(3));
    if (masked && c == 0 && head == 0 && part <= a.group) counted[s][to] = n;
}

/* ---- a stage ---- */

/* PLAIN 1: the whole call is plain (no masks, hti_hier_whole); 0: a thread block inside its
 * sequence still is. */
template <int D, int PLAIN, int MODE, int BASE>
__global__ void __launch_bounds__(THREADS, D <= 64 ? 2 : 1) hier_stage(hti_hier_args a) {
    extern __shared__ __align__(128) char shared_bytes[];
    shared_rows<D> &sh = *(shared_rows<D> *)shared_bytes;
    int warp = warp_index(), lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    place p;
    /* backwards: what coarsening read last may still be in the L2 cache */
    int head = gridDim.x - 1 - blockIdx.x;
    if (a.stage == a.stages - 1) chain_wait(); /* for the tower, and starts of a packed batch */
    if (!find_place(p, a, gridDim.y - 1 - blockIdx.y, gridDim.z - 1 - blockIdx.z, 3 * a.stage,
                    CHUNK))
        return;
    chain_next();
    int kv = a.group == 1 ? head : head / a.group;
    source k = source_of<BASE>(a, p, a.fk, a.key_mask, a.nk, kv);
    source v = source_of<BASE>(a, p, a.fv, a.key_mask, a.nk, kv);
    source x = source_of<BASE>(a, p, a.fq, a.query_mask, a.nq, head);
    int inner = p.first >= HALO && p.first + CHUNK + HALO <= p.length >> (3 * a.stage);
    if (!PLAIN) inner = inner && !a.key_mask && !a.query_mask;
    int plain = PLAIN || inner, row = 16 * warp + g, dim = BASE ? a.dim : D;
    frag<D> q;
    float n[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        n[h] = plain ? 1 : count_of(a, p, x, p.first + row + 8 * h) * unit_of(3 * a.stage);
        int there = n[h] > 0 && p.first + 16 * warp < p.rows && (D > 16 || 4 * t < dim);
        load_row<D>(q, h, (const element *)(x.data + (row + 8 * h) * x.step), t, there, a.zero);
    }
    load_chunk<D, groups<MODE, BASE>::CAUSAL>(sh, p, k, v, dim);
    if (!plain) load_counts(sh, a, p, k);
    __syncthreads();
    if (p.first + 16 * warp >= p.rows) return;
    state<D> s;
    if (inner)
        attend_tile<D, 1, MODE, 1, BASE>(s, sh, a, p, q, n, head, warp, lane);
    else
        attend_tile<D, PLAIN, MODE, 0, BASE>(s, sh, a, p, q, n, head, warp, lane);
    store_tile<D, BASE>(s, a, p, n, p.first + 16 * warp, head, lane);
    if (!BASE && a.apart) chain_wait(); /* who waits for this stage waits for those above it, too */
}

/* ---- host ---- */

/* A level-0 sequence has hti_levels(length, 16) levels, three to a stage. */
static int stages_of(int64_t length, int local) {
    return local ? 1 : (hti_levels(length, 16) + 2) / 3;
}

/* Rows of the towers' stages. */
static void set_towers(hti_hier_args *a, int packed) {
    for (int s = 1; s < a->stages; s++) {
        int level = 3 * s;
        a->tower[s] = packed ? (a->rows >> level) + (a->rows >> (level + 3)) + 2
                             : a->sequences * hti_clusters(a->length, level);
    }
}

/* What backward takes over from forward: lse and the towers of q, k and v. */
size_t hti_hier_carve_saved(hti_hier_args *a, void *base, int dim, int with_lse) {
    hti_carver c = {(char *)base, 0};
    if (with_lse) a->saved = c.take<float>(a->q_heads * a->rows);
    for (int s = 1; s < a->stages; s++) {
        int64_t n = a->tower[s];
        a->tk[s] = c.take<element>(a->kv_heads * n * dim);
        a->tv[s] = c.take<element>(a->kv_heads * n * dim);
        a->tq[s] = c.take<element>(a->q_heads * n * dim);
        a->nk[s] = c.take<float>(n);
        a->nq[s] = c.take<float>(n);
    }
    return c.used;
}

static size_t carve_scratch(hti_hier_args *a, void *base, int dim, int packed) {
    hti_carver c = {(char *)base, 0};
    a->cu = packed ? c.take<int32_t>(a->sequences + 1) : nullptr;
    for (int s = 1; s < a->stages; s++) {
        a->tz[s] = c.take<element>(a->q_heads * a->tower[s] * dim);
        a->tl[s] = c.take<float>(a->q_heads * a->tower[s]);
    }
    if (a->stages > 1 && dim == HTI_WALK_DIM) a->lse0 = c.take<float>(a->q_heads * a->rows);
    return c.used;
}

/* Most that a call of the plan can need. Equal lengths round up once per sequence that has a stage,
 * which is longer than 8 of its clusters: no more than the packed layout allows for. */
void hti_hier_most(hti_hier_args *a, const ht_attention_desc *d) {
    *a = {};
    a->q_heads = (int)d->q_heads, a->kv_heads = (int)d->kv_heads;
    a->local = d->kind == HT_LOCAL;
    a->stages = stages_of(d->max_length, a->local);
    a->rows = d->max_rows;
    a->sequences = (int)d->max_sequences;
    set_towers(a, 1);
}

size_t hti_hier_saved(const ht_attention_desc *d) {
    hti_hier_args a;
    hti_hier_most(&a, d);
    return hti_hier_carve_saved(&a, nullptr, hti_hier_width(d), 1);
}

size_t hti_hier_forward_scratch(const ht_attention_desc *d) {
    hti_hier_args a;
    hti_hier_most(&a, d);
    return hti_hier_carve_saved(&a, nullptr, hti_hier_width(d), 0) +
           carve_scratch(&a, nullptr, hti_hier_width(d), 1);
}

template <int D, int PLAIN, int MODE>
static ht_status run_stage(ht_context *ctx, const hti_hier_args &a) {
    constexpr int UP = MODE >= LOCAL ? FIRST : MODE; /* local has no stages above */
    dim3 grid = grid_heads(a, 3 * a.stage, CHUNK, a.q_heads);
    size_t shared = sizeof(shared_rows<D>);
    if (MODE >= LOCAL || a.stage == 0)
        return launch_chained(ctx, hier_stage<D, PLAIN, MODE, 1>, "hier_stage", grid, THREADS,
                              shared, a);
    return launch_chained(ctx, hier_stage<D, PLAIN, UP, 0>, "hier_stage", grid, THREADS, shared, a);
}

static hti_flat flat_of(const ht_tensor &t) {
    return {(char *)t.data, (uint32_t)(t.batch_stride / 4), (uint32_t)(t.row_stride / 4),
            (uint32_t)(t.head_stride / 4)};
}

/* Tensors of a forward launch: the caller's, or towers. */
static void set_flats(hti_hier_args *a, int dim) {
    int s = a->stage;
    if (s == 0) {
        a->fq = flat_of(a->q), a->fk = flat_of(a->k), a->fv = flat_of(a->v),
        a->fz = flat_of(a->out);
        a->flse = a->saved, a->flse_head = a->rows;
        return;
    }
    uint32_t row = dim / 4, batch = (uint32_t)hti_clusters(a->length, 3 * s) * row,
             head = (uint32_t)a->tower[s] * row;
    a->fq = {(char *)a->tq[s], batch, row, head}, a->fk = {(char *)a->tk[s], batch, row, head};
    a->fv = {(char *)a->tv[s], batch, row, head}, a->fz = {(char *)a->tz[s], batch, row, head};
    a->flse = a->tl[s], a->flse_head = a->tower[s];
}

/* Stage s of a call. */
template <int D> static ht_status run_one(ht_context *ctx, hti_hier_args &a, int s) {
    hti_hier_set_stage(&a, s);
    set_flats(&a, D);
    int plain = !a.key_mask && !a.query_mask && !a.cu && hti_hier_whole(a.length, s);
    if (a.local && a.causal)
        return (plain ? run_stage<D, 1, LOCAL_CAUSAL> : run_stage<D, 0, LOCAL_CAUSAL>)(ctx, a);
    if (a.local) return (plain ? run_stage<D, 1, LOCAL> : run_stage<D, 0, LOCAL>)(ctx, a);
    if (a.query == HT_QUERY_MEAN)
        return (plain ? run_stage<D, 1, MEAN> : run_stage<D, 0, MEAN>)(ctx, a);
    if (a.causal)
        return (plain ? run_stage<D, 1, FIRST_CAUSAL> : run_stage<D, 0, FIRST_CAUSAL>)(ctx, a);
    return run_stage<D, 0, FIRST>(ctx, a);
}

/* Stages from s on are made from the one below. */
template <int D> static ht_status coarsen_up(ht_context *ctx, hti_hier_args &a, int s) {
    for (a.stage = s; a.stage < a.stages; a.stage++) {
        dim3 grid = grid_heads(a, 3 * a.stage, 1, a.q_heads + 2 * a.kv_heads);
        TRY(hti_cuda_launch(ctx, hier_coarsen_up<D>, "hier_coarsen_up", grid, D, 0, a));
    }
    return HT_OK;
}

/* Stage 0 by the walking kernel, stage 1 by the one that joins both: see walk.cu and
 * join.cu. */
template <int D> static ht_status run_walk(ht_context *ctx, hti_hier_args a) {
    hti_hier_set_stage(&a, 0);
    set_flats(&a, D);
    if (a.stages > 1) a.flse = a.lse0;
    a.fout = a.fz;
    TRY(hti_walk_base(ctx, &a));
    if (a.stages == 1) return HT_OK;
    a.apart = 1;
    if (a.stages > 2) TRY(hti_walk_lift(ctx, a));
    TRY(coarsen_up<D>(ctx, a, 4));
    for (int s = a.stages - 1; s >= 2; s--) TRY(run_one<D>(ctx, a, s));
    hti_hier_set_stage(&a, 1);
    set_flats(&a, D);
    return hti_walk_join(ctx, a);
}

template <int D> static ht_status run_forward(ht_context *ctx, hti_hier_args a) {
    if (D == HTI_WALK_DIM && hti_walk_takes(ctx, a)) return run_walk<D>(ctx, a);
    int planes = a.q_heads + 2 * a.kv_heads;
    if (a.stages > 1) {
        size_t shared = (COARSE3 * D + COARSE3) * sizeof(float);
        dim3 grid = grid_heads(a, 0, COARSE_ROWS, planes);
        TRY(hti_cuda_launch(ctx, hier_coarsen<D>, "hier_coarsen", grid, 256, shared, a));
    }
    TRY(coarsen_up<D>(ctx, a, 4));
    for (int s = a.stages - 1; s >= 0; s--) TRY(run_one<D>(ctx, a, s));
    return HT_OK;
}

void hti_hier_set_stage(hti_hier_args *a, int stage) {
    a->stage = stage;
    for (int l = 0; l < 3; l++) {
        a->whole[l] = (float)((int64_t)1 << (3 * stage + l));
        a->factor[l] = a->scale;
        if (HALVING) continue;
        a->factor[l] /= a->whole[l];
        if (a->query == HT_QUERY_MEAN) a->factor[l] /= a->whole[l];
    }
}

/* What forward and backward share. */
void hti_hier_set(hti_hier_args *a, const hti_attention_call *c) {
    const ht_attention_desc *d = c->desc;
    *a = {};
    a->sequences = (int)c->sequences, a->length = (int)c->length;
    a->rows = c->rows;
    a->q_heads = (int)d->q_heads, a->kv_heads = (int)d->kv_heads,
    a->group = a->q_heads / a->kv_heads;
    a->local = d->kind == HT_LOCAL;
    a->dim = (int)d->head_dim;
    a->query = a->local ? HT_QUERY_MEAN : d->query, a->causal = d->causal;
    a->stages = stages_of(c->length, a->local);
    a->scale = (float)(d->scale * 1.4426950408889634);
    a->q = c->q, a->k = c->k, a->v = c->v, a->out = c->out, a->lse = c->lse;
    a->key_mask = c->key_mask, a->query_mask = c->query_mask;
    set_towers(a, c->cu_seqlens != nullptr);
}

ht_status hti_hier_forward(ht_context *ctx, const hti_attention_call *c) {
    int dim = hti_hier_width(c->desc);
    hti_hier_args a;
    hti_hier_set(&a, c);
    char *rest = (char *)c->scratch;
    if (c->saved)
        hti_hier_carve_saved(&a, c->saved, dim, 1);
    else
        rest += hti_hier_carve_saved(&a, rest, dim, 0);
    carve_scratch(&a, rest, dim, c->cu_seqlens != nullptr);
    if (a.cu) TRY(hti_cuda_upload(ctx, (int32_t *)a.cu, c->cu_seqlens, c->sequences + 1));
    switch (dim) {
    case 16: return run_forward<16>(ctx, a);
    case 32: return run_forward<32>(ctx, a);
    case 64: return run_forward<64>(ctx, a);
    default: return run_forward<128>(ctx, a);
    }
}

} // namespace HTI_KERNELS
