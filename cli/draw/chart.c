/*
 * Charts: the range of the numbers, round ticks, lines, a legend.
 */
#include "draw/chart.h"

#include "draw/picture.h"

#include <math.h>
#include <string.h>

#define WIDTH 640
#define HEIGHT 300
#define LEFT 62
#define RIGHT 14
#define TOP 34
#define BOTTOM 44

/* One direction: numbers (or their logarithms) from low to high go to pixels from a to b. */
typedef struct axis {
    double low, high, a, b;
    bool log;
} axis;

static double value(const axis *x, double number) { return x->log ? log10(number) : number; }

static bool usable(const axis *x, double number) {
    return isfinite(number) && (!x->log || number > 0);
}

static double place(const axis *x, double number) {
    return x->a + (value(x, number) - x->low) / (x->high - x->low) * (x->b - x->a);
}

/* The distance of ticks, 1, 2 or 5 times a power of ten, about `count` of them. */
static double tick_step(const axis *x, int count) {
    double raw = (x->high - x->low) / count, power = pow(10, floor(log10(raw)));
    double lead = raw / power;
    double step = (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10) * power;
    return x->log && step < 1 ? 1 : step;
}

/* Where the numbers of all lines lie; false: there are none. */
static bool range(axis *x, const chart *c, bool vertical) {
    x->low = HUGE_VAL, x->high = -HUGE_VAL;
    for (int s = 0; s < c->count; s++)
        for (int i = 0; i < c->series[s].count; i++) {
            double number = vertical ? c->series[s].y[i] : c->series[s].x[i];
            if (!usable(x, number)) continue;
            x->low = fmin(x->low, value(x, number));
            x->high = fmax(x->high, value(x, number));
        }
    if (x->low > x->high) return false;
    if (x->high - x->low < 1e-12 * fmax(1e-300, fabs(x->high))) {
        double pad = x->log ? 0.5 : x->high == 0 ? 1 : 0.1 * fabs(x->high);
        x->low -= pad, x->high += pad;
    }
    if (!vertical) return true;
    double step = tick_step(x, 5);
    if (x->log && x->high - x->low < 1) step = 0.5; /* less than a decade: do not round far out */
    x->low = floor(x->low / step + 1e-9) * step;
    x->high = ceil(x->high / step - 1e-9) * step;
    return true;
}

/* 1200000 is "1.2M", 0.0004 is "4e-4". */
static void label(char *out, size_t bytes, double number) {
    double size = fabs(number);
    if (size >= 1e9 || (size > 0 && size < 1e-3)) {
        snprintf(out, bytes, "%.3g", number);
        char *e = strchr(out, 'e'), *rest = e ? e + 1 : NULL;
        if (rest) { /* "1e-04" is shorter as "1e-4" */
            char sign = *rest == '-' ? '-' : 0, *digits = rest + 1;
            while (digits[0] == '0' && digits[1]) digits++;
            if (sign) *rest++ = sign;
            memmove(rest, digits, strlen(digits) + 1);
        }
    } else if (size >= 1e6) {
        snprintf(out, bytes, "%.4gM", number / 1e6);
    } else if (size >= 1e4) {
        snprintf(out, bytes, "%.4gk", number / 1e3);
    } else {
        snprintf(out, bytes, "%.4g", number);
    }
}

static void write_tick(FILE *out, const axis *x, bool vertical, double number) {
    char text[32];
    double at = place(x, number);
    label(text, sizeof text, number);
    if (vertical)
        fprintf(out,
                "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%s</text>\n",
                LEFT, at, WIDTH - RIGHT, LEFT - 8, at + 4, text);
    else
        fprintf(out,
                "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text class=\"tick\" x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%s</text>\n",
                at, TOP, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 17, text);
}

static void write_ticks(FILE *out, const axis *x, bool vertical) {
    double step = tick_step(x, vertical ? 5 : 6), slack = 1e-9 * (x->high - x->low);
    int written = 0;
    for (double t = ceil(x->low / step - 1e-9) * step; t <= x->high + slack; t += step) {
        double number = x->log ? pow(10, t) : fabs(t) < slack ? 0 : t;
        write_tick(out, x, vertical, number);
        written++;
    }
    if (written > 1 || !x->log) return;
    for (int k = 2; k <= 9; k++) /* less than a decade: the numbers in between */
        for (double d = floor(x->low); d <= x->high; d++)
            if (d + log10(k) >= x->low && d + log10(k) <= x->high && (k == 2 || k == 3 || k == 5))
                write_tick(out, x, vertical, k * pow(10, d));
}

