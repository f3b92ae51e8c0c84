/*
 * htransformer bench attention: forward and backward, against the machine's matrix product.
 *
 * The matrix product is measured between the repeats, at the same number of threads, so that
 * a machine that slows down slows down both.
 */
#include "bench/bench.h"
#include "base/count.h"
#include "bench/sgemm.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define BUDGET 1.0    /* seconds of timed calls, forward and backward each */
#define SHORTEST 2e-3 /* seconds of calls behind one sample, so that the clock does not matter */

/* clang-format off: tables */
static const cli_option options[] = {
    {"length", CLI_INTS, BENCH_AT(length), "N", .fallback = "1024,4096,16384,65536", .min = 1,
     .max = 1 << 30, .help = "rows of a sequence; repeat it, or give a list"},
    BENCH_SHAPE,
    {"kind", CLI_CHOICE, BENCH_AT(kind), .choices = cli_kinds, .fallback = "hierarchical",
     .help = "which attention"},
    {"query", CLI_CHOICE, BENCH_AT(query), .choices = cli_queries, .fallback = "auto",
     .help = "query of a cluster; auto: with --causal or --open fine, else mean"},
    CLI_OPENING(bench_values, opening),
    {"causal", CLI_FLAG, BENCH_AT(causal), .help = "row i sees rows up to i"},
    {"bias", CLI_FLAG, BENCH_AT(bias), .help = "with a bias by distance, and its gradient"},
    {"keep", CLI_FLAG, BENCH_AT(keep),
     .help = "forward also keeps what backward needs, as in training"},
    {"packed", CLI_FLAG, BENCH_AT(packed),
     .help =
         "sequences of mixed lengths, from an eighth of --length up to it, in one packed batch"},
    BENCH_RUN,
    {0},
};
/* clang-format on */

/* One length: the plan and its buffers. */
typedef struct shape {
    int64_t length, rows;     /* of a sequence, of all */
    int64_t q_count, k_count; /* numbers in q and out; in k and v */
    int32_t *cu_seqlens;      /* packed: [batch + 1] */
    ht_attention *plan;
    ht_attention_need need;
    void *q, *k, *v, *out, *dout, *dq, *dk, *dv, *saved;
    void *bias[2]; /* and its gradient: [4*block - 1, heads] float, in f64 double; zeros */
    ht_attention_args args;
    ht_attention_grads grads;
    double operations;
    double seconds[2][BENCH_SAMPLES]; /* of forward; of backward */
    int repeats[2];
    sgemm_bench sgemm;
} shape;

/* ---- buffers ----------------------------------------------------------------------------- */

/* Packed: sequence i has 1, 4, 7, 2, 5, 8, 3, 6 eighths of the length, and so on. */
static bool make_lengths(bench_run *run, shape *s) {
    int64_t batch = run->values->batch;
    s->operations = count_forward(&run->desc, batch, s->length);
    if (!run->values->packed) return true;
    if (s->rows > INT32_MAX) return cli_fail(&run->error, "too many rows for a packed batch");
    s->cu_seqlens = malloc((size_t)(batch + 1) * sizeof *s->cu_seqlens);
    if (!s->cu_seqlens) return cli_fail(&run->error, "out of memory");
    s->operations = 0;
    s->cu_seqlens[0] = 0;
    for (int64_t i = 0; i < batch; i++) {
        int64_t length = (s->length * (1 + 3 * i % 8) + 7) / 8;
        s->cu_seqlens[i + 1] = s->cu_seqlens[i] + (int32_t)length;
        s->operations += count_forward(&run->desc, 1, length);
    }
    s->rows = s->cu_seqlens[batch];
    return true;
}

