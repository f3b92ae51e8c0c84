/*
 * The report as one HTML page: no script, font or picture that is not in it.
 */
#include "draw/chart.h"
#include "draw/picture.h"
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FINE 400  /* points of a pale line */
#define SMOOTH 60 /* points of a bold one */

static const char style[] =
    ":root{--back:#f6f7f9;--card:#fff;--ink:#1b2430;--soft:#5a6675;--rule:#dfe4ea;--accent:#1f5fb4}"
    "\n"
    "@media (prefers-color-scheme:dark){:root{--back:#0c1016;--card:#151b24;--ink:#e4e9f0;"
    "--soft:#98a5b5;--rule:#2a3442;--accent:#7cb0ff}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"
    "'Segoe UI',sans-serif}\n"
    "main{max-width:1180px;margin:0 auto;padding:20px 16px 60px}\n"
    "h1{font-size:24px;margin:6px 0 2px}h2{font-size:18px;margin:34px 0 12px}\n"
    "p{margin:4px 0}.soft,.note{color:var(--soft)}.note{font-size:14px}\n"
    ".grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));"
    "gap:14px}\n"
    ".card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:12px;"
    "min-width:0}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;"
    "margin:14px 0}\n"
    ".tile b{display:block;font-size:21px;line-height:1.2;font-variant-numeric:tabular-nums}\n"
    ".tile span{font-size:13px;color:var(--soft)}\n"
    ".wide{overflow-x:auto}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}\n"
    "th,td{padding:5px 12px 5px 0;text-align:left;border-bottom:1px solid var(--rule);"
    "white-space:nowrap}\nth{font-weight:600;color:var(--soft)}td.n,th.n{text-align:right}\n"
    "details{margin:8px 0}summary{cursor:pointer;font-weight:600}\n"
    ".settings{columns:3 260px;column-gap:28px;font-size:13px;margin-top:10px}.settings "
    "div{break-inside:avoid;"
    "display:flex;justify-content:space-between;gap:10px;border-bottom:1px solid var(--rule)}\n"
    ".settings .own{color:var(--accent);font-weight:600}\n"
    ".key{display:inline-block;width:18px;height:3px;border-radius:2px;margin-right:8px;"
    "vertical-align:middle}\n"
    ".confusion{width:100%;max-width:520px;height:auto}.confusion text{fill:var(--ink)}\n"
    ".confusion rect{fill:var(--accent)}\n"
    ".matrices{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:12px}\n"
    "figure{margin:0}.matrix{width:100%;height:auto;image-rendering:pixelated;border:1px solid "
    "var(--rule)}figcaption{font-size:13px;color:var(--soft)}\n";

/* ---- numbers ----------------------------------------------------------------------------- */

/* "1h 02m", "3m 05s", "12.3 s" */
static const char *duration(char out[32], double seconds) {
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, 32, "%ldh %02ldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(out, 32, "%ldm %02lds", s / 60, s % 60);
    else
        snprintf(out, 32, "%.1f s", seconds);
    return out;
}

static const char *count_text(char out[32], double x) {
    if (!isfinite(x))
        snprintf(out, 32, "-");
    else if (x >= 1e6)
        snprintf(out, 32, "%.2fM", x / 1e6);
    else if (x >= 1e4)
        snprintf(out, 32, "%.1fk", x / 1e3);
    else
        snprintf(out, 32, "%.0f", x);
    return out;
}

/* Accuracy in percent, or a language model's bits per token. */
static const char *score_text(char out[32], const report_run *r, int line) {
    if (line < 0)
        snprintf(out, 32, "-");
    else if (r->language)
        snprintf(out, 32, "%.4f bits", r->valid.at[COLUMN_LOSS][line] / log(2));
    else
        snprintf(out, 32, "%.2f %%", 100 * r->valid.at[COLUMN_ACCURACY][line]);
    return out;
}

/* ---- charts ------------------------------------------------------------------------------ */

