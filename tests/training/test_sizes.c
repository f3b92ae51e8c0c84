/*
 * Structs of older and newer programs: every public function that takes or fills a struct is called
 * with sizes that are not this library's. The memory behind each struct cannot be touched, so a
 * read or a write beyond its size ends the test.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/sized.h"

/* ---- what the calls work on ---- */

static struct {
    ht_context *ctx;
    ht_attention *plan;
    ht_cache *cache;
    ht_data *data;
    ht_model *model;
    ht_trainer *trainer;
    ht_generator *generator;
    ht_world *world;
    void *saved;
    float rows[3][32];
    random_batch random;
    ht_linear *linear;
    const ht_config *config, *classifier;
} on;

static const char *text(void) { return training_path("text"); }

static const char *rows_text(void) { return training_path("rows"); }

static void fit_linear(void) {
    ht_data *data;
    ht_data_desc from = HT_DATA_DESC_INIT;
    on.classifier = training_config("{\"format\":\"tsv\",\"length\":8,\"batch\":1}");
    from.config = on.classifier, from.path = rows_text(), from.keep_texts = 1;
    OK(on.ctx, ht_data_open(&data, on.ctx, &from));
    OK(on.ctx, ht_linear_fit(&on.linear, on.ctx, data));
    ht_data_close(data);
}

static int open_all(void **state) {
    ht_context_desc where = HT_CONTEXT_DESC_INIT;
    ht_attention_desc d = HT_ATTENTION_DESC_INIT;
    ht_attention_need need = HT_ATTENTION_NEED_INIT;
    ht_data_desc from = HT_DATA_DESC_INIT;
    (void)state;
    if (training_folder_open() != 0) return 1;
    training_write(rows_text(), "0\tno\n1\tyes\n", 11);
    training_write(text(), "one two three four five six", 27);
    where.device = "cpu:ref";
    if (ht_context_create(&on.ctx, &where) != HT_OK) return 1;
    on.config =
        training_config("{\"task\":\"language\",\"format\":\"text\",\"width\":4,\"heads\":1,"
                        "\"layers\":1,\"length\":8,\"batch\":1,\"steps\":0}");
    training_batch(&on.random, on.config, 3);
    d.q_heads = 1, d.head_dim = 4, d.max_rows = 8, d.causal = 1;
    OK(on.ctx, ht_attention_create(&on.plan, on.ctx, &d));
    OK(on.ctx, ht_attention_get_need(on.plan, &need));
    on.saved = malloc(need.saved + 1);
    OK(on.ctx, ht_cache_create(&on.cache, on.plan, 1));
    from.config = on.config, from.path = text();
    OK(on.ctx, ht_data_open(&on.data, on.ctx, &from));
    OK(on.ctx, ht_model_create(&on.model, on.ctx, on.config));
    OK(on.ctx, ht_trainer_create(&on.trainer, on.model, NULL));
    OK(on.ctx, ht_generator_create(&on.generator, on.model, NULL));
    OK(on.ctx, ht_world_open(&on.world, on.ctx));
    fit_linear();
    return 0;
}

static int close_all(void **state) {
    (void)state;
    ht_world_close(on.world, NULL);
    ht_linear_destroy(on.linear);
    ht_generator_destroy(on.generator);
    ht_trainer_destroy(on.trainer);
    ht_model_destroy(on.model);
    ht_data_close(on.data);
    ht_cache_destroy(on.cache);
    ht_attention_destroy(on.plan);
    ht_context_destroy(on.ctx);
    free(on.saved);
    return training_folder_close();
}

/* ---- a good struct of each kind ---- */

typedef union any {
    size_t size;
    ht_context_desc context;
    ht_attention_desc attention;
    ht_attention_args args;
    ht_attention_grads grads;
    ht_batch batch;
    ht_data_desc data;
    ht_set_desc set;
    ht_generator_desc generator;
    ht_sampling sampling;
    ht_trainer_desc trainer;
    ht_train_desc train;
    ht_rows_desc rows;
} any;

