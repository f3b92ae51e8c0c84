/*
 * A generator's slots: how far each is, forget, copy, save and load.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/crc.h"
#include "common/file.h"
#include "core/sized.h"
#include "model/decode.h"

ht_status hti_generator_slot(const ht_generator *g, int64_t slot) {
    CHECK(g->ctx, slot >= 0 && slot < g->slots, HT_INVALID, "slot must be 0 to %lld, got %lld",
          (long long)g->slots - 1, (long long)slot);
    return HT_OK;
}

/* ---- the last rows, which neighbours see ---- */

/* Bytes of a slot in one layer; 0: the model has no neighbours. */
static size_t past_bytes(const ht_generator *g) {
    return hti_past_bytes(&g->layers) / (size_t)g->slots;
}

static char *past_of(const ht_generator *g, int64_t layer, int64_t slot) {
    return g->past + (size_t)(layer * g->slots + slot) * past_bytes(g);
}

ht_status hti_past_forget(ht_generator *g, int64_t slot) {
    for (int64_t l = 0; l < g->model->config.layers; l++)
        TRY(g->ctx->ops->fill(g->ctx, past_of(g, l, slot), 0, past_bytes(g)));
    return HT_OK;
}

static ht_status past_copy(ht_generator *g, int64_t to, int64_t from) {
    for (int64_t l = 0; l < g->model->config.layers; l++)
        TRY(g->ctx->ops->copy(g->ctx, past_of(g, l, to), past_of(g, l, from), past_bytes(g)));
    return HT_OK;
}

static ht_status past_save(const ht_generator *g, int64_t slot, char *to) {
    for (int64_t l = 0; l < g->model->config.layers; l++, to += past_bytes(g))
        TRY(g->ctx->ops->copy_out(g->ctx, to, past_of(g, l, slot), past_bytes(g)));
    return HT_OK;
}

static ht_status past_load(ht_generator *g, int64_t slot, const char *from) {
    for (int64_t l = 0; l < g->model->config.layers; l++, from += past_bytes(g))
        TRY(g->ctx->ops->copy_in(g->ctx, past_of(g, l, slot), from, past_bytes(g)));
    return HT_OK;
}

/* ---- slots ---- */

ht_status ht_generator_reset(ht_generator *g, int64_t slot) {
    NEED(g);
    TRY(hti_generator_slot(g, slot));
    for (int64_t l = 0; l < g->model->config.layers; l++) TRY(ht_cache_reset(g->caches[l], slot));
    return g->past ? hti_past_forget(g, slot) : HT_OK;
}

ht_status ht_generator_fork(ht_generator *g, int64_t to, int64_t from) {
    NEED(g);
    size_t vocab = (size_t)g->model->config.vocab;
    TRY(hti_generator_slot(g, to));
    TRY(hti_generator_slot(g, from));
    if (to == from) return HT_OK;
    for (int64_t l = 0; l < g->model->config.layers; l++)
        TRY(ht_cache_fork(g->caches[l], to, from));
    if (g->past) TRY(past_copy(g, to, from));
    memcpy(g->last_logits + (size_t)to * vocab, g->last_logits + (size_t)from * vocab,
           sizeof *g->last_logits * vocab);
    memcpy(g->recent + to * HTI_RECENT, g->recent + from * HTI_RECENT,
           sizeof *g->recent * HTI_RECENT);
    return HT_OK;
}

/* ---- files ---- */

/* What a file begins with; then the logits, the recent tokens, and per layer its size and its
 * bytes; with neighbours the last rows of each layer; then a seal (core/crc.h), which HTSTATE1 of
 * earlier versions had not. Native byte order.
 */
typedef struct header {
    char magic[8];
    uint64_t bytes; /* of the whole file */
    uint64_t model; /* which weights these are */
    int64_t layers, vocab, position;
} header;

static size_t fixed_bytes(const ht_generator *g) {
    return sizeof(header) + sizeof(float) * (size_t)g->model->config.vocab +
           sizeof(int32_t) * HTI_RECENT;
}

static ht_status state_bytes(const ht_generator *g, int64_t slot, size_t *out) {
    *out = fixed_bytes(g) + (size_t)g->model->config.layers * past_bytes(g) + HTI_SEAL;
    for (int64_t l = 0; l < g->model->config.layers; l++) {
        size_t bytes;
        TRY(ht_cache_save_bytes(g->caches[l], slot, &bytes));
        *out += sizeof(uint64_t) + bytes;
    }
    return HT_OK;
}

ht_status ht_generator_get_state(const ht_generator *g, int64_t slot, ht_state_info *out) {
    NEED(g);
    TRY(hti_generator_slot(g, slot));
    TRY(HTI_WANT(g->ctx, ht_state_info, out));
    ht_state_info info = {.position = ht_cache_position(g->caches[0], slot),
                          .rows = ht_cache_rows(g->caches[0], slot),
                          .layers = g->model->config.layers,
                          .kv_heads = g->model->config.kv_heads};
    TRY(state_bytes(g, slot, &info.bytes));
    HTI_GIVE(ht_state_info, out, &info);
    return HT_OK;
}

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001B3u;
    return hash;
}

