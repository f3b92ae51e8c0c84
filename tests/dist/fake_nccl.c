/*
 * A library with the names of NCCL's that we call, for machines without GPUs: "device" memory is
 * host memory, the stream is nobody, and what a rank sends is a file in a folder that the unique id
 * names. It holds the callers to what NCCL asks of them: a group is ended, counts agree, the id is
 * rank 0's.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK, SYSTEM = 2, ARGUMENT = 4, USAGE = 5 };
enum { MOST = 256, RANKS = 16 };
enum { REDUCE, BROADCAST, SEND, RECEIVE, GATHER, SUM_ALL };

typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct ncclComm {
    char folder[128];
    int rank, ranks;
    int sent[RANKS], got[RANKS]; /* messages to and from each rank */
} * ncclComm_t;

typedef struct {
    int what, type, root;
    const void *from;
    void *to;
    size_t count;
    ncclComm_t comm;
} operation;

static operation queue[MOST];
static int queued, depth;

#define EXPORT __attribute__((visibility("default")))

static size_t size_of(int type) {
    return type == 1 ? 1 : type == 7 ? 4 : type == 8 ? 8 : type == 9 ? 2 : 0;
}

/* ---- messages as files ---- */

static void name_of(char out[256], const char *folder, int from, int to, int number) {
    snprintf(out, 256, "%s/%d-%d-%d", folder, from, to, number);
}

static int post(ncclComm_t c, int to, const void *data, size_t bytes) {
    char name[256], draft[264];
    name_of(name, c->folder, c->rank, to, c->sent[to]++);
    snprintf(draft, sizeof draft, "%s.new", name);
    FILE *f = fopen(draft, "wb");
    if (!f) return SYSTEM;
    int good = fwrite(data, 1, bytes, f) == bytes;
    good = fclose(f) == 0 && good;
    return good && rename(draft, name) == 0 ? OK : SYSTEM;
}

/* Waits ten seconds at most. */
static int fetch(ncclComm_t c, int from, void *data, size_t bytes) {
    char name[256];
    struct stat about;
    struct timespec nap = {0, 200000};
    name_of(name, c->folder, from, c->rank, c->got[from]++);
    for (int turn = 0; stat(name, &about) != 0; turn++) {
        if (turn > 50000) return SYSTEM;
        nanosleep(&nap, NULL);
    }
    if ((size_t)about.st_size != bytes) return ARGUMENT; /* they do not agree how much it is */
    FILE *f = fopen(name, "rb");
    int good = f && fread(data, 1, bytes, f) == bytes;
    if (f) fclose(f);
    unlink(name);
    return good ? OK : SYSTEM;
}

/* ---- operations: what is sent first, then what is waited for ---- */

static int give(operation *o) {
    ncclComm_t c = o->comm;
    size_t bytes = o->count * size_of(o->type);
    int error = OK;
    for (int r = 0; r < c->ranks && error == OK; r++) {
        int to_root = o->what == REDUCE && r == o->root;
        int from_root = o->what == BROADCAST && c->rank == o->root;
        int to_all = o->what == GATHER || o->what == SUM_ALL;
        int to_one = o->what == SEND && r == o->root;
        if (to_root || from_root || to_all || to_one) error = post(c, r, o->from, bytes);
    }
    return error;
}

