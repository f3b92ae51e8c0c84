/*
 * Structs that begin with their size. A program may have been built for an older library, with
 * fewer fields, or for a newer one, with more; docs/api.md has the promise. A public function takes
 * such a struct as a full copy of its own (HTI_TAKE); one that it fills is looked at before
 * anything else (HTI_WANT) and filled as far as the caller knows it (HTI_GIVE).
 */
#ifndef HTI_SIZED_H
#define HTI_SIZED_H

#include <stddef.h>

#include "core/status.h"

/* The last field that no call can do without: a struct that ends before it is refused. Never
 * changed, as programs with structs of that size may exist. */
#define HTI_LAST_ht_context_desc device
#define HTI_LAST_ht_device_info available
#define HTI_LAST_ht_attention_desc max_rows
#define HTI_LAST_ht_attention_need saved
#define HTI_LAST_ht_attention_args out
#define HTI_LAST_ht_attention_grads dv
#define HTI_LAST_ht_key_info owner
#define HTI_LAST_ht_batch targets
#define HTI_LAST_ht_data_desc path
#define HTI_LAST_ht_data_info items
#define HTI_LAST_ht_set_desc folder
#define HTI_LAST_ht_set_info items
#define HTI_LAST_ht_tensor_info shape
#define HTI_LAST_ht_generator_desc slots
#define HTI_LAST_ht_state_info position
#define HTI_LAST_ht_sampling repeat_penalty
#define HTI_LAST_ht_trainer_desc config
#define HTI_LAST_ht_report loss
#define HTI_LAST_ht_train_desc train
#define HTI_LAST_ht_place ranks
#define HTI_LAST_ht_rows_desc path
#define HTI_LAST_ht_rows_info rows
#define HTI_LAST_ht_resume_info step
#define HTI_LAST_ht_kernels_info name
#define HTI_LAST_ht_linear_info items

typedef struct hti_sized {
    const char *name;
    size_t least, full; /* bytes: up to that field, and as this library has it */
} hti_sized;

#define HTI_SIZED(type)                                                                         \
    (&(const hti_sized){#type,                                                                  \
                        offsetof(type, HTI_LAST_##type) + sizeof(((type *)0)->HTI_LAST_##type), \
                        sizeof(type)})

/* *ours = what the caller has set, zero where it does not know a field. Refused: NULL, a size that
 * cannot be, and a field that is set and not known here. */
#define HTI_TAKE(ctx, type, ours, theirs) \
    hti_sized_take((ctx), HTI_SIZED(type), (1 ? (ours) : (type *)0), (theirs))
/* Can *theirs be filled? */
#define HTI_WANT(ctx, type, theirs) hti_sized_want((ctx), HTI_SIZED(type), (theirs))
/* Fills it; what the caller knows and this library does not is zero. */
#define HTI_GIVE(type, theirs, ours) \
    hti_sized_give(HTI_SIZED(type), (theirs), (1 ? (ours) : (type *)0))

HTI_SHARED ht_status hti_sized_take(const ht_context *ctx, const hti_sized *s, void *ours,
                                    const void *theirs);
HTI_SHARED ht_status hti_sized_want(const ht_context *ctx, const hti_sized *s, const void *theirs);
HTI_SHARED void hti_sized_give(const hti_sized *s, void *theirs, const void *ours);

#endif
