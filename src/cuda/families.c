/*
 * The list of families, and the walk over it. What a family asks for is data in its row; each kind
 * of condition is one function below, which also says what it misses.
 */
#include "cuda/families.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a call may have besides q, k, v. */
enum {
    BIAS = 1,
    ROTARY = 2,
    DROPOUT = 4,
    GROUPED = 8, /* fewer key heads than query heads */
    OTHER = 16,  /* value_dim is not head_dim */
    OPEN = 32,
    ALL = BIAS | ROTARY | DROPOUT | GROUPED | OTHER | OPEN
};

#define BIT(x) (1u << (x))

typedef struct row {
    const char *name;
    hti_family family;
    unsigned kinds, queries, dtypes; /* bits; queries: of kind hierarchical */
    int64_t dims[7];                 /* head_dim; none: any */
    int64_t block_step, block_most;  /* 0: any */
    int64_t length_most;             /* 0: any */
    int64_t bias_block;              /* blocks up to this with a bias; 0: any */
    unsigned options;
    unsigned required; /* of the options, those that it is for */
    int positive_scale;
    int aligned; /* rows lie in steps of 16 bytes */
    /* memory and grids: enum below */
    unsigned fits;
    /* backward; 0: forward only */
    int backward;
    unsigned back_options; /* of the options, those that backward takes */
    int64_t back_dim;      /* the most columns there; 0: any */
    int own_dims;          /* its dims are what it is for: others do not miss it */
} row;

enum {
    CHUNKS = 1,
    REACH = 2,
    TOWER_MEMORY = 4,
    NARROW_FITS = 8,
    TILES_FIT = 16,
    HEADS_FIT = 32,
    SLOTS_FIT = 64,
    PADDED_FITS = 128 /* one of the rows before takes a copy */
};
enum { TOWER_BYTES = 220 * 1024 };

#define LEVELS (BIT(HT_HIERARCHICAL) | BIT(HT_LOCAL))
#define QUERIES (BIT(HT_QUERY_MEAN) | BIT(HT_QUERY_FIRST) | BIT(HT_QUERY_FINE))
#define GATHERED (BIT(HT_QUERY_MEAN) | BIT(HT_QUERY_FIRST))
#define TYPES (BIT(HT_F32) | BIT(HT_BF16) | BIT(HT_F16))
#define HALVES (BIT(HT_BF16) | BIT(HT_F16))
#define POWERS 16, 32, 64, 128

