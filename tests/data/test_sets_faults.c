/*
 * Sets when memory ends at any point, and files with any byte changed: a status and a sentence,
 * nothing left behind, never a crash.
 */
#include "training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int open_all(void **state) {
    (void)state;
    return training_folder_open() != 0;
}

static int close_all(void **state) {
    (void)state;
    return training_folder_close();
}

static void write_bytes(const char *name, const void *bytes, size_t count) {
    training_write(training_path(name), bytes, count);
}
static void write_text(const char *name, const char *text) {
    write_bytes(name, text, strlen(text));
}

/* ---- memory ---- */

typedef struct budget {
    int64_t left, live; /* allocations until there is none; blocks not released */
} budget;

static void *take(void *user, size_t bytes) {
    budget *b = user;
    if (b->left-- <= 0) return NULL;
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64);
    b->live += block != NULL;
    return block;
}
static void release(void *user, void *block) {
    budget *b = user;
    b->live -= block != NULL;
    free(block);
}

typedef ht_status scenario(ht_context *ctx);

/* Runs it with 0, 1, 2 ... allocations until it succeeds. */
static void starve(scenario *what) {
    for (int64_t n = 0;; n++) {
        budget b = {.left = INT64_MAX};
        ht_context_desc desc = HT_CONTEXT_DESC_INIT;
        ht_context *ctx;
        desc.threads = 1;
        desc.allocator = (ht_allocator){take, release, &b};
        assert_int_equal(ht_context_create(&ctx, &desc), HT_OK);
        int64_t before = b.live;
        b.left = n;
        ht_status status = what(ctx);
        assert_int_equal(b.live, before); /* nothing is left behind */
        if (status != HT_OK) {
            if (status != HT_NOMEM || !strstr(ht_context_error(ctx), "out of memory"))
                fail_msg("after %lld allocations: %s, %s", (long long)n, ht_status_name(status),
                         ht_context_error(ctx));
        }
        ht_context_destroy(ctx);
        if (status == HT_OK) return;
        assert_true(n < 10000);
    }
}

static ht_status open_and_close(ht_context *ctx, const char *preset, const char *path,
                                const char *papers) {
    ht_config *config;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    ht_status status = ht_config_create(&config, ctx, preset);
    if (status != HT_OK) return status;
    training_set(config, "batch", 1);
    training_set(config, "train_items", 3), training_set(config, "valid_items", 3);
    if (training_int(config, "classes") == 0)
        training_set(config, "classes", 2); /* the files have one of them only */
    desc.config = config;
    desc.path = path;
    desc.papers = papers;
    status = ht_data_open(&data, ctx, &desc);
    if (status == HT_OK) ht_data_close(data);
    ht_config_destroy(config);
    return status;
}

static ht_status write_set(ht_context *ctx, const char *task, const char *source, int plain) {
    ht_set_desc desc = HT_SET_DESC_INIT;
    ht_set_info info = HT_SET_INFO_INIT;
    desc.task = task;
    desc.source = source;
    desc.folder = training_path("out");
    desc.items[0] = desc.items[1] = 3;
    desc.plain = plain;
    desc.unchecked = 1;
    return ht_set_write(ctx, &desc, &info);
}

static ht_status made_images(ht_context *ctx) {
    return open_and_close(ctx, "lra/pathfinder", NULL, NULL);
}
static ht_status made_expressions(ht_context *ctx) {
    return open_and_close(ctx, "lra/listops", NULL, NULL);
}
static ht_status read_papers(ht_context *ctx) {
    return open_and_close(ctx, "lra/retrieval", training_path("aan/aan-train.tsv"),
                          training_path("aan/aan-papers.tsv"));
}
static ht_status write_images(ht_context *ctx) { return write_set(ctx, "pathfinder", NULL, 0); }
static ht_status write_expressions(ht_context *ctx) { return write_set(ctx, "listops", NULL, 1); }
static ht_status import_expressions(ht_context *ctx) {
    return write_set(ctx, "listops", training_path("listops"), 0);
}
static ht_status import_papers(ht_context *ctx) {
    return write_set(ctx, "aan", training_path("aan"), 0);
}
static ht_status import_reviews(ht_context *ctx) {
    return write_set(ctx, "imdb", training_path("imdb"), 0);
}
static ht_status import_grey(ht_context *ctx) {
    return write_set(ctx, "cifar10", training_path("grey"), 0);
}

