/*
 * htransformer bench decode: what one more token costs after a long context, and what the
 * context keeps.
 *
 * The context is filled in chunks of random rows made on the fly, in one slot; the other
 * slots are forks of it. Timed are whole blocks of single tokens, since a token that starts a
 * cluster costs more than one that does not.
 */
#include "bench/bench.h"

#include <inttypes.h>
#include <math.h>

#define CHUNK 4096      /* rows of one prefill call */
#define BUDGET 1.0      /* seconds of timed tokens */
#define MOST_BLOCK 1024 /* larger blocks are sampled by their first rows */

/* clang-format off: tables */
static const cli_option options[] = {
    {"length", CLI_INTS, BENCH_AT(length), "N", .fallback = "1024,4096,16384,65536", .min = 1,
     .max = 1 << 30, .help = "rows of context; repeat it, or give a list"},
    BENCH_SHAPE,
    {"kind", CLI_CHOICE, BENCH_AT(kind), .choices = cli_kinds, .fallback = "hierarchical",
     .help = "which attention; full is the plain KV cache"},
    {"query", CLI_CHOICE, BENCH_AT(query), .choices = cli_queries, .fallback = "auto",
     .help = "query of a cluster; auto is fine"},
    CLI_OPENING(bench_values, opening),
    BENCH_RUN,
    {0},
};
/* clang-format on */

typedef struct decode {
    int64_t length;
    ht_attention *plan;
    ht_cache *cache;
    void *q, *k, *v, *out, *mask; /* [1, CHUNK] or [batch, 1] rows, whichever is more */
    int64_t q_row, k_row;         /* numbers in a row */
    double step[BENCH_SAMPLES];   /* seconds per step, mean over a block */
    double worst;                 /* seconds of the slowest step, median over blocks */
    int repeats;
    int64_t state_rows; /* of a slot after the context */
    size_t state_bytes;
} decode;

static bool make_buffers(bench_run *run, decode *d) {
    int64_t rows = run->values->batch > CHUNK ? run->values->batch : CHUNK;
    d->q_row = run->desc.q_heads * run->desc.head_dim;
    d->k_row = run->desc.kv_heads * run->desc.head_dim;
    static const char zeros[CHUNK];
    return bench_alloc(run, &d->q, rows * d->q_row, true) &&
           bench_alloc(run, &d->k, rows * d->k_row, true) &&
           bench_alloc(run, &d->v, rows * d->k_row, true) &&
           bench_alloc(run, &d->out, rows * d->q_row, false) &&
           bench_lib(run, ht_memory_alloc(run->ctx, &d->mask, CHUNK)) &&
           bench_lib(run, ht_memory_copy_in(run->ctx, d->mask, zeros, CHUNK));
}

static bool make_cache(bench_run *run, decode *d) {
    ht_attention_desc desc = run->desc;
    desc.max_rows = run->values->batch > CHUNK ? run->values->batch : CHUNK;
    desc.max_sequences = run->values->batch;
    return bench_lib(run, ht_attention_create(&d->plan, run->ctx, &desc)) &&
           bench_lib(run, ht_cache_create(&d->cache, d->plan, run->values->batch));
}

static ht_attention_args bind_args(const decode *d, int64_t batch, int64_t length) {
    ht_attention_args args = HT_ATTENTION_ARGS_INIT;
    args.batch = batch;
    args.length = length;
    args.q.data = d->q;
    args.k.data = d->k;
    args.v.data = d->v;
    args.out.data = d->out;
    return args;
}

/* Slot 0 to the wanted length, then all others from it. Outputs of the context are of no
 * interest: all but the last two blocks mask their queries, which a kernel may use to skip
 * them. */
