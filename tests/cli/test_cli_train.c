/*
 * train, eval and predict as a user runs them: from files, from stdin, stopped by a signal,
 * resumed, and with everything wrong that can be.
 */
#include "program.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SMALL                                                                            \
    "--layers 1 --width 16 --heads 2 --hidden 16 --head_hidden 8 --length 24 --batch 4 " \
    "--threads 1 "
#define LISTOPS SMALL "--train_items 300 --valid_items 60 --listops_min 4 --listops_max 24 "

/* Six words of two kinds, many times: learnt in no time. */
static void write_mail(const char *name) {
    static const char *const words[] = {"0\tgood",  "1\tbad",  "0\tfine",
                                        "1\tawful", "0\tnice", "1\tugly"};
    char text[8192] = "";
    for (int i = 0; i < 120; i++) {
        strcat(text, words[i % 6]);
        strcat(text, "\n");
    }
    program_write(name, text, strlen(text));
}

static char *slurp(const char *name) {
    FILE *f = fopen(program_path(name), "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t bytes = (size_t)ftell(f);
    char *text = calloc(1, bytes + 1);
    rewind(f);
    assert_true(text && bytes > 0 && fread(text, 1, bytes, f) == bytes);
    fclose(f);
    return text;
}

static int there(const char *name) { return access(program_path(name), R_OK) == 0; }

/* Number `key` of the JSON object that the program printed. */
static double printed(const program_result *r, const char *key) {
    cJSON *root = cJSON_Parse(r->out);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    if (!cJSON_IsNumber(item)) fail_msg("no number '%s' in %s%s", key, r->out, r->err);
    double x = item->valuedouble;
    cJSON_Delete(root);
    return x;
}

static void test_labelled_lines(void **state) {
    (void)state;
    write_mail("mail.tsv");
    const program_result *r =
        program_run("train --run mail --data mail.tsv " SMALL
                    "--steps 60 --rate 0.01 --warmup 0 --dropout 0 --eval_every 30");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "step 60/60 | loss"));
    assert_non_null(strstr(r->out, "\n  kernels    cpu:"));
    assert_non_null(strstr(r->out, "tok/s"));
    assert_null(strchr(r->out, '\r')); /* no bar where there is no terminal */
    assert_true(there("mail/config.json") && there("mail/log.jsonl") &&
                there("mail/best.safetensors"));
    r = program_run("eval mail --data mail.tsv --json");
    assert_int_equal(r->code, 0);
    assert_true(printed(r, "accuracy") == 1);
    assert_true(printed(r, "accuracy_error") == 0);
    assert_true(printed(r, "targets") == 120);
    r = program_run("predict mail --text awful");
    assert_int_equal(r->code, 0);
    assert_true(strncmp(r->out, "1\t", 2) == 0);
    program_write("lines.txt", "nice\nugly\n", 10);
    r = program_run("predict mail --data lines.txt --json");
    assert_non_null(strstr(r->out, "\"line\": 1, \"label\": 0"));
    assert_non_null(strstr(r->out, "\"line\": 2, \"label\": 1"));
}

/* What comes through a pipe is kept, so that both parts and --resume have it. */
static void test_stdin(void **state) {
    (void)state;
    write_mail("mail.tsv");
    assert_int_equal(
        program_run("train --run piped --data - " SMALL "--steps 3 --quiet <mail.tsv")->code, 0);
    assert_int_equal(program_run("train --run piped --resume --steps 5 --quiet")->code, 0);
    assert_int_equal(program_run("eval piped --data - --json <mail.tsv")->code, 0);
    assert_int_equal(program_run("predict piped <mail.tsv")->code, 0);
}

/* Every line of the log is JSON with the promised keys. */
static void test_log(void **state) {
    (void)state;
    assert_int_equal(
        program_run("train --run log " LISTOPS "--steps 4 --eval_every 2 --quiet")->code, 0);
    char *text = slurp("log/log.jsonl");
    int steps = 0, evaluations = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        static const char *const keys[] = {"step",          "loss", "rate",
                                           "gradient_norm", "ms",   "tokens_per_s"};
        cJSON *root = cJSON_Parse(line);
        assert_non_null(root);
        int evaluation = cJSON_HasObjectItem(root, "valid_loss");
        for (int i = 0; i < 6 && !evaluation; i++) assert_true(cJSON_HasObjectItem(root, keys[i]));
        evaluations += evaluation;
        steps += !evaluation;
        cJSON_Delete(root);
    }
    assert_int_equal(steps, 4);
    assert_int_equal(evaluations, 2);
    free(text);
}

