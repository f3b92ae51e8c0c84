/*
 * The model's inside: resolved configuration and weights.
 */
#ifndef HTI_MODEL_H
#define HTI_MODEL_H

#include "common/names.h"
#include "model/params.h"
#include "model_op.h"

struct ht_model {
    ht_context *ctx;
    ht_config config;
    ht_dtype dtype;
    hti_params params;
    hti_names labels; /* [classes], or none: numbers; of classifiers */
    int named;        /* labels were set */
    void *p;          /* device, wide [params.total]: the optimiser's copy */
    void *w;          /* device, dtype: what the kernels read; p itself where dtype is wide */
};

/* As ht_model_create; first 0: all weights are zero, somebody else fills them. */
ht_status hti_model_make(ht_model **out, ht_context *ctx, const ht_config *config, int first);

/* Tells the kernels' copy about new values of p. */
ht_status hti_model_round(ht_model *model);

/* Host doubles from and to a tensor that lies at `offset` of a wide device arena. */
ht_status hti_tensor_read(ht_context *ctx, double *out, const void *arena, ht_dtype dtype,
                          int64_t offset, int64_t count);
ht_status hti_tensor_write(ht_context *ctx, void *arena, const double *in, ht_dtype dtype,
                           int64_t offset, int64_t count);

/* Address of element `offset` of the kernels' copy, NULL for -1; and of a wide arena. */
static inline void *hti_weight(const ht_model *m, int64_t offset) {
    return offset < 0 ? NULL : (char *)m->w + (size_t)offset * hti_bytes(m->dtype);
}
static inline void *hti_wide(const void *arena, ht_dtype dtype, int64_t offset) {
    return offset < 0 || !arena ? NULL : (char *)arena + (size_t)offset * hti_wide_bytes(dtype);
}

#endif
