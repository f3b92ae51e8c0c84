/*
 * The commands, one file each, and what they share: opening a device.
 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "options.h"

#include <htransformer.h>

extern const cli_command cli_info;            /* info.c */
extern const cli_command cli_attend;          /* attend.c */
extern const cli_command cli_train;           /* train.c */
extern const cli_command cli_eval;            /* eval.c */
extern const cli_command cli_predict;         /* predict.c */
extern const cli_command cli_generate;        /* generate.c */
extern const cli_command cli_export;          /* export.c */
extern const cli_command cli_map;             /* map.c */
extern const cli_command cli_report;          /* report.c */
extern const cli_command cli_completion;      /* completion.c */
extern const cli_command cli_man;             /* man.c */
extern const cli_command cli_bench_attention; /* bench/attention.c */
extern const cli_command cli_bench_decode;    /* bench/decode.c */
extern const cli_command cli_data_make;       /* data.c */
extern const cli_command cli_data_import;     /* data.c */
extern const cli_command cli_data_show;       /* data/show.c */
extern const cli_command cli_data_ladder;     /* ladder.c */
extern const cli_command cli_results;         /* results.c */

/* Gives train an option for each setting that the library has; once, before the tables are used. */
void cli_train_options(void);

/* All of them, ended by NULL; main.c. */
extern const cli_command *const cli_commands[];

/* Names in the order of the enums ht_kind, ht_query and ht_dtype; ended by NULL. */
extern const char *const cli_kinds[];
extern const char *const cli_queries[];
extern const char *const cli_dtypes[];

/* The device of --device: that one, else the environment's (NULL), else cuda:0 if there is one.
 * Only CPUs compute in double precision. */
const char *cli_device(const char *device, int double_precision);

/* The context of --device and --threads. On failure returns NULL and *code: CLI_USAGE where
 * no such device exists, CLI_FAILED where this machine does not have it. */
ht_context *cli_open_device(const char *device, int64_t threads, int *code, cli_error *error);

/* --open, --open_leaf and --open_peek. */
typedef struct cli_opening {
    int64_t open, leaf, peek;
} cli_opening;
#define CLI_OPENING(values, field)                                                         \
    {"open",                                                                               \
     CLI_INT,                                                                              \
     offsetof(values, field.open),                                                         \
     "K",                                                                                  \
     "0",                                                                                  \
     .max = 1 << 20,                                                                       \
     .help = "clusters that every row opens at each level, with --query fine; 0 is none"}, \
        {"open_leaf",                                                                      \
         CLI_INT,                                                                          \
         offsetof(values, field.leaf),                                                     \
         "W",                                                                              \
         "8",                                                                              \
         .min = 1,                                                                         \
         .max = 1 << 20,                                                                   \
         .help = "a cluster of so many rows is opened to its rows; a power of two"},       \
    {                                                                                      \
        "open_peek", CLI_INT, offsetof(values, field.peek), "P", "2",                      \
            .min = -1, .max = 48,                                                          \
            .help = "levels below a cluster that its score looks at; -1 is its mean alone" \
    }

/* What --query stands for: auto is resolved by the library. */
ht_query cli_query(int chosen, int causal, int64_t open);
/* Would the library take it? Asked before any work, as wrong usage. */
bool cli_check_query(int kind, int query, int causal, cli_error *error);

#endif
