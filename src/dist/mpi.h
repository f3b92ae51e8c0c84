/*
 * What a plug-in of ours gives: MPI in a few calls. Programs compiled against one MPI do not run
 * with another, so that this is a library of its own (libhtransformer_mpi.so), compiled against the
 * MPI that the build found and opened only where several processes were started.
 *
 * Functions return 0 or MPI's error, which `text` puts into words.
 */
#ifndef HTI_MPI_H
#define HTI_MPI_H

#include <stddef.h>

#define HTI_MPI_VERSION 1
#define HTI_MPI_ENTRY "hti_mpi_table"

typedef struct hti_mpi {
    int version;
    size_t request_bytes;
    /* cuda: 1 if MPI takes device memory; about: which MPI this is */
    int (*open)(int *rank, int *ranks, int *cuda, char about[128]);
    void (*close)(void); /* waits for the others */

    /* what has begun ends when `test` says so; `request` has request_bytes */
    int (*send)(const void *data, size_t bytes, int rank, void *request);
    int (*receive)(void *data, size_t bytes, int rank, void *request);
    int (*gather)(const void *mine, void *all, size_t bytes, void *request);
    int (*test)(void *request, int *done);

    /* Last words of a rank that fails, to all others, who look for them while they wait. */
    void (*tell)(const char *text);
    int (*hear)(int *rank, char *text, size_t bytes); /* 1: there were some */
    void (*text)(int error, char out[256]);
} hti_mpi;

/* The one function that leaves the library. */
typedef const hti_mpi *hti_mpi_entry(void);

#endif
