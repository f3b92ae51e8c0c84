/*
 * Files: round trips, other people's readers, damage, full disks, sudden death.
 */
#include "training.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static ht_context *cpu;
static char path[128], other[128];

#define KEYS                                                                                     \
    "\"layers\":1,\"width\":16,\"heads\":2,\"hidden\":24,\"vocab\":17,\"classes\":3,\"length\":" \
    "20,\"block\":4,"                                                                            \
    "\"batch\":4,\"head_hidden\":8,\"warmup\":0,\"relative_bias\":1"
#define TINY "{" KEYS "}"

static int open_all(void **state) {
    (void)state;
    if (ht_context_create(&cpu, NULL) != HT_OK || training_folder_open() != 0) return 1;
    snprintf(path, sizeof path, "%s/model.safetensors", training_folder);
    snprintf(other, sizeof other, "%s/other.safetensors", training_folder);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    ht_context_destroy(cpu);
    return training_folder_close();
}

typedef struct pair {
    ht_config *config;
    ht_model *model;
    ht_trainer *trainer;
} pair;

static pair make(const char *json) {
    pair p = {.config = training_config(json)};
    OK(cpu, ht_model_create(&p.model, cpu, p.config));
    OK(cpu, ht_trainer_create(&p.trainer, p.model, NULL));
    return p;
}

static void drop(pair *p) {
    ht_trainer_destroy(p->trainer);
    ht_model_destroy(p->model);
}

static void step(pair *p, uint32_t seed, ht_report *r) {
    static random_batch batch;
    training_batch(&batch, p->config, seed);
    OK(cpu, ht_trainer_step(p->trainer, &batch.batch, 1, r));
}

static void same(const ht_model *a, const ht_model *b) {
    static double x[65536], y[65536];
    assert_int_equal(ht_model_tensors(a), ht_model_tensors(b));
    for (int64_t i = 0; i < ht_model_tensors(a); i++) {
        ht_tensor_info info = HT_TENSOR_INFO_INIT, its = HT_TENSOR_INFO_INIT;
        OK(cpu, ht_model_tensor(a, i, &info));
        OK(cpu, ht_model_tensor(b, i, &its));
        assert_string_equal(info.name, its.name);
        assert_int_equal(info.count, its.count);
        OK(cpu, ht_model_read(a, i, x));
        OK(cpu, ht_model_read(b, i, y));
        assert_memory_equal(x, y, sizeof *x * (size_t)info.count);
    }
}

/* ---- round trips ---- */

static void model_round_trip(void **state) {
    pair p = make(*state);
    ht_model *loaded;
    const ht_config *config, *its;
    step(&p, 1, NULL);
    OK(cpu, ht_model_save(p.model, path));
    OK(cpu, ht_model_load(&loaded, cpu, path));
    same(p.model, loaded);
    config = ht_model_config(p.model);
    its = ht_model_config(loaded);
    assert_true(training_same(config, its));
    ht_model_destroy(loaded);
    drop(&p);
}

/* Two more steps after a restore are the two steps that would have come. */
static void trainer_round_trip(void **state) {
    pair a = make(*state), b = make(*state);
    ht_report x = HT_REPORT_INIT, y = HT_REPORT_INIT;
    step(&a, 1, NULL);
    step(&a, 2, NULL);
    OK(cpu, ht_trainer_save(a.trainer, NULL, path));
    OK(cpu, ht_trainer_restore(b.trainer, NULL, path));
    assert_int_equal(ht_trainer_steps(b.trainer), 2);
    for (uint32_t i = 3; i < 5; i++) {
        step(&a, i, &x);
        step(&b, i, &y);
        assert_memory_equal(&x, &y, sizeof x);
    }
    same(a.model, b.model);
    drop(&a);
    drop(&b);
}

static void other_model(void **state) {
    (void)state;
    pair a = make(TINY),
         b = make("{\"layers\":2,\"width\":16,\"heads\":2,\"vocab\":17,\"length\":20,\"batch\":4}");
    OK(cpu, ht_trainer_save(a.trainer, NULL, path));
    REFUSED(cpu, ht_trainer_restore(b.trainer, NULL, path), HT_INVALID, "keeps it");
    drop(&b);
    b = make("{" KEYS ",\"sinusoidal_theta\":9}"); /* the same tensors */
    REFUSED(cpu, ht_trainer_restore(b.trainer, NULL, path), HT_INVALID,
            "has sinusoidal_theta 10000 and keeps it");
    OK(cpu, ht_model_save(a.model, path));
    REFUSED(cpu, ht_trainer_restore(a.trainer, NULL, path), HT_FORMAT, "no training to go on with");
    drop(&a);
    drop(&b);
}

