/*
 * From logits to a token: penalty, temperature, top-k, top-p, min-p, one draw.
 */
#include <math.h>
#include <stdlib.h>

#include "core/philox.h"
#include "core/sized.h"
#include "model/decode.h"

ht_status hti_sampling_take(ht_context *ctx, ht_sampling *s, const ht_sampling *given) {
    TRY(HTI_TAKE(ctx, ht_sampling, s, given));
    CHECK(ctx, s->temperature >= 0 && isfinite(s->temperature), HT_INVALID,
          "temperature must be at least 0, got %g", s->temperature);
    CHECK(ctx, s->top_k >= 0, HT_INVALID, "top_k must be at least 0, got %lld",
          (long long)s->top_k);
    CHECK(ctx, s->top_p > 0 && s->top_p <= 1, HT_INVALID, "top_p must be in (0, 1], got %g",
          s->top_p);
    CHECK(ctx, s->min_p >= 0 && s->min_p <= 1, HT_INVALID, "min_p must be in [0, 1], got %g",
          s->min_p);
    CHECK(ctx, s->repeat_penalty >= 1 && isfinite(s->repeat_penalty), HT_INVALID,
          "repeat_penalty must be at least 1, got %g", s->repeat_penalty);
    return HT_OK;
}

double hti_log_probability(const float *logits, int64_t vocab, int32_t token) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocab; i++)
        if (logits[i] > top) top = logits[i];
    for (int64_t i = 0; i < vocab; i++) sum += exp(logits[i] - top);
    return logits[token] - top - log(sum);
}

/* Larger first; of equals the smaller token, so that the order is always the same. */
static int before(const hti_candidate_token *a, const hti_candidate_token *b) {
    return a->p > b->p || (a->p == b->p && a->token < b->token);
}

static int compare(const void *a, const void *b) { return before(b, a) - before(a, b); }

static void swap(hti_candidate_token *a, hti_candidate_token *b) {
    hti_candidate_token t = *a;
    *a = *b;
    *b = t;
}

