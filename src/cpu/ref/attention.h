/*
 * Reference kernels, part 3: forward and backward. See docs/attention.md for the derivation.
 */
#include "cpu/ref/open.h"

/* ---- forward ---- */

/* (max, sum, acc) += another softmax state over the same values' space */
static void FN(merge)(real *max, real *sum, real *acc, real max2, real sum2, const real *acc2,
                      int dv) {
    if (sum2 == 0) return;
    real m = *sum == 0 || max2 > *max ? max2 : *max;
    real a = *sum == 0 ? 0 : FN(exp)(*max - m), b = FN(exp)(max2 - m);
    *sum = *sum * a + sum2 * b;
    for (int c = 0; c < dv; c++) acc[c] = acc[c] * a + acc2[c] * b;
    *max = m;
}

/* Query q against the keys of one range; adds to the state of row `to`. c: the query's cluster at
 * this level, id: what dropout knows it by. */
static void FN(attend_range)(FN(unit) *u, int64_t to, const real *q, int level, int64_t c,
                             int64_t id, hti_range r) {
    const real *k = FN(keys_at)(u, level), *v = u->v + u->first[level] * u->dv;
    const real *n = u->n + u->first[level];
    real max = 0, *acc = u->acc + to * u->dv;
    int seen = 0;
    for (int64_t j = r.lo; j < r.hi; j++) {
        if (n[j] == 0) continue;
        real s = FN(score_of)(u, q, k + j * u->d, j - c);
        u->score[j - r.lo] = s;
        if (!seen || s > max) max = s;
        seen = 1;
    }
    if (!seen) return;
    /* one maximum for the row, over all ranges and levels so far */
    real top = u->sum[to] > 0 && u->max[to] > max ? u->max[to] : max;
    real keep = u->sum[to] > 0 ? FN(exp)(u->max[to] - top) : 0;
    for (int x = 0; x < u->dv; x++) acc[x] *= keep;
    u->sum[to] *= keep;
    u->max[to] = top;
    for (int64_t j = r.lo; j < r.hi; j++) {
        if (n[j] == 0) continue;
        real p = n[j] * FN(exp)(u->score[j - r.lo] - top);
        real w = p * FN(dropout_factor)(u, level, id, j);
        u->sum[to] += p;
        for (int x = 0; x < u->dv; x++) acc[x] += w * v[j * u->dv + x];
    }
}

static void FN(attend)(FN(unit) *u, int64_t to, const real *q, int level, int64_t c, int64_t id) {
    hti_range r[2];
    FN(ranges)(r, u, level, c);
    FN(attend_range)(u, to, q, level, c, id, r[0]);
    FN(attend_range)(u, to, q, level, c, id, r[1]);
}

static void FN(clear_states)(FN(unit) *u, int64_t total) {
    memset(u->sum, 0, sizeof(real) * (size_t)total);
    memset(u->max, 0, sizeof(real) * (size_t)total);
    memset(u->acc, 0, sizeof(real) * (size_t)(total * u->dv));
}

/* mean and first: every coarse row once, then its result goes down to its children. */
static void FN(forward_coarse)(FN(unit) *u) {
    for (int l = u->levels - 1; l >= 0; l--) {
        const real *q = l == 0 ? u->qt : u->q + u->first[l] * u->d;
        for (int64_t c = 0; c < u->rows[l]; c++) {
            int64_t to = u->first[l] + c;
            if (u->nq[to] == 0) continue;
            FN(attend)(u, to, q + c * u->d, l, c, c);
            if (l + 1 < u->levels) {
                int64_t parent = u->first[l + 1] + c / 2;
                FN(merge)(&u->max[to], &u->sum[to], u->acc + to * u->dv, u->max[parent],
                          u->sum[parent], u->acc + parent * u->dv, u->dv);
            }
        }
    }
}

static void FN(forward_fine)(FN(unit) *u) {
    for (int64_t i = 0; i < u->length; i++) {
        if (u->nq[i] == 0) continue;
        FN(attend)(u, i, u->qt + i * u->d, 0, i, i);
        for (int l = 1; l < u->levels; l++) FN(attend)(u, i, u->q + i * u->d, l, i >> l, i);
    }
}

/* z = acc / sum, lse = max + log sum; a row that sees no key gives 0 and -inf. */
static void FN(finish)(FN(unit) *u) {
    const hti_attention_call *c = u->call;
    real *z =
        (real *)c->out.data + hti_call_base(c, &c->out, u->sequence) + u->head * c->out.head_stride;
    int64_t start = hti_call_start(c, u->sequence);
    for (int64_t i = 0; i < u->length; i++) {
        real sum = u->sum[i], inv = sum == 0 ? 0 : 1 / sum;
        real lse = sum == 0 ? -(real)INFINITY : u->max[i] + FN(log)(sum);
        for (int x = 0; x < u->dv; x++) z[i * c->out.row_stride + x] = u->acc[i * u->dv + x] * inv;
        if (c->saved) ((real *)c->saved)[u->head * c->rows + start + i] = lse;
        if (c->lse.data)
            ((real *)c->lse.data)[hti_call_base(c, &c->lse, u->sequence) + i * c->lse.row_stride +
                                  u->head * c->lse.head_stride] = lse;
    }
}