static void test_language(void **state) {
    (void)state;
    char text[4096] = "";
    while (strlen(text) < 4000) strcat(text, "the cat sat. ");
    program_write("prose.txt", text, strlen(text));
    const program_result *r =
        program_run("train --run prose --preset small-text --data prose.txt " SMALL
                    "--steps 80 --rate 0.01 --warmup 0 --eval_every 0");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "bits/byte"));
    r = program_run("eval prose --data prose.txt --json");
    double bits = printed(r, "bits_per_byte");
    assert_true(bits > 0 && bits < 2);
    assert_true(printed(r, "bits_per_byte_error") >= 0);
    assert_int_equal(program_run("predict prose --text 'the cat sat'")->code, 0);
}

/* What is there but cannot be opened is no reason to do without it: to take a model's tokens for
 * bytes, another checkpoint for the best, a run for none. A link to itself is such a file. */
static void test_unreadable(void **state) {
    (void)state;
    assert_int_equal(symlink("tokens.model", program_path("prose/tokens.model")), 0);
    program_expect(1, "prose/tokens.model could not be opened", "predict prose --text x");
    program_expect(1, "prose/tokens.model could not be opened",
                   "train --run prose --resume --steps 81");
    assert_int_equal(unlink(program_path("prose/tokens.model")), 0);
    assert_int_equal(unlink(program_path("prose/best.safetensors")), 0);
    assert_int_equal(symlink("best.safetensors", program_path("prose/best.safetensors")), 0);
    program_expect(1, "prose/best.safetensors could not be opened", "predict prose --text x");
    assert_int_equal(mkdir(program_path("looped"), 0700), 0);
    assert_int_equal(symlink("config.json", program_path("looped/config.json")), 0);
    program_expect(1, "looped/config.json could not be opened",
                   "train --run looped --data prose.txt --preset small-text --steps 1");
}

/* The log's lines of steps, each up to the times, which differ from run to run. Of a step that was
 * run again the later one counts, and with it what follows. */
static char *step_lines(const char *name) {
    char *text = slurp(name), *out = calloc(1, 1 << 20);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strstr(line, "valid_")) continue;
        char *times = strstr(line, ",\"ms\"");
        assert_non_null(times);
        *times = '\0';
        char step[32] = "", *again;
        memcpy(step, line, strcspn(line, ",") + 1);
        if ((again = strstr(out, step))) *again = '\0';
        strcat(strcat(out, line), "\n");
    }
    free(text);
    return out;
}

static void same_losses(const char *a, const char *b) {
    char *x = step_lines(a), *y = step_lines(b);
    assert_string_equal(x, y);
    free(x);
    free(y);
}

static void test_resume(void **state) {
    (void)state;
#define RUN LISTOPS "--eval_every 4 --dropout 0.1 --schedule constant"
    assert_int_equal(program_run("train --run whole --steps 12 " RUN)->code, 0);
    assert_int_equal(program_run("train --run parts --steps 5 --save_every 5 " RUN)->code, 0);
    assert_int_equal(program_run("train --run parts --resume --steps 12 --threads 1")->code, 0);
    same_losses("whole/log.jsonl", "parts/log.jsonl");
    program_expect(1, "parts already holds a run: --resume goes on", "train --run parts " RUN);
    program_expect(1, "nothing holds no run to go on with", "train --run nothing --resume");
    /* settings that the checkpoint does not fit are refused, and not kept */
    program_expect(1, "has width 16 and keeps it: it cannot go on with 32",
                   "train --run parts --resume --width 32 --steps 13");
    program_expect(1, "--preset starts a run", "train --run parts --resume --preset small");
    program_expect(1, "parts has --holdout 0.1 and keeps it: it cannot go on with 0.2",
                   "train --run parts --resume --holdout 0.2");
    const program_result *r = program_run("train --run parts --resume");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "nothing to do: the run is at step 12 of 12"));
}

/* The newest checkpoint cannot be read: it is said, and the run goes on from the one before it. */
static void test_resume_damaged(void **state) {
    (void)state;
    assert_int_equal(program_run("train --run hurt --steps 6 --save_every 3 " RUN)->code, 0);
    program_write("hurt/step-000000006.safetensors", "half of it", 10);
    const program_result *r = program_run("train --run hurt --resume --steps 12 --threads 1");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->err, "hurt/step-000000006.safetensors is not a safetensors file; "
                                   "going on from step 3"));
    same_losses("whole/log.jsonl", "hurt/log.jsonl");
    program_write("hurt/step-000000012.safetensors", "half of it", 10);
    program_write("hurt/step-000000009.safetensors", "half of it", 10);
    program_expect(1, "hurt/step-000000012.safetensors is not a safetensors file",
                   "train --run hurt --resume --steps 15");
    program_expect(1, "hurt/step-000000012.safetensors is not", "generate hurt --last");
}

