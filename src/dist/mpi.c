/*
 * MPI: finding and opening the plug-in, messages, and waiting for them with an end to patience.
 */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dist/world.h"

#define PLUGIN "libhtransformer_mpi.so"
enum { MESSAGE = 1 << 30 }; /* bytes: MPI counts in int */

/* ---- the plug-in ---- */

static void *open_in(const char *folder, const char *below) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s%s/" PLUGIN, folder, below) >= (int)sizeof path) return NULL;
    /* the parts that some MPIs load when they start look for its symbols in the whole program */
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

/* Beside the file that this code lies in, or below the lib folder of its prefix. */
static void *open_near(const char *file) {
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s", file) >= (int)sizeof folder) return NULL;
    char *slash = strrchr(folder, '/');
    if (!slash) return NULL;
    *slash = '\0';
    void *library = open_in(folder, "");
    if (!library) library = open_in(folder, "/htransformer");
    if (!library) library = open_in(folder, "/../lib/htransformer");
    return library;
}

static void *find_plugin(void) {
    const char *given = getenv("HTRANSFORMER_MPI");
    char self[4096];
    Dl_info here;
    if (given && *given) return dlopen(given, RTLD_NOW | RTLD_GLOBAL);
    void *library = NULL;
    if (dladdr((const void *)&hti_mpi_open, &here) && here.dli_fname)
        library = open_near(here.dli_fname);
    ssize_t n = library ? -1 : readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = '\0';
        library = open_near(self);
    }
    return library ? library : open_in(HTI_PLUGIN_FOLDER, "");
}

static ht_status fail(const ht_world *w, int error, const char *doing) {
    char why[256];
    w->mpi->text(error, why);
    return hti_fail(w->ctx, HT_DEVICE, "rank %d of %d: MPI failed while %s: %s", w->place.rank,
                    w->place.ranks, doing, why);
}

static ht_status start(ht_world *w) {
    int rank, ranks, error = w->mpi->open(&rank, &ranks, &w->direct, w->link);
    if (error) return fail(w, error, "it was started");
    CHECK(w->ctx, rank == w->place.rank && ranks == w->place.ranks, HT_DEVICE,
          "%s says that this is rank %d of %d, MPI says %d of %d: was " PLUGIN
          " built with another MPI than the one that started this?",
          w->place.launcher, w->place.rank, w->place.ranks, rank, ranks);
    return HT_OK;
}

ht_status hti_mpi_open(ht_world *w) {
    w->mpi_library = find_plugin();
    if (!w->mpi_library) return HT_OK;
    hti_mpi_entry *entry;
    *(void **)&entry = dlsym(w->mpi_library, HTI_MPI_ENTRY);
    w->mpi = entry ? entry() : NULL;
    if (w->mpi && w->mpi->version != HTI_MPI_VERSION) w->mpi = NULL;
    CHECK(w->ctx, w->mpi, HT_UNSUPPORTED, PLUGIN " is of another version of htransformer");
    ht_status status = start(w);
    if (status != HT_OK) w->broken = 1;
    return status;
}

void hti_mpi_close(ht_world *w, const char *failed) {
    if (!w->mpi) return;
    if (failed && !w->broken) w->mpi->tell(failed);
    if (!failed && !w->broken) w->mpi->close();
    w->mpi = NULL; /* the library stays: MPI can be neither closed half-way nor started again */
}

