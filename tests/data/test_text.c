/*
 * Texts: what a document is in each kind of corpus, windows that end where documents end, parts
 * made of documents, texts larger than the memory given, tokens of sub-words.
 */
#include "training.h"

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

static void write_file(const char *bytes, size_t count) { training_write(path, bytes, count); }

#define TEXT "\"task\":\"language\",\"format\":\"text\","

static ht_data *open_data(const ht_config *config, ht_part part, double holdout, size_t memory) {
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    desc.config = config;
    desc.path = path;
    desc.part = part;
    desc.holdout = holdout;
    desc.memory = memory;
    OK(cpu, ht_data_open(&data, cpu, &desc));
    return data;
}

/* All sequences of all batches as text: token 0 is '|', sequences end in '/'; what a batch is to
 * predict must be what comes next. */
static char *all_sequences(ht_data *data) {
    char *out = calloc(1, 1 << 22), *to = out;
    int32_t next = -1;
    ht_batch b = HT_BATCH_INIT;
    while (ht_data_next(data, &b) == HT_OK) {
        for (int64_t i = 0; i < b.sequences; i++) {
            for (int32_t k = b.cu_seqlens[i]; k < b.cu_seqlens[i + 1]; k++) {
                if (next >= 0) assert_int_equal(b.tokens[k], next);
                next = b.targets[k];
                *to++ = b.tokens[k] == 0 ? '|' : (char)(b.tokens[k] - 1);
            }
            *to++ = '/';
        }
    }
    *to++ = next == 0 ? '|' : (char)(next - 1);
    return out;
}

/* ---- what a document is ---- */

static void documents(void **state) {
    static const struct {
        const char *kind, *file, *want;
        int count;
    } cases[] = {
        {"file", "ab\ncd", "|ab\nc/d", 1},
        {"lines", "ab\n\ncd\r\ne\n", "|ab/|cd/|e/|", 3},
        {"lines", "\n\n\nab\ncd", "|ab/|cd/|", 2}, /* empty lines; no final line end */
        {"lines", "a\rb\n", "|a\rb/|", 1},
        {"articles", "<doc id=\"1\">\nA\n\nb\n</doc>\n\n<doc id=\"2\">\nC\n</doc>\n",
         "|A\n\nb\n/|C\n/|", 2},
        {"articles", "x\n<doc >\n</doc>\n<doc >\ny\n", "|x\n/|y\n/|", 2}, /* an empty one */
        {"wikitext", " \n = T = \n \n x = y \n = = p = = \n z\n = U = \n q\n",
         "| \n/| = T = \n \n x = y \n = = p = = \n z\n/| = U = \n q\n/|", 3},
        {"fasta", ">one\nACgt\nnn\n>two\r\nT T\n\n", "|ACGTNN/|TT/|", 2},
        {"fasta", "ACGT\nAC", "|ACGTAC/|", 1},           /* plain bases */
        {"lines", "65,60 64\n-\n", "|65,60 64/|-/|", 2}, /* music */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[256];
        ht_data_info info = HT_DATA_INFO_INIT;
        snprintf(json, sizeof json, "{" TEXT "\"length\":%d,\"batch\":2,\"documents\":\"%s\"}",
                 strcmp(cases[i].kind, "file") ? 1000 : 5, cases[i].kind);
        ht_config *config = training_config(json);
        write_file(cases[i].file, strlen(cases[i].file));
        ht_data *data = open_data(config, HT_PART_TRAIN, 0, 0);
        char *got = all_sequences(data), want[256];
        snprintf(want, sizeof want, "%s", cases[i].want);
        /* the last token is asked for, not given: "d" of a file, the end elsewhere */
        if (strcmp(got, want) != 0) {
            print_error("%s of '%s': got '%s', should be '%s'\n", cases[i].kind, cases[i].file, got,
                        want);
            fail();
        }
        OK(cpu, ht_data_get_info(data, &info));
        assert_int_equal(info.documents, cases[i].count);
        free(got);
        ht_data_close(data);
    }
}

