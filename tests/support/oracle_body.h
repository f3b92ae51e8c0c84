/*
 * The dense definition for one type; oracle.c includes this once per precision with
 *   REAL       the type of all arithmetic
 *   FN(name)   the name with the precision's suffix
 *   EXP EXP2 LOG SQRT ABS, COS SIN POW of the type WIDE
 *
 * Written over pairs of rows, not over clusters: row i meets row j at one level l, with the query
 * that row i uses there and the mean key of row j's cluster there. Summing exp(s) v over the rows
 * of a cluster is exp(s) times the sum of v, so this is the same as the definition over clusters.
 */

typedef struct FN(head) {
    const oracle_problem *p;
    int64_t rows, sequence, h;
    int levels, reverse;
    int planes; /* levels, and where clusters are opened one more: rows as they are, not turned */
    oracle_form form;
    REAL scale;               /* of the scores, or what q has been multiplied by */
    REAL unit;                /* what one unit of a score is worth: 1, or log 2 */
    REAL keep;                /* keep: 1/(1 - dropout) */
    REAL sign;                /* of <dz, z> in ds: -1; +1 when only sizes are asked for */
    const uint8_t *qon, *kon; /* [rows] */
    int8_t *level;            /* [rows, rows] the plane of i and j; -1: i does not see j */
    REAL *q, *k;              /* [planes, rows, head_dim]: what row i asks, what j's cluster is */
    REAL *dq, *dk;            /* gradients of those */
    REAL *v, *z, *dz, *dv;    /* [rows, value_dim] */
    REAL *s;                  /* [rows, rows] scores */
    REAL *lse, *dlse;         /* [rows] */
    REAL *dbias;              /* [4*block - 1] */
} FN(head);

/* index of step t of n, in the order asked for */
static int64_t FN(at)(const FN(head) *w, int64_t t, int64_t n) {
    return w->reverse ? n - 1 - t : t;
}

static REAL FN(dot)(int reverse, const REAL *a, const REAL *b, int64_t n) {
    REAL sum = 0;
    for (int64_t t = 0; t < n; t++) {
        int64_t c = reverse ? n - 1 - t : t;
        sum += a[c] * b[c];
    }
    return sum;
}

/* turns row x of position t by its angle; back: by the opposite one */
static void FN(rotate)(const FN(head) *w, REAL *x, int64_t t, int back) {
    int64_t d = w->p->head_dim, half = d / 2;
    for (int64_t c = 0; c < half; c++) {
        WIDE angle = (WIDE)t * POW((WIDE)w->p->rotary, (WIDE)-2 * (WIDE)c / (WIDE)d);
        REAL cs = (REAL)COS(angle), sn = (REAL)SIN(angle), a = x[c], b = x[c + half];
        if (back) sn = -sn;
        REAL minus = -sn;
        if (w->sign > 0) cs = ABS(cs), sn = ABS(sn), minus = sn;
        x[c] = a * cs + b * minus;
        x[c + half] = a * sn + b * cs;
    }
}

/* x [levels, rows, d], level 0 filled: every other level from it. mean: the mean over the
 * cluster's valid rows; first: its first valid row; neither: the row itself */
static void FN(coarsen)(const FN(head) *w, REAL *x, const uint8_t *on, int mean, int first) {
    int64_t d = w->p->head_dim, n = w->rows;
    for (int l = 1; l < w->levels; l++) {
        for (int64_t lo = 0; lo < n; lo += (int64_t)1 << l) {
            int64_t hi = lo + ((int64_t)1 << l) < n ? lo + ((int64_t)1 << l) : n, head = -1;
            int64_t count = 0;
            for (int64_t i = hi - 1; i >= lo; i--)
                if (on[i]) head = i, count++;
            for (int64_t c = 0; c < d && head >= 0; c++) {
                REAL sum = 0;
                for (int64_t t = 0; t < hi - lo; t++) {
                    int64_t i = lo + FN(at)(w, t, hi - lo);
                    if (on[i]) sum += x[i * d + c];
                }
                sum /= (REAL)count;
                for (int64_t i = lo; i < hi; i++)
                    x[(l * n + i) * d + c] = mean ? sum : x[(first ? head : i) * d + c];
            }
        }
    }
}

