/*
 * The reference kernels in double.
 */
#define real double
#define FN(name) name##_f64
#define exp_f64 exp
#define log_f64 log
#define sqrt_f64 sqrt

#include "cpu/ref/attention.h"
#include "cpu/ref/cache.h"
#include "cpu/ref/pairs.h"

const hti_ref_kernels hti_ref_f64 = {
    need_f64, forward_f64, backward_f64, cache_thread_bytes_f64, cache_extend_f64, pairs_f64};