/* A column thinned to at most `points` means; x and y from malloc. -1: out of memory. */
static int thin(double **x, double **y, const report_lines *lines, report_column column,
                double factor, int points) {
    int n = lines->count, out = 0;
    int each = (n + points - 1) / points;
    *x = malloc((size_t)(n + 1) * sizeof **x);
    *y = malloc((size_t)(n + 1) * sizeof **y);
    if (!*x || !*y) return -1;
    for (int i = 0; i < n; i += each) {
        double sx = 0, sy = 0, used = 0;
        for (int k = i; k < i + each && k < n; k++) {
            double v = lines->at[column][k];
            if (!isfinite(v)) continue;
            sx += lines->at[COLUMN_STEP][k];
            sy += v * factor;
            used++;
        }
        (*x)[out] = used ? sx / used : lines->at[COLUMN_STEP][i];
        (*y)[out++] = used ? sy / used : NAN;
    }
    return out;
}

typedef struct plot {
    chart c;
    double *own[4 * CHART_SERIES];
    int owned;
    bool starved;
} plot;

static void add_line(plot *p, const report_lines *lines, report_column column, double factor,
                     int points, chart_series s) {
    if (p->c.count == CHART_SERIES || p->owned + 2 > 4 * CHART_SERIES || lines->count == 0) return;
    double *x, *y;
    s.count = thin(&x, &y, lines, column, factor, points);
    s.x = p->own[p->owned++] = x;
    s.y = p->own[p->owned++] = y;
    if (s.count >= 0)
        p->c.series[p->c.count++] = s;
    else
        p->starved = true;
}

/* Training pale and smoothed, evaluations as dots. Several runs: one colour each, training dashed
 * where there are evaluations; one run: a colour for each of the two. */
static void add_run(plot *p, const report_run *r, int index, report_column column, double factor,
                    bool valid, bool alone) {
    bool many = r->steps.count > 2 * SMOOTH;
    if (many)
        add_line(p, &r->steps, column, factor, FINE,
                 (chart_series){.colour = index, .faint = true});
    add_line(p, &r->steps, column, factor, many ? SMOOTH : FINE,
             (chart_series){.name = !alone  ? r->name
                                    : valid ? "training"
                                            : NULL,
                            .colour = index,
                            .dashed = valid && !alone});
    if (valid)
        add_line(p, &r->valid, column, factor, FINE,
                 (chart_series){.name = alone ? "validation" : NULL,
                                .colour = alone ? 1 : index,
                                .dots = true});
}

static bool write_plot(FILE *out, const report_run *runs, int count, const char *title,
                       report_column column, double factor, bool valid, bool log_y) {
    plot p = {.c = {.title = title, .x_label = "step", .log_y = log_y}};
    for (int i = 0; i < count; i++) add_run(&p, &runs[i], i, column, factor, valid, count == 1);
    fputs("<div class=\"card\">", out);
    chart_write(out, &p.c);
    fputs("</div>\n", out);
    for (int i = 0; i < p.owned; i++) free(p.own[i]);
    return !p.starved;
}

static bool write_plots(FILE *out, const report_run *runs, int count) {
    bool language = false, classify = false;
    for (int i = 0; i < count; i++) {
        language |= runs[i].language;
        classify |= !runs[i].language;
    }
    fprintf(out,
            "<h2>Curves</h2>\n<p class=\"note\">Pale: single steps; %s: their mean over a stretch; "
            "with dots: validation.</p>\n<div class=\"grid2\">\n",
            count > 1 ? "dashed" : "bold");
    bool good = write_plot(out, runs, count, "Loss", COLUMN_LOSS, 1, true, false) &&
                (!classify ||
                 write_plot(out, runs, count, "Accuracy, %", COLUMN_ACCURACY, 100, true, false)) &&
                (!language || write_plot(out, runs, count, "Bits per token", COLUMN_LOSS,
                                         1 / log(2), true, false)) &&
                write_plot(out, runs, count, "Learning rate", COLUMN_RATE, 1, false, false) &&
                write_plot(out, runs, count, "Norm of the gradient", COLUMN_NORM, 1, false, true) &&
                write_plot(out, runs, count, "Tokens per second", COLUMN_TOKENS, 1, false, false);
    fputs("</div>\n", out);
    return good;
}

/* ---- tables ------------------------------------------------------------------------------ */

