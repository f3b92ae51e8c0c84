/*
 * CUDA devices: the list of them, contexts, memory, and the attention's table.
 */
#include "cuda/cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting devices ---- */

/* Why there is no CUDA device, in a line; count is what cudaGetDeviceCount gave. */
static void explain_absence(char *line, size_t room, cudaError_t error, int count) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaGetLastError();
    if (driver == 0) {
        snprintf(line, room, "this machine has no CUDA driver");
    } else if (error == cudaErrorInsufficientDriver) {
        snprintf(line, room,
                 "the CUDA driver is too old: it knows CUDA %d.%d, this build needs %d.%d",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    } else if (error == cudaSuccess && count == 0) {
        snprintf(line, room, "this machine has no CUDA device");
    } else {
        snprintf(line, room, "CUDA cannot start here: %s", cudaGetErrorString(error));
    }
}

enum {
    MOST_DEVICES = 64,
    OLDEST = 80
}; /* OLDEST: compute capability that the kernels are built for */

/* Its bounds tell a build for 9.0a, where warpgroups have products of their own, from others. */
enum { BOUNDS_PLAIN = 128, BOUNDS_WARPGROUPS = 256 };
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static __global__ void __launch_bounds__(BOUNDS_WARPGROUPS) nothing() {}
#else
static __global__ void __launch_bounds__(BOUNDS_PLAIN) nothing() {}
#endif

/* Newer devices may run kernels that were compiled for older ones: those lack what only newer
 * ones can do, waiting for the kernel before them for one. */
static void find_build(hti_cuda_backend *cuda) {
    cudaFuncAttributes about;
    cuda->built_for = cuda->warpgroups = 0;
    if (cudaFuncGetAttributes(&about, (const void *)nothing) == cudaSuccess) {
        cuda->built_for = about.ptxVersion;
        cuda->warpgroups = about.maxThreadsPerBlock >= BOUNDS_WARPGROUPS;
    }
    cudaGetLastError();
}

static cudaError_t count_devices(int *count) {
    *count = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    cudaGetLastError();
    if (error == cudaErrorNoDevice) error = cudaSuccess;
    if (error != cudaSuccess) *count = 0;
    return error;
}

/* ---- contexts ---- */

/* The number in "cuda:N". */
static ht_status parse_device(int *out, ht_context *ctx) {
    char *end = NULL;
    const char *digits = ctx->device + strlen("cuda:");
    long number = strtol(digits, &end, 10);
    CHECK(ctx, *digits >= '0' && *digits <= '9' && *end == 0 && number < 100000, HT_INVALID,
          "device must be \"cuda:N\" with a number N, got \"%s\"", ctx->device);
    int count;
    cudaError_t error = count_devices(&count);
    if (count == 0) {
        char why[192];
        explain_absence(why, sizeof why, error, count);
        return hti_fail(ctx, HT_DEVICE, "device \"%s\" cannot be used: %s", ctx->device, why);
    }
    CHECK(ctx, number < count, HT_DEVICE, "device is \"%s\", but this machine has %d CUDA device%s",
          ctx->device, count, count == 1 ? "" : "s");
    *out = (int)number;
    return HT_OK;
}

static ht_status open_device(hti_cuda_backend *cuda, ht_context *ctx, const ht_context_desc *desc) {
    cudaDeviceProp p;
    CUDA_TRY(ctx, cudaGetDeviceProperties(&p, cuda->device), "asking for its properties");
    cuda->processors = p.multiProcessorCount;
    cuda->capability = p.major * 10 + p.minor;
    cuda->shared_bytes = (int)p.sharedMemPerBlockOptin;
    snprintf(cuda->name, sizeof cuda->name, "%.95s", p.name);
    CHECK(ctx, cuda->capability >= OLDEST, HT_DEVICE,
          "%s is a %s of compute capability %d.%d, this build needs %d.%d or newer", ctx->device,
          p.name, p.major, p.minor, OLDEST / 10, OLDEST % 10);
    hti_cuda_scope scope(ctx);
    find_build(cuda);
    if (desc && desc->stream) {
        cuda->stream = (cudaStream_t)desc->stream;
        return HT_OK;
    }
    CUDA_TRY(ctx, cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking),
             "making a stream");
    cuda->own_stream = 1;
    return HT_OK;
}

static ht_status cuda_open(ht_context *ctx, const ht_context_desc *desc) {
    int device = 0;
    TRY(parse_device(&device, ctx));
    hti_cuda_backend *cuda = (hti_cuda_backend *)hti_host_alloc(ctx, sizeof *cuda);
    CHECK(ctx, cuda, HT_NOMEM, "out of memory: %zu bytes for a CUDA context", sizeof *cuda);
    memset(cuda, 0, sizeof *cuda);
    cuda->device = device;
    ctx->backend = cuda;
    snprintf(ctx->device, sizeof ctx->device, "cuda:%d", device);
    ht_status status = open_device(cuda, ctx, desc);
    if (status != HT_OK) {
        hti_host_free(ctx, cuda);
        ctx->backend = NULL;
    }
    return status;
}

