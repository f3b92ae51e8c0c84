/*
 * CRC-32 as zlib, gzip and PNG have it (Python: zlib.crc32), without a library: the attention's own
 * format has it, and that library needs none.
 */
#ifndef HTI_CRC_H
#define HTI_CRC_H

#include "core/status.h"

/* The sum of what came before (0: nothing) and these bytes. */
HTI_SHARED uint32_t hti_crc32(uint32_t sum, const void *bytes, size_t count);

/* A sealed buffer ends in 8 bytes with the sum of those before them. */
enum { HTI_SEAL = 8 };
HTI_SHARED void hti_seal(void *buffer, size_t bytes); /* writes the last 8 of `bytes` */
HTI_SHARED int hti_sealed(const void *buffer, size_t bytes);

#endif
