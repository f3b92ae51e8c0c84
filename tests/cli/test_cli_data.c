/*
 * data make, import, show, ladder and results as a user runs them, training on what they write, and
 * Pathfinder as it was released: PNG files and metadata.
 */
#include "program.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#define SMALL "--layers 1 --width 16 --heads 2 --inner 16 --hidden 16 --head_hidden 8 --batch 4 "

/* A number of the JSON object that was printed, at "key" or "part.key". */
static double printed(const program_result *r, const char *part, const char *key) {
    cJSON *root = cJSON_Parse(r->out);
    const cJSON *at = part ? cJSON_GetObjectItemCaseSensitive(root, part) : root;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(at, key);
    if (!cJSON_IsNumber(item)) fail_msg("no number '%s' in %s%s", key, r->out, r->err);
    double x = item->valuedouble;
    cJSON_Delete(root);
    return x;
}

/* The sum of all items of a set, in any order. */
static uint64_t all_sums(const program_result *r) {
    static const char *const parts[] = {"train", "valid", "test"};
    cJSON *root = cJSON_Parse(r->out);
    if (!root) fail_msg("no JSON: %s%s", r->out, r->err);
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++)
        sum += strtoull(
            cJSON_GetObjectItem(cJSON_GetObjectItem(root, parts[i]), "sum")->valuestring, NULL, 16);
    cJSON_Delete(root);
    return sum;
}

static void test_make_and_train(void **state) {
    (void)state;
    static const struct {
        const char *task, *preset, *end;
    } sets[] = {{"pathfinder", "lra/pathfinder", "images"}, {"listops", "lra/listops", "tsv"}};
    for (int i = 0; i < 2; i++) {
        const char *task = sets[i].task, *end = sets[i].end;
        const program_result *r =
            program_run("data make %s --out sets --train 60 --valid 12 --test 12 --plain", task);
        assert_int_equal(r->code, 0);
        assert_non_null(strstr(r->out, ": 84 items in"));
        r = program_run("train --run %s --preset %s %s --data sets/%s-train.%s --valid "
                        "sets/%s-valid.%s --steps 3 --quiet --threads 1",
                        task, sets[i].preset, SMALL, task, end, task, end);
        if (r->code) fail_msg("%s", r->err);
        r = program_run("eval %s --data sets/%s-test.%s --json --threads 1", task, task, end);
        assert_true(printed(r, NULL, "targets") == 12);
        r = program_run("eval %s --fresh 9 --json --threads 1", task);
        assert_true(printed(r, NULL, "targets") == 9);
        /* no files at all: made in memory */
        r = program_run(
            "train --run %s-2 --preset %s %s --train_items 20 --valid_items 8 --steps 2 "
            "--quiet --threads 1",
            task, sets[i].preset, SMALL);
        assert_int_equal(r->code, 0);
    }
    program_expect(1, "the data of this model are images", "predict pathfinder --text x");
    program_expect(1, "--fresh is for items that are made, without --data",
                   "eval listops --fresh 9 --data sets/listops-test.tsv");
}

/* Black pixels count, unless one asks for the original's behaviour. */
static void test_black_pixels(void **state) {
    (void)state;
    assert_int_equal(program_run("train --run black --preset lra/pathfinder " SMALL
                                 "--train_items 20 --valid_items 8 --steps 1 --quiet")
                         ->code,
                     0);
    char text[8192] = "";
    FILE *f = fopen(program_path("black/config.json"), "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    assert_non_null(strstr(text, "\"mask_zero\": 0"));
    assert_int_equal(program_run("train --run white --preset lra/pathfinder --mask_zero 1 " SMALL
                                 "--train_items 20 --valid_items 8 --steps 1 --quiet")
                         ->code,
                     0);
}

