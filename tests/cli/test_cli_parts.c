/*
 * Parts of the command line that a run of it does not show: operation counts against the
 * definition, the JSON writer on numbers that JSON does not have, a disk that is full for a while.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#include <base/count.h>
#include <base/json.h>
#include <base/save.h>

/* ---- counting ---------------------------------------------------------------------------- */

/* The level at which rows i and j meet, straight from the definition. */
static int meeting_level(int64_t i, int64_t j, int64_t block) {
    for (int level = 0;; level++) {
        int64_t size = block << level;
        if (llabs(i / size - j / size) <= 1) return level;
    }
}

/* Distinct (query, key cluster) pairs: a query is a row in fine, else a cluster of its level. */
static double count_slowly(ht_query query, int causal, int64_t block, int64_t length,
                           int only_exact) {
    double pairs = 0;
    for (int64_t i = 0; i < length; i++)
        for (int64_t j = 0; j < (causal ? i + 1 : length); j++) {
            int level = meeting_level(i, j, block);
            int64_t size = (int64_t)1 << level;
            if (only_exact && level) continue;
            /* the first row of each cluster stands for it; a query's row for itself in fine */
            int first_query = query == HT_QUERY_FINE || i % size == 0, first_key = j % size == 0;
            pairs += first_query && first_key;
        }
    return pairs;
}

static void test_counts_against_the_definition(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 100, 127, 257};
    for (int64_t block = 2; block <= 8; block += 2)
        for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
            for (int query = HT_QUERY_MEAN; query <= HT_QUERY_FINE; query++)
                for (int causal = 0; causal < 2; causal++) {
                    double got =
                        count_products(HT_HIERARCHICAL, (ht_query)query, causal, block, lengths[n]);
                    double wanted = count_slowly((ht_query)query, causal, block, lengths[n], 0);
                    assert_true(got == wanted);
                    got = count_products(HT_LOCAL, (ht_query)query, causal, block, lengths[n]);
                    assert_true(got == count_slowly((ht_query)query, causal, block, lengths[n], 1));
                }
}

/* The nominal count is what the definition gives away from the edges: 4.5*block per row. */
static void test_the_nominal_count_is_the_limit(void **state) {
    (void)state;
    double exact = count_products(HT_HIERARCHICAL, HT_QUERY_MEAN, 0, 16, 1 << 20);
    assert_true(fabs(exact / (4.5 * 16 * (1 << 20)) - 1) < 1e-3);
    ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
    desc.query = HT_QUERY_MEAN, desc.q_heads = 8, desc.head_dim = desc.value_dim = 64,
    desc.block = 16;
    assert_true(count_forward(&desc, 1, 1000) == 4.0 * 64 * 4.5 * 16 * 1000 * 8);
    desc.kind = HT_FULL;
    assert_true(count_forward(&desc, 2, 1000) == 4.0 * 64 * 1000 * 1000 * 8 * 2);
    desc.causal = 1;
    assert_true(count_forward(&desc, 2, 1000) == 4.0 * 64 * 1000 * 1000 * 8);
}

/* ---- json -------------------------------------------------------------------------------- */

static void test_json_has_no_nan(void **state) {
    (void)state;
    char text[256] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    json_writer json = {.out = out};
    json_open(&json, NULL, '{');
    json_real(&json, "a", NAN);
    json_real(&json, "b", HUGE_VAL);
    json_real(&json, "c", -0.5);
    json_text(&json, "d", "\"\\\n");
    json_text(&json, "e", NULL);
    json_open(&json, "f", '[');
    json_int(&json, NULL, -9);
    json_bool(&json, NULL, true);
    json_close(&json, ']');
    json_close(&json, '}');
    fclose(out);
    assert_string_equal(text, "{\"a\": null, \"b\": null, \"c\": -0.5, \"d\": \"\\\"\\\\\\u000a\", "
                              "\"e\": null, \"f\": [-9, true]}");
}

/* ---- files ------------------------------------------------------------------------------- */

/* What was printed in the middle did not fit, the rest would: the file is not whole. */
static void test_a_hole_is_not_a_file(void **state) {
    (void)state;
    struct rlimit before, tight;
    char folder[] = "/tmp/ht-parts-XXXXXX", path[64], piece[1 << 16] = {0};
    cli_error error = {0};
    save_file save;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/page.html", folder);
    assert_true(save_open(&save, path, &error));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    tight.rlim_cur = 8192;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    save_watch_signals(); /* the limit is an error, not a signal */
    fwrite(piece, 1, sizeof piece, save.file);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    fputs("</html>", save.file);
    assert_false(save_finish(&save, &error));
    assert_non_null(strstr(error.text, "page.html: only a part of it could be written"));
    save_discard(&save);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(rmdir(folder), 0); /* nothing is left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_against_the_definition),
        cmocka_unit_test(test_the_nominal_count_is_the_limit),
        cmocka_unit_test(test_json_has_no_nan),
        cmocka_unit_test(test_a_hole_is_not_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
