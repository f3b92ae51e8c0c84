/*
 * Ranks that train one model: every rank of a launcher runs this. What they make of it together is
 * what each of them makes of it alone, up to rounding, and the same bits every time.
 *
 *     mpirun -n 3 test_together
 *     test_together nccl LIBRARY 3       over NCCL without MPI: starts the ranks itself
 */
#include "training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nccl_world.h"

static ht_context *ctx;
static ht_world *world;
static int rank, ranks;

/* ---- what is trained ---- */

#define SIZES                                                                                     \
    "\"layers\":2,\"width\":16,\"heads\":2,\"hidden\":24,\"block\":4,\"batch\":7,\"steps\":20,"   \
    "\"warmup\":3,\"rate\":0.01,\"clip\":1,\"accumulate\":2,\"eval_every\":10,\"save_every\":10," \
    "\"keep\":9,\"eval_items\":9,"

/* Batches that no number of ranks divides; targets that lie unevenly; each path of the data. */
static const struct {
    const char *name, *text, *settings;
} cases[] = {
    {"rows", "rows", "{" SIZES "\"format\":\"tsv\",\"length\":40,\"pool\":\"mean\"}"},
    {"text", "text",
     "{" SIZES "\"task\":\"language\",\"format\":\"text\",\"documents\":\"lines\",\"length\":24,"
     "\"tied\":1,\"weight_decay\":0.1}"},
    {"muon", "text",
     "{" SIZES "\"task\":\"language\",\"format\":\"text\",\"length\":24,\"optimizer\":\"muon\","
     "\"kv_heads\":1,\"layers\":3}"},
    {"hidden", "rows", "{" SIZES "\"task\":\"denoise\",\"format\":\"tsv\",\"length\":40}"},
    {"copy", NULL,
     "{" SIZES "\"task\":\"language\",\"format\":\"copy\",\"length\":64,\"train_items\":50,"
     "\"valid_items\":9,\"batch\":9}"},
};
enum { CASES = sizeof cases / sizeof *cases };

/* From case to case; where all takes long every other one will do. */
static int step(void) { return training_thin() > 1 ? 2 : 1; }

/* Texts of very different lengths. */
static void write_files(void) {
    FILE *rows = fopen(training_path("rows"), "w"), *text = fopen(training_path("text"), "w");
    uint32_t state = 5;
    for (int i = 0; i < 53; i++) {
        int length = 3 + (int)(training_random(&state) * training_random(&state) * 60);
        fprintf(rows, "%d\t", i % 3);
        for (int k = 0; k < length; k++) {
            int letter = 'a' + (int)(training_random(&state) * 9);
            fputc(letter, rows);
            fputc(letter, text);
        }
        fputc('\n', rows);
        fputc('\n', text);
    }
    fclose(rows);
    fclose(text);
}

/* One model in training; world NULL: alone. */
typedef struct party {
    ht_data *train, *valid;
    ht_model *model;
    ht_trainer *trainer;
    double loss, valid_loss; /* of the last step and the last evaluation */
    int64_t targets, valid_targets;
} party;

static void open_data(party *p, const ht_config *config, const char *text) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = config;
    if (text) {
        desc.path = training_path(text), desc.holdout = 0.2;
        OK(ctx, ht_data_open_parts(&p->train, &p->valid, ctx, &desc));
        return;
    }
    OK(ctx, ht_data_open(&p->train, ctx, &desc));
    desc.part = HT_PART_VALID;
    OK(ctx, ht_data_open(&p->valid, ctx, &desc));
}

static int shard; /* do ranks divide the moments? */

static party begin(int which, const char *dtype, ht_world *with) {
    party p = {0};
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    ht_config *config = training_config(cases[which].settings);
    training_choose(config, "dtype", dtype);
    training_set(config, "shard", shard);
    open_data(&p, config, cases[which].text);
    if (ht_data_labels(p.train)) training_set(config, "classes", 3);
    OK(ctx, ht_model_create(&p.model, ctx, config));
    desc.config = config;
    desc.world = with;
    OK(ctx, ht_trainer_create(&p.trainer, p.model, &desc));
    return p;
}

static void end(party *p) {
    ht_trainer_destroy(p->trainer);
    ht_model_destroy(p->model);
    ht_data_close(p->train);
    ht_data_close(p->valid);
}

static int remember(void *user, const ht_event *event) {
    party *p = user;
    p->loss = event->report->loss;
    p->targets = event->report->targets;
    if (event->valid) {
        p->valid_loss = event->valid->loss;
        p->valid_targets = event->valid->targets;
    }
    return 0;
}

static ht_status train(party *p, const char *folder, int resume) {
    ht_train_desc desc = HT_TRAIN_DESC_INIT;
    mkdir(folder, 0777);
    desc.folder = folder;
    desc.train = p->train, desc.valid = p->valid;
    desc.tell = remember, desc.user = p;
    desc.resume = resume;
    return ht_train(p->trainer, &desc);
}

/* A folder in rank 0's, which all write to, or would. */
static const char *shared(const char *name) {
    static char path[128], first[64];
    memcpy(first, training_folder, sizeof first);
    OK(ctx, hti_world_from_first(world, first, sizeof first));
    snprintf(path, sizeof path, "%s/run-%s", first, name);
    return path;
}

