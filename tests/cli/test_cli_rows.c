/*
 * Labelled texts as people have them: trained on, evaluated and predicted by the program, with
 * their labels' own names.
 */
#include "program.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <unistd.h>

#define SMALL                                                                            \
    "--layers 1 --width 16 --heads 2 --hidden 16 --head_hidden 8 --length 24 --batch 4 " \
    "--merge 1 --threads 1 "
#define LEARN SMALL "--steps 60 --rate 0.01 --warmup 0 --dropout 0 --eval_every 30 "

enum { ITEMS = 120 };
static const char *const words[6][2] = {{"ham", "good"},   {"spam", "bad"}, {"ham", "fine"},
                                        {"eggs", "awful"}, {"ham", "nice"}, {"spam", "ugly"}};

/* The same rows: before the first, of each (label, text), and their number. */
static void write_rows(const char *name, const char *head, const char *format, int turned) {
    static char text[65536];
    strcpy(text, head);
    for (int i = 0; i < ITEMS; i++) {
        const char *const *w = words[i % 6];
        sprintf(text + strlen(text), format, w[turned], w[!turned]);
    }
    program_write(name, text, strlen(text));
}

static void write_text(const char *name, const char *text) {
    program_write(name, text, strlen(text));
}

/* The log without times. */
static char *losses(const char *name) {
    char *text = calloc(1, 1 << 20), *out = calloc(1, 1 << 20);
    FILE *f = fopen(program_path(name), "rb");
    assert_non_null(f);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *times = strstr(line, ",\"ms\"");
        if (times) *times = '\0';
        strcat(strcat(out, line), "\n");
    }
    free(text);
    return out;
}

/* The same rows in any form train the same model, to the last digit of every loss. */
static void test_same_bits(void **state) {
    (void)state;
    static const char *const names[] = {"a.tsv", "b.csv", "c.jsonl", "d.tsv.gz",  "e.semi",
                                        "-",     "g",     "h.csv",   "i.csv.zst", "j.jsonl.gz"};
    write_rows("a.tsv", "", "%s\t%s\n", 0);
    write_rows("b.csv", "\xEF\xBB\xBFtext,label\r\n", "\"%s\",%s\r\n", 1);
    write_rows("c.jsonl", "", "{\"label\": \"%s\", \"text\": \"%s\"}\n", 0);
    write_rows("d.tsv", "label\ttext\n", "%s\t%s\n", 0);
    write_rows("e.semi", "", "%s;%s\n", 0);
    write_rows("h.csv", "id,Art,Worte\n", "1,%s,%s\n", 0);
    char command[1024];
    snprintf(
        command, sizeof command,
        "cd '%s' && gzip -k d.tsv && gzip -c c.jsonl >j.jsonl.gz && "
        /* without the packer a plain file of that name is one more way to have the rows */
        "{ zstd -q b.csv -o i.csv.zst || cp b.csv i.csv.zst; } && mkdir -p g/eggs g/ham g/spam && "
        "n=100 && tail -n +2 d.tsv | while read l t; do n=$((n + 1)); printf '%%s\\n' $t > "
        "g/$l/$n; done",
        program_path("."));
    assert_int_equal(system(command), 0);
    program_write("g/ham/0", "", 0);
    char *want = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const program_result *r = program_run(
            "train --run same%d --data %s " SMALL "--steps 6 --eval_every 3 %s", (int)i, names[i],
            i == 5   ? "<c.jsonl"
            : i == 7 ? "--text_column Worte --label_column 2"
                     : "");
        if (r->code != 0) fail_msg("%s: %s", names[i], r->err);
        if (i == 6) assert_non_null(strstr(r->out, "3 of them; 121 files, 1 empty\n"));
        char log[64];
        snprintf(log, sizeof log, "same%d/log.jsonl", (int)i);
        char *got = losses(log);
        /* the folders' files come in another order: only as many */
        if (want && i != 6) assert_string_equal(got, want);
        if (want)
            free(got);
        else
            want = got;
    }
    free(want);
    const program_result *r = program_run("eval same6 --data d.tsv --json");
    assert_int_equal(r->code, 0);
}

static const cJSON *member(const cJSON *root, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    if (!item) fail_msg("there is no '%s'", key);
    return item;
}

