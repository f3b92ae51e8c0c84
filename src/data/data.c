/*
 * Data as an object: open, batches in order, batches drawn from the shuffled endless stream.
 */
#include "data/data.h"

#include <string.h>

#include "core/philox.h"
#include "core/sized.h"
#include "data/marked/marked.h"

static const uint16_t *tokens_of(const ht_data *d) {
    return (const uint16_t *)(const void *)d->tokens.data;
}
static const int64_t *starts_of(const ht_data *d) {
    return (const int64_t *)(const void *)d->starts.data;
}
static const int32_t *labels_of(const ht_data *d) {
    return (const int32_t *)(const void *)d->labels.data;
}
static const int32_t *papers_of(const ht_data *d) {
    return (const int32_t *)(const void *)d->papers.data;
}
static int per_item(const ht_data *d) { return d->config.task == HTI_TASK_PAIRS ? 2 : 1; }

/* ---- filling ---- */

static int64_t cut_to(ht_data *d, int64_t count) {
    if (count > d->longest) d->longest = count;
    if (count <= d->config.length) return count;
    d->cut++;
    return d->config.length;
}

static ht_status end_sequence(ht_data *d) {
    int64_t end = (int64_t)(d->tokens.used / sizeof(uint16_t));
    return hti_buffer_add(&d->starts, &end, sizeof end);
}

ht_status hti_data_add_ids(ht_data *d, const uint16_t *ids, int64_t count) {
    CHECK(d->ctx, count > 0, HT_FORMAT, "the text is empty");
    count = cut_to(d, count);
    TRY(hti_buffer_add(&d->tokens, ids, sizeof *ids * (size_t)count));
    return end_sequence(d);
}

ht_status hti_data_add_bytes(ht_data *d, const char *text, size_t bytes) {
    int64_t count = cut_to(d, (int64_t)bytes);
    TRY(hti_buffer_need(&d->tokens, sizeof(uint16_t) * (size_t)count));
    uint16_t *to = (uint16_t *)(void *)(d->tokens.data + d->tokens.used);
    for (int64_t i = 0; i < count; i++) to[i] = (uint16_t)((unsigned char)text[i] + 1);
    d->tokens.used += sizeof *to * (size_t)count;
    return end_sequence(d);
}

ht_status hti_data_add_label(ht_data *d, int32_t label) {
    d->items++;
    return hti_buffer_add(&d->labels, &label, sizeof label);
}

/* ---- open and close ---- */

static int is_labelled(const ht_config *c, const char *path) {
    return c->format == HTI_FORMAT_TSV || (c->format == HTI_FORMAT_LISTOPS && path);
}

static ht_status fill(ht_data *d, const ht_data_desc *desc) {
    const ht_config *c = &d->config;
    if (c->format == HTI_FORMAT_TEXT) return hti_text_read(d, desc);
    if (hti_config_marks(c)) return hti_marked_read(d, desc);
    if (is_labelled(c, desc->path)) return hti_labelled_read(d, NULL, desc);
    if (c->format == HTI_FORMAT_LISTOPS) return hti_listops_make(d, desc);
    if (c->format == HTI_FORMAT_PATHFINDER && !desc->path) return hti_images_make(d, desc);
    return hti_images_read(d, desc);
}

/* Of what was read. */
static ht_status settle(ht_data *d, const ht_data_desc *desc, ht_part part) {
    const ht_config *c = &d->config;
    const char *name = desc->path ? desc->path : "the data";
    CHECK(d->ctx, d->items > 0 || desc->holdout == 0, HT_INVALID,
          "%s has no items %s when %g of it is held out; hold out a larger or smaller share", name,
          part == HT_PART_VALID ? "to validate on" : "to train on", desc->holdout);
    CHECK(d->ctx, d->items > 0, HT_INVALID, "%s has no items", name);
    if (desc->items > 0 && desc->items < d->items) d->items = desc->items;
    if (hti_config_by_token(c) || d->names.count) return HT_OK;
    return hti_names_count(&d->names, c->classes);
}

