/*
 * Inputs of the targets that read rows: the first byte has the options, the rest is the file.
 */
#ifndef FUZZ_ROWS_H
#define FUZZ_ROWS_H

#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Every byte that is handed on can be read. */
static inline int rows_look(void *user, const ht_row *row) {
    int64_t *count = user;
    unsigned sum = 0;
    for (size_t i = 0; i < row->label_bytes; i++) sum += (unsigned char)row->label[i];
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < row->text_bytes[t]; i++) sum += (unsigned char)row->text[t][i];
    MUST(row->line > 0 && row->file && sum + 1 > 0);
    ++*count;
    return 0;
}

static inline int rows_read(const uint8_t *data, size_t size, ht_rows_kind kind) {
    static const char *const columns[] = {NULL, "b", "2", "a,b"};
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest);
    int64_t count = 0;
    ht_rows_desc desc = HT_ROWS_DESC_INIT;
    ht_rows_info info = HT_ROWS_INFO_INIT;
    char *bytes = fuzz_text(&rest); /* of its own, so that a sanitizer sees its end */
    desc.bytes = bytes, desc.count = rest.bytes;
    desc.kind = how & 128 ? HT_ROWS_AUTO : kind;
    desc.header = (ht_header)(how % 3);
    desc.texts = how & 4 ? 2 : 1;
    desc.unlabelled = (how & 8) != 0, desc.skip_bad = (how & 16) != 0;
    desc.text_column = columns[how >> 5 & 3];
    desc.most = 4096;
    desc.each = rows_look, desc.user = &count;
    int good = fuzz_taken(ht_rows_read(fuzz_context(), &desc, &info));
    MUST(count == info.rows || !good);
    free(bytes);
    return 0;
}

#endif