/* run.json may come from anywhere: all who read it refuse the same. */
static void test_damaged_places(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "{\"data\": 3, \"holdout\": 0}",
                                        "{\"data\": \"\", \"holdout\": 1}",
                                        "{\"data\": \"\", \"holdout\": \"half\"}",
                                        "{\"data\": \"\", \"holdout\": -1e999}",
                                        "{\"data\": \"\", \"holdout\": 0, \"rows\": \"maybe\"}",
                                        "{\"data\": \"\", \"holdout\": 0, \"header\": [1]}",
                                        "{\"data\": \"\", \"holdout\": 0, \"skip_bad\": 7}"};
    write_mail("mail.tsv");
    assert_int_equal(
        program_run("train --run places --data mail.tsv " SMALL "--steps 1 --quiet")->code, 0);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        program_write("places/run.json", texts[i], strlen(texts[i]));
        program_expect(1, "places/run.json is damaged", "train --run places --resume --steps 2");
        /* the rows are all that these want of it */
        int rows = i < 3 || i > 6;
        int code = program_run("eval places --data mail.tsv")->code;
        assert_int_equal(code, rows);
    }
    static char name[5000] = "{\"holdout\": 0, \"data\": \"";
    memset(name + strlen(name), 'x', sizeof name - strlen(name) - 3);
    memcpy(name + sizeof name - 3, "\"}", 2);
    program_write("places/run.json", name, sizeof name - 1);
    program_expect(1, "places/run.json is damaged", "train --run places --resume --steps 2");
    /* nobody waits for a pipe */
    static const char *const parts[] = {"run.json", "log.jsonl", "config.json"};
    alarm(60);
    for (int i = 0; i < 3; i++) {
        char part[64], words[96];
        snprintf(part, sizeof part, "places/%s", parts[i]);
        snprintf(words, sizeof words, "%s is not a regular file", part);
        assert_int_equal(remove(program_path(part)), 0);
        assert_int_equal(mkfifo(program_path(part), 0600), 0);
        if (i == 0) program_expect(1, words, "eval places --data mail.tsv");
        if (i != 1) program_expect(1, words, "train --run places --resume --steps 2");
        if (i != 0) program_expect(1, words, "report places -o page.html");
        if (i != 0) continue;
        assert_int_equal(remove(program_path(part)), 0);
        program_write(part, "{\"data\": \"mail.tsv\", \"holdout\": 0.1}", 36);
    }
    alarm(0);
}

/* The run knows its data from any working directory. */
static void test_elsewhere(void **state) {
    (void)state;
    write_mail("mail.tsv");
    assert_int_equal(
        program_run("train --run moved --data mail.tsv " SMALL "--steps 2 --quiet")->code, 0);
    char command[4096];
    snprintf(command, sizeof command,
             "cd / && " HTRANSFORMER " train --run '%s' --resume --steps 3 --quiet",
             program_path("moved"));
    assert_int_equal(system(command), 0);
}

/* Two processes do not train in one folder, whether the run is old or new. */
static void test_in_use(void **state) {
    (void)state;
    assert_int_equal(program_run("train --run used " LISTOPS "--steps 2 --quiet")->code, 0);
    int folder = open(program_path("used"), O_RDONLY);
    assert_true(folder >= 0);
    assert_int_equal(flock(folder, LOCK_EX | LOCK_NB), 0); /* the program let go of it */
    program_expect(1, "used is in use: another process trains", "train --run used --resume");
    program_expect(1, "used is in use: another process trains", "train --run used");
    close(folder);
    assert_int_equal(program_run("train --run used --resume --steps 3 --quiet")->code, 0);
}

/* First guess hidden tokens, then classify with those weights. */
static void test_init(void **state) {
    (void)state;
    assert_int_equal(program_run("train --run guess --task denoise --steps 4 " LISTOPS)->code, 0);
    assert_non_null(strstr(program_run("eval guess --items 32")->out, "hidden tokens"));
    assert_null(strstr(program_run("eval guess --items 32 --json")->out, "majority"));
    assert_int_equal(program_run("train --run next --task denoise --hide 0 --causal 1 --pool last "
                                 "--steps 4 " LISTOPS)
                         ->code,
                     0);
    assert_non_null(strstr(program_run("eval next --items 32")->out, "next tokens"));
    const program_result *r = program_run("train --run from --init guess --steps 2 " LISTOPS);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, " tensors from guess/"));
    program_expect(1, "--init starts a run, --resume goes on",
                   "train --run from --init guess --resume");
    program_expect(1, "no tensor of the model's names",
                   "train --run other --init guess --preset small-listops --train_items 20");
}

