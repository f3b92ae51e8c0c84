/*
 * map: values against the definition and the paper, pictures by their pixels, and the files that
 * must not be half there.
 */
#include "program.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef HAVE_PNG
#include <png.h>
#endif

/* ---- helpers ----------------------------------------------------------------------------- */

static cJSON *parsed(const program_result *r) {
    if (r->code != 0) fail_msg("ended with %d: %s", r->code, r->err);
    cJSON *root = cJSON_Parse(r->out);
    if (!root) fail_msg("not JSON: %s", r->out);
    return root;
}

static double number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item)) fail_msg("no number '%s'", key);
    return item->valuedouble;
}

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

static int there(const char *name) { return access(program_path(name), F_OK) == 0; }

/* ---- the hierarchy ----------------------------------------------------------------------- */

/* The definition, by search. */
static int level(int i, int j, int block) {
    int l = 0;
    while (abs(i / (block << l) - j / (block << l)) > 1) l++;
    return l;
}

static void test_digits_are_the_definition(void **state) {
    (void)state;
    const program_result *r = program_run("map --length 29 --block 2");
    assert_int_equal(r->code, 0);
    const char *at = strstr(r->out, "times as many\n");
    assert_non_null(at);
    at += strlen("times as many\n");
    for (int i = 0; i < 29; i++, at++)
        for (int j = 0; j < 29; j++, at++) assert_int_equal(*at - '0', level(i, j, 2));
}

/* Counted pair by pair: every pair at one level; products are pairs of clusters, under
 * causal of rows with clusters. */
static void check_counts(int length, int block, int causal) {
    cJSON *root = parsed(program_run("map --length %d --block %d %s --json", length, block,
                                     causal ? "--causal" : ""));
    double pairs[20] = {0}, products[20] = {0};
    for (int i = 0; i < length; i++)
        for (int j = 0; j < (causal ? i + 1 : length); j++) {
            int l = level(i, j, block), size = 1 << l;
            pairs[l]++;
            products[l] += (causal || i % size == 0) && j % size == 0;
        }
    const cJSON *entry;
    int l = 0;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(root, "levels")) {
        assert_true(number(entry, "pairs") == pairs[l]);
        assert_true(number(entry, "products") == products[l]);
        l++;
    }
    assert_true(l >= 1 && pairs[l] == 0);
    cJSON_Delete(root);
}

