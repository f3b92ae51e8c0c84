/*
 * Sets of the Long Range Arena: what the generators make, readers of the official files, and
 * everything that can be wrong with those.
 */
#include "training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ht_context *cpu;

static int open_all(void **state) {
    (void)state;
    return ht_context_create(&cpu, NULL) != HT_OK || training_folder_open() != 0;
}

static int close_all(void **state) {
    (void)state;
    ht_context_destroy(cpu);
    return training_folder_close();
}

static void write_bytes(const char *name, const void *bytes, size_t count) {
    training_write(training_path(name), bytes, count);
}
static void write_text(const char *name, const char *text) {
    write_bytes(name, text, strlen(text));
}

static char *slurp(const char *path, size_t *count) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is not there", path);
    char *bytes = malloc(1 << 24);
    *count = fread(bytes, 1, (1 << 24) - 1, f);
    bytes[*count] = '\0';
    fclose(f);
    return bytes;
}

static ht_data *open_data(const ht_config *config, const char *path, const char *papers) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    desc.config = config;
    desc.path = path;
    desc.papers = papers;
    OK(cpu, ht_data_open(&data, cpu, &desc));
    return data;
}

static void refuse_data(const ht_config *config, const char *path, const char *papers,
                        const char *words) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    desc.config = config;
    desc.path = path;
    desc.papers = papers;
    REFUSED(cpu, ht_data_open(&data, cpu, &desc), HT_FORMAT, words);
    assert_null(data);
}

/* ---- what is made ---- */

static ht_set_info make(const char *task, int64_t items, int64_t seed, int64_t distractors) {
    ht_set_desc desc = HT_SET_DESC_INIT;
    ht_set_info info = HT_SET_INFO_INIT;
    desc.task = task;
    desc.items[0] = items;
    desc.seed = seed;
    desc.distractors = distractors;
    OK(cpu, ht_set_write(cpu, &desc, &info));
    assert_int_equal(info.items[0], items);
    return info;
}

/* Of numbers that independent seeds gave: is their mean `want`, which is rounded to +-rounding, up
 * to four standard errors? */
static void expect_mean(const char *what, const double *x, int n, double want, double rounding) {
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++) sum += x[i], square += x[i] * x[i];
    double mean = sum / n, error = sqrt(fmax(0, square / n - mean * mean) / (n - 1));
    if (fabs(mean - want) <= rounding + 4 * error) return;
    print_error("%s is %.4f +- %.4f, should be %.4f\n", what, mean, error, want);
    fail();
}

enum { SEEDS = 12 };

/* Facts of an independent generator of the same description. */
static void check_images(const char *task, int64_t items, int64_t distractors, double placed,
                         double nonzero, double brightness) {
    double found[3][SEEDS], positive = 0;
    for (int i = 0; i < SEEDS; i++) {
        ht_set_info info = make(task, items, 100 + i, distractors);
        found[0][i] = info.distractors;
        found[1][i] = info.nonzero;
        found[2][i] = info.brightness;
        positive += info.positive / SEEDS;
    }
    expect_mean("short lines", found[0], SEEDS, placed, 0.05);
    expect_mean("share of pixels not black", found[1], SEEDS, nonzero, 0.005);
    if (brightness > 0) expect_mean("mean pixel", found[2], SEEDS, brightness, 0.5);
    assert_true(fabs(positive - 0.5) < 4 * 0.5 / sqrt((double)items * SEEDS));
}

static void pathfinder(void **state) {
    (void)state;
    check_images("pathfinder", 250, 0, 4.7, 0.45, 28);
    check_images("pathfinder", 250, 10, 8.1, 0.54, 0);
    check_images("pathx", 12, 0, 7.7, 0.137, 8); /* 7.6 of them with the wider margin alone */
    double attempts[SEEDS];                      /* "about 45": within a tenth */
    for (int i = 0; i < SEEDS; i++) attempts[i] = make("pathfinder", 250, 200 + i, 0).attempts;
    expect_mean("attempts", attempts, SEEDS, 45, 4.5);
}

