/*
 * htransformer results: tables of runs that are made up.
 */
#include "program.h"

static char lines[65536];

static void add(const char *args, int seed, double valid, double test, double fresh) {
    char more[96] = "";
    if (fresh >= 0)
        snprintf(more, sizeof more, ", \"fresh_items\": 20000, \"fresh_accuracy\": %g", fresh);
    sprintf(lines + strlen(lines),
            "{\"task\": \"listops\", \"preset\": \"lra/listops\", \"attention\": \"local\", "
            "\"block\": 16, \"seed\": %d, \"steps\": 500, \"batch\": 32, \"args\": \"%s\", "
            "\"commit\": \"0123456789\", \"seconds\": 60, \"valid_accuracy\": %g, "
            "\"test_accuracy\": %g, \"test_error\": 0.01%s}\n",
            seed, args, valid, test, more);
}

/* Three seeds of one recipe, one of them run twice; another that tests better and validates worse;
 * deviations from 53 of -3, -1, 4: a standard error of sqrt(26 / 2 / 3). */
static void write_runs(void) {
    lines[0] = '\0';
    add("--dropout 0", 2, 0.5, 0.1, 0.1);
    add("--dropout 0", 7, 0.55, 0.57, 0.55);
    add("--dropout 0.5", 1, 0.4, 0.99, 0.99);
    add("--dropout 0", 2, 0.55, 0.52, 0.53);
    add("--dropout 0", 1, 0.58, 0.5, 0.51);
    program_write("runs.jsonl", lines, strlen(lines));
}

static void says(const program_result *r, const char *words, int times) {
    int found = 0;
    for (const char *at = r->out; (at = strstr(at, words)); at++) found++;
    if (r->code != 0 || found != times)
        fail_msg("%d times \"%s\", should be %d: %s%s", found, words, times, r->out, r->err);
}

static void test_seeds(void **state) {
    static const char three[] =
        "| listops | lra/listops | local | 16 | 500 | 3 | 56.00 | 53.00 +- 2.08 | 53.00 +- 1.15 | "
        "1: 50.00 (51.00), 2: 52.00 (53.00), 7: 57.00 (55.00) |\n";
    (void)state;
    write_runs();
    const program_result *r = program_run("results runs.jsonl --seeds --markdown");
    says(r, three, 1);
    says(r, "| 1 | 40.00 | 99.00, one seed | 99.00, one seed | 1: 99.00 (99.00) |\n", 1);
    says(r, "10.00", 0); /* the run that was made again */
    says(r, "\n", 4);
    r = program_run("results runs.jsonl --seeds --best --markdown");
    says(r, three, 1); /* by validation, not by the test */
    says(r, "99.00", 0);
    r = program_run("results runs.jsonl --seeds");
    says(r, "53.00 +- 2.08", 1);
    says(r, "each seed: test (fresh)", 1);
}

/* Without items made anew in every run there is no mean of them; other steps are another recipe. */
static void test_parts(void **state) {
    (void)state;
    write_runs();
    add("--dropout 0", 9, 0.55, 0.53, -1);
    program_write("runs.jsonl", lines, strlen(lines));
    const program_result *r = program_run("results runs.jsonl --seeds --markdown");
    says(r, "| 4 | 55.75 | 53.00 +- 1.47 |  | 1: 50.00 (51.00), ", 1);
    says(r, "9: 53.00 |", 1);
    r = program_run("results runs.jsonl --markdown");
    says(r, "\n", 8);
}

static void test_refused(void **state) {
    (void)state;
    program_write("none.jsonl", "{\"task\": \"listops\"}\n", 20);
    program_expect(1, "none.jsonl:1: this is no run of scripts/lra.sh",
                   "results none.jsonl --seeds");
    program_expect(2, "seed", "results none.jsonl --seed");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_seeds), cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
