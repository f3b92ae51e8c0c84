/*
 * How the program behaves towards its surroundings: a terminal of any width that changes under it,
 * a pipe that breaks, Ctrl-C at any moment, a folder that cannot be written, a disk that is full.
 */
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SMALL                                                                            \
    "--layers 1 --width 16 --heads 2 --hidden 16 --head_hidden 8 --length 24 --batch 4 " \
    "--block 4 --threads 1 "
#define LISTOPS SMALL "--train_items 300 --valid_items 60 --listops_min 4 --listops_max 24 "

static void sleep_ms(int ms) {
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

static int there(const char *name) { return access(program_path(name), F_OK) == 0; }

/* ---- a terminal -------------------------------------------------------------------------- */

typedef struct session {
    int master;
    pid_t child;
    char *said; /* all of it so far */
    size_t used;
} session;

static void resize(int terminal, int columns) {
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0);
}

/* The shell's words, in a terminal of this width; settings are "NAME=value" words for env. */
static void start(session *s, int columns, const char *settings, const char *words) {
    char command[2048];
    snprintf(command, sizeof command, "cd '%s' && exec env -u NO_COLOR %s '" HTRANSFORMER "' %s",
             program_path("."), settings, words);
    *s = (session){.master = posix_openpt(O_RDWR | O_NOCTTY), .said = calloc(1, 1 << 20)};
    assert_true(s->master >= 0 && grantpt(s->master) == 0 && unlockpt(s->master) == 0);
    int slave = open(ptsname(s->master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    resize(s->master, columns);
    s->child = fork();
    if (s->child == 0) {
        setsid();
        alarm(120); /* nothing stays behind if the test fails */
        ioctl(slave, TIOCSCTTY, 0);
        for (int i = 0; i < 3; i++) dup2(slave, i);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(slave);
}

/* Reads until the words come, or the end. */
static bool wait_for(session *s, const char *words) {
    for (;;) {
        if (words && strstr(s->said, words)) return true;
        struct pollfd ready = {s->master, POLLIN, 0};
        if (poll(&ready, 1, 60000) <= 0) return false;
        ssize_t n = read(s->master, s->said + s->used, ((size_t)1 << 20) - 1 - s->used);
        if (n <= 0) return false; /* Linux: EIO when the other side is closed */
        s->used += (size_t)n;
        s->said[s->used] = '\0';
    }
}

/* The exit code, after everything was read. */
static int finish(session *s) {
    int status;
    wait_for(s, NULL);
    close(s->master);
    assert_int_equal(waitpid(s->child, &status, 0), s->child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The widest stretch between the beginnings of lines, escape codes and the second and further bytes
 * of a letter not counted. */
static int widest(const char *text) {
    int most = 0, column = 0;
    for (; *text; text++) {
        if (*text == '\033') {
            while (*text && !strchr("mJKA", *text)) text++;
            if (!*text) break;
        } else if (*text == '\r' || *text == '\n') {
            column = 0;
        } else if (((unsigned char)*text & 0xC0) != 0x80) {
            column++;
        }
        if (column > most) most = column;
    }
    return most;
}

static void test_help_on_narrow_terminals(void **state) {
    (void)state;
    static const int widths[] = {44, 60, 79, 200};
    static const char *const pages[] = {"help map", "help train", "help attend"};
    for (int w = 0; w < 4; w++)
        for (int p = 0; p < 3; p++) {
            session s;
            start(&s, widths[w], "TERM=xterm", pages[p]);
            assert_int_equal(finish(&s), 0);
            assert_non_null(strstr(s.said, "\033[1m"));
            int limit = widths[w] < 80 ? widths[w] : 80;
            if (widest(s.said) > limit)
                fail_msg("%s has %d columns of %d", pages[p], widest(s.said), limit);
            free(s.said);
        }
}

/* Tables leave out whole columns at the right, and lines of words are broken. */
static void test_tables_on_narrow_terminals(void **state) {
    (void)state;
    static const char *const tables[][3] = {
        {"bench attention --length 64 --repeat 1", "ms", "scratch"},
        {"bench decode --length 64 --repeat 1", "us/token", "smaller"},
        {"map --length 100 --block 2", "rows/cluster", "share"},
    };
    for (int w = 50; w <= 120; w += 70)
        for (int i = 0; i < 3; i++) {
            session s;
            start(&s, w, "TERM=xterm", tables[i][0]);
            assert_int_equal(finish(&s), 0);
            assert_non_null(strstr(s.said, tables[i][1]));
            assert_true((strstr(s.said, tables[i][2]) != NULL) == (w > 100));
            if (widest(s.said) > w) fail_msg("%s: %s", tables[i][0], s.said);
            free(s.said);
        }
}

static void test_live_line(void **state) {
    (void)state;
    session s;
    start(&s, 130, "TERM=xterm LC_ALL=C.UTF-8", "train --run live " LISTOPS "--steps 40");
    assert_int_equal(finish(&s), 0);
    assert_non_null(strstr(s.said, "[================] step 40/40 | 0:00 left | loss "));
    assert_non_null(strstr(s.said, " tok/s | "));
    assert_non_null(strstr(s.said, " MB"));
    assert_true(strstr(s.said, "█") && strstr(s.said, "▁")); /* the loss as a picture */
    assert_true(widest(s.said) < 130);
    free(s.said);
}

/* Without UTF-8 the picture is of plain letters; NO_COLOR takes the bold away. */
static void test_live_line_in_ascii(void **state) {
    (void)state;
    session s;
    start(&s, 130, "TERM=xterm LC_ALL=C NO_COLOR=1", "train --run ascii " LISTOPS "--steps 20");
    assert_int_equal(finish(&s), 0);
    for (const char *p = s.said; *p; p++) assert_true((unsigned char)*p < 128);
    assert_non_null(strstr(s.said, "\033[J"));
    assert_null(strstr(s.said, "\033[1m"));
    free(s.said);
}

static void test_dumb_terminals_get_lines(void **state) {
    (void)state;
    session s;
    start(&s, 80, "TERM=dumb", "train --run dumb " LISTOPS "--steps 5");
    assert_int_equal(finish(&s), 0);
    assert_null(strchr(s.said, '\033'));
    assert_non_null(strstr(s.said, "step 5/5 | loss "));
    free(s.said);
}

/* Made narrower on the way: the rows of the broken line are cleared, the new lines fit. */
static void test_resize(void **state) {
    (void)state;
    session s;
    start(&s, 120, "TERM=xterm LC_ALL=C",
          "train --run resized " LISTOPS "--steps 1000000 --eval_every 0");
    assert_true(wait_for(&s, " tok/s | ")); /* the live line is there, and it is wide */
    resize(s.master, 45);
    assert_true(wait_for(&s, "A\r\033[J")); /* up to the first row of the broken line */
    const char *after = strstr(s.said, "A\r\033[J");
    size_t seen = (size_t)(after - s.said);
    kill(s.child, SIGINT);
    assert_int_equal(finish(&s), 0);
    char *stopped = strstr(s.said, "stopped at step");
    assert_non_null(stopped);
    *stopped = '\0';
    assert_true(strstr(s.said + seen, "step ") && widest(s.said + seen) < 45);
    free(s.said);
}

/* ---- pipes and signals ------------------------------------------------------------------- */

static void test_broken_pipe(void **state) {
    (void)state;
    /* the reader is gone before anything is written: ended by SIGPIPE, as the shell knows it */
    const program_result *r = program_run("--version; bash -c '(sleep 0.2; \"" HTRANSFORMER
                                          "\" help train; echo $? >code) | :'; "
                                          "test \"$(cat code)\" = 141");
    assert_int_equal(r->code, 0);
    assert_null(strstr(r->err, "htransformer"));
    /* a run goes on and saves what it learns; the exit code says that lines were lost */
    r = program_run("--version; bash -c '(sleep 0.2; \"" HTRANSFORMER
                    "\" train --run piped " LISTOPS
                    "--steps 12 --eval_every 6; echo $? >code) | :'; cat code");
    assert_non_null(strstr(r->out, "\n1\n"));
    assert_non_null(strstr(r->err, "the output could not be written"));
    assert_true(there("piped/best.safetensors") && there("piped/step-000000012.safetensors"));
}

/* Starts the words, sends SIGINT after so long, returns the status of wait. */
static int interrupted(const char *words, int ms) {
    char command[2048];
    int status;
    snprintf(command, sizeof command, "cd '%s' && exec '" HTRANSFORMER "' %s >.out 2>.err",
             program_path("."), words);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    sleep_ms(ms);
    kill(child, SIGINT);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* Does the file end in these words? */
static bool ends(const char *name, const char *words) {
    FILE *f = fopen(program_path(name), "rb");
    char tail[16] = "";
    size_t n = strlen(words);
    if (!f) return false;
    bool good = fseek(f, -(long)n, SEEK_END) == 0 && fread(tail, 1, n, f) == n;
    fclose(f);
    return good && strcmp(tail, words) == 0;
}

/* At any moment: the file is whole or not there, and nothing else is left. */
static void test_interrupt_while_writing(void **state) {
    (void)state;
    for (int ms = 0; ms < 60; ms += 6) {
        remove(program_path("big.svg"));
        int status = interrupted("map --length 1024 --block 2 --out big.svg", ms);
        assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) ||
                    (WIFEXITED(status) && WEXITSTATUS(status) == 0));
        assert_int_equal(program_files("big.svg"), there("big.svg"));
        assert_true(!there("big.svg") || ends("big.svg", "</svg>\n"));
    }
}

/* A run that is stopped at any moment can be resumed, or has not begun. */
static void test_interrupt_while_training(void **state) {
    (void)state;
    for (int ms = 0; ms < 400; ms += 50) {
        char name[64], words[512];
        snprintf(name, sizeof name, "stopped%d", ms);
        snprintf(words, sizeof words, "train --run %s " LISTOPS "--steps 4000 --eval_every 20",
                 name);
        int status = interrupted(words, ms);
        bool saved = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        assert_true(saved || (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT));
        char config[80];
        snprintf(config, sizeof config, "%s/config.json", name);
        if (!there(config)) continue; /* it had not begun */
        const program_result *r = program_run("train --run %s --resume --steps 1 --quiet", name);
        if (r->code != 0) fail_msg("after %d ms: %s", ms, r->err);
    }
}

/* ---- places that cannot be written ------------------------------------------------------- */

/* As nobody, where we are root and permissions would not count; NULL: there is no way. */
static const char *unprivileged(void) {
    if (geteuid() != 0) return "";
    if (system("setpriv --reuid=65534 --regid=65534 --clear-groups test -x '" HTRANSFORMER
               "' 2>/dev/null") == 0)
        return "setpriv --reuid=65534 --regid=65534 --clear-groups ";
    return NULL;
}

static void test_read_only_folder(void **state) {
    (void)state;
    const char *as = unprivileged();
    if (!as) skip();
    static const char *const commands[][2] = {
        {"map --out locked/h.svg", "cannot write locked/h.svg: Permission denied"},
        {"map --out locked/h.png", "cannot write locked/h.png: Permission denied"},
        {"report rep -o locked/r.html", "cannot write locked/r.html: Permission denied"},
        {"train --run locked/run " LISTOPS, "locked/run could not be made: Permission denied"},
        {"attend --q e.npy --k e.npy --v e.npy --out locked/z.npy",
         "cannot write locked/z.npy: Permission denied"},
    };
    float eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    npy_f32("e.npy", "(1, 4, 1, 2)", eight, 8);
    assert_int_equal(program_run("train --run rep " LISTOPS "--steps 2 --quiet")->code, 0);
    assert_int_equal(chmod(program_path("."), 0755), 0);
    mkdir(program_path("locked"), 0555);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char words[1024];
        snprintf(words, sizeof words, "--version >/dev/null; %s'" HTRANSFORMER "' %s", as,
                 commands[i][0]);
        program_expect(1, commands[i][1], words);
    }
    chmod(program_path("locked"), 0755);
    assert_int_equal(program_run("--version; ls locked | wc -l | grep -x 0")->code, 0);
}

/* A limit on file sizes stands for a full disk: write answers with an error in both. */
static void test_full_disk(void **state) {
    (void)state;
    static const char *const commands[][2] = {
        {"map --length 512 --block 2 --out full.svg", "cannot write full.svg: "},
        {"map --length 512 --block 2 --out full.png", "cannot write full.png: "},
        {"report ready -o full.html", "cannot write full.html: "},
        {"train --run full --width 64 " LISTOPS "--steps 2 --quiet", "cannot write"},
    };
    assert_int_equal(program_run("train --run ready " LISTOPS "--steps 30 --quiet")->code, 0);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char words[1024];
        snprintf(words, sizeof words,
                 "--version >/dev/null; (ulimit -f 8; trap '' XFSZ; '" HTRANSFORMER "' %s)",
                 commands[i][0]);
        program_expect(1, commands[i][1], words);
    }
    assert_int_equal(
        program_files("full.svg") + program_files("full.png") + program_files("full.html"), 0);
    assert_false(there("full/best.safetensors"));
    if (access("/dev/full", W_OK) == 0) {
        program_expect(1, "the output could not be written", "map --length 8 --block 2 >/dev/full");
        program_expect(1, "the output could not be written", "man >/dev/full");
        program_expect(1, "the output could not be written", "completion bash >/dev/full");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help_on_narrow_terminals),
        cmocka_unit_test(test_tables_on_narrow_terminals),
        cmocka_unit_test(test_live_line),
        cmocka_unit_test(test_live_line_in_ascii),
        cmocka_unit_test(test_dumb_terminals_get_lines),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_broken_pipe),
        cmocka_unit_test(test_interrupt_while_writing),
        cmocka_unit_test(test_interrupt_while_training),
        cmocka_unit_test(test_read_only_folder),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
