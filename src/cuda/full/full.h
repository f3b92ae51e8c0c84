/*
 * Kind full on tensor cores: bf16, head_dim = value_dim = 16, 32, 64 or 128, no rotary or
 * dropout; with a bias, blocks of up to 128. saved and scratch are those of the generic kernels, so
 * that backward may be served by either, whoever did forward.
 */
#ifndef HTI_CUDA_FULL_H
#define HTI_CUDA_FULL_H

#include "cuda/hier.h"

namespace HTI_KERNELS {

/* args: what the generic kernels would get; cu and h are already carved, cu is filled in. */
void hti_full_set(hti_hier_args *out, const hti_attention_call *call, const hti_cuda_args &args);
ht_status hti_full_forward(ht_context *ctx, const hti_attention_call *call,
                           const hti_cuda_args &args);
ht_status hti_full_backward(ht_context *ctx, const hti_attention_call *call,
                            const hti_cuda_args &args);

} // namespace HTI_KERNELS

#endif
