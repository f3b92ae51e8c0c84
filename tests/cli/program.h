/*
 * Runs the command line as a user does, in a directory of its own, and keeps what it said. Also
 * writes and reads .npy files, sharing no code with the program's own reader.
 */
#ifndef TESTS_PROGRAM_H
#define TESTS_PROGRAM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct program_result {
    int code;  /* exit code; -1: ended by a signal */
    char *out; /* what it printed, ended by a zero */
    char *err;
} program_result;

/* A fresh directory, the working directory of everything below; group setup and teardown. */
int program_setup(void **state);
int program_teardown(void **state);

/* From now on the program in this file of the directory; NULL: the one that was built. */
void program_use(const char *name);

/* The program with these words, as the shell splits them. The result lives until the next call. */
const program_result *program_run(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Runs it and fails the test unless it ends with this code and says this on stderr. */
void program_expect(int code, const char *fragment, const char *words);

/* How many files here have a name that begins so? */
int program_files(const char *prefix);

/* Name of a file inside the directory; good until the next call but three. */
const char *program_path(const char *name);

/* Any bytes as a file. */
void program_write(const char *name, const void *bytes, size_t count);

/* A .npy file of version 1 with this dictionary, whatever it says, and these data. */
void npy_raw(const char *name, const char *dictionary, const void *data, size_t bytes);

/* Well-formed ones. shape as Python writes it: "(1, 2, 3, 4)". */
void npy_f32(const char *name, const char *shape, const float *data, size_t count);
void npy_f64(const char *name, const char *shape, const double *data, size_t count);
void npy_u8(const char *name, const char *shape, const uint8_t *data, size_t count);

/* The data of a file that must have this dtype and shape; malloc'ed, with its count of numbers. */
void *npy_data(const char *name, const char *descr, const char *shape, size_t *count);

/* Numbers between -1 and 1, the same every time. */
double program_random(uint64_t *seed);

#endif
