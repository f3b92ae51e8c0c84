/*
 * Finite differences with an error estimate: what a derivative must agree with, and how well.
 */
#ifndef FINITE_H
#define FINITE_H

#include <stdint.h>

typedef struct slope {
    double value;
    double error; /* truncation as seen from two step sizes, plus rounding */
} slope;

/* Derivative at x of f along `direction` (NULL: along entry `at` alone). noise: how far off f may
 * be by rounding. x is restored. */
slope finite_slope(double *x, int64_t n, const double *direction, int64_t at,
                   double (*f)(void *user), void *user, double noise);

#endif
