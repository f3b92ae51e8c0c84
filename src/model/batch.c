/*
 * From a caller's batch of tokens to the rows that the kernels see: checked, with cls, positions,
 * mask, targets. `merge` neighbouring tokens are a row; a sequence's last is filled up with 0.
 *
 * Sequences lie packed one after the other, unless the device wants fixed shapes: then each takes
 * max_length rows, what is left over is masked, and missing sequences are empty. A batch that would
 * be padding by more than an eighth stays packed: launching each kernel costs less than that.
 */
#include "model/net.h"

#include <string.h>

/* Whether all numbers are least ... most - 1; a loop that vectorises, since a batch is looked at
 * while the device waits for it. */
static int all_within(const int32_t *x, int64_t count, int64_t least, int64_t most) {
    uint32_t top = 0, range = (uint32_t)(most - least);
    for (int64_t i = 0; i < count; i++) {
        uint32_t above = (uint32_t)x[i] - (uint32_t)least;
        top = above > top ? above : top;
    }
    return count == 0 || top < range;
}

ht_status hti_batch_check_tokens(const hti_net *n, const ht_batch *b) {
    const ht_config *c = n->c;
    int64_t total = b->cu_seqlens[b->sequences];
    int good = all_within(b->tokens, total, 0, c->vocab);
    for (int64_t i = 0; i < total && !good; i++)
        CHECK(n->ctx, b->tokens[i] >= 0 && b->tokens[i] < c->vocab, HT_INVALID,
              "token %lld of the batch must be 0 to %lld, got %d", (long long)i,
              (long long)c->vocab - 1, (int)b->tokens[i]);
    if (!b->targets) return HT_OK;
    int by_token = hti_config_by_token(c);
    int64_t targets = by_token                    ? total
                      : c->task == HTI_TASK_PAIRS ? b->sequences / 2
                                                  : b->sequences;
    int64_t most = by_token ? c->vocab : c->classes;
    good = all_within(b->targets, targets, -1, most);
    for (int64_t i = 0; i < targets && !good; i++)
        CHECK(n->ctx, b->targets[i] >= -1 && b->targets[i] < most, HT_INVALID,
              "target %lld of the batch must be 0 to %lld, or -1, got %d", (long long)i,
              (long long)most - 1, (int)b->targets[i]);
    return HT_OK;
}

static int64_t rows_of(const hti_net *n, const ht_batch *b) {
    int64_t rows = 0;
    for (int64_t i = 0; i < b->sequences; i++)
        rows += hti_config_rows_of(n->c, (int64_t)b->cu_seqlens[i + 1] - b->cu_seqlens[i]);
    return rows;
}

ht_status hti_batch_check(const hti_net *n, const ht_batch *b) {
    const ht_config *c = n->c;
    CHECK(n->ctx, b->sequences >= 1 && b->sequences <= n->max_sequences, HT_INVALID,
          "a batch must have 1 to %lld sequences, got %lld", (long long)n->max_sequences,
          (long long)b->sequences);
    CHECK(n->ctx, c->task != HTI_TASK_PAIRS || b->sequences % 2 == 0, HT_INVALID,
          "a batch of pairs must have an even number of sequences, got %lld",
          (long long)b->sequences);
    CHECK(n->ctx, b->tokens && b->cu_seqlens, HT_INVALID,
          "tokens or cu_seqlens of a batch are NULL");
    CHECK(n->ctx, b->cu_seqlens[0] == 0, HT_INVALID, "cu_seqlens[0] must be 0, got %d",
          (int)b->cu_seqlens[0]);
    for (int64_t i = 0; i < b->sequences; i++) {
        int64_t length = (int64_t)b->cu_seqlens[i + 1] - b->cu_seqlens[i];
        CHECK(n->ctx, length >= 1 && length <= c->length, HT_INVALID,
              "sequence %lld of the batch must have 1 to %lld tokens, got %lld", (long long)i,
              (long long)c->length, (long long)length);
    }
    CHECK(n->ctx, rows_of(n, b) <= n->max_rows, HT_INVALID,
          "a batch must have at most %lld rows, got %lld", (long long)n->max_rows,
          (long long)rows_of(n, b));
    return HT_OK;
}

/* A row is masked where all of its tokens are 0. */
static void mask_rows(uint8_t *mask, const int32_t *tokens, int64_t rows, int64_t merge) {
    memset(mask, 0, (size_t)rows);
    for (int64_t k = 0; k < merge; k++)
        for (int64_t r = 0; r < rows; r++) mask[r] |= tokens[r * merge + k] != 0;
}

/* Each row of sequence i its position, and each token its own. */
static void place_rows(hti_net *n, int64_t i, int64_t at, int64_t rows) {
    int64_t merge = n->c->merge;
    if (n->placed && n->fixed) return;
    for (int64_t k = 0; k < rows && n->sequence_host; k++) n->sequence_host[at + k] = (int32_t)i;
    for (int64_t k = 0; k < rows; k++) n->positions_host[at + k] = (int32_t)k;
    if (merge == 1) return; /* the same memory */
    for (int64_t k = 0; k < rows * merge; k++) n->places_host[at * merge + k] = (int32_t)k;
}

/* Rows of the mask move up to take the place of those that are not in it; positions and places are
 * written anew. Returns how many there are, and leaves the last of all where there are none. No
 * branches: a batch is put together while the device waits. */
static inline int64_t squeeze(int32_t *restrict token, int32_t *restrict position,
                              int32_t *restrict place, const uint8_t *restrict mask, int64_t rows,
                              int64_t merge) {
    int64_t kept = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < merge; k++) {
            token[kept * merge + k] = token[r * merge + k];
            if (merge > 1) place[kept * merge + k] = (int32_t)(r * merge + k);
        }
        position[kept] = (int32_t)r;
        kept += mask[r];
    }
    return kept;
}