/* Until dropout sets in the steps are those without it, then those of a run that goes on with it.
 */
static void late_dropout(void **state) {
    pair late = make("{" KEYS ",\"dropout\":0.3,\"attention_dropout\":0.2,\"dropout_after\":2}");
    pair none = make(TINY), then = make("{" KEYS ",\"dropout\":0.3,\"attention_dropout\":0.2}");
    ht_report x = HT_REPORT_INIT, y = HT_REPORT_INIT;
    (void)state;
    for (uint32_t i = 1; i < 3; i++) {
        step(&late, i, &x), step(&none, i, &y);
        assert_memory_equal(&x, &y, sizeof x);
    }
    OK(cpu, ht_trainer_save(none.trainer, NULL, path));
    OK(cpu, ht_trainer_restore(then.trainer, NULL, path));
    step(&late, 3, &x), step(&then, 3, &y);
    assert_memory_equal(&x, &y, sizeof x);
    step(&none, 3, &y);
    assert_true(x.loss != y.loss);
    same(late.model, then.model);
    drop(&late), drop(&none), drop(&then);
}

/* Muon leaves second moments at zero, by which AdamW would divide. */
static void other_optimizer(void **state) {
    (void)state;
    pair a = make(TINY), b = make("{" KEYS ",\"optimizer\":\"muon\"}");
    step(&a, 1, NULL), step(&b, 1, NULL);
    OK(cpu, ht_trainer_save(b.trainer, NULL, path));
    OK(cpu, ht_trainer_save(a.trainer, NULL, other));
    ht_model *before;
    OK(cpu, ht_model_load(&before, cpu, other));
    REFUSED(cpu, ht_trainer_restore(a.trainer, NULL, path), HT_INVALID,
            "has optimizer muon and keeps it");
    same(before, a.model); /* nothing was lost */
    REFUSED(cpu, ht_trainer_restore(b.trainer, NULL, other), HT_INVALID,
            "has optimizer adamw and keeps it");
    ht_model_destroy(before);
    drop(&a);
    drop(&b);
}

/* A classifier starts from a model that was trained to denoise: all but its own head. */
static void other_task(void **state) {
    (void)state;
    pair a = make("{\"layers\":1,\"width\":16,\"heads\":2,\"vocab\":17,\"length\":20,\"batch\":4,"
                  "\"task\":\"denoise\"}"),
         b = make("{\"layers\":1,\"width\":16,\"heads\":2,\"vocab\":17,\"length\":20,\"batch\":4}"),
         c = make("{\"layers\":1,\"width\":24,\"heads\":2,\"vocab\":17,\"length\":20,\"batch\":4}");
    int64_t taken = 0;
    OK(cpu, ht_model_save(a.model, path));
    OK(cpu, ht_model_take(b.model, path, &taken));
    assert_int_equal(taken, ht_model_tensors(b.model) - 2); /* output.weight, output.bias */
    for (int64_t i = 0; i < ht_model_tensors(a.model); i++) {
        ht_tensor_info of_a = HT_TENSOR_INFO_INIT, of_b = HT_TENSOR_INFO_INIT;
        OK(cpu, ht_model_tensor(a.model, i, &of_a));
        double x[17 * 64], y[17 * 64];
        for (int64_t k = 0; k < ht_model_tensors(b.model); k++) {
            OK(cpu, ht_model_tensor(b.model, k, &of_b));
            if (strcmp(of_a.name, of_b.name) != 0 || strcmp(of_a.name, "output.weight") == 0)
                continue;
            OK(cpu, ht_model_read(a.model, i, x));
            OK(cpu, ht_model_read(b.model, k, y));
            assert_memory_equal(x, y, sizeof *x * (size_t)of_a.count);
        }
    }
    REFUSED(cpu, ht_model_take(c.model, path, &taken), HT_FORMAT, "no tensor of the model's names");
    REFUSED(cpu, ht_model_take(c.model, "/nowhere", &taken), HT_IO, "/nowhere");
    drop(&a);
    drop(&b);
    drop(&c);
}

/* ---- the Python package reads ours and we read its ---- */

