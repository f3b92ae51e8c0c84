/*
 * Matrix products by cuBLASLt, with what is done to them on their way out (bias, GELU).
 *
 * The library is loaded when the first model is made, not when the program starts: it is half a
 * gigabyte, and everything else works without it. The algorithm of a product is asked for once per
 * shape and kept, so that all later calls, and all runs, use the same one. Batches of texts have
 * any number of rows: sizes are rounded up to eight steps per octave to ask, and the answer serves
 * all sizes of the step.
 *
 * cuBLASLt counts columns first: our row-major C = A B is its column-major C^T = B^T A^T, so B is
 * its first matrix and A its second.
 */
#include "cuda/model/model.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef HTI_CUBLASLT
#include <cublasLt.h>

enum { WORKSPACE = 32 << 20, MOST_PRODUCTS = 512 };

#define FUNCTIONS(X)                \
    X(Create)                       \
    X(Destroy)                      \
    X(MatmulDescCreate)             \
    X(MatmulDescDestroy)            \
    X(MatmulDescSetAttribute)       \
    X(MatrixLayoutCreate)           \
    X(MatrixLayoutDestroy)          \
    X(MatrixLayoutSetAttribute)     \
    X(MatmulPreferenceCreate)       \
    X(MatmulPreferenceDestroy)      \
    X(MatmulPreferenceSetAttribute) \
    X(MatmulAlgoGetHeuristic)       \
    X(MatmulAlgoConfigGetAttribute) \
    X(Matmul)

#define POINTER(name) decltype(&cublasLt##name) name;
typedef struct functions {
    FUNCTIONS(POINTER)
} functions;

/* What an algorithm depends on. Compared byte by byte: made from zeroed memory. */
typedef struct product_key {
    int64_t m, n, k, lda, ldb, ldc;
    int dtype, wide_c, transpose_a, transpose_b, accumulate, finish;
    int align_a, align_b, align_c, add;
    int64_t count, step_a, step_b, step_c; /* count 0: one product */
} product_key;

typedef struct product {
    product_key key;
    int usable; /* 0: cuBLASLt has no algorithm */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algorithm;
} product;

struct hti_blas {
    functions call;
    void *library;
    cublasLtHandle_t handle;
    void *workspace; /* device */
    int count, next; /* next: which to forget when the list is full */
    product list[MOST_PRODUCTS];
};

static ht_status blas_fail(const ht_context *ctx, cublasStatus_t status, const char *doing) {
    return hti_fail(ctx, HT_DEVICE, "%s: cuBLASLt gave status %d while %s", ctx->device,
                    (int)status, doing);
}

#define BLAS_TRY(ctx, expr, doing)                                                   \
    do {                                                                             \
        cublasStatus_t status_ = (expr);                                             \
        if (status_ != CUBLAS_STATUS_SUCCESS) return blas_fail(ctx, status_, doing); \
    } while (0)

/* ---- opening ---- */

