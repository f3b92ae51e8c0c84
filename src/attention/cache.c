/*
 * The decode cache: which levels exist, how far each slot is, saving and loading. What a row does
 * to the state is the kernels' (op.h, cache_extend).
 */
#include <string.h>

#include "attention/plan.h"
#include "core/crc.h"

struct ht_cache {
    ht_attention plan;      /* a copy: the caller may destroy his */
    ht_attention_desc kept; /* the plan's, with the dtype in which the state is kept */
    int64_t slots;
    int64_t *positions; /* [slots] */
    int64_t *order;     /* [2 * slots]: slots and positions of the call at work */
    int levels;         /* levels allocated */
    int64_t ring;       /* rows of level 0, per slot and key head; see hti_cache_ring */
    hti_cache_level level[HTI_MAX_LEVELS];
};

/* Most rows of a slot: whatever the block, their levels fit in `level`. */
#define MAX_POSITION ((int64_t)1 << HTI_MAX_LEVELS)

/* ---- levels ---- */

/* The pieces of one level, in the order in which they are saved. */
enum { PIECES = 5 };
typedef struct piece {
    void **at;
    size_t bytes; /* of one slot */
} piece;

/* ring: rows of level 0 */
static void pieces_of(piece out[PIECES], const ht_attention_desc *d, hti_cache_level *level,
                      int index, int64_t ring) {
    size_t element = hti_cache_element(d, index), heads = (size_t)d->kv_heads;
    int keeps_parts = d->query == HT_QUERY_FIRST && index > 0;
    int keeps_near = d->open > 0 && d->rotary_theta > 0 && index == 0;
    size_t part = (size_t)(d->q_heads * (d->value_dim + 2)) * element;
    if (keeps_near) part = heads * (size_t)(2 * d->block * d->head_dim) * element;
    ring = hti_cache_ring(d, ring, index);
    out[0] = (piece){&level->k, heads * (size_t)(ring * d->head_dim) * element};
    out[1] = (piece){&level->v, heads * (size_t)(ring * d->value_dim) * element};
    out[2] = (piece){(void **)&level->n, heads * (size_t)ring * sizeof(float)};
    out[3] = (piece){&level->part, keeps_parts || keeps_near ? part : 0};
    out[4] = (piece){(void **)&level->cluster, keeps_parts ? heads * sizeof(int64_t) : 0};
}

static void free_level(ht_context *ctx, const ht_attention_desc *d, hti_cache_level *level) {
    piece p[PIECES];
    pieces_of(p, d, level, 0, 1);
    for (int i = 0; i < PIECES; i++)
        if (*p[i].at) ctx->ops->release(ctx, *p[i].at);
    *level = (hti_cache_level){0};
}

/* A level of all slots; clusters -1, the rest is written before it is read. */
static ht_status make_level(hti_cache_level *out, const ht_cache *cache, int index, int64_t ring) {
    ht_context *ctx = cache->plan.ctx;
    piece p[PIECES];
    *out = (hti_cache_level){0};
    pieces_of(p, &cache->kept, out, index, ring);
    for (int i = 0; i < PIECES; i++) {
        if (p[i].bytes == 0) continue;
        size_t bytes = p[i].bytes * (size_t)cache->slots;
        ht_status status = ctx->ops->alloc(ctx, p[i].at, bytes);
        if (status == HT_OK) status = ctx->ops->fill(ctx, *p[i].at, i == 4 ? 0xff : 0, bytes);
        if (status != HT_OK) {
            free_level(ctx, &cache->kept, out);
            return status;
        }
    }
    return HT_OK;
}

static int levels_for(const ht_cache *cache, int64_t length) {
    if (cache->kept.kind != HT_HIERARCHICAL || length < 1) return 1;
    return hti_levels(length, cache->kept.block);
}

/* Does a ring hold all there ever was? */
static int keeps_all(const ht_attention_desc *d) { return d->kind == HT_FULL || d->open > 0; }