/* Fastest first. */
static const row rows[] = {
    {.name = "narrow",
     .family = HTI_NARROW,
     .kinds = LEVELS,
     .queries = GATHERED,
     .dtypes = HALVES,
     .dims = {4, 8},
     .block_step = HTI_NARROW_GROUP,
     .length_most = 8192,
     .options = DROPOUT,
     .aligned = 1,
     .fits = NARROW_FITS,
     .backward = 1,
     .back_options = DROPOUT,
     .own_dims = 1},
    {.name = "narrow", /* kind full is one block of all rows */
     .family = HTI_NARROW,
     .kinds = BIT(HT_FULL),
     .queries = QUERIES,
     .dtypes = HALVES,
     .dims = {4, 8},
     .length_most = 4096,
     .aligned = 1,
     .fits = NARROW_FITS,
     .backward = 1,
     .own_dims = 1},
    {.name = "tuned",
     .family = HTI_TUNED,
     .kinds = LEVELS,
     .queries = GATHERED,
     .dtypes = HALVES,
     .dims = {4, 8, POWERS},
     .block_step = 16,
     .block_most = 16,
     .options = GROUPED,
     .positive_scale = 1,
     .aligned = 1,
     .fits = CHUNKS | REACH | TOWER_MEMORY,
     .backward = 1,
     .back_dim = 64},
    {.name = "tuned",
     .family = HTI_FINE,
     .kinds = BIT(HT_HIERARCHICAL),
     .queries = BIT(HT_QUERY_FINE),
     .dtypes = HALVES,
     .dims = {POWERS},
     .block_step = 16,
     .block_most = 16,
     .options = GROUPED,
     .positive_scale = 1,
     .aligned = 1,
     .fits = CHUNKS | REACH | TOWER_MEMORY},
    {.name = "tiles",
     .family = HTI_TILES,
     .kinds = LEVELS,
     .queries = QUERIES,
     .dtypes = HALVES,
     .dims = {POWERS},
     .block_step = 16,
     .block_most = 128,
     .options = BIAS | ROTARY | DROPOUT | GROUPED,
     .aligned = 1,
     .fits = TILES_FIT,
     .backward = 1,
     .back_options = BIAS | ROTARY | DROPOUT | GROUPED},
    {.name = "full",
     .family = HTI_FULL,
     .kinds = BIT(HT_FULL),
     .queries = QUERIES,
     .dtypes = HALVES,
     .dims = {POWERS},
     .bias_block = HTI_FULL_BLOCK,
     .options = BIAS | GROUPED,
     .positive_scale = 1,
     .aligned = 1,
     .fits = HEADS_FIT,
     .backward = 1,
     .back_options = BIAS},
    {.name = "opening tiles",
     .family = HTI_OPEN_TILES,
     .kinds = BIT(HT_HIERARCHICAL),
     .queries = BIT(HT_QUERY_FINE),
     .dtypes = BIT(HT_BF16),
     .dims = {32, 64, 128},
     .block_step = 16,
     .block_most = 128,
     .options = BIAS | GROUPED | OPEN,
     .required = OPEN,
     .positive_scale = 1,
     .aligned = 1,
     .fits = TILES_FIT | SLOTS_FIT,
     .backward = 1,
     .back_options = GROUPED | OPEN},
    {.name = "opened",
     .family = HTI_OPENED,
     .kinds = BIT(HT_HIERARCHICAL),
     .queries = BIT(HT_QUERY_FINE),
     .dtypes = TYPES,
     .options = ALL,
     .required = OPEN,
     .backward = 1,
     .back_options = ALL},
    {.name = "padded",
     .family = HTI_PADDED,
     .kinds = LEVELS | BIT(HT_FULL),
     .queries = QUERIES,
     .dtypes = HALVES,
     .options = ALL & ~OPEN,
     .fits = PADDED_FITS,
     .backward = 1,
     .back_options = ALL & ~OPEN},
    {.name = "generic",
     .family = HTI_GENERIC,
     .kinds = LEVELS | BIT(HT_FULL),
     .queries = QUERIES,
     .dtypes = TYPES,
     .options = ALL & ~OPEN,
     .backward = 1,
     .back_options = ALL & ~OPEN},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- conditions ---- */

/* A call, or (plan) its descriptor alone; why: room for a sentence, or NULL. */
typedef struct subject {
    const hti_limits *limits;
    const hti_attention_call *call;
    const ht_attention_desc *d;
    int backward;
    char *why;
    size_t bytes;
} subject;

#define NEEDS(holds, ...)                                    \
    do {                                                     \
        if (holds) break;                                    \
        if (s->why) snprintf(s->why, s->bytes, __VA_ARGS__); \
        return 0;                                            \
    } while (0)

static int kind(const row *r, const subject *s) {
    static const char *const names[] = {"hierarchical", "full", "local"};
    NEEDS(r->kinds & BIT(s->d->kind), "kind is %s", names[s->d->kind]);
    return 1;
}

static int query(const row *r, const subject *s) {
    static const char *const names[] = {"auto", "mean", "first", "fine"};
    NEEDS(s->d->kind != HT_HIERARCHICAL || r->queries & BIT(s->d->query), "query is %s",
          names[s->d->query]);
    return 1;
}

static int direction(const row *r, const subject *s) {
    NEEDS(!s->backward || r->backward, "it has no backward");
    return 1;
}

static int dtype(const row *r, const subject *s) {
    static const char *const names[] = {"f32", "bf16", "f64", "f16"};
    NEEDS(r->dtypes & BIT(s->d->dtype), "dtype is %s, not %s", names[s->d->dtype],
          r->dtypes & BIT(HT_F16) ? "bf16 or f16" : "bf16");
    return 1;
}

static int dims(const row *r, const subject *s) {
    char list[48] = "";
    int found = !r->dims[0];
    for (int i = 0; i < 7 && r->dims[i]; i++) {
        found |= s->d->head_dim == r->dims[i];
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%lld", i ? ", " : "",
                 (long long)r->dims[i]);
    }
    NEEDS(found, "head_dim is %lld, none of %s", (long long)s->d->head_dim, list);
    NEEDS(!s->backward || !r->back_dim || s->d->head_dim <= r->back_dim,
          "head_dim is %lld, in backward at most %lld", (long long)s->d->head_dim,
          (long long)r->back_dim);
    return 1;
}

