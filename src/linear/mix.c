/*
 * How much the linear model's scores and another model's logits count: two weights with the
 * smallest loss on texts that neither has seen.
 */
#include <math.h>

#include "linear/linear.h"

enum { NEWTON = 60, HALVINGS = 30 };
#define RIDGE 1e-3 /* on the sum: weights stay finite where all is told apart */
#define WORTH 2.0  /* of the sum of losses, for a second weight */

typedef struct mixing {
    const float *part[2]; /* [items, classes]: scores, logits or NULL */
    const int32_t *labels;
    int64_t items, classes;
} mixing;

/* Loss at two weights, its gradient and its second derivatives. */
typedef struct place {
    double at[2], loss, slope[2], curve[2][2];
    int64_t correct;
} place;

static double value(const mixing *m, const double at[2], int64_t item, int64_t k) {
    double sum = at[0] * m->part[0][item * m->classes + k];
    return m->part[1] ? sum + at[1] * m->part[1][item * m->classes + k] : sum;
}

static double part_of(const mixing *m, int p, int64_t item, int64_t k) {
    return m->part[p] ? m->part[p][item * m->classes + k] : 0;
}

static void add_item(place *p, const mixing *m, int64_t item) {
    int64_t best = 0;
    double sum = 0, top = value(m, p->at, item, 0), mean[2] = {0}, square[2][2] = {{0}};
    for (int64_t k = 1; k < m->classes; k++)
        if (value(m, p->at, item, k) > top) top = value(m, p->at, item, best = k);
    for (int64_t k = 0; k < m->classes; k++) {
        double weight = exp(value(m, p->at, item, k) - top);
        sum += weight;
        for (int i = 0; i < 2; i++) {
            mean[i] += weight * part_of(m, i, item, k);
            for (int j = 0; j < 2; j++)
                square[i][j] += weight * part_of(m, i, item, k) * part_of(m, j, item, k);
        }
    }
    int32_t label = m->labels[item];
    p->loss += log(sum) - (value(m, p->at, item, label) - top);
    p->correct += best == label;
    for (int i = 0; i < 2; i++) {
        p->slope[i] += mean[i] / sum - part_of(m, i, item, label);
        for (int j = 0; j < 2; j++)
            p->curve[i][j] += square[i][j] / sum - mean[i] / sum * (mean[j] / sum);
    }
}

static place look(const mixing *m, const double at[2]) {
    place p = {.at = {at[0], at[1]}};
    for (int64_t i = 0; i < m->items; i++) add_item(&p, m, i);
    for (int i = 0; i < 2; i++) {
        p.loss += 0.5 * RIDGE * at[i] * at[i];
        p.slope[i] += RIDGE * at[i];
        p.curve[i][i] += RIDGE;
    }
    return p;
}

/* Newton's step in the weights that may move. */
static void step_of(double out[2], const place *p, const int moves[2]) {
    double a = p->curve[0][0], b = p->curve[0][1], d = p->curve[1][1];
    if (!moves[0] || !moves[1]) b = 0;
    double det = a * d - b * b;
    out[0] = moves[0] ? -(d * p->slope[0] - b * p->slope[1]) / det : 0;
    out[1] = moves[1] ? -(a * p->slope[1] - b * p->slope[0]) / det : 0;
}

/* The smallest loss: it has one minimum. */
static place settle(const mixing *m, int first, int second) {
    const int moves[2] = {first, second};
    place p = look(m, (double[2]){0, 0});
    for (int turn = 0; turn < NEWTON; turn++) {
        double step[2], share = 1;
        step_of(step, &p, moves);
        place next = p;
        for (int i = 0; i < HALVINGS; i++, share /= 2) {
            next = look(m, (double[2]){p.at[0] + share * step[0], p.at[1] + share * step[1]});
            if (next.loss < p.loss) break;
        }
        if (!(next.loss < p.loss - 1e-9)) break;
        p = next;
    }
    return p;
}

static int all_finite(const float *x, int64_t count) {
    for (int64_t i = 0; x && i < count; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

ht_status ht_linear_choose(ht_linear *l, const float *scores, const float *logits,
                           const int32_t *labels, int64_t items) {
    NEED(l);
    CHECK(l->ctx, scores && labels && items > 0, HT_INVALID,
          "ht_linear_choose: scores or labels are NULL, or there are no items");
    mixing m = {{scores, logits}, labels, items, l->labels.count};
    for (int64_t i = 0; i < items; i++)
        CHECK(l->ctx, labels[i] >= 0 && labels[i] < m.classes, HT_INVALID,
              "labels must be 0 to %lld, got %d", (long long)m.classes - 1, (int)labels[i]);
    CHECK(l->ctx, all_finite(scores, items * m.classes), HT_INVALID, "the scores are not finite");
    if (!all_finite(logits, items * m.classes)) m.part[1] = NULL; /* it has nothing to say */
    double n = (double)items;
    place linear = settle(&m, 1, 0), best = linear;
    ht_linear_info *info = &l->info;
    info->linear_loss = linear.loss / n, info->linear_accuracy = (double)linear.correct / n;
    info->model_loss = info->model_accuracy = 0;
    if (m.part[1]) {
        place model = settle(&m, 0, 1), both = settle(&m, 1, 1);
        info->model_loss = model.loss / n, info->model_accuracy = (double)model.correct / n;
        if (model.loss < best.loss) best = model;
        if (both.at[0] > 0 && both.at[1] > 0 && both.loss + WORTH < best.loss) best = both;
    }
    info->valid_items = items;
    info->linear_weight = best.at[0], info->model_weight = best.at[1];
    info->chosen_loss = best.loss / n, info->chosen_accuracy = (double)best.correct / n;
    return HT_OK;
}

ht_status ht_linear_mix(const ht_linear *l, const float *scores, const float *logits, float *out) {
    NEED(l);
    const ht_linear_info *info = &l->info;
    CHECK(l->ctx, scores && out && (logits || info->model_weight == 0), HT_INVALID,
          "ht_linear_mix: scores, logits or out is NULL");
    for (int64_t k = 0; k < l->labels.count; k++) {
        double x = info->linear_weight != 0 ? info->linear_weight * scores[k] : 0;
        if (info->model_weight != 0) x += info->model_weight * logits[k];
        out[k] = (float)x;
    }
    return HT_OK;
}