static void FN(forward_unit)(FN(unit) *u, FN(chooser) *ch, const hti_attention_call *call,
                             int64_t sequence, int64_t kv_head) {
    int64_t group = call->desc->q_heads / call->desc->kv_heads;
    FN(begin_unit)(u, call, sequence);
    if (u->length == 0) return;
    FN(load_keys)(u, kv_head);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        FN(load_queries)(u, h);
        FN(clear_states)(u, u->first[u->levels - 1] + u->rows[u->levels - 1]);
        if (u->desc->open > 0) {
            FN(forward_opened)(u, ch);
        } else if (u->desc->query == HT_QUERY_FINE) {
            FN(forward_fine)(u);
        } else {
            FN(forward_coarse)(u);
        }
        FN(finish)(u);
    }
}

/* ---- backward ---- */

/* Level 0 of what backward restricts: G = dz, h = <dz, z> - dlse, m = lse. Rows without weight
 * (masked, or seeing no key) get m = inf and take no part. */
static void FN(load_output)(FN(unit) *u) {
    const hti_attention_call *c = u->call;
    const real *lse = (const real *)c->saved + u->head * c->rows + hti_call_start(c, u->sequence);
    const real *dz = (const real *)c->dout.data + hti_call_base(c, &c->dout, u->sequence) +
                     u->head * c->dout.head_stride;
    const real *z = (const real *)c->out.data + hti_call_base(c, &c->out, u->sequence) +
                    u->head * c->out.head_stride;
    const real *dlse = (const real *)c->dlse.data;
    if (dlse) dlse += hti_call_base(c, &c->dlse, u->sequence) + u->head * c->dlse.head_stride;
    for (int64_t i = 0; i < u->length; i++) {
        int live = u->nq[i] > 0 && !(isinf(lse[i]) && lse[i] < 0);
        const real *g = dz + i * c->dout.row_stride;
        u->max[i] = live ? lse[i] : (real)INFINITY;
        u->sum[i] = live ? FN(dot)(g, z + i * c->out.row_stride, u->dv) : 0;
        if (live && dlse) u->sum[i] -= dlse[i * c->dlse.row_stride];
        for (int x = 0; x < u->dv; x++) u->acc[i * u->dv + x] = live ? g[x] : 0;
    }
}

/* Restriction: m_c = min of the children's, G_c and h_c their sums weighted by exp(m_c - m). */
static void FN(restrict_output)(FN(unit) *u) {
    for (int l = 1; l < u->levels; l++) {
        for (int64_t c = 0; c < u->rows[l]; c++) {
            int64_t p = u->first[l] + c, a = u->first[l - 1] + 2 * c;
            int64_t b = 2 * c + 1 < u->rows[l - 1] ? a + 1 : -1;
            real ma = u->max[a], mb = b < 0 ? (real)INFINITY : u->max[b];
            real m = mb < ma ? mb : ma;
            real wa = isinf(ma) ? 0 : FN(exp)(m - ma), wb = isinf(mb) ? 0 : FN(exp)(m - mb);
            u->max[p] = m;
            u->sum[p] = wa * u->sum[a] + (wb > 0 ? wb * u->sum[b] : 0);
            for (int x = 0; x < u->dv; x++)
                u->acc[p * u->dv + x] =
                    wa * u->acc[a * u->dv + x] + (wb > 0 ? wb * u->acc[b * u->dv + x] : 0);
        }
    }
}

/* Query row `from` (of G, h, m) with query q, against the keys of one range:
 *     P = n exp(s - m),  ds = P (r <G, v> - h),  dv += r P G,  dq += scale ds k,  dk += scale ds q
 * dbias: this head's table, [4*block - 1], or NULL. */
