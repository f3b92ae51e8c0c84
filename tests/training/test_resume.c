/*
 * Settings of a run that goes on: every key of the configuration is applied or refused, none is
 * passed over; what was left open stays what it was decided to be.
 */
#include "training.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static ht_context *cpu;
static char folder[96], path[128];

static int open_all(void **state) {
    (void)state;
    if (ht_context_create(&cpu, NULL) != HT_OK || training_folder_open() != 0) return 1;
    snprintf(folder, sizeof folder, "%s/.", training_folder);
    snprintf(path, sizeof path, "%s/step-000000001.safetensors", training_folder);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    ht_context_destroy(cpu);
    return training_folder_close();
}

typedef struct pair {
    ht_model *model;
    ht_trainer *trainer;
} pair;

static pair make(const ht_config *config) {
    pair p;
    OK(cpu, ht_model_create(&p.model, cpu, config));
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    desc.config = config;
    OK(cpu, ht_trainer_create(&p.trainer, p.model, &desc));
    return p;
}

static void drop(const pair *p) {
    ht_trainer_destroy(p->trainer);
    ht_model_destroy(p->model);
}

#define SIZES                                                                                   \
    "\"layers\":1,\"width\":16,\"heads\":2,\"hidden\":24,\"vocab\":17,\"length\":20,\"block\":" \
    "4,\"batch\":4,\"steps\":9,\"warmup\":3,"

/* Every key can have another value in one of these. */
static const char *const bases[] = {
    "{" SIZES
    "\"pool\":\"mean\",\"query\":\"first\",\"classes\":3,\"rotary\":\"all\",\"relative_bias\":1}",
    "{" SIZES "\"task\":\"language\",\"format\":\"text\"}",
    "{" SIZES "\"format\":\"images\"}",
};
enum { BASES = sizeof bases / sizeof *bases };

/* A step, then a checkpoint, for others to go on from. */
static void begin(const ht_config *config) {
    static random_batch batch;
    pair p = make(config);
    training_batch(&batch, config, 1);
    OK(cpu, ht_trainer_step(p.trainer, &batch.batch, 1, NULL));
    OK(cpu, ht_trainer_save(p.trainer, NULL, path));
    drop(&p);
}

static double number(const ht_config *config, const ht_key_info *key) {
    return key->kind == HT_KEY_REAL ? training_real(config, key->name)
                                    : (double)training_int(config, key->name);
}

static ht_status try_number(ht_config *config, const ht_key_info *key, double x) {
    if (x < key->least || x > key->most) return HT_INVALID;
    training_set(config, key->name, x);
    return ht_config_check(config);
}

/* Nobody's to go on with on a CPU; the first is not decided here. */
static int of_no_use(const char *choice) {
    return strcmp(choice, "auto") == 0 || strcmp(choice, "bf16") == 0;
}

/* Another value that a model would take: the base with it, NULL if there is none. */
static ht_config *change(const ht_config *begun, const char *base, const ht_key_info *key) {
    double was = number(begun, key);
    double tries[] = {was + 1, 2 * was, was + 2, was / 2, was + 0.25, was - 1, 0, 1};
    for (int i = 0; key->choices && key->choices[i]; i++) {
        ht_config *config = training_config(base);
        if (i == (int)was || of_no_use(key->choices[i])) continue;
        training_choose(config, key->name, key->choices[i]);
        if (ht_config_check(config) == HT_OK) return config;
    }
    for (size_t i = 0; !key->choices && i < sizeof tries / sizeof *tries; i++) {
        ht_config *config = training_config(base);
        if (key->kind == HT_KEY_INT && tries[i] != floor(tries[i])) continue;
        if (tries[i] != was && try_number(config, key, tries[i]) == HT_OK) return config;
    }
    return NULL;
}

static void words(char out[64], const ht_config *config, const char *key) {
    OK(cpu, ht_config_get_text(config, key, out, 64, NULL));
}

