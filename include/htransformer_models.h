/*
 * htransformer_models.h - Transformers on top of htransformer.h: configurations, data, models,
 * training, generating text, files.
 *
 * How to train, in five calls (docs/training.md has the guide):
 *
 *     ht_config_create(&config, ctx, "small-listops");
 *     ht_data_open(&data, ctx, &data_desc);
 *     ht_model_create(&model, ctx, config);
 *     ht_trainer_create(&trainer, model, NULL);
 *     ht_train(trainer, &train_desc);
 *
 * The rules of htransformer.h about errors, threads and sizes hold here, too. A program links
 * libhtransformer_models, which needs libhtransformer of the same version.
 */
#ifndef HTRANSFORMER_MODELS_H
#define HTRANSFORMER_MODELS_H

#include "htransformer.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- configurations ---------------------------------------------------------------------- */

/* Everything a run is made of, by name: "layers", "attention", "rate". What takes a configuration
 * copies it. */
typedef struct ht_config ht_config;

/* All defaults, then what the preset changes; preset NULL: defaults alone. ctx NULL: sentences are
 * this thread's, as those of ht_context_create. */
HT_API ht_status ht_config_create(ht_config **out, ht_context *ctx, const char *preset);
HT_API ht_status ht_config_copy(ht_config **out, const ht_config *config);
HT_API void ht_config_destroy(ht_config *config);

HT_API const char *ht_config_preset_name(int index); /* NULL after the last */
HT_API const char *ht_config_preset_about(int index);

/* A value that is no whole number, out of the key's limits or none of its names is refused and
 * changes nothing. set_text takes any key's value as the command line does: "4", "0.5", "local". */
HT_API ht_status ht_config_set_int(ht_config *config, const char *key, int64_t value);
HT_API ht_status ht_config_set_real(ht_config *config, const char *key, double value);
HT_API ht_status ht_config_set_choice(ht_config *config, const char *key, const char *name);
HT_API ht_status ht_config_set_text(ht_config *config, const char *key, const char *text);

/* get_text: at most `bytes` with the final 0; *length, or NULL: how long it is without it. */
HT_API ht_status ht_config_get_int(const ht_config *config, const char *key, int64_t *out);
HT_API ht_status ht_config_get_real(const ht_config *config, const char *key, double *out);
HT_API ht_status ht_config_get_choice(const ht_config *config, const char *key, const char **out);
HT_API ht_status ht_config_get_text(const ht_config *config, const char *key, char *out,
                                    size_t bytes, size_t *length);

/* Sets the keys of a JSON object, {"layers": 4, "attention": "local"}; an unknown key or a value of
 * the wrong kind is refused and leaves the configuration as it was. */
HT_API ht_status ht_config_read_json(ht_config *config, const char *json);
/* All keys as a JSON object, as get_text does it. */
HT_API ht_status ht_config_write_json(const ht_config *config, char *out, size_t bytes,
                                      size_t *length);

/* Would a model take it? And the rules that it then keeps, in words; NULL after the last. */
HT_API ht_status ht_config_check(const ht_config *config);
HT_API const char *ht_config_rule(int index);

typedef enum ht_key_kind { HT_KEY_INT = 0, HT_KEY_REAL = 1, HT_KEY_CHOICE = 2 } ht_key_kind;

/* Whose a key is: what the weights are and mean; what the items are, and their order; how the
 * weights change; how this machine goes about it. */
typedef enum ht_key_owner {
    HT_OWNER_MODEL = 0,
    HT_OWNER_DATA = 1,
    HT_OWNER_TRAINING = 2,
    HT_OWNER_MACHINE = 3
} ht_key_owner;

typedef struct ht_key_info {
    size_t size;
    const char *name;
    ht_key_kind kind;
    ht_key_owner owner;
    const char *help;
    const char *fallback;       /* the default, in words */
    const char *const *choices; /* CHOICE: its names, ended by NULL; else NULL */
    double least, most;         /* INT, REAL */
    int keeps;   /* a run goes on with the value that it was begun with, and refuses another */
    int decided; /* "auto", else 0, leaves it to the library, once, when a run begins */
} ht_key_info;
#define HT_KEY_INFO_INIT \
    { .size = sizeof(ht_key_info) }

/* Key number 0 ... ht_config_keys() - 1, in the order of help and files. */
HT_API int ht_config_keys(void);
HT_API ht_status ht_config_key(int index, ht_key_info *out);

/* ---- labels ------------------------------------------------------------------------------ */

