/*
 * report: the page's numbers against the log, and the page itself in a real browser (Chromium
 * without a window, where it is installed): it renders, the console is silent, and the picture of
 * it is not blank.
 */
#include "program.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_PNG
#include <png.h>
#endif

#define SMALL                                                                            \
    "--layers 1 --width 16 --heads 2 --hidden 16 --head_hidden 8 --length 24 --batch 4 " \
    "--block 4 --threads 1 --quiet "
#define LISTOPS SMALL "--train_items 300 --valid_items 60 --listops_min 4 --listops_max 24 "

static char *slurp(const char *name) {
    FILE *f = fopen(program_path(name), "rb");
    assert_non_null(f);
    char *text = calloc(1, 1 << 22);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 22) - 1, f);
    assert_true(n > 0);
    fclose(f);
    return text;
}

static void must(const program_result *r) {
    if (r->code != 0) fail_msg("ended with %d: %s%s", r->code, r->out, r->err);
}

/* Two classifiers and a language model, once. */
static void make_runs(void) {
    static bool made;
    char text[4001] = "";
    if (made) return;
    made = true;
    must(program_run("train --run one " LISTOPS "--steps 200 --eval_every 50"));
    must(program_run("train --run two " LISTOPS "--steps 100 --eval_every 50 --attention local"));
    while (strlen(text) < 3980) strcat(text, "the cat sat. ");
    program_write("prose.txt", text, strlen(text));
    must(program_run("train --run prose --preset small-text --data prose.txt " SMALL
                     "--steps 20 --eval_every 10"));
}

/* ---- the page as text -------------------------------------------------------------------- */

static void has(const char *page, const char *words) {
    if (!strstr(page, words)) fail_msg("the page lacks: %s", words);
}

static void test_page(void **state) {
    (void)state;
    make_runs();
    const program_result *r = program_run("report one -o one.html");
    must(r);
    assert_string_equal(r->out, "written: one.html (1 run)\n");
    char *page = slurp("one.html"), *log = slurp("one/log.jsonl"), tile[64], *last = NULL;
    /* the tile of the last step's loss is the log's */
    for (char *at = log; (at = strstr(at, "\"loss\":")); at++) last = at;
    assert_non_null(last);
    snprintf(tile, sizeof tile, "<b>%.4f</b><span>loss of the last step", strtod(last + 7, NULL));
    has(page, tile);
    static const char *const words[] = {"<!doctype html>",
                                        "prefers-color-scheme:dark",
                                        "width=device-width",
                                        ">Loss</text>",
                                        ">Accuracy, %</text>",
                                        ">Learning rate</text>",
                                        ">Norm of the gradient</text>",
                                        ">Tokens per second</text>",
                                        "best validation, step",
                                        "<span>train_items</span><span>300</span>",
                                        "</main>\n<script>",
                                        "</body></html>\n"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) has(page, words[i]);
    assert_null(strstr(page, "Comparison"));
    assert_null(strstr(page, "nan"));
    /* nothing comes from elsewhere: the only addresses are names of XML */
    for (char *at = page; (at = strstr(at, "http")); at++)
        assert_int_equal(strncmp(at, "http://www.w3.org/2000/svg", 26), 0);
    assert_null(strstr(page, "<script src"));
    free(page);
    free(log);
}

/* Every evaluation of the run is a dot, with its value. */
static void test_curves_have_the_logs_numbers(void **state) {
    (void)state;
    make_runs();
    must(program_run("report one -o one.html"));
    char *page = slurp("one.html"), *log = slurp("one/log.jsonl");
    int seen = 0;
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        cJSON *root = cJSON_Parse(line);
        const cJSON *loss = cJSON_GetObjectItem(root, "valid_loss");
        if (loss) {
            char dot[96];
            snprintf(dot, sizeof dot, "<title>validation %d: %.4g</title>",
                     cJSON_GetObjectItem(root, "step")->valueint, loss->valuedouble);
            has(page, dot);
            seen++;
        }
        cJSON_Delete(root);
    }
    assert_int_equal(seen, 4);
    free(page);
    free(log);
}

