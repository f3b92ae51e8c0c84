/*
 * The model's ops on the CPU. One body (body.h) is compiled for double, for float, and for
 * float once per instruction set; a device's table says by `kernels` which float copy it uses.
 * Entries dispatch on the dtype.
 */
#ifndef HTI_CPU_MODEL_OPS_H
#define HTI_CPU_MODEL_OPS_H

#include "cpu/cpu.h"
#include "model_op.h"

typedef struct hti_model_kernels {
    void (*embed_forward)(ht_context *, const hti_embed_call *);
    void (*embed_backward)(ht_context *, const hti_embed_call *);
    void (*amounts_forward)(ht_context *, const hti_amounts_call *);
    void (*amounts_backward)(ht_context *, const hti_amounts_call *);
    void (*norm_forward)(ht_context *, const hti_norm_call *);
    void (*norm_backward)(ht_context *, const hti_norm_call *);
    void (*activate)(ht_context *, const hti_linear_call *);      /* pre, y from the product in y */
    void (*activate_back)(ht_context *, const hti_linear_call *); /* dy becomes dpre */
    void (*column_sums)(ht_context *, void *sums, const void *x, int64_t rows, int64_t width);
    void (*rotary)(ht_context *, const hti_rotary_call *);
    void (*near_forward)(ht_context *, const hti_near_call *);
    void (*near_backward)(ht_context *, const hti_near_call *);
    void (*near_keep)(ht_context *, const hti_near_call *);
    void (*pool_forward)(ht_context *, const hti_pool_call *);
    void (*pool_backward)(ht_context *, const hti_pool_call *);
    void (*match_forward)(ht_context *, const hti_match_call *);
    void (*match_backward)(ht_context *, const hti_match_call *);
    /* logits [rows, classes] of rows first ... become their gradients (if call->dx); adds up the
     * losses */
    void (*loss_rows)(ht_context *, const hti_loss_call *, void *logits, int64_t first,
                      int64_t rows);
    void (*square)(ht_context *, hti_step *, const void *g, int64_t count);
    void (*adamw)(ht_context *, const hti_adamw_call *);
    /* matrix i: its moment, and x = what is to be made orthogonal, of length 1 */
    void (*muon_begin)(ht_context *, const hti_muon_call *, int64_t i, void *x);
    void (*mix)(ht_context *, void *x, double scale, const void *y, double by, int64_t count);
    void (*muon_end)(ht_context *, const hti_muon_call *, int64_t i, const void *x);
    void (*gemm)(ht_context *, const hti_gemm *); /* plain loops */
} hti_model_kernels;

extern const hti_model_kernels hti_model_f64, hti_model_f32, hti_model_avx2, hti_model_avx512;

ht_status hti_cpu_gemm_plain(ht_context *ctx, const hti_gemm *call);
ht_status hti_cpu_gemm_blas(ht_context *ctx,
                            const hti_gemm *call); /* float by CBLAS; double plain */
/* From here on each product of BLAS uses one thread; what it was before, and back to that. */
int hti_cpu_blas_alone(void);
void hti_cpu_blas_threads(int threads);

ht_status hti_cpu_model_check(ht_context *ctx, ht_dtype dtype);
ht_status hti_cpu_embed_forward(ht_context *ctx, const hti_embed_call *call);
ht_status hti_cpu_embed_backward(ht_context *ctx, const hti_embed_call *call);
size_t hti_cpu_embed_scratch(const ht_context *ctx, const hti_embed_call *call);
ht_status hti_cpu_amounts_forward(ht_context *ctx, const hti_amounts_call *call);
ht_status hti_cpu_amounts_backward(ht_context *ctx, const hti_amounts_call *call);
ht_status hti_cpu_norm_forward(ht_context *ctx, const hti_norm_call *call);
ht_status hti_cpu_norm_backward(ht_context *ctx, const hti_norm_call *call);
size_t hti_cpu_norm_scratch(const ht_context *ctx, const hti_norm_call *call);
ht_status hti_cpu_linear_forward(ht_context *ctx, const hti_linear_call *call);
ht_status hti_cpu_linear_backward(ht_context *ctx, const hti_linear_call *call);
ht_status hti_cpu_rotary(ht_context *ctx, const hti_rotary_call *call);
ht_status hti_cpu_near_forward(ht_context *ctx, const hti_near_call *call);
ht_status hti_cpu_near_backward(ht_context *ctx, const hti_near_call *call);
ht_status hti_cpu_near_keep(ht_context *ctx, const hti_near_call *call);
ht_status hti_cpu_pool_forward(ht_context *ctx, const hti_pool_call *call);
ht_status hti_cpu_pool_backward(ht_context *ctx, const hti_pool_call *call);
ht_status hti_cpu_match_forward(ht_context *ctx, const hti_match_call *call);
ht_status hti_cpu_match_backward(ht_context *ctx, const hti_match_call *call);
size_t hti_cpu_loss_scratch(const ht_context *ctx, const hti_loss_call *call);
ht_status hti_cpu_loss(ht_context *ctx, const hti_loss_call *call);
ht_status hti_cpu_square(ht_context *ctx, ht_dtype dtype, hti_step *step, const void *g,
                         int64_t count);
ht_status hti_cpu_adamw(ht_context *ctx, const hti_adamw_call *call);
size_t hti_cpu_muon_scratch(const ht_context *ctx, const hti_muon_call *call);
ht_status hti_cpu_muon(ht_context *ctx, const hti_muon_call *call);
ht_status hti_cpu_round(ht_context *ctx, ht_dtype dtype, void *w, const void *p, int64_t count);

/* A table's entries: the float copy of the kernels, and the matrix product. */
#define HTI_CPU_MODEL(copy, product)                                                          \
    .kernels = &(copy), .gemm = (product), .check = hti_cpu_model_check,                      \
    .embed_forward = hti_cpu_embed_forward, .embed_backward = hti_cpu_embed_backward,         \
    .amounts_forward = hti_cpu_amounts_forward, .amounts_backward = hti_cpu_amounts_backward, \
    .embed_scratch = hti_cpu_embed_scratch, .norm_forward = hti_cpu_norm_forward,             \
    .norm_backward = hti_cpu_norm_backward, .norm_scratch = hti_cpu_norm_scratch,             \
    .linear_forward = hti_cpu_linear_forward, .linear_backward = hti_cpu_linear_backward,     \
    .rotary = hti_cpu_rotary, .near_forward = hti_cpu_near_forward,                           \
    .near_backward = hti_cpu_near_backward, .near_keep = hti_cpu_near_keep,                   \
    .pool_forward = hti_cpu_pool_forward, .match_forward = hti_cpu_match_forward,             \
    .match_backward = hti_cpu_match_backward, .pool_backward = hti_cpu_pool_backward,         \
    .loss_scratch = hti_cpu_loss_scratch, .loss = hti_cpu_loss, .square = hti_cpu_square,     \
    .adamw = hti_cpu_adamw, .muon_scratch = hti_cpu_muon_scratch, .muon = hti_cpu_muon,       \
    .round = hti_cpu_round

#endif
