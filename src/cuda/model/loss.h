/*
 * What the kernels of the loss share: their arguments, and what is kept of a row.
 */
#ifndef HTI_CUDA_MODEL_LOSS_H
#define HTI_CUDA_MODEL_LOSS_H

#include "cuda/model/model.h"

struct loss_args {
    int64_t rows, first; /* of this chunk */
    int classes, back;
    void *logits; /* [rows, classes] */
    const void *bias;
    const int32_t *targets; /* of all rows */
    hti_step *step;
    double *loss; /* of all rows */
    int32_t *hit;
    float *row_loss; /* or NULL */
    uint8_t *row_hit;
};

struct row_state {
    float top, sum; /* largest logit, sum of exp(z - top) */
    int best;       /* where the largest is; the first of equal ones */
};

/* What one thread leaves of a row; z is the target's logit. */
DEVICE void finish_row(const loss_args &a, int64_t row, const row_state &s, float z, int target) {
    double loss = target < 0 ? 0 : log((double)s.sum) - ((double)z - (double)s.top);
    a.loss[a.first + row] = loss;
    a.hit[a.first + row] = target >= 0 && s.best == target;
    if (a.row_loss) a.row_loss[a.first + row] = (float)loss;
    if (a.row_hit) a.row_hit[a.first + row] = (uint8_t)a.hit[a.first + row];
}

DEVICE float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }

/* loss_ring.cu: bf16 rows without bias, for compute capability 9.0. */
int hti_loss_ring_takes(const ht_context *ctx, const loss_args &a);
ht_status hti_loss_ring(const ht_context *ctx, const loss_args &a);

#endif
