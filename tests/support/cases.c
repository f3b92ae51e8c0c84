/*
 * The lists of cases, and their text form.
 */
#include "cases.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

const test_case case_ways[] = {
    CASE(.query = HT_QUERY_MEAN),
    CASE(.query = HT_QUERY_FIRST),
    CASE(.query = HT_QUERY_FIRST, .causal = 1),
    CASE(.query = HT_QUERY_FINE),
    CASE(.query = HT_QUERY_FINE, .causal = 1),
    CASE(.kind = HT_FULL, .query = HT_QUERY_MEAN), /* these two have no coarse queries: the */
    CASE(.kind = HT_FULL, .query = HT_QUERY_MEAN, .causal = 1), /* mode must not matter */
    CASE(.kind = HT_LOCAL, .query = HT_QUERY_FIRST),
    CASE(.kind = HT_LOCAL, .query = HT_QUERY_FINE, .causal = 1),
    CASE(.query = HT_QUERY_FINE, .open = 2, .leaf = 4),
    CASE(.query = HT_QUERY_FINE, .causal = 1, .open = 3),
};
const size_t case_all_way_count = COUNT(case_ways), case_way_count = COUNT(case_ways) - 2;

/* ---- random numbers ---------------------------------------------------------------------- */

uint64_t test_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int64_t test_random_below(uint64_t *state, int64_t n) {
    return (int64_t)(test_random(state) % (uint64_t)n);
}

double test_random_normal(uint64_t *state) {
    double a = ((double)(test_random(state) >> 11) + 1) * 0x1p-53;
    double b = (double)(test_random(state) >> 11) * 0x1p-53;
    return sqrt(-2 * log(a)) * cos(6.283185307179586 * b);
}

/* ---- text -------------------------------------------------------------------------------- */

typedef struct field {
    const char *name;
    size_t offset;
    int64_t value; /* the default */
} field;

static const field fields[] = {
#define CASE_FIELD(name, value) {#name, offsetof(test_case, name), value},
    CASE_FIELDS(CASE_FIELD)
#undef CASE_FIELD
};

static int64_t *member(const test_case *c, const field *f) {
    return (int64_t *)((char *)(uintptr_t)c + f->offset);
}

void case_print(char *text, size_t bytes, const test_case *c) {
    size_t used = 0;
    text[0] = 0;
    for (const field *f = fields; f < fields + COUNT(fields); f++) {
        int64_t value = *member(c, f);
        if (value == f->value && f != fields) continue;
        int n =
            snprintf(text + used, bytes - used, "%s%s=%" PRId64, used ? "," : "", f->name, value);
        if (n < 0 || used + (size_t)n >= bytes) return;
        used += (size_t)n;
    }
}

int case_parse(test_case *c, const char *text) {
    *c = CASE(.seed = 1);
    while (*text) {
        size_t name = strcspn(text, "="), all = strcspn(text, ",");
        const field *f = fields;
        while (f < fields + COUNT(fields) &&
               (strlen(f->name) != name || strncmp(f->name, text, name) != 0))
            f++;
        if (f == fields + COUNT(fields) || name >= all) return 0;
        *member(c, f) = strtoll(text + name + 1, NULL, 10);
        text += all + (text[all] == ',');
    }
    return 1;
}

/* ---- lists ------------------------------------------------------------------------------- */

void cases_add(case_list *list, test_case c) {
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 64;
        list->at = realloc(list->at, list->room * sizeof *list->at);
        if (!list->at) abort();
    }
    list->at[list->count++] = c;
}

void cases_free(case_list *list) {
    free(list->at);
    memset(list, 0, sizeof *list);
}

/* what makes sense only in some ways: cross-attention looks both ways */
static void add_if_allowed(case_list *list, test_case c) {
    if (c.cross && c.causal) return;
    c.seed = (int64_t)list->count + 1;
    cases_add(list, c);
}