static bool prefill(bench_run *run, decode *d) {
    int64_t tail = d->length < 2 * run->desc.block ? d->length : 2 * run->desc.block;
    for (int64_t done = 0; done < d->length;) {
        bool masked = done < d->length - tail;
        int64_t n = (masked ? d->length - tail : d->length) - done;
        if (n > CHUNK) n = CHUNK;
        ht_attention_args args = bind_args(d, 1, n);
        if (masked) args.query_mask = d->mask;
        if (!bench_refill(run, d->k, n * d->k_row) || !bench_refill(run, d->v, n * d->k_row))
            return false;
        if (!bench_lib(run, ht_cache_extend(d->cache, NULL, &args))) return false;
        done += n;
    }
    for (int64_t slot = 1; slot < run->values->batch; slot++)
        if (!bench_lib(run, ht_cache_fork(d->cache, slot, 0))) return false;
    d->state_rows = ht_cache_rows(d->cache, 0);
    return bench_lib(run, ht_cache_save_bytes(d->cache, 0, &d->state_bytes)) &&
           bench_lib(run, ht_context_synchronize(run->ctx));
}

/* One token in every slot; waits for the result, as a program that samples from it must. */
static bool step(bench_run *run, decode *d, double *seconds) {
    ht_attention_args args = bind_args(d, run->values->batch, 1);
    double start = bench_seconds();
    if (!bench_lib(run, ht_cache_extend(d->cache, NULL, &args))) return false;
    if (!bench_lib(run, ht_context_synchronize(run->ctx))) return false;
    *seconds = bench_seconds() - start;
    return true;
}

/* A block of steps: their mean, and each step's time into phases[r]. */
static bool time_block(bench_run *run, decode *d, double *mean, double *phases, int steps) {
    *mean = 0;
    for (int i = 0; i < steps; i++) {
        if (!step(run, d, &phases[i])) return false;
        *mean += phases[i] / steps;
    }
    return true;
}

static bool measure(bench_run *run, decode *d) {
    static double phases[BENCH_SAMPLES][MOST_BLOCK];
    int block = (int)run->desc.block, steps = block < MOST_BLOCK ? block : MOST_BLOCK;
    double warm;
    if (!time_block(run, d, &warm, phases[0], steps)) return false;
    d->repeats = bench_repeats(run, warm * steps, BUDGET);
    for (int r = 0; r < d->repeats; r++) {
        double ignored;
        for (int i = steps; i < block; i++) /* back to the same phase */
            if (!step(run, d, &ignored)) return false;
        if (!time_block(run, d, &d->step[r], phases[r], steps)) return false;
    }
    d->worst = 0;
    for (int i = 0; i < steps; i++) {
        double same[BENCH_SAMPLES];
        for (int r = 0; r < d->repeats; r++) same[r] = phases[r][i];
        d->worst = fmax(d->worst, bench_median(same, d->repeats));
    }
    return true;
}

/* ---- output ------------------------------------------------------------------------------ */

static void print_head(const bench_run *run) {
    const ht_attention_desc *d = &run->desc;
    char opened[32];
    cli_line("%s, query %s%s; batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", head_dim %" PRId64
             ", block %" PRId64 ", %s, on %s, %d thread%s",
             cli_kinds[d->kind], cli_queries[d->query], bench_open_text(opened, d),
             run->values->batch, d->q_heads, d->kv_heads, d->head_dim, d->block,
             cli_dtypes[d->dtype], ht_context_device(run->ctx), ht_context_threads(run->ctx),
             ht_context_threads(run->ctx) == 1 ? "" : "s");
    cli_head("%9s %12s %12s %12s %10s %11s %11s %9s", "context", "us/token", "us/step", "slowest",
             "rows", "state", "KV cache", "smaller");
}

