/*
 * Processes that work together: open and close, what passes between hosts, what passes between
 * devices.
 */
#include "dist/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/sized.h"

/* ---- open and close ---- */

static const double patience = 50; /* seconds: the others end within a minute */
enum { LATE = 20 };

static ht_status read_patience(ht_world *w) {
    const char *text = getenv("HTRANSFORMER_PATIENCE");
    char *end;
    w->patience = w->waits = patience;
    if (!text || !*text) return HT_OK;
    w->patience = w->waits = strtod(text, &end);
    CHECK(w->ctx, *end == '\0' && w->patience >= 1 && w->patience <= 1e6, HT_INVALID,
          "the variable HTRANSFORMER_PATIENCE must be 1 to 1000000 seconds, got \"%.40s\"", text);
    return HT_OK;
}

/* Hosts have MPI alone. On GPUs NCCL carries what is large, and everything where there is no MPI.
 */
static ht_status open_links(ht_world *w) {
    const ht_place *p = &w->place;
    int by_mpi = strcmp(p->launcher, "torchrun") != 0;
    if (by_mpi) TRY(hti_mpi_open(w));
    if (!w->host) TRY(hti_nccl_open(w, "libnccl.so.2"));
    CHECK(w->ctx, w->mpi || w->nccl, HT_UNSUPPORTED,
          w->host ? "%s started %d processes, and on the CPU they need MPI: %s"
                  : "%s started %d processes, and they need NCCL (libnccl.so.2) or MPI: %s",
          p->launcher, p->ranks,
          by_mpi
              ? "libhtransformer_mpi.so was not found (the build makes it where there is an MPI; "
                "HTRANSFORMER_MPI says where it is)"
              : "start them with mpirun or srun");
    return HT_OK;
}

static ht_status prepare(ht_world *w) {
    size_t ranks = (size_t)w->place.ranks, bytes = ranks * (HTI_WORD_BYTES + 1);
    w->link[0] = '\0';
    w->words = hti_host_alloc(w->ctx, bytes);
    CHECK(w->ctx, w->words, HT_NOMEM, "out of memory: %zu bytes for words of ranks", bytes);
    w->waiting = w->words + ranks * HTI_WORD_BYTES;
    memset(w->waiting, 0, ranks);
    TRY(read_patience(w));
    return open_links(w);
}

ht_status ht_world_open(ht_world **out, ht_context *ctx) {
    ht_place place = HT_PLACE_INIT;
    CHECK(ctx, out, HT_INVALID, "ht_world_open: out is NULL");
    *out = NULL;
    CHECK(NULL, ctx, HT_INVALID, "ht_world_open: ctx is NULL");
    if (ht_place_find(&place) != HT_OK)
        return hti_fail(ctx, HT_INVALID, "%s", ht_context_error(NULL));
    ht_world *w = hti_host_alloc(ctx, sizeof *w);
    CHECK(ctx, w, HT_NOMEM, "out of memory: %zu bytes for a world", sizeof *w);
    *w = (ht_world){.ctx = ctx, .place = place, .link = "nothing"};
    w->host = strncmp(ctx->device, "cpu", 3) == 0;
    ht_status status = place.ranks > 1 ? prepare(w) : HT_OK;
    if (status != HT_OK) {
        ht_world_close(w, ht_context_error(ctx));
        return status;
    }
    *out = w;
    return HT_OK;
}

void ht_world_close(ht_world *w, const char *failed) {
    if (!w) return;
    hti_nccl_close(w, failed != NULL);
    hti_mpi_close(w, failed);
    hti_host_free(w->ctx, w->words);
    hti_host_free(w->ctx, w);
}

ht_status ht_world_get_place(const ht_world *w, ht_place *out) {
    NEED(w);
    TRY(HTI_WANT(w->ctx, ht_place, out));
    HTI_GIVE(ht_place, out, &w->place);
    return HT_OK;
}

const char *ht_world_link(const ht_world *w) { return w ? w->link : ""; }
int ht_world_told(const ht_world *w) { return w ? w->told : 0; }
uint64_t ht_world_sent(const ht_world *w) { return w ? w->sent : 0; }