static int by_size(const void *a, const void *b) {
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* Lengths, labels, and how many attempts are kept. */
static void listops(void **state) {
    (void)state;
    enum { N = 5000 };
    static const double quantile[][2] = {
        {0.10, 578}, {0.25, 701}, {0.50, 953}, {0.75, 1309}, {0.90, 1648}};
    static const double labels[] = {.168, .093, .073, .082, .089, .088, .077, .075, .085, .170};
    ht_config *config;
    config = training_preset("lra/listops");
    training_set(config, "train_items", N);
    training_set(config, "data_seed", 3);
    ht_data *data = open_data(config, NULL, NULL);
    ht_batch b = HT_BATCH_INIT;
    int *lengths = calloc(N, sizeof *lengths), count = 0;
    double seen[10] = {0};
    while (ht_data_next(data, &b) == HT_OK)
        for (int64_t i = 0; i < b.sequences; i++) {
            lengths[count++] = b.cu_seqlens[i + 1] - b.cu_seqlens[i];
            seen[b.targets[i]]++;
        }
    ht_data_close(data);
    assert_int_equal(count, N);
    qsort(lengths, N, sizeof *lengths, by_size);
    for (int i = 0; i < 5; i++) { /* the share below a quantile, itself measured on 20,000 */
        double p = quantile[i][0], below = 0;
        for (int k = 0; k < N; k++) below += lengths[k] <= quantile[i][1];
        assert_true(fabs(below / N - p) < 4 * sqrt(p * (1 - p) * (1.0 / N + 1.0 / 20000)));
    }
    free(lengths);
    for (int i = 0; i < 10; i++) {
        double error = sqrt(labels[i] * (1 - labels[i]) * (1.0 / N + 1.0 / 20000));
        assert_true(fabs(seen[i] / N - labels[i]) < 4 * error + 0.0005);
    }
    double kept = 1 / make("listops", N, 4, 0).attempts; /* 8.2 % */
    assert_true(fabs(kept - 0.082) < 4 * 0.082 / sqrt(N) + 0.0005);
}

/* The same files whatever the number of threads. */
static void threads(void **state) {
    (void)state;
    static const struct {
        const char *task, *end;
        int64_t items;
    } sets[] = {{"listops", "tsv", 300}, {"pathfinder", "images", 150}, {"pathx", "images", 5}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char *first[3] = {0};
        size_t sizes[3] = {0};
        for (int threads = 1; threads <= 4; threads++) {
            ht_context_desc about = HT_CONTEXT_DESC_INIT;
            ht_context *ctx;
            ht_set_desc desc = HT_SET_DESC_INIT;
            ht_set_info info = HT_SET_INFO_INIT;
            about.threads = threads;
            assert_int_equal(ht_context_create(&ctx, &about), HT_OK);
            desc.task = sets[i].task;
            desc.folder = training_folder;
            desc.plain = 1;
            desc.seed = 7;
            for (int k = 0; k < 3; k++) desc.items[k] = sets[i].items + k;
            OK(ctx, ht_set_write(ctx, &desc, &info));
            ht_context_destroy(ctx);
            for (int k = 0; k < 3; k++) {
                static const char *const parts[] = {"train", "valid", "test"};
                char name[64];
                size_t count;
                snprintf(name, sizeof name, "%s-%s.%s", sets[i].task, parts[k], sets[i].end);
                char *bytes = slurp(training_path(name), &count);
                if (threads == 1) {
                    first[k] = bytes, sizes[k] = count;
                    continue;
                }
                assert_int_equal(count, sizes[k]);
                assert_memory_equal(bytes, first[k], count);
                free(bytes);
            }
        }
        for (int k = 0; k < 3; k++) free(first[k]);
    }
}

/* What is written is what is made in memory; train and test differ. */
static void files_are_memory(void **state) {
    (void)state;
    ht_set_desc desc = HT_SET_DESC_INIT;
    ht_set_info info = HT_SET_INFO_INIT;
    ht_config *config;
    for (int i = 0; i < 4; i++) {
        const char *preset = i == 1 ? "lra/listops" : "lra/pathfinder";
        desc.task = preset + 4;
        desc.folder = training_folder;
        desc.seed = 5;
        desc.items[0] = 40, desc.items[1] = desc.items[2] = 20;
        OK(cpu, ht_set_write(cpu, &desc, &info));
        assert_true(info.sum[1] != info.sum[2]);
        config = training_preset(preset);
        training_set(config, "train_items", 40), training_set(config, "valid_items", 20),
            training_set(config, "data_seed", 5), training_set(config, "batch", 40);
        training_set(config, "patch", i >= 2 ? 4 : 1);
        if (i == 3) training_set(config, "shrink", 4), training_set(config, "length", 64);
        char name[64]; /* compressed, if this build can do that */
        struct stat about;
        snprintf(name, sizeof name, "%s-train.%s.zst", desc.task, i == 1 ? "tsv" : "images");
        if (stat(training_path(name), &about) != 0) name[strlen(name) - 4] = '\0';
        ht_data *made = open_data(config, NULL, NULL),
                *read = open_data(config, training_path(name), NULL);
        ht_batch a = HT_BATCH_INIT, b = HT_BATCH_INIT;
        OK(cpu, ht_data_next(made, &a));
        OK(cpu, ht_data_next(read, &b));
        assert_int_equal(b.sequences, 40);
        assert_memory_equal(a.targets, b.targets, 40 * sizeof *a.targets);
        assert_memory_equal(a.cu_seqlens, b.cu_seqlens, 41 * sizeof *a.cu_seqlens);
        assert_memory_equal(a.tokens, b.tokens, (size_t)a.cu_seqlens[40] * sizeof *a.tokens);
        ht_data_close(made);
        ht_data_close(read);
    }
}

/* ---- official files ---- */

static ht_status import(const char *task, const char *from, ht_set_info *info) {
    ht_set_desc desc = HT_SET_DESC_INIT;
    *info = (ht_set_info)HT_SET_INFO_INIT;
    mkdir(training_path("out"), 0777);
    desc.task = task;
    desc.source = training_path(from);
    desc.folder = training_path("out");
    desc.plain = 1;
    desc.unchecked = 1;
    return ht_set_write(cpu, &desc, info);
}

/* More expressions than there should be are refused when they are counted, however many. */
static void listops_crowd(void **state) {
    (void)state;
    enum { LINES = 300000, WIDE = 32 };
    ht_set_info info = HT_SET_INFO_INIT;
    ht_set_desc desc = HT_SET_DESC_INIT;
    char *text = malloc(LINES * WIDE), *at = text, says[96];
    int lines = LINES / (int)training_thin();
    at += sprintf(at, "Source\tTarget\n");
    for (int i = 0; i < lines; i++) {
        int sum = 0;
        at += sprintf(at, "[SM");
        for (int d = i, k = 0; k < 6; k++, d /= 10) at += sprintf(at, " %d", d % 10), sum += d % 10;
        at += sprintf(at, " ]\t%d\n", sum % 10);
    }
    training_write(training_path("basic_train.tsv"), text, (size_t)(at - text));
    write_text("basic_val.tsv", "");
    write_text("basic_test.tsv", "");
    free(text);
    desc.task = "listops", desc.source = training_folder;
    alarm(100); /* not for ever */
    snprintf(says, sizeof says, "train part of listops has %d items, there should be 96000", lines);
    REFUSED(cpu, ht_set_write(cpu, &desc, &info), HT_FORMAT, says);
    alarm(0);
}

static void listops_files(void **state) {
    (void)state;
    static const char head[] = "Source\tTarget\n";
    static const struct {
        const char *line, *words;
    } faults[] = {
        {"( ( ( [MAX 2 ) 9 ) ] )\t8", "basic_train.tsv:2: the value is 9, not 8"},
        {"( ( ( [MAX 2 ) 9 ) ] )\t19", "basic_train.tsv:2: the value is 9, not 19"},
        {"( ( ( [MAX 2 ) 9 ) )\t9", "basic_train.tsv:2: this is no whole ListOps expression"},
        {"( ( ( [MAX 2 ) 9 ) ] ) 3\t9", "no whole ListOps expression"},
        {"( [MAX ] )\t0", "no whole ListOps expression"},
        {"( ( [FIRST 2 ) ] )\t2", "basic_train.tsv:2: '[FIRST' is no part"},
        {"( ( [MAX 2 ) ] )", "basic_train.tsv:2: there is no tab"},
        {"( ( [MIN 4 ) ] )\t4", "basic_val.tsv:2: this expression was there before"},
    };
    /* the operators by hand: median of four is the mean of the middle ones without its half */
    static const char good[] =
        "Source\tTarget\n"
        "( ( ( ( [MIN 3 ) 1 ) 2 ) ] )\t1\n( ( ( ( [MAX 3 ) 1 ) 2 ) ] )\t3\n"
        "( ( ( ( [MED 9 ) 1 ) 2 ) ] )\t2\n( ( ( ( ( [MED 9 ) 1 ) 2 ) 5 ) ] )\t3\n"
        "( ( ( ( [SM 9 ) 8 ) 7 ) ] )\t4\n"
        "( ( ( [SM ( ( ( [MAX 2 ) 9 ) ] ) ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )\t3\n";
    ht_set_info info;
    size_t count;
    char text[256];
    write_text("basic_test.tsv", "Source\tTarget\n( ( [SM 5 ) ] )\t5\n");
    write_text("basic_val.tsv", "Source\tTarget\n( ( [MIN 4 ) ] )\t4\n");
    write_text("basic_train.tsv", good);
    OK(cpu, import("listops", ".", &info));
    assert_int_equal(info.items[0], 6);
    assert_int_equal(info.items[1], 1);
    assert_int_equal(info.longest[0], 10);
    char *written = slurp(training_path("out/listops-train.tsv"), &count);
    assert_string_equal(written, good); /* brackets and all */
    free(written);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        snprintf(text, sizeof text, "%s%s\n", head, faults[i].line);
        write_text("basic_train.tsv", text);
        REFUSED(cpu, import("listops", ".", &info), HT_FORMAT, faults[i].words);
    }
    ht_set_desc desc = HT_SET_DESC_INIT; /* checked, six are too few */
    write_text("basic_train.tsv", good);
    desc.task = "listops";
    desc.source = training_folder;
    desc.folder = training_path("out");
    REFUSED(cpu, ht_set_write(cpu, &desc, &info), HT_FORMAT,
            "train part of listops has 6 items, there should be 96000");
}