static void write_sources(void) {
    static char grey[1025 * 2];
    static const char *const folders[] = {"out", "listops", "aan", "imdb", "grey"};
    for (int i = 0; i < 5; i++) mkdir(training_path(folders[i]), 0777);
    write_text("listops/basic_train.tsv", "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n");
    write_text("listops/basic_val.tsv", "( ( ( [MAX 2 ) 8 ) ] )\t8\n");
    write_text("listops/basic_test.tsv", "( ( ( [MAX 2 ) 7 ) ] )\t7\n");
    write_text("aan/aan-papers.tsv", "A\tone\nB\tother\n");
    write_text("aan/aan-train.tsv", "1\tA\tB\n");
    write_text("aan/aan-valid.tsv", "0\tA\tA\n");
    write_text("aan/aan-test.tsv", "0\tB\tB\n");
    write_text("imdb/imdb-train.tsv", "1\tgood\n0\tbad\n");
    write_text("imdb/imdb-test.tsv", "1\tgood\n0\tbad\n");
    write_bytes("grey/cifar10-gray-train.bin", grey, sizeof grey);
    write_bytes("grey/cifar10-gray-test.bin", grey, sizeof grey);
}

static void memory(void **state) {
    (void)state;
    static scenario *const scenarios[] = {made_images,   made_expressions,  read_papers,
                                          write_images,  write_expressions, import_expressions,
                                          import_papers, import_reviews,    import_grey};
    write_sources();
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) starve(scenarios[i]);
}

/* ---- changed bytes ---- */

/* The file with one to four bytes changed, cut or doubled, many times over. */
static void change(const char *preset, const char *name, const char *bytes, size_t count,
                   const char *papers) {
    ht_context *ctx;
    uint32_t random = 1;
    char *copy = malloc(2 * count);
    int good = 0, bad = 0;
    assert_int_equal(ht_context_create(&ctx, NULL), HT_OK);
    for (int i = 0; i < 1500; i++) {
        size_t n = count;
        memcpy(copy, bytes, count);
        memcpy(copy + count, bytes, count);
        for (int k = 0; k < 1 + i % 4; k++)
            copy[(size_t)(training_random(&random) * (double)count)] =
                (char)(training_random(&random) * 256);
        if (i % 7 == 0) n = (size_t)(training_random(&random) * 2 * (double)count) + 1;
        write_bytes(name, copy, n);
        ht_status status = open_and_close(ctx, preset, training_path(name), papers);
        good += status == HT_OK;
        bad += status == HT_FORMAT;
        if (status != HT_OK && status != HT_FORMAT && status != HT_INVALID)
            fail_msg("%s: %s", ht_status_name(status), ht_context_error(ctx));
        if (status != HT_OK)
            assert_non_null(strstr(ht_context_error(ctx), training_folder)); /* which file */
    }
    assert_true(bad > 0);
    if (good + bad == 0) fail();
    free(copy);
    ht_context_destroy(ctx);
}

static void bytes(void **state) {
    (void)state;
    static char images[32 + 2 * 1025] = "htimages\1\0\0\0\40\0\0\0\40\0\0\0\12\0\0\0\2";
    static const char five[] = "1.0\tA1\tB2\taa\tbb\n0.0\tC3\tA1\tc\taa\n";
    static const char pairs[] = "1\tA\tB\n0\tB\tA\n";
    static const char expressions[] = "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n";
    write_sources();
    change("lra/image", "changed", images, 48, NULL); /* mostly the header */
    change("lra/image", "changed", images, sizeof images, NULL);
    change("lra/retrieval", "changed", five, sizeof five - 1, NULL);
    change("lra/retrieval", "changed", pairs, sizeof pairs - 1,
           training_path("aan/aan-papers.tsv"));
    change("lra/listops", "changed", expressions, sizeof expressions - 1, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory), cmocka_unit_test(bytes)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
