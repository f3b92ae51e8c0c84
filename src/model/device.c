/*
 * Which table of the models' kernels goes with a context: that of the same name as the attention's.
 */
#include <string.h>

#include "model/model.h"

static const hti_model_ops *find(const char *name) {
    for (const hti_model_ops *const *t = hti_cpu_models; *t; t++)
        if (strcmp((*t)->name, name) == 0) return *t;
    const hti_model_ops *cuda = hti_cuda_models();
    return cuda && strcmp(cuda->name, name) == 0 ? cuda : NULL;
}

ht_status hti_models_open(ht_context *ctx, ht_dtype dtype) {
    if (!ctx->guest.ops) ctx->guest.ops = find(ctx->ops->name);
    CHECK(ctx, hti_models(ctx), HT_UNSUPPORTED, "device \"%s\" has no kernels for models",
          ctx->device);
    return hti_models(ctx)->check(ctx, dtype);
}