/* Pairs of papers; --resume and eval find them again. */
static void test_papers(void **state) {
    (void)state;
    const char *papers = "a\tone text\nb\tanother\nc\tthe third\n";
    const char *pairs = "1\ta\tb\n0\tb\tc\n1\tc\ta\n0\ta\ta\n1\tb\tb\n";
    program_write("papers.tsv", papers, strlen(papers));
    program_write("pairs.tsv", pairs, strlen(pairs));
    const program_result *r =
        program_run("train --run pairs --preset lra/retrieval " SMALL "--length 16 --data "
                    "pairs.tsv --valid pairs.tsv --papers papers.tsv --steps 2 --quiet");
    if (r->code) fail_msg("%s", r->err);
    assert_int_equal(program_run("train --run pairs --resume --steps 4 --quiet")->code, 0);
    r = program_run("eval pairs --data pairs.tsv --papers papers.tsv --json");
    assert_true(printed(r, NULL, "targets") == 5);
    r = program_run("data show retrieval 1 --data pairs.tsv --papers papers.tsv");
    assert_string_equal(r->out, "label 0, 16 tokens\nanother\nthe third\n");
}

static void test_show(void **state) {
    (void)state;
    const program_result *r = program_run("data show listops 2 --seed 3");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "tokens\n["));
    r = program_run("data show pathfinder 1");
    int lines = 0;
    for (const char *p = r->out; *p; p++) lines += *p == '\n';
    assert_int_equal(lines, 33); /* the label, then a line per row */
    assert_int_equal(program_run("data show pathx 0 --out x.png")->code, 0);
    program_write("mail.tsv", "0\tgood\n1\tbad\n", 13);
    assert_string_equal(program_run("data show text 1 --data mail.tsv")->out,
                        "label 1, 3 tokens\nbad\n");
    program_expect(1, "there is no item 2", "data show text 2 --data mail.tsv");
    program_expect(1, "--out draws images", "data show text 1 --data mail.tsv --out y.png");
    program_expect(1, "--data is missing: image is not made", "data show image 1");
    program_expect(2, "TASK must be listops, text, retrieval", "data show chess 1");
    program_expect(1, "N must be a whole number from 0, got 'x'", "data show listops x");
    program_expect(2, "N is missing", "data show listops");
    program_expect(2, "TASK is missing", "data show");
    program_expect(2, "got 'pathfindr'; did you mean pathfinder?", "data make pathfindr");
    program_expect(2, "PATH is missing", "data import imdb");
}

/* Ten released images: PNG files that data show draws. Sets the label of each. */
static void write_release(void) {
    char lines[4096] = "";
    mkdir(program_path("release"), 0777);
    mkdir(program_path("release/imgs"), 0777);
    mkdir(program_path("release/imgs/1"), 0777);
    mkdir(program_path("release/metadata"), 0777);
    for (int i = 0; i < 10; i++) {
        const program_result *r = program_run(
            "data show pathfinder %d --seed 4 --scale 1 --out release/imgs/1/sample_%d.png", i, i);
        int label = -1;
        assert_int_equal(sscanf(r->out, "label %d", &label), 1);
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines),
                 "imgs/1 sample_%d.png %d %d 1.0 14 4 2 0.5 1 1\n", i, i, label);
    }
    program_write("release/metadata/1.npy", lines, strlen(lines));
}

