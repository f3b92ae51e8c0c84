/*
 * Strings numbered from 0 in the order in which they come; each is kept once. Models know them as
 * ht_labels.
 */
#ifndef HTI_NAMES_H
#define HTI_NAMES_H

#include "common/buffer.h"

typedef struct ht_labels { /* zero but for ctx: empty */
    ht_context *ctx;
    hti_buffer text;   /* of all names, a 0 after each */
    hti_buffer starts; /* int64_t per name */
    int32_t *slots;    /* [room], -1: empty */
    int64_t count, room;
} hti_names;

int32_t hti_names_find(const hti_names *n, const char *name, size_t bytes); /* -1: not there */
/* A new name or a known one: *number. */
ht_status hti_names_add(hti_names *n, const char *name, size_t bytes, int32_t *number);
/* Name `index`, a 0 after it; good until the next is added. bytes: or NULL. */
const char *hti_names_at(const hti_names *n, int64_t index, size_t *bytes);
ht_status hti_names_copy(hti_names *to, const hti_names *from); /* what was in `to` goes */
ht_status hti_names_count(hti_names *n, int64_t count);         /* adds "0", "1", ... */
int hti_names_equal(const hti_names *a, const hti_names *b);
void hti_names_free(hti_names *n);

#endif
