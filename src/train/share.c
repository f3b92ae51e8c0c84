/*
 * Ranks that train together: each takes its share of a batch, adds up its part of the gradients and
 * gives it back. What one rank alone would have computed, up to the order of sums.
 */
#include "train/share.h"

#include "train/trainer.h"

/* ---- who has what ---- */

int64_t hti_share_most(const hti_share *s, int64_t items) {
    return s->world ? (items + s->ranks - 1) / s->ranks : items;
}

enum { LINE = 32 }; /* numbers of a 64-byte line in any dtype: pieces begin on one */

static void add(hti_share *s, int64_t from, int64_t to, int owner) {
    if (to > from) s->pieces[s->count++] = (hti_piece){from, to - from, owner};
}

static void cut_evenly(hti_share *s, int64_t total) {
    int64_t lines = total / LINE, from = 0;
    for (int r = 0; r < s->ranks; r++) {
        int64_t to = lines * (r + 1) / s->ranks * LINE;
        add(s, from, to, r);
        from = to;
    }
}

/* Whole matrices, neighbours together: each belongs where its middle would in an even cut. */
static void cut_matrices(hti_share *s, const ht_config *c, const hti_params *p) {
    int64_t all = p->decaying - p->matrices, from = p->matrices, count = hti_muon_matrices(c);
    int owner = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t begin = hti_muon_begins(c, p, i);
        int64_t end = i + 1 < count ? hti_muon_begins(c, p, i + 1) : p->decaying;
        int to = (int)(((begin + end) / 2 - p->matrices) * s->ranks / all);
        if (to == owner || begin % LINE != 0) continue;
        add(s, from, begin, owner);
        from = begin;
        owner = to;
    }
    add(s, from, p->decaying, owner);
}

/* What a rank lacks of an even share, which is 0 for most matrices. */
static int64_t lack(const hti_share *s, int64_t pieces, int64_t even, int rank) {
    for (int64_t i = 0; i < pieces; i++)
        if (s->pieces[i].owner == rank)
            return s->pieces[i].count < even ? even - s->pieces[i].count : 0;
    return even;
}

/* The numbers before and behind the matrices as one row, cut so that all have as much. */
static void cut_rest(hti_share *s, const hti_params *p) {
    int64_t rest = p->matrices + p->total - p->decaying, even = p->total / s->ranks;
    int64_t skip = p->decaying - p->matrices, known = s->count, all = 0, sum = 0, from = 0;
    for (int r = 0; r < s->ranks; r++) all += lack(s, known, even, r);
    for (int r = 0; r < s->ranks; r++) {
        sum += lack(s, known, even, r);
        double share = all > 0 ? (double)sum / (double)all : (double)(r + 1) / s->ranks;
        int64_t to = r + 1 < s->ranks ? (int64_t)((double)(rest / LINE) * share) * LINE : rest;
        int64_t split = from > p->matrices ? from : to < p->matrices ? to : p->matrices;
        add(s, from, split, r);
        add(s, split + skip, to + skip, r);
        from = to;
    }
}

int64_t hti_share_moments(const hti_share *s, const hti_params *params) {
    int64_t count = s->shards ? 0 : params->total;
    for (int i = 0; i < s->owns && s->shards; i++) count += s->own[i].count;
    return count;
}

int64_t hti_share_place(const hti_share *s, int64_t at) {
    int64_t before = 0;
    for (int i = 0; i < s->owns && s->shards; before += s->own[i++].count)
        if (at >= s->own[i].at && at < s->own[i].at + s->own[i].count)
            return before + at - s->own[i].at;
    return at;
}

int hti_share_next(const hti_share *s, int i, int64_t *from, int64_t *to) {
    if (!s->shards) return i == 0;
    if (i >= s->owns) return 0;
    int64_t at = s->own[i].at, end = at + s->own[i].count;
    if (at > *from) *from = at;
    if (end < *to) *to = end;
    return 1;
}

static ht_status cut(hti_share *s, ht_context *ctx, const ht_config *config,
                     const hti_params *params) {
    s->pieces = hti_host_alloc(ctx, HTI_OWNS * (size_t)s->ranks * sizeof *s->pieces);
    CHECK(ctx, s->pieces, HT_NOMEM, "out of memory: the shares of %d ranks", s->ranks);
    if (config->optimizer == HTI_OPTIMIZER_MUON) {
        cut_matrices(s, config, params);
        cut_rest(s, params);
    } else {
        cut_evenly(s, params->total);
    }
    for (int64_t i = 0; i < s->count; i++)
        if (s->pieces[i].owner == s->rank) s->own[s->owns++] = s->pieces[i];
    return HT_OK;
}

ht_status hti_share_open(hti_share *s, ht_world *world, ht_context *ctx, const ht_config *config,
                         const hti_params *params, ht_dtype dtype) {
    *s = (hti_share){0};
    if (!hti_world_many(world)) return HT_OK;
    CHECK(ctx, world->ctx == ctx, HT_INVALID, "the world and the model are of different contexts");
    s->world = world, s->rank = world->place.rank, s->ranks = world->place.ranks;
    s->shards = (int)config->shard;
    CHECK(ctx, config->batch >= s->ranks, HT_INVALID,
          "batch %lld cannot be shared by %d ranks: each needs one item of it at least",
          (long long)config->batch, s->ranks);
    TRY(cut(s, ctx, config, params));
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
    for (int i = 0; i < s->owns; i++)
        TRY(hti_models(t->ctx)->square(t->ctx, t->model->dtype, t->net.step,
                                       hti_wide(t->grads, t->model->dtype, s->own[i].at),
                                       s->own[i].count));
    if (!s->shards) TRY(hti_spread_start(&s->flight, wide, t->grads, s->pieces, s->count));
    TRY(hti_flight_end(&s->flight));
    _Static_assert(offsetof(hti_step, out.square) == offsetof(hti_step, out) + 3 * sizeof(double),
                   "loss, correct, targets, square");
    return hti_world_sum(s->world, HT_F64, &t->net.step->out, 4);
}

/* What owners made of their pieces. And first values, which come from the same seed: machines of
 * two kinds may still round them in two ways. */
ht_status hti_share_weights(ht_trainer *t) {
    hti_share *s = &t->share;
    if (!s->world) return HT_OK;
    TRY(hti_spread_start(&s->flight, wide_of(t), t->model->p, s->pieces, s->count));
    TRY(hti_flight_end(&s->flight));
    return hti_model_round(t->model);
}