static ht_status allocate(ht_data *d) {
    size_t sequences = (size_t)(d->config.batch * per_item(d)),
           tokens = sequences * (size_t)d->config.length;
    if (d->config.format == HTI_FORMAT_TEXT) sequences = tokens; /* windows may be split anywhere */
    d->order = hti_host_alloc(d->ctx, sizeof *d->order * (size_t)d->items);
    d->batch_tokens = hti_host_alloc(d->ctx, sizeof *d->batch_tokens * tokens);
    d->batch_targets = hti_host_alloc(d->ctx, sizeof *d->batch_targets * tokens);
    d->batch_starts = hti_host_alloc(d->ctx, sizeof *d->batch_starts * (sequences + 1));
    if (hti_config_marks(&d->config))
        d->batch_back = hti_host_alloc(d->ctx, sizeof *d->batch_back * tokens);
    int varies = hti_images_varies(&d->config);
    if (varies) d->image = hti_host_alloc(d->ctx, sizeof *d->image * (size_t)d->config.length);
    int marked = !hti_config_marks(&d->config) || d->batch_back;
    CHECK(d->ctx,
          d->order && d->batch_tokens && d->batch_targets && d->batch_starts && marked &&
              (!varies || d->image),
          HT_NOMEM, "out of memory: a batch of %zu tokens", tokens);
    return HT_OK;
}

static ht_status take_desc(ht_context *ctx, ht_data_desc *own, const ht_data_desc *given) {
    TRY(HTI_TAKE(ctx, ht_data_desc, own, given));
    CHECK(ctx, own->config, HT_INVALID, "ht_data_desc.config is NULL");
    CHECK(ctx, own->holdout >= 0 && own->holdout < 1, HT_INVALID,
          "holdout must be in [0, 1), got %g", own->holdout);
    return HT_OK;
}

/* With nothing in it. */
static ht_status begin(ht_data **out, ht_context *ctx, const ht_data_desc *desc) {
    int64_t zero = 0;
    ht_config config = *desc->config;
    TRY(hti_config_resolve(ctx, &config));
    ht_data *d = hti_host_alloc(ctx, sizeof *d);
    CHECK(ctx, d, HT_NOMEM, "out of memory: %zu bytes for data", sizeof *d);
    memset(d, 0, sizeof *d);
    d->ctx = ctx;
    d->config = config;
    d->classes_asked = desc->config->classes;
    d->rows = (ht_rows_info)HT_ROWS_INFO_INIT;
    d->epoch = -1;
    d->tokens.ctx = d->starts.ctx = d->labels.ctx = ctx;
    d->papers.ctx = d->names.ctx = d->back.ctx = d->texts.ctx = d->text_ends.ctx = ctx;
    *out = d;
    return hti_buffer_add(&d->starts, &zero, sizeof zero);
}

ht_status ht_data_open(ht_data **out, ht_context *ctx, const ht_data_desc *given) {
    CHECK(ctx, out, HT_INVALID, "ht_data_open: out is NULL");
    *out = NULL;
    NEED(ctx);
    ht_data_desc desc;
    ht_data *d = NULL;
    TRY(take_desc(ctx, &desc, given));
    ht_status status = begin(&d, ctx, &desc);
    if (status == HT_OK) status = fill(d, &desc);
    if (status == HT_OK) status = settle(d, &desc, desc.part);
    if (status == HT_OK) status = allocate(d);
    if (status == HT_OK)
        *out = d;
    else
        ht_data_close(d);
    return status;
}

/* ---- both parts ---- */

static ht_status fill_parts(ht_data **parts, ht_context *ctx, const ht_data_desc *desc) {
    TRY(begin(&parts[HT_PART_TRAIN], ctx, desc));
    TRY(begin(&parts[HT_PART_VALID], ctx, desc));
    TRY(hti_labelled_read(parts[HT_PART_TRAIN], parts[HT_PART_VALID], desc));
    for (int i = 0; i < 2; i++) {
        TRY(settle(parts[i], desc, (ht_part)i));
        TRY(allocate(parts[i]));
    }
    return HT_OK;
}

/* One after the other, where they share more than lines. */
static ht_status open_parts(ht_data **parts, ht_context *ctx, ht_data_desc desc) {
    desc.part = HT_PART_TRAIN;
    TRY(ht_data_open(&parts[0], ctx, &desc));
    desc.part = HT_PART_VALID;
    if (!desc.labels && is_labelled(&parts[0]->config, desc.path))
        desc.labels = ht_data_labels(parts[0]);
    return ht_data_open(&parts[1], ctx, &desc);
}

