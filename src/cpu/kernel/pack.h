/*
 * Moving rows: packing strided rows, coarsening, transposing queries, turning them (rotary).
 */

/* Rows of a strided tensor, one head of one sequence. */
typedef struct view {
    float *data;
    int64_t stride;
} view;

INLINE view view_of(const hti_attention_call *c, const ht_tensor *t, int64_t sequence,
                    int64_t head) {
    return (view){(float *)t->data + hti_call_base(c, t, sequence) + head * t->head_stride,
                  t->row_stride};
}

/* Four vectors at a time, then one by one: for (columns of a row of width w) */
#define EACH_VECTOR(c, w, body)                                          \
    do {                                                                 \
        int64_t c = 0;                                                   \
        for (; c + 4 * VW <= (w);) {                                     \
            UNROLL for (int each_ = 0; each_ < 4; each_++, c += VW) body \
        }                                                                \
        for (; c < (w); c += VW) body                                    \
    } while (0)

/* dst[0 ... wp) = src[0 ... w), zeros behind */
INLINE void copy_row(float *dst, const float *src, int64_t w, int64_t wp) {
    if (w == wp) {
        EACH_VECTOR(c, w, { vf_store(dst + c, vf_load(src + c)); });
        return;
    }
    int64_t c = 0;
    for (; c + VW <= w; c += VW) vf_store(dst + c, vf_load(src + c));
    if (c < w) vf_store(dst + c, vf_load_n(src + c, (int)(w - c))), c += VW;
    for (; c < wp; c += VW) vf_store(dst + c, vf_zero());
}

INLINE void zero_row(float *dst, int64_t wp) {
    for (int64_t c = 0; c < wp; c += VW) vf_store(dst + c, vf_zero());
}

/* Rows [row0, row1) of src into a ring; rows with n = 0 become zeros and are not looked at. n: of
 * row 0. */
static void pack(float *ring, int64_t mask, view src, const float *n, int64_t row0, int64_t row1,
                 int64_t w, int64_t wp) {
    for (int64_t i = row0; i < row1; i++) {
        if (n[i] > 0) {
            copy_row(ring + (i & mask) * wp, src.data + i * src.stride, w, wp);
        } else {
            zero_row(ring + (i & mask) * wp, wp);
        }
    }
}

/* parent = (na a + nb b) / (na + nb) over whole vectors; a child with n = 0 is not looked at */
INLINE void mean_row(float *dst, const float *a, const float *b, float na, float nb, int64_t wp) {
    if (na == nb && na > 0) { /* nearly always */
        vf half = vf_set1(0.5f);
        EACH_VECTOR(c, wp,
                    { vf_store(dst + c, vf_mul(half, vf_add(vf_load(a + c), vf_load(b + c)))); });
    } else if (na > 0 && nb > 0) {
        vf x = vf_set1(na / (na + nb)), y = vf_set1(nb / (na + nb));
        EACH_VECTOR(c, wp,
                    { vf_store(dst + c, vf_fma(x, vf_load(a + c), vf_mul(y, vf_load(b + c)))); });
    } else if (na > 0 || nb > 0) {
        copy_row(dst, na > 0 ? a : b, wp, wp);
    } else {
        zero_row(dst, wp);
    }
}

/* Clusters r of a level from the level below, row (cluster & mask) of each. n: counts of the level
 * below, of which there are `below`. first: the first child that has a valid row, instead of the
 * mean. */
static void coarsen(float *dst, int64_t mask, const float *src, int64_t src_mask, const float *n,
                    hti_range r, int64_t below, int64_t wp, int first) {
    for (int64_t c = r.lo; c < r.hi; c++) {
        float na = n[2 * c], nb = 2 * c + 1 < below ? n[2 * c + 1] : 0;
        const float *a = src + (2 * c & src_mask) * wp; /* a ring of one row has no second child */
        if (first && na > 0) nb = 0;
        mean_row(dst + (c & mask) * wp, a, a + wp, na, nb, wp);
    }
}

/* The same from strided rows of level 0, of which masked ones stay unread; dst: of cluster r.lo. */
static void coarsen_rows(float *dst, view src, const float *n, hti_range r, int64_t below,
                         int64_t w, int64_t wp, int first) {
    for (int64_t c = r.lo; c < r.hi; c++, dst += wp) {
        float na = n[2 * c], nb = 2 * c + 1 < below ? n[2 * c + 1] : 0;
        if (first && na > 0) nb = 0;
        const float *a = src.data + 2 * c * src.stride, *b = a + src.stride;
        if (w == wp) {
            mean_row(dst, a, b, na, nb, wp);
            continue;
        }
        float pair[2][HTI_MAX_DIM];
        if (na > 0) copy_row(pair[0], a, w, wp);
        if (nb > 0) copy_row(pair[1], b, w, wp);
        mean_row(dst, pair[0], pair[1], na, nb, wp);
    }
}

/* Mean of the valid rows [row0, row1) of src; n: their number, valid: counts of level 0. */
static void mean_rows(float *dst, view src, const float *valid, int64_t row0, int64_t row1, float n,
                      int64_t w, int64_t wp) {
    vf scale = vf_set1(n > 0 ? 1 / n : 0);
    for (int64_t col = 0; col < wp; col += 4 * VW) {
        int64_t left = least(wp - col, 4 * VW);
        vf a[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (int64_t i = row0; i < row1; i++) {
            const float *x = src.data + i * src.stride + col;
            if (valid[i] == 0) continue;
            if (col + 4 * VW <= w) {
                UNROLL for (int v = 0; v < 4; v++) a[v] = vf_add(a[v], vf_load(x + v * VW));
                continue;
            }
            for (int v = 0; v * VW < w - col; v++)
                a[v] = vf_add(a[v], vf_load_n(x + v * VW, (int)least(w - col - v * VW, VW)));
        }
        for (int v = 0; v * VW < left; v++) vf_store(dst + col + v * VW, vf_mul(a[v], scale));
    }
}

/* The first valid row of [row0, row1). */
static void first_row(float *dst, view src, const float *valid, int64_t row0, int64_t row1,
                      int64_t w, int64_t wp) {
    int64_t i = row0;
    while (i < row1 && valid[i] == 0) i++;
    if (i < row1) {
        copy_row(dst, src.data + i * src.stride, w, wp);
    } else {
        zero_row(dst, wp);
    }
}

/* q[c][i] = scale * row[i][c] for c < w; a row that is NULL gives zeros */
static void transpose_rows(float *q, const float *const row[TILE], int64_t w, float scale) {
    vf f = vf_set1(scale);
    for (int x = 0; x < TILE_VECTORS; x++) {
        for (int64_t c = 0; c < w; c += VW) {
            vf r[VW];
            UNROLL for (int i = 0; i < VW; i++) {
                const float *from = row[x * VW + i];
                r[i] = vf_zero();
                if (from)
                    r[i] = c + VW <= w ? vf_load(from + c) : vf_load_n(from + c, (int)(w - c));
            }
            vf_transpose(r);
            UNROLL for (int i = 0; i < VW; i++)
                vf_store(q + (c + i) * TILE + x * VW, vf_mul(f, r[i]));
        }
    }
}

/* Rows that are whole aligned vectors, and more of them than a cache keeps. */
static int can_stream(const ht_tensor *t, int64_t rows, int64_t heads, int64_t w) {
    return w % VW == 0 && t->row_stride % VW == 0 && t->head_stride % VW == 0 &&
           t->batch_stride % VW == 0 && (uintptr_t)t->data % (VW * sizeof(float)) == 0 &&
           rows * heads * w * (int64_t)sizeof(float) > 8 << 20;
}
