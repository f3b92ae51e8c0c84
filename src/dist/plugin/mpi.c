/*
 * libhtransformer_mpi.so: dist/mpi.h in terms of the MPI that this build found.
 */
#include "dist/mpi.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OPEN_MPI
#include <mpi-ext.h> /* whether it takes device memory */
#endif

enum { TAG_DATA = 1, TAG_NEWS = 2, NEWS_BYTES = 512 };

static MPI_Comm comm = MPI_COMM_NULL; /* ours: the program's own messages do not meet these */
static int ours;                      /* MPI was started here */

static int takes_device_memory(void) {
#if defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support();
#elif defined(MPICH)
    const char *on = getenv("MPICH_GPU_SUPPORT_ENABLED");
    return on && strcmp(on, "1") == 0;
#else
    return 0;
#endif
}

/* The library's name: the first line or so of what it says. */
static void name_of(char about[128]) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    for (char *c = text; *c; c++)
        if (*c == '\t') *c = ' ';
    snprintf(about, 128, "%.127s", text);
}

static int open_mpi(int *rank, int *ranks, int *cuda, char about[128]) {
    int running = 0, over = 0, threads, error;
    MPI_Finalized(&over);
    if (over) return MPI_ERR_OTHER;
    MPI_Initialized(&running);
    error = running ? MPI_SUCCESS : MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &threads);
    if (error == MPI_SUCCESS) error = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (error != MPI_SUCCESS) return error;
    ours = !running;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, rank);
    MPI_Comm_size(comm, ranks);
    *cuda = takes_device_memory();
    name_of(about);
    return 0;
}

static void close_mpi(void) {
    MPI_Comm_free(&comm);
    if (ours) MPI_Finalize();
}

static int send_bytes(const void *data, size_t bytes, int rank, void *request) {
    return MPI_Isend(data, (int)bytes, MPI_BYTE, rank, TAG_DATA, comm, request);
}

static int receive_bytes(void *data, size_t bytes, int rank, void *request) {
    return MPI_Irecv(data, (int)bytes, MPI_BYTE, rank, TAG_DATA, comm, request);
}

static int gather_bytes(const void *mine, void *all, size_t bytes, void *request) {
    return MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, comm, request);
}

static int test_request(void *request, int *done) {
    return MPI_Test(request, done, MPI_STATUS_IGNORE);
}

/* Small enough to leave at once; nobody waits until it has arrived. */
static void tell_all(const char *text) {
    static char news[NEWS_BYTES];
    int rank, ranks;
    snprintf(news, sizeof news, "%s", text);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    for (int i = 0; i < ranks; i++) {
        MPI_Request request = MPI_REQUEST_NULL;
        int done = i == rank;
        if (!done && MPI_Isend(news, NEWS_BYTES, MPI_BYTE, i, TAG_NEWS, comm, &request) != 0)
            continue;
        for (int turn = 0; turn < 1000 && !done; turn++)
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
}

static int hear_news(int *rank, char *text, size_t bytes) {
    char news[NEWS_BYTES];
    MPI_Status status;
    int there = 0;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_NEWS, comm, &there, &status) != 0 || !there) return 0;
    if (MPI_Recv(news, NEWS_BYTES, MPI_BYTE, status.MPI_SOURCE, TAG_NEWS, comm,
                 MPI_STATUS_IGNORE) != 0)
        return 0;
    *rank = status.MPI_SOURCE;
    snprintf(text, bytes, "%.*s", NEWS_BYTES, news);
    return 1;
}

static void text_of(int error, char out[256]) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(error, text, &length) != 0) snprintf(text, sizeof text, "error %d", error);
    snprintf(out, 256, "%.255s", text);
}

static const hti_mpi table = {.version = HTI_MPI_VERSION,
                              .request_bytes = sizeof(MPI_Request),
                              .open = open_mpi,
                              .close = close_mpi,
                              .send = send_bytes,
                              .receive = receive_bytes,
                              .gather = gather_bytes,
                              .test = test_request,
                              .tell = tell_all,
                              .hear = hear_news,
                              .text = text_of};

__attribute__((visibility("default"))) const hti_mpi *hti_mpi_table(void);
const hti_mpi *hti_mpi_table(void) { return &table; }