static void test_counts(void **state) {
    (void)state;
    static const int cases[][3] = {{1, 2, 0},  {7, 2, 0},   {64, 4, 0}, {64, 4, 1},
                                   {90, 6, 0}, {101, 2, 1}, {40, 32, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_counts(cases[i][0], cases[i][1], cases[i][2]);
}

static void test_svg(void **state) {
    (void)state;
    assert_int_equal(program_run("map --length 16 --block 2 --out h.svg")->code, 0);
    char *svg = slurp("h.svg");
    assert_int_equal(strncmp(svg, "<svg xmlns=", 11), 0);
    /* level 2 begins with a far quarter, at column 12 of 16: 40 + 640 * 12 / 16 */
    assert_non_null(strstr(svg, "<g fill=\"#f0b429\">\n<rect x=\"520\" y=\"40\""));
    assert_non_null(strstr(svg, "level 2: 4 rows each"));
    assert_null(strstr(svg, "level 3"));
    assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
    free(svg);
    /* the picture of README is what README's command draws */
    assert_int_equal(program_run("map --length 64 --block 4 --out hierarchy.svg; cmp "
                                 "hierarchy.svg '" HELP_DIR "/../../../docs/hierarchy.svg'")
                         ->code,
                     0);
}

#ifdef HAVE_PNG
/* Colour of the picture's pixel. */
static unsigned pixel(const char *name, int x, int y) {
    png_image image = {.version = PNG_IMAGE_VERSION};
    assert_true(png_image_begin_read_from_file(&image, program_path(name)));
    image.format = PNG_FORMAT_RGB;
    unsigned char *all = malloc(PNG_IMAGE_SIZE(image));
    assert_non_null(all);
    assert_true(png_image_finish_read(&image, NULL, all, 0, NULL));
    assert_true(x < (int)image.width && y < (int)image.height);
    const unsigned char *p = all + ((size_t)y * image.width + (size_t)x) * 3;
    unsigned out = (unsigned)p[0] << 16 | (unsigned)p[1] << 8 | p[2];
    free(all);
    return out;
}

static void test_png_pixels(void **state) {
    (void)state;
    static const unsigned colours[] = {0x2f6fb7, 0x3fa66b, 0xf0b429, 0xe4703a};
    assert_int_equal(program_run("map --length 64 --block 4 --out h.png")->code, 0);
    /* the middle of every cell of 8 x 8 rows but off the lines: row i is at 40 + 10 i */
    for (int i = 1; i < 64; i += 7)
        for (int j = 2; j < 64; j += 9)
            assert_int_equal(pixel("h.png", 45 + 10 * j, 45 + 10 * i), colours[level(i, j, 4)]);
    assert_int_equal(program_run("map --length 64 --block 4 --causal --out c.png")->code, 0);
    assert_int_equal(pixel("c.png", 45 + 10 * 40, 45 + 10 * 10), 0xffffff);
    assert_int_equal(pixel("c.png", 45 + 10 * 10, 45 + 10 * 10), colours[0]);
    assert_int_equal(pixel("c.png", 45 + 10 * 11, 45 + 10 * 10), 0xffffff);
    /* many blocks: pixel by pixel, 640 pixels for 65536 rows */
    assert_int_equal(program_run("map --length 65536 --block 2 --out b.png")->code, 0);
    static const unsigned eight[] = {0x2f6fb7, 0x3fa66b, 0xf0b429, 0xe4703a,
                                     0xc43d5a, 0x7d4aa8, 0x4a4e69, 0x9aa5b1};
    for (int y = 3; y < 640; y += 97)
        for (int x = 5; x < 640; x += 89)
            assert_int_equal(
                pixel("b.png", 40 + x, 40 + y),
                eight[level((int)((y + 0.5) * 102.4), (int)((x + 0.5) * 102.4), 2) % 8]);
}
#endif

/* ---- ranks ------------------------------------------------------------------------------- */

/* A_ij = exp(2 exp(-(i-j)^2) - 1), the paper's section 4.1. */
static void write_paper(const char *name) {
    double a[256];
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) a[16 * i + j] = exp(2 * exp(-(double)(i - j) * (i - j)) - 1);
    npy_f64(name, "(16, 16)", a, 256);
}

static void test_rank_map_of_the_paper(void **state) {
    (void)state;
    write_paper("A.npy");
    cJSON *root = parsed(program_run("map --rank A.npy --tolerance 1e-3 --levels 2 --json"));
    int diagonal = 0, near = 0, far = 0;
    const cJSON *block;
    cJSON_ArrayForEach(block, cJSON_GetObjectItem(root, "blocks")) {
        bool on = cJSON_IsTrue(cJSON_GetObjectItem(block, "diagonal"));
        assert_true(number(block, "rank") == (on ? 4 : 2));
        diagonal += on;
        near += !on && number(block, "level") == 0;
        far += !on && number(block, "level") == 1;
    }
    assert_int_equal(diagonal, 4);
    assert_int_equal(near, 4);
    assert_int_equal(far, 2);
    assert_true(number(root, "stored") == 192);
    assert_true(fabs(number(root, "rate") - 4.0 / 3) < 1e-5);
    assert_true(number(root, "rank") == 16);
    cJSON_Delete(root);
    root = parsed(program_run("map --rank A.npy --tolerance 1e-1 --json"));
    assert_true(number(root, "rank") == 16); /* still full */
    assert_true(number(root, "levels") == 2);
    cJSON_Delete(root);
    const program_result *r = program_run("map --rank A.npy --out rank.svg");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "stored entries 192 of 256, compression rate 1.333"));
    assert_non_null(strstr(r->out, "    4    2    2    .\n    2    4    .    .\n"));
    assert_true(there("rank.svg"));
}

