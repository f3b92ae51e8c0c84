/*
 * The linear model beside the Transformer, as the program shows it: a baseline before the first
 * step, a choice after the last, both in eval and report, the chosen one in predict.
 */
#include "program.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define SMALL                                                                           \
    "--layers 1 --width 16 --heads 2 --hidden 16 --head_hidden 8 --length 8 --batch 8 " \
    "--merge 1 --threads 1 --steps 12 --warmup 0 --eval_every 6 "

/* What tells the labels apart comes after the 8 bytes that the Transformer sees. */
static void write_rows(const char *name, int from, int count) {
    static const char *const words[2][3] = {{"good", "fine", "nice"}, {"bad", "ugly", "awful"}};
    static char text[65536];
    text[0] = '\0';
    for (int i = from; i < from + count; i++)
        sprintf(text + strlen(text), "%s\tfilm number %d is %s and %s\n", i % 2 ? "no" : "yes", i,
                words[i % 2][i / 2 % 3], words[i % 2][i / 6 % 3]);
    program_write(name, text, strlen(text));
}

static double number(const cJSON *root, const char *object, const char *key) {
    const cJSON *from = object ? cJSON_GetObjectItemCaseSensitive(root, object) : root;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!cJSON_IsNumber(item)) fail_msg("no %s.%s", object ? object : "", key);
    return item->valuedouble;
}

static int is_there(const char *name) { return access(program_path(name), F_OK) == 0; }

static void test_baseline(void **state) {
    (void)state;
    write_rows("films.tsv", 0, 240);
    write_rows("others.tsv", 1000, 60);
    const program_result *r = program_run("train --run films --data films.tsv " SMALL);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "acc 1.000, the baseline"));
    assert_non_null(strstr(r->out, "chosen: the linear model alone"));
    assert_true(is_there("films/linear.safetensors"));
    r = program_run("eval films --data others.tsv --json");
    assert_int_equal(r->code, 0);
    cJSON *json = cJSON_Parse(r->out);
    assert_true(number(json, NULL, "accuracy") == 1 && number(json, "linear", "accuracy") == 1);
    assert_true(number(json, "transformer", "accuracy") < 0.9);
    assert_true(number(json, "transformer", "weight") == 0);
    cJSON_Delete(json);
    r = program_run("eval films --data others.tsv");
    assert_non_null(strstr(r->out, "the linear model alone 100.00 %"));
    r = program_run("predict films --text 'film number 7 is ugly'");
    assert_true(r->code == 0 && strncmp(r->out, "no\t", 3) == 0);
    r = program_run("predict films/best.safetensors --text 'film number 7 is nice'");
    assert_true(r->code == 0 && strncmp(r->out, "yes\t", 4) == 0);
    r = program_run("report films --out page.html --evaluate");
    assert_int_equal(r->code, 0);
    r = program_run("train --run films --resume --steps 18");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "chosen: the linear model alone"));
    assert_null(strstr(r->err, "rror"));
}

/* Not wanted, or nothing to judge it by: answers are the Transformer's. */
static void test_without(void **state) {
    (void)state;
    const program_result *r = program_run("train --run none --data films.tsv --linear no " SMALL);
    assert_int_equal(r->code, 0);
    assert_null(strstr(r->out, "baseline"));
    assert_false(is_there("none/linear.safetensors"));
    r = program_run("train --run none --resume --steps 14");
    assert_int_equal(r->code, 0);
    assert_false(is_there("none/linear.safetensors"));
    r = program_run("eval none --data others.tsv --json");
    assert_int_equal(r->code, 0);
    assert_null(strstr(r->out, "\"linear\""));
    r = program_run("train --run whole --data films.tsv --holdout 0 " SMALL);
    assert_int_equal(r->code, 0);
    r = program_run("eval whole --data others.tsv --json"); /* nobody knows what it is worth */
    assert_true(r->code == 0 && !strstr(r->out, "\"linear\""));
}

static void test_faults(void **state) {
    (void)state;
    const program_result *r = program_run("train --run damaged --data films.tsv --quiet " SMALL);
    assert_int_equal(r->code, 0);
    program_write("damaged/linear.safetensors", "x", 1);
    r = program_run("predict damaged --text hello");
    assert_int_equal(r->code, 1);
    assert_non_null(strstr(r->err, "linear.safetensors"));
    r = program_run("train --run x --data films.tsv --linear maybe");
    assert_int_equal(r->code, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_baseline),
                                       cmocka_unit_test(test_without),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
