/*
 * The harness of the command line's tests.
 */
#include "program.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[64];
static const char *used; /* in the directory, or NULL */
static program_result result;

int program_setup(void **state) {
    (void)state;
    strcpy(directory, "/tmp/htransformer-test-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

int program_teardown(void **state) {
    (void)state;
    char command[96];
    free(result.out);
    free(result.err);
    result = (program_result){0};
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command);
}

const char *program_path(const char *name) {
    static char paths[4][256];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

/* A whole file, ended by a zero; *count may be NULL. */
static char *slurp(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = malloc(1 << 22);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 22) - 1, file);
    text[n] = '\0';
    if (count) *count = n;
    fclose(file);
    return text;
}

void program_use(const char *name) { used = name; }

const program_result *program_run(const char *format, ...) {
    char words[2048], command[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    snprintf(command, sizeof command, "cd '%s' && { '%s' %s ; } >.out 2>.err", directory,
             used ? program_path(used) : HTRANSFORMER, words);
    int status = system(command);
    free(result.out);
    free(result.err);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result.out = slurp(program_path(".out"), NULL);
    result.err = slurp(program_path(".err"), NULL);
    return &result;
}

void program_expect(int code, const char *fragment, const char *words) {
    const program_result *r = program_run("%s", words);
    if (r->code != code || !strstr(r->err, fragment))
        print_error("htransformer %s\n  ended with %d (wanted %d), said: %s  wanted: %s\n", words,
                    r->code, code, r->err, fragment);
    assert_int_equal(r->code, code);
    assert_non_null(strstr(r->err, fragment));
}

int program_files(const char *prefix) {
    int count = 0;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return count;
}

void program_write(const char *name, const void *bytes, size_t count) {
    FILE *file = fopen(program_path(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

void npy_raw(const char *name, const char *dictionary, const void *data, size_t bytes) {
    size_t text = strlen(dictionary), total = 10 + text + bytes;
    char *all = malloc(total);
    assert_non_null(all);
    memcpy(all, "\x93NUMPY\x01\x00", 8);
    all[8] = (char)(text & 255);
    all[9] = (char)(text >> 8);
    memcpy(all + 10, dictionary, text);
    if (bytes) memcpy(all + 10 + text, data, bytes);
    program_write(name, all, total);
    free(all);
}

static void npy_plain(const char *name, const char *descr, const char *shape, const void *data,
                      size_t bytes) {
    char text[256];
    snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n", descr,
             shape);
    npy_raw(name, text, data, bytes);
}

void npy_f32(const char *name, const char *shape, const float *data, size_t count) {
    npy_plain(name, "<f4", shape, data, count * sizeof *data);
}

void npy_f64(const char *name, const char *shape, const double *data, size_t count) {
    npy_plain(name, "<f8", shape, data, count * sizeof *data);
}

void npy_u8(const char *name, const char *shape, const uint8_t *data, size_t count) {
    npy_plain(name, "|u1", shape, data, count);
}

void *npy_data(const char *name, const char *descr, const char *shape, size_t *count) {
    size_t total;
    unsigned char *all = (unsigned char *)slurp(program_path(name), &total);
    char wanted[256];
    int n = snprintf(wanted, sizeof wanted,
                     "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    assert_true(total > 10);
    assert_memory_equal(all, "\x93NUMPY\x01\x00", 8);
    size_t text = (size_t)all[8] | (size_t)all[9] << 8;
    assert_true(total >= 10 + text && text > (size_t)n);
    assert_memory_equal(all + 10, wanted, (size_t)n);
    assert_int_equal((10 + text) % 64, 0);
    assert_int_equal(all[10 + text - 1], '\n');
    *count = (total - 10 - text) / (size_t)(descr[2] - '0');
    memmove(all, all + 10 + text, total - 10 - text);
    return all;
}

double program_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-52 - 1;
}
