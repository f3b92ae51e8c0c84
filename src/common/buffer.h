/*
 * A growing array of bytes.
 */
#ifndef HTI_BUFFER_H
#define HTI_BUFFER_H

#include "core/context.h"

typedef struct hti_buffer { /* from hti_host_alloc */
    ht_context *ctx;
    char *data;
    size_t used, room;
} hti_buffer;
ht_status hti_buffer_need(hti_buffer *b, size_t more); /* room for so many more */
ht_status hti_buffer_add(hti_buffer *b, const void *bytes, size_t count);
void hti_buffer_free(hti_buffer *b);

#endif
