/*
 * Decoding: rows join the state of their slot one by one and attend with it (op.h says what a level
 * holds and when it is made). One query meets keys in their natural layout: a score is a product of
 * two rows, summed over lanes; the keys of all levels that a row sees are scored first, so that
 * they share one maximum and one pass of exponentials. Scores are in natural units here: what is
 * kept of a level (query first) has the same meaning on every device.
 */

/* Keys scored before their values are summed, and the runs of rows they may come from. */
enum { DECODE_KEYS = 512, DECODE_RUNS = 512 };

/* Multiplications below which threads cost more than they save: between tokens they fall asleep. */
#define DECODE_ALONE 1e6

/* One (sequence, key head) of a call. */
typedef struct decoder {
    const hti_cache_call *call;
    const ht_attention_desc *desc;
    int64_t sequence, kv, state; /* state: slot * kv_heads + kv */
    int64_t d, dv, ring, head;
    struct opener *opener; /* opening: the thread's (cache_open.h) */
    float *near;           /* opening with rotary: the ring of turned keys */
    const float *turn;     /* rotary: [1 + rows][d] cosines and sines of positions[b] - 1 ... */
    const double *speed;   /* rotary: [d / 2] angle of position 1 */
    float query[HTI_MAX_DIM], key[2][HTI_MAX_DIM];
    /* keys that wait for flush: scores, valid rows, values */
    int64_t keys;
    int runs;
    float s[DECODE_KEYS], n[DECODE_KEYS];
    struct {
        const float *v;
        int64_t count;
    } run[DECODE_RUNS];
} decoder;

INLINE int64_t ring_row(const decoder *o, int level, int64_t c) {
    int64_t ring = hti_cache_ring(o->desc, o->ring, level);
    return o->state * ring + (o->desc->open > 0 ? c : c % ring);
}
INLINE float *level_k(const decoder *o, int level, int64_t c) {
    return (float *)o->call->level[level].k + ring_row(o, level, c) * o->d;
}
INLINE float *level_v(const decoder *o, int level, int64_t c) {
    return (float *)o->call->level[level].v + ring_row(o, level, c) * o->dv;
}
INLINE float *level_n(const decoder *o, int level, int64_t c) {
    return o->call->level[level].n + ring_row(o, level, c);
}

/* The key of row t as level 0 meets it. */
INLINE float *near_k(const decoder *o, int64_t t) {
    return o->near ? o->near + t % (2 * o->desc->block) * o->d : level_k(o, 0, t);
}

/* ---- appending ---- */

/* Cosines, then sines, of a position. */
static void angles_of(float *turn, const double *speed, int64_t position, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        double a = (double)position * speed[i];
        turn[i] = (float)cos(a);
        turn[half + i] = (float)sin(a);
    }
}

/* The key of row c of the slot, turned back. */
static void plain_key(decoder *o, float *to, int64_t c) {
    float own[HTI_MAX_DIM];
    const float *turn = own;
    int64_t row = c + 1 - o->call->positions[o->sequence]; /* of o->turn */
    if (row >= 0) {
        turn = o->turn + row * o->d;
    } else {
        angles_of(own, o->speed, c, o->d / 2);
    }
    turn_by(to, level_k(o, 0, c), turn, o->d, -1);
}

static void mean_of(float *to, const float *a, const float *b, float na, float nb, int64_t w) {
    float inv = na + nb > 0 ? 1 / (na + nb) : 0;
    for (int64_t c = 0; c < w; c++) to[c] = (na * a[c] + nb * b[c]) * inv;
}

/* Cluster c of a level >= 1 from its two children, both complete. */
static void complete(decoder *o, int level, int64_t c) {
    float na = *level_n(o, level - 1, 2 * c), nb = *level_n(o, level - 1, 2 * c + 1);
    const float *a = level_k(o, level - 1, 2 * c), *b = level_k(o, level - 1, 2 * c + 1);
    if (level == 1 && o->turn && !o->near) {
        plain_key(o, o->key[0], 2 * c);
        plain_key(o, o->key[1], 2 * c + 1);
        a = o->key[0], b = o->key[1];
    }
    mean_of(level_k(o, level, c), a, b, na, nb, o->d);
    mean_of(level_v(o, level, c), level_v(o, level - 1, 2 * c), level_v(o, level - 1, 2 * c + 1),
            na, nb, o->dv);
    *level_n(o, level, c) = na + nb;
}

