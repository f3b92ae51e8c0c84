/*
 * The lines of a run.
 */
#include "run/progress.h"

#include "base/settings.h"

#include "run/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PLAIN_SECONDS 2.0 /* plain lines come at most this often */
#define LIVE_SECONDS 0.05 /* and the live line is drawn anew */
#define BAR 16
#define SLOW_GFLOPS 4.0 /* per thread; worth a warning */

/* Does the terminal take UTF-8? The locale says so. */
static bool takes_utf8(void) {
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return strstr(value, "UTF-8") || strstr(value, "utf8");
    }
    return false;
}

/* A CPU with a good BLAS has several times as much, even an old one; the reference kernels are
 * asked for by name. */
static void warn_slow(const ht_context *ctx, double peak) {
    const char *device = ht_context_device(ctx);
    double each = peak / 1e9 / ht_context_threads(ctx);
    if (strncmp(device, "cpu", 3) != 0 || !strcmp(device, "cpu:ref") || each > SLOW_GFLOPS) return;
    cli_say("train",
            "matrix products run at %.1f GFLOP/s per thread here, a good BLAS has 20 and more: "
            "`htransformer info` names the one in use (libopenblas-dev?); or the machine is busy",
            each);
}

void progress_begin(progress *p, ht_context *ctx, const ht_model *model, const ht_config *config,
                    bool quiet) {
    *p = (progress){.quiet = quiet, .last = -PLAIN_SECONDS};
    p->language = setting_is(config, "task", "language");
    p->unit = setting_int(config, "vocab") == 257 ? "byte" : "token";
    p->flops = ht_model_flops(model);
    ht_dtype dtype = (ht_dtype)setting_index(config, "dtype", cli_dtypes);
    if (!quiet && ht_context_peak(ctx, dtype, &p->peak) != HT_OK) p->peak = 0;
    if (p->peak > 0) warn_slow(ctx, p->peak);
    const char *term = getenv("TERM");
    p->terminal = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    p->blocks = takes_utf8();
}

static void print_data(const char *name, const ht_data *data) {
    ht_data_info info = HT_DATA_INFO_INIT;
    if (!data || ht_data_get_info(data, &info) != HT_OK) return;
    printf("  %-10s %lld items, %lld tokens, longest %lld", name, (long long)info.items,
           (long long)info.tokens, (long long)info.longest);
    if (info.documents) printf(", %lld documents", (long long)info.documents);
    if (info.cut) printf(", %lld were cut to length", (long long)info.cut);
    if (info.majority > 0) printf(", largest class %.1f %%", 100 * info.majority);
    putchar('\n');
}

/* Which the device chose for the attention, and why not faster ones; nobody should have to guess
 * why a step is slow. */
static void print_kernels(const ht_trainer *trainer) {
    ht_kernels_info info[2] = {HT_KERNELS_INFO_INIT, HT_KERNELS_INFO_INIT};
    for (int backward = 0; backward < 2; backward++)
        if (ht_trainer_explain(trainer, backward, &info[backward]) != HT_OK) return;
    int same = !strcmp(info[0].name, info[1].name), as_well = !strcmp(info[0].why, info[1].why);
    printf("  %-10s %s%s%s\n", "kernels", info[0].name, same ? "" : ", backward ",
           same ? "" : info[1].name);
    for (int backward = 0; backward < (as_well ? 1 : 2); backward++)
        if (info[backward].faster)
            printf("  %-10s the faster \"%s\" cannot run%s: %s\n", "", info[backward].faster,
                   as_well    ? ""
                   : backward ? " backward"
                              : " forward",
                   info[backward].why);
}

