/*
 * The generator of Pathfinder images (Linsley et al. 2018) as the Long Range Arena ran it.
 *
 * A snake is a row of paddles (short strokes) with gaps. All angles that occur are known: 360 whole
 * degrees for the first paddle, and the directions from a pivot to the pixels of a circle around it
 * for the others. So every paddle is one of a few hundred stamps, and what depends on two
 * directions is a table. Taken space is a picture M of bytes (255: taken) with a rim of zeros,
 * which stand for "outside, does not count".
 */
#include "data/lra/pathfinder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/lra/dice.h"
#include "data/lra/stamp.h"

enum {
    DEGREES = 360,
    CIRCLE = 64, /* most pixels of a circle */
    DIRECTIONS = DEGREES + CIRCLE,
    MARGINS = 2,
    RIM = 16, /* zeros around M */
    SIDE = 128,
    STRIDE = SIDE + 2 * RIM,
    CELLS = STRIDE * STRIDE,
    PADDLES = 14,        /* of a target snake */
    SHORT = 4,           /* of a distractor */
    FREE = 76,           /* M <= 0.3 */
    COLLISION = 459,     /* M + new mask >= 1.8 */
    SEED_TRIES = 3,      /* draws of a first paddle, */
    PADDLE_TRIES = 3,    /* of the next one, */
    DISTRACTOR_TRIES = 5 /* and of a whole distractor */
};

/* What the benchmark set for its two sizes. */
typedef struct setting {
    int side, length, thickness_up, width, margins[MARGINS], seed_distance, distractors;
    double continuity, radius, snake_contrast, paddle_contrast;
} setting;
static const setting settings[] = {
    {32, 2, 1, 1, {1, 1}, 7, 5, 1.0, 1.5, 2.0, 0.75},
    {128, 5, 2, 3, {2, 3}, 20, 8, 1.8, 3.0, 0.9, 1.0},
};
enum { SCALE = 2, MIDDLE = 64 }; /* how much larger things are drawn; some pixel */

typedef struct pixel {
    int16_t offset; /* in M, from the stamp's middle */
    int8_t y, x;
    uint8_t value;
} pixel;

/* A direction: the paddle that belongs to it and what follows from it. */
typedef struct way {
    hti_stamp stamp;
    int top, bottom; /* its mask's rows */
    int hard, cells; /* entries of at[]; the first `hard` can collide */
    pixel at[HTI_STAMP_SIDE * HTI_STAMP_SIDE];
    int head_y, head_x;     /* first paddle: from tail to head, */
    int pivot_y, pivot_x;   /* and from tail to pivot */
    int next_y, next_x;     /* from a pivot to the next one */
    int choices;            /* next directions that are not too sharp, */
    uint8_t choice[CIRCLE]; /* as numbers in the circle, */
    double weight[CIRCLE];  /* and how likely */
    int cores;              /* pixels that a first paddle surely covers, from its tail */
    int16_t core[HTI_STAMP_SIDE * HTI_STAMP_SIDE];
    int starts; /* tails of a first snake: pixels y * side + x */
    int16_t *start;
} way;

typedef struct table {
    int margin, circle;
    int8_t y[CIRCLE], x[CIRCLE]; /* circle around a pivot */
    int discs;
    int16_t disc[64]; /* offsets in M within the margin */
    way ways[DIRECTIONS];
} table;

struct hti_pathfinder {
    setting set;
    uint8_t rim[CELLS]; /* M at the start: its outermost pixels are taken */
    hti_lanczos filter[SIDE];
    int16_t *starts;
    table tables[MARGINS];
};

static int cell(int y, int x) { return (y + RIM) * STRIDE + x + RIM; }
static int inside(const hti_pathfinder *p, int y, int x) {
    return y >= 0 && x >= 0 && y < p->set.side && x < p->set.side;
}

/* ---- tables ---- */

static const double pi = 3.14159265358979323846;

static double flip(double angle) { return angle < 0 ? angle + pi : angle - pi; }

