/*
 * Neighbours (model_op.h, hti_near_call) on every device: numbers worked out by hand, random ones
 * against sums over pairs of rows in double, the same bits twice, and decoding in pieces against
 * the whole. And tables of amounts (hti_amounts_call). Built a second time for the kernels of CUDA
 * on the emulated device.
 *
 * Allowed error: a sum of n terms in float is off by at most n eps of the sum of their sizes; what
 * is stored in bf16 by 2^-8 of itself more.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* after them: it uses their types */
#include <cmocka.h>

#include "model_op.h"

#ifdef NEAR_EMULATED
ht_status emulated_open(ht_context *ctx, ht_dtype dtype); /* tests/cuda_host/near.cc */
#define OPEN emulated_open
#else
#define OPEN hti_models_open
#endif

#define OK(ctx, call)                                                                       \
    do {                                                                                    \
        if ((call) != HT_OK) fail_msg("%s:%d: %s", #call, __LINE__, ht_context_error(ctx)); \
    } while (0)

/* ---- a problem, and its answer by pairs of rows ---- */

typedef struct problem {
    ht_dtype dtype;
    int64_t width, size, back, lead, sequences, rows;
    const int32_t *counts; /* [sequences]; a row that is none's comes after each */
    int masked;
    double *x, *w, *dy, *dw; /* dw: what is there before */
    int32_t *start, *sequence;
    uint8_t *mask;
    double *y, *dx, *y_size, *dx_size, *dw_size; /* sums, and those of the sizes of their terms */
} problem;

static double noise(uint32_t *state) { /* exact in bf16 */
    *state = *state * 1664525u + 1013904223u;
    return ((double)(*state >> 25) - 64) / 64;
}

static double *numbers(int64_t n, uint32_t seed) {
    double *x = calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n && seed; i++) x[i] = noise(&seed);
    return x;
}

static int takes_part(const problem *p, int64_t row) { return !p->masked || p->mask[row]; }

static void pair(problem *p, int64_t r, int64_t q) {
    int64_t k = q - r + p->back, w = p->width;
    if (k < 0 || k >= p->size || !takes_part(p, r) || !takes_part(p, q)) return;
    for (int64_t c = 0; c < w; c++) {
        double forth = p->w[k * w + c] * p->x[q * w + c], d = p->w[k * w + c] * p->dy[r * w + c];
        double by = p->dy[r * w + c] * p->x[q * w + c];
        p->y[r * w + c] += forth, p->y_size[r * w + c] += fabs(forth);
        p->dx[q * w + c] += d, p->dx_size[q * w + c] += fabs(d);
        p->dw[k * w + c] += by, p->dw_size[k * w + c] += fabs(by);
    }
}

static void solve(problem *p) {
    for (int64_t s = 0; s < p->sequences; s++)
        for (int64_t r = 0; r < p->counts[s]; r++)
            for (int64_t q = 0; q < p->counts[s]; q++)
                if (r == q || (r >= p->lead && q >= p->lead))
                    pair(p, p->start[s] + r, p->start[s] + q);
}

static problem make(ht_dtype dtype, int64_t width, int64_t size, int64_t back, int64_t lead,
                    int masked, const int32_t *counts, int64_t sequences) {
    problem p = {.dtype = dtype, .width = width, .size = size, .back = back, .lead = lead};
    p.sequences = sequences, p.counts = counts, p.masked = masked;
    p.start = calloc((size_t)sequences, sizeof *p.start);
    for (int64_t s = 0; s < sequences; s++) {
        p.start[s] = (int32_t)p.rows;
        p.rows += counts[s] + 1;
    }
    int64_t n = p.rows * width, taps = size * width;
    p.sequence = calloc((size_t)p.rows, sizeof *p.sequence);
    p.mask = calloc((size_t)p.rows, 1);
    for (int64_t s = 0; s < sequences; s++)
        for (int64_t r = 0; r <= counts[s]; r++) p.sequence[p.start[s] + r] = (int32_t)s;
    for (int64_t r = 0; r < p.rows; r++) p.mask[r] = r % 7 != 2;
    p.x = numbers(n, 1), p.w = numbers(taps, 2), p.dy = numbers(n, 3), p.dw = numbers(taps, 4);
    p.y = numbers(n, 0), p.y_size = numbers(n, 0), p.dx = numbers(n, 0), p.dx_size = numbers(n, 0);
    p.dw_size = numbers(taps, 0);
    return p;
}