static void set_context(any *x) { x->context.device = "cpu:ref"; }
static void set_attention(any *x) {
    x->attention.q_heads = 2, x->attention.head_dim = 4, x->attention.max_rows = 8;
}
static void set_args(any *x) {
    x->args.batch = 1, x->args.length = 3;
    x->args.q.data = x->args.k.data = x->args.v.data = on.rows[0];
    x->args.out.data = on.rows[1];
}
static void set_grads(any *x) {
    x->grads.dout.data = on.rows[0];
    x->grads.dq.data = x->grads.dk.data = x->grads.dv.data = on.rows[2];
}
static void set_batch(any *x) { x->batch = on.random.batch; }
static void set_data(any *x) { x->data.config = on.config, x->data.path = text(); }
static void set_parts(any *x) { set_data(x), x->data.holdout = 0.5; }
static void set_set(any *x) { x->set.task = "poems"; }
static void set_sampling(any *x) { x->sampling = (ht_sampling)HT_SAMPLING_INIT; }
static void set_trainer(any *x) { x->trainer.config = on.config; }
static void set_train(any *x) { x->train.folder = training_folder, x->train.train = on.data; }
static void set_rows(any *x) { x->rows.path = rows_text(); }
static void set_nothing(any *x) { (void)x; }

/* ---- the calls ---- */

static ht_status call_context(void *x) {
    ht_context *made;
    ht_status status = ht_context_create(&made, x);
    if (status == HT_OK) assert_string_equal(ht_context_device(made), "cpu:ref");
    ht_context_destroy(made);
    return status;
}
static ht_status call_device(void *x) { return ht_device_get(0, x); }
static ht_status call_plan(void *x) {
    ht_attention *made;
    ht_status status = ht_attention_create(&made, on.ctx, x);
    ht_attention_destroy(made);
    return status;
}
/* it has no status: AUTO says that the struct was refused */
static ht_status call_query(void *x) {
    ht_query query = ht_attention_query(x);
    if (query != HT_QUERY_AUTO) return HT_OK;
    return strstr(ht_context_error(NULL), "is set, but") ? HT_UNSUPPORTED : HT_INVALID;
}
static ht_status call_need(void *x) { return ht_attention_get_need(on.plan, x); }
static ht_status call_desc(void *x) { return ht_attention_get_desc(on.plan, x); }
static ht_status call_forward(void *x) { return ht_attention_forward(on.plan, x); }
static ht_status call_backward(void *x) {
    any args = {.args = HT_ATTENTION_ARGS_INIT};
    set_args(&args);
    args.args.saved = on.saved;
    OK(on.ctx, ht_attention_forward(on.plan, &args.args));
    return ht_attention_backward(on.plan, &args.args, x);
}
/* What forward kept is in a field that the oldest programs do not know: that was read, too. */
static ht_status call_back_again(void *x) {
    any grads = {.grads = HT_ATTENTION_GRADS_INIT};
    set_grads(&grads);
    ht_status status = ht_attention_backward(on.plan, x, &grads.grads);
    return status == HT_INVALID && strstr(ht_context_error(on.ctx), "saved") ? HT_OK : status;
}
static ht_status call_extend(void *x) { return ht_cache_extend(on.cache, NULL, x); }
static ht_status call_open(void *x) {
    ht_data *made;
    ht_status status = ht_data_open(&made, on.ctx, x);
    ht_data_close(made);
    return status;
}
static ht_status call_info(void *x) { return ht_data_get_info(on.data, x); }
static ht_status call_next(void *x) {
    ht_status status = ht_data_next(on.data, x);
    return status == HT_END ? ht_data_next(on.data, x) : status;
}
static ht_status call_draw(void *x) { return ht_data_draw(on.data, x); }
static ht_status call_write(void *x) {
    ht_set_info info = HT_SET_INFO_INIT;
    ht_status status = ht_set_write(on.ctx, x, &info);
    if (!strstr(ht_context_error(on.ctx), "'poems' cannot be made")) return status;
    return HT_OK; /* all of the struct was read */
}
static ht_status call_written(void *x) {
    ht_set_desc set = HT_SET_DESC_INIT;
    set.task = "listops", set.items[0] = set.items[1] = set.items[2] = 1;
    return ht_set_write(on.ctx, &set, x);
}
static ht_status call_tensor(void *x) { return ht_model_tensor(on.model, 0, x); }
static ht_status call_generator(void *x) {
    ht_generator *made;
    ht_status status = ht_generator_create(&made, on.model, x);
    ht_generator_destroy(made);
    return status;
}
static ht_status call_feed(void *x) {
    OK(on.ctx, ht_generator_reset(on.generator, 0));
    return ht_generator_feed(on.generator, NULL, x, NULL, 0);
}
static ht_status call_state(void *x) { return ht_generator_get_state(on.generator, 0, x); }
static ht_status call_sample(void *x) {
    float logits[3] = {1, 2, 0};
    int32_t token;
    return ht_sample(on.ctx, x, logits, 3, NULL, 0, 0.5, &token);
}
static ht_status call_continue(void *x) {
    int32_t token;
    OK(on.ctx, ht_generator_reset(on.generator, 0));
    OK(on.ctx, ht_generator_feed(on.generator, NULL, &on.random.batch, NULL, 0));
    return ht_generator_sample(on.generator, 0, x, &token, NULL);
}
static ht_status call_trainer(void *x) {
    ht_trainer *made;
    ht_status status = ht_trainer_create(&made, on.model, x);
    ht_trainer_destroy(made);
    return status;
}
static ht_status call_step(void *x) {
    int64_t before = ht_trainer_steps(on.trainer);
    ht_status status = ht_trainer_step(on.trainer, x, 1, NULL);
    assert_int_equal(ht_trainer_steps(on.trainer), before + (status == HT_OK));
    return status;
}
static ht_status call_gradient(void *x) { return ht_trainer_gradient(on.trainer, x, NULL); }
static ht_status call_evaluate(void *x) { return ht_trainer_evaluate(on.trainer, x, NULL); }
static ht_status call_losses(void *x) {
    float out[8];
    return ht_trainer_predict(on.trainer, x, out);
}
static ht_status call_logits(void *x) {
    static double out[8 * 257];
    return ht_trainer_logits(on.trainer, x, out);
}
static ht_status call_qkv(void *x) {
    float out[3][32];
    return ht_trainer_read_qkv(on.trainer, x, 0, out[0], out[1], out[2]);
}
static ht_status call_stepped(void *x) {
    int64_t before = ht_trainer_steps(on.trainer);
    ht_status status = ht_trainer_step(on.trainer, &on.random.batch, 1, x);
    assert_int_equal(ht_trainer_steps(on.trainer), before + (status == HT_OK));
    return status;
}
static ht_status call_derived(void *x) {
    OK(on.ctx, ht_trainer_clear_gradient(on.trainer));
    return ht_trainer_gradient(on.trainer, &on.random.batch, x);
}
static ht_status call_evaluated(void *x) {
    return ht_trainer_evaluate(on.trainer, &on.random.batch, x);
}
static ht_status call_key(void *x) { return ht_config_key(0, x); }
static ht_status call_place(void *x) { return ht_place_find(x); }
static ht_status call_rank(void *x) { return ht_world_get_place(on.world, x); }
static ht_status call_resume(void *x) {
    return ht_trainer_resume(on.trainer, NULL, training_folder, x);
}
static ht_status call_train(void *x) { return ht_train(on.trainer, x); }
static ht_status call_explain(void *x) { return ht_trainer_explain(on.trainer, 0, x); }

