/*
 * What fuzz targets share: a context that watches memory, files that lie in memory, faults.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <htransformer_models.h>
#include <stddef.h>
#include <stdint.h>

/* A target; each file defines it, libFuzzer or mutate.c calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A fault must stop the fuzzer also in builds without assertions. */
#define MUST(holds) fuzz_must((holds), #holds, __FILE__, __LINE__)
void fuzz_must(int holds, const char *what, const char *file, int line);

/* One thread, plain loops. A reader that asks for much more memory than a small input can be worth
 * is at fault: a size was believed before it was checked. */
ht_context *fuzz_context(void);

/* Was it taken? What is refused must have a sentence of one printable line. Seeds must be taken:
 * fuzz_count_taken says how many inputs were. */
int fuzz_taken(ht_status status);
int fuzz_said(const char *sentence); /* the same for a sentence, "" or NULL: taken */
long fuzz_count_taken(void);

/* An input in parts: the first byte as options, then parts that a form feed ends. */
typedef struct fuzz_part {
    const uint8_t *at;
    size_t bytes;
} fuzz_part;
int fuzz_option(fuzz_part *rest);       /* takes a byte; 0: there is none */
fuzz_part fuzz_next(fuzz_part *rest);   /* up to a form feed, which goes, too */
char *fuzz_text(const fuzz_part *part); /* with a 0 after it; to be freed */

/* A file in memory with these bytes, number 0 to 7: its name, good for ever; the bytes until the
 * number is used again. */
const char *fuzz_file(int number, const void *bytes, size_t size);

/* A folder of one's own, removed at the end. fuzz_link: file `number` under a name in it, and
 * fuzz_folder makes one in it, "a/b" after "a". */
const char *fuzz_root(void);
void fuzz_folder(const char *name);
void fuzz_link(const char *name, int number);

/* A configuration of the defaults and these keys. */
ht_config *fuzz_config(const char *json);

/* All of an open part, read as training and evaluation do; tokens must be below `vocab`. */
void fuzz_batches(ht_data *data, int64_t vocab);

#endif