static void cuda_close(ht_context *ctx) {
    hti_cuda_backend *cuda = hti_cuda_of(ctx);
    if (!cuda) return;
    {
        hti_cuda_scope scope(ctx);
        cudaStreamSynchronize(cuda->stream);
        if (cuda->post) cudaFreeHost(cuda->post);
        if (cuda->own_stream) {
            cudaStreamDestroy(cuda->stream);
        }
        cudaGetLastError();
    }
    hti_host_free(ctx, cuda);
    ctx->backend = NULL;
}

/* Waits for all calls so far; what lay in the post has been read then. */
static ht_status wait_for(ht_context *ctx, const char *doing) {
    hti_cuda_backend *cuda = hti_cuda_of(ctx);
    CUDA_TRY(ctx, cudaStreamSynchronize(cuda->stream), doing);
    cuda->posted = 0;
    return HT_OK;
}

static void *cuda_stream(const ht_context *ctx) { return hti_cuda_of(ctx)->stream; }

static ht_status cuda_synchronize(ht_context *ctx) {
    hti_cuda_scope scope(ctx);
    return wait_for(ctx, "waiting for its calls");
}

/* ---- memory ---- */

static ht_status cuda_alloc(ht_context *ctx, void **out, size_t bytes) {
    hti_cuda_scope scope(ctx);
    cudaError_t error = cudaMalloc(out, bytes ? bytes : 1);
    if (error == cudaSuccess) return HT_OK;
    *out = NULL;
    size_t available = 0, total = 0;
    cudaGetLastError();
    cudaMemGetInfo(&available, &total);
    /* a size beyond all memory may come back as an invalid value */
    if (error != cudaErrorMemoryAllocation && bytes <= total)
        return hti_cuda_fail(ctx, error, "allocating memory");
    return hti_fail(ctx, HT_NOMEM,
                    "out of device memory on %s: %zu bytes wanted, %zu of %zu are free",
                    ctx->device, bytes, available, total);
}

static void cuda_release(ht_context *ctx, void *block) {
    hti_cuda_scope scope(ctx);
    if (cudaFree(block) != cudaSuccess) cudaGetLastError();
}

static const size_t POST_BYTES = 4 << 20;
static const size_t POST_PIECE = 512 << 10; /* of a copy; a multiple of 256 */

static ht_status cuda_post_open(ht_context *ctx) {
    hti_cuda_scope scope(ctx);
    hti_cuda_backend *cuda = hti_cuda_of(ctx);
    if (cuda->post) return HT_OK;
    CUDA_TRY(ctx, cudaHostAlloc((void **)&cuda->post, POST_BYTES, cudaHostAllocDefault),
             "taking host memory");
    return HT_OK;
}

static int has_room(const hti_cuda_backend *cuda, size_t bytes) {
    return cuda->post && bytes <= POST_BYTES &&
           (bytes + 255) / 256 * 256 <= POST_BYTES - cuda->posted;
}

/* A place of the post with these bytes in it, from which the device reads them without the host's
 * help; there must be room. */
static const void *post(hti_cuda_backend *cuda, const void *src, size_t bytes) {
    char *at = cuda->post + cuda->posted;
    memcpy(at, src, bytes);
    cuda->posted += (bytes + 255) / 256 * 256;
    return at;
}

/* Ordinary host memory has been read when the copy call returns; memory that CUDA knows is read
 * later, so that we have to wait. */
static ht_status cuda_copy_in(ht_context *ctx, void *dst, const void *src, size_t bytes) {
    hti_cuda_scope scope(ctx);
    hti_cuda_backend *cuda = hti_cuda_of(ctx);
    cudaStream_t stream = cuda->stream;
    cudaPointerAttributes about = {};
    if (has_room(cuda, bytes)) {
        for (size_t at = 0; at < bytes; at += POST_PIECE) { /* one travels while the next is read */
            size_t part = bytes - at < POST_PIECE ? bytes - at : POST_PIECE;
            const void *posted = post(cuda, (const char *)src + at, part);
            CUDA_TRY(
                ctx,
                cudaMemcpyAsync((char *)dst + at, posted, part, cudaMemcpyHostToDevice, stream),
                "copying in");
        }
        return HT_OK;
    }
    cudaError_t known = cudaPointerGetAttributes(&about, src);
    if (known != cudaSuccess) cudaGetLastError();
    CUDA_TRY(ctx, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, stream), "copying in");
    if (known == cudaSuccess && about.type == cudaMemoryTypeUnregistered) return HT_OK;
    CUDA_TRY(ctx, cudaStreamSynchronize(stream), "copying in");
    return HT_OK;
}