static void python(void **state) {
    static const char script[] =
        "import sys\n"
        "from safetensors import safe_open\n"
        "from safetensors.numpy import save_file\n"
        "with safe_open(sys.argv[1], 'np') as f:\n"
        "    meta = f.metadata()\n"
        "    tensors = {k: f.get_tensor(k) for k in f.keys()}\n"
        "assert tensors['embed.tokens.weight'].shape == (17, 16), tensors.keys()\n"
        "save_file(tensors, sys.argv[2], metadata=meta)\n";
    (void)state;
    if (system("python3 -c 'import safetensors.numpy' 2>/dev/null") != 0) {
        print_message("python3 has no safetensors package here\n");
        skip();
    }
    pair p = make(TINY);
    ht_model *loaded;
    char file[128], command[512];
    step(&p, 1, NULL);
    OK(cpu, ht_trainer_save(p.trainer, NULL, path));
    snprintf(file, sizeof file, "%s/convert.py", training_folder);
    FILE *f = fopen(file, "w");
    fputs(script, f);
    fclose(f);
    snprintf(command, sizeof command, "python3 %s %s %s", file, path, other);
    assert_int_equal(system(command), 0);
    OK(cpu, ht_model_load(&loaded, cpu, other));
    same(p.model, loaded);
    ht_model_destroy(loaded);
    OK(cpu, ht_trainer_restore(p.trainer, NULL, other)); /* moments and all */
    drop(&p);
}

/* ---- damage ---- */

static size_t read_all(char *out, size_t room, const char *from) {
    FILE *f = fopen(from, "rb");
    assert_non_null(f);
    size_t n = fread(out, 1, room, f);
    fclose(f);
    return n;
}

