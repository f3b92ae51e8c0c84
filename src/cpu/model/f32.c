/*
 * The model's ops in float, for any machine.
 */
#define real float
#define FN(name) name##_f32
#define MODEL_KERNELS hti_model_f32

#include "cpu/model/exp.h"

/* after it: the loops call exp_real */
#include "cpu/model/body.h"