static void FN(grad_range)(FN(unit) *u, int64_t from, const real *q, real *dq, real *dbias,
                           int level, int64_t c, int64_t id, hti_range r) {
    int64_t at = u->first[level];
    const real *k = FN(keys_at)(u, level), *g = u->acc + from * u->dv;
    real scale = (real)u->desc->scale;
    for (int64_t j = r.lo; j < r.hi; j++) {
        real n = u->n[at + j];
        if (n == 0) continue;
        const real *key = k + j * u->d, *v = u->v + (at + j) * u->dv;
        real p = n * FN(exp)(FN(score_of)(u, q, key, j - c) - u->max[from]);
        real drop = FN(dropout_factor)(u, level, id, j);
        real ds = p * (drop * FN(dot)(g, v, u->dv) - u->sum[from]);
        for (int x = 0; x < u->dv; x++) u->dval[(at + j) * u->dv + x] += drop * p * g[x];
        for (int x = 0; x < u->d; x++) {
            dq[x] += scale * ds * key[x];
            u->dk[(at + j) * u->d + x] += scale * ds * q[x];
        }
        if (dbias) dbias[FN(bias_at)(u, j - c) / u->desc->q_heads] += ds;
    }
}

static void FN(grad_row)(FN(unit) *u, int64_t from, const real *q, real *dq, real *dbias, int level,
                         int64_t c, int64_t id) {
    hti_range r[2];
    if (isinf(u->max[from])) return;
    FN(ranges)(r, u, level, c);
    FN(grad_range)(u, from, q, dq, dbias, level, c, id, r[0]);
    FN(grad_range)(u, from, q, dq, dbias, level, c, id, r[1]);
}

/* All levels of one head. dq of level 0 is of the turned query until it is turned back. */
static void FN(grad_levels)(FN(unit) *u, real *dbias) {
    int fine = u->desc->query == HT_QUERY_FINE;
    for (int l = 0; l < u->levels; l++) {
        int64_t rows = fine ? u->length : u->rows[l], at = fine ? 0 : u->first[l];
        const real *q = l == 0 ? u->qt : u->q + at * u->d;
        for (int64_t c = 0; c < rows; c++)
            FN(grad_row)(u, at + c, q + c * u->d, u->dq + (at + c) * u->d, dbias, l,
                         fine ? c >> l : c, c);
        if (l > 0 || u->qt == u->q) continue;
        for (int64_t i = 0; i < u->length; i++)
            FN(rotate)(u->dq + i * u->d, u->dq + i * u->d, u->turn + i * u->d, u->d, -1);
    }
}

/* Adjoint of coarsen: a parent's gradient goes to its children by their share of its valid rows. */
static void FN(spread)(real *dx, const real *n, const FN(unit) *u, int width, int pick_first) {
    for (int l = u->levels - 1; l > 0; l--) {
        for (int64_t c = 0; c < u->rows[l - 1]; c++) {
            int64_t child = u->first[l - 1] + c, parent = u->first[l] + c / 2;
            real share = n[child] > 0 ? n[child] / n[parent] : 0;
            if (pick_first) share = n[child] > 0 && (c % 2 == 0 || n[child - 1] == 0);
            if (share == 0) continue;
            for (int x = 0; x < width; x++) dx[child * width + x] += share * dx[parent * width + x];
        }
    }
}

static void FN(store)(const ht_tensor *t, const FN(unit) *u, int64_t head, const real *x,
                      const real *n, int width) {
    real *dst = (real *)t->data + hti_call_base(u->call, t, u->sequence) + head * t->head_stride;
    for (int64_t i = 0; i < u->length; i++)
        for (int c = 0; c < width; c++)
            dst[i * t->row_stride + c] = n[i] > 0 ? x[i * width + c] : 0;
}

/* dbias [q_heads, 4*block - 1] of this slot of sequences, or NULL */
static void FN(backward_unit)(FN(unit) *u, FN(chooser) *ch, const hti_attention_call *call,
                              int64_t sequence, int64_t kv_head, real *dbias) {
    int64_t group = call->desc->q_heads / call->desc->kv_heads, table = 4 * call->desc->block - 1;
    FN(begin_unit)(u, call, sequence);
    if (u->length == 0) return;
    FN(load_keys)(u, kv_head);
    size_t total = (size_t)(u->first[u->levels - 1] + u->rows[u->levels - 1]);
    memset(u->dk, 0, sizeof(real) * total * (size_t)u->d);
    memset(u->dval, 0, sizeof(real) * total * (size_t)u->dv);
    if (u->dfar) memset(u->dfar, 0, sizeof(real) * (size_t)(u->length * u->d));
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        FN(load_queries)(u, h);
        FN(load_output)(u);
        if (u->desc->query != HT_QUERY_FINE) FN(restrict_output)(u);
        memset(u->dq, 0, sizeof(real) * total * (size_t)u->d);
        if (u->desc->open > 0) {
            FN(grad_opened)(u, ch, dbias ? dbias + h * table : NULL);
        } else {
            FN(grad_levels)(u, dbias ? dbias + h * table : NULL);
        }
        if (u->desc->query != HT_QUERY_FINE)
            FN(spread)(u->dq, u->nq, u, u->d, u->desc->query == HT_QUERY_FIRST);
        FN(store)(&call->dq, u, h, u->dq, u->nq, u->d);
    }
    for (int64_t i = 0; u->kt != u->k && i < u->length; i++)
        FN(rotate)(u->dk + i * u->d, u->dk + i * u->d, u->turn + i * u->d, u->d, -1);
    for (int64_t i = 0; u->dfar && i < u->length * u->d; i++) u->dk[i] += u->dfar[i];
    FN(spread)(u->dk, u->n, u, u->d, 0);
    FN(spread)(u->dval, u->n, u, u->dv, 0);
    FN(store)(&call->dk, u, kv_head, u->dk, u->n, u->d);
    FN(store)(&call->dv, u, kv_head, u->dval, u->n, u->dv);
}

