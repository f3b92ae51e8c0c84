/*
 * Rows of text as people have them: CSV by the book, headers, columns, JSON, folders; labels and
 * their numbers; what is bad, and where.
 */
#include "training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static ht_context *cpu;

static int open_all(void **state) {
    (void)state;
    return ht_context_create(&cpu, NULL) != HT_OK || training_folder_open() != 0;
}

static int close_all(void **state) {
    (void)state;
    ht_context_destroy(cpu);
    return training_folder_close();
}

/* All rows as "label|text|" and, of pairs, "text|", each with a line of its own. */
typedef struct rows {
    char all[4096];
    int64_t lines[64];
    int count;
} rows;

static int collect(void *user, const ht_row *row) {
    rows *r = user;
    size_t used = strlen(r->all);
    used += (size_t)sprintf(r->all + used, "%.*s|%.*s|", (int)row->label_bytes,
                            row->label ? row->label : "", (int)row->text_bytes[0], row->text[0]);
    if (row->text[1])
        used += (size_t)sprintf(r->all + used, "%.*s|", (int)row->text_bytes[1], row->text[1]);
    sprintf(r->all + used, "\n");
    r->lines[r->count++] = row->line;
    return 0;
}

static ht_status read_rows(const ht_rows_desc *desc, int (*each)(void *, const ht_row *),
                           void *user, ht_rows_info *info) {
    ht_rows_desc own = *desc;
    own.each = each;
    own.user = user;
    return ht_rows_read(cpu, &own, info);
}

static ht_rows_desc of_text(const char *text, ht_rows_kind kind) {
    ht_rows_desc desc = HT_ROWS_DESC_INIT;
    desc.bytes = text;
    desc.count = strlen(text);
    desc.kind = kind;
    return desc;
}

static void expect(const ht_rows_desc *desc, const char *want) {
    rows got = {0};
    OK(cpu, read_rows(desc, collect, &got, NULL));
    assert_string_equal(got.all, want);
}

static void expect_fault(const ht_rows_desc *desc, ht_status status, const char *words) {
    rows got = {0};
    REFUSED(cpu, read_rows(desc, collect, &got, NULL), status, words);
}

/* ---- CSV ---- */

