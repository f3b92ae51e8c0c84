/*
 * The .npy reader on any bytes. What it accepts must be consistent with the size of the input, and
 * must be readable to the last byte; what it refuses must have a sentence.
 */
#include "fuzz.h"

#include <base/npy.h>

#include <stdlib.h>
#include <string.h>

static void read_all(npy_reader *reader, const uint8_t *data, size_t size) {
    cli_error error = {""};
    const npy_header *h = &reader->header;
    MUST(h->dims >= 0 && h->dims <= NPY_MAX_DIMS);
    MUST(h->offset <= size && h->bytes == size - h->offset);
    MUST(h->bytes == (uint64_t)h->elements * npy_type_bytes(h->type));
    uint8_t *copy = malloc(h->bytes ? h->bytes : 1), extra;
    MUST(copy != NULL);
    /* in two pieces, as the program reads in windows */
    size_t half = (size_t)h->bytes / 2, rest = (size_t)h->bytes - half;
    MUST(npy_read(reader, copy, half, &error) && npy_read(reader, copy + half, rest, &error));
    MUST(memcmp(copy, data + h->offset, h->bytes) == 0);
    MUST(!npy_read(reader, &extra, 1, &error)); /* there is nothing behind the data */
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    npy_reader reader;
    cli_error error = {""};
    if (size == 0) return 0; /* fmemopen has no empty streams */
    FILE *file = fmemopen((void *)(uintptr_t)data, size, "rb");
    if (!file) return 0;
    bool good = npy_open_stream(&reader, file, size, "input", &error);
    MUST(fuzz_said(error.text) == good);
    if (good) {
        char shape[160];
        read_all(&reader, data, size);
        npy_shape_text(shape, sizeof shape, reader.header.dims, reader.header.shape);
        MUST(shape[0] == '[' && strlen(shape) >= 2);
    } else {
        MUST(strstr(error.text, "input") != NULL); /* the sentence names the file */
    }
    fclose(file);
    return 0;
}
