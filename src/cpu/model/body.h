/*
 * The model's ops as loops, for one precision and one instruction set. Included by f32.c,
 * f64.c, avx2.c, avx512.c with `real`, FN(name), exp_real (a branch-free exp that
 * vectorises) and the name of the table. Rows are split statically over threads; sums over rows go
 * column by column, each column in the order of the rows, so that they do not depend on the number
 * of threads.
 */
#include <math.h>
#include <string.h>

#include "core/amounts.h"
#include "core/dropout.h"
#include "core/near.h"
#include "cpu/model/ops.h"

#define SIMD _Pragma("omp simd")
#define SIMD_SUM(s) SIMD_SUM_(omp simd reduction(+ : s))
#define SIMD_SUM_(x) _Pragma(#x)
#define PRAGMA(x) _Pragma(#x)
/* splits a loop that touches `work` numbers in all */
#define ROWS(work) PRAGMA(omp parallel for num_threads(hti_cpu_team(ctx, work)) schedule(static))
enum { SPAN = 256 }; /* columns of a dropout mask made at a time */

/* ---- dropout ---- */

/* mask[0 ... n-1] of columns c0 ... of a row: 0 or 1/(1-p). c0 is a multiple of 8, n at most SPAN.
 */
static void FN(mask)(real *restrict mask, const hti_random *d, int64_t row, int64_t c0, int n) {
    uint32_t threshold = hti_drop_threshold(d->p), word[SPAN];
    real keep = (real)(1 / (1 - d->p));
    SIMD for (int g = 0; g < (n + 7) / 8; g++) {
        hti_philox w =
            hti_philox_draw(d->seed, d->offset, d->site, (uint32_t)row, (uint32_t)(c0 / 8 + g));
        word[8 * g] = w.w[0] & 0xffffu, word[8 * g + 1] = w.w[0] >> 16;
        word[8 * g + 2] = w.w[1] & 0xffffu, word[8 * g + 3] = w.w[1] >> 16;
        word[8 * g + 4] = w.w[2] & 0xffffu, word[8 * g + 5] = w.w[2] >> 16;
        word[8 * g + 6] = w.w[3] & 0xffffu, word[8 * g + 7] = w.w[3] >> 16;
    }
    SIMD for (int i = 0; i < n; i++) mask[i] = word[i] < threshold ? 0 : keep;
}

/* y = mask * x for one row; y may be x */
static void FN(drop_row)(real *y, const real *x, const hti_random *d, int64_t row, int64_t width) {
    real mask[SPAN];
    for (int64_t c = 0; c < width; c += SPAN) {
        int n = width - c < SPAN ? (int)(width - c) : SPAN;
        FN(mask)(mask, d, row, c, n);
        SIMD for (int i = 0; i < n; i++) y[c + i] = mask[i] * x[c + i];
    }
}

/* ---- embedding ---- */

static void FN(embed_forward)(ht_context *ctx, const hti_embed_call *e) {
    int64_t w = e->width;
    ROWS(e->rows * w) for (int64_t r = 0; r < e->rows; r++) {
        const real *from = e->tokens[r] < 0 ? e->cls : (const real *)e->table + e->tokens[r] * w;
        const real *learned = e->learned ? (const real *)e->learned + e->positions[r] * w : NULL;
        const real *fixed = e->fixed ? (const real *)e->fixed + e->positions[r] * w : NULL;
        real *out = (real *)e->out + r * w;
        for (int64_t c = 0; c < w; c++)
            out[c] = from[c] + (learned ? learned[c] : 0) + (fixed ? fixed[c] : 0);
        if (e->drop.p > 0) FN(drop_row)(out, out, &e->drop, r, w);
    }
}

/* Threads share the columns, so that rows of one token never meet. */
static void FN(embed_backward)(ht_context *ctx, const hti_embed_call *e) {
    int64_t w = e->width, spans = (w + SPAN - 1) / SPAN;
    ROWS(e->rows * w) for (int64_t span = 0; span < spans; span++) {
        int64_t c0 = span * SPAN;
        int n = w - c0 < SPAN ? (int)(w - c0) : SPAN;
        real mask[SPAN];
        for (int i = 0; i < n; i++) mask[i] = 1;
        for (int64_t r = 0; r < e->rows; r++) {
            const real *d = (const real *)e->dout + r * w + c0;
            real *to = e->tokens[r] < 0 ? e->dcls : (real *)e->dtable + e->tokens[r] * w;
            if (e->drop.p > 0) FN(mask)(mask, &e->drop, r, c0, n);
            for (int i = 0; i < n; i++) to[c0 + i] += mask[i] * d[i];
            if (!e->dlearned) continue;
            real *pos = (real *)e->dlearned + e->positions[r] * w + c0;
            for (int i = 0; i < n; i++) pos[i] += mask[i] * d[i];
        }
    }
}

