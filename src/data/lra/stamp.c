/*
 * Drawing paddles: lines in integers, discs, Lanczos' filter with bytes between its two passes.
 */
#include "data/lra/stamp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

void hti_stamp_move(int *dy, int *dx, int from, double angle, double d) {
    *dy = (int)ceil(from + d * sin(angle)) - from;
    *dx = (int)ceil(from + d * cos(angle)) - from;
}

/* ---- Lanczos ---- */

static double lanczos(double x) {
    if (x <= -3 || x >= 3) return 0;
    if (x == 0) return 1;
    return 3 * sin(pi * x) * sin(pi * x / 3) / (pi * pi * x * x);
}

hti_lanczos hti_lanczos_at(int in, int out, int index) {
    double scale = (double)in / out, wide = scale > 1 ? scale : 1, centre = (index + 0.5) * scale;
    int first = (int)(centre - 3 * wide + 0.5), last = (int)(centre + 3 * wide + 0.5);
    hti_lanczos r = {.first = first > 0 ? first : 0};
    if (last > in) last = in;
    r.count = last - r.first < HTI_LANCZOS_TAPS ? last - r.first : HTI_LANCZOS_TAPS;
    double w[HTI_LANCZOS_TAPS], sum = 0;
    for (int i = 0; i < r.count; i++) {
        w[i] = lanczos((r.first + i - centre + 0.5) / wide);
        sum += w[i];
    }
    for (int i = 0; i < r.count; i++)
        r.weight[i] = (int32_t)lround(w[i] / sum * (1 << HTI_LANCZOS_BITS));
    return r;
}

typedef struct canvas {
    uint8_t at[HTI_CANVAS_SIDE][HTI_CANVAS_SIDE];
} canvas;

/* Both passes, rows first; the picture between them is bytes, too. */
static void shrink(uint8_t out[HTI_STAMP_SIDE][HTI_STAMP_SIDE], const canvas *from, int in_side,
                   int out_side) {
    uint8_t rows[HTI_CANVAS_SIDE][HTI_STAMP_SIDE];
    hti_lanczos f[HTI_STAMP_SIDE];
    for (int i = 0; i < out_side; i++) f[i] = hti_lanczos_at(in_side, out_side, i);
    for (int y = 0; y < in_side; y++)
        for (int x = 0; x < out_side; x++) {
            int64_t sum = 0;
            for (int i = 0; i < f[x].count; i++)
                sum += (int64_t)from->at[y][f[x].first + i] * f[x].weight[i];
            rows[y][x] = hti_lanczos_byte(sum);
        }
    for (int y = 0; y < out_side; y++)
        for (int x = 0; x < out_side; x++) {
            int64_t sum = 0;
            for (int i = 0; i < f[y].count; i++)
                sum += (int64_t)rows[f[y].first + i][x] * f[y].weight[i];
            out[y][x] = hti_lanczos_byte(sum);
        }
}

/* ---- lines ---- */

static void thin_line(canvas *c, int y0, int x0, int y1, int x1) {
    int dx = abs(x1 - x0), dy = abs(y1 - y0), sx = x1 < x0 ? -1 : 1, sy = y1 < y0 ? -1 : 1;
    int steps = dx > dy ? dx : dy, error = -steps;
    for (int i = 0, y = y0, x = x0; i <= steps; i++) {
        c->at[y][x] = 255;
        error += 2 * (dx > dy ? dy : dx);
        int turn = error >= 0;
        if (turn) error -= 2 * steps;
        if (dx > dy || turn) x += sx;
        if (dx <= dy || turn) y += sy;
    }
}

/* A line of three or more pixels is the quadrilateral of the two ends moved to both sides, corners
 * at whole pixels, borders included. */
static void thick_line(canvas *c, int y0, int x0, int y1, int x1, int width) {
    double dx = x1 - x0, dy = y1 - y0, long_side = hypot(dx, dy), short_side = (width - 1) / 2.0;
    int ox = (int)floor(short_side * dy / long_side + 0.5);
    int oy = (int)floor(short_side * dx / long_side + 0.5);
    int px[4] = {x0 - ox, x1 - ox, x1 + ox, x0 + ox}, py[4] = {y0 + oy, y1 + oy, y1 - oy, y0 - oy};
    for (int y = 0; y < HTI_CANVAS_SIDE; y++) {
        double left = 1e9, right = -1e9;
        for (int i = 0; i < 4; i++) {
            int ax = px[i], ay = py[i], bx = px[(i + 1) % 4], by = py[(i + 1) % 4];
            if ((y < ay && y < by) || (y > ay && y > by)) continue;
            double low = ay == by ? fmin(ax, bx) : ax + (double)(bx - ax) * (y - ay) / (by - ay);
            double high = ay == by ? fmax(ax, bx) : low;
            left = fmin(left, low);
            right = fmax(right, high);
        }
        for (int x = (int)floor(left + 0.5); x <= (int)ceil(right - 0.5); x++)
            if (x >= 0 && x < HTI_CANVAS_SIDE) c->at[y][x] = 255;
    }
}

static void grow(canvas *out, const canvas *from, int side, int radius) {
    *out = *from;
    for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++) {
            if (!from->at[y][x]) continue;
            for (int dy = -radius; dy <= radius; dy++)
                for (int dx = -radius; dx <= radius; dx++) {
                    int v = y + dy, u = x + dx;
                    if (dy * dy + dx * dx > radius * radius) continue;
                    if (v >= 0 && v < side && u >= 0 && u < side) out->at[v][u] = 255;
                }
        }
}

void hti_stamp_draw(hti_stamp *out, const hti_paddle *p, double angle) {
    canvas line = {{{0}}}, wide;
    int half = p->length + p->thickness_up + p->margin, middle = half * p->scale, dy, dx;
    int side = 2 * middle + 1;
    memset(out, 0, sizeof *out);
    out->half = half;
    hti_stamp_move(&dy, &dx, middle, angle, p->length * p->scale);
    if (p->width < 3)
        thin_line(&line, middle, middle, middle + dy, middle + dx);
    else
        thick_line(&line, middle, middle, middle + dy, middle + dx, p->width);
    grow(&wide, &line, side, p->margin * p->scale);
    shrink(out->stroke, &line, side, 2 * half + 1);
    shrink(out->mask, &wide, side, 2 * half + 1);
}
