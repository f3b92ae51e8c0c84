/*
 * What the tests of models share: small configurations, random batches, a folder for files.
 */
#ifndef TRAINING_H
#define TRAINING_H

#include <htransformer_models.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* after them: it uses their types */
#include <cmocka.h>

/* Fails the test with the context's sentence unless the status is HT_OK. */
#define OK(ctx, call) training_ok((ctx), (call), #call, __FILE__, __LINE__)
void training_ok(ht_context *ctx, ht_status status, const char *what, const char *file, int line);

/* Fails unless the call gives this status and a sentence that holds `words`. */
#define REFUSED(ctx, call, status, words) training_refused((ctx), (call), (status), (words), #call)
void training_refused(ht_context *ctx, ht_status got, ht_status want, const char *words,
                      const char *what);

/* Defaults, then the keys of a JSON object; a preset; freed with the folder. Their sentences are
 * the thread's: NULL for REFUSED. */
ht_config *training_config(const char *json);
ht_config *training_preset(const char *name);

/* Values by name, which must be there: numbers, of a choice its number. */
int64_t training_int(const ht_config *config, const char *key);
double training_real(const ht_config *config, const char *key);
int training_is(const ht_config *config, const char *key, const char *word);
void training_set(ht_config *config, const char *key, double value);
void training_choose(ht_config *config, const char *key, const char *word);
/* Have both the same values? */
int training_same(const ht_config *a, const ht_config *b);

/* A batch of random tokens and targets that fits the configuration; lengths differ. */
typedef struct random_batch {
    ht_batch batch;
    int32_t tokens[4096], cu_seqlens[65], targets[4096];
} random_batch;
void training_batch(random_batch *out, const ht_config *config, uint32_t seed);

/* A folder of the program's own: made (0: it is there), removed with all that is in it (0), and a
 * path in it, good until the next call but seven. */
extern char training_folder[64];
int training_folder_open(void);
int training_folder_close(void);
const char *training_path(const char *name);
int training_temporaries(void); /* files in it that are not yet, or never will be, complete */
void training_write(const char *path, const void *bytes, size_t count);

/* Device memory with these numbers in it, in float or double (any other dtype: float), and the
 * numbers of such memory, which is freed. */
void *training_put(ht_context *ctx, const double *x, int64_t n, ht_dtype dtype);
double *training_get(ht_context *ctx, void *device, int64_t n, ht_dtype dtype);

/* HT_TEST_THIN=n, else 1: of cases that take long every n-th will do (for sanitizers). */
size_t training_thin(void);

/* A small generator for tests: uniform in [0, 1). */
double training_random(uint32_t *state);

#endif
