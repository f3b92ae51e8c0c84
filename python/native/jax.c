/*
 * XLA's foreign function interface: the attention as custom calls of JAX, on the CPU and on CUDA.
 *
 * What XLA passes is declared here as far as it is used, so that no part of JAX is needed to build
 * this; the sizes that come with every struct are checked, and the test of JAX compares all places
 * with the header that JAX has. htransformer/jax.py is the other half.
 *
 *     ht_jax_forward     q, k, v, seed, then as `has` says: bias, key_mask, query_mask
 *                        -> out, lse, saved
 *     ht_jax_backward    dout, dlse, q, k, v, out, saved, seed, then the same; with a bias zeros
 *                        -> dq, dk, dv, with a bias dbias, which lies where the zeros are
 *     ht_jax_forward_cuda, ht_jax_backward_cuda    likewise, with a result more: scratch
 *
 * seed: two uint32. All arrays are dense. The only attribute is an array of int64, see `call`. On
 * CUDA calls go to XLA's stream and take their memory from it; only with dropout the host waits,
 * for the seed.
 */
#include <htransformer.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what XLA passes ---------------------------------------------------------------------- */

typedef struct xla_extension {
    size_t size;
    int type; /* METADATA */
    struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
    size_t size;
    xla_extension *extensions;
    int major, minor;
} xla_version;

typedef struct xla_metadata {
    size_t size;
    xla_version version;
    uint32_t traits;
    int64_t state_type;
} xla_metadata;

