/*
 * Reference kernels, part 4: the decode state, row by row. See op.h for what a level holds and when
 * it is made.
 */
#include "cpu/cpu.h"

/* One (sequence, key head) of a call and its rings. */
typedef struct FN(decoder) {
    FN(unit) u; /* call, desc, block, d, dv, head: what scores need */
    const hti_cache_call *call;
    FN(chooser) chooser;
    int64_t state;     /* slot * kv_heads + kv_head */
    real *turn, *back; /* [d]: angles of the row at work, and of one that is turned back */
    real *key, *query; /* [d]: its key and query turned or turned back */
} FN(decoder);

/* Row of a level at which cluster c lies. */
static int64_t FN(ring_row)(const FN(decoder) *s, int level, int64_t c) {
    int64_t ring = hti_cache_ring(s->u.desc, s->call->ring, level);
    return s->state * ring + c % ring;
}

static real *FN(ring_k)(const FN(decoder) *s, int level, int64_t c) {
    return (real *)s->call->level[level].k + FN(ring_row)(s, level, c) * s->u.d;
}

static real *FN(ring_v)(const FN(decoder) *s, int level, int64_t c) {
    return (real *)s->call->level[level].v + FN(ring_row)(s, level, c) * s->u.dv;
}

static float *FN(ring_n)(const FN(decoder) *s, int level, int64_t c) {
    return s->call->level[level].n + FN(ring_row)(s, level, c);
}

/* Opening with rotary: the last 2*block keys, turned. */
static real *FN(near_keys)(const FN(decoder) *s) {
    if (s->u.desc->rotary_theta == 0) return NULL;
    return (real *)s->call->level[0].near + s->state * 2 * s->u.block * s->u.d;
}

/* The key of a cluster as coarsening wants it: without opening level 0 is stored turned. */
static const real *FN(plain_key)(FN(decoder) *s, int level, int64_t c) {
    const real *k = FN(ring_k)(s, level, c);
    if (level > 0 || s->u.desc->rotary_theta == 0 || s->u.desc->open > 0) return k;
    FN(angles)(s->back, c, s->u.desc->rotary_theta, s->u.d);
    FN(rotate)(s->key, k, s->back, s->u.d, -1);
    return s->key;
}

/* Cluster c of level l from its two children, both complete. */
static void FN(complete)(FN(decoder) *s, int level, int64_t c) {
    real *k = FN(ring_k)(s, level, c), *v = FN(ring_v)(s, level, c);
    real na = (real)*FN(ring_n)(s, level - 1, 2 * c),
         nb = (real)*FN(ring_n)(s, level - 1, 2 * c + 1);
    /* plain_key has one buffer: the first child goes through k itself */
    memcpy(k, FN(plain_key)(s, level - 1, 2 * c), sizeof(real) * (size_t)s->u.d);
    FN(mean2)(k, k, FN(plain_key)(s, level - 1, 2 * c + 1), na, nb, s->u.d);
    FN(mean2)(v, FN(ring_v)(s, level - 1, 2 * c), FN(ring_v)(s, level - 1, 2 * c + 1), na, nb,
              s->u.dv);
    *FN(ring_n)(s, level, c) = (float)(na + nb);
}

/* Row t of the slot, row i of the call. */
static void FN(append)(FN(decoder) *s, int64_t kv_head, int64_t i, int64_t t) {
    const hti_attention_call *a = &s->call->a;
    int levels = s->u.desc->kind == HT_HIERARCHICAL ? hti_levels(t + 1, s->u.block) : 1;
    if (levels > 1 && t == s->u.block << (levels - 1)) { /* a new level: its block 0 lies below */
        for (int64_t c = 0; c < s->u.block; c++) FN(complete)(s, levels - 1, c);
        if (s->call->level[levels - 1].cluster) s->call->level[levels - 1].cluster[s->state] = -1;
    }
    const real *k = (const real *)a->k.data + hti_call_base(a, &a->k, s->u.sequence) +
                    i * a->k.row_stride + kv_head * a->k.head_stride;
    const real *v = (const real *)a->v.data + hti_call_base(a, &a->v, s->u.sequence) +
                    i * a->v.row_stride + kv_head * a->v.head_stride;
    int valid = FN(takes_part)(a->key_mask, hti_call_start(a, s->u.sequence) + i);
    real *to = FN(ring_k)(s, 0, t), *to_v = FN(ring_v)(s, 0, t);
    for (int x = 0; x < s->u.d; x++) to[x] = valid ? k[x] : 0;
    for (int x = 0; x < s->u.dv; x++) to_v[x] = valid ? v[x] : 0;
    *FN(ring_n)(s, 0, t) = (float)valid;
    if (s->u.desc->rotary_theta > 0) {
        FN(angles)(s->turn, t, s->u.desc->rotary_theta, s->u.d);
        if (s->u.desc->open > 0) to = FN(near_keys)(s) + t % (2 * s->u.block) * s->u.d;
        FN(rotate)(to, FN(ring_k)(s, 0, t), s->turn, s->u.d, 1);
    }
    for (int l = 1; l < levels && (t + 1) % ((int64_t)1 << l) == 0; l++)
        FN(complete)(s, l, ((t + 1) >> l) - 1);
}

