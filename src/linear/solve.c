/*
 * Logistic regression by dual coordinate descent (Yu, Huang and Lin 2011): row i has a number
 * a_i in (0, cost), w is the sum of y_i a_i x_i, and one row after the other is made right with the
 * others held, in an order that a seed makes. Where all are right the gradient of the primal,
 * a_i = cost / (1 + exp(margin_i)), is right, too.
 */
#include <math.h>
#include <string.h>

#include "core/philox.h"
#include "linear/linear.h"

enum { NEWTON = 50 };
#define ENOUGH 0.02 /* of what is left of a margin */

typedef struct solver {
    hti_linear_work at;
    const hti_matrix *x;
    int32_t class;
    int passes; /* at most */
    double cost;
} solver;

static double margin_of(const solver *s, const hti_gram *g, int64_t n) {
    double sum = s->at.w[s->x->features].weight;
    for (int64_t i = 0; i < n; i++) sum += (double)g[i].value * s->at.w[g[i].id].weight;
    return sum;
}

static void move(solver *s, const hti_gram *g, int64_t n, double step) {
    for (int64_t i = 0; i < n; i++) {
        hti_linear_weight *w = &s->at.w[g[i].id];
        w->weight += (float)(step * (double)g[i].value * w->square);
    }
    hti_linear_weight *bias = &s->at.w[s->x->features];
    bias->weight += (float)(step * bias->square);
}

/* The root of t + margin + square * (cost / (1 + exp(-t)) - dual), which rises with t by at least
 * 1: Newton's steps, and the middle where they leave the bracket. */
static double root(double margin, double square, double cost, double odds) {
    double dual = cost / (1 + exp(-odds)), t = isfinite(odds) ? odds : 0;
    double low = -HUGE_VAL, high = HUGE_VAL;
    for (int i = 0; i < NEWTON; i++) {
        double p = 1 / (1 + exp(-t)), f = t + margin + square * (cost * p - dual);
        if (fabs(f) < 1e-9) break;
        if (f > 0) high = fmin(high, t), low = fmax(low, t - f);
        if (f < 0) low = fmax(low, t), high = fmin(high, t - f);
        t -= f / (1 + square * cost * p * (1 - p));
        if (t <= low || t >= high) t = 0.5 * (low + high);
    }
    return t;
}

/* What was wrong with the row: the gradient of the dual. */
static double visit(solver *s, int64_t row) {
    const hti_matrix *x = s->x;
    const hti_gram *g = x->list + x->starts[row];
    int64_t n = x->starts[row + 1] - x->starts[row];
    double sign = x->labels[row] == s->class ? 1 : -1, odds = s->at.odds[row];
    double margin = sign * margin_of(s, g, n);
    double t = root(margin, s->at.square[row], s->cost, odds);
    move(s, g, n, sign * s->cost * (1 / (1 + exp(-t)) - 1 / (1 + exp(-odds))));
    s->at.odds[row] = t;
    return fabs(odds + margin);
}

static void shuffle(solver *s, int pass) {
    for (int64_t i = s->x->rows - 1; i > 0; i--) {
        hti_philox w = hti_philox_draw(0x11EA5, (uint32_t)pass, 0, (uint32_t)i, 0);
        int64_t k = (int64_t)(((uint64_t)w.w[0] << 32 | w.w[1]) % (uint64_t)(i + 1));
        int32_t swap = s->at.order[i];
        s->at.order[i] = s->at.order[k];
        s->at.order[k] = swap;
    }
}

static void descend(solver *s) {
    const hti_matrix *x = s->x;
    for (int64_t i = 0; i < x->rows; i++) {
        double sum = s->at.w[x->features].square;
        for (int64_t k = x->starts[i]; k < x->starts[i + 1]; k++)
            sum += (double)x->list[k].value * x->list[k].value * s->at.w[x->list[k].id].square;
        s->at.square[i] = sum;
        s->at.odds[i] = -HUGE_VAL;
        s->at.order[i] = (int32_t)i;
    }
    for (int64_t i = 0; i <= x->features; i++) s->at.w[i].weight = 0;
    for (int pass = 0; pass < s->passes; pass++) {
        double worst = 0;
        shuffle(s, pass);
        for (int64_t i = 0; i < x->rows; i++) worst = fmax(worst, visit(s, s->at.order[i]));
        if (worst < ENOUGH) break;
    }
}

void hti_linear_solve(const hti_linear_work *work, const hti_matrix *x, int32_t class, int passes,
                      double cost) {
    solver s = {.at = *work, .x = x, .class = class, .passes = passes, .cost = cost};
    descend(&s);
}

ht_status hti_linear_work_make(hti_linear_work *out, ht_context *ctx, const hti_matrix *x) {
    size_t rows = (size_t)x->rows;
    out->w = hti_host_alloc(ctx, sizeof *out->w * (size_t)(x->features + 1));
    out->odds = hti_host_alloc(ctx, sizeof *out->odds * rows);
    out->square = hti_host_alloc(ctx, sizeof *out->square * rows);
    out->order = hti_host_alloc(ctx, sizeof *out->order * rows);
    CHECK(ctx, out->w && out->odds && out->square && out->order, HT_NOMEM,
          "out of memory: a linear model of %zu texts", rows);
    return HT_OK;
}

void hti_linear_work_free(hti_linear_work *work, ht_context *ctx) {
    hti_host_free(ctx, work->w);
    hti_host_free(ctx, work->odds);
    hti_host_free(ctx, work->square);
    hti_host_free(ctx, work->order);
}
