/*
 * Items of tokens that say which of them are to be guessed: read, made, written, put into batches.
 */
#include "data/marked/marked.h"

#include <stdio.h>
#include <string.h>

#include "data/lra/set.h"

static const char magic[8] = {'h', 't', 't', 'o', 'k', 'e', 'n', 's'};
enum { TOKEN_BYTES = 2, BACK_BYTES = 4 };

void hti_marked_header(unsigned char out[HTI_MARKED_HEADER], int64_t vocab, int64_t tokens,
                       int64_t items) {
    memset(out, 0, HTI_MARKED_HEADER);
    memcpy(out, magic, sizeof magic);
    hti_put_number(out + 8, 1, 4);
    hti_put_number(out + 12, (uint64_t)vocab, 4);
    hti_put_number(out + 16, (uint64_t)tokens, 4);
    hti_put_number(out + 24, (uint64_t)items, 8);
}

/* ---- files ---- */

typedef struct reading {
    ht_data *data;
    const ht_data_desc *desc;
    int64_t seen; /* items of all files */
} reading;

/* One file's items. */
typedef struct records {
    const char *name;
    const unsigned char *at;
    int64_t vocab, tokens;
    uint64_t count, bytes; /* of an item */
} records;

static ht_status read_header(const ht_data *d, records *r, const unsigned char *bytes,
                             size_t count) {
    CHECK(d->ctx, count >= HTI_MARKED_HEADER && memcmp(bytes, magic, sizeof magic) == 0, HT_FORMAT,
          "%s is no file of tokens: it should begin with httokens (docs/formats.md)", r->name);
    CHECK(d->ctx, hti_get_number(bytes + 8, 4) == 1, HT_FORMAT,
          "%s has version %llu of the format, this program knows 1", r->name,
          (unsigned long long)hti_get_number(bytes + 8, 4));
    r->vocab = (int64_t)hti_get_number(bytes + 12, 4);
    r->tokens = (int64_t)hti_get_number(bytes + 16, 4);
    r->count = hti_get_number(bytes + 24, 8);
    r->bytes = (uint64_t)r->tokens * (TOKEN_BYTES + BACK_BYTES);
    r->at = bytes + HTI_MARKED_HEADER;
    CHECK(d->ctx,
          r->tokens > 1 && r->count <= count / r->bytes &&
              count - HTI_MARKED_HEADER == r->count * r->bytes,
          HT_FORMAT, "%s should have %llu items of %lld tokens after its header, it has %zu bytes",
          r->name, (unsigned long long)r->count, (long long)r->tokens, count - HTI_MARKED_HEADER);
    CHECK(d->ctx, r->tokens <= d->config.length + 1, HT_INVALID,
          "%s has items of %lld tokens; they need a length of %lld, got %lld", r->name,
          (long long)r->tokens, (long long)r->tokens - 1, (long long)d->config.length);
    CHECK(d->ctx, r->vocab <= d->config.vocab, HT_INVALID, "%s needs a vocab of %lld, got %lld",
          r->name, (long long)r->vocab, (long long)d->config.vocab);
    return HT_OK;
}

static ht_status end_item(ht_data *d) {
    int64_t end = (int64_t)(d->tokens.used / sizeof(uint16_t));
    d->items++;
    return hti_buffer_add(&d->starts, &end, sizeof end);
}

static ht_status add_item(ht_data *d, const records *r, uint64_t number) {
    const unsigned char *id = r->at + number * r->bytes, *from = id + r->tokens * TOKEN_BYTES;
    int counts = 0;
    for (int64_t i = 0; i < r->tokens; i++) {
        uint16_t token = (uint16_t)hti_get_number(id + i * TOKEN_BYTES, TOKEN_BYTES);
        int32_t back = (int32_t)(uint32_t)hti_get_number(from + i * BACK_BYTES, BACK_BYTES);
        CHECK(d->ctx, token < r->vocab, HT_FORMAT,
              "%s: item %llu has the token %d, but a vocab of %lld", r->name,
              (unsigned long long)number + 1, token, (long long)r->vocab);
        CHECK(d->ctx, back >= HTI_UNPLACED && back <= i && (i > 0 || back == 0), HT_FORMAT,
              "%s: token %lld of item %llu stands %d tokens back, before the item", r->name,
              (long long)i + 1, (unsigned long long)number + 1, back);
        counts |= back != 0;
        TRY(hti_buffer_add(&d->tokens, &token, sizeof token));
        TRY(hti_buffer_add(&d->back, &back, sizeof back));
    }
    CHECK(d->ctx, counts, HT_FORMAT, "%s: item %llu has no token that counts", r->name,
          (unsigned long long)number + 1);
    return end_item(d);
}

static ht_status read_file(void *user, const char *name, const char *bytes, size_t count) {
    reading *r = user;
    ht_data *d = r->data;
    double share = r->desc->holdout;
    records from = {.name = name};
    TRY(read_header(d, &from, (const unsigned char *)bytes, count));
    for (uint64_t i = 0; i < from.count; i++)
        if (share == 0 || hti_held_out(r->seen++, share) == (r->desc->part == HT_PART_VALID))
            TRY(add_item(d, &from, i));
    if (from.tokens - 1 > d->longest) d->longest = from.tokens - 1;
    return HT_OK;
}

/* ---- made in memory ---- */