/* Query q of cluster c against the keys it sees at a level; adds to the softmax state (max, sum,
 * acc). */
static void FN(attend_ring)(FN(decoder) *s, real *max, real *sum, real *acc, const real *q,
                            int level, int64_t c) {
    hti_range r = {0, c + 1};
    if (s->u.desc->kind != HT_FULL) r = hti_keys_left(INT64_MAX, s->u.block, level, 1, c);
    for (int64_t j = r.lo; j < r.hi; j++) {
        real n = (real)*FN(ring_n)(s, level, j);
        if (n == 0) continue;
        real score = FN(score_of)(&s->u, q, FN(ring_k)(s, level, j), j - c);
        const real *v = FN(ring_v)(s, level, j);
        if (*sum == 0 || score > *max) {
            real keep = *sum == 0 ? 0 : FN(exp)(*max - score);
            *sum *= keep;
            for (int x = 0; x < s->u.dv; x++) acc[x] *= keep;
            *max = score;
        }
        real w = n * FN(exp)(score - *max);
        *sum += w;
        for (int x = 0; x < s->u.dv; x++) acc[x] += w * v[x];
    }
}

/* Coarse level of mode first: computed by the cluster's first valid row, kept for the others. */
static real *FN(part_of)(FN(decoder) *s, int level, int64_t head) {
    const hti_cache_level *lev = &s->call->level[level];
    int64_t slot = s->state / s->u.desc->kv_heads;
    return (real *)lev->part + (slot * s->u.desc->q_heads + head) * (s->u.dv + 2);
}

/* state [2 + dv]: max, sum, numerator of query head `head` at row t, all levels. `fresh`: levels
 * whose cluster begins with this row (bit l). */
static void FN(attend_state)(FN(decoder) *s, real *state, const real *q, int64_t head, int64_t t,
                             int levels, uint64_t fresh) {
    const real *turned = q;
    s->u.head = head;
    if (s->u.desc->rotary_theta > 0) { /* append has made the angles of row t */
        FN(rotate)(s->query, q, s->turn, s->u.d, 1);
        turned = s->query;
    }
    memset(state, 0, sizeof(real) * (size_t)(s->u.dv + 2));
    if (s->u.desc->open > 0) {
        FN(attend_opened)(&s->u, &s->chooser, t, q, turned, &state[0], &state[1], state + 2);
        return;
    }
    FN(attend_ring)(s, &state[0], &state[1], state + 2, turned, 0, t);
    for (int l = 1; l < levels; l++) {
        real *part = state;
        if (s->u.desc->query == HT_QUERY_FIRST) {
            part = FN(part_of)(s, l, head);
            if (fresh >> l & 1) memset(part, 0, sizeof(real) * (size_t)(s->u.dv + 2));
        }
        if (part == state || fresh >> l & 1)
            FN(attend_ring)(s, &part[0], &part[1], part + 2, q, l, t >> l);
        if (part != state)
            FN(merge)(&state[0], &state[1], state + 2, part[0], part[1], part + 2, s->u.dv);
    }
}

/* Levels at which row t is the first valid row of its cluster, and remembers that it was. */
static uint64_t FN(begin_clusters)(FN(decoder) *s, int64_t t, int levels) {
    uint64_t fresh = 0;
    for (int l = 1; l < levels && s->call->level[l].cluster; l++) {
        int64_t *cluster = &s->call->level[l].cluster[s->state];
        if (*cluster != t >> l) fresh |= (uint64_t)1 << l;
        *cluster = t >> l;
    }
    return fresh;
}

static void FN(emit)(FN(decoder) *s, const real *state, int64_t i, int64_t head) {
    const hti_attention_call *a = &s->call->a;
    real *z = (real *)a->out.data + hti_call_base(a, &a->out, s->u.sequence) +
              i * a->out.row_stride + head * a->out.head_stride;
    real inv = state[1] == 0 ? 0 : 1 / state[1];
    for (int x = 0; x < s->u.dv; x++) z[x] = state[2 + x] * inv;
    if (!a->lse.data) return;
    real *lse = (real *)a->lse.data + hti_call_base(a, &a->lse, s->u.sequence);
    lse[i * a->lse.row_stride + head * a->lse.head_stride] =
        state[1] == 0 ? -(real)INFINITY : state[0] + FN(log)(state[1]);
}