static void write_series(FILE *out, const axis *x, const axis *y, const chart_series *s) {
    bool open = false;
    fprintf(out, "<path class=\"line c%d%s%s\"", s->colour % 8, s->faint ? " faint" : "",
            s->dashed ? " dashed" : "");
    if (!s->faint) {
        fputs(" data-name=\"", out);
        picture_escaped(out, s->name ? s->name : "");
        fputc('"', out);
    }
    fputs(" d=\"", out);
    for (int i = 0; i < s->count; i++) {
        bool good = usable(x, s->x[i]) && usable(y, s->y[i]);
        if (good)
            fprintf(out, "%c%.1f %.1f", open ? 'L' : 'M', place(x, s->x[i]), place(y, s->y[i]));
        open = good;
    }
    fputs("\"/>\n", out);
    for (int i = 0; i < s->count && (s->dots || s->count == 1); i++) {
        if (!usable(x, s->x[i]) || !usable(y, s->y[i])) continue;
        fprintf(out, "<circle class=\"dot c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>",
                s->colour % 8, place(x, s->x[i]), place(y, s->y[i]));
        if (s->name) picture_escaped(out, s->name);
        fprintf(out, " %.6g: %.4g</title></circle>\n", s->x[i], s->y[i]);
    }
}

/* Names at the upper edge, from the right to the left. */
static void write_legend(FILE *out, const chart *c) {
    double x = WIDTH - RIGHT;
    for (int s = c->count - 1; s >= 0; s--) {
        const chart_series *line = &c->series[s];
        if (!line->name) continue;
        x -= 7.4 * (double)strlen(line->name);
        if (x < 150) break; /* the rest is in the page's table */
        fprintf(out, "<text class=\"tick legend\" x=\"%.1f\" y=\"20\">", x);
        picture_escaped(out, line->name);
        fprintf(out, "</text><path class=\"line c%d%s\" d=\"M%.1f 16h14\"/>\n", line->colour % 8,
                line->dashed ? " dashed" : "", x - 19);
        x -= 34;
    }
}

static void write_axis(FILE *out, const char *name, const axis *x) {
    fprintf(out, " data-%s=\"%g %g %.9g %.9g %d\"", name, x->a, x->b, x->low, x->high, x->log);
}

void chart_write(FILE *out, const chart *c) {
    axis x = {.a = LEFT, .b = WIDTH - RIGHT, .log = c->log_x};
    axis y = {.a = HEIGHT - BOTTOM, .b = TOP, .log = c->log_y};
    bool any = range(&x, c, false) && range(&y, c, true);
    fprintf(out, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
            HEIGHT);
    picture_escaped(out, c->title);
    fputc('"', out);
    if (any) { /* for chart_script: from pixels back to numbers */
        write_axis(out, "x", &x);
        write_axis(out, "y", &y);
    }
    fputs(" xmlns=\"http://www.w3.org/2000/svg\">\n<text class=\"title\" x=\"8\" y=\"21\">", out);
    picture_escaped(out, c->title);
    fputs("</text>\n", out);
    if (any) {
        if (c->x_points)
            for (int i = 0; i < c->series[0].count; i++)
                write_tick(out, &x, false, c->series[0].x[i]);
        else
            write_ticks(out, &x, false);
        write_ticks(out, &y, true);
        fprintf(out, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, HEIGHT - BOTTOM,
                WIDTH - RIGHT);
        for (int s = 0; s < c->count; s++) write_series(out, &x, &y, &c->series[s]);
        write_legend(out, c);
    } else {
        fprintf(out, "<text class=\"tick\" x=\"%d\" y=\"%d\">no numbers</text>\n", LEFT,
                HEIGHT / 2);
    }
    fprintf(out, "<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">", WIDTH / 2,
            HEIGHT - 8);
    picture_escaped(out, c->x_label);
    fputs("</text>\n</svg>\n", out);
}

/* Eight colours that stay apart for most eyes, for a light and for a dark page. */
static void write_colours(FILE *out, const char *const *colours) {
    for (int i = 0; i < 8; i++)
        fprintf(out, ".c%d{stroke:%s}.dot.c%d{fill:%s}.k%d{background:%s}\n", i, colours[i], i,
                colours[i], i, colours[i]);
}

