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

/* ---- configurations ---- */

static ht_config *made[1 << 14];
static int made_count;

static ht_config *make(const char *preset) {
    ht_config *config;
    OK(NULL, ht_config_create(&config, NULL, preset));
    OK(NULL, ht_config_set_choice(config, "dtype", "f32")); /* on every device, if not asked for */
    assert_true(made_count < (int)(sizeof made / sizeof *made));
    return made[made_count++] = config;
}

ht_config *training_preset(const char *name) { return make(name); }

ht_config *training_config(const char *json) {
    ht_config *config = make(NULL);
    OK(NULL, ht_config_read_json(config, json));
    return config;
}

static ht_key_info find(const char *key) {
    ht_key_info info = HT_KEY_INFO_INIT;
    for (int i = 0; i < ht_config_keys(); i++) {
        OK(NULL, ht_config_key(i, &info));
        if (strcmp(info.name, key) == 0) return info;
    }
    fail_msg("there is no key %s", key);
    return info;
}

int64_t training_int(const ht_config *config, const char *key) {
    ht_key_info info = find(key);
    int64_t x = 0;
    const char *word;
    if (info.kind != HT_KEY_CHOICE) {
        OK(NULL, ht_config_get_int(config, key, &x));
        return x;
    }
    OK(NULL, ht_config_get_choice(config, key, &word));
    while (strcmp(info.choices[x], word) != 0) x++;
    return x;
}

double training_real(const ht_config *config, const char *key) {
    double x;
    OK(NULL, ht_config_get_real(config, key, &x));
    return x;
}

int training_is(const ht_config *config, const char *key, const char *word) {
    const char *is;
    OK(NULL, ht_config_get_choice(config, key, &is));
    return strcmp(is, word) == 0;
}

void training_choose(ht_config *config, const char *key, const char *word) {
    OK(NULL, ht_config_set_choice(config, key, word));
}

void training_set(ht_config *config, const char *key, double value) {
    ht_key_info info = find(key);
    if (info.kind == HT_KEY_REAL)
        OK(NULL, ht_config_set_real(config, key, value));
    else if (info.kind == HT_KEY_INT)
        OK(NULL, ht_config_set_int(config, key, (int64_t)value));
    else
        training_choose(config, key, info.choices[(int)value]);
}

int training_same(const ht_config *a, const ht_config *b) {
    static char text[2][1 << 14];
    OK(NULL, ht_config_write_json(a, text[0], sizeof text[0], NULL));
    OK(NULL, ht_config_write_json(b, text[1], sizeof text[1], NULL));
    return strcmp(text[0], text[1]) == 0;
}

/* ---- files ---- */

char training_folder[64];

int training_folder_open(void) {
    strcpy(training_folder, "/tmp/ht-training-XXXXXX");
    return !mkdtemp(training_folder);
}

int training_folder_close(void) {
    while (made_count > 0) ht_config_destroy(made[--made_count]);
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
    int denoise = training_is(c, "task", "denoise"), pairs = training_is(c, "task", "pairs");
    int by_token = training_is(c, "task", "language") || denoise;
    int64_t items = training_int(c, "batch"), most = training_int(c, "length");
    int64_t vocab = training_int(c, "vocab"), classes = training_int(c, "classes");
    uint32_t state = seed * 2654435761u + 12345u;
    int64_t sequences = items * (pairs ? 2 : 1), at = 0;
    out->cu_seqlens[0] = 0;
    for (int64_t i = 0; i < sequences; i++) {
        int64_t length = 1 + (int64_t)(training_random(&state) * (double)most);
        for (int64_t k = 0; k < length; k++, at++) {
            int zero = training_random(&state) < 0.1; /* some tokens are masked out */
            out->tokens[at] =
                zero ? 0 : 1 + (int32_t)(training_random(&state) * (double)(vocab - 1));
            if (!by_token) continue;
            double draw = zero ? 1 : training_random(&state);
            out->targets[at] = zero ? -1 : (int32_t)(draw * (double)vocab);
            if (denoise) out->targets[at] = zero || draw > 0.4 ? -1 : out->tokens[at];
        }
        out->cu_seqlens[i + 1] = (int32_t)at;
    }
    for (int64_t i = 0; i < items && !by_token; i++)
        out->targets[i] = (int32_t)(training_random(&state) * (double)classes);
    if (by_token) out->targets[0] = 1; /* at least one counts */
    out->batch = (ht_batch)HT_BATCH_INIT;
    out->batch.sequences = sequences;
    out->batch.tokens = out->tokens;
    out->batch.cu_seqlens = out->cu_seqlens;
    out->batch.targets = out->targets;
}
