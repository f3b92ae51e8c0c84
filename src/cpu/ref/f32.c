/*
 * The reference kernels in float.
 */
#define real float
#define FN(name) name##_f32
#define exp_f32 expf
#define log_f32 logf
#define sqrt_f32 sqrtf

#include "cpu/ref/attention.h"
#include "cpu/ref/cache.h"
#include "cpu/ref/pairs.h"

const hti_ref_kernels hti_ref_f32 = {
    need_f32, forward_f32, backward_f32, cache_thread_bytes_f32, cache_extend_f32, pairs_f32};