/* A NUL byte is a byte; one giant line is one document, also where it is read in parts. */
static void odd_bytes(void **state) {
    enum { N = 1000000 };
    static const char nul[] = "a\0b\nc";
    (void)state;
    ht_config *config =
        training_config("{" TEXT "\"length\":8,\"batch\":2,\"documents\":\"lines\"}");
    ht_batch b = HT_BATCH_INIT;
    write_file(nul, sizeof nul - 1);
    ht_data *data = open_data(config, HT_PART_TRAIN, 0, 0);
    static const int32_t want[] = {0, 'a' + 1, 1, 'b' + 1, 0, 'c' + 1};
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.sequences, 2);
    assert_memory_equal(b.tokens, want, sizeof want);
    ht_data_close(data);
    char *giant = malloc(N);
    for (int i = 0; i < N; i++) giant[i] = (char)('a' + i % 23);
    static const char *const kinds[] = {"lines", "articles", "wikitext", "fasta", "file"};
    write_file(giant, N);
    for (int i = 0; i < 5; i++) {
        char json[256];
        ht_data_info info = HT_DATA_INFO_INIT;
        snprintf(json, sizeof json, "{" TEXT "\"length\":1000,\"batch\":2,\"documents\":\"%s\"}",
                 kinds[i]);
        config = training_config(json);
        data = open_data(config, HT_PART_TRAIN, 0, 0);
        OK(cpu, ht_data_get_info(data, &info));
        assert_int_equal(info.documents, 1);
        assert_int_equal(info.longest, N);
        char *got = all_sequences(data);
        for (int k = 0; k < 990; k++)
            assert_int_equal(got[k + 1], i == 3 ? giant[k] - 'a' + 'A' : giant[k]);
        free(got);
        ht_data_close(data);
    }
    free(giant);
}

/* ---- parts ---- */

/* Documents of both parts together are all of them, each in one part alone. */
static void parts_by_document(void **state) {
    enum { LINES = 400 };
    char *text = calloc(1, LINES * 16);
    int seen[LINES] = {0}, held = 0;
    (void)state;
    for (int i = 0; i < LINES; i++) sprintf(text + strlen(text), "line%d\n", i);
    write_file(text, strlen(text));
    free(text);
    ht_config *config =
        training_config("{" TEXT "\"length\":64,\"batch\":3,\"documents\":\"lines\"}");
    for (int part = 0; part < 2; part++) {
        ht_data *data = open_data(config, (ht_part)part, 0.1, 0);
        ht_data_info info = HT_DATA_INFO_INIT;
        char *got = all_sequences(data), whole[1 << 14], *to = whole;
        for (char *from = got; *from; from++) /* windows cut lines: join them */
            if (*from != '/') *to++ = *from;
        *to = '\0';
        int count = 0;
        for (char *line = strtok(whole, "|"); line; line = strtok(NULL, "|"), count++)
            seen[atoi(line + 4)]++;
        OK(cpu, ht_data_get_info(data, &info));
        assert_int_equal(info.documents, count);
        if (part == 1) held = count;
        free(got);
        ht_data_close(data);
    }
    for (int i = 0; i < LINES; i++) assert_int_equal(seen[i], 1);
    assert_in_range(held, 20, 60); /* a tenth of 400, four deviations around */
}

/* ---- windows ---- */

static void windows_end_with_documents(void **state) {
    (void)state;
    write_file("abc\nd\nefghij\n", 13);
    ht_config *config =
        training_config("{" TEXT "\"length\":5,\"batch\":9,\"documents\":\"lines\"}");
    ht_data *data = open_data(config, HT_PART_TRAIN, 0, 0);
    char *got = all_sequences(data);
    assert_string_equal(got, "|abc/|/d/|efg/hij/|");
    free(got);
    ht_data_close(data);
    training_set(config, "across", 1);
    data = open_data(config, HT_PART_TRAIN, 0, 0);
    got = all_sequences(data);
    assert_string_equal(got, "|abc|/d|efg/hij/|");
    free(got);
    ht_data_close(data);
    training_set(config, "across", 0);
    training_set(config, "pad", 1);
    ht_data_desc desc = HT_DATA_DESC_INIT;
    desc.config = config;
    desc.path = path;
    REFUSED(cpu, ht_data_open(&data, cpu, &desc), HT_INVALID, "join documents with across 1");
}

