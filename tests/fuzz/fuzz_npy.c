/*
 * The .npy reader on any bytes. What it accepts must be consistent with the size of the input, and
 * must be readable to the last byte; what it refuses must have a sentence.
 *
 * With libFuzzer (clang, -DHT_FUZZ=ON): fuzz_npy tests/fuzz/npy. Without it, mutate.c drives the
 * same function.
 */
#include <base/npy.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A fault must stop the fuzzer also in builds without assertions. */
static void must(int holds) {
    if (!holds) abort();
}

static void read_all(npy_reader *reader, const uint8_t *data, size_t size) {
    cli_error error = {""};
    const npy_header *h = &reader->header;
    must(h->dims >= 0 && h->dims <= NPY_MAX_DIMS);
    must(h->offset <= size && h->bytes == size - h->offset);
    must(h->bytes == (uint64_t)h->elements * npy_type_bytes(h->type));
    uint8_t *copy = malloc(h->bytes ? h->bytes : 1), extra;
    must(copy != NULL);
    /* in two pieces, as the program reads in windows */
    size_t half = (size_t)h->bytes / 2, rest = (size_t)h->bytes - half;
    must(npy_read(reader, copy, half, &error) && npy_read(reader, copy + half, rest, &error));
    must(memcmp(copy, data + h->offset, h->bytes) == 0);
    must(!npy_read(reader, &extra, 1, &error)); /* there is nothing behind the data */
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    npy_reader reader;
    cli_error error = {""};
    if (size == 0) return 0; /* fmemopen has no empty streams */
    FILE *file = fmemopen((void *)(uintptr_t)data, size, "rb");
    if (!file) return 0;
    if (npy_open_stream(&reader, file, size, "input", &error)) {
        char shape[160];
        read_all(&reader, data, size);
        npy_shape_text(shape, sizeof shape, reader.header.dims, reader.header.shape);
        must(shape[0] == '[' && strlen(shape) >= 2);
    } else {
        must(strstr(error.text, "input") != NULL); /* the sentence names the file */
        for (const char *p = error.text; *p; p++) must(*p >= ' ' && *p <= '~');
    }
    fclose(file);
    return 0;
}
