/*
 * Dropout: the factors of a tile's weights, drawn as core/philox.h draws them, a vector of query
 * rows at a time.
 */

/* What is drawn for a tile: head counts over all sequences. threshold 0: no dropout. */
typedef struct dropping {
    uint64_t seed;
    uint32_t offset, head, threshold;
    int level;
    float kept; /* 1 / (1 - p) */
} dropping;

/* Philox-4x32-10 of VW query rows, one after the other from `id` on. */
INLINE void draw_words(vi w[4], const dropping *o, uint32_t id, uint32_t key4) {
    uint32_t where = (uint32_t)o->level << HTI_DROPOUT_CLUSTER_BITS;
    uint32_t k0 = (uint32_t)o->seed, k1 = (uint32_t)(o->seed >> 32);
    vi c0 = vi_set1(o->offset), c1 = vi_set1(o->head), c3 = vi_set1(key4);
    vi c2 = vi_or(vi_set1(where), vi_add(vi_set1(id), vi_count()));
    for (int round = 0; round < 10; round++) {
        vi high0, low0 = vi_mul(&high0, c0, vi_set1(0xD2511F53u));
        vi high1, low1 = vi_mul(&high1, c2, vi_set1(0xCD9E8D57u));
        c0 = vi_xor(vi_xor(high1, c1), vi_set1(k0));
        c1 = low1;
        c2 = vi_xor(vi_xor(high0, c3), vi_set1(k1));
        c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

/* Factors [keys][TILE] of the keys of all segments against the rows from c0 on. */
static void draw_factors(float *factor, const dropping *o, const hti_segs *segs, int64_t c0) {
    vi threshold = vi_set1(o->threshold);
    vf kept = vf_set1(o->kept);
    for (int i = 0; i < segs->count; i++) {
        int64_t from = segs->seg[i].from, to = from + segs->seg[i].count;
        for (int64_t four = from / 4; four * 4 < to; four++) {
            for (int x = 0; x < TILE; x += VW) {
                vi word[4];
                draw_words(word, o, (uint32_t)c0 + (uint32_t)x, (uint32_t)four);
                UNROLL for (int k = 0; k < 4; k++) {
                    int64_t j = four * 4 + k - from;
                    if (j < 0 || j >= to - from) continue;
                    vf y = vf_pick_below(word[k], threshold, vf_zero(), kept);
                    vf_store(factor + j * TILE + x, y);
                }
            }
        }
        factor += (to - from) * TILE;
    }
}