static void drop(problem *p) {
    void *all[] = {p->start, p->sequence, p->mask,   p->x,  p->w,       p->dy,
                   p->dw,    p->y,        p->y_size, p->dx, p->dx_size, p->dw_size};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- the same on a device ---- */

enum { BLOCKS = 16 };
typedef struct memory {
    ht_context *ctx;
    void *block[BLOCKS];
    int used;
} memory;

static void *give(memory *m, const void *from, size_t bytes) {
    void *device;
    OK(m->ctx, ht_memory_alloc(m->ctx, &device, bytes ? bytes : 1));
    if (bytes) OK(m->ctx, ht_memory_copy_in(m->ctx, device, from, bytes));
    assert_true(m->used < BLOCKS);
    return m->block[m->used++] = device;
}

static void give_back(memory *m) {
    for (int i = 0; i < m->used; i++) ht_memory_free(m->ctx, m->block[i]);
}

static void *give_reals(memory *m, const double *x, int64_t n, ht_dtype dtype) {
    char *host = calloc((size_t)n + 1, 8);
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (dtype == HT_F64) ((double *)host)[i] = x[i];
        if (dtype == HT_F32) ((float *)host)[i] = f;
        if (dtype == HT_BF16) ((uint16_t *)host)[i] = (uint16_t)(bits >> 16);
    }
    void *device = give(m, host, (size_t)n * hti_bytes(dtype));
    free(host);
    return device;
}

static double *take_reals(const memory *m, const void *device, int64_t n, ht_dtype dtype) {
    char *host = calloc((size_t)n + 1, 8);
    double *out = calloc((size_t)n + 1, sizeof *out);
    OK(m->ctx, ht_memory_copy_out(m->ctx, host, device, (size_t)n * hti_bytes(dtype)));
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = dtype == HT_BF16 ? (uint32_t)((uint16_t *)host)[i] << 16 : 0;
        float f;
        memcpy(&f, dtype == HT_F32 ? (void *)((float *)host + i) : (void *)&bits, sizeof f);
        out[i] = dtype == HT_F64 ? ((double *)host)[i] : (double)f;
    }
    free(host);
    return out;
}

static hti_near_call call_of(memory *m, const problem *p) {
    int64_t n = p->rows * p->width, taps = p->size * p->width;
    hti_near_call a = {.dtype = p->dtype, .rows = p->rows, .width = p->width};
    a.size = p->size, a.back = p->back, a.lead = p->lead, a.sequences = p->sequences;
    a.sequence = give(m, p->sequence, (size_t)p->rows * sizeof *p->sequence);
    a.start = give(m, p->start, (size_t)p->sequences * sizeof *p->start);
    a.count = give(m, p->counts, (size_t)p->sequences * sizeof *p->counts);
    if (p->masked) a.mask = give(m, p->mask, (size_t)p->rows);
    a.x = give_reals(m, p->x, n, p->dtype), a.w = give_reals(m, p->w, taps, p->dtype);
    a.y = give_reals(m, p->dy, n, p->dtype), a.dx = give_reals(m, p->x, n, p->dtype);
    a.dy = give_reals(m, p->dy, n, p->dtype);
    return a;
}

static void near_enough(const char *what, const problem *p, const double *got, const double *want,
                        const double *sizes, int64_t n, int64_t terms, int wide) {
    double eps = p->dtype == HT_F64 ? DBL_EPSILON : FLT_EPSILON;
    for (int64_t i = 0; i < n; i++) {
        double bar = (double)(terms + 2) * eps * (sizes[i] + 1);
        if (p->dtype == HT_BF16 && !wide) bar += fabs(want[i]) / 256;
        if (fabs(got[i] - want[i]) <= bar) continue;
        fail_msg("%s[%d], column %d: %g, should be %g +- %g (width %d, %d neighbours, back %d)",
                 what, (int)(i / p->width), (int)(i % p->width), got[i], want[i], bar,
                 (int)p->width, (int)p->size, (int)p->back);
    }
}