/* One option of cases_options: the fields that it changes. */
static const test_case options[] = {
    CASE(.length = 40),
    CASE(.bias = 1, .q_heads = 2, .kv_heads = 2),
    CASE(.rotary = 10000),
    CASE(.rotary = 7, .head_dim = 6),
    CASE(.scale = 50),
    CASE(.scale = -400),
    CASE(.q_heads = 6, .kv_heads = 2),
    CASE(.q_heads = 5, .kv_heads = 1, .bias = 1),
    CASE(.head_dim = 5, .value_dim = 11),
    CASE(.batch = 3, .q_heads = 2, .kv_heads = 1),
    CASE(.batch = 5, .packed = 1),
    CASE(.batch = 7, .packed = 2, .q_heads = 4, .kv_heads = 2, .bias = 1),
    CASE(.batch = 4, .packed = 3, .length = 1),
    CASE(.batch = 3, .packed = 4, .length = 0),
    CASE(.batch = 70, .packed = 10, .length = 9, .bias = 1, .block = 2),
    CASE(.batch = 150, .length = 2, .bias = 1),
    CASE(.q_heads = 32, .kv_heads = 16, .length = 20, .bias = 1),
    CASE(.mask = MASK_PADDING, .batch = 2),
    CASE(.mask = MASK_LEADING, .batch = 2),
    CASE(.mask = MASK_KEYS),
    CASE(.mask = MASK_QUERIES),
    CASE(.mask = MASK_BOTH, .bias = 1, .batch = 3, .packed = 5),
    CASE(.mask = MASK_ALL_KEYS),
    CASE(.mask = MASK_ALL_QUERIES),
    CASE(.mask = MASK_ONE_KEY),
    CASE(.mask = MASK_RUNS, .length = 100),
    CASE(.layout = LAYOUT_SPELLED, .batch = 2, .q_heads = 2, .kv_heads = 2),
    CASE(.layout = LAYOUT_FUSED, .batch = 2, .q_heads = 4, .kv_heads = 2, .value_dim = 5),
    CASE(.layout = LAYOUT_HEADS, .batch = 2, .q_heads = 4, .kv_heads = 2),
    CASE(.layout = LAYOUT_HEADS, .batch = 4, .packed = 6, .q_heads = 3, .kv_heads = 3),
    CASE(.layout = LAYOUT_PADDED, .batch = 2, .q_heads = 2, .kv_heads = 2),
    CASE(.layout = LAYOUT_PADDED, .batch = 4, .packed = 7, .q_heads = 2, .kv_heads = 1),
    CASE(.lse = 0),
    CASE(.dlse = 1),
    CASE(.dlse = 1, .mask = MASK_BOTH, .q_heads = 2, .kv_heads = 2, .layout = LAYOUT_PADDED),
    CASE(.dropout = 10, .length = 60),
    CASE(.dropout = 50, .batch = 2, .q_heads = 4, .kv_heads = 2, .dlse = 1),
    CASE(.dropout = 30, .batch = 4, .packed = 8, .bias = 1, .mask = MASK_KEYS),
    CASE(.cross = 1, .batch = 2),
    CASE(.cross = 1, .mask = MASK_BOTH, .bias = 1, .rotary = 100),
    CASE(.spread = 10, .length = 90, .q_heads = 2, .kv_heads = 2),
    CASE(.spread = 40, .length = 90, .q_heads = 2, .kv_heads = 2, .dlse = 1),
    CASE(.slack = 1),
    CASE(.slack = 1, .batch = 3, .packed = 9, .scratch = 0),
    CASE(.scratch = 0),
};

void cases_options(case_list *list, ht_dtype dtype) {
    for (size_t o = 0; o < COUNT(options); o++) {
        for (size_t w = 0; w < case_way_count; w++) {
            test_case c = options[o];
            c.kind = case_ways[w].kind;
            c.query = case_ways[w].query;
            c.causal = case_ways[w].causal;
            c.dtype = dtype;
            add_if_allowed(list, c);
        }
    }
}