/* Going on with the changed settings: both doors agree with what the table says of the key. */
static void goes_on(const ht_config *begun, const ht_config *changed, const ht_key_info *key) {
    char then[64], now[64], says[256];
    ht_config *copy;
    pair p = make(changed);
    OK(cpu, ht_config_copy(&copy, changed));
    words(then, begun, key->name);
    words(now, ht_trainer_config(p.trainer), key->name);
    if (strcmp(then, now) == 0) fail_msg("%s: it was not changed", key->name);
    snprintf(says, sizeof says, " has %s %s and keeps it: it cannot go on with %s", key->name, then,
             now);
    if (key->keeps) {
        REFUSED(cpu, ht_config_resume(copy, cpu, folder), HT_INVALID, says);
        REFUSED(cpu, ht_trainer_restore(p.trainer, NULL, path), HT_INVALID, says);
        assert_int_equal(ht_trainer_steps(p.trainer), 0);
    } else {
        OK(cpu, ht_config_resume(copy, cpu, folder));
        OK(cpu, ht_trainer_restore(p.trainer, NULL, path));
        assert_int_equal(ht_trainer_steps(p.trainer), 1);
        assert_true(number(copy, key) == number(changed, key));
        assert_true(number(ht_trainer_config(p.trainer), key) == number(changed, key));
    }
    ht_config_destroy(copy);
    drop(&p);
}

static void every_key(void **state) {
    (void)state;
    static int seen[256];
    assert_in_range(ht_config_keys(), 1, 256);
    for (int b = 0; b < BASES; b++) {
        ht_config *copy;
        pair p = make(training_config(bases[b]));
        OK(cpu, ht_config_copy(&copy, ht_trainer_config(p.trainer)));
        drop(&p);
        begin(copy);
        for (int i = 0; i < ht_config_keys(); i++) {
            ht_key_info key = HT_KEY_INFO_INIT;
            OK(cpu, ht_config_key(i, &key));
            ht_config *changed = seen[i] ? NULL : change(copy, bases[b], &key);
            if (!changed) continue;
            /* where the task decides for itself, another base tells */
            ht_model *model;
            OK(cpu, ht_model_create(&model, cpu, changed));
            seen[i] = number(ht_model_config(model), &key) != number(copy, &key);
            ht_model_destroy(model);
            if (seen[i]) goes_on(copy, changed, &key);
        }
        ht_config_destroy(copy);
    }
    for (int i = 0; i < ht_config_keys(); i++) {
        ht_key_info key = HT_KEY_INFO_INIT;
        OK(cpu, ht_config_key(i, &key));
        if (!seen[i]) fail_msg("%s: no other value was tried", key.name);
    }
}

/* ---- what is applied takes part ---- */

#define STEP "{" SIZES "\"warmup\":0,\"classes\":3,\"clip\":0.1,\"weight_decay\":0.5,\"rate\":0.01,"

static const struct {
    const char *base, *key, *value;
} parts[] = {
    {STEP "\"seed\":1}", "steps", "4"},
    {STEP "\"seed\":1}", "rate", "0.02"},
    {STEP "\"seed\":1}", "schedule", "constant"},
    {STEP "\"seed\":1}", "warmup", "5"},
    {STEP "\"seed\":1}", "weight_decay", "0.1"},
    {STEP "\"seed\":1}", "decay", "all"},
    {STEP "\"seed\":1}", "beta1", "0.5"},
    {STEP "\"seed\":1}", "beta2", "0.5"},
    {STEP "\"seed\":1}", "adam_epsilon", "0.1"},
    {STEP "\"seed\":1}", "clip", "0.01"},
    {STEP "\"seed\":1}", "dropout", "0.3"},
    {STEP "\"seed\":1}", "attention_dropout", "0.3"},
    {STEP "\"dropout\":0.3}", "dropout_after", "4"},
    {STEP "\"optimizer\":\"muon\"}", "momentum", "0.5"},
    {STEP "\"seed\":1}", "dtype", "f64"},
};

