/*
 * Accuracy by distance.
 */
#include "eval/distance.h"

#include <math.h>
#include <string.h>

static int place_of(int32_t back) {
    int place = 0;
    while (back > 0) back >>= 1, place++;
    return place;
}

static void end_item(distance_sums *s, double tokens, double right) {
    if (tokens == 0) return;
    s->items++;
    s->tokens += tokens;
    s->right += right;
    s->squares[0] += tokens * tokens;
    s->squares[1] += tokens * right;
    s->squares[2] += right * right;
}

static void add_item(distance *d, const ht_batch *b, const float *losses,
                     const unsigned char *right, int32_t from, int32_t to) {
    double tokens[DISTANCES] = {0}, hits[DISTANCES] = {0}, all = 0, all_hits = 0;
    for (int32_t i = from; i < to; i++) {
        if (b->targets[i] < 0) continue;
        int place = place_of(b->back[i]);
        tokens[place]++, all++;
        hits[place] += right[i], all_hits += right[i];
        d->by[place].loss += losses[i], d->all.loss += losses[i];
    }
    for (int k = 0; k < DISTANCES; k++) end_item(&d->by[k], tokens[k], hits[k]);
    end_item(&d->all, all, all_hits);
}

void distance_add(distance *d, const ht_batch *b, const float *losses, const unsigned char *right) {
    for (int64_t i = 0; i < b->sequences; i++)
        add_item(d, b, losses, right, b->cu_seqlens[i], b->cu_seqlens[i + 1]);
}

double distance_accuracy(const distance_sums *s) { return s->right / s->tokens; }

/* The error of a ratio of sums: the spread of right - accuracy * tokens over items. */
double distance_error(const distance_sums *s) {
    double share = distance_accuracy(s), n = s->items;
    double spread = s->squares[2] - 2 * share * s->squares[1] + share * share * s->squares[0];
    return n < 2 ? NAN : sqrt(fmax(0, spread) * n / (n - 1)) / s->tokens;
}

/* In hundredths, "?" where it is not known. */
static const char *percent(char out[32], double x) {
    snprintf(out, 32, isnan(x) ? "?" : "%.2f", 100 * x);
    return out;
}

void distance_print(const distance *d, const char *model) {
    const distance_sums *a = &d->all;
    char one[32], two[32], range[48];
    printf(
        "accuracy %s +- %s %% of %.0f tokens that count, in %.0f items; loss %.4f, %.4f bits per "
        "token (%s)\n",
        percent(one, distance_accuracy(a)), percent(two, distance_error(a)), a->tokens, a->items,
        a->loss / a->tokens, a->loss / a->tokens / log(2), model);
    printf("%19s %10s %8s %10s %10s\n", "answer stands back", "accuracy", "+-", "bits", "tokens");
    for (int i = 0; i < DISTANCES; i++) {
        const distance_sums *s = &d->by[i];
        if (s->tokens == 0) continue;
        snprintf(range, sizeof range, "%9lld-%9lld", 1LL << (i - (i > 0)), (1LL << i) - 1);
        printf("%19s %8s %% %8s %10.4f %10.0f\n", i ? range : "not known",
               percent(one, distance_accuracy(s)), percent(two, distance_error(s)),
               s->loss / s->tokens / log(2), s->tokens);
    }
}

static void json_sums(json_writer *json, const distance_sums *s) {
    json_int(json, "targets", (int64_t)s->tokens);
    json_real(json, "accuracy", distance_accuracy(s));
    json_real(json, "accuracy_error", distance_error(s));
    json_real(json, "loss", s->loss / s->tokens);
    json_real(json, "bits_per_token", s->loss / s->tokens / log(2));
}

void distance_json(const distance *d, json_writer *json) {
    json_int(json, "items", (int64_t)d->all.items);
    json_sums(json, &d->all);
    json_open(json, "by_distance", '[');
    for (int i = 0; i < DISTANCES; i++) {
        if (d->by[i].tokens == 0) continue;
        json_open(json, NULL, '{');
        json_int(json, "from", i ? INT64_C(1) << (i - 1) : 0);
        json_int(json, "to", (INT64_C(1) << i) - 1);
        json_sums(json, &d->by[i]);
        json_close(json, '}');
    }
    json_close(json, ']');
}