static ht_status make_all(ht_data *d, const ht_data_desc *desc) {
    const ht_config *c = &d->config;
    hti_maker m;
    int64_t count = desc->part == HT_PART_TRAIN ? c->train_items : c->valid_items;
    TRY(hti_maker_begin(&m, d->ctx, c->format, c->length, c->data_seed, (int)desc->part));
    CHECK(d->ctx, c->vocab >= m.vocab, HT_INVALID, "%s needs a vocab of %lld, got %lld",
          hti_config_choice("format", c->format), (long long)m.vocab, (long long)c->vocab);
    size_t tokens = (size_t)count * (size_t)(m.length + 1);
    TRY(hti_buffer_need(&d->tokens, sizeof(uint16_t) * tokens));
    TRY(hti_buffer_need(&d->back, sizeof(int32_t) * tokens));
    hti_maker_make(d->ctx, &m, (uint16_t *)(void *)d->tokens.data, (int32_t *)(void *)d->back.data,
                   0, count);
    d->back.used = sizeof(int32_t) * tokens;
    for (int64_t i = 0; i < count; i++) {
        d->tokens.used += sizeof(uint16_t) * (size_t)(m.length + 1);
        TRY(end_item(d));
    }
    d->longest = m.length;
    return HT_OK;
}

ht_status hti_marked_read(ht_data *d, const ht_data_desc *desc) {
    reading r = {d, desc, 0};
    CHECK(d->ctx, d->config.task == HTI_TASK_LANGUAGE, HT_INVALID,
          "tokens that are to be guessed are for language models, got task %s",
          hti_config_choice("task", d->config.task));
    if (!desc->path && d->config.format != HTI_FORMAT_TOKENS) return make_all(d, desc);
    CHECK(d->ctx, desc->path, HT_INVALID, "data of format tokens needs a path");
    return hti_source_read(d->ctx, desc->path, read_file, &r);
}

/* ---- batches ---- */

void hti_marked_put(ht_data *d, int64_t item, int64_t slot) {
    const int64_t *starts = (const int64_t *)(const void *)d->starts.data;
    int64_t from = starts[item], n = starts[item + 1] - from - 1, at = d->batch_starts[slot];
    const uint16_t *token = (const uint16_t *)(const void *)d->tokens.data + from;
    const int32_t *back = (const int32_t *)(const void *)d->back.data + from;
    for (int64_t i = 0; i < n; i++) {
        d->batch_tokens[at + i] = token[i];
        d->batch_targets[at + i] = back[i + 1] ? token[i + 1] : -1;
        d->batch_back[at + i] = back[i + 1] > 0 ? back[i + 1] : 0;
    }
    d->batch_starts[slot + 1] = (int32_t)(at + n);
}

/* ---- sets ---- */

/* room: back, ids, then the bytes of the file, for `count` items */
static ht_status write_items(hti_set *s, hti_pack *pack, const hti_maker *m, int64_t first,
                             int64_t count, int32_t *room) {
    int64_t n = m->length + 1, item = n * (TOKEN_BYTES + BACK_BYTES);
    int32_t *back = room;
    uint16_t *ids = (uint16_t *)(back + count * n);
    unsigned char *bytes = (unsigned char *)(ids + count * n);
    hti_maker_make(s->ctx, m, ids, back, first, count);
    for (int64_t i = 0; i < count; i++) {
        unsigned char *to = bytes + i * item;
        for (int64_t k = 0; k < n; k++) {
            hti_put_number(to + k * TOKEN_BYTES, ids[i * n + k], TOKEN_BYTES);
            hti_put_number(to + n * TOKEN_BYTES + k * BACK_BYTES, (uint32_t)back[i * n + k],
                           BACK_BYTES);
        }
        hti_set_count(s, m->part, hti_sum_add(hti_sum_begin(0), to, (size_t)item), n - 1);
    }
    TRY(hti_pack_put(pack, bytes, (size_t)(count * item)));
    return hti_set_tell(s, count);
}

static ht_status write_part(hti_set *s, const hti_maker *m, int64_t items, int32_t *room,
                            int64_t chunk) {
    unsigned char header[HTI_MARKED_HEADER];
    char name[32];
    hti_pack pack;
    if (items == 0) return HT_OK;
    snprintf(name, sizeof name, "%s.tokens", hti_set_parts[m->part]);
    hti_marked_header(header, m->vocab, m->length + 1, items);
    TRY(hti_pack_open(&pack, s, name));
    ht_status status = hti_pack_put(&pack, header, sizeof header);
    for (int64_t at = 0; at < items && status == HT_OK; at += chunk)
        status = write_items(s, &pack, m, at, items - at < chunk ? items - at : chunk, room);
    if (status == HT_OK) status = hti_pack_close(&pack);
    hti_pack_discard(&pack);
    return status;
}

ht_status hti_marked_set(hti_set *s, int64_t format) {
    enum { TRAIN = 20000, OTHERS = 1000, LENGTH = 512, SPACE = 1 << 20 };
    int64_t items[3], length = s->desc->length ? s->desc->length : LENGTH;
    int64_t chunk = 1 + SPACE / (length + 1);
    memcpy(items, s->desc->items, sizeof items);
    if (!items[0] && !items[1] && !items[2]) items[0] = TRAIN, items[1] = items[2] = OTHERS;
    s->all = items[0] + items[1] + items[2];
    hti_maker m;
    TRY(hti_maker_begin(&m, s->ctx, format, length, s->desc->seed, HT_PART_TRAIN));
    int32_t *room = hti_host_alloc(s->ctx, 3 * sizeof *room * (size_t)(chunk * (length + 1)));
    ht_status status = room ? HT_OK : hti_fail(s->ctx, HT_NOMEM, "out of memory: items");
    for (m.part = 0; m.part < 3 && status == HT_OK; m.part++)
        status = write_part(s, &m, items[m.part], room, chunk);
    hti_host_free(s->ctx, room);
    return status;
}