/* ---- host memory ---- */

static ht_status check_whole(const ht_world *w) {
    CHECK(w->ctx, !w->broken, HT_DEVICE, "rank %d of %d: another rank is gone", w->place.rank,
          w->place.ranks);
    return HT_OK;
}

ht_status hti_world_gather(ht_world *w, const void *mine, void *all, size_t bytes) {
    if (!hti_world_many(w)) {
        memcpy(all, mine, bytes);
        return HT_OK;
    }
    TRY(check_whole(w));
    return w->mpi ? hti_mpi_gather(w, mine, all, bytes) : hti_nccl_gather(w, mine, all, bytes);
}

/* At most HTI_WORD_BYTES of every rank, in the world's own memory. */
static ht_status gather_words(ht_world *w, const void *mine, size_t bytes) {
    return hti_world_gather(w, mine, w->words, bytes);
}

ht_status hti_world_barrier(ht_world *w) {
    char mine = 0;
    return hti_world_many(w) ? gather_words(w, &mine, 1) : HT_OK;
}

ht_status hti_world_from_first(ht_world *w, void *x, size_t bytes) {
    if (!hti_world_many(w)) return HT_OK;
    TRY(gather_words(w, x, bytes));
    memcpy(x, w->words, bytes);
    return HT_OK;
}

typedef struct word {
    int32_t status;
    char text[HTI_WORD_BYTES - sizeof(int32_t)];
} word;

ht_status hti_world_add(ht_world *w, double *x, int count) {
    size_t bytes = (size_t)count * sizeof *x;
    if (!hti_world_many(w)) return HT_OK;
    TRY(gather_words(w, x, bytes));
    for (int i = 0; i < count; i++) {
        double sum = 0, one;
        for (int r = 0; r < w->place.ranks; r++) {
            memcpy(&one, w->words + (size_t)r * bytes + (size_t)i * sizeof one, sizeof one);
            sum += one;
        }
        x[i] = sum;
    }
    return HT_OK;
}

void hti_world_be_patient(ht_world *w, int late) { w->waits = w->patience * (late ? LATE : 1); }

static ht_status gather_late(ht_world *w, const word *own) {
    hti_world_be_patient(w, 1);
    ht_status status = gather_words(w, own, sizeof *own);
    hti_world_be_patient(w, 0);
    return status;
}

static ht_status agree(ht_world *w, ht_status mine, const char *sentence) {
    word own = {(int32_t)mine, ""}, first = {HT_OK, ""};
    int who = -1;
    snprintf(own.text, sizeof own.text, "%s", sentence);
    TRY(gather_late(w, &own));
    for (int i = w->place.ranks - 1; i >= 0; i--) {
        word said;
        memcpy(&said, w->words + (size_t)i * sizeof said, sizeof said);
        if (said.status != HT_OK) first = said, who = i;
    }
    if (mine != HT_OK || who < 0) return mine; /* its own sentence stands already */
    first.text[sizeof first.text - 1] = '\0';
    w->told = 1;
    return hti_fail(w->ctx, (ht_status)first.status, "rank %d of %d failed: %s", who,
                    w->place.ranks, first.text);
}

ht_status hti_world_agree(ht_world *w, ht_status mine) {
    if (!hti_world_many(w) || w->broken) return mine;
    return agree(w, mine, mine == HT_OK ? "" : ht_context_error(w->ctx));
}

ht_status ht_world_agree(ht_world *w, const char *failed) {
    NEED(w);
    ht_status mine = failed ? HT_INVALID : HT_OK;
    if (hti_world_many(w) && !w->broken) mine = agree(w, mine, failed ? failed : "");
    if (!failed) return mine;
    w->told = 0; /* its own sentence comes first */
    return hti_fail(w->ctx, HT_INVALID, "%s", failed);
}

/* ---- flights: how much room ---- */

enum { NOTHING, REDUCE, SPREAD, EXCHANGE };

/* MPI carries it, and it cannot reach the device's memory. */
static int stages(const ht_world *w) { return !w->nccl && !w->host && !w->direct; }

