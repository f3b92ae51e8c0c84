/*
 * The test program: arguments, device, list of tests, failures.
 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_SKIP 77

test_env env;

/* ---- tests ------------------------------------------------------------------------------- */

static struct CMUnitTest *tests;
static size_t test_count, test_room;

/* what a test's state points to; the case comes first */
typedef struct entry {
    test_case c;
    const char *name;
} entry;

static int note_name(void **state) {
    env.running = ((entry *)*state)->name;
    return 0;
}

static int clear_pool(void **state) {
    (void)state;
    pool_clear();
    return 0;
}

/* what the list holds lives until the program ends */
static void *keep(const void *from, size_t bytes) {
    void *copy = malloc(bytes);
    if (!copy) abort();
    return memcpy(copy, from, bytes);
}

void harness_add(const char *name, CMUnitTestFunction run, const test_case *c) {
    char text[512], full[640];
    entry e = {.name = name};
    snprintf(full, sizeof full, "%s", name);
    if (c) {
        e.c = *c;
        case_print(text, sizeof text, c);
        snprintf(full, sizeof full, "%s %s", name, text);
    }
    if (test_count == test_room) {
        test_room = test_room ? 2 * test_room : 256;
        tests = realloc(tests, test_room * sizeof *tests);
        if (!tests) abort();
    }
    tests[test_count++] = (struct CMUnitTest){
        .name = keep(full, strlen(full) + 1),
        .test_func = run,
        .setup_func = note_name,
        .teardown_func = clear_pool,
        .initial_state = keep(&e, sizeof e),
    };
}

void harness_add_all(const char *name, CMUnitTestFunction run, const case_list *list) {
    const char *thin = getenv("HT_TEST_THIN");
    size_t step = thin && atoi(thin) > 1 ? (size_t)atoi(thin) : 1;
    test_case c;
    if (env.only) {
        if (strcmp(name, env.only) != 0) return;
        if (!case_parse(&c, env.only_case)) {
            fprintf(stderr, "case not understood: %s\n", env.only_case);
            exit(2);
        }
        harness_add(name, run, &c);
        return;
    }
    for (size_t i = 0; i < list->count; i += step) harness_add(name, run, &list->at[i]);
}

int harness_run(void) {
    if (test_count == 0) {
        printf("skipped: nothing here is for %s\n", env.device);
        return EXIT_SKIP;
    }
    int failed = _cmocka_run_group_tests(env.program, tests, test_count, NULL, NULL);
    for (size_t i = 0; i < test_count; i++) {
        free((void *)(uintptr_t)tests[i].name);
        free(tests[i].initial_state);
    }
    free(tests);
    return failed < EXIT_SKIP ? failed : EXIT_SKIP - 1; /* that number has a meaning */
}

/* ---- the device -------------------------------------------------------------------------- */

/* 1 if the machine has it; otherwise says why not */
static int device_present(const char *name) {
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &info) != HT_OK || strcmp(info.name, name) != 0) continue;
        if (!info.available) printf("skipped: %s is not available: %s\n", name, info.about);
        return info.available;
    }
    printf("skipped: this build has no device %s\n", name);
    return 0;
}

static ht_status open_context(ht_context **ctx, int threads) {
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = env.device;
    desc.threads = threads;
    return ht_context_create(ctx, &desc);
}

static void close_context(void *a, void *b) {
    (void)b;
    ht_context_destroy(a);
}

ht_context *harness_context(int threads) {
    ht_context *ctx;
    if (open_context(&ctx, threads) != HT_OK)
        harness_fail(NULL, "%s: %s", env.device, ht_context_error(NULL));
    pool_defer(close_context, ctx, NULL);
    return ctx;
}

int harness_supports(ht_dtype dtype) {
    ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
    desc.dtype = dtype;
    desc.q_heads = desc.head_dim = desc.max_rows = 1;
    ht_attention *plan;
    ht_status status = ht_attention_create(&plan, env.ctx, &desc);
    if (status == HT_UNSUPPORTED) {
        printf("left out: %s\n", ht_context_error(env.ctx));
        return 0;
    }
    if (status != HT_OK) {
        fprintf(stderr, "%s: %s\n", env.device, ht_context_error(env.ctx));
        exit(1);
    }
    ht_attention_destroy(plan);
    return 1;
}

int harness_main(int argc, char **argv, void (*list)(void)) {
    const char *slash = strrchr(argv[0], '/');
    env.program = slash ? slash + 1 : argv[0];
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: %s DEVICE [TEST CASE]\n", env.program);
        return 2;
    }
    env.device = argv[1];
    if (argc == 4) env.only = argv[2], env.only_case = argv[3];
    env.cuda = strncmp(env.device, "cuda", 4) == 0;
    if (!device_present(env.device)) return EXIT_SKIP;
    if (open_context(&env.ctx, 0) != HT_OK) {
        fprintf(stderr, "%s: %s\n", env.device, ht_context_error(NULL));
        return 1;
    }
    list();
    int failed = harness_run();
    ht_context_destroy(env.ctx);
    return failed;
}

/* ---- failures ---------------------------------------------------------------------------- */

void harness_fail(const test_case *c, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    fprintf(stderr, "failed: ");
    vfprintf(stderr, format, args);
    va_end(args);
    if (c) {
        case_print(text, sizeof text, c);
        fprintf(stderr, "\nrepeat: %s %s \"%s\" %s", env.program, env.device, env.running, text);
    }
    fprintf(stderr, "\n");
    _fail(__FILE__, __LINE__);
    abort(); /* not reached: cmocka jumps back */
}

void harness_ok(ht_context *ctx, ht_status status, const test_case *c) {
    if (status != HT_OK) harness_fail(c, "%s: %s", ht_status_name(status), ht_context_error(ctx));
}
