/*
 * Everything a run is made of, one row a key. From this list come the struct inside the library,
 * the keys of JSON files and checkpoints, the flags of the command line with their help, the tables
 * of docs/api.md, and what a resume does.
 *
 * X(kind, name, default, least, most, owner, resume, help)
 *
 * kind     INT, REAL, or CHOICE: a number that has a name below
 * default  never changes: a file without the key was written when there was none
 * owner    MODEL: what the weights are and mean; DATA: what the items are, and their order;
 *          TRAINING: how the weights change; MACHINE: how this machine goes about it
 * resume   APPLY: a run goes on with the new value. KEEP: it goes on with the one that it was begun
 *          with, and another is refused. DECIDED: the same, and 0 leaves it to hti_config_resolve,
 *          once, when the run begins. CHOSEN: as APPLY, and the name "auto" leaves it open in the
 *          same way; so it does in a new configuration, but not in a file without the key
 *
 * A new key is a row here, in any place; whether it may be combined with others is a row of
 * rules.h.
 */
#ifndef HTI_CONFIG_KEYS_H
#define HTI_CONFIG_KEYS_H

/* clang-format off: a table */
#define HTI_CONFIG_KEYS(X)                                                                         \
    X(CHOICE, task, 0, 0, 3, MODEL, KEEP,                                                          \
      "classify (default), pairs of texts, language or denoise")                                   \
    X(CHOICE, format, 1, 0, 7, DATA, KEEP,                                                         \
      "listops, tsv (default), text, images, pathfinder, tokens, copy or recall")                  \
    X(CHOICE, attention, 0, 0, 2, MODEL, KEEP, "hierarchical (default), full or local")            \
    X(CHOICE, query, 0, 0, 3, MODEL, DECIDED,                                                      \
      "auto (default), mean, first or fine: query of the coarse levels")                           \
    X(INT, block, 16, 2, 65536, MODEL, KEEP, "rows of an attention block, even")                   \
    X(INT, open, 0, 0, 1048576, TRAINING, APPLY,                                                   \
      "clusters that every row opens at each level (query fine): 8 find single far rows; 0: none") \
    X(INT, open_leaf, 8, 1, 1048576, TRAINING, APPLY,                                              \
      "open: a cluster of so many rows is opened to its rows, a power of two")                     \
    X(INT, open_peek, 2, -1, 48, TRAINING, APPLY,                                                  \
      "open: levels below a cluster that its score looks at; -1: its mean alone")                  \
    X(INT, layers, 4, 1, 1000, MODEL, KEEP, "Transformer blocks")                                  \
    X(INT, width, 256, 1, 65536, MODEL, KEEP, "size of the embedding and of the residual stream")  \
    X(INT, heads, 4, 1, 1024, MODEL, KEEP, "attention heads")                                      \
    X(INT, kv_heads, 0, 0, 1024, MODEL, DECIDED, "heads of keys and values; 0: heads")             \
    X(INT, inner, 0, 0, 65536, MODEL, DECIDED, "size of all query heads together; 0: width")       \
    X(INT, hidden, 0, 0, 262144, MODEL, DECIDED,                                                   \
      "size inside the feed-forward part; 0: 4 times width")                                       \
    X(INT, vocab, 257, 2, 16777216, MODEL, KEEP, "token ids; bytes need 257")                      \
    X(INT, classes, 0, 0, 65536, MODEL, DECIDED,                                                   \
      "labels; 0: as many as the data has, without data 2")                                        \
    X(INT, length, 1024, 1, 134217728, DATA, APPLY, "most tokens of a text; longer ones are cut")  \
    X(INT, merge, 1, 1, 64, MODEL, KEEP, "neighbouring tokens that become one row of the model")   \
    X(CHOICE, pool, 0, 0, 5, MODEL, KEEP,                                                          \
      "cls (default), first, mean, mean_all, last or max: from rows to one vector")                \
    X(INT, sinusoidal, 1, 0, 1, MODEL, KEEP, "add sines and cosines of the position")              \
    X(REAL, sinusoidal_theta, 10000, 1, 1000000000, MODEL, KEEP, "base of the sines' wavelengths") \
    X(INT, learned, 0, 0, 1, MODEL, KEEP, "add a learned vector per position")                     \
    X(CHOICE, rotary, 0, 0, 2, MODEL, KEEP,                                                        \
      "none (default), level0 or all: turn queries and keys by position")                          \
    X(REAL, rotary_theta, 10000, 1, 1000000000, MODEL, KEEP, "base of the rotary angles")          \
    X(INT, rotary_grid, 0, 0, 1048576, MODEL, KEEP,                                                \
      "rotary all: rows of the model in a line of a picture; 0: no lines, one dimension")          \
    X(INT, neighbours, 0, 0, 64, MODEL, KEEP,                                                      \
      "rows that each column sums, by weights of its own, before the attention; 0: none")          \
    X(INT, relative_bias, 0, 0, 1, MODEL, KEEP, "learned bias by distance, in every layer")        \
    X(REAL, relative_slope, 0, 0, 100, MODEL, KEEP,                                                \
      "first values of relative_bias: fall by this per row in head 0, less in others")             \
    X(INT, projection_bias, 0, 0, 1, MODEL, KEEP, "biases in the attention's projections")         \
    X(INT, tied, 0, 0, 1, MODEL, KEEP, "language, denoise: the output uses the embedding table")   \
    X(INT, head_hidden, 0, 0, 262144, MODEL, KEEP,                                                 \
      "hidden size of the classifier's head; 0: one layer")                                        \
    X(INT, pair_features, 2, 2, 4, MODEL, KEEP,                                                    \
      "pairs: 2: both vectors; 4: product and distance, too")                                      \
    X(INT, mask_zero, 1, 0, 2, MODEL, KEEP,                                                        \
      "token 0 takes no part in attention (not in language models); 2: its rows are left out")     \
    X(INT, causal, 0, 0, 1, MODEL, KEEP, "rows see no later ones; language models always do so")   \
    X(REAL, hide, 0.3, 0, 1, TRAINING, APPLY,                                                      \
      "denoise: share of the tokens hidden and guessed; 0: each next token")                       \
    X(INT, hide_run, 1, 1, 65536, TRAINING, APPLY, "denoise: neighbours that are hidden together") \
    X(REAL, dropout, 0, 0, 1, TRAINING, APPLY, "probability, below 1")                             \
    X(REAL, attention_dropout, 0, 0, 1, TRAINING, APPLY, "probability, below 1")                   \
    X(INT, dropout_after, 0, 0, 1000000000, TRAINING, APPLY,                                       \
      "steps before dropout, of either kind, sets in")                                             \
    X(REAL, norm_epsilon, 1e-6, 0, 1, MODEL, KEEP, "added to the variance in layer norms")         \
    X(REAL, embed_std, 0, 0, 100, MODEL, DECIDED,                                                  \
      "deviation of the first embeddings; 0: 1, language 0.02")                                    \
    X(REAL, embed_waves, 0, 0, 1000000, MODEL, KEEP,                                               \
      "tokens that are amounts: waves over them; 0: unrelated")                                    \
    X(INT, amounts, 0, 0, 1, MODEL, KEEP,                                                          \
      "images: a pixel's vector is its grey times a vector, plus another; 0: a table")             \
    X(REAL, output_scale, 1, 0, 1000000, MODEL, KEEP,                                              \
      "first values of the last layer, times this; 0: zeros")                                      \
    X(CHOICE, dtype, 0, 0, 3, MODEL, CHOSEN,                                                       \
      "auto (default): bf16 on CUDA, f32 on the CPU; f32, bf16 or f64")                            \
    X(CHOICE, documents, 0, 0, 4, DATA, KEEP,                                                      \
      "of a text: file (default), lines, articles (<doc>), wikitext or fasta")                     \
    X(INT, across, 0, 0, 1, DATA, KEEP, "of a text: windows see across the ends of documents")     \
    X(INT, steps, 1000, 0, 1000000000, TRAINING, APPLY, "updates of the weights")                  \
    X(REAL, minutes, 0, 0, 1000000, TRAINING, APPLY,                                               \
      "as many steps as fit, evaluations and all, whatever steps says; 0: steps says")             \
    X(INT, patience, 0, 0, 1000000, TRAINING, APPLY,                                               \
      "evaluations without a better one that end the run; 0: none do")                             \
    X(INT, batch, 32, 1, 1048576, TRAINING, APPLY, "texts (pairs, windows) per micro-batch")       \
    X(INT, accumulate, 1, 1, 65536, TRAINING, APPLY, "micro-batches per update")                   \
    X(REAL, rate, 1e-3, 0, 1000, TRAINING, APPLY, "learning rate: the schedule's base")            \
    X(CHOICE, schedule, 2, 0, 3, TRAINING, APPLY, "constant, rsqrt, cosine (default) or linear")   \
    X(INT, warmup, 100, 0, 1000000000, TRAINING, APPLY,                                            \
      "steps until the rate is reached; of cosine and linear at most a quarter")                   \
    X(REAL, weight_decay, 0, 0, 1000, TRAINING, APPLY, "decoupled weight decay")                   \
    X(CHOICE, decay, 0, 0, 1, MODEL, APPLY, "matrices (default) or all parameters")                \
    X(CHOICE, optimizer, 0, 0, 1, TRAINING, KEEP,                                                  \
      "adamw (default), or muon for the matrices of the layers")                                   \
    X(REAL, momentum, 0.95, 0, 1, TRAINING, APPLY, "Muon: memory of the mean")                     \
    X(REAL, beta1, 0.9, 0, 1, TRAINING, APPLY, "AdamW: memory of the mean")                        \
    X(REAL, beta2, 0.98, 0, 1, TRAINING, APPLY, "AdamW: memory of the square")                     \
    X(REAL, adam_epsilon, 1e-9, 0, 1, TRAINING, APPLY, "AdamW: added to the square root")          \
    X(REAL, clip, 0, 0, 1000000, TRAINING, APPLY, "largest norm of the gradient; 0: no limit")     \
    X(INT, recompute, 0, 0, 1, MACHINE, APPLY,                                                     \
      "keep one row per layer and token, compute the rest again")                                  \
    X(INT, pad, 0, 0, 1, MACHINE, APPLY, "give every batch the same shape")                        \
    X(INT, shard, 0, 0, 1, MACHINE, APPLY,                                                         \
      "several processes: each keeps its share of the optimiser's moments alone")                  \
    X(INT, eval_every, 100, 0, 1000000000, TRAINING, APPLY,                                        \
      "steps between evaluations; 0: only at the end")                                             \
    X(INT, eval_items, 0, 0, 1000000000, TRAINING, APPLY, "texts of an evaluation; 0: all")        \
    X(INT, save_every, 0, 0, 1000000000, MACHINE, APPLY,                                           \
      "steps between checkpoints; 0: at evaluations")                                              \
    X(INT, keep, 2, 1, 1000000, MACHINE, APPLY, "checkpoints kept, besides the best")              \
    X(INT, bad_steps, 5, 1, 1000000, TRAINING, APPLY,                                              \
      "steps in a row without a finite loss that end the run")                                     \
    X(INT, seed, 1, 0, 9007199254740991, TRAINING, KEEP, "of weights, dropout and shuffling")      \
    X(INT, listops_min, 500, 0, 1000000, DATA, KEEP,                                               \
      "ListOps: expressions have more tokens than this")                                           \
    X(INT, listops_max, 2000, 2, 1000000, DATA, KEEP, "ListOps: and fewer than this")              \
    X(INT, listops_depth, 10, 1, 100, DATA, KEEP, "ListOps: deepest nesting")                      \
    X(INT, listops_arguments, 10, 2, 100, DATA, KEEP, "ListOps: most arguments of an operator")    \
    X(INT, train_items, 96000, 1, 1000000000, DATA, KEEP, "items that are made to train on")       \
    X(INT, valid_items, 2000, 1, 1000000000, DATA, KEEP,                                           \
      "for validation, and as many for the test")                                                  \
    X(INT, data_seed, 0, 0, 9007199254740991, DATA, KEEP,                                          \
      "of items that are made: seed of the generator")                                             \
    X(INT, distractors, 0, 0, 100, DATA, KEEP,                                                     \
      "Pathfinder: short lines; 0: 5, of 128 pixels a side 8")                                     \
    X(INT, patch, 1, 1, 64, DATA, KEEP,                                                            \
      "images: pixels a side of the squares they are read in; 1: lines")                           \
    X(INT, shrink, 1, 1, 64, DATA, KEEP,                                                           \
      "images: of squares of this side the brightest pixel is read alone")                         \
    X(INT, flip, 0, 0, 1, TRAINING, APPLY,                                                         \
      "images to train on: half of them mirrored, left for right")                                 \
    X(INT, shift, 0, 0, 64, TRAINING, APPLY,                                                       \
      "images to train on: moved by up to so many pixels, up or down and to a side")

/* The names of each CHOICE, number 0 first. */
#define HTI_CONFIG_CHOICES(X)                                                               \
    X(task, "classify", "pairs", "language", "denoise")                                     \
    X(format, "listops", "tsv", "text", "images", "pathfinder", "tokens", "copy", "recall") \
    X(attention, "hierarchical", "full", "local")                                           \
    X(query, "auto", "mean", "first", "fine")                                               \
    X(documents, "file", "lines", "articles", "wikitext", "fasta")                          \
    X(pool, "cls", "first", "mean", "mean_all", "last", "max")                              \
    X(rotary, "none", "level0", "all")                                                      \
    X(dtype, "f32", "bf16", "f64", "auto")                                                  \
    X(schedule, "constant", "rsqrt", "cosine", "linear")                                    \
    X(decay, "matrices", "all")                                                             \
    X(optimizer, "adamw", "muon")
/* clang-format on */

#endif