/* the adjoint: dx [levels, rows, d] of all levels is gathered into level 0 */
static void FN(uncoarsen)(const FN(head) *w, REAL *dx, const uint8_t *on, int mean, int first) {
    int64_t d = w->p->head_dim, n = w->rows;
    for (int l = 1; l < w->levels; l++) {
        for (int64_t lo = 0; lo < n; lo += (int64_t)1 << l) {
            int64_t hi = lo + ((int64_t)1 << l) < n ? lo + ((int64_t)1 << l) : n, head = -1;
            int64_t count = 0;
            for (int64_t i = hi - 1; i >= lo; i--)
                if (on[i]) head = i, count++;
            for (int64_t c = 0; c < d && head >= 0; c++) {
                REAL sum = 0;
                for (int64_t t = 0; t < hi - lo; t++)
                    sum += dx[(l * n + lo + FN(at)(w, t, hi - lo)) * d + c];
                for (int64_t i = lo; i < hi; i++) {
                    if (!on[i]) continue;
                    if (mean)
                        dx[i * d + c] += sum / (REAL)count;
                    else if (!first)
                        dx[i * d + c] += dx[(l * n + i) * d + c];
                    else if (i == head)
                        dx[i * d + c] += sum;
                }
            }
        }
    }
    for (int64_t i = 0; i < n * d && w->planes > w->levels; i++) dx[i] += dx[w->levels * n * d + i];
}

/* the level that a plane belongs to */
static int FN(level_of)(const FN(head) *w, int plane) { return plane == w->levels ? 0 : plane; }

/* where the bias of (i, j) of a plane stands in its table */
static int64_t FN(bias_at)(const FN(head) *w, int plane, int64_t i, int64_t j) {
    const oracle_problem *p = w->p;
    int l = FN(level_of)(w, plane);
    int64_t reach = 2 * p->block - 1, distance = (j >> l) - (i >> l);
    if (distance > reach) distance = reach;
    if (distance < -reach) distance = -reach;
    return distance + reach;
}

static void FN(meet)(FN(head) *w) {
    meet(w->level, w->p, w->qon, w->kon, w->rows);
    if (w->planes == w->levels) return;
    double *margin = malloc((size_t)(w->rows + 1) * sizeof *margin);
    if (!margin) abort();
    oracle_open(w->level, margin, w->p, w->sequence, w->h);
    for (int64_t i = 0; i < w->rows * w->rows; i++)
        if (w->level[i] == ORACLE_ROW) w->level[i] = (int8_t)w->levels;
    free(margin);
}

static REAL FN(weight)(const FN(head) *w, int plane, int64_t i, int64_t j) {
    if (w->p->dropout == 0) return 1;
    int l = FN(level_of)(w, plane);
    int64_t query = w->p->query == HT_QUERY_FINE ? i : i >> l;
    return oracle_kept(w->p, w->sequence, w->h, l, query, j >> l) ? w->keep : 0;
}

/* q has been multiplied by the scale already */
static int FN(scaled)(const FN(head) *w) {
    return w->form == ORACLE_SCALED || w->form == ORACLE_POWERS;
}

static REAL FN(power)(const FN(head) *w, REAL s) {
    return w->form == ORACLE_POWERS ? EXP2(s) : EXP(s);
}

static REAL FN(score)(const FN(head) *w, int l, int64_t i, int64_t j, int reverse) {
    const oracle_problem *p = w->p;
    int64_t n = w->rows, d = p->head_dim;
    REAL s = FN(dot)(reverse, w->q + (l * n + i) * d, w->k + (l * n + j) * d, d);
    if (!FN(scaled)(w)) s *= w->scale;
    return p->bias ? s + (REAL)p->bias[FN(bias_at)(w, l, i, j) * p->q_heads + w->h] / w->unit : s;
}

/* row i: scores, lse, output */
static void FN(attend)(FN(head) *w, int64_t i) {
    const oracle_problem *p = w->p;
    int64_t n = w->rows, dv = p->value_dim;
    REAL top = -INFINITY, sum = 0, *s = w->s + i * n, *z = w->z + i * dv;
    const int8_t *level = w->level + i * n;
    for (int64_t j = 0; j < n; j++) {
        int l = level[j];
        if (l < 0) continue;
        s[j] = FN(score)(w, l, i, j, w->reverse);
        if (s[j] > top) top = s[j];
    }
    w->lse[i] = -INFINITY;
    if (top == (REAL)-INFINITY) return;
    for (int64_t t = 0; t < n; t++) {
        int64_t j = FN(at)(w, t, n);
        if (level[j] < 0) continue;
        REAL e = FN(power)(w, s[j] - top), weight = FN(weight)(w, level[j], i, j);
        sum += e;
        for (int64_t c = 0; c < dv; c++) z[c] += e * weight * w->v[j * dv + c];
    }
    for (int64_t c = 0; c < dv; c++) z[c] /= sum;
    w->lse[i] = top * w->unit + LOG(sum);
}

