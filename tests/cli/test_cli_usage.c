/*
 * Words, help pages and exit codes of the command line.
 */
#include "program.h"

#include <fcntl.h>
#include <htransformer.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- help -------------------------------------------------------------------------------- */

/* The pages, and the words that print them. HT_GOLDEN=write in the environment writes them anew. */
static const struct {
    const char *words, *file;
} pages[] = {
    {"", "newcomer.txt"},
    {"help", "help.txt"},
    {"help info", "info.txt"},
    {"help attend", "attend.txt"},
    {"help map", "map.txt"},
    {"help report", "report.txt"},
    {"help train", "train.txt"},
    {"help eval", "eval.txt"},
    {"help predict", "predict.txt"},
    {"help generate", "generate.txt"},
    {"help export", "export.txt"},
    {"help bench", "bench.txt"},
    {"help bench attention", "bench/attention.txt"},
    {"help bench decode", "bench/decode.txt"},
    {"help data", "data.txt"},
    {"help data make", "data/make.txt"},
    {"help data import", "data/import.txt"},
    {"help data show", "data/show.txt"},
    {"help data ladder", "data/ladder.txt"},
    {"help results", "results.txt"},
    {"help completion", "completion.txt"},
    {"help man", "man.txt"},
    {"man --markdown", "../../../docs/cli.md"},
};

/* The text with the version's number taken out, so that a release does not change the pages. */
static void without_version(char *out, size_t bytes, const char *text) {
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", HT_VERSION_MAJOR, HT_VERSION_MINOR,
             HT_VERSION_PATCH);
    const char *found = strstr(text, version);
    if (found)
        snprintf(out, bytes, "%.*s@VERSION@%s", (int)(found - text), text, found + strlen(version));
    else
        snprintf(out, bytes, "%s", text);
}

static void check_page(const char *file, const char *text) {
    static char wanted[65536];
    char path[512];
    snprintf(path, sizeof path, HELP_DIR "/%s", file);
    const char *mode = getenv("HT_GOLDEN");
    if (mode && strcmp(mode, "write") == 0) {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fputs(text, out);
        fclose(out);
    }
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    size_t n = fread(wanted, 1, sizeof wanted - 1, in);
    wanted[n] = '\0';
    fclose(in);
    assert_string_equal(text, wanted);
}

static void test_help_pages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        static char text[65536];
        const program_result *r = program_run("%s", pages[i].words);
        assert_int_equal(r->code, 0);
        assert_string_equal(r->err, "");
        without_version(text, sizeof text, r->out);
        check_page(pages[i].file, text);
    }
}

static void test_pages_fit_a_terminal(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        const program_result *r = program_run("%s", pages[i].words);
        if (strstr(pages[i].file, ".md")) continue;
        for (const char *line = r->out; *line; line += strcspn(line, "\n") + 1)
            assert_in_range(strcspn(line, "\n"), 0, 82);
    }
}

static void test_newcomer_gets_five_lines(void **state) {
    (void)state;
    int lines = 0;
    for (const char *p = program_run(" ")->out; *p; p++) lines += *p == '\n';
    assert_int_equal(lines, 5);
}

static void test_help_in_all_its_forms(void **state) {
    (void)state;
    static const char *const same[][2] = {
        {"help attend", "attend --help"},
        {"help attend", "attend --block 7 -h"}, /* help wins over what is wrong */
        {"help bench attention", "bench attention --help"},
        {"help bench", "bench --help"},
        {"help", "--help"},
        {"help", "-h"},
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        char *first = strdup(program_run("%s", same[i][0])->out);
        const program_result *r = program_run("%s", same[i][1]);
        assert_int_equal(r->code, 0);
        assert_string_equal(r->out, first);
        free(first);
    }
}

static void test_version(void **state) {
    (void)state;
    const program_result *r = program_run("--version");
    char wanted[64];
    snprintf(wanted, sizeof wanted, "htransformer %d.%d.%d\n", HT_VERSION_MAJOR, HT_VERSION_MINOR,
             HT_VERSION_PATCH);
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, wanted);
}