ht_status ht_data_open_parts(ht_data **train, ht_data **valid, ht_context *ctx,
                             const ht_data_desc *given) {
    CHECK(ctx, train && valid, HT_INVALID, "ht_data_open_parts: train or valid is NULL");
    *train = *valid = NULL;
    NEED(ctx);
    ht_data_desc desc;
    ht_data *parts[2] = {NULL, NULL};
    TRY(take_desc(ctx, &desc, given));
    CHECK(ctx, desc.path && desc.holdout > 0, HT_INVALID,
          "two parts need a path of which a share is held out, got holdout %g", desc.holdout);
    int once = is_labelled(desc.config, desc.path) && desc.config->task != HTI_TASK_PAIRS;
    ht_status status = once ? fill_parts(parts, ctx, &desc) : open_parts(parts, ctx, desc);
    for (int i = 0; i < 2 && status != HT_OK; i++) ht_data_close(parts[i]);
    if (status == HT_OK) *train = parts[HT_PART_TRAIN], *valid = parts[HT_PART_VALID];
    return status;
}

void ht_data_close(ht_data *d) {
    if (!d) return;
    hti_tokens_free(&d->text);
    hti_buffer_free(&d->tokens);
    hti_buffer_free(&d->starts);
    hti_buffer_free(&d->back);
    hti_buffer_free(&d->labels);
    hti_buffer_free(&d->papers);
    hti_buffer_free(&d->texts);
    hti_buffer_free(&d->text_ends);
    hti_names_free(&d->names);
    hti_host_free(d->ctx, d->order);
    hti_host_free(d->ctx, d->batch_tokens);
    hti_host_free(d->ctx, d->batch_targets);
    hti_host_free(d->ctx, d->batch_starts);
    hti_host_free(d->ctx, d->batch_back);
    hti_host_free(d->ctx, d->image);
    hti_host_free(d->ctx, d);
}

/* Tokens of the windows of this part; the last one's last is a target alone. */
static int64_t text_tokens(const ht_data *d) {
    int64_t from = d->first_window * d->config.length, to = from + d->items * d->config.length;
    return (to < d->text.count - 1 ? to : d->text.count) - from;
}

static ht_status count_labels(const ht_data *d, ht_data_info *out) {
    out->classes = d->config.classes;
    int64_t *count = hti_host_alloc(d->ctx, sizeof *count * (size_t)d->config.classes), most = 0;
    CHECK(d->ctx, count, HT_NOMEM, "out of memory: counting labels");
    memset(count, 0, sizeof *count * (size_t)d->config.classes);
    for (int64_t i = 0; i < d->items; i++) {
        int64_t label = labels_of(d)[i];
        if (++count[label] > most) most = count[label];
    }
    hti_host_free(d->ctx, count);
    out->majority = (double)most / (double)d->items;
    return HT_OK;
}

ht_status ht_data_get_info(const ht_data *d, ht_data_info *out) {
    NEED(d);
    TRY(HTI_WANT(d->ctx, ht_data_info, out));
    ht_data_info info = {.items = d->items, .longest = d->longest, .cut = d->cut};
    info.tokens = (int64_t)(d->tokens.used / (d->narrow ? 1 : sizeof(uint16_t)));
    info.documents = d->documents;
    if (hti_config_marks(&d->config)) info.tokens -= d->items; /* the last is a target alone */
    if (d->config.format == HTI_FORMAT_TEXT) info.tokens = text_tokens(d);
    if (!hti_config_by_token(&d->config)) TRY(count_labels(d, &info));
    HTI_GIVE(ht_data_info, out, &info);
    return HT_OK;
}

const ht_labels *ht_data_labels(const ht_data *d) { return d && d->names.count ? &d->names : NULL; }

ht_status ht_data_get_rows(const ht_data *d, ht_rows_info *out) {
    NEED(d);
    TRY(HTI_WANT(d->ctx, ht_rows_info, out));
    HTI_GIVE(ht_rows_info, out, &d->rows);
    return HT_OK;
}