/* Weights that every update changes stand for all: the first embeddings, the last norm and the
 * last layer. And what is the same in the weights, but not in what is made of them. */
static ht_status model_mark(const ht_generator *g, uint64_t *out) {
    enum { MOST = 1024 };
    const ht_model *m = g->model;
    const ht_config *c = &m->config;
    int64_t from[] = {m->params.model.embed, m->params.model.norm_scale,
                      m->params.layers[c->layers - 1].down};
    int64_t count[] = {c->width * c->vocab, c->width, c->width * c->hidden};
    double numbers[MOST] = {(double)c->attention,
                            (double)c->query,
                            (double)c->block,
                            (double)c->heads,
                            (double)c->rotary,
                            c->rotary_theta,
                            c->sinusoidal ? c->sinusoidal_theta : 0,
                            (double)c->neighbours};
    /* a model without neighbours has the mark that it had before there were any */
    *out = mix(0xCBF29CE484222325u, numbers, sizeof *numbers * (c->neighbours > 0 ? 8 : 7));
    for (int i = 0; i < 3; i++) {
        int64_t n = count[i] < MOST ? count[i] : MOST;
        TRY(hti_tensor_read(m->ctx, numbers, m->p, m->dtype, from[i], n));
        *out = mix(*out, numbers, sizeof *numbers * (size_t)n);
    }
    return HT_OK;
}

static ht_status write_state(const ht_generator *g, int64_t slot, char *to, size_t bytes) {
    size_t vocab = (size_t)g->model->config.vocab, at = sizeof(header);
    header h = {.magic = "HTSTATE2",
                .bytes = bytes,
                .layers = g->model->config.layers,
                .vocab = (int64_t)vocab,
                .position = ht_cache_position(g->caches[0], slot)};
    TRY(model_mark(g, &h.model));
    memcpy(to, &h, sizeof h);
    memcpy(to + at, g->last_logits + (size_t)slot * vocab, sizeof(float) * vocab);
    at += sizeof(float) * vocab;
    memcpy(to + at, g->recent + slot * HTI_RECENT, sizeof(int32_t) * HTI_RECENT);
    at += sizeof(int32_t) * HTI_RECENT;
    for (int64_t l = 0; l < h.layers; l++) {
        size_t part;
        TRY(ht_cache_save_bytes(g->caches[l], slot, &part));
        uint64_t size = part;
        memcpy(to + at, &size, sizeof size);
        TRY(ht_cache_save(g->caches[l], slot, to + at + sizeof size, part));
        at += sizeof size + part;
    }
    if (g->past) TRY(past_save(g, slot, to + at));
    hti_seal(to, bytes);
    return HT_OK;
}

ht_status ht_generator_save(const ht_generator *g, int64_t slot, const char *path) {
    NEED(g);
    size_t bytes;
    hti_writer w = {0};
    TRY(hti_generator_slot(g, slot));
    CHECK(g->ctx, path, HT_INVALID, "ht_generator_save: path is NULL");
    CHECK(g->ctx, ht_cache_position(g->caches[0], slot) > 0, HT_INVALID,
          "slot %lld is empty: there is nothing to save", (long long)slot);
    TRY(state_bytes(g, slot, &bytes));
    char *buffer = hti_host_alloc(g->ctx, bytes);
    CHECK(g->ctx, buffer, HT_NOMEM, "out of memory: %zu bytes of state", bytes);
    ht_status status = write_state(g, slot, buffer, bytes);
    if (status == HT_OK) status = hti_writer_open(&w, g->ctx, path);
    if (status == HT_OK) status = hti_writer_put(&w, buffer, bytes);
    if (status == HT_OK) status = hti_writer_commit(&w);
    hti_writer_discard(&w);
    hti_host_free(g->ctx, buffer);
    return status;
}

static int is_old(const header *h) { return memcmp(h->magic, "HTSTATE1", 8) == 0; }

static ht_status check_header(const ht_generator *g, const header *h, const char *path,
                              uint64_t bytes) {
    CHECK(g->ctx, bytes >= sizeof *h && (is_old(h) || memcmp(h->magic, "HTSTATE2", 8) == 0),
          HT_FORMAT, "%s is not a saved state", path);
    CHECK(g->ctx, h->bytes == bytes, HT_FORMAT,
          "%s is damaged: it should have %llu bytes and has %llu", path,
          (unsigned long long)h->bytes, (unsigned long long)bytes);
    return HT_OK;
}

