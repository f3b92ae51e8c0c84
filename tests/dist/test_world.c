/*
 * What ranks say to each other: every rank of a launcher runs this, and looks at what it got.
 *
 *     mpirun -n 3 test_world          the tests
 *     mpirun -n 3 test_world fail     rank 1 fails; the others end with its words
 *     mpirun -n 3 test_world hang     rank 1 stays away; the others end, naming it
 *     test_world nccl LIBRARY 3       the tests over NCCL without MPI: starts the ranks itself
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_world.h"

/* after them: it uses their types */
#include <cmocka.h>

static ht_context *ctx;
static ht_world *world;
static int rank, ranks;

#define OK(call)                                                                   \
    do {                                                                           \
        if ((call) != HT_OK) fail_msg("rank %d: %s", rank, ht_context_error(ctx)); \
    } while (0)

/* ---- host memory ---- */

static void test_gather(void **state) {
    (void)state;
    int64_t mine[3] = {rank, 10 * rank, -1}, all[HTI_WORD_BYTES];
    OK(hti_world_gather(world, mine, all, sizeof mine));
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(all[3 * r], r);
        assert_int_equal(all[3 * r + 1], 10 * r);
    }
    OK(hti_world_barrier(world));
    int64_t word = rank == 0 ? 42 : 7;
    OK(hti_world_from_first(world, &word, sizeof word));
    assert_int_equal(word, 42);
}

static void test_agree(void **state) {
    (void)state;
    OK(hti_world_agree(world, HT_OK));
    if (ranks == 1) return;
    ht_status mine = rank == 1 ? hti_fail(ctx, HT_IO, "the disk of rank 1 is full") : HT_OK;
    assert_int_equal(hti_world_agree(world, mine), HT_IO);
    assert_non_null(strstr(ht_context_error(ctx), "the disk of rank 1 is full"));
    if (rank != 1) {
        char words[64];
        snprintf(words, sizeof words, "rank 1 of %d failed: ", ranks);
        assert_non_null(strstr(ht_context_error(ctx), words));
    }
    OK(hti_world_agree(world, HT_OK)); /* and it goes on */
}

/* ---- device memory ---- */

/* Number i of rank r's arena. Tenths: their sums round. */
static double value(int r, int64_t i) { return 0.1 * (double)((i * 7 + r * 13) % 101) + r; }

