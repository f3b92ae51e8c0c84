/*
 * Data: generated expressions, labelled lines, texts, and everything that can be wrong with a file.
 */
#include "training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ht_context *cpu;
static char path[128];

static int open_all(void **state) {
    (void)state;
    if (ht_context_create(&cpu, NULL) != HT_OK || training_folder_open() != 0) return 1;
    snprintf(path, sizeof path, "%s/data", training_folder);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    ht_context_destroy(cpu);
    return training_folder_close();
}

static ht_status open_as(ht_data **out, const ht_config *config, const char *from, ht_part part,
                         double holdout) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = config;
    desc.path = from;
    desc.part = part;
    desc.holdout = holdout;
    return ht_data_open(out, cpu, &desc);
}

/* ---- ListOps ---- */

/* The value of an expression, by the book; *at moves behind it. */
static int value(const int32_t *ids, int *at) {
    int id = ids[(*at)++], n = 0, v[64], sum = 0;
    if (id <= 10) return id - 1;
    assert_in_range(id, 11, 14);
    while (ids[*at] != 15) {
        v[n] = value(ids, at);
        sum += v[n++];
        assert_true(n <= 10);
    }
    ++*at;
    assert_true(n >= 2);
    for (int i = 0; i < n; i++)
        for (int k = 0; k + 1 < n; k++)
            if (v[k] > v[k + 1]) {
                int swap = v[k];
                v[k] = v[k + 1], v[k + 1] = swap;
            }
    int middle = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return id == 11 ? v[0] : id == 12 ? v[n - 1] : id == 13 ? middle : sum % 10;
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Values, lengths, no duplicates over all parts; label and token frequencies as measured in the
 * wild. */
static void listops(void **state) {
    (void)state;
    ht_config *config;
    config = training_preset("listops");
    training_set(config, "train_items", 1500);
    training_set(config, "valid_items", 250);
    training_set(config, "batch", 50);
    char **all = calloc(2000, sizeof *all);
    int count = 0;
    double labels[10] = {0}, tokens = 0, digits = 0;
    for (int part = 0; part < 3; part++) {
        ht_data *data;
        ht_batch b = HT_BATCH_INIT;
        OK(cpu, open_as(&data, config, NULL, (ht_part)part, 0));
        while (ht_data_next(data, &b) == HT_OK) {
            for (int64_t i = 0; i < b.sequences; i++) {
                const int32_t *ids = b.tokens + b.cu_seqlens[i];
                int n = b.cu_seqlens[i + 1] - b.cu_seqlens[i], at = 0;
                assert_in_range(n, 501, 1999);
                assert_int_equal(value(ids, &at), b.targets[i]);
                assert_int_equal(at, n);
                char *text = malloc((size_t)n + 1);
                for (int k = 0; k < n; k++) text[k] = (char)('@' + ids[k]), digits += ids[k] <= 10;
                text[n] = '\0';
                all[count++] = text;
                tokens += n;
                labels[b.targets[i]]++;
            }
        }
        ht_data_close(data);
    }
    assert_int_equal(count, 2000);
    qsort(all, 2000, sizeof *all, compare);
    for (int i = 1; i < 2000; i++) assert_true(strcmp(all[i - 1], all[i]) != 0);
    for (int i = 0; i < 2000; i++) free(all[i]);
    free(all);
    /* mean length 1035 (deviation about 400), digits 71.6 %, labels 0 and 9 17 % each: four
     * standard errors */
    assert_true(fabs(tokens / 2000 - 1035) < 4 * 400 / sqrt(2000));
    assert_true(fabs(digits / tokens - 0.716) < 0.005);
    assert_true(fabs(labels[0] / 2000 - 0.168) < 4 * sqrt(0.17 * 0.83 / 2000));
    assert_true(fabs(labels[9] / 2000 - 0.170) < 4 * sqrt(0.17 * 0.83 / 2000));
}

static void expressions(void **state) {
    (void)state;
    ht_config *config =
        training_config("{\"format\":\"listops\",\"vocab\":17,\"classes\":10,\"length\":8}");
    int32_t ids[16];
    int64_t n = 0;
    static const int32_t want[] = {12, 3, 10, 11, 5, 8, 15, 1, 15};
    static const char *const same[] = {"[MAX 2 9 [MIN 4 7 ] 0 ]",
                                       "( ( ( ( [MAX 2 ) 9 ) [MIN 4 7 ] 0 ] ) )",
                                       "[MAX 2 9 [MIN 4 7] 0]"};
    for (int i = 0; i < 3; i++) {
        OK(cpu, ht_data_encode(cpu, config, same[i], strlen(same[i]), ids, 16, &n));
        assert_int_equal(n, 9);
        assert_memory_equal(ids, want, sizeof want);
    }
    REFUSED(cpu, ht_data_encode(cpu, config, "[MAX 2 10 ]", 11, ids, 16, &n), HT_FORMAT, "'10'");
    /* a file of them, as the Long Range Arena writes it; longer ones are cut */
    ht_data *data;
    ht_data_info info = HT_DATA_INFO_INIT;
    const char *file = "Source\tTarget\n( ( [MAX 2 ) 9 ] )\t9\n( [MIN 1 2 3 4 5 6 7 8 ] )\t1\n";
    training_write(path, file, strlen(file));
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0));
    OK(cpu, ht_data_get_info(data, &info));
    assert_int_equal(info.items, 2);
    assert_int_equal(info.longest, 10);
    assert_int_equal(info.cut, 1);
    ht_data_close(data);
    training_write(path, "3\t[MAX 2 huh ]\n", 15);
    REFUSED(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0), HT_FORMAT, "data:1: 'huh'");
    training_set(config, "listops_max", 4);
    training_set(config, "listops_min", 0);
    training_set(config, "train_items", 1000000);
    training_set(config, "listops_depth", 1);
    REFUSED(cpu, open_as(&data, config, NULL, HT_PART_TRAIN, 0), HT_INVALID,
            "only 10 different expressions");
}