/* A level with a longer ring: what every slot has moves over. */
static ht_status longer_level(hti_cache_level *out, ht_cache *cache, int index, int64_t ring) {
    ht_context *ctx = cache->plan.ctx;
    const ht_attention_desc *d = &cache->kept;
    piece from[PIECES], to[PIECES];
    TRY(make_level(out, cache, index, ring));
    pieces_of(from, d, &cache->level[index], index, cache->ring);
    pieces_of(to, d, out, index, ring);
    for (int64_t s = 0; s < cache->slots * d->kv_heads; s++) {
        for (int i = 0; i < 4 && from[i].bytes; i++) {
            size_t old = from[i].bytes / (size_t)d->kv_heads,
                   new = to[i].bytes / (size_t)d->kv_heads;
            ht_status status = ctx->ops->copy(ctx, (char *)*to[i].at + (size_t)s * new,
                                              (char *)*from[i].at + (size_t)s * old, old);
            if (status == HT_OK) continue;
            free_level(ctx, d, out);
            return status;
        }
    }
    return HT_OK;
}

/* All levels at once, or none. */
static ht_status lengthen(ht_cache *cache, int64_t length) {
    ht_context *ctx = cache->plan.ctx;
    const ht_attention_desc *d = &cache->kept;
    int64_t ring = cache->ring;
    while (ring < length) ring *= 2;
    if (ring == cache->ring) return HT_OK;
    hti_cache_level longer[HTI_MAX_LEVELS];
    ht_status status = HT_OK;
    int made = 0;
    while (made < cache->levels && status == HT_OK) {
        status = longer_level(&longer[made], cache, made, ring);
        made += status == HT_OK;
    }
    for (int l = 0; l < made; l++) {
        free_level(ctx, d, status == HT_OK ? &cache->level[l] : &longer[l]);
        if (status == HT_OK) cache->level[l] = longer[l];
    }
    if (status == HT_OK) cache->ring = ring;
    return status;
}

/* Room for slots of this length. */
static ht_status reserve(ht_cache *cache, int64_t length) {
    if (keeps_all(&cache->kept)) TRY(lengthen(cache, length));
    while (cache->levels < levels_for(cache, length)) {
        TRY(make_level(&cache->level[cache->levels], cache, cache->levels, cache->ring));
        cache->levels++;
    }
    return HT_OK;
}

/* ---- life ---- */

static ht_status check_cache(ht_context *ctx, const ht_attention_desc *d, int64_t slots) {
    int64_t bytes;
    CHECK(ctx, d->causal, HT_INVALID, "a cache needs a causal plan, got causal 0");
    CHECK(ctx, d->dropout == 0, HT_INVALID, "a cache needs a plan without dropout, got dropout %g",
          d->dropout);
    int fits = slots >= 1 && hti_mul(&bytes, slots, d->q_heads * 8) &&
               hti_mul(&bytes, bytes, 2 * d->block) &&
               hti_mul(&bytes, bytes, d->head_dim + d->value_dim + 2) && bytes <= INT64_MAX / 8;
    CHECK(ctx, fits, HT_INVALID, "slots must be at least 1 and fit in memory, got %lld",
          (long long)slots);
    return HT_OK;
}

ht_status ht_cache_create(ht_cache **out, const ht_attention *plan, int64_t slots) {
    CHECK(plan ? plan->ctx : NULL, out, HT_INVALID, "ht_cache_create: out is NULL");
    *out = NULL;
    NEED(plan);
    ht_context *ctx = plan->ctx;
    TRY(check_cache(ctx, &plan->desc, slots));
    ht_cache *cache = hti_host_alloc(ctx, sizeof *cache);
    CHECK(ctx, cache, HT_NOMEM, "out of memory: %zu bytes for a cache", sizeof *cache);
    *cache =
        (ht_cache){.plan = *plan, .kept = plan->desc, .slots = slots, .ring = 2 * plan->desc.block};
    if (ctx->ops->wide_cache && hti_bytes(plan->desc.dtype) == 2) cache->kept.dtype = HT_F32;
    size_t bytes = sizeof(int64_t) * (size_t)slots;
    cache->positions = hti_host_alloc(ctx, bytes);
    cache->order = hti_host_alloc(ctx, 2 * bytes);
    ht_status status = HT_OK;
    if (!cache->positions || !cache->order)
        status = hti_fail(ctx, HT_NOMEM, "out of memory: %zu bytes for %lld slots", 3 * bytes,
                          (long long)slots);
    if (status == HT_OK) {
        memset(cache->positions, 0, bytes);
        status = reserve(cache, 1);
    }
    if (status != HT_OK) {
        ht_cache_destroy(cache);
        return status;
    }
    *out = cache;
    return HT_OK;
}

