/*
 * The kernels of one 16-bit type from outside: a table per type (element.h), and what its entries
 * do. Which calls they take is the list's (families.c).
 */
#ifndef HTI_CUDA_TYPED_H
#define HTI_CUDA_TYPED_H

#include "cuda/element.h"

typedef struct hti_typed {
    /* tile/: every option, blocks of 16, 32, ... 128. saved is that of the generic kernels. shape:
     * a call's sizes, tensors and options, nothing carved. */
    size_t (*tile_scratch)(const hti_cuda_args &shape, int has_bias, int backward);
    ht_status (*tile_forward)(ht_context *, const hti_attention_call *, const hti_cuda_args &shape);
    ht_status (*tile_backward)(ht_context *, const hti_attention_call *,
                               const hti_cuda_args &shape);

    /* narrow/: 4 or 8 columns, sequences that fit into shared memory. They need no scratch but
     * args.cu, and leave in saved what the generic ones do, and behind it the bits of the dropout
     * where they can. */
    size_t (*narrow_saved)(const ht_attention_desc *);
    void (*narrow_set_saved)(hti_cuda_args *, const ht_attention_desc *);
    size_t (*narrow_backward_shared)(int head_dim, int length, int levels);
    ht_status (*narrow_forward)(const ht_context *, const hti_cuda_args &);
    ht_status (*narrow_backward)(const ht_context *, const hti_cuda_args &);

    /* tower/: see hier.h */
    size_t (*hier_saved)(const ht_attention_desc *);
    size_t (*hier_forward_scratch)(const ht_attention_desc *);
    size_t (*hier_backward_scratch)(const ht_attention_desc *);
    ht_status (*hier_forward)(ht_context *, const hti_attention_call *);
    ht_status (*hier_backward)(ht_context *, const hti_attention_call *);
    size_t (*fine_scratch)(const ht_attention_desc *);
    ht_status (*fine_forward)(ht_context *, const hti_attention_call *);

    /* full/: see full.h */
    ht_status (*full_forward)(ht_context *, const hti_attention_call *, const hti_cuda_args &);
    ht_status (*full_backward)(ht_context *, const hti_attention_call *, const hti_cuda_args &);
} hti_typed;

extern const hti_typed hti_typed_bf16, hti_typed_f16;

/* What both types need alike is asked of bf16's, whatever the plan's type. */
static inline const hti_typed &hti_typed_of(const ht_attention_desc *d) {
    return d->dtype == HT_F16 ? hti_typed_f16 : hti_typed_bf16;
}

namespace HTI_KERNELS {
size_t hti_tile_scratch(const hti_cuda_args &shape, int has_bias, int backward);
ht_status hti_tile_forward(ht_context *ctx, const hti_attention_call *call,
                           const hti_cuda_args &shape);
ht_status hti_tile_backward(ht_context *ctx, const hti_attention_call *call,
                            const hti_cuda_args &shape);

size_t hti_narrow_saved(const ht_attention_desc *desc);
void hti_narrow_set_saved(hti_cuda_args *args, const ht_attention_desc *desc);
size_t hti_narrow_backward_shared(int head_dim, int length, int levels);
ht_status hti_narrow_forward(const ht_context *ctx, const hti_cuda_args &args);
ht_status hti_narrow_backward(const ht_context *ctx, const hti_cuda_args &args);
} // namespace HTI_KERNELS

#endif