/* The same with several tokens in a row; a text of any length is read. */
static void test_merge(void **state) {
    (void)state;
    assert_int_equal(program_run("train --run guess4 --task denoise --merge 4 --pool max "
                                 "--steps 4 " LISTOPS)
                         ->code,
                     0);
    assert_non_null(strstr(program_run("eval guess4 --items 32")->out, "hidden tokens"));
    assert_int_equal(
        program_run("train --run from4 --init guess4 --merge 4 --pool max --steps 2 " LISTOPS)
            ->code,
        0);
    assert_int_equal(program_run("eval from4 --items 32")->code, 0);
    assert_int_equal(program_run("predict from4 --text '[MAX 2 9 ]'")->code, 0);
    program_expect(1, "the model in it has merge 4, not 2",
                   "train --run from2 --init guess4 --merge 2 --pool max --steps 2 " LISTOPS);
    program_expect(1, "merge leaves no row for a cls vector",
                   "train --run none4 --merge 4 --pool cls --causal 0 --query mean " LISTOPS);
}

/* Sent while it trains, a signal ends it with a checkpoint; the run goes on from there. It comes
 * twice, as from timeout, which sends it to the process and to its group. */
static void test_signals(void **state) {
    static const int numbers[] = {SIGINT, SIGTERM};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char run[32], log[64];
        snprintf(run, sizeof run, "signal%d", i);
        snprintf(log, sizeof log, "%s/log.jsonl", run);
        pid_t child = fork();
        if (child == 0) {
            if (chdir(program_path(".")) != 0 || !freopen("/dev/null", "w", stdout)) _exit(99);
            execl(HTRANSFORMER, HTRANSFORMER, "train", "--run", run, "--preset", "small-listops",
                  "--steps", "1000000", "--train_items", "300", "--valid_items", "20",
                  "--eval_every", "0", "--threads", "1", (char *)NULL);
            _exit(98);
        }
        struct timespec tick = {0, 50000000}, again = {0, 300000};
        for (int wait = 0; wait < 600 && !there(log); wait++) nanosleep(&tick, NULL);
        for (int wait = 0; wait < 4; wait++) nanosleep(&tick, NULL);
        kill(child, numbers[i]);
        nanosleep(&again, NULL);
        kill(child, numbers[i]);
        int how;
        waitpid(child, &how, 0);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
        char prefix[64];
        snprintf(prefix, sizeof prefix, "eval %s --last --json", run);
        const program_result *r =
            program_run("%s", prefix); /* there is a checkpoint, and it is whole */
        assert_int_equal(r->code, 0);
    }
}

/* Lines of the log of a run that have this in them; of the last one the step. */
static int lines_with(const char *run, const char *words, long long *step) {
    char name[64];
    snprintf(name, sizeof name, "%s/log.jsonl", run);
    char *text = slurp(name);
    int count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strstr(line, words)) {
            count++;
            assert_int_equal(sscanf(line, "{\"step\":%lld", step), 1);
        }
    free(text);
    return count;
}

/* How long a run is: by epochs, by the clock, by evaluations that are no better. */
static void test_lengths(void **state) {
    (void)state;
    long long step = 0;
    write_mail("mail.tsv");
    program_expect(0, "",
                   "train --run e --data mail.tsv --holdout 0 --epochs 3 --linear no " SMALL);
    lines_with("e", "\"loss\"", &step);
    assert_int_equal(step, 3 * 120 / 4);
    program_expect(1, "give one", "train --run e2 --data mail.tsv --epochs 3 --steps 9 " SMALL);
    program_expect(
        0, "",
        "train --run m --data mail.tsv --minutes 0.02 --steps 1 --linear no --eval_every 0 " SMALL);
    int steps = lines_with("m", "\"loss\"", &step);
    assert_true(steps > 1 && steps == step);
    assert_int_equal(lines_with("m", "valid_loss", &step), 1); /* at its end */
    assert_int_equal(steps, step);
    /* weights that do not change are no better the second time */
    const program_result *r =
        program_run("train --run p --data mail.tsv --rate 0 --weight_decay 0 --dropout 0 "
                    "--patience 2 --eval_every 1 --steps 9 " SMALL);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "the run ends"));
    assert_int_equal(lines_with("p", "valid_loss", &step), 3);
    assert_true(there("p/step-000000003.safetensors"));
    /* of equals in accuracy the one with the smaller loss: all are right long before the end */
    r = program_run("train --run t --data mail.tsv --rate 0.01 --dropout 0 --eval_every 10 "
                    "--steps 80 --linear no " SMALL);
    int best = 0;
    for (const char *at = r->out; (at = strstr(at, "acc 1.000  (best so far)")); at++) best++;
    assert_true(best > 1);
}