/* ---- waiting ---- */

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* The longer it lasts, the less it costs: there may be more ranks than cores. */
static void rest(int turn) {
    struct timespec nap = {0, turn < 4000 ? 20000 : 200000};
    if (turn < 64) return;
    if (turn < 1024)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

#define WAITS "waits" /* what ranks without patience tell each other */
enum { NEWS = 400 };

/* News of another rank, if there are some; those that wait are written down. */
static int hear(ht_world *w, int *who, char news[NEWS]) {
    if (!w->mpi->hear(who, news, NEWS)) return 0;
    if (strcmp(news, WAITS) != 0) return 1;
    w->waiting[*who] = 1;
    return 0;
}

/* All that can wait for the one that is gone, and say so; -1: they all do. */
static int find_missing(ht_world *w) {
    double begin = now(), most = w->patience > 20 ? 0.1 * w->patience : 2;
    struct timespec nap = {0, 1000000};
    char news[NEWS];
    int who;
    w->mpi->tell(WAITS);
    w->waiting[w->place.rank] = 1;
    while (now() - begin < most) {
        hear(w, &who, news);
        nanosleep(&nap, NULL);
    }
    for (int r = 0; r < w->place.ranks; r++)
        if (!w->waiting[r]) return r;
    return -1;
}

static ht_status fail_waiting(ht_world *w) {
    char who[32] = "another rank";
    int missing = find_missing(w);
    if (missing >= 0) snprintf(who, sizeof who, "rank %d", missing);
    return hti_fail(w->ctx, HT_DEVICE, "rank %d of %d waited %.0f s for %s, which hangs or is gone",
                    w->place.rank, w->place.ranks, w->waits, who);
}

/* Until the request is done. */
static ht_status wait_for(ht_world *w, void *request) {
    double begin = 0;
    char news[NEWS];
    for (int turn = 0, done = 0, who = 0;; turn += turn < INT_MAX) {
        int error = w->mpi->test(request, &done);
        if (error) return fail(w, error, "it carried data");
        if (done) return HT_OK;
        if (turn % 64 == 63 && hear(w, &who, news)) {
            w->told = 1;
            return hti_fail(w->ctx, HT_DEVICE, "rank %d of %d failed: %s", who, w->place.ranks,
                            news);
        }
        if (turn == 64) begin = now();
        if (turn > 1024 && now() - begin > w->waits) return fail_waiting(w);
        rest(turn);
    }
}

static ht_status wait_or_break(ht_world *w, void *request) {
    ht_status status = wait_for(w, request);
    if (status != HT_OK) w->broken = 1;
    return status;
}

ht_status hti_mpi_gather(ht_world *w, const void *mine, void *all, size_t bytes) {
    _Alignas(16) char request[64];
    CHECK(w->ctx, w->mpi->request_bytes <= sizeof request && bytes < MESSAGE, HT_UNSUPPORTED,
          "%zu bytes are too many to gather at once", bytes);
    int error = w->mpi->gather(mine, all, bytes, request);
    if (error) return fail(w, error, "it gathered");
    w->sent += bytes * (size_t)(w->place.ranks - 1);
    return wait_or_break(w, request);
}

/* ---- messages ---- */

int hti_mpi_messages(size_t bytes) { return (int)((bytes + MESSAGE - 1) / MESSAGE); }

ht_status hti_mpi_post(hti_flight *f, int send, void *data, size_t bytes, int rank) {
    ht_world *w = f->w;
    for (size_t at = 0; at < bytes; at += MESSAGE) {
        size_t n = bytes - at < MESSAGE ? bytes - at : MESSAGE;
        CHECK(w->ctx, f->count < f->most, HT_UNSUPPORTED,
              "more messages than the %d there is room for", f->most);
        void *request = f->requests + (size_t)f->count * w->mpi->request_bytes;
        int error = send ? w->mpi->send((char *)data + at, n, rank, request)
                         : w->mpi->receive((char *)data + at, n, rank, request);
        if (error) return fail(w, error, send ? "it sent" : "it received");
        f->count++;
    }
    if (send) w->sent += bytes;
    return HT_OK;
}

void hti_flight_poke(hti_flight *f) {
    int done;
    if (!f->w || !f->w->mpi || f->w->broken) return;
    for (int i = 0; i < f->count; i++) {
        f->w->mpi->test(f->requests + (size_t)i * f->w->mpi->request_bytes, &done);
        if (!done) return; /* one look moves all of them */
    }
}

ht_status hti_mpi_wait(hti_flight *f) {
    for (int i = 0; i < f->count; i++)
        TRY(wait_or_break(f->w, f->requests + (size_t)i * f->w->mpi->request_bytes));
    f->count = 0;
    return HT_OK;
}
