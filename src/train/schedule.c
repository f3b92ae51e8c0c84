/*
 * Learning rate schedules. All rise linearly over `warmup` steps; those that end with the run over
 * no more than a quarter of it: a short run is to reach its rate, too.
 */
#include <math.h>

#include "train/trainer.h"

double hti_rate(const ht_config *c, int64_t s) {
    double at = (double)s, warm = (double)c->warmup, total = (double)c->steps;
    int ends = c->schedule == HTI_SCHEDULE_COSINE || c->schedule == HTI_SCHEDULE_LINEAR;
    if (ends && warm > 0.25 * total) warm = floor(0.25 * total);
    double rise = at < warm ? at / warm : 1;
    double past = at > warm ? at - warm : 0, left = total > warm ? total - warm : 1;
    switch (c->schedule) {
    case HTI_SCHEDULE_RSQRT: {
        double most = at > warm ? at : warm;
        return c->rate * rise / sqrt(most > 1 ? most : 1);
    }
    case HTI_SCHEDULE_COSINE: {
        double share = total > 0 ? past / total : 0;
        return c->rate * rise * 0.5 * (1 + cos(3.141592653589793 * (share - floor(share))));
    }
    case HTI_SCHEDULE_LINEAR: return c->rate * rise * (past < left ? 1 - past / left : 0);
    default: return c->rate * rise;
    }
}
