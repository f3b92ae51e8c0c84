/*
 * htransformer attend: attention on NumPy files.
 *
 * Everything that can be wrong is found before the work starts: headers and shapes first,
 * then the device and the plan, then the names of the outputs. Data go through a small window
 * of host memory to the device and back, so the same code serves a CPU and a GPU.
 */
#include "commands.h"
#include "base/npy.h"
#include "base/save.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW ((size_t)1 << 20) /* bytes of host memory between file and device */

typedef enum input_name {
    IN_Q,
    IN_K,
    IN_V,
    IN_BIAS,
    IN_KEY_MASK,
    IN_QUERY_MASK,
    INPUTS
} input_name;

typedef struct attend_values {
    const char *in[INPUTS];
    const char *out, *lse;
    int64_t block, threads;
    int kind, query, causal;
    cli_opening opening;
    double rotary0, scale;
    const char *device;
} attend_values;

/* clang-format off: tables */
#define AT(field) offsetof(attend_values, field)
static const cli_option options[] = {
    {"q", CLI_READ, AT(in[IN_Q]), "FILE", .required = 1,
     .help = "queries [batch, length, heads, dim]"},
    {"k", CLI_READ, AT(in[IN_K]), "FILE", .required = 1,
     .help = "keys [batch, length, key heads, dim]; key heads divide heads"},
    {"v", CLI_READ, AT(in[IN_V]), "FILE", .required = 1,
     .help = "values [batch, length, key heads, value dim]"},
    {"out", CLI_WRITE, AT(out), "FILE", .required = 1,
     .help = "the result [batch, length, heads, value dim]"},
    {"lse", CLI_WRITE, AT(lse), "FILE",
     .help = "also write the log-sum-exp [batch, length, heads]"},
    {"kind", CLI_CHOICE, AT(kind), .choices = cli_kinds, .fallback = "hierarchical",
     .help = "full is exact and quadratic; local is own block and neighbours"},
    {"block", CLI_INT, AT(block), "N", .fallback = "16", .min = 2, .max = 1 << 20, .step = 2,
     .help = "rows of a block, even: larger is closer to full attention"},
    {"query", CLI_CHOICE, AT(query), .choices = cli_queries, .fallback = "auto",
     .help = "query of a cluster: mean of its rows, its first row, or every row its own; auto: "
             "with --causal or --open fine, else mean"},
    {"causal", CLI_FLAG, AT(causal), .help = "row i sees rows up to i; not with --query mean"},
    CLI_OPENING(attend_values, opening),
    {"bias", CLI_READ, AT(in[IN_BIAS]), "FILE",
     .help = "relative position bias [4*block - 1, heads]"},
    {"rotary0", CLI_REAL, AT(rotary0), "THETA", .max = INT64_MAX,
     .help = "rotary positions of this base at the exact level, e.g. 10000; 0 is none"},
    {"scale", CLI_REAL, AT(scale), "S", .help = "factor of the scores; 0 is 1/sqrt(dim)"},
    {"key-mask", CLI_READ, AT(in[IN_KEY_MASK]), "FILE",
     .help = "[batch, length] uint8 or bool: keys that are not 0 take part"},
    {"query-mask", CLI_READ, AT(in[IN_QUERY_MASK]), "FILE",
     .help = "[batch, length] uint8 or bool: other rows give 0"},
    {"device", CLI_TEXT, AT(device), "NAME",
     .help = "as 'htransformer info' lists them, e.g. cpu, cuda:0; default auto"},
    {"threads", CLI_INT, AT(threads), "N", .fallback = "0", .max = 4096,
     .help = "CPU threads; 0 is one per core"},
    {0},
};
/* clang-format on */
#undef AT