static void write_all(const char *to, const void *bytes, size_t n) {
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void refuse(const char *words) {
    ht_model *model = (ht_model *)&path;
    REFUSED(cpu, ht_model_load(&model, cpu, other), HT_FORMAT, words);
    assert_null(model);
}

static void damaged(void **state) {
    static char bytes[1 << 20], copy[1 << 20];
    (void)state;
    pair p = make(TINY);
    OK(cpu, ht_model_save(p.model, path));
    size_t n = read_all(bytes, sizeof bytes, path);
    assert_true(n > 1000 && n < sizeof bytes);
    ht_model *model;
    /* cut at any length */
    for (size_t cut = 0; cut < n; cut += cut < 3000 ? 7 : 997) {
        write_all(other, bytes, cut);
        if (ht_model_load(&model, cpu, other) == HT_OK)
            fail_msg("a file cut to %zu of %zu bytes was taken", cut, n);
        assert_true(strlen(ht_context_error(cpu)) > 10);
    }
    /* a byte too much, nonsense, a length that cannot be */
    memcpy(copy, bytes, n);
    write_all(other, copy, n + 1);
    refuse("do not fill it");
    write_all(other, "hello, this is no model", 23);
    refuse("not a safetensors file");
    write_all(other, "", 0);
    refuse("not a safetensors file");
    memset(copy, 0xFF, 8);
    write_all(other, copy, n);
    refuse("not a safetensors file");
    REFUSED(cpu, ht_model_load(&model, cpu, "/nowhere/at/all"), HT_IO, "No such file");
    REFUSED(cpu, ht_model_load(&model, cpu, training_folder), HT_IO, "is not a regular file");
    drop(&p);
}

/* Where `text` is in the header of a file. */
static size_t find(const char *bytes, size_t n, const char *text) {
    size_t at = 0, length = strlen(text);
    while (at + length <= n && memcmp(bytes + at, text, length) != 0) at++;
    assert_true(at + length <= n);
    return at;
}

/* A bit flipped anywhere: refused, or the same model and configuration. Without checksums, as files
 * of earlier versions: refused, or read with other numbers, but never worse. */
static void flipped_bits(void **state) {
    static char bytes[1 << 20], copy[1 << 20];
    int refused = 0;
    (void)state;
    pair p = make(TINY);
    ht_model *model;
    const ht_config *config, *its;
    OK(cpu, ht_model_save(p.model, path));
    config = ht_model_config(p.model);
    size_t n = read_all(bytes, sizeof bytes, path);
    for (size_t at = 0; at < n; at += at < 6000 ? 2 : 211) {
        memcpy(copy, bytes, n);
        copy[at] = (char)(copy[at] ^ (1 << at / 2 % 8));
        write_all(other, copy, n);
        if (ht_model_load(&model, cpu, other) != HT_OK) {
            refused++;
            continue;
        }
        same(p.model, model);
        its = ht_model_config(model);
        assert_true(training_same(config, its));
        ht_model_destroy(model);
    }
    assert_true(refused > 2000);
    size_t sums = find(bytes, n, "\"crc32\"");
    bytes[sums + 1] = 'C';
    write_all(other, bytes, n);
    OK(cpu, ht_model_load(&model, cpu, other));
    same(p.model, model);
    ht_model_destroy(model);
    for (size_t at = 8; at < 6000; at += 5) {
        memcpy(copy, bytes, n);
        copy[at] = (char)(copy[at] ^ (1 << at % 7));
        write_all(other, copy, n);
        if (ht_model_load(&model, cpu, other) == HT_OK) ht_model_destroy(model);
    }
    drop(&p);
}

/* A damaged checkpoint is refused before anything of it is taken. */
static void damage_changes_nothing(void **state) {
    static char bytes[1 << 20];
    (void)state;
    pair a = make(TINY), b = make(TINY);
    ht_model *before;
    int64_t taken;
    step(&a, 1, NULL), step(&b, 2, NULL);
    OK(cpu, ht_trainer_save(a.trainer, NULL, path));
    OK(cpu, ht_model_save(b.model, other));
    OK(cpu, ht_model_load(&before, cpu, other));
    size_t n = read_all(bytes, sizeof bytes, path);
    bytes[n - 1] ^= 1; /* of the last moment */
    write_all(path, bytes, n);
    REFUSED(cpu, ht_trainer_restore(b.trainer, NULL, path), HT_FORMAT,
            "is damaged: the checksum of 'optimizer.v.");
    REFUSED(cpu, ht_model_take(b.model, path, &taken), HT_FORMAT, "is damaged: the checksum of");
    same(before, b.model);
    assert_int_equal(ht_trainer_steps(b.trainer), 1);
    ht_model_destroy(before);
    drop(&a), drop(&b);
}

/* Weights of a run that diverged have no use, and say where it is to be seen. */
static void not_finite(void **state) {
    static const double wrong[] = {NAN, INFINITY, -INFINITY, 1e300};
    (void)state;
    pair p = make("{" KEYS ",\"dtype\":\"f64\"}");
    ht_tensor_info info = HT_TENSOR_INFO_INIT;
    double *x;
    char words[128];
    int64_t taken, last = ht_model_tensors(p.model) - 1;
    OK(cpu, ht_model_tensor(p.model, last, &info));
    x = calloc((size_t)info.count, sizeof *x);
    pair narrow = make(TINY);
    for (int i = 0; i < 4; i++) {
        x[info.count - 1] = wrong[i];
        OK(cpu, ht_model_write(p.model, last, x));
        OK(cpu, ht_trainer_save(p.trainer, NULL, other));
        snprintf(words, sizeof words, "tensor '%s' is not finite: its number %lld is %g", info.name,
                 (long long)info.count - 1, wrong[i]);
        if (i < 3) refuse(words);
        REFUSED(cpu, ht_model_take(narrow.model, other, &taken), HT_FORMAT, words);
        if (i < 3) REFUSED(cpu, ht_trainer_restore(p.trainer, NULL, other), HT_FORMAT, words);
    }
    OK(cpu, ht_trainer_restore(p.trainer, NULL, other)); /* a large double is one */
    free(x);
    drop(&p), drop(&narrow);
}

static char *find_bytes(char *in, size_t n, const char *what, size_t count) {
    for (char *at = in; at + count <= in + n; at++)
        if (memcmp(at, what, count) == 0) return at;
    return NULL;
}

/* Reads what the classes of a file are called, "a b c". */
static const char *labels_in(const char *file) {
    static char words[256];
    ht_model *model;
    OK(cpu, ht_model_load(&model, cpu, file));
    const ht_labels *labels = ht_model_labels(model);
    words[0] = '\0';
    for (int64_t i = 0; i < ht_labels_count(labels); i++)
        strcat(strcat(words, i ? " " : ""), ht_labels_name(labels, i));
    ht_model_destroy(model);
    return words;
}

/* Labels are kept in a model's files; a file without them has numbers; damaged ones are refused. */
static void labels(void **state) {
    (void)state;
    static char bytes[1 << 20];
    static const struct {
        const char *in, *words; /* not longer than the labels that are there */
    } faults[] = {
        {"[\\\"spam\\\",\\\"spam\\\",\\\"egg\\\"]", "its labels are not 3 different"},
        {"[\\\"hami\\\",12345678,\\\"egg\\\"]", "its labels are not 3 different"},
        {"[\\\"hami\\\",\\\"spam\\\"]", "it has 2 labels for 3 classes"},
        {"[\\\"hami\\\",\\\"spa\\\",1,2,3,4]", "its labels are not 3 different"},
        {"{\\\"hami\\\":\\\"spam\\\",\\\"e\\\":1}", "its labels are not 3 different"},
        {"hami spam egg", "is not JSON"},
        {"12", "it has 0 labels for 3 classes"},
    };
    pair p = make(TINY);
    ht_config *config = training_config("{\"length\":8}");
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    OK(cpu, ht_model_save(p.model, path));
    assert_string_equal(labels_in(path), "0 1 2");
    const char *file = "hami\tx\nspam\ty\negg\tz\n";
    training_write(other, file, strlen(file));
    desc.config = config;
    desc.path = other;
    OK(cpu, ht_data_open(&data, cpu, &desc));
    OK(cpu, ht_model_set_labels(p.model, ht_data_labels(data)));
    OK(cpu, ht_model_save(p.model, path));
    assert_string_equal(labels_in(path), "egg hami spam");
    OK(cpu, ht_model_export(p.model, path, HT_BF16));
    assert_string_equal(labels_in(path), "egg hami spam");
    OK(cpu, ht_trainer_save(p.trainer, NULL, path));
    assert_string_equal(labels_in(path), "egg hami spam");
    OK(cpu, ht_model_save(p.model, path));
    size_t n = read_all(bytes, sizeof bytes, path);
    char *at = find_bytes(bytes, n, "[\\\"egg", 6);
    assert_non_null(at);
    size_t room = (size_t)(strchr(at, ']') - at) + 1;
    at[3] = 'o'; /* the checksum sees it */
    write_all(other, bytes, n);
    refuse("the checksum of 'labels' is wrong");
    char *sums = find_bytes(bytes, n, "\"crc32\"", 7);
    assert_non_null(sums);
    memcpy(sums, "\"other\"", 7); /* as if another program had written it */
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        memset(at, ' ', room);
        memcpy(at, faults[i].in, strlen(faults[i].in));
        write_all(other, bytes, n);
        refuse(faults[i].words);
    }
    /* a run goes on with its own labels only */
    OK(cpu, ht_trainer_save(p.trainer, NULL, path));
    file = "ham\tx\nspam\ty\negg\tz\n";
    training_write(other, file, strlen(file));
    ht_data_close(data);
    OK(cpu, ht_data_open(&data, cpu, &desc));
    OK(cpu, ht_model_set_labels(p.model, ht_data_labels(data)));
    REFUSED(cpu, ht_trainer_restore(p.trainer, NULL, path), HT_INVALID, "has other labels");
    ht_data_close(data);
    file = "ham\tx\nspam\ty\nham\tz\nspam\tz\n";
    training_write(other, file, strlen(file));
    OK(cpu, ht_data_open(&data, cpu, &desc));
    REFUSED(cpu, ht_model_set_labels(p.model, ht_data_labels(data)), HT_INVALID,
            "3 classes, but there are 2 labels");
    ht_data_close(data);
    drop(&p);
}