static void FN(amounts_forward)(ht_context *ctx, const hti_amounts_call *a) {
    int64_t w = a->width;
    const real *slope = a->w, *shift = slope + w;
    ROWS(a->vocab * w) for (int64_t t = 0; t < a->vocab; t++) {
        real *row = (real *)a->table + t * w, x = (real)hti_amount(t);
        SIMD for (int64_t c = 0; c < w; c++) row[c] = x * slope[c] + shift[c];
    }
}

static void FN(amounts_backward)(ht_context *ctx, const hti_amounts_call *a) {
    int64_t w = a->width;
    real *slope = a->dw, *shift = slope + w;
    ROWS(a->vocab * w) for (int64_t c = 0; c < w; c++) {
        real to_slope = 0, to_shift = 0;
        for (int64_t t = 0; t < a->vocab; t++) {
            real d = ((const real *)a->dtable)[t * w + c];
            to_slope += (real)hti_amount(t) * d;
            to_shift += d;
        }
        slope[c] += to_slope, shift[c] += to_shift;
    }
}

/* ---- residual and layer norm ---- */

static void FN(norm_forward)(ht_context *ctx, const hti_norm_call *a) {
    int64_t w = a->width;
    const real *scale = a->scale, *shift = a->shift;
    ROWS(a->rows * w * 2) for (int64_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * w, *s = x;
        real *out = (real *)a->out + r * w, *stats = (real *)a->stats + 2 * r, sum = 0, square = 0;
        if (a->y) {
            const real *y = (const real *)a->y + r * w;
            real *to = (real *)a->s + r * w;
            if (a->drop.p > 0) {
                FN(drop_row)(out, y, &a->drop, r, w);
                y = out;
            }
            SIMD for (int64_t c = 0; c < w; c++) to[c] = x[c] + y[c];
            s = to;
        }
        SIMD_SUM(sum) for (int64_t c = 0; c < w; c++) sum += s[c];
        real mean = sum / (real)w;
        SIMD_SUM(square) for (int64_t c = 0; c < w; c++) square += (s[c] - mean) * (s[c] - mean);
        real rstd = (real)(1 / sqrt((double)(square / (real)w) + a->epsilon));
        SIMD for (int64_t c = 0; c < w; c++) out[c] = (s[c] - mean) * rstd * scale[c] + shift[c];
        stats[0] = mean, stats[1] = rstd;
    }
}

static void FN(column_sums)(ht_context *ctx, void *sums, const void *x, int64_t rows,
                            int64_t width) {
    int64_t spans = (width + SPAN - 1) / SPAN;
    ROWS(rows * width) for (int64_t span = 0; span < spans; span++) {
        int64_t c0 = span * SPAN;
        int n = width - c0 < SPAN ? (int)(width - c0) : SPAN;
        real acc[SPAN] = {0};
        for (int64_t r = 0; r < rows; r++) {
            const real *row = (const real *)x + r * width + c0;
            SIMD for (int i = 0; i < n; i++) acc[i] += row[i];
        }
        for (int i = 0; i < n; i++) ((real *)sums)[c0 + i] += acc[i];
    }
}

