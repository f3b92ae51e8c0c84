/*
 * Ranks that train together: each takes its share of a batch, adds up its part of the gradients and
 * gives it back. What one rank alone would have computed, up to the order of sums.
 */
#include "train/share.h"

#include <string.h>

#include "train/trainer.h"

/* ---- who has what ---- */

int64_t hti_share_most(const hti_share *s, int64_t items) {
    return s->world ? (items + s->ranks - 1) / s->ranks : items;
}

/* Equal pieces that begin on 64-byte lines in any dtype. */
static void cut(hti_share *s, int64_t total) {
    enum { LINE = 32 };
    int64_t lines = total / LINE, from = 0;
    for (int r = 0; r < s->ranks; r++) {
        int64_t to = lines * (r + 1) / s->ranks * LINE;
        if (to > from) s->pieces[s->count++] = (hti_piece){from, to - from, r};
        from = to;
    }
}

ht_status hti_share_open(hti_share *s, ht_world *world, ht_context *ctx, const ht_config *config,
                         const hti_params *params, ht_dtype dtype) {
    *s = (hti_share){0};
    if (!hti_world_many(world)) return HT_OK;
    CHECK(ctx, world->ctx == ctx, HT_INVALID, "the world and the model are of different contexts");
    s->world = world, s->rank = world->place.rank, s->ranks = world->place.ranks;
    CHECK(ctx, config->batch >= s->ranks, HT_INVALID,
          "batch %lld cannot be shared by %d ranks: each needs one item of it at least",
          (long long)config->batch, s->ranks);
    s->pieces = hti_host_alloc(ctx, (size_t)s->ranks * sizeof *s->pieces);
    CHECK(ctx, s->pieces, HT_NOMEM, "out of memory: the shares of %d ranks", s->ranks);
    cut(s, params->total);
    return hti_flight_fit(&s->flight, world, dtype == HT_F64 ? HT_F64 : HT_F32, s->pieces,
                          s->count);
}

void hti_share_close(hti_share *s, ht_context *ctx) {
    hti_flight_free(&s->flight);
    hti_host_free(ctx, s->pieces);
    *s = (hti_share){0};
}

/* ---- a step ---- */

static ht_dtype wide_of(const ht_trainer *t) { return t->model->dtype == HT_F64 ? HT_F64 : HT_F32; }

/* The norm is that of pieces that are each added up at one rank, so that all have the same bits. */
ht_status hti_share_gradient(ht_trainer *t) {
    hti_share *s = &t->share;
    ht_dtype wide = wide_of(t);
    TRY(hti_reduce_start(&s->flight, wide, t->grads, s->pieces, s->count));
    TRY(hti_flight_end(&s->flight));
    for (int64_t i = 0; i < s->count; i++) {
        const hti_piece *p = &s->pieces[i];
        if (p->owner == s->rank)
            TRY(hti_models(t->ctx)->square(t->ctx, t->model->dtype, t->net.step,
                                           hti_wide(t->grads, t->model->dtype, p->at), p->count));
    }
    TRY(hti_spread_start(&s->flight, wide, t->grads, s->pieces, s->count));
    TRY(hti_flight_end(&s->flight));
    _Static_assert(offsetof(hti_step, out.square) == offsetof(hti_step, out) + 3 * sizeof(double),
                   "loss, correct, targets, square");
    return hti_world_sum(s->world, HT_F64, &t->net.step->out, 4);
}

/* First values come from the same seed; machines of two kinds may still round them in two ways. */
ht_status hti_share_weights(ht_trainer *t) {
    hti_share *s = &t->share;
    if (!s->world) return HT_OK;
    TRY(hti_spread_start(&s->flight, wide_of(t), t->model->p, s->pieces, s->count));
    TRY(hti_flight_end(&s->flight));
    return hti_model_round(t->model);
}