/* Names of classes in the order of their numbers. */
typedef struct ht_labels ht_labels;
HT_API int64_t ht_labels_count(const ht_labels *labels);
HT_API const char *ht_labels_name(const ht_labels *labels, int64_t index); /* NULL: out of range */
HT_API int64_t ht_labels_find(const ht_labels *labels, const char *name);  /* -1: not there */

/* ---- tokens of a text -------------------------------------------------------------------- */

/* From bytes to token ids and back, exactly. Token 0 is the start (and the end) of a document. */
typedef struct ht_tokenizer ht_tokenizer;

/* path: a SentencePiece model, or a tokenizer.json of Hugging Face with BPE; NULL: bytes (byte +
 * 1). UNSUPPORTED where the library was built without SentencePiece or PCRE2. */
HT_API ht_status ht_tokenizer_open(ht_tokenizer **out, ht_context *ctx, const char *path);
HT_API void ht_tokenizer_close(ht_tokenizer *tokenizer);
HT_API int64_t ht_tokenizer_vocab(const ht_tokenizer *tokenizer); /* ids are 0 ... vocab - 1 */

/* At most `room` tokens; *count: how many the text has. */
HT_API ht_status ht_tokenizer_encode(const ht_tokenizer *tokenizer, const char *text, size_t bytes,
                                     int32_t *tokens, int64_t room, int64_t *count);
/* The bytes of one token, not ended by 0; those of a text are the bytes of its tokens. */
HT_API const char *ht_tokenizer_piece(const ht_tokenizer *tokenizer, int32_t token, size_t *bytes);

/* ---- rows of text ------------------------------------------------------------------------ */

typedef enum ht_rows_kind {
    HT_ROWS_AUTO, /* by the name's ending, else by the first bytes */
    HT_ROWS_TSV,  /* a line is cells between tabs; the last one may hold tabs */
    HT_ROWS_CSV,  /* RFC 4180; also with semicolons or tabs */
    HT_ROWS_JSONL,
    HT_ROWS_FOLDERS /* a folder per label, a file per text */
} ht_rows_kind;

typedef enum ht_header { HT_HEADER_AUTO, HT_HEADER_YES, HT_HEADER_NO } ht_header;

typedef struct ht_row {
    size_t size;
    const char *file;
    int64_t line;        /* of its first byte; of folders 1 */
    const char *label;   /* not ended by 0, blanks around it are left out; NULL: none */
    const char *text[2]; /* as the file has them, quotes and escapes resolved; not ended by 0 */
    size_t label_bytes, text_bytes[2];
} ht_row;

/* Labelled texts as people have them. Columns are names of the header (JSON: keys) or numbers from
 * 1; NULL: found by usual names, else label, text. Of files in a folder each may be of another
 * kind. A first line is a header if it has the names that are asked for or usual names of texts, or
 * if its label is nowhere else in the file. */
typedef struct ht_rows_desc {
    size_t size;
    const char *path;  /* as in ht_data_desc */
    const char *bytes; /* path NULL: these, not compressed */
    size_t count;
    ht_rows_kind kind;
    ht_header header;
    const char *text_column; /* of pairs two, with a comma between them */
    const char *label_column;
    int texts;      /* of a row: 0 or 1: one, 2: a pair */
    int unlabelled; /* 1: labels are not looked at */
    int skip_bad;   /* 1: bad rows are counted and left out, 0: the first one is refused */
    size_t most;    /* bytes of a row; longer ones are bad. 0: 16 MiB */
    int (*each)(void *user, const ht_row *row); /* what it gets lasts until it returns; non-zero:
                                                   END. NULL: rows are checked and counted */
    void *user;
} ht_rows_desc;
#define HT_ROWS_DESC_INIT \
    { .size = sizeof(ht_rows_desc) }

typedef struct ht_rows_info {
    size_t size;
    int64_t rows;      /* good ones */
    int64_t lines;     /* of all files */
    int64_t empty;     /* lines, and files of folders, that have nothing in them */
    int64_t refused;   /* bad rows; the first one's place and fault are in `refusal` */
    int64_t odd;       /* rows whose text is no UTF-8; its bytes are taken as they are */
    char about[256];   /* "csv with a header: label 'kind', text 'words'" */
    char refusal[384]; /* "mail.csv:17: the label is empty" */
} ht_rows_info;
#define HT_ROWS_INFO_INIT \
    { .size = sizeof(ht_rows_info) }

/* The kind that a file's name says, .gz and .zst left out; AUTO: none. */
HT_API ht_rows_kind ht_rows_kind_of(const char *name);

