/*
 * Queries, keys and values for maps: from .npy files, or as a layer of a checkpoint makes them from
 * a text; and one call of an attention on them.
 */
#include "map/map.h"
#include "base/save.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool lib(const map_input *in, ht_status status, cli_error *error) {
    return status == HT_OK || cli_fail(error, "%s", ht_context_error(in->ctx));
}

static size_t real_bytes(const map_input *in) { return in->dtype == HT_F64 ? 8 : 4; }

/* Host numbers to new device memory. */
static bool upload(const map_input *in, void **out, const void *host, size_t bytes,
                   cli_error *error) {
    return lib(in, ht_memory_alloc(in->ctx, out, bytes), error) &&
           lib(in, ht_memory_copy_in(in->ctx, *out, host, bytes), error);
}

/* ---- files ------------------------------------------------------------------------------- */

static bool load_file(map_input *in, void **out, npy_reader *r, cli_error *error) {
    char *host = malloc((size_t)r->header.bytes + 1);
    bool good = host || cli_fail(error, "out of memory");
    good = good && npy_read(r, host, (size_t)r->header.bytes, error) &&
           upload(in, out, host, (size_t)r->header.bytes, error);
    free(host);
    return good;
}

/* Is it [batch, length, heads that divide, dim] of the same type? 0: any that is at least 1. */
static bool check_file(const npy_reader *r, npy_type type, int64_t batch, int64_t length,
                       int64_t dim, cli_error *error) {
    const npy_header *h = &r->header;
    char shape[160];
    bool fits = h->dims == 4;
    for (int d = 0; d < 4 && fits; d++) fits = h->shape[d] >= 1;
    fits = fits && (!batch || (h->shape[0] == batch && h->shape[1] == length)) &&
           (!dim || h->shape[3] == dim);
    if (!fits)
        return cli_fail(error,
                        "%s has shape %s; q, k and v must be [batch, length, heads, dim] and agree",
                        r->name, npy_shape_text(shape, sizeof shape, h->dims, h->shape));
    if (h->type != type || (type != NPY_F32 && type != NPY_F64))
        return cli_fail(error, "%s holds %s; q, k and v must all be float32 or all float64",
                        r->name, npy_type_name(h->type));
    return true;
}

static bool open_files(map_input *in, const map_values *v, int *code, cli_error *error) {
    npy_reader q = {0}, k = {0}, w = {0};
    bool good = npy_open(&q, v->q, error) && npy_open(&k, v->k, error) &&
                (!v->v || npy_open(&w, v->v, error));
    good = good && check_file(&q, q.header.type, 0, 0, 0, error) &&
           check_file(&k, q.header.type, q.header.shape[0], q.header.shape[1], q.header.shape[3],
                      error) &&
           (!v->v || check_file(&w, q.header.type, q.header.shape[0], q.header.shape[1], 0, error));
    if (good && v->v && w.header.shape[2] != k.header.shape[2])
        good = cli_fail(error, "%s has %" PRId64 " heads, %s %" PRId64 "; they must agree", v->v,
                        w.header.shape[2], v->k, k.header.shape[2]);
    if (good) {
        in->dtype = q.header.type == NPY_F64 ? HT_F64 : HT_F32;
        in->batch = q.header.shape[0], in->length = q.header.shape[1];
        in->heads = q.header.shape[2], in->dim = q.header.shape[3];
        in->kv_heads = k.header.shape[2];
        in->value_dim = v->v ? w.header.shape[3] : 1;
        in->causal = v->causal;
        in->open = v->open.count ? v->open.at[0] : 0;
        in->leaf = v->leaf, in->peek = v->peek;
        in->query = cli_query(v->query, v->causal, in->open);
        in->block = v->block;
        snprintf(in->about, sizeof in->about, "%.60s, %.60s", v->q, v->k);
        in->ctx =
            cli_open_device(cli_device(v->device, in->dtype == HT_F64), v->threads, code, error);
    }
    good = good && in->ctx && load_file(in, &in->q, &q, error) &&
           load_file(in, &in->k, &k, error) && (!v->v || load_file(in, &in->v, &w, error));
    npy_close(&q);
    npy_close(&k);
    npy_close(&w);
    return good;
}

/* ---- a checkpoint ------------------------------------------------------------------------ */

/* The text as the model reads it: a language model starts from token 0. Tokens from malloc. */
static int32_t *encode(map_input *in, const char *text, int64_t *count, cli_error *error) {
    const ht_config *c = in->model.config;
    int64_t start = setting_is(c, "task", "language"), n = 0, length = setting_int(c, "length");
    int32_t *tokens = calloc((size_t)length + 1, sizeof *tokens);
    char *file = text[0] == '@' ? run_read_text(text + 1, error) : NULL;
    const char *words = text[0] == '@' ? file : text;
    bool good = tokens && words;
    if (!tokens) cli_fail(error, "out of memory");
    good = good &&
           lib(in,
               ht_data_encode(in->ctx, c, words, strlen(words), tokens + start, length - start, &n),
               error);
    if (good && n == 0) good = cli_fail(error, "--text is empty");
    free(file);
    if (!good) {
        free(tokens);
        return NULL;
    }
    *count = (n < length - start ? n : length - start) + start;
    return tokens;
}

