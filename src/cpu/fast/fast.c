/*
 * The fast kernels' plan of a call; see fast.h.
 */
#include "cpu/fast/fast.h"

#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 4 << 20 };

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t power_of_two(int64_t n) {
    int64_t p = 1;
    while (p < n) p *= 2;
    return p;
}

/* ---- shape ---- */

/* Local levels: as long as a neighbouring block is a few dozen rows, reading it ahead costs
 * nothing. */
void hti_shape_make(hti_shape *s, const ht_attention_desc *desc, int64_t width, int64_t reach) {
    *s = (hti_shape){.block = desc->block,
                     .d = desc->head_dim,
                     .dv = desc->value_dim,
                     .q_heads = desc->q_heads,
                     .kv_heads = desc->kv_heads,
                     .group = desc->q_heads / desc->kv_heads,
                     .causal = desc->causal};
    s->dw = (s->d + width - 1) / width * width;
    s->dvw = (s->dv + width - 1) / width * width;
    s->dp = power_of_two(max64(s->d, HTI_TILE));
    s->dvp = power_of_two(max64(s->dv, HTI_TILE));
    s->single = desc->kind != HT_HIERARCHICAL;
    s->fine = !s->single && desc->query == HT_QUERY_FINE;
    s->first = desc->query == HT_QUERY_FIRST;
    s->local = 1;
    s->open = desc->open > 0;
    if (s->open) s->local = 0;
    while (!s->single && !s->open && max64(s->block, HTI_TILE) << s->local <= reach) s->local++;
}

static int levels_of(const hti_shape *s, int64_t length) {
    return s->single || length < 1 ? 1 : hti_levels(length, s->block);
}

/* Rows above which the levels from `local` on are shared. */
static int is_long(const hti_shape *s, int64_t length) {
    return s->open || (length > HTI_SHORT && levels_of(s, length) > s->local);
}

/* Rows of a pyramid, or where one begins. Where clusters can be opened, whole groups: a group has
 * one owner in backward. */
static int64_t pyramid_rows(const hti_shape *s, int levels, int64_t rows) {
    return s->open && levels > 1 ? (rows + HTI_GROUP - 1) / HTI_GROUP * HTI_GROUP : rows;
}

/* ---- rings ---- */

/* Whole tiles at every local level, and long against what a step costs besides its tiles. */
static int64_t step_of(int local) { return (int64_t)HTI_TILE << (local > 3 ? local - 1 : 2); }

/* A step's clusters, two blocks before them, and whatever two blocks of the top level make after
 * them. */
static int64_t ring_of(const hti_shape *s, int64_t step, int local, int level, int64_t clusters) {
    int64_t rows = (step >> level) + 2 * s->block + (2 * s->block << (local - 1 - level));
    return power_of_two(min64(rows, clusters));
}

int64_t hti_ring_rows(const hti_shape *s, int64_t length) {
    int64_t rows = 0;
    for (int l = 0; l < s->local; l++)
        rows += ring_of(s, step_of(s->local), s->local, l, hti_clusters(length, l));
    return max64(rows, 2 * power_of_two(min64(length, HTI_SHORT)) + HTI_MAX_LEVELS);
}

int64_t hti_step_rows(const hti_shape *s, int64_t length) {
    return min64(max64(step_of(s->local), HTI_SHORT), length) + HTI_TILE;
}

int64_t hti_own_rows(const hti_shape *s, int64_t length) {
    int levels = (int)max64(s->local, levels_of(s, min64(length, HTI_SHORT)));
    return hti_step_rows(s, length) + (int64_t)levels * (HTI_TILE + 1);
}

/* ---- tables ---- */

/* Bounds on counts and pyramid rows: a level has at most length / 2^l + 1 clusters. */
static int64_t most_counts(const hti_shape *s, int64_t rows, int64_t sequences, int64_t length) {
    int64_t extra = min64(sequences * levels_of(s, length), 2 * sequences + rows / s->block);
    return (s->single ? rows : 2 * rows) + extra;
}

static int64_t most_rows(const hti_shape *s, int64_t rows, int64_t sequences, int64_t length) {
    if (!is_long(s, length)) return 0;
    int64_t longs = min64(sequences, rows / HTI_SHORT), levels = levels_of(s, length) + 1;
    if (s->open) /* a sequence of m > 1 levels has more than m blocks */
        return 2 * rows + 2 * HTI_GROUP * min64(sequences * levels, rows / s->block) + HTI_TILE;
    return 2 * (rows >> s->local) + longs * levels + HTI_TILE;
}

