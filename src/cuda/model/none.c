/*
 * Stands in for the models' CUDA kernels in a build without nvcc.
 */
#include "model_op.h"

const hti_model_ops *hti_cuda_models(void) { return NULL; }