/* What stands between the header and the seal, if there is one. */
static ht_status check_file(const ht_generator *g, const header *h, const char *path,
                            const char *from, size_t *bytes) {
    uint64_t mark;
    int before = is_old(h);
    TRY(check_header(g, h, path, *bytes));
    CHECK(g->ctx, before || hti_sealed(from, *bytes), HT_FORMAT,
          "%s is damaged: its checksum is not that of its bytes", path);
    TRY(model_mark(g, &mark));
    CHECK(g->ctx,
          h->model == mark && h->layers == g->model->config.layers &&
              h->vocab == g->model->config.vocab,
          HT_FORMAT, "%s was saved with another model", path);
    if (!before) *bytes -= HTI_SEAL;
    CHECK(g->ctx, *bytes >= fixed_bytes(g) && h->position > 0, HT_FORMAT,
          "%s is damaged: it has %zu bytes, position %lld", path, *bytes, (long long)h->position);
    return HT_OK;
}

/* The tokens that a repeat penalty looks back on are indices of logits. */
static ht_status check_recent(const ht_generator *g, const char *from, const char *path,
                              int64_t position) {
    int64_t vocab = g->model->config.vocab, count = position < HTI_RECENT ? position : HTI_RECENT;
    for (int64_t i = 0; i < count; i++) {
        int32_t token;
        memcpy(&token, from + (size_t)i * sizeof token, sizeof token);
        CHECK(g->ctx, token >= 0 && token < vocab, HT_FORMAT,
              "%s is damaged: token %lld of the last ones must be 0 to %lld, got %d", path,
              (long long)i, (long long)vocab - 1, (int)token);
    }
    return HT_OK;
}

static ht_status load_layers(ht_generator *g, int64_t slot, const char *path, const char *from,
                             size_t bytes, int64_t position) {
    size_t at = fixed_bytes(g);
    for (int64_t l = 0; l < g->model->config.layers; l++) {
        uint64_t size = 0;
        if (bytes - at >= sizeof size) memcpy(&size, from + at, sizeof size);
        CHECK(g->ctx, bytes - at >= sizeof size && size <= bytes - at - sizeof size, HT_FORMAT,
              "%s is damaged: layer %lld is cut off", path, (long long)l);
        TRY(ht_cache_load(g->caches[l], slot, from + at + sizeof size, (size_t)size));
        CHECK(g->ctx, ht_cache_position(g->caches[l], slot) == position, HT_FORMAT,
              "%s is damaged: its layers stand at different positions", path);
        at += sizeof size + (size_t)size;
    }
    size_t past = (size_t)g->model->config.layers * past_bytes(g);
    CHECK(g->ctx, bytes - at >= past, HT_FORMAT, "%s is damaged: its last rows are cut off", path);
    CHECK(g->ctx, bytes - at == past, HT_FORMAT, "%s is damaged: there is more in it than layers",
          path);
    return past ? past_load(g, slot, from + at) : HT_OK;
}

static ht_status load_all(ht_generator *g, int64_t slot, const char *path, const char *from,
                          size_t bytes) {
    size_t vocab = (size_t)g->model->config.vocab, at = sizeof(header);
    header h = {0};
    memcpy(&h, from, bytes < sizeof h ? bytes : sizeof h);
    TRY(check_file(g, &h, path, from, &bytes));
    TRY(check_recent(g, from + at + sizeof(float) * vocab, path, h.position));
    ht_status status = load_layers(g, slot, path, from, bytes, h.position);
    if (status != HT_OK) {
        ht_generator_reset(g, slot);
        return status;
    }
    memcpy(g->last_logits + (size_t)slot * vocab, from + at, sizeof(float) * vocab);
    memcpy(g->recent + slot * HTI_RECENT, from + at + sizeof(float) * vocab,
           sizeof(int32_t) * HTI_RECENT);
    return HT_OK;
}

/* Is it a state? Before memory is asked for all of it. */
static ht_status look(const ht_generator *g, const char *path) {
    FILE *file;
    uint64_t bytes;
    header h = {0};
    TRY(hti_file_open(g->ctx, &file, &bytes, path));
    int good = fread(&h, 1, sizeof h, file) == sizeof h || !ferror(file), error = errno;
    fclose(file);
    CHECK(g->ctx, good, HT_IO, "%s could not be read: %s", path, strerror(error));
    return check_header(g, &h, path, bytes);
}

ht_status ht_generator_load(ht_generator *g, int64_t slot, const char *path) {
    NEED(g);
    char *bytes;
    size_t count;
    TRY(hti_generator_slot(g, slot));
    CHECK(g->ctx, path, HT_INVALID, "ht_generator_load: path is NULL");
    TRY(look(g, path));
    TRY(hti_file_read(g->ctx, &bytes, &count, path, (size_t)1 << 40));
    ht_status status = load_all(g, slot, path, bytes, count);
    hti_host_free(g->ctx, bytes);
    return status;
}