void progress_header(const ht_model *model, const ht_trainer *trainer, const ht_data *train,
                     const ht_data *valid) {
    const ht_config *c = ht_model_config(model);
    const char *bold = cli_bold(stdout), *plain = cli_plain(stdout);
    printf("%smodel%s\n  %-10s %lld parameters in %lld tensors\n", bold, plain,
           setting_word(c, "task"), (long long)ht_model_parameters(model),
           (long long)ht_model_tensors(model));
    printf("  %-10s %lld layers, width %lld, %lld heads, hidden %lld\n", "blocks",
           (long long)setting_int(c, "layers"), (long long)setting_int(c, "width"),
           (long long)setting_int(c, "heads"), (long long)setting_int(c, "hidden"));
    char opened[32] = "";
    if (setting_int(c, "open"))
        snprintf(opened, sizeof opened, ", open %lld", (long long)setting_int(c, "open"));
    printf("  %-10s %s, query %s, block %lld%s, length %lld\n", "attention",
           setting_word(c, "attention"), setting_word(c, "query"),
           (long long)setting_int(c, "block"), opened, (long long)setting_int(c, "length"));
    print_kernels(trainer);
    printf("  %-10s %.1f MB besides the weights\n", "memory",
           (double)ht_trainer_bytes(trainer) / 1e6);
    printf("%sdata%s\n", bold, plain);
    run_rows_print(stdout, train);
    print_data("train", train);
    print_data("valid", valid);
    fflush(stdout);
}

/* "1:02:03", "4:05" */
static const char *clock_text(char *out, size_t bytes, double seconds) {
    long s = seconds > 0 && seconds < 1e9 ? (long)(seconds + 0.5) : 0;
    if (s >= 3600)
        snprintf(out, bytes, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, bytes, "%ld:%02ld", s / 60, s % 60);
    return out;
}

/* " | 41.5 % of peak": of the device's arithmetic; nothing where that is not known. What is faster
 * than the peak shows that it was measured wrongly (on a busy machine): no share from there on. */
static const char *share_text(char *out, size_t bytes, progress *p, double per_second) {
    *out = '\0';
    if (per_second * p->flops > p->peak) p->peak = 0;
    if (p->peak > 0)
        snprintf(out, bytes, " | %.1f %% of peak", 100 * per_second * p->flops / p->peak);
    return out;
}

/* loss and accuracy, or bits per byte (of sub-words: per token) */
static const char *score_text(char *out, size_t bytes, const progress *p, const ht_report *r) {
    if (p->language)
        snprintf(out, bytes, "loss %.4f | %.4f bits/%s", r->loss, r->loss / log(2), p->unit);
    else
        snprintf(out, bytes, "loss %.4f | acc %.3f", r->loss, r->accuracy);
    return out;
}

/* A terminal that became narrower has broken the line into several: go up to its first row and
 * clear from there. */
static void clear_line(progress *p) {
    int now = cli_columns(stdout);
    if (!p->open) return;
    if (now > 0 && p->columns > now) printf("\033[%dA", (p->columns - 1) / now);
    printf("\r\033[J");
    p->open = false;
}

/* ---- the live line ----------------------------------------------------------------------- */

/* Text of a line, and its width: a block letter is several bytes and one column. */
typedef struct live {
    char text[1024];
    size_t used;
    int columns, most;
} live;

/* Adds a piece if the terminal has room for all of it. */
static void piece(live *l, int columns, const char *text) {
    size_t n = strlen(text);
    if (l->columns + columns > l->most || l->used + n >= sizeof l->text) return;
    memcpy(l->text + l->used, text, n + 1);
    l->used += n;
    l->columns += columns;
}

static void words(live *l, const char *text) { piece(l, (int)strlen(text), text); }

/* The loss of the run so far, from its lowest to its highest, in letters of growing height. */
static void add_spark(live *l, const progress *p) {
    static const char *const heights[2][8] = {{"_", ".", "-", "~", "=", "+", "*", "#"},
                                              {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}};
    char text[4 * PROGRESS_SPARK + 8] = " | ";
    double low = HUGE_VAL, high = -HUGE_VAL;
    int columns = 3;
    for (int i = 0; i < PROGRESS_SPARK; i++) {
        if (p->steps[i] == 0) continue;
        low = fmin(low, p->loss[i] / p->steps[i]);
        high = fmax(high, p->loss[i] / p->steps[i]);
    }
    for (int i = 0; i < PROGRESS_SPARK; i++) {
        if (p->steps[i] == 0) continue;
        double share = high > low ? (p->loss[i] / p->steps[i] - low) / (high - low) : 0;
        strcat(text, heights[p->blocks][(int)(7 * share + 0.5)]);
        columns++;
    }
    piece(l, columns, text);
}

