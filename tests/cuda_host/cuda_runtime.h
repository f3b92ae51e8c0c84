/*
 * The part of CUDA's runtime and of its language that src/cuda uses, for a build in which kernels
 * are host C++ and run on the CPU (emulator.cc). Stands in the place of NVIDIA's header.
 *
 * A thread block is a set of fibers on one host thread. They change places only where CUDA makes
 * threads wait for each other; meet() is that place.
 */
#ifndef HOST_CUDA_RUNTIME_H
#define HOST_CUDA_RUNTIME_H

#include <cmath>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HTI_CUDA_HOST 1

/* ---- the language ---- */

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
/* dynamic shared memory; a variable inside of a function (static shared memory) does not compile */
#define __shared__ __thread

#define HOST_VECTOR(type, name, bytes)                                                 \
    struct alignas(2 * bytes) name##2 {                                                \
        type x, y;                                                                     \
    };                                                                                 \
    struct name##3 {                                                                   \
        type x, y, z;                                                                  \
    };                                                                                 \
    struct alignas(4 * bytes) name##4 {                                                \
        type x, y, z, w;                                                               \
    };                                                                                 \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }            \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
HOST_VECTOR(int, int, 4)
HOST_VECTOR(unsigned, uint, 4)
HOST_VECTOR(float, float, 4)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* of the thread that runs */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace host {

/* Where in the source a thread waits: all that wait for each other must do so in one line. */
struct line {
    const char *file;
    int number;
};
#define HOST_LINE host::line at = {__builtin_FILE(), __builtin_LINE()}

/* What a lane brings to a meeting of its warp and takes away. */
struct slot {
    uint32_t word[12];
};

/* All lanes of mask meet; the last one runs join (or NULL) over the 32 slots, then all go on. The
 * caller's slot is valid until its next meeting. */
slot *meet(const char *what, uint32_t mask, const slot &mine,
           void (*join)(slot *all, uint32_t mask), line at);
/* Ends the program with a sentence that names kernel, block and thread. */
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
int lane();
int all_threads_or(int value, line at); /* __syncthreads_or, and __syncthreads */

/* Shared memory by 32-bit address, as PTX has it. */
uint32_t shared_address(const void *p);
void *shared_at(uint32_t address, size_t bytes, size_t align);

/* cp.async: the bytes arrive when they are waited for, never before. */
void copy_async(uint32_t to, const void *from, int bytes, int there);
void copies_commit();
void copies_wait(int groups_left);

/* A kernel's type, without which its arguments cannot be handed over. */
void know(const void *kernel, void (*call)(const void *kernel, const void *args));
template <typename Args> static inline void know(void (*kernel)(Args)) {
    know((const void *)kernel,
         [](const void *k, const void *args) { ((void (*)(Args))k)(*(const Args *)args); });
}

template <typename T> static inline T taken(const slot &s) {
    T x;
    memcpy(&x, s.word, sizeof x);
    return x;
}
template <typename T> static inline slot brought(T x) {
    slot s = {};
    memcpy(s.word, &x, sizeof x);
    return s;
}

} // namespace host

/* ---- threads that wait for each other ---- */

static inline void __syncthreads(HOST_LINE) { host::all_threads_or(0, at); }
static inline int __syncthreads_or(int x, HOST_LINE) { return host::all_threads_or(x, at); }
static inline void __syncwarp(unsigned mask = ~0u, HOST_LINE) {
    host::meet("__syncwarp", mask, {}, NULL, at);
}

template <typename T> static inline T __shfl_sync(unsigned mask, T x, int from, HOST_LINE) {
    host::slot *mine = host::meet("__shfl_sync", mask, host::brought(x), NULL, at);
    return host::taken<T>(mine[(from & 31) - host::lane()]);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int with, HOST_LINE) {
    host::slot *mine = host::meet("__shfl_xor_sync", mask, host::brought(x), NULL, at);
    return host::taken<T>(mine[(host::lane() ^ with) - host::lane()]);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, HOST_LINE) {
    host::slot *mine = host::meet("__shfl_up_sync", mask, host::brought(x), NULL, at);
    return host::taken<T>(mine[host::lane() >= (int)by ? -(int)by : 0]);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, HOST_LINE) {
    host::slot *mine = host::meet("__shfl_down_sync", mask, host::brought(x), NULL, at);
    return host::taken<T>(mine[host::lane() + (int)by < 32 ? (int)by : 0]);
}

static inline void host_ballot(host::slot *all, uint32_t mask) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= (mask >> i & 1 && all[i].word[0] ? 1u : 0u) << i;
    for (int i = 0; i < 32; i++) all[i].word[0] = bits;
}
static inline unsigned __ballot_sync(unsigned mask, int x, HOST_LINE) {
    return host::meet("__ballot_sync", mask, host::brought(x != 0), host_ballot, at)->word[0];
}
static inline int __any_sync(unsigned mask, int x, HOST_LINE) {
    return host::meet("__any_sync", mask, host::brought(x != 0), host_ballot, at)->word[0] != 0;
}
static inline int __all_sync(unsigned mask, int x, HOST_LINE) {
    return host::meet("__all_sync", mask, host::brought(x == 0), host_ballot, at)->word[0] == 0;
}

/* ---- arithmetic; what is approximate on a GPU is exact or rounded otherwise here ---- */

template <typename T> static inline T host_bits(const void *x) {
    T y;
    memcpy(&y, x, sizeof y);
    return y;
}
static inline float __uint_as_float(unsigned x) { return host_bits<float>(&x); }
static inline unsigned __float_as_uint(float x) { return host_bits<unsigned>(&x); }
static inline float __int_as_float(int x) { return host_bits<float>(&x); }
static inline int __float_as_int(float x) { return host_bits<int>(&x); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline void sincospif(float x, float *s, float *c) {
    double turn = 3.14159265358979323846 * fmod((double)x, 2);
    *s = (float)sin(turn), *c = (float)cos(turn);
}
#define __expf(x) expf(x) /* names that the C library has taken */
#define __log2f(x) log2f(x)
#define __logf(x) logf(x)
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned z = 0;
    for (int i = 0; i < 4; i++) z |= (unsigned)(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return z;
}
static inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline int atomicAdd(int *at, int x) { return __atomic_fetch_add(at, x, __ATOMIC_RELAXED); }
static inline uint32_t atomicOr(uint32_t *at, uint32_t x) {
    return __atomic_fetch_or(at, x, __ATOMIC_RELAXED);
}
template <typename T> static inline T __ldg(const T *p) { return *p; }
static inline size_t __cvta_generic_to_shared(const void *p) { return host::shared_address(p); }

#define HOST_MIN_MAX(type)                                           \
    static inline type min(type a, type b) { return b < a ? b : a; } \
    static inline type max(type a, type b) { return a < b ? b : a; }
HOST_MIN_MAX(int)
HOST_MIN_MAX(unsigned)
HOST_MIN_MAX(long)
HOST_MIN_MAX(long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }

/* ---- the runtime ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
};
typedef struct host_stream *cudaStream_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    int maxThreadsPerBlock, ptxVersion;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
struct cudaPointerAttributes {
    cudaMemoryType type;
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3
};
enum { cudaStreamNonBlocking = 1, cudaHostAllocDefault = 0 };

/* launches that may start before the one before them ends: here they never do */
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

extern "C" {
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *block);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *block);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute what, int value);
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 threads, void **args,
                             size_t shared, cudaStream_t stream);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args);
}

#endif
