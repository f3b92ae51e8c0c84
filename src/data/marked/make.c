/*
 * Copying and associative recall: what attention needs single far rows for. Nothing but finding
 * them again helps, as all is drawn at random.
 *
 * copy: half of an item is letters, then its four quarters follow in another order. The first
 * letters of a quarter cannot be known and do not count.
 * recall: 3/4 of an item are pairs of key and value, then keys are asked for again. Full attention
 * does not begin to learn from many keys at once, so that items to train on have 8, 16, ... or all
 * of the keys that find room, repeated; the others have all of them.
 */
#include <string.h>

#include "data/lra/dice.h"
#include "data/marked/marked.h"

enum { KEY = 1, VALUE = KEY + HTI_RECALL_KEYS, FEWEST = 8, DOMAIN = 0xC0B7 };

/* A random order of the first n of `count` numbers, or of all. */
static void deal(hti_dice *dice, uint16_t *out, int count, int n) {
    for (int i = 0; i < count; i++) out[i] = (uint16_t)i;
    for (int i = 0; i < n && i < count - 1; i++) {
        int k = i + hti_roll_below(dice, count - i);
        uint16_t swap = out[i];
        out[i] = out[k], out[k] = swap;
    }
}

/* ---- copying ---- */

/* Letters of a quarter of the copy that do not count. */
static int64_t unknown(int64_t length) {
    int64_t n = length <= 256 ? 8 : 16;
    return n < length / 16 ? n : length / 16;
}

static void make_copy(const hti_maker *m, hti_dice *dice, uint16_t *ids, int32_t *back) {
    int64_t half = m->length / 2, quarter = half / 4, skip = unknown(m->length);
    uint16_t order[4];
    for (int64_t i = 0; i < half; i++)
        ids[i] = (uint16_t)('0' + 1 + hti_roll_below(dice, HTI_COPY_LETTERS));
    deal(dice, order, 4, 4);
    for (int q = 0; q < 4; q++) {
        int64_t from = order[q] * quarter, to = half + q * quarter;
        memcpy(ids + to, ids + from, sizeof *ids * (size_t)quarter);
        for (int64_t i = skip; i < quarter; i++) back[to + i] = (int32_t)(to - from);
    }
}

/* ---- recall ---- */

/* Different keys of an item. */
static int distinct_keys(const hti_maker *m, hti_dice *dice, int64_t pairs) {
    int most = pairs < HTI_RECALL_KEYS ? (int)pairs : HTI_RECALL_KEYS, doublings = 0;
    while (FEWEST << doublings < most) doublings++;
    if (m->part != HT_PART_TRAIN) return most;
    int n = FEWEST << hti_roll_below(dice, doublings + 1);
    return n < most ? n : most;
}

static void make_recall(const hti_maker *m, hti_dice *dice, uint16_t *ids, int32_t *back) {
    int64_t pairs = m->length * 3 / 8, asked = m->length / 2 - pairs;
    int keys = distinct_keys(m, dice, pairs);
    uint16_t key[HTI_RECALL_KEYS], order[HTI_RECALL_KEYS], value[HTI_RECALL_KEYS];
    int64_t last[HTI_RECALL_KEYS]; /* where the key's value stood before */
    deal(dice, key, HTI_RECALL_KEYS, keys);
    for (int k = 0; k < keys; k++)
        value[k] = (uint16_t)(VALUE + hti_roll_below(dice, HTI_RECALL_VALUES));
    for (int64_t i = 0; i < pairs + asked; i++) {
        int64_t turn = (i < pairs ? i : i - pairs) % keys, at = 2 * i + 1;
        if (turn == 0) deal(dice, order, keys, keys);
        int k = order[turn];
        ids[at - 1] = (uint16_t)(KEY + key[k]);
        ids[at] = value[k];
        if (i >= pairs) back[at] = (int32_t)(at - last[k]);
        last[k] = at;
    }
}

/* ---- both ---- */

ht_status hti_maker_begin(hti_maker *out, ht_context *ctx, int64_t format, int64_t length,
                          int64_t seed, int part) {
    int copy = format == HTI_FORMAT_COPY;
    *out =
        (hti_maker){format, length, copy ? 257 : VALUE + HTI_RECALL_VALUES, (uint64_t)seed, part};
    CHECK(ctx, length >= 32 && length % 8 == 0, HT_INVALID,
          "items of %s must have a length of at least 32 that 8 divides, got %lld",
          copy ? "copy" : "recall", (long long)length);
    return HT_OK;
}

void hti_maker_make(const ht_context *ctx, const hti_maker *m, uint16_t *ids, int32_t *back,
                    int64_t first, int64_t count) {
    int64_t tokens = m->length + 1;
    uint32_t domain = DOMAIN + (uint32_t)(m->format * 8 + m->part);
    memset(ids, 0, sizeof *ids * (size_t)(count * tokens));
    memset(back, 0, sizeof *back * (size_t)(count * tokens));
#pragma omp parallel for schedule(static) num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        hti_dice dice = hti_dice_of(m->seed, (uint64_t)(first + i), domain);
        uint16_t *to = ids + i * tokens + 1;
        if (m->format == HTI_FORMAT_COPY)
            make_copy(m, &dice, to, back + i * tokens + 1);
        else
            make_recall(m, &dice, to, back + i * tokens + 1);
    }
}
