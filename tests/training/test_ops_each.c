/*
 * Every op of a model by itself, on every device and in every precision it has, against the same op
 * in double on numbers that are exact in all of them.
 *
 * Allowed error: twice that of the plain algorithm in the same precision, plus 4 eps of the largest
 * value. In float the plain algorithm is the reference loops; in bf16 it is the exact result,
 * rounded.
 */
#include "training.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_op.h"

static ht_context *ref;

/* ---- bf16 and float in one array ---- */

static double to_bf16(double x) {
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u += 0x7fff + (u >> 16 & 1);
    u &= 0xffff0000u;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void write_as(void *host, int64_t i, double x, ht_dtype dtype) {
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (dtype == HT_F64) ((double *)host)[i] = x;
    if (dtype == HT_F32) ((float *)host)[i] = f;
    if (dtype == HT_BF16) ((uint16_t *)host)[i] = (uint16_t)(u >> 16); /* x is exact */
}

static double read_as(const void *host, int64_t i, ht_dtype dtype) {
    uint32_t u = 0;
    float f;
    if (dtype == HT_F64) return ((const double *)host)[i];
    if (dtype == HT_F32) return ((const float *)host)[i];
    u = (uint32_t)((const uint16_t *)host)[i] << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* ---- the memory of one call ---- */

enum { MOST = 24 };

typedef struct bank {
    ht_context *ctx;
    ht_dtype dtype;
    int n;
    void *block[MOST];
    double *out; /* collected results */
    int64_t count;
    int64_t wide_from; /* results from here on are wide */
} bank;

static ht_dtype wide_type(ht_dtype dtype) { return dtype == HT_F64 ? HT_F64 : HT_F32; }

static void *place(bank *b, const double *x, int64_t n, ht_dtype dtype) {
    size_t bytes = (size_t)n * hti_bytes(dtype);
    void *host = calloc(1, bytes), *device;
    for (int64_t i = 0; i < n && x; i++) write_as(host, i, x[i], dtype);
    OK(b->ctx, ht_memory_alloc(b->ctx, &device, bytes));
    OK(b->ctx, ht_memory_copy_in(b->ctx, device, host, bytes));
    free(host);
    b->block[b->n++] = device;
    return device;
}

/* Noise of one seed, exact in bf16; wide: in the wide type. */
static void *noise(bank *b, int64_t n, uint32_t seed, int wide) {
    if (n <= 0) abort(); /* so that the compiler knows, too */
    double *x = malloc(sizeof *x * (size_t)n);
    for (int64_t i = 0; i < n; i++) x[i] = to_bf16(2 * training_random(&seed) - 1);
    void *device = place(b, x, n, wide ? wide_type(b->dtype) : b->dtype);
    free(x);
    return device;
}

static void *zeros(bank *b, int64_t n, int wide) {
    return place(b, NULL, n, wide ? wide_type(b->dtype) : b->dtype);
}

static void *integers(bank *b, int64_t n, int64_t (*rule)(int64_t)) {
    int32_t *x = calloc(n > 0 ? (size_t)n : 1, sizeof *x);
    void *device;
    for (int64_t i = 0; i < n; i++) x[i] = (int32_t)rule(i);
    OK(b->ctx, ht_memory_alloc(b->ctx, &device, sizeof *x * (size_t)n));
    OK(b->ctx, ht_memory_copy_in(b->ctx, device, x, sizeof *x * (size_t)n));
    free(x);
    b->block[b->n++] = device;
    return device;
}

static void *bytes(bank *b, size_t n) {
    void *device;
    OK(b->ctx, ht_memory_alloc(b->ctx, &device, n ? n : 1));
    b->block[b->n++] = device;
    return device;
}

/* Adds n results; those in the wide type come last. */
static void collect(bank *b, const void *device, int64_t n, int wide) {
    ht_dtype dtype = wide ? wide_type(b->dtype) : b->dtype;
    void *host = malloc((size_t)n * hti_bytes(dtype));
    OK(b->ctx, ht_memory_copy_out(b->ctx, host, device, (size_t)n * hti_bytes(dtype)));
    b->out = realloc(b->out, sizeof *b->out * (size_t)(b->count + n));
    for (int64_t i = 0; i < n; i++) b->out[b->count + i] = read_as(host, i, dtype);
    b->count += n;
    if (!wide) b->wide_from = b->count;
    free(host);
}

static void clear(bank *b) {
    for (int i = 0; i < b->n; i++) ht_memory_free(b->ctx, b->block[i]);
    free(b->out);
}

/* ---- the ops ---- */

typedef void (*op_run)(bank *b, int64_t rows, int64_t width);

static const hti_random drop = {.p = 0.25, .seed = 9, .site = 5, .offset = 3};

static void run_norm(bank *b, int64_t rows, int64_t width) {
    hti_norm_call a = {.dtype = b->dtype, .rows = rows, .width = width, .epsilon = 1e-6};
    int64_t n = rows * width;
    a.x = noise(b, n, 1, 0), a.y = noise(b, n, 2, 0), a.s = zeros(b, n, 0), a.out = zeros(b, n, 0);
    a.stats = zeros(b, 2 * rows, 1);
    a.scale = noise(b, width, 3, 0), a.shift = noise(b, width, 4, 0);
    a.drop = drop;
    OK(b->ctx, hti_models(b->ctx)->norm_forward(b->ctx, &a));
    collect(b, a.s, n, 0);
    collect(b, a.out, n, 0);
    /* backward from an s that is the same in every precision */
    a.x = noise(b, n, 5, 0), a.y = NULL;
    OK(b->ctx, hti_models(b->ctx)->norm_forward(b->ctx, &a));
    a.dout = noise(b, n, 6, 0), a.ds_in = noise(b, n, 7, 0);
    a.ds = zeros(b, n, 0), a.dy = zeros(b, n, 0);
    a.dscale = noise(b, width, 8, 1), a.dshift = noise(b, width, 9, 1);
    a.dbias = noise(b, width, 10, 1);
    a.scratch = bytes(b, hti_models(b->ctx)->norm_scratch(b->ctx, &a));
    OK(b->ctx, hti_models(b->ctx)->norm_backward(b->ctx, &a));
    collect(b, a.ds, n, 0);
    collect(b, a.dy, n, 0);
    collect(b, a.dscale, width, 1);
    collect(b, a.dshift, width, 1);
    collect(b, a.dbias, width, 1);
}

static void run_sizes(bank *b, int64_t rows, int64_t in, int64_t out, hti_activation kind,
                      double p) {
    hti_linear_call a = {
        .dtype = b->dtype, .activation = kind, .rows = rows, .in = in, .out = out, .drop = drop};
    a.drop.p = p;
    a.x = noise(b, rows * in, 1, 0), a.w = noise(b, in * out, 2, 0), a.bias = noise(b, out, 3, 0);
    a.y = zeros(b, rows * out, 0), a.pre = zeros(b, rows * out, 0);
    OK(b->ctx, hti_models(b->ctx)->linear_forward(b->ctx, &a));
    collect(b, a.y, rows * out, 0);
    a.pre = noise(b, rows * out, 4, 0), a.dy = noise(b, rows * out, 5, 0);
    a.dx = zeros(b, rows * in, 0);
    a.dw = noise(b, in * out, 6, 1), a.dbias = noise(b, out, 7, 1);
    if (kind == HTI_LINEAR) { /* and through the layer before */
        a.before = HTI_GELU, a.before_pre = noise(b, rows * in, 8, 0);
        a.before_drop = drop, a.before_drop.p = p;
        a.before_dbias = noise(b, in, 9, 1);
    }
    OK(b->ctx, hti_models(b->ctx)->linear_backward(b->ctx, &a));
    collect(b, a.dx, rows * in, 0);
    collect(b, a.dw, in * out, 1);
    collect(b, a.dbias, out, 1);
    if (kind == HTI_LINEAR) collect(b, a.before_dbias, in, 1);
}

static void run_linear(bank *b, int64_t rows, int64_t width, hti_activation kind, double p) {
    run_sizes(b, rows, width, width + 8, kind, p);
}

static void run_plain(bank *b, int64_t rows, int64_t width) {
    run_linear(b, rows, width, HTI_LINEAR, 0);
}
static void run_gelu(bank *b, int64_t rows, int64_t width) {
    run_linear(b, rows, width, HTI_GELU, 0);
}
static void run_gelu_drop(bank *b, int64_t rows, int64_t width) {
    run_linear(b, rows, width, HTI_GELU, 0.25);
}
static void run_relu(bank *b, int64_t rows, int64_t width) {
    run_linear(b, rows, width, HTI_RELU, 0.25);
}

/* Layers with few columns and many rows; width: what comes out. */
static void run_slim16(bank *b, int64_t rows, int64_t width) {
    run_sizes(b, rows, 16, width, HTI_LINEAR, 0);
}
static void run_slim32(bank *b, int64_t rows, int64_t width) {
    run_sizes(b, rows, 32, width, HTI_LINEAR, 0.25);
}
static void run_slim64(bank *b, int64_t rows, int64_t width) {
    run_sizes(b, rows, 64, width, HTI_LINEAR, 0.25);
}
static void run_slim_gelu(bank *b, int64_t rows, int64_t width) {
    run_sizes(b, rows, 32, width, HTI_GELU, 0.25);
}

/* A layer into a wider space with GELU, and the way back through it, with rows enough for kernels
 * of their own. */
static void run_widening(bank *b, int64_t rows, int64_t width) {
    int64_t wide = 4 * width;
    hti_linear_call up = {
        .dtype = b->dtype, .activation = HTI_GELU, .rows = rows, .in = width, .out = wide};
    up.x = noise(b, rows * width, 1, 0), up.w = noise(b, width * wide, 2, 0);
    up.bias = noise(b, wide, 3, 0);
    up.y = zeros(b, rows * wide, 0), up.pre = zeros(b, rows * wide, 0);
    OK(b->ctx, hti_models(b->ctx)->linear_forward(b->ctx, &up));
    collect(b, up.pre, rows * wide, 0);
    collect(b, up.y, rows * wide, 0);
    hti_linear_call down = {
        .dtype = b->dtype, .rows = rows, .in = wide, .out = width, .before = HTI_GELU};
    down.x = noise(b, rows * wide, 4, 0), down.w = noise(b, width * wide, 5, 0);
    down.dy = noise(b, rows * width, 6, 0), down.dx = zeros(b, rows * wide, 0);
    down.dw = noise(b, width * wide, 7, 1), down.before_pre = noise(b, rows * wide, 8, 0);
    down.before_dbias = noise(b, wide, 9, 1);
    OK(b->ctx, hti_models(b->ctx)->linear_backward(b->ctx, &down));
    collect(b, down.dx, rows * wide, 0);
    collect(b, down.dw, width * wide, 1);
    collect(b, down.before_dbias, wide, 1);
}

/* A product on top of something; where the device has no such, the sum is made here. */
static void run_adding(bank *b, int64_t rows, int64_t width) {
    int64_t in = width, out = 2 * width, n = rows * out;
    uint32_t seed = 4;
    hti_linear_call a = {.dtype = b->dtype, .rows = rows, .in = in, .out = out};
    a.x = noise(b, rows * in, 1, 0), a.w = noise(b, in * out, 2, 0), a.bias = noise(b, out, 3, 0);
    a.add = hti_models(b->ctx)->linear_adds ? noise(b, n, seed, 0) : NULL;
    a.y = zeros(b, n, 0);
    OK(b->ctx, hti_models(b->ctx)->linear_forward(b->ctx, &a));
    collect(b, a.y, n, 0);
    for (int64_t i = b->count - n; i < b->count && !a.add; i++)
        b->out[i] += to_bf16(2 * training_random(&seed) - 1);
}

static int64_t classes; /* of the loss */
static int64_t target_rule(int64_t i) { return i % 7 == 3 ? -1 : i * 31 % classes; }

/* The loss of a language model. */
static void run_loss(bank *b, int64_t rows, int64_t many) {
    enum { WIDTH = 16 };
    hti_step step = {.in = {.loss_scale = 0.5}}, *device = bytes(b, sizeof step);
    hti_loss_call a = {.dtype = b->dtype, .rows = rows, .width = WIDTH, .classes = many};
    classes = many;
    a.x = noise(b, rows * WIDTH, 1, 0), a.w = noise(b, many * WIDTH, 2, 0);
    a.targets = integers(b, rows, target_rule), a.step = device;
    a.dx = zeros(b, rows * WIDTH, 0), a.dw = noise(b, many * WIDTH, 3, 1);
    a.row_loss = zeros(b, rows, 1);
    a.scratch = bytes(b, hti_models(b->ctx)->loss_scratch(b->ctx, &a));
    OK(b->ctx, ht_memory_copy_in(b->ctx, device, &step, sizeof step));
    OK(b->ctx, hti_models(b->ctx)->loss(b->ctx, &a));
    OK(b->ctx, ht_memory_copy_out(b->ctx, &step, device, sizeof step));
    assert_true(step.out.targets == (double)(rows - (rows + 3) / 7));
    collect(b, a.dx, rows * WIDTH, 0);
    collect(b, a.dw, many * WIDTH, 1);
    collect(b, a.row_loss, rows, 1);
}

static int64_t token_rule(int64_t i) { return i % 11 == 4 ? -1 : i % 3 == 0 ? 2 : i * 7 % 13; }
static int64_t position_rule(int64_t i) { return i % 29; }

static void embed_rows(bank *b, int64_t rows, int64_t width, int64_t each) {
    enum { VOCAB = 13, LENGTH = 29 };
    hti_embed_call a = {.dtype = b->dtype,
                        .rows = rows,
                        .width = width,
                        .vocab = VOCAB,
                        .length = LENGTH,
                        .each = each};
    a.tokens = integers(b, rows, token_rule), a.positions = integers(b, rows, position_rule);
    a.table = noise(b, VOCAB * width, 1, 0), a.cls = noise(b, width, 2, 0);
    a.learned = noise(b, LENGTH * width, 3, 0), a.fixed = noise(b, LENGTH * width, 4, 0);
    a.out = zeros(b, rows * width, 0), a.drop = drop;
    OK(b->ctx, hti_models(b->ctx)->embed_forward(b->ctx, &a));
    collect(b, a.out, rows * width, 0);
    a.dout = noise(b, rows * width, 5, 0);
    a.dtable = noise(b, VOCAB * width, 6, 1), a.dcls = noise(b, width, 7, 1);
    a.dlearned = noise(b, LENGTH * width, 8, 1);
    a.scratch = bytes(b, hti_models(b->ctx)->embed_scratch(b->ctx, &a));
    OK(b->ctx, hti_models(b->ctx)->embed_backward(b->ctx, &a));
    collect(b, a.dtable, VOCAB * width, 1);
    collect(b, a.dcls, width, 1);
    collect(b, a.dlearned, LENGTH * width, 1);
}

static void run_embed(bank *b, int64_t rows, int64_t width) { embed_rows(b, rows, width, 0); }
/* Sequences of equal length. */
static void run_embed_even(bank *b, int64_t rows, int64_t width) {
    embed_rows(b, (rows + 28) / 29 * 29, width, 29);
}

/* rows: greys there are */
static void run_amounts(bank *b, int64_t rows, int64_t width) {
    hti_amounts_call a = {.dtype = b->dtype, .vocab = rows, .width = width};
    int64_t n = rows * width;
    a.w = noise(b, 2 * width, 1, 0), a.table = zeros(b, n, 0);
    a.dtable = noise(b, n, 2, 1), a.dw = noise(b, 2 * width, 3, 1);
    OK(b->ctx, hti_models(b->ctx)->amounts_forward(b->ctx, &a));
    OK(b->ctx, hti_models(b->ctx)->amounts_backward(b->ctx, &a));
    collect(b, a.table, n, 0);
    collect(b, a.dw, 2 * width, 1);
}

static void run_rotary(bank *b, int64_t rows, int64_t width) {
    int64_t d = 16, heads = width / d;
    hti_rotary_call a = {.dtype = b->dtype,
                         .rows = rows,
                         .heads = heads,
                         .head_dim = d,
                         .row_stride = width,
                         .sign = -1};
    if (heads == 0) return;
    a.positions = integers(b, rows, position_rule);
    a.turn = noise(b, 29 * d, 1, 1), a.x = noise(b, rows * width, 2, 0);
    OK(b->ctx, hti_models(b->ctx)->rotary(b->ctx, &a));
    collect(b, a.x, rows * width, 0);
}

/* Three sequences, a row outside of them after each of the first two; of five slots three. */
static int64_t near_rows;
static int64_t near_start(int64_t i) { return i * (near_rows / 3); }
static int64_t near_count(int64_t i) { return i == 2 ? near_rows / 3 : near_rows / 3 - 1; }
static int64_t near_sequence(int64_t i) {
    return i / (near_rows / 3) < 2 ? i / (near_rows / 3) : 2;
}
static int64_t near_slot(int64_t i) { return i == 0 ? 3 : i == 1 ? 0 : 4; }

static hti_near_call near_call(bank *b, int64_t rows, int64_t width, int64_t size) {
    hti_near_call a = {.dtype = b->dtype, .rows = rows, .width = width, .size = size};
    near_rows = rows;
    a.sequences = 3, a.back = size - 1;
    a.sequence = integers(b, rows, near_sequence);
    a.start = integers(b, 3, near_start), a.count = integers(b, 3, near_count);
    a.x = noise(b, rows * width, 1, 0), a.w = noise(b, size * width, 2, 0);
    a.y = noise(b, rows * width, 3, 0);
    return a;
}

static void run_near(bank *b, int64_t rows, int64_t width, int64_t size, int causal) {
    hti_near_call a = near_call(b, rows, width, size);
    uint8_t *mask = calloc((size_t)rows, 1), *device = bytes(b, (size_t)rows);
    for (int64_t i = 0; i < rows; i++) mask[i] = i % 5 != 1;
    OK(b->ctx, ht_memory_copy_in(b->ctx, device, mask, (size_t)rows));
    free(mask);
    if (!causal) a.back = size / 2, a.lead = 1, a.mask = device;
    a.dy = noise(b, rows * width, 4, 0), a.dx = noise(b, rows * width, 5, 0);
    a.dw = noise(b, size * width, 6, 1);
    OK(b->ctx, hti_models(b->ctx)->near_forward(b->ctx, &a));
    OK(b->ctx, hti_models(b->ctx)->near_backward(b->ctx, &a));
    collect(b, a.y, rows * width, 0);
    collect(b, a.dx, rows * width, 0);
    collect(b, a.dw, size * width, 1);
}

static void run_sides(bank *b, int64_t rows, int64_t width) { run_near(b, rows, width, 5, 0); }
static void run_back(bank *b, int64_t rows, int64_t width) { run_near(b, rows, width, 4, 1); }

/* Decoding, and what it keeps for the next rows. */
static void run_past(bank *b, int64_t rows, int64_t width) {
    enum { SIZE = 7, SLOTS = 5 };
    hti_near_call a = near_call(b, rows, width, SIZE);
    int64_t kept = SLOTS * (SIZE - 1) * width;
    a.slots = integers(b, 3, near_slot), a.past = noise(b, kept, 7, 0);
    OK(b->ctx, hti_models(b->ctx)->near_forward(b->ctx, &a));
    OK(b->ctx, hti_models(b->ctx)->near_keep(b->ctx, &a));
    collect(b, a.y, rows * width, 0);
    collect(b, a.past, kept, 0);
}

static int64_t pool_rows; /* of all sequences */
static int64_t start_rule(int64_t i) { return i * (pool_rows / 3); }
static int64_t count_rule(int64_t i) { return i == 2 ? 0 : pool_rows / 3 - 1; }

static void run_pool(bank *b, int64_t rows, int64_t width, hti_pool kind) {
    hti_pool_call a = {
        .dtype = b->dtype, .kind = kind, .sequences = 3, .rows = rows, .width = width};
    pool_rows = rows;
    uint8_t *mask = calloc((size_t)rows, 1), *device = bytes(b, (size_t)rows);
    for (int64_t i = 0; i < rows; i++) mask[i] = i % 5 != 1;
    OK(b->ctx, ht_memory_copy_in(b->ctx, device, mask, (size_t)rows));
    free(mask);
    a.start = integers(b, 3, start_rule), a.count = integers(b, 3, count_rule), a.mask = device;
    a.x = noise(b, rows * width, 1, 0), a.out = noise(b, 3 * width, 2, 0);
    a.dout = noise(b, 3 * width, 3, 0), a.dx = noise(b, rows * width, 4, 0);
    OK(b->ctx, hti_models(b->ctx)->pool_forward(b->ctx, &a));
    OK(b->ctx, hti_models(b->ctx)->pool_backward(b->ctx, &a));
    collect(b, a.out, 3 * width, 0);
    collect(b, a.dx, rows * width, 0);
}

static void run_first(bank *b, int64_t rows, int64_t width) {
    run_pool(b, rows, width, HTI_POOL_FIRST);
}
static void run_last(bank *b, int64_t rows, int64_t width) {
    run_pool(b, rows, width, HTI_POOL_LAST);
}
static void run_mean(bank *b, int64_t rows, int64_t width) {
    run_pool(b, rows, width, HTI_POOL_VALID);
}
static void run_mean_all(bank *b, int64_t rows, int64_t width) {
    run_pool(b, rows, width, HTI_POOL_ALL);
}

static void run_max(bank *b, int64_t rows, int64_t width) {
    run_pool(b, rows, width, HTI_POOL_MAX);
}

static void run_match(bank *b, int64_t rows, int64_t width) {
    hti_match_call a = {.dtype = b->dtype, .items = rows, .width = width};
    a.x = noise(b, 2 * rows * width, 1, 0), a.out = noise(b, 4 * rows * width, 2, 0);
    a.dout = noise(b, 4 * rows * width, 3, 0), a.dx = noise(b, 2 * rows * width, 4, 0);
    OK(b->ctx, hti_models(b->ctx)->match_forward(b->ctx, &a));
    OK(b->ctx, hti_models(b->ctx)->match_backward(b->ctx, &a));
    collect(b, a.out, 4 * rows * width, 0);
    collect(b, a.dx, 2 * rows * width, 0);
}

static void run_optimiser(bank *b, int64_t rows, int64_t width) {
    int64_t n = rows * width;
    hti_step step = {
        .in = {.rate = 0.125, .correction1 = 0.5, .correction2 = 0.25, .loss_scale = 1}};
    hti_step *device = bytes(b, sizeof step);
    double *positive = calloc(n > 0 ? (size_t)n : 1, sizeof *positive);
    uint32_t seed = 3;
    for (int64_t i = 0; i < n; i++) positive[i] = to_bf16(training_random(&seed));
    OK(b->ctx, ht_memory_copy_in(b->ctx, device, &step, sizeof step));
    hti_adamw_call a = {.dtype = b->dtype,
                        .count = n,
                        .step = device,
                        .beta1 = 0.75,
                        .beta2 = 0.875,
                        .epsilon = 0.0625,
                        .decay = 0.5,
                        .clip = 2};
    a.p = noise(b, n, 1, 1), a.m = noise(b, n, 2, 1), a.g = noise(b, n, 4, 1);
    a.v = place(b, positive, n, wide_type(b->dtype));
    a.w = b->dtype == HT_BF16 ? zeros(b, n, 0) : NULL;
    OK(b->ctx, hti_models(b->ctx)->square(b->ctx, b->dtype, device, a.g, n));
    OK(b->ctx, hti_models(b->ctx)->adamw(b->ctx, &a));
    OK(b->ctx, ht_memory_copy_out(b->ctx, &step, device, sizeof step));
    assert_true(step.out.applied == 1 && step.out.square > 4);
    /* the kernels' copy: in bf16 the rounded weights, else the weights themselves */
    if (a.w) {
        collect(b, a.w, n, 0);
    } else {
        collect(b, a.p, n, 1);
        b->wide_from = b->count;
    }
    collect(b, a.p, n, 1);
    collect(b, a.m, n, 1);
    collect(b, a.v, n, 1);
    free(positive);
}

/* ---- comparing ---- */

static void compare(const char *what, const bank *want, const bank *plain, const bank *got,
                    int64_t from, int64_t to, int rounded) {
    double off = 0, top = 0, worst = 0, eps = rounded ? 1.0 / 256 : FLT_EPSILON;
    for (int64_t i = from; i < to; i++) {
        double x = rounded ? to_bf16(want->out[i]) : plain->out[i];
        off = fmax(off, fabs(x - want->out[i]));
        top = fmax(top, fabs(want->out[i]));
        worst = isnan(got->out[i]) ? INFINITY : fmax(worst, fabs(got->out[i] - want->out[i]));
    }
    if (worst <= 2 * off + 4 * eps * top) return;
    print_error("%s is off by %g, allowed %g\n", what, worst, 2 * off + 4 * eps * top);
    fail();
}

/* What this machine has. */
enum { DEVICES = 32 };
static struct device {
    const char *name;
    ht_context *ctx;
    int has_bf16;
} devices[DEVICES];
static int device_count;

static void check_on(const struct device *d, const char *name, op_run run, int64_t rows,
                     int64_t width, ht_dtype dtype, const bank *want, const bank *plain) {
    char what[128];
    bank got = {.ctx = d->ctx, .dtype = dtype};
    run(&got, rows, width);
    assert_int_equal(want->count, got.count);
    snprintf(what, sizeof what, "%s: %s, %lld x %lld, %s", d->name, name, (long long)rows,
             (long long)width, dtype == HT_BF16 ? "bf16" : "f32");
    /* what is stored wide was still computed from bf16 products where those are inputs */
    compare(what, want, plain, &got, 0, got.wide_from, dtype == HT_BF16);
    compare(what, want, plain, &got, got.wide_from, got.count, dtype == HT_BF16);
    clear(&got);
}

/* On every device, what it should be being computed once; bf16: on those that have it, in it alone.
 */
static void check(const char *name, op_run run, int64_t rows, int64_t width, int bf16) {
    bank want = {.ctx = ref, .dtype = HT_F64}, plain = {.ctx = ref, .dtype = HT_F32};
    run(&want, rows, width), run(&plain, rows, width);
    for (int i = 0; i < device_count; i++) {
        const struct device *d = &devices[i];
        if (!bf16) check_on(d, name, run, rows, width, HT_F32, &want, &plain);
        if (d->has_bf16) check_on(d, name, run, rows, width, HT_BF16, &want, &plain);
    }
    clear(&want), clear(&plain);
}

static const struct op {
    const char *name;
    op_run run;
} ops[] = {{"norm", run_norm},
           {"linear", run_plain},
           {"gelu", run_gelu},
           {"gelu, dropout", run_gelu_drop},
           {"relu", run_relu},
           {"embedding", run_embed},
           {"rotary", run_rotary},
           {"first rows", run_first},
           {"last rows", run_last},
           {"mean", run_mean},
           {"mean of all", run_mean_all},
           {"largest", run_max},
           {"match", run_match},
           {"optimiser", run_optimiser},
           {"adding", run_adding},
           {"embedding, even", run_embed_even},
           {"amounts", run_amounts},
           {"neighbours", run_sides},
           {"neighbours before", run_back},
           {"neighbours kept", run_past}};

typedef struct shaped {
    const char *name;
    op_run run;
    int64_t rows, width;
} shaped;

/* What has kernels for large shapes alone. */
static const shaped large[] = {
    {"widening", run_widening, 1100, 64}, {"widening", run_widening, 1300, 192},
    {"adding", run_adding, 1100, 128},    {"loss", run_loss, 70, 2048},
    {"loss", run_loss, 300, 4104},        {"loss", run_loss, 150, 16000},
    {"loss", run_loss, 140, 32768},       {"loss", run_loss, 20, 40000}};

/* And in bf16 alone: nothing new for a device without it. */
static const shaped slim[] = {
    {"slim", run_slim16, 4100, 16},          {"slim", run_slim16, 4997, 32},
    {"slim", run_slim32, 4096, 16},          {"slim", run_slim32, 6000, 32},
    {"slim", run_slim32, 4111, 48},          {"slim", run_slim32, 4200, 64},
    {"slim", run_slim64, 4300, 32},          {"adding", run_adding, 5000, 32},
    {"slim, gelu", run_slim_gelu, 5000, 32}, {"slim, gelu", run_slim_gelu, 5000, 48}};

/* A sanitizer finds in small shapes what it would in large ones. */
static int too_large(int64_t rows, int64_t width) {
    return training_thin() > 1 && rows * width > 300000;
}

static int any_bf16(void) {
    int any = 0;
    for (int i = 0; i < device_count; i++) any |= devices[i].has_bf16;
    return any;
}

static void each_op(void **state) {
    /* the last is for kernels of narrow rows: only where there is bf16 */
    static const int64_t sizes[][2] = {{7, 5},     {40, 24},   {33, 64},  {300, 128}, {150, 256},
                                       {700, 520}, {60, 1024}, {9, 2056}, {5000, 32}};
    const struct op *op = *state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes - !any_bf16(); i++)
        if (!too_large(sizes[i][0], sizes[i][1]))
            check(op->name, op->run, sizes[i][0], sizes[i][1], 0);
}

static void large_shapes(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof large / sizeof *large; k++)
        if (!too_large(large[k].rows, large[k].width))
            check(large[k].name, large[k].run, large[k].rows, large[k].width, 0);
}