static ht_status load_library(struct hti_blas *b, ht_context *ctx) {
    char name[64];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    b->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!b->library) b->library = dlopen(HTI_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    CHECK(ctx, b->library, HT_UNSUPPORTED,
          "models on %s need cuBLASLt, and neither %s nor %s could be loaded", ctx->device, name,
          HTI_CUBLASLT);
#define FIND(fn)                                                                          \
    *(void **)&b->call.fn = dlsym(b->library, "cublasLt" #fn);                            \
    CHECK(ctx, b->call.fn, HT_UNSUPPORTED, "models on %s need cuBLASLt, and %s lacks %s", \
          ctx->device, name, "cublasLt" #fn);
    FUNCTIONS(FIND)
    return HT_OK;
}

static ht_status open_blas(struct hti_blas *b, ht_context *ctx) {
    TRY(load_library(b, ctx));
    BLAS_TRY(ctx, b->call.Create(&b->handle), "starting");
    return ctx->ops->alloc(ctx, &b->workspace, WORKSPACE);
}

ht_status hti_blas_open(struct hti_blas **out, ht_context *ctx) {
    struct hti_blas *b = (struct hti_blas *)hti_host_alloc(ctx, sizeof *b);
    CHECK(ctx, b, HT_NOMEM, "out of memory: %zu bytes for the list of products", sizeof *b);
    memset(b, 0, sizeof *b);
    ht_status status = open_blas(b, ctx);
    if (status != HT_OK) hti_blas_close(b, ctx);
    *out = status == HT_OK ? b : NULL;
    return status;
}

/* Leaves zeros, which are no product's key. */
static void forget(const struct hti_blas *b, product *p) {
    if (p->desc) b->call.MatmulDescDestroy(p->desc);
    if (p->first) b->call.MatrixLayoutDestroy(p->first);
    if (p->second) b->call.MatrixLayoutDestroy(p->second);
    if (p->out) b->call.MatrixLayoutDestroy(p->out);
    memset(p, 0, sizeof *p);
}

/* The library itself stays: unloading it while CUDA holds its kernels is not safe. */
void hti_blas_close(struct hti_blas *b, ht_context *ctx) {
    if (!b) return;
    for (int i = 0; i < b->count; i++) forget(b, &b->list[i]);
    if (b->handle) b->call.Destroy(b->handle);
    if (b->workspace) ctx->ops->release(ctx, b->workspace);
    hti_host_free(ctx, b);
}

/* ---- describing a product ---- */

/* The largest power of two, up to 256, that divides an address. */
static int alignment(const void *at) {
    int a = 256;
    while ((uintptr_t)at % (uintptr_t)a) a /= 2;
    return a;
}

/* Small sizes are those of the model: exact. */
static int64_t size_step(int64_t size) {
    int64_t step = 1;
    while (size >> 4 >= step && size > 2048) step *= 2;
    return (size + step - 1) / step * step;
}

static void make_key(product_key *k, const hti_gemm *g, hti_finish finish, const void *add,
                     const hti_series *series) {
    memset(k, 0, sizeof *k);
    /* numbers of rows: m of plain A, k where both are [k, ...]; elsewhere they are columns */
    k->m = g->transpose_a ? g->m : size_step(g->m), k->n = g->n;
    k->k = g->transpose_a && !g->transpose_b ? size_step(g->k) : g->k;
    k->lda = g->lda, k->ldb = g->ldb, k->ldc = g->ldc;
    k->dtype = g->dtype, k->wide_c = g->wide_c;
    k->transpose_a = g->transpose_a, k->transpose_b = g->transpose_b;
    k->accumulate = g->accumulate, k->finish = finish;
    k->align_a = alignment(g->a), k->align_b = alignment(g->b);
    k->align_c = alignment((const void *)((uintptr_t)g->c | (uintptr_t)add)), k->add = add != NULL;
    if (!series) return;
    k->count = series->count;
    k->step_a = series->step_a, k->step_b = series->step_b, k->step_c = series->step_c;
}

static ht_status set_epilogue(struct hti_blas *b, ht_context *ctx, product *p, hti_finish finish,
                              int64_t aux_stride) {
    cublasLtEpilogue_t e = CUBLASLT_EPILOGUE_DEFAULT;
    if (finish == HTI_FINISH_BIAS) e = CUBLASLT_EPILOGUE_BIAS;
    if (finish == HTI_FINISH_GELU) e = CUBLASLT_EPILOGUE_GELU_BIAS;
    if (finish == HTI_FINISH_GELU_AUX) e = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    BLAS_TRY(ctx,
             b->call.MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e),
             "describing a product");
    if (finish == HTI_FINISH_GELU_AUX)
        BLAS_TRY(ctx,
                 b->call.MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                                &aux_stride, sizeof aux_stride),
                 "describing a product");
    return HT_OK;
}

static ht_status set_series(struct hti_blas *b, ht_context *ctx, cublasLtMatrixLayout_t at,
                            int64_t count, int64_t step) {
    int32_t matrices = (int32_t)count;
    if (count == 0) return HT_OK;
    BLAS_TRY(ctx,
             b->call.MatrixLayoutSetAttribute(at, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices,
                                              sizeof matrices),
             "describing a matrix");
    BLAS_TRY(ctx,
             b->call.MatrixLayoutSetAttribute(at, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                              &step, sizeof step),
             "describing a matrix");
    return HT_OK;
}

/* Rows and columns of a matrix as it lies in memory, columns first. */
static ht_status set_layouts(struct hti_blas *b, ht_context *ctx, product *p) {
    const product_key *k = &p->key;
    cudaDataType_t in = k->dtype == HT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cudaDataType_t out = k->wide_c ? CUDA_R_32F : in;
    uint64_t n = (uint64_t)k->n, m = (uint64_t)k->m, depth = (uint64_t)k->k;
    BLAS_TRY(ctx,
             b->call.MatrixLayoutCreate(&p->first, in, k->transpose_b ? depth : n,
                                        k->transpose_b ? n : depth, k->ldb),
             "describing a matrix");
    BLAS_TRY(ctx,
             b->call.MatrixLayoutCreate(&p->second, in, k->transpose_a ? m : depth,
                                        k->transpose_a ? depth : m, k->lda),
             "describing a matrix");
    BLAS_TRY(ctx, b->call.MatrixLayoutCreate(&p->out, out, n, m, k->ldc), "describing a matrix");
    TRY(set_series(b, ctx, p->first, k->count, k->step_b));
    TRY(set_series(b, ctx, p->second, k->count, k->step_a));
    return set_series(b, ctx, p->out, k->count, k->step_c);
}

