/*
 * What every test program stands on: the device under test, problems on that device with
 * sentinels around every buffer, and the tolerance rule.
 *
 * A program is called as  test_x DEVICE [TEST CASE]  - with a test and a case (a failure prints
 * them) it runs that one alone. It returns the number of failed tests, or 77 if the machine has
 * no such device.
 * HT_TEST_THIN=n keeps every n-th case (for sanitizers).
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h> /* wants the four before it */

#include "problem.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- the program ------------------------------------------------------------------------- */

typedef struct test_env {
    const char *program, *device;
    ht_context *ctx; /* on the device, default threads */
    int cuda;
    const char *only, *only_case; /* a test and its case from the command line, or NULL */
    const char *running;          /* the name of the test that runs */
} test_env;
extern test_env env;

/* Opens the device and runs what `list` adds. */
int harness_main(int argc, char **argv, void (*list)(void));

/* Runs what has been added; the number of failures. */
int harness_run(void);

/* Adds a test; `c` may be NULL. The state of the test function points to the (copied) case. */
void harness_add(const char *name, CMUnitTestFunction run, const test_case *c);
/* Adds one test per case; honours HT_TEST_THIN and the case of the command line. */
void harness_add_all(const char *name, CMUnitTestFunction run, const case_list *list);

/* Does the device know this dtype? (asked with the smallest plan) */
int harness_supports(ht_dtype dtype);

/* A context of its own on the device under test, given back with the pool. */
ht_context *harness_context(int threads);

/* Fails the test with a sentence and the line that repeats it. */
void harness_fail(const test_case *c, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
/* Unless the status is HT_OK, fails with the context's sentence. */
void harness_ok(ht_context *ctx, ht_status status, const test_case *c);

/* NaN and infinities may spread to rows that are worked on together at level 0, though these do
 * not see them: rows of the same block, and rows less than this apart. No device takes more. */
#define TILE_ROWS 64

/* ---- buffers on the device --------------------------------------------------------------- */

/* Device memory and what it should hold. Bytes that a call may not write are compared after it. */
typedef struct slab {
    ht_context *ctx;
    uint8_t *device;
    uint8_t *image;    /* [bytes] */
    uint8_t *writable; /* [bytes] 1: the call may change it */
    size_t bytes;
} slab;

slab *slab_make(ht_context *ctx, size_t bytes, int fill);
void slab_upload(slab *s);
/* Reads the device's bytes back; fails if one that was not writable has changed. */
void slab_check(slab *s, const test_case *c, const char *what);

/* A strided tensor in a slab. */
typedef struct view {
    slab *in;
    size_t at; /* bytes from the slab's start to element 0 */
    ht_dtype type;
    int64_t heads, dim, batch, row, head;
    int spelled; /* strides are given, not left zero */
} view;

void view_write(const view *t, const problem *p, const double *canonical);
void view_read(const view *t, const problem *p, double *canonical);
void view_allow(const view *t, const problem *p, int writable, int fill);
ht_tensor view_tensor(const view *t);

/* ---- a problem on the device ------------------------------------------------------------- */

typedef struct session {
    ht_context *ctx;
    const problem *p;
    ht_attention *plan;
    ht_attention_need need;
    ht_attention_args args;
    ht_attention_grads grads;
    slab *slabs[20];
    const char *names[20];
    int slab_count;
    view q, k, v, out, lse, dout, dlse, dq, dk, dv;
    slab *bias, *dbias, *saved, *scratch_forward, *scratch_backward;
} session;

ht_attention_desc problem_desc(const problem *p);

/* The view of a tensor [rows, heads, dim] in a new slab, laid out as the case says. */
view view_make(ht_context *ctx, const problem *p, ht_dtype type, int64_t heads, int64_t dim,
               int fill);

/* Plan and buffers, inputs uploaded, everything else poisoned. Anything but HT_OK is the plan's
 * answer (UNSUPPORTED); other failures fail the test. */
ht_status session_open(session *s, ht_context *ctx, const problem *p);
/* The buffers alone, without plan and workspace: for ht_cache_extend. */
void session_open_buffers(session *s, ht_context *ctx, const problem *p);
/* Fails if anything was written that the last view_allow did not allow. */
void session_check(session *s);
/* Every output and workspace may be written from here on. */
void session_allow_all(session *s);
void session_forward(session *s);
void session_backward(session *s);
/* The results so far; what was not computed is left alone. */
void session_read(const session *s, outcome *o);
/* dbias before backward adds to it; call after open. */
void session_set_dbias(session *s, const double *start);

/* open, forward, backward, read. Skips the test if the device cannot run the plan. */
outcome run_problem(ht_context *ctx, const problem *p);

/* ---- the tolerance rule ------------------------------------------------------------------ */

enum { PART_OUT, PART_LSE, PART_DQ, PART_DK, PART_DV, PART_DBIAS, PART_COUNT };
#define PARTS_FORWARD (1u << PART_OUT | 1u << PART_LSE)
#define PARTS_ALL ((1u << PART_COUNT) - 1)

/* What a problem should give and how far off it may be: twice the error of the plain algorithm in
 * the same precision (the largest of a few ways to write it) plus 4 eps of the largest
 * reference value. Gradients are differences of larger numbers, in short sequences all zero; there
 * the largest value is that of the terms. */
typedef struct reference {
    outcome want;
    double allowed[PART_COUNT];
} reference;

void reference_make(reference *r, const problem *p, int backward);
/* The same of the reference kernels in float64, for what is too long for the oracle. */
reference far_reference(const problem *p);
/* Fails unless the parts of `got` are within what is allowed, and exactly zero where masked. */
void reference_check(const reference *r, const problem *p, const outcome *got, unsigned parts);

double *outcome_part(const outcome *o, int part);
int64_t problem_part_size(const problem *p, int part);
extern const char *const part_names[PART_COUNT];

/* Fails unless the parts agree to the bit. */
void check_same_bits(const problem *p, const outcome *a, const outcome *b, unsigned parts,
                     const char *what);

#endif