/* with n = (s - mean) rstd and g = dout scale:  ds += rstd (g - mean(g) - n mean(g n)) */
static void FN(norm_back_row)(const hti_norm_call *a, int64_t r) {
    int64_t w = a->width;
    const real *s = (const real *)(a->y ? a->s : a->x) + r * w,
               *dout = (const real *)a->dout + r * w;
    const real *stats = (const real *)a->stats + 2 * r, *scale = a->scale;
    const real *in = a->ds_in ? (const real *)a->ds_in + r * w : NULL;
    real *ds = (real *)a->ds + r * w, mean = stats[0], rstd = stats[1], g1 = 0, g2 = 0;
    SIMD_SUM_(omp simd reduction(+ : g1, g2)) for (int64_t c = 0; c < w; c++) {
        real g = dout[c] * scale[c];
        g1 += g;
        g2 += g * (s[c] - mean) * rstd;
    }
    g1 /= (real)w, g2 /= (real)w;
    SIMD for (int64_t c = 0; c < w; c++) {
        real n = (s[c] - mean) * rstd, d = rstd * (dout[c] * scale[c] - g1 - n * g2);
        ds[c] = in ? in[c] + d : d;
    }
    if (!a->dy) return;
    if (a->drop.p > 0)
        FN(drop_row)((real *)a->dy + r * w, ds, &a->drop, r, w);
    else
        memcpy((real *)a->dy + r * w, ds, sizeof(real) * (size_t)w);
}

static void FN(norm_backward)(ht_context *ctx, const hti_norm_call *a) {
    int64_t w = a->width, spans = (w + SPAN - 1) / SPAN;
    ROWS(a->rows * w * 2) for (int64_t r = 0; r < a->rows; r++) FN(norm_back_row)(a, r);
    ROWS(a->rows * w * 2) for (int64_t span = 0; span < spans; span++) {
        int64_t c0 = span * SPAN;
        int n = w - c0 < SPAN ? (int)(w - c0) : SPAN;
        real dscale[SPAN] = {0}, dshift[SPAN] = {0};
        for (int64_t r = 0; r < a->rows; r++) {
            const real *s = (const real *)(a->y ? a->s : a->x) + r * w + c0;
            const real *d = (const real *)a->dout + r * w + c0,
                       *stats = (const real *)a->stats + 2 * r;
            real mean = stats[0], rstd = stats[1];
            SIMD for (int i = 0; i < n; i++) {
                dscale[i] += d[i] * (s[i] - mean) * rstd;
                dshift[i] += d[i];
            }
        }
        for (int i = 0; i < n; i++) {
            ((real *)a->dscale)[c0 + i] += dscale[i];
            ((real *)a->dshift)[c0 + i] += dshift[i];
        }
    }
    if (a->dbias) FN(column_sums)(ctx, a->dbias, a->dy ? a->dy : a->ds, a->rows, w);
}

/* ---- activation functions of a linear layer ---- */

#define GELU_A ((real)0.7978845608028654) /* sqrt(2/pi) */
#define GELU_B ((real)0.044715)

/* tanh form: x/2 (1 + tanh u) = x sigmoid(2u), u = A (x + B x^3) */
static inline real FN(gelu_sigmoid)(real x) {
    return 1 / (1 + exp_real(-2 * GELU_A * (x + GELU_B * x * x * x)));
}

static void FN(activate_row)(const hti_linear_call *a, int64_t r) {
    int64_t w = a->out;
    real *y = (real *)a->y + r * w, *pre = a->pre ? (real *)a->pre + r * w : y;
    const real *bias = a->bias;
    if (bias) {
        SIMD for (int64_t c = 0; c < w; c++) pre[c] = y[c] + bias[c];
    } else if (pre != y) {
        memcpy(pre, y, sizeof(real) * (size_t)w);
    }
    if (a->activation == HTI_GELU) {
        SIMD for (int64_t c = 0; c < w; c++) y[c] = pre[c] * FN(gelu_sigmoid)(pre[c]);
    } else if (a->activation == HTI_RELU) {
        SIMD for (int64_t c = 0; c < w; c++) y[c] = pre[c] < 0 ? 0 : pre[c];
    }
    if (a->drop.p > 0) FN(drop_row)(y, y, &a->drop, r, w);
}

static void FN(activate)(ht_context *ctx, const hti_linear_call *a) {
    ROWS(a->rows * a->out * 2) for (int64_t r = 0; r < a->rows; r++) FN(activate_row)(a, r);
}

static void FN(activate_back)(ht_context *ctx, const hti_linear_call *a) {
    int64_t w = a->out;
    ROWS(a->rows * w * 2) for (int64_t r = 0; r < a->rows; r++) {
        real *d = (real *)a->dy + r * w;
        const real *pre = (const real *)a->pre + r * w;
        if (a->drop.p > 0) FN(drop_row)(d, d, &a->drop, r, w);
        if (a->activation == HTI_GELU) {
            SIMD for (int64_t c = 0; c < w; c++) {
                real x = pre[c], s = FN(gelu_sigmoid)(x);
                d[c] *= s + x * s * (1 - s) * 2 * GELU_A * (1 + 3 * GELU_B * x * x);
            }
        } else {
            SIMD for (int64_t c = 0; c < w; c++) d[c] = pre[c] > 0 ? d[c] : 0;
        }
    }
}