/* ---- comparisons ---- */

static double *read_tensor(const party *p, int64_t i, ht_tensor_info *info) {
    *info = (ht_tensor_info)HT_TENSOR_INFO_INIT;
    OK(ctx, ht_model_tensor(p->model, i, info));
    double *x = malloc(sizeof *x * (size_t)info->count);
    OK(ctx, ht_model_read(p->model, i, x));
    return x;
}

/* most 0: the same bits. */
static void compare(const party *a, const party *b, double most) {
    for (int64_t i = 0; i < ht_model_tensors(a->model); i++) {
        ht_tensor_info info;
        double *x = read_tensor(a, i, &info), *y = read_tensor(b, i, &info), off = 0, large = 0;
        for (int64_t k = 0; k < info.count; k++) {
            off = fmax(off, fabs(x[k] - y[k]));
            large = fmax(large, fabs(x[k]));
        }
        if (!(off <= most * large)) fail_msg("%s is off by %g of %g", info.name, off, large);
        free(x);
        free(y);
    }
}

static void near(double a, double b, double most) {
    if (!(fabs(a - b) <= most * fabs(b))) fail_msg("%.17g instead of %.17g", a, b);
}

/* ---- tests ---- */

static void test_as_one(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i += step()) {
        party one = begin(i, "f64", NULL), all = begin(i, "f64", world), again;
        OK(ctx, train(&one, training_path("alone"), 0));
        OK(ctx, train(&all, shared(cases[i].name), 0));
        compare(&one, &all, 1e-9);
        near(all.loss, one.loss, 1e-9);
        near(all.valid_loss, one.valid_loss, 1e-9);
        assert_int_equal(all.targets, one.targets);
        assert_int_equal(all.valid_targets, one.valid_targets);
        again = begin(i, "f64", world);
        OK(ctx, train(&again, shared("again"), 0));
        compare(&all, &again, 0);
        assert_true(all.loss == again.loss && all.valid_loss == again.valid_loss);
        end(&one);
        end(&all);
        end(&again);
    }
}

static void test_float(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i += 2 * step()) {
        party one = begin(i, "f32", NULL), all = begin(i, "f32", world);
        OK(ctx, train(&one, training_path("alone32"), 0));
        OK(ctx, train(&all, shared("float"), 0));
        near(all.loss, one.loss, 1e-4);
        near(all.valid_loss, one.valid_loss, 1e-4);
        end(&one);
        end(&all);
    }
}

/* Masks of dropout are each rank's own, and the same ones every time. */
static void test_dropout(void **state) {
    (void)state;
    party p[2];
    for (int k = 0; k < 2; k++) {
        p[k] = begin(0, "f64", NULL);
        ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
        ht_config *config = training_config(cases[0].settings);
        training_choose(config, "dtype", "f64");
        training_set(config, "classes", 3);
        training_set(config, "dropout", 0.2);
        training_set(config, "attention_dropout", 0.2);
        desc.config = config, desc.world = world;
        ht_trainer_destroy(p[k].trainer);
        OK(ctx, ht_trainer_create(&p[k].trainer, p[k].model, &desc));
        OK(ctx, train(&p[k], shared(k ? "drop" : "dropped"), 0));
    }
    compare(&p[0], &p[1], 0);
    end(&p[0]);
    end(&p[1]);
}

/* From the middle: by as many ranks to the same bits; by one, which then goes on alone. */
static void test_resume(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i += 2 * step()) {
        party all = begin(i, "f64", world), half = begin(i, "f64", world), one;
        char folder[128], last[160];
        snprintf(folder, sizeof folder, "%s", shared(cases[i].name));
        snprintf(last, sizeof last, "%s/step-000000020.safetensors", folder);
        OK(ctx, ht_trainer_resume(all.trainer, all.train, folder, NULL));
        assert_int_equal(ht_trainer_steps(all.trainer), 20);
        OK(ctx, hti_world_barrier(world));
        if (rank == 0) unlink(last);
        OK(ctx, hti_world_barrier(world));
        OK(ctx, train(&half, folder, 1));
        compare(&all, &half, 0);
        if (rank == 0) {
            one = begin(i, "f64", NULL);
            unlink(last);
            OK(ctx, train(&one, folder, 1));
            assert_int_equal(ht_trainer_steps(one.trainer), 20);
            compare(&half, &one, 1e-9);
            end(&one);
        }
        OK(ctx, hti_world_barrier(world));
        end(&all);
        end(&half);
    }
}

/* Bytes of a file behind its header, which names the settings. */
static char *read_file(const char *folder, size_t *count) {
    char path[160];
    uint64_t header;
    snprintf(path, sizeof path, "%s/step-000000020.safetensors", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&header, 1, sizeof header, file), sizeof header);
    fseek(file, 0, SEEK_END);
    *count = (size_t)ftell(file) - 8 - header;
    char *data = malloc(*count);
    fseek(file, (long)header + 8, SEEK_SET);
    assert_int_equal(fread(data, 1, *count, file), *count);
    fclose(file);
    return data;
}

