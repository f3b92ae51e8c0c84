/*
 * Kind full on tensor cores: bf16, head_dim = value_dim = 16, 32, 64 or 128, no rotary or
 * dropout; with a bias, blocks of up to 128. saved and scratch are those of the generic kernels, so
 * that backward may be served by either, whoever did forward.
 */
#ifndef HTI_CUDA_FULL_H
#define HTI_CUDA_FULL_H

#include "cuda/hier.h"

#define HTI_FULL_BLOCK 128 /* so that tables of biases fit beside the tiles */

/* Whether these kernels take a call (shape, alignment). Backward also asks for aligned gradients
 * and one query head per key head. */
int hti_full_takes(const hti_attention_call *call);
int hti_full_takes_backward(const hti_attention_call *call);

/* args: what the generic kernels would get; cu and h are already carved, cu is filled in. */
void hti_full_set(hti_hier_args *out, const hti_attention_call *call, const hti_cuda_args &args);
ht_status hti_full_forward(ht_context *ctx, const hti_attention_call *call,
                           const hti_cuda_args &args);
ht_status hti_full_backward(ht_context *ctx, const hti_attention_call *call,
                            const hti_cuda_args &args);

#endif