static void reviews(void **state) {
    (void)state;
    char command[1024];
    ht_set_info info;
    size_t count;
    snprintf(command, sizeof command,
             "cd %s && mkdir -p acl/train/neg acl/train/pos acl/test/neg acl/test/pos && "
             "printf ' so\\tbad<br />\\n' > acl/train/neg/0_1.txt && "
             "printf 'worse' > acl/train/neg/1_2.txt && printf 'good' > acl/train/pos/0_9.txt && "
             "printf 'dull' > acl/test/neg/0_3.txt && printf 'fun' > acl/test/pos/0_8.txt && "
             "printf 'no review' > acl/train/pos/notes",
             training_folder);
    assert_int_equal(system(command), 0);
    OK(cpu, import("imdb", "acl", &info));
    assert_int_equal(info.items[0], 3);
    assert_int_equal(info.items[2], 2);
    assert_false(info.known);
    char *written = slurp(training_path("out/imdb-train.tsv"), &count);
    assert_string_equal(written, "0\tso bad<br />\n0\tworse\n1\tgood\n");
    free(written);
    uint64_t sum = info.sum[0]; /* the files that were written are as good a source */
    OK(cpu, import("imdb", "out", &info));
    assert_true(info.sum[0] == sum);
    /* the folder as it is */
    ht_config *config = training_config("{\"length\":16,\"batch\":3}");
    ht_data *data = open_data(config, training_path("acl/train"), NULL);
    ht_batch b = HT_BATCH_INIT;
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.sequences, 3);
    assert_int_equal(b.cu_seqlens[1], 12);
    assert_int_equal(b.tokens[0], 's' + 1);
    assert_int_equal(b.tokens[2], '\t' + 1); /* nothing is changed here */
    assert_int_equal(b.targets[2], 1);
    ht_data_close(data);
    write_text("acl/test/pos/1_7.txt", " \n");
    REFUSED(cpu, import("imdb", "acl", &info), HT_FORMAT, "test/pos/1_7.txt is empty");
    write_text("out/imdb-train.tsv", "0\tfine\n2\tfiner\n");
    REFUSED(cpu, import("imdb", "out", &info), HT_FORMAT, "imdb-train.tsv:2: a review must be");
    REFUSED(cpu, import("imdb", "nowhere", &info), HT_IO, "nor imdb-train.tsv");
}