/* A product of two thin factors has their rank, whatever its shape. */
static void test_rank_of_known_matrices(void **state) {
    (void)state;
    float a[20 * 13];
    uint64_t seed = 3;
    double u[20][2], v[13][2];
    for (int i = 0; i < 20; i++) u[i][0] = program_random(&seed), u[i][1] = program_random(&seed);
    for (int j = 0; j < 13; j++) v[j][0] = program_random(&seed), v[j][1] = program_random(&seed);
    for (int i = 0; i < 20; i++)
        for (int j = 0; j < 13; j++) a[13 * i + j] = (float)(u[i][0] * v[j][0] + u[i][1] * v[j][1]);
    npy_f32("low.npy", "(20, 13)", a, 260);
    cJSON *root = parsed(program_run("map --rank low.npy --levels 1 --json"));
    assert_true(number(root, "rank") == 2);
    /* 10 x 7 and 10 x 6 twice, all as factors of rank 2 */
    assert_true(number(root, "stored") == 2 * (2 * 17 + 2 * 16));
    cJSON_Delete(root);
    double one = 0;
    npy_f64("zero.npy", "(1, 1)", &one, 1);
    root = parsed(program_run("map --rank zero.npy --json"));
    assert_true(number(root, "rank") == 0 && number(root, "stored") == 0);
    cJSON_Delete(root);
}

/* ---- weights and errors ------------------------------------------------------------------ */

enum { L = 37, HEADS = 2, DIM = 4 };

/* Random but smooth q, k and v [1, L, HEADS, DIM], the same every time. */
static void write_qkv(double q[], double k[], double v[]) {
    uint64_t seed = 11;
    double *all[] = {q, k, v};
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < L * HEADS * DIM; i++)
            all[n][i] =
                (i >= HEADS * DIM ? 0.9 * all[n][i - HEADS * DIM] : 0) + program_random(&seed);
    npy_f64("q.npy", "(1, 37, 2, 4)", q, L * HEADS * DIM);
    npy_f64("k.npy", "(1, 37, 2, 4)", k, L * HEADS * DIM);
    npy_f64("v.npy", "(1, 37, 2, 4)", v, L * HEADS * DIM);
}

/* The weights times v are the output, and those of full attention are a softmax. */
static void test_weights(void **state) {
    (void)state;
    static double q[L * HEADS * DIM], k[L * HEADS * DIM], v[L * HEADS * DIM];
    static const char *const modes[] = {"", "--query first", "--query fine", "--causal",
                                        "--open 1 --open_leaf 2 --open_peek -1"};
    size_t n;
    write_qkv(q, k, v);
    for (int m = 0; m < 5; m++) {
        const program_result *r =
            program_run("map --attention --q q.npy --k k.npy --head 1 --block 2 %s --effective "
                        "E.npy --exact X.npy --out a.svg",
                        modes[m]);
        if (r->code != 0) fail_msg("%s", r->err);
        assert_int_equal(
            program_run("attend --q q.npy --k k.npy --v v.npy --block 2 %s --out z.npy", modes[m])
                ->code,
            0);
        double *e = npy_data("E.npy", "<f8", "(37, 37)", &n);
        double *x = npy_data("X.npy", "<f8", "(37, 37)", &n);
        double *z = npy_data("z.npy", "<f8", "(1, 37, 2, 4)", &n);
        for (int i = 0; i < L; i++) {
            double sum = 0, exact[L], top = 0;
            for (int d = 0; d < DIM; d++) {
                double out = 0;
                for (int j = 0; j < L; j++) out += e[L * i + j] * v[(j * HEADS + 1) * DIM + d];
                assert_true(fabs(out - z[(i * HEADS + 1) * DIM + d]) < 1e-12);
            }
            int last = m == 3 ? i : L - 1;
            for (int j = 0; j <= last; j++) {
                double s = 0;
                for (int d = 0; d < DIM; d++)
                    s += q[(i * HEADS + 1) * DIM + d] * k[(j * HEADS + 1) * DIM + d] / 2;
                exact[j] = exp(s);
                sum += exact[j];
            }
            for (int j = 0; j < L; j++) {
                double want = j <= last ? exact[j] / sum : 0;
                assert_true(fabs(x[L * i + j] - want) < 1e-12);
                top += e[L * i + j];
            }
            assert_true(fabs(top - 1) < 1e-12);
        }
        free(e);
        free(x);
        free(z);
    }
}