/* Masked rows take no part; NULL mask where there are none. */
static bool make_mask(map_input *in, const int32_t *tokens, int64_t count, int64_t cls,
                      cli_error *error) {
    const ht_config *c = in->model.config;
    int64_t merge = setting_int(c, "merge");
    bool all = !setting_int(c, "mask_zero") || setting_is(c, "task", "language");
    uint8_t *mask = malloc((size_t)in->length);
    bool any = false, good = mask || cli_fail(error, "out of memory");
    for (int64_t i = 0; good && i < in->length; i++) {
        int64_t first = (i - cls) * merge;
        mask[i] = i < cls || all;
        for (int64_t k = first; !mask[i] && k < first + merge && k < count; k++)
            mask[i] = tokens[k] != 0;
        any |= !mask[i];
    }
    good = good && (!any || upload(in, (void **)&in->mask, mask, (size_t)in->length, error));
    free(mask);
    return good;
}

static bool read_bias(map_input *in, cli_error *error) {
    char name[64];
    snprintf(name, sizeof name, "layers.%lld.attention.relative.weight", (long long)in->layer);
    for (int64_t i = 0; i < ht_model_tensors(in->model.model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        if (ht_model_tensor(in->model.model, i, &info) != HT_OK || strcmp(info.name, name) != 0)
            continue;
        in->bias = malloc((size_t)info.count * sizeof *in->bias);
        in->bias_block = setting_int(in->model.config, "block");
        if (!in->bias) return cli_fail(error, "out of memory");
        return lib(in, ht_model_read(in->model.model, i, in->bias), error);
    }
    return true;
}

static bool read_layer(map_input *in, const int32_t *tokens, int64_t count, int64_t layer,
                       cli_error *error) {
    /* a pair's encoder reads each text by itself, but wants two */
    int64_t copies = setting_is(in->model.config, "task", "pairs") ? 2 : 1;
    int64_t rows = copies * in->length, inner = in->heads * in->dim;
    int32_t starts[3] = {0, (int32_t)count, (int32_t)(2 * count)};
    int32_t *both = malloc((size_t)(copies * count) * sizeof *both);
    float *q = malloc((size_t)(rows * inner) * sizeof *q);
    float *k = malloc((size_t)(rows * in->kv_heads * in->dim) * sizeof *k);
    float *v = malloc((size_t)(rows * in->kv_heads * in->dim) * sizeof *v);
    bool good = (both && q && k && v) || cli_fail(error, "out of memory");
    for (int64_t i = 0; good && i < copies; i++)
        memcpy(both + i * count, tokens, (size_t)count * sizeof *both);
    ht_batch batch = {
        .size = sizeof batch, .sequences = copies, .tokens = both, .cu_seqlens = starts};
    size_t kv = (size_t)(in->length * in->kv_heads * in->dim) * sizeof *k;
    good = good && lib(in, ht_trainer_read_qkv(in->model.trainer, &batch, layer, q, k, v), error) &&
           upload(in, &in->q, q, (size_t)(in->length * inner) * sizeof *q, error) &&
           upload(in, &in->k, k, kv, error) && upload(in, &in->v, v, kv, error);
    free(both);
    free(q);
    free(k);
    free(v);
    return good;
}

/* The model's own number of clusters, or the one asked for: then of its q and k as they are. */
static void set_opening(map_input *in, const map_values *v) {
    const ht_config *c = in->model.config;
    in->open = v->open.count ? v->open.at[0] : setting_int(c, "open");
    in->leaf = v->leaf ? v->leaf : setting_int(c, "open_leaf");
    in->peek = v->peek ? v->peek : setting_int(c, "open_peek");
    if (v->open.count) in->kind = HT_HIERARCHICAL, in->query = HT_QUERY_FINE;
}

static bool open_checkpoint(map_input *in, const map_values *v, int *code, cli_error *error) {
    if (!run_open(&in->model, v->run, v->last, 0, -1, v->device, v->threads, code, error))
        return false;
    const ht_config *c = in->model.config;
    int64_t layers = setting_int(c, "layers"), merge = setting_int(c, "merge");
    in->ctx = in->model.ctx;
    in->heads = setting_int(c, "heads");
    *code = CLI_USAGE;
    if (v->layer >= layers)
        return cli_fail(error, "--layer must be 0 to %" PRId64 ", got %" PRId64, layers - 1,
                        v->layer);
    if (v->head >= in->heads)
        return cli_fail(error, "--head must be 0 to %" PRId64 ", got %" PRId64, in->heads - 1,
                        v->head);
    *code = CLI_FAILED;
    int64_t count = 0, cls = !setting_is(c, "task", "language") && setting_is(c, "pool", "cls");
    int32_t *tokens = encode(in, v->text, &count, error);
    if (!tokens) return false;
    in->dtype = HT_F32;
    in->batch = 1;
    in->length = (count + merge - 1) / merge + cls;
    in->kv_heads = setting_int(c, "kv_heads");
    in->dim = in->value_dim = setting_int(c, "inner") / in->heads;
    in->causal = (int)setting_int(c, "causal");
    in->kind = (ht_kind)setting_index(c, "attention", cli_kinds);
    in->query = (ht_query)setting_index(c, "query", cli_queries);
    in->block = setting_int(c, "block");
    in->rotary = setting_is(c, "rotary", "level0") ? setting_real(c, "rotary_theta") : 0;
    in->layer = v->layer;
    set_opening(in, v);
    snprintf(in->about, sizeof in->about, "%.100s, layer %lld", v->run, (long long)v->layer);
    bool good = read_layer(in, tokens, count, v->layer, error) &&
                make_mask(in, tokens, count, cls, error) && read_bias(in, error);
    free(tokens);
    return good;
}

bool map_open(map_input *out, const map_values *v, int *code, cli_error *error) {
    *out = (map_input){0};
    *code = CLI_FAILED;
    bool good = v->run ? open_checkpoint(out, v, code, error) : open_files(out, v, code, error);
    if (good && out->heads % out->kv_heads != 0)
        good = cli_fail(error, "%" PRId64 " key heads do not divide %" PRId64 " heads",
                        out->kv_heads, out->heads);
    if (good && (v->attention || v->opened) && v->head >= out->heads) {
        *code = CLI_USAGE;
        good = cli_fail(error, "--head must be 0 to %" PRId64 ", got %" PRId64, out->heads - 1,
                        v->head);
    }
    return good;
}

void map_close(map_input *in) {
    void *all[] = {in->q, in->k, in->v, in->mask};
    for (int i = 0; i < 4; i++)
        if (all[i]) ht_memory_free(in->ctx, all[i]);
    free(in->bias);
    if (in->model.ctx)
        run_close(&in->model);
    else if (in->ctx)
        ht_context_destroy(in->ctx);
}

/* ---- one call ---------------------------------------------------------------------------- */

/* The bias table for another block: distances that the model's table does not have take its last
 * entry, as full attention does. */
static bool make_bias(const map_input *in, const map_call *call, int64_t heads, void **out,
                      cli_error *error) {
    int64_t entries = 4 * call->block - 1, known = 2 * in->bias_block - 1;
    float *table = malloc((size_t)(entries * heads) * sizeof *table);
    if (!table) return cli_fail(error, "out of memory");
    for (int64_t e = 0; e < entries; e++) {
        int64_t d = e - (2 * call->block - 1);
        d = d < -known ? -known : d > known ? known : d;
        for (int64_t h = 0; h < heads; h++)
            table[e * heads + h] =
                (float)in->bias[(d + known) * in->heads + (call->head < 0 ? h : call->head)];
    }
    bool good = upload(in, out, table, (size_t)(entries * heads) * sizeof *table, error);
    free(table);
    return good;
}

static ht_attention_desc describe(const map_input *in, const map_call *call) {
    ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
    bool one = call->head >= 0;
    desc.kind = call->kind;
    desc.query = call->query;
    desc.dtype = in->dtype;
    desc.causal = call->causal;
    desc.has_bias = in->bias != NULL;
    desc.q_heads = one ? 1 : in->heads;
    desc.kv_heads = one ? 1 : in->kv_heads;
    desc.head_dim = in->dim;
    desc.value_dim = call->v ? call->value_dim : in->value_dim;
    desc.block = call->block;
    desc.max_rows = in->batch * in->length;
    desc.max_sequences = in->batch;
    desc.max_length = in->length;
    desc.rotary_theta = in->rotary;
    if (call->open) desc.open = call->open, desc.open_leaf = in->leaf, desc.open_peek = in->peek;
    return desc;
}

/* One head of [batch, length, heads, dim]. */
static ht_tensor head_of(const map_input *in, void *data, int64_t heads, int64_t dim,
                         int64_t head) {
    ht_tensor t = {.data = (char *)data + (size_t)(head * dim) * real_bytes(in),
                   .batch_stride = in->length * heads * dim,
                   .row_stride = heads * dim,
                   .head_stride = dim};
    return t;
}

static ht_attention_args arguments(const map_input *in, const map_call *call, void *out,
                                   const void *bias) {
    ht_attention_args args = HT_ATTENTION_ARGS_INIT;
    int64_t group = in->heads / in->kv_heads, head = call->head < 0 ? 0 : call->head;
    args.batch = in->batch;
    args.length = in->length;
    args.q = head_of(in, in->q, in->heads, in->dim, head);
    args.k = head_of(in, in->k, in->kv_heads, in->dim, head / group);
    args.v = head_of(in, in->v, in->kv_heads, in->value_dim, head / group);
    if (call->v) args.v = (ht_tensor){.data = (void *)(uintptr_t)call->v};
    args.out.data = out;
    args.bias = bias;
    args.key_mask = args.query_mask = in->mask;
    return args;
}

static bool widen(double *out, const map_input *in, const void *device, int64_t count,
                  cli_error *error) {
    size_t bytes = (size_t)count * real_bytes(in);
    if (in->dtype == HT_F64) return lib(in, ht_memory_copy_out(in->ctx, out, device, bytes), error);
    float *host = malloc(bytes);
    bool good = host || cli_fail(error, "out of memory");
    good = good && lib(in, ht_memory_copy_out(in->ctx, host, device, bytes), error);
    for (int64_t i = 0; good && i < count; i++) out[i] = host[i];
    free(host);
    return good;
}

bool map_attend(double *out, const map_input *in, const map_call *call, cli_error *error) {
    ht_attention_desc desc = describe(in, call);
    ht_attention *plan = NULL;
    void *device = NULL, *bias = NULL;
    int64_t count = desc.max_rows * desc.q_heads * desc.value_dim;
    bool good = lib(in, ht_attention_create(&plan, in->ctx, &desc), error) &&
                lib(in, ht_memory_alloc(in->ctx, &device, (size_t)count * real_bytes(in)), error) &&
                (!in->bias || make_bias(in, call, desc.q_heads, &bias, error));
    if (good) {
        ht_attention_args args = arguments(in, call, device, bias);
        good = lib(in, ht_attention_forward(plan, &args), error) &&
               lib(in, ht_context_synchronize(in->ctx), error) &&
               widen(out, in, device, count, error);
    }
    ht_attention_destroy(plan);
    if (device) ht_memory_free(in->ctx, device);
    if (bias) ht_memory_free(in->ctx, bias);
    return good;
}

/* Device memory on the host, from malloc; NULL stays NULL. */
static bool download(void **out, const map_input *in, const void *device, size_t bytes,
                     cli_error *error) {
    if (!device) return true;
    *out = malloc(bytes + 1);
    if (!*out) return cli_fail(error, "out of memory");
    return lib(in, ht_memory_copy_out(in->ctx, *out, device, bytes), error);
}

/* On a CPU, whatever device the input lies on: no other says it. */
bool map_pairs(int8_t *out, const map_input *in, int64_t head, cli_error *error) {
    map_call call = {in->kind, in->query, in->causal, in->block, head, in->open, NULL, 0};
    int code;
    map_input here = *in;
    ht_attention *plan = NULL;
    size_t rows = (size_t)(in->batch * in->length), each = rows * real_bytes(in) * (size_t)in->dim;
    here.q = here.k = NULL, here.mask = NULL, here.bias = NULL;
    here.ctx = cli_open_device("cpu", 1, &code, error);
    if (!here.ctx) return false;
    ht_attention_desc desc = describe(&here, &call);
    bool good = download(&here.q, in, in->q, each * (size_t)in->heads, error) &&
                download(&here.k, in, in->k, each * (size_t)in->kv_heads, error) &&
                download((void **)&here.mask, in, in->mask, rows, error);
    desc.value_dim = desc.head_dim, here.value_dim = in->dim;
    if (good) {
        here.v = here.k; /* nothing is asked of values, but that they are there */
        ht_attention_args args = arguments(&here, &call, here.q, NULL);
        good = lib(&here, ht_attention_create(&plan, here.ctx, &desc), error) &&
               lib(&here, ht_attention_pairs(plan, &args, 0, 0, out), error);
    }
    ht_attention_destroy(plan);
    free(here.q);
    free(here.k);
    free(here.mask);
    ht_context_destroy(here.ctx);
    return good;
}

bool map_save_npy(const char *path, const double *data, int64_t rows, int64_t columns,
                  cli_error *error) {
    char header[NPY_HEADER_MOST];
    const int64_t shape[2] = {rows, columns};
    save_file save = {0};
    bool good = save_open(&save, path, error) &&
                save_write(&save, header, npy_make_header(header, NPY_F64, 2, shape), error) &&
                save_write(&save, data, (size_t)(rows * columns) * sizeof *data, error) &&
                save_finish(&save, error) && save_commit(&save, error);
    save_discard(&save);
    return good;
}