/* ---- wrong usage ------------------------------------------------------------------------- */

#define QKVO "attend --q q --k k --v v --out z "

static void test_wrong_usage(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"attnd", "there is no command 'attnd'; did you mean attend?"},
        {"xyzzy", "there is no command 'xyzzy'\n"},
        {"--verison", "did you mean --version?"},
        {"bench", "bench: what? attention or decode"},
        {"bench atention",
         "there is no 'atention', but attention and decode; did you mean attention?"},
        /* commands and options of other programs */
        {"embed", "there is no command 'embed': in Python htransformer.load(RUN).embed(texts)"},
        {"chat", "there is no command 'chat': htransformer generate RUN --prompt"},
        {"serve", "there is no server; htransformer predict RUN"},
        {"import", "weights of other models cannot be loaded"},
        {"help finetune", "htransformer train, with --init RUN"},
        {"train --run x --fp16", "there is no option --fp16: --dtype bf16 does that"},
        {"train --run x --block-size 64", "the context of a model is --length here"},
        {"train --run x --lr fast", "--rate: rate must be a number, got \"fast\""},
        {"train --run x --n-embd 0", "--width: width must be 1 to 65536, got 0"},
        {"generate --max_new_tokens x", "--tokens takes a whole number, got 'x'"},
        {"bench attention --save_total_limit 3", "there is no option --save_total_limit\n"},
        {"help xyzzy", "there is no command 'xyzzy'"},
        {"info now", "unexpected word 'now'"},
        {"info --jsn", "there is no option --jsn; did you mean --json?"},
        {"info --json=1", "--json takes no value, got '1'"},
        {"attend", "--q FILE is missing"},
        {"attend --q q --k k --v v", "--out FILE is missing"},
        {"attend --q", "--q needs a value"},
        {"attend --q=", "--q needs a value, got ''"},
        {QKVO "--blok 8", "there is no option --blok; did you mean --block?"},
        {QKVO "--block 7", "--block must be a multiple of 2, got 7; the nearest is 8"},
        {QKVO "--block 0", "--block must be 2 to 1048576, got 0; the nearest is 2"},
        {QKVO "--block 8x", "--block takes a whole number, got '8x'"},
        {QKVO "--block 99999999999999999999", "--block takes a whole number, got"},
        {QKVO "--query men",
         "--query must be auto, mean, first or fine, got 'men'; did you mean mean?"},
        {QKVO "--kind fulll", "did you mean full?"},
        {QKVO "--scale nan", "--scale takes a number, got 'nan'"},
        {QKVO "--scale 1,5", "--scale takes a number, got '1,5'"},
        {QKVO "--rotary0 -1", "--rotary0 must be 0 to"},
        {QKVO "--causal --query mean", "use --query first or fine"},
        {QKVO "--lse z", "--out and --lse are both z"},
        {QKVO "--threads -1", "--threads must be 0 to 4096, got -1; the nearest is 0"},
        {"bench attention --length 0", "--length must be 1 to"},
        {"bench attention --length 64,,32", "--length takes whole numbers, got ',32'"},
        {"bench attention --dtype f8", "--dtype must be f32, bf16, f64 or f16, got 'f8'"},
        {"bench attention --kv-heads 3", "--kv-heads must divide --heads 8, got 3"},
        {"bench attention --device cpu:reff", "did you mean cpu:ref?"},
        {"bench attention --causal --query mean", "--query mean in causal attention would"},
        {"bench decode --query mean", "--query mean in causal attention would"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        program_expect(2, cases[i][1], cases[i][0]);
}

static void test_errors_say_where_to_look(void **state) {
    (void)state;
    program_expect(2, "'htransformer help bench decode' lists its options.", "bench decode --x");
    program_expect(2, "'htransformer help' lists all commands.", "frob");
}

