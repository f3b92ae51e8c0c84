/*
 * CRC-32, eight bytes at a time: table[k][b] is what byte b does to the sum k bytes further on.
 */
#include "core/crc.h"

#include <stdatomic.h>
#include <string.h>

static uint32_t table[8][256];
static atomic_int state; /* 0: not made, 1: being made, 2: made */

static void make_table(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t x = b;
        for (int bit = 0; bit < 8; bit++) x = x >> 1 ^ (x & 1 ? 0xEDB88320u : 0);
        table[0][b] = x;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

/* By the first thread that comes; it takes microseconds, so that others just look again. */
static void need_table(void) {
    int none = 0;
    if (atomic_load(&state) == 2) return;
    if (atomic_compare_exchange_strong(&state, &none, 1)) {
        make_table();
        atomic_store(&state, 2);
    }
    while (atomic_load(&state) != 2) continue;
}

uint32_t hti_crc32(uint32_t sum, const void *bytes, size_t count) {
    const unsigned char *b = bytes;
    need_table();
    sum = ~sum;
    for (; count >= 8; count -= 8, b += 8) {
        sum ^= (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        sum = table[7][sum & 255] ^ table[6][sum >> 8 & 255] ^ table[5][sum >> 16 & 255] ^
              table[4][sum >> 24] ^ table[3][b[4]] ^ table[2][b[5]] ^ table[1][b[6]] ^
              table[0][b[7]];
    }
    for (; count > 0; count--, b++) sum = sum >> 8 ^ table[0][(sum ^ *b) & 255];
    return ~sum;
}

void hti_seal(void *buffer, size_t bytes) {
    uint64_t sum = hti_crc32(0, buffer, bytes - HTI_SEAL);
    memcpy((char *)buffer + bytes - HTI_SEAL, &sum, HTI_SEAL);
}

int hti_sealed(const void *buffer, size_t bytes) {
    uint64_t sum;
    if (bytes < HTI_SEAL) return 0;
    memcpy(&sum, (const char *)buffer + bytes - HTI_SEAL, HTI_SEAL);
    return sum == hti_crc32(0, buffer, bytes - HTI_SEAL);
}