/* Unique pixels of the circle, one point per pixel of its length. */
static void make_circle(table *t, double radius) {
    int points = (int)ceil(2 * pi * radius);
    for (int i = 0; i < points; i++) {
        double angle = i / radius;
        int y = (int)floor(radius * sin(angle)), x = (int)floor(radius * cos(angle)), known = 0;
        for (int k = 0; k < t->circle; k++) known |= t->y[k] == y && t->x[k] == x;
        if (known || (y == 0 && x == 0) || t->circle == CIRCLE) continue;
        t->y[t->circle] = (int8_t)y;
        t->x[t->circle++] = (int8_t)x;
    }
}

static double angle_of(const table *t, int direction) {
    if (direction < DEGREES) return (direction - 180) * pi / 180;
    return atan2(t->y[direction - DEGREES], t->x[direction - DEGREES]);
}

static void list_pixels(way *w) {
    int half = w->stamp.half;
    w->top = 2 * half;
    for (int hard = 1; hard >= 0; hard--) {
        for (int y = -half; y <= half; y++)
            for (int x = -half; x <= half; x++) {
                int value = w->stamp.mask[y + half][x + half];
                if (value == 0 || (value + 255 >= COLLISION) != hard) continue;
                if (y + half < w->top) w->top = y + half;
                if (y + half > w->bottom) w->bottom = y + half;
                w->at[w->cells++] =
                    (pixel){(int16_t)(y * STRIDE + x), (int8_t)y, (int8_t)x, (uint8_t)value};
            }
        if (hard) w->hard = w->cells;
    }
}

/* The kernel that a first paddle is placed with is drawn one pixel off its middle, and cut. */
static void list_cores(way *w, int reach) {
    for (int i = 0; i < w->cells; i++) {
        int y = w->at[i].y + 1, x = w->at[i].x + 1;
        if (w->at[i].value == 255 && abs(y) <= reach && abs(x) <= reach)
            w->core[w->cores++] = (int16_t)(y * STRIDE + x);
    }
}

static void list_choices(way *w, const table *t, double angle, double continuity) {
    for (int i = 0; i < t->circle; i++) {
        double turn = fabs(angle_of(t, DEGREES + i) - angle);
        if (turn > pi) turn = 2 * pi - turn;
        if (continuity * turn >= pi / 2) continue;
        w->choice[w->choices] = (uint8_t)i;
        w->weight[w->choices++] = pow(cos(continuity * turn), 2);
    }
}

static void make_way(const hti_pathfinder *p, table *t, int direction) {
    const setting *s = &p->set;
    way *w = &t->ways[direction];
    double angle = angle_of(t, direction);
    hti_paddle paddle = {s->length, s->thickness_up, t->margin, SCALE, s->width};
    int dy, dx;
    hti_stamp_draw(&w->stamp, &paddle, direction < DEGREES ? angle : flip(angle));
    list_pixels(w);
    list_cores(w, s->length + t->margin);
    list_choices(w, t, angle, s->continuity);
    hti_stamp_move(&w->head_y, &w->head_x, MIDDLE, angle, s->length);
    hti_stamp_move(&dy, &dx, MIDDLE, flip(angle), s->length + t->margin);
    w->pivot_y = w->head_y + dy;
    w->pivot_x = w->head_x + dx;
    hti_stamp_move(&w->next_y, &w->next_x, MIDDLE, angle, s->length + 2 * t->margin);
}

/* Pixels where the cores meet nothing taken in M; returns how many. */
static int find_free(int16_t *out, const hti_pathfinder *p, const uint8_t *m, const way *w) {
    int count = 0, side = p->set.side;
    for (int y = 0; y < side; y++) {
        uint8_t most[SIDE] = {0};
        const uint8_t *row = m + cell(y, 0);
        for (int i = 0; i < w->cores; i++) {
            const uint8_t *from = row + w->core[i];
            for (int x = 0; x < side; x++) most[x] = most[x] > from[x] ? most[x] : from[x];
        }
        for (int x = 0; x < side; x++)
            if (most[x] <= FREE) out[count++] = (int16_t)(y * side + x);
    }
    return count;
}

