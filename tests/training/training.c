/*
 * Helpers of the training tests.
 */
#include "training.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void training_ok(ht_context *ctx, ht_status status, const char *what, const char *file, int line) {
    if (status == HT_OK) return;
    print_error("%s:%d: %s gave %s: %s\n", file, line, what, ht_status_name(status),
                ht_context_error(ctx));
    fail();
}

void training_refused(ht_context *ctx, ht_status got, ht_status want, const char *words,
                      const char *what) {
    const char *said = ht_context_error(ctx);
    if (got == want && strstr(said, words)) return;
    print_error("%s gave %s (\"%s\"), should be %s with \"%s\"\n", what, ht_status_name(got), said,
                ht_status_name(want), words);
    fail();
}

ht_config training_config(ht_context *ctx, const char *json) {
    ht_config config = HT_CONFIG_INIT;
    OK(ctx, ht_config_preset(ctx, &config, NULL));
    OK(ctx, ht_config_read_json(ctx, &config, json));
    return config;
}

char training_folder[64];

int training_folder_open(void) {
    strcpy(training_folder, "/tmp/ht-training-XXXXXX");
    return !mkdtemp(training_folder);
}

int training_folder_close(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", training_folder);
    return system(command);
}

int training_temporaries(void) {
    int count = 0;
    DIR *folder = opendir(training_folder);
    for (struct dirent *e; folder && (e = readdir(folder));)
        count += strstr(e->d_name, ".httmp-") != NULL;
    if (folder) closedir(folder);
    return count;
}

const char *training_path(const char *name) {
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", training_folder, name);
    return path;
}

void training_write(const char *path, const void *bytes, size_t count) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
}

void *training_put(ht_context *ctx, const double *x, int64_t n, ht_dtype dtype) {
    size_t bytes = (size_t)n * (dtype == HT_F64 ? sizeof(double) : sizeof(float));
    void *host = malloc(bytes), *device;
    for (int64_t i = 0; i < n; i++) {
        if (dtype == HT_F64)
            ((double *)host)[i] = x[i];
        else
            ((float *)host)[i] = (float)x[i];
    }
    OK(ctx, ht_memory_alloc(ctx, &device, bytes));
    OK(ctx, ht_memory_copy_in(ctx, device, host, bytes));
    free(host);
    return device;
}

double *training_get(ht_context *ctx, void *device, int64_t n, ht_dtype dtype) {
    size_t bytes = (size_t)n * (dtype == HT_F64 ? sizeof(double) : sizeof(float));
    void *host = malloc(bytes);
    double *x = malloc(sizeof *x * (size_t)n);
    OK(ctx, ht_memory_copy_out(ctx, host, device, bytes));
    for (int64_t i = 0; i < n; i++)
        x[i] = dtype == HT_F64 ? ((double *)host)[i] : ((float *)host)[i];
    free(host);
    ht_memory_free(ctx, device);
    return x;
}

size_t training_thin(void) {
    const char *thin = getenv("HT_TEST_THIN");
    return thin && atoi(thin) > 1 ? (size_t)atoi(thin) : 1;
}

double training_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / 16777216.0;
}

void training_batch(random_batch *out, const ht_config *c, uint32_t seed) {
    int denoise = c->task == HT_TASK_DENOISE, pairs = c->task == HT_TASK_PAIRS;
    int by_token = c->task == HT_TASK_LANGUAGE || denoise;
    uint32_t state = seed * 2654435761u + 12345u;
    int64_t sequences = c->batch * (pairs ? 2 : 1), at = 0;
    out->cu_seqlens[0] = 0;
    for (int64_t i = 0; i < sequences; i++) {
        int64_t length = 1 + (int64_t)(training_random(&state) * (double)c->length);
        for (int64_t k = 0; k < length; k++, at++) {
            int zero = training_random(&state) < 0.1; /* some tokens are masked out */
            out->tokens[at] =
                zero ? 0 : 1 + (int32_t)(training_random(&state) * (double)(c->vocab - 1));
            if (!by_token) continue;
            double draw = zero ? 1 : training_random(&state);
            out->targets[at] = zero ? -1 : (int32_t)(draw * (double)c->vocab);
            if (denoise) out->targets[at] = zero || draw > 0.4 ? -1 : out->tokens[at];
        }
        out->cu_seqlens[i + 1] = (int32_t)at;
    }
    for (int64_t i = 0; i < c->batch && !by_token; i++)
        out->targets[i] = (int32_t)(training_random(&state) * (double)c->classes);
    if (by_token) out->targets[0] = 1; /* at least one counts */
    out->batch = (ht_batch)HT_BATCH_INIT;
    out->batch.sequences = sequences;
    out->batch.tokens = out->tokens;
    out->batch.cu_seqlens = out->cu_seqlens;
    out->batch.targets = out->targets;
}