/* Everything that must be given back at the end. */
typedef struct job {
    const attend_values *values;
    npy_reader in[INPUTS];
    int64_t batch, length, heads, value_dim;
    ht_context *ctx;
    ht_attention *plan;
    void *device_in[INPUTS], *device_out, *device_lse;
    save_file out, lse;
    char *window; /* [WINDOW] */
    int code;     /* of a failure */
    cli_error error;
} job;

static bool lib(job *j, ht_status status) {
    return status == HT_OK || cli_fail(&j->error, "%s", ht_context_error(j->ctx));
}

/* ---- inputs ------------------------------------------------------------------------------ */

static bool open_inputs(job *j) {
    for (int i = 0; i < INPUTS; i++)
        if (j->values->in[i] && !npy_open(&j->in[i], j->values->in[i], &j->error)) return false;
    return true;
}

/* Is input i of this shape? A wanted size of 0 stands for any that is at least 1. */
static bool check_shape(job *j, input_name i, int dims, const int64_t *wanted,
                        const char *meaning) {
    const npy_header *h = &j->in[i].header;
    bool fits = h->dims == dims;
    for (int d = 0; d < dims && fits; d++)
        fits = wanted[d] ? h->shape[d] == wanted[d] : h->shape[d] >= 1;
    if (fits) return true;
    char have[160], want[160];
    npy_shape_text(have, sizeof have, h->dims, h->shape);
    npy_shape_text(want, sizeof want, dims, wanted);
    bool open = false; /* some dimension is free */
    for (char *p = want; *p; p++)
        if (*p == '0' && (p[-1] == ' ' || p[-1] == '[') && (p[1] == ',' || p[1] == ']'))
            *p = '*', open = true;
    return cli_fail(&j->error, "%s has shape %s; %s must be %s%s", j->in[i].name, have, meaning,
                    want, open ? ", where * is 1 or more" : "");
}

static bool check_shapes(job *j) {
    const int64_t *q = j->in[IN_Q].header.shape, *k = j->in[IN_K].header.shape;
    const int64_t any[4] = {0};
    if (!check_shape(j, IN_Q, 4, any, "--q [batch, length, heads, dim]")) return false;
    const int64_t k_wanted[4] = {q[0], q[1], 0, q[3]}, mask_wanted[2] = {q[0], q[1]};
    if (!check_shape(j, IN_K, 4, k_wanted, "--k [batch, length, key heads, dim]")) return false;
    const int64_t v_wanted[4] = {q[0], q[1], k[2], 0};
    const int64_t bias_wanted[2] = {4 * j->values->block - 1, q[2]};
    if (!check_shape(j, IN_V, 4, v_wanted, "--v [batch, length, key heads, value dim]"))
        return false;
    if (j->in[IN_BIAS].file &&
        !check_shape(j, IN_BIAS, 2, bias_wanted, "--bias [4*block - 1, heads]"))
        return false;
    for (input_name i = IN_KEY_MASK; i <= IN_QUERY_MASK; i++)
        if (j->in[i].file && !check_shape(j, i, 2, mask_wanted, "a mask [batch, length]"))
            return false;
    j->batch = q[0], j->length = q[1], j->heads = q[2];
    j->value_dim = j->in[IN_V].header.shape[3];
    return true;
}

/* Of bias and lse. */
static npy_type wide_type(const job *j) {
    npy_type real = j->in[IN_Q].header.type;
    return real == NPY_F16 ? NPY_F32 : real;
}

