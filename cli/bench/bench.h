/*
 * What the benchmarks share: options, clock, random numbers, device buffers, lines of output.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "commands.h"
#include "base/json.h"

#define BENCH_SAMPLES 64 /* most repeats of one measurement */

typedef struct bench_values {
    cli_ints length;
    int64_t batch, heads, kv_heads, head_dim, block, threads, repeat;
    int kind, query, causal, bias, dtype, keep, packed, json;
    cli_opening opening;
    const char *device;
} bench_values;

/* clang-format off: tables */
/* The rows of an option table that every benchmark has. */
#define BENCH_AT(field) offsetof(bench_values, field)
#define BENCH_SHAPE                                                                         \
    {"batch",         CLI_INT,  BENCH_AT(batch), "N",                                       \
     .fallback = "1", .min = 1, .max = 1 << 20,  .help = "sequences"},                      \
        {"heads",         CLI_INT,  BENCH_AT(heads), "N",                                   \
         .fallback = "8", .min = 1, .max = 1 << 16,  .help = "query heads"},                \
        {"kv-heads",                                                                        \
         CLI_INT,                                                                           \
         BENCH_AT(kv_heads),                                                                \
         "N",                                                                               \
         .fallback = "0",                                                                   \
         .max = 1 << 16,                                                                    \
         .help = "key heads, a divisor of heads; 0 is the same number"},                    \
        {"head-dim",         CLI_INT,                                                       \
         BENCH_AT(head_dim), "N",                                                           \
         .fallback = "64",   .min = 1,                                                      \
         .max = 256,         .help = "numbers in a query, key or value"},                   \
    {                                                                                       \
        "block", CLI_INT, BENCH_AT(block), "N", .fallback = "16", .min = 2, .max = 1 << 20, \
                                                .step = 2, .help = "rows of a block, even"  \
    }
#define BENCH_RUN                                                                               \
    {"dtype",           CLI_CHOICE,                                                             \
     BENCH_AT(dtype),   .choices = cli_dtypes,                                                  \
     .fallback = "f32", .help = "type of the numbers"},                                         \
        {"device", CLI_TEXT, BENCH_AT(device), "NAME",                                          \
         .help = "as 'htransformer info' lists them, e.g. cpu, cuda:0; default auto"},          \
        {"threads",                                                                             \
         CLI_INT,                                                                               \
         BENCH_AT(threads),                                                                     \
         "N",                                                                                   \
         .fallback = "0",                                                                       \
         .max = 4096,                                                                           \
         .help = "CPU threads; 0 is one per core"},                                             \
        {"repeat",                                                                              \
         CLI_INT,                                                                               \
         BENCH_AT(repeat),                                                                      \
         "N",                                                                                   \
         .fallback = "0",                                                                       \
         .max = BENCH_SAMPLES,                                                                  \
         .help = "timed repeats; 0 is as many as fit into about 1 s, at least 1"},              \
    {                                                                                           \
        "json", CLI_FLAG, BENCH_AT(json), .help = "one JSON object per line instead of a table" \
    }
/* clang-format on */

/* One benchmark on one device. */
typedef struct bench_run {
    const bench_values *values;
    const char *name; /* of the command */
    ht_context *ctx;
    ht_attention_desc desc; /* of the shape; maxima are set per length */
    bool cuda;
    uint64_t seed;
    double pace; /* seconds per unit of work at the last length; 0: not known yet */
    int code;    /* of a failure */
    cli_error error;
} bench_run;

/* Opens the device and fills desc. False: error and code say why. */
bool bench_open(bench_run *out, const bench_values *values, const char *name);
void bench_close(bench_run *run);

/* Turns a status into the context's sentence. */
bool bench_lib(bench_run *run, ht_status status);

/* Among the default lengths, those that would take more than a minute are left out, and it
 * says so. */
bool bench_too_long(const bench_run *run, int64_t length, double work);

/* Device memory of `count` numbers; fill: random ones of variance 1, none beyond BENCH_BOUND.
 * */
bool bench_alloc(bench_run *run, void **out, int64_t count, bool fill);
bool bench_refill(bench_run *run, void *device, int64_t count);
#define BENCH_BOUND 1.7320508

/* Are all numbers finite, not all zero and none beyond the bound? An attention's outputs are
 * averages of its values, so a benchmark that fails here has measured something else. */
bool bench_check(bench_run *run, const char *what, const void *device, int64_t count, double bound);

/* Random numbers on the host, in the dtype's own bits. */
void bench_random(void *out, ht_dtype dtype, int64_t count, uint64_t *seed);
size_t bench_real_bytes(ht_dtype dtype);

double bench_seconds(void); /* a clock that never goes back */
double bench_median(const double *samples, int count);

/* How many repeats: --repeat, or what fits into `budget` seconds at `once` seconds each. */
int bench_repeats(const bench_run *run, double once, double budget);

/* Libraries let their threads spin for a while after the last call; wait until they sleep. */
void bench_settle(const bench_run *run);

/* The members that every line of JSON has, up to the measurements. */
void bench_json_begin(json_writer *json, const bench_run *run, const char *what, int64_t length);

/* ", open 8", or nothing */
const char *bench_open_text(char out[32], const ht_attention_desc *desc);

/* "12.3 MiB" */
const char *bench_bytes_text(char out[16], double bytes);

#endif