static void report(const bench_run *run, const decode *d) {
    double us = 1e6 * bench_median(d->step, d->repeats), batch = (double)run->values->batch;
    double kv =
        2.0 * (double)d->length * (double)d->k_row * (double)bench_real_bytes(run->desc.dtype);
    char state_text[16], kv_text[16];
    if (!run->values->json) {
        cli_row("%9" PRId64 " %12.2f %12.2f %12.2f %10" PRId64 " %11s %11s %8.1fx", d->length,
                us / batch, us, 1e6 * d->worst, d->state_rows,
                bench_bytes_text(state_text, (double)d->state_bytes), bench_bytes_text(kv_text, kv),
                kv / (double)d->state_bytes);
        fflush(stdout);
        return;
    }
    json_writer json;
    bench_json_begin(&json, run, "decode", d->length);
    json_int(&json, "repeats", d->repeats);
    json_real(&json, "ms", 1e-3 * us);
    json_real(&json, "us_per_token", us / batch);
    json_real(&json, "us_per_step", us);
    json_real(&json, "us_slowest_step", 1e6 * d->worst);
    json_int(&json, "state_rows", d->state_rows);
    json_int(&json, "state_bytes", (int64_t)d->state_bytes);
    json_int(&json, "kv_bytes", (int64_t)kv);
    const char *const without[] = {"gflops", "sgemm_gflops", "ratio_to_sgemm", "bytes_saved",
                                   "bytes_scratch"};
    for (int i = 0; i < 5; i++) json_real(&json, without[i], NAN); /* they have no meaning here */
    json_close(&json, '}');
    putchar('\n');
    fflush(stdout);
}

/* ---- the command ------------------------------------------------------------------------- */

/* Work in units that grow as the time does: rows, but for full rows squared. */
static double work(const bench_run *run, int64_t length) {
    double rows = (double)length;
    return run->desc.kind == HT_FULL ? rows * rows : rows;
}

static bool bench_length(bench_run *run, int64_t length) {
    decode d = {.length = length};
    if (bench_too_long(run, length, work(run, length))) return true;
    double start = bench_seconds(),
           bound = BENCH_BOUND * (bench_real_bytes(run->desc.dtype) == 2 ? 1.02 : 1.0001);
    bool ok = make_buffers(run, &d) && make_cache(run, &d) && prefill(run, &d);
    if (ok) run->pace = (bench_seconds() - start) / work(run, length);
    ok = ok && measure(run, &d) &&
         bench_check(run, "decode", d.out, run->values->batch * d.q_row, bound);
    if (ok) report(run, &d);
    if (d.cache) ht_cache_destroy(d.cache);
    if (d.plan) ht_attention_destroy(d.plan);
    void *all[] = {d.q, d.k, d.v, d.out, d.mask};
    for (int i = 0; i < 5; i++)
        if (all[i]) ht_memory_free(run->ctx, all[i]);
    return ok;
}

static int run_decode(const void *values) {
    bench_values v = *(const bench_values *)values;
    v.causal = 1;
    bench_run run;
    cli_error error = {""};
    if (!cli_check_query(v.kind, v.query, v.causal, &error)) {
        cli_say("bench decode", "%s", error.text);
        return CLI_USAGE;
    }
    bool ok = bench_open(&run, &v, "bench decode");
    if (ok && !v.json) print_head(&run);
    for (int i = 0; ok && i < v.length.count; i++) ok = bench_length(&run, v.length.at[i]);
    if (!ok) cli_say(run.name, "%s", run.error.text);
    bench_close(&run);
    return ok ? CLI_OK : run.code;
}

const cli_command cli_bench_decode = {
    .name = "bench decode",
    .summary = "time of a token after a long context, and its state",
    .about = "Fills a cache with --length random rows, then appends single tokens to all --batch "
             "slots at once, one block of tokens per repeat, so that every repeat has the same "
             "phases. us/step is the median over repeats of the mean step, us/token that over the "
             "slots, slowest the median of the block's slowest step.\n"
             "rows is what the state keeps per key head, state its saved size, KV cache what plain "
             "attention would keep for this context.\n",
    .options = options,
    .values_bytes = sizeof(bench_values),
    .run = run_decode,
};