/* Rows as the definition has them: K highest scores of each level, whole down to the leaves. Here
 * row 36 looks for row 9, and two clusters a level are opened until it is found. */
static void test_opened(void **state) {
    (void)state;
    static double q[L * HEADS * DIM], k[L * HEADS * DIM], v[L * HEADS * DIM];
    write_qkv(q, k, v);
    for (int d = 0; d < DIM; d++) q[(36 * HEADS + 1) * DIM + d] = 40 * k[(9 * HEADS + 1) * DIM + d];
    npy_f64("q.npy", "(1, 37, 2, 4)", q, L * HEADS * DIM);
#define OPENED "map --opened --q q.npy --k k.npy --head 1 --causal --block 2 "
    cJSON *root = parsed(program_run(OPENED "--open 2 --open_leaf 2 --out o.svg --json"));
    const cJSON *each, *found = NULL;
    int last = 99, count = 0, all[8] = {0};
    cJSON_ArrayForEach(each, cJSON_GetObjectItem(root, "opened")) {
        int l = (int)number(each, "level"), c = (int)number(each, "cluster");
        assert_true(l <= last && l > 0);
        count = l == last ? count + 1 : 1, last = l;
        assert_true(count <= 2);
        if (c == 9 >> l) found = each, all[l] = 1;
    }
    assert_non_null(found); /* row 9 meets row 36 at level 4, and is opened on every one below */
    for (int l = 1; l <= 4; l++) assert_int_equal(all[l], level(36, 9, 2) >= l);
    double pairs = number(root, "opened_rows");
    cJSON_ArrayForEach(each, cJSON_GetObjectItem(root, "levels")) {
        int l = (int)number(each, "level");
        if (l == 0) assert_int_equal((int)number(each, "opened"), 0);
        if (l == 1) assert_int_equal((int)pairs, 2 * (int)number(each, "opened"));
        assert_true(number(each, "opened") <= 2 * L);
    }
    cJSON_Delete(root);
    char *svg = slurp("o.svg");
    assert_non_null(strstr(svg, "opened: row by row"));
    free(svg);
    const program_result *r = program_run(OPENED "--open 1 --row 20");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "row 20 opens\n  level 3, rows "));
    assert_int_equal(
        program_run("map --attention --q q.npy --k k.npy --open 2 --block 2 --out a.svg")->code, 0);
    svg = slurp("a.svg");
    assert_non_null(strstr(svg, "the same, open 2"));
    free(svg);
    program_expect(1, "--open is missing", OPENED);
    program_expect(1, "--row must be at most 36, got 37", OPENED "--open 1 --row 37");
    program_expect(1, "open is 1 with query first", OPENED "--open 1 --query first");
}

/* With everything opened nothing is left of the error. */
static void test_error_of_opening(void **state) {
    (void)state;
    static double q[L * HEADS * DIM], k[L * HEADS * DIM], v[L * HEADS * DIM];
    write_qkv(q, k, v);
    cJSON *root = parsed(program_run("map --error --q q.npy --k k.npy --v v.npy --causal --json "
                                     "--open 0,1,100"));
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "blocks"), 0);
    double none = number(cJSON_GetObjectItem(first, "fine"), "relative_error");
    double one = number(cJSON_GetObjectItem(first, "open 1"), "relative_error");
    assert_true(one > 1e-3 && one < none);
    assert_true(number(cJSON_GetObjectItem(first, "open 100"), "relative_error") < 1e-13);
    assert_null(cJSON_GetObjectItem(first, "open 0"));
    cJSON_Delete(root);
}