void cases_lengths(case_list *list, ht_dtype dtype) {
    static const int64_t blocks[] = {2, 4, 16, 30, 128};
    for (size_t b = 0; b < COUNT(blocks); b++) {
        int64_t block = blocks[b], lengths[32] = {1, 2, 3}, count = 3;
        for (int64_t edge = block; edge <= 64 * block && edge <= 512; edge *= 2)
            for (int64_t side = -1; side <= 1; side++) lengths[count++] = edge + side;
        for (int64_t i = 0; i < count; i++) {
            if (i >= 3 && lengths[i] <= 3) continue; /* there already */
            for (size_t w = 0; w < case_way_count; w++) {
                /* the long ones of every second way only: the oracle is quadratic */
                if (lengths[i] > 200 && (w + (size_t)i) % 3 != 0) continue;
                test_case c = case_ways[w];
                c.dtype = dtype;
                c.block = block, c.length = lengths[i];
                c.head_dim = 4 + i % 3, c.value_dim = 3 + i % 2;
                c.bias = i % 2, c.rotary = (i + (int64_t)w) % 3 == 1 ? 10000 : 0;
                c.q_heads = 1 + (i + (int64_t)w) % 2, c.seed = (int64_t)list->count + 1;
                cases_add(list, c);
            }
        }
    }
}

void cases_dims(case_list *list, ht_dtype dtype) {
    static const int64_t dims[] = {1,   2,   3,   4,   5,   7,   8,   9,   12,  15,  16, 17, 20,
                                   24,  31,  32,  33,  40,  48,  63,  64,  65,  72,  80, 96, 100,
                                   112, 127, 128, 129, 160, 191, 192, 200, 224, 255, 256};
    for (size_t i = 0; i < COUNT(dims); i++) {
        for (size_t w = 0; w < case_way_count; w++) {
            test_case c = case_ways[w];
            int64_t other = dims[(i * 7 + w) % COUNT(dims)];
            c.dtype = dtype, c.length = 33 + (int64_t)w, c.block = i % 2 ? 4 : 8;
            c.head_dim = dims[i], c.value_dim = w % 3 == 0 ? other : dims[i];
            c.q_heads = 2, c.kv_heads = 1 + (int64_t)(w % 2);
            c.rotary = i % 3 == 0 ? 10000 : 0;
            c.layout = (int64_t)(i + w) % LAYOUT_COUNT, c.seed = (int64_t)list->count + 1;
            cases_add(list, c);
        }
    }
}

static int64_t pick(uint64_t *state, const int64_t *from, size_t n) {
    return from[test_random_below(state, (int64_t)n)];
}

/* 1 once in `n` */
static int once_in(uint64_t *state, int64_t n) { return test_random_below(state, n) == 0; }