/* ---- rotary positions ---- */

static void FN(rotary)(ht_context *ctx, const hti_rotary_call *a) {
    int64_t half = a->head_dim / 2;
    ROWS(a->rows * a->heads * a->head_dim) for (int64_t r = 0; r < a->rows; r++) {
        const real *turn = (const real *)a->turn + a->positions[r] * half * 2;
        for (int64_t h = 0; h < a->heads; h++) {
            real *x = (real *)a->x + r * a->row_stride + h * a->head_dim;
            for (int64_t i = 0; i < half; i++) {
                real c = turn[2 * i], s = (real)a->sign * turn[2 * i + 1], p = x[i],
                     q = x[i + half];
                x[i] = p * c - q * s;
                x[i + half] = p * s + q * c;
            }
        }
    }
}

/* ---- neighbours ---- */

static hti_range FN(near_rows)(const hti_near_call *a, int64_t r) {
    int64_t s = a->sequence[r];
    if (a->mask && !a->mask[r]) return (hti_range){r, r};
    return hti_near_rows(r, a->start[s], a->count[s], a->lead);
}

/* The row of `from` that tap k of row r looks at, forward or (back: of gradients) the other way;
 * NULL: none. */
static const real *FN(near_row)(const hti_near_call *a, const void *from, hti_range seen, int64_t r,
                                int64_t k, int back) {
    int64_t at = back ? r - (k - a->back) : r + k - a->back, w = a->width;
    if (seen.lo >= seen.hi || at >= seen.hi) return NULL;
    if (at < seen.lo) { /* of what came before the sequence the last size - 1 rows are there */
        const real *past = a->past;
        if (!past) return NULL;
        int64_t slot = a->slots[a->sequence[r]], row = a->size - 1 - (seen.lo - at);
        return past + (slot * (a->size - 1) + row) * w;
    }
    return a->mask && !a->mask[at] ? NULL : (const real *)from + at * w;
}

static void FN(near_sum)(ht_context *ctx, const hti_near_call *a, void *to, const void *from,
                         int back) {
    int64_t w = a->width;
    ROWS(a->rows * w * a->size) for (int64_t r = 0; r < a->rows; r++) {
        real *out = (real *)to + r * w;
        hti_range seen = FN(near_rows)(a, r);
        memset(out, 0, sizeof(real) * (size_t)w);
        for (int64_t k = 0; k < a->size; k++) {
            const real *x = FN(near_row)(a, from, seen, r, k, back);
            const real *by = (const real *)a->w + k * w;
            if (!x) continue;
            SIMD for (int64_t c = 0; c < w; c++) out[c] += by[c] * x[c];
        }
    }
}

static void FN(near_forward)(ht_context *ctx, const hti_near_call *a) {
    FN(near_sum)(ctx, a, a->y, a->x, 0);
}

/* Threads share the columns. */
static void FN(near_weights)(ht_context *ctx, const hti_near_call *a) {
    int64_t w = a->width, spans = (w + SPAN - 1) / SPAN;
    ROWS(a->rows * w * a->size) for (int64_t i = 0; i < spans * a->size; i++) {
        int64_t k = i / spans, c0 = i % spans * SPAN;
        int n = w - c0 < SPAN ? (int)(w - c0) : SPAN;
        real acc[SPAN] = {0};
        for (int64_t r = 0; r < a->rows; r++) {
            const real *x = FN(near_row)(a, a->x, FN(near_rows)(a, r), r, k, 0);
            const real *d = (const real *)a->dy + r * w + c0;
            if (!x) continue;
            SIMD for (int c = 0; c < n; c++) acc[c] += d[c] * x[c0 + c];
        }
        for (int c = 0; c < n; c++) ((real *)a->dw)[k * w + c0 + c] += acc[c];
    }
}

static void FN(near_backward)(ht_context *ctx, const hti_near_call *a) {
    FN(near_sum)(ctx, a, a->dx, a->dy, 1);
    FN(near_weights)(ctx, a);
}

