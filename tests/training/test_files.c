/*
 * The one writer and the one way to open a file: what stands under a name is whole, and is what
 * was there before if anything fails; nothing but regular files is written, links are not followed;
 * pipes and devices do not keep a reader waiting.
 */
#include "training.h"

#include <core/crc.h>
#include <common/file.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static ht_context *cpu;

static int open_all(void **state) {
    (void)state;
    return ht_context_create(&cpu, NULL) != HT_OK || training_folder_open();
}

static int close_all(void **state) {
    (void)state;
    ht_context_destroy(cpu);
    return training_folder_close();
}

static ht_status write_text(const char *path, const char *text) {
    hti_writer w;
    ht_status status = hti_writer_open(&w, cpu, path);
    if (status == HT_OK) status = hti_writer_put(&w, text, strlen(text));
    if (status == HT_OK) status = hti_writer_commit(&w);
    hti_writer_discard(&w);
    return status;
}

static void holds(const char *path, const char *text) {
    char *bytes;
    size_t count;
    OK(cpu, hti_file_read(cpu, &bytes, &count, path, 1 << 20));
    assert_string_equal(bytes, text);
    hti_host_free(cpu, bytes);
}

/* A pipe stands for every node that is no file: a device that was replaced by a file is lost. */
static void nodes_stay(void **state) {
    (void)state;
    struct stat about;
    const char *pipe = training_path("pipe"), *link = training_path("link"),
               *file = training_path("file");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    training_write(file, "old", 3);
    assert_int_equal(symlink(file, link), 0);
    REFUSED(cpu, write_text(pipe, "new"), HT_IO, "it is not a regular file");
    REFUSED(cpu, write_text(link, "new"), HT_IO, "it is a link");
    REFUSED(cpu, write_text("/dev/null", "new"), HT_IO, "/dev/null: it is not a regular file");
    REFUSED(cpu, write_text(training_folder, "new"), HT_IO, "it is not a regular file");
    REFUSED(cpu, write_text("", "new"), HT_IO, "it is not the name of a file");
    assert_int_equal(lstat(pipe, &about), 0);
    assert_true(S_ISFIFO(about.st_mode));
    assert_int_equal(lstat(link, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    holds(file, "old");
    FILE *log;
    REFUSED(cpu, hti_file_append(cpu, &log, link), HT_IO, "it is a link");
    REFUSED(cpu, hti_file_append(cpu, &log, pipe), HT_IO, "cannot write");
}

/* What came there while the file was written is not replaced either. */
static void nodes_that_come_late(void **state) {
    (void)state;
    struct stat about;
    const char *path = training_path("late"), *victim = training_path("late victim");
    hti_writer w;
    training_write(victim, "mine", 4);
    OK(cpu, hti_writer_open(&w, cpu, path));
    OK(cpu, hti_writer_put(&w, "new", 3));
    assert_int_equal(symlink(victim, path), 0);
    REFUSED(cpu, hti_writer_commit(&w), HT_IO, "late: it is a link");
    hti_writer_discard(&w);
    assert_int_equal(lstat(path, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    holds(victim, "mine");
    unlink(path);
    OK(cpu, hti_writer_open(&w, cpu, path));
    assert_int_equal(mkfifo(path, 0600), 0);
    REFUSED(cpu, hti_writer_commit(&w), HT_IO, "late: it is not a regular file");
    hti_writer_discard(&w);
    assert_int_equal(training_temporaries(), 0);
    unlink(path);
}

/* Whatever name a temporary could be thought to have, a link there leads nowhere. */
static void planted_links(void **state) {
    (void)state;
    const char *path = training_path("aim"), *victim = training_path("victim");
    training_write(victim, "mine", 4);
    assert_int_equal(symlink(victim, training_path("aim.tmp")), 0);
    assert_int_equal(symlink(victim, training_path(".aim.httmp-000000000000")), 0);
    OK(cpu, write_text(path, "new"));
    holds(path, "new");
    holds(victim, "mine");
    unlink(training_path(".aim.httmp-000000000000"));
}

static void left_overs(void **state) {
    (void)state;
    const char *dead = training_path(".other.safetensors.httmp-0123456789ab"),
               *live = training_path(".x.httmp-ba9876543210"),
               *foreign = training_path(".x.httmp-notours00000");
    training_write(dead, "half", 4);
    training_write(live, "half", 4);
    training_write(foreign, "half", 4);
    int lock = open(live, O_RDONLY);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    OK(cpu, write_text(training_path("x"), "new"));
    assert_int_not_equal(access(dead, F_OK), 0);
    assert_int_equal(access(live, F_OK), 0); /* somebody is at work on it */
    assert_int_equal(access(foreign, F_OK), 0);
    close(lock);
    OK(cpu, write_text(training_path("x"), "newer"));
    assert_int_not_equal(access(live, F_OK), 0);
    unlink(foreign);
    assert_int_equal(training_temporaries(), 0);
}

static void modes(void **state) {
    (void)state;
    struct stat about;
    const char *path = training_path("mode");
    mode_t mask = umask(027);
    OK(cpu, write_text(path, "a"));
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    assert_int_equal(chmod(path, 0606), 0);
    OK(cpu, write_text(path, "b"));
    umask(mask);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0606);
}

/* Two processes write one name over and over, each its own letter: a reader sees whole files of one
 * or the other, and no write fails. */
static void two_writers(void **state) {
    (void)state;
    enum { BYTES = 200000, TURNS = 60 };
    const char *path = training_path("shared");
    char *text = malloc(BYTES + 1);
    pid_t child[2];
    OK(cpu, write_text(path, "a"));
    for (int c = 0; c < 2; c++) {
        child[c] = fork();
        if (child[c]) continue;
        memset(text, 'a' + c, BYTES);
        text[BYTES] = '\0';
        for (int i = 0; i < TURNS; i++)
            if (write_text(path, text) != HT_OK) _exit(1);
        _exit(0);
    }
    for (int alive = 1; alive;) {
        char *bytes;
        size_t count;
        OK(cpu, hti_file_read(cpu, &bytes, &count, path, 1 << 20));
        for (size_t i = 1; i < count; i++) assert_int_equal(bytes[i], bytes[0]);
        assert_true(count == BYTES || count == 1);
        hti_host_free(cpu, bytes);
        alive = waitpid(child[0], NULL, WNOHANG) == 0;
    }
    int how;
    assert_int_equal(waitpid(child[1], &how, 0), child[1]);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_int_equal(training_temporaries(), 0);
    free(text);
}

static ht_status write_in_pieces(const char *path, size_t piece, int pieces, int commit) {
    static char text[100000];
    hti_writer w;
    memset(text, 'x', sizeof text);
    ht_status status = hti_writer_open(&w, cpu, path);
    for (int i = 0; i < pieces && status == HT_OK; i++) status = hti_writer_put(&w, text, piece);
    if (status == HT_OK && commit) status = hti_writer_commit(&w);
    hti_writer_discard(&w);
    return status;
}

/* The limit's signal does not end the process, and is not left behind for others: not when a write
 * fails, not when what is left in a buffer is thrown away, not for a file that grows. */
static void limit_on_sizes(void **state) {
    (void)state;
    struct rlimit before, small;
    const char *path = training_path("limited");
    FILE *log;
    OK(cpu, write_text(path, "old"));
    OK(cpu, hti_file_append(cpu, &log, training_path("limited log")));
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_DFL);
    setrlimit(RLIMIT_FSIZE, &small);
    ht_status whole = write_in_pieces(path, 100000, 1, 1), pieces, given_up, grows = HT_OK;
    pieces = write_in_pieces(path, 100, 200, 1);
    given_up = write_in_pieces(path, 100, 60, 0);
    for (int i = 0; i < 1000 && grows == HT_OK; i++)
        grows = hti_file_add(cpu, log, "the log", "some words", 10);
    int filled = (int)ftell(log);
    fclose(log);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(whole, HT_IO);
    assert_int_equal(pieces, HT_IO);
    assert_int_equal(given_up, HT_OK);
    assert_int_equal(grows, HT_IO);
    assert_true(filled <= 5000);
    assert_non_null(strstr(ht_context_error(cpu), strerror(EFBIG)));
    sigset_t waiting;
    assert_int_equal(sigpending(&waiting), 0);
    assert_false(sigismember(&waiting, SIGXFSZ));
    holds(path, "old");
    assert_int_equal(training_temporaries(), 0);
}

/* What could not be finished does not get the name later, when there is room again. */
static void broken_stays(void **state) {
    (void)state;
    static char text[6000];
    struct rlimit before, small;
    const char *path = training_path("broken");
    hti_writer w;
    OK(cpu, write_text(path, "old"));
    OK(cpu, hti_writer_open(&w, cpu, path));
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 5000;
    for (size_t i = 0; i < sizeof text; i += 100) OK(cpu, hti_writer_put(&w, text, 100));
    setrlimit(RLIMIT_FSIZE, &small);
    ht_status finished = hti_writer_finish(&w);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(finished, HT_IO);
    REFUSED(cpu, hti_writer_commit(&w), HT_IO, "only a part of it");
    hti_writer_discard(&w);
    holds(path, "old");
    assert_int_equal(training_temporaries(), 0);
}

/* Nobody writes into the pipe: a reader that waited would wait for ever. */
static void inputs(void **state) {
    (void)state;
    const char *pipe = training_path("input pipe");
    char *bytes;
    size_t count;
    FILE *file;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    alarm(20);
    REFUSED(cpu, hti_file_read(cpu, &bytes, &count, pipe, 9), HT_IO, "but a pipe");
    REFUSED(cpu, hti_file_read(cpu, &bytes, &count, "/dev/zero", 9), HT_IO, "but a device");
    REFUSED(cpu, hti_file_read(cpu, &bytes, &count, training_folder, 9), HT_IO, "but a folder");
    REFUSED(cpu, hti_file_open_stream(cpu, &file, "/dev/zero"), HT_IO, "but a device");
    training_write(training_path("long"), "0123456789", 10);
    REFUSED(cpu, hti_file_read(cpu, &bytes, &count, training_path("long"), 9), HT_FORMAT,
            "has 10 bytes, more than the 9");
    /* a model, a state, a tokenizer and a checkpoint to go on from */
    ht_model *model;
    ht_tokenizer *tokenizer;
    REFUSED(cpu, ht_model_load(&model, cpu, pipe), HT_IO, "but a pipe");
    if (ht_tokenizer_open(&tokenizer, cpu, "/dev/zero") != HT_UNSUPPORTED)
        REFUSED(cpu, ht_tokenizer_open(&tokenizer, cpu, "/dev/zero"), HT_IO, "but a device");
    alarm(0);
    pid_t child = fork(); /* a stream may be a pipe */
    if (child == 0) {
        FILE *to = fopen(pipe, "wb");
        _exit(!to || fputs("words", to) < 0 || fclose(to) != 0);
    }
    char text[8] = "";
    OK(cpu, hti_file_open_stream(cpu, &file, pipe));
    assert_int_equal(fread(text, 1, sizeof text, file), 5);
    assert_string_equal(text, "words");
    fclose(file);
    waitpid(child, NULL, 0);
}

/* What was cut off on a full disk does not spoil the line that comes next. */
static void append(void **state) {
    (void)state;
    const char *path = training_path("log");
    static const char *const before[] = {"", "whole\n", "cut"}, *const after[] = {"next\n",
                                                                                  "whole\nnext\n",
                                                                                  "cut\nnext\n"};
    for (int i = 0; i < 3; i++) {
        FILE *file;
        training_write(path, before[i], strlen(before[i]));
        OK(cpu, hti_file_append(cpu, &file, path));
        fputs("next\n", file);
        fclose(file);
        holds(path, after[i]);
    }
}

/* In the folder of TMPDIR, where nobody sees it. */
static void scratch(void **state) {
    (void)state;
    FILE *file;
    char bytes[8] = "";
    setenv("TMPDIR", training_folder, 1);
    OK(cpu, hti_file_scratch(cpu, &file));
    assert_int_equal(training_temporaries(), 0);
    OK(cpu, hti_file_add(cpu, file, "scratch", "words", 5));
    rewind(file);
    assert_int_equal(fread(bytes, 1, sizeof bytes, file), 5);
    assert_string_equal(bytes, "words");
    fclose(file);
    setenv("TMPDIR", "/nowhere/at/all", 1);
    REFUSED(cpu, hti_file_scratch(cpu, &file), HT_IO, "/nowhere/at/all: no temporary file");
    assert_null(file);
    unsetenv("TMPDIR");
}

static void names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t step;
    } steps[] = {{"step-000000012.safetensors", 12},
                 {"step-0.safetensors", 0},
                 {"step-999999999999999999.safetensors", 999999999999999999},
                 {"step-99999999999999999999999.safetensors", -1},
                 {"step-9223372036854775808.safetensors", -1},
                 {"step--1.safetensors", -1},
                 {"step-+1.safetensors", -1},
                 {"step- 1.safetensors", -1},
                 {"step-.safetensors", -1},
                 {"step-1.safetensors.tmp", -1},
                 {"step-1x.safetensors", -1},
                 {"Step-1.safetensors", -1}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        assert_int_equal(hti_step_of(steps[i].name), steps[i].step);
    static const char *const inside[] = {"a", "a/b.png", "..a/b", "a/...", "./a"},
                             *const outside[] = {"",     "/etc/passwd", "..",     "../a.png",
                                                 "a/..", "a/../../b",   "a//../b"};
    for (size_t i = 0; i < 5; i++) assert_true(hti_path_inside(inside[i]));
    for (size_t i = 0; i < 7; i++) assert_false(hti_path_inside(outside[i]));
}

/* What programs get: a file is there once it is committed and not before, a finished one takes
 * nothing more, and one that is given up leaves nothing. */
static void for_programs(void **state) {
    (void)state;
    const char *path = training_path("for-programs");
    ht_writer *w = NULL;
    OK(cpu, ht_writer_create(&w, cpu, path));
    OK(cpu, ht_writer_put(w, "one ", 4));
    assert_true(fprintf(ht_writer_stream(w), "two") == 3);
    OK(cpu, ht_writer_finish(w));
    assert_int_equal(access(path, F_OK), -1);
    assert_null(ht_writer_stream(w));
    REFUSED(cpu, ht_writer_put(w, "3", 1), HT_INVALID, "the file is finished");
    REFUSED(cpu, ht_writer_finish(w), HT_INVALID, "the file is finished");
    OK(cpu, ht_writer_commit(w));
    holds(path, "one two");
    REFUSED(cpu, ht_writer_commit(w), HT_INVALID, "the file has its name");
    ht_writer_destroy(w);

    OK(cpu, ht_writer_create(&w, NULL, path));
    OK(cpu, ht_writer_put(w, "new", 3));
    ht_writer_destroy(w);
    ht_writer_destroy(NULL);
    holds(path, "one two");
    REFUSED(cpu, ht_writer_create(&w, cpu, "/nowhere/x"), HT_IO, "/nowhere/x");
    assert_null(w);
    assert_int_equal(ht_file_step("step-000000012.safetensors"), 12);
    assert_int_equal(ht_file_step("step-12.txt"), -1);
}

/* The value that all descriptions of this sum give, and pieces of any length. */
static void sums(void **state) {
    (void)state;
    unsigned char bytes[100];
    assert_int_equal(hti_crc32(0, "123456789", 9), 0xCBF43926);
    assert_int_equal(hti_crc32(0, "", 0), 0);
    for (int i = 0; i < 100; i++) bytes[i] = (unsigned char)(37 * i);
    uint32_t whole = hti_crc32(0, bytes, 100);
    for (size_t cut = 0; cut <= 100; cut++)
        assert_int_equal(hti_crc32(hti_crc32(0, bytes, cut), bytes + cut, 100 - cut), whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_stay),     cmocka_unit_test(nodes_that_come_late),
        cmocka_unit_test(planted_links),  cmocka_unit_test(left_overs),
        cmocka_unit_test(modes),          cmocka_unit_test(two_writers),
        cmocka_unit_test(limit_on_sizes), cmocka_unit_test(broken_stays),
        cmocka_unit_test(inputs),         cmocka_unit_test(append),
        cmocka_unit_test(scratch),        cmocka_unit_test(names),
        cmocka_unit_test(for_programs),   cmocka_unit_test(sums),
    };
    return cmocka_run_group_tests_name("files", tests, open_all, close_all);
}
