/*
 * Stands in for the CUDA kernels in a build without nvcc, so that no other file needs to know.
 */
#include "op.h"

static int available(void) { return 0; }

static const hti_candidate candidates[] = {
    {"cuda:0", "this build has no CUDA kernels (built without nvcc, or with HT_CUDA=OFF)", NULL,
     available},
    {NULL, NULL, NULL, NULL},
};

const hti_candidate *hti_cuda_candidates(void) { return candidates; }