/* Row i of the past becomes what is n rows further on; n rows come new. */
static void FN(near_keep)(ht_context *ctx, const hti_near_call *a) {
    int64_t w = a->width, most = a->size - 1;
    ROWS(a->sequences * most * w) for (int64_t s = 0; s < a->sequences; s++) {
        int64_t n = a->count[s];
        real *past = (real *)a->past + a->slots[s] * most * w;
        const real *x = (const real *)a->x + a->start[s] * w;
        for (int64_t i = 0; i < most && n > 0; i++)
            memcpy(past + i * w, i + n < most ? past + (i + n) * w : x + (i + n - most) * w,
                   sizeof(real) * (size_t)w);
    }
}

/* ---- pooling ---- */

/* 1/number of rows that a mean goes over; 0 if there are none */
static real FN(pool_weight)(const hti_pool_call *a, int64_t b) {
    int64_t n = a->count[b];
    if (a->kind == HTI_POOL_VALID && a->mask)
        for (int64_t i = 0; i < a->count[b]; i++) n -= !a->mask[a->start[b] + i];
    return n > 0 ? 1 / (real)n : 0;
}

static int FN(pool_takes)(const hti_pool_call *a, int64_t row) {
    return a->kind == HTI_POOL_ALL || !a->mask || a->mask[row];
}

/* first row of those that are pooled: the last alone, or the first (and the others) */
static int64_t FN(pool_start)(const hti_pool_call *a, int64_t b) {
    return a->start[b] + (a->kind == HTI_POOL_LAST && a->count[b] > 0 ? a->count[b] - 1 : 0);
}

/* The row of sequence b whose column c is the largest; -1: there is none. */
static int64_t FN(pool_largest)(const hti_pool_call *a, int64_t b, int64_t c) {
    const real *x = (const real *)a->x + c;
    int64_t best = -1;
    for (int64_t row = a->start[b]; row < a->start[b] + a->count[b]; row++) {
        real v = x[row * a->width];
        if (!FN(pool_takes)(a, row)) continue;
        if (best < 0 || v > x[best * a->width]) best = row;
        if (v != v) return row; /* the step will not be applied */
    }
    return best;
}

static void FN(pool_max)(const hti_pool_call *a, int64_t b) {
    int64_t w = a->width;
    for (int64_t c = 0; c < w; c++) {
        int64_t row = FN(pool_largest)(a, b, c);
        ((real *)a->out)[b * w + c] = row < 0 ? 0 : ((const real *)a->x)[row * w + c];
    }
}

static void FN(pool_max_back)(const hti_pool_call *a, int64_t b) {
    int64_t w = a->width;
    for (int64_t c = 0; c < w; c++) {
        int64_t row = FN(pool_largest)(a, b, c);
        if (row >= 0) ((real *)a->dx)[row * w + c] = ((const real *)a->dout)[b * w + c];
    }
}

static void FN(pool_forward)(ht_context *ctx, const hti_pool_call *a) {
    int64_t w = a->width;
    ROWS(a->rows * w) for (int64_t b = 0; b < a->sequences; b++) {
        real *out = (real *)a->out + b * w, weight = FN(pool_weight)(a, b);
        const real *x = (const real *)a->x + FN(pool_start)(a, b) * w;
        memset(out, 0, sizeof(real) * (size_t)w);
        if (a->kind == HTI_POOL_MAX) {
            FN(pool_max)(a, b);
            continue;
        }
        if (a->kind <= HTI_POOL_LAST) {
            if (a->count[b] > 0) memcpy(out, x, sizeof(real) * (size_t)w);
            continue;
        }
        for (int64_t i = 0; i < a->count[b]; i++)
            if (FN(pool_takes)(a, a->start[b] + i))
                for (int64_t c = 0; c < w; c++) out[c] += x[i * w + c];
        for (int64_t c = 0; c < w; c++) out[c] *= weight;
    }
}