void cases_random(case_list *list, ht_dtype dtype, uint64_t seed, int count) {
    static const int64_t blocks[] = {2, 2, 4, 6, 8, 16, 16, 30, 32, 64};
    static const int64_t dims[] = {1, 3, 4, 8, 10, 16, 17, 32, 40, 64, 64, 96, 128};
    static const int64_t groups[] = {1, 1, 1, 2, 3, 4, 8};
    for (int i = 0; i < count; i++) {
        uint64_t s = seed * 1000003 + (uint64_t)i;
        test_case c = case_ways[test_random_below(&s, (int64_t)case_way_count)];
        c.dtype = dtype, c.seed = (int64_t)(test_random(&s) >> 40);
        if (c.kind != HT_HIERARCHICAL) c.query = HT_QUERY_MEAN + test_random_below(&s, 3);
        c.block = pick(&s, blocks, COUNT(blocks));
        c.batch = 1 + test_random_below(&s, 4);
        c.length = 1 + test_random_below(&s, once_in(&s, 4) ? 200 : 70);
        c.packed = once_in(&s, 2) ? 1 + test_random_below(&s, 1000) : 0;
        c.kv_heads = 1 + test_random_below(&s, 3);
        c.q_heads = c.kv_heads * pick(&s, groups, COUNT(groups));
        if (c.q_heads > 8) c.q_heads = c.kv_heads;
        c.head_dim = pick(&s, dims, COUNT(dims));
        c.value_dim = once_in(&s, 2) ? c.head_dim : pick(&s, dims, COUNT(dims));
        c.bias = once_in(&s, 2), c.lse = once_in(&s, 2), c.dlse = once_in(&s, 3);
        c.scale = once_in(&s, 4) ? 1 + test_random_below(&s, 600) : 0;
        c.rotary = once_in(&s, 3) ? 10000 : 0;
        c.mask = once_in(&s, 2) ? test_random_below(&s, MASK_COUNT) : MASK_NONE;
        c.layout = test_random_below(&s, LAYOUT_COUNT);
        c.dropout = once_in(&s, 4) ? 5 + test_random_below(&s, 60) : 0;
        c.cross = !c.causal && once_in(&s, 4);
        c.spread = once_in(&s, 5) ? 8 : 1;
        c.slack = once_in(&s, 3), c.scratch = once_in(&s, 2);
        cases_add(list, c);
    }
}

void cases_long(case_list *list, ht_dtype dtype) {
    for (size_t w = 0; w < case_way_count; w++) {
        test_case c = case_ways[w];
        c.dtype = dtype, c.block = 16, c.length = 1000 + 13 * (int64_t)w, c.bias = 1;
        c.head_dim = c.value_dim = 16, c.seed = 77 + (int64_t)w;
        cases_add(list, c);
        c.block = 2, c.length = 700, c.head_dim = 6, c.value_dim = 4, c.mask = MASK_RUNS;
        cases_add(list, c);
        c.block = 64, c.length = 613, c.mask = MASK_NONE, c.rotary = 10000, c.q_heads = 2;
        cases_add(list, c);
        c.block = 32, c.length = 530, c.mask = MASK_BOTH, c.dropout = 20, c.rotary = 100;
        cases_add(list, c);
    }
}

/* How clusters are opened. */
static const test_case dials[] = {
    CASE(.open = 1, .leaf = 1, .peek = 1),
    CASE(.open = 2),
    CASE(.open = 3, .leaf = 2, .peek = 2),
    CASE(.open = 8, .peek = 1),
    CASE(.open = 4, .leaf = 4, .peek = -1),
    CASE(.open = 5, .leaf = 64, .peek = 48),
    CASE(.open = 1000),
    CASE(.open = 2, .leaf = 8, .peek = 3),
};

/* What kernels on tensor cores take, and what they must leave to others (rotary, dropout, peek 3).
 */
static const test_case open_tiles[] = {
    CASE(.length = 77, .mask = MASK_KEYS, .open = 1, .peek = 1),
    CASE(.length = 77, .causal = 1, .mask = MASK_BOTH, .open = 1, .peek = 2, .dlse = 1),
    CASE(.length = 83, .head_dim = 64, .open = 2, .peek = 2),
    CASE(.length = 100, .causal = 1, .head_dim = 64, .open = 20, .mask = MASK_LEADING),
    CASE(.length = 150, .batch = 2, .packed = 3, .head_dim = 64, .open = 30, .q_heads = 2,
         .mask = MASK_BOTH),
    CASE(.length = 300, .causal = 1, .block = 32, .grid = 1, .open = 3, .bias = 1, .q_heads = 4,
         .kv_heads = 2),
    CASE(.length = 344, .causal = 1, .head_dim = 128, .grid = 1, .open = 16, .leaf = 16),
    CASE(.length = 200, .causal = 1, .batch = 3, .packed = 2, .grid = 1, .open = 4, .leaf = 1,
         .dlse = 1),
    CASE(.length = 128, .causal = 1, .rotary = 100, .grid = 1, .open = 2),
    CASE(.length = 128, .causal = 1, .dropout = 20, .grid = 1, .open = 2, .peek = 2),
    CASE(.length = 600, .causal = 1, .grid = 1, .open = 8, .peek = 2, .layout = LAYOUT_FUSED),
};

