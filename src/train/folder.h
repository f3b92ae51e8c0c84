/*
 * The checkpoints of a run folder.
 */
#ifndef HTI_FOLDER_H
#define HTI_FOLDER_H

#include "train/trainer.h"

/* step-N.safetensors of this step, read back before older ones than the `keep` last go. */
ht_status hti_folder_save(const ht_trainer *t, const ht_data *data, const char *folder);

#endif