static void test_equals_sign_and_repeats(void **state) {
    (void)state;
    const program_result *r =
        program_run("bench attention --length=8 --length 4,2 --heads=1 --head-dim 4 --repeat 1");
    assert_int_equal(r->code, 0);
    const char *at = r->out, *const lengths[] = {"forward           8", "forward           4",
                                                 "forward           2"};
    for (int i = 0; i < 3; i++) {
        at = strstr(at, lengths[i]);
        assert_non_null(at);
    }
}

/* ---- what the tables make besides ---------------------------------------------------------- */

/* What bash would offer after these words, the last one unfinished. */
static void completes(const char *words, const char *wanted) {
    const program_result *r = program_run(
        "completion bash >script; bash -c '. ./script; COMP_WORDS=(%s); "
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _htransformer; echo \"${COMPREPLY[@]}\"'",
        words);
    if (r->code != 0 || strcmp(r->err, "") != 0) fail_msg("%s: %s", words, r->err);
    if (strcmp(r->out, wanted) != 0) fail_msg("%s gives %s wanted %s", words, r->out, wanted);
}

static void test_completion(void **state) {
    (void)state;
    program_write("some.npy", "x", 1);
    completes("htransformer att", "attend\n");
    completes("htransformer ben", "bench\n");
    completes("htransformer bench \"\"", "attention decode\n");
    completes("htransformer bench dec", "decode\n");
    completes("htransformer help rep", "report\n");
    completes("htransformer bench attention --ke", "--keep\n");
    completes("htransformer attend --query f", "first fine\n");
    completes("htransformer attend --q so", "some.npy\n");
    completes("htransformer train --preset small-t", "small-text\n");
    completes("htransformer train --pool mea", "mean mean_all\n");
    completes("htransformer train --pool m", "mean mean_all max\n");
    completes("htransformer report so", "some.npy\n");
    completes("htransformer report -o so", "some.npy\n");
    completes("htransformer completion \"\"", "bash\n");
    completes("htransformer eval demo --ver", "--verbose\n");
    completes("htransformer --ver", "--version\n");
}

/* Every option of every command is on the manual page, and the formatter has no complaint. */
static void test_manual_page(void **state) {
    (void)state;
    const program_result *r = program_run("man");
    assert_int_equal(r->code, 0);
    assert_int_equal(strncmp(r->out, ".TH HTRANSFORMER 1 ", 19), 0);
    assert_non_null(strstr(r->out, ".SS htransformer report RUN...\n"));
    assert_non_null(strstr(r->out, ".B \\-\\-tolerance X\n"));
    if (system("command -v groff >/dev/null") != 0) {
        print_message("no groff here: the manual page is not formatted\n");
        return;
    }
    r = program_run("man | groff -man -ww -Tascii >page.txt");
    assert_int_equal(r->code, 0);
    assert_string_equal(r->err, "");
}

static void test_loudness(void **state) {
    (void)state;
    const program_result *r = program_run("map --length 8 --block 2 --out h.svg");
    assert_non_null(strstr(r->out, "written: h.svg"));
    assert_string_equal(r->err, "");
    r = program_run("map --length 8 --block 2 --out h.svg --quiet");
    assert_null(strstr(r->out, "written"));
    r = program_run("info --verbose");
    assert_non_null(strstr(r->err, ", device cpu"));
    assert_non_null(strstr(r->err, "MB of memory at most"));
    program_expect(2, "there is no option --quite; did you mean --quiet?", "info --quite");
    program_expect(2, "--quiet takes no value, got '1'", "info --quiet=1");
}

/* ---- the environment --------------------------------------------------------------------- */

static void test_device_from_the_environment(void **state) {
    (void)state;
    setenv("HTRANSFORMER_DEVICE", "cpu:ref", 1);
    const program_result *r = program_run("info");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "device   cpu:ref, "));
    setenv("HTRANSFORMER_DEVICE", "abacus", 1);
    program_expect(1, "got \"abacus\"", "info");
    /* none is named: the first GPU if it can be used, else the CPU */
    unsetenv("HTRANSFORMER_DEVICE");
    r = program_run("info");
    int gpu = strstr(r->out, "    cuda:0 ") != NULL;
    assert_non_null(strstr(r->out, gpu ? "device   cuda:0, " : "device   cpu:"));
    r = program_run("map --length 8 --block 2 --out auto.svg --device auto --quiet");
    assert_int_equal(r->code, 0);
    setenv("HTRANSFORMER_DEVICE", "cpu", 1);
}