static bool make_plan(bench_run *run, shape *s) {
    ht_attention_desc desc = run->desc;
    int64_t bytes;
    if (__builtin_mul_overflow(run->values->batch, s->length, &s->rows) ||
        __builtin_mul_overflow(s->rows, desc.q_heads * desc.head_dim, &s->q_count) ||
        __builtin_mul_overflow(s->q_count, 8, &bytes))
        return cli_fail(&run->error, "%" PRId64 " sequences of %" PRId64 " rows are too many",
                        run->values->batch, s->length);
    if (!make_lengths(run, s)) return false;
    desc.max_rows = s->rows;
    desc.max_sequences = run->values->batch;
    desc.max_length = s->length;
    s->q_count = desc.max_rows * desc.q_heads * desc.head_dim;
    s->k_count = desc.max_rows * desc.kv_heads * desc.head_dim; /* no more than q's */
    s->need = (ht_attention_need)HT_ATTENTION_NEED_INIT;
    return bench_lib(run, ht_attention_create(&s->plan, run->ctx, &desc)) &&
           bench_lib(run, ht_attention_get_need(s->plan, &s->need));
}

static bool make_buffers(bench_run *run, shape *s) {
    void **random_q[] = {&s->q, &s->dout}, **random_k[] = {&s->k, &s->v};
    void **plain_q[] = {&s->out, &s->dq}, **plain_k[] = {&s->dk, &s->dv};
    for (int i = 0; i < 2; i++)
        if (!bench_alloc(run, random_q[i], s->q_count, true) ||
            !bench_alloc(run, random_k[i], s->k_count, true) ||
            !bench_alloc(run, plain_q[i], s->q_count, false) ||
            !bench_alloc(run, plain_k[i], s->k_count, false))
            return false;
    return bench_lib(run, ht_memory_alloc(run->ctx, &s->saved, s->need.saved ? s->need.saved : 1));
}

static bool make_biases(bench_run *run, shape *s) {
    const ht_attention_desc *d = &run->desc;
    if (!d->has_bias) return true;
    size_t count = (size_t)((4 * d->block - 1) * d->q_heads);
    size_t each = d->dtype == HT_F64 ? sizeof(double) : sizeof(float);
    void *zeros = calloc(count, each);
    bool good = zeros || cli_fail(&run->error, "out of memory");
    for (int i = 0; i < 2 && good; i++)
        good = bench_lib(run, ht_memory_alloc(run->ctx, &s->bias[i], count * each)) &&
               bench_lib(run, ht_memory_copy_in(run->ctx, s->bias[i], zeros, count * each));
    free(zeros);
    return good;
}

static void bind_args(const bench_run *run, shape *s) {
    s->args = (ht_attention_args)HT_ATTENTION_ARGS_INIT;
    s->args.batch = run->values->batch;
    s->args.length = s->length;
    s->args.cu_seqlens = s->cu_seqlens;
    s->args.q.data = s->q;
    s->args.k.data = s->k;
    s->args.v.data = s->v;
    s->args.out.data = s->out;
    s->args.saved = s->saved;
    s->args.bias = s->bias[0];
    s->grads = (ht_attention_grads)HT_ATTENTION_GRADS_INIT;
    s->grads.dout.data = s->dout;
    s->grads.dq.data = s->dq;
    s->grads.dk.data = s->dk;
    s->grads.dv.data = s->dv;
    s->grads.dbias = s->bias[1];
}

static void release(bench_run *run, shape *s) {
    void *all[] = {s->q,  s->k,  s->v,     s->out,     s->dout,   s->dq,
                   s->dk, s->dv, s->saved, s->bias[0], s->bias[1]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]) ht_memory_free(run->ctx, all[i]);
    if (s->plan) ht_attention_destroy(s->plan);
    free(s->cu_seqlens);
    sgemm_destroy(&s->sgemm);
}

/* ---- timing ------------------------------------------------------------------------------ */

/* Seconds of one call, as the mean of `calls`. */
static bool time_calls(bench_run *run, shape *s, bool backward, int calls, double *seconds) {
    ht_attention_args args = s->args;
    if (!backward && !run->values->keep) args.saved = NULL;
    double start = bench_seconds();
    for (int i = 0; i < calls; i++)
        if (!bench_lib(run, backward ? ht_attention_backward(s->plan, &args, &s->grads)
                                     : ht_attention_forward(s->plan, &args)))
            return false;
    if (!bench_lib(run, ht_context_synchronize(run->ctx))) return false;
    *seconds = (bench_seconds() - start) / calls;
    return true;
}