/* Opening: the state as a pyramid of t + 1 rows. */
static void FN(see_state)(FN(decoder) *s, int64_t t, int levels) {
    s->u.held = s->call->level;
    s->u.length = t + 1;
    s->u.levels = levels;
    s->u.kt = FN(near_keys)(s);
    for (int l = 0; l < levels; l++) {
        s->u.rows[l] = hti_clusters(t + 1, l);
        s->u.first[l] = FN(ring_row)(s, l, 0);
    }
}

static void FN(extend_row)(FN(decoder) *s, real *state, int64_t kv_head, int64_t i, int64_t t) {
    const hti_attention_call *a = &s->call->a;
    int64_t group = s->u.desc->q_heads / s->u.desc->kv_heads;
    int levels = s->u.desc->kind == HT_HIERARCHICAL ? hti_levels(t + 1, s->u.block) : 1;
    int valid = FN(takes_part)(a->query_mask, hti_call_start(a, s->u.sequence) + i);
    FN(append)(s, kv_head, i, t);
    if (s->u.desc->open > 0) FN(see_state)(s, t, levels);
    uint64_t fresh = valid ? FN(begin_clusters)(s, t, levels) : 0;
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        const real *q = (const real *)a->q.data + hti_call_base(a, &a->q, s->u.sequence) +
                        i * a->q.row_stride + h * a->q.head_stride;
        memset(state, 0, sizeof(real) * (size_t)(s->u.dv + 2));
        if (valid) FN(attend_state)(s, state, q, h, t, levels, fresh);
        FN(emit)(s, state, i, h);
    }
}

/* Most rows and clusters that take part for a row. */
static int64_t FN(most_parts)(const ht_attention_desc *d, int64_t length) {
    int64_t leaf = d->open_leaf > 2 ? d->open_leaf : 2, level;
    if (leaf >= length || d->open >= length / leaf) return length;
    level = hti_open_candidates(d, length) + d->open * leaf;
    int64_t most = 2 * d->block + hti_levels(length, d->block) * level;
    return most < length ? most : length;
}

/* What a thread needs: [returned] bytes. state: [dv + 2] */
static size_t FN(decoder_layout)(FN(decoder) *s, real **state, char *base,
                                 const hti_cache_call *call) {
    const ht_attention_desc *d = call->a.desc;
    size_t used = 0;
    s->turn = FN(take)(base, &used, d->head_dim);
    s->back = FN(take)(base, &used, d->head_dim);
    s->key = FN(take)(base, &used, d->head_dim);
    s->query = FN(take)(base, &used, d->head_dim);
    *state = FN(take)(base, &used, d->value_dim + 2);
    if (d->open == 0) return used;
    int64_t parts = FN(most_parts)(d, call->ring);
    FN(chooser_layout)(&s->chooser, base, &used, d, call->ring, parts);
    s->u.score = FN(take)(base, &used, parts);
    return used;
}

static size_t FN(cache_thread_bytes)(const hti_cache_call *call) {
    FN(decoder) s;
    real *state;
    return FN(decoder_layout)(&s, &state, NULL, call);
}

static void FN(extend_unit)(const hti_cache_call *call, char *scratch, int64_t b, int64_t kv_head) {
    const ht_attention_desc *d = call->a.desc;
    FN(decoder) s = {.call = call, .state = call->slots[b] * d->kv_heads + kv_head};
    real *state;
    s.u = (FN(unit)){.call = &call->a,
                     .desc = d,
                     .sequence = b,
                     .block = d->block,
                     .d = (int)d->head_dim,
                     .dv = (int)d->value_dim};
    FN(decoder_layout)(&s, &state, scratch, call);
    for (int64_t i = 0; i < hti_call_length(&call->a, b); i++)
        FN(extend_row)(&s, state, kv_head, i, call->positions[b] + i);
}

/* Numbers that a call touches: a single token is done before a second thread has woken up. */
static int64_t FN(cache_work)(const hti_cache_call *call) {
    const ht_attention_desc *d = call->a.desc;
    int64_t keys = d->kind == HT_FULL ? call->ring : d->block * (2 + call->levels / 2);
    if (d->open > 0) keys += call->levels * 2 * hti_open_candidates(d, call->ring);
    return call->a.rows * d->q_heads * keys * (d->head_dim + d->value_dim);
}

static void FN(cache_extend)(ht_context *ctx, const hti_cache_call *call) {
    int64_t kv = call->a.desc->kv_heads, units = call->a.sequences * kv;
    size_t bytes = FN(cache_thread_bytes)(call);
#pragma omp parallel for num_threads(hti_cpu_team(ctx, FN(cache_work)(call))) schedule(static)
    for (int64_t i = 0; i < units; i++)
        FN(extend_unit)(call, (char *)call->a.scratch + bytes * (size_t)hti_cpu_thread(), i / kv,
                        i % kv);
}