/* All rows in their order. A bad one: FORMAT, with its place. info: or NULL. */
HT_API ht_status ht_rows_read(ht_context *ctx, const ht_rows_desc *desc, ht_rows_info *info);

/* ---- data -------------------------------------------------------------------------------- */

/* Token ids in host memory. Bytes are 1 ... 256, 0 is padding or the start of a document. */
typedef struct ht_batch {
    size_t size;
    int64_t sequences;     /* of pairs: two per item */
    const int32_t *tokens; /* the sequences one after the other */
    const int32_t
        *cu_seqlens; /* [sequences + 1]: sequence b is tokens cu_seqlens[b] ... cu_seqlens[b+1]-1 */
    const int32_t *targets; /* classify: [sequences]; pairs: [sequences / 2]; language: one per
                               token, the next token; denoise: one per token, itself, which hides it
                               from the model (hide 0: the next token). -1: does not count. NULL
                               where only predictions are wanted */
    const int32_t *back; /* data of tokens, copy and recall: one per token: how many tokens before
                            its target the same answer stands; 0: it does not count, or nobody says.
                            Not read by models. NULL: other data */
} ht_batch;
#define HT_BATCH_INIT \
    { .size = sizeof(ht_batch) }

typedef struct ht_data ht_data;

typedef enum ht_part { HT_PART_TRAIN = 0, HT_PART_VALID = 1, HT_PART_TEST = 2 } ht_part;

typedef struct ht_data_desc {
    size_t size;
    const ht_config *config; /* format, task, length, classes, batch, seeds */
    const char *path; /* a file, a folder (all its files, by name; of tsv also a folder per label)
                         or "-" for stdin; gzip and zstd are recognised. listops: NULL makes them,
                         else rows of label and expression; pathfinder: NULL makes them, else
                         images; copy, recall: NULL makes them, else tokens */
    ht_part part;     /* with holdout; what is made here */
    double holdout;   /* this share of the items is the valid part, the rest the train part; 0: the
                         file is one part. Of a text with enough documents whole ones are held out,
                         else its end */
    const char *papers; /* pairs: a file of id<TAB>text; path has label<TAB>id<TAB>id. Or NULL */
    const ht_tokenizer *tokenizer; /* text: how it becomes tokens; must outlive data. NULL: bytes */
    size_t memory; /* text: bytes of tokens kept in memory, the rest lies in a file in TMPDIR; 0: 1
                      GiB */
    const ht_rows_desc *rows; /* tsv: how rows are read (path, bytes, texts, unlabelled and each are
                                 not used); NULL: as they are found */
    const ht_labels *labels;  /* tsv: labels are of these, of a model or of other data, and another
                                 is a bad row; NULL: those that the data has */
    int64_t items;            /* no more than so many, the first ones; 0: all */
    int keep_texts;           /* tsv, not of pairs: 1: whole texts are kept for ht_data_text */
} ht_data_desc;
#define HT_DATA_DESC_INIT \
    { .size = sizeof(ht_data_desc) }

typedef struct ht_data_info {
    size_t size;
    int64_t items;     /* texts, pairs or windows */
    int64_t tokens;    /* of all items */
    int64_t longest;   /* tokens of the longest item before cutting; texts: document */
    int64_t cut;       /* items that were longer than length */
    int64_t classes;   /* labels that there are; 0: none are looked at */
    double majority;   /* share of the most frequent label */
    int64_t documents; /* texts: of this part (of both, if its windows are held out) */
} ht_data_info;
#define HT_DATA_INFO_INIT \
    { .size = sizeof(ht_data_info) }

/* Reads everything into memory (texts: see memory). A bad line is refused with its number. */
HT_API ht_status ht_data_open(ht_data **out, ht_context *ctx, const ht_data_desc *desc);
/* Both parts of a path of which a share is held out (part is not used); the labels are the same in
 * both. Labelled texts are read once for it, other data once for each part. */
HT_API ht_status ht_data_open_parts(ht_data **train, ht_data **valid, ht_context *ctx,
                                    const ht_data_desc *desc);
HT_API void ht_data_close(ht_data *data);
HT_API ht_status ht_data_get_info(const ht_data *data, ht_data_info *out);
/* What was read of labelled texts; of other data zeros. */
HT_API ht_status ht_data_get_rows(const ht_data *data, ht_rows_info *out);
/* Of tsv: whole numbers in their order, else sorted as text; with `classes` given, whole numbers
 * below it are themselves. Of other data: 0 ... classes - 1. NULL where no labels are looked at. */
HT_API const ht_labels *ht_data_labels(const ht_data *data);

