/*
 * NCCL, opened at run time: the few functions that are needed, under their own names and types.
 *
 * All calls go to the context's stream, so that they wait for what was computed and what comes next
 * waits for them. Its unique id passes over MPI; without MPI it is made of NCCL_COMM_ID, by which
 * NCCL itself finds rank 0.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/world.h"

/* ---- NCCL's own names and numbers ---- */

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
enum { ncclSuccess = 0, ncclInProgress = 7 };
enum { ncclUint8 = 1, ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9 };
enum { ncclSum = 0 };
typedef void *cudaStream_t;

/* X(result, name, arguments) */
#define FUNCTIONS(X)                                                                          \
    X(int, GetVersion, (int *version))                                                        \
    X(int, GetUniqueId, (ncclUniqueId * id))                                                  \
    X(int, CommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank))           \
    X(int, CommDestroy, (ncclComm_t comm))                                                    \
    X(int, CommAbort, (ncclComm_t comm))                                                      \
    X(int, CommGetAsyncError, (ncclComm_t comm, int *error))                                  \
    X(const char *, GetErrorString, (int error))                                              \
    X(int, GroupStart, (void))                                                                \
    X(int, GroupEnd, (void))                                                                  \
    X(int, Send, (const void *x, size_t count, int type, int peer, ncclComm_t, cudaStream_t)) \
    X(int, Recv, (void *x, size_t count, int type, int peer, ncclComm_t, cudaStream_t))       \
    X(int, AllGather,                                                                         \
      (const void *mine, void *all, size_t count, int type, ncclComm_t, cudaStream_t))        \
    X(int, AllReduce,                                                                         \
      (const void *x, void *sum, size_t count, int type, int op, ncclComm_t, cudaStream_t))   \
    X(int, Reduce,                                                                            \
      (const void *x, void *sum, size_t count, int type, int op, int root, ncclComm_t,        \
       cudaStream_t))                                                                         \
    X(int, Broadcast,                                                                         \
      (const void *x, void *to, size_t count, int type, int root, ncclComm_t, cudaStream_t))

struct hti_nccl {
    void *library;
    ncclComm_t comm;
    cudaStream_t stream;
    char *words; /* device [ranks + 1][HTI_WORD_BYTES] */
#define POINTER(result, name, arguments) result(*name) arguments;
    FUNCTIONS(POINTER)
};

/* ---- open and close ---- */

static ht_status fail(const ht_world *w, int error, const char *doing) {
    return hti_fail(w->ctx, HT_DEVICE, "rank %d of %d: NCCL failed while %s: %s", w->place.rank,
                    w->place.ranks, doing, w->nccl->GetErrorString(error));
}

#define NCCL_TRY(w, expr, doing)                                  \
    do {                                                          \
        int error_ = (expr);                                      \
        if (error_ != ncclSuccess) return fail(w, error_, doing); \
    } while (0)

