/*
 * Buffers double when they are full.
 */
#include "common/buffer.h"

#include <string.h>

ht_status hti_buffer_need(hti_buffer *b, size_t more) {
    if (more <= b->room - b->used) return HT_OK;
    size_t room = b->room ? b->room : 4096;
    while (room - b->used < more) {
        CHECK(b->ctx, room <= SIZE_MAX / 4, HT_NOMEM, "out of memory: the data is too large");
        room *= 2;
    }
    char *data = hti_host_alloc(b->ctx, room);
    CHECK(b->ctx, data, HT_NOMEM, "out of memory: %zu bytes of data", room);
    if (b->used) memcpy(data, b->data, b->used);
    hti_host_free(b->ctx, b->data);
    b->data = data;
    b->room = room;
    return HT_OK;
}

ht_status hti_buffer_add(hti_buffer *b, const void *bytes, size_t count) {
    TRY(hti_buffer_need(b, count));
    if (count) memcpy(b->data + b->used, bytes, count);
    b->used += count;
    return HT_OK;
}

void hti_buffer_free(hti_buffer *b) {
    hti_host_free(b->ctx, b->data);
    b->data = NULL;
    b->used = b->room = 0;
}