static int calls_per_sample(double once) {
    return once >= SHORTEST ? 1 : (int)(SHORTEST / (once > 1e-7 ? once : 1e-7)) + 1;
}

/* forward that keeps what backward needs, then both once more: memory touched, scratch grown */
static bool warm_up(bench_run *run, shape *s, double once[2]) {
    return bench_lib(run, ht_attention_forward(s->plan, &s->args)) &&
           time_calls(run, s, true, 1, &once[1]) && time_calls(run, s, false, 1, &once[0]);
}

/* A round of the matrix product, and forward warm again after it. */
static bool yardstick(bench_run *run, shape *s, int calls, double once) {
    double ignored;
    bench_settle(run);
    sgemm_round(&s->sgemm);
    bench_settle(run);
    return once > 0.1 || time_calls(run, s, false, calls, &ignored);
}

static bool measure(bench_run *run, shape *s) {
    double once[2];
    int calls[2], most = 0;
    if (!warm_up(run, s, once)) return false;
    for (int i = 0; i < 2; i++) {
        calls[i] = calls_per_sample(once[i]);
        s->repeats[i] = bench_repeats(run, once[i] * calls[i], BUDGET);
        if (s->repeats[i] > most) most = s->repeats[i];
    }
    if (!run->cuda) sgemm_create(&s->sgemm, ht_context_threads(run->ctx));
    int every = (most + 4) / 5; /* five rounds of the matrix product are enough */
    for (int r = 0; r < most; r++) {
        if (s->sgemm.a && r % every == 0 && !yardstick(run, s, calls[0], once[0])) return false;
        for (int i = 0; i < 2; i++)
            if (r < s->repeats[i] && !time_calls(run, s, i, calls[i], &s->seconds[i][r]))
                return false;
    }
    return true;
}

static bool check(bench_run *run, const shape *s) {
    double bound =
        bench_real_bytes(run->desc.dtype) == 2 ? BENCH_BOUND * 1.02 : BENCH_BOUND * 1.0001;
    return bench_check(run, "forward", s->out, s->q_count, bound) &&
           bench_check(run, "backward: dq", s->dq, s->q_count, HUGE_VAL) &&
           bench_check(run, "backward: dk", s->dk, s->k_count, HUGE_VAL) &&
           bench_check(run, "backward: dv", s->dv, s->k_count, HUGE_VAL);
}

/* ---- output ------------------------------------------------------------------------------ */

/* Bytes that must move at least: every input read once, every output written once. */
static double least_bytes(const bench_run *run, const shape *s, bool backward) {
    double q = (double)s->q_count, k = (double)s->k_count;
    double numbers = backward ? q + k + k + q + q + q + k + k : q + k + k + q;
    return numbers * (double)bench_real_bytes(run->desc.dtype);
}

/* The device's own copy speed: bytes read and written per second, the best of five copies of
 * 512 MiB (far more than its cache). NaN if there is no room. */
static double copy_speed(const bench_run *run) {
    const size_t bytes = (size_t)512 << 20;
    void *from = NULL, *to = NULL;
    double best = NAN;
    bool ok = ht_memory_alloc(run->ctx, &from, bytes) == HT_OK &&
              ht_memory_alloc(run->ctx, &to, bytes) == HT_OK;
    for (int i = 0; ok && i < 6; i++) {
        ht_context_synchronize(run->ctx);
        double start = bench_seconds();
        ok = ht_memory_copy(run->ctx, to, from, bytes) == HT_OK &&
             ht_context_synchronize(run->ctx) == HT_OK;
        double speed = 2.0 * (double)bytes / (bench_seconds() - start);
        if (ok && i > 0 && !(speed <= best)) best = speed; /* the first one warms up */
    }
    ht_memory_free(run->ctx, from);
    ht_memory_free(run->ctx, to);
    return ok ? best : NAN;
}