static void slim_shapes(void **state) {
    (void)state;
    for (size_t k = 0; any_bf16() && k < sizeof slim / sizeof *slim; k++)
        check(slim[k].name, slim[k].run, slim[k].rows, slim[k].width, 1);
}

static int open_all(void **state) {
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    (void)state;
    desc.device = "cpu:ref";
    if (ht_context_create(&ref, &desc) != HT_OK || hti_models_open(ref, HT_F64) != HT_OK) return 1;
    for (int i = 0; i < ht_device_count() && device_count < DEVICES; i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        struct device *d = &devices[device_count];
        if (ht_device_get(i, &info) != HT_OK || !info.available) continue;
        d->name = desc.device = info.name;
        if (ht_context_create(&d->ctx, &desc) != HT_OK) return 1;
        if (hti_models_open(d->ctx, HT_F32) != HT_OK) return 1;
        d->has_bf16 = hti_models_open(d->ctx, HT_BF16) == HT_OK;
        print_message("on %s%s\n", d->name, d->has_bf16 ? ", bf16, too" : "");
        device_count++;
    }
    return device_count == 0;
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < device_count; i++) ht_context_destroy(devices[i].ctx);
    ht_context_destroy(ref);
    return 0;
}

int main(void) {
    enum { OPS = sizeof ops / sizeof *ops };
    struct CMUnitTest tests[OPS + 2] = {[OPS] = cmocka_unit_test(large_shapes),
                                        [OPS + 1] = cmocka_unit_test(slim_shapes)};
    for (int i = 0; i < OPS; i++)
        tests[i] =
            (struct CMUnitTest){ops[i].name, each_op, NULL, NULL, (void *)(uintptr_t)&ops[i]};
    return cmocka_run_group_tests_name("each op", tests, open_all, close_all);
}
