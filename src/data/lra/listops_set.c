/*
 * ListOps as files in the benchmark's form, Source<TAB>Target with a round bracket around every
 * application: made, or read and checked (values, duplicates, counts).
 */
#include <string.h>

#include "data/lra/set.h"

enum { END = 15, OPERATOR = 11 };
static const char *const words[] = {"?", "0", "1", "2",    "3",    "4",    "5",   "6",
                                    "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};

/* Behind the expression at `at`. */
static int64_t skip(const uint16_t *ids, int64_t at) {
    int64_t open = 0;
    do {
        int id = ids[at++];
        open += id == END ? -1 : id >= OPERATOR;
    } while (open > 0);
    return at;
}

static ht_status put_word(hti_buffer *out, const char *word) {
    if (out->used && out->data[out->used - 1] != '\n') TRY(hti_buffer_add(out, " ", 1));
    return hti_buffer_add(out, word, strlen(word));
}

/* The expression at *at; an operator is applied to its arguments and the end one by one:
 * "( ( ( [MAX 2 ) 9 ) ] )". */
static ht_status put_expression(hti_buffer *out, const uint16_t *ids, int64_t *at) {
    int64_t arguments = 1;
    int id = ids[*at];
    if (id >= OPERATOR) {
        for (int64_t i = *at + 1; ids[i] != END; i = skip(ids, i)) arguments++;
        for (int64_t i = 0; i < arguments; i++) TRY(put_word(out, "("));
    }
    TRY(put_word(out, words[id]));
    ++*at;
    if (id < OPERATOR) return HT_OK;
    while (ids[*at] != END) {
        TRY(put_expression(out, ids, at));
        TRY(put_word(out, ")"));
    }
    ++*at;
    TRY(put_word(out, "]"));
    return put_word(out, ")");
}

/* ---- writing ---- */

typedef struct writing {
    hti_set *set;
    hti_pack pack;
    hti_buffer line;
    int part;
} writing;

static ht_status put_item(void *user, const uint16_t *ids, int64_t count, int value) {
    writing *w = user;
    char target[8];
    int64_t at = 0;
    w->line.used = 0;
    TRY(put_expression(&w->line, ids, &at));
    snprintf(target, sizeof target, "\t%d\n", value);
    TRY(hti_buffer_add(&w->line, target, 3));
    hti_set_count(w->set, w->part,
                  hti_sum_add(hti_sum_begin(value), ids, sizeof *ids * (size_t)count), count);
    TRY(hti_pack_put(&w->pack, w->line.data, w->line.used));
    return hti_set_tell(w->set, 1);
}

static ht_status begin(writing *out, hti_set *s, int part) {
    static const char head[] = "Source\tTarget\n";
    char name[32];
    *out = (writing){.set = s, .part = part, .line = {.ctx = s->ctx}};
    snprintf(name, sizeof name, "%s.tsv", hti_set_parts[part]);
    TRY(hti_pack_open(&out->pack, s, name));
    return hti_pack_put(&out->pack, head, sizeof head - 1);
}

static ht_status end(writing *w, ht_status status) {
    if (status == HT_OK) status = hti_pack_close(&w->pack);
    hti_pack_discard(&w->pack);
    hti_buffer_free(&w->line);
    return status;
}

/* All parts are one stream: valid, test, train. */
typedef struct parting {
    writing parts[3];
    int64_t ends[3], count; /* in the order of the stream */
} parting;

static ht_status put_next(void *user, const uint16_t *ids, int64_t count, int value) {
    static const int order[3] = {1, 2, 0};
    parting *p = user;
    int i = p->count < p->ends[0] ? 0 : p->count < p->ends[1] ? 1 : 2;
    p->count++;
    return put_item(&p->parts[order[i]], ids, count, value);
}

ht_status hti_listops_set(hti_set *s) {
    ht_config c;
    int64_t items[3];
    parting p = {.count = 0};
    memcpy(items, s->desc->items, sizeof items);
    if (!items[0] && !items[1] && !items[2]) items[0] = 96000, items[1] = items[2] = 2000;
    hti_config_defaults(&c, s->ctx);
    c.data_seed = s->desc->seed;
    p.ends[0] = items[1];
    p.ends[1] = p.ends[0] + items[2];
    p.ends[2] = s->all = p.ends[1] + items[0];
    ht_status status = HT_OK;
    for (int i = 0; i < 3 && status == HT_OK; i++) status = begin(&p.parts[i], s, i);
    int64_t attempts = 0;
    if (status == HT_OK)
        status = hti_listops_stream(s->ctx, &c, 0, p.ends[2], put_next, &p, &attempts);
    s->info->attempts = s->all ? (double)attempts / (double)s->all : 0;
    for (int i = 0; i < 3; i++) status = end(&p.parts[i], status);
    return status;
}

/* ---- the official files ---- */

typedef struct importing {
    writing out;
    hti_seen seen;
    uint16_t *ids; /* [room] */
    int64_t room;
} importing;

static ht_status at_line(ht_context *ctx, ht_status status, const char *name, int64_t number) {
    char why[256];
    if (status == HT_OK) return HT_OK;
    snprintf(why, sizeof why, "%s", ht_context_error(ctx));
    return hti_fail(ctx, status, "%s:%lld: %s", name, (long long)number, why);
}

static ht_status read_item(void *user, const char *name, int64_t number, const char *line,
                           size_t bytes) {
    importing *im = user;
    ht_context *ctx = im->out.set->ctx;
    int64_t count = 0;
    int value = 0, is_new = 0;
    const char *tab = memchr(line, '\t', bytes);
    CHECK(ctx, tab, HT_FORMAT, "%s:%lld: there is no tab; a line must be expression<TAB>value",
          name, (long long)number);
    if (number == 1 && bytes == 13 && memcmp(line, "Source\tTarget", 13) == 0) return HT_OK;
    TRY(at_line(ctx, hti_listops_encode(ctx, line, (size_t)(tab - line), im->ids, im->room, &count),
                name, number));
    CHECK(ctx, count <= im->room, HT_FORMAT, "%s:%lld: the expression has %lld tokens", name,
          (long long)number, (long long)count);
    TRY(at_line(ctx, hti_listops_value(ctx, im->ids, count, &value), name, number));
    CHECK(ctx, line + bytes == tab + 2 && tab[1] == '0' + value, HT_FORMAT,
          "%s:%lld: the value is %d, not %.*s", name, (long long)number, value,
          bytes - (size_t)(tab + 1 - line) < 20 ? (int)(bytes - (size_t)(tab + 1 - line)) : 20,
          tab + 1);
    TRY(hti_seen_add(&im->seen, im->ids, count, &is_new));
    CHECK(ctx, is_new, HT_FORMAT, "%s:%lld: this expression was there before", name,
          (long long)number);
    return put_item(&im->out, im->ids, count, value);
}

static ht_status read_items(void *user, const char *name, const char *bytes, size_t count) {
    return hti_source_lines(user, name, bytes, count, read_item);
}

static ht_status import_part(hti_set *s, importing *im, int part) {
    static const char *const names[] = {"basic_train.tsv", "basic_val.tsv", "basic_test.tsv"};
    char own[32], *path;
    snprintf(own, sizeof own, "listops-%s.tsv", hti_set_parts[part]);
    TRY(hti_set_find(&path, s->ctx, s->desc->source, names[part]));
    if (!path) TRY(hti_set_find(&path, s->ctx, s->desc->source, own));
    CHECK(s->ctx, path, HT_IO, "%s has no %s", s->desc->source, names[part]);
    ht_status status = begin(&im->out, s, part);
    if (status == HT_OK) status = hti_source_read(s->ctx, path, read_items, im);
    if (status == HT_OK) status = hti_set_expect(s, part, part ? 2000 : 96000);
    hti_host_free(s->ctx, path);
    return end(&im->out, status);
}

ht_status hti_listops_import(hti_set *s) {
    importing im = {.seen = {.ctx = s->ctx}, .room = 1 << 16};
    s->all = 100000;
    im.ids = hti_host_alloc(s->ctx, sizeof *im.ids * (size_t)im.room);
    ht_status status = im.ids ? HT_OK : hti_fail(s->ctx, HT_NOMEM, "out of memory: expressions");
    for (int part = 0; part < 3 && status == HT_OK; part++) status = import_part(s, &im, part);
    hti_host_free(s->ctx, im.ids);
    hti_seen_free(&im.seen);
    return status;
}
