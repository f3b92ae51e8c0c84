/*
 * What the kinds of maps share: options, queries and keys from files or from a checkpoint, and
 * one call of an attention on them.
 */
#ifndef CLI_MAP_H
#define CLI_MAP_H

#include "base/npy.h"
#include "draw/picture.h"
#include "run/run.h"

typedef struct map_values {
    int64_t length, block, levels, layer, head, threads, leaf, peek, row;
    cli_ints open;
    int causal, query, error, attention, opened, json, last;
    double tolerance;
    const char *rank, *q, *k, *v, *run, *text, *out, *effective, *exact, *device;
} map_values;

/* Each draws and prints its map; false: error says why and *code is the exit code. */
bool map_blocks(const map_values *v, int *code, cli_error *error);    /* blocks.c */
bool map_rank(const map_values *v, int *code, cli_error *error);      /* rank.c */
bool map_error(const map_values *v, int *code, cli_error *error);     /* error.c */
bool map_attention(const map_values *v, int *code, cli_error *error); /* attention.c */
bool map_opened(const map_values *v, int *code, cli_error *error);    /* opened.c */

/* ---- inputs of the attention --------------------------------------------------------------- */

typedef struct map_input {
    ht_context *ctx;
    run_model model; /* of a checkpoint; its ctx is ctx */
    ht_dtype dtype;  /* HT_F32 or HT_F64 */
    int64_t batch, length, heads, kv_heads, dim, value_dim;
    void *q, *k, *v;          /* device [batch, length, heads or kv_heads, dim or value_dim] */
    uint8_t *mask;            /* device [length], or NULL */
    double *bias;             /* host [4*bias_block - 1, heads], or NULL */
    int64_t bias_block;       /* the block that the table was made for */
    double rotary;            /* theta at level 0; 0: none */
    int causal;               /* of a checkpoint: whether its model is */
    ht_kind kind;             /* of a checkpoint: its own; of files: hierarchical */
    ht_query query;           /* of a checkpoint: its own; of files: as --query says */
    int64_t block;            /* of a checkpoint: its own; of files: --block */
    int64_t layer;            /* of a checkpoint */
    int64_t open, leaf, peek; /* as in a descriptor; of a checkpoint its own, or the options' */
    char about[160];          /* one line about where it comes from */
} map_input;

/* From --q, --k, --v, or from --run, --text and --layer. */
bool map_open(map_input *out, const map_values *v, int *code, cli_error *error);
void map_close(map_input *in);

/* Which attention, on which part of the input. */
typedef struct map_call {
    ht_kind kind;
    ht_query query;
    int causal;
    int64_t block;
    int64_t head;      /* one query head and its key head; -1: all */
    int64_t open;      /* clusters that a row opens, with the input's leaf and peek */
    const void *v;     /* device [batch, length, kv heads or 1, value_dim]; NULL: the input's */
    int64_t value_dim; /* of v */
} map_call;

/* out: host [batch, length, heads or 1, value_dim], numbers of the input's dtype as double. */
bool map_attend(double *out, const map_input *in, const map_call *call, cli_error *error);

/* Weights [length, length] of one head of the first sequence: the input's own attention, and full
 * attention; either may be NULL. */
bool map_weights(double *effective, double *exact, const map_input *in, int64_t head,
                 cli_error *error);

/* How the rows of the first sequence meet in a head: out [length, length], see ht_attention_pairs.
 */
bool map_pairs(int8_t *out, const map_input *in, int64_t head, cli_error *error);

/* A 2-D .npy file of float64. */
bool map_save_npy(const char *path, const double *data, int64_t rows, int64_t columns,
                  cli_error *error);

/* Singular values of a [rows, columns], largest first, into out [min(rows, columns)]; a is
 * overwritten. svd.c; UNSUPPORTED as a sentence where there is no LAPACK. */
bool svd_values(double *out, double *a, int64_t rows, int64_t columns, cli_error *error);

#endif