static ht_status cuda_copy_out(ht_context *ctx, void *dst, const void *src, size_t bytes) {
    hti_cuda_scope scope(ctx);
    cudaStream_t stream = hti_cuda_of(ctx)->stream;
    CUDA_TRY(ctx, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream), "copying out");
    return wait_for(ctx, "copying out");
}

static ht_status cuda_copy(ht_context *ctx, void *dst, const void *src, size_t bytes) {
    hti_cuda_scope scope(ctx);
    cudaStream_t stream = hti_cuda_of(ctx)->stream;
    CUDA_TRY(ctx, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream), "copying");
    return HT_OK;
}

static ht_status cuda_fill(ht_context *ctx, void *dst, int byte, size_t bytes) {
    hti_cuda_scope scope(ctx);
    CUDA_TRY(ctx, cudaMemsetAsync(dst, byte, bytes, hti_cuda_of(ctx)->stream), "filling memory");
    return HT_OK;
}

/* ---- integers ---- */

static const int UPLOAD = 960; /* integers in one launch: arguments may take 4 KiB */

struct upload_args {
    int32_t *dst;
    int32_t count;
    int32_t value[UPLOAD];
};

static __global__ void upload_kernel(const __grid_constant__ upload_args a) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < a.count) a.dst[i] = a.value[i];
}

ht_status hti_cuda_upload(const ht_context *ctx, int32_t *dst, const int32_t *src, int64_t count) {
    upload_args a;
    for (int64_t done = 0; done < count; done += UPLOAD) {
        a.dst = dst + done;
        a.count = (int32_t)(count - done < UPLOAD ? count - done : UPLOAD);
        memcpy(a.value, src + done, sizeof(int32_t) * (size_t)a.count);
        TRY(hti_cuda_launch(ctx, upload_kernel, "sending integers", dim3((a.count + 127) / 128),
                            128, 0, a));
    }
    return HT_OK;
}

/* ---- the table ---- */

static hti_ops make_ops() {
    hti_ops o = {};
    o.name = "cuda";
    o.open = cuda_open, o.close = cuda_close, o.synchronize = cuda_synchronize;
    o.stream = cuda_stream;
    o.alloc = cuda_alloc, o.release = cuda_release;
    o.copy_in = cuda_copy_in, o.copy_out = cuda_copy_out, o.copy = cuda_copy, o.fill = cuda_fill;
    o.post_open = cuda_post_open;
    o.attention_check = hti_cuda_attention_check, o.attention_need = hti_cuda_attention_need;
    o.attention_need_aligned = hti_cuda_attention_need_aligned;
    o.attention_kernels = hti_cuda_attention_kernels;
    o.attention_first = hti_cuda_attention_first;
    o.attention_forward = hti_cuda_attention_forward;
    o.attention_backward = hti_cuda_attention_backward;
    o.cache_scratch = hti_cuda_cache_scratch, o.cache_extend = hti_cuda_cache_extend;
    return o;
}

static const hti_ops cuda_ops = make_ops();

/* ---- the list of devices ---- */

static int is_available(void) { return 1; }
static int is_absent(void) { return 0; }

static void describe(char *line, size_t room, int *usable, int device) {
    cudaDeviceProp p;
    *usable = 0;
    if (cudaGetDeviceProperties(&p, device) != cudaSuccess) {
        snprintf(line, room, "device %d does not answer: %s", device,
                 cudaGetErrorString(cudaGetLastError()));
        return;
    }
    *usable = p.major * 10 + p.minor >= OLDEST;
    if (*usable) {
        snprintf(line, room, "%.96s, compute capability %d.%d, %d multiprocessors, %.0f GiB",
                 p.name, p.major, p.minor, p.multiProcessorCount,
                 (double)p.totalGlobalMem / (1 << 30));
    } else {
        snprintf(line, room, "%.96s has compute capability %d.%d, this build needs %d.%d or newer",
                 p.name, p.major, p.minor, OLDEST / 10, OLDEST % 10);
    }
}

static struct {
    hti_candidate entry[MOST_DEVICES + 1];
    char name[MOST_DEVICES][16];
    char about[MOST_DEVICES][192];
} list;

static void make_list(void) {
    int count;
    cudaError_t error = count_devices(&count);
    if (count > MOST_DEVICES) count = MOST_DEVICES;
    for (int i = 0; i < (count ? count : 1); i++) {
        int usable = 0;
        snprintf(list.name[i], sizeof list.name[i], "cuda:%d", i);
        if (count) {
            describe(list.about[i], sizeof list.about[i], &usable, i);
        } else {
            explain_absence(list.about[i], sizeof list.about[i], error, count);
        }
        list.entry[i] = {list.name[i], list.about[i], &cuda_ops, usable ? is_available : is_absent};
    }
}

extern "C" const hti_candidate *hti_cuda_candidates(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_list);
    return list.entry;
}