/* The whole text of an item, which the model's length does not cut, not ended by 0; NULL: not kept
 * (ht_data_desc.keep_texts), or out of range. */
HT_API const char *ht_data_text(const ht_data *data, int64_t item, size_t *bytes);

/* The next batch in order; the last one may be smaller; then END, and the next call starts again.
 * The arrays belong to data and last until the next call. */
HT_API ht_status ht_data_next(ht_data *data, ht_batch *out);
/* The next full batch of the endless shuffled stream that `seed` of the configuration makes. */
HT_API ht_status ht_data_draw(ht_data *data, ht_batch *out);
HT_API int64_t ht_data_position(const ht_data *data); /* items drawn so far */
HT_API ht_status ht_data_seek(ht_data *data, int64_t position);

/* One text as tokens of this configuration's data; at most `room` of them, *count: how many it has.
 */
HT_API ht_status ht_data_encode(ht_context *ctx, const ht_config *config, const char *text,
                                size_t bytes, int32_t *tokens, int64_t room, int64_t *count);

/* Sets as files for ht_data_open: made from a seed (listops, pathfinder, pathx of the Long Range
 * Arena; copy, recall; the same bytes for any number of threads), or taken from their official form
 * (imdb, cifar10, aan, listops, pathfinder, pathx) and checked. docs/formats.md has the files. */
typedef struct ht_set_desc {
    size_t size;
    const char *task;
    const char *source; /* the official folder; NULL: make the set */
    const char *folder; /* of what is written; it must exist. NULL: make and write nothing */
    int64_t items[3];   /* made of train, valid, test; all 0: as many as in the benchmark; copy,
                           recall: 20,000, 1,000, 1,000 */
    int64_t seed;
    int64_t distractors;                                /* pathfinder, pathx: 0: 5 or 8 */
    int plain;                                          /* 1: not compressed */
    int unchecked;                                      /* 1: any number of items, any sum */
    int (*tell)(void *user, int64_t done, int64_t all); /* non-zero: stop, INVALID; or NULL */
    void *user;
    int64_t length; /* copy, recall: tokens of an item; 0: 512 */
} ht_set_desc;
#define HT_SET_DESC_INIT \
    { .size = sizeof(ht_set_desc) }

typedef struct ht_set_info {
    size_t size;
    int64_t items[3];   /* of train, valid, test */
    int64_t longest[3]; /* tokens */
    uint64_t sum[3];    /* of the items, in any order */
    int known;          /* import: 1: the sums are those of the set as it is published */
    double attempts;    /* per item made: attempts at the expression or the two long lines */
    double positive;    /* pathfinder, per image: share of label 1, */
    double distractors; /* short lines that found room, */
    double nonzero;     /* share of pixels that are not black, */
    double brightness;  /* and mean pixel */
} ht_set_info;
#define HT_SET_INFO_INIT \
    { .size = sizeof(ht_set_info) }

HT_API ht_status ht_set_write(ht_context *ctx, const ht_set_desc *desc, ht_set_info *out);

/* ---- models ------------------------------------------------------------------------------ */

typedef struct ht_model ht_model; /* configuration and weights */

HT_API ht_status ht_model_create(ht_model **out, ht_context *ctx, const ht_config *config);
HT_API void ht_model_destroy(ht_model *model);
/* The model's own, with all that was left open decided; lives as long as the model. */
HT_API const ht_config *ht_model_config(const ht_model *model);
HT_API int64_t ht_model_parameters(const ht_model *model); /* how many numbers */

/* Operations of a training step per token: the products of the linear layers, forward and backward;
 * attention is not counted. And how many per second the device could do in that precision: of a
 * GPU by its data sheet, of a CPU as measured now (0.1 s); 0: not known. */
HT_API double ht_model_flops(const ht_model *model);
HT_API ht_status ht_context_peak(ht_context *ctx, ht_dtype dtype, double *out);

/* A safetensors file with the configuration in its metadata; whole or not there. */
HT_API ht_status ht_model_save(const ht_model *model, const char *path);
/* The same with numbers of another type: BF16 makes it half as large and rounds. */
HT_API ht_status ht_model_export(const ht_model *model, const char *path, ht_dtype dtype);
HT_API ht_status ht_model_load(ht_model **out, ht_context *ctx, const char *path);
/* Takes the tensors that have the same name and shape in the file, *taken of them; the others stay
 * as they are. A model that was trained to denoise starts a classifier that way. FORMAT if there is
 * none; the model is then unchanged. */
HT_API ht_status ht_model_take(ht_model *model, const char *path, int64_t *taken);

