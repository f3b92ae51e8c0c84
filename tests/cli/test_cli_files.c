/*
 * Files that are not what they claim, and outputs that cannot be written: one sentence, exit code
 * 1, and never a file that is half there.
 */
#include "program.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TEMPORARY ".z.npy.httmp-"
#define ATTEND "attend --q q.npy --k k.npy --v v.npy --out z.npy"
#define GOOD "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 1, 2), }\n"

static const float eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static void write_good(void) {
    npy_raw("q.npy", GOOD, eight, sizeof eight);
    npy_raw("k.npy", GOOD, eight, sizeof eight);
    npy_raw("v.npy", GOOD, eight, sizeof eight);
    remove(program_path("z.npy"));
}

/* ---- headers ----------------------------------------------------------------------------- */

#define DICT(descr, order, shape) \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape "}"

static void test_bad_headers(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {DICT("'<i2'", "False", "(1, 4, 1, 2)"), "q.npy has dtype '<i2'; only float32"},
        {DICT("'<i4'", "False", "(1, 4, 1, 2)"), "q.npy has dtype '<i4'"},
        {DICT("'>f4'", "False", "(1, 4, 1, 2)"), "q.npy is big-endian (dtype '>f4')"},
        {DICT("'|u1'", "False", "(1, 4, 4, 2)"),
         "q.npy holds uint8; --q must be float32, float64 or float16"},
        {DICT("[('a', '<f4')]", "False", "(1, 4, 1, 2)"), "q.npy holds records with fields"},
        {DICT("'<f4'", "True", "(1, 4, 1, 2)"), "q.npy is in Fortran order"},
        {DICT("'<f4'", "maybe", "(1, 4, 1, 2)"), "expected True or False, found 'maybe"},
        {DICT("'<f4'", "False", "(1, 4, 1, -2)"), "q.npy: its header claims a negative dimension"},
        {DICT("'<f4'", "False", "(1, 4, 1, 2.0)"), "expected ',' or ')', found '.0"},
        {DICT("'<f4'", "False", "(8)"), "expected ',' in a shape of one dimension"},
        {DICT("'<f4'", "False", "[1, 4, 1, 2]"), "expected '(', found '["},
        {DICT("'<f4'", "False", "(1, 5, 1, 2)"),
         "q.npy is truncated: shape [1, 5, 1, 2] of float32 needs 40 bytes, it has 32"},
        {DICT("'<f4'", "False", "(1, 3, 1, 2)"), "q.npy has 8 bytes of something after its data"},
        {DICT("'<f4'", "False", "(4611686018427387904, 4, 1, 2)"), "more than any file can hold"},
        {DICT("'<f4'", "False", "(4611686018427387904, 1, 1, 1)"), "more than any file can hold"},
        {DICT("'<f4'", "False", "(1099511627776, 4, 1, 2)"),
         "q.npy is truncated: shape [1099511627776"},
        {DICT("'<f4'", "False", "(99999999999999999999, 1)"), "a dimension beyond 2^63"},
        {DICT("'<f4'", "False", "(1, 1, 1, 1, 1, 1, 1, 4, 2)"), "more than 8 dimensions"},
        {"{'descr': '<f4', 'shape': (1, 4, 1, 2)}", "q.npy: its header lacks 'fortran_order'"},
        {"{'descr': '<f4', 'descr': '<f4'}", "a second key 'descr'"},
        {"{'descr': '<f4', 'order': 'C'}", "unknown key 'order'"},
        {"{'descr': '<f4'", "expected ',' or '}', found ''"},
        {"", "expected '{', found ''"},
        {GOOD "x", "expected its end, found 'x'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_good();
        npy_raw("q.npy", cases[i][0], eight, sizeof eight);
        program_expect(1, cases[i][1], ATTEND);
        assert_int_equal(program_files("z.npy"), 0);
    }
}

static void test_bad_beginnings(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t count;
        const char *says;
    } cases[] = {
        {"", 0, "q.npy is not a .npy file"},
        {"PK\3\4 an archive", 15, "q.npy is not a .npy file"},
        {"\x93NUMPY", 6, "q.npy is truncated inside its header"},
        {"\x93NUMPY\1", 7, "q.npy is truncated inside its header"},
        {"\x93NUMPY\1\0\5", 9, "q.npy is truncated inside its header"},
        {"\x93NUMPY\2\0\5\0\0", 11, "q.npy is truncated inside its header"},
        {"\x93NUMPY\1\0\x76\0{", 11, "its header claims 118 bytes, the file has 11"},
        {"\x93NUMPY\2\0\xff\xff\xff\xff{", 13, "its header claims 4294967295 bytes"},
        {"\x93NUMPY\0\0\1\0{", 11, "q.npy has .npy version 0.0"},
        {"\x93NUMPY\4\0\1\0{", 11, "q.npy has .npy version 4.0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_good();
        program_write("q.npy", cases[i].bytes, cases[i].count);
        program_expect(1, cases[i].says, ATTEND);
        assert_int_equal(program_files("z.npy"), 0);
    }
}