/* The first numbers of the first layer after a step of the run that goes on. */
static void after(double out[512], const ht_config *config) {
    static random_batch batch;
    static double all[65536];
    pair p = make(config);
    training_batch(&batch, config, 2);
    OK(cpu, ht_trainer_restore(p.trainer, NULL, path));
    OK(cpu, ht_trainer_step(p.trainer, &batch.batch, 1, NULL));
    memset(out, 0, 512 * sizeof *out);
    for (int64_t i = 0, at = 0; i < ht_model_tensors(p.model); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT;
        OK(cpu, ht_model_tensor(p.model, i, &info));
        OK(cpu, ht_model_read(p.model, i, all));
        for (int64_t k = 0; k < info.count; k++, at++) out[at % 512] += all[k] * (1 + (double)i);
    }
    drop(&p);
}

static void takes_part(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        double same[512], again[512], other[512];
        ht_config *config = training_config(parts[i].base);
        begin(config);
        after(same, config);
        after(again, config);
        assert_memory_equal(same, again, sizeof same);
        OK(cpu, ht_config_set_text(config, parts[i].key, parts[i].value));
        after(other, config);
        if (memcmp(same, other, sizeof same) == 0)
            fail_msg("%s %s changes nothing", parts[i].key, parts[i].value);
    }
}

/* ---- what was left open ---- */

/* "auto" has meant other things in other versions: what the checkpoint says counts. */
static void stays_decided(void **state) {
    (void)state;
    begin(
        training_config("{" SIZES "\"task\":\"language\",\"query\":\"first\",\"dtype\":\"f64\"}"));
    ht_config *config = training_config("{" SIZES "\"task\":\"language\"}");
    training_choose(config, "dtype", "auto");
    OK(cpu, ht_config_resume(config, cpu, folder));
    assert_true(training_is(config, "query", "first"));
    assert_true(training_is(config, "dtype", "f64"));
    pair p = make(config);
    OK(cpu, ht_trainer_restore(p.trainer, NULL, path));
    drop(&p);
    /* a folder without checkpoints: decided here and now */
    remove(path);
    config = training_config("{" SIZES "\"task\":\"language\"}");
    training_choose(config, "dtype", "auto");
    OK(cpu, ht_config_resume(config, cpu, folder));
    assert_true(training_is(config, "query", "fine"));
    assert_true(training_is(config, "dtype", "f32"));
    REFUSED(cpu, ht_config_resume(config, cpu, "/nowhere/at/all"), HT_IO, "/nowhere/at/all");
    REFUSED(cpu, ht_config_resume(config, cpu, NULL), HT_INVALID, "folder is NULL");
}

/* A new configuration leaves the precision open; a file without the key is from when it was f32. */
static void precision(void **state) {
    (void)state;
    ht_config *fresh;
    OK(cpu, ht_config_create(&fresh, cpu, "small"));
    assert_true(training_is(fresh, "dtype", "auto"));
    pair p = make(fresh);
    assert_true(training_is(ht_model_config(p.model), "dtype", "f32"));
    assert_true(training_is(ht_trainer_config(p.trainer), "dtype", "f32"));
    drop(&p);
    ht_config_destroy(fresh);
}

/* A trainer does not pass over what its model is. */
static void of_the_model(void **state) {
    (void)state;
    ht_model *model;
    ht_trainer *trainer;
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    OK(cpu, ht_model_create(&model, cpu, training_config(bases[0])));
    ht_config *other = training_config(bases[0]);
    desc.config = other;
    training_choose(other, "pool", "max");
    REFUSED(cpu, ht_trainer_create(&trainer, model, &desc), HT_INVALID,
            "the model has pool mean and keeps it: it cannot go on with max");
    assert_null(trainer);
    training_choose(other, "pool", "mean");
    training_choose(other, "decay", "all");
    REFUSED(cpu, ht_trainer_create(&trainer, model, &desc), HT_INVALID, "the model has decay");
    ht_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key),     cmocka_unit_test(takes_part),
        cmocka_unit_test(stays_decided), cmocka_unit_test(precision),
        cmocka_unit_test(of_the_model),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