/* Names of its classes, kept in its files; numbers until they are set. ht_train sets those of the
 * data it trains on. NULL: it is no classifier. */
HT_API const ht_labels *ht_model_labels(const ht_model *model);
HT_API ht_status ht_model_set_labels(ht_model *model, const ht_labels *labels);

typedef struct ht_tensor_info {
    size_t size;
    const char *name; /* "layers.0.attention.qkv.weight" */
    int rank;         /* 1 or 2 */
    int64_t shape[2]; /* a matrix is [out, in] */
    int64_t count;
} ht_tensor_info;
#define HT_TENSOR_INFO_INIT \
    { .size = sizeof(ht_tensor_info) }
HT_API int64_t ht_model_tensors(const ht_model *model);
HT_API ht_status ht_model_tensor(const ht_model *model, int64_t index, ht_tensor_info *out);
HT_API ht_status ht_model_read(const ht_model *model, int64_t index, double *out);
HT_API ht_status ht_model_write(ht_model *model, int64_t index, const double *in);

/* ---- a linear model beside it ------------------------------------------------------------- */

/* Logistic regression on the words, pairs of words and runs of five bytes of whole texts: seconds
 * instead of minutes, and on few texts often the better one. What it cannot see is order beyond
 * that. One class against the rest, if there are more than two; features are weighted by how much
 * more often a class has them (Wang and Manning 2012). The same bits on any number of threads. */
typedef struct ht_linear ht_linear;

/* train: labelled texts, opened with keep_texts. UNSUPPORTED: too many texts or classes for the
 * memory that it would take. */
HT_API ht_status ht_linear_fit(ht_linear **out, ht_context *ctx, const ht_data *train);
HT_API void ht_linear_destroy(ht_linear *linear);
HT_API const ht_labels *ht_linear_labels(const ht_linear *linear);

/* Scores of a text, [classes]; as logits they are rough, ht_linear_choose says what they are worth.
 */
HT_API ht_status ht_linear_scores(ht_linear *linear, const char *text, size_t bytes, float *scores);

/* How much of a model's logits and of these scores should count, from `items` texts that neither
 * has learned from: softmax(model_weight * logits + linear_weight * scores) with the smallest loss.
 * Both count if the best of one alone is worse by more than 2 in the sum of the losses, else that
 * one. scores, logits: [items, classes]; logits NULL: there is no model; labels [items]. */
HT_API ht_status ht_linear_choose(ht_linear *linear, const float *scores, const float *logits,
                                  const int32_t *labels, int64_t items);
/* As it was chosen, the logits of the two together; logits may be NULL where model_weight is 0. */
HT_API ht_status ht_linear_mix(const ht_linear *linear, const float *scores, const float *logits,
                               float *out);

typedef struct ht_linear_info {
    size_t size;
    int64_t classes, features, items;    /* it learned from */
    int64_t valid_items;                 /* of the choice; 0: none was made */
    double linear_weight, model_weight;  /* 1 and 0 before the choice */
    double linear_loss, linear_accuracy; /* on them, alone; weighted for the smallest loss */
    double model_loss, model_accuracy;   /* 0: there was no model */
    double chosen_loss, chosen_accuracy;
} ht_linear_info;
#define HT_LINEAR_INFO_INIT \
    { .size = sizeof(ht_linear_info) }
HT_API ht_status ht_linear_get_info(const ht_linear *linear, ht_linear_info *out);

/* A safetensors file with labels and choice; whole or not there. */
HT_API ht_status ht_linear_save(const ht_linear *linear, const char *path);
HT_API ht_status ht_linear_load(ht_linear **out, ht_context *ctx, const char *path);

/* ---- generating -------------------------------------------------------------------------- */

/* A language model and the decode state of `slots` texts, each at its own position. Nothing in a
 * hierarchical state grows faster than the logarithm of the text; positions beyond the training
 * length are fine, unless they are learned. */
typedef struct ht_generator ht_generator;

typedef struct ht_generator_desc {
    size_t size;
    int64_t slots;           /* 0: 1 */
    int64_t rows;            /* tokens computed at a time; longer prompts go in pieces. 0: 256 */
    const ht_config *config; /* how many clusters rows open (open, open_leaf, open_peek); NULL: the
                                model's own */
} ht_generator_desc;
#define HT_GENERATOR_DESC_INIT \
    { .size = sizeof(ht_generator_desc) }

HT_API ht_status ht_generator_create(ht_generator **out, ht_model *model,
                                     const ht_generator_desc *desc);
HT_API void ht_generator_destroy(ht_generator *generator);

