/*
 * Labelled texts, one per line: label<TAB>text, of pairs label<TAB>text<TAB>text. Bytes, or
 * expressions if the data is ListOps. A first line "Source<TAB>Target" (the Long Range Arena's
 * ListOps files) means text<TAB>label.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/philox.h"
#include "data/data.h"

typedef struct tsv {
    ht_data *data;
    const ht_data_desc *desc;
    int64_t seen; /* items of all files, of all parts */
    int text_first;
} tsv;

int hti_held_out(int64_t index, double share) {
    hti_philox w = hti_philox_draw(0x7A11D, (uint32_t)index, (uint32_t)(index >> 32), 0, 0);
    return (double)w.w[0] < share * 4294967296.0;
}

/* Where a line stands, for messages. */
typedef struct place {
    const char *name;
    long long line;
} place;

static ht_status read_label(const ht_data *d, const place *at, const char *text, size_t bytes,
                            int32_t *out) {
    char word[32], *end;
    CHECK(d->ctx, bytes > 0 && bytes < sizeof word, HT_FORMAT,
          "%s:%lld: the label must be a whole number, got '%.*s'", at->name, at->line,
          bytes < 40 ? (int)bytes : 40, text);
    memcpy(word, text, bytes);
    word[bytes] = '\0';
    double x = strtod(word, &end);
    CHECK(d->ctx, end != word && *end == '\0' && x == floor(x), HT_FORMAT,
          "%s:%lld: the label must be a whole number, got '%s'", at->name, at->line, word);
    CHECK(d->ctx, x >= 0 && x < (double)d->config.classes, HT_FORMAT,
          "%s:%lld: label %s is out of range: classes is %lld, so labels are 0 to %lld", at->name,
          at->line, word, (long long)d->config.classes, (long long)d->config.classes - 1);
    *out = (int32_t)x;
    return HT_OK;
}

static ht_status add_expression(ht_data *d, const char *text, size_t bytes) {
    int64_t room = (int64_t)bytes + 1, count = 0;
    uint16_t *ids = hti_host_alloc(d->ctx, sizeof *ids * (size_t)room);
    CHECK(d->ctx, ids, HT_NOMEM, "out of memory: an expression of %zu bytes", bytes);
    ht_status status = hti_listops_encode(d->ctx, text, bytes, ids, room, &count);
    if (status == HT_OK) status = hti_data_add_ids(d, ids, count);
    hti_host_free(d->ctx, ids);
    return status;
}

static ht_status add_text(ht_data *d, const place *at, const char *text, size_t bytes) {
    CHECK(d->ctx, bytes > 0, HT_FORMAT, "%s:%lld: the text is empty", at->name, at->line);
    if (d->config.format != HT_FORMAT_LISTOPS) return hti_data_add_bytes(d, text, bytes);
    ht_status status = add_expression(d, text, bytes);
    if (status != HT_FORMAT) return status;
    char why[256];
    strncpy(why, ht_context_error(d->ctx), sizeof why - 1);
    why[sizeof why - 1] = '\0';
    return hti_fail(d->ctx, HT_FORMAT, "%s:%lld: %s", at->name, at->line, why);
}

static ht_status read_line(tsv *t, const place *at, const char *line, size_t bytes) {
    ht_data *d = t->data;
    const char *tab = memchr(line, '\t', bytes);
    CHECK(d->ctx, tab, HT_FORMAT, "%s:%lld: there is no tab; a line must be label<TAB>text",
          at->name, at->line);
    const char *text = tab + 1, *label = line;
    size_t label_bytes = (size_t)(tab - line), text_bytes = bytes - label_bytes - 1;
    if (t->text_first) {
        label = text, label_bytes = text_bytes;
        text = line, text_bytes = (size_t)(tab - line);
    }
    int32_t number = 0;
    TRY(read_label(d, at, label, label_bytes, &number));
    if (t->desc->holdout > 0 &&
        hti_held_out(t->seen++, t->desc->holdout) != (t->desc->part == HT_PART_VALID))
        return HT_OK;
    if (d->config.task == HT_TASK_PAIRS) {
        const char *second = memchr(text, '\t', text_bytes);
        CHECK(d->ctx, second, HT_FORMAT,
              "%s:%lld: there is no second tab; a line of pairs must be "
              "label<TAB>text<TAB>text",
              at->name, at->line);
        TRY(add_text(d, at, text, (size_t)(second - text)));
        text_bytes -= (size_t)(second - text) + 1;
        text = second + 1;
    }
    TRY(add_text(d, at, text, text_bytes));
    return hti_data_add_label(d, number);
}

static ht_status read_file(void *user, const char *name, const char *bytes, size_t count) {
    tsv *t = user;
    place at = {name, 0};
    t->text_first = 0;
    for (size_t from = 0; from < count;) {
        const char *end = memchr(bytes + from, '\n', count - from);
        size_t n = end ? (size_t)(end - bytes) - from : count - from, next = from + n + 1;
        if (n > 0 && bytes[from + n - 1] == '\r') n--;
        at.line++;
        if (at.line == 1 && n == 13 && memcmp(bytes, "Source\tTarget", 13) == 0)
            t->text_first = 1;
        else if (n > 0 || next < count)
            TRY(read_line(t, &at, bytes + from, n));
        from = next;
    }
    return HT_OK;
}

ht_status hti_tsv_read(ht_data *d, const ht_data_desc *desc) {
    tsv t = {d, desc, 0, 0};
    CHECK(d->ctx, desc->path, HT_INVALID, "data from a tsv needs a path");
    CHECK(d->ctx, d->config.task != HT_TASK_LANGUAGE, HT_INVALID,
          "a language model learns from text, not from a tsv");
    return hti_source_read(d->ctx, desc->path, read_file, &t);
}
