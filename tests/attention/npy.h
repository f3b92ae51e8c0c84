/*
 * Reads NumPy's .npy files: little-endian float32, C order, at most four dimensions.
 */
#ifndef NPY_H
#define NPY_H

#include <stdint.h>

typedef struct npy {
    int dims;
    int64_t shape[4];
    int64_t count;
    double *data; /* the pool's */
} npy;

/* 1 if the file is there and is such a file. */
int npy_read(npy *out, const char *path);

#endif
