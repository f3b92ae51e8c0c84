/*
 * Byte-pair encoding as Hugging Face's tokenizer.json has it: a text is split by regular
 * expressions (split.c), and in each part the two neighbours whose pair was learnt first become
 * one, until no pair is known (merge.c). read.c makes it from the file.
 *
 * Two forms of vocabulary: byte-level, where every byte is a letter (GPT-2, Llama 3, Qwen), and
 * characters with U+2581 for a space, where bytes such as <0x41> stand for what has no piece of its
 * own (Llama 2, Mistral, Gemma). Nothing is put before a text, and special tokens are never found
 * in one.
 */
#ifndef HTI_BPE_H
#define HTI_BPE_H

#include "common/names.h"

enum { HTI_BPE_SPLITS = 8 };

/* Two neighbours, and what they become. */
typedef struct hti_bpe_pair {
    int32_t left, right, rank, merged;
} hti_bpe_pair;

typedef struct hti_bpe {
    ht_context *ctx;
    hti_names words;     /* the vocabulary as it is written */
    int32_t *ids;        /* [words.count]: token of each */
    int64_t count;       /* tokens; their numbers may have gaps */
    hti_bpe_pair *pairs; /* [slots], left -1: empty */
    int64_t slots;
    int32_t bytes[256]; /* token of each byte, -1: none */
    int by_byte;        /* every byte is a letter; else characters are */
    int whole_first;    /* a part that is a token needs no pairs */
    int cuts;           /* no token has a letter before a space: texts may be cut there */
    void *splits[HTI_BPE_SPLITS];
    int split_count;
    hti_buffer text; /* bytes that the tokens stand for, one after the other */
    size_t *starts;  /* [count + 1]: of each, and the end */
} hti_bpe;

/* ---- read.c ---- */

/* The bytes of a tokenizer.json. */
ht_status hti_bpe_open(hti_bpe **out, ht_context *ctx, const char *json, size_t bytes,
                       const char *path);
void hti_bpe_close(hti_bpe *b);

/* ---- split.c ---- */

/* A regular expression whose matches, and what lies between them, are parts; literal: the text
 * itself is looked for. */
ht_status hti_bpe_add_split(hti_bpe *b, const char *pattern, int literal);
void hti_bpe_free_splits(hti_bpe *b);

/* What is at work on one text, beside others: its memory and its sentences belong to no context. */
typedef struct hti_bpe_work {
    const hti_bpe *bpe;
    void *matches[HTI_BPE_SPLITS];
    hti_buffer symbols, heap; /* merge.c */
    int32_t *tokens;          /* where they go */
    int64_t room, count;      /* count goes on beyond room */
} hti_bpe_work;

ht_status hti_bpe_begin(hti_bpe_work *w, const hti_bpe *b);
void hti_bpe_end(hti_bpe_work *w);
/* Tokens of a text, which are valid characters without NUL. */
ht_status hti_bpe_encode(hti_bpe_work *w, const char *text, size_t bytes);

/* ---- merge.c ---- */

/* Makes room for so many learnt pairs. */
ht_status hti_bpe_make_pairs(hti_bpe *b, int64_t pairs);
/* The first to come for these two stays. */
void hti_bpe_add_pair(hti_bpe *b, const hti_bpe_pair *pair);
/* Tokens of a part of a text. */
ht_status hti_bpe_merge(hti_bpe_work *w, const char *text, size_t bytes);

static inline void hti_bpe_emit(hti_bpe_work *w, int32_t token) {
    if (w->count < w->room) w->tokens[w->count] = token;
    w->count++;
}

#endif