/* Row t of the slot, row i of the call. */
static void append(decoder *o, int64_t i, int64_t t, int levels) {
    const hti_attention_call *a = &o->call->a;
    if (levels > 1 && t == o->desc->block << (levels - 1)) { /* a new level: block 0 lies below */
        for (int64_t c = 0; c < o->desc->block; c++) complete(o, levels - 1, c);
        if (o->call->level[levels - 1].cluster) o->call->level[levels - 1].cluster[o->state] = -1;
    }
    view k = view_of(a, &a->k, o->sequence, o->kv), v = view_of(a, &a->v, o->sequence, o->kv);
    int valid = !a->key_mask || a->key_mask[hti_call_start(a, o->sequence) + i];
    float *to = level_k(o, 0, t), *to_v = level_v(o, 0, t);
    *level_n(o, 0, t) = (float)valid;
    if (valid) {
        memcpy(to, k.data + i * k.stride, sizeof(float) * (size_t)o->d);
        memcpy(to_v, v.data + i * v.stride, sizeof(float) * (size_t)o->dv);
        if (o->turn) turn_by(near_k(o, t), to, o->turn + (i + 1) * o->d, o->d, 1);
    } else {
        memset(to, 0, sizeof(float) * (size_t)o->d);
        memset(to_v, 0, sizeof(float) * (size_t)o->dv);
        if (o->near) memset(near_k(o, t), 0, sizeof(float) * (size_t)o->d);
    }
    for (int l = 1; l < levels && (t + 1) % ((int64_t)1 << l) == 0; l++)
        complete(o, l, ((t + 1) >> l) - 1);
}

/* ---- scores ---- */