static ht_status call_explain_args(void *x) {
    ht_kernels_info info = HT_KERNELS_INFO_INIT;
    return ht_attention_explain(on.plan, x, NULL, 0, &info);
}
static ht_status call_explain_grads(void *x) {
    ht_kernels_info info = HT_KERNELS_INFO_INIT;
    any args = {.args = HT_ATTENTION_ARGS_INIT};
    set_args(&args);
    return ht_attention_explain(on.plan, &args.args, x, 1, &info);
}
static ht_status call_pairs(void *x) {
    int8_t pairs[3 * 3];
    return ht_attention_pairs(on.plan, x, 0, 0, pairs);
}
static ht_status call_explained(void *x) { return ht_attention_explain(on.plan, NULL, NULL, 0, x); }
/* Programs that do not know the field for the share hold nothing out, and are told so. */
static ht_status call_parts(void *x) {
    ht_data *made[2];
    ht_status status = ht_data_open_parts(&made[0], &made[1], on.ctx, x);
    ht_data_close(made[0]);
    ht_data_close(made[1]);
    return status == HT_INVALID && strstr(ht_context_error(on.ctx), "holdout 0") ? HT_OK : status;
}
static ht_status call_linear(void *x) { return ht_linear_get_info(on.linear, x); }
static ht_status call_guess(void *x) {
    float out[8];
    return ht_trainer_guess(on.trainer, x, out, NULL);
}
static ht_status call_embed(void *x) {
    float out[32];
    return ht_trainer_embed(on.trainer, x, out);
}
/* A struct that another one points to. */
static ht_status call_rows_of_data(void *x) {
    ht_data *made;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = on.classifier, desc.path = rows_text(), desc.rows = x;
    ht_status status = ht_data_open(&made, on.ctx, &desc);
    ht_data_close(made);
    return status;
}

