/*
 * The checkpoints of a run folder.
 */
#ifndef HTI_FOLDER_H
#define HTI_FOLDER_H

#include "train/trainer.h"

/* step-N.safetensors of this step, read back before older ones than the `keep` last go. Ranks that
 * shard their moments all call it; else rank 0 does. */
ht_status hti_folder_save(const ht_trainer *t, const ht_data *data, const char *folder);

#endif
