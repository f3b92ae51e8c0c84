/*
 * What a model makes of a whole sequence: one row of numbers.
 */
#include "train/trainer.h"

/* Of a classifier what its head reads: the pooled row of the sequence. */
static ht_status read_pooled(ht_trainer *t, double *row, int64_t sequence) {
    int64_t width = t->model->config.width;
    return hti_tensor_read(t->ctx, row, t->net.pooled, t->model->dtype, sequence * width, width);
}

/* Of others the mean of the sequence's rows behind the final norm; room: [width]. */
static ht_status read_mean(ht_trainer *t, double *row, double *room, int64_t sequence) {
    int64_t width = t->model->config.width, count = t->net.count_host[sequence];
    for (int64_t i = 0; i < width; i++) row[i] = 0;
    for (int64_t k = 0; k < count; k++) {
        int64_t at = (t->net.start_host[sequence] + k) * width;
        TRY(hti_tensor_read(t->ctx, room, t->net.normed, t->model->dtype, at, width));
        for (int64_t i = 0; i < width; i++) row[i] += room[i] / (double)count;
    }
    return HT_OK;
}

ht_status ht_trainer_embed(ht_trainer *t, const ht_batch *batch, float *out) {
    NEED(t);
    ht_batch own;
    int64_t width = t->model->config.width;
    CHECK(t->ctx, out, HT_INVALID, "ht_trainer_embed: out is NULL");
    TRY(hti_trainer_load(t, &own, batch));
    TRY(hti_net_forward(&t->net, 0));
    double *row = hti_host_alloc(t->ctx, 2 * (size_t)width * sizeof *row);
    CHECK(t->ctx, row, HT_NOMEM, "out of memory: two rows of %lld numbers", (long long)width);
    ht_status status = HT_OK;
    for (int64_t b = 0; b < own.sequences && status == HT_OK; b++) {
        status = hti_config_by_token(t->net.c) ? read_mean(t, row, row + width, b)
                                               : read_pooled(t, row, b);
        for (int64_t i = 0; i < width && status == HT_OK; i++) out[b * width + i] = (float)row[i];
    }
    hti_host_free(t->ctx, row);
    return status;
}
