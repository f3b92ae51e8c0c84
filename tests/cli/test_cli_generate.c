/*
 * generate, export and eval as a user calls them, on a model trained in the test.
 */
#include "program.h"

#include <unistd.h>

/* A model that knows one line by heart. */
static void train_line(void) {
    char text[4096] = "";
    if (access(program_path("line/best.safetensors"), R_OK) == 0) return;
    while (strlen(text) < 4000) strcat(text, "the cat sat on the mat.\n");
    program_write("line.txt", text, strlen(text));
    const program_result *r = program_run(
        "train --run line --preset lm/tiny --data line.txt --layers 1 --width 32 --heads 2 "
        "--hidden "
        "64 --length 48 --batch 4 --steps 150 --rate 0.01 --warmup 10 --eval_every 0 --quiet");
    assert_int_equal(r->code, 0);
}

static void test_text(void **state) {
    (void)state;
    train_line();
    const program_result *r = program_run("generate line --prompt 'the cat' --temperature 0 "
                                          "--tokens 40");
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, "the cat sat on the mat.\nthe cat sat on the mat.\n");
    assert_non_null(strstr(r->err, "40 tokens, "));
    assert_non_null(strstr(r->err, "prompt 8 tokens"));
    assert_non_null(strstr(r->err,
                           "state after 47 tokens: 64 rows of keys and values per layer and "
                           "key head (2 x block 16 x 2 levels)"));
    /* longer than it was trained on */
    r = program_run("generate line --prompt 'the cat' --temperature 0 --tokens 300");
    assert_int_equal(r->code, 0);
    assert_int_equal(strlen(r->out), 308);
    /* it ends before the stop, also where the stop comes byte by byte */
    r = program_run("generate line --prompt 'the cat' --temperature 0 --stop 'on the'");
    assert_string_equal(r->out, "the cat sat \n");
    r = program_run("generate line --prompt 'the cat' --temperature 0 --stop '.\\nthe'");
    assert_string_equal(r->out, "the cat sat on the mat\n");
    r = program_run("generate line --prompt 'the cat' --tokens 0");
    assert_string_equal(r->out, "the cat\n");
}

static void test_json(void **state) {
    (void)state;
    train_line();
    const program_result *r =
        program_run("generate line --prompt 'the cat' --temperature 0 --tokens 8 --json");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out,
                           "\"prompt\": \"the cat\", \"text\": \" sat on \", \"tokens\": 8, "
                           "\"ended_by\": \"tokens\""));
    assert_non_null(strstr(r->out, "\"state_rows\": 32"));
    r = program_run("generate line --prompt 'the cat' --temperature 0 --tokens 2 --logprobs");
    char *line = strtok(r->out, "\n");
    double first = atof(line);
    assert_true(first <= 0 && first > -0.5); /* it is sure of it */
    assert_non_null(strstr(line, "\t33\t "));
    assert_non_null(strstr(strtok(NULL, "\n"), "\t116\ts"));
}

/* A state goes on with what would have come; so does the same seed, and only that. */
static void test_states(void **state) {
    (void)state;
    train_line();
#define WILD "--temperature 1.3 --repeat-penalty 1.2 --seed 7 "
    const program_result *r = program_run("generate line --prompt a " WILD "--tokens 60");
    char *whole = strdup(r->out);
    r = program_run("generate line --prompt a " WILD "--tokens 60");
    assert_string_equal(r->out, whole);
    r = program_run("generate line --prompt a " WILD "--tokens 25 --save-state s");
    assert_int_equal(r->code, 0);
    size_t half = strlen(r->out) - 1;
    assert_memory_equal(r->out, whole, half);
    r = program_run("generate line --load-state s " WILD "--tokens 35");
    assert_string_equal(r->out, whole + half);
    r = program_run("generate line --prompt a --temperature 1.3 --repeat-penalty 1.2 --seed 8 "
                    "--tokens 60");
    assert_string_not_equal(r->out, whole);
    free(whole);
}