/* A trainer takes such batches, and its losses are those of the documents alone. */
static void trained_on(void **state) {
    (void)state;
    write_file("abc\nd\nefghij\nk\nl\nm\nn\no\np\n", 25);
    ht_config *config = training_config(
        "{" TEXT "\"length\":8,\"batch\":2,\"documents\":\"lines\",\"layers\":1,\"width\":16,"
        "\"heads\":2,\"block\":2}");
    ht_data *data = open_data(config, HT_PART_TRAIN, 0, 0);
    ht_model *model;
    ht_trainer *trainer;
    ht_batch b = HT_BATCH_INIT;
    ht_report r = HT_REPORT_INIT;
    OK(cpu, ht_model_create(&model, cpu, config));
    OK(cpu, ht_trainer_create(&trainer, model, NULL));
    for (int i = 0; i < 3; i++) {
        OK(cpu, ht_data_draw(data, &b));
        assert_true(b.sequences > 2);
        OK(cpu, ht_trainer_step(trainer, &b, 1, &r));
        assert_true(r.applied);
    }
    ht_trainer_destroy(trainer);
    ht_model_destroy(model);
    ht_data_close(data);
}

/* ---- more than memory ---- */

static void larger_than_memory(void **state) {
    enum { N = 3000000 };
    char *text = malloc(N);
    uint32_t random = 3;
    (void)state;
    for (int i = 0; i < N; i++) {
        double x = training_random(&random);
        text[i] = x < 0.02 ? '\n' : (char)('a' + (int)(x * 26));
    }
    write_file(text, N);
    free(text);
    char command[512];
    snprintf(command, sizeof command, "gzip -k '%s' && mv '%s.gz' '%s'", path, path, path);
    assert_int_equal(system(command), 0);
    ht_config *config =
        training_config("{" TEXT "\"length\":512,\"batch\":7,\"documents\":\"lines\"}");
    ht_data *a = open_data(config, HT_PART_TRAIN, 0.1, 0);
    ht_data *b = open_data(config, HT_PART_TRAIN, 0.1, 10000);
    ht_data_info x = HT_DATA_INFO_INIT, y = HT_DATA_INFO_INIT;
    OK(cpu, ht_data_get_info(a, &x));
    OK(cpu, ht_data_get_info(b, &y));
    assert_memory_equal(&x, &y, sizeof x);
    assert_true(x.tokens > 2500000);
    for (int i = 0; i < 50; i++) {
        ht_batch p = HT_BATCH_INIT, q = HT_BATCH_INIT;
        OK(cpu, ht_data_draw(a, &p));
        OK(cpu, ht_data_draw(b, &q));
        assert_int_equal(p.sequences, q.sequences);
        size_t n = (size_t)p.cu_seqlens[p.sequences];
        assert_memory_equal(p.cu_seqlens, q.cu_seqlens, sizeof(int32_t) * (size_t)p.sequences);
        assert_memory_equal(p.tokens, q.tokens, sizeof(int32_t) * n);
        assert_memory_equal(p.targets, q.targets, sizeof(int32_t) * n);
    }
    ht_data_close(a);
    ht_data_close(b);
}

static void damaged(void **state) {
    static const struct {
        const char *command, *says;
    } faults[] = {
        {"head -c 100000 /dev/urandom | base64 | gzip | head -c 3000", "gzip that ends too soon"},
        {"head -c 100000 /dev/urandom | base64 | zstd -q | head -c 3000",
         "zstd that ends too soon"},
        {"printf '\\037\\213junk that is no gzip'", "damaged gzip"},
        {"printf '\\050\\265\\057\\375junk that is no zstd'", "damaged zstd"},
        {"true", "is empty"},
        {"printf '\\n\\n\\n'", "has no items"},
    };
    ht_config *config = training_config("{" TEXT "\"length\":8,\"documents\":\"lines\"}");
    ht_data_desc desc = HT_DATA_DESC_INIT;
    (void)state;
    desc.config = config;
    desc.path = path;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char command[512];
        ht_data *data;
        snprintf(command, sizeof command, "%s > '%s'", faults[i].command, path);
        assert_int_equal(system(command), 0);
        ht_status status = ht_data_open(&data, cpu, &desc);
        assert_int_not_equal(status, HT_OK);
        if (!strstr(ht_context_error(cpu), faults[i].says)) {
            print_error("%s: said '%s'\n", faults[i].command, ht_context_error(cpu));
            fail();
        }
    }
}

