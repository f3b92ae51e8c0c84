/*
 * The emulated device: one, of compute capability 8.0 with 163 KiB of shared memory per block, or
 * what HT_EMULATED names: "8.6" has 99 KiB; "10.0" has 227 and, as newer devices do, runs what was
 * compiled for 8.0. Calls are done when they return. Its memory is the host's, NaN at first;
 * addresses are looked up, and what is not the device's is refused.
 */
#include "block.h"

#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>

namespace {

enum : size_t { MEMORY = (size_t)8 << 30, KERNEL_SHARED = 48 << 10 };

struct kernel_entry {
    void (*call)(const void *, const void *);
    size_t most_shared;
};

struct {
    std::mutex lock;
    std::map<const char *, size_t> blocks, pinned;
    std::map<const void *, kernel_entry> kernels;
    size_t used;
} device;

thread_local cudaError_t last;

cudaError_t give(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

struct kind {
    const char *name;
    int major, minor;
    size_t shared;
};

const kind &kind_of_device() {
    static const kind kinds[] = {
        {"8.0", 8, 0, 163 << 10}, {"8.6", 8, 6, 99 << 10}, {"10.0", 10, 0, 227 << 10}};
    const char *name = getenv("HT_EMULATED");
    if (!name) return kinds[0];
    for (const kind &k : kinds)
        if (strcmp(name, k.name) == 0) return k;
    host::fault("HT_EMULATED must be 8.0, 8.6 or 10.0, got %s", name);
}

bool holds(const std::map<const char *, size_t> &blocks, const void *p, size_t bytes) {
    const char *at = (const char *)p;
    auto next = blocks.upper_bound(at);
    if (next == blocks.begin()) return false;
    --next;
    return at >= next->first && at + bytes <= next->first + next->second;
}

bool is_device(const void *p, size_t bytes) {
    std::lock_guard<std::mutex> lock(device.lock);
    return holds(device.blocks, p, bytes);
}

} // namespace

void host::know(const void *kernel, void (*call)(const void *, const void *)) {
    std::lock_guard<std::mutex> lock(device.lock);
    device.kernels.insert({kernel, {call, KERNEL_SHARED}});
}

/* ---- versions, errors, the device ---- */

cudaError_t cudaDriverGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13000, cudaSuccess; }

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    default: return "another error";
    }
}

const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}

/* The kernels are compiled with fused multiply-add where processors may lack it. */
cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
#if defined(__x86_64__)
    *count = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
#endif
    return *count ? cudaSuccess : give(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *out) { return *out = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int number) {
    return give(number == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int number) {
    if (number != 0) return give(cudaErrorInvalidDevice);
    const kind &k = kind_of_device();
    *out = {};
    snprintf(out->name, sizeof out->name, "emulated device (the CPU)");
    out->totalGlobalMem = MEMORY;
    out->sharedMemPerBlock = KERNEL_SHARED, out->sharedMemPerBlockOptin = k.shared;
    out->major = k.major, out->minor = k.minor, out->multiProcessorCount = 4;
    return cudaSuccess;
}

/* ---- streams: everything is done at once ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    *out = (cudaStream_t)malloc(1);
    return give(*out ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return free(stream), cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

/* ---- memory ---- */

cudaError_t cudaMalloc(void **out, size_t bytes) {
    std::lock_guard<std::mutex> lock(device.lock);
    *out = NULL;
    if (bytes > MEMORY - device.used) return give(cudaErrorMemoryAllocation);
    if (posix_memalign(out, 256, bytes ? bytes : 1) != 0) return give(cudaErrorMemoryAllocation);
    if (bytes < ((size_t)1 << 30)) memset(*out, 0xff, bytes);
    device.used += bytes;
    device.blocks[(const char *)*out] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *block) {
    if (!block) return cudaSuccess;
    std::lock_guard<std::mutex> lock(device.lock);
    auto at = device.blocks.find((const char *)block);
    if (at == device.blocks.end()) return give(cudaErrorInvalidValue);
    device.used -= at->second;
    device.blocks.erase(at);
    free(block);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    std::lock_guard<std::mutex> lock(device.lock);
    *out = malloc(bytes);
    if (!*out) return give(cudaErrorMemoryAllocation);
    device.pinned[(const char *)*out] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *block) {
    std::lock_guard<std::mutex> lock(device.lock);
    if (!device.pinned.erase((const char *)block)) return give(cudaErrorInvalidValue);
    free(block);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    std::lock_guard<std::mutex> lock(device.lock);
    *total = MEMORY, *available = MEMORY - device.used;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p) {
    std::lock_guard<std::mutex> lock(device.lock);
    out->type = holds(device.blocks, p, 0)   ? cudaMemoryTypeDevice
                : holds(device.pinned, p, 0) ? cudaMemoryTypeHost
                                             : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
    bool to = kind != cudaMemcpyDeviceToHost, from = kind != cudaMemcpyHostToDevice;
    if (is_device(dst, bytes) != to || is_device(src, bytes) != from)
        return give(cudaErrorInvalidValue);
    memmove(dst, src, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t) {
    if (!is_device(dst, bytes)) return give(cudaErrorInvalidValue);
    memset(dst, byte, bytes);
    return cudaSuccess;
}

/* ---- kernels ---- */

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *) {
    *out = {0, 128, 80};
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int value) {
    std::lock_guard<std::mutex> lock(device.lock);
    auto at = device.kernels.find(kernel);
    if (at == device.kernels.end() || value < 0 || (size_t)value > kind_of_device().shared)
        return give(cudaErrorInvalidValue);
    at->second.most_shared = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 threads, void **args,
                             size_t shared, cudaStream_t) {
    kernel_entry entry = {};
    {
        std::lock_guard<std::mutex> lock(device.lock);
        auto at = device.kernels.find(kernel);
        if (at == device.kernels.end()) host::fault("a kernel is launched that nobody announced");
        entry = at->second;
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > 65535 ||
        grid.z > 65535 || threads.x == 0 || threads.x > 1024 || threads.y != 1 || threads.z != 1)
        return give(cudaErrorInvalidConfiguration);
    if (shared > entry.most_shared) return give(cudaErrorInvalidValue);
    host::run_launch({entry.call, kernel, args[0], grid, threads, shared});
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *kernel, void **args) {
    return cudaLaunchKernel(kernel, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream);
}