static void csv(void **state) {
    (void)state;
    static const struct {
        const char *text, *rows;
    } cases[] = {
        {"0,a\n1,b\n", "0|a|\n1|b|\n"},
        {"0,a\r\n1,b\r\n", "0|a|\n1|b|\n"}, /* CRLF */
        {"0,a\n1,b", "0|a|\n1|b|\n"},       /* no last end */
        {"0,a\n1,\"b\"", "0|a|\n1|b|\n"},
        {"\xEF\xBB\xBF"
         "0,a\n1,b\n",
         "0|a|\n1|b|\n"}, /* a mark */
        {"\xEF\xBB\xBF"
         "\"label\",text\n1,b\n",
         "1|b|\n"},
        {"0,\"a, b\"\n\"1\",\"c\"\n", "0|a, b|\n1|c|\n"},
        {"0,\"say \"\"hi\"\"\"\n1,\"\"\"\"\n", "0|say \"hi\"|\n1|\"|\n"}, /* quotes in quotes */
        {"0,\"two\nlines\"\n1,\"and\r\nthree\n\n\"\n", "0|two\nlines|\n1|and\r\nthree\n\n|\n"},
        {"0,5\" disk\n1,a \"b\" c\n", "0|5\" disk|\n1|a \"b\" c|\n"}, /* not at the begin */
        {"0,a\n\n\r\n1,b\n\n", "0|a|\n1|b|\n"},                       /* blank lines */
        {"0;a, b\n1;c\n", "0|a, b|\n1|c|\n"},                         /* semicolons */
        {"0\t\"a\tb\"\n1\tc\n", "0|a\tb|\n1|c|\n"},                   /* tabs, quoted */
        {" ham ,a\nham,b\nspam,c\n", "ham|a|\nham|b|\nspam|c|\n"},    /* blanks at labels */
        {"0,a\rb\n1,c\n", "0|a\rb|\n1|c|\n"},                         /* \r inside */
        {"\"0\",\"a\"\r\n", "0|a|\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ht_rows_desc desc = of_text(cases[i].text, HT_ROWS_CSV);
        expect(&desc, cases[i].rows);
    }
}

/* Wherever a piece ends, in memory every 65,536 bytes, in a file every 131,072. */
static int check_third(void *user, const ht_row *row) {
    int *count = user;
    if (++*count == 2) {
        assert_int_equal(row->line, 2);
        assert_int_equal(row->text_bytes[0], 11);
        assert_memory_equal(row->text[0], "a \"b\"\r\n, cd", 11);
    }
    if (*count == 3) {
        assert_int_equal(row->line, 4);
        assert_int_equal(row->text_bytes[0], 1);
    }
    return 0;
}

static void pieces(void **state) {
    (void)state;
    enum { PIECE = 1 << 16 };
    static const char tail[] = "7,\"a \"\"b\"\"\r\n, cd\"\r\n8,d\r\n";
    char path[160], *text = malloc(2 * PIECE + sizeof tail);
    snprintf(path, sizeof path, "%s/pieces.csv", training_folder);
    for (size_t i = 0; i < 2 * sizeof tail; i++) {
        int file = i % 2;
        size_t fill = (size_t)(file ? 2 : 1) * PIECE - i / 2;
        ht_rows_desc desc = HT_ROWS_DESC_INIT;
        ht_rows_info info = HT_ROWS_INFO_INIT;
        int count = 0;
        memset(text, 'x', fill);
        memcpy(text, "7,", 2);
        memcpy(text + fill - 1, "\n", 1);
        memcpy(text + fill, tail, sizeof tail - 1);
        desc.bytes = text;
        desc.count = fill + sizeof tail - 1;
        desc.kind = HT_ROWS_CSV;
        if (file) {
            training_write(path, desc.bytes, desc.count);
            desc.path = path;
        }
        OK(cpu, read_rows(&desc, check_third, &count, &info));
        assert_int_equal(count, 3);
        assert_int_equal(info.rows, 3);
        assert_int_equal(info.lines, 4);
    }
    free(text);
}

static void csv_faults(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } faults[] = {
        {"0,a\n1,\"b\"c\n", "memory:2: line 2: something stands behind the quote"},
        {"0,a\n1,\"b\nb\"\"\nb\"c\n", "memory:2: line 4: something stands behind"},
        {"0,a\n1,\"b\n2,c\n", "memory:2: the quote that opens in line 2 is never closed"},
        {"0,a\n1,b,c\n", "memory:2: there are 3 columns instead of 2"},
        {"0,a\n1\n", "memory:2: there are 1 columns instead of 2"},
        {"0,a\n,b\n", "memory:2: the label is empty"},
        {"0,a\n1,\n", "memory:2: the text is empty"},
        {"0,a\n1,\"\"\n", "memory:2: the text is empty"},
        {"0,a\n\xFF,b\n", "memory:2: the label is no UTF-8"},
        {"\xFF\xFE"
         "0\0,\0",
         "is UTF-16"},
        {"PAR1 and so on", "is Parquet"},
        {"0,a\r1,b\r", "its lines end in \\r alone"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        ht_rows_desc desc = of_text(faults[i].text, HT_ROWS_CSV);
        expect_fault(&desc, HT_FORMAT, faults[i].words);
    }
    char text[600] = "0,a\n";
    memset(text + 4, 'x', 256);
    strcpy(text + 260, ",b\n");
    ht_rows_desc desc = of_text(text, HT_ROWS_CSV);
    expect_fault(&desc, HT_FORMAT, "memory:2: the label has 256 bytes");
}

/* ---- which columns, and is there a header? ---- */

static void columns(void **state) {
    (void)state;
    static const struct {
        const char *text, *text_column, *label_column;
        ht_rows_kind kind;
        ht_header header;
        const char *rows;
    } cases[] = {
        /* usual names, in any order, whatever the letters */
        {"id,Review Text,Sentiment\n1,good,pos\n2,bad,neg\n", NULL, NULL, HT_ROWS_CSV, 0,
         "pos|good|\nneg|bad|\n"},
        {"text\tlabel\ngood\tpos\nbad\tneg\n", NULL, NULL, HT_ROWS_TSV, 0, "pos|good|\nneg|bad|\n"},
        {"Source\tTarget\ngood\t1\n", NULL, NULL, HT_ROWS_TSV, 0, "1|good|\n"},
        /* a known one beside an unknown one */
        {"review,verdict\ngood,pos\nbad,neg\n", NULL, NULL, HT_ROWS_CSV, 0,
         "pos|good|\nneg|bad|\n"},
        /* names or numbers that are asked for */
        {"a,b,c\n1,x,good\n2,y,bad\n", "c", "b", HT_ROWS_CSV, 0, "x|good|\ny|bad|\n"},
        {"5,x,good\n6,x,bad\n", "3", "2", HT_ROWS_CSV, 0, "x|good|\nx|bad|\n"},
        {"x\tgood\t5\nx\tbad\t6\n", "2", "3", HT_ROWS_TSV, 0, "5|good|\n6|bad|\n"},
        {"text,body,label\na,b,0\n", "body", NULL, HT_ROWS_CSV, 0, "0|b|\n"},
        {"1,2\n0,b\n", "2", "1", HT_ROWS_CSV, HT_HEADER_YES, "0|b|\n"},
        /* no usual names: the label is nowhere else */
        {"Art\tWorte\nham\ta\nspam\tb\nham\tc\n", NULL, NULL, HT_ROWS_TSV, 0,
         "ham|a|\nspam|b|\nham|c|\n"},
        {"ham\ta\nspam\tb\nham\tc\n", NULL, NULL, HT_ROWS_TSV, 0, "ham|a|\nspam|b|\nham|c|\n"},
        {"Art\tWorte\n0\ta\n1\tb\n", NULL, NULL, HT_ROWS_TSV, 0, "0|a|\n1|b|\n"},
        /* not so where all labels differ, or the first is a number */
        {"ham\ta\nspam\tb\neggs\tc\n", NULL, NULL, HT_ROWS_TSV, 0, "ham|a|\nspam|b|\neggs|c|\n"},
        {"9\ta\n0\tb\n0\tc\n1\td\n", NULL, NULL, HT_ROWS_TSV, 0, "9|a|\n0|b|\n0|c|\n1|d|\n"},
        {"0\ttext\n1\tlabel\n", NULL, NULL, HT_ROWS_TSV, 0, "0|text|\n1|label|\n"},
        {"ham\tone\n", NULL, NULL, HT_ROWS_TSV, 0, "ham|one|\n"},
        /* said so */
        {"Art\tWorte\nham\ta\nspam\tb\nham\tc\n", NULL, NULL, HT_ROWS_TSV, HT_HEADER_NO,
         "Art|Worte|\nham|a|\nspam|b|\nham|c|\n"},
        {"ham\ta\nham\tb\n", NULL, NULL, HT_ROWS_TSV, HT_HEADER_YES, "ham|b|\n"},
        {"text,label\n0,a\n", NULL, NULL, HT_ROWS_CSV, HT_HEADER_NO, "text|label|\n0|a|\n"},
        /* the last column of a line with tabs has the rest */
        {"0\ta\tb\n1\tc\td\te\n", NULL, NULL, HT_ROWS_TSV, 0, "0|a\tb|\n1|c\td\te|\n"},
        {"label\ttext\n0\ta\tb\n", NULL, NULL, HT_ROWS_TSV, 0, "0|a\tb|\n"},
        {"-1\ta\n+1\tb\n", NULL, NULL, HT_ROWS_TSV, 0, "-1|a|\n+1|b|\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ht_rows_desc desc = of_text(cases[i].text, cases[i].kind);
        desc.text_column = cases[i].text_column;
        desc.label_column = cases[i].label_column;
        desc.header = cases[i].header;
        expect(&desc, cases[i].rows);
    }
}

static void column_faults(void **state) {
    (void)state;
    static const struct {
        const char *text, *text_column, *label_column;
        ht_rows_kind kind;
        ht_header header;
        const char *words;
    } faults[] = {
        {"a,b,c\n1,x,good\n", NULL, NULL, HT_ROWS_CSV, 0, "which column is what?"},
        {"a,b,c\n1,x,good\n", "words", NULL, HT_ROWS_CSV, 0, "has no column 'words', but: a, b, c"},
        {"1,x,good\n", "4", "1", HT_ROWS_CSV, 0, "has no column 4: it has 3: 1, x, good"},
        {"1,x,good\n", "0", "1", HT_ROWS_CSV, 0, "has no column 0"},
        {"text,label\n0,a\n", "text", NULL, HT_ROWS_CSV, HT_HEADER_NO, "columns have no names"},
        {"text,label\n0,a\n", "text", "text", HT_ROWS_CSV, 0, "must be different columns"},
        {"{\"a\":\"x\",\"b\":\"y\",\"c\":1}\n", NULL, NULL, HT_ROWS_JSONL, 0,
         "which column is what?"},
        {"{\"a\":\"x\",\"label\":1}\n", "b", NULL, HT_ROWS_JSONL, 0,
         "has no column 'b', but: a, label"},
        {"{\"a\":\"x\",\"label\":1}\n", "2", NULL, HT_ROWS_JSONL, 0, "has no column '2'"},
        {"{\"a\":\"x\"}\n", NULL, NULL, HT_ROWS_JSONL, 0, "which column is what?"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        ht_rows_desc desc = of_text(faults[i].text, faults[i].kind);
        desc.text_column = faults[i].text_column;
        desc.label_column = faults[i].label_column;
        desc.header = faults[i].header;
        expect_fault(&desc, HT_INVALID, faults[i].words);
    }
}

static void pairs(void **state) {
    (void)state;
    static const struct {
        const char *text, *text_column;
        ht_rows_kind kind;
        const char *rows;
    } cases[] = {
        {"0\ta\tb\tc\n1\td\te\n", NULL, HT_ROWS_TSV, "0|a|b\tc|\n1|d|e|\n"},
        {"0,a,b\n1,\"c,\",d\n", NULL, HT_ROWS_CSV, "0|a|b|\n1|c,|d|\n"},
        {"premise,hypothesis,label\na,b,no\n", NULL, HT_ROWS_CSV, "no|a|b|\n"},
        {"label,x,y\nno,a,b\n", "y, x", HT_ROWS_CSV, "no|b|a|\n"},
        {"{\"label\":1,\"question\":\"a\",\"answer\":\"b\"}", NULL, HT_ROWS_JSONL, "1|a|b|\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ht_rows_desc desc = of_text(cases[i].text, cases[i].kind);
        desc.texts = 2;
        desc.text_column = cases[i].text_column;
        expect(&desc, cases[i].rows);
    }
    ht_rows_desc desc = of_text("0\ta\n", HT_ROWS_TSV);
    desc.texts = 2;
    expect_fault(&desc, HT_FORMAT, "memory:1: there is no second tab");
}

static void unlabelled(void **state) {
    (void)state;
    static const struct {
        const char *text;
        ht_rows_kind kind;
        const char *rows;
    } cases[] = {
        {"text\na\nb\n", HT_ROWS_CSV, "|a|\n|b|\n"},
        {"id,text\n1,a\n2,b\n", HT_ROWS_CSV, "|a|\n|b|\n"},
        {"id1\ta\nid2\tb\n", HT_ROWS_TSV, "|a|\n|b|\n"},
        {"{\"text\":\"a\"}\n{\"id\":3,\"text\":\"b\"}\n", HT_ROWS_JSONL, "|a|\n|b|\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ht_rows_desc desc = of_text(cases[i].text, cases[i].kind);
        desc.unlabelled = 1;
        expect(&desc, cases[i].rows);
    }
}

/* ---- JSON ---- */

static void jsonl(void **state) {
    (void)state;
    ht_rows_desc desc =
        of_text("{\"text\": \"a \\\"b\\\"\\n\\tc \\u00e9 \\ud83d\\ude00\", \"label\": 1}\r\n"
                "\n  {\"label\": \"x\", \"text\": \"\\\\u0000\"}\n"
                "{\"label\": true, \"text\": \"d\", \"more\": [{}]}\n"
                "{\"label\": -2.0, \"text\": \"e\"}\n"
                "{\"label\": 0.5, \"text\": \"f\"}",
                HT_ROWS_AUTO);
    ht_rows_info info = HT_ROWS_INFO_INIT;
    rows got = {0};
    OK(cpu, read_rows(&desc, collect, &got, &info));
    assert_string_equal(got.all, "1|a \"b\"\n\tc \xC3\xA9 \xF0\x9F\x98\x80|\nx|\\u0000|\n"
                                 "true|d|\n-2|e|\n0.5|f|\n");
    assert_int_equal(info.lines, 6);
    assert_int_equal(info.empty, 1);
    assert_int_equal(got.lines[1], 3);
    assert_string_equal(info.about, "jsonl: label 'label', text 'text'");
    static const struct {
        const char *text, *words;
    } faults[] = {
        {"{\"label\":1,\"text\":\"a\"\n", "memory:1: the row is not JSON: it stops"},
        {"{\"label\":1,\"text\":\"a\"} x\n", "memory:1: the row is not JSON: it stops"},
        {"{\"label\":1,\"text\":\"a\"}\n[1]\n", "memory:2: the row is no JSON object"},
        {"{\"label\":1,\"text\":\"a\"}\n{\"label\":1}\n", "memory:2: there is no 'text'"},
        {"{\"label\":1,\"text\":\"a\"}\n{\"text\":\"a\"}\n", "memory:2: there is no 'label'"},
        {"{\"label\":1,\"text\":\"a\"}\n{\"text\":5,\"label\":1}\n",
         "memory:2: 'text' is no string"},
        {"{\"label\":1,\"text\":\"a\"}\n{\"text\":\"a\",\"label\":null}\n",
         "memory:2: 'label' is no string and no number"},
        {"{\"label\":1,\"text\":\"a\\u0000b\"}\n",
         "memory:1: there is a character with the number 0"},
        {"{\"label\":1,\"text\":\"\\ud800\"}\n", "memory:1: the row is not JSON: it stops"},
        {"[{\"label\":1,\"text\":\"a\"}]\n", "is one JSON array"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        desc = of_text(faults[i].text, HT_ROWS_JSONL);
        expect_fault(&desc, HT_FORMAT, faults[i].words);
    }
}

/* ---- what kind of file: by its name, else by its first bytes ---- */

static void kinds(void **state) {
    (void)state;
    static const struct {
        const char *name, *text, *about; /* about NULL: refused */
    } cases[] = {
        {"a.csv", "label,text\n0,a\n", "csv with a header: label 'label', text 'text'"},
        {"a.tsv", "0\ta,b\n", "tsv without a header: label in column 1, text in column 2"},
        {"a.ndjson", "{\"label\":1,\"text\":\"a\"}", "jsonl: label 'label', text 'text'"},
        {"plain", "0\ta\n", "tsv without a header: label in column 1, text in column 2"},
        {"plain", "{\"label\":1,\"text\":\"a\"}", "jsonl: label 'label', text 'text'"},
        {"plain", "label,text\n0,a\n1,b\n", "csv with a header: label 'label', text 'text'"},
        {"plain", "\"0\",\"a\"\n", "csv without a header: label in column 1, text in column 2"},
        {"plain.txt", "Call me Ishmael.\nSome years ago, never mind.\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[160];
        rows got = {0};
        ht_rows_desc desc = HT_ROWS_DESC_INIT;
        ht_rows_info info = HT_ROWS_INFO_INIT;
        snprintf(path, sizeof path, "%s/%s", training_folder, cases[i].name);
        training_write(path, cases[i].text, strlen(cases[i].text));
        desc.path = path;
        if (cases[i].about) {
            OK(cpu, read_rows(&desc, collect, &got, &info));
            assert_string_equal(info.about, cases[i].about);
        } else {
            REFUSED(cpu, read_rows(&desc, collect, &got, &info), HT_FORMAT,
                    "plain.txt:1: there is no tab");
            assert_non_null(strstr(ht_context_error(cpu), "--preset small-text"));
        }
        unlink(path);
    }
}

/* Bad rows are left out and counted; the first one is told. */
static void skipping(void **state) {
    (void)state;
    ht_rows_desc desc = of_text("0,a\n1\n1,\"b\"c\n1,\"d\"\n,e\n0,f\xFF\n", HT_ROWS_CSV);
    ht_rows_info info = HT_ROWS_INFO_INIT;
    rows got = {0};
    desc.skip_bad = 1;
    OK(cpu, read_rows(&desc, collect, &got, &info));
    assert_string_equal(got.all, "0|a|\n1|d|\n0|f\xFF|\n");
    assert_int_equal(info.rows, 3);
    assert_int_equal(info.lines, 6);
    assert_int_equal(info.refused, 3);
    assert_int_equal(info.odd, 1);
    assert_string_equal(info.refusal, "memory:2: there are 1 columns instead of 2");
}

/* The reader stops where it is told to. */
static int stop(void *user, const ht_row *row) {
    (void)row;
    return ++*(int *)user == 2;
}
static void stopping(void **state) {
    (void)state;
    ht_rows_desc desc = of_text("0,a\n1,b\n0,c\n", HT_ROWS_CSV);
    int count = 0;
    assert_int_equal(read_rows(&desc, stop, &count, NULL), HT_END);
    assert_int_equal(count, 2);
}

/* ---- sizes ---- */

static long peak_bytes(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss * 1024;
}

/* A line of a hundred million bytes, alone or as a quote that is not closed: refused in a sentence,
 * in little memory; the rows behind it are read. */
static void long_line(void **state) {
    (void)state;
    enum { PART = 1 << 20, PARTS = 100 };
    static const struct {
        const char *name, *first, *words;
    } cases[] = {
        {"long.tsv", "0\ta\n1\t", "long.tsv:2: the row is longer than 16777216 bytes"},
        {"long.csv", "0,a\n1,\"", "long.csv:2: the row is longer than 16777216 bytes; is a quote"},
        {"long.jsonl", "{\"label\":0,\"text\":\"a\"}\n{\"text\":\"",
         "long.jsonl:2: the row is longer than 16777216 bytes"},
    };
    char path[160], *part = malloc(PART);
    memset(part, 'x', PART);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, "%s/%s", training_folder, cases[i].name);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fputs(cases[i].first, f);
        for (int n = 0; n < PARTS; n++) assert_int_equal(fwrite(part, 1, PART, f), PART);
        fputs(i == 0 ? "\n1\tb\n" : i == 1 ? "\n1,b\n" : "\n{\"label\":1,\"text\":\"b\"}\n", f);
        assert_int_equal(fclose(f), 0);
        rows got = {0};
        ht_rows_desc desc = HT_ROWS_DESC_INIT;
        ht_rows_info info = HT_ROWS_INFO_INIT;
        desc.path = path;
        long before = peak_bytes();
        REFUSED(cpu, read_rows(&desc, collect, &got, &info), HT_FORMAT, cases[i].words);
        memset(&got, 0, sizeof got);
        desc.skip_bad = 1;
        OK(cpu, read_rows(&desc, collect, &got, &info));
        assert_string_equal(got.all, "0|a|\n1|b|\n");
        assert_int_equal(info.refused, 1);
#ifndef __SANITIZE_ADDRESS__
        assert_true(peak_bytes() - before < 80L << 20);
#else
        (void)before;
#endif
        unlink(path);
    }
    free(part);
}

/* ---- labels ---- */

static char path[160];

static ht_status open_rows(ht_data **out, const char *text, const char *config,
                           const ht_labels *labels) {
    ht_config *c = training_config(config);
    ht_data_desc desc = HT_DATA_DESC_INIT;
    snprintf(path, sizeof path, "%s/labels.tsv", training_folder);
    training_write(path, text, strlen(text));
    desc.config = c;
    desc.path = path;
    desc.labels = labels;
    return ht_data_open(out, cpu, &desc);
}

static void expect_labels(const char *text, const char *config, const char *names,
                          const char *targets) {
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    char got[256] = "";
    OK(cpu, open_rows(&data, text, config, NULL));
    const ht_labels *labels = ht_data_labels(data);
    for (int64_t i = 0; i < ht_labels_count(labels); i++) {
        strcat(strcat(got, i ? " " : ""), ht_labels_name(labels, i));
        assert_int_equal(ht_labels_find(labels, ht_labels_name(labels, i)), i);
    }
    assert_string_equal(got, names);
    assert_null(ht_labels_name(labels, ht_labels_count(labels)));
    assert_null(ht_labels_name(labels, -1));
    OK(cpu, ht_data_next(data, &b));
    got[0] = '\0';
    for (int64_t i = 0; i < b.sequences; i++) sprintf(got + strlen(got), "%d", b.targets[i]);
    assert_string_equal(got, targets);
    ht_data_close(data);
}

static void numbering(void **state) {
    (void)state;
    expect_labels("0\ta\n2\tb\n1\tc\n", "{}", "0 1 2", "021"); /* as on the first page */
    expect_labels("10\ta\n9\tb\n-1\tc\n10\td\n", "{}", "-1 9 10", "2102");
    expect_labels("spam\ta\nham\tb\nspam\tc\n", "{}", "ham spam", "101");
    expect_labels("b\ta\nB\tb\n\xC3\xA9\tc\nb\td\n", "{}", "B b \xC3\xA9", "1021");
    expect_labels("1.0\ta\n1\tb\n0\tc\n+1\td\n", "{}", "0 1", "1101"); /* one number, one label */
    expect_labels("1\ta\nx\tb\n10\tc\n1\td\n", "{}", "1 10 x", "0210");
    expect_labels("007\ta\n7\tb\n007\tc\n", "{}", "007 7", "010");
    expect_labels("two words \ta\n two words\tb\nx\tc\n", "{}", "two words x", "001");
    /* with classes given: numbers below it are themselves */
    expect_labels("0\ta\n2\tb\n", "{\"classes\":4}", "0 1 2 3", "02");
    expect_labels("1\ta\n3\tb\n", "{\"classes\":2}", "1 3", "01");
    ht_data *data;
    REFUSED(cpu, open_rows(&data, "1\ta\n3\tb\n", "{\"classes\":3}", NULL), HT_INVALID,
            "classes is 3, but");
    REFUSED(cpu, open_rows(&data, "x\ta\ny\tb\nz\tc\n", "{\"classes\":2}", NULL), HT_INVALID,
            "has 3 labels: x, y, z");
    /* no labels that could be told apart */
    REFUSED(cpu, open_rows(&data, "x\ta\nx\tb\n", "{}", NULL), HT_INVALID,
            "all 2 rows have the label 'x'");
    REFUSED(cpu, open_rows(&data, "a\t0\nb\t1\nc\t0\nd\t1\ne\t0\nf\t1\ng\t0\nh\t1\n", "{}", NULL),
            HT_INVALID, "each of the 8 rows has a label of its own, the first 'a'");
    REFUSED(cpu, open_rows(&data, "label\ttext\n", "{}", NULL), HT_FORMAT, "has no rows (tsv with");
    REFUSED(cpu, open_rows(&data, "\n\n", "{}", NULL), HT_FORMAT, "has no rows");
    REFUSED(cpu, open_rows(&data, "", "{}", NULL), HT_FORMAT, "labels.tsv is empty");
    REFUSED(cpu, open_rows(&data, "a\tb\nc\td\n", "{\"classes\":1}", NULL), HT_INVALID,
            "classes must be at least 2");
}

/* Other data gets the numbers of these labels; one that is new is named. */
static void known_labels(void **state) {
    (void)state;
    ht_data *train, *other;
    ht_batch b = HT_BATCH_INIT;
    OK(cpu, open_rows(&train, "eggs\ta\nham\tb\nspam\tc\neggs\td\n", "{}", NULL));
    /* the first one is alone, but known: no header */
    OK(cpu, open_rows(&other, "spam\ta\nham\tb\nham\tc\n", "{}", ht_data_labels(train)));
    OK(cpu, ht_data_next(other, &b));
    assert_int_equal(b.targets[0], 2);
    ht_data_info info = HT_DATA_INFO_INIT;
    OK(cpu, ht_data_get_info(other, &info));
    assert_int_equal(info.classes, 3);
    ht_data_close(other);
    REFUSED(cpu, open_rows(&other, "spam\ta\nbacon\tb\n", "{}", ht_data_labels(train)), HT_FORMAT,
            "labels.tsv:2: the label 'bacon' is none of the 3 that are known: eggs, ham, spam");
    ht_data_close(train);
}

/* Ten thousand labels keep to their texts. */
static void many_labels(void **state) {
    (void)state;
    enum { CLASSES = 10000 };
    char *text = malloc(2 * CLASSES * 24), *at = text;
    for (int i = 0; i < 2 * CLASSES; i++)
        at += sprintf(at, "c%05d\t%05d\n", i * 7919 % CLASSES, i * 7919 % CLASSES);
    ht_data *data;
    ht_batch b = HT_BATCH_INIT;
    OK(cpu, open_rows(&data, text, "{\"batch\":20000,\"length\":8}", NULL));
    free(text);
    assert_int_equal(ht_labels_count(ht_data_labels(data)), CLASSES);
    OK(cpu, ht_data_next(data, &b));
    for (int i = 0; i < 2 * CLASSES; i++) {
        int number = 0;
        for (int k = 0; k < 5; k++) number = 10 * number + b.tokens[5 * i + k] - 1 - '0';
        assert_int_equal(b.targets[i], number);
    }
    ht_data_close(data);
}

/* More labels than any model takes are told as such, and not made room for. */
static void too_many_labels(void **state) {
    (void)state;
    enum { CLASSES = 65537 };
    char *text = malloc(2 * CLASSES * 16), *at = text;
    ht_data *data;
    for (int i = 0; i < 2 * CLASSES; i++) at += sprintf(at, "c%05d\tx\n", i % CLASSES);
    REFUSED(cpu, open_rows(&data, text, "{\"length\":8}", NULL), HT_UNSUPPORTED,
            "has 65537 labels; at most 65536 are supported");
    free(text);
}

/* Held out are the same items with and without a header, a blank line, a row that is skipped in
 * neither or both. */
static void parts(void **state) {
    (void)state;
    char plain[2048] = "", dressed[2048] = "label\ttext\n\n";
    for (int i = 0; i < 40; i++) {
        sprintf(plain + strlen(plain), "%d\t%c\n", i % 2, 'A' + i);
        sprintf(dressed + strlen(dressed), "%d\t%c\n", i % 2, 'A' + i);
    }
    const char *texts[] = {plain, dressed};
    int32_t tokens[2][40];
    int64_t items[2];
    for (int i = 0; i < 2; i++) {
        ht_config *c = training_config("{\"batch\":40}");
        ht_data_desc desc = HT_DATA_DESC_INIT;
        ht_data *data;
        ht_batch b = HT_BATCH_INIT;
        training_write(path, texts[i], strlen(texts[i]));
        desc.config = c;
        desc.path = path;
        desc.part = HT_PART_VALID;
        desc.holdout = 0.3;
        OK(cpu, ht_data_open(&data, cpu, &desc));
        OK(cpu, ht_data_next(data, &b));
        items[i] = b.sequences;
        memcpy(tokens[i], b.tokens, sizeof(int32_t) * (size_t)b.sequences);
        ht_data_close(data);
    }
    assert_int_equal(items[0], items[1]);
    assert_in_range(items[0], 4, 20);
    assert_memory_equal(tokens[0], tokens[1], sizeof(int32_t) * (size_t)items[0]);
}

static void same_labels(const ht_labels *a, const ht_labels *b) {
    assert_int_equal(ht_labels_count(a), ht_labels_count(b));
    for (int64_t i = 0; i < ht_labels_count(a); i++)
        assert_string_equal(ht_labels_name(a, i), ht_labels_name(b, i));
}

static void same_data(ht_data *a, ht_data *b) {
    ht_batch x = HT_BATCH_INIT, y = HT_BATCH_INIT;
    ht_data_info of_a = HT_DATA_INFO_INIT, of_b = HT_DATA_INFO_INIT;
    ht_rows_info read[2] = {HT_ROWS_INFO_INIT, HT_ROWS_INFO_INIT};
    OK(cpu, ht_data_get_info(a, &of_a));
    OK(cpu, ht_data_get_info(b, &of_b));
    assert_memory_equal(&of_a, &of_b, sizeof of_a);
    OK(cpu, ht_data_get_rows(a, &read[0]));
    OK(cpu, ht_data_get_rows(b, &read[1]));
    assert_int_equal(read[0].rows, read[1].rows);
    assert_string_equal(read[0].about, read[1].about);
    same_labels(ht_data_labels(a), ht_data_labels(b));
    for (int64_t i = 0; i < of_a.items; i++) {
        size_t bytes[2];
        const char *texts[] = {ht_data_text(a, i, &bytes[0]), ht_data_text(b, i, &bytes[1])};
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(texts[0], texts[1], bytes[0]);
    }
    OK(cpu, ht_data_next(a, &x));
    OK(cpu, ht_data_next(b, &y));
    assert_int_equal(x.sequences, y.sequences);
    assert_memory_equal(x.cu_seqlens, y.cu_seqlens, sizeof(int32_t) * (size_t)(x.sequences + 1));
    assert_memory_equal(x.targets, y.targets, sizeof(int32_t) * (size_t)x.sequences);
    assert_memory_equal(x.tokens, y.tokens, sizeof(int32_t) * (size_t)x.cu_seqlens[x.sequences]);
}

/* One reading gives both parts; they are those of two. A label may be in one of them alone. */
static void both_parts(void **state) {
    (void)state;
    ht_data *both[2], *one[2];
    ht_data_desc desc = HT_DATA_DESC_INIT;
    char text[4096] = "";
    for (int i = 0; i < 60; i++)
        sprintf(text + strlen(text), "%s\ttext %d of some\n",
                i == 7  ? "rare"
                : i % 2 ? "b"
                        : "a",
                i * i);
    training_write(path, text, strlen(text));
    desc.config = training_config("{\"batch\":60,\"length\":12}");
    desc.path = path, desc.holdout = 0.3, desc.keep_texts = 1;
    OK(cpu, ht_data_open_parts(&both[0], &both[1], cpu, &desc));
    for (int i = 0; i < 2; i++) {
        desc.part = (ht_part)i;
        OK(cpu, ht_data_open(&one[i], cpu, &desc));
        same_data(both[i], one[i]);
        ht_data_close(one[i]);
        ht_data_close(both[i]);
    }
    desc.holdout = 0.001; /* nothing is held out */
    REFUSED(cpu, ht_data_open_parts(&both[0], &both[1], cpu, &desc), HT_INVALID,
            "no items to validate on");
    assert_null(both[0]);
    desc.holdout = 0;
    REFUSED(cpu, ht_data_open_parts(&both[0], &both[1], cpu, &desc), HT_INVALID, "got holdout 0");
    REFUSED(cpu, ht_data_open_parts(NULL, &both[1], cpu, &desc), HT_INVALID, "is NULL");
}

/* ---- folders ---- */

static void folders(void **state) {
    (void)state;
    char in[128], command[512];
    snprintf(in, sizeof in, "%s/mail", training_folder);
    snprintf(command, sizeof command,
             "cd %s && mkdir -p mail/spam/old mail/ham mail/.hidden && printf ' win\\n' > "
             "mail/spam/1 && "
             "printf 'cash' > mail/spam/old/2 && printf 'hello' | gzip > mail/ham/1.gz && "
             ": > mail/ham/2 && printf 'x' > mail/readme",
             training_folder);
    assert_int_equal(system(command), 0);
    rows got = {0};
    ht_rows_desc desc = HT_ROWS_DESC_INIT;
    ht_rows_info info = HT_ROWS_INFO_INIT;
    desc.path = in;
    OK(cpu, read_rows(&desc, collect, &got, &info));
    assert_string_equal(got.all, "ham|hello|\nspam|win|\nspam|cash|\n");
    assert_int_equal(info.empty, 1);
    assert_string_equal(info.about, "a folder per label, 2 of them");
    /* files of rows in folders are no classes */
    snprintf(
        command, sizeof command,
        "cd %s && mkdir -p two/a two/b && printf 'text,label\\nx,1\\n' > two/a/1.csv && "
        "printf '0\\ty\\n' > two/b/2.tsv && printf '{\"label\":2,\"text\":\"z\"}' > two/b/3.jsonl",
        training_folder);
    assert_int_equal(system(command), 0);
    snprintf(in, sizeof in, "%s/two", training_folder);
    memset(&got, 0, sizeof got);
    OK(cpu, read_rows(&desc, collect, &got, &info));
    assert_string_equal(got.all, "1|x|\n0|y|\n2|z|\n");
    /* a header that has nothing usual is known again in the next file */
    snprintf(command, sizeof command,
             "cd %s && mkdir -p head && printf 'Art,Worte\\nx,1\\nx,2\\n' > head/1.csv && "
             "printf 'Art,Worte\\ny,3\\n' > head/2.csv",
             training_folder);
    assert_int_equal(system(command), 0);
    snprintf(in, sizeof in, "%s/head", training_folder);
    memset(&got, 0, sizeof got);
    OK(cpu, read_rows(&desc, collect, &got, &info));
    assert_string_equal(got.all, "x|1|\nx|2|\ny|3|\n");
    desc.texts = 2;
    desc.kind = HT_ROWS_FOLDERS;
    expect_fault(&desc, HT_INVALID, "holds no pairs");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv),           cmocka_unit_test(pieces),
        cmocka_unit_test(csv_faults),    cmocka_unit_test(columns),
        cmocka_unit_test(column_faults), cmocka_unit_test(pairs),
        cmocka_unit_test(unlabelled),    cmocka_unit_test(jsonl),
        cmocka_unit_test(kinds),         cmocka_unit_test(skipping),
        cmocka_unit_test(stopping),      cmocka_unit_test(long_line),
        cmocka_unit_test(numbering),     cmocka_unit_test(known_labels),
        cmocka_unit_test(many_labels),   cmocka_unit_test(too_many_labels),
        cmocka_unit_test(parts),         cmocka_unit_test(both_parts),
        cmocka_unit_test(folders),
    };
    return cmocka_run_group_tests_name("rows", tests, open_all, close_all);
}
