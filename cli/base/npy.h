/*
 * NumPy's .npy files: read in a stream, checked before anything is allocated from what they
 * say.
 *
 * Taken are format versions 1 to 3, C order, little-endian float32, float64, float16, and
 * uint8 or bool for masks. All else is refused with one sentence that names the file and the value.
 */
#ifndef CLI_BASE_NPY_H
#define CLI_BASE_NPY_H

#include "base/say.h"

#include <stdint.h>

#define NPY_MAX_DIMS 8

typedef enum npy_type { NPY_F32, NPY_F64, NPY_U8, NPY_BOOL, NPY_F16 } npy_type;

typedef struct npy_header {
    npy_type type;
    int dims;
    int64_t shape[NPY_MAX_DIMS]; /* each >= 0 */
    int64_t elements;            /* their product; 1 without dimensions */
    uint64_t bytes;              /* of the data */
    uint64_t offset;             /* of the data in the file */
} npy_header;

typedef struct npy_reader {
    FILE *file;
    const char *name; /* as messages call it; the caller keeps it */
    npy_header header;
    uint64_t left; /* bytes of data not read yet */
} npy_reader;

const char *npy_type_name(npy_type type); /* "float32" */
size_t npy_type_bytes(npy_type type);

/* Opens a regular file and reads its header. The data are known to be there, to the byte. */
bool npy_open(npy_reader *out, const char *path, cli_error *error);

/* The same on a stream that holds `size` bytes and stands at its beginning; the caller closes
 * it. */
bool npy_open_stream(npy_reader *out, FILE *file, uint64_t size, const char *name,
                     cli_error *error);

/* The next `bytes` of the data. */
bool npy_read(npy_reader *reader, void *out, size_t bytes, cli_error *error);
void npy_close(npy_reader *reader); /* also of a reader that is all zero */

/* Header of a file of version 1.0, padded so that the data start at a multiple of 64; returns
 * its bytes. */
#define NPY_HEADER_MOST 384
size_t npy_make_header(char out[NPY_HEADER_MOST], npy_type type, int dims, const int64_t *shape);

/* "[2, 64, 8, 16]" */
const char *npy_shape_text(char *out, size_t bytes, int dims, const int64_t *shape);

#endif
