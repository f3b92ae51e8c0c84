/*
 * What train begins with: the encoder in the box for texts with labels, random weights for what is
 * no text, for models of another form, and where there is no encoder. The box is the test's own: a
 * copy of the program beside a folder `models`, and an encoder that was trained for one step.
 */
#include "program.h"

#include <sys/stat.h>
#include <unistd.h>

#define FEW "--steps 1 --length 64 --batch 4 --threads 1 --linear no --data "
#define BOX "models/encoder.safetensors"
enum { MOST = 10 << 20 }; /* bytes of the encoder */

/* Rows of two labels whose texts are made of so many letters. */
static void write_rows(const char *name, const char *letters) {
    char text[8192] = "";
    uint64_t seed = 1;
    for (int i = 0; i < 60; i++) {
        char *at = text + strlen(text);
        *at++ = (char)('0' + i % 2);
        *at++ = '\t';
        for (int k = 0; k < 50; k++)
            *at++ = letters[(int)((program_random(&seed) + 1) / 2 * (double)strlen(letters))];
        strcpy(at, "\n");
    }
    program_write(name, text, strlen(text));
}

/* The encoder, as scripts/encoder.sh trains it. */
static int make_encoder(void) {
    const program_result *r = program_run(
        "train --run enc --preset encoder --task denoise --data prose.txt --format text "
        "--across 1 --hide 0.3 --hide_run 6 --length 64 --batch 4 --steps 1 --threads 1 --quiet "
        "--holdout 0");
    if (r->code != 0) return print_error("%s", r->err), 1;
    r = program_run("export enc --last --to " BOX " --dtype bf16");
    return r->code;
}

static int setup(void **state) {
    if (program_setup(state)) return 1;
    write_rows("texts.tsv", "the quick brown fox jumps over the lazy dog, THE END. 0123456789");
    write_rows("prose.txt", "the quick brown fox jumps over the lazy dog, THE END. 0123456789");
    write_rows("sites.tsv", "ACGT");
    const program_result *r =
        program_run("--version && mkdir bin models && cp '" HTRANSFORMER "' bin/htransformer");
    if (r->code != 0 || make_encoder()) return 1;
    program_use("bin/htransformer");
    return 0;
}

/* Does it say that it takes the encoder's weights? */
static int begins(const char *words) {
    char command[400];
    static int number;
    snprintf(command, sizeof command, "train --run r%d %s", number++, words);
    const program_result *r = program_run("%s", command);
    if (r->code != 0) fail_msg("%s: %s", command, r->err);
    return strstr(r->out, BOX) != NULL;
}

static void test_texts(void **state) {
    (void)state;
    assert_true(begins(FEW "texts.tsv"));
    const program_result *r = program_run("train --run whole " FEW "texts.tsv");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "init       47 of 49 tensors")); /* all but the last layer */
    assert_true(begins(FEW "texts.tsv --preset encoder --pool mean"));
    /* a run that goes on has weights of its own */
    r = program_run("train --run whole --resume --steps 2 --threads 1");
    assert_int_equal(r->code, 0);
    assert_null(strstr(r->out, "init "));
    /* it is used without a word about where it came from */
    r = program_run("predict whole --text \"the dog\" --threads 1");
    assert_int_equal(r->code, 0);
}

/* What comes along is small, and is what its settings say. */
static void test_size(void **state) {
    (void)state;
    struct stat about;
    assert_int_equal(stat(program_path(BOX), &about), 0);
    assert_true(about.st_size > 0 && about.st_size <= MOST);
}

/* Without it texts begin as they did before there was one; who asks for it is told. */
static void test_no_encoder(void **state) {
    (void)state;
    assert_int_equal(rename(program_path(BOX), program_path("models/away")), 0);
    assert_false(begins(FEW "texts.tsv"));
    const program_result *r = program_run("train --run bare " FEW "texts.tsv");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "2 layers, width 128")); /* the preset small */
    program_expect(1, "is not where it should be; --preset small begins without it",
                   "train --run asked --preset encoder " FEW "texts.tsv");
    assert_int_equal(program_files("asked"), 1);
    /* what it was asked for in vain is no run: the same folder may be used */
    r = program_run("train --run asked --preset small " FEW "texts.tsv");
    assert_int_equal(r->code, 0);
    /* its sizes alone need no weights */
    r = program_run("train --run sizes --preset encoder --task denoise " FEW "texts.tsv");
    assert_int_equal(r->code, 0);
    assert_int_equal(rename(program_path("models/away"), program_path(BOX)), 0);
}

/* One that is damaged, or of another form, is an error and no model from scratch. */
static void test_bad_encoder(void **state) {
    (void)state;
    assert_int_equal(rename(program_path(BOX), program_path("models/away")), 0);
    program_write(BOX, "no weights", 10);
    program_expect(1, "encoder.safetensors", "train --run bad " FEW "texts.tsv");
    const program_result *r =
        program_run("train --run other --layers 1 --width 6 --heads 1 --vocab 300 --linear no "
                    "--pool mean --steps 1 --length 64 --threads 1 --data texts.tsv");
    assert_int_equal(r->code, 0);
    r = program_run("export other --to " BOX);
    assert_int_equal(r->code, 0);
    program_expect(1, "is no encoder of this form: 1 of 49 tensors fit",
                   "train --run bad2 " FEW "texts.tsv");
    assert_int_equal(rename(program_path("models/away"), program_path(BOX)), 0);
}

static void test_from_scratch(void **state) {
    (void)state;
    assert_false(begins(FEW "texts.tsv --preset small"));
    assert_false(begins(FEW "texts.tsv --layers 1"));
    assert_false(begins(FEW "texts.tsv --merge 2"));
    assert_false(begins(FEW "texts.tsv --task denoise"));
    assert_false(begins(FEW "sites.tsv"));
    program_write("six.json", "{\"layers\": 1}", 13);
    assert_false(begins(FEW "texts.tsv --config six.json"));
    assert_false(begins("--steps 1 --layers 1 --width 16 --heads 2 --hidden 16 --threads 1 "
                        "--train_items 60 --valid_items 12 --listops_min 4 --listops_max 24"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),        cmocka_unit_test(test_size),
        cmocka_unit_test(test_no_encoder),   cmocka_unit_test(test_bad_encoder),
        cmocka_unit_test(test_from_scratch),
    };
    return cmocka_run_group_tests(tests, setup, program_teardown);
}