static ht_status call_rows(void *x) { return ht_rows_read(on.ctx, x, NULL); }
static ht_status call_counted(void *x) {
    any rows = {.rows = HT_ROWS_DESC_INIT};
    set_rows(&rows);
    return ht_rows_read(on.ctx, &rows.rows, x);
}
static ht_status call_what_was_read(void *x) { return ht_data_get_rows(on.data, x); }

/* least: the smallest size that is taken, for ever. */
typedef struct row {
    const char *function, *name;
    size_t full, least;
    void (*set)(any *x); /* NULL: the library fills it */
    ht_status (*call)(void *x);
    int changes; /* filled with something else in every call */
} row;

#define IN(function, type, least, set, call) \
    { #function, #type, sizeof(type), least, set, call, 0 }
#define OUT(function, type, least, call) \
    { #function, #type, sizeof(type), least, NULL, call, 0 }

static const row rows[] = {
    IN(ht_context_create, ht_context_desc, 16, set_context, call_context),
    OUT(ht_device_get, ht_device_info, 28, call_device),
    IN(ht_attention_create, ht_attention_desc, 80, set_attention, call_plan),
    IN(ht_attention_query, ht_attention_desc, 80, set_attention, call_query),
    OUT(ht_attention_get_desc, ht_attention_desc, 80, call_desc),
    OUT(ht_attention_get_need, ht_attention_need, 16, call_need),
    IN(ht_attention_forward, ht_attention_args, 160, set_args, call_forward),
    IN(ht_cache_extend, ht_attention_args, 160, set_args, call_extend),
    IN(ht_attention_backward, ht_attention_grads, 168, set_grads, call_backward),
    IN(ht_data_open, ht_data_desc, 24, set_data, call_open),
    OUT(ht_data_get_info, ht_data_info, 16, call_info),
    OUT(ht_data_next, ht_batch, 40, call_next),
    {"ht_data_draw", "ht_batch", sizeof(ht_batch), 40, NULL, call_draw, 1},
    IN(ht_set_write, ht_set_desc, 32, set_set, call_write),
    OUT(ht_set_write, ht_set_info, 32, call_written),
    OUT(ht_model_tensor, ht_tensor_info, 40, call_tensor),
    IN(ht_generator_create, ht_generator_desc, 16, set_nothing, call_generator),
    IN(ht_generator_feed, ht_batch, 40, set_batch, call_feed),
    OUT(ht_generator_get_state, ht_state_info, 16, call_state),
    IN(ht_sample, ht_sampling, 48, set_sampling, call_sample),
    IN(ht_generator_sample, ht_sampling, 48, set_sampling, call_continue),
    IN(ht_trainer_create, ht_trainer_desc, 16, set_trainer, call_trainer),
    IN(ht_trainer_step, ht_batch, 40, set_batch, call_step),
    IN(ht_trainer_gradient, ht_batch, 40, set_batch, call_gradient),
    IN(ht_trainer_evaluate, ht_batch, 40, set_batch, call_evaluate),
    IN(ht_trainer_predict, ht_batch, 40, set_batch, call_losses),
    IN(ht_trainer_logits, ht_batch, 40, set_batch, call_logits),
    IN(ht_trainer_read_qkv, ht_batch, 40, set_batch, call_qkv),
    {"ht_trainer_step", "ht_report", sizeof(ht_report), 16, NULL, call_stepped, 1},
    OUT(ht_trainer_gradient, ht_report, 16, call_derived),
    OUT(ht_trainer_evaluate, ht_report, 16, call_evaluated),
    OUT(ht_config_key, ht_key_info, 24, call_key),
    OUT(ht_place_find, ht_place, 16, call_place),
    OUT(ht_world_get_place, ht_place, 16, call_rank),
    OUT(ht_trainer_resume, ht_resume_info, 16, call_resume),
    OUT(ht_trainer_explain, ht_kernels_info, 16, call_explain),
    IN(ht_train, ht_train_desc, 24, set_train, call_train),
    IN(ht_attention_backward, ht_attention_args, 160, set_args, call_back_again),
    IN(ht_attention_explain, ht_attention_args, 160, set_args, call_explain_args),
    IN(ht_attention_explain, ht_attention_grads, 168, set_grads, call_explain_grads),
    OUT(ht_attention_explain, ht_kernels_info, 16, call_explained),
    IN(ht_attention_pairs, ht_attention_args, 160, set_args, call_pairs),
    IN(ht_data_open_parts, ht_data_desc, 24, set_parts, call_parts),
    IN(ht_data_open, ht_rows_desc, 16, set_rows, call_rows_of_data),
    OUT(ht_linear_get_info, ht_linear_info, 32, call_linear),
    IN(ht_trainer_guess, ht_batch, 40, set_batch, call_guess),
    IN(ht_trainer_embed, ht_batch, 40, set_batch, call_embed),
    IN(ht_rows_read, ht_rows_desc, 16, set_rows, call_rows),
    OUT(ht_rows_read, ht_rows_info, 16, call_counted),
    OUT(ht_data_get_rows, ht_rows_info, 16, call_what_was_read),
};
enum { ROWS = sizeof rows / sizeof *rows, EXTRA = 64, PAD = 0xA5 };

/* ---- memory that ends where the struct ends ---- */

static char *page;
static size_t page_bytes;

static void *place(size_t bytes) {
    size_t round = (bytes + 7) / 8 * 8;
    memset(page, PAD, page_bytes);
    return page + page_bytes - round;
}

/* Bytes between the struct and the end of the page are as they were. */
static void check_pad(const row *r, const char *x, size_t bytes) {
    for (const char *at = x + bytes; at < page + page_bytes; at++)
        if ((unsigned char)*at != PAD) fail_msg("%s of %zu bytes: written beyond", r->name, bytes);
}

static ht_status call(const row *r, void *x, size_t bytes) {
    ht_status status = r->call(x);
    check_pad(r, x, bytes);
    return status;
}

static void expect(const row *r, size_t bytes, ht_status got, ht_status want, const char *words) {
    const char *said = ht_context_error(on.ctx);
    if (!strstr(said, words)) said = ht_context_error(NULL); /* of what has no context */
    if (got == want && (want == HT_OK || !*words || strstr(said, words))) return;
    fail_msg("%s of %zu bytes gave %s (%s), should be %s with \"%s\"", r->name, bytes,
             ht_status_name(got), said, ht_status_name(want), words);
}

/* ---- older programs ---- */

static void *put(const row *r, size_t bytes) {
    any whole;
    void *x = place(bytes);
    memset(&whole, 0, sizeof whole);
    memset(x, r->set ? 0 : 0x5A, bytes); /* what is filled may hold anything before */
    if (r->set) r->set(&whole), memcpy(x, &whole, bytes < r->full ? bytes : r->full);
    if (bytes >= sizeof bytes) memcpy(x, &bytes, sizeof bytes);
    return x;
}

static void too_small(void **state) {
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        char words[96];
        size_t sizes[] = {0, 1, 8, r->least - 1};
        for (size_t k = 0; k < 4; k++) {
            void *x = put(r, r->least), *copy = malloc(r->least);
            memcpy(x, &sizes[k], sizeof sizes[k]);
            memcpy(copy, x, r->least);
            snprintf(words, sizeof words, "%s.size must be %zu to 4096, got %zu", r->name, r->least,
                     sizes[k]);
            expect(r, sizes[k], call(r, x, r->least), HT_INVALID, words);
            assert_memory_equal(x, copy, r->least);
            free(copy);
        }
    }
}

static void older(void **state) {
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        char first[1024];
        void *x = put(r, r->full);
        expect(r, r->full, call(r, x, r->full), HT_OK, "");
        memcpy(first, x, r->full);
        for (size_t bytes = r->least; bytes < r->full; bytes += 4) {
            x = put(r, bytes);
            expect(r, bytes, call(r, x, bytes), HT_OK, "");
            if (r->set) continue;
            assert_int_equal(*(size_t *)x, bytes);
            if (!r->changes) assert_memory_equal((char *)x + 8, first + 8, bytes - 8);
        }
    }
}