static double read_at(const void *x, ht_dtype dtype, int64_t i) {
    uint16_t half;
    if (dtype == HT_F64) return ((const double *)x)[i];
    if (dtype == HT_F32) return ((const float *)x)[i];
    half = ((const uint16_t *)x)[i];
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void write_at(void *x, ht_dtype dtype, int64_t i, double y) {
    float f = (float)y;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (dtype == HT_F64) ((double *)x)[i] = y;
    if (dtype == HT_F32) ((float *)x)[i] = f;
    if (dtype == HT_BF16) ((uint16_t *)x)[i] = (uint16_t)(bits >> 16); /* cut */
}

enum { NUMBERS = 1000, PIECES = 9 };

/* Pieces of odd sizes, one of them empty, and gaps between them; owners in turn. */
static int64_t cut(hti_piece *out) {
    static const int64_t sizes[PIECES] = {1, 200, 3, 0, 64, 17, 300, 5, 32};
    int64_t at = 2;
    for (int i = 0; i < PIECES; i++) {
        out[i] = (hti_piece){at, sizes[i], (i * 2 + 1) % ranks};
        at += sizes[i] + 3;
    }
    return PIECES;
}

static int owner_of(const hti_piece *p, int64_t i) {
    for (int k = 0; k < PIECES; k++)
        if (i >= p[k].at && i < p[k].at + p[k].count) return p[k].owner;
    return -1;
}

static void fill(void *x, ht_dtype dtype) {
    for (int64_t i = 0; i < NUMBERS; i++) write_at(x, dtype, i, value(rank, i));
}

/* The sum in double, in the order of ranks, as it is when the type rounds it once. */
static double sum_of(ht_dtype dtype, int64_t i) {
    double sum = 0, x[1];
    for (int r = 0; r < ranks; r++) {
        write_at(x, dtype, 0, value(r, i));
        sum += read_at(x, dtype, 0);
    }
    return dtype == HT_F32 ? (double)(float)sum : sum;
}

static void check_reduced(const void *x, const hti_piece *pieces, ht_dtype dtype) {
    for (int64_t i = 0; i < NUMBERS; i++) {
        double got = read_at(x, dtype, i), before[1];
        write_at(before, dtype, 0, value(rank, i));
        if (owner_of(pieces, i) != rank)
            assert_true(got == read_at(before, dtype, 0));
        else if (dtype == HT_BF16) /* within half a unit of the last place, and sums in float */
            assert_true(fabs(got - sum_of(dtype, i)) <= ldexp(fabs(got), -8));
        else
            assert_true(got == sum_of(dtype, i));
    }
}

static void test_reduce_and_spread(void **state) {
    (void)state;
    static const ht_dtype dtypes[] = {HT_F32, HT_F64, HT_BF16};
    hti_piece pieces[PIECES];
    int64_t count = cut(pieces);
    hti_flight f = {0};
    void *x;
    OK(ctx->ops->alloc(ctx, &x, NUMBERS * sizeof(double)));
    for (int d = 0; d < 3; d++) {
        OK(hti_flight_fit(&f, world, dtypes[d], pieces, count));
        fill(x, dtypes[d]);
        uint64_t before = world->sent;
        OK(hti_reduce_start(&f, dtypes[d], x, pieces, count));
        hti_flight_poke(&f);
        OK(hti_flight_end(&f));
        check_reduced(x, pieces, dtypes[d]);
        uint64_t want = 0;
        for (int i = 0; i < count; i++)
            if (pieces[i].owner != rank) want += (uint64_t)pieces[i].count * hti_bytes(dtypes[d]);
        assert_int_equal(world->sent - before, want);
        OK(hti_spread_start(&f, dtypes[d], x, pieces, count));
        OK(hti_flight_end(&f));
        for (int64_t i = 0; i < NUMBERS; i++) {
            if (owner_of(pieces, i) < 0) continue;
            double got = read_at(x, dtypes[d], i), off = fabs(got - sum_of(dtypes[d], i));
            assert_true(off <= (dtypes[d] == HT_BF16 ? ldexp(fabs(got), -8) : 0));
        }
    }
    hti_flight_free(&f);
    ctx->ops->release(ctx, x);
}

/* Two on their way at once, ended in the other order. */
static void test_two_flights(void **state) {
    (void)state;
    hti_piece pieces[2][PIECES];
    hti_flight f[2] = {{0}, {0}};
    void *x[2];
    for (int k = 0; k < 2; k++) {
        cut(pieces[k]);
        OK(ctx->ops->alloc(ctx, &x[k], NUMBERS * sizeof(double)));
        OK(hti_flight_fit(&f[k], world, HT_F64, pieces[k], PIECES));
        fill(x[k], HT_F64);
        OK(hti_reduce_start(&f[k], HT_F64, x[k], pieces[k], PIECES));
    }
    if (ranks > 1)
        assert_int_equal(hti_reduce_start(&f[0], HT_F64, x[0], pieces[0], PIECES), HT_INVALID);
    for (int k = 1; k >= 0; k--) {
        OK(hti_flight_end(&f[k]));
        check_reduced(x[k], pieces[k], HT_F64);
        hti_flight_free(&f[k]);
        ctx->ops->release(ctx, x[k]);
    }
}

/* Every rank gives every other one a parcel of a size of its own, and two to its right. */
static void test_exchange(void **state) {
    (void)state;
    enum { MOST = 64 };
    hti_parcel to[MOST], from[MOST];
    unsigned char *x, *y;
    int64_t n = 0;
    hti_flight f = {0};
    size_t used = 0, got = 0;
    OK(ctx->ops->alloc(ctx, (void **)&x, 65536));
    OK(ctx->ops->alloc(ctx, (void **)&y, 65536));
    for (int r = 0; r < ranks; r++) {
        for (int k = 0; k < 2 && r != rank; k++, n++) {
            size_t bytes = (size_t)(rank * 100 + r * 10 + k * 3 + 1);
            to[n] = (hti_parcel){r, x + used, bytes};
            memset(to[n].data, rank * 16 + r + k, bytes);
            used += bytes;
            bytes = (size_t)(r * 100 + rank * 10 + k * 3 + 1);
            from[n] = (hti_parcel){r, y + got, bytes};
            got += bytes;
        }
    }
    OK(hti_flight_fit_parcels(&f, world, to, n, from, n));
    OK(hti_exchange_start(&f, to, n, from, n));
    OK(hti_flight_end(&f));
    for (int64_t i = 0; i < n; i++)
        for (size_t b = 0; b < from[i].bytes; b++)
            assert_int_equal(((unsigned char *)from[i].data)[b],
                             from[i].rank * 16 + rank + (int)(i % 2));
    hti_flight_free(&f);
    ctx->ops->release(ctx, x);
    ctx->ops->release(ctx, y);
}

static void test_sum(void **state) {
    (void)state;
    double *x;
    OK(ctx->ops->alloc(ctx, (void **)&x, 4 * sizeof *x));
    for (int i = 0; i < 4; i++) x[i] = value(rank, i);
    OK(hti_world_sum(world, HT_F64, x, 4));
    for (int i = 0; i < 4; i++) assert_true(x[i] == sum_of(HT_F64, i));
    float *y = (float *)(void *)x;
    for (int i = 0; i < 4; i++) y[i] = (float)value(rank, i);
    OK(hti_world_sum(world, HT_F32, y, 4));
    for (int i = 0; i < 4; i++) assert_true(y[i] == (float)sum_of(HT_F32, i));
    ctx->ops->release(ctx, x);
}

/* ---- when a rank fails or stays away ---- */

/* Ends the process: 0 if this rank saw what it should. */
static int expect(const char *words) {
    ht_status status = hti_world_barrier(world);
    int good = status == HT_DEVICE && strstr(ht_context_error(ctx), words);
    printf("rank %d: %s: %s\n", rank, good ? "as it should" : "WRONG", ht_context_error(ctx));
    good = good && hti_world_barrier(world) == HT_DEVICE; /* at once: it is over */
    ht_world_close(world, ht_context_error(ctx));
    return !good;
}

static int failing(void) {
    if (rank != 1) return expect("rank 1 of 3 failed: there was no more memory");
    ht_world_close(world, "there was no more memory");
    sleep(3); /* the launcher ends the others when this one ends */
    return 0;
}

static int hanging(void) {
    if (rank == 1) {
        sleep(60); /* the launcher ends it with the others */
        return 0;
    }
    hti_flight f = {0};
    hti_piece piece = {0, 1, rank};
    double x[1] = {0};
    if (hti_flight_fit(&f, world, HT_F64, &piece, 1) != HT_OK) return 1;
    int64_t mine = 0;
    hti_parcel none = {1, &mine, sizeof mine};
    ht_status status = hti_exchange_start(&f, NULL, 0, &none, 1);
    if (status == HT_OK) status = hti_flight_end(&f);
    int good = status == HT_DEVICE &&
               strstr(ht_context_error(ctx), "waited 2 s for rank 1, which hangs or is gone");
    printf("rank %d: %s: %s\n", rank, good ? "as it should" : "WRONG", ht_context_error(ctx));
    (void)x;
    return !good;
}

static int run_all(void) {
    if (rank == 0) printf("%d ranks over %s\n", ranks, ht_world_link(world));
    if (rank > 0 && !freopen("/dev/null", "w", stdout)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather),      cmocka_unit_test(test_agree),
        cmocka_unit_test(test_two_flights), cmocka_unit_test(test_reduce_and_spread),
        cmocka_unit_test(test_exchange),    cmocka_unit_test(test_sum),
    };
    int failed = cmocka_run_group_tests_name("world", tests, NULL, NULL);
    ht_world_close(world, failed ? "a test failed" : NULL);
    ht_context_destroy(ctx);
    return failed;
}