static void cell(FILE *out, const char *text, bool right) {
    fprintf(out, "<td%s>", right ? " class=\"n\"" : "");
    picture_escaped(out, text);
    fputs("</td>", out);
}

static void write_tile(FILE *out, const char *value, const char *label) {
    fputs("<div class=\"card tile\"><b>", out);
    picture_escaped(out, value);
    fputs("</b><span>", out);
    picture_escaped(out, label);
    fputs("</span></div>\n", out);
}

static void write_tiles(FILE *out, const report_run *r) {
    char text[96], a[32], steps[32];
    int best = report_best(r), last = r->steps.count - 1;
    fputs("<div class=\"tiles\">\n", out);
    if (best >= 0) {
        snprintf(text, sizeof text, "best validation, step %.0f", r->valid.at[COLUMN_STEP][best]);
        write_tile(out, score_text(a, r, best), text);
    }
    snprintf(a, sizeof a, "%.4f", r->steps.at[COLUMN_LOSS][last]);
    write_tile(out, a, "loss of the last step");
    snprintf(text, sizeof text, "steps of %s", report_setting(steps, sizeof steps, r, "steps"));
    write_tile(out, count_text(a, r->steps.at[COLUMN_STEP][last]), text);
    write_tile(out, duration(a, report_seconds(r)), "in steps");
    write_tile(out, count_text(a, r->throughput), "tokens per second, median");
    fputs("</div>\n", out);
}

static bool differs(const report_run *runs, int count, const char *key) {
    char a[96], b[96];
    for (int i = 1; i < count; i++)
        if (strcmp(report_setting(a, sizeof a, &runs[0], key),
                   report_setting(b, sizeof b, &runs[i], key)) != 0)
            return true;
    return false;
}