/* The k first of n in any order at the front (Hoare's selection, pivot in the middle). */
static void select_first(hti_candidate_token *c, int64_t n, int64_t k) {
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        hti_candidate_token pivot = c[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (before(&c[i], &pivot)) i++;
            while (before(&pivot, &c[j])) j--;
            if (i <= j) swap(&c[i++], &c[j--]);
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

/* Those that may belong to the fewest with a share of top_p, sorted, then cut. What is below
 * (1 - top_p) / n of the sum adds up to less than what may be left out. */
static int64_t nucleus(hti_candidate_token *c, int64_t n, double top_p) {
    double sum = 0, mass = 0;
    int64_t kept = 0, k = 0;
    for (int64_t i = 0; i < n; i++) sum += c[i].p;
    for (int64_t i = 0; i < n; i++)
        if (c[i].p >= (1 - top_p) * sum / (double)n) c[kept++] = c[i];
    qsort(c, (size_t)kept, sizeof *c, compare);
    while (k < kept && mass < top_p * sum) mass += c[k++].p;
    return k;
}

/* The candidates' logits, penalty included; returns the index of the largest, -1: none is finite.
 * Tokens that never occur (-inf, NaN) are left out. */
static int64_t gather(const ht_sampling *s, hti_candidate_token *c, int64_t *count,
                      const float *logits, int64_t vocab, const int32_t *recent, int64_t recents) {
    int64_t n = 0, best = -1;
    for (int64_t i = 0; i < vocab; i++) c[i] = (hti_candidate_token){logits[i], (int32_t)i};
    for (int64_t i = 0; i < recents && s->repeat_penalty != 1; i++) {
        double x = logits[recent[i]]; /* from the logits: once, however often it occurs */
        c[recent[i]].p = x > 0 ? x / s->repeat_penalty : x * s->repeat_penalty;
    }
    for (int64_t i = 0; i < vocab; i++)
        if (isfinite(c[i].p)) c[n++] = c[i];
    for (int64_t i = 0; i < n; i++)
        if (best < 0 || c[i].p > c[best].p) best = i;
    *count = n;
    return best;
}

int32_t hti_sample(const ht_sampling *s, hti_candidate_token *c, const float *logits, int64_t vocab,
                   const int32_t *recent, int64_t recents, double draw) {
    int64_t n = 0, best = gather(s, c, &n, logits, vocab, recent, recents), kept = 0;
    if (best < 0) return -1;
    if (s->temperature == 0) return c[best].token;
    double top = c[best].p, sum = 0;
    for (int64_t i = 0; i < n; i++) c[i].p = exp((c[i].p - top) / s->temperature);
    if (s->top_k > 0 && s->top_k < n) {
        select_first(c, n, s->top_k);
        n = s->top_k;
    }
    if (s->top_p < 1) n = nucleus(c, n, s->top_p);
    for (int64_t i = 0; i < n; i++)
        if (c[i].p >= s->min_p) c[kept++] = c[i]; /* the largest is 1 */
    for (int64_t i = 0; i < kept; i++) sum += c[i].p;
    draw *= sum;
    for (int64_t i = 0; i < kept; i++) {
        draw -= c[i].p;
        if (draw < 0) return c[i].token;
    }
    return c[kept - 1].token;
}

ht_status ht_sample(ht_context *ctx, const ht_sampling *sampling, const float *logits,
                    int64_t vocab, const int32_t *recent, int64_t recents, double draw,
                    int32_t *token) {
    ht_sampling s;
    TRY(hti_sampling_take(ctx, &s, sampling));
    CHECK(ctx, logits && token && (recent || recents == 0), HT_INVALID, "ht_sample: NULL pointer");
    CHECK(ctx, vocab >= 1 && vocab <= INT32_MAX, HT_INVALID, "vocab must be at least 1, got %lld",
          (long long)vocab);
    CHECK(ctx, draw >= 0 && draw < 1, HT_INVALID, "draw must be in [0, 1), got %g", draw);
    for (int64_t i = 0; i < recents; i++)
        CHECK(ctx, recent[i] >= 0 && recent[i] < vocab, HT_INVALID,
              "recent[%lld] must be 0 to %lld, got %d", (long long)i, (long long)vocab - 1,
              (int)recent[i]);
    hti_candidate_token *room = hti_host_alloc(ctx, sizeof *room * (size_t)vocab);
    CHECK(ctx, room, HT_NOMEM, "out of memory: %lld candidates", (long long)vocab);
    *token = hti_sample(&s, room, logits, vocab, recent, recents, draw);
    hti_host_free(ctx, room);
    CHECK(ctx, *token >= 0, HT_INVALID, "no logit is finite");
    return HT_OK;
}

ht_status ht_generator_sample(const ht_generator *g, int64_t slot, const ht_sampling *sampling,
                              int32_t *token, double *log_probability) {
    NEED(g);
    ht_sampling s;
    int64_t vocab = g->model->config.vocab;
    TRY(hti_generator_slot(g, slot));
    TRY(hti_sampling_take(g->ctx, &s, sampling));
    CHECK(g->ctx, token, HT_INVALID, "ht_generator_sample: token is NULL");
    int64_t position = ht_cache_position(g->caches[0], slot);
    CHECK(g->ctx, position > 0, HT_INVALID,
          "slot %lld is empty: feed it a token before asking for the next", (long long)slot);
    const float *logits = g->last_logits + slot * vocab;
    hti_philox w = hti_philox_draw(s.seed, (uint32_t)position, (uint32_t)(position >> 32), 0, 0);
    double draw = ((double)w.w[0] + (double)(w.w[1] >> 11) * 0x1p-21) * 0x1p-32;
    int64_t recents = position < HTI_RECENT ? position : HTI_RECENT;
    *token =
        hti_sample(&s, g->candidates, logits, vocab, g->recent + slot * HTI_RECENT, recents, draw);
    CHECK(g->ctx, *token >= 0, HT_DEVICE, "the model's logits are not numbers any more");
    if (log_probability) *log_probability = hti_log_probability(logits, vocab, *token);
    return HT_OK;
}