/* Folders in folders are read 64 deep; a link to a folder, which may go round, is not followed. */
static void nested(void **state) {
    (void)state;
    enum { DEEP = 64 };
    ht_config *config = training_config("{" TEXT "\"length\":8}");
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    char at[512], file[600];
    snprintf(at, sizeof at, "%s/deep", training_folder);
    assert_int_equal(mkdir(at, 0777), 0);
    desc.config = config, desc.path = training_path("deep");
    for (int i = 1; i < DEEP; i++) {
        strcat(at, "/a");
        assert_int_equal(mkdir(at, 0777), 0);
    }
    snprintf(file, sizeof file, "%s/text", at);
    training_write(file, "some words", 10);
    snprintf(file, sizeof file, "%s/round", at);
    assert_int_equal(symlink(training_path("deep"), file), 0);
    OK(cpu, ht_data_open(&data, cpu, &desc));
    ht_data_close(data);
    strcat(at, "/a");
    assert_int_equal(mkdir(at, 0777), 0);
    REFUSED(cpu, ht_data_open(&data, cpu, &desc), HT_IO, "lies more than 64 folders deep");
}

/* ---- tokens ---- */

static void round_trip(const ht_tokenizer *t, const char *text, size_t bytes) {
    int64_t n, room = (int64_t)bytes + 1;
    int32_t *tokens = malloc(sizeof *tokens * (size_t)room);
    size_t at = 0;
    OK(cpu, ht_tokenizer_encode(t, text, bytes, tokens, room, &n));
    assert_true(n <= (int64_t)bytes);
    for (int64_t i = 0; i < n; i++) {
        size_t count;
        const char *piece = ht_tokenizer_piece(t, tokens[i], &count);
        assert_true(tokens[i] > 0 && tokens[i] < ht_tokenizer_vocab(t));
        assert_true(count <= bytes - at);
        assert_memory_equal(piece, text + at, count);
        at += count;
    }
    assert_int_equal(at, bytes);
    free(tokens);
}

/* Every character of Unicode, every pair of bytes, random bytes. */
static void round_trips(const ht_tokenizer *t) {
    enum { CHUNK = 3000 };
    char *text = malloc(4 * 0x110000 + 8);
    size_t n = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        if (c < 0x80) {
            text[n++] = (char)c;
        } else if (c < 0x800) {
            text[n++] = (char)(0xC0 | c >> 6);
        } else if (c < 0x10000) {
            text[n++] = (char)(0xE0 | c >> 12);
            text[n++] = (char)(0x80 | (c >> 6 & 0x3F));
        } else {
            text[n++] = (char)(0xF0 | c >> 18);
            text[n++] = (char)(0x80 | (c >> 12 & 0x3F));
            text[n++] = (char)(0x80 | (c >> 6 & 0x3F));
        }
        if (c >= 0x80) text[n++] = (char)(0x80 | (c & 0x3F));
    }
    round_trip(t, text, n);
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            char pair[] = {'x', (char)a, (char)b, 'y', ' '};
            round_trip(t, pair, 5);
        }
    uint32_t random = 1;
    for (int i = 0; i < CHUNK; i++) text[i] = (char)(training_random(&random) * 256);
    round_trip(t, text, CHUNK);
    round_trip(t, "", 0);
    static const char odd[] = "  two  spaces \t\n\n \xE2\x96\x81 mark\r\n";
    round_trip(t, odd, sizeof odd - 1);
    free(text);
}

/* Lines side by side give what they give one after the other; so does a count without room. */
static void parts(const ht_tokenizer *t) {
    enum { LINES = 20000, MOST = 40 };
    char *text = malloc(LINES * MOST);
    int32_t *whole = malloc(sizeof *whole * LINES * MOST), line[MOST];
    size_t bytes = 0;
    int64_t n, m, at = 0;
    for (int i = 0; i < LINES; i++)
        bytes += (size_t)sprintf(text + bytes, "cat %d of %*s the house\n", i, i % 10, "\xFF");
    OK(cpu, ht_tokenizer_encode(t, text, bytes, whole, (int64_t)bytes, &n));
    OK(cpu, ht_tokenizer_encode(t, text, bytes, NULL, 0, &m));
    assert_int_equal(m, n);
    for (const char *from = text; from < text + bytes;) {
        const char *end = strchr(from, '\n') + 1;
        OK(cpu, ht_tokenizer_encode(t, from, (size_t)(end - from), line, MOST, &m));
        assert_true(at + m <= n);
        assert_memory_equal(whole + at, line, sizeof *line * (size_t)m);
        at += m;
        from = end;
    }
    assert_int_equal(at, n);
    free(text);
    free(whole);
}