static bool check_types(job *j) {
    npy_type real = j->in[IN_Q].header.type;
    if (real != NPY_F32 && real != NPY_F64 && real != NPY_F16)
        return cli_fail(&j->error, "%s holds %s; --q must be float32, float64 or float16",
                        j->in[IN_Q].name, npy_type_name(real));
    for (input_name i = IN_K; i < INPUTS; i++) {
        npy_type type = j->in[i].header.type;
        bool mask = i == IN_KEY_MASK || i == IN_QUERY_MASK;
        if (!j->in[i].file) continue;
        if (mask && type != NPY_U8 && type != NPY_BOOL)
            return cli_fail(&j->error, "%s holds %s; a mask must be uint8 or bool", j->in[i].name,
                            npy_type_name(type));
        if (i == IN_BIAS && real == NPY_F16) {
            if (type == NPY_F32) continue;
            return cli_fail(&j->error, "%s holds %s; beside float16 a bias is float32",
                            j->in[i].name, npy_type_name(type));
        }
        if (!mask && type != real)
            return cli_fail(&j->error, "%s holds %s, but %s %s; they must agree", j->in[i].name,
                            npy_type_name(type), j->in[IN_Q].name, npy_type_name(real));
    }
    return true;
}

/* ---- device ------------------------------------------------------------------------------ */

static bool make_plan(job *j) {
    const attend_values *v = j->values;
    const npy_header *k = &j->in[IN_K].header;
    ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
    desc.kind = (ht_kind)v->kind;
    desc.query = cli_query(v->query, v->causal, v->opening.open);
    npy_type real = j->in[IN_Q].header.type;
    desc.dtype = real == NPY_F64 ? HT_F64 : real == NPY_F16 ? HT_F16 : HT_F32;
    desc.causal = v->causal;
    desc.has_bias = j->in[IN_BIAS].file != NULL;
    desc.q_heads = j->heads;
    desc.kv_heads = k->shape[2];
    desc.head_dim = k->shape[3];
    desc.value_dim = j->value_dim;
    desc.block = v->block;
    desc.open = v->opening.open, desc.open_leaf = v->opening.leaf;
    desc.open_peek = v->opening.peek;
    desc.max_rows = j->batch * j->length; /* the file holds them, so this fits */
    desc.max_sequences = j->batch;
    desc.max_length = j->length;
    desc.scale = v->scale;
    desc.rotary_theta = v->rotary0;
    j->ctx = cli_open_device(cli_device(v->device, desc.dtype == HT_F64), v->threads, &j->code,
                             &j->error);
    return j->ctx && lib(j, ht_attention_create(&j->plan, j->ctx, &desc));
}

/* File to device memory, window by window. */
static bool load(job *j, input_name i) {
    npy_reader *r = &j->in[i];
    if (!lib(j, ht_memory_alloc(j->ctx, &j->device_in[i], (size_t)r->header.bytes))) return false;
    for (size_t done = 0; r->left > 0;) {
        size_t n = r->left < WINDOW ? (size_t)r->left : WINDOW;
        if (!npy_read(r, j->window, n, &j->error)) return false;
        if (!lib(j, ht_memory_copy_in(j->ctx, (char *)j->device_in[i] + done, j->window, n)))
            return false;
        done += n;
    }
    return true;
}

/* Device memory to a finished file, not yet under its final name. */
static bool store(job *j, save_file *save, npy_type type, const void *device, int dims,
                  const int64_t *shape) {
    char header[NPY_HEADER_MOST];
    size_t bytes = npy_type_bytes(type);
    for (int d = 0; d < dims; d++) bytes *= (size_t)shape[d];
    if (!save_write(save, header, npy_make_header(header, type, dims, shape), &j->error))
        return false;
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < WINDOW ? bytes - done : WINDOW;
        if (!lib(j, ht_memory_copy_out(j->ctx, j->window, (const char *)device + done, n)))
            return false;
        if (!save_write(save, j->window, n, &j->error)) return false;
        done += n;
    }
    return save_finish(save, &j->error);
}