static void test_comparison_and_evaluation(void **state) {
    (void)state;
    make_runs();
    const program_result *r =
        program_run("report one two --out both.html --evaluate --items 60 --json");
    must(r);
    cJSON *root = cJSON_Parse(r->out);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "runs")), 2);
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "runs"), 0);
    assert_int_equal(cJSON_GetObjectItem(first, "steps")->valueint, 200);
    double accuracy = cJSON_GetObjectItem(first, "data_accuracy")->valuedouble;
    /* on the same 60 items eval finds the same */
    r = program_run("eval one --part valid --json");
    must(r);
    cJSON *other = cJSON_Parse(r->out);
    assert_true(fabs(cJSON_GetObjectItem(other, "accuracy")->valuedouble - accuracy) < 1e-5);
    cJSON_Delete(root);
    cJSON_Delete(other);
    char *page = slurp("both.html");
    has(page, "one and two");
    has(page, "Comparison");
    has(page, "<th class=\"n\">attention</th>"); /* differs */
    assert_null(strstr(page, "<th class=\"n\">width</th>"));
    has(page, "aria-label=\"confusion matrix\"");
    free(page);
}

static void test_language_model_and_attention(void **state) {
    (void)state;
    make_runs();
    must(program_run("report prose -o prose.html --data prose.txt --text 'the <cat> sat'"));
    char *page = slurp("prose.html");
    has(page, "Bits per token, by position");
    has(page, "the &lt;cat&gt; sat");
    has(page, "layer 0, head 1");
    has(page, "data:image/");
    free(page);
}

/* ---- what can be wrong ------------------------------------------------------------------- */

static void test_wrong(void **state) {
    (void)state;
    make_runs();
    program_expect(2, "RUN is missing", "report");
    program_expect(2, "there is no option -x", "report one -x 3");
    program_expect(2, "did you mean --evaluate?", "report one --evalute");
    program_expect(1, "nothing/config.json could not be opened", "report nothing");
    program_expect(1, "cannot write nowhere/r.html", "report one -o nowhere/r.html");
    program_write("old.html", "old", 3);
    program_expect(1, "cannot write",
                   "--version >/dev/null; (ulimit -f 1; '" HTRANSFORMER
                   "' report one -o old.html)");
    char *old = slurp("old.html");
    assert_string_equal(old, "old");
    free(old);
    assert_int_equal(program_files("old.html"), 1);
    /* a log that ends in the middle of a line, as after a crash, is read without it */
    must(program_run("--version; cp -r one torn; printf '{\"step\":201,\"lo' >>torn/log.jsonl"));
    must(program_run("report torn -o torn.html"));
    char *page = slurp("torn.html");
    has(page, "1 damaged lines of the log were left out");
    free(page);
    /* numbers that no run writes are not numbers of the page */
    static const char digits[] =
        "123456789012345678901234567890123456789012345678901234567890123456789012345";
    must(program_run("--version; cp -r one wild; for key in step loss ms tokens_per_s; do "
                     "printf '{\"%%s\":%s,\"step\":9000,\"loss\":1,\"ms\":1}\\n' $key; done "
                     ">>wild/log.jsonl",
                     digits));
    must(program_run("report wild -o wild.html --json"));
    page = slurp("wild.html");
    has(page, "1 damaged lines of the log were left out");
    assert_null(strstr(page, "nan"));
    free(page);
    must(program_run("--version; mkdir -p empty; cp one/config.json empty; : >empty/log.jsonl"));
    program_expect(1, "holds no step yet", "report empty");
}

/* A model that is gone does not cost the page. */
static void test_without_checkpoints(void **state) {
    (void)state;
    make_runs();
    must(program_run("--version; cp -r one bare; rm bare/*.safetensors"));
    const program_result *r = program_run("report bare -o bare.html --evaluate --text x");
    must(r);
    assert_non_null(strstr(r->err, "holds no checkpoint"));
    char *page = slurp("bare.html");
    has(page, "not evaluated: ");
    has(page, "no attention pictures: ");
    free(page);
}

/* ---- in a browser ------------------------------------------------------------------------ */

#ifdef HAVE_PNG
static const char *browser(void) {
    static const char *const names[] = {"chromium-headless-shell", "chromium", "chromium-browser",
                                        "google-chrome"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char command[128];
        snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", names[i]);
        if (system(command) == 0) return names[i];
    }
    return NULL;
}