void ht_cache_destroy(ht_cache *cache) {
    if (!cache) return;
    ht_context *ctx = cache->plan.ctx;
    for (int l = 0; l < cache->levels; l++) free_level(ctx, &cache->kept, &cache->level[l]);
    hti_host_free(ctx, cache->positions);
    hti_host_free(ctx, cache->order);
    hti_host_free(ctx, cache);
}

/* ---- extending ---- */

/* Which slot each sequence goes to, and where that slot stands; all different. */
static ht_status choose_slots(ht_cache *cache, const int64_t *slots, int64_t count) {
    ht_context *ctx = cache->plan.ctx;
    int64_t *chosen = cache->order, *at = cache->order + cache->slots;
    for (int64_t b = 0; b < count; b++) {
        int64_t s = slots ? slots[b] : b;
        CHECK(ctx, s >= 0 && s < cache->slots, HT_INVALID,
              "slots[%lld] must be 0 to %lld, got %lld", (long long)b, (long long)cache->slots - 1,
              (long long)s);
        chosen[b] = s;
        at[b] = 0;
    }
    /* a second visit finds the mark; marks live where the positions go afterwards */
    memset(at, 0, sizeof(int64_t) * (size_t)cache->slots);
    for (int64_t b = 0; b < count; b++) {
        CHECK(ctx, !at[chosen[b]]++, HT_INVALID, "slot %lld is named twice", (long long)chosen[b]);
    }
    for (int64_t b = 0; b < count; b++) at[b] = cache->positions[chosen[b]];
    return HT_OK;
}

ht_status ht_cache_extend(ht_cache *cache, const int64_t *slots, const ht_attention_args *args) {
    NEED(cache);
    ht_context *ctx = cache->plan.ctx;
    hti_cache_call call;
    int64_t longest = 0;
    TRY(hti_call_make(&call.a, &cache->plan, args, cache->slots));
    TRY(choose_slots(cache, slots, call.a.sequences));
    for (int64_t b = 0; b < call.a.sequences; b++) {
        int64_t n = hti_call_length(&call.a, b), at = cache->order[cache->slots + b];
        CHECK(ctx, n <= MAX_POSITION - at, HT_INVALID, "slot %lld would exceed 2^%d rows",
              (long long)cache->order[b], HTI_MAX_LEVELS);
        if (at + n > longest) longest = at + n;
    }
    if (call.a.rows == 0) return HT_OK;
    TRY(reserve(cache, longest));
    call.slots = cache->order;
    call.positions = cache->order + cache->slots;
    call.levels = cache->levels;
    call.ring = cache->ring;
    call.slot_count = cache->slots;
    memcpy(call.level, cache->level, sizeof call.level);
    /* a cache call's need depends on the call: the scratch is the context's */
    TRY(hti_scratch(ctx, &call.a.scratch, ctx->ops->cache_scratch(ctx, &call)));
    TRY(ctx->ops->cache_extend(ctx, &call));
    for (int64_t b = 0; b < call.a.sequences; b++)
        cache->positions[call.slots[b]] += hti_call_length(&call.a, b);
    return HT_OK;
}

/* ---- slots ---- */

static ht_status check_slot(const ht_cache *cache, int64_t slot) {
    CHECK(cache->plan.ctx, slot >= 0 && slot < cache->slots, HT_INVALID,
          "slot must be 0 to %lld, got %lld", (long long)cache->slots - 1, (long long)slot);
    return HT_OK;
}

int64_t ht_cache_position(const ht_cache *cache, int64_t slot) {
    return cache && slot >= 0 && slot < cache->slots ? cache->positions[slot] : -1;
}

int64_t ht_cache_rows(const ht_cache *cache, int64_t slot) {
    if (!cache || slot < 0 || slot >= cache->slots) return -1;
    const ht_attention_desc *d = &cache->kept;
    int64_t position = cache->positions[slot], rows = 0;
    if (!keeps_all(d)) return 2 * d->block * levels_for(cache, position);
    for (int l = 0; l < levels_for(cache, position); l++) rows += position >> l;
    return rows;
}