/* A header as text, and some bytes of data behind it. */
static void write_header(const char *json, size_t data) {
    static char bytes[65536];
    uint64_t length = strlen(json);
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (char)(length >> 8 * i);
    memcpy(bytes + 8, json, length);
    write_all(other, bytes, 8 + length + data);
}

static void foreign(void **state) {
    (void)state;
    /* a header of 100 MiB and a byte, in a file that is large enough for it, is not read */
    write_all(other, "\1\0\100\6\0\0\0\0{", 9);
    assert_int_equal(truncate(other, 110 << 20), 0);
    refuse("is not a safetensors file");
    write_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    refuse("holds no model of ours");
    /* those of others, whatever else they hold */
    write_header(
        "{\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"h.0.attn.c_attn.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
        8);
    refuse("holds a GPT-2-like model. Such weights were trained with full attention");
    write_header("{\"model.layers.0.self_attn.q_proj.weight\":{\"dtype\":\"F32\",\"shape\":[2],"
                 "\"data_offsets\":[0,8]}}",
                 8);
    refuse("holds a Llama-like model");
    write_all(other, "GGUF\3\0\0\0and so on", 17);
    refuse("holds a GGUF model");
    write_header("{\"x\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8);
    refuse("dtype");
    write_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8);
    refuse("does not fit its bytes");
    write_header(
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[1000000000000],\"data_offsets\":[0,4000000000000]}}",
        8);
    refuse("outside the file");
    write_header(
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8);
    refuse("x");
    write_header("{\"__metadata__\":{\"htransformer\":\"{\\\"layers\\\":1000,\\\"width\\\":65536,"
                 "\\\"heads\\\":256}\"}}",
                 0);
    refuse("has no tensor"); /* a model of terabytes is not made before it is known to be there */
    write_header("{\"__metadata__\":{\"htransformer\":\"{\\\"colour\\\":3}\"}}", 0);
    refuse("colour");
    write_header("{\"__metadata__\":{\"htransformer\":\"not json\"}}", 0);
    refuse("not JSON");
    write_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                 "\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                 8);
    refuse("do not fill it");
    write_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                 "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                 8);
    refuse("'x' is there twice");
    static const char *const sums[] = {"x", "x=", "x=123", "x=0000000g", "x=123456789", "="};
    for (int i = 0; i < 6; i++) {
        char json[128];
        snprintf(json, sizeof json, "{\"__metadata__\":{\"crc32\":\"a=00000000 %s\"}}", sums[i]);
        write_header(json, 0);
        refuse("checksums make no sense");
    }
}