typedef struct xla_metadata_extension {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

typedef struct xla_error_args {
    size_t size;
    xla_extension *extensions;
    const char *message;
    int code;
} xla_error_args;

typedef struct xla_stream_args {
    size_t size;
    xla_extension *extensions;
    void *context;
    void *stream; /* found */
} xla_stream_args;

typedef struct xla_device_args {
    size_t size;
    xla_extension *extensions;
    void *context;
    int32_t device; /* found */
} xla_device_args;

typedef struct xla_api {
    size_t size;
    xla_extension *extensions;
    xla_version version;
    const void *internal;
    void *(*make_error)(xla_error_args *args);
    void *unused_1[3];
    void *(*get_stream)(xla_stream_args *args); /* these two return an error or NULL */
    void *unused_2[12];
    void *(*get_device)(xla_device_args *args); /* JAX 0.5 and newer */
} xla_api;

typedef struct xla_buffer {
    size_t size;
    xla_extension *extensions;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xla_buffer;

typedef struct xla_array {
    int dtype;
    size_t count;
    void *data;
} xla_array;

typedef struct xla_list { /* of arguments or results */
    size_t size;
    xla_extension *extensions;
    int64_t count;
    int *types;
    void **items;
} xla_list;

typedef struct xla_attributes {
    size_t size;
    xla_extension *extensions;
    int64_t count;
    int *types;
    void **names;
    void **items;
} xla_attributes;

typedef struct xla_frame {
    size_t size;
    xla_extension *extensions;
    const xla_api *api;
    void *context;
    int stage;
    xla_list arguments, results;
    xla_attributes attributes;
    void *future;
} xla_frame;

enum { METADATA = 1, ARRAY = 1, S64 = 5, INVALID_ARGUMENT = 3, EXHAUSTED = 8, INTERNAL = 13 };

#define SHOWN __attribute__((visibility("default")))
SHOWN void *ht_jax_forward(xla_frame *frame);
SHOWN void *ht_jax_backward(xla_frame *frame);
SHOWN void *ht_jax_forward_cuda(xla_frame *frame);
SHOWN void *ht_jax_backward_cuda(xla_frame *frame);
SHOWN int64_t ht_jax_place(int which);

/* For the test: sizes and places of the above, in the order of its list; -1 after the last. */
int64_t ht_jax_place(int which) {
    static const size_t all[] = {
        sizeof(xla_extension),
        offsetof(xla_extension, type),
        sizeof(xla_version),
        offsetof(xla_version, minor),
        sizeof(xla_metadata),
        offsetof(xla_metadata, version),
        offsetof(xla_metadata, traits),
        offsetof(xla_metadata_extension, metadata),
        sizeof(xla_error_args),
        offsetof(xla_error_args, code),
        offsetof(xla_api, version),
        offsetof(xla_api, make_error),
        offsetof(xla_api, get_stream),
        offsetof(xla_api, get_device),
        sizeof(xla_stream_args),
        offsetof(xla_stream_args, stream),
        sizeof(xla_device_args),
        offsetof(xla_device_args, device),
        sizeof(xla_buffer),
        offsetof(xla_buffer, data),
        offsetof(xla_buffer, dims),
        sizeof(xla_array),
        offsetof(xla_array, data),
        sizeof(xla_list),
        offsetof(xla_list, items),
        sizeof(xla_attributes),
        offsetof(xla_attributes, items),
        offsetof(xla_frame, stage),
        offsetof(xla_frame, arguments),
        offsetof(xla_frame, results),
        offsetof(xla_frame, attributes),
    };
    int count = (int)(sizeof all / sizeof *all);
    return which >= 0 && which < count ? (int64_t)all[which] : -1;
}

static void *fail(const xla_frame *frame, int code, const char *sentence) {
    xla_error_args args = {.size = sizeof args, .message = sentence, .code = code};
    return frame->api->make_error(&args);
}

static void *fail_status(const xla_frame *frame, ht_status status, const ht_context *ctx) {
    int code = status == HT_INVALID ? INVALID_ARGUMENT : status == HT_NOMEM ? EXHAUSTED : INTERNAL;
    return fail(frame, code, ht_context_error(ctx));
}

/* Asked before a first call: which interface is this written for? Nothing that is used here has
 * changed since the first one; the sizes are looked at in every call. */
static int answer_metadata(xla_frame *frame) {
    xla_extension *extension = frame->extensions;
    if (!extension || extension->type != METADATA) return 0;
    xla_metadata *metadata = ((xla_metadata_extension *)extension)->metadata;
    metadata->version.major = frame->api->version.major;
    metadata->version.minor = frame->api->version.minor;
    metadata->traits = 0;
    return 1;
}

/* ---- what JAX asks for -------------------------------------------------------------------- */

enum { HAS_BIAS = 1, HAS_KEY_MASK = 2, HAS_QUERY_MASK = 4 };

/* The attribute: the descriptor of a plan and the rest of a call, in this order. */
typedef struct call {
    int64_t kind, query, dtype, causal, q_heads, kv_heads, head_dim, value_dim, block;
    int64_t batch, length, open, open_leaf, open_peek;
    double scale, rotary_theta, dropout; /* their bits */
    int64_t heads_first; /* 1: [batch, heads, length, dim], 0: length before heads */
    int64_t has, threads, cuda, offset;
} call;

static ht_attention_desc desc_of(const call *c) {
    ht_attention_desc d = {.size = sizeof d};
    d.kind = (int)c->kind, d.query = (int)c->query, d.dtype = (int)c->dtype;
    d.causal = (int)c->causal, d.has_bias = (c->has & HAS_BIAS) != 0;
    d.q_heads = c->q_heads, d.kv_heads = c->kv_heads;
    d.head_dim = c->head_dim, d.value_dim = c->value_dim, d.block = c->block;
    d.max_rows = c->batch * c->length > 0 ? c->batch * c->length : 1;
    d.max_sequences = c->batch, d.max_length = c->length > 0 ? c->length : 1;
    d.scale = c->scale, d.rotary_theta = c->rotary_theta, d.dropout = c->dropout;
    d.open = c->open, d.open_leaf = c->open_leaf, d.open_peek = c->open_peek;
    return d;
}

static ht_tensor tensor(const call *c, const void *data, int64_t heads, int64_t dim) {
    ht_tensor t = {.data = (void *)(uintptr_t)data, .batch_stride = c->length * heads * dim};
    t.row_stride = c->heads_first ? dim : heads * dim;
    t.head_stride = c->heads_first ? c->length * dim : dim;
    return t;
}

static ht_tensor lse_tensor(const call *c, void *data) {
    ht_tensor t = {.data = data, .batch_stride = c->q_heads * c->length};
    t.row_stride = 1, t.head_stride = c->length;
    return t;
}

/* ---- plans, kept -------------------------------------------------------------------------- */

typedef struct place { /* where a call computes; of the CPU zeros */
    int64_t device;
    void *stream;
} place;

typedef struct kept {
    struct kept *next;
    call key; /* less offset */
    place place;
    ht_context *ctx;
    ht_attention *plan;
} kept;

/* Calls are served one after the other: on the CPU each takes all threads, on CUDA none waits. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *plans;

static int same_place(const place *a, const place *b) {
    return a->device == b->device && a->stream == b->stream;
}

static ht_status open_context(ht_context **out, const call *c, const place *at) {
    for (kept *k = plans; k; k = k->next)
        if (k->key.threads == c->threads && k->key.cuda == c->cuda && same_place(&k->place, at))
            return *out = k->ctx, HT_OK;
    char name[32];
    const char *device = getenv("HTRANSFORMER_DEVICE");
    ht_context_desc desc = {.size = sizeof desc, .threads = (int)c->threads, .stream = at->stream};
    desc.device = device && strncmp(device, "cpu", 3) == 0 ? device : "cpu";
    if (c->cuda) {
        snprintf(name, sizeof name, "cuda:%d", (int)at->device);
        desc.device = name;
    }
    return ht_context_create(out, &desc);
}

static ht_status find(kept **out, ht_context **ctx, const call *c, const place *at) {
    call key = *c;
    key.offset = 0;
    for (kept *k = plans; k; k = k->next)
        if (memcmp(&k->key, &key, sizeof key) == 0 && same_place(&k->place, at))
            return *ctx = k->ctx, *out = k, HT_OK;
    ht_attention_desc desc = desc_of(c);
    *ctx = NULL;
    kept *made = calloc(1, sizeof *made);
    if (!made) return HT_NOMEM;
    ht_status status = open_context(ctx, c, at);
    if (status == HT_OK) status = ht_attention_create(&made->plan, *ctx, &desc);
    if (status != HT_OK) return free(made), status;
    *made = (kept){.next = plans, .key = key, .place = *at, .ctx = *ctx, .plan = made->plan};
    plans = made;
    return *out = made, HT_OK;
}

/* Which GPU and stream of XLA's; returns an error or NULL. */
static void *find_place(place *out, const xla_frame *f, const call *c) {
    *out = (place){0};
    if (!c->cuda) return NULL;
    const xla_api *api = f->api;
    if (api->size < offsetof(xla_api, get_device) + sizeof api->get_device)
        return fail(f, INTERNAL, "htransformer needs JAX 0.5 or newer on a GPU");
    xla_stream_args stream = {.size = sizeof stream, .context = f->context};
    xla_device_args device = {.size = sizeof device, .context = f->context};
    void *error = api->get_stream(&stream);
    if (!error) error = api->get_device(&device);
    out->stream = stream.stream, out->device = device.device;
    return error;
}

/* ---- the calls ---------------------------------------------------------------------------- */

static void *data_of(const xla_list *list, int64_t index) {
    return ((const xla_buffer *)list->items[index])->data;
}

static int optional(const call *c) {
    return !!(c->has & HAS_BIAS) + !!(c->has & HAS_KEY_MASK) + !!(c->has & HAS_QUERY_MASK);
}

static const char *const other_version = "not called by htransformer.jax of this version";
static const char *const other_device[] = {
    "htransformer.jax was traced for a GPU and runs on the CPU: trace it under "
    "jax.default_device(jax.devices('cpu')[0])",
    "htransformer.jax was traced for the CPU and runs on a GPU: trace it where jax.default_device "
    "is that GPU"};

static const call *refuse(void **error, const xla_frame *f, int code, const char *sentence) {
    *error = fail(f, code, sentence);
    return NULL;
}

/* The call of a frame, or NULL and an error; `arguments` and `results` without what is optional. */
static const call *call_of(const xla_frame *f, int cuda, int64_t arguments, int64_t results,
                           int backward, void **error) {
    if (f->arguments.size != sizeof(xla_list) || f->results.size != sizeof(xla_list) ||
        f->attributes.size != sizeof(xla_attributes))
        return refuse(error, f, INTERNAL,
                      "this JAX has another foreign function interface than "
                      "htransformer knows: a newer htransformer is needed");
    const xla_array *array = f->attributes.count == 1 && f->attributes.types[0] == ARRAY
                                 ? (const xla_array *)f->attributes.items[0]
                                 : NULL;
    if (!array || array->dtype != S64 || array->count * sizeof(int64_t) != sizeof(call))
        return refuse(error, f, INVALID_ARGUMENT, other_version);
    const call *c = (const call *)array->data;
    if (!c->cuda != !cuda)
        return refuse(error, f, INVALID_ARGUMENT, cuda ? other_device[1] : other_device[0]);
    int biased = backward && (c->has & HAS_BIAS);
    if (f->arguments.count == arguments + optional(c) + biased &&
        f->results.count == results + biased + cuda)
        return c;
    return refuse(error, f, INVALID_ARGUMENT, other_version);
}

/* The arguments from q on: `q` is its number, `after` that of what follows the seed. */
static ht_attention_args args_of(const xla_frame *f, const call *c, int64_t q, int64_t after) {
    const xla_list *in = &f->arguments;
    ht_attention_args args = {.size = sizeof args, .batch = c->batch, .length = c->length};
    args.q = tensor(c, data_of(in, q), c->q_heads, c->head_dim);
    args.k = tensor(c, data_of(in, q + 1), c->kv_heads, c->head_dim);
    args.v = tensor(c, data_of(in, q + 2), c->kv_heads, c->value_dim);
    args.offset = (uint32_t)c->offset;
    if (c->has & HAS_BIAS) args.bias = data_of(in, after++);
    if (c->has & HAS_KEY_MASK) args.key_mask = data_of(in, after++);
    if (c->has & HAS_QUERY_MASK) args.query_mask = data_of(in, after);
    if (c->cuda) args.scratch = data_of(&f->results, f->results.count - 1);
    return args;
}

/* The seed lies where the arrays do; without dropout nobody looks at it. */
static ht_status read_seed(ht_attention_args *args, ht_context *ctx, const call *c,
                           const void *from) {
    uint32_t seed[2] = {0, 0};
    ht_status status = c->dropout > 0 ? ht_memory_copy_out(ctx, seed, from, sizeof seed) : HT_OK;
    args->seed = (uint64_t)seed[0] | (uint64_t)seed[1] << 32;
    return status;
}

static void *forward(xla_frame *f, int cuda) {
    void *error = NULL;
    kept *k = NULL;
    ht_context *ctx = NULL;
    place at;
    if (answer_metadata(f)) return NULL;
    const call *c = call_of(f, cuda, 4, 3, 0, &error);
    if (!c || (error = find_place(&at, f, c))) return error;
    ht_attention_args args = args_of(f, c, 0, 4);
    args.out = tensor(c, data_of(&f->results, 0), c->q_heads, c->value_dim);
    args.lse = lse_tensor(c, data_of(&f->results, 1));
    args.saved = data_of(&f->results, 2);
    pthread_mutex_lock(&lock);
    ht_status status = find(&k, &ctx, c, &at);
    if (status == HT_OK) status = read_seed(&args, ctx, c, data_of(&f->arguments, 3));
    if (status == HT_OK) status = ht_attention_forward(k->plan, &args);
    if (status != HT_OK) error = fail_status(f, status, ctx);
    pthread_mutex_unlock(&lock);
    return error;
}

static void *backward(xla_frame *f, int cuda) {
    void *error = NULL;
    kept *k = NULL;
    ht_context *ctx = NULL;
    place at;
    if (answer_metadata(f)) return NULL;
    const call *c = call_of(f, cuda, 8, 3, 1, &error);
    if (!c || (error = find_place(&at, f, c))) return error;
    ht_attention_args args = args_of(f, c, 2, 8);
    args.out = tensor(c, data_of(&f->arguments, 5), c->q_heads, c->value_dim);
    args.saved = data_of(&f->arguments, 6);
    ht_attention_grads grads = {.size = sizeof grads};
    grads.dout = tensor(c, data_of(&f->arguments, 0), c->q_heads, c->value_dim);
    grads.dlse = lse_tensor(c, data_of(&f->arguments, 1));
    grads.dq = tensor(c, data_of(&f->results, 0), c->q_heads, c->head_dim);
    grads.dk = tensor(c, data_of(&f->results, 1), c->kv_heads, c->head_dim);
    grads.dv = tensor(c, data_of(&f->results, 2), c->kv_heads, c->value_dim);
    if (c->has & HAS_BIAS) grads.dbias = data_of(&f->results, 3); /* added to the zeros */
    pthread_mutex_lock(&lock);
    ht_status status = find(&k, &ctx, c, &at);
    if (status == HT_OK) status = read_seed(&args, ctx, c, data_of(&f->arguments, 7));
    if (status == HT_OK) status = ht_attention_backward(k->plan, &args, &grads);
    if (status != HT_OK) error = fail_status(f, status, ctx);
    pthread_mutex_unlock(&lock);
    return error;
}

void *ht_jax_forward(xla_frame *f) { return forward(f, 0); }
void *ht_jax_backward(xla_frame *f) { return backward(f, 0); }
void *ht_jax_forward_cuda(xla_frame *f) { return forward(f, 1); }
void *ht_jax_backward_cuda(xla_frame *f) { return backward(f, 1); }