static void same_files(const char *one, const char *other) {
    size_t bytes, others;
    char *x = read_file(one, &bytes), *y = read_file(other, &others);
    assert_int_equal(bytes, others);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

/* On from the checkpoint in the middle; the last one is gone, and is there again. */
static void go_on(party *p, int which, int shards, const char *folder) {
    char last[160];
    snprintf(last, sizeof last, "%s/step-000000020.safetensors", folder);
    OK(ctx, hti_world_barrier(world));
    if (rank == 0) unlink(last);
    OK(ctx, hti_world_barrier(world));
    shard = shards;
    *p = begin(which, "f64", world);
    OK(ctx, train(p, folder, 1));
}

/* Divided moments: the same bits, in weights and in files; a run goes on with them and without. */
static void test_shards(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i += 2 * step()) {
        char whole[128], parts[128];
        party all, some, more;
        shard = 0, all = begin(i, "f64", world);
        shard = 1, some = begin(i, "f64", world);
        double share = (double)ht_trainer_moments(some.trainer);
        share /= (double)ht_trainer_moments(all.trainer);
        if (share > 1.08 / ranks) fail_msg("%s: a rank has %g of all", cases[i].name, share);
        snprintf(whole, sizeof whole, "%s", shared("whole"));
        snprintf(parts, sizeof parts, "%s", shared("parts"));
        OK(ctx, train(&all, whole, 0));
        OK(ctx, train(&some, parts, 0));
        compare(&all, &some, 0);
        assert_true(all.loss == some.loss);
        if (rank == 0) same_files(whole, parts);
        for (int shards = 1; shards >= 0; shards--) {
            go_on(&more, i, shards, parts);
            compare(&all, &more, 0);
            if (rank == 0) same_files(whole, parts);
            end(&more);
        }
        end(&all);
        end(&some);
    }
    shard = 0;
}

static void test_refused(void **state) {
    (void)state;
    char words[96];
    ht_model *model;
    ht_trainer *trainer;
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    if (ranks == 1) return;
    ht_config *config = training_config("{" SIZES "\"classes\":3}");
    OK(ctx, ht_model_create(&model, ctx, config));
    training_set(config, "batch", ranks - 1);
    desc.config = config, desc.world = world;
    snprintf(words, sizeof words, "batch %d cannot be shared by %d ranks", ranks - 1, ranks);
    REFUSED(ctx, ht_trainer_create(&trainer, model, &desc), HT_INVALID, words);
    assert_null(trainer);
    ht_model_destroy(model);
}

/* The last rank sees other data; it says so, and all of them stop. */
static void test_other_data(void **state) {
    (void)state;
    if (ranks == 1) return;
    party p = begin(0, "f64", world), other = begin(0, "f64", NULL);
    if (rank == ranks - 1) {
        ht_data_close(p.train);
        FILE *rows = fopen(training_path("rows"), "a");
        for (int i = 0; i < 20; i++) fprintf(rows, "1\tone more %d\n", i);
        fclose(rows);
        ht_config *config = training_config(cases[0].settings);
        ht_data_desc desc = HT_DATA_DESC_INIT;
        desc.config = config, desc.path = training_path("rows");
        OK(ctx, ht_data_open(&p.train, ctx, &desc));
    }
    REFUSED(ctx, train(&p, shared("other"), 0), HT_INVALID, "trains on items: 73, rank 0: ");
    end(&p);
    end(&other);
}

static int run_all(void) {
    if (training_folder_open() != 0) return 1;
    write_files();
    if (rank > 0 && !freopen("/dev/null", "w", stdout)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_one),     cmocka_unit_test(test_float),
        cmocka_unit_test(test_dropout),    cmocka_unit_test(test_resume),
        cmocka_unit_test(test_shards),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_other_data),
    };
    int failed = cmocka_run_group_tests_name("together", tests, NULL, NULL);
    ht_world_close(world, failed ? "a test failed" : NULL);
    ht_context_destroy(ctx);
    return failed || training_folder_close() != 0;
}

/* One rank of a world that has NCCL alone, or what stands for it. */
static int run_nccl(const char *library) {
    world = world_by_nccl(ctx, library, rank, ranks);
    if (world) return run_all();
    fprintf(stderr, "rank %d: %s\n", rank, ht_context_error(ctx));
    return 1;
}

int main(int argc, char **argv) {
    ht_context_desc desc = {.size = sizeof desc, .device = "cpu", .threads = 1};
    ht_place place = HT_PLACE_INIT;
    int nccl = argc > 3 && strcmp(argv[1], "nccl") == 0;
    if (nccl && (rank = world_fork(ranks = atoi(argv[3]))) < 0) return -1 - rank;
    if (ht_context_create(&ctx, &desc) != HT_OK) return 1;
    if (nccl) return run_nccl(argv[2]);
    if (ht_world_open(&world, ctx) != HT_OK || ht_world_get_place(world, &place) != HT_OK) {
        fprintf(stderr, "%s\n", ht_context_error(ctx));
        return 1;
    }
    rank = place.rank, ranks = place.ranks;
    return run_all();
}