static ht_status describe(struct hti_blas *b, ht_context *ctx, product *p) {
    const product_key *k = &p->key;
    cublasOperation_t first = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    BLAS_TRY(ctx, b->call.MatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "describing a product");
    BLAS_TRY(
        ctx,
        b->call.MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
        "describing a product");
    BLAS_TRY(ctx,
             b->call.MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                            sizeof second),
             "describing a product");
    TRY(set_epilogue(b, ctx, p, (hti_finish)k->finish, k->ldc));
    return set_layouts(b, ctx, p);
}

/* ---- choosing an algorithm ---- */

enum { OFFERS = 8 };

static int config_of(const struct hti_blas *b, const cublasLtMatmulAlgo_t *algorithm,
                     cublasLtMatmulAlgoConfigAttributes_t name) {
    uint32_t value = 0;
    size_t written = 0;
    cublasStatus_t status =
        b->call.MatmulAlgoConfigGetAttribute(algorithm, name, &value, sizeof value, &written);
    return status == CUBLAS_STATUS_SUCCESS ? (int)value : -1;
}

/* Which of cuBLASLt's offers to take; it puts the one first that it thinks best. A rule, not a
 * measurement, so that all runs take the same. On Hopper its kernels (number 66) have options below
 * 4 where warpgroups work on tiles of their own, so that one multiplies while another writes, and
 * from 4 on where they share a tile: with few steps of depth the first were faster by up to 15 % in
 * every shape we measured. Where the depth would be split among thread blocks, a kernel that need
 * not do so spares two more kernels. */
static int offer_of(const struct hti_blas *b, const product_key *k,
                    const cublasLtMatmulHeuristicResult_t *offers, int count) {
    enum { HOPPER = 66, APART = 4, SHALLOW = 2048 };
    int split = config_of(b, &offers[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1;
    if (k->dtype != HT_BF16 || k->wide_c || k->add || (k->k > SHALLOW && !split)) return 0;
    for (int i = 0; i < count; i++) {
        const cublasLtMatmulAlgo_t *a = &offers[i].algo;
        if (offers[i].state == CUBLAS_STATUS_SUCCESS &&
            config_of(b, a, CUBLASLT_ALGO_CONFIG_ID) == HOPPER &&
            config_of(b, a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == 1 &&
            config_of(b, a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) < APART &&
            offers[i].wavesCount > 0.9f)
            return i;
    }
    return 0;
}

static ht_status choose(struct hti_blas *b, ht_context *ctx, product *p) {
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t offers[OFFERS] = {};
    size_t room = WORKSPACE;
    uint32_t first = (uint32_t)p->key.align_b, second = (uint32_t)p->key.align_a,
             out = (uint32_t)p->key.align_c;
    int count = 0;
    BLAS_TRY(ctx, b->call.MatmulPreferenceCreate(&wish), "choosing an algorithm");
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first, sizeof first},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second, sizeof second},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out},
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (const auto &w : wishes)
        if (status == CUBLAS_STATUS_SUCCESS)
            status = b->call.MatmulPreferenceSetAttribute(wish, w.name, w.value, w.bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = b->call.MatmulAlgoGetHeuristic(b->handle, p->desc, p->first, p->second, p->out,
                                                p->out, wish, OFFERS, offers, &count);
    b->call.MatmulPreferenceDestroy(wish);
    p->usable =
        status == CUBLAS_STATUS_SUCCESS && count > 0 && offers[0].state == CUBLAS_STATUS_SUCCESS;
    if (p->usable) p->algorithm = offers[offer_of(b, &p->key, offers, count)].algo;
    return HT_OK;
}

/* Small batches have as many shapes as there are numbers of rows: the list forgets in turn. */
static product *room_for(struct hti_blas *b) {
    if (b->count < MOST_PRODUCTS) return &b->list[b->count++];
    product *p = &b->list[b->next];
    b->next = (b->next + 1) % MOST_PRODUCTS;
    forget(b, p);
    return p;
}

static ht_status find(product **out, ht_context *ctx, const product_key *key) {
    struct hti_blas *b = hti_model_of(ctx)->blas;
    for (int i = 0; i < b->count; i++) {
        *out = &b->list[i];
        if (memcmp(&b->list[i].key, key, sizeof *key) == 0) return HT_OK;
    }
    product *p = room_for(b);
    p->key = *key;
    *out = p;
    ht_status status = describe(b, ctx, p);
    if (status == HT_OK) status = choose(b, ctx, p);
    if (status != HT_OK) forget(b, p);
    return status;
}

/* ---- running it ---- */

static cublasStatus_t set_size(const struct hti_blas *b, cublasLtMatrixLayout_t at, int64_t rows,
                               int64_t columns) {
    cublasStatus_t status =
        b->call.MatrixLayoutSetAttribute(at, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof(uint64_t));
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return b->call.MatrixLayoutSetAttribute(at, CUBLASLT_MATRIX_LAYOUT_COLS, &columns,
                                            sizeof(uint64_t));
}

/* The sizes of this call, where the key's are rounded. */
static ht_status set_sizes(const struct hti_blas *b, ht_context *ctx, const product *p,
                           const hti_gemm *g) {
    BLAS_TRY(ctx, set_size(b, p->first, g->transpose_b ? g->k : g->n, g->transpose_b ? g->n : g->k),
             "describing a matrix");
    BLAS_TRY(ctx,
             set_size(b, p->second, g->transpose_a ? g->m : g->k, g->transpose_a ? g->k : g->m),
             "describing a matrix");
    BLAS_TRY(ctx, set_size(b, p->out, g->n, g->m), "describing a matrix");
    return HT_OK;
}

static ht_status set_pointers(ht_context *ctx, const product *p, const void *bias, void *aux) {
    struct hti_blas *b = hti_model_of(ctx)->blas;
    if (bias)
        BLAS_TRY(ctx,
                 b->call.MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                sizeof bias),
                 "describing a product");
    if (aux)
        BLAS_TRY(ctx,
                 b->call.MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                                &aux, sizeof aux),
                 "describing a product");
    return HT_OK;
}