/* No cluster's part is known any more. */
ht_status ht_cache_reset(ht_cache *cache, int64_t slot) {
    NEED(cache);
    ht_context *ctx = cache->plan.ctx;
    TRY(check_slot(cache, slot));
    for (int l = 0; l < cache->levels; l++) {
        piece p[PIECES];
        pieces_of(p, &cache->kept, &cache->level[l], l, cache->ring);
        if (p[4].bytes)
            TRY(ctx->ops->fill(ctx, (char *)*p[4].at + (size_t)slot * p[4].bytes, 0xff,
                               p[4].bytes));
    }
    cache->positions[slot] = 0;
    return HT_OK;
}

ht_status ht_cache_fork(ht_cache *cache, int64_t to, int64_t from) {
    NEED(cache);
    ht_context *ctx = cache->plan.ctx;
    TRY(check_slot(cache, to));
    TRY(check_slot(cache, from));
    if (to == from) return HT_OK;
    for (int l = 0; l < cache->levels; l++) {
        piece p[PIECES];
        pieces_of(p, &cache->kept, &cache->level[l], l, cache->ring);
        for (int i = 0; i < PIECES; i++) {
            if (p[i].bytes == 0) continue;
            char *base = *p[i].at;
            TRY(ctx->ops->copy(ctx, base + (size_t)to * p[i].bytes,
                               base + (size_t)from * p[i].bytes, p[i].bytes));
        }
    }
    cache->positions[to] = cache->positions[from];
    return HT_OK;
}

/* ---- saving ---- */

/* What a saved state begins with; all that must agree for it to be loaded. Native byte order. At
 * its end is a seal (core/crc.h), which HTCACHE1 of earlier versions had not. */
typedef struct header {
    char magic[8];
    uint64_t bytes; /* of the whole buffer */
    int64_t position;
    int64_t kind, query, dtype, has_bias, q_heads, kv_heads, head_dim, value_dim, block;
    double scale, rotary_theta;
} header;

static header header_of(const ht_cache *cache, int64_t position) {
    const ht_attention_desc *d = &cache->kept;
    header h = {.magic = "HTCACHE2", .position = position};
    /* numbers of before there was AUTO: states that were saved then can still be loaded. A state
     * for opening has other rows than that of fine alone, but they are the same for any open > 0 */
    h.query = (int64_t)(d->open > 0 ? HT_QUERY_FINE + 1 : d->query) - HT_QUERY_MEAN;
    h.kind = d->kind, h.dtype = d->dtype, h.has_bias = d->has_bias != 0;
    h.q_heads = d->q_heads, h.kv_heads = d->kv_heads;
    h.head_dim = d->head_dim, h.value_dim = d->value_dim, h.block = d->block;
    h.scale = d->scale, h.rotary_theta = d->rotary_theta;
    return h;
}

/* Rows of level 0's ring that a state at this position needs. */
static int64_t saved_rows(const ht_cache *cache, int64_t position) {
    return keeps_all(&cache->kept) ? position : 2 * cache->kept.block;
}

/* Bytes of a saved state with its seal, or 0 if they do not fit a size. */
static size_t saved_bytes(const ht_cache *cache, int64_t position) {
    const ht_attention_desc *d = &cache->kept;
    int64_t rows = saved_rows(cache, position), wide;
    size_t bytes = sizeof(header) + HTI_SEAL;
    if (!hti_mul(&wide, rows, d->kv_heads * (d->head_dim + d->value_dim + 1) * 8 * HTI_MAX_LEVELS))
        return 0;
    for (int l = 0; l < levels_for(cache, position); l++) {
        hti_cache_level none = {0};
        piece p[PIECES];
        pieces_of(p, d, &none, l, rows);
        for (int i = 0; i < PIECES; i++) bytes += p[i].bytes;
    }
    return bytes;
}

/* One slot between its rings and a buffer: per level and piece, per key head the rows needed. */
static ht_status move_slot(const ht_cache *cache, int64_t slot, int64_t position, char *save_to,
                           const char *load_from) {
    ht_context *ctx = cache->plan.ctx;
    const ht_attention_desc *d = &cache->kept;
    size_t at = sizeof(header);
    for (int l = 0; l < levels_for(cache, position); l++) {
        hti_cache_level level = cache->level[l];
        piece held[PIECES], kept[PIECES];
        pieces_of(held, d, &level, l, cache->ring);
        pieces_of(kept, d, &level, l, saved_rows(cache, position));
        for (int i = 0; i < PIECES; i++) {
            /* rings are one run per key head; the others one run */
            size_t runs = i < 3 ? (size_t)d->kv_heads : 1;
            for (size_t r = 0; r < runs && kept[i].bytes; r++) {
                char *state =
                    (char *)*held[i].at + (size_t)slot * held[i].bytes + r * (held[i].bytes / runs);
                size_t bytes = kept[i].bytes / runs;
                if (save_to) {
                    TRY(ctx->ops->copy_out(ctx, save_to + at, state, bytes));
                } else {
                    TRY(ctx->ops->copy_in(ctx, state, load_from + at, bytes));
                }
                at += bytes;
            }
        }
    }
    return HT_OK;
}

