/*
 * Models on CUDA: what a context needs for them, captured graphs, and the entries of the table.
 */
#include "cuda/model/model.h"

#include <string.h>

/* ---- state ---- */

static ht_status make_state(hti_cuda_model *m, ht_context *ctx) {
    TRY(hti_blas_open(&m->blas, ctx));
    TRY(ctx->ops->post_open(ctx));
    return ctx->ops->alloc(ctx, (void **)&m->sums, HTI_SUMS_BYTES);
}

static void close(ht_context *ctx) {
    hti_cuda_model *m = hti_model_of(ctx);
    if (!m) return;
    hti_cuda_scope scope(ctx);
    cudaStreamSynchronize(hti_cuda_of(ctx)->stream);
    hti_blas_close(m->blas, ctx);
    if (m->sums) ctx->ops->release(ctx, m->sums);
    cudaGetLastError();
    hti_host_free(ctx, m);
    ctx->guest.state = NULL;
}

static ht_status check(ht_context *ctx, ht_dtype dtype) {
    CHECK(ctx, dtype == HT_F32 || dtype == HT_BF16, HT_UNSUPPORTED,
          "device \"%s\" runs models in f32 or bf16, got %s", ctx->device,
          dtype == HT_F64 ? "f64" : "f16");
    if (hti_model_of(ctx)) return HT_OK;
    hti_cuda_scope scope(ctx);
    hti_cuda_model *m = (hti_cuda_model *)hti_host_alloc(ctx, sizeof *m);
    CHECK(ctx, m, HT_NOMEM, "out of memory: %zu bytes for models on CUDA", sizeof *m);
    memset(m, 0, sizeof *m);
    ctx->guest.state = m;
    ctx->guest.close = close;
    ht_status status = make_state(m, ctx);
    if (status != HT_OK) close(ctx);
    return status;
}

/* ---- the data sheet ---- */

/* Operations per multiprocessor and clock of dense products in bf16 (fp32 sums), of float, and the
 * clock in GHz that the data sheets reckon with: A100, A40, L40, H100 and H200 (SXM), B200. */
static double peak(const ht_context *ctx, ht_dtype dtype) {
    static const struct {
        int capability;
        double bf16, f32, clock;
    } sheet[] = {{80, 2048, 128, 1.41},
                 {86, 1024, 256, 1.74},
                 {89, 1024, 256, 2.52},
                 {90, 4096, 256, 1.83},
                 {100, 8192, 256, 1.85}};
    const hti_cuda_backend *cuda = hti_cuda_of(ctx);
    for (const auto &s : sheet)
        if (s.capability == cuda->capability)
            return 1e9 * s.clock * cuda->processors * (dtype == HT_BF16 ? s.bf16 : s.f32);
    return 0;
}

/* ---- captured graphs ---- */

/* Relaxed: a kernel's first launch may load its code while others are being recorded. */
static ht_status capture_begin(ht_context *ctx) {
    hti_cuda_scope scope(ctx);
    CUDA_TRY(ctx, cudaStreamBeginCapture(hti_cuda_of(ctx)->stream, cudaStreamCaptureModeRelaxed),
             "beginning to record a step");
    return HT_OK;
}

static ht_status capture_end(ht_context *ctx, void **graph) {
    hti_cuda_scope scope(ctx);
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t ready = NULL;
    *graph = NULL;
    CUDA_TRY(ctx, cudaStreamEndCapture(hti_cuda_of(ctx)->stream, &recorded), "recording a step");
    cudaError_t error = cudaGraphInstantiate(&ready, recorded, 0);
    cudaGraphDestroy(recorded);
    CUDA_TRY(ctx, error, "making a graph of a step");
    *graph = ready;
    return HT_OK;
}

static ht_status graph_launch(ht_context *ctx, void *graph) {
    hti_cuda_scope scope(ctx);
    CUDA_TRY(ctx, cudaGraphLaunch((cudaGraphExec_t)graph, hti_cuda_of(ctx)->stream),
             "starting a recorded step");
    return HT_OK;
}

static void graph_release(ht_context *ctx, void *graph) {
    hti_cuda_scope scope(ctx);
    cudaStreamSynchronize(hti_cuda_of(ctx)->stream);
    if (cudaGraphExecDestroy((cudaGraphExec_t)graph) != cudaSuccess) cudaGetLastError();
}

/* ---- the table ---- */

static hti_model_ops make_ops() {
    hti_model_ops o = {};
    o.name = "cuda"; /* as in device.cu */
    o.check = check;
    o.fixed_shapes = 1;
    o.peak = peak;
    o.gemm = hti_cuda_gemm;
    o.embed_forward = hti_cuda_embed_forward, o.embed_backward = hti_cuda_embed_backward;
    o.embed_scratch = hti_cuda_embed_scratch;
    o.amounts_forward = hti_cuda_amounts_forward, o.amounts_backward = hti_cuda_amounts_backward;
    o.norm_forward = hti_cuda_norm_forward, o.norm_backward = hti_cuda_norm_backward;
    o.norm_scratch = hti_cuda_norm_scratch;
    o.linear_adds = 1;
    o.linear_forward = hti_cuda_linear_forward, o.linear_backward = hti_cuda_linear_backward;
    o.rotary = hti_cuda_rotary;
    o.near_forward = hti_cuda_near_forward, o.near_backward = hti_cuda_near_backward;
    o.near_keep = hti_cuda_near_keep;
    o.pool_forward = hti_cuda_pool_forward, o.pool_backward = hti_cuda_pool_backward;
    o.match_forward = hti_cuda_match_forward, o.match_backward = hti_cuda_match_backward;
    o.loss_scratch = hti_cuda_loss_scratch, o.loss = hti_cuda_loss;
    o.square = hti_cuda_square, o.adamw = hti_cuda_adamw, o.round = hti_cuda_round;
    o.muon_scratch = hti_cuda_muon_scratch, o.muon = hti_cuda_muon;
    o.capture_begin = capture_begin, o.capture_end = capture_end;
    o.graph_launch = graph_launch, o.graph_release = graph_release;
    return o;
}

static const hti_model_ops cuda_models = make_ops();

const hti_model_ops *hti_cuda_models(void) { return &cuda_models; }
