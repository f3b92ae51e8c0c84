/*
 * What number a grey is (model_op.h, hti_amounts_call); shared by both back ends.
 */
#ifndef HTI_AMOUNTS_H
#define HTI_AMOUNTS_H

#include "core/hier.h"

/* Black is -1, white 1. */
HTI_FN double hti_amount(int64_t grey) { return (double)(2 * grey - 255) / 255; }

#endif
