/*
 * Items that say which of their tokens are to be guessed: copying and recall as they are made, the
 * same from files, damaged files refused, and which guesses of a model are right.
 */
#include "training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* A task and a small model for it. */
static ht_config *small(const char *format, int length) {
    char json[512];
    snprintf(json, sizeof json,
             "{\"task\":\"language\",\"format\":\"%s\",\"vocab\":1089,\"layers\":1,\"width\":16,"
             "\"heads\":2,\"length\":%d,\"batch\":3,\"train_items\":40,\"valid_items\":5,"
             "\"data_seed\":7,\"sinusoidal\":0}",
             format, length);
    return training_config(json);
}

static ht_data *open_data(ht_context *ctx, const ht_config *config, const char *path,
                          ht_part part) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    desc.config = config;
    desc.path = path;
    desc.part = part;
    OK(ctx, ht_data_open(&data, ctx, &desc));
    return data;
}

/* An item's tokens [count], from a batch's tokens and the last target, or -1. */
static void item_of(int32_t *out, const ht_batch *b, int64_t i) {
    int32_t from = b->cu_seqlens[i], to = b->cu_seqlens[i + 1];
    memcpy(out, b->tokens + from, sizeof *out * (size_t)(to - from));
    out[to - from] = b->targets[to - 1];
}

/* ---- what they are ---- */

/* A half, then its quarters in another order; what is marked stands as far back as it says. */
static void check_copy(const int32_t *token, const int32_t *back, int length) {
    int half = length / 2, quarter = half / 4, skip = length <= 256 ? 8 : 16, used = 0;
    for (int i = 0; i < half; i++) assert_int_equal(back[i], 0);
    for (int q = 0; q < 4; q++) {
        int at = half + q * quarter, from = at - back[at + quarter - 1]; /* in letters */
        assert_int_equal(from % quarter, 0);
        used |= 1 << from / quarter;
        for (int i = 0; i < quarter; i++) {
            assert_int_equal(back[at + i] > 0, i >= skip);
            assert_int_equal(token[1 + at + i], token[1 + from + i]);
        }
    }
    assert_int_equal(used, 15);
}

/* Every key has one value; a question's answer is the nearest one. Returns how many keys. */
static int check_recall(const int32_t *token, const int32_t *back, int length) {
    int pairs = length * 3 / 8, keys = 0;
    int last[1025], value[1025];
    memset(last, 0, sizeof last);
    for (int i = 0; i < length / 2; i++) {
        int at = 2 * i + 1, key = token[at], v = token[at + 1];
        assert_in_range(key, 1, 1024);
        assert_in_range(v, 1025, 1088);
        assert_int_equal(back[at - 1], 0);
        if (last[key]) assert_int_equal(v, value[key]);
        keys += !last[key];
        assert_int_equal(back[at], i < pairs ? 0 : at + 1 - last[key]);
        if (i >= pairs) assert_true(last[key] > 0);
        last[key] = at + 1, value[key] = v;
    }
    return keys;
}

static void items(void **state) {
    static const int lengths[] = {32, 128, 1024};
    (void)state;
    for (int copy = 0; copy < 2; copy++)
        for (int n = 0; n < 3; n++)
            for (int part = 0; part < 3; part++) {
                int length = lengths[n], least = 1 << 20, most = 0, seen = 0;
                ht_config *config = small(copy ? "copy" : "recall", length);
                ht_data *data = open_data(cpu, config, NULL, (ht_part)part);
                ht_batch b = HT_BATCH_INIT;
                int32_t token[1025];
                while (ht_data_next(data, &b) == HT_OK)
                    for (int64_t i = 0; i < b.sequences; i++, seen++) {
                        const int32_t *back = b.back + b.cu_seqlens[i];
                        assert_int_equal(b.cu_seqlens[i + 1] - b.cu_seqlens[i], length);
                        item_of(token, &b, i);
                        assert_int_equal(token[0], 0);
                        if (copy && length > 32) check_copy(token, back, length);
                        int keys = copy ? 0 : check_recall(token, back, length);
                        if (keys < least) least = keys;
                        if (keys > most) most = keys;
                        for (int k = 0; k < length; k++) {
                            int32_t target = b.targets[b.cu_seqlens[i] + k];
                            assert_int_equal(target >= 0, back[k] > 0);
                            if (target >= 0) assert_int_equal(target, token[k + 1 - back[k]]);
                        }
                    }
                assert_int_equal(seen, part == 0 ? 40 : 5);
                int all = length * 3 / 8;
                if (!copy) assert_int_equal(most, all);
                if (!copy) assert_int_equal(least, part || length == 32 ? least : 8);
                if (!copy && part) assert_int_equal(least, all);
                ht_data_close(data);
            }
}

/* ---- files ---- */