static int block(const row *r, const subject *s) {
    int64_t b = s->d->block;
    NEEDS(!r->block_step || b % r->block_step == 0, "block is %lld, no multiple of %lld",
          (long long)b, (long long)r->block_step);
    NEEDS(!r->block_most || b <= r->block_most, "block is %lld, more than %lld", (long long)b,
          (long long)r->block_most);
    NEEDS(!r->bias_block || !s->d->has_bias || b <= r->bias_block,
          "block is %lld, with a bias at most %lld", (long long)b, (long long)r->bias_block);
    return 1;
}

static unsigned options_of(const ht_attention_desc *d) {
    return (d->has_bias ? BIAS : 0) | (d->rotary_theta > 0 ? ROTARY : 0) |
           (d->dropout > 0 ? DROPOUT : 0) | (d->kv_heads != d->q_heads ? GROUPED : 0) |
           (d->value_dim != d->head_dim ? OTHER : 0) | (d->open > 0 ? OPEN : 0);
}

static int options(const row *r, const subject *s) {
    static const char *const names[] = {"a bias",
                                        "rotary positions",
                                        "dropout",
                                        "fewer key heads than query heads",
                                        "value_dim other than head_dim",
                                        "opened clusters"};
    unsigned has = options_of(s->d);
    NEEDS((has & r->required) == r->required, "it opens no clusters");
    for (int i = 0; i < 6; i++) {
        NEEDS(!(has & BIT(i)) || r->options & BIT(i), "it has %s", names[i]);
        NEEDS(!s->backward || !(has & BIT(i)) || r->back_options & BIT(i),
              "it has %s, which backward does not take", names[i]);
    }
    return 1;
}

static int scale(const row *r, const subject *s) {
    NEEDS(!r->positive_scale || s->d->scale > 0, "scale is %g, not positive", s->d->scale);
    return 1;
}

/* What a row may open, and where it looks for it. */
static int opening(const row *r, const subject *s) {
    int64_t slots = hti_open_slots(s->d);
    if (!(r->fits & SLOTS_FIT)) return 1;
    NEEDS(s->d->open_peek == 1 || s->d->open_peek == 2, "open_peek is %lld, not 1 or 2",
          (long long)s->d->open_peek);
    NEEDS(slots <= HTI_OPEN_SLOTS, "a row may have %lld candidates at a level, more than %d",
          (long long)slots, HTI_OPEN_SLOTS);
    return 1;
}

/* ---- of a call ---- */

static int length(const row *r, const subject *s) {
    NEEDS(!r->length_most || s->call->length <= r->length_most,
          "a sequence has %lld rows, more than %lld", (long long)s->call->length,
          (long long)r->length_most);
    return 1;
}

/* Rows that can be read and written 16 bytes at a time; of 4 columns, 8 bytes. Strides are in
 * elements of 2 bytes. */
static int lies_well(const ht_tensor *t, int64_t dim) {
    const int64_t most = (int64_t)1 << 32, row_most = (int64_t)1 << 20;
    int64_t unit = dim < 8 ? dim : 8;
    return (uintptr_t)t->data % (uintptr_t)(2 * unit) == 0 && t->batch_stride % unit == 0 &&
           t->row_stride % unit == 0 && t->head_stride % unit == 0 && t->batch_stride >= 0 &&
           t->batch_stride < most && t->row_stride >= 0 && t->row_stride < row_most &&
           t->head_stride >= 0 && t->head_stride < most;
}

static int aligned(const row *r, const subject *s) {
    static const char *const names[] = {"q", "k", "v", "out", "dout", "dq", "dk", "dv"};
    const hti_attention_call *c = s->call;
    const ht_tensor *t[] = {&c->q, &c->k, &c->v, &c->out, &c->dout, &c->dq, &c->dk, &c->dv};
    int64_t dim = s->d->head_dim;
    for (int i = 0; r->aligned && i < (s->backward ? 8 : 4); i++)
        NEEDS(lies_well(t[i], dim), "rows of %s do not lie in steps of %d bytes", names[i],
              dim < 8 ? 8 : 16);
    return 1;
}

