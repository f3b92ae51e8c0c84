/*
 * Every function of both headers, with a NULL for each pointer and numbers near the ends of their
 * types: an error and a sentence, or an answer, but never the end of the process. The table of
 * functions is made from the headers (calls.py); each case is a process of its own.
 */
#include "training.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct value {
    void *p;
    int64_t i;
    double d;
} value;

enum { MOST = 8, ROOM = 1 << 16 };

typedef struct call {
    const char *name;
    int (*run)(const value *v); /* the status; -1: it has none */
    int count;
    struct {
        const char *type, *name;
    } parameter[MOST];
} call;

/* A number in a struct that begins with its size. */
typedef struct field {
    const char *type, *name;
    size_t offset, bytes;
    int real;
} field;

#include <calls.h>

enum {
    CALLS = sizeof calls / sizeof *calls,
    SIZED = sizeof sized / sizeof *sized,
    FIELDS = sizeof fields / sizeof *fields
};

/* ---- good arguments ---- */

#define CONFIG                                                                                 \
    "{\"task\":\"language\",\"format\":\"text\",\"layers\":1,\"width\":8,\"heads\":1,\"hidden" \
    "\":8,\"length\":16,\"batch\":1,\"block\":4,\"steps\":0,\"warmup\":0}"

static ht_context *ctx;
static ht_attention *plan;
static ht_cache *cache;
static ht_tokenizer *tokenizer;
static ht_config *config;
static ht_data *data;
static ht_model *model;
static ht_generator *generator;
static ht_trainer *trainer;
static ht_world *world;
static ht_writer *writer;
static FILE *stream;
static ht_linear *linear;
static char text_path[128], rows_path[128];
static double buffers[MOST][ROOM / 8]; /* one for every parameter */