/* row i's part of every gradient, from lse and the scores alone */
static void FN(pull)(FN(head) *w, int64_t i) {
    const oracle_problem *p = w->p;
    int64_t n = w->rows, d = p->head_dim, dv = p->value_dim;
    const REAL *dz = w->dz + i * dv;
    REAL delta = FN(dot)(w->reverse, dz, w->z + i * dv, dv);
    for (int64_t t = 0; t < n; t++) {
        int64_t j = FN(at)(w, t, n);
        int l = w->level[i * n + j];
        if (l < 0) continue;
        if (w->form == ORACLE_MIXED) w->s[i * n + j] = FN(score)(w, l, i, j, !w->reverse);
        REAL e = FN(power)(w, w->s[i * n + j] - w->lse[i] / w->unit);
        REAL weight = FN(weight)(w, l, i, j);
        REAL ds = weight * FN(dot)(w->reverse, dz, w->v + j * dv, dv);
        ds = e * (ds + w->sign * delta + w->dlse[i]);
        const REAL *q = w->q + (l * n + i) * d, *k = w->k + (l * n + j) * d;
        REAL *dq = w->dq + (l * n + i) * d, *dk = w->dk + (l * n + j) * d;
        REAL with_q = FN(scaled)(w) ? w->unit : w->scale; /* q may carry its scale */
        for (int64_t c = 0; c < d; c++) dq[c] += w->scale * w->unit * ds * k[c];
        for (int64_t c = 0; c < d; c++) dk[c] += with_q * ds * q[c];
        for (int64_t c = 0; c < dv; c++) w->dv[j * dv + c] += e * weight * dz[c];
        w->dbias[FN(bias_at)(w, l, i, j)] += ds;
    }
}

/* copies row `from` of a canonical array, or zeros if the row takes no part */
static void FN(load)(REAL *row, const double *from, int64_t n, int on) {
    for (int64_t c = 0; c < n; c++) row[c] = on ? (REAL)from[c] : 0;
}

static REAL *FN(array)(int64_t n) {
    REAL *a = calloc((size_t)(n > 0 ? n : 1), sizeof(REAL));
    if (!a) abort();
    return a;
}

static void FN(open)(FN(head) *w) {
    int64_t n = w->rows, d = w->p->head_dim, dv = w->p->value_dim;
    w->q = FN(array)(w->planes * n * d), w->k = FN(array)(w->planes * n * d);
    w->dq = FN(array)(w->planes * n * d), w->dk = FN(array)(w->planes * n * d);
    w->v = FN(array)(n * dv), w->z = FN(array)(n * dv);
    w->dz = FN(array)(n * dv), w->dv = FN(array)(n * dv);
    w->level = malloc((size_t)(n * n) + 1);
    if (!w->level) abort();
    w->s = FN(array)(n * n), w->lse = FN(array)(n), w->dlse = FN(array)(n);
    w->dbias = FN(array)(4 * w->p->block - 1);
}

