/*
 * What train begins with: the encoder in the box for texts with labels, random weights for what is
 * no text and for models of another form.
 */
#include "program.h"

#include <unistd.h>

#include <unistd.h>

#define FEW "--steps 1 --length 64 --batch 4 --threads 1 --linear no --data "

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

static int setup(void **state) {
    if (program_setup(state)) return 1;
    write_rows("texts.tsv", "the quick brown fox jumps over the lazy dog, THE END. 0123456789");
    write_rows("sites.tsv", "ACGT");
    return 0;
}

/* Does it say that it takes the encoder's weights? */
static int begins(const char *words) {
    char command[400];
    static int number;
    snprintf(command, sizeof command, "train --run r%d %s", number++, words);
    const program_result *r = program_run("%s", command);
    if (r->code != 0) fail_msg("%s: %s", command, r->err);
    return strstr(r->out, "encoder.safetensors") != NULL;
}

static void test_texts(void **state) {
    (void)state;
    if (access(MODELS "/encoder.safetensors", F_OK) != 0) skip();
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
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_from_scratch),
    };
    return cmocka_run_group_tests(tests, setup, program_teardown);
}
