/*
 * Moments that are divided among ranks, to and from a file that has them all. Rank 0 writes it, and
 * asks for what lies elsewhere while it does; at no time has it all of them. Everybody reads it.
 */
#include "train/moments.h"

/* What rank 0 asks for: numbers of m (0) or v (1); END: no more. */
enum { END = -1 };
typedef struct request {
    int64_t which, at, count;
} request;

static void *arena_of(const ht_trainer *t, int64_t which) { return which ? t->v : t->m; }

/* What of [*at, *at + *count) a piece has. */
static int overlap(const hti_piece *p, int64_t *at, int64_t *count) {
    int64_t from = p->at > *at ? p->at : *at;
    int64_t to = p->at + p->count < *at + *count ? p->at + p->count : *at + *count;
    *at = from, *count = to - from;
    return to > from;
}

/* Brings a piece's part of what was asked from its owner to rank 0's host memory. */
static ht_status bring(hti_moments *x, const hti_piece *p, const request *r) {
    const ht_trainer *t = x->t;
    const hti_share *s = &t->share;
    size_t e = hti_wide_bytes(t->model->dtype);
    int64_t at = r->at, count = r->count;
    if (!overlap(p, &at, &count)) return HT_OK;
    size_t bytes = (size_t)count * e;
    void *mine = hti_wide(arena_of(t, r->which), t->model->dtype, hti_share_place(s, at));
    void *to = x->host + (size_t)(at - r->at) * e;
    if (p->owner == 0) return s->rank ? HT_OK : t->ctx->ops->copy_out(t->ctx, to, mine, bytes);
    hti_parcel parcel = {s->rank ? 0 : p->owner, s->rank ? mine : x->device, bytes};
    if (s->rank != 0 && s->rank != p->owner) return HT_OK;
    TRY(s->rank ? hti_exchange_start(&x->flight, &parcel, 1, NULL, 0)
                : hti_exchange_start(&x->flight, NULL, 0, &parcel, 1));
    TRY(hti_flight_end(&x->flight));
    return s->rank ? HT_OK : t->ctx->ops->copy_out(t->ctx, to, x->device, bytes);
}

static ht_status answer(hti_moments *x, const request *r) {
    const hti_share *s = &x->t->share;
    for (int64_t i = 0; i < s->count; i++) TRY(bring(x, &s->pieces[i], r));
    return HT_OK;
}

/* ---- at rank 0 ---- */

static ht_status get(hti_moments *x, int which, const void **out, int64_t at, int64_t count) {
    request r = {which, at, count};
    TRY(hti_world_from_first(x->t->share.world, &r, sizeof r));
    *out = x->host;
    return answer(x, &r);
}

static ht_status get_m(void *user, const void **out, int64_t at, int64_t count) {
    return get(user, 0, out, at, count);
}
static ht_status get_v(void *user, const void **out, int64_t at, int64_t count) {
    return get(user, 1, out, at, count);
}

/* ---- at all ranks ---- */

static ht_status put(hti_moments *x, int which, const double *numbers, int64_t at, int64_t count) {
    const ht_trainer *t = x->t;
    for (int i = 0; i < t->share.owns; i++) {
        int64_t from = at, n = count;
        if (!overlap(&t->share.own[i], &from, &n)) continue;
        TRY(hti_tensor_write(t->ctx, arena_of(t, which), numbers + (from - at), t->model->dtype,
                             hti_share_place(&t->share, from), n));
    }
    return HT_OK;
}

static ht_status put_m(void *user, const double *x, int64_t at, int64_t count) {
    return put(user, 0, x, at, count);
}
static ht_status put_v(void *user, const double *x, int64_t at, int64_t count) {
    return put(user, 1, x, at, count);
}

void hti_moments_parts(hti_moments *x, const ht_trainer *t, hti_part parts[2]) {
    x->t = t;
    if (!t->share.shards) return;
    parts[0].get = get_m, parts[0].put = put_m, parts[0].user = x;
    parts[1].get = get_v, parts[1].put = put_v, parts[1].user = x;
}

/* ---- open, serve, close ---- */

static ht_status make_room(hti_moments *x) {
    const ht_trainer *t = x->t;
    size_t bytes = HTI_PART_MOST * hti_wide_bytes(t->model->dtype);
    hti_parcel parcel = {.bytes = bytes};
    int first = t->share.rank == 0;
    TRY(hti_flight_fit_parcels(&x->flight, t->share.world, &parcel, !first, &parcel, first));
    if (!first) return HT_OK;
    x->host = hti_host_alloc(t->ctx, bytes);
    CHECK(t->ctx, x->host, HT_NOMEM, "out of memory: %zu bytes of moments", bytes);
    return t->ctx->ops->alloc(t->ctx, &x->device, bytes);
}

ht_status hti_moments_open(hti_moments *x, const ht_trainer *t) {
    *x = (hti_moments){.t = t};
    if (!t->share.shards) return HT_OK;
    ht_status status = hti_world_agree(t->share.world, make_room(x));
    if (status != HT_OK) hti_moments_close(x);
    return status;
}

/* Rank 0 is busy with its disk between two requests, and writes all weights before the first. */
static ht_status next_request(const hti_moments *x, request *r) {
    ht_world *w = x->t->share.world;
    hti_world_be_patient(w, 1);
    ht_status status = hti_world_from_first(w, r, sizeof *r);
    hti_world_be_patient(w, 0);
    return status;
}

ht_status hti_moments_serve(hti_moments *x) {
    for (request r = {0};;) {
        TRY(next_request(x, &r));
        if (r.which == END) return HT_OK;
        TRY(answer(x, &r));
    }
}

ht_status hti_moments_end(hti_moments *x) {
    request r = {END, 0, 0};
    return hti_world_from_first(x->t->share.world, &r, sizeof r);
}

void hti_moments_close(hti_moments *x) {
    if (x->device) x->t->ctx->ops->release(x->t->ctx, x->device);
    hti_host_free(x->t->ctx, x->host);
    hti_flight_free(&x->flight);
    *x = (hti_moments){.t = x->t};
}