static ht_status multiply(ht_context *ctx, const hti_gemm *g, hti_finish finish, const void *bias,
                          void *aux, const void *add, const hti_series *series) {
    hti_cuda_scope scope(ctx);
    struct hti_blas *b = hti_model_of(ctx)->blas;
    float alpha = series ? series->scale : 1, beta = g->accumulate || add ? 1 : 0;
    if (series && add) beta = series->add_scale;
    product_key key;
    product *p = NULL;
    make_key(&key, g, finish, add, series);
    TRY(find(&p, ctx, &key));
    CHECK(ctx, p->usable, HT_UNSUPPORTED,
          "%s: cuBLASLt has no algorithm for a product of %lld x %lld x %lld", ctx->device,
          (long long)g->m, (long long)g->n, (long long)g->k);
    TRY(set_sizes(b, ctx, p, g));
    TRY(set_pointers(ctx, p, bias, aux));
    BLAS_TRY(ctx,
             b->call.Matmul(b->handle, p->desc, &alpha, g->b, p->first, g->a, p->second, &beta,
                            add ? add : g->c, p->out, g->c, p->out, &p->algorithm, b->workspace,
                            WORKSPACE, hti_cuda_of(ctx)->stream),
             "multiplying");
    return HT_OK;
}

ht_status hti_cuda_product(ht_context *ctx, const hti_gemm *g, hti_finish finish, const void *bias,
                           void *aux, const void *add) {
    return multiply(ctx, g, finish, bias, aux, add, NULL);
}

ht_status hti_cuda_products(ht_context *ctx, const hti_gemm *g, const void *add,
                            const hti_series *series) {
    return multiply(ctx, g, HTI_FINISH_NONE, NULL, NULL, add, series);
}

#else

ht_status hti_blas_open(struct hti_blas **out, ht_context *ctx) {
    *out = NULL;
    return hti_fail(ctx, HT_UNSUPPORTED,
                    "models on %s need cuBLASLt, which was not there when this library was built",
                    ctx->device);
}

void hti_blas_close(struct hti_blas *blas, ht_context *ctx) { (void)blas, (void)ctx; }

ht_status hti_cuda_product(ht_context *ctx, const hti_gemm *call, hti_finish finish,
                           const void *bias, void *aux, const void *add) {
    (void)call, (void)finish, (void)bias, (void)aux, (void)add;
    return hti_fail(ctx, HT_UNSUPPORTED, "this build has no cuBLASLt");
}

ht_status hti_cuda_products(ht_context *ctx, const hti_gemm *call, const void *add,
                            const hti_series *series) {
    (void)call, (void)add, (void)series;
    return hti_fail(ctx, HT_UNSUPPORTED, "this build has no cuBLASLt");
}

#endif

ht_status hti_cuda_gemm(ht_context *ctx, const hti_gemm *call) {
    return hti_cuda_product(ctx, call, HTI_FINISH_NONE, NULL, NULL, NULL);
}