static ht_status make(ht_context *ctx, const char *task, int64_t length, ht_set_info *info) {
    ht_set_desc desc = HT_SET_DESC_INIT;
    desc.task = task;
    desc.folder = training_folder;
    desc.items[0] = 40, desc.items[1] = desc.items[2] = 5;
    desc.seed = 7;
    desc.length = length;
    desc.plain = 1;
    return ht_set_write(ctx, &desc, info);
}

static char *read_file(const char *name, size_t *bytes) {
    FILE *f = fopen(training_path(name), "rb");
    char *out = malloc(1 << 20);
    assert_non_null(f);
    *bytes = fread(out, 1, 1 << 20, f);
    fclose(f);
    return out;
}

/* Files of any number of threads are the same, and hold what is made in memory. */
static void files(void **state) {
    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        const char *task = copy ? "copy" : "recall";
        char name[64];
        size_t bytes, again;
        ht_set_info info = HT_SET_INFO_INIT;
        ht_context_desc threads = {.size = sizeof threads, .device = "cpu", .threads = 3};
        ht_context *three;
        OK(NULL, ht_context_create(&three, &threads));
        OK(cpu, make(cpu, task, 128, &info));
        assert_int_equal(info.items[0], 40);
        assert_int_equal(info.longest[0], 128);
        snprintf(name, sizeof name, "%s-train.tokens", task);
        char *one = read_file(name, &bytes);
        assert_int_equal(bytes, 32 + 40 * 129 * 6);
        OK(three, make(three, task, 128, &info));
        char *other = read_file(name, &again);
        assert_int_equal(bytes, again);
        assert_memory_equal(one, other, bytes);
        free(one), free(other);
        ht_config *config = small(task, 128), *tokens = small("tokens", 128);
        ht_data *made = open_data(three, config, NULL, HT_PART_TRAIN);
        ht_data *file = open_data(cpu, tokens, training_path(name), HT_PART_TRAIN);
        ht_batch a = HT_BATCH_INIT, b = HT_BATCH_INIT;
        while (ht_data_next(made, &a) == HT_OK) {
            OK(cpu, ht_data_next(file, &b));
            size_t n = sizeof(int32_t) * (size_t)a.cu_seqlens[a.sequences];
            assert_int_equal(a.sequences, b.sequences);
            assert_memory_equal(a.tokens, b.tokens, n);
            assert_memory_equal(a.targets, b.targets, n);
            assert_memory_equal(a.back, b.back, n);
        }
        assert_int_equal(ht_data_next(file, &b), HT_END);
        ht_data_close(made);
        ht_data_close(file);
        ht_context_destroy(three);
    }
}

static void put(unsigned char *to, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(x >> 8 * i);
}

/* A file of one item of three tokens. */
static size_t tiny(unsigned char *out, const int *ids, const int *back) {
    memset(out, 0, 64);
    memcpy(out, "httokens", 8);
    put(out + 8, 1, 4), put(out + 12, 100, 4), put(out + 16, 3, 4), put(out + 24, 1, 8);
    for (int i = 0; i < 3; i++) {
        put(out + 32 + 2 * i, (uint64_t)ids[i], 2);
        put(out + 38 + 4 * i, (uint64_t)(uint32_t)back[i], 4);
    }
    return 50;
}

static ht_status try_file(const unsigned char *bytes, size_t count, const ht_config *config) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    training_write(training_path("tiny"), bytes, count);
    desc.config = config;
    desc.path = training_path("tiny");
    ht_status status = ht_data_open(&data, cpu, &desc);
    if (status == HT_OK) ht_data_close(data);
    return status;
}

