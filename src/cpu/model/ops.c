/*
 * The entries of the model's ops on the CPU: pick the precision, put products and loops together.
 */
#include "cpu/model/ops.h"

#include <math.h>
#include <string.h>

static const hti_model_kernels *kernels(const ht_context *ctx, ht_dtype dtype) {
    return dtype == HT_F64 ? &hti_model_f64 : hti_models(ctx)->kernels;
}

ht_status hti_cpu_model_check(ht_context *ctx, ht_dtype dtype) {
    CHECK(ctx, dtype == HT_F32 || dtype == HT_F64, HT_UNSUPPORTED,
          "device \"%s\" runs models in f32 or f64, got %s", ctx->device,
          dtype == HT_BF16 ? "bf16" : "f16");
    return HT_OK;
}

/* ---- entries that are one kernel ---- */

#define ENTRY(name, type)                                               \
    ht_status hti_cpu_##name(ht_context *ctx, const hti_##type *call) { \
        kernels(ctx, call->dtype)->name(ctx, call);                     \
        return HT_OK;                                                   \
    }
ENTRY(embed_forward, embed_call)
ENTRY(embed_backward, embed_call)
ENTRY(amounts_forward, amounts_call)
ENTRY(amounts_backward, amounts_call)
ENTRY(norm_forward, norm_call)
ENTRY(norm_backward, norm_call)
ENTRY(rotary, rotary_call)
ENTRY(near_forward, near_call)
ENTRY(near_backward, near_call)
ENTRY(near_keep, near_call)
ENTRY(pool_forward, pool_call)
ENTRY(pool_backward, pool_call)
ENTRY(match_forward, match_call)
ENTRY(match_backward, match_call)
ENTRY(adamw, adamw_call)

size_t hti_cpu_embed_scratch(const ht_context *ctx, const hti_embed_call *call) {
    (void)ctx, (void)call;
    return 0;
}

size_t hti_cpu_norm_scratch(const ht_context *ctx, const hti_norm_call *call) {
    (void)ctx, (void)call;
    return 0;
}

ht_status hti_cpu_square(ht_context *ctx, ht_dtype dtype, hti_step *step, const void *g,
                         int64_t count) {
    kernels(ctx, dtype)->square(ctx, step, g, count);
    return HT_OK;
}

ht_status hti_cpu_round(ht_context *ctx, ht_dtype dtype, void *w, const void *p, int64_t count) {
    (void)ctx;
    memcpy(w, p, (size_t)count * hti_bytes(dtype)); /* dtype is the wide type here */
    return HT_OK;
}

ht_status hti_cpu_gemm_plain(ht_context *ctx, const hti_gemm *call) {
    kernels(ctx, call->dtype)->gemm(ctx, call);
    return HT_OK;
}

/* ---- Muon ---- */

/* Small products are not worth a team: each thread takes whole matrices. */
static int muon_team(const ht_context *ctx, const hti_muon_call *a) {
    return a->count < ctx->threads ? (int)a->count : ctx->threads;
}

/* x and one product of its size, two of the square of its smaller side. */
static size_t muon_room(const hti_muon_call *a) {
    int64_t side = a->rows < a->columns ? a->rows : a->columns;
    size_t bytes = (size_t)(2 * a->rows * a->columns + 2 * side * side) * hti_bytes(a->dtype);
    return (bytes + 63) / 64 * 64;
}

size_t hti_cpu_muon_scratch(const ht_context *ctx, const hti_muon_call *a) {
    return (size_t)muon_team(ctx, a) * muon_room(a);
}

/* c = op(a) op(b), all matrices as they lie. */
static ht_status multiply(ht_context *ctx, ht_dtype dtype, void *c, const void *a, const void *b,
                          int64_t m, int64_t n, int64_t k, int transpose_a, int transpose_b) {
    hti_gemm product = {.dtype = dtype,
                        .m = m,
                        .n = n,
                        .k = k,
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .a = a,
                        .lda = transpose_a ? m : k,
                        .b = b,
                        .ldb = transpose_b ? k : n,
                        .c = c,
                        .ldc = n};
    return hti_models(ctx)->gemm(ctx, &product);
}

/* One turn: x = a x + (b s + c s^2) x, s the product of x and its transpose on the smaller side. */
static ht_status muon_turn(ht_context *ctx, const hti_muon_call *a, char *x) {
    const hti_model_kernels *kern = kernels(ctx, a->dtype);
    int64_t rows = a->rows, columns = a->columns, n = rows * columns;
    int tall = rows > columns;
    int64_t side = tall ? columns : rows, other = tall ? rows : columns;
    size_t bytes = hti_bytes(a->dtype);
    char *product = x + (size_t)n * bytes, *s = product + (size_t)n * bytes,
         *s2 = s + (size_t)(side * side) * bytes;
    TRY(multiply(ctx, a->dtype, s, x, x, side, side, other, tall, !tall));
    TRY(multiply(ctx, a->dtype, s2, s, s, side, side, side, 0, 0));
    kern->mix(ctx, s, HTI_MUON_B, s2, HTI_MUON_C, side * side);
    TRY(multiply(ctx, a->dtype, product, tall ? x : s, tall ? s : x, rows, columns, side, 0, 0));
    kern->mix(ctx, x, HTI_MUON_A, product, 1, n);
    return HT_OK;
}

static ht_status muon_one(ht_context *ctx, const hti_muon_call *a, int64_t i, void *x) {
    kernels(ctx, a->dtype)->muon_begin(ctx, a, i, x);
    for (int k = 0; k < HTI_MUON_TURNS; k++) TRY(muon_turn(ctx, a, x));
    kernels(ctx, a->dtype)->muon_end(ctx, a, i, x);
    return HT_OK;
}