ht_status ht_cache_save_bytes(const ht_cache *cache, int64_t slot, size_t *bytes) {
    NEED(cache);
    TRY(check_slot(cache, slot));
    CHECK(cache->plan.ctx, bytes, HT_INVALID, "ht_cache_save_bytes: bytes is NULL");
    *bytes = saved_bytes(cache, cache->positions[slot]);
    return HT_OK;
}

ht_status ht_cache_save(const ht_cache *cache, int64_t slot, void *buffer, size_t bytes) {
    NEED(cache);
    ht_context *ctx = cache->plan.ctx;
    TRY(check_slot(cache, slot));
    size_t need = saved_bytes(cache, cache->positions[slot]);
    CHECK(ctx, buffer && bytes >= need, HT_INVALID, "saving slot %lld needs %zu bytes, got %zu",
          (long long)slot, need, buffer ? bytes : 0);
    header h = header_of(cache, cache->positions[slot]);
    h.bytes = need;
    memcpy(buffer, &h, sizeof h);
    TRY(move_slot(cache, slot, h.position, buffer, NULL));
    hti_seal(buffer, need);
    return HT_OK;
}

static ht_status check_header(const ht_cache *cache, const header *h, size_t bytes) {
    ht_context *ctx = cache->plan.ctx;
    int before = h->magic[7] == '1'; /* without a seal */
    header expected = header_of(cache, h->position);
    expected.bytes = h->bytes;
    if (before) expected.magic[7] = '1';
    CHECK(ctx, memcmp(h->magic, expected.magic, 8) == 0, HT_FORMAT,
          "not a saved cache slot: wrong magic");
    /* kinds without coarse levels have no use for it */
    if (expected.kind != HT_HIERARCHICAL && h->query >= 0 && h->query <= 2)
        expected.query = h->query;
    CHECK(
        ctx, memcmp(&expected, h, sizeof *h) == 0, HT_FORMAT,
        "the saved slot is of another plan (block %lld, head_dim %lld, kv_heads %lld, dtype %lld)",
        (long long)h->block, (long long)h->head_dim, (long long)h->kv_heads, (long long)h->dtype);
    CHECK(ctx, h->position >= 0 && h->position <= MAX_POSITION, HT_FORMAT,
          "the saved slot has an impossible position %lld", (long long)h->position);
    size_t need = saved_bytes(cache, h->position);
    if (need && before) need -= HTI_SEAL;
    CHECK(ctx, need && h->bytes == need && bytes == need, HT_FORMAT,
          "a slot saved at position %lld has %zu bytes, got %zu", (long long)h->position, need,
          bytes);
    return HT_OK;
}

ht_status ht_cache_load(ht_cache *cache, int64_t slot, const void *buffer, size_t bytes) {
    NEED(cache);
    ht_context *ctx = cache->plan.ctx;
    header h;
    TRY(check_slot(cache, slot));
    CHECK(ctx, buffer && bytes >= sizeof h, HT_FORMAT,
          "a saved slot has at least %zu bytes, got %zu", sizeof h, buffer ? bytes : 0);
    memcpy(&h, buffer, sizeof h);
    TRY(check_header(cache, &h, bytes));
    CHECK(ctx, h.magic[7] == '1' || hti_sealed(buffer, bytes), HT_FORMAT,
          "the saved slot is damaged: its checksum is not that of its %zu bytes", bytes);
    TRY(reserve(cache, h.position > 0 ? h.position : 1));
    TRY(ht_cache_reset(cache, slot)); /* parts of levels that the saved state lacks */
    TRY(move_slot(cache, slot, h.position, NULL, buffer));
    cache->positions[slot] = h.position;
    return HT_OK;
}