/* ---- what writing must not lose ---- */

static void full_disk(void **state) {
    (void)state;
    pair p = make(TINY);
    ht_model *loaded;
    OK(cpu, ht_trainer_save(p.trainer, NULL, path));
    /* a limit on the size of files stands for the end of the disk */
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 5000;
    setrlimit(RLIMIT_FSIZE, &small);
    step(&p, 1, NULL);
    ht_status status = ht_trainer_save(p.trainer, NULL, path);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, HT_IO);
    assert_non_null(strstr(ht_context_error(cpu), path));
    assert_non_null(strstr(ht_context_error(cpu), strerror(EFBIG)));
    assert_int_equal(training_temporaries(), 0); /* nothing is left lying around */
    OK(cpu, ht_model_load(&loaded, cpu, path));  /* the older one is whole */
    ht_model_destroy(loaded);
    REFUSED(cpu, ht_trainer_save(p.trainer, NULL, "/nowhere/x.safetensors"), HT_IO, "No such file");
    drop(&p);
}

/* A child saves over and over and is killed at a random moment: what is under the name is always
 * whole. */
static void sudden_death(void **state) {
    (void)state;
    pair p = make(TINY);
    OK(cpu, ht_trainer_save(p.trainer, NULL, path));
    for (int turn = 0; turn < 25; turn++) {
        pid_t child = fork();
        if (child == 0) {
            for (;;)
                if (ht_trainer_save(p.trainer, NULL, path) != HT_OK) _exit(1);
        }
        struct timespec wait = {0, 1000000L + 700000L * turn};
        nanosleep(&wait, NULL);
        kill(child, SIGKILL);
        int how;
        waitpid(child, &how, 0);
        assert_true(WIFSIGNALED(how));
        ht_model *loaded;
        OK(cpu, ht_model_load(&loaded, cpu, path));
        same(p.model, loaded);
        ht_model_destroy(loaded);
    }
    drop(&p);
}

int main(void) {
    static char plain[] = TINY,
                wide[] =
                    "{\"dtype\":\"f64\",\"layers\":1,\"width\":16,\"heads\":2,\"vocab\":17,"
                    "\"length\":20,\"batch\":4,\"task\":\"language\",\"tied\":1,\"dropout\":0.1}";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(model_round_trip, plain),
        cmocka_unit_test_prestate(model_round_trip, wide),
        cmocka_unit_test_prestate(trainer_round_trip, plain),
        cmocka_unit_test_prestate(trainer_round_trip, wide),
        cmocka_unit_test(late_dropout),
        cmocka_unit_test(other_model),
        cmocka_unit_test(other_optimizer),
        cmocka_unit_test(other_task),
        cmocka_unit_test(python),
        cmocka_unit_test(damaged),
        cmocka_unit_test(flipped_bits),
        cmocka_unit_test(damage_changes_nothing),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(labels),
        cmocka_unit_test(foreign),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(sudden_death),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, open_all, close_all);
}