static void FN(close)(FN(head) *w) {
    REAL *all[] = {w->q,  w->k,  w->dq, w->dk,  w->v,    w->z,
                   w->dz, w->dv, w->s,  w->lse, w->dlse, w->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(w->level);
}

/* level 0 from the problem, the other levels from it; then level 0 is turned */
static void FN(prepare)(FN(head) *w, int64_t start) {
    const oracle_problem *p = w->p;
    int64_t d = p->head_dim, dv = p->value_dim, kv = w->h / (p->q_heads / p->kv_heads);
    for (int64_t i = 0; i < w->rows; i++) {
        int64_t row = start + i, kept = row * p->kv_heads + kv, own = row * p->q_heads + w->h;
        FN(load)(w->q + i * d, p->q + own * d, d, w->qon[i]);
        FN(load)(w->k + i * d, p->k + kept * d, d, w->kon[i]);
        FN(load)(w->v + i * dv, p->v + kept * dv, dv, w->kon[i]);
        if (p->dout) FN(load)(w->dz + i * dv, p->dout + own * dv, dv, w->qon[i]);
        if (p->dlse) FN(load)(w->dlse + i, p->dlse + own, 1, w->qon[i]);
    }
    FN(coarsen)(w, w->q, w->qon, p->query == HT_QUERY_MEAN, p->query == HT_QUERY_FIRST);
    FN(coarsen)(w, w->k, w->kon, 1, 0);
    for (int64_t i = 0; i < w->rows * d && w->planes > w->levels; i++) {
        w->q[w->levels * w->rows * d + i] = w->q[i];
        w->k[w->levels * w->rows * d + i] = w->k[i];
    }
    for (int64_t i = 0; i < w->rows && p->rotary != 0; i++) {
        FN(rotate)(w, w->q + i * d, i, 0);
        FN(rotate)(w, w->k + i * d, i, 0);
    }
    for (int64_t i = 0; i < w->planes * w->rows * d && FN(scaled)(w); i++) w->q[i] *= w->scale;
}

static void FN(differentiate)(FN(head) *w) {
    const oracle_problem *p = w->p;
    for (int64_t t = 0; t < w->rows; t++) {
        int64_t i = FN(at)(w, t, w->rows);
        if (w->lse[i] != (REAL)-INFINITY) FN(pull)(w, i);
    }
    for (int64_t i = 0; i < w->rows && p->rotary != 0; i++) {
        FN(rotate)(w, w->dq + i * p->head_dim, i, 1);
        FN(rotate)(w, w->dk + i * p->head_dim, i, 1);
    }
    FN(uncoarsen)(w, w->dq, w->qon, p->query == HT_QUERY_MEAN, p->query == HT_QUERY_FIRST);
    FN(uncoarsen)(w, w->dk, w->kon, 1, 0);
}

/* every input of the differentiation by its absolute value, for oracle_sizes */
static void FN(absolute)(FN(head) *w) {
    int64_t n = w->rows, d = w->p->head_dim, dv = w->p->value_dim;
    for (int64_t i = 0; i < w->planes * n * d; i++) {
        w->q[i] = ABS(w->q[i]);
        w->k[i] = ABS(w->k[i]);
    }
    for (int64_t i = 0; i < n * dv; i++) {
        w->v[i] = ABS(w->v[i]);
        w->z[i] = ABS(w->z[i]);
        w->dz[i] = ABS(w->dz[i]);
    }
    for (int64_t i = 0; i < n; i++) w->dlse[i] = ABS(w->dlse[i]);
    w->sign = 1;
}

/* sums in REAL across heads of a group and across sequences, kept in double between */
static void FN(add)(double *to, const REAL *x, int64_t n) {
    for (int64_t c = 0; c < n; c++) to[c] = (double)((REAL)to[c] + x[c]);
}

static void FN(store)(oracle_result *r, const FN(head) *w, int64_t start) {
    const oracle_problem *p = w->p;
    int64_t d = p->head_dim, dv = p->value_dim, kv = w->h / (p->q_heads / p->kv_heads);
    for (int64_t i = 0; i < w->rows; i++) {
        int64_t row = start + i, kept = row * p->kv_heads + kv, own = row * p->q_heads + w->h;
        for (int64_t c = 0; c < dv; c++) r->out[own * dv + c] = (double)w->z[i * dv + c];
        r->lse[own] = (double)w->lse[i];
        if (!p->dout) continue;
        FN(add)(r->dq + own * d, w->dq + i * d, d);
        FN(add)(r->dk + kept * d, w->dk + i * d, d);
        FN(add)(r->dv + kept * dv, w->dv + i * dv, dv);
    }
    for (int64_t e = 0; e < 4 * p->block - 1 && p->dout; e++)
        FN(add)(r->dbias + e * p->q_heads + w->h, w->dbias + e, 1);
}

static void FN(run_head)(oracle_result *r, FN(head) *w, int64_t start, int sizes) {
    const oracle_problem *p = w->p;
    int64_t dv = p->value_dim;
    FN(open)(w);
    FN(prepare)(w, start);
    FN(meet)(w);
    for (int64_t i = 0; i < w->rows; i++) FN(attend)(w, i);
    for (int64_t i = 0; i < w->rows && p->stored_out; i++)
        FN(load)(w->z + i * dv, p->stored_out + ((start + i) * p->q_heads + w->h) * dv, dv, 1);
    if (sizes) FN(absolute)(w);
    if (p->dout) FN(differentiate)(w);
    FN(store)(r, w, start);
    FN(close)(w);
}

static void FN(run)(oracle_result *r, const oracle_problem *p, oracle_form form, int sizes) {
    uint8_t *ones = malloc((size_t)p->cu_seqlens[p->sequences] + 1);
    if (!ones) abort();
    memset(ones, 1, (size_t)p->cu_seqlens[p->sequences] + 1);
    for (int64_t b = 0; b < p->sequences; b++) {
        for (int64_t h = 0; h < p->q_heads; h++) {
            int64_t start = p->cu_seqlens[b];
            FN(head) w = {.p = p, .sequence = b, .h = h, .form = form, .sign = -1};
            w.reverse = form == ORACLE_REVERSE;
            w.unit = form == ORACLE_POWERS ? LOG((REAL)2) : 1;
            w.rows = p->cu_seqlens[b + 1] - start;
            w.levels = oracle_levels(p, w.rows);
            w.planes = w.levels + (p->open > 0);
            w.scale = p->scale != 0 ? (REAL)p->scale : 1 / SQRT((REAL)p->head_dim);
            w.scale /= w.unit;
            w.keep = 1 / (1 - (REAL)p->dropout);
            w.qon = p->query_mask ? p->query_mask + start : ones;
            w.kon = p->key_mask ? p->key_mask + start : ones;
            FN(run_head)(r, &w, start, sizes);
        }
    }
    free(ones);
}