/* A first snake starts away from the border: where, depends on its direction alone. */
static int16_t *find_starts(hti_pathfinder *p, way *w, int16_t *room) {
    uint8_t m[CELLS] = {0};
    int border = 2 * p->set.seed_distance, side = p->set.side;
    for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++)
            if (y < border || x < border || y >= side - border || x >= side - border)
                m[cell(y, x)] = 255;
    w->start = room;
    w->starts = find_free(room, p, m, w);
    return room + w->starts;
}

static void make_table(hti_pathfinder *p, table *t, int margin) {
    t->margin = margin;
    make_circle(t, p->set.length + margin);
    for (int y = -margin; y <= margin; y++)
        for (int x = -margin; x <= margin; x++)
            if (y * y + x * x <= margin * margin) t->disc[t->discs++] = (int16_t)(y * STRIDE + x);
    for (int i = 0; i < DEGREES + t->circle; i++) make_way(p, t, i);
}

ht_status hti_pathfinder_create(hti_pathfinder **out, ht_context *ctx, int side, int distractors) {
    *out = NULL;
    const setting *set = side == 32 ? &settings[0] : side == 128 ? &settings[1] : NULL;
    CHECK(ctx, set, HT_INVALID, "Pathfinder images are made of 32 or 128 pixels a side, got %d",
          side);
    hti_pathfinder *p = hti_host_alloc(ctx, sizeof *p);
    size_t room = (size_t)MARGINS * DEGREES * (size_t)(side * side) * sizeof *p->starts;
    int16_t *starts = p ? hti_host_alloc(ctx, room) : NULL;
    if (!starts) hti_host_free(ctx, p);
    CHECK(ctx, starts, HT_NOMEM, "out of memory: %zu bytes to make images", sizeof *p + room);
    memset(p, 0, sizeof *p);
    p->set = *set;
    p->starts = starts;
    if (distractors) p->set.distractors = distractors;
    for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++)
            p->rim[cell(y, x)] = y == 0 || x == 0 || y == side - 1 || x == side - 1 ? 255 : 0;
    for (int i = 0; i < side; i++) p->filter[i] = hti_lanczos_at(SCALE * side, side, i);
    for (int i = 0; i < MARGINS; i++) {
        make_table(p, &p->tables[i], set->margins[i]);
        for (int d = 0; d < DEGREES; d++) starts = find_starts(p, &p->tables[i].ways[d], starts);
    }
    *out = p;
    return HT_OK;
}

void hti_pathfinder_destroy(ht_context *ctx, hti_pathfinder *p) {
    if (p) hti_host_free(ctx, p->starts);
    hti_host_free(ctx, p);
}

/* ---- snakes ---- */

typedef struct paddle {
    int16_t y, x; /* where it starts */
    int16_t direction;
} paddle;

typedef struct snake {
    int count;
    paddle at[PADDLES];
    int pivot_y, pivot_x;
} snake;

typedef struct maker {
    const hti_pathfinder *p;
    const table *t;
    hti_dice dice;
    uint8_t m[CELLS], work[CELLS];
    int16_t free[SIDE * SIDE];
} maker;

/* M becomes the larger of itself and the paddle's mask. */
static void take(const hti_pathfinder *p, const table *t, uint8_t *m, const paddle *at) {
    const way *w = &t->ways[at->direction];
    int half = w->stamp.half, side = p->set.side;
    if (at->y >= half && at->x >= half && at->y + half < side && at->x + half < side) {
        for (int y = w->top; y <= w->bottom; y++) {
            uint8_t *row = m + cell(at->y + y - half, at->x - half);
            const uint8_t *mask = w->stamp.mask[y]; /* zeros behind the stamp change nothing */
            for (int x = 0; x < HTI_STAMP_SIDE; x++) row[x] = row[x] > mask[x] ? row[x] : mask[x];
        }
        return;
    }
    for (int i = 0; i < w->cells; i++) { /* cut at the border */
        const pixel *c = &w->at[i];
        if (!inside(p, at->y + c->y, at->x + c->x)) continue;
        uint8_t *here = m + cell(at->y, at->x) + c->offset;
        if (*here < c->value) *here = c->value;
    }
}