/* Twice, on memory of its own. */
static void check(ht_context *ctx, problem *p) {
    int64_t n = p->rows * p->width, taps = p->size * p->width;
    ht_dtype wide = p->dtype == HT_F64 ? HT_F64 : HT_F32;
    double *got[2][3], *before = numbers(taps, 4);
    for (int run = 0; run < 2; run++) {
        memory m = {.ctx = ctx};
        hti_near_call a = call_of(&m, p);
        a.dw = give_reals(&m, before, taps, wide);
        OK(ctx, hti_models(ctx)->near_forward(ctx, &a));
        OK(ctx, hti_models(ctx)->near_backward(ctx, &a));
        got[run][0] = take_reals(&m, a.y, n, p->dtype);
        got[run][1] = take_reals(&m, a.dx, n, p->dtype);
        got[run][2] = take_reals(&m, a.dw, taps, wide);
        give_back(&m);
    }
    solve(p);
    near_enough("y", p, got[0][0], p->y, p->y_size, n, p->size, 0);
    near_enough("dx", p, got[0][1], p->dx, p->dx_size, n, p->size, 0);
    near_enough("dw", p, got[0][2], p->dw, p->dw_size, taps, p->rows, 1);
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(got[0][i], got[1][i], sizeof(double) * (size_t)(i < 2 ? n : taps));
        free(got[0][i]), free(got[1][i]);
    }
    free(before);
}

/* ---- the tests ---- */

static void by_hand(ht_context *ctx, ht_dtype dtype) {
    static const int32_t four[] = {4};
    static const double x[] = {1, 2, 3, 4}, w[] = {10, 1, 0.5};
    static const double want[2][4] = {{2, 13.5, 25, 34}, {0.5, 2, 13.5, 25}};
    for (int causal = 0; causal < 2; causal++) {
        problem p = make(dtype, 1, 3, 1 + causal, 0, 0, four, 1);
        memory m = {.ctx = ctx};
        memcpy(p.x, x, sizeof x), memcpy(p.w, w, sizeof w);
        hti_near_call a = call_of(&m, &p);
        OK(ctx, hti_models(ctx)->near_forward(ctx, &a));
        double *y = take_reals(&m, a.y, 4, dtype);
        for (int i = 0; i < 4; i++) assert_true(y[i] == want[causal][i]);
        free(y);
        give_back(&m), drop(&p);
    }
}

static void by_pairs(ht_context *ctx, ht_dtype dtype) {
    static const int32_t some[] = {1, 0, 9, 2, 30, 5}, longer[] = {150, 3, 201};
    static const int64_t sizes[][2] = {{2, 1}, {3, 1}, {4, 3}, {5, 2}, {9, 8}, {64, 32}};
    static const int64_t widths[] = {1, 5, 24, 130, 264};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
            int causal = sizes[i][1] == sizes[i][0] - 1, odd = (int)(i + k) % 2;
            int64_t width = widths[k];
            problem p = make(dtype, width, sizes[i][0], sizes[i][1], !causal && odd, odd,
                             width > 100 ? some : longer, width > 100 ? 6 : 3);
            check(ctx, &p);
            drop(&p);
        }
}

/* Pieces of a sequence with what the ones before left, in a slot that is not the first. */
static void in_pieces(ht_context *ctx, ht_dtype dtype) {
    enum { ROWS = 40, WIDTH = 11, SIZE = 5, SLOT = 2, SLOTS = 3, ALL = ROWS * WIDTH };
    static const int32_t all[] = {ROWS}, none[] = {0}, slot[] = {SLOT};
    memory m = {.ctx = ctx};
    problem p = make(dtype, WIDTH, SIZE, SIZE - 1, 0, 0, all, 1);
    hti_near_call a = call_of(&m, &p);
    double zeros[SLOTS * SIZE * WIDTH] = {0};
    size_t row = WIDTH * hti_bytes(dtype);
    OK(ctx, hti_models(ctx)->near_forward(ctx, &a));
    double *whole = take_reals(&m, a.y, ALL, dtype);
    hti_near_call piece = a;
    piece.start = give(&m, none, sizeof none), piece.slots = give(&m, slot, sizeof slot);
    piece.y = give_reals(&m, p.dy, ALL, dtype);
    piece.past = give_reals(&m, zeros, SLOTS * (SIZE - 1) * WIDTH, dtype);
    char *y = piece.y;
    for (int32_t at = 0, n = 1; at < ROWS; at += n, n = n * 3 % 11) {
        if (n > ROWS - at) n = ROWS - at;
        piece.rows = n;
        piece.x = (const char *)a.x + (size_t)at * row, piece.y = y + (size_t)at * row;
        OK(ctx, ht_memory_copy_in(ctx, (void *)(uintptr_t)piece.count, &n, sizeof n));
        OK(ctx, hti_models(ctx)->near_forward(ctx, &piece));
        OK(ctx, hti_models(ctx)->near_keep(ctx, &piece));
    }
    double *pieces = take_reals(&m, y, ALL, dtype);
    assert_memory_equal(whole, pieces, sizeof(double) * ALL);
    free(whole), free(pieces);
    give_back(&m), drop(&p);
}

