/*
 * Fourth-order central differences at two step sizes.
 */
#include "finite.h"

#include <math.h>
#include <string.h>

#include "problem.h"

typedef struct line {
    double *x;
    const double *start, *direction;
    int64_t n, at;
    double (*f)(void *);
    void *user;
} line;

static double value_at(const line *l, double step) {
    if (l->direction) {
        for (int64_t i = 0; i < l->n; i++) l->x[i] = l->start[i] + step * l->direction[i];
    } else {
        l->x[l->at] = l->start[l->at] + step;
    }
    return l->f(l->user);
}

/* error h^4; rounding is amplified by (2 * 8 + 2 * 1) / 12 */
static double difference(const line *l, double h) {
    double near = value_at(l, h) - value_at(l, -h), far = value_at(l, 2 * h) - value_at(l, -2 * h);
    return (8 * near - far) / (12 * h);
}

slope finite_slope(double *x, int64_t n, const double *direction, int64_t at, double (*f)(void *),
                   void *user, double noise) {
    const double h = 0x1p-10; /* a power of two: steps are exact */
    double *start = pool_alloc((size_t)n * sizeof *start);
    memcpy(start, x, (size_t)n * sizeof *x);
    line l = {x, start, direction, n, at, f, user};
    double fine = difference(&l, h), coarse = difference(&l, 2 * h);
    memcpy(x, start, (size_t)n * sizeof *x);
    return (slope){fine, fabs(fine - coarse) + 1.5 * noise / h};
}