static int collides(const table *t, const uint8_t *m, const paddle *at) {
    const way *w = &t->ways[at->direction];
    const uint8_t *base = m + cell(at->y, at->x);
    for (int i = 0; i < w->hard; i++) /* outside M is 0, and a mask alone is at most 255 */
        if (base[w->at[i].offset] + w->at[i].value >= COLLISION) return 1;
    return 0;
}

/* The first paddle: 0 if its head or pivot is outside. */
static int begin(const maker *k, snake *s, int y, int x, int direction) {
    const way *w = &k->t->ways[direction];
    s->count = 1;
    s->at[0] = (paddle){(int16_t)y, (int16_t)x, (int16_t)direction};
    s->pivot_y = y + w->pivot_y;
    s->pivot_x = x + w->pivot_x;
    return inside(k->p, y, x) && inside(k->p, y + w->head_y, x + w->head_x) &&
           inside(k->p, s->pivot_y, s->pivot_x);
}

/* One more paddle; the one before it is taken in M only now. Returns 0 if there is no room. */
static int extend(maker *k, snake *s, uint8_t *m) {
    const table *t = k->t;
    const paddle *last = &s->at[s->count - 1];
    const way *w = &t->ways[last->direction];
    int qy = s->pivot_y + w->next_y, qx = s->pivot_x + w->next_x, count = 0, chosen[CIRCLE];
    double sums[CIRCLE], total = 0;
    for (int i = 0; i < w->choices; i++) {
        int y = qy + t->y[w->choice[i]], x = qx + t->x[w->choice[i]], most = 0;
        if (!inside(k->p, y, x)) continue;
        const uint8_t *at = m + cell(y, x);
        for (int d = 0; d < t->discs; d++) most = at[t->disc[d]] > most ? at[t->disc[d]] : most;
        if (most == 255) continue;
        total += w->weight[i] * (255 - most) / 255;
        chosen[count] = w->choice[i];
        sums[count++] = total;
    }
    if (total < 1e-4) return 0;
    for (int try = 0; try < PADDLE_TRIES; try++) {
        double u = hti_roll_unit(&k->dice) * total;
        int i = 0;
        while (i + 1 < count && sums[i] <= u) i++;
        paddle next = {(int16_t)(qy + t->y[chosen[i]]), (int16_t)(qx + t->x[chosen[i]]),
                       (int16_t)(DEGREES + chosen[i])};
        if (collides(t, m, &next)) continue;
        take(k->p, t, m, last);
        s->at[s->count++] = next;
        s->pivot_y = qy;
        s->pivot_x = qx;
        return 1;
    }
    return 0;
}

/* ---- an image ---- */

static int begin_first(maker *k, snake *s) {
    for (int try = 0; try < SEED_TRIES; try++) {
        int direction = hti_roll_below(&k->dice, DEGREES), side = k->p->set.side;
        const way *w = &k->t->ways[direction];
        if (w->starts == 0) return 0;
        int at = w->start[hti_roll_below(&k->dice, w->starts)];
        if (begin(k, s, at / side, at % side, direction)) return 1;
    }
    return 0;
}

static int begin_second(maker *k, snake *s, const snake *first) {
    for (int try = 0; try < SEED_TRIES; try++) {
        int direction = hti_roll_below(&k->dice, DEGREES);
        double angle = hti_roll_below(&k->dice, DEGREES) * pi / 180, d = k->p->set.seed_distance;
        int y = (int)nearbyint(first->at[0].y + d * sin(angle));
        int x = (int)nearbyint(first->at[0].x + d * cos(angle));
        if (begin(k, s, y, x, direction)) return 1;
    }
    return 0;
}

/* Two long snakes, or 0; then M is of no use. */
static int make_targets(maker *k, snake targets[2]) {
    memcpy(k->m, k->p->rim, sizeof k->m);
    if (!begin_first(k, &targets[0]) || !begin_second(k, &targets[1], &targets[0])) return 0;
    for (int i = 1; i < PADDLES; i++)
        if (!extend(k, &targets[0], k->m) || !extend(k, &targets[1], k->m)) return 0;
    take(k->p, k->t, k->m, &targets[1].at[PADDLES - 1]); /* not that of the first: as it was */
    return 1;
}