/* The table's numbers are those of attend. */
static void test_error_against_block(void **state) {
    (void)state;
    static double q[L * HEADS * DIM], k[L * HEADS * DIM], v[L * HEADS * DIM];
    write_qkv(q, k, v);
    cJSON *root =
        parsed(program_run("map --error --q q.npy --k k.npy --v v.npy --out error.svg --json"));
    size_t n;
    assert_int_equal(
        program_run("attend --q q.npy --k k.npy --v v.npy --kind full --out full.npy")->code, 0);
    double *full = npy_data("full.npy", "<f8", "(1, 37, 2, 4)", &n);
    const cJSON *entry;
    int blocks[8], count = 0;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(root, "blocks")) {
        static const char *const modes[] = {"mean", "first", "fine"};
        blocks[count++] = (int)number(entry, "block");
        for (int m = 0; m < 3; m++) {
            assert_int_equal(program_run("attend --q q.npy --k k.npy --v v.npy --block %d --query "
                                         "%s --out z.npy",
                                         blocks[count - 1], modes[m])
                                 ->code,
                             0);
            double *z = npy_data("z.npy", "<f8", "(1, 37, 2, 4)", &n), difference = 0, size = 0;
            for (size_t i = 0; i < n; i++) {
                difference += (z[i] - full[i]) * (z[i] - full[i]);
                size += full[i] * full[i];
            }
            double want = sqrt(difference / size);
            double got = number(cJSON_GetObjectItem(entry, modes[m]), "relative_error");
            assert_true(fabs(got - want) <= 1e-5 * want + 1e-14);
            if (blocks[count - 1] == 20) assert_true(got < 1e-13); /* plain attention */
            free(z);
        }
    }
    static const int wanted[] = {2, 4, 8, 16, 20};
    assert_int_equal(count, 5);
    assert_memory_equal(blocks, wanted, sizeof wanted);
    free(full);
    cJSON_Delete(root);
    char *svg = slurp("error.svg");
    assert_non_null(strstr(svg, "Relative error, length 37"));
    free(svg);
    const program_result *r = program_run("map --error --q q.npy --k k.npy --v v.npy --causal");
    assert_int_equal(r->code, 0);
    assert_null(strstr(r->out, "mean"));
}

#define SMALL                                                                            \
    "--layers 2 --width 16 --heads 2 --hidden 16 --head_hidden 8 --length 24 --batch 4 " \
    "--block 4 --threads 1 --steps 2 --quiet "

/* A checkpoint's layer: every row of weights sums to 1; a language model looks at the past alone.
 */
static void test_checkpoints(void **state) {
    (void)state;
    size_t n;
    /* nine tokens and the cls row before them */
    assert_int_equal(program_run("train --run list " SMALL "--train_items 40 --valid_items 8 "
                                 "--listops_min 4 --listops_max 24 --relative_bias 1 --causal 0 "
                                 "--query mean --pool cls")
                         ->code,
                     0);
    const program_result *r =
        program_run("map --attention --run list --layer 1 --head 1 --text "
                    "'[MAX 2 9 [MIN 4 7 ] 0 ]' --effective E.npy --out a.svg");
    if (r->code != 0) fail_msg("%s", r->err);
    double *e = npy_data("E.npy", "<f8", "(10, 10)", &n);
    for (int i = 0; i < 10; i++) {
        double sum = 0;
        for (int j = 0; j < 10; j++) sum += e[10 * i + j];
        assert_true(fabs(sum - 1) < 1e-5);
    }
    free(e);
    r = program_run("map --error --run list --text '[MAX 2 9 [MIN 4 7 ] 0 ]' --json");
    cJSON_Delete(parsed(r));
    /* two tokens a row: five rows */
    r = program_run("train --run merged " SMALL "--train_items 40 --valid_items 8 --listops_min 4 "
                    "--listops_max 24 --merge 2 --pool mean");
    if (r->code != 0) fail_msg("%s", r->err);
    r = program_run("map --attention --run merged --text '[MAX 2 9 [MIN 4 7 ] 0 ]' "
                    "--effective E.npy --out m.svg");
    if (r->code != 0) fail_msg("%s", r->err);
    free(npy_data("E.npy", "<f8", "(5, 5)", &n));

    char text[2001] = "";
    while (strlen(text) < 1990) strcat(text, "the cat. ");
    program_write("prose.txt", text, strlen(text));
    assert_int_equal(
        program_run("train --run prose --preset small-text --data prose.txt " SMALL)->code, 0);
    r = program_run("map --attention --run prose --text @prose.txt --effective E.npy --out p.svg");
    if (r->code != 0) fail_msg("%s", r->err);
    e = npy_data("E.npy", "<f8", "(24, 24)", &n);
    for (int i = 0; i < 24; i++)
        for (int j = i + 1; j < 24; j++) assert_true(e[24 * i + j] == 0);
    free(e);
    r = program_run("map --opened --run prose --text @prose.txt --open 1");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "24 rows, causal, block 4, open 1"));
    program_expect(1, "--open is missing", "map --opened --run prose --text @prose.txt");
    program_expect(2, "--layer must be 0 to 1, got 2",
                   "map --attention --run prose --text x --layer 2");
    program_expect(2, "--head must be 0 to 1, got 5",
                   "map --attention --run prose --text x --head 5");
}

