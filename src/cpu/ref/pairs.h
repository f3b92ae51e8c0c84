/*
 * Reference kernels, part 5: how each pair of rows meets, of one sequence and query head. What
 * forward computes, without computing it.
 */
#include "cpu/cpu.h"

/* The rows of a cluster that take part. */
static void FN(put_cluster)(int8_t *row, const FN(unit) *u, int level, int64_t c, int8_t how) {
    int64_t end = (c + 1) << level < u->length ? (c + 1) << level : u->length;
    for (int64_t j = c << level; j < end; j++)
        if (FN(count_of)(u, 0, j) > 0) row[j] = how;
}

static void FN(put_met)(int8_t *row, const FN(unit) *u, int64_t i) {
    for (int level = 0; level < u->levels; level++) {
        hti_range r[2];
        FN(ranges)(r, u, level, i >> level);
        for (int side = 0; side < 2; side++)
            for (int64_t c = r[side].lo; c < r[side].hi; c++)
                FN(put_cluster)(row, u, level, c, (int8_t)level);
    }
}

static void FN(put_opened)(int8_t *row, const FN(unit) *u, FN(chooser) *ch, int64_t i) {
    FN(descend)(u, ch, u->q + i * u->d, i);
    for (int64_t x = 0; x < ch->parts; x++) {
        const FN(part) *p = &ch->part[x];
        int plain = p->level == 0 && !p->near;
        FN(put_cluster)(row, u, p->level, p->c, plain ? HT_OPENED : (int8_t)p->level);
    }
}

/* scratch NULL: the bytes of it that are needed. */
static size_t FN(pairs)(const hti_attention_call *call, int64_t sequence, int64_t head, int8_t *out,
                        void *scratch) {
    const ht_attention_desc *d = call->desc;
    FN(unit) u = {0};
    FN(chooser) ch = {0};
    size_t bytes = FN(thread_layout)(&u, &ch, scratch, d, hti_call_length(call, sequence), 0);
    if (!scratch) return bytes;
    FN(begin_unit)(&u, call, sequence);
    memset(out, -1, (size_t)(u.length * u.length));
    if (u.length == 0) return bytes;
    FN(load_keys)(&u, head / (d->q_heads / d->kv_heads));
    FN(load_queries)(&u, head);
    for (int64_t i = 0; i < u.length; i++) {
        if (!FN(takes_part)(call->query_mask, hti_call_start(call, sequence) + i)) continue;
        if (d->open > 0) {
            FN(put_opened)(out + i * u.length, &u, &ch, i);
        } else {
            FN(put_met)(out + i * u.length, &u, i);
        }
    }
    return bytes;
}
