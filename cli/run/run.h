/*
 * Run folders: what train leaves and what eval and predict take.
 *
 *     config.json               the resolved configuration
 *     run.json                  where the data came from
 *     log.jsonl                 one line per step and per evaluation
 *     step-N.safetensors        checkpoints to go on from
 *     best.safetensors          the weights with the best evaluation
 *     linear.safetensors        classifiers of texts: the linear model beside it
 *     tokens.model              language models of sub-words: their SentencePiece model
 */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "base/settings.h"
#include "commands.h"

#include <htransformer_models.h>

/* A model that was found, and something to compute with. */
typedef struct run_model {
    ht_context *ctx;
    ht_model *model;
    ht_trainer *trainer;     /* run_open */
    ht_tokenizer *tokenizer; /* language models */
    ht_config *config;       /* the model's, or with another length or open */
    char path[4096];         /* the file it came from */
} run_model;

/* The file of a run's weights, at most 4,096 bytes. `run`: a folder, or a checkpoint itself; last:
 * the newest checkpoint instead of the best. */
bool run_find(char *out, const char *run, int last, cli_error *error);
/* A model ready to be evaluated; length: of its sequences, 0: as it was trained; open: clusters
 * that a row opens, -1: as in training. */
bool run_open(run_model *out, const char *run, int last, int64_t length, int64_t open,
              const char *device, int64_t threads, int *code, cli_error *error);
/* The option for it; and what it does to m->config. */
#define RUN_OPEN_OPTION(values, field)                                                            \
    {                                                                                             \
        "open", CLI_INT, offsetof(values, field), "K", "-1",                                      \
            .min = -1, .max = 1 << 20,                                                            \
            .help = "clusters that a row opens, of a model with query fine; -1: as in training, " \
                    "0: none"                                                                     \
    }
bool run_set_open(run_model *m, int64_t open, cli_error *error);
/* The same with the model alone. run NULL: the model that comes with the program. */
bool run_load(run_model *out, const char *run, int last, const char *device, int64_t threads,
              int *code, cli_error *error);
void run_close(run_model *m);

/* A model that comes with the program, into out [4096]; false: it is not there. */
bool run_box(char *out, const char *name);

/* "folder/name" into out [4096]. */
bool run_path(char *out, const char *folder, const char *name, cli_error *error);

/* A file again under another name, whole or not at all. */
bool run_copy(const char *to, const char *from, cli_error *error);

/* A small text file, from malloc; NULL and a sentence if it cannot be read. */
char *run_read_text(const char *path, cli_error *error);
/* The same of a run's folder, where nobody waits for a pipe. */
char *run_read_part(const char *path, cli_error *error);
bool run_write_text(const char *path, const char *text, cli_error *error);

#endif
