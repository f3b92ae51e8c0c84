/*
 * Which kernels a call of the attention runs on: one list, fastest first (families.c). Host code in
 * C, built where there is no CUDA, too, so that it is tested everywhere.
 */
#ifndef HTI_CUDA_FAMILIES_H
#define HTI_CUDA_FAMILIES_H

#include "op.h"

/* A family has a row in the list and a case in attention.cu. */
typedef enum hti_family {
    HTI_FIRST_ROWS, /* tower/first.cu */
    HTI_NARROW,     /* narrow/ */
    HTI_TUNED,      /* tower/ */
    HTI_FINE,       /* tower/fine_forward.cu, forward only */
    HTI_TILES,      /* tile/ */
    HTI_FULL,       /* full/ */
    HTI_OPEN_TILES, /* open/tiles*.cu */
    HTI_OPENED,     /* open/: all that opens clusters */
    HTI_PADDED,     /* pad.cu: on copies, with the families above */
    HTI_GENERIC     /* generic/: everything */
} hti_family;

/* What a device lends to the kernels, and what some of them ask for. */
typedef struct hti_limits {
    size_t shared_bytes; /* of shared memory that a thread block may ask for */
    /* what the narrow kernels ask for, backward being the larger */
    size_t (*narrow_shared)(int head_dim, int length, int levels);
} hti_limits;

/* Tensors that are not known stand at address 0 and so pass for aligned ones. */
hti_family hti_family_of(const hti_limits *limits, const hti_attention_call *call, int backward);
/* The same; and if a faster family of the same mode was passed over, its name (else NULL) and which
 * condition it was that the call does not meet. */
hti_family hti_family_why(const hti_limits *limits, const hti_attention_call *call, int backward,
                          const char **faster, char *why, size_t bytes);
const char *hti_family_name(hti_family family);

/* Could some call of the plan run forward on the family, as far as the plan says? */
int hti_family_plans(hti_family family, const ht_attention_desc *desc);
/* Would this family take the call, whatever comes before it in the list? */
int hti_family_takes(hti_family family, const hti_limits *limits, const hti_attention_call *call,
                     int backward);

/* A plan with more columns, 16, 32, 64 or 128, that does the same on rows filled up with zeros; 0:
 * there is none. And a call of it: tensors at address 0, side by side. */
int hti_pad_desc(ht_attention_desc *padded, const ht_attention_desc *desc);
void hti_pad_call(hti_attention_call *out, const ht_attention_desc *padded,
                  const hti_attention_call *call);

/* Chunks of 128 rows in the grid's second dimension; a packed batch leaves room between its
 * sequences. */
static inline int hti_chunks_fit(int64_t rows, int64_t sequences, int packed) {
    return (packed ? rows + rows / 8 : rows) / 128 + sequences + 1 < 65535;
}
#define HTI_REACH ((int64_t)1 << 34) /* elements from a tensor's first on, in steps of 8 bytes */

/* The narrow kernels keep the bits of the dropout: not where there would be far more room for short
 * sequences than for rows. */
enum { HTI_NARROW_GROUP = 16, HTI_NARROW_LEVELS = 12, HTI_NARROW_APART = 8 };
int hti_narrow_keeps(const ht_attention_desc *desc);

/* Candidates that a row may have at a level when clusters are opened; most on tensor cores. */
enum { HTI_OPEN_SLOTS = 128 };
static inline int64_t hti_open_slots(const ht_attention_desc *d) {
    return (d->causal ? d->block : d->block + d->block / 2) + 2 * d->open;
}

enum { HTI_FULL_BLOCK = 128 }; /* kind full with a bias: its tables fit beside the tiles */

#endif
