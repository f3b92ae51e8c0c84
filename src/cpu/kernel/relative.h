/*
 * What depends on positions alone: the bias by distance of query and key, and rotary angles.
 *
 * A table holds rel[c - j] for query cluster c and key cluster j, so that the lanes of a tile are
 * neighbours in memory. In mode fine a lane is a row, its cluster row >> shift: table `shift`
 * repeats every entry 2^shift times (up to 3; from 4 on a whole tile lies in one cluster).
 */
typedef struct relatives {
    float *table;  /* [q_heads][size] */
    int64_t reach; /* clusters on each side that a table covers */
    int64_t size;  /* floats of a head's tables; 0: no bias */
    int64_t most;  /* kind full: distances beyond this count as it; else 0 */
    float scale;   /* of the scores, in units of log 2 */
} relatives;

#define LOG2_E 0x1.71547652b82fep0

static void relatives_take(relatives *r, hti_arena *c, const ht_attention_desc *desc,
                           const hti_shape *s) {
    *r = (relatives){.reach = (2 * s->block + 3 * TILE - 1) / TILE * TILE,
                     .most = desc->kind == HT_FULL ? 2 * s->block - 1 : 0,
                     .scale = (float)(desc->scale * LOG2_E)};
    int repeats = s->fine && !s->single ? 15 : 1; /* shifts 0 to 3: 1 + 2 + 4 + 8 */
    if (desc->has_bias) r->size = 2 * r->reach * repeats;
    r->table = hti_take(c, s->q_heads * r->size, sizeof(float));
}

/* Centre (distance 0) of a head's table; behind those of shift 0 ... shift-1. */
INLINE float *relative_centre(const relatives *r, int64_t head, int shift) {
    return r->table + head * r->size + 2 * r->reach * (((int64_t)1 << shift) - 1) +
           (r->reach << shift);
}

/* The table of a head for lanes whose cluster is their row >> shift. */
INLINE relative relative_of(const relatives *r, int64_t head, int shift) {
    return (relative){r->size ? relative_centre(r, head, shift < 4 ? shift : 0) : NULL, shift,
                      r->most};
}

/* Entry for query cluster - key cluster = x, in units of log 2; beyond the table it is the last one
 * (kind full), or no pair of clusters meets. */
static float relative_entry(const hti_attention_call *c, int64_t head, int64_t x) {
    int64_t last = 2 * c->desc->block - 1, at = x < -last ? -last : least(x, last);
    return (float)(LOG2_E * ((const float *)c->bias)[(last - at) * c->desc->q_heads + head]);
}

static void relatives_fill(const relatives *r, const hti_attention_call *c, const hti_shape *s,
                           int thread, int threads) {
    int shifts = r->size / (2 * r->reach) == 15 ? 4 : 1;
    for (int64_t h = thread; r->size && h < s->q_heads; h += threads) {
        for (int64_t x = -r->reach; x < r->reach; x++) {
            float y = relative_entry(c, h, x);
            for (int k = 0; k < shifts; k++) {
                for (int64_t e = 0; e < (int64_t)1 << k; e++)
                    relative_centre(r, h, k)[x * ((int64_t)1 << k) + e] = y;
            }
        }
    }
}

/* ---- rotary positions ---- */

/* cos and sin of t * theta^(-2i/d) for every row t. Sines are dear, so that they are taken for few
 * rows, in double: t = TURN_STEP * a + b is one product of two rotations. */
#define TURN_STEP 128
typedef struct turns {
    double *coarse, *fine; /* [length / TURN_STEP + 1][2][half], [TURN_STEP][2][half] */
    float *table;          /* [length][2][half]; NULL: no rotary */
    int64_t length, steps, half, d;
    double theta;
} turns;

static void turns_take(turns *t, hti_arena *c, const ht_attention_desc *desc, int64_t length) {
    *t = (turns){.length = length,
                 .steps = length / TURN_STEP + 1,
                 .half = desc->head_dim / 2,
                 .d = desc->head_dim,
                 .theta = desc->rotary_theta};
    if (desc->rotary_theta == 0) return;
    t->coarse = hti_take(c, t->steps * 2 * t->half, sizeof(double));
    t->fine = hti_take(c, TURN_STEP * 2 * t->half, sizeof(double));
    t->table = hti_take(c, length * 2 * t->half, sizeof(float));
}

/* The sines. */
static void turns_begin(const turns *t, int thread, int threads) {
    for (int64_t i = thread; t->table && i < t->steps + TURN_STEP; i += threads) {
        int64_t row = i < t->steps ? i * TURN_STEP : i - t->steps;
        double *to =
            i < t->steps ? t->coarse + i * 2 * t->half : t->fine + (i - t->steps) * 2 * t->half;
        for (int64_t x = 0; x < t->half; x++) {
            double a = (double)row * pow(t->theta, -2.0 * (double)x / (double)t->d);
            to[x] = cos(a);
            to[t->half + x] = sin(a);
        }
    }
}

/* The products; after a barrier. */
static void turns_fill(const turns *t, int thread, int threads) {
    int64_t h = t->half;
    for (int64_t i = t->length * thread / threads;
         t->table && i < t->length * (thread + 1) / threads; i++) {
        const double *a = t->coarse + i / TURN_STEP * 2 * h, *b = t->fine + i % TURN_STEP * 2 * h;
        float *to = t->table + i * 2 * h;
        for (int64_t x = 0; x < h; x++) {
            to[x] = (float)(a[x] * b[x] - a[h + x] * b[h + x]);
            to[h + x] = (float)(a[h + x] * b[x] + a[x] * b[h + x]);
        }
    }
}

/* y = x turned by h = d/2 cosines and then sines; sign -1 turns back. Of an odd width the last
 * column stays. y may be x. */
static void turn_by(float *y, const float *x, const float *turn, int64_t d, float sign) {
    int64_t h = d / 2;
    for (int64_t c = 0; c < h; c++) {
        float u = x[c], v = x[h + c], s = sign * turn[h + c];
        y[c] = u * turn[c] - v * s;
        y[h + c] = u * s + v * turn[c];
    }
    if (d % 2) y[d - 1] = x[d - 1];
}

/* The same to row i's position. */
static void turn_row(float *y, const float *x, const turns *t, int64_t i, float sign) {
    turn_by(y, x, t->table + i * 2 * t->half, t->d, sign);
}