/* ---- labelled lines ---- */

static void tsv(void **state) {
    (void)state;
    ht_config *config = training_config("{\"classes\":3,\"length\":6,\"batch\":2}");
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    ht_data_info info = HT_DATA_INFO_INIT;
    const char *file = "0\thello\n2\ta\tb\xFF\r\n1.0\tlonger than six\n2\tlast";
    training_write(path, file, strlen(file));
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0));
    OK(cpu, ht_data_get_info(data, &info));
    assert_int_equal(info.items, 4);
    assert_int_equal(info.cut, 1);
    assert_int_equal(info.longest, 15);
    assert_int_equal(info.classes, 3);
    assert_true(info.majority == 0.5);
    OK(cpu, ht_data_next(data, &b));
    static const int32_t tokens[] = {'h' + 1, 'e' + 1,  'l' + 1, 'l' + 1, 'o' + 1,
                                     'a' + 1, '\t' + 1, 'b' + 1, 256};
    assert_int_equal(b.sequences, 2);
    assert_memory_equal(b.tokens, tokens, sizeof tokens);
    assert_int_equal(b.targets[0], 0);
    assert_int_equal(b.targets[1], 2);
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.cu_seqlens[1], 6);
    assert_int_equal(ht_data_next(data, &b), HT_END);
    OK(cpu, ht_data_next(data, &b)); /* and from the start again */
    assert_memory_equal(b.tokens, tokens, sizeof tokens);
    ht_data_close(data);
}

