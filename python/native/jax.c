/*
 * XLA's foreign function interface: the attention as two custom calls of JAX on the CPU.
 *
 * What XLA passes is declared here as far as it is used, so that no part of JAX is needed to build
 * this; the sizes that come with every struct are checked, and tests/python/test_jax.py compares
 * all places with the header that JAX has. htransformer/jax.py is the other half.
 *
 *     ht_jax_forward     q, k, v, seed, then as `has` says: bias, key_mask, query_mask
 *                        -> out, lse, saved
 *     ht_jax_backward    dout, dlse, q, k, v, out, saved, seed, then the same
 *                        -> dq, dk, dv, with a bias dbias
 *
 * seed: two uint32. All arrays are dense. The only attribute is an array of int64, see `call`.
 */
#include <htransformer.h>

#include <pthread.h>
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

typedef struct xla_api {
    size_t size;
    xla_extension *extensions;
    xla_version version;
    const void *internal;
    void *(*make_error)(xla_error_args *args);
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
    int64_t has, threads, offset;
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

typedef struct kept {
    struct kept *next;
    call key; /* less offset */
    ht_context *ctx;
    ht_attention *plan;
} kept;

/* Calls are served one after the other: each takes all threads. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *plans;

static ht_status open_context(ht_context **out, int64_t threads) {
    for (kept *k = plans; k; k = k->next)
        if (k->key.threads == threads) return *out = k->ctx, HT_OK;
    const char *device = getenv("HTRANSFORMER_DEVICE");
    ht_context_desc desc = {.size = sizeof desc, .threads = (int)threads};
    desc.device = device && strncmp(device, "cpu", 3) == 0 ? device : "cpu";
    return ht_context_create(out, &desc);
}

static ht_status find(kept **out, ht_context **ctx, const call *c) {
    call key = *c;
    key.offset = 0;
    for (kept *k = plans; k; k = k->next)
        if (memcmp(&k->key, &key, sizeof key) == 0) return *ctx = k->ctx, *out = k, HT_OK;
    ht_attention_desc desc = desc_of(c);
    *ctx = NULL;
    kept *made = calloc(1, sizeof *made);
    if (!made) return HT_NOMEM;
    ht_status status = open_context(ctx, c->threads);
    if (status == HT_OK) status = ht_attention_create(&made->plan, *ctx, &desc);
    if (status != HT_OK) return free(made), status;
    *made = (kept){.next = plans, .key = key, .ctx = *ctx, .plan = made->plan};
    plans = made;
    return *out = made, HT_OK;
}

/* ---- the calls ---------------------------------------------------------------------------- */

static void *data_of(const xla_list *list, int64_t index) {
    return ((const xla_buffer *)list->items[index])->data;
}

static int optional(const call *c) {
    return !!(c->has & HAS_BIAS) + !!(c->has & HAS_KEY_MASK) + !!(c->has & HAS_QUERY_MASK);
}

/* The call of a frame, or NULL and an error; `arguments` and `results` without what is optional. */
static const call *call_of(const xla_frame *f, int64_t arguments, int64_t results, int biased,
                           void **error) {
    const xla_array *array = f->attributes.count == 1 && f->attributes.types[0] == ARRAY
                                 ? (const xla_array *)f->attributes.items[0]
                                 : NULL;
    const call *c = NULL;
    if (f->arguments.size != sizeof(xla_list) || f->results.size != sizeof(xla_list) ||
        f->attributes.size != sizeof(xla_attributes))
        *error = fail(f, INTERNAL,
                      "this JAX has another foreign function interface than "
                      "htransformer knows: a newer htransformer is needed");
    else if (!array || array->dtype != S64 || array->count * sizeof(int64_t) != sizeof(call))
        *error = fail(f, INVALID_ARGUMENT, "not called by htransformer.jax of this version");
    else
        c = (const call *)array->data;
    if (!c) return NULL;
    if (biased && (c->has & HAS_BIAS)) results++;
    if (f->arguments.count == arguments + optional(c) && f->results.count == results) return c;
    *error = fail(f, INVALID_ARGUMENT, "not called by htransformer.jax of this version");
    return NULL;
}

/* The arguments from q on: `q` is its number, `after` that of what follows the seed. */
static ht_attention_args args_of(const xla_frame *f, const call *c, int64_t q, int64_t after) {
    const xla_list *in = &f->arguments;
    ht_attention_args args = {.size = sizeof args, .batch = c->batch, .length = c->length};
    args.q = tensor(c, data_of(in, q), c->q_heads, c->head_dim);
    args.k = tensor(c, data_of(in, q + 1), c->kv_heads, c->head_dim);
    args.v = tensor(c, data_of(in, q + 2), c->kv_heads, c->value_dim);
    const uint32_t *seed = data_of(in, after - 1);
    args.seed = (uint64_t)seed[0] | (uint64_t)seed[1] << 32;
    args.offset = (uint32_t)c->offset;
    if (c->has & HAS_BIAS) args.bias = data_of(in, after++);
    if (c->has & HAS_KEY_MASK) args.key_mask = data_of(in, after++);
    if (c->has & HAS_QUERY_MASK) args.query_mask = data_of(in, after);
    return args;
}

void *ht_jax_forward(xla_frame *f) {
    void *error = NULL;
    kept *k = NULL;
    ht_context *ctx = NULL;
    if (answer_metadata(f)) return NULL;
    const call *c = call_of(f, 4, 3, 0, &error);
    if (!c) return error;
    ht_attention_args args = args_of(f, c, 0, 4);
    args.out = tensor(c, data_of(&f->results, 0), c->q_heads, c->value_dim);
    args.lse = lse_tensor(c, data_of(&f->results, 1));
    args.saved = data_of(&f->results, 2);
    pthread_mutex_lock(&lock);
    ht_status status = find(&k, &ctx, c);
    if (status == HT_OK) status = ht_attention_forward(k->plan, &args);
    if (status != HT_OK) error = fail_status(f, status, ctx);
    pthread_mutex_unlock(&lock);
    return error;
}

void *ht_jax_backward(xla_frame *f) {
    void *error = NULL;
    kept *k = NULL;
    ht_context *ctx = NULL;
    if (answer_metadata(f)) return NULL;
    const call *c = call_of(f, 8, 3, 1, &error);
    if (!c) return error;
    ht_attention_args args = args_of(f, c, 2, 8);
    args.out = tensor(c, data_of(&f->arguments, 5), c->q_heads, c->value_dim);
    args.saved = data_of(&f->arguments, 6);
    ht_attention_grads grads = {.size = sizeof grads};
    grads.dout = tensor(c, data_of(&f->arguments, 0), c->q_heads, c->value_dim);
    grads.dlse = lse_tensor(c, data_of(&f->arguments, 1));
    grads.dq = tensor(c, data_of(&f->results, 0), c->q_heads, c->head_dim);
    grads.dk = tensor(c, data_of(&f->results, 1), c->kv_heads, c->head_dim);
    grads.dv = tensor(c, data_of(&f->results, 2), c->kv_heads, c->value_dim);
    if (c->has & HAS_BIAS) { /* added to */
        size_t each = c->dtype == HT_F64 ? sizeof(double) : sizeof(float);
        grads.dbias = data_of(&f->results, 3);
        memset(grads.dbias, 0, each * (size_t)((4 * c->block - 1) * c->q_heads));
    }
    pthread_mutex_lock(&lock);
    ht_status status = find(&k, &ctx, c);
    if (status == HT_OK) status = ht_attention_backward(k->plan, &args, &grads);
    if (status != HT_OK) error = fail_status(f, status, ctx);
    pthread_mutex_unlock(&lock);
    return error;
}
