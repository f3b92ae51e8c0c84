/*
 * Which values go together: X(name, holds, says, keys ...), checked in this order when everything
 * that is left to the library has been decided. `holds` is a condition on the configuration c;
 * where it does not, the sentence is `says` and the values of the keys. Help and docs list them,
 * too.
 */
#ifndef HTI_CONFIG_RULES_H
#define HTI_CONFIG_RULES_H

/* clang-format off: a table */
#define HTI_CONFIG_RULES(X)                                                                        \
    X(head_count, c->inner % c->heads == 0, "heads must divide inner", "inner", "heads")           \
    X(groups, c->heads % c->kv_heads == 0, "kv_heads must divide heads", "heads", "kv_heads")      \
    X(head_size, c->inner / c->heads <= 256, "inner / heads must be at most 256", "inner",         \
      "heads")                                                                                     \
    X(halves, c->block % 2 == 0, "block must be even", "block")                                    \
    X(company, c->neighbours != 1, "neighbours must be at least 2, or 0", "neighbours")            \
    X(opens, c->open == 0 || (c->attention == HT_HIERARCHICAL && c->query == HT_QUERY_FINE),       \
      "open needs attention hierarchical and query fine", "open", "attention", "query")            \
    X(leaves, (c->open_leaf & (c->open_leaf - 1)) == 0, "open_leaf must be a power of two",        \
      "open_leaf")                                                                                 \
    X(peeks, c->open_peek != 0, "open_peek must be at least 1, or -1", "open_peek")                \
    X(turns, c->rotary == HTI_ROTARY_NONE || c->inner / c->heads % 2 == 0,                         \
      "rotary positions need an even head size, inner / heads", "inner", "heads")                  \
    X(drop, c->dropout < 1, "dropout must be below 1", "dropout")                                  \
    X(drop_weights, c->attention_dropout < 1, "attention_dropout must be below 1",                 \
      "attention_dropout")                                                                         \
    X(memories, c->beta1 < 1 && c->beta2 < 1, "beta1 and beta2 must be below 1", "beta1", "beta2") \
    X(memory, c->momentum < 1, "momentum must be below 1", "momentum")                             \
    X(future, !c->causal || c->attention != HT_HIERARCHICAL || c->query != HT_QUERY_MEAN,          \
      "a causal or language model with query mean would see the future: use first or fine",        \
      "query", "causal")                                                                           \
    X(first_row, !c->causal || hti_config_by_token(c) || c->pool > HTI_POOLED_FIRST,               \
      "the first row of a causal model sees itself alone: pool must be last, mean or max", "pool", \
      "causal")                                                                                    \
    X(tying, !c->tied || hti_config_by_token(c), "tied is for models that predict tokens", "tied", \
      "task")                                                                                      \
    X(hide_all, c->task != HTI_TASK_DENOISE || c->hide < 1, "hide must be below 1", "hide")        \
    X(hide_none, c->task != HTI_TASK_DENOISE || c->hide > 0 || c->causal,                          \
      "hide 0 guesses each next token, which only a causal model does not see: set causal 1",      \
      "hide", "causal")                                                                            \
    X(grid, c->rotary_grid == 0 || (c->rotary == HTI_ROTARY_ALL && c->task != HTI_TASK_LANGUAGE),  \
      "rotary_grid needs rotary all and no language model", "rotary_grid", "rotary", "task")       \
    X(leave_out, c->mask_zero != HTI_LEAVE_OUT || !(hti_config_by_token(c) || c->pad),             \
      "mask_zero 2 leaves rows out: it needs pad 0 and task classify or pairs", "mask_zero",       \
      "pad", "task")                                                                               \
    X(labels, c->classes > 1, "classes must be at least 2 (or 0)", "classes")                      \
    X(slope, c->relative_slope == 0 || c->relative_bias,                                           \
      "relative_slope needs relative_bias 1; without a bias set relative_slope 0",                 \
      "relative_slope", "relative_bias")                                                           \
    X(pair_pool, c->task != HTI_TASK_PAIRS || c->pool != HTI_POOLED_CLS,                           \
      "pairs have no cls vector: pool must be first, last, mean, mean_all or max", "pool", "task") \
    X(pair_head, c->task != HTI_TASK_PAIRS || c->head_hidden % 2 == 0,                             \
      "pairs need an even head_hidden", "head_hidden", "task")                                     \
    X(pair_sides, c->task != HTI_TASK_PAIRS || c->pair_features != 3,                              \
      "pair_features must be 2 or 4", "pair_features")                                             \
    X(merge_width, c->width % c->merge == 0, "merge must divide width", "merge", "width")          \
    X(merge_next, c->merge == 1 || c->task != HTI_TASK_LANGUAGE,                                   \
      "a language model with merge would see the tokens it is to guess: merge must be 1", "merge", \
      "task")                                                                                      \
    X(merge_hide, c->merge == 1 || c->task != HTI_TASK_DENOISE || c->hide > 0,                     \
      "with merge and hide 0 a model would see the tokens it is to guess: hide some, or set "      \
      "merge 1",                                                                                   \
      "merge", "hide")                                                                             \
    X(merge_cls, c->merge == 1 || c->pool != HTI_POOLED_CLS,                                       \
      "merge leaves no row for a cls vector: pool must be first, last, mean, mean_all or max",     \
      "merge", "pool")                                                                             \
    X(squares, c->patch == 1 || hti_config_of_images(c), "patch is for images", "patch", "format") \
    X(smaller, c->shrink == 1 || hti_config_of_images(c), "shrink is for images", "shrink",        \
      "format")                                                                                    \
    X(varied, (!c->flip && c->shift == 0) || hti_config_of_images(c),                              \
      "flip and shift are for images", "flip", "shift", "format")                                  \
    X(greys,                                                                                       \
      !c->amounts || (hti_config_of_images(c) &&                                                   \
                      (c->task == HTI_TASK_CLASSIFY || c->task == HTI_TASK_DENOISE)),              \
      "amounts needs images and task classify or denoise", "amounts", "format", "task")            \
    X(no_table, !c->amounts || (!c->tied && c->embed_waves == 0),                                  \
      "with amounts 1 there is no table: tied and embed_waves must be 0", "amounts", "tied",       \
      "embed_waves")                                                                               \
    X(last_layer, !c->tied || c->output_scale == 1,                                                \
      "output_scale is for a last layer of its own: with tied 1 it must be 1", "output_scale",     \
      "tied")                                                                                      \
    X(sizes, c->listops_min + 1 < c->listops_max, "listops_max must be at least listops_min + 2",  \
      "listops_min", "listops_max")                                                                \
    X(rows, fits_batch(c), "a batch must have fewer than 2^31 rows", "batch", "length")
/* clang-format on */

#endif