#define PIXELS 1024

/* Grey by hand: (0.2989 r + 0.5870 g + 0.1140 b) 255.5 / 255, cut. */
static void cifar10(void **state) {
    (void)state;
    static const uint8_t colours[][4] = {
        {0, 0, 0, 0},    {255, 255, 255, 255}, {255, 0, 0, 76},      {0, 255, 0, 149},
        {0, 0, 255, 29}, {100, 150, 200, 141}, {128, 128, 128, 128}, {1, 1, 1, 1}};
    enum { COLOURS = sizeof colours / sizeof *colours, RECORD = 1 + 3 * PIXELS, N = 4 };
    uint8_t *file = calloc(N, RECORD);
    ht_set_info info;
    for (int i = 0; i < N; i++) {
        file[i * RECORD] = (uint8_t)(i + 3);
        for (int k = 0; k < PIXELS; k++)
            for (int c = 0; c < 3; c++)
                file[i * RECORD + 1 + c * PIXELS + k] = colours[(i + k) % COLOURS][c];
    }
    for (int i = 1; i <= 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        write_bytes(name, file, (size_t)N * RECORD);
    }
    write_bytes("test_batch.bin", file, (size_t)N * RECORD);
    OK(cpu, import("cifar10", ".", &info));
    assert_int_equal(info.items[0], 18); /* of 20: a tenth is for validation */
    assert_int_equal(info.items[1], 2);
    assert_int_equal(info.items[2], 4);
    ht_config *config;
    config = training_preset("lra/image");
    training_set(config, "batch", 4);
    ht_data *data = open_data(config, training_path("out/cifar10-test.images"), NULL);
    ht_data *direct = open_data(config, training_path("test_batch.bin"), NULL);
    ht_batch b = HT_BATCH_INIT, c = HT_BATCH_INIT;
    OK(cpu, ht_data_next(data, &b));
    OK(cpu, ht_data_next(direct, &c));
    for (int i = 0; i < N; i++) {
        assert_int_equal(b.targets[i], i + 3);
        for (int k = 0; k < PIXELS; k++)
            assert_int_equal(b.tokens[i * PIXELS + k], colours[(i + k) % COLOURS][3]);
    }
    assert_memory_equal(b.tokens, c.tokens, N * PIXELS * sizeof *b.tokens);
    ht_data_close(data);
    ht_data_close(direct);
    free(file);
    remove(training_path("data_batch_3.bin"));
    REFUSED(cpu, import("cifar10", ".", &info), HT_IO, "has neither data_batch_3.bin nor");
}