void chart_style(FILE *out) {
    static const char *const light[] = {"#1f5fb4", "#c2410c", "#15803d", "#7e22ce",
                                        "#0e7490", "#a16207", "#be185d", "#475569"};
    static const char *const dark[] = {"#7cb0ff", "#fb923c", "#4ade80", "#c4a1ff",
                                       "#5fd4e8", "#eac54f", "#f78bc0", "#a9b6c9"};
    fputs(".chart{width:100%;height:auto;display:block;color:#1b2430;font-family:system-ui,"
          "sans-serif}\n"
          ".chart text{fill:currentColor}\n.chart .title{font-size:15px;font-weight:600}\n"
          ".chart .tick{font-size:12px;opacity:.8}\n"
          ".chart .grid{stroke:currentColor;stroke-width:1;opacity:.12;fill:none}\n"
          ".chart .axis{stroke:currentColor;stroke-width:1;opacity:.5;fill:none}\n"
          ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n"
          ".faint{stroke-width:1;opacity:.3}\n.dashed{stroke-dasharray:5 4}\n.dot{stroke:none}\n",
          out);
    write_colours(out, light);
    fputs("@media (max-width:600px){.chart .tick{font-size:18px}.chart .title{font-size:20px}"
          ".chart .legend{font-size:14px}.line{stroke-width:2.6}}\n",
          out);
    fputs("@media (prefers-color-scheme:dark){.chart{color:#e4e9f0}\n", out);
    write_colours(out, dark);
    fputs("}\n", out);
}

void chart_script(FILE *out) {
    static const char script[] =
        "<script>\n"
        "for (const svg of document.querySelectorAll('svg.chart[data-x]')) {\n"
        "  const axis = name => {\n"
        "    const [a, b, low, high, log] = svg.dataset[name].split(' ').map(Number);\n"
        "    return p => { const v = low + (p - a) / (b - a) * (high - low); return log ? 10 ** v "
        ": v; };\n"
        "  };\n"
        "  const x = axis('x'), y = axis('y'), ns = 'http://www.w3.org/2000/svg';\n"
        "  const lines = [...svg.querySelectorAll('path[data-name]')].map(path => ({\n"
        "    name: path.dataset.name,\n"
        "    points: [...path.getAttribute('d').matchAll(/[ML]([-0-9.]+) ([-0-9.]+)/g)]\n"
        "      .map(m => [Number(m[1]), Number(m[2])])})).filter(line => line.points.length);\n"
        "  const rule = svg.appendChild(document.createElementNS(ns, 'path'));\n"
        "  const text = svg.appendChild(document.createElementNS(ns, 'text'));\n"
        "  rule.setAttribute('class', 'axis');\n"
        "  text.setAttribute('class', 'tick read');\n"
        "  text.setAttribute('y', 50);\n"
        "  const short = v => Number(v.toPrecision(4)).toString();\n"
        "  svg.addEventListener('pointermove', event => {\n"
        "    const box = svg.getBoundingClientRect(), width = svg.viewBox.baseVal.width;\n"
        "    const at = (event.clientX - box.left) / box.width * width;\n"
        "    let here = null;\n"
        "    const said = lines.map(line => {\n"
        "      const near = line.points.reduce((p, q) =>\n"
        "        Math.abs(q[0] - at) < Math.abs(p[0] - at) ? q : p);\n"
        "      here = here === null ? near[0] : here;\n"
        "      return (line.name + ' ' + short(y(near[1]))).trim();\n"
        "    });\n"
        "    if (here === null) return;\n"
        "    rule.setAttribute('d', 'M' + here + ' 34V256');\n"
        "    text.setAttribute('x', here > width / 2 ? here - 6 : here + 6);\n"
        "    text.setAttribute('text-anchor', here > width / 2 ? 'end' : 'start');\n"
        "    text.textContent = Math.round(x(here)) + ': ' + said.join(', ');\n"
        "  });\n"
        "  svg.addEventListener('pointerleave', () => {\n"
        "    rule.removeAttribute('d');\n"
        "    text.textContent = '';\n"
        "  });\n"
        "}\n"
        "</script>\n";
    fputs(script, out);
}

void chart_file(FILE *out, const chart *c) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n<style>",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    chart_style(out);
    fputs(".back{fill:#fff}@media (prefers-color-scheme:dark){.back{fill:#10151c}}</style>\n"
          "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n",
          out);
    chart_write(out, c);
    fputs("</svg>\n", out);
}
