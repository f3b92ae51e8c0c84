/*
 * The .npy format: magic, version, header length, a Python dictionary as text, the data.
 *
 * The dictionary is parsed strictly: the three keys that NumPy writes, each once. Sizes are
 * computed with overflow checks and compared with the size of the file before the caller can
 * allocate anything.
 */
#include "base/npy.h"

#include "base/save.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "npy.c reads little-endian data as they lie in memory"
#endif

#define HEADER_MOST 65536 /* NumPy itself warns above 10,000 */

static const struct {
    const char *descr, *name;
    size_t bytes;
} types[] = {
    [NPY_F32] = {"<f4", "float32", 4}, [NPY_F64] = {"<f8", "float64", 8},
    [NPY_U8] = {"|u1", "uint8", 1},    [NPY_BOOL] = {"|b1", "bool", 1},
    [NPY_F16] = {"<f2", "float16", 2},
};
#define TYPES ((int)(sizeof types / sizeof types[0]))

const char *npy_type_name(npy_type type) { return types[type].name; }
size_t npy_type_bytes(npy_type type) { return types[type].bytes; }

const char *npy_shape_text(char *out, size_t bytes, int dims, const int64_t *shape) {
    size_t used = (size_t)snprintf(out, bytes, "[");
    for (int i = 0; i < dims && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < bytes) snprintf(out + used, bytes - used, "]");
    return out;
}

/* ---- the dictionary ---------------------------------------------------------------------- */

typedef struct cursor {
    const char *at, *end;
    const char *name; /* of the file */
    cli_error *error;
} cursor;

static void skip_space(cursor *c) {
    while (c->at < c->end && isspace((unsigned char)*c->at)) c->at++;
}

