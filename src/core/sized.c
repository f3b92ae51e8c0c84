/*
 * Structs of programs that are older or newer than the library.
 */
#include "core/sized.h"

#include <ctype.h>
#include <string.h>

/* No struct grows beyond this: a larger size was never set. */
enum { MOST = 4096 };

static size_t size_of(const void *theirs) {
    size_t size;
    memcpy(&size, theirs, sizeof size);
    return size;
}

ht_status hti_sized_want(const ht_context *ctx, const hti_sized *s, const void *theirs) {
    char init[64] = "";
    CHECK(ctx, theirs, HT_INVALID, "a %s is needed, got NULL", s->name);
    size_t size = size_of(theirs);
    for (size_t i = 0; i + 1 < sizeof init && s->name[i]; i++)
        init[i] = (char)toupper((unsigned char)s->name[i]);
    CHECK(ctx, size >= s->least && size <= MOST, HT_INVALID,
          "%s.size must be %zu to %d, got %zu; start from %s_INIT", s->name, s->least, MOST, size,
          init);
    return HT_OK;
}

ht_status hti_sized_take(const ht_context *ctx, const hti_sized *s, void *ours,
                         const void *theirs) {
    TRY(hti_sized_want(ctx, s, theirs));
    size_t size = size_of(theirs), known = size < s->full ? size : s->full;
    const unsigned char *bytes = theirs;
    for (size_t i = known; i < size; i++)
        CHECK(ctx, bytes[i] == 0, HT_UNSUPPORTED,
              "%s: a field at byte %zu of %zu is set, but this library (%s) knows %zu: the program "
              "was built for a newer one",
              s->name, i, size, ht_version(), s->full);
    memset(ours, 0, s->full);
    memcpy(ours, theirs, known);
    memcpy(ours, &s->full, sizeof s->full);
    return HT_OK;
}

void hti_sized_give(const hti_sized *s, void *theirs, const void *ours) {
    const size_t own = sizeof(size_t); /* its size stays the caller's */
    size_t size = size_of(theirs), known = size < s->full ? size : s->full;
    memcpy((char *)theirs + own, (const char *)ours + own, known - own);
    memset((char *)theirs + known, 0, size - known);
}
