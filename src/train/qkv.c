/*
 * A look inside: what the attention of one layer gets, copied to the host.
 */
#include <string.h>

#include "train/trainer.h"

/* One number of the model's dtype as float. */
static float real(const void *data, ht_dtype dtype, int64_t i) {
    if (dtype == HT_F64) return (float)((const double *)data)[i];
    if (dtype == HT_F32) return ((const float *)data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Row `row` of the layer's [rows, inner + 2 kv] becomes row `at` of q, k and v. */
static ht_status read_row(ht_trainer *t, void *buffer, int64_t layer, int64_t row, int64_t at,
                          float *q, float *k, float *v) {
    const ht_config *c = &t->model->config;
    ht_dtype dtype = t->model->dtype;
    int64_t width = c->inner + 2 * HTI_KV;
    size_t bytes = (size_t)width * hti_bytes(dtype);
    const char *from = (const char *)t->net.kept[layer].qkv + (size_t)row * bytes;
    TRY(t->ctx->ops->copy_out(t->ctx, buffer, from, bytes));
    for (int64_t i = 0; i < c->inner; i++) q[at * c->inner + i] = real(buffer, dtype, i);
    for (int64_t i = 0; i < HTI_KV; i++) {
        k[at * HTI_KV + i] = real(buffer, dtype, c->inner + i);
        v[at * HTI_KV + i] = real(buffer, dtype, c->inner + HTI_KV + i);
    }
    return HT_OK;
}

ht_status ht_trainer_read_qkv(ht_trainer *t, const ht_batch *batch, int64_t layer, float *q,
                              float *k, float *v) {
    NEED(t);
    const ht_config *c = &t->model->config;
    const hti_net *n = &t->net;
    ht_batch own;
    CHECK(t->ctx, q && k && v, HT_INVALID, "ht_trainer_read_qkv: q, k or v is NULL");
    CHECK(t->ctx, layer >= 0 && layer < c->layers, HT_INVALID, "layer must be 0 to %lld, got %lld",
          (long long)c->layers - 1, (long long)layer);
    CHECK(t->ctx, c->mask_zero != HTI_LEAVE_OUT, HT_UNSUPPORTED,
          "ht_trainer_read_qkv: rows that mask_zero 2 leaves out have no queries and keys");
    TRY(hti_trainer_load(t, &own, batch));
    TRY(hti_net_layers(&t->net, 0, layer + 1));
    int64_t width = c->inner + 2 * HTI_KV;
    void *buffer = hti_host_alloc(t->ctx, (size_t)width * hti_bytes(t->model->dtype));
    CHECK(t->ctx, buffer, HT_NOMEM, "out of memory: a row of %lld numbers", (long long)width);
    ht_status status = HT_OK;
    for (int64_t i = 0, at = 0; i < own.sequences; i++)
        for (int64_t r = 0; r < n->count_host[i] && status == HT_OK; r++)
            status = read_row(t, buffer, layer, n->start_host[i] + r, at++, q, k, v);
    hti_host_free(t->ctx, buffer);
    return status;
}