static void test_released(void **state) {
    (void)state;
    const char *import = "data import pathfinder release --out imported --plain --unchecked --json";
    write_release();
    const program_result *r = program_run("%s", import);
    if (strstr(r->err, "no libpng")) skip();
    if (r->code) fail_msg("%s", r->err);
    assert_true(printed(r, "train", "items") == 8);
    assert_true(printed(r, "valid", "items") == 1);
    assert_true(printed(r, "test", "items") == 1);
    uint64_t sum = all_sums(r);
    r = program_run("data make pathfinder --dry --train 10 --seed 4 --json");
    assert_true(all_sums(r) == sum); /* the same pixels and labels */
    program_expect(1, "lists 10 images, there should be 200000",
                   "data import pathfinder release --out imported");
    program_write("release/imgs/1/sample_3.png", "", 0); /* the release has an empty one */
    r = program_run("%s", import);
    assert_true(printed(r, "train", "items") + printed(r, "valid", "items") +
                    printed(r, "test", "items") ==
                9);
    assert_int_equal(
        program_run("data show pathfinder 2 --data imported/pathfinder-train.images")->code, 0);
    /* faults: the file, and the line that names it */
    program_write("release/imgs/1/sample_3.png", "\x89PNG\r\n\x1A\nnothing more", 20);
    program_expect(1, "metadata/1.npy:4: release/imgs/1/sample_3.png: damaged PNG", import);
    assert_int_equal(
        program_run("data show pathfinder 3 --scale 2 --out release/imgs/1/sample_3.png")->code, 0);
    program_expect(1, "1.npy:4: release/imgs/1/sample_3.png: not 32 x 32 grey pixels", import);
    remove(program_path("release/imgs/1/sample_3.png"));
    program_expect(1, "1.npy:4: release/imgs/1/sample_3.png: could not be opened: No such", import);
    /* a pipe that nobody writes into would be waited for */
    assert_int_equal(mkfifo(program_path("release/imgs/1/sample_3.png"), 0600), 0);
    program_expect(1, "1.npy:4: release/imgs/1/sample_3.png: is not a regular file, but a pipe",
                   import);
    /* a list leads nowhere but into its own folder */
    program_write("outside.png", "", 0);
    program_write("release/metadata/1.npy", "imgs/1 ../../../outside.png 0 0 1.0\n", 36);
    program_expect(1, "1.npy:1: imgs/1/../../../outside.png is not inside the folder", import);
    program_write("release/metadata/1.npy", "/etc passwd 0 0 1.0\n", 20);
    program_expect(1, "1.npy:1: /etc/passwd is not inside the folder", import);
    program_write("release/metadata/1.npy", "imgs/1 sample_0.png 0 2 1.0\n", 28);
    program_expect(1, "metadata/1.npy:1: a line must begin with folder, file", import);
    program_write("release/metadata/1.npy", "imgs/1 sample_0.png\n", 20);
    program_expect(1, "metadata/1.npy:1: a line must begin with folder, file", import);
    remove(program_path("release/metadata/1.npy"));
    program_expect(1, "metadata lists no images", import);
    rmdir(program_path("release/metadata"));
    program_expect(1, "metadata could not be opened", import);
}

/* Tokens of which some are to be guessed: made, trained on, accuracy by distance. */
static void test_marked(void **state) {
    (void)state;
    static const char *const tasks[] = {"copy", "recall"};
    for (int i = 0; i < 2; i++) {
        const char *task = tasks[i];
        const program_result *r = program_run(
            "data make %s --out far --train 30 --valid 6 --test 9 --length 64 --plain", task);
        if (r->code) fail_msg("%s", r->err);
        assert_non_null(strstr(r->out, ": 45 items in"));
        assert_null(strstr(r->out, "attempts"));
        r = program_run("train --run far-%s --preset %s --layers 1 --width 16 --heads 2 --length "
                        "64 --batch 4 --data far/%s-train.tokens --valid far/%s-valid.tokens "
                        "--steps 3 --quiet --threads 1",
                        task, task, task, task);
        if (r->code) fail_msg("%s", r->err);
        r = program_run("eval far-%s --data far/%s-test.tokens --json --threads 1", task, task);
        /* of a copied quarter of 8 letters 4 are known; of 64 / 2 - 24 questions all */
        assert_true(printed(r, NULL, "targets") == 9 * (i ? 8 : 16));
        cJSON *root = cJSON_Parse(r->out), *list = cJSON_GetObjectItem(root, "by_distance"), *row;
        double sum = 0, from = 0;
        cJSON_ArrayForEach(row, list) {
            sum += cJSON_GetObjectItem(row, "targets")->valuedouble;
            assert_true(cJSON_GetObjectItem(row, "from")->valuedouble > from);
            from = cJSON_GetObjectItem(row, "to")->valuedouble;
        }
        assert_true(sum == 9 * (i ? 8 : 16) && from == 63);
        cJSON_Delete(root);
        r = program_run("eval far-%s --fresh 5 --threads 1", task); /* made */
        assert_non_null(strstr(r->out, "answer stands back"));
        assert_non_null(strstr(r->out, " in 5 items"));
        r = program_run("data show %s 1 --data far/%s-test.tokens", task, task);
        assert_non_null(strstr(r->out, i ? "64 tokens, 8 of them" : "64 tokens, 16 of them"));
    }
    program_expect(1, "8 divides, got 60", "data make copy --length 60 --out far");
    program_expect(1, "--out draws images", "data show copy 0 --out x.png");
    program_expect(1, "they need a length of 64, got 32",
                   "eval far-copy --length 32 --data far/copy-test.tokens");
}

