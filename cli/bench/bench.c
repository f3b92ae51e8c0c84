/*
 * The benchmarks' common ground.
 */
#include "bench/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WINDOW ((int64_t)1 << 18) /* numbers in host memory on their way to or from the device */
#define TOO_LONG 60.0             /* seconds */

double bench_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *samples, int count) {
    double sorted[BENCH_SAMPLES];
    memcpy(sorted, samples, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

int bench_repeats(const bench_run *run, double once, double budget) {
    if (run->values->repeat) return (int)run->values->repeat;
    double fit = budget / (once > 1e-6 ? once : 1e-6);
    return fit < 1 ? 1 : fit > 15 ? 15 : (int)fit;
}

void bench_settle(const bench_run *run) {
    struct timespec pause = {0, 50 * 1000 * 1000};
    if (!run->cuda && ht_context_threads(run->ctx) > 1) nanosleep(&pause, NULL);
}

/* ---- numbers ----------------------------------------------------------------------------- */

size_t bench_real_bytes(ht_dtype dtype) { return dtype == HT_F64 ? 8 : dtype == HT_F32 ? 4 : 2; }

/* splitmix64: any seed will do, one multiplication chain per number */
static uint64_t next(uint64_t *seed) {
    uint64_t z = (*seed += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* the upper half of a float, rounded to the nearest even; NaN does not occur here */
static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/* half precision; what bench_random makes fits */
static uint16_t to_f16(float x) {
    int exponent;
    frexpf(x, &exponent); /* |x| < 2^exponent */
    if (exponent < -13) exponent = -13;
    int units = (int)nearbyint(ldexp(fabs((double)x), 11 - exponent));
    int bits = units < 1024 ? units : ((exponent + 13) << 10) + units;
    return (uint16_t)((x < 0 ? 0x8000 : 0) | bits);
}

static double from_f16(uint16_t x) {
    int exponent = x >> 10 & 31, units = x & 1023;
    double size = exponent ? ldexp(1024 + units, exponent - 25) : ldexp(units, -24);
    if (exponent == 31) size = units ? NAN : INFINITY;
    return x >> 15 ? -size : size;
}

static double from_bits(const void *data, ht_dtype dtype, int64_t i) {
    if (dtype == HT_F64) return ((const double *)data)[i];
    if (dtype == HT_F32) return ((const float *)data)[i];
    if (dtype == HT_F16) return from_f16(((const uint16_t *)data)[i]);
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* even between -sqrt(3) and sqrt(3): variance 1 and a known bound */
void bench_random(void *out, ht_dtype dtype, int64_t count, uint64_t *seed) {
    for (int64_t i = 0; i < count; i++) {
        double x = ((double)(next(seed) >> 11) * 0x1p-52 - 1) * BENCH_BOUND;
        if (dtype == HT_F64)
            ((double *)out)[i] = x;
        else if (dtype == HT_F32)
            ((float *)out)[i] = (float)x;
        else
            ((uint16_t *)out)[i] = dtype == HT_F16 ? to_f16((float)x) : to_bf16((float)x);
    }
}

/* ---- device ------------------------------------------------------------------------------ */

bool bench_lib(bench_run *run, ht_status status) {
    return status == HT_OK || cli_fail(&run->error, "%s", ht_context_error(run->ctx));
}

/* A number of key heads that fits; the library would say the same, but not by the option's name. */
static bool check_heads(bench_run *run) {
    int64_t heads = run->desc.q_heads, asked = run->desc.kv_heads, best = 1;
    if (heads % asked == 0) return true;
    for (int64_t n = 1; n <= heads; n++)
        if (heads % n == 0 && llabs(n - asked) < llabs(best - asked)) best = n;
    run->code = CLI_USAGE;
    return cli_fail(&run->error,
                    "--kv-heads must divide --heads %" PRId64 ", got %" PRId64
                    "; the nearest is %" PRId64,
                    heads, asked, best);
}

bool bench_open(bench_run *out, const bench_values *values, const char *name) {
    *out = (bench_run){.values = values, .name = name, .seed = 1, .code = CLI_FAILED};
    out->desc = (ht_attention_desc)HT_ATTENTION_DESC_INIT;
    out->desc.kind = (ht_kind)values->kind;
    out->desc.query = cli_query(values->query, values->causal, values->opening.open);
    out->desc.dtype = (ht_dtype)values->dtype;
    out->desc.causal = values->causal;
    out->desc.has_bias = values->bias;
    out->desc.q_heads = values->heads;
    out->desc.kv_heads = values->kv_heads ? values->kv_heads : values->heads;
    out->desc.head_dim = out->desc.value_dim = values->head_dim;
    out->desc.block = values->block;
    out->desc.open = values->opening.open;
    out->desc.open_leaf = values->opening.leaf;
    out->desc.open_peek = values->opening.peek;
    if (!check_heads(out)) return false;
    out->ctx = cli_open_device(cli_device(values->device, values->dtype == HT_F64), values->threads,
                               &out->code, &out->error);
    if (!out->ctx) return false;
    out->cuda = strncmp(ht_context_device(out->ctx), "cuda", 4) == 0;
    return true;
}

void bench_close(bench_run *run) {
    if (run->ctx) ht_context_destroy(run->ctx);
    run->ctx = NULL;
}

bool bench_too_long(const bench_run *run, int64_t length, double work) {
    if (run->values->length.given || run->pace * work < TOO_LONG) return false;
    cli_note(run->name,
             "length %" PRId64
             " left out: it would take about %.0f s; ask for it with --length %" PRId64,
             length, run->pace * work, length);
    return true;
}

bool bench_refill(bench_run *run, void *device, int64_t count) {
    size_t real = bench_real_bytes(run->desc.dtype);
    char *window = malloc((size_t)WINDOW * real);
    bool ok = window || cli_fail(&run->error, "out of memory");
    for (int64_t done = 0; ok && done < count; done += WINDOW) {
        int64_t n = count - done < WINDOW ? count - done : WINDOW;
        bench_random(window, run->desc.dtype, n, &run->seed);
        ok = bench_lib(run, ht_memory_copy_in(run->ctx, (char *)device + (size_t)done * real,
                                              window, (size_t)n * real));
    }
    free(window);
    return ok;
}

bool bench_alloc(bench_run *run, void **out, int64_t count, bool fill) {
    size_t bytes = (size_t)count * bench_real_bytes(run->desc.dtype);
    if (!bench_lib(run, ht_memory_alloc(run->ctx, out, bytes))) return false;
    return !fill || bench_refill(run, *out, count);
}

bool bench_check(bench_run *run, const char *what, const void *device, int64_t count,
                 double bound) {
    size_t real = bench_real_bytes(run->desc.dtype);
    char *window = malloc((size_t)WINDOW * real);
    bool ok = window || cli_fail(&run->error, "out of memory"), zero = true;
    for (int64_t done = 0; ok && done < count; done += WINDOW) {
        int64_t n = count - done < WINDOW ? count - done : WINDOW;
        const char *from = (const char *)device + (size_t)done * real;
        ok = bench_lib(run, ht_memory_copy_out(run->ctx, window, from, (size_t)n * real));
        for (int64_t i = 0; ok && i < n; i++) {
            double x = from_bits(window, run->desc.dtype, i);
            zero &= x == 0;
            if (!(fabs(x) <= bound))
                ok = cli_fail(&run->error, "%s came out wrong: number %" PRId64 " is %g", what,
                              done + i, x);
        }
    }
    free(window);
    return ok && (!zero || cli_fail(&run->error, "%s came out wrong: all of it is zero", what));
}

/* ---- output ------------------------------------------------------------------------------ */

void bench_json_begin(json_writer *json, const bench_run *run, const char *what, int64_t length) {
    const ht_attention_desc *d = &run->desc;
    *json = (json_writer){.out = stdout};
    json_open(json, NULL, '{');
    json_text(json, "what", what);
    json_text(json, "kind", cli_kinds[d->kind]);
    json_text(json, "query", cli_queries[d->query]);
    json_bool(json, "causal", d->causal);
    json_int(json, "batch", run->values->batch);
    json_int(json, "heads", d->q_heads);
    json_int(json, "kv_heads", d->kv_heads);
    json_int(json, "length", length);
    json_int(json, "head_dim", d->head_dim);
    json_int(json, "block", d->block);
    json_int(json, "open", d->open);
    json_text(json, "dtype", cli_dtypes[d->dtype]);
    json_text(json, "device", ht_context_device(run->ctx));
    json_int(json, "threads", ht_context_threads(run->ctx));
    json_text(json, "version", ht_version());
}

const char *bench_open_text(char out[32], const ht_attention_desc *desc) {
    out[0] = '\0';
    if (desc->open) snprintf(out, 32, ", open %" PRId64, desc->open);
    return out;
}

const char *bench_bytes_text(char out[16], double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
    snprintf(out, 16, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return out;
}