static void write_comparison(FILE *out, const report_run *runs, int count) {
    char a[96];
    fputs("<h2>Comparison</h2>\n<div class=\"card wide\"><table><thead><tr><th>run</th>"
          "<th class=\"n\">best validation</th><th class=\"n\">at step</th><th class=\"n\">last "
          "loss</th><th class=\"n\">steps</th><th class=\"n\">tokens/s</th><th "
          "class=\"n\">time</th>",
          out);
    const cJSON *key;
    cJSON_ArrayForEach(key, runs[0].config) if (differs(runs, count, key->string)) {
        fputs("<th class=\"n\">", out);
        picture_escaped(out, key->string);
        fputs("</th>", out);
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (int i = 0; i < count; i++) {
        const report_run *r = &runs[i];
        int best = report_best(r), last = r->steps.count - 1;
        fprintf(out, "<tr><td><span class=\"key k%d\"></span>", i % 8);
        picture_escaped(out, r->name);
        fputs("</td>", out);
        cell(out, score_text(a, r, best), true);
        cell(out, best < 0 ? "-" : count_text(a, r->valid.at[COLUMN_STEP][best]), true);
        snprintf(a, sizeof a, "%.4f", r->steps.at[COLUMN_LOSS][last]);
        cell(out, a, true);
        cell(out, count_text(a, r->steps.at[COLUMN_STEP][last]), true);
        cell(out, count_text(a, r->throughput), true);
        cell(out, duration(a, report_seconds(r)), true);
        cJSON_ArrayForEach(key, runs[0].config) if (differs(runs, count, key->string))
            cell(out, report_setting(a, sizeof a, r, key->string), true);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

/* What differs between runs stands out. */
static void write_settings(FILE *out, const report_run *runs, int count, int index) {
    const cJSON *key;
    char text[96];
    fprintf(out, "<details%s class=\"card\"><summary>", count == 1 ? " open" : "");
    picture_escaped(out, runs[index].name);
    fputs("</summary><div class=\"settings\">\n", out);
    cJSON_ArrayForEach(key, runs[index].config) {
        bool own = count > 1 && differs(runs, count, key->string);
        fprintf(out, "<div%s><span>", own ? " class=\"own\"" : "");
        picture_escaped(out, key->string);
        fputs("</span><span>", out);
        picture_escaped(out, report_setting(text, sizeof text, &runs[index], key->string));
        fputs("</span></div>\n", out);
    }
    fputs("</div></details>\n", out);
}

/* ---- what the model does on data --------------------------------------------------------- */

/* A name beside the matrix, as much of it as there is room for; `anchor` end: a row. */
static void write_name(FILE *out, const char *name, double x, double y, const char *anchor,
                       int most) {
    char part[64];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof part; n++) /* whole characters of UTF-8 */
        if (((unsigned char)name[n] & 0xC0) != 0x80 && most-- == 0) break;
    memcpy(part, name, n);
    part[n] = '\0';
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    picture_escaped(out, part);
    fputs("</text>\n", out);
}

static void write_cell(FILE *out, const score *s, int64_t i, int64_t j) {
    double side = 480.0 / (double)s->classes, x = 50 + (double)j * side, y = 44 + (double)i * side;
    double count = s->matrix[i * s->classes + j], share = s->is[i] > 0 ? count / s->is[i] : 0;
    fprintf(out,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill-opacity=\"%.3f\">"
            "<title>label ",
            x, y, side - 1, side - 1, 0.04 + 0.9 * share);
    picture_escaped(out, s->names[i]);
    fputs(", answer ", out);
    picture_escaped(out, s->names[j]);
    fprintf(out, ": %.0f (%.1f %%)</title></rect>\n", count, 100 * share);
    if (s->classes <= 12 && count > 0)
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n",
                x + 0.5 * side, y + 0.5 * side + 4, count);
}

static void write_confusion(FILE *out, const score *s) {
    double side = 480.0 / (double)s->classes;
    int most = (int)(side / 8) < 3 ? 3 : (int)(side / 8);
    fputs("<svg class=\"confusion\" viewBox=\"0 0 540 540\" role=\"img\" aria-label=\"confusion "
          "matrix\" xmlns=\"http://www.w3.org/2000/svg\" font-size=\"12\">\n"
          "<text x=\"300\" y=\"14\" text-anchor=\"middle\">answer</text>\n"
          "<text x=\"4\" y=\"310\" transform=\"rotate(-90 12 300)\">label</text>\n",
          out);
    for (int64_t i = 0; i < s->classes; i++) {
        if (s->classes <= 20) {
            write_name(out, s->names[i], 44, 50 + ((double)i + 0.6) * side, "end", 4);
            write_name(out, s->names[i], 50 + ((double)i + 0.5) * side, 36, "middle", most);
        }
        for (int64_t j = 0; j < s->classes; j++) write_cell(out, s, i, j);
    }
    fputs("</svg>\n", out);
}

static void percent_cell(FILE *out, double x) {
    char text[32];
    snprintf(text, sizeof text, isnan(x) ? "-" : "%.2f", 100 * x);
    cell(out, text, true);
}

/* Precision, recall and F1 of the first classes. */
static void write_classes(FILE *out, const score *s) {
    char text[32];
    fputs("<table><thead><tr><th>label</th><th class=\"n\">items</th><th class=\"n\">precision, "
          "%</th><th class=\"n\">recall, %</th><th class=\"n\">F1, %</th></tr></thead>\n<tbody>\n",
          out);
    for (int64_t k = 0; k < s->classes && k < REPORT_CLASSES; k++) {
        fputs("<tr>", out);
        cell(out, s->names[k], false);
        cell(out, count_text(text, s->is[k]), true);
        percent_cell(out, score_precision(s, k));
        percent_cell(out, score_recall(s, k));
        percent_cell(out, score_f1(s, k));
        fputs("</tr>\n", out);
    }
    fputs("<tr><td>mean</td><td></td><td></td><td></td>", out);
    percent_cell(out, score_macro_f1(s));
    fputs("</tr>\n</tbody></table>\n", out);
    if (s->classes > REPORT_CLASSES)
        fprintf(out, "<p class=\"note\">and %lld labels more</p>\n",
                (long long)(s->classes - REPORT_CLASSES));
}

static void write_eval(FILE *out, const report_run *r) {
    const report_eval *e = &r->eval;
    fputs("<div class=\"card\"><p><b>", out);
    picture_escaped(out, r->name);
    fputs("</b></p>\n", out);
    if (!e->done) {
        fputs("<p class=\"note\">not evaluated: ", out);
        picture_escaped(out, e->problem);
        fputs("</p>\n", out);
    } else if (e->language) {
        chart c = {.title = "Bits per token, by position", .x_label = "position"};
        c.series[c.count++] = (chart_series){
            .x = e->position, .y = e->bits, .count = e->positions, .dots = e->positions <= 32};
        fprintf(out, "<p>%.4f bits per token over %lld tokens</p>\n", e->loss / log(2),
                (long long)e->items);
        chart_write(out, &c);
    } else {
        double error = sqrt(e->accuracy * (1 - e->accuracy) / (double)e->items);
        fprintf(out, "<p>accuracy %.2f &plusmn; %.2f %% of %lld items, loss %.4f</p>\n",
                100 * e->accuracy, 100 * error, (long long)e->items, e->loss);
        if (e->linear)
            fprintf(out,
                    "<p>the linear model alone %.2f %%, the Transformer alone %.2f %%; validation "
                    "chose %s</p>\n",
                    100 * e->alone[0].correct / e->alone[0].items,
                    100 * e->alone[1].correct / e->alone[1].items, e->chosen);
        write_classes(out, &e->classes);
        if (e->classes.classes <= REPORT_CLASSES) write_confusion(out, &e->classes);
    }
    fputs("</div>\n", out);
}

/* ---- the page ---------------------------------------------------------------------------- */

static void write_head(FILE *out, const report_run *runs, int count) {
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n<title>",
          out);
    picture_escaped(out, runs[0].name);
    if (count > 1) fprintf(out, " and %d more", count - 1);
    fputs(" - htransformer report</title>\n<style>\n", out);
    chart_style(out);
    fputs(style, out);
    fputs("</style></head>\n<body><main>\n<p class=\"soft\">htransformer report</p>\n<h1>", out);
    for (int i = 0; i < count; i++) {
        if (i) fputs(i + 1 < count ? ", " : " and ", out);
        picture_escaped(out, runs[i].name);
    }
    fputs("</h1>\n", out);
}