static void test_ladder(void **state) {
    (void)state;
    const program_result *r = program_run("data ladder --items 6000 --seed 1 --json");
    static const double want[] = {0.364, 0.491, 0.678};
    cJSON *root = cJSON_Parse(r->out);
    assert_non_null(root);
    const cJSON *list = cJSON_GetObjectItem(root, "accuracy");
    for (int i = 0; i < 3; i++) { /* the numbers to compare with come from 20,000 */
        double got = cJSON_GetArrayItem(list, i)->valuedouble;
        double error = sqrt(want[i] * (1 - want[i]) * (1.0 / 6000 + 1.0 / 20000));
        if (fabs(got - want[i]) > 4 * error) fail_msg("step %d is %g", i, got);
    }
    for (int i = 1; i < cJSON_GetArraySize(list); i++)
        assert_true(cJSON_GetArrayItem(list, i)->valuedouble >=
                    cJSON_GetArrayItem(list, i - 1)->valuedouble);
    cJSON_Delete(root);
}

static void test_results(void **state) {
    (void)state;
    const char *lines =
        "{\"task\": \"text\", \"preset\": \"lra/text\", \"attention\": \"local\", \"commit\": "
        "\"abc\", \"block\": 16, \"seed\": 1, \"steps\": 20000, \"seconds\": 90, "
        "\"valid_accuracy\": 0.5, "
        "\"test_accuracy\": 0.625, \"test_error\": 0.003}\n"
        "{\"task\": \"listops\", \"preset\": \"lra/listops\", \"attention\": \"hierarchical\", "
        "\"commit\": \"abc\", \"block\": 32, \"seed\": 1, \"steps\": 5000, \"seconds\": 60, "
        "\"fresh_accuracy\": 0.125, \"valid_accuracy\": "
        "0.4, \"test_accuracy\": 0.375, \"test_error\": 0.01}\n"
        "{\"task\": \"text\", \"preset\": \"lra/text\", \"attention\": \"local\", \"commit\": "
        "\"abc\", \"block\": 16, \"seed\": 1, \"steps\": 40, \"pretrain\": 300, \"seconds\": 90, "
        "\"valid_accuracy\": 0.6, \"test_accuracy\": 0.5, \"test_error\": 0.003}\n";
    program_write("lra.jsonl", lines, strlen(lines));
    const program_result *r = program_run("results lra.jsonl");
    assert_int_equal(r->code, 0);
    const char *first = strstr(r->out, "lra/listops"), *second = strstr(r->out, "lra/text");
    assert_true(first && second && first < second); /* in the paper's order */
    assert_non_null(strstr(r->out, "37.50 +- 1.00"));
    assert_non_null(strstr(r->out, "49.53"));
    assert_non_null(strstr(r->out, " 12.50 |"));
    r = program_run("results lra.jsonl --markdown");
    assert_non_null(
        strstr(r->out, "| text | lra/text | local | 16 | 1 | 20000 | 1.5 | 50.00 | 62.50"));
    assert_non_null(strstr(r->out, "| 300+40 |"));
    r = program_run("results lra.jsonl --best");
    assert_non_null(strstr(r->out, "lra/listops"));
    assert_non_null(strstr(r->out, " 300+40 ")); /* validates better than the other on text */
    assert_null(strstr(r->out, "20000"));
    program_write("lra.jsonl", "{}\n", 3);
    program_expect(1, "lra.jsonl:1: this is no run", "results lra.jsonl");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_make_and_train), cmocka_unit_test(test_black_pixels),
        cmocka_unit_test(test_papers),         cmocka_unit_test(test_show),
        cmocka_unit_test(test_released),       cmocka_unit_test(test_ladder),
        cmocka_unit_test(test_results),        cmocka_unit_test(test_marked),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
