/*
 * The little of SentencePiece (a C++ library) that a tokenizer needs, as C sees it. Without the
 * library at build time HTI_SENTENCEPIECE is not defined and none of this exists.
 */
#ifndef HTI_SENTENCEPIECE_H
#define HTI_SENTENCEPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hti_spm_kind { HTI_SPM_TEXT, HTI_SPM_BYTE, HTI_SPM_NOTHING } hti_spm_kind;

/* A model file's bytes; NULL: it is no such model, or there was no memory (*starved). */
void *hti_spm_open(const char *bytes, size_t count, bool *starved);
void hti_spm_close(void *model);
int hti_spm_count(const void *model);
/* Piece `id` and what it stands for; a byte is written <0x41>. */
const char *hti_spm_piece(const void *model, int id, hti_spm_kind *kind);
/* Ids of a text, from malloc, *ids NULL if there are none; returns how many, or one of these. */
enum { HTI_SPM_FAILED = -1, HTI_SPM_STARVED = -2 /* there was no memory */ };
int64_t hti_spm_encode(const void *model, const char *text, size_t bytes, int32_t **ids);

#ifdef __cplusplus
}
#endif
#endif