static ht_status find_functions(ht_world *w) {
    const char *missing = NULL;
#define FIND(result, name, arguments)                                 \
    *(void **)&w->nccl->name = dlsym(w->nccl->library, "nccl" #name); \
    if (!w->nccl->name) missing = "nccl" #name;
    FUNCTIONS(FIND)
    CHECK(w->ctx, !missing, HT_UNSUPPORTED, "the NCCL that was found is too old: it has no %s",
          missing);
    return HT_OK;
}

/* torchrun says where rank 0 is; where its own store has that port, NCCL takes the next one. */
static ht_status name_root(const ht_world *w) {
    const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    char id[300];
    if (getenv("NCCL_COMM_ID")) return HT_OK;
    CHECK(w->ctx, address && port, HT_INVALID,
          "%s started %d processes without MPI: NCCL_COMM_ID (or MASTER_ADDR and MASTER_PORT) must "
          "say where rank 0 is",
          w->place.launcher, w->place.ranks);
    long number = strtol(port, NULL, 10) + (store && strcmp(store, "True") == 0);
    CHECK(w->ctx, number >= 1 && number <= 65535, HT_INVALID,
          "the variable MASTER_PORT must be 1 to 65535, got \"%.40s\"", port);
    snprintf(id, sizeof id, "%.250s:%ld", address, number);
    setenv("NCCL_COMM_ID", id, 1);
    return HT_OK;
}

static ht_status find_id(ht_world *w, ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    if (!w->mpi) TRY(name_root(w));
    if (w->place.rank == 0 || !w->mpi) NCCL_TRY(w, w->nccl->GetUniqueId(id), "it made its id");
    return w->mpi ? hti_world_from_first(w, id, sizeof *id) : HT_OK;
}

static ht_status start(ht_world *w) {
    ncclUniqueId id;
    hti_nccl *n = w->nccl;
    int version = 0;
    TRY(find_functions(w));
    TRY(find_id(w, &id));
    TRY(w->ctx->ops->alloc(w->ctx, (void **)&n->words,
                           (size_t)(w->place.ranks + 1) * HTI_WORD_BYTES));
    n->stream = w->ctx->ops->stream ? w->ctx->ops->stream(w->ctx) : NULL;
    NCCL_TRY(w, n->CommInitRank(&n->comm, w->place.ranks, id, w->place.rank), "it was started");
    NCCL_TRY(w, n->GetVersion(&version), "it said its version");
    size_t used = strlen(w->link);
    snprintf(w->link + used, sizeof w->link - used, "%sNCCL %d.%d.%d", used ? ", " : "",
             version / 10000, version / 100 % 100, version % 100);
    return HT_OK;
}

ht_status hti_nccl_open(ht_world *w, const char *library) {
    const char *given = getenv("HTRANSFORMER_NCCL");
    void *found = dlopen(given && *given ? given : library, RTLD_NOW | RTLD_LOCAL);
    if (!found) return HT_OK;
    w->nccl = hti_host_alloc(w->ctx, sizeof *w->nccl);
    CHECK(w->ctx, w->nccl, HT_NOMEM, "out of memory: NCCL");
    *w->nccl = (hti_nccl){.library = found};
    return start(w);
}

void hti_nccl_close(ht_world *w, int failed) {
    hti_nccl *n = w->nccl;
    if (!n) return;
    if (n->comm) {
        if (failed || w->broken)
            n->CommAbort(n->comm);
        else
            n->CommDestroy(n->comm);
    }
    if (n->words) w->ctx->ops->release(w->ctx, n->words);
    hti_host_free(w->ctx, n); /* the library stays: its threads may still be there */
    w->nccl = NULL;
}

/* ---- what it carries ---- */

static int type_of(ht_dtype dtype) {
    return dtype == HT_F64 ? ncclFloat64 : dtype == HT_F32 ? ncclFloat32 : ncclBfloat16;
}

/* A failure of another rank, or of a link, that NCCL has noticed meanwhile. */
static ht_status look(ht_world *w) {
    int error = ncclSuccess;
    NCCL_TRY(w, w->nccl->CommGetAsyncError(w->nccl->comm, &error), "it was asked how it is");
    if (error == ncclSuccess || error == ncclInProgress) return HT_OK;
    w->broken = 1;
    return fail(w, error, "it carried data");
}

ht_status hti_nccl_gather(ht_world *w, const void *mine, void *all, size_t bytes) {
    hti_nccl *n = w->nccl;
    char *to = n->words + HTI_WORD_BYTES;
    CHECK(w->ctx, bytes <= HTI_WORD_BYTES, HT_UNSUPPORTED,
          "%zu bytes are too many to gather at once", bytes);
    TRY(w->ctx->ops->copy_in(w->ctx, n->words, mine, bytes));
    NCCL_TRY(w, n->AllGather(n->words, to, bytes, ncclUint8, n->comm, n->stream), "it gathered");
    TRY(w->ctx->ops->copy_out(w->ctx, all, to, bytes * (size_t)w->place.ranks));
    w->sent += bytes * (size_t)(w->place.ranks - 1);
    return look(w);
}

ht_status hti_nccl_sum(ht_world *w, ht_dtype dtype, void *x, int64_t count) {
    hti_nccl *n = w->nccl;
    NCCL_TRY(w, n->AllReduce(x, x, (size_t)count, type_of(dtype), ncclSum, n->comm, n->stream),
             "it added up");
    w->sent += (size_t)count * hti_bytes(dtype);
    return look(w);
}

ht_status hti_nccl_reduce(ht_world *w, ht_dtype dtype, void *arena, const hti_piece *pieces,
                          int64_t count) {
    hti_nccl *n = w->nccl;
    NCCL_TRY(w, n->GroupStart(), "a group began");
    for (int64_t i = 0; i < count; i++) {
        char *x = (char *)arena + (size_t)pieces[i].at * hti_bytes(dtype);
        NCCL_TRY(w,
                 n->Reduce(x, x, (size_t)pieces[i].count, type_of(dtype), ncclSum, pieces[i].owner,
                           n->comm, n->stream),
                 "it added up");
        if (pieces[i].owner != w->place.rank) w->sent += (size_t)pieces[i].count * hti_bytes(dtype);
    }
    NCCL_TRY(w, n->GroupEnd(), "a group ended");
    return look(w);
}

ht_status hti_nccl_spread(ht_world *w, ht_dtype dtype, void *arena, const hti_piece *pieces,
                          int64_t count) {
    hti_nccl *n = w->nccl;
    NCCL_TRY(w, n->GroupStart(), "a group began");
    for (int64_t i = 0; i < count; i++) {
        char *x = (char *)arena + (size_t)pieces[i].at * hti_bytes(dtype);
        NCCL_TRY(w,
                 n->Broadcast(x, x, (size_t)pieces[i].count, type_of(dtype), pieces[i].owner,
                              n->comm, n->stream),
                 "it spread");
        if (pieces[i].owner == w->place.rank) w->sent += (size_t)pieces[i].count * hti_bytes(dtype);
    }
    NCCL_TRY(w, n->GroupEnd(), "a group ended");
    return look(w);
}

ht_status hti_nccl_exchange(ht_world *w, const hti_parcel *to, int64_t tos, const hti_parcel *from,
                            int64_t froms) {
    hti_nccl *n = w->nccl;
    NCCL_TRY(w, n->GroupStart(), "a group began");
    for (int64_t i = 0; i < tos; i++) {
        NCCL_TRY(w, n->Send(to[i].data, to[i].bytes, ncclUint8, to[i].rank, n->comm, n->stream),
                 "it sent");
        w->sent += to[i].bytes;
    }
    for (int64_t i = 0; i < froms; i++)
        NCCL_TRY(w,
                 n->Recv(from[i].data, from[i].bytes, ncclUint8, from[i].rank, n->comm, n->stream),
                 "it received");
    NCCL_TRY(w, n->GroupEnd(), "a group ended");
    return look(w);
}