static int enough_room(const maker *k) {
    int free = 0, side = k->p->set.side;
    for (int y = 0; y < side; y++) {
        for (int x = 0; x < side; x++) free += k->m[cell(y, x)] <= FREE;
        if (100 * free >= side * side) return 1;
    }
    return 0;
}

/* A pixel drawn from those that find_free lists: guesses first, as most of them are good; then the
 * list. -1: there is none. */
static int draw_free(maker *k, const way *w) {
    int side = k->p->set.side;
    for (int try = 0; try < 32; try++) {
        int at = hti_roll_below(&k->dice, side * side), i = 0;
        const uint8_t *here = k->m + cell(at / side, at % side);
        while (i < w->cores && here[w->core[i]] <= FREE) i++;
        if (i == w->cores) return at;
    }
    int count = find_free(k->free, k->p, k->m, w);
    return count ? k->free[hti_roll_below(&k->dice, count)] : -1;
}

static int begin_distractor(maker *k, snake *s) {
    for (int try = 0; try < SEED_TRIES; try++) {
        int direction = hti_roll_below(&k->dice, DEGREES), side = k->p->set.side;
        int at = draw_free(k, &k->t->ways[direction]);
        if (at < 0) return 0;
        if (begin(k, s, at / side, at % side, direction)) return 1;
    }
    return 0;
}

/* One try of a short snake; M has it afterwards if it succeeds. */
static int make_distractor(maker *k, snake *s) {
    if (!enough_room(k) || !begin_distractor(k, s)) return 0;
    memcpy(k->work, k->m, sizeof k->work);
    for (int i = 1; i < SHORT; i++)
        if (!extend(k, s, k->work)) return 0;
    memcpy(k->m, k->work, sizeof k->m);
    take(k->p, k->t, k->m, &s->at[SHORT - 1]);
    return 1;
}

static void draw_snake(const maker *k, float *image, const snake *s, double contrast) {
    int side = k->p->set.side;
    for (int i = 0; i < s->count; i++) {
        const hti_stamp *stamp = &k->t->ways[s->at[i].direction].stamp;
        for (int dy = -stamp->half; dy <= stamp->half; dy++)
            for (int dx = -stamp->half; dx <= stamp->half; dx++) {
                int y = s->at[i].y + dy, x = s->at[i].x + dx;
                if (!inside(k->p, y, x)) continue;
                float value =
                    (float)(stamp->stroke[dy + stamp->half][dx + stamp->half] * contrast / 255);
                if (image[y * side + x] < value) image[y * side + x] = value;
            }
    }
}

/* A dot: a disc on the larger canvas, made smaller as everything is. Touches what is near. */
static void draw_dot(const hti_pathfinder *p, float *image, int cy, int cx) {
    int side = p->set.side, radius = (int)(p->set.radius * SCALE), reach = radius / SCALE + 4;
    uint8_t rows[2 * 16 + 1][SIDE];
    int first = SCALE * cy - radius, last = SCALE * cy + radius;
    if (first < 0) first = 0;
    if (last >= SCALE * side) last = SCALE * side - 1;
    int left = cx - reach > 0 ? cx - reach : 0;
    int right = cx + reach < side - 1 ? cx + reach : side - 1;
    for (int v = first; v <= last; v++)
        for (int x = left; x <= right; x++) {
            const hti_lanczos *f = &p->filter[x];
            int64_t sum = 0;
            for (int i = 0; i < f->count; i++) {
                int dx = f->first + i - SCALE * cx, dy = v - SCALE * cy;
                if (dx * dx + dy * dy <= radius * radius) sum += (int64_t)255 * f->weight[i];
            }
            rows[v - first][x] = hti_lanczos_byte(sum);
        }
    for (int y = cy - reach > 0 ? cy - reach : 0; y <= cy + reach && y < side; y++)
        for (int x = left; x <= right; x++) {
            const hti_lanczos *f = &p->filter[y];
            int64_t sum = 0;
            for (int i = 0; i < f->count; i++) {
                int v = f->first + i;
                if (v >= first && v <= last) sum += (int64_t)rows[v - first][x] * f->weight[i];
            }
            float value = hti_lanczos_byte(sum) / 255.0f;
            if (image[y * side + x] < value) image[y * side + x] = value;
        }
}

