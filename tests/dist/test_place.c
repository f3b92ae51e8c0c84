/*
 * Where a process stands, by what launchers leave in the environment.
 */
#include <htransformer_models.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* after them: it uses their types */
#include <cmocka.h>

static const char *const names[] = {"OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMI_SIZE",
                                    "PMI_RANK",
                                    "MPI_LOCALRANKID",
                                    "MPI_LOCALNRANKS",
                                    "SLURM_NTASKS",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_PROCID",
                                    "SLURM_LOCALID",
                                    "WORLD_SIZE",
                                    "RANK",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE"};

static int clear(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    return 0;
}

/* "NAME=VALUE NAME=VALUE" into the environment. */
static void set_all(const char *text) {
    char copy[512];
    clear(NULL);
    strcpy(copy, text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
}

static void test_launchers(void **state) {
    (void)state;
    static const struct {
        const char *environment, *launcher;
        int rank, ranks, local_rank, local_ranks;
    } cases[] = {
        {"", NULL, 0, 1, 0, 1},
        {"OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=4",
         "mpirun", 5, 8, 1, 4},
        {"PMI_SIZE=3 PMI_RANK=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "mpiexec", 2, 3, 0, 1},
        {"SLURM_STEP_NUM_TASKS=16 SLURM_PROCID=15 SLURM_LOCALID=7", "srun", 15, 16, 7, 1},
        {"WORLD_SIZE=2 RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "torchrun", 1, 2, 1, 2},
        /* a batch script, in which nothing was started yet */
        {"SLURM_NTASKS=16 SLURM_PROCID=0 SLURM_LOCALID=0", NULL, 0, 1, 0, 1},
        /* mpirun inside a Slurm job */
        {"SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 "
         "OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4",
         "mpirun", 3, 4, 3, 4},
        {"WORLD_SIZE=4", NULL, 0, 1, 0, 1}, /* half of what torchrun says is somebody else's */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ht_place p = HT_PLACE_INIT;
        set_all(cases[i].environment);
        assert_int_equal(ht_place_find(&p), HT_OK);
        assert_int_equal(p.rank, cases[i].rank);
        assert_int_equal(p.ranks, cases[i].ranks);
        assert_int_equal(p.local_rank, cases[i].local_rank);
        assert_int_equal(p.local_ranks, cases[i].local_ranks);
        if (cases[i].launcher)
            assert_string_equal(p.launcher, cases[i].launcher);
        else
            assert_null(p.launcher);
    }
}

static void test_nonsense(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"WORLD_SIZE=four RANK=0", "WORLD_SIZE must be 1 to"},
        {"WORLD_SIZE=4 RANK=4", "RANK must be 0 to 3, got \"4\""},
        {"WORLD_SIZE=0 RANK=0", "got \"0\""},
        {"WORLD_SIZE=99999999999999999999 RANK=0", "WORLD_SIZE"},
        {"PMI_SIZE=2 PMI_RANK=-1", "PMI_RANK must be 0 to 1"},
        {"WORLD_SIZE=4 RANK=1 LOCAL_RANK=", "LOCAL_RANK"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ht_place p = HT_PLACE_INIT;
        p.ranks = 77;
        set_all(cases[i][0]);
        assert_int_equal(ht_place_find(&p), HT_INVALID);
        assert_non_null(strstr(ht_context_error(NULL), cases[i][1]));
        assert_int_equal(p.ranks, 77); /* untouched */
    }
    assert_int_equal(ht_place_find(NULL), HT_INVALID);
}

/* Nobody else: everything is there and nothing is carried. */
static void test_alone(void **state) {
    (void)state;
    ht_context *ctx = NULL;
    ht_world *w = NULL;
    ht_place p = HT_PLACE_INIT;
    assert_int_equal(ht_context_create(&ctx, NULL), HT_OK);
    assert_int_equal(ht_world_open(&w, ctx), HT_OK);
    assert_int_equal(ht_world_get_place(w, &p), HT_OK);
    assert_int_equal(p.ranks, 1);
    assert_string_equal(ht_world_link(w), "nothing");
    ht_world_close(w, NULL);
    ht_context_destroy(ctx);
}

/* Several processes on the CPU, and no MPI to speak with. */
static void test_without_mpi(void **state) {
    (void)state;
    static const struct {
        const char *environment, *plugin, *words;
    } cases[] = {
        {"WORLD_SIZE=4 RANK=1", NULL,
         "torchrun started 4 processes, and on the CPU they need MPI: "
         "start them with mpirun or srun"},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1", "/nowhere/at/all.so",
         "libhtransformer_mpi.so was not found"},
    };
    ht_context_desc desc = {.size = sizeof desc, .device = "cpu"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ht_context *ctx = NULL;
        ht_world *w = (ht_world *)&ctx;
        assert_int_equal(ht_context_create(&ctx, &desc), HT_OK);
        set_all(cases[i].environment);
        if (cases[i].plugin) setenv("HTRANSFORMER_MPI", cases[i].plugin, 1);
        assert_int_equal(ht_world_open(&w, ctx), HT_UNSUPPORTED);
        assert_null(w);
        assert_non_null(strstr(ht_context_error(ctx), cases[i].words));
        unsetenv("HTRANSFORMER_MPI");
        ht_context_destroy(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_launchers, clear),
        cmocka_unit_test_setup(test_nonsense, clear),
        cmocka_unit_test_setup(test_alone, clear),
        cmocka_unit_test_setup(test_without_mpi, clear),
    };
    return cmocka_run_group_tests_name("place", tests, NULL, clear);
}
