/*
 * Paddles of Pathfinder as small pictures of bytes: a line drawn `scale` times too large, then made
 * smaller with Lanczos' filter.
 */
#ifndef HTI_DATA_LRA_STAMP_H
#define HTI_DATA_LRA_STAMP_H

#include <stdint.h>

enum { HTI_STAMP_SIDE = 24, HTI_CANVAS_SIDE = 64 };

typedef struct hti_paddle {
    int length, thickness_up; /* pixels; thickness rounded up */
    int margin, scale;
    int width; /* of the enlarged line */
} hti_paddle;

typedef struct hti_stamp {
    int half;                                       /* the middle; side 2 half + 1 */
    uint8_t stroke[HTI_STAMP_SIDE][HTI_STAMP_SIDE]; /* what is seen */
    uint8_t mask[HTI_STAMP_SIDE][HTI_STAMP_SIDE]; /* what is taken: the line grown by the margin */
} hti_stamp;

/* The paddle that starts in the middle and goes `length` in direction `angle`. */
void hti_stamp_draw(hti_stamp *out, const hti_paddle *p, double angle);

/* The step from an integer point: y + *dy = ceil(y + d sin angle), x likewise. `from` is such a y:
 * what is a rounding error away from an integer is taken for it the better the larger y. */
void hti_stamp_move(int *dy, int *dx, int from, double angle, double d);

/* One output of Lanczos' filter (a = 3) from `in` samples to `out`: first sample, count, weights in
 * units of 2^-22. */
enum { HTI_LANCZOS_TAPS = 16, HTI_LANCZOS_BITS = 22 };
typedef struct hti_lanczos {
    int first, count;
    int32_t weight[HTI_LANCZOS_TAPS];
} hti_lanczos;
hti_lanczos hti_lanczos_at(int in, int out, int index);

/* A sum of bytes times weights as a byte. */
static inline uint8_t hti_lanczos_byte(int64_t sum) {
    int64_t x = (sum + ((int64_t)1 << (HTI_LANCZOS_BITS - 1))) >> HTI_LANCZOS_BITS;
    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

#endif