static void FN(pool_backward)(ht_context *ctx, const hti_pool_call *a) {
    int64_t w = a->width;
    memset(a->dx, 0, sizeof(real) * (size_t)(a->rows * w));
    ROWS(a->rows * w) for (int64_t b = 0; b < a->sequences; b++) {
        const real *dout = (const real *)a->dout + b * w;
        real *dx = (real *)a->dx + FN(pool_start)(a, b) * w, weight = FN(pool_weight)(a, b);
        if (a->kind == HTI_POOL_MAX) {
            FN(pool_max_back)(a, b);
            continue;
        }
        if (a->kind <= HTI_POOL_LAST) {
            if (a->count[b] > 0) memcpy(dx, dout, sizeof(real) * (size_t)w);
            continue;
        }
        for (int64_t i = 0; i < a->count[b]; i++)
            if (FN(pool_takes)(a, a->start[b] + i))
                for (int64_t c = 0; c < w; c++) dx[i * w + c] = weight * dout[c];
    }
}

/* ---- pairs ---- */

static void FN(match_forward)(ht_context *ctx, const hti_match_call *m) {
    int64_t w = m->width;
    ROWS(m->items * w) for (int64_t i = 0; i < m->items; i++) {
        const real *a = (const real *)m->x + 2 * i * w, *b = a + w;
        real *out = (real *)m->out + 4 * i * w;
        SIMD for (int64_t c = 0; c < w; c++) {
            real apart = a[c] - b[c];
            out[c] = a[c], out[w + c] = b[c];
            out[2 * w + c] = a[c] * b[c];
            out[3 * w + c] = apart < 0 ? -apart : apart;
        }
    }
}

static void FN(match_backward)(ht_context *ctx, const hti_match_call *m) {
    int64_t w = m->width;
    ROWS(m->items * w) for (int64_t i = 0; i < m->items; i++) {
        const real *a = (const real *)m->x + 2 * i * w, *b = a + w;
        const real *d = (const real *)m->dout + 4 * i * w;
        real *da = (real *)m->dx + 2 * i * w, *db = da + w;
        SIMD for (int64_t c = 0; c < w; c++) {
            real far = d[3 * w + c], turn = a[c] > b[c] ? far : a[c] < b[c] ? -far : 0;
            da[c] = d[c] + d[2 * w + c] * b[c] + turn;
            db[c] = d[w + c] + d[2 * w + c] * a[c] - turn;
        }
    }
}

/* ---- softmax cross-entropy ---- */

/* Loss of one row; its logits become softmax - onehot, scaled. *hit: the target has the largest
 * logit. */
static double FN(loss_row)(real *z, const real *bias, int64_t n, int64_t target, double scale,
                           int *hit) {
    real top = -INFINITY, sum = 0;
    int64_t best = 0;
    if (bias)
        for (int64_t c = 0; c < n; c++) z[c] += bias[c];
    for (int64_t c = 0; c < n; c++)
        if (z[c] > top) top = z[c], best = c;
    *hit = best == target;
    double at = (double)z[target] - (double)top;
    SIMD_SUM(sum) for (int64_t c = 0; c < n; c++) {
        z[c] = exp_real(z[c] - top);
        sum += z[c];
    }
    real factor = (real)(scale / (double)sum);
    SIMD for (int64_t c = 0; c < n; c++) z[c] *= factor;
    z[target] -= (real)scale;
    return log((double)sum) - at;
}

static void FN(loss_rows)(ht_context *ctx, const hti_loss_call *a, void *logits, int64_t first,
                          int64_t rows) {
    enum { CHUNK = 64 }; /* losses are added up in chunks of rows, whatever the number of threads */
    int64_t n = a->classes, chunks = (rows + CHUNK - 1) / CHUNK;
    double scale = a->step->in.loss_scale;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        int64_t from = chunk * CHUNK, to = rows < from + CHUNK ? rows : from + CHUNK;
        double loss[CHUNK];
        int hit[CHUNK];
        ROWS((to - from) * n * 4) for (int64_t r = from; r < to; r++) {
            real *z = (real *)logits + r * n;
            int64_t target = a->targets[first + r], i = r - from;
            loss[i] = 0, hit[i] = 0;
            if (target >= 0)
                loss[i] = FN(loss_row)(z, a->bias, n, target, scale, &hit[i]);
            else
                memset(z, 0, sizeof(real) * (size_t)n);
        }
        for (int64_t r = from; r < to; r++) {
            a->step->out.loss += loss[r - from];
            a->step->out.correct += hit[r - from];
            a->step->out.targets += a->targets[first + r] >= 0;
            if (a->row_loss) ((real *)a->row_loss)[first + r] = (real)loss[r - from];
            if (a->row_hit) a->row_hit[first + r] = (uint8_t)hit[r - from];
        }
    }
}