/* Opens the page; leaves shot.png and what the browser said in browser.log. */
static void look(const char *name, int width, int height, bool dark) {
    char command[1024];
    snprintf(command, sizeof command,
             "cd '%s' && timeout 120 %s --headless --no-sandbox --disable-gpu --hide-scrollbars "
             "--disable-dev-shm-usage --user-data-dir=profile --enable-logging=stderr "
             "--screenshot=shot.png --window-size=%d,%d --blink-settings=preferredColorScheme=%d "
             "\"file://$PWD/%s\" >browser.log 2>&1",
             program_path("."), browser(), width, height, dark ? 0 : 1, name);
    remove(program_path("shot.png"));
    if (system(command) != 0 || access(program_path("shot.png"), R_OK) != 0) {
        char *said = slurp("browser.log");
        print_error("%s\n", said);
        free(said);
        fail_msg("the browser gave no picture");
    }
}

static bool console(void) {
    char *said = slurp("browser.log");
    bool found = strstr(said, "CONSOLE") != NULL;
    if (found) print_message("%s\n", said);
    free(said);
    return found;
}

/* Different colours in shot.png (up to 1000), and the brightness of its first pixel. */
static int colours(int *brightness) {
    png_image image = {.version = PNG_IMAGE_VERSION};
    assert_true(png_image_begin_read_from_file(&image, program_path("shot.png")));
    image.format = PNG_FORMAT_RGB;
    unsigned char *all = malloc(PNG_IMAGE_SIZE(image));
    assert_non_null(all);
    assert_true(png_image_finish_read(&image, NULL, all, 0, NULL));
    static unsigned seen[1000];
    int count = 0;
    for (size_t i = 0; i < (size_t)image.width * image.height && count < 1000; i++) {
        unsigned c = (unsigned)all[3 * i] << 16 | (unsigned)all[3 * i + 1] << 8 | all[3 * i + 2];
        int k = 0;
        while (k < count && seen[k] != c) k++;
        if (k == count) seen[count++] = c;
    }
    *brightness = all[1];
    free(all);
    return count;
}

/* The numbers under the pointer, as the page shows them: of the loss, near its right end. */
static void test_pointer(void) {
    static const char script[] =
        "<script>const svg = document.querySelector('svg.chart');\n"
        "const box = svg.getBoundingClientRect();\n"
        "svg.dispatchEvent(new PointerEvent('pointermove',\n"
        "  {clientX: box.left + box.width * 0.99, clientY: box.top + 9}));\n"
        "console.error('READ ' + svg.querySelector('.read').textContent)</script>\n";
    program_write("script.txt", script, strlen(script));
    must(program_run("--version; cat one.html script.txt >hover.html"));
    look("hover.html", 1200, 900, false);
    char *said = slurp("browser.log"), *read = strstr(said, "READ "), *log = slurp("one/log.jsonl");
    double loss = 0;
    for (char *at = log; (at = strstr(at, "\"valid_loss\":")); at++) loss = strtod(at + 13, NULL);
    assert_non_null(read);
    assert_int_equal(strncmp(read, "READ 19", 7), 0); /* the middle of the last stretch to 200 */
    read = strstr(read, "validation ");
    assert_non_null(read);
    assert_true(fabs(strtod(read + 11, NULL) - loss) < 0.01 * loss); /* to a tenth of a pixel */
    free(said);
    free(log);
}

static void test_in_a_browser(void **state) {
    (void)state;
    if (!browser()) {
        print_message("no Chromium here: the report is not looked at in a browser\n");
        skip();
    }
    int bright, dark, blank;
    /* first that the checks themselves can fail */
    program_write("bad.html", "<script>console.error('x')</script>", 35);
    look("bad.html", 300, 200, false);
    assert_true(console());
    assert_true(colours(&blank) < 3);

    make_runs();
    must(program_run("report one two prose -o all.html --evaluate --items 40"));
    look("all.html", 1200, 2000, false);
    assert_false(console());
    assert_true(colours(&bright) > 50);
    look("all.html", 1200, 2000, true);
    assert_true(colours(&dark) > 50);
    assert_true(bright > 200 && dark < 60);
    test_pointer();
    look("all.html", 390, 1500, false); /* a phone */
    assert_true(colours(&bright) > 50);
    must(program_run("map --length 64 --block 4 --out h.svg"));
    look("h.svg", 940, 720, false);
    assert_false(console());
    assert_true(colours(&bright) >= 5);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_curves_have_the_logs_numbers),
        cmocka_unit_test(test_comparison_and_evaluation),
        cmocka_unit_test(test_language_model_and_attention),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_without_checkpoints),
#ifdef HAVE_PNG
        cmocka_unit_test(test_in_a_browser),
#endif
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