/* ---- newer programs ---- */

static void newer(void **state) {
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        char words[128], known[1024];
        size_t bytes = r->full + EXTRA, at[] = {r->full, bytes - 1};
        void *x = put(r, r->full);
        expect(r, r->full, call(r, x, r->full), HT_OK, "");
        memcpy(known, x, r->full);
        x = put(r, bytes);
        expect(r, bytes, call(r, x, bytes), HT_OK, "");
        assert_int_equal(*(size_t *)x, bytes);
        if (!r->set && !r->changes) assert_memory_equal((char *)x + 8, known + 8, r->full - 8);
        for (size_t k = r->full; k < bytes && !r->set; k++) assert_int_equal(((char *)x)[k], 0);
        for (int k = 0; k < 2 && r->set; k++) {
            x = put(r, bytes);
            ((char *)x)[at[k]] = 1;
            snprintf(words, sizeof words, "%s: a field at byte %zu of %zu is set, but", r->name,
                     at[k], bytes);
            expect(r, bytes, call(r, x, bytes), HT_UNSUPPORTED, words);
        }
        x = put(r, r->full);
        size_t never = 4097;
        memcpy(x, &never, sizeof never);
        expect(r, never, call(r, x, r->full), HT_INVALID, "got 4097");
    }
}

/* ---- the rest ---- */