static void add_open_tiles(case_list *list, ht_dtype dtype) {
    for (size_t i = 0; i < COUNT(open_tiles); i++) {
        test_case c = open_tiles[i];
        c.query = HT_QUERY_FINE, c.dtype = dtype, c.seed = 401 + (int64_t)i;
        if (c.head_dim < 32) c.head_dim = 32;
        if (c.block < 16) c.block = 16;
        if (c.grid) c.scale = 250;
        c.value_dim = c.head_dim;
        cases_add(list, c);
    }
}

/* one more case with the next dial; bf16 on a grid and with a scale that is a power of two, so
 * that devices cannot differ in how they round a score */
static void add_open(case_list *list, test_case c, size_t dial, ht_dtype dtype) {
    const test_case *with = &dials[dial % COUNT(dials)];
    c.query = HT_QUERY_FINE, c.open = with->open, c.leaf = with->leaf, c.peek = with->peek;
    c.dtype = dtype;
    if (dtype_is_half(dtype)) c.grid = 1;
    if (c.grid && !c.causal && c.length > 0) { /* one cut short by the end has no exact score */
        c.packed = 0;
        while (c.length & (c.length - 1)) c.length++;
    }
    if (c.grid) c.scale = 250, c.spread = 1;
    add_if_allowed(list, c);
}

void cases_open(case_list *list, ht_dtype dtype) {
    static const int64_t blocks[] = {2, 4, 16}, lengths[] = {5, 33, 64, 67, 100, 129, 200, 260};
    for (size_t o = 0; o < COUNT(options); o++) {
        for (int64_t causal = 0; causal < 2; causal++) {
            test_case c = options[o];
            c.causal = causal, c.grid = (int64_t)o % 3 == 0 && c.mask == MASK_NONE;
            if (c.length > 20) c.length += 30; /* a level or two more */
            if (dtype_is_half(dtype) && c.mask != MASK_NONE) continue;
            add_open(list, c, o + (size_t)causal * 3, dtype);
        }
    }
    if (dtype == HT_F64) return; /* the long double oracle is slow */
    for (size_t b = 0; b < COUNT(blocks); b++) {
        for (size_t i = 0; i < COUNT(lengths); i++) {
            test_case c = CASE(.block = blocks[b], .length = lengths[i], .bias = (int64_t)i % 2);
            c.causal = (int64_t)(b + i) % 2, c.q_heads = 1 + (int64_t)i % 2, c.head_dim = 4;
            c.rotary = i % 3 == 1 ? 10000 : 0, c.grid = (int64_t)i % 2;
            add_open(list, c, b + i, dtype);
        }
    }
    if (dtype_is_half(dtype)) add_open_tiles(list, dtype);
    for (int64_t causal = 0; causal < 2; causal++) {
        for (size_t i = 0; i < COUNT(dials); i++) { /* what a model has */
            test_case c = CASE(.block = 16, .length = 190 + 77 * (int64_t)(i % 4), .causal = causal,
                               .head_dim = 64, .value_dim = 64, .q_heads = 2, .grid = 1);
            add_open(list, c, i, dtype);
        }
    }
}

