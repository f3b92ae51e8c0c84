/*
 * The model's ops in double: the meaning of each, and the precision of gradient checks.
 */
#define real double
#define FN(name) name##_f64
#define MODEL_KERNELS hti_model_f64
#define exp_real exp
#define sqrt_real sqrt

#include "cpu/model/body.h"