/* ---- everything that is wrong ------------------------------------------------------------ */

static void test_wrong_usage(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"map --out h.jpg", "--out must end in .svg or .png, got 'h.jpg'"},
        {"map --rank A.npy --error", "four maps"},
        {"map --attention --opened", "four maps"},
        {"map --open 2", "--open goes with --error, --attention or --opened"},
        {"map --attention --q q --k k --open 2,3", "--open takes one number"},
        {"map --error", "give either --q, --k and --v, or --run and --text"},
        {"map --error --q q.npy --run x", "give either --q, --k and --v, or --run and --text"},
        {"map --error --q q.npy --k k.npy", "--v is missing"},
        {"map --attention --run x", "--text is missing"},
        {"map --q q.npy", "--q goes with --error, --attention or --opened"},
        {"map --exact X.npy", "--exact goes with --attention"},
        {"map --causal --query mean", "use --query first or fine"},
        {"map --error --q q --k k --v v --out e.png", "--out must end in .svg, got 'e.png'"},
        {"map --lenght 3", "did you mean --length?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        program_expect(2, cases[i][1], cases[i][0]);
}

static void test_bad_files(void **state) {
    (void)state;
    double bad[4] = {1, 2, NAN, 4};
    npy_f64("nan.npy", "(2, 2)", bad, 4);
    npy_f64("cube.npy", "(1, 2, 2)", bad, 4);
    npy_f64("two.npy", "(1, 2, 1, 2)", bad, 4);
    npy_f32("f32.npy", "(1, 2, 1, 1)", (const float[]){1, 2}, 2);
    npy_f64("three.npy", "(1, 1, 1, 4)", bad, 4);
    program_expect(1, "nan.npy: entry (1, 0) is not finite", "map --rank nan.npy");
    program_expect(1, "cube.npy has shape [1, 2, 2]; a matrix must be", "map --rank cube.npy");
    program_expect(1, "gone.npy", "map --rank gone.npy");
    bad[2] = 3;
    npy_f64("small.npy", "(2, 2)", bad, 4);
    program_expect(1, "--levels must be at most 1 for 2 x 2, got 5",
                   "map --rank small.npy --levels 5");
    program_expect(1, "f32.npy has shape", "map --attention --q two.npy --k f32.npy");
    program_expect(1, "three.npy has shape", "map --attention --q two.npy --k three.npy");
    program_expect(1, "--error needs a length of at least 4, got 2",
                   "map --error --q two.npy --k two.npy --v two.npy");
}

/* A place that cannot be written, a full disk: one sentence, and no file under the final name. */
static void test_outputs_that_cannot_be(void **state) {
    (void)state;
    program_expect(1, "cannot write nowhere/h.svg: No such file or directory",
                   "map --out nowhere/h.svg");
    mkdir(program_path("locked"), 0555);
    if (geteuid() != 0)
        program_expect(1, "cannot write locked/h.svg: Permission denied", "map --out locked/h.svg");
    /* a limit on the size of files stands for a full disk */
    program_write("h.svg", "old", 3);
    program_expect(1, "cannot write",
                   "--version >/dev/null; (ulimit -f 1; '" HTRANSFORMER
                   "' map --length 512 --block 4 --out h.svg)");
    char *old = slurp("h.svg");
    assert_string_equal(old, "old");
    free(old);
    assert_int_equal(program_files("h.svg"), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digits_are_the_definition),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_svg),
#ifdef HAVE_PNG
        cmocka_unit_test(test_png_pixels),
#endif
        cmocka_unit_test(test_rank_map_of_the_paper),
        cmocka_unit_test(test_rank_of_known_matrices),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_opened),
        cmocka_unit_test(test_error_against_block),
        cmocka_unit_test(test_error_of_opening),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_outputs_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