/* ---- NCCL, or what stands for it ---- */

/* One rank of a world that has NCCL alone. */
static int run_nccl(const char *library, int count) {
    ht_context_desc desc = {.size = sizeof desc, .device = "cpu", .threads = 1};
    ranks = count;
    rank = world_fork(count);
    if (rank < 0) return -1 - rank;
    if (ht_context_create(&ctx, &desc) != HT_OK) return 1;
    world = world_by_nccl(ctx, library, rank, ranks);
    if (world) return run_all();
    fprintf(stderr, "rank %d: %s\n", rank, ht_context_error(ctx));
    return 1;
}

int main(int argc, char **argv) {
    ht_context_desc desc = {.size = sizeof desc, .device = "cpu", .threads = 1};
    ht_place place = HT_PLACE_INIT;
    const char *mode = argc > 1 ? argv[1] : "";
    if (argc > 3 && strcmp(mode, "nccl") == 0) return run_nccl(argv[2], atoi(argv[3]));
    if (strcmp(mode, "hang") == 0) setenv("HTRANSFORMER_PATIENCE", "2", 1);
    if (ht_context_create(&ctx, &desc) != HT_OK || ht_world_open(&world, ctx) != HT_OK ||
        ht_world_get_place(world, &place) != HT_OK) {
        fprintf(stderr, "%s\n", ht_context_error(ctx));
        return 1;
    }
    rank = place.rank, ranks = place.ranks;
    if (strcmp(mode, "fail") == 0) return failing();
    if (strcmp(mode, "hang") == 0) return hanging();
    return run_all();
}