static void tsv_faults(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } faults[] = {
        {"0\ta\nno tab here\n", "data:2: there is no tab"},
        {"\ta\n", "data:1: the label is empty"},
        {"0\ta\n1\t\n", "data:2: the text is empty"},
        {"", "data is empty"},
        {"\x28\xB5\x2F\xFD junk that is no zstd", "damaged zstd"},
        {"\x1F\x8B junk that is no gzip", "damaged gzip"},
    };
    ht_config *config = training_config("{\"classes\":3,\"length\":6,\"batch\":2}");
    ht_data *data;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        training_write(path, faults[i].text, strlen(faults[i].text));
        REFUSED(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0), HT_FORMAT, faults[i].words);
        assert_null(data);
    }
    REFUSED(cpu, open_as(&data, config, "/nowhere", HT_PART_TRAIN, 0), HT_IO,
            "/nowhere could not be opened");
    training_choose(config, "task", "pairs");
    training_choose(config, "pool", "mean");
    training_write(path, "1\tone text\n", 11);
    REFUSED(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0), HT_FORMAT,
            "there is no second tab");
    training_choose(config, "task", "language");
    REFUSED(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0), HT_INVALID,
            "learns from text, not from labelled rows");
}

/* Ten million bytes in one line are cut to length; ten million bytes of text are windows. */
static void ten_million(void **state) {
    (void)state;
    enum { N = 10000000 };
    char *text = malloc(N + 3);
    memset(text, 'x', N + 3);
    memcpy(text, "1\t", 2);
    text[N + 2] = '\n';
    training_write(path, text, N + 3);
    free(text);
    ht_config *config = training_config("{\"classes\":2,\"length\":100,\"batch\":2}");
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    ht_data_info info = HT_DATA_INFO_INIT;
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0));
    OK(cpu, ht_data_get_info(data, &info));
    assert_int_equal(info.longest, N);
    assert_int_equal(info.cut, 1);
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.cu_seqlens[1], 100);
    ht_data_close(data);
    training_choose(config, "task", "language");
    training_choose(config, "format", "text");
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0));
    OK(cpu, ht_data_get_info(data, &info));
    assert_int_equal(info.items, (N + 3 + 99) / 100);
    ht_data_close(data);
}

/* ---- texts, folders, compression ---- */

/* Windows cover the stream once; targets are the next tokens; every file begins with 0. Files of
 * folders within are there, empty ones are not, and a link in a circle is not followed. */
static void text(void **state) {
    (void)state;
    ht_config *config = training_config(
        "{\"task\":\"language\",\"format\":\"text\",\"length\":4,\"batch\":3,\"across\":1}");
    char in[160], command[512];
    snprintf(in, sizeof in, "%s/texts", training_folder);
    mkdir(in, 0777);
    snprintf(
        command, sizeof command,
        "cd %s && printf 'abcde' > 1.txt && : > 1a.txt && mkdir 2 && ln -s .. 2/again && "
        "printf 'fgh' | gzip > 2/x.txt.gz && printf 'ij' > 3.txt && (zstd -q --rm 3.txt || true)",
        in);
    assert_int_equal(system(command), 0);
    static const int32_t stream[] = {0,       'a' + 1, 'b' + 1, 'c' + 1, 'd' + 1, 'e' + 1, 0,
                                     'f' + 1, 'g' + 1, 'h' + 1, 0,       'i' + 1, 'j' + 1};
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    OK(cpu, open_as(&data, config, in, HT_PART_TRAIN, 0));
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.sequences, 3);
    assert_memory_equal(b.tokens, stream, 12 * sizeof *stream);
    assert_memory_equal(b.targets, stream + 1, 12 * sizeof *stream);
    assert_int_equal(ht_data_next(data, &b), HT_END);
    ht_data_close(data);
    /* what cannot be read is not left out */
    snprintf(command, sizeof command, "ln -s nowhere %s/0.txt", in);
    assert_int_equal(system(command), 0);
    REFUSED(cpu, open_as(&data, config, in, HT_PART_TRAIN, 0), HT_IO, "0.txt could not be opened");
    snprintf(command, sizeof command, "rm %s/0.txt", in);
    assert_int_equal(system(command), 0);
    /* held out is the end */
    ht_data_info info = HT_DATA_INFO_INIT;
    OK(cpu, open_as(&data, config, in, HT_PART_VALID, 0.3));
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.sequences, 1);
    assert_memory_equal(b.tokens, stream + 8, 4 * sizeof *stream);
    OK(cpu, ht_data_get_info(data, &info));
    assert_int_equal(info.tokens, 5);
    ht_data_close(data);
    OK(cpu, open_as(&data, config, in, HT_PART_TRAIN, 0.3));
    OK(cpu, ht_data_get_info(data, &info));
    assert_int_equal(info.tokens, 8);
    ht_data_close(data);
    REFUSED(cpu, open_as(&data, config, in, HT_PART_VALID, 0.99), HT_INVALID,
            "too short to hold out");
    snprintf(in, sizeof in, "%s/nothing", training_folder);
    mkdir(in, 0777);
    REFUSED(cpu, open_as(&data, config, in, HT_PART_TRAIN, 0), HT_IO, "folder without files");
    strcat(in, "/empty");
    training_write(in, "", 0);
    *strrchr(in, '/') = '\0';
    REFUSED(cpu, open_as(&data, config, in, HT_PART_TRAIN, 0), HT_IO, "or all are empty");
}