/* ---- optimiser ---- */

static void FN(square)(ht_context *ctx, hti_step *step, const void *grad, int64_t count) {
    enum { CHUNK = 1 << 15, GROUP = 256 };
    const real *g = grad;
    int64_t chunks = (count + CHUNK - 1) / CHUNK;
    double partial[GROUP];
    for (int64_t group = 0; group < chunks; group += GROUP) {
        int64_t end = chunks < group + GROUP ? chunks : group + GROUP;
        ROWS(count) for (int64_t k = group; k < end; k++) {
            int64_t to = count < (k + 1) * CHUNK ? count : (k + 1) * CHUNK;
            double sum = 0;
            SIMD_SUM(sum)
            for (int64_t i = k * CHUNK; i < to; i++) sum += (double)g[i] * (double)g[i];
            partial[k - group] = sum;
        }
        for (int64_t k = group; k < end; k++) step->out.square += partial[k - group];
    }
}

static void FN(adamw)(ht_context *ctx, const hti_adamw_call *a) {
    enum { CHUNK = 1 << 14 };
    hti_step *step = a->step;
    step->out.applied = isfinite(step->out.square) && isfinite(step->out.loss);
    if (step->out.applied == 0) return;
    double norm = sqrt(step->out.square), rate = step->in.rate;
    real shrink = (real)(a->clip > 0 && norm > a->clip ? a->clip / norm : 1);
    real b1 = (real)a->beta1, b2 = (real)a->beta2, eps = (real)a->epsilon;
    real r1 = (real)(rate / step->in.correction1), r2 = (real)(1 / sqrt(step->in.correction2));
    real keep = (real)(rate * a->decay);
    real *restrict p = a->p, *restrict m = a->m, *restrict v = a->v;
    const real *restrict grad = a->g;
    int64_t chunks = (a->count + CHUNK - 1) / CHUNK;
    ROWS(a->count * 4) for (int64_t k = 0; k < chunks; k++) {
        int64_t to = a->count < (k + 1) * CHUNK ? a->count : (k + 1) * CHUNK;
        SIMD for (int64_t i = k * CHUNK; i < to; i++) {
            real g = grad[i] * shrink;
            m[i] = b1 * m[i] + (1 - b1) * g;
            v[i] = b2 * v[i] + (1 - b2) * g * g;
            p[i] -= r1 * m[i] / (sqrt_real(v[i]) * r2 + eps) + keep * p[i];
        }
    }
}

static void FN(muon_begin)(ht_context *ctx, const hti_muon_call *a, int64_t i, void *out) {
    double norm = sqrt(a->step->out.square), square = 0;
    real shrink = (real)(a->clip > 0 && norm > a->clip ? a->clip / norm : 1);
    real b = (real)a->momentum;
    real *restrict m = (real *)a->m + a->at[i], *restrict x = out;
    const real *restrict grad = (const real *)a->g + a->at[i];
    int64_t n = a->rows * a->columns;
    (void)ctx;
    SIMD for (int64_t k = 0; k < n; k++) {
        real g = (1 - b) * shrink * grad[k];
        m[k] = b * m[k] + g;
        x[k] = b * m[k] + g;
    }
    SIMD_SUM(square)
    for (int64_t k = 0; k < n; k++) square += (double)x[k] * (double)x[k];
    real scale = (real)(square > 0 ? 1 / sqrt(square) : 0);
    SIMD for (int64_t k = 0; k < n; k++) x[k] *= scale;
}

/* x = scale x + by y */
static void FN(mix)(ht_context *ctx, void *out, double scale, const void *other, double by,
                    int64_t count) {
    real *restrict x = out, s = (real)scale, t = (real)by;
    const real *restrict y = other;
    (void)ctx;
    SIMD for (int64_t k = 0; k < count; k++) x[k] = s * x[k] + t * y[k];
}

static void FN(muon_end)(ht_context *ctx, const hti_muon_call *a, int64_t i, const void *from) {
    double rate = a->step->in.rate;
    real by = (real)(rate * a->scale), keep = (real)(rate * a->decay);
    real *restrict p = (real *)a->p + a->at[i];
    const real *restrict x = from;
    int64_t n = a->rows * a->columns;
    (void)ctx;
    SIMD for (int64_t k = 0; k < n; k++) p[k] -= by * x[k] + keep * p[k];
}

