/*
 * What the targets share that take a set from its official form; nothing is written.
 */
#ifndef FUZZ_IMPORT_H
#define FUZZ_IMPORT_H

#include "fuzz.h"

static inline int import_set(const char *task) {
    ht_set_desc desc = HT_SET_DESC_INIT;
    ht_set_info info = HT_SET_INFO_INIT;
    desc.task = task, desc.source = fuzz_root(), desc.unchecked = 1;
    if (!fuzz_taken(ht_set_write(fuzz_context(), &desc, &info))) return 0;
    MUST(info.items[0] >= 0 && info.items[1] >= 0 && info.items[2] >= 0);
    return 1;
}

/* Part by part into files 0 to count - 1; the last one has all that is left. */
static inline void import_parts(fuzz_part *rest, int count) {
    for (int i = 0; i < count; i++) {
        fuzz_part part = i < count - 1 ? fuzz_next(rest) : *rest;
        fuzz_file(i, part.at, part.bytes);
    }
}

#endif