/* R products of q with rows of k, d apart. q is padded with zeros. */
INLINE void products(const int R, float *s, const float *q, const float *k, int64_t d) {
    vf a[4];
    int64_t c = 0;
    UNROLL for (int r = 0; r < R; r++) a[r] = vf_zero();
    for (; c + VW <= d; c += VW) {
        vf y = vf_load(q + c);
        UNROLL for (int r = 0; r < R; r++) a[r] = vf_fma(y, vf_load(k + r * d + c), a[r]);
    }
    if (c < d) {
        vf y = vf_load(q + c);
        UNROLL for (int r = 0; r < R; r++) {
            a[r] = vf_fma(y, vf_load_n(k + r * d + c, (int)(d - c)), a[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) s[r] = vf_sum(a[r]);
}

/* s = scale times the products of q with n rows of k. */
static void product_run(float *s, const float *q, const float *k, float scale, int64_t n,
                        int64_t d) {
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) products(4, s + j, q, k + j * d, d);
    for (; j < n; j++) products(1, s + j, q, k + j * d, d);
    for (j = 0; j < n; j++) s[j] *= scale;
}

/* Where the bias of a distance lies; kind full and opening clamp it. */
INLINE int64_t bias_at(const decoder *o, int64_t x) {
    int64_t last = 2 * o->desc->block - 1;
    x = x < -last ? -last : least(x, last);
    return (x + last) * o->desc->q_heads + o->head;
}

/* Scores of clusters [from, from + n), which lie one after the other, with keys k; query cluster c.
 */
static void score_run(decoder *o, const float *q, const float *k, int level, int64_t c,
                      int64_t from, int64_t n) {
    const float *count = level_n(o, level, from), *bias = o->call->a.bias;
    float *s = o->s + o->keys;
    product_run(s, q, k, (float)o->desc->scale, n, o->d);
    for (int64_t j = 0; j < n; j++) {
        if (bias) s[j] += bias[bias_at(o, from + j - c)];
        o->n[o->keys + j] = count[j];
    }
    o->run[o->runs].v = level_v(o, level, from);
    o->run[o->runs++].count = n;
    o->keys += n;
}

/* ---- values ---- */

/* acc[col ...] = keep acc + sum of p v, NV vectors (or, NV 0, what is left of a row). */
INLINE void decode_block(const int NV, const decoder *o, float *acc, float keep, int64_t col) {
    vf a[4];
    const int n = NV ? NV : 1;
    int left = (int)(o->dv - col);
    UNROLL for (int v = 0; v < n; v++) {
        a[v] = NV ? vf_load(acc + col + v * VW) : vf_load_n(acc + col, left);
        a[v] = vf_mul(a[v], vf_set1(keep));
    }
    const float *p = o->s;
    for (int i = 0; i < o->runs; i++) {
        const float *row = o->run[i].v + col;
        for (int64_t j = 0; j < o->run[i].count; j++, p++, row += o->dv) {
            vf b = vf_set1(*p);
            UNROLL for (int v = 0; v < n; v++) {
                a[v] = vf_fma(b, NV ? vf_load(row + v * VW) : vf_load_n(row, left), a[v]);
            }
        }
    }
    UNROLL for (int v = 0; v < n; v++) {
        if (NV) {
            vf_store(acc + col + v * VW, a[v]);
        } else {
            vf_store_n(acc + col, a[v], left);
        }
    }
}

INLINE vf exp_v(vf x) { return exp2_v(vf_mul(x, vf_set1((float)LOG2_E))); }

/* Largest of the scores that count; -inf: none. */
static float top_score(decoder *o) {
    float lanes[VW], top = -INFINITY;
    vf max = vf_set1(-INFINITY);
    for (int64_t j = 0; j < o->keys; j += VW) {
        vf s = vf_pick_positive(vf_load(o->n + j), vf_load(o->s + j), vf_set1(-INFINITY));
        vf_store(o->s + j, s);
        max = vf_max(s, max);
    }
    vf_store(lanes, max);
    for (int i = 0; i < VW; i++) top = lanes[i] > top ? lanes[i] : top;
    return top;
}

/* The waiting keys join a state: maximum, sum, numerator. */
static void flush(decoder *o, float *state) {
    for (int64_t j = o->keys; j % VW; j++) o->s[j] = o->n[j] = 0;
    float top = top_score(o), keep = 1;
    vf sum = vf_zero();
    int any = top > -INFINITY;
    for (int64_t j = 0; j < o->keys && !any; j++) any = isnan(o->s[j]);
    if (any) {
        if (state[1] != 0 && !(top > state[0])) top = state[0];
        keep = state[1] == 0 ? 0 : expf(state[0] - top);
        for (int64_t j = 0; j < o->keys; j += VW) {
            vf p = exp_v(vf_sub(vf_load(o->s + j), vf_set1(top)));
            p = vf_mul(p, vf_load(o->n + j));
            vf_store(o->s + j, p);
            sum = vf_add(sum, p);
        }
        state[0] = top;
        state[1] = state[1] * keep + vf_sum(sum);
        int64_t col = 0;
        for (; col + 4 * VW <= o->dv; col += 4 * VW) decode_block(4, o, state + 2, keep, col);
        for (; col + VW <= o->dv; col += VW) decode_block(1, o, state + 2, keep, col);
        if (col < o->dv) decode_block(0, o, state + 2, keep, col);
    }
    o->keys = 0;
    o->runs = 0;
}

/* Clusters r of a level, towards `state`; query cluster c. */
static void see_run(decoder *o, float *state, const float *q, int level, int64_t c, hti_range r) {
    int64_t ring = hti_cache_ring(o->desc, o->ring, level);
    for (int64_t from = r.lo; from < r.hi;) {
        int64_t n = least(r.hi - from, ring - from % ring);
        n = least(n, DECODE_KEYS - o->keys);
        if (n == 0 || o->runs == DECODE_RUNS) {
            flush(o, state);
            continue;
        }
        score_run(o, q, level_k(o, level, from), level, c, from, n);
        from += n;
    }
}

/* All keys that query cluster c sees at a level, towards `state`. */
static void see_level(decoder *o, float *state, const float *q, int level, int64_t c) {
    hti_range r = {0, c + 1};
    if (o->desc->kind != HT_FULL) r = hti_keys_left(INT64_MAX, o->desc->block, level, 1, c);
    see_run(o, state, q, level, c, r);
}

/* Level 0 of row t from the ring of turned keys. */
static void see_near(decoder *o, float *state, const float *q, int64_t t) {
    int64_t ring = 2 * o->desc->block;
    hti_range r = hti_keys_left(INT64_MAX, o->desc->block, 0, 1, t);
    for (int64_t from = r.lo, n; from < r.hi; from += n) {
        n = least(least(r.hi - from, ring - from % ring), DECODE_KEYS - o->keys);
        if (n == 0) {
            flush(o, state);
            continue;
        }
        score_run(o, q, near_k(o, from), 0, t, from, n);
    }
}

#include "cpu/kernel/cache_open.h"

/* ---- one row ---- */

/* state += the parts of the coarse levels (query first): one maximum, then weighted sums. */
static void merge_parts(const decoder *o, float *state, int levels) {
    const float *part[HTI_MAX_LEVELS];
    float w[HTI_MAX_LEVELS + VW], top = -INFINITY, sum = 0;
    int n = 0;
    int64_t slot = o->state / o->desc->kv_heads;
    part[n++] = state;
    for (int l = 1; l < levels; l++)
        part[n++] = (const float *)o->call->level[l].part +
                    (slot * o->desc->q_heads + o->head) * (o->dv + 2);
    for (int i = 0; i < n; i++)
        if (part[i][1] != 0 && part[i][0] > top) top = part[i][0];
    for (int i = 0; i < HTI_MAX_LEVELS + VW; i++)
        w[i] = i < n && part[i][1] != 0 ? part[i][0] - top : -INFINITY;
    for (int i = 0; i < n; i += VW) vf_store(w + i, exp_v(vf_load(w + i)));
    for (int i = 0; i < n; i++) sum += w[i] * part[i][1];
    for (int64_t c = 0; c < o->dv; c += VW) {
        int left = (int)least(o->dv - c, VW);
        vf a = vf_zero();
        for (int i = 0; i < n; i++)
            if (part[i][1] != 0) a = vf_fma(vf_set1(w[i]), vf_load_n(part[i] + 2 + c, left), a);
        vf_store_n(state + 2 + c, a, left);
    }
    if (sum != 0) state[0] = top, state[1] = sum;
}

/* Row t with query q: all levels. fresh: levels whose cluster begins with this row (bit l). */
static void attend_row(decoder *o, float *state, const float *q, const float *turned, int64_t t,
                       int levels, uint64_t fresh) {
    int first = o->desc->query == HT_QUERY_FIRST;
    int64_t slot = o->state / o->desc->kv_heads;
    if (o->near) {
        see_near(o, state, turned, t);
    } else {
        see_level(o, state, turned, 0, t);
    }
    if (o->desc->open > 0) descend(o, state, q, t, levels);
    for (int l = 1; l < levels && !first && o->desc->open == 0; l++)
        see_level(o, state, q, l, t >> l);
    flush(o, state);
    if (!first || levels == 1) return;
    for (int l = 1; l < levels; l++) {
        float *part =
            (float *)o->call->level[l].part + (slot * o->desc->q_heads + o->head) * (o->dv + 2);
        if (!(fresh >> l & 1)) continue;
        memset(part, 0, sizeof(float) * (size_t)(o->dv + 2));
        see_level(o, part, q, l, t >> l);
        flush(o, part);
    }
    merge_parts(o, state, levels);
}

/* Levels at which row t is the first valid row of its cluster, and remembers that it was. */
static uint64_t begin_clusters(const decoder *o, int64_t t, int levels) {
    uint64_t fresh = 0;
    for (int l = 1; l < levels && o->call->level[l].cluster; l++) {
        int64_t *cluster = &o->call->level[l].cluster[o->state];
        if (*cluster != t >> l) fresh |= (uint64_t)1 << l;
        *cluster = t >> l;
    }
    return fresh;
}

static void emit(const decoder *o, const float *state, int64_t i) {
    const hti_attention_call *a = &o->call->a;
    view z = view_of(a, &a->out, o->sequence, o->head);
    float inv = state[1] == 0 ? 0 : 1 / state[1];
    for (int64_t x = 0; x < o->dv; x++) z.data[i * z.stride + x] = state[2 + x] * inv;
    if (!a->lse.data) return;
    view lse = view_of(a, &a->lse, o->sequence, o->head);
    lse.data[i * lse.stride] = state[1] == 0 ? -INFINITY : state[0] + logf(state[1]);
}

/* Row i of the call, row t of the slot. */
static void extend_row(decoder *o, int64_t i, int64_t t) {
    const hti_attention_call *a = &o->call->a;
    int64_t group = o->desc->q_heads / o->desc->kv_heads;
    int levels = o->desc->kind == HT_HIERARCHICAL ? hti_levels(t + 1, o->desc->block) : 1;
    int valid = !a->query_mask || a->query_mask[hti_call_start(a, o->sequence) + i];
    append(o, i, t, levels);
    uint64_t fresh = valid ? begin_clusters(o, t, levels) : 0;
    for (o->head = o->kv * group; o->head < (o->kv + 1) * group; o->head++) {
        float state[HTI_MAX_DIM + 2], turned[HTI_MAX_DIM + VW];
        memset(state, 0, sizeof(float) * (size_t)(o->dv + 2));
        if (valid) {
            view q = view_of(a, &a->q, o->sequence, o->head);
            copy_row(o->query, q.data + i * q.stride, o->d, (o->d + VW - 1) / VW * VW);
            if (o->turn) {
                copy_row(turned, o->query, o->d, (o->d + VW - 1) / VW * VW);
                turn_by(turned, o->query, o->turn + (i + 1) * o->d, o->d, 1);
            }
            attend_row(o, state, o->query, o->turn ? turned : o->query, t, levels, fresh);
        }
        emit(o, state, i);
    }
}

/* ---- entries ---- */

/* Scratch: speeds, then for every sequence the angles of its rows and of the one before them;
 * opening: each thread's candidates. */
typedef struct decode_room {
    double *speed;
    float *turn;
    char *openers;
    size_t opener_bytes;
} decode_room;

static size_t decode_take(decode_room *out, hti_arena *c, const hti_cache_call *call, int threads) {
    int64_t d = call->a.desc->rotary_theta > 0 ? call->a.desc->head_dim : 0;
    hti_arena one = {NULL, 0};
    opener probe;
    out->speed = hti_take(c, d, sizeof(double));
    out->turn = hti_take(c, (call->a.rows + call->a.sequences) * d, sizeof(float));
    opener_take(&probe, &one, call);
    out->opener_bytes = one.used;
    out->openers = hti_take(c, threads, one.used);
    return c->used;
}

static void decode_angles(const hti_cache_call *call, double *speed, float *turn) {
    const hti_attention_call *a = &call->a;
    int64_t d = a->desc->head_dim, half = d / 2;
    for (int64_t i = 0; i < half; i++)
        speed[i] = pow(a->desc->rotary_theta, -2.0 * (double)i / (double)d);
    for (int64_t b = 0; b < a->sequences; b++) {
        float *to = turn + (hti_call_start(a, b) + b) * d;
        for (int64_t i = 0; i <= hti_call_length(a, b); i++)
            angles_of(to + i * d, speed, call->positions[b] - 1 + i, half);
    }
}

static void extend_unit(const hti_cache_call *call, const decode_room *room, int64_t b,
                        int64_t kv) {
    const ht_attention_desc *d = call->a.desc;
    hti_arena own = {room->openers + room->opener_bytes * (size_t)hti_cpu_thread(), 0};
    decoder o;
    opener mine;
    opener_take(&mine, &own, call);
    o.opener = &mine;
    o.call = call;
    o.desc = d;
    o.sequence = b;
    o.kv = kv;
    o.state = call->slots[b] * d->kv_heads + kv;
    o.d = d->head_dim;
    o.dv = d->value_dim;
    o.ring = call->ring;
    o.speed = room->speed;
    o.turn = NULL;
    o.near = NULL;
    if (d->rotary_theta > 0) o.turn = room->turn + (hti_call_start(&call->a, b) + b) * o.d;
    if (d->rotary_theta > 0 && d->open > 0)
        o.near = (float *)call->level[0].near + o.state * 2 * d->block * o.d;
    o.keys = 0;
    o.runs = 0;
    for (int64_t i = 0; i < hti_call_length(&call->a, b); i++)
        extend_row(&o, i, call->positions[b] + i);
}

/* About how many multiplications a call is. */
static double decode_work(const hti_cache_call *call) {
    const ht_attention_desc *d = call->a.desc;
    double seen = (double)(2 * d->block), most_t = 0;
    for (int64_t b = 0; b < call->a.sequences; b++)
        most_t = fmax(most_t, (double)(call->positions[b] + hti_call_length(&call->a, b)));
    if (d->kind == HT_FULL) seen = most_t;
    if (d->kind == HT_HIERARCHICAL && d->query == HT_QUERY_FINE)
        seen += (double)((call->levels - 1) * d->block);
    if (d->open > 0) seen += (double)call->levels * (double)hti_open_candidates(d, call->ring);
    return (double)(call->a.rows * d->q_heads) * seen * (double)(d->head_dim + d->value_dim);
}

static void cache_extend(ht_context *ctx, const hti_cache_call *call) {
    int64_t kv = call->a.desc->kv_heads, units = call->a.sequences * kv;
    hti_arena c = {call->a.scratch, 0};
    decode_room room;
    decode_take(&room, &c, call, ctx->threads);
    if (call->a.desc->rotary_theta > 0) decode_angles(call, room.speed, room.turn);
    if (decode_work(call) < DECODE_ALONE) {
        for (int64_t i = 0; i < units; i++) extend_unit(call, &room, i / kv, i % kv);
        return;
    }
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
    for (int64_t i = 0; i < units; i++) extend_unit(call, &room, i / kv, i % kv);
}