/* One option of cases_tiles. */
static const test_case tile_options[] = {
    CASE(.q_heads = 2, .kv_heads = 2),
    CASE(.bias = 1, .q_heads = 2, .kv_heads = 2),
    CASE(.rotary = 10000),
    CASE(.rotary = 100, .bias = 1, .batch = 2),
    CASE(.dropout = 20),
    CASE(.q_heads = 4, .kv_heads = 2),
    CASE(.q_heads = 3, .kv_heads = 1, .bias = 1, .rotary = 10000, .dropout = 10),
    CASE(.batch = 4, .packed = 3),
    CASE(.batch = 5, .packed = 11, .bias = 1, .rotary = 100, .q_heads = 2, .kv_heads = 2),
    CASE(.mask = MASK_PADDING, .batch = 2),
    CASE(.mask = MASK_BOTH, .bias = 1),
    CASE(.mask = MASK_RUNS, .dropout = 30),
    CASE(.mask = MASK_LEADING, .rotary = 10000, .layout = LAYOUT_FUSED, .q_heads = 2),
    CASE(.mask = MASK_ALL_KEYS),
    CASE(.dlse = 1, .layout = LAYOUT_HEADS, .q_heads = 2, .kv_heads = 2, .batch = 2),
    CASE(.cross = 1, .mask = MASK_KEYS, .batch = 2),
    CASE(.spread = 8, .bias = 1),
};

void cases_tiles(case_list *list, ht_dtype dtype) {
    static const int64_t blocks[] = {16, 32, 64, 48, 128}, dims[] = {64, 32, 16, 128};
    for (size_t i = 0; i < 2 * COUNT(tile_options); i++) {
        for (size_t w = 0; w < case_way_count; w++) {
            size_t o = i % COUNT(tile_options), b = (o + 2 * w + 3 * (i / COUNT(tile_options))) % 5;
            test_case c = tile_options[o];
            c.kind = case_ways[w].kind, c.query = case_ways[w].query;
            c.causal = case_ways[w].causal, c.dtype = dtype, c.block = blocks[b];
            c.head_dim = c.value_dim = dims[(o + w + i / COUNT(tile_options)) % COUNT(dims)];
            int64_t most = c.block <= 32 ? 9 : c.block <= 64 ? 5 : 3;
            c.length = c.block * (2 + (int64_t)(o + w) % most) + (int64_t)(5 * o + 3 * w) % 16;
            add_if_allowed(list, c);
        }
    }
}

void cases_plain(case_list *list, ht_dtype dtype) {
    static const int64_t lengths[] = {1,   17,  64,  65,  100, 128, 129, 192,
                                      200, 257, 333, 448, 577, 640, 900, 1024};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        for (size_t w = 0; w < case_way_count; w++) {
            test_case c = case_ways[w];
            int fine = c.kind == HT_HIERARCHICAL && c.query == HT_QUERY_FINE;
            if (c.kind == HT_FULL || fine) continue;
            if (lengths[i] > 300 && (i + w) % 3) continue; /* the oracle is quadratic */
            c.dtype = dtype, c.block = 16, c.head_dim = c.value_dim = 64, c.length = lengths[i];
            c.kv_heads = 1 + (int64_t)(i + w) % 2, c.q_heads = c.kv_heads * (1 + (int64_t)w % 2);
            c.batch = 1 + (int64_t)(i + w) % 2, c.lse = 1, c.dlse = (int64_t)(i % 4 == 1);
            c.layout = (int64_t)(i + w) % LAYOUT_COUNT, c.seed = (int64_t)list->count + 1;
            add_if_allowed(list, c);
        }
    }
}

void cases_whole(case_list *list, ht_dtype dtype) {
    static const int64_t lengths[] = {64, 128, 192, 256, 320, 512};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        for (size_t w = 0; w < 3; w++) { /* mean, first, first causal */
            test_case c = case_ways[w];
            c.dtype = dtype, c.block = 16, c.length = lengths[i], c.head_dim = c.value_dim = 64;
            c.q_heads = c.kv_heads = 1 + (int64_t)(i + w) % 3, c.batch = 3 - (int64_t)i / 2;
            c.layout = (int64_t)(i + w) % LAYOUT_COUNT, c.dlse = (int64_t)(i + w) % 2;
            c.spread = i == 3 ? 8 : 1, c.seed = 300 + (int64_t)(3 * i + w);
            cases_add(list, c);
        }
    }
    for (size_t w = 0; w < 3; w++) { /* many short sequences: several for each multiprocessor */
        test_case c = case_ways[w];
        c.dtype = dtype, c.block = 16, c.length = 33 + 31 * (int64_t)(w % 2);
        c.head_dim = c.value_dim = 64, c.q_heads = c.kv_heads = 4, c.batch = 110;
        c.seed = 330 + (int64_t)w;
        cases_add(list, c);
    }
}

