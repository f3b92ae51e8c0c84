/*
 * Processes that work together: one small wall in front of MPI and NCCL.
 *
 * All ranks call these functions in the same order with what belongs together; a rank that stays
 * away is named in the others' sentence once their patience is over. Host memory and small things
 * go over MPI where there is one; device memory over NCCL where there is one, else over MPI. Sums
 * are made in the order of ranks, so that the same numbers give the same bits (NCCL: in an order of
 * its own, which is the same every time).
 */
#ifndef HTI_WORLD_H
#define HTI_WORLD_H

#include "dist/mpi.h"
#include "htransformer_models.h"
#include "op.h"

enum { HTI_MOST_RANKS = 65536, HTI_WORD_BYTES = 256 };

typedef struct hti_nccl hti_nccl; /* nccl.c */

struct ht_world {
    ht_context *ctx;
    ht_place place;
    char link[160];     /* what carries the bytes, for people */
    const hti_mpi *mpi; /* NULL: none */
    void *mpi_library;
    hti_nccl *nccl;  /* NULL: none */
    int direct;      /* MPI may read and write the context's device memory */
    int host;        /* device memory is host memory */
    double patience; /* seconds that a rank may stay away */
    double waits;    /* the same for what is waited for now, see hti_world_agree */
    int broken;      /* a rank is gone; there is nothing to be said any more */
    int told;        /* the sentence of the failure came from another rank */
    char *words;     /* [ranks][HTI_WORD_BYTES] what hosts say to each other */
    char *waiting;   /* [ranks]: it has said that it has no patience left */
    uint64_t sent;   /* bytes that this rank has given to others */
};

/* Is there anybody else? NULL: no. */
static inline int hti_world_many(const ht_world *w) { return w && w->place.ranks > 1; }

/* ---- host memory ---- */

/* `bytes` of every rank, one after the other, at every rank. */
ht_status hti_world_gather(ht_world *w, const void *mine, void *all, size_t bytes);
ht_status hti_world_barrier(ht_world *w);
/* Rank 0's at every rank; at most HTI_WORD_BYTES. */
ht_status hti_world_from_first(ht_world *w, void *x, size_t bytes);
/* 1: from here on others may take long, one of them works alone; 0: no more. */
void hti_world_be_patient(ht_world *w, int late);
/* x[i] = the sum of all ranks' x[i], in the order of ranks; at most HTI_WORD_BYTES. */
ht_status hti_world_add(ht_world *w, double *x, int count);
/* Every rank's status: if any failed, all fail with its sentence. For what all must have done
 * before anybody goes on, like the parts of a checkpoint; what one rank does while others have
 * nothing to do may take twenty times their patience. */
ht_status hti_world_agree(ht_world *w, ht_status mine);

/* ---- device memory ---- */

/* Numbers [at, at + count) of an arena, which belong to one rank. */
typedef struct hti_piece {
    int64_t at, count;
    int owner;
} hti_piece;

/* Bytes to a rank, or from it. */
typedef struct hti_parcel {
    int rank;
    void *data;
    size_t bytes;
} hti_parcel;

/* What is on its way, and the memory that this takes; made for the largest thing it will carry, so
 * that nothing is allocated on the way. Starts as {0}. */
typedef struct hti_flight {
    ht_world *w;
    char *requests; /* of MPI */
    int count, most;
    char *room;  /* host: what other ranks sent of my pieces, [ranks - 1][mine] */
    char *stage; /* host: copies of device memory that MPI cannot reach */
    size_t room_bytes, stage_bytes;
    size_t staged; /* bytes of `stage` in use */
    /* what is to be done at its end */
    int what;
    ht_dtype dtype;
    void *arena;
    const hti_piece *pieces;
    const hti_parcel *parcels;
    int64_t parts;
} hti_flight;

/* Room for carrying these pieces of numbers of `dtype`, or these parcels. */
ht_status hti_flight_fit(hti_flight *f, ht_world *w, ht_dtype dtype, const hti_piece *pieces,
                         int64_t count);
ht_status hti_flight_fit_parcels(hti_flight *f, ht_world *w, const hti_parcel *to, int64_t tos,
                                 const hti_parcel *from, int64_t froms);
void hti_flight_free(hti_flight *f);
size_t hti_flight_bytes(const hti_flight *f); /* of memory that it holds */

/* The sum of all ranks' pieces, at their owners; elsewhere they stay as they were. */
ht_status hti_reduce_start(hti_flight *f, ht_dtype dtype, void *arena, const hti_piece *pieces,
                           int64_t count);
/* The owners' pieces, everywhere. */
ht_status hti_spread_start(hti_flight *f, ht_dtype dtype, void *arena, const hti_piece *pieces,
                           int64_t count);
/* Parcels to others and from them: those between two ranks are in the same order on both. */
ht_status hti_exchange_start(hti_flight *f, const hti_parcel *to, int64_t tos,
                             const hti_parcel *from, int64_t froms);
void hti_flight_poke(hti_flight *f);     /* lets MPI do some of its work */
ht_status hti_flight_end(hti_flight *f); /* done; a flight that was not started is done */

/* x[i] = the sum of all ranks' x[i]: few numbers of F32 or F64 in device memory. */
ht_status hti_world_sum(ht_world *w, ht_dtype dtype, void *x, int64_t count);

/* ---- inside: the two back ends ---- */

ht_status hti_mpi_open(ht_world *w);
void hti_mpi_close(ht_world *w, const char *failed);
ht_status hti_mpi_gather(ht_world *w, const void *mine, void *all, size_t bytes);
ht_status hti_mpi_post(hti_flight *f, int send, void *data, size_t bytes, int rank);
ht_status hti_mpi_wait(hti_flight *f);
/* Messages that so many bytes go in. */
int hti_mpi_messages(size_t bytes);

/* NULL: the library of that name is not there; *out stays NULL and it is no failure. */
ht_status hti_nccl_open(ht_world *w, const char *library);
void hti_nccl_close(ht_world *w, int failed);
ht_status hti_nccl_gather(ht_world *w, const void *mine, void *all, size_t bytes);
ht_status hti_nccl_reduce(ht_world *w, ht_dtype dtype, void *arena, const hti_piece *pieces,
                          int64_t count);
ht_status hti_nccl_spread(ht_world *w, ht_dtype dtype, void *arena, const hti_piece *pieces,
                          int64_t count);
ht_status hti_nccl_exchange(ht_world *w, const hti_parcel *to, int64_t tos, const hti_parcel *from,
                            int64_t froms);
ht_status hti_nccl_sum(ht_world *w, ht_dtype dtype, void *x, int64_t count);

#endif