static double number(const cJSON *root, const char *key) {
    const cJSON *item = member(root, key);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

/* Labels are shown by their names; precision, recall and F1 are those of the matrix. */
static void test_names(void **state) {
    (void)state;
    write_rows("mail.csv", "label,text\n", "%s,%s\n", 0);
    const program_result *r = program_run("train --run mail --data mail.csv " LEARN);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "csv with a header: label 'label', text 'text'; 121 lines"));
    r = program_run("predict mail --text awful");
    assert_true(strncmp(r->out, "eggs\t", 5) == 0);
    write_text("new.csv", "id,text\n1,\"bad\"\n2,\"nice\"\n");
    r = program_run("predict mail --data new.csv --json");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "\"line\": 2, \"label\": \"spam\", \"probability\": "));
    assert_non_null(strstr(r->out, "\"line\": 3, \"label\": \"ham\""));
    assert_non_null(strstr(r->out, "\"probabilities\": {\"eggs\": "));
    /* six items, two of them with a wrong label */
    const char *test = "ham\tgood\nham\tbad\nspam\tugly\nspam\tbad\neggs\tawful\neggs\tnice\n";
    write_text("test.tsv", test);
    r = program_run("eval mail --data test.tsv --json --quiet");
    assert_int_equal(r->code, 0);
    cJSON *root = cJSON_Parse(r->out);
    assert_non_null(root);
    assert_true(fabs(number(root, "accuracy") - 4.0 / 6) < 1e-6);
    assert_true(fabs(number(root, "majority") - 2.0 / 6) < 1e-6);
    const cJSON *labels = member(root, "labels");
    static const char *const name[] = {"eggs", "ham", "spam"};
    /* eggs: 1 of 1 answers, 1 of 2 items; ham: 1 of 2, 1 of 2; spam: 2 of 3, 2 of 2 */
    static const double precision[] = {1, 0.5, 2.0 / 3}, recall[] = {0.5, 0.5, 1},
                        f1[] = {2.0 / 3, 0.5, 0.8};
    static const int matrix[3][3] = {{1, 1, 0}, {0, 1, 1}, {0, 0, 2}};
    for (int i = 0; i < 3; i++) {
        const cJSON *l = cJSON_GetArrayItem(labels, i);
        assert_string_equal(cJSON_GetStringValue(member(l, "label")), name[i]);
        assert_true(fabs(number(l, "precision") - precision[i]) < 1e-6);
        assert_true(fabs(number(l, "recall") - recall[i]) < 1e-6);
        assert_true(fabs(number(l, "f1") - f1[i]) < 1e-6);
        for (int k = 0; k < 3; k++)
            assert_int_equal(
                cJSON_GetArrayItem(cJSON_GetArrayItem(member(root, "confusion"), i), k)->valueint,
                matrix[i][k]);
    }
    assert_true(fabs(number(root, "macro_f1") - (2.0 / 3 + 0.5 + 0.8) / 3) < 1e-6);
    cJSON_Delete(root);
    r = program_run("eval mail --data test.tsv");
    assert_non_null(strstr(r->out, "\nspam          2        66.67    100.00     80.00\n"));
    assert_non_null(strstr(r->out, "\nham          0        1        1\n"));
    /* the page has the names, too */
    r = program_run("report mail -o mail.html --data test.tsv --json");
    assert_int_equal(r->code, 0);
    char *page = losses("mail.html");
    assert_non_null(strstr(page, "<td>eggs</td><td class=\"n\">2</td><td class=\"n\">100.00</td>"));
    assert_non_null(strstr(page, "label ham, answer spam: 1 (50.0 %)"));
    free(page);
}

/* Three labels 0, 1, 2, as on the first page; numbers stay numbers. */
static void test_three_numbers(void **state) {
    (void)state;
    const char *text = "0\tgood\n1\tbad\n2\tawful\n0\tgood\n1\tbad\n2\tawful\n0\tgood\n1\tbad\n"
                       "2\tawful\n0\tgood\n1\tbad\n2\tawful\n0\tgood\n1\tbad\n2\tawful\n";
    write_text("three.tsv", text);
    assert_int_equal(program_run("train --run three --data three.tsv --holdout 0.2 " LEARN)->code,
                     0);
    const program_result *r = program_run("predict three --text awful --json");
    assert_non_null(strstr(r->out, "\"label\": 2, "));
    r = program_run("predict three --text bad");
    assert_true(strncmp(r->out, "1\t", 2) == 0);
    /* stars from 1 to 5 are what they are, too */
    text = "1\tbad\n5\tgood\n1\tbad\n5\tgood\n1\tbad\n5\tgood\n1\tbad\n5\tgood\n1\tbad\n5\tgood\n";
    write_text("stars.tsv", text);
    assert_int_equal(program_run("train --run stars --data stars.tsv --holdout 0 " LEARN)->code, 0);
    assert_true(strncmp(program_run("predict stars --text good")->out, "5\t", 2) == 0);
    assert_int_equal(program_run("train --run stars --resume --steps 62 --quiet")->code, 0);
    r = program_run("eval stars --data stars.tsv --items 7 --json");
    assert_non_null(strstr(r->out, "\"targets\": 7,"));
}

/* What is wrong is named; --skip_bad goes on and counts. */
static void test_bad_rows(void **state) {
    (void)state;
    write_rows("mail.csv", "label,text\n", "%s,%s\n", 0);
    write_rows("bad.csv", "label,text\nham,good,very\n", "%s,%s\n", 0);
    assert_int_equal(
        program_run("train --run known --data mail.csv --steps 2 --quiet " SMALL)->code, 0);
    write_text("new.csv", "label,text\nham,x\nbacon,y\n");
    write_text("novel.txt", "Call me Ishmael.\nSome years ago.\n");
    program_expect(1, "bad.csv:2: there are 3 columns instead of 2",
                   "train --run b --data bad.csv");
    program_expect(1,
                   "new.csv:3: the label 'bacon' is none of the 3 that are known: eggs, ham, spam",
                   "eval known --data new.csv");
    program_expect(1, "new.csv:3: the label 'bacon'",
                   "train --run b --data mail.csv --valid new.csv");
    program_expect(1, "novel.txt:1: there is no tab", "train --run b --data novel.txt");
    program_expect(1, "--preset small-text", "train --run b --data novel.txt");
    program_expect(1, "has no column 'words', but: label, text",
                   "train --run b --data mail.csv --text_column words");
    program_expect(1, "columns have no names",
                   "train --run b --data mail.csv --header no --text_column text");
    program_expect(2, "--rows must be auto, tsv, csv, jsonl or folders",
                   "train --run b --data mail.csv --rows xml");
    const program_result *r =
        program_run("train --run skipped --data bad.csv --skip_bad --steps 2 " SMALL);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "122 lines, 1 refused, the first: bad.csv:2: there are 3"));
    /* the run remembers how its data is read */
    assert_int_equal(program_run("train --run skipped --resume --steps 3 --quiet")->code, 0);
    r = program_run("eval skipped --data new.csv --json");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "\"targets\": 1,"));
    assert_non_null(strstr(r->err, "1 refused, the first: new.csv:3"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_three_numbers),
        cmocka_unit_test(test_bad_rows),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
