/*
 * Cases: one attention problem each, described by a flat list of numbers, so that it can be
 * printed on one line, read back from a command line, and run on every device.
 */
#ifndef CASES_H
#define CASES_H

#include "htransformer.h"

/* X(field, default): every parameter of a case. */
#define CASE_FIELDS(X)                                                                 \
    X(kind, HT_HIERARCHICAL)                                                           \
    X(query, HT_QUERY_MEAN)                                                            \
    X(dtype, HT_F32)                                                                   \
    X(causal, 0)                                                                       \
    X(bias, 0)                                                                         \
    X(cross, 0)                                                                        \
    X(batch, 1)                                                                        \
    X(length, 40)                                                                      \
    X(packed, 0) /* 0: equal lengths; n: ragged ones drawn from n, none over length */ \
    X(block, 4)                                                                        \
    X(q_heads, 1)                                                                      \
    X(kv_heads, 1)                                                                     \
    X(head_dim, 8)                                                                     \
    X(value_dim, 8)                                                                    \
    X(scale, 0)  /* thousandths; 0: the default */                                     \
    X(rotary, 0) /* theta */                                                           \
    X(mask, MASK_NONE)                                                                 \
    X(layout, LAYOUT_PLAIN)                                                            \
    X(lse, 1) /* the caller asks for lse */                                            \
    X(dlse, 0)                                                                         \
    X(dropout, 0) /* per cent */                                                       \
    X(spread, 1)  /* q is multiplied by this: how far the scores lie apart */          \
    X(slack, 0)   /* 1: the plan's maxima are larger than the call */                  \
    X(scratch, 1) /* 1: the caller's, 0: the context's */                              \
    X(open, 0)                                                                         \
    X(leaf, 0)                                                                         \
    X(peek, 0)                                                                         \
    X(gap, 0)     /* thousandths that opened clusters are ahead of others; -1: any */  \
    X(raise_v, 0) /* what v is about */                                                \
    X(raise_dout, 0)                                                                   \
    X(grid, 0) /* 1: q and k are small integers, so that scores are exact */           \
    X(seed, 1)

/* Which rows are masked. What is masked holds NaN, always. */
enum {
    MASK_NONE,
    MASK_PADDING, /* keys and queries of a tail of every sequence */
    MASK_LEADING, /* keys and queries of a head of every sequence */
    MASK_KEYS,    /* keys at random */
    MASK_QUERIES, /* queries at random */
    MASK_BOTH,    /* keys and queries at random, not the same */
    MASK_ALL_KEYS,
    MASK_ALL_QUERIES,
    MASK_ONE_KEY, /* all keys but one of every sequence */
    MASK_RUNS,    /* whole clusters: runs of 3 * block rows on and off */
    MASK_COUNT
};

/* Where the tensors lie. */
enum {
    LAYOUT_PLAIN,   /* contiguous, strides zero */
    LAYOUT_SPELLED, /* contiguous, strides given */
    LAYOUT_FUSED,   /* q, k, v in one projection [rows, Hq*d + Hkv*d + Hkv*dv]; gradients too */
    LAYOUT_HEADS,   /* [batch, heads, length, dim]; packed: [heads, rows, dim] */
    LAYOUT_PADDED,  /* gaps after every head, row and sequence; nothing aligned */
    LAYOUT_COUNT
};

typedef struct test_case {
#define CASE_MEMBER(field, value) int64_t field;
    CASE_FIELDS(CASE_MEMBER)
#undef CASE_MEMBER
} test_case;

/* CASE(.length = 7): the defaults but for what is named; overriding initialisers is the point */
#ifdef __clang__
#pragma clang diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
#define CASE_DEFAULT(field, value) .field = (value),
#define CASE(...) ((test_case){CASE_FIELDS(CASE_DEFAULT) __VA_ARGS__})

/* "kind=0,query=1,...": only what differs from the default. `text` holds `bytes`. */
void case_print(char *text, size_t bytes, const test_case *c);
/* Reads such a text; 0 if a word of it is not understood. */
int case_parse(test_case *c, const char *text);

static inline int dtype_is_half(int64_t dtype) { return dtype == HT_BF16 || dtype == HT_F16; }

typedef struct case_list {
    test_case *at;
    size_t count, room;
} case_list;

void cases_add(case_list *list, test_case c);
void cases_free(case_list *list);

/* The ways to attend: every kind, mode and direction that is allowed. A case with only those
 * fields set. */
extern const test_case case_ways[];
extern const size_t case_way_count;
/* The same, and then every row opening clusters. */
extern const size_t case_all_way_count;

/* Every option alone, on every way to attend. */
void cases_options(case_list *list, ht_dtype dtype);
/* Lengths around every edge of the hierarchy, for several blocks. */
void cases_lengths(case_list *list, ht_dtype dtype);
/* Head and value dimensions, odd ones too. */
void cases_dims(case_list *list, ht_dtype dtype);
/* `count` mixtures of everything. */
void cases_random(case_list *list, ht_dtype dtype, uint64_t seed, int count);
/* A few long ones. */
void cases_long(case_list *list, ht_dtype dtype);
/* What matrix units like: blocks of 16, 32, ... 128, dimensions of 16 to 128, every option. */
void cases_tiles(case_list *list, ht_dtype dtype);
/* block 16, 64 columns, no options: what the fastest kernels take */
void cases_plain(case_list *list, ht_dtype dtype);
/* Whole clusters of 64 columns, which some kernels take without looking at each. */
void cases_whole(case_list *list, ht_dtype dtype);
/* Every row its own query, 64 columns, blocks of 16, 64 and 128 rows: the wide kernels. */
void cases_wide(case_list *list, ht_dtype dtype);
/* 4 and 8 columns, all blocks of the narrow kernels, long and short. */
void cases_narrow(case_list *list, ht_dtype dtype);

/* Opening: every option, lengths around the edges, few and many clusters, all leaves. */
void cases_open(case_list *list, ht_dtype dtype);

/* splitmix64: the next of a stream of random numbers. */
uint64_t test_random(uint64_t *state);
int64_t test_random_below(uint64_t *state, int64_t n);
double test_random_normal(uint64_t *state);

#endif