/* Masked rows give way to those behind them, which keep their positions; of a sequence that has no
 * other the last stays. Returns how many there are. */
static int64_t leave_out(hti_net *n, int64_t at, int64_t rows) {
    int64_t merge = n->c->merge, kept;
    int32_t *token = n->tokens_host + at * merge, *position = n->positions_host + at;
    uint8_t *mask = n->mask_host + at;
    if (merge == 1) /* the compiler needs no inner loop then */
        kept = squeeze(token, position, NULL, mask, rows, 1);
    else
        kept = squeeze(token, position, n->places_host + at * merge, mask, rows, merge);
    if (kept == 0) return 1; /* masked as it was */
    memset(mask, 1, (size_t)kept);
    return kept;
}

/* Targets of sequence i and of what fills it up to `room` tokens; its first is token `at`. */
static void stage_targets(hti_net *n, const ht_batch *b, int64_t i, int64_t at, int64_t room) {
    int32_t *token = n->tokens_host + at, *target = n->targets_host + at;
    memset(target, -1, sizeof *target * (size_t)room);
    if (b->targets && i < b->sequences) {
        int64_t first = b->cu_seqlens[i], count = b->cu_seqlens[i + 1] - first;
        memcpy(target + hti_config_has_cls(n->c), b->targets + first,
               sizeof *target * (size_t)count);
    }
    if (hti_config_hides(n->c)) /* what is to be guessed must not be seen */
        for (int64_t k = 0; k < room; k++)
            if (target[k] >= 0) token[k] = -1;
}

/* Rows of sequence i of the batch (none: i is beyond it) from row `at` on; returns how many are
 * used. masked: some row of the batch is, so all of them need their mask. */
static int64_t stage_sequence(hti_net *n, const ht_batch *b, int64_t i, int64_t at, int masked) {
    const ht_config *c = n->c;
    int64_t have = i < b->sequences, skip = have ? hti_config_has_cls(c) : 0;
    int64_t first = have ? b->cu_seqlens[i] : 0, tokens = have ? b->cu_seqlens[i + 1] - first : 0;
    int64_t rows = have ? hti_config_rows_of(c, tokens) : 0, end = n->fixed ? n->max_length : rows;
    int32_t *token = n->tokens_host + at * c->merge;
    uint8_t *mask = n->mask_host + at;
    if (skip) token[0] = -1;
    if (n->tokens_from == n->tokens_host) {
        int64_t used = skip + tokens;
        memcpy(token + skip, b->tokens + first, sizeof *token * (size_t)tokens);
        memset(token + used, 0, sizeof *token * (size_t)(end * c->merge - used));
    }
    place_rows(n, i, at, end);
    if (c->mask_zero)
        mask_rows(mask, token, rows, c->merge);
    else if (masked)
        memset(mask, 1, (size_t)rows);
    memset(mask + rows, 0, (size_t)(end - rows));
    if (c->mask_zero == HTI_LEAVE_OUT) rows = end = leave_out(n, at, rows);
    if (hti_config_by_token(c)) stage_targets(n, b, i, at * c->merge, end * c->merge);
    n->start_host[i] = (int32_t)at;
    n->count_host[i] = (int32_t)rows;
    return end;
}

static int pays_to_fix(const hti_net *n, int64_t rows) {
    return n->fixes && n->c->mask_zero != HTI_LEAVE_OUT &&
           (n->c->pad || rows >= n->max_rows - n->max_rows / 8);
}

void hti_batch_stage(hti_net *n, const ht_batch *b) {
    const ht_config *c = n->c;
    int64_t rows = rows_of(n, b);
    n->fixed = pays_to_fix(n, rows);
    int64_t sequences = n->fixed ? n->max_sequences : b->sequences, at = 0, longest = 0;
    int masked = c->mask_zero || (n->fixed && rows < n->max_sequences * n->max_length);
    /* rows are the caller's tokens as they are: nothing to put together while the device waits */
    int full = b->cu_seqlens[b->sequences] == rows * c->merge;
    int ready = full && !masked && !hti_config_has_cls(c) && !hti_config_hides(c);
    n->tokens_from = ready ? b->tokens : n->tokens_host;
    n->cu_host[0] = 0;
    for (int64_t i = 0; i < sequences; i++) {
        int64_t used = stage_sequence(n, b, i, at, masked);
        at += used;
        if (used > longest) longest = used;
        n->cu_host[i + 1] = (int32_t)at;
    }
    int64_t per_item = c->task == HTI_TASK_PAIRS ? 2 : 1, items = sequences / per_item;
    n->batch_items = b->sequences / per_item;
    n->batch_tokens = b->cu_seqlens[b->sequences];
    n->target_rows = hti_config_by_token(c) ? at * c->merge : items;
    for (int64_t i = 0; i < items && !hti_config_by_token(c); i++)
        n->targets_host[i] = i < n->batch_items && b->targets ? b->targets[i] : -1;
    n->batch_targets = 0;
    for (int64_t i = 0; i < n->target_rows; i++) n->batch_targets += n->targets_host[i] >= 0;
    n->rows.rows = at;
    n->rows.sequences = sequences;
    n->rows.length = longest;
    n->rows.cu_seqlens = n->fixed ? NULL : n->cu_host;
    n->rows.mask = masked && memchr(n->mask_host, 0, (size_t)at) ? n->mask : NULL;
    n->rows.positions = n->positions;
}