static void add_bar(live *l, const ht_event *e) {
    char text[BAR + 16] = "[";
    int full = e->steps > 0 ? (int)(BAR * e->step / e->steps) : 0;
    for (int i = 0; i < BAR; i++) strcat(text, i < full ? "=" : " ");
    strcat(text, "] ");
    if (l->most >= 60) words(l, text);
}

/* Memory of the process, at its highest. */
static double memory(void) {
    struct rusage use;
    return getrusage(RUSAGE_SELF, &use) == 0 ? (double)use.ru_maxrss * 1024 : 0;
}

/* What matters most comes first; what does not fit is left out. */
static void draw(progress *p, const ht_event *e) {
    live l = {.most = cli_columns(stdout) - 1};
    char text[128], part[64];
    double per_second = e->step_seconds > 0 ? (double)e->report->tokens / e->step_seconds : 0;
    add_bar(&l, e);
    snprintf(text, sizeof text, "step %lld/%lld", (long long)e->step, (long long)e->steps);
    words(&l, text);
    if (!e->report->applied) words(&l, " | not finite, skipped");
    snprintf(text, sizeof text, " | %s left", clock_text(part, sizeof part, e->left));
    words(&l, text);
    snprintf(text, sizeof text, " | %s", score_text(part, sizeof part, p, e->report));
    words(&l, text);
    add_spark(&l, p);
    snprintf(text, sizeof text, " | %.1fk tok/s", per_second / 1e3);
    words(&l, text);
    words(&l, share_text(text, sizeof text, p, per_second));
    snprintf(text, sizeof text, " | %.0f MB", memory() / 1e6);
    words(&l, text);
    snprintf(text, sizeof text, " | lr %.2e | norm %.2f", e->report->rate,
             e->report->gradient_norm);
    words(&l, text);
    clear_line(p);
    fwrite(l.text, 1, l.used, stdout);
    p->open = true;
    p->columns = l.columns;
}

static void print_step(progress *p, const ht_event *e) {
    char score[64], left[32], share[64];
    double per_second = e->step_seconds > 0 ? (double)e->report->tokens / e->step_seconds : 0;
    printf("step %lld/%lld | %s | lr %.2e | norm %.2f | %.1f ms | %.1fk tok/s%s | %s left%s\n",
           (long long)e->step, (long long)e->steps, score_text(score, sizeof score, p, e->report),
           e->report->rate, e->report->gradient_norm, 1e3 * e->step_seconds, per_second / 1e3,
           share_text(share, sizeof share, p, per_second), clock_text(left, sizeof left, e->left),
           e->report->applied ? "" : " | not finite, skipped");
}

/* The step's loss into its stretch of the run. */
static void remember(progress *p, const ht_event *e) {
    int64_t at = e->steps > 0 ? (e->step - 1) * PROGRESS_SPARK / e->steps : 0;
    if (!isfinite(e->report->loss) || at < 0) return;
    if (at >= PROGRESS_SPARK) at = PROGRESS_SPARK - 1;
    p->loss[at] += e->report->loss;
    p->steps[at]++;
}

void progress_step(progress *p, const ht_event *e) {
    if (p->quiet) return;
    remember(p, e);
    double pause = p->terminal ? LIVE_SECONDS : PLAIN_SECONDS;
    bool due =
        e->elapsed - p->last >= pause || !e->report->applied || e->valid || e->step == e->steps;
    if (due && p->terminal) draw(p, e);
    if (due && !p->terminal) print_step(p, e);
    if (due) p->last = e->elapsed;
    if (e->valid) {
        char score[64];
        clear_line(p);
        printf("%sstep %lld  valid %s%s%s\n", cli_bold(stdout), (long long)e->step,
               score_text(score, sizeof score, p, e->valid), cli_plain(stdout),
               e->best ? "  (best so far)" : "");
        if (e->tired) puts("no better one for `patience` evaluations: the run ends");
    }
    fflush(stdout);
}

void progress_end(progress *p) {
    if (p->open) putchar('\n');
    p->open = false;
}
