/*
 * The lines of a run.
 */
#include "progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLAIN_SECONDS 2.0 /* plain lines come at most this often */
#define BAR 24

void progress_begin(progress *p, const ht_config *config, bool quiet) {
    *p = (progress){.config = config, .quiet = quiet, .last = -PLAIN_SECONDS};
    const char *term = getenv("TERM");
    p->terminal = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
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

void progress_header(const ht_model *model, const ht_trainer *trainer, const ht_data *train,
                     const ht_data *valid) {
    ht_config c = HT_CONFIG_INIT;
    if (ht_model_get_config(model, &c) != HT_OK) return;
    const char *bold = cli_bold(stdout), *plain = cli_plain(stdout);
    printf("%smodel%s\n  %-10s %lld parameters in %lld tensors\n", bold, plain,
           ht_config_choice("task", (int)c.task), (long long)ht_model_parameters(model),
           (long long)ht_model_tensors(model));
    printf("  %-10s %lld layers, width %lld, %lld heads, hidden %lld\n", "blocks",
           (long long)c.layers, (long long)c.width, (long long)c.heads, (long long)c.hidden);
    printf("  %-10s %s, query %s, block %lld, length %lld\n", "attention",
           ht_config_choice("attention", (int)c.attention), ht_config_choice("query", (int)c.query),
           (long long)c.block, (long long)c.length);
    printf("  %-10s %.1f MB besides the weights\n", "memory",
           (double)ht_trainer_bytes(trainer) / 1e6);
    printf("%sdata%s\n", bold, plain);
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

/* loss and accuracy, or bits per byte */
static const char *score_text(char *out, size_t bytes, const progress *p, const ht_report *r) {
    if (p->config->task == HT_TASK_LANGUAGE)
        snprintf(out, bytes, "loss %.4f | %.4f bits/byte", r->loss, r->loss / log(2));
    else
        snprintf(out, bytes, "loss %.4f | acc %.3f", r->loss, r->accuracy);
    return out;
}

static void clear_line(progress *p) {
    if (p->open) printf("\r\033[K");
    p->open = false;
}

static void print_bar(const ht_event *e) {
    int full = e->steps > 0 ? (int)(BAR * e->step / e->steps) : 0;
    printf("\r\033[K[");
    for (int i = 0; i < BAR; i++) putchar(i < full ? '=' : ' ');
    printf("] ");
}

static void print_step(progress *p, const ht_event *e) {
    char score[64], left[32];
    double per_second = e->step_seconds > 0 ? (double)e->report->tokens / e->step_seconds : 0;
    if (p->terminal) print_bar(e);
    printf("step %lld/%lld | %s | lr %.2e | norm %.2f | %.1f ms | %.1fk tok/s | %s left%s",
           (long long)e->step, (long long)e->steps, score_text(score, sizeof score, p, e->report),
           e->report->rate, e->report->gradient_norm, 1e3 * e->step_seconds, per_second / 1e3,
           clock_text(left, sizeof left, e->left),
           e->report->applied ? "" : " | not finite, skipped");
    p->open = p->terminal;
    if (!p->terminal) putchar('\n');
}

void progress_step(progress *p, const ht_event *e) {
    if (p->quiet) return;
    int due = e->elapsed - p->last >= PLAIN_SECONDS || !e->report->applied || e->valid ||
              e->step == e->steps;
    if (p->terminal || due) {
        print_step(p, e);
        p->last = e->elapsed;
    }
    if (e->valid) {
        char score[64];
        clear_line(p);
        printf("%sstep %lld  valid %s%s%s\n", cli_bold(stdout), (long long)e->step,
               score_text(score, sizeof score, p, e->valid), cli_plain(stdout),
               e->best ? "  (best so far)" : "");
    }
    fflush(stdout);
}

void progress_end(progress *p) {
    if (p->open) putchar('\n');
    p->open = false;
}