/* Appends sequence b of the batch (targets are not used) to slot slots[b] (NULL: slot b), all
 * different. logits, host, may be NULL: [sequences, vocab], after the last token of each sequence;
 * `every`: [tokens, vocab], after each token. A slot that a failure left in between must be
 * reset. */
HT_API ht_status ht_generator_feed(ht_generator *generator, const int64_t *slots,
                                   const ht_batch *batch, float *logits, int every);

typedef struct ht_state_info {
    size_t size;
    int64_t position;         /* tokens so far */
    int64_t rows;             /* of K, and of V, held per layer and key head */
    int64_t layers, kv_heads; /* of the model */
    size_t bytes;             /* of all that is saved */
} ht_state_info;
#define HT_STATE_INFO_INIT \
    { .size = sizeof(ht_state_info) }
HT_API ht_status ht_generator_get_state(const ht_generator *generator, int64_t slot,
                                        ht_state_info *out);
HT_API ht_status ht_generator_reset(ht_generator *generator, int64_t slot);
HT_API ht_status ht_generator_fork(ht_generator *generator, int64_t to, int64_t from);

/* A slot in a file, with all that the next token depends on: text generated from it continues with
 * the same bits. Any slot of a generator of the same weights can load it. */
HT_API ht_status ht_generator_save(const ht_generator *generator, int64_t slot, const char *path);
HT_API ht_status ht_generator_load(ht_generator *generator, int64_t slot, const char *path);

/* How the next token is chosen: logits of the last 256 tokens are pushed down by repeat_penalty,
 * divided by the temperature; of the probabilities the top_k largest stay, of those the fewest that
 * make up top_p, of those the ones that are at least min_p times the largest. */
typedef struct ht_sampling {
    size_t size;
    double temperature;    /* 0: the largest logit */
    int64_t top_k;         /* 0: all */
    double top_p;          /* in (0, 1]; 1: all */
    double min_p;          /* in [0, 1]; 0: all */
    double repeat_penalty; /* at least 1; 1: none. Positive logits are divided by it, others
                              multiplied */
    uint64_t seed;         /* the draw depends on seed and position alone */
} ht_sampling;
#define HT_SAMPLING_INIT \
    { .size = sizeof(ht_sampling), .temperature = 1, .top_p = 1, .repeat_penalty = 1 }

/* One token from logits [vocab]: `recent` are the tokens that the penalty is for, draw is a number
 * in [0, 1). A logit that is not finite stands for a token that cannot occur. */
HT_API ht_status ht_sample(ht_context *ctx, const ht_sampling *sampling, const float *logits,
                           int64_t vocab, const int32_t *recent, int64_t recents, double draw,
                           int32_t *token);

/* The next token of a slot that has some; log_probability, or NULL: the model's own, before any of
 * the above. Appends nothing. */
HT_API ht_status ht_generator_sample(const ht_generator *generator, int64_t slot,
                                     const ht_sampling *sampling, int32_t *token,
                                     double *log_probability);

/* ---- several processes ------------------------------------------------------------------- */

/* One of `ranks` processes that a launcher started together. */
typedef struct ht_place {
    size_t size;
    int rank, ranks;             /* 0 of 1 where there is no launcher */
    int local_rank, local_ranks; /* among those of this machine */
    const char *launcher;        /* "mpirun", "mpiexec", "srun" or "torchrun"; NULL: none */
} ht_place;
#define HT_PLACE_INIT \
    { .size = sizeof(ht_place) }

/* What the launcher says, in variables of the environment. It can be asked before there is a
 * context, so that rank and device fit together; its sentence is ht_context_error(NULL). */
HT_API ht_status ht_place_find(ht_place *out);

/* The processes of one launcher as a whole: opened by all of them, over MPI or, on GPUs, NCCL. */
typedef struct ht_world ht_world;

HT_API ht_status ht_world_open(ht_world **out, ht_context *ctx);
/* failed NULL: all went well, and the others are waited for. Else: a sentence that they are told,
 * and end with; this process must then end, too. */
HT_API void ht_world_close(ht_world *world, const char *failed);
HT_API ht_status ht_world_get_place(const ht_world *world, ht_place *out);
HT_API const char *ht_world_link(const ht_world *world); /* what carries the bytes, a few words */
HT_API uint64_t ht_world_sent(const ht_world *world);    /* bytes given to others so far */
/* Waits until all ranks are here. failed: NULL, or why this one cannot go on; if there is one that
 * cannot, all of them fail, with its sentence in their context. For what one rank does while the
 * others wait. */