/* One line that says what was trained. */
static void write_summary(FILE *out, const report_run *r) {
    static const char *const keys[] = {"task",  "attention", "query", "layers",
                                       "width", "heads",     "block", "length"};
    char text[96];
    fputs("<p class=\"soft\">", out);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        fprintf(out, "%s%s ", i ? " &middot; " : "", keys[i]);
        picture_escaped(out, report_setting(text, sizeof text, r, keys[i]));
    }
    fputs("</p>\n", out);
    if (r->damaged)
        fprintf(out, "<p class=\"note\">%d damaged lines of the log were left out.</p>\n",
                r->damaged);
}

bool report_page(FILE *out, const report_run *runs, int count, const report_values *v,
                 cli_error *error) {
    write_head(out, runs, count);
    if (count == 1) write_summary(out, &runs[0]);
    if (count == 1) write_tiles(out, &runs[0]);
    if (count > 1) write_comparison(out, runs, count);
    if (!write_plots(out, runs, count)) return cli_fail(error, "out of memory");
    if (v->evaluate || v->data) {
        fputs("<h2>On data</h2>\n<div class=\"grid2\">\n", out);
        for (int i = 0; i < count; i++) write_eval(out, &runs[i]);
        fputs("</div>\n", out);
    }
    if (v->text) {
        fputs("<h2>Attention</h2>\n<p class=\"note\">", out);
        picture_escaped(out, v->text);
        fputs("</p>\n", out);
        for (int i = 0; i < count; i++) {
            fputs("<div class=\"card\"><p><b>", out);
            picture_escaped(out, runs[i].name);
            fputs("</b></p>\n", out);
            if (!report_attention(out, &runs[i], v, error)) return false;
            fputs("</div>\n", out);
        }
    }
    fputs("<h2>Settings</h2>\n", out);
    for (int i = 0; i < count; i++) write_settings(out, runs, count, i);
    fprintf(out, "<p class=\"note\">Written by htransformer %s.</p>\n</main>\n", ht_version());
    chart_script(out);
    fputs("</body></html>\n", out);
    return true;
}
