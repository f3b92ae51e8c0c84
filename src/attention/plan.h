/*
 * The inside of a plan, and the checks that every call goes through.
 */
#ifndef HTI_PLAN_H
#define HTI_PLAN_H

#include "op.h"

struct ht_attention {
    ht_context *ctx;
    ht_attention_desc desc; /* checked, defaults filled in */
    ht_attention_need need;
};

/* As the public call. aligned: all tensors of all calls, gradients too, lie in steps of 16 bytes;
 * kernels that take such tensors alone then need no room for others beside them. */
HTI_SHARED ht_status hti_attention_create(ht_attention **out, ht_context *ctx,
                                          const ht_attention_desc *desc, int aligned);

/* Checks args against the plan and fills in the call: strides, rows, longest length. slots 0: rows,
 * sequences and length must keep to the plan's maxima; else it is a cache's call, with at most so
 * many sequences. Scratch and saved are copied as they are. */
ht_status hti_call_make(hti_attention_call *out, const ht_attention *plan,
                        const ht_attention_args *args, int64_t slots);

/* As the public calls, for a model's layer. */
typedef struct hti_attention_how {
    const uint32_t *offset_device; /* args->offset again in device memory, for captured graphs */
    int first;                     /* as in hti_attention_call */
} hti_attention_how;
HTI_SHARED ht_status hti_attention_forward(const ht_attention *plan, const ht_attention_args *args,
                                           hti_attention_how how);
HTI_SHARED ht_status hti_attention_backward(const ht_attention *plan, const ht_attention_args *args,
                                            const ht_attention_grads *grads, hti_attention_how how);

#endif