HT_API ht_status ht_world_agree(ht_world *world, const char *failed);
/* 1: the sentence of a failure is another rank's, who says it, too. */
HT_API int ht_world_told(const ht_world *world);

/* ---- training ---------------------------------------------------------------------------- */

typedef struct ht_trainer ht_trainer; /* activations, gradients, moments, step */

typedef struct ht_trainer_desc {
    size_t size;
    const ht_config *config; /* how to train; NULL: the model's own. length may differ, too, but not
                                exceed what a model with learned positions has; and open */
    int inference;           /* 1: evaluate and predict only; no memory for anything else */
    ht_world *world; /* NULL, or ranks that train together: each takes its share of every batch,
                        and all have the same weights. It lives longer than the trainer */
} ht_trainer_desc;
#define HT_TRAINER_DESC_INIT \
    { .size = sizeof(ht_trainer_desc) }

typedef struct ht_report {
    size_t size;
    double loss;     /* mean over targets, natural logarithm */
    double accuracy; /* share of targets with the largest logit */
    int64_t targets, correct;
    int64_t tokens;       /* rows computed */
    double rate;          /* of a step */
    double gradient_norm; /* before clipping */
    int applied;          /* 0: loss or gradient were not finite, nothing was changed */
} ht_report;
#define HT_REPORT_INIT \
    { .size = sizeof(ht_report) }

HT_API ht_status ht_trainer_create(ht_trainer **out, ht_model *model, const ht_trainer_desc *desc);
HT_API void ht_trainer_destroy(ht_trainer *trainer);
/* The trainer's own, with all that was left open decided; lives as long as the trainer. */
HT_API const ht_config *ht_trainer_config(const ht_trainer *trainer);
HT_API int64_t ht_trainer_steps(const ht_trainer *trainer);  /* updates so far */
HT_API size_t ht_trainer_bytes(const ht_trainer *trainer);   /* device memory it holds */
HT_API size_t ht_trainer_moments(const ht_trainer *trainer); /* of it: the optimiser's moments */
/* Those of its layers, see ht_attention_kernels. */
HT_API const char *ht_trainer_kernels(const ht_trainer *trainer, int backward);
/* See ht_attention_explain. */
HT_API ht_status ht_trainer_explain(const ht_trainer *trainer, int backward, ht_kernels_info *out);

/* One update from `count` micro-batches. */
HT_API ht_status ht_trainer_step(ht_trainer *trainer, const ht_batch *batches, int64_t count,
                                 ht_report *out);
HT_API ht_status ht_trainer_evaluate(ht_trainer *trainer, const ht_batch *batch, ht_report *out);
/* classify, pairs: logits [items, classes]; language: each token's loss [tokens] (targets needed)
 */
HT_API ht_status ht_trainer_predict(ht_trainer *trainer, const ht_batch *batch, float *out);
/* language: each token's loss, and 1 where the model would have guessed its target [tokens]; right
 * may be NULL */
HT_API ht_status ht_trainer_guess(ht_trainer *trainer, const ht_batch *batch, float *losses,
                                  unsigned char *right);
/* language: the logits after each token [tokens, vocab] */
HT_API ht_status ht_trainer_logits(ht_trainer *trainer, const ht_batch *batch, double *out);

/* What the model makes of each sequence, [sequences, width]: of a classifier what its head reads,
 * behind pooling; of others the mean of the rows behind the final norm. Targets are not used. */
HT_API ht_status ht_trainer_embed(ht_trainer *trainer, const ht_batch *batch, float *out);

/* What the attention of a layer gets: q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim]
 * of the batch's sequences one after the other, rotary positions of all levels already in them.
 * rows: all tokens (`merge` of a sequence are one), and where pool is cls one row in front of each
 * sequence. */
HT_API ht_status ht_trainer_read_qkv(ht_trainer *trainer, const ht_batch *batch, int64_t layer,
                                     float *q, float *k, float *v);

/* For checks: adds the gradient of the mean loss, dropout and all, to what is there. */
HT_API ht_status ht_trainer_gradient(ht_trainer *trainer, const ht_batch *batch, ht_report *out);
HT_API ht_status ht_trainer_clear_gradient(ht_trainer *trainer);
HT_API ht_status ht_trainer_read_gradient(const ht_trainer *trainer, int64_t index, double *out);

/* Weights, moments, step and the position of the data (NULL: none) in one safetensors file. After a
 * restore training goes on bit for bit (same device, same threads). Writing is all or nothing.
 * Ranks that shard their moments all call it, and rank 0 writes. */