/* From [least, most] to 0 ... 255. */
static void save(uint8_t *pixels, const float *image, int count, hti_pathfinder_stats *stats) {
    float least = image[0], most = image[0];
    for (int i = 1; i < count; i++) {
        if (image[i] < least) least = image[i];
        if (image[i] > most) most = image[i];
    }
    for (int i = 0; i < count; i++) {
        pixels[i] = (uint8_t)((double)(image[i] - least) * 255 / (double)(most - least) + 0.5);
        stats->nonzero += pixels[i] != 0;
        stats->brightness += pixels[i];
    }
}

int hti_pathfinder_make(const hti_pathfinder *p, uint8_t *pixels, uint64_t seed, int part,
                        int64_t index, hti_pathfinder_stats *stats) {
    maker k;
    float image[SIDE * SIDE];
    snake targets[2], distractor;
    int side = p->set.side;
    k.p = p;
    k.dice = hti_dice_of(seed, (uint64_t)index, 0x9A7F0u + (uint32_t)part);
    int label = hti_roll_below(&k.dice, 2);
    k.t = &p->tables[hti_roll_below(&k.dice, MARGINS)];
    memset(image, 0, sizeof *image * (size_t)(side * side));
    do stats->attempts++;
    while (!make_targets(&k, targets));
    double contrast = p->set.snake_contrast;
    for (int i = 0; i < 2; i++)
        draw_snake(&k, image, &targets[i], contrast * p->set.paddle_contrast);
    for (int i = 0; i < p->set.distractors; i++)
        for (int try = 0; try < DISTRACTOR_TRIES; try++) {
            if (!make_distractor(&k, &distractor)) continue;
            draw_snake(&k, image, &distractor, contrast);
            stats->distractors++;
            break;
        }
    int from = hti_roll_below(&k.dice, 2), to = label ? from : 1 - from;
    draw_dot(p, image, targets[from].at[0].y, targets[from].at[0].x);
    draw_dot(p, image, targets[to].at[PADDLES - 1].y, targets[to].at[PADDLES - 1].x);
    save(pixels, image, side * side, stats);
    stats->images++;
    stats->positive += label;
    return label;
}

void hti_pathfinder_batch(const ht_context *ctx, const hti_pathfinder *p, uint8_t *out,
                          int32_t *labels, uint64_t seed, int part, int64_t first, int64_t count,
                          hti_pathfinder_stats *stats) {
    int64_t bytes = (int64_t)p->set.side * p->set.side, step = bytes + (labels == NULL);
    int64_t images = 0, positive = 0, attempts = 0, placed = 0, nonzero = 0, brightness = 0;
#pragma omp parallel for schedule(dynamic) num_threads(ctx->threads) \
    reduction(+ : images, positive, attempts, placed, nonzero, brightness)
    for (int64_t i = 0; i < count; i++) {
        hti_pathfinder_stats s = {0};
        uint8_t *to = out + i * step;
        int label = hti_pathfinder_make(p, to + (labels == NULL), seed, part, first + i, &s);
        if (labels)
            labels[i] = label;
        else
            *to = (uint8_t)label;
        images += s.images, positive += s.positive, attempts += s.attempts;
        placed += s.distractors, nonzero += s.nonzero, brightness += s.brightness;
    }
    hti_pathfinder_stats sum = {images, positive, attempts, placed, nonzero, brightness};
    stats->images += sum.images, stats->positive += sum.positive, stats->attempts += sum.attempts;
    stats->distractors += sum.distractors, stats->nonzero += sum.nonzero;
    stats->brightness += sum.brightness;
}