/* Heads lie side by side in a row. A chunk's rows of all heads should stay in the last cache, so
 * that what is fetched beside one head's columns is there when the next head wants it; but a chunk
 * begins with filling rings, and in mode fine it has its own sums of the blocks around it at every
 * level. */
static int64_t chunk_of(const hti_shape *s, int64_t length) {
    if (s->open) return min64(power_of_two(max64(256, 16 * s->block)), power_of_two(length));
    int64_t row =
        (s->q_heads * (s->d + s->dv) + s->kv_heads * (s->d + s->dv)) * (int64_t)sizeof(float);
    int64_t step = step_of(s->local), rows = power_of_two(((int64_t)CHUNK_BYTES / row) + 1);
    rows = max64(max64(rows, 8 * step), power_of_two((s->fine ? 64 : 4) * s->block));
    return min64(rows, power_of_two(length));
}

void hti_tables_take(hti_tables *t, hti_arena *c, const ht_attention_desc *desc,
                     const hti_attention_call *call, int64_t width, int64_t reach) {
    int64_t sequences = call ? call->sequences : desc->max_sequences;
    int64_t rows = call ? call->rows : desc->max_rows;
    int64_t length = call ? call->length : desc->max_length;
    int masked = !call || call->key_mask || call->query_mask;
    *t = (hti_tables){.call = call};
    hti_shape_make(&t->shape, desc, width, reach);
    t->count_from = hti_take(c, sequences + 1, sizeof(int64_t));
    t->row_from = hti_take(c, sequences + 1, sizeof(int64_t));
    int64_t counts = most_counts(&t->shape, rows, sequences, length);
    t->key_n = hti_take(c, counts, sizeof(float));
    t->key_log = hti_take(c, counts, sizeof(float));
    t->query_n = masked ? hti_take(c, counts, sizeof(float)) : t->key_n;

    t->rows = most_rows(&t->shape, rows, sequences, length);
    t->chunk = chunk_of(&t->shape, length);
}

void hti_tables_index(hti_tables *t) {
    const hti_shape *s = &t->shape;
    int64_t counts = 0, rows = 0;
    for (int64_t b = 0; b <= t->call->sequences; b++) {
        int64_t length = b < t->call->sequences ? hti_call_length(t->call, b) : 0;
        int levels = levels_of(s, length), shared = is_long(s, length);
        rows = pyramid_rows(s, levels, rows);
        t->count_from[b] = counts;
        t->row_from[b] = rows;
        if (b == t->call->sequences) break;
        for (int l = 0; l < levels; l++) {
            counts += hti_clusters(length, l);
            if (shared && l >= s->local) rows += pyramid_rows(s, levels, hti_clusters(length, l));
        }
    }
}

void hti_seq_make(hti_seq *s, const hti_tables *t, int64_t index) {
    s->index = index;
    s->start = hti_call_start(t->call, index);
    s->length = hti_call_length(t->call, index);
    s->levels = levels_of(&t->shape, s->length);
    s->local = is_long(&t->shape, s->length) ? t->shape.local : s->levels;
    s->step = step_of(s->local);
    int64_t count = t->count_from[index], row = t->row_from[index], ring = 0, owned = 0;
    for (int l = 0; l < s->levels; l++) {
        s->clusters[l] = hti_clusters(s->length, l);
        s->count_at[l] = count;
        count += s->clusters[l];
        s->row_at[l] = row;
        if (l >= s->local) {
            row += pyramid_rows(&t->shape, s->levels, s->clusters[l]);
            continue;
        }
        int64_t rows = ring_of(&t->shape, s->step, s->local, l, s->clusters[l]);
        s->ring_mask[l] = rows - 1;
        s->ring_at[l] = ring;
        ring += rows;
        s->own_at[l] = owned;
        if (l > 0)
            owned += min64(s->step >> l, (s->clusters[l] + HTI_TILE - 1) / HTI_TILE * HTI_TILE);
    }
}

/* ---- walking ---- */

/* Steps are numbered by position: rows of all heads of the sequences and chunks before, rows of the
 * chunk for the heads before, rows before. */