static void tokens(void **state) {
    ht_tokenizer *t;
    char model[160], command[1024];
    (void)state;
    OK(cpu, ht_tokenizer_open(&t, cpu, NULL));
    assert_int_equal(ht_tokenizer_vocab(t), 257);
    round_trips(t);
    ht_tokenizer_close(t);
    REFUSED(cpu, ht_tokenizer_open(&t, cpu, "/nowhere.model"),
            ht_tokenizer_open(&t, cpu, "/nowhere.model"), "/nowhere.model");
    assert_null(t);
    snprintf(command, sizeof command,
             "cd '%s' && for i in $(seq 2000); do echo \"the cat number $i sat on mat $((i * 7)), "
             "and 21 dogs of the house ran to it\"; done > corpus && spm_train --input=corpus "
             "--model_prefix=words --vocab_size=400 --model_type=bpe --byte_fallback "
             "--character_coverage=1 "
             "--normalization_rule_name=identity --add_dummy_prefix=false "
             "--remove_extra_whitespaces=false --bos_id=-1 --eos_id=-1 >log 2>&1",
             training_folder);
    snprintf(model, sizeof model, "%s/words.model", training_folder);
    ht_status status = system(command) == 0 ? ht_tokenizer_open(&t, cpu, model) : HT_UNSUPPORTED;
    if (status == HT_UNSUPPORTED) {
        print_message("no SentencePiece here: sub-words were not tested\n");
        return;
    }
    OK(cpu, status);
    assert_int_equal(ht_tokenizer_vocab(t), 401);
    round_trips(t);
    parts(t);
    int32_t ids[64];
    int64_t n;
    OK(cpu, ht_tokenizer_encode(t, "the cat sat on the house", 24, ids, 64, &n));
    assert_in_range(n, 1, 12); /* words, not bytes */
    /* a corpus of such tokens */
    ht_config *config = training_config(
        "{" TEXT "\"length\":32,\"batch\":2,\"documents\":\"lines\",\"vocab\":401}");
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    desc.config = config;
    desc.path = path;
    desc.tokenizer = t;
    write_file("the cat sat\nthe mat\n", 20);
    OK(cpu, ht_data_open(&data, cpu, &desc));
    OK(cpu, ht_data_next(data, &b));
    assert_int_equal(b.sequences, 2);
    char got[64] = "";
    for (int32_t i = 0; i < b.cu_seqlens[2]; i++) {
        size_t count;
        const char *piece = ht_tokenizer_piece(t, b.tokens[i], &count);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%.*s", b.tokens[i] ? (int)count : 1,
                 b.tokens[i] ? piece : "|");
    }
    assert_string_equal(got, "|the cat sat|the mat");
    ht_data_close(data);
    training_set(config, "vocab", 400);
    REFUSED(cpu, ht_data_open(&data, cpu, &desc), HT_INVALID, "need a vocab of 401, got 400");
    ht_tokenizer_close(t);
    /* one that changes the text is refused */
    snprintf(command, sizeof command,
             "cd '%s' && spm_train --input=corpus --model_prefix=plain --vocab_size=400 "
             "--byte_fallback >log 2>&1",
             training_folder);
    assert_int_equal(system(command), 0);
    snprintf(model, sizeof model, "%s/plain.model", training_folder);
    REFUSED(cpu, ht_tokenizer_open(&t, cpu, model), HT_INVALID, "changes the text");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents),
        cmocka_unit_test(odd_bytes),
        cmocka_unit_test(parts_by_document),
        cmocka_unit_test(windows_end_with_documents),
        cmocka_unit_test(trained_on),
        cmocka_unit_test(larger_than_memory),
        cmocka_unit_test(damaged),
        cmocka_unit_test(nested),
        cmocka_unit_test(tokens),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