/* Three columns of all greys: black is -1, white 1. Gradients are sums over the greys. */
static void by_grey(ht_context *ctx, ht_dtype dtype) {
    enum { GREYS = 256, WIDTH = 3, ALL = GREYS * WIDTH };
    static const double w[] = {1, 0, -2, 0, 5, 0.5}, before[] = {1, 2, 3, 4, 5, 6};
    static const double black[] = {-1, 5, 2.5}, white[] = {1, 5, -1.5};
    ht_dtype wide = dtype == HT_F64 ? HT_F64 : HT_F32;
    memory m = {.ctx = ctx};
    double *d = numbers(ALL, 9);
    hti_amounts_call a = {.dtype = dtype, .vocab = GREYS, .width = WIDTH};
    a.w = give_reals(&m, w, 2 * WIDTH, dtype), a.table = give_reals(&m, d, ALL, dtype);
    a.dtable = give_reals(&m, d, ALL, wide), a.dw = give_reals(&m, before, 2 * WIDTH, wide);
    OK(ctx, hti_models(ctx)->amounts_forward(ctx, &a));
    OK(ctx, hti_models(ctx)->amounts_backward(ctx, &a));
    double *table = take_reals(&m, a.table, ALL, dtype), *dw = take_reals(&m, a.dw, 6, wide);
    for (int c = 0; c < WIDTH; c++) {
        double slope = before[c], shift = before[WIDTH + c];
        assert_true(table[c] == black[c] && table[255 * WIDTH + c] == white[c]);
        for (int t = 0; t < GREYS; t++) {
            slope += (t - 127.5) / 127.5 * d[t * WIDTH + c], shift += d[t * WIDTH + c];
            double bar = dtype == HT_BF16 ? 1.0 / 64 : 1e-6;
            double want = (t - 127.5) / 127.5 * w[c] + w[WIDTH + c];
            assert_true(fabs(table[t * WIDTH + c] - want) < bar);
        }
        double bar = GREYS * GREYS * (dtype == HT_F64 ? DBL_EPSILON : FLT_EPSILON);
        assert_true(fabs(dw[c] - slope) < bar && fabs(dw[WIDTH + c] - shift) < bar);
    }
    free(table), free(dw), free(d);
    give_back(&m);
}

static void each(void (*test)(ht_context *, ht_dtype)) {
    static const ht_dtype dtypes[] = {HT_F64, HT_F32, HT_BF16};
    int runs = 0;
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        ht_context_desc desc = HT_CONTEXT_DESC_INIT;
        ht_context *ctx;
        if (ht_device_get(i, &info) != HT_OK || !info.available) continue;
        desc.device = info.name;
        assert_int_equal(ht_context_create(&ctx, &desc), HT_OK);
        for (int k = 0; k < 3; k++) {
            if (OPEN(ctx, dtypes[k]) != HT_OK) continue;
            test(ctx, dtypes[k]);
            runs++;
        }
        ht_context_destroy(ctx);
    }
    assert_true(runs >= 2);
}

static void hand(void **state) {
    (void)state;
    each(by_hand);
}
static void pairs(void **state) {
    (void)state;
    each(by_pairs);
}
static void pieces(void **state) {
    (void)state;
    each(in_pieces);
}

static void greys(void **state) {
    (void)state;
    each(by_grey);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hand), cmocka_unit_test(pairs),
                                       cmocka_unit_test(pieces), cmocka_unit_test(greys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