static int64_t walk_position(const hti_walk *w) {
    int64_t row0 = w->chunk * w->t->chunk, rows = min64(w->t->chunk, w->seq.length - row0);
    return w->heads * (w->seq.start + row0) + w->head * rows + w->row - row0;
}

/* The sequence that holds a row counted over all sequences: the last that starts at or before it.
 */
static int64_t sequence_at(const hti_attention_call *c, int64_t row) {
    if (!c->cu_seqlens) return row / c->length;
    int64_t lo = 0, hi = c->sequences;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (c->cu_seqlens[mid] <= row) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* From behind the last step of a chunk to the next head, chunk or sequence; 0 behind the share's
 * end. */
static int settle(hti_walk *w) {
    int64_t row0 = w->chunk * w->t->chunk;
    if (w->row >= min64(row0 + w->t->chunk, w->seq.length)) {
        w->fresh = 1;
        if (++w->head == w->heads) {
            w->head = 0;
            w->chunk++;
            row0 += w->t->chunk;
        }
        w->row = row0;
    }
    if (w->row >= w->seq.length) {
        int64_t next = w->seq.index + 1;
        while (next < w->t->call->sequences && hti_call_length(w->t->call, next) == 0) next++;
        if (next == w->t->call->sequences) return 0;
        hti_seq_make(&w->seq, w->t, next);
        w->chunk = w->row = 0;
    }
    return (w->whole && !w->fresh) || walk_position(w) < w->end;
}

int hti_walk_begin(hti_walk *w, const hti_tables *t, int64_t heads, int thread, int threads) {
    int64_t all = heads * t->call->rows,
            begin = all / threads * thread + min64(thread, all % threads);
    int64_t share = all / threads + (thread < all % threads);
    *w = (hti_walk){.t = t, .heads = heads, .end = begin + share, .fresh = 1};
    if (share == 0) return 0;
    hti_seq_make(&w->seq, t, sequence_at(t->call, begin / heads));
    int64_t rest = begin - heads * w->seq.start;
    w->chunk = rest / (heads * t->chunk);
    rest -= w->chunk * heads * t->chunk;
    int64_t rows = min64(t->chunk, w->seq.length - w->chunk * t->chunk);
    w->head = rest / rows;
    w->row = w->chunk * t->chunk + (rest % rows + w->seq.step - 1) / w->seq.step * w->seq.step;
    return settle(w);
}

int hti_walk_next(hti_walk *w) {
    w->fresh = 0;
    w->row += w->seq.step;
    return settle(w);
}

int hti_runs_begin(hti_walk *w, const hti_tables *t, int64_t heads, int thread, int threads) {
    if (!hti_walk_begin(w, t, heads, thread, threads)) return 0;
    w->whole = 1;
    if (w->row == w->chunk * t->chunk) return 1;
    return hti_runs_next(w); /* the rest of a run that the thread before has */
}

int hti_runs_next(hti_walk *w) {
    w->row = min64((w->chunk + 1) * w->t->chunk, w->seq.length);
    return settle(w);
}

hti_range hti_run_rows(const hti_walk *w) {
    return (hti_range){w->chunk * w->t->chunk, min64((w->chunk + 1) * w->t->chunk, w->seq.length)};
}

hti_range hti_step_own(const hti_seq *s, int64_t row, int level) {
    return (hti_range){row >> level, hti_clusters(min64(row + s->step, s->length), level)};
}

hti_range hti_step_keys(const hti_shape *shape, const hti_seq *s, int64_t row) {
    int64_t b = shape->block, right = shape->causal ? 1 : 2;
    hti_range own = hti_step_own(s, row, s->local - 1);
    return (hti_range){max64(own.lo / b - 1, 0) * b,
                       min64(((own.hi - 1) / b + right) * b, s->clusters[s->local - 1])};
}

/* ---- counts ---- */

/* Counts of clusters [from, to) of a level; level 0 from the mask, others from the level below. */
static void count_level(float *n, float *logs, const hti_seq *s, const uint8_t *mask, int level,
                        hti_range r) {
    float *out = n + s->count_at[level], full = (float)((int64_t)1 << level);
    for (int64_t c = r.lo; c < r.hi; c++) {
        if (level == 0) {
            out[c] = !mask || mask[s->start + c] ? 1.0f : 0.0f;
        } else {
            const float *below = n + s->count_at[level - 1] + 2 * c;
            out[c] = below[0] + (2 * c + 1 < s->clusters[level - 1] ? below[1] : 0);
        }
    }
    if (!logs) return;
    logs += s->count_at[level];
    for (int64_t c = r.lo; c < r.hi; c++)
        logs[c] = out[c] == full ? (float)level : out[c] == 0 ? -INFINITY : log2f(out[c]);
}

static void count_both(const hti_tables *t, const hti_seq *s, int level, hti_range r) {
    count_level(t->key_n, t->key_log, s, t->call->key_mask, level, r);
    if (t->query_n != t->key_n) count_level(t->query_n, NULL, s, t->call->query_mask, level, r);
}

/* Levels whose clusters lie inside a step go step by step, the few above sequence by sequence. */
void hti_tables_count(const hti_tables *t, int thread, int threads) {
    hti_walk w;
    for (int go = hti_walk_begin(&w, t, 1, thread, threads); go; go = hti_walk_next(&w))
        for (int l = 0; l < w.seq.levels && (int64_t)1 << l <= w.seq.step; l++)
            count_both(t, &w.seq, l, hti_step_own(&w.seq, w.row, l));
#pragma omp barrier
    hti_seq s;
    for (int64_t b = thread; b < t->call->sequences; b += threads) {
        if (!is_long(&t->shape, hti_call_length(t->call, b))) continue;
        hti_seq_make(&s, t, b);
        for (int l = 0; l < s.levels; l++)
            if ((int64_t)1 << l > s.step) count_both(t, &s, l, (hti_range){0, s.clusters[l]});
    }
#pragma omp barrier
}

/* ---- segments ---- */

/* Lanes whose query cluster lies in [lo, hi). */
static uint32_t lanes_in(int64_t lo, int64_t hi, int shift, int64_t c0, int rows) {
    int64_t unit = (int64_t)1 << shift, a = max64(lo * unit - c0, 0),
            b = min64(hi * unit - c0, rows);
    return a >= b ? 0 : (uint32_t)((((uint64_t)1 << b) - 1) & ~(((uint64_t)1 << a) - 1));
}

static void add_seg(hti_segs *out, int64_t from, int64_t to, uint32_t lanes) {
    if (lanes == 0 || from >= to) return;
    out->keys += to - from;
    if (out->count > 0) {
        hti_seg *last = &out->seg[out->count - 1];
        if (last->lanes == lanes && last->from + last->count == from) {
            last->count += (int32_t)(to - from);
            return;
        }
    }
    out->seg[out->count++] = (hti_seg){from, (int32_t)(to - from), lanes};
}

/* Level 0: key block k is seen by query blocks k-1 ... k+1. Above: the left half of key block k by
 * all of query block k+1 and the first half of k-1, the right half by the second half of k+1 and
 * all of k-1. */
void hti_segs_make(hti_segs *out, const hti_shape *shape, int64_t clusters, int level, int shift,
                   int64_t c0, int rows) {
    int64_t b = shape->block, half = b / 2;
    int64_t first = (c0 >> shift) / b, last = ((c0 + rows - 1) >> shift) / b;
    int64_t end = shape->causal ? min64(clusters, ((c0 + rows - 1) >> shift) + 1) : clusters;
    out->count = 0;
    out->keys = 0;
    out->diagonal = shape->causal && level == 0 ? c0 : HTI_NO_DIAGONAL;
    for (int64_t k = max64(first - 1, 0); k <= last + 1 && k * b < end; k++) {
        if (level == 0) {
            add_seg(out, k * b, min64((k + 1) * b, end),
                    lanes_in((k - 1) * b, (k + 2) * b, shift, c0, rows));
            continue;
        }
        int64_t q = (k + 1) * b, p = (k - 1) * b; /* first clusters of the query blocks */
        int64_t no_right = shape->causal;
        uint32_t left = lanes_in(q, q + b, shift, c0, rows),
                 right = lanes_in(q + half, q + b, shift, c0, rows);
        if (!no_right) {
            left |= lanes_in(p, p + half, shift, c0, rows);
            right |= lanes_in(p, p + b, shift, c0, rows);
        }
        add_seg(out, k * b, min64(k * b + half, clusters), left);
        add_seg(out, k * b + half, min64((k + 1) * b, clusters), right);
    }
}