/* ---- the stream of a training ---- */

static void drawing(void **state) {
    (void)state;
    char file[4096] = "";
    for (int i = 0; i < 25; i++) sprintf(file + strlen(file), "%d\t%c\n", i % 2, 'a' + i);
    training_write(path, file, strlen(file));
    ht_config *config = training_config("{\"length\":4,\"batch\":5}");
    ht_data *data, *again;
    ht_batch b = HT_BATCH_INIT;
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0));
    int32_t order[2][25];
    for (int epoch = 0; epoch < 2; epoch++) {
        int seen[26] = {0};
        for (int i = 0; i < 25; i += 5) {
            OK(cpu, ht_data_draw(data, &b));
            assert_int_equal(b.sequences, 5);
            for (int k = 0; k < 5; k++) {
                order[epoch][i + k] = b.tokens[k];
                assert_int_equal((b.tokens[k] - 1 - 'a') % 2,
                                 b.targets[k]); /* labels stay with texts */
                seen[b.tokens[k] - 1 - 'a']++;
            }
        }
        for (int i = 0; i < 25; i++) assert_int_equal(seen[i], 1); /* each once per epoch */
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    /* another reader at a position sees what comes there */
    OK(cpu, open_as(&again, config, path, HT_PART_TRAIN, 0));
    OK(cpu, ht_data_seek(again, 40));
    OK(cpu, ht_data_draw(again, &b));
    assert_memory_equal(b.tokens, order[1] + 15, 5 * sizeof(int32_t));
    assert_int_equal(ht_data_position(again), 45);
    ht_data_close(again);
    /* parts held out and parts kept are the whole */
    ht_data_info a = HT_DATA_INFO_INIT, c = HT_DATA_INFO_INIT;
    ht_data_close(data);
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0.4));
    OK(cpu, open_as(&again, config, path, HT_PART_VALID, 0.4));
    OK(cpu, ht_data_get_info(data, &a));
    OK(cpu, ht_data_get_info(again, &c));
    assert_int_equal(a.items + c.items, 25);
    assert_in_range(c.items, 4, 16);
    ht_data_close(data);
    ht_data_close(again);
}