static void images(void **state) {
    (void)state;
    ht_config *config =
        training_config("{\"format\":\"images\",\"vocab\":256,\"length\":4,\"batch\":8}");
    /* version 1, 2 x 2 pixels, 2 classes, 2 records */
    uint8_t file[42] = {'h', 't', 'i', 'm', 'a', 'g', 'e', 's', 1, 0, 0, 0, 2, 0,
                        0,   0,   2,   0,   0,   0,   2,   0,   0, 0, 2, 0, 0, 0,
                        0,   0,   0,   0,   1,   0,   255, 7,   9, 0, 1, 2, 3, 4};
    write_bytes("a.images", file, sizeof file);
    ht_data *data = open_data(config, training_path("a.images"), NULL);
    ht_batch b = HT_BATCH_INIT;
    ht_data_info about = HT_DATA_INFO_INIT;
    static const int32_t pixels[] = {0, 255, 7, 9, 1, 2, 3, 4};
    OK(cpu, ht_data_get_info(data, &about));
    assert_int_equal(about.tokens, 8);
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.sequences, 2);
    assert_memory_equal(b.tokens, pixels, sizeof pixels);
    assert_int_equal(b.targets[0], 1);
    ht_data_close(data);
    write_bytes("b.images", file + 32, 10); /* records without a header */
    data = open_data(config, training_path("b.images"), NULL);
    OK(cpu, ht_data_next(data, &b));
    assert_memory_equal(b.tokens, pixels, sizeof pixels);
    ht_data_close(data);
    write_bytes("b.images", file + 32, 9);
    refuse_data(config, training_path("b.images"), NULL,
                "b.images has 9 bytes, which is no whole number");
    write_bytes("a.images", file, 41);
    refuse_data(config, training_path("a.images"), NULL, "should have 2 records of 5 bytes");
    write_bytes("a.images", file, 20);
    refuse_data(config, training_path("a.images"), NULL, "ends inside its header");
    file[8] = 2;
    write_bytes("a.images", file, sizeof file);
    refuse_data(config, training_path("a.images"), NULL, "has version 2");
    file[8] = 1, file[37] = 2;
    write_bytes("a.images", file, sizeof file);
    refuse_data(config, training_path("a.images"), NULL,
                "a.images: record 2 has label 2: classes is 2");
    file[37] = 0, file[31] = 0x80; /* a count that would overflow */
    write_bytes("a.images", file, sizeof file);
    refuse_data(config, training_path("a.images"), NULL, "a.images should have");
    file[31] = 0;
    write_bytes("a.images", file, sizeof file);
    training_set(config, "length", 3);
    refuse_data(config, training_path("a.images"), NULL, "images of 4 pixels, but length is 3");
    training_set(config, "length", 5); /* shorter ones are fine */
    ht_data_close(open_data(config, training_path("a.images"), NULL));
}

/* 4 x 6 pixels in squares of 2 x 2; the same of a square without a header. */
static void squares(void **state) {
    (void)state;
    ht_config *config = training_config(
        "{\"format\":\"images\",\"vocab\":256,\"length\":24,\"batch\":8,\"patch\":2}");
    static const int32_t wide[] = {0,  1,  6,  7,  2,  3,  8,  9,  4,  5,  10, 11,
                                   12, 13, 18, 19, 14, 15, 20, 21, 16, 17, 22, 23};
    static const int32_t square[] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    uint8_t file[32 + 25] = {'h', 't', 'i', 'm', 'a', 'g', 'e', 's', 1, 0, 0, 0, 4, 0, 0, 0,
                             6,   0,   0,   0,   2,   0,   0,   0,   1, 0, 0, 0, 0, 0, 0, 0};
    ht_batch b = HT_BATCH_INIT;
    file[32] = 1;
    for (int i = 0; i < 24; i++) file[33 + i] = (uint8_t)i;
    write_bytes("a.images", file, sizeof file);
    ht_data *data = open_data(config, training_path("a.images"), NULL);
    OK(cpu, ht_data_next(data, &b));
    assert_memory_equal(b.tokens, wide, sizeof wide);
    ht_data_close(data);
    training_set(config, "patch", 4);
    refuse_data(config, training_path("a.images"), NULL,
                "a.images: images of 4 x 6 pixels have no squares of patch 4");
    write_bytes("b.images", file + 32, 17);
    training_set(config, "length", 16), training_set(config, "patch", 2);
    data = open_data(config, training_path("b.images"), NULL);
    OK(cpu, ht_data_next(data, &b));
    assert_memory_equal(b.tokens, square, sizeof square);
    ht_data_close(data);
    training_set(config, "length", 24); /* not a square: one line */
    write_bytes("b.images", file + 32, 25);
    refuse_data(config, training_path("b.images"), NULL, "images of 1 x 24 pixels have no squares");
    config = training_preset("lra/text");
    training_set(config, "patch", 2);
    REFUSED(NULL, ht_config_check(config), HT_INVALID,
            "patch is for images, got patch 2, format tsv");
    config = training_preset("lra/pathfinder");
    training_set(config, "patch", 5), training_set(config, "train_items", 2);
    refuse_data(config, NULL, NULL,
                "Pathfinder: images of 32 x 32 pixels have no squares of patch 5");
}

