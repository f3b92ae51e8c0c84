/*
 * The model's ops in float, compiled for AVX-512.
 */
#define real float
#define FN(name) name##_avx512
#define MODEL_KERNELS hti_model_avx512

#include "cpu/model/exp.h"

/* after it: the loops call exp_real */
#include "cpu/model/body.h"