static ht_status grow(ht_context *ctx, char **block, size_t *have, size_t want) {
    if (want <= *have) return HT_OK;
    hti_host_free(ctx, *block);
    *have = 0;
    *block = hti_host_alloc(ctx, want);
    CHECK(ctx, *block, HT_NOMEM, "out of memory: %zu bytes for what ranks send each other", want);
    *have = want;
    return HT_OK;
}

static ht_status grow_requests(hti_flight *f, int most) {
    ht_context *ctx = f->w->ctx;
    if (!f->w->mpi || most <= f->most) return HT_OK;
    hti_host_free(ctx, f->requests);
    f->most = 0;
    f->requests = hti_host_alloc(ctx, (size_t)most * f->w->mpi->request_bytes);
    CHECK(ctx, f->requests, HT_NOMEM, "out of memory: %d messages", most);
    f->most = most;
    return HT_OK;
}

ht_status hti_flight_fit(hti_flight *f, ht_world *w, ht_dtype dtype, const hti_piece *pieces,
                         int64_t count) {
    size_t e = hti_bytes(dtype), mine = 0, all = 0;
    int messages = 0, others = w->place.ranks - 1;
    f->w = w;
    if (!hti_world_many(w) || w->nccl) return HT_OK;
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = (size_t)pieces[i].count * e;
        int own = pieces[i].owner == w->place.rank;
        messages += hti_mpi_messages(bytes) * (own ? others : 1);
        all += bytes;
        if (own) mine += bytes;
    }
    TRY(grow_requests(f, messages));
    TRY(grow(w->ctx, &f->room, &f->room_bytes, mine * (size_t)others));
    return w->host ? HT_OK : grow(w->ctx, &f->stage, &f->stage_bytes, stages(w) ? all : mine);
}

ht_status hti_flight_fit_parcels(hti_flight *f, ht_world *w, const hti_parcel *to, int64_t tos,
                                 const hti_parcel *from, int64_t froms) {
    size_t bytes = 0;
    int messages = 0;
    f->w = w;
    if (!hti_world_many(w) || w->nccl) return HT_OK;
    for (int64_t i = 0; i < tos; i++)
        bytes += to[i].bytes, messages += hti_mpi_messages(to[i].bytes);
    for (int64_t i = 0; i < froms; i++)
        bytes += from[i].bytes, messages += hti_mpi_messages(from[i].bytes);
    TRY(grow_requests(f, messages));
    return stages(w) ? grow(w->ctx, &f->stage, &f->stage_bytes, bytes) : HT_OK;
}

void hti_flight_free(hti_flight *f) {
    if (!f->w) return;
    hti_host_free(f->w->ctx, f->requests);
    hti_host_free(f->w->ctx, f->room);
    hti_host_free(f->w->ctx, f->stage);
    *f = (hti_flight){0};
}

size_t hti_flight_bytes(const hti_flight *f) {
    size_t request = f->w && f->w->mpi ? f->w->mpi->request_bytes : 0;
    return f->room_bytes + f->stage_bytes + (size_t)f->most * request;
}

/* ---- flights: carrying by MPI ---- */

/* `bytes` of host memory that stand for device memory: that itself, or the next of the stage. */
static char *staged(hti_flight *f, void *device, size_t bytes) {
    if (!stages(f->w)) return device;
    char *at = f->stage + f->staged;
    f->staged += bytes;
    return at;
}

static ht_status send_to(hti_flight *f, void *device, size_t bytes, int rank) {
    char *at = staged(f, device, bytes);
    if (at != (char *)device) TRY(f->w->ctx->ops->copy_out(f->w->ctx, at, device, bytes));
    return hti_mpi_post(f, 1, at, bytes, rank);
}

static ht_status begin(hti_flight *f, int what) {
    TRY(check_whole(f->w));
    CHECK(f->w->ctx, f->what == NOTHING, HT_INVALID, "a flight was started before it had ended");
    f->what = what;
    f->staged = 0;
    f->count = 0;
    /* MPI reads device memory itself: what was to be written there must be there */
    return f->w->mpi && !f->w->host ? f->w->ctx->ops->synchronize(f->w->ctx) : HT_OK;
}

