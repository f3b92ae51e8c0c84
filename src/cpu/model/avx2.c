/*
 * The model's ops in float, compiled for AVX2 and FMA.
 */
#define real float
#define FN(name) name##_avx2
#define MODEL_KERNELS hti_model_avx2

#include "cpu/model/exp.h"

/* after it: the loops call exp_real */
#include "cpu/model/body.h"