/* ---- entries ---- */

/* Bias gradients are summed per slot of sequences, then over slots: the order does not depend on
 * threads. */
enum { FN(BIAS_SLOTS) = 64 };

static int64_t FN(slots)(int64_t sequences) {
    return sequences < FN(BIAS_SLOTS) ? sequences : FN(BIAS_SLOTS);
}

static size_t FN(bias_bytes)(const ht_attention_desc *d, int64_t sequences) {
    if (!d->has_bias) return 0;
    size_t used = 0;
    FN(take)(NULL, &used, FN(slots)(sequences) * d->q_heads * (4 * d->block - 1));
    return used;
}

/* A thread's own memory. */
static size_t FN(thread_layout)(FN(unit) *u, FN(chooser) *ch, char *base,
                                const ht_attention_desc *d, int64_t length, int backward) {
    size_t used = FN(layout)(u, base, d, length, backward);
    if (d->open > 0) FN(chooser_layout)(ch, base, &used, d, length, length);
    return used;
}

static void FN(need)(const ht_context *ctx, const ht_attention_desc *d, ht_attention_need *need) {
    FN(unit) u = {0};
    FN(chooser) ch = {0};
    size_t threads = (size_t)ctx->threads;
    need->saved = sizeof(real) * (size_t)(d->q_heads * d->max_rows);
    need->scratch_forward = threads * FN(thread_layout)(&u, &ch, NULL, d, d->max_length, 0);
    need->scratch_backward = threads * FN(thread_layout)(&u, &ch, NULL, d, d->max_length, 1) +
                             FN(bias_bytes)(d, d->max_sequences);
}

static void FN(forward)(ht_context *ctx, const hti_attention_call *call) {
    int64_t kv = call->desc->kv_heads, units = call->sequences * kv;
    FN(unit) probe = {0};
    FN(chooser) none = {0};
    size_t bytes = FN(thread_layout)(&probe, &none, NULL, call->desc, call->length, 0);
#pragma omp parallel num_threads(ctx->threads)
    {
        FN(unit) u = {0};
        FN(chooser) ch = {0};
        FN(thread_layout)(&u, &ch, (char *)call->scratch + bytes * (size_t)hti_cpu_thread(),
                          call->desc, call->length, 0);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < units; i++) FN(forward_unit)(&u, &ch, call, i / kv, i % kv);
    }
}

static void FN(add_bias)(const hti_attention_call *call, const real *partial, int64_t slots) {
    int64_t table = 4 * call->desc->block - 1, heads = call->desc->q_heads;
    real *dbias = call->dbias;
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t e = 0; e < table; e++) {
            real sum = 0;
            for (int64_t s = 0; s < slots; s++) sum += partial[(s * heads + h) * table + e];
            dbias[e * heads + h] += sum;
        }
    }
}

static void FN(backward)(ht_context *ctx, const hti_attention_call *call) {
    int64_t kv = call->desc->kv_heads, slots = FN(slots)(call->sequences);
    int64_t table = call->desc->q_heads * (4 * call->desc->block - 1);
    size_t partial_bytes = FN(bias_bytes)(call->desc, call->sequences);
    real *partial = call->dbias ? call->scratch : NULL;
    char *base = (char *)call->scratch + partial_bytes;
    FN(unit) probe = {0};
    FN(chooser) none = {0};
    size_t bytes = FN(thread_layout)(&probe, &none, NULL, call->desc, call->length, 1);
    if (partial) memset(partial, 0, partial_bytes);
#pragma omp parallel num_threads(ctx->threads)
    {
        FN(unit) u = {0};
        FN(chooser) ch = {0};
        FN(thread_layout)(&u, &ch, base + bytes * (size_t)hti_cpu_thread(), call->desc,
                          call->length, 1);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < slots * kv; i++) {
            int64_t s = i / kv, begin = s * call->sequences / slots,
                    end = (s + 1) * call->sequences / slots;
            for (int64_t b = begin; b < end; b++)
                FN(backward_unit)(&u, &ch, call, b, i % kv, partial ? partial + s * table : NULL);
        }
    }
    if (partial) FN(add_bias)(call, partial, slots);
}