/* Task denoise: runs of neighbours are targets, in the asked share, otherwise in every drawing. */
static void hiding(void **state) {
    (void)state;
    enum { ITEMS = 40, LENGTH = 500, RUN = 5 };
    char *file = calloc(ITEMS * (LENGTH + 8), 1), *at = file;
    for (int i = 0; i < ITEMS; i++) {
        at += sprintf(at, "id%d\t", i % 2); /* any words: labels are not looked at */
        for (int k = 0; k < LENGTH; k++) *at++ = (char)('a' + (i + k) % 26);
        *at++ = '\n';
    }
    training_write(path, file, (size_t)(at - file));
    free(file);
    ht_config *config = training_config(
        "{\"task\":\"denoise\",\"length\":500,\"batch\":40,\"hide\":0.25,\"hide_run\":5}");
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    ht_data_info info = HT_DATA_INFO_INIT;
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0));
    OK(cpu, ht_data_get_info(data, &info));
    assert_true(info.classes == 0 && info.majority == 0);
    int32_t *first = malloc(sizeof *first * ITEMS * LENGTH);
    for (int round = 0; round < 2; round++) {
        int hidden = 0, edges = 0;
        OK(cpu, ht_data_draw(data, &b));
        for (int i = 0; i < ITEMS * LENGTH; i++) {
            assert_true(b.targets[i] == -1 || b.targets[i] == b.tokens[i]);
            hidden += b.targets[i] >= 0;
            edges += i > 0 && (b.targets[i] >= 0) != (b.targets[i - 1] >= 0);
        }
        /* 4,000 runs, a quarter of them hidden: five deviations of the binomial are 137 */
        assert_in_range(hidden / RUN, 1000 - 137, 1000 + 137);
        assert_true(edges < 2 * hidden / RUN + 2 * ITEMS);
        if (round)
            assert_memory_not_equal(first, b.targets, sizeof *first * ITEMS * LENGTH);
        else
            memcpy(first, b.targets, sizeof *first * ITEMS * LENGTH);
    }
    /* what is drawn after the last place that there is has a place, too */
    OK(cpu, ht_data_seek(data, INT64_C(1) << 53));
    OK(cpu, ht_data_draw(data, &b));
    REFUSED(cpu, ht_data_seek(data, INT64_MAX), HT_INVALID, "0 to 2^53, got 9223372036854775807");
    REFUSED(cpu, ht_data_seek(data, -1), HT_INVALID, "0 to 2^53, got -1");
    OK(cpu, ht_data_seek(data, 0));
    OK(cpu, ht_data_draw(data, &b));
    assert_memory_equal(first, b.targets, sizeof *first * ITEMS * LENGTH);
    free(first);
    ht_data_close(data);
    training_set(config, "hide", 1);
    REFUSED(NULL, ht_config_check(config), HT_INVALID, "hide must be below 1, got hide 1");
    training_set(config, "hide", 0);
    REFUSED(NULL, ht_config_check(config), HT_INVALID, "only a causal model does not see");
}

/* Plain text is hidden in the same way, a window at a time. */
static void hiding_text(void **state) {
    (void)state;
    enum { LENGTH = 64, TOKENS = 4 * LENGTH };
    char text[TOKENS];
    for (int i = 0; i < TOKENS; i++) text[i] = (char)('a' + i % 26);
    training_write(path, text, sizeof text);
    ht_config *config = training_config(
        "{\"task\":\"denoise\",\"format\":\"text\",\"across\":1,\"merge\":4,\"pool\":\"max\","
        "\"length\":64,\"batch\":4,\"hide\":0.5,\"hide_run\":3}");
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    int32_t first[TOKENS];
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0));
    for (int round = 0; round < 2; round++) {
        int hidden = 0;
        OK(cpu, ht_data_draw(data, &b));
        assert_int_equal(b.cu_seqlens[b.sequences], TOKENS);
        for (int i = 0; i < TOKENS; i++) {
            assert_true(b.targets[i] == -1 || b.targets[i] == b.tokens[i]);
            hidden += b.targets[i] >= 0;
        }
        assert_in_range(hidden, TOKENS / 4, 3 * TOKENS / 4);
        if (round) assert_memory_not_equal(first, b.targets, sizeof first);
        memcpy(first, b.targets, sizeof first);
    }
    ht_data_close(data);
    training_set(config, "across", 0);
    REFUSED(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0), HT_INVALID,
            "with merge 4 a text that is split where documents end");
}