/* What became of the picture of 4 x 6 pixels 1, 2, 3, ... in squares of `patch`: mirrored or not,
 * and how far it went; -1: nothing that may have become of it, by looking at every pixel. */
static int change_of(const int32_t *tokens, int patch, int shift) {
    int32_t picture[4][6], found = -1;
    for (int i = 0; i < 24; i++) {
        int square = i / (patch * patch), within = i % (patch * patch), across = 6 / patch;
        if (patch == 1)
            picture[i / 6][i % 6] = tokens[i];
        else
            picture[square / across * patch + within / patch]
                   [square % across * patch + within % patch] = tokens[i];
    }
    for (int way = 0; way < 2 * (2 * shift + 1) * (2 * shift + 1); way++) {
        int moves = 2 * shift + 1, right = way / 2 % moves - shift, wrong = 0;
        int down = way / 2 / moves - shift;
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 6; x++) {
                int to_x = (way % 2 ? 5 - x : x) + right, to_y = y + down;
                if (to_x >= 0 && to_x < 6 && to_y >= 0 && to_y < 4)
                    wrong |= picture[to_y][to_x] != 1 + y * 6 + x;
            }
        for (int y = 0; y < 4; y++) /* what came in is black */
            for (int x = 0; x < 6; x++)
                if (x - right < 0 || x - right > 5 || y - down < 0 || y - down > 3)
                    wrong |= picture[y][x] != 0;
        if (!wrong) found = found < 0 ? way : 1000;
    }
    return found == 1000 ? -1 : found;
}

static void varied_as(int patch, int flip, int shift) {
    enum { DRAWS = 400 };
    ht_config *config = training_config(
        "{\"format\":\"images\",\"vocab\":256,\"length\":24,\"batch\":1,\"mask_zero\":0}");
    training_set(config, "patch", patch), training_set(config, "flip", flip);
    training_set(config, "shift", shift);
    int32_t drawn[DRAWS][24];
    int seen[64] = {0}, ways = 0;
    ht_batch b = HT_BATCH_INIT;
    ht_data *data = open_data(config, training_path("a.images"), NULL);
    for (int i = 0; i < DRAWS; i++) {
        OK(cpu, ht_data_draw(data, &b));
        memcpy(drawn[i], b.tokens, sizeof drawn[i]);
        int way = change_of(b.tokens, patch, shift);
        assert_true(way >= 0);
        ways += !seen[way]++;
        assert_true(flip || way % 2 == 0);
    }
    assert_int_equal(ways, (1 + flip) * (2 * shift + 1) * (2 * shift + 1));
    OK(cpu, ht_data_next(data, &b)); /* to judge by, and whole */
    if (flip || shift) assert_int_equal(change_of(b.tokens, patch, 0), 0);
    ht_data_close(data);
    data = open_data(config, training_path("a.images"), NULL); /* a run that goes on */
    OK(cpu, ht_data_seek(data, 37));
    OK(cpu, ht_data_draw(data, &b));
    assert_memory_equal(b.tokens, drawn[37], sizeof drawn[37]);
    ht_data_close(data);
}

/* Images to train on mirrored and moved: every way comes, and nothing else. */
static void varied(void **state) {
    (void)state;
    uint8_t file[32 + 25] = {'h', 't', 'i', 'm', 'a', 'g', 'e', 's', 1, 0, 0, 0, 4, 0, 0, 0,
                             6,   0,   0,   0,   2,   0,   0,   0,   1, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < 24; i++) file[33 + i] = (uint8_t)(i + 1);
    write_bytes("a.images", file, sizeof file);
    varied_as(1, 0, 0), varied_as(1, 1, 0), varied_as(1, 0, 1), varied_as(2, 1, 1);
    ht_config *config = training_config("{\"format\":\"images\",\"vocab\":256,\"length\":24}");
    assert_int_equal(mkdir(training_path("two"), 0700), 0);
    write_bytes("two/a.images", file, sizeof file);
    file[12] = 6, file[16] = 4;
    write_bytes("two/b.images", file, sizeof file);
    ht_data_close(open_data(config, training_path("two"), NULL));
    training_set(config, "flip", 1);
    refuse_data(config, training_path("two"), NULL,
                "b.images: images 4 pixels wide, those before have 6: set flip 0 and shift 0");
    config = training_config("{\"format\":\"text\",\"task\":\"language\",\"shift\":2}");
    REFUSED(NULL, ht_config_check(config), HT_INVALID,
            "flip and shift are for images, got flip 0, shift 2, format text");
    REFUSED(NULL, ht_config_set_int(config, "flip", 2), HT_INVALID, "flip must be 0 to 1, got 2");
    REFUSED(NULL, ht_config_set_int(config, "shift", 65), HT_INVALID,
            "shift must be 0 to 64, got 65");
}