void cases_wide(case_list *list, ht_dtype dtype) {
    static const int64_t lengths[] = {1, 100, 129, 200, 333, 515}, blocks[] = {16, 64, 128};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        for (size_t w = 3; w < 3 + 2 * COUNT(blocks); w++) { /* fine, fine causal */
            test_case c = case_ways[3 + w % 2];
            c.dtype = dtype, c.block = blocks[(w - 3) / 2], c.length = lengths[i];
            c.head_dim = c.value_dim = 64, c.lse = 1, c.dlse = (int64_t)(i + w) % 2;
            c.kv_heads = 1 + (int64_t)i % 2, c.q_heads = c.kv_heads * (1 + (int64_t)(i + w) % 2);
            c.batch = lengths[i] < 300 ? 2 : 1, c.rotary = (i + w) % 3 ? 0 : 10000;
            c.packed = i == 1 ? 3 : 0, c.layout = (int64_t)(i + w) % LAYOUT_COUNT;
            c.seed = 700 + (int64_t)(9 * i + w);
            c.bias = c.block > 16 && (i + w / 2) % 2; /* block 16 has no kernel with one */
            if (i == 3 && c.block > 16) c.kind = HT_LOCAL;
            add_if_allowed(list, c);
        }
    }
}

/* One option of cases_narrow. */
static const test_case narrow_options[] = {
    CASE(.q_heads = 2, .kv_heads = 2),
    CASE(.dropout = 20, .q_heads = 2, .kv_heads = 2, .batch = 2),
    CASE(.batch = 4, .packed = 3, .lse = 1),
    CASE(.mask = MASK_RUNS, .dlse = 1),
    CASE(.mask = MASK_BOTH, .dropout = 40),
    CASE(.mask = MASK_LEADING, .spread = 8),
    CASE(.cross = 1, .scale = -300, .layout = LAYOUT_HEADS, .q_heads = 3, .kv_heads = 3),
    CASE(.mask = MASK_ALL_KEYS, .layout = LAYOUT_FUSED),
    CASE(.dropout = 10, .batch = 2, .packed = 5, .layout = LAYOUT_FUSED),
};

void cases_narrow(case_list *list, ht_dtype dtype) {
    static const int64_t blocks[] = {16, 32, 64, 48, 128};
    static const int64_t lengths[] = {200, 333, 129, 577, 64, 1025, 40, 1, 900};
    for (size_t o = 0; o < COUNT(narrow_options); o++) {
        for (size_t w = 0; w < case_way_count; w++) {
            if (case_ways[w].kind == HT_HIERARCHICAL && case_ways[w].query == HT_QUERY_FINE)
                continue;
            for (size_t i = 0; i < 3; i++) {
                test_case c = narrow_options[o];
                c.kind = case_ways[w].kind, c.query = case_ways[w].query;
                c.causal = case_ways[w].causal, c.dtype = dtype;
                c.head_dim = c.value_dim = (o + w + i) % 2 ? 4 : 8;
                c.block = blocks[(2 * o + w + i) % COUNT(blocks)];
                c.length = lengths[(o + 2 * w + 3 * i) % COUNT(lengths)];
                if (c.dropout && c.length < 128) c.length += 500;
                add_if_allowed(list, c);
            }
        }
    }
}