/* In a child, where cmocka must not go on with other tests. */
#define MUST(call)                                                     \
    do {                                                               \
        if ((call) != HT_OK) {                                         \
            fprintf(stderr, "%s: %s\n", #call, ht_context_error(ctx)); \
            _exit(3);                                                  \
        }                                                              \
    } while (0)

static void make_attention(void) {
    sized_ht_attention_desc.kind = HT_HIERARCHICAL;
    sized_ht_attention_desc.causal = 1;
    sized_ht_attention_desc.q_heads = 1;
    sized_ht_attention_desc.head_dim = 4;
    sized_ht_attention_desc.block = 4;
    sized_ht_attention_desc.max_rows = 16;
    MUST(ht_attention_create(&plan, ctx, &sized_ht_attention_desc));
    MUST(ht_cache_create(&cache, plan, 2));
    ht_attention_args *a = &sized_ht_attention_args;
    ht_attention_grads *g = &sized_ht_attention_grads;
    ht_tensor *tensors[] = {&a->q, &a->k, &a->v, &a->out, &g->dout, &g->dq, &g->dk, &g->dv};
    static float rows[8][64];
    static double saved[512];
    a->batch = 1, a->length = 16, a->saved = saved;
    for (int i = 0; i < 8; i++) tensors[i]->data = rows[i];
}

static void make_models(void) {
    MUST(ht_world_open(&world, ctx));
    static int32_t starts[] = {0, 4}, tokens[] = {0, 1, 2, 3};
    MUST(ht_config_create(&config, ctx, NULL));
    MUST(ht_config_read_json(config, CONFIG));
    sized_ht_data_desc.config = sized_ht_trainer_desc.config = config;
    sized_ht_data_desc.path = text_path;
    MUST(ht_tokenizer_open(&tokenizer, ctx, NULL));
    MUST(ht_data_open(&data, ctx, &sized_ht_data_desc));
    MUST(ht_model_create(&model, ctx, config));
    MUST(ht_generator_create(&generator, model, NULL));
    MUST(ht_trainer_create(&trainer, model, NULL));
    ht_config *classifier;
    ht_data *rows;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    MUST(ht_config_create(&classifier, ctx, NULL));
    desc.config = classifier, desc.path = rows_path, desc.keep_texts = 1;
    MUST(ht_data_open(&rows, ctx, &desc));
    MUST(ht_linear_fit(&linear, ctx, rows));
    ht_data_close(rows);
    ht_config_destroy(classifier);
    ht_batch *b = &sized_ht_batch;
    b->sequences = 1, b->tokens = b->targets = tokens, b->cu_seqlens = starts;
    MUST(ht_generator_feed(generator, NULL, b, NULL, 0));
    sized_ht_train_desc.folder = training_folder;
    sized_ht_train_desc.train = data;
    sized_ht_set_desc.task = "listops"; /* made, it would take long */
    sized_ht_set_desc.source = "/nowhere";
    sized_ht_set_desc.items[0] = 1;
    sized_ht_sampling.temperature = sized_ht_sampling.top_p = sized_ht_sampling.repeat_penalty = 1;
}

/* The type without const: "ht_model *" of "const ht_model *". */
static const char *bare(const char *type) {
    return strncmp(type, "const ", 6) == 0 ? type + 6 : type;
}

static int is(const char *type, const char *other) { return strcmp(bare(type), other) == 0; }

static int is_pointer(const char *type) { return type[strlen(type) - 1] == '*'; }

static int is_handle(const char *type) {
    for (size_t i = 0; i < sizeof handles / sizeof *handles; i++)
        if (is(type, handles[i])) return 1;
    return 0;
}

static void *object_of(const char *type) {
    const struct {
        const char *type;
        void *at;
    } objects[] = {
        {"ht_context *", ctx},     {"ht_attention *", plan},      {"ht_cache *", cache},
        {"ht_data *", data},       {"ht_model *", model},         {"ht_generator *", generator},
        {"ht_world *", world},     {"ht_writer *", writer},       {"FILE *", stream},
        {"ht_trainer *", trainer}, {"ht_tokenizer *", tokenizer}, {"ht_config *", config},
        {"ht_linear *", linear}};
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (is(type, objects[i].type)) return objects[i].at;
    for (size_t i = 0; i < SIZED; i++)
        if (is(type, sized[i].type)) return sized[i].at;
    return NULL;
}

static value good(const call *c, int k) {
    const char *type = c->parameter[k].type, *name = c->parameter[k].name;
    value v = {.i = 1, .d = 0.5};
    if (strcmp(name, "slot") == 0 || strcmp(name, "index") == 0 || strcmp(name, "layer") == 0)
        v.i = 0;
    if (strcmp(name, "bytes") == 0 || strcmp(name, "room") == 0) v.i = 64;
    if (!is_pointer(type)) return v;
    v.p = object_of(type);
    if (!v.p && strcmp(type, "const char *") == 0)
        v.p = (void *)(uintptr_t)(strcmp(name, "folder") == 0 ? training_folder
                                  : strcmp(name, "json") == 0 ? "{}"
                                  : strcmp(name, "key") == 0  ? "layers"
                                                              : training_path("some"));
    if (!v.p) v.p = buffers[k];
    if (strcmp(name, "slots") == 0 || strcmp(name, "block") == 0) v.p = NULL;
    return v;
}

/* ---- cases ---- */

/* An argument that is not good: number k, or of that a field. */
typedef struct change {
    int k; /* -1: none */
    value value;
    const field *field;
    int must_refuse;
} change;

static void set_field(void *at, const field *f, const value *v) {
    int32_t half = v->i > INT32_MAX ? INT32_MAX : v->i < INT32_MIN ? INT32_MIN : (int32_t)v->i;
    const void *from = f->real         ? (const void *)&v->d
                       : f->bytes == 4 ? (const void *)&half
                                       : (const void *)&v->i;
    memcpy((char *)at + f->offset, from, f->bytes < 8 ? f->bytes : 8);
}

/* Once for all: a child has a copy of its own. */
static int make_all(void) {
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu:ref", desc.threads = 1; /* threads do not survive a fork */
    if (ht_context_create(&ctx, &desc) != HT_OK) return 0;
    make_attention();
    make_models();
    return 1;
}

/* Runs in a process of its own, so that nothing is left of it. Files alone are made here: what is
 * done to one shows everywhere. */
static int child(const call *c, const change *bad) {
    value v[MOST];
    MUST(ht_writer_create(&writer, ctx, training_path("written")));
    stream = fopen(text_path, "rb");
    for (int i = 0; i < c->count; i++) v[i] = good(c, i);
    if (bad->field)
        set_field(v[bad->k].p, bad->field, &bad->value);
    else if (bad->k >= 0)
        v[bad->k] = bad->value;
    int status = c->run(v);
    if (status < -1 || status > HT_DIVERGED) return 4;
    if (bad->must_refuse && status != -1 && status != HT_INVALID) return 5;
    const char *sentence = ht_context_error(NULL);
    return bad->must_refuse && status == HT_INVALID && !*sentence ? 6 : 0;
}

static int faults; /* of the test at work */

static void try(const call *c, change bad, const char *what) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        static const int ends[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
        for (int i = 0; i < 5; i++) signal(ends[i], SIG_DFL); /* cmocka would go on */
        alarm(60);
        _exit(child(c, &bad));
    }
    int how = 0;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return;
    print_error("%s with %s%s%s %s: %s %d\n", c->name,
                bad.k < 0 ? "good arguments" : c->parameter[bad.k].name, bad.field ? "." : "",
                bad.field ? bad.field->name : "", what, WIFSIGNALED(how) ? "signal" : "ended with",
                WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    faults++;
}

static int is_one_of(const char *name, const char *const *list) {
    for (; *list; list++)
        if (strcmp(name, *list) == 0) return 1;
    return 0;
}

/* How many numbers or bytes the caller has there: a lie about it is the caller's. */
static int is_extent(const char *name) {
    static const char *const extents[] = {"bytes",  "room",    "count", "vocab",
                                          "length", "recents", NULL};
    return is_one_of(name, extents);
}

static void good_arguments(void **state) {
    (void)state;
    faults = 0;
    for (int i = 0; i < CALLS; i++) try(&calls[i], (change){.k = -1}, "");
    assert_int_equal(faults, 0);
}

/* The first handle must be there; whatever else is missing may have a meaning. */
static void null_pointers(void **state) {
    (void)state;
    static const char *const without[] = {
        "ht_config_create", "ht_data_encode",      "ht_sample",    "ht_writer_create",
        "ht_file_open",     "ht_file_open_stream", "ht_file_line", NULL};
    int refused = 0;
    faults = 0;
    for (int i = 0; i < CALLS; i++) {
        const call *c = &calls[i];
        int handle = 0;
        for (int k = 0; k < c->count; k++) {
            if (!is_pointer(c->parameter[k].type)) continue;
            int must = is_handle(c->parameter[k].type) && !handle++;
            /* a context is where memory and the sentence go, and what these do needs no device */
            if (is(c->parameter[k].type, "ht_context *") && is_one_of(c->name, without)) must = 0;
            try(c, (change){.k = k, .must_refuse = must}, "NULL");
            refused += must;
        }
    }
    assert_int_equal(faults, 0);
    assert_true(refused > 60);
}

static const int64_t whole[] = {INT64_MIN, -1, 0, INT64_C(1) << 31, INT64_C(1) << 40, INT64_MAX};
static const double real[] = {-1, 2, 1e300, -1e300, NAN, INFINITY};

static const char *shown(const value *v, int is_real) {
    static char text[32];
    if (is_real)
        snprintf(text, sizeof text, "%g", v->d);
    else
        snprintf(text, sizeof text, "%lld", (long long)v->i);
    return text;
}

static void numbers(void **state) {
    (void)state;
    faults = 0;
    for (int i = 0; i < CALLS; i++)
        for (int k = 0; k < calls[i].count; k++) {
            const char *type = calls[i].parameter[k].type;
            /* a parameter; in a struct it is a wish */
            int extent = is_extent(calls[i].parameter[k].name) ||
                         strcmp(calls[i].parameter[k].name, "items") == 0;
            if (is_pointer(type)) continue;
            for (int n = 0; n < 6; n++) {
                value v = {.i = extent ? n % 3 - (strcmp(type, "size_t") != 0) : whole[n],
                           .d = real[n]};
                try(&calls[i], (change){.k = k, .value = v},
                    shown(&v, strcmp(type, "double") == 0));
            }
        }
    assert_int_equal(faults, 0);
}

/* The same for every number in a struct that is given. */
static void numbers_in_structs(void **state) {
    (void)state;
    int tried = 0;
    faults = 0;
    for (int i = 0; i < CALLS; i++)
        for (int k = 0; k < calls[i].count; k++)
            for (int f = 0; f < FIELDS; f++) {
                if (strncmp(calls[i].parameter[k].type, "const ", 6) != 0 ||
                    !is(calls[i].parameter[k].type, fields[f].type))
                    continue;
                for (int n = 0; n < 6; n++, tried++) {
                    int extent = is_extent(fields[f].name);
                    value v = {.i = extent ? n % 3 - 1 : whole[n], .d = real[n]};
                    if (tried % (int)training_thin()) continue;
                    try(&calls[i], (change){.k = k, .value = v, .field = &fields[f]},
                        shown(&v, fields[f].real));
                }
            }
    assert_int_equal(faults, 0);
    assert_true(tried > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_arguments),
        cmocka_unit_test(null_pointers),
        cmocka_unit_test(numbers),
        cmocka_unit_test(numbers_in_structs),
    };
    if (training_folder_open() != 0) return 1;
    snprintf(text_path, sizeof text_path, "%s/text", training_folder);
    training_write(text_path, "a text of some letters", 22);
    snprintf(rows_path, sizeof rows_path, "%s/rows.tsv", training_folder);
    training_write(rows_path, "0\ta text\n1\tsome letters\n", 24);
    if (!make_all()) return 1;
    int failed = cmocka_run_group_tests_name("api", tests, NULL, NULL);
    return training_folder_close() || failed;
}