typedef struct line {
    const char *what, *kernels;
    int repeats;
    double ms, ms_min, spread, gflops, sgemm, floor_ms; /* NaN: not known */
    double saved, scratch;                              /* bytes */
} line;

static void print_json(const bench_run *run, const shape *s, const line *l) {
    json_writer json;
    bench_json_begin(&json, run, l->what, s->length);
    json_bool(&json, "bias", run->values->bias);
    json_bool(&json, "keep", run->values->keep);
    json_bool(&json, "packed", run->values->packed);
    json_text(&json, "kernels", l->kernels);
    json_int(&json, "repeats", l->repeats);
    json_real(&json, "ms", l->ms);
    json_real(&json, "ms_min", l->ms_min);
    json_real(&json, "spread", l->spread);
    json_real(&json, "gflops", l->gflops);
    json_text(&json, "blas", run->cuda ? NULL : sgemm_blas());
    json_real(&json, "sgemm_gflops", l->sgemm);
    json_real(&json, "ratio_to_sgemm", l->gflops / l->sgemm);
    json_real(&json, "floor_ms", l->floor_ms);
    json_real(&json, "ratio_to_floor", l->ms / l->floor_ms);
    json_int(&json, "bytes_saved", (int64_t)l->saved);
    json_int(&json, "bytes_scratch", (int64_t)l->scratch);
    json_close(&json, '}');
    putchar('\n');
}

/* "12.3", or "-" where the number is not known */
static const char *number(char out[24], const char *format, double x) {
    if (isfinite(x))
        snprintf(out, 24, format, x);
    else
        snprintf(out, 24, "-");
    return out;
}

static void print_row(const bench_run *run, const shape *s, const line *l) {
    char yard[24], ratio[24], saved[16], scratch[16];
    number(yard, run->cuda ? "%.3f" : "%.1f", run->cuda ? l->floor_ms : l->sgemm);
    if (run->cuda)
        number(ratio, "%.2f", l->ms / l->floor_ms);
    else
        number(ratio, "%.1f%%", 100 * l->gflops / l->sgemm);
    cli_row("%-9s %9" PRId64 " %12.3f %6.1f%% %10.2f %10s %8s %11s %11s%s%s", l->what, s->length,
            l->ms, 100 * l->spread, l->gflops, yard, ratio, bench_bytes_text(saved, l->saved),
            bench_bytes_text(scratch, l->scratch), run->cuda ? "  " : "",
            run->cuda ? l->kernels : "");
}

static void print_head(const bench_run *run) {
    const ht_attention_desc *d = &run->desc;
    const char *yardstick =
        run->cuda      ? "floor: every input read and output written once, at the speed of a copy"
        : sgemm_blas() ? sgemm_blas()
                       : "no sgemm column: this program was built without a BLAS";
    char opened[32];
    char how[48];
    snprintf(how, sizeof how, "%s%s%s%s", d->causal ? " causal" : "", d->has_bias ? ", bias" : "",
             run->values->keep ? ", keeping" : "", run->values->packed ? ", packed" : "");
    cli_line("%s%s, query %s%s; batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", head_dim %" PRId64
             ", block %" PRId64 ", %s",
             cli_kinds[d->kind], how, cli_queries[d->query], bench_open_text(opened, d),
             run->values->batch, d->q_heads, d->kv_heads, d->head_dim, d->block,
             cli_dtypes[d->dtype]);
    cli_line("on %s, %d thread%s; %s%s", ht_context_device(run->ctx), ht_context_threads(run->ctx),
             ht_context_threads(run->ctx) == 1 ? "" : "s",
             !run->cuda && sgemm_blas() ? "sgemm by " : "", yardstick);
    cli_head("%-9s %9s %12s %7s %10s %10s %8s %11s %11s%s", "what", "length", "ms", "spread",
             "GFLOP/s", run->cuda ? "floor ms" : "sgemm", "ratio", "saved", "scratch",
             run->cuda ? "  kernels" : "");
}