/* what a shorter struct lacks is zero, whatever was there */
static void missing_fields(void **state) {
    ht_attention_desc given = HT_ATTENTION_DESC_INIT, taken;
    any x = {.attention = HT_ATTENTION_DESC_INIT};
    (void)state;
    set_attention(&x);
    given = x.attention;
    given.scale = 3, given.dropout = 0.5;
    given.size = offsetof(ht_attention_desc, dropout); /* so dropout is not there */
    memset(&taken, 0xFF, sizeof taken);
    OK(on.ctx, HTI_TAKE(on.ctx, ht_attention_desc, &taken, &given));
    x.attention.scale = 3;
    assert_memory_equal(&taken, &x.attention, sizeof taken);
    REFUSED(on.ctx, HTI_TAKE(on.ctx, ht_attention_desc, &taken, NULL), HT_INVALID,
            "a ht_attention_desc is needed, got NULL");
}

/* Batches of a step lie as far apart as the program's struct is large. */
static void arrays(void **state) {
    struct {
        ht_batch batch;
        uint64_t later[3];
    } wide[2] = {{on.random.batch, {0}}, {on.random.batch, {0}}};
    ht_batch narrow[] = {on.random.batch, on.random.batch};
    ht_report got[2] = {HT_REPORT_INIT, HT_REPORT_INIT};
    char words[64];
    (void)state;
    wide[0].batch.size = wide[1].batch.size = sizeof wide[0];
    OK(on.ctx, ht_trainer_step(on.trainer, narrow, 2, &got[0]));
    OK(on.ctx, ht_trainer_step(on.trainer, &wide[0].batch, 2, &got[1]));
    assert_int_equal(got[1].targets, got[0].targets);
    assert_int_equal(got[1].tokens, 2 * on.random.cu_seqlens[1]);
    int64_t steps = ht_trainer_steps(on.trainer);
    wide[1].later[2] = 1;
    snprintf(words, sizeof words, "ht_batch: a field at byte %zu of %zu is set",
             sizeof(ht_batch) + 2 * sizeof(uint64_t), sizeof wide[0]);
    REFUSED(on.ctx, ht_trainer_step(on.trainer, &wide[0].batch, 2, NULL), HT_UNSUPPORTED, words);
    assert_int_equal(ht_trainer_steps(on.trainer), steps);
}

/* Every function that takes or fills a struct with a size is in the table, once for each. */
static void all_functions(void **state) {
    static const struct {
        const char *function, *name;
    } taken[] = {
#include <taken.h>
    };
    enum { TAKEN = sizeof taken / sizeof *taken };
    (void)state;
    for (int i = 0; i < TAKEN; i++) {
        int found = 0;
        for (int k = 0; k < ROWS; k++)
            found |= strcmp(rows[k].function, taken[i].function) == 0 &&
                     strcmp(rows[k].name, taken[i].name) == 0;
        if (!found) fail_msg("%s: no row for its %s", taken[i].function, taken[i].name);
    }
    assert_true(TAKEN > 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_small),     cmocka_unit_test(older),
        cmocka_unit_test(newer),         cmocka_unit_test(arrays),
        cmocka_unit_test(all_functions), cmocka_unit_test(missing_fields),
    };
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    page = mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || mprotect(page + page_bytes, page_bytes, PROT_NONE) != 0) return 1;
    return cmocka_run_group_tests(tests, open_all, close_all);
}