static void test_output_that_cannot_be_written(void **state) {
    (void)state;
    if (access("/dev/full", W_OK) != 0) skip();
    program_expect(1, "the output could not be written", "info >/dev/full");
    program_expect(1, "the output could not be written", "help attend >/dev/full");
}

/* The help page as a terminal gets it. */
static void terminal_page(char *out, size_t bytes, const char *no_color) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    pid_t child = fork();
    if (child == 0) {
        setenv("TERM", "xterm", 1);
        if (no_color)
            setenv("NO_COLOR", no_color, 1);
        else
            unsetenv("NO_COLOR");
        dup2(slave, 1);
        execl(HTRANSFORMER, HTRANSFORMER, "help", "info", (char *)NULL);
        _exit(127);
    }
    close(slave);
    size_t used = 0;
    for (ssize_t n; used < bytes - 1 && (n = read(master, out + used, bytes - 1 - used)) > 0;)
        used += (size_t)n;
    out[used] = '\0';
    close(master);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_colour_only_where_wanted(void **state) {
    (void)state;
    static char page[16384];
    terminal_page(page, sizeof page, NULL);
    assert_non_null(strstr(page, "\033[1m"));
    terminal_page(page, sizeof page, "1");
    assert_null(strchr(page, '\033'));
    assert_non_null(strstr(page, "--json"));
    assert_null(strchr(program_run("help info")->out, '\033'));
}

/* Threads of train sleep while they wait, unless the environment says how they are to. */
static void test_threads_of_train_sleep(void **state) {
    (void)state;
    static const char *const said[][2] = {
        {"", "GOMP_SPINCOUNT = '0'"},
        {"OMP_WAIT_POLICY=active ", "GOMP_SPINCOUNT = '30000000000'"},
        {"GOMP_SPINCOUNT=77 ", "GOMP_SPINCOUNT = '77'"},
    };
    char command[1024];
    const char *before = getenv("OMP_WAIT_POLICY");
    char kept[32];
    snprintf(kept, sizeof kept, "%s", before ? before : "passive");
    unsetenv("OMP_WAIT_POLICY");
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        char text[8192] = "";
        snprintf(command, sizeof command,
                 "%sOMP_DISPLAY_ENV=verbose " HTRANSFORMER " train --run /nowhere/at/all 2>&1",
                 said[i][0]);
        FILE *out = popen(command, "r");
        assert_non_null(out);
        size_t n = fread(text, 1, sizeof text - 1, out);
        text[n] = '\0';
        pclose(out);
        if (!strstr(text, "GOMP_SPINCOUNT")) skip(); /* another OpenMP */
        const char *last = NULL, *at = text;         /* what the program that stays says */
        while ((at = strstr(at, "GOMP_SPINCOUNT"))) last = at++;
        assert_memory_equal(last, said[i][1], strlen(said[i][1]));
    }
    setenv("OMP_WAIT_POLICY", kept, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help_pages),
        cmocka_unit_test(test_pages_fit_a_terminal),
        cmocka_unit_test(test_newcomer_gets_five_lines),
        cmocka_unit_test(test_help_in_all_its_forms),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_errors_say_where_to_look),
        cmocka_unit_test(test_equals_sign_and_repeats),
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_manual_page),
        cmocka_unit_test(test_loudness),
        cmocka_unit_test(test_device_from_the_environment),
        cmocka_unit_test(test_threads_of_train_sleep),
        cmocka_unit_test(test_output_that_cannot_be_written),
        cmocka_unit_test(test_colour_only_where_wanted),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