/* Rooms first: what arrives without one is copied once more. */
static ht_status post_reduce(hti_flight *f) {
    const ht_world *w = f->w;
    size_t e = hti_bytes(f->dtype), used = 0;
    for (int64_t i = 0; i < f->parts; i++) {
        const hti_piece *p = &f->pieces[i];
        size_t bytes = (size_t)p->count * e;
        for (int r = 0; r < w->place.ranks && p->owner == w->place.rank; r++) {
            if (r == w->place.rank) continue;
            TRY(hti_mpi_post(f, 0, f->room + used, bytes, r));
            used += bytes;
        }
    }
    for (int64_t i = 0; i < f->parts; i++) {
        const hti_piece *p = &f->pieces[i];
        char *at = (char *)f->arena + (size_t)p->at * e;
        if (p->owner != w->place.rank) TRY(send_to(f, at, (size_t)p->count * e, p->owner));
    }
    return HT_OK;
}

static ht_status post_spread(hti_flight *f) {
    const ht_world *w = f->w;
    size_t e = hti_bytes(f->dtype);
    for (int64_t i = 0; i < f->parts; i++) {
        const hti_piece *p = &f->pieces[i];
        size_t bytes = (size_t)p->count * e;
        char *device = (char *)f->arena + (size_t)p->at * e, *at = staged(f, device, bytes);
        if (p->owner != w->place.rank) {
            TRY(hti_mpi_post(f, 0, at, bytes, p->owner));
            continue;
        }
        if (at != device) TRY(w->ctx->ops->copy_out(w->ctx, at, device, bytes));
        for (int k = 1; k < w->place.ranks; k++) /* not all to the same one at the same time */
            TRY(hti_mpi_post(f, 1, at, bytes, (w->place.rank + k) % w->place.ranks));
    }
    return HT_OK;
}

ht_status hti_reduce_start(hti_flight *f, ht_dtype dtype, void *arena, const hti_piece *pieces,
                           int64_t count) {
    if (!hti_world_many(f->w)) return HT_OK;
    TRY(begin(f, REDUCE));
    f->dtype = dtype, f->arena = arena, f->pieces = pieces, f->parts = count;
    if (f->w->nccl) return hti_nccl_reduce(f->w, dtype, arena, pieces, count);
    return post_reduce(f);
}

ht_status hti_spread_start(hti_flight *f, ht_dtype dtype, void *arena, const hti_piece *pieces,
                           int64_t count) {
    if (!hti_world_many(f->w)) return HT_OK;
    TRY(begin(f, SPREAD));
    f->dtype = dtype, f->arena = arena, f->pieces = pieces, f->parts = count;
    if (f->w->nccl) return hti_nccl_spread(f->w, dtype, arena, pieces, count);
    return post_spread(f);
}

ht_status hti_exchange_start(hti_flight *f, const hti_parcel *to, int64_t tos,
                             const hti_parcel *from, int64_t froms) {
    if (!hti_world_many(f->w)) return HT_OK;
    TRY(begin(f, EXCHANGE));
    f->parcels = from, f->parts = froms;
    if (f->w->nccl) return hti_nccl_exchange(f->w, to, tos, from, froms);
    for (int64_t i = 0; i < froms; i++)
        TRY(hti_mpi_post(f, 0, staged(f, from[i].data, from[i].bytes), from[i].bytes,
                         from[i].rank));
    for (int64_t i = 0; i < tos; i++) TRY(send_to(f, to[i].data, to[i].bytes, to[i].rank));
    return HT_OK;
}

/* ---- flights: at the end ---- */

/* x[i] = the sum of x[i] and of what the others sent, [ranks - 1][count], in the order of ranks;
 * rounded once where the numbers are narrower than double. */
#define SUM(type, wide)                                                                            \
    static void sum_##type(type *x, const type *other, int64_t count, const ht_world *w) {         \
        int rank = w->place.rank, ranks = w->place.ranks;                                          \
        _Pragma("omp parallel for num_threads(w->ctx->threads) schedule(static)") for (int64_t i = \
                                                                                           0;      \
                                                                                       i < count;  \
                                                                                       i++) {      \
            wide sum = rank == 0 ? x[i] : other[i];                                                \
            for (int r = 1; r < ranks; r++)                                                        \
                sum += r == rank ? x[i] : other[(r < rank ? r : r - 1) * count + i];               \
            x[i] = (type)sum;                                                                      \
        }                                                                                          \
    }