static double number(const void *x, int type, size_t i) {
    uint32_t bits;
    float f;
    if (type == 8) return ((const double *)x)[i];
    if (type == 7) return ((const float *)x)[i];
    bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void put(void *x, int type, size_t i, double y) {
    float f = (float)y;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (type == 8) ((double *)x)[i] = y;
    if (type == 7) ((float *)x)[i] = f;
    if (type == 9) ((uint16_t *)x)[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static int add_up(operation *o) {
    ncclComm_t c = o->comm;
    size_t bytes = o->count * size_of(o->type);
    char *part = malloc(bytes + 1);
    double *sum = calloc(o->count + 1, sizeof *sum);
    int error = part && sum ? OK : SYSTEM;
    for (int r = 0; r < c->ranks && error == OK; r++) {
        error = fetch(c, r, part, bytes);
        for (size_t i = 0; i < o->count; i++) sum[i] += number(part, o->type, i);
    }
    for (size_t i = 0; i < o->count && error == OK; i++) put(o->to, o->type, i, sum[i]);
    free(part);
    free(sum);
    return error;
}

static int take(operation *o) {
    ncclComm_t c = o->comm;
    size_t bytes = o->count * size_of(o->type);
    int error = OK;
    switch (o->what) {
    case REDUCE: return c->rank == o->root ? add_up(o) : OK;
    case SUM_ALL: return add_up(o);
    case RECEIVE:
    case BROADCAST: return fetch(c, o->root, o->to, bytes);
    case GATHER:
        for (int r = 0; r < c->ranks && error == OK; r++)
            error = fetch(c, r, (char *)o->to + (size_t)r * bytes, bytes);
        return error;
    default: return OK;
    }
}

static int run_queue(void) {
    int error = OK;
    for (int i = 0; i < queued && error == OK; i++) error = give(&queue[i]);
    for (int i = 0; i < queued && error == OK; i++) error = take(&queue[i]);
    queued = 0;
    return error;
}

static int add(operation o) {
    if (!o.comm || size_of(o.type) == 0 || o.root < 0 || o.root >= o.comm->ranks) return ARGUMENT;
    if (queued == MOST) return USAGE;
    queue[queued++] = o;
    return depth > 0 ? OK : run_queue();
}

/* ---- NCCL's names ---- */

EXPORT int ncclGetVersion(int *version) {
    *version = 22809;
    return OK;
}

EXPORT const char *ncclGetErrorString(int error) {
    return error == ARGUMENT ? "invalid argument" : error == USAGE ? "invalid usage" : "system";
}

/* As NCCL does with NCCL_COMM_ID: every rank makes the same one. */
EXPORT int ncclGetUniqueId(ncclUniqueId *id) {
    const char *root = getenv("NCCL_COMM_ID");
    if (!root) return USAGE;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/tmp/fake-nccl-%.100s", root);
    return OK;
}

EXPORT int ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    if (ranks > RANKS || rank >= ranks || id.internal[0] != '/') return ARGUMENT;
    *comm = calloc(1, sizeof **comm);
    if (!*comm) return SYSTEM;
    snprintf((*comm)->folder, sizeof(*comm)->folder, "%s", id.internal);
    (*comm)->rank = rank;
    (*comm)->ranks = ranks;
    mkdir((*comm)->folder, 0700);
    return OK;
}

EXPORT int ncclCommDestroy(ncclComm_t comm) {
    if (depth != 0 || queued != 0) return USAGE;
    free(comm);
    return OK;
}

EXPORT int ncclCommAbort(ncclComm_t comm) {
    free(comm);
    return OK;
}

EXPORT int ncclCommGetAsyncError(ncclComm_t comm, int *error) {
    *error = OK;
    return comm ? OK : ARGUMENT;
}

EXPORT int ncclGroupStart(void) {
    depth++;
    return OK;
}

EXPORT int ncclGroupEnd(void) {
    if (depth == 0) return USAGE;
    return --depth == 0 ? run_queue() : OK;
}

EXPORT int ncclSend(const void *x, size_t count, int type, int peer, ncclComm_t c, void *stream) {
    (void)stream;
    return add((operation){SEND, type, peer, x, NULL, count, c});
}

EXPORT int ncclRecv(void *x, size_t count, int type, int peer, ncclComm_t c, void *stream) {
    (void)stream;
    return add((operation){RECEIVE, type, peer, NULL, x, count, c});
}

EXPORT int ncclAllGather(const void *mine, void *all, size_t count, int type, ncclComm_t c,
                         void *stream) {
    (void)stream;
    return add((operation){GATHER, type, 0, mine, all, count, c});
}

EXPORT int ncclAllReduce(const void *x, void *sum, size_t count, int type, int op, ncclComm_t c,
                         void *stream) {
    (void)stream;
    return op == 0 ? add((operation){SUM_ALL, type, 0, x, sum, count, c}) : ARGUMENT;
}

EXPORT int ncclReduce(const void *x, void *sum, size_t count, int type, int op, int root,
                      ncclComm_t c, void *stream) {
    (void)stream;
    return op == 0 ? add((operation){REDUCE, type, root, x, sum, count, c}) : ARGUMENT;
}

EXPORT int ncclBroadcast(const void *x, void *to, size_t count, int type, int root, ncclComm_t c,
                         void *stream) {
    (void)stream;
    return add((operation){BROADCAST, type, root, x, to, count, c});
}