/* Places of rows are counted in 32 bits, 8 bytes each. */
static int within_reach(const ht_tensor *t, int64_t heads, const hti_attention_call *c) {
    int64_t count = c->cu_seqlens ? c->rows : c->length;
    int64_t before = c->cu_seqlens ? 0 : (c->sequences - 1) * t->batch_stride;
    return before + count * t->row_stride + heads * t->head_stride < HTI_REACH;
}

static int grids(const row *r, const subject *s) {
    const hti_attention_call *c = s->call;
    int64_t q = s->d->q_heads, kv = s->d->kv_heads;
    NEEDS(!(r->fits & CHUNKS) || hti_chunks_fit(c->cu_seqlens ? c->rows : c->length, c->sequences,
                                                c->cu_seqlens != NULL),
          "there are %lld sequences, of up to %lld rows: too many", (long long)c->sequences,
          (long long)c->length);
    NEEDS(!(r->fits & REACH) || (within_reach(&c->q, q, c) && within_reach(&c->k, kv, c) &&
                                 within_reach(&c->v, kv, c) && within_reach(&c->out, q, c)),
          "a tensor reaches over %lld elements", (long long)HTI_REACH);
    NEEDS(!(r->fits & TILES_FIT) || (c->rows + 16 * c->sequences) * q < (int64_t)1 << 32,
          "%lld rows of %lld heads are too many", (long long)c->rows, (long long)q);
    NEEDS(!(r->fits & HEADS_FIT) || (c->sequences <= 65535 && q <= 65535),
          "%lld sequences of %lld heads are too many", (long long)c->sequences, (long long)q);
    NEEDS(!(r->fits & NARROW_FITS) || c->sequences * q <= INT32_MAX,
          "%lld sequences of %lld heads are too many", (long long)c->sequences, (long long)q);
    return 1;
}

int hti_narrow_keeps(const ht_attention_desc *d) {
    int64_t dim = d->head_dim;
    return d->dropout > 0 && HALVES & BIT(d->dtype) && (dim == 4 || dim == 8) &&
           d->block % HTI_NARROW_GROUP == 0 && d->block <= 128 &&
           d->max_sequences * HTI_NARROW_APART * HTI_NARROW_GROUP <= d->max_rows;
}

static int memory(const row *r, const subject *s) {
    const ht_attention_desc *d = s->d;
    size_t lent = s->limits->shared_bytes;
    NEEDS(!(r->fits & TOWER_MEMORY) || lent >= TOWER_BYTES,
          "the device lends %zu bytes of shared memory, not %d", lent, TOWER_BYTES);
    if (!(r->fits & NARROW_FITS)) return 1;
    NEEDS(d->dropout <= 0 || hti_narrow_keeps(d),
          "dropout on so many short sequences, or blocks of %lld", (long long)d->block);
    int levels = d->kind == HT_HIERARCHICAL ? hti_levels(s->call->length, d->block) : 1;
    NEEDS(levels <= HTI_NARROW_LEVELS &&
              s->limits->narrow_shared((int)d->head_dim, (int)s->call->length, levels) <= lent,
          "a sequence of %lld rows does not fit into shared memory", (long long)s->call->length);
    return 1;
}

/* ---- copies ---- */

int hti_pad_desc(ht_attention_desc *padded, const ht_attention_desc *d) {
    int64_t least = d->head_dim > d->value_dim ? d->head_dim : d->value_dim, width = 16;
    while (width < least) width *= 2;
    if (width > 128 || (d->rotary_theta > 0 && d->head_dim % 2 != 0)) return 0;
    *padded = *d;
    padded->head_dim = padded->value_dim = width;
    /* pair i of so many turns by theta^(-2i / dim) */
    if (d->rotary_theta > 0)
        padded->rotary_theta = pow(d->rotary_theta, (double)width / (double)d->head_dim);
    return 1;
}

void hti_pad_call(hti_attention_call *out, const ht_attention_desc *padded,
                  const hti_attention_call *c) {
    *out = *c, out->desc = padded;
    int64_t q = padded->q_heads * padded->head_dim, kv = padded->kv_heads * padded->head_dim;
    int64_t length = c->cu_seqlens ? 0 : c->length;
    out->q = out->out = out->dout = out->dq = (ht_tensor){NULL, length * q, q, padded->head_dim};
    out->k = out->v = out->dk = out->dv = (ht_tensor){NULL, length * kv, kv, padded->head_dim};
}