static void report(bench_run *run, const shape *s) {
    for (int backward = 0; backward < 2; backward++) {
        const double *samples = s->seconds[backward];
        int repeats = s->repeats[backward];
        double seconds = bench_median(samples, repeats), low = seconds, high = seconds;
        for (int r = 0; r < repeats; r++)
            low = fmin(low, samples[r]), high = fmax(high, samples[r]);
        line l = {backward ? "backward" : "forward", .repeats = repeats, .ms = 1e3 * seconds};
        l.kernels = ht_attention_kernels(s->plan, backward);
        l.ms_min = 1e3 * low;
        l.spread = (high - low) / seconds;
        l.gflops = 1e-9 * s->operations * (backward ? COUNT_BACKWARD : 1) / seconds;
        l.sgemm = sgemm_best(&s->sgemm);
        l.floor_ms = run->cuda ? 1e3 * least_bytes(run, s, backward) / copy_speed(run) : NAN;
        l.saved = (double)s->need.saved;
        l.scratch = (double)(backward ? s->need.scratch_backward : s->need.scratch_forward);
        if (run->values->json)
            print_json(run, s, &l);
        else
            print_row(run, s, &l);
    }
    fflush(stdout);
}

/* ---- the command ------------------------------------------------------------------------- */

static bool bench_length(bench_run *run, int64_t length) {
    shape s = {.length = length};
    ht_attention_desc desc = run->desc;
    double work = count_forward(&desc, run->values->batch, length);
    if (bench_too_long(run, length, work)) return true;
    double start = bench_seconds();
    bool ok = make_plan(run, &s) && make_buffers(run, &s) && make_biases(run, &s);
    bind_args(run, &s);
    ok = ok && measure(run, &s) && check(run, &s);
    if (ok) report(run, &s);
    if (ok && s.repeats[0] + s.repeats[1] == 2) run->pace = (bench_seconds() - start) / work;
    release(run, &s);
    return ok;
}

static int run_attention(const void *values) {
    const bench_values *v = values;
    bench_run run;
    cli_error error = {""};
    if (!cli_check_query(v->kind, v->query, v->causal, &error)) {
        cli_say("bench attention", "%s", error.text);
        return CLI_USAGE;
    }
    bool ok = bench_open(&run, v, "bench attention");
    if (ok && !v->json) print_head(&run);
    for (int i = 0; ok && i < v->length.count; i++) ok = bench_length(&run, v->length.at[i]);
    if (!ok) cli_say(run.name, "%s", run.error.text);
    bench_close(&run);
    return ok ? CLI_OK : run.code;
}

const cli_command cli_bench_attention = {
    .name = "bench attention",
    .summary = "time of forward and backward, against sgemm",
    .about =
        "ms is the median of the repeats after warm-up, spread (slowest - fastest) / median. "
        "GFLOP/s counts useful operations: 2*head_dim + 2*value_dim per product of a query "
        "(or coarse query) with a key, counted from the definition. Hierarchical mean without "
        "--causal counts the nominal 4.5*block products per row, full length per row, full "
        "--causal half of that; --open K adds 2 K products per row and "
        "level; backward counts 2.5 times forward.\n"
        "sgemm is the best of the BLAS on squares of 512, 1024 and 2048 (median per size), "
        "measured between the repeats at the same number of threads; ratio is GFLOP/s over "
        "it. On a GPU the yardstick is floor ms, every input read and every output written "
        "once at the speed of a copy, and kernels says which take such calls (docs/cuda.md). saved "
        "and scratch are bytes asked of the caller.\n"
        "Results are checked in the same run: outputs must be averages of the values, "
        "gradients finite.\n",
    .options = options,
    .values_bytes = sizeof(bench_values),
    .run = run_attention,
};