HT_API ht_status ht_trainer_save(const ht_trainer *trainer, const ht_data *data, const char *path);
HT_API ht_status ht_trainer_restore(ht_trainer *trainer, ht_data *data, const char *path);

typedef struct ht_resume_info {
    size_t size;
    int64_t step;    /* of the checkpoint that was taken; -1: the folder has none */
    int64_t skipped; /* newer ones that could not be read */
    char why[512];   /* what is wrong with the newest, if it was skipped */
} ht_resume_info;
#define HT_RESUME_INFO_INIT \
    { .size = sizeof(ht_resume_info) }

/* A restore from the newest checkpoint of a run folder that can be read; out may be NULL. */
HT_API ht_status ht_trainer_resume(ht_trainer *trainer, ht_data *data, const char *folder,
                                   ht_resume_info *out);

/* Settings to go on with what is in a run folder, before a model is made of them: what they leave
 * open is what its newest checkpoint that can be read has, the rest is decided and checked; a key
 * that a run keeps (ht_key_info) with another value is refused. Nothing is taken from a folder
 * without checkpoints. */
HT_API ht_status ht_config_resume(ht_config *config, ht_context *ctx, const char *folder);

/* What ht_train tells while it runs; returning non-zero ends the run after a checkpoint. */
typedef struct ht_event {
    size_t size;
    int64_t step, steps;
    const ht_report *report; /* of this step */
    const ht_report *valid;  /* of the evaluation after this step, or NULL */
    int best;                /* the evaluation was the best so far */
    int saved;               /* a checkpoint was written */
    double step_seconds, elapsed, left;
    int tired; /* this evaluation was the last of `patience` ones without a better one: the run ends
                */
} ht_event;

typedef struct ht_train_desc {
    size_t size;
    const char
        *folder; /* run folder: log.jsonl, step-N.safetensors, best.safetensors; it must exist */
    ht_data *train;
    ht_data *valid;                                 /* or NULL */
    int resume;                                     /* ht_trainer_resume first */
    int (*tell)(void *user, const ht_event *event); /* or NULL */
    void *user;
} ht_train_desc;
#define HT_TRAIN_DESC_INIT \
    { .size = sizeof(ht_train_desc) }

/* Trains to the configuration's last step. DIVERGED: no finite loss bad_steps times in a row; the
 * last checkpoint holds the weights from before. */
HT_API ht_status ht_train(ht_trainer *trainer, const ht_train_desc *desc);

/* ---- files ------------------------------------------------------------------------------- */

/* Files as this library reads and writes them, for programs that have some of their own beside
 * models. ctx may be NULL: the sentence of a failure is then ht_context_error(NULL). */

/* A file that appears under its name only when it is complete and on the disk. Until then it has a
 * name of its own beside it. What stands under the name must be a regular file, not a link, and
 * stays as it is on any failure. */
typedef struct ht_writer ht_writer;

/* Makes the temporary: an unwritable place is known before any work is done. */
HT_API ht_status ht_writer_create(ht_writer **out, ht_context *ctx, const char *path);
HT_API void ht_writer_destroy(ht_writer *writer); /* removes what was not committed */
HT_API FILE *ht_writer_stream(ht_writer *writer); /* to print into, until finish, which sees what
                                                     failed */
HT_API ht_status ht_writer_put(ht_writer *writer, const void *data, size_t bytes);
/* All is on the disk, still under the temporary's name; then it has its own. */
HT_API ht_status ht_writer_finish(ht_writer *writer);
HT_API ht_status ht_writer_commit(ht_writer *writer);
/* Removes the temporaries of this process, the library's own, too: for a signal handler that ends
 * the program. */
HT_API void ht_writer_abandon_all(void);

/* A regular file, behind links or not, and its size; a pipe is refused and not waited for. */
HT_API ht_status ht_file_open(ht_context *ctx, FILE **out, uint64_t *bytes, const char *path);
/* The same, or a pipe or a terminal: what is read once from its start to its end. */
HT_API ht_status ht_file_open_stream(ht_context *ctx, FILE **out, const char *path);
/* One line into *line, which grows by realloc to *room bytes (the caller frees it), *bytes long:
 * OK, END, or what failed. name: what the sentence calls the file. */
HT_API ht_status ht_file_line(ht_context *ctx, FILE *file, const char *name, char **line,
                              size_t *room, size_t *bytes);
/* The step in the name of a checkpoint, "step-000000123.safetensors"; -1: another name. */
HT_API int64_t ht_file_step(const char *name);

#ifdef __cplusplus
}
#endif
#endif