/* ---- matrix product, plain ---- */

/* Rows of C side by side share the rows of B that are loaded, columns next to each other keep the
 * adders busy. Each number is summed in the order of k, whatever is beside it. */
enum { GEMM_ROWS = 4, GEMM_COLUMNS = 8 };

static real FN(gemm_left)(const hti_gemm *g, int64_t i, int64_t k) {
    const real *a = g->a;
    return g->transpose_a ? a[k * g->lda + i] : a[i * g->lda + k];
}

/* c [GEMM_ROWS] or fewer rows from i on. */
static void FN(gemm_rows)(const hti_gemm *g, int64_t i, int64_t rows) {
    real *c = (real *)g->c + i * g->ldc;
    const real *b = g->b;
    int64_t n = g->n, ldc = g->ldc;
    for (int64_t k = 0; k < g->k; k++, b += g->ldb) {
        real x[GEMM_ROWS];
        for (int64_t r = 0; r < rows; r++) x[r] = FN(gemm_left)(g, i + r, k);
        if (rows == GEMM_ROWS) {
            SIMD for (int64_t j = 0; j < n; j++) {
                c[j] += x[0] * b[j];
                c[ldc + j] += x[1] * b[j];
                c[2 * ldc + j] += x[2] * b[j];
                c[3 * ldc + j] += x[3] * b[j];
            }
            continue;
        }
        for (int64_t r = 0; r < rows; r++)
            SIMD for (int64_t j = 0; j < n; j++) c[r * ldc + j] += x[r] * b[j];
    }
}

/* The same with B transposed: products of rows, of row i of A with columns j on of C. */
static void FN(gemm_dots)(const hti_gemm *g, int64_t i, int64_t j, int64_t columns) {
    real *c = (real *)g->c + i * g->ldc + j, sum[GEMM_COLUMNS] = {0};
    const real *b = (const real *)g->b + j * g->ldb;
    if (columns == GEMM_COLUMNS)
        for (int64_t k = 0; k < g->k; k++) {
            real x = FN(gemm_left)(g, i, k);
            for (int64_t l = 0; l < GEMM_COLUMNS; l++) sum[l] += x * b[l * g->ldb + k];
        }
    else
        for (int64_t l = 0; l < columns; l++)
            for (int64_t k = 0; k < g->k; k++) sum[l] += FN(gemm_left)(g, i, k) * b[l * g->ldb + k];
    for (int64_t l = 0; l < columns; l++) c[l] += sum[l];
}

static void FN(gemm)(ht_context *ctx, const hti_gemm *g) {
    int64_t groups = (g->m + GEMM_ROWS - 1) / GEMM_ROWS;
    ROWS(g->m * g->n * g->k / 4) for (int64_t group = 0; group < groups; group++) {
        int64_t first = group * GEMM_ROWS, left = g->m - first;
        int64_t rows = left < GEMM_ROWS ? left : GEMM_ROWS;
        for (int64_t i = first; i < first + rows && !g->accumulate; i++)
            memset((real *)g->c + i * g->ldc, 0, sizeof(real) * (size_t)g->n);
        if (!g->transpose_b) FN(gemm_rows)(g, first, rows);
        for (int64_t i = first; i < first + rows && g->transpose_b; i++)
            for (int64_t j = 0; j < g->n; j += GEMM_COLUMNS)
                FN(gemm_dots)(g, i, j, g->n - j < GEMM_COLUMNS ? g->n - j : GEMM_COLUMNS);
    }
}

const hti_model_kernels MODEL_KERNELS = {
    FN(embed_forward),   FN(embed_backward),
    FN(amounts_forward), FN(amounts_backward),
    FN(norm_forward),    FN(norm_backward),
    FN(activate),        FN(activate_back),
    FN(column_sums),     FN(rotary),
    FN(near_forward),    FN(near_backward),
    FN(near_keep),       FN(pool_forward),
    FN(pool_backward),   FN(match_forward),
    FN(match_backward),  FN(loss_rows),
    FN(square),          FN(adamw),
    FN(muon_begin),      FN(mix),
    FN(muon_end),        FN(gemm),
};