/* 4 x 6 pixels in squares of 2 x 2, of each the brightest; then cut into squares of what is left.
 */
static void shrunk(void **state) {
    (void)state;
    ht_config *config = training_config(
        "{\"format\":\"images\",\"vocab\":256,\"length\":6,\"batch\":8,\"shrink\":2}");
    static const int32_t wide[] = {99, 9, 11, 19, 98, 23}, square[] = {9, 3, 2, 7};
    static const uint8_t pixels[17] = {1, 9, 9, 0, 0, 3, 8, 3, 3, 2, 2, 1, 0, 0, 1, 7, 2};
    uint8_t file[32 + 25] = {'h', 't', 'i', 'm', 'a', 'g', 'e', 's', 1, 0, 0, 0, 4, 0, 0, 0,
                             6,   0,   0,   0,   2,   0,   0,   0,   1, 0, 0, 0, 0, 0, 0, 0};
    ht_batch b = HT_BATCH_INIT;
    for (int i = 0; i < 24; i++) file[33 + i] = (uint8_t)i;
    file[33 + 1] = 99, file[33 + 14] = 98;
    write_bytes("a.images", file, sizeof file);
    ht_data *data = open_data(config, training_path("a.images"), NULL);
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.cu_seqlens[1], 6);
    assert_memory_equal(b.tokens, wide, sizeof wide);
    ht_data_close(data);
    training_set(config, "length", 5);
    refuse_data(config, training_path("a.images"), NULL,
                "images of 24 pixels, but length is 5 and shrink 2");
    training_set(config, "length", 6), training_set(config, "shrink", 4);
    refuse_data(config, training_path("a.images"), NULL,
                "a.images: images of 4 x 6 pixels have no squares of shrink 4");
    training_set(config, "shrink", 2), training_set(config, "patch", 2);
    refuse_data(config, training_path("a.images"), NULL,
                "a.images: images of 2 x 3 pixels have no squares of patch 2");
    training_set(config, "length", 4); /* without a header: a label and 4 x 4 pixels */
    write_bytes("b.images", pixels, sizeof pixels);
    data = open_data(config, training_path("b.images"), NULL);
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.targets[0], 1);
    assert_memory_equal(b.tokens, square, sizeof square);
    ht_data_close(data);
    config = training_preset("lra/text");
    training_set(config, "shrink", 2);
    REFUSED(NULL, ht_config_check(config), HT_INVALID,
            "shrink is for images, got shrink 2, format tsv");
}

static void check_pairs(ht_data *data) {
    ht_batch b = HT_BATCH_INIT;
    static const int32_t tokens[] = {'a' + 1, 'a' + 1, 'b' + 1, 'b' + 1, 'c' + 1, 'a' + 1, 'a' + 1};
    static const int32_t starts[] = {0, 2, 4, 5, 7};
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.sequences, 4);
    assert_memory_equal(b.cu_seqlens, starts, sizeof starts);
    assert_memory_equal(b.tokens, tokens, sizeof tokens);
    assert_int_equal(b.targets[0], 1);
    assert_int_equal(b.targets[1], 0);
    ht_data_close(data);
}