/* A header longer than any that NumPy writes is not read, though the file holds it. */
static void test_a_header_that_is_too_long(void **state) {
    (void)state;
    static char all[80000] = "\x93NUMPY\2\0\x71\x11\1\0{"; /* 70001 bytes of header */
    memset(all + 13, ' ', sizeof all - 13);
    write_good();
    program_write("q.npy", all, sizeof all);
    program_expect(1, "q.npy has a header of 70001 bytes; at most 65536 are read", ATTEND);
}

/* Every prefix of a good file is refused. */
static void test_truncation_at_every_byte(void **state) {
    (void)state;
    char all[256];
    write_good();
    FILE *file = fopen(program_path("q.npy"), "rb");
    size_t total = fread(all, 1, sizeof all, file);
    fclose(file);
    for (size_t n = 0; n < total; n += n < 12 || n > total - 4 ? 1 : 9) {
        program_write("q.npy", all, n);
        program_expect(1, "q.npy ", ATTEND);
    }
    assert_int_equal(program_files("z.npy"), 0);
}

/* Versions 2 and 3 have a longer length field and are otherwise the same. */
static void test_versions_two_and_three(void **state) {
    (void)state;
    for (char version = 2; version <= 3; version++) {
        char all[256] = "\x93NUMPY";
        write_good();
        all[6] = version;
        all[8] = (char)strlen(GOOD);
        memcpy(all + 12, GOOD, strlen(GOOD));
        memcpy(all + 12 + strlen(GOOD), eight, sizeof eight);
        program_write("q.npy", all, 12 + strlen(GOOD) + sizeof eight);
        assert_int_equal(program_run(ATTEND)->code, 0);
        assert_int_equal(program_files("z.npy"), 1);
    }
}

static void test_other_spellings_of_a_good_header(void **state) {
    (void)state;
    static const char *const good[] = {
        "{\"shape\":(1,4,1,2),\"fortran_order\":False,\"descr\":\"<f4\"}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 4L, 1L, 2L), }    \n",
    };
    for (int i = 0; i < 2; i++) {
        write_good();
        npy_raw("q.npy", good[i], eight, sizeof eight);
        assert_int_equal(program_run(ATTEND)->code, 0);
    }
}

/* ---- files that do not fit together ------------------------------------------------------ */

static void replace(const char *name, const char *descr, const char *shape, size_t bytes) {
    static const char zeros[4096];
    char text[256];
    write_good();
    snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n", descr,
             shape);
    npy_raw(name, text, zeros, bytes);
}