static bool compute(job *j) {
    size_t real = npy_type_bytes(j->in[IN_Q].header.type);
    size_t cells = (size_t)(j->batch * j->length * j->heads), out;
    if (__builtin_mul_overflow(cells, (size_t)j->value_dim * real, &out))
        return cli_fail(&j->error, "the result would not fit into memory");
    if (!lib(j, ht_memory_alloc(j->ctx, &j->device_out, out))) return false;
    size_t lse = cells * npy_type_bytes(wide_type(j));
    if (j->values->lse && !lib(j, ht_memory_alloc(j->ctx, &j->device_lse, lse))) return false;
    ht_attention_args args = HT_ATTENTION_ARGS_INIT;
    args.batch = j->batch;
    args.length = j->length;
    args.q.data = j->device_in[IN_Q];
    args.k.data = j->device_in[IN_K];
    args.v.data = j->device_in[IN_V];
    args.out.data = j->device_out;
    args.bias = j->device_in[IN_BIAS];
    args.key_mask = j->device_in[IN_KEY_MASK];
    args.query_mask = j->device_in[IN_QUERY_MASK];
    args.lse.data = j->device_lse;
    return lib(j, ht_attention_forward(j->plan, &args)) && lib(j, ht_context_synchronize(j->ctx));
}

/* ---- the command ------------------------------------------------------------------------- */

static bool open_outputs(job *j) {
    if (!save_open(&j->out, j->values->out, &j->error)) return false;
    return !j->values->lse || save_open(&j->lse, j->values->lse, &j->error);
}

/* Both files are complete before either gets its name. */
static bool store_all(job *j) {
    const int64_t shape[4] = {j->batch, j->length, j->heads, j->value_dim};
    if (!store(j, &j->out, j->in[IN_Q].header.type, j->device_out, 4, shape)) return false;
    if (j->values->lse && !store(j, &j->lse, wide_type(j), j->device_lse, 3, shape)) return false;
    if (!save_commit(&j->out, &j->error)) return false;
    return !j->values->lse || save_commit(&j->lse, &j->error);
}

static bool attend(job *j) {
    if (!open_inputs(j) || !check_types(j) || !check_shapes(j) || !make_plan(j)) return false;
    if (!open_outputs(j)) return false;
    j->window = malloc(WINDOW);
    if (!j->window) return cli_fail(&j->error, "out of memory");
    for (input_name i = IN_Q; i < INPUTS; i++)
        if (j->in[i].file && !load(j, i)) return false;
    return compute(j) && store_all(j);
}

static void release(job *j) {
    for (int i = 0; i < INPUTS; i++) {
        npy_close(&j->in[i]);
        if (j->device_in[i]) ht_memory_free(j->ctx, j->device_in[i]);
    }
    if (j->device_out) ht_memory_free(j->ctx, j->device_out);
    if (j->device_lse) ht_memory_free(j->ctx, j->device_lse);
    if (j->plan) ht_attention_destroy(j->plan);
    if (j->ctx) ht_context_destroy(j->ctx);
    save_discard(&j->out);
    save_discard(&j->lse);
    free(j->window);
}

static int run(const void *values) {
    job j = {.values = values, .code = CLI_FAILED};
    if (!cli_check_query(j.values->kind, j.values->query, j.values->causal, &j.error)) {
        cli_say("attend", "%s", j.error.text);
        return CLI_USAGE;
    }
    if (j.values->lse && strcmp(j.values->lse, j.values->out) == 0) {
        cli_say("attend", "--out and --lse are both %s", j.values->out);
        return CLI_USAGE;
    }
    bool ok = attend(&j);
    if (!ok) cli_say("attend", "%s", j.error.text);
    release(&j);
    return ok ? CLI_OK : j.code;
}

const cli_command cli_attend = {
    .name = "attend",
    .summary = "attention on NumPy files",
    .about =
        "Files are .npy, C order. All of --q, --k, --v and --bias are float32, or all "
        "float64; the outputs are of the same type. With float16 in --q, --k and --v --bias is "
        "float32, and so is what --lse writes.\n"
        "An output is written beside its final name and renamed when it is whole.\n"
        "Example: htransformer attend --q q.npy --k k.npy --v v.npy --out z.npy --causal\n",
    .options = options,
    .values_bytes = sizeof(attend_values),
    .run = run,
};
