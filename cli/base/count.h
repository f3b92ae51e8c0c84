/*
 * How much work an attention is, from its definition: what the benchmark divides by time.
 */
#ifndef CLI_BASE_COUNT_H
#define CLI_BASE_COUNT_H

#include <htransformer.h>

/* Products of a query row (or coarse query row) with a key row (or key cluster) that one head
 * of one sequence needs. */
double count_products(ht_kind kind, ht_query query, int causal, int64_t block, int64_t length);

/* The same of one level of the hierarchy. */
double count_level(ht_query query, int causal, int64_t block, int64_t length, int level);

/* With what is opened: two clusters more in each level, of what is there to be seen. */
double count_opened(int64_t open, int causal, int64_t block, int64_t length, double products);

/* Useful floating-point operations of one forward call: 2*head_dim + 2*value_dim per product.
 * Hierarchical mean without causal is counted as the nominal 4.5*block products per row,
 * edges not taken off, so that numbers of different lengths compare. query is not auto. */
double count_forward(const ht_attention_desc *desc, int64_t batch, int64_t length);

#define COUNT_BACKWARD 2.5 /* backward over forward: five matrix products instead of two */

#endif
