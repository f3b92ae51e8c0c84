/*
 * What the runtime asks of the part that runs kernels.
 */
#ifndef HOST_BLOCK_H
#define HOST_BLOCK_H

#include "cuda_runtime.h"

enum { HOST_SHARED = 256 << 10 }; /* room for what a block may have, and more */

namespace host {

struct launch {
    void (*call)(const void *kernel, const void *args);
    const void *kernel, *args;
    dim3 grid, threads;
    size_t shared;
};
void run_launch(const launch &l);

} // namespace host

#endif