static void refused(void **state) {
    static const int ids[] = {0, 99, 5}, back[] = {0, 0, -1};
    unsigned char file[64];
    ht_config *config = small("tokens", 8);
    (void)state;
    size_t n = tiny(file, ids, back);
    OK(cpu, try_file(file, n, config));
#define BAD(words) REFUSED(cpu, try_file(file, n, config), HT_FORMAT, words)
    REFUSED(cpu, try_file(file, n - 1, config), HT_FORMAT, "1 items of 3 tokens");
    REFUSED(cpu, try_file(file, 20, config), HT_FORMAT, "is no file of tokens");
    file[0] = 'x';
    BAD("it should begin with httokens");
    n = tiny(file, ids, back);
    file[8] = 2;
    BAD("version 2");
    n = tiny(file, ids, back);
    put(file + 24, UINT64_MAX / 18 + 2, 8); /* times 18 it is small again */
    BAD("items of 3 tokens");
    n = tiny(file, (const int[]){0, 100, 5}, back);
    BAD("item 1 has the token 100, but a vocab of 100");
    n = tiny(file, ids, (const int[]){0, 2, 0});
    BAD("token 2 of item 1 stands 2 tokens back");
    n = tiny(file, ids, (const int[]){-1, 0, 0});
    BAD("token 1 of item 1");
    n = tiny(file, ids, (const int[]){0, 0, -2});
    BAD("stands -2 tokens back");
    n = tiny(file, ids, (const int[]){0, 0, 0});
    BAD("item 1 has no token that counts");
    n = tiny(file, ids, back);
    config = small("tokens", 1);
    REFUSED(cpu, try_file(file, n, config), HT_INVALID, "they need a length of 2, got 1");
    config = small("tokens", 8);
    training_set(config, "vocab", 99);
    REFUSED(cpu, try_file(file, n, config), HT_INVALID, "needs a vocab of 100, got 99");
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    desc.config = config;
    REFUSED(cpu, ht_data_open(&data, cpu, &desc), HT_INVALID, "format tokens needs a path");
    config = small("recall", 128);
    training_set(config, "vocab", 1088);
    desc.config = config;
    REFUSED(cpu, ht_data_open(&data, cpu, &desc), HT_INVALID, "recall needs a vocab of 1089");
    desc.config = small("copy", 100);
    REFUSED(cpu, ht_data_open(&data, cpu, &desc), HT_INVALID, "8 divides, got 100");
    config = small("copy", 128);
    training_choose(config, "task", "classify");
    desc.config = config;
    REFUSED(cpu, ht_data_open(&data, cpu, &desc), HT_INVALID, "got task classify");
    ht_set_info info = HT_SET_INFO_INIT;
    REFUSED(cpu, make(cpu, "copy", -8, &info), HT_INVALID, "length must be 0 to");
}

/* ---- guesses ---- */

/* Losses and hits agree with the logits; their sums are those of evaluate. */
static void guesses(void **state) {
    enum { VOCAB = 1089, ROWS = 3 * 32 };
    ht_config *config = small("recall", 32);
    ht_data *data = open_data(cpu, config, NULL, HT_PART_TRAIN);
    ht_batch b = HT_BATCH_INIT;
    ht_model *model;
    ht_trainer *trainer;
    ht_report report = HT_REPORT_INIT;
    static double logits[ROWS * VOCAB];
    float losses[ROWS], alone[ROWS], total = 0;
    unsigned char right[ROWS];
    int hits = 0;
    (void)state;
    OK(cpu, ht_model_create(&model, cpu, config));
    OK(cpu, ht_trainer_create(&trainer, model, NULL));
    for (int i = 0; i < 20; i++) { /* so that some guesses are right */
        OK(cpu, ht_data_draw(data, &b));
        OK(cpu, ht_trainer_step(trainer, &b, 1, &report));
    }
    OK(cpu, ht_data_draw(data, &b));
    int32_t targets[ROWS];
    OK(cpu, ht_trainer_logits(trainer, &b, logits));
    for (int i = 0; i < ROWS; i++) { /* every third target is what the model says */
        const double *z = logits + i * VOCAB;
        int best = 0;
        for (int k = 1; k < VOCAB; k++)
            if (z[k] > z[best]) best = k;
        targets[i] = i % 3 == 0 ? best : b.targets[i];
    }
    b.targets = targets;
    OK(cpu, ht_trainer_guess(trainer, &b, losses, right));
    OK(cpu, ht_trainer_guess(trainer, &b, alone, NULL));
    assert_memory_equal(losses, alone, sizeof losses);
    OK(cpu, ht_trainer_predict(trainer, &b, alone));
    assert_memory_equal(losses, alone, sizeof losses);
    OK(cpu, ht_trainer_evaluate(trainer, &b, &report));
    for (int i = 0; i < ROWS; i++) {
        const double *z = logits + i * VOCAB;
        double sum = 0;
        int best = 0;
        for (int k = 0; k < VOCAB; k++) {
            sum += exp(z[k]);
            if (z[k] > z[best]) best = k;
        }
        double want = targets[i] < 0 ? 0 : log(sum) - z[targets[i]];
        assert_true(fabs(losses[i] - want) < 1e-4);
        assert_int_equal(right[i], targets[i] == best);
        hits += right[i], total += losses[i];
    }
    assert_true(hits >= ROWS / 3 && hits < ROWS);
    assert_int_equal(hits, report.correct);
    assert_true(fabs(total / report.targets - report.loss) < 1e-4);
    REFUSED(cpu, ht_trainer_guess(trainer, &b, NULL, right), HT_INVALID, "losses is NULL");
    b.targets = NULL;
    REFUSED(cpu, ht_trainer_guess(trainer, &b, losses, right), HT_INVALID, "need targets");
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
    ht_data_close(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items),
        cmocka_unit_test(files),
        cmocka_unit_test(refused),
        cmocka_unit_test(guesses),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