SUM(float, double)
SUM(double, double)

static void sum_bf16(uint16_t *x, const uint16_t *other, int64_t count, const ht_world *w) {
    int rank = w->place.rank;
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        for (int r = 0; r < w->place.ranks; r++)
            sum += hti_from_bf16(r == rank ? x[i] : other[(r < rank ? r : r - 1) * count + i]);
        x[i] = hti_to_bf16(sum);
    }
}

static void sum_piece(void *x, const void *other, ht_dtype dtype, int64_t count,
                      const ht_world *w) {
    if (dtype == HT_F64) {
        sum_double(x, other, count, w);
    } else if (dtype == HT_F32) {
        sum_float(x, other, count, w);
    } else {
        sum_bf16(x, other, count, w);
    }
}

static ht_status add_up(hti_flight *f) {
    const ht_world *w = f->w;
    size_t e = hti_bytes(f->dtype), used = 0;
    for (int64_t i = 0; i < f->parts; i++) {
        const hti_piece *p = &f->pieces[i];
        size_t bytes = (size_t)p->count * e;
        char *device = (char *)f->arena + (size_t)p->at * e, *at = device;
        if (p->owner != w->place.rank) continue;
        if (!w->host) {
            at = f->stage; /* what lay there has been sent */
            TRY(w->ctx->ops->copy_out(w->ctx, at, device, bytes));
        }
        sum_piece(at, f->room + used, f->dtype, p->count, w);
        if (at != device) TRY(w->ctx->ops->copy_in(w->ctx, device, at, bytes));
        used += bytes * (size_t)(w->place.ranks - 1);
    }
    return HT_OK;
}

static ht_status put_back(hti_flight *f) {
    const ht_world *w = f->w;
    size_t e = hti_bytes(f->dtype), used = 0;
    for (int64_t i = 0; i < f->parts; i++) {
        int spread = f->what == SPREAD;
        size_t bytes = spread ? (size_t)f->pieces[i].count * e : f->parcels[i].bytes;
        char *device = spread ? (char *)f->arena + (size_t)f->pieces[i].at * e : f->parcels[i].data;
        if (!spread || f->pieces[i].owner != w->place.rank)
            TRY(w->ctx->ops->copy_in(w->ctx, device, f->stage + used, bytes));
        used += bytes;
    }
    return HT_OK;
}

ht_status hti_flight_end(hti_flight *f) {
    int what = f->what;
    f->what = NOTHING;
    if (what == NOTHING || f->w->nccl) return HT_OK;
    TRY(hti_mpi_wait(f));
    if (what == REDUCE) return add_up(f);
    return stages(f->w) ? put_back(f) : HT_OK;
}

/* ---- few numbers ---- */

ht_status hti_world_sum(ht_world *w, ht_dtype dtype, void *x, int64_t count) {
    double mine[HTI_WORD_BYTES / sizeof(double)] = {0};
    size_t e = hti_bytes(dtype), bytes = (size_t)count * e;
    if (!hti_world_many(w)) return HT_OK;
    if (w->nccl) return hti_nccl_sum(w, dtype, x, count);
    CHECK(w->ctx, bytes <= sizeof mine, HT_INVALID, "%lld numbers are too many", (long long)count);
    TRY(w->ctx->ops->copy_out(w->ctx, mine, x, bytes));
    TRY(gather_words(w, mine, bytes));
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < w->place.ranks; r++) {
            const char *at = w->words + (size_t)r * bytes + (size_t)i * e;
            float narrow;
            double wide;
            memcpy(&narrow, at, sizeof narrow);
            memcpy(&wide, at, dtype == HT_F64 ? sizeof wide : 0);
            sum += dtype == HT_F64 ? wide : (double)narrow;
        }
        if (dtype == HT_F64)
            mine[i] = sum;
        else
            ((float *)(void *)mine)[i] = (float)sum;
    }
    return w->ctx->ops->copy_in(w->ctx, x, mine, bytes);
}