const char *ht_data_text(const ht_data *d, int64_t item, size_t *bytes) {
    const int64_t *ends = d ? (const int64_t *)(const void *)d->text_ends.data : NULL;
    int there = ends && item >= 0 && item < d->items;
    int64_t from = there && item > 0 ? ends[item - 1] : 0;
    if (bytes) *bytes = there ? (size_t)(ends[item] - from) : 0;
    return there ? d->texts.data + from : NULL;
}

/* ---- batches ---- */

static int64_t put_sequence(ht_data *d, int64_t sequence, int64_t at) {
    int64_t from = starts_of(d)[sequence], n = starts_of(d)[sequence + 1] - from;
    const uint8_t *pixels = (const uint8_t *)d->tokens.data + from;
    if (d->narrow)
        for (int64_t i = 0; i < n; i++) d->batch_tokens[at + i] = pixels[i];
    else
        for (int64_t i = 0; i < n; i++) d->batch_tokens[at + i] = tokens_of(d)[from + i];
    return n;
}

/* Targets of a sequence whose tokens are to be guessed: runs of neighbours, drawn at `key`. */
static void hide(ht_data *d, uint64_t key, int64_t at, int64_t n) {
    uint64_t limit = (uint64_t)(d->config.hide * 4294967296.0);
    int64_t run = d->config.hide_run;
    hti_philox first = hti_philox_draw((uint64_t)d->config.seed ^ 0x41DEu, (uint32_t)key,
                                       (uint32_t)(key >> 32), UINT32_MAX, 0);
    int64_t shift = (int64_t)(first.w[0] % (uint64_t)run), from = 0;
    for (int64_t group = 0; from < n; group++) { /* the first is what the shift leaves of it */
        int64_t end = (group + 1) * run - shift;
        if (end > n) end = n;
        hti_philox w = hti_philox_draw((uint64_t)d->config.seed ^ 0x41DEu, (uint32_t)key,
                                       (uint32_t)(key >> 32), (uint32_t)group, 0);
        const int32_t *token = d->batch_tokens + at;
        int32_t *target = d->batch_targets + at;
        int hidden = w.w[0] < limit;
        for (; from < end; from++) target[from] = hidden ? token[from] : -1;
    }
}

/* Targets of a sequence of which each token is guessed from those before it. */
static void guess_next(ht_data *d, int64_t at, int64_t n) {
    memcpy(d->batch_targets + at, d->batch_tokens + at + 1,
           sizeof *d->batch_targets * (size_t)(n - 1));
    d->batch_targets[at + n - 1] = -1;
}

/* Item `item` as number `slot` of the batch; draw: which drawing of the run this is; to train: it
 * is one. */
static void put_item(ht_data *d, int64_t item, int64_t slot, uint64_t draw, int to_train) {
    int width = per_item(d);
    if (d->config.format == HTI_FORMAT_TEXT) {
        int64_t at = d->batch_starts[d->batch_sequences];
        hti_text_put(d, item);
        if (hti_config_hides(&d->config))
            hide(d, draw, at, d->batch_starts[d->batch_sequences] - at);
        return;
    }
    if (hti_config_marks(&d->config)) {
        hti_marked_put(d, item, slot);
        return;
    }
    for (int i = 0; i < width; i++) {
        int64_t at = d->batch_starts[slot * width + i];
        int64_t sequence = d->papers.used ? papers_of(d)[item * width + i] : item * width + i;
        int64_t n = put_sequence(d, sequence, at);
        if (to_train && d->image) hti_images_vary(d, d->batch_tokens + at, n, draw);
        d->batch_starts[slot * width + i + 1] = (int32_t)(at + n);
        if (hti_config_hides(&d->config))
            hide(d, draw, at, n);
        else if (d->config.task == HTI_TASK_DENOISE)
            guess_next(d, at, n);
    }
    if (d->config.task != HTI_TASK_DENOISE) d->batch_targets[slot] = labels_of(d)[item];
}

static void finish(ht_data *d, ht_batch *out, int64_t items) {
    ht_batch batch = {.tokens = d->batch_tokens,
                      .cu_seqlens = d->batch_starts,
                      .targets = d->batch_targets,
                      .back = d->batch_back};
    batch.sequences =
        d->config.format == HTI_FORMAT_TEXT ? d->batch_sequences : items * per_item(d);
    HTI_GIVE(ht_batch, out, &batch);
}