static void test_shapes_and_types_that_do_not_fit(void **state) {
    (void)state;
    static const struct {
        const char *name, *descr, *shape;
        size_t bytes;
        const char *option, *says;
    } cases[] = {
        {"q.npy", "<f4", "(4, 2)", 32, "",
         "q.npy has shape [4, 2]; --q [batch, length, heads, dim]"},
        {"q.npy", "<f4", "()", 4, "", "q.npy has shape []"},
        {"q.npy", "<f4", "(1, 0, 1, 2)", 0, "", "q.npy has shape [1, 0, 1, 2]; --q"},
        {"q.npy", "<f4", "(0, 9223372036854775807, 9, 9)", 0, "", "q.npy has shape [0, 92233"},
        {"k.npy", "<f4", "(1, 2, 2, 2)", 32, "", "k.npy has shape [1, 2, 2, 2]; --k"},
        {"k.npy", "<f4", "(1, 4, 2, 2)", 64, "", "v.npy has shape [1, 4, 1, 2]; --v"},
        {"k.npy", "<f8", "(1, 4, 1, 2)", 64, "", "k.npy holds float64, but q.npy float32"},
        {"v.npy", "<f4", "(1, 3, 1, 2)", 24, "",
         "--v [batch, length, key heads, value dim] must be "
         "[1, 4, 1, *], where * is 1 or more"},
        {"m.npy", "|u1", "(4,)", 4, "--key-mask m.npy", "m.npy has shape [4]; a mask"},
        {"m.npy", "|u1", "(1, 5)", 5, "--query-mask m.npy", "must be [1, 4]\n"},
        {"m.npy", "<f4", "(1, 4)", 16, "--key-mask m.npy",
         "m.npy holds float32; a mask must be uint8"},
        {"b.npy", "<f4", "(62, 1)", 248, "--bias b.npy", "b.npy has shape [62, 1]; --bias"},
        {"b.npy", "<f8", "(63, 1)", 504, "--bias b.npy", "b.npy holds float64, but q.npy float32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char words[256];
        replace(cases[i].name, cases[i].descr, cases[i].shape, cases[i].bytes);
        snprintf(words, sizeof words, ATTEND " %s", cases[i].option);
        program_expect(1, cases[i].says, words);
        assert_int_equal(program_files("z.npy"), 0);
    }
}

static void test_the_library_has_the_last_word(void **state) {
    (void)state;
    replace("k.npy", "<f4", "(1, 4, 2, 2)", 64);
    npy_raw("v.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 2, 1), }", eight,
            32);
    program_expect(1, "kv_heads must divide q_heads", ATTEND);
    static const float wide[300];
    npy_f32("q.npy", "(1, 1, 1, 300)", wide, 300);
    npy_f32("k.npy", "(1, 1, 1, 300)", wide, 300);
    npy_f32("v.npy", "(1, 1, 1, 1)", wide, 1);
    program_expect(1, "head_dim", ATTEND);
    assert_int_equal(program_files("z.npy"), 0);
}

static void test_inputs_that_are_no_files(void **state) {
    (void)state;
    write_good();
    program_expect(1, "no.npy could not be opened: No such file",
                   "attend --q no.npy --k k --v v --out z");
    program_expect(1, ". is not a regular file", "attend --q . --k k --v v --out z");
    program_expect(1, "/dev/null is not a regular file",
                   "attend --q /dev/null --k k --v v --out z");
}

/* ---- outputs ----------------------------------------------------------------------------- */

static void test_outputs_that_cannot_be(void **state) {
    (void)state;
    write_good();
    program_expect(1, "cannot write no/z.npy: No such file",
                   "attend --q q.npy --k k.npy --v v.npy --out no/z.npy");
    program_expect(1, "cannot write q.npy/z.npy: Not a directory",
                   "attend --q q.npy --k k.npy --v v.npy --out q.npy/z.npy");
    program_expect(1, "cannot write .: it is not a regular file",
                   "attend --q q.npy --k k.npy --v v.npy --out .");
    program_expect(1, "cannot write /dev/full: it is not a regular file",
                   "attend --q q.npy --k k.npy --v v.npy --out /dev/full");
    program_expect(1, "cannot write no/lse.npy", ATTEND " --lse no/lse.npy");
    assert_int_equal(program_files("z.npy") + program_files(TEMPORARY), 0); /* neither of the two */
}

/* 64 rows of 64 numbers: 16 KiB of output */
static void write_larger(const char *first) {
    static float data[4096];
    for (int i = 0; i < 4096; i++) data[i] = (float)(i % 7);
    npy_f32("q.npy", "(1, 64, 1, 64)", data, 4096);
    npy_f32("k.npy", "(1, 64, 1, 64)", data, 4096);
    npy_f32("v.npy", "(1, 64, 1, 64)", data, 4096);
    remove(program_path("z.npy"));
    if (first) program_write("z.npy", first, strlen(first));
}

/* A limit on the size of files stands for a full disk: the write fails on the way. */
static void test_a_full_disk_leaves_nothing(void **state) {
    (void)state;
    char command[1024];
    for (int existing = 0; existing < 2; existing++) {
        write_larger(existing ? "old" : NULL);
        snprintf(command, sizeof command,
                 "cd '%s' && (ulimit -f 8; '" HTRANSFORMER "' " ATTEND " 2>.err)",
                 program_path("."));
        int status = system(command);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        program_expect(0, "", "--version");
        assert_int_equal(program_files("z.npy") + program_files(TEMPORARY), existing);
        char old[8] = "";
        FILE *file = fopen(program_path("z.npy"), "r");
        assert_int_equal(file != NULL, existing);
        if (!file) continue;
        assert_string_equal(fgets(old, sizeof old, file), "old"); /* untouched */
        fclose(file);
    }
}

/* root writes anywhere, so the child becomes nobody first */
static void test_a_directory_that_may_not_be_written(void **state) {
    (void)state;
    write_larger(NULL);
    assert_int_equal(chmod(program_path("."), 0555), 0);
    pid_t child = fork();
    if (child == 0) {
        if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
        if (chdir(program_path(".")) != 0 || !freopen("/dev/null", "w", stderr)) _exit(99);
        execl(HTRANSFORMER, HTRANSFORMER, "attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy",
              "--out", "z.npy", (char *)NULL);
        _exit(99);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod(program_path("."), 0755), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99)
        skip(); /* nobody cannot reach the program */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_int_equal(program_files("z.npy"), 0);
}

/* Starts a long attend, waits for its temporary file, sends a signal; returns how it ended. */
static int interrupt(int number) {
    static float data[1 << 20];
    for (int i = 0; i < 1 << 20; i++) data[i] = (float)(i % 5);
    npy_f32("q.npy", "(1, 16384, 1, 64)", data, 1 << 20);
    npy_f32("k.npy", "(1, 16384, 1, 64)", data, 1 << 20);
    npy_f32("v.npy", "(1, 16384, 1, 64)", data, 1 << 20);
    remove(program_path("z.npy"));
    pid_t child = fork();
    if (child == 0) {
        signal(number, SIG_DFL); /* whoever runs the tests may have it ignored */
        if (chdir(program_path(".")) != 0) _exit(99);
        execl(HTRANSFORMER, HTRANSFORMER, "attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy",
              "--out", "z.npy", "--kind", "full", "--device", "cpu:ref", (char *)NULL);
        _exit(99);
    }
    int status;
    struct timespec pause = {0, 1000 * 1000};
    while (program_files(TEMPORARY) == 0) {
        assert_int_equal(waitpid(child, &status, WNOHANG), 0); /* it must not be done yet */
        nanosleep(&pause, NULL);
    }
    pause.tv_nsec = 20 * 1000 * 1000; /* well into the work */
    nanosleep(&pause, NULL);
    assert_int_equal(kill(child, number), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_a_signal_leaves_nothing(void **state) {
    (void)state;
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        int status = interrupt(numbers[i]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == numbers[i]);
        assert_int_equal(program_files("z.npy") + program_files(TEMPORARY), 0);
    }
}

static void test_even_a_kill_leaves_no_final_name(void **state) {
    (void)state;
    int status = interrupt(SIGKILL);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_not_equal(access(program_path("z.npy"), F_OK), 0);
    assert_int_equal(program_files(TEMPORARY), 1); /* nobody was left to remove it */
    write_good();
    assert_int_equal(program_run("attend --q q.npy --k k.npy --v v.npy --out y.npy")->code, 0);
    assert_int_equal(program_files(TEMPORARY), 0); /* whoever writes here next does */
}

/* A link is refused, and a file keeps its mode; a new one has the usual mode. */
static void test_links_and_modes(void **state) {
    (void)state;
    struct stat info;
    mode_t mask = umask(022);
    write_good();
    assert_int_equal(program_run(ATTEND)->code, 0);
    assert_int_equal(stat(program_path("z.npy"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
    assert_int_equal(chmod(program_path("z.npy"), 0600), 0);
    assert_int_equal(symlink("z.npy", program_path("link.npy")), 0);
    program_expect(1, "cannot write link.npy: it is a link; name the file itself",
                   "attend --q q.npy --k k.npy --v v.npy --out link.npy");
    assert_int_equal(program_run(ATTEND)->code, 0);
    assert_int_equal(lstat(program_path("link.npy"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(stat(program_path("z.npy"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    umask(mask);
}

static void test_an_input_may_be_the_output(void **state) {
    (void)state;
    size_t count;
    write_good();
    assert_int_equal(program_run(ATTEND)->code, 0);
    float *apart = npy_data("z.npy", "<f4", "(1, 4, 1, 2)", &count);
    assert_int_equal(program_run("attend --q q.npy --k k.npy --v v.npy --out v.npy")->code, 0);
    float *same = npy_data("v.npy", "<f4", "(1, 4, 1, 2)", &count);
    assert_memory_equal(apart, same, 32);
    free(apart), free(same);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_beginnings),
        cmocka_unit_test(test_a_header_that_is_too_long),
        cmocka_unit_test(test_truncation_at_every_byte),
        cmocka_unit_test(test_versions_two_and_three),
        cmocka_unit_test(test_other_spellings_of_a_good_header),
        cmocka_unit_test(test_shapes_and_types_that_do_not_fit),
        cmocka_unit_test(test_the_library_has_the_last_word),
        cmocka_unit_test(test_inputs_that_are_no_files),
        cmocka_unit_test(test_outputs_that_cannot_be),
        cmocka_unit_test(test_a_full_disk_leaves_nothing),
        cmocka_unit_test(test_a_directory_that_may_not_be_written),
        cmocka_unit_test(test_links_and_modes),
        cmocka_unit_test(test_an_input_may_be_the_output),
        cmocka_unit_test(test_a_signal_leaves_nothing),
        cmocka_unit_test(test_even_a_kill_leaves_no_final_name), /* leaves a temporary: the last */
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