static void test_other_words(void **state) {
    (void)state;
    write_mail("mail.tsv");
    assert_int_equal(program_run("train --run ours --data mail.tsv " SMALL
                                 "--rate 0.01 --steps 5 --warmup 2 --clip 1 --quiet")
                         ->code,
                     0);
    assert_int_equal(
        program_run(
            "train --output_dir theirs --train-file mail.tsv --num_layers 1 --hidden_size=16 "
            "--n_head 2 --intermediate_size 16 --head_hidden 8 --seq_len 24 --batch_size 4 "
            "--num_threads 1 --lr 0.01 --max_steps 5 --warmup-steps 2 --max_grad_norm 1 "
            "--quiet")
            ->code,
        0);
    char *ours = slurp("ours/config.json"), *theirs = slurp("theirs/config.json");
    assert_string_equal(ours, theirs);
    free(ours);
    free(theirs);
    same_losses("ours/log.jsonl", "theirs/log.jsonl");
}

static void test_faults(void **state) {
    (void)state;
    write_mail("mail.tsv");
    program_write("empty.tsv", "", 0);
    program_write("tabless.tsv", "0\tx\nno tab\n", 12);
    program_write("range.tsv", "5\tx\n", 4);
    program_write("few.tsv", "0\tx\n1\ty\n", 8);
    program_write("nothing.tsv", "1\t\n", 3);
    program_write("bad.json", "{\"layers\": ", 11);
    program_write("key.json", "{\"colour\": 3}", 13);
    static const struct {
        int code;
        const char *says, *words;
    } faults[] = {
        {2, "--run FOLDER is missing", "train"},
        {1, "missing.tsv could not be opened", "train --run f --data missing.tsv"},
        {1, "empty.tsv is empty", "train --run f --data empty.tsv"},
        {1, "tabless.tsv:2: there is no tab", "train --run f --data tabless.tsv"},
        {1, "range.tsv: all 1 rows have the label '5'", "train --run f --data range.tsv"},
        {1, "few.tsv has no items to validate on when 0.1 of it is held out",
         "train --run f --data few.tsv"},
        {1, "nothing.tsv:1: the text is empty", "train --run f --data nothing.tsv"},
        {1, "bad.json: the configuration is not JSON", "train --run f --config bad.json"},
        {1, "key.json: there is no key 'colour'", "train --run f --config key.json"},
        {1, "none.json could not be opened", "train --run f --config none.json"},
        {2, "--layers: layers must be 1 to 1000, got 0", "train --run f --layers 0"},
        {2, "--layers: layers must be a number, got \"many\"", "train --run f --layers many"},
        {2, "--rate: rate must be a number, got \"nan\"", "train --run f --rate nan"},
        {2, "--rate: rate must be 0 to 1000, got -0.5", "train --run f --rate -.5"},
        {2, "attention must be one of hierarchical, full, local",
         "train --run f --attention sparse"},
        {2, "there is no preset 'huge'", "train --run f --preset huge"},
        {1, "heads must divide inner", "train --run f --heads 7"},
        {2, "did you mean --layers?", "train --run f --layer 3"},
        {2, "did you mean hierarchical?", "train --run f --attention hierachical"},
        {2, "did you mean small-text?", "train --run f --preset small-txt"},
        {1, "--data is missing", "train --run f --preset text"},
        {1, "/nowhere/f could not be made", "train --run /nowhere/f"},
        {2, "RUN is missing", "eval"},
        {1, "norun could not be opened", "eval norun"},
        {1, "mail.tsv is not a safetensors file", "eval mail.tsv"},
        {1, "norun could not be opened", "predict norun --text x"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        program_expect(faults[i].code, faults[i].says, faults[i].words);
    assert_false(there("f/config.json")); /* none of them left something that looks like a run */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labelled_lines),
        cmocka_unit_test(test_stdin),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_language),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_resume_damaged),
        cmocka_unit_test(test_damaged_places),
        cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_in_use),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_other_words),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