static ht_status begin_batch(ht_data *d, ht_batch *out) {
    TRY(HTI_WANT(d->ctx, ht_batch, out));
    d->batch_starts[0] = 0;
    d->batch_sequences = 0;
    return HT_OK;
}

ht_status hti_data_next(ht_data *d, ht_batch *out, hti_part_of share) {
    int64_t left = d->items - d->next, n = left < d->config.batch ? left : d->config.batch;
    TRY(begin_batch(d, out));
    if (n <= 0) {
        d->next = 0;
        return HT_END;
    }
    int64_t from = n * share.rank / share.ranks, to = n * (share.rank + 1) / share.ranks;
    for (int64_t i = from; i < to; i++)
        put_item(d, d->next + i, i - from, (uint64_t)(d->next + i), 0);
    d->next += n;
    finish(d, out, to - from);
    return HT_OK;
}

ht_status ht_data_next(ht_data *d, ht_batch *out) {
    NEED(d);
    return hti_data_next(d, out, (hti_part_of){0, 1});
}

/* The order of an epoch: Fisher and Yates with the generator at (seed, epoch). */
static void shuffle(ht_data *d, int64_t epoch) {
    if (d->epoch == epoch) return;
    for (int64_t i = 0; i < d->items; i++) d->order[i] = i;
    for (int64_t i = d->items - 1; i > 0; i--) {
        hti_philox w = hti_philox_draw((uint64_t)d->config.seed ^ 0xDA7Au, (uint32_t)epoch,
                                       (uint32_t)(epoch >> 32), (uint32_t)i, (uint32_t)(i >> 32));
        uint64_t draw = (uint64_t)w.w[0] << 32 | w.w[1];
        int64_t k = (int64_t)(draw % (uint64_t)(i + 1)), swap = d->order[i];
        d->order[i] = d->order[k];
        d->order[k] = swap;
    }
    d->epoch = epoch;
}

ht_status hti_data_draw(ht_data *d, ht_batch *out, hti_part_of share) {
    int64_t n = d->config.batch;
    int64_t from = n * share.rank / share.ranks, to = n * (share.rank + 1) / share.ranks;
    TRY(begin_batch(d, out));
    for (int64_t i = from; i < to; i++) {
        int64_t at = d->position + i;
        shuffle(d, at / d->items);
        put_item(d, d->order[at % d->items], i - from, (uint64_t)at, 1);
    }
    d->position += n;
    finish(d, out, to - from);
    return HT_OK;
}

ht_status ht_data_draw(ht_data *d, ht_batch *out) {
    NEED(d);
    return hti_data_draw(d, out, (hti_part_of){0, 1});
}

int64_t ht_data_position(const ht_data *d) { return d ? d->position : 0; }

ht_status ht_data_seek(ht_data *d, int64_t position) {
    NEED(d);
    /* what a checkpoint can say of it; sums with it do not overflow */
    CHECK(d->ctx, position >= 0 && position <= INT64_C(1) << 53, HT_INVALID,
          "the position of data must be 0 to 2^53, got %lld", (long long)position);
    d->position = position;
    return HT_OK;
}

ht_status ht_data_encode(ht_context *ctx, const ht_config *config, const char *text, size_t bytes,
                         int32_t *tokens, int64_t room, int64_t *count) {
    CHECK(ctx, config && text && count && (tokens || room == 0), HT_INVALID,
          "ht_data_encode: NULL pointer");
    CHECK(ctx, config->format != HTI_FORMAT_IMAGES && config->format != HTI_FORMAT_PATHFINDER,
          HT_UNSUPPORTED, "the data of this model are images, not text");
    if (config->format != HTI_FORMAT_LISTOPS) {
        for (size_t i = 0; i < bytes && (int64_t)i < room; i++)
            tokens[i] = (unsigned char)text[i] + 1;
        *count = (int64_t)bytes;
        return HT_OK;
    }
    uint16_t *ids = hti_host_alloc(ctx, sizeof *ids * (bytes + 1));
    CHECK(ctx, ids, HT_NOMEM, "out of memory: an expression of %zu bytes", bytes);
    ht_status status = hti_listops_encode(ctx, text, bytes, ids, (int64_t)bytes, count);
    for (int64_t i = 0; i < *count && i < room && status == HT_OK; i++) tokens[i] = ids[i];
    hti_host_free(ctx, ids);
    return status;
}
