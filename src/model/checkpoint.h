/*
 * Weights, and arenas laid out like them, to and from safetensors files.
 */
#ifndef HTI_CHECKPOINT_H
#define HTI_CHECKPOINT_H

#include "model/model.h"
#include "model/safetensors.h"

/* An arena and what is put before its tensors' names. */
typedef struct hti_part {
    const char *prefix;
    void *arena; /* device, wide */
    /* Of an arena that is not all here: `count` numbers from number `at` on, wide, in host memory
     * until the next call; and what to do with such. NULL: all of it is here. */
    ht_status (*get)(void *user, const void **out, int64_t at, int64_t count);
    ht_status (*put)(void *user, const double *x, int64_t at, int64_t count);
    void *user;
} hti_part;
enum { HTI_PART_MOST = 1 << 18 }; /* numbers that `get` is asked for at once */

/* All tensors of the parts in one file, with the settings: the model's, or those it is trained
 * with; note: JSON for the metadata entry "trainer", or NULL. */
ht_status hti_checkpoint_save(const ht_model *model, const ht_config *config, const hti_part *parts,
                              int count, const char *note, const char *path);

/* The configuration in a file that we wrote; everything in it fits the file. */
ht_status hti_checkpoint_config(ht_config *out, const hti_reader *r);
/* Its labels into `out`; it stays empty without them: no classifier, or from before there were any.
 */
ht_status hti_checkpoint_labels(hti_names *out, const hti_reader *r, const ht_config *config);
/* Labels as JSON, to be freed by cJSON_free (NULL: no memory), and back into an empty `out`. */
char *hti_labels_json(const hti_names *labels);
ht_status hti_labels_read(hti_names *out, const hti_reader *r, const char *text, int64_t classes);
/* Does the file hold these parts for parameters like these? */
ht_status hti_checkpoint_check(const hti_reader *r, const hti_params *params, const hti_part *parts,
                               int count);
/* Before anything is changed: are all its tensors what was written, and finite? */
ht_status hti_checkpoint_verify(const hti_reader *r, ht_dtype dtype);
ht_status hti_checkpoint_fill(const hti_reader *r, const ht_model *model, const hti_part *parts,
                              int count);

#endif
