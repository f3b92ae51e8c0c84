/*
 * PNG files without a library: the pixels are stored, not compressed.
 */
#include "draw/grey.h"

#include "base/save.h"

#include <stdlib.h>
#include <string.h>

static void put4(uint8_t *to, uint32_t x) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(x >> (24 - 8 * i));
}

static uint32_t crc32(const uint8_t *bytes, size_t count) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

static uint32_t adler32(const uint8_t *bytes, size_t count) {
    uint32_t a = 1, b = 0;
    for (size_t i = 0; i < count; i++) {
        a = (a + bytes[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

/* A chunk: length, name, data, sum of name and data. Its data lie behind name already. */
static size_t end_chunk(uint8_t *at, const char *name, size_t bytes) {
    put4(at, (uint32_t)bytes);
    memcpy(at + 4, name, 4);
    put4(at + 8 + bytes, crc32(at + 4, bytes + 4));
    return bytes + 12;
}

/* zlib's format with blocks that are stored; returns its bytes. */
static size_t store(uint8_t *to, const uint8_t *from, size_t count) {
    size_t at = 2;
    to[0] = 0x78, to[1] = 0x01;
    for (size_t done = 0; done < count || done == 0;) {
        size_t n = count - done < 65535 ? count - done : 65535;
        to[at++] = done + n == count;
        to[at++] = (uint8_t)n, to[at++] = (uint8_t)(n >> 8);
        to[at++] = (uint8_t)~n, to[at++] = (uint8_t)(~n >> 8);
        memcpy(to + at, from + done, n);
        at += n, done += n;
    }
    put4(to + at, adler32(from, count));
    return at + 4;
}

bool grey_write(const char *path, const uint8_t *pixels, int height, int width, int scale,
                cli_error *error) {
    static const uint8_t magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    size_t h = (size_t)height * (size_t)scale, w = (size_t)width * (size_t)scale;
    size_t raw = h * (w + 1), room = raw + raw / 65535 * 5 + 256, at = sizeof magic;
    uint8_t *rows = malloc(raw), *file = calloc(1, room);
    save_file save = {0};
    bool good = (rows && file) || cli_fail(error, "out of memory");
    if (good) {
        for (size_t y = 0; y < h; y++) {
            rows[y * (w + 1)] = 0; /* no filter */
            for (size_t x = 0; x < w; x++)
                rows[y * (w + 1) + 1 + x] =
                    pixels[y / (size_t)scale * (size_t)width + x / (size_t)scale];
        }
        memcpy(file, magic, sizeof magic);
        put4(file + at + 8, (uint32_t)w);
        put4(file + at + 12, (uint32_t)h);
        file[at + 16] = 8; /* bits; colour type 0: grey */
        at += end_chunk(file + at, "IHDR", 13);
        at += end_chunk(file + at, "IDAT", store(file + at + 8, rows, raw));
        at += end_chunk(file + at, "IEND", 0);
    }
    good = good && save_open(&save, path, error) && save_write(&save, file, at, error) &&
           save_finish(&save, error) && save_commit(&save, error);
    save_discard(&save);
    free(rows);
    free(file);
    return good;
}

void grey_print(FILE *out, const uint8_t *pixels, int height, int width) {
    static const char ramp[] = " .:-=+*#%@";
    int step = width > 64 ? (width + 127) / 128 : 1; /* letters are twice as high as wide */
    int across = width > 64 ? 1 : 2;
    for (int y = 0; y < height; y += across == 2 ? 1 : 2 * step) {
        for (int x = 0; x < width; x += step) {
            int most = 0;
            for (int v = y; v < y + (across == 2 ? 1 : 2 * step) && v < height; v++)
                for (int u = x; u < x + step && u < width; u++)
                    if (pixels[v * width + u] > most) most = pixels[v * width + u];
            for (int i = 0; i < across; i++) fputc(ramp[most * 9 / 255], out);
        }
        fputc('\n', out);
    }
}