static void papers(void **state) {
    (void)state;
    static const char five[] = "1.0\tA1\tB2\taa\tbb\n0.0\tC3\tA1\tc\taa\n";
    ht_config *config =
        training_config("{\"task\":\"pairs\",\"pool\":\"mean\",\"length\":8,\"batch\":2}");
    ht_set_info info;
    size_t count;
    write_text("five.tsv", five);
    check_pairs(open_data(config, training_path("five.tsv"), NULL));
    write_text("papers.tsv", "A1\taa\nB2\tbb\nC3\tc\n");
    write_text("pairs.tsv", "1\tA1\tB2\n0\tC3\tA1\n");
    check_pairs(open_data(config, training_path("pairs.tsv"), training_path("papers.tsv")));
    write_text("texts.tsv", "1\taa\tbb\n0\tc\taa\n");
    check_pairs(open_data(config, training_path("texts.tsv"), NULL));
    mkdir(training_path("aan"), 0777);
    write_text("aan/new_aan_pairs.train.tsv", five);
    write_text("aan/new_aan_pairs.eval.tsv", "0.0\tB2\tD4\tbb\td\n");
    write_text("aan/new_aan_pairs.test.tsv", "1.0\tD4\tC3\td\tc\n");
    OK(cpu, import("aan", "aan", &info));
    char *written = slurp(training_path("out/aan-papers.tsv"), &count);
    assert_string_equal(written, "A1\taa\nB2\tbb\nC3\tc\nD4\td\n");
    free(written);
    check_pairs(
        open_data(config, training_path("out/aan-train.tsv"), training_path("out/aan-papers.tsv")));
    uint64_t sums[3];
    memcpy(sums, info.sum, sizeof sums);
    OK(cpu, import("aan", "out", &info)); /* papers and pairs: the same set */
    assert_memory_equal(sums, info.sum, sizeof sums);
    /* faults */
    write_text("pairs.tsv", "1\tA1\tB2\n0\tZ9\tA1\n");
    refuse_data(config, training_path("pairs.tsv"), training_path("papers.tsv"),
                "pairs.tsv:2: there is no paper 'Z9'");
    write_text("pairs.tsv", "1\tA1\n");
    refuse_data(config, training_path("pairs.tsv"), training_path("papers.tsv"),
                "pairs.tsv:1: there is no second tab");
    write_text("papers.tsv", "A1\taa\nB2\tbb\nA1\tc\n");
    refuse_data(config, training_path("pairs.tsv"), training_path("papers.tsv"),
                "papers.tsv:3: the id 'A1' is there tw");
    write_text("papers.tsv", "A1\taa\nB2\n");
    refuse_data(config, training_path("pairs.tsv"), training_path("papers.tsv"),
                "papers.tsv:2: a line of papers must be");
    write_text("five.tsv", "1.0\tA1\tB2\taa\tbb\n1.0\tA1\tB2\n");
    refuse_data(config, training_path("five.tsv"), NULL,
                "five.tsv:2: there are 3 columns instead of 5");
    write_text("five.tsv", "1.0\t\t\taa\tbb\n");
    refuse_data(config, training_path("five.tsv"), NULL, "five.tsv:1: the id of a paper is empty");
    write_text("pairs.tsv", "1\t\tA1\n");
    write_text("papers.tsv", "A1\taa\n");
    refuse_data(config, training_path("pairs.tsv"), training_path("papers.tsv"),
                "pairs.tsv:1: the text is empty");
    write_text("aan/new_aan_pairs.eval.tsv", "0.0\tB2\tD4\tbbb\td\n");
    REFUSED(cpu, import("aan", "aan", &info), HT_FORMAT,
            "new_aan_pairs.eval.tsv:1: the id 'B2' is there twice, with different texts");
    write_text("aan/new_aan_pairs.eval.tsv", "0.0\tB2\tD4\tbb\td\n0.5\tB2\tD4\tbb\td\n");
    REFUSED(cpu, import("aan", "aan", &info), HT_FORMAT, "eval.tsv:2: the label must be 0 or 1");
    write_text("aan/new_aan_pairs.eval.tsv", "0.0\tB2\tD4\tbb\td\te\n");
    REFUSED(cpu, import("aan", "aan", &info), HT_FORMAT, "eval.tsv:1: a line must have 5 columns");
    write_text("out/aan-papers.tsv", "A1\taa\nA1\tbb\n");
    REFUSED(cpu, import("aan", "out", &info), HT_FORMAT, "aan-papers.tsv:2: the id 'A1' is there");
}

static void arguments(void **state) {
    (void)state;
    ht_set_desc desc = HT_SET_DESC_INIT;
    ht_set_info info = HT_SET_INFO_INIT;
    desc.task = "chess";
    REFUSED(cpu, ht_set_write(cpu, &desc, &info), HT_INVALID, "'chess' cannot be made");
    desc.source = training_folder;
    REFUSED(cpu, ht_set_write(cpu, &desc, &info), HT_INVALID, "there is no set 'chess'");
    desc.task = "pathfinder";
    REFUSED(cpu, ht_set_write(cpu, &desc, &info), HT_IO, "metadata could not be opened");
    desc.source = NULL;
    desc.distractors = -1;
    REFUSED(cpu, ht_set_write(cpu, &desc, &info), HT_INVALID, "distractors must be 0 to 100");
    desc.distractors = 0;
    desc.folder = "/nowhere/at/all";
    desc.items[0] = 1;
    REFUSED(cpu, ht_set_write(cpu, &desc, &info), HT_IO, "cannot write");
    ht_config *config;
    ht_data_desc about = HT_DATA_DESC_INIT;
    ht_data *data;
    config = training_preset("lra/pathfinder");
    training_set(config, "length", 1000);
    about.config = config;
    REFUSED(cpu, ht_data_open(&data, cpu, &about), HT_INVALID, "1024 or 16384 pixels, got 1000");
    training_set(config, "length", 1024), training_set(config, "shrink", 2);
    REFUSED(cpu, ht_data_open(&data, cpu, &about), HT_INVALID,
            "1024 or 16384 pixels, got 4096 (length 1024, shrink 2)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pathfinder),    cmocka_unit_test(listops),
        cmocka_unit_test(threads),       cmocka_unit_test(files_are_memory),
        cmocka_unit_test(listops_files), cmocka_unit_test(listops_crowd),
        cmocka_unit_test(reviews),       cmocka_unit_test(cifar10),
        cmocka_unit_test(images),        cmocka_unit_test(squares),
        cmocka_unit_test(varied),        cmocka_unit_test(shrunk),
        cmocka_unit_test(papers),        cmocka_unit_test(arguments),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
