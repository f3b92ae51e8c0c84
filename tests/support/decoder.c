/*
 * Feeding the decode cache.
 */
#include "decoder.h"

#include <string.h>

static void destroy_cache(void *a, void *b) {
    (void)b;
    ht_cache_destroy(a);
}

/* the plan's maxima do not bind a cache: they are as small as they can be */
ht_cache *decoder_cache(ht_context *ctx, const problem *p, int64_t slots) {
    ht_attention_desc desc = problem_desc(p);
    ht_attention *plan;
    ht_cache *cache;
    desc.max_rows = desc.max_sequences = desc.max_length = 1;
    ht_status status = ht_attention_create(&plan, ctx, &desc);
    if (status == HT_UNSUPPORTED) skip();
    harness_ok(ctx, status, &p->c);
    status = ht_cache_create(&cache, plan, slots);
    ht_attention_destroy(plan);
    harness_ok(ctx, status, &p->c);
    pool_defer(destroy_cache, cache, NULL);
    return cache;
}

decoder decoder_open(ht_context *ctx, const problem *p) {
    int64_t n = p->c.batch;
    decoder d = {.ctx = ctx, .p = p, .slots = n + 2, .got = outcome_make(p)};
    d.cache = decoder_cache(ctx, p, d.slots);
    d.slot = pool_alloc((size_t)n * sizeof *d.slot);
    d.done = pool_alloc((size_t)n * sizeof *d.done);
    for (int64_t b = 0; b < n; b++) d.slot[b] = n - b; /* slot 0 and the last stay unused */
    return d;
}

/* rows of a canonical array, one run per sequence, put together */
static void *gather(const void *from, size_t row, const problem *p, const problem *part,
                    const int64_t *which, const int64_t *first) {
    if (!from) return NULL;
    char *to = pool_alloc(row * (size_t)part->rows);
    for (int64_t i = 0; i < part->c.batch; i++)
        memcpy(to + row * (size_t)part->cu[i],
               (const char *)from + row * (size_t)(p->cu[which[i]] + first[i]),
               row * (size_t)(part->cu[i + 1] - part->cu[i]));
    return to;
}

problem portion(const problem *p, const int64_t *which, const int64_t *from, const int64_t *counts,
                int64_t n) {
    const test_case *c = &p->c;
    problem part = {.c = *c, .bias = p->bias};
    part.cu = pool_alloc((size_t)(n + 1) * sizeof *part.cu);
    part.c.batch = n, part.c.length = counts[0], part.c.packed = 0;
    for (int64_t i = 0; i < n; i++) {
        part.cu[i + 1] = part.cu[i] + (int32_t)counts[i];
        if (counts[i] != counts[0] || counts[i] == 0) part.c.packed = 1;
        if (counts[i] > part.longest) part.longest = counts[i];
    }
    part.rows = part.cu[n];
    size_t q = (size_t)c->q_heads * sizeof(double), kv = (size_t)c->kv_heads * sizeof(double);
    size_t d = (size_t)c->head_dim, v = (size_t)c->value_dim;
    part.q = gather(p->q, q * d, p, &part, which, from);
    part.k = gather(p->k, kv * d, p, &part, which, from);
    part.v = gather(p->v, kv * v, p, &part, which, from);
    part.dout = gather(p->dout, q * v, p, &part, which, from);
    part.key_mask = gather(p->key_mask, 1, p, &part, which, from);
    part.query_mask = gather(p->query_mask, 1, p, &part, which, from);
    return part;
}

/* results of a portion go back to where the whole has them */
static void scatter(decoder *d, const outcome *o, const problem *part, const int64_t *which) {
    const test_case *c = &d->p->c;
    for (int64_t i = 0; i < part->c.batch; i++) {
        size_t n = (size_t)((part->cu[i + 1] - part->cu[i]) * c->q_heads) * sizeof(double);
        int64_t from = part->cu[i] * c->q_heads;
        int64_t to = (d->p->cu[which[i]] + d->done[which[i]]) * c->q_heads;
        memcpy(d->got.lse + to, o->lse + from, n);
        memcpy(d->got.out + to * c->value_dim, o->out + from * c->value_dim,
               n * (size_t)c->value_dim);
    }
}

void decoder_feed(decoder *d, const int64_t *counts) {
    int64_t batch = d->p->c.batch, n = 0;
    int64_t *lists = pool_alloc((size_t)(4 * batch) * sizeof *lists);
    int64_t *which = lists, *from = lists + batch, *count = lists + 2 * batch;
    int64_t *slots = lists + 3 * batch;
    for (int64_t b = 0; b < batch; b++) {
        if (counts[b] == 0) continue;
        which[n] = b, from[n] = d->done[b], slots[n] = d->slot[b];
        count[n++] = counts[b] == EMPTY ? 0 : counts[b];
    }
    if (n == 0) return;
    problem part = portion(d->p, which, from, count, n);
    session s;
    outcome o = outcome_make(&part);
    session_open_buffers(&s, d->ctx, &part);
    view_allow(&s.out, &part, 1, -1);
    harness_ok(d->ctx, ht_cache_extend(d->cache, slots, &s.args), &d->p->c);
    session_check(&s);
    session_read(&s, &o);
    scatter(d, &o, &part, which);
    for (int64_t i = 0; i < n; i++) {
        d->done[which[i]] += count[i];
        if (ht_cache_position(d->cache, slots[i]) != d->done[which[i]])
            harness_fail(&d->p->c, "slot %d is at %d, not %d", (int)slots[i],
                         (int)ht_cache_position(d->cache, slots[i]), (int)d->done[which[i]]);
    }
}

void decoder_feed_one(decoder *d, int64_t b, int64_t n) {
    int64_t *counts = pool_alloc((size_t)d->p->c.batch * sizeof *counts);
    counts[b] = n;
    decoder_feed(d, counts);
}