/* With hide 0 each token but a text's first is the target of the one before it. */
static void next_tokens(void **state) {
    (void)state;
    static const int32_t want[] = {'b' + 1, 'c' + 1, -1, -1, 'z' + 1, -1};
    training_write(path, "0\tabc\n1\tx\n0\tyz\n", 15);
    ht_config *config =
        training_config("{\"task\":\"denoise\",\"length\":5,\"batch\":4,\"hide\":0,\"causal\":1}");
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    OK(cpu, open_as(&data, config, path, HT_PART_TRAIN, 0));
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.sequences, 3);
    assert_int_equal(b.cu_seqlens[3], 6);
    assert_memory_equal(b.targets, want, sizeof want);
    ht_data_close(data);
}

/* ---- configurations ---- */

static void configs(void **state) {
    (void)state;
    ht_config *c = training_config("{}"), *before = training_config("{}");
    static const struct {
        const char *json, *words;
    } faults[] = {
        {"{\"colour\":1}", "there is no key 'colour'"},
        {"{\"layers\":0}", "layers must be 1 to 1000, got 0"},
        {"{\"layers\":1.5}", "layers must be a whole number"},
        {"{\"layers\":\"many\"}", "layers must be a number"},
        {"{\"attention\":\"sparse\"}",
         "attention must be one of hierarchical, full, local, got \"sparse\""},
        {"{\"layers\":4", "is not JSON"},
        {"[1]", "must be a JSON object"},
        {"", "is not JSON"},
        {"{\"width\":64,\"dropout\":2}", "dropout must be 0 to 1, got 2"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        ht_status got = ht_config_read_json(c, faults[i].json);
        REFUSED(NULL, got, got == HT_FORMAT ? HT_FORMAT : HT_INVALID, faults[i].words);
        assert_true(training_same(c, before));
    }
    static const struct {
        const char *json, *words;
    } senseless[] = {
        {"{\"heads\":3}", "heads must divide inner, got inner 256, heads 3"},
        {"{\"block\":7}", "block must be even, got block 7"},
        {"{\"task\":\"language\",\"query\":\"mean\"}", "would see the future"},
        {"{\"causal\":1,\"pool\":\"last\",\"query\":\"mean\"}",
         "with query mean would see the future: use first or fine, got query mean, causal 1"},
        {"{\"causal\":1}", "pool must be last, mean or max, got pool cls, causal 1"},
        {"{\"tied\":1}", "tied is for models that predict tokens"},
        {"{\"task\":\"pairs\"}", "pairs have no cls vector"},
        {"{\"dropout\":1}", "dropout must be below 1"},
        {"{\"batch\":1048576,\"length\":1000000}",
         "fewer than 2^31 rows, got batch 1048576, length 1000000"},
    };
    for (size_t i = 0; i < sizeof senseless / sizeof *senseless; i++) {
        ht_config *s = training_config(senseless[i].json);
        ht_model *model;
        REFUSED(NULL, ht_config_check(s), HT_INVALID, senseless[i].words);
        REFUSED(cpu, ht_model_create(&model, cpu, s), HT_INVALID, senseless[i].words);
    }
    /* what is written reads back the same; every preset is one that a model takes */
    for (int i = 0; ht_config_preset_name(i); i++) {
        char json[8192];
        ht_config *a = training_preset(ht_config_preset_name(i)), *b = training_preset(NULL);
        OK(NULL, ht_config_check(a));
        OK(NULL, ht_config_write_json(a, json, sizeof json, NULL));
        OK(NULL, ht_config_read_json(b, json));
        assert_true(training_same(a, b));
    }
    REFUSED(cpu, ht_config_create(&c, cpu, "huge"), HT_INVALID,
            "there is no preset 'huge', but small");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listops),     cmocka_unit_test(expressions), cmocka_unit_test(tsv),
        cmocka_unit_test(tsv_faults),  cmocka_unit_test(ten_million), cmocka_unit_test(text),
        cmocka_unit_test(drawing),     cmocka_unit_test(hiding),      cmocka_unit_test(next_tokens),
        cmocka_unit_test(hiding_text), cmocka_unit_test(configs),
    };
    return cmocka_run_group_tests_name("data", tests, open_all, close_all);
}