static int holds(const row *r, const subject *s);

/* Does some family before take the padded plan or call? The tuned backward reads what the tuned
 * forward has left, of the rows or of copies. */
static int padding(const row *r, const subject *s) {
    ht_attention_desc d;
    hti_attention_call c;
    if (!(r->fits & PADDED_FITS)) return 1;
    NEEDS(hti_pad_desc(&d, s->d), "rows of %lld and %lld columns have no copies",
          (long long)s->d->head_dim, (long long)s->d->value_dim);
    subject inner = *s;
    inner.d = &d, inner.why = NULL;
    if (s->call) hti_pad_call(&c, &d, s->call), inner.call = &c;
    const row *found = rows;
    while (found < r && !holds(found, &inner)) found++;
    NEEDS(found < r, "nor would other kernels take a copy");
    if (!s->backward || !s->call || found->family != HTI_TUNED) return 1;
    hti_family forward = hti_family_of(s->limits, s->call, 0);
    NEEDS(forward == HTI_PADDED || forward == HTI_TUNED, "forward was not tuned");
    return 1;
}

typedef int condition(const row *r, const subject *s);
static condition *const of_plan[] = {kind,  query,   direction, dtype,   dims,
                                     block, options, scale,     opening, padding};
static condition *const of_call[] = {length, aligned, grids, memory};
enum { PLAN = sizeof of_plan / sizeof *of_plan, CALL = sizeof of_call / sizeof *of_call };

static int holds(const row *r, const subject *s) {
    for (int i = 0; i < PLAN; i++)
        if (!of_plan[i](r, s)) return 0;
    for (int i = 0; s->call && i < CALL; i++)
        if (!of_call[i](r, s)) return 0;
    return 1;
}

/* ---- the walk ---- */

/* Is the row for calls like this one at all? Then a condition that it misses is worth a word. */
static int is_meant(const row *r, const subject *s) {
    subject quiet = *s;
    quiet.why = NULL;
    return kind(r, &quiet) && query(r, &quiet) && direction(r, &quiet) &&
           (!r->own_dims || dims(r, &quiet)) && (options_of(s->d) & OPEN) == (r->required & OPEN);
}

/* The first row that holds. *faster: the first one before it that is meant for such calls, or NULL;
 * faster NULL: nobody asks. */
static const row *walk(const subject *s, const row **faster) {
    const row *r = rows;
    if (faster) *faster = NULL;
    for (; r < rows + ROWS - 1 && !holds(r, s); r++) /* the last takes everything */
        if (faster && !*faster && is_meant(r, s)) *faster = r;
    return r;
}

hti_family hti_family_of(const hti_limits *limits, const hti_attention_call *call, int backward) {
    subject s = {.limits = limits, .call = call, .d = call->desc, .backward = backward};
    return call->first ? HTI_FIRST_ROWS : walk(&s, NULL)->family;
}

hti_family hti_family_why(const hti_limits *limits, const hti_attention_call *call, int backward,
                          const char **faster, char *why, size_t bytes) {
    subject s = {.limits = limits, .call = call, .d = call->desc, .backward = backward};
    const row *passed;
    *faster = NULL;
    if (bytes) *why = '\0';
    if (call->first) return HTI_FIRST_ROWS;
    hti_family found = walk(&s, &passed)->family;
    if (!passed) return found;
    *faster = passed->name;
    s.why = why, s.bytes = bytes;
    holds(passed, &s); /* says what it misses */
    return found;
}

const char *hti_family_name(hti_family family) {
    for (int i = 0; i < ROWS; i++)
        if (rows[i].family == family) return rows[i].name;
    return "first";
}

/* Does some row of the family hold? */
static int any_holds(hti_family family, const subject *s) {
    int any = 0;
    for (int i = 0; i < ROWS; i++) any |= rows[i].family == family && holds(&rows[i], s);
    return any;
}

int hti_family_plans(hti_family family, const ht_attention_desc *desc) {
    return any_holds(family, &(subject){.d = desc});
}

int hti_family_takes(hti_family family, const hti_limits *limits, const hti_attention_call *call,
                     int backward) {
    return any_holds(
        family, &(subject){.limits = limits, .call = call, .d = call->desc, .backward = backward});
}