/* Takes this character, after spaces, if it comes next. */
static bool take(cursor *c, char wanted) {
    skip_space(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

/* What stands at the cursor, for a message: printable, and short. */
static bool bad_header(cursor *c, const char *expected) {
    char here[17] = {0};
    for (int i = 0; i < 16 && c->at + i < c->end; i++)
        here[i] = isprint((unsigned char)c->at[i]) ? c->at[i] : '?';
    return cli_fail(c->error, "%s: its header is damaged: expected %s, found '%s'", c->name,
                    expected, here);
}

/* A quoted word without escapes, into out. */
static bool parse_string(cursor *c, char *out, size_t bytes) {
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return bad_header(c, "a quoted word");
    char quote = *c->at;
    const char *start = c->at + 1, *stop = memchr(start, quote, (size_t)(c->end - start));
    if (!stop || (size_t)(stop - start) >= bytes) return bad_header(c, "a short quoted word");
    for (const char *p = start; p < stop; p++)
        if (!isprint((unsigned char)*p) || *p == '\\') return bad_header(c, "a plain quoted word");
    memcpy(out, start, (size_t)(stop - start));
    out[stop - start] = '\0';
    c->at = stop + 1;
    return true;
}

static bool parse_descr(cursor *c, npy_header *h) {
    char descr[32];
    skip_space(c);
    if (c->at < c->end && *c->at == '[')
        return cli_fail(c->error, "%s holds records with fields, not plain numbers", c->name);
    if (!parse_string(c, descr, sizeof descr)) return false;
    for (int i = 0; i < TYPES; i++) {
        bool bytes_only = types[i].bytes == 1; /* order does not matter: |u1 and <u1 are the same */
        if (strcmp(descr, types[i].descr) != 0 &&
            !(bytes_only && strchr("<>|=", descr[0]) && descr[0] &&
              !strcmp(descr + 1, types[i].descr + 1)))
            continue;
        h->type = (npy_type)i;
        return true;
    }
    if (descr[0] == '>')
        return cli_fail(c->error,
                        "%s is big-endian (dtype '%s'); only little-endian files are read", c->name,
                        descr);
    return cli_fail(c->error,
                    "%s has dtype '%s'; only float32 (<f4), float64 (<f8), float16 (<f2), uint8 "
                    "and bool are read",
                    c->name, descr);
}

static bool parse_order(cursor *c) {
    size_t left;
    skip_space(c);
    left = (size_t)(c->end - c->at);
    if (left >= 4 && memcmp(c->at, "True", 4) == 0)
        return cli_fail(c->error, "%s is in Fortran order; save it with numpy.ascontiguousarray",
                        c->name);
    if (left < 5 || memcmp(c->at, "False", 5) != 0) return bad_header(c, "True or False");
    c->at += 5;
    return true;
}

static bool parse_dimension(cursor *c, int64_t *out) {
    int64_t x = 0;
    skip_space(c);
    if (c->at < c->end && *c->at == '-')
        return cli_fail(c->error, "%s: its header claims a negative dimension", c->name);
    if (c->at == c->end || !isdigit((unsigned char)*c->at)) return bad_header(c, "a number");
    for (; c->at < c->end && isdigit((unsigned char)*c->at); c->at++)
        if (__builtin_mul_overflow(x, 10, &x) || __builtin_add_overflow(x, *c->at - '0', &x))
            return cli_fail(c->error, "%s: its header claims a dimension beyond 2^63", c->name);
    if (c->at < c->end && *c->at == 'L') c->at++; /* Python 2 wrote long integers so */
    *out = x;
    return true;
}

static bool parse_shape(cursor *c, npy_header *h) {
    if (!take(c, '(')) return bad_header(c, "'('");
    h->dims = 0;
    while (!take(c, ')')) {
        if (h->dims == NPY_MAX_DIMS)
            return cli_fail(c->error, "%s has more than %d dimensions", c->name, NPY_MAX_DIMS);
        if (!parse_dimension(c, &h->shape[h->dims++])) return false;
        if (take(c, ',')) continue;
        if (!take(c, ')')) return bad_header(c, "',' or ')'");
        if (h->dims == 1) return bad_header(c, "',' in a shape of one dimension");
        break;
    }
    return true;
}

static bool parse_header(cursor *c, npy_header *h) {
    int seen = 0; /* bits: descr, fortran_order, shape */
    if (!take(c, '{')) return bad_header(c, "'{'");
    while (!take(c, '}')) {
        char key[32];
        if (!parse_string(c, key, sizeof key)) return false;
        int bit = !strcmp(key, "descr")           ? 1
                  : !strcmp(key, "fortran_order") ? 2
                  : !strcmp(key, "shape")         ? 4
                                                  : 0;
        if (!bit || seen & bit)
            return cli_fail(c->error, "%s: its header is damaged: %s key '%s'", c->name,
                            bit ? "a second" : "unknown", key);
        seen |= bit;
        if (!take(c, ':')) return bad_header(c, "':'");
        if (bit == 1 ? !parse_descr(c, h) : bit == 2 ? !parse_order(c) : !parse_shape(c, h))
            return false;
        if (take(c, ',')) continue;
        if (!take(c, '}')) return bad_header(c, "',' or '}'");
        break;
    }
    skip_space(c);
    if (c->at != c->end) return bad_header(c, "its end");
    if (seen != 7)
        return cli_fail(c->error, "%s: its header lacks '%s'", c->name,
                        !(seen & 1)   ? "descr"
                        : !(seen & 2) ? "fortran_order"
                                      : "shape");
    return true;
}

/* ---- sizes ------------------------------------------------------------------------------- */

/* elements and bytes from the shape; a dimension of 0 makes all of it empty, whatever the
 * others say. */
static bool measure(npy_header *h, uint64_t size, const char *name, cli_error *error) {
    char shape[160];
    uint64_t have = size - h->offset;
    bool empty = false, overflow = false;
    h->elements = 1;
    for (int i = 0; i < h->dims; i++) empty |= h->shape[i] == 0;
    for (int i = 0; i < h->dims && !empty; i++)
        overflow |= __builtin_mul_overflow(h->elements, h->shape[i], &h->elements);
    if (empty) h->elements = 0;
    overflow |=
        __builtin_mul_overflow((uint64_t)h->elements, (uint64_t)types[h->type].bytes, &h->bytes);
    npy_shape_text(shape, sizeof shape, h->dims, h->shape);
    if (overflow)
        return cli_fail(error, "%s: its header claims shape %s, more than any file can hold", name,
                        shape);
    if (h->bytes > have)
        return cli_fail(error,
                        "%s is truncated: shape %s of %s needs %" PRIu64 " bytes, it has %" PRIu64,
                        name, shape, types[h->type].name, h->bytes, have);
    if (h->bytes < have)
        return cli_fail(error, "%s has %" PRIu64 " bytes of something after its data", name,
                        have - h->bytes);
    return true;
}

/* Magic, version and the length of the dictionary; leaves the stream at its first letter. */
static bool read_preamble(uint32_t *text_bytes, npy_header *h, FILE *file, uint64_t size,
                          const char *name, cli_error *error) {
    unsigned char b[12] = {0};
    size_t got = fread(b, 1, 8, file);
    if (got < 6 || memcmp(b, "\x93NUMPY", 6) != 0)
        return cli_fail(error, "%s is not a .npy file: it does not begin with \\x93NUMPY", name);
    if (got < 8) return cli_fail(error, "%s is truncated inside its header", name);
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        return cli_fail(error, "%s has .npy version %d.%d; 1.0, 2.0 and 3.0 are read", name, b[6],
                        b[7]);
    size_t length_bytes = b[6] == 1 ? 2 : 4;
    if (fread(b + 8, 1, length_bytes, file) != length_bytes)
        return cli_fail(error, "%s is truncated inside its header", name);
    *text_bytes =
        (uint32_t)b[8] | (uint32_t)b[9] << 8 | (uint32_t)b[10] << 16 | (uint32_t)b[11] << 24;
    h->offset = 8 + length_bytes + *text_bytes;
    if (h->offset > size)
        return cli_fail(
            error, "%s is truncated: its header claims %" PRIu32 " bytes, the file has %" PRIu64,
            name, *text_bytes, size);
    if (*text_bytes > HEADER_MOST)
        return cli_fail(error, "%s has a header of %" PRIu32 " bytes; at most %d are read", name,
                        *text_bytes, HEADER_MOST);
    return true;
}

bool npy_open_stream(npy_reader *out, FILE *file, uint64_t size, const char *name,
                     cli_error *error) {
    static char text[HEADER_MOST];
    uint32_t text_bytes = 0;
    *out = (npy_reader){.file = file, .name = name};
    if (!read_preamble(&text_bytes, &out->header, file, size, name, error)) return false;
    if (fread(text, 1, text_bytes, file) != text_bytes)
        return cli_fail(error, "%s could not be read: %s", name, strerror(errno));
    cursor c = {text, text + text_bytes, name, error};
    if (!parse_header(&c, &out->header)) return false;
    if (!measure(&out->header, size, name, error)) return false;
    out->left = out->header.bytes;
    return true;
}

bool npy_open(npy_reader *out, const char *path, cli_error *error) {
    uint64_t bytes;
    *out = (npy_reader){0};
    FILE *file = save_open_input(path, &bytes, error);
    if (!file) return false;
    if (npy_open_stream(out, file, bytes, path, error)) return true;
    fclose(file);
    *out = (npy_reader){0};
    return false;
}

bool npy_read(npy_reader *reader, void *out, size_t bytes, cli_error *error) {
    errno = 0;
    if (bytes > reader->left || fread(out, 1, bytes, reader->file) != bytes)
        return cli_fail(error, "%s could not be read: %s", reader->name,
                        errno ? strerror(errno) : "it ended early");
    reader->left -= bytes;
    return true;
}

void npy_close(npy_reader *reader) {
    if (reader->file) fclose(reader->file);
    reader->file = NULL;
}

/* ---- writing ----------------------------------------------------------------------------- */

size_t npy_make_header(char out[NPY_HEADER_MOST], npy_type type, int dims, const int64_t *shape) {
    char *text = out + 10;
    size_t room = NPY_HEADER_MOST - 10;
    int n = snprintf(text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                     types[type].descr);
    for (int i = 0; i < dims; i++)
        n += snprintf(text + n, room - (size_t)n, "%s%" PRId64, i ? ", " : "", shape[i]);
    n += snprintf(text + n, room - (size_t)n, "%s), }", dims == 1 ? "," : "");
    while ((10 + n + 1) % 64 != 0) text[n++] = ' ';
    text[n++] = '\n';
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (char)(n & 255);
    out[9] = (char)(n >> 8);
    return (size_t)n + 10;
}