ht_status hti_cpu_muon(ht_context *ctx, const hti_muon_call *a) {
    if (!isfinite(a->step->out.square) || !isfinite(a->step->out.loss)) return HT_OK;
    int team = muon_team(ctx, a), before = hti_cpu_blas_alone();
    ht_status status[HTI_MUON_MOST];
#pragma omp parallel for num_threads(team) schedule(static, 1)
    for (int t = 0; t < team; t++)
        for (int64_t i = t; i < a->count; i += team)
            status[i] = muon_one(ctx, a, i, (char *)a->scratch + (size_t)t * muon_room(a));
    if (before != 1) hti_cpu_blas_threads(before);
    for (int64_t i = 0; i < a->count; i++) TRY(status[i]);
    return HT_OK;
}

/* ---- linear layers ---- */

ht_status hti_cpu_linear_forward(ht_context *ctx, const hti_linear_call *a) {
    hti_gemm product = {.dtype = a->dtype,
                        .m = a->rows,
                        .n = a->out,
                        .k = a->in,
                        .a = a->x,
                        .lda = a->in,
                        .b = a->w,
                        .ldb = a->in,
                        .transpose_b = 1,
                        .c = a->y,
                        .ldc = a->out};
    TRY(hti_models(ctx)->gemm(ctx, &product));
    hti_linear_call rest = *a;
    if (a->activation == HTI_LINEAR) rest.pre = NULL, rest.drop.p = 0;
    if (a->bias || a->activation != HTI_LINEAR) kernels(ctx, a->dtype)->activate(ctx, &rest);
    return HT_OK;
}

ht_status hti_cpu_linear_backward(ht_context *ctx, const hti_linear_call *a) {
    if (a->activation != HTI_LINEAR) kernels(ctx, a->dtype)->activate_back(ctx, a);
    if (a->dx) {
        hti_gemm dx = {.dtype = a->dtype,
                       .m = a->rows,
                       .n = a->in,
                       .k = a->out,
                       .a = a->dy,
                       .lda = a->out,
                       .b = a->w,
                       .ldb = a->in,
                       .c = a->dx,
                       .ldc = a->in};
        TRY(hti_models(ctx)->gemm(ctx, &dx));
        hti_linear_call before = {.activation = a->before,
                                  .rows = a->rows,
                                  .out = a->in,
                                  .pre = (void *)a->before_pre,
                                  .dy = a->dx,
                                  .drop = a->before_drop};
        if (a->before != HTI_LINEAR) kernels(ctx, a->dtype)->activate_back(ctx, &before);
        if (a->before_dbias)
            kernels(ctx, a->dtype)->column_sums(ctx, a->before_dbias, a->dx, a->rows, a->in);
    }
    hti_gemm dw = {.dtype = a->dtype,
                   .wide_c = 1,
                   .m = a->out,
                   .n = a->in,
                   .k = a->rows,
                   .a = a->dy,
                   .lda = a->out,
                   .transpose_a = 1,
                   .b = a->x,
                   .ldb = a->in,
                   .c = a->dw,
                   .ldc = a->in,
                   .accumulate = 1};
    TRY(hti_models(ctx)->gemm(ctx, &dw));
    if (a->dbias) kernels(ctx, a->dtype)->column_sums(ctx, a->dbias, a->dy, a->rows, a->out);
    return HT_OK;
}

/* ---- loss ---- */

/* Rows whose logits lie in the scratch at a time: about 8 MB. */
static int64_t loss_chunk(const hti_loss_call *a) {
    int64_t rows = ((int64_t)1 << 21) / a->classes;
    if (rows < 1) rows = 1;
    return rows < a->rows ? rows : a->rows;
}

size_t hti_cpu_loss_scratch(const ht_context *ctx, const hti_loss_call *call) {
    (void)ctx;
    return (size_t)loss_chunk(call) * (size_t)call->classes * hti_bytes(call->dtype);
}

/* Logits of rows first ... first + n - 1, their losses, and what flows back from them. */
static ht_status loss_part(ht_context *ctx, const hti_loss_call *a, int64_t first, int64_t n) {
    size_t row = (size_t)a->width * hti_bytes(a->dtype), at = (size_t)first * row;
    const char *x = (const char *)a->x + at;
    hti_gemm logits = {.dtype = a->dtype,
                       .m = n,
                       .n = a->classes,
                       .k = a->width,
                       .a = x,
                       .lda = a->width,
                       .b = a->w,
                       .ldb = a->width,
                       .transpose_b = 1,
                       .c = a->scratch,
                       .ldc = a->classes};
    TRY(hti_models(ctx)->gemm(ctx, &logits));
    kernels(ctx, a->dtype)->loss_rows(ctx, a, a->scratch, first, n);
    if (!a->dx) return HT_OK;
    hti_linear_call back = {.dtype = a->dtype,
                            .rows = n,
                            .in = a->width,
                            .out = a->classes,
                            .x = x,
                            .w = a->w,
                            .dy = a->scratch,
                            .dx = (char *)a->dx + at,
                            .dw = a->dw,
                            .dbias = a->dbias};
    return hti_cpu_linear_backward(ctx, &back);
}

ht_status hti_cpu_loss(ht_context *ctx, const hti_loss_call *a) {
    int64_t chunk = loss_chunk(a);
    for (int64_t first = 0; first < a->rows; first += chunk)
        TRY(loss_part(ctx, a, first, a->rows - first < chunk ? a->rows - first : chunk));
    return HT_OK;
}