static void test_prompts(void **state) {
    (void)state;
    train_line();
    program_write("prompts.txt", "the cat\nsat on\ncat sat on the m\n", 32);
    const program_result *r =
        program_run("generate line --prompts prompts.txt --temperature 0 --tokens 4 --slots 2");
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, "[1] the cat sat\n[2] sat on the\n[3] cat sat on the mat.\n\n");
    r = program_run("generate line --prompts prompts.txt --temperature 0 --tokens 4 --json");
    assert_non_null(strstr(r->out, "\"prompt\": \"sat on\", \"text\": \" the\""));
}

static void test_export(void **state) {
    (void)state;
    train_line();
    const program_result *r = program_run("export line --to small");
    assert_int_equal(r->code, 0);
    r = program_run(
        "generate small --prompt 'the cat' --temperature 0 --tokens 16 --discard --report 8");
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, "");
    assert_non_null(strstr(r->err, "8 tokens: "));
    r = program_run("generate small --prompt 'the cat' --temperature 0 --tokens 16");
    assert_string_equal(r->out, "the cat sat on the mat.\n");
    /* a longer context than in training, in batches of as many tokens */
    assert_int_equal(program_run("eval small --data line.txt --length 300")->code, 0);
    r = program_run("eval small --data line.txt --by-position --json");
    assert_int_equal(r->code, 0);
    static const char *const keys[] = {"loss_error",      "perplexity_error", "bits_per_byte_error",
                                       "word_perplexity", "by_position",      "words"};
    for (int i = 0; i < 6; i++) assert_non_null(strstr(r->out, keys[i]));
}

/* Without RUN the model in the box speaks. */
static void test_box(void **state) {
    (void)state;
    const program_result *r = program_run("generate --tokens 100");
    if (r->code == 1 && strstr(r->err, "the model that comes with the program")) {
        print_message("no model in the box: not tested\n");
        return;
    }
    assert_int_equal(r->code, 0);
    assert_true(strlen(r->out) > 50);
}

static void test_faults(void **state) {
    static const struct {
        int code;
        const char *says, *words;
    } faults[] = {
        {2, "--temperature must be 0 to 100, got -1", "generate line --temperature -1"},
        {2, "--temperature takes a number, got 'warm'", "generate line --temperature warm"},
        {2, "--top_k must be 0 to", "generate line --top-k -3"},
        {2, "--top_p must be 0 to 1, got 1.5", "generate line --top-p 1.5"},
        {1, "--top_p must be above 0, got 0", "generate line --top-p 0"},
        {2, "--min_p must be 0 to 1, got 2", "generate line --min-p 2"},
        {2, "--repeat_penalty must be 1 to 100, got 0.5", "generate line --repeat-penalty 0.5"},
        {2, "--seed takes a whole number", "generate line --seed x"},
        {2, "--tokens must be 0 to", "generate line --tokens -1"},
        {2, "--prompts goes without", "generate line --prompts p --prompt x"},
        {1, "nothere could not be opened", "generate nothere"},
        {2, "--open must be -1 to 1048576", "generate line --open -2"},
        {1,
         "open needs attention hierarchical and query fine, got open 4, attention "
         "hierarchical, query first",
         "generate line --open 4"},
        {1, "open needs attention hierarchical and query fine",
         "eval line --data line.txt --open 4"},
        {1, "nothere could not be opened", "generate line --prompts nothere"},
        {1, "nothere", "generate line --load-state nothere"},
        {1, "line.txt is not a saved state", "generate line --load-state line.txt"},
        {1, "line.txt is not a safetensors file", "generate line.txt"},
        {2, "--to FILE is missing", "export line"},
        {2, "export writes safetensors, not .onnx", "export line --to small.onnx"},
        {2, "not .gguf, whose readers know no hierarchical attention; name it small.safetensors",
         "export line --to small.GGUF"},
        {1, "line.txt is no SentencePiece model",
         "train --run sub --preset lm/tiny --data line.txt "
         "--tokenizer line.txt"},
    };
    (void)state;
    train_line();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        if (strstr(faults[i].says, "SentencePiece") &&
            strstr(program_run("%s", faults[i].words)->err, "has no SentencePiece"))
            continue;
        program_expect(faults[i].code, faults[i].says, faults[i].words);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),   cmocka_unit_test(test_json),
        cmocka_unit_test(test_states), cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_export), cmocka_unit_test(test_box),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
