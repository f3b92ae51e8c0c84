/*
 * Operation counts by a loop over levels and blocks.
 */
#include "base/count.h"

#include <stdbool.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Query rows that clusters [lo, hi) of a level stand for: the clusters, or in fine all their
 * rows. */
static double queries(ht_query query, int level, int64_t length, int64_t lo, int64_t hi) {
    if (query != HT_QUERY_FINE) return (double)most(hi - lo, 0);
    return (double)(least(hi << level, length) - least(lo << level, length));
}

/* Level 0: own block and both neighbours; causal: the left one and the triangle. */
static double count_exact(int causal, int64_t block, int64_t length) {
    double products = 0;
    for (int64_t start = 0; start < length; start += block) {
        double rows = (double)least(block, length - start), left = start ? (double)block : 0;
        double right = (double)most(least(length - start - block, block), 0);
        if (causal)
            products += rows * left + rows * (rows + 1) / 2;
        else
            products += rows * (left + rows + right);
    }
    return products;
}

/* Level >= 1: left neighbour, whole for the second half of the block and its first half for
 * the first; the right neighbour the other way round. */
static double count_coarse(ht_query query, int causal, int64_t block, int64_t length, int level) {
    int64_t clusters = (length + ((int64_t)1 << level) - 1) >> level, half = block / 2;
    double products = 0;
    for (int64_t start = 0; start < clusters; start += block) {
        int64_t middle = least(start + half, clusters), end = least(start + block, clusters);
        int64_t right = causal ? 0 : most(least(clusters - start - block, block), 0);
        double first = queries(query, level, length, start, middle);
        double second = queries(query, level, length, middle, end);
        if (start > 0) products += first * (double)half + second * (double)block;
        products += first * (double)right + second * (double)most(right - half, 0);
    }
    return products;
}

double count_level(ht_query query, int causal, int64_t block, int64_t length, int level) {
    if (level == 0) return count_exact(causal, block, length);
    return count_coarse(query, causal, block, length, level);
}

double count_products(ht_kind kind, ht_query query, int causal, int64_t block, int64_t length) {
    double rows = (double)length;
    if (kind == HT_FULL) return causal ? rows * rows / 2 : rows * rows;
    double products = count_exact(causal, block, length);
    if (kind == HT_LOCAL) return products;
    for (int level = 1; (block << level) < length; level++)
        products += count_coarse(query, causal, block, length, level);
    return products;
}

double count_opened(int64_t open, int causal, int64_t block, int64_t length, double products) {
    double rows = (double)length, all = causal ? rows * rows / 2 : rows * rows;
    if (open == 0) return products;
    for (int level = 1; (block << level) < length; level++) products += 2 * rows * (double)open;
    return products < all ? products : all;
}

double count_forward(const ht_attention_desc *desc, int64_t batch, int64_t length) {
    int64_t block = desc->block;
    bool nominal = desc->kind == HT_HIERARCHICAL && desc->query == HT_QUERY_MEAN && !desc->causal;
    double products = nominal
                          ? 4.5 * (double)block * (double)length
                          : count_products(desc->kind, desc->query, desc->causal, block, length);
    products = count_opened(desc->open, desc->causal, block, length, products);
    double each = 2.0 * (double)desc->head_dim + 2.0 * (double)desc->value_dim;
    return products * each * (double)desc->q_heads * (double)batch;
}
